// SPDX-License-Identifier: Apache-2.0
/* cuda_order.cuh - floats as whole numbers of the same order, and the greatest of a block.
 *
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_ORDER_CUH
#define LILY_BACKEND_CUDA_CUDA_ORDER_CUH

#include "backend/cuda/cuda_device.cuh"

/* A key whose unsigned order is the order of the floats; both zeros have the same. */
FN uint32_t order_key(float x) {
    uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
FN float order_value(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Larger logit first, then lower id. */
FN uint64_t choice_key(float x, int32_t id) { return (uint64_t)order_key(x) << 32 | (uint32_t)~id; }
FN uint64_t choice_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The largest key of a block of 256 threads; in thread 0. */
FN uint64_t choice_block(uint64_t best, uint64_t *shared) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        uint32_t high = __shfl_xor_sync(FULL_WARP, (uint32_t)(best >> 32), d);
        uint32_t low = __shfl_xor_sync(FULL_WARP, (uint32_t)best, d);
        best = choice_max(best, (uint64_t)high << 32 | low);
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = best;
    __syncthreads();
    best = 0;
    for (int w = 0; w < 8; w++)
        best = choice_max(best, shared[w]);
    return best;
}

#endif
