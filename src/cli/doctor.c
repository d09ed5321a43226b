// SPDX-License-Identifier: Apache-2.0
/* doctor.c - the verb `doctor`: this machine, the kernels that would run on it, and what would stop
 * the full model.
 *
 * Path:     every backend opens a tiny random model and makes one step, so that what is printed was
 *           seen to work; then the meters; doctor_report.c draws the conclusions.
 * Owns:     nothing past the run.  Thread: main. */
#define _GNU_SOURCE // getloadavg
#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_meter.h"
#include "backend/meter.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/sysmem.h"
#include "cli/bench_stats.h"
#include "cli/doctor_report.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "cli/work.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DOCTOR_TINY "synth:tiny"
#define DOCTOR_FULL "synth:qwen3.6-35b-a3b"

enum {
    DOCTOR_METER_BYTES = 256 << 20, // a thread: quick, and beyond the caches
    DOCTOR_READS = 5,               // what other programs leave changes by the second
};
static const double DOCTOR_UNIT_S = 0.08, DOCTOR_KERNEL_S = 0.1;

/* The value behind "key :" in /proc/cpuinfo, "" when it is not there. */
static void doctor_cpu_field(char *out, size_t size, const char *key) {
    StrBuf text = {0};
    out[0] = 0;
    if (file_read_all(&text, "/proc/cpuinfo", 16 << 20, NULL) == STATUS_OK) {
        const char *at = strstr(text.ptr, key);
        const char *colon = at ? strchr(at, ':') : NULL;
        if (colon)
            snprintf(out, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    strbuf_fini(&text);
}

static void doctor_cpu_flags(char *out, size_t size) {
    doctor_cpu_field(out, size, "flags");
    if (!out[0])
        doctor_cpu_field(out, size, "Features");
}

/* The features that kernels are chosen by. */
static void doctor_features(char *out, size_t size) {
    static const char *const wanted[] = {
        "avx2",     "fma",      "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile",
        "amx_bf16", "amx_int8", "asimd",   "asimddp",  "i8mm",        "bf16"};
    char flags[8192];
    doctor_cpu_flags(flags, sizeof flags);
    size_t used = 0;
    out[0] = 0;
    for (char *word = flags; *word;) {
        size_t len = strcspn(word, " ");
        for (size_t i = 0; i < COUNT_OF(wanted); i++)
            if (strlen(wanted[i]) == len && !memcmp(wanted[i], word, len) && used + len + 2 < size)
                used +=
                    (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "", wanted[i]);
        word += len + strspn(word + len, " ");
    }
}

/* ---- kernel columns ---- */

/* Columns that this kind of machine could have, with the flags of /proc/cpuinfo that each needs. */
typedef struct DoctorColumn {
    CpuColumn column;
    const char *name, *flags;
} DoctorColumn;

static const DoctorColumn DOCTOR_COLUMNS[] = {
    {COLUMN_GENERIC, "generic", ""},
#if defined(__aarch64__)
    {COLUMN_NEON, "neon", "asimd"},
#else
    {COLUMN_AVX2, "avx2", "avx2 fma"},
    {COLUMN_AVX512, "avx512", "avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"},
    {COLUMN_AMX, "amx", "avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8"},
#endif
};

/* Those of the words that are not among the others, separated by spaces. */
static void doctor_lacking(char *out, size_t size, const char *words, const char *among) {
    size_t used = 0;
    out[0] = 0;
    for (const char *at = words; *at;) {
        int len = (int)strcspn(at, " ");
        char word[32], padded[9000];
        snprintf(word, sizeof word, " %.*s ", len, at);
        snprintf(padded, sizeof padded, " %s ", among);
        if (!strstr(padded, word))
            used += (size_t)snprintf(out + used, size - used, "%s%.*s", used ? " " : "", len, at);
        at += len + (int)strspn(at + len, " ");
    }
}

/* The kernel families that a column serves under a mask. */
static json_t *doctor_families(const char *column, uint32_t mask) {
    KernelTable k;
    cpu_features_choose(&k, mask, false);
    const char *const families[][2] = {{"matmul", k.matmul.column},
                                       {"attn", k.attn.column},
                                       {"recur", k.recur.column},
                                       {"elem", k.elem.column}};
    json_t *all = json_array();
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (!strcmp(families[i][1], column))
            json_array_append_new(all, json_string(families[i][0]));
    return all;
}

/* A column's state: "runs" with what it does, "masked", "idle" (a later one does its work), or
 * "missing" with the reason. Later columns of the table come before earlier ones. */
static json_t *doctor_column(const DoctorColumn *c, uint32_t mask, const char *flags) {
    char lacking[128], why[160] = "";
    uint32_t later = 0;
    for (const DoctorColumn *d = c + 1; d < DOCTOR_COLUMNS + COUNT_OF(DOCTOR_COLUMNS); d++)
        later |= 1u << d->column;
    json_t *families = doctor_families(c->name, mask), *could = doctor_families(c->name, later);
    bool is_here = json_array_size(could) > 0;
    const char *state = json_array_size(families) ? "runs" : is_here ? "idle" : "missing";
    json_decref(could);
    if (is_here && mask >> c->column & 1) {
        state = "masked";
        snprintf(why, sizeof why, "by --cpu-mask");
    } else if (!is_here) {
        doctor_lacking(lacking, sizeof lacking, c->flags, flags);
        if (*lacking)
            snprintf(why, sizeof why, "this CPU lacks %s", lacking);
        else
            snprintf(why, sizeof why, "%s",
                     c->column == COLUMN_AMX && cpu_features_amx() == AMX_REFUSED
                         ? "the system was asked for it and refuses it"
                         : "not in this program");
    }
    return json_pack("{s:s, s:o, s:s}", "state", state, "families", families, "why", why);
}

/* The columns that are not to be used; none when the mask names others, a card's parts for one. */
static uint32_t doctor_mask(const CliArgs *args) {
    uint32_t mask = 0;
    return cpu_features_parse_mask(&mask, args->mask, NULL) == STATUS_OK ? mask : 0;
}

static json_t *doctor_columns(const CliArgs *args) {
    char flags[8192];
    doctor_cpu_flags(flags, sizeof flags);
    uint32_t mask = doctor_mask(args);
    json_t *all = json_object();
    for (size_t i = COUNT_OF(DOCTOR_COLUMNS); i-- > 0;)
        json_object_set_new(all, DOCTOR_COLUMNS[i].name,
                            doctor_column(&DOCTOR_COLUMNS[i], mask, flags));
    return all;
}

/* ---- backends ---- */

static bool doctor_is_card(BackendKind kind) {
    return kind == BACKEND_CUDA || kind == BACKEND_METAL;
}

/* One step of a tiny model on a backend; its description, or why not. A card is measured too. */
static bool doctor_try(BackendKind kind, const CliArgs *args, const Weights *tiny,
                       BackendMeter *card, char *text, size_t size) {
    char why[256] = "";
    if (!backend_is_available(kind, why, sizeof why)) {
        snprintf(text, size, "%s", why);
        return false;
    }
    CliArgs own = *args;
    own.backend = backend_kind_name(kind);
    Single single;
    Err err = {0};
    if (single_open(&single, &own, tiny, 64, 64, 1, &err) != STATUS_OK) {
        snprintf(text, size, "%s", err.text);
        return false;
    }
    int32_t id = 1;
    BatchResult result;
    bool is_good = single_step(&single, PHASE_PREFILL, &id, 1, WANT_LAST, false, NULL, &result,
                               &err) == STATUS_OK;
    if (is_good && doctor_is_card(kind))
        is_good = backend_meter(single.backend, card, 0, 0, &err) == STATUS_OK;
    snprintf(text, size, "%s", is_good ? backend_text(single.backend) : err.text);
    single_close(&single);
    return is_good;
}

static json_t *doctor_backends(const CliArgs *args, BackendMeter *card, Err *err) {
    Weights *tiny = NULL;
    if (weights_open(&tiny, DOCTOR_TINY, &UI_LOG, err) != STATUS_OK)
        return NULL;
    json_t *all = json_object();
    for (int k = 0; k < BACKEND_N; k++) {
        if (k == BACKEND_AUTO)
            continue;
        char text[512];
        bool is_good = doctor_try((BackendKind)k, args, tiny, card, text, sizeof text);
        json_object_set_new(all, backend_kind_name((BackendKind)k),
                            json_pack("{s:b, s:s}", "works", is_good, "text", text));
    }
    weights_close(tiny);
    return all;
}

/* What the full model needs here and how fast the memory that it would lie in lets it decode. */
static json_t *doctor_full_model(BackendKind kind, int32_t device, double read_gb_s, double tflops,
                                 Err *err) {
    Weights *w = NULL;
    if (weights_open(&w, DOCTOR_FULL, &UI_LOG, err) != STATUS_OK)
        return NULL;
    uint64_t left = backend_memory_free(kind, device);
    EngineOptions options = {
        .kind = kind, .device = device, .max_seqs = 1, .budget_bytes = UINT64_MAX};
    EnginePlan plan;
    json_t *v = NULL;
    if (engine_plan(&plan, w, &options, err) == STATUS_OK) {
        Work work;
        work_init(&work, w);
        const ModelConfig *c = weights_config(w);
        WorkLoad load = work_load_decode(256, 1, 1, (double)c->top_k * c->n_layers);
        WorkLoad row = {.phase = PHASE_PREFILL, .n_rows = 1}; // without attention and head
        double step_bytes = work_total(&work, &load).bytes, row_flop = work_total(&work, &row).flop;
        v = json_pack("{s:s, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:f, s:f}", "backend",
                      backend_kind_name(kind), "plan_bytes", (json_int_t)plan.needs.total_bytes,
                      "weight_bytes", (json_int_t)plan.needs.weight_bytes, "free_bytes",
                      (json_int_t)left, "context", (json_int_t)plan.ctx_tok, "fits",
                      plan.needs.total_bytes <= left, "decode_bytes", step_bytes,
                      "decode_bound_tok_s", read_gb_s * 1e9 / step_bytes, "prefill_flop", row_flop,
                      "prefill_bound_tok_s", tflops * 1e12 / row_flop);
    }
    weights_close(w);
    return v;
}

/* The reason why a faster backend that is built in is not the one that runs. */
static void doctor_add_missed(json_t *all) {
    char why[256] = "", text[320];
    bool is_card = doctor_is_card(backend_kind_resolve(BACKEND_AUTO));
    if (is_card || !backend_is_built(BACKEND_CUDA) ||
        backend_is_available(BACKEND_CUDA, why, sizeof why))
        return;
    snprintf(text, sizeof text, "%s: %s", backend_kind_name(BACKEND_CUDA), why);
    json_object_set_new(all, "missed", json_string(text));
}

/* What the meters found. */
typedef struct DoctorMeters {
    int n_threads;
    BenchSeries read_gb_s, read_one_gb_s;
    double tflops;
    const char *unit;
    bool has_kernels; // plain C does the products
    CpuMeter kernels;
} DoctorMeters;

/* The units are timed between the reads, so that these lie some tenths of a second apart. */
static void doctor_read(DoctorMeters *m, Pool *pool, Meter *all, Meter *one) {
    for (int i = 0; i < DOCTOR_READS; i++) {
        bench_series_add(&m->read_gb_s, meter_read_gb_s(all));
        bench_series_add(&m->read_one_gb_s, meter_read_gb_s(one));
        const char *unit = NULL;
        double tflops = meter_matrix_tflops(pool, DOCTOR_UNIT_S, &unit);
        if (tflops > m->tflops) {
            m->tflops = tflops;
            m->unit = unit;
        }
    }
}

/* The products of plain C, when these are what runs. */
static Status doctor_kernels(DoctorMeters *m, const CliArgs *args, Pool *pool, Err *err) {
    KernelTable k;
    cpu_features_choose(&k, doctor_mask(args), false);
    m->has_kernels = strcmp(k.matmul.column, "generic") == 0;
    return m->has_kernels ? cpu_meter_products(&m->kernels, &k.matmul, pool, DOCTOR_KERNEL_S, err)
                          : STATUS_OK;
}

static Status doctor_measure(DoctorMeters *m, const CliArgs *args, Err *err) {
    Pool *one = NULL, *pool = NULL;
    Meter *read_one = NULL, *read = NULL;
    Status status;
    TRY(pool_open(&one, 1, err));
    TRY_GOTO(status, pool_open(&pool, (int)args->threads, err));
    m->n_threads = pool_n_members(pool);
    TRY_GOTO(status, meter_open(&read_one, one, DOCTOR_METER_BYTES, err));
    TRY_GOTO(status, meter_open(&read, pool, DOCTOR_METER_BYTES, err));
    doctor_read(m, pool, read, read_one);
    status = doctor_kernels(m, args, pool, err);
fail:
    meter_close(read);
    meter_close(read_one);
    pool_close(pool);
    pool_close(one);
    return status;
}

/* The load average of the last minute; 0: not told. */
static double doctor_load(void) {
    double load = 0;
    return getloadavg(&load, 1) == 1 ? load : 0;
}

/* The machine as it was before anything was measured. */
static json_t *doctor_machine(const CliArgs *args) {
    char cpu[256], features[512];
    uint64_t nodes;
    NumaCpus allowed;
    bool is_pinned = false;
    doctor_cpu_field(cpu, sizeof cpu, "model name");
    doctor_features(features, sizeof features);
    if (numa_own_cpus(&allowed) &&
        numa_wants_pins(&is_pinned, getenv("LILY_PIN"),
                        args->threads ? (int)args->threads : pool_n_cpus(), &allowed, NUMA_ROOT,
                        NULL) != STATUS_OK)
        is_pinned = false; // pool_open says what is wrong
    return json_pack("{s:s, s:s, s:o, s:i, s:i, s:b, s:f, s:I, s:I}", "cpu", cpu, "features",
                     features, "columns", doctor_columns(args), "cpus",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "nodes", numa_nodes(&nodes, NUMA_ROOT),
                     "pinned", is_pinned, "load", doctor_load(), "memory_bytes",
                     (json_int_t)sysmem_total(), "available_bytes", (json_int_t)sysmem_available());
}

/* The figures of the meters, into the report. */
static void doctor_add_meters(json_t *all, const DoctorMeters *m) {
    json_object_set_new(all, "threads", json_integer(m->n_threads));
    json_object_set_new(all, "read_gb_s", json_real(bench_series_median(&m->read_gb_s)));
    json_object_set_new(all, "read_gb_s_min", json_real(bench_series_least(&m->read_gb_s)));
    json_object_set_new(all, "read_gb_s_max", json_real(bench_series_largest(&m->read_gb_s)));
    json_object_set_new(all, "read_one_gb_s", json_real(bench_series_median(&m->read_one_gb_s)));
    json_object_set_new(all, "matrix_tflops", json_real(m->tflops));
    json_object_set_new(all, "matrix_unit", json_string(m->unit));
    json_object_set_new(all, "plain_c",
                        m->has_kernels
                            ? json_pack("{s:f, s:f}", "decode_gb_s", m->kernels.decode_gb_s,
                                        "prefill_tflops", m->kernels.prefill_tflops)
                            : json_null());
}

static json_t *doctor_card(const BackendMeter *card) {
    return card->unit ? json_pack("{s:f, s:f, s:s}", "read_gb_s", card->read_gb_s, "matrix_tflops",
                                  card->matrix_tflops, "matrix_unit", card->unit)
                      : json_null();
}

static Status doctor_run(json_t **out, const CliArgs *args, Err *err) {
    json_t *all = doctor_machine(args);
    DoctorMeters m = {0};
    Status status = all ? doctor_measure(&m, args, err) : err_memory(err, "report", 0);
    BackendMeter card = {0};
    BackendKind kind = backend_kind_resolve(BACKEND_AUTO);
    json_t *backends = status == STATUS_OK ? doctor_backends(args, &card, err) : NULL;
    bool is_card = doctor_is_card(kind) && card.unit;
    double read_gb_s = is_card ? card.read_gb_s : bench_series_median(&m.read_gb_s);
    double tflops = is_card ? card.matrix_tflops : m.tflops;
    json_t *full =
        backends ? doctor_full_model(kind, (int32_t)args->device, read_gb_s, tflops, err) : NULL;
    if (!full) {
        json_decref(backends);
        json_decref(all);
        return err->code ? err->code : err_memory(err, "report", 0);
    }
    doctor_add_meters(all, &m);
    json_object_set_new(all, "backends", backends);
    json_object_set_new(all, "full_model", full);
    json_object_set_new(all, "card", doctor_card(&card));
    doctor_add_missed(all);
    doctor_advise(all);
    *out = all;
    return STATUS_OK;
}

/* Exit status 1 for a machine on which no model would run as asked. */
int verb_doctor(const CliArgs *args) {
    Err err = {0};
    json_t *report = NULL;
    if (doctor_run(&report, args, &err) != STATUS_OK)
        return ui_fail("doctor", &err);
    const char *stop = doctor_stop(report);
    Status runs = stop ? err_set(&err, STATUS_UNSUPPORTED, "%s", stop) : STATUS_OK;
    if (!args->is_json)
        doctor_print(report);
    else if (ui_print_json(json_incref(report), JSON_INDENT(2), &err) != STATUS_OK)
        return ui_fail("doctor", &err);
    json_decref(report);
    return runs == STATUS_OK ? ui_finish("doctor") : ui_fail("doctor", &err);
}
