// SPDX-License-Identifier: Apache-2.0
/* fake_backend.h - a device that keeps hashes in place of numbers, so that tests of the scheduler
 * are fast and see every wrong block, slot, row or order: what a row gives depends on every id
 * before it, on where these were kept, and on whether prompt or answer put them there.
 *
 * Path:     stands for the `cpu` backend, and for `ref`, which splits no layers: the tables' names
 * are the same, so the linker takes these. Owns:     its hashes; one device at a time.  Thread:
 * one. Not here: the checks of a batch, which backend.c makes before. */
#ifndef LILY_TESTS_FAKE_BACKEND_H
#define LILY_TESTS_FAKE_BACKEND_H

#include "backend/backend_table.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdatomic.h>
#include <string.h>

enum { FAKE_VOCAB = 61 }; // ids that are chosen

/* What goes wrong next; each happens once. */
typedef enum FakeFault {
    FAKE_GOOD,
    FAKE_SUBMIT,  // the step is not taken
    FAKE_WAIT,    // the step fails
    FAKE_NAN,     // a sequence's numbers are not finite
    FAKE_NO_ID,   // nothing may be chosen for it
    FAKE_SAMPLER, // a sampler cannot be set
    FAKE_N
} FakeFault;

/* What was read: as the phases read it, and the ids alone. */
typedef struct FakeState {
    uint64_t hash, plain;
} FakeState;

typedef struct FakeSlot {
    FakeState state;
    int32_t pos; // rows read; -1: undefined
} FakeSlot;

typedef struct FakeSampler {
    SampleParams params;
    uint64_t seen; // of the ids generated so far
} FakeSampler;

/* Rows of a prompt in the middle of the layers. Until the last layer, all that they will write
 * holds one value that nothing else has. */
typedef struct FakeHalf {
    BatchSeq part;
    FakeSlot before; // the slot as it was
    FakeState mark;
    BatchSnap snaps[8];
    bool is_lost; // a step of it has failed
} FakeHalf;

typedef struct FakeStep {
    BatchResult *results; // [max_seqs]
    int32_t n;
    bool is_failed;
} FakeStep;

typedef struct Fake {
    BackendPlan plan;
    FakeSlot *slots;       // [n_slots]
    FakeState *blocks;     // [n_blocks, KV_BLOCK] the state behind each position
    FakeSampler *samplers; // [n_samplers]
    FakeStep steps[BATCH_IN_FLIGHT];
    int32_t *last_ids; // [max_seqs] chosen in the step submitted last
    int64_t n_submitted, n_waited;
    int32_t n_layers;
    FakeHalf *half; // [n_half] of max_seqs
    int32_t n_half;
    int32_t *half_ids; // [max_rows] of the step in which they began
    /* Of the step submitted last. */
    int32_t n_prefill, n_decode; // rows
    int32_t n_layers_run;        // by prompts
    uint64_t prompt_ns;          // of all steps
} Fake;

/* The device that is open, and what is to go wrong on it. */
static struct {
    Fake *device;
    FakeFault fault;
    uint64_t n_poison;
    int64_t n_half;      // steps that left prompts in the middle of the layers
    int32_t row_us;      // how long a row of a prompt takes through all layers
    int32_t decode_us;   // and all decodes of a step
    int64_t now_ns;      // how long all that was run has taken
    bool is_whole;       // open the device that splits no layers
    atomic_bool is_lost; // every step fails from now on
} fake;

static bool fake_take(FakeFault fault) {
    bool is_it = fake.fault == fault;
    if (is_it)
        fake.fault = FAKE_GOOD;
    return is_it;
}

/* A value that nothing else has: whoever goes on from it is found out. */
static FakeState fake_poison(void) {
    uint64_t hash = rng_u64(0xbad, fake.n_poison++);
    return (FakeState){hash, hash};
}

/* ---- the arithmetic, shared with who predicts it ---- */

static uint64_t fake_read(uint64_t state, int32_t id, int32_t pos, bool is_decode) {
    return rng_mix(state ^ rng_u64((uint64_t)id + 1, (uint64_t)pos * 2 + is_decode));
}
static uint64_t fake_attend(uint64_t sum, uint64_t kept) { return rng_mix(sum ^ kept) + kept; }
static uint64_t fake_see(uint64_t seen, int32_t id) { return seen + rng_mix((uint64_t)id + 77); }
static int32_t fake_choose(uint64_t sum, uint64_t seen, uint64_t seed, int32_t pos) {
    return (int32_t)(rng_mix(sum ^ seen ^ rng_u64(seed, (uint64_t)pos)) % FAKE_VOCAB);
}

/* ---- one sequence's part of a step ---- */

static FakeState *fake_kept(Fake *f, const BatchSeq *s, int32_t pos) {
    return &f->blocks[(size_t)s->blocks[pos / KV_BLOCK] * KV_BLOCK + (size_t)(pos % KV_BLOCK)];
}

/* Makes what the part has written worthless; its place stays what it is. */
static void fake_spoil(Fake *f, const BatchSeq *s, int32_t pos) {
    FakeSlot *slot = &f->slots[s->slot];
    *slot = (FakeSlot){fake_poison(), pos};
    for (int32_t p = s->pos0; p < s->pos0 + s->n_rows; p++)
        *fake_kept(f, s, p) = slot->state;
    for (int32_t i = 0; i < s->n_snaps; i++)
        f->slots[s->snaps[i].slot] = (FakeSlot){fake_poison(), s->snaps[i].pos};
}

static void fake_rows(Fake *f, const Batch *b, const BatchSeq *s) {
    FakeSlot *slot = &f->slots[s->slot];
    int32_t snap = 0;
    if (s->pos0 == 0)
        *slot = (FakeSlot){0};
    // State, blocks and the rows that come must be of one and the same beginning.
    CHECK(slot->pos == s->pos0);
    CHECK(s->pos0 == 0 || fake_kept(f, s, s->pos0 - 1)->plain == slot->state.plain);
    for (int32_t i = 0; i < s->n_rows; i++) {
        int32_t id =
            s->phase == PHASE_DECODE && s->carry >= 0 ? f->last_ids[s->carry] : b->ids[s->row0 + i];
        id = id < 0 ? 0 : id;
        slot->state.hash = fake_read(slot->state.hash, id, slot->pos, s->phase == PHASE_DECODE);
        slot->state.plain = fake_read(slot->state.plain, id, slot->pos, false);
        *fake_kept(f, s, slot->pos) = slot->state;
        slot->pos++;
        if (snap < s->n_snaps && s->snaps[snap].pos == slot->pos)
            f->slots[s->snaps[snap++].slot] = *slot;
    }
    CHECK(snap == s->n_snaps);
}

/* ---- rows of prompts that go through the layers in several steps ---- */

/* What a part in the middle of the layers may not be read from yet is as it was left. */
static void fake_check_half(Fake *f, const FakeHalf *h) {
    const BatchSeq *s = &h->part;
    CHECK(f->slots[s->slot].pos == -1 && f->slots[s->slot].state.hash == h->mark.hash);
    for (int32_t p = s->pos0; p < s->pos0 + s->n_rows; p++)
        CHECK(fake_kept(f, s, p)->hash == h->mark.hash);
    for (int32_t i = 0; i < s->n_snaps; i++)
        CHECK(f->slots[h->snaps[i].slot].state.hash == h->mark.hash);
}

static void fake_begin_half(Fake *f, const BatchSeq *s, FakeHalf *h) {
    *h = (FakeHalf){.part = *s, .before = f->slots[s->slot], .mark = fake_poison()};
    if (s->pos0 == 0)
        h->before = (FakeSlot){0};
    CHECK(h->before.pos == s->pos0 && s->n_snaps <= (int32_t)COUNT_OF(h->snaps));
    if (s->n_snaps)
        memcpy(h->snaps, s->snaps, (size_t)s->n_snaps * sizeof *h->snaps);
    f->slots[s->slot] = (FakeSlot){h->mark, -1};
    for (int32_t p = s->pos0; p < s->pos0 + s->n_rows; p++)
        *fake_kept(f, s, p) = h->mark;
    for (int32_t i = 0; i < s->n_snaps; i++)
        f->slots[s->snaps[i].slot] = (FakeSlot){h->mark, -1};
}

/* Whether the part is the same as when it began. */
static void fake_check_same(const Fake *f, const Batch *b, const BatchSeq *s, const FakeHalf *h) {
    CHECK(h->part.pos0 == s->pos0 && h->part.n_rows == s->n_rows);
    CHECK(h->part.n_snaps == s->n_snaps);
    CHECK(s->n_snaps == 0 ||
          memcmp(h->snaps, s->snaps, (size_t)s->n_snaps * sizeof *h->snaps) == 0);
    CHECK(memcmp(f->half_ids + h->part.row0, b->ids + s->row0,
                 (size_t)s->n_rows * sizeof *b->ids) == 0);
}

/* Takes the prompts of the batch through its layers, but for the last one: what is in the middle of
 * them afterwards, and the slots as they were where the last layer comes now. */
static void fake_layers(Fake *f, const Batch *b) {
    int32_t n = 0, at = 0;
    int32_t end = b->layer_end ? b->layer_end : f->n_layers;
    f->n_layers_run = 0;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const BatchSeq *s = &b->seqs[i];
        if (s->phase == PHASE_DECODE)
            continue;
        f->n_layers_run = end - b->layer0;
        FakeHalf h = {0};
        if (b->layer0 > 0) {
            while (f->half[at].part.slot != s->slot)
                CHECK(++at < f->n_half);
            h = f->half[at++];
            h.part.blocks = s->blocks;
            fake_check_half(f, &h);
            fake_check_same(f, b, s, &h);
        } else if (end < f->n_layers) {
            fake_begin_half(f, s, &h);
        }
        if (end == f->n_layers && b->layer0 > 0)
            f->slots[s->slot] = h.before;
        f->half[n++] = h;
    }
    if (b->layer0 == 0 && n)
        memcpy(f->half_ids, b->ids, (size_t)b->n_rows * sizeof *b->ids);
    if (n)
        f->n_half = n;
}

static void fake_part(Fake *f, const Batch *b, int32_t i, BatchResult *out) {
    const BatchSeq *s = &b->seqs[i];
    int32_t end = s->pos0 + s->n_rows;
    *out = (BatchResult){.sample = {.id = -1}, .bad_layer = -1};
    if (s->phase == PHASE_PREFILL && b->layer_end && b->layer_end < f->n_layers)
        return;
    fake_rows(f, b, s);
    if (fake_take(FAKE_NAN)) {
        out->bad_layer = 0;
        fake_spoil(f, s, end);
    } else if (s->sampler >= 0 && !fake_take(FAKE_NO_ID)) {
        FakeSampler *sampler = &f->samplers[s->sampler];
        uint64_t sum = 0;
        for (int32_t pos = 0; pos < end; pos++)
            sum = fake_attend(sum, fake_kept(f, s, pos)->hash);
        out->sample.id = fake_choose(sum, sampler->seen, sampler->params.seed, end);
        sampler->seen = fake_see(sampler->seen, out->sample.id);
    }
}

/* ---- the table ---- */

static Status fake_needs(BackendNeeds *out, const Weights *w, const BackendPlan *plan, Err *err) {
    UNUSED(w);
    UNUSED(plan);
    UNUSED(err);
    *out = (BackendNeeds){.block_bytes = 1, .slot_bytes = 1};
    return STATUS_OK;
}

static void fake_close(void *self) {
    Fake *f = self;
    if (!f)
        return;
    mem_free(f->slots);
    mem_free(f->blocks);
    mem_free(f->samplers);
    mem_free(f->last_ids);
    mem_free(f->half);
    mem_free(f->half_ids);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++)
        mem_free(f->steps[i].results);
    mem_free(f);
    fake.device = NULL;
}

static Status fake_open(void **self, const Weights *w, const BackendPlan *plan,
                        const Progress *progress, const Log *log, Err *err) {
    Fake *f = mem_zalloc(1, sizeof *f);
    UNUSED(progress);
    UNUSED(log);
    UNUSED(err);
    CHECK(f && !fake.device);
    f->plan = *plan;
    f->n_layers = weights_config(w)->n_layers;
    f->half = mem_zalloc((size_t)plan->max_seqs, sizeof *f->half);
    f->half_ids = mem_zalloc((size_t)plan->max_rows, sizeof *f->half_ids);
    f->slots = mem_zalloc((size_t)plan->n_slots, sizeof *f->slots);
    f->blocks = mem_zalloc((size_t)plan->n_blocks * KV_BLOCK, sizeof *f->blocks);
    f->samplers = mem_zalloc((size_t)plan->n_samplers, sizeof *f->samplers);
    f->last_ids = mem_zalloc((size_t)plan->max_seqs, sizeof *f->last_ids);
    CHECK(f->slots && f->blocks && f->samplers && f->last_ids && f->half && f->half_ids);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++) {
        f->steps[i].results = mem_zalloc((size_t)plan->max_seqs, sizeof(BatchResult));
        CHECK(f->steps[i].results);
    }
    for (int32_t i = 0; i < plan->n_slots; i++)
        f->slots[i].pos = -1;
    *self = fake.device = f;
    return STATUS_OK;
}

static const char *fake_text(const void *self) {
    UNUSED(self);
    return "hashes";
}

/* What the step costs. */
static void fake_pass_time(Fake *f, const Batch *b) {
    f->n_prefill = f->n_decode = 0;
    for (int32_t i = 0; i < b->n_seqs; i++)
        *(b->seqs[i].phase == PHASE_PREFILL ? &f->n_prefill : &f->n_decode) += b->seqs[i].n_rows;
    int64_t prompt_ns = (int64_t)fake.row_us * 1000 * f->n_prefill * f->n_layers_run / f->n_layers;
    f->prompt_ns += (uint64_t)prompt_ns;
    fake.now_ns += prompt_ns + (f->n_decode ? (int64_t)fake.decode_us * 1000 : 0);
}

static Status fake_submit(void *self, const Batch *batch, Err *err) {
    Fake *f = self;
    FakeStep *step = &f->steps[f->n_submitted % BATCH_IN_FLIGHT];
    if (atomic_load(&fake.is_lost) || fake_take(FAKE_SUBMIT)) {
        for (int32_t i = 0; i < batch->n_seqs; i++)
            fake_spoil(f, &batch->seqs[i], -1);
        return err_set(err, STATUS_DEVICE, "the step was not taken");
    }
    step->is_failed = fake_take(FAKE_WAIT);
    step->n = batch->n_seqs;
    fake_layers(f, batch);
    for (int32_t i = 0; i < batch->n_seqs; i++)
        fake_part(f, batch, i, &step->results[i]);
    fake_pass_time(f, batch);
    bool is_half = batch->layer_end && batch->layer_end < f->n_layers;
    fake.n_half += is_half;
    for (int32_t i = 0, half = 0; i < batch->n_seqs; i++) {
        const BatchSeq *s = &batch->seqs[i];
        bool is_prompt = s->phase == PHASE_PREFILL;
        f->last_ids[i] = step->results[i].sample.id;
        if (is_prompt)
            f->half[half].is_lost |= step->is_failed;
        if (is_prompt ? !is_half && f->half[half].is_lost : step->is_failed)
            fake_spoil(f, s, s->pos0 + s->n_rows);
        half += is_prompt;
    }
    f->n_submitted++;
    return STATUS_OK;
}

static Status fake_wait(void *self, BatchResult *results, Err *err) {
    Fake *f = self;
    const FakeStep *step = &f->steps[f->n_waited++ % BATCH_IN_FLIGHT];
    if (step->is_failed)
        return err_set(err, STATUS_DEVICE, "the step has failed");
    memcpy(results, step->results, (size_t)step->n * sizeof *results);
    return STATUS_OK;
}

static Status fake_sampler_set(void *self, int32_t sampler, const SampleParams *params,
                               const int32_t *ids, int32_t n_prompt, int32_t n_generated,
                               Err *err) {
    Fake *f = self;
    if (fake_take(FAKE_SAMPLER))
        return err_set(err, STATUS_DEVICE, "the sampler cannot be set");
    f->samplers[sampler] = (FakeSampler){.params = *params};
    for (int32_t i = n_prompt; i < n_prompt + n_generated; i++)
        f->samplers[sampler].seen = fake_see(f->samplers[sampler].seen, ids[i]);
    return STATUS_OK;
}

static void fake_slot_copy(void *self, int32_t to, int32_t from) {
    Fake *f = self;
    f->slots[to] = f->slots[from];
}

static Status fake_copy_begin(void *self, const BackendCopy *copies, int32_t n, Err *err) {
    Fake *f = self;
    UNUSED(err);
    for (const BackendCopy *copy = copies; copy < copies + n; copy++) {
        void *at = copy->is_slot ? (void *)&f->slots[copy->index]
                                 : &f->blocks[(size_t)copy->index * KV_BLOCK];
        size_t bytes = copy->is_slot ? sizeof *f->slots : KV_BLOCK * sizeof *f->blocks;
        memcpy(copy->to ? copy->to : at, copy->to ? at : copy->from, bytes);
    }
    return STATUS_OK;
}

static uint64_t fake_slot_host_bytes(const void *self) {
    UNUSED(self);
    return sizeof(FakeSlot);
}

static uint64_t fake_block_host_bytes(const void *self) {
    UNUSED(self);
    return KV_BLOCK * sizeof(FakeState);
}

static Status fake_slot_peek(void *self, int32_t slot, int layer, double *s, double *window,
                             Err *err) {
    UNUSED(self);
    UNUSED(slot);
    UNUSED(layer);
    UNUSED(s);
    UNUSED(window);
    return err_set(err, STATUS_UNSUPPORTED, "hashes have no state to look at");
}

static void fake_counters(const void *self, BackendCounters *out) {
    *out = (BackendCounters){.prompt_ns = ((const Fake *)self)->prompt_ns};
}

#define FAKE_TABLE(kind_, splits)                                                                  \
    {                                                                                              \
        .kind = (kind_), .splits_layers = (splits), .needs = fake_needs, .open = fake_open,        \
        .close = fake_close, .text = fake_text, .submit = fake_submit, .wait = fake_wait,          \
        .sampler_set = fake_sampler_set, .slot_copy = fake_slot_copy,                              \
        .copy_begin = fake_copy_begin, .slot_host_bytes = fake_slot_host_bytes,                    \
        .block_host_bytes = fake_block_host_bytes, .slot_peek = fake_slot_peek,                    \
        .counters = fake_counters                                                                  \
    }

const BackendTable backend_cpu_table = FAKE_TABLE(BACKEND_CPU, true);
const BackendTable backend_ref_table = FAKE_TABLE(BACKEND_REF, false);

#endif
