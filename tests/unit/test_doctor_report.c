// SPDX-License-Identifier: Apache-2.0
/* test_doctor_report.c - what `doctor` concludes about machines other than this one.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: main. */
#define _POSIX_C_SOURCE 200809L // fileno, dup
#include "unit.h"

#include "base/mem.h"
#include "cli/doctor_report.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GENERIC_IDLE "\"generic\":{\"state\":\"idle\",\"families\":[],\"why\":\"\"}"
#define GENERIC_RUNS                                                                               \
    "\"generic\":{\"state\":\"runs\",\"families\":[\"matmul\",\"attn\",\"recur\",\"elem\"],"       \
    "\"why\":\"\"}"
#define AVX512(STATE, FAMILIES)                                                                    \
    "\"avx512\":{\"state\":\"" STATE "\",\"families\":[" FAMILIES "],\"why\":\"\"}"
#define AMX(STATE, FAMILIES)                                                                       \
    "\"amx\":{\"state\":\"" STATE "\",\"families\":[" FAMILIES "],\"why\":\"\"}"
#define FULL(BACKEND, FITS, FREE)                                                                  \
    "\"full_model\":{\"backend\":\"" BACKEND "\",\"plan_bytes\":20000000000,"                      \
    "\"weight_bytes\":19400000000,\"free_bytes\":" FREE ",\"context\":32768,\"fits\":" FITS ","    \
    "\"decode_bytes\":2000000000.0,\"decode_bound_tok_s\":20.0,\"prefill_flop\":5000000000.0,"     \
    "\"prefill_bound_tok_s\":100.0}"
#define PLAIN_C(GB_S, TFLOPS)                                                                      \
    ",\"plain_c\":{\"decode_gb_s\":" GB_S ",\"prefill_tflops\":" TFLOPS "}"
#define BACKEND(NAME, WORKS, TEXT)                                                                 \
    ",\"backends\":{\"" NAME "\":{\"works\":" WORKS ",\"text\":\"" TEXT "\"}}"
#define READS(LEAST, MEDIAN, MOST) MEDIAN ",\"read_gb_s_min\":" LEAST ",\"read_gb_s_max\":" MOST
#define MACHINE(COLUMNS, ONE, ALL, THREADS, CPUS, LOAD, NODES, FULL)                               \
    "{\"columns\":{" COLUMNS "},\"read_one_gb_s\":" ONE ",\"read_gb_s\":" ALL                      \
    ",\"threads\":" THREADS ",\"cpus\":" CPUS ",\"load\":" LOAD ",\"nodes\":" NODES                \
    ",\"pinned\":false,\"memory_bytes\":25000000000,\"card\":null," FULL "}"

static json_t *advised(const char *text) {
    json_t *v = NULL;
    Err err = {0};
    if (json_read(&v, (StrView){text, strlen(text)}, "test", &err) != STATUS_OK)
        fail_msg("%s", err.text);
    doctor_advise(v);
    return v;
}

/* The sentences begin with these words, in this order; NULL ends them. */
static void assert_advice(const json_t *v, const char *const *words) {
    const json_t *advice = json_object_get(v, "advice");
    size_t n = 0;
    for (; words[n]; n++) {
        const char *text = json_string_value(json_array_get(advice, n));
        if (!text || strncmp(text, words[n], strlen(words[n])) != 0)
            fail_msg("advice %zu: expected %s, found %s", n, words[n], text ? text : "nothing");
    }
    assert_int_equal(json_array_size(advice), n);
}
#define ASSERT_ADVICE(v, ...) assert_advice(v, (const char *const[]){__VA_ARGS__, NULL})

static const char *advice(const json_t *v, size_t i) {
    return json_string_value(json_array_get(json_object_get(v, "advice"), i));
}

static double full_real(const json_t *v, const char *key) {
    const json_t *x = json_object_get(json_object_get(v, "full_model"), key);
    assert_true(json_is_real(x));
    return json_real_value(x);
}

static bool is_null(const json_t *v, const char *key) {
    return json_is_null(json_object_get(json_object_get(v, "full_model"), key));
}

static void assert_near(double a, double b) {
    if (!(a > b * (1 - 1e-9) && a < b * (1 + 1e-9)))
        fail_msg("expected %.17g, found %.17g", b, a);
}

/* What doctor_print writes. */
static const char *printed(const json_t *v) {
    static char text[8192];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int old = dup(STDOUT_FILENO);
    assert_true(old >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    doctor_print(v);
    fflush(stdout);
    dup2(old, STDOUT_FILENO);
    close(old);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* A line that is exactly this. */
static void assert_line(const char *text, const char *line) {
    size_t len = strlen(line);
    for (const char *at = text; (at = strstr(at, line)) != NULL; at += len)
        if ((at == text || at[-1] == '\n') && at[len] == '\n')
            return;
    fail_msg("no line \"%s\" in:\n%s", line, text);
}

static void test_a_machine_without_faults(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(AMX("idle", "") "," AVX512("runs", "\"matmul\",\"attn\""), "12.0",
                                "24.0", "2", "2", "0.1", "1", FULL("cpu", "true", "23000000000")));
    ASSERT_ADVICE(v, "reads: 2 threads read 2.0 times what one does: memory is not full yet");
    // The shares of docs/performance.md times the bounds.
    assert_true(full_real(v, "decode_expected_tok_s") == full_real(v, "decode_share") * 20.0);
    assert_true(full_real(v, "prefill_expected_tok_s") == full_real(v, "prefill_share") * 100.0);
    assert_true(full_real(v, "decode_share") > 0.5 && full_real(v, "decode_share") < 1);
    json_decref(v);
}

static void test_memory_that_is_full(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(GENERIC_RUNS "," AVX512("missing", ""), "10.0", "13.9", "2", "8",
                                "3.25", "2", FULL("cpu", "false", "16000000000")));
    ASSERT_ADVICE(v, "memory: the weights alone take 19.4 GB and 16.0 are free: end other",
                  "kernels: plain C runs, since this CPU has no AVX-512",
                  "reads: 2 threads read 1.4 times what one does: memory is the limit",
                  "threads: this process may use 2 of the machine's 8 CPUs",
                  "load: load average 3.2 on 8 CPUs: other programs, or a run that just ended,",
                  "nodes: weights lie spread over 2");
    json_decref(v);
}

static void test_memory_that_is_too_small(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"{\"memory_bytes\":16000000000,\"card\":null," FULL("cpu", "false", "15000000000") "}",
         "memory: the weights alone take 19.4 GB and this machine has 16.0: it needs more memory"},
        {"{\"memory_bytes\":25000000000,\"card\":null," FULL("cpu", "false", "19700000000") "}",
         "memory: 20.0 GB are needed and 19.7 are free: choose a smaller context"},
        {"{\"memory_bytes\":16000000000,\"card\":{}," FULL("cuda", "false", "15000000000") "}",
         "memory: the weights alone take 19.4 GB and 15.0 are free"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *v = advised(rows[i].text);
        ASSERT_ADVICE(v, rows[i].words);
        json_decref(v);
    }
}

static void test_columns(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(AMX("missing", "") "," AVX512("runs", "\"matmul\""), "0", "1", "1",
                                "1", "0", "1", FULL("cpu", "true", "23000000000")));
    ASSERT_ADVICE(
        v, "kernels: prompts are limited by multiplication; a CPU with AMX multiplies several "
           "times faster");
    json_decref(v);
    v = advised(MACHINE(AVX512("masked", "") "," GENERIC_RUNS, "0", "1", "1", "1", "0", "1",
                        FULL("cpu", "true", "23000000000")));
    ASSERT_ADVICE(v, "kernels: --cpu-mask leaves plain C");
    json_decref(v);
    v = advised(MACHINE(GENERIC_RUNS, "0", "1", "1", "1", "0", "1",
                        FULL("cpu", "true", "23000000000"))); // no such column on its kind
    ASSERT_ADVICE(v, "kernels: plain C runs, there are none for this CPU");
    json_decref(v);
    v = advised(MACHINE("\"neon\":{\"state\":\"runs\",\"families\":[\"matmul\"],\"why\":\"\"}", "0",
                        "1", "1", "1", "0", "1", FULL("cpu", "true", "23000000000")));
    ASSERT_ADVICE(v, NULL); // nothing is known of its speed
    assert_true(json_is_null(json_object_get(json_object_get(v, "full_model"), "decode_share")));
    json_decref(v);
}

static void test_a_card_is_told_nothing_of_the_processor(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(GENERIC_RUNS, "10.0", "11.0", "2", "2", "0", "1",
                                FULL("cuda", "true", "140000000000")));
    ASSERT_ADVICE(v, NULL);
    assert_true(full_real(v, "decode_share") > 0);
    assert_null(advice(v, 0));
    json_decref(v);
}

static void test_reads_that_move_make_a_range(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(AVX512("runs", "\"matmul\""), "12.0", READS("20.0", "40.0", "60.0"),
                                "2", "2", "0.1", "1", FULL("cpu", "true", "23000000000")));
    double share = full_real(v, "decode_share");
    assert_near(full_real(v, "decode_expected_tok_s"), share * 20.0); // the bound is the median's
    assert_near(full_real(v, "decode_expected_tok_s_min"), share * 10.0);
    assert_near(full_real(v, "decode_expected_tok_s_max"), share * 30.0);
    const char *text = printed(v);
    assert_line(text, "reads      20.0 .. 60.0 GB/s with all threads (median 40.0), 12.0 with one");
    assert_line(text,
                "its bounds there: 20.0 tokens a second in decode behind 256 tokens (2.00 GB of "
                "memory each), 100 in prefill without attention and head (5.00 GFLOP each)");
    assert_line(text,
                "to expect: 8.5 .. 25.5 in decode, 75 in prefill (measured elsewhere: 85% and "
                "75% of these bounds)");
    json_decref(v);
    // A card's memory is not what was read here.
    v = advised(MACHINE(GENERIC_IDLE, "12.0", READS("20.0", "40.0", "60.0"), "2", "2", "0", "1",
                        FULL("cuda", "true", "140000000000")));
    assert_near(full_real(v, "decode_expected_tok_s_min"), full_real(v, "decode_share") * 20.0);
    assert_near(full_real(v, "decode_expected_tok_s_max"), full_real(v, "decode_share") * 20.0);
    json_decref(v);
}

/* Plain C is held back by its instructions: its products, timed, say what to expect. */
static void test_plain_c_is_expected_to_do_what_its_products_do(void **state) {
    (void)state;
    json_t *v = advised(MACHINE(GENERIC_RUNS, "4.0", READS("10.0", "20.0", "40.0"), "1", "1", "0",
                                "1", FULL("cpu", "true", "23000000000") PLAIN_C("4.0", "0.05")));
    assert_true(is_null(v, "decode_share") && is_null(v, "prefill_share"));
    double d = full_real(v, "decode_expected_tok_s"), p = full_real(v, "prefill_expected_tok_s");
    assert_true(d > 0.7 * 2 && d <= 2); // 4 GB/s by 2 GB, less what else a step does
    assert_true(p > 0.6 * 10 && p <= 10);
    assert_near(full_real(v, "decode_expected_tok_s_min"), d); // all reads are faster
    assert_near(full_real(v, "decode_expected_tok_s_max"), d);
    char line[200];
    snprintf(
        line, sizeof line,
        "to expect: %.1f in decode, %.0f in prefill (from the products of plain C, timed here: "
        "4.00 GB/s of weights, 0.050 TFLOP/s)",
        d, p);
    assert_line(printed(v), line);
    json_decref(v);
    // Memory that is slower than the products: a range again.
    v = advised(MACHINE(GENERIC_RUNS, "4.0", READS("1.0", "2.0", "8.0"), "1", "1", "0", "1",
                        FULL("cpu", "true", "23000000000") PLAIN_C("4.0", "0.05")));
    assert_near(full_real(v, "decode_expected_tok_s_min"), d / 4);
    assert_near(full_real(v, "decode_expected_tok_s"), d / 2);
    assert_near(full_real(v, "decode_expected_tok_s_max"), d);
    assert_near(full_real(v, "prefill_expected_tok_s"), p);
    json_decref(v);
    // Not timed: nothing is claimed.
    v = advised(MACHINE(GENERIC_RUNS, "4.0", READS("1.0", "2.0", "8.0"), "1", "1", "0", "1",
                        FULL("cpu", "true", "23000000000") ",\"plain_c\":null"));
    assert_true(is_null(v, "decode_expected_tok_s") && is_null(v, "prefill_expected_tok_s"));
    assert_true(is_null(v, "decode_expected_tok_s_min") && is_null(v, "decode_expected_tok_s_max"));
    assert_null(strstr(printed(v), "to expect"));
    json_decref(v);
}

/* Beside other programs two threads reading as fast as one says nothing. */
static void test_a_loaded_machine_draws_no_conclusion_from_reads(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool has_reads;
    } rows[] = {
        {MACHINE(GENERIC_IDLE, "10.0", "11.0", "2", "2", "0.99", "1",
                 FULL("cpu", "true", "23000000000")),
         true},
        {MACHINE(GENERIC_IDLE, "10.0", "11.0", "2", "2", "1.0", "1",
                 FULL("cpu", "true", "23000000000")),
         false},
        {MACHINE(GENERIC_IDLE, "10.0", "19.0", "2", "2", "3.3", "1",
                 FULL("cpu", "true", "23000000000")),
         false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *v = advised(rows[i].text);
        if (rows[i].has_reads)
            ASSERT_ADVICE(v, "reads: ", "load: ");
        else
            ASSERT_ADVICE(v, "load: ");
        json_decref(v);
    }
    json_t *v = advised(rows[2].text);
    assert_string_equal(advice(v, 0), "load: load average 3.3 on 2 CPUs: other programs, or a run "
                                      "that just ended, disturb these figures");
    json_decref(v);
}

static void test_a_backend_that_refuses_is_not_what_runs(void **state) {
    (void)state;
    static const struct {
        const char *text, *stop, *line;
    } rows[] = {
        {MACHINE(AVX512("runs", "\"matmul\""), "10.0", "11.0", "2", "2", "0", "1",
                 FULL("cpu", "true", "23000000000") BACKEND("cpu", "false", "cpu mask: no")),
         "cpu mask: no", "auto       cpu is what would run, and it does not: cpu mask: no"},
        {MACHINE(GENERIC_RUNS, "10.0", "11.0", "2", "2", "0", "1",
                 FULL("cpu", "true", "23000000000") BACKEND("cpu", "false", "x")
                     PLAIN_C("4.0", "0.05")),
         "x", "auto       cpu is what would run, and it does not: x"},
        {MACHINE(GENERIC_RUNS, "10.0", "11.0", "2", "2", "0", "1",
                 FULL("cuda", "true", "140000000000") BACKEND("cuda", "false", "cuda: mask: no")),
         "cuda: mask: no", "auto       cuda is what would run, and it does not: cuda: mask: no"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *v = advised(rows[i].text);
        assert_string_equal(doctor_stop(v), rows[i].stop);
        ASSERT_ADVICE(v, NULL); // of kernels that do not run
        assert_true(is_null(v, "decode_share") && is_null(v, "decode_expected_tok_s"));
        assert_line(printed(v), rows[i].line);
        assert_null(strstr(printed(v), "its bounds"));
        json_decref(v);
    }
    json_t *v = advised(MACHINE(AVX512("runs", "\"matmul\""), "0", "11.0", "2", "2", "0", "1",
                                FULL("cpu", "true", "23000000000") BACKEND("cpu", "true", "cpu")));
    assert_null(doctor_stop(v));
    assert_line(printed(v), "auto       cpu is what runs");
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_machine_without_faults),
        cmocka_unit_test(test_memory_that_is_full),
        cmocka_unit_test(test_memory_that_is_too_small),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_a_card_is_told_nothing_of_the_processor),
        cmocka_unit_test(test_reads_that_move_make_a_range),
        cmocka_unit_test(test_plain_c_is_expected_to_do_what_its_products_do),
        cmocka_unit_test(test_a_loaded_machine_draws_no_conclusion_from_reads),
        cmocka_unit_test(test_a_backend_that_refuses_is_not_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
