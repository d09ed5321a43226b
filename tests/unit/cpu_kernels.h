// SPDX-License-Identifier: Apache-2.0
/* cpu_kernels.h - test helper for the kernels of the cpu backend: the columns that this machine
 * runs, buffers that end at a forbidden page, random numbers from a printed seed.
 *
 * Use:      for (size_t i = 0; i < kernel_tables(&t); i++) ... t.tables[i] ...
 * Owns:     guard_alloc's memory is freed by guard_free, which also looks at the canary before it.
 */
#ifndef LILY_TESTS_CPU_KERNELS_H
#define LILY_TESTS_CPU_KERNELS_H

#define _GNU_SOURCE // MAP_ANONYMOUS

#include "unit.h"

#include "backend/cpu/cpu_features.h"
#include "base/bf16.h"
#include "base/checked.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KERNEL_FN __attribute__((unused)) static

enum { ALL_COLUMNS = ~1 };

/* Every column: the best of each family, then without amx, then generic alone; each once. */
typedef struct KernelTables {
    KernelTable tables[3];
    size_t n;
} KernelTables;

KERNEL_FN bool kernel_tables_equal(const KernelTable *a, const KernelTable *b) {
    return !strcmp(a->matmul.column, b->matmul.column) && !strcmp(a->attn.column, b->attn.column) &&
           !strcmp(a->recur.column, b->recur.column) && !strcmp(a->elem.column, b->elem.column);
}

KERNEL_FN KernelTables kernel_tables(bool is_f32) {
    static const uint32_t masks[] = {0, 1u << COLUMN_AMX, (uint32_t)ALL_COLUMNS};
    KernelTables t = {.n = 0};
    for (size_t i = 0; i < COUNT_OF(masks); i++) {
        cpu_features_choose(&t.tables[t.n], masks[i], is_f32);
        t.n += t.n == 0 || !kernel_tables_equal(&t.tables[t.n - 1], &t.tables[t.n]);
    }
    return t;
}

/* ---- guarded buffers ---- */

typedef struct GuardHead {
    size_t map_size, gap; // bytes of the map; canary bytes between this and the buffer
} GuardHead;

/* `size` bytes (a multiple of 4) that end at a page without access; the start is 64-byte aligned
 * when size is a multiple of 64, else 4-byte aligned. Filled with NaN patterns. */
KERNEL_FN void *guard_alloc(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = round_up_size(size + sizeof(GuardHead) + 64, page);
    uint8_t *map =
        mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + body, page, PROT_NONE), 0);
    memset(map, 0xff, body);
    GuardHead *head = (GuardHead *)map;
    *head = (GuardHead){body + page, body - size - sizeof *head};
    return map + body - size;
}

/* NULL is fine. Fails the test when something was written before the buffer. */
KERNEL_FN void guard_free(void *p, size_t size) {
    if (!p)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = round_up_size(size + sizeof(GuardHead) + 64, page);
    uint8_t *map = (uint8_t *)p + size - body;
    GuardHead head = *(GuardHead *)map;
    assert_int_equal(head.map_size, body + page);
    for (size_t i = 0; i < head.gap; i++)
        assert_int_equal(map[sizeof head + i], 0xff);
    munmap(map, head.map_size);
}

KERNEL_FN float *guard_f32(size_t n) { return guard_alloc(n * sizeof(float)); }
KERNEL_FN void guard_free_f32(float *p, size_t n) { guard_free(p, n * sizeof(float)); }

/* ---- random numbers ---- */

typedef struct Random {
    uint64_t seed, n;
} Random;

KERNEL_FN Random random_open(const char *test) {
    Random r = {(uint64_t)time(NULL), 0};
    const char *fixed = getenv("LILY_SEED");
    if (fixed)
        r.seed = strtoull(fixed, NULL, 0);
    printf("%s: LILY_SEED=%llu\n", test, (unsigned long long)r.seed);
    return r;
}

KERNEL_FN uint64_t random_u64(Random *r) { return rng_u64(r->seed, r->n++); }
KERNEL_FN float random_unit(Random *r) { return rng_unit_f32(r->seed, r->n++); }
/* Roughly normal. */
KERNEL_FN float random_normal(Random *r) {
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += random_unit(r) - 0.5f;
    return sum * 1.732f;
}
KERNEL_FN void random_fill(Random *r, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++)
        x[i] = random_normal(r) * scale;
}

/* |got - want| <= bound, with what and where in the message. */
#define ASSERT_NEAR(got, want, bound, ...)                                                         \
    do {                                                                                           \
        double near_got_ = (double)(got), near_want_ = (double)(want), near_bound_ = (bound);      \
        if (!(fabs(near_got_ - near_want_) <= near_bound_)) {                                      \
            char near_text_[128];                                                                  \
            snprintf(near_text_, sizeof near_text_, __VA_ARGS__);                                  \
            fail_msg("%s: found %.9g, expected %.9g within %.3g", near_text_, near_got_,           \
                     near_want_, near_bound_);                                                     \
        }                                                                                          \
    } while (0)

#endif
