// SPDX-License-Identifier: Apache-2.0
/* cpu_prefill.c - the layers for the rows of prompts: every weight strip is used for all rows.
 *
 * Path:     cpu_step.c -> cpu_prefill_layers -> prefill_layer, stage by stage as lists of jobs.
 * Owns:     nothing.  Thread: the engine's; jobs on the members of the pool. Which member runs a
 *           job changes nothing: jobs write apart and every sum has one order.
 * Not here: what a head, an expert or a product does (cpu_gdn.c, cpu_attn.c, cpu_moe.c, cpu_mul.c).
 */
#include "backend/cpu/cpu.h"

#include <sched.h>
#include <string.h>

enum {
    ROW_JOB = ROW_BLOCK,    // rows of one job of row-by-row work
    ATTN_JOBS_A_MEMBER = 2, // of attention at least, where they have more than ATTN_LEAST tokens
    ATTN_LEAST = 4,         // tokens: with 8 heads as many rows as two tiles have
    FEW_ROWS = 512,         // fewer are cut to more jobs, so that all end at nearly the same time
};

/* One layer's run, handed to the jobs. */
typedef struct Layer {
    Cpu *b;
    const Pass *pass;
    const CpuLayer *l;
    int32_t number;
    /* Norm jobs. */
    WeightSlot gain;
    const float *branch;
    /* Product jobs. */
    StagePart parts[STAGE_PARTS];
    int32_t n_parts, job_strips;
    float *y;
    size_t ldy;
    const uint8_t *x;
    size_t x_bytes;
    /* Mixer jobs. */
    int64_t out_jobs;           // of its last projection
    _Atomic int32_t heads_left; // of the delta net, of all sequences
    int32_t attn_tokens;        // of an attention job
    /* Expert jobs. */
    ExpertLists lists;
} Layer;

/* Rows [first, end) of a job of row-by-row work. */
static Span row_job(const Layer *run, int64_t job) {
    int32_t first = (int32_t)job * ROW_JOB;
    return (Span){first, min_i32(first + ROW_JOB, run->pass->n_rows)};
}

static void run_rows(Layer *run, PoolJobFn fn) {
    pool_jobs(run->b->pool, div_up_i32(run->pass->n_rows, ROW_JOB), fn, run);
}

static void embed_job(void *ctx, int64_t job, int member) {
    UNUSED(member);
    Layer *run = ctx;
    Span rows = row_job(run, job);
    for (int32_t i = rows.first; i < rows.end; i++) {
        cpu_row_rope(run->b, run->pass, i);
        cpu_pack_row(cpu_row_x(run->b, run->pass, i), &run->b->model.top.m[SLOT_EMBED],
                     run->pass->rows[i].id);
    }
}

/* x += branch and norm of one row. If it is not finite it counts as zero from here on. */
static void norm_row(Layer *run, float *norm, int32_t row) {
    Cpu *b = run->b;
    int32_t hidden = b->c.hidden;
    const float *add = run->branch ? run->branch + (size_t)row * (size_t)hidden : NULL;
    if (b->k.elem.add_norm(norm, cpu_row_x(b, run->pass, row), add, run->l->plain[run->gain],
                           (float)b->c.rms_eps, hidden))
        return;
    memset(norm, 0, sizeof *norm * (size_t)hidden);
    cpu_row_bad(&run->pass->rows[row], run->branch ? run->number : max_i32(run->number - 1, 0));
}

/* For the mixer, whose products alone read these rows. */
static void norm_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    size_t hidden = (size_t)b->c.hidden;
    float *norm = b->members[member].norm;
    Span rows = row_job(run, job);
    for (int32_t i = rows.first; i < rows.end; i++)
        norm_row(run, norm + (size_t)(i - rows.first) * hidden, i);
    cpu_put_rows(b, &(RowsPut){.phase = PHASE_PREFILL,
                               .rows = b->s.in,
                               .bytes = b->in_bytes,
                               .n_groups = b->c.hidden / GROUP_INPUTS,
                               .row = rows.first,
                               .m = rows.end - rows.first,
                               .n = b->c.hidden / GROUP_INPUTS,
                               .x = norm,
                               .ldx = hidden});
}

/* x += branch, norm, preparation, router and choice, all of it as decode does it: the same inputs
 * choose the same experts in both phases. One job, so that rows are still near when they are
 * multiplied. */
static void route_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    CpuMember *me = &b->members[member];
    int32_t n_groups = b->c.hidden / GROUP_INPUTS;
    size_t width = (size_t)b->router_width, k = (size_t)b->c.top_k;
    Span rows = row_job(run, job);
    uint8_t *in = b->s.in + (size_t)rows.first * b->in_bytes;
    float *logits = b->s.router + (size_t)rows.first * width;
    int32_t m = rows.end - rows.first;
    for (int32_t i = 0; i < m; i++) {
        norm_row(run, me->norm, rows.first + i);
        b->k.matmul.prepare(in + (size_t)i * b->in_bytes, n_groups, 0, n_groups, me->norm);
    }
    for (int32_t p = 0; p < run->n_parts; p++)
        cpu_mul(b, me,
                &(Product){.phase = PHASE_DECODE,
                           .w = run->parts[p].w,
                           .strips = {0, run->parts[p].w->n_strips},
                           .y = {logits + run->parts[p].column, width, NULL},
                           .x = {in, b->in_bytes, NULL},
                           .m = m});
    for (size_t i = (size_t)rows.first; i < (size_t)rows.end; i++)
        cpu_moe_choose(b, b->s.router + i * width, b->s.topk + i * k, b->s.topk_weight + i * k);
}

/* Strips of one job by one matrix. */
static int32_t job_strips(const Layer *run, const PackedMatrix *w) {
    return min_i32(run->job_strips, cpu_chunk_strips(run->b, w));
}

/* Jobs that share weights follow each other. */
static void product_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    int32_t n_rows = run->pass->n_rows, row_jobs = div_up_i32(n_rows, PRODUCT_ROWS);
    int32_t row = (int32_t)(job % row_jobs) * PRODUCT_ROWS;
    job /= row_jobs;
    for (int32_t p = 0; p < run->n_parts; p++) {
        const PackedMatrix *w = run->parts[p].w;
        int32_t step = job_strips(run, w), n_jobs = div_up_i32(w->n_strips, step);
        if (job >= n_jobs) {
            job -= n_jobs;
            continue;
        }
        int32_t first = (int32_t)job * step;
        float *y = run->y + (size_t)row * run->ldy;
        cpu_mul(run->b, &run->b->members[member],
                &(Product){PHASE_PREFILL,
                           w,
                           0,
                           {first, min_i32(first + step, w->n_strips)},
                           {y + run->parts[p].column + first * STRIP_ROWS, run->ldy, NULL},
                           {run->x + (size_t)row * run->x_bytes, run->x_bytes, NULL},
                           min_i32(PRODUCT_ROWS, n_rows - row),
                           NULL});
        return;
    }
}

/* Products of run->parts with the prepared rows of x, or with s.blocks, go to y; returns how many
 * jobs they are. */
static int64_t plan_products(Layer *run, float *y, size_t ldy, const uint8_t *x, size_t x_bytes) {
    const Cpu *b = run->b;
    run->y = y;
    run->ldy = ldy;
    run->x = b->k.matmul.block_bytes ? b->s.blocks : x;
    run->x_bytes = cpu_row_step(b, run->parts[0].w->n_groups, x_bytes);
    int64_t row_jobs = div_up_i32(run->pass->n_rows, PRODUCT_ROWS), n_strips = 0, n_jobs = 0;
    for (int32_t p = 0; p < run->n_parts; p++)
        n_strips += run->parts[p].w->n_strips;
    // Every job reads its rows from L3 once: many rows want long jobs.
    int64_t wanted = (int64_t)pool_n_members(b->pool) * (run->pass->n_rows < FEW_ROWS ? 16 : 8);
    run->job_strips = max_i32(2, (int32_t)(n_strips * row_jobs / wanted) / 2 * 2);
    for (int32_t p = 0; p < run->n_parts; p++)
        n_jobs += div_up_i32(run->parts[p].w->n_strips, job_strips(run, run->parts[p].w));
    return n_jobs * row_jobs;
}

/* Rows of sequence number i of the pass. */
static Span pass_rows(const Pass *pass, int32_t i) {
    return (Span){pass->row0[i], i + 1 < pass->n_seqs ? pass->row0[i + 1] : pass->n_rows};
}

static void gdn_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    int32_t seq = (int32_t)(job / b->c.n_gdn_key_heads);
    Span rows = pass_rows(run->pass, seq);
    cpu_gdn_head(b, &b->members[member],
                 &(GdnJob){.seq = &b->batch->seqs[run->pass->seqs[seq]],
                           .l = run->l,
                           .key_head = (int32_t)(job % b->c.n_gdn_key_heads),
                           .m = rows.end - rows.first,
                           .row = rows.first,
                           .proj = b->s.proj + (size_t)rows.first * (size_t)b->proj_width});
}

/* Key heads of all sequences, which are few and long and end at different times, and behind them
 * the products with what they leave, in the order of rows: who has no head goes on with rows that
 * all heads have left. Every head is taken before the first product, so that none waits in vain;
 * who waits, at most for the rest of a head, gives its processor away and does not sleep. */
static void gdn_or_out_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    int64_t n_heads = (int64_t)run->pass->n_seqs * b->c.n_gdn_key_heads;
    if (job < n_heads) {
        gdn_job(ctx, job, member);
        if (atomic_fetch_sub(&run->heads_left, 1) == 1)
            cpu_stage_end(b, PHASE_PREFILL, STAGE_GDN);
        return;
    }
    int32_t n_rows = run->pass->n_rows, row_jobs = div_up_i32(n_rows, PRODUCT_ROWS);
    int64_t per_row = run->out_jobs / row_jobs, row_job = (job - n_heads) / per_row;
    int32_t wanted = min_i32(PRODUCT_ROWS, n_rows - (int32_t)row_job * PRODUCT_ROWS);
    wanted *= b->c.n_gdn_key_heads;
    while (atomic_load(&b->s.rows_done[row_job]) != wanted)
        sched_yield();
    product_job(run, (job - n_heads) % per_row * row_jobs + row_job, member);
}

static void append_job(void *ctx, int64_t job, int member) {
    UNUSED(member);
    Layer *run = ctx;
    Span rows = row_job(run, job);
    for (int32_t i = rows.first; i < rows.end; i++)
        cpu_attn_append(run->b, run->l, i);
}

/* Tiles of attn_tokens rows from the last to the first: late rows see more keys. */
static void attn_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    int32_t kv_head = (int32_t)(job % b->c.n_kv_heads);
    job /= b->c.n_kv_heads;
    for (int32_t i = 0; i < run->pass->n_seqs; i++) {
        Span rows = pass_rows(run->pass, i);
        int32_t n_tiles = div_up_i32(rows.end - rows.first, run->attn_tokens);
        if (job >= n_tiles) {
            job -= n_tiles;
            continue;
        }
        int32_t row = rows.first + (n_tiles - 1 - (int32_t)job) * run->attn_tokens;
        cpu_attn_prefill(b, &b->members[member], run->l, row,
                         min_i32(run->attn_tokens, rows.end - row), kv_head);
        return;
    }
}

/* The mixer's last projection. */
static void plan_out(Layer *run, WeightSlot slot) {
    Cpu *b = run->b;
    run->parts[0] = (StagePart){&run->l->m[slot], 0};
    run->n_parts = 1;
    run->out_jobs =
        plan_products(run, b->s.branch, (size_t)b->c.hidden, b->s.inner, b->inner_bytes);
}

static void run_attn(Layer *run) {
    Cpu *b = run->b;
    int64_t n_tiles = 0, rows = (int64_t)run->pass->n_rows * b->c.n_kv_heads;
    rows /= (int64_t)ATTN_JOBS_A_MEMBER * pool_n_members(b->pool);
    run->attn_tokens =
        max_i32(ATTN_LEAST, min_i32(ATTN_TOKENS, (int32_t)rows) / ATTN_LEAST * ATTN_LEAST);
    for (int32_t i = 0; i < run->pass->n_seqs; i++) {
        Span span = pass_rows(run->pass, i);
        n_tiles += div_up_i32(span.end - span.first, run->attn_tokens);
    }
    run_rows(run, append_job);
    pool_jobs(b->pool, n_tiles * b->c.n_kv_heads, attn_job, run);
    cpu_stage_end(b, PHASE_PREFILL, STAGE_ATTN);
    plan_out(run, SLOT_ATTN_O);
    pool_jobs(b->pool, run->out_jobs, product_job, run);
    cpu_stage_end(b, PHASE_PREFILL, STAGE_ATTN_OUT);
}

static void run_gdn(Layer *run) {
    Cpu *b = run->b;
    plan_out(run, SLOT_GDN_OUT);
    for (int32_t i = 0; i < div_up_i32(run->pass->n_rows, PRODUCT_ROWS); i++)
        atomic_store(&b->s.rows_done[i], 0);
    int32_t n_heads = run->pass->n_seqs * b->c.n_gdn_key_heads;
    atomic_store(&run->heads_left, n_heads);
    pool_jobs(b->pool, n_heads + run->out_jobs, gdn_or_out_job, run);
    cpu_stage_end(b, PHASE_PREFILL, STAGE_GDN_OUT);
}

static void run_mixer(Layer *run) {
    Cpu *b = run->b;
    run->gain = SLOT_INPUT_NORM;
    run->branch = NULL;
    run_rows(run, norm_job);
    run->n_parts = cpu_stage_mixer(run->l, run->parts);
    int64_t in_jobs = plan_products(run, b->s.proj, (size_t)b->proj_width, b->s.in, b->in_bytes);
    pool_jobs(b->pool, in_jobs, product_job, run);
    cpu_stage_end(b, PHASE_PREFILL, run->l->is_attn ? STAGE_ATTN_IN : STAGE_GDN_IN);
    if (run->l->is_attn)
        run_attn(run);
    else
        run_gdn(run);
}

/* At most MATMUL_ROWS places of the lists: rows of active expert number i. */
typedef struct Piece {
    int32_t i;
    Span places;
} Piece;

static int32_t expert_pieces(const ExpertLists *lists, int32_t i) {
    int32_t e = lists->active[i];
    return div_up_i32(lists->first[e + 1] - lists->first[e], MATMUL_ROWS);
}

static int64_t n_pieces(const ExpertLists *lists) {
    int64_t n = 0;
    for (int32_t i = 0; i < lists->n_active; i++)
        n += expert_pieces(lists, i);
    return n;
}

static Piece piece_find(const ExpertLists *lists, int64_t number) {
    int32_t i = 0;
    for (; number >= expert_pieces(lists, i); i++)
        number -= expert_pieces(lists, i);
    int32_t e = lists->active[i], first = lists->first[e] + (int32_t)number * MATMUL_ROWS;
    return (Piece){i, {first, min_i32(first + MATMUL_ROWS, lists->first[e + 1])}};
}

/* Units of one job of an expert. */
static int32_t job_units(const Layer *run) {
    return run->pass->n_rows < FEW_ROWS ? PROMPT_UNITS / 2 : PROMPT_UNITS;
}

/* Jobs of one expert with `inner` inner values. */
static int32_t inner_jobs(const Layer *run, int32_t inner) {
    return div_up_i32(inner, job_units(run) * EXPERT_UNIT);
}

/* The units of job number `job` of an expert. */
static void inner_units(InnerJob *to, const Layer *run, int32_t job, int32_t inner) {
    to->unit = job * job_units(run);
    to->n_units = min_i32(job_units(run), inner / EXPERT_UNIT - to->unit);
}

/* Jobs of the shared expert, which come first: they are the longest. */
static int64_t shared_jobs(const Layer *run) {
    return (int64_t)div_up_i32(run->pass->n_rows, MATMUL_ROWS) *
           inner_jobs(run, run->b->c.shared_inner);
}

/* Some inner values of one expert for a piece of its rows, or of the shared expert for MATMUL_ROWS
 * rows. */
static void inner_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    InnerJob inner = {.phase = PHASE_PREFILL, .l = run->l, .in = b->s.in};
    if (job < shared_jobs(run)) {
        int32_t per = inner_jobs(run, b->c.shared_inner), row = (int32_t)(job / per) * MATMUL_ROWS;
        inner_units(&inner, run, (int32_t)(job % per), b->c.shared_inner);
        cpu_moe_inner_shared(b, &b->members[member], &inner, row,
                             min_i32(MATMUL_ROWS, run->pass->n_rows - row));
        return;
    }
    job -= shared_jobs(run);
    int32_t per = inner_jobs(run, b->c.expert_inner);
    Piece piece = piece_find(&run->lists, job / per);
    inner.expert = run->lists.active[piece.i];
    inner.act_row = cpu_moe_act_row(b, &run->lists, piece.i);
    inner_units(&inner, run, (int32_t)(job % per), b->c.expert_inner);
    cpu_moe_inner(b, &b->members[member], &inner, &run->lists, piece.places);
}

/* Jobs of all experts' outputs. */
static int64_t down_jobs(const Layer *run) {
    int64_t n = div_up_i32(run->pass->n_rows, MATMUL_ROWS) + n_pieces(&run->lists);
    return n * div_up_i32(run->b->c.hidden, DOWN_COLUMNS);
}

/* Some outputs of one expert for a piece of its rows, or of the shared expert for MATMUL_ROWS rows,
 * which come first. */
static void down_job(void *ctx, int64_t job, int member) {
    enum { STRIPS = DOWN_COLUMNS / STRIP_ROWS };
    Layer *run = ctx;
    Cpu *b = run->b;
    size_t hidden = (size_t)b->c.hidden;
    int32_t n_columns = div_up_i32(b->c.hidden, DOWN_COLUMNS), n_rows = run->pass->n_rows;
    int32_t first = (int32_t)(job % n_columns) * STRIPS, n_shared = div_up_i32(n_rows, MATMUL_ROWS);
    job /= n_columns;
    bool is_shared = job < n_shared;
    const PackedMatrix *w = &run->l->m[is_shared ? SLOT_SHARED_DOWN : SLOT_EXPERT_DOWN];
    Product p = {
        .phase = PHASE_PREFILL, .w = w, .strips = {first, min_i32(first + STRIPS, w->n_strips)}};
    float *y = b->s.shared_out;
    const uint8_t *x = b->s.shared_act;
    size_t step = cpu_row_step(b, w->n_groups, is_shared ? b->shared_act_bytes : b->act_bytes);
    size_t x_row = (size_t)job * MATMUL_ROWS, y_row = x_row;
    p.m = min_i32(MATMUL_ROWS, n_rows - (int32_t)x_row);
    if (!is_shared) {
        Piece piece = piece_find(&run->lists, job - n_shared);
        p.expert = run->lists.active[piece.i];
        p.m = piece.places.end - piece.places.first;
        y = b->s.expert_out;
        y_row = (size_t)piece.places.first;
        x = b->s.act;
        x_row = (size_t)(cpu_moe_act_row(b, &run->lists, piece.i) + piece.places.first -
                         run->lists.first[p.expert]);
    }
    p.x = (RowsIn){x + x_row * step, step, NULL};
    p.y = (RowsOut){y + y_row * hidden + (size_t)first * STRIP_ROWS, hidden, NULL};
    cpu_mul(b, &b->members[member], &p);
}

/* x += the weighted sum of the experts' outputs. */
static void combine_job(void *ctx, int64_t job, int member) {
    Layer *run = ctx;
    Cpu *b = run->b;
    float *sum = b->members[member].norm;
    Span rows = row_job(run, job);
    for (int32_t row = rows.first; row < rows.end; row++) {
        cpu_moe_combine(b, sum, &run->lists, b->s.expert_out, b->s.shared_out, (size_t)b->c.hidden,
                        b->s.topk_weight, row, b->c.hidden);
        float *x = cpu_row_x(b, run->pass, row);
        for (int32_t d = 0; d < b->c.hidden; d++)
            x[d] += sum[d];
        if (run->number + 1 == b->c.n_layers && !b->k.elem.is_finite(x, b->c.hidden))
            cpu_row_bad(&run->pass->rows[row], run->number);
    }
}

static void run_experts(Layer *run) {
    Cpu *b = run->b;
    run->n_parts = cpu_stage_router(run->l, run->parts);
    run->gain = SLOT_POST_NORM;
    run->branch = b->s.branch;
    run_rows(run, route_job);
    run->lists = cpu_moe_sort(b, b->s.topk, run->pass->n_rows, b->s.order);
    b->n_expert_reads += (uint64_t)run->lists.n_active;
    cpu_stage_end(b, PHASE_PREFILL, STAGE_ROUTER);
    int64_t n_jobs = n_pieces(&run->lists) * inner_jobs(run, b->c.expert_inner);
    pool_jobs(b->pool, shared_jobs(run) + n_jobs, inner_job, run);
    cpu_stage_end(b, PHASE_PREFILL, STAGE_EXPERTS_UP);
    pool_jobs(b->pool, down_jobs(run), down_job, run);
    run_rows(run, combine_job);
    cpu_stage_end(b, PHASE_PREFILL, STAGE_EXPERTS_DOWN);
}

void cpu_prefill_layers(Cpu *b, int32_t first, int32_t end) {
    Layer run = {.b = b, .pass = &b->pass[PHASE_PREFILL]};
    for (int32_t layer = first; layer < end; layer++) {
        if (layer < 0) {
            run_rows(&run, embed_job);
            cpu_stage_end(b, PHASE_PREFILL, STAGE_EMBED);
            continue;
        }
        run.number = layer;
        run.l = &b->model.layers[layer];
        run_mixer(&run);
        run_experts(&run);
    }
}
