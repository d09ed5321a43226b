// SPDX-License-Identifier: Apache-2.0
/* matmul_amx.c - products of many rows with packed weights on the 8-bit integer tiles: to the bit
 * what the avx512 column gives.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: prepared rows, and products of few rows (matmul_avx512.c), whose sums these are.
 *
 * A row's 16-bit integers are v = 256 high + low, high signed and low unsigned. One tile
 * instruction multiplies 16 rows by one group of 64 inputs of 16 outputs, so two of them give
 * I = 256 sum q high + sum q low, exactly: |sum q high| <= 64 * 255 * 128 < 2^21 and |I| < 2^30.
 * From there on a group goes the way of avx512: y += unit * (scale * I + bias * V).
 *
 * Those sums leave the tiles through memory, and six vector operations a row turn them into
 * outputs, for 16 rows 48 cycles beside 32 of the tile unit: two sets of sums in turn let both run
 * at once. What binds, as measured, is the way through memory: with the outputs of 16 rows by one
 * strip in registers over a block of groups, a group moves 112 lines of 64 bytes between tiles,
 * registers and L1. (Pairs of strips that share the rows' tiles move 92, and were slower by a
 * third: the outputs then go through memory every other group.) */
#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/avx512/row_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <stdbool.h>

enum {
    LEAST_ROWS = 5,    // avx512 is faster with fewer
    ROWS_STEP = 4,     // rows of a tile: a multiple, so that there are few forms of the loop
    BLOCK_GROUPS = 8,  // of one row tile and one strip stay in L1
    BLOCK_STRIPS = 16, // unpacked stay in L2
};

/* Numbers of tiles: sums and codes of two groups in turn, rows. */
#define HIGH_0 0
#define LOW_0 1
#define HIGH_1 2
#define LOW_1 3
#define ROWS_HIGH 4
#define ROWS_LOW 5
#define CODES_0 6
#define CODES_1 7

/* An unpacked tile: row c holds of each output the codes of inputs 4c..4c+3. */
typedef struct Codes {
    uint8_t q[GROUP_INPUTS / 4][TILE_ROW_BYTES];
    float scale[STRIP_ROWS], bias[STRIP_ROWS];
} Codes;

/* One group of 16 rows. */
typedef struct Rows {
    int8_t high[TILE_ROWS][GROUP_INPUTS];
    uint8_t low[TILE_ROWS][GROUP_INPUTS];
    GroupScale scale[TILE_ROWS];
} Rows;

typedef struct Sums {
    int32_t high[TILE_ROWS][STRIP_ROWS], low[TILE_ROWS][STRIP_ROWS];
} Sums;

typedef struct Work {
    _Alignas(64) Codes codes[BLOCK_STRIPS][BLOCK_GROUPS];
    Rows rows[BLOCK_GROUPS];
    Sums sums[2];
} Work;

static void codes_unpack(Codes *to, const uint8_t *tile, int bits) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int c = 0; c < GROUP_INPUTS / 4; c += 2, tile += bits == 4 ? 64 : 128) {
        __m512i line = _mm512_load_si512(tile), second;
        if (bits == 4) {
            second = _mm512_and_si512(_mm512_srli_epi32(line, 4), mask);
            line = _mm512_and_si512(line, mask);
        } else {
            second = _mm512_load_si512(tile + 64);
        }
        _mm512_store_si512(to->q[c], line);
        _mm512_store_si512(to->q[c + 1], second);
    }
    const uint16_t *scales = (const uint16_t *)tile;
    _mm512_store_ps(to->scale, bf16_load_ps(scales));
    _mm512_store_ps(to->bias, bf16_load_ps(scales + STRIP_ROWS));
}

/* Groups [group, group + n) of m rows; rows from there to `padded` become zero. */
static void rows_split(Rows *to, const void *const *x, int32_t n_groups, int32_t group, int32_t n,
                       int32_t m, int32_t padded) {
    // Of each 8 bytes, which are 4 inputs in the pair order: low bytes, then high ones.
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15));
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int32_t i = 0; i < m; i++) {
        const GroupCodes *codes = (const GroupCodes *)x[i] + group;
        const GroupScale *scale = row_scales(x[i], n_groups) + group;
        for (int32_t g = 0; g < n; g++) {
            __m512i a = _mm512_shuffle_epi8(_mm512_load_si512(codes[g].v), bytes);
            __m512i b = _mm512_shuffle_epi8(_mm512_load_si512(codes[g].v + 32), bytes);
            _mm512_store_si512(to[g].low[i], _mm512_permutex2var_epi32(a, even, b));
            _mm512_store_si512(to[g].high[i], _mm512_permutex2var_epi32(a, odd, b));
            to[g].scale[i] = scale[g];
        }
    }
    for (int32_t i = m; i < padded; i++)
        for (int32_t g = 0; g < n; g++) {
            _mm512_store_si512(to[g].low[i], _mm512_setzero_si512());
            _mm512_store_si512(to[g].high[i], _mm512_setzero_si512());
            to[g].scale[i] = (GroupScale){0, 0};
        }
}

/* Both sums of one group by the tiles of set 0 or 1 (a constant). */
static inline __attribute__((always_inline)) void sums_make(Sums *to, const Rows *rows,
                                                            const Codes *codes, int set) {
    tile_fence();
    if (set == 0) {
        TILE(loadd)(CODES_0, codes->q, TILE_ROW_BYTES);
        TILE(loadd)(ROWS_HIGH, rows->high, TILE_ROW_BYTES);
        TILE(loadd)(ROWS_LOW, rows->low, TILE_ROW_BYTES);
        TILE(zero)(HIGH_0);
        TILE(zero)(LOW_0);
        TILE(dpbsud)(HIGH_0, ROWS_HIGH, CODES_0);
        TILE(dpbuud)(LOW_0, ROWS_LOW, CODES_0);
        TILE(stored)(HIGH_0, to->high, TILE_ROW_BYTES);
        TILE(stored)(LOW_0, to->low, TILE_ROW_BYTES);
    } else {
        TILE(loadd)(CODES_1, codes->q, TILE_ROW_BYTES);
        TILE(loadd)(ROWS_HIGH, rows->high, TILE_ROW_BYTES);
        TILE(loadd)(ROWS_LOW, rows->low, TILE_ROW_BYTES);
        TILE(zero)(HIGH_1);
        TILE(zero)(LOW_1);
        TILE(dpbsud)(HIGH_1, ROWS_HIGH, CODES_1);
        TILE(dpbuud)(LOW_1, ROWS_LOW, CODES_1);
        TILE(stored)(HIGH_1, to->high, TILE_ROW_BYTES);
        TILE(stored)(LOW_1, to->low, TILE_ROW_BYTES);
    }
}

/* out += what one group adds to `rows` rows (a constant). */
static inline __attribute__((always_inline)) void
sums_add(__m512 out[TILE_ROWS], const Sums *sums, const Rows *x, const Codes *codes, int rows) {
    __m512 scale = _mm512_load_ps(codes->scale), bias = _mm512_load_ps(codes->bias);
    for (int i = 0; i < rows; i++) {
        __m512i sum = _mm512_slli_epi32(_mm512_load_si512(sums->high[i]), 8);
        sum = _mm512_add_epi32(sum, _mm512_load_si512(sums->low[i]));
        out[i] = tile_add(out[i], sum, scale, bias, &x->scale[i]);
    }
}

/* n groups of one strip for m rows, padded to `rows` (a constant); the first groups of all begin
 * at zero. Meanwhile n tiles of `bytes` at `ahead` (NULL: none) are fetched. */
static inline __attribute__((always_inline)) void
strip_add(float *const *y, ptrdiff_t at, Work *w, const Codes *codes, int32_t n, bool is_first,
          int32_t m, const uint8_t *ahead, size_t bytes, int rows) {
    __m512 out[TILE_ROWS];
    for (int i = 0; i < rows; i++)
        out[i] = is_first || i >= m ? _mm512_setzero_ps() : _mm512_loadu_ps(y[i] + at);
    sums_make(&w->sums[0], w->rows, codes, 0);
    for (int32_t g = 0; g < n; g += 2) {
        if (ahead)
            for (size_t line = 0; line < 2 * bytes; line += 64)
                _mm_prefetch((const char *)ahead + (size_t)g * bytes + line, _MM_HINT_T1);
        if (g + 1 < n)
            sums_make(&w->sums[1], w->rows + g + 1, codes + g + 1, 1);
        sums_add(out, &w->sums[0], w->rows + g, codes + g, rows);
        if (g + 1 == n)
            break;
        if (g + 2 < n)
            sums_make(&w->sums[0], w->rows + g + 2, codes + g + 2, 0);
        sums_add(out, &w->sums[1], w->rows + g + 1, codes + g + 1, rows);
    }
    for (int i = 0; i < rows; i++)
        if (i < m)
            _mm512_storeu_ps(y[i] + at, out[i]);
}

/* A call, and where it stands. */
typedef struct Block {
    float *const *y;
    const uint8_t *w, *next;
    size_t tile_bytes, strip_bytes;
    int32_t n_groups, n_strips, group, strip; // of the whole; where the block begins
    int32_t groups, strips;                   // of the block
} Block;

/* Where strip number s of the block lies in the one behind this. */
static const uint8_t *block_ahead(const Block *b, int32_t s) {
    const uint8_t *strip = b->w + (size_t)(b->strip + s) * b->strip_bytes;
    if (b->group + b->groups < b->n_groups)
        return strip + (size_t)(b->group + b->groups) * b->tile_bytes;
    if (b->strip + b->strips < b->n_strips)
        return strip + (size_t)b->strips * b->strip_bytes;
    return b->next ? b->next + (size_t)s * b->strip_bytes : NULL;
}

/* All strips of a block for rows [row, row + m), padded to `rows` (a constant). */
static inline __attribute__((always_inline)) void block_rows(Work *w, const Block *b, int32_t row,
                                                             int32_t m, int rows) {
    for (int32_t s = 0; s < b->strips; s++)
        strip_add(b->y + row, (ptrdiff_t)(b->strip + s) * STRIP_ROWS, w, w->codes[s], b->groups,
                  b->group == 0, m, row == 0 ? block_ahead(b, s) : NULL, b->tile_bytes, rows);
}

static void block_add(Work *w, const Block *b, int32_t row, int32_t m, int32_t padded) {
    switch (padded) {
    case 2 * ROWS_STEP: block_rows(w, b, row, m, 2 * ROWS_STEP); break;
    case 3 * ROWS_STEP: block_rows(w, b, row, m, 3 * ROWS_STEP); break;
    default: block_rows(w, b, row, m, TILE_ROWS); break;
    }
}

static void matmul_tiles(Block *b, const void *const *x, int32_t m, int bits) {
    Work work; // 165 KB
    int32_t n_tiles = div_up_i32(m, TILE_ROWS), small = m / n_tiles;
    int32_t n_large = m - small * n_tiles; // tiles of small + 1 rows
    int32_t padded = (int32_t)round_up_size((size_t)(small + (n_large > 0)), ROWS_STEP);
    uint8_t rows[TILE_N];
    for (int i = 0; i < TILE_N; i++)
        rows[i] = i >= CODES_0 ? GROUP_INPUTS / 4 : (uint8_t)padded;
    tile_configure(rows);
    b->tile_bytes = tile_bytes(bits);
    b->strip_bytes = b->tile_bytes * (size_t)b->n_groups;
    for (b->strip = 0; b->strip < b->n_strips; b->strip += BLOCK_STRIPS) {
        b->strips = min_i32(BLOCK_STRIPS, b->n_strips - b->strip);
        for (b->group = 0; b->group < b->n_groups; b->group += BLOCK_GROUPS) {
            b->groups = min_i32(BLOCK_GROUPS, b->n_groups - b->group);
            for (int32_t s = 0; s < b->strips; s++) {
                const uint8_t *tile = b->w + (size_t)(b->strip + s) * b->strip_bytes +
                                      (size_t)b->group * b->tile_bytes;
                for (int32_t g = 0; g < b->groups; g++)
                    codes_unpack(&work.codes[s][g], tile + (size_t)g * b->tile_bytes, bits);
            }
            for (int32_t t = 0, row = 0; t < n_tiles; t++) {
                int32_t n = small + (t < n_large);
                rows_split(work.rows, x + row, b->n_groups, b->group, b->groups, n, padded);
                block_add(&work, b, row, n, padded);
                row += n;
            }
        }
    }
    tile_release();
}

static void matmul_amx(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                       const void *const *x, int32_t m, const uint8_t *next, int bits) {
    if (m < LEAST_ROWS) {
        MatmulKernels few;
        matmul_avx512_init(&few);
        MatmulFn fn = bits == 4 ? few.prefill_q4 : few.prefill_q8;
        fn(y, w, n_groups, n_strips, x, m, next);
        return;
    }
    Block b = {.y = y, .w = w, .next = next, .n_groups = n_groups, .n_strips = n_strips};
    matmul_tiles(&b, x, m, bits);
}

static void matmul_amx_q4(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                          const void *const *x, int32_t m, const uint8_t *next) {
    matmul_amx(y, w, n_groups, n_strips, x, m, next, 4);
}

static void matmul_amx_q8(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                          const void *const *x, int32_t m, const uint8_t *next) {
    matmul_amx(y, w, n_groups, n_strips, x, m, next, 8);
}

void matmul_amx_init(MatmulKernels *t) {
    matmul_avx512_init(t);
    t->column = "amx";
    t->prefill_q4 = matmul_amx_q4;
    t->prefill_q8 = matmul_amx_q8;
    t->chunk_bytes = 576 << 10; // rows are split anew for each 16 strips
}
