// SPDX-License-Identifier: Apache-2.0
/* attn_avx512.c - attention over paged bf16 keys and values: scores by bf16 pairs (queries are
 * bf16 numbers, so their products are exact), values widened in registers.
 *
 * Path:     the passes call it through AttnKernels, one KV head at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of KV blocks (kernels.h), norms and rotation (elem_avx512.c). */
#include "backend/cpu/avx512/attn_avx512.h"
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/bf16.h"
#include "base/checked.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    HEADS = 8,    // query heads that share the registers of one pass over a block
    MAX_REGS = 4, // of sums of one head
    KEY_REGS = KV_KEYS / 16,
};

/* Rows are (token, head). Sizes for `heads` heads a KV head and ATTN_TOKENS tokens. */
typedef struct Work {
    uint32_t *q;      // [rows][PAIRS] bf16 pairs
    float *scores;    // [heads][64]
    float *max, *sum; // [rows]
} Work;

static size_t attn_avx512_scratch_bytes(int32_t heads) {
    size_t rows = ATTN_TOKENS * (size_t)heads;
    return round_up_size(sizeof(float) * (rows * (PAIRS + 2) + (size_t)heads * KV_KEYS), 64);
}

static Work work_open(void *scratch, int32_t heads) {
    size_t rows = ATTN_TOKENS * (size_t)heads;
    Work w = {.q = scratch};
    w.scores = (float *)(w.q + rows * PAIRS);
    w.max = w.scores + (size_t)heads * KV_KEYS;
    w.sum = w.max + rows;
    return w;
}

static void attn_avx512_append(void *block, int32_t key, const float *k, const float *v) {
    uint16_t *to_k = block, *to_v = to_k + KV_ELEMENTS;
    for (int32_t d = 0; d < ATTN_HEAD; d++) {
        to_k[kv_k_index(d, key)] = bf16_from_f32(k[d]);
        to_v[kv_v_index(d, key)] = bf16_from_f32(v[d]);
    }
}

/* Turns the scores of n keys into weights below the new maximum; returns the factor for what was
 * summed before. */
static inline float soften(float *scores, int32_t n, float *max, float *sum) {
    __m512 s[KEY_REGS], top = _mm512_set1_ps(*max), total = _mm512_setzero_ps();
    for (int r = 0; r < KEY_REGS; r++) {
        int32_t left = n - 16 * r;
        __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        s[r] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), mask, scores + 16 * r);
        top = _mm512_max_ps(top, s[r]);
    }
    float new_max = _mm512_reduce_max_ps(top);
    for (int r = 0; r < KEY_REGS; r++) {
        __m512 p = exp_ps(_mm512_sub_ps(s[r], _mm512_set1_ps(new_max)));
        _mm512_storeu_ps(scores + 16 * r, p);
        total = _mm512_add_ps(total, p);
    }
    float factor = 0.0f;
    if (*max != -INFINITY)
        factor = _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(*max - new_max)));
    *sum = *sum * factor + _mm512_reduce_add_ps(total);
    *max = new_max;
    return factor;
}

/* Rows of some heads of one token, and what they have summed. */
typedef struct Rows {
    const uint32_t *q; // [heads][PAIRS]
    float *o;          // [heads], rows ldo apart
    ptrdiff_t ldo;
    float *max, *sum; // [heads], ldm apart
    ptrdiff_t ldm;
} Rows;

/* scores [heads][64] of all keys of a block, `regs` registers of them at a time. Meanwhile the
 * first quarter of the block that follows, which lies anywhere, is fetched into L2 from *ask on:
 * scores take a third of the time that values take, and lines asked for faster than memory gives
 * them make the loads of this block wait. heads and regs are constants with heads * regs <= 16,
 * half of the registers. */
static inline __attribute__((always_inline)) void score_heads(float *scores, const uint32_t *q,
                                                              const uint32_t *k, const char **ask,
                                                              int heads, int regs) {
    for (int key = 0; key < KV_KEYS; key += 16 * regs) {
        __m512 acc[HEADS][MAX_REGS];
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < regs; r++)
                acc[h][r] = _mm512_setzero_ps();
        for (int p = 0; p < PAIRS; p++) {
            ptrdiff_t at = p * KV_KEYS + key;
            for (int r = 0; r < regs; r += 2, *ask += 64)
                _mm_prefetch(*ask, _MM_HINT_T1);
            for (int h = 0; h < heads; h++) {
                __m512bh pair = (__m512bh)_mm512_set1_epi32((int32_t)q[h * PAIRS + p]);
                for (int r = 0; r < regs; r++)
                    acc[h][r] = _mm512_dpbf16_ps(
                        acc[h][r], (__m512bh)_mm512_loadu_si512(k + at + 16 * r), pair);
            }
        }
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < regs; r++)
                _mm512_storeu_ps(scores + h * KV_KEYS + key + 16 * r, acc[h][r]);
    }
}

/* o = factor o + the first n weighted values, `regs` registers of columns at a time; meanwhile
 * three quarters of a block are fetched from `ask` on. */
static inline __attribute__((always_inline)) void weigh_heads(const Rows *rows, const float *factor,
                                                              const float *weights,
                                                              const uint32_t *v, const char *ask,
                                                              int32_t n, int heads, int regs) {
    for (int column = 0; column < ATTN_HEAD; column += 16 * regs) {
        float *o = rows->o + column;
        __m512 acc[HEADS][MAX_REGS];
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < regs; r++)
                acc[h][r] = _mm512_mul_ps(_mm512_set1_ps(factor[h]),
                                          _mm512_loadu_ps(o + h * rows->ldo + 16 * r));
        for (int32_t key = 0; key < n; key++) {
            ptrdiff_t at = (ptrdiff_t)key * PAIRS + column / 2;
            __m512 value[MAX_REGS];
            for (int r = 0; r < regs; r += 2) {
                __m512i pairs = _mm512_loadu_si512(v + at + 8 * r);
                for (int32_t i = 0; i <= key % 2; i++, ask += 64)
                    _mm_prefetch(ask, _MM_HINT_T1);
                value[r] = bf16_low_ps(pairs);
                value[r + 1] = bf16_high_ps(pairs);
            }
            for (int h = 0; h < heads; h++) {
                __m512 weight = _mm512_set1_ps(weights[h * KV_KEYS + key]);
                for (int r = 0; r < regs; r++)
                    acc[h][r] = _mm512_fmadd_ps(weight, value[r], acc[h][r]);
            }
        }
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < regs; r++)
                _mm512_storeu_ps(o + h * rows->ldo + 16 * r, acc[h][r]);
    }
}

/* Adds the first n keys of a block to `heads` rows and moves on to the rows behind them. */
static inline __attribute__((always_inline)) void add_heads(float *scores, Rows *rows,
                                                            const uint32_t *block,
                                                            const uint32_t *next, int32_t n,
                                                            int heads, int regs) {
    float factor[HEADS];
    const char *ask = (const char *)next;
    score_heads(scores, rows->q, block, &ask, heads, regs);
    for (int h = 0; h < heads; h++)
        factor[h] =
            soften(scores + h * KV_KEYS, n, rows->max + h * rows->ldm, rows->sum + h * rows->ldm);
    weigh_heads(rows, factor, scores, block + KV_ELEMENTS / 2, ask, n, heads, regs);
    rows->q += heads * PAIRS;
    rows->o += heads * rows->ldo;
    rows->max += heads * rows->ldm;
    rows->sum += heads * rows->ldm;
}

/* The same for any number of heads: the more share a pass, the less often the block is read from
 * L2. next: the block that will follow, or block itself. */
static void add_block(float *scores, Rows rows, int32_t heads, const uint32_t *block,
                      const uint32_t *next, int32_t n) {
    for (; heads >= 8; heads -= 8, next = block)
        add_heads(scores, &rows, block, next, n, 8, 2);
    if (heads & 4) {
        add_heads(scores, &rows, block, next, n, 4, 4);
        next = block;
    }
    if (heads & 2) {
        add_heads(scores, &rows, block, next, n, 2, 4);
        next = block;
    }
    if (heads & 1)
        add_heads(scores, &rows, block, next, n, 1, 4);
}

static void attn_avx512_decode(float *part, const float *q, int32_t heads,
                               const void *const *blocks, int32_t n_keys, const void *next,
                               void *scratch) {
    Work w = work_open(scratch, heads);
    pack_queries(w.q, q, (size_t)heads);
    for (int32_t h = 0; h < heads; h++) {
        float *row = part + (ptrdiff_t)h * ATTN_PART;
        memset(row, 0, ATTN_PART * sizeof *row);
        row[0] = -INFINITY;
    }
    Rows rows = {w.q, part + 2, ATTN_PART, part, part + 1, ATTN_PART};
    for (int32_t at = 0; at < n_keys; at += KV_KEYS) {
        const void *const *block = blocks + at / KV_KEYS;
        const void *ask = at + KV_KEYS < n_keys ? block[1] : next ? next : block[0];
        add_block(w.scores, rows, heads, block[0], ask, min_i32(KV_KEYS, n_keys - at));
    }
}

static void attn_avx512_prefill(float *out, const float *q, int32_t heads,
                                const void *const *blocks, int32_t pos0, int32_t n_tokens,
                                void *scratch) {
    Work w = work_open(scratch, heads);
    size_t rows = (size_t)n_tokens * (size_t)heads;
    pack_queries(w.q, q, rows);
    memset(out, 0, rows * ATTN_HEAD * sizeof *out);
    for (size_t i = 0; i < rows; i++) {
        w.max[i] = -INFINITY;
        w.sum[i] = 0.0f;
    }
    for (int32_t at = 0; at < pos0 + n_tokens; at += KV_KEYS)
        for (int32_t t = max_i32(0, at - pos0); t < n_tokens; t++) {
            ptrdiff_t row = (ptrdiff_t)t * heads;
            Rows one = {w.q + row * PAIRS, out + row * ATTN_HEAD, ATTN_HEAD,
                        w.max + row,       w.sum + row,           1};
            bool is_last = t + 1 == n_tokens && at + KV_KEYS < pos0 + n_tokens;
            add_block(w.scores, one, heads, blocks[at / KV_KEYS], blocks[at / KV_KEYS + is_last],
                      min_i32(KV_KEYS, pos0 + t + 1 - at));
        }
    for (size_t i = 0; i < rows; i++)
        for (int d = 0; d < ATTN_HEAD; d += 16) {
            float *to = out + i * ATTN_HEAD + d;
            _mm512_storeu_ps(to, _mm512_div_ps(_mm512_loadu_ps(to), _mm512_set1_ps(w.sum[i])));
        }
}

static void attn_avx512_merge(float *out, const float *part, ptrdiff_t stride, int32_t n_parts) {
    float top = -INFINITY, sum = 0.0f;
    __m512 acc[ATTN_HEAD / 16];
    for (int32_t i = 0; i < n_parts; i++)
        top = part[i * stride] > top ? part[i * stride] : top;
    for (int r = 0; r < ATTN_HEAD / 16; r++)
        acc[r] = _mm512_setzero_ps();
    for (int32_t i = 0; i < n_parts; i++) {
        const float *p = part + i * stride;
        __m512 factor = exp_ps(_mm512_set1_ps(p[0] - top));
        sum += _mm512_cvtss_f32(factor) * p[1];
        for (int r = 0; r < ATTN_HEAD / 16; r++)
            acc[r] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(p + 2 + 16 * r), acc[r]);
    }
    for (int r = 0; r < ATTN_HEAD / 16; r++)
        _mm512_storeu_ps(out + 16 * r, _mm512_div_ps(acc[r], _mm512_set1_ps(sum)));
}

void attn_avx512_init(AttnKernels *t) {
    *t = (AttnKernels){.column = "avx512",
                       .is_f32_kv = false,
                       .scratch_bytes = attn_avx512_scratch_bytes,
                       .append = attn_avx512_append,
                       .decode = attn_avx512_decode,
                       .merge = attn_avx512_merge,
                       .prefill = attn_avx512_prefill};
}
