// SPDX-License-Identifier: Apache-2.0
/* test_meter.c - the meters of memory and arithmetic: what they count, and that they fail cleanly.
 * Nothing here depends on how fast the machine is. */
#include "unit.h"

#include "backend/cpu/cpu_features.h"
#include "backend/meter.h"
#include "base/mem.h"

#include <string.h>

enum { METER_BYTES = 16 << 20 };

/* All inputs of a unit are one, so its sums count the multiply-adds that were really done. */
static void every_unit_does_as_many_multiply_adds_as_it_says(void **state) {
    UNUSED(state);
    int n_units = 0;
    for (const MeterUnit *u; (u = meter_unit(n_units)) != NULL; n_units++) {
        static const int64_t rounds[] = {0, 1, 7, 1000, 20000};
        for (size_t i = 0; i < COUNT_OF(rounds); i++) {
            double done = u->run(rounds[i]);
            if (done != (double)rounds[i] * u->n_multiply_adds)
                fail_msg("%s: %lld rounds: expected %.0f, found %.0f", u->name,
                         (long long)rounds[i], (double)rounds[i] * u->n_multiply_adds, done);
        }
        for (int i = 0; i < n_units; i++)
            assert_string_not_equal(meter_unit(i)->name, u->name);
    }
    assert_in_range(n_units, 1, 16);
    assert_null(meter_unit(n_units + 3));
}

static void a_product_of_the_kernels_is_among_the_units(void **state) {
    UNUSED(state);
    const char *want = "f32"; // the generic column
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni"))
        want = "16-bit integer";
#endif
    bool is_there = false, has_tiles = false;
    for (int i = 0; meter_unit(i); i++)
        has_tiles |= strstr(meter_unit(i)->name, "AMX") != NULL;
    assert_int_equal(has_tiles, cpu_features_amx() == AMX_GRANTED);
    for (int i = 0; meter_unit(i); i++)
        is_there |= strstr(meter_unit(i)->name, want) != NULL;
    assert_true(is_there);
}

static void the_fastest_unit_is_taken(void **state) {
    UNUSED(state);
    Pool *pool;
    assert_int_equal(pool_open(&pool, 2, NULL), STATUS_OK);
    const char *unit = NULL;
    double best = meter_matrix_tflops(pool, 0.001, &unit);
    assert_true(best > 0);
    bool is_named = false;
    for (int i = 0; meter_unit(i); i++) {
        is_named |= strcmp(meter_unit(i)->name, unit) == 0;
        assert_true(meter_unit_tflops(pool, meter_unit(i), 0.001) > 0);
    }
    assert_true(is_named);
    pool_close(pool);
}

static void reading_is_measured_and_fails_without_memory(void **state) {
    UNUSED(state);
    for (int n = 1; n <= 3; n++) {
        Pool *pool;
        assert_int_equal(pool_open(&pool, n, NULL), STATUS_OK);
        Meter *meter = NULL;
        assert_int_equal(meter_open(&meter, pool, METER_BYTES, NULL), STATUS_OK);
        for (int again = 0; again < 2; again++)
            assert_true(meter_read_gb_s(meter) > 0);
        meter_close(meter);
        meter = NULL;
        Err err = {0};
        for (int left = 0; left <= n; left++) { // itself, then each member's
            mem_fail_after(left);
            assert_int_equal(meter_open(&meter, pool, METER_BYTES, &err), STATUS_MEMORY);
            mem_fail_after(-1);
            assert_non_null(strstr(err.text, "bandwidth meter"));
            assert_null(meter);
        }
        pool_close(pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_does_as_many_multiply_adds_as_it_says),
        cmocka_unit_test(a_product_of_the_kernels_is_among_the_units),
        cmocka_unit_test(the_fastest_unit_is_taken),
        cmocka_unit_test(reading_is_measured_and_fails_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
