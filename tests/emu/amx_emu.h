// SPDX-License-Identifier: Apache-2.0
/* amx_emu.h - the tile instructions of AMX in plain C, for machines that lack them.
 *
 * Path:     src/backend/cpu/amx/amx_tile.h includes it when LILY_AMX_EMU is defined.
 * Owns:     one thread's tile registers.  Thread: any, each has its own.
 * Source:   the operation sections of Intel's instruction set reference. What the CPU answers with
 *           an invalid opcode ends the program here. */
#ifndef LILY_TESTS_AMX_EMU_H
#define LILY_TESTS_AMX_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AMX_EMU_FN __attribute__((unused)) static

typedef struct AmxEmuTile {
    int rows, row_bytes; // 0: not configured
    uint8_t data[16][64];
} AmxEmuTile;

static _Thread_local AmxEmuTile amx_emu_tiles[8];

AMX_EMU_FN void amx_emu_expect(int is_valid, const char *what) {
    if (!is_valid) {
        fprintf(stderr, "amx_emu: invalid opcode: %s\n", what);
        abort();
    }
}

/* The 64 bytes of a configuration: palette, first row, 14 zeros, bytes a row of tiles 0 to 7 as 16
 * bits, 16 zeros, rows of tiles 0 to 7, 8 zeros. */
AMX_EMU_FN void amx_emu_loadconfig(const void *from) {
    uint8_t c[64];
    memcpy(c, from, sizeof c);
    amx_emu_expect(c[0] == 1, "palette");
    amx_emu_expect(c[1] == 0, "first row");
    for (int i = 0; i < 64; i++)
        if ((i > 1 && i < 16) || (i > 31 && i < 48) || i > 55)
            amx_emu_expect(c[i] == 0, "bits that must be zero");
    memset(amx_emu_tiles, 0, sizeof amx_emu_tiles);
    for (int t = 0; t < 8; t++) {
        int rows = c[48 + t], row_bytes = c[16 + 2 * t] + 256 * c[17 + 2 * t];
        amx_emu_expect(rows <= 16 && row_bytes <= 64, "size of a tile");
        amx_emu_expect((rows == 0) == (row_bytes == 0), "tile without rows or without bytes");
        amx_emu_tiles[t].rows = rows;
        amx_emu_tiles[t].row_bytes = row_bytes;
    }
}

AMX_EMU_FN void amx_emu_release(void) { memset(amx_emu_tiles, 0, sizeof amx_emu_tiles); }

AMX_EMU_FN AmxEmuTile *amx_emu_at(int t) {
    amx_emu_expect(t >= 0 && t < 8 && amx_emu_tiles[t].rows > 0, "tile that is not configured");
    return &amx_emu_tiles[t];
}

AMX_EMU_FN void amx_emu_zero(int t) {
    AmxEmuTile *tile = amx_emu_at(t);
    memset(tile->data, 0, sizeof tile->data);
}

AMX_EMU_FN void amx_emu_loadd(int t, const void *from, ptrdiff_t stride) {
    AmxEmuTile *tile = amx_emu_at(t);
    memset(tile->data, 0, sizeof tile->data);
    for (int i = 0; i < tile->rows; i++)
        memcpy(tile->data[i], (const uint8_t *)from + i * stride, (size_t)tile->row_bytes);
}

/* With a hint that the lines will not be wanted again soon. */
AMX_EMU_FN void amx_emu_stream_loadd(int t, const void *from, ptrdiff_t stride) {
    amx_emu_loadd(t, from, stride);
}

AMX_EMU_FN void amx_emu_stored(int t, void *to, ptrdiff_t stride) {
    const AmxEmuTile *tile = amx_emu_at(t);
    for (int i = 0; i < tile->rows; i++)
        memcpy((uint8_t *)to + i * stride, tile->data[i], (size_t)tile->row_bytes);
}

/* The shapes of c += a b: c [m][n], a [m][k], b [k][n], elements of 4 bytes. */
AMX_EMU_FN void amx_emu_product(AmxEmuTile **c, AmxEmuTile **a, AmxEmuTile **b, int tc, int ta,
                                int tb) {
    amx_emu_expect(tc != ta && tc != tb && ta != tb, "the same tile twice");
    *c = amx_emu_at(tc);
    *a = amx_emu_at(ta);
    *b = amx_emu_at(tb);
    amx_emu_expect((*c)->rows == (*a)->rows, "rows of a product");
    amx_emu_expect((*c)->row_bytes == (*b)->row_bytes, "columns of a product");
    amx_emu_expect((*a)->row_bytes == 4 * (*b)->rows, "length of a product");
    amx_emu_expect((*c)->row_bytes % 4 == 0, "whole elements");
}

/* f32 with subnormal numbers as zeros. */
static inline float amx_emu_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* The bf16 in the low or the high half of a pair. */
static inline float amx_emu_half(uint32_t pair, int is_high) {
    uint32_t bits = is_high ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return amx_emu_flush(x);
}

/* Of bytes in fours: whole numbers, a signed or not, b not. */
AMX_EMU_FN void amx_emu_bytes(int tc, int ta, int tb, int is_signed) {
    AmxEmuTile *c, *a, *b;
    amx_emu_product(&c, &a, &b, tc, ta, tb);
    for (int m = 0; m < c->rows; m++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            uint32_t sum;
            memcpy(&sum, c->data[m] + 4 * n, sizeof sum);
            for (int k = 0; k < b->rows; k++)
                for (int i = 0; i < 4; i++) {
                    int left = a->data[m][4 * k + i];
                    if (is_signed && left > 127)
                        left -= 256;
                    sum += (uint32_t)(left * b->data[k][4 * n + i]);
                }
            memcpy(c->data[m] + 4 * n, &sum, sizeof sum);
        }
}

AMX_EMU_FN void amx_emu_dpbuud(int tc, int ta, int tb) { amx_emu_bytes(tc, ta, tb, 0); }
AMX_EMU_FN void amx_emu_dpbsud(int tc, int ta, int tb) { amx_emu_bytes(tc, ta, tb, 1); }

/* Of pairs of bf16: the even ones and the odd ones are summed apart by fused multiply-adds over
 * all k, then added, then added to c. */
AMX_EMU_FN void amx_emu_dpbf16ps(int tc, int ta, int tb) {
    AmxEmuTile *c, *a, *b;
    amx_emu_product(&c, &a, &b, tc, ta, tb);
    for (int m = 0; m < c->rows; m++) {
        float sum[2][16] = {{0}}, was[16];
        uint32_t left[16], right[16];
        memcpy(left, a->data[m], sizeof left);
        memcpy(was, c->data[m], sizeof was);
        for (int k = 0; k < b->rows; k++) {
            memcpy(right, b->data[k], sizeof right);
            for (int i = 0; i < 2; i++) {
                float value = amx_emu_half(left[k], i);
                for (int n = 0; n < 16; n++)
                    sum[i][n] = amx_emu_flush(fmaf(value, amx_emu_half(right[n], i), sum[i][n]));
            }
        }
        for (int n = 0; n < 16; n++)
            was[n] = amx_emu_flush(amx_emu_flush(was[n]) + amx_emu_flush(sum[0][n] + sum[1][n]));
        memcpy(c->data[m], was, (size_t)c->row_bytes);
    }
}

#endif
