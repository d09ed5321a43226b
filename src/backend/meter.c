// SPDX-License-Identifier: Apache-2.0
/* meter.c - streaming reads and register-only products on all threads.
 *
 * Owns:     nothing past a call.  Thread: one; the work runs on the pool. */
#include "backend/meter.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
// One function for one instruction set, whatever the file's flags are.
#define TARGET(features) __attribute__((target(features)))
#endif

enum { METER_MAX_STREAMS = 8, METER_LINE = 64 };

typedef struct ReadRun {
    Pool *pool;
    char *memory[LIMIT_THREADS]; // each member fills its own, so that the pages are near it
    size_t bytes;                // of each
    int n_streams;
    int64_t start_ns, end_ns; // written by member 0 between barriers
    _Atomic bool is_short;    // a member found no memory
    _Atomic uint64_t sink;    // keeps the loads from being dropped
} ReadRun;

static void meter_fill(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    ReadRun *run = ctx;
    run->memory[member] = mem_map(run->bytes);
    if (run->memory[member])
        memset(run->memory[member], member + 1, run->bytes);
    else
        atomic_store(&run->is_short, true);
}

/* A pass over the member's memory in n equal streams; four sums a line hide the add's latency. */
static uint64_t meter_pass(const char *memory, size_t bytes, int n_streams) {
    size_t step = bytes / (size_t)n_streams / METER_LINE * METER_LINE;
    uint64_t sum[8] = {0};
    for (size_t off = 0; off < step; off += METER_LINE) {
        for (int s = 0; s < n_streams; s++) {
            uint64_t line[8];
            memcpy(line, memory + (size_t)s * step + off, sizeof line);
            for (int i = 0; i < 8; i++)
                sum[i] += line[i];
        }
    }
    uint64_t all = 0;
    for (int i = 0; i < 8; i++)
        all ^= sum[i];
    return all;
}

static void meter_read(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    ReadRun *run = ctx;
    pool_barrier(run->pool);
    if (member == 0)
        run->start_ns = clock_now_ns();
    uint64_t sum = meter_pass(run->memory[member], run->bytes, run->n_streams);
    atomic_fetch_xor(&run->sink, sum);
    pool_barrier(run->pool);
    if (member == 0)
        run->end_ns = clock_now_ns();
}

Status meter_read_gb_s(double *out, Pool *pool, size_t bytes_per_thread, Err *err) {
    int n = pool_n_members(pool);
    ReadRun run = {.pool = pool, .bytes = round_up_size(bytes_per_thread, 1 << 21)};
    double best = 0;
    pool_run(pool, meter_fill, &run);
    if (!run.is_short)
        for (run.n_streams = 1; run.n_streams <= METER_MAX_STREAMS;
             run.n_streams = run.n_streams == 1 ? 4 : run.n_streams * 2) {
            pool_run(pool, meter_read, &run);
            double seconds = (double)(run.end_ns - run.start_ns) * 1e-9;
            double rate = (double)run.bytes * n / seconds * 1e-9;
            best = rate > best ? rate : best;
        }
    for (int i = 0; i < n; i++)
        mem_unmap(run.memory[i], run.bytes);
    if (run.is_short)
        return err_memory(err, "bandwidth meter", run.bytes * (size_t)n);
    *out = best;
    return STATUS_OK;
}

/* Does `n` rounds and returns something that depends on all of them. */
typedef float (*MatrixFn)(int64_t n);

enum { METER_SUMS = 12 }; // independent sums: more than latency times issue rate of any unit

#if defined(__x86_64__)
enum {
    FLOP_BF16 = METER_SUMS * 16 * 2 * 2,
    FLOP_AVX512 = METER_SUMS * 16 * 2,
    FLOP_AVX2 = METER_SUMS * 8 * 2
};

TARGET("avx512f,avx512bf16") static float meter_bf16(int64_t n) {
    __m512 sum[METER_SUMS];
    for (int i = 0; i < METER_SUMS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3c003c00),
             b = (__m512bh)_mm512_set1_epi32(0x3c013c01);
    for (int64_t r = 0; r < n; r++) {
        for (int i = 0; i < METER_SUMS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
        __asm__ volatile("" : "+v"(a), "+v"(b)); // nothing may be moved out of the loop
    }
    float all = 0;
    for (int i = 0; i < METER_SUMS; i++)
        all += _mm512_reduce_add_ps(sum[i]);
    return all;
}

TARGET("avx512f") static float meter_avx512(int64_t n) {
    __m512 sum[METER_SUMS];
    for (int i = 0; i < METER_SUMS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    __m512 a = _mm512_set1_ps(0.001f), b = _mm512_set1_ps(0.002f);
    for (int64_t r = 0; r < n; r++) {
        for (int i = 0; i < METER_SUMS; i++)
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
        __asm__ volatile("" : "+v"(a), "+v"(b));
    }
    float all = 0;
    for (int i = 0; i < METER_SUMS; i++)
        all += _mm512_reduce_add_ps(sum[i]);
    return all;
}

TARGET("avx2,fma") static float meter_avx2(int64_t n) {
    __m256 sum[METER_SUMS];
    for (int i = 0; i < METER_SUMS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    __m256 a = _mm256_set1_ps(0.001f), b = _mm256_set1_ps(0.002f);
    for (int64_t r = 0; r < n; r++) {
        for (int i = 0; i < METER_SUMS; i++)
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        __asm__ volatile("" : "+x"(a), "+x"(b));
    }
    float lanes[8], all = 0;
    for (int i = 0; i < METER_SUMS; i++) {
        _mm256_storeu_ps(lanes, sum[i]);
        for (int j = 0; j < 8; j++)
            all += lanes[j];
    }
    return all;
}
#endif

enum { FLOP_PLAIN = METER_SUMS * 4 * 2 };

static float meter_plain(int64_t n) {
    float sum[METER_SUMS * 4] = {0};
    volatile float source = 0.001f;
    float a = source, b = source;
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < METER_SUMS * 4; i++)
            sum[i] += a * b;
    float all = 0;
    for (int i = 0; i < METER_SUMS * 4; i++)
        all += sum[i];
    return all;
}

typedef struct MatrixRun {
    Pool *pool;
    MatrixFn fn;
    double flop_per_round;
    double seconds;
    double tflops[LIMIT_THREADS];       // each by its member
    volatile float sink[LIMIT_THREADS]; // keeps the products from being dropped
} MatrixRun;

static void meter_matrix_member(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    MatrixRun *run = ctx;
    enum { ROUNDS = 20000 };
    pool_barrier(run->pool);
    int64_t start = clock_now_ns(), n = 0;
    while (clock_seconds_since(start) < run->seconds) {
        run->sink[member] = run->fn(ROUNDS);
        n += ROUNDS;
    }
    run->tflops[member] = (double)n * run->flop_per_round / clock_seconds_since(start) * 1e-12;
}

double meter_matrix_tflops(Pool *pool, double seconds, const char **unit) {
    MatrixRun run = {
        .pool = pool, .fn = meter_plain, .flop_per_round = FLOP_PLAIN, .seconds = seconds};
    *unit = "plain C, f32";
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16")) {
        run.fn = meter_bf16;
        run.flop_per_round = FLOP_BF16;
        *unit = "AVX-512 bf16 dot product";
    } else if (__builtin_cpu_supports("avx512f")) {
        run.fn = meter_avx512;
        run.flop_per_round = FLOP_AVX512;
        *unit = "AVX-512 f32";
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        run.fn = meter_avx2;
        run.flop_per_round = FLOP_AVX2;
        *unit = "AVX2 f32";
    }
#endif
    pool_run(pool, meter_matrix_member, &run);
    double all = 0;
    for (int i = 0; i < pool_n_members(pool); i++)
        all += run.tflops[i];
    return all;
}
