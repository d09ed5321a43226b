// SPDX-License-Identifier: Apache-2.0
/* matmul_amx.c - products of prompts with packed weights on bf16 tiles: weights become bf16, sums
 * stay in the tiles over all inputs. Of rows that want decode's numbers exact ones on 8-bit tiles.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: products of few decoded rows (matmul_avx512.c).
 *
 * A weight is scale * code + bias, rounded to f32 and then to bf16, an input is rounded to bf16;
 * one tile instruction adds the products of 16 outputs with 16 rows over 32 inputs. Weights are the
 * operand that has a row for each output, so that a line of it belongs to one output and one group:
 * its codes look their values up in a table of 16. One strip goes over up to PASS_BLOCKS blocks of
 * rows, and the next group is unpacked between the products of this one, so that vector units and
 * tile unit work side by side and unpacked weights never leave L1.
 *
 * Few tiles are in use at a time on purpose. The CPU renames them from a small pool that two
 * threads of a core share: products of 2 strips by 2 blocks in all 8 tiles, which save loads, take
 * 28 ns each where one strip by one or two blocks takes 14 and the tile unit alone 7.5 (measured
 * with all threads busy).
 *
 * Order of inputs. What four lines of a packed tile hold of one output, 16 bytes, gives 32 weights
 * by four shifts; that order is kept. Element p of half h of a group is input
 *     32 h + p % 8 / 2 * 8 + p % 2 * 2 + {0, 4, 1, 5}[p / 8]
 * everywhere here, so elements 2j and 2j + 1 are inputs that lie 2 apart. */
#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/avx512/row_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <stdbool.h>
#include <string.h>

enum {
    PASS_BLOCKS = 4,  // best of 2, 3 and 4
    TILE_INPUTS = 32, // of one tile of weights or of rows
    TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    GROUP_TILES = GROUP_INPUTS / TILE_INPUTS,
    RING_GROUPS = 4, // unpacked: the one in use, the next, and stores on their way
    UNPACK_PARTS = 8,
};

/* Numbers of tiles: sums of up to four blocks, weights, rows. */
#define SUMS_0 0
#define SUMS_1 1
#define SUMS_2 2
#define SUMS_3 3
#define STRIP 4
#define ROWS 5

/* One group of one strip: of each output a line with its elements. */
typedef struct Weights {
    uint8_t line[GROUP_TILES][STRIP_ROWS][TILE_ROW_BYTES];
} Weights;

typedef float Sums[PASS_BLOCKS][STRIP_ROWS][ROW_BLOCK];

typedef struct Work {
    _Alignas(64) Weights ring[RING_GROUPS];
    uint8_t codes[2 * GROUP_TILES][4][64]; // of output 4 L + i 16 bytes: lane L of [i]
    uint16_t tables[STRIP_ROWS][16];
    float scale[STRIP_ROWS], bias[STRIP_ROWS];
    Sums sums[2];
    uint32_t turn; // place in the ring of the group that comes next
    bool is_ready; // and whether it is there
} Work;

/* Decode's, which also make the first part of a prepared row. */
static MatmulKernels exact_kernels(void) {
    MatmulKernels t;
    matmul_avx512_init(&t);
    return t;
}

/* 32 following inputs as elements. */
static inline __m512i elements_round(__m512 low, __m512 high) {
    const __m512i order =
        _mm512_set_epi16(31, 29, 23, 21, 15, 13, 7, 5, 27, 25, 19, 17, 11, 9, 3, 1, 30, 28, 22, 20,
                         14, 12, 6, 4, 26, 24, 18, 16, 10, 8, 2, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* ---- rows ---- */

/* A prepared row: avx512's, behind it all elements as bf16. */
static size_t matmul_amx_row_bytes(int32_t n_groups) {
    return exact_kernels().row_bytes(n_groups) + (size_t)n_groups * GROUP_INPUTS * sizeof(uint16_t);
}

static void matmul_amx_prepare(void *row, int32_t n_groups, int32_t group, int32_t n,
                               const float *x) {
    MatmulKernels exact = exact_kernels();
    exact.prepare(row, n_groups, group, n, x);
    uint8_t *to =
        (uint8_t *)row + exact.row_bytes(n_groups) + (size_t)group * GROUP_TILES * TILE_ROW_BYTES;
    for (int32_t i = 0; i < n * GROUP_TILES; i++, to += TILE_ROW_BYTES, x += TILE_INPUTS) {
        _mm512_store_si512(to, elements_round(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)));
    }
}

/* out[d] lane i = 32-bit word d of the 16 bytes behind from[i] + at. */
static inline __attribute__((always_inline)) void
transpose(__m512i out[4], const uint8_t *const from[16], size_t at) {
    __m512i z[4];
    for (int i = 0; i < 4; i++) {
#define PIECE(L) _mm_loadu_si128((const __m128i *)(const void *)(from[4 * (L) + i] + at))
        z[i] = _mm512_castsi128_si512(PIECE(0));
        z[i] = _mm512_inserti32x4(z[i], PIECE(1), 1);
        z[i] = _mm512_inserti32x4(z[i], PIECE(2), 2);
        z[i] = _mm512_inserti32x4(z[i], PIECE(3), 3);
#undef PIECE
    }
    __m512i low0 = _mm512_unpacklo_epi32(z[0], z[1]), low1 = _mm512_unpacklo_epi32(z[2], z[3]);
    __m512i high0 = _mm512_unpackhi_epi32(z[0], z[1]), high1 = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(low0, low1);
    out[1] = _mm512_unpackhi_epi64(low0, low1);
    out[2] = _mm512_unpacklo_epi64(high0, high1);
    out[3] = _mm512_unpackhi_epi64(high0, high1);
}

static size_t matmul_amx_block_bytes(int32_t n_groups) {
    return (size_t)n_groups * GROUP_TILES * TILE_BYTES;
}

static void matmul_amx_block(void *to, const void *const *x, int32_t n_groups, int32_t m) {
    const uint8_t *rows[ROW_BLOCK];
    size_t skip = exact_kernels().row_bytes(n_groups);
    for (int32_t i = 0; i < ROW_BLOCK; i++)
        rows[i] = (const uint8_t *)x[i < m ? i : 0] + skip;
    __mmask16 there = (__mmask16)((1u << m) - 1);
    uint8_t *line = to;
    for (size_t at = 0; at < (size_t)n_groups * GROUP_INPUTS * sizeof(uint16_t); at += 16) {
        __m512i out[4];
        transpose(out, rows, at);
        for (int i = 0; i < 4; i++, line += TILE_ROW_BYTES)
            _mm512_store_si512(line, _mm512_maskz_mov_epi32(there, out[i]));
    }
}

static void matmul_amx_block_put(void *to, int32_t row, int32_t m, int32_t group, int32_t n,
                                 const float *x, ptrdiff_t ldx) {
    _Alignas(64) uint8_t lines[ROW_BLOCK][GROUP_TILES * TILE_ROW_BYTES];
    const uint8_t *rows[ROW_BLOCK];
    for (int32_t i = 0; i < ROW_BLOCK; i++)
        rows[i] = lines[i >= row && i < row + m ? i : row];
    __mmask16 own = (__mmask16)(((1u << m) - 1) << row);
    uint8_t *line = (uint8_t *)to + (size_t)group * GROUP_TILES * TILE_BYTES;
    for (int32_t g = 0; g < n; g++, x += GROUP_INPUTS) {
        for (int32_t i = 0; i < m; i++)
            for (int h = 0; h < GROUP_TILES; h++) {
                const float *from = x + i * ldx + h * TILE_INPUTS;
                _mm512_store_si512(
                    lines[row + i] + h * TILE_ROW_BYTES,
                    elements_round(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)));
            }
        for (size_t at = 0; at < sizeof lines[0]; at += 16) {
            __m512i out[4];
            transpose(out, rows, at);
            for (int i = 0; i < 4; i++, line += TILE_ROW_BYTES)
                _mm512_mask_store_epi32(line, own, out[i]);
        }
    }
}

/* ---- weights ---- */

/* The codes of four lines by output. */
static inline void codes_turn(uint8_t to[4][64], const uint8_t *lines) {
    __m512i a = _mm512_load_si512(lines), b = _mm512_load_si512(lines + 64);
    __m512i c = _mm512_load_si512(lines + 128), d = _mm512_load_si512(lines + 192);
    __m512i low0 = _mm512_unpacklo_epi32(a, b), low1 = _mm512_unpacklo_epi32(c, d);
    __m512i high0 = _mm512_unpackhi_epi32(a, b), high1 = _mm512_unpackhi_epi32(c, d);
    _mm512_store_si512(to[0], _mm512_unpacklo_epi64(low0, low1));
    _mm512_store_si512(to[1], _mm512_unpackhi_epi64(low0, low1));
    _mm512_store_si512(to[2], _mm512_unpacklo_epi64(high0, high1));
    _mm512_store_si512(to[3], _mm512_unpackhi_epi64(high0, high1));
}

static inline void scales_widen(Work *w, const uint8_t *tile, size_t bytes) {
    const uint16_t *scales = (const uint16_t *)(tile + bytes - TILE_SCALES);
    _mm512_store_ps(w->scale, bf16_load_ps(scales));
    _mm512_store_ps(w->bias, bf16_load_ps(scales + STRIP_ROWS));
}

/* 16 bytes of output 4 L + i. */
static inline __m128i codes_of(const Work *w, int quarter, int L, int i) {
    return _mm_load_si128((const __m128i *)(const void *)w->codes[quarter][i] + L);
}

/* What code 0..15 stands for, of outputs [r, r + 8). */
static inline void tables_make(Work *w, int r) {
    const __m512 code = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int end = r + 8; r < end; r += 2) {
        __m512 t[2];
        for (int i = 0; i < 2; i++)
            t[i] = _mm512_fmadd_ps(code, _mm512_set1_ps(w->scale[r + i]),
                                   _mm512_set1_ps(w->bias[r + i]));
        _mm512_store_si512(w->tables[r], (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
    }
}

/* Lines of outputs [4 L, 4 L + 4). */
static inline void lines_look_up(Weights *to, const Work *w, int L) {
    // An index has garbage above its 4 bits; the table, held twice, lets one of them be.
    const __m512i shift =
        _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
                         0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
    for (int i = 0; i < 4; i++) {
        __m512i table = _mm512_broadcast_i64x4(
            _mm256_load_si256((const __m256i *)(const void *)w->tables[4 * L + i]));
        for (int h = 0; h < GROUP_TILES; h++) {
            __m512i own = _mm512_broadcast_i32x4(codes_of(w, h, L, i));
            __m512i index = _mm512_srlv_epi16(own, shift);
            _mm512_store_si512(to->line[h][4 * L + i], _mm512_permutexvar_epi16(index, table));
        }
    }
}

static inline void lines_compute(Weights *to, const Work *w, int L) {
    for (int i = 0; i < 4; i++) {
        __m512 scale = _mm512_set1_ps(w->scale[4 * L + i]),
               bias = _mm512_set1_ps(w->bias[4 * L + i]);
        for (int h = 0; h < GROUP_TILES; h++) {
            __m512 value[2];
            for (int half = 0; half < 2; half++) {
                __m512i code = _mm512_cvtepu8_epi32(codes_of(w, 2 * h + half, L, i));
                value[half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale, bias);
            }
            _mm512_store_si512(to->line[h][4 * L + i], elements_round(value[0], value[1]));
        }
    }
}

/* Part 0..7 of the unpacking of one group of one strip; bits and part are constants. Between them
 * values go through memory: there a broadcast is part of a load, from a register it is a shuffle,
 * and shuffles bind. */
static inline __attribute__((always_inline)) void
weights_unpack(Weights *to, Work *w, const uint8_t *tile, int bits, int part) {
    if (part == 0)
        scales_widen(w, tile, tile_bytes(bits));
    if (part < (bits == 4 ? 2 : 4))
        codes_turn(w->codes[part], tile + part * 256);
    else if (part < 4)
        tables_make(w, part % 2 * 8);
    else if (bits == 4)
        lines_look_up(to, w, part - 4);
    else
        lines_compute(to, w, part - 4);
    tile_fence();
}

/* ---- products ---- */

/* One strip over all inputs. */
typedef struct Pass {
    const uint8_t *w;
    const uint8_t *after; // the strip of the next pass, of as many bits; NULL: unknown
    const uint8_t *ahead; // a strip to be fetched meanwhile; NULL: none
    int32_t n_groups;
} Pass;

/* Adds the products of the tile of weights in use with one of block number b (a constant). */
static inline __attribute__((always_inline)) void block_add(const uint8_t *rows, int b) {
    TILE(loadd)(ROWS, rows, TILE_ROW_BYTES);
    switch (b) {
    case 0: TILE(dpbf16ps)(SUMS_0, STRIP, ROWS); break;
    case 1: TILE(dpbf16ps)(SUMS_1, STRIP, ROWS); break;
    case 2: TILE(dpbf16ps)(SUMS_2, STRIP, ROWS); break;
    default: TILE(dpbf16ps)(SUMS_3, STRIP, ROWS); break;
    }
}

/* Those parts of unpacking that stand behind product number `slot` of 2 n of a group. */
static inline __attribute__((always_inline)) void
slot_unpack(Weights *to, Work *w, const uint8_t *tile, int bits, int n, int slot) {
#define PART(p)                                                                                    \
    if ((p)*2 * n / UNPACK_PARTS == slot)                                                          \
        weights_unpack(to, w, tile, bits, p);
    PART(0) PART(1) PART(2) PART(3) PART(4) PART(5) PART(6) PART(7)
#undef PART
}

/* sums of a strip by n blocks; bits and n are constants. */
static inline __attribute__((always_inline)) void
pass_make(Sums sums, Work *w, const Pass *p, const uint8_t *const *rows, int bits, int n) {
    const size_t bytes = tile_bytes(bits);
    uint32_t turn = w->turn;
    if (!w->is_ready)
        slot_unpack(&w->ring[turn], w, p->w, bits, 0, 0);
    TILE(zero)(SUMS_0);
    if (n > 1)
        TILE(zero)(SUMS_1);
    if (n > 2)
        TILE(zero)(SUMS_2);
    if (n > 3)
        TILE(zero)(SUMS_3);
    for (int32_t g = 0; g < p->n_groups; g++) {
        const Weights *own = &w->ring[turn];
        turn = (turn + 1) % RING_GROUPS;
        Weights *next = &w->ring[turn];
        const uint8_t *tile = p->w + (size_t)(g + 1) * bytes;
        if (g + 1 == p->n_groups)
            tile = p->after ? p->after : p->w;
        if (p->ahead)
            for (size_t line = 0; line < bytes; line += 64)
                _mm_prefetch((const char *)p->ahead + (size_t)g * bytes + line, _MM_HINT_T1);
        for (int h = 0; h < GROUP_TILES; h++) {
            size_t at = (size_t)(g * GROUP_TILES + h) * TILE_BYTES;
            TILE(loadd)(STRIP, own->line[h], TILE_ROW_BYTES);
            for (int b = 0; b < n; b++) {
                block_add(rows[b] + at, b);
                slot_unpack(next, w, tile, bits, n, h * n + b);
            }
        }
    }
    w->turn = turn;
    w->is_ready = p->after != NULL;
    TILE(stored)(SUMS_0, sums[0], TILE_ROW_BYTES);
    if (n > 1)
        TILE(stored)(SUMS_1, sums[1], TILE_ROW_BYTES);
    if (n > 2)
        TILE(stored)(SUMS_2, sums[2], TILE_ROW_BYTES);
    if (n > 3)
        TILE(stored)(SUMS_3, sums[3], TILE_ROW_BYTES);
    tile_fence();
}

static void pass_q4(Sums sums, Work *w, const Pass *p, const uint8_t *const *rows, int n) {
    switch (n) {
    case 1: pass_make(sums, w, p, rows, 4, 1); break;
    case 2: pass_make(sums, w, p, rows, 4, 2); break;
    case 3: pass_make(sums, w, p, rows, 4, 3); break;
    default: pass_make(sums, w, p, rows, 4, 4); break;
    }
}

static void pass_q8(Sums sums, Work *w, const Pass *p, const uint8_t *const *rows, int n) {
    switch (n) {
    case 1: pass_make(sums, w, p, rows, 8, 1); break;
    case 2: pass_make(sums, w, p, rows, 8, 2); break;
    case 3: pass_make(sums, w, p, rows, 8, 3); break;
    default: pass_make(sums, w, p, rows, 8, 4); break;
    }
}

static void pass_run(Sums sums, Work *w, const Pass *p, const uint8_t *const *rows, int n,
                     int32_t bits) {
    if (bits == 4)
        pass_q4(sums, w, p, rows, n);
    else
        pass_q8(sums, w, p, rows, n);
}

static void work_begin(Work *w) {
    static const uint8_t rows[TILE_N] = {16, 16, 16, 16, 16, 16, 0, 0};
    tile_configure(rows);
    w->turn = 0;
    w->is_ready = false;
}

/* Blocks [b, b + n) of m rows: as few passes as can be, of nearly equal size. */
static int blocks_take(const uint8_t *rows[PASS_BLOCKS], const void *const *x, int32_t m,
                       int32_t b) {
    int32_t n_blocks = div_up_i32(m, ROW_BLOCK), n_passes = div_up_i32(n_blocks - b, PASS_BLOCKS);
    int n = div_up_i32(n_blocks - b, n_passes);
    for (int i = 0; i < n; i++)
        rows[i] = x[(b + i) * ROW_BLOCK];
    return n;
}

/* y = the sums of a strip for n_rows rows. Whole lines go past the caches: outputs of a stage are
 * more than those hold, and would first be read into them. */
static void outputs_store(float *const *y, ptrdiff_t at, Sums sums, int32_t n_rows) {
    for (int32_t row = 0; row < n_rows; row += 4) {
        const uint8_t *lines[STRIP_ROWS];
        __m512i out[4];
        for (int r = 0; r < STRIP_ROWS; r++)
            lines[r] = (const uint8_t *)sums[row / ROW_BLOCK][r];
        transpose(out, lines, (size_t)(row % ROW_BLOCK) * sizeof(float));
        for (int i = 0; i < 4; i++) {
            if (row + i >= n_rows)
                break;
            float *to = y[row + i] + at;
            __m512 value = _mm512_castsi512_ps(out[i]);
            if ((uintptr_t)to % 64 == 0)
                _mm512_stream_ps(to, value);
            else
                _mm512_storeu_ps(to, value);
        }
    }
}

/* Strips by blocks. */
typedef struct Strips {
    float *const *y;
    const uint8_t *w, *next;
    int32_t bits, n_groups, n_strips;
    const void *const *x; // entry 16 b: block b
    int32_t m;
} Strips;

static void strips_make(const Strips *c) {
    Work work;
    work_begin(&work);
    const uint8_t *w = c->w;
    size_t bytes = tile_bytes(c->bits) * (size_t)c->n_groups;
    int32_t n_blocks = div_up_i32(c->m, ROW_BLOCK);
    for (int32_t s = 0; s < c->n_strips; s++, w += bytes) {
        const uint8_t *following = s + 1 < c->n_strips ? w + bytes : NULL;
        for (int32_t b = 0, n; b < n_blocks; b += n) {
            const uint8_t *rows[PASS_BLOCKS];
            n = blocks_take(rows, c->x, c->m, b);
            int32_t row = b * ROW_BLOCK;
            Pass p = {.w = w,
                      .after = b + n < n_blocks ? w : following,
                      .ahead = b > 0       ? NULL
                               : following ? following
                                           : c->next,
                      .n_groups = c->n_groups};
            pass_run(work.sums[0], &work, &p, rows, n, c->bits);
            outputs_store(c->y + row, (ptrdiff_t)s * STRIP_ROWS, work.sums[0],
                          min_i32(n * ROW_BLOCK, c->m - row));
        }
    }
    tile_release();
    _mm_sfence(); // stores past the caches heed no other order
}

static void matmul_amx_q4(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                          const void *const *x, int32_t m, const uint8_t *next) {
    strips_make(&(Strips){y, w, next, 4, n_groups, n_strips, x, m});
}

static void matmul_amx_q8(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                          const void *const *x, int32_t m, const uint8_t *next) {
    strips_make(&(Strips){y, w, next, 8, n_groups, n_strips, x, m});
}

/* 16 inner values of 16 rows from the sums of gate and up: 8 lines of a tile of their block. */
static void inner_store(uint8_t *block, int32_t strip, float gate[STRIP_ROWS][ROW_BLOCK],
                        float up[STRIP_ROWS][ROW_BLOCK]) {
    // Halves of a register beside each other: pairs of elements of each row.
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    static const int first[4] = {0, 4, 1, 5};
    uint8_t *tile = block + (size_t)(strip / 2) * TILE_BYTES;
    __m512 value[STRIP_ROWS];
    for (int r = 0; r < STRIP_ROWS; r++)
        value[r] = _mm512_mul_ps(silu_ps(_mm512_load_ps(gate[r])), _mm512_load_ps(up[r]));
    for (int u = 0; u < 4; u++)
        for (int t = 0; t < 2; t++) {
            int r = 8 * t + first[u];
            __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(value[r + 2], value[r]);
            _mm512_store_si512(tile + (4 * u + strip % 2 * 2 + t) * TILE_ROW_BYTES,
                               _mm512_permutexvar_epi16(zip, pair));
        }
}

static void matmul_amx_inner(const MatmulInner *c) {
    Work work;
    size_t gate_bytes = tile_bytes(c->gate_bits) * (size_t)c->n_groups;
    size_t up_bytes = tile_bytes(c->up_bits) * (size_t)c->n_groups;
    bool same = c->gate_bits == c->up_bits;
    int32_t n_blocks = div_up_i32(c->m, ROW_BLOCK);
    work_begin(&work);
    for (int32_t s = 0; s < c->n_strips; s++) {
        const uint8_t *gate = c->gate + (size_t)s * gate_bytes, *up = c->up + (size_t)s * up_bytes;
        bool is_last = s + 1 == c->n_strips;
        for (int32_t b = 0, n; b < n_blocks; b += n) {
            const uint8_t *rows[PASS_BLOCKS];
            n = blocks_take(rows, c->x, c->m, b);
            const uint8_t *after = b + n < n_blocks ? gate : is_last ? NULL : gate + gate_bytes;
            bool fetches = b == 0 && !is_last;
            Pass p = {.w = gate,
                      .after = same ? up : NULL,
                      .ahead = fetches ? gate + gate_bytes : NULL,
                      .n_groups = c->n_groups};
            pass_run(work.sums[0], &work, &p, rows, n, c->gate_bits);
            p = (Pass){.w = up,
                       .after = same ? after : NULL,
                       .ahead = fetches ? up + up_bytes : NULL,
                       .n_groups = c->n_groups};
            pass_run(work.sums[1], &work, &p, rows, n, c->up_bits);
            for (int i = 0; i < n; i++)
                inner_store(c->act + (size_t)(b + i) * c->act_bytes, c->strip + s, work.sums[0][i],
                            work.sums[1][i]);
        }
    }
    tile_release();
}

/* ---- exact products of many rows ----
 *
 * A row's integers of 16 bits are two digits of 8, and a packed tile of 8-bit codes is a tile as
 * the CPU reads it: nothing is unpacked. Rows are cut into digits anew for every EXACT_STRIPS
 * strips and come from far for each call, so calls want few rows and all strips. */

enum {
    EXACT_ROWS = 16,   // fewer go decode's way
    EXACT_STRIPS = 16, // most at a time
};

/* Numbers of tiles: sums of low and high digits, low and high digits of rows, codes. */
#define SUMS_LOW 0
#define SUMS_HIGH 1
#define LOW 2
#define HIGH 3
#define CODES 4

/* Integers of one group of 16 rows: 256 high + low, high signed. */
typedef struct Digits {
    uint8_t low[ROW_BLOCK][GROUP_INPUTS], high[ROW_BLOCK][GROUP_INPUTS];
} Digits;

typedef struct ExactWork {
    _Alignas(64) Digits digits;
    int32_t sums[2][2][ROW_BLOCK][STRIP_ROWS]; // of two tiles by turns: low, high
    float out[EXACT_STRIPS][ROW_BLOCK][STRIP_ROWS];
    const GroupScale *scales[ROW_BLOCK];
} ExactWork;

static void digits_make(Digits *to, const void *const *x, int32_t g) {
    // Of four inputs the low bytes, then the high ones; then of all inputs.
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15));
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int i = 0; i < ROW_BLOCK; i++) {
        const int16_t *v = ((const GroupCodes *)x[i])[g].v;
        __m512i a = _mm512_shuffle_epi8(_mm512_load_si512(v), bytes);
        __m512i b = _mm512_shuffle_epi8(_mm512_load_si512(v + GROUP_INPUTS / 2), bytes);
        _mm512_store_si512(to->low[i], _mm512_permutex2var_epi32(a, even, b));
        _mm512_store_si512(to->high[i], _mm512_permutex2var_epi32(a, odd, b));
    }
}

/* Adds the sums of a tile of weights, as decode does. */
static void exact_add(ExactWork *work, int turn, const uint8_t *tile, int32_t g, int32_t s) {
    const uint16_t *scales = (const uint16_t *)(tile + TILE_BYTES_Q8 - TILE_SCALES);
    __m512 scale = bf16_load_ps(scales), bias = bf16_load_ps(scales + STRIP_ROWS);
    for (int i = 0; i < ROW_BLOCK; i++) {
        __m512i high = _mm512_slli_epi32(_mm512_load_si512(work->sums[turn][1][i]), 8);
        __m512i sum = _mm512_add_epi32(_mm512_load_si512(work->sums[turn][0][i]), high);
        float *out = work->out[s][i];
        _mm512_store_ps(out, tile_add(_mm512_load_ps(out), sum, scale, bias, work->scales[i] + g));
    }
}

/* m <= ROW_BLOCK rows by up to EXACT_STRIPS strips. Sums of a tile are added while the next tile
 * is multiplied. */
static void exact_block(ExactWork *work, float *const *y, ptrdiff_t at, const uint8_t *w,
                        int32_t n_groups, int32_t n_strips, const void *const *x, int32_t m) {
    const void *rows[ROW_BLOCK];
    for (int32_t i = 0; i < ROW_BLOCK; i++) {
        rows[i] = x[i < m ? i : 0];
        work->scales[i] = row_scales(rows[i], n_groups);
    }
    memset(work->out, 0, sizeof work->out[0] * (size_t)n_strips);
    const uint8_t *before = NULL;
    int32_t n_tiles = n_groups * n_strips, g = 0, s = 0, g_before = 0, s_before = 0;
    for (int32_t i = 0; i < n_tiles; i++) {
        const uint8_t *tile = w + ((size_t)s * (size_t)n_groups + (size_t)g) * TILE_BYTES_Q8;
        if (s == 0) {
            digits_make(&work->digits, rows, g);
            tile_fence();
            TILE(loadd)(LOW, work->digits.low, GROUP_INPUTS);
            TILE(loadd)(HIGH, work->digits.high, GROUP_INPUTS);
        }
        TILE(loadd)(CODES, tile, 64);
        TILE(zero)(SUMS_LOW);
        TILE(zero)(SUMS_HIGH);
        TILE(dpbuud)(SUMS_LOW, LOW, CODES);
        TILE(dpbsud)(SUMS_HIGH, HIGH, CODES);
        TILE(stored)(SUMS_LOW, work->sums[i % 2][0], 64);
        TILE(stored)(SUMS_HIGH, work->sums[i % 2][1], 64);
        tile_fence();
        if (before)
            exact_add(work, (i + 1) % 2, before, g_before, s_before);
        before = tile;
        g_before = g;
        s_before = s;
        if (++s == n_strips) {
            s = 0;
            g++;
        }
    }
    exact_add(work, (n_tiles + 1) % 2, before, g_before, s_before);
    for (int32_t i = 0; i < m; i++)
        for (s = 0; s < n_strips; s++)
            _mm512_storeu_ps(y[i] + at + (ptrdiff_t)s * STRIP_ROWS,
                             _mm512_load_ps(work->out[s][i]));
}

/* decode_q8 to the bit. What rows hold in 16 bits and weights in 8 goes through the tiles as two
 * digits and one, so that the tiles' whole numbers are decode's, and all else is done as there. */
static void matmul_amx_exact_q8(float *const *y, const uint8_t *w, int32_t n_groups,
                                int32_t n_strips, const void *const *x, int32_t m,
                                const uint8_t *next) {
    static const uint8_t tiles[TILE_N] = {16, 16, 16, 16, 16, 0, 0, 0};
    if (m < EXACT_ROWS) {
        exact_kernels().decode_q8(y, w, n_groups, n_strips, x, m, next);
        return;
    }
    ExactWork work;
    tile_configure(tiles);
    for (int32_t s = 0; s < n_strips; s += EXACT_STRIPS) {
        const uint8_t *from = w + (size_t)s * (size_t)n_groups * TILE_BYTES_Q8;
        for (int32_t i = 0; i < m; i += ROW_BLOCK)
            exact_block(&work, y + i, (ptrdiff_t)s * STRIP_ROWS, from, n_groups,
                        min_i32(EXACT_STRIPS, n_strips - s), x + i, min_i32(ROW_BLOCK, m - i));
    }
    tile_release();
}

void matmul_amx_init(MatmulKernels *t) {
    matmul_avx512_init(t);
    t->column = "amx";
    t->decode_q8 = matmul_amx_exact_q8;
    t->row_bytes = matmul_amx_row_bytes;
    t->prepare = matmul_amx_prepare;
    t->prefill_q4 = matmul_amx_q4;
    t->prefill_q8 = matmul_amx_q8;
    t->block_bytes = matmul_amx_block_bytes;
    t->block = matmul_amx_block;
    t->block_put = matmul_amx_block_put;
    t->inner = matmul_amx_inner;
    t->chunk_bytes = 1152 << 10; // rows come from L3 once for these
}
