// SPDX-License-Identifier: Apache-2.0
/* cpu_moe.c - mixture of experts: the choice, the lists of who chose what, an expert's products.
 *
 * Path:     cpu_decode.c and cpu_prefill.c cut the work into jobs and call these.
 * Owns:     nothing.  Thread: any member, with its own CpuMember. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

void cpu_moe_choose(const Cpu *b, const float *logits, int32_t *ids, float *weights) {
    int32_t k = b->c.top_k, n = 0;
    for (int32_t e = 0; e < b->c.n_experts; e++) {
        if (n == k && !(logits[e] > logits[ids[k - 1]]))
            continue;
        int32_t at = n < k ? n++ : k - 1; // behind all that are not less
        for (; at > 0 && logits[e] > logits[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < k; i++) {
        weights[i] = expf(logits[ids[i]] - logits[ids[0]]);
        sum += weights[i];
    }
    for (int32_t i = 0; i < k; i++)
        weights[i] /= sum;
}

size_t cpu_moe_list_ints(const ModelConfig *c, int32_t rows) {
    return 2 * (size_t)c->n_experts + 1 + 2 * (size_t)rows * (size_t)c->top_k;
}

ExpertLists cpu_moe_sort(const Cpu *b, const int32_t *topk, int32_t n_rows, int32_t *memory) {
    int32_t n_experts = b->c.n_experts, n_slots = n_rows * b->c.top_k;
    ExpertLists lists = {.active = memory, .first = memory + n_experts};
    lists.order = lists.first + n_experts + 1;
    lists.place = lists.order + n_slots;
    int32_t *first = lists.first;
    memset(first, 0, sizeof *first * (size_t)(n_experts + 1));
    for (int32_t i = 0; i < n_slots; i++)
        first[topk[i]]++;
    int32_t at = 0;
    for (int32_t e = 0; e <= n_experts; e++) { // counts to places
        int32_t n = first[e];
        first[e] = at;
        if (e < n_experts && n)
            lists.active[lists.n_active++] = e;
        at += n;
    }
    for (int32_t i = 0; i < n_slots; i++) {
        lists.place[i] = first[topk[i]]++;
        lists.order[lists.place[i]] = i;
    }
    for (int32_t e = n_experts; e > 0; e--) // first[e] has moved on to first[e + 1]
        first[e] = first[e - 1];
    first[0] = 0;
    return lists;
}

/* SwiGLU of m rows in gate and up and preparation of the job's groups of their rows. */
static void finish_inner(const Cpu *b, CpuMember *me, const InnerJob *job, uint8_t *act,
                         size_t act_bytes, int32_t n_groups, int32_t m) {
    int32_t n = job->n_units * EXPERT_UNIT;
    for (int32_t i = 0; i < m; i++) {
        float *gate = me->gate + (size_t)i * (size_t)n;
        b->k.elem.swiglu(gate, gate, me->up + (size_t)i * (size_t)n, n);
        b->k.matmul.prepare(act + (size_t)i * act_bytes, n_groups, job->unit, job->n_units, gate);
    }
}

enum { UNIT_STRIPS = EXPERT_UNIT / STRIP_ROWS };

const uint8_t *cpu_moe_inner_first(const CpuLayer *l, int32_t expert, int32_t unit) {
    return cpu_strip(&l->m[SLOT_EXPERT_GATE], expert, unit * UNIT_STRIPS);
}

/* gate and up of the job's units for m rows (at most MATMUL_ROWS) into this member's gate and up.
 */
static void gate_up(const Cpu *b, CpuMember *me, const InnerJob *job, const PackedMatrix *gate,
                    const PackedMatrix *up, int32_t expert, RowsIn x, int32_t m) {
    Product p = {.phase = job->phase,
                 .w = gate,
                 .expert = expert,
                 .strips = {job->unit * UNIT_STRIPS, (job->unit + job->n_units) * UNIT_STRIPS},
                 .y = {me->gate, (size_t)job->n_units * EXPERT_UNIT, NULL},
                 .x = x,
                 .m = m,
                 .next = cpu_strip(up, expert, job->unit * UNIT_STRIPS)};
    cpu_mul(b, me, &p);
    p.w = up;
    p.y.base = me->up;
    p.next = job->next;
    cpu_mul(b, me, &p);
}

int32_t cpu_moe_act_row(const Cpu *b, const ExpertLists *lists, int32_t i) {
    int32_t first = lists->first[lists->active[i]];
    return b->k.matmul.block_bytes ? (first / ROW_BLOCK + i) * ROW_BLOCK : first;
}

size_t cpu_moe_act_rows(const Cpu *b, int32_t n_rows) {
    size_t slots = (size_t)n_rows * (size_t)b->c.top_k;
    size_t ends = min_size(slots, (size_t)b->c.n_experts);
    return b->k.matmul.block_bytes ? (slots / ROW_BLOCK + ends) * ROW_BLOCK : slots;
}

/* Rows in blocks, and where their inner values go. */
typedef struct InnerBlocks {
    const PackedMatrix *gate, *up;
    int32_t expert, m;
    const uint8_t *x;
    uint8_t *act;
    int32_t act_groups;
} InnerBlocks;

/* The job's inner values of those rows. */
static void inner_blocks(const Cpu *b, CpuMember *me, const InnerJob *job, const InnerBlocks *io) {
    size_t bytes = b->k.matmul.block_bytes(io->gate->n_groups);
    for (int32_t i = 0; i < io->m; i += ROW_BLOCK)
        me->px[i] = io->x + (size_t)(i / ROW_BLOCK) * bytes;
    int32_t strip = job->unit * UNIT_STRIPS;
    b->k.matmul.inner(&(MatmulInner){.gate = cpu_strip(io->gate, io->expert, strip),
                                     .up = cpu_strip(io->up, io->expert, strip),
                                     .gate_bits = io->gate->bits,
                                     .up_bits = io->up->bits,
                                     .n_groups = io->gate->n_groups,
                                     .n_strips = job->n_units * UNIT_STRIPS,
                                     .strip = strip,
                                     .x = me->px,
                                     .m = io->m,
                                     .act = io->act,
                                     .act_bytes = b->k.matmul.block_bytes(io->act_groups)});
}

static bool has_blocks(const Cpu *b, const InnerJob *job) {
    return job->phase == PHASE_PREFILL && b->k.matmul.block_bytes;
}

void cpu_moe_inner(const Cpu *b, CpuMember *me, const InnerJob *job, const ExpertLists *lists,
                   Span places) {
    const PackedMatrix *w = job->l->m, *gate = &w[SLOT_EXPERT_GATE], *up = &w[SLOT_EXPERT_UP];
    int32_t n_groups = w[SLOT_EXPERT_DOWN].n_groups;
    int32_t rows[MATMUL_ROWS], first = lists->first[job->expert];
    for (int32_t at = places.first; at < places.end; at += MATMUL_ROWS) {
        int32_t m = min_i32(MATMUL_ROWS, places.end - at);
        for (int32_t i = 0; i < m; i++)
            rows[i] = lists->order[at + i] / b->c.top_k;
        RowsIn x = {job->in, b->in_bytes, rows};
        if (has_blocks(b, job)) {
            size_t row = (size_t)(job->act_row + at - first);
            cpu_make_blocks(b, me->blocks_in, x, gate->n_groups, m);
            inner_blocks(b, me, job,
                         &(InnerBlocks){gate, up, job->expert, m, me->blocks_in,
                                        b->s.act + row * cpu_row_step(b, n_groups, 0), n_groups});
            continue;
        }
        gate_up(b, me, job, gate, up, job->expert, x, m);
        finish_inner(b, me, job, b->s.act + (size_t)at * b->act_bytes, b->act_bytes, n_groups, m);
    }
}

void cpu_moe_inner_shared(const Cpu *b, CpuMember *me, const InnerJob *job, int32_t row,
                          int32_t m) {
    const PackedMatrix *w = job->l->m, *gate = &w[SLOT_SHARED_GATE], *up = &w[SLOT_SHARED_UP];
    int32_t n_groups = w[SLOT_SHARED_DOWN].n_groups;
    for (int32_t at = row; at < row + m; at += MATMUL_ROWS) {
        int32_t n = min_i32(MATMUL_ROWS, row + m - at);
        RowsIn x = {job->in + (size_t)at * b->in_bytes, b->in_bytes, NULL};
        if (has_blocks(b, job)) {
            uint8_t *act = b->s.shared_act + (size_t)at * cpu_row_step(b, n_groups, 0);
            cpu_make_blocks(b, me->blocks_in, x, gate->n_groups, n);
            inner_blocks(b, me, job, &(InnerBlocks){gate, up, 0, n, me->blocks_in, act, n_groups});
            continue;
        }
        gate_up(b, me, job, gate, up, 0, x, n);
        finish_inner(b, me, job, b->s.shared_act + (size_t)at * b->shared_act_bytes,
                     b->shared_act_bytes, n_groups, n);
    }
}

float cpu_moe_shared_weight(const Cpu *b, int32_t row) {
    StagePart parts[STAGE_PARTS];
    cpu_stage_router(&b->model.layers[0], parts); // the same columns in every layer
    float mix = b->s.router[(size_t)row * (size_t)b->router_width + (size_t)parts[1].column];
    return 1.0f / (1.0f + expf(-mix));
}

void cpu_moe_combine(const Cpu *b, float *to, const ExpertLists *lists, const float *out,
                     const float *shared, size_t ld, const float *weights, int32_t row, int32_t n) {
    memset(to, 0, sizeof *to * (size_t)n);
    for (int32_t i = 0; i < b->c.top_k; i++) {
        size_t slot = (size_t)row * (size_t)b->c.top_k + (size_t)i;
        b->k.elem.axpy(to, weights[slot], out + (size_t)lists->place[slot] * ld, n);
    }
    b->k.elem.axpy(to, cpu_moe_shared_weight(b, row), shared + (size_t)row * ld, n);
}
