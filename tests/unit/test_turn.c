// SPDX-License-Identifier: Apache-2.0
/* test_turn.c - one turn over a small random model: events in order, stop strings, thinking budget,
 * ends and failures.
 *
 * Path:     make unit.
 * Owns:     one engine for all tests.  Thread: one, and the backend's. */
#include "engine/turn.h"

#include "base/mem.h"
#include "checkpoint/synth_write.h"

#include "unit.h"

#include <string.h>

static Weights *weights;
static Tokenizer *tokenizer;
static Engine *engine;
static TurnModel model;

typedef struct Seen {
    StrBuf content, reasoning;
    int n_tokens, n_ends, n_reasoning;
    TurnFinish finish;
    Status status;
    SeqFigures figures;
} Seen;

static void see(void *ctx, const TurnEvent *e) {
    Seen *s = ctx;
    assert_int_equal(s->n_ends, 0);
    if (e->kind == TURN_TOKEN)
        s->n_tokens++;
    else if (e->kind == TURN_CONTENT)
        strbuf_append_view(&s->content, e->text);
    else if (e->kind == TURN_REASONING)
        strbuf_append_view(&s->reasoning, e->text);
    else if (e->kind == TURN_END) {
        s->n_ends++;
        s->finish = e->finish;
        s->status = e->err->code;
        s->n_reasoning = e->n_reasoning;
        s->figures = e->figures;
    }
}

static void seen_fini(Seen *s) {
    strbuf_fini(&s->content);
    strbuf_fini(&s->reasoning);
    *s = (Seen){0};
}

static void run(Seen *s) {
    for (int i = 0; i < 100000 && s->n_ends == 0; i++)
        engine_step(engine, NULL);
    assert_int_equal(s->n_ends, 1);
}

static void start(const TurnRequest *r, Seen *s, Turn **turn) {
    Err err = {0};
    *s = (Seen){0};
    if (turn_start(turn, &model, r, see, s, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static TurnRequest raw_request(const char *text, int32_t max_tokens) {
    return (TurnRequest){.text = str_view(text, strlen(text)),
                         .max_tokens = max_tokens,
                         .is_past_end = true,
                         .thinking_budget = -1};
}

static json_t *messages_of(const char *text) {
    return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
}

static TurnRequest chat_request(const json_t *messages, int32_t max_tokens, int thinking) {
    return (TurnRequest){.messages = messages,
                         .chat = {.add_generation_prompt = true,
                                  .enable_thinking = thinking,
                                  .preserve_thinking = -1},
                         .max_tokens = max_tokens,
                         .is_past_end = true,
                         .thinking_budget = -1};
}

static void test_a_raw_turn_gives_the_text_of_its_ids(void **state) {
    UNUSED(state);
    Seen s;
    TurnRequest r = raw_request("hello", 20);
    start(&r, &s, NULL);
    run(&s);
    assert_int_equal(s.finish, FINISH_LENGTH);
    assert_int_equal(s.n_tokens, 20);
    assert_int_equal(s.figures.n_generated, 20);
    assert_int_equal(s.figures.n_prompt, 5);
    assert_true(s.content.len > 0);
    assert_int_equal(s.reasoning.len, 0);
    seen_fini(&s);
}

static void test_C32_a_stop_string_ends_the_content_before_it(void **state) {
    UNUSED(state);
    Seen plain, s;
    TurnRequest r = raw_request("hello", 24);
    start(&r, &plain, NULL);
    run(&plain);
    for (size_t at = 1; at + 3 <= plain.content.len; at += 5) {
        StrView stop = str_view(plain.content.ptr + at, 3);
        size_t first = str_find(strbuf_view(&plain.content), stop);
        r.stops = &stop;
        r.n_stops = 1;
        start(&r, &s, NULL);
        run(&s);
        assert_int_equal(s.finish, FINISH_STOP);
        assert_true(str_equal(strbuf_view(&s.content), str_view(plain.content.ptr, first)));
        seen_fini(&s);
    }
    seen_fini(&plain);
}

static void test_C34_C36_a_spent_thinking_budget_is_closed_in_the_same_stream(void **state) {
    UNUSED(state);
    json_t *messages = messages_of("how many primes?");
    static const int32_t budgets[] = {0, 1, 7, 30};
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        Seen s;
        TurnRequest r = chat_request(messages, 80, 1);
        r.thinking_budget = budgets[i];
        start(&r, &s, NULL);
        run(&s);
        assert_int_equal(s.finish, FINISH_LENGTH);
        assert_int_equal(s.figures.n_generated, 80);
        assert_true(s.content.len > 0);
        assert_int_equal(str_find(strbuf_view(&s.content), STR("</think>")), SIZE_MAX);
        assert_int_equal(str_find(strbuf_view(&s.reasoning), STR("</think>")), SIZE_MAX);
        // The closing line feed, tag and line feeds count as reasoning, not as content.
        assert_in_range(s.n_reasoning, budgets[i], budgets[i] + 6);
        seen_fini(&s);
    }
    json_decref(messages);
}

static void test_C36_thinking_tags_out_of_place_never_reach_the_content(void **state) {
    UNUSED(state);
    json_t *messages = messages_of("how many primes?");
    int32_t open = tokenizer_find_added(tokenizer, STR("<think>"));
    int32_t close = tokenizer_find_added(tokenizer, STR("</think>"));
    assert_true(open >= 0 && close >= 0);
    // Two ids take turns: each is wanted above all others, and less so each time it was chosen.
    const int32_t letter = 64, tags[] = {open, close};
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        const LogitBias bias[] = {{letter, 1000}, {tags[i], 999.5f}};
        TurnRequest r = chat_request(messages, 60, 0);
        r.thinking_budget = 0;
        r.sample = (SampleParams){.bias = bias, .n_bias = 2, .frequency_penalty = 20};
        Seen s;
        start(&r, &s, NULL);
        run(&s);
        assert_int_equal(s.finish, FINISH_LENGTH);
        assert_int_equal(s.figures.n_generated, 60);
        assert_true(s.content.len > 3); // 'a' is id 64 of a model without files
        for (size_t j = 0; j < s.content.len; j++)
            assert_int_equal(s.content.ptr[j], 'a');
        assert_int_equal(s.reasoning.len, 0);
        if (tags[i] == open) // each re-entry is followed by its closing, which nobody sees
            assert_true(s.n_tokens < 60);
        seen_fini(&s);
    }
    json_decref(messages);
}

static void test_C14_thinking_off_gives_content_at_once(void **state) {
    UNUSED(state);
    json_t *messages = messages_of("2+2?");
    Seen s;
    TurnRequest r = chat_request(messages, 16, 0);
    start(&r, &s, NULL);
    run(&s);
    assert_int_equal(s.reasoning.len, 0);
    assert_int_equal(s.n_reasoning, 0);
    assert_true(s.content.len > 0);
    seen_fini(&s);
    json_decref(messages);
}

static void test_a_cancelled_turn_ends_once(void **state) {
    UNUSED(state);
    for (int steps = 0; steps < 6; steps++) {
        Seen s;
        Turn *turn = NULL;
        TurnRequest r = raw_request("hello", 50);
        start(&r, &s, &turn);
        for (int i = 0; i < steps; i++)
            engine_step(engine, NULL);
        turn_cancel(turn);
        run(&s);
        assert_int_equal(s.finish, FINISH_CANCELLED);
        seen_fini(&s);
    }
}

static void test_what_is_refused_starts_nothing(void **state) {
    UNUSED(state);
    Err err = {0};
    Seen s = {0};
    json_t *empty = json_array(), *messages = messages_of("hi");
    TurnRequest r = chat_request(empty, 5, -1);
    assert_int_equal(turn_start(NULL, &model, &r, see, &s, &err), STATUS_INVALID);
    assert_string_equal(err.text, "No messages provided.");
    r = raw_request("bad \xff", 5);
    assert_int_equal(turn_start(NULL, &model, &r, see, &s, &err), STATUS_INVALID);
    StrView stop = STR("");
    r = raw_request("x", 5);
    r.stops = &stop;
    r.n_stops = 1;
    assert_int_equal(turn_start(NULL, &model, &r, see, &s, &err), STATUS_INVALID);
    r = chat_request(messages, 5, -1);
    r.sample.temperature = -1;
    assert_int_equal(turn_start(NULL, &model, &r, see, &s, &err), STATUS_INVALID);
    assert_int_equal(s.n_ends, 0);
    json_decref(empty);
    json_decref(messages);
}

static void test_every_allocation_failing_in_a_turn(void **state) {
    UNUSED(state);
    json_t *messages = messages_of("hello there");
    int64_t before = mem_count();
    Seen s;
    TurnRequest r = chat_request(messages, 6, 1);
    r.thinking_budget = 2;
    start(&r, &s, NULL);
    run(&s);
    seen_fini(&s);
    int64_t n = mem_count() - before;
    print_message("%d allocations fail in turn\n", (int)n);
    assert_true(n > 10);
    for (int64_t i = 0; i < n; i++) {
        Err err = {0};
        Seen seen = {0};
        mem_fail_after(i);
        Status status = turn_start(NULL, &model, &r, see, &seen, &err);
        for (int k = 0; status == STATUS_OK && k < 1000 && seen.n_ends == 0; k++)
            engine_step(engine, NULL);
        mem_fail_after(-1);
        // The test's own buffers allocate too: when one of those failed the turn went well.
        bool is_own = seen.content.is_failed || seen.reasoning.is_failed;
        if (status == STATUS_OK && !is_own) {
            assert_int_equal(seen.n_ends, 1);
            assert_int_equal(seen.finish, FINISH_FAILED);
            status = seen.status;
        }
        if (!is_own)
            assert_int_equal(status, STATUS_MEMORY);
        seen_fini(&seen);
    }
    json_decref(messages);
}

static int open_all(void **state) {
    UNUSED(state);
    Err err = {0};
    EngineOptions o = {.kind = BACKEND_CPU, .n_threads = 1, .ctx_tok = 512, .max_seqs = 2};
    Status status = weights_open(&weights, "synth:tiny,layers=4", NULL, &err);
    if (status == STATUS_OK)
        status = tokenizer_open_bytes(&tokenizer, synth_write_n_ids(weights_config(weights)->vocab),
                                      &err);
    if (status == STATUS_OK)
        status = engine_open(&engine, weights, &o, NULL, NULL, &err);
    model = (TurnModel){engine, tokenizer, CHAT_QWEN36};
    if (status != STATUS_OK)
        print_error("%s\n", err.text);
    return status == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    UNUSED(state);
    engine_close(engine);
    tokenizer_close(tokenizer);
    weights_close(weights);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_raw_turn_gives_the_text_of_its_ids),
        cmocka_unit_test(test_C32_a_stop_string_ends_the_content_before_it),
        cmocka_unit_test(test_C34_C36_a_spent_thinking_budget_is_closed_in_the_same_stream),
        cmocka_unit_test(test_C36_thinking_tags_out_of_place_never_reach_the_content),
        cmocka_unit_test(test_C14_thinking_off_gives_content_at_once),
        cmocka_unit_test(test_a_cancelled_turn_ends_once),
        cmocka_unit_test(test_what_is_refused_starts_nothing),
        cmocka_unit_test(test_every_allocation_failing_in_a_turn),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
