// SPDX-License-Identifier: Apache-2.0
/* test_bench_report.c - a bench's result as table, CSV and picture: written from fixed objects, so
 * what stands there is compared to the byte. */
#include "unit.h"

#include "base/mem.h"
#include "cli/bench_report.h"

#include <string.h>

#define ROW(CONTEXT, FLAGS, PREFILL)                                                               \
    "{\"context\":" CONTEXT ",\"batch\":1," FLAGS ",\"rounds\":3," PREFILL                         \
    "\"decode_tok_s\":19.5,\"decode_tok_s_min\":15.25,\"decode_tok_s_max\":20,"                    \
    "\"decode_bound_share\":0.875,\"decode_bound_share_min\":0.7,"                                 \
    "\"decode_bound_share_max\":0.9,\"decode_bound\":\"bytes\",\"decode_bytes_step\":1.8e9,"       \
    "\"decode_flop_step\":4e9,\"decode_read_gb_s\":40.125,\"decode_matrix_tflops\":0.25,"          \
    "\"read_gb_s\":40.125,"                                                                        \
    "\"matrix_tflops\":0.25,\"peak_bytes\":20000000000,\"ids_digest\":\"0123456789abcdef\"}"
#define READ                                                                                       \
    "\"prefill_tok_s\":50.0,\"prefill_tok_s_min\":49,\"prefill_tok_s_max\":52.5,"                  \
    "\"prefill_bound_share\":0.5,\"prefill_bound_share_min\":0.45,"                                \
    "\"prefill_bound_share_max\":0.55,\"prefill_bound\":\"flop\",\"prefill_bytes\":2e10,"          \
    "\"prefill_flop\":1.25e12,\"prefill_read_gb_s\":33.5,\"prefill_matrix_tflops\":0.2345,"
#define NOT_READ                                                                                   \
    "\"prefill_tok_s\":null,\"prefill_tok_s_min\":null,\"prefill_tok_s_max\":null,"                \
    "\"prefill_bound_share\":null,"
#define STEADY "\"filled\":false,\"unstable\":false"
#define HEAD                                                                                       \
    "{\"backend\":\"cpu\",\"read_gb_s\":44.25,\"matrix_tflops\":0.25,\"batch\":1,"                 \
    "\"matrix_unit\":\"AVX-512 16-bit integer dot product\",\"plan_bytes\":19688766792,"           \
    "\"model\":{\"spec\":\"a<b>&\\\"c\\\"\",\"layers\":8},\"machine\":{\"threads\":2},"

static json_t *object_of(const char *text) {
    json_t *v = NULL;
    Err err = {0};
    if (json_read(&v, (StrView){text, strlen(text)}, "test", &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return v;
}

static json_t *two_rows(void) {
    return object_of(HEAD "\"results\":[" ROW("256", STEADY, READ) "," ROW(
        "131072", "\"filled\":true,\"unstable\":true",
        NOT_READ) "],\"skipped\":[{\"context\":262144,\"reason\":\"needs 30 GB\"}]}");
}

typedef Status (*ReportFn)(StrBuf *, const json_t *, Err *);

static char *made(ReportFn fn, json_t *v) {
    StrBuf out = {0};
    assert_int_equal(fn(&out, v, NULL), STATUS_OK);
    json_decref(v);
    return out.ptr;
}

static void table_marks_what_was_not_measured(void **state) {
    UNUSED(state);
    char *text = made(bench_report_table, two_rows());
    assert_string_equal(
        text,
        "a<b>&\"c\", cpu backend\n"
        "at best: reads 44.2 GB/s, AVX-512 16-bit integer dot product 0.250 TFLOP/s\n"
        " context  phase      tok/s      min      max  share of the bound          MB/step  ids\n"
        "     256  prefill    50.00    49.00    52.50   50.0% of   0.234 TFLOP/s\n"
        "          decode     19.50    15.25    20.00   87.5% of   40.12 GB/s       1800.0  "
        "0123456789abcdef\n"
        "  131072  prefill        -        -        -       -                               "
        "filled, unstable\n"
        "          decode     19.50    15.25    20.00   87.5% of   40.12 GB/s       1800.0  "
        "0123456789abcdef\n"
        "memory: at most 20.000 GB used, 19.689 GB planned\n"
        "filled: decode behind at most 512 read tokens and copies of their keys and values; no "
        "prompt of "
        "that length was read\n"
        "unstable: the rounds' shares of the bound lie more than 8% apart\n"
        "  262144  left out: needs 30 GB\n");
    mem_free(text);
}

static void table_of_stages(void **state) {
    UNUSED(state);
    json_t *v = two_rows();
    json_t *row = json_array_get(json_object_get(v, "results"), 0);
    json_object_set_new(
        row, "profile",
        object_of("[{\"phase\":\"decode\",\"stage\":\"gdn in\",\"seconds\":0.02,"
                  "\"time_share\":0.25,\"bytes\":4e8,\"flop\":2e9,\"bound_share\":0.5}]"));
    json_object_set_new(json_array_get(json_object_get(v, "results"), 1), "profile", json_array());
    char *text = made(bench_report_table, v);
    assert_non_null(strstr(text, "\ndecode   at 256             ms  of time         MB      GB/s   "
                                 "GFLOP/s of bound\n  gdn in               20.000    25.0%     "
                                 "400.00     20.00     100.0    50.0%\n"));
    assert_non_null(strstr(text, "\nstages at 131072: this backend does not time them\n"));
    mem_free(text);
}

static void csv_has_a_cell_for_every_name(void **state) {
    UNUSED(state);
    char *text = made(bench_report_csv, two_rows());
    assert_string_equal(
        text,
        "context,batch,filled,unstable,rounds,prefill_tok_s,prefill_tok_s_min,prefill_tok_s_max,"
        "prefill_bound_share,prefill_bytes,prefill_flop,prefill_read_gb_s,prefill_matrix_tflops,"
        "decode_tok_s,decode_tok_s_min,decode_tok_s_max,decode_bound_share,decode_bytes_step,"
        "decode_flop_step,decode_read_gb_s,decode_matrix_tflops,read_gb_s,matrix_tflops,peak_bytes,"
        "ids_digest,plan_bytes,backend,"
        "matrix_unit,model\n"
        "256,1,false,false,3,50,49,52.5,0.5,2e+10,1.25e+12,33.5,0.2345,19.5,15.25,20,0.875,1.8e+09,"
        "4e+09,40.125,0.25,40.125,0.25,20000000000,"
        "\"0123456789abcdef\",19688766792,\"cpu\",\"AVX-512 16-bit integer dot product\","
        "\"a<b>&\"\"c\"\"\"\n"
        "131072,1,true,true,3,,,,,,,,,19.5,15.25,20,0.875,1.8e+09,4e+09,40.125,0.25,40.125,0.25,"
        "20000000000,"
        "\"0123456789abcdef\",19688766792,\"cpu\",\"AVX-512 16-bit integer dot product\","
        "\"a<b>&\"\"c\"\"\"\n");
    mem_free(text);
}

static int count_of(const char *text, const char *part) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p++)
        n++;
    return n;
}

static void picture_has_a_mark_for_every_measured_value(void **state) {
    UNUSED(state);
    char *text = made(bench_svg, two_rows()), *again = made(bench_svg, two_rows());
    assert_string_equal(text, again);
    // speed and share: prefill at one context, decode at two
    assert_int_equal(count_of(text, "<circle "), 6);
    assert_int_equal(count_of(text, "fill=\"#fff\">"), 2); // filled rows are rings
    assert_int_equal(count_of(text, "<polyline "), 4);
    assert_non_null(strstr(text, "a&lt;b&gt;&amp;\"c\""));
    assert_non_null(strstr(text, ">131072</text>"));
    // 15.25 to 52.5: the scale goes from 10 to 100; 20 stands at 0.301 of its height
    assert_non_null(strstr(text, "<line x1=\"80\" y1=\"243.8\" x2=\"730\" y2=\"243.8\" "
                                 "class=\"grid\"/>\n<text x=\"72\" y=\"247.8\" "
                                 "class=\"y\">20</text>"));
    // the shortest context on the left, the longest on the right, the share 87.5% at its height
    assert_non_null(strstr(text, "points=\"110.0,387.5 700.0,387.5\" stroke=\"#c8600a\""));
    mem_free(text);
    mem_free(again);
}

static void results_without_rows_or_keys_are_shown_too(void **state) {
    UNUSED(state);
    static const char *const texts[] = {"{}", HEAD "\"results\":[],\"skipped\":[]}",
                                        HEAD "\"results\":[{\"context\":0},{\"context\":9}]}",
                                        HEAD "\"results\":[" ROW("64", STEADY, READ) "]}"};
    static const ReportFn reports[] = {bench_report_table, bench_report_csv, bench_svg};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (size_t k = 0; k < COUNT_OF(reports); k++) {
            char *text = made(reports[k], object_of(texts[i]));
            assert_null(strstr(text, "nan"));
            assert_null(strstr(text, "inf"));
            mem_free(text);
        }
}

static void set_share(json_t *all, const char *phase, double median, double least, double largest) {
    json_t *row = json_array_get(json_object_get(all, "results"), 0);
    static const char *const ends[3] = {"", "_min", "_max"};
    const double values[3] = {median, least, largest};
    for (int i = 0; i < 3; i++) {
        char key[48];
        snprintf(key, sizeof key, "%s_bound_share%s", phase, ends[i]);
        json_object_set_new(row, key, json_real(values[i]));
    }
}

/* C76: the rounds' ranges decide, not the medians. */
static void c76_slower_is_what_lies_below_the_earlier_spread(void **state) {
    UNUSED(state);
    static const struct {
        double median, least, largest;
        const char *verdict;
    } cases[] = {
        {0.875, 0.7, 0.9, ": as before\n"},  {0.5, 0.4, 0.71, ": as before\n"},
        {0.5, 0.4, 0.69, ": slower\n"},      {0.95, 0.91, 0.97, ": faster\n"},
        {0.95, 0.89, 0.97, ": as before\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *now = two_rows(), *before = two_rows();
        set_share(now, "decode", cases[i].median, cases[i].least, cases[i].largest);
        StrBuf out = {0};
        int n_slower = -1;
        assert_int_equal(bench_compare(&out, &n_slower, now, before, NULL), STATUS_OK);
        assert_int_equal(n_slower, strcmp(cases[i].verdict, ": slower\n") == 0);
        const char *line = strstr(out.ptr, "decode  at    256: ");
        assert_non_null(line);
        assert_ptr_equal(strstr(line, cases[i].verdict),
                         strchr(line, '\n') + 1 - strlen(cases[i].verdict));
        assert_non_null(strstr(out.ptr, "before 87.5% (70.0 .. 90.0)"));
        // the other row is unstable: no verdict; its prefill was not measured
        assert_non_null(strstr(out.ptr, "decode  at 131072: "));
        assert_non_null(strstr(out.ptr, ": unstable\n1 unstable figures are not judged: "));
        assert_null(strstr(out.ptr, "prefill at 131072"));
        strbuf_fini(&out);
        json_decref(now);
        json_decref(before);
    }
}

static void what_cannot_be_compared_is_said(void **state) {
    UNUSED(state);
    static const struct {
        const char *before, *words;
    } cases[] = {
        {"{}", "model: spec differs"},
        {"{\"model\":{\"spec\":\"a<b>&\\\"c\\\"\",\"layers\":4}}", "model: layers differs"},
        {"{\"model\":{\"spec\":\"a<b>&\\\"c\\\"\",\"layers\":8}}", "backend differs"},
        {"{\"model\":{\"spec\":\"a<b>&\\\"c\\\"\",\"layers\":8},\"backend\":\"cpu\",\"machine\":{"
         "\"threads\":3}}",
         "machine: threads differs"},
        {HEAD "\"results\":[]}", "no row"},
        {HEAD "\"results\":[{\"context\":256,\"batch\":2,\"filled\":false}]}", "no row"},
    };
    json_t *now = two_rows();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *before = object_of(cases[i].before);
        StrBuf out = {0};
        Err err = {0};
        int n_slower = -1;
        assert_int_equal(bench_compare(&out, &n_slower, now, before, &err), STATUS_INVALID);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %zu: %s", i, err.text);
        Err early = {0};
        assert_int_equal(bench_compare_check(now, before, &early), STATUS_INVALID);
        assert_string_equal(early.text, err.text);
        assert_int_equal(n_slower, -1);
        strbuf_fini(&out);
        json_decref(before);
    }
    json_decref(now);
}

/* A whole result stands beside what is known of another before it is measured. */
static void what_is_asked_for_can_be_compared_before_it_is_measured(void **state) {
    UNUSED(state);
    json_t *before = two_rows();
    json_t *asked = object_of("{\"model\":{\"spec\":\"a<b>&\\\"c\\\"\",\"layers\":8},\"backend\":"
                              "\"cpu\",\"machine\":{\"threads\":2},\"results\":[{\"context\":9,"
                              "\"batch\":1,\"filled\":false},{\"context\":131072,\"batch\":1,"
                              "\"filled\":true}]}");
    assert_int_equal(bench_compare_check(asked, before, NULL), STATUS_OK);
    json_array_remove(json_object_get(asked, "results"), 1);
    assert_int_equal(bench_compare_check(asked, before, NULL), STATUS_INVALID);
    json_decref(asked);
    json_decref(before);
}

/* Far slower, but its rounds disagree: no figure counts, and that is said. */
static void unstable_rows_are_counted_and_not_judged(void **state) {
    UNUSED(state);
    json_t *now = two_rows(), *before = two_rows();
    set_share(now, "decode", 0.1, 0.1, 0.1);
    json_object_set_new(json_array_get(json_object_get(before, "results"), 0), "unstable",
                        json_true());
    StrBuf out = {0};
    int n_slower = -1;
    assert_int_equal(bench_compare(&out, &n_slower, now, before, NULL), STATUS_OK);
    assert_int_equal(n_slower, 0);
    assert_int_equal(count_of(out.ptr, ": unstable\n"), 3);
    assert_non_null(strstr(
        out.ptr, "\n3 unstable figures are not judged: their rounds disagree, now or before\n"));
    strbuf_fini(&out);
    // and no line where all are judged
    json_array_remove(json_object_get(now, "results"), 1);
    json_object_set_new(json_array_get(json_object_get(before, "results"), 0), "unstable",
                        json_false());
    out = (StrBuf){0};
    assert_int_equal(bench_compare(&out, &n_slower, now, before, NULL), STATUS_OK);
    assert_int_equal(n_slower, 1);
    assert_null(strstr(out.ptr, "not judged"));
    strbuf_fini(&out);
    json_decref(now);
    json_decref(before);
}

static void every_failed_allocation_is_told(void **state) {
    UNUSED(state);
    static const ReportFn reports[] = {bench_report_table, bench_report_csv, bench_svg};
    json_t *v = two_rows();
    for (size_t k = 0; k < COUNT_OF(reports); k++) {
        Status status = STATUS_MEMORY;
        for (int64_t after = 0; status != STATUS_OK; after++) {
            StrBuf out = {0};
            Err err = {0};
            mem_fail_after(after);
            status = reports[k](&out, v, &err);
            mem_fail_after(-1);
            assert_true(status == STATUS_OK || status == STATUS_MEMORY);
            assert_true((status == STATUS_OK) == (after > 0 && err.code == STATUS_OK));
            strbuf_fini(&out);
        }
    }
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_marks_what_was_not_measured),
        cmocka_unit_test(table_of_stages),
        cmocka_unit_test(csv_has_a_cell_for_every_name),
        cmocka_unit_test(picture_has_a_mark_for_every_measured_value),
        cmocka_unit_test(results_without_rows_or_keys_are_shown_too),
        cmocka_unit_test(c76_slower_is_what_lies_below_the_earlier_spread),
        cmocka_unit_test(what_cannot_be_compared_is_said),
        cmocka_unit_test(what_is_asked_for_can_be_compared_before_it_is_measured),
        cmocka_unit_test(unstable_rows_are_counted_and_not_judged),
        cmocka_unit_test(every_failed_allocation_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
