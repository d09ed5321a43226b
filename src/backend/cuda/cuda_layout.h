// SPDX-License-Identifier: Apache-2.0
/* cuda_layout.h - places of codes in packed matrices and of digits in quantised rows; plain
 * arithmetic that host, device and tests share.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CUDA_CUDA_LAYOUT_H
#define LILY_BACKEND_CUDA_CUDA_LAYOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_BOTH static __host__ __device__ __forceinline__
#else
#define CUDA_BOTH static inline
#endif

/* Input k of a group of 64 = 16 t + 8 half + 2 j + e. */
CUDA_BOTH int32_t cuda_layout_lane(int32_t k) { return k % 8 / 2; }  // j
CUDA_BOTH int32_t cuda_layout_half(int32_t k) { return k % 16 / 8; } // half
CUDA_BOTH int32_t cuda_layout_step(int32_t k) { return k / 16; }     // t

/* Byte of input k among the 64 digits of a group: lane by lane 16 bytes, as four registers of the
 * B operand of two m16n8k32. */
CUDA_BOTH int32_t cuda_layout_digit(int32_t k) {
    int32_t t = cuda_layout_step(k), half = cuda_layout_half(k), e = k % 2;
    return cuda_layout_lane(k) * 16 + (t / 2 * 2 + half) * 4 + 2 * e + t % 2;
}

/* Word of a tile that holds the 4-bit code of (row, input), and its shift. */
CUDA_BOTH int32_t cuda_layout_word4(int32_t row, int32_t k) {
    int32_t lane = row % 8 * 4 + cuda_layout_lane(k);
    return lane * 4 + row / 8 * 2 + cuda_layout_step(k) / 2;
}
CUDA_BOTH int32_t cuda_layout_shift4(int32_t k) {
    return 4 * (k % 2 * 4 + cuda_layout_step(k) % 2 * 2 + cuda_layout_half(k));
}

/* The same for 8-bit codes. */
CUDA_BOTH int32_t cuda_layout_word8(int32_t row, int32_t k) {
    int32_t lane = row % 8 * 4 + cuda_layout_lane(k);
    return lane * 8 + row / 8 * 4 + cuda_layout_step(k) / 2 * 2 + cuda_layout_half(k);
}
CUDA_BOTH int32_t cuda_layout_shift8(int32_t k) {
    return 8 * (2 * (k % 2) + cuda_layout_step(k) % 2);
}

/* Word of the scales of a tile that belongs to a row. */
CUDA_BOTH int32_t cuda_layout_scale(int32_t row) { return row % 8 * 2 + row / 8; }

/* Keys of one piece of a decode context of n_keys keys, and the number of pieces. */
CUDA_BOTH int32_t cuda_layout_split(int32_t n_keys, int32_t unit, int32_t max_splits) {
    int32_t whole = unit * max_splits;
    return unit * ((n_keys + whole - 1) / whole);
}

#endif
