// SPDX-License-Identifier: Apache-2.0
/* test_wire_answer.c - events to bytes, byte for byte against tests/data/wire, and what must hold
 * for every stream.
 *
 * Path:     make unit.
 * Owns:     one tokenizer for all tests.  Thread: one. */
#include "base/file.h"
#include "base/mem.h"
#include "wire_case.h"

static Tokenizer *tokenizer;

static const WireIdentity IDENTITY = {
    .id = "chatcmpl-1", .model = "mini", .created = 1700000000, .fingerprint = "lily-test"};

typedef struct Script {
    int32_t choice;
    TurnEvent event;
} Script;

#define TEXT(kind_, text_)                                                                         \
    {                                                                                              \
        .kind = kind_, .text = { text_, sizeof(text_) - 1 }                                        \
    }
#define CALL(kind_, call_, text_)                                                                  \
    {                                                                                              \
        .kind = kind_, .call = call_, .name = {"f", 1}, .text = { text_, sizeof(text_) - 1 }       \
    }

static const Err NO_ERR;
#define END(finish_)                                                                               \
    {                                                                                              \
        .kind = TURN_END, .finish = finish_, .n_reasoning = 2,                                     \
        .figures = {.n_prompt = 10, .n_generated = 4, .n_cached = 3}, .err = &NO_ERR               \
    }

static Status play_status(const char *body, WireForm form, const Script *script, size_t n,
                          StrBuf *out, Err *err) {
    WireRequest r;
    WireFault fault;
    WireAnswer *a = NULL;
    Status status = wire_try(&r, form, body, &fault);
    if (status == STATUS_OK)
        status = wire_answer_open(&a, &r, &IDENTITY, tokenizer, err);
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        assert_false(wire_answer_is_whole(a));
        status = wire_answer_event(a, script[i].choice, &script[i].event, out, err);
    }
    if (status == STATUS_OK) {
        assert_true(wire_answer_is_whole(a));
        status = wire_answer_failure(a)
                     ? (wire_answer_fail(a, wire_answer_failure(a), out), STATUS_OK)
                     : wire_answer_finish(a, out, err);
    }
    wire_answer_close(a);
    wire_request_fini(&r);
    return status;
}

static void play(const char *body, WireForm form, const Script *script, size_t n, StrBuf *out) {
    Err err = {0};
    *out = (StrBuf){0};
    if (play_status(body, form, script, n, out, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

/* The output is the file's, byte for byte. */
static void golden(const char *name, const char *body, WireForm form, const Script *script,
                   size_t n) {
    char path[128];
    StrBuf out, wanted = {0};
    Err err = {0};
    play(body, form, script, n, &out);
    snprintf(path, sizeof path, "tests/data/wire/%s", name);
    if (file_read_all(&wanted, path, 1 << 20, &err) != STATUS_OK)
        fail_msg("%s\nfound:\n%s", err.text, out.ptr);
    if (!str_equal(strbuf_view(&out), strbuf_view(&wanted)))
        fail_msg("%s: expected\n%s\nfound\n%s", path, wanted.ptr, out.ptr);
    strbuf_fini(&out);
    strbuf_fini(&wanted);
}

#define CHAT "{\"messages\":[]"
#define STREAM ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"

static const Script TALK[] = {{0, TEXT(TURN_REASONING, "hm")},
                              {0, TEXT(TURN_REASONING, " \"so\"")},
                              {0, TEXT(TURN_CONTENT, "Gr\xc3\xbc\xc3\x9f")},
                              {0, TEXT(TURN_CONTENT, "e\n")},
                              {0, END(FINISH_STOP)}};

static const Script CALLS[] = {{0, TEXT(TURN_CONTENT, "look")},
                               {0, CALL(TURN_CALL_BEGIN, 0, "")},
                               {0, CALL(TURN_CALL_ARGS, 0, "{\"a\":")},
                               {0, CALL(TURN_CALL_ARGS, 0, "\"x\\ny\"}")},
                               {0, CALL(TURN_CALL_END, 0, "")},
                               {0, CALL(TURN_CALL_BEGIN, 1, "")},
                               {0, CALL(TURN_CALL_ARGS, 1, "{}")},
                               {0, CALL(TURN_CALL_END, 1, "")},
                               {0, END(FINISH_CALLS)}};

static void test_C92_golden_chat(void **state) {
    UNUSED(state);
    golden("chat.json", CHAT "}", WIRE_CHAT, TALK, COUNT_OF(TALK));
    golden("chat.sse", CHAT STREAM, WIRE_CHAT, TALK, COUNT_OF(TALK));
    golden("calls.json", CHAT "}", WIRE_CHAT, CALLS, COUNT_OF(CALLS));
    golden("calls.sse", CHAT STREAM, WIRE_CHAT, CALLS, COUNT_OF(CALLS));
}

static void test_C92_golden_choices_in_any_order(void **state) {
    UNUSED(state);
    static const Script script[] = {{1, TEXT(TURN_CONTENT, "b")},
                                    {0, TEXT(TURN_CONTENT, "a")},
                                    {1, END(FINISH_LENGTH)},
                                    {0, TEXT(TURN_CONTENT, "a")},
                                    {0, END(FINISH_STOP)}};
    golden("choices.json", CHAT ",\"n\":2}", WIRE_CHAT, script, COUNT_OF(script));
    golden("choices.sse", CHAT ",\"n\":2" STREAM, WIRE_CHAT, script, COUNT_OF(script));
}

static void test_C92_golden_log_probabilities(void **state) {
    UNUSED(state);
    static const SampleResult a = {.id = 64,
                                   .logprob = -0.5f,
                                   .n_top = 2,
                                   .top_ids = {64, 200},
                                   .top_logprobs = {-0.5f, -1.0f / 0.0f}};
    static const Script script[] = {
        {0, {.kind = TURN_TOKEN, .sample = &a}}, {0, TEXT(TURN_CONTENT, "a")},
        {0, {.kind = TURN_TOKEN, .sample = &a}}, {0, {.kind = TURN_TOKEN, .sample = &a}},
        {0, TEXT(TURN_CONTENT, "aa")},           {0, END(FINISH_STOP)}};
    golden("logprobs.json", CHAT ",\"logprobs\":true,\"top_logprobs\":2}", WIRE_CHAT, script,
           COUNT_OF(script));
    golden("logprobs.sse", CHAT ",\"logprobs\":true,\"top_logprobs\":2" STREAM, WIRE_CHAT, script,
           COUNT_OF(script));
    golden("completion_logprobs.json", "{\"prompt\":\"p\",\"logprobs\":2}", WIRE_COMPLETIONS,
           script, COUNT_OF(script));
}

static void test_C92_golden_completions(void **state) {
    UNUSED(state);
    static const Script script[] = {{0, TEXT(TURN_CONTENT, "x")},
                                    {1, TEXT(TURN_CONTENT, "y")},
                                    {0, END(FINISH_STOP)},
                                    {1, END(FINISH_LENGTH)}};
    golden("completion.json", "{\"prompt\":[\"p\",[80,0]],\"echo\":true}", WIRE_COMPLETIONS, script,
           COUNT_OF(script));
    golden("completion.sse", "{\"prompt\":[\"p\",[80,0]],\"echo\":true" STREAM, WIRE_COMPLETIONS,
           script, COUNT_OF(script));
}

static void test_C84_golden_failure_inside_a_stream(void **state) {
    UNUSED(state);
    static const Err err = {STATUS_NUMERIC, "NaN after layer 3"};
    static const Script script[] = {{0, TEXT(TURN_CONTENT, "half")},
                                    {0, {.kind = TURN_END, .finish = FINISH_FAILED, .err = &err}}};
    golden("failure.sse", CHAT STREAM, WIRE_CHAT, script, COUNT_OF(script));
}

static void test_C18_a_dropped_call_is_in_no_whole_answer(void **state) {
    UNUSED(state);
    static const Script script[] = {{0, CALL(TURN_CALL_BEGIN, 0, "")},
                                    {0, CALL(TURN_CALL_ARGS, 0, "{\"a\":")},
                                    {0, CALL(TURN_CALL_DROP, 0, "")},
                                    {0, TEXT(TURN_CONTENT, "<tool_call>")},
                                    {0, END(FINISH_STOP)}};
    StrBuf out;
    play(CHAT "}", WIRE_CHAT, script, COUNT_OF(script), &out);
    assert_null(strstr(out.ptr, "tool_calls"));
    assert_non_null(strstr(out.ptr, "\"content\":\"<tool_call>\""));
    strbuf_fini(&out);
    play(CHAT STREAM, WIRE_CHAT, script, COUNT_OF(script), &out);
    assert_null(strstr(out.ptr, "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(out.ptr, "\"content\":\"<tool_call>\""));
    strbuf_fini(&out);
}

static void test_every_allocation_failing(void **state) {
    UNUSED(state);
    static const char *const bodies[] = {CHAT "}", CHAT STREAM, CHAT ",\"logprobs\":true}"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++)
        for (int after = 0;; after++) {
            StrBuf out = {0};
            Err err = {0};
            mem_fail_after(after);
            Status status = play_status(bodies[i], WIRE_CHAT, CALLS, COUNT_OF(CALLS), &out, &err);
            mem_fail_after(-1);
            strbuf_fini(&out);
            if (status == STATUS_OK)
                break;
            assert_int_equal(status, STATUS_MEMORY);
            assert_true(after < 10000);
        }
}

static int open_all(void **state) {
    UNUSED(state);
    return tokenizer_open_bytes(&tokenizer, WIRE_VOCAB, NULL) == STATUS_OK ? 0 : -1;
}
static int close_all(void **state) {
    UNUSED(state);
    tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_C92_golden_chat),
        cmocka_unit_test(test_C92_golden_choices_in_any_order),
        cmocka_unit_test(test_C92_golden_log_probabilities),
        cmocka_unit_test(test_C92_golden_completions),
        cmocka_unit_test(test_C84_golden_failure_inside_a_stream),
        cmocka_unit_test(test_C18_a_dropped_call_is_in_no_whole_answer),
        cmocka_unit_test(test_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
