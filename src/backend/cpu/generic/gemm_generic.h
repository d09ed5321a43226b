// SPDX-License-Identifier: Apache-2.0
/* gemm_generic.h - small f32 products with a row-major right side, for attention and the chunked
 * delta rule.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_GENERIC_GEMM_GENERIC_H
#define LILY_BACKEND_CPU_GENERIC_GEMM_GENERIC_H

#include "base/vec.h"

#include <stddef.h>

/* c[i][0..4 nv) += sum_k a[i][k] b[k][0..4 nv) for mr rows; mr and nv are constants. */
static inline void gemm_block(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda,
                              const float *b, ptrdiff_t ldb, int k, int mr, int nv) {
    F32x4 acc[2][8];
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < nv; v++)
            acc[i][v] = vec_load(c + i * ldc + 4 * v);
    for (int j = 0; j < k; j++, b += ldb)
        for (int i = 0; i < mr; i++) {
            F32x4 value = vec_splat(a[i * lda + j]);
            for (int v = 0; v < nv; v++)
                acc[i][v] += value * vec_load(b + 4 * v);
        }
    for (int i = 0; i < mr; i++)
        for (int v = 0; v < nv; v++)
            vec_store(c + i * ldc + 4 * v, acc[i][v]);
}

/* c [m][n] += a [m][k] b [k][n]; n is a multiple of 16. Each element is summed over ascending k,
 * starting from what c holds, whatever m and n. */
static inline void gemm_add(float *c, ptrdiff_t ldc, const float *a, ptrdiff_t lda, const float *b,
                            ptrdiff_t ldb, int m, int n, int k) {
    for (int col = 0; col < n; col += 16) {
        int i = 0;
        for (; i + 2 <= m; i += 2)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 2, 4);
        if (i < m)
            gemm_block(c + i * ldc + col, ldc, a + i * lda, lda, b + col, ldb, k, 1, 4);
    }
}

/* The same for one row; n is a multiple of 32. */
static inline void gemm_add_row(float *c, const float *a, const float *b, ptrdiff_t ldb, int n,
                                int k) {
    for (int col = 0; col < n; col += 32)
        gemm_block(c + col, 0, a, 0, b + col, ldb, k, 1, 8);
}

#endif
