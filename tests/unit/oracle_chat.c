// SPDX-License-Identifier: Apache-2.0
/* oracle_chat.c - renders conversations from standard input, one JSON object a line, so that
 * tests/py/test_template.py can hold the results beside jinja2's. Not a test by itself.
 *
 * In:   {"family", "messages", "tools", "options": {name: value}}  or  {"json": value}
 * Out:  {"text", "trusted": [[start, end], ...], "thinking"}  or  {"error"}
 * Thread: one. */
#define _GNU_SOURCE // getline
#include "json_lines.h"
#include "text/chat.h"
#include "text/pyjson.h"

static int tri_state(const json_t *v) { return json_is_true(v) ? 1 : json_is_false(v) ? 0 : -1; }

static ChatFamily family_read(const json_t *v) {
    for (ChatFamily f = CHAT_QWEN36; f <= CHAT_QWEN35_SMALL; f++)
        if (strcmp(chat_family_name(f), json_string_value(v)) == 0)
            return f;
    CHECK(!"a known family");
}

static json_t *trusted_ranges(const ChatPrompt *p) {
    json_t *ranges = json_array();
    size_t start = 0;
    bool is_inside = false;
    for (size_t i = 0; i <= p->text.len; i++) {
        bool bit = i < p->text.len && (p->trusted[i >> 3] >> (i & 7) & 1);
        if (bit && !is_inside)
            start = i;
        if (!bit && is_inside)
            json_array_append_new(ranges, json_pack("[I, I]", (json_int_t)start, (json_int_t)i));
        is_inside = bit;
    }
    return ranges;
}

static json_t *answer(const json_t *in) {
    Err err = {0};
    ChatPrompt prompt = {0};
    const json_t *o = json_object_get(in, "options");
    if (json_object_get(in, "json")) {
        StrBuf text = {0};
        CHECK(pyjson_append(&text, json_object_get(in, "json"), &err) == STATUS_OK);
        json_t *out = json_pack("{s: s%}", "text", text.ptr, text.len);
        strbuf_fini(&text);
        return out;
    }
    ChatOptions options = {.add_generation_prompt =
                               json_is_true(json_object_get(o, "add_generation_prompt")),
                           .enable_thinking = tri_state(json_object_get(o, "enable_thinking")),
                           .preserve_thinking = tri_state(json_object_get(o, "preserve_thinking")),
                           .add_vision_id = json_is_true(json_object_get(o, "add_vision_id")),
                           .continue_final = json_is_true(json_object_get(o, "continue_final")),
                           .is_lenient = json_is_true(json_object_get(o, "is_lenient")),
                           .is_text_only = json_is_true(json_object_get(o, "is_text_only"))};
    if (chat_render(&prompt, family_read(json_object_get(in, "family")),
                    json_object_get(in, "messages"), json_object_get(in, "tools"), &options,
                    &err) != STATUS_OK)
        return json_pack("{s: s}", "error", err.text);
    json_t *out =
        json_pack("{s: s%, s: o, s: b}", "text", prompt.text.ptr, prompt.text.len, "trusted",
                  trusted_ranges(&prompt), "thinking", prompt.is_thinking_open);
    chat_prompt_fini(&prompt);
    return out;
}

int main(void) { return json_lines_run(answer); }
