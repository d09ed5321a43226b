// SPDX-License-Identifier: Apache-2.0
/* test_cuda_device.c - the CUDA backend on a card: what cuda_checks.h lists, and graphs. Skipped by
 * name where there is no card, or where the build has no CUDA. */
#include "cuda_checks.h"
#include "cuda_copy_checks.h"
#ifdef LILY_HAS_CUDA
#include "cuda_attn_checks.h"
#include "cuda_delta_checks.h"
#include "cuda_experts_checks.h"
#include "cuda_matvec_checks.h"
#include "cuda_sample_checks.h"
#endif

/* C8: a replayed graph and kernels started one by one, chained or not, give the same bits. */
static void C8_graph_and_eager_are_equal(void **state) {
    Fixture *f = *state;
    static const char *const masks[] = {NULL, "graph", "chain", "graph,chain"};
    float *want = NULL;
    for (size_t i = 0; i < COUNT_OF(masks); i++) {
        OracleDevice d;
        device(&d, f, masks[i]);
        OracleSeq s = oracle_seq(0);
        float *got = answer(&d, &s, f->ids, 200, 32, 704);
        if (want)
            expect_same(f, got, want, 33, "mask", (int)i);
        else
            want = memcpy(oracle_alloc(33 * f->v, 4), got, 33 * f->v * 4);
        free(got);
        oracle_device_close(&d);
    }
    free(want);
}

/* Steps and copies beside each other give what they give one by one. */
static void programs_beside_steps_are_those_waited_for(void **state) {
    for (uint64_t seed = 1; seed <= 8; seed++)
        copy_program(*state, seed, NULL, NULL);
}

/* An argument chooses tests by name, * for any part. */
int main(int argc, char **argv) {
    char text[160] = "";
    if (!backend_is_available(BACKEND_CUDA, text, sizeof text)) {
        printf("skipped: test_cuda_device: %s\n", text);
        return 0;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
#ifdef LILY_HAS_CUDA
        cmocka_unit_test(delta_rule_agrees_with_the_token_loop),
        CUDA_MATMUL_CHECKS,
        CUDA_EXPERTS_CHECKS,
        CUDA_ATTN_CHECKS,
        cmocka_unit_test(wide_matrices_norm_on_the_way),
        cmocka_unit_test(draws_are_those_of_the_host),
        BOTH(drawn_ids_go_on_by_carry),
#endif
        CUDA_CHECKS,
        BOTH(C8_graph_and_eager_are_equal),
        BOTH(a_sequence_is_saved_and_restored_beside_decodes),
        BOTH(lists_beyond_the_most_wait_for_the_oldest),
        BOTH(programs_beside_steps_are_those_waited_for),
        MICRO(programs_beside_steps_are_those_waited_for),
    };
    const struct CMUnitTest sm80[] = {CUDA_CHECKS};
    int n_failed = cmocka_run_group_tests_name("sm90a", tests, NULL, NULL);
    column_mask = "sm90a"; // on cards that lack it, the same again
    return n_failed + cmocka_run_group_tests_name("sm80", sm80, NULL, NULL);
}
