// SPDX-License-Identifier: Apache-2.0
/* job.c - one request from its body to its last byte.
 *
 * Path:     job_open on a connection's thread; the rest inside runner.c's loop.
 * Owns:     request, turns, answer, stream.  Thread: see job.h. */
#include "server/job.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/runner.h"

#include <string.h>
#include <time.h>

/* ---- opening, on a connection's thread ---- */

static void job_drained(void *ctx) {
    Job *job = ctx;
    runner_wake(job->runner);
}

static void job_free(Job *job) {
    for (int32_t i = 0; i < job->n_choices; i++)
        turn_discard(job->choices[i].turn); // of a job that was never started
    wire_answer_close(job->answer);
    wire_request_fini(&job->request);
    stream_fini(&job->stream);
    strbuf_fini(&job->news);
    mem_free(job);
}

void job_keep(Job *job) { atomic_fetch_add(&job->n_refs, 1); }

void job_release(Job *job) {
    if (job && atomic_fetch_sub(&job->n_refs, 1) == 1)
        job_free(job);
}

void job_cancel(Job *job, JobCancel why) {
    int goes_on = JOB_GOES_ON;
    if (atomic_compare_exchange_strong(&job->cancel, &goes_on, (int)why))
        runner_wake(job->runner);
}

JobCancel job_cancelled(const Job *job) { return (JobCancel)atomic_load(&job->cancel); }

static void job_event(void *ctx, const TurnEvent *event);

/* The turns of one prompt: the same but for the seed. */
static Status job_prepare_prompt(Job *job, int32_t prompt, WireFault *fault) {
    WireRequest *r = &job->request;
    TurnRequest turn = r->turn;
    TokenIds ids = {0};
    Status status = STATUS_OK;
    const TurnModel *model = &runner_model(job->runner)->turn;
    if (r->form == WIRE_COMPLETIONS) {
        status = wire_request_prompt(&ids, r, prompt, model->tokenizer, fault);
        if (status == STATUS_OK && ids.n == 0)
            status = err_set(&fault->err, STATUS_INVALID,
                             "prompt: expected at least one token, found none");
        turn.ids = ids.ids;
        turn.n_ids = (int32_t)ids.n;
    }
    for (int32_t i = 0; i < r->n_choices && status == STATUS_OK; i++) {
        JobChoice *c = &job->choices[prompt * r->n_choices + i];
        turn.sample.seed = r->turn.sample.seed + (uint64_t)i;
        status = turn_prepare(&c->turn, model, &turn, job_event, c, &fault->err);
    }
    token_ids_fini(&ids);
    return status;
}

/* Whose places in the engine these are, and which prefixes may be reused. */
static void job_settle_client(Job *job, const JobClient *client) {
    WireRequest *r = &job->request;
    const ServerOptions *o = runner_options(job->runner);
    r->turn.space = o->is_cache_shared ? 0 : client->space;
    r->turn.client = client->client;
    for (size_t i = 0; i < r->user.len; i++) // people behind one key are served in turn
        r->turn.client = rng_mix(r->turn.client ^ (unsigned char)r->user.ptr[i]);
    int32_t most = runner_model(job->runner)->thinking_budget;
    int32_t budget = r->turn.thinking_budget;
    r->turn.thinking_budget = budget < 0 ? most : min_i32(budget, most);
}

static Status job_prepare(Job *job, const JobClient *client, WireFault *fault) {
    const RunnerModel *model = runner_model(job->runner);
    WireRequest *r = &job->request;
    job_settle_client(job, client);
    job->n_choices = r->n_choices * (r->form == WIRE_CHAT ? 1 : r->n_prompts);
    for (int32_t i = 0; i < job->n_choices; i++)
        job->choices[i] = (JobChoice){.job = job, .index = i};
    snprintf(job->id, sizeof job->id, "%s-%s", r->form == WIRE_CHAT ? "chatcmpl" : "cmpl",
             client->request_id);
    job->identity = (WireIdentity){.id = job->id,
                                   .model = model->name,
                                   .created = (int64_t)time(NULL),
                                   .fingerprint = model->fingerprint};
    for (int32_t i = 0; i < (r->form == WIRE_CHAT ? 1 : r->n_prompts); i++)
        TRY(job_prepare_prompt(job, i, fault));
    return wire_answer_open(&job->answer, r, &job->identity, model->turn.tokenizer, &fault->err);
}

Status job_open(Job **out, struct Runner *runner, WireForm form, StrView body,
                const JobClient *client, WireFault *fault) {
    const RunnerModel *model = runner_model(runner);
    Job *job = mem_zalloc(1, sizeof *job);
    if (!job)
        return err_memory(&fault->err, "request", sizeof *job);
    job->runner = runner;
    atomic_init(&job->n_refs, 1);
    stream_init(&job->stream, job_drained, job);
    snprintf(job->request_id, sizeof job->request_id, "%s", client->request_id);
    job->start_ns = client->start_ns;
    job->deadline_ns = job->start_ns + runner_options(runner)->request_s * INT64_C(1000000000);
    int32_t n = 0;
    Status status =
        wire_request_parse(&job->request, form, body, &model->defaults, model->vocab, fault);
    if (status == STATUS_OK) {
        n = job->request.n_choices * max_i32(job->request.n_prompts, 1);
        job->is_streamed = job->request.is_stream;
        status = runner_reserve(runner, n, &fault->err);
    }
    if (status == STATUS_OK) {
        status = job_prepare(job, client, fault);
        if (status != STATUS_OK)
            runner_unreserve(runner, n);
    }
    if (status != STATUS_OK) {
        job_release(job);
        return status;
    }
    *out = job;
    return STATUS_OK;
}

/* ---- in work, on the engine's thread ---- */

static void job_sum(Job *job, int32_t index, const TurnEvent *e) {
    JobSum *s = &job->sum;
    const SeqFigures *f = &e->figures;
    if (index % job->request.n_choices == 0) {
        s->n_prompt += f->n_prompt;
        s->n_cached += f->n_cached;
        s->n_shared += f->n_shared;
    }
    s->n_generated += f->n_generated;
    s->n_reasoning += e->n_reasoning;
    s->n_preempted += f->n_preempted;
    if (index == 0) {
        s->miss = f->miss;
        s->added_ns = f->added_ns;
        s->admitted_ns = f->admitted_ns;
        s->first_ns = f->first_token_ns;
        s->last_ns = f->last_token_ns;
    }
}

static void job_event(void *ctx, const TurnEvent *e) {
    JobChoice *c = ctx;
    Job *job = c->job;
    Err err = {0};
    if (e->kind == TURN_TOKEN)
        atomic_fetch_add_explicit(&job->progress.n_generated, 1, memory_order_relaxed);
    if (e->kind == TURN_END) {
        c->turn = NULL;
        c->finish = e->finish;
        job->n_ended++;
        job_sum(job, c->index, e);
        if (e->finish == FINISH_FAILED)
            runner_note_device(job->runner, e->err);
    }
    if (wire_answer_event(job->answer, c->index, e, &job->news, &err) != STATUS_OK)
        job_cancel(job, JOB_MEMORY); // obeyed before the next step
}

void job_start(Job *job) {
    for (int32_t i = 0; i < job->n_choices; i++) {
        JobChoice *c = &job->choices[i];
        Err err = {0};
        if (job_cancelled(job) == JOB_GOES_ON && turn_run(c->turn, &err) == STATUS_OK)
            continue;
        Turn *turn = c->turn;
        TurnEvent end = {
            .kind = TURN_END, .finish = err.code ? FINISH_FAILED : FINISH_CANCELLED, .err = &err};
        job_event(c, &end);
        turn_discard(turn);
    }
}

void job_obey(Job *job) {
    if (job_cancelled(job) == JOB_GOES_ON)
        return;
    for (int32_t i = 0; i < job->n_choices; i++)
        if (job->choices[i].turn)
            turn_cancel(job->choices[i].turn);
}

/* Why there is no whole answer; STATUS_OK: there is one. */
static int job_failure(const Job *job, Err *why) {
    int64_t seconds = (job->deadline_ns - job->start_ns) / 1000000000;
    const Err *failure = wire_answer_failure(job->answer);
    switch (job_cancelled(job)) {
    case JOB_GONE: why->code = err_set(why, STATUS_CANCELLED, "the client has hung up"); break;
    case JOB_LATE:
        why->code =
            err_set(why, STATUS_CANCELLED,
                    "the answer took longer than the server's limit of %lld s", (long long)seconds);
        return 504;
    case JOB_STOPPED:
        why->code = err_set(why, STATUS_CANCELLED, "the server is stopping");
        return 503;
    case JOB_MEMORY: why->code = err_set(why, STATUS_MEMORY, "out of memory: the answer"); break;
    case JOB_GOES_ON:
        if (failure)
            *why = *failure;
        break;
    }
    return status_http(why->code);
}

static double job_seconds(int64_t from_ns, int64_t to_ns) {
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0;
}

static double job_rate(int32_t n, double seconds) { return seconds > 0 ? n / seconds : 0; }

/* The request's line in the log, and its share of the metrics. */
static void job_report(const Job *job, int http_status, const Err *why) {
    const JobSum *s = &job->sum;
    static const char *const names[] = {[FINISH_STOP] = "stop",
                                        [FINISH_LENGTH] = "length",
                                        [FINISH_CALLS] = "tool_calls",
                                        [FINISH_CANCELLED] = "cancelled",
                                        [FINISH_FAILED] = "failed"};
    int64_t now_ns = clock_now_ns();
    double queue_s = job_seconds(job->start_ns, s->admitted_ns ? s->admitted_ns : now_ns);
    double prefill_s = job_seconds(s->admitted_ns, s->first_ns);
    double decode_s = job_seconds(s->first_ns, s->last_ns);
    log_printf(runner_log(job->runner), LOG_INFO,
               "request id=%s route=%s status=%d stream=%d queue_ms=%.1f prompt=%d cached=%d "
               "generated=%d reasoning=%d prefill_tok_s=%.1f decode_tok_s=%.1f total_ms=%.1f "
               "finish=%s cache=%s shared=%d preempted=%d%s%s%s",
               job->request_id,
               job->request.form == WIRE_CHAT ? "/v1/chat/completions" : "/v1/completions",
               http_status, job->is_streamed, queue_s * 1e3, s->n_prompt, s->n_cached,
               s->n_generated, s->n_reasoning, job_rate(s->n_prompt - s->n_cached, prefill_s),
               job_rate(s->n_generated - job->n_choices, decode_s),
               job_seconds(job->start_ns, now_ns) * 1e3, names[job->choices[0].finish],
               prefix_miss_name(s->miss), s->n_shared, s->n_preempted, why->code ? " error=\"" : "",
               why->code ? why->text : "", why->code ? "\"" : "");
    Metrics *m = runner_metrics(job->runner);
    metrics_time(m, METRICS_QUEUE, queue_s);
    metrics_time(m, METRICS_WHOLE, job_seconds(job->start_ns, now_ns));
    if (s->first_ns)
        metrics_time(m, METRICS_FIRST, job_seconds(job->start_ns, s->first_ns));
    JobCancel cancel = job_cancelled(job);
    CHECK(pthread_mutex_lock(&m->lock) == 0);
    m->n_prompt_tok += (uint64_t)s->n_prompt;
    m->n_cached_tok += (uint64_t)s->n_cached;
    m->n_generated_tok += (uint64_t)s->n_generated;
    m->n_reasoning_tok += (uint64_t)s->n_reasoning;
    m->n_gone += cancel == JOB_GONE;
    m->n_failed += why->code && cancel != JOB_GONE;
    CHECK(pthread_mutex_unlock(&m->lock) == 0);
}

/* The last bytes. */
static void job_finish(Job *job) {
    Err why = {0};
    int http_status = job_failure(job, &why);
    if (why.code == STATUS_OK) {
        Err err = {0};
        if (wire_answer_finish(job->answer, &job->news, &err) != STATUS_OK) {
            why = err;
            http_status = status_http(err.code);
        }
    }
    if (why.code && job->is_streamed) {
        wire_answer_fail(job->answer, &why, &job->news);
        http_status = job_cancelled(job) == JOB_GONE ? 499 : 200; // its head went out long ago
    } else if (why.code) {
        strbuf_clear(&job->news);
        WireFault fault = {.err = why};
        wire_fault_json(&job->news, &fault);
    }
    atomic_store(&job->http_status, http_status);
    job_report(job, http_status, &why);
    (void)stream_put(&job->stream, strbuf_view(&job->news), true);
    strbuf_clear(&job->news);
}

static void job_set_held(Job *job, bool is_held) {
    job->is_held = is_held;
    for (int32_t i = 0; i < job->n_choices; i++)
        if (job->choices[i].turn)
            turn_pause(job->choices[i].turn, is_held);
}

static void job_note_progress(Job *job) {
    int32_t n_prompt = 0, n_read = 0;
    for (int32_t i = 0; i < job->n_choices; i++) {
        if (!job->choices[i].turn)
            continue;
        SeqFigures f = turn_figures(job->choices[i].turn);
        if (f.admitted_ns && f.n_generated == 0) {
            n_prompt += f.n_prompt;
            n_read += f.n_read;
        }
    }
    atomic_store_explicit(&job->progress.n_read, n_read, memory_order_relaxed);
    atomic_store_explicit(&job->progress.n_prompt, n_prompt, memory_order_relaxed);
}

bool job_flush(Job *job) {
    if (job->n_ended == job->n_choices) {
        // First the places: who has read the end may ask again at once.
        runner_unreserve(job->runner, job->n_choices);
        job_finish(job);
        return true;
    }
    if (job->news.len) {
        if (job->news.is_failed || !stream_put(&job->stream, strbuf_view(&job->news), false))
            job_cancel(job, JOB_MEMORY);
        strbuf_clear(&job->news);
    } else {
        job_note_progress(job);
    }
    if (!job->is_held && stream_hold(&job->stream))
        job_set_held(job, true);
    if (job->is_held && stream_release(&job->stream))
        job_set_held(job, false);
    return false;
}
