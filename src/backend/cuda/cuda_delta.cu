// SPDX-License-Identifier: Apache-2.0
/* cuda_delta.cu - gated delta net, prefill, in chunks of 64 tokens: what does
 * not depend on the state for all chunks at once, then chunk by chunk with a
 * slice of the state in registers.
 *
 * With K, Q, V the rows of a chunk, G the running sums of the log decay, S the
 * state before it: A  = beta e^{Gi - Gj} k k^T below the diagonal,  T = (I +
 * A)^-1 P  = e^{Gi - Gj} q k^T up to the diagonal D  = T (beta V - beta e^G K
 * S) O  = e^G Q S + P D S' = e^{G64} S + K^T (e^{G64 - G} D) chunk_kernel makes
 * K, Q, V, T, P and the factors; pass_kernel the last three lines. A warp of it
 * has 16 columns of S, transposed: S^T is then the left operand of K S and Q S,
 * and D^T, whose sums end in registers, that of P D and of the update, so no
 * number but these passes from warp to warp.
 *
 * Path:     started by cuda_step.c between the projections and the output
 * projection. Owns:     nothing.  Thread: engine. Precision: state, decays and
 * all sums f32. An operand on the matrix units is the sum of two bf16 numbers
 * (three products, error about 2^-16); of the inverse, of two tf32 numbers.
 * Source: model specification, sections 4.2 and 5. */
#include "backend/cuda/cuda_gdn.cuh"

enum {
    CHUNK = 64,
    MATRIX = 64,                  // numbers of an 8 x 8 matrix, 128 bytes
    TILE = HEAD * CHUNK,          // numbers of K or Q: matrices [8 of 8 tokens, 16 of 8 dims]
    TRIANGLE = 10 * 4 * MATRIX,   // of T or P: tiles of 16 x 16 on and below the diagonal
    KEY_BYTES = 4 * TILE * 2,     // of a chunk and key head: K high, K low, Q high, Q low
    TRIANGLE_BYTES = TRIANGLE * 2 // of one half
};
static_assert((int)KEY_BYTES == (int)CUDA_DELTA_KEYS, "layout");
static_assert(4 * TRIANGLE_BYTES + 4 * CHUNK * 4 == (int)CUDA_DELTA_MIX, "layout");

/* Byte of row `row` of the matrix at 8-token group `token8`, 8-dim group
 * `dim8`. Rows are exchanged inside a matrix so that a warp that stores one
 * token's dims meets different banks. */
FN int key_at(int token8, int dim8, int row) {
    return (token8 * 16 + dim8) * 128 + (row ^ (dim8 & 7)) * 16;
}
/* Tile of out tokens 16 r.. and source tokens 16 c.., and the r of a tile. */
FN int triangle_tile(int r, int c) { return r * (r + 1) / 2 + c; }
FN int triangle_row(int tile) { return tile < 1 ? 0 : tile < 3 ? 1 : tile < 6 ? 2 : 3; }

/* Two numbers as two bf16 pairs. */
FN void split_pair(float x, float y, uint32_t &high, uint32_t &low) {
    high = pack_bf16(x, y);
    low = pack_bf16(x - bf16_low(high), y - bf16_high(high));
}

/* ---- convolution ---- */

/* Rows t0 .. t0 + 3 of a chunk, four channels a lane, behind the convolution;
 * zeros behind the chunk's last row. `first` is the chunk's first row. */
FN void conv_rows(float4 (&out)[4], const CudaGdnPrefill &a, const CudaChunk &c,
                  const CudaRow &first, int t0, int32_t channel) {
    int32_t cc = conv_dim(a.g);
    uint2 raw[7];
#pragma unroll
    for (int i = 0; i < 7; i++) {
        int t = t0 + i - 3, pos = first.pos + t;
        raw[i] = make_uint2(0, 0);
        if (t >= c.n_rows)
            continue;
        if (first.in_seq + t >= 0)
            raw[i] =
                *reinterpret_cast<const uint2 *>(a.proj + (int64_t)(c.row0 + t) * a.ld + channel);
        else if (pos >= 0)
            raw[i] = *reinterpret_cast<const uint2 *>(slot_ring(a.g, first.slot) + pos % 4 * cc +
                                                      channel);
    }
    const float4 *from = reinterpret_cast<const float4 *>(a.g.conv) + channel;
    float4 tap[4] = {from[0], from[1], from[2], from[3]};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (t0 + i >= c.n_rows)
            continue;
        const uint2 *x = raw + i;
        out[i] = make_float4(conv_sum(tap[0], bf16_low(x[0].x), bf16_low(x[1].x), bf16_low(x[2].x),
                                      bf16_low(x[3].x)),
                             conv_sum(tap[1], bf16_high(x[0].x), bf16_high(x[1].x),
                                      bf16_high(x[2].x), bf16_high(x[3].x)),
                             conv_sum(tap[2], bf16_low(x[0].y), bf16_low(x[1].y), bf16_low(x[2].y),
                                      bf16_low(x[3].y)),
                             conv_sum(tap[3], bf16_high(x[0].y), bf16_high(x[1].y),
                                      bf16_high(x[2].y), bf16_high(x[3].y)));
    }
}

/* Rows before position `end` into a ring. */
FN void ring_store(const CudaGdnPrefill &a, const CudaSeq &q, int32_t slot, int32_t end,
                   int32_t channel) {
    int32_t cc = conv_dim(a.g), first = end - 3 > q.pos0 ? end - 3 : q.pos0;
    for (int32_t pos = first; pos < end; pos++)
        slot_ring(a.g, slot)[pos % 4 * cc + channel] =
            a.proj[(int64_t)(q.row0 + pos - q.pos0) * a.ld + channel];
}

/* ---- all chunks at once ---- */

enum { NARROW = CHUNK + 4 }; // row stride of A: banks differ

struct ChunkShared {
    uint16_t key[2 * TILE]; // high, low
    union {
        uint16_t query[2 * TILE];
        float a[2][CHUNK][NARROW]; // of two value heads: A, then the inverse of its
                                   // diagonal blocks
    };
    float sum[2][CHUNK], beta[2][CHUNK];
};

/* The warp's eight rows of q or k as unit vectors times `scale`. */
FN void chunk_unit_rows(const CudaGdnPrefill &a, const CudaChunk &c, const CudaRow &first,
                        uint16_t *to, int32_t channel, float scale, int warp, int lane) {
#pragma unroll 1
    for (int t0 = 0; t0 < 8; t0 += 4) {
        float4 v[4];
        conv_rows(v, a, c, first, 8 * warp + t0, channel + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float squares =
                fmaf(v[i].x, v[i].x, fmaf(v[i].y, v[i].y, fmaf(v[i].z, v[i].z, v[i].w * v[i].w)));
            float f = scale / sqrtf(warp_sum(squares) + 1e-6f);
            uint2 high, low;
            split_pair(v[i].x * f, v[i].y * f, high.x, low.x);
            split_pair(v[i].z * f, v[i].w * f, high.y, low.y);
            char *at = reinterpret_cast<char *>(to) + key_at(warp, lane / 2, t0 + i) + lane % 2 * 8;
            *reinterpret_cast<uint2 *>(at) = high;
            *reinterpret_cast<uint2 *>(at + TILE * 2) = low;
        }
    }
}

/* The warp's eight rows of v of a value head. */
FN void chunk_value_rows(const CudaGdnPrefill &a, const CudaChunk &c, const CudaRow &first,
                         int32_t hv, int warp, int lane) {
    float *to = a.v + (((int64_t)blockIdx.x * a.g.hv + hv) * CHUNK + 8 * warp) * HEAD;
#pragma unroll 1
    for (int t0 = 0; t0 < 8; t0 += 4) {
        float4 v[4];
        conv_rows(v, a, c, first, 8 * warp + t0, (2 * a.g.hk + hv) * HEAD + 4 * lane);
#pragma unroll
        for (int i = 0; i < 4; i++)
            reinterpret_cast<float4 *>(to + (t0 + i) * HEAD)[lane] = v[i];
    }
}

/* Step sizes and running sums of the log decay of one value head, by one warp:
 * two rows a lane. */
FN void chunk_gates(const CudaGdnPrefill &a, const CudaChunk &c, int32_t hv, float *sum,
                    float *beta, int lane) {
    const uint16_t *p = a.proj + (int64_t)c.row0 * a.ld + conv_dim(a.g) + a.g.hv * HEAD + hv;
    float g[2], running;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = 2 * lane + i;
        bool is_there = row < c.n_rows;
        const uint16_t *at = p + (int64_t)(is_there ? row : 0) * a.ld;
        g[i] = is_there ? log_decay(a.g, hv, bf16_value(at[a.g.hv])) : 0.0f;
        beta[row] = is_there ? sigmoid(bf16_value(at[0])) : 0.0f;
    }
    running = g[0] + g[1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        float other = __shfl_up_sync(FULL_WARP, running, d);
        running += lane >= d ? other : 0.0f;
    }
    sum[2 * lane] = running - g[1];
    sum[2 * lane + 1] = running;
}

/* c += three products of halves; small parts first. */
FN void multiply_half(float (&c)[2][4], const uint32_t a[4], const uint32_t b[4]) {
    mma_bf16(c[0], a, b[0], b[1]);
    mma_bf16(c[1], a, b[2], b[3]);
}

/* Tile (r, c) of q k^T and k k^T. */
FN void chunk_dots(float (&qk)[2][4], float (&kk)[2][4], ChunkShared &s, int r, int c, int lane) {
    int row = lane % 8, which = lane / 8;
    SharedAt key = shared_place(s.key), query = shared_place(s.query);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            qk[i][e] = kk[i][e] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < HEAD / 16; i++) {
        int left = key_at(2 * r + which % 2, 2 * i + which / 2, row);
        int right = key_at(2 * c + which / 2, 2 * i + which % 2, row);
        uint32_t qh[4], ql[4], kh[4], kl[4], bh[4], bl[4];
        load_matrix(qh, query + left);
        load_matrix(ql, query + left + TILE * 2);
        load_matrix(kh, key + left);
        load_matrix(kl, key + left + TILE * 2);
        load_matrix(bh, key + right);
        load_matrix(bl, key + right + TILE * 2);
        multiply_half(qk, ql, bh);
        multiply_half(kk, kl, bh);
        multiply_half(qk, qh, bl);
        multiply_half(kk, kh, bl);
        multiply_half(qk, qh, bh);
        multiply_half(kk, kh, bh);
    }
}

/* P of a tile to device memory, A of it to shared memory. The exponent is a
 * difference and only taken where it is not positive. */
FN void chunk_decays(ChunkShared &s, uint32_t *p, const float (&qk)[2][4], const float (&kk)[2][4],
                     int head, int r, int c, int lane) {
    const float *sum = s.sum[head], *beta = s.beta[head];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = 16 * r + lane / 4 + 8 * half, col = 16 * c + 8 * n + lane % 4 * 2;
            float x[2], y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float decay = col + e <= row ? expf(sum[row] - sum[col + e]) : 0.0f;
                x[e] = decay * qk[n][2 * half + e];
                y[e] = col + e < row ? beta[row] * decay * kk[n][2 * half + e] : 0.0f;
            }
            *reinterpret_cast<float2 *>(&s.a[head][row][col]) = make_float2(y[0], y[1]);
            uint32_t high, low;
            split_pair(x[0], x[1], high, low);
            int at = (triangle_tile(r, c) * 4 + 2 * half + n) * 32 + lane;
            p[at] = high;
            p[at + TRIANGLE / 2] = low;
        }
}

/* x as two tf32 numbers. */
FN void split_tf32(float x, uint32_t &high, uint32_t &low) {
    high = to_tf32(x);
    low = to_tf32(x - bits_f32(high));
}

/* c += x b^T for 16 x 16 matrices: x as sums stand in registers, b by row in
 * shared memory. Inputs 2 j and 2 j + 1 of eight go to places j and j + 4 of
 * the instruction. */
FN void multiply_block(float (&c)[2][4], const float (&x)[2][4], const float (*b)[NARROW], int col,
                       int lane) {
    int g = lane / 4, j = lane % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t high[4], low[4];
        split_tf32(x[k][0], high[0], low[0]);
        split_tf32(x[k][2], high[1], low[1]);
        split_tf32(x[k][1], high[2], low[2]);
        split_tf32(x[k][3], high[3], low[3]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float2 two = *reinterpret_cast<const float2 *>(&b[8 * n + g][col + 8 * k + 2 * j]);
            uint32_t bh[2], bl[2];
            split_tf32(two.x, bh[0], bl[0]);
            split_tf32(two.y, bh[1], bl[1]);
            mma_tf32(c[n], low, bh);
            mma_tf32(c[n], high, bl);
            mma_tf32(c[n], high, bh);
        }
    }
}

/* Inverse of diagonal block `block` of I + A in its place, by substitution: a
 * column a lane. Powers of A (which would be quicker) explode when keys are
 * alike. */
FN void invert_diagonal(float (*a)[NARROW], int block, int lane) {
    int at = block * 16, col = lane % 16;
    float column[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        column[i] = i == col ? 1.0f : 0.0f;
#pragma unroll
    for (int l = 0; l < 15; l++)
#pragma unroll
        for (int i = l + 1; i < 16; i++)
            column[i] = fmaf(-a[at + i][at + l], column[l], column[i]);
    __syncwarp();
    if (lane < 16)
#pragma unroll
        for (int i = 0; i < 16; i++)
            a[at + i][at + col] = column[i];
}

/* Block column c of T, transposed, from the inverses of the diagonal blocks:
 * T_rc = -T_rr sum of A_rl T_lc, l from c to r - 1. */
FN void invert_column(float (*a)[NARROW], uint32_t *t, int c, int lane) {
    int g = lane / 4, j = lane % 4;
    float x[4][2][4];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[0][n][i] = a[16 * c + 8 * n + 2 * j + i % 2][16 * c + g + i / 2 * 8];
#pragma unroll
    for (int step = 0; step < 4; step++) {
        int r = c + step;
        if (r > 3)
            break;
        if (step) {
            float sum[2][4] = {};
#pragma unroll
            for (int l = 0; l < step; l++)
                multiply_block(sum, x[l], a + 16 * r, 16 * (c + l), lane);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum[n][i] = -sum[n][i];
                    x[step][n][i] = 0.0f;
                }
            multiply_block(x[step], sum, a + 16 * r, 16 * r, lane);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t high, low;
                split_pair(x[step][n][2 * half], x[step][n][2 * half + 1], high, low);
                int at = (triangle_tile(r, c) * 4 + 2 * n + half) * 32 + lane;
                t[at] = high;
                t[at + TRIANGLE / 2] = low;
            }
    }
}

/* Factors of the rows of a value head: beta, beta e^G, e^{G64 - G}, e^G. */
FN void chunk_factors(const ChunkShared &s, float *to, int head, int row) {
    float sum = s.sum[head][row], beta = s.beta[head][row], e = expf(sum);
    to[row] = beta;
    to[CHUNK + row] = beta * e;
    to[2 * CHUNK + row] = expf(s.sum[head][CHUNK - 1] - sum);
    to[3 * CHUNK + row] = e;
}

/* Block (chunk, key head): what does not depend on the state, for the key
 * head's value heads two by two. IS_PAIR: there are no more than two. */
template <bool IS_PAIR>
__global__ void __launch_bounds__(256, IS_PAIR ? 3 : 1) chunk_kernel(CudaGdnPrefill a) {
    DYN_SHARED(ChunkShared, shared);
    ChunkShared &s = *shared;
    chain_wait();
    chain_next();
    int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    int32_t hk = (int32_t)blockIdx.y, ratio = a.g.hv / a.g.hk;
    CudaChunk c = a.chunks[blockIdx.x];
    CudaRow first = a.rows[c.row0];
    chunk_unit_rows(a, c, first, s.key, (a.g.hk + hk) * HEAD, 1.0f, warp, lane);
    chunk_unit_rows(a, c, first, s.query, hk * HEAD, 0.08838834764831845f, warp,
                    lane); // 128^-0.5
    for (int32_t h = 0; h < ratio; h++)
        chunk_value_rows(a, c, first, hk * ratio + h, warp, lane);
    __syncthreads();
    uint4 *keys = reinterpret_cast<uint4 *>(reinterpret_cast<char *>(a.keys) +
                                            ((int64_t)blockIdx.x * a.g.hk + hk) * KEY_BYTES);
    for (int i = t; i < KEY_BYTES / 32; i += 256) {
        keys[i] = reinterpret_cast<const uint4 *>(s.key)[i];
        keys[KEY_BYTES / 32 + i] = reinterpret_cast<const uint4 *>(s.query)[i];
    }
    float qk[2][2][4],
        kk[2][2][4]; // of up to two tiles: number `warp` and, of two warps, 8 more
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int tile = warp + 8 * i, r = triangle_row(tile);
        if (tile < 10)
            chunk_dots(qk[i], kk[i], s, r, tile - triangle_tile(r, 0), lane);
    }
    for (int32_t h0 = 0; h0 < (IS_PAIR ? 1 : ratio); h0 += 2) {
        int head = warp / 4; // of the pair, for the inverse
        int32_t n_heads = ratio - h0 < 2 ? 1 : 2, hv = hk * ratio + h0;
        char *mix =
            reinterpret_cast<char *>(a.mix) + ((int64_t)blockIdx.x * a.g.hv + hv) * CUDA_DELTA_MIX;
        if (warp < n_heads)
            chunk_gates(a, c, hv + warp, s.sum[warp], s.beta[warp], lane);
        __syncthreads(); // behind the last use of the queries and of the pair
                         // before
        for (int h = 0; h < n_heads; h++) {
            uint32_t *p =
                reinterpret_cast<uint32_t *>(mix + h * CUDA_DELTA_MIX + 2 * TRIANGLE_BYTES);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int tile = warp + 8 * i, r = triangle_row(tile);
                if (tile < 10)
                    chunk_decays(s, p, qk[i], kk[i], h, r, tile - triangle_tile(r, 0), lane);
            }
        }
        __syncthreads();
        if (head < n_heads)
            invert_diagonal(s.a[head], warp % 4, lane);
        __syncthreads();
        if (head < n_heads) {
            char *to = mix + head * CUDA_DELTA_MIX;
            invert_column(s.a[head], reinterpret_cast<uint32_t *>(to), warp % 4, lane);
            if (t % 128 < CHUNK)
                chunk_factors(s, reinterpret_cast<float *>(to + 4 * TRIANGLE_BYTES), head, t % 128);
        }
        __syncthreads();
    }
}

/* ---- chunk by chunk ---- */

/* What lies ready of one chunk: K and Q, then T, P and the factors. */
enum { STAGE_BYTES = KEY_BYTES + CUDA_DELTA_MIX };

/* Left operands of 16 columns, as lanes hold them: [steps of 16 inputs, high
 * and low, lane]. */
struct PairShared {
    uint4 state[8][2][32];
    uint4 late[4][2][32]; // D times e^{G64 - G}
};
/* D itself: where chunks overlap, of even and odd ones; where memory is short,
 * in the place of T.
 */
typedef uint4 Deltas[4][2][32];

struct Halves {
    uint32_t high[4], low[4];
};
FN Halves halves_load(const uint4 (&from)[2][32], int lane) {
    uint4 h = from[0][lane], l = from[1][lane];
    return {{h.x, h.y, h.z, h.w}, {l.x, l.y, l.z, l.w}};
}
/* Two neighbouring tiles of sums as the left operand of 16 inputs. */
FN Halves halves_make(const float (&x)[4], const float (&y)[4]) {
    Halves a;
    split_pair(x[0], x[1], a.high[0], a.low[0]);
    split_pair(x[2], x[3], a.high[1], a.low[1]);
    split_pair(y[0], y[1], a.high[2], a.low[2]);
    split_pair(y[2], y[3], a.high[3], a.low[3]);
    return a;
}
FN void halves_store(uint4 (&to)[2][32], const Halves &a, int lane) {
    to[0][lane] = make_uint4(a.high[0], a.high[1], a.high[2], a.high[3]);
    to[1][lane] = make_uint4(a.low[0], a.low[1], a.low[2], a.low[3]);
}

/* acc += a b for N tiles of 8 columns from FIRST on, two to a matrix load;
 * small parts first. */
template <int FIRST>
FN void multiply_tiles(float (&acc)[8][4], const Halves &a, const uint32_t (&bh)[4][4],
                       const uint32_t (&bl)[4][4]) {
#pragma unroll
    for (int n = FIRST; n < 8; n++)
        mma_bf16(acc[n], a.low, bh[n / 2][n % 2 * 2], bh[n / 2][n % 2 * 2 + 1]);
#pragma unroll
    for (int n = FIRST; n < 8; n++)
        mma_bf16(acc[n], a.high, bl[n / 2][n % 2 * 2], bl[n / 2][n % 2 * 2 + 1]);
#pragma unroll
    for (int n = FIRST; n < 8; n++)
        mma_bf16(acc[n], a.high, bh[n / 2][n % 2 * 2], bh[n / 2][n % 2 * 2 + 1]);
}

template <int PAIRS> FN void pass_copy(char *to, const char *from, int bytes) {
    for (int i = (int)threadIdx.x * 16; i < bytes; i += PAIRS * 64 * 16)
        copy_async(to + i, from + i, true);
}
/* The copy of the next chunk's K and Q, of which every step of a product asks
 * for an eighth: asked for at once, it would hold the product up. */
template <int PAIRS> struct PassAhead {
    char *to;
    const char *from; // NULL: nothing
    __device__ __forceinline__ void step(int i) const {
        int at = i * (KEY_BYTES / 8) + (int)threadIdx.x * 16;
        if (from)
#pragma unroll
            for (int n = 0; n < KEY_BYTES / 8; n += PAIRS * 64 * 16)
                copy_async(to + at + n, from + at + n, true);
    }
};

/* acc = (X S)^T of the 64 tokens, X = K or Q at `x`. */
template <int PAIRS>
FN void pass_rows(float (&acc)[8][4], const PairShared &s, SharedAt x,
                  const PassAhead<PAIRS> &ahead, int lane) {
    int row = lane % 8, which = lane / 8;
    SharedAt at[4]; // of dims 16 i .. for i < 4; the next 64 dims are 1024 bytes on
#pragma unroll
    for (int i = 0; i < 4; i++)
        at[i] = x + key_at(which / 2, 2 * i + which % 2, row);
#pragma unroll
    for (int n = 0; n < 8; n++)
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll 4
    for (int i = 0; i < 8; i++) {
        uint32_t bh[4][4], bl[4][4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_matrix(bh[n], at[i % 4] + i / 4 * 1024 + n * 4096);
            load_matrix(bl[n], at[i % 4] + i / 4 * 1024 + n * 4096 + TILE * 2);
        }
        ahead.step(i);
        multiply_tiles<0>(acc, halves_load(s.state[i], lane), bh, bl);
    }
}

/* Loads tiles (r, c) of a triangle, r from c on. */
template <int C, bool IS_TRANSPOSED>
FN void triangle_load(uint32_t (&b)[4][4], SharedAt triangle, int lane) {
#pragma unroll
    for (int r = C; r < 4; r++) {
        SharedAt at = triangle + triangle_tile(r, C) * 512 + lane * 16;
        if (IS_TRANSPOSED)
            load_matrix_transposed(b[r], at);
        else
            load_matrix(b[r], at);
    }
}
template <int C, bool IS_TRANSPOSED>
FN void triangle_step(float (&acc)[8][4], const Halves &a, SharedAt triangle, int lane) {
    uint32_t bh[4][4], bl[4][4];
    triangle_load<C, IS_TRANSPOSED>(bh, triangle, lane);
    triangle_load<C, IS_TRANSPOSED>(bl, triangle + TRIANGLE_BYTES, lane);
    multiply_tiles<2 * C>(acc, a, bh, bl);
}

/* V^T of the warp's columns: asked for before the products that come before its
 * use. */
FN void pass_values(float (&value)[8][4], const float *v, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            value[n][i] = v[(8 * n + lane % 4 * 2 + i % 2) * HEAD + lane / 4 + i / 2 * 8];
}

/* D^T of the warp's columns from K S, by T; both forms of it as left operands.
 */
FN void pass_solve(float (&acc)[8][4], PairShared &s, Deltas &d, const float (&value)[8][4],
                   SharedAt triangle, const float *factor, int lane) {
    int j = lane % 4;
    float out[8][4] = {};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float2 beta = *reinterpret_cast<const float2 *>(factor + 8 * n + 2 * j);
        float2 decayed = *reinterpret_cast<const float2 *>(factor + CHUNK + 8 * n + 2 * j);
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = fmaf(i % 2 ? beta.y : beta.x, value[n][i],
                             -((i % 2 ? decayed.y : decayed.x) * acc[n][i]));
    }
    triangle_step<0, true>(out, halves_make(acc[0], acc[1]), triangle, lane);
    triangle_step<1, true>(out, halves_make(acc[2], acc[3]), triangle, lane);
    triangle_step<2, true>(out, halves_make(acc[4], acc[5]), triangle, lane);
    triangle_step<3, true>(out, halves_make(acc[6], acc[7]), triangle, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        halves_store(d[i], halves_make(out[2 * i], out[2 * i + 1]), lane);
#pragma unroll
        for (int n = 2 * i; n < 2 * i + 2; n++) {
            float2 late = *reinterpret_cast<const float2 *>(factor + 2 * CHUNK + 8 * n + 2 * j);
            out[n][0] *= late.x;
            out[n][1] *= late.y;
            out[n][2] *= late.x;
            out[n][3] *= late.y;
        }
        halves_store(s.late[i], halves_make(out[2 * i], out[2 * i + 1]), lane);
    }
}

/* O^T += (P D)^T, stored. */
FN void pass_output(float (&o)[8][4], const Deltas &d, SharedAt triangle, float *out, int64_t vd,
                    int32_t n_rows, int lane) {
    triangle_step<0, false>(o, halves_load(d[0], lane), triangle, lane);
    triangle_step<1, false>(o, halves_load(d[1], lane), triangle, lane);
    triangle_step<2, false>(o, halves_load(d[2], lane), triangle, lane);
    triangle_step<3, false>(o, halves_load(d[3], lane), triangle, lane);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = 8 * n + lane % 4 * 2 + i % 2;
            if (row < n_rows)
                out[row * vd + lane / 4 + i / 2 * 8] = o[n][i];
        }
}

/* S^T = e^{G64} S^T + D^T K for 64 of the 128 dims, `half` of K at x. */
FN void pass_update(float (&m)[8][4], const PairShared &s, SharedAt x, float decay, int half,
                    int lane) {
    int row = lane % 8, which = lane / 8;
    SharedAt at[4]; // of dims 16 n ..; the next 16 tokens are 4096 bytes on
#pragma unroll
    for (int n = 0; n < 4; n++)
        at[n] = x + key_at(which % 2, 8 * half + 2 * n + which / 2, row);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            m[n][i] *= decay;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        uint32_t bh[4][4], bl[4][4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            load_matrix_transposed(bh[n], at[n] + t * 4096);
            load_matrix_transposed(bl[n], at[n] + t * 4096 + TILE * 2);
        }
        multiply_tiles<0>(m, halves_load(s.late[t], lane), bh, bl);
    }
}

/* Half a state slice as left operands. */
FN void pass_publish(PairShared &s, const float (&m)[8][4], int half, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        halves_store(s.state[4 * half + i], halves_make(m[2 * i], m[2 * i + 1]), lane);
}

/* Half a slice from a slot: columns from `state` on; and to one. */
FN void pass_restore(float (&m)[8][4], const float *state, bool is_there, int half, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int dim = 64 * half + 8 * n + lane % 4 * 2 + i % 2;
            m[n][i] = is_there ? state[dim * HEAD + lane / 4 + i / 2 * 8] : 0.0f;
        }
}
FN void pass_save(float *state, const float (&m)[8][4], int half, int lane) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int dim = 64 * half + 8 * n + lane % 4 * 2 + i % 2;
            state[dim * HEAD + lane / 4 + i / 2 * 8] = m[n][i];
        }
}

/* What a warp works on: pointers to the sequence's first chunk, and from a
 * chunk to the next. */
struct Pass {
    int lane, half, pair;
    int32_t hv, col; // value head; first of the warp's columns
    const char *keys, *mix;
    const float *v; // from the warp's first column on
    float *out;
    int32_t keys_step, mix_step, v_step, vd;
};

FN Pass pass_begin(const CudaGdnPrefill &a, const CudaSeq &seq, int pairs) {
    Pass p;
    int warp = (int)threadIdx.x / 32;
    p.lane = (int)threadIdx.x % 32;
    p.half = warp / pairs;
    p.pair = warp % pairs;
    p.hv = (int32_t)blockIdx.y;
    p.col = ((int32_t)blockIdx.x * pairs + p.pair) * 16;
    p.keys_step = a.g.hk * KEY_BYTES;
    p.mix_step = a.g.hv * CUDA_DELTA_MIX;
    p.v_step = a.g.hv * CHUNK * HEAD;
    p.vd = a.g.hv * HEAD;
    p.keys = reinterpret_cast<const char *>(a.keys) + (int64_t)seq.chunk0 * p.keys_step +
             p.hv / (a.g.hv / a.g.hk) * KEY_BYTES;
    p.mix = reinterpret_cast<const char *>(a.mix) + (int64_t)seq.chunk0 * p.mix_step +
            p.hv * CUDA_DELTA_MIX;
    p.v = a.v + (int64_t)seq.chunk0 * p.v_step + p.hv * CHUNK * HEAD + p.col;
    p.out = a.delta + (int64_t)seq.row0 * p.vd + p.hv * HEAD + p.col;
    return p;
}

/* Pieces of chunk n into a stage: K and Q; T and the factors; P, which is read
 * longest. */
template <int PAIRS> FN void pass_fetch_keys(char *stage, const Pass &p, int32_t n) {
    pass_copy<PAIRS>(stage, p.keys + (int64_t)n * p.keys_step, KEY_BYTES);
}
template <int PAIRS> FN void pass_fetch_solver(char *stage, const Pass &p, int32_t n) {
    const char *from = p.mix + (int64_t)n * p.mix_step;
    pass_copy<PAIRS>(stage + KEY_BYTES, from, 2 * TRIANGLE_BYTES);
    pass_copy<PAIRS>(stage + KEY_BYTES + 4 * TRIANGLE_BYTES, from + 4 * TRIANGLE_BYTES,
                     CUDA_DELTA_MIX - 4 * TRIANGLE_BYTES);
}
template <int PAIRS> FN void pass_fetch_output(char *stage, const Pass &p, int32_t n) {
    pass_copy<PAIRS>(stage + KEY_BYTES + 2 * TRIANGLE_BYTES,
                     p.mix + (int64_t)n * p.mix_step + 2 * TRIANGLE_BYTES, 2 * TRIANGLE_BYTES);
}
template <int PAIRS> FN void pass_fetch(char *stage, const Pass &p, int32_t n) {
    pass_fetch_keys<PAIRS>(stage, p, n);
    pass_fetch_solver<PAIRS>(stage, p, n);
    pass_fetch_output<PAIRS>(stage, p, n);
    copy_commit();
}
FN const float *pass_factors(const char *stage) {
    return reinterpret_cast<const float *>(stage + KEY_BYTES + 4 * TRIANGLE_BYTES);
}

/* The rings of the slice's channels: every row has been read. */
template <int PAIRS>
FN void pass_rings(const CudaGdnPrefill &a, const CudaSeq &q, int32_t hv, int32_t col0) {
    int32_t width = 16 * PAIRS, part = (int32_t)threadIdx.x / width, ratio = a.g.hv / a.g.hk;
    int32_t channel = col0 + (int32_t)threadIdx.x % width; // v, q, k
    if (part > 2 || (part && hv % ratio))
        return;
    channel += part == 0 ? (2 * a.g.hk + hv) * HEAD
                         : (part == 1 ? hv / ratio : a.g.hk + hv / ratio) * HEAD;
    ring_store(a, q, q.slot, q.pos0 + q.n_rows, channel);
    for (int32_t i = 0; i < q.n_snaps; i++) {
        CudaSnap snap = a.snaps[q.snap0 + i];
        ring_store(a, q, snap.slot, snap.pos, channel);
    }
}

template <int PAIRS, int STAGES> static constexpr int pass_shared() {
    int deltas = PAIRS == 1 && STAGES == 1 ? 0 : PAIRS * STAGES;
    return STAGES * STAGE_BYTES + PAIRS * (int)sizeof(PairShared) + deltas * (int)sizeof(Deltas);
}

template <int PAIRS, int STAGES> FN Deltas &pass_deltas(char *shared, int32_t n, int pair) {
    if (PAIRS == 1 && STAGES == 1)
        return *reinterpret_cast<Deltas *>(shared + KEY_BYTES);
    Deltas *all =
        reinterpret_cast<Deltas *>(shared + STAGES * STAGE_BYTES + PAIRS * sizeof(PairShared));
    return all[n % STAGES * PAIRS + pair];
}

/* O of chunk n, from the part that the state gives; n_left: rows from it on. */
template <int PAIRS, int STAGES>
FN void pass_emit(float (&o)[8][4], char *shared, const Pass &p, int32_t n, int32_t n_left) {
    char *stage = shared + n % STAGES * STAGE_BYTES;
    pass_output(o, pass_deltas<PAIRS, STAGES>(shared, n, p.pair),
                shared_place(stage + KEY_BYTES + 2 * TRIANGLE_BYTES),
                p.out + (int64_t)n * CHUNK * p.vd, p.vd, n_left, p.lane);
}

/* e^G Q S of a chunk. */
template <int PAIRS>
FN void pass_queries(float (&o)[8][4], const PairShared &s, char *stage,
                     const PassAhead<PAIRS> &ahead, int lane) {
    pass_rows(o, s, shared_place(stage) + 2 * TILE * 2, ahead, lane);
    const float *e = pass_factors(stage) + 3 * CHUNK + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 two = *reinterpret_cast<const float2 *>(e + 8 * i);
        o[i][0] *= two.x;
        o[i][1] *= two.y;
        o[i][2] *= two.x;
        o[i][3] *= two.y;
    }
}

/* Block (slice, value head, sequence); two warps for 16 columns. The first
 * makes D, the second the outputs, one chunk behind where two stages allow it;
 * both then renew half of the state. */
template <int PAIRS, int STAGES>
__global__ void __launch_bounds__(PAIRS * 64, 1) pass_kernel(CudaGdnPrefill a) {
    DYN_SHARED(char, shared);
    chain_wait();
    chain_next();
    CudaSeq seq = a.seqs[blockIdx.z];
    Pass p = pass_begin(a, seq, PAIRS);
    PairShared &s = reinterpret_cast<PairShared *>(shared + STAGES * STAGE_BYTES)[p.pair];
    pass_fetch<PAIRS>(shared, p, 0);
    pass_rings<PAIRS>(a, seq, p.hv, (int32_t)blockIdx.x * 16 * PAIRS);
    float *state = slot_state(a.g, seq.slot, p.hv) + p.col;
    float m[8][4], own[8][4] = {}; // state; the first warp: V, the second: O
    pass_restore(m, state, seq.pos0 != 0, p.half, p.lane);
    pass_publish(s, m, p.half, p.lane);
    copy_wait<0>();
    __syncthreads();
    int32_t snap = seq.snap0, snap_end = seq.snap0 + seq.n_snaps;
    for (int32_t n = 0; n < seq.n_chunks; n++) {
        char *stage = shared + n % STAGES * STAGE_BYTES;
        char *other = shared + (n + 1) % STAGES * STAGE_BYTES;
        bool has_next = n + 1 < seq.n_chunks;
        PassAhead<PAIRS> ahead = {
            other, STAGES == 2 && has_next ? p.keys + (int64_t)(n + 1) * p.keys_step : nullptr};
        if (p.half == 0) {
            float acc[8][4];
            pass_values(own, p.v + (int64_t)n * p.v_step, p.lane);
            pass_rows(acc, s, shared_place(stage), ahead, p.lane);
            pass_solve(acc, s, pass_deltas<PAIRS, STAGES>(shared, n, p.pair), own,
                       shared_place(stage + KEY_BYTES), pass_factors(stage), p.lane);
        } else {
            if (STAGES == 2 && n > 0)
                pass_emit<PAIRS, STAGES>(own, shared, p, n - 1, CHUNK);
            pass_queries(own, s, stage, ahead, p.lane);
        }
        if (STAGES == 2 && has_next)
            pass_fetch_solver<PAIRS>(other, p, n + 1);
        copy_commit();
        copy_wait<1>();  // P of this chunk
        __syncthreads(); // D is there; nobody reads the state's copy or the P
                         // before any more
        if (STAGES == 2 && has_next)
            pass_fetch_output<PAIRS>(other, p, n + 1);
        copy_commit();
        pass_update(m, s, shared_place(stage), pass_factors(stage)[4 * CHUNK - 1], p.half, p.lane);
        pass_publish(s, m, p.half, p.lane);
        if (snap < snap_end && a.snaps[snap].pos == seq.pos0 + (n + 1) * CHUNK) {
            float *to = slot_state(a.g, a.snaps[snap].slot, p.hv) + p.col;
            pass_save(to, m, p.half, p.lane);
            snap++;
        }
        if (p.half == 1 && (STAGES == 1 || !has_next))
            pass_emit<PAIRS, STAGES>(own, shared, p, n, seq.n_rows - n * CHUNK);
        if (STAGES == 1 && has_next) {
            __syncthreads();
            pass_fetch<PAIRS>(shared, p, n + 1);
        }
        copy_wait<(STAGES == 2 ? 1 : 0)>(); // all of the next chunk but its P
        __syncthreads();
    }
    pass_save(state, m, p.half, p.lane);
}

/* ---- gated norm ---- */

/* Block (8 heads, row): a warp a head. */
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

/* ---- starting ---- */

template <int PAIRS, int STAGES>
static cudaError_t pass_start(const CudaLaunch *l, const CudaGdnPrefill *a) {
    dim3 grid(HEAD / (16 * PAIRS), (unsigned)a->g.hv, (unsigned)a->n_seqs);
    return start(l, pass_kernel<PAIRS, STAGES>, grid, PAIRS * 64, pass_shared<PAIRS, STAGES>(), *a);
}

extern "C" cudaError_t cuda_gdn_prefill(const CudaLaunch *l, const CudaGdnPrefill *a) {
    dim3 chunks((unsigned)a->n_chunks, (unsigned)a->g.hk);
    auto *kernel = a->g.hv <= 2 * a->g.hk ? chunk_kernel<true> : chunk_kernel<false>;
    CUDA_TRY(start(l, kernel, chunks, 256, sizeof(ChunkShared), *a));
    if (a->max_shared >= pass_shared<2, 2>())
        CUDA_TRY((pass_start<2, 2>(l, a)));
    else if (a->max_shared >= pass_shared<2, 1>())
        CUDA_TRY((pass_start<2, 1>(l, a)));
    else
        CUDA_TRY((pass_start<1, 1>(l, a)));
    dim3 heads((unsigned)(a->g.hv + 7) / 8, (unsigned)a->m);
    return start(l, gated_kernel, heads, 256, 0, *a);
}

cudaError_t cuda_delta_init(int max_shared) {
    CUDA_TRY(allow_shared(chunk_kernel<true>, sizeof(ChunkShared)));
    CUDA_TRY(allow_shared(chunk_kernel<false>, sizeof(ChunkShared)));
    if (max_shared >= pass_shared<2, 2>())
        return allow_shared(pass_kernel<2, 2>, pass_shared<2, 2>());
    if (max_shared >= pass_shared<2, 1>())
        return allow_shared(pass_kernel<2, 1>, pass_shared<2, 1>());
    return allow_shared(pass_kernel<1, 1>, pass_shared<1, 1>());
}

TRACE_BIND(delta)
