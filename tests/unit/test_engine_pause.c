// SPDX-License-Identifier: Apache-2.0
/* test_engine_pause.c - a sequence that is held back takes part in nothing, gives its place to
 * others, and goes on as if nothing had been.
 *
 * Path:     make unit.
 * Owns:     one model for all tests.  Thread: one, and the backend's. */
#include "base/rng.h"
#include "engine/turn.h"

#include "unit.h"

#include <string.h>

enum { MADE = 40 };

static Weights *weights;

typedef struct Seen {
    int32_t ids[MADE];
    int32_t n;
    SeqEnd end;
    int n_ends;
} Seen;

static bool see_token(void *ctx, const SampleResult *sample) {
    Seen *s = ctx;
    assert_true(s->n < MADE);
    s->ids[s->n++] = sample->id;
    return true;
}

static void see_end(void *ctx, SeqEnd end, const Err *err) {
    Seen *s = ctx;
    UNUSED(err);
    s->end = end;
    s->n_ends++;
}

static Engine *open_engine(int32_t max_seqs, int32_t ctx, int32_t depth) {
    Engine *e = NULL;
    Err err = {0};
    EngineOptions o = {
        .kind = BACKEND_CPU, .n_threads = 2, .ctx_tok = ctx, .max_seqs = max_seqs, .depth = depth};
    if (engine_open(&e, weights, &o, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return e;
}

static Seq *add(Engine *e, int i, Seen *seen) {
    int32_t ids[70];
    for (int j = 0; j < 70; j++)
        ids[j] = (int32_t)(rng_u64(9 + (uint64_t)i, (uint64_t)j) % 400);
    SeqRequest r = {.ids = ids, .n_ids = 60 + i, .max_tokens = MADE};
    Seq *seq = NULL;
    *seen = (Seen){0};
    assert_int_equal(engine_add(e, &r, (SeqSink){see_token, see_end, seen}, &seq, NULL), STATUS_OK);
    return seq;
}

static void run_until_idle(Engine *e) {
    bool is_idle = false;
    for (int i = 0; i < 10000 && !is_idle; i++)
        engine_step(e, &is_idle);
    assert_true(is_idle);
}

static void alone(int i, Seen *seen) {
    Engine *e = open_engine(1, 512, 1);
    add(e, i, seen);
    run_until_idle(e);
    engine_close(e);
    assert_int_equal(seen->n, MADE);
}

static void test_a_paused_sequence_waits_and_goes_on_exactly(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        Seen wanted, seen, other;
        alone(0, &wanted);
        Engine *e = open_engine(2, 512, depth);
        Seq *seq = add(e, 0, &seen);
        while (seen.n < 7)
            engine_step(e, NULL);
        engine_pause(e, seq, true);
        run_until_idle(e); // idle: what is paused is no work
        int32_t n = seen.n;
        assert_true(n <= 9 && seen.n_ends == 0);
        add(e, 1, &other);
        run_until_idle(e);
        assert_int_equal(other.n_ends, 1);
        assert_int_equal(seen.n, n);
        engine_pause(e, seq, false);
        run_until_idle(e);
        assert_int_equal(seen.n_ends, 1);
        assert_int_equal(seen.end, SEQ_LENGTH);
        assert_memory_equal(seen.ids, wanted.ids, sizeof wanted.ids);
        engine_close(e);
    }
}

static void test_its_place_goes_to_who_waits(void **state) {
    UNUSED(state);
    Seen wanted[2], seen, other;
    alone(0, &wanted[0]);
    alone(1, &wanted[1]);
    Engine *e = open_engine(1, 192, 1); // one place, and blocks for little more than one
    Seq *seq = add(e, 0, &seen);
    while (seen.n < 5)
        engine_step(e, NULL);
    engine_pause(e, seq, true);
    add(e, 1, &other);
    run_until_idle(e);
    assert_int_equal(other.n_ends, 1);
    assert_memory_equal(other.ids, wanted[1].ids, sizeof wanted[1].ids);
    assert_int_equal(seen.n, 5);
    assert_int_equal(engine_figures(e).n_active, 0);
    engine_pause(e, seq, false);
    run_until_idle(e);
    assert_memory_equal(seen.ids, wanted[0].ids, sizeof wanted[0].ids);
    assert_int_equal(engine_figures(e).n_blocks_free, engine_figures(e).n_blocks);
    engine_close(e);
}

static void test_a_paused_sequence_can_be_cancelled_in_every_place(void **state) {
    UNUSED(state);
    Seen a, b, c;
    Engine *e = open_engine(1, 512, 2);
    Seq *first = add(e, 0, &a), *second = add(e, 1, &b);
    engine_pause(e, second, true); // while it waits
    while (a.n < 3)
        engine_step(e, NULL);
    engine_pause(e, first, true); // while it runs
    engine_step(e, NULL);
    engine_cancel(e, second);
    assert_int_equal(b.end, SEQ_CANCELLED);
    run_until_idle(e);
    engine_cancel(e, first);
    run_until_idle(e);
    assert_int_equal(a.n_ends, 1);
    Seq *third = add(e, 2, &c);
    while (c.n < 3)
        engine_step(e, NULL);
    engine_pause(e, third, true);
    engine_close(e); // and with the engine
    assert_int_equal(c.n_ends, 1);
}

static void test_a_prepared_turn_that_is_not_run(void **state) {
    UNUSED(state);
    Tokenizer *tokenizer = NULL;
    Engine *e = open_engine(1, 256, 1);
    Err err = {0};
    assert_int_equal(tokenizer_open_bytes(&tokenizer, weights_config(weights)->vocab, &err),
                     STATUS_OK);
    TurnModel model = {.engine = e, .tokenizer = tokenizer};
    TurnRequest r = {.text = STR("some words"), .max_tokens = 3, .thinking_budget = -1};
    Turn *turn = NULL;
    assert_int_equal(turn_prepare(&turn, &model, &r, NULL, NULL, &err), STATUS_OK);
    assert_int_equal(engine_figures(e).n_waiting, 0);
    turn_discard(turn);
    // What is too long is refused before it waits anywhere.
    int32_t ids[300] = {0};
    r = (TurnRequest){.ids = ids, .n_ids = 300, .thinking_budget = -1};
    assert_int_equal(turn_prepare(&turn, &model, &r, NULL, NULL, &err), STATUS_CONTEXT);
    assert_non_null(strstr(err.text, "300"));
    assert_non_null(strstr(err.text, "256"));
    turn_discard(NULL);
    tokenizer_close(tokenizer);
    engine_close(e);
}

static int open_all(void **state) {
    UNUSED(state);
    return weights_open(&weights, "synth:tiny,layers=4", NULL, NULL) == STATUS_OK ? 0 : -1;
}
static int close_all(void **state) {
    UNUSED(state);
    weights_close(weights);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_paused_sequence_waits_and_goes_on_exactly),
        cmocka_unit_test(test_its_place_goes_to_who_waits),
        cmocka_unit_test(test_a_paused_sequence_can_be_cancelled_in_every_place),
        cmocka_unit_test(test_a_prepared_turn_that_is_not_run),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
