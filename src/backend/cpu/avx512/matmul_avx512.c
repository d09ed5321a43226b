// SPDX-License-Identifier: Apache-2.0
/* matmul_avx512.c - products with packed 4-bit and 8-bit weights in exact integers.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: the layouts of tiles (kernels.h) and rows (row_avx512.h), who computes which strips.
 *
 * A row's group of 64 inputs becomes 16-bit integers v = x / unit with unit = largest |x| / 32767,
 * 128 times finer than bf16 at the group's top. With I = sum q v and V = sum v, both exact,
 *     y += unit * (scale * I + bias * V)
 * so the result of a tile depends on no order. Codes are unpacked in registers for up to four rows
 * and anew for the next four: shifts and masks run beside the products, which alone bind from two
 * rows on (measured on Zen 4: 87 to 89% of the multipliers' rate from 2 rows to 128, most of the
 * rest being the scales of a tile). */
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/avx512/row_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <math.h>
#include <stdbool.h>

enum {
    BLOCK_ROWS = 4,           // of one pass over weights that are unpacked in registers
    BLOCK_STRIPS = 4,         // streams of weights at a time
    STREAM_BYTES = 256 << 10, // of a run of strips that is read as one stream
    MAX_CHAINS = 4,           // sums of one output side by side
};

static size_t matmul_avx512_row_bytes(int32_t n_groups) {
    return round_up_size((size_t)n_groups * (sizeof(GroupCodes) + sizeof(GroupScale)), 64);
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
        __mmask16 mask = isfinite(max) ? 0xffff : 0; // of numbers; a sum of others could overflow
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < 4; i++) {
            __m512i v = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(in[i], _mm512_set1_ps(scale)));
            _mm256_store_si256((__m256i *)codes[g].v + i, codes_of(v));
            sum = _mm512_add_epi32(sum, v);
        }
        scales[g].unit = isfinite(max) ? (scale > 0.0f ? max / 32767.0f : 0.0f) : NAN;
        scales[g].sum = (float)_mm512_reduce_add_epi32(sum);
    }
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

/* `rows` rows (a constant up to BLOCK_ROWS) by `strips` strips (a constant up to BLOCK_STRIPS);
 * meanwhile, when is_ahead (a constant), as many bytes as these strips have are fetched from `next`
 * into L2, where they are wanted a whole block later, and the n_ahead rows behind x[rows - 1]. (gcc
 * 12 drops calls of a function that only prefetches.) */
static inline __attribute__((always_inline)) void
block(float *const *y, ptrdiff_t at, const uint8_t *w, int32_t n_groups, const void *const *x,
      int32_t n_ahead, const uint8_t *next, bool is_ahead, int bits, int rows, int strips) {
    const size_t bytes = tile_bytes(bits), strip_bytes = bytes * (size_t)n_groups;
    const int lines = bits == 4 ? GROUP_INPUTS / 8 : GROUP_INPUTS / 4, parts = bits == 4 ? 4 : 2;
    const int chains = rows * strips == 1 ? MAX_CHAINS : 1; // or a product would wait for the last
    __m512 out[BLOCK_ROWS][BLOCK_STRIPS];
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < strips; s++)
            out[i][s] = _mm512_setzero_ps();
    for (int32_t g = 0; g < n_groups; g++, w += bytes, next += bytes) {
        for (int32_t i = 0; i < n_ahead; i++) {
            const char *ahead = (const char *)((const GroupCodes *)x[rows + i] + g);
            _mm_prefetch(ahead, _MM_HINT_T1);
            _mm_prefetch(ahead + 64, _MM_HINT_T1);
        }
        __m512i acc[MAX_CHAINS][BLOCK_ROWS][BLOCK_STRIPS];
        for (int chain = 0; chain < chains; chain++)
            for (int i = 0; i < rows; i++)
                for (int s = 0; s < strips; s++)
                    acc[chain][i][s] = _mm512_setzero_si512();
        for (int c = 0; c < lines; c++)
            for (int s = 0; s < strips; s++) {
                size_t line = (size_t)s * strip_bytes + (size_t)c * 64;
                __m512i u[4];
                line_unpack(u, _mm512_load_si512(w + line), bits);
                if (is_ahead)
                    _mm_prefetch((const char *)next + line, _MM_HINT_T1);
                for (int i = 0; i < rows; i++) {
                    const int16_t *v = ((const GroupCodes *)x[i])[g].v + c * 2 * parts;
                    for (int p = 0; p < parts; p++) {
                        __m512i *to = &acc[(c * parts + p) % chains][i][s];
                        *to = _mm512_dpwssd_epi32(*to, u[p], pair_of(v + 2 * p));
                    }
                }
            }
        for (int s = 0; s < strips; s++) {
            size_t line = (size_t)s * strip_bytes + bytes - TILE_SCALES;
            const uint16_t *scales = (const uint16_t *)(w + line);
            __m512 scale = bf16_load_ps(scales), bias = bf16_load_ps(scales + STRIP_ROWS);
            if (is_ahead)
                _mm_prefetch((const char *)next + line, _MM_HINT_T1);
            for (int i = 0; i < rows; i++) {
                __m512i sum = acc[0][i][s];
                for (int chain = 1; chain < chains; chain++)
                    sum = _mm512_add_epi32(sum, acc[chain][i][s]);
                out[i][s] = tile_add(out[i][s], sum, scale, bias, row_scales(x[i], n_groups) + g);
            }
        }
    }
    for (int i = 0; i < rows; i++)
        for (int s = 0; s < strips; s++)
            _mm512_storeu_ps(y[i] + at + s * STRIP_ROWS, out[i][s]);
}

/* All m rows by `strips` strips, in blocks of nearly equal size. */
static inline __attribute__((always_inline)) void
block_rows(float *const *y, ptrdiff_t at, const uint8_t *w, int32_t n_groups, const void *const *x,
           int32_t m, const uint8_t *next, int bits, int strips) {
    int32_t n_blocks = div_up_i32(m, BLOCK_ROWS), small = m / n_blocks;
    int32_t n_large = m - small * n_blocks; // blocks of small + 1 rows
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t rows = small + (b < n_large);
        // Behind the first strips the rows are in L2.
        int32_t ahead = at == 0 && b + 1 < n_blocks ? small + (b + 1 < n_large) : 0;
        switch (rows) {
        case 1: block(y, at, w, n_groups, x, ahead, next, true, bits, 1, strips); break;
        case 2: block(y, at, w, n_groups, x, ahead, next, true, bits, 2, strips); break;
        case 3: block(y, at, w, n_groups, x, ahead, next, true, bits, 3, strips); break;
        default: block(y, at, w, n_groups, x, ahead, next, true, bits, 4, strips); break;
        }
        y += rows;
        x += rows;
    }
}

static inline __attribute__((always_inline)) void matmul_strips(float *const *y, const uint8_t *w,
                                                                int32_t n_groups, int32_t n_strips,
                                                                const void *const *x, int32_t m,
                                                                const uint8_t *next, int bits) {
    const size_t strip_bytes = tile_bytes(bits) * (size_t)n_groups;
    // More streams hide more of the memory's latency; sums and outputs of 3 or 4 rows by 4 strips
    // do not fit into the registers.
    const int32_t most = m <= 2 ? BLOCK_STRIPS : 2;
    for (int32_t s = 0; s < n_strips;) {
        int32_t n = n_strips - s >= most ? most : 1;
        const uint8_t *here = w + (size_t)s * strip_bytes, *ask = here + (size_t)n * strip_bytes;
        if (s + n == n_strips)
            ask = next ? next : here;
        ptrdiff_t at = (ptrdiff_t)s * STRIP_ROWS;
        if (n == BLOCK_STRIPS)
            block_rows(y, at, here, n_groups, x, m, ask, bits, BLOCK_STRIPS);
        else if (n == 2)
            block_rows(y, at, here, n_groups, x, m, ask, bits, 2);
        else
            block_rows(y, at, here, n_groups, x, m, ask, bits, 1);
        s += n;
    }
}

static void matmul_avx512_q4(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                             const void *const *x, int32_t m, const uint8_t *next) {
    matmul_strips(y, w, n_groups, n_strips, x, m, next, 4);
}

static void matmul_avx512_q8(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                             const void *const *x, int32_t m, const uint8_t *next) {
    matmul_strips(y, w, n_groups, n_strips, x, m, next, 8);
}

/* Whether strips are read as a single stream, which the hardware fetches by itself. On AMD's Zen 4
 * that is faster than four streams that are asked for (q4 10%, q8 10 to 18%), but for the first
 * pages behind a jump: so one row by a long run of strips. Other CPUs always ask. */
static bool is_stream(int32_t n_groups, int32_t n_strips, int32_t m, int bits) {
    return m == 1 && tile_bytes(bits) * (size_t)n_groups * (size_t)n_strips >= STREAM_BYTES;
}

/* One row by such a run. Of `next` one strip's bytes are fetched: with four strips' the hardware
 * would be late to see the new stream, and the gain be gone. */
static inline __attribute__((always_inline)) void stream_strips(float *const *y, const uint8_t *w,
                                                                int32_t n_groups, int32_t n_strips,
                                                                const void *const *x,
                                                                const uint8_t *next, int bits) {
    const size_t strip_bytes = tile_bytes(bits) * (size_t)n_groups;
    for (int32_t s = 0; s < n_strips; s++, w += strip_bytes) {
        ptrdiff_t at = (ptrdiff_t)s * STRIP_ROWS;
        if (next && s + 1 == n_strips)
            block(y, at, w, n_groups, x, 0, next, true, bits, 1, 1);
        else
            block(y, at, w, n_groups, x, 0, w, false, bits, 1, 1);
    }
}

static void matmul_avx512_stream_q4(float *const *y, const uint8_t *w, int32_t n_groups,
                                    int32_t n_strips, const void *const *x, int32_t m,
                                    const uint8_t *next) {
    if (is_stream(n_groups, n_strips, m, 4))
        stream_strips(y, w, n_groups, n_strips, x, next, 4);
    else
        matmul_avx512_q4(y, w, n_groups, n_strips, x, m, next);
}

static void matmul_avx512_stream_q8(float *const *y, const uint8_t *w, int32_t n_groups,
                                    int32_t n_strips, const void *const *x, int32_t m,
                                    const uint8_t *next) {
    if (is_stream(n_groups, n_strips, m, 8))
        stream_strips(y, w, n_groups, n_strips, x, next, 8);
    else
        matmul_avx512_q8(y, w, n_groups, n_strips, x, m, next);
}

void matmul_avx512_init(MatmulKernels *t) {
    bool is_amd = __builtin_cpu_is("amd");
    *t = (MatmulKernels){.column = "avx512",
                         .row_bytes = matmul_avx512_row_bytes,
                         .prepare = matmul_avx512_prepare,
                         .decode_q4 = is_amd ? matmul_avx512_stream_q4 : matmul_avx512_q4,
                         .decode_q8 = is_amd ? matmul_avx512_stream_q8 : matmul_avx512_q8,
                         .prefill_q4 = matmul_avx512_q4,
                         .prefill_q8 = matmul_avx512_q8,
                         .chunk_bytes = 128 << 10};
}
