// SPDX-License-Identifier: Apache-2.0
/* parse_run.h - runs an output through the parser whole and under cuts, for the tests of the
 * parser.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_PARSE_RUN_H
#define LILY_TESTS_PARSE_RUN_H

#include "base/file.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/parse.h"

#include <setjmp.h>

#include <cmocka.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"tags\":{\"type\":\"array\"},\"note\":{\"type\":[\"string\",\"null\"]},\"flag\":{\"type\":"
    "\"boolean\"}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"run\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"code\":{\"type\":\"string\"}}}}},"
    "{\"name\":\"now\"}]";

/* What came of one output. */
typedef struct Result {
    StrBuf events;   // kinds and texts, neighbours of one kind joined
    json_t *message; // NULL: out of memory
} Result;

typedef struct Recorder {
    StrBuf *events;
    int last_kind;
    int32_t last_call;
    StrBuf arguments; // of the call under way
    StrBuf complete;  // arguments of the complete calls, a line each
} Recorder;

static inline void record(void *ctx, const ParseEvent *e) {
    static const char *const names[] = {"reasoning", "content", "begin", "args", "end", "drop"};
    Recorder *r = ctx;
    bool is_joined = (int)e->kind == r->last_kind && e->call == r->last_call &&
                     (e->kind <= PARSE_CONTENT || e->kind == PARSE_CALL_ARGS);
    if (!is_joined)
        strbuf_printf(r->events, "\n[%s %d %.*s]", names[e->kind], (int)e->call, (int)e->name.len,
                      e->name.len ? e->name.ptr : "");
    strbuf_append_view(r->events, e->text);
    r->last_kind = (int)e->kind;
    r->last_call = e->call;
    assert_true(utf8_is_valid(e->text.ptr, e->text.len, NULL));
    if (e->kind == PARSE_CALL_BEGIN)
        strbuf_clear(&r->arguments);
    strbuf_append_view(&r->arguments, e->kind == PARSE_CALL_ARGS ? e->text : (StrView){0});
    json_t *whole = json_loadb(r->arguments.ptr ? r->arguments.ptr : "", r->arguments.len,
                               JSON_ALLOW_NUL, NULL);
    if (e->kind == PARSE_CALL_DROP) // nothing that a client could have executed
        assert_null(whole);
    if (e->kind == PARSE_CALL_END) {
        strbuf_append_view(&r->complete, strbuf_view(&r->arguments));
        strbuf_append_char(&r->complete, '\n');
    }
    json_decref(whole);
}

/* How an output is cut. */
typedef struct Cut {
    size_t at;      // SIZE_MAX: nowhere; 0: after each byte; else there
    uint64_t seed;  // not 0: pieces of random length
    bool is_by_ids; // tags are pushed as control tokens; the text between them is cut
} Cut;

static const char *const tag_texts[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

/* Length of the tag at s; 0: none. */
static inline size_t tag_at(StrView s) {
    for (size_t i = 0; i < COUNT_OF(tag_texts); i++)
        if (str_starts(s, str_view(tag_texts[i], strlen(tag_texts[i]))))
            return strlen(tag_texts[i]);
    return 0;
}

static inline Status feed(Parser *p, StrView text, Cut cut, Recorder *r) {
    uint64_t n_cuts = 0;
    for (size_t off = 0; off < text.len;) {
        StrView left = str_view(text.ptr + off, text.len - off);
        size_t n = cut.is_by_ids ? tag_at(left) : 0;
        bool is_control = n > 0;
        if (!is_control) {
            n = cut.seed             ? 1 + rng_u64(cut.seed, n_cuts++) % 9
                : cut.at == SIZE_MAX ? left.len
                : cut.at == 0        ? 1
                : off < cut.at       ? cut.at - off
                                     : left.len;
            n = n < left.len ? n : left.len;
            for (size_t k = 1; cut.is_by_ids && k < n; k++)
                if (tag_at(str_view(left.ptr + k, left.len - k)))
                    n = k;
        }
        TRY(parser_push(p, str_view(text.ptr + off, n), is_control, record, r, NULL));
        off += n;
    }
    return STATUS_OK;
}

static inline Status run(Result *out, StrView text, ParserOptions options, bool is_length_cut,
                         Cut cut) {
    Parser *p;
    Recorder r = {.events = &out->events, .last_kind = -1};
    *out = (Result){0};
    options.has_spelled_tags = !cut.is_by_ids;
    TRY(parser_open(&p, &options, NULL));
    Status status = feed(p, text, cut, &r);
    if (status == STATUS_OK)
        status = parser_finish(p, is_length_cut, record, &r, NULL);
    if (status == STATUS_OK)
        status = parser_message(p, &out->message, NULL);
    if (status == STATUS_OK) {
        const json_t *calls = json_object_get(out->message, "tool_calls");
        StrView left = strbuf_view(&r.complete);
        for (size_t i = 0; i < parser_n_calls(p); i++) {
            // What a client reads is what the message says.
            StrView arguments = str_view(left.ptr, str_find(left, STR("\n")));
            json_t *read = json_loadb(arguments.ptr, arguments.len, JSON_ALLOW_NUL, NULL);
            json_t *said =
                json_object_get(json_object_get(json_array_get(calls, i), "function"), "arguments");
            assert_true(json_is_object(read) && json_equal(read, said));
            json_decref(read);
            left = str_view(arguments.ptr + arguments.len + 1, left.len - arguments.len - 1);
        }
        assert_int_equal(json_array_size(calls), parser_n_calls(p));
        assert_int_equal(left.len, 0);
    }
    strbuf_fini(&r.complete);
    strbuf_fini(&r.arguments);
    parser_close(p);
    return status;
}

static inline void result_fini(Result *r) {
    strbuf_fini(&r->events);
    json_decref(r->message);
}

static inline void check_same(const Result *a, const Result *b, StrView text, const char *what) {
    if (!str_equal(strbuf_view(&a->events), strbuf_view(&b->events)) ||
        !json_equal(a->message, b->message))
        fail_msg("%s changes the result of:\n%.*s\nwhole:%s\ncut:%s", what, (int)text.len, text.ptr,
                 a->events.ptr, b->events.ptr);
}

/* Runs an output whole and under cuts; they must agree. */
static inline void run_all(Result *out, StrView text, ParserOptions options, bool is_length_cut,
                           bool has_every_cut, uint64_t seed) {
    Result other;
    assert_int_equal(run(out, text, options, is_length_cut, (Cut){.at = SIZE_MAX}), STATUS_OK);
    for (size_t at = 0; at < (has_every_cut ? text.len : 1); at++) {
        assert_int_equal(run(&other, text, options, is_length_cut, (Cut){.at = at}), STATUS_OK);
        check_same(out, &other, text, "a cut");
        result_fini(&other);
    }
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(run(&other, text, options, is_length_cut, (Cut){.seed = seed + i}),
                         STATUS_OK);
        check_same(out, &other, text, "random cuts");
        result_fini(&other);
        Cut by_ids = {.seed = i > 1 ? seed + i : 0, .at = SIZE_MAX, .is_by_ids = true};
        assert_int_equal(run(&other, text, options, is_length_cut, by_ids), STATUS_OK);
        check_same(out, &other, text, "tags as ids");
        result_fini(&other);
    }
}

static inline json_t *tools_make(void) {
    json_t *tools = NULL;
    assert_int_equal(json_read(&tools, str_view(tools_text, sizeof tools_text - 1), "tools", NULL),
                     STATUS_OK);
    return tools;
}

/* Message of an output in short: {"r": reasoning, "c": content, "t": [[name, arguments], ...]}. */
static inline json_t *brief(const json_t *message) {
    json_t *calls = json_array();
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(message, "tool_calls"), i, v) {
        json_t *f = json_object_get(v, "function");
        json_array_append_new(calls, json_pack("[O, O]", json_object_get(f, "name"),
                                               json_object_get(f, "arguments")));
    }
    return json_pack("{s: O, s: O, s: o}", "r", json_object_get(message, "reasoning_content"), "c",
                     json_object_get(message, "content"), "t", calls);
}

typedef struct Row {
    const char *text, *want; // want: as brief() gives it
    ParseStart start;
    bool is_length_cut, has_no_tools;
} Row;

static inline void check_rows(const Row *rows, size_t n) {
    json_t *tools = tools_make();
    for (size_t i = 0; i < n; i++) {
        Result r;
        StrView text = str_view(rows[i].text, strlen(rows[i].text));
        ParserOptions options = {.tools = rows[i].has_no_tools ? NULL : tools,
                                 .start = rows[i].start};
        run_all(&r, text, options, rows[i].is_length_cut, true, i + 1);
        json_t *got = brief(r.message);
        json_t *want = json_loads(rows[i].want, 0, NULL);
        assert_non_null(want);
        if (!json_equal(got, want)) {
            char *got_text = json_dumps(got, JSON_COMPACT);
            fail_msg("row %zu: %s\ngot  %s\nwant %s", i, rows[i].text, got_text, rows[i].want);
        }
        json_decref(got);
        json_decref(want);
        result_fini(&r);
    }
    json_decref(tools);
}

typedef struct ArgsCounter {
    size_t n_args; // bytes of arguments so far
    StrBuf args;
} ArgsCounter;
static inline void count_args(void *ctx, const ParseEvent *e) {
    ArgsCounter *c = ctx;
    if (e->kind == PARSE_CALL_ARGS) {
        c->n_args += e->text.len;
        strbuf_append_view(&c->args, e->text);
    }
}

#endif
