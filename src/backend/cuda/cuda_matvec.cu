// SPDX-License-Identifier: Apache-2.0
/* cuda_matvec.cu - decode products: weights as the wide operand of the whole-number matrix
 * instructions, step rows as the narrow one. A warp takes 16 rows of the matrix and 8
 * groups of 64 inputs; it asks for all its weights before it waits for the kernel ahead.
 *
 * Path:     started by cuda_step.c.
 * Owns:     nothing.  Thread: engine.
 * Not here: products with many rows (cuda_wide.cu, cuda_experts.cu), prefill products
 * (cuda_matmul.cu). */
#include "backend/cuda/cuda_product.cuh"
#include "backend/cuda/cuda_route.cuh"

/* A warp's product with one row: n tiles. All step rows of the instruction are the same one. */
template <int BITS>
FN void product_shared(float acc[2], const WarpTiles<BITS> &w, int32_t n, const Digits8 *d,
                       int lane) {
    int at = lane / 4 % 2 * 4 + lane % 4;
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (i < n) {
            uint32_t word[BITS], a[8];
            uint2 scale = tile_take<BITS>(word, w, i, lane);
            tile_unpack<BITS>(a, word);
            uint4 digits = reinterpret_cast<const uint4 *>(d->digit[i])[at];
            float2 s = *reinterpret_cast<const float2 *>(d->scale[i]);
            tile_product(acc, a, scale, digits, s);
        }
}

/* The same with digits in device memory, NT times 4 rows: the lane's digits are those of `row`, row
 * + 4, .. and its scales those of `col`, col + 4, ..; what stands behind the last is the last
 * again. */
template <int BITS, int NT>
FN void product_rows(float (*acc)[2], const WarpTiles<BITS> &w, int32_t first, int32_t groups,
                     const CudaDigits &d, int32_t row, int32_t col, int32_t last, int lane) {
    const uint4 *digits =
        reinterpret_cast<const uint4 *>(d.digit) + (int64_t)first * 8 + lane / 4 % 2 * 4 + lane % 4;
    const float2 *s = reinterpret_cast<const float2 *>(d.scale) + first;
#pragma unroll(NT > 2 ? 2 : CUDA_WARP_TILES)
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (first + i < groups) {
            uint32_t word[BITS], a[8];
            uint2 scale = tile_take<BITS>(word, w, i, lane);
            tile_unpack<BITS>(a, word);
            constexpr int TURN = NT < 4 ? NT : 4; // under way together
#pragma unroll
            for (int t0 = 0; t0 < NT; t0 += TURN) {
                uint4 mine[TURN];
                float2 theirs[TURN];
#pragma unroll
                for (int t = 0; t < TURN; t++) {
                    int32_t r = row + 4 * (t0 + t), q = col + 4 * (t0 + t);
                    mine[t] = digits[(r < last ? r : last) * groups * 8 + 8 * i];
                    theirs[t] = s[(q < last ? q : last) * groups + i];
                }
#pragma unroll
                for (int t = 0; t < TURN; t++)
                    tile_product(acc[t0 + t], a, scale, mine[t], theirs[t]);
            }
        }
}

/* Digits of a warp's 8 groups of x * gain, and the sum of squares of x. */
FN float fused_make(Digits8 *d, const CudaSource &src, int32_t first, int32_t groups, int lane) {
    float4 v[4];
    int32_t from = first * CUDA_GROUP;
    float squares = row_scaled(v, src.x + from, src.gain + from, groups - first, lane);
    row_digits(d, v, lane);
    return squares;
}

/* Shared memory of a product: the warps' tiles (BITS of them, once or twice), their digits when
 * fused, partial sums [warps][NT][16 rows][4 step rows], sums of squares [warps]. */
struct Shared {
    float *part, *squares;
    Digits8 *digits; // [warps]
};
template <int BITS> static size_t shared_bytes(int warps, int nt, bool is_fused, int buffers) {
    size_t one = sizeof(WarpTiles<BITS>) * (size_t)buffers + (is_fused ? sizeof(Digits8) : 0);
    return (size_t)warps * (one + (size_t)nt * 256 + 16);
}
template <int BITS>
FN Shared shared_at(unsigned char *base, int warps, int nt, bool is_fused, int buffers) {
    Shared s;
    s.digits =
        reinterpret_cast<Digits8 *>(base + sizeof(WarpTiles<BITS>) * (size_t)(warps * buffers));
    s.part = reinterpret_cast<float *>(s.digits + (is_fused ? warps : 0));
    s.squares = s.part + warps * nt * 64;
    return s;
}

/* One row block of a product into shared memory, up to the barrier. row0: first step row. */
template <int BITS, int NT, bool FUSED>
FN void block_product(const Shared &s, const WarpTiles<BITS> &w, const CudaMatrix &m,
                      const CudaSource &src, int32_t row0, int warp, int lane) {
    int32_t groups = m.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    float acc[NT][2];
#pragma unroll
    for (int t = 0; t < NT; t++)
        acc[t][0] = acc[t][1] = 0.0f;
    if (FUSED)
        product_shared<BITS>(acc[0], w, groups - first, &s.digits[warp], lane);
    else
        product_rows<BITS, NT>(acc, w, first, groups, src.digits, row0 + lane / 8, row0 + lane % 4,
                               src.m - 1, lane);
#pragma unroll
    for (int t = 0; t < NT; t++)
        part_store(s.part + (warp * NT + t) * 64, acc[t], lane);
}

/* The factor that belongs to step row `row`. */
template <bool FUSED>
FN float source_factor(const CudaSource &src, const Shared &s, int warps, int32_t k, int32_t row) {
    if (FUSED)
        return squares_factor(s.squares, warps, k, src.eps);
    return src.digits.factor ? src.digits.factor[row] : 1.0f;
}

/* Blocks of a product that a multiprocessor should hold at once: of the widest one at K = 2048 six
 * are needed so that all of it is under way together. */
#define BLOCKS_WANTED(nt, warps) ((warps) > 8 ? 1 : (warps) > 4 ? 2 : (nt) == 1 ? 6 : 4)

/* A block may take several row blocks in turn (the output head); the next one's tiles are then
 * under way while it works on the present one. */
template <int BITS, int NT, bool FUSED, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS_WANTED(NT, WARPS))
    matvec_kernel(CudaMatvec a, int32_t buffers) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<BITS>(base, warps, NT, FUSED, buffers);
    WarpTiles<BITS> *tiles = reinterpret_cast<WarpTiles<BITS> *>(base) + warp * buffers;
    int32_t groups = a.w.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int32_t row0 = (int32_t)blockIdx.y * 4 * NT, n_blocks = (a.w.n + 15) / 16;
    int32_t block = (int32_t)blockIdx.x, turn = 0;
    tiles_fetch<BITS>(tiles[0], a.w, block, first, lane);
    chain_wait();
    chain_next();
    if (FUSED) {
        float squares = fused_make(&s.digits[warp], a.src, first, groups, lane);
        if (lane == 0)
            s.squares[warp] = squares;
    }
    for (;;) {
        int32_t next = block + (int32_t)gridDim.x;
        if (next < n_blocks) {
            tiles_fetch<BITS>(tiles[1 - turn], a.w, next, first, lane);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncwarp();
        block_product<BITS, NT, FUSED>(s, tiles[turn], a.w, a.src, row0, warp, lane);
        __syncthreads();
        for (int at = (int)threadIdx.x; at < NT * 64; at += (int)blockDim.x) {
            int t = at / 64, row = at % 16, col = at / 16 % 4;
            int32_t step_row = row0 + 4 * t + col, n = block * 16 + row;
            if (step_row >= a.src.m || n >= a.w.n)
                continue;
            float sum = part_sum(s.part, warps, NT, t, row, col);
            sum *= source_factor<FUSED>(a.src, s, warps, a.w.k, step_row);
            output_store(a, sum, step_row, n);
        }
        if (next >= n_blocks)
            return;
        block = next;
        turn = 1 - turn;
        __syncthreads();
    }
}

enum {
    TEAMS = 3,
    TEAM_WARPS = 4,
    TEAMS_BLOCKS = 264, // row blocks from which on all multiprocessors still have work
};

/* A fused product of rows up to 2048 long, for a wide matrix of 4 bits: a block takes TEAMS row
 * blocks, a team of warps each, and the first team makes the digits for all. */
__global__ void __launch_bounds__(32 * TEAMS * TEAM_WARPS, 2) teams_kernel(CudaMatvec a) {
    DYN_SHARED(unsigned char, base);
    int warps = (int)blockDim.x / 32, slices = warps / TEAMS;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int team = warp / slices, slice = warp % slices;
    Shared s = shared_at<4>(base, warps, 1, true, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    int32_t groups = a.w.k / CUDA_GROUP, first = slice * CUDA_WARP_TILES;
    int32_t block0 = (int32_t)blockIdx.x * TEAMS, n_blocks = (a.w.n + 15) / 16;
    bool is_there = block0 + team < n_blocks;
    if (is_there)
        tiles_fetch<4>(tiles, a.w, block0 + team, first, lane);
    chain_wait();
    chain_next();
    if (team == 0) {
        float squares = fused_make(&s.digits[slice], a.src, first, groups, lane);
        if (lane == 0)
            s.squares[slice] = squares;
    }
    copy_wait<0>();
    __syncthreads();
    float acc[2] = {0.0f, 0.0f};
    if (is_there)
        product_shared<4>(acc, tiles, groups - first, &s.digits[slice], lane);
    part_store(s.part + warp * 64, acc, lane);
    __syncthreads();
    team = (int)threadIdx.x / 16;
    int row = (int)threadIdx.x % 16;
    int32_t n = (block0 + team) * 16 + row;
    if (team >= TEAMS || n >= a.w.n)
        return;
    float sum = part_sum(s.part + team * slices * 64, slices, 1, 0, row, 0);
    output_store(a, sum * squares_factor(s.squares, slices, a.w.k, a.src.eps), 0, n);
}

static cudaError_t teams_start(const CudaLaunch *l, const CudaMatvec *a) {
    int slices = row_warps(a->w.k);
    unsigned blocks = (unsigned)(a->w.n + 16 * TEAMS - 1) / (16 * TEAMS);
    return start(l, teams_kernel, dim3(blocks), 32 * TEAMS * slices,
                 shared_bytes<4>(TEAMS * slices, 1, true, 1), *a);
}

template <int BITS, int NT, bool FUSED, int WARPS>
static cudaError_t matvec_one(const CudaLaunch *l, const CudaMatvec *a, unsigned blocks, int warps,
                              int buffers) {
    dim3 grid(blocks, (unsigned)(a->src.m + 4 * NT - 1) / (4 * NT));
    return start(l, matvec_kernel<BITS, NT, FUSED, WARPS>, grid, 32 * warps,
                 shared_bytes<BITS>(warps, NT, FUSED, buffers), *a, buffers);
}

template <int BITS, int WARPS>
static cudaError_t matvec_rows(const CudaLaunch *l, const CudaMatvec *a, unsigned blocks, int warps,
                               int buffers) {
    if (a->src.x)
        return matvec_one<BITS, 1, true, WARPS>(l, a, blocks, warps, buffers);
    if (a->src.m <= 4)
        return matvec_one<BITS, 1, false, WARPS>(l, a, blocks, warps, buffers);
    if (a->src.m <= 8)
        return matvec_one<BITS, 2, false, WARPS>(l, a, blocks, warps, buffers);
    return matvec_one<BITS, 8, false, WARPS>(l, a, blocks, warps, buffers);
}

template <int BITS> static cudaError_t matvec_start(const CudaLaunch *l, const CudaMatvec *a) {
    int warps = row_warps(a->w.k), buffers = 1;
    unsigned blocks = (unsigned)(a->w.n + 15) / 16;
    if (blocks > 4096) { // the output head: blocks that go round
        blocks = 528;
        buffers = 2;
    }
    if (BITS == 4 && a->src.x && buffers == 1 && warps <= TEAM_WARPS && blocks >= TEAMS_BLOCKS)
        return teams_start(l, a);
    if (warps <= 4)
        return matvec_rows<BITS, 4>(l, a, blocks, warps, buffers);
    if (warps <= 8)
        return matvec_rows<BITS, 8>(l, a, blocks, warps, buffers);
    return matvec_rows<BITS, 16>(l, a, blocks, warps, buffers);
}

extern "C" cudaError_t cuda_matvec(const CudaLaunch *l, const CudaMatvec *a) {
    if (cuda_wide_fits(l, a))
        return cuda_wide(l, a);
    return a->w.bits == 4 ? matvec_start<4>(l, a) : matvec_start<8>(l, a);
}

template <int BITS, int WARPS> static cudaError_t matvec_allow(size_t limit) {
    size_t most = shared_bytes<BITS>(WARPS, 8, false, 2);
    most = most < limit ? most : limit;
    CUDA_TRY((allow_shared(matvec_kernel<BITS, 1, true, WARPS>, most)));
    CUDA_TRY((allow_shared(matvec_kernel<BITS, 1, false, WARPS>, most)));
    CUDA_TRY((allow_shared(matvec_kernel<BITS, 2, false, WARPS>, most)));
    return allow_shared(matvec_kernel<BITS, 8, false, WARPS>, most);
}

/* ---- gate and up of an expert, interleaved by 8 rows ---- */

/* act of the 8 units of a row block, for every step row of the block. */
template <int NT, bool FUSED>
FN void swiglu_store(const Shared &s, const CudaSource &src, int32_t k, int warps, float *act,
                     int32_t ld, int32_t unit0, int32_t row0, int32_t m) {
    for (int at = (int)threadIdx.x; at < NT * 32; at += (int)blockDim.x) {
        int t = at / 32, unit = at % 8, col = at / 8 % 4;
        int32_t step_row = row0 + 4 * t + col;
        if (step_row >= m)
            continue;
        float factor = source_factor<FUSED>(src, s, warps, k, step_row);
        act[(int64_t)step_row * ld + unit0 + unit] =
            unit_sum(s.part, warps, NT, t, unit, col, factor);
    }
}

/* Router logits of a row block; the last block to have stored its own routes all rows. */
template <int NT, bool FUSED>
FN void router_store(const CudaRouter &a, const Shared &s, int32_t block, int32_t row0, int warps) {
    __shared__ int32_t is_last;
    const CudaMatrix &m = a.router;
    for (int at = (int)threadIdx.x; at < NT * 64; at += (int)blockDim.x) {
        int t = at / 64, row = at % 16, col = at / 16 % 4;
        int32_t step_row = row0 + 4 * t + col, n = block * 16 + row;
        if (step_row < a.src.m && n < m.n)
            const_cast<float *>(a.route.logits)[(int64_t)step_row * a.route.ld + n] =
                part_sum(s.part, warps, NT, t, row, col) *
                source_factor<FUSED>(a.src, s, warps, m.k, step_row);
    }
    if (a.src.m == 1) // its experts' kernels choose them themselves
        return;
    __threadfence();
    __syncthreads();
    int32_t n_blocks = (m.n + 15) / 16 * (int32_t)gridDim.y;
    if (threadIdx.x == 0)
        is_last = atomicAdd(a.count, 1) == n_blocks - 1;
    __syncthreads();
    if (!is_last)
        return;
    __threadfence();
    for (int32_t row = (int32_t)threadIdx.x / 32; row < a.src.m; row += warps)
        route_any(a.route, row, (int)threadIdx.x % 32);
    if (threadIdx.x == 0)
        *a.count = 0;
}

/* The digits of a row that was normalised on the way, for the kernel behind; by one block. */
FN void digits_keep(const CudaRouter &a, const Shared &s, int warps, int warp, int32_t groups,
                    int lane) {
    digits_put(a.src.digits, 0, warp * CUDA_WARP_TILES, groups, s.digits[warp], lane);
    if (threadIdx.x == 0)
        a.src.digits.factor[0] = squares_factor(s.squares, warps, a.router.k, a.src.eps);
}

/* Blocks [0, router blocks): router rows; the others: the shared expert's. */
template <int BITS, int NT, bool FUSED> FN void router_part(const CudaRouter &a, int32_t block) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<8>(base, warps, NT, FUSED, 1);
    WarpTiles<BITS> &tiles =
        *reinterpret_cast<WarpTiles<BITS> *>(reinterpret_cast<WarpTiles<8> *>(base) + warp);
    const CudaMatrix &m = BITS == 8 ? a.router : a.shared;
    int32_t groups = m.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int32_t row0 = (int32_t)blockIdx.y * 4 * NT;
    tiles_fetch<BITS>(tiles, m, block, first, lane);
    chain_wait();
    chain_next();
    if (FUSED) {
        float squares = fused_make(&s.digits[warp], a.src, first, groups, lane);
        if (lane == 0)
            s.squares[warp] = squares;
    }
    copy_wait<0>();
    __syncwarp();
    block_product<BITS, NT, FUSED>(s, tiles, m, a.src, row0, warp, lane);
    __syncthreads();
    if (FUSED && BITS == 4 && block == 0)
        digits_keep(a, s, warps, warp, groups, lane);
    if constexpr (BITS == 4)
        swiglu_store<NT, FUSED>(s, a.src, m.k, warps, a.act, m.n / 2, block * 8, row0, a.src.m);
    else
        router_store<NT, FUSED>(a, s, block, row0, warps);
}

template <int NT, bool FUSED> __global__ void __launch_bounds__(512) router_kernel(CudaRouter a) {
    int32_t n_router = (a.router.n + 15) / 16, block = (int32_t)blockIdx.x;
    if (block < n_router)
        router_part<8, NT, FUSED>(a, block);
    else
        router_part<4, NT, FUSED>(a, block - n_router);
}

template <int NT, bool FUSED>
static cudaError_t router_one(const CudaLaunch *l, const CudaRouter *a) {
    unsigned blocks = (unsigned)((a->router.n + 15) / 16 + a->shared.n / 16);
    int warps = row_warps(a->router.k);
    dim3 grid(blocks, (unsigned)(a->src.m + 4 * NT - 1) / (4 * NT));
    return start(l, router_kernel<NT, FUSED>, grid, 32 * warps,
                 shared_bytes<8>(warps, NT, FUSED, 1), *a);
}

extern "C" cudaError_t cuda_router(const CudaLaunch *l, const CudaRouter *a) {
    if (a->src.x)
        return router_one<1, true>(l, a);
    if (a->src.m <= 4)
        return router_one<1, false>(l, a);
    if (a->src.m <= 8)
        return router_one<2, false>(l, a);
    return router_one<8, false>(l, a);
}

/* Rows up to which a block for every unit block and pair is quicker than warps that walk over many
 * (cuda_experts.cu): there is too little for them to do. */
enum { EXPERTS_FEW = 4 };

/* Pairs that chose the expert of pair p, from p on, up to four of them, in ascending order: found
 * by each warp for itself. Returns how many; 0 when an earlier pair of this expert has p among its
 * own. ids are read past the first-level cache. */
FN int mates_find(int32_t pair[4], const int32_t *id, int32_t n_pairs, int32_t p, int lane) {
    int32_t mine = __ldcg(id + p), before = 0, seen = 0;
    for (int32_t at = 0; at < n_pairs && seen < 4; at += 256) {
        int32_t theirs[8]; // under way together
#pragma unroll
        for (int i = 0; i < 8; i++)
            theirs[i] = at + 32 * i + lane < n_pairs ? __ldcg(id + at + 32 * i + lane) : -1;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int32_t first = at + 32 * i;
            uint32_t all = __ballot_sync(FULL_WARP, theirs[i] == mine);
            uint32_t early = p >= first + 32 ? FULL_WARP : p > first ? (1u << (p - first)) - 1u : 0;
            before += __popc(all & early);
            all &= ~early;
            int32_t rank = seen + __popc(all & ((1u << lane) - 1u));
            if (all >> lane & 1u && rank < 4)
                pair[rank] = first + lane;
            seen += __popc(all);
        }
    }
    __syncwarp();
    return before % 4 ? 0 : seen < 4 ? seen : 4;
}

/* Block (unit block, pair): 8 units of the expert that the pair chose, for it and up to three other
 * pairs of that expert: its weights are read once for them. */
__global__ void __launch_bounds__(512) experts_kernel(CudaExperts a) {
    DYN_SHARED(unsigned char, base);
    __shared__ int32_t pairs[16][4];
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<4>(base, warps, 1, false, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    int32_t groups = a.w.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int32_t p = (int32_t)blockIdx.y;
    chain_wait();
    chain_next();
    int n = mates_find(pairs[warp], a.id, a.src.m * a.top_k, p, lane);
    if (n == 0)
        return; // the whole block
    tiles_fetch<4>(tiles, a.w, (int64_t)a.id[p] * (a.inner / 8) + blockIdx.x, first, lane);
    int32_t row = pairs[warp][lane / 8 < n ? lane / 8 : n - 1] / a.top_k;
    int32_t col = pairs[warp][lane % 4 < n ? lane % 4 : n - 1] / a.top_k;
    copy_wait<0>();
    __syncwarp();
    float acc[1][2] = {{0.0f, 0.0f}};
    product_rows<4, 1>(acc, tiles, first, groups, a.src.digits, row, col, a.src.m - 1, lane);
    part_store(s.part + warp * 64, acc[0], lane);
    __syncthreads();
    int unit = lane % 8, c = lane / 8;
    if (warp || c >= n)
        return;
    float factor = a.src.digits.factor[pairs[0][c] / a.top_k];
    a.act[(int64_t)pairs[0][c] * a.inner + blockIdx.x * 8 + unit] =
        unit_sum(s.part, warps, 1, 0, unit, c, factor);
}

/* Asks for a warp's digits of row 0. */
FN void digits_fetch(Digits8 *to, const CudaDigits &d, int32_t first, int32_t groups, int lane) {
    const uint4 *digit = reinterpret_cast<const uint4 *>(d.digit + (int64_t)first * 32);
#pragma unroll
    for (int i = 0; i < 2; i++)
        copy_async(reinterpret_cast<uint4 *>(to->digit) + 32 * i + lane, digit + 32 * i + lane,
                   first + 4 * i + lane / 8 < groups);
    if (lane < 16)
        to->scale[lane / 2][lane % 2] =
            first + lane / 2 < groups ? d.scale[first * 2 + lane] : 0.0f;
}

/* The experts of a single row, chosen by the first warp of every block that needs them: quicker
 * than to hand them on. Ends with a barrier. */
FN void route_one(CudaRoute r, int32_t *id, float *weight) {
    r.id = id;
    r.weight = weight;
    if (threadIdx.x < 32)
        route_any(r, 0, (int)threadIdx.x);
    __syncthreads();
}

/* The same of a single row. */
__global__ void __launch_bounds__(512) experts_one_kernel(CudaExperts a) {
    DYN_SHARED(unsigned char, base);
    __shared__ int32_t id[CUDA_MAX_TOP_K + 1];
    __shared__ float weight[CUDA_MAX_TOP_K + 1];
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<4>(base, warps, 1, true, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    int32_t groups = a.w.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int32_t pair = (int32_t)blockIdx.y;
    chain_wait();
    chain_next(); // the kernel behind reads the logits before it waits
    digits_fetch(&s.digits[warp], a.src.digits, first, groups, lane);
    route_one(a.route, id, weight);
    tiles_fetch<4>(tiles, a.w, (int64_t)id[pair] * (a.inner / 8) + blockIdx.x, first, lane);
    copy_wait<0>();
    __syncwarp();
    block_product<4, 1, true>(s, tiles, a.w, a.src, 0, warp, lane);
    __syncthreads();
    if (threadIdx.x >= 8)
        return;
    int unit = (int)threadIdx.x;
    float factor = a.src.digits.factor[0];
    a.act[(int64_t)pair * a.inner + blockIdx.x * 8 + unit] =
        unit_sum(s.part, warps, 1, 0, unit, 0, factor);
}

extern "C" cudaError_t cuda_experts_up(const CudaLaunch *l, const CudaExperts *a) {
    if (a->src.m > EXPERTS_FEW)
        return cuda_experts_up_rows(l, a);
    int warps = row_warps(a->w.k);
    dim3 grid((unsigned)a->inner / 8, (unsigned)(a->src.m * a->top_k));
    if (a->src.m == 1)
        return start(l, experts_one_kernel, grid, 32 * warps, shared_bytes<4>(warps, 1, true, 1),
                     *a);
    return start(l, experts_kernel, grid, 32 * warps, shared_bytes<4>(warps, 1, false, 1), *a);
}

/* ---- down ---- */

/* A single row. Block (16 outputs): warp c makes the choice c's share, the last warp the shared
 * expert's. Logits and x were written two kernels ahead or more: the experts are chosen, and the
 * tiles under way, before the wait. */
__global__ void __launch_bounds__(512) down_one_kernel(CudaDown a) {
    DYN_SHARED(unsigned char, base);
    __shared__ int32_t id[CUDA_MAX_TOP_K + 1];
    __shared__ float weight[CUDA_MAX_TOP_K + 1];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<4>(base, a.top_k + 1, 1, true, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    bool is_shared = warp == a.top_k;
    const CudaMatrix &m = is_shared ? a.shared : a.w;
    int64_t block = blockIdx.x;
    int32_t groups = m.k / CUDA_GROUP;
    float *x = a.x + blockIdx.x * 16 + threadIdx.x;
    float sum = 0.0f, residual = threadIdx.x < 16 ? __ldcg(x) : 0.0f;
    if (is_shared) {
        tiles_fetch<4>(tiles, m, block, 0, lane);
        if (lane == 0)
            weight[a.top_k] = sigmoid(__ldcg(a.mix));
    }
    route_one(a.route, id, weight);
    if (!is_shared) {
        block += (int64_t)id[warp] * (a.h / 16);
        tiles_fetch<4>(tiles, m, block, 0, lane);
    }
    chain_wait();
    chain_next();
    const float *act = is_shared ? a.shared_act : a.act + (int64_t)warp * m.k;
    float acc[2] = {0.0f, 0.0f};
    for (int32_t first = 0; first < groups; first += CUDA_WARP_TILES) {
        if (first)
            tiles_fetch<4>(tiles, m, block, first, lane);
        act_digits(&s.digits[warp], act, first, groups, lane);
        copy_wait<0>();
        __syncwarp();
        product_shared<4>(acc, tiles, groups - first, &s.digits[warp], lane);
        __syncwarp();
    }
    part_store(s.part + warp * 64, acc, lane);
    __syncthreads();
    if (threadIdx.x >= 16)
        return;
    for (int c = 0; c <= a.top_k; c++)
        sum = fmaf(weight[c], s.part[c * 64 + threadIdx.x * 4], sum);
    sum += residual;
    *x = sum;
    if (!is_finite(sum))
        note_bad(a.bad, 0);
}

enum { DOWN_WARPS = 8 };

/* Few rows. Block (8 times 16 outputs, pair; behind the pairs, four rows of the shared expert):
 * y of the pair and up to three others of its expert. A warp makes 16 outputs, the first four the
 * digits of a pair each. */
__global__ void __launch_bounds__(DOWN_WARPS * 32) down_pairs_kernel(CudaDown a) {
    __shared__ __align__(16) WarpTiles<4> tiles[DOWN_WARPS];
    __shared__ __align__(16) Digits8 digits[4];
    __shared__ int32_t pairs[DOWN_WARPS][4];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
        at = lane / 4 % 2 * 4 + lane % 4;
    int32_t n_pairs = a.m * a.top_k, p = (int32_t)blockIdx.y;
    bool is_shared = p >= n_pairs;
    const CudaMatrix &m = is_shared ? a.shared : a.w;
    int64_t block = (int64_t)blockIdx.x * DOWN_WARPS + warp;
    bool is_there = block < a.h / 16;
    int n = 0;
    if (is_shared) {
        int32_t row = (p - n_pairs) * 4;
        n = a.m - row < 4 ? a.m - row : 4;
        if (lane < 4)
            pairs[warp][lane] = row + lane;
        __syncwarp();
    } else {
        n = mates_find(pairs[warp], a.id, n_pairs, p, lane);
        block += (int64_t)__ldcg(a.id + p) * (a.h / 16);
    }
    int32_t groups = m.k / CUDA_GROUP;
    if (n && is_there)
        tiles_fetch<4>(tiles[warp], m, block, 0, lane);
    chain_wait();
    chain_next();
    if (n == 0)
        return; // the whole block
    const float *act = is_shared ? a.shared_act : a.act;
    float acc[2] = {0.0f, 0.0f};
    for (int32_t first = 0; first < groups; first += CUDA_WARP_TILES) {
        if (first && is_there)
            tiles_fetch<4>(tiles[warp], m, block, first, lane);
        if (warp < n)
            act_digits(&digits[warp], act + (int64_t)pairs[warp][warp] * m.k, first, groups, lane);
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CUDA_WARP_TILES; i++)
            if (first + i < groups && is_there) {
                uint32_t word[4], codes[8];
                uint2 scale = tile_take<4>(word, tiles[warp], i, lane);
                tile_unpack<4>(codes, word);
                const Digits8 &mine = digits[lane / 8 < n ? lane / 8 : n - 1];
                const Digits8 &col = digits[lane % 4 < n ? lane % 4 : n - 1];
                tile_product(acc, codes, scale, reinterpret_cast<const uint4 *>(mine.digit[i])[at],
                             *reinterpret_cast<const float2 *>(col.scale[i]));
            }
        __syncthreads();
    }
    if (!is_there || lane % 4 >= n)
        return;
    int64_t to = (is_shared ? n_pairs : 0) + pairs[warp][lane % 4];
    float *y = a.y + to * a.h + blockIdx.x * DOWN_WARPS * 16 + warp * 16 + lane / 4;
    y[0] = acc[0];
    y[8] = acc[1];
}

/* x += the pairs' y in order of choice, and the shared expert's. */
__global__ void down_sum_kernel(CudaDown a) {
    int32_t row = (int32_t)blockIdx.y, h = (int32_t)(blockIdx.x * 256 + threadIdx.x);
    int32_t in = h < a.h ? h : a.h - 1;
    float mix = sigmoid(__ldcg(a.mix + (int64_t)row * a.ld_mix));
    float *x = a.x + (int64_t)row * a.h + in;
    float sum = 0.0f, residual = __ldcg(x);
    chain_wait();
    chain_next();
    const float *y = a.y + (int64_t)row * a.top_k * a.h + in;
#pragma unroll 8
    for (int c = 0; c < a.top_k; c++)
        sum = fmaf(a.weight[(int64_t)row * a.top_k + c], y[(int64_t)c * a.h], sum);
    sum = fmaf(mix, a.y[((int64_t)a.m * a.top_k + row) * a.h + in], sum);
    sum += residual;
    if (h >= a.h)
        return;
    *x = sum;
    if (!is_finite(sum))
        note_bad(a.bad, row);
}

extern "C" cudaError_t cuda_experts_down(const CudaLaunch *l, const CudaDown *a) {
    if (a->m == 1)
        return start(l, down_one_kernel, dim3((unsigned)a->h / 16), 32 * (a->top_k + 1),
                     shared_bytes<4>(a->top_k + 1, 1, true, 1), *a);
    unsigned outputs = 16 * DOWN_WARPS;
    dim3 grid(((unsigned)a->h + outputs - 1) / outputs,
              (unsigned)(a->m * a->top_k + (a->m + 3) / 4));
    CUDA_TRY(a->m > EXPERTS_FEW ? cuda_experts_down_rows(l, a)
                                : start(l, down_pairs_kernel, grid, DOWN_WARPS * 32, 0, *a));
    return start(l, down_sum_kernel, dim3((unsigned)(a->h + 255) / 256, (unsigned)a->m), 256, 0,
                 *a);
}

cudaError_t cuda_matvec_init(int max_shared) {
    size_t limit = (size_t)max_shared;
    CUDA_TRY((matvec_allow<4, 4>(limit)));
    CUDA_TRY((matvec_allow<4, 8>(limit)));
    CUDA_TRY((matvec_allow<4, 16>(limit)));
    CUDA_TRY((matvec_allow<8, 4>(limit)));
    CUDA_TRY((matvec_allow<8, 8>(limit)));
    CUDA_TRY((matvec_allow<8, 16>(limit)));
    CUDA_TRY(allow_shared(teams_kernel, shared_bytes<4>(TEAMS * TEAM_WARPS, 1, true, 1)));
    size_t router = shared_bytes<8>(8, 8, true, 1), experts = shared_bytes<4>(16, 1, true, 1);
    CUDA_TRY((allow_shared(router_kernel<1, true>, router)));
    CUDA_TRY((allow_shared(router_kernel<1, false>, router)));
    CUDA_TRY((allow_shared(router_kernel<2, false>, router)));
    CUDA_TRY((allow_shared(router_kernel<8, false>, router)));
    CUDA_TRY(allow_shared(experts_one_kernel, experts));
    CUDA_TRY(allow_shared(experts_kernel, experts));
    return allow_shared(down_one_kernel, experts);
}

TRACE_BIND(matvec)
