// SPDX-License-Identifier: Apache-2.0
/* bench_json.c - a bench's rows as one JSON object.
 *
 * Owns:     nothing.  Thread: main. */
#include "base/sysmem.h"
#include "cli/bench.h"
#include "cli/model.h"

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, json_real(value));
}

static void set_int(json_t *object, const char *key, uint64_t value) {
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *digest_json(uint64_t digest) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    return json_string(text);
}

/* PHASE_KEY = the series' median, and its _min and _max; null when it was not measured. */
static void set_series(json_t *object, const char *phase, const char *key, const BenchSeries *s) {
    char name[64];
    static const char *const ends[3] = {"", "_min", "_max"};
    double values[3] = {bench_series_median(s), bench_series_least(s), bench_series_largest(s)};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_%s%s", phase, key, ends[i]);
        json_object_set_new(object, name, s->n ? json_real(values[i]) : json_null());
    }
}

/* PHASE_KEY = the series' median; null when it was not measured. */
static void set_median(json_t *object, const char *phase, const char *key, const BenchSeries *s) {
    char name[64];
    snprintf(name, sizeof name, "%s_%s", phase, key);
    json_object_set_new(object, name, s->n ? json_real(bench_series_median(s)) : json_null());
}

static void set_phase(json_t *object, const char *name, const BenchPhase *p) {
    char key[32];
    set_series(object, name, "tok_s", &p->tok_s);
    set_series(object, name, "bound_share", &p->share);
    set_median(object, name, "read_gb_s", &p->read_gb_s);
    set_median(object, name, "matrix_tflops", &p->matrix_tflops);
    snprintf(key, sizeof key, "%s_bound", name);
    json_object_set_new(object, key,
                        p->tok_s.n ? json_string(p->is_flop ? "flop" : "bytes") : json_null());
}

static json_t *stage_json(const char *phase, const char *name, double seconds, double all_seconds,
                          double bound_seconds, WorkDone done) {
    return json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "phase", phase, "stage", name,
                     "seconds", seconds, "time_share", all_seconds > 0 ? seconds / all_seconds : 0,
                     "bytes", done.bytes, "flop", done.flop, "bound_share",
                     seconds > 0 ? bound_seconds / seconds : 0);
}

/* The stages of a phase, of one decode step or one whole prefill, in the mean of the rounds. What
 * no stage has timed is the last one, "between". */
static void add_stages(json_t *to, const Bench *b, const BenchRow *row, BatchPhase phase) {
    const BenchPhase *p = &row->phase[phase];
    const char *name = phase == PHASE_DECODE ? "decode" : "prefill";
    double all = 0, parts = p->tok_s.n * (phase == PHASE_DECODE ? (double)b->n_steps : 1);
    for (int s = 0; s < STAGE_N; s++)
        all += p->stage_seconds[s];
    if (all <= 0)
        return;
    for (int s = 0; s < STAGE_N; s++) {
        if (p->stage_seconds[s] <= 0)
            continue;
        WorkDone done = work_stage(&b->work, &p->load, (BackendStageId)s);
        done.bytes /= parts / p->tok_s.n;
        done.flop /= parts / p->tok_s.n;
        json_array_append_new(to, stage_json(name, backend_stage_name((BackendStageId)s),
                                             p->stage_seconds[s] / parts, p->seconds / parts,
                                             p->stage_bound_seconds[s] / parts, done));
    }
    json_array_append_new(to, stage_json(name, "between", (p->seconds - all) / parts,
                                         p->seconds / parts, 0, (WorkDone){0}));
}

/* The work of the last round, by which its shares can be worked out again. */
static void add_work(json_t *to, const Bench *b, const BenchRow *row) {
    const BenchPhase *prefill = &row->phase[PHASE_PREFILL], *decode = &row->phase[PHASE_DECODE];
    WorkDone read = work_total(&b->work, &prefill->load);
    WorkDone made = work_total(&b->work, &decode->load);
    bool is_read = prefill->tok_s.n > 0;
    json_object_set_new(to, "prefill_bytes", is_read ? json_real(read.bytes) : json_null());
    json_object_set_new(to, "prefill_flop", is_read ? json_real(read.flop) : json_null());
    set_real(to, "decode_bytes_step", made.bytes / b->n_steps);
    set_real(to, "decode_flop_step", made.flop / b->n_steps);
}

static json_t *row_json(const Bench *b, const BenchRow *row) {
    json_t *v = json_object();
    const BenchPhase *decode = &row->phase[PHASE_DECODE];
    set_int(v, "context", (uint64_t)row->context);
    set_int(v, "batch", (uint64_t)b->run.plan.n_seqs);
    json_object_set_new(v, "filled", json_boolean(row->is_filled));
    json_object_set_new(v, "unstable", json_boolean(row->is_unstable));
    set_int(v, "rounds", (uint64_t)row->n_rounds);
    set_phase(v, "prefill", &row->phase[PHASE_PREFILL]);
    set_phase(v, "decode", &row->phase[PHASE_DECODE]);
    add_work(v, b, row);
    set_real(v, "experts_per_layer_step",
             decode->load.n_expert_reads / b->n_steps / b->config->n_layers);
    json_object_set_new(v, "experts_counted", json_boolean(row->are_experts_counted));
    set_real(v, "read_gb_s", bench_series_median(&decode->read_gb_s)); // decode's, by older names
    set_real(v, "matrix_tflops", bench_series_median(&decode->matrix_tflops));
    set_int(v, "peak_bytes", row->peak_bytes);
    set_real(v, "peak_over_plan", (double)row->peak_bytes / (double)b->run.needs.total_bytes);
    json_object_set_new(v, "ids_digest", digest_json(row->digest));
    json_t *digests = json_array();
    for (int32_t i = 0; i < b->run.plan.n_seqs; i++)
        json_array_append_new(digests, digest_json(row->seq_digest[i]));
    json_object_set_new(v, "seq_digests", digests);
    if (b->args->is_profile) {
        json_t *stages = json_array();
        add_stages(stages, b, row, PHASE_PREFILL);
        add_stages(stages, b, row, PHASE_DECODE);
        json_object_set_new(v, "profile", stages);
    }
    return v;
}

static json_t *model_json(const Bench *b) {
    return json_pack("{s:o, s:i, s:i, s:I}", "spec", json_clean_string(model_spec(b->args)),
                     "layers", b->config->n_layers, "hidden", b->config->hidden, "weight_bytes",
                     (json_int_t)weights_total_bytes(b->weights));
}

json_t *bench_json_asked(const Bench *b, const BenchRunPlan *plan) {
    (void)json_take_alloc_failure();
    json_t *v = json_object(), *rows = json_array();
    for (int i = 0; i < b->n_contexts; i++)
        json_array_append_new(rows, json_pack("{s:i, s:i, s:b}", "context", b->contexts[i], "batch",
                                              plan->n_seqs, "filled",
                                              bench_is_filled(b, b->contexts[i])));
    json_object_set_new(v, "model", model_json(b));
    json_object_set_new(v, "backend", json_string(backend_kind_name(plan->kind)));
    json_object_set_new(v, "machine", json_pack("{s:i}", "threads", b->n_threads));
    json_object_set_new(v, "results", rows);
    if (!json_take_alloc_failure() && v)
        return v;
    json_decref(v);
    return NULL;
}

json_t *bench_json(const Bench *b) {
    (void)json_take_alloc_failure();
    json_t *v = json_object(), *results = json_array(), *skipped = json_array();
    json_object_set_new(v, "machine",
                        json_pack("{s:s, s:i, s:I}", "device", backend_text(b->run.backend),
                                  "threads", b->n_threads, "memory_bytes",
                                  (json_int_t)sysmem_total()));
    json_object_set_new(v, "versions",
                        json_pack("{s:s, s:s}", "lily", LILY_VERSION, "commit", LILY_COMMIT));
    json_object_set_new(v, "model", model_json(b));
    json_object_set_new(v, "backend", json_string(backend_kind_name(b->run.plan.kind)));
    set_real(v, "read_gb_s", b->best.read_gb_s);
    set_real(v, "matrix_tflops", b->best.matrix_tflops);
    json_object_set_new(v, "matrix_unit", json_string(b->best.unit));
    set_int(v, "meter_bytes_per_thread", b->meter_bytes);
    set_int(v, "steps", (uint64_t)b->n_steps);
    set_int(v, "rounds", (uint64_t)b->n_rounds);
    set_int(v, "batch", (uint64_t)b->run.plan.n_seqs);
    set_int(v, "chunk", (uint64_t)b->run.plan.chunk);
    set_int(v, "seed", b->run.plan.seed);
    set_int(v, "plan_bytes", b->run.needs.total_bytes);
    for (int i = 0; i < b->n_contexts; i++)
        json_array_append_new(results, row_json(b, &b->rows[i]));
    for (int i = 0; i < b->n_skipped; i++)
        json_array_append_new(skipped, json_pack("{s:i, s:s}", "context", b->skipped[i].context,
                                                 "reason", b->skipped[i].reason));
    json_object_set_new(v, "results", results);
    json_object_set_new(v, "skipped", skipped);
    if (!json_take_alloc_failure() && v && results && skipped)
        return v;
    json_decref(v);
    return NULL;
}
