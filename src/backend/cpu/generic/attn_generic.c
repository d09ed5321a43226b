// SPDX-License-Identifier: Apache-2.0
/* attn_generic.c - attention over paged keys and values in plain C.
 *
 * Path:     the passes call it through AttnKernels, one KV head at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of KV blocks (kernels.h), norms and rotation (elem_generic.c). */
#include "backend/cpu/generic/gemm_generic.h"
#include "backend/cpu/generic/math_generic.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <math.h>

/* A block widened for products, and the running softmax of rows. */
typedef struct Work {
    float k[ATTN_HEAD * KV_KEYS]; // [256 d][64 keys]
    float v[KV_KEYS * ATTN_HEAD]; // [64 keys][256 d]
    float scores[];               // [heads][64], then maxima and sums [ATTN_TOKENS][heads] each
} Work;

static size_t attn_generic_scratch_bytes(int32_t heads) {
    size_t rows = (size_t)heads;
    return round_up_size(sizeof(Work) + sizeof(float) * rows * (KV_KEYS + 2 * ATTN_TOKENS), 64);
}

static void append_bf16(void *block, int32_t key, const float *k, const float *v) {
    uint16_t *to_k = block, *to_v = to_k + KV_ELEMENTS;
    for (int32_t d = 0; d < ATTN_HEAD; d++) {
        to_k[kv_k_index(d, key)] = bf16_from_f32(k[d]);
        to_v[kv_v_index(d, key)] = bf16_from_f32(v[d]);
    }
}

static void append_f32(void *block, int32_t key, const float *k, const float *v) {
    float *to_k = block, *to_v = to_k + KV_ELEMENTS;
    for (int32_t d = 0; d < ATTN_HEAD; d++) {
        to_k[kv_k_index(d, key)] = k[d];
        to_v[kv_v_index(d, key)] = v[d];
    }
}

/* Widens all keys and the first n values. */
static void load_bf16(Work *work, const void *block, int32_t n) {
    const uint32_t *k = block, *v = k + KV_ELEMENTS / 2;
    for (int32_t d = 0; d < ATTN_HEAD; d += 2, k += KV_KEYS)
        for (int key = 0; key < KV_KEYS; key += 4) {
            U32x4 pair = vec_load_u32(k + key);
            vec_store(work->k + d * KV_KEYS + key, vec_from_bits(pair << 16));
            vec_store(work->k + (d + 1) * KV_KEYS + key, vec_from_bits(pair & 0xffff0000u));
        }
    float *to = work->v;
    for (int32_t row = 0; row < n * ATTN_HEAD / 32; row++, v += 16, to += 32)
        for (int c = 0; c < 16; c += 4) {
            U32x4 pair = vec_load_u32(v + c);
            vec_store(to + c, vec_from_bits(pair << 16));
            vec_store(to + 16 + c, vec_from_bits(pair & 0xffff0000u));
        }
}

static void load_f32(Work *work, const void *block, int32_t n) {
    const float *k = block, *v = k + KV_ELEMENTS;
    for (int32_t d = 0; d < ATTN_HEAD; d++)
        for (int32_t key = 0; key < KV_KEYS; key++)
            work->k[d * KV_KEYS + key] = k[kv_k_index(d, key)];
    for (int32_t key = 0; key < n; key++)
        for (int32_t d = 0; d < ATTN_HEAD; d++)
            work->v[key * ATTN_HEAD + d] = v[kv_v_index(d, key)];
}

/* Turns the scores of n keys into weights below the new maximum; returns the factor for what was
 * summed before. */
static float soften(float *scores, int32_t n, float *max, float *sum) {
    float top = *max;
    for (int32_t j = 0; j < n; j++)
        top = scores[j] > top ? scores[j] : top;
    float part[4] = {0};
    int32_t j = 0;
    for (; j + 4 <= n; j += 4)
        for (int i = 0; i < 4; i++) {
            scores[j + i] = math_exp(scores[j + i] - top);
            part[i] += scores[j + i];
        }
    for (; j < n; j++) {
        scores[j] = math_exp(scores[j] - top);
        part[j % 4] += scores[j];
    }
    float factor = *max == -INFINITY ? 0.0f : math_exp(*max - top);
    *sum = *sum * factor + ((part[0] + part[1]) + (part[2] + part[3]));
    *max = top;
    return factor;
}

/* Adds the first n keys of the loaded block to `heads` rows: o rows ldo apart, max and sum ldm. */
static void add_block(Work *work, float *o, ptrdiff_t ldo, float *max, float *sum, ptrdiff_t ldm,
                      const float *q, int32_t heads, int32_t n) {
    float *scores = work->scores;
    int32_t wide = (int32_t)round_up_size((size_t)n, 16);
    for (int32_t i = 0; i < heads * KV_KEYS; i++)
        scores[i] = 0.0f;
    gemm_add(scores, KV_KEYS, q, ATTN_HEAD, work->k, KV_KEYS, heads, wide, ATTN_HEAD);
    for (int32_t h = 0; h < heads; h++) {
        float factor = soften(scores + h * KV_KEYS, n, max + h * ldm, sum + h * ldm);
        for (int d = 0; d < ATTN_HEAD; d++)
            o[h * ldo + d] *= factor;
    }
    gemm_add(o, ldo, scores, KV_KEYS, work->v, ATTN_HEAD, heads, ATTN_HEAD, n);
}

typedef void (*LoadFn)(Work *work, const void *block, int32_t n);

static void attn_decode(float *part, const float *q, int32_t heads, const void *const *blocks,
                        int32_t n_keys, Work *work, LoadFn load) {
    for (int32_t h = 0; h < heads; h++) {
        float *row = part + h * ATTN_PART;
        row[0] = -INFINITY;
        memset(row + 1, 0, (ATTN_PART - 1) * sizeof *row);
    }
    for (int32_t at = 0; at < n_keys; at += KV_KEYS) {
        int32_t n = min_i32(KV_KEYS, n_keys - at);
        load(work, blocks[at / KV_KEYS], n);
        add_block(work, part + 2, ATTN_PART, part, part + 1, ATTN_PART, q, heads, n);
    }
}

static void attn_prefill(float *out, const float *q, int32_t heads, const void *const *blocks,
                         int32_t pos0, int32_t n_tokens, Work *work, LoadFn load) {
    float *max = work->scores + (ptrdiff_t)heads * KV_KEYS, *sum = max + ATTN_TOKENS * heads;
    size_t rows = (size_t)n_tokens * (size_t)heads;
    memset(out, 0, rows * ATTN_HEAD * sizeof *out);
    memset(sum, 0, rows * sizeof *sum);
    for (size_t i = 0; i < rows; i++)
        max[i] = -INFINITY;
    int32_t n_keys = pos0 + n_tokens;
    for (int32_t at = 0; at < n_keys; at += KV_KEYS) {
        load(work, blocks[at / KV_KEYS], min_i32(KV_KEYS, n_keys - at));
        for (int32_t t = max_i32(0, at - pos0); t < n_tokens; t++) {
            ptrdiff_t row = (ptrdiff_t)t * heads;
            add_block(work, out + row * ATTN_HEAD, ATTN_HEAD, max + row, sum + row, 1,
                      q + row * ATTN_HEAD, heads, min_i32(KV_KEYS, pos0 + t + 1 - at));
        }
    }
    for (size_t i = 0; i < rows; i++)
        for (int d = 0; d < ATTN_HEAD; d++)
            out[i * ATTN_HEAD + (size_t)d] /= sum[i];
}

static void decode_bf16(float *part, const float *q, int32_t heads, const void *const *blocks,
                        int32_t n_keys, const void *next, void *scratch) {
    UNUSED(next);
    attn_decode(part, q, heads, blocks, n_keys, scratch, load_bf16);
}

static void decode_f32(float *part, const float *q, int32_t heads, const void *const *blocks,
                       int32_t n_keys, const void *next, void *scratch) {
    UNUSED(next);
    attn_decode(part, q, heads, blocks, n_keys, scratch, load_f32);
}

static void prefill_bf16(float *out, const float *q, int32_t heads, const void *const *blocks,
                         int32_t pos0, int32_t n_tokens, void *scratch) {
    attn_prefill(out, q, heads, blocks, pos0, n_tokens, scratch, load_bf16);
}

static void prefill_f32(float *out, const float *q, int32_t heads, const void *const *blocks,
                        int32_t pos0, int32_t n_tokens, void *scratch) {
    attn_prefill(out, q, heads, blocks, pos0, n_tokens, scratch, load_f32);
}

static void attn_generic_merge(float *out, const float *part, ptrdiff_t stride, int32_t n_parts) {
    float top = -INFINITY, sum = 0.0f;
    for (int32_t i = 0; i < n_parts; i++)
        top = part[i * stride] > top ? part[i * stride] : top;
    memset(out, 0, ATTN_HEAD * sizeof *out);
    for (int32_t i = 0; i < n_parts; i++) {
        const float *p = part + i * stride;
        float factor = math_exp(p[0] - top);
        sum += factor * p[1];
        for (int d = 0; d < ATTN_HEAD; d++)
            out[d] += factor * p[2 + d];
    }
    for (int d = 0; d < ATTN_HEAD; d++)
        out[d] /= sum;
}

void attn_generic_init(AttnKernels *t, bool is_f32_kv) {
    *t = (AttnKernels){.column = "generic",
                       .is_f32_kv = is_f32_kv,
                       .scratch_bytes = attn_generic_scratch_bytes,
                       .append = is_f32_kv ? append_f32 : append_bf16,
                       .decode = is_f32_kv ? decode_f32 : decode_bf16,
                       .merge = attn_generic_merge,
                       .prefill = is_f32_kv ? prefill_f32 : prefill_bf16};
}
