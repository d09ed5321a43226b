// SPDX-License-Identifier: Apache-2.0
/* attn_amx.c - attention of prompts on bf16 tiles; everything else is avx512's.
 *
 * Path:     the passes call it through AttnKernels, one KV head and some tokens at a time.
 * Owns:     nothing.  Thread: any.
 * Not here: the layout of KV blocks (kernels.h).
 *
 * The rows, some tokens by all query heads of a KV head, go together over 256 keys after the other,
 * 32 rows at a time: what they have summed up is read, scaled and written once for these keys, and
 * their queries and weights stay in L1. Keys lie as a tile wants them (pairs of d for each key).
 * Values are turned into pairs of keys once for all rows. Weights are rounded to bf16 as all inputs
 * of the prompts' products are, and so counted in their sum. A row sees nothing of the rows beside
 * it: keys behind its own have the weight zero, and a value that is no number counts as zero, while
 * rows that do see it become NaN. */
#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/attn_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    ROWS = 2 * TILE_ROWS,            // rows are padded to, and go together
    PASS_BLOCKS = 4,                 // KV blocks of a pass
    PASS = PASS_BLOCKS * KV_KEYS,    // keys of a pass
    SCORE_STEPS = PAIRS / 16,        // tiles along d
    VALUE_TILES = ATTN_HEAD / 16,    // tiles along columns
    PAIR_LINES = ATTN_HEAD * 2 / 64, // lines of one key's values
    KEY_PAIRS = KV_KEYS / 2,         // of a block
    VALUE_KEYS = 32,                 // keys of a tile of values
};

/* Rows are (token, head), padded. */
typedef struct Work {
    uint32_t *values; // [PASS_BLOCKS][VALUE_TILES][KEY_PAIRS][16] pairs of keys
    uint32_t *q;      // [rows][PAIRS]
    float *o;         // [rows][256], not divided by the sum
    float *scores;    // [ROWS][PASS]; then the first half of each row is bf16 weights
    float *max, *sum; // [rows]
} Work;

static size_t work_rows(int32_t heads) { return round_up_size(ATTN_TOKENS * (size_t)heads, ROWS); }

static size_t attn_amx_scratch_bytes(int32_t heads) {
    AttnKernels vectors;
    attn_avx512_init(&vectors);
    size_t bytes = sizeof(uint16_t) * PASS_BLOCKS * KV_ELEMENTS + sizeof(float) * ROWS * PASS +
                   sizeof(float) * work_rows(heads) * (PAIRS + ATTN_HEAD + 2);
    return max_size(vectors.scratch_bytes(heads), round_up_size(bytes, 64)); // decode uses it too
}

static Work work_open(void *scratch, int32_t heads) {
    size_t rows = work_rows(heads);
    Work w = {.values = scratch};
    w.q = w.values + PASS_BLOCKS * KV_ELEMENTS / 2;
    w.o = (float *)(w.q + rows * PAIRS);
    w.scores = w.o + rows * ATTN_HEAD;
    w.max = w.scores + ROWS * PASS;
    w.sum = w.max + rows;
    return w;
}

/* Scores of 32 rows from `row` on with the keys of a block, number `number` of the pass. */
static void scores_make(const Work *w, size_t row, const uint32_t *k, int number) {
    const uint32_t *q = w->q + row * PAIRS;
    const ptrdiff_t ldq = PAIRS * 4, ldk = KV_KEYS * 4, lds = PASS * 4;
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
        float *to = w->scores + number * KV_KEYS + key;
        TILE(stored)(0, to, lds);
        TILE(stored)(1, to + 16, lds);
        TILE(stored)(2, to + TILE_ROWS * PASS, lds);
        TILE(stored)(3, to + TILE_ROWS * PASS + 16, lds);
    }
}

/* Two lines of values, of keys first and second, as pairs of keys: columns 0 to 15, 16 to 31. (A
 * line has columns c and c + 16 in a lane.) */
static inline void keys_pair(__m512i to[2], __m512i first, __m512i second) {
    to[0] = _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
    to[1] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
}

/* The values of the first n keys of a block as pairs of keys, the others as zeros; returns the
 * first key with a value that is no number, or PASS. */
static int32_t values_pack(uint32_t *values, const uint32_t *v, int32_t n) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    int32_t bad = PASS;
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
            uint32_t *to = values + (size_t)c * 2 * KEY_PAIRS * 16 + key / 2 * 16;
            __m512i pair[2];
            keys_pair(pair, line[0][c], line[1][c]);
            _mm512_storeu_si512(to, pair[0]);
            _mm512_storeu_si512(to + KEY_PAIRS * 16, pair[1]);
        }
    }
    return bad;
}

/* 2^x, off by 1e-5 of itself at most, far less than a bf16; 0 below -126, NaN stays NaN. */
static inline __m512 power_ps(__m512 x) {
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.00965671055f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0558382832f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.2402253f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693136752f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __mmask16 is_number = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(is_number, p, n);
}

/* Turns the scores of n > 0 keys of a row into weights in bf16, those of the keys behind them up to
 * `end`, a multiple of VALUE_KEYS, into zeros. Returns the factor for what the row has summed up.
 */
static float weights_make(float *scores, int32_t n, int32_t end, float *max, float *sum) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f), none = _mm512_set1_ps(-INFINITY);
    for (int32_t key = n / 16 * 16; key < end; key += 16) {
        __mmask16 hidden = key < n ? (__mmask16)(0xffffu << (n - key)) : 0xffff;
        _mm512_mask_storeu_ps(scores + key, hidden, none);
    }
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 top = _mm512_set1_ps(*max), total = _mm512_setzero_ps();
    for (int32_t key = 0; key < end; key += 16)
        top = _mm512_max_ps(top, _mm512_loadu_ps(scores + key));
    float new_max = _mm512_reduce_max_ps(top);
    const __m512 least = _mm512_set1_ps(new_max);
    for (int32_t key = 0; key < end; key += VALUE_KEYS) {
        __m512 p[2];
        for (int i = 0; i < 2; i++)
            p[i] = power_ps(
                _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + key + 16 * i), least), log2e));
        __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]);
        _mm512_storeu_si512(scores + key / 2, halves);
        total = _mm512_dpbf16_ps(total, (__m512bh)halves, ones);
    }
    float factor = 0.0f;
    if (*max != -INFINITY)
        factor = _mm512_cvtss_f32(
            power_ps(_mm512_mul_ps(_mm512_sub_ps(_mm512_set1_ps(*max), least), log2e)));
    *sum = *sum * factor + _mm512_reduce_add_ps(total);
    *max = new_max;
    return factor;
}

/* Softmax of one row, the scores at `scores`, over the first n keys of a pass of which `end` count
 * for some row; is_first: there is nothing in o. */
static void row_soften(const Work *w, float *scores, size_t row, int32_t n, int32_t end,
                       int32_t bad, bool is_first) {
    float *o = w->o + row * ATTN_HEAD;
    if (n <= 0) {
        memset(scores, 0, sizeof(uint16_t) * (size_t)end);
        return;
    }
    float factor = weights_make(scores, n, end, w->max + row, w->sum + row);
    if (n > bad)
        w->sum[row] = NAN;
    for (int d = 0; d < ATTN_HEAD && !is_first && factor != 1.0f; d += 16)
        _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(o + d)));
}

/* o of 32 rows += weighted values of the first `end` keys; is_first: there is nothing in o. */
static void values_add(const Work *w, size_t row, int32_t end, bool is_first) {
    const uint32_t *v = w->values;
    const ptrdiff_t ldp = PASS * 4, ldo = ATTN_HEAD * 4;
    float *o = w->o + row * ATTN_HEAD;
    for (int c = 0; c < VALUE_TILES; c += 2, v += 2 * KEY_PAIRS * 16, o += 32) {
        if (is_first) {
            TILE(zero)(0);
            TILE(zero)(1);
            TILE(zero)(2);
            TILE(zero)(3);
        } else {
            TILE(loadd)(0, o, ldo);
            TILE(loadd)(1, o + 16, ldo);
            TILE(loadd)(2, o + TILE_ROWS * ATTN_HEAD, ldo);
            TILE(loadd)(3, o + TILE_ROWS * ATTN_HEAD + 16, ldo);
        }
        for (int32_t key = 0; key < end; key += VALUE_KEYS) {
            const uint32_t *at = v + key / KV_KEYS * (KV_ELEMENTS / 2) + key % KV_KEYS / 2 * 16;
            const float *p = w->scores + key / 2;
            TILE(loadd)(6, at, 64);
            TILE(loadd)(4, p, ldp);
            TILE(loadd)(5, p + TILE_ROWS * PASS, ldp);
            TILE(loadd)(7, at + KEY_PAIRS * 16, 64);
            TILE(dpbf16ps)(0, 4, 6);
            TILE(dpbf16ps)(2, 5, 6);
            TILE(dpbf16ps)(1, 4, 7);
            TILE(dpbf16ps)(3, 5, 7);
        }
        TILE(stored)(0, o, ldo);
        TILE(stored)(1, o + 16, ldo);
        TILE(stored)(2, o + TILE_ROWS * ATTN_HEAD, ldo);
        TILE(stored)(3, o + TILE_ROWS * ATTN_HEAD + 16, ldo);
    }
}

/* A call's rows. */
typedef struct Rows {
    int32_t heads, pos0;
    size_t n;
} Rows;

/* 32 rows from `row` on over a pass of keys that begins with key number `at`. */
static void rows_add(const Work *w, const Rows *rows, const void *const *blocks, size_t row,
                     int32_t at, int32_t bad) {
    size_t last = row + ROWS < rows->n ? row + ROWS : rows->n;
    int32_t end = rows->pos0 + (int32_t)(last - 1) / rows->heads + 1 - at;
    if (end <= 0)
        return;
    end = (int32_t)round_up_size((size_t)min_i32(PASS, end), VALUE_KEYS);
    tile_fence();
    for (int32_t i = 0; i < div_up_i32(end, KV_KEYS); i++)
        scores_make(w, row, blocks[at / KV_KEYS + i], i);
    tile_fence();
    for (size_t i = row; i < last; i++)
        row_soften(w, w->scores + (i - row) * PASS, i,
                   min_i32(PASS, rows->pos0 + (int32_t)i / rows->heads + 1 - at), end, bad,
                   at == 0);
    tile_fence();
    values_add(w, row, end, at == 0);
    tile_fence();
}

static void attn_amx_prefill(float *out, const float *q, int32_t heads, const void *const *blocks,
                             int32_t pos0, int32_t n_tokens, void *scratch) {
    static const uint8_t tile_rows[TILE_N] = {16, 16, 16, 16, 16, 16, 16, 16};
    Work w = work_open(scratch, heads);
    Rows rows = {heads, pos0, (size_t)n_tokens * (size_t)heads};
    size_t padded = round_up_size(rows.n, ROWS);
    pack_queries(w.q, q, rows.n);
    memset(w.q + rows.n * PAIRS, 0, sizeof *w.q * (padded - rows.n) * PAIRS);
    for (size_t i = 0; i < rows.n; i++) {
        w.max[i] = -INFINITY;
        w.sum[i] = 0.0f;
    }
    tile_configure(tile_rows);
    for (int32_t at = 0; at < pos0 + n_tokens; at += PASS) {
        int32_t bad = PASS;
        for (int32_t i = 0; i < PASS_BLOCKS && at + i * KV_KEYS < pos0 + n_tokens; i++) {
            const uint32_t *block = blocks[at / KV_KEYS + i];
            int32_t n = min_i32(KV_KEYS, pos0 + n_tokens - at - i * KV_KEYS);
            bad = min_i32(bad, i * KV_KEYS + values_pack(w.values + i * (KV_ELEMENTS / 2),
                                                         block + KV_ELEMENTS / 2, n));
        }
        for (size_t row = 0; row < padded; row += ROWS)
            rows_add(&w, &rows, blocks, row, at, bad);
    }
    tile_release();
    for (size_t i = 0; i < rows.n; i++)
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
