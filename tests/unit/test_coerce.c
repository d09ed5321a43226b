// SPDX-License-Identifier: Apache-2.0
/* test_coerce.c - types from schemas, values from texts. */
#include "base/mem.h"
#include "base/rng.h"
#include "text/coerce.h"
#include "text/pyjson.h"

#include <setjmp.h>

#include <cmocka.h>

enum {
    N = COERCE_NULL,
    B = COERCE_BOOLEAN,
    I = COERCE_INTEGER,
    R = COERCE_NUMBER | COERCE_INTEGER,
    A = COERCE_ARRAY,
    O = COERCE_OBJECT,
    S = COERCE_STRING
};

/* Types of the parameter "k" whose schema this is. */
static unsigned types_of(const char *schema) {
    StrBuf b = {0};
    json_t *function = NULL;
    strbuf_printf(&b,
                  "{\"name\":\"f\",\"parameters\":{\"properties\":{\"k\":%s},\"$defs\":{\"D\":{"
                  "\"type\":\"integer\"},\"a/b~c\":[{},{\"type\":\"boolean\"}],\"L\":{\"anyOf\":[{"
                  "\"$ref\":\"#/$defs/L\"},{\"$ref\":\"#/$defs/L\"},{\"type\":\"array\"}]}}}}",
                  schema);
    assert_int_equal(json_read(&function, strbuf_view(&b), "test", NULL), STATUS_OK);
    unsigned types = coerce_types(function, STR("k"));
    json_decref(function);
    strbuf_fini(&b);
    return types;
}

static void test_types_of_schemas(void **state) {
    UNUSED(state);
    static const struct {
        const char *schema;
        unsigned want;
    } rows[] = {
        {"{\"type\":\"string\"}", S},
        {"{\"type\":\"number\"}", R},
        {"{\"type\":[\"string\",\"null\"]}", S | N},
        {"{\"type\":\"string\",\"nullable\":true}", S | N},
        {"{}", 0},
        {"true", 0},
        {"3", 0},
        {"{\"type\":\"any\"}", 0},
        {"{\"description\":\"x\"}", 0},
        {"{\"enum\":[\"a\",\"b\"]}", S},
        {"{\"enum\":[1,\"b\",null,2.5,true,[],{}]}", N | B | R | A | O | S},
        {"{\"type\":\"string\",\"enum\":[\"a\",null]}", S},
        {"{\"const\":false}", B},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", I | N},
        {"{\"oneOf\":[{\"type\":\"array\"},{\"type\":\"string\"}]}", A | S},
        {"{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"type\":\"integer\"}]}", I},
        {"{\"allOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", I},
        {"{\"$ref\":\"#/$defs/D\"}", I},
        {"{\"$ref\":\"#/$defs/a~1b~0c/1\"}", B},
        {"{\"$ref\":\"#/$defs/a~1b~0c/9\"}", 0},
        {"{\"$ref\":\"#/nowhere\"}", 0},
        {"{\"$ref\":\"http://x/y\"}", 0},
        {"{\"$ref\":\"#\"}", 0},
        {"{\"$ref\":\"#/properties/k\"}", 0}, // itself
        {"{\"$ref\":\"#/$defs/L\"}", A},      // twice itself at each level
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (types_of(rows[i].schema) != rows[i].want)
            fail_msg("%s: got %x, want %x", rows[i].schema, types_of(rows[i].schema), rows[i].want);
}

static void test_types_of_undeclared_keys(void **state) {
    UNUSED(state);
    json_t *tool = json_loads("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                              "\"properties\":{\"a\":{\"type\":\"string\"}},"
                              "\"additionalProperties\":{\"type\":\"integer\"}}}}",
                              0, NULL);
    const json_t *function = coerce_function(tool);
    assert_int_equal(coerce_types(function, STR("a")), S);
    assert_int_equal(coerce_types(function, STR("b")), I);
    assert_int_equal(coerce_types(function, (StrView){0}), I);
    assert_int_equal(coerce_types(NULL, STR("a")), 0);
    assert_ptr_equal(coerce_function(function), function);
    json_decref(tool);
}

static void check_value(unsigned types, const char *text, const char *want) {
    json_t *v;
    StrBuf got = {0};
    StrView s = str_view(text, strlen(text));
    assert_int_equal(coerce_value(&v, types, s, NULL), STATUS_OK);
    assert_int_equal(pyjson_append(&got, v, NULL), STATUS_OK);
    if (strcmp(got.ptr, want) != 0)
        fail_msg("%x %s: got %s, want %s", types, text, got.ptr, want);
    // Once a beginning says "text", the whole is the text itself.
    for (size_t len = 0; len <= s.len; len++)
        if (coerce_guess(types, str_view(text, len)) == COERCE_TEXT)
            assert_true(json_is_string(v) && str_equal(json_text(v), s));
    strbuf_fini(&got);
    json_decref(v);
}

static void test_values_of_texts(void **state) {
    UNUSED(state);
    static const struct {
        unsigned types;
        const char *text, *want;
    } rows[] = {
        {S, "null", "\"null\""},
        {S, "42", "\"42\""},
        {S, "\"q\"", "\"\\\"q\\\"\""},
        {S, " x ", "\" x \""},
        {S | N, "null", "null"},
        {S | N, "NULL", "null"},
        {S | N, " None\n", "null"},
        {S | N, "nullable", "\"nullable\""},
        {I, "3", "3"},
        {I, " 3 ", "3"},
        {I, "3.0", "3"},
        {I, "1e3", "1000"},
        {I, "3.5", "\"3.5\""},
        {I, "null", "null"},
        {I, "\"3\"", "\"\\\"3\\\"\""},
        {I, "123456789012345678901234567890", "\"123456789012345678901234567890\""},
        {I, "9223372036854775807", "9223372036854775807"},
        {I, "1e300", "\"1e300\""},
        {I, "-", "\"-\""},
        {I, "", "\"\""},
        {I, "007", "\"007\""},
        {R, "3", "3"},
        {R, "3.0", "3.0"},
        {R, "1e400", "\"1e400\""},
        {R, "NaN", "\"NaN\""},
        {B, "true", "true"},
        {B, "False", "false"},
        {B, "TRUE", "true"},
        {B, "1", "\"1\""},
        {B, "yes", "\"yes\""},
        {A, "[1, 2]", "[1, 2]"},
        {A, "['a', True, None, (1,)]", "[\"a\", true, null, [1]]"},
        {A, "[1, 2", "\"[1, 2\""},
        {A, "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {A, "None", "null"},
        {O, "{'a': {'b': 'it\\'s'}}", "{\"a\": {\"b\": \"it's\"}}"},
        {O, "{\"a\": 1, \"a\": 2}", "{\"a\": 2}"},
        {O, "{\"a\": \"\\u0000\"}", "{\"a\": \"\\u0000\"}"},
        {S | A, "[1]", "[1]"},
        {S | A, "['a']", "\"['a']\""}, // text is allowed: not bent into a list
        {S | I, "42", "42"},
        {S | I, "42a", "\"42a\""},
        {S | I, "null", "\"null\""},
        {S | B, "True", "true"},
        {S | R | N, "nul", "\"nul\""},
        {I | N, "null", "null"},
        {0, "1", "\"1\""},
        {0, "null", "\"null\""},
        {0, "[1]", "[1]"},
        {0, " {\"a\": []}", "{\"a\": []}"},
        {0, "{a}", "\"{a}\""},
        {0, "['a']", "\"['a']\""},
        {N, "null", "null"},
        {N, "x", "\"x\""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        check_value(rows[i].types, rows[i].text, rows[i].want);
}

static void test_guess_never_contradicts_the_value(void **state) {
    UNUSED(state);
    static const char *const pieces[] = {"n", "u",  "l",  "null", "none", "true", "false",
                                         " ", "\n", "1",  "-",    ".5",   "[",    "]",
                                         "{", "}",  "\"", "a",    "'",    "t",    ","};
    StrBuf s = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        json_t *v;
        unsigned types = (unsigned)(rng_u64(4, i) % (COERCE_ALL + 1));
        strbuf_clear(&s);
        strbuf_append(&s, "", 0);
        for (uint64_t k = 0; k < rng_u64(5, i) % 6; k++) {
            const char *piece = pieces[rng_u64(i + 6, k) % COUNT_OF(pieces)];
            strbuf_append(&s, piece, strlen(piece));
        }
        assert_int_equal(coerce_value(&v, types, strbuf_view(&s), NULL), STATUS_OK);
        for (size_t len = 0; len <= s.len; len++)
            if (coerce_guess(types, str_view(s.ptr, len)) == COERCE_TEXT &&
                (!json_is_string(v) || !str_equal(json_text(v), strbuf_view(&s))))
                fail_msg("types %x: %s: text by its first %zu bytes", types, s.ptr, len);
        if (coerce_guess(types, strbuf_view(&s)) == COERCE_UNKNOWN && types == COERCE_STRING)
            fail_msg("a plain string must stream at once");
        json_decref(v);
    }
    strbuf_fini(&s);
}

static void test_every_allocation_failing_is_reported(void **state) {
    UNUSED(state);
    json_t *first = NULL; // puts mem_alloc under jansson
    assert_int_equal(json_read(&first, STR("1"), "test", NULL), STATUS_OK);
    json_decref(first);
    int64_t after = 0;
    for (;; after++) {
        json_t *v = NULL;
        mem_fail_after(after);
        Status status = coerce_value(&v, A, STR("[1, {'k': 'text'}]"), NULL);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            json_decref(v);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(v);
    }
    assert_true(after > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_of_schemas),
        cmocka_unit_test(test_types_of_undeclared_keys),
        cmocka_unit_test(test_values_of_texts),
        cmocka_unit_test(test_guess_never_contradicts_the_value),
        cmocka_unit_test(test_every_allocation_failing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
