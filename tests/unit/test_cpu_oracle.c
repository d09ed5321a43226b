// SPDX-License-Identifier: Apache-2.0
/* test_cpu_oracle.c - the cpu backend against everything that the oracle lists: in the f32 test
 * mode within the f32 bounds, as it normally runs closer to the f64 reference than either bf16
 * reference. */
#include "oracle_checks.h"

typedef struct Fixture {
    Oracle o;
    OracleDevice d, f32; // as it runs; with f32 cache and windows
    OracleBounds t;
    double rel, kl; // bounds of normal running
} Fixture;

static int setup(void **state, const char *name, const char *mask) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    bool is_a = strcmp(name, "tiny-a") == 0;
    double max_abs = is_a ? TOL_F32_LOGIT_A : TOL_F32_LOGIT_B;
    oracle_open(&f->o, name);
    BackendPlan plan = {.n_threads = 2, .mask = mask};
    oracle_device_open(&f->d, f->o.weights, BACKEND_CPU, plan);
    plan.is_f32_activations = true;
    oracle_device_open(&f->f32, f->o.weights, BACKEND_CPU, plan);
    f->t = (OracleBounds){
        .rel = TOL_F32_REL, .max_abs = max_abs, .nll = max_abs, .margin = TOL_F32_MARGIN};
    bool is_amx = strstr(backend_text(f->d.b), "matmul amx");
    f->rel = is_amx ? (is_a ? TOL_AMX_REL_A : TOL_AMX_REL_B) : is_a ? TOL_CPU_REL_A : TOL_CPU_REL_B;
    f->kl = is_amx ? (is_a ? TOL_AMX_KL_A : TOL_AMX_KL_B) : is_a ? TOL_CPU_KL_A : TOL_CPU_KL_B;
    *state = f;
    return 0;
}

/* The best columns of this machine, and the portable ones. */
static const char GENERIC[] = "avx2,avx512,amx,neon";
static int setup_a(void **state) { return setup(state, "tiny-a", NULL); }
static int setup_b(void **state) { return setup(state, "tiny-b", NULL); }
static int setup_a_generic(void **state) { return setup(state, "tiny-a", GENERIC); }
static int setup_b_generic(void **state) { return setup(state, "tiny-b", GENERIC); }

static int teardown(void **state) {
    Fixture *f = *state;
    oracle_device_close(&f->d);
    oracle_device_close(&f->f32);
    oracle_close(&f->o);
    free(f);
    return 0;
}

static void f32_prompts_give_the_reference_logits_and_nll(void **state) {
    Fixture *f = *state;
    oracle_check_prompts(&f->o, &f->f32, &f->t);
}

static void C6_f32_prompts_of_three_and_four_give_the_first_rows_of_five(void **state) {
    Fixture *f = *state;
    oracle_check_short_prompts(&f->o, &f->f32, &f->t);
}

static void f32_states_after_65_agree(void **state) {
    Fixture *f = *state;
    oracle_check_states(&f->o, &f->f32, &f->t);
}

static void f32_greedy_continuations_agree(void **state) {
    Fixture *f = *state;
    static const int prompts[] = {1, 5, 64, 129};
    for (size_t i = 0; i < COUNT_OF(prompts); i++)
        oracle_check_greedy(&f->o, &f->f32, prompts[i], ORACLE_IS_SLOW ? 8 : 64, &f->t);
}

/* The residual stream after each layer and the final norm, prompt of 5. */
static void taps_show_the_residual_stream(void **state) {
    Fixture *f = *state;
    OracleDevice *devices[] = {&f->f32, &f->d};
    size_t m, n;
    int32_t *ids = oracle_ids(f->o.logits, &m, "prompt.5");
    for (size_t i = 0; i < 2; i++) {
        OracleTrace trace = {0};
        BatchTap tap = {oracle_trace_see, &trace};
        OracleSeq s = oracle_seq(0);
        oracle_prefill(devices[i], &s, ids, m, 64, WANT_NOTHING, &tap);
        double worst = 0;
        for (int layer = -1; layer <= f->o.c->n_layers; layer++) {
            bool is_norm = layer == f->o.c->n_layers;
            char name[32];
            snprintf(name, sizeof name, "layer.%d.out", layer);
            float *want = oracle_f32(f->o.layers, &n,
                                     layer < 0 ? "embed"
                                     : is_norm ? "final_norm"
                                               : name);
            const struct OracleValue *v =
                oracle_trace_find(&trace, is_norm ? "final_norm" : "out", layer, 0);
            assert_non_null(v);
            assert_int_equal(n, v->n_rows * v->width);
            double rel = oracle_rel(v->data, want, n);
            worst = fmax(worst, rel);
            ORACLE_BELOW(rel, i == 0 ? TOL_F32_REL : f->rel, "layer %d", layer);
            free(want);
        }
        printf("%s, %s: residual stream, worst relative rms %.2g\n", f->o.name,
               backend_text(devices[i]->b), worst);
        oracle_trace_fini(&trace);
    }
    free(ids);
}

/* All positions of the prompts up to 65. */
static void prompts_are_closer_to_f64_than_bf16_references(void **state) {
    Fixture *f = *state;
    static const int prompts[] = {1, 2, 5, 63, 64, 65};
    OracleScore score = {0};
    for (size_t i = 0; i < COUNT_OF(prompts); i++) {
        size_t m;
        int32_t *ids = oracle_ids(f->o.logits, &m, oracle_name("prompt", prompts[i]));
        float *want = oracle_f32(f->o.logits, NULL, oracle_name("logits", prompts[i]));
        OracleSeq s = oracle_seq(0);
        float *got = oracle_prefill(&f->d, &s, ids, m, 64, WANT_ALL, NULL);
        oracle_score(&score, got, want, m, f->o.c->vocab);
        free(got);
        free(want);
        free(ids);
    }
    printf("%s, %s: relative rms %.2g, KL %.2g, argmax %.3f, margin %.2g\n", f->o.name,
           backend_text(f->d.b), oracle_score_rel(&score), oracle_score_kl(&score),
           oracle_score_argmax(&score), score.worst_margin);
    ORACLE_BELOW(oracle_score_rel(&score), f->rel, "relative rms");
    ORACLE_BELOW(oracle_score_kl(&score), f->kl, "KL");
    ORACLE_BELOW(score.worst_margin, TOL_BF16_MARGIN, "margin at another argmax");
}

static void mean_nll_of_517_agrees(void **state) {
    Fixture *f = *state;
    if (ORACLE_IS_SLOW)
        skip();
    size_t m, v = (size_t)f->o.c->vocab;
    int32_t *ids = oracle_ids(f->o.logits, &m, "prompt.517");
    float *want = oracle_f32(f->o.greedy, NULL, "nll.517");
    OracleSeq s = oracle_seq(0);
    float *got = oracle_prefill(&f->d, &s, ids, m, 128, WANT_ALL, NULL);
    double sum = 0;
    for (size_t i = 0; i + 1 < m; i++)
        sum += oracle_nll(got + i * v, f->o.c->vocab, ids[i + 1]) - (double)want[i];
    printf("%s: mean nll differs by %.2g\n", f->o.name, sum / (double)(m - 1));
    ORACLE_BELOW(fabs(sum / (double)(m - 1)), TOL_BF16_NLL, "mean nll");
    free(got);
    free(want);
    free(ids);
}

/* Fed with the reference's ids: the argmax of nearly all steps, and of all with a clear margin. */
static void greedy_steps_choose_the_reference_ids(void **state) {
    Fixture *f = *state;
    static const int prompts[] = {1, 5, 64, 129};
    OracleScore score = {0};
    size_t n_steps = ORACLE_IS_SLOW ? 8 : 64, v = (size_t)f->o.c->vocab;
    for (size_t i = 0; i < COUNT_OF(prompts); i++) {
        size_t m;
        char name[32];
        int32_t *ids = oracle_ids(f->o.logits, &m, oracle_name("prompt", prompts[i]));
        snprintf(name, sizeof name, "greedy.%d.ids", prompts[i]);
        int32_t *next = oracle_ids(f->o.greedy, NULL, name);
        snprintf(name, sizeof name, "greedy.%d.logits", prompts[i]);
        float *want = oracle_f32(f->o.greedy, NULL, name);
        OracleSeq s = oracle_seq(0);
        float *got = oracle_prefill(&f->d, &s, ids, m, 64, WANT_LAST, NULL);
        for (size_t step = 0; step < n_steps; step++) {
            oracle_score(&score, got, want + step * v, 1, f->o.c->vocab);
            free(got);
            got = oracle_decode(&f->d, &s, next[step]);
        }
        free(got);
        free(want);
        free(next);
        free(ids);
    }
    printf("%s, %s: %g steps, relative rms %.2g, KL %.2g, argmax %.3f, margin %.2g\n", f->o.name,
           backend_text(f->d.b), score.rows, oracle_score_rel(&score), oracle_score_kl(&score),
           oracle_score_argmax(&score), score.worst_margin);
    ORACLE_BELOW(oracle_score_rel(&score), f->rel, "relative rms");
    ORACLE_BELOW(oracle_score_kl(&score), f->kl, "KL");
    ORACLE_BELOW(1 - oracle_score_argmax(&score), 1 - TOL_BF16_ARGMAX, "share of other argmax");
    ORACLE_BELOW(score.worst_margin, TOL_BF16_MARGIN, "margin at another argmax");
}

#define BOTH(test)                                                                                 \
    {#test " tiny-a", test, setup_a, teardown, NULL}, {                                            \
#test " tiny-b", test, setup_b, teardown, NULL                                             \
    }
#define BOTH_GENERIC(test)                                                                         \
    {#test " tiny-a generic", test, setup_a_generic, teardown, NULL}, {                            \
#test " tiny-b generic", test, setup_b_generic, teardown, NULL                             \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(taps_show_the_residual_stream),
        BOTH(f32_states_after_65_agree),
        BOTH(C6_f32_prompts_of_three_and_four_give_the_first_rows_of_five),
        BOTH(f32_prompts_give_the_reference_logits_and_nll),
        BOTH(f32_greedy_continuations_agree),
        BOTH(prompts_are_closer_to_f64_than_bf16_references),
        BOTH(mean_nll_of_517_agrees),
        BOTH(greedy_steps_choose_the_reference_ids),
        BOTH_GENERIC(taps_show_the_residual_stream),
        BOTH_GENERIC(f32_states_after_65_agree),
        BOTH_GENERIC(prompts_are_closer_to_f64_than_bf16_references),
        BOTH_GENERIC(greedy_steps_choose_the_reference_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
