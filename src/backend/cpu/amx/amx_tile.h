// SPDX-License-Identifier: Apache-2.0
/* amx_tile.h - tile instructions: the CPU's, or with LILY_AMX_EMU those of tests/emu, which run
 * everywhere.
 *
 * Use:      TILE(loadd)(0, from, 64), as _tile_loadd of immintrin.h. A tile's number is a macro or
 *           a literal. tile_fence() stands between ordinary stores and the load of a tile.
 * Owns:     the tile registers of its thread between tile_configure and tile_release. */
#ifndef LILY_BACKEND_CPU_AMX_AMX_TILE_H
#define LILY_BACKEND_CPU_AMX_AMX_TILE_H

#include <assert.h>
#include <stdint.h>

#if defined(LILY_AMX_EMU)
#include "amx_emu.h"
#define TILE(name) amx_emu_##name
#else
#include <immintrin.h>
#define TILE(name) _tile_##name
#endif

enum { TILE_N = 8, TILE_ROWS = 16, TILE_ROW_BYTES = 64 };

/* What the tile registers hold, as the instruction reads it. */
typedef struct TileConfig {
    uint8_t palette; // 1
    uint8_t start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;
static_assert(sizeof(TileConfig) == 64, "read by the instruction");

/* The intrinsics of gcc 12 do not say that they read memory: stores ahead of them would be put off
 * or dropped. */
static inline void tile_fence(void) { __asm__ volatile("" ::: "memory"); }

/* The pointer p, about which the compiler knows nothing any more. A tile's address must stand in a
 * register of its own: of a pointer it knows, gcc computes all addresses of an unrolled loop ahead
 * of the loop, and then keeps them in vector registers. */
#define POINTER_HIDE(p) __asm__("" : "+r"(p))

/* Tiles with the given numbers of rows (0: not used), 64 bytes each; their contents become zero. */
static inline void tile_configure(const uint8_t rows[TILE_N]) {
    TileConfig c = {.palette = 1};
    for (int i = 0; i < TILE_N; i++) {
        c.row_bytes[i] = rows[i] ? TILE_ROW_BYTES : 0;
        c.rows[i] = rows[i];
    }
    tile_fence();
    TILE(loadconfig)(&c);
}

/* Behind it the system has no tiles to save when it switches threads. */
static inline void tile_release(void) { TILE(release)(); }

#endif
