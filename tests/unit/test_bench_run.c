// SPDX-License-Identifier: Apache-2.0
/* test_bench_run.c - the sequences that `bench` times: prompts, filled contexts, decoding two steps
 * ahead, and what happens when memory runs out. */
#include "unit.h"

#include "base/mem.h"
#include "cli/bench_run.h"

#include <stdlib.h>
#include <string.h>

typedef struct Fixture {
    Weights *w;
    CliArgs args;
    BenchRunPlan plan;
} Fixture;

static int setup(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f || weights_open(&f->w, "synth:tiny,layers=4", NULL, NULL) != STATUS_OK)
        return -1;
    f->args = (CliArgs){.threads = 2};
    f->plan = (BenchRunPlan){
        .kind = BACKEND_CPU, .n_seqs = 2, .n_positions = 400, .chunk = 64, .seed = 7};
    *state = f;
    return 0;
}

static int teardown(void **state) {
    Fixture *f = *state;
    weights_close(f->w);
    free(f);
    return 0;
}

static BenchRun run_open(Fixture *f, BenchRunPlan plan) {
    BenchRun r;
    Err err = {0};
    if (bench_run_open(&r, &plan, &f->args, f->w, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return r;
}

/* What is asked of the backend one step at a time, each id from the host. */
static void by_hand(BenchRun *r, int32_t seq, int32_t pos, int32_t n_steps, int32_t *made) {
    int32_t id = r->next[seq];
    for (int32_t i = 0; i < n_steps; i++) {
        made[i] = id;
        BatchSeq part = {.phase = PHASE_DECODE,
                         .n_rows = 1,
                         .pos0 = pos + i,
                         .slot = seq,
                         .blocks = r->blocks + seq * r->seq_blocks,
                         .sampler = seq,
                         .carry = -1};
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = &id};
        BatchResult result;
        assert_int_equal(backend_submit(r->backend, &batch, NULL), STATUS_OK);
        assert_int_equal(backend_wait(r->backend, &result, NULL), STATUS_OK);
        id = result.sample.id;
    }
}

static void two_steps_ahead_make_the_ids_of_one_at_a_time(void **state) {
    Fixture *f = *state;
    enum { STEPS = 7, CONTEXT = 150 };
    BenchRun r = run_open(f, f->plan);
    int32_t made[2 * STEPS], want[STEPS];
    assert_int_equal(bench_run_prefill(&r, CONTEXT, NULL), STATUS_OK);
    assert_int_equal(bench_run_decode(&r, CONTEXT, STEPS, made, STEPS, NULL), STATUS_OK);
    for (int32_t seq = 0; seq < 2; seq++) {
        assert_int_equal(bench_run_prefill(&r, CONTEXT, NULL), STATUS_OK);
        by_hand(&r, seq, CONTEXT, STEPS, want);
        assert_memory_equal(made + seq * STEPS, want, sizeof want);
    }
    assert_memory_not_equal(made, made + STEPS, sizeof want);
    bench_run_close(&r);
}

static void decoding_goes_on_where_it_stopped(void **state) {
    Fixture *f = *state;
    enum { STEPS = 7, FIRST = 3, CONTEXT = 150 };
    BenchRun r = run_open(f, f->plan);
    int32_t made[2 * STEPS], want[2 * STEPS];
    assert_int_equal(bench_run_prefill(&r, CONTEXT, NULL), STATUS_OK);
    assert_int_equal(bench_run_decode(&r, CONTEXT, STEPS, want, STEPS, NULL), STATUS_OK);
    assert_int_equal(bench_run_prefill(&r, CONTEXT, NULL), STATUS_OK);
    for (int32_t at = 0; at < STEPS; at += FIRST) {
        int32_t n = at + FIRST < STEPS ? FIRST : STEPS - at;
        assert_int_equal(bench_run_decode(&r, CONTEXT + at, n, made + at, STEPS, NULL), STATUS_OK);
    }
    assert_memory_equal(made, want, sizeof want);
    bench_run_close(&r);
}

static void sequences_have_prompts_of_their_own_number(void **state) {
    Fixture *f = *state;
    BenchRun both = run_open(f, f->plan);
    BenchRunPlan later = f->plan;
    later.n_seqs = 1;
    later.seed = f->plan.seed + 1;
    BenchRun second = run_open(f, later);
    size_t n = (size_t)f->plan.n_positions;
    assert_memory_equal(both.ids + n, second.ids, n * sizeof(int32_t));
    assert_memory_not_equal(both.ids, both.ids + n, n * sizeof(int32_t));
    for (size_t i = 0; i < 2 * n; i++)
        assert_in_range(both.ids[i], 0, both.config->vocab - 1);
    bench_run_close(&both);
    bench_run_close(&second);
}

/* Every filled block is the copy of a block that was read, of the same sequence; more than one of
 * them is used; the state is that of the tokens that were read. */
static void a_filled_context_holds_copies_of_what_was_read(void **state) {
    Fixture *f = *state;
    enum { CONTEXT = 390, REAL = 3 }; // half of it, in whole blocks
    BenchRun r = run_open(f, f->plan);
    uint64_t size = backend_block_host_bytes(r.backend), slot = backend_slot_host_bytes(r.backend);
    uint8_t *block = malloc(size), *states = malloc(2 * slot);
    uint8_t *read = malloc(REAL * size);
    assert_true(block && read && states);
    assert_int_equal(bench_run_fill(&r, CONTEXT, NULL), STATUS_OK);
    for (int32_t seq = 0; seq < 2; seq++) {
        const int32_t *blocks = r.blocks + seq * r.seq_blocks;
        int n_used[REAL] = {0};
        for (int i = 0; i < REAL; i++)
            assert_int_equal(
                backend_block_save(r.backend, blocks[i], read + (size_t)i * size, NULL), STATUS_OK);
        for (int i = REAL; i < 7; i++) { // 390 tokens are 7 blocks
            assert_int_equal(backend_block_save(r.backend, blocks[i], block, NULL), STATUS_OK);
            int k = 0;
            while (k < REAL && memcmp(block, read + (size_t)k * size, size) != 0)
                k++;
            assert_in_range(k, 0, REAL - 1);
            n_used[k]++;
        }
        assert_true(n_used[0] < 4 && n_used[1] < 4 && n_used[2] < 4);
    }
    assert_int_equal(backend_slot_save(r.backend, 0, states, NULL), STATUS_OK);
    assert_int_equal(bench_run_prefill(&r, REAL * KV_BLOCK, NULL), STATUS_OK);
    assert_int_equal(backend_slot_save(r.backend, 0, states + slot, NULL), STATUS_OK);
    assert_memory_equal(states, states + slot, slot);

    // The last row decodes behind it, on finite numbers.
    int32_t made[2 * 10];
    assert_int_equal(bench_run_fill(&r, CONTEXT, NULL), STATUS_OK);
    assert_int_equal(bench_run_decode(&r, CONTEXT, 10, made, 10, NULL), STATUS_OK);
    for (int i = 0; i < 20; i++)
        assert_in_range(made[i], 0, r.config->vocab - 1);
    free(block);
    free(read);
    free(states);
    bench_run_close(&r);
}

static void contexts_that_cannot_be_filled(void **state) {
    UNUSED(state);
    assert_false(bench_run_can_fill(1));
    assert_false(bench_run_can_fill(2 * KV_BLOCK));
    assert_true(bench_run_can_fill(2 * KV_BLOCK + 1));
}

/* The plan's last position is warmed, read and decoded; nothing lies beyond it. */
static void the_whole_plan_can_be_used(void **state) {
    Fixture *f = *state;
    static const int32_t contexts[] = {1, 63, 64, 65, 128, 129, 398};
    BenchRun r = run_open(f, f->plan);
    int32_t made[2 * 2];
    for (size_t i = 0; i < COUNT_OF(contexts); i++) {
        for (int is_filled = 0; is_filled <= bench_run_can_fill(contexts[i]); is_filled++) {
            assert_int_equal(bench_run_warm(&r, contexts[i], is_filled, NULL), STATUS_OK);
            assert_int_equal(is_filled ? bench_run_fill(&r, contexts[i], NULL)
                                       : bench_run_prefill(&r, contexts[i], NULL),
                             STATUS_OK);
            assert_int_equal(bench_run_decode(&r, contexts[i], 2, made, 2, NULL), STATUS_OK);
        }
    }
    bench_run_close(&r);
}

static void memory_that_runs_out_is_told_and_given_back(void **state) {
    Fixture *f = *state;
    int64_t before = mem_count();
    BenchRun r = run_open(f, f->plan);
    int64_t n = mem_count() - before;
    int n_refused = 0;
    for (int64_t after = 0; after < n; after++) {
        BenchRun other = {0};
        Err err = {0};
        mem_fail_after(after);
        Status status = bench_run_open(&other, &f->plan, &f->args, f->w, &err);
        mem_fail_after(-1);
        bench_run_close(&other); // a few are only asked for hints and may fail
        n_refused += status != STATUS_OK;
        if (status != STATUS_OK)
            assert_true(status == STATUS_MEMORY && err.code == STATUS_MEMORY);
    }
    assert_true(n_refused >= 10);
    mem_fail_after(0);
    assert_int_equal(bench_run_fill(&r, 300, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(bench_run_fill(&r, 300, NULL), STATUS_OK);
    bench_run_close(&r);
    bench_run_close(&r); // closed ones are fine
}

#define WITH(test)                                                                                 \
    { #test, test, setup, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH(two_steps_ahead_make_the_ids_of_one_at_a_time),
        WITH(decoding_goes_on_where_it_stopped),
        WITH(sequences_have_prompts_of_their_own_number),
        WITH(a_filled_context_holds_copies_of_what_was_read),
        cmocka_unit_test(contexts_that_cannot_be_filled),
        WITH(the_whole_plan_can_be_used),
        WITH(memory_that_runs_out_is_told_and_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
