// SPDX-License-Identifier: Apache-2.0
/* cuda_matvec.cu - decode products: weights as the wide operand of the whole-number matrix
 * instructions, up to 32 step rows as the narrow one. A warp takes 16 rows of the matrix and 8
 * groups of 64 inputs; it asks for all its weights before it waits for the kernel ahead.
 *
 * Path:     started by cuda_step.c.
 * Owns:     nothing.  Thread: engine.
 * Not here: the layout (cuda_layout.h), prefill products (cuda_matmul.cu). */
#include "backend/cuda/cuda_route.cuh"

/* A whole number at rest in the bits of a float: 1.5 * 2^23 + n for |n| < 2^22. The matrix
 * instruction adds to these bits, one subtraction gives n as a float. Sums of 64 products of a code
 * (at most 255) and a digit (at most 127) stay below 2^21. */
#define WHOLE_BITS 0x4b400000
#define WHOLE_VALUE 12582912.0f

/* 8 tiles of one warp, on their way from device to shared memory: they cost no registers, so that
 * enough warps fit to have a whole matrix under way at once. */
template <int BITS> struct WarpTiles {
    uint4 code[CUDA_WARP_TILES][BITS / 4][32];
    uint4 scale[CUDA_WARP_TILES][4]; // 16 rows of scale and bias
};

/* Asks for tiles [first, first + 8) of row block `block`; zeros at and above the last. */
template <int BITS>
FN void tiles_fetch(WarpTiles<BITS> &w, const CudaMatrix &m, int64_t block, int32_t first,
                    int lane) {
    int32_t n_tiles = m.k / CUDA_GROUP;
    int64_t at = block * n_tiles + first;
    const uint4 *code = reinterpret_cast<const uint4 *>(m.code + at * 32 * BITS);
    const uint4 *scale = reinterpret_cast<const uint4 *>(m.scale + at * 16);
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
#pragma unroll
        for (int q = 0; q < BITS / 4; q++)
            if (first + i < n_tiles)
                copy_async(&w.code[i][q][lane], code + (i * 32 + lane) * (BITS / 4) + q, true);
    if (first + lane / 4 < n_tiles)
        copy_async(&w.scale[lane / 4][lane % 4], scale + lane, true);
    copy_commit();
}

/* The lane's codes and scales of tile i. */
template <int BITS>
FN uint2 tile_take(uint32_t word[BITS], const WarpTiles<BITS> &w, int i, int lane) {
#pragma unroll
    for (int q = 0; q < BITS / 4; q++) {
        uint4 four = w.code[i][q][lane];
        word[4 * q] = four.x;
        word[4 * q + 1] = four.y;
        word[4 * q + 2] = four.z;
        word[4 * q + 3] = four.w;
    }
    return reinterpret_cast<const uint2 *>(w.scale[i])[lane / 4];
}

/* acc += tile times the digits of 4 step rows: the instruction's columns 2 r and 2 r + 1 are the
 * high and the low digits of row r, so that a lane ends with both digits' sums of row lane % 4, of
 * its two matrix rows. digits: the lane's 16 bytes of row lane / 8, high or low by lane / 4 % 2;
 * s: scale and sum of row lane % 4. */
template <int BITS>
FN void tile_product(float acc[2], const uint32_t word[BITS], uint2 scale, uint4 digits, float2 s) {
    uint32_t a[8]; // two instructions of four registers
    const uint32_t mask = 0x0f0f0f0fu;
    if (BITS == 4) {
        a[0] = word[0] & mask;
        a[1] = word[2] & mask;
        a[2] = word[0] >> 4 & mask;
        a[3] = word[2] >> 4 & mask;
        a[4] = word[1] & mask;
        a[5] = word[3] & mask;
        a[6] = word[1] >> 4 & mask;
        a[7] = word[3] >> 4 & mask;
    } else {
        a[0] = word[0];
        a[1] = word[4 % BITS];
        a[2] = word[1];
        a[3] = word[5 % BITS];
        a[4] = word[2];
        a[5] = word[6 % BITS];
        a[6] = word[3];
        a[7] = word[7 % BITS];
    }
    int32_t c[4] = {WHOLE_BITS, WHOLE_BITS, WHOLE_BITS, WHOLE_BITS};
    mma_s8(c, a[0], a[1], a[2], a[3], digits.x, digits.y);
    mma_s8(c, a[4], a[5], a[6], a[7], digits.z, digits.w);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float whole = fmaf(__int_as_float(c[2 * i]) - WHOLE_VALUE, 128.0f,
                           __int_as_float(c[2 * i + 1]) - WHOLE_VALUE);
        uint32_t sb = i ? scale.y : scale.x;
        acc[i] = fmaf(bf16_low(sb), whole * s.x, acc[i]);
        acc[i] = fmaf(bf16_high(sb), s.y, acc[i]);
    }
}

/* Digits of a warp's 8 groups of one row, in shared memory. */
struct Digits8 {
    uint32_t digit[CUDA_WARP_TILES][32];
    float scale[CUDA_WARP_TILES][2];
};

/* A warp's product with one row: n tiles. All step rows of the instruction are the same one. */
template <int BITS>
FN void product_shared(float acc[2], const WarpTiles<BITS> &w, int32_t n, const Digits8 *d,
                       int lane) {
    int at = lane / 4 % 2 * 4 + lane % 4;
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (i < n) {
            uint32_t word[BITS];
            uint2 scale = tile_take<BITS>(word, w, i, lane);
            uint4 digits = reinterpret_cast<const uint4 *>(d->digit[i])[at];
            float2 s = *reinterpret_cast<const float2 *>(d->scale[i]);
            tile_product<BITS>(acc, word, scale, digits, s);
        }
}

/* The same with digits in device memory, step rows row0 .. row0 + 3 (at most m - 1: what stands
 * behind it is the last row again, and is not stored). */
template <int BITS>
FN void product_rows(float acc[2], const WarpTiles<BITS> &w, int32_t first, int32_t groups,
                     const CudaDigits &d, int32_t row0, int32_t m, int lane) {
    int32_t row = row0 + lane / 8, col = row0 + lane % 4;
    row = row < m ? row : m - 1;
    col = col < m ? col : m - 1;
    const uint4 *digits = reinterpret_cast<const uint4 *>(d.digit) +
                          ((int64_t)row * groups + first) * 8 + lane / 4 % 2 * 4 + lane % 4;
    const float2 *s = reinterpret_cast<const float2 *>(d.scale) + (int64_t)col * groups + first;
#pragma unroll
    for (int i = 0; i < CUDA_WARP_TILES; i++)
        if (first + i < groups) {
            uint32_t word[BITS];
            uint2 scale = tile_take<BITS>(word, w, i, lane);
            tile_product<BITS>(acc, word, scale, digits[8 * i], s[i]);
        }
}

/* A lane's share of x * gain of a warp's 8 groups, and of the sum of squares of x. */
FN float fused_make(Digits8 *d, const float *x, const float *gain_from, int32_t first,
                    int32_t groups, int lane) {
    int32_t g = first + lane / 4;
    float v[16], gain[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] = gain[i] = 0.0f;
    if (g < groups) {
        group_load(v, x + g * CUDA_GROUP, lane % 4);
        group_load(gain, gain_from + g * CUDA_GROUP, lane % 4);
    }
    float squares = warp_sum(group_squares(0.0f, v));
#pragma unroll
    for (int i = 0; i < 16; i++)
        v[i] *= gain[i];
    DigitLane lane_digits = digits_make(v);
    digits_store(d->digit[lane / 4], d->scale[lane / 4], lane_digits, lane % 4);
    __syncwarp();
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

FN void part_store(float *part, const float acc[2], int lane) {
    part[lane] = acc[0]; // matrix row lane / 4, step row lane % 4
    part[32 + lane] = acc[1];
}

/* The whole sum of (row, column) of n-tile t: partial sums in ascending order of inputs. */
FN float part_sum(const float *part, int warps, int nt, int t, int row, int col) {
    float sum = 0.0f;
    for (int w = 0; w < warps; w++)
        sum += part[(w * nt + t) * 64 + row * 4 + col];
    return sum;
}

/* 1 / rms from the partial sums of squares; in the order of norm_kernel. */
FN float squares_factor(const float *squares, int warps, int32_t k, float eps) {
    float sum = 0.0f;
    for (int w = 0; w < warps; w++)
        sum += squares[w];
    return 1.0f / sqrtf(sum / (float)k + eps);
}

/* One row block of a product into shared memory, up to the barrier. row0: first step row. */
template <int BITS, int NT, bool FUSED>
FN void block_product(const Shared &s, const WarpTiles<BITS> &w, const CudaMatrix &m,
                      const CudaSource &src, int32_t row0, int warp, int lane) {
    int32_t groups = m.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float acc[2] = {0.0f, 0.0f};
        if (FUSED)
            product_shared<BITS>(acc, w, groups - first, &s.digits[warp], lane);
        else
            product_rows<BITS>(acc, w, first, groups, src.digits, row0 + 4 * t, src.m, lane);
        part_store(s.part + (warp * NT + t) * 64, acc, lane);
    }
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
        float squares = fused_make(&s.digits[warp], a.src.x, a.src.gain, first, groups, lane);
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
            float *y = a.y + (int64_t)step_row * a.ldy + n;
            if (a.is_add) {
                sum += *y;
                if (!is_finite(sum))
                    note_bad(a.bad, step_row);
            }
            *y = sum;
        }
        if (next >= n_blocks)
            return;
        block = next;
        turn = 1 - turn;
        __syncthreads();
    }
}

static int product_warps(int32_t k) {
    return (k / CUDA_GROUP + CUDA_WARP_TILES - 1) / CUDA_WARP_TILES;
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
    int warps = product_warps(a->w.k), buffers = 1;
    unsigned blocks = (unsigned)(a->w.n + 15) / 16;
    if (blocks > 4096) { // the output head: blocks that go round
        blocks = 528;
        buffers = 2;
    }
    if (warps <= 4)
        return matvec_rows<BITS, 4>(l, a, blocks, warps, buffers);
    if (warps <= 8)
        return matvec_rows<BITS, 8>(l, a, blocks, warps, buffers);
    return matvec_rows<BITS, 16>(l, a, blocks, warps, buffers);
}

extern "C" cudaError_t cuda_matvec(const CudaLaunch *l, const CudaMatvec *a) {
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
        float gate = part_sum(s.part, warps, NT, t, unit, col) * factor;
        float up = part_sum(s.part, warps, NT, t, unit + 8, col) * factor;
        act[(int64_t)step_row * ld + unit0 + unit] = silu(gate) * up;
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
        float squares = fused_make(&s.digits[warp], a.src.x, a.src.gain, first, groups, lane);
        if (lane == 0)
            s.squares[warp] = squares;
    }
    copy_wait<0>();
    __syncwarp();
    block_product<BITS, NT, FUSED>(s, tiles, m, a.src, row0, warp, lane);
    __syncthreads();
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
    int warps = product_warps(a->router.k);
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

/* Block (unit block, pair): 8 units of the expert that the pair chose. */
template <bool FUSED> __global__ void __launch_bounds__(512) experts_kernel(CudaExperts a) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<4>(base, warps, 1, FUSED, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    int32_t groups = a.w.k / CUDA_GROUP, first = warp * CUDA_WARP_TILES;
    int32_t pair = (int32_t)blockIdx.y, row = pair / a.top_k;
    chain_wait();
    chain_next();
    int64_t expert = a.id[pair];
    tiles_fetch<4>(tiles, a.w, expert * (a.inner / 8) + blockIdx.x, first, lane);
    if (FUSED) {
        float squares = fused_make(&s.digits[warp], a.src.x, a.src.gain, first, groups, lane);
        if (lane == 0)
            s.squares[warp] = squares;
    }
    copy_wait<0>();
    __syncwarp();
    CudaSource one = a.src;
    one.m = row + 1; // the row alone: columns behind it are zero
    block_product<4, 1, FUSED>(s, tiles, a.w, one, row, warp, lane);
    __syncthreads();
    if (threadIdx.x >= 8)
        return;
    int unit = (int)threadIdx.x;
    float factor = source_factor<FUSED>(a.src, s, warps, a.w.k, row);
    float gate = part_sum(s.part, warps, 1, 0, unit, 0) * factor;
    float up = part_sum(s.part, warps, 1, 0, unit + 8, 0) * factor;
    a.act[(int64_t)pair * a.inner + blockIdx.x * 8 + unit] = silu(gate) * up;
}

extern "C" cudaError_t cuda_experts_up(const CudaLaunch *l, const CudaExperts *a) {
    int warps = product_warps(a->w.k);
    dim3 grid((unsigned)a->inner / 8, (unsigned)(a->src.m * a->top_k));
    if (a->src.x)
        return start(l, experts_kernel<true>, grid, 32 * warps, shared_bytes<4>(warps, 1, true, 1),
                     *a);
    return start(l, experts_kernel<false>, grid, 32 * warps, shared_bytes<4>(warps, 1, false, 1),
                 *a);
}

/* ---- down ---- */

/* Block (16 outputs, row): warp c makes the choice c's share, the last warp the shared expert's.
 * The ids were written two kernels ahead, so the tiles are under way before the wait. */
__global__ void __launch_bounds__(512) down_kernel(CudaDown a) {
    DYN_SHARED(unsigned char, base);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    Shared s = shared_at<4>(base, a.top_k + 1, 1, true, 1);
    WarpTiles<4> &tiles = reinterpret_cast<WarpTiles<4> *>(base)[warp];
    int32_t row = (int32_t)blockIdx.y;
    bool is_shared = warp == a.top_k;
    const CudaMatrix &m = is_shared ? a.shared : a.w;
    int64_t pair = (int64_t)row * a.top_k + warp;
    int64_t block = blockIdx.x;
    if (!is_shared)
        block += (int64_t)a.id[pair] * (a.h / 16);
    int32_t groups = m.k / CUDA_GROUP;
    tiles_fetch<4>(tiles, m, block, 0, lane);
    chain_wait();
    chain_next();
    const float *act = is_shared ? a.shared_act + (int64_t)row * m.k : a.act + pair * m.k;
    float acc[2] = {0.0f, 0.0f};
    for (int32_t first = 0; first < groups; first += CUDA_WARP_TILES) {
        if (first)
            tiles_fetch<4>(tiles, m, block, first, lane);
        float v[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = 0.0f;
        if (first + lane / 4 < groups)
            group_load(v, act + (first + lane / 4) * CUDA_GROUP, lane % 4);
        DigitLane d = digits_make(v);
        digits_store(s.digits[warp].digit[lane / 4], s.digits[warp].scale[lane / 4], d, lane % 4);
        copy_wait<0>();
        __syncwarp();
        product_shared<4>(acc, tiles, groups - first, &s.digits[warp], lane);
        __syncwarp();
    }
    part_store(s.part + warp * 64, acc, lane);
    __syncthreads();
    if (threadIdx.x >= 16)
        return;
    int n = (int)threadIdx.x;
    float sum = 0.0f;
    for (int c = 0; c < a.top_k; c++)
        sum = fmaf(a.weight[(int64_t)row * a.top_k + c], s.part[c * 64 + n * 4], sum);
    sum = fmaf(sigmoid(a.mix[(int64_t)row * a.ld_mix]), s.part[a.top_k * 64 + n * 4], sum);
    float *x = a.x + (int64_t)row * a.h + blockIdx.x * 16 + n;
    sum += *x;
    *x = sum;
    if (!is_finite(sum))
        note_bad(a.bad, row);
}

extern "C" cudaError_t cuda_experts_down(const CudaLaunch *l, const CudaDown *a) {
    return start(l, down_kernel, dim3((unsigned)a->h / 16, (unsigned)a->m), 32 * (a->top_k + 1),
                 shared_bytes<4>(a->top_k + 1, 1, true, 1), *a);
}

cudaError_t cuda_matvec_init(int max_shared) {
    size_t limit = (size_t)max_shared;
    CUDA_TRY((matvec_allow<4, 4>(limit)));
    CUDA_TRY((matvec_allow<4, 8>(limit)));
    CUDA_TRY((matvec_allow<4, 16>(limit)));
    CUDA_TRY((matvec_allow<8, 4>(limit)));
    CUDA_TRY((matvec_allow<8, 8>(limit)));
    CUDA_TRY((matvec_allow<8, 16>(limit)));
    size_t router = shared_bytes<8>(8, 8, true, 1), experts = shared_bytes<4>(16, 1, true, 1);
    CUDA_TRY((allow_shared(router_kernel<1, true>, router)));
    CUDA_TRY((allow_shared(router_kernel<1, false>, router)));
    CUDA_TRY((allow_shared(router_kernel<2, false>, router)));
    CUDA_TRY((allow_shared(router_kernel<8, false>, router)));
    CUDA_TRY(allow_shared(experts_kernel<true>, experts));
    CUDA_TRY(allow_shared(experts_kernel<false>, experts));
    return allow_shared(down_kernel, experts);
}
