// SPDX-License-Identifier: Apache-2.0
/* cuda_recur.cu - gated delta net, one token: convolution, gates, the rule with the state in
 * registers, gated norm.
 *
 * Path:     started by cuda_step.c between the projections and the output projection.
 * Owns:     nothing.  Thread: engine.
 * Precision: state, decays and all sums f32.
 * Not here: prefill (cuda_delta.cu).
 * Source: model specification, section 4.2. */
#include "backend/cuda/cuda_gdn.cuh"

/* Channel c of head hv's 384: q, k, v. */
FN int32_t head_channel(const CudaGdn &g, int32_t hv, int32_t c) {
    int32_t key = hv / (g.hv / g.hk);
    if (c < HEAD)
        return key * HEAD + c;
    if (c < 2 * HEAD)
        return (g.hk + key) * HEAD + c - HEAD;
    return (2 * g.hk + hv) * HEAD + c - 2 * HEAD;
}

/* ---- one token ---- */

struct DecodeShared {
    float part[16][HEAD];
    float channel[3 * HEAD]; // q, k, v behind the convolution
    float squares[12];
    float d[HEAD], y[HEAD];
};

/* Sums a column over the 16 warps: p of thread t < 128 is column t. */
FN float decode_reduce(DecodeShared &s, float4 mine, int warp, int lane) {
    *reinterpret_cast<float4 *>(&s.part[warp][4 * lane]) = mine;
    __syncthreads();
    float sum = 0.0f;
    if (threadIdx.x < HEAD)
        for (int w = 0; w < 16; w++)
            sum += s.part[w][threadIdx.x];
    return sum;
}

/* o: a thread's share of the row, threads below 128. Gated norm, then digits by the first warp. */
FN void decode_finish(const CudaGdnDecode &a, DecodeShared &s, float o, float z, int32_t hv,
                      int32_t row) {
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    float squares = warp_sum(o * o);
    if (lane == 0 && warp < 4)
        s.squares[warp] = squares;
    __syncthreads();
    if (t < HEAD) {
        float mean = (s.squares[0] + s.squares[1] + s.squares[2] + s.squares[3]) / HEAD;
        s.y[t] = o * (1.0f / sqrtf(mean + a.g.eps)) * a.g.norm[t] * silu(z);
    }
    __syncthreads();
    if (warp)
        return;
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = 0.0f;
    if (lane < 8)
        group_load(v, s.y + lane / 4 * CUDA_GROUP, lane % 4);
    DigitLane d = digits_make(v);
    if (lane < 8) {
        int64_t at = ((int64_t)row * a.g.hv + hv) * 2 + lane / 4;
        digits_store(a.out.digit + at * 32, a.out.scale + at * 2, d, lane % 4);
    }
}

/* Block (value head, row): 16 warps, 8 key rows of the state each, 4 columns a lane. */
__global__ void __launch_bounds__(512) gdn_decode_kernel(CudaGdnDecode a) {
    __shared__ __align__(16) DecodeShared s;
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    int32_t hv = (int32_t)blockIdx.x, row = (int32_t)blockIdx.y, cc = conv_dim(a.g);
    CudaRow r = a.rows[row];
    float4 *state = reinterpret_cast<float4 *>(slot_state(a.g, r.slot, hv)) + lane;
    float4 m[8]; // state rows 8 * warp + i; asked for before the projections are there
#pragma unroll
    for (int i = 0; i < 8; i++)
        m[i] = r.pos ? state[(8 * warp + i) * 32] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int32_t channel = head_channel(a.g, hv, t < 384 ? t : 0);
    uint16_t *ring = slot_ring(a.g, r.slot) + channel;
    float4 tap = reinterpret_cast<const float4 *>(a.g.conv)[channel];
    float x0 = r.pos > 2 ? bf16_value(ring[(r.pos - 3) % 4 * cc]) : 0.0f;
    float x1 = r.pos > 1 ? bf16_value(ring[(r.pos - 2) % 4 * cc]) : 0.0f;
    float x2 = r.pos > 0 ? bf16_value(ring[(r.pos - 1) % 4 * cc]) : 0.0f;
    chain_wait();
    chain_next();
    const float *proj = a.proj + (int64_t)row * a.ld;
    int32_t vd = a.g.hv * HEAD;
    float beta = sigmoid(proj[cc + vd + hv]);
    float alpha = expf(log_decay(a.g, hv, proj[cc + vd + a.g.hv + hv]));
    float z = t < HEAD ? proj[cc + hv * HEAD + t] : 0.0f;
    if (t < 384) {
        uint32_t raw = pack_bf16(proj[channel], 0.0f) & 0xffffu;
        float value = conv_sum(tap, x0, x1, x2, bf16_value((uint16_t)raw));
        s.channel[t] = value;
        if (t >= 256 || hv % (a.g.hv / a.g.hk) == 0) // one block a key head keeps its rows
            ring[r.pos % 4 * cc] = (uint16_t)raw;
        float squares = warp_sum(value * value);
        if (lane == 0)
            s.squares[warp] = squares;
    }
    __syncthreads();
    float q_scale = 1.0f / sqrtf(s.squares[0] + s.squares[1] + s.squares[2] + s.squares[3] + 1e-6f);
    float k_scale = 1.0f / sqrtf(s.squares[4] + s.squares[5] + s.squares[6] + s.squares[7] + 1e-6f);
    q_scale *= 0.08838834764831845f; // 128^-0.5
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float k = s.channel[HEAD + 8 * warp + i] * k_scale;
        m[i] = make_float4(m[i].x * alpha, m[i].y * alpha, m[i].z * alpha, m[i].w * alpha);
        sum.x = fmaf(k, m[i].x, sum.x);
        sum.y = fmaf(k, m[i].y, sum.y);
        sum.z = fmaf(k, m[i].z, sum.z);
        sum.w = fmaf(k, m[i].w, sum.w);
    }
    float predicted = decode_reduce(s, sum, warp, lane);
    if (t < HEAD)
        s.d[t] = beta * (s.channel[2 * HEAD + t] - predicted);
    __syncthreads();
    float4 d = *reinterpret_cast<const float4 *>(&s.d[4 * lane]);
    sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float k = s.channel[HEAD + 8 * warp + i] * k_scale;
        float q = s.channel[8 * warp + i] * q_scale;
        m[i].x = fmaf(k, d.x, m[i].x);
        m[i].y = fmaf(k, d.y, m[i].y);
        m[i].z = fmaf(k, d.z, m[i].z);
        m[i].w = fmaf(k, d.w, m[i].w);
        state[(8 * warp + i) * 32] = m[i];
        sum.x = fmaf(q, m[i].x, sum.x);
        sum.y = fmaf(q, m[i].y, sum.y);
        sum.z = fmaf(q, m[i].z, sum.z);
        sum.w = fmaf(q, m[i].w, sum.w);
    }
    float o = decode_reduce(s, sum, warp, lane);
    decode_finish(a, s, o, z, hv, row);
}

extern "C" cudaError_t cuda_gdn_decode(const CudaLaunch *l, const CudaGdnDecode *a) {
    return start(l, gdn_decode_kernel, dim3((unsigned)a->g.hv, (unsigned)a->m), 512, 0, *a);
}

TRACE_BIND(recur)
