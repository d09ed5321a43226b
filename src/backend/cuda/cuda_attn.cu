// SPDX-License-Identifier: Apache-2.0
/* cuda_attn.cu - full attention over the paged cache: decode in pieces of the context that the
 * query heads of a key-value head share, prefill by tiles with a running softmax.
 *
 * Path:     started by cuda_step.c between the projections and the output projection.
 * Owns:     nothing.  Thread: engine.
 * Precision: q, k, v bf16 as cached; scores, softmax and sums f32; v is multiplied by probabilities
 * in bf16: of decode by two whose sum is within 2^-17, of prefill by one (their sum is taken before
 * the rounding).
 * Order: decode by the row's own context alone (cuda_layout_split): key tiles of 64 of a piece in
 * order; of the pieces every sixteenth in order, then those sums in order. Prefill: key tiles of 64
 * of a segment in order, segments in order (cuda_attn.cuh). */
#include "backend/cuda/cuda_attn.cuh"

cudaError_t cuda_attn_sm90(const CudaLaunch *l, const CudaAttnPrefill *a, int32_t n_segments);
cudaError_t cuda_attn_sm90_init(int max_shared);
bool cuda_attn_sm90_fits(int max_shared);

enum { GROUP = 8 };

/* What a lane needs to normalise and rotate a head of 256, of which it holds dims l + 32 i. */
struct HeadNorm {
    float gain[8];
    float2 angle; // cosine, sine
};
FN HeadNorm head_norm_load(const float *gain, const float *rope, int32_t pos, int lane) {
    HeadNorm n;
#pragma unroll
    for (int i = 0; i < 8; i++)
        n.gain[i] = gain[lane + 32 * i];
    n.angle = reinterpret_cast<const float2 *>(rope)[(int64_t)pos * 32 + lane];
    return n;
}
FN void head_norm(float v[8], const HeadNorm &n, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        squares = fmaf(v[i], v[i], squares);
    float factor = 1.0f / sqrtf(warp_sum(squares) / DIM + eps);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = v[i] * factor * n.gain[i];
    float low = v[0], high = v[1];
    v[0] = fmaf(low, n.angle.x, -(high * n.angle.y));
    v[1] = fmaf(low, n.angle.y, high * n.angle.x);
}

FN uint16_t to_bf16(float x) { return (uint16_t)pack_bf16(x, 0.0f); }

/* Row of 512 bytes in shared memory, its 16-byte pieces exchanged inside each 128 bytes. */
FN uint16_t *wide_piece(uint16_t *tile, int row, int piece) {
    return tile + row * DIM + (piece ^ (row & 7)) * 8;
}

/* ---- decode ---- */

enum {
    DECODE_WARPS = 4,
    DECODE_KEYS = TILE_KEYS / DECODE_WARPS, // of a tile, a warp
    DECODE_BLOCKS = 3,                      // of a multiprocessor
    MERGE_PARTS = 16,
    MERGE_DIMS = 128, // of a block
    MERGE_EACH = CUDA_MAX_SPLITS / MERGE_PARTS,
};

struct DecodeShared {
    uint16_t keys[DECODE_WARPS][DECODE_KEYS * DIM];
    uint16_t values[TILE_KEYS * DIM];
    uint16_t q[GROUP][DIM + 8];
    uint16_t fresh[2][DIM];    // the step's own key and value
    uint4 p[DECODE_WARPS][32]; // probabilities of each warp's keys as B operands: high, low parts
    float top[DECODE_WARPS][GROUP], sum[DECODE_WARPS][GROUP];
};

/* Row of 512 bytes of a warp's keys, its 16-byte pieces exchanged so that two rows beside each
 * other do not meet in a bank. */
FN uint16_t *decode_piece(uint16_t *tile, int row, int piece) {
    return tile + row * DIM + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))) * 8;
}

/* A tile of 64 keys of a piece of a line: a row's context for up to eight query heads of one
 * key-value head. Pieces are counted line by line, lines row by row. */
struct DecodeTile {
    int32_t row, line, piece, key0;
    int32_t pos, table, length, n_pieces; // of the row; keys of a piece, pieces of a line
};

FN int32_t decode_lines(const CudaAttn &t) { return t.nkv * ((t.nq / t.nkv + GROUP - 1) / GROUP); }

FN int32_t decode_pieces(int32_t n_keys) {
    int32_t length = cuda_layout_split(n_keys, CUDA_SPLIT_KEYS, CUDA_MAX_SPLITS);
    return (n_keys + length - 1) / length;
}

FN void decode_row(DecodeTile &t, const CudaAttnDecode &a, int32_t row) {
    CudaRow r = a.rows[row];
    t.row = row;
    t.pos = r.pos;
    t.table = r.table;
    t.length = cuda_layout_split(r.pos + 1, CUDA_SPLIT_KEYS, CUDA_MAX_SPLITS);
    t.n_pieces = decode_pieces(r.pos + 1);
}

/* The first tile that is this block's, and how many pieces are: all blocks take as many. */
FN int32_t decode_first(DecodeTile &t, const CudaAttnDecode &a, int lane) {
    int32_t lines = decode_lines(a.t), all = 0, before = 0, row0 = 0;
    for (int32_t at = lane; at < a.m; at += 32)
        all += lines * decode_pieces(a.rows[at].pos + 1);
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        all += __shfl_xor_sync(FULL_WARP, all, d);
    int32_t each = (all + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x;
    int32_t first = (int32_t)blockIdx.x * each;
    if (first >= all)
        return 0;
    for (;; row0 += 32) { // the row that holds piece `first`
        int32_t n = row0 + lane < a.m ? lines * decode_pieces(a.rows[row0 + lane].pos + 1) : 0;
        int32_t end = n;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            int32_t ahead = __shfl_up_sync(FULL_WARP, end, d);
            end += lane >= d ? ahead : 0;
        }
        int past = __popc(__ballot_sync(FULL_WARP, before + end <= first));
        int32_t done = __shfl_sync(FULL_WARP, past < 32 ? end - n : end, past < 32 ? past : 31);
        before += done;
        if (past < 32) {
            decode_row(t, a, row0 + past);
            break;
        }
    }
    t.line = (first - before) / t.n_pieces;
    t.piece = (first - before) % t.n_pieces;
    t.key0 = t.piece * t.length;
    return all - first < each ? all - first : each;
}

FN int32_t decode_end(const DecodeTile &t) { // of its piece
    int32_t end = (t.piece + 1) * t.length;
    return end <= t.pos ? end : t.pos + 1;
}

/* The next tile; left: pieces of the block from this one on. False: there is none. */
FN bool decode_next(DecodeTile &t, int32_t &left, const CudaAttnDecode &a) {
    t.key0 += TILE_KEYS;
    if (t.key0 < decode_end(t))
        return true;
    if (--left == 0)
        return false;
    if (++t.piece == t.n_pieces) {
        t.piece = 0;
        if (++t.line == decode_lines(a.t)) {
            t.line = 0;
            decode_row(t, a, t.row + 1);
        }
    }
    t.key0 = t.piece * t.length;
    return true;
}

/* The heads of a line. */
struct DecodeHeads {
    int32_t kv, first, n;
    bool is_keeper; // puts the new key and value into the cache
};
FN DecodeHeads decode_heads(const CudaAttn &t, int32_t line) {
    int32_t per_kv = t.nq / t.nkv, groups = (per_kv + GROUP - 1) / GROUP;
    int32_t in_kv = line % groups * GROUP;
    DecodeHeads h;
    h.kv = line / groups;
    h.first = h.kv * per_kv + in_kv;
    h.n = per_kv - in_kv < GROUP ? per_kv - in_kv : GROUP;
    h.is_keeper = in_kv == 0;
    return h;
}

/* Asks for a warp's share of a tile's keys (which 0) or values (which 1). Rows at and above the
 * step's own are zeros: those behind the context, and that row, which is put in later. */
FN void decode_fetch(DecodeShared &s, const CudaAttnDecode &a, const DecodeTile &t, int which,
                     bool is_there, int warp, int lane) {
    if (is_there) {
        int32_t block = a.t.table[t.table + t.key0 / TILE_KEYS], row0 = warp * DECODE_KEYS;
        const uint16_t *from = kv_tile(a.t, block, which, decode_heads(a.t, t.line).kv);
#pragma unroll
        for (int i = 0; i < DECODE_KEYS; i++) {
            uint16_t *to =
                which ? wide_piece(s.values, row0 + i, lane) : decode_piece(s.keys[warp], i, lane);
            copy_async(to, from + (row0 + i) * DIM + lane * 8, t.key0 + row0 + i < t.pos);
        }
    }
    copy_commit();
}

/* Query heads of a line into shared memory; in the block that has the new key that key and value
 * too, and into the cache. */
FN void decode_prepare(DecodeShared &s, const CudaAttnDecode &a, const DecodeTile &t,
                       const HeadNorm &query, const HeadNorm &key, bool is_last, int warp,
                       int lane) {
    const float *proj = a.proj + (int64_t)t.row * a.ld;
    DecodeHeads heads = decode_heads(a.t, t.line);
    int which = warp - 2; // key and value: by the warps that are not first to the queries
    bool is_fresh = is_last && which >= 0;
    float v[3][8];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        int h = warp + k * DECODE_WARPS;
        const float *from = proj + (heads.first + h) * 2 * DIM;
        if (k == 2)
            from = proj + a.t.nq * 2 * DIM + (which * a.t.nkv + heads.kv) * DIM;
        bool is_there = k < 2 ? h < heads.n : is_fresh;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[k][i] = is_there ? __ldcg(from + lane + 32 * i) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        head_norm(v[k], query, a.t.eps);
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.q[warp + k * DECODE_WARPS][lane + 32 * i] = to_bf16(v[k][i] * 0.0625f);
    }
    if (!is_fresh)
        return;
    if (which == 0)
        head_norm(v[2], key, a.t.eps);
    int32_t block = a.t.table[t.table + t.pos / TILE_KEYS];
    uint16_t *to = kv_tile(a.t, block, which, heads.kv) + t.pos % TILE_KEYS * DIM;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint16_t x = to_bf16(v[2][i]);
        s.fresh[which][lane + 32 * i] = x;
        if (heads.is_keeper)
            to[lane + 32 * i] = x;
    }
}

/* Scores (log 2) of a warp's 16 keys by 8 heads: c as the C operand. A lane reads 16 bytes, so dims
 * 32 b + 8 j + i go to two instructions, for keys and queries alike. */
FN void decode_scores(float c[4], uint16_t *keys, const uint4 q[8], int lane) {
    int g = lane / 4, j = lane % 4;
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int b = 0; b < 8; b++) {
        uint4 k0 = *reinterpret_cast<const uint4 *>(decode_piece(keys, g, 4 * b + j));
        uint4 k1 = *reinterpret_cast<const uint4 *>(decode_piece(keys, g + 8, 4 * b + j));
        uint32_t a0[4] = {k0.x, k1.x, k0.y, k1.y};
        uint32_t a1[4] = {k0.z, k1.z, k0.w, k1.w};
        mma_bf16(c, a0, q[b].x, q[b].y);
        mma_bf16(d, a1, q[b].z, q[b].w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = (c[i] + d[i]) * LOG2_E;
}

/* A piece's running numbers: of heads 2 j and 2 j + 1, sums over the lane's own keys; products for
 * the warp's 64 dims as four C operands, rows dims, columns heads. */
struct Running {
    float top[2], sum[2];
    float out[4][4];
};

/* Probabilities of the warp's keys into shared memory, each as two bf16 whose sum is within 2^-17
 * of it; those at and above n_keys do not count. Returns the factors of what was summed before. */
FN void decode_softmax(Running &run, DecodeShared &s, float c[4], float alpha[2], int32_t key0,
                       int32_t n_keys, int warp, int lane) {
    int g = lane / 4, j = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = key0 + g + i / 2 * 8 < n_keys ? c[i] : NO_SCORE;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = column_max(fmaxf(c[h], c[2 + h]));
        if (g == 0)
            s.top[warp][2 * j + h] = top;
    }
    __syncthreads(); // also: every warp is done with the probabilities of the tile before
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = run.top[h];
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            top = fmaxf(top, s.top[w][2 * j + h]);
        alpha[h] = exp2f(run.top[h] - top);
        run.top[h] = top;
#pragma unroll
        for (int i = h; i < 4; i += 2) {
            float p = c[i] > NO_SCORE ? exp2f(c[i] - top) : 0.0f;
            c[i] = c[i] == c[i] ? p : c[i]; // a NaN stays one
        }
        run.sum[h] = fmaf(run.sum[h], alpha[h], c[h] + c[2 + h]);
    }
    uint32_t high[2], low[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        high[k] = pack_bf16(c[2 * k], c[2 * k + 1]);
        low[k] = pack_bf16(c[2 * k] - bf16_low(high[k]), c[2 * k + 1] - bf16_high(high[k]));
        high[k] = transpose_matrix(high[k]);
        low[k] = transpose_matrix(low[k]);
    }
    s.p[warp][lane] = make_uint4(high[0], high[1], low[0], low[1]);
}

/* out = out * alpha + sum of p v over the tile's values (zeros where there is none). */
FN void decode_values(Running &run, DecodeShared &s, const float alpha[2], int warp, int lane) {
    int row = lane / 16 * 8 + lane % 8, which = lane / 8 % 2;
    SharedAt at[4]; // of dims 64 warp + 16 t ..; 16 keys are 8192 bytes
#pragma unroll
    for (int t = 0; t < 4; t++) {
        at[t] = shared_place(wide_piece(s.values, row, 8 * warp + 2 * t + which));
#pragma unroll
        for (int i = 0; i < 4; i++)
            run.out[t][i] *= alpha[i % 2];
    }
#pragma unroll
    for (int k = 0; k < DECODE_WARPS; k++) {
        uint4 p = s.p[k][lane];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t v[4];
            load_matrix_transposed(v, at[t] + k * 8192);
            mma_bf16(run.out[t], v, p.x, p.y);
            mma_bf16(run.out[t], v, p.z, p.w);
        }
    }
}

FN void run_begin(Running &run) {
    run.top[0] = run.top[1] = NO_SCORE;
    run.sum[0] = run.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        run.out[i / 4][i % 4] = 0.0f;
}

/* A finished piece to its place. The warps' sums, in order, are there behind the barrier. */
FN void run_store(const Running &run, DecodeShared &s, const CudaAttnDecode &a, const DecodeTile &t,
                  int warp, int lane) {
    int g = lane / 4, j = lane % 4;
    DecodeHeads heads = decode_heads(a.t, t.line);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int32_t head = 2 * j + h;
        if (head >= heads.n)
            continue;
        int64_t at = ((int64_t)t.row * a.t.nq + heads.first + head) * CUDA_MAX_SPLITS + t.piece;
        float *to = a.part + at * DIM + 64 * warp + g;
#pragma unroll
        for (int n = 0; n < 8; n++)
            to[8 * n] = run.out[n / 2][n % 2 * 2 + h];
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++)
            sum += s.sum[w][head];
        if (warp == 0 && g == 0)
            *reinterpret_cast<float2 *>(a.part_ml + at * 2) = make_float2(run.top[h], sum);
    }
}

/* The scores of a tile and what follows from them. keys and values of `next` are asked for as soon
 * as their places are free. */
FN void decode_tile(Running &run, DecodeShared &s, const CudaAttnDecode &a, const DecodeTile &t,
                    const DecodeTile &next, bool has_next, const uint4 q[8], int warp, int lane) {
    int32_t key0 = t.key0 + warp * DECODE_KEYS, fresh = t.pos - key0;
    bool is_fresh = fresh >= 0 && fresh < DECODE_KEYS, is_end = t.key0 + TILE_KEYS >= decode_end(t);
    float c[4], alpha[2];
    copy_wait<1>(); // the keys
    if (is_fresh)
        *reinterpret_cast<uint4 *>(decode_piece(s.keys[warp], fresh, lane)) =
            *reinterpret_cast<const uint4 *>(&s.fresh[0][8 * lane]);
    __syncwarp();
    decode_scores(c, s.keys[warp], q, lane);
    __syncwarp();
    decode_fetch(s, a, next, 0, has_next, warp, lane);
    decode_softmax(run, s, c, alpha, key0, t.pos + 1, warp, lane);
    copy_wait<1>(); // the values
    if (is_fresh)
        *reinterpret_cast<uint4 *>(wide_piece(s.values, warp * DECODE_KEYS + fresh, lane)) =
            *reinterpret_cast<const uint4 *>(&s.fresh[1][8 * lane]);
#pragma unroll
    for (int h = 0; is_end && h < 2; h++) {
        float sum = column_sum(run.sum[h]);
        if (lane < 4)
            s.sum[warp][2 * lane + h] = sum;
    }
    __syncthreads();
    decode_values(run, s, alpha, warp, lane);
    if (is_end)
        run_store(run, s, a, t, warp, lane);
    __syncthreads();
    decode_fetch(s, a, next, 1, has_next, warp, lane);
}

/* A block walks its pieces tile by tile: a warp multiplies the queries by 16 keys, then all the
 * probabilities by 64 dims of the values. Keys and values of earlier steps are under way before the
 * wait. */
__global__ void __launch_bounds__(DECODE_WARPS * 32, DECODE_BLOCKS)
    attn_decode_kernel(CudaAttnDecode a) {
    DYN_SHARED(DecodeShared, shared);
    DecodeShared &s = *shared;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    DecodeTile t = {};
    int32_t left = decode_first(t, a, lane);
    if (left == 0) {
        chain_wait();
        chain_next();
        return;
    }
    decode_fetch(s, a, t, 0, true, warp, lane);
    decode_fetch(s, a, t, 1, true, warp, lane);
    HeadNorm query = head_norm_load(a.t.q_norm, a.t.rope, t.pos, lane);
    HeadNorm key = head_norm_load(a.t.k_norm, a.t.rope, t.pos, lane);
    chain_wait();
    chain_next(); // the kernel behind reads the projections before it waits
    uint4 q[8];
    Running run;
    for (bool is_first = true, has_next = true; has_next;) {
        if (is_first || t.piece + t.key0 == 0) { // a line begins
            if (!is_first) {
                query = head_norm_load(a.t.q_norm, a.t.rope, t.pos, lane);
                key = head_norm_load(a.t.k_norm, a.t.rope, t.pos, lane);
            }
            decode_prepare(s, a, t, query, key, t.piece + left >= t.n_pieces, warp, lane);
            __syncthreads();
#pragma unroll
            for (int b = 0; b < 8; b++)
                q[b] = *reinterpret_cast<const uint4 *>(&s.q[lane / 4][32 * b + 8 * (lane % 4)]);
        }
        if (is_first || t.key0 == t.piece * t.length)
            run_begin(run);
        DecodeTile next = t;
        has_next = decode_next(next, left, a);
        decode_tile(run, s, a, t, next, has_next, q, warp, lane);
        t = next;
        is_first = false;
    }
    copy_wait<0>();
}

/* Block (query head and half of its dims, row): the pieces of each of 16 parts in order, parts in
 * order, gate, digits. Warp w is part w: pieces w + 16 i; lane l holds dims 4 l .. */
__global__ void __launch_bounds__(MERGE_PARTS * 32, 3) attn_merge_kernel(CudaAttnDecode a) {
    __shared__ __align__(16) float y[MERGE_PARTS][MERGE_DIMS];
    int32_t head = (int32_t)blockIdx.x / 2, dim0 = (int32_t)blockIdx.x % 2 * MERGE_DIMS;
    int32_t row = (int32_t)blockIdx.y, n = decode_pieces(a.rows[row].pos + 1);
    int t = (int)threadIdx.x, part = t / 32, lane = t % 32;
    int64_t at = ((int64_t)row * a.t.nq + head) * CUDA_MAX_SPLITS;
    // The projections were ready before the pieces began.
    const float *gates = a.proj + (int64_t)row * a.ld + (2 * head + 1) * DIM + dim0;
    float gate = t < MERGE_DIMS ? __ldcg(gates + t) : 0.0f;
    chain_wait();
    chain_next();
    const float2 *ml = reinterpret_cast<const float2 *>(a.part_ml) + at;
    const float *in = a.part + at * DIM + dim0 + 4 * lane;
    float2 mine[CUDA_MAX_SPLITS / 32];
    float4 v[MERGE_EACH];
#pragma unroll
    for (int i = 0; i < CUDA_MAX_SPLITS / 32; i++)
        mine[i] = 32 * i + lane < n ? __ldcg(ml + 32 * i + lane) : make_float2(NO_SCORE, 0.0f);
#pragma unroll
    for (int i = 0; i < MERGE_EACH; i++) {
        int32_t piece = part + MERGE_PARTS * i;
        v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (piece < n)
            v[i] = __ldcg(reinterpret_cast<const float4 *>(in + (int64_t)piece * DIM));
    }
    float top = NO_SCORE, sum = 0.0f, factor[CUDA_MAX_SPLITS / 32];
#pragma unroll
    for (int i = 0; i < CUDA_MAX_SPLITS / 32; i++)
        top = fmaxf(top, mine[i].x);
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < CUDA_MAX_SPLITS / 32; i++) {
        factor[i] = exp2f(mine[i].x - top);
        sum = fmaf(factor[i], mine[i].y, sum);
    }
    sum = warp_sum(sum);
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < MERGE_EACH; i++) {
        float f = __shfl_sync(FULL_WARP, factor[i / 2], part + i % 2 * MERGE_PARTS);
        out.x = fmaf(f, v[i].x, out.x);
        out.y = fmaf(f, v[i].y, out.y);
        out.z = fmaf(f, v[i].z, out.z);
        out.w = fmaf(f, v[i].w, out.w);
    }
    *reinterpret_cast<float4 *>(&y[part][4 * lane]) = out;
    __syncthreads();
    if (t < MERGE_DIMS) {
        float all = 0.0f;
#pragma unroll
        for (int q = 0; q < MERGE_PARTS; q++)
            all += y[q][t];
        y[0][t] = all / sum * sigmoid(gate);
    }
    __syncthreads();
    if (t >= 32)
        return;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = 0.0f;
    if (lane < 8)
        group_load(x, y[0] + lane / 4 * CUDA_GROUP, lane % 4);
    DigitLane digits = digits_make(x);
    if (lane < 8) {
        int64_t g = ((int64_t)row * a.t.nq + head) * 4 + dim0 / CUDA_GROUP + lane / 4;
        digits_store(a.out.digit + g * 32, a.out.scale + g * 2, digits, lane % 4);
    }
}

extern "C" cudaError_t cuda_attn_decode(const CudaLaunch *l, const CudaAttnDecode *a) {
    int32_t lines = a->t.nkv * ((a->t.nq / a->t.nkv + GROUP - 1) / GROUP);
    int64_t most = (int64_t)a->m * lines * CUDA_MAX_SPLITS, fit = (int64_t)l->n_sm * DECODE_BLOCKS;
    unsigned blocks = (unsigned)(fit > 0 && fit < most ? fit : most);
    CUDA_TRY(
        start(l, attn_decode_kernel, dim3(blocks), DECODE_WARPS * 32, sizeof(DecodeShared), *a));
    dim3 grid((unsigned)(a->t.nq * (DIM / MERGE_DIMS)), (unsigned)a->m);
    return start(l, attn_merge_kernel, grid, MERGE_PARTS * 32, 0, *a);
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
        head_norm(v, head_norm_load(is_query ? a.t.q_norm : a.t.k_norm, a.t.rope, r.pos, lane),
                  a.t.eps);
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

/* 64 rows of keys or values; those at and above `count` become zeros. */
template <int WARPS> FN void kv_fetch(uint16_t *tile, const uint16_t *from, int32_t count) {
    for (int at = (int)threadIdx.x; at < TILE_KEYS * 32; at += WARPS * 32) {
        int row = at / 32, piece = at % 32;
        copy_async(wide_piece(tile, row, piece), from + row * DIM + piece * 8, row < count);
    }
}

template <int WARPS> FN void q_fetch(uint16_t *tile, const CudaAttnPrefill &a, const TileWork &w) {
    for (int at = (int)threadIdx.x; at < WARPS * 16 * 32; at += WARPS * 32) {
        int row = at / 32, piece = at % 32;
        bool is_there = row < w.n_rows;
        copy_async(wide_piece(tile, row, piece), a.q + query_row(a, w, row) + piece * 8, is_there);
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

/* Block (tile of tokens, key-value head, segment where they are split). */
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attn_prefill_kernel(CudaAttnPrefill a) {
    DYN_SHARED(uint16_t, q);
    uint16_t *k = q + WARPS * 16 * DIM, *v = k + TILE_KEYS * DIM;
    chain_wait();
    chain_next();
    int me = (int)threadIdx.x, warp = me / 32, lane = me % 32;
    __shared__ TileWork w; // shared, as registers are short
    if (me == 0)
        w = tile_work(a, WARPS * 16);
    __syncthreads();
    if (w.from >= w.to)
        return; // the tile has fewer segments
    RowPair r = rows_begin(w, warp, lane);
    float out[32][4] = {};
    int32_t block = w.table[w.from / TILE_KEYS], edge = a.segment;
    q_fetch<WARPS>(q, a, w);
    kv_fetch<WARPS>(k, kv_tile(a.t, block, 0, w.kv_head), w.n_keys - w.from);
    copy_commit();
    kv_fetch<WARPS>(v, kv_tile(a.t, block, 1, w.kv_head), w.n_keys - w.from);
    copy_commit();
    for (int32_t key0 = w.from; key0 < w.to; key0 += TILE_KEYS) {
        float c[8][4], alpha[2];
        copy_wait<1>(); // the keys
        __syncthreads();
        tile_scores(c, q, k, warp, lane);
        __syncthreads();
        int32_t next = key0 + TILE_KEYS;
        bool has_next = next < w.to;
        block = has_next ? w.table[next / TILE_KEYS] : 0;
        if (has_next)
            kv_fetch<WARPS>(k, kv_tile(a.t, block, 0, w.kv_head), w.n_keys - next);
        copy_commit();
        tile_softmax(c, r, alpha, key0, lane);
        copy_wait<1>(); // the values
        __syncthreads();
        tile_values(out, c, alpha, v, lane);
        __syncthreads();
        if (has_next)
            kv_fetch<WARPS>(v, kv_tile(a.t, block, 1, w.kv_head), w.n_keys - next);
        copy_commit();
        if (has_next && next == edge) {
            segment_end(a, out, r, edge == a.segment, WARPS * 32, me);
            edge += a.segment;
        }
    }
    tile_end(a, w, out, r, WARPS * 32, warp, lane);
}

/* Joins the segments of tiles that were split. Block (tile, key-value head, 32 dims). */
template <int WARPS>
__global__ void __launch_bounds__(WARPS * 32) attn_join_kernel(CudaAttnPrefill a) {
    chain_wait();
    chain_next();
    int me = (int)threadIdx.x, warp = me / 32, lane = me % 32;
    TileWork w = tile_work(a, WARPS * 16);
    if (w.n_keys <= a.segment)
        return; // finished by its only block
    int n0 = (int)blockIdx.z * JOIN_DIMS;
    float total[JOIN_DIMS][4], keep[2], add[2];
    RowPair r = rows_begin(w, warp, lane);
    const float4 *place = segment_place(a, 0, WARPS * 32);
    segment_rows(r, place, WARPS * 32, me);
#pragma unroll
    for (int n = 0; n < JOIN_DIMS; n++) {
        float4 v = __ldcg(place + (n0 + n) * WARPS * 32 + me);
        total[n][0] = v.x;
        total[n][1] = v.y;
        total[n][2] = v.z;
        total[n][3] = v.w;
    }
#pragma unroll 4
    for (int32_t i = 1; i * a.segment < w.n_keys; i++) {
        RowPair next = r;
        place = segment_place(a, i, WARPS * 32);
        segment_rows(next, place, WARPS * 32, me);
        rows_join(r, next, keep, add);
#pragma unroll
        for (int n = 0; n < JOIN_DIMS; n++) {
            float4 v = __ldcg(place + (n0 + n) * WARPS * 32 + me);
            total[n][0] = segment_join(total[n][0], v.x, keep[0], add[0]);
            total[n][1] = segment_join(total[n][1], v.y, keep[0], add[0]);
            total[n][2] = segment_join(total[n][2], v.z, keep[1], add[1]);
            total[n][3] = segment_join(total[n][3], v.w, keep[1], add[1]);
        }
    }
    tile_finish(a, w, total, r, n0, warp, lane);
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

/* Bytes for tiles of so many warps: a place for every one, or for those whose segments go side by
 * side. */
static uint64_t part_bytes(int32_t warps, const CudaAttnSize *s) {
    int32_t tokens = warps * 16 / (s->nq / s->nkv), n = s->max_ctx / s->segment + 1;
    uint64_t all = ((uint64_t)s->max_rows / (uint64_t)tokens + (uint64_t)s->max_seqs);
    uint64_t places = all > (uint64_t)n ? all : (uint64_t)n;
    places *= (uint64_t)s->nkv;
    uint64_t least = CUDA_ATTN_PLACES;
    return (places > least ? places : least) * PLACE_LINES * (uint64_t)warps * 32 * sizeof(float4);
}

extern "C" uint64_t cuda_attn_part_bytes(const CudaAttnSize *s) {
    uint64_t narrow = part_bytes(4, s), wide = part_bytes(8, s);
    return s->max_ctx <= s->segment ? 0 : narrow > wide ? narrow : wide;
}

/* Whether tiles are too few for the card, and have segments that blocks of their own can take. */
static bool is_split(const CudaLaunch *l, const CudaAttnPrefill *a) {
    int64_t blocks = (int64_t)a->n_tiles * a->t.nkv;
    return a->most_keys > a->segment && blocks * 4 <= (int64_t)l->n_sm * 3;
}

static cudaError_t tiles_start(const CudaLaunch *l, const CudaAttnPrefill *a, int32_t n_segments) {
    if (l->n_sm90 && cuda_attn_sm90_fits(a->max_shared))
        return cuda_attn_sm90(l, a, n_segments);
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->t.nkv, (unsigned)n_segments);
    if (prefill_warps(a->max_shared) == 8)
        return start(l, attn_prefill_kernel<8>, grid, 256, prefill_shared<8>(), *a);
    return start(l, attn_prefill_kernel<4>, grid, 128, prefill_shared<4>(), *a);
}

static cudaError_t join_start(const CudaLaunch *l, const CudaAttnPrefill *a) {
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->t.nkv, 32 / JOIN_DIMS);
    if (prefill_warps(a->max_shared) == 8)
        return start(l, attn_join_kernel<8>, grid, 256, 0, *a);
    return start(l, attn_join_kernel<4>, grid, 128, 0, *a);
}

extern "C" cudaError_t cuda_attn_prefill(const CudaLaunch *l, const CudaAttnPrefill *a) {
    unsigned heads = (unsigned)(a->t.nq + 2 * a->t.nkv);
    CUDA_TRY(start(l, attn_prepare_kernel, dim3((heads + 7) / 8, (unsigned)a->m), 256, 0, *a));
    if (!is_split(l, a))
        return tiles_start(l, a, 1);
    int32_t n = (a->most_keys + a->segment - 1) / a->segment;
    int32_t each = CUDA_ATTN_PLACES / (a->t.nkv * n); // tiles whose segments go side by side
    each = each > 1 ? each : 1;
    CudaAttnPrefill part = *a;
    for (int32_t at = 0; at < a->n_tiles; at += each) {
        part.tiles = a->tiles + at;
        part.n_tiles = a->n_tiles - at < each ? a->n_tiles - at : each;
        CUDA_TRY(tiles_start(l, &part, n));
        CUDA_TRY(join_start(l, &part));
    }
    return cudaSuccess;
}

cudaError_t cuda_attn_init(int max_shared) {
    CUDA_TRY(allow_shared(attn_decode_kernel, sizeof(DecodeShared)));
    CUDA_TRY(cuda_attn_sm90_init(max_shared));
    if (prefill_warps(max_shared) == 8)
        return allow_shared(attn_prefill_kernel<8>, prefill_shared<8>());
    return allow_shared(attn_prefill_kernel<4>, prefill_shared<4>());
}

TRACE_BIND(attn)
