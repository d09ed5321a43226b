// SPDX-License-Identifier: Apache-2.0
/* test_cuda_emu.c - the CUDA backend, kernels and all, run on the CPU: what cuda_checks.h lists. */
#ifdef LILY_CUDA_EMU

#include "cuda_checks.h"

void emu_set_order(int order);
extern int emu_fail_after;

/* Warps and lanes in descending order give the same bits: no kernel relies on which comes first. */
static void order_of_threads_changes_nothing(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    float *want = answer(&d, &a, f->ids, 66, 1, 704);
    emu_set_order(1);
    float *got = answer(&d, &b, f->ids, 66, 1, 704);
    emu_set_order(0);
    expect_same(f, got, want, 2, "order", 1);
    free(got);
    free(want);
    oracle_device_close(&d);
}

/* Every allocation on the card fails once: a plain error, and nothing is left behind. */
static void missing_device_memory_is_told(void **state) {
    Fixture *f = *state;
    BackendPlan plan = {.max_rows = 64,
                        .max_seqs = 1,
                        .n_blocks = 2,
                        .n_slots = 1,
                        .n_samplers = 1,
                        .max_ctx = 128,
                        .n_threads = 1};
    int n = 0, n_failed = 0;
    for (bool is_used = true; is_used; n++) {
        Backend *b = NULL;
        Err err = {0};
        emu_fail_after = n;
        Status status = backend_open(&b, BACKEND_CUDA, f->o.weights, &plan, NULL, NULL, &err);
        is_used = emu_fail_after < 0;
        emu_fail_after = -1;
        n_failed += status != STATUS_OK;
        if (status == STATUS_OK)
            backend_close(b);
        else
            assert_int_equal(status, STATUS_MEMORY);
    }
    assert_int_equal(n, 9);        // weights, blocks, slots, scratch, host, logits, 2 for staging
    assert_int_equal(n_failed, 7); // logits that cannot be pinned lie in ordinary pages
}

/* An argument chooses tests by name, * for any part. */
int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    // Each check on one of the two models, in turn: both would take minutes here.
    const struct CMUnitTest tests[] = {
        BOTH(taps_show_the_residual_stream),
        ON(b, prompts_agree_with_f64),
        ON(a, greedy_steps_choose_the_reference_ids),
        ON(b, states_after_65_agree),
        ON(b, C2_chunk_sizes_are_equal),
        ON(a, every_row_of_a_chunked_prompt_is_equal),
        ON(b, C68_batch_and_single_are_equal),
        ON(b, C70_wide_decodes_are_equal),
        ON(a, restored_and_copied_states_are_equal),
        ON(b, snapshots_are_equal),
        ON(a, C4_a_poisoned_slot_starts_clean),
        ON(b, a_broken_state_is_named),
        ON(a, carried_ids_are_those_fed_by_hand),
        ON(b, masked_ids_are_not_chosen),
        ON(a, a_step_allocates_nothing),
        ON(b, order_of_threads_changes_nothing),
        ON(a, wrong_plans_are_refused),
        ON(a, open_reports_missing_memory),
        ON(a, missing_device_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include <stdio.h>

int main(void) {
    printf("skipped: test_cuda_emu: built without cuda.mk\n");
    return 0;
}

#endif
