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

/* Waits until every member has finished this stage. */
static void hand_end(Hand *h, BackendStageId stage) {
    pool_barrier(h->b->pool, h->member);
    if (h->member == 0)
        cpu_stage_end(h->b, PHASE_DECODE, stage);
}

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

/* Matrices that read the same rows, one stage or its beginning. */
typedef struct Stage {
    StagePart parts[STAGE_PARTS];
    int32_t n_parts;
    uint64_t bytes; // of the parts
    uint64_t total; // of the whole stage
} Stage;

static void stage_count(Stage *s) {
    s->bytes = 0;
    for (int32_t p = 0; p < s->n_parts; p++)
        s->bytes += s->parts[p].w->expert_bytes;
    s->total = s->bytes;
}

/* The first projections of a layer's mixer. */
static Stage stage_mixer_in(const CpuLayer *l) {
    Stage s = {0};
    s.n_parts = cpu_stage_mixer(l, s.parts);
    stage_count(&s);
    return s;
}

static Stage stage_mixer_out(const CpuLayer *l) {
    Stage s = {.parts = {{&l->m[l->is_attn ? SLOT_ATTN_O : SLOT_GDN_OUT], 0}}, .n_parts = 1};
    stage_count(&s);
    return s;
}

/* Router and shared gate; the gate and up of the shared expert, which need no choice, follow. */
static Stage stage_router(const CpuLayer *l) {
    Stage s = {0};
    s.n_parts = cpu_stage_router(l, s.parts);
    stage_count(&s);
    s.total += l->m[SLOT_SHARED_GATE].expert_bytes + l->m[SLOT_SHARED_UP].expert_bytes;
    return s;
}

/* This member's strips of the parts; returns how many parts it has strips of. */
static int32_t hand_spans(const Hand *h, const Stage *s, Span spans[STAGE_PARTS]) {
    uint64_t at = 0;
    int32_t n = 0;
    for (int32_t p = 0; p < s->n_parts; p++) {
        const PackedMatrix *w = s->parts[p].w;
        spans[p] = cpu_share(at, w->n_strips, w->strip_bytes, s->total, h->member, h->n_members);
        n += spans[p].first < spans[p].end;
        at += w->expert_bytes;
    }
    return n;
}

/* The first weights of a stage that this member reads, NULL when it reads none of the parts. */
static const uint8_t *hand_first(const Hand *h, const Stage *s) {
    Span spans[STAGE_PARTS];
    if (hand_spans(h, s, spans) == 0)
        return NULL;
    int32_t p = 0;
    while (spans[p].first == spans[p].end)
        p++;
    return cpu_strip(s->parts[p].w, 0, spans[p].first);
}

/* This member's share of the parts; `next` follows. */
static void hand_parts(Hand *h, const Stage *s, RowsOut y, RowsIn x, const uint8_t *next) {
    Span spans[STAGE_PARTS];
    (void)hand_spans(h, s, spans);
    Product list[STAGE_PARTS];
    int32_t n = 0;
    for (int32_t p = 0; p < s->n_parts; p++)
        if (spans[p].first < spans[p].end) {
            list[n] = (Product){PHASE_DECODE, s->parts[p].w, 0, spans[p], y, x, h->n_rows, next};
            list[n++].y.base += s->parts[p].column + spans[p].first * STRIP_ROWS;
        }
    for (int32_t i = 0; i < n; i++) {
        if (i + 1 < n)
            list[i].next = cpu_strip(list[i + 1].w, 0, list[i + 1].strips.first);
        cpu_mul(h->b, h->me, &list[i]);
    }
}

static void hand_gdn(Hand *h) {
    Cpu *b = h->b;
    const Pass *pass = &b->pass[PHASE_DECODE];
    int32_t heads = b->c.n_gdn_key_heads;
    Span jobs = cpu_share_even(h->n_rows * heads, h->member, h->n_members);
    for (int32_t job = jobs.first; job < jobs.end; job++) {
        int32_t row = job / heads;
        GdnJob gdn = {.seq = &b->batch->seqs[pass->rows[row].seq],
                      .l = h->l,
                      .key_head = job % heads,
                      .m = 1,
                      .row = row,
                      .proj = b->s.proj + (size_t)row * (size_t)b->proj_width};
        if (job + 1 < jobs.end) {
            const PassRow *next = &pass->rows[(job + 1) / heads];
            gdn.next = cpu_gdn_state(b, h->l, b->batch->seqs[next->seq].slot, (job + 1) % heads);
        }
        cpu_gdn_head(b, h->me, &gdn);
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
        for (int32_t kv_head = 0; kv_head < b->c.n_kv_heads; kv_head++, at += n) {
            Span parts = {max_i32(jobs.first - at, 0), min_i32(jobs.end - at, n)};
            if (parts.first < parts.end)
                cpu_attn_decode(b, h->me, h->l, row, kv_head, parts);
        }
    }
    pool_barrier(b->pool, h->member);
    jobs = cpu_share_even(h->n_rows * b->c.n_q_heads, h->member, h->n_members);
    for (int32_t job = jobs.first; job < jobs.end; job++)
        cpu_attn_finish(b, h->me, job / b->c.n_q_heads, job % b->c.n_q_heads);
}

/* First projections, mixer, last projection into s.branch. */
static void hand_mixer(Hand *h) {
    Cpu *b = h->b;
    Stage in = stage_mixer_in(h->l), out = stage_mixer_out(h->l), router = stage_router(h->l);
    hand_parts(h, &in, (RowsOut){b->s.proj, (size_t)b->proj_width, NULL},
               (RowsIn){h->me->in, b->in_bytes, NULL}, hand_first(h, &out));
    hand_end(h, h->l->is_attn ? STAGE_ATTN_IN : STAGE_GDN_IN);
    if (h->l->is_attn)
        hand_attn(h);
    else
        hand_gdn(h);
    hand_end(h, h->l->is_attn ? STAGE_ATTN : STAGE_GDN);
    hand_parts(h, &out, (RowsOut){b->s.branch, (size_t)b->c.hidden, NULL},
               (RowsIn){b->s.inner, b->inner_bytes, NULL}, hand_first(h, &router));
    hand_end(h, h->l->is_attn ? STAGE_ATTN_OUT : STAGE_GDN_OUT);
}

static void hand_router(Hand *h) {
    Cpu *b = h->b;
    Stage s = stage_router(h->l);
    int32_t n_units = h->l->m[SLOT_SHARED_GATE].n / EXPERT_UNIT;
    Span span = cpu_share(s.bytes, n_units, (s.total - s.bytes) / (uint64_t)n_units, s.total,
                          h->member, h->n_members);
    const uint8_t *unit0 =
        cpu_strip(&h->l->m[SLOT_SHARED_GATE], 0, span.first * (EXPERT_UNIT / STRIP_ROWS));
    hand_parts(h, &s, (RowsOut){b->s.router, (size_t)b->router_width, NULL},
               (RowsIn){h->me->in, b->in_bytes, NULL}, span.first < span.end ? unit0 : NULL);
    InnerJob job = {.phase = PHASE_DECODE, .l = h->l, .in = h->me->in};
    for (job.unit = span.first; job.unit < span.end; job.unit += job.n_units) {
        job.n_units = min_i32(DECODE_UNITS, span.end - job.unit);
        cpu_moe_inner_shared(b, h->me, &job, 0, h->n_rows);
    }
    hand_end(h, STAGE_ROUTER);
}

/* down of all chosen experts and of the shared one, then the weighted sum, for this member's
 * columns. */
static void hand_down(Hand *h, const ExpertLists *lists, Span span, const uint8_t *next) {
    Cpu *b = h->b;
    const PackedMatrix *down = &h->l->m[SLOT_EXPERT_DOWN], *shared = &h->l->m[SLOT_SHARED_DOWN];
    size_t hidden = (size_t)b->c.hidden;
    if (span.first == span.end)
        return;
    size_t column = (size_t)span.first * STRIP_ROWS;
    for (int32_t i = 0; i < lists->n_active; i++) {
        int32_t e = lists->active[i], at = lists->first[e];
        bool is_last = i + 1 == lists->n_active;
        cpu_mul(b, h->me,
                &(Product){PHASE_DECODE,
                           down,
                           e,
                           span,
                           {b->s.expert_out + (size_t)at * hidden + column, hidden, NULL},
                           {b->s.act + (size_t)at * b->act_bytes, b->act_bytes, NULL},
                           lists->first[e + 1] - at,
                           is_last ? cpu_strip(shared, 0, span.first)
                                   : cpu_strip(down, lists->active[i + 1], span.first)});
    }
    cpu_mul(b, h->me,
            &(Product){PHASE_DECODE,
                       shared,
                       0,
                       span,
                       {b->s.shared_out + column, hidden, NULL},
                       {b->s.shared_act, b->shared_act_bytes, NULL},
                       h->n_rows,
                       next});
    for (int32_t row = 0; row < h->n_rows; row++)
        cpu_moe_combine(b, b->s.branch + (size_t)row * hidden + column, lists,
                        b->s.expert_out + column, b->s.shared_out + column, hidden,
                        h->me->topk_weight, row, (span.end - span.first) * STRIP_ROWS);
}

/* The chosen experts; `next` are the weights that this member wants behind the layer. */
static void hand_experts(Hand *h, const uint8_t *next) {
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
    const PackedMatrix *down = &h->l->m[SLOT_EXPERT_DOWN];
    Span columns = cpu_share_even(down->n_strips, h->member, h->n_members);
    InnerJob job = {.phase = PHASE_DECODE, .l = h->l, .in = h->me->in};
    for (int32_t i = jobs.first; i < jobs.end;) {
        job.expert = lists.active[i / units];
        job.unit = i % units;
        job.n_units = min_i32(DECODE_UNITS, min_i32(units - job.unit, jobs.end - i));
        i += job.n_units;
        job.next = i < jobs.end ? cpu_moe_inner_first(h->l, lists.active[i / units], i % units)
                                : cpu_strip(down, lists.active[0], columns.first);
        cpu_moe_inner(b, h->me, &job, &lists,
                      (Span){lists.first[job.expert], lists.first[job.expert + 1]});
    }
    hand_end(h, STAGE_EXPERTS_UP);
    hand_down(h, &lists, columns, next);
    hand_end(h, STAGE_EXPERTS_DOWN);
}

/* What this member reads first behind layer h->layer. */
static const uint8_t *hand_behind(const Hand *h) {
    const CpuModel *model = &h->b->model;
    if (h->layer + 1 < model->n_layers) {
        Stage in = stage_mixer_in(&model->layers[h->layer + 1]);
        return hand_first(h, &in);
    }
    const PackedMatrix *head = &model->top.m[SLOT_HEAD];
    return cpu_strip(head, 0, cpu_share_even(head->n_strips, h->member, h->n_members).first);
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
            if (member == 0)
                cpu_stage_end(b, PHASE_DECODE, STAGE_EMBED);
            continue;
        }
        h.layer = layer;
        h.l = &b->model.layers[layer];
        hand_norm(&h, branch, SLOT_INPUT_NORM, max_i32(layer - 1, 0));
        hand_mixer(&h);
        hand_norm(&h, b->s.branch, SLOT_POST_NORM, layer);
        hand_router(&h);
        hand_experts(&h, hand_behind(&h));
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
