// SPDX-License-Identifier: Apache-2.0
/* test_work.c - bytes and operations of steps against figures worked out by hand for the full
 * shape: the table of docs/performance.md. */
#include "unit.h"

#include "cli/work.h"

#include <math.h>

static void open_full(Work *out) {
    Weights *w;
    assert_int_equal(weights_open(&w, "synth:qwen3.6-35b-a3b", NULL, NULL), STATUS_OK);
    work_init(out, w);
    weights_close(w);
}

#define assert_near(found, want, bound)                                                            \
    do {                                                                                           \
        double found_ = (found), want_ = (want);                                                   \
        if (fabs(found_ - want_) > (bound))                                                        \
            fail_msg("line %d: expected %.9g, found %.9g", __LINE__, want_, found_);               \
    } while (0)

static void a_decoded_token_of_the_full_shape(void **state) {
    UNUSED(state);
    Work w;
    open_full(&w);
    WorkLoad load = work_load_decode(256, 1, 1, 8 * 40);
    // 256 positions read, one written
    double kv = 20480.0 * 257, state_bytes = 2.0 * 62914560 + 2.0 * 1474560;
    assert_near(work_total(&w, &load).bytes, 1669561728.0 + state_bytes + kv, 1);
    assert_near(work_total(&w, &load).bytes, 1.8036e9, 0.1e6);
    // 4.873 G of matrices, the head, the delta rule, attention over 257 positions
    assert_near(work_total(&w, &load).flop, 4.873e9 + 1.017e9 + 110.1e6 + 163840.0 * 257, 2e6);

    load = work_load_decode(131072, 1, 1, 8 * 40);
    assert_near(work_total(&w, &load).bytes, 4.483e9, 1e6);
}

static void stages_of_a_decoded_token(void **state) {
    UNUSED(state);
    Work w;
    open_full(&w);
    WorkLoad load = work_load_decode(4096, 1, 1, 8 * 40);
    static const struct {
        BackendStageId id;
        double bytes;
    } want[] = {
        {STAGE_EMBED, 1152},
        {STAGE_GDN_OUT, 30.0 * 2048 * 4096 * 9 / 16}, // 4.5 bits a weight
        {STAGE_GDN_IN, 568442880 - 30.0 * 2048 * 4096 * 9 / 16 + 30.0 * 2048 * 2},
        {STAGE_GDN, 1977600 + 2.0 * 62914560 + 2.0 * 1474560},
        {STAGE_ATTN_OUT, 10.0 * 2048 * 4096 * 9 / 16},
        {STAGE_ATTN_IN, 10 * 15335424.0 - 10.0 * 2048 * 4096 * 9 / 16 + 10.0 * 2048 * 2},
        {STAGE_ATTN, 10.0 * 2 * 256 * 2 + 20480.0 * 4097},
        {STAGE_ROUTER, 22369280 + 40.0 * 2048 * 2 + 40 * 1769472.0 * 2 / 3},
        {STAGE_EXPERTS_UP, 566231040.0 * 2 / 3},
        {STAGE_EXPERTS_DOWN, 566231040.0 / 3 + 40 * 1769472.0 / 3},
        {STAGE_HEAD, 286064640 + 2048 * 2},
        {STAGE_SAMPLE, 0},
    };
    double all = 0;
    assert_int_equal(COUNT_OF(want), STAGE_N);
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        double found = work_stage(&w, &load, want[i].id).bytes;
        if (fabs(found - want[i].bytes) > 0.5 + 0.00001 * want[i].bytes)
            fail_msg("%s: expected %.0f, found %.0f", backend_stage_name(want[i].id), want[i].bytes,
                     found);
        all += found;
    }
    assert_near(all, work_total(&w, &load).bytes, 1);
}

static void a_batch_reads_each_expert_once(void **state) {
    UNUSED(state);
    Work w;
    open_full(&w);
    // 57.4 experts a layer for 8 tokens with even routing, 5.17 GB of weights
    double reads = work_expected_experts(&w, 1, 8);
    assert_near(reads / 40, 57.4, 0.05);
    assert_near(work_expected_experts(&w, 3, 1), 3 * 40 * 8, 1e-6);
    WorkLoad load = work_load_decode(256, 1, 8, reads);
    double rest = 8 * (2.0 * 62914560 + 2.0 * 1474560 + 20480.0 * 257);
    assert_near(work_total(&w, &load).bytes - rest, 5.17e9, 0.01e9);
    // Dense weights do not grow with the batch, states do.
    WorkLoad one = work_load_decode(256, 1, 1, 320);
    assert_near(work_stage(&w, &load, STAGE_GDN_IN).bytes, work_stage(&w, &one, STAGE_GDN_IN).bytes,
                0);
    assert_near(work_stage(&w, &load, STAGE_GDN).bytes,
                8 * work_stage(&w, &one, STAGE_GDN).bytes - 7 * 1977600.0, 1);
    assert_near(work_total(&w, &load).flop, 8 * work_total(&w, &one).flop, 1e3);
}

static void many_steps_are_the_sum_of_single_ones(void **state) {
    UNUSED(state);
    Work w;
    open_full(&w);
    WorkLoad all = work_load_decode(300, 5, 2, 5 * 600);
    WorkDone sum = {0};
    for (int i = 0; i < 5; i++) {
        WorkLoad one = work_load_decode(300 + i, 1, 2, 600);
        sum.bytes += work_total(&w, &one).bytes;
        sum.flop += work_total(&w, &one).flop;
    }
    assert_near(work_total(&w, &all).bytes, sum.bytes, 10);
    assert_near(work_total(&w, &all).flop, sum.flop, 10);
}

static void a_prefill_of_the_full_shape(void **state) {
    UNUSED(state);
    Work w;
    open_full(&w);
    WorkLoad load = work_load_prefill(4096, 1024, 1, 4 * 40 * 256);
    // 4.873 G a token, the delta rule, attention over half the prompt on average; the head once
    double want = 4096 * (4.873e9 + 110.1e6) + 163840.0 * 4096 * 4097 / 2 + 1.017e9;
    assert_near(work_total(&w, &load).flop / want, 1, 1e-3);
    // four pieces read all weights but the head each; pieces 1, 2, 3 read what came before
    double weights = 4 * (19508787456.0 - 2 * 286064640.0) + 286064640.0;
    double rest = 4096 * (20480.0 + 1152) + 4 * (2.0 * 62914560 + 2.0 * 1474560) +
                  20480.0 * 1024 * (1 + 2 + 3);
    assert_near(work_total(&w, &load).bytes / (weights + rest), 1, 1e-3);

    // Sequences behind each other are as many times the work.
    WorkLoad three = work_load_prefill(4096, 1024, 3, 3 * 4 * 40 * 256);
    assert_near(work_total(&w, &three).bytes / work_total(&w, &load).bytes, 3, 1e-9);
    assert_near(work_total(&w, &three).flop / work_total(&w, &load).flop, 3, 1e-9);

    // A prompt shorter than a piece reads no context; the stages add up.
    WorkLoad small = work_load_prefill(9, 1024, 1, 40 * 60);
    assert_near(small.n_keys_read, 0, 0);
    double all = 0;
    for (int s = 0; s < STAGE_N; s++)
        all += work_stage(&w, &small, (BackendStageId)s).bytes;
    assert_near(all, work_total(&w, &small).bytes, 1);
}

static void the_slower_of_memory_and_arithmetic_is_the_bound(void **state) {
    UNUSED(state);
    bool is_flop = true;
    WorkDone done = {.bytes = 50e9, .flop = 1e12};
    assert_near(work_bound_seconds(done, 25, 2, &is_flop), 2, 1e-12);
    assert_false(is_flop);
    assert_near(work_bound_seconds(done, 100, 0.5, &is_flop), 2, 1e-12);
    assert_true(is_flop);
    assert_near(work_bound_seconds((WorkDone){0}, 25, 2, NULL), 0, 0);
}

static void the_head_is_its_own_matrix_or_the_embedding(void **state) {
    UNUSED(state);
    Weights *weights;
    assert_int_equal(weights_open(&weights, "synth:tiny", NULL, NULL), STATUS_OK);
    const ModelConfig *c = weights_config(weights);
    Work w;
    work_init(&w, weights);
    WorkLoad load = work_load_decode(1, 1, 1, 0);
    double head = weights_has(weights, SLOT_HEAD, -1)
                      ? (double)weights_info(weights, SLOT_HEAD, -1).n_bytes
                      : (double)weights_info(weights, SLOT_EMBED, -1).n_bytes;
    assert_near(work_stage(&w, &load, STAGE_HEAD).bytes, head + 2.0 * c->hidden, 0);
    assert_near(work_stage(&w, &load, STAGE_HEAD).flop, 2.0 * c->hidden * c->vocab, 0);
    weights_close(weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decoded_token_of_the_full_shape),
        cmocka_unit_test(stages_of_a_decoded_token),
        cmocka_unit_test(a_batch_reads_each_expert_once),
        cmocka_unit_test(many_steps_are_the_sum_of_single_ones),
        cmocka_unit_test(a_prefill_of_the_full_shape),
        cmocka_unit_test(the_slower_of_memory_and_arithmetic_is_the_bound),
        cmocka_unit_test(the_head_is_its_own_matrix_or_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
