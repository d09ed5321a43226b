// SPDX-License-Identifier: Apache-2.0
/* cuda_attn_sm90.cu - prefill attention, the sm90a column: two warp groups with 64 query rows each,
 * a third one that copies keys and values into a ring of two.
 *
 * The query heads of a key-value head are rows of one tile, so that all of them use a key tile from
 * one copy. Scores of the next key tile are asked for before the products of this one with the
 * values, and the softmax runs while the matrix unit makes them.
 *
 * Path:     started by cuda_attn.cu where the launch says so.
 * Owns:     nothing.  Thread: engine.
 * Order:    as in the sm80 column (cuda_attn.cuh has the segments). */
#include "backend/cuda/cuda_attn.cuh"
#include "backend/cuda/cuda_wgmma.cuh"

enum {
    MULTIPLIERS = 256, // threads that multiply: two groups of 64 rows
    COPIERS = 128,     // threads that copy
    STAGES = 2,
    PANEL = 64 * 64,         // numbers: 64 rows of 64 dims, 128 bytes a row
    TILE_SIZE = 4 * PANEL,   // 64 rows of 256 dims
    N_TILES = 2 + 2 * STAGES // queries of both groups, keys, values
};

struct WideGates {
    Gate query, key[STAGES], value[STAGES];        // open when copied
    Gate key_vacant[STAGES], value_vacant[STAGES]; // open when read
};

static constexpr int wide_shared() {
    return 1024 + N_TILES * TILE_SIZE * 2 + (int)sizeof(WideGates);
}

struct WideShared {
    uint16_t *query, *key, *value; // tiles of 64 rows
    WideGates *gates;
};
FN WideShared wide_cut(unsigned char *all) {
    uint32_t past = (uint32_t)((uintptr_t)shared_place(all) % 1024);
    all += (1024 - past) % 1024;
    uint16_t *tile = reinterpret_cast<uint16_t *>(all);
    return {tile, tile + 2 * TILE_SIZE, tile + (2 + STAGES) * TILE_SIZE,
            reinterpret_cast<WideGates *>(tile + N_TILES * TILE_SIZE)};
}

/* ---- copying ---- */

/* Piece of 8 dims of a row in a tile: panels of 64 dims, pieces exchanged inside 128 bytes. */
FN uint16_t *panel_piece(uint16_t *tile, int row, int piece) {
    return tile + piece / 8 * PANEL + row * 64 + ((piece ^ row) & 7) * 8;
}

/* 64 keys or values; zeros from `count` on. */
FN void wide_fetch(uint16_t *tile, const uint16_t *from, int32_t count, int me) {
    int piece = me % 32;
#pragma unroll 4
    for (int row = me / 32; row < TILE_KEYS; row += COPIERS / 32)
        copy_async(panel_piece(tile, row, piece), from + row * DIM + piece * 8, row < count);
}

FN void wide_copy(const CudaAttnPrefill &a, const WideShared &s, const TileWork &w, int me) {
    int piece = me % 32;
    for (int row = me / 32; row < 128; row += COPIERS / 32) {
        copy_async(panel_piece(s.query + row / 64 * TILE_SIZE, row % 64, piece),
                   a.q + query_row(a, w, row) + piece * 8, row < w.n_rows);
    }
    gate_arrive_copies(&s.gates->query);
    for (int32_t n = 0, key0 = w.from; key0 < w.to; n++, key0 += TILE_KEYS) {
        int stage = n % STAGES;
        int32_t block = w.table[key0 / TILE_KEYS], count = w.n_keys - key0;
        if (n >= STAGES)
            gate_wait(&s.gates->key_vacant[stage], n / STAGES - 1);
        wide_fetch(s.key + stage * TILE_SIZE, kv_tile(a.t, block, 0, w.kv_head), count, me);
        gate_arrive_copies(&s.gates->key[stage]);
        if (n >= STAGES)
            gate_wait(&s.gates->value_vacant[stage], n / STAGES - 1);
        wide_fetch(s.value + stage * TILE_SIZE, kv_tile(a.t, block, 1, w.kv_head), count, me);
        gate_arrive_copies(&s.gates->value[stage]);
    }
}

/* ---- multiplying ---- */

/* Asks for the scores of the group's 64 rows by 64 keys. */
FN void wide_scores(float (&c)[8][4], const uint16_t *query, const uint16_t *key) {
#pragma unroll
    for (int n = 0; n < 8; n++)
        c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < DIM / 16; t++) {
        WgTile q = wgmma_step(wgmma_tile(query + t / 4 * PANEL), t % 4);
        WgTile k = wgmma_step(wgmma_tile(key + t / 4 * PANEL), t % 4);
        wgmma_shared(&c[0][0], q, k);
    }
    wgmma_commit();
}

/* Asks for out += probabilities times values. */
FN void wide_values(float (&out)[32][4], const uint32_t (&p)[4][4], const uint16_t *value) {
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            wgmma_turned(&out[8 * n][0], p[t], wgmma_tile_turned(value + n * PANEL + t * 16 * 64));
    wgmma_commit();
}

FN void wide_pack(uint32_t (&p)[4][4], const float (&c)[8][4]) {
#pragma unroll
    for (int t = 0; t < 4; t++) {
        p[t][0] = pack_bf16(c[2 * t][0], c[2 * t][1]);
        p[t][1] = pack_bf16(c[2 * t][2], c[2 * t][3]);
        p[t][2] = pack_bf16(c[2 * t + 1][0], c[2 * t + 1][1]);
        p[t][3] = pack_bf16(c[2 * t + 1][2], c[2 * t + 1][3]);
    }
}

/* Keys [from, to) of one segment, the block's tile n first; returns the tile behind. */
FN int32_t wide_segment(float (&out)[32][4], RowPair &r, const WideShared &s, const uint16_t *query,
                        int32_t n, int32_t from, int32_t to, int lane) {
    float c[8][4], alpha[2];
    uint32_t p[4][4];
    gate_wait(&s.gates->key[n % STAGES], n / STAGES);
    wgmma_publish();
    wide_scores(c, query, s.key + n % STAGES * TILE_SIZE);
    wgmma_finish(c);
    if (lane == 0)
        gate_arrive(&s.gates->key_vacant[n % STAGES]);
    tile_softmax(c, r, alpha, from, lane);
    wide_pack(p, c);
    while ((from += TILE_KEYS) < to) { // one way through: ptxas must see what is in flight
        int stage = n % STAGES, next = (n + 1) % STAGES;
        gate_wait(&s.gates->key[next], (n + 1) / STAGES);
        gate_wait(&s.gates->value[stage], n / STAGES);
        wgmma_publish();
        wide_scores(c, query, s.key + next * TILE_SIZE);
        wide_values(out, p, s.value + stage * TILE_SIZE);
        wgmma_wait<1>();
        wgmma_hold(c);
        if (lane == 0)
            gate_arrive(&s.gates->key_vacant[next]);
        tile_softmax(c, r, alpha, from, lane);
        wgmma_finish(out);
        if (lane == 0)
            gate_arrive(&s.gates->value_vacant[stage]);
        wide_pack(p, c);
#pragma unroll
        for (int i = 0; i < 128; i++)
            out[i / 4][i % 4] *= alpha[i / 2 % 2];
        n++;
    }
    gate_wait(&s.gates->value[n % STAGES], n / STAGES);
    wgmma_publish();
    wide_values(out, p, s.value + n % STAGES * TILE_SIZE);
    wgmma_finish(out);
    if (lane == 0)
        gate_arrive(&s.gates->value_vacant[n % STAGES]);
    return n + 1;
}

FN void wide_multiply(const CudaAttnPrefill &a, const WideShared &s, const TileWork &w, int warp,
                      int lane) {
    RowPair r = rows_begin(w, warp, lane);
    const uint16_t *query = s.query + warp / 4 * TILE_SIZE;
    float out[32][4] = {};
    int32_t n = 0, from = w.from, to = w.to;
    gate_wait(&s.gates->query, 0);
    for (;;) {
        bool is_last = to - from <= a.segment;
        n = wide_segment(out, r, s, query, n, from, is_last ? to : from + a.segment, lane);
        if (is_last)
            break;
        segment_end(a, out, r, from == 0, MULTIPLIERS, warp * 32 + lane);
        from += a.segment;
    }
    tile_end(a, w, out, r, MULTIPLIERS, warp, lane);
}

/* Block (tile of tokens, key-value head, segment where they are split). */
__global__ void __launch_bounds__(MULTIPLIERS + COPIERS, 1) attn_wide_kernel(CudaAttnPrefill a) {
#if HAS_WGMMA
    DYN_SHARED(unsigned char, all);
    WideShared s = wide_cut(all);
    __shared__ TileWork w; // shared, as registers are short
    int me = (int)threadIdx.x;
    if (me == 0) {
        gate_init(&s.gates->query, COPIERS);
        for (int i = 0; i < STAGES; i++) {
            gate_init(&s.gates->key[i], COPIERS);
            gate_init(&s.gates->value[i], COPIERS);
            gate_init(&s.gates->key_vacant[i], MULTIPLIERS / 32);
            gate_init(&s.gates->value_vacant[i], MULTIPLIERS / 32);
        }
        w = tile_work(a, 128);
    }
    __syncthreads();
    chain_wait();
    chain_next();
    if (w.from >= w.to)
        return; // the tile has fewer segments
    if (me >= MULTIPLIERS) {
        registers_give<40>();
        wide_copy(a, s, w, me - MULTIPLIERS);
    } else {
        registers_take<232>();
        wide_multiply(a, s, w, me / 32, me % 32);
    }
#endif
}

/* ---- starting ---- */

bool cuda_attn_sm90_fits(int max_shared) { return max_shared >= wide_shared(); }

cudaError_t cuda_attn_sm90(const CudaLaunch *l, const CudaAttnPrefill *a, int32_t n_segments) {
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->t.nkv, (unsigned)n_segments);
    return start(l, attn_wide_kernel, grid, MULTIPLIERS + COPIERS, wide_shared(), *a);
}

cudaError_t cuda_attn_sm90_init(int max_shared) {
    if (!cuda_attn_sm90_fits(max_shared))
        return cudaSuccess; // another card
    return allow_shared(attn_wide_kernel, wide_shared());
}

TRACE_BIND(attn_sm90)
