// SPDX-License-Identifier: Apache-2.0
/* cuda_route.cuh - the choice of experts by one warp; shared by the decode router and prefill.
 *
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_ROUTE_CUH
#define LILY_BACKEND_CUDA_CUDA_ROUTE_CUH

#include "backend/cuda/cuda_order.cuh"

/* The top_k largest of n_experts logits, ties to the lower id, and their softmax. The logits are
 * read past the first-level cache: other blocks of the same kernel may have written them. */
template <int PER_LANE> FN void route_row(const CudaRoute &a, int32_t row, int lane) {
    const float *logits = a.logits + (int64_t)row * a.ld;
    uint32_t key[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        int32_t e = i * 32 + lane;
        key[i] = e < a.n_experts ? order_key(__ldcg(logits + e)) : 0; // 0: below every number's
    }
    float top = 0.0f, mine = 0.0f, sum = 0.0f;
    for (int32_t c = 0; c < a.top_k; c++) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            best = key[i] > best ? key[i] : best;
        best = __reduce_max_sync(FULL_WARP, best);
        uint32_t id = 0xffffffffu;
#pragma unroll
        for (int i = PER_LANE - 1; i >= 0; i--)
            id = key[i] == best && i * 32 + lane < a.n_experts ? (uint32_t)(i * 32 + lane) : id;
        id = __reduce_min_sync(FULL_WARP, id);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            key[i] = (uint32_t)(i * 32 + lane) == id ? 0 : key[i];
        float value = order_value(best);
        top = c == 0 ? value : top;
        float weight = expf(value - top);
        sum += weight;
        if (lane == c) {
            mine = weight;
            a.id[(int64_t)row * a.top_k + c] = (int32_t)id;
        }
    }
    if (!a.is_norm) { // softmax over all experts
        sum = 0.0f;
        for (int32_t e = lane; e < a.n_experts; e += 32)
            sum += expf(__ldcg(logits + e) - top);
        sum = warp_sum(sum);
    }
    if (lane < a.top_k)
        a.weight[(int64_t)row * a.top_k + lane] = mine / sum;
}

FN void route_any(const CudaRoute &a, int32_t row, int lane) {
    if (a.n_experts <= 256)
        route_row<8>(a, row, lane);
    else
        route_row<32>(a, row, lane);
}

#endif
