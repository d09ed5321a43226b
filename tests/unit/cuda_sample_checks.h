// SPDX-License-Identifier: Apache-2.0
/* cuda_sample_checks.h - test helper: ids that the card draws are those that sample.c draws, with
 * all kinds of settings. Shared by the test on a card and the emulated one. Behind cuda_checks.h
 * and cuda_matmul_checks.h.
 *
 * Owns:     what a Draws holds, until draws_fini.  Thread: one. */
#ifndef LILY_TESTS_CUDA_SAMPLE_CHECKS_H
#define LILY_TESTS_CUDA_SAMPLE_CHECKS_H

#include "cuda_checks.h"
#include "cuda_matmul_checks.h"

#include "backend/cuda/cuda_self.h"
#include "backend/sample.h"

#include <float.h>

enum { DRAW_ROWS = 7, DRAW_BIASES = 40 };

/* Samplers of both kinds, set alike, and what a step of DRAW_ROWS rows needs. */
typedef struct Draws {
    Cuda c;
    char *scratch;
    uint32_t *allowed; // host [DRAW_ROWS, words]
    CudaRow *rows;     // host
    float *logits;     // host [DRAW_ROWS, v]
    uint64_t seed, n;
} Draws;

static double draws_unit(Draws *d) { return rng_unit_f64(d->seed, d->n++); }
static double draws_between(Draws *d, double low, double high) {
    return low + (high - low) * draws_unit(d);
}
/* In half of the cases, else 0. */
static float draws_maybe(Draws *d, double low, double high) {
    double pick = draws_unit(d), x = draws_between(d, low, high);
    return pick < 0.5 ? 0.0f : (float)x;
}

static void draws_init(Draws *d, int32_t v, uint64_t seed) {
    *d = (Draws){.seed = seed};
    Cuda *c = &d->c;
    c->c.vocab = v;
    c->plan.n_samplers = c->plan.max_seqs = DRAW_ROWS;
    CudaCarver count = {0};
    cuda_sample_place(c, &count);
    d->scratch = card_put(NULL, count.used);
    cuda_ok(cudaMemsetAsync(d->scratch, 0, count.used, NULL));
    CudaCarver a = {.base = d->scratch};
    cuda_sample_place(c, &a);
    c->samplers = calloc(DRAW_ROWS, sizeof *c->samplers);
    c->choosers = calloc(DRAW_ROWS, sizeof *c->choosers);
    c->seeds = calloc(DRAW_ROWS, sizeof *c->seeds);
    for (int i = 0; i < DRAW_ROWS; i++)
        ORACLE_OK(sampler_open(&c->samplers[i], v, err));
    size_t words = (size_t)(v + 31) / 32;
    d->allowed = calloc(DRAW_ROWS * words, 4);
    d->rows = calloc(DRAW_ROWS, sizeof *d->rows);
    d->logits = calloc(DRAW_ROWS * (size_t)v, sizeof *d->logits);
    CudaStepHead head = {.sampled_in = 1, .sampled_out = 0};
    c->at.head = card_put(&head, sizeof head);
    c->at.decode = card_put(NULL, DRAW_ROWS * sizeof *d->rows);
    c->at.allowed = card_put(NULL, DRAW_ROWS * words * 4);
    c->sampled = card_put(NULL, 3 * DRAW_ROWS * 4);
    c->bad = c->sampled + 2 * DRAW_ROWS;
    c->d.logits = card_put(NULL, DRAW_ROWS * (size_t)v * 4);
}

static void draws_fini(Draws *d) {
    Cuda *c = &d->c;
    void *card[] = {d->scratch, c->at.head, c->at.decode, c->at.allowed, c->sampled, c->d.logits};
    for (size_t i = 0; i < COUNT_OF(card); i++)
        cuda_ok(cudaFree(card[i]));
    for (int i = 0; i < DRAW_ROWS; i++)
        sampler_close(c->samplers[i]);
    void *host[] = {c->samplers, c->choosers, c->seeds, d->allowed, d->rows, d->logits};
    for (size_t i = 0; i < COUNT_OF(host); i++)
        free(host[i]);
}

/* The same random settings and seen ids for both samplers of that number. */
static void draws_set(Draws *d, int32_t sampler) {
    Cuda *c = &d->c;
    int32_t v = c->c.vocab, seen[30];
    LogitBias bias[DRAW_BIASES];
    SampleParams p = {.temperature = draws_maybe(d, 0.05, 3),
                      .top_k = (int32_t)draws_maybe(d, 1, v < 1000 ? 40 : 1000),
                      .top_p = draws_maybe(d, 0.01, 1),
                      .min_p = draws_maybe(d, 0.001, 0.6),
                      .repetition_penalty = draws_maybe(d, 0.5, 2),
                      .presence_penalty = draws_maybe(d, -2, 2),
                      .frequency_penalty = draws_maybe(d, -2, 2),
                      .n_ids = (int32_t)draws_maybe(d, 1, v),
                      .seed = (uint64_t)(draws_unit(d) * 1e9),
                      .bias = bias,
                      .n_bias = (int32_t)draws_maybe(d, 1, DRAW_BIASES)};
    for (int i = 0; i < DRAW_BIASES; i++) { // some of one id
        int32_t id = (int32_t)(draws_unit(d) * (i % 3 ? v : min_i32(v, 5)));
        bias[i] = (LogitBias){id, draws_unit(d) < 0.2 ? -INFINITY : (float)draws_between(d, -9, 9)};
    }
    for (int i = 0; i < 30; i++)
        seen[i] = (int32_t)(draws_unit(d) * v);
    ORACLE_OK(sampler_set(c->samplers[sampler], &p, seen, 20, 10, err));
    c->choosers[sampler] = cuda_sample_chooser(c, &p);
    c->seeds[sampler] = p.seed;
    cuda_ok(cuda_sample_set(c, sampler, &p, sampler_counts(c->samplers[sampler])));
}

/* Logits with many equal ones in half of the rows, in some huge ones. */
static void draws_logits(Draws *d, float *x) {
    double step = draws_unit(d) < 0.5 ? 0.5 : 1e-6, huge = draws_unit(d) < 0.1 ? 3e37 : 1;
    for (int32_t i = 0; i < d->c.c.vocab; i++)
        x[i] = (float)(huge * step * rint(draws_between(d, -6, 6) / step));
}

/* One step: every row's id by both; returns how many rows had none to choose. */
static int draws_step(Draws *d, int32_t pos) {
    Cuda *c = &d->c;
    size_t v = (size_t)c->c.vocab, words = (v + 31) / 32;
    CudaDrawn drawn = {0};
    int32_t want[DRAW_ROWS], got[DRAW_ROWS], bad[DRAW_ROWS], n_none = 0;
    uint32_t *mask = calloc(words, 4);
    for (int32_t i = 0; i < DRAW_ROWS; i++) {
        BatchSeq s = {.phase = PHASE_DECODE, .n_rows = 1, .pos0 = pos - 1, .sampler = i};
        double density = draws_unit(d) < 0.2 ? 0.002 : 0.5;
        if (draws_unit(d) < 0.4) {
            memset(mask, 0, words * 4);
            for (size_t id = 0; id < v; id++)
                mask[id / 32] |= (uint32_t)(draws_unit(d) < density) << id % 32;
            s.allowed = mask;
        }
        float *x = d->logits + (size_t)i * v;
        draws_logits(d, x);
        d->rows[i] = (CudaRow){.seq = i};
        cuda_sample_row(c, &d->rows[i], &s, &drawn, d->allowed);
        SampleResult r = {.id = -7}; // of a row that is not drawn nothing is written
        bad[i] = draws_unit(d) < 0.1 ? 5 : CUDA_NO_BAD;
        if (bad[i] == 5) {
            const uint32_t kinds[] = {0x7fc00000u, 0xffc00000u, 0x7f800000u, 0xff800000u};
            for (int k = 0; k < 3; k++)
                memcpy(&x[(size_t)(draws_unit(d) * (double)v)], &kinds[(size_t)(draws_unit(d) * 4)],
                       4);
            r.id = d->rows[i].sampler >= 0 ? -1 : -7; // and nothing is counted
        } else if (d->rows[i].sampler >= 0)
            sampler_next(c->samplers[i], &r, x, s.allowed, pos);
        want[i] = r.id;
        n_none += r.id == -1 && bad[i] != 5;
    }
    size_t n = DRAW_ROWS;
    for (size_t i = 0; i < n; i++)
        got[i] = -7;
    cuda_ok(cudaMemcpyAsync(c->sampled, got, n * 4, cudaMemcpyHostToDevice, NULL));
    cuda_ok(cudaMemcpyAsync(c->bad, bad, n * 4, cudaMemcpyHostToDevice, NULL));
    cuda_ok(
        cudaMemcpyAsync(c->at.decode, d->rows, n * sizeof(CudaRow), cudaMemcpyHostToDevice, NULL));
    cuda_ok(
        cudaMemcpyAsync(c->at.allowed, d->allowed, n * words * 4, cudaMemcpyHostToDevice, NULL));
    cuda_ok(cudaMemcpyAsync(c->d.logits, d->logits, n * v * 4, cudaMemcpyHostToDevice, NULL));
    cuda_ok(cuda_sample_decode(c, DRAW_ROWS, &drawn));
    card_get(got, c->sampled, n * 4);
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("row %zu at %d: the card drew %d, the host %d", i, pos, got[i], want[i]);
    free(mask);
    return n_none;
}

static void draws_are_those_of_the_host(void **state) {
    UNUSED(state);
    const int32_t sizes[] = {1, 130, CUDA_IS_EMU ? 3001 : 248320};
    int n_none = 0;
    for (size_t k = 0; k < COUNT_OF(sizes); k++) {
        Draws d;
        draws_init(&d, sizes[k], 4242 + k);
        printf("%d ids, seed %llu\n", sizes[k], (unsigned long long)d.seed);
        for (int round = 0; round < (CUDA_IS_EMU || k == 2 ? 8 : 60); round++) {
            for (int32_t i = 0; i < DRAW_ROWS; i++)
                draws_set(&d, i);
            for (int32_t pos = 1; pos < 4; pos++)
                n_none += draws_step(&d, pos);
        }
        draws_fini(&d);
    }
    assert_true(n_none > 0); // rows with nothing left were among them
}

/* Two sequences draw by chance with two steps in flight, ids going on inside the card, one behind
 * a prompt: the ids are those that the host draws from the same logits, fed by hand. */
static void drawn_ids_go_on_by_carry(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    enum { N = 6 };
    int32_t m = CUDA_IS_EMU ? 3 : 65, want[2][N], v = d.c->vocab;
    const SampleParams params[2] = {
        {.temperature = 1.5f, .top_k = 50, .top_p = 0.9f, .seed = 11, .frequency_penalty = 0.5f},
        {.temperature = 2, .repetition_penalty = 1.3f, .min_p = 1e-6f, .seed = 12}};
    for (int k = 0; k < 2; k++) {
        Sampler *s = NULL;
        ORACLE_OK(sampler_open(&s, v, err));
        ORACLE_OK(sampler_set(s, &params[k], f->ids, m, 0, err));
        OracleSeq a = oracle_seq(k);
        float *row = oracle_prefill(&d, &a, f->ids, (size_t)m, 704, WANT_LAST, NULL);
        for (int i = 0; i < N; i++) {
            SampleResult r;
            sampler_next(s, &r, row, NULL, m + i);
            want[k][i] = r.id;
            free(row);
            row = oracle_decode(&d, &a, r.id);
        }
        free(row);
        sampler_close(s);
        ORACLE_OK(backend_sampler_set(d.b, k, &params[k], f->ids, m, 0, err));
    }
    OracleSeq s[2] = {oracle_seq(0), oracle_seq(1)};
    BatchResult r[2];
    int32_t ids[2 * N_IDS];
    memcpy(ids, f->ids, (size_t)m * 4);
    memcpy(ids + m, f->ids, (size_t)m * 4);
    for (int i = -1; i < N - 1; i++) {
        BatchSeq parts[2];
        for (int k = 0; k < 2; k++) {
            parts[k] = i < 0 ? oracle_part(&s[k], PHASE_PREFILL, k * m, m, WANT_LAST)
                             : oracle_part(&s[k], PHASE_DECODE, k, 1, WANT_NOTHING);
            parts[k].sampler = k;
            parts[k].carry = i < 0 ? -1 : k;
            s[k].pos += parts[k].n_rows;
        }
        Batch batch = {.n_seqs = 2, .seqs = parts, .n_rows = 2 * parts[0].n_rows, .ids = ids};
        ORACLE_OK(backend_submit(d.b, &batch, err));
        if (i < 0)
            continue;
        ORACLE_OK(backend_wait(d.b, r, err));
        assert_int_equal(r[0].sample.id, want[0][i]);
        assert_int_equal(r[1].sample.id, want[1][i]);
    }
    ORACLE_OK(backend_wait(d.b, r, err));
    assert_int_equal(r[0].sample.id, want[0][N - 1]);
    assert_int_equal(r[1].sample.id, want[1][N - 1]);
    oracle_device_close(&d);
}

#endif
