// SPDX-License-Identifier: Apache-2.0
/* bench.c - the verb `bench`: prefill and decode speed over contexts, beside the bound that the
 * machine's memory and arithmetic set, measured just before and after.
 *
 * Path:     sequences straight on the backend (bench_run.c); synthetic ids; greedy decoding; rounds
 *           over the contexts in turn; the result as one JSON object (bench_json.c), of which
 *           table, CSV and picture are made (bench_report.c, bench_svg.c).
 * Owns:     nothing past the run.  Thread: main.
 * Not here: bytes and operations of a step (work.c), the meters (backend_meter), a running server
 *           (bench_serve.c). */
#include "cli/bench.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/sysmem.h"
#include "cli/bench_report.h"
#include "cli/bench_serve.h"
#include "cli/model.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BENCH_STEPS = 64,
    BENCH_PIECE_STEPS = 16, // decode steps between two measurements of the memory
    BENCH_ROUNDS = 3,
    BENCH_FILL_ABOVE = 8192,
    BENCH_METER_BYTES = 1 << 30,      // a thread: far beyond any cache
    BENCH_METER_BYTES_MIN = 64 << 20, // where memory is short
    BENCH_METER_MB_QUICK = 64,        // --meter-mb below it: not for figures to keep
    BENCH_MAX_EARLIER = 16 << 20,     // bytes of a result to compare with
};

#define METER_SECONDS 0.2 // of each unit: long enough that the start does not count
#define METER_SECONDS_QUICK 0.01

/* ---- which contexts ---- */

static void bench_skip(Bench *b, int32_t context, const char *reason) {
    BenchSkip *s = &b->skipped[b->n_skipped++];
    s->context = context;
    snprintf(s->reason, sizeof s->reason, "%s", reason);
    fprintf(stderr, "context %d is left out: %s\n", context, reason);
}

/* "all": 256 to 131,072 as far as the model goes. */
static Status bench_all_contexts(Bench *b, int32_t longest) {
    static const int32_t all[] = {256, 1024, 4096, 8192, 16384, 32768, 65536, 131072};
    char reason[80];
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (all[i] <= longest) {
            b->contexts[b->n_contexts++] = all[i];
            continue;
        }
        snprintf(reason, sizeof reason, "with these steps the longest is %d", longest);
        bench_skip(b, all[i], reason);
    }
    if (b->n_contexts == 0)
        return err_set(b->err, STATUS_CONTEXT, "--contexts all: with these steps the longest is %d",
                       longest);
    return STATUS_OK;
}

/* What the command line says, before anything is opened; STATUS_INVALID is wrong usage. */
static Status bench_parse_contexts(Bench *b) {
    const char *text = b->args->contexts ? b->args->contexts : "256";
    if (strcmp(text, "all") == 0)
        return STATUS_OK; // bench_settle_contexts knows which
    return cli_parse_list(b->contexts, &b->n_contexts, BENCH_MAX_CONTEXTS, "--contexts (or all)",
                          text, LIMIT_CONTEXT, b->err);
}

/* Contexts and steps against what the model has room for. */
static Status bench_settle_contexts(Bench *b) {
    int32_t positions = b->config->max_positions;
    if (b->args->ctx && b->args->ctx < positions)
        positions = (int32_t)b->args->ctx;
    int32_t longest = positions - b->n_steps - 1;
    if (longest < 1 && positions < 3)
        return err_set(b->err, STATUS_CONTEXT,
                       "--ctx: expected room for a token and two steps, found %d", positions);
    if (longest < 1)
        return err_set(b->err, STATUS_CONTEXT,
                       "--steps: expected at most %d for this context, found %d", positions - 2,
                       b->n_steps);
    if (b->n_contexts == 0)
        return bench_all_contexts(b, longest);
    for (int i = 0; i < b->n_contexts; i++)
        if (b->contexts[i] > longest)
            return err_set(b->err, STATUS_CONTEXT,
                           "--contexts: with these steps the longest is %d, found %d", longest,
                           b->contexts[i]);
    return STATUS_OK;
}

static int32_t bench_longest(const Bench *b) {
    int32_t longest = 0;
    for (int i = 0; i < b->n_contexts; i++)
        longest = max_i32(longest, b->contexts[i]);
    return longest;
}

/* Leaves the longest context out; STATUS_MEMORY when none is left. */
static Status bench_drop_longest(Bench *b, const char *reason) {
    int32_t longest = bench_longest(b);
    int n = 0;
    for (int i = 0; i < b->n_contexts; i++) {
        if (b->contexts[i] == longest)
            bench_skip(b, longest, reason);
        else
            b->contexts[n++] = b->contexts[i];
    }
    b->n_contexts = n;
    return n ? STATUS_OK : err_set(b->err, STATUS_MEMORY, "no context fits: %s", reason);
}

/* Plans for the longest context that fits into memory with the meters. */
static Status bench_fit(Bench *b, BenchRunPlan *plan) {
    uint64_t available = backend_memory_free(plan->kind, (int32_t)b->args->device);
    bool is_card = plan->kind == BACKEND_CUDA || plan->kind == BACKEND_METAL;
    uint64_t n_threads = (uint64_t)b->n_threads;
    b->meter_bytes =
        b->args->meter_mb ? (size_t)b->args->meter_mb << 20 : (size_t)BENCH_METER_BYTES;
    if (is_card)
        b->meter_bytes = 0; // its own meter knows what suits it
    size_t meter_least = min_size(b->meter_bytes, BENCH_METER_BYTES_MIN);
    for (;;) {
        BackendNeeds needs;
        plan->n_positions = bench_longest(b) + b->n_steps;
        TRY(bench_run_needs(&needs, plan, b->args, b->weights, b->err));
        uint64_t least = needs.total_bytes + n_threads * meter_least;
        if (available == 0)
            return STATUS_OK;
        if (least <= available) {
            while (b->meter_bytes > meter_least &&
                   needs.total_bytes + n_threads * b->meter_bytes > available)
                b->meter_bytes /= 2;
            return STATUS_OK;
        }
        char reason[120];
        snprintf(reason, sizeof reason, "needs %.2f GB with the meters, %.2f GB are available",
                 (double)least * 1e-9, (double)available * 1e-9);
        TRY(bench_drop_longest(b, reason));
    }
}

/* ---- rounds ---- */

/* The better of two measurements, meter by meter. */
static BackendMeter meter_better(BackendMeter a, const BackendMeter *b) {
    a.read_gb_s = b->read_gb_s > a.read_gb_s ? b->read_gb_s : a.read_gb_s;
    if (b->matrix_tflops > a.matrix_tflops) {
        a.matrix_tflops = b->matrix_tflops;
        a.unit = b->unit;
    }
    return a;
}

/* Both meters; the better of this and the one before counts for what ran in between. The first
 * takes less memory where what was planned is not to be had. */
static Status bench_meter(Bench *b, BackendMeter *better) {
    BackendMeter now;
    Status status;
    double seconds = b->args->meter_mb && b->args->meter_mb < BENCH_METER_MB_QUICK
                         ? METER_SECONDS_QUICK
                         : METER_SECONDS;
    while ((status = backend_meter(b->run.backend, &now, b->meter_bytes, seconds, b->err)) ==
               STATUS_MEMORY &&
           b->meter_bytes > BENCH_METER_BYTES_MIN)
        b->meter_bytes /= 2;
    TRY(status);
    *better = meter_better(now, &b->before);
    b->best = meter_better(b->best, &now);
    b->before = now;
    return STATUS_OK;
}

/* The process's largest size since the last reset, the meters' memory not in it. */
static void bench_note_peak(const Bench *b, BenchRow *row) {
    uint64_t peak = sysmem_peak();
    uint64_t meters = (uint64_t)b->n_threads * round_up_size(b->meter_bytes, 1 << 21);
    peak -= peak > meters ? meters : peak;
    row->peak_bytes = peak > row->peak_bytes ? peak : row->peak_bytes;
}

/* Decodes all steps in pieces with the meters behind each, since what a shared memory gives changes
 * by the second. m: the rates at which all pieces together would take as long as each at its own.
 */
static Status bench_decode(Bench *b, BenchRow *row, double *seconds, BackendMeter *m) {
    int32_t piece = b->meter_bytes ? BENCH_PIECE_STEPS : b->n_steps; // a card's does not change
    double per_read = 0, per_flop = 0;
    *seconds = 0;
    for (int32_t done = 0; done < b->n_steps; done += piece) {
        int32_t n = min_i32(piece, b->n_steps - done);
        int32_t pos = row->context + done;
        sysmem_reset_peak();
        int64_t start = clock_now_ns();
        TRY(bench_run_decode(&b->run, pos, n, b->made + done, b->n_steps, b->err));
        *seconds += clock_seconds_since(start);
        bench_note_peak(b, row);
        TRY(bench_meter(b, m));
        per_read += n / m->read_gb_s;
        per_flop += n / m->matrix_tflops;
    }
    m->read_gb_s = b->n_steps / per_read;
    m->matrix_tflops = b->n_steps / per_flop;
    return STATUS_OK;
}

static uint64_t bench_expert_reads(const Bench *b) {
    BackendCounters counters;
    backend_counters(b->run.backend, &counters);
    return counters.n_expert_reads;
}

/* The load of what a phase has just run. Where the device does not count experts, even routing is
 * assumed, which is exact for one row. */
static WorkLoad bench_load(const Bench *b, BenchRow *row, BatchPhase phase, uint64_t reads) {
    const BenchRunPlan *p = &b->run.plan;
    WorkLoad load = phase == PHASE_DECODE
                        ? work_load_decode(row->context, b->n_steps, p->n_seqs, (double)reads)
                        : work_load_prefill(row->context, p->chunk, p->n_seqs, (double)reads);
    row->are_experts_counted = reads > 0 || b->config->n_experts == 0;
    if (!row->are_experts_counted)
        load.n_expert_reads =
            work_expected_experts(&b->work, load.n_steps, load.n_rows / load.n_steps);
    return load;
}

/* Adds a round's figures to a phase. */
static void bench_add(const Bench *b, BenchPhase *p, const WorkLoad *load, double seconds,
                      const BackendMeter *m) {
    p->load = *load;
    p->seconds += seconds;
    bench_series_add(&p->tok_s, load->n_rows / seconds);
    double bound =
        work_bound_seconds(work_total(&b->work, load), m->read_gb_s, m->matrix_tflops, &p->is_flop);
    bench_series_add(&p->share, bound / seconds);
    bench_series_add(&p->read_gb_s, m->read_gb_s);
    bench_series_add(&p->matrix_tflops, m->matrix_tflops);
    for (int s = 0; s < STAGE_N; s++)
        p->stage_bound_seconds[s] += work_bound_seconds(
            work_stage(&b->work, load, (BackendStageId)s), m->read_gb_s, m->matrix_tflops, NULL);
}

static void bench_add_profile(const Bench *b, BenchRow *row) {
    BackendStage stages[2 * STAGE_N];
    int n = backend_profile(b->run.backend, stages, (int)COUNT_OF(stages));
    for (int i = 0; i < n; i++)
        row->phase[stages[i].phase].stage_seconds[stages[i].id] += stages[i].seconds;
    backend_profile_set(b->run.backend, false);
}

static void bench_digest(const Bench *b, BenchRow *row) {
    size_t n = (size_t)b->n_steps, seqs = (size_t)b->run.plan.n_seqs;
    for (size_t i = 0; i < seqs; i++)
        row->seq_digest[i] = XXH64(b->made + i * n, n * sizeof *b->made, 0);
    row->digest = XXH64(b->made, seqs * n * sizeof *b->made, 0);
}

static void bench_tell(const BenchRow *row) {
    const BenchPhase *d = &row->phase[PHASE_DECODE];
    fprintf(stderr, "round %d at %d: median so far: decode %.2f tok/s, %.1f%% of the bound\n",
            row->n_rounds, row->context, bench_series_median(&d->tok_s),
            100 * bench_series_median(&d->share));
}

static Status bench_round(Bench *b, BenchRow *row) {
    BackendMeter m;
    double prefill_s = 0;
    sysmem_reset_peak();
    uint64_t before = bench_expert_reads(b);
    if (b->args->is_profile && !row->is_filled)
        backend_profile_set(b->run.backend, true);
    if (row->is_filled) {
        TRY(bench_run_fill(&b->run, row->context, b->err));
        bench_note_peak(b, row);
    } else {
        int64_t start = clock_now_ns();
        TRY(bench_run_prefill(&b->run, row->context, b->err));
        prefill_s = clock_seconds_since(start);
        bench_note_peak(b, row);
        TRY(bench_meter(b, &m));
        WorkLoad load = bench_load(b, row, PHASE_PREFILL, bench_expert_reads(b) - before);
        bench_add(b, &row->phase[PHASE_PREFILL], &load, prefill_s, &m);
    }
    uint64_t between = bench_expert_reads(b);
    if (b->args->is_profile && row->is_filled) // the filling is nobody's time
        backend_profile_set(b->run.backend, true);
    double decode_s;
    TRY(bench_decode(b, row, &decode_s, &m));
    if (b->args->is_profile)
        bench_add_profile(b, row);
    uint64_t after = bench_expert_reads(b);
    WorkLoad load = bench_load(b, row, PHASE_DECODE, after - between);
    bench_add(b, &row->phase[PHASE_DECODE], &load, decode_s, &m);
    bench_digest(b, row);
    row->n_rounds++;
    bench_tell(row);
    return STATUS_OK;
}

/* Whether the shares of most of a row's rounds agree, in both phases. */
static bool bench_is_stable(const Bench *b, const BenchRow *row) {
    return bench_series_is_stable(&row->phase[PHASE_PREFILL].share, b->n_rounds) &&
           bench_series_is_stable(&row->phase[PHASE_DECODE].share, b->n_rounds);
}

/* All rounds, contexts in turn; then more for rows whose rounds disagree. */
static Status bench_measure(Bench *b) {
    BackendMeter m;
    TRY(bench_meter(b, &m)); // its pages are fetched before anything counts
    for (int i = 0; i < b->n_contexts; i++)
        TRY(bench_run_warm(&b->run, b->rows[i].context, b->rows[i].is_filled, b->err));
    TRY(bench_meter(b, &m));
    for (int round = 0; round < b->n_rounds + BENCH_MORE_ROUNDS; round++) {
        for (int i = 0; i < b->n_contexts; i++) {
            BenchRow *row = &b->rows[i];
            if (round < b->n_rounds || row->is_unstable)
                TRY(bench_round(b, row));
            row->is_unstable = !bench_is_stable(b, row);
        }
    }
    return STATUS_OK;
}

/* ---- the verb ---- */

bool bench_is_filled(const Bench *b, int32_t n) {
    return n > b->fill_above && bench_run_can_fill(n);
}

/* Whether the earlier result can be compared with what is asked for: said before the minutes that
 * loading and measuring take. */
static Status bench_check_earlier(const Bench *b, const BenchRunPlan *plan) {
    if (!b->earlier)
        return STATUS_OK;
    json_t *asked = bench_json_asked(b, plan);
    if (!asked)
        return err_memory(b->err, "what is asked for", 0);
    Status status = bench_compare_check(asked, b->earlier, b->err);
    json_decref(asked);
    return status;
}

/* Opens the longest plan that the device takes. */
static Status bench_open(Bench *b) {
    BenchRunPlan plan = {.n_seqs = b->args->batch ? (int32_t)b->args->batch : 1,
                         .seed = b->args->seed >= 0 ? (uint64_t)b->args->seed : 0};
    TRY(model_backend_for(&plan.kind, b->args, b->weights, b->err));
    int32_t chunk = b->args->chunk ? (int32_t)b->args->chunk : backend_chunk_rows(plan.kind);
    chunk = min_i32(chunk, bench_longest(b));
    plan.chunk = (int32_t)round_up_size((size_t)chunk, RECUR_CHUNK);
    TRY(bench_fit(b, &plan));
    TRY(bench_check_earlier(b, &plan));
    int64_t start = clock_now_ns();
    for (;;) {
        Err reason = {0};
        Status status = bench_run_open(&b->run, &plan, b->args, b->weights, &reason);
        if (status == STATUS_OK)
            break;
        if (status != STATUS_MEMORY)
            return err_set(b->err, status, "%s", reason.text);
        TRY(bench_drop_longest(b, reason.text));
        plan.n_positions = bench_longest(b) + b->n_steps;
    }
    double seconds = clock_seconds_since(start);
    fprintf(stderr, "loaded %.2f GB in %.2f s (%.2f GB/s); plan %.2f GB\n",
            (double)weights_total_bytes(b->weights) * 1e-9, seconds,
            (double)weights_total_bytes(b->weights) * 1e-9 / seconds,
            (double)b->run.needs.total_bytes * 1e-9);
    return STATUS_OK;
}

static Status bench_run(Bench *b) {
    const CliArgs *args = b->args;
    b->n_steps = args->steps ? (int32_t)args->steps : BENCH_STEPS;
    b->n_rounds = args->rounds ? (int32_t)args->rounds : BENCH_ROUNDS;
    b->fill_above = args->fill_above >= 0 ? (int32_t)args->fill_above : BENCH_FILL_ABOVE;
    b->n_threads = args->threads ? (int)args->threads : pool_n_cpus();
    TRY(model_weights(&b->weights, args, &UI_LOG, b->err));
    b->config = weights_config(b->weights);
    work_init(&b->work, b->weights);
    TRY(bench_settle_contexts(b));
    TRY(bench_open(b));
    size_t n_made = (size_t)b->run.plan.n_seqs * (size_t)b->n_steps;
    b->rows = mem_zalloc((size_t)b->n_contexts, sizeof *b->rows);
    b->made = mem_zalloc(n_made, sizeof *b->made);
    if (!b->rows || !b->made)
        return err_memory(b->err, "results", (size_t)b->n_contexts * sizeof *b->rows);
    for (int i = 0; i < b->n_contexts; i++) {
        b->rows[i].context = b->contexts[i];
        b->rows[i].is_filled = bench_is_filled(b, b->contexts[i]);
    }
    return bench_measure(b);
}

/* Where a result goes, opened before the hours that a run may take. */
typedef struct BenchFiles {
    FileWriter *json, *csv, *svg; // NULL: not asked for
} BenchFiles;

static Status bench_files_open(BenchFiles *f, const CliArgs *args, Err *err) {
    const char *const paths[] = {args->json_out, args->csv_out, args->svg_out};
    for (size_t i = 1; i < COUNT_OF(paths); i++)
        if (paths[i] && strcmp(paths[i], "-") == 0)
            return err_set(err, STATUS_INVALID, "%s: expected a file, found -: only --json may be",
                           i == 1 ? "--csv" : "--svg");
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        for (size_t j = 0; j < i; j++)
            if (paths[i] && paths[j] && strcmp(paths[i], paths[j]) == 0)
                return err_set(err, STATUS_INVALID, "two results would go to %s", paths[i]);
    if (args->json_out && strcmp(args->json_out, "-") != 0)
        TRY(file_writer_open(&f->json, args->json_out, err));
    if (args->csv_out)
        TRY(file_writer_open(&f->csv, args->csv_out, err));
    if (args->svg_out)
        TRY(file_writer_open(&f->svg, args->svg_out, err));
    return STATUS_OK;
}

static void bench_files_close(BenchFiles *f) {
    file_writer_close(f->json);
    file_writer_close(f->csv);
    file_writer_close(f->svg);
}

/* Writes what `make` makes of the result; w NULL: nobody wants it. */
static Status bench_write(FileWriter *w, Status (*make)(StrBuf *, const json_t *, Err *),
                          const json_t *all, Err *err) {
    StrBuf text = {0};
    if (!w)
        return STATUS_OK;
    Status status = make(&text, all, err);
    if (status == STATUS_OK)
        status = file_writer_append(w, text.ptr, text.len, err);
    if (status == STATUS_OK)
        status = file_writer_commit(w, err);
    strbuf_fini(&text);
    return status;
}

static Status bench_print_json(StrBuf *out, const json_t *all, Err *err) {
    TRY(json_print(out, all, JSON_INDENT(2), err));
    strbuf_append_char(out, '\n');
    return strbuf_check(out, err);
}

/* Holds the result against the earlier one. */
static Status bench_judge(Bench *b, const json_t *all, FILE *to) {
    StrBuf text = {0};
    if (!b->earlier)
        return STATUS_OK;
    Status status = bench_compare(&text, &b->n_slower, all, b->earlier, b->err);
    if (status == STATUS_OK)
        fprintf(to, "\n%s", text.ptr);
    strbuf_fini(&text);
    return status;
}

static Status bench_report(Bench *b, const BenchFiles *files) {
    json_t *all = bench_json(b);
    if (!all)
        return err_memory(b->err, "results", 0);
    bool is_json = b->args->json_out && !files->json;
    StrBuf text = {0};
    Status status;
    TRY_GOTO(status, bench_write(files->json, bench_print_json, all, b->err));
    TRY_GOTO(status, bench_write(files->csv, bench_report_csv, all, b->err));
    TRY_GOTO(status, bench_write(files->svg, bench_svg, all, b->err));
    status =
        is_json ? bench_print_json(&text, all, b->err) : bench_report_table(&text, all, b->err);
    if (status == STATUS_OK)
        fwrite(text.ptr, 1, text.len, stdout);
    if (status == STATUS_OK)
        status = bench_judge(b, all, is_json ? stderr : stdout);
fail:
    strbuf_fini(&text);
    json_decref(all);
    return status;
}

int verb_bench(const CliArgs *args) {
    if (bench_serve_is_asked(args))
        return bench_serve(args);
    Err err = {0};
    Bench b = {.args = args, .err = &err, .best.unit = ""};
    BenchFiles files = {0};
    if (bench_parse_contexts(&b) != STATUS_OK)
        return ui_usage("bench", "%s", err.text);
    Status status = bench_files_open(&files, args, &err);
    if (status == STATUS_OK && args->compare)
        status = json_read_file(&b.earlier, args->compare, BENCH_MAX_EARLIER, &err);
    if (status == STATUS_OK)
        status = bench_run(&b);
    if (status == STATUS_OK)
        status = bench_report(&b, &files);
    bench_files_close(&files);
    json_decref(b.earlier);
    bench_run_close(&b.run);
    weights_close(b.weights);
    mem_free(b.rows);
    mem_free(b.made);
    if (status != STATUS_OK)
        return ui_fail("bench", &err);
    if (b.n_slower)
        fprintf(stderr, "lily bench: %d figures are slower than in %s\n", b.n_slower,
                args->compare);
    return ui_finish("bench") || b.n_slower != 0;
}
