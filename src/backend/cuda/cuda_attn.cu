// SPDX-License-Identifier: Apache-2.0
/* cuda_attn.cu - full attention over the paged cache: decode in pieces of the context that the
 * query heads of a key-value head share, prefill by tiles with a running softmax.
 *
 * Path:     started by cuda_step.c between the projections and the output projection.
 * Owns:     nothing.  Thread: engine.
 * Precision: q, k, v bf16 as cached; scores, softmax and sums f32; decode multiplies v by f32
 * probabilities, prefill by bf16 ones (their sum is taken before the rounding).
 * Order: decode by the row's own context alone (cuda_layout_split), keys of a piece by warp, warps
 * in order, pieces in order; prefill key tiles of 64 from position 0 on. */
#include "backend/cuda/cuda_attn.cuh"

cudaError_t cuda_attn_sm90(const CudaLaunch *l, const CudaAttnPrefill *a);
cudaError_t cuda_attn_sm90_init(int max_shared);
bool cuda_attn_sm90_fits(int max_shared);

enum { GROUP = 8 };

/* A warp normalises and rotates one head of 256; lane l holds dims l + 32 i. */
FN void head_norm(float v[8], const float *gain, const float *rope, int32_t pos, float eps,
                  int lane) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        squares = fmaf(v[i], v[i], squares);
    float factor = 1.0f / sqrtf(warp_sum(squares) / DIM + eps);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = v[i] * factor * gain[lane + 32 * i];
    float2 cs = reinterpret_cast<const float2 *>(rope)[(int64_t)pos * 32 + lane];
    float low = v[0], high = v[1];
    v[0] = fmaf(low, cs.x, -(high * cs.y));
    v[1] = fmaf(low, cs.y, high * cs.x);
}

FN uint16_t to_bf16(float x) { return (uint16_t)pack_bf16(x, 0.0f); }

/* ---- decode ---- */

enum { DECODE_WARPS = 4, DECODE_KEYS = 16, MERGE_PARTS = 4 };

struct DecodeShared {
    uint16_t q[GROUP][DIM + 8];
    float p[DECODE_WARPS][DECODE_KEYS][GROUP]; // probabilities of each warp's 16 keys
    float alpha[DECODE_WARPS][GROUP];
    float top[DECODE_WARPS][GROUP], sum[DECODE_WARPS][GROUP];
    uint16_t fresh[2][DIM]; // the step's own key and value
    union {
        uint16_t tile[DECODE_WARPS][2][DECODE_KEYS * DIM]; // keys, values on their way
        float out[DECODE_WARPS][GROUP][DIM];
    };
};

/* Row of 512 bytes of a warp's tile, its 16-byte pieces exchanged so that two rows beside each
 * other do not meet in a bank. */
FN uint16_t *decode_piece(uint16_t *tile, int row, int piece) {
    return tile + row * DIM + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))) * 8;
}

/* Asks for a warp's 16 keys (which 0) or values (which 1) from key0 on. Rows at and above n_old are
 * zeros: those behind the context, and the step's own row, which is put in later. */
FN void decode_fetch(uint16_t *tile, const CudaAttnDecode &a, const CudaRow &r, int which,
                     int32_t kv_head, int32_t key0, int32_t n_old, int32_t to, int lane) {
    if (key0 < to) {
        int32_t block = a.t.table[r.table + key0 / TILE_KEYS];
        const uint16_t *from = kv_tile(a.t, block, which, kv_head) + key0 % TILE_KEYS * DIM;
#pragma unroll
        for (int i = 0; i < DECODE_KEYS; i++)
            copy_async(decode_piece(tile, i, lane), from + i * DIM + lane * 8, key0 + i < n_old);
    }
    copy_commit();
}

/* Query heads of the group into shared memory; in the block that has the new key that key and value
 * too, and into the cache. */
FN void decode_prepare(const CudaAttnDecode &a, DecodeShared &s, const CudaRow &r, int32_t row,
                       int32_t kv_head, int32_t head0, int32_t n_heads, bool is_last,
                       bool is_keeper, int warp, int lane) {
    const float *proj = a.proj + (int64_t)row * a.ld;
    float v[8];
#pragma unroll
    for (int h = warp; h < GROUP; h += DECODE_WARPS) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = h < n_heads ? proj[(head0 + h) * 2 * DIM + lane + 32 * i] : 0.0f;
        head_norm(v, a.t.q_norm, a.t.rope, r.pos, a.t.eps, lane);
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.q[h][lane + 32 * i] = to_bf16(h < n_heads ? v[i] * 0.0625f : 0.0f);
    }
    if (!is_last || warp < 2)
        return;
    int which = warp - 2; // the warps that are not first to the queries
    const float *from = proj + a.t.nq * 2 * DIM + (which * a.t.nkv + kv_head) * DIM;
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = from[lane + 32 * i];
    if (which == 0)
        head_norm(v, a.t.k_norm, a.t.rope, r.pos, a.t.eps, lane);
    int32_t block = a.t.table[r.table + r.pos / TILE_KEYS];
    uint16_t *to = kv_tile(a.t, block, which, kv_head) + r.pos % TILE_KEYS * DIM;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint16_t x = to_bf16(v[i]);
        s.fresh[which][lane + 32 * i] = x;
        if (is_keeper)
            to[lane + 32 * i] = x;
    }
}

/* The step's own row into the tile that it belongs to. */
FN void decode_freshen(DecodeShared &s, uint16_t *tile, int which, int32_t row, int lane) {
    if (row >= 0 && row < DECODE_KEYS)
        *reinterpret_cast<uint4 *>(decode_piece(tile, row, lane)) =
            *reinterpret_cast<const uint4 *>(&s.fresh[which][8 * lane]);
    __syncwarp();
}

/* Scores (log 2) of 16 keys by 8 heads: c as the C operand. A lane reads 16 bytes, so dims
 * 32 b + 8 j + i go to two instructions, for keys and queries alike. */
FN void decode_scores(float c[4], uint16_t *keys, const uint4 q[8], int lane) {
    int g = lane / 4, j = lane % 4;
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        uint4 k0 = *reinterpret_cast<const uint4 *>(decode_piece(keys, g, 4 * b + j));
        uint4 k1 = *reinterpret_cast<const uint4 *>(decode_piece(keys, g + 8, 4 * b + j));
        uint32_t a0[4] = {k0.x, k1.x, k0.y, k1.y};
        uint32_t a1[4] = {k0.z, k1.z, k0.w, k1.w};
        mma_bf16(c, a0, q[b].x, q[b].y);
        mma_bf16(c, a1, q[b].z, q[b].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] *= LOG2_E;
}

/* A lane's running numbers: of heads 2 j and 2 j + 1, and dims 8 lane .. of all eight heads. */
struct Running {
    float top[2], sum[2];
    float out[GROUP][8];
};

/* Probabilities of 16 keys from key0 on into s.p; those at and above n_keys do not count. */
FN void decode_softmax(Running &run, DecodeShared &s, float c[4], int32_t key0, int32_t n_keys,
                       int warp, int lane) {
    int g = lane / 4, j = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = key0 + g + i / 2 * 8 < n_keys ? c[i] : NO_SCORE;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(run.top[h], column_max(fmaxf(c[h], c[2 + h])));
        float alpha = exp2f(run.top[h] - top);
        float p0 = c[h] > NO_SCORE ? exp2f(c[h] - top) : 0.0f;
        float p1 = c[2 + h] > NO_SCORE ? exp2f(c[2 + h] - top) : 0.0f;
        p0 = c[h] == c[h] ? p0 : c[h]; // a NaN stays one
        p1 = c[2 + h] == c[2 + h] ? p1 : c[2 + h];
        run.sum[h] = fmaf(run.sum[h], alpha, p0 + p1);
        run.top[h] = top;
        s.p[warp][g][2 * j + h] = p0;
        s.p[warp][g + 8][2 * j + h] = p1;
        if (g == 0)
            s.alpha[warp][2 * j + h] = alpha;
    }
    __syncwarp();
}

/* out = out * alpha + sum of p v over the tile's 16 values (zeros where there is none). */
FN void decode_values(Running &run, DecodeShared &s, uint16_t *values, int warp, int lane) {
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float alpha = s.alpha[warp][h];
#pragma unroll
        for (int d = 0; d < 8; d++)
            run.out[h][d] *= alpha;
    }
#pragma unroll 4
    for (int i = 0; i < DECODE_KEYS; i++) {
        uint4 v = *reinterpret_cast<const uint4 *>(decode_piece(values, i, lane));
        float x[8] = {bf16_low(v.x), bf16_high(v.x), bf16_low(v.y), bf16_high(v.y),
                      bf16_low(v.z), bf16_high(v.z), bf16_low(v.w), bf16_high(v.w)};
        const float4 *p = reinterpret_cast<const float4 *>(s.p[warp][i]);
        float4 p0 = p[0], p1 = p[1];
        float w[8] = {p0.x, p0.y, p0.z, p0.w, p1.x, p1.y, p1.z, p1.w};
#pragma unroll
        for (int h = 0; h < GROUP; h++)
#pragma unroll
            for (int d = 0; d < 8; d++)
                run.out[h][d] = fmaf(w[h], x[d], run.out[h][d]);
    }
    __syncwarp();
}

/* Puts the warps' numbers together: warps in order. */
FN void decode_merge(const CudaAttnDecode &a, DecodeShared &s, Running &run, int32_t row,
                     int32_t head0, int32_t n_heads, int32_t piece, int warp, int lane) {
    int j = lane % 4;
    __syncthreads(); // the tiles are done with: `out` takes their place
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = column_sum(run.sum[h]);
        if (lane < 4) {
            s.top[warp][2 * j + h] = run.top[h];
            s.sum[warp][2 * j + h] = sum;
        }
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
        float4 *to = reinterpret_cast<float4 *>(&s.out[warp][h][8 * lane]);
        to[0] = make_float4(run.out[h][0], run.out[h][1], run.out[h][2], run.out[h][3]);
        to[1] = make_float4(run.out[h][4], run.out[h][5], run.out[h][6], run.out[h][7]);
    }
    __syncthreads();
    for (int h = 0; h < n_heads; h++) {
        float top = NO_SCORE, sum = 0.0f, f[DECODE_WARPS];
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            top = fmaxf(top, s.top[w][h]);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            f[w] = exp2f(s.top[w][h] - top);
            sum = fmaf(f[w], s.sum[w][h], sum);
        }
        int64_t at = ((int64_t)row * a.t.nq + head0 + h) * CUDA_MAX_SPLITS + piece;
        for (int d = (int)threadIdx.x; d < DIM; d += DECODE_WARPS * 32) {
            float out = 0.0f;
#pragma unroll
            for (int w = 0; w < DECODE_WARPS; w++)
                out = fmaf(f[w], s.out[w][h][d], out);
            a.part[at * DIM + d] = out;
        }
        if (threadIdx.x == 0)
            *reinterpret_cast<float2 *>(a.part_ml + at * 2) = make_float2(top, sum);
    }
}

/* Block (piece, key-value head and group of 8 query heads, row). Keys and values of earlier steps
 * are under way before the wait; a warp's next keys are fetched while it works on its values, and
 * the other way round. */
__global__ void __launch_bounds__(DECODE_WARPS * 32, 2) attn_decode_kernel(CudaAttnDecode a) {
    DYN_SHARED(DecodeShared, shared);
    DecodeShared &s = *shared;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int32_t row = (int32_t)blockIdx.z, piece = (int32_t)blockIdx.x;
    int32_t per_kv = a.t.nq / a.t.nkv, groups = (per_kv + GROUP - 1) / GROUP;
    int32_t kv_head = (int32_t)blockIdx.y / groups, in_kv = (int32_t)blockIdx.y % groups * GROUP;
    int32_t head0 = kv_head * per_kv + in_kv;
    int32_t n_heads = per_kv - in_kv < GROUP ? per_kv - in_kv : GROUP;
    CudaRow r = a.rows[row];
    int32_t n_keys = r.pos + 1;
    int32_t length = cuda_layout_split(n_keys, CUDA_SPLIT_KEYS, CUDA_MAX_SPLITS);
    int32_t from = piece * length, to = from + length < n_keys ? from + length : n_keys;
    if (from >= n_keys) {
        chain_wait();
        chain_next();
        return;
    }
    uint16_t *keys = s.tile[warp][0], *values = s.tile[warp][1];
    int32_t key0 = from + DECODE_KEYS * warp;
    decode_fetch(keys, a, r, 0, kv_head, key0, r.pos, to, lane);
    decode_fetch(values, a, r, 1, kv_head, key0, r.pos, to, lane);
    chain_wait();
    chain_next(); // the kernel behind reads the projections before it waits
    decode_prepare(a, s, r, row, kv_head, head0, n_heads, to == n_keys, in_kv == 0, warp, lane);
    __syncthreads();
    uint4 q[8];
#pragma unroll
    for (int b = 0; b < 8; b++)
        q[b] = *reinterpret_cast<const uint4 *>(&s.q[lane / 4][32 * b + 8 * (lane % 4)]);
    Running run;
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
        for (int d = 0; d < 8; d++)
            run.out[h][d] = 0.0f;
    run.top[0] = run.top[1] = NO_SCORE;
    run.sum[0] = run.sum[1] = 0.0f;
    for (; key0 < to; key0 += DECODE_KEYS * DECODE_WARPS) {
        int32_t next = key0 + DECODE_KEYS * DECODE_WARPS;
        float c[4];
        copy_wait<1>(); // the keys
        __syncwarp();
        decode_freshen(s, keys, 0, r.pos - key0, lane);
        decode_scores(c, keys, q, lane);
        __syncwarp();
        decode_fetch(keys, a, r, 0, kv_head, next, r.pos, to, lane);
        decode_softmax(run, s, c, key0, n_keys, warp, lane);
        copy_wait<1>(); // the values
        __syncwarp();
        decode_freshen(s, values, 1, r.pos - key0, lane);
        decode_values(run, s, values, warp, lane);
        decode_fetch(values, a, r, 1, kv_head, next, r.pos, to, lane);
    }
    copy_wait<0>();
    decode_merge(a, s, run, row, head0, n_heads, piece, warp, lane);
}

/* Block (query head, row): pieces in order inside each of four parts, parts in order, gate, digits.
 * Thread t is dim t % 256 of part t / 256. */
__global__ void __launch_bounds__(DIM *MERGE_PARTS) attn_merge_kernel(CudaAttnDecode a) {
    __shared__ __align__(16) float y[MERGE_PARTS][DIM];
    __shared__ float factor[CUDA_MAX_SPLITS], sums[CUDA_MAX_SPLITS];
    int32_t head = (int32_t)blockIdx.x, row = (int32_t)blockIdx.y;
    int t = (int)threadIdx.x, d = t % DIM, part = t / DIM, lane = t % 32;
    int32_t n_keys = a.rows[row].pos + 1;
    int32_t length = cuda_layout_split(n_keys, CUDA_SPLIT_KEYS, CUDA_MAX_SPLITS);
    int32_t n = (n_keys + length - 1) / length, each = (n + MERGE_PARTS - 1) / MERGE_PARTS;
    int64_t at = ((int64_t)row * a.t.nq + head) * CUDA_MAX_SPLITS;
    // The projections were ready before the pieces began.
    float gate = __ldcg(a.proj + (int64_t)row * a.ld + (2 * head + 1) * DIM + d);
    chain_wait();
    chain_next();
    const float2 *ml = reinterpret_cast<const float2 *>(a.part_ml) + at;
    if (t < 32) {
        float2 mine[CUDA_MAX_SPLITS / 32];
        float top = NO_SCORE;
#pragma unroll
        for (int i = 0; i < CUDA_MAX_SPLITS / 32; i++) {
            mine[i] = 32 * i + lane < n ? ml[32 * i + lane] : make_float2(NO_SCORE, 0.0f);
            top = fmaxf(top, mine[i].x);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < CUDA_MAX_SPLITS / 32; i++) {
            factor[32 * i + lane] = exp2f(mine[i].x - top);
            sums[32 * i + lane] = mine[i].y;
        }
    }
    __syncthreads();
    int32_t from = part * each, to = from + each < n ? from + each : n;
    float sum = 0.0f, out = 0.0f;
    const float *in = a.part + at * DIM + d;
#pragma unroll 8
    for (int32_t i = from; i < to; i++)
        out = fmaf(factor[i], in[(int64_t)i * DIM], out);
    y[part][d] = out;
    __syncthreads();
    if (part == 0) {
        for (int32_t i = 0; i < n; i++)
            sum = fmaf(factor[i], sums[i], sum);
        for (int q = 1; q < MERGE_PARTS; q++)
            out += y[q][d];
        y[0][d] = out / sum * sigmoid(gate);
    }
    __syncthreads();
    if (t >= 32)
        return;
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = 0.0f;
    if (lane < 16)
        group_load(v, y[0] + lane / 4 * CUDA_GROUP, lane % 4);
    DigitLane digits = digits_make(v);
    if (lane < 16) {
        int64_t g = ((int64_t)row * a.t.nq + head) * 4 + lane / 4;
        digits_store(a.out.digit + g * 32, a.out.scale + g * 2, digits, lane % 4);
    }
}

extern "C" cudaError_t cuda_attn_decode(const CudaLaunch *l, const CudaAttnDecode *a) {
    int32_t groups = (a->t.nq / a->t.nkv + GROUP - 1) / GROUP;
    dim3 grid(CUDA_MAX_SPLITS, (unsigned)(a->t.nkv * groups), (unsigned)a->m);
    CUDA_TRY(start(l, attn_decode_kernel, grid, DECODE_WARPS * 32, sizeof(DecodeShared), *a));
    return start(l, attn_merge_kernel, dim3((unsigned)a->t.nq, (unsigned)a->m), DIM * MERGE_PARTS,
                 0, *a);
}

/* ---- prefill: norms, rotation, cache ---- */

/* Block row, a warp a head: query heads, then key heads, then value heads. */
__global__ void attn_prepare_kernel(CudaAttnPrefill a) {
    chain_wait();
    chain_next();
    int32_t row = (int32_t)blockIdx.y, head = (int32_t)(blockIdx.x * 8 + threadIdx.x / 32);
    int lane = (int)threadIdx.x % 32;
    if (head >= a.t.nq + 2 * a.t.nkv)
        return;
    CudaRow r = a.rows[row];
    const uint16_t *from = a.proj + (int64_t)row * a.ld;
    bool is_query = head < a.t.nq, is_key = !is_query && head < a.t.nq + a.t.nkv;
    from += is_query ? head * 2 * DIM : (head + a.t.nq) * DIM;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = bf16_value(from[lane + 32 * i]);
    if (is_query || is_key)
        head_norm(v, is_query ? a.t.q_norm : a.t.k_norm, a.t.rope, r.pos, a.t.eps, lane);
    uint16_t *to = a.q + (int64_t)row * a.t.nq * DIM + head * DIM;
    if (!is_query) {
        int32_t block = a.t.table[r.table + r.pos / TILE_KEYS];
        int32_t kv_head = head - a.t.nq - (is_key ? 0 : a.t.nkv);
        to = kv_tile(a.t, block, is_key ? 0 : 1, kv_head) + r.pos % TILE_KEYS * DIM;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[lane + 32 * i] = to_bf16(is_query ? v[i] * 0.0625f : v[i]);
}

/* ---- prefill: tiles ---- */

/* Row of 512 bytes in shared memory, its 16-byte pieces exchanged inside each 128 bytes. */
FN uint16_t *wide_piece(uint16_t *tile, int row, int piece) {
    return tile + row * DIM + (piece ^ (row & 7)) * 8;
}

/* 64 rows of keys or values; those at and above `count` become zeros. */
template <int WARPS> FN void kv_fetch(uint16_t *tile, const uint16_t *from, int32_t count) {
    for (int at = (int)threadIdx.x; at < TILE_KEYS * 32; at += WARPS * 32) {
        int row = at / 32, piece = at % 32;
        copy_async(wide_piece(tile, row, piece), from + row * DIM + piece * 8, row < count);
    }
}

/* Query row i of a tile: token i / heads, head i % heads. */
template <int WARPS>
FN void q_fetch(uint16_t *tile, const CudaAttnPrefill &a, int32_t row0, int32_t head0,
                int32_t heads, int32_t n_rows) {
    for (int at = (int)threadIdx.x; at < WARPS * 16 * 32; at += WARPS * 32) {
        int row = at / 32, piece = at % 32;
        bool is_there = row < n_rows;
        int64_t from =
            is_there ? ((int64_t)(row0 + row / heads) * a.t.nq + head0 + row % heads) * DIM : 0;
        copy_async(wide_piece(tile, row, piece), a.q + from + piece * 8, is_there);
    }
}

/* Scores of the warp's 16 rows by 64 keys. */
FN void tile_scores(float (&c)[8][4], uint16_t *q, uint16_t *k, int warp, int lane) {
    // Pieces t and t + 8 of a row are 128 bytes apart; eight rows are 4096 bytes.
    int row = lane % 8, which = lane / 8;
    SharedAt q_at[4], k_at[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        q_at[t] = shared_place(wide_piece(q, warp * 16 + which % 2 * 8 + row, 2 * t + which / 2));
        k_at[t] = shared_place(wide_piece(k, which / 2 * 8 + row, 2 * t + which % 2));
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
    for (int t = 0; t < DIM / 16; t++) {
        uint32_t a[4];
        load_matrix(a, q_at[t % 4] + t / 4 * 128);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t b[4];
            load_matrix(b, k_at[t % 4] + t / 4 * 128 + n * 4096);
            mma_bf16(c[n], a, b[0], b[1]);
            mma_bf16(c[n + 1], a, b[2], b[3]);
        }
    }
}

/* out += probabilities times values. */
FN void tile_values(float (&out)[32][4], const float (&p)[8][4], const float alpha[2], uint16_t *v,
                    int lane) {
    int row = lane % 8, which = lane / 8;
    SharedAt v_at[4]; // of dims 16 n ..; the next 64 dims are 128 bytes on, 16 keys 8192
#pragma unroll
    for (int n = 0; n < 4; n++)
        v_at[n] = shared_place(wide_piece(v, which % 2 * 8 + row, 2 * n + which / 2));
    uint32_t a[4][4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        a[t][0] = pack_bf16(p[2 * t][0], p[2 * t][1]);
        a[t][1] = pack_bf16(p[2 * t][2], p[2 * t][3]);
        a[t][2] = pack_bf16(p[2 * t + 1][0], p[2 * t + 1][1]);
        a[t][3] = pack_bf16(p[2 * t + 1][2], p[2 * t + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < 32; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[n][i] *= alpha[i / 2];
            out[n + 1][i] *= alpha[i / 2];
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t b[4]; // keys 0-7, 8-15 of dims n*8.., then of dims n*8+8..
            load_matrix_transposed(b, v_at[n / 2 % 4] + n / 8 * 128 + t * 8192);
            mma_bf16(out[n], a[t], b[0], b[1]);
            mma_bf16(out[n + 1], a[t], b[2], b[3]);
        }
    }
}

/* Block (tile of tokens, key-value head). The last tiles, which see most keys, come first. */
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attn_prefill_kernel(CudaAttnPrefill a) {
    DYN_SHARED(uint16_t, q);
    uint16_t *k = q + WARPS * 16 * DIM, *v = k + TILE_KEYS * DIM;
    chain_wait();
    chain_next();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    CudaTile tile = a.tiles[gridDim.x - 1 - blockIdx.x];
    CudaSeq seq = a.seqs[tile.seq];
    int32_t kv_head = (int32_t)blockIdx.y, heads = a.t.nq / a.t.nkv, head0 = kv_head * heads;
    int32_t tokens = WARPS * 16 / heads, left = seq.n_rows - tile.tok0;
    tokens = left < tokens ? left : tokens;
    int32_t row0 = seq.row0 + tile.tok0, n_rows = tokens * heads;
    int32_t pos0 = seq.pos0 + tile.tok0, n_keys = pos0 + tokens;
    const int32_t *table = a.t.table + seq.table;
    RowPair r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.pos[h] = pos0 + (warp * 16 + lane / 4 + 8 * h) / heads;
        r.top[h] = NO_SCORE;
        r.sum[h] = 0.0f;
    }
    float out[32][4] = {};
    q_fetch<WARPS>(q, a, row0, head0, heads, n_rows);
    kv_fetch<WARPS>(k, kv_tile(a.t, table[0], 0, kv_head), n_keys);
    copy_commit();
    kv_fetch<WARPS>(v, kv_tile(a.t, table[0], 1, kv_head), n_keys);
    copy_commit();
    for (int32_t key0 = 0; key0 < n_keys; key0 += TILE_KEYS) {
        float c[8][4], alpha[2];
        copy_wait<1>(); // the keys
        __syncthreads();
        tile_scores(c, q, k, warp, lane);
        __syncthreads();
        int32_t next = key0 + TILE_KEYS;
        bool has_next = next < n_keys;
        int32_t block = has_next ? table[next / TILE_KEYS] : 0;
        if (has_next)
            kv_fetch<WARPS>(k, kv_tile(a.t, block, 0, kv_head), n_keys - next);
        copy_commit();
        tile_softmax(c, r, alpha, key0, lane);
        copy_wait<1>(); // the values
        __syncthreads();
        tile_values(out, c, alpha, v, lane);
        __syncthreads();
        if (has_next)
            kv_fetch<WARPS>(v, kv_tile(a.t, block, 1, kv_head), n_keys - next);
        copy_commit();
    }
    tile_finish(a, out, r, row0, head0, heads, n_rows, warp, lane);
}

template <int WARPS> static constexpr size_t prefill_shared() {
    return (size_t)(WARPS * 16 + 2 * TILE_KEYS) * DIM * 2;
}

static int prefill_warps(int max_shared) {
    return (size_t)max_shared >= prefill_shared<8>() ? 8 : 4;
}

extern "C" int32_t cuda_attn_tile_tokens(int32_t nq, int32_t nkv, int max_shared) {
    return prefill_warps(max_shared) * 16 / (nq / nkv);
}

extern "C" cudaError_t cuda_attn_prefill(const CudaLaunch *l, const CudaAttnPrefill *a) {
    unsigned heads = (unsigned)(a->t.nq + 2 * a->t.nkv);
    CUDA_TRY(start(l, attn_prepare_kernel, dim3((heads + 7) / 8, (unsigned)a->m), 256, 0, *a));
    if (l->n_sm90 && cuda_attn_sm90_fits(a->max_shared))
        return cuda_attn_sm90(l, a);
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->t.nkv);
    if (prefill_warps(a->max_shared) == 8)
        return start(l, attn_prefill_kernel<8>, grid, 256, prefill_shared<8>(), *a);
    return start(l, attn_prefill_kernel<4>, grid, 128, prefill_shared<4>(), *a);
}

cudaError_t cuda_attn_init(int max_shared) {
    CUDA_TRY(allow_shared(attn_decode_kernel, sizeof(DecodeShared)));
    CUDA_TRY(cuda_attn_sm90_init(max_shared));
    if (prefill_warps(max_shared) == 8)
        return allow_shared(attn_prefill_kernel<8>, prefill_shared<8>());
    return allow_shared(attn_prefill_kernel<4>, prefill_shared<4>());
}

TRACE_BIND(attn)
