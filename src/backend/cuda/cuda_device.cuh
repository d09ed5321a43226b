// SPDX-License-Identifier: Apache-2.0
/* cuda_device.cuh - what all kernels share: bf16, warp sums, matrix instructions, asynchronous
 * copies, quantised activations, starting a kernel. Inline assembly stands here and in
 * cuda_wgmma.cuh alone.
 *
 * Contraction is off (-fmad=false): a product and sum are joined only where fmaf says so, so that
 * two kernels that make the same number make the same bits.
 *
 * With LILY_CUDA_EMU the same kernels are compiled for the CPU by the tests (tests/emu). */
#ifndef LILY_BACKEND_CUDA_CUDA_DEVICE_CUH
#define LILY_BACKEND_CUDA_CUDA_DEVICE_CUH

#ifdef LILY_CUDA_EMU
#include "cuda_emu.h"
#else
#include <cuda_runtime.h>
#define DYN_SHARED(type, name)                                                                     \
    extern __shared__ __align__(128) unsigned char dyn_shared_[];                                  \
    type *name = reinterpret_cast<type *>(dyn_shared_)
#endif

#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/cuda_layout.h"

#define FULL_WARP 0xffffffffu
#define FN static __device__ __forceinline__

FN float bits_f32(uint32_t u) { return __uint_as_float(u); }
FN float bf16_low(uint32_t u) { return __uint_as_float(u << 16); }
FN float bf16_high(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
FN float bf16_value(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

FN float silu(float x) { return x / (1.0f + expf(-x)); }
FN float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
FN float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
FN bool is_finite(float x) { return fabsf(x) <= 3.4028234e38f; }

FN float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        x += __shfl_xor_sync(FULL_WARP, x, d);
    return x;
}
FN float warp_max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, d));
    return x;
}
/* Sum and largest over lanes that share lane % 4, and over the four lanes of a quad. */
FN float column_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 4);
    x += __shfl_xor_sync(FULL_WARP, x, 8);
    return x + __shfl_xor_sync(FULL_WARP, x, 16);
}
FN float column_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 4));
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 8));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 16));
}
FN float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}
FN float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

FN void note_bad(const CudaBad &b, int32_t row) {
    const CudaRow &r = b.rows[row];
    atomicMin(&b.bad[r.seq], b.layer * CUDA_BAD_ROWS + r.in_seq);
}

#ifndef LILY_CUDA_EMU
/* ---- instructions ---- */

/* Two values to bf16, round to nearest even: low half, high half. */
FN uint32_t pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
/* a * b + c of two bf16 pairs, rounded once. */
FN uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
/* x & mask | rest in one instruction. */
FN uint32_t and_or(uint32_t x, uint32_t mask, uint32_t rest) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(rest));
    return r;
}
/* 2^x within 2 units of the last place; 0 where that is below 2^-126. */
FN float exp2_near(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
FN uint32_t to_tf32(float x) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
/* c += A B: A 16 x 32 u8, B 32 x 8 s8. */
FN void mma_s8(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
               uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* c += A B: A 16 x 16 bf16, B 16 x 8 bf16. */
FN void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* c += A B: A 16 x 8 tf32, B 8 x 8 tf32. */
FN void mma_tf32(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* A place in shared memory; bytes can be added to it. */
typedef uint32_t SharedAt;
FN SharedAt shared_place(const void *p) { return (SharedAt)__cvta_generic_to_shared(p); }

/* Four 8 x 8 matrices of 16-bit values; lane i gives the place of row i % 8 of matrix i / 8. */
FN void load_matrix(uint32_t r[4], SharedAt at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
FN void load_matrix_transposed(uint32_t r[4], SharedAt at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* Transposes an 8 x 8 matrix of 16-bit values held two a lane. */
FN uint32_t transpose_matrix(uint32_t x) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
    return r;
}
/* 16 bytes from device to shared memory; zeros when !is_there (the address must still be valid). */
FN void copy_async(void *shared, const void *device, bool is_there) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    int n = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(device), "r"(n)
                 : "memory");
}
FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> FN void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Weights are read once: they stay out of the first-level cache. */
FN uint4 load_once(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
FN uint2 load_once(const uint2 *p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
#ifdef LILY_CUDA_TRACE
/* A count of kernels, then of each the time (ns) at which its first block began and at which the
 * kernel ahead had ended. Every translation unit has its own copy of the address. */
static __device__ unsigned long long *trace_place;
FN unsigned long long trace_now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}
#define TRACE_BIND(name)                                                                           \
    extern "C" cudaError_t cuda_trace_##name(void *place) {                                        \
        return cudaMemcpyToSymbol(trace_place, &place, sizeof place);                              \
    }
#endif

/* Waits until the kernel ahead has ended and its writes can be seen. Every kernel calls it in every
 * thread, also where there is nothing to do: the kernel behind relies on it. */
FN void chain_wait() {
#ifdef LILY_CUDA_TRACE
    bool is_first = blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0 && trace_place;
    unsigned long long begun = is_first ? trace_now() : 0;
#endif
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#ifdef LILY_CUDA_TRACE
    if (is_first) {
        unsigned long long i = (*trace_place)++ % CUDA_TRACE_MAX;
        trace_place[1 + 2 * i] = begun;
        trace_place[2 + 2 * i] = trace_now();
    }
#endif
}
/* Lets the kernel behind start (and wait inside). */
FN void chain_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- starting ---- */

template <typename... P, typename... A>
static cudaError_t start(const CudaLaunch *l, void (*kernel)(P...), dim3 grid, int block,
                         size_t shared, A... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)block);
    config.dynamicSmemBytes = shared;
    config.stream = l->stream;
    cudaLaunchAttribute chained = {};
    chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chained.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &chained;
    config.numAttrs = l->is_chained ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}
/* Lets a kernel use so many bytes of shared memory, and the multiprocessor give it as much as it
 * has. */
template <typename... P> static cudaError_t allow_shared(void (*kernel)(P...), size_t bytes) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess)
        return e;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#endif

#ifndef TRACE_BIND
#define TRACE_BIND(name)
#endif

/* Warps of 8 groups that a row of k inputs takes. */
static inline int row_warps(int32_t k) {
    return (k / CUDA_GROUP + CUDA_WARP_TILES - 1) / CUDA_WARP_TILES;
}

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_try_ = (call);                                                            \
        if (cuda_try_ != cudaSuccess)                                                              \
            return cuda_try_;                                                                      \
    } while (0)

/* ---- quantised activations ---- */

/* One lane's share of a group of 64: 16 values v[t * 4 + half * 2 + e], the four lanes of a quad
 * together a group. */
struct DigitLane {
    uint32_t high[4], low[4];
    float scale, sum;
};

/* The scale of a group whose largest size has these bits, and what values are multiplied by. A
 * value that is not finite makes the scale NaN, so that it shows in every product: its bits are
 * above those of every number. */
struct DigitScale {
    float scale, inverse;
};
FN DigitScale digit_scale(uint32_t bits) {
    float top = bits_f32(bits);
    bool is_small = top <= 1e-30f; // too small to count, and to divide by
    DigitScale s;
    s.inverse = is_small ? 0.0f : 16256.0f / top;
    s.scale = is_small ? 0.0f : bits < 0x7f800000u ? top / 16256.0f : bits_f32(0x7fffffffu);
    return s;
}

FN DigitLane digits_make(const float v[16]) {
    DigitLane d;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t size = __float_as_uint(v[i]) & 0x7fffffffu;
        bits = size > bits ? size : bits;
        d.high[i % 4] = 0;
        d.low[i % 4] = 0;
    }
    uint32_t other = __shfl_xor_sync(FULL_WARP, bits, 1);
    bits = other > bits ? other : bits;
    other = __shfl_xor_sync(FULL_WARP, bits, 2);
    bits = other > bits ? other : bits;
    DigitScale s = digit_scale(bits);
    d.scale = s.scale;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int t = i / 4, half = i / 2 % 2, e = i % 2;
        int whole = __float2int_rn(v[i] * s.inverse);
        int high = (whole + 64) >> 7, low = whole - high * 128;
        int shift = 8 * (2 * e + t % 2);
        d.high[t / 2 * 2 + half] |= ((uint32_t)high & 255u) << shift;
        d.low[t / 2 * 2 + half] |= ((uint32_t)low & 255u) << shift;
        total += (float)whole; // exact: below 2^24
    }
    d.sum = quad_sum(total) * d.scale;
    return d;
}

/* Puts a lane's digits at its group: digit [32] words, scale [2]. */
FN void digits_store(uint32_t *digit, float *scale, const DigitLane &d, int j) {
    *reinterpret_cast<uint4 *>(digit + j * 4) =
        make_uint4(d.high[0], d.high[1], d.high[2], d.high[3]);
    *reinterpret_cast<uint4 *>(digit + 16 + j * 4) =
        make_uint4(d.low[0], d.low[1], d.low[2], d.low[3]);
    if (j == 0)
        *reinterpret_cast<float2 *>(scale) = make_float2(d.scale, d.sum);
}

/* A warp's 8 groups of x * gain (n of them, zeros behind), and the sum of squares of x. Every load
 * is a whole line: lane l holds values 4 l .. 4 l + 3 of each 128, so that 16 lanes share a group.
 * x is read past the first-level cache: the kernel ahead of the one ahead may have written it. */
FN float row_scaled(float4 v[4], const float *x, const float *gain, int32_t n, int lane) {
    float4 w[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        v[c] = w[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (2 * c + lane / 16 < n) {
            v[c] = __ldcg(reinterpret_cast<const float4 *>(x) + c * 32 + lane);
            w[c] = reinterpret_cast<const float4 *>(gain)[c * 32 + lane];
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        squares = fmaf(v[c].x, v[c].x, squares);
        squares = fmaf(v[c].y, v[c].y, squares);
        squares = fmaf(v[c].z, v[c].z, squares);
        squares = fmaf(v[c].w, v[c].w, squares);
        v[c] = make_float4(v[c].x * w[c].x, v[c].y * w[c].y, v[c].z * w[c].z, v[c].w * w[c].w);
    }
    return warp_sum(squares);
}

/* Digits of a warp's 8 groups of one row, in shared memory. */
struct Digits8 {
    uint32_t digit[CUDA_WARP_TILES][32];
    float scale[CUDA_WARP_TILES][2];
};

/* Values held as row_scaled gives them to digits. */
FN void row_digits(Digits8 *d, const float4 v[4], int lane) {
    bool is_odd = lane / 4 % 2; // which of two neighbouring 16s
    int word = (lane % 2 * 2 + is_odd) * 4 + lane / 8 % 2 * 2 + lane / 2 % 2;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float y[4] = {v[c].x, v[c].y, v[c].z, v[c].w};
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t size = __float_as_uint(y[i]) & 0x7fffffffu;
            bits = size > bits ? size : bits;
        }
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            uint32_t other = __shfl_xor_sync(FULL_WARP, bits, step);
            bits = other > bits ? other : bits;
        }
        DigitScale s = digit_scale(bits);
        uint32_t two[2] = {0, 0}; // high and low digits of the values of two lanes of a product
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int whole = __float2int_rn(y[i] * s.inverse);
            int high = (whole + 64) >> 7, low = whole - high * 128;
            two[i / 2] |= (((uint32_t)high & 255u) | ((uint32_t)low & 255u) << 8) << i % 2 * 16;
            total += (float)whole; // exact: below 2^24
        }
        uint32_t theirs = __shfl_xor_sync(FULL_WARP, is_odd ? two[0] : two[1], 4);
        uint32_t even = is_odd ? theirs : two[0], odd = is_odd ? two[1] : theirs;
        int group = 2 * c + lane / 16;
        d->digit[group][word] = (even & 0x00ff00ffu) | (odd & 0x00ff00ffu) << 8;
        d->digit[group][16 + word] = (even >> 8 & 0x00ff00ffu) | (odd & 0xff00ff00u);
#pragma unroll
        for (int step = 1; step < 16; step *= 2)
            total += __shfl_xor_sync(FULL_WARP, total, step);
        if (lane % 16 == 0)
            *reinterpret_cast<float2 *>(d->scale[group]) = make_float2(s.scale, total * s.scale);
    }
    __syncwarp();
}

/* A warp's digits to their place in device memory: groups first .. of row `row`. */
FN void digits_put(const CudaDigits &to, int64_t row, int32_t first, int32_t groups,
                   const Digits8 &d, int lane) {
    int64_t at = row * groups + first;
    uint4 *digit = reinterpret_cast<uint4 *>(to.digit + at * 32);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (first + 4 * i + lane / 8 < groups)
            digit[32 * i + lane] = reinterpret_cast<const uint4 *>(d.digit)[32 * i + lane];
    if (lane < 16 && first + lane / 2 < groups)
        to.scale[at * 2 + lane] = d.scale[lane / 2][lane % 2];
}

/* 1 / rms of a row from its warps' sums of squares. */
FN float squares_factor(const float *squares, int warps, int32_t k, float eps) {
    float sum = 0.0f;
    for (int w = 0; w < warps; w++)
        sum += squares[w];
    return 1.0f / sqrtf(sum / (float)k + eps);
}

/* A lane's 16 values of a group of 64 that begins at x. */
FN void group_load(float v[16], const float *x, int j) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 two = *reinterpret_cast<const float2 *>(x + 16 * (i / 2) + 8 * (i % 2) + 2 * j);
        v[2 * i] = two.x;
        v[2 * i + 1] = two.y;
    }
}

#endif
