// SPDX-License-Identifier: Apache-2.0
/* test_oracle_ref.c - the reference backend against everything that the oracle lists; f32 here, f64
 * where test_oracle_ref64.c includes this file. */
#include "oracle_checks.h"

#ifndef REF_KIND
#define REF_KIND BACKEND_REF
#define REF_IS_F64 false
#endif

typedef struct Fixture {
    Oracle o;
    OracleDevice d;
    OracleBounds t;
} Fixture;

static int setup(void **state, const char *name, double max_abs) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    oracle_open(&f->o, name);
    oracle_device_open(&f->d, f->o.weights, REF_KIND, (BackendPlan){.n_threads = 2});
    f->t = (OracleBounds){.rel = REF_IS_F64 ? TOL_F64_REL : TOL_F32_REL,
                          .max_abs = REF_IS_F64 ? TOL_F64_LOGIT : max_abs,
                          .nll = REF_IS_F64 ? TOL_F64_LOGIT : max_abs,
                          .margin = REF_IS_F64 ? TOL_F64_LOGIT : TOL_F32_MARGIN,
                          .has_trace = true,
                          .rounds_to_f32 = REF_IS_F64};
    *state = f;
    return 0;
}

static int setup_a(void **state) { return setup(state, "tiny-a", TOL_F32_LOGIT_A); }
static int setup_b(void **state) { return setup(state, "tiny-b", TOL_F32_LOGIT_B); }

static int teardown(void **state) {
    Fixture *f = *state;
    oracle_device_close(&f->d);
    oracle_close(&f->o);
    free(f);
    return 0;
}

static void c6_prompts_of_1_to_517_give_the_reference_logits_gaps_and_nll(void **state) {
    Fixture *f = *state;
    oracle_check_prompts(&f->o, &f->d, &f->t);
}

static void c6_prompts_of_three_and_four_give_the_first_rows_of_five(void **state) {
    Fixture *f = *state;
    oracle_check_short_prompts(&f->o, &f->d, &f->t);
}

static void every_traced_value_agrees(void **state) {
    Fixture *f = *state;
    oracle_check_trace(&f->o, &f->d, &f->t);
}

static void states_after_65_agree(void **state) {
    Fixture *f = *state;
    oracle_check_states(&f->o, &f->d, &f->t);
}

static void greedy_continuations_agree(void **state) {
    Fixture *f = *state;
    static const int prompts[] = {1, 5, 64, 129};
    for (size_t i = 0; i < COUNT_OF(prompts); i++)
        oracle_check_greedy(&f->o, &f->d, prompts[i], ORACLE_IS_SLOW ? 8 : 64, &f->t);
}

#define BOTH(test)                                                                                 \
    {#test " tiny-a", test, setup_a, teardown, NULL}, {                                            \
#test " tiny-b", test, setup_b, teardown, NULL                                             \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(every_traced_value_agrees),
        BOTH(states_after_65_agree),
        BOTH(c6_prompts_of_three_and_four_give_the_first_rows_of_five),
        BOTH(c6_prompts_of_1_to_517_give_the_reference_logits_gaps_and_nll),
        BOTH(greedy_continuations_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
