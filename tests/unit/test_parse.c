// SPDX-License-Identifier: Apache-2.0
/* test_parse.c - the output parser: recorded outputs, cases from users, every split, damage,
 * memory. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/chat.h"
#include "text/parse.h"
#include "text/pyjson.h"

#include <setjmp.h>
#include <time.h>

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
    int n_complete;
} Recorder;

static void record(void *ctx, const ParseEvent *e) {
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
    if (e->kind == PARSE_CALL_END)
        r->n_complete++;
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
static size_t tag_at(StrView s) {
    for (size_t i = 0; i < COUNT_OF(tag_texts); i++)
        if (str_starts(s, str_view(tag_texts[i], strlen(tag_texts[i]))))
            return strlen(tag_texts[i]);
    return 0;
}

static Status feed(Parser *p, StrView text, Cut cut, Recorder *r) {
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

static Status run(Result *out, StrView text, ParserOptions options, bool is_length_cut, Cut cut) {
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
        assert_int_equal(r.n_complete, parser_n_calls(p));
        for (size_t i = 0; i < parser_n_calls(p); i++) {
            // The object is the text's: what a client reads is what the message says.
            StrView name, arguments;
            parser_call(p, i, &name, &arguments);
            json_t *read = json_loadb(arguments.ptr, arguments.len, JSON_ALLOW_NUL, NULL);
            json_t *said = json_object_get(
                json_object_get(json_array_get(json_object_get(out->message, "tool_calls"), i),
                                "function"),
                "arguments");
            assert_true(read == NULL || json_equal(read, said));
            json_decref(read);
        }
    }
    strbuf_fini(&r.arguments);
    parser_close(p);
    return status;
}

static void result_fini(Result *r) {
    strbuf_fini(&r->events);
    json_decref(r->message);
}

static void check_same(const Result *a, const Result *b, StrView text, const char *what) {
    if (!str_equal(strbuf_view(&a->events), strbuf_view(&b->events)) ||
        !json_equal(a->message, b->message))
        fail_msg("%s changes the result of:\n%.*s\nwhole:%s\ncut:%s", what, (int)text.len, text.ptr,
                 a->events.ptr, b->events.ptr);
}

/* Runs an output whole and under cuts; they must agree. */
static void run_all(Result *out, StrView text, ParserOptions options, bool is_length_cut,
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

static json_t *tools_make(void) {
    json_t *tools = NULL;
    assert_int_equal(json_read(&tools, str_view(tools_text, sizeof tools_text - 1), "tools", NULL),
                     STATUS_OK);
    return tools;
}

/* Message of an output in short: {"r": reasoning, "c": content, "t": [[name, arguments], ...]}. */
static json_t *brief(const json_t *message) {
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

static void check_rows(const Row *rows, size_t n) {
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

/* ---- recorded outputs */

static void test_recorded_outputs_under_every_cut(void **state) {
    UNUSED(state);
    json_t *file = NULL;
    Err err = {0};
    size_t i;
    json_t *v;
    assert_int_equal(
        json_read_file(&file, "tests/data/qwen36/test_vectors_parse.json", 1 << 20, &err),
        STATUS_OK);
    json_t *vectors = json_object_get(file, "parse_vectors");
    assert_int_equal(json_array_size(vectors), 23);
    json_array_foreach(vectors, i, v) {
        bool is_offered = json_is_true(json_object_get(v, "tools_offered"));
        bool is_reasoning =
            strcmp(json_string_value(json_object_get(v, "start")), "reasoning") == 0;
        ParserOptions options = {.tools = is_offered ? json_object_get(file, "tools") : NULL,
                                 .start =
                                     is_reasoning ? PARSE_START_REASONING : PARSE_START_CONTENT};
        Result r;
        run_all(&r, json_text(json_object_get(v, "output")), options, false, true, i + 1);
        assert_true(
            json_equal(json_object_get(r.message, "content"), json_object_get(v, "content")));
        assert_true(json_equal(json_object_get(r.message, "reasoning_content"),
                               json_object_get(v, "reasoning_content")));
        json_t *want = json_array();
        size_t k;
        json_t *call;
        json_array_foreach(json_object_get(v, "tool_calls"), k, call) json_array_append_new(
            want, json_pack("{s: s, s: O}", "type", "function", "function", call));
        assert_true(json_equal(json_object_get(r.message, "tool_calls"), want));
        json_decref(want);
        result_fini(&r);
    }
    json_decref(file);
}

/* ---- cases from users */

static void test_c16_text_before_a_call_is_content(void **state) {
    UNUSED(state);
    static const Row rows[] = {
        {"Let me look.\n<tool_call>\n<function=ls>\n</function>\n</tool_call>",
         "{\"r\":null,\"c\":\"Let me look.\",\"t\":[[\"ls\",{}]]}", PARSE_START_CONTENT, false,
         false},
    };
    check_rows(rows, COUNT_OF(rows));
}

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

static void test_c36_budget_sees_reopened_reasoning(void **state) {
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

/* ---- reasoning and content */

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

/* ---- calls */

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

/* ---- streaming */

typedef struct ArgsCounter {
    size_t n_args; // bytes of arguments so far
    StrBuf args;
} ArgsCounter;

static void count_args(void *ctx, const ParseEvent *e) {
    ArgsCounter *c = ctx;
    if (e->kind == PARSE_CALL_ARGS) {
        c->n_args += e->text.len;
        strbuf_append_view(&c->args, e->text);
    }
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
        StrView name, arguments;
        assert_int_equal(parser_n_calls(p), 1);
        parser_call(p, 0, &name, &arguments);
        assert_true(str_equal(strbuf_view(&c.args), arguments));
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

/* ---- properties */

static const char *const soup[] = {"<tool_call>",
                                   "</tool_call>",
                                   "<think>",
                                   "</think>",
                                   "<function=run>",
                                   "<function=now>",
                                   "<function=get_weather>",
                                   "<function=",
                                   "</function>",
                                   "<parameter=code>",
                                   "<parameter=city>",
                                   "<parameter=days>",
                                   "<parameter=note>",
                                   "<parameter=tags>",
                                   "<parameter=",
                                   "</parameter>",
                                   "\n",
                                   "\n",
                                   "\n",
                                   "\n\n",
                                   " ",
                                   "\r\n",
                                   "\r",
                                   "\t",
                                   "<",
                                   ">",
                                   "</",
                                   "a",
                                   "null",
                                   "nul",
                                   "True",
                                   "42",
                                   "2.0",
                                   "[1, 'a']",
                                   "{\"k\": [1]}",
                                   "\xc3\xa9",
                                   "\xf0\x9f\x98\x80",
                                   "\xff",
                                   "\xe2\x82",
                                   "\"",
                                   "\\",
                                   "x y",
                                   "<parameter",
                                   "</function",
                                   "<tool_",
                                   "\x01"};

static uint64_t seed_choose(void) {
    const char *text = getenv("LILY_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    print_message("seed %llu (LILY_TEST_SEED)\n", (unsigned long long)seed);
    return seed;
}

/* A valid output with random pieces put in, taken out or doubled. */
static void mutate(StrBuf *out, uint64_t seed) {
    static const char *const valid[] = {
        "I think.\n</think>\n\nLook:\n\n",
        "<tool_call>\n<function=run>\n<parameter=code>\ndef f():\n    return 1\n</parameter>\n"
        "</function>\n</tool_call>\n",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"};
    uint64_t n = 0;
    strbuf_clear(out);
    for (size_t v = 0; v < COUNT_OF(valid); v++) {
        StrView left = str_view(valid[v], strlen(valid[v]));
        while (left.len) {
            size_t piece = 1 + rng_u64(seed, n++) % 12;
            piece = piece < left.len ? piece : left.len;
            uint64_t dice = rng_u64(seed, n++) % 24;
            if (dice == 0)
                strbuf_append(out, left.ptr, piece);
            if (dice != 1)
                strbuf_append(out, left.ptr, piece);
            if (dice == 2 || dice == 3) {
                const char *s = soup[rng_u64(seed, n++) % COUNT_OF(soup)];
                strbuf_append(out, s, strlen(s));
            }
            left = str_view(left.ptr + piece, left.len - piece);
        }
    }
}

static void make_soup(StrBuf *out, uint64_t seed) {
    strbuf_clear(out);
    uint64_t n = rng_u64(seed, 0) % 40;
    for (uint64_t i = 1; i <= n; i++) {
        const char *s = soup[rng_u64(seed, i) % COUNT_OF(soup)];
        strbuf_append(out, s, strlen(s));
    }
}

static void test_random_outputs_are_the_same_under_cuts(void **state) {
    UNUSED(state);
    uint64_t seed = seed_choose();
    json_t *tools = tools_make();
    StrBuf text = {0};
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t key = rng_u64(seed, i);
        ParserOptions options = {.tools = key % 8 ? tools : NULL,
                                 .start = (ParseStart)(key / 8 % 3)};
        Result r;
        if (i % 2)
            mutate(&text, key);
        else
            make_soup(&text, key);
        run_all(&r, strbuf_view(&text), options, key / 64 % 2, i % 50 == 0, key);
        result_fini(&r);
    }
    strbuf_fini(&text);
    json_decref(tools);
}

/* Visible bytes of s without the think tags. */
static void append_visible(StrBuf *out, StrView s) {
    for (size_t i = 0; i < s.len; i++) {
        StrView left = str_view(s.ptr + i, s.len - i);
        if (str_starts(left, STR("<think>")) || str_starts(left, STR("</think>"))) {
            i += left.ptr[1] == '/' ? 7 : 6;
            continue;
        }
        if (!(s.ptr[i] == ' ' || (s.ptr[i] >= '\t' && s.ptr[i] <= '\r')))
            strbuf_append_char(out, s.ptr[i]);
    }
}

static void test_no_byte_is_lost_or_doubled_without_calls(void **state) {
    UNUSED(state);
    uint64_t seed = seed_choose();
    StrBuf text = {0}, want = {0}, got = {0};
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t key = rng_u64(seed, i);
        Result r;
        (i % 2 ? mutate : make_soup)(&text, key);
        for (size_t k = 0; k < text.len; k++) // bad UTF-8 would be replaced
            text.ptr[k] = (unsigned char)text.ptr[k] < 0x80 ? text.ptr[k] : 'u';
        assert_int_equal(run(&r, strbuf_view(&text),
                             (ParserOptions){.start = (ParseStart)(key % 3)}, false,
                             (Cut){.at = SIZE_MAX}),
                         STATUS_OK);
        strbuf_clear(&want);
        strbuf_clear(&got);
        append_visible(&want, strbuf_view(&text));
        append_visible(&got, json_text(json_object_get(r.message, "reasoning_content")));
        append_visible(&got, json_text(json_object_get(r.message, "content")));
        if (!str_equal(strbuf_view(&want), strbuf_view(&got)))
            fail_msg("bytes differ:\n%s\nwant %s\ngot  %s", text.ptr, want.ptr, got.ptr);
        result_fini(&r);
    }
    strbuf_fini(&text);
    strbuf_fini(&want);
    strbuf_fini(&got);
}

/* ---- render(parse(G)) = G */

static json_t *random_text(uint64_t key) {
    static const char *const words[] = {"a",  "Bonn", "\n",   "  x", "\xc3\xa9", "<",  ">", "\"",
                                        "\\", "&lt;", "</b>", "1",   "null",     "\t", "{", "="};
    StrBuf s = {0};
    uint64_t n = rng_u64(key, 0) % 12;
    for (uint64_t i = 1; i <= n; i++) {
        const char *w = words[rng_u64(key, i) % COUNT_OF(words)];
        strbuf_append(&s, w, strlen(w));
    }
    json_t *v = json_stringn(s.ptr ? s.ptr : "", s.len);
    strbuf_fini(&s);
    return v;
}

static json_t *trimmed_text(uint64_t key) {
    json_t *v = random_text(key);
    StrView s = json_text(v);
    while (s.len && strchr(" \n\t", s.ptr[0]))
        s = str_view(s.ptr + 1, s.len - 1);
    while (s.len && strchr(" \n\t", s.ptr[s.len - 1]))
        s.len--;
    json_t *t = json_stringn(s.len ? s.ptr : "", s.len);
    json_decref(v);
    return t;
}

static json_t *random_call(uint64_t key) {
    json_t *o = json_object();
    uint64_t n = rng_u64(key, 90);
    if (n % 3 == 0)
        json_object_set_new(o, "code", random_text(key));
    else if (n % 3 == 1) {
        json_object_set_new(o, "city", random_text(key));
        json_object_set_new(o, "days", json_integer((json_int_t)(n % 100)));
        json_object_set_new(o, "flag", json_boolean(n & 1));
        json_object_set_new(o, "note", n & 2 ? json_null() : json_string("x\ny"));
        json_object_set_new(o, "tags",
                            json_pack("[i, o, {s: f}, n]", 3, random_text(key + 1), "k", 0.1));
    }
    return json_pack("{s: s, s: {s: s, s: o}}", "type", "function", "function", "name",
                     n % 3 == 0   ? "run"
                     : n % 3 == 1 ? "get_weather"
                                  : "now",
                     "arguments", o);
}

/* The assistant turn's own text: the prompt with the message, less the prompt without it. */
static StrView own_text(ChatPrompt *with, ChatPrompt *without) {
    assert_true(str_starts(strbuf_view(&with->text), strbuf_view(&without->text)));
    StrView s = str_view(with->text.ptr + without->text.len, with->text.len - without->text.len);
    assert_true(str_ends(s, STR("<|im_end|>\n")));
    s.len -= STR("<|im_end|>\n").len;
    return s;
}

static void test_parsed_output_renders_to_itself(void **state) {
    UNUSED(state);
    uint64_t seed = seed_choose();
    json_t *tools = tools_make();
    ChatOptions ask = CHAT_OPTIONS_ABSENT, plain = CHAT_OPTIONS_ABSENT;
    ask.add_generation_prompt = true;
    for (uint64_t i = 0; i < 1500; i++) {
        uint64_t key = rng_u64(seed, i);
        Err err = {0};
        ChatFamily family = key % 4 ? CHAT_QWEN36 : CHAT_QWEN35;
        json_t *calls = json_array();
        for (uint64_t k = 0; k < key / 4 % 3; k++)
            json_array_append_new(calls, random_call(rng_u64(key, k)));
        json_t *message =
            json_pack("{s: s, s: o, s: o, s: o}", "role", "assistant", "content", trimmed_text(key),
                      "reasoning_content", trimmed_text(key + 7), "tool_calls", calls);
        json_t *user = json_pack("{s: s, s: s}", "role", "user", "content", "hi");
        json_t *before = json_pack("[O]", user), *whole = json_pack("[O, O]", user, message);
        ChatPrompt prompt = {0}, full = {0}, again = {0};
        Result r;
        assert_int_equal(chat_render(&prompt, family, before, tools, &ask, &err), STATUS_OK);
        assert_int_equal(chat_render(&full, family, whole, tools, &plain, &err), STATUS_OK);
        StrView output = own_text(&full, &prompt);
        run_all(&r, output, (ParserOptions){.tools = tools, .start = PARSE_START_REASONING}, false,
                i % 50 == 0, key);
        json_t *parsed = json_pack("[O, O]", user, r.message);
        assert_int_equal(chat_render(&again, family, parsed, tools, &plain, &err), STATUS_OK);
        if (!str_equal(strbuf_view(&full.text), strbuf_view(&again.text)))
            fail_msg("%.*s\nbecame\n%s", (int)output.len, output.ptr, again.text.ptr);
        json_decref(parsed);
        result_fini(&r);
        chat_prompt_fini(&prompt);
        chat_prompt_fini(&full);
        chat_prompt_fini(&again);
        json_decref(before);
        json_decref(whole);
        json_decref(user);
        json_decref(message);
    }
    json_decref(tools);
}

/* ---- size and memory */

static void test_long_outputs_take_linear_work(void **state) {
    UNUSED(state);
    // Each of these would run for hours if any step looked at the whole text again.
    static const struct {
        const char *head, *piece, *tail;
    } rows[] = {
        {"<tool_call>\n<function=run>\n<parameter=code>\n", "some line of a long file\n",
         "</parameter>\n</function>\n</tool_call>"},
        {"<tool_call>\n<function=run>\n<parameter=code>\n", "</parameter>", "</function>"},
        {"<tool_call>\n<function=run>\n<parameter=code>\n", "<", ""},
        {"<tool_call>\n<function=run>\n<parameter=code>\n", "\n<parameter=a>", "\n</function>"},
        {"<tool_call>\n<function=run>\n", "<parameter=a>\nx\n</parameter>\n", "</function>"},
        {"<tool_call>\n<function=get_weather>\n<parameter=tags>\n[0", ", 1",
         "]\n</parameter>\n</function>"},
        {"<tool_call>\n<function=get_weather>\n<parameter=note>\nnull", " ",
         "\n</parameter>\n</function>"},
        {"<tool_call>\n<function=", "a", ""},
        {"", "<", ""},
        {"", "<tool_call>", ""},
        {"", "<function=now>\n", ""},
        {"", "\n", "x"},
        {"", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n", ""},
        {"<tool_call>\n<function=run>\njunk", "<parameter=", ""},
        {"", "\xff", ""},
    };
    json_t *tools = tools_make();
    StrBuf text = {0};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        strbuf_clear(&text);
        strbuf_append(&text, rows[i].head, strlen(rows[i].head));
        while (text.len < 1 << 20)
            strbuf_append(&text, rows[i].piece, strlen(rows[i].piece));
        strbuf_append(&text, rows[i].tail, strlen(rows[i].tail));
        Parser *p;
        ParserOptions options = {.tools = tools, .has_spelled_tags = true};
        assert_int_equal(parser_open(&p, &options, NULL), STATUS_OK);
        ArgsCounter c = {0};
        for (size_t off = 0; off < text.len; off += 3) // tokens are about that long
            assert_int_equal(
                parser_push(p, str_view(text.ptr + off, text.len - off < 3 ? text.len - off : 3),
                            false, count_args, &c, NULL),
                STATUS_OK);
        assert_int_equal(parser_finish(p, false, count_args, &c, NULL), STATUS_OK);
        strbuf_fini(&c.args);
        parser_close(p);
    }
    strbuf_fini(&text);
    json_decref(tools);
}

static void ignore_event(void *ctx, const ParseEvent *e) {
    size_t *n = ctx;
    *n += e->text.len;
}

/* One whole run that allocates nothing of its own. */
static Status run_bare(StrView text, const ParserOptions *options, size_t piece) {
    Parser *p;
    size_t n = 0;
    json_t *message;
    TRY(parser_open(&p, options, NULL));
    Status status = STATUS_OK;
    for (size_t off = 0; off < text.len && status == STATUS_OK; off += piece) {
        size_t len = text.len - off < piece ? text.len - off : piece;
        status = parser_push(p, str_view(text.ptr + off, len), false, ignore_event, &n, NULL);
    }
    if (status != STATUS_OK) // it stays failed
        assert_int_equal(parser_push(p, STR("x"), false, ignore_event, &n, NULL), STATUS_MEMORY);
    Status end = parser_finish(p, false, ignore_event, &n, NULL);
    status = status == STATUS_OK ? end : status;
    if (status == STATUS_OK) {
        status = parser_message(p, &message, NULL);
        if (status == STATUS_OK)
            json_decref(message);
    }
    parser_close(p);
    return status;
}

static void test_every_allocation_failing_is_reported(void **state) {
    UNUSED(state);
    json_t *tools = tools_make();
    StrView text = STR(
        "a \n</think>\n\nb\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n"
        "</parameter>\n<parameter=tags>\n['a']\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=run>\n<parameter=code>\nx\n<parameter=b>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=run>\n<parameter=code>\na longer text than before");
    ParserOptions options = {
        .tools = tools, .start = PARSE_START_REASONING, .has_spelled_tags = true};
    for (size_t piece = 1; piece < text.len; piece += 23) {
        int64_t n_failed = 0;
        for (int64_t after = 0;; after++) {
            mem_fail_after(after);
            Status status = run_bare(text, &options, piece);
            mem_fail_after(-1);
            if (status == STATUS_OK)
                break;
            assert_int_equal(status, STATUS_MEMORY);
            n_failed++;
        }
        assert_true(n_failed > 15);
    }
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_outputs_under_every_cut),
        cmocka_unit_test(test_c16_text_before_a_call_is_content),
        cmocka_unit_test(test_c18_python_literals_by_schema),
        cmocka_unit_test(test_c18_half_a_call_is_text),
        cmocka_unit_test(test_c20_call_inside_reasoning),
        cmocka_unit_test(test_c22_value_that_does_not_fit_stays_text),
        cmocka_unit_test(test_c28_text_arguments_stream_as_they_are_made),
        cmocka_unit_test(test_c36_think_tags_do_not_reach_the_content),
        cmocka_unit_test(test_c36_budget_sees_reopened_reasoning),
        cmocka_unit_test(test_white_space_belongs_to_the_frame),
        cmocka_unit_test(test_spelled_tags_are_text_when_ids_decide),
        cmocka_unit_test(test_bad_utf8_becomes_replacement_characters),
        cmocka_unit_test(test_where_a_value_ends),
        cmocka_unit_test(test_calls_with_missing_parts),
        cmocka_unit_test(test_other_text_inside_a_call),
        cmocka_unit_test(test_tool_choice_none_keeps_calls_as_text),
        cmocka_unit_test(test_dropped_call_is_announced_and_comes_as_text),
        cmocka_unit_test(test_random_outputs_are_the_same_under_cuts),
        cmocka_unit_test(test_no_byte_is_lost_or_doubled_without_calls),
        cmocka_unit_test(test_parsed_output_renders_to_itself),
        cmocka_unit_test(test_long_outputs_take_linear_work),
        cmocka_unit_test(test_every_allocation_failing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
