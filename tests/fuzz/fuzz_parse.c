// SPDX-License-Identifier: Apache-2.0
/* fuzz_parse.c - the model's text into the output parser.
 *
 * Input: one byte of options, one byte that sets how the text is cut, then the text.
 * Must hold: no crash; whole and cut give the same events and message; event texts are valid UTF-8;
 * the arguments of complete calls are JSON, those of dropped ones are none; the message renders. */
#include "base/utf8.h"
#include "text/chat.h"
#include "text/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] = "[{\"name\":\"run\",\"parameters\":{\"properties\":{\"code\":{"
                                 "\"type\":\"string\"},\"n\":{\"type\":"
                                 "\"integer\"},\"a\":{\"type\":\"array\"},\"o\":{\"anyOf\":[{"
                                 "\"type\":\"string\"},{\"type\":\"null\"}]"
                                 "},\"m\":{\"type\":[\"boolean\",\"number\",\"string\"]}}}},{"
                                 "\"type\":\"function\",\"function\":{"
                                 "\"name\":\"need\",\"parameters\":{\"required\":[\"x\"]}}}]";

typedef struct Recorder {
    StrBuf events;
    StrBuf arguments;
    int last_kind;
    int32_t last_call;
} Recorder;

static void record(void *ctx, const ParseEvent *e) {
    Recorder *r = ctx;
    bool is_text = e->kind <= PARSE_CONTENT || e->kind == PARSE_CALL_ARGS;
    CHECK(utf8_is_valid(e->text.ptr, e->text.len, NULL));
    if (!is_text || (int)e->kind != r->last_kind || e->call != r->last_call)
        strbuf_printf(&r->events, "[%d %d %.*s]", (int)e->kind, (int)e->call, (int)e->name.len,
                      e->name.len ? e->name.ptr : "");
    strbuf_append_view(&r->events, e->text);
    r->last_kind = (int)e->kind;
    r->last_call = e->call;
    if (e->kind == PARSE_CALL_BEGIN)
        strbuf_clear(&r->arguments);
    if (e->kind == PARSE_CALL_ARGS)
        strbuf_append_view(&r->arguments, e->text);
    if (e->kind == PARSE_CALL_DROP)
        CHECK(r->arguments.len == 0 || r->arguments.ptr[0] == '{');
    if (e->kind == PARSE_CALL_END)
        CHECK(e->name.len && str_starts(strbuf_view(&r->arguments), STR("{")) &&
              str_ends(strbuf_view(&r->arguments), STR("}")));
}

/* piece 0: whole; else pieces of up to that many bytes. by_ids: tags are pushed as tokens. */
static json_t *run(StrView text, ParserOptions options, bool is_cut, size_t piece, bool by_ids,
                   Recorder *r) {
    static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    Parser *p;
    json_t *message;
    options.has_spelled_tags = !by_ids;
    CHECK(parser_open(&p, &options, NULL) == STATUS_OK);
    for (size_t off = 0; off < text.len;) {
        StrView left = str_view(text.ptr + off, text.len - off);
        size_t n = piece && piece < left.len ? piece : left.len;
        bool is_control = false;
        for (size_t k = 0; by_ids && k < n && !is_control; k++)
            for (size_t t = 0; t < COUNT_OF(tags); t++)
                if (str_starts(str_view(left.ptr + k, left.len - k),
                               str_view(tags[t], strlen(tags[t])))) {
                    is_control = k == 0;
                    n = k == 0 ? strlen(tags[t]) : k;
                    break;
                }
        CHECK(parser_push(p, str_view(left.ptr, n), is_control, record, r, NULL) == STATUS_OK);
        off += n;
    }
    CHECK(parser_finish(p, is_cut, record, r, NULL) == STATUS_OK);
    CHECK(parser_message(p, &message, NULL) == STATUS_OK);
    CHECK(json_array_size(json_object_get(message, "tool_calls")) == parser_n_calls(p));
    parser_close(p);
    return message;
}

static void check_renders(const json_t *message) {
    ChatPrompt prompt = {0};
    ChatOptions options = CHAT_OPTIONS_ABSENT;
    json_t *messages = json_pack("[{s: s, s: s}, O]", "role", "user", "content", "q", message);
    CHECK(chat_render(&prompt, CHAT_QWEN36, messages, NULL, &options, NULL) == STATUS_OK);
    chat_prompt_fini(&prompt);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    StrView text = str_view((const char *)data + 2, size - 2);
    json_t *tools = NULL;
    CHECK(json_read(&tools, str_view(tools_text, sizeof tools_text - 1), "tools", NULL) ==
          STATUS_OK);
    ParserOptions options = {.tools = data[0] & 8 ? NULL : tools,
                             .start = (ParseStart)(data[0] & 3) % 3,
                             .is_tool_choice_none = data[0] & 16};
    bool is_cut = data[0] & 4;
    size_t pieces[] = {0, 1, 1u + data[1] % 13, 1u + data[1] % 13};
    Recorder first = {.last_kind = -1};
    json_t *whole = run(text, options, is_cut, pieces[0], false, &first);
    check_renders(whole);
    for (size_t i = 1; i < COUNT_OF(pieces); i++) {
        Recorder r = {.last_kind = -1};
        json_t *message = run(text, options, is_cut, pieces[i], i == 3, &r);
        // Pushed as ids, a tag ends a cut character in front of it; spelled, it does so as well.
        CHECK(str_equal(strbuf_view(&first.events), strbuf_view(&r.events)));
        CHECK(json_equal(whole, message));
        json_decref(message);
        strbuf_fini(&r.events);
        strbuf_fini(&r.arguments);
    }
    json_decref(whole);
    json_decref(tools);
    strbuf_fini(&first.events);
    strbuf_fini(&first.arguments);
    return 0;
}
