// SPDX-License-Identifier: Apache-2.0
/* cuda_elem.cu - embedding, norms, routing and grouping of experts, their sum, greedy choice.
 *
 * Path:     started by cuda_step.c.
 * Owns:     nothing.  Thread: engine.
 * Not here: fused forms of the same inside decode products (cuda_matvec.cu). */
#include "backend/cuda/cuda_route.cuh"

/* ---- embedding ---- */

__global__ void embed_kernel(CudaEmbed a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.x;
    if (a.bad && row == 0)
        for (int32_t i = (int32_t)threadIdx.x; i < a.n_bad; i += (int32_t)blockDim.x)
            a.bad[i] = 0x7fffffff;
    int32_t id = a.rows[row].id, carry = a.rows[row].carry;
    if (carry >= 0)
        id = a.sampled[a.head->sampled_in * a.max_seqs + carry];
    id = id < 0 || id >= a.w.n ? 0 : id;
    int32_t tiles = a.w.k / CUDA_GROUP, in_tile = id % 16;
    for (int32_t k = (int32_t)threadIdx.x; k < a.w.k; k += (int32_t)blockDim.x) {
        int64_t block = (int64_t)(id / 16) * tiles + k / CUDA_GROUP;
        int32_t in_group = k % CUDA_GROUP;
        uint32_t q;
        if (a.w.bits == 4)
            q = a.w.code[block * 128 + cuda_layout_word4(in_tile, in_group)] >>
                    cuda_layout_shift4(in_group) &
                15u;
        else
            q = a.w.code[block * 256 + cuda_layout_word8(in_tile, in_group)] >>
                    cuda_layout_shift8(in_group) &
                255u;
        uint32_t s = a.w.scale[block * 16 + cuda_layout_scale(in_tile)];
        a.x[(int64_t)row * a.w.k + k] = fmaf(bf16_low(s), (float)q, bf16_high(s));
    }
}

extern "C" cudaError_t cuda_embed(const CudaLaunch *l, const CudaEmbed *a) {
    return start(l, embed_kernel, dim3((unsigned)a->m), 256, 0, *a);
}

/* ---- norms ---- */

/* One block a row, one warp for 8 groups, in the very order of the fused form. */
__global__ void norm_kernel(CudaNorm a) {
    __shared__ float part[32];
    chain_wait();
    chain_next();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, j = lane % 4;
    int32_t row = (int32_t)blockIdx.x, groups = a.k / CUDA_GROUP;
    int64_t from = a.list ? a.list[row] : row;
    int32_t g = warp * CUDA_WARP_TILES + lane / 4;
    bool is_there = g < groups;
    float v[16], gain[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = gain[i] = 0.0f;
    if (is_there) {
        group_load(v, a.x + from * a.k + g * CUDA_GROUP, j);
        group_load(gain, a.gain + g * CUDA_GROUP, j);
    }
    float squares = warp_sum(group_squares(0.0f, v));
    if (lane == 0)
        part[warp] = squares;
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] *= gain[i];
    if (a.digits.digit) {
        DigitLane d = digits_make(v);
        if (is_there) {
            int64_t at = (int64_t)row * groups + g;
            digits_store(a.digits.digit + at * 32, a.digits.scale + at * 2, d, j);
        }
    }
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < (int)blockDim.x / 32; w++)
        sum += part[w];
    float factor = 1.0f / sqrtf(sum / (float)a.k + a.eps);
    if (a.digits.digit && threadIdx.x == 0)
        a.digits.factor[row] = factor;
    if (a.u && is_there) {
        uint32_t *u = reinterpret_cast<uint32_t *>(a.u + (int64_t)row * a.k + g * CUDA_GROUP);
#pragma unroll
        for (int i = 0; i < 8; i++)
            u[8 * (i / 2) + 4 * (i % 2) + j] = pack_bf16(v[2 * i] * factor, v[2 * i + 1] * factor);
    }
}

static int norm_threads(int32_t k) {
    return (k / CUDA_GROUP + CUDA_WARP_TILES - 1) / CUDA_WARP_TILES * 32;
}

extern "C" cudaError_t cuda_norm(const CudaLaunch *l, const CudaNorm *a) {
    return start(l, norm_kernel, dim3((unsigned)a->m), norm_threads(a->k), 0, *a);
}

__global__ void norm_f32_kernel(float *out, const float *x, const float *gain, float eps,
                                int32_t k) {
    __shared__ float part[8];
    chain_wait();
    chain_next();
    int64_t at = (int64_t)blockIdx.x * k;
    float sum = 0.0f;
    for (int32_t i = (int32_t)threadIdx.x; i < k; i += 256)
        sum = fmaf(x[at + i], x[at + i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < 8; w++)
        sum += part[w];
    float factor = 1.0f / sqrtf(sum / (float)k + eps);
    for (int32_t i = (int32_t)threadIdx.x; i < k; i += 256)
        out[at + i] = x[at + i] * factor * gain[i];
}

extern "C" cudaError_t cuda_norm_f32(const CudaLaunch *l, float *out, const float *x,
                                     const float *gain, float eps, int32_t m, int32_t k) {
    return start(l, norm_f32_kernel, dim3((unsigned)m), 256, 0, out, x, gain, eps, k);
}

/* ---- routing of a prefill ---- */

__global__ void route_kernel(CudaRoute a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)(blockIdx.x * 4 + threadIdx.x / 32);
    if (row < a.m)
        route_any(a, row, (int)threadIdx.x % 32);
}

extern "C" cudaError_t cuda_route(const CudaLaunch *l, const CudaRoute *a) {
    return start(l, route_kernel, dim3((unsigned)(a->m + 3) / 4), 128, 0, *a);
}

/* Block e makes the list and the items of expert e. Every block counts all pairs itself (whole
 * numbers: the order of counting does not matter), so that no second launch is needed. */
__global__ void group_kernel(CudaGroup a) {
    __shared__ int32_t count[1024];
    __shared__ int32_t sums[3]; // places before e, items before e, items in all
    __shared__ int32_t warp_n[8];
    chain_wait();
    chain_next();
    int32_t e = (int32_t)blockIdx.x, me = (int32_t)threadIdx.x;
    for (int32_t i = me; i < a.n_experts; i += 256)
        count[i] = 0;
    if (me < 3)
        sums[me] = 0;
    __syncthreads();
    for (int32_t p = me; p < a.n_pairs; p += 256)
        atomicAdd(&count[a.id[p]], 1);
    __syncthreads();
    for (int32_t i = me; i < a.n_experts; i += 256) {
        int32_t items = (count[i] + a.tile - 1) / a.tile;
        if (i < e) {
            atomicAdd(&sums[0], count[i]);
            atomicAdd(&sums[1], items);
        }
        atomicAdd(&sums[2], items);
    }
    __syncthreads();
    int32_t place = sums[0], first = sums[1], mine = count[e];
    for (int32_t i = me; i * a.tile < mine; i += 256) {
        int32_t *item = a.item + 3 * (int64_t)(first + i);
        item[0] = e;
        item[1] = place + i * a.tile;
        item[2] = mine - i * a.tile < a.tile ? mine - i * a.tile : a.tile;
    }
    for (int32_t i = sums[2] + e * 256 + me; i < a.max_items; i += a.n_experts * 256)
        a.item[3 * (int64_t)i + 2] = 0;
    int warp = me / 32, lane = me % 32;
    for (int32_t p0 = 0; p0 < a.n_pairs; p0 += 256) { // in ascending order of pairs
        int32_t p = p0 + me;
        bool is_mine = p < a.n_pairs && a.id[p] == e;
        uint32_t all = __ballot_sync(FULL_WARP, is_mine);
        if (lane == 0)
            warp_n[warp] = __popc(all);
        __syncthreads();
        int32_t before = 0, total = 0;
        for (int w = 0; w < 8; w++) {
            before += w < warp ? warp_n[w] : 0;
            total += warp_n[w];
        }
        if (is_mine)
            a.list[place + before + __popc(all & ((1u << lane) - 1u))] = p;
        place += total;
        __syncthreads();
    }
}

extern "C" cudaError_t cuda_group(const CudaLaunch *l, const CudaGroup *a) {
    return start(l, group_kernel, dim3((unsigned)a->n_experts), 256, 0, *a);
}

/* ---- sum of the experts of a prefill ---- */

__global__ void combine_kernel(CudaCombine a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.y;
    int32_t at = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x) * 2;
    if (at >= a.h)
        return;
    float s0 = 0.0f, s1 = 0.0f;
    for (int32_t c = 0; c < a.top_k; c++) {
        int64_t pair = (int64_t)row * a.top_k + c;
        uint32_t y = *reinterpret_cast<const uint32_t *>(a.y + pair * a.h + at);
        float w = a.weight[pair];
        s0 = fmaf(w, bf16_low(y), s0);
        s1 = fmaf(w, bf16_high(y), s1);
    }
    float mix = sigmoid(a.mix[(int64_t)row * a.ld_mix]);
    uint32_t y = *reinterpret_cast<const uint32_t *>(a.shared + (int64_t)row * a.h + at);
    float2 *x = reinterpret_cast<float2 *>(a.x + (int64_t)row * a.h + at);
    float2 v = *x;
    v.x += fmaf(mix, bf16_low(y), s0);
    v.y += fmaf(mix, bf16_high(y), s1);
    *x = v;
    if (!is_finite(v.x) || !is_finite(v.y))
        note_bad(a.bad, row);
}

extern "C" cudaError_t cuda_combine(const CudaLaunch *l, const CudaCombine *a) {
    return start(l, combine_kernel, dim3((unsigned)(a->h + 511) / 512, (unsigned)a->m), 256, 0, *a);
}

/* ---- greedy choice ---- */

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

__global__ void argmax_kernel(CudaArgmax a) {
    __shared__ uint64_t shared[8];
    __shared__ int32_t is_last;
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.y, at = a.list ? a.list[row] : row;
    const CudaRow &r = a.rows[at];
    const float *x = a.logits + (int64_t)row * a.v;
    uint64_t best = 0;
    bool is_bad = false;
    for (int32_t i = (int32_t)(blockIdx.x * 256 + threadIdx.x); i < a.v;
         i += CUDA_ARGMAX_BLOCKS * 256) {
        float v = x[i];
        is_bad |= !is_finite(v);
        if (i < r.limit)
            best = choice_max(best, choice_key(v, i));
    }
    if (is_bad)
        note_bad(a.bad, at);
    best = choice_block(best, shared);
    if (threadIdx.x == 0) {
        a.best[(int64_t)row * CUDA_ARGMAX_BLOCKS + blockIdx.x] = best;
        __threadfence();
        is_last = atomicAdd(&a.count[row], 1) == CUDA_ARGMAX_BLOCKS - 1;
    }
    __syncthreads();
    if (!is_last || threadIdx.x >= 32)
        return;
    __threadfence();
    volatile uint64_t *all = a.best + (int64_t)row * CUDA_ARGMAX_BLOCKS;
    best = threadIdx.x < CUDA_ARGMAX_BLOCKS ? all[threadIdx.x] : 0;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        uint32_t high = __shfl_xor_sync(FULL_WARP, (uint32_t)(best >> 32), d);
        uint32_t low = __shfl_xor_sync(FULL_WARP, (uint32_t)best, d);
        best = choice_max(best, (uint64_t)high << 32 | low);
    }
    if (threadIdx.x == 0) {
        a.sampled[a.head->sampled_out * a.max_seqs + r.seq] = ~(int32_t)(uint32_t)best;
        a.count[row] = 0;
    }
}

extern "C" cudaError_t cuda_argmax(const CudaLaunch *l, const CudaArgmax *a) {
    return start(l, argmax_kernel, dim3(CUDA_ARGMAX_BLOCKS, (unsigned)a->m), 256, 0, *a);
}
