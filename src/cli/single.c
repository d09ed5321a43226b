// SPDX-License-Identifier: Apache-2.0
/* single.c - one sequence on a backend.
 *
 * Owns:     the Backend and its block table.  Thread: main. */
#include "cli/single.h"

#include "base/checked.h"
#include "base/mem.h"
#include "cli/model.h"
#include "cli/ui.h"

Status single_open(Single *out, const CliArgs *args, const Weights *w, int32_t n_positions,
                   int32_t chunk, int32_t max_logits, Err *err) {
    const ModelConfig *c = weights_config(w);
    if (n_positions > c->max_positions)
        return err_set(err, STATUS_CONTEXT,
                       "%d positions are asked for, the model's context holds %d", n_positions,
                       c->max_positions);
    BackendKind kind;
    TRY(model_backend_for(&kind, args, w, err));
    Single s = {.config = c, .chunk = (int32_t)round_up_size((size_t)chunk, RECUR_CHUNK)};
    int32_t n_blocks = div_up_i32(max_i32(n_positions, 1), KV_BLOCK);
    BackendPlan plan = {.max_rows = s.chunk,
                        .max_seqs = 1,
                        .n_blocks = n_blocks,
                        .n_slots = 1,
                        .n_samplers = 1,
                        .max_ctx = n_blocks * KV_BLOCK,
                        .max_logits = min_i32(max_logits, s.chunk),
                        .n_threads = (int32_t)args->threads,
                        .device = (int32_t)args->device,
                        .mask = args->mask,
                        .is_f32_activations = args->is_f32};
    TRY(backend_needs(&s.needs, kind, w, &plan, err));
    s.blocks = mem_zalloc((size_t)n_blocks, sizeof *s.blocks);
    if (!s.blocks)
        return err_memory(err, "block table", (size_t)n_blocks * sizeof *s.blocks);
    for (int32_t i = 0; i < n_blocks; i++)
        s.blocks[i] = i;
    Status status = backend_open(&s.backend, kind, w, &plan, &UI_PROGRESS, &UI_LOG, err);
    if (status != STATUS_OK) {
        mem_free(s.blocks);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

void single_close(Single *s) {
    backend_close(s->backend);
    mem_free(s->blocks);
    *s = (Single){0};
}

Status single_step(Single *s, BatchPhase phase, const int32_t *ids, int32_t n_rows, BatchWant want,
                   bool is_sampled, const BatchTap *tap, BatchResult *result, Err *err) {
    BatchSeq seq = {.phase = phase,
                    .n_rows = n_rows,
                    .pos0 = s->pos,
                    .blocks = s->blocks,
                    .want = want,
                    .sampler = is_sampled ? 0 : -1,
                    .carry = -1};
    Batch batch = {.n_seqs = 1, .seqs = &seq, .n_rows = n_rows, .ids = ids, .tap = tap};
    TRY(backend_submit(s->backend, &batch, err));
    TRY(backend_wait(s->backend, result, err));
    s->pos += n_rows;
    if (result->bad_layer >= s->config->n_layers)
        return err_set(err, STATUS_NUMERIC, "NaN or infinity in the logits at position %d",
                       result->bad_pos);
    if (result->bad_layer >= 0)
        return err_set(err, STATUS_NUMERIC, "NaN or infinity after layer %d at position %d",
                       result->bad_layer, result->bad_pos);
    return STATUS_OK;
}

Status single_prefill(Single *s, const int32_t *ids, int32_t n, BatchWant want, bool is_sampled,
                      BatchResult *result, Err *err) {
    s->pos = 0;
    while (s->pos < n) {
        int32_t rows = min_i32(s->chunk, n - s->pos);
        bool is_end = s->pos + rows == n;
        TRY(single_step(s, PHASE_PREFILL, ids + s->pos, rows, is_end ? want : WANT_NOTHING,
                        is_sampled && is_end, NULL, result, err));
    }
    return STATUS_OK;
}

Status single_check_ids(const ModelConfig *c, const int32_t *ids, int32_t n, Err *err) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->vocab)
            return err_set(err, STATUS_INVALID, "token %d: expected 0 to %d, found %d", i,
                           c->vocab - 1, ids[i]);
    return STATUS_OK;
}
