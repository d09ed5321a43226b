// SPDX-License-Identifier: Apache-2.0
/* cpu_step.c - one submitted batch: its rows by phase, their way through the layers, the output
 * head, the sampled ids.
 *
 * Path:     cpu.c -> cpu_step_run -> cpu_decode.c, cpu_prefill.c -> pass_head.
 * Owns:     nothing.  Thread: the engine's.
 * Not here: waiting and slots (cpu.c). */
#include "backend/cpu/cpu.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- rows ---- */

static int32_t row_id(const Cpu *b, const BatchSeq *seq, int32_t row) {
    if (seq->phase == PHASE_DECODE && seq->carry >= 0)
        return max_i32(b->last_ids[seq->carry], 0); // -1: nothing could be sampled
    return b->batch->ids[seq->row0 + row];
}

/* Whether rows of this sequence have gone through layers in an earlier step. */
static bool seq_goes_on(const Cpu *b, const BatchSeq *seq) {
    return seq->phase == PHASE_PREFILL && b->batch->layer0 > 0;
}

/* Moves the rows of a sequence that goes on to the end of the pass, over those that do not; *at is
 * how far the sequences of the step before have been looked at. */
static void pass_keep_rows(Cpu *b, Pass *pass, const BatchSeq *seq, int32_t *at) {
    size_t hidden = (size_t)b->c.hidden;
    while (pass->slots[*at] != seq->slot)
        ++*at;
    int32_t from = pass->row0[(*at)++], to = pass->n_rows; // to <= from
    if (from == to)
        return;
    memmove(b->s.x + (size_t)to * hidden, b->s.x + (size_t)from * hidden,
            sizeof *b->s.x * (size_t)seq->n_rows * hidden);
    memmove(pass->cos_sin + (size_t)to * ROPE_DIMS, pass->cos_sin + (size_t)from * ROPE_DIMS,
            sizeof *pass->cos_sin * (size_t)seq->n_rows * ROPE_DIMS);
    memmove(pass->rows + to, pass->rows + from, sizeof *pass->rows * (size_t)seq->n_rows);
}

void cpu_row_rope(const Cpu *b, const Pass *pass, int32_t row) {
    float *cos_sin = pass->cos_sin + (size_t)row * ROPE_DIMS;
    for (int j = 0; j < ROPE_DIMS / 2; j++) {
        double angle = pass->rows[row].pos * b->rope_freq[j];
        cos_sin[j] = (float)cos(angle);
        cos_sin[ROPE_DIMS / 2 + j] = (float)sin(angle);
    }
}

/* Adds a sequence to the pass of its phase; at: see pass_keep_rows. */
static void pass_add_seq(Cpu *b, Pass *pass, int32_t seq_number, int32_t *at) {
    const BatchSeq *seq = &b->batch->seqs[seq_number];
    bool goes_on = seq_goes_on(b, seq);
    if (goes_on)
        pass_keep_rows(b, pass, seq, at);
    pass->seqs[pass->n_seqs] = seq_number;
    pass->slots[pass->n_seqs] = seq->slot;
    pass->row0[pass->n_seqs++] = pass->n_rows;
    for (int32_t i = 0; i < seq->n_rows; i++) {
        PassRow *row = &pass->rows[pass->n_rows];
        *row = (PassRow){.seq = seq_number,
                         .pos = seq->pos0 + i,
                         .id = row_id(b, seq, i),
                         .bad_layer = goes_on ? row->bad_layer : -1};
        if (seq->phase == PHASE_DECODE) // prompts: with the embedding
            cpu_row_rope(b, pass, pass->n_rows);
        pass->n_rows++;
    }
}

/* Fills both passes from the batch and says where the wanted logits go. */
static void step_begin(Cpu *b, CpuDone *done) {
    size_t vocab = (size_t)b->c.vocab;
    float *logits = done->logits;
    int32_t at = 0;
    for (int p = 0; p < 2; p++)
        b->pass[p].n_seqs = b->pass[p].n_rows = b->pass[p].n_wanted = 0;
    for (int32_t i = 0; i < b->batch->n_seqs; i++) {
        const BatchSeq *seq = &b->batch->seqs[i];
        Pass *pass = &b->pass[seq->phase];
        pass_add_seq(b, pass, i, &at);
        done->results[i] = (BatchResult){.sample.id = -1, .bad_layer = -1};
        int32_t n = seq->want == WANT_ALL ? seq->n_rows : seq->want == WANT_LAST;
        if (n)
            done->results[i].logits = logits;
        for (int32_t row = pass->n_rows - n; row < pass->n_rows; row++, logits += vocab) {
            pass->wanted[pass->n_wanted] = row;
            pass->logits[pass->n_wanted++] = logits;
        }
        if (n == 0 && seq->sampler >= 0) {
            pass->wanted[pass->n_wanted] = pass->n_rows - 1;
            pass->logits[pass->n_wanted++] = b->s.sample_logits + (size_t)i * vocab;
        }
    }
}

/* ---- output head ---- */

typedef struct HeadRun {
    Cpu *b;
    Pass *pass;
} HeadRun;

/* Final norm of one wanted row. */
static void head_norm_job(void *ctx, int64_t job, int member) {
    HeadRun *run = ctx;
    Cpu *b = run->b;
    int32_t hidden = b->c.hidden, row = run->pass->wanted[job];
    float *norm = b->members[member].norm;
    if (!b->k.elem.add_norm(norm, cpu_row_x(b, run->pass, row), NULL,
                            b->model.top.plain[SLOT_FINAL_NORM], (float)b->c.rms_eps, hidden)) {
        memset(norm, 0, sizeof *norm * (size_t)hidden);
        cpu_row_bad(&run->pass->rows[row], b->c.n_layers - 1);
    }
    if (!b->k.elem.is_finite(norm, hidden)) {
        memset(norm, 0, sizeof *norm * (size_t)hidden);
        cpu_row_bad(&run->pass->rows[row], b->c.n_layers);
    }
    b->k.matmul.prepare(b->s.in + (size_t)job * b->in_bytes, hidden / GROUP_INPUTS, 0,
                        hidden / GROUP_INPUTS, norm);
}

/* Strips [first, end) of the logits of wanted rows [at, at + m). The last strip may reach over the
 * end of a row and goes through `tail`. */
static void head_strips(HeadRun *run, CpuMember *me, Span span, int32_t at, int32_t m) {
    Cpu *b = run->b;
    const PackedMatrix *w = &b->model.top.m[SLOT_HEAD];
    const MatmulKernels *k = &b->k.matmul;
    MatmulFn fn = w->bits == 4 ? k->decode_q4 : k->decode_q8; // prompts too: exact
    int32_t n_whole = b->c.vocab / STRIP_ROWS, whole_end = min_i32(span.end, n_whole);
    for (int32_t i = 0; i < m; i++) {
        me->px[i] = b->s.in + (size_t)(at + i) * b->in_bytes;
        me->y[i] = run->pass->logits[at + i] + (size_t)span.first * STRIP_ROWS;
    }
    if (span.first < whole_end)
        fn(me->y, cpu_strip(w, 0, span.first), w->n_groups, whole_end - span.first, me->px, m,
           span.end > n_whole ? cpu_strip(w, 0, n_whole) : NULL);
    if (span.end > n_whole) {
        for (int32_t i = 0; i < m; i++)
            me->y[i] = me->tail + (size_t)i * STRIP_ROWS;
        fn(me->y, cpu_strip(w, 0, n_whole), w->n_groups, 1, me->px, m, NULL);
        for (int32_t i = 0; i < m; i++)
            memcpy(run->pass->logits[at + i] + (size_t)n_whole * STRIP_ROWS, me->y[i],
                   sizeof(float) * (size_t)(b->c.vocab % STRIP_ROWS));
    }
}

static void head_member(void *ctx, int member, int n_members) {
    HeadRun *run = ctx;
    Cpu *b = run->b;
    const PackedMatrix *w = &b->model.top.m[SLOT_HEAD];
    Span mine = cpu_share_even(w->n_strips, member, n_members);
    int32_t n = run->pass->n_wanted;
    int32_t step = n > MATMUL_ROWS ? cpu_chunk_strips(b, w) : max_i32(1, mine.end - mine.first);
    for (int32_t s = mine.first; s < mine.end; s += step)
        for (int32_t at = 0; at < n; at += MATMUL_ROWS)
            head_strips(run, &b->members[member], (Span){s, min_i32(s + step, mine.end)}, at,
                        min_i32(MATMUL_ROWS, n - at));
}

/* Looks for logits that are not finite and leaves the verdict with the row. */
static void head_check_job(void *ctx, int64_t job, int member) {
    UNUSED(member);
    HeadRun *run = ctx;
    const float *logits = run->pass->logits[job];
    int32_t vocab = run->b->c.vocab, even = vocab / STRIP_ROWS * STRIP_ROWS;
    bool is_good = run->b->k.elem.is_finite(logits, even);
    for (int32_t v = even; v < vocab; v++)
        is_good &= isfinite(logits[v]) != 0;
    if (!is_good)
        cpu_row_bad(&run->pass->rows[run->pass->wanted[job]], run->b->c.n_layers);
}

/* Final norm and output head of the wanted rows of a pass. */
static void pass_head(Cpu *b, Pass *pass) {
    if (pass->n_wanted == 0)
        return;
    HeadRun run = {b, pass};
    pool_jobs(b->pool, pass->n_wanted, head_norm_job, &run);
    pool_run(b->pool, head_member, &run);
    pool_jobs(b->pool, pass->n_wanted, head_check_job, &run);
}

/* ---- results ---- */

typedef struct SampleRun {
    Cpu *b;
    CpuDone *done;
} SampleRun;

/* The verdict on a sequence's rows. A row whose logits nobody wants is judged by its residual
 * stream behind the last layer, a prompt's at once where that is made. */
static void seq_judge(Cpu *b, const Pass *pass, int32_t first, int32_t end, BatchResult *result) {
    for (int32_t i = first; i < end; i++) {
        const PassRow *row = &pass->rows[i];
        int32_t bad = row->bad_layer;
        if (bad < 0 && pass->phase == PHASE_DECODE &&
            !b->k.elem.is_finite(cpu_row_x(b, pass, i), b->c.hidden))
            bad = b->c.n_layers - 1;
        if (bad >= 0 && (result->bad_layer < 0 || bad < result->bad_layer)) {
            result->bad_layer = bad;
            result->bad_pos = row->pos;
        }
    }
}

static void sample_job(void *ctx, int64_t job, int member) {
    UNUSED(member);
    SampleRun *run = ctx;
    Cpu *b = run->b;
    const BatchSeq *seq = &b->batch->seqs[job];
    BatchResult *result = &run->done->results[job];
    if (seq->sampler < 0 || result->bad_layer >= 0)
        return;
    const float *logits = b->s.sample_logits + (size_t)job * (size_t)b->c.vocab;
    if (result->logits)
        logits = result->logits +
                 (size_t)(seq->want == WANT_ALL ? seq->n_rows - 1 : 0) * (size_t)b->c.vocab;
    sampler_next(b->samplers[seq->sampler], &result->sample, logits, seq->allowed,
                 seq->pos0 + seq->n_rows);
}

/* The first layer that prompts do not go through in this step. */
static int32_t prompt_end(const Cpu *b) {
    return b->batch->layer_end ? b->batch->layer_end : b->c.n_layers;
}

static void step_finish(Cpu *b, CpuDone *done) {
    for (int p = 0; p < 2; p++) {
        Pass *pass = &b->pass[p];
        if (pass->phase == PHASE_PREFILL && prompt_end(b) < b->c.n_layers)
            continue;
        pass_head(b, pass);
        if (pass->n_wanted)
            cpu_stage_end(b, pass->phase, STAGE_HEAD);
        for (int32_t i = 0; i < pass->n_seqs; i++)
            seq_judge(b, pass, pass->row0[i],
                      i + 1 < pass->n_seqs ? pass->row0[i + 1] : pass->n_rows,
                      &done->results[pass->seqs[i]]);
    }
    SampleRun run = {b, done};
    pool_jobs(b->pool, b->batch->n_seqs, sample_job, &run);
    cpu_stage_end(b, b->batch->seqs[0].phase, STAGE_SAMPLE);
    for (int32_t i = 0; i < b->batch->n_seqs; i++)
        b->last_ids[i] = done->results[i].sample.id;
}

/* ---- the step ---- */

/* Shows a value of all rows of the batch in its order; is_norm: through the final norm. */
static void tap_rows(Cpu *b, const char *name, int32_t layer, bool is_norm, double *wide) {
    int32_t hidden = b->c.hidden;
    const BatchTap *tap = b->batch->tap;
    for (int p = 0; p < 2; p++) {
        const Pass *pass = &b->pass[p];
        for (int32_t i = 0; i < pass->n_rows; i++) {
            const PassRow *row = &pass->rows[i];
            const BatchSeq *seq = &b->batch->seqs[row->seq];
            float *from = cpu_row_x(b, pass, i), *norm = b->members[0].norm;
            if (is_norm) {
                (void)b->k.elem.add_norm(norm, from, NULL, b->model.top.plain[SLOT_FINAL_NORM],
                                         (float)b->c.rms_eps, hidden);
                from = norm;
            }
            double *to = wide + (size_t)(seq->row0 + row->pos - seq->pos0) * (size_t)hidden;
            for (int32_t d = 0; d < hidden; d++)
                to[d] = (double)from[d];
        }
    }
    tap->see(tap->ctx, name, layer, b->batch->n_rows, hidden, wide);
}

/* Shows the experts that the rows of prompts chose. */
static void tap_topk(Cpu *b, int32_t layer, double *wide) {
    int32_t k = b->c.top_k;
    const Pass *pass = &b->pass[PHASE_PREFILL];
    for (int32_t i = 0; i < pass->n_rows * k; i++)
        wide[i] = b->s.topk[i];
    if (pass->n_rows)
        b->batch->tap->see(b->batch->tap->ctx, "topk_ids", layer, pass->n_rows, k, wide);
}

static void run_prompts(Cpu *b, int32_t first, int32_t end) {
    if (b->pass[PHASE_PREFILL].n_rows == 0)
        return;
    int64_t start_ns = clock_now_ns();
    cpu_prefill_layers(b, first, end);
    b->prompt_ns += (uint64_t)(clock_now_ns() - start_ns);
}

static void run_decodes(Cpu *b, int32_t first, int32_t end) {
    if (b->pass[PHASE_DECODE].n_rows)
        cpu_decode_layers(b, first, end);
}

Status cpu_step_run(Cpu *b, const Batch *batch, CpuDone *done, Err *err) {
    double *wide = NULL;
    size_t size = sizeof *wide * (size_t)batch->n_rows * (size_t)b->c.hidden;
    if (batch->tap && !(wide = mem_alloc(size)))
        return err_memory(err, "tap", size);
    b->batch = batch;
    b->profile.mark_ns = b->profile.is_on ? clock_now_ns() : 0;
    step_begin(b, done);
    if (wide) {
        for (int32_t layer = -1; layer < b->c.n_layers; layer++) {
            run_decodes(b, layer, layer + 1);
            run_prompts(b, layer, layer + 1);
            if (layer >= 0)
                tap_topk(b, layer, wide);
            tap_rows(b, "out", layer, false, wide);
        }
        tap_rows(b, "final_norm", b->c.n_layers, true, wide);
        mem_free(wide);
    } else {
        run_decodes(b, -1, b->c.n_layers);
        run_prompts(b, batch->layer0 ? batch->layer0 : -1, prompt_end(b));
    }
    step_finish(b, done);
    done->n_seqs = batch->n_seqs;
    b->batch = NULL;
    return STATUS_OK;
}
