// SPDX-License-Identifier: Apache-2.0
/* attn_avx512.h - what attention of the columns avx512 and amx has in common: queries as pairs,
 * scores to weights.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_AVX512_ATTN_AVX512_H
#define LILY_BACKEND_CPU_AVX512_ATTN_AVX512_H

#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"

#include <math.h>

enum { PAIRS = ATTN_HEAD / 2, KEY_REGS = KV_KEYS / 16 };

/* Queries as bf16 pairs; they are bf16 numbers already, times a power of two. */
static inline void pack_queries(uint32_t *to, const float *q, size_t rows) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (size_t i = 0; i < rows * PAIRS; i += 16, q += 32) {
        __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 16);
        __m512i low = _mm512_srli_epi32(_mm512_permutex2var_epi32(a, even, b), 16);
        __m512i high = _mm512_permutex2var_epi32(a, odd, b);
        _mm512_storeu_si512(to + i, _mm512_mask_blend_epi16(0xaaaaaaaa, low, high));
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

#endif
