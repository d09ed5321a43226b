// SPDX-License-Identifier: Apache-2.0
/* test_parse_text.c - reasoning, content and what is held back between them. */
#include "parse_run.h"

static void test_c16_text_before_a_call_is_content(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"Let me look.\n<tool_call>\n<function=ls>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":\"Let me look.\",\"t\":[[\"ls\",{}]]}", PARSE_START_CONTENT, false,
         false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_c36_think_tags_do_not_reach_the_content(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"I count.\nTime is up.\n</think>\n\n</think>\n\nNine.",
         "{\"r\":\"I count.\\nTime is up.\",\"c\":\"Nine.\",\"t\":[]}", PARSE_START_REASONING,
         false, false},
        {"I count.\n</think>\n\n<think>\nMore.\n</think>\n\nNine.",
         "{\"r\":\"I count.\\nMore.\",\"c\":\"Nine.\",\"t\":[]}", PARSE_START_REASONING, false,
         false},
        {"<think>\nHm.\n</think>\n\nNine.", "{\"r\":\"Hm.\",\"c\":\"Nine.\",\"t\":[]}",
         PARSE_START_CONTENT, false, false},
        {"One\n</think>\n\n<think>\n", "{\"r\":\"One\",\"c\":null,\"t\":[]}", PARSE_START_REASONING,
         true, false},
        // An answer that speaks of the tags keeps them.
        {"Use <think> and </think>.", "{\"r\":null,\"c\":\"Use <think> and </think>.\",\"t\":[]}",
         PARSE_START_CONTENT, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_c34_c36_budget_sees_reopened_reasoning(void **state) {
    UNUSED(state);
    Parser *p;
    ParserOptions options = {.start = PARSE_START_REASONING};
    assert_int_equal(parser_open(&p, &options, NULL), STATUS_OK);
    assert_true(parser_is_thinking(p));
    assert_int_equal(parser_push(p, STR("</think>"), true, NULL, NULL, NULL), STATUS_OK);
    assert_false(parser_is_thinking(p));
    assert_int_equal(parser_push(p, STR("<think>"), true, NULL, NULL, NULL), STATUS_OK);
    assert_true(parser_is_thinking(p));
    parser_close(p);
}

static void test_white_space_belongs_to_the_frame(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"", "{\"r\":null,\"c\":null,\"t\":[]}", PARSE_START_CONTENT, false, false},
        {"", "{\"r\":\"\",\"c\":null,\"t\":[]}", PARSE_START_REASONING, false, false},
        {"\n</think>\n\n42", "{\"r\":\"\",\"c\":\"42\",\"t\":[]}", PARSE_START_REASONING, false,
         false},
        {" \n \t", "{\"r\":\"\",\"c\":null,\"t\":[]}", PARSE_START_REASONING, false, false},
        {"\n\n  a \n\n b \n", "{\"r\":null,\"c\":\"  a \\n\\n b\",\"t\":[]}", PARSE_START_CONTENT,
         false, false},
        {"\n\n  a \n\n b \n", "{\"r\":null,\"c\":\"\\n\\n  a \\n\\n b\",\"t\":[]}",
         PARSE_START_CONTINUE, false, false},
        {"a\n\n</think>\n\n\n  b", "{\"r\":\"a\",\"c\":\"  b\",\"t\":[]}", PARSE_START_REASONING,
         false, false},
        {"a \n", "{\"r\":\"a \\n\",\"c\":null,\"t\":[]}", PARSE_START_REASONING, true, false},
        {"<think>\n\n  a</think>b", "{\"r\":\"a\",\"c\":\"b\",\"t\":[]}", PARSE_START_REASONING,
         false, false},
        {"a<think>b", "{\"r\":\"a<think>b\",\"c\":null,\"t\":[]}", PARSE_START_REASONING, false,
         false},
        {"<think><think>b", "{\"r\":\"<think>b\",\"c\":null,\"t\":[]}", PARSE_START_REASONING,
         false, false},
        {"a</tool_call>b<tool_call>c", "{\"r\":null,\"c\":\"a</tool_call>b<tool_call>c\",\"t\":[]}",
         PARSE_START_CONTENT, false, false},
        {"a < b </thin", "{\"r\":null,\"c\":\"a < b </thin\",\"t\":[]}", PARSE_START_CONTENT, true,
         false},
        {"<tool_call>\n<function=now>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":"
         "\"<tool_call>\\n<function=now>\\n</function>\\n</tool_call>\",\"t\":[]}",
         PARSE_START_CONTENT, false, true},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_spelled_tags_are_text_when_ids_decide(void **state) {
    UNUSED(state);
    json_t *tools = tools_make();
    ParserOptions options = {.tools = tools, .start = PARSE_START_REASONING};
    Parser *p;
    json_t *message;
    assert_int_equal(parser_open(&p, &options, NULL), STATUS_OK);
    StrView talk = STR("see </think> and <tool_call>\n<function=now>\n</function>\n</tool_call>");
    assert_int_equal(parser_push(p, talk, false, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(parser_push(p, STR("</think>"), true, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(parser_push(p, STR("<|box_start|>"), true, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(parser_push(p, talk, false, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(parser_finish(p, false, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(parser_message(p, &message, NULL), STATUS_OK);
    assert_true(str_equal(json_text(json_object_get(message, "reasoning_content")), talk));
    StrView content = json_text(json_object_get(message, "content"));
    assert_true(str_starts(content, STR("<|box_start|>see </think>")) && str_ends(content, talk));
    // The line in the middle that begins with a known function is a call only without its tag.
    assert_int_equal(parser_n_calls(p), 0);
    json_decref(message);
    parser_close(p);
    json_decref(tools);
}

static void test_bad_utf8_becomes_replacement_characters(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"a\xff"
         "b\xe2\x82"
         "c\xf0\x9f\x98\x80\xc3",
         "{\"r\":null,\"c\":\"a\xef\xbf\xbd"
         "b\xef\xbf\xbd"
         "c\xf0\x9f\x98\x80\xef\xbf\xbd\",\"t\":[]}",
         PARSE_START_CONTENT, false, false},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void test_tool_choice_none_keeps_calls_as_text(void **state) {
    UNUSED(state);
    json_t *tools = tools_make();
    Result r;
    StrView text = STR("<function=now>\n<tool_call>\n<function=now>\n</function>\n</tool_call>");
    run_all(&r, text, (ParserOptions){.tools = tools, .is_tool_choice_none = true}, false, true, 5);
    assert_true(str_equal(json_text(json_object_get(r.message, "content")), text));
    result_fini(&r);
    json_decref(tools);
}

/* The text of the content so far. */
static void keep_content(void *ctx, const ParseEvent *e) {
    assert_int_equal(e->kind, PARSE_CONTENT);
    strbuf_append_view(ctx, e->text);
}

static void test_c32_text_is_held_back_only_while_it_may_be_a_tag(void **state) {
    UNUSED(state);
    static const struct {
        const char *piece, *so_far;
    } rows[] = {{"a <tool", "a"},
                {"box> <", "a <toolbox>"},
                {"/think", "a <toolbox>"},
                {"s", "a <toolbox> </thinks"},
                {"<<", "a <toolbox> </thinks<"},
                {" \n", "a <toolbox> </thinks<<"},
                {"z", "a <toolbox> </thinks<< \nz"}};
    json_t *tools = tools_make();
    Parser *p;
    StrBuf got = {0};
    ParserOptions options = {.tools = tools, .has_spelled_tags = true};
    assert_int_equal(parser_open(&p, &options, NULL), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        StrView piece = str_view(rows[i].piece, strlen(rows[i].piece));
        assert_int_equal(parser_push(p, piece, false, keep_content, &got, NULL), STATUS_OK);
        assert_string_equal(got.ptr, rows[i].so_far);
    }
    strbuf_fini(&got);
    parser_close(p);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c16_text_before_a_call_is_content),
        cmocka_unit_test(test_c36_think_tags_do_not_reach_the_content),
        cmocka_unit_test(test_c34_c36_budget_sees_reopened_reasoning),
        cmocka_unit_test(test_white_space_belongs_to_the_frame),
        cmocka_unit_test(test_spelled_tags_are_text_when_ids_decide),
        cmocka_unit_test(test_bad_utf8_becomes_replacement_characters),
        cmocka_unit_test(test_tool_choice_none_keeps_calls_as_text),
        cmocka_unit_test(test_c32_text_is_held_back_only_while_it_may_be_a_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
