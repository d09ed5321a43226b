// SPDX-License-Identifier: Apache-2.0
/* recur_avx512.c - the gated delta rule of one head: a row of the state is 8 registers.
 *
 * Path:     the passes call it through RecurKernels, one head at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: gates and head mapping (cpu_gdn.c); formulas of the chunk form (recur_generic.c). */
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

enum { W = GDN_HEAD, C = RECUR_CHUNK, R = W / 16 };

/* Asks for the 16 f32 that stand `next` behind at, 0: nothing. */
static inline void ask_ahead(const float *at, ptrdiff_t next) {
    if (next)
        _mm_prefetch((const char *)(at + next), _MM_HINT_T1);
}

static void recur_avx512_conv(float *c, const float *const *rows, const float *w, ptrdiff_t ldw,
                              int32_t m, ptrdiff_t next) {
    for (int32_t t = 0; t < m; t++, rows++, c += W)
        for (int d = 0; d < W; d += 16) {
            ask_ahead(rows[3] + d, next);
            __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(w + d), _mm512_loadu_ps(rows[0] + d));
            for (int i = 1; i < 4; i++)
                sum = _mm512_fmadd_ps(_mm512_loadu_ps(w + i * ldw + d),
                                      _mm512_loadu_ps(rows[i] + d), sum);
            _mm512_storeu_ps(c + d, silu_ps(sum));
        }
}

static inline float square_sum(const float *x) {
    __m512 a = _mm512_setzero_ps(), b = a;
    for (int d = 0; d < W; d += 32) {
        __m512 v = _mm512_loadu_ps(x + d), w = _mm512_loadu_ps(x + d + 16);
        a = _mm512_fmadd_ps(v, v, a);
        b = _mm512_fmadd_ps(w, w, b);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(a, b));
}

static void recur_avx512_unit(float *x, float factor, int32_t m) {
    for (int32_t t = 0; t < m; t++, x += W) {
        __m512 r = _mm512_set1_ps(factor / sqrtf(square_sum(x) + 1e-6f));
        for (int d = 0; d < W; d += 16)
            _mm512_storeu_ps(x + d, _mm512_mul_ps(_mm512_loadu_ps(x + d), r));
    }
}

static void recur_avx512_step(float *s, float *o, const float *q, const float *k, const float *v,
                              float alpha, float beta, const float *next) {
    const float *ask = next ? next : s;
    __m512 sum[R], d[R], decay = _mm512_set1_ps(alpha), rate = _mm512_set1_ps(beta);
    for (int j = 0; j < R; j++)
        sum[j] = _mm512_setzero_ps();
    for (int i = 0; i < W; i++) {
        __m512 ki = _mm512_set1_ps(k[i]);
        for (int j = 0; j < R; j++)
            sum[j] = _mm512_fmadd_ps(ki, _mm512_loadu_ps(s + i * W + 16 * j), sum[j]);
    }
    for (int j = 0; j < R; j++) {
        d[j] = _mm512_fnmadd_ps(decay, sum[j], _mm512_loadu_ps(v + 16 * j));
        d[j] = _mm512_mul_ps(rate, d[j]);
        sum[j] = _mm512_setzero_ps();
    }
    for (int i = 0; i < W; i++) { // the state again, now from L2
        __m512 ki = _mm512_set1_ps(k[i]), qi = _mm512_set1_ps(q[i]);
        for (int j = 0; j < R; j++) {
            float *at = s + i * W + 16 * j;
            _mm_prefetch((const char *)(ask + i * W + 16 * j), _MM_HINT_T1);
            __m512 now = _mm512_fmadd_ps(ki, d[j], _mm512_mul_ps(decay, _mm512_loadu_ps(at)));
            _mm512_storeu_ps(at, now);
            sum[j] = _mm512_fmadd_ps(qi, now, sum[j]);
        }
    }
    for (int j = 0; j < R; j++)
        _mm512_storeu_ps(o + 16 * j, sum[j]);
}

/* c[i][0..16 nv) += sum_k a[i][k] b[k][0..16 nv) for mr rows; mr and nv are constants. */
static inline __attribute__((always_inline)) void gemm_block(float *c, ptrdiff_t ldc,
                                                             const float *a, ptrdiff_t lda,
                                                             const float *b, ptrdiff_t ldb, int k,
                                                             int mr, int nv) {
    __m512 acc[4][R];
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < nv; v++)
            acc[i][v] = _mm512_loadu_ps(c + i * ldc + 16 * v);
    for (int j = 0; j < k; j++, b += ldb)
        for (int i = 0; i < mr; i++) {
            __m512 value = _mm512_set1_ps(a[i * lda + j]);
            for (int v = 0; v < nv; v++)
                acc[i][v] = _mm512_fmadd_ps(value, _mm512_loadu_ps(b + 16 * v), acc[i][v]);
        }
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < nv; v++)
            _mm512_storeu_ps(c + i * ldc + 16 * v, acc[i][v]);
}

/* c [m][n] += a [m][k] b [k][n]; n is a multiple of 16. Each element is summed over ascending k,
 * starting from what c holds, whatever m and n. */
static void gemm_add(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda, const float *b,
                     ptrdiff_t ldb, int m, int n, int k) {
    int i = 0;
    for (; i + 4 <= m; i += 4) {
        int col = 0;
        for (; col + 64 <= n; col += 64)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 4, 4);
        for (; col < n; col += 16)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 4, 1);
    }
    for (; i < m; i++) {
        int col = 0;
        for (; col + 128 <= n; col += 128)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 1, 8);
        for (; col < n; col += 16)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 1, 1);
    }
}

/* out [128][64] = x [m][128] transposed, times factor[t] (NULL: 1); columns from m on are 0. */
static void transpose(float *out, const float *x, const float *factor, int32_t m) {
    const __m512i rows =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(W));
    for (int t = 0; t < C; t += 16) {
        int n = m - t;
        __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
        __m512 f = factor ? _mm512_maskz_loadu_ps(mask, factor + t) : _mm512_set1_ps(1.0f);
        for (int d = 0; d < W; d++) {
            __m512 v = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, rows, x + t * W + d, 4);
            _mm512_storeu_ps(out + d * C + t, factor ? _mm512_mul_ps(v, f) : v);
        }
    }
}

static void recur_avx512_gram(float *kk, float *qk, const float *q, const float *k, int32_t m,
                              void *scratch) {
    float *kt = scratch;
    transpose(kt, k, NULL, m);
    memset(kk, 0, sizeof(float) * C * (size_t)m);
    memset(qk, 0, sizeof(float) * C * (size_t)m);
    for (int32_t t = 0; t < m; t += 16) { // the lower triangle in bands of 16 rows
        int32_t n = m - t < 16 ? m - t : 16;
        gemm_add(kk + t * C, C, k + t * W, W, kt, C, n, t + 16, W);
        gemm_add(qk + t * C, C, q + t * W, W, kt, C, n, t + 16, W);
    }
}

/* a[j] = e^{last - total[j]} for j < n, 0 from there to the next multiple of 16. */
static void decays(float *a, const double *total, double last, int32_t n) {
    for (int32_t j = 0; j < n; j += 8) {
        __mmask8 mask = n - j >= 8 ? 0xff : (__mmask8)((1u << (n - j)) - 1);
        __m512d g = _mm512_sub_pd(_mm512_set1_pd(last), _mm512_maskz_loadu_pd(mask, total + j));
        _mm256_storeu_ps(a + j, _mm512_cvtpd_ps(g));
    }
    for (int32_t j = 0; j < n; j += 16) {
        __mmask16 mask = n - j >= 16 ? 0xffff : (__mmask16)((1u << (n - j)) - 1);
        _mm512_storeu_ps(a + j,
                         _mm512_maskz_mov_ps(mask, exp_ps(_mm512_maskz_loadu_ps(mask, a + j))));
    }
}

/* row[j] = factor * a[j] * b[j] for j < n and on to the next multiple of 16. */
static void scale_row(float *row, float factor, const float *a, const float *b, int32_t n) {
    for (int32_t j = 0; j < n; j += 16)
        _mm512_storeu_ps(
            row + j, _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(a + j)),
                                   _mm512_loadu_ps(b + j)));
}

/* D of token i before the sum over earlier tokens, and the decayed output. */
static void chunk_token(float *d, float *o, const float *v, float decay, float beta) {
    __m512 e = _mm512_set1_ps(decay), b = _mm512_set1_ps(beta);
    for (int j = 0; j < W; j += 16) {
        __m512 now = _mm512_fnmadd_ps(e, _mm512_loadu_ps(d + j), _mm512_loadu_ps(v + j));
        _mm512_storeu_ps(d + j, _mm512_mul_ps(b, now));
        _mm512_storeu_ps(o + j, _mm512_mul_ps(e, _mm512_loadu_ps(o + j)));
    }
}

static void recur_avx512_chunk(float *s, float *o, const float *q, const float *k, const float *v,
                               const float *g, const float *beta, const float *kk, const float *qk,
                               int32_t m, void *scratch) {
    float *d = scratch, *kt = d + C * W, *row = kt + W * C, *factor = row + C, *decay = factor + C;
    double *total = (double *)(decay + C), sum = 0.0;
    for (int32_t i = 0; i < m; i++) {
        total[i] = sum += (double)g[i];
        decay[i] = (float)sum;
    }
    for (int32_t i = 0; i < m; i += 16) { // e^{G_i}; what lies behind m is never used
        __mmask16 mask = m - i >= 16 ? 0xffff : (__mmask16)((1u << (m - i)) - 1);
        _mm512_storeu_ps(decay + i, exp_ps(_mm512_maskz_loadu_ps(mask, decay + i)));
    }
    memset(d, 0, sizeof(float) * (size_t)m * W);
    memset(o, 0, sizeof(float) * (size_t)m * W);
    gemm_add(d, W, k, W, s, W, m, W, W);
    gemm_add(o, W, q, W, s, W, m, W, W);
    for (int32_t i = 0; i < m; i++) {
        chunk_token(d + i * W, o + i * W, v + i * W, decay[i], beta[i]);
        decays(factor, total, total[i], i + 1);
        scale_row(row, -beta[i], factor, kk + i * C, i);
        gemm_add(d + i * W, W, row, C, d, W, 1, W, i);
        scale_row(row, 1.0f, factor, qk + i * C, i + 1);
        gemm_add(o + i * W, W, row, C, d, W, 1, W, i + 1);
    }
    decays(factor, total, sum, m);
    transpose(kt, k, factor, m);
    __m512 all = _mm512_set1_ps(decay[m - 1]);
    for (int i = 0; i < W * W; i += 16)
        _mm512_storeu_ps(s + i, _mm512_mul_ps(all, _mm512_loadu_ps(s + i)));
    gemm_add(s, W, kt, C, d, W, W, W, m);
}

static size_t recur_avx512_chunk_scratch_bytes(void) {
    return sizeof(float) * (2 * C * W + 3 * C) + sizeof(double) * C;
}

static void recur_avx512_gate(float *y, const float *o, const float *gain, const float *z,
                              ptrdiff_t ldz, float eps, int32_t m, ptrdiff_t next) {
    for (int32_t t = 0; t < m; t++, y += W, o += W, z += ldz) {
        __m512 r = _mm512_set1_ps(1.0f / sqrtf(square_sum(o) / W + eps));
        for (int d = 0; d < W; d += 16) {
            __m512 norm = _mm512_mul_ps(_mm512_loadu_ps(o + d), r);
            norm = _mm512_mul_ps(norm, _mm512_loadu_ps(gain + d));
            ask_ahead(z + d, next);
            _mm512_storeu_ps(y + d, _mm512_mul_ps(norm, silu_ps(_mm512_loadu_ps(z + d))));
        }
    }
}

void recur_avx512_init(RecurKernels *t) {
    *t = (RecurKernels){.column = "avx512",
                        .conv = recur_avx512_conv,
                        .unit = recur_avx512_unit,
                        .step = recur_avx512_step,
                        .gram = recur_avx512_gram,
                        .chunk = recur_avx512_chunk,
                        .chunk_scratch_bytes = recur_avx512_chunk_scratch_bytes,
                        .gate = recur_avx512_gate};
}
