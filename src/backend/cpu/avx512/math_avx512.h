// SPDX-License-Identifier: Apache-2.0
/* math_avx512.h - exponential and its kin, 16 values at once; bf16 pairs widened.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_AVX512_MATH_AVX512_H
#define LILY_BACKEND_CPU_AVX512_MATH_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* e^x within 2 ulp for |x| <= 87; 0 below -87, e^87 above 87; NaN stays NaN. As math_generic.h. */
static inline __m512 exp_ps(__m512 x) {
    __m512 c = _mm512_min_ps(_mm512_set1_ps(87.0f), x); // the second operand when one is NaN
    c = _mm512_max_ps(_mm512_set1_ps(-87.0f), c);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(c, _mm512_set1_ps(1.44269504088896341f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), c);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __mmask16 is_number = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(is_number, p, n);
}

/* 1 + e^-x. */
static inline __m512 one_plus_exp_neg_ps(__m512 x) {
    return _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x)));
}
static inline __m512 silu_ps(__m512 x) { return _mm512_div_ps(x, one_plus_exp_neg_ps(x)); }

/* The low and the high bf16 of each 32-bit lane as f32. */
static inline __m512 bf16_low_ps(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
static inline __m512 bf16_high_ps(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* 16 bf16 in memory order as f32. */
static inline __m512 bf16_load_ps(const uint16_t *p) {
    __m256i half = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* bf16 in the high half of each lane, rounded to nearest even; inputs that are no NaN. */
static inline __m512 bf16_round_ps(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512 y = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y, x);
}

#endif
