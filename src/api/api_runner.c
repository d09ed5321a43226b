// SPDX-License-Identifier: Apache-2.0
/* api_runner.c - the engine's own thread: begins answers, steps while any runs, hands their events
 * over.
 *
 * Path:     api_runner_add -> runner_main -> turn_start, engine_step -> runner_event -> the buffer
 *           that api_answer.c empties.
 * Owns:     the Engine, from its opening to its close.  Thread: its own; the doors from any.
 * Not here: messages and the caller's events (api_answer.c).
 *
 * The buffer of an answer is bounded by the answer itself, which the context bounds: a caller that
 * is slow holds up nobody else. */
#define _POSIX_C_SOURCE 200809L // pthread_sigmask
#include "api.h"

#include <signal.h>
#include <string.h>

static void runner_lock(Runner *r) { CHECK(pthread_mutex_lock(&r->mutex) == 0); }
static void runner_unlock(Runner *r) { CHECK(pthread_mutex_unlock(&r->mutex) == 0); }

/* ---- events ---- */

/* Takes an answer out of the list of running ones. */
static void runner_unlink(Runner *r, const Answer *a) {
    Answer **at = &r->running;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
}

static LilyFigures runner_figures(const TurnEvent *e) {
    const SeqFigures *f = &e->figures;
    LilyFigures out = {.n_prompt = f->n_prompt,
                       .n_cached = f->n_cached,
                       .n_generated = f->n_generated,
                       .n_reasoning = e->n_reasoning};
    if (f->first_token_ns) {
        out.first_s = (double)(f->first_token_ns - f->added_ns) * 1e-9;
        out.decode_s = (double)(f->last_token_ns - f->first_token_ns) * 1e-9;
    }
    return out;
}

static void runner_end(Answer *a, const TurnEvent *e) {
    static const LilyFinish finishes[] = {[FINISH_STOP] = LILY_FINISH_STOP,
                                          [FINISH_LENGTH] = LILY_FINISH_LENGTH,
                                          [FINISH_CALLS] = LILY_FINISH_CALLS,
                                          [FINISH_CANCELLED] = LILY_FINISH_CANCELLED,
                                          [FINISH_FAILED] = LILY_FINISH_FAILED};
    a->figures = runner_figures(e);
    a->finish = finishes[e->finish];
    if (a->events.is_failed) {
        a->finish = LILY_FINISH_FAILED;
        a->status = strbuf_check(&a->events, &a->err);
    } else if (e->finish == FINISH_FAILED) {
        a->err = *e->err;
        a->status = e->err->code;
    }
    a->is_ended = true;
}

/* Appends one record; the lock is held. */
static void runner_put(Answer *a, LilyEventKind kind, const TurnEvent *e) {
    AnswerRecord head = {.name_len = e->name.len,
                         .text_len = e->text.len,
                         .kind = kind,
                         .call = e->call,
                         .token = e->sample ? e->sample->id : 0};
    strbuf_append(&a->events, &head, sizeof head);
    strbuf_append_view(&a->events, e->name);
    strbuf_append_char(&a->events, 0);
    strbuf_append_view(&a->events, e->text);
    strbuf_append_char(&a->events, 0);
}

static void runner_event(void *ctx, const TurnEvent *e) {
    static const LilyEventKind kinds[] = {
        [TURN_REASONING] = LILY_EVENT_REASONING,   [TURN_CONTENT] = LILY_EVENT_TEXT,
        [TURN_CALL_BEGIN] = LILY_EVENT_CALL_BEGIN, [TURN_CALL_ARGS] = LILY_EVENT_CALL_ARGS,
        [TURN_CALL_END] = LILY_EVENT_CALL_END,     [TURN_CALL_DROP] = LILY_EVENT_CALL_DROP,
        [TURN_TOKEN] = LILY_EVENT_TOKEN,           [TURN_END] = LILY_EVENT_END};
    Answer *a = ctx;
    Runner *r = a->runner;
    if (e->kind == TURN_TOKEN && !a->wants_tokens)
        return;
    if (e->kind == TURN_END)
        runner_unlink(r, a);
    runner_lock(r);
    if (e->kind == TURN_END)
        runner_end(a, e);
    else
        runner_put(a, kinds[e->kind], e);
    CHECK(pthread_cond_signal(&a->news) == 0);
    runner_unlock(r); // behind the end the answer is gone
}

/* ---- the thread ---- */

/* Begins an answer that was handed over. */
static void runner_begin(Runner *r, Answer *a) {
    Err err = {0};
    a->next = r->running;
    r->running = a;
    a->is_begun = true; // the sink may be called from here on
    Status status = turn_start(&a->turn, &r->turn, a->request, runner_event, a, &err);
    if (status == STATUS_OK)
        return;
    runner_unlink(r, a);
    runner_lock(r);
    a->is_begun = false;
    a->status = status;
    a->err = err;
    a->err.code = status;
    a->finish = LILY_FINISH_FAILED;
    a->is_ended = true;
    CHECK(pthread_cond_signal(&a->news) == 0);
    runner_unlock(r);
}

/* Ends what its caller cancelled, or what can no longer be handed over. */
static void runner_cancel(Runner *r) {
    for (Answer *a = r->running, *next; a; a = next) {
        next = a->next;
        // `events` is written by this thread alone while the caller does not swap it, so its flag
        // may be read here only under the lock.
        runner_lock(r);
        bool is_wanted = !a->events.is_failed;
        runner_unlock(r);
        if (a->is_stop_told || (is_wanted && !atomic_load(a->is_cancelled)))
            continue;
        a->is_stop_told = true;
        turn_cancel(a->turn); // may end it at once
    }
}

/* Takes the answers that wait, in the order of their coming; blocks while nothing is to be done.
 * False: the runner is closing. */
static bool runner_take(Runner *r, bool is_idle) {
    runner_lock(r);
    while (is_idle && !r->incoming && !r->is_closing)
        CHECK(pthread_cond_wait(&r->work, &r->mutex) == 0);
    Answer *newest = r->incoming, *first = NULL;
    r->incoming = NULL;
    bool is_closing = r->is_closing;
    runner_unlock(r);
    while (newest) { // turn the list round
        Answer *next = newest->next;
        newest->next = first;
        first = newest;
        newest = next;
    }
    while (first) {
        Answer *next = first->next;
        runner_begin(r, first);
        first = next;
    }
    return !is_closing;
}

static void *runner_main(void *ctx) {
    Runner *r = ctx;
    Engine *engine = NULL;
    Err err = {0};
    Status status = engine_open(&engine, r->weights, &r->options, &r->progress, &r->log, &err);
    runner_lock(r);
    r->engine = engine;
    r->turn.engine = engine;
    r->limit_tok = engine ? engine_settled(engine)->limit_tok : 0;
    r->open_status = status;
    r->open_err = err;
    r->is_open = true;
    CHECK(pthread_cond_signal(&r->work) == 0);
    runner_unlock(r);
    bool is_idle = true;
    while (engine && runner_take(r, is_idle)) {
        runner_cancel(r);
        engine_step(engine, &is_idle);
    }
    engine_close(engine);
    return NULL;
}

/* ---- doors ---- */

Status api_runner_open(Runner *r, Err *err) {
    if (pthread_mutex_init(&r->mutex, NULL) != 0)
        return err_memory(err, "lock", sizeof r->mutex);
    if (pthread_cond_init(&r->work, NULL) != 0) {
        pthread_mutex_destroy(&r->mutex);
        return err_memory(err, "lock", sizeof r->work);
    }
    // The caller's signals are the caller's: the thread, and those that it starts, take none.
    sigset_t all, before;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    int failure = pthread_create(&r->thread, NULL, runner_main, r);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    Status status = STATUS_OK;
    if (failure) {
        status = err_errno(err, failure, "start a thread for", "the engine");
    } else {
        runner_lock(r);
        while (!r->is_open)
            CHECK(pthread_cond_wait(&r->work, &r->mutex) == 0);
        status = r->open_status;
        if (status != STATUS_OK && err)
            *err = r->open_err;
        runner_unlock(r);
        if (status != STATUS_OK)
            CHECK(pthread_join(r->thread, NULL) == 0);
    }
    if (status != STATUS_OK) {
        pthread_cond_destroy(&r->work);
        pthread_mutex_destroy(&r->mutex);
    }
    return status;
}

void api_runner_close(Runner *r) {
    runner_lock(r);
    r->is_closing = true;
    CHECK(pthread_cond_signal(&r->work) == 0);
    runner_unlock(r);
    CHECK(pthread_join(r->thread, NULL) == 0);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->mutex);
}

void api_runner_add(Runner *r, Answer *a) {
    runner_lock(r);
    a->runner = r;
    a->next = r->incoming;
    r->incoming = a;
    CHECK(pthread_cond_signal(&r->work) == 0);
    runner_unlock(r);
}
