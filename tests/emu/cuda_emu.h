// SPDX-License-Identifier: Apache-2.0
/* cuda_emu.h - enough of CUDA C++ to run the backend's kernels on the CPU: one block after the
 * other, every thread of a block a fiber, warps and blocks meeting at their barriers. Matrix
 * instructions are computed from the lanes' registers as the PTX manual lays them out;
 * asynchronous copies land only when they are waited for (those behind a gate when nothing else can
 * go on), and asynchronous matrix instructions are made when they are waited for; the order of
 * warps and lanes can be turned round, so that a missing barrier shows as a different result. What
 * streams are given is done at once, or (emu_set_queue) later and in any order that their events
 * allow, so that a missing event shows too.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_EMU_CUDA_EMU_H
#define LILY_EMU_CUDA_EMU_H

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__

struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
extern dim3 emu_block_idx, emu_block_dim, emu_grid_dim;
dim3 emu_thread_idx();
#define threadIdx emu_thread_idx()
#define blockIdx emu_block_idx
#define blockDim emu_block_dim
#define gridDim emu_grid_dim

unsigned char *emu_dyn_shared();
#define DYN_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_dyn_shared())

/* Kinds of warp collectives; `in` and `out` are the lane's own arrays. */
enum EmuOp {
    EMU_SYNC,
    EMU_SHFL_XOR,
    EMU_SHFL,
    EMU_SHFL_UP,
    EMU_MAX,
    EMU_MIN,
    EMU_BALLOT,
    EMU_MMA_S8,
    EMU_MMA_BF16,
    EMU_MMA_TF32,
    EMU_LOAD_MATRIX,
    EMU_LOAD_MATRIX_T,
    EMU_TRANSPOSE,
    EMU_WGMMA_WAIT
};
void emu_collective(EmuOp op, const void *in, void *out, int arg);
void emu_barrier();
void emu_copy_async(void *to, const void *from, bool is_there);
void emu_copy_commit();
void emu_copy_wait(int n);
void emu_run(dim3 grid, int block, size_t shared, const std::function<void()> &body);
/* A matrix instruction in flight: operands are compared with what they were when it was begun, and
 * the sum is made, when it is waited for. b: row 0 of 16 inputs in a tile with exchanged pieces. */
void emu_wgmma(float *d, const uint32_t *a, const char *b, int n);
/* The same for 64 columns with A, 64 rows, in such a tile; and with b as 16 rows of 64 columns. */
void emu_wgmma_shared(float *d, const char *a, const char *b);
void emu_wgmma_turned(float *d, const uint32_t *a, const char *b);
void emu_wgmma_commit();
/* Gates: the low half counts arrivals left, the next 20 bits how many open it, the last 8 openings
 * (mod 256). Copies that arrive land as late as possible: when no thread can go on. */
void emu_gate_init(uint64_t *gate, int n);
void emu_gate_arrive(uint64_t *gate);
void emu_gate_arrive_copies(uint64_t *gate);
void emu_gate_wait(const uint64_t *gate, int round);
/* 0: ascending; 1: descending warps and lanes, and copies behind gates land at once. */
extern "C" void emu_set_order(int order);
/* 0: streams do at once what they are given. Else they keep it until somebody waits for it, or
 * until chance has it done earlier; which of them goes on is drawn from the seed. */
extern "C" void emu_set_queue(uint32_t seed);

#define __syncthreads() emu_barrier()
static inline void __syncwarp() { emu_collective(EMU_SYNC, nullptr, nullptr, 0); }
template <typename T> static inline T emu_exchange(EmuOp op, T x, int arg) {
    static_assert(sizeof(T) == 4, "32-bit values");
    T r;
    emu_collective(op, &x, &r, arg);
    return r;
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int d) {
    return emu_exchange(EMU_SHFL_XOR, x, d);
}
template <typename T> static inline T __shfl_sync(unsigned, T x, int lane) {
    return emu_exchange(EMU_SHFL, x, lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T x, int d) {
    return emu_exchange(EMU_SHFL_UP, x, d);
}
static inline uint32_t __reduce_max_sync(unsigned, uint32_t x) {
    return emu_exchange(EMU_MAX, x, 0);
}
static inline uint32_t __reduce_min_sync(unsigned, uint32_t x) {
    return emu_exchange(EMU_MIN, x, 0);
}
static inline uint32_t __ballot_sync(unsigned, int x) {
    return emu_exchange(EMU_BALLOT, (uint32_t)(x != 0), 0);
}
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __int_as_float(int32_t u) { return __uint_as_float((uint32_t)u); }
static inline int __float2int_rn(float x) {
    if (std::isnan(x))
        return 0;
    if (x >= 2147483648.0f)
        return 2147483647;
    if (x < -2147483648.0f)
        return -2147483647 - 1;
    return (int)lrintf(x);
}
static inline int atomicMin(int *p, int v) {
    int old = *p;
    *p = old < v ? old : v;
    return old;
}
static inline int atomicAdd(int *p, int v) {
    int old = *p;
    *p = old + v;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    unsigned long long old = *p;
    *p = old + v;
    return old;
}
static inline uint32_t atomicOr(uint32_t *p, uint32_t v) {
    uint32_t old = *p;
    *p = old | v;
    return old;
}
static inline float atomicAdd(float *p, float v) {
    float old = *p;
    *p = old + v;
    return old;
}
static inline void __threadfence() {}
template <typename T> static inline T __ldcg(const T *p) { return *p; }

static inline uint32_t emu_to_bf16(float x) {
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}
static inline float emu_from_bf16(uint32_t h) { return __uint_as_float(h << 16); }
static inline uint32_t pack_bf16(float low, float high) {
    return emu_to_bf16(low) | emu_to_bf16(high) << 16;
}
static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r = 0;
    for (int s = 0; s < 32; s += 16) { // exact in double but for the last rounding to f32
        double v = (double)emu_from_bf16(a >> s & 0xffff) * emu_from_bf16(b >> s & 0xffff) +
                   emu_from_bf16(c >> s & 0xffff);
        r |= emu_to_bf16((float)v) << s;
    }
    return r;
}
static inline uint32_t and_or(uint32_t x, uint32_t mask, uint32_t rest) {
    return (x & mask) | rest;
}
static inline float exp2_near(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
static inline uint32_t to_tf32(float x) {
    uint32_t u = __float_as_uint(x);
    return (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000u) & 0xffffe000u;
}
struct EmuMma {
    uint32_t a[4], b[2], c[4];
};
static inline void mma_s8(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                          uint32_t b0, uint32_t b1) {
    EmuMma m = {{a0, a1, a2, a3}, {b0, b1}, {0, 0, 0, 0}};
    memcpy(m.c, c, 16);
    emu_collective(EMU_MMA_S8, &m, c, 0);
}
static inline void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    EmuMma m = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {0, 0, 0, 0}};
    memcpy(m.c, c, 16);
    emu_collective(EMU_MMA_BF16, &m, c, 0);
}
static inline void mma_tf32(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    EmuMma m = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {0, 0, 0, 0}};
    memcpy(m.c, c, 16);
    emu_collective(EMU_MMA_TF32, &m, c, 0);
}

typedef const char *WgTile;
static inline WgTile wgmma_tile(const void *p) { return static_cast<WgTile>(p); }
static inline WgTile wgmma_step(WgTile b, int step) { return b + 32 * step; }
static inline void wgmma_fence() {}
static inline void wgmma_publish() {}
static inline void wgmma_commit() { emu_wgmma_commit(); }
template <int N> static inline void wgmma_wait() {
    emu_collective(EMU_WGMMA_WAIT, nullptr, nullptr, N);
}
template <int M, int N> static inline void wgmma_finish(float (&)[M][N]) { wgmma_wait<0>(); }
template <int N> static inline void wgmma(float *d, const uint32_t *a, WgTile b) {
    emu_wgmma(d, a, b, N);
}
template <int M, int N> static inline void wgmma_hold(float (&)[M][N]) {}
static inline WgTile wgmma_tile_turned(const void *p) { return static_cast<WgTile>(p); }
static inline void wgmma_shared(float *d, WgTile a, WgTile b) { emu_wgmma_shared(d, a, b); }
static inline void wgmma_turned(float *d, const uint32_t *a, WgTile b) {
    emu_wgmma_turned(d, a, b);
}
template <int N> static inline void registers_take() {}
template <int N> static inline void registers_give() {}
typedef uint64_t Gate;
static inline void gate_init(Gate *g, int n) { emu_gate_init(g, n); }
static inline void gate_arrive(Gate *g) { emu_gate_arrive(g); }
static inline void gate_arrive_copies(Gate *g) { emu_gate_arrive_copies(g); }
static inline void gate_wait(Gate *g, int round) { emu_gate_wait(g, round); }

typedef const char *SharedAt;
static inline SharedAt shared_place(const void *p) { return static_cast<SharedAt>(p); }
static inline void load_matrix(uint32_t r[4], SharedAt p) {
    emu_collective(EMU_LOAD_MATRIX, p, r, 0);
}
static inline void load_matrix_transposed(uint32_t r[4], SharedAt p) {
    emu_collective(EMU_LOAD_MATRIX_T, p, r, 0);
}
static inline uint32_t transpose_matrix(uint32_t x) { return emu_exchange(EMU_TRANSPOSE, x, 0); }
static inline void copy_async(void *to, const void *from, bool is_there) {
    emu_copy_async(to, from, is_there);
}
static inline void copy_commit() { emu_copy_commit(); }
template <int N> static inline void copy_wait() { emu_copy_wait(N); }
static inline uint4 load_once(const uint4 *p) { return *p; }
static inline uint2 load_once(const uint2 *p) { return *p; }
static inline void chain_wait() {}
static inline void chain_next() {}
extern "C" int emu_shared; // what a block may have
/* Does a piece of work in the order of a stream; NULL: now. */
cudaError_t emu_enqueue(cudaStream_t stream, const std::function<void()> &work);
template <typename L, typename... P, typename... A> // L: CudaLaunch, which is not known here
static cudaError_t start(const L *l, void (*kernel)(P...), dim3 grid, int block, size_t shared,
                         A... args) {
    if (shared > (size_t)emu_shared)
        return cudaErrorInvalidValue;
    return emu_enqueue(l->stream,
                       [=] { emu_run(grid, block, shared, [=] { kernel(P(args)...); }); });
}
template <typename... P> static cudaError_t allow_shared(void (*)(P...), size_t bytes) {
    return bytes > (size_t)emu_shared ? cudaErrorInvalidValue : cudaSuccess;
}

#endif
