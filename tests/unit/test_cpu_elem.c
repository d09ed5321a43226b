// SPDX-License-Identifier: Apache-2.0
/* test_cpu_elem.c - row arithmetic of every column against f64. */
#include "cpu_kernels.h"

#include "backend/cpu/generic/math_generic.h"

static const int32_t sizes[] = {16, 32, 48, 192, 256, 2048};

static void exponential_over_its_whole_range(void **state) {
    UNUSED(state);
    for (double x = -87.0; x <= 87.0; x += 0.0137) {
        double want = exp((double)(float)x);
        ASSERT_NEAR(math_exp((float)x), want, want * 2.4e-7, "exp %g", x);
    }
    assert_true(math_exp(0.0f) == 1.0f);
    assert_true(math_exp(-87.5f) == 0.0f && math_exp(-INFINITY) == 0.0f);
    assert_true(isfinite(math_exp(INFINITY)) && math_exp(INFINITY) > 1e37f);
    assert_true(isnan(math_exp(NAN)));
    assert_true(isnan(math_exp(f32_from_bits(0x7f812345))));
    assert_true(isnan(math_exp(f32_from_bits(0xffc001ff))));
}

static void norm_with_and_without_addend(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    static const float scales[] = {1.0f, 1e-5f, 1e25f}; // ordinary, at eps, squares beyond f32
    for (size_t a = 0; a < COUNT_OF(sizes); a++)
        for (size_t b = 0; b < COUNT_OF(scales); b++)
            for (size_t i = 0; i < 2 * t.n; i++) {
                size_t n = (size_t)sizes[a];
                bool has_add = i % 2;
                const ElemKernels *e = &t.tables[i / 2].elem;
                float *x = guard_f32(n), *add = guard_f32(n), *gain = guard_f32(n);
                float *out = guard_f32(n);
                double mean = 0;
                random_fill(&r, x, n, scales[b]);
                random_fill(&r, add, n, scales[b]);
                random_fill(&r, gain, n, 1.0f);
                float *sum = malloc(n * sizeof *sum);
                for (size_t k = 0; k < n; k++) {
                    sum[k] = has_add ? x[k] + add[k] : x[k];
                    mean += (double)sum[k] * (double)sum[k] / (double)n;
                }
                assert_true(e->add_norm(out, x, has_add ? add : NULL, gain, 1e-6f, (int32_t)n));
                assert_memory_equal(x, sum, n * sizeof *x);
                for (size_t k = 0; k < n; k++) {
                    double want = (double)sum[k] / sqrt(mean + (double)1e-6f) * (double)gain[k];
                    ASSERT_NEAR(out[k], want, fabs(want) * 1e-6, "%s norm %zu", e->column, k);
                }
                x[random_u64(&r) % n] = i < t.n ? NAN : -INFINITY;
                assert_false(e->add_norm(out, x, has_add ? add : NULL, gain, 1e-6f, (int32_t)n));
                free(sum);
                guard_free_f32(x, n);
                guard_free_f32(add, n);
                guard_free_f32(gain, n);
                guard_free_f32(out, n);
            }
}

static void gates(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t a = 0; a < COUNT_OF(sizes); a++)
        for (size_t i = 0; i < t.n; i++) {
            size_t n = (size_t)sizes[a];
            const ElemKernels *e = &t.tables[i].elem;
            float *x = guard_f32(n), *y = guard_f32(n), *out = guard_f32(n);
            random_fill(&r, x, n, 10.0f);
            random_fill(&r, y, n, 10.0f);
            x[3] = 100.0f;
            x[4] = -100.0f;
            e->swiglu(out, x, y, (int32_t)n);
            for (size_t k = 0; k < n; k++) {
                double g = (double)x[k], want = g / (1 + exp(-g)) * (double)y[k];
                ASSERT_NEAR(out[k], want, fabs(want) * 1e-6 + 1e-30, "%s swiglu", e->column);
            }
            e->sigmoid_gate(out, y, x, (int32_t)n);
            for (size_t k = 0; k < n; k++) {
                double want = (double)y[k] / (1 + exp(-(double)x[k]));
                ASSERT_NEAR(out[k], want, fabs(want) * 1e-6 + 1e-30, "%s sigmoid", e->column);
            }
            e->sigmoid_gate(y, y, x, (int32_t)n);
            assert_memory_equal(y, out, n * sizeof *y);
            e->swiglu(out, x, y, (int32_t)n);
            e->swiglu(x, x, y, (int32_t)n);
            assert_memory_equal(x, out, n * sizeof *x);
            memcpy(out, y, n * sizeof *y);
            e->axpy(y, -0.37f, x, (int32_t)n);
            for (size_t k = 0; k < n; k++)
                ASSERT_NEAR(y[k], (double)out[k] + (double)-0.37f * (double)x[k],
                            2e-7 * (fabs((double)out[k]) + fabs((double)x[k])), "%s axpy",
                            e->column);
            guard_free_f32(x, n);
            guard_free_f32(y, n);
            guard_free_f32(out, n);
        }
}

static void finite_or_not(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    KernelTables t = kernel_tables(false);
    for (size_t a = 0; a < COUNT_OF(sizes); a++)
        for (size_t i = 0; i < t.n; i++) {
            size_t n = (size_t)sizes[a];
            float *x = guard_f32(n);
            random_fill(&r, x, n, 1e38f);
            x[0] = 3.4e38f;
            x[1] = 1e-44f;
            assert_true(t.tables[i].elem.is_finite(x, (int32_t)n));
            for (size_t k = 0; k < n; k += n / 16 + 1) {
                float keep = x[k];
                x[k] = bad[k % 3];
                assert_false(t.tables[i].elem.is_finite(x, (int32_t)n));
                x[k] = keep;
            }
            guard_free_f32(x, n);
        }
}

static void head_norm_and_rotation(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t i = 0; i < 2 * t.n; i++) {
        enum { D = ATTN_HEAD, HALF = ROPE_DIMS / 2 };
        bool is_bf16 = i % 2;
        const ElemKernels *e = &t.tables[i / 2].elem;
        float *x = guard_f32(D), *gain = guard_f32(D), *cs = guard_f32(ROPE_DIMS);
        float *out = guard_f32(D);
        double want[D], mean = 0;
        random_fill(&r, x, D, 3.0f);
        random_fill(&r, gain, D, 1.0f);
        for (int j = 0; j < HALF; j++) {
            double angle = 1234 * pow(1e7, -2.0 * j / 64);
            cs[j] = (float)cos(angle);
            cs[HALF + j] = (float)sin(angle);
        }
        for (int d = 0; d < D; d++)
            mean += (double)x[d] * (double)x[d] / D;
        for (int d = 0; d < D; d++) {
            want[d] = (double)x[d] / sqrt(mean + (double)1e-6f) * (double)gain[d];
            if (is_bf16)
                want[d] = (double)bf16_round((float)want[d]);
        }
        for (int j = 0; j < HALF; j++) {
            double a = want[j], b = want[j + HALF], c = (double)cs[j], s = (double)cs[HALF + j];
            want[j] = a * c - b * s;
            want[j + HALF] = a * s + b * c;
        }
        e->head_rope(out, x, gain, cs, 1e-6f, 1.0f / 16.0f, is_bf16);
        for (int d = 0; d < D; d++) { // a value may lie on the edge between two bf16 numbers
            double size = fabs(want[d]) + (d < ROPE_DIMS ? fabs(want[(d + HALF) % 64]) : 0);
            ASSERT_NEAR(out[d], want[d] / 16, size / 16 * (is_bf16 ? 0.012 : 1e-6), "%s rope %d",
                        e->column, d);
            if (is_bf16)
                assert_true(out[d] == bf16_round(out[d]));
        }
        e->head_rope(x, x, gain, cs, 1e-6f, 1.0f / 16.0f, is_bf16);
        assert_memory_equal(x, out, D * sizeof *x);
        guard_free_f32(x, D);
        guard_free_f32(gain, D);
        guard_free_f32(cs, ROPE_DIMS);
        guard_free_f32(out, D);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_over_its_whole_range),
        cmocka_unit_test(norm_with_and_without_addend),
        cmocka_unit_test(gates),
        cmocka_unit_test(finite_or_not),
        cmocka_unit_test(head_norm_and_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
