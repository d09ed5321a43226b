// SPDX-License-Identifier: Apache-2.0
/* test_json.c - errors of json_read: place, nesting, duplicates, memory.
 *
 * Owns:     nothing.  Thread: one. */
#include "base/json.h"

#include "base/mem.h"
#include "unit.h"

static StrView view(const char *s) { return str_view(s, strlen(s)); }

static void faults_name_file_and_place(void **state) {
    UNUSED(state);
    static const struct {
        const char *text, *expected;
    } CASES[] = {
        {"", "a.json: not valid JSON: line 1"},
        {"{\n\"a\": 1,\n\"a\": 2}", "line 3, column 3: duplicate object key"},
        {"[1, 2", "']' expected near end of file"},
        {"[12345678901234567890]", "too big integer"},
        {"{} x", "end of file expected"},
        {"\"\xff\"", "unable to decode byte 0xff"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Err err = {0};
        json_t *v = NULL;
        assert_int_equal(json_read(&v, view(CASES[i].text), "a.json", &err), STATUS_FORMAT);
        assert_null(v);
        if (!strstr(err.text, CASES[i].expected))
            fail_msg("expected \"%s\" in: %s", CASES[i].expected, err.text);
    }
}

static void nested_200000_deep_is_refused(void **state) {
    UNUSED(state);
    StrBuf b = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_append(&b, i % 2 ? "[" : "{\"a\":", i % 2 ? 1 : 5);
    Err err = {0};
    json_t *v = NULL;
    assert_int_equal(json_read(&v, strbuf_view(&b), "deep.json", &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "deep.json: not valid JSON: line 1"));
    assert_non_null(strstr(err.text, "depth"));
    strbuf_fini(&b);
}

/* jansson alone drops a byte of a long token when its buffer cannot grow, and calls it success. */
static void a_failed_allocation_is_never_a_value(void **state) {
    UNUSED(state);
    const char *text = "{\"a name of more than sixteen bytes\": \"and a value that is longer than "
                       "that, so that its buffer grows twice at least\", \"b\": [1, 2.5, null]}";
    Err err = {0};
    json_t *v = NULL;
    assert_int_equal(json_read(&v, view(text), "a.json", &err), STATUS_OK);
    json_decref(v);
    for (int i = 0;; i++) {
        v = NULL;
        mem_fail_after(i);
        Status status = json_read(&v, view(text), "a.json", &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            assert_true(i > 15); // behind the last allocation
            json_decref(v);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(v);
        assert_string_equal(err.text, "a.json: out of memory");
    }
}

static void printed_text_reads_back_and_memory_failures_show(void **state) {
    UNUSED(state);
    Err err = {0};
    json_t *v = NULL;
    assert_int_equal(json_read(&v, view("{\"a\":[1,\"b\\u0000c\",null]}"), "x", &err), STATUS_OK);
    StrBuf text = {0};
    assert_int_equal(json_print(&text, v, JSON_COMPACT, &err), STATUS_OK);
    assert_int_equal(json_print(&text, json_array_get(json_object_get(v, "a"), 0), 0, &err),
                     STATUS_OK); // any value, appended
    assert_string_equal(text.ptr, "{\"a\":[1,\"b\\u0000c\",null]}1");
    strbuf_fini(&text);
    int n_failed = 0;
    for (int i = 0;; i++) {
        text = (StrBuf){0};
        mem_fail_after(i);
        Status status = json_print(&text, v, 0, &err);
        mem_fail_after(-1);
        strbuf_fini(&text);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
        n_failed++;
    }
    assert_true(n_failed > 0);
    json_decref(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_name_file_and_place),
        cmocka_unit_test(nested_200000_deep_is_refused),
        cmocka_unit_test(a_failed_allocation_is_never_a_value),
        cmocka_unit_test(printed_text_reads_back_and_memory_failures_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
