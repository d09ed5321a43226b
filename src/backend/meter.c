// SPDX-License-Identifier: Apache-2.0
/* meter.c - streaming reads and register-only products on all threads.
 *
 * Path:     backend.c (`bench`), doctor.
 * Owns:     the memory that is read.  Thread: one; the work runs on the pool.
 *
 * A meter that does not reach what the machine can do makes every share of a bound look good. So
 * both loops are written like kernels: named registers and unrolled by hand (an array of sums goes
 * through memory at -O2 and measures the store queue), the widest registers that the CPU has, and
 * every way that was ever the best somewhere is tried. */
#include "backend/meter.h"

#include "backend/cpu/cpu_features.h"
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

/* ---- reading ---- */

enum {
    METER_RUN = 256, // bytes that a stream reads before the next one has its turn
    // Streams that lie a power of two apart meet in the same cache sets and memory banks: measured,
    // four of them read less than one. So each is shorter by this odd number of lines.
    METER_SKEW = 67 * 64,
    METER_AHEAD = 2048, // bytes; distance of the prefetching stream
};

/* Sums 64-bit words of n bytes at p in METER_RUN / 64 steps; two runs follow each other per sum. */
typedef uint64_t (*ReadFn)(const char *p, size_t bytes);

/* A function that reads `bytes` in N streams. LINE(a, p) adds the 64 bytes at p to sum a; SUM(x)
 * adds four sums up. AHEAD 0: the hardware prefetches alone. */
#define READ_RUN(LINE, p) LINE(s0, p) LINE(s1, (p) + 64) LINE(s2, (p) + 128) LINE(s3, (p) + 192)
#define READ_STREAMS_1(LINE) READ_RUN(LINE, at)
#define READ_STREAMS_4(LINE)                                                                       \
    READ_RUN(LINE, at)                                                                             \
    READ_RUN(LINE, at + step) READ_RUN(LINE, at + 2 * step) READ_RUN(LINE, at + 3 * step)
#define READ_STREAMS_8(LINE)                                                                       \
    READ_STREAMS_4(LINE)                                                                           \
    READ_RUN(LINE, at + 4 * step)                                                                  \
    READ_RUN(LINE, at + 5 * step) READ_RUN(LINE, at + 6 * step) READ_RUN(LINE, at + 7 * step)
#define READ_FN(NAME, N, AHEAD, TYPE, ZERO, LINE, SUM)                                             \
    static uint64_t NAME(const char *p, size_t bytes) {                                            \
        size_t step = bytes / N / METER_RUN * METER_RUN - (N > 1 ? METER_SKEW : 0);                \
        TYPE s0 = ZERO, s1 = ZERO, s2 = ZERO, s3 = ZERO;                                           \
        for (size_t off = 0; off + METER_RUN <= step; off += METER_RUN) {                          \
            const char *at = p + off;                                                              \
            if (AHEAD)                                                                             \
                for (int i = 0; i < METER_RUN; i += 64)                                            \
                    __builtin_prefetch(at + AHEAD + i);                                            \
            READ_STREAMS_##N(LINE)                                                                 \
        }                                                                                          \
        return SUM;                                                                                \
    }

#define PLAIN_LINE(a, p)                                                                           \
    {                                                                                              \
        uint64_t line[8];                                                                          \
        memcpy(line, p, sizeof line);                                                              \
        a +=                                                                                       \
            (line[0] + line[1]) + (line[2] + line[3]) + (line[4] + line[5]) + (line[6] + line[7]); \
    }
#define PLAIN_SUM (s0 + s1 + s2 + s3)
READ_FN(read_plain_1, 1, 0, uint64_t, 0, PLAIN_LINE, PLAIN_SUM)
READ_FN(read_plain_1_ahead, 1, METER_AHEAD, uint64_t, 0, PLAIN_LINE, PLAIN_SUM)
READ_FN(read_plain_4, 4, 0, uint64_t, 0, PLAIN_LINE, PLAIN_SUM)
READ_FN(read_plain_8, 8, 0, uint64_t, 0, PLAIN_LINE, PLAIN_SUM)

#if defined(__x86_64__)
#define AVX2_LINE(a, p)                                                                            \
    a = _mm256_add_epi64(                                                                          \
        a, _mm256_add_epi64(_mm256_loadu_si256((const __m256i *)(const void *)(p)),                \
                            _mm256_loadu_si256((const __m256i *)(const void *)((p) + 32))));
TARGET("avx2") static uint64_t read_avx2_sum(__m256i v) {
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)lane, v);
    return lane[0] + lane[1] + lane[2] + lane[3];
}
#define AVX2_SUM read_avx2_sum(_mm256_add_epi64(_mm256_add_epi64(s0, s1), _mm256_add_epi64(s2, s3)))
#define AVX2_FN(NAME, N, AHEAD)                                                                    \
    TARGET("avx2")                                                                                 \
    READ_FN(NAME, N, AHEAD, __m256i, _mm256_setzero_si256(), AVX2_LINE, AVX2_SUM)
AVX2_FN(read_avx2_1, 1, 0)
AVX2_FN(read_avx2_1_ahead, 1, METER_AHEAD)
AVX2_FN(read_avx2_4, 4, 0)
AVX2_FN(read_avx2_8, 8, 0)

#define AVX512_LINE(a, p) a = _mm512_add_epi64(a, _mm512_loadu_si512(p));
// Not _mm512_reduce_add_epi64, whose signed sum may overflow.
TARGET("avx512f") static uint64_t read_avx512_sum(__m512i v) {
    uint64_t lane[8], all = 0;
    _mm512_storeu_si512(lane, v);
    for (int i = 0; i < 8; i++)
        all += lane[i];
    return all;
}
#define AVX512_SUM                                                                                 \
    read_avx512_sum(_mm512_add_epi64(_mm512_add_epi64(s0, s1), _mm512_add_epi64(s2, s3)))
#define AVX512_FN(NAME, N, AHEAD)                                                                  \
    TARGET("avx512f")                                                                              \
    READ_FN(NAME, N, AHEAD, __m512i, _mm512_setzero_si512(), AVX512_LINE, AVX512_SUM)
AVX512_FN(read_avx512_1, 1, 0)
AVX512_FN(read_avx512_1_ahead, 1, METER_AHEAD)
AVX512_FN(read_avx512_4, 4, 0)
AVX512_FN(read_avx512_8, 8, 0)
#endif

enum { READ_WAYS = 4 };

/* The ways to read of the widest registers here. */
static const ReadFn *read_ways(void) {
    static const ReadFn plain[READ_WAYS] = {read_plain_1, read_plain_1_ahead, read_plain_4,
                                            read_plain_8};
#if defined(__x86_64__)
    static const ReadFn avx2[READ_WAYS] = {read_avx2_1, read_avx2_1_ahead, read_avx2_4,
                                           read_avx2_8};
    static const ReadFn avx512[READ_WAYS] = {read_avx512_1, read_avx512_1_ahead, read_avx512_4,
                                             read_avx512_8};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return avx512;
    if (__builtin_cpu_supports("avx2"))
        return avx2;
#endif
    return plain;
}

struct Meter {
    Pool *pool;
    char *memory[LIMIT_THREADS]; // each member fills its own, so that the pages are near it
    size_t bytes;                // of each
    ReadFn fn;
    int64_t start_ns, end_ns; // written by member 0 between barriers
    _Atomic bool is_short;    // a member found no memory
    _Atomic uint64_t sink;    // keeps the loads from being dropped
};

static void meter_fill(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    Meter *m = ctx;
    m->memory[member] = mem_map(m->bytes);
    if (m->memory[member])
        memset(m->memory[member], member + 1, m->bytes);
    else
        atomic_store(&m->is_short, true);
}

static void meter_read(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    Meter *m = ctx;
    pool_barrier(m->pool, member);
    if (member == 0)
        m->start_ns = clock_now_ns();
    atomic_fetch_xor(&m->sink, m->fn(m->memory[member], m->bytes));
    pool_barrier(m->pool, member);
    if (member == 0)
        m->end_ns = clock_now_ns();
}

void meter_close(Meter *m) {
    if (!m)
        return;
    for (int i = 0; i < pool_n_members(m->pool); i++)
        mem_unmap(m->memory[i], m->bytes);
    mem_free(m);
}

Status meter_open(Meter **out, Pool *pool, size_t bytes_per_thread, Err *err) {
    Meter *m = mem_zalloc(1, sizeof *m);
    if (!m)
        return err_memory(err, "bandwidth meter", sizeof *m);
    m->pool = pool;
    m->bytes = round_up_size(bytes_per_thread, 1 << 21);
    pool_run(pool, meter_fill, m);
    if (m->is_short) {
        size_t all = m->bytes * (size_t)pool_n_members(pool);
        meter_close(m);
        return err_memory(err, "bandwidth meter", all);
    }
    *out = m;
    return STATUS_OK;
}

double meter_read_gb_s(Meter *m) {
    double best = 0;
    for (int way = 0; way < READ_WAYS; way++) {
        m->fn = read_ways()[way];
        pool_run(m->pool, meter_read, m);
        double seconds = (double)(m->end_ns - m->start_ns) * 1e-9;
        // The skew of the streams, at most 0.2% of 16 MiB, is left out of the sum.
        double rate = ((double)m->bytes - 8.0 * METER_SKEW) * pool_n_members(m->pool) / seconds;
        best = rate * 1e-9 > best ? rate * 1e-9 : best;
    }
    return best;
}

/* ---- products ---- */

/* 12 independent sums: more than latency times issue rate of every unit here (Zen 4: 4 cycles by 1
 * a cycle; Intel: 5 by 2; bf16 6 by 1), and with two inputs they fit into 16 registers. */
// (Sums that the compiler knows to be equal become one: HIDE keeps it from knowing.)
#define HIDE(CLASS, x) __asm__ volatile("" : "+" CLASS(x))
#define EACH_SUM(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
enum { METER_SUMS = 12 };

/* n rounds of the sums' step. All inputs are one, so that the total over the sums' lanes is the
 * number of multiply-adds: tests count by it. */
#define MATRIX_LOOP(CLASS)                                                                         \
    for (int64_t r = 0; r < n; r++) {                                                              \
        EACH_SUM(STEP)                                                                             \
        HIDE(CLASS, a); /* nothing may leave the loop */                                           \
        HIDE(CLASS, b);                                                                            \
    }

/* The constraint letter of a register that holds four floats. */
#if defined(__x86_64__)
#define FOUR_CLASS "x"
#elif defined(__aarch64__)
#define FOUR_CLASS "w"
#else
#define FOUR_CLASS "m"
#endif
typedef float Four __attribute__((vector_size(16))); // SSE2, NEON, or what the compiler makes of it

static double matrix_plain(int64_t n) {
#define ZERO(i)                                                                                    \
    Four s##i = {0};                                                                               \
    HIDE(FOUR_CLASS, s##i);
#define STEP(i) s##i = s##i * a + b; // b alone would be multiplied once for all sums
#define TOTAL(i) total += (double)s##i[0] + (double)s##i[1] + (double)s##i[2] + (double)s##i[3];
    EACH_SUM(ZERO)
    Four a = {1, 1, 1, 1}, b = a;
    double total = 0;
    MATRIX_LOOP(FOUR_CLASS)
    EACH_SUM(TOTAL)
    return total;
#undef ZERO
#undef STEP
#undef TOTAL
}

#if defined(__x86_64__)
TARGET("avx2,fma") static double matrix_avx2(int64_t n) {
#define ZERO(i)                                                                                    \
    __m256 s##i = _mm256_setzero_ps();                                                             \
    HIDE("x", s##i);
#define STEP(i) s##i = _mm256_fmadd_ps(a, b, s##i);
#define TOTAL(i)                                                                                   \
    _mm256_storeu_ps(lane, s##i);                                                                  \
    for (int j = 0; j < 8; j++)                                                                    \
        total += (double)lane[j];
    EACH_SUM(ZERO)
    __m256 a = _mm256_set1_ps(1), b = a;
    float lane[8];
    double total = 0;
    MATRIX_LOOP("x")
    EACH_SUM(TOTAL)
    return total;
#undef ZERO
#undef STEP
#undef TOTAL
}

#define ZERO(i)                                                                                    \
    __m512 s##i = _mm512_setzero_ps();                                                             \
    HIDE("v", s##i);
#define TOTAL(i) total += (double)_mm512_reduce_add_ps(s##i);
TARGET("avx512f") static double matrix_avx512(int64_t n) {
#define STEP(i) s##i = _mm512_fmadd_ps(a, b, s##i);
    EACH_SUM(ZERO)
    __m512 a = _mm512_set1_ps(1), b = a;
    double total = 0;
    MATRIX_LOOP("v")
    EACH_SUM(TOTAL)
    return total;
#undef STEP
}

TARGET("avx512f,avx512bf16") static double matrix_bf16(int64_t n) {
#define STEP(i) s##i = _mm512_dpbf16_ps(s##i, (__m512bh)a, (__m512bh)b);
    EACH_SUM(ZERO)
    __m512i a = _mm512_set1_epi32(0x3f803f80), b = a; // 1.0, 1.0
    double total = 0;
    MATRIX_LOOP("v")
    EACH_SUM(TOTAL)
    return total;
#undef STEP
}
#undef ZERO
#undef TOTAL

/* What matmul_avx512.c multiplies with: pairs of 16-bit integers, exactly. */
TARGET("avx512f,avx512vnni") static double matrix_vnni(int64_t n) {
#define ZERO(i)                                                                                    \
    __m512i s##i = _mm512_setzero_si512();                                                         \
    HIDE("v", s##i);
#define STEP(i) s##i = _mm512_dpwssd_epi32(s##i, a, b);
#define TOTAL(i) total += (double)_mm512_reduce_add_epi32(s##i);
    EACH_SUM(ZERO)
    __m512i a = _mm512_set1_epi32(0x00010001), b = a;
    double total = 0;
    MATRIX_LOOP("v")
    EACH_SUM(TOTAL)
    return total;
#undef ZERO
#undef STEP
#undef TOTAL
}
#endif

#if defined(__x86_64__)
/* The tile numbers of EACH_SUM, two of them inputs: six independent sums are more than the unit's
 * latency of 52 cycles by 16 of one instruction. */
#define EACH_TILE(M) M(0) M(1) M(2) M(3) M(4) M(5)
enum { METER_TILES = 6, TILE_BYTES = 1024, TILE_FLOATS = TILE_BYTES / 4 };

/* Pairs of bf16 by the tiles of AMX. */
TARGET("amx-tile,amx-bf16") static double matrix_tiles(int64_t n) {
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < METER_TILES + 2; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _Alignas(64) uint32_t ones[TILE_FLOATS];
    float sums[TILE_FLOATS];
    double total = 0;
    for (int i = 0; i < TILE_FLOATS; i++)
        ones[i] = 0x3f803f80;          // 1.0, 1.0
    __asm__ volatile("" ::: "memory"); // the intrinsics of gcc 12 do not say that they read memory
    _tile_loadconfig(&config);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
#define ZERO(i) _tile_zero(i);
#define STEP(i) _tile_dpbf16ps(i, 6, 7);
#define TOTAL(i)                                                                                   \
    _tile_stored(i, sums, 64);                                                                     \
    for (int j = 0; j < TILE_FLOATS; j++)                                                          \
        total += (double)sums[j];
    EACH_TILE(ZERO)
    for (int64_t r = 0; r < n; r++) {
        EACH_TILE(STEP)
    }
    EACH_TILE(TOTAL)
    _tile_release();
    return total;
#undef ZERO
#undef STEP
#undef TOTAL
}

static bool has_amx(void) { return cpu_features_amx() == AMX_GRANTED; }
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static bool has_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }
static bool has_vnni(void) { return __builtin_cpu_supports("avx512vnni"); }
#endif

static const MeterUnit meter_units[] = {
#if defined(__x86_64__)
    {"plain C, f32", matrix_plain, METER_SUMS * 4, NULL, has_avx2},
    {"AVX2 f32", matrix_avx2, METER_SUMS * 8, has_avx2, has_avx512},
    {"AVX-512 f32", matrix_avx512, METER_SUMS * 16, has_avx512, NULL},
    {"AVX-512 bf16 dot product", matrix_bf16, METER_SUMS * 16 * 2, has_bf16, NULL},
    {"AVX-512 16-bit integer dot product", matrix_vnni, METER_SUMS * 16 * 2, has_vnni, NULL},
    {"AMX bf16 tiles", matrix_tiles, METER_TILES * 16 * 16 * 32, has_amx, NULL},
#else
    {"plain C, f32", matrix_plain, METER_SUMS * 4, NULL, NULL},
#endif
};

const MeterUnit *meter_unit(int i) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    for (size_t at = 0; at < COUNT_OF(meter_units); at++)
        if ((!meter_units[at].is_here || meter_units[at].is_here()) && i-- == 0)
            return &meter_units[at];
    return NULL;
}

typedef struct MatrixRun {
    Pool *pool;
    const MeterUnit *unit;
    double seconds;
    double tflops[LIMIT_THREADS];        // each by its member
    volatile double sink[LIMIT_THREADS]; // keeps the products from being dropped
} MatrixRun;

static void meter_matrix_member(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    MatrixRun *run = ctx;
    enum { ROUNDS = 20000 }; // some ten microseconds: the clock is read rarely
    pool_barrier(run->pool, member);
    int64_t start = clock_now_ns(), n = 0;
    while (clock_seconds_since(start) < run->seconds) {
        run->sink[member] = run->unit->run(ROUNDS);
        n += ROUNDS;
    }
    run->tflops[member] =
        (double)n * run->unit->n_multiply_adds * 2 / clock_seconds_since(start) * 1e-12;
}

double meter_unit_tflops(Pool *pool, const MeterUnit *unit, double seconds) {
    MatrixRun run = {.pool = pool, .unit = unit, .seconds = seconds};
    pool_run(pool, meter_matrix_member, &run);
    double all = 0;
    for (int i = 0; i < pool_n_members(pool); i++)
        all += run.tflops[i];
    return all;
}

double meter_matrix_tflops(Pool *pool, double seconds, const char **unit) {
    double best = 0;
    const MeterUnit *u;
    for (int i = 0; (u = meter_unit(i)) != NULL; i++) {
        if (u->is_outdone && u->is_outdone())
            continue;
        double rate = meter_unit_tflops(pool, u, seconds);
        if (rate > best) {
            best = rate;
            *unit = u->name;
        }
    }
    return best;
}
