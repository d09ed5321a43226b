// SPDX-License-Identifier: Apache-2.0
/* unpack_amx.h - packed weights as bf16 tiles.
 *
 * Path:     matmul_amx.c unpacks between its products, part by part.
 * Owns:     nothing.  Thread: any.
 *
 * A weight is scale * code + bias, rounded to f32 and then to bf16. Weights are the operand of a
 * tile product that has a row for each output, so that a line of it belongs to one output and one
 * group: its codes look their values up in a table of 16.
 *
 * Order of inputs. What four lines of a packed tile hold of one output, 16 bytes, gives 32 weights
 * by four shifts; that order is kept. Element p of half h of a group is input
 *     32 h + p % 8 / 2 * 8 + p % 2 * 2 + {0, 4, 1, 5}[p / 8]
 * in rows and weights alike, so elements 2j and 2j + 1 are inputs that lie 2 apart. */
#ifndef LILY_BACKEND_CPU_AMX_UNPACK_AMX_H
#define LILY_BACKEND_CPU_AMX_UNPACK_AMX_H

#include "backend/cpu/amx/amx_tile.h"
#include "backend/cpu/avx512/math_avx512.h"
#include "backend/cpu/kernels.h"

#include <immintrin.h>

enum {
    TILE_INPUTS = 32, // of one tile of weights or of rows
    TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES,
    GROUP_TILES = GROUP_INPUTS / TILE_INPUTS,
    UNPACK_PARTS = 8,
};

/* Between the parts of one group. There a broadcast is part of a load; from a register it is a
 * shuffle, and shuffles bind. */
typedef struct Unpack {
    _Alignas(64) uint8_t codes[2 * GROUP_TILES][4][64]; // of output 4 L + i 16 bytes: lane L of [i]
    uint16_t tables[STRIP_ROWS][16];
    float scale[STRIP_ROWS], bias[STRIP_ROWS];
} Unpack;

/* 32 following inputs as elements. */
static inline __m512i elements_round(__m512 low, __m512 high) {
    const __m512i order =
        _mm512_set_epi16(31, 29, 23, 21, 15, 13, 7, 5, 27, 25, 19, 17, 11, 9, 3, 1, 30, 28, 22, 20,
                         14, 12, 6, 4, 26, 24, 18, 16, 10, 8, 2, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

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

static inline void scales_widen(Unpack *u, const uint8_t *tile, size_t bytes) {
    const uint16_t *scales = (const uint16_t *)(tile + bytes - TILE_SCALES);
    _mm512_store_ps(u->scale, bf16_load_ps(scales));
    _mm512_store_ps(u->bias, bf16_load_ps(scales + STRIP_ROWS));
}

/* 16 bytes of output 4 L + i. */
static inline __m128i codes_of(const Unpack *u, int quarter, int L, int i) {
    return _mm_load_si128((const __m128i *)(const void *)u->codes[quarter][i] + L);
}

/* What code 0..15 stands for, of outputs [r, r + 8). */
static inline void tables_make(Unpack *u, int r) {
    const __m512 code = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int end = r + 8; r < end; r += 2) {
        __m512 t[2];
        for (int i = 0; i < 2; i++)
            t[i] = _mm512_fmadd_ps(code, _mm512_set1_ps(u->scale[r + i]),
                                   _mm512_set1_ps(u->bias[r + i]));
        _mm512_store_si512(u->tables[r], (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
    }
}

/* Lines of outputs [4 L, 4 L + 4); the second half of the group goes to `half` bytes behind the
 * first. */
static inline void lines_look_up(uint8_t *to, size_t half, const Unpack *u, int L) {
    // An index has garbage above its 4 bits; the table, held twice, lets one of them be.
    const __m512i shift =
        _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
                         0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
    for (int i = 0; i < 4; i++) {
        __m512i table = _mm512_broadcast_i64x4(
            _mm256_load_si256((const __m256i *)(const void *)u->tables[4 * L + i]));
        for (int h = 0; h < GROUP_TILES; h++) {
            __m512i own = _mm512_broadcast_i32x4(codes_of(u, h, L, i));
            __m512i index = _mm512_srlv_epi16(own, shift);
            _mm512_store_si512(to + (size_t)h * half + (4 * L + i) * TILE_ROW_BYTES,
                               _mm512_permutexvar_epi16(index, table));
        }
    }
}

static inline void lines_compute(uint8_t *to, size_t half, const Unpack *u, int L) {
    for (int i = 0; i < 4; i++) {
        __m512 scale = _mm512_set1_ps(u->scale[4 * L + i]),
               bias = _mm512_set1_ps(u->bias[4 * L + i]);
        for (int h = 0; h < GROUP_TILES; h++) {
            __m512 value[2];
            for (int k = 0; k < 2; k++) {
                __m512i code = _mm512_cvtepu8_epi32(codes_of(u, 2 * h + k, L, i));
                value[k] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale, bias);
            }
            _mm512_store_si512(to + (size_t)h * half + (4 * L + i) * TILE_ROW_BYTES,
                               elements_round(value[0], value[1]));
        }
    }
}

/* Part 0..7 of the unpacking of one group of one strip, its halves `half` bytes apart; bits and
 * part are constants. Lines of `ahead`, a packed tile too, are fetched meanwhile. */
static inline __attribute__((always_inline)) void unpack_part(uint8_t *to, size_t half, Unpack *u,
                                                              const uint8_t *tile,
                                                              const uint8_t *ahead, int bits,
                                                              int part) {
    const int lines = bits / 4;
    POINTER_HIDE(to);
    POINTER_HIDE(tile);
    POINTER_HIDE(ahead);
    for (int i = part * lines; i < (part + 1) * lines; i++)
        _mm_prefetch((const char *)ahead + (ptrdiff_t)i * 64, _MM_HINT_T1);
    if (part == 0) {
        _mm_prefetch((const char *)ahead + tile_bytes(bits) - TILE_SCALES, _MM_HINT_T1);
        scales_widen(u, tile, tile_bytes(bits));
    }
    if (part < (bits == 4 ? 2 : 4))
        codes_turn(u->codes[part], tile + part * 256);
    else if (part < 4)
        tables_make(u, part % 2 * 8);
    else if (bits == 4)
        lines_look_up(to, half, u, part - 4);
    else
        lines_compute(to, half, u, part - 4);
    tile_fence();
}

#endif
