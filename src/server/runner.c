// SPDX-License-Identifier: Apache-2.0
/* runner.c - the thread that owns the engine, and the bounded queue in front of it.
 *
 * Path:     the loop: take what was submitted, obey cancels, one step, hand the news on.
 * Owns:     weights, tokenizer, engine, the jobs in work.  Thread: see runner.h; the lock guards
 *           what stands under it. */
#define _POSIX_C_SOURCE 200809L // pthread_sigmask
#include "server/runner.h"

#include "base/checked.h"
#include "base/mem.h"
#include "base/sysmem.h"
#include "checkpoint/synth_write.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum {
    RUNNER_SLOTS_MIN = 4, // snapshots of the prefix cache: a conversation uses two
    RUNNER_SLOTS_MAX = 64,
    RUNNER_SLOTS_SHARE = 16, // they may take this part of the memory
};

struct Runner {
    const ServerOptions *options;
    Metrics *metrics;
    const Log *log;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    // under the lock
    Job *first, *last; // submitted, not yet taken
    int32_t n_live;    // reserved, waiting or running choices
    bool has_news;     // a cancel, or a reader that has caught up
    bool is_closing;
    RunnerFigures figures;
    Err failure;
    // any thread
    _Atomic int state; // RunnerState
    _Atomic bool is_draining;
    _Atomic uint64_t n_loaded, n_to_load; // bytes
    // written before RUNNER_READY, constant behind it
    RunnerModel model;
    char name[256];
    const char *device;
    // the engine's thread
    Weights *weights;
    Tokenizer *tokenizer;
    Engine *engine;
    Job *jobs;
    bool is_ended; // main
};

static void runner_lock(Runner *r) { CHECK(pthread_mutex_lock(&r->lock) == 0); }
static void runner_unlock(Runner *r) { CHECK(pthread_mutex_unlock(&r->lock) == 0); }

/* ---- any thread ---- */

const char *runner_state_name(RunnerState state) {
    static const char *const names[] = {[RUNNER_LOADING] = "loading",
                                        [RUNNER_READY] = "ready",
                                        [RUNNER_DRAINING] = "draining",
                                        [RUNNER_FAILED] = "failed"};
    return names[state];
}

RunnerState runner_state(const Runner *r) {
    RunnerState state = (RunnerState)atomic_load(&r->state);
    return state == RUNNER_READY && atomic_load(&r->is_draining) ? RUNNER_DRAINING : state;
}

void runner_failure(Runner *r, Err *out) {
    runner_lock(r);
    *out = r->failure;
    runner_unlock(r);
}

double runner_loaded_share(const Runner *r) {
    uint64_t total = atomic_load(&r->n_to_load);
    return total ? (double)atomic_load(&r->n_loaded) / (double)total : 0;
}

const RunnerModel *runner_model(const Runner *r) { return &r->model; }
const ServerOptions *runner_options(const Runner *r) { return r->options; }
const Log *runner_log(const Runner *r) { return r->log; }
Metrics *runner_metrics(const Runner *r) { return r->metrics; }
const char *runner_device(const Runner *r) {
    return atomic_load(&r->state) == RUNNER_LOADING || !r->device ? "" : r->device;
}

Status runner_reserve(Runner *r, int32_t n, Err *err) {
    Status status = STATUS_OK;
    runner_lock(r);
    int32_t most = r->figures.plan.max_seqs + r->options->max_queue;
    if (r->n_live + n > most)
        status =
            err_set(err, STATUS_BUSY, "the queue is full: %d answers are in work or wait, %d may",
                    r->n_live, most);
    else
        r->n_live += n;
    runner_unlock(r);
    return status;
}

void runner_unreserve(Runner *r, int32_t n) {
    runner_lock(r);
    r->n_live -= n;
    runner_unlock(r);
}

void runner_submit(Runner *r, Job *job) {
    job_keep(job);
    job->next = NULL;
    runner_lock(r);
    bool is_closing = r->is_closing;
    if (!is_closing) {
        if (r->last)
            r->last->next = job;
        else
            r->first = job;
        r->last = job;
        CHECK(pthread_cond_signal(&r->wake) == 0);
    }
    runner_unlock(r);
    if (!is_closing)
        return;
    // The engine's thread may be gone: a job that never reaches it ends here.
    job_cancel(job, JOB_STOPPED);
    job_start(job);
    CHECK(job_flush(job));
    job_release(job);
}

void runner_wake(Runner *r) {
    runner_lock(r);
    r->has_news = true;
    CHECK(pthread_cond_signal(&r->wake) == 0);
    runner_unlock(r);
}

int32_t runner_n_live(Runner *r) {
    runner_lock(r);
    int32_t n = r->n_live;
    runner_unlock(r);
    return n;
}

void runner_figures(Runner *r, RunnerFigures *out) {
    runner_lock(r);
    *out = r->figures;
    runner_unlock(r);
}

void runner_drain(Runner *r) { atomic_store(&r->is_draining, true); }

/* ---- opening the model ---- */

static void runner_progress(void *ctx, const char *what, uint64_t done, uint64_t total) {
    Runner *r = ctx;
    UNUSED(what);
    atomic_store(&r->n_loaded, done);
    atomic_store(&r->n_to_load, total);
}

/* The folder's last name, or what the API was told; it goes into logs, metrics and paths. */
static void runner_name(Runner *r) {
    const char *spec = r->options->name ? r->options->name : r->options->model;
    size_t len = strlen(spec), start = 0;
    while (len > 1 && spec[len - 1] == '/')
        len--;
    if (!r->options->name)
        for (start = len; start > 0 && spec[start - 1] != '/';)
            start--;
    snprintf(r->name, sizeof r->name, "%.*s", (int)(len - start), spec + start);
    for (char *p = r->name; *p; p++)
        *p = *p > ' ' && *p <= '~' && *p != '"' && *p != '\\' ? *p : '_';
}

/* Snapshots for the prefix cache, by the memory that one takes. */
static Status runner_cache_slots(EngineOptions *o, const Weights *w, Err *err) {
    EnginePlan plan;
    if (o->cache_slots)
        return STATUS_OK;
    o->cache_slots = RUNNER_SLOTS_MIN;
    TRY(engine_plan(&plan, w, o, err));
    uint64_t fit = plan.budget_bytes / RUNNER_SLOTS_SHARE / (plan.needs.slot_bytes + 1);
    if (fit > RUNNER_SLOTS_MIN)
        o->cache_slots = (int32_t)(fit < RUNNER_SLOTS_MAX ? fit : RUNNER_SLOTS_MAX);
    return STATUS_OK;
}

static Status runner_load(Runner *r, Err *err) {
    const ServerOptions *o = r->options;
    EngineOptions engine = o->engine;
    TRY(weights_open(&r->weights, o->model, r->log, err));
    const ModelConfig *c = weights_config(r->weights);
    const char *dir = weights_dir(r->weights);
    if (dir)
        TRY(tokenizer_open(&r->tokenizer, dir, c->vocab, r->log, err));
    else
        TRY(tokenizer_open_bytes(&r->tokenizer, synth_write_n_ids(c->vocab), err));
    TRY(chat_family_open(&r->model.turn.family, dir, r->log, err));
    TRY(generation_read(&r->model.defaults, dir, err));
    if (!o->is_cache_off)
        TRY(runner_cache_slots(&engine, r->weights, err));
    else
        engine.cache_slots = 0;
    Progress progress = {runner_progress, r};
    runner_lock(r);
    r->figures.program_bytes = sysmem_resident();
    runner_unlock(r);
    TRY(engine_open(&r->engine, r->weights, &engine, &progress, r->log, err));
    runner_name(r);
    r->model.turn.engine = r->engine;
    r->model.turn.tokenizer = r->tokenizer;
    r->model.vocab = tokenizer_n_ids(r->tokenizer);
    r->model.limit_tok = engine_settled(r->engine)->limit_tok;
    r->model.thinking_budget = o->thinking_budget < 0 ? r->model.limit_tok / 2 : o->thinking_budget;
    r->model.name = r->name;
    r->model.created = (int64_t)time(NULL);
    snprintf(r->model.fingerprint, sizeof r->model.fingerprint, "lily-%s-%s",
             o->version ? o->version : "0",
             backend_kind_name(backend_kind(engine_backend(r->engine))));
    r->device = backend_text(engine_backend(r->engine));
    r->figures.plan = *engine_settled(r->engine);
    r->figures.engine = engine_figures(r->engine);
    return STATUS_OK;
}

/* The memory plan, once. */
static void runner_print_plan(const Runner *r) {
    const EnginePlan *p = &r->figures.plan;
    log_printf(r->log, LOG_INFO,
               "model %s, %s: weights %.2f GB, KV for %d tokens %.2f GB, %d states and %d "
               "snapshots %.2f GB, scratch %.2f GB; %.2f of %.2f GB, beside %.2f GB of program",
               r->name, r->device, (double)p->needs.weight_bytes * 1e-9, p->ctx_tok,
               (double)p->needs.block_bytes * p->ctx_tok / KV_BLOCK * 1e-9, p->max_seqs,
               p->cache_slots, (double)p->needs.slot_bytes * (p->max_seqs + p->cache_slots) * 1e-9,
               (double)p->needs.scratch_bytes * 1e-9, (double)p->needs.total_bytes * 1e-9,
               (double)p->budget_bytes * 1e-9, (double)r->figures.program_bytes * 1e-9);
}

/* ---- the engine's thread ---- */

void runner_note_device(Runner *r, const Err *failure) {
    if (failure->code != STATUS_DEVICE)
        return;
    runner_lock(r);
    r->failure = *failure;
    runner_unlock(r);
    atomic_store(&r->state, RUNNER_FAILED);
}

/* Waits while there is nothing to do, then takes what was submitted. False: the end. */
static bool runner_take(Runner *r, bool is_idle) {
    runner_lock(r);
    while (is_idle && !r->first && !r->has_news && !r->is_closing)
        CHECK(pthread_cond_wait(&r->wake, &r->lock) == 0);
    Job *taken = r->first;
    bool has_news = r->has_news, is_closing = r->is_closing;
    r->first = r->last = NULL;
    r->has_news = false;
    runner_unlock(r);
    for (Job *job; (job = taken) != NULL;) {
        taken = job->next;
        job->next = r->jobs;
        r->jobs = job;
        if (is_closing)
            job_cancel(job, JOB_STOPPED);
        job_start(job);
    }
    for (Job *job = r->jobs; job && (has_news || is_closing); job = job->next) {
        if (is_closing)
            job_cancel(job, JOB_STOPPED);
        job_obey(job);
    }
    return !is_closing || r->jobs;
}

/* Hands on what the step gave. True when a turn may go on that was held back: there is work again.
 */
static bool runner_flush(Runner *r) {
    bool has_work = false;
    EngineFigures figures = engine_figures(r->engine);
    runner_lock(r);
    r->figures.engine = figures; // before the news: who has read them finds figures that fit
    runner_unlock(r);
    for (Job **at = &r->jobs; *at;) {
        Job *job = *at;
        bool was_held = job->is_held;
        if (!job_flush(job)) {
            has_work = has_work || (was_held && !job->is_held);
            at = &job->next;
            continue;
        }
        *at = job->next;
        job_release(job);
    }
    return has_work;
}

static void *runner_main(void *ctx) {
    Runner *r = ctx;
    Err err = {0};
    if (runner_load(r, &err) != STATUS_OK) {
        runner_lock(r);
        r->failure = err;
        runner_unlock(r);
        atomic_store(&r->state, RUNNER_FAILED);
        return NULL;
    }
    runner_print_plan(r);
    atomic_store(&r->state, RUNNER_READY);
    bool is_idle = true;
    while (runner_take(r, is_idle)) {
        engine_step(r->engine, &is_idle);
        is_idle = !runner_flush(r) && is_idle;
    }
    return NULL;
}

Status runner_open(Runner **out, const ServerOptions *options, Metrics *metrics, const Log *log,
                   Err *err) {
    Runner *r = mem_zalloc(1, sizeof *r);
    if (!r)
        return err_memory(err, "runner", sizeof *r);
    r->options = options;
    r->metrics = metrics;
    r->log = log;
    CHECK(pthread_mutex_init(&r->lock, NULL) == 0);
    CHECK(pthread_cond_init(&r->wake, NULL) == 0);
    int code = pthread_create(&r->thread, NULL, runner_main, r);
    if (code) {
        CHECK(pthread_cond_destroy(&r->wake) == 0);
        CHECK(pthread_mutex_destroy(&r->lock) == 0);
        mem_free(r);
        return err_set(err, STATUS_MEMORY, "cannot start a thread: %s", strerror(code));
    }
    *out = r;
    return STATUS_OK;
}

void runner_end(Runner *r) {
    if (r->is_ended)
        return;
    runner_lock(r);
    r->is_closing = true;
    CHECK(pthread_cond_signal(&r->wake) == 0);
    runner_unlock(r);
    CHECK(pthread_join(r->thread, NULL) == 0);
    r->is_ended = true;
}

void runner_close(Runner *r) {
    if (!r)
        return;
    runner_end(r);
    engine_close(r->engine);
    tokenizer_close(r->tokenizer);
    weights_close(r->weights);
    CHECK(pthread_cond_destroy(&r->wake) == 0);
    CHECK(pthread_mutex_destroy(&r->lock) == 0);
    mem_free(r);
}
