// SPDX-License-Identifier: Apache-2.0
/* cuda_attn.cuh - what the columns of prefill attention share: tiles of the cache, the running
 * softmax, the end of a tile.
 *
 * Path:     cuda_attn.cu (sm80) and cuda_attn_sm90.cu include it.
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_ATTN_CUH
#define LILY_BACKEND_CUDA_CUDA_ATTN_CUH

#include "backend/cuda/cuda_device.cuh"

enum {
    DIM = 256,
    TILE_KEYS = 64,
    PLACE_LINES = DIM / 8 + 1, // float4 of a thread in its tile's place: products; top, sum
    JOIN_DIMS = 4,             // eights of dims that a block joins
};

#define LOG2_E 1.4426950408889634f
#define NO_SCORE (-3.0e38f)

/* Rows of 64 keys (which 0) or values (which 1) of one block and head: [64, 256]. */
FN uint16_t *kv_tile(const CudaAttn &t, int32_t block, int which, int32_t head) {
    char *base = reinterpret_cast<char *>(t.kv) + block * t.block_stride;
    return reinterpret_cast<uint16_t *>(base) + ((int64_t)which * t.nkv + head) * TILE_KEYS * DIM;
}

/* What a block works on: query rows, token by token, head by head, by keys [from, to). */
struct TileWork {
    int32_t row0, head0, heads, n_rows;
    int32_t pos0, n_keys, kv_head, from, to;
    const int32_t *table;
};
/* Blocks (tile, key-value head, segment where there are several). The last tiles, which see most
 * keys, come first. */
FN TileWork tile_work(const CudaAttnPrefill &a, int32_t rows) {
    CudaTile tile = a.tiles[gridDim.x - 1 - blockIdx.x];
    CudaSeq seq = a.seqs[tile.seq];
    TileWork w;
    w.kv_head = (int32_t)blockIdx.y;
    w.heads = a.t.nq / a.t.nkv;
    w.head0 = w.kv_head * w.heads;
    int32_t tokens = rows / w.heads, left = seq.n_rows - tile.tok0;
    tokens = left < tokens ? left : tokens;
    w.row0 = seq.row0 + tile.tok0;
    w.n_rows = tokens * w.heads;
    w.pos0 = seq.pos0 + tile.tok0;
    w.n_keys = w.pos0 + tokens;
    w.table = a.t.table + seq.table;
    w.from = (int32_t)blockIdx.z * a.segment;
    w.to = gridDim.z > 1 && w.from + a.segment < w.n_keys ? w.from + a.segment : w.n_keys;
    return w;
}

/* Place of query row i in a.q: token i / heads, head i % heads; 0 behind the rows. */
FN int64_t query_row(const CudaAttnPrefill &a, const TileWork &w, int32_t i) {
    return i < w.n_rows ? ((int64_t)(w.row0 + i / w.heads) * a.t.nq + w.head0 + i % w.heads) * DIM
                        : 0;
}

/* Two rows of a lane: token positions, running largest score and sum. */
struct RowPair {
    int32_t pos[2];
    float top[2], sum[2];
};
FN void rows_clear(RowPair &r) {
    r.top[0] = r.top[1] = NO_SCORE;
    r.sum[0] = r.sum[1] = 0.0f;
}
FN RowPair rows_begin(const TileWork &w, int warp, int lane) {
    RowPair r;
    r.pos[0] = w.pos0 + (warp * 16 + lane / 4) / w.heads;
    r.pos[1] = w.pos0 + (warp * 16 + lane / 4 + 8) / w.heads;
    rows_clear(r);
    return r;
}
FN void rows_sum(RowPair &r) { // from the lane's share to the rows'
    r.sum[0] = quad_sum(r.sum[0]);
    r.sum[1] = quad_sum(r.sum[1]);
}

/* Scores to probabilities; returns the factors of the rows' older sums. A row that sees none of the
 * segment's keys so far gets zeros: `top` is then below every score. */
FN void tile_softmax(float (&c)[8][4], RowPair &r, float alpha[2], int32_t key0, int lane) {
    int j = lane % 4;
    if (key0 + TILE_KEYS - 1 > r.pos[0]) // of the two, row 0 comes first
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key0 + n * 8 + 2 * j + i % 2 > r.pos[i / 2])
                    c[n][i] = NO_SCORE;
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = r.top[h];
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(c[n][2 * h], c[n][2 * h + 1]));
        top = quad_max(top);
        alpha[h] = exp2_near((r.top[h] - top) * LOG2_E);
        base[h] = fmaxf(top, NO_SCORE / 4) * LOG2_E;
        r.top[h] = top;
        r.sum[h] *= alpha[h];
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c[n][i] = exp2_near(fmaf(c[n][i], LOG2_E, -base[i / 2]));
            r.sum[i / 2] += c[n][i];
        }
}

/* x times the sigmoid of a gate, close enough for bf16. */
FN float gated(float x, float gate) { return x / (1.0f + exp2_near(gate * -LOG2_E)); }

/* Divides by the rows' sums, gates, stores: N eights of dims from n0 on. */
template <int N>
FN void tile_finish(const CudaAttnPrefill &a, const TileWork &w, float (&out)[N][4],
                    const RowPair &r, int n0, int warp, int lane) {
    int g = lane / 4, j = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = warp * 16 + g + 8 * h;
        float share = 1.0f / r.sum[h];
        if (i >= w.n_rows)
            continue;
        int64_t row = w.row0 + i / w.heads, head = w.head0 + i % w.heads;
        const uint16_t *gate = a.proj + row * a.ld + (2 * head + 1) * DIM + n0 * 8;
        uint16_t *to = a.out + (row * a.t.nq + head) * DIM + n0 * 8;
        uint32_t two[N]; // all on their way before the first store, which they might depend on
#pragma unroll
        for (int n = 0; n < N; n++)
            two[n] = *reinterpret_cast<const uint32_t *>(gate + n * 8 + 2 * j);
#pragma unroll
        for (int n = 0; n < N; n++)
            *reinterpret_cast<uint32_t *>(to + n * 8 + 2 * j) =
                pack_bf16(gated(out[n][2 * h] * share, bf16_low(two[n])),
                          gated(out[n][2 * h + 1] * share, bf16_high(two[n])));
    }
}

/* ---- segments ----
 *
 * Keys are cut at multiples of a.segment. A segment's largest score, sum and products start from
 * nothing; segments are joined in ascending order, by rows_join and segment_join alone, whether
 * one block walks all of them and keeps the total in the scratch or each has a block of its own.
 * So the bits are the same. */

/* The total joined with the next segment, and what the products of both are multiplied by. */
FN void rows_join(RowPair &total, const RowPair &next, float keep[2], float add[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(total.top[h], next.top[h]);
        keep[h] = exp2_near((total.top[h] - top) * LOG2_E);
        add[h] = exp2_near((next.top[h] - top) * LOG2_E);
        total.top[h] = top;
        total.sum[h] = fmaf(next.sum[h], add[h], total.sum[h] * keep[h]);
    }
}
FN float segment_join(float total, float next, float keep, float add) {
    return fmaf(next, add, total * keep);
}

/* Where a block keeps its numbers: [PLACE_LINES][threads]; z: the segment, 0 of a total. */
FN float4 *segment_place(const CudaAttnPrefill &a, int32_t z, int threads) {
    int64_t block = ((int64_t)z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    return reinterpret_cast<float4 *>(a.part) + block * PLACE_LINES * threads;
}
FN void segment_put(float4 *place, const float (&out)[32][4], const RowPair &r, int threads,
                    int me) {
#pragma unroll
    for (int n = 0; n < 32; n++)
        place[n * threads + me] = make_float4(out[n][0], out[n][1], out[n][2], out[n][3]);
    place[32 * threads + me] = make_float4(r.top[0], r.top[1], r.sum[0], r.sum[1]);
}
FN void segment_rows(RowPair &r, const float4 *place, int threads, int me) {
    float4 v = __ldcg(place + 32 * threads + me);
    r.top[0] = v.x;
    r.top[1] = v.y;
    r.sum[0] = v.z;
    r.sum[1] = v.w;
}

/* Joins the total at `place` and a finished segment in registers. */
FN void segment_add(const float4 *place, float (&out)[32][4], RowPair &r, int threads, int me) {
    RowPair total = r;
    float keep[2], add[2];
    segment_rows(total, place, threads, me);
    rows_join(total, r, keep, add);
    r = total;
#pragma unroll
    for (int n = 0; n < 32; n++) {
        float4 v = __ldcg(place + n * threads + me);
        out[n][0] = segment_join(v.x, out[n][0], keep[0], add[0]);
        out[n][1] = segment_join(v.y, out[n][1], keep[0], add[0]);
        out[n][2] = segment_join(v.z, out[n][2], keep[1], add[1]);
        out[n][3] = segment_join(v.w, out[n][3], keep[1], add[1]);
    }
}

/* A segment ends and the block goes on to the next: its numbers to the total, and anew. */
FN void segment_end(const CudaAttnPrefill &a, float (&out)[32][4], RowPair &r, bool is_first,
                    int threads, int me) {
    float4 *place = segment_place(a, 0, threads);
    rows_sum(r);
    if (!is_first)
        segment_add(place, out, r, threads, me);
    segment_put(place, out, r, threads, me);
#pragma unroll
    for (int i = 0; i < 128; i++)
        out[i / 4][i % 4] = 0.0f;
    rows_clear(r);
}

/* The block's last segment ends: with others of the same tile to come its numbers to their place,
 * else the tile is finished. */
FN void tile_end(const CudaAttnPrefill &a, const TileWork &w, float (&out)[32][4], RowPair &r,
                 int threads, int warp, int lane) {
    int me = warp * 32 + lane;
    bool is_cut = w.n_keys > a.segment, is_split = gridDim.z > 1;
    rows_sum(r);
    if (is_cut && is_split) {
        segment_put(segment_place(a, (int32_t)blockIdx.z, threads), out, r, threads, me);
        return;
    }
    if (is_cut)
        segment_add(segment_place(a, 0, threads), out, r, threads, me);
    tile_finish(a, w, out, r, 0, warp, lane);
}

#endif
