// SPDX-License-Identifier: Apache-2.0
/* test_cuda_device.c - the CUDA backend on a card: what cuda_checks.h lists, and graphs. Skipped by
 * name where there is no card, or where the build has no CUDA. */
#include "cuda_checks.h"

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
        CUDA_CHECKS,
        BOTH(C8_graph_and_eager_are_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
