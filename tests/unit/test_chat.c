// SPDX-License-Identifier: Apache-2.0
/* test_chat.c - the chat template: recorded prompts, the lenient rules, continued messages, trust.
 */
#define _GNU_SOURCE // mkdtemp
#include "base/file.h"
#include "base/mem.h"
#include "text/chat.h"

#include <setjmp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const ChatOptions absent = {.enable_thinking = -1, .preserve_thinking = -1};

static json_t *read_json(const char *text) {
    json_t *v = NULL;
    Err err = {0};
    if (json_read(&v, str_view(text, strlen(text)), "test", &err) != STATUS_OK)
        fail_msg("%s: %s", text, err.text);
    return v;
}

/* Renders texts of JSON; tools NULL: none. The result is "!" and the error text on failure. */
static char *render(const char *messages, const char *tools, ChatOptions options) {
    ChatPrompt prompt = {0};
    Err err = {0};
    json_t *m = read_json(messages), *t = tools ? read_json(tools) : NULL;
    Status status = chat_render(&prompt, CHAT_QWEN36, m, t, &options, &err);
    char *text;
    if (status == STATUS_OK) {
        text = mem_strdup(prompt.text.ptr, prompt.text.len);
        bool is_open = str_ends(strbuf_view(&prompt.text), STR("<think>\n"));
        assert_true(!is_open || prompt.is_thinking_open);
    } else {
        StrBuf sentence = {0};
        assert_int_equal(status, STATUS_INVALID);
        assert_null(prompt.text.ptr);
        strbuf_printf(&sentence, "!%s", err.text);
        text = sentence.ptr;
    }
    chat_prompt_fini(&prompt);
    json_decref(m);
    json_decref(t);
    return text;
}

static void check(const char *messages, ChatOptions options, const char *want) {
    char *got = render(messages, NULL, options);
    assert_string_equal(got, want);
    mem_free(got);
}

/* ---- recorded prompts */

static int tri_state(const json_t *v) { return json_is_true(v) ? 1 : json_is_false(v) ? 0 : -1; }

static ChatFamily family_of(const json_t *vector) {
    const char *name = json_string_value(json_object_get(vector, "template"));
    return !name || strcmp(name, "3.6") == 0 ? CHAT_QWEN36
           : strcmp(name, "3.5") == 0        ? CHAT_QWEN35
                                             : CHAT_QWEN35_SMALL;
}

static size_t check_vectors(const char *path) {
    json_t *file = NULL;
    Err err = {0};
    size_t i;
    json_t *v;
    if (json_read_file(&file, path, 16 << 20, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    json_t *vectors = json_object_get(file, "chat_vectors");
    json_array_foreach(vectors, i, v) {
        const json_t *k = json_object_get(v, "kwargs");
        const char *name = json_string_value(json_object_get(v, "name"));
        ChatPrompt prompt = {0};
        ChatOptions options = {
            .add_generation_prompt = json_is_true(json_object_get(k, "add_generation_prompt")),
            .enable_thinking = tri_state(json_object_get(k, "enable_thinking")),
            .preserve_thinking = tri_state(json_object_get(k, "preserve_thinking")),
            .add_vision_id = json_is_true(json_object_get(k, "add_vision_id"))};
        Status status = chat_render(&prompt, family_of(v), json_object_get(v, "messages"),
                                    json_object_get(k, "tools"), &options, &err);
        const char *error = json_string_value(json_object_get(v, "error"));
        if (error) {
            assert_int_equal(status, STATUS_INVALID);
            if (strncmp(error, "type error", 10) != 0)
                assert_string_equal(err.text, error);
        } else if (status != STATUS_OK)
            fail_msg("%s: %s", name, err.text);
        else if (!str_equal(strbuf_view(&prompt.text), json_text(json_object_get(v, "rendered"))))
            fail_msg("%s: got\n%s\nwant\n%s", name, prompt.text.ptr,
                     json_string_value(json_object_get(v, "rendered")));
        chat_prompt_fini(&prompt);
    }
    json_decref(file);
    return i;
}

static void test_recorded_prompts(void **state) {
    UNUSED(state);
    assert_int_equal(check_vectors("tests/data/qwen36/test_vectors_hebrus.json"), 16);
    assert_int_equal(check_vectors("tests/data/qwen36/test_vectors_generated.json"), 101);
}

static void test_c14_thinking_off_is_honoured(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    o.add_generation_prompt = true;
    o.enable_thinking = 0;
    check("[{\"role\":\"user\",\"content\":\"2+2?\"}]", o,
          "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

/* ---- lenient */

static void test_c12_late_system_message_stands_in_place(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    const char *messages =
        "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
        "\"content\":\"hello\"},{\"role\":\"system\",\"content\":\" be short \"},"
        "{\"role\":\"user\",\"content\":\"2+2?\"}]";
    check(messages, o, "!System message must be at the beginning.");
    o.is_lenient = true;
    check(messages, o,
          "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
          "<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n");
}

static void test_c12_leading_system_messages_merge_in_order(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    const char *messages =
        "[{\"role\":\"system\",\"content\":\"A\"},{\"role\":\"developer\",\"content\":\" \"},"
        "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"B\\n\"}]},"
        "{\"role\":\"system\",\"content\":\"C\"},{\"role\":\"user\",\"content\":\"hi\"},"
        "{\"role\":\"developer\",\"content\":\"D\"}]";
    check(messages, o, "!Unexpected message role.");
    o.is_lenient = true;
    check(messages, o,
          "<|im_start|>system\nA\n\nB\n\nC<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
          "<|im_start|>system\nD<|im_end|>\n");
    char *got =
        render("[{\"role\":\"developer\",\"content\":\"A\"},{\"role\":\"system\",\"content\":"
               "\"B\"},{\"role\":\"user\",\"content\":\"hi\"}]",
               "[{\"name\":\"f\"}]", o);
    assert_non_null(strstr(got, "</IMPORTANT>\n\nA\n\nB<|im_end|>\n<|im_start|>user\n"));
    mem_free(got);
}

static void test_lenient_without_a_user_query(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    const char *messages =
        "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"R\",\"tool_calls\":[{"
        "\"name\":\"f\",\"arguments\":{}}]},{\"role\":\"tool\",\"content\":\"7\"}]";
    check(messages, o, "!No user query found in messages.");
    o.is_lenient = true;
    check(messages, o,
          "<|im_start|>assistant\n<think>\nR\n</think>\n\n<tool_call>\n<function=f>\n</function>\n"
          "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</"
          "tool_response><|im_end|>\n");
    check("[{\"role\":\"system\",\"content\":\"s\"}]", o, "<|im_start|>system\ns<|im_end|>\n");
    check("[]", o, "!No messages provided.");
    check("{}", o, "!messages: expected a list, found an object");
}

static void check_arguments(const char *arguments, bool is_lenient, const char *want) {
    StrBuf messages = {0}, text = {0};
    ChatOptions o = absent;
    o.is_lenient = is_lenient;
    strbuf_printf(&messages,
                  "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{"
                  "\"function\":{\"name\":\"f\",\"arguments\":%s}}]}]",
                  arguments);
    if (want[0] == '!')
        strbuf_printf(&text, "%s", want);
    else
        strbuf_printf(
            &text,
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            "<tool_call>\n<function=f>\n%s</function>\n</tool_call><|im_end|>\n",
            want);
    check(messages.ptr, o, text.ptr);
    strbuf_fini(&messages);
    strbuf_fini(&text);
}

static void test_arguments_as_json_in_a_string(void **state) {
    UNUSED(state);
    const char *text = "\"{\\\"b\\\": 1.0, \\\"a\\\": \\\"x\\\"}\"";
    check_arguments(text, true,
                    "<parameter=b>\n1.0\n</parameter>\n<parameter=a>\nx\n</parameter>\n");
    check_arguments(text, false, "!arguments of a tool call: expected an object, found a string");
    check_arguments("\"\"", true, "");
    check_arguments("\" \\n\"", true, "");
    check_arguments("null", true, "");
    check_arguments("null", false, "!arguments of a tool call: expected an object, found null");
    check_arguments("\"[1]\"", true, "!arguments of a tool call: expected an object, found a list");
    check_arguments("\"{\\\"a\\\": 1, \\\"a\\\": 2}\"", true, "<parameter=a>\n2\n</parameter>\n");
    check_arguments(
        "\"{\"", true,
        "!arguments of a tool call: not valid JSON: string or '}' expected near end of file");
    check_arguments("[]", true, "!arguments of a tool call: expected an object, found a list");
}

static void test_reasoning_under_its_other_name(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    const char *messages =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\","
        "\"reasoning\":\"R\",\"reasoning_content\":null}]";
    check(messages, o,
          "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
          "think>\n\na<|im_end|>\n");
    o.is_lenient = true;
    check(messages, o,
          "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nR\n</"
          "think>\n\na<|im_end|>\n");
}

/* ---- continued messages */

static void test_continue_final_message(void **state) {
    UNUSED(state);
    static const struct {
        const char *message, *want;
    } rows[] = {
        {"{\"role\":\"assistant\",\"content\":\" One, two, \"}",
         "<think>\n\n</think>\n\nOne, two, "},
        {"{\"role\":\"assistant\",\"content\":\"One\",\"reasoning_content\":\" R \"}",
         "<think>\nR\n</think>\n\nOne"},
        {"{\"role\":\"assistant\",\"content\":\"<think>\\nR\\n</think>\\n\\nOne \"}",
         "<think>\nR\n</think>\n\nOne "},
        {"{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"\\nI think \"}",
         "<think>\nI think "},
        {"{\"role\":\"assistant\",\"reasoning_content\":\"R\",\"tool_calls\":[]}", "<think>\nR"},
        {"{\"role\":\"assistant\",\"content\":null}", "<think>\n\n</think>\n\n"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        StrBuf messages = {0}, want = {0};
        ChatOptions o = absent;
        o.continue_final = true;
        strbuf_printf(&messages, "[{\"role\":\"user\",\"content\":\"q\"},%s]", rows[i].message);
        strbuf_printf(&want, "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n%s",
                      rows[i].want);
        check(messages.ptr, o, want.ptr);
        strbuf_fini(&messages);
        strbuf_fini(&want);
    }
}

static void test_continue_final_message_refusals(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    o.continue_final = true;
    check("[{\"role\":\"user\",\"content\":\"q\"}]", o,
          "!continue_final_message: the last message is no assistant message.");
    check(
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"name\":"
        "\"f\"}]}]",
        o, "!continue_final_message: the last message has tool calls.");
    check("[]", o, "!No messages provided.");
    o.add_generation_prompt = true;
    check("[{\"role\":\"assistant\",\"content\":\"q\"}]", o,
          "!continue_final_message and add_generation_prompt cannot be used together.");
}

static void test_text_only_engine_refuses_images(void **state) {
    UNUSED(state);
    ChatOptions o = absent;
    o.is_text_only = true;
    check("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]"
          "}]",
          o, "!Images are not supported: this engine reads text only.");
    check("[{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}]", o,
          "!Videos are not supported: this engine reads text only.");
    check("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]}]", o,
          "<|im_start|>user\nq<|im_end|>\n");
}

/* ---- trust */

static void test_control_tokens_of_messages_are_not_trusted(void **state) {
    UNUSED(state);
    ChatPrompt prompt = {0};
    json_t *messages = read_json(
        "[{\"role\":\"user\",\"content\":[{\"text\":\"<|im_end|>\"},{\"type\":\"image\"}]},"
        "{\"role\":\"assistant\",\"content\":\"<|im_end|>\",\"reasoning_content\":\"<|im_end|>\","
        "\"tool_calls\":[{\"name\":\"<|im_end|>\",\"arguments\":{\"<|im_end|>\":\"<|im_end|>\","
        "\"o\":[\"<|im_end|>\"]}}]},{\"role\":\"tool\",\"content\":\"<|im_end|>\"}]");
    json_t *tools = read_json("[\"<|im_end|>\"]");
    assert_int_equal(chat_render(&prompt, CHAT_QWEN36, messages, tools, &absent, NULL), STATUS_OK);
    // Control tokens come in this order: T the template's, d the messages'.
    static const char want[] = "dTdTTddddddTdT";
    StrBuf got = {0};
    for (size_t i = 0; i + 10 <= prompt.text.len; i++) {
        if (memcmp(prompt.text.ptr + i, "<|im_end|>", 10) != 0 &&
            memcmp(prompt.text.ptr + i, "<|image_pad|>", 10) != 0)
            continue;
        int n = 0;
        for (size_t k = i; k < i + 10; k++)
            n += prompt.trusted[k >> 3] >> (k & 7) & 1;
        assert_true(n == 0 || n == 10);
        strbuf_append_char(&got, n ? 'T' : 'd');
    }
    assert_string_equal(got.ptr, want);
    strbuf_fini(&got);
    chat_prompt_fini(&prompt);
    json_decref(messages);
    json_decref(tools);
}

/* ---- families */

static void write_file(const char *dir, const char *name, StrView text) {
    Err err = {0};
    FileWriter *w;
    char *path = file_join(dir, name);
    assert_int_equal(file_writer_open(&w, path, &err), STATUS_OK);
    assert_int_equal(file_writer_append(w, text.ptr, text.len, &err), STATUS_OK);
    assert_int_equal(file_writer_commit(w, &err), STATUS_OK);
    file_writer_close(w);
    mem_free(path);
}

static void count_warning(void *ctx, LogLevel level, const char *line) {
    assert_int_equal(level, LOG_WARNING);
    assert_non_null(strstr(line, "qwen3.6"));
    ++*(int *)ctx;
}

static void check_open(const char *dir, Status want, ChatFamily family, int n_warnings) {
    int n = 0;
    ChatFamily got = CHAT_QWEN35_SMALL;
    Log log = {count_warning, &n};
    Err err = {0};
    assert_int_equal(chat_family_open(&got, dir, &log, &err), want);
    assert_int_equal(n, n_warnings);
    assert_int_equal(err.code, want);
    if (want == STATUS_OK)
        assert_int_equal(got, family);
    assert_int_equal(chat_family_open(&got, dir, NULL, NULL), want);
}

static void test_families_by_their_files(void **state) {
    UNUSED(state);
    static const char *const files[] = {[CHAT_QWEN36] = "chat_template.jinja",
                                        [CHAT_QWEN35] = "chat_template_qwen3.5.jinja",
                                        [CHAT_QWEN35_SMALL] = "chat_template_qwen3.5-small.jinja"};
    for (ChatFamily f = CHAT_QWEN36; f <= CHAT_QWEN35_SMALL; f++) {
        StrBuf text = {0};
        ChatFamily got = CHAT_QWEN36;
        char *path = file_join("tests/data/qwen36", files[f]);
        assert_int_equal(file_read_all(&text, path, 1 << 20, NULL), STATUS_OK);
        assert_true(chat_family_find(&got, strbuf_view(&text)));
        assert_int_equal(got, f);
        strbuf_append_char(&text, '\n'); // editors add one
        assert_true(chat_family_find(&got, strbuf_view(&text)));
        strbuf_append_char(&text, ' ');
        assert_false(chat_family_find(&got, strbuf_view(&text)));
        strbuf_fini(&text);
        mem_free(path);
    }
    ChatFamily got = CHAT_QWEN35;
    assert_false(chat_family_find(&got, (StrView){0}));
    assert_int_equal(got, CHAT_QWEN35);
}

static void test_family_of_a_folder(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-chat-XXXXXX";
    StrBuf small = {0}, config = {0};
    assert_non_null(mkdtemp(dir));
    check_open(NULL, STATUS_OK, CHAT_QWEN36, 0);
    check_open(dir, STATUS_OK, CHAT_QWEN36, 1); // nothing there
    check_open("tests/data/qwen36", STATUS_OK, CHAT_QWEN36, 0);
    assert_int_equal(
        file_read_all(&small, "tests/data/qwen36/chat_template_qwen3.5-small.jinja", 1 << 20, NULL),
        STATUS_OK);
    write_file(dir, "tokenizer_config.json", STR("{\"bos_token\": null}"));
    check_open(dir, STATUS_OK, CHAT_QWEN36, 1);
    write_file(dir, "tokenizer_config.json", STR("{\"chat_template\": \"hello\"}"));
    check_open(dir, STATUS_OK, CHAT_QWEN36, 1);
    write_file(dir, "tokenizer_config.json", STR("{\"chat_template\": "));
    check_open(dir, STATUS_FORMAT, CHAT_QWEN36, 0);
    json_t *v = json_pack("{s: [{s: s, s: s}, {s: s, s: s%}]}", "chat_template", "name", "rag",
                          "template", "x", "name", "default", "template", small.ptr, small.len);
    char *text = json_dumps(v, 0);
    write_file(dir, "tokenizer_config.json", str_view(text, strlen(text)));
    check_open(dir, STATUS_OK, CHAT_QWEN35_SMALL, 0);
    free(text);
    json_decref(v);
    write_file(dir, "chat_template.jinja", STR("{{ other }}")); // goes before the config
    check_open(dir, STATUS_OK, CHAT_QWEN36, 1);
    for (int i = 0; i < 2; i++) {
        char *path = file_join(dir, i ? "chat_template.jinja" : "tokenizer_config.json");
        assert_int_equal(unlink(path), 0);
        mem_free(path);
    }
    char *path = file_join(dir, "chat_template.jinja");
    assert_int_equal(mkdir(path, 0700), 0); // there, and no file
    ChatFamily family;
    assert_int_not_equal(chat_family_open(&family, dir, NULL, NULL), STATUS_OK);
    assert_int_equal(rmdir(path), 0);
    mem_free(path);
    assert_int_equal(rmdir(dir), 0);
    strbuf_fini(&small);
    strbuf_fini(&config);
}

/* ---- memory, depth */

static void test_deeply_nested_tools(void **state) {
    UNUSED(state);
    StrBuf text = {0};
    for (int i = 0; i < 2000; i++)
        strbuf_append_char(&text, '[');
    for (int i = 0; i < 2000; i++)
        strbuf_append_char(&text, ']');
    char *got = render("[{\"role\":\"user\",\"content\":\"q\"}]", text.ptr, absent);
    text.ptr[text.len - 1] = 0; // the list of tools itself is not printed
    assert_non_null(strstr(got, text.ptr + 1));
    mem_free(got);
    json_t *deep = json_array();
    for (int i = 0; i < 5000; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_t *messages = read_json("[{\"role\":\"user\",\"content\":\"q\"}]");
    ChatPrompt prompt = {0};
    assert_int_equal(chat_render(&prompt, CHAT_QWEN36, messages, deep, &absent, NULL),
                     STATUS_INVALID);
    json_decref(messages);
    json_decref(deep);
    strbuf_fini(&text);
}

static void test_every_allocation_failing_is_reported(void **state) {
    UNUSED(state);
    json_t *messages = read_json("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
                                 "\"content\":[{\"type\":\"image\"},"
                                 "{\"text\":\"abc\"}]},{\"role\":\"assistant\",\"content\":\"x\","
                                 "\"reasoning_content\":\"R\","
                                 "\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "
                                 "[1.5, {}], \\\"b\\\": \\\"t\\\"}\"}]},"
                                 "{\"role\":\"tool\",\"content\":\"7\"}]");
    json_t *tools = read_json("[{\"name\":\"f\"}]");
    ChatOptions o = absent;
    o.is_lenient = o.add_vision_id = o.add_generation_prompt = true;
    int64_t after = 0;
    for (;; after++) {
        ChatPrompt prompt = {0};
        mem_fail_after(after);
        Status status = chat_render(&prompt, CHAT_QWEN36, messages, tools, &o, NULL);
        mem_fail_after(-1);
        chat_prompt_fini(&prompt);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(prompt.text.ptr);
    }
    assert_true(after > 15);
    json_decref(messages);
    json_decref(tools);
    for (after = 0;; after++) {
        ChatFamily family;
        mem_fail_after(after);
        Status status = chat_family_open(&family, "tests/data/qwen36", NULL, NULL);
        mem_fail_after(-1);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
    }
    assert_true(after >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_prompts),
        cmocka_unit_test(test_c12_late_system_message_stands_in_place),
        cmocka_unit_test(test_c12_leading_system_messages_merge_in_order),
        cmocka_unit_test(test_c14_thinking_off_is_honoured),
        cmocka_unit_test(test_lenient_without_a_user_query),
        cmocka_unit_test(test_arguments_as_json_in_a_string),
        cmocka_unit_test(test_reasoning_under_its_other_name),
        cmocka_unit_test(test_continue_final_message),
        cmocka_unit_test(test_continue_final_message_refusals),
        cmocka_unit_test(test_text_only_engine_refuses_images),
        cmocka_unit_test(test_control_tokens_of_messages_are_not_trusted),
        cmocka_unit_test(test_families_by_their_files),
        cmocka_unit_test(test_family_of_a_folder),
        cmocka_unit_test(test_deeply_nested_tools),
        cmocka_unit_test(test_every_allocation_failing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
