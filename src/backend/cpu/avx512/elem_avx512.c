// SPDX-License-Identifier: Apache-2.0
/* elem_avx512.c - norms, gates and rotations of single rows, 16 values at a time.
 *
 * Path:     the passes call it through ElemKernels.
 * Owns:     nothing.  Thread: any. */
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"

#include <math.h>

static bool elem_avx512_is_finite(const float *x, int32_t n) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __mmask16 bad = 0;
    for (int32_t i = 0; i < n; i += 16)
        bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_loadu_si512(x + i), exponent),
                                       exponent);
    return bad == 0;
}

/* Sum of squares in 2 registers, whatever n. */
static inline float square_sum(const float *x, int32_t n) {
    __m512 a = _mm512_setzero_ps(), b = a;
    int32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 v = _mm512_loadu_ps(x + i), w = _mm512_loadu_ps(x + i + 16);
        a = _mm512_fmadd_ps(v, v, a);
        b = _mm512_fmadd_ps(w, w, b);
    }
    if (i < n) {
        __m512 v = _mm512_loadu_ps(x + i);
        a = _mm512_fmadd_ps(v, v, a);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}

static bool elem_avx512_add_norm(float *out, float *x, const float *add, const float *gain,
                                 float eps, int32_t n) {
    if (add)
        for (int32_t i = 0; i < n; i += 16)
            _mm512_storeu_ps(x + i,
                             _mm512_add_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(add + i)));
    float sum = square_sum(x, n), r;
    if (isfinite(sum)) {
        r = 1.0f / sqrtf(sum / (float)n + eps);
    } else { // large but finite values square beyond f32
        if (!elem_avx512_is_finite(x, n))
            return false;
        double wide = 0;
        for (int32_t i = 0; i < n; i++)
            wide += (double)x[i] * (double)x[i];
        r = (float)(1.0 / sqrt(wide / n + (double)eps));
    }
    __m512 factor = _mm512_set1_ps(r);
    for (int32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor),
                                                _mm512_loadu_ps(gain + i)));
    return true;
}

static void elem_avx512_swiglu(float *out, const float *gate, const float *up, int32_t n) {
    for (int32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(
            out + i, _mm512_mul_ps(silu_ps(_mm512_loadu_ps(gate + i)), _mm512_loadu_ps(up + i)));
}

static void elem_avx512_sigmoid_gate(float *out, const float *x, const float *gate, int32_t n) {
    for (int32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_div_ps(_mm512_loadu_ps(x + i),
                                                one_plus_exp_neg_ps(_mm512_loadu_ps(gate + i))));
}

static inline __m512 round_if(__m512 x, bool is_bf16) { return is_bf16 ? bf16_round_ps(x) : x; }

static void elem_avx512_head_rope(float *out, const float *x, const float *gain,
                                  const float *cos_sin, float eps, float scale, bool is_bf16) {
    enum { HALF = ROPE_DIMS / 2 };
    __m512 r = _mm512_set1_ps(1.0f / sqrtf(square_sum(x, ATTN_HEAD) / ATTN_HEAD + eps));
    __m512 factor = _mm512_set1_ps(scale), v[ATTN_HEAD / 16];
    for (int i = 0; i < ATTN_HEAD / 16; i++) {
        v[i] = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), r);
        v[i] = round_if(_mm512_mul_ps(v[i], _mm512_loadu_ps(gain + 16 * i)), is_bf16);
    }
    for (int i = 0; i < HALF / 16; i++) {
        __m512 a = v[i], b = v[i + HALF / 16], c = _mm512_loadu_ps(cos_sin + 16 * i);
        __m512 s = _mm512_loadu_ps(cos_sin + HALF + 16 * i);
        v[i] = round_if(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), is_bf16);
        v[i + HALF / 16] = round_if(_mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)), is_bf16);
    }
    for (int i = 0; i < ATTN_HEAD / 16; i++)
        _mm512_storeu_ps(out + 16 * i, _mm512_mul_ps(v[i], factor));
}

static void elem_avx512_axpy(float *y, float w, const float *x, int32_t n) {
    __m512 factor = _mm512_set1_ps(w);
    for (int32_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(y + i,
                         _mm512_fmadd_ps(factor, _mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
}

void elem_avx512_init(ElemKernels *t) {
    *t = (ElemKernels){.column = "avx512",
                       .add_norm = elem_avx512_add_norm,
                       .swiglu = elem_avx512_swiglu,
                       .sigmoid_gate = elem_avx512_sigmoid_gate,
                       .head_rope = elem_avx512_head_rope,
                       .axpy = elem_avx512_axpy,
                       .is_finite = elem_avx512_is_finite};
}
