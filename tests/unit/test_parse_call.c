// SPDX-License-Identifier: Apache-2.0
/* test_parse_call.c - where a call and its values begin and end, streamed or damaged. */
#include "parse_run.h"

#include "text/pyjson.h"

static void test_c18_python_literals_by_schema(void **state) {
    UNUSED(state);
    json_t *tools =
        json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"scrape\","
                   "\"parameters\":{\"properties\":{\"formats\":{\"type\":\"array\","
                   "\"items\":{\"type\":\"object\"}},\"onlyMain\":{\"type\":\"boolean\"}"
                   "}}}}]",
                   0, NULL);
    StrView text =
        STR("<tool_call>\n<function=scrape>\n<parameter=formats>\n[\"markdown\", {\"a\": "
            "1}]\n</parameter>\n<parameter=onlyMain>\nTrue\n</parameter>\n</function>\n"
            "</tool_call>");
    Result r;
    run_all(&r, text, (ParserOptions){.tools = tools}, false, true, 18);
    json_t *got = brief(r.message);
    json_t *want =
        json_loads("{\"r\":null,\"c\":null,\"t\":[[\"scrape\",{\"formats\":[\"markdown\","
                   "{\"a\":1}],\"onlyMain\":true}]]}",
                   0, NULL);
    assert_true(json_equal(got, want));
    assert_non_null(
        strstr(r.events.ptr, "{\"formats\": [\"markdown\", {\"a\": 1}], \"onlyMain\": true}"));
    json_decref(got);
    json_decref(want);
    result_fini(&r);
    json_decref(tools);
}

static void test_c18_half_a_call_is_text(void **state) {
    UNUSED(state);
    static const char head[] = "A\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n"
                               "</parameter>\n<parameter=days>\n3\n</parameter>\n";
    json_t *tools = tools_make();
    for (size_t len = 3; len < sizeof head; len++)
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            Result r;
            run_all(&r, str_view(head, len), (ParserOptions){.tools = tools}, is_cut, false, len);
            assert_int_equal(json_array_size(json_object_get(r.message, "tool_calls")), 0);
            StrView content = json_text(json_object_get(r.message, "content"));
            size_t want = len;
            while (head[want - 1] == '\n')
                want--;
            assert_true(str_equal(content, str_view(head, want)));
            result_fini(&r);
        }
    json_decref(tools);
}

static void test_c20_call_inside_reasoning(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"<think>\nok\n<tool_call>\n<function=finish>\n<parameter=answer>\n204\n</parameter>\n"
         "</function>\n</tool_call>",
         "{\"r\":\"ok\",\"c\":null,\"t\":[[\"finish\",{\"answer\":\"204\"}]]}",
         PARSE_START_REASONING, false, false},
        // The same where thinking was off and the model thought all the same.
        {"<think>\nok\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
         "{\"r\":\"ok\",\"c\":null,\"t\":[[\"now\",{}]]}", PARSE_START_CONTENT, false, false},
        // Behind it the reasoning is closed; a late tag is no content.
        {"ok\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n</think>\n\nDone.",
         "{\"r\":\"ok\",\"c\":\"Done.\",\"t\":[[\"now\",{}]]}", PARSE_START_REASONING, false,
         false},
        // Only a whole block is one: a mention stays reasoning.
        {"I could use <tool_call> here\n</think>\n\nDone.",
         "{\"r\":\"I could use <tool_call> here\",\"c\":\"Done.\",\"t\":[]}", PARSE_START_REASONING,
         false, false},
        {"ok <tool_call>\n<function=run>\n<parameter=code>\nx",
         "{\"r\":\"ok "
         "<tool_call>\\n<function=run>\\n<parameter=code>\\nx\",\"c\":null,\"t\":[]}",
         PARSE_START_REASONING, true, false},
        {"ok <tool_call>\n</think>\n\n7", "{\"r\":\"ok <tool_call>\",\"c\":\"7\",\"t\":[]}",
         PARSE_START_REASONING, false, false},
        // No tools offered: text.
        {"ok <tool_call>\n<function=now>\n</function>\n</tool_call>",
         "{\"r\":\"ok "
         "<tool_call>\\n<function=now>\\n</function>\\n</tool_call>\",\"c\":null,\"t\":[]}",
         PARSE_START_REASONING, false, true},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_c22_value_that_does_not_fit_stays_text(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"<tool_call>\n<function=get_weather>\n<parameter=days>\n2026-01-15\n</parameter>\n"
         "</function>\n</tool_call>",
         "{\"r\":null,\"c\":null,\"t\":[[\"get_weather\",{\"days\":\"2026-01-15\"}]]}",
         PARSE_START_CONTENT, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

/* A zero byte in a value is data; in a key or a name no JSON reader would take it. */
static void test_zero_bytes(void **state) {
    UNUSED(state);
    const struct {
        StrView text;
        const char *arguments; // NULL: no call
    } rows[] = {
        {STR("<tool_call><function=run><parameter=code>a\0b</parameter></function></tool_call>"),
         "{\"code\": \"a\\u0000b\"}"},
        {STR("<tool_call><function=run><parameter=c\0de>a</parameter></function></tool_call>"),
         "{}"},
        {STR("<tool_call><function=r\0n></function></tool_call>"), NULL},
    };
    json_t *tools = tools_make();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Result r;
        StrBuf got = {0};
        run_all(&r, rows[i].text, (ParserOptions){.tools = tools}, false, true, i + 1);
        const json_t *call = json_array_get(json_object_get(r.message, "tool_calls"), 0);
        assert_int_equal(call != NULL, rows[i].arguments != NULL);
        if (call) {
            const json_t *function = json_object_get(call, "function");
            assert_int_equal(pyjson_append(&got, json_object_get(function, "arguments"), NULL),
                             STATUS_OK);
            assert_string_equal(got.ptr, rows[i].arguments);
        }
        strbuf_fini(&got);
        result_fini(&r);
    }
    json_decref(tools);
}

#define CALL(parameters) "<tool_call>\n<function=run>\n" parameters "</function>\n</tool_call>"

#define RUN(code) "{\"r\":null,\"c\":null,\"t\":[[\"run\",{\"code\":\"" code "\"}]]}"

static void test_where_a_value_ends(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {CALL("<parameter=code>\nx\n</parameter>\n"), RUN("x"), 0, false, false},
        {CALL("<parameter=code>x</parameter>"), RUN("x"), 0, false, false},
        {CALL("<parameter=code></parameter>"), RUN(""), 0, false, false},
        {CALL("<parameter=code>\n</parameter>"), RUN(""), 0, false, false},
        {CALL("<parameter=code>\n\n\n</parameter>"), RUN("\\n"), 0, false, false},
        {CALL("<parameter=code>\r\n\r\n\r\n</parameter>"), RUN("\\r\\n"), 0, false, false},
        {CALL("<parameter=code>\r</parameter>"), RUN("\\r"), 0, false, false},
        {CALL("<parameter=code>\n  x\t\n </parameter>"), RUN("  x\\t\\n "), 0, false, false},
        {CALL("<parameter=code>\na</parameter>b\n</parameter>\n"), RUN("a</parameter>b"), 0, false,
         false},
        {CALL("<parameter=code>\na</parameter></parameter>\n"), RUN("a</parameter>"), 0, false,
         false},
        {CALL("<parameter=code>\na</parameter>\n<</parameter>\n"), RUN("a</parameter>\\n<"), 0,
         false, false},
        {CALL("<parameter=code>\n<parameter=x>\n</function>\n</parameter>\n"),
         RUN("<parameter=x>\\n</function>"), 0, false, false},
        // No </parameter> that ends it: the last one, and what stands behind it is content.
        {CALL("<parameter=code>\na</parameter>b</parameter> c\n"),
         "{\"r\":null,\"c\":\"c\",\"t\":[[\"run\",{\"code\":\"a</parameter>b\"}]]}", 0, false,
         false},
        // None at all: the next tag at the beginning of a line.
        {CALL("<parameter=code>\na\n"), RUN("a"), 0, false, false},
        {CALL("<parameter=a>\nx\n<parameter=b>\ny\n<parameter=code>\nz <parameter=q>\n"),
         "{\"r\":null,\"c\":null,\"t\":[[\"run\",{\"a\":\"x\",\"b\":\"y\",\"code\":\"z "
         "<parameter=q>\"}]]}",
         0, false, false},
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</function>\nand\n</tool_call>\nso",
         "{\"r\":null,\"c\":\"and\\nso\",\"t\":[[\"run\",{\"code\":\"a\"}]]}", 0, false, false},
        // Nothing that tells: text.
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</tool_call>",
         "{\"r\":null,\"c\":\"<tool_call>\\n<function=run>\\n<parameter=code>\\na\\n</tool_call>\","
         "\"t\":[]}",
         0, false, false},
        // Other control tags in a value are data.
        {CALL("<parameter=code>\n<tool_call></think><think>\n</parameter>\n"),
         RUN("<tool_call></think><think>"), 0, false, false},
        {CALL("<parameter=code>\n\"\\\n\x01\xc3\xa9\n</parameter>\n"),
         RUN("\\\"\\\\\\n\\u0001\xc3\xa9"), 0, false, false},
        {CALL("<parameter= code >\nx\n</parameter>\n"), RUN("x"), 0, false, false},
        {CALL("<parameter=code>\na\n</parameter>\n<parameter=code>\nb\n</parameter>\n"), RUN("b"),
         0, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_calls_with_missing_parts(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"<tool_call><function=now></function></tool_call>",
         "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}]]}", 0, false, false},
        {"<tool_call>\n<function=\"now\">\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}]]}", 0, false, false},
        {"<tool_call>\n<function=now>\n</tool_call>",
         "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}]]}", 0, false, false},
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</parameter>\n</tool_call>", RUN("a"),
         0, false, false},
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</parameter>",
         "{\"r\":null,\"c\":"
         "\"<tool_call>\\n<function=run>\\n<parameter=code>\\na\\n</parameter>\",\"t\":[]}",
         0, false, false},
        // </function> was seen: the call stands, cut or not.
        {"<tool_call>\n<function=now>\n</function>", "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}]]}",
         0, true, false},
        // The model stopped by itself without </parameter>; a cut output is not completed.
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</function>", RUN("a"), 0, false,
         false},
        {"<tool_call>\n<function=run>\n<parameter=code>\na\n</function>",
         "{\"r\":null,\"c\":"
         "\"<tool_call>\\n<function=run>\\n<parameter=code>\\na\\n</function>\",\"t\":[]}",
         0, true, false},
        {"<tool_call>\n<function=now>\n</function>\n<tool_call>\n<function=now>\n</function>",
         "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}],[\"now\",{}]]}", 0, false, false},
        {"<tool_call>\n<function=now>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}],[\"now\",{}]]}", 0, false, false},
        {"<function=now>\n</function>", "{\"r\":null,\"c\":null,\"t\":[[\"now\",{}]]}", 0, false,
         false},
        {"So:\n<function=now>\n</function>\n</tool_call>\nDone.",
         "{\"r\":null,\"c\":\"So:\\nDone.\",\"t\":[[\"now\",{}]]}", 0, false, false},
        {"<function=nope>\n</function>",
         "{\"r\":null,\"c\":\"<function=nope>\\n</function>\",\"t\":[]}", 0, false, false},
        {"a <function=now>\n</function>",
         "{\"r\":null,\"c\":\"a <function=now>\\n</function>\",\"t\":[]}", 0, false, false},
        {"<function=n\n<function=now>\n</function>",
         "{\"r\":null,\"c\":\"<function=n\",\"t\":[[\"now\",{}]]}", 0, false, false},
        {"<function=now</think>", "{\"r\":null,\"c\":\"<function=now</think>\",\"t\":[]}", 0, false,
         false},
        {"<function=no", "{\"r\":null,\"c\":\"<function=no\",\"t\":[]}", 0, true, false},
        // No call at all.
        {"<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
         "{\"r\":null,\"c\":\"<tool_call>\\n{\\\"name\\\": \\\"now\\\"}\\n</tool_call>\",\"t\":[]}",
         0, false, false},
        {"<tool_call>\n<function=>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":\"<tool_call>\\n<function=>\\n</function>\\n</tool_call>\",\"t\":[]}",
         0, false, false},
        {"<tool_call><tool_call>\n<function=now>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":\"<tool_call>\",\"t\":[[\"now\",{}]]}", 0, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_other_text_inside_a_call(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\nThanks!\n"
         "</function>\n</tool_call>",
         "{\"r\":null,\"c\":\"Thanks!\",\"t\":[[\"get_weather\",{\"city\":\"Bonn\"}]]}", 0, false,
         false},
        // A required parameter is missing: half a call.
        {"<tool_call>\n<function=get_weather>\n<param=city>\nBonn\n</param>\n</function>\n</"
         "tool_call>",
         "{\"r\":null,\"c\":\"<tool_call>\\n<function=get_weather>\\n<param=city>\\nBonn\\n</"
         "param>\\n"
         "</function>\\n</tool_call>\",\"t\":[]}",
         0, false, false},
        {"A\n\n<tool_call>\n<function=now>\n</function>\n</"
         "tool_call>\n\nB\n<tool_call>\n<function=now>"
         "\n</function>\n</tool_call>\n",
         "{\"r\":null,\"c\":\"A\\n\\nB\",\"t\":[[\"now\",{}],[\"now\",{}]]}", 0, false, false},
        {"<tool_call>\n<function=now>\n</function>\nB\n</tool_call>\nC",
         "{\"r\":null,\"c\":\"B\\nC\",\"t\":[[\"now\",{}]]}", 0, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_c28_text_arguments_stream_as_they_are_made(void **state) {
    UNUSED(state);
    json_t *tools = tools_make();
    static const char *const heads[] = {
        "<tool_call>\n<function=run>\n<parameter=code>\n",         // declared a string
        "<tool_call>\n<function=get_weather>\n<parameter=note>\n", // a string or null
        "<tool_call>\n<function=unknown>\n<parameter=body>\n",     // not declared
    };
    for (size_t h = 0; h < COUNT_OF(heads); h++) {
        Parser *p;
        ArgsCounter c = {0};
        ParserOptions options = {.tools = tools, .has_spelled_tags = true};
        assert_int_equal(parser_open(&p, &options, NULL), STATUS_OK);
        StrView head = str_view(heads[h], strlen(heads[h]));
        assert_int_equal(parser_push(p, head, false, count_args, &c, NULL), STATUS_OK);
        for (int line = 0; line < 300; line++) {
            size_t before = c.n_args;
            assert_int_equal(parser_push(p, STR("    if (a < b && c) x = \"</b>\";\n"), false,
                                         count_args, &c, NULL),
                             STATUS_OK);
            assert_true(c.n_args - before >= 30); // all but the line feed that may be the frame's
        }
        assert_int_equal(parser_push(p, STR("</parameter>\n</function>\n</tool_call>"), false,
                                     count_args, &c, NULL),
                         STATUS_OK);
        assert_int_equal(parser_finish(p, false, count_args, &c, NULL), STATUS_OK);
        json_t *message, *read = json_loadb(c.args.ptr, c.args.len, 0, NULL);
        assert_int_equal(parser_n_calls(p), 1);
        assert_int_equal(parser_message(p, &message, NULL), STATUS_OK);
        const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
        assert_true(
            json_equal(read, json_object_get(json_object_get(call, "function"), "arguments")));
        json_decref(read);
        json_decref(message);
        strbuf_fini(&c.args);
        parser_close(p);
    }
    json_decref(tools);
}

static void test_dropped_call_is_announced_and_comes_as_text(void **state) {
    UNUSED(state);
    json_t *tools = tools_make();
    Result r;
    StrView text =
        STR("<tool_call>\n<function=run>\n<parameter=code>\nabc</tool_call>\n<tool_call>\n"
            "<function=now>\n</function>\n</tool_call>");
    run_all(&r, text, (ParserOptions){.tools = tools}, false, true, 7);
    assert_string_equal(r.events.ptr,
                        "\n[begin 0 run]\n[args 0 run]{\"code\": \"abc\n[drop 0 run]\n[content -1 ]"
                        "<tool_call>\n<function=run>\n<parameter=code>\nabc</tool_call>"
                        "\n[begin 1 now]\n[args 1 now]{}\n[end 1 now]");
    result_fini(&r);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c18_python_literals_by_schema),
        cmocka_unit_test(test_c18_half_a_call_is_text),
        cmocka_unit_test(test_c20_call_inside_reasoning),
        cmocka_unit_test(test_c22_value_that_does_not_fit_stays_text),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_where_a_value_ends),
        cmocka_unit_test(test_calls_with_missing_parts),
        cmocka_unit_test(test_other_text_inside_a_call),
        cmocka_unit_test(test_c28_text_arguments_stream_as_they_are_made),
        cmocka_unit_test(test_dropped_call_is_announced_and_comes_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
