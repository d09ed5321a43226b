// SPDX-License-Identifier: Apache-2.0
/* cuda_wide.cu - decode products with more than eight step rows: the digits of all rows lie in
 * shared memory, and a block goes round over row blocks of the matrix with the next ones under way.
 *
 * Path:     cuda_matvec.cu hands such products on; the sums are in its order, so that a row's
 * result is the same in both. Owns:     nothing.  Thread: engine. */
#include "backend/cuda/cuda_product.cuh"

enum {
    WIDE_TILES = 8,  // warps' shares of tiles at a time
    WIDE_HALVES = 2, // warps that share one, with half the step rows each
    WIDE_WARPS = WIDE_TILES * WIDE_HALVES,
    WIDE_NT = 8,        // four step rows each
    WIDE_BLOCKS = 132,  // that go round: one a multiprocessor of the largest card so far
    WIDE_K = 4096,      // inputs of the longest rows that fit, half as many step rows
    WIDE_DIGITS = 2048, // inputs times 32 step rows are what fits
};

/* Shared memory: a warp's tiles once or twice, digits and scales of the step rows, partial sums. */
template <int BITS> struct WideShared {
    WarpTiles<BITS> tiles[WIDE_TILES][BITS == 4 ? 2 : 1];
    uint32_t digit[WIDE_DIGITS / CUDA_GROUP * WIDE_NT * 4 * 32];
    float scale[WIDE_DIGITS / CUDA_GROUP * WIDE_NT * 4 * 2];
    float part[WIDE_TILES * WIDE_NT * 64];
};

/* Asks for the digits and scales of step rows [row0, row0 + n). */
template <int BITS>
FN void wide_fetch(WideShared<BITS> &s, const CudaDigits &d, int32_t row0, int32_t n,
                   int32_t groups) {
    const uint4 *digit = reinterpret_cast<const uint4 *>(d.digit) + (int64_t)row0 * groups * 8;
    const uint4 *scale = reinterpret_cast<const uint4 *>(d.scale + (int64_t)row0 * groups * 2);
    for (int32_t i = (int32_t)threadIdx.x; i < n * groups * 8; i += WIDE_WARPS * 32)
        copy_async(reinterpret_cast<uint4 *>(s.digit) + i, digit + i, true);
    for (int32_t i = (int32_t)threadIdx.x; i < (n * groups + 1) / 2; i += WIDE_WARPS * 32)
        copy_async(reinterpret_cast<uint4 *>(s.scale) + i, scale + i, true);
    copy_commit();
}

/* A warp's share of 16 outputs for step rows [row0, n), 4 NT at most: tiles [first, first + 8). */
template <int BITS, int NT>
FN void wide_product(float (*acc)[2], const WideShared<BITS> &s, const WarpTiles<BITS> &w,
                     int32_t first, int32_t groups, int32_t row0, int32_t n, int lane) {
    const uint4 *digits =
        reinterpret_cast<const uint4 *>(s.digit) + first * 8 + lane / 4 % 2 * 4 + lane % 4;
    const float2 *scales = reinterpret_cast<const float2 *>(s.scale) + first;
#pragma unroll 2
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (first + i < groups) {
            uint32_t word[BITS], a[8];
            uint2 scale = tile_take<BITS>(word, w, i, lane);
            tile_unpack<BITS>(a, word);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int32_t row = row0 + 4 * t + lane / 8, col = row0 + 4 * t + lane % 4;
                row = row < n ? row : n - 1;
                col = col < n ? col : n - 1;
                tile_product(acc[t], a, scale, digits[row * groups * 8 + 8 * i],
                             scales[col * groups + i]);
            }
        }
}

/* One output of a step row. */
FN void wide_store(const CudaMatvec &a, const float *part, int slices, int nt, int32_t block, int t,
                   int row, int col, int32_t step_row) {
    float factor = a.src.digits.factor ? a.src.digits.factor[step_row] : 1.0f;
    output_store(a, part_sum(part, slices, nt, t, row, col) * factor, step_row, block * 16 + row);
}

/* Block (goes round, 4 NT step rows). Its warps are teams of `slices`, a team a row block at a
 * time, and each share of tiles has two warps: one copies, both multiply. */
template <int BITS, int NT>
__global__ void __launch_bounds__(WIDE_WARPS * 32, 1) wide_kernel(CudaMatvec a, int32_t slices) {
    DYN_SHARED(WideShared<BITS>, shared);
    WideShared<BITS> &s = *shared;
    constexpr int BUFFERS = BITS == 4 ? 2 : 1, MINE = NT / WIDE_HALVES;
    int warp = (int)threadIdx.x / 32 % WIDE_TILES, half = (int)threadIdx.x / 32 / WIDE_TILES;
    int lane = (int)threadIdx.x % 32;
    int32_t teams = WIDE_TILES / slices, team = warp / slices, slice = warp % slices;
    int32_t groups = a.w.k / CUDA_GROUP, first = slice * CUDA_WARP_TILES;
    int32_t n_blocks = (a.w.n + 15) / 16, step = (int32_t)gridDim.x * teams, turn = 0;
    int32_t row0 = (int32_t)blockIdx.y * 4 * NT, n = a.src.m - row0;
    n = n < 4 * NT ? n : 4 * NT;
    bool is_working = team < teams; // of 8 shares and 3 slices two have nothing to do
    bool is_copier = is_working && half == 0;
    int32_t block = (int32_t)blockIdx.x * teams + team;
    float *part = s.part + team * slices * NT * 64;
    if (is_copier && block < n_blocks)
        tiles_fetch<BITS>(s.tiles[warp][0], a.w, block, first, lane);
    chain_wait();
    chain_next();
    wide_fetch<BITS>(s, a.src.digits, row0, n, groups);
    copy_wait<0>();
    for (int32_t round = (int32_t)blockIdx.x * teams; round < n_blocks; round += step) {
        bool is_there = is_working && block < n_blocks;
        bool has_next = is_copier && block + step < n_blocks;
        if (BUFFERS == 2 && has_next) {
            tiles_fetch<BITS>(s.tiles[warp][1 - turn], a.w, block + step, first, lane);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads(); // tiles are there, sums of the round before are stored
        if (is_there) {
            float acc[MINE][2];
#pragma unroll
            for (int t = 0; t < MINE; t++)
                acc[t][0] = acc[t][1] = 0.0f;
            wide_product<BITS, MINE>(acc, s, s.tiles[warp][turn], first, groups, 4 * MINE * half, n,
                                     lane);
#pragma unroll
            for (int t = 0; t < MINE; t++)
                part_store(part + (slice * NT + half * MINE + t) * 64, acc[t], lane);
        }
        __syncthreads();
        if (BUFFERS == 1 && has_next)
            tiles_fetch<BITS>(s.tiles[warp][0], a.w, block + step, first, lane);
        if (is_there)
            for (int at = (half * slices + slice) * 32 + lane; at < NT * 64;
                 at += WIDE_HALVES * slices * 32) {
                int t = at / 64, row = at % 16, col = at / 16 % 4;
                if (4 * t + col < n && block * 16 + row < a.w.n)
                    wide_store(a, part, slices, NT, block, t, row, col, row0 + 4 * t + col);
            }
        block += step;
        turn = BUFFERS == 2 ? 1 - turn : 0;
    }
}

extern "C" bool cuda_wide_fits(const CudaLaunch *l, const CudaMatvec *a) {
    size_t size = a->w.bits == 4 ? sizeof(WideShared<4>) : sizeof(WideShared<8>);
    return a->src.m > 8 && !a->src.x && a->w.k <= WIDE_K && (size_t)l->max_shared >= size;
}

template <int BITS, int NT>
static cudaError_t wide_start(const CudaLaunch *l, const CudaMatvec *a, int slices) {
    int teams = WIDE_TILES / slices, n_blocks = (a->w.n + 15) / 16;
    int units = (n_blocks + teams - 1) / teams;
    int turns = (units + WIDE_BLOCKS - 1) / WIDE_BLOCKS;
    dim3 grid((unsigned)((units + turns - 1) / turns),
              (unsigned)(a->src.m + 4 * NT - 1) / (4 * NT));
    return start(l, wide_kernel<BITS, NT>, grid, WIDE_WARPS * 32, sizeof(WideShared<BITS>), *a,
                 (int32_t)slices);
}

template <int BITS> static cudaError_t wide_rows(const CudaLaunch *l, const CudaMatvec *a) {
    int slices = row_warps(a->w.k);
    if (a->w.k > WIDE_DIGITS || a->src.m <= 16)
        return wide_start<BITS, WIDE_NT / 2>(l, a, slices);
    return wide_start<BITS, WIDE_NT>(l, a, slices);
}

extern "C" cudaError_t cuda_wide(const CudaLaunch *l, const CudaMatvec *a) {
    return a->w.bits == 4 ? wide_rows<4>(l, a) : wide_rows<8>(l, a);
}

cudaError_t cuda_wide_init(int max_shared) {
    if ((size_t)max_shared >= sizeof(WideShared<4>)) {
        CUDA_TRY((allow_shared(wide_kernel<4, WIDE_NT>, sizeof(WideShared<4>))));
        CUDA_TRY((allow_shared(wide_kernel<4, WIDE_NT / 2>, sizeof(WideShared<4>))));
    }
    if ((size_t)max_shared >= sizeof(WideShared<8>)) {
        CUDA_TRY((allow_shared(wide_kernel<8, WIDE_NT>, sizeof(WideShared<8>))));
        CUDA_TRY((allow_shared(wide_kernel<8, WIDE_NT / 2>, sizeof(WideShared<8>))));
    }
    return cudaSuccess;
}

TRACE_BIND(wide)
