// SPDX-License-Identifier: Apache-2.0
/* cuda_matmul.cu - prefill products, the sm80 column, and the choice between both: weights are the
 * A operand, each lane turns its own codes into bf16 (scale * code + bias, rounded once) in
 * registers; rows of the step come through shared memory, four tiles deep.
 *
 * Path:     started by cuda_step.c; hands on to cuda_matmul_sm90.cu where the launch says so.
 * Owns:     nothing.  Thread: engine.
 * Not here: decode products (cuda_matvec.cu). */
#include "backend/cuda/cuda_operand.cuh"

cudaError_t cuda_matmul_sm90(const CudaLaunch *l, const CudaMatmul *m);
cudaError_t cuda_matmul_sm90_init(int max_shared);
bool cuda_matmul_sm90_is_built();

enum { STAGES = 4, WARP_ROWS = 32 };

/* A lane's codes and scales of two row blocks of one tile. */
struct Codes {
    uint4 word[2];
    uint2 scale[2];
};

FN void codes_load(Codes &c, const CudaMatrix &w, int64_t block, int64_t n_blocks, int32_t tile,
                   int lane) {
    int32_t tiles = w.k / CUDA_GROUP;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (block + i < n_blocks) {
            int64_t at = (block + i) * tiles + tile;
            c.word[i] = load_once(reinterpret_cast<const uint4 *>(w.code + at * 128) + lane);
            c.scale[i] = load_once(reinterpret_cast<const uint2 *>(w.scale + at * 16) + lane / 4);
        }
}

/* What a block works on. */
struct Work {
    int64_t block0, n_blocks; // first packed row block of the warp; end of the matrix
    int32_t n0;               // output of the first row of the warp
    int32_t count;            // rows of the step in this tile
};

/* Row tile of a stage: 64 bf16 a row, its eight 16-byte pieces exchanged by row % 8. */
FN uint16_t *tile_piece(uint16_t *tile, int row, int piece) {
    return tile + row * 64 + (piece ^ (row & 7)) * 8;
}

template <int ROWS, int WARPS>
FN void tile_fetch(uint16_t *tile, const uint16_t *u, const int64_t *source, int32_t count,
                   int32_t k0) {
    for (int at = (int)threadIdx.x; at < ROWS * 8; at += WARPS * 32) {
        int row = at / 8, piece = at % 8;
        bool is_there = row < count;
        copy_async(tile_piece(tile, row, piece), u + (is_there ? source[row] + k0 + piece * 8 : 0),
                   is_there);
    }
}

template <int ROWS>
FN void tile_multiply(float (&acc)[2][ROWS / 8][4], const Codes &c, uint16_t *tile, int lane) {
    // Which of four 8 x 8 matrices this lane points at, and its row there; 1024 bytes are 8 rows.
    int row = lane % 8, which = lane / 8;
    SharedAt at[4];
#pragma unroll
    for (int t = 0; t < 4; t++)
        at[t] = shared_place(tile_piece(tile, which / 2 * 8 + row, 2 * t + which % 2));
#pragma unroll
    for (int t = 0; t < 4; t++) {
        uint32_t a[2][4];
        codes_operand(a[0], c.word[0], c.scale[0], t);
        codes_operand(a[1], c.word[1], c.scale[1], t);
#pragma unroll
        for (int n = 0; n < ROWS / 8; n += 2) {
            uint32_t b[4]; // inputs 0-7, 8-15 of rows n*8.., then of rows n*8+8..
            load_matrix(b, at[t] + n * 1024);
            mma_bf16(acc[0][n], a[0], b[0], b[1]);
            mma_bf16(acc[1][n], a[1], b[0], b[1]);
            mma_bf16(acc[0][n + 1], a[0], b[2], b[3]);
            mma_bf16(acc[1][n + 1], a[1], b[2], b[3]);
        }
    }
}

FN void out_pair(uint16_t *y, int64_t at, uint32_t two, bool is_there) {
    if (is_there)
        *reinterpret_cast<uint32_t *>(y + at) = two;
}

/* Rows of the step that the columns of the tile stand for, in shared memory: target [ROWS]. */
template <int ROWS>
FN void tile_store(const CudaMatmul &a, const Work &w, float (&acc)[2][ROWS / 8][4],
                   const int32_t *target, int lane) {
    int g = lane / 4, j = lane % 4;
    uint16_t *y = static_cast<uint16_t *>(a.y);
    float *x = static_cast<float *>(a.y);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t block = w.block0 + i;
        bool is_block = block < w.n_blocks;
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++) {
            const float *c = acc[i][n];
            int row = n * 8 + g; // after the transposition: one row, two outputs
            bool is_row = row < w.count && is_block;
            int64_t at = (int64_t)target[row] * a.ldy;
            if (a.epilogue == CUDA_STORE) {
                uint32_t low = transpose_matrix(pack_bf16(c[0], c[1]));
                uint32_t high = transpose_matrix(pack_bf16(c[2], c[3]));
                int32_t o = w.n0 + i * 16 + 2 * j;
                out_pair(y, at + o, low, is_row && o < a.ldy);
                out_pair(y, at + o + 8, high, is_row && o + 8 < a.ldy);
            } else if (a.epilogue == CUDA_SWIGLU) {
                uint32_t two = transpose_matrix(pack_bf16(silu(c[0]) * c[2], silu(c[1]) * c[3]));
                out_pair(y, at + w.n0 / 2 + i * 8 + 2 * j, two, is_row);
            } else {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    int col = n * 8 + 2 * j + q % 2;
                    if (col >= w.count || !is_block)
                        continue;
                    int32_t to = target[col];
                    float *p = x + (int64_t)to * a.ldy + w.n0 + i * 16 + g + q / 2 * 8;
                    float v = *p + c[q];
                    *p = v;
                    if (!is_finite(v))
                        note_bad(a.bad, to);
                }
            }
        }
    }
}

template <int ROWS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32) matmul_kernel(CudaMatmul a) {
    DYN_SHARED(uint16_t, tiles);
    int64_t *source = reinterpret_cast<int64_t *>(tiles + STAGES * ROWS * 64);
    int32_t *target = reinterpret_cast<int32_t *>(source + ROWS);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    chain_wait();
    chain_next();
    Work w;
    int32_t expert = 0, place = (int32_t)blockIdx.y * ROWS, n = a.w.n;
    w.count = a.m - place < ROWS ? a.m - place : ROWS;
    if (a.item) {
        const int32_t *item = a.item + 3 * (int64_t)blockIdx.y;
        expert = item[0];
        place = item[1];
        w.count = item[2];
        n = a.n_expert;
    }
    if (w.count <= 0)
        return;
    w.n0 = (int32_t)(blockIdx.x * WARPS + warp) * WARP_ROWS;
    int64_t expert0 = (int64_t)expert * (n / 16);
    w.block0 = expert0 + w.n0 / 16;
    w.n_blocks = expert0 + (n + 15) / 16;
    for (int row = (int)threadIdx.x; row < ROWS; row += WARPS * 32) {
        int32_t from = place + row, to = place + row;
        if (row < w.count && a.list) {
            int32_t pair = a.list[from];
            from = a.src_div ? pair / a.src_div : from;
            to = a.is_sorted_y ? to : pair;
        }
        source[row] = row < w.count ? (int64_t)from * a.w.k : 0;
        target[row] = row < w.count ? to : 0;
    }
    __syncthreads();
    int32_t n_tiles = a.w.k / CUDA_GROUP;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_tiles)
            tile_fetch<ROWS, WARPS>(tiles + s * ROWS * 64, a.u, source, w.count, s * CUDA_GROUP);
        copy_commit();
    }
    float acc[2][ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        acc[i / (ROWS / 2)][i / 4 % (ROWS / 8)][i % 4] = 0.0f;
    Codes now = {}, next = {};
    codes_load(now, a.w, w.block0, w.n_blocks, 0, lane);
    for (int32_t tile = 0; tile < n_tiles; tile++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        int32_t ahead = tile + STAGES - 1;
        if (ahead < n_tiles)
            tile_fetch<ROWS, WARPS>(tiles + ahead % STAGES * ROWS * 64, a.u, source, w.count,
                                    ahead * CUDA_GROUP);
        copy_commit();
        if (tile + 1 < n_tiles)
            codes_load(next, a.w, w.block0, w.n_blocks, tile + 1, lane);
        tile_multiply<ROWS>(acc, now, tiles + tile % STAGES * ROWS * 64, lane);
        now = next;
    }
    tile_store<ROWS>(a, w, acc, target, lane);
}

template <int ROWS> static constexpr size_t matmul_shared() {
    return (size_t)STAGES * ROWS * 128 + ROWS * 12;
}

template <int ROWS, int WARPS>
static cudaError_t matmul_start(const CudaLaunch *l, const CudaMatmul *a) {
    int32_t n = a->item ? a->n_expert : (a->w.n + 15) / 16 * 16;
    unsigned x = (unsigned)((n + WARPS * WARP_ROWS - 1) / (WARPS * WARP_ROWS));
    unsigned y = a->item ? (unsigned)a->n_items : (unsigned)((a->m + ROWS - 1) / ROWS);
    return start(l, matmul_kernel<ROWS, WARPS>, dim3(x, y), WARPS * 32, matmul_shared<ROWS>(), *a);
}

/* The tile shape changes no result: every output is one sum over ascending inputs. Small products
 * take small tiles, so that every multiprocessor has work. */
extern "C" cudaError_t cuda_matmul(const CudaLaunch *l, const CudaMatmul *a) {
    if (l->n_sm90)
        return cuda_matmul_sm90(l, a);
    if (a->item) // items of 64 pairs
        return matmul_start<64, 4>(l, a);
    int64_t big = (int64_t)((a->w.n + 255) / 256) * ((a->m + 127) / 128);
    if (big >= 200)
        return matmul_start<128, 8>(l, a);
    return matmul_start<64, 4>(l, a);
}

extern "C" int32_t cuda_matmul_item_pairs(const CudaLaunch *l) {
    return l->n_sm90 ? CUDA_WIDE_ROWS : 64;
}

extern "C" bool cuda_matmul_has_sm90(void) { return cuda_matmul_sm90_is_built(); }

cudaError_t cuda_matmul_init(int max_shared) {
    CUDA_TRY(cuda_matmul_sm90_init(max_shared));
    CUDA_TRY(allow_shared(matmul_kernel<128, 8>, matmul_shared<128>()));
    return allow_shared(matmul_kernel<64, 4>, matmul_shared<64>());
}

TRACE_BIND(matmul)
