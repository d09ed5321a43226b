// SPDX-License-Identifier: Apache-2.0
/* test_cpu_meter.c - the meter of a column's products: what it calls, what it counts, and that it
 * fails cleanly. Nothing here depends on how fast the machine is.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one, and those of its pools. */
#include "unit.h"

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_meter.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- a column that looks at what it is called with ---- */

// Seen by the entries, which have no context of their own.
static _Atomic int64_t n_decode, n_prefill;
static _Atomic int32_t decode_tiles, prefill_tiles, prefill_rows;
static _Atomic(const uint8_t *) weights_seen[LIMIT_THREADS];
static _Atomic bool is_wrong; // cmocka may not fail on the threads of a pool

static void want(bool is_so) {
    if (!is_so)
        atomic_store(&is_wrong, true);
}

static void see_weights(const uint8_t *w, int32_t n_tiles) {
    want((uintptr_t)w % 64 == 0);
    want((size_t)n_tiles * TILE_BYTES_Q4 <= 256 << 10);
    for (int i = 0; i < LIMIT_THREADS; i++) {
        const uint8_t *none = NULL;
        if (atomic_compare_exchange_strong(&weights_seen[i], &none, w) || none == w)
            return;
    }
}

static int n_weights_seen(void) {
    int n = 0;
    while (n < LIMIT_THREADS && atomic_load(&weights_seen[n]))
        n++;
    return n;
}

static void see_rows(float *const *y, const void *const *x, int32_t m, int32_t n_strips) {
    for (int32_t i = 0; i < m; i++) {
        want((uintptr_t)x[i] % 64 == 0);
        for (int32_t r = 0; r < n_strips * STRIP_ROWS; r++)
            y[i][r] = (float)r;
    }
}

static void see_decode(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                       const void *const *x, int32_t m, const uint8_t *next) {
    UNUSED(next);
    want(m == 1);
    see_weights(w, n_groups * n_strips);
    see_rows(y, x, m, n_strips);
    atomic_store(&decode_tiles, n_groups * n_strips);
    atomic_fetch_add(&n_decode, 1);
}

static void see_prefill(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                        const void *const *x, int32_t m, const uint8_t *next) {
    UNUSED(next);
    want(m >= 16 && m <= MATMUL_ROWS);
    see_weights(w, n_groups * n_strips);
    see_rows(y, x, m, n_strips);
    atomic_store(&prefill_tiles, n_groups * n_strips);
    atomic_store(&prefill_rows, m);
    atomic_fetch_add(&n_prefill, 1);
}

/* The rates lie between calls by the time of all and calls by the least time of one turn. */
static void what_is_counted_is_what_was_called(void **state) {
    UNUSED(state);
    MatmulKernels k;
    matmul_generic_init(&k);
    k.decode_q4 = see_decode;
    k.prefill_q4 = see_prefill;
    const double seconds = 0.002;
    for (int n = 1; n <= 3; n++) {
        Pool *pool;
        assert_int_equal(pool_open(&pool, n, NULL), STATUS_OK);
        for (int i = 0; i < LIMIT_THREADS; i++)
            atomic_store(&weights_seen[i], NULL);
        atomic_store(&n_decode, 0);
        atomic_store(&n_prefill, 0);
        CpuMeter m = {0};
        int64_t start = clock_now_ns();
        assert_int_equal(cpu_meter_products(&m, &k, pool, seconds, NULL), STATUS_OK);
        double all = clock_seconds_since(start);
        double decode = (double)n_decode * decode_tiles * TILE_BYTES_Q4 * 1e-9;
        double prefill = (double)n_prefill * prefill_tiles * STRIP_ROWS * GROUP_INPUTS * 2.0 *
                         prefill_rows * 1e-12;
        assert_true(m.decode_gb_s > 0 && m.decode_gb_s <= decode / seconds);
        assert_true(m.prefill_tflops > 0 && m.prefill_tflops <= prefill / seconds);
        if (n == 1)
            assert_true(m.decode_gb_s >= decode / all && m.prefill_tflops >= prefill / all);
        assert_int_equal(n_weights_seen(), n); // each member has its own
        assert_false(is_wrong);
        pool_close(pool);
    }
}

/* What the meter fills in must not be slow by its values: outputs are finite and not tiny. */
static float least, most;

static void see_values(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                       const void *const *x, int32_t m, const uint8_t *next) {
    MatmulKernels k;
    matmul_generic_init(&k);
    k.prefill_q4(y, w, n_groups, n_strips, x, m, next);
    for (int32_t i = 0; i < m; i++)
        for (int32_t r = 0; r < n_strips * STRIP_ROWS; r++) {
            least = fminf(least, fabsf(y[i][r]));
            most = fmaxf(most, fabsf(y[i][r]));
        }
}

static void its_numbers_are_ordinary_ones(void **state) {
    UNUSED(state);
    Pool *pool;
    assert_int_equal(pool_open(&pool, 1, NULL), STATUS_OK);
    MatmulKernels k;
    matmul_generic_init(&k);
    k.decode_q4 = k.prefill_q4 = see_values;
    least = INFINITY;
    most = 0;
    CpuMeter m;
    assert_int_equal(cpu_meter_products(&m, &k, pool, 0.001, NULL), STATUS_OK);
    assert_true(least > 1e-6f && most < 1e6f);
    pool_close(pool);
}

static void every_column_with_prepared_rows_is_measured(void **state) {
    UNUSED(state);
    Pool *pool;
    assert_int_equal(pool_open(&pool, 2, NULL), STATUS_OK);
    static const uint32_t masks[] = {0, 1u << COLUMN_AMX, 1u << COLUMN_AVX512};
    for (size_t i = 0; i < COUNT_OF(masks); i++) {
        KernelTable k;
        cpu_features_choose(&k, masks[i], false);
        if (k.matmul.block_bytes)
            continue;
        CpuMeter m = {0};
        assert_int_equal(cpu_meter_products(&m, &k.matmul, pool, 0.001, NULL), STATUS_OK);
        assert_true(m.decode_gb_s > 0 && m.prefill_tflops > 0);
    }
    pool_close(pool);
}

static void it_fails_without_memory(void **state) {
    UNUSED(state);
    Pool *pool;
    assert_int_equal(pool_open(&pool, 2, NULL), STATUS_OK);
    MatmulKernels k;
    matmul_generic_init(&k);
    CpuMeter m = {.decode_gb_s = -1};
    for (int after = 0; after < 2; after++) {
        Err err = {0};
        mem_fail_after(after);
        assert_int_equal(cpu_meter_products(&m, &k, pool, 0.001, &err), STATUS_MEMORY);
        mem_fail_after(-1);
        assert_non_null(strstr(err.text, "product meter"));
        assert_true(m.decode_gb_s == -1);
    }
    assert_int_equal(cpu_meter_products(&m, &k, pool, 0.001, NULL), STATUS_OK);
    pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_counted_is_what_was_called),
        cmocka_unit_test(its_numbers_are_ordinary_ones),
        cmocka_unit_test(every_column_with_prepared_rows_is_measured),
        cmocka_unit_test(it_fails_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
