// SPDX-License-Identifier: Apache-2.0
/* test_parse.c - the output parser: recorded outputs, every split, properties, size, memory. */
#include "parse_run.h"

#include "base/mem.h"
#include "text/chat.h"

#include <time.h>

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

static void test_c26_parsed_output_renders_to_itself(void **state) {
    UNUSED(state);
    uint64_t seed = seed_choose();
    json_t *tools = tools_make();
    ChatOptions ask = CHAT_OPTIONS_ABSENT, plain = CHAT_OPTIONS_ABSENT;
    ask.add_generation_prompt = true;
    for (uint64_t i = 0; i < 1500; i++) {
        uint64_t key = rng_u64(seed, i);
        Err err = {0};
        ChatFamily family = key % 4 ? CHAT_QWEN36 : CHAT_QWEN35;
        bool is_thinking = key / 16 % 3 != 0; // else off: an empty block, the content at once
        ask.enable_thinking = is_thinking ? -1 : 0;
        json_t *calls = json_array();
        for (uint64_t k = 0; k < key / 4 % 3; k++)
            json_array_append_new(calls, random_call(rng_u64(key, k)));
        json_t *message =
            json_pack("{s: s, s: o, s: o, s: o}", "role", "assistant", "content", trimmed_text(key),
                      "reasoning_content", is_thinking ? trimmed_text(key + 7) : json_string(""),
                      "tool_calls", calls);
        json_t *user = json_pack("{s: s, s: s}", "role", "user", "content", "hi");
        json_t *before = json_pack("[O]", user), *whole = json_pack("[O, O]", user, message);
        ChatPrompt prompt = {0}, full = {0}, again = {0};
        Result r;
        assert_int_equal(chat_render(&prompt, family, before, tools, &ask, &err), STATUS_OK);
        assert_int_equal(chat_render(&full, family, whole, tools, &plain, &err), STATUS_OK);
        StrView output = own_text(&full, &prompt);
        run_all(&r, output,
                (ParserOptions){.tools = tools,
                                .start = prompt.is_thinking_open ? PARSE_START_REASONING
                                                                 : PARSE_START_CONTENT},
                false, i % 50 == 0, key);
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
        cmocka_unit_test(test_random_outputs_are_the_same_under_cuts),
        cmocka_unit_test(test_no_byte_is_lost_or_doubled_without_calls),
        cmocka_unit_test(test_c26_parsed_output_renders_to_itself),
        cmocka_unit_test(test_long_outputs_take_linear_work),
        cmocka_unit_test(test_every_allocation_failing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
