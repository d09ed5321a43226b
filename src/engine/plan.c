// SPDX-License-Identifier: Apache-2.0
/* plan.c - one memory budget over weights, KV blocks, state slots and scratch.
 *
 * Path:     engine_open and `lily inspect` call engine_plan.
 * Owns:     nothing.  Thread: any. */
#include "engine/plan.h"

#include "base/checked.h"

enum {
    PLAN_CTX_DEFAULT = 32768, // tokens: 640 MiB of KV at the full shape
    PLAN_SEQS_DEFAULT = 8,
    PLAN_CHUNK_LEAST = 1024,  // rows that the default is not made less than for want of memory
    PLAN_MIXED_DEFAULT = 256, // rows: about as long as three decode steps on a CPU
    PLAN_MIXED_CARD = 512,    // which it reads in hardly more time than 256
    PLAN_SEQS_MAX = 1024,
    PLAN_CACHE_MAX = 1 << 16,
};

BackendPlan engine_backend_plan(const EnginePlan *plan, const EngineOptions *options) {
    return (BackendPlan){
        .max_rows = plan->chunk_tok + plan->max_seqs,
        .max_seqs = plan->max_seqs,
        .n_blocks = plan->ctx_tok / KV_BLOCK,
        .n_slots = plan->max_seqs + plan->cache_slots,

        .n_samplers = plan->max_seqs,
        .max_ctx = plan->limit_tok,
        .max_logits = 1,

        .n_threads = options->n_threads,
        .device = options->device,
        .mask = options->mask,
        .is_f32_activations = options->is_f32_activations,
    };
}

/* The needs of a plan with ctx_tok tokens of KV and prefill in pieces of chunk rows. */
static Status plan_try(EnginePlan *plan, int32_t ctx_tok, int32_t chunk, const Weights *w,
                       const EngineOptions *options, Err *err) {
    plan->ctx_tok = (int32_t)round_up_size((size_t)ctx_tok, KV_BLOCK);
    plan->limit_tok = min_i32(plan->ctx_tok, weights_config(w)->max_positions);
    chunk = min_i32(chunk, ctx_tok); // no step can have more rows: scratch for them would be lost
    plan->chunk_tok = (int32_t)round_up_size((size_t)chunk, RECUR_CHUNK);
    int32_t usual = options->kind == BACKEND_CUDA ? PLAN_MIXED_CARD : PLAN_MIXED_DEFAULT;
    int32_t mixed = options->mixed_tok ? options->mixed_tok : usual;
    plan->mixed_tok = min_i32((int32_t)round_up_size((size_t)mixed, RECUR_CHUNK), plan->chunk_tok);
    BackendPlan backend = engine_backend_plan(plan, options);
    return backend_needs(&plan->needs, options->kind, w, &backend, err);
}

BackendKind engine_backend_kind(const Weights *w, const EngineOptions *options, const Log *log) {
    BackendPlan plan = {.device = options->device,
                        .n_threads = options->n_threads,
                        .mask = options->mask,
                        .is_f32_activations = options->is_f32_activations};
    return backend_kind_for(options->kind, w, &plan, log);
}

Status engine_plan(EnginePlan *out, const Weights *w, const EngineOptions *given, Err *err) {
    const ModelConfig *c = weights_config(w);
    EngineOptions settled = *given;
    const EngineOptions *options = &settled;
    settled.kind = engine_backend_kind(w, given, NULL);
    if (options->ctx_tok < 0 || options->ctx_tok > LIMIT_CONTEXT)
        return err_set(err, STATUS_INVALID, "context: expected 1 to %d tokens, found %d",
                       LIMIT_CONTEXT, options->ctx_tok);
    if (options->max_seqs < 0 || options->max_seqs > PLAN_SEQS_MAX)
        return err_set(err, STATUS_INVALID, "sequences: expected 1 to %d, found %d", PLAN_SEQS_MAX,
                       options->max_seqs);
    if (options->chunk_tok < 0 || options->chunk_tok > LIMIT_CONTEXT)
        return err_set(err, STATUS_INVALID, "prefill chunk: expected 1 to %d tokens, found %d",
                       LIMIT_CONTEXT, options->chunk_tok);
    if (options->mixed_tok < 0 || options->mixed_tok > LIMIT_CONTEXT)
        return err_set(err, STATUS_INVALID, "prefill beside decodes: expected 1 to %d, found %d",
                       LIMIT_CONTEXT, options->mixed_tok);
    if (options->mixed_ms < 0)
        return err_set(err, STATUS_INVALID, "wait for prompts: expected 0 or more ms, found %d",
                       options->mixed_ms);
    if (options->cache_slots < 0 || options->cache_slots > PLAN_CACHE_MAX)
        return err_set(err, STATUS_INVALID, "cache snapshots: expected 0 to %d, found %d",
                       PLAN_CACHE_MAX, options->cache_slots);
    EnginePlan plan = {
        .cache_slots = options->cache_slots,
        .mixed_ms = options->mixed_ms,
        .max_seqs = options->max_seqs ? options->max_seqs : PLAN_SEQS_DEFAULT,
        .budget_bytes = options->budget_bytes ? options->budget_bytes
                                              : backend_memory_free(options->kind, options->device),
    };
    // As much as all sequences together can use.
    int64_t use = (int64_t)c->max_positions * plan.max_seqs;
    int32_t ctx = use < PLAN_CTX_DEFAULT ? (int32_t)use : PLAN_CTX_DEFAULT;
    ctx = options->ctx_tok ? options->ctx_tok : ctx;
    int32_t chunk = options->chunk_tok ? options->chunk_tok : backend_chunk_rows(options->kind);
    TRY(plan_try(&plan, ctx, chunk, w, options, err));
    // What the user did not name gives way: first the rows of a step, which are speed alone, then
    // the context, of which a smaller one is better than none.
    while (plan.budget_bytes && plan.needs.total_bytes > plan.budget_bytes) {
        if (!options->chunk_tok && plan.chunk_tok / 2 >= PLAN_CHUNK_LEAST)
            chunk = plan.chunk_tok / 2;
        else if (!options->ctx_tok && ctx > KV_BLOCK)
            ctx /= 2;
        else
            break;
        TRY(plan_try(&plan, ctx, chunk, w, options, err));
    }
    if (plan.budget_bytes && plan.needs.total_bytes > plan.budget_bytes)
        return err_set(err, STATUS_MEMORY,
                       "the plan needs %.2f GB (weights %.2f, KV for %d tokens %.2f, states %.2f, "
                       "scratch %.2f), there are %.2f GB",
                       (double)plan.needs.total_bytes * 1e-9,
                       (double)plan.needs.weight_bytes * 1e-9, plan.ctx_tok,
                       (double)plan.needs.block_bytes * plan.ctx_tok / KV_BLOCK * 1e-9,
                       (double)plan.needs.slot_bytes * (plan.max_seqs + plan.cache_slots) * 1e-9,
                       (double)plan.needs.scratch_bytes * 1e-9, (double)plan.budget_bytes * 1e-9);
    *out = plan;
    return STATUS_OK;
}
