// SPDX-License-Identifier: Apache-2.0
/* bench_run.c - sequences for `bench`.
 *
 * Owns:     see bench_run.h.  Thread: main. */
#include "cli/bench_run.h"

#include "base/checked.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/ui.h"

#include <assert.h>

enum { FILL_TOKENS = 512, WARM_STEPS = 2 };

static BackendPlan run_plan(const BenchRunPlan *p, const CliArgs *args) {
    int32_t seq_blocks = div_up_i32(p->n_positions, KV_BLOCK);
    return (BackendPlan){.max_rows = max_i32(p->chunk, p->n_seqs),
                         .max_seqs = p->n_seqs,
                         .n_blocks = seq_blocks * p->n_seqs,
                         .n_slots = p->n_seqs,
                         .n_samplers = p->n_seqs,
                         .max_ctx = seq_blocks * KV_BLOCK,
                         .max_logits = 1,
                         .n_threads = (int32_t)args->threads,
                         .device = (int32_t)args->device,
                         .mask = args->mask,
                         .is_f32_activations = args->is_f32};
}

Status bench_run_needs(BackendNeeds *out, const BenchRunPlan *plan, const CliArgs *args,
                       const Weights *w, Err *err) {
    BackendPlan p = run_plan(plan, args);
    return backend_needs(out, plan->kind, w, &p, err);
}

static Status run_allocate(BenchRun *r, Err *err) {
    size_t seqs = (size_t)r->plan.n_seqs, n_ids = seqs * (size_t)r->plan.n_positions;
    size_t n_blocks = seqs * (size_t)r->seq_blocks;
    r->blocks = mem_zalloc(n_blocks, sizeof *r->blocks);
    r->ids = mem_zalloc(n_ids, sizeof *r->ids);
    r->next = mem_zalloc(seqs, sizeof *r->next);
    r->parts = mem_zalloc(BATCH_IN_FLIGHT * seqs, sizeof *r->parts);
    r->results = mem_zalloc(seqs, sizeof *r->results);
    if (!r->blocks || !r->ids || !r->next || !r->parts || !r->results)
        return err_memory(err, "prompts", n_ids * sizeof *r->ids);
    for (size_t i = 0; i < n_blocks; i++)
        r->blocks[i] = (int32_t)i;
    for (size_t s = 0; s < seqs; s++)
        for (size_t i = 0; i < (size_t)r->plan.n_positions; i++)
            r->ids[s * (size_t)r->plan.n_positions + i] =
                (int32_t)(rng_u64(r->plan.seed + s + 1, i) % (uint64_t)r->config->vocab);
    return STATUS_OK;
}

Status bench_run_open(BenchRun *out, const BenchRunPlan *plan, const CliArgs *args,
                      const Weights *w, Err *err) {
    BenchRun r = {.plan = *plan,
                  .config = weights_config(w),
                  .seq_blocks = div_up_i32(plan->n_positions, KV_BLOCK)};
    BackendPlan p = run_plan(plan, args);
    Status status;
    TRY_GOTO(status, backend_needs(&r.needs, plan->kind, w, &p, err));
    TRY_GOTO(status, run_allocate(&r, err));
    TRY_GOTO(status, backend_open(&r.backend, plan->kind, w, &p, &UI_PROGRESS, &UI_LOG, err));
    *out = r;
    return STATUS_OK;
fail:
    bench_run_close(&r);
    return status;
}

void bench_run_close(BenchRun *r) {
    backend_close(r->backend);
    mem_free(r->blocks);
    mem_free(r->ids);
    mem_free(r->next);
    mem_free(r->parts);
    mem_free(r->results);
    *r = (BenchRun){0};
}

/* The oldest step's results; every row of its n sequences must be finite. */
static Status run_wait(BenchRun *r, int32_t n, Err *err) {
    TRY(backend_wait(r->backend, r->results, err));
    for (int32_t i = 0; i < n; i++)
        if (r->results[i].bad_layer >= 0)
            return err_set(err, STATUS_NUMERIC, "NaN or infinity behind layer %d at position %d",
                           r->results[i].bad_layer, r->results[i].bad_pos);
    return STATUS_OK;
}

static BatchSeq run_part(const BenchRun *r, BatchPhase phase, int32_t seq, int32_t pos,
                         int32_t n_rows) {
    return (BatchSeq){.phase = phase,
                      .n_rows = n_rows,
                      .pos0 = pos,
                      .slot = seq,
                      .blocks = r->blocks + (size_t)seq * (size_t)r->seq_blocks,
                      .sampler = -1,
                      .carry = -1};
}

static const int32_t *run_prompt(const BenchRun *r, int32_t seq) {
    return r->ids + (size_t)seq * (size_t)r->plan.n_positions;
}

/* Tokens [pos, end) of one prompt in pieces, two of them under way at a time; the last one chooses
 * the sequence's next id. */
static Status run_pieces(BenchRun *r, int32_t seq, int32_t pos, int32_t end, Err *err) {
    for (int32_t i = 0; pos < end; i++) {
        int32_t rows = min_i32(r->plan.chunk, end - pos);
        BatchSeq *part = r->parts + i % BATCH_IN_FLIGHT;
        *part = run_part(r, PHASE_PREFILL, seq, pos, rows);
        part->sampler = pos + rows == end ? seq : -1;
        Batch batch = {.n_seqs = 1, .seqs = part, .n_rows = rows, .ids = run_prompt(r, seq) + pos};
        TRY(backend_submit(r->backend, &batch, err));
        if (i > 0)
            TRY(run_wait(r, 1, err));
        pos += rows;
    }
    TRY(run_wait(r, 1, err));
    r->next[seq] = max_i32(r->results[0].sample.id, 0);
    return STATUS_OK;
}

static Status run_prefill_seq(BenchRun *r, int32_t seq, int32_t n, Err *err) {
    SampleParams greedy = {0};
    TRY(backend_sampler_set(r->backend, seq, &greedy, NULL, 0, 0, err));
    return run_pieces(r, seq, 0, n, err);
}

Status bench_run_prefill(BenchRun *r, int32_t n, Err *err) {
    for (int32_t seq = 0; seq < r->plan.n_seqs; seq++)
        TRY(run_prefill_seq(r, seq, n, err));
    return STATUS_OK;
}

bool bench_run_can_fill(int32_t n) { return n > 2 * KV_BLOCK; }

/* Copies one of the first n_real blocks of a sequence into each of the others up to n_blocks. */
static Status run_fill_blocks(BenchRun *r, int32_t seq, int32_t n_real, int32_t n_blocks,
                              uint8_t *host, Err *err) {
    const int32_t *blocks = r->blocks + (size_t)seq * (size_t)r->seq_blocks;
    uint64_t bytes = backend_block_host_bytes(r->backend);
    for (int32_t i = 0; i < n_real; i++)
        TRY(backend_block_save(r->backend, blocks[i], host + (uint64_t)i * bytes, err));
    for (int32_t i = n_real; i < n_blocks; i++) {
        uint64_t from = rng_u64(r->plan.seed + (uint64_t)seq, (uint64_t)i) % (uint64_t)n_real;
        TRY(backend_block_restore(r->backend, blocks[i], host + from * bytes, err));
    }
    return STATUS_OK;
}

Status bench_run_fill(BenchRun *r, int32_t n, Err *err) {
    int32_t real = min_i32(FILL_TOKENS, n / 2 / KV_BLOCK * KV_BLOCK);
    size_t bytes = (size_t)backend_block_host_bytes(r->backend) * (size_t)(real / KV_BLOCK);
    uint8_t *host = mem_alloc(bytes);
    if (!host)
        return err_memory(err, "blocks to copy", bytes);
    Status status = STATUS_OK;
    for (int32_t seq = 0; seq < r->plan.n_seqs && status == STATUS_OK; seq++) {
        status = run_prefill_seq(r, seq, real, err);
        if (status == STATUS_OK)
            status = run_fill_blocks(r, seq, real / KV_BLOCK, div_up_i32(n, KV_BLOCK), host, err);
    }
    mem_free(host);
    return status;
}

Status bench_run_decode(BenchRun *r, int32_t pos, int32_t n_steps, int32_t *made, int32_t ld,
                        Err *err) {
    int32_t n = r->plan.n_seqs;
    for (int32_t i = 0; i < n; i++)
        made[(size_t)i * (size_t)ld] = r->next[i];
    for (int32_t step = 0; step <= n_steps; step++) {
        if (step < n_steps) {
            BatchSeq *parts = r->parts + (size_t)(step % BATCH_IN_FLIGHT) * (size_t)n;
            for (int32_t i = 0; i < n; i++) {
                parts[i] = run_part(r, PHASE_DECODE, i, pos + step, 1);
                parts[i].row0 = parts[i].sampler = i;
                parts[i].carry = step ? i : -1;
            }
            Batch batch = {.n_seqs = n, .seqs = parts, .n_rows = n, .ids = r->next};
            TRY(backend_submit(r->backend, &batch, err));
        }
        if (step == 0)
            continue;
        TRY(run_wait(r, n, err)); // step - 1
        for (int32_t i = 0; step < n_steps && i < n; i++)
            made[(size_t)i * (size_t)ld + (size_t)step] = r->results[i].sample.id;
    }
    for (int32_t i = 0; i < n; i++)
        r->next[i] = max_i32(r->results[i].sample.id, 0);
    return STATUS_OK;
}

Status bench_run_warm(BenchRun *r, int32_t n, bool is_filled, Err *err) {
    int32_t chunk = r->plan.chunk, last = (n - 1) / chunk * chunk, made[2 * BENCH_MAX_BATCH];
    int32_t n_steps = min_i32(WARM_STEPS, r->plan.n_positions - n);
    static_assert(WARM_STEPS <= 2, "made holds them");
    for (int32_t seq = 0; seq < r->plan.n_seqs; seq++) {
        if (is_filled) {
            TRY(run_prefill_seq(r, seq, min_i32(n, KV_BLOCK), err));
            continue;
        }
        TRY(run_prefill_seq(r, seq, min_i32(n, chunk), err));
        if (last)
            TRY(run_pieces(r, seq, last, n, err));
    }
    return n_steps > 0 ? bench_run_decode(r, n, n_steps, made, n_steps, err) : STATUS_OK;
}
