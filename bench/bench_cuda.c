// SPDX-License-Identifier: Apache-2.0
/* bench_cuda.c - times the CUDA backend on a random model: what the card can do, decode over
 * contexts and batches, prefill over lengths; or runs one step of each kind for a profiler.
 *
 * Use:      bench_cuda [-m SPEC] [--profile] [--mask NAMES] [--long] [--chunk ROWS]
 * A decode at context C is measured at position C over blocks of zeros: the same bytes are read as
 * of a real context, and no prompt has to be run. Steps are submitted two ahead, ids stay on the
 * card. Medians over rounds, with the lowest and highest. */
#include "backend/backend.h"
#include "backend/cuda/cuda_kernels.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { MAX_ROUNDS = 9, MAX_SEQS = 32 };

static void give_up(const Err *err) {
    fprintf(stderr, "bench_cuda: %s\n", err->text);
    exit(1);
}
#define MUST(call)                                                                                 \
    do {                                                                                           \
        Err must_ = {0};                                                                           \
        Err *err = &must_;                                                                         \
        if ((call) != STATUS_OK)                                                                   \
            give_up(err);                                                                          \
    } while (0)

typedef struct Bench {
    Weights *w;
    Backend *b;
    const ModelConfig *c;
    BackendPlan plan;
    const char *spec, *mask;
    int32_t *blocks; // [n_blocks] 0, 1, ...
    int32_t *ids;    // [max_ctx]
    int32_t chunk;
    bool is_profile, is_long;
} Bench;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *what, double *v, int n, const char *unit) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    printf("%-28s %10.1f  (%.1f..%.1f) %s\n", what, v[n / 2], v[0], v[n - 1], unit);
    fflush(stdout);
}

/* ---- the card ---- */

static double event_ms(cudaEvent_t a, cudaEvent_t b) {
    float ms = 0;
    cudaEventSynchronize(b);
    cudaEventElapsedTime(&ms, a, b);
    return (double)ms;
}

static void meter(void) {
    CudaLaunch l = {0};
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    uint64_t bytes = (uint64_t)8 << 30;
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess)
        return;
    cudaMemset(p, 0x5a, bytes);
    double read[5], matrix[5];
    for (int i = 0; i < 5; i++) {
        cudaEventRecord(a, NULL);
        cuda_meter_read(&l, p, bytes, p);
        cudaEventRecord(b, NULL);
        read[i] = (double)bytes / event_ms(a, b) * 1e-6;
        cudaEventRecord(a, NULL);
        cuda_meter_matrix(&l, 132 * 8, 512, p);
        cudaEventRecord(b, NULL);
        matrix[i] = 132.0 * 8 * 8 * 512 * 64 * 4096 / event_ms(a, b) * 1e-9;
    }
    cudaFree(p);
    print_row("read", read, 5, "GB/s");
    print_row("mma.sync bf16", matrix, 5, "TFLOP/s");
}

/* ---- steps ---- */

static BatchSeq part_of(const Bench *t, BatchPhase phase, int32_t i, int32_t row0, int32_t n,
                        int32_t pos0) {
    int32_t per_seq = t->plan.n_blocks / t->plan.max_seqs;
    return (BatchSeq){.phase = phase,
                      .row0 = row0,
                      .n_rows = n,
                      .pos0 = pos0,
                      .slot = i,
                      .blocks = t->blocks + (i ? (int64_t)i * per_seq : 0),
                      .want = WANT_NOTHING,
                      .sampler = i,
                      .carry = -1};
}

static void check(const Bench *t, const BatchResult *r, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (r[i].bad_layer >= 0 || r[i].sample.id < 0 || r[i].sample.id >= t->c->vocab) {
            fprintf(stderr, "bench_cuda: sequence %d: layer %d of position %d is not finite\n", i,
                    r[i].bad_layer, r[i].bad_pos);
            exit(1);
        }
}

/* Seconds a step of m sequences from position pos on, over n steps. */
static double decode_time(const Bench *t, int32_t m, int32_t pos, int32_t n) {
    BatchSeq parts[2][MAX_SEQS];
    BatchResult r[MAX_SEQS];
    int64_t start = 0;
    for (int32_t step = 0; step < n + 2; step++) {
        int32_t row = 0;
        for (int32_t i = 0; i < m; i++, row++) {
            parts[step % 2][i] = part_of(t, PHASE_DECODE, i, row, 1, pos + step);
            parts[step % 2][i].carry = step ? i : -1;
        }
        Batch batch = {.n_seqs = m, .seqs = parts[step % 2], .n_rows = m, .ids = t->ids};
        MUST(backend_submit(t->b, &batch, err));
        if (step) {
            MUST(backend_wait(t->b, r, err));
            check(t, r, m);
        }
        if (step == 1)
            start = clock_now_ns(); // one step is under way
    }
    MUST(backend_wait(t->b, r, err));
    check(t, r, m);
    return clock_seconds_since(start) / (double)n;
}

static double prefill_time(const Bench *t, int32_t n) {
    BatchResult r;
    int64_t start = clock_now_ns();
    for (int32_t pos = 0; pos < n; pos += t->chunk) {
        int32_t m = min_i32(t->chunk, n - pos);
        BatchSeq part = part_of(t, PHASE_PREFILL, 0, 0, m, pos);
        part.sampler = pos + m == n ? 0 : -1;
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = m, .ids = t->ids + pos};
        MUST(backend_submit(t->b, &batch, err));
        MUST(backend_wait(t->b, &r, err));
        if (r.bad_layer >= 0)
            check(t, &r, 1);
    }
    return clock_seconds_since(start);
}

static void decode_row(const Bench *t, int32_t m, int32_t context, int32_t steps, int rounds) {
    double v[MAX_ROUNDS];
    char what[48];
    for (int i = 0; i < rounds; i++)
        v[i] = m / decode_time(t, m, context, steps);
    snprintf(what, sizeof what, "decode %d x @%d", m, context);
    print_row(what, v, rounds, "tok/s");
}

static void prefill_row(const Bench *t, int32_t n, int rounds) {
    double v[MAX_ROUNDS];
    char what[48];
    for (int i = 0; i < rounds; i++)
        v[i] = n / prefill_time(t, n);
    snprintf(what, sizeof what, "prefill %d", n);
    print_row(what, v, rounds, "tok/s");
}

/* ---- */

static void bench_open(Bench *t) {
    int32_t ctx = t->is_profile ? 8192 : t->is_long ? 1 << 18 : 1 << 16;
    t->plan = (BackendPlan){.max_rows = t->chunk,
                            .max_seqs = MAX_SEQS,
                            .n_blocks = max_i32(ctx / KV_BLOCK, MAX_SEQS * 72),
                            .n_slots = MAX_SEQS,
                            .n_samplers = MAX_SEQS,
                            .max_ctx = ctx,
                            .max_logits = 1,
                            .mask = t->mask};
    MUST(weights_open(&t->w, t->spec, NULL, err));
    t->c = weights_config(t->w);
    int64_t start = clock_now_ns();
    MUST(backend_open(&t->b, BACKEND_CUDA, t->w, &t->plan, NULL, NULL, err));
    printf("%s, %d layers, chunk %d, opened in %.1f s\n", backend_text(t->b), t->c->n_layers,
           t->chunk, clock_seconds_since(start));
    fflush(stdout);
    t->blocks = mem_alloc((size_t)t->plan.n_blocks * sizeof *t->blocks);
    t->ids = mem_alloc((size_t)ctx * sizeof *t->ids);
    if (!t->blocks || !t->ids)
        exit(1);
    for (int32_t i = 0; i < t->plan.n_blocks; i++)
        t->blocks[i] = i;
    for (int32_t i = 0; i < ctx; i++)
        t->ids[i] = (int32_t)(rng_u64(5, (uint64_t)i) % (uint64_t)t->c->vocab);
}

int main(int argc, char **argv) {
    Bench t = {.spec = "synth:qwen3.6-35b-a3b", .chunk = 4096};
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--profile") == 0)
            t.is_profile = true;
        else if (strcmp(argv[i], "--long") == 0)
            t.is_long = true;
        else if (strcmp(argv[i], "-m") == 0 && has_value)
            t.spec = argv[++i];
        else if (strcmp(argv[i], "--mask") == 0 && has_value)
            t.mask = argv[++i];
        else if (strcmp(argv[i], "--chunk") == 0 && has_value)
            t.chunk = (int32_t)strtol(argv[++i], NULL, 10);
        else
            return 2;
    }
    if (!t.is_profile)
        meter();
    bench_open(&t);
    if (t.is_profile) { // one step of each kind
        prefill_time(&t, 4096);
        decode_time(&t, 1, 4096, 1);
    } else {
        static const int32_t contexts[] = {256, 4096, 32768, 131072};
        for (size_t i = 0; i < COUNT_OF(contexts); i++)
            if (contexts[i] + 512 < t.plan.max_ctx)
                decode_row(&t, 1, contexts[i], 128, 5);
        for (int32_t m = 2; m <= MAX_SEQS; m *= 4)
            decode_row(&t, m, 4096, 32, 3);
        decode_row(&t, MAX_SEQS, 4096, 32, 3);
        prefill_row(&t, 512, 5);
        prefill_row(&t, 4096, 5);
        prefill_row(&t, 32768, 3);
    }
    backend_close(t.b);
    weights_close(t.w);
    mem_free(t.blocks);
    mem_free(t.ids);
    return 0;
}
