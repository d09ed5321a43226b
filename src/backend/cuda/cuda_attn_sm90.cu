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
 * Order:    key tiles of 64 from position 0 on, as in the sm80 column. */
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

/* What a block works on. */
struct WideWork {
    int32_t row0, head0, heads, n_rows; // query rows: token by token, head by head
    int32_t pos0, n_keys, kv_head;
    const int32_t *table;
};
FN WideWork wide_work(const CudaAttnPrefill &a) {
    CudaTile tile = a.tiles[gridDim.x - 1 - blockIdx.x]; // those that see most keys come first
    CudaSeq seq = a.seqs[tile.seq];
    WideWork w;
    w.kv_head = (int32_t)blockIdx.y;
    w.heads = a.t.nq / a.t.nkv;
    w.head0 = w.kv_head * w.heads;
    int32_t tokens = 128 / w.heads, left = seq.n_rows - tile.tok0;
    tokens = left < tokens ? left : tokens;
    w.row0 = seq.row0 + tile.tok0;
    w.n_rows = tokens * w.heads;
    w.pos0 = seq.pos0 + tile.tok0;
    w.n_keys = w.pos0 + tokens;
    w.table = a.t.table + seq.table;
    return w;
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

FN void wide_copy(const CudaAttnPrefill &a, const WideShared &s, const WideWork &w, int me) {
    int piece = me % 32;
    for (int row = me / 32; row < 128; row += COPIERS / 32) {
        bool is_there = row < w.n_rows;
        int32_t i = is_there ? row : 0;
        int64_t from = ((int64_t)(w.row0 + i / w.heads) * a.t.nq + w.head0 + i % w.heads) * DIM;
        copy_async(panel_piece(s.query + row / 64 * TILE_SIZE, row % 64, piece),
                   a.q + from + piece * 8, is_there);
    }
    gate_arrive_copies(&s.gates->query);
    for (int32_t n = 0; n * TILE_KEYS < w.n_keys; n++) {
        int stage = n % STAGES;
        int32_t block = w.table[n], count = w.n_keys - n * TILE_KEYS;
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

FN void wide_multiply(const CudaAttnPrefill &a, const WideShared &s, const WideWork &w, int warp,
                      int lane) {
    RowPair r;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.pos[h] = w.pos0 + (warp * 16 + lane / 4 + 8 * h) / w.heads;
        r.top[h] = NO_SCORE;
        r.sum[h] = 0.0f;
    }
    const uint16_t *query = s.query + warp / 4 * TILE_SIZE;
    float out[32][4] = {}, c[8][4], alpha[2];
    uint32_t p[4][4];
    int32_t n_tiles = (w.n_keys + TILE_KEYS - 1) / TILE_KEYS;
    gate_wait(&s.gates->query, 0);
    gate_wait(&s.gates->key[0], 0);
    wgmma_publish();
    wide_scores(c, query, s.key);
    wgmma_finish(c);
    if (lane == 0)
        gate_arrive(&s.gates->key_vacant[0]);
    tile_softmax(c, r, alpha, 0, lane);
    wide_pack(p, c);
    for (int32_t n = 0; n + 1 < n_tiles; n++) { // one way through: ptxas must see what is in flight
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
        tile_softmax(c, r, alpha, (n + 1) * TILE_KEYS, lane);
        wgmma_finish(out);
        if (lane == 0)
            gate_arrive(&s.gates->value_vacant[stage]);
        wide_pack(p, c);
#pragma unroll
        for (int i = 0; i < 128; i++)
            out[i / 4][i % 4] *= alpha[i / 2 % 2];
    }
    int32_t last = n_tiles - 1;
    gate_wait(&s.gates->value[last % STAGES], last / STAGES);
    wgmma_publish();
    wide_values(out, p, s.value + last % STAGES * TILE_SIZE);
    wgmma_finish(out);
    tile_finish(a, out, r, w.row0, w.head0, w.heads, w.n_rows, warp, lane);
}

/* Block (tile of tokens, key-value head). */
__global__ void __launch_bounds__(MULTIPLIERS + COPIERS, 1) attn_wide_kernel(CudaAttnPrefill a) {
#if HAS_WGMMA
    DYN_SHARED(unsigned char, all);
    WideShared s = wide_cut(all);
    int me = (int)threadIdx.x;
    if (me == 0) {
        gate_init(&s.gates->query, COPIERS);
        for (int i = 0; i < STAGES; i++) {
            gate_init(&s.gates->key[i], COPIERS);
            gate_init(&s.gates->value[i], COPIERS);
            gate_init(&s.gates->key_vacant[i], MULTIPLIERS / 32);
            gate_init(&s.gates->value_vacant[i], MULTIPLIERS / 32);
        }
    }
    __syncthreads();
    chain_wait();
    chain_next();
    WideWork w = wide_work(a);
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

cudaError_t cuda_attn_sm90(const CudaLaunch *l, const CudaAttnPrefill *a) {
    dim3 grid((unsigned)a->n_tiles, (unsigned)a->t.nkv);
    return start(l, attn_wide_kernel, grid, MULTIPLIERS + COPIERS, wide_shared(), *a);
}

cudaError_t cuda_attn_sm90_init(int max_shared) {
    if (!cuda_attn_sm90_fits(max_shared))
        return cudaSuccess; // another card
    return allow_shared(attn_wide_kernel, wide_shared());
}

TRACE_BIND(attn_sm90)
