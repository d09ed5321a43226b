// SPDX-License-Identifier: Apache-2.0
/* routes.c - the table of routes and what each answers.
 *
 * Owns:     nothing.  Thread: the connection's. */
#include "server/routes.h"

#include "openapi_json.h"
#include "page_html.h"

#include "base/sysmem.h"

#include <assert.h>
#include <string.h>

struct Route {
    const char *path; // one that ends in "/" and is longer than that takes a name behind it
    const char *method;
    bool is_open;     // needs no key
    bool needs_model; // 503 while it loads
    enum MHD_Result (*answer)(Call *c);
};

/* ---- chat and completions ---- */

static enum MHD_Result route_whole(Call *c) {
    Job *job = c->job;
    if (!stream_wait(&job->stream, c->connection))
        return MHD_YES; // called again when the answer is there
    int http_status = atomic_load(&job->http_status);
    if (job->stream.bytes.is_failed)
        return MHD_NO;
    return reply_bytes(c, http_status, "application/json", strbuf_view(&job->stream.bytes));
}

static enum MHD_Result route_job(Call *c, WireForm form) {
    if (c->job)
        return route_whole(c);
    WireFault fault = {0};
    JobClient client = {.space = c->space,
                        .client = c->client,
                        .request_id = c->request_id,
                        .start_ns = c->start_ns};
    if (job_open(&c->job, c->parts->runner, form, strbuf_view(&c->body), &client, &fault) !=
        STATUS_OK)
        return reply_fault(c, &fault);
    if (c->parts->options->is_prompt_logged)
        log_printf(c->parts->log, LOG_INFO, "body id=%s %.*s", c->request_id, (int)c->body.len,
                   c->body.ptr);
    Job *job = c->job;
    strbuf_fini(&c->body);
    c->unknown = job->request.unknown;
    watch_attach(c->parts->watch, c->entry, job);
    bool is_streamed = job->is_streamed;
    enum MHD_Result result = is_streamed ? reply_stream(c) : MHD_YES;
    runner_submit(c->parts->runner, job);
    return is_streamed ? result : route_whole(c);
}

static enum MHD_Result route_chat(Call *c) { return route_job(c, WIRE_CHAT); }
static enum MHD_Result route_completions(Call *c) { return route_job(c, WIRE_COMPLETIONS); }

/* ---- small routes ---- */

/* Sends body and frees it, or the fault. */
static enum MHD_Result route_send(Call *c, Status status, StrBuf *body, const WireFault *fault) {
    enum MHD_Result result = status == STATUS_OK
                                 ? reply_bytes(c, 200, "application/json", strbuf_view(body))
                                 : reply_fault(c, fault);
    strbuf_fini(body);
    return result;
}

static enum MHD_Result route_tokenize(Call *c) {
    StrBuf body = {0};
    WireFault fault = {0};
    const RunnerModel *m = runner_model(c->parts->runner);
    Status status = wire_tokenize(&body, strbuf_view(&c->body), m->turn.tokenizer, m->turn.family,
                                  m->limit_tok, &fault);
    return route_send(c, status, &body, &fault);
}

static enum MHD_Result route_detokenize(Call *c) {
    StrBuf body = {0};
    WireFault fault = {0};
    Status status = wire_detokenize(&body, strbuf_view(&c->body),
                                    runner_model(c->parts->runner)->turn.tokenizer, &fault);
    return route_send(c, status, &body, &fault);
}

static enum MHD_Result route_models(Call *c) {
    StrBuf body = {0};
    WireFault fault = {0};
    const RunnerModel *m = runner_model(c->parts->runner);
    if (c->name && strcmp(c->name, m->name) != 0) {
        reply_refuse(c, 404, "invalid_request_error", "model_not_found",
                     "there is no model \"%.100s\" here; the one that is served is \"%s\"", c->name,
                     m->name);
        return reply_refusal(c);
    }
    Status status =
        wire_models_json(&body, &m->name, 1, m->created, m->limit_tok, !c->name, &fault.err);
    return route_send(c, status, &body, &fault);
}

static enum MHD_Result route_health(Call *c) {
    Runner *r = c->parts->runner;
    RunnerState state = runner_state(r);
    StrBuf body = {0};
    Err failure = {0};
    runner_failure(r, &failure);
    strbuf_printf(&body, "{\"status\":\"%s\"", runner_state_name(state));
    if (state == RUNNER_LOADING)
        strbuf_printf(&body, ",\"loaded\":%.3f", runner_loaded_share(r));
    if (state == RUNNER_READY) {
        RunnerFigures f;
        runner_figures(r, &f);
        strbuf_printf(&body, ",\"active\":%d,\"waiting\":%d", f.engine.n_active,
                      f.engine.n_waiting);
    }
    strbuf_printf(&body, "}\n");
    enum MHD_Result result =
        reply_bytes(c, state == RUNNER_READY ? 200 : 503, "application/json", strbuf_view(&body));
    strbuf_fini(&body);
    return result;
}

static enum MHD_Result route_metrics(Call *c) {
    Runner *r = c->parts->runner;
    RunnerFigures f;
    runner_figures(r, &f);
    const EngineFigures *e = &f.engine;
    const EnginePlan *p = &f.plan;
    RunnerState state = runner_state(r);
    char info[512];
    snprintf(info, sizeof info, "info{version=\"%s\",model=\"%s\"}",
             c->parts->options->version ? c->parts->options->version : "",
             state == RUNNER_LOADING ? "" : runner_model(r)->name);
    const MetricsGauge gauges[] = {
        {info, "What runs.", "gauge", 1},
        {"ready", "1 when requests are taken.", "gauge", state == RUNNER_READY},
        {"loaded_ratio", "Part of the weights that is read.", "gauge",
         state == RUNNER_LOADING ? runner_loaded_share(r) : 1},
        {"connections", "Open connections.", "gauge", watch_n_open(c->parts->watch)},
        {"answers_live", "Answers that run or wait.", "gauge", runner_n_live(r)},
        {"sequences_active", "Sequences in the batch.", "gauge", e->n_active},
        {"sequences_waiting", "Sequences in the engine's queue.", "gauge", e->n_waiting},
        {"sequences_max", "Places in the batch.", "gauge", p->max_seqs},
        {"kv_blocks", "KV blocks of 64 tokens.", "gauge", e->n_blocks},
        {"kv_blocks_free", "KV blocks that nobody holds.", "gauge", e->n_blocks_free},
        {"context_tokens", "Longest prompt and answer together.", "gauge", p->limit_tok},
        {"steps_total", "Steps of the model.", "counter", (double)e->n_steps},
        {"preempted_total", "Sequences sent back to the queue.", "counter", (double)e->n_preempted},
        {"prompt_tokens_total", "Prompt tokens admitted.", "counter", (double)e->n_prompt_tok},
        {"cached_tokens_total", "Of these, found in the prefix cache.", "counter",
         (double)e->n_cached_tok},
        {"generated_tokens_total", "Tokens generated.", "counter", (double)e->n_generated_tok},
        {"cache_snapshots", "Snapshots in the prefix cache.", "gauge", e->prefix.n_snapshots},
        {"cache_slots", "Snapshots that it may hold.", "gauge", e->prefix.n_slots},
        {"cache_evicted_total", "Snapshots evicted.", "counter", (double)e->prefix.n_evicted},
        {"cache_decode_made_total", "Hits on states that decode made.", "counter",
         (double)e->n_decode_made_hits},
        {"cache_lookups_total{miss=\"whole\"}", "Admissions by why the cache gave no more.",
         "counter", (double)e->n_miss[PREFIX_WHOLE]},
        {"cache_lookups_total{miss=\"off\"}", NULL, NULL, (double)e->n_miss[PREFIX_OFF]},
        {"cache_lookups_total{miss=\"unknown\"}", NULL, NULL, (double)e->n_miss[PREFIX_UNKNOWN]},
        {"cache_lookups_total{miss=\"diverged\"}", NULL, NULL, (double)e->n_miss[PREFIX_DIVERGED]},
        {"memory_planned_bytes", "Weights, KV, states, cache and scratch.", "gauge",
         (double)p->needs.total_bytes},
        {"memory_budget_bytes", "What they may take.", "gauge", (double)p->budget_bytes},
        {"memory_program_bytes", "Resident before the model was opened: the program itself.",
         "gauge", (double)f.program_bytes},
        {"memory_resident_bytes", "Resident size of the process.", "gauge",
         (double)sysmem_resident()},
        {"memory_peak_bytes", "Largest resident size of the process.", "gauge",
         (double)sysmem_peak()},
    };
    StrBuf body = {0};
    metrics_text(c->parts->metrics, &body, route_names(), gauges, (int)COUNT_OF(gauges));
    enum MHD_Result result =
        reply_bytes(c, 200, "text/plain; version=0.0.4; charset=utf-8", strbuf_view(&body));
    strbuf_fini(&body);
    return result;
}

static enum MHD_Result route_openapi(Call *c) {
    return reply_bytes(c, 200, "application/json", STR(OPENAPI_JSON));
}

static enum MHD_Result route_page(Call *c) {
    return reply_bytes(c, 200, "text/html; charset=utf-8", STR(PAGE_HTML));
}

/* ---- the table ---- */

static const Route ROUTES[] = {
    {"/v1/chat/completions", "POST", false, true, route_chat},
    {"/v1/completions", "POST", false, true, route_completions},
    {"/tokenize", "POST", false, true, route_tokenize},
    {"/detokenize", "POST", false, true, route_detokenize},
    {"/v1/models", "GET", false, true, route_models},
    {"/v1/models/", "GET", false, true, route_models},
    {"/health", "GET", true, false, route_health},
    {"/metrics", "GET", false, false, route_metrics},
    {"/openapi.json", "GET", true, false, route_openapi},
    {"/", "GET", true, false, route_page},
    {"none", "GET", true, false, NULL},
};
static_assert(COUNT_OF(ROUTES) < METRICS_ROUTES, "metrics have a row for every route");

const Route *route_find(const char *path, const char **name) {
    size_t n = COUNT_OF(ROUTES) - 1;
    *name = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(ROUTES[i].path);
        if (strcmp(path, ROUTES[i].path) == 0 && (len == 1 || path[len - 1] != '/'))
            return &ROUTES[i];
        if (len > 1 && ROUTES[i].path[len - 1] == '/' && strncmp(path, ROUTES[i].path, len) == 0 &&
            path[len]) {
            *name = path + len;
            return &ROUTES[i];
        }
    }
    return &ROUTES[n];
}

int route_number(const Route *route) { return (int)(route - ROUTES); }
const char *route_path(const Route *route) { return route->path; }
bool route_is_none(const Route *route) { return !route->answer; }
bool route_needs_key(const Route *route) { return !route->is_open; }
bool route_has_body(const Route *route) { return strcmp(route->method, "POST") == 0; }
bool route_is_job(const Route *route) {
    return route->answer == route_chat || route->answer == route_completions;
}

const char *route_methods(const Route *route) {
    return route_has_body(route) ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

bool route_takes(const Route *route, const char *method) {
    return strcmp(method, route->method) == 0 ||
           (strcmp(method, "HEAD") == 0 && !route_has_body(route));
}

const char *const *route_names(void) {
    static const char *const names[METRICS_ROUTES] = {"/v1/chat/completions",
                                                      "/v1/completions",
                                                      "/tokenize",
                                                      "/detokenize",
                                                      "/v1/models",
                                                      "/v1/models/",
                                                      "/health",
                                                      "/metrics",
                                                      "/openapi.json",
                                                      "/",
                                                      "none"};
    return names;
}

enum MHD_Result route_answer(Call *c) {
    RunnerState state = runner_state(c->parts->runner);
    if (c->route->needs_model && state != RUNNER_READY && !c->job) {
        if (state == RUNNER_LOADING)
            reply_refuse(c, 503, "server_error", "loading",
                         "the model is being loaded: %.0f%% of the weights are read",
                         100 * runner_loaded_share(c->parts->runner));
        else if (state == RUNNER_DRAINING)
            reply_refuse(c, 503, "server_error", "draining", "the server is stopping");
        else
            reply_refuse(c, 503, "server_error", "failed",
                         "the model's device has failed; the server must be started anew");
        return reply_refusal(c);
    }
    return c->route->answer(c);
}
