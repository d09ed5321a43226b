// SPDX-License-Identifier: Apache-2.0
/* test_pyjson.c - Python's JSON text. The right values were printed by Python 3.11. */
#include "base/mem.h"
#include "base/rng.h"
#include "text/pyjson.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>

#include <cmocka.h>

static void check_real(double x, const char *want) {
    StrBuf b = {0};
    pyjson_append_real(&b, x);
    assert_string_equal(b.ptr, want);
    strbuf_fini(&b);
}

static void test_real_numbers(void **state) {
    UNUSED(state);
    static const struct {
        double x;
        const char *want;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {100.0, "100.0"},
        {123456789.125, "123456789.125"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {1.5e16, "1.5e+16"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {9.999999999999999e22, "1e+23"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {1.25e-7, "1.25e-07"},
        {1e100, "1e+100"},
        {1e-100, "1e-100"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {9007199254740993.0, "9007199254740992.0"},
        {0x1p-44, "5.684341886080802e-14"},
        {0x1p-1017, "7.120236347223045e-307"}, // the nearest 16 digits read back as its neighbour
        {4.35, "4.35"},
        {1.0 / 3, "0.3333333333333333"},
        {2.0 / 3, "0.6666666666666666"},
        {1e21, "1e+21"},
        {9.5, "9.5"},
        {99999999999999990.0, "9.999999999999998e+16"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check_real(rows[i].x, rows[i].want);
}

static void test_real_numbers_read_back(void **state) {
    UNUSED(state);
    for (uint64_t i = 0; i < 20000; i++) {
        union {
            uint64_t bits;
            double x;
        } v = {.bits = i < 4100 ? (i % 2050) << 52 | i / 2050 : rng_u64(9, i)};
        StrBuf b = {0};
        if (!isfinite(v.x))
            continue;
        pyjson_append_real(&b, v.x);
        assert_true(strtod(b.ptr, NULL) == v.x);
        strbuf_fini(&b);
    }
}

static void check_json(const char *in, const char *want) {
    StrBuf b = {0};
    json_t *v = NULL;
    assert_int_equal(json_read(&v, str_view(in, strlen(in)), "test", NULL), STATUS_OK);
    assert_int_equal(pyjson_append(&b, v, NULL), STATUS_OK);
    assert_string_equal(b.ptr, want);
    json_decref(v);
    strbuf_fini(&b);
}

static void test_values(void **state) {
    UNUSED(state);
    check_json("{}", "{}");
    check_json("[]", "[]");
    check_json("[[],{}]", "[[], {}]");
    check_json("{\"z\":1,\"a\":[true,false,null],\"m\":{\"x\":-0,\"y\":-0.0}}",
               "{\"z\": 1, \"a\": [true, false, null], \"m\": {\"x\": 0, \"y\": -0.0}}");
    check_json("[9223372036854775807,-9223372036854775808,1E5,1e-400]",
               "[9223372036854775807, -9223372036854775808, 100000.0, 0.0]");
    check_json("\"\\u00e9\\ud834\\udd1e\\u2028<>&'/\\/\\\"\\\\\"",
               "\"\xc3\xa9\xf0\x9d\x84\x9e\xe2\x80\xa8<>&'//\\\"\\\\\"");
    check_json("\"\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u0080\"",
               "\"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\xc2\x80\"");
    check_json("{\"\\n\":\"\"}", "{\"\\n\": \"\"}");
}

static void test_scalars_as_str(void **state) {
    UNUSED(state);
    static const struct {
        const char *in, *want;
    } rows[] = {{"true", "True"}, {"false", "False"},   {"null", "None"}, {"3", "3"},
                {"1.50", "1.5"},  {"\"a\\\"\"", "a\""}, {"[]", NULL},     {"{}", NULL}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        StrBuf b = {0};
        json_t *v = json_loads(rows[i].in, JSON_DECODE_ANY, NULL);
        assert_int_equal(pyjson_append_str(&b, v), rows[i].want != NULL);
        if (rows[i].want)
            assert_string_equal(b.ptr, rows[i].want);
        else
            assert_null(b.ptr);
        json_decref(v);
        strbuf_fini(&b);
    }
}

static void test_numbers_ignore_the_locale(void **state) {
    UNUSED(state);
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "ru_RU.UTF-8"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (setlocale(LC_NUMERIC, names[i])) {
            check_real(1234.5, "1234.5");
            check_real(1.5e300, "1.5e+300");
            setlocale(LC_NUMERIC, "C");
            return;
        }
    print_message("no locale with a decimal comma here\n");
    skip();
}

static void test_failure_stays(void **state) {
    UNUSED(state);
    json_t *v = json_loads("{\"a\": [1, \"x\"]}", 0, NULL);
    StrBuf b = {0};
    mem_fail_after(0);
    assert_int_equal(pyjson_append(&b, v, NULL), STATUS_OK);
    mem_fail_after(-1);
    assert_int_equal(strbuf_check(&b, NULL), STATUS_MEMORY);
    strbuf_fini(&b);
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_numbers),
        cmocka_unit_test(test_real_numbers_read_back),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_scalars_as_str),
        cmocka_unit_test(test_numbers_ignore_the_locale),
        cmocka_unit_test(test_failure_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
