// SPDX-License-Identifier: Apache-2.0
/* test_chat_ids.c - from messages to token ids: template and tokenizer together against the
 * recorded ids, with the trusted bits and without.
 *
 * Path:     make unit.  Needs build/data (tools/unpack_tokenizer.py). */
#include "base/json.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <setjmp.h>

#include <cmocka.h>

enum { FAMILY_ROWS = 248320 };

static Tokenizer *family;

static int set_up(void **state) {
    UNUSED(state);
    Err err = {0};
    if (tokenizer_open(&family, "build/data/qwen36", FAMILY_ROWS, NULL, &err) == STATUS_OK)
        return 0;
    print_error("%s\n(python3 tools/unpack_tokenizer.py makes build/data)\n", err.text);
    return 1;
}

static int tear_down(void **state) {
    UNUSED(state);
    tokenizer_close(family);
    return 0;
}

static int tri_state(const json_t *v) { return json_is_true(v) ? 1 : json_is_false(v) ? 0 : -1; }

static void render(ChatPrompt *out, const json_t *vector) {
    const json_t *k = json_object_get(vector, "kwargs");
    const char *name = json_string_value(json_object_get(vector, "template"));
    ChatFamily f = !name || !strcmp(name, "3.6") ? CHAT_QWEN36
                   : !strcmp(name, "3.5")        ? CHAT_QWEN35
                                                 : CHAT_QWEN35_SMALL;
    ChatOptions options = {.add_generation_prompt =
                               json_is_true(json_object_get(k, "add_generation_prompt")),
                           .enable_thinking = tri_state(json_object_get(k, "enable_thinking")),
                           .preserve_thinking = tri_state(json_object_get(k, "preserve_thinking")),
                           .add_vision_id = json_is_true(json_object_get(k, "add_vision_id"))};
    assert_int_equal(chat_render(out, f, json_object_get(vector, "messages"),
                                 json_object_get(k, "tools"), &options, NULL),
                     STATUS_OK);
}

static bool is_equal(const TokenIds *ids, const json_t *want) {
    bool is_same = ids->n == json_array_size(want);
    for (size_t i = 0; i < ids->n && is_same; i++)
        is_same = ids->ids[i] == json_integer_value(json_array_get(want, i));
    return is_same;
}

/* Vectors whose messages spell added tokens out: the reference takes them for tokens. */
static bool has_literal_tokens(const char *name) {
    static const char *const names[] = {"literal_controls_in_user_content_reference",
                                        "user_control_tokens", "reasoning_open_only",
                                        "reasoning_empty_string", "tool_only_after_user_wrapped"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static void check_file(const char *path, size_t *n_checked) {
    json_t *file = NULL;
    Err err = {0};
    size_t i;
    json_t *v;
    assert_int_equal(json_read_file(&file, path, 16 << 20, &err), STATUS_OK);
    json_array_foreach(json_object_get(file, "chat_vectors"), i, v) {
        const char *name = json_string_value(json_object_get(v, "name"));
        const json_t *want = json_object_get(v, "token_ids");
        ChatPrompt prompt = {0};
        TokenIds all = {0}, safe = {0};
        if (!want)
            continue;
        render(&prompt, v);
        StrView text = strbuf_view(&prompt.text);
        assert_int_equal(tokenizer_encode(family, &all, text, NULL, NULL), STATUS_OK);
        assert_int_equal(tokenizer_encode(family, &safe, text, prompt.trusted, NULL), STATUS_OK);
        if (!is_equal(&all, want))
            fail_msg("%s: other ids than recorded", name);
        if (is_equal(&safe, want) == has_literal_tokens(name))
            fail_msg("%s: the trusted bits %s", name,
                     has_literal_tokens(name) ? "let a message's token through"
                                              : "stop a token of the template");
        token_ids_fini(&all);
        token_ids_fini(&safe);
        chat_prompt_fini(&prompt);
        ++*n_checked;
    }
    json_decref(file);
}

static void test_messages_to_recorded_ids(void **state) {
    UNUSED(state);
    size_t n = 0;
    check_file("tests/data/qwen36/test_vectors_hebrus.json", &n);
    assert_int_equal(n, 16);
    check_file("tests/data/qwen36/test_vectors_generated.json", &n);
    assert_true(n > 90);
}

static const json_t *find(const json_t *list, const char *name) {
    size_t i;
    json_t *v;
    json_array_foreach(
        (json_t *)list, i,
        v) if (!strcmp(json_string_value(json_object_get(v, "name")), name)) return v;
    fail_msg("no vector %s", name);
    return NULL;
}

/* The safe reading of a message full of control tokens: its ids are those recorded for it as data,
 * between the same ids that stand around a harmless message. */
static void test_literal_controls_in_a_message_are_data(void **state) {
    UNUSED(state);
    json_t *file = NULL;
    assert_int_equal(
        json_read_file(&file, "tests/data/qwen36/test_vectors_hebrus.json", 1 << 20, NULL),
        STATUS_OK);
    const json_t *chats = json_object_get(file, "chat_vectors");
    const json_t *data = json_object_get(
        find(json_object_get(file, "text_vectors"), "literal_controls_as_data"), "token_ids");
    const json_t *plain = json_object_get(find(chats, "plain_no_thinking"), "token_ids");
    size_t n_tail = 9, n_plain = json_array_size(plain); // from <|im_end|> on
    json_t *want = json_array();
    size_t i;
    json_t *v;
    for (i = 0; i < 3; i++)
        json_array_append(want, json_array_get(plain, i));
    json_array_foreach((json_t *)data, i, v) json_array_append(want, v);
    for (i = n_plain - n_tail; i < n_plain; i++)
        json_array_append(want, json_array_get(plain, i));
    ChatPrompt prompt = {0};
    TokenIds ids = {0};
    render(&prompt, find(chats, "literal_controls_in_user_content_reference"));
    assert_int_equal(
        tokenizer_encode(family, &ids, strbuf_view(&prompt.text), prompt.trusted, NULL), STATUS_OK);
    assert_true(is_equal(&ids, want));
    token_ids_fini(&ids);
    chat_prompt_fini(&prompt);
    json_decref(want);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_to_recorded_ids),
        cmocka_unit_test(test_literal_controls_in_a_message_are_data),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
