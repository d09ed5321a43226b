// SPDX-License-Identifier: Apache-2.0
/* matmul_generic.c - products with packed 4-bit and 8-bit weights in plain C.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of tiles (kernels.h), who computes which strips. */
#include "backend/cpu/kernels.h"
#include "base/bf16.h"
#include "base/checked.h"
#include "base/vec.h"

#include <string.h>

/* A prepared row: the 64 * n_groups inputs as f32, then the sum of each group. */
static size_t matmul_generic_row_bytes(int32_t n_groups) {
    return round_up_size((size_t)n_groups * (GROUP_INPUTS + 1) * sizeof(float), 64);
}

static void matmul_generic_prepare(void *row, int32_t n_groups, int32_t group, int32_t n,
                                   const float *x) {
    float *values = row, *sums = values + (size_t)n_groups * GROUP_INPUTS;
    memcpy(values + (size_t)group * GROUP_INPUTS, x, (size_t)n * GROUP_INPUTS * sizeof *x);
    for (int32_t g = 0; g < n; g++) {
        float part[4] = {0};
        for (int k = 0; k < GROUP_INPUTS; k += 4)
            for (int i = 0; i < 4; i++)
                part[i] += x[g * GROUP_INPUTS + k + i];
        sums[group + g] = (part[0] + part[1]) + (part[2] + part[3]);
    }
}

/* The codes of a tile as f32: q [64][16], input by output. */
static void unpack_q4(float *q, const uint32_t *tile) {
    for (int c = 0; c < GROUP_INPUTS / 8; c++)
        for (int r = 0; r < STRIP_ROWS; r += 4) {
            U32x4 lane = vec_load_u32(tile + c * STRIP_ROWS + r);
            float *low = q + 8 * c * STRIP_ROWS + r, *high = low + 4 * STRIP_ROWS;
            for (int j = 0; j < 4; j++) {
                vec_store(low + j * STRIP_ROWS, vec_from_u32(lane >> (uint32_t)(8 * j) & 15u));
                vec_store(high + j * STRIP_ROWS, vec_from_u32(lane >> (uint32_t)(8 * j + 4) & 15u));
            }
        }
}

static void unpack_q8(float *q, const uint32_t *tile) {
    for (int c = 0; c < GROUP_INPUTS / 4; c++)
        for (int r = 0; r < STRIP_ROWS; r += 4) {
            U32x4 lane = vec_load_u32(tile + c * STRIP_ROWS + r);
            for (int j = 0; j < 4; j++)
                vec_store(q + (4 * c + j) * STRIP_ROWS + r,
                          vec_from_u32(lane >> (uint32_t)(8 * j) & 255u));
        }
}

/* What a tile adds to the outputs of n rows (a constant):
 * y_i[r] += scale[r] * sum_k q[k][r] x_i[k] + bias[r] * sum_i. */
static inline void tile_rows(float *const *y, ptrdiff_t at, const float *q, const float *scale,
                             const float *bias, const float *const *x, const float *sum, int n) {
    F32x4 acc[2][4] = {0};
    for (int k = 0; k < GROUP_INPUTS; k++, q += STRIP_ROWS)
        for (int i = 0; i < n; i++) {
            F32x4 value = vec_splat(x[i][k]);
            for (int r = 0; r < 4; r++)
                acc[i][r] += vec_load(q + 4 * r) * value;
        }
    for (int i = 0; i < n; i++)
        for (int r = 0; r < 4; r++) {
            float *to = y[i] + at + 4 * r;
            vec_store(to, vec_load(to) + (vec_load(scale + 4 * r) * acc[i][r] +
                                          vec_load(bias + 4 * r) * sum[i]));
        }
}

/* One tile for all rows, two by two. */
static void tile_all(float *const *y, ptrdiff_t at, const float *q, const float *scale,
                     const float *bias, const void *const *x, int32_t m, int32_t n_groups,
                     int32_t g) {
    size_t value = (size_t)g * GROUP_INPUTS, sum = (size_t)n_groups * GROUP_INPUTS + (size_t)g;
    int32_t i = 0;
    for (; i + 2 <= m; i += 2) {
        const float *a = x[i], *b = x[i + 1];
        tile_rows(y + i, at, q, scale, bias, (const float *[]){a + value, b + value},
                  (float[]){a[sum], b[sum]}, 2);
    }
    for (; i < m; i++) {
        const float *a = x[i];
        tile_rows(y + i, at, q, scale, bias, (const float *[]){a + value}, &a[sum], 1);
    }
}

static inline void matmul_strips(float *const *y, const uint8_t *w, int32_t n_groups,
                                 int32_t n_strips, const void *const *x, int32_t m, int32_t bits) {
    float q[GROUP_INPUTS * STRIP_ROWS], scale[STRIP_ROWS], bias[STRIP_ROWS];
    size_t bytes = tile_bytes(bits);
    for (int32_t s = 0; s < n_strips; s++) {
        ptrdiff_t at = (ptrdiff_t)s * STRIP_ROWS;
        for (int32_t i = 0; i < m; i++)
            memset(y[i] + at, 0, STRIP_ROWS * sizeof(float));
        for (int32_t g = 0; g < n_groups; g++, w += bytes) {
            if (bits == 4)
                unpack_q4(q, (const uint32_t *)w);
            else
                unpack_q8(q, (const uint32_t *)w);
            const uint16_t *scales = (const uint16_t *)(w + bytes - TILE_SCALES);
            for (int r = 0; r < STRIP_ROWS; r++) {
                scale[r] = bf16_to_f32(scales[r]);
                bias[r] = bf16_to_f32(scales[STRIP_ROWS + r]);
            }
            tile_all(y, at, q, scale, bias, x, m, n_groups, g);
        }
    }
}

static void matmul_generic_q4(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                              const void *const *x, int32_t m, const uint8_t *next) {
    UNUSED(next);
    matmul_strips(y, w, n_groups, n_strips, x, m, 4);
}

static void matmul_generic_q8(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                              const void *const *x, int32_t m, const uint8_t *next) {
    UNUSED(next);
    matmul_strips(y, w, n_groups, n_strips, x, m, 8);
}

void matmul_generic_init(MatmulKernels *t) {
    *t = (MatmulKernels){.column = "generic",
                         .row_bytes = matmul_generic_row_bytes,
                         .prepare = matmul_generic_prepare,
                         .decode_q4 = matmul_generic_q4,
                         .decode_q8 = matmul_generic_q8,
                         .prefill_q4 = matmul_generic_q4,
                         .prefill_q8 = matmul_generic_q8,
                         .chunk_bytes = 128 << 10};
}
