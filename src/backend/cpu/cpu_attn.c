// SPDX-License-Identifier: Apache-2.0
/* cpu_attn.c - full attention between its projections: head norms, rotation, cache, attention,
 * gate.
 *
 * Path:     cpu_decode.c: cpu_attn_decode for runs of parts, then cpu_attn_finish; cpu_prefill.c:
 *           cpu_attn_append for each row, then cpu_attn_prefill for each tile of rows.
 * Owns:     nothing.  Thread: any member.
 * Not here: scores and softmax (attn_*.c). */
#include "backend/cpu/cpu.h"
#include "base/bf16.h"

/* A projected row: q_proj gives each head 256 query values, then 256 gate values. */
static const float *row_query(const float *row, int32_t head) {
    return row + (size_t)head * 2 * ATTN_HEAD;
}
static const float *row_gate(const float *row, int32_t head) {
    return row_query(row, head) + ATTN_HEAD;
}

/* q [256] of one head: norm, rotation, 1/16. */
static void rotate_query(const Cpu *b, const CpuLayer *l, float *q, const float *x,
                         const float *cos_sin) {
    b->k.elem.head_rope(q, x, l->plain[SLOT_ATTN_Q_NORM], cos_sin, (float)b->c.rms_eps,
                        1.0f / 16.0f, !b->plan.is_f32_activations); // 16 = sqrt(256)
}

/* Appends key and value of one KV head of a row. */
static void append_row(const Cpu *b, const CpuLayer *l, const Pass *pass, int32_t row,
                       int32_t kv_head) {
    StagePart parts[STAGE_PARTS];
    cpu_stage_mixer(l, parts); // q, k, v
    const PassRow *r = &pass->rows[row];
    const float *proj = b->s.proj + (size_t)row * (size_t)b->proj_width;
    float k[ATTN_HEAD];
    b->k.elem.head_rope(k, proj + parts[1].column + kv_head * ATTN_HEAD, l->plain[SLOT_ATTN_K_NORM],
                        pass->cos_sin + (size_t)row * ROPE_DIMS, (float)b->c.rms_eps, 1.0f,
                        !b->plan.is_f32_activations);
    int32_t block = b->batch->seqs[r->seq].blocks[r->pos / KV_BLOCK];
    b->k.attn.append(cpu_kv(b, l, block, kv_head), r->pos % KV_BLOCK, k,
                     proj + parts[2].column + kv_head * ATTN_HEAD);
}

/* Addresses of blocks [first, first + n) of a row's sequence for one KV head. */
static void list_blocks(const Cpu *b, CpuMember *me, const CpuLayer *l, const PassRow *r,
                        int32_t kv_head, int32_t first, int32_t n) {
    const int32_t *blocks = b->batch->seqs[r->seq].blocks + first;
    for (int32_t i = 0; i < n; i++)
        me->blocks[i] = cpu_kv(b, l, blocks[i], kv_head);
}

int32_t cpu_attn_part_blocks(int32_t pos) {
    return max_i32(ATTN_PART_BLOCKS, div_up_i32(pos / KV_BLOCK + 1, ATTN_MAX_PARTS));
}

/* Part `part` of one row and KV head: [heads][ATTN_PART]. */
static float *row_part(const Cpu *b, int32_t row, int32_t kv_head, int32_t part) {
    size_t heads = (size_t)(b->c.n_q_heads / b->c.n_kv_heads);
    size_t at = ((size_t)row * (size_t)b->c.n_kv_heads + (size_t)kv_head) * (size_t)b->n_parts_max;
    return b->s.parts + (at + (size_t)part) * heads * ATTN_PART;
}

void cpu_attn_decode(const Cpu *b, CpuMember *me, const CpuLayer *l, int32_t row, int32_t kv_head,
                     Span parts) {
    const Pass *pass = &b->pass[PHASE_DECODE];
    const PassRow *r = &pass->rows[row];
    int32_t heads = b->c.n_q_heads / b->c.n_kv_heads;
    int32_t per = cpu_attn_part_blocks(r->pos), first = parts.first * per;
    int32_t end = min_i32(parts.end * per, r->pos / KV_BLOCK + 1);
    if (end * KV_BLOCK > r->pos) // no other part reads the new key
        append_row(b, l, pass, row, kv_head);
    const float *proj = b->s.proj + (size_t)row * (size_t)b->proj_width;
    for (int32_t h = 0; h < heads; h++)
        rotate_query(b, l, me->attn_q + h * ATTN_HEAD, row_query(proj, kv_head * heads + h),
                     pass->cos_sin + (size_t)row * ROPE_DIMS);
    list_blocks(b, me, l, r, kv_head, first, end - first);
    for (int32_t part = parts.first; part < parts.end; part++) {
        int32_t at = part * per, n_keys = min_i32(per * KV_BLOCK, r->pos + 1 - at * KV_BLOCK);
        const void *const *blocks = me->blocks + (at - first);
        b->k.attn.decode(row_part(b, row, kv_head, part), me->attn_q, heads, blocks, n_keys,
                         part + 1 < parts.end ? blocks[per] : NULL, me->attn);
    }
}

/* Gates `heads` heads' outputs o [m][heads][256] for rows [row, row + m) and leaves them for the
 * last projection. */
static void gate_heads(const Cpu *b, float *o, BatchPhase phase, int32_t row, int32_t m,
                       int32_t head, int32_t heads) {
    int32_t width = heads * ATTN_HEAD;
    for (int32_t t = 0; t < m; t++) {
        const float *proj = b->s.proj + (size_t)(row + t) * (size_t)b->proj_width;
        for (int32_t h = 0; h < heads; h++) {
            float *own = o + t * width + h * ATTN_HEAD;
            b->k.elem.sigmoid_gate(own, own, row_gate(proj, head + h), ATTN_HEAD);
        }
    }
    cpu_put_rows(b, &(RowsPut){.phase = phase,
                               .rows = b->s.inner,
                               .bytes = b->inner_bytes,
                               .n_groups = config_q_dim(&b->c) / GROUP_INPUTS,
                               .row = row,
                               .m = m,
                               .group = head * ATTN_HEAD / GROUP_INPUTS,
                               .n = width / GROUP_INPUTS,
                               .x = o,
                               .ldx = (size_t)width});
}

void cpu_attn_finish(const Cpu *b, CpuMember *me, int32_t row, int32_t head) {
    int32_t pos = b->pass[PHASE_DECODE].rows[row].pos;
    int32_t n_parts = div_up_i32(pos / KV_BLOCK + 1, cpu_attn_part_blocks(pos));
    int32_t heads = b->c.n_q_heads / b->c.n_kv_heads;
    const float *part = row_part(b, row, head / heads, 0) + (ptrdiff_t)(head % heads) * ATTN_PART;
    b->k.attn.merge(me->attn_o, part, (ptrdiff_t)heads * ATTN_PART, n_parts);
    gate_heads(b, me->attn_o, PHASE_DECODE, row, 1, head, 1);
}

void cpu_attn_append(const Cpu *b, const CpuLayer *l, int32_t row) {
    for (int32_t h = 0; h < b->c.n_kv_heads; h++)
        append_row(b, l, &b->pass[PHASE_PREFILL], row, h);
}

void cpu_attn_prefill(const Cpu *b, CpuMember *me, const CpuLayer *l, int32_t row, int32_t n,
                      int32_t kv_head) {
    const Pass *pass = &b->pass[PHASE_PREFILL];
    const PassRow *r = &pass->rows[row];
    int32_t heads = b->c.n_q_heads / b->c.n_kv_heads;
    for (int32_t t = 0; t < n; t++)
        for (int32_t h = 0; h < heads; h++)
            rotate_query(b, l, me->attn_q + (size_t)(t * heads + h) * ATTN_HEAD,
                         row_query(b->s.proj + (size_t)(row + t) * (size_t)b->proj_width,
                                   kv_head * heads + h),
                         pass->cos_sin + (size_t)(row + t) * ROPE_DIMS);
    list_blocks(b, me, l, r, kv_head, 0, div_up_i32(r->pos + n, KV_BLOCK));
    b->k.attn.prefill(me->attn_o, me->attn_q, heads, me->blocks, r->pos, n, me->attn);
    gate_heads(b, me->attn_o, PHASE_PREFILL, row, n, kv_head * heads, heads);
}
