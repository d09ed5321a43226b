// SPDX-License-Identifier: Apache-2.0
/* test_bench_stats.c - medians over rounds and the rule by which a row is unstable. */
#include "unit.h"

#include "base/status.h"
#include "cli/bench_stats.h"

#include <stdlib.h>

static BenchSeries *series_of(const double *v, int n) {
    BenchSeries *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < n; i++)
        bench_series_add(s, v[i]);
    return s;
}

#define SERIES(...)                                                                                \
    series_of((const double[]){__VA_ARGS__}, (int)COUNT_OF(((const double[]){__VA_ARGS__})))

static bool is_stable(BenchSeries *s, int n_agree) {
    bool is = bench_series_is_stable(s, n_agree);
    free(s);
    return is;
}

static void median_least_and_largest(void **state) {
    UNUSED(state);
    static const struct {
        double v[5];
        int n;
        double median, least, largest;
    } cases[] = {
        {{0}, 0, 0, 0, 0},       {{3}, 1, 3, 3, 3},          {{3, 1}, 2, 2, 1, 3},
        {{3, 1, 2}, 3, 2, 1, 3}, {{5, 1, 4, 2}, 4, 3, 1, 5}, {{5, 5, 1, 9, 2}, 5, 5, 1, 9},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        BenchSeries *s = series_of(cases[i].v, cases[i].n);
        assert_true(bench_series_median(s) == cases[i].median);
        assert_true(bench_series_least(s) == cases[i].least);
        assert_true(bench_series_largest(s) == cases[i].largest);
        free(s);
    }
}

static void a_row_is_unstable_beyond_eight_percent(void **state) {
    UNUSED(state);
    assert_true(is_stable(SERIES(0.50, 0.52, 0.54), 3));   // 7.7% of 0.52
    assert_false(is_stable(SERIES(0.50, 0.52, 0.543), 3)); // 8.3%
    assert_true(is_stable(SERIES(0.543), 3));
    assert_false(is_stable(SERIES(0.5, 0.55), 2));
    assert_true(is_stable(SERIES(0.5, 0.54), 2));
}

static void more_rounds_forgive_outliers_alone(void **state) {
    UNUSED(state);
    // one round was disturbed; three others agree
    assert_false(is_stable(SERIES(0.50, 0.51, 0.90), 3));
    assert_true(is_stable(SERIES(0.50, 0.51, 0.90, 0.49), 3));
    // two camps: never three that agree
    assert_false(is_stable(SERIES(0.50, 0.51, 0.90, 0.91, 0.70, 0.30, 0.10, 1.2), 3));
    // more than half must agree: two of seven say nothing
    assert_false(is_stable(SERIES(0.50, 0.51, 0.90, 0.70, 0.30, 0.10, 1.2), 2));
    assert_false(is_stable(SERIES(0.50, 0.51, 0.50, 0.70, 0.30, 0.10), 3));
    assert_true(is_stable(SERIES(0.50, 0.51, 0.50, 0.70, 0.30, 0.49), 3));
    assert_false(is_stable(SERIES(0.50, 0.51, 0.50, 0.52, 0.7), 5)); // all five are asked for
    // the agreeing ones need not be the first or the smallest
    assert_true(is_stable(SERIES(0.2, 0.90, 0.91, 0.4, 0.92), 3));
}

static void all_rounds_fit(void **state) {
    UNUSED(state);
    BenchSeries *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < BENCH_MAX_ROUNDS + BENCH_MORE_ROUNDS; i++)
        bench_series_add(s, i * 7 % (BENCH_MAX_ROUNDS + BENCH_MORE_ROUNDS));
    for (int i = 0; i < s->n; i++)
        assert_true(s->v[i] == i);
    free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_least_and_largest),
        cmocka_unit_test(a_row_is_unstable_beyond_eight_percent),
        cmocka_unit_test(more_rounds_forgive_outliers_alone),
        cmocka_unit_test(all_rounds_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
