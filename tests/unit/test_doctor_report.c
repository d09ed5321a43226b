// SPDX-License-Identifier: Apache-2.0
/* test_doctor_report.c - what `doctor` concludes about machines other than this one.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: main. */
#include "unit.h"

#include "base/mem.h"
#include "cli/doctor_report.h"

#include <string.h>

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
    "\"decode_bound_tok_s\":20.0,\"prefill_bound_tok_s\":100.0}"
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
                  "load: other programs kept 3.2 CPUs busy", "nodes: weights lie spread over 2");
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
    ASSERT_ADVICE(v, "kernels: prompts are read at the rate of the products; a CPU with AMX");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_machine_without_faults),
        cmocka_unit_test(test_memory_that_is_full),
        cmocka_unit_test(test_memory_that_is_too_small),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_a_card_is_told_nothing_of_the_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
