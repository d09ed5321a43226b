// SPDX-License-Identifier: Apache-2.0
/* test_cpu_moe.c - the choice of experts, ties among them. */
#include "cpu_kernels.h"

#include "backend/cpu/cpu.h"

enum { EXPERTS = 37, MOST = 9 };

/* The greatest first, of equal ones the lowest id; each once. */
static void choose_slowly(const float *logits, int32_t k, int32_t *ids) {
    bool is_taken[EXPERTS] = {false};
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < EXPERTS; e++)
            if (!is_taken[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        is_taken[best] = true;
        ids[i] = best;
    }
}

static void greatest_logits_are_chosen_and_ties_go_to_the_lowest_id(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static Cpu b;
    b.c.n_experts = EXPERTS;
    for (int32_t turn = 0; turn < 2000; turn++) {
        float logits[EXPERTS], weights[MOST], sum = 0;
        int32_t want[MOST], ids[MOST], k = 1 + turn % MOST;
        b.c.top_k = k;
        for (int32_t e = 0; e < EXPERTS; e++) // few values: many ties
            logits[e] = turn % 2 ? random_normal(&r) : (float)(random_u64(&r) % 8);
        if (turn % 5 == 0)
            logits[turn % EXPERTS] = -INFINITY;
        choose_slowly(logits, k, want);
        cpu_moe_choose(&b, logits, ids, weights);
        assert_memory_equal(ids, want, sizeof *ids * (size_t)k);
        for (int32_t i = 0; i < k; i++) {
            sum += weights[i];
            assert_true(fabsf(weights[i] / weights[0] - expf(logits[ids[i]] - logits[ids[0]])) <
                        1e-6f);
        }
        assert_true(fabsf(sum - 1.0f) < 1e-6f);
    }
}

/* Whatever the logits are, what is chosen are experts, each once. */
static void no_numbers_still_choose_different_experts(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static Cpu b;
    b.c.n_experts = EXPERTS;
    b.c.top_k = MOST;
    for (int32_t turn = 0; turn < 500; turn++) {
        float logits[EXPERTS], weights[MOST];
        int32_t ids[MOST];
        bool is_taken[EXPERTS] = {false};
        for (int32_t e = 0; e < EXPERTS; e++)
            logits[e] = random_u64(&r) % 3 ? random_normal(&r) : NAN;
        cpu_moe_choose(&b, logits, ids, weights);
        for (int32_t i = 0; i < MOST; i++) {
            assert_in_range(ids[i], 0, EXPERTS - 1);
            assert_false(is_taken[ids[i]]);
            is_taken[ids[i]] = true;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greatest_logits_are_chosen_and_ties_go_to_the_lowest_id),
        cmocka_unit_test(no_numbers_still_choose_different_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
