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

enum { RANDOM = -1 };

/* What tokens are like. */
typedef struct Kind {
    const char *name;
    float decay, least;  // -g lies between
    float beta;          // of all tokens, or RANDOM
    bool is_alike;       // keys of cosine near 1: the hard case of the chunk form
    float state, values; // sizes
    float cliff;         // -g of the token in the middle; 0: none
} Kind;

static const Kind kinds[] = {
    {.name = "ordinary", .decay = 1.0f, .beta = RANDOM, .state = 0.3f, .values = 1.0f},
    {.name = "keys alike",
     .decay = 0.01f,
     .beta = 0.7f,
     .is_alike = true,
     .state = 0.3f,
     .values = 1.0f},
    {.name = "keys alike, whole steps, no decay",
     .beta = 1.0f,
     .is_alike = true,
     .state = 0.3f,
     .values = 1.0f},
    {.name = "strong decay",
     .decay = 60.0f,
     .cliff = 1000.0f,
     .beta = RANDOM,
     .state = 0.3f,
     .values = 1.0f},
    {.name = "cliff", .decay = 0.1f, .cliff = 1e5f, .beta = RANDOM, .state = 0.3f, .values = 1.0f},
    {.name = "steep decay",
     .decay = 50.0f,
     .least = 50.0f,
     .beta = RANDOM,
     .state = 0.3f,
     .values = 1.0f},
    {.name = "no decay", .beta = RANDOM, .state = 0.3f, .values = 1.0f},
    {.name = "no steps", .decay = 1.0f, .beta = 0.0f, .state = 0.3f, .values = 1.0f},
    {.name = "whole steps", .decay = 1.0f, .beta = 1.0f, .state = 0.3f, .values = 1.0f},
    {.name = "large state", .decay = 1.0f, .beta = RANDOM, .state = 1e6f, .values = 1.0f},
    {.name = "no state", .decay = 1.0f, .beta = RANDOM, .values = 1.0f},
    {.name = "all large", .decay = 1.0f, .beta = RANDOM, .state = 1e20f, .values = 1e20f},
    {.name = "all tiny", .decay = 1.0f, .beta = RANDOM, .state = 1e-25f, .values = 1e-25f},
};

static void tokens_fill(Tokens *t, Random *r, const Kind *kind) {
    RecurKernels generic;
    recur_generic_init(&generic);
    float common[W];
    random_fill(r, common, W, 1.0f);
    random_fill(r, t->q, C * W, 1.0f);
    random_fill(r, t->k, C * W, 1.0f);
    random_fill(r, t->v, C * W, kind->values);
    for (int i = 0; i < C; i++) {
        for (int d = 0; d < W && kind->is_alike; d++)
            t->k[i * W + d] = common[d] + 0.1f * t->k[i * W + d];
        t->g[i] = -kind->least - random_unit(r) * (kind->decay - kind->least);
        t->beta[i] = kind->beta >= 0.0f ? kind->beta : random_unit(r);
    }
    if (kind->cliff > 0.0f)
        t->g[C / 2 - 5] = -kind->cliff;
    generic.unit(t->q, 0.088388347648318447f, C);
    generic.unit(t->k, 1.0f, C);
}

/* What tokens make of a state: the outputs, and the state behind each. */
typedef struct Judge {
    Tokens x;
    float state[STATE];
    double o[C * W], states[C][STATE];
} Judge;

static Judge *judge_open(Random *r, const Kind *kind) {
    Judge *j = malloc(sizeof *j);
    double *s = malloc(sizeof *s * STATE);
    assert_non_null(j);
    assert_non_null(s);
    tokens_fill(&j->x, r, kind);
    random_fill(r, j->state, STATE, kind->state);
    for (int i = 0; i < STATE; i++)
        s[i] = (double)j->state[i];
    for (int t = 0; t < C; t++) {
        judge_step(s, j->o + t * W, j->x.q + t * W, j->x.k + t * W, j->x.v + t * W,
                   (double)j->x.g[t], (double)j->x.beta[t]);
        memcpy(j->states[t], s, sizeof j->states[t]);
    }
    free(s);
    return j;
}

/* Largest difference, in units of the sizes of state and values, and relative rms. f32: a token
 * loop and a chunk lie within 1e-6 (ordinary), more where 64 like keys add up. amx: every operand
 * of a product has 16 bits (half a unit of the last is 2^-17) and the product of two low halves is
 * left out, so that a term is off by 2^-16 at most and by 2^-18 in the mean; D and the state sum up
 * to 64 tokens with like keys. Seen over 40 seeds: 6.3e-5 and 1.7e-5; an operand without its low
 * half has 2e-3 of its own. */
static const double BOUND = 4e-6, BOUND_AMX = 2e-4, RMS = 2e-6, RMS_AMX = 5e-5;

static double bound_of(const RecurKernels *t, const Kind *kind) {
    double size = fmax((double)kind->state / 0.3, (double)kind->values);
    return size * (strcmp(t->column, "amx") ? BOUND : BOUND_AMX);
}

static void step_case(const RecurKernels *t, const Judge *j, const Kind *kind) {
    const Tokens *x = &j->x;
    float *s = guard_f32(STATE), *o = guard_f32(W);
    double bound = fmax((double)kind->state / 0.3, (double)kind->values) * BOUND;
    memcpy(s, j->state, sizeof j->state);
    for (int i = 0; i < C; i++) {
        t->step(s, o, x->q + i * W, x->k + i * W, x->v + i * W, expf(x->g[i]), x->beta[i],
                i % 2 ? s : NULL);
        for (int d = 0; d < W; d++)
            ASSERT_NEAR(o[d], j->o[i * W + d], bound, "%s step, %s: token %d, %d", t->column,
                        kind->name, i, d);
    }
    for (int i = 0; i < STATE; i++)
        ASSERT_NEAR(s[i], j->states[C - 1][i], bound, "%s step, %s: state %d", t->column,
                    kind->name, i);
    guard_free_f32(s, STATE);
    guard_free_f32(o, W);
}

/* Runs m tokens over a copy of the state, all arrays just long enough. o [m][128], s: results. */
static void chunk_run(const RecurKernels *t, float *s, float *o, const Tokens *x, int32_t m) {
    size_t bytes = t->chunk_scratch_bytes(), n = (size_t)(m * W);
    float *kk = guard_f32((size_t)(C * C)), *qk = guard_f32((size_t)(C * C));
    float *q = guard_f32(n), *k = guard_f32(n), *v = guard_f32(n);
    float *g = guard_f32((size_t)m), *beta = guard_f32((size_t)m);
    float *state = guard_f32(STATE), *out = guard_f32(n);
    void *scratch = guard_alloc(bytes);
    memcpy(q, x->q, n * sizeof *q);
    memcpy(k, x->k, n * sizeof *k);
    memcpy(v, x->v, n * sizeof *v);
    memcpy(g, x->g, (size_t)m * sizeof *g);
    memcpy(beta, x->beta, (size_t)m * sizeof *beta);
    memcpy(state, s, STATE * sizeof *s);
    t->gram(kk, qk, q, k, m, scratch);
    t->chunk(state, out, q, k, v, g, beta, kk, qk, m, scratch);
    memcpy(s, state, STATE * sizeof *s);
    memcpy(o, out, n * sizeof *o);
    guard_free_f32(kk, (size_t)(C * C));
    guard_free_f32(qk, (size_t)(C * C));
    guard_free_f32(q, n);
    guard_free_f32(k, n);
    guard_free_f32(v, n);
    guard_free_f32(g, (size_t)m);
    guard_free_f32(beta, (size_t)m);
    guard_free_f32(state, STATE);
    guard_free_f32(out, n);
    guard_free(scratch, bytes);
}

static void expect_rms(const float *got, const double *want, size_t n, double bound,
                       const char *what) {
    double sum = 0, sum_off = 0;
    for (size_t i = 0; i < n; i++) {
        sum += want[i] * want[i];
        sum_off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    if (!(sqrt(sum_off) <= bound * sqrt(sum)))
        fail_msg("%s: relative rms %.3g, expected %.3g", what, sqrt(sum_off / sum), bound);
}

static void chunk_case(const RecurKernels *t, const Judge *j, const Kind *kind, int32_t m) {
    float s[STATE], o[C * W];
    double bound = bound_of(t, kind), rms = strcmp(t->column, "amx") ? RMS : RMS_AMX;
    char what[96];
    snprintf(what, sizeof what, "%s chunk of %d, %s", t->column, m, kind->name);
    memcpy(s, j->state, sizeof s);
    chunk_run(t, s, o, &j->x, m);
    for (int i = 0; i < m * W; i++)
        ASSERT_NEAR(o[i], j->o[i], bound, "%s: token %d, %d", what, i / W, i % W);
    for (int i = 0; i < STATE; i++)
        ASSERT_NEAR(s[i], j->states[m - 1][i], bound, "%s: state %d", what, i);
    if (m >= 16) // one token's q . k may be next to nothing
        expect_rms(o, j->o, (size_t)(m * W), rms, what);
    expect_rms(s, j->states[m - 1], STATE, rms, what);
}

static void steps_follow_the_recurrence(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t = kernel_tables(false);
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        Judge *j = judge_open(&r, &kinds[kind]);
        for (size_t i = 0; i < t.n; i++)
            step_case(&t.tables[i].recur, j, &kinds[kind]);
        free(j);
    }
}

static void chunks_of_every_length_follow_the_recurrence(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t edges[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64};
    KernelTables t = kernel_tables(false);
    for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        Judge *j = judge_open(&r, &kinds[kind]);
        bool is_all = kind < 2;
        for (size_t i = 0; i < t.n; i++)
            for (size_t m = 0; m < (is_all ? (size_t)C : COUNT_OF(edges)); m++)
                chunk_case(&t.tables[i].recur, j, &kinds[kind], is_all ? (int32_t)m + 1 : edges[m]);
        free(j);
    }
}

/* The first rows of a chunk are to the bit those of a shorter one. */
static void rows_do_not_see_later_tokens(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    Judge *j = judge_open(&r, &kinds[0]);
    for (size_t a = 0; a < tables.n; a++) {
        const RecurKernels *t = &tables.tables[a].recur;
        float s[STATE], whole[C * W], part[C * W];
        memcpy(s, j->state, sizeof s);
        chunk_run(t, s, whole, &j->x, C);
        for (int32_t m = 1; m < C; m++) {
            memcpy(s, j->state, sizeof s);
            chunk_run(t, s, part, &j->x, m);
            if (memcmp(part, whole, (size_t)(m * W) * sizeof *part))
                fail_msg("%s: rows of a chunk of %d differ", t->column, m);
        }
    }
    free(j);
}

typedef enum Fault {
    BAD_KEY,
    BAD_VALUE,
    BAD_DECAY,
    BAD_STEP,
    LARGE_VALUE,
    LARGE_STEPS,
    FAULTS
} Fault;

static void token_break(Tokens *x, int32_t row, Fault fault) {
    if (fault == BAD_KEY)
        x->k[row * W + 5] = NAN;
    if (fault == BAD_VALUE)
        x->v[row * W + W - 1] = INFINITY;
    if (fault == BAD_DECAY)
        x->g[row] = NAN;
    if (fault == BAD_STEP)
        x->beta[row] = NAN;
    if (fault == LARGE_VALUE)
        for (int d = 0; d < W; d++)
            x->v[row * W + d] = 3e38f * (d % 2 ? 1.0f : -1.0f);
    for (int32_t t = row; t < C && fault == LARGE_STEPS; t++) // twice that between like keys
        for (int d = 0; d < W; d++)
            x->v[t * W + d] = 4e33f * (t % 2 ? 1.0f : -1.0f);
}

/* A token that is no number: rows ahead of it are to the bit what they are without it, its own is
 * no number either, nor is the state. Of numbers that are large the latter is the column's own. */
static void fault_case(const RecurKernels *t, const Judge *j, int32_t row, Fault fault) {
    float s[STATE], whole[C * W], part[C * W];
    Tokens x = j->x;
    memcpy(s, j->state, sizeof s);
    if (row)
        chunk_run(t, s, part, &x, row);
    token_break(&x, row, fault);
    memcpy(s, j->state, sizeof s);
    chunk_run(t, s, whole, &x, C);
    if (memcmp(part, whole, (size_t)(row * W) * sizeof *part))
        fail_msg("%s: rows ahead of %d differ, fault %d", t->column, row, fault);
    if (fault >= LARGE_VALUE)
        return;
    assert_false(isfinite(whole[row * W + W - 1]));
    assert_false(isfinite(s[W - 1]));
}

static void a_token_that_is_no_number_spoils_no_row_ahead(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t rows[] = {0, 1, 15, 16, 30, 31, 32, 50, 63};
    KernelTables tables = kernel_tables(false);
    Judge *ordinary = judge_open(&r, &kinds[0]), *alike = judge_open(&r, &kinds[2]);
    for (size_t a = 0; a < tables.n; a++)
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            for (Fault fault = 0; fault < FAULTS; fault++)
                fault_case(&tables.tables[a].recur, fault == LARGE_STEPS ? alike : ordinary,
                           rows[i], fault);
    free(ordinary);
    free(alike);
}

/* A query that is no number reaches its own row alone. */
static void a_query_that_is_no_number_spoils_its_row_alone(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    Judge *j = judge_open(&r, &kinds[0]);
    for (size_t a = 0; a < tables.n; a++) {
        const RecurKernels *t = &tables.tables[a].recur;
        float s[2][STATE], o[2][C * W];
        Tokens x = j->x;
        for (int i = 0; i < 2; i++) {
            x.q[20 * W] = i ? NAN : x.q[20 * W];
            memcpy(s[i], j->state, sizeof s[i]);
            chunk_run(t, s[i], o[i], &x, C);
        }
        assert_memory_equal(s[0], s[1], sizeof s[0]);
        assert_memory_equal(o[0], o[1], 20 * W * sizeof(float));
        assert_memory_equal(o[0] + 21 * W, o[1] + 21 * W, 43 * W * sizeof(float));
        for (int d = 0; d < W; d++)
            assert_false(isfinite(o[1][20 * W + d]));
    }
    free(j);
}

/* A state with a column that is no number: so is every row there. */
static void a_state_that_is_no_number_is_seen(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    KernelTables tables = kernel_tables(false);
    Judge *j = judge_open(&r, &kinds[0]);
    for (size_t a = 0; a < tables.n; a++)
        for (size_t i = 0; i < COUNT_OF(bad); i++)
            for (int32_t m = 1; m <= C; m += 63) {
                float s[STATE], o[C * W];
                memcpy(s, j->state, sizeof s);
                s[77 * W + 40] = bad[i];
                chunk_run(&tables.tables[a].recur, s, o, &j->x, m);
                for (int t = 0; t < m; t++)
                    assert_false(isfinite(o[t * W + 40]));
                assert_false(isfinite(s[77 * W + 40]));
            }
    free(j);
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
            const float *rows[C + 3];
            for (int32_t row = 0; row < m + 3; row++) // anywhere
                rows[row] = in + (m + 2 - row) * W;
            t.tables[i].recur.conv(c, rows, w, LDW, m, m % 2 * 64); // what is asked for: no matter
            for (int32_t row = 0; row < m; row++)
                for (int d = 0; d < W; d++) {
                    double sum = 0, size = 0;
                    for (int tap = 0; tap < 4; tap++) {
                        double v = (double)w[tap * LDW + d] * (double)rows[row + tap][d];
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
            t.tables[i].recur.gate(y, o, gain, z, LDZ, 1e-6f, m, m % 2 * 64);
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
            t.tables[i].recur.gate(o, o, gain, z, LDZ, 1e-6f, m, 0); // in place
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
        cmocka_unit_test(rows_do_not_see_later_tokens),
        cmocka_unit_test(a_token_that_is_no_number_spoils_no_row_ahead),
        cmocka_unit_test(a_query_that_is_no_number_spoils_its_row_alone),
        cmocka_unit_test(a_state_that_is_no_number_is_seen),
        cmocka_unit_test(convolution_and_silu),
        cmocka_unit_test(unit_length_and_zero_rows),
        cmocka_unit_test(gated_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
