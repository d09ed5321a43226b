// SPDX-License-Identifier: Apache-2.0
/* backend.c - one door for all devices: names, checks of plans and batches, dispatch.
 *
 * Path:     the engine calls backend_*; this file checks the arguments against plan and config and
 *           calls the table of the opened kind.
 * Owns:     a Backend owns the opened device and the stamps of its block check.
 * Thread:   all calls on one Backend from one thread.
 * Not here: any arithmetic of the model (the device folders). */
#include "backend/backend.h"

#include "backend/backend_table.h"
#include "backend/cpu/cpu_features.h"
#include "backend/meter.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/sysmem.h"

#include <string.h>

enum {
    CHUNK_ROWS_CPU = 1024, // 32 rows an expert of 256 with 8 chosen
    CHUNK_ROWS_AMX = 2048, // tiles want more: 14% faster than 1024
};

static const char *const BACKEND_NAMES[BACKEND_N] = {"ref",  "ref64", "cpu",
                                                     "cuda", "metal", "auto"};

/* A sequence's rows that have gone through some layers. */
typedef struct HalfPart {
    int32_t slot, pos0, n_rows;
} HalfPart;

struct Backend {
    const BackendTable *table;
    void *self;
    ModelConfig config;
    BackendPlan plan;        // mask NULL
    int32_t n_unfinished;    // steps
    bool *had_sampler;       // [max_seqs] of the step submitted last
    int32_t n_last;          // its sequences; 0: none or it failed
    uint32_t *slot_stamp;    // [n_slots] batch that named it last
    uint32_t *sampler_stamp; // [n_samplers]
    uint32_t *write_stamp;   // [n_blocks] batch that writes it
    uint32_t stamp;          // of the batch at work
    HalfPart *half;          // [n_half] of max_seqs: parts of prompts that wait for more layers
    int32_t n_half;
    int32_t half_layer; // the first that they have not gone through
    uint64_t n_lists;   // of copies that were begun
    Pool *meter_pool;   // NULL: nothing was measured yet
    Meter *meter;
};

/* NULL: not in this binary. */
static const BackendTable *table_find(BackendKind kind) {
    switch (kind) {
    case BACKEND_REF: return &backend_ref_table;
    case BACKEND_REF64: return &backend_ref64_table;
    case BACKEND_CPU: return &backend_cpu_table;
#ifdef LILY_HAS_CUDA
    case BACKEND_CUDA: return &backend_cuda_table;
#endif
    default: return NULL;
    }
}

/* What BACKEND_AUTO chooses from, fastest first. */
static const BackendKind AUTO_ORDER[] = {BACKEND_METAL, BACKEND_CUDA, BACKEND_CPU};

static BackendKind auto_kind(void) {
    for (size_t i = 0; i < COUNT_OF(AUTO_ORDER); i++)
        if (backend_is_available(AUTO_ORDER[i], NULL, 0))
            return AUTO_ORDER[i];
    return BACKEND_REF;
}

bool backend_is_built(BackendKind kind) { return table_find(kind) != NULL; }

BackendKind backend_kind_resolve(BackendKind kind) {
    return kind == BACKEND_AUTO ? auto_kind() : kind;
}

const char *backend_kind_name(BackendKind kind) {
    return kind >= 0 && kind < BACKEND_N ? BACKEND_NAMES[kind] : "unknown";
}

BackendKind backend_kind_find(const char *name) {
    for (int k = 0; k < BACKEND_N; k++)
        if (strcmp(name, BACKEND_NAMES[k]) == 0)
            return (BackendKind)k;
    return BACKEND_N;
}

uint64_t backend_memory_free(BackendKind kind, int32_t device) {
    const BackendTable *table = table_find(backend_kind_resolve(kind));
    return table && table->memory_free ? table->memory_free(device) : sysmem_available();
}

int32_t backend_chunk_rows(BackendKind kind) {
    kind = backend_kind_resolve(kind);
    const BackendTable *table = table_find(kind);
    if (table && table->chunk_rows)
        return table->chunk_rows;
    bool has_tiles = kind == BACKEND_CPU && cpu_features_amx() == AMX_GRANTED;
    return has_tiles ? CHUNK_ROWS_AMX : CHUNK_ROWS_CPU;
}

bool backend_is_available(BackendKind kind, char *text, size_t size) {
    if (kind == BACKEND_AUTO)
        kind = auto_kind();
    const BackendTable *table = table_find(kind);
    if (table && table->is_available)
        return table->is_available(text, size);
    if (text && size)
        snprintf(text, size, "%s", table ? "" : "not built in");
    return table != NULL;
}

/* Resolves BACKEND_AUTO and refuses what cannot run here. */
static Status table_choose(const BackendTable **out, BackendKind kind, Err *err) {
    if (kind == BACKEND_AUTO)
        kind = auto_kind();
    char reason[128] = "";
    if (!backend_is_available(kind, reason, sizeof reason))
        return err_set(err, STATUS_UNSUPPORTED, "backend %s: %s", backend_kind_name(kind), reason);
    *out = table_find(kind);
    return STATUS_OK;
}

static Status plan_range(const char *name, int32_t value, int32_t low, int32_t high, Err *err) {
    if (value >= low && value <= high)
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "backend plan: %s: expected %d to %d, found %d", name, low,
                   high, value);
}

static Status plan_check(BackendPlan *p, Err *err) {
    TRY(plan_range("max_rows", p->max_rows, 1, LIMIT_CONTEXT, err));
    TRY(plan_range("max_seqs", p->max_seqs, 1, LIMIT_CONTEXT, err));
    TRY(plan_range("n_blocks", p->n_blocks, 1, INT32_MAX, err));
    TRY(plan_range("n_slots", p->n_slots, 1, INT32_MAX, err));
    TRY(plan_range("n_samplers", p->n_samplers, 0, INT32_MAX, err));
    TRY(plan_range("max_ctx", p->max_ctx, 1, LIMIT_CONTEXT, err));
    TRY(plan_range("max_logits", p->max_logits, 0, p->max_rows, err));
    TRY(plan_range("n_threads", p->n_threads, 0, LIMIT_THREADS, err));
    if (p->max_logits == 0)
        p->max_logits = p->max_rows;
    return STATUS_OK;
}

/* needs of a checked plan, added up. */
static Status needs_total(BackendNeeds *out, const BackendTable *table, const Weights *w,
                          const BackendPlan *plan, Err *err) {
    BackendNeeds n = {0};
    TRY(table->needs(&n, w, plan, err));
    uint64_t blocks, slots, samplers, total;
    bool fits = checked_mul_u64(n.block_bytes, (uint64_t)plan->n_blocks, &blocks) &&
                checked_mul_u64(n.slot_bytes, (uint64_t)plan->n_slots, &slots) &&
                checked_mul_u64(n.sampler_bytes, (uint64_t)plan->n_samplers, &samplers) &&
                checked_add_u64(n.weight_bytes, n.scratch_bytes, &total) &&
                checked_add_u64(total, blocks, &total) && checked_add_u64(total, slots, &total) &&
                checked_add_u64(total, samplers, &total);
    if (!fits || total >> 62)
        return err_set(err, STATUS_TOO_LARGE,
                       "backend plan: %d blocks of %llu bytes, %d slots of "
                       "%llu and %d samplers are beyond any machine",
                       plan->n_blocks, (unsigned long long)n.block_bytes, plan->n_slots,
                       (unsigned long long)n.slot_bytes, plan->n_samplers);
    n.total_bytes = total;
    *out = n;
    return STATUS_OK;
}

/* Whether `auto` can take a kind for a model; the reason in why, "" where the machine has no such
 * device at all. */
static bool auto_can_take(BackendKind kind, const Weights *w, const BackendPlan *plan, char *why,
                          size_t size) {
    const BackendTable *table = table_find(kind);
    BackendPlan least = *plan;
    BackendNeeds needs;
    Err err = {0};
    why[0] = 0;
    if (!table)
        return false;
    if (!backend_is_available(kind, why, size)) {
        if (table->is_here && !table->is_here())
            why[0] = 0;
        return false;
    }
    least.max_rows = RECUR_CHUNK;
    least.max_ctx = KV_BLOCK;
    least.max_seqs = least.n_blocks = least.n_slots = least.max_logits = 1;
    least.n_samplers = 0;
    if (plan_check(&least, &err) != STATUS_OK ||
        needs_total(&needs, table, w, &least, &err) != STATUS_OK) {
        snprintf(why, size, "%s", err.text);
        return false;
    }
    uint64_t left = backend_memory_free(kind, plan->device);
    if (left == 0 || needs.total_bytes <= left)
        return true;
    snprintf(why, size, "the model takes %.2f GB of its memory, %.2f are free",
             (double)needs.total_bytes * 1e-9, (double)left * 1e-9);
    return false;
}

BackendKind backend_kind_for(BackendKind kind, const Weights *w, const BackendPlan *plan,
                             const Log *log) {
    if (kind != BACKEND_AUTO)
        return kind;
    for (size_t i = 0; i < COUNT_OF(AUTO_ORDER); i++) {
        char why[ERR_TEXT_SIZE];
        // The CPU is the last: where it cannot, its error is the one to tell.
        if (AUTO_ORDER[i] == BACKEND_CPU || auto_can_take(AUTO_ORDER[i], w, plan, why, sizeof why))
            return AUTO_ORDER[i];
        if (why[0])
            log_printf(log, LOG_WARNING, "%s is passed over: %s", backend_kind_name(AUTO_ORDER[i]),
                       why);
    }
    return BACKEND_CPU;
}

Status backend_needs(BackendNeeds *out, BackendKind kind, const Weights *w, const BackendPlan *plan,
                     Err *err) {
    const BackendTable *table = NULL;
    BackendPlan p = *plan;
    TRY(table_choose(&table, kind, err));
    TRY(plan_check(&p, err));
    return needs_total(out, table, w, &p, err);
}

void backend_close(Backend *b) {
    if (!b)
        return;
    b->table->close(b->self);
    meter_close(b->meter);
    pool_close(b->meter_pool);
    mem_free(b->had_sampler);
    mem_free(b->slot_stamp);
    mem_free(b->sampler_stamp);
    mem_free(b->write_stamp);
    mem_free(b->half);
    mem_free(b);
}

Status backend_open(Backend **out, BackendKind kind, const Weights *w, const BackendPlan *plan,
                    const Progress *progress, const Log *log, Err *err) {
    const BackendTable *table = NULL;
    BackendPlan p = *plan;
    BackendNeeds needs;
    TRY(table_choose(&table, kind, err));
    TRY(plan_check(&p, err));
    TRY(needs_total(&needs, table, w, &p, err));
    Backend *b = mem_zalloc(1, sizeof *b);
    if (!b)
        return err_memory(err, "backend", sizeof *b);
    *b = (Backend){.table = table, .config = *weights_config(w), .plan = p};
    b->plan.mask = NULL;
    b->had_sampler = mem_zalloc((size_t)p.max_seqs, sizeof *b->had_sampler);
    b->slot_stamp = mem_zalloc((size_t)p.n_slots, sizeof *b->slot_stamp);
    b->sampler_stamp = mem_zalloc((size_t)p.n_samplers, sizeof *b->sampler_stamp);
    b->write_stamp = mem_zalloc((size_t)p.n_blocks, sizeof *b->write_stamp);
    b->half = mem_zalloc((size_t)p.max_seqs, sizeof *b->half);
    Status status = STATUS_OK;
    if (!b->had_sampler || !b->slot_stamp || !b->sampler_stamp || !b->write_stamp || !b->half)
        TRY_GOTO(status, err_memory(err, "batch checks", (size_t)p.n_blocks * sizeof(uint32_t)));
    TRY_GOTO(status, table->open(&b->self, w, &p, progress, log, err));
    *out = b;
    return STATUS_OK;
fail:
    backend_close(b);
    return status;
}

BackendKind backend_kind(const Backend *b) { return b->table->kind; }
const ModelConfig *backend_config(const Backend *b) { return &b->config; }
const char *backend_text(const Backend *b) { return b->table->text(b->self); }

/* ---- batches ---- */

static Status batch_invalid(int32_t seq, const char *what, int64_t found, Err *err) {
    return err_set(err, STATUS_INVALID, "batch: sequence %d: %s, found %lld", seq, what,
                   (long long)found);
}

/* Marks an entry as named by this batch; false when it already was. */
static bool stamp_first(uint32_t *stamps, int32_t i, uint32_t stamp) {
    if (stamps[i] == stamp)
        return false;
    stamps[i] = stamp;
    return true;
}

/* Rows, positions and what is wanted of sequence i; *row is the row where it must begin. */
static Status seq_check_rows(const Backend *b, const Batch *batch, int32_t i, int32_t *row,
                             int32_t *n_logits, Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    if (s->phase != PHASE_PREFILL && s->phase != PHASE_DECODE)
        return batch_invalid(i, "expected phase prefill or decode", s->phase, err);
    if (s->row0 != *row)
        return err_set(err, STATUS_INVALID, "batch: sequence %d: row0: expected %d, found %d", i,
                       *row, s->row0);
    if (s->n_rows < 1 || s->n_rows > batch->n_rows - *row)
        return err_set(err, STATUS_INVALID,
                       "batch: sequence %d: n_rows: expected 1 to %d, found %d", i,
                       batch->n_rows - *row, s->n_rows);
    if (s->phase == PHASE_DECODE && s->n_rows != 1)
        return batch_invalid(i, "expected one row in decode", s->n_rows, err);
    if (s->pos0 < 0 || s->pos0 > b->plan.max_ctx - s->n_rows)
        return err_set(
            err, STATUS_INVALID,
            "batch: sequence %d: positions: expected inside 0 to %d, found %d and %d rows", i,
            b->plan.max_ctx - 1, s->pos0, s->n_rows);
    if (s->phase == PHASE_PREFILL && s->pos0 % RECUR_CHUNK)
        return batch_invalid(i, "expected prefill to begin at a multiple of 64", s->pos0, err);
    if (s->want != WANT_NOTHING && s->want != WANT_LAST &&
        (s->want != WANT_ALL || s->phase == PHASE_DECODE))
        return batch_invalid(i, "expected no logits, the last row's, or in prefill all rows'",
                             s->want, err);
    *n_logits += s->want == WANT_ALL ? s->n_rows : s->want == WANT_LAST;
    *row += s->n_rows;
    return STATUS_OK;
}

/* Ids, or the step that hands its id on. */
static Status seq_check_ids(const Backend *b, const Batch *batch, int32_t i, Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    if (s->phase == PHASE_DECODE && s->carry != -1) {
        if (s->carry < 0 || s->carry >= b->n_last || !b->had_sampler[s->carry])
            return batch_invalid(
                i, "carry: expected -1 or a sequence of the step before that was sampled", s->carry,
                err);
        return STATUS_OK;
    }
    for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++)
        if (batch->ids[row] < 0 || batch->ids[row] >= b->config.vocab)
            return err_set(err, STATUS_INVALID, "batch: row %d: id: expected 0 to %d, found %d",
                           row, b->config.vocab - 1, batch->ids[row]);
    return STATUS_OK;
}

/* Slot, sampler and block numbers; marks the blocks that the sequence writes. */
static Status seq_check_places(Backend *b, const Batch *batch, int32_t i, Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    if (s->slot < 0 || s->slot >= b->plan.n_slots)
        return batch_invalid(i, "expected a state slot of the plan", s->slot, err);
    if (!stamp_first(b->slot_stamp, s->slot, b->stamp))
        return batch_invalid(i, "expected a state slot of its own", s->slot, err);
    if (s->sampler < -1 || s->sampler >= b->plan.n_samplers)
        return batch_invalid(i, "expected a sampler of the plan or -1", s->sampler, err);
    if (s->sampler >= 0 && !stamp_first(b->sampler_stamp, s->sampler, b->stamp))
        return batch_invalid(i, "expected a sampler of its own", s->sampler, err);
    int32_t n = div_up_i32(s->pos0 + s->n_rows, KV_BLOCK);
    for (int32_t j = 0; j < n; j++) {
        if (s->blocks[j] < 0 || s->blocks[j] >= b->plan.n_blocks)
            return batch_invalid(i, "expected a KV block of the plan", s->blocks[j], err);
        if (j >= s->pos0 / KV_BLOCK && !stamp_first(b->write_stamp, s->blocks[j], b->stamp))
            return batch_invalid(i, "expected a KV block of its own to write", s->blocks[j], err);
    }
    return STATUS_OK;
}

/* Snapshots stand in order inside the prefill, each in a slot of its own. */
static Status seq_check_snaps(Backend *b, const Batch *batch, int32_t i, Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    if (s->n_snaps < 0 || (s->n_snaps > 0 && s->phase != PHASE_PREFILL))
        return batch_invalid(i, "expected snapshots in prefill only", s->n_snaps, err);
    int32_t before = s->pos0;
    for (int32_t j = 0; j < s->n_snaps; j++) {
        const BatchSnap *snap = &s->snaps[j];
        if (snap->pos <= before || snap->pos >= s->pos0 + s->n_rows || snap->pos % RECUR_CHUNK)
            return batch_invalid(i,
                                 "expected snapshots at ascending multiples of 64 inside the step",
                                 snap->pos, err);
        if (snap->slot < 0 || snap->slot >= b->plan.n_slots ||
            !stamp_first(b->slot_stamp, snap->slot, b->stamp))
            return batch_invalid(i, "expected a state slot of its own for a snapshot", snap->slot,
                                 err);
        before = snap->pos;
    }
    return STATUS_OK;
}

/* No block that is read stands among those that the step writes. */
static Status seq_check_reads(const Backend *b, const Batch *batch, int32_t i, Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    for (int32_t j = 0; j < s->pos0 / KV_BLOCK; j++)
        if (b->write_stamp[s->blocks[j]] == b->stamp)
            return batch_invalid(i, "expected KV blocks to read that nobody writes", s->blocks[j],
                                 err);
    return STATUS_OK;
}

/* Whether the batch leaves rows of prompts in the middle of the layers. */
static bool batch_is_half(const Backend *b, const Batch *batch) {
    return batch->layer_end > 0 && batch->layer_end < b->config.n_layers;
}

/* Part i of a prompt, in a step that is not of all layers; *at is where the parts that may go on
 * begin in half. */
static Status seq_check_half(const Backend *b, const Batch *batch, int32_t i, int32_t *at,
                             Err *err) {
    const BatchSeq *s = &batch->seqs[i];
    if (batch_is_half(b, batch) && (s->want != WANT_NOTHING || s->sampler >= 0))
        return batch_invalid(i, "expected no logits in the middle of the layers", s->want, err);
    if (batch->layer0 == 0)
        return STATUS_OK;
    for (; *at < b->n_half; ++*at) {
        const HalfPart *h = &b->half[*at];
        if (h->slot == s->slot && h->pos0 == s->pos0 && h->n_rows == s->n_rows) {
            ++*at;
            return STATUS_OK;
        }
    }
    return batch_invalid(i, "expected rows that the step before left in the middle of the layers",
                         s->pos0, err);
}

/* Which layers the rows of prompts go through. */
static Status batch_check_layers(const Backend *b, const Batch *batch, Err *err) {
    int32_t first = batch->layer0, end = batch->layer_end, all = b->config.n_layers;
    if (first == 0 && (end == 0 || end == all))
        return STATUS_OK;
    if (!b->table->splits_layers || batch->tap)
        return err_set(err, STATUS_INVALID, "batch: layers: expected all, found %d to %d", first,
                       end);
    if (first < 0 || first >= end || end > all || (first > 0 && first != b->half_layer))
        return err_set(err, STATUS_INVALID,
                       "batch: layers: expected to begin at 0 or %d and end at %d at most, found "
                       "%d to %d",
                       b->half_layer, all, first, end);
    int32_t at = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++)
        if (batch->seqs[i].phase == PHASE_PREFILL)
            TRY(seq_check_half(b, batch, i, &at, err));
    return STATUS_OK;
}

/* Remembers what a batch with rows of prompts leaves in the middle of the layers: nothing, where it
 * was not taken. */
static void batch_note_half(Backend *b, const Batch *batch, bool is_taken) {
    int32_t n = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        const BatchSeq *s = &batch->seqs[i];
        if (s->phase == PHASE_PREFILL)
            b->half[n++] = (HalfPart){s->slot, s->pos0, s->n_rows};
    }
    if (n == 0)
        return;
    b->n_half = is_taken && batch_is_half(b, batch) ? n : 0;
    b->half_layer = b->n_half ? batch->layer_end : 0;
}

/* A number that no entry holds yet. */
static void next_stamp(Backend *b) {
    if (++b->stamp != 0)
        return;
    memset(b->slot_stamp, 0, (size_t)b->plan.n_slots * sizeof *b->slot_stamp);
    memset(b->sampler_stamp, 0, (size_t)b->plan.n_samplers * sizeof *b->sampler_stamp);
    memset(b->write_stamp, 0, (size_t)b->plan.n_blocks * sizeof *b->write_stamp);
    b->stamp = 1;
}

static Status batch_check(Backend *b, const Batch *batch, Err *err) {
    if (b->n_unfinished >= BATCH_IN_FLIGHT)
        return err_set(err, STATUS_INVALID, "batch: %d steps are unfinished", b->n_unfinished);
    if (batch->n_seqs < 1 || batch->n_seqs > b->plan.max_seqs)
        return err_set(err, STATUS_INVALID, "batch: sequences: expected 1 to %d, found %d",
                       b->plan.max_seqs, batch->n_seqs);
    if (batch->n_rows < 1 || batch->n_rows > b->plan.max_rows)
        return err_set(err, STATUS_INVALID, "batch: rows: expected 1 to %d, found %d",
                       b->plan.max_rows, batch->n_rows);
    next_stamp(b);
    int32_t row = 0, n_logits = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        TRY(seq_check_rows(b, batch, i, &row, &n_logits, err));
        TRY(seq_check_ids(b, batch, i, err));
        TRY(seq_check_places(b, batch, i, err));
        TRY(seq_check_snaps(b, batch, i, err));
    }
    if (row != batch->n_rows)
        return err_set(err, STATUS_INVALID,
                       "batch: rows: expected %d, those of its sequences, "
                       "found %d",
                       row, batch->n_rows);
    if (n_logits > b->plan.max_logits)
        return err_set(err, STATUS_INVALID,
                       "batch: rows with logits: expected at most %d, found %d", b->plan.max_logits,
                       n_logits);
    for (int32_t i = 0; i < batch->n_seqs; i++)
        TRY(seq_check_reads(b, batch, i, err));
    return batch_check_layers(b, batch, err);
}

Status backend_submit(Backend *b, const Batch *batch, Err *err) {
    TRY(batch_check(b, batch, err));
    b->n_last = 0;
    Status status = b->table->submit(b->self, batch, err);
    batch_note_half(b, batch, status == STATUS_OK);
    TRY(status);
    b->n_last = batch->n_seqs;
    for (int32_t i = 0; i < batch->n_seqs; i++)
        b->had_sampler[i] = batch->seqs[i].sampler >= 0;
    b->n_unfinished++;
    return STATUS_OK;
}

Status backend_wait(Backend *b, BatchResult *results, Err *err) {
    if (b->n_unfinished == 0)
        return err_set(err, STATUS_INVALID, "no step is unfinished");
    b->n_unfinished--;
    return b->table->wait(b->self, results, err);
}

bool backend_splits_layers(const Backend *b) { return b->table->splits_layers; }

/* ---- samplers, slots, blocks ---- */

static Status index_check(const char *what, int32_t i, int32_t n, Err *err) {
    if (i >= 0 && i < n)
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s: expected below %d, found %d", what, n, i);
}

Status backend_sampler_set(Backend *b, int32_t sampler, const SampleParams *params,
                           const int32_t *ids, int32_t n_prompt, int32_t n_generated, Err *err) {
    TRY(index_check("sampler", sampler, b->plan.n_samplers, err));
    return b->table->sampler_set(b->self, sampler, params, ids, n_prompt, n_generated, err);
}

void backend_slot_copy(Backend *b, int32_t to, int32_t from) {
    CHECK(to >= 0 && to < b->plan.n_slots && from >= 0 && from < b->plan.n_slots);
    b->table->slot_copy(b->self, to, from);
}

/* ---- copies to and from host memory ---- */

static Status copy_check(const Backend *b, const BackendCopy *copy, int32_t i, Err *err) {
    const char *what = copy->is_slot ? "state slot" : "KV block";
    int32_t n = copy->is_slot ? b->plan.n_slots : b->plan.n_blocks;
    if (copy->index < 0 || copy->index >= n)
        return err_set(err, STATUS_INVALID, "copy %d: %s: expected 0 to %d, found %d", i, what,
                       n - 1, copy->index);
    if ((copy->to != NULL) + (copy->from != NULL) != 1)
        return err_set(err, STATUS_INVALID,
                       "copy %d: %s %d: expected host memory to save to or to restore from, found "
                       "%s",
                       i, what, copy->index, copy->to ? "both" : "none");
    return STATUS_OK;
}

Status backend_copy_begin(Backend *b, const BackendCopy *copies, int32_t n, uint64_t *ticket,
                          Err *err) {
    if (n < 1)
        return err_set(err, STATUS_INVALID, "copies: expected at least 1, found %d", n);
    for (int32_t i = 0; i < n; i++)
        TRY(copy_check(b, &copies[i], i, err));
    TRY(b->table->copy_begin(b->self, copies, n, err));
    *ticket = ++b->n_lists;
    return STATUS_OK;
}

static Status ticket_check(const Backend *b, uint64_t ticket, Err *err) {
    if (ticket >= 1 && ticket <= b->n_lists)
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "copies: ticket: expected 1 to %llu, found %llu",
                   (unsigned long long)b->n_lists, (unsigned long long)ticket);
}

Status backend_copy_poll(Backend *b, uint64_t ticket, bool *is_finished, Err *err) {
    TRY(ticket_check(b, ticket, err));
    if (b->table->copy_poll)
        return b->table->copy_poll(b->self, ticket, is_finished, err);
    *is_finished = true;
    return STATUS_OK;
}

Status backend_copy_wait(Backend *b, uint64_t ticket, Err *err) {
    TRY(ticket_check(b, ticket, err));
    return b->table->copy_wait ? b->table->copy_wait(b->self, ticket, err) : STATUS_OK;
}

void *backend_host_alloc(Backend *b, size_t bytes) {
    return b->table->host_alloc ? b->table->host_alloc(b->self, bytes) : mem_alloc_aligned(bytes);
}

void backend_host_free(Backend *b, void *p) {
    if (p && b->table->host_free)
        b->table->host_free(b->self, p);
    else
        mem_free(p);
}

uint64_t backend_slot_host_bytes(const Backend *b) { return b->table->slot_host_bytes(b->self); }

uint64_t backend_block_host_bytes(const Backend *b) { return b->table->block_host_bytes(b->self); }

static Status copy_now(Backend *b, BackendCopy copy, Err *err) {
    uint64_t ticket;
    TRY(backend_copy_begin(b, &copy, 1, &ticket, err));
    return backend_copy_wait(b, ticket, err);
}

Status backend_slot_save(Backend *b, int32_t slot, void *host, Err *err) {
    return copy_now(b, (BackendCopy){.is_slot = true, .index = slot, .to = host}, err);
}

Status backend_slot_restore(Backend *b, int32_t slot, const void *host, Err *err) {
    return copy_now(b, (BackendCopy){.is_slot = true, .index = slot, .from = host}, err);
}

Status backend_block_save(Backend *b, int32_t block, void *host, Err *err) {
    return copy_now(b, (BackendCopy){.index = block, .to = host}, err);
}

Status backend_block_restore(Backend *b, int32_t block, const void *host, Err *err) {
    return copy_now(b, (BackendCopy){.index = block, .from = host}, err);
}

Status backend_slot_peek(Backend *b, int32_t slot, int layer, double *s, double *window, Err *err) {
    TRY(index_check("state slot", slot, b->plan.n_slots, err));
    TRY(index_check("layer", layer, b->config.n_layers, err));
    if (b->config.is_attn[layer])
        return err_set(err, STATUS_INVALID, "layer %d has no recurrent state", layer);
    return b->table->slot_peek(b->self, slot, layer, s, window, err);
}

void backend_counters(const Backend *b, BackendCounters *out) {
    *out = (BackendCounters){0};
    if (b->table->counters)
        b->table->counters(b->self, out);
}

/* ---- where the time goes, and what there would be ---- */

const char *backend_stage_name(BackendStageId id) {
    static const char *const names[STAGE_N] = {
        "embedding",     "gdn in", "gdn",        "gdn out",      "attention in", "attention",
        "attention out", "router", "experts up", "experts down", "head",         "sampling"};
    return id >= 0 && id < STAGE_N ? names[id] : "unknown";
}

void backend_profile_set(Backend *b, bool is_on) {
    if (b->table->profile_set)
        b->table->profile_set(b->self, is_on);
}

int backend_profile(const Backend *b, BackendStage *out, int max) {
    return b->table->profile ? b->table->profile(b->self, out, max) : 0;
}

Status backend_meter(Backend *b, BackendMeter *out, size_t bytes, double seconds, Err *err) {
    if (b->n_unfinished)
        return err_set(err, STATUS_INVALID, "meter: %d steps are unfinished", b->n_unfinished);
    if (b->table->meter)
        return b->table->meter(b->self, out, err);
    if (!b->meter_pool)
        TRY(pool_open(&b->meter_pool, b->plan.n_threads, err));
    if (!b->meter)
        TRY(meter_open(&b->meter, b->meter_pool, bytes, err));
    *out = (BackendMeter){.read_gb_s = meter_read_gb_s(b->meter)};
    out->matrix_tflops = meter_matrix_tflops(b->meter_pool, seconds, &out->unit);
    return STATUS_OK;
}
