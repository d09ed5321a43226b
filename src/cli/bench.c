// SPDX-License-Identifier: Apache-2.0
/* bench.c - the verb `bench`: prefill and decode speed of one sequence over contexts, beside the
 * bound that the machine's memory and arithmetic set, measured just before and after.
 *
 * Path:     one sequence straight on the backend; synthetic ids; greedy decoding.
 * Owns:     nothing past the run.  Thread: main; the meters use a pool of their own.
 * Not here: bytes and operations of a step (work.h), the meters (backend/meter.h). */
#include "backend/meter.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sysmem.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "cli/work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BENCH_MAX_CONTEXTS = 32,
    BENCH_MAX_ROUNDS = 1000,
    BENCH_STEPS = 64,
    BENCH_ROUNDS = 3,
    BENCH_CHUNK = 1024,
    BENCH_METER_BYTES = 1 << 30, // a thread: far beyond any cache
};

/* Figures of one context, an entry a round. */
typedef struct BenchRow {
    int32_t context;
    double prefill_tok_s[BENCH_MAX_ROUNDS], decode_tok_s[BENCH_MAX_ROUNDS];
    double prefill_share[BENCH_MAX_ROUNDS], decode_share[BENCH_MAX_ROUNDS];
    double expert_reads; // of the last round's decode: distinct experts a layer and step
    uint64_t digest;     // of the ids that the last round made
    uint64_t peak_bytes; // of the process in the rounds, the meters' own memory left out
} BenchRow;

typedef struct Bench {
    const CliArgs *args;
    Weights *weights;
    Single single;
    Pool *pool;
    Work work;
    int32_t chunk, n_steps, n_rounds;
    BenchRow *rows;
    int n_rows;
    int32_t *ids;
    int32_t *made;                   // [n_steps] ids of the decode at work
    double read_gb_s, matrix_tflops; // best of the run
    const char *unit;
    FileWriter *out; // --json FILE: opened before the hours that a run may take
    Err *err;
} Bench;

static Status bench_parse_contexts(Bench *b) {
    const char *text = b->args->contexts ? b->args->contexts : "256";
    int32_t longest = weights_config(b->weights)->max_positions - b->n_steps - 1;
    if (longest < 1)
        return err_set(b->err, STATUS_INVALID,
                       "--steps: expected at most %d for this model, found %d",
                       weights_config(b->weights)->max_positions - 2, b->n_steps);
    for (const char *p = text; *p || b->n_rows == 0;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 1 || v > longest || (*end && *end != ','))
            return err_set(
                b->err, STATUS_INVALID,
                "--contexts: expected numbers from 1 to %d separated by commas, found %s", longest,
                text);
        if (b->n_rows == BENCH_MAX_CONTEXTS)
            return err_set(b->err, STATUS_INVALID, "--contexts: at most %d", BENCH_MAX_CONTEXTS);
        b->rows[b->n_rows++].context = (int32_t)v;
        p = *end ? end + 1 : end;
    }
    return STATUS_OK;
}

static uint64_t bench_expert_reads(const Bench *b) {
    BackendCounters counters;
    backend_counters(b->single.backend, &counters);
    return counters.n_expert_reads;
}

/* The share of the bound that `seconds` for this work means. */
static double bench_share(const Bench *b, WorkDone done, double seconds, double read_gb_s,
                          double tflops) {
    UNUSED(b);
    double bytes_s = done.bytes / (read_gb_s * 1e9), flop_s = done.flop / (tflops * 1e12);
    return (bytes_s > flop_s ? bytes_s : flop_s) / seconds;
}

/* Both meters; the better of this and the last measurement counts for what ran in between. */
static Status bench_meter(Bench *b, double *read_gb_s, double *tflops) {
    double read;
    TRY(meter_read_gb_s(&read, b->pool, BENCH_METER_BYTES, b->err));
    double matrix = meter_matrix_tflops(b->pool, 0.2, &b->unit);
    *read_gb_s = read > *read_gb_s ? read : *read_gb_s;
    *tflops = matrix > *tflops ? matrix : *tflops;
    return STATUS_OK;
}

static Status bench_round(Bench *b, BenchRow *row, int round) {
    SampleParams greedy = {0};
    double read = 0, tflops = 0;
    BatchResult result;
    int32_t n = row->context;
    TRY(backend_sampler_set(b->single.backend, 0, &greedy, NULL, 0, 0, b->err));
    TRY(bench_meter(b, &read, &tflops));
    sysmem_reset_peak();
    uint64_t reads = bench_expert_reads(b);
    int64_t start = clock_now_ns();
    TRY(single_prefill(&b->single, b->ids, n, WANT_NOTHING, true, &result, b->err));
    double prefill_s = clock_seconds_since(start);
    WorkDone prefill =
        work_prefill(&b->work, n, div_up_i32(n, b->chunk), bench_expert_reads(b) - reads);
    reads = bench_expert_reads(b);
    start = clock_now_ns();
    for (int32_t i = 0; i < b->n_steps; i++) {
        b->made[i] = result.sample.id;
        TRY(single_step(&b->single, PHASE_DECODE, &b->made[i], 1, WANT_NOTHING, true, NULL, &result,
                        b->err));
    }
    double decode_s = clock_seconds_since(start);
    uint64_t peak = sysmem_peak();
    row->peak_bytes = peak > row->peak_bytes ? peak : row->peak_bytes;
    reads = bench_expert_reads(b) - reads;
    TRY(bench_meter(b, &read, &tflops));
    row->prefill_tok_s[round] = n / prefill_s;
    row->decode_tok_s[round] = b->n_steps / decode_s;
    row->prefill_share[round] = bench_share(b, prefill, prefill_s, read, tflops);
    WorkDone decode = work_decode(&b->work, n, b->n_steps, reads);
    row->decode_share[round] = bench_share(b, decode, decode_s, read, tflops);
    row->expert_reads = (double)reads / b->n_steps / weights_config(b->weights)->n_layers;
    row->digest = XXH64(b->made, (size_t)b->n_steps * sizeof *b->made, 0);
    b->read_gb_s = read > b->read_gb_s ? read : b->read_gb_s;
    b->matrix_tflops = tflops > b->matrix_tflops ? tflops : b->matrix_tflops;
    return STATUS_OK;
}

static int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the rounds and returns the median. */
static double bench_median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, bench_compare);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static json_t *bench_row_json(Bench *b, BenchRow *row) {
    int n = b->n_rounds;
    double prefill = bench_median(row->prefill_tok_s, n),
           decode = bench_median(row->decode_tok_s, n);
    char digest[20];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)row->digest);
    return json_pack(
        "{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:s}", "context", row->context,
        "prefill_tok_s", prefill, "prefill_tok_s_min", row->prefill_tok_s[0], "prefill_tok_s_max",
        row->prefill_tok_s[n - 1], "decode_tok_s", decode, "decode_tok_s_min", row->decode_tok_s[0],
        "decode_tok_s_max", row->decode_tok_s[n - 1], "prefill_bound_share",
        bench_median(row->prefill_share, n), "decode_bound_share",
        bench_median(row->decode_share, n), "experts_per_layer_step", row->expert_reads,
        "peak_bytes", (json_int_t)row->peak_bytes, "ids_digest", digest);
}

static json_t *bench_json(Bench *b) {
    const ModelConfig *c = weights_config(b->weights);
    json_t *results = json_array();
    for (int i = 0; i < b->n_rows; i++)
        json_array_append_new(results, bench_row_json(b, &b->rows[i]));
    return json_pack(
        "{s:{s:s, s:i, s:I}, s:{s:s, s:s}, s:{s:o, s:i, s:i, s:I}, s:s, s:f, s:f, s:s, "
        "s:i, s:i, s:I, s:o}",
        "machine", "device", backend_text(b->single.backend), "threads", pool_n_members(b->pool),
        "memory_bytes", (json_int_t)sysmem_total(), "versions", "lily", LILY_VERSION, "commit",
        LILY_COMMIT, "model", "spec", json_clean_string(model_spec(b->args)), "layers", c->n_layers,
        "hidden", c->hidden, "weight_bytes", (json_int_t)weights_total_bytes(b->weights), "backend",
        backend_kind_name(backend_kind(b->single.backend)), "read_gb_s", b->read_gb_s,
        "matrix_tflops", b->matrix_tflops, "matrix_unit", b->unit, "steps", b->n_steps, "rounds",
        b->n_rounds, "plan_bytes", (json_int_t)b->single.needs.total_bytes, "results", results);
}

static void bench_print(const json_t *all) {
    printf("%s, %s backend: reads %.1f GB/s, %s %.3f TFLOP/s\n",
           json_string_value(json_object_get(json_object_get(all, "model"), "spec")),
           json_string_value(json_object_get(all, "backend")),
           json_real_value(json_object_get(all, "read_gb_s")),
           json_string_value(json_object_get(all, "matrix_unit")),
           json_real_value(json_object_get(all, "matrix_tflops")));
    printf("%8s  %31s  %8s  %31s  %8s  %16s\n", "context", "prefill tok/s (min .. max)", "of bound",
           "decode tok/s (min .. max)", "of bound", "ids");
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(all, "results"), i, row) {
#define REAL(key) json_real_value(json_object_get(row, key))
        printf("%8lld  %9.2f (%8.2f .. %8.2f)  %7.1f%%  %9.2f (%8.2f .. %8.2f)  %7.1f%%  %s\n",
               (long long)json_integer_value(json_object_get(row, "context")),
               REAL("prefill_tok_s"), REAL("prefill_tok_s_min"), REAL("prefill_tok_s_max"),
               100 * REAL("prefill_bound_share"), REAL("decode_tok_s"), REAL("decode_tok_s_min"),
               REAL("decode_tok_s_max"), 100 * REAL("decode_bound_share"),
               json_string_value(json_object_get(row, "ids_digest")));
#undef REAL
    }
}

/* Ids, block table and the opened backend for the longest context. */
static Status bench_open(Bench *b) {
    const ModelConfig *c = weights_config(b->weights);
    int32_t longest = 0;
    for (int i = 0; i < b->n_rows; i++)
        longest = max_i32(longest, b->rows[i].context);
    b->ids = mem_zalloc((size_t)longest, sizeof *b->ids);
    b->made = mem_zalloc((size_t)b->n_steps, sizeof *b->made);
    if (!b->ids || !b->made)
        return err_memory(b->err, "ids", (size_t)longest * sizeof *b->ids);
    for (int32_t i = 0; i < longest; i++)
        b->ids[i] = (int32_t)(rng_u64(1, (uint64_t)i) % (uint64_t)c->vocab);
    int64_t start = clock_now_ns();
    TRY(single_open(&b->single, b->args, b->weights, longest + b->n_steps, b->chunk, 1, b->err));
    double seconds = clock_seconds_since(start);
    fprintf(stderr, "loaded %.2f GB in %.1f s (%.2f GB/s); plan %.2f GB\n",
            (double)weights_total_bytes(b->weights) * 1e-9, seconds,
            (double)weights_total_bytes(b->weights) * 1e-9 / seconds,
            (double)b->single.needs.total_bytes * 1e-9);
    return STATUS_OK;
}

static Status bench_run(Bench *b) {
    b->n_steps = b->args->steps ? (int32_t)b->args->steps : BENCH_STEPS;
    b->n_rounds = b->args->rounds ? (int32_t)b->args->rounds : BENCH_ROUNDS;
    int64_t chunk = b->args->chunk ? b->args->chunk : BENCH_CHUNK;
    b->chunk = (int32_t)round_up_size((size_t)chunk, RECUR_CHUNK);
    b->rows = mem_zalloc(BENCH_MAX_CONTEXTS, sizeof *b->rows);
    if (!b->rows)
        return err_memory(b->err, "results", BENCH_MAX_CONTEXTS * sizeof *b->rows);
    TRY(weights_open(&b->weights, model_spec(b->args), &UI_LOG, b->err));
    TRY(bench_parse_contexts(b));
    work_init(&b->work, b->weights);
    TRY(bench_open(b));
    TRY(pool_open(&b->pool, (int)b->args->threads, b->err));
    // Warm up with the shapes that are measured: pages are touched, threads are awake.
    BatchResult result;
    TRY(single_prefill(&b->single, b->ids, min_i32(b->rows[0].context, b->chunk), WANT_NOTHING,
                       true, &result, b->err));
    for (int i = 0; i < 2 && i < b->n_steps; i++)
        TRY(single_step(&b->single, PHASE_DECODE, b->ids, 1, WANT_NOTHING, true, NULL, &result,
                        b->err));
    for (int round = 0; round < b->n_rounds; round++)
        for (int i = 0; i < b->n_rows; i++)
            TRY(bench_round(b, &b->rows[i], round));
    return STATUS_OK;
}

static Status bench_report(Bench *b) {
    json_t *all = bench_json(b);
    if (!all)
        return err_memory(b->err, "results", 0);
    if (b->args->json_out && !b->out)
        return ui_print_json(all, JSON_INDENT(2), b->err);
    bench_print(all);
    StrBuf text = {0};
    Status status = b->out ? json_print(&text, all, JSON_INDENT(2), b->err) : STATUS_OK;
    strbuf_append_char(&text, '\n');
    if (status == STATUS_OK && b->out)
        status = file_writer_append(b->out, text.ptr, text.len, b->err);
    if (status == STATUS_OK && b->out)
        status = file_writer_commit(b->out, b->err);
    strbuf_fini(&text);
    json_decref(all);
    return status;
}

int verb_bench(const CliArgs *args) {
    Err err = {0};
    Bench b = {.args = args, .err = &err, .unit = ""};
    Status status = STATUS_OK;
    if (args->json_out && strcmp(args->json_out, "-") != 0)
        status = file_writer_open(&b.out, args->json_out, &err);
    if (status == STATUS_OK)
        status = bench_run(&b);
    if (status == STATUS_OK)
        status = bench_report(&b);
    file_writer_close(b.out);
    single_close(&b.single);
    pool_close(b.pool);
    weights_close(b.weights);
    mem_free(b.rows);
    mem_free(b.ids);
    mem_free(b.made);
    return status == STATUS_OK ? ui_finish("bench") : ui_fail("bench", &err);
}
