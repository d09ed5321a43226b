// SPDX-License-Identifier: Apache-2.0
/* matmul_amx.c - products of prompts with packed weights on bf16 tiles: weights become bf16 (see
 * unpack_amx.h), sums are f32. Of rows that want decode's numbers exact ones on 8-bit tiles.
 *
 * Path:     the passes call it through MatmulKernels, strip range by strip range.
 * Owns:     nothing.  Thread: any.
 * Not here: products of few decoded rows (matmul_avx512.c).
 *
 * One tile instruction adds the products of 16 outputs with 16 rows over 32 inputs. Two strips go
 * together over all blocks of rows, range by range of inputs: what they are unpacked to for a range
 * stays in L1 and serves every block; the next range is unpacked between the products of this one.
 * So a tile of rows, which comes from L2, is loaded once for two products, past L1, and a strip is
 * unpacked once for all rows. Sums lie in memory between ranges.
 *
 * Few tiles are in use at a time on purpose: the CPU renames them from a small pool that two
 * threads of a core share. With all threads busy a product of this form takes 13 ns with its loads
 * from L1 where four tiles of sums take 17 (docs/performance.md).
 *
 * Order of summation: inputs ascending, one tile of 32 after the other, whatever the rows. */
#include "backend/cpu/amx/unpack_amx.h"
#include "backend/cpu/avx512/row_avx512.h"
#include "backend/cpu/kernels.h"
#include "base/checked.h"

#include <stdbool.h>
#include <string.h>

enum {
    PAIR = 2,         // strips that go together
    RANGE_GROUPS = 4, // of a range: 16 KB of two strips; twice as many leave L1 too little
    RANGE_TILES = RANGE_GROUPS * GROUP_TILES,
    RANGE_UNITS = PAIR * RANGE_GROUPS, // groups of one strip
    MAX_BLOCKS = MATMUL_ROWS / ROW_BLOCK,
};

/* Numbers of tiles: sums of two strips, weights, rows. */
#define SUMS_0 0
#define SUMS_1 1
#define STRIP 2
#define ROWS 3

/* Unpacked weights of both strips by turns: of a strip and 32 inputs a line for each output. */
typedef uint8_t Range[RANGE_TILES][PAIR][TILE_BYTES];

typedef float Sums[PAIR][STRIP_ROWS][ROW_BLOCK];

typedef struct Work {
    _Alignas(64) Range range[2]; // by turns: in use, and the next
    Sums sums[MAX_BLOCKS];
    Unpack unpack;
    int turn;      // of the range that comes next
    bool is_ready; // and whether it is there
} Work;

/* Decode's, which also make the first part of a prepared row. */
static MatmulKernels exact_kernels(void) {
    MatmulKernels t;
    matmul_avx512_init(&t);
    return t;
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

/* ---- products ---- */

/* Two strips over all inputs. */
typedef struct Pair {
    const uint8_t *w[PAIR], *ahead[PAIR]; // ahead: strips to be fetched meanwhile
    int32_t bits[PAIR];
} Pair;

/* Where a range's weights come from. */
typedef struct Source {
    const Pair *pair;
    int32_t group; // first
    uint8_t *to;   // a Range
    Unpack *unpack;
} Source;

/* One group of one strip on its way. */
typedef struct Unit {
    uint8_t *to;
    const uint8_t *tile, *ahead;
    Unpack *unpack;
    bool is_q4;
} Unit;

static inline __attribute__((always_inline)) Unit unit_find(const Source *from, int unit) {
    int s = unit % PAIR, g = unit / PAIR;
    const Pair *p = from->pair;
    size_t at = (size_t)(from->group + g) * tile_bytes(p->bits[s]);
    return (Unit){from->to + (size_t)(g * GROUP_TILES * PAIR + s) * TILE_BYTES, p->w[s] + at,
                  p->ahead[s] + at, from->unpack, p->bits[s] == 4};
}

/* Parts [first, end), constants. */
static inline __attribute__((always_inline)) void unit_parts(const Unit *u, int first, int end) {
#define PART(bits, i)                                                                              \
    if ((i) >= first && (i) < end)                                                                 \
    unpack_part(u->to, (size_t)PAIR *TILE_BYTES, u->unpack, u->tile, u->ahead, bits, i)
#define PARTS(bits)                                                                                \
    do {                                                                                           \
        PART(bits, 0);                                                                             \
        PART(bits, 1);                                                                             \
        PART(bits, 2);                                                                             \
        PART(bits, 3);                                                                             \
        PART(bits, 4);                                                                             \
        PART(bits, 5);                                                                             \
        PART(bits, 6);                                                                             \
        PART(bits, 7);                                                                             \
    } while (0)
    if (first == end)
        return;
    if (u->is_q4)
        PARTS(4);
    else
        PARTS(8);
#undef PARTS
#undef PART
}

static __attribute__((noinline)) void range_unpack(const Source *from, int32_t n_groups) {
    for (int unit = 0; unit < n_groups * PAIR; unit++) {
        Unit u = unit_find(from, unit);
        unit_parts(&u, 0, UNPACK_PARTS);
    }
}

/* What is added of a block. */
typedef struct Block {
    const uint8_t *rows, *weights;
} Block;

static inline __attribute__((always_inline)) void tile_add_0(Block *b) {
    TILE(stream_loadd)(ROWS, b->rows, TILE_ROW_BYTES);
    TILE(loadd)(STRIP, b->weights, TILE_ROW_BYTES);
    TILE(dpbf16ps)(SUMS_0, STRIP, ROWS);
    b->rows += TILE_BYTES;
    b->weights += TILE_BYTES;
    POINTER_HIDE(b->rows);
    POINTER_HIDE(b->weights);
}

static inline __attribute__((always_inline)) void tile_add_1(Block *b) {
    TILE(loadd)(STRIP, b->weights, TILE_ROW_BYTES);
    TILE(dpbf16ps)(SUMS_1, STRIP, ROWS);
    b->weights += TILE_BYTES;
    POINTER_HIDE(b->weights);
}

/* Step i of the 8 / n for a unit: two products, n parts of its unpacking. */
static inline __attribute__((always_inline)) void step_run(Block *b, const Unit *u, int n, int i) {
    tile_add_0(b);
    unit_parts(u, i * n, i * n + n / 2);
    tile_add_1(b);
    unit_parts(u, i * n + n / 2, i * n + n);
}

/* A block by a whole range, and units [unit, unit + n) of the next. */
static inline __attribute__((always_inline)) void block_run(Block b, const Source *next, int unit,
                                                            int n) {
    for (int end = unit + n; unit < end; unit++) {
        Unit u = unit_find(next, unit);
        step_run(&b, &u, n, 0);
        if (n < 8)
            step_run(&b, &u, n, 1);
        if (n < 4) {
            step_run(&b, &u, n, 2);
            step_run(&b, &u, n, 3);
        }
        if (n < 2) {
            step_run(&b, &u, n, 4);
            step_run(&b, &u, n, 5);
            step_run(&b, &u, n, 6);
            step_run(&b, &u, n, 7);
        }
    }
}

/* A block by n_tiles tiles of inputs; a whole range if n units are to be unpacked meanwhile. */
static __attribute__((noinline)) void block_add(Block b, int32_t n_tiles, const Source *next,
                                                int unit, int n) {
    switch (n) {
    case 1: block_run(b, next, unit, 1); break;
    case 2: block_run(b, next, unit, 2); break;
    case 4: block_run(b, next, unit, 4); break;
    case 8: block_run(b, next, unit, 8); break;
    default:
        for (int32_t i = 0; i < n_tiles; i++) {
            tile_add_0(&b);
            tile_add_1(&b);
        }
    }
}

/* Units that each of the first blocks unpacks. */
static int block_units(int n_blocks) {
    return n_blocks >= 8 ? 1 : n_blocks >= 4 ? 2 : n_blocks >= 2 ? 4 : 8;
}

/* work->sums of a pair by n_blocks blocks of rows. after: the pair of the next call; NULL: unknown.
 * One block's sums stay in the tiles. */
static void pair_make(Work *work, const Pair *p, const Pair *after, int32_t n_groups,
                      const uint8_t *const *rows, int n_blocks) {
    static_assert(RANGE_UNITS == 8 && UNPACK_PARTS == 8 && RANGE_TILES == 8, "steps of block_run");
    if (!work->is_ready)
        range_unpack(&(Source){p, 0, &work->range[work->turn][0][0][0], &work->unpack},
                     min_i32(RANGE_GROUPS, n_groups));
    for (int32_t g = 0, n; g < n_groups; g += n) {
        n = min_i32(RANGE_GROUPS, n_groups - g);
        bool is_last = g + n == n_groups;
        const uint8_t *own = &work->range[work->turn][0][0][0];
        work->turn = 1 - work->turn;
        Source next = {is_last ? after : p, is_last ? 0 : g + n, &work->range[work->turn][0][0][0],
                       &work->unpack};
        int32_t n_next = !next.pair ? 0 : min_i32(RANGE_GROUPS, n_groups - next.group);
        int each = n == RANGE_GROUPS && n_next == RANGE_GROUPS ? block_units(n_blocks) : 0;
        for (int b = 0; b < n_blocks; b++) {
            if (g == 0) {
                TILE(zero)(SUMS_0);
                TILE(zero)(SUMS_1);
            } else if (n_blocks > 1) {
                TILE(loadd)(SUMS_0, work->sums[b][0], TILE_ROW_BYTES);
                TILE(loadd)(SUMS_1, work->sums[b][1], TILE_ROW_BYTES);
            }
            block_add((Block){rows[b] + (size_t)g * GROUP_TILES * TILE_BYTES, own}, n * GROUP_TILES,
                      &next, b * each, b * each < RANGE_UNITS ? each : 0);
            if (is_last || n_blocks > 1) {
                TILE(stored)(SUMS_0, work->sums[b][0], TILE_ROW_BYTES);
                TILE(stored)(SUMS_1, work->sums[b][1], TILE_ROW_BYTES);
            }
        }
        if (!each && n_next)
            range_unpack(&next, n_next);
    }
    work->is_ready = after != NULL;
    tile_fence();
}

static void work_begin(Work *w) {
    static const uint8_t rows[TILE_N] = {16, 16, 16, 16};
    tile_configure(rows);
    w->turn = 0;
    w->is_ready = false;
}

/* y = the sums of n strips for m rows. Whole lines go past the caches: outputs of a stage are
 * more than those hold, and would first be read into them. */
static void outputs_store(float *const *y, ptrdiff_t at, Sums *sums, int32_t n, int32_t m) {
    for (int32_t row = 0; row < m; row += 4)
        for (int32_t s = 0; s < n; s++) {
            const uint8_t *lines[STRIP_ROWS];
            __m512i out[4];
            for (int r = 0; r < STRIP_ROWS; r++)
                lines[r] = (const uint8_t *)sums[row / ROW_BLOCK][s][r];
            transpose(out, lines, (size_t)(row % ROW_BLOCK) * sizeof(float));
            for (int32_t i = 0; i < min_i32(4, m - row); i++) {
                float *to = y[row + i] + at + (ptrdiff_t)s * STRIP_ROWS;
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

/* Strips s and s + 1; behind the last odd one it stands a second time. */
static Pair strips_pair(const Strips *c, int32_t s) {
    size_t bytes = tile_bytes(c->bits) * (size_t)c->n_groups;
    Pair p = {.bits = {c->bits, c->bits}};
    for (int i = 0; i < PAIR; i++) {
        p.w[i] = c->w + (size_t)min_i32(s + i, c->n_strips - 1) * bytes;
        p.ahead[i] = p.w[i];
        if (s + PAIR + i < c->n_strips)
            p.ahead[i] = c->w + (size_t)(s + PAIR + i) * bytes;
        else if (s + PAIR >= c->n_strips && c->next)
            p.ahead[i] = c->next + (size_t)i * bytes;
    }
    return p;
}

/* The blocks of m rows. */
static int blocks_find(const uint8_t *rows[MAX_BLOCKS], const void *const *x, int32_t m) {
    int n = div_up_i32(m, ROW_BLOCK);
    for (int b = 0; b < n; b++)
        rows[b] = x[b * ROW_BLOCK];
    return n;
}

static void strips_make(const Strips *c) {
    Work work;
    const uint8_t *rows[MAX_BLOCKS];
    int n_blocks = blocks_find(rows, c->x, c->m);
    work_begin(&work);
    Pair p = strips_pair(c, 0), after;
    for (int32_t s = 0; s < c->n_strips; s += PAIR, p = after) {
        bool is_last = s + PAIR >= c->n_strips;
        after = strips_pair(c, is_last ? s : s + PAIR);
        pair_make(&work, &p, is_last ? NULL : &after, c->n_groups, rows, n_blocks);
        outputs_store(c->y, (ptrdiff_t)s * STRIP_ROWS, work.sums, min_i32(PAIR, c->n_strips - s),
                      c->m);
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

/* gate and up of strip s. */
static Pair inner_pair(const MatmulInner *c, int32_t s) {
    size_t gate = tile_bytes(c->gate_bits) * (size_t)c->n_groups;
    size_t up = tile_bytes(c->up_bits) * (size_t)c->n_groups;
    size_t ahead = (size_t)min_i32(s + 1, c->n_strips - 1);
    return (Pair){.w = {c->gate + (size_t)s * gate, c->up + (size_t)s * up},
                  .ahead = {c->gate + ahead * gate, c->up + ahead * up},
                  .bits = {c->gate_bits, c->up_bits}};
}

static void matmul_amx_inner(const MatmulInner *c) {
    Work work;
    const uint8_t *rows[MAX_BLOCKS];
    int n_blocks = blocks_find(rows, c->x, c->m);
    work_begin(&work);
    Pair p = inner_pair(c, 0), after;
    for (int32_t s = 0; s < c->n_strips; s++, p = after) {
        bool is_last = s + 1 == c->n_strips;
        after = inner_pair(c, is_last ? s : s + 1);
        pair_make(&work, &p, is_last ? NULL : &after, c->n_groups, rows, n_blocks);
        for (int b = 0; b < n_blocks; b++)
            inner_store(c->act + (size_t)b * c->act_bytes, c->strip + s, work.sums[b][0],
                        work.sums[b][1]);
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
