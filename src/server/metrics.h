// SPDX-License-Identifier: Apache-2.0
/* metrics.h - what was counted, in the Prometheus text format.
 *
 * Path:     http.c counts answers, job.c counts tokens and times, GET /metrics reads.
 * Owns:     its counters.  Thread: any. */
#ifndef LILY_SERVER_METRICS_H
#define LILY_SERVER_METRICS_H

#include "base/str.h"

#include <pthread.h>
#include <stdint.h>

enum { METRICS_BUCKETS = 14, METRICS_STATUSES = 24, METRICS_ROUTES = 16 };

typedef struct MetricsHistogram {
    uint64_t counts[METRICS_BUCKETS + 1]; // the last: beyond the last bound
    double sum;
} MetricsHistogram;

typedef enum MetricsTime {
    METRICS_QUEUE, // from acceptance to admission
    METRICS_FIRST, // to the first token
    METRICS_WHOLE, // to the end
    METRICS_TIMES
} MetricsTime;

typedef struct Metrics {
    pthread_mutex_t lock;
    uint64_t answers[METRICS_ROUTES][METRICS_STATUSES];
    MetricsHistogram times[METRICS_TIMES];
    uint64_t n_prompt_tok, n_cached_tok, n_generated_tok, n_reasoning_tok; // of ended requests
    uint64_t n_gone, n_failed, n_rejected;
    int64_t start_ns;
} Metrics;

void metrics_init(Metrics *m);
void metrics_fini(Metrics *m);

/* One answer of a route (its number) with this HTTP status. */
void metrics_count_answer(Metrics *m, int route, int http_status);
void metrics_time(Metrics *m, MetricsTime which, double seconds);

/* Gauges and counters that others own, read by the caller. */
typedef struct MetricsGauge {
    const char *name, *help, *type; // type "gauge" or "counter"
    double value;
} MetricsGauge;

/* Appends everything. routes [METRICS_ROUTES] names, NULL: none. */
void metrics_text(Metrics *m, StrBuf *out, const char *const *routes, const MetricsGauge *gauges,
                  int n_gauges);

#endif
