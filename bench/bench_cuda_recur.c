// SPDX-License-Identifier: Apache-2.0
/* bench_cuda_recur.c - times the mixers of a prefill alone, in the shape of the 35B model: the
 * gated delta net over 512, 4,096 and 32,768 rows, attention of the last rows of contexts as long
 * and of 32 rows behind 4,096 and 32,768.
 *
 * Use:      bench_cuda_recur [--recur] [--attn] [--sm80] [--segment KEYS]
 * Builds with CUDA_TRACE=1 also list the time of each kernel. Medians of 9 rounds. */
#include "backend/cuda/cuda_kernels.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "bench_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HK = 16, HV = 32, HEAD = 128, NQ = 16, NKV = 2, DIM = 256, ROUNDS = 9, MAX_KERNELS = 8 };
enum { PATTERN = 1 << 20 };

/* Device memory of n bytes: copies of `from` [size], or as it is. */
static void *device_alloc(size_t n, const void *from, size_t size) {
    void *p = NULL;
    must(cudaMalloc(&p, n), "memory");
    for (size_t at = 0; from && at < n; at += size)
        must(
            cudaMemcpy((char *)p + at, from, n - at < size ? n - at : size, cudaMemcpyHostToDevice),
            "filling");
    return p;
}

/* bf16 numbers between -1 and 1, and floats between -0.5 and 0.5. */
static uint16_t halves[PATTERN / 2];
static float floats[PATTERN / 4];
static void patterns_make(void) {
    for (size_t i = 0; i < COUNT_OF(floats); i++)
        floats[i] = rng_unit_f32(1, i) - 0.5f;
    for (size_t i = 0; i < COUNT_OF(halves); i++) {
        float x = 2.0f * rng_unit_f32(2, i) - 1.0f;
        uint32_t u;
        memcpy(&u, &x, 4);
        halves[i] = (uint16_t)(u >> 16);
    }
}

typedef struct Bench {
    CudaLaunch l;
    int max_shared;
    int32_t segment; // keys of a segment of attention
    cudaEvent_t begin, end;
    uint64_t *trace; // device
} Bench;

/* Prints medians of a piece of work, and of its kernels where they note their times. */
static void bench_row(Bench *b, const char *name, int32_t rows,
                      cudaError_t (*work)(const CudaLaunch *, const void *), const void *arg,
                      double tflop) {
    double us[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) {
        must(cudaEventRecord(b->begin, b->l.stream), "timing");
        must(work(&b->l, arg), name);
        must(cudaEventRecord(b->end, b->l.stream), "timing");
        double t = 1000 * event_ms(b->begin, b->end);
        if (i >= 0)
            us[i] = t;
    }
    qsort(us, ROUNDS, sizeof *us, by_size);
    printf("%-8s %6d rows %10.1f us  (%.1f..%.1f)", name, rows, us[ROUNDS / 2], us[0],
           us[ROUNDS - 1]);
    if (tflop > 0)
        printf("  %.0f TFLOP/s", tflop * 1e6 / us[ROUNDS / 2]);
    printf("\n");
#ifdef LILY_CUDA_TRACE
    static uint64_t host[2 * MAX_KERNELS + 1];
    must(cudaMemset(b->trace, 0, sizeof host), "trace");
    must(cuda_trace_bind(b->trace), "trace");
    must(work(&b->l, arg), name);
    must(cuda_meter_read(&b->l, b->trace, 16, (uint32_t *)(b->trace + 2 * CUDA_TRACE_MAX)), "end");
    must(cudaEventRecord(b->begin, b->l.stream), "timing");
    must(cudaStreamSynchronize(b->l.stream), "trace");
    must(cudaMemcpy(host, b->trace, sizeof host, cudaMemcpyDeviceToHost), "trace");
    must(cuda_trace_bind(NULL), "trace");
    for (uint64_t i = 0; i + 1 < host[0] && i + 1 < MAX_KERNELS; i++)
        printf("    kernel %d: %8.1f us\n", (int)i,
               (double)(host[3 + 2 * i] - host[1 + 2 * i]) / 1e3);
#endif
    fflush(stdout);
}

/* ---- gated delta net ---- */

static cudaError_t recur_work(const CudaLaunch *l, const void *a) { return cuda_gdn_prefill(l, a); }

static void recur(Bench *b, int32_t m) {
    int32_t cc = (2 * HK + HV) * HEAD, ld = cc + HV * HEAD + 2 * HV, n_chunks = (m + 63) / 64;
    size_t n = (size_t)m, chunks = (size_t)n_chunks, vd = HV * HEAD;
    CudaRow *rows = mem_zalloc(n, sizeof *rows);
    CudaChunk *list = mem_zalloc(chunks, sizeof *list);
    if (!rows || !list)
        exit(1);
    for (int32_t i = 0; i < m; i++)
        rows[i] = (CudaRow){.pos = i, .in_seq = i};
    for (int32_t i = 0; i < n_chunks; i++)
        list[i] = (CudaChunk){64 * i, m - 64 * i < 64 ? m - 64 * i : 64};
    CudaSeq seq = {.n_rows = m, .n_chunks = n_chunks};
    CudaGdnPrefill a = {.g = {.conv = device_alloc((size_t)cc * 16, floats, PATTERN),
                              .a_log = device_alloc(HV * 4, floats, PATTERN),
                              .dt_bias = device_alloc(HV * 4, floats, PATTERN),
                              .norm = device_alloc(HEAD * 4, floats, PATTERN),
                              .state = device_alloc(vd * HEAD * 4, floats, PATTERN),
                              .ring = device_alloc((size_t)cc * 8, halves, PATTERN),
                              .hk = HK,
                              .hv = HV,
                              .eps = 1e-6f},
                        .proj = device_alloc(n * (size_t)ld * 2, halves, PATTERN),
                        .rows = device_alloc(n * sizeof *rows, rows, n * sizeof *rows),
                        .seqs = device_alloc(sizeof seq, &seq, sizeof seq),
                        .chunks = device_alloc(chunks * sizeof *list, list, chunks * sizeof *list),
                        .snaps = NULL,
                        .keys = device_alloc(chunks * HK * CUDA_DELTA_KEYS, NULL, 0),
                        .mix = device_alloc(chunks * HV * CUDA_DELTA_MIX, NULL, 0),
                        .v = device_alloc(chunks * 64 * vd * 4, NULL, 0),
                        .delta = device_alloc(n * vd * 4, NULL, 0),
                        .out = device_alloc(n * vd * 2, NULL, 0),
                        .ld = ld,
                        .m = m,
                        .n_seqs = 1,
                        .n_chunks = n_chunks,
                        .max_shared = b->max_shared};
    bench_row(b, "recur", m, recur_work, &a, 0);
    const void *gone[] = {a.g.conv, a.g.a_log, a.g.dt_bias, a.g.norm, a.g.state,
                          a.g.ring, a.proj,    a.rows,      a.seqs,   a.chunks,
                          a.keys,   a.mix,     a.v,         a.delta,  a.out};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        must(cudaFree((void *)gone[i]), "freeing");
    mem_free(rows);
    mem_free(list);
}

/* ---- attention ---- */

static cudaError_t attn_work(const CudaLaunch *l, const void *a) { return cuda_attn_prefill(l, a); }

/* The last m rows of a context. */
static void attn(Bench *b, int32_t m, int32_t context) {
    int32_t ld = 2 * (NQ + NKV) * DIM, n_blocks = (context + 63) / 64, pos0 = context - m;
    int32_t tokens = cuda_attn_tile_tokens(NQ, NKV, b->max_shared), n_tiles = 0;
    size_t n = (size_t)m, block = (size_t)2 * NKV * 64 * DIM * 2;
    CudaRow *rows = mem_zalloc(n, sizeof *rows);
    CudaTile *tiles = mem_zalloc(n, sizeof *tiles);
    int32_t *table = mem_zalloc((size_t)n_blocks, sizeof *table);
    if (!rows || !tiles || !table)
        exit(1);
    for (int32_t i = 0; i < m; i++)
        rows[i] = (CudaRow){.pos = pos0 + i, .in_seq = i};
    for (int32_t i = 0; i < m; i += tokens)
        tiles[n_tiles++] = (CudaTile){0, i};
    for (int32_t i = 0; i < n_blocks; i++)
        table[i] = (int32_t)((int64_t)i * 7 % n_blocks);
    CudaSeq seq = {.n_rows = m, .pos0 = pos0};
    CudaAttnSize size = {NQ, NKV, m, 1, context, b->segment};
    size_t n_table = (size_t)n_blocks * sizeof *table, n_list = (size_t)n_tiles * sizeof *tiles;
    CudaAttnPrefill a = {.t = {.q_norm = device_alloc(DIM * 4, floats, PATTERN),
                               .k_norm = device_alloc(DIM * 4, floats, PATTERN),
                               .rope = device_alloc((size_t)context * 64 * 4, floats, PATTERN),
                               .kv = device_alloc((size_t)n_blocks * block, halves, PATTERN),
                               .block_stride = (int64_t)block,
                               .table = device_alloc(n_table, table, n_table),
                               .nq = NQ,
                               .nkv = NKV,
                               .eps = 1e-6f},
                         .proj = device_alloc(n * (size_t)ld * 2, halves, PATTERN),
                         .rows = device_alloc(n * sizeof *rows, rows, n * sizeof *rows),
                         .seqs = device_alloc(sizeof seq, &seq, sizeof seq),
                         .tiles = device_alloc(n_list, tiles, n_list),
                         .q = device_alloc(n * NQ * DIM * 2, NULL, 0),
                         .out = device_alloc(n * NQ * DIM * 2, NULL, 0),
                         .part = device_alloc(cuda_attn_part_bytes(&size) + 1, NULL, 0),
                         .segment = b->segment,
                         .most_keys = context,
                         .ld = ld,
                         .m = m,
                         .n_tiles = n_tiles,
                         .max_shared = b->max_shared};
    double keys = (double)m * ((double)pos0 + (double)(m + 1) / 2); // pairs of query and key
    char name[32];
    snprintf(name, sizeof name, "attn/%d", context);
    bench_row(b, name, m, attn_work, &a, keys * NQ * DIM * 4 / 1e12);
    const void *gone[] = {a.t.q_norm, a.t.k_norm, a.t.rope, a.t.kv, a.t.table, a.proj,
                          a.rows,     a.seqs,     a.tiles,  a.q,    a.out,     a.part};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        must(cudaFree((void *)gone[i]), "freeing");
    mem_free(rows);
    mem_free(tiles);
    mem_free(table);
}

int main(int argc, char **argv) {
    bool is_recur = false, is_attn = false, is_sm80 = false;
    int32_t segment = CUDA_SEGMENT_KEYS;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--recur") == 0)
            is_recur = true;
        else if (strcmp(argv[i], "--attn") == 0)
            is_attn = true;
        else if (strcmp(argv[i], "--sm80") == 0)
            is_sm80 = true;
        else if (strcmp(argv[i], "--segment") == 0 && i + 1 < argc)
            segment = (int32_t)strtol(argv[++i], NULL, 10);
        else
            return 2;
    if (segment < 64 || segment % 64)
        return 2;
    if (!is_recur && !is_attn)
        is_recur = is_attn = true;
    Bench b = {.segment = segment};
    int major = 0, n_multi = 0;
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "card");
    must(cudaDeviceGetAttribute(&n_multi, cudaDevAttrMultiProcessorCount, 0), "card");
    b.l.n_sm90 = major == 9 && cuda_matmul_has_sm90() && !is_sm80 ? n_multi : 0;
    must(cudaDeviceGetAttribute(&b.max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "card");
    b.l.n_sm = n_multi;
    must(cuda_kernels_init(b.max_shared), "kernels");
    must(cudaStreamCreateWithFlags(&b.l.stream, cudaStreamNonBlocking), "stream");
    must(cudaEventCreate(&b.begin), "event");
    must(cudaEventCreate(&b.end), "event");
#ifdef LILY_CUDA_TRACE
    b.trace = device_alloc((1 + 2 * (size_t)CUDA_TRACE_MAX) * 8, NULL, 0);
#endif
    patterns_make();
    static const int32_t sizes[] = {512, 4096, 32768};
    for (size_t i = 0; is_recur && i < COUNT_OF(sizes); i++)
        recur(&b, sizes[i]);
    for (size_t i = 0; is_attn && i < COUNT_OF(sizes); i++)
        attn(&b, sizes[i] < 4096 ? sizes[i] : 4096, sizes[i]);
    for (size_t i = 1; is_attn && i < COUNT_OF(sizes); i++)
        attn(&b, 32, sizes[i] + 32);
    return 0;
}
