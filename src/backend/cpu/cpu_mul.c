// SPDX-License-Identifier: Apache-2.0
/* cpu_mul.c - products with packed matrices cut to the kernels' sizes, and how a stage's bytes are
 * shared out.
 *
 * Owns:     nothing.  Thread: any member, with its own CpuMember. */
#include "backend/cpu/cpu.h"

static MatmulFn mul_kernel(const MatmulKernels *k, BatchPhase phase, int32_t bits) {
    if (phase == PHASE_DECODE)
        return bits == 4 ? k->decode_q4 : k->decode_q8;
    return bits == 4 ? k->prefill_q4 : k->prefill_q8;
}

int32_t cpu_chunk_strips(const Cpu *b, const PackedMatrix *w) {
    return max_i32(2,
                   (int32_t)(b->k.matmul.chunk_bytes / w->strip_bytes) / 2 * 2); // they like pairs
}

size_t cpu_row_step(const Cpu *b, int32_t n_groups, size_t row_bytes) {
    const MatmulKernels *k = &b->k.matmul;
    return k->block_bytes ? k->block_bytes(n_groups) / ROW_BLOCK : row_bytes;
}

void cpu_make_blocks(const Cpu *b, uint8_t *to, RowsIn x, int32_t n_groups, int32_t m) {
    const MatmulKernels *k = &b->k.matmul;
    if (!k->block_bytes)
        return;
    for (int32_t at = 0; at < m; at += ROW_BLOCK, to += k->block_bytes(n_groups)) {
        const void *rows[ROW_BLOCK];
        int32_t n = min_i32(ROW_BLOCK, m - at);
        for (int32_t i = 0; i < n; i++)
            rows[i] = x.base + (size_t)(x.index ? x.index[at + i] : at + i) * x.stride;
        k->block(to, rows, n_groups, n);
    }
}

void cpu_put_rows(const Cpu *b, const RowsPut *put) {
    const MatmulKernels *k = &b->k.matmul;
    if (put->phase == PHASE_DECODE || !k->block_bytes) {
        for (int32_t i = 0; i < put->m; i++)
            k->prepare(put->rows + (size_t)(put->row + i) * put->bytes, put->n_groups, put->group,
                       put->n, put->x + (size_t)i * put->ldx);
        return;
    }
    for (int32_t i = 0, n; i < put->m; i += n) {
        int32_t row = put->row + i, first = row % ROW_BLOCK;
        n = min_i32(ROW_BLOCK - first, put->m - i);
        k->block_put(b->s.blocks + (size_t)(row / ROW_BLOCK) * k->block_bytes(put->n_groups), first,
                     n, put->group, put->n, put->x + (size_t)i * put->ldx, (ptrdiff_t)put->ldx);
    }
}

void cpu_mul(const Cpu *b, CpuMember *me, const Product *p) {
    const PackedMatrix *w = p->w;
    MatmulFn fn = mul_kernel(&b->k.matmul, p->phase, w->bits);
    int32_t step = p->strips.end - p->strips.first;
    if (p->m > MATMUL_ROWS) // the strips are passed over more than once: few enough to stay in L2
        step = cpu_chunk_strips(b, w);
    for (int32_t s = p->strips.first; s < p->strips.end; s += step) {
        int32_t n = min_i32(step, p->strips.end - s);
        const uint8_t *next = s + n < p->strips.end ? cpu_strip(w, p->expert, s + n) : p->next;
        for (int32_t at = 0; at < p->m; at += MATMUL_ROWS) {
            int32_t rows = min_i32(MATMUL_ROWS, p->m - at);
            for (int32_t i = 0; i < rows; i++) {
                size_t in = p->x.index ? (size_t)p->x.index[at + i] : (size_t)(at + i);
                size_t out = p->y.index ? (size_t)p->y.index[at + i] : (size_t)(at + i);
                me->px[i] = p->x.base + in * p->x.stride;
                me->y[i] =
                    p->y.base + out * p->y.stride + (size_t)(s - p->strips.first) * STRIP_ROWS;
            }
            fn(me->y, cpu_strip(w, p->expert, s), w->n_groups, n, me->px, rows, next);
        }
    }
}

/* How many units begin below byte `end` of a list in which they begin at byte `at`. */
static int32_t units_below(uint64_t end, uint64_t at, int32_t n_units, uint64_t unit_bytes) {
    if (end <= at)
        return 0;
    uint64_t n = (end - at + unit_bytes - 1) / unit_bytes;
    return n < (uint64_t)n_units ? (int32_t)n : n_units;
}

Span cpu_share(uint64_t at, int32_t n_units, uint64_t unit_bytes, uint64_t total, int member,
               int n_members) {
    uint64_t low = total / (uint64_t)n_members * (uint64_t)member;
    uint64_t high = member + 1 == n_members ? at + (uint64_t)n_units * unit_bytes
                                            : total / (uint64_t)n_members * (uint64_t)(member + 1);
    return (Span){units_below(low, at, n_units, unit_bytes),
                  units_below(high, at, n_units, unit_bytes)};
}

Span cpu_share_even(int32_t n_jobs, int member, int n_members) {
    return (Span){(int32_t)((int64_t)n_jobs * member / n_members),
                  (int32_t)((int64_t)n_jobs * (member + 1) / n_members)};
}

/* Appends a matrix behind those that a stage has. */
static int32_t stage_add(StagePart *parts, int32_t n, const PackedMatrix *w) {
    int32_t column = n ? parts[n - 1].column + parts[n - 1].w->n_strips * STRIP_ROWS : 0;
    parts[n] = (StagePart){w, column};
    return n + 1;
}

int32_t cpu_stage_mixer(const CpuLayer *l, StagePart parts[STAGE_PARTS]) {
    int32_t n = 0;
    if (l->is_attn) {
        n = stage_add(parts, n, &l->m[SLOT_ATTN_Q]);
        n = stage_add(parts, n, &l->m[SLOT_ATTN_K]);
        return stage_add(parts, n, &l->m[SLOT_ATTN_V]);
    }
    n = stage_add(parts, n, &l->m[SLOT_GDN_QKV]);
    n = stage_add(parts, n, &l->m[SLOT_GDN_Z]);
    n = stage_add(parts, n, &l->m[SLOT_GDN_A]);
    return stage_add(parts, n, &l->m[SLOT_GDN_B]);
}

int32_t cpu_stage_router(const CpuLayer *l, StagePart parts[STAGE_PARTS]) {
    int32_t n = stage_add(parts, 0, &l->m[SLOT_ROUTER]);
    return stage_add(parts, n, &l->m[SLOT_SHARED_MIX]);
}
