// SPDX-License-Identifier: Apache-2.0
/* bench_cuda.c - times the CUDA backend on a random model: what the card can do, decode over
 * contexts and batches, prefill over lengths; or runs one step of each kind for a profiler.
 *
 * Use:      bench_cuda [-m SPEC] [--profile] [--trace] [--mask NAMES] [--long] [--chunk ROWS]
 *           bench_cuda --matmul
 *           bench_cuda --endure [-m SPEC] [--mask NAMES]
 *           bench_cuda --copy [-m SPEC] [--mask NAMES]
 * --matmul times the prefill products alone, in both columns.
 * --endure makes 2,000 greedy tokens and 64 behind 131,072: exit status 1 unless all is finite.
 * --copy times saving and restoring of slots and blocks, alone and beside decodes.
 * --trace (builds with CUDA_TRACE=1) times every kernel of a decode step inside its graph.
 * A decode at context C is measured at position C over blocks of zeros: the same bytes are read as
 * of a real context, and no prompt has to be run. Steps are submitted two ahead, ids stay on the
 * card. Medians over rounds, with the lowest and highest. */
#include "backend/backend.h"
#include "backend/cuda/cuda_kernels.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench_card.h"
#include "bench_products.h"

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

/* A list of copies that is begun again when it is finished; looked at once a step. */
typedef struct Beside {
    const BackendCopy *copies;
    int32_t n;
    uint64_t ticket; // of the list under way; 0: none
    int64_t n_done;  // lists
} Beside;

typedef struct Bench {
    Weights *w;
    Backend *b;
    const ModelConfig *c;
    BackendPlan plan;
    const char *spec, *mask;
    int32_t *blocks; // [n_blocks] 0, 1, ...
    int32_t *ids;    // [max_ctx]
    int32_t chunk;
    bool is_profile, is_trace, is_long, is_endure, is_copy;
    Beside *beside; // what goes on beside decodes; NULL: nothing
} Bench;

static void print_row(const char *what, double *v, int n, const char *unit) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    printf("%-28s %10.1f  (%.1f..%.1f) %s\n", what, v[n / 2], v[0], v[n - 1], unit);
    fflush(stdout);
}

/* ---- the card ---- */

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
    double read[5], matrix[5], wgmma[5];
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    bool has_wgmma = major == 9 && cuda_matmul_has_sm90();
    for (int i = 0; i < 5; i++) {
        cudaEventRecord(a, NULL);
        cuda_meter_read(&l, p, bytes, p);
        cudaEventRecord(b, NULL);
        read[i] = (double)bytes / event_ms(a, b) * 1e-6;
        cudaEventRecord(a, NULL);
        cuda_meter_matrix(&l, 132 * 8, 512, p);
        cudaEventRecord(b, NULL);
        matrix[i] = 132.0 * 8 * 8 * 512 * 64 * 4096 / event_ms(a, b) * 1e-9;
        if (!has_wgmma)
            continue;
        cudaEventRecord(a, NULL);
        cuda_meter_wgmma(&l, 132, 4096, p);
        cudaEventRecord(b, NULL);
        wgmma[i] = 132.0 * 2 * 4096 * 4 * 2 * 64 * 256 * 16 / event_ms(a, b) * 1e-9;
    }
    cudaFree(p);
    print_row("read", read, 5, "GB/s");
    print_row("mma.sync bf16", matrix, 5, "TFLOP/s");
    if (has_wgmma)
        print_row("wgmma bf16", wgmma, 5, "TFLOP/s");
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

static void beside_go_on(const Bench *t) {
    Beside *s = t->beside;
    bool is_finished = false;
    if (s->ticket)
        MUST(backend_copy_poll(t->b, s->ticket, &is_finished, err));
    s->n_done += is_finished;
    if (is_finished || !s->ticket)
        MUST(backend_copy_begin(t->b, s->copies, s->n, &s->ticket, err));
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
        if (t->beside)
            beside_go_on(t);
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

/* Decoding by chance: behind the cuts that the model's makers recommend, and without any. */
static void drawn_rows(const Bench *t) {
    const struct {
        const char *name;
        SampleParams params;
    } kinds[] = {
        {"temperature 0.7, k 20, p 0.95", {.temperature = 0.7f, .top_k = 20, .top_p = 0.95f}},
        {"temperature 1", {.temperature = 1}}};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        printf("%s:\n", kinds[k].name);
        for (int32_t i = 0; i < MAX_SEQS; i++)
            MUST(backend_sampler_set(t->b, i, &kinds[k].params, NULL, 0, 0, err));
        decode_row(t, 1, 4096, 64, 3);
        decode_row(t, MAX_SEQS, 4096, 16, 3);
    }
    for (int32_t i = 0; i < MAX_SEQS; i++)
        MUST(backend_sampler_set(t->b, i, &(SampleParams){0}, NULL, 0, 0, err));
}

static void prefill_row(const Bench *t, int32_t n, int rounds) {
    double v[MAX_ROUNDS];
    char what[48];
    for (int i = 0; i < rounds; i++)
        v[i] = n / prefill_time(t, n);
    snprintf(what, sizeof what, "prefill %d", n);
    print_row(what, v, rounds, "tok/s");
}

/* A prompt of n new tokens behind a prefix of `context` that is on the card: from submit until its
 * first id is on the host. */
static void prefix_row(const Bench *t, int32_t n, int32_t context, int rounds) {
    double v[MAX_ROUNDS];
    char what[48];
    for (int i = -1; i < rounds; i++) { // once to warm up
        BatchSeq part = part_of(t, PHASE_PREFILL, 0, 0, n, context);
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = n, .ids = t->ids};
        BatchResult r;
        int64_t start = clock_now_ns();
        MUST(backend_submit(t->b, &batch, err));
        MUST(backend_wait(t->b, &r, err));
        if (i >= 0)
            v[i] = clock_seconds_since(start) * 1e3;
        check(t, &r, 1);
    }
    snprintf(what, sizeof what, "first id, %d new @%d", n, context);
    print_row(what, v, rounds, "ms");
}

/* ---- long runs ---- */

/* One decode step that waits; its logits where wanted. */
static BatchResult one_step(const Bench *t, int32_t id, int32_t pos, BatchWant want) {
    BatchSeq part = part_of(t, PHASE_DECODE, 0, 0, 1, pos);
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = &id};
    BatchResult r;
    part.want = want;
    MUST(backend_submit(t->b, &batch, err));
    MUST(backend_wait(t->b, &r, err));
    check(t, &r, 1);
    return r;
}

/* The log-probability of an id; NaN or infinite where a logit is. */
static double log_prob(const float *logits, int32_t n, int32_t id) {
    double top = (double)logits[id], sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top); // id was chosen greedily: no term is above 1
    return -log(sum);
}

static void end_finite(double p, int32_t pos) {
    if (isfinite(p))
        return;
    fprintf(stderr, "bench_cuda: the log-probability at position %d is not finite\n", pos);
    exit(1);
}

/* Greedy tokens behind a short prompt, then tokens behind a prompt of 131,072: everything that the
 * model makes must be finite. */
static void endure(const Bench *t) {
    enum { PROMPT = 512, TOKENS = 2000, FAR = 131072, FAR_TOKENS = 64 };
    int64_t start = clock_now_ns();
    int32_t id = 0, n_changes = 0;
    prefill_time(t, PROMPT);
    for (int32_t i = 0; i < TOKENS; i++) {
        BatchResult r = one_step(t, id, PROMPT + i, WANT_NOTHING);
        n_changes += r.sample.id != id;
        id = r.sample.id;
    }
    printf("%d greedy tokens: all finite, %d unlike the one before (%.1f s)\n", TOKENS, n_changes,
           clock_seconds_since(start));
    start = clock_now_ns();
    double least = 0, most = -INFINITY;
    prefill_time(t, FAR);
    for (int32_t i = 0; i < FAR_TOKENS; i++) {
        BatchResult r = one_step(t, id, FAR + i, WANT_LAST);
        double p = log_prob(r.logits, t->c->vocab, r.sample.id);
        end_finite(p, FAR + i);
        least = fmin(least, p);
        most = fmax(most, p);
        id = r.sample.id;
    }
    printf("%d tokens behind %d: log-probabilities finite, %.4f to %.4f (%.1f s)\n", FAR_TOKENS,
           FAR, least, most, clock_seconds_since(start));
}

/* ---- copies to and from host memory ---- */

enum { COPY_SLOTS = 4, COPY_BLOCKS = 64 };

/* Lists of slots and blocks that decodes of a few sequences do not use: saves, then restores. */
static void copy_lists(const Bench *t, char *host, BackendCopy slots[2][COPY_SLOTS],
                       BackendCopy blocks[2][COPY_BLOCKS]) {
    uint64_t slot = backend_slot_host_bytes(t->b), block = backend_block_host_bytes(t->b);
    for (int i = 0; i < COPY_SLOTS; i++) {
        char *p = host + (uint64_t)i * slot;
        int32_t index = MAX_SEQS - 1 - i;
        slots[0][i] = (BackendCopy){.is_slot = true, .index = index, .to = p};
        slots[1][i] = (BackendCopy){.is_slot = true, .index = index, .from = p};
    }
    for (int i = 0; i < COPY_BLOCKS; i++) {
        char *p = host + COPY_SLOTS * slot + (uint64_t)i * block;
        int32_t index = t->plan.n_blocks - 1 - i;
        blocks[0][i] = (BackendCopy){.index = index, .to = p};
        blocks[1][i] = (BackendCopy){.index = index, .from = p};
    }
}

/* GB/s of n copies of so many bytes, with nothing beside them. */
static void copy_row(const Bench *t, const char *what, const BackendCopy *copies, int32_t n,
                     uint64_t bytes) {
    double v[MAX_ROUNDS];
    for (int i = -1; i < MAX_ROUNDS; i++) { // once to warm up
        uint64_t ticket;
        int64_t start = clock_now_ns();
        MUST(backend_copy_begin(t->b, copies, n, &ticket, err));
        MUST(backend_copy_wait(t->b, ticket, err));
        if (i >= 0)
            v[i] = (double)bytes * n / clock_seconds_since(start) * 1e-9;
    }
    print_row(what, v, MAX_ROUNDS, "GB/s");
}

/* Decodes beside copies, with what was copied meanwhile. copies NULL: alone. */
static void beside_row(Bench *t, const char *what, const BackendCopy *copies, int32_t n,
                       uint64_t bytes, int32_t m) {
    enum { ROUNDS = 5, STEPS = 128 };
    double v[ROUNDS], rate[ROUNDS];
    char name[64];
    for (int i = 0; i < ROUNDS; i++) {
        Beside beside = {.copies = copies, .n = n};
        t->beside = copies ? &beside : NULL;
        int64_t start = clock_now_ns();
        v[i] = m / decode_time(t, m, 4096, STEPS);
        rate[i] = (double)bytes * n * (double)beside.n_done / clock_seconds_since(start) * 1e-9;
        t->beside = NULL;
        if (beside.ticket)
            MUST(backend_copy_wait(t->b, beside.ticket, err));
    }
    snprintf(name, sizeof name, "decode %d, %s", m, what);
    print_row(name, v, ROUNDS, "tok/s");
    if (copies)
        print_row("  meanwhile copied", rate, ROUNDS, "GB/s");
}

static void copy_rows(Bench *t) {
    static const char *const ways[] = {"save", "restore"};
    static const int32_t batches[] = {1, 8};
    uint64_t slot = backend_slot_host_bytes(t->b), block = backend_block_host_bytes(t->b);
    size_t bytes = COPY_SLOTS * slot + COPY_BLOCKS * block;
    BackendCopy slots[2][COPY_SLOTS], blocks[2][COPY_BLOCKS];
    char what[64], *pages = mem_alloc(bytes), *host = backend_host_alloc(t->b, bytes);
    if (!pages || !host)
        exit(1);
    memset(pages, 0, bytes);
    printf("a slot of %.1f MB, a block of %.2f MB\n", (double)slot * 1e-6, (double)block * 1e-6);
    copy_lists(t, pages, slots, blocks);
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "%s a slot, plain pages", ways[i]);
        copy_row(t, what, slots[i], 1, slot);
    }
    copy_lists(t, host, slots, blocks);
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "%s a slot", ways[i]);
        copy_row(t, what, slots[i], 1, slot);
        snprintf(what, sizeof what, "%s a block", ways[i]);
        copy_row(t, what, blocks[i], 1, block);
        snprintf(what, sizeof what, "%s %d blocks", ways[i], COPY_BLOCKS);
        copy_row(t, what, blocks[i], COPY_BLOCKS, block);
    }
    for (size_t k = 0; k < COUNT_OF(batches); k++) {
        beside_row(t, "alone", NULL, 0, 0, batches[k]);
        for (int i = 0; i < 2; i++) {
            snprintf(what, sizeof what, "%ss of slots", ways[i]);
            beside_row(t, what, slots[i], COPY_SLOTS, slot, batches[k]);
            snprintf(what, sizeof what, "%ss of blocks", ways[i]);
            beside_row(t, what, blocks[i], COPY_BLOCKS, block, batches[k]);
        }
    }
    backend_host_free(t->b, host);
    mem_free(pages);
}

/* ---- the kernels of a decode step, inside its graph ---- */

#ifdef LILY_CUDA_TRACE
/* Names of the kernels of a step of m rows, in their order; returns how many. */
static int trace_names(const Bench *t, int32_t m, const char **out) {
    int n = 0;
    out[n++] = "embed";
    for (int i = 0; i < t->c->n_layers; i++) {
        if (m > 1)
            out[n++] = "norm";
        if (t->c->is_attn[i]) {
            out[n++] = "attention: in";
            out[n++] = "attention: pieces";
            out[n++] = "attention: merge";
            out[n++] = "attention: out";
        } else {
            out[n++] = "delta net: in";
            out[n++] = "delta net: step";
            out[n++] = "delta net: out";
        }
        if (m > 1)
            out[n++] = "norm";
        if (m > 8) {
            out[n++] = "router";
            out[n++] = "choice of experts";
        } else {
            out[n++] = "router, shared up";
        }
        out[n++] = "experts up";
        out[n++] = "experts down";
        if (m > 1)
            out[n++] = "experts sum";
    }
    if (m > 1)
        out[n++] = "norm";
    out[n++] = "head";
    out[n++] = "argmax";
    return n;
}

typedef struct TraceRow {
    const char *name;
    double us, ahead;
    int n;
} TraceRow;

static void trace_print(const char *const *names, int n, const uint64_t *at, int n_steps) {
    TraceRow rows[32] = {0};
    int n_rows = 0;
    double all = 0;
    for (int i = 2 * n; i + 1 < n * n_steps; i++) {
        int k = 0;
        while (k < n_rows && rows[k].name != names[i % n])
            k++;
        n_rows = k == n_rows ? k + 1 : n_rows;
        rows[k].name = names[i % n];
        rows[k].us += (double)(at[2 * (i + 1) + 1] - at[2 * i + 1]) * 1e-3;
        rows[k].ahead += (double)(at[2 * i + 1] - at[2 * i]) * 1e-3;
        rows[k].n++;
    }
    printf("%-20s %6s %10s %10s %12s\n", "kernel", "a step", "us", "began us", "us a step");
    for (int k = 0; k < n_rows; k++) {
        double a_step = rows[k].us / (n_steps - 2);
        all += a_step;
        printf("%-20s %6d %10.2f %10.2f %12.1f\n", rows[k].name, rows[k].n / (n_steps - 2),
               rows[k].us / rows[k].n, rows[k].ahead / rows[k].n, a_step);
    }
    printf("%-20s %41.1f\n", "all", all);
}

static void trace(const Bench *t, int32_t m, int32_t context) {
    enum { STEPS = 12 };
    const char *names[1024];
    uint64_t *host = mem_zalloc(1 + 2 * CUDA_TRACE_MAX, sizeof *host);
    void *place = NULL;
    size_t size = (1 + 2 * CUDA_TRACE_MAX) * sizeof *host;
    int n = trace_names(t, m, names);
    if (!host || cudaMalloc(&place, size) != cudaSuccess)
        exit(1);
    decode_time(t, m, context, 2);
    cudaMemset(place, 0, size);
    cuda_trace_bind(place);
    decode_time(t, m, context, STEPS - 2);
    cudaMemcpy(host, place, size, cudaMemcpyDeviceToHost);
    cuda_trace_bind(NULL);
    printf("decode %d x @%d: %d kernels a step, %llu noted\n", m, context, n,
           (unsigned long long)host[0]);
    if (host[0] == (uint64_t)n * STEPS)
        trace_print(names, n, host + 1, STEPS);
    cudaFree(place);
    mem_free(host);
}
#endif

/* ---- */

static void bench_open(Bench *t) {
    int32_t ctx = t->is_profile ? 8192 : t->is_long || t->is_endure ? 1 << 18 : 1 << 16;
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
        if (strcmp(argv[i], "--matmul") == 0) {
            bench_products();
            return 0;
        }
        if (strcmp(argv[i], "--profile") == 0)
            t.is_profile = true;
        else if (strcmp(argv[i], "--trace") == 0)
            t.is_trace = true;
        else if (strcmp(argv[i], "--long") == 0)
            t.is_long = true;
        else if (strcmp(argv[i], "--endure") == 0)
            t.is_endure = true;
        else if (strcmp(argv[i], "--copy") == 0)
            t.is_copy = true;
        else if (strcmp(argv[i], "-m") == 0 && has_value)
            t.spec = argv[++i];
        else if (strcmp(argv[i], "--mask") == 0 && has_value)
            t.mask = argv[++i];
        else if (strcmp(argv[i], "--chunk") == 0 && has_value)
            t.chunk = (int32_t)strtol(argv[++i], NULL, 10);
        else
            return 2;
    }
    if (!t.is_profile && !t.is_trace && !t.is_endure && !t.is_copy)
        meter();
    bench_open(&t);
    if (t.is_trace) {
#ifdef LILY_CUDA_TRACE
        trace(&t, 1, 256);
        trace(&t, 1, 4096);
        trace(&t, 1, 32768);
        trace(&t, 32, 4096);
#else
        fprintf(stderr, "bench_cuda: this build has no trace: make CUDA_TRACE=1\n");
        return 2;
#endif
    } else if (t.is_endure) {
        endure(&t);
    } else if (t.is_copy) {
        copy_rows(&t);
    } else if (t.is_profile) { // one step of each kind
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
        drawn_rows(&t);
        prefill_row(&t, 512, 5);
        prefill_row(&t, 4096, 5);
        prefill_row(&t, 32768, 3);
        prefix_row(&t, 32, 32768, 9);
    }
    backend_close(t.b);
    weights_close(t.w);
    mem_free(t.blocks);
    mem_free(t.ids);
    return 0;
}
