// SPDX-License-Identifier: Apache-2.0
/* test_pyliteral.c - Python literals: what repr prints, and what is none. */
#include "text/pyjson.h"
#include "text/pyliteral.h"

#include <setjmp.h>

#include <cmocka.h>

static void check(const char *text, size_t len, const char *want) {
    json_t *v = NULL;
    StrBuf got = {0};
    assert_int_equal(pyliteral_read(&v, str_view(text, len), NULL), STATUS_OK);
    if (v)
        assert_int_equal(pyjson_append(&got, v, NULL), STATUS_OK);
    if (want ? !v || strcmp(got.ptr, want) != 0 : v != NULL)
        fail_msg("%s: got %s, want %s", text, v ? got.ptr : "nothing", want ? want : "nothing");
    json_decref(v);
    strbuf_fini(&got);
}

static void test_literals(void **state) {
    UNUSED(state);
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"None", "null"},
        {" True ", "true"},
        {"false", "false"},
        {"'a'", "\"a\""},
        {"\"it's\"", "\"it's\""},
        {"'\\\\ \\' \\\" \\n\\r\\t\\b\\f\\v\\a\\0'",
         "\"\\\\ ' \\\" \\n\\r\\t\\b\\f\\u000b\\u0007\\u0000\""},
        {"'\\xe9\\u20ac\\U0001f600'", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"[]", "[]"},
        {"[1, -2.5, 1e3,]", "[1, -2.5, 1000.0]"},
        {"()", "[]"},
        {"(1,)", "[1]"},
        {"(1, 'b')", "[1, \"b\"]"},
        {"{}", "{}"},
        {"{'a': [True], \"b\": {'c': None,},}", "{\"a\": [true], \"b\": {\"c\": null}}"},
        {"{'a': 1, 'a': 2}", "{\"a\": 2}"},
        {"\n[ 1 ,\n2 ]\n", "[1, 2]"},
        {"", NULL},
        {"x", NULL},
        {"(1)", NULL},
        {"[1", NULL},
        {"[1 2]", NULL},
        {"[,]", NULL},
        {"{1: 2}", NULL},
        {"{'a'}", NULL},
        {"{'a': }", NULL},
        {"'a", NULL},
        {"'\\q'", NULL},
        {"'\\x4'", NULL},
        {"'\\ud800'", NULL},
        {"'a\nb'", NULL},
        {"'a' 'b'", NULL},
        {"1 2", NULL},
        {"007", NULL},
        {"1..2", NULL},
        {"Nonesuch", NULL},
        {"[1]]", NULL},
        {"'\\", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check(rows[i].text, strlen(rows[i].text), rows[i].want);
    check("[\0]", 3, NULL);
    check("\0", 1, NULL);
}

static void test_deep_nesting_is_refused(void **state) {
    UNUSED(state);
    StrBuf s = {0};
    for (int depth = PYLITERAL_DEPTH; depth <= PYLITERAL_DEPTH + 1; depth++) {
        strbuf_clear(&s);
        for (int i = 0; i < depth; i++)
            strbuf_append_char(&s, '[');
        for (int i = 0; i < depth; i++)
            strbuf_append_char(&s, ']');
        json_t *v = NULL;
        assert_int_equal(pyliteral_read(&v, strbuf_view(&s), NULL), STATUS_OK);
        assert_int_equal(v != NULL, depth == PYLITERAL_DEPTH);
        json_decref(v);
    }
    strbuf_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
