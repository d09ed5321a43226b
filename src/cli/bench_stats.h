// SPDX-License-Identifier: Apache-2.0
/* bench_stats.h - figures of several rounds: median, least, largest, and whether they agree.
 *
 * Path:     bench.c adds a round, bench_report.c prints; bench_serve.c takes the median.
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_BENCH_STATS_H
#define LILY_CLI_BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BENCH_MAX_ROUNDS = 1000,
    BENCH_MORE_ROUNDS = 5, // at most, of a row whose rounds disagree
};
#define BENCH_SPREAD 0.08 // largest difference of rounds that agree, of their median

/* One figure over the rounds, ascending. */
typedef struct BenchSeries {
    int n;
    double v[BENCH_MAX_ROUNDS + BENCH_MORE_ROUNDS];
} BenchSeries;

/* Of n >= 1 ascending values. */
double bench_sorted_median(const double *v, size_t n);
/* Adds a round at its place. The caller keeps n inside the array. */
void bench_series_add(BenchSeries *s, double value);
/* 0 when there are no rounds. */
double bench_series_median(const BenchSeries *s);
double bench_series_least(const BenchSeries *s);
double bench_series_largest(const BenchSeries *s);

/* Whether most rounds agree: at least n_least of them and more than half, neighbours in order of
 * size, lie within BENCH_SPREAD of their median. Of n_least rounds these are all; further rounds
 * forgive as many outliers, up to half. True while there are fewer than two rounds. */
bool bench_series_is_stable(const BenchSeries *s, int n_least);

#endif
