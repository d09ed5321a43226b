// SPDX-License-Identifier: Apache-2.0
/* cpu_decode.c - the layers for decoded rows: one row a sequence, every weight read once a step.
 *
 * Path:     cpu_step.c -> cpu_decode_layers -> decode_layer, stage by stage on all members.
 * Owns:     nothing.  Thread: the members of the pool, all inside one pool_run.
 * Not here: what a head, an expert or a product does (cpu_gdn.c, cpu_attn.c, cpu_moe.c, cpu_mul.c).
 *
 * A stage is cut into shares of equal bytes, one a member; between two stages stands a barrier.
 * What is cheap (residual sum, norm, preparation, choice of experts) every member does for all
 * rows on its own copy, which costs less than another barrier. */
#include "backend/cpu/cpu.h"

#include <string.h>

typedef struct DecodeRun {
    Cpu *b;
    int32_t first, end; // layers
} DecodeRun;

/* One member inside the run. */
typedef struct Hand {
    Cpu *b;
    CpuMember *me;
    int member, n_members;
    int32_t n_rows;
    const CpuLayer *l;
    int32_t layer;
} Hand;

/* x += branch (when there is one), norm, preparation of all rows on this member's copy. A row that
 * is not finite becomes zero from here on, so that routing and states see numbers. */
static void hand_norm(Hand *h, const float *branch, WeightSlot gain, int32_t layer_before) {
    Cpu *b = h->b;
    int32_t hidden = b->c.hidden;
    for (int32_t i = 0; i < h->n_rows; i++) {
        float *x = h->me->x + (size_t)i * (size_t)hidden;
        const float *add = branch ? branch + (size_t)i * (size_t)hidden : NULL;
        if (!b->k.elem.add_norm(h->me->norm, x, add, h->l->plain[gain], (float)b->c.rms_eps,
                                hidden)) {
            memset(h->me->norm, 0, sizeof(float) * (size_t)hidden);
            if (h->member == 0)
                cpu_row_bad(&b->pass[PHASE_DECODE].rows[i], layer_before);
        }
        b->k.matmul.prepare(h->me->in + (size_t)i * b->in_bytes, hidden / GROUP_INPUTS, 0,
                            hidden / GROUP_INPUTS, h->me->norm);
    }
}

/* This member's share of some matrices that read the same rows; `at` and `total` place them in the
 * bytes of the stage. */
static uint64_t hand_parts(Hand *h, const StagePart *parts, int32_t n_parts, float *y, int32_t ldy,
                           const uint8_t *x, size_t x_bytes, uint64_t at, uint64_t total) {
    for (int32_t p = 0; p < n_parts; p++) {
        const PackedMatrix *w = parts[p].w;
        Span span = cpu_share(at, w->n_strips, w->strip_bytes, total, h->member, h->n_members);
        if (span.first < span.end)
            cpu_mul(h->b, h->me, PHASE_DECODE, w, 0, span,
                    (RowsOut){y + parts[p].column + span.first * STRIP_ROWS, (size_t)ldy, NULL},
                    (RowsIn){x, x_bytes, NULL}, h->n_rows);
        at += w->expert_bytes;
    }
    return at;
}

static uint64_t parts_bytes(const StagePart *parts, int32_t n) {
    uint64_t total = 0;
    for (int32_t p = 0; p < n; p++)
        total += parts[p].w->expert_bytes;
    return total;
}

static void hand_gdn(Hand *h) {
    Cpu *b = h->b;
    const Pass *pass = &b->pass[PHASE_DECODE];
    int32_t heads = b->c.n_gdn_key_heads;
    Span jobs = cpu_share_even(h->n_rows * heads, h->member, h->n_members);
    for (int32_t job = jobs.first; job < jobs.end; job++) {
        int32_t row = job / heads;
        cpu_gdn_head(b, h->me, &b->batch->seqs[pass->rows[row].seq], h->l, job % heads,
                     b->s.proj + (size_t)row * (size_t)b->proj_width,
                     b->s.inner + (size_t)row * b->inner_bytes, 1);
    }
}

static int32_t row_parts(const PassRow *r) {
    return div_up_i32(r->pos / KV_BLOCK + 1, cpu_attn_part_blocks(r->pos));
}

static void hand_attn(Hand *h) {
    Cpu *b = h->b;
    const Pass *pass = &b->pass[PHASE_DECODE];
    int32_t n_jobs = 0, at = 0;
    for (int32_t i = 0; i < h->n_rows; i++)
        n_jobs += row_parts(&pass->rows[i]) * b->c.n_kv_heads;
    Span jobs = cpu_share_even(n_jobs, h->member, h->n_members);
    for (int32_t row = 0; row < h->n_rows; row++) {
        int32_t n = row_parts(&pass->rows[row]);
        for (int32_t job = 0; job < n * b->c.n_kv_heads; job++, at++)
            if (at >= jobs.first && at < jobs.end)
                cpu_attn_decode(b, h->me, h->l, row, job / n, job % n);
    }
    pool_barrier(b->pool);
    jobs = cpu_share_even(h->n_rows * b->c.n_q_heads, h->member, h->n_members);
    for (int32_t job = jobs.first; job < jobs.end; job++)
        cpu_attn_finish(b, h->me, job / b->c.n_q_heads, job % b->c.n_q_heads);
}

/* First projections, mixer, last projection into s.branch. */
static void hand_mixer(Hand *h) {
    Cpu *b = h->b;
    StagePart parts[STAGE_PARTS];
    int32_t n = cpu_stage_mixer(h->l, parts);
    hand_parts(h, parts, n, b->s.proj, b->proj_width, h->me->in, b->in_bytes, 0,
               parts_bytes(parts, n));
    pool_barrier(b->pool);
    if (h->l->is_attn)
        hand_attn(h);
    else
        hand_gdn(h);
    pool_barrier(b->pool);
    parts[0] = (StagePart){&h->l->m[h->l->is_attn ? SLOT_ATTN_O : SLOT_GDN_OUT], 0};
    hand_parts(h, parts, 1, b->s.branch, b->c.hidden, b->s.inner, b->inner_bytes, 0,
               parts_bytes(parts, 1));
    pool_barrier(b->pool);
}

/* Router, shared gate and the shared expert's gate and up, which need no choice, in one stage. */
static void hand_router(Hand *h) {
    Cpu *b = h->b;
    StagePart parts[STAGE_PARTS];
    int32_t n = cpu_stage_router(h->l, parts);
    const PackedMatrix *gate = &h->l->m[SLOT_SHARED_GATE], *up = &h->l->m[SLOT_SHARED_UP];
    uint64_t total = parts_bytes(parts, n) + gate->expert_bytes + up->expert_bytes;
    uint64_t at =
        hand_parts(h, parts, n, b->s.router, b->router_width, h->me->in, b->in_bytes, 0, total);
    int32_t n_units = gate->n / EXPERT_UNIT;
    Span span = cpu_share(at, n_units, (gate->expert_bytes + up->expert_bytes) / (uint64_t)n_units,
                          total, h->member, h->n_members);
    for (int32_t unit = span.first; unit < span.end; unit++)
        cpu_moe_inner_shared(b, h->me, PHASE_DECODE, h->l, unit, h->me->in, 0, h->n_rows);
    pool_barrier(b->pool);
}

/* down of all chosen experts and of the shared one, then the weighted sum, for this member's
 * columns. */
static void hand_down(Hand *h, const ExpertLists *lists) {
    Cpu *b = h->b;
    const PackedMatrix *down = &h->l->m[SLOT_EXPERT_DOWN], *shared = &h->l->m[SLOT_SHARED_DOWN];
    size_t hidden = (size_t)b->c.hidden;
    Span span = cpu_share_even(down->n_strips, h->member, h->n_members);
    if (span.first == span.end)
        return;
    size_t column = (size_t)span.first * STRIP_ROWS;
    for (int32_t i = 0; i < lists->n_active; i++) {
        int32_t e = lists->active[i], at = lists->first[e];
        cpu_mul(b, h->me, PHASE_DECODE, down, e, span,
                (RowsOut){b->s.expert_out + (size_t)at * hidden + column, hidden, NULL},
                (RowsIn){b->s.act + (size_t)at * b->act_bytes, b->act_bytes, NULL},
                lists->first[e + 1] - at);
    }
    cpu_mul(b, h->me, PHASE_DECODE, shared, 0, span,
            (RowsOut){b->s.shared_out + column, hidden, NULL},
            (RowsIn){b->s.shared_act, b->shared_act_bytes, NULL}, h->n_rows);
    for (int32_t row = 0; row < h->n_rows; row++)
        cpu_moe_combine(b, b->s.branch + (size_t)row * hidden + column, lists,
                        b->s.expert_out + column, b->s.shared_out + column, hidden,
                        h->me->topk_weight, row, (span.end - span.first) * STRIP_ROWS);
}

static void hand_experts(Hand *h) {
    Cpu *b = h->b;
    size_t k = (size_t)b->c.top_k;
    for (int32_t i = 0; i < h->n_rows; i++)
        cpu_moe_choose(b, b->s.router + (size_t)i * (size_t)b->router_width,
                       h->me->topk + (size_t)i * k, h->me->topk_weight + (size_t)i * k);
    ExpertLists lists = cpu_moe_sort(b, h->me->topk, h->n_rows, h->me->order);
    if (h->me == b->members)
        b->n_expert_reads += (uint64_t)lists.n_active;
    int32_t units = b->c.expert_inner / EXPERT_UNIT;
    Span jobs = cpu_share_even(lists.n_active * units, h->member, h->n_members);
    for (int32_t job = jobs.first; job < jobs.end; job++)
        cpu_moe_inner(b, h->me, PHASE_DECODE, h->l, &lists, lists.active[job / units], job % units,
                      h->me->in);
    pool_barrier(b->pool);
    hand_down(h, &lists);
    pool_barrier(b->pool);
}

/* Every member makes its own copy of the embedding rows. */
static void hand_embed(Hand *h) {
    const Cpu *b = h->b;
    for (int32_t i = 0; i < h->n_rows; i++)
        cpu_pack_row(h->me->x + (size_t)i * (size_t)b->c.hidden, &b->model.top.m[SLOT_EMBED],
                     b->pass[PHASE_DECODE].rows[i].id);
}

static void decode_member(void *ctx, int member, int n_members) {
    DecodeRun *run = ctx;
    Cpu *b = run->b;
    Hand h = {.b = b,
              .me = &b->members[member],
              .member = member,
              .n_members = n_members,
              .n_rows = b->pass[PHASE_DECODE].n_rows};
    const float *branch = NULL; // what the layer before has left to add
    for (int32_t layer = run->first; layer < run->end; layer++) {
        if (layer < 0) {
            hand_embed(&h);
            continue;
        }
        h.layer = layer;
        h.l = &b->model.layers[layer];
        hand_norm(&h, branch, SLOT_INPUT_NORM, max_i32(layer - 1, 0));
        hand_mixer(&h);
        hand_norm(&h, b->s.branch, SLOT_POST_NORM, layer);
        hand_router(&h);
        hand_experts(&h);
        branch = b->s.branch;
    }
    if (branch)
        for (size_t i = 0; i < (size_t)h.n_rows * (size_t)b->c.hidden; i++)
            h.me->x[i] += branch[i];
}

void cpu_decode_layers(Cpu *b, int32_t first, int32_t end) {
    DecodeRun run = {b, first, end};
    pool_run(b->pool, decode_member, &run);
}
