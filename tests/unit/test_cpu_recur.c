// SPDX-License-Identifier: Apache-2.0
/* test_cpu_recur.c - the delta rule kernels of every column against a token loop in f64. */
#include "cpu_kernels.h"

enum { W = GDN_HEAD, C = RECUR_CHUNK, STATE = STATE_ELEMENTS };

/* One token in f64. */
static void judge_step(double *s, double *o, const float *q, const float *k, const float *v,
                       double g, double beta) {
    double alpha = exp(g);
    for (int i = 0; i < STATE; i++)
        s[i] *= alpha;
    for (int j = 0; j < W; j++) {
        double p = 0;
        for (int i = 0; i < W; i++)
            p += (double)k[i] * s[i * W + j];
        double d = beta * ((double)v[j] - p);
        o[j] = 0;
        for (int i = 0; i < W; i++) {
            s[i * W + j] += (double)k[i] * d;
            o[j] += (double)q[i] * s[i * W + j];
        }
    }
}

/* A head's tokens. */
typedef struct Tokens {
    float q[C * W], k[C * W], v[C * W], g[C], beta[C];
} Tokens;

typedef enum Kind { ORDINARY, ALIKE, STRONG_DECAY, NO_DECAY, KINDS } Kind;

static void tokens_fill(Tokens *t, Random *r, const RecurKernels *kernel, Kind kind) {
    float common[W];
    random_fill(r, common, W, 1.0f);
    random_fill(r, t->q, C * W, 1.0f);
    random_fill(r, t->k, C * W, 1.0f);
    random_fill(r, t->v, C * W, 1.0f);
    for (int i = 0; i < C; i++) {
        if (kind == ALIKE) // keys of cosine near 1: the hard case of the chunk form
            for (int d = 0; d < W; d++)
                t->k[i * W + d] = common[d] + 0.1f * t->k[i * W + d];
        t->g[i] = -random_unit(r) * (kind == STRONG_DECAY ? 60.0f : kind == ALIKE ? 0.01f : 1.0f);
        if (kind == NO_DECAY)
            t->g[i] = 0.0f;
        t->beta[i] = kind == ALIKE ? 0.7f : random_unit(r);
    }
    if (kind == STRONG_DECAY)
        t->g[C / 2] = -1000.0f;
    kernel->unit(t->q, 0.088388347648318447f, C);
    kernel->unit(t->k, 1.0f, C);
}

/* f32 against f64: a token loop and a chunk lie within 1e-6 of values of size 1 (ordinary), more
 * where 64 like keys add up. */
static const double BOUND = 4e-6;

static void step_case(const RecurKernels *t, Random *r, Kind kind) {
    Tokens x;
    tokens_fill(&x, r, t, kind);
    float *s = guard_f32(STATE), *o = guard_f32(W);
    double *want = malloc(sizeof *want * STATE), want_o[W];
    random_fill(r, s, STATE, 0.3f);
    for (int i = 0; i < STATE; i++)
        want[i] = (double)s[i];
    for (int i = 0; i < C; i++) {
        judge_step(want, want_o, x.q + i * W, x.k + i * W, x.v + i * W, (double)x.g[i],
                   (double)x.beta[i]);
        t->step(s, o, x.q + i * W, x.k + i * W, x.v + i * W, expf(x.g[i]), x.beta[i],
                i % 2 ? s : NULL);
        for (int j = 0; j < W; j++)
            ASSERT_NEAR(o[j], want_o[j], BOUND, "%s step, kind %d: token %d, %d", t->column, kind,
                        i, j);
    }
    for (int i = 0; i < STATE; i++)
        ASSERT_NEAR(s[i], want[i], BOUND, "%s step, kind %d: state %d", t->column, kind, i);
    free(want);
    guard_free_f32(s, STATE);
    guard_free_f32(o, W);
}

static void chunk_case(const RecurKernels *t, Random *r, Kind kind, int32_t m) {
    Tokens x;
    tokens_fill(&x, r, t, kind);
    size_t bytes = t->chunk_scratch_bytes(), n = (size_t)(m * W);
    float *s = guard_f32(STATE), *o = guard_f32(n), *kk = guard_f32((size_t)(C * C));
    float *qk = guard_f32((size_t)(C * C)), *q = guard_f32(n), *k = guard_f32(n), *v = guard_f32(n);
    float *g = guard_f32((size_t)m), *beta = guard_f32((size_t)m);
    void *scratch = guard_alloc(bytes);
    double *want = malloc(sizeof *want * STATE), want_o[W];
    random_fill(r, s, STATE, 0.3f);
    for (int i = 0; i < STATE; i++)
        want[i] = (double)s[i];
    memcpy(q, x.q, n * sizeof *q);
    memcpy(k, x.k, n * sizeof *k);
    memcpy(v, x.v, n * sizeof *v);
    memcpy(g, x.g, (size_t)m * sizeof *g);
    memcpy(beta, x.beta, (size_t)m * sizeof *beta);
    t->gram(kk, qk, q, k, m, scratch);
    t->chunk(s, o, q, k, v, g, beta, kk, qk, m, scratch);
    for (int i = 0; i < m; i++) {
        judge_step(want, want_o, x.q + i * W, x.k + i * W, x.v + i * W, (double)x.g[i],
                   (double)x.beta[i]);
        for (int j = 0; j < W; j++)
            ASSERT_NEAR(o[i * W + j], want_o[j], BOUND, "%s chunk of %d, kind %d: token %d, %d",
                        t->column, m, kind, i, j);
    }
    for (int i = 0; i < STATE; i++)
        ASSERT_NEAR(s[i], want[i], BOUND, "%s chunk of %d, kind %d: state %d", t->column, m, kind,
                    i);
    free(want);
    guard_free_f32(s, STATE);
    guard_free_f32(o, n);
    guard_free_f32(kk, (size_t)(C * C));
    guard_free_f32(qk, (size_t)(C * C));
    guard_free_f32(q, n);
    guard_free_f32(k, n);
    guard_free_f32(v, n);
    guard_free_f32(g, (size_t)m);
    guard_free_f32(beta, (size_t)m);
    guard_free(scratch, bytes);
}

static void steps_follow_the_recurrence(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t i = 0; i < t.n; i++)
        for (Kind kind = 0; kind < KINDS; kind++)
            step_case(&t.tables[i].recur, &r, kind);
}

static void chunks_of_every_length_follow_the_recurrence(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t m[] = {1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 48, 63, 64};
    KernelTables t = kernel_tables(false);
    for (size_t i = 0; i < t.n; i++)
        for (size_t a = 0; a < COUNT_OF(m); a++)
            for (Kind kind = 0; kind < KINDS; kind++)
                chunk_case(&t.tables[i].recur, &r, kind, m[a]);
}

/* The first rows of a chunk are those of a shorter one: no later token reaches them. */
static void a_row_does_not_see_later_tokens(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    for (size_t a = 0; a < tables.n; a++) {
        const RecurKernels *t = &tables.tables[a].recur;
        Tokens x;
        tokens_fill(&x, &r, t, ORDINARY);
        for (int d = 0; d < W; d++)
            x.v[50 * W + d] = NAN;
        void *scratch = guard_alloc(t->chunk_scratch_bytes());
        float *s = guard_f32(STATE), *o = guard_f32(C * W), *first = guard_f32(50 * W);
        float kk[C * C], qk[C * C];
        memset(s, 0, STATE * sizeof *s);
        t->gram(kk, qk, x.q, x.k, C, scratch);
        t->chunk(s, o, x.q, x.k, x.v, x.g, x.beta, kk, qk, C, scratch);
        memset(s, 0, STATE * sizeof *s);
        t->gram(kk, qk, x.q, x.k, 50, scratch);
        t->chunk(s, first, x.q, x.k, x.v, x.g, x.beta, kk, qk, 50, scratch);
        assert_memory_equal(first, o, 50 * W * sizeof *o);
        assert_false(isfinite(o[50 * W]));
        guard_free(scratch, t->chunk_scratch_bytes());
        guard_free_f32(s, STATE);
        guard_free_f32(o, C * W);
        guard_free_f32(first, 50 * W);
    }
}

static void convolution_and_silu(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t ms[] = {1, 2, 3, 4, 5, 63, 64};
    KernelTables t = kernel_tables(false);
    for (size_t a = 0; a < COUNT_OF(ms); a++)
        for (size_t i = 0; i < t.n; i++) {
            int32_t m = ms[a];
            enum { LDW = W + 32 };
            size_t n_in = (size_t)((m + 3) * W), n = (size_t)(m * W), n_w = 3 * LDW + W;
            float *in = guard_f32(n_in), *w = guard_f32(n_w), *c = guard_f32(n);
            random_fill(&r, in, n_in, 3.0f);
            random_fill(&r, w, n_w, 1.0f);
            in[7] = 200.0f; // far out on both sides of silu
            in[8] = -200.0f;
            t.tables[i].recur.conv(c, in, w, LDW, m);
            for (int32_t row = 0; row < m; row++)
                for (int d = 0; d < W; d++) {
                    double sum = 0, size = 0;
                    for (int tap = 0; tap < 4; tap++) {
                        double v = (double)w[tap * LDW + d] * (double)in[(row + tap) * W + d];
                        sum += v;
                        size += fabs(v);
                    }
                    ASSERT_NEAR(c[row * W + d], sum / (1 + exp(-sum)), 1e-6 * size + 1e-12,
                                "%s conv m %d: %d, %d", t.tables[i].recur.column, m, row, d);
                }
            guard_free_f32(in, n_in);
            guard_free_f32(w, n_w);
            guard_free_f32(c, n);
        }
}

static void unit_length_and_zero_rows(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t i = 0; i < t.n; i++) {
        float *x = guard_f32(3 * W), copy[3 * W];
        random_fill(&r, x, 3 * W, 2.0f);
        memset(x + W, 0, W * sizeof *x);
        random_fill(&r, x + 2 * W, W, 1e-4f); // where the eps of 1e-6 shows
        memcpy(copy, x, sizeof copy);
        t.tables[i].recur.unit(x, 0.25f, 3);
        for (int row = 0; row < 3; row++) {
            double sum = 1e-6;
            for (int d = 0; d < W; d++)
                sum += (double)copy[row * W + d] * (double)copy[row * W + d];
            for (int d = 0; d < W; d++) {
                double want = (double)copy[row * W + d] * 0.25 / sqrt(sum);
                ASSERT_NEAR(x[row * W + d], want, fabs(want) * 1e-6, "%s unit row %d",
                            t.tables[i].recur.column, row);
            }
        }
        guard_free_f32(x, 3 * W);
    }
}

static void gated_norm(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t i = 0; i < t.n; i++)
        for (int32_t m = 1; m <= 5; m++) {
            enum { LDZ = W + 48 };
            size_t n = (size_t)(m * W), n_z = (size_t)((m - 1) * LDZ + W);
            float *o = guard_f32(n), *y = guard_f32(n), *z = guard_f32(n_z), *gain = guard_f32(W);
            random_fill(&r, o, n, m == 3 ? 1e-4f : 0.2f);
            random_fill(&r, z, n_z, 4.0f);
            random_fill(&r, gain, W, 1.0f);
            t.tables[i].recur.gate(y, o, gain, z, LDZ, 1e-6f, m);
            for (int row = 0; row < m; row++) {
                double mean = 0;
                for (int d = 0; d < W; d++)
                    mean += (double)o[row * W + d] * (double)o[row * W + d] / W;
                for (int d = 0; d < W; d++) {
                    double gate = (double)z[row * LDZ + d];
                    double want = (double)o[row * W + d] / sqrt(mean + (double)1e-6f) *
                                  (double)gain[d] * gate / (1 + exp(-gate));
                    ASSERT_NEAR(y[row * W + d], want, fabs(want) * 1e-6 + 1e-12,
                                "%s gate row %d, %d", t.tables[i].recur.column, row, d);
                }
            }
            t.tables[i].recur.gate(o, o, gain, z, LDZ, 1e-6f, m); // in place
            assert_memory_equal(o, y, n * sizeof *o);
            guard_free_f32(o, n);
            guard_free_f32(y, n);
            guard_free_f32(z, n_z);
            guard_free_f32(gain, W);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_the_recurrence),
        cmocka_unit_test(chunks_of_every_length_follow_the_recurrence),
        cmocka_unit_test(a_row_does_not_see_later_tokens),
        cmocka_unit_test(convolution_and_silu),
        cmocka_unit_test(unit_length_and_zero_rows),
        cmocka_unit_test(gated_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
