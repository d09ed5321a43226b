// SPDX-License-Identifier: Apache-2.0
/* bench_stats.c - sorted figures of rounds.
 *
 * Owns:     nothing.  Thread: main. */
#include "cli/bench_stats.h"

#include "base/checked.h"

void bench_series_add(BenchSeries *s, double value) {
    int i = s->n++;
    for (; i > 0 && s->v[i - 1] > value; i--)
        s->v[i] = s->v[i - 1];
    s->v[i] = value;
}

double bench_sorted_median(const double *v, size_t n) {
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

double bench_series_median(const BenchSeries *s) {
    return s->n ? bench_sorted_median(s->v, (size_t)s->n) : 0;
}
double bench_series_least(const BenchSeries *s) { return s->n ? s->v[0] : 0; }
double bench_series_largest(const BenchSeries *s) { return s->n ? s->v[s->n - 1] : 0; }

bool bench_series_is_stable(const BenchSeries *s, int n_least) {
    int n = min_i32(max_i32(n_least, s->n / 2 + 1), s->n);
    if (n < 2)
        return true;
    for (int i = 0; i + n <= s->n; i++)
        if (s->v[i + n - 1] - s->v[i] <= BENCH_SPREAD * bench_sorted_median(s->v + i, (size_t)n))
            return true;
    return false;
}
