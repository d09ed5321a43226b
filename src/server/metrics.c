// SPDX-License-Identifier: Apache-2.0
/* metrics.c - what was counted, in the Prometheus text format.
 *
 * Owns:     its counters.  Thread: any; the lock guards them. */
#include "server/metrics.h"

#include "base/clock.h"

static const double BOUNDS[METRICS_BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                               1,     2.5,  5,     10,   30,  60,   300};
static const int STATUSES[METRICS_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 408, 413,
                                               415, 429, 431, 499, 500, 501, 503, 504};

static void metrics_lock(Metrics *m) { CHECK(pthread_mutex_lock(&m->lock) == 0); }
static void metrics_unlock(Metrics *m) { CHECK(pthread_mutex_unlock(&m->lock) == 0); }

void metrics_init(Metrics *m) {
    *m = (Metrics){.start_ns = clock_now_ns()};
    CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
}

void metrics_fini(Metrics *m) { CHECK(pthread_mutex_destroy(&m->lock) == 0); }

void metrics_count_answer(Metrics *m, int route, int http_status) {
    int i = 0;
    while (i < METRICS_STATUSES - 1 && STATUSES[i] && STATUSES[i] != http_status)
        i++;
    metrics_lock(m);
    m->answers[route][i]++; // one that is in no list counts in the slot of the others
    m->n_rejected += http_status == 429;
    metrics_unlock(m);
}

void metrics_time(Metrics *m, MetricsTime which, double seconds) {
    int i = 0;
    while (i < METRICS_BUCKETS && seconds > BOUNDS[i])
        i++;
    metrics_lock(m);
    m->times[which].counts[i]++;
    m->times[which].sum += seconds;
    metrics_unlock(m);
}

static void metrics_head(StrBuf *out, const char *name, const char *help, const char *type) {
    strbuf_printf(out, "# HELP lily_%s %s\n# TYPE lily_%s %s\n", name, help, name, type);
}

static void metrics_histogram(StrBuf *out, const char *name, const char *help,
                              const MetricsHistogram *h) {
    uint64_t n = 0;
    metrics_head(out, name, help, "histogram");
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        n += h->counts[i];
        strbuf_printf(out, "lily_%s_bucket{le=\"%g\"} %llu\n", name, BOUNDS[i],
                      (unsigned long long)n);
    }
    n += h->counts[METRICS_BUCKETS];
    strbuf_printf(out, "lily_%s_bucket{le=\"+Inf\"} %llu\nlily_%s_sum %.9g\nlily_%s_count %llu\n",
                  name, (unsigned long long)n, name, h->sum, name, (unsigned long long)n);
}

static void metrics_counter(StrBuf *out, const char *name, const char *help, uint64_t value) {
    metrics_head(out, name, help, "counter");
    strbuf_printf(out, "lily_%s %llu\n", name, (unsigned long long)value);
}

void metrics_text(Metrics *m, StrBuf *out, const char *const *routes, const MetricsGauge *gauges,
                  int n_gauges) {
    metrics_lock(m);
    Metrics now = *m; // the text is made without the lock
    metrics_unlock(m);
    metrics_head(out, "http_answers_total", "Answers by route and HTTP status.", "counter");
    for (int r = 0; r < METRICS_ROUTES; r++)
        for (int s = 0; s < METRICS_STATUSES; s++) {
            char status[8] = "other";
            if (STATUSES[s])
                snprintf(status, sizeof status, "%d", STATUSES[s]);
            if (routes[r] && now.answers[r][s])
                strbuf_printf(out, "lily_http_answers_total{route=\"%s\",status=\"%s\"} %llu\n",
                              routes[r], status, (unsigned long long)now.answers[r][s]);
        }
    metrics_counter(out, "requests_gone_total", "Clients that hung up before the end.", now.n_gone);
    metrics_counter(out, "requests_failed_total", "Requests that failed in work.", now.n_failed);
    metrics_counter(out, "requests_rejected_total", "Requests refused for a full queue.",
                    now.n_rejected);
    metrics_counter(out, "request_prompt_tokens_total", "Prompt tokens of ended requests.",
                    now.n_prompt_tok);
    metrics_counter(out, "request_cached_tokens_total", "Of these, not read again.",
                    now.n_cached_tok);
    metrics_counter(out, "request_generated_tokens_total", "New tokens of ended requests.",
                    now.n_generated_tok);
    metrics_counter(out, "request_reasoning_tokens_total", "Of these, reasoning.",
                    now.n_reasoning_tok);
    metrics_histogram(out, "queue_seconds", "From acceptance to admission.",
                      &now.times[METRICS_QUEUE]);
    metrics_histogram(out, "first_token_seconds", "From acceptance to the first token.",
                      &now.times[METRICS_FIRST]);
    metrics_histogram(out, "request_seconds", "From acceptance to the end.",
                      &now.times[METRICS_WHOLE]);
    for (int i = 0; i < n_gauges; i++) {
        const MetricsGauge *g = &gauges[i];
        size_t bare = strcspn(g->name, "{"); // labels belong to no head
        if (g->help)
            strbuf_printf(out, "# HELP lily_%.*s %s\n# TYPE lily_%.*s %s\n", (int)bare, g->name,
                          g->help, (int)bare, g->name, g->type);
        strbuf_printf(out, "lily_%s %.17g\n", g->name, g->value);
    }
    metrics_head(out, "uptime_seconds", "Since the server started.", "gauge");
    strbuf_printf(out, "lily_uptime_seconds %.3f\n", clock_seconds_since(now.start_ns));
}
