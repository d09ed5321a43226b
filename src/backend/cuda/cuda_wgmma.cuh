// SPDX-License-Identifier: Apache-2.0
/* cuda_wgmma.cuh - matrix instructions of a warp group (compute 9.0 alone), and gates: what warps
 * that copy and warps that multiply wait at.
 *
 * wgmma: A from registers, B from shared memory, both bf16; asynchronous, so that registers and
 * shared memory of one in flight must be left alone until it was waited for.
 *
 * B tiles: rows of 64 bf16 (128 bytes), eight rows behind each other are 1024 bytes and begin at a
 * multiple of it; inside, the eight 16-byte pieces of row r are exchanged by r % 8.
 *
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_WGMMA_CUH
#define LILY_BACKEND_CUDA_CUDA_WGMMA_CUH

#include "backend/cuda/cuda_device.cuh"

/* Compiled for a card that has the instructions, or for the emulation. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(LILY_CUDA_EMU)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

#ifndef LILY_CUDA_EMU
/* A B tile as the instruction wants it named. */
typedef uint64_t WgTile;
FN WgTile wgmma_tile(const void *p) {
    uint64_t at = (uint64_t)__cvta_generic_to_shared(p);
    // Bytes / 16: place (bits 0-13), 1024 from eight rows to the next eight (32-45), and the
    // exchange of pieces inside 128 bytes (62-63: 1). Bits 16-29 are not used with it.
    return (at & 0x3ffffu) >> 4 | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* The same rows, 16 * step inputs further. */
FN WgTile wgmma_step(WgTile b, int step) { return b + 2 * step; }

/* Before the first instruction and after registers of A or d were written. */
FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until at most N committed groups are in flight: operands of those before can be made anew.
 */
template <int N> FN void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* Registers of a finished instruction can be read, others being in flight. */
template <int M, int N> FN void wgmma_hold(float (&d)[M][N]) {
#pragma unroll
    for (int i = 0; i < M * N; i++)
        asm volatile("" : "+f"(d[i / N][i % N])::"memory");
}
/* Waits for all of them; d can be read. */
template <int M, int N> FN void wgmma_finish(float (&d)[M][N]) {
    wgmma_wait<0>();
    wgmma_hold(d);
}
/* Shared memory that was seen to be written (behind a gate) can be read by wgmma. */
FN void wgmma_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Registers of a thread from here on; every warp of a group calls the same. */
template <int N> FN void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> FN void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* A gate in shared memory opens when so many arrived, and counts anew; `round` is the number of the
 * opening that is waited for, from 0, of which the last bit counts. */
typedef uint64_t Gate;
FN void gate_init(Gate *g, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_place(g)), "r"(n)
                 : "memory");
}
FN void gate_arrive(Gate *g) {
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(shared_place(g))
                 : "memory");
}
/* Arrives when all copies that this thread has begun have landed. */
FN void gate_arrive_copies(Gate *g) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_place(g))
                 : "memory");
}
FN void gate_wait(Gate *g, int32_t round) {
    asm volatile("{ .reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again; }" ::"r"(shared_place(g)),
                 "r"(round & 1)
                 : "memory");
}

/* A B tile whose rows are inputs: 16 rows of 64 outputs. */
FN WgTile wgmma_tile_turned(const void *p) {
    uint64_t at = (uint64_t)__cvta_generic_to_shared(p);
    // As above; 1024 from eight inputs to the next eight. One panel of 64 outputs has no other.
    return (at & 0x3ffffu) >> 4 | (uint64_t)(1024 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* The accumulators of the instructions: their names in the text, and the operands d[i] .. */
#define TEXT_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TEXT_16 TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TEXT_32                                                                                    \
    TEXT_16                                                                                        \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27"                                 \
    ", %28, %29, %30, %31"
#define TEXT_48                                                                                    \
    TEXT_32                                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"                                 \
    ", %44, %45, %46, %47"
#define TEXT_64                                                                                    \
    TEXT_48                                                                                        \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"                                 \
    ", %60, %61, %62, %63"
#define TEXT_128                                                                                   \
    TEXT_64                                                                                        \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"                                 \
    ", %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"                                 \
    ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99"                                 \
    ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"                     \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123"                     \
    ", %124, %125, %126, %127"
#define REGS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define REGS_8(i) REGS_4(i), REGS_4((i) + 4)
#define REGS_16(i) REGS_8(i), REGS_8((i) + 8)
#define REGS_32(i) REGS_16(i), REGS_16((i) + 16)
#define REGS_48(i) REGS_32(i), REGS_16((i) + 32)
#define REGS_64(i) REGS_32(i), REGS_32((i) + 32)
#define REGS_128(i) REGS_64(i), REGS_64((i) + 64)
/* N, then what follows the accumulators in the text, then the operands of that. */
#define WGMMA(N, TEXT, REGS, REST, ...)                                                            \
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; "                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TEXT "}, " REST " }" \
                 : REGS(0)                                                                         \
                 : __VA_ARGS__)
#define A_REGS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* d += A B as below, N = 64, with the 64 rows of A in shared memory as well, and with a B tile
 * whose rows are inputs. */
FN void wgmma_shared(float *d, WgTile a, WgTile b) {
    WGMMA(64, TEXT_32, REGS_32, "%32, %33, p, 1, 1, 0, 0;", "l"(a), "l"(b));
}
FN void wgmma_turned(float *d, const uint32_t *a, WgTile b) {
    WGMMA(64, TEXT_32, REGS_32, "{%32, %33, %34, %35}, %36, p, 1, 1, 1;", A_REGS, "l"(b));
}

/* d += A B, d [64, N] f32 over the four warps, N = 2 * size of d: d[4 j + q] of lane 4 g + i is row
 * g + q / 2 * 8 of the warp's 16, column 8 j + 2 i + q % 2. A as mma_bf16 wants it of these rows.
 */
template <int N> FN void wgmma(float *d, const uint32_t *a, WgTile b);
#define WGMMA_OF(N, TEXT, REGS, REST)                                                              \
    template <> __device__ __forceinline__ void wgmma<N>(float *d, const uint32_t *a, WgTile b) {  \
        WGMMA(N, TEXT, REGS, REST " p, 1, 1, 0;", A_REGS, "l"(b));                                 \
    }
WGMMA_OF(16, TEXT_8, REGS_8, "{%8, %9, %10, %11}, %12,")
WGMMA_OF(32, TEXT_16, REGS_16, "{%16, %17, %18, %19}, %20,")
WGMMA_OF(64, TEXT_32, REGS_32, "{%32, %33, %34, %35}, %36,")
WGMMA_OF(96, TEXT_48, REGS_48, "{%48, %49, %50, %51}, %52,")
WGMMA_OF(128, TEXT_64, REGS_64, "{%64, %65, %66, %67}, %68,")
WGMMA_OF(256, TEXT_128, REGS_128, "{%128, %129, %130, %131}, %132,")
#endif

#endif
