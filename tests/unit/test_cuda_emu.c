// SPDX-License-Identifier: Apache-2.0
/* test_cuda_emu.c - the CUDA backend, kernels and all, run on the CPU: what cuda_checks.h lists. */
#include "cuda_checks.h"

void emu_set_order(int order);

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

/* An argument chooses tests by name, * for any part. */
int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        CUDA_CHECKS,
        BOTH(order_of_threads_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
