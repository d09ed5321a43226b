// SPDX-License-Identifier: Apache-2.0
/* matmul_avx512.c - products with packed 4-bit and 8-bit weights in exact integers.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of tiles (kernels.h), who computes which strips.
 *
 * A row's group of 64 inputs becomes 16-bit integers v = x / unit with unit = largest |x| / 32767,
 * 128 times finer than bf16 at the group's top. With I = sum q v and V = sum v, both exact,
 *     y += unit * (scale * I + bias * V)
 * so the result of a tile depends on no order, and decode (weights unpacked in registers, one to
 * four rows) and prefill (weights unpacked once for many rows) give the same bits. */
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <math.h>

enum {
    FEW_ROWS = 4,   // of one pass over weights that are unpacked in registers
    FEW_STRIPS = 4, // streams of weights at a time
    MANY_ROWS = 4, // accumulators of a block: 4 rows by 4 strips; gcc 12 keeps no more in registers
    MANY_STRIPS = 4,
    PAIRS = GROUP_INPUTS / 2,
};

/* A group of a prepared row: v in the order in which unpacked codes come: of each 8 inputs the
 * pairs (0, 2) (1, 3) (4, 6) (5, 7). */
typedef struct GroupCodes {
    int16_t v[GROUP_INPUTS];
} GroupCodes;

/* Behind all groups' codes: for each group unit and V. */
typedef struct GroupScale {
    float unit, sum;
} GroupScale;

static size_t matmul_avx512_row_bytes(int32_t n_groups) {
    return round_up_size((size_t)n_groups * (sizeof(GroupCodes) + sizeof(GroupScale)), 64);
}

static inline const GroupScale *row_scales(const void *row, int32_t n_groups) {
    return (const GroupScale *)((const GroupCodes *)row + n_groups);
}

/* 16 inputs as integers, in the pair order, packed to 16 bits. */
static inline __m256i codes_of(__m512i v) {
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, v));
}

static void matmul_avx512_prepare(void *row, int32_t n_groups, int32_t group, int32_t n,
                                  const float *x) {
    GroupCodes *codes = (GroupCodes *)row + group;
    GroupScale *scales = (GroupScale *)((GroupCodes *)row + n_groups) + group;
    for (int32_t g = 0; g < n; g++, x += GROUP_INPUTS) {
        __m512 in[4];
        for (int i = 0; i < 4; i++)
            in[i] = _mm512_loadu_ps(x + 16 * i);
        // Largest |x| as integers: a NaN or an infinity counts as larger than any number.
        __m512i top = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++)
            top = _mm512_max_epi32(
                top, _mm512_and_si512(_mm512_castps_si512(in[i]), _mm512_set1_epi32(0x7fffffff)));
        float max =
            _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(top))));
        // Below 1e-30 the reciprocal would overflow; nothing of that size reaches an output.
        float scale = max > 1e-30f ? 32767.0f / max : 0.0f;
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++) {
            __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(in[i], _mm512_set1_ps(scale)));
            _mm256_store_si256((__m256i *)codes[g].v + i, codes_of(v));
            sum = _mm512_add_epi32(sum, v);
        }
        scales[g].unit = isfinite(max) ? (scale > 0.0f ? max / 32767.0f : 0.0f) : NAN;
        scales[g].sum = (float)_mm512_reduce_add_epi32(sum);
    }
}

/* y + unit * (scale * I + bias * V) of 16 outputs. */
static inline __m512 tile_add(__m512 y, __m512i sum, __m512 scale, __m512 bias,
                              const GroupScale *g) {
    __m512 t = _mm512_mul_ps(bias, _mm512_set1_ps(g->sum));
    t = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), t);
    return _mm512_fmadd_ps(_mm512_set1_ps(g->unit), t, y);
}

/* Two inputs of a prepared row in every lane. */
static inline __m512i pair_of(const int16_t *v) {
    int32_t pair;
    __builtin_memcpy(&pair, v, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* The codes of one line as pairs of 16-bit integers in the order of GroupCodes: 4 registers from a
 * line of 4 bits (8 inputs), 2 from one of 8 bits (4 inputs). */
static inline void line_unpack(__m512i u[4], __m512i line, int bits) {
    if (bits == 4) {
        const __m512i mask = _mm512_set1_epi32(0x000f000f);
        u[0] = _mm512_and_si512(line, mask);
        u[1] = _mm512_and_si512(_mm512_srli_epi32(line, 8), mask);
        u[2] = _mm512_and_si512(_mm512_srli_epi32(line, 4), mask);
        u[3] = _mm512_and_si512(_mm512_srli_epi32(line, 12), mask);
    } else {
        const __m512i mask = _mm512_set1_epi32(0x00ff00ff);
        u[0] = _mm512_and_si512(line, mask);
        u[1] = _mm512_and_si512(_mm512_srli_epi32(line, 8), mask);
    }
}

/* ---- few rows: weights unpacked in registers ---- */

/* `rows` rows (a constant up to FEW_ROWS) by `strips` strips (a constant up to FEW_STRIPS). */
static inline __attribute__((always_inline)) void few_block(float *const *y, ptrdiff_t at,
                                                            const uint8_t *w, int32_t n_groups,
                                                            const void *const *x, int bits,
                                                            int rows, int strips) {
    const size_t bytes = tile_bytes(bits), strip_bytes = bytes * (size_t)n_groups;
    const int lines = bits == 4 ? GROUP_INPUTS / 8 : GROUP_INPUTS / 4, parts = bits == 4 ? 4 : 2;
    __m512 out[FEW_ROWS][FEW_STRIPS];
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < strips; s++)
            out[i][s] = _mm512_setzero_ps();
    for (int32_t g = 0; g < n_groups; g++, w += bytes) {
        __m512i acc[FEW_ROWS][FEW_STRIPS];
        for (int i = 0; i < rows; i++)
            for (int s = 0; s < strips; s++)
                acc[i][s] = _mm512_setzero_si512();
        for (int c = 0; c < lines; c++)
            for (int s = 0; s < strips; s++) {
                const uint8_t *line = w + (size_t)s * strip_bytes + c * 64;
                __m512i u[4];
                line_unpack(u, _mm512_load_si512(line), bits);
                for (int i = 0; i < rows; i++) {
                    const int16_t *v = ((const GroupCodes *)x[i])[g].v + c * 2 * parts;
                    for (int p = 0; p < parts; p++)
                        acc[i][s] = _mm512_dpwssd_epi32(acc[i][s], u[p], pair_of(v + 2 * p));
                }
            }
        for (int s = 0; s < strips; s++) {
            const uint16_t *scales =
                (const uint16_t *)(w + (size_t)s * strip_bytes + bytes - TILE_SCALES);
            __m512 scale = bf16_load_ps(scales), bias = bf16_load_ps(scales + STRIP_ROWS);
            for (int i = 0; i < rows; i++)
                out[i][s] =
                    tile_add(out[i][s], acc[i][s], scale, bias, row_scales(x[i], n_groups) + g);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < strips; s++)
            _mm512_storeu_ps(y[i] + at + s * STRIP_ROWS, out[i][s]);
}

static inline __attribute__((always_inline)) void few_strips(float *const *y, ptrdiff_t at,
                                                             const uint8_t *w, int32_t n_groups,
                                                             const void *const *x, int32_t m,
                                                             int bits, int strips) {
    switch (m) {
    case 1: few_block(y, at, w, n_groups, x, bits, 1, strips); break;
    case 2: few_block(y, at, w, n_groups, x, bits, 2, strips); break;
    case 3: few_block(y, at, w, n_groups, x, bits, 3, strips); break;
    default: few_block(y, at, w, n_groups, x, bits, 4, strips); break;
    }
}

/* m rows, FEW_ROWS at a time, by all strips. */
static inline __attribute__((always_inline)) void few_rows(float *const *y, const uint8_t *w,
                                                           int32_t n_groups, int32_t n_strips,
                                                           const void *const *x, int32_t m,
                                                           int bits) {
    size_t strip_bytes = tile_bytes(bits) * (size_t)n_groups;
    // Sums and outputs of 3 or 4 rows by 4 strips do not fit into the registers.
    int32_t step = m <= 2 ? FEW_STRIPS : 2, s = 0;
    for (; s + step <= n_strips; s += step)
        for (int32_t i = 0; i < m; i += FEW_ROWS) {
            const uint8_t *at = w + (size_t)s * strip_bytes;
            if (step == FEW_STRIPS)
                few_strips(y + i, (ptrdiff_t)s * STRIP_ROWS, at, n_groups, x + i, m - i, bits,
                           FEW_STRIPS);
            else
                few_strips(y + i, (ptrdiff_t)s * STRIP_ROWS, at, n_groups, x + i, m - i, bits, 2);
        }
    for (; s < n_strips; s++)
        for (int32_t i = 0; i < m; i += FEW_ROWS)
            few_strips(y + i, (ptrdiff_t)s * STRIP_ROWS, w + (size_t)s * strip_bytes, n_groups,
                       x + i, m - i, bits, 1);
}

/* ---- many rows: weights unpacked once for all ---- */

/* A tile of each of some strips, unpacked: pairs of 16-bit codes in the order of GroupCodes. */
typedef struct Unpacked {
    __m512i pairs[MANY_STRIPS][PAIRS];
    __m512 scale[MANY_STRIPS], bias[MANY_STRIPS];
} Unpacked;

static inline __attribute__((always_inline)) void unpack(Unpacked *u, const uint8_t *w,
                                                         size_t strip_bytes, int bits, int strips) {
    const size_t bytes = tile_bytes(bits);
    const int lines = bits == 4 ? GROUP_INPUTS / 8 : GROUP_INPUTS / 4, parts = bits == 4 ? 4 : 2;
    for (int s = 0; s < strips; s++, w += strip_bytes) {
        for (int c = 0; c < lines; c++) {
            __m512i out[4];
            line_unpack(out, _mm512_load_si512(w + c * 64), bits);
            for (int p = 0; p < parts; p++)
                u->pairs[s][c * parts + p] = out[p];
        }
        const uint16_t *scales = (const uint16_t *)(w + bytes - TILE_SCALES);
        u->scale[s] = bf16_load_ps(scales);
        u->bias[s] = bf16_load_ps(scales + STRIP_ROWS);
    }
}

/* What one group adds to `rows` rows (a constant up to MANY_ROWS). */
static inline __attribute__((always_inline)) void many_block(float *const *y, ptrdiff_t at,
                                                             const Unpacked *u, int32_t n_groups,
                                                             int32_t g, const void *const *x,
                                                             int rows, int strips) {
    __m512i acc[MANY_ROWS][MANY_STRIPS];
    const int16_t *v[MANY_ROWS];
    for (int i = 0; i < rows; i++) {
        v[i] = ((const GroupCodes *)x[i])[g].v;
        for (int s = 0; s < strips; s++)
            acc[i][s] = _mm512_setzero_si512();
    }
    for (int p = 0; p < PAIRS; p++) {
        __m512i codes[MANY_STRIPS];
        for (int s = 0; s < strips; s++)
            codes[s] = u->pairs[s][p];
        for (int i = 0; i < rows; i++) {
            __m512i pair = pair_of(v[i] + 2 * p);
            for (int s = 0; s < strips; s++)
                acc[i][s] = _mm512_dpwssd_epi32(acc[i][s], codes[s], pair);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < strips; s++) {
            float *to = y[i] + at + s * STRIP_ROWS;
            __m512 before = g ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
            _mm512_storeu_ps(to, tile_add(before, acc[i][s], u->scale[s], u->bias[s],
                                          row_scales(x[i], n_groups) + g));
        }
}

static inline __attribute__((always_inline)) void many_rows(float *const *y, ptrdiff_t at,
                                                            const Unpacked *u, int32_t n_groups,
                                                            int32_t g, const void *const *x,
                                                            int rows, int strips) {
    switch (rows) {
    case 1: many_block(y, at, u, n_groups, g, x, 1, strips); break;
    case 2: many_block(y, at, u, n_groups, g, x, 2, strips); break;
    case 3: many_block(y, at, u, n_groups, g, x, 3, strips); break;
    default: many_block(y, at, u, n_groups, g, x, 4, strips); break;
    }
}

/* m rows in blocks of nearly equal size. */
static inline __attribute__((always_inline)) void many_strips(float *const *y, ptrdiff_t at,
                                                              const uint8_t *w, int32_t n_groups,
                                                              const void *const *x, int32_t m,
                                                              int bits, int strips) {
    const size_t bytes = tile_bytes(bits), strip_bytes = bytes * (size_t)n_groups;
    int32_t n_blocks = div_up_i32(m, MANY_ROWS), small = m / n_blocks;
    int32_t n_large = m - small * n_blocks; // blocks of small + 1 rows
    Unpacked u;
    for (int32_t g = 0; g < n_groups; g++, w += bytes) {
        unpack(&u, w, strip_bytes, bits, strips);
        for (int32_t b = 0, i = 0; b < n_blocks; b++) {
            int32_t rows = small + (b < n_large);
            many_rows(y + i, at, &u, n_groups, g, x + i, rows, strips);
            i += rows;
        }
    }
}

static inline __attribute__((always_inline)) void matmul_rows(float *const *y, const uint8_t *w,
                                                              int32_t n_groups, int32_t n_strips,
                                                              const void *const *x, int32_t m,
                                                              int bits) {
    if (m <= 2 * FEW_ROWS) { // fewer do not pay for unpacking
        few_rows(y, w, n_groups, n_strips, x, m, bits);
        return;
    }
    size_t strip_bytes = tile_bytes(bits) * (size_t)n_groups;
    int32_t s = 0;
    for (; s + MANY_STRIPS <= n_strips; s += MANY_STRIPS)
        many_strips(y, (ptrdiff_t)s * STRIP_ROWS, w + (size_t)s * strip_bytes, n_groups, x, m, bits,
                    MANY_STRIPS);
    for (; s < n_strips; s++)
        many_strips(y, (ptrdiff_t)s * STRIP_ROWS, w + (size_t)s * strip_bytes, n_groups, x, m, bits,
                    1);
}

static void matmul_avx512_q4(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                             const void *const *x, int32_t m) {
    matmul_rows(y, w, n_groups, n_strips, x, m, 4);
}

static void matmul_avx512_q8(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                             const void *const *x, int32_t m) {
    matmul_rows(y, w, n_groups, n_strips, x, m, 8);
}

void matmul_avx512_init(MatmulKernels *t) {
    *t = (MatmulKernels){.column = "avx512",
                         .row_bytes = matmul_avx512_row_bytes,
                         .prepare = matmul_avx512_prepare,
                         .decode_q4 = matmul_avx512_q4,
                         .decode_q8 = matmul_avx512_q8,
                         .prefill_q4 = matmul_avx512_q4,
                         .prefill_q8 = matmul_avx512_q8};
}
