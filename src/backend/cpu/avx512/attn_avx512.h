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
#include <stdbool.h>

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

/* The first or the second 16 of 32 bf16 as f32. */
static inline __m512 half_ps(__m512i halves, int i) {
    __m256i half = i ? _mm512_extracti64x4_epi64(halves, 1) : _mm512_castsi512_si256(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Turns the scores of n keys into weights below the new maximum; returns the factor for what was
 * summed before. is_bf16 (a constant): weights become bf16, in order, in the first half of scores,
 * and the sum is theirs. */
static inline __attribute__((always_inline)) float soften(float *scores, int32_t n, float *max,
                                                          float *sum, bool is_bf16) {
    __m512 s[KEY_REGS], top = _mm512_set1_ps(*max), total = _mm512_setzero_ps();
    for (int r = 0; r < KEY_REGS; r++) {
        int32_t left = n - 16 * r;
        __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
        s[r] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), mask, scores + 16 * r);
        top = _mm512_max_ps(top, s[r]);
    }
    float new_max = _mm512_reduce_max_ps(top);
    for (int r = 0; r < KEY_REGS; r += 2) {
        __m512 p[2];
        for (int i = 0; i < 2; i++)
            p[i] = exp_ps(_mm512_sub_ps(s[r + i], _mm512_set1_ps(new_max)));
        if (is_bf16) {
            __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]);
            _mm512_storeu_si512(scores + 8 * r, halves);
            for (int i = 0; i < 2; i++)
                p[i] = half_ps(halves, i);
        }
        for (int i = 0; i < 2; i++) {
            if (!is_bf16)
                _mm512_storeu_ps(scores + 16 * (r + i), p[i]);
            total = _mm512_add_ps(total, p[i]);
        }
    }
    float factor = 0.0f;
    if (*max != -INFINITY)
        factor = _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(*max - new_max)));
    *sum = *sum * factor + _mm512_reduce_add_ps(total);
    *max = new_max;
    return factor;
}

#endif
