// SPDX-License-Identifier: Apache-2.0
/* doctor.c - the verb `doctor`: this machine, the kernels that would run on it, and what would stop
 * the full model.
 *
 * Path:     every backend opens a tiny random model and makes one step, so that what is printed was
 *           seen to work; then the meters.
 * Owns:     nothing past the run.  Thread: main. */
#include "backend/meter.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sysmem.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "cli/work.h"

#include <string.h>

#define DOCTOR_TINY "synth:tiny"
#define DOCTOR_FULL "synth:qwen3.6-35b-a3b"

enum { DOCTOR_METER_BYTES = 256 << 20 }; // a thread: quick, and beyond the caches

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

/* The features that kernels are chosen by. */
static void doctor_features(char *out, size_t size) {
    static const char *const wanted[] = {
        "avx2",     "fma",      "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile",
        "amx_bf16", "amx_int8", "asimd",   "asimddp",  "i8mm",        "bf16"};
    char flags[8192];
    doctor_cpu_field(flags, sizeof flags, "flags");
    if (!flags[0])
        doctor_cpu_field(flags, sizeof flags, "Features");
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
        double step_bytes = work_total(&work, &load).bytes;
        v = json_pack("{s:s, s:I, s:I, s:I, s:b, s:f, s:f}", "backend", backend_kind_name(kind),
                      "plan_bytes", (json_int_t)plan.needs.total_bytes, "free_bytes",
                      (json_int_t)left, "context", (json_int_t)plan.ctx_tok, "fits",
                      plan.needs.total_bytes <= left, "decode_bound_tok_s",
                      read_gb_s * 1e9 / step_bytes, "prefill_bound_tok_s",
                      tflops * 1e12 / work_total(&work, &row).flop);
    }
    weights_close(w);
    return v;
}

static void doctor_print(const json_t *all) {
#define TEXT(v, key) json_string_value(json_object_get(v, key))
#define REAL(v, key) json_real_value(json_object_get(v, key))
#define BYTES(v, key) ((double)json_integer_value(json_object_get(v, key)) * 1e-9)
    printf("CPU        %s\n", TEXT(all, "cpu"));
    printf("features   %s\n", TEXT(all, "features"));
    printf("threads    %lld\n", (long long)json_integer_value(json_object_get(all, "threads")));
    printf("memory     %.1f GB, %.1f GB available\n", BYTES(all, "memory_bytes"),
           BYTES(all, "available_bytes"));
    printf("reads      %.1f GB/s with all threads\n", REAL(all, "read_gb_s"));
    printf("products   %.3f TFLOP/s (%s)\n", REAL(all, "matrix_tflops"), TEXT(all, "matrix_unit"));
    const char *name;
    json_t *backend;
    json_object_foreach(json_object_get(all, "backends"), name, backend) printf(
        "%-10s %s%s\n", name,
        json_is_true(json_object_get(backend, "works")) ? "" : "not here: ", TEXT(backend, "text"));
    const json_t *card = json_object_get(all, "card");
    if (json_is_object(card))
        printf("card       reads %.0f GB/s, products %.0f TFLOP/s (%s)\n", REAL(card, "read_gb_s"),
               REAL(card, "matrix_tflops"), TEXT(card, "matrix_unit"));
    const json_t *full = json_object_get(all, "full_model");
    const char *missed = TEXT(all, "missed");
    printf("auto       %s is what runs%s%s\n", TEXT(full, "backend"), missed ? "; " : "",
           missed ? missed : "");
    printf("Qwen3.6-35B-A3B, 4 bit, on %s: needs %.1f GB with a context of %lld tokens: %s %.1f GB "
           "that are free\n",
           TEXT(full, "backend"), BYTES(full, "plan_bytes"),
           (long long)json_integer_value(json_object_get(full, "context")),
           json_is_true(json_object_get(full, "fits")) ? "fits into the" : "does not fit into the",
           BYTES(full, "free_bytes"));
    printf(
        "its bounds there: %.1f tokens a second in decode (memory), %.0f in prefill (products)\n",
        REAL(full, "decode_bound_tok_s"), REAL(full, "prefill_bound_tok_s"));
#undef TEXT
#undef REAL
#undef BYTES
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

static Status doctor_run(json_t **out, const CliArgs *args, Err *err) {
    char cpu[256], features[512];
    doctor_cpu_field(cpu, sizeof cpu, "model name");
    doctor_features(features, sizeof features);
    Pool *pool = NULL;
    double read_gb_s = 0;
    const char *unit;
    TRY(pool_open(&pool, (int)args->threads, err));
    int n_threads = pool_n_members(pool);
    Status status = meter_read_gb_s(&read_gb_s, pool, DOCTOR_METER_BYTES, err);
    double tflops = meter_matrix_tflops(pool, 0.2, &unit);
    pool_close(pool);
    TRY(status);
    BackendMeter card = {0};
    BackendKind kind = backend_kind_resolve(BACKEND_AUTO);
    json_t *backends = doctor_backends(args, &card, err);
    bool is_card = doctor_is_card(kind) && card.unit;
    json_t *full = backends ? doctor_full_model(kind, (int32_t)args->device,
                                                is_card ? card.read_gb_s : read_gb_s,
                                                is_card ? card.matrix_tflops : tflops, err)
                            : NULL;
    if (!full) {
        json_decref(backends);
        return err->code ? err->code : err_memory(err, "report", 0);
    }
    *out = json_pack("{s:s, s:s, s:i, s:I, s:I, s:f, s:f, s:s, s:o, s:o}", "cpu", cpu, "features",
                     features, "threads", n_threads, "memory_bytes", (json_int_t)sysmem_total(),
                     "available_bytes", (json_int_t)sysmem_available(), "read_gb_s", read_gb_s,
                     "matrix_tflops", tflops, "matrix_unit", unit, "backends", backends,
                     "full_model", full);
    if (!*out)
        return err_memory(err, "report", 0);
    json_object_set_new(*out, "card",
                        card.unit ? json_pack("{s:f, s:f, s:s}", "read_gb_s", card.read_gb_s,
                                              "matrix_tflops", card.matrix_tflops, "matrix_unit",
                                              card.unit)
                                  : json_null());
    doctor_add_missed(*out);
    return STATUS_OK;
}

int verb_doctor(const CliArgs *args) {
    Err err = {0};
    json_t *report = NULL;
    if (doctor_run(&report, args, &err) != STATUS_OK)
        return ui_fail("doctor", &err);
    if (args->is_json) {
        if (ui_print_json(report, JSON_INDENT(2), &err) != STATUS_OK)
            return ui_fail("doctor", &err);
        return ui_finish("doctor");
    }
    doctor_print(report);
    json_decref(report);
    return ui_finish("doctor");
}
