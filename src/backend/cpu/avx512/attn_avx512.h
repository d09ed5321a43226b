// SPDX-License-Identifier: Apache-2.0
/* attn_avx512.h - what attention of the columns avx512 and amx has in common: queries as pairs.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_AVX512_ATTN_AVX512_H
#define LILY_BACKEND_CPU_AVX512_ATTN_AVX512_H

#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"

enum { PAIRS = ATTN_HEAD / 2 };

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

#endif
