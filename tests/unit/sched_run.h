// SPDX-License-Identifier: Apache-2.0
/* sched_run.h - the engine driven by bytes: arrivals, steps, cancels, pauses, forced ids and
 * failures, with the scheduler's invariants checked behind each step, for fuzz_sched.c and
 * test_sched.c.
 *
 * Path:     bytes -> run_op -> engine.h; every id that is told is compared with what an undisturbed
 *           answer would be.
 * Owns:     one run's sequences, and the clock: time passes as the device says.  Thread: one. */
#ifndef LILY_TESTS_SCHED_RUN_H
#define LILY_TESTS_SCHED_RUN_H

#include "fake_backend.h"

#include "base/checked.h"
#include "base/clock.h"
#include "engine/seq.h"

enum {
    RUN_SEQS = 24,
    RUN_IDS = 1536,
    RUN_PROMPT = 320,
    RUN_NEW = 100,
    RUN_LAST_STEPS = 100000,
};

typedef struct Run Run;

/* In place of base/clock.c, so that what depends on time is the same in every run. */
int64_t clock_now_ns(void) { return fake.now_ns; }

/* One sequence as its client sees it, and what is to be done to it. */
typedef struct RunSeq {
    Run *run;
    Seq *seq; // NULL behind its end
    int32_t ids[RUN_IDS];
    int32_t n_prompt, n_ids;         // prompt, told and forced
    uint64_t seed, state, sum, seen; // of an undisturbed answer, behind n_read ids
    int32_t n_read;
    int32_t stop_after; // told ids at which the sink ends it; 0: never
    int32_t n_told;
    int32_t n_force; // ids to force at the next token
    int n_ends;
    SeqEnd end;
    bool is_paused;
    int32_t n_told_at_pause;
    int64_t cancelled_at; // step; -1: it was not
} RunSeq;

struct Run {
    const uint8_t *data;
    size_t size, at;
    Engine *engine;
    RunSeq seqs[RUN_SEQS];
    int n_seqs;
    int64_t step;
    int n_faults;
};

/* The next byte; zeros behind the end. */
static uint8_t run_byte(Run *r) { return r->at < r->size ? r->data[r->at++] : 0; }

/* ---- what its client sees ---- */

/* Reads on as an undisturbed answer does: its prompt as a prompt, all else as an answer. */
static void run_read(RunSeq *s, int32_t n) {
    for (; s->n_read < n; s->n_read++) {
        s->state = fake_read(s->state, s->ids[s->n_read], s->n_read, s->n_read >= s->n_prompt);
        s->sum = fake_attend(s->sum, s->state);
    }
}

static void run_append(RunSeq *s, int32_t id) {
    CHECK(s->n_ids < RUN_IDS);
    s->ids[s->n_ids++] = id;
    s->seen = fake_see(s->seen, id);
}

static bool run_token(void *ctx, const SampleResult *sample) {
    RunSeq *s = ctx;
    CHECK(s->n_ends == 0 && s->cancelled_at < 0);
    run_read(s, s->n_ids);
    if (!engine_seq_figures(s->seq).is_decode_made)
        CHECK(sample->id == fake_choose(s->sum, s->seen, s->seed, s->n_ids));
    run_append(s, sample->id);
    s->n_told++;
    int32_t forced[8];
    for (int32_t i = 0; i < s->n_force; i++)
        forced[i] = (s->n_ids + i) % FAKE_VOCAB;
    if (s->n_force && engine_force(s->seq, forced, s->n_force))
        for (int32_t i = 0; i < s->n_force; i++)
            run_append(s, forced[i]);
    s->n_force = 0;
    return s->stop_after == 0 || s->n_told < s->stop_after;
}

static void run_end(void *ctx, SeqEnd end, const Err *err) {
    RunSeq *s = ctx;
    CHECK(s->n_ends++ == 0);
    CHECK((end == SEQ_FAILED) == (err->code != STATUS_OK));
    CHECK(end != SEQ_CANCELLED || s->cancelled_at >= 0 || !s->run->engine);
    CHECK(end != SEQ_FAILED || s->run->n_faults > 0);
    s->end = end;
    s->seq = NULL;
}

/* ---- what must hold ---- */

static void run_count_blocks(const Engine *e, const Seq *s, int32_t *n_users) {
    for (int32_t j = 0; s && j < s->n_blocks; j++) {
        CHECK(s->blocks[j] >= 0 && s->blocks[j] < e->blocks.n);
        n_users[s->blocks[j]]++;
        // What is being written belongs to it alone.
        CHECK(j < s->n_done / KV_BLOCK || e->blocks.n_refs[s->blocks[j]] == 1);
    }
}

static void run_check_blocks(const Engine *e) {
    const Blocks *b = &e->blocks;
    static int32_t n_users[RUN_IDS]; // by sequences
    int32_t n_free = 0, n_tree = 0;
    CHECK(b->n <= RUN_IDS);
    memset(n_users, 0, sizeof n_users);
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        run_count_blocks(e, e->active[i], n_users);
    for (const Seq *s = e->first_waiting; s; s = s->next)
        run_count_blocks(e, s, n_users);
    for (int32_t i = 0; i < b->n; i++) {
        n_free += b->n_refs[i] == 0;
        int32_t n_more = b->n_refs[i] - n_users[i];
        CHECK(n_more == 0 || n_more == 1); // the cache holds a block once
        n_tree += n_more;
    }
    CHECK(n_free == b->n_free && n_tree == prefix_figures(e->prefix).n_nodes);
    for (int32_t i = 0; i < b->n_free; i++)
        CHECK(b->n_refs[b->free[i]] == 0 && (n_users[b->free[i]]++ == 0));
}

static void run_check_slots(const Engine *e) {
    PrefixFigures p = prefix_figures(e->prefix);
    int32_t n_lent = 0;
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        n_lent += e->active[i] && e->active[i]->tail_slot >= 0;
    for (int32_t i = 0; i < e->n_flight; i++)
        n_lent += e->flights[(e->step - 1 - i) % BATCH_IN_FLIGHT].n_pending;
    for (int32_t i = 0; i < e->piece.n; i++)
        n_lent += e->piece.parts[i].n_snaps;
    CHECK(p.n_snapshots + p.n_free_slots + n_lent + e->n_parked == p.n_slots);
}

/* Nobody is lost, nobody stands in two places. */
static void run_check_seqs(const Run *r) {
    const Engine *e = r->engine;
    int n_waiting = 0, n_active = 0, n_alive = 0, n_parked = 0, n_half = 0;
    CHECK((e->piece.n == 0) == (e->piece.layer == 0));
    for (int32_t i = 0; i < e->piece.n; i++) {
        const PiecePart *part = &e->piece.parts[i];
        CHECK(part->seq->is_half && part->seq->n_done + part->n_rows <= part->seq->n_prompt);
    }
    for (const Seq *s = e->first_waiting; s; s = s->next) {
        CHECK(s->state == STATE_WAITING && s->slot < 0 && s->tail_slot < 0 && s->n_flight == 0);
        CHECK(!s->is_half);
        CHECK(s->park_slot >= 0 ? s->n_blocks * KV_BLOCK >= s->n_done && s->n_done > 0
                                : s->n_blocks == 0 && s->n_done == 0);
        n_parked += s->park_slot >= 0;
        CHECK(s->next || s == e->last_waiting);
        n_waiting++;
    }
    for (int32_t i = 0; i < e->plan.max_seqs; i++) {
        const Seq *s = e->active[i];
        if (!s)
            continue;
        n_active++;
        n_half += s->is_half;
        CHECK(s->state == STATE_ACTIVE && s->slot == i && s->park_slot < 0 &&
              s->n_flight <= e->n_flight);
        CHECK(s->n_done <= s->n_known + 1 && s->n_blocks * KV_BLOCK >= s->n_done);
    }
    for (int i = 0; i < r->n_seqs; i++) {
        const RunSeq *s = &r->seqs[i];
        n_alive += s->n_ends == 0;
        CHECK(s->cancelled_at < 0 || s->n_ends || r->step - s->cancelled_at <= e->depth);
        CHECK(!s->is_paused || s->n_told - s->n_told_at_pause <= e->depth);
    }
    CHECK(n_waiting == e->n_waiting && n_parked == e->n_parked && n_half == e->piece.n);
    // One that has ended for its client may still be held by a step in flight.
    CHECK(n_alive <= n_waiting + n_active && n_active <= e->plan.max_seqs);
    CHECK(e->n_flight > 0 || n_alive == n_waiting + n_active);
}

/* Of those that run, the one that came first. */
static RunSeq *run_first(Run *r) {
    for (int i = 0; i < r->n_seqs; i++) {
        RunSeq *s = &r->seqs[i];
        if (s->seq && s->seq->state == STATE_ACTIVE && !s->is_paused && s->cancelled_at < 0)
            return s;
    }
    return NULL;
}

static bool run_step(Run *r) {
    bool is_idle = false;
    const RunSeq *first = run_first(r);
    r->step++;
    engine_step(r->engine, &is_idle);
    CHECK(!first || first->n_ends || first->seq->state == STATE_ACTIVE); // it is never sent back
    run_check_blocks(r->engine);
    run_check_slots(r->engine);
    run_check_seqs(r);
    return is_idle;
}

/* ---- what is done ---- */

static RunSeq *run_pick(Run *r) {
    uint8_t byte = run_byte(r);
    return r->n_seqs ? &r->seqs[byte % r->n_seqs] : NULL;
}

/* A prompt of one of four beginnings, or what another sequence came to and some more. */
static void run_prompt(Run *r, RunSeq *s) {
    uint8_t kind = run_byte(r), length = run_byte(r);
    int32_t limit = min_i32(engine_settled(r->engine)->limit_tok - 1, RUN_IDS - RUN_NEW);
    int32_t n = 1 + length * RUN_PROMPT / 256;
    const RunSeq *before = kind & 4 && r->n_seqs ? run_pick(r) : NULL;
    if (before) {
        s->n_prompt = min_i32(before->n_ids, limit);
        memcpy(s->ids, before->ids, (size_t)s->n_prompt * sizeof *s->ids);
        n = min_i32(s->n_prompt + 1 + length % 70, limit);
    }
    for (n = min_i32(n, limit); s->n_prompt < n; s->n_prompt++)
        s->ids[s->n_prompt] = (int32_t)(rng_u64(kind % 4, (uint64_t)s->n_prompt) % FAKE_VOCAB);
}

/* Adds r->seqs[n_seqs], whose ids and n_prompt are set. */
static RunSeq *run_start(Run *r, SeqRequest request) {
    RunSeq *s = &r->seqs[r->n_seqs++];
    Err err = {0};
    s->run = r;
    s->cancelled_at = -1;
    s->n_ids = s->n_prompt;
    s->seed = request.sample.seed;
    request.ids = s->ids;
    request.n_ids = s->n_prompt;
    CHECK(engine_add(r->engine, &request, (SeqSink){run_token, run_end, s}, &s->seq, &err) ==
          STATUS_OK);
    return s;
}

static void run_add(Run *r) {
    if (r->n_seqs == RUN_SEQS)
        return;
    run_prompt(r, &r->seqs[r->n_seqs]);
    uint8_t more = run_byte(r), who = run_byte(r);
    int32_t stop = who;
    (void)run_start(r, (SeqRequest){
                           .max_tokens = 1 + more % RUN_NEW,
                           .stop_ids = &stop,
                           .n_stop_ids = who < FAKE_VOCAB,
                           .sample = {.temperature = 1, .seed = who},
                           .n_stable = r->seqs[r->n_seqs].n_prompt * (more / RUN_NEW) / 4,
                           .space = who % 2,
                           .client = who / 2 % 3,
                       });
}

static void run_cancel(Run *r) {
    RunSeq *s = run_pick(r);
    if (!s || s->n_ends || s->cancelled_at >= 0)
        return;
    s->cancelled_at = r->step;
    engine_cancel(r->engine, s->seq);
}

static void run_pause(RunSeq *s, bool is_paused) {
    if (!s || s->n_ends || s->cancelled_at >= 0)
        return;
    s->is_paused = is_paused;
    s->n_told_at_pause = s->n_told;
    engine_pause(s->run->engine, s->seq, is_paused);
}

static void run_op(Run *r) {
    uint8_t op = run_byte(r);
    RunSeq *s;
    switch (op % 12) {
    case 0:
    case 1: run_add(r); break;
    case 2: run_cancel(r); break;
    case 3:
        s = run_pick(r);
        run_pause(s, s && !s->is_paused);
        break;
    case 4:
        if ((s = run_pick(r)) != NULL)
            s->n_force = 1 + op / 12 % 8;
        break;
    case 5:
        if ((s = run_pick(r)) != NULL)
            s->stop_after = s->n_told + 1 + op / 12;
        break;
    case 6:
        fake.fault = (FakeFault)(run_byte(r) % FAKE_N);
        r->n_faults += fake.fault != FAKE_GOOD;
        break;
    case 7:
        for (int i = 0; i < 70; i++)
            (void)run_step(r);
        break;
    default:
        fake.decode_us = 40 * (op % 12 - 7);
        for (int i = 0; i < 1 + op / 12; i++)
            (void)run_step(r);
    }
}

static void run_open(Run *r, const Weights *w, const EngineOptions *options) {
    EngineOptions o = *options;
    Err err = {0};
    *r = (Run){.data = r->data, .size = r->size, .at = r->at};
    o.kind = fake.is_whole ? BACKEND_REF : BACKEND_CPU;
    o.budget_bytes = UINT64_MAX;
    fake.fault = FAKE_GOOD;
    CHECK(engine_open(&r->engine, w, &o, NULL, NULL, &err) == STATUS_OK);
}

static void run_open_bytes(Run *r, const Weights *w) {
    static const int32_t row_us[] = {0, 1, 2, 10};
    uint8_t a = run_byte(r), b = run_byte(r), c = run_byte(r);
    fake.is_whole = b / 32 % 2;
    fake.row_us = row_us[b / 64];
    fake.decode_us = 100;
    run_open(r, w,
             &(EngineOptions){
                 .max_seqs = 1 + a % 5,
                 .ctx_tok = KV_BLOCK * (2 + a / 5 % 14),
                 .chunk_tok = KV_BLOCK * (1 + b % 4),
                 .mixed_tok = KV_BLOCK * (1 + b / 4 % 2 * 3),
                 .mixed_ms = c / 7 % 8 == 7,
                 .depth = 1 + b / 8 % 2,
                 .is_cache_exact = b / 16 % 2,
                 .cache_slots = c % 7,
             });
}

/* All that was added comes to its end, and everything is given back. */
static void run_finish(Run *r) {
    bool is_idle = false;
    fake.fault = FAKE_GOOD;
    for (int i = 0; i < r->n_seqs; i++)
        run_pause(&r->seqs[i], false);
    for (int i = 0; i < RUN_LAST_STEPS && !is_idle; i++)
        is_idle = run_step(r);
    CHECK(is_idle);
    EngineFigures f = engine_figures(r->engine);
    CHECK(f.n_active + f.n_waiting == 0 && f.n_blocks_free + f.prefix.n_nodes == f.n_blocks);
    for (int i = 0; i < r->n_seqs; i++)
        CHECK(r->seqs[i].n_ends == 1);
}

static void run_close(Run *r) {
    Engine *e = r->engine;
    r->engine = NULL; // what ends from here on is cancelled
    engine_close(e);
    for (int i = 0; i < r->n_seqs; i++)
        CHECK(r->seqs[i].n_ends == 1);
}

/* One run. Returns how often sequences were sent back to the queue. */
static uint64_t run_bytes(const Weights *w, const uint8_t *data, size_t size) {
    static Run run;
    Run *r = &run;
    *r = (Run){.data = data, .size = size};
    run_open_bytes(r, w);
    while (r->at < r->size)
        run_op(r);
    if (size % 8) // else the engine is closed in the middle of its work
        run_finish(r);
    uint64_t n = engine_figures(r->engine).n_preempted;
    run_close(r);
    return n;
}

#endif
