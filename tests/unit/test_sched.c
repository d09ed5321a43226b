// SPDX-License-Identifier: Apache-2.0
/* test_sched.c - who runs, who gives way, and that nobody notices, over a device of hashes.
 *
 * Path:     make unit.
 * Owns:     one model for all tests.  Thread: one. */
#include "sched_run.h"

#include "unit.h"

#include <math.h>

static Weights *weights;

static void test_random_runs_keep_every_invariant(void **state) {
    UNUSED(state);
    const uint64_t seed = 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    uint8_t bytes[400];
    uint64_t n_preempted = 0;
    fake.n_half = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        size_t n = 3 + rng_u64(seed, i) % (sizeof bytes - 3);
        for (size_t j = 0; j < n; j++)
            bytes[j] = (uint8_t)rng_u64(seed + 1 + i, j);
        n_preempted += run_bytes(weights, bytes, n);
    }
    print_message("%llu sent back, %lld steps with half a piece\n", (unsigned long long)n_preempted,
                  (long long)fake.n_half);
    assert_true(n_preempted > 300 && fake.n_half > 1000);
}

/* Adds a sequence whose prompt is n ids of text number `text`. */
static RunSeq *add(Run *r, uint64_t text, int32_t n, int32_t max_tokens, uint64_t client) {
    RunSeq *s = &r->seqs[r->n_seqs];
    for (s->n_prompt = 0; s->n_prompt < n; s->n_prompt++)
        s->ids[s->n_prompt] = (int32_t)(rng_u64(text, (uint64_t)s->n_prompt) % FAKE_VOCAB);
    return run_start(r, (SeqRequest){.max_tokens = max_tokens, .client = client});
}

/* The same whose prompt is what another came to. */
static RunSeq *add_after(Run *r, const RunSeq *before, int32_t n, int32_t max_tokens) {
    RunSeq *s = &r->seqs[r->n_seqs];
    assert_true(n <= before->n_ids);
    memcpy(s->ids, before->ids, (size_t)n * sizeof *s->ids);
    s->n_prompt = n;
    return run_start(r, (SeqRequest){.max_tokens = max_tokens});
}

static void step_until(Run *r, const RunSeq *s, int32_t n_told) {
    for (int i = 0; i < 10000 && s->n_told < n_told; i++)
        (void)run_step(r);
    assert_true(s->n_told >= n_told);
}

static int32_t n_preempted(const RunSeq *s) { return engine_seq_figures(s->seq).n_preempted; }

static void test_the_client_with_most_running_gives_way_then_who_came_last(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r;
        run_open(&r, weights, &(EngineOptions){.max_seqs = 4, .ctx_tok = 512, .depth = depth});
        RunSeq *a = add(&r, 1, 60, 200, 1), *b = add(&r, 2, 60, 200, 1);
        RunSeq *c = add(&r, 3, 60, 200, 2);
        while (n_preempted(a) + n_preempted(b) + n_preempted(c) == 0)
            (void)run_step(&r);
        assert_int_equal(n_preempted(b), 1); // client 1 had two, and b came behind a
        while (a->n_ends == 0 && n_preempted(c) == 0) {
            assert_int_equal(n_preempted(a), 0);
            (void)run_step(&r);
        }
        run_finish(&r);
        run_close(&r);
    }
}

static void test_who_came_first_waits_for_no_block_longer_than_the_steps_in_flight(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r;
        run_open(&r, weights, &(EngineOptions){.max_seqs = 2, .ctx_tok = 320, .depth = depth});
        // The last free block goes to the second at its 59th token, ten before the first lacks one.
        RunSeq *a = add(&r, 1, 60, 250, 0), *b = add(&r, 2, 70, 250, 0);
        step_until(&r, a, 1);
        int32_t quiet = 0, told = a->n_told;
        while (a->n_ends == 0) {
            (void)run_step(&r);
            quiet = a->n_told > told ? 0 : quiet + 1;
            told = a->n_told;
            assert_true(quiet <= 2 * depth);
        }
        assert_true(b->n_ends || n_preempted(b) > 0);
        run_finish(&r);
        run_close(&r);
    }
}

static void test_a_long_sequence_alone_gets_the_whole_pool(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r;
        run_open(&r, weights,
                 &(EngineOptions){.max_seqs = 3, .ctx_tok = 256, .depth = depth, .cache_slots = 3});
        add(&r, 1, 130, 120, 0);
        add(&r, 2, 200, 50, 0);
        add(&r, 3, 255, 1, 0);
        run_finish(&r);
        for (int i = 0; i < 3; i++)
            assert_int_equal(r.seqs[i].end, SEQ_LENGTH);
        run_close(&r);
    }
}

static void test_a_prompt_that_another_reads_does_not_wait_for_a_paused_one(void **state) {
    UNUSED(state);
    static Run r;
    EngineOptions o = {.max_seqs = 2, .ctx_tok = 1024, .cache_slots = 4, .chunk_tok = 64};
    run_open(&r, weights, &o);
    RunSeq *a = add(&r, 1, 300, 4, 0);
    (void)run_step(&r);
    RunSeq *b = add(&r, 1, 300, 4, 0);
    (void)run_step(&r);
    assert_int_equal(engine_figures(r.engine).n_active, 1); // it waits for what a reads
    run_pause(a, true);
    step_until(&r, b, 4);
    run_finish(&r);
    run_close(&r);
}

/* Rows of the longest piece of a prompt that was read beside an answer, where the device splits no
 * layers. */
static int32_t widest_piece(int32_t mixed_ms, int32_t depth) {
    static Run r;
    int32_t widest = 0;
    fake.is_whole = true;
    run_open(&r, weights,
             &(EngineOptions){.max_seqs = 2,
                              .ctx_tok = 2048,
                              .chunk_tok = 256,
                              .mixed_tok = 128,
                              .mixed_ms = mixed_ms,
                              .depth = depth});
    fake.row_us = 20;
    RunSeq *a = add(&r, 1, 300, 300, 0);
    step_until(&r, a, 3);
    RunSeq *b = add(&r, 2, 1200, 1, 0);
    while (b->n_ends == 0) {
        (void)run_step(&r);
        widest = max_i32(widest, fake.device->n_prefill);
    }
    fake.row_us = 0;
    fake.is_whole = false;
    run_finish(&r);
    run_close(&r);
    return widest;
}

static void test_a_time_bounds_how_much_is_read_beside_answers(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        assert_int_equal(widest_piece(0, depth), 128);
        assert_int_equal(widest_piece(1, depth), 64); // 64 rows take longer: the least there is
        assert_int_equal(widest_piece(60000, depth), 256); // no more than a step holds
    }
}

/* The engine with n answers under way, a step of which takes 1 ms; a row of a prompt takes row_us.
 */
static RunSeq *open_beside(Run *r, int n, int32_t row_us, EngineOptions o) {
    o.max_seqs = 4;
    o.ctx_tok = 2048;
    o.chunk_tok = 512;
    o.cache_slots = 6;
    run_open(r, weights, &o);
    fake.decode_us = 1000;
    fake.row_us = row_us;
    for (int i = 0; i < n; i++)
        step_until(r, add(r, 100 + (uint64_t)i, 100, 90, 0), 3);
    return &r->seqs[0];
}

static void close_beside(Run *r) {
    run_finish(r); // each id is compared
    run_close(r);
    fake.decode_us = fake.row_us = 0;
}

/* The longest step until b's first id came. */
static double longest_ms(Run *r, const RunSeq *b) {
    double longest = 0;
    while (b->n_told == 0) {
        int64_t start_ns = fake.now_ns;
        (void)run_step(r);
        longest = fmax(longest, (double)(fake.now_ns - start_ns) * 1e-6);
    }
    return longest;
}

static void test_a_prompt_bounds_how_much_longer_a_step_of_answers_is(void **state) {
    UNUSED(state);
    static Run r;
    for (int32_t mixed_tok = 64; mixed_tok <= 512; mixed_tok *= 2) {
        EngineOptions o = {.mixed_tok = mixed_tok};
        open_beside(&r, 3, 40, o); // 64 rows of a layer: 0.64 ms
        int64_t start_ns = fake.now_ns;
        uint64_t prompt_ns = fake.device->prompt_ns;
        RunSeq *b = add(&r, 2, 600, 20, 1);
        double longest = longest_ms(&r, b);
        assert_true(longest > 2.2 && longest < 2.8);
        // 24 ms of reading, none of it twice, beside nearly as many of answers.
        assert_int_equal(fake.device->prompt_ns - prompt_ns, 600 * 40000);
        assert_in_range((fake.now_ns - start_ns) / 1000, 38000, 46000);
        close_beside(&r);
        o.mixed_ms = 2;
        open_beside(&r, 3, 40, o);
        b = add(&r, 2, 600, 20, 1);
        longest = longest_ms(&r, b);
        assert_true(longest > 2.7 && longest < 3.2);
        close_beside(&r);
        o.mixed_ms = 60000; // no more than a step holds, through all layers
        open_beside(&r, 3, 40, o);
        b = add(&r, 2, 600, 20, 1);
        assert_in_range(longest_ms(&r, b) * 1000, 21479, 21481);
        close_beside(&r);
    }
}

static void test_as_many_prompts_as_answers_may_take_twice_as_long_as_these(void **state) {
    UNUSED(state);
    static Run r;
    open_beside(&r, 2, 40, (EngineOptions){.mixed_tok = 64});
    RunSeq *b = add(&r, 2, 300, 20, 1);
    add(&r, 3, 300, 20, 1);
    double longest = longest_ms(&r, b);
    assert_true(longest > 2.9 && longest < 3.3);
    close_beside(&r);
}

static void test_without_answers_beside_it_a_piece_goes_through_all_layers_left(void **state) {
    UNUSED(state);
    static Run r;
    RunSeq *a = open_beside(&r, 1, 400, (EngineOptions){.mixed_tok = 64});
    RunSeq *b = add(&r, 2, 600, 20, 1);
    while (r.engine->piece.layer != 1)
        (void)run_step(&r);
    a->cancelled_at = r.step;
    engine_cancel(r.engine, a->seq);
    (void)run_step(&r);
    assert_int_equal(fake.device->n_layers_run, 3);
    assert_int_equal(fake.device->n_prefill, 64);
    (void)run_step(&r);
    assert_int_equal(fake.device->n_layers_run, 4);
    assert_true(fake.device->n_prefill > 64);
    step_until(&r, b, 1);
    close_beside(&r);
}

/* What may happen to b while a piece of it is half way. */
typedef enum Trouble {
    CANCEL,
    PAUSE,
    FAIL_SUBMIT,
    FAIL_WAIT,
    NOT_FINITE,
    CLOSE,
    N_TROUBLES
} Trouble;

static void make_trouble(Run *r, RunSeq *b, Trouble trouble) {
    static const FakeFault faults[N_TROUBLES] = {
        [FAIL_SUBMIT] = FAKE_SUBMIT, [FAIL_WAIT] = FAKE_WAIT, [NOT_FINITE] = FAKE_NAN};
    fake.fault = faults[trouble];
    r->n_faults += fake.fault != FAKE_GOOD;
    if (trouble == CANCEL) {
        b->cancelled_at = r->step;
        engine_cancel(r->engine, b->seq);
    }
    if (trouble == PAUSE)
        run_pause(b, true);
}

static void test_nothing_of_half_a_piece_is_ever_used(void **state) {
    UNUSED(state);
    static Run r;
    for (int t = 0; t < N_TROUBLES * 3 * 2; t++) {
        Trouble trouble = (Trouble)(t / 6);
        int32_t depth = 1 + t % 2, layer = 1 + t / 2 % 3;
        open_beside(&r, 1, 400,
                    (EngineOptions){.mixed_tok = 128, .depth = depth}); // a layer a step
        RunSeq *b = add(&r, 2, 500, 20, 1), *c = add(&r, 3, 30, 20, 2);
        while (engine_seq_figures(b->seq).n_read < 128 || r.engine->piece.layer != layer)
            (void)run_step(&r);
        make_trouble(&r, b, trouble);
        if (trouble == CLOSE) {
            run_close(&r);
            continue;
        }
        if (trouble == PAUSE) { // the piece is finished, so that others can be read
            step_until(&r, c, 1);
            assert_int_equal(r.engine->piece.n, 0);
            run_pause(b, false);
        }
        for (int i = 0; i < 5; i++)
            (void)run_step(&r);
        // The same prompt again finds what was read whole, and is read right.
        RunSeq *again = add(&r, 2, 500, 20, 3);
        run_finish(&r);
        assert_int_equal(again->n_told, 20);
        assert_int_equal(c->n_told, c->end == SEQ_FAILED ? c->n_told : 20);
        close_beside(&r);
    }
}

static void test_several_prompts_share_a_piece_and_one_may_leave_it(void **state) {
    UNUSED(state);
    static Run r;
    for (int leaves = -1; leaves < 3; leaves++) {
        open_beside(&r, 1, 62, (EngineOptions){.mixed_tok = 256});
        RunSeq *three[3];
        step_until(&r, &r.seqs[0], 5);
        for (int i = 0; i < 3; i++)
            three[i] = add(&r, 2 + (uint64_t)i, 20, 20, 1);
        while (r.engine->piece.n != 3)
            (void)run_step(&r);
        if (leaves >= 0) {
            three[leaves]->cancelled_at = r.step;
            engine_cancel(r.engine, three[leaves]->seq);
            assert_int_equal(r.engine->piece.n, 2);
        }
        run_finish(&r);
        for (int i = 0; i < 3; i++)
            assert_int_equal(three[i]->n_told, i == leaves ? 0 : 20);
        close_beside(&r);
    }
}

static void test_blocks_for_an_answer_are_taken_from_a_piece_half_way(void **state) {
    UNUSED(state);
    static Run r;
    for (int32_t depth = 1; depth <= 2; depth++) {
        EngineOptions o = {
            .max_seqs = 2, .ctx_tok = 1408, .mixed_tok = 256, .depth = depth, .cache_slots = 3};
        run_open(&r, weights, &o);
        fake.decode_us = 1000;
        fake.row_us = 400; // one layer a step, of 64 rows
        RunSeq *a = add(&r, 1, 60, 200, 0);
        step_until(&r, a, 66);
        RunSeq *b = add(&r, 2, 1216, 3, 0); // all blocks but the two that a has and one to grow by
        bool was_half = false;
        while (n_preempted(b) == 0) {
            was_half = r.engine->piece.n > 0;
            (void)run_step(&r);
        }
        assert_true(was_half);
        assert_int_equal(r.engine->piece.n, 0);
        run_finish(&r);
        assert_int_equal(a->n_told, 200);
        assert_int_equal(b->n_told, 3);
        run_close(&r);
        fake.decode_us = fake.row_us = 0;
    }
}

static void test_a_slow_readers_answer_goes_on_where_it_was(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r;
        EngineOptions o = {.max_seqs = 1, .ctx_tok = 1024, .depth = depth, .cache_slots = 4};
        run_open(&r, weights, &o);
        RunSeq *a = add(&r, 1, 100, 100, 0);
        step_until(&r, a, 41);
        run_pause(a, true);
        RunSeq *b = add(&r, 2, 70, 100, 0);
        step_until(&r, b, 5);
        assert_int_equal(n_preempted(a), 1);
        assert_int_equal(r.engine->n_parked, 1);
        int32_t told = a->n_told;
        run_pause(a, false);
        while (a->n_told == told)
            (void)run_step(&r);
        // b has come to its end, and nothing of a was read twice.
        assert_int_equal(b->n_ends, 1);
        assert_int_equal(r.engine->n_parked, 0);
        int64_t steps = fake.device->n_submitted;
        step_until(&r, a, a->n_told + 20);
        assert_in_range(fake.device->n_submitted - steps, 19, 20 + depth);
        assert_int_equal(engine_figures(r.engine).n_steps,
                         fake.device->n_submitted); // 2 prompts, 141 and 100 ids, none again
        assert_in_range(fake.device->n_submitted, 2 + 61 + 99, 2 + 66 + 99 + 2 * depth);
        run_finish(&r);
        run_close(&r);
    }
}

static void test_what_a_slow_reader_keeps_is_taken_when_others_need_it(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r;
        EngineOptions o = {.max_seqs = 1, .ctx_tok = 384, .depth = depth, .cache_slots = 4};
        run_open(&r, weights, &o);
        RunSeq *a = add(&r, 1, 100, 100, 0);
        step_until(&r, a, 41);
        run_pause(a, true);
        RunSeq *b = add(&r, 2, 60, 300, 0); // six blocks in the end, which is all there are
        step_until(&r, b, 5);
        assert_int_equal(r.engine->n_parked, 1);
        step_until(&r, b, 300);
        assert_int_equal(r.engine->n_parked, 0);
        RunSeq *c = add(&r, 3, 60, 20, 0); // and what is kept of one that is cancelled
        run_pause(a, false);
        step_until(&r, a, 60);
        run_pause(a, true);
        step_until(&r, c, 3);
        assert_int_equal(r.engine->n_parked, 1);
        a->cancelled_at = r.step;
        engine_cancel(r.engine, a->seq);
        assert_int_equal(r.engine->n_parked, 0);
        run_finish(&r);
        run_close(&r);
    }
}

static void test_an_answer_sent_back_goes_on_from_no_state_that_decode_made(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r, before;
        EngineOptions o = {
            .max_seqs = 2, .ctx_tok = 1024, .depth = depth, .cache_slots = 1, .chunk_tok = 64};
        run_open(&before, weights, &o); // what a will come to
        add(&before, 1, 70, 130, 0);
        run_finish(&before);
        run_close(&before);
        run_open(&r, weights, &o);
        RunSeq *a = add(&r, 1, 70, 130, 0);
        step_until(&r, a, 64); // the cache's one slot is its own by now
        RunSeq *b = add_after(&r, &before.seqs[0], 195, 100);
        while (a->n_ends == 0)
            (void)run_step(&r);
        assert_int_equal(engine_figures(r.engine).prefix.n_snapshots, 1); // made by decode, at 192
        assert_true(b->n_told > 10 && b->n_ends == 0);
        run_pause(b, true);
        RunSeq *c = add(&r, 2, 5, 4, 0), *d = add(&r, 3, 5, 4, 0);
        while (c->n_ends + d->n_ends < 2)
            (void)run_step(&r);
        assert_int_equal(n_preempted(b), 1);
        assert_int_equal(engine_figures(r.engine).prefix.n_snapshots, 1);
        run_pause(b, false);
        run_finish(&r); // each id is compared
        assert_int_equal(engine_figures(r.engine).n_decode_made_hits, 0);
        assert_int_equal(engine_figures(r.engine).n_prompt_tok,
                         70 + 195 + 5 + 5); // each counts once
        run_close(&r);
    }
}

static void test_an_exact_snapshot_has_exact_blocks_before_it(void **state) {
    UNUSED(state);
    for (int32_t depth = 1; depth <= 2; depth++) {
        static Run r, before;
        EngineOptions o = {
            .max_seqs = 2, .ctx_tok = 1024, .depth = depth, .cache_slots = 6, .chunk_tok = 64};
        run_open(&before, weights, &o);
        add(&before, 1, 70, 130, 0);
        run_finish(&before);
        run_close(&before);
        run_open(&r, weights, &o);
        RunSeq *a = add(&r, 1, 70, 130, 0);
        step_until(&r, a, 129);
        add_after(&r, &before.seqs[0], 199, 3); // reads while a writes its last
        run_finish(&r);
        RunSeq *c = add_after(&r, &before.seqs[0], 198, 20);
        run_finish(&r);
        assert_int_equal(c->n_told, 20);
        assert_int_equal(engine_figures(r.engine).n_decode_made_hits, 0);
        assert_true(engine_figures(r.engine).n_cached_tok >= 192);
        run_close(&r);
    }
}

static void test_what_goes_on_from_decode_is_never_called_exact(void **state) {
    UNUSED(state);
    static Run r;
    EngineOptions o = {.max_seqs = 1, .ctx_tok = 2048, .cache_slots = 8};
    run_open(&r, weights, &o);
    RunSeq *a = add(&r, 1, 70, 130, 0);
    run_finish(&r);
    RunSeq *b = add_after(&r, a, 200, 200); // from a's end, made by decode
    run_finish(&r);
    assert_int_equal(engine_figures(r.engine).n_decode_made_hits, 1);
    RunSeq *c = add_after(&r, b, 330, 5); // from b's prompt or answer, both behind a's end
    run_finish(&r);
    assert_int_equal(engine_figures(r.engine).n_decode_made_hits, 2);
    assert_int_equal(c->n_told, 5);
    run_close(&r);
}

static int open_model(void **state) {
    UNUSED(state);
    return weights_open(&weights, "synth:micro", NULL, NULL) == STATUS_OK ? 0 : -1;
}
static int close_model(void **state) {
    UNUSED(state);
    weights_close(weights);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_client_with_most_running_gives_way_then_who_came_last),
        cmocka_unit_test(test_who_came_first_waits_for_no_block_longer_than_the_steps_in_flight),
        cmocka_unit_test(test_a_long_sequence_alone_gets_the_whole_pool),
        cmocka_unit_test(test_a_time_bounds_how_much_is_read_beside_answers),
        cmocka_unit_test(test_a_prompt_bounds_how_much_longer_a_step_of_answers_is),
        cmocka_unit_test(test_as_many_prompts_as_answers_may_take_twice_as_long_as_these),
        cmocka_unit_test(test_without_answers_beside_it_a_piece_goes_through_all_layers_left),
        cmocka_unit_test(test_nothing_of_half_a_piece_is_ever_used),
        cmocka_unit_test(test_several_prompts_share_a_piece_and_one_may_leave_it),
        cmocka_unit_test(test_blocks_for_an_answer_are_taken_from_a_piece_half_way),
        cmocka_unit_test(test_a_prompt_that_another_reads_does_not_wait_for_a_paused_one),
        cmocka_unit_test(test_a_slow_readers_answer_goes_on_where_it_was),
        cmocka_unit_test(test_what_a_slow_reader_keeps_is_taken_when_others_need_it),
        cmocka_unit_test(test_an_answer_sent_back_goes_on_from_no_state_that_decode_made),
        cmocka_unit_test(test_an_exact_snapshot_has_exact_blocks_before_it),
        cmocka_unit_test(test_what_goes_on_from_decode_is_never_called_exact),
        cmocka_unit_test(test_random_runs_keep_every_invariant),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
