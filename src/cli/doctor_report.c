// SPDX-License-Identifier: Apache-2.0
/* doctor_report.c - speeds to expect, advice, and the lines of `doctor`.
 *
 * Owns:     nothing.  Thread: main. */
#include "cli/doctor_report.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* Shares of the bounds that were measured with the full shape, decode behind 256 tokens and prefill
 * of 512 and more: docs/performance.md. */
typedef struct DoctorShares {
    const char *column; // of the products
    double decode, prefill;
} DoctorShares;

static const DoctorShares DOCTOR_SHARES[] = {
    {"avx512", 0.85, 0.75},
    {"amx", 0.70, 0.36},
    {"cuda", 0.27, 0.34},
};

/* What plain C reaches, as above, of the rates at which its products run from the caches. */
static const DoctorShares DOCTOR_PLAIN_C = {"generic", 0.90, 0.86};

static const char *text_of(const json_t *v, const char *key) {
    const char *text = json_string_value(json_object_get(v, key));
    return text ? text : "";
}
static double real_of(const json_t *v, const char *key) {
    return json_number_value(json_object_get(v, key));
}
static double gb_of(const json_t *v, const char *key) { return real_of(v, key) * 1e-9; }

/* The column that does the products of the backend that runs; "" for one that has none. */
static const char *products_column(const json_t *all) {
    const char *backend = text_of(json_object_get(all, "full_model"), "backend");
    if (strcmp(backend, "cpu") != 0)
        return strcmp(backend, "cuda") ? "" : "cuda";
    const char *name;
    json_t *column, *family;
    size_t i;
    json_object_foreach(json_object_get(all, "columns"), name, column)
        json_array_foreach(json_object_get(column, "families"), i,
                           family) if (!strcmp(json_string_value(family), "matmul")) return name;
    return "";
}

const char *doctor_stop(const json_t *all) {
    const char *backend = text_of(json_object_get(all, "full_model"), "backend");
    const json_t *b = json_object_get(json_object_get(all, "backends"), backend);
    return json_is_false(json_object_get(b, "works")) ? text_of(b, "text") : NULL;
}

/* Speeds to expect. */
typedef struct DoctorSpeeds {
    double decode[3]; // with the reads' median, least and most
    double prefill;
} DoctorSpeeds;

static const char *const DOCTOR_READ_KEYS[3] = {"read_gb_s", "read_gb_s_min", "read_gb_s_max"};

/* Shares of the bounds. A card's memory was read once. */
static DoctorSpeeds speeds_by_shares(const json_t *all, const DoctorShares *s) {
    const json_t *full = json_object_get(all, "full_model");
    bool is_card = strcmp(s->column, "cuda") == 0;
    double decode = s->decode * real_of(full, "decode_bound_tok_s"),
           median = real_of(all, "read_gb_s");
    DoctorSpeeds out = {.prefill = s->prefill * real_of(full, "prefill_bound_tok_s")};
    for (int i = 0; i < 3; i++)
        out.decode[i] =
            is_card || i == 0 ? decode : decode * real_of(all, DOCTOR_READ_KEYS[i]) / median;
    return out;
}

/* What the products of plain C come to, as far as the memory keeps up with them. */
static DoctorSpeeds speeds_of_plain_c(const json_t *all, const json_t *kernels) {
    const json_t *full = json_object_get(all, "full_model");
    double rate = real_of(kernels, "decode_gb_s"), tflops = real_of(kernels, "prefill_tflops");
    DoctorSpeeds out = {.prefill =
                            DOCTOR_PLAIN_C.prefill * tflops * 1e12 / real_of(full, "prefill_flop")};
    for (int i = 0; i < 3; i++) {
        double read = real_of(all, DOCTOR_READ_KEYS[i]), least = read < rate ? read : rate;
        out.decode[i] = DOCTOR_PLAIN_C.decode * least * 1e9 / real_of(full, "decode_bytes");
    }
    return out;
}

static json_t *real_or_null(bool is_known, double value) {
    return is_known ? json_real(value) : json_null();
}

static void full_expect(json_t *all, const char *column) {
    json_t *full = json_object_get(all, "full_model");
    const json_t *kernels = json_object_get(all, "plain_c");
    const DoctorShares *s = NULL;
    if (doctor_stop(all))
        column = "";
    for (size_t i = 0; i < COUNT_OF(DOCTOR_SHARES); i++)
        if (!strcmp(DOCTOR_SHARES[i].column, column))
            s = &DOCTOR_SHARES[i];
    bool is_plain = !strcmp(column, "generic") && json_is_object(kernels);
    DoctorSpeeds v = s          ? speeds_by_shares(all, s)
                     : is_plain ? speeds_of_plain_c(all, kernels)
                                : (DoctorSpeeds){.prefill = 0};
    bool is_known = s || is_plain;
    json_object_set_new(full, "decode_share", real_or_null(s, s ? s->decode : 0));
    json_object_set_new(full, "prefill_share", real_or_null(s, s ? s->prefill : 0));
    json_object_set_new(full, "decode_expected_tok_s", real_or_null(is_known, v.decode[0]));
    json_object_set_new(full, "decode_expected_tok_s_min", real_or_null(is_known, v.decode[1]));
    json_object_set_new(full, "decode_expected_tok_s_max", real_or_null(is_known, v.decode[2]));
    json_object_set_new(full, "prefill_expected_tok_s", real_or_null(is_known, v.prefill));
}

/* ---- advice ---- */

#define ADVISE(all, ...)                                                                           \
    json_array_append_new(json_object_get(all, "advice"), json_sprintf(__VA_ARGS__))

static void advise_memory(json_t *all, const json_t *full) {
    double need = gb_of(full, "plan_bytes"), weights = gb_of(full, "weight_bytes");
    double all_gb = gb_of(all, "memory_bytes"), left = gb_of(full, "free_bytes");
    bool is_cpu = json_is_null(json_object_get(all, "card"));
    if (json_is_true(json_object_get(full, "fits")))
        return;
    if (is_cpu && weights > all_gb)
        ADVISE(all,
               "memory: the weights alone take %.1f GB and this machine has %.1f: it needs more "
               "memory for this model, or a smaller model",
               weights, all_gb);
    else if (weights > left)
        ADVISE(all,
               "memory: the weights alone take %.1f GB and %.1f are free: end other programs that "
               "hold memory",
               weights, left);
    else
        ADVISE(all,
               "memory: %.1f GB are needed and %.1f are free: choose a smaller context (--ctx), "
               "the weights take %.1f",
               need, left, weights);
}

static void advise_kernels(json_t *all) {
    const json_t *columns = json_object_get(all, "columns"), *column;
    const char *name, *run = products_column(all);
    if (!strcmp(run, "generic")) {
        const json_t *fast = json_object_get(columns, "avx512");
        if (fast && !strcmp(text_of(fast, "state"), "masked"))
            ADVISE(all, "kernels: --cpu-mask leaves plain C, which is the slowest there is");
        else if (fast)
            ADVISE(all,
                   "kernels: plain C runs, since this CPU has no AVX-512 with VNNI and BF16: both "
                   "speeds stay below what its memory and its units allow");
        else
            ADVISE(all, "kernels: plain C runs, there are none for this CPU: both speeds stay "
                        "below what its memory and its units allow");
        return;
    }
    json_object_foreach((json_t *)columns, name, column) {
        if (!strcmp(name, "amx") && !strcmp(run, "avx512") &&
            !strcmp(text_of(column, "state"), "missing"))
            ADVISE(all, "kernels: prompts are limited by multiplication; a CPU with AMX multiplies "
                        "several times faster");
    }
}

/* Beside other programs reads say nothing of what more threads would do. */
static void advise_reads(json_t *all) {
    double one = real_of(all, "read_one_gb_s"), together = real_of(all, "read_gb_s");
    int n = (int)real_of(all, "threads");
    if (n < 2 || one <= 0 || real_of(all, "load") >= 0.5 * real_of(all, "cpus"))
        return;
    if (together < 0.7 * n * one)
        ADVISE(all,
               "reads: %d threads read %.1f times what one does: memory is the limit; more "
               "channels or faster memory make decode faster, more threads do not",
               n, together / one);
    else
        ADVISE(all,
               "reads: %d threads read %.1f times what one does: memory is not full yet; with more "
               "CPUs decode is faster",
               n, together / one);
}

static void advise_threads(json_t *all) {
    int n = (int)real_of(all, "threads"), cpus = (int)real_of(all, "cpus");
    double load = real_of(all, "load");
    if (n < cpus)
        ADVISE(all,
               "threads: this process may use %d of the machine's %d CPUs (its affinity, or the "
               "quota of its control group)",
               n, cpus);
    if (load >= 0.5)
        ADVISE(all,
               "load: load average %.1f on %d CPUs: other programs, or a run that just ended, "
               "disturb these figures",
               load, cpus);
    if (real_of(all, "nodes") > 1)
        ADVISE(all,
               "nodes: weights lie spread over %d memory nodes; LILY_PIN=on or off says whether "
               "threads are pinned (now: %s)",
               (int)real_of(all, "nodes"),
               json_is_true(json_object_get(all, "pinned")) ? "yes" : "no");
}

void doctor_advise(json_t *all) {
    json_t *full = json_object_get(all, "full_model");
    full_expect(all, products_column(all));
    json_object_set_new(all, "advice", json_array());
    advise_memory(all, full);
    if (!strcmp(text_of(full, "backend"), "cpu") && !doctor_stop(all)) {
        advise_kernels(all);
        advise_reads(all);
    }
    advise_threads(all);
}

/* ---- lines ---- */

static void print_columns(const json_t *all) {
    const char *name, *head = "columns";
    json_t *column, *family;
    size_t i;
    json_object_foreach(json_object_get(all, "columns"), name, column) {
        printf("%-10s %-8s %s", head, name, text_of(column, "state"));
        head = "";
        json_array_foreach(json_object_get(column, "families"), i, family)
            printf("%s %s", i ? "," : ":", json_string_value(family));
        printf("%s%s\n", *text_of(column, "why") ? ": " : "", text_of(column, "why"));
    }
}

static void print_machine(const json_t *all) {
    printf("CPU        %s\n", text_of(all, "cpu"));
    printf("features   %s\n", text_of(all, "features"));
    print_columns(all);
    printf("threads    %d\n", (int)real_of(all, "threads"));
    printf("memory     %.1f GB, %.1f GB available\n", gb_of(all, "memory_bytes"),
           gb_of(all, "available_bytes"));
    printf("reads      %.1f .. %.1f GB/s with all threads (median %.1f), %.1f with one\n",
           real_of(all, "read_gb_s_min"), real_of(all, "read_gb_s_max"), real_of(all, "read_gb_s"),
           real_of(all, "read_one_gb_s"));
    printf("products   %.3f TFLOP/s (%s)\n", real_of(all, "matrix_tflops"),
           text_of(all, "matrix_unit"));
    const char *name;
    json_t *backend;
    json_object_foreach(json_object_get(all, "backends"), name, backend) printf(
        "%-10s %s%s\n", name, json_is_true(json_object_get(backend, "works")) ? "" : "not here: ",
        text_of(backend, "text"));
    const json_t *card = json_object_get(all, "card");
    if (json_is_object(card))
        printf("card       reads %.0f GB/s, products %.0f TFLOP/s (%s)\n",
               real_of(card, "read_gb_s"), real_of(card, "matrix_tflops"),
               text_of(card, "matrix_unit"));
}

static void print_auto(const json_t *all) {
    const char *backend = text_of(json_object_get(all, "full_model"), "backend");
    const char *missed = text_of(all, "missed"), *stop = doctor_stop(all);
    if (stop)
        printf("auto       %s is what would run, and it does not: %s", backend, stop);
    else
        printf("auto       %s is what runs", backend);
    printf("%s%s\n", *missed ? "; " : "", missed);
}

/* Bounds, and what to expect of them where something is known. */
static void print_speeds(const json_t *all) {
    const json_t *full = json_object_get(all, "full_model"), *kernels;
    printf("its bounds there: %.1f tokens a second in decode behind 256 tokens (%.2f GB of memory "
           "each), %.0f in prefill without attention and head (%.2f GFLOP each)\n",
           real_of(full, "decode_bound_tok_s"), gb_of(full, "decode_bytes"),
           real_of(full, "prefill_bound_tok_s"), gb_of(full, "prefill_flop"));
    if (!json_is_real(json_object_get(full, "decode_expected_tok_s")))
        return;
    double least = real_of(full, "decode_expected_tok_s_min");
    double most = real_of(full, "decode_expected_tok_s_max");
    printf("to expect: ");
    if (most - least >= 0.1)
        printf("%.1f .. ", least);
    printf("%.1f in decode, %.0f in prefill ", most, real_of(full, "prefill_expected_tok_s"));
    kernels = json_object_get(all, "plain_c");
    if (json_is_real(json_object_get(full, "decode_share")))
        printf("(measured elsewhere: %.0f%% and %.0f%% of these bounds)\n",
               100 * real_of(full, "decode_share"), 100 * real_of(full, "prefill_share"));
    else
        printf("(from the products of plain C, timed here: %.2f GB/s of weights, %.3f TFLOP/s)\n",
               real_of(kernels, "decode_gb_s"), real_of(kernels, "prefill_tflops"));
}

void doctor_print(const json_t *all) {
    print_machine(all);
    print_auto(all);
    const json_t *full = json_object_get(all, "full_model"), *advice;
    printf("Qwen3.6-35B-A3B, 4 bit, on %s: needs %.1f GB (weights %.1f) with a context of %d "
           "tokens: %s %.1f GB that are free\n",
           text_of(full, "backend"), gb_of(full, "plan_bytes"), gb_of(full, "weight_bytes"),
           (int)real_of(full, "context"),
           json_is_true(json_object_get(full, "fits")) ? "fits into the" : "does not fit into the",
           gb_of(full, "free_bytes"));
    if (!doctor_stop(all))
        print_speeds(all);
    size_t i;
    json_array_foreach(json_object_get(all, "advice"), i, advice)
        printf("%s\n", json_string_value(advice));
}
