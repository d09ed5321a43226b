// SPDX-License-Identifier: Apache-2.0
/* recur_generic.c - the gated delta rule of one head in plain C: token by token and in chunks.
 *
 * Path:     the passes call it through RecurKernels, one head at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: gates and head mapping (cpu_gdn.c). */
#include "backend/cpu/generic/gemm_generic.h"
#include "backend/cpu/generic/math_generic.h"
#include "backend/cpu/kernels.h"

#include <math.h>

enum { W = GDN_HEAD, C = RECUR_CHUNK };

static void recur_generic_conv(float *c, const float *const *rows, const float *w, ptrdiff_t ldw,
                               int32_t m, ptrdiff_t next) {
    UNUSED(next);
    for (int32_t t = 0; t < m; t++, rows++, c += W)
        for (int d = 0; d < W; d++) {
            float sum = w[d] * rows[0][d] + w[ldw + d] * rows[1][d];
            sum = sum + w[2 * ldw + d] * rows[2][d] + w[3 * ldw + d] * rows[3][d];
            c[d] = math_silu(sum);
        }
}

/* Sum of squares of 128 values, in 16 lanes. */
static float square_sum(const float *x) {
    F32x4 acc[4] = {0};
    for (int d = 0; d < W; d += 16)
        for (int i = 0; i < 4; i++) {
            F32x4 v = vec_load(x + d + 4 * i);
            acc[i] += v * v;
        }
    return vec_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

static void recur_generic_unit(float *x, float factor, int32_t m) {
    for (int32_t t = 0; t < m; t++, x += W) {
        float r = factor / sqrtf(square_sum(x) + 1e-6f);
        for (int d = 0; d < W; d++)
            x[d] *= r;
    }
}

static void recur_generic_step(float *s, float *o, const float *q, const float *k, const float *v,
                               float alpha, float beta, const float *next) {
    UNUSED(next);
    enum { N = 8 }; // 32 columns stay in registers
    for (int col = 0; col < W; col += 4 * N) {
        F32x4 sum[N] = {0}, d[N];
        for (int i = 0; i < W; i++)
            for (int j = 0; j < N; j++)
                sum[j] += vec_splat(k[i]) * vec_load(s + i * W + col + 4 * j);
        for (int j = 0; j < N; j++) {
            d[j] = beta * (vec_load(v + col + 4 * j) - alpha * sum[j]);
            sum[j] = vec_splat(0.0f);
        }
        for (int i = 0; i < W; i++)
            for (int j = 0; j < N; j++) {
                float *at = s + i * W + col + 4 * j;
                F32x4 now = alpha * vec_load(at) + vec_splat(k[i]) * d[j];
                vec_store(at, now);
                sum[j] += vec_splat(q[i]) * now;
            }
        for (int j = 0; j < N; j++)
            vec_store(o + col + 4 * j, sum[j]);
    }
}

/* out [128][64] = x [m][128] transposed, times factor[t] (NULL: 1); columns from m on are 0. */
static void transpose(float *out, const float *x, const float *factor, int32_t m) {
    memset(out, 0, sizeof(float) * W * C);
    for (int32_t t = 0; t < m; t++) {
        float f = factor ? factor[t] : 1.0f;
        for (int d = 0; d < W; d++)
            out[d * C + t] = x[t * W + d] * f;
    }
}

static void recur_generic_gram(float *kk, float *qk, const float *q, const float *k, int32_t m,
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

/* The chunk form: with G_i the sum of g up to i,
 *   D_i = beta_i (v_i - e^{G_i} S^T k_i) - sum_{j<i} beta_i e^{G_i - G_j} (k_i . k_j) D_j
 *   O_i = e^{G_i} S^T q_i + sum_{j<=i} e^{G_i - G_j} (q_i . k_j) D_j
 *   S   = e^{G_m} S + sum_j e^{G_m - G_j} k_j D_j^T
 * Exponents are differences that are <= 0; e^{-G} is never formed. The sums are f64: behind a decay
 * of e^-1000 the differences of f32 sums would be off by 1e-4.
 * Source: MODEL.md, chunked form of the gated delta rule. */
static void recur_generic_chunk(float *s, float *o, const float *q, const float *k, const float *v,
                                const float *g, const float *beta, const float *kk, const float *qk,
                                int32_t m, void *scratch) {
    float *d = scratch, *kt = d + C * W, *row = kt + W * C, *factor = row + C;
    double *total = (double *)(factor + C), sum = 0.0;
    for (int32_t i = 0; i < m; i++)
        total[i] = sum += (double)g[i];
    memset(d, 0, sizeof(float) * (size_t)m * W);
    memset(o, 0, sizeof(float) * (size_t)m * W);
    gemm_add(d, W, k, W, s, W, m, W, W);
    gemm_add(o, W, q, W, s, W, m, W, W);
    for (int32_t i = 0; i < m; i++) {
        float decay = math_exp((float)total[i]);
        float *di = d + i * W, *oi = o + i * W;
        for (int j = 0; j < W; j++)
            di[j] = beta[i] * (v[i * W + j] - decay * di[j]);
        for (int32_t j = 0; j <= i; j++)
            factor[j] = math_exp((float)(total[i] - total[j]));
        for (int32_t j = 0; j < i; j++)
            row[j] = -beta[i] * factor[j] * kk[i * C + j];
        gemm_add_row(di, row, d, W, W, i);
        for (int32_t j = 0; j <= i; j++)
            row[j] = factor[j] * qk[i * C + j];
        for (int j = 0; j < W; j++)
            oi[j] *= decay;
        gemm_add_row(oi, row, d, W, W, i + 1);
    }
    float decay = math_exp((float)sum);
    for (int32_t j = 0; j < m; j++)
        factor[j] = math_exp((float)(sum - total[j]));
    transpose(kt, k, factor, m);
    for (int i = 0; i < W * W; i++)
        s[i] *= decay;
    gemm_add(s, W, kt, C, d, W, W, W, m);
}

static size_t recur_generic_chunk_scratch_bytes(void) {
    return sizeof(float) * (2 * C * W + 2 * C) + sizeof(double) * C;
}

static void recur_generic_gate(float *y, const float *o, const float *gain, const float *z,
                               ptrdiff_t ldz, float eps, int32_t m, ptrdiff_t next) {
    UNUSED(next);
    for (int32_t t = 0; t < m; t++, y += W, o += W, z += ldz) {
        float r = 1.0f / sqrtf(square_sum(o) / W + eps);
        for (int d = 0; d < W; d++)
            y[d] = o[d] * r * gain[d] * math_silu(z[d]);
    }
}

void recur_generic_init(RecurKernels *t) {
    *t = (RecurKernels){.column = "generic",
                        .conv = recur_generic_conv,
                        .unit = recur_generic_unit,
                        .step = recur_generic_step,
                        .gram = recur_generic_gram,
                        .chunk = recur_generic_chunk,
                        .chunk_scratch_bytes = recur_generic_chunk_scratch_bytes,
                        .gate = recur_generic_gate};
}
