// SPDX-License-Identifier: Apache-2.0
/* cpu.c - the cpu backend's device: sizes of a plan, opening, slots and blocks.
 *
 * Path:     backend.c calls it through backend_cpu_table; a step goes on in cpu_step.c.
 * Owns:     the maps of weights, KV blocks, state slots and scratch, the pool, the samplers.
 * Thread:   the engine's.
 * Not here: checks of arguments (backend.c), the forward pass (cpu_step.c). */
#include "backend/cpu/cpu.h"

#include "backend/cpu/cpu_features.h"
#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    MAX_ROWS = 1 << 20, // of a step: row times width stays far inside 64 bits
    MORE_LOADERS = 6,   // reads in flight that keep a disk busy
};

/* ---- sizes ---- */

/* Memory that is counted first and handed out on the second walk. */
typedef struct Carver {
    uint8_t *base; // NULL: only count
    size_t used;
} Carver;

static void *carve(Carver *c, size_t n, size_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += round_up_size(n * size, MEM_ALIGN);
    return at;
}

static float *carve_f32(Carver *c, size_t n) { return carve(c, n, sizeof(float)); }
static int32_t *carve_i32(Carver *c, size_t n) { return carve(c, n, sizeof(int32_t)); }

static void carve_member(const Cpu *b, CpuMember *me, Carver *c) {
    size_t hidden = (size_t)b->c.hidden, k = (size_t)b->c.top_k;
    size_t decode = (size_t)b->max_decode;
    size_t heads = (size_t)(b->c.n_q_heads / b->c.n_kv_heads);
    me->x = carve_f32(c, decode * hidden);
    me->in = carve(c, decode, b->in_bytes);
    me->norm = carve_f32(c, ROW_BLOCK * hidden);
    me->topk = carve_i32(c, decode * k);
    me->topk_weight = carve_f32(c, decode * k);
    me->order = carve_i32(c, cpu_moe_list_ints(&b->c, b->max_decode));
    me->gate = carve_f32(c, MATMUL_ROWS * PROMPT_UNITS * EXPERT_UNIT);
    me->up = carve_f32(c, MATMUL_ROWS * PROMPT_UNITS * EXPERT_UNIT);
    me->y = carve(c, MATMUL_ROWS, sizeof *me->y);
    me->px = carve(c, MATMUL_ROWS, sizeof *me->px);
    me->gdn = carve_f32(c, cpu_gdn_scratch_floats(b));
    me->attn_q = carve_f32(c, ATTN_TOKENS * heads * ATTN_HEAD);
    me->attn_o = carve_f32(c, ATTN_TOKENS * heads * ATTN_HEAD);
    me->attn = carve(c, 1, b->k.attn.scratch_bytes((int32_t)heads));
    me->blocks = carve(c, (size_t)div_up_i32(b->plan.max_ctx, KV_BLOCK), sizeof *me->blocks);
    me->blocks_in = carve(c, MATMUL_ROWS, cpu_row_step(b, b->c.hidden / GROUP_INPUTS, 0));
    me->tail = carve_f32(c, MATMUL_ROWS * STRIP_ROWS);
}

static void carve_pass(const Cpu *b, Pass *pass, BatchPhase phase, Carver *c) {
    size_t rows = (size_t)(phase == PHASE_DECODE ? b->max_decode : b->plan.max_rows);
    size_t seqs = (size_t)b->plan.max_seqs;
    pass->phase = phase;
    pass->seqs = carve_i32(c, seqs);
    pass->row0 = carve_i32(c, seqs);
    pass->slots = carve_i32(c, seqs);
    pass->rows = carve(c, rows, sizeof *pass->rows);
    pass->cos_sin = carve_f32(c, rows * ROPE_DIMS);
    pass->wanted = carve_i32(c, rows);
    pass->logits = carve(c, rows, sizeof *pass->logits);
}

/* Bytes of rows of an expert's inner values: prefill's or decode's, whichever are more. */
static size_t act_bytes(const Cpu *b, int32_t inner, size_t row_bytes, size_t prefill_rows,
                        size_t decode_rows) {
    return max_size(prefill_rows * cpu_row_step(b, inner / GROUP_INPUTS, row_bytes),
                    decode_rows * row_bytes);
}

static void carve_shared(const Cpu *b, CpuShared *s, Carver *c) {
    size_t hidden = (size_t)b->c.hidden, k = (size_t)b->c.top_k;
    size_t decode = (size_t)b->max_decode, rows = (size_t)b->plan.max_rows;
    size_t whole_rows = round_up_size(rows, ROW_BLOCK);
    int32_t width = max_i32(b->c.hidden, max_i32(config_gdn_value_dim(&b->c), config_q_dim(&b->c)));
    s->x = carve_f32(c, rows * hidden);
    s->in = carve(c, rows, b->in_bytes);
    s->proj = carve_f32(c, rows * (size_t)b->proj_width);
    s->inner = carve(c, b->k.matmul.block_bytes ? decode : rows, b->inner_bytes);
    s->branch = carve_f32(c, rows * hidden);
    s->router = carve_f32(c, rows * (size_t)b->router_width);
    s->topk = carve_i32(c, rows * k);
    s->topk_weight = carve_f32(c, rows * k);
    s->order = carve_i32(c, cpu_moe_list_ints(&b->c, b->plan.max_rows));
    s->blocks = carve(c, whole_rows, cpu_row_step(b, width / GROUP_INPUTS, 0));
    s->act = carve(c, 1,
                   act_bytes(b, b->c.expert_inner, b->act_bytes,
                             cpu_moe_act_rows(b, b->plan.max_rows), decode * k));
    s->shared_act =
        carve(c, 1, act_bytes(b, b->c.shared_inner, b->shared_act_bytes, whole_rows, decode));
    s->expert_out = carve_f32(c, rows * k * hidden);
    s->shared_out = carve_f32(c, rows * hidden);
    s->rows_done =
        carve(c, (size_t)div_up_i32(b->plan.max_rows, PRODUCT_ROWS), sizeof *s->rows_done);
    s->parts = carve_f32(c, decode * (size_t)b->c.n_q_heads * (size_t)b->n_parts_max * ATTN_PART);
    s->sample_logits = carve_f32(c, (size_t)b->plan.max_seqs * (size_t)b->c.vocab);
}

/* Places everything but weights, KV and slots behind base; returns the size. */
static size_t carve_scratch(Cpu *b, int n_members, uint8_t *base) {
    Carver c = {base, 0};
    CpuMember *members = carve(&c, (size_t)n_members, sizeof *members);
    for (int i = 0; i < n_members; i++) {
        CpuMember counted;
        carve_member(b, members ? &members[i] : &counted, &c);
    }
    carve_pass(b, &b->pass[PHASE_PREFILL], PHASE_PREFILL, &c);
    carve_pass(b, &b->pass[PHASE_DECODE], PHASE_DECODE, &c);
    carve_shared(b, &b->s, &c);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++) {
        b->done[i].results = carve(&c, (size_t)b->plan.max_seqs, sizeof *b->done[i].results);
        b->done[i].logits = carve_f32(&c, (size_t)b->plan.max_logits * (size_t)b->c.vocab);
    }
    b->last_ids = carve_i32(&c, (size_t)b->plan.max_seqs);
    b->samplers = carve(&c, (size_t)b->plan.n_samplers, sizeof *b->samplers);
    b->members = members;
    return c.used;
}

/* Widest stage output of any layer, in whole strips. */
static int32_t stage_width(const Cpu *b,
                           int32_t (*list)(const CpuLayer *, StagePart[STAGE_PARTS])) {
    int32_t width = 0;
    for (int32_t layer = 0; layer < b->c.n_layers; layer++) {
        StagePart parts[STAGE_PARTS];
        int32_t n = list(&b->model.layers[layer], parts);
        width = max_i32(width, parts[n - 1].column + parts[n - 1].w->n_strips * STRIP_ROWS);
    }
    return width;
}

/* Everything about a device that its plan and model decide, before any memory. */
static Status cpu_measure(Cpu *b, const Weights *w, const BackendPlan *plan, Err *err) {
    uint32_t mask;
    if (plan->max_rows > MAX_ROWS)
        return err_set(err, STATUS_TOO_LARGE, "backend cpu: at most %d rows a step, found %d",
                       MAX_ROWS, plan->max_rows);
    TRY(cpu_features_parse_mask(&mask, plan->mask, err));
    cpu_features_choose(&b->k, mask, plan->is_f32_activations);
    b->c = *weights_config(w);
    b->plan = *plan;
    b->plan.mask = NULL;
    TRY(cpu_pack_layout(&b->model, &b->weight_size, w, NULL, err));

    const ModelConfig *c = &b->c;
    b->n_attn = config_n_attn_layers(c);
    b->n_gdn = c->n_layers - b->n_attn;
    b->max_decode = min_i32(plan->max_rows, plan->max_seqs);
    b->n_parts_max =
        min_i32(ATTN_MAX_PARTS, div_up_i32(div_up_i32(plan->max_ctx, KV_BLOCK), ATTN_PART_BLOCKS));
    b->proj_width = stage_width(b, cpu_stage_mixer);
    b->router_width = stage_width(b, cpu_stage_router);
    size_t (*row_bytes)(int32_t) = b->k.matmul.row_bytes;
    b->in_bytes = row_bytes(c->hidden / GROUP_INPUTS);
    b->inner_bytes = row_bytes(max_i32(config_gdn_value_dim(c), config_q_dim(c)) / GROUP_INPUTS);
    b->act_bytes = row_bytes(c->expert_inner / GROUP_INPUTS);
    b->shared_act_bytes = row_bytes(c->shared_inner / GROUP_INPUTS);

    size_t element = plan->is_f32_activations ? sizeof(float) : sizeof(uint16_t);
    b->kv_head_bytes = 2 * KV_ELEMENTS * element;
    b->kv_layer_bytes = b->kv_head_bytes * (size_t)c->n_kv_heads;
    b->block_bytes = b->kv_layer_bytes * (size_t)b->n_attn;
    b->kv_size = b->block_bytes * (size_t)plan->n_blocks;
    b->window_bytes = (CONV_TAPS - 1) * (size_t)config_conv_dim(c) * sizeof(float);
    b->slot_layer_bytes = round_up_size(
        sizeof(float) * STATE_ELEMENTS * (size_t)c->n_gdn_value_heads + b->window_bytes, MEM_ALIGN);
    b->slot_bytes = b->slot_layer_bytes * (size_t)b->n_gdn;
    b->slot_size = b->slot_bytes * (size_t)plan->n_slots;
    for (int j = 0; j < ROPE_DIMS / 2; j++)
        b->rope_freq[j] = pow(c->rope_theta, -2.0 * j / ROPE_DIMS);
    return STATUS_OK;
}

static int plan_n_members(const BackendPlan *plan) {
    return plan->n_threads ? plan->n_threads : pool_n_cpus();
}

static Status cpu_needs(BackendNeeds *out, const Weights *w, const BackendPlan *plan, Err *err) {
    Cpu *b = mem_zalloc(1, sizeof *b); // too large for a stack
    if (!b)
        return err_memory(err, "plan", sizeof *b);
    Status status = cpu_measure(b, w, plan, err);
    if (status == STATUS_OK)
        *out = (BackendNeeds){.weight_bytes = b->weight_size,
                              .block_bytes = b->block_bytes,
                              .slot_bytes = b->slot_bytes,
                              .sampler_bytes = sampler_bytes(b->c.vocab),
                              .scratch_bytes =
                                  sizeof *b + carve_scratch(b, plan_n_members(plan), NULL)};
    mem_free(b);
    return status;
}

/* ---- open and close ---- */

static void cpu_close(void *self) {
    Cpu *b = self;
    if (!b)
        return;
    for (int32_t i = 0; b->scratch_map && i < b->plan.n_samplers; i++)
        sampler_close(b->samplers[i]);
    pool_close(b->pool);
    mem_unmap(b->weight_map, b->weight_size);
    mem_unmap(b->kv_map, b->kv_size);
    mem_unmap(b->slot_map, b->slot_size);
    mem_unmap(b->scratch_map, b->scratch_size);
    mem_free(b);
}

/* A map that may be empty (a model without attention layers has no KV). */
static Status map_bytes(uint8_t **out, size_t size, const char *what, Err *err) {
    *out = size ? mem_map(size) : NULL;
    return size && !*out ? err_memory(err, what, size) : STATUS_OK;
}

static Status cpu_map(Cpu *b, const Weights *w, Err *err) {
    size_t size;
    b->scratch_size = carve_scratch(b, pool_n_members(b->pool), NULL);
    TRY(map_bytes(&b->scratch_map, b->scratch_size, "scratch", err));
    carve_scratch(b, pool_n_members(b->pool), b->scratch_map);
    TRY(map_bytes(&b->weight_map, b->weight_size, "weights", err));
    TRY(cpu_pack_layout(&b->model, &size, w, b->weight_map, err));
    TRY(map_bytes(&b->kv_map, b->kv_size, "KV blocks", err));
    TRY(map_bytes(&b->slot_map, b->slot_size, "state slots", err));
    for (int32_t i = 0; i < b->plan.n_samplers; i++)
        TRY(sampler_open(&b->samplers[i], b->c.vocab, err));
    return STATUS_OK;
}

/* Packs on threads of its own, more than there are CPUs: some wait for the disk, others pack. Where
 * the system grants no more threads or memory the backend's own do. */
static Status cpu_load(Cpu *b, const Weights *w, const Progress *progress, Err *err) {
    Pool *more = NULL;
    int n = min_i32(pool_n_members(b->pool) + MORE_LOADERS, LIMIT_THREADS);
    if (pool_open(&more, n, NULL) != STATUS_OK)
        more = NULL;
    Status status = cpu_pack_model(&b->model, w, more ? more : b->pool, progress, err);
    pool_close(more);
    return status;
}

static Status cpu_open(void **self, const Weights *w, const BackendPlan *plan,
                       const Progress *progress, const Log *log, Err *err) {
    UNUSED(log);
    Status status;
    Cpu *b = mem_zalloc(1, sizeof *b);
    if (!b)
        return err_memory(err, "backend cpu", sizeof *b);
    TRY_GOTO(status, cpu_measure(b, w, plan, err));
    TRY_GOTO(status, pool_open(&b->pool, plan->n_threads, err));
    TRY_GOTO(status, cpu_map(b, w, err));
    TRY_GOTO(status, cpu_load(b, w, progress, err));
    int n = pool_n_members(b->pool);
    snprintf(b->text, sizeof b->text, "cpu: %d thread%s, matmul %s, attn %s, recur %s, elem %s%s%s",
             n, n == 1 ? "" : "s", b->k.matmul.column, b->k.attn.column, b->k.recur.column,
             b->k.elem.column, plan->is_f32_activations ? ", f32 cache" : "",
             cpu_features_amx_note());
    *self = b;
    return STATUS_OK;
fail:
    cpu_close(b);
    return status;
}

static const char *cpu_text(const void *self) { return ((const Cpu *)self)->text; }

/* ---- steps ---- */

static Status cpu_submit(void *self, const Batch *batch, Err *err) {
    Cpu *b = self;
    TRY(cpu_step_run(b, batch, &b->done[b->n_submitted % BATCH_IN_FLIGHT], err));
    b->n_submitted++;
    return STATUS_OK;
}

static Status cpu_wait(void *self, BatchResult *results, Err *err) {
    UNUSED(err);
    Cpu *b = self;
    const CpuDone *done = &b->done[b->n_waited++ % BATCH_IN_FLIGHT];
    memcpy(results, done->results, sizeof *results * (size_t)done->n_seqs);
    return STATUS_OK;
}

static Status cpu_sampler_set(void *self, int32_t sampler, const SampleParams *params,
                              const int32_t *ids, int32_t n_prompt, int32_t n_generated, Err *err) {
    Cpu *b = self;
    return sampler_set(b->samplers[sampler], params, ids, n_prompt, n_generated, err);
}

/* ---- slots and blocks ---- */

static uint8_t *slot_at(const Cpu *b, int32_t slot) {
    return b->slot_map + (size_t)slot * b->slot_bytes;
}

static uint8_t *block_at(const Cpu *b, int32_t block) {
    return b->kv_map + (size_t)block * b->block_bytes;
}

static void cpu_slot_copy(void *self, int32_t to, int32_t from) {
    Cpu *b = self;
    if (to != from && b->slot_bytes)
        memcpy(slot_at(b, to), slot_at(b, from), b->slot_bytes);
}

static Status cpu_copy_begin(void *self, const BackendCopy *copies, int32_t n, Err *err) {
    UNUSED(err);
    Cpu *b = self;
    for (const BackendCopy *copy = copies; copy < copies + n; copy++) {
        void *at = copy->is_slot ? slot_at(b, copy->index) : block_at(b, copy->index);
        size_t bytes = copy->is_slot ? b->slot_bytes : b->block_bytes;
        if (bytes) // a model without such layers has no map
            memcpy(copy->to ? copy->to : at, copy->to ? at : copy->from, bytes);
    }
    return STATUS_OK;
}

static uint64_t cpu_slot_host_bytes(const void *self) { return ((const Cpu *)self)->slot_bytes; }

static uint64_t cpu_block_host_bytes(const void *self) { return ((const Cpu *)self)->block_bytes; }

static Status cpu_slot_peek(void *self, int32_t slot, int layer, double *s, double *window,
                            Err *err) {
    UNUSED(err);
    Cpu *b = self;
    const CpuLayer *l = &b->model.layers[layer];
    const float *state = cpu_state(b, l, slot), *rows = cpu_window(b, l, slot);
    size_t n_state = (size_t)b->c.n_gdn_value_heads * STATE_ELEMENTS;
    size_t n_window = (CONV_TAPS - 1) * (size_t)config_conv_dim(&b->c);
    for (size_t i = 0; i < n_state; i++)
        s[i] = (double)state[i];
    for (size_t i = 0; i < n_window; i++)
        window[i] = (double)rows[i];
    return STATUS_OK;
}

static bool cpu_is_available(char *text, size_t size) {
    KernelTable k;
    cpu_features_choose(&k, 0, false);
    snprintf(text, size, "%d CPUs, matmul %s, attn %s, recur %s, elem %s%s", pool_n_cpus(),
             k.matmul.column, k.attn.column, k.recur.column, k.elem.column,
             cpu_features_amx_note());
    return true;
}

static void cpu_counters(const void *self, BackendCounters *out) {
    const Cpu *b = self;
    *out = (BackendCounters){b->n_expert_reads, b->prompt_ns};
}

static void cpu_profile_set(void *self, bool is_on) {
    ((Cpu *)self)->profile = (CpuProfile){.is_on = is_on};
}

static int cpu_profile(const void *self, BackendStage *out, int max) {
    const CpuProfile *p = &((const Cpu *)self)->profile;
    int n = 0;
    for (int phase = 0; phase < 2; phase++)
        for (int id = 0; id < STAGE_N; id++) {
            if (p->n_runs[phase][id] == 0)
                continue;
            if (n < max)
                out[n] = (BackendStage){.phase = (BatchPhase)phase,
                                        .id = (BackendStageId)id,
                                        .seconds = (double)p->ns[phase][id] * 1e-9,
                                        .n_runs = p->n_runs[phase][id]};
            n++;
        }
    return n;
}

const BackendTable backend_cpu_table = {
    .kind = BACKEND_CPU,
    .splits_layers = true,
    .is_available = cpu_is_available,
    .needs = cpu_needs,
    .open = cpu_open,
    .close = cpu_close,
    .text = cpu_text,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .sampler_set = cpu_sampler_set,
    .slot_copy = cpu_slot_copy,
    .copy_begin = cpu_copy_begin,
    .slot_host_bytes = cpu_slot_host_bytes,
    .block_host_bytes = cpu_block_host_bytes,
    .slot_peek = cpu_slot_peek,
    .counters = cpu_counters,
    .profile_set = cpu_profile_set,
    .profile = cpu_profile,
};
