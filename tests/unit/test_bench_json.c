// SPDX-License-Identifier: Apache-2.0
/* test_bench_json.c - what a bench says of itself before it has measured anything. */
#include "unit.h"

#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_report.h"

#include <string.h>

// The program's verbs, which the command line looks up and this test does not have.
const CliVerb CLI_VERBS[] = {{.name = "bench"}};
const int CLI_N_VERBS = 1;

static void what_is_asked_for_and_every_failed_allocation(void **state) {
    UNUSED(state);
    CliArgs args = {.model = "synth:tiny,layers=4"};
    Weights *w;
    assert_int_equal(weights_open(&w, args.model, NULL, NULL), STATUS_OK);
    static const char text[] =
        "{\"model\":{\"spec\":\"synth:tiny,layers=4\",\"layers\":4},\"backend\":\"cpu\","
        "\"machine\":"
        "{\"threads\":3},\"results\":[{\"context\":600,\"batch\":2,\"filled\":true}]}";
    json_t *before = NULL;
    assert_int_equal(json_read(&before, (StrView){text, strlen(text)}, "test", NULL), STATUS_OK);
    Bench b = {.args = &args,
               .weights = w,
               .config = weights_config(w),
               .fill_above = 100,
               .n_threads = 3,
               .contexts = {16, 600},
               .n_contexts = 2};
    BenchRunPlan plan = {.kind = BACKEND_CPU, .n_seqs = 2};
    json_t *asked = NULL;
    int64_t after = 0;
    for (; !asked; after++) {
        mem_fail_after(after);
        asked = bench_json_asked(&b, &plan);
        mem_fail_after(-1);
    }
    assert_true(after > 10);
    assert_int_equal(bench_compare_check(asked, before, NULL), STATUS_OK);
    // the other context alone: it is read, and not in the earlier result
    json_array_remove(json_object_get(asked, "results"), 1);
    assert_int_equal(bench_compare_check(asked, before, NULL), STATUS_INVALID);
    json_decref(asked);
    json_decref(before);
    weights_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_asked_for_and_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
