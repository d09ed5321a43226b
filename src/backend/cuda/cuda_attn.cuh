// SPDX-License-Identifier: Apache-2.0
/* cuda_attn.cuh - what the columns of prefill attention share: tiles of the cache, the running
 * softmax, the end of a tile.
 *
 * Path:     cuda_attn.cu (sm80) and cuda_attn_sm90.cu include it.
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_ATTN_CUH
#define LILY_BACKEND_CUDA_CUDA_ATTN_CUH

#include "backend/cuda/cuda_device.cuh"

enum { DIM = 256, TILE_KEYS = 64 };

#define LOG2_E 1.4426950408889634f
#define NO_SCORE (-3.0e38f)

/* Rows of 64 keys (which 0) or values (which 1) of one block and head: [64, 256]. */
FN uint16_t *kv_tile(const CudaAttn &t, int32_t block, int which, int32_t head) {
    char *base = reinterpret_cast<char *>(t.kv) + block * t.block_stride;
    return reinterpret_cast<uint16_t *>(base) + ((int64_t)which * t.nkv + head) * TILE_KEYS * DIM;
}

/* Two rows of a lane: token positions, running largest score and sum. */
struct RowPair {
    int32_t pos[2];
    float top[2], sum[2];
};

/* Scores to probabilities; returns the factors of the rows' older sums. Every row sees key 0, so
 * that behind the first tile `top` is a score. */
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
        base[h] = top * LOG2_E;
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

/* Divides by the sums, gates, stores. */
FN void tile_finish(const CudaAttnPrefill &a, float (&out)[32][4], RowPair &r, int32_t row0,
                    int32_t head0, int32_t heads, int32_t n_rows, int warp, int lane) {
    int g = lane / 4, j = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = warp * 16 + g + 8 * h;
        float sum = quad_sum(r.sum[h]);
        if (i >= n_rows)
            continue;
        int64_t row = row0 + i / heads, head = head0 + i % heads;
        const uint16_t *gate = a.proj + row * a.ld + (2 * head + 1) * DIM;
        uint16_t *to = a.out + (row * a.t.nq + head) * DIM;
#pragma unroll
        for (int n = 0; n < 32; n++) {
            uint32_t two = *reinterpret_cast<const uint32_t *>(gate + n * 8 + 2 * j);
            *reinterpret_cast<uint32_t *>(to + n * 8 + 2 * j) =
                pack_bf16(out[n][2 * h] / sum * sigmoid(bf16_low(two)),
                          out[n][2 * h + 1] / sum * sigmoid(bf16_high(two)));
        }
    }
}

#endif
