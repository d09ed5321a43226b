// SPDX-License-Identifier: Apache-2.0
/* cuda_operand.cuh - packed 4-bit codes to the bf16 A operand of the matrix instructions; shared by
 * both columns of the prefill products, so that both multiply the same weights.
 *
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_OPERAND_CUH
#define LILY_BACKEND_CUDA_CUDA_OPERAND_CUH

#include "backend/cuda/cuda_device.cuh"

/* Two codes at bits `shift` and 16 + `shift` to scale * code + bias. 0x4300 is 128 in bf16, whose
 * last place is 1: 128 + code is exact, and so is the difference. */
FN uint32_t codes_pair(uint32_t word, int shift, uint32_t scale, uint32_t bias) {
    uint32_t q = and_or(word >> shift, 0x000f000fu, 0x43004300u);
    q = fma_bf16x2(q, 0x3f803f80u, 0xc300c300u); // * 1 - 128
    return fma_bf16x2(q, scale, bias);
}

/* The A operand of step t (16 inputs) of one row block. */
FN void codes_operand(uint32_t a[4], const uint4 &word, const uint2 &scale, int t) {
    uint32_t first = t / 2 ? word.y : word.x, second = t / 2 ? word.w : word.z;
    uint32_t s0 = (scale.x & 0xffffu) * 0x10001u, b0 = (scale.x >> 16) * 0x10001u;
    uint32_t s1 = (scale.y & 0xffffu) * 0x10001u, b1 = (scale.y >> 16) * 0x10001u;
    int shift = 8 * (t % 2);
    a[0] = codes_pair(first, shift, s0, b0);
    a[1] = codes_pair(second, shift, s1, b1);
    a[2] = codes_pair(first, shift + 4, s0, b0);
    a[3] = codes_pair(second, shift + 4, s1, b1);
}

#endif
