// SPDX-License-Identifier: Apache-2.0
/* cuda_elem.cu - embedding, norms, routing and grouping of experts, their sum, greedy choice.
 *
 * Path:     started by cuda_step.c.
 * Owns:     nothing.  Thread: engine.
 * Not here: fused forms of the same inside decode products (cuda_matvec.cu). */
#include "backend/cuda/cuda_route.cuh"

/* ---- embedding ---- */

/* Block (row, 256 values). */
__global__ void embed_kernel(CudaEmbed a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.x;
    if (a.bad && row == 0 && blockIdx.y == 0)
        for (int32_t i = (int32_t)threadIdx.x; i < a.n_bad; i += (int32_t)blockDim.x)
            a.bad[i] = 0x7fffffff;
    int32_t id = a.rows[row].id, carry = a.rows[row].carry;
    if (carry >= 0)
        id = a.sampled[a.head->sampled_in * a.max_seqs + carry];
    id = id < 0 || id >= a.w.n ? 0 : id;
    int32_t tiles = a.w.k / CUDA_GROUP, in_tile = id % 16;
    int32_t k = (int32_t)(blockIdx.y * 256 + threadIdx.x), in_group = k % CUDA_GROUP;
    if (k >= a.w.k)
        return;
    int64_t block = (int64_t)(id / 16) * tiles + k / CUDA_GROUP;
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

extern "C" cudaError_t cuda_embed(const CudaLaunch *l, const CudaEmbed *a) {
    return start(l, embed_kernel, dim3((unsigned)a->m, (unsigned)(a->w.k + 255) / 256), 256, 0, *a);
}

/* ---- norms ---- */

/* One block a row, one warp for 8 groups, in the very order of the fused form. */
__global__ void norm_kernel(CudaNorm a) {
    __shared__ __align__(16) Digits8 digits[CUDA_MAX_K / CUDA_GROUP / CUDA_WARP_TILES];
    __shared__ float part[32];
    chain_wait();
    chain_next();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int32_t row = (int32_t)blockIdx.x, groups = a.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int64_t from = a.list ? a.list[row] : row;
    float4 v[4];
    float squares = row_scaled(v, a.x + from * a.k + first * CUDA_GROUP,
                               a.gain + first * CUDA_GROUP, groups - first, lane);
    if (lane == 0)
        part[warp] = squares;
    if (a.digits.digit) {
        row_digits(&digits[warp], v, lane);
        digits_put(a.digits, row, first, groups, digits[warp], lane);
    }
    __syncthreads();
    float factor = squares_factor(part, (int)blockDim.x / 32, a.k, a.eps);
    if (a.digits.digit && threadIdx.x == 0)
        a.digits.factor[row] = factor;
    if (!a.u)
        return;
    uint2 *u = reinterpret_cast<uint2 *>(a.u + (int64_t)row * a.k + first * CUDA_GROUP);
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (first + 2 * c + lane / 16 < groups)
            u[c * 32 + lane] = make_uint2(pack_bf16(v[c].x * factor, v[c].y * factor),
                                          pack_bf16(v[c].z * factor, v[c].w * factor));
}

extern "C" cudaError_t cuda_norm(const CudaLaunch *l, const CudaNorm *a) {
    return start(l, norm_kernel, dim3((unsigned)a->m), 32 * row_warps(a->k), 0, *a);
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

enum { GROUP_WARPS = 32, GROUP_THREADS = GROUP_WARPS * 32 };

FN int32_t warp_total(int32_t x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        x += __shfl_xor_sync(FULL_WARP, x, d);
    return x;
}

/* Experts of pairs p .. p + 3, p a multiple of 4; -1 behind the last. */
FN void group_ids(int32_t (&id)[4], const CudaGroup &a, int32_t p) {
    if (p + 4 <= a.n_pairs) {
        uint4 v = *reinterpret_cast<const uint4 *>(a.id + p);
        id[0] = (int32_t)v.x;
        id[1] = (int32_t)v.y;
        id[2] = (int32_t)v.z;
        id[3] = (int32_t)v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        id[i] = p + i < a.n_pairs ? a.id[p + i] : -1;
}

/* Pairs before expert e, items before it, items in all. */
FN void group_sums(const CudaGroup &a, const int32_t *count, int32_t *sums, int32_t e) {
    for (int32_t i0 = 0; i0 < a.n_experts; i0 += GROUP_THREADS) {
        int32_t i = i0 + (int32_t)threadIdx.x, n = i < a.n_experts ? count[i] : 0;
        int32_t items = (n + a.tile - 1) / a.tile;
        int32_t pairs_before = warp_total(i < e ? n : 0);
        int32_t items_before = warp_total(i < e ? items : 0);
        items = warp_total(items);
        if (threadIdx.x % 32 == 0 && items) {
            atomicAdd(&sums[0], pairs_before);
            atomicAdd(&sums[1], items_before);
            atomicAdd(&sums[2], items);
        }
    }
}

/* Block e makes the list and the items of expert e. Every block counts all pairs itself (whole
 * numbers: the order of counting does not matter), so that no second launch is needed. */
__global__ void __launch_bounds__(GROUP_THREADS) group_kernel(CudaGroup a) {
    __shared__ int32_t count[1024];
    __shared__ int32_t sums[3];
    __shared__ int32_t warp_n[2][GROUP_WARPS];
    chain_wait();
    chain_next();
    int32_t e = (int32_t)blockIdx.x, me = (int32_t)threadIdx.x;
    int warp = me / 32, lane = me % 32;
    for (int32_t i = me; i < a.n_experts; i += GROUP_THREADS)
        count[i] = 0;
    if (me < 3)
        sums[me] = 0;
    __syncthreads();
    for (int32_t p = 4 * me; p < a.n_pairs; p += 4 * GROUP_THREADS) {
        int32_t id[4];
        group_ids(id, a, p);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (id[i] >= 0)
                atomicAdd(&count[id[i]], 1);
    }
    __syncthreads();
    group_sums(a, count, sums, e);
    __syncthreads();
    int32_t place = sums[0], first = sums[1], mine = count[e];
    for (int32_t i = me; i * a.tile < mine; i += GROUP_THREADS) {
        int32_t *item = a.item + 3 * (int64_t)(first + i);
        item[0] = e;
        item[1] = place + i * a.tile;
        item[2] = mine - i * a.tile < a.tile ? mine - i * a.tile : a.tile;
    }
    for (int32_t i = sums[2] + e * GROUP_THREADS + me; i < a.max_items;
         i += a.n_experts * GROUP_THREADS)
        a.item[3 * (int64_t)i + 2] = 0;
    int half = 0; // of warp_n: one barrier a round is enough
    for (int32_t p0 = 0; p0 < a.n_pairs; p0 += 4 * GROUP_THREADS, half ^= 1) {
        int32_t p = p0 + 4 * me, id[4]; // in ascending order of pairs
        group_ids(id, a, p);
        int32_t before = 0, total = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t all = __ballot_sync(FULL_WARP, id[i] == e);
            before += __popc(all & ((1u << lane) - 1u));
            total += __popc(all);
        }
        if (lane == 0)
            warp_n[half][warp] = total;
        __syncthreads();
        int32_t other = warp_n[half][lane];
        before += place + warp_total(lane < warp ? other : 0);
        place += warp_total(other);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (id[i] == e)
                a.list[before++] = p + i;
    }
}

extern "C" cudaError_t cuda_group(const CudaLaunch *l, const CudaGroup *a) {
    return start(l, group_kernel, dim3((unsigned)a->n_experts), GROUP_THREADS, 0, *a);
}

/* ---- sum of the experts of a prefill ---- */

/* s += w times eight bf16. */
FN void combine_eight(float (&s)[8], float w, uint4 y) {
    s[0] = fmaf(w, bf16_low(y.x), s[0]);
    s[1] = fmaf(w, bf16_high(y.x), s[1]);
    s[2] = fmaf(w, bf16_low(y.y), s[2]);
    s[3] = fmaf(w, bf16_high(y.y), s[3]);
    s[4] = fmaf(w, bf16_low(y.z), s[4]);
    s[5] = fmaf(w, bf16_high(y.z), s[5]);
    s[6] = fmaf(w, bf16_low(y.w), s[6]);
    s[7] = fmaf(w, bf16_high(y.w), s[7]);
}

/* Block (2048 columns, row): eight columns a thread. */
__global__ void __launch_bounds__(256) combine_kernel(CudaCombine a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.y;
    int32_t at = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (at >= a.h)
        return;
    int64_t pair = (int64_t)row * a.top_k;
    const uint16_t *y = a.y + pair * a.h + at;
    float4 *x = reinterpret_cast<float4 *>(a.x + (int64_t)row * a.h + at);
    float4 v[2] = {x[0], x[1]};
    uint4 shared = *reinterpret_cast<const uint4 *>(a.shared + (int64_t)row * a.h + at);
    float mix = sigmoid(a.mix[(int64_t)row * a.ld_mix]), s[8] = {};
#pragma unroll 8
    for (int32_t c = 0; c < a.top_k; c++)
        combine_eight(s, a.weight[pair + c],
                      *reinterpret_cast<const uint4 *>(y + (int64_t)c * a.h));
    combine_eight(s, mix, shared);
    v[0] = make_float4(v[0].x + s[0], v[0].y + s[1], v[0].z + s[2], v[0].w + s[3]);
    v[1] = make_float4(v[1].x + s[4], v[1].y + s[5], v[1].z + s[6], v[1].w + s[7]);
    x[0] = v[0];
    x[1] = v[1];
    bool is_good = true;
#pragma unroll
    for (int i = 0; i < 2; i++)
        is_good = is_good && is_finite(v[i].x) && is_finite(v[i].y) && is_finite(v[i].z) &&
                  is_finite(v[i].w);
    if (!is_good)
        note_bad(a.bad, row);
}

extern "C" cudaError_t cuda_combine(const CudaLaunch *l, const CudaCombine *a) {
    dim3 grid((unsigned)(a->h + 2047) / 2048, (unsigned)a->m);
    return start(l, combine_kernel, grid, 256, 0, *a);
}

/* ---- greedy choice ---- */

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
    for (int32_t i0 = (int32_t)(blockIdx.x * 256 + threadIdx.x); i0 < a.v;
         i0 += 4 * CUDA_ARGMAX_BLOCKS * 256) {
        float v[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int32_t i = i0 + q * CUDA_ARGMAX_BLOCKS * 256;
            v[q] = i < a.v ? x[i] : 0.0f;
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int32_t i = i0 + q * CUDA_ARGMAX_BLOCKS * 256;
            is_bad |= !is_finite(v[q]);
            if (i < r.limit)
                best = choice_max(best, choice_key(v[q], i));
        }
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
    best = 0;
#pragma unroll
    for (int i = 0; i < CUDA_ARGMAX_BLOCKS; i += 32)
        best = choice_max(best, all[i + (int)threadIdx.x]);
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        uint32_t high = __shfl_xor_sync(FULL_WARP, (uint32_t)(best >> 32), d);
        uint32_t low = __shfl_xor_sync(FULL_WARP, (uint32_t)best, d);
        best = choice_max(best, (uint64_t)high << 32 | low);
    }
    if (threadIdx.x == 0) {
        int32_t id = ~(int32_t)(uint32_t)best, place = a.head->sampled_out * a.max_seqs + r.seq;
        a.sampled[place] = id;
        a.count[row] = 0;
        if (a.host) {
            a.host[place] = id;
            a.host[2 * a.max_seqs + r.seq] = __ldcg(&a.bad.bad[r.seq]);
        }
    }
}

extern "C" cudaError_t cuda_argmax(const CudaLaunch *l, const CudaArgmax *a) {
    return start(l, argmax_kernel, dim3(CUDA_ARGMAX_BLOCKS, (unsigned)a->m), 256, 0, *a);
}

TRACE_BIND(elem)
