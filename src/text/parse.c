// SPDX-License-Identifier: Apache-2.0
/* parse.c - the parser's door: pieces to characters and tags, events, the whole message.
 *
 * Owns:     a Parser owns its buffers.  Thread: one at a time.
 * Not here: reasoning and content (parse_text.c), calls (parse_call.c). */
#include "parse.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "coerce.h"
#include "parse_state.h"

static const StrView parse_tags[PARSE_TAG_N] = {[PARSE_TAG_THINK] = {"<think>", 7},
                                                [PARSE_TAG_THINK_END] = {"</think>", 8},
                                                [PARSE_TAG_CALL] = {"<tool_call>", 11},
                                                [PARSE_TAG_CALL_END] = {"</tool_call>", 12}};

StrView parse_tag_text(ParseTag tag) { return parse_tags[tag]; }

bool parse_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

void parse_append(Parser *p, StrBuf *b, StrView text) {
    strbuf_append_view(b, text);
    p->is_failed |= b->is_failed;
}

// ---- events

static void parse_deliver(Parser *p, ParseEventKind kind, StrView text) {
    bool is_call = kind != PARSE_REASONING && kind != PARSE_CONTENT;
    ParseEvent e = {.kind = kind,
                    .text = text,
                    .call = is_call ? p->call : -1,
                    .name = is_call ? strbuf_view(&p->name) : (StrView){0}};
    if (p->fn && !p->is_failed)
        p->fn(p->ctx, &e);
}

/* Sends the text under way. */
static void parse_flush(Parser *p) {
    if (p->out.len)
        parse_deliver(p, p->out_kind, strbuf_view(&p->out));
    strbuf_clear(&p->out);
}

void parse_emit(Parser *p, ParseEventKind kind, StrView text) {
    if (text.len == 0)
        return;
    if (p->out_kind != kind)
        parse_flush(p);
    p->out_kind = kind;
    if (p->fn)
        parse_append(p, &p->out, text);
    if (kind == PARSE_REASONING || kind == PARSE_CONTENT) // arguments are kept as p->object
        parse_append(p, kind == PARSE_REASONING ? &p->reasoning : &p->content, text);
}

void parse_emit_mark(Parser *p, ParseEventKind kind) {
    parse_flush(p);
    parse_deliver(p, kind, (StrView){0});
}

void parse_keep_call(Parser *p) {
    if (p->n_calls == p->cap_calls) {
        size_t cap = p->cap_calls * 2 + 4;
        ParseCall *calls = mem_realloc(p->calls, cap * sizeof *calls);
        if (!calls) {
            p->is_failed = true;
            return;
        }
        p->calls = calls;
        p->cap_calls = cap;
    }
    char *name = mem_strdup(p->name.ptr ? p->name.ptr : "", p->name.len);
    if (!name) {
        p->is_failed = true;
        return;
    }
    p->calls[p->n_calls++] =
        (ParseCall){.name = name, .name_len = p->name.len, .object = p->object};
    p->object = NULL;
}

// ---- bytes and tags

/* Which tag begins with s; PARSE_TAG_N: none. *is_whole: s is all of it. */
static ParseTag parse_tag_find(StrView s, bool *is_whole) {
    for (int t = 0; t < PARSE_TAG_N; t++)
        if (str_starts(parse_tags[t], s)) {
            *is_whole = s.len == parse_tags[t].len;
            return (ParseTag)t;
        }
    return PARSE_TAG_N;
}

/* What looked like the beginning of a spelled tag is text. */
static void parse_flush_spelled(Parser *p) {
    size_t n = p->n_spelled;
    p->n_spelled = 0;
    for (size_t i = 0; i < n; i++)
        parse_text_byte(p, p->spelled[i]);
}

/* A byte of good UTF-8 that is not part of a control token. */
static void parse_byte(Parser *p, char c) {
    bool is_whole = false;
    if (!p->options.has_spelled_tags || (p->n_spelled == 0 && c != '<')) {
        parse_text_byte(p, c);
        return;
    }
    p->spelled[p->n_spelled++] = c;
    ParseTag tag = parse_tag_find(str_view(p->spelled, p->n_spelled), &is_whole);
    if (is_whole) {
        p->n_spelled = 0;
        parse_text_tag(p, tag);
    } else if (tag == PARSE_TAG_N) {
        // '<' stands only at the beginning of a tag, so at most this byte can begin another one.
        p->n_spelled--;
        parse_flush_spelled(p);
        if (c == '<')
            p->spelled[p->n_spelled++] = c;
        else
            parse_text_byte(p, c);
    }
}

static void parse_character(Parser *p, const char *s, int n) {
    for (int i = 0; i < n; i++)
        parse_byte(p, s[i]);
}

/* One byte from outside: joined to whole characters. */
static void parse_outside_byte(Parser *p, char c) {
    uint32_t code;
    if (p->n_cut == 0 && (unsigned char)c < 0x80) {
        parse_byte(p, c);
        return;
    }
    p->cut[p->n_cut++] = c;
    int n = utf8_decode(p->cut, (size_t)p->n_cut, &code);
    if (n == 0)
        return;
    if (n > 0) {
        parse_character(p, p->cut, n);
        p->n_cut = 0;
        return;
    }
    // Ill-formed: its first -n bytes are one U+FFFD; a byte left behind them begins anew.
    bool is_left = -n < p->n_cut;
    p->n_cut = 0;
    parse_character(p, "\xef\xbf\xbd", 3);
    if (is_left)
        parse_outside_byte(p, c);
}

/* Nothing more belongs to a character or a spelled tag under way. */
static void parse_end_piece(Parser *p) {
    if (p->n_cut)
        parse_character(p, "\xef\xbf\xbd", 3);
    p->n_cut = 0;
    parse_flush_spelled(p);
}

// ---- the door

Status parser_open(Parser **out, const ParserOptions *options, Err *err) {
    Parser *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(err, "parser", sizeof *p);
    p->options = *options;
    p->has_calls = json_array_size(options->tools) > 0 && !options->is_tool_choice_none;
    for (size_t i = 0; i < json_array_size(options->tools); i++) {
        const json_t *function = coerce_function(json_array_get(options->tools, i));
        size_t len = json_string_length(json_object_get(function, "name"));
        p->max_name_len = len > p->max_name_len ? len : p->max_name_len;
    }
    p->state = PARSE_IN_CONTENT;
    p->is_line_start = true;
    switch (options->start) {
    case PARSE_START_REASONING:
        p->state = PARSE_IN_REASONING;
        p->has_reasoning_part = true;
        break;
    case PARSE_START_CONTENT: p->is_line_feed_skipping = true; break;
    case PARSE_START_CONTINUE:
        p->is_content_visible = true;
        p->is_line_start = false;
        break;
    }
    *out = p;
    return STATUS_OK;
}

void parser_close(Parser *p) {
    if (!p)
        return;
    StrBuf *buffers[] = {&p->out,           &p->reasoning, &p->content, &p->reasoning_space,
                         &p->content_space, &p->raw,       &p->name,    &p->key};
    for (size_t i = 0; i < COUNT_OF(buffers); i++)
        strbuf_fini(buffers[i]);
    for (size_t i = 0; i < p->n_calls; i++) {
        mem_free(p->calls[i].name);
        json_decref(p->calls[i].object);
    }
    json_decref(p->object);
    mem_free(p->calls);
    mem_free(p);
}

/* The end of a push: all that is certain goes out. */
static Status parser_settle(Parser *p, Err *err) {
    parse_call_send(p, false);
    parse_flush(p);
    p->fn = NULL;
    return p->is_failed ? err_memory(err, "parsed output", p->content.len + p->raw.len) : STATUS_OK;
}

Status parser_push(Parser *p, StrView text, bool is_control, ParseEventFn fn, void *ctx, Err *err) {
    CHECK(!p->is_finished);
    p->fn = fn;
    p->ctx = ctx;
    bool is_whole = false;
    ParseTag tag = PARSE_TAG_N;
    if (is_control) {
        parse_end_piece(p);
        tag = text.len ? parse_tag_find(text, &is_whole) : PARSE_TAG_N;
    }
    if (is_whole)
        parse_text_tag(p, tag);
    else
        for (size_t i = 0; i < text.len && !p->is_failed; i++)
            parse_outside_byte(p, text.ptr[i]);
    return parser_settle(p, err);
}

Status parser_finish(Parser *p, bool is_length_cut, ParseEventFn fn, void *ctx, Err *err) {
    CHECK(!p->is_finished);
    p->fn = fn;
    p->ctx = ctx;
    parse_end_piece(p);
    parse_call_finish(p, is_length_cut);
    parse_text_finish(p);
    p->is_finished = true;
    return parser_settle(p, err);
}

bool parser_is_thinking(const Parser *p) { return p->state == PARSE_IN_REASONING; }

bool parser_is_in_call(const Parser *p) { return p->state >= PARSE_IN_OPEN; }

size_t parser_n_calls(const Parser *p) { return p->n_calls; }

static json_t *parser_text(const StrBuf *b) { return json_stringn(b->ptr ? b->ptr : "", b->len); }

Status parser_message(const Parser *p, json_t **out, Err *err) {
    (void)json_take_alloc_failure();
    json_t *calls = json_array();
    json_t *message = json_pack(
        "{s: s, s: o, s: o, s: O}", "role", "assistant", "content",
        p->content.len ? parser_text(&p->content) : json_null(), "reasoning_content",
        p->has_reasoning_part ? parser_text(&p->reasoning) : json_null(), "tool_calls", calls);
    bool is_good = message != NULL;
    for (size_t i = 0; is_good && i < p->n_calls; i++) {
        const ParseCall *call = &p->calls[i];
        json_t *v = json_pack("{s: s, s: {s: s%, s: O}}", "type", "function", "function", "name",
                              call->name, call->name_len, "arguments", call->object);
        is_good = v && json_array_append_new(calls, v) == 0;
    }
    json_decref(calls);
    if (json_take_alloc_failure() || !is_good) {
        json_decref(message);
        return err_memory(err, "message", p->content.len);
    }
    *out = message;
    return STATUS_OK;
}
