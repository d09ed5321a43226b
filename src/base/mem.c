// SPDX-License-Identifier: Apache-2.0
/* mem.c - the allocator in one place.
 *
 * Owns:     the test counters.  Thread: any; the counters are atomic.
 * Not here: request memory (arena.c). */
#define _GNU_SOURCE // MAP_ANONYMOUS, MADV_HUGEPAGE
#include "mem.h"

#include "checked.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

// Test switches, not program state: which allocation is to fail, and how many there were.
static _Atomic int64_t mem_left_before_fail = -1;
static _Atomic int64_t mem_n_calls = 0;

static bool mem_must_fail(void) {
    atomic_fetch_add_explicit(&mem_n_calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&mem_left_before_fail, memory_order_relaxed) < 0)
        return false;
    return atomic_fetch_sub(&mem_left_before_fail, 1) == 0;
}

void mem_fail_after(int64_t after) { atomic_store(&mem_left_before_fail, after); }

int64_t mem_count(void) { return atomic_load(&mem_n_calls); }

void mem_share_heap(void) {
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
#endif
}

void *mem_alloc(size_t size) { return mem_must_fail() ? NULL : malloc(size ? size : 1); }

void *mem_zalloc(size_t n, size_t size) {
    return mem_must_fail() ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t size) {
    return mem_must_fail() ? NULL : realloc(p, size ? size : 1);
}

void mem_free(void *p) { free(p); }

void *mem_alloc_aligned(size_t size) {
    size_t full;
    if (mem_must_fail() || !checked_add_size(size ? size : 1, MEM_ALIGN - 1, &full))
        return NULL;
    return aligned_alloc(MEM_ALIGN, full / MEM_ALIGN * MEM_ALIGN);
}

char *mem_strdup(const char *s, size_t len) {
    char *copy = len < SIZE_MAX ? mem_alloc(len + 1) : NULL;
    if (copy) {
        memcpy(copy, s, len);
        copy[len] = 0;
    }
    return copy;
}

void *mem_map(size_t size) {
    if (mem_must_fail() || size == 0)
        return NULL;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, size, MADV_HUGEPAGE); // a wish; small pages work too
#endif
    return p;
}

void mem_unmap(void *p, size_t size) {
    if (p)
        (void)munmap(p, size);
}
