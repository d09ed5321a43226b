// SPDX-License-Identifier: Apache-2.0
/* attn_amx.c - attention of prompts on bf16 tiles; everything else is avx512's.
 *
 * Path:     the passes call it through AttnKernels, one KV head and up to 16 tokens at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of KV blocks (kernels.h), softmax (attn_avx512.h).
 *
 * The rows, 16 tokens by all query heads of a KV head, go together over one block of 64 keys after
 * the other. Keys lie as a tile wants them (pairs of d for each key). Values are turned into pairs
 * of keys once for all rows. Weights are rounded to bf16 as all inputs of the prompts' products
 * are, and so counted in their sum. A row sees nothing of the rows beside it: keys behind its own
 * have the weight zero, and a value that is no number counts as zero, while rows that do see it
 * become NaN. */
#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/attn_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <string.h>

enum {
    ROWS = 2 * TILE_ROWS,            // rows are padded to: scores are made for two tiles at a time
    SCORE_STEPS = PAIRS / 16,        // tiles along d
    VALUE_TILES = ATTN_HEAD / 16,    // tiles along columns
    PAIR_LINES = ATTN_HEAD * 2 / 64, // lines of one key's values
    WEIGHTS = KV_KEYS / 2,           // of a row: bf16 pairs of keys
};

/* Rows are (token, head), padded. */
typedef struct Work {
    uint32_t *values; // [VALUE_TILES][WEIGHTS][16] pairs of keys
    uint32_t *q;      // [rows][PAIRS]
    float *o;         // [rows][256], not divided by the sum
    float *scores;    // [rows][64]; then the first half of each row is [WEIGHTS]
    float *max, *sum; // [rows]
} Work;

static size_t work_rows(int32_t heads) { return round_up_size(ATTN_TOKENS * (size_t)heads, ROWS); }

static size_t attn_amx_scratch_bytes(int32_t heads) {
    AttnKernels vectors;
    attn_avx512_init(&vectors);
    size_t row = sizeof(float) * (PAIRS + ATTN_HEAD + KV_KEYS + 2);
    return max_size(vectors.scratch_bytes(heads), // decode uses it too
                    KV_ELEMENTS * sizeof(uint16_t) + round_up_size(row * work_rows(heads), 64));
}

static Work work_open(void *scratch, int32_t heads) {
    size_t rows = work_rows(heads);
    Work w = {.values = scratch};
    w.q = w.values + KV_ELEMENTS / 2;
    w.o = (float *)(w.q + rows * PAIRS);
    w.scores = w.o + rows * ATTN_HEAD;
    w.max = w.scores + rows * KV_KEYS;
    w.sum = w.max + rows;
    return w;
}

/* Scores of 32 rows from `row` on. */
static void scores_make(const Work *w, size_t row, const uint32_t *k) {
    const uint32_t *q = w->q + row * PAIRS;
    const ptrdiff_t ldq = PAIRS * 4, ldk = KV_KEYS * 4, lds = KV_KEYS * 4;
    tile_fence();
    for (int key = 0; key < KV_KEYS; key += 32) {
        TILE(zero)(0);
        TILE(zero)(1);
        TILE(zero)(2);
        TILE(zero)(3);
        for (int i = 0; i < SCORE_STEPS; i++) {
            TILE(loadd)(6, k + i * 16 * KV_KEYS + key, ldk);
            TILE(loadd)(4, q + i * 16, ldq);
            TILE(loadd)(5, q + TILE_ROWS * PAIRS + i * 16, ldq);
            TILE(loadd)(7, k + i * 16 * KV_KEYS + key + 16, ldk);
            TILE(dpbf16ps)(0, 4, 6);
            TILE(dpbf16ps)(2, 5, 6);
            TILE(dpbf16ps)(1, 4, 7);
            TILE(dpbf16ps)(3, 5, 7);
        }
        float *to = w->scores + row * KV_KEYS + key;
        TILE(stored)(0, to, lds);
        TILE(stored)(1, to + 16, lds);
        TILE(stored)(2, to + TILE_ROWS * KV_KEYS, lds);
        TILE(stored)(3, to + TILE_ROWS * KV_KEYS + 16, lds);
    }
}

/* Two lines of values, of keys first and second, as pairs of keys: columns 0 to 15, 16 to 31. (A
 * line has columns c and c + 16 in a lane.) */
static inline void keys_pair(__m512i to[2], __m512i first, __m512i second) {
    to[0] = _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
    to[1] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
}

/* The values of the first n keys of a block as pairs of keys, the others as zeros; returns the
 * first key with a value that is no number, or KV_KEYS. */
static int32_t values_pack(const Work *w, const uint32_t *v, int32_t n) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    int32_t bad = KV_KEYS;
    for (int32_t key = 0; key < KV_KEYS; key += 2) {
        __m512i line[2][PAIR_LINES];
        for (int i = 0; i < 2; i++) {
            __mmask32 is_bad = 0;
            for (int c = 0; c < PAIR_LINES; c++) {
                line[i][c] = key + i < n ? _mm512_loadu_si512(v + (key + i) * PAIRS + 16 * c)
                                         : _mm512_setzero_si512();
                is_bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(line[i][c], exponent), exponent);
            }
            for (int c = 0; c < PAIR_LINES && is_bad; c++)
                line[i][c] = _mm512_setzero_si512();
            if (is_bad)
                bad = min_i32(bad, key + i);
        }
        for (int c = 0; c < PAIR_LINES; c++) { // columns c and c + 16 share a lane
            uint32_t *to = w->values + (size_t)c * 2 * WEIGHTS * 16 + key / 2 * 16;
            __m512i pair[2];
            keys_pair(pair, line[0][c], line[1][c]);
            _mm512_storeu_si512(to, pair[0]);
            _mm512_storeu_si512(to + WEIGHTS * 16, pair[1]);
        }
    }
    return bad;
}

/* Softmax of one row over the first n of 64 keys. */
static void row_soften(const Work *w, size_t row, int32_t n, int32_t bad) {
    float *scores = w->scores + row * KV_KEYS, *o = w->o + row * ATTN_HEAD;
    if (n <= 0) {
        memset(scores, 0, sizeof *scores * WEIGHTS);
        return;
    }
    float factor = soften(scores, n, w->max + row, w->sum + row, true);
    factor = n > bad ? NAN : factor;
    for (int d = 0; d < ATTN_HEAD && factor != 1.0f; d += 16)
        _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(o + d)));
}

/* o of 32 rows += weighted values. */
static void values_add(const Work *w, size_t row) {
    const float *p = w->scores + row * KV_KEYS;
    const uint32_t *v = w->values;
    const ptrdiff_t ldp = KV_KEYS * 4, ldo = ATTN_HEAD * 4;
    float *o = w->o + row * ATTN_HEAD;
    tile_fence();
    TILE(loadd)(0, p, ldp);
    TILE(loadd)(1, p + 16, ldp);
    TILE(loadd)(2, p + TILE_ROWS * KV_KEYS, ldp);
    TILE(loadd)(3, p + TILE_ROWS * KV_KEYS + 16, ldp);
    for (int c = 0; c < VALUE_TILES; c++, v += WEIGHTS * 16, o += 16) {
        TILE(loadd)(4, v, 64);
        TILE(loadd)(6, o, ldo);
        TILE(loadd)(7, o + TILE_ROWS * ATTN_HEAD, ldo);
        TILE(loadd)(5, v + 16 * 16, 64);
        TILE(dpbf16ps)(6, 0, 4);
        TILE(dpbf16ps)(7, 2, 4);
        TILE(dpbf16ps)(6, 1, 5);
        TILE(dpbf16ps)(7, 3, 5);
        TILE(stored)(6, o, ldo);
        TILE(stored)(7, o + TILE_ROWS * ATTN_HEAD, ldo);
    }
    tile_fence();
}

static void attn_amx_prefill(float *out, const float *q, int32_t heads, const void *const *blocks,
                             int32_t pos0, int32_t n_tokens, void *scratch) {
    static const uint8_t tile_rows[TILE_N] = {16, 16, 16, 16, 16, 16, 16, 16};
    Work w = work_open(scratch, heads);
    size_t rows = (size_t)n_tokens * (size_t)heads, padded = round_up_size(rows, ROWS);
    pack_queries(w.q, q, rows);
    memset(w.q + rows * PAIRS, 0, sizeof *w.q * (padded - rows) * PAIRS);
    memset(w.o, 0, sizeof *w.o * padded * ATTN_HEAD);
    for (size_t i = 0; i < rows; i++) {
        w.max[i] = -INFINITY;
        w.sum[i] = 0.0f;
    }
    tile_configure(tile_rows);
    for (int32_t at = 0; at < pos0 + n_tokens; at += KV_KEYS) {
        const uint32_t *block = blocks[at / KV_KEYS];
        size_t first = (size_t)(max_i32(0, at - pos0) * heads) / ROWS * ROWS; // sees a key here
        int32_t bad =
            values_pack(&w, block + KV_ELEMENTS / 2, min_i32(KV_KEYS, pos0 + n_tokens - at));
        for (size_t row = first; row < padded; row += ROWS) {
            scores_make(&w, row, block);
            for (size_t i = row; i < row + ROWS && i < rows; i++)
                row_soften(&w, i, min_i32(KV_KEYS, pos0 + (int32_t)i / heads + 1 - at), bad);
            values_add(&w, row);
        }
    }
    tile_release();
    for (size_t i = 0; i < rows; i++)
        for (int d = 0; d < ATTN_HEAD; d += 16)
            _mm512_storeu_ps(
                out + i * ATTN_HEAD + d,
                _mm512_div_ps(_mm512_loadu_ps(w.o + i * ATTN_HEAD + d), _mm512_set1_ps(w.sum[i])));
}

void attn_amx_init(AttnKernels *t) {
    attn_avx512_init(t);
    t->column = "amx";
    t->scratch_bytes = attn_amx_scratch_bytes;
    t->prefill = attn_amx_prefill;
}
