// SPDX-License-Identifier: Apache-2.0
/* engine.c - sequences from their addition to their end.
 *
 * Path:     engine_add queues -> sched_admit gives blocks and a slot -> sched_build fills a Batch
 *           -> backend -> engine_deliver hands the ids on.
 * Owns:     the Backend, KV blocks, slots.  Thread: engine.
 * Not here: the sizes (plan.c), who runs (sched.c), text (turn.c). */
#include "engine/engine.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/plan.h"
#include "engine/seq.h"

#include <string.h>

static void seq_free(Seq *seq) {
    if (!seq)
        return;
    mem_free((void *)seq->sample.bias);
    mem_free(seq->ids);
    mem_free(seq->blocks);
    mem_free(seq);
}

static Status flight_init(Flight *f, const EnginePlan *plan, int32_t max_rows, Err *err) {
    size_t n_snaps = (size_t)plan->max_seqs * SNAPS_A_PART;
    f->snaps = mem_zalloc(n_snaps, sizeof *f->snaps);
    f->pending = mem_zalloc(n_snaps + (size_t)plan->max_seqs, sizeof *f->pending);

    f->parts = mem_zalloc((size_t)plan->max_seqs, sizeof *f->parts);
    f->seqs = mem_zalloc((size_t)plan->max_seqs, sizeof(Seq *));
    f->ids = mem_zalloc((size_t)max_rows, sizeof *f->ids);
    return f->parts && f->seqs && f->ids && f->snaps && f->pending
               ? STATUS_OK
               : err_memory(err, "step", (size_t)max_rows * 4);
}

Status engine_open(Engine **out, const Weights *w, const EngineOptions *given,
                   const Progress *progress, const Log *log, Err *err) {
    EnginePlan plan;
    EngineOptions settled = *given;
    const EngineOptions *options = &settled;
    settled.kind = engine_backend_kind(w, given, log);
    TRY(engine_plan(&plan, w, options, err));
    Engine *e = mem_zalloc(1, sizeof *e);
    if (!e)
        return err_memory(err, "engine", sizeof *e);
    Status status;
    e->plan = plan;
    e->options = *options;
    e->options.mask = NULL;
    e->options.cache_slots = plan.cache_slots;
    e->depth = options->depth == 2 ? 2 : 1;

    BackendPlan backend_plan = engine_backend_plan(&plan, options);
    e->active = mem_zalloc((size_t)plan.max_seqs, sizeof(Seq *));
    e->results = mem_zalloc((size_t)plan.max_seqs, sizeof *e->results);
    e->piece.parts = mem_zalloc((size_t)plan.max_seqs, sizeof *e->piece.parts);
    if (!e->active || !e->results || !e->piece.parts) {
        status = err_memory(err, "engine", (size_t)plan.max_seqs * sizeof *e->results);
        goto fail;
    }
    for (int i = 0; i < BATCH_IN_FLIGHT; i++)
        TRY_GOTO(status, flight_init(&e->flights[i], &plan, backend_plan.max_rows, err));
    TRY_GOTO(status, blocks_init(&e->blocks, backend_plan.n_blocks, err));
    TRY_GOTO(status, prefix_open(&e->prefix, &e->blocks, plan.max_seqs, plan.cache_slots, err));

    TRY_GOTO(status,
             backend_open(&e->backend, options->kind, w, &backend_plan, progress, log, err));
    *out = e;
    return STATUS_OK;
fail:
    engine_close(e);
    return status;
}

const EnginePlan *engine_settled(const Engine *e) { return &e->plan; }
Backend *engine_backend(Engine *e) { return e->backend; }
const ModelConfig *engine_config(const Engine *e) { return backend_config(e->backend); }
SeqFigures engine_seq_figures(const Seq *seq) { return seq->figures; }

Status engine_check(const Engine *e, const SeqRequest *r, Err *err) {
    int32_t vocab = engine_config(e)->vocab;
    if (r->n_ids < 1)
        return err_set(err, STATUS_INVALID, "prompt: expected at least one token, found none");
    for (int32_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || r->ids[i] >= vocab)
            return err_set(err, STATUS_INVALID,
                           "token %d of the prompt: expected 0 to %d, found %d", i, vocab - 1,
                           r->ids[i]);
    if (r->max_tokens < 0)
        return err_set(err, STATUS_INVALID, "max_tokens: expected 0 or more, found %d",
                       r->max_tokens);
    if (r->n_stop_ids < 0 || r->n_stop_ids > LIMIT_EOS)
        return err_set(err, STATUS_INVALID, "stop ids: expected at most %d, found %d", LIMIT_EOS,
                       r->n_stop_ids);
    if (r->n_ids >= e->plan.limit_tok)
        return err_set(err, STATUS_CONTEXT,
                       "the prompt has %d tokens, the context holds %d and the answer needs one",
                       r->n_ids, e->plan.limit_tok);
    return sample_params_check(&r->sample, vocab, err);
}

Status engine_add(Engine *e, const SeqRequest *r, SeqSink sink, Seq **out, Err *err) {
    TRY(engine_check(e, r, err));
    Seq *seq = mem_zalloc(1, sizeof *seq);
    if (!seq)
        return err_memory(err, "sequence", sizeof *seq);
    int32_t room = e->plan.limit_tok - r->n_ids;
    seq->number = e->n_added++;
    seq->slot = -1;
    seq->tail_slot = seq->park_slot = -1;
    seq->n_stable = r->n_stable;
    seq->space = r->space;
    seq->client = r->client;

    seq->n_prompt = seq->n_known = r->n_ids;
    seq->max_new = r->max_tokens == 0 ? room : min_i32(r->max_tokens, room);
    size_t n_blocks = (size_t)div_up_i32(seq->n_prompt + seq->max_new, KV_BLOCK);
    size_t n_ids = (size_t)seq->n_prompt + (size_t)seq->max_new;
    seq->ids = mem_zalloc(n_ids, sizeof *seq->ids);
    seq->blocks = mem_zalloc(n_blocks, sizeof *seq->blocks);
    seq->sample = r->sample;
    seq->sample.bias = NULL;
    LogitBias *bias = mem_zalloc((size_t)max_i32(r->sample.n_bias, 1), sizeof *bias);
    if (!seq->ids || !seq->blocks || !bias) {
        mem_free(bias);
        seq_free(seq);
        return err_memory(err, "sequence", n_ids * sizeof *seq->ids);
    }
    if (r->sample.n_bias > 0)
        memcpy(bias, r->sample.bias, (size_t)r->sample.n_bias * sizeof *bias);
    seq->sample.bias = bias;
    memcpy(seq->ids, r->ids, (size_t)r->n_ids * sizeof *seq->ids);
    seq->n_stop_ids = r->n_stop_ids;
    if (r->n_stop_ids)
        memcpy(seq->stop_ids, r->stop_ids, (size_t)r->n_stop_ids * sizeof *seq->stop_ids);
    seq->sink = sink;
    seq->figures = (SeqFigures){.n_prompt = r->n_ids, .added_ns = clock_now_ns()};
    if (e->last_waiting)
        e->last_waiting->next = seq;
    else
        e->first_waiting = seq;
    e->last_waiting = seq;
    e->n_waiting++;
    if (out)
        *out = seq;
    return STATUS_OK;
}

void engine_unlink(Engine *e, Seq *seq) {
    Seq *before = NULL;
    for (Seq *s = e->first_waiting; s != seq; s = s->next)
        before = s;
    if (before)
        before->next = seq->next;
    else
        e->first_waiting = seq->next;
    if (e->last_waiting == seq)
        e->last_waiting = before;
    seq->next = NULL;
    e->n_waiting--;
}

void engine_vacate(Engine *e, Seq *seq) {
    sched_leave_piece(e, seq);
    for (int32_t i = 0; i < seq->n_blocks; i++)
        blocks_release(&e->blocks, seq->blocks[i]);
    seq->n_blocks = 0;
    if (seq->tail_slot >= 0)
        prefix_give_slot(e->prefix, seq->tail_slot);
    seq->tail_slot = -1;
    e->active[seq->slot] = NULL;
    seq->slot = -1;
}

void engine_end(Engine *e, Seq *seq, SeqEnd end, const Err *why) {
    CHECK(seq->n_flight == 0);
    if (seq->state == STATE_ACTIVE) {
        bool is_good = end == SEQ_STOP_ID || end == SEQ_STOP_SINK || end == SEQ_LENGTH;
        if (is_good && seq->tail_slot >= 0 && seq->tail_pos <= seq->n_known) {
            prefix_add(e->prefix, seq->space, seq->ids, seq->tail_pos, seq->blocks, seq->tail_slot,
                       true);
            seq->tail_slot = -1;
        }
        engine_vacate(e, seq);
    } else {
        sched_unpark(e, seq);
        engine_unlink(e, seq);
    }
    seq->state = STATE_ENDED;
    Err none = {0};
    seq->sink.end(seq->sink.ctx, end, why ? why : &none);
    seq_free(seq);
}

void engine_cancel(Engine *e, Seq *seq) {
    if (seq->n_flight)
        seq->is_cancelled = true;
    else
        engine_end(e, seq, SEQ_CANCELLED, NULL);
}

void engine_pause(Engine *e, Seq *seq, bool is_paused) {
    UNUSED(e);
    seq->is_paused = is_paused;
}

/* For a sequence whose sink has had its last call already. */
static void engine_ignore_end(void *ctx, SeqEnd end, const Err *err) {
    UNUSED(ctx);
    UNUSED(end);
    UNUSED(err);
}

void engine_end_soon(Engine *e, Seq *seq, SeqEnd end, const Err *why) {
    if (seq->n_flight == 0) {
        engine_end(e, seq, end, why);
        return;
    }
    SeqSink sink = seq->sink;
    seq->sink = (SeqSink){.end = engine_ignore_end};
    seq->is_cancelled = true;
    sink.end(sink.ctx, end, why);
}

/* One sequence's news of a step: its new id, or its end. */
static void engine_deliver_one(Engine *e, Seq *seq, const BatchSeq *part, const BatchResult *r) {
    if (seq->is_cancelled) {
        if (seq->n_flight == 0)
            engine_end(e, seq, SEQ_CANCELLED, NULL);
        return;
    }
    SeqEnd end = SEQ_RUNNING;
    Err err = {0};
    if (r->bad_layer >= 0) {
        end = SEQ_FAILED;
        const ModelConfig *c = engine_config(e);
        char place[32] = "in the logits";
        if (r->bad_layer < c->n_layers)
            snprintf(place, sizeof place, "after layer %d", r->bad_layer);
        err.code =
            err_set(&err, STATUS_NUMERIC, "NaN or infinity %s at position %d", place, r->bad_pos);
    } else if (part->sampler >= 0 && seq->n_ignore > 0) {
        seq->n_ignore--;
    } else if (part->sampler >= 0) {
        int32_t id = r->sample.id;
        for (int32_t i = 0; i < seq->n_stop_ids; i++)
            if (id == seq->stop_ids[i])
                end = SEQ_STOP_ID;
        if (id < 0) {
            end = SEQ_FAILED;
            err.code =
                err_set(&err, STATUS_INVALID, "every token is forbidden: nothing can be chosen");
        }
        if (end == SEQ_RUNNING) {
            seq->ids[seq->n_known++] = id;
            e->figures.n_generated_tok++;
            seq->figures.last_token_ns = clock_now_ns();
            if (seq->figures.n_generated++ == 0)
                seq->figures.first_token_ns = seq->figures.last_token_ns;
            if (seq->sink.token && !seq->sink.token(seq->sink.ctx, &r->sample))
                end = SEQ_STOP_SINK;
            else if (seq->n_known == seq->n_prompt + seq->max_new)
                end = SEQ_LENGTH;
        }
    }
    if (end != SEQ_RUNNING)
        engine_end_soon(e, seq, end, &err);
}

int32_t engine_room(const Seq *seq) { return seq->n_prompt + seq->max_new - seq->n_known; }

bool engine_force(Seq *seq, const int32_t *ids, int32_t n) {
    if (n > engine_room(seq) - 1) // one more id must be chosen behind them
        return false;
    memcpy(seq->ids + seq->n_known, ids, (size_t)n * sizeof *ids);
    seq->n_known += n;
    seq->figures.n_generated += n;
    // A step in flight has read the id before them and chosen another in their place, which the
    // sampler has counted.
    seq->n_ignore = seq->n_flight;
    seq->is_sampler_stale = true;
    return true;
}

/* Reads the oldest step in flight. */
static void engine_deliver(Engine *e) {
    Flight *f = &e->flights[(e->step - e->n_flight) % BATCH_IN_FLIGHT];
    Err err = {0};
    Status status = backend_wait(e->backend, e->results, &err);
    e->n_flight--;
    sched_note_pace(e, f);
    sched_settle(e, f, status == STATUS_OK);
    for (int32_t i = 0; i < f->batch.n_seqs; i++) {
        Seq *seq = f->seqs[i];
        seq->n_flight--;
        if (status == STATUS_OK)
            engine_deliver_one(e, seq, &f->parts[i], &e->results[i]);
        else
            engine_end_soon(e, seq, SEQ_FAILED, &err);
    }
}

/* What rows of prompts have taken so far; 0 where the device does not say. */
static uint64_t engine_prompt_ns(const Engine *e) {
    BackendCounters c = {0};
    if (backend_splits_layers(e->backend)) // else to ask may mean to wait
        backend_counters(e->backend, &c);
    return c.prompt_ns;
}

void engine_step(Engine *e, bool *is_idle) {
    sched_admit(e);

    Flight *f = &e->flights[e->step % BATCH_IN_FLIGHT];
    bool is_built = e->n_flight < e->depth && sched_build(e, f);
    if (is_built) {
        Err err = {0};
        uint64_t prompt_ns = engine_prompt_ns(e);
        f->begun_ns = clock_now_ns();
        if (backend_submit(e->backend, &f->batch, &err) == STATUS_OK) {
            f->prompt_ns = engine_prompt_ns(e) - prompt_ns;
            sched_submitted(e, f);
            e->step++;
            e->n_flight++;
            e->figures.n_steps++;
        } else {
            sched_settle(e, f, false);

            for (int32_t i = 0; i < f->batch.n_seqs; i++) {
                f->seqs[i]->n_flight--;
                engine_end_soon(e, f->seqs[i], SEQ_FAILED, &err);
            }
        }
    }
    if (e->n_flight == e->depth || (e->n_flight > 0 && !is_built))
        engine_deliver(e);
    if (is_idle) {
        *is_idle = e->n_flight == 0;
        for (const Seq *s = e->first_waiting; s; s = s->next)
            *is_idle = *is_idle && s->is_paused;
        for (int32_t i = 0; i < e->plan.max_seqs; i++)
            *is_idle = *is_idle && (!e->active[i] || e->active[i]->is_paused);
    }
}

void engine_close(Engine *e) {
    if (!e)
        return;
    while (e->n_flight > 0)
        engine_deliver(e);
    for (int32_t i = 0; e->active && i < e->plan.max_seqs; i++)
        if (e->active[i])
            engine_end(e, e->active[i], SEQ_CANCELLED, NULL);
    while (e->first_waiting)
        engine_end(e, e->first_waiting, SEQ_CANCELLED, NULL);
    prefix_close(e->prefix);
    backend_close(e->backend);
    blocks_fini(&e->blocks);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++) {
        mem_free(e->flights[i].parts);
        mem_free(e->flights[i].seqs);
        mem_free(e->flights[i].ids);
        mem_free(e->flights[i].snaps);
        mem_free(e->flights[i].pending);
    }
    mem_free(e->piece.parts);
    mem_free(e->active);
    mem_free(e->results);
    mem_free(e);
}

EngineFigures engine_figures(const Engine *e) {
    EngineFigures f = e->figures;
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        f.n_active += e->active[i] != NULL;
    f.n_waiting = e->n_waiting;
    f.n_blocks = e->blocks.n;
    f.n_blocks_free = e->blocks.n_free;
    f.prefix = prefix_figures(e->prefix);
    return f;
}
