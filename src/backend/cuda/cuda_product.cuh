// SPDX-License-Identifier: Apache-2.0
/* cuda_product.cuh - the pieces of a decode product: tiles on their way, codes to operands,
 * whole-number products with the digits of rows, sums of the warps' parts.
 *
 * Owns:     nothing.  Thread: engine.
 * Not here: the kernels (cuda_matvec.cu, cuda_wide.cu, cuda_experts.cu), the layout
 * (cuda_layout.h). */
#ifndef LILY_BACKEND_CUDA_CUDA_PRODUCT_CUH
#define LILY_BACKEND_CUDA_CUDA_PRODUCT_CUH

#include "backend/cuda/cuda_device.cuh"

/* A whole number at rest in the bits of a float: 1.5 * 2^23 + n for |n| < 2^22. The matrix
 * instruction adds to these bits, one subtraction gives n as a float. Sums of 64 products of a code
 * (at most 255) and a digit (at most 127) stay below 2^21. */
#define WHOLE_BITS 0x4b400000
#define WHOLE_VALUE 12582912.0f

/* 8 tiles of one warp, on their way from device to shared memory: they cost no registers, so that
 * enough warps fit to have a whole matrix under way at once. */
template <int BITS> struct WarpTiles {
    uint4 code[CUDA_WARP_TILES][BITS / 4][32];
    uint4 scale[CUDA_WARP_TILES][4]; // 16 rows of scale and bias
};

/* Asks for tiles [first, first + 8) of row block `block`; zeros at and above the last. */
template <int BITS>
FN void tiles_fetch(WarpTiles<BITS> &w, const CudaMatrix &m, int64_t block, int32_t first,
                    int lane) {
    int32_t n_tiles = m.k / CUDA_GROUP;
    int64_t at = block * n_tiles + first;
    const uint4 *code = reinterpret_cast<const uint4 *>(m.code + at * 32 * BITS);
    const uint4 *scale = reinterpret_cast<const uint4 *>(m.scale + at * 16);
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
#pragma unroll
        for (int q = 0; q < BITS / 4; q++)
            if (first + i < n_tiles)
                copy_async(&w.code[i][q][lane], code + (i * 32 + lane) * (BITS / 4) + q, true);
    if (first + lane / 4 < n_tiles)
        copy_async(&w.scale[lane / 4][lane % 4], scale + lane, true);
    copy_commit();
}

/* The lane's codes and scales of tile i. */
template <int BITS>
FN uint2 tile_take(uint32_t word[BITS], const WarpTiles<BITS> &w, int i, int lane) {
#pragma unroll
    for (int q = 0; q < BITS / 4; q++) {
        uint4 four = w.code[i][q][lane];
        word[4 * q] = four.x;
        word[4 * q + 1] = four.y;
        word[4 * q + 2] = four.z;
        word[4 * q + 3] = four.w;
    }
    return reinterpret_cast<const uint2 *>(w.scale[i])[lane / 4];
}

/* A lane's codes as the operands of two instructions. */
template <int BITS> FN void tile_unpack(uint32_t a[8], const uint32_t word[BITS]) {
    const uint32_t mask = 0x0f0f0f0fu;
    if (BITS == 4) {
        a[0] = word[0] & mask;
        a[1] = word[2] & mask;
        a[2] = word[0] >> 4 & mask;
        a[3] = word[2] >> 4 & mask;
        a[4] = word[1] & mask;
        a[5] = word[3] & mask;
        a[6] = word[1] >> 4 & mask;
        a[7] = word[3] >> 4 & mask;
    } else {
        a[0] = word[0];
        a[1] = word[4 % BITS];
        a[2] = word[1];
        a[3] = word[5 % BITS];
        a[4] = word[2];
        a[5] = word[6 % BITS];
        a[6] = word[3];
        a[7] = word[7 % BITS];
    }
}

/* acc += tile times the digits of 4 step rows: the instruction's columns 2 r and 2 r + 1 are the
 * high and the low digits of row r, so that a lane ends with both digits' sums of row lane % 4, of
 * its two matrix rows. digits: the lane's 16 bytes of row lane / 8, high or low by lane / 4 % 2;
 * s: scale and sum of row lane % 4. */
FN void tile_product(float acc[2], const uint32_t a[8], uint2 scale, uint4 digits, float2 s) {
    int32_t c[4] = {WHOLE_BITS, WHOLE_BITS, WHOLE_BITS, WHOLE_BITS};
    mma_s8(c, a[0], a[1], a[2], a[3], digits.x, digits.y);
    mma_s8(c, a[4], a[5], a[6], a[7], digits.z, digits.w);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float whole = fmaf(__int_as_float(c[2 * i]) - WHOLE_VALUE, 128.0f,
                           __int_as_float(c[2 * i + 1]) - WHOLE_VALUE);
        uint32_t sb = i ? scale.y : scale.x;
        acc[i] = fmaf(bf16_low(sb), whole * s.x, acc[i]);
        acc[i] = fmaf(bf16_high(sb), s.y, acc[i]);
    }
}

FN void part_store(float *part, const float acc[2], int lane) {
    part[lane] = acc[0]; // matrix row lane / 4, step row lane % 4
    part[32 + lane] = acc[1];
}

/* The whole sum of (row, column) of n-tile t: partial sums in ascending order of inputs. */
FN float part_sum(const float *part, int warps, int nt, int t, int row, int col) {
    float sum = 0.0f;
    for (int w = 0; w < warps; w++)
        sum += part[(w * nt + t) * 64 + row * 4 + col];
    return sum;
}

/* The activation of one unit from the sums of its gate and up, which stand 8 rows apart. */
FN float unit_sum(const float *part, int warps, int nt, int t, int unit, int col, float factor) {
    float gate = part_sum(part, warps, nt, t, unit, col) * factor;
    float up = part_sum(part, warps, nt, t, unit + 8, col) * factor;
    return silu(gate) * up;
}

/* Digits of 8 groups of an activation, by one warp. */
FN void act_digits(Digits8 *to, const float *act, int32_t first, int32_t groups, int lane) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = 0.0f;
    if (first + lane / 4 < groups)
        group_load(v, act + (first + lane / 4) * CUDA_GROUP, lane % 4);
    DigitLane d = digits_make(v);
    digits_store(to->digit[lane / 4], to->scale[lane / 4], d, lane % 4);
}

/* Output n of a step row: stored, or added with a bad row noted. */
FN void output_store(const CudaMatvec &a, float sum, int32_t step_row, int32_t n) {
    float *y = a.y + (int64_t)step_row * a.ldy + n;
    if (a.is_add) {
        sum += *y;
        if (!is_finite(sum))
            note_bad(a.bad, step_row);
    }
    *y = sum;
}

#endif
