// SPDX-License-Identifier: Apache-2.0
/* cuda_recur.cu - gated delta net: one token with the state in registers; prefill in chunks of 64
 * tokens (the WY form), all chunks at once where they do not depend on each other, then chunk by
 * chunk with a slice of the state in registers.
 *
 * Path:     started by cuda_step.c between the projections and the output projection.
 * Owns:     nothing.  Thread: engine.
 * Precision: state, decays and all sums f32. Products of the chunked form run on the matrix units
 * with each operand as the sum of two tf32 numbers (three products, error about 2^-21).
 * Source: model specification, sections 4.2 and 5. */
#include "backend/cuda/cuda_device.cuh"

enum { HEAD = 128, CHUNK = 64, STATE = HEAD * HEAD };

FN float *slot_state(const CudaGdn &g, int32_t slot, int32_t head) {
    return reinterpret_cast<float *>(reinterpret_cast<char *>(g.state) + slot * g.slot_stride) +
           (int64_t)head * STATE;
}
FN uint16_t *slot_ring(const CudaGdn &g, int32_t slot) {
    return reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(g.ring) + slot * g.slot_stride);
}
FN int32_t conv_dim(const CudaGdn &g) { return (2 * g.hk + g.hv) * HEAD; }

/* Channel c of head hv's 384: q, k, v. */
FN int32_t head_channel(const CudaGdn &g, int32_t hv, int32_t c) {
    int32_t key = hv / (g.hv / g.hk);
    if (c < HEAD)
        return key * HEAD + c;
    if (c < 2 * HEAD)
        return (g.hk + key) * HEAD + c - HEAD;
    return (2 * g.hk + hv) * HEAD + c - 2 * HEAD;
}

FN float conv_sum(float4 tap, float x0, float x1, float x2, float x3) {
    float sum = tap.x * x0;
    sum = fmaf(tap.y, x1, sum);
    sum = fmaf(tap.z, x2, sum);
    return silu(fmaf(tap.w, x3, sum));
}

FN float log_decay(const CudaGdn &g, int32_t hv, float a) {
    return -expf(g.a_log[hv]) * softplus(a + g.dt_bias[hv]);
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

/* ---- prefill: convolution, unit vectors, gates ---- */

/* Four channels behind the convolution, of row `row` which is row `in_seq` of its sequence. */
FN float4 conv_four(const CudaGdnPrefill &a, const CudaRow &r, int32_t row, int32_t channel) {
    int32_t cc = conv_dim(a.g);
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t back = 3 - i, pos = r.pos - back;
        uint2 raw = make_uint2(0, 0);
        if (r.in_seq >= back)
            raw = *reinterpret_cast<const uint2 *>(a.proj + (int64_t)(row - back) * a.ld + channel);
        else if (pos >= 0)
            raw = *reinterpret_cast<const uint2 *>(slot_ring(a.g, r.slot) + pos % 4 * cc + channel);
        x[i] = make_float4(bf16_low(raw.x), bf16_high(raw.x), bf16_low(raw.y), bf16_high(raw.y));
    }
    const float4 *tap = reinterpret_cast<const float4 *>(a.g.conv) + channel;
    return make_float4(conv_sum(tap[0], x[0].x, x[1].x, x[2].x, x[3].x),
                       conv_sum(tap[1], x[0].y, x[1].y, x[2].y, x[3].y),
                       conv_sum(tap[2], x[0].z, x[1].z, x[2].z, x[3].z),
                       conv_sum(tap[3], x[0].w, x[1].w, x[2].w, x[3].w));
}

/* Block (8 heads of channels, row): a warp makes 128 channels; the first blocks the gates too. */
__global__ void conv_kernel(CudaGdnPrefill a) {
    chain_wait();
    chain_next();
    int lane = (int)threadIdx.x % 32;
    int32_t row = (int32_t)blockIdx.y, cc = conv_dim(a.g);
    int32_t head = (int32_t)(blockIdx.x * 8 + threadIdx.x / 32);
    CudaRow r = a.rows[row];
    if (blockIdx.x == 0)
        for (int32_t h = (int32_t)threadIdx.x; h < a.g.hv; h += 256) {
            const uint16_t *p = a.proj + (int64_t)row * a.ld + cc + a.g.hv * HEAD;
            float *gate = a.gate + ((int64_t)row * a.g.hv + h) * 2;
            gate[0] = log_decay(a.g, h, bf16_value(p[a.g.hv + h]));
            gate[1] = sigmoid(bf16_value(p[h]));
        }
    if (head >= 2 * a.g.hk + a.g.hv)
        return;
    float4 v = conv_four(a, r, row, head * HEAD + 4 * lane);
    float *out = a.v + (int64_t)row * a.g.hv * HEAD + (head - 2 * a.g.hk) * HEAD;
    if (head < 2 * a.g.hk) {
        float squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
        float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
        if (head < a.g.hk)
            scale *= 0.08838834764831845f; // 128^-0.5
        v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
        out = (head < a.g.hk ? a.q : a.k) + (int64_t)row * a.g.hk * HEAD + head % a.g.hk * HEAD;
    }
    reinterpret_cast<float4 *>(out)[lane] = v;
}

/* Rows before position `end` into a ring. */
FN void ring_store(const CudaGdnPrefill &a, const CudaSeq &q, int32_t slot, int32_t end,
                   int32_t channel) {
    int32_t cc = conv_dim(a.g), first = end - 3 > q.pos0 ? end - 3 : q.pos0;
    for (int32_t pos = first; pos < end; pos++)
        slot_ring(a.g, slot)[pos % 4 * cc + channel] =
            a.proj[(int64_t)(q.row0 + pos - q.pos0) * a.ld + channel];
}

/* The last rows of each sequence into its ring, those before a snapshot into that slot's; after all
 * rows have read the old ones. */
__global__ void ring_kernel(CudaGdnPrefill a) {
    chain_wait();
    chain_next();
    int32_t cc = conv_dim(a.g), channel = (int32_t)(blockIdx.x * 256 + threadIdx.x);
    CudaSeq q = a.seqs[blockIdx.y];
    if (channel >= cc)
        return;
    ring_store(a, q, q.slot, q.pos0 + q.n_rows, channel);
    for (int32_t i = 0; i < q.n_snaps; i++) {
        CudaSnap snap = a.snaps[q.snap0 + i];
        ring_store(a, q, snap.slot, snap.pos, channel);
    }
}

/* ---- prefill: products on the matrix units ---- */

/* x as two tf32 numbers. */
FN void split_tf32(float x, uint32_t &high, uint32_t &low) {
    high = to_tf32(x);
    low = to_tf32(x - bits_f32(high));
}

struct OperandA {
    uint32_t high[4], low[4];
};
struct OperandB {
    uint32_t high[2], low[2];
};
FN OperandA operand_a(float x0, float x1, float x2, float x3) {
    OperandA a;
    split_tf32(x0, a.high[0], a.low[0]);
    split_tf32(x1, a.high[1], a.low[1]);
    split_tf32(x2, a.high[2], a.low[2]);
    split_tf32(x3, a.high[3], a.low[3]);
    return a;
}
FN OperandB operand_b(float x0, float x1) {
    OperandB b;
    split_tf32(x0, b.high[0], b.low[0]);
    split_tf32(x1, b.high[1], b.low[1]);
    return b;
}
/* Small parts first. */
FN void multiply(float c[4], const OperandA &a, const OperandB &b) {
    mma_tf32(c, a.low, b.high);
    mma_tf32(c, a.high, b.low);
    mma_tf32(c, a.high, b.high);
}

enum { WIDE = HEAD + 4, NARROW = CHUNK + 4 }; // row strides in shared memory: banks differ

struct ChunkShared {
    float k[CHUNK][WIDE];
    float x[CHUNK][WIDE];   // q, then v
    float a[CHUNK][NARROW]; // A, then T
    float sum[CHUNK], beta[CHUNK];
};

/* Rows of a chunk into shared memory, zeros behind the last. */
FN void chunk_load(float (*to)[WIDE], const float *from, int64_t ld, int32_t n) {
    for (int at = (int)threadIdx.x; at < CHUNK * 32; at += 256) {
        int row = at / 32, four = at % 32;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < n)
            v = reinterpret_cast<const float4 *>(from + row * ld)[four];
        *reinterpret_cast<float4 *>(&to[row][4 * four]) = v;
    }
}

/* Running sums of the log decay by the first warp: two rows a lane. */
FN void chunk_gates(ChunkShared &s, const float *gate, int32_t hv, int32_t n) {
    int lane = (int)threadIdx.x;
    if (lane >= 32)
        return;
    float g[2], running;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = 2 * lane + i;
        g[i] = row < n ? gate[(int64_t)row * hv * 2] : 0.0f;
        s.beta[row] = row < n ? gate[(int64_t)row * hv * 2 + 1] : 0.0f;
    }
    running = g[0] + g[1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        float other = __shfl_up_sync(FULL_WARP, running, d);
        running += lane >= d ? other : 0.0f;
    }
    s.sum[2 * lane] = running - g[1];
    s.sum[2 * lane + 1] = running;
}

/* One 16 x 8 tile of X K^T: rows m0.., columns n0... */
FN void chunk_dot(float c[4], float (*x)[WIDE], float (*k)[WIDE], int m0, int n0, int lane) {
    int g = lane / 4, j = lane % 4;
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    for (int i = 0; i < HEAD; i += 8) {
        OperandA a = operand_a(x[m0 + g][i + j], x[m0 + g + 8][i + j], x[m0 + g][i + j + 4],
                               x[m0 + g + 8][i + j + 4]);
        OperandB b = operand_b(k[n0 + g][i + j], k[n0 + g][i + j + 4]);
        multiply(c, a, b);
    }
}

/* P = decayed q k^T (with its diagonal) to device memory, A = beta decayed k k^T (without). The
 * exponent is a difference and only taken where it is not positive. */
FN void chunk_products(ChunkShared &s, float *p, int warp, int lane) {
    int m0 = warp / 2 * 16;
    for (int n0 = warp % 2 * 32; n0 < warp % 2 * 32 + 32; n0 += 8) {
        float qk[4] = {0.0f, 0.0f, 0.0f, 0.0f}, kk[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (n0 <= m0 + 15) {
            chunk_dot(qk, s.x, s.k, m0, n0, lane);
            chunk_dot(kk, s.k, s.k, m0, n0, lane);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = m0 + lane / 4 + i / 2 * 8, col = n0 + lane % 4 * 2 + i % 2;
            float decay = col <= row ? expf(s.sum[row] - s.sum[col]) : 0.0f;
            p[row * CHUNK + col] = decay * qk[i];
            s.a[row][col] = col < row ? s.beta[row] * decay * kk[i] : 0.0f;
        }
    }
}

/* T = (I + A)^-1 in the place of A: diagonal blocks of 16 by substitution, then block row by block
 * row. Powers of A (which would be quicker) explode when keys are alike. */
FN void chunk_invert(ChunkShared &s) {
    int t = (int)threadIdx.x, row = t / 16, col = t % 16;
    float column[16];
    if (t < CHUNK) { // column `col` of diagonal block `row`
        int at = row * 16;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float v = i == col ? 1.0f : 0.0f;
#pragma unroll
            for (int l = 0; l < i; l++)
                v = fmaf(-s.a[at + i][at + l], column[l], v);
            column[i] = i < col ? 0.0f : v;
        }
    }
    __syncthreads();
    if (t < CHUNK)
#pragma unroll
        for (int i = 0; i < 16; i++)
            s.a[row * 16 + i][row * 16 + col] = column[i];
    __syncthreads();
#pragma unroll
    for (int r = 1; r < 4; r++) {
        float v[3];
#pragma unroll
        for (int c = 0; c < r; c++) { // sum of A_rl T_lc, l from c to r - 1
            v[c] = 0.0f;
            for (int l = c * 16; l < r * 16; l++)
                v[c] = fmaf(s.a[r * 16 + row][l], s.a[l][c * 16 + col], v[c]);
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < r; c++)
            s.a[r * 16 + row][c * 16 + col] = v[c];
        __syncthreads();
#pragma unroll
        for (int c = 0; c < r; c++) { // times -T_rr
            v[c] = 0.0f;
            for (int l = 0; l < 16; l++)
                v[c] = fmaf(-s.a[r * 16 + row][r * 16 + l], s.a[r * 16 + l][c * 16 + col], v[c]);
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < r; c++)
            s.a[r * 16 + row][c * 16 + col] = v[c];
        __syncthreads();
    }
}

/* out = T diag(f) X, f = beta or beta e^G; 64 x 128. */
template <bool DECAYED>
FN void chunk_solve(ChunkShared &s, float (*x)[WIDE], float *out, int warp, int lane) {
    int m0 = warp / 2 * 16, g = lane / 4, j = lane % 4;
    for (int n0 = warp % 2 * 64; n0 < warp % 2 * 64 + 64; n0 += 8) {
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int i = 0; i < m0 + 16; i += 8) { // T is lower triangular
            OperandA a = operand_a(s.a[m0 + g][i + j], s.a[m0 + g + 8][i + j],
                                   s.a[m0 + g][i + j + 4], s.a[m0 + g + 8][i + j + 4]);
            float f0 = s.beta[i + j], f1 = s.beta[i + j + 4];
            if (DECAYED) {
                f0 *= expf(s.sum[i + j]);
                f1 *= expf(s.sum[i + j + 4]);
            }
            OperandB b = operand_b(f0 * x[i + j][n0 + g], f1 * x[i + j + 4][n0 + g]);
            multiply(c, a, b);
        }
        float *to = out + (m0 + g) * HEAD + n0 + 2 * j;
        *reinterpret_cast<float2 *>(to) = make_float2(c[0], c[1]);
        *reinterpret_cast<float2 *>(to + 8 * HEAD) = make_float2(c[2], c[3]);
    }
}

/* Block (chunk, value head): what does not depend on the state. */
__global__ void __launch_bounds__(256) chunk_kernel(CudaGdnPrefill a) {
    DYN_SHARED(ChunkShared, shared);
    ChunkShared &s = *shared;
    chain_wait();
    chain_next();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int32_t hv = (int32_t)blockIdx.y, hk = hv / (a.g.hv / a.g.hk);
    CudaChunk c = a.chunks[blockIdx.x];
    int64_t kd = a.g.hk * HEAD, vd = a.g.hv * HEAD;
    int64_t at = (int64_t)blockIdx.x * a.g.hv + hv, key = c.row0 * kd + hk * HEAD;
    chunk_load(s.k, a.k + key, kd, c.n_rows);
    chunk_load(s.x, a.q + key, kd, c.n_rows);
    chunk_gates(s, a.gate + ((int64_t)c.row0 * a.g.hv + hv) * 2, a.g.hv, c.n_rows);
    __syncthreads();
    if (threadIdx.x < CHUNK)
        a.sum[at * CHUNK + threadIdx.x] = s.sum[threadIdx.x];
    chunk_products(s, a.p + at * CHUNK * CHUNK, warp, lane);
    __syncthreads();
    chunk_load(s.x, a.v + c.row0 * vd + hv * HEAD, vd, c.n_rows);
    chunk_invert(s);
    chunk_solve<false>(s, s.x, a.u + at * CHUNK * HEAD, warp, lane);
    chunk_solve<true>(s, s.k, a.w + at * CHUNK * HEAD, warp, lane);
}

/* ---- prefill: chunk by chunk ---- */

enum { SLICE = 32, SLICE_STRIDE = SLICE + 2 }; // columns of the state that a block holds

struct PassShared {
    float state[HEAD][SLICE_STRIDE]; // copy of the state, the B operand
    float d[CHUNK][SLICE_STRIDE];
};

/* acc += rows m0.. of x [64, K] (row stride ld) times b [K, 32]. A lane reads four neighbours at
 * once, so inputs 16 i + 4 j + q go to places j and j + 4 of two instructions. */
template <int K>
FN void pass_multiply(float (&acc)[4][4], const float *x, int64_t ld, int32_t n,
                      float (*b)[SLICE_STRIDE], int m0, int lane) {
    int g = lane / 4, j = lane % 4;
    float4 top[K / 16], bottom[K / 16];
#pragma unroll
    for (int i = 0; i < K / 16; i++) {
        top[i] = bottom[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (m0 + g < n)
            top[i] = *reinterpret_cast<const float4 *>(x + (m0 + g) * ld + 16 * i + 4 * j);
        if (m0 + g + 8 < n)
            bottom[i] = *reinterpret_cast<const float4 *>(x + (m0 + g + 8) * ld + 16 * i + 4 * j);
    }
#pragma unroll
    for (int i = 0; i < K / 16; i++) {
        OperandA a0 = operand_a(top[i].x, bottom[i].x, top[i].y, bottom[i].y);
        OperandA a1 = operand_a(top[i].z, bottom[i].z, top[i].w, bottom[i].w);
        int k = 16 * i + 4 * j;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int col = 8 * c + g;
            multiply(acc[c], a0, operand_b(b[k][col], b[k + 1][col]));
            multiply(acc[c], a1, operand_b(b[k + 2][col], b[k + 3][col]));
        }
    }
}

/* state = e^{G_C} state + (diag(e^{G_C - G}) K)^T D for the warp's 16 rows of the state. */
FN void pass_update(float (&m)[4][4], const float *k, int64_t kd, int32_t n, const float *sum,
                    float (*d)[SLICE_STRIDE], int i0, int lane) {
    int g = lane / 4, j = lane % 4;
    float last = sum[CHUNK - 1], decay = expf(last);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            m[c][i] *= decay;
#pragma unroll
    for (int t0 = 0; t0 < CHUNK; t0 += 8) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 2; i++) { // rows t0 + j and t0 + j + 4
            int t = t0 + j + 4 * i;
            bool is_there = t < n;
            float f = is_there ? expf(last - sum[t]) : 0.0f;
            x[2 * i] = is_there ? f * k[t * kd + i0 + g] : 0.0f;
            x[2 * i + 1] = is_there ? f * k[t * kd + i0 + g + 8] : 0.0f;
        }
        OperandA a = operand_a(x[0], x[1], x[2], x[3]);
#pragma unroll
        for (int c = 0; c < 4; c++)
            multiply(m[c], a, operand_b(d[t0 + j][8 * c + g], d[t0 + j + 4][8 * c + g]));
    }
}

FN void pass_state_store(PassShared &s, const float (&m)[4][4], int i0, int lane) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int row = i0 + lane / 4, col = 8 * c + lane % 4 * 2;
        *reinterpret_cast<float2 *>(&s.state[row][col]) = make_float2(m[c][0], m[c][1]);
        *reinterpret_cast<float2 *>(&s.state[row + 8][col]) = make_float2(m[c][2], m[c][3]);
    }
}

/* The warp's 16 rows of the slice to a slot. */
FN void pass_state_save(const CudaGdnPrefill &a, int32_t slot, int32_t hv, int32_t col0,
                        const float (&m)[4][4], int i0, int lane) {
    float *state = slot_state(a.g, slot, hv) + col0;
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            int row = i0 + lane / 4 + i / 2 * 8, col = 8 * c + lane % 4 * 2;
            *reinterpret_cast<float2 *>(state + row * HEAD + col) =
                make_float2(m[c][i], m[c][i + 1]);
        }
}

/* Block (slice, value head, sequence): warps 0-3 make D = U - W S, warps 4-7 O = e^G Q S + P D;
 * every warp keeps 16 rows of the slice. */
__global__ void __launch_bounds__(256) pass_kernel(CudaGdnPrefill a) {
    __shared__ __align__(16) PassShared s;
    chain_wait();
    chain_next();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, j = lane % 4;
    int32_t col0 = (int32_t)blockIdx.x * SLICE, hv = (int32_t)blockIdx.y;
    int32_t hk = hv / (a.g.hv / a.g.hk), i0 = 16 * warp, m0 = 16 * (warp % 4);
    int64_t kd = a.g.hk * HEAD, vd = a.g.hv * HEAD;
    CudaSeq seq = a.seqs[blockIdx.z];
    float *state = slot_state(a.g, seq.slot, hv) + col0;
    float m[4][4];
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            m[c][i] = seq.pos0 ? state[(i0 + g + i / 2 * 8) * HEAD + 8 * c + 2 * j + i % 2] : 0.0f;
    pass_state_store(s, m, i0, lane);
    __syncthreads();
    int32_t snap = 0;
    for (int32_t n = 0; n < seq.n_chunks; n++) {
        CudaChunk chunk = a.chunks[seq.chunk0 + n];
        int64_t at = (int64_t)(seq.chunk0 + n) * a.g.hv + hv;
        int64_t key = chunk.row0 * kd + hk * HEAD;
        const float *sum = a.sum + at * CHUNK;
        float acc[4][4] = {};
        if (warp < 4)
            pass_multiply<HEAD>(acc, a.w + at * CHUNK * HEAD, HEAD, CHUNK, s.state, m0, lane);
        else
            pass_multiply<HEAD>(acc, a.q + key, kd, chunk.n_rows, s.state, m0, lane);
        if (warp < 4) {
            const float *u = a.u + at * CHUNK * HEAD + col0;
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = m0 + g + i / 2 * 8, col = 8 * c + 2 * j + i % 2;
                    s.d[row][col] = u[row * HEAD + col] - acc[c][i];
                }
        }
        __syncthreads();
        if (warp >= 4) {
            float e0 = expf(sum[m0 + g]), e1 = expf(sum[m0 + g + 8]);
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[c][i] *= i < 2 ? e0 : e1;
            pass_multiply<CHUNK>(acc, a.p + at * CHUNK * CHUNK, CHUNK, CHUNK, s.d, m0, lane);
            float *out = a.delta + (int64_t)chunk.row0 * vd + hv * HEAD + col0;
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    int row = m0 + g + i / 2 * 8;
                    if (row < chunk.n_rows)
                        *reinterpret_cast<float2 *>(out + row * vd + 8 * c + 2 * j) =
                            make_float2(acc[c][i], acc[c][i + 1]);
                }
        }
        pass_update(m, a.k + key, kd, chunk.n_rows, sum, s.d, i0, lane);
        pass_state_store(s, m, i0, lane);
        if (snap < seq.n_snaps && a.snaps[seq.snap0 + snap].pos == seq.pos0 + (n + 1) * CHUNK) {
            pass_state_save(a, a.snaps[seq.snap0 + snap].slot, hv, col0, m, i0, lane);
            snap++;
        }
        __syncthreads();
    }
    pass_state_save(a, seq.slot, hv, col0, m, i0, lane);
}

/* Block (8 heads, row): gated norm, a warp a head. */
__global__ void gated_kernel(CudaGdnPrefill a) {
    chain_wait();
    chain_next();
    int lane = (int)threadIdx.x % 32;
    int32_t row = (int32_t)blockIdx.y, head = (int32_t)(blockIdx.x * 8 + threadIdx.x / 32);
    if (head >= a.g.hv)
        return;
    int64_t at = ((int64_t)row * a.g.hv + head) * HEAD;
    float4 o = reinterpret_cast<const float4 *>(a.delta + at)[lane];
    float4 gain = reinterpret_cast<const float4 *>(a.g.norm)[lane];
    uint2 z = *reinterpret_cast<const uint2 *>(a.proj + (int64_t)row * a.ld + conv_dim(a.g) +
                                               head * HEAD + 4 * lane);
    float squares = fmaf(o.x, o.x, fmaf(o.y, o.y, fmaf(o.z, o.z, o.w * o.w)));
    float factor = 1.0f / sqrtf(warp_sum(squares) / HEAD + a.g.eps);
    uint2 out;
    out.x = pack_bf16(o.x * factor * gain.x * silu(bf16_low(z.x)),
                      o.y * factor * gain.y * silu(bf16_high(z.x)));
    out.y = pack_bf16(o.z * factor * gain.z * silu(bf16_low(z.y)),
                      o.w * factor * gain.w * silu(bf16_high(z.y)));
    reinterpret_cast<uint2 *>(a.out + at)[lane] = out;
}

extern "C" cudaError_t cuda_gdn_prefill(const CudaLaunch *l, const CudaGdnPrefill *a) {
    unsigned heads = (unsigned)(2 * a->g.hk + a->g.hv), hv = (unsigned)a->g.hv;
    unsigned rows = (unsigned)a->m, seqs = (unsigned)a->n_seqs;
    CUDA_TRY(start(l, conv_kernel, dim3((heads + 7) / 8, rows), 256, 0, *a));
    CUDA_TRY(start(l, ring_kernel, dim3((heads + 1) / 2, seqs), 256, 0, *a));
    CUDA_TRY(start(l, chunk_kernel, dim3((unsigned)a->n_chunks, hv), 256, sizeof(ChunkShared), *a));
    CUDA_TRY(start(l, pass_kernel, dim3(HEAD / SLICE, hv, seqs), 256, 0, *a));
    return start(l, gated_kernel, dim3((hv + 7) / 8, rows), 256, 0, *a);
}

cudaError_t cuda_recur_init() { return allow_shared(chunk_kernel, sizeof(ChunkShared)); }
