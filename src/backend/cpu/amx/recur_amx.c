// SPDX-License-Identifier: Apache-2.0
/* recur_amx.c - the chunk form of the gated delta rule on bf16 tiles; everything else is avx512's.
 *
 * Path:     the passes call it through RecurKernels: gram for a key head, then chunk for each of
 *           its value heads.
 * Owns:     nothing.  Thread: any.
 * Not here: gates and head mapping (cpu_gdn.c); formulas of the chunk form (recur_generic.c).
 *
 * With K, Q, V the rows of a chunk, G the running sums of the log decay, S the state before it:
 *   A  = beta e^{Gi - Gj} k k^T below the diagonal,  P = e^{Gi - Gj} q k^T up to the diagonal
 *   D  = (I + A)^-1 (beta V - beta e^G K S)
 *   O  = e^G Q S + P D
 *   S' = e^{Gm} S + K^T (e^{Gm - G} D)
 * D comes in two blocks of 32 tokens, the inner length of a tile: the diagonal blocks of I + A are
 * inverted in f32 by substitution (powers of A explode when keys are alike), the rest are products.
 * 32 columns of S, V, D and O go through all of it together: they stay in L1.
 *
 * Every operand is the sum of two bf16 numbers: three products, an error of about 2^-17 of each
 * term; sums, state and decays are f32. Inputs t and t + 16 of 32 share a lane in every operand, so
 * that neighbouring vectors become pairs without a permutation. A row of a left operand reaches its
 * own row of the result alone, and no tile right of the diagonal is multiplied: rows do not depend
 * on how many follow. Where a later row is no number, zero times it would be none in the rows
 * ahead; such a row counts as the end of the chunk, and it and what follows become NaN. */
#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <math.h>
#include <string.h>

enum {
    W = GDN_HEAD,
    C = RECUR_CHUNK,
    BLOCK = 32,             // rows and columns of the products of four tiles, and inputs of a tile
    DIMS = W / BLOCK,       // blocks of a head's dims
    TOKENS = C / BLOCK,     // blocks of a chunk's tokens
    LANES = TILE_ROWS,      // f32 of a vector
    HALVES = BLOCK / LANES, // tiles of a block
};

/* A tile of pairs of bf16, and what these numbers leave of those that they stand for. As a left
 * operand 16 rows of 32 inputs, as a right operand 32 inputs of 16 columns. */
typedef struct Split {
    uint32_t high[TILE_ROWS][LANES], low[TILE_ROWS][LANES];
} Split;

/* What gram leaves for chunk, and both use. */
typedef struct Work {
    Split k[C / LANES][DIMS], q[C / LANES][DIMS]; // left: [tokens][dims]
    Split k_turned[W / LANES][TOKENS];            // left: [dims][tokens]
    union {
        Split k_right[DIMS][C / LANES];      // gram: right: [dims][tokens]
        struct {                             // chunk: of one value head
            Split p[TOKENS][TOKENS][HALVES]; // left: [tokens, by halves], P
            Split inverse[TOKENS][HALVES];   // left: of the diagonal blocks of I + A
            Split a[HALVES];                 // left: -A of the later tokens for the earlier ones
            float below[C][BLOCK];           // A of the diagonal blocks; then their inverses
            float decay[C], late[C], beta[C];
            float sum[2][C]; // G as the sum of two f32
            /* Of 32 columns. */
            Split s[DIMS][HALVES], right[HALVES], d[TOKENS][HALVES], d_late[TOKENS][HALVES];
            float ks[C][BLOCK], qs[C][BLOCK], block[BLOCK][BLOCK];
        };
    };
} Work;
static_assert(sizeof(Work) % 64 == 0 && BLOCK == 2 * TILE_ROWS, "tiles of 64 bytes a row");

static size_t recur_amx_chunk_scratch_bytes(void) { return sizeof(Work); }

/* ---- pairs ---- */

/* x to 8 bits, the nearest; NaN stays NaN, and from 2^112 on the result is NaN. (T. J. Dekker,
 * 1971.) */
static inline __m512 high_ps(__m512 x) {
    __m512 large = _mm512_mul_ps(x, _mm512_set1_ps(65537.0f));
    return _mm512_sub_ps(large, _mm512_sub_ps(large, x));
}

/* The high halves of x and y. */
static inline __m512i pair_of(__m512i x, __m512i y) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(x, 16), y);
}

static inline void split_store(Split *to, int row, __m512 x, __m512 y) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    __m512 x_high = high_ps(x), y_high = high_ps(y);
    __m512i x_low = _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(x, x_high)), half);
    __m512i y_low = _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(y, y_high)), half);
    _mm512_store_si512(to->high[row],
                       pair_of(_mm512_castps_si512(x_high), _mm512_castps_si512(y_high)));
    _mm512_store_si512(to->low[row], pair_of(x_low, y_low));
}

/* ---- products of 32 rows by 32 columns, in tiles 0 to 3 ---- */

static inline void block_zero(void) {
    tile_fence();
    TILE(zero)(0);
    TILE(zero)(1);
    TILE(zero)(2);
    TILE(zero)(3);
}

/* += the products of 32 inputs: 16 rows each of left0 and left1. Small parts first. */
static inline void block_add(const Split *left0, const Split *left1, const Split right[HALVES]) {
    TILE(loadd)(4, left0->low, 64);
    TILE(loadd)(6, right[0].high, 64);
    TILE(loadd)(7, right[1].high, 64);
    TILE(loadd)(5, left1->low, 64);
    TILE(dpbf16ps)(0, 4, 6);
    TILE(dpbf16ps)(1, 4, 7);
    TILE(dpbf16ps)(2, 5, 6);
    TILE(dpbf16ps)(3, 5, 7);
    TILE(loadd)(4, left0->high, 64);
    TILE(loadd)(5, left1->high, 64);
    TILE(dpbf16ps)(0, 4, 6);
    TILE(dpbf16ps)(1, 4, 7);
    TILE(dpbf16ps)(2, 5, 6);
    TILE(dpbf16ps)(3, 5, 7);
    TILE(loadd)(6, right[0].low, 64);
    TILE(loadd)(7, right[1].low, 64);
    TILE(dpbf16ps)(0, 4, 6);
    TILE(dpbf16ps)(1, 4, 7);
    TILE(dpbf16ps)(2, 5, 6);
    TILE(dpbf16ps)(3, 5, 7);
}

static inline void block_store(float *to, ptrdiff_t ld) {
    TILE(stored)(0, to, ld * 4);
    TILE(stored)(1, to + LANES, ld * 4);
    TILE(stored)(2, to + LANES * ld, ld * 4);
    TILE(stored)(3, to + LANES * ld + LANES, ld * 4);
    tile_fence();
}

static void tiles_open(void) {
    static const uint8_t rows[TILE_N] = {16, 16, 16, 16, 16, 16, 16, 16};
    tile_configure(rows);
}

/* ---- gram ---- */

/* Rows of x as left operands; zeros behind m, up to a whole block. */
static void rows_split(Split (*to)[DIMS], const float *x, int32_t m) {
    for (int32_t t = 0; t < div_up_i32(m, BLOCK) * BLOCK; t++)
        for (int b = 0; b < DIMS; b++) {
            __m512 first = _mm512_setzero_ps(), second = first;
            if (t < m) {
                first = _mm512_loadu_ps(x + t * W + b * BLOCK);
                second = _mm512_loadu_ps(x + t * W + b * BLOCK + LANES);
            }
            split_store(&to[t / LANES][b], t % LANES, first, second);
        }
}

/* to = from transposed, 16 x 16 pairs. */
static void tile_turn(uint32_t (*to)[LANES], const uint32_t (*from)[LANES]) {
    __m512i a[LANES], b[LANES];
    for (int i = 0; i < LANES; i++)
        a[i] = _mm512_load_si512(from[i]);
    for (int i = 0; i < LANES; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) { // a[i + c]: of each 128 bits column c of rows i to i + 3
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i even0 = _mm512_shuffle_i32x4(a[c], a[c + 4], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(a[c], a[c + 4], 0xdd);
        __m512i even1 = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(a[c + 8], a[c + 12], 0xdd);
        _mm512_store_si512(to[c], _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_store_si512(to[c + 4], _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_store_si512(to[c + 8], _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_store_si512(to[c + 12], _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

/* Two tiles of 16 tokens each, dims d and d + 16 in a lane, as two of 16 dims each, tokens t and
 * t + 16 in a lane. */
static void pairs_turn(uint32_t (*first)[LANES], uint32_t (*second)[LANES],
                       const uint32_t (*a)[LANES], const uint32_t (*b)[LANES]) {
    for (int i = 0; i < LANES; i++) {
        __m512i x = _mm512_load_si512(a[i]), y = _mm512_load_si512(b[i]);
        _mm512_store_si512(first[i],
                           _mm512_mask_blend_epi16(0xaaaaaaaa, x, _mm512_slli_epi32(y, 16)));
        _mm512_store_si512(second[i], pair_of(x, y));
    }
}

static void keys_turn(Work *w, int n_blocks) {
    for (int b = 0; b < DIMS; b++)
        for (int t = 0; t < n_blocks; t++) {
            Split *x = &w->k_right[b][2 * t], *y = x + 1;
            tile_turn(x->high, w->k[2 * t][b].high);
            tile_turn(x->low, w->k[2 * t][b].low);
            tile_turn(y->high, w->k[2 * t + 1][b].high);
            tile_turn(y->low, w->k[2 * t + 1][b].low);
            Split *first = &w->k_turned[2 * b][t], *second = &w->k_turned[2 * b + 1][t];
            pairs_turn(first->high, second->high, x->high, y->high);
            pairs_turn(first->low, second->low, x->low, y->low);
        }
}

static void recur_amx_gram(float *kk, float *qk, const float *q, const float *k, int32_t m,
                           void *scratch) {
    Work *w = scratch;
    int n_blocks = div_up_i32(m, BLOCK);
    rows_split(w->k, k, m);
    rows_split(w->q, q, m);
    keys_turn(w, n_blocks);
    tiles_open();
    for (int r = 0; r < n_blocks; r++)
        for (int c = 0; c <= r; c++) {
            block_zero();
            for (int b = 0; b < DIMS; b++)
                block_add(&w->k[2 * r][b], &w->k[2 * r + 1][b], &w->k_right[b][2 * c]);
            block_store(kk + r * BLOCK * C + c * BLOCK, C);
            block_zero();
            for (int b = 0; b < DIMS; b++)
                block_add(&w->q[2 * r][b], &w->q[2 * r + 1][b], &w->k_right[b][2 * c]);
            block_store(qk + r * BLOCK * C + c * BLOCK, C);
        }
    tile_release();
}

/* ---- what a value head's columns share: decays, P, A and its inverses ---- */

/* Factors of n tokens; what lies behind them stays finite. */
static void factors_make(Work *w, const float *g, const float *beta, int32_t n) {
    double sum = 0.0;
    for (int32_t i = 0; i < C; i++) {
        sum += i < n ? (double)g[i] : 0.0;
        w->sum[0][i] = (float)sum;
        w->sum[1][i] = (float)(sum - (double)w->sum[0][i]);
        w->beta[i] = i < n ? beta[i] : 0.0f;
    }
    __m512 last = _mm512_set1_ps(w->sum[0][C - 1]), rest = _mm512_set1_ps(w->sum[1][C - 1]);
    for (int32_t i = 0; i < C; i += LANES) {
        __m512 at = _mm512_load_ps(w->sum[0] + i), more = _mm512_load_ps(w->sum[1] + i);
        __m512 to_end = _mm512_add_ps(_mm512_sub_ps(last, at), _mm512_sub_ps(rest, more));
        _mm512_store_ps(w->decay + i, exp_ps(at));
        _mm512_store_ps(w->late + i, exp_ps(to_end));
    }
}

/* P and A of token i for tokens [j, j + 16): n of them count for P, one less for A. */
static inline void mix_vector(const Work *w, __m512 *p, __m512 *a, const float *kk, const float *qk,
                              int32_t i, int32_t j, int32_t n) {
    *p = *a = _mm512_setzero_ps();
    if (n <= 0)
        return;
    __mmask16 mask = n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1);
    __mmask16 below = n > LANES ? 0xffff : (__mmask16)(mask >> 1);
    __m512 high = _mm512_sub_ps(_mm512_set1_ps(w->sum[0][i]), _mm512_load_ps(w->sum[0] + j));
    __m512 low = _mm512_sub_ps(_mm512_set1_ps(w->sum[1][i]), _mm512_load_ps(w->sum[1] + j));
    __m512 decay = exp_ps(_mm512_add_ps(high, low));
    *p = _mm512_maskz_mul_ps(mask, decay, _mm512_loadu_ps(qk + i * C + j));
    decay = _mm512_mul_ps(decay, _mm512_set1_ps(w->beta[i]));
    *a = _mm512_maskz_mul_ps(below, decay, _mm512_loadu_ps(kk + i * C + j));
}

/* P and A of the rows of n tokens. A of rows behind them is zero. */
static void mix_make(Work *w, const float *kk, const float *qk, int32_t n) {
    const __m512 zero = _mm512_setzero_ps();
    for (int32_t i = 0; i < div_up_i32(n, BLOCK) * BLOCK; i++)
        for (int32_t b = 0; b <= i / BLOCK; b++) {
            __m512 p[HALVES], a[HALVES];
            for (int h = 0; h < HALVES; h++) {
                int32_t j = b * BLOCK + h * LANES;
                mix_vector(w, &p[h], &a[h], kk, qk, i, j, i + 1 - j);
                a[h] = i < n ? a[h] : zero;
            }
            int row = i % LANES, half = i / LANES % HALVES;
            split_store(&w->p[i / BLOCK][b][half], row, p[0], p[1]);
            if (b < i / BLOCK) {
                split_store(&w->a[half], row, _mm512_sub_ps(zero, a[0]), _mm512_sub_ps(zero, a[1]));
            } else {
                _mm512_store_ps(w->below[i], a[0]);
                _mm512_store_ps(w->below[i] + LANES, a[1]);
            }
        }
}

/* out = a b of 16 x 16, a by row with ld BLOCK; of a triangle what lies above its diagonal is not
 * looked at. */
static inline void multiply_16(__m512 out[LANES], const float *a, const __m512 b[LANES],
                               bool is_triangle) {
    for (int i = 0; i < LANES; i++) {
        out[i] = _mm512_mul_ps(_mm512_set1_ps(a[i * BLOCK]), b[0]);
        for (int l = 1; l < (is_triangle ? i + 1 : LANES); l++)
            out[i] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * BLOCK + l]), b[l], out[i]);
    }
}

/* out = (I + a)^-1 for a strictly lower a. */
static inline void invert_16(__m512 out[LANES], const float *a) {
    for (int i = 0; i < LANES; i++)
        out[i] = _mm512_maskz_mov_ps((__mmask16)(1u << i), _mm512_set1_ps(1.0f));
    for (int l = 0; l + 1 < LANES; l++)
        for (int i = l + 1; i < LANES; i++)
            out[i] = _mm512_fnmadd_ps(_mm512_set1_ps(a[i * BLOCK + l]), out[l], out[i]);
}

/* The inverses of the diagonal blocks: of ( I + a        )   ( x        )
 *                                         ( c      I + b )   ( -y c x y ). */
static void inverses_make(Work *w, int n_blocks) {
    const __m512 zero = _mm512_setzero_ps();
    for (int n = 0; n < n_blocks; n++) {
        float *a = w->below[n * BLOCK], *c = a + LANES * BLOCK, *b = c + LANES;
        __m512 x[LANES], y[LANES], cx[LANES];
        invert_16(x, a);
        multiply_16(cx, c, x, false);
        invert_16(y, b);
        for (int i = 0; i < LANES; i++) {
            _mm512_store_ps(b + i * BLOCK, y[i]);
            split_store(&w->inverse[n][0], i, x[i], zero);
        }
        multiply_16(x, b, cx, true);
        for (int i = 0; i < LANES; i++)
            split_store(&w->inverse[n][1], i, _mm512_sub_ps(zero, x[i]), y[i]);
    }
}

static void head_make(Work *w, const float *g, const float *beta, const float *kk, const float *qk,
                      int32_t n) {
    factors_make(w, g, beta, n);
    mix_make(w, kk, qk, n);
    inverses_make(w, div_up_i32(n, BLOCK));
}

/* ---- 32 columns ---- */

/* K S and Q S. */
static void columns_read(Work *w, const float *s, int n_blocks) {
    for (int b = 0; b < DIMS; b++, s += BLOCK * W)
        for (int i = 0; i < LANES; i++)
            for (int h = 0; h < HALVES; h++)
                split_store(&w->s[b][h], i, _mm512_loadu_ps(s + i * W + h * LANES),
                            _mm512_loadu_ps(s + (i + LANES) * W + h * LANES));
    for (int r = 0; r < n_blocks; r++) {
        block_zero();
        for (int b = 0; b < DIMS; b++)
            block_add(&w->k[2 * r][b], &w->k[2 * r + 1][b], w->s[b]);
        block_store(w->ks[r * BLOCK], BLOCK);
    }
    for (int r = 0; r < n_blocks; r++) {
        block_zero();
        for (int b = 0; b < DIMS; b++)
            block_add(&w->q[2 * r][b], &w->q[2 * r + 1][b], w->s[b]);
        block_store(w->qs[r * BLOCK], BLOCK);
    }
}

/* beta (v - e^G k S) - A D of half the columns of token t, also left in the place of k S. */
static inline __m512 token_right(Work *w, const float *v, int32_t t, int half, int32_t n) {
    float *at = w->ks[t] + half * LANES;
    if (t >= n)
        return _mm512_setzero_ps();
    __m512 beta = _mm512_set1_ps(w->beta[t]);
    __m512 x = _mm512_fnmadd_ps(_mm512_set1_ps(w->decay[t]), _mm512_load_ps(at),
                                _mm512_loadu_ps(v + t * W + half * LANES));
    if (t < BLOCK)
        x = _mm512_mul_ps(beta, x);
    else
        x = _mm512_fmadd_ps(beta, x, _mm512_load_ps(w->block[t - BLOCK] + half * LANES));
    _mm512_store_ps(at, x);
    return x;
}

/* Zero where x is the sum of two bf16, NaN elsewhere. */
static inline __m512 fault_ps(__m512 x) { return _mm512_mul_ps(_mm512_setzero_ps(), high_ps(x)); }

/* How many of n rows come ahead of the first with a fault. */
static int32_t rows_good(float (*x)[BLOCK], int32_t n) {
    for (int32_t t = 0; t < n; t++) {
        __m512 fault =
            _mm512_add_ps(fault_ps(_mm512_load_ps(x[t])), fault_ps(_mm512_load_ps(x[t] + LANES)));
        if (_mm512_cmp_ps_mask(fault, fault, _CMP_UNORD_Q))
            return t;
    }
    return n;
}

/* D of one block of tokens, the earlier ones there; returns how many of n tokens come ahead of the
 * first whose D is no number, n if there is none in this block. */
static int32_t block_solve(Work *w, const float *v, int block, int32_t n) {
    int32_t t0 = block * BLOCK, rows = min_i32(BLOCK, n - t0);
    if (block) {
        block_zero();
        block_add(&w->a[0], &w->a[1], w->d[0]);
        block_store(w->block[0], BLOCK);
    }
    for (int i = 0; i < LANES; i++)
        for (int h = 0; h < HALVES; h++)
            split_store(&w->right[h], i, token_right(w, v, t0 + i, h, n),
                        token_right(w, v, t0 + i + LANES, h, n));
    block_zero();
    block_add(&w->inverse[block][0], &w->inverse[block][1], w->right);
    block_store(w->block[0], BLOCK);
    __m512 fault = _mm512_setzero_ps();
    for (int i = 0; i < LANES; i++) {
        __m512 late0 = _mm512_set1_ps(w->late[t0 + i]);
        __m512 late1 = _mm512_set1_ps(w->late[t0 + i + LANES]);
        for (int h = 0; h < HALVES; h++) {
            __m512 x = _mm512_load_ps(w->block[i] + h * LANES);
            __m512 y = _mm512_load_ps(w->block[i + LANES] + h * LANES);
            fault = _mm512_add_ps(fault, _mm512_add_ps(fault_ps(x), fault_ps(y)));
            split_store(&w->d[block][h], i, x, y);
            split_store(&w->d_late[block][h], i, _mm512_mul_ps(late0, x), _mm512_mul_ps(late1, y));
        }
    }
    if (!_mm512_cmp_ps_mask(fault, fault, _CMP_UNORD_Q))
        return n;
    int32_t good = rows_good(w->ks + t0, rows);
    return t0 + (good < rows ? good : rows_good(w->block, rows));
}

/* D; returns n, or how many tokens come ahead of the first whose D is no number. */
static int32_t columns_solve(Work *w, const float *s, const float *v, int32_t n) {
    int n_blocks = div_up_i32(n, BLOCK);
    columns_read(w, s, n_blocks);
    int32_t good = n;
    for (int block = 0; block < n_blocks && good == n; block++)
        good = block_solve(w, v, block, n);
    return good;
}

/* O of n tokens. */
static void columns_write(Work *w, float *o, int32_t n) {
    for (int r = 0; r < div_up_i32(n, BLOCK); r++) {
        block_zero();
        for (int b = 0; b <= r; b++)
            block_add(&w->p[r][b][0], &w->p[r][b][1], w->d[b]);
        block_store(w->block[0], BLOCK);
        for (int32_t t = r * BLOCK; t < min_i32(n, (r + 1) * BLOCK); t++) {
            __m512 decay = _mm512_set1_ps(w->decay[t]);
            for (int h = 0; h < BLOCK; h += LANES)
                _mm512_storeu_ps(o + t * W + h,
                                 _mm512_fmadd_ps(decay, _mm512_load_ps(w->qs[t] + h),
                                                 _mm512_load_ps(w->block[t % BLOCK] + h)));
        }
    }
}

/* The state behind the tokens. */
static void columns_update(Work *w, float *s, int n_blocks) {
    __m512 all = _mm512_set1_ps(w->decay[C - 1]);
    for (int b = 0; b < DIMS; b++, s += BLOCK * W) {
        block_zero();
        for (int t = 0; t < n_blocks; t++)
            block_add(&w->k_turned[2 * b][t], &w->k_turned[2 * b + 1][t], w->d_late[t]);
        block_store(w->block[0], BLOCK);
        for (int i = 0; i < BLOCK; i++)
            for (int h = 0; h < BLOCK; h += LANES)
                _mm512_storeu_ps(s + i * W + h, _mm512_fmadd_ps(all, _mm512_loadu_ps(s + i * W + h),
                                                                _mm512_load_ps(w->block[i] + h)));
    }
}

static void fill_nan(float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
}

static void recur_amx_chunk(float *s, float *o, const float *q, const float *k, const float *v,
                            const float *g, const float *beta, const float *kk, const float *qk,
                            int32_t m, void *scratch) {
    UNUSED(q); // gram left them
    UNUSED(k);
    Work *w = scratch;
    int32_t n = m; // tokens ahead of the first that is no number
    head_make(w, g, beta, kk, qk, n);
    tiles_open();
    for (int col = 0; col < W; col += BLOCK) {
        int32_t good;
        while ((good = columns_solve(w, s + col, v + col, n)) < n) {
            n = good;
            head_make(w, g, beta, kk, qk, n);
        }
        columns_write(w, o + col, n);
        columns_update(w, s + col, div_up_i32(n, BLOCK));
    }
    tile_release();
    if (n < m) {
        fill_nan(o + n * W, (size_t)(m - n) * W);
        fill_nan(s, W * W);
    }
}

void recur_amx_init(RecurKernels *t) {
    recur_avx512_init(t);
    t->column = "amx";
    t->gram = recur_amx_gram;
    t->chunk = recur_amx_chunk;
    t->chunk_scratch_bytes = recur_amx_chunk_scratch_bytes;
}
