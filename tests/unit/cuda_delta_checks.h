// SPDX-License-Identifier: Apache-2.0
/* cuda_delta_checks.h - test helper: the chunked prefill of the gated delta net alone, against the
 * token loop in double. For a card and for the kernels run on the CPU.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_CUDA_DELTA_CHECKS_H
#define LILY_TESTS_CUDA_DELTA_CHECKS_H

#include "oracle_checks.h"

#include "backend/cuda/cuda_kernels.h"
#include "base/checked.h"
#include "base/rng.h"

enum {
    DELTA_HK = 2,
    DELTA_ROWS = 150 + 70,
    DELTA_CHUNKS = 3 + 2,
    DELTA_SLOTS = 4, // of both sequences, of two snapshots
    DELTA_HEAD = 128,
};

/* A step of two sequences: one of 150 rows from the start with snapshots at 64 and 128, one of 70
 * rows from position 64 on. Keys are alike, as in real text. */
typedef struct Delta {
    int32_t hv, cc, ld;
    uint16_t *proj; // [rows, ld]
    float *conv, *a_log, *dt_bias, *norm, *state;
    uint16_t *ring;
    CudaRow rows[DELTA_ROWS];
    CudaSeq seqs[2];
    CudaChunk chunks[DELTA_CHUNKS];
    CudaSnap snaps[2];
} Delta;

/* What a run gives: outputs before and behind the gated norm, all slots. */
typedef struct DeltaOut {
    float *delta, *state;
    uint16_t *out, *ring;
} DeltaOut;

static float delta_random(uint64_t key, uint64_t i) { return 2.0f * rng_unit_f32(key, i) - 1.0f; }
static uint16_t delta_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static double delta_value(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, 4);
    return (double)x;
}

static float *delta_floats(size_t n, uint64_t key, float scale, float shift) {
    float *x = oracle_alloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * delta_random(key, i) + shift;
    return x;
}

static void delta_open(Delta *d, int32_t hv) {
    *d = (Delta){.hv = hv, .cc = (2 * DELTA_HK + hv) * DELTA_HEAD};
    d->ld = d->cc + hv * DELTA_HEAD + 2 * hv;
    d->ld = (d->ld + 15) / 16 * 16;
    size_t n = (size_t)DELTA_ROWS * (size_t)d->ld;
    d->proj = oracle_alloc(n, sizeof *d->proj);
    for (size_t i = 0; i < n; i++) {
        size_t col = i % (size_t)d->ld;
        bool is_key = col >= DELTA_HK * DELTA_HEAD && col < 2 * (size_t)DELTA_HK * DELTA_HEAD;
        float common = is_key ? 2.0f * delta_random(1, col) : 0.0f;
        d->proj[i] = delta_bf16(common + delta_random(2, i));
    }
    d->conv = delta_floats((size_t)d->cc * 4, 3, 0.7f, 0.3f);
    d->a_log = delta_floats((size_t)hv, 4, 1.5f, -2.0f);
    d->dt_bias = delta_floats((size_t)hv, 5, 1.0f, 0.0f);
    d->norm = delta_floats(DELTA_HEAD, 6, 0.3f, 1.0f);
    d->state =
        delta_floats((size_t)DELTA_SLOTS * (size_t)hv * DELTA_HEAD * DELTA_HEAD, 7, 0.2f, 0.0f);
    d->ring = oracle_alloc((size_t)DELTA_SLOTS * 4 * (size_t)d->cc, sizeof *d->ring);
    for (size_t i = 0; i < (size_t)DELTA_SLOTS * 4 * (size_t)d->cc; i++)
        d->ring[i] = delta_bf16(delta_random(8, i));
    static const int32_t n_rows[2] = {150, 70}, pos0[2] = {0, 64};
    int32_t row = 0, chunk = 0;
    for (int32_t q = 0; q < 2; q++) {
        d->seqs[q] = (CudaSeq){.row0 = row,
                               .n_rows = n_rows[q],
                               .pos0 = pos0[q],
                               .slot = q,
                               .chunk0 = chunk,
                               .n_chunks = (n_rows[q] + 63) / 64,
                               .snap0 = q * 2,
                               .n_snaps = q ? 0 : 2};
        for (int32_t i = 0; i < n_rows[q]; i += 64)
            d->chunks[chunk++] = (CudaChunk){row + i, n_rows[q] - i < 64 ? n_rows[q] - i : 64};
        for (int32_t i = 0; i < n_rows[q]; i++)
            d->rows[row++] = (CudaRow){.pos = pos0[q] + i, .slot = q, .seq = q, .in_seq = i};
    }
    d->snaps[0] = (CudaSnap){64, 2};
    d->snaps[1] = (CudaSnap){128, 3};
}

static void delta_close(Delta *d) {
    free(d->proj);
    free(d->conv);
    free(d->a_log);
    free(d->dt_bias);
    free(d->norm);
    free(d->state);
    free(d->ring);
}

/* ---- the token loop in double ---- */

static double delta_silu(double x) { return x / (1 + exp(-x)); }

/* Raw value of a channel at a position of sequence q, before or inside the step. */
static double delta_raw(const Delta *d, const CudaSeq *q, int32_t pos, int32_t channel) {
    if (pos < 0)
        return 0;
    if (pos < q->pos0)
        return delta_value(
            d->ring[((size_t)q->slot * 4 + (size_t)pos % 4) * (size_t)d->cc + (size_t)channel]);
    return delta_value(
        d->proj[(size_t)(q->row0 + pos - q->pos0) * (size_t)d->ld + (size_t)channel]);
}

static void delta_conv(const Delta *d, const CudaSeq *q, int32_t pos, int32_t channel0,
                       double scale, double *out) {
    double squares = 0;
    for (int32_t i = 0; i < DELTA_HEAD; i++) {
        double sum = 0;
        for (int32_t tap = 0; tap < 4; tap++)
            sum += (double)d->conv[(channel0 + i) * 4 + tap] *
                   delta_raw(d, q, pos - 3 + tap, channel0 + i);
        out[i] = delta_silu(sum);
        squares += out[i] * out[i];
    }
    if (scale > 0)
        for (int32_t i = 0; i < DELTA_HEAD; i++)
            out[i] *= scale / sqrt(squares + 1e-6);
}

/* One value head of one sequence: outputs into `delta` and, gated, `out` [rows, VD]; states at the
 * end and at the snapshots into `state` [slots, HV, 128, 128]. */
static void delta_head(const Delta *d, const CudaSeq *q, int32_t hv, double *delta, double *out,
                       double *state) {
    static double s[DELTA_HEAD][DELTA_HEAD];
    double k[DELTA_HEAD], v[DELTA_HEAD], query[DELTA_HEAD];
    int32_t hk = hv / (d->hv / DELTA_HK), vd = d->hv * DELTA_HEAD;
    size_t place = (size_t)hv * DELTA_HEAD * DELTA_HEAD;
    size_t slot_size = (size_t)d->hv * DELTA_HEAD * DELTA_HEAD;
    for (size_t i = 0; i < DELTA_HEAD * DELTA_HEAD; i++)
        s[i / DELTA_HEAD][i % DELTA_HEAD] =
            q->pos0 ? (double)d->state[(size_t)q->slot * slot_size + place + i] : 0;
    for (int32_t t = 0; t < q->n_rows; t++) {
        int32_t pos = q->pos0 + t;
        size_t row = (size_t)(q->row0 + t);
        const uint16_t *proj = d->proj + row * (size_t)d->ld;
        delta_conv(d, q, pos, hk * DELTA_HEAD, 1 / sqrt(128.0), query);
        delta_conv(d, q, pos, (DELTA_HK + hk) * DELTA_HEAD, 1, k);
        delta_conv(d, q, pos, (2 * DELTA_HK + hv) * DELTA_HEAD, 0, v);
        double beta = 1 / (1 + exp(-delta_value(proj[d->cc + vd + hv])));
        double a = delta_value(proj[d->cc + vd + d->hv + hv]) + (double)d->dt_bias[hv];
        double alpha = exp(-exp((double)d->a_log[hv]) * log1p(exp(a))), squares = 0;
        for (int32_t j = 0; j < DELTA_HEAD; j++) {
            double p = 0, o = 0;
            for (int32_t i = 0; i < DELTA_HEAD; i++)
                p += k[i] * (s[i][j] *= alpha);
            for (int32_t i = 0; i < DELTA_HEAD; i++) {
                s[i][j] += k[i] * beta * (v[j] - p);
                o += query[i] * s[i][j];
            }
            delta[row * (size_t)vd + (size_t)(hv * DELTA_HEAD + j)] = o;
            squares += o * o;
        }
        for (int32_t j = 0; j < DELTA_HEAD; j++) {
            size_t at = row * (size_t)vd + (size_t)(hv * DELTA_HEAD + j);
            out[at] = delta[at] / sqrt(squares / DELTA_HEAD + 1e-6) * (double)d->norm[j] *
                      delta_silu(delta_value(proj[d->cc + hv * DELTA_HEAD + j]));
        }
        for (int32_t i = 0; i <= q->n_snaps; i++) {
            bool is_snap = i < q->n_snaps;
            if (is_snap ? d->snaps[q->snap0 + i].pos == pos + 1 : t + 1 == q->n_rows) {
                int32_t slot = is_snap ? d->snaps[q->snap0 + i].slot : q->slot;
                memcpy(state + (size_t)slot * slot_size + place, s, sizeof s);
            }
        }
    }
}

/* ---- the kernels ---- */

static void *delta_up(const void *from, size_t n) {
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, n), cudaSuccess);
    assert_int_equal(from ? cudaMemcpyAsync(p, from, n, cudaMemcpyHostToDevice, NULL)
                          : cudaMemsetAsync(p, 0xff, n, NULL),
                     cudaSuccess);
    return p;
}
static void *delta_down(void *p, size_t n) {
    void *to = oracle_alloc(n, 1);
    assert_int_equal(cudaMemcpyAsync(to, p, n, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    cudaFree(p);
    return to;
}

static DeltaOut delta_run(const Delta *d, int max_shared) {
    size_t hv = (size_t)d->hv, vd = hv * DELTA_HEAD, slot = hv * DELTA_HEAD * DELTA_HEAD * 4;
    size_t ring = 4 * (size_t)d->cc * 2, rows = DELTA_ROWS;
    assert_int_equal(cuda_kernels_init(max_shared), cudaSuccess);
    // A slot is its state and its ring behind it, as in the backend.
    char *slots = delta_up(NULL, DELTA_SLOTS * (slot + ring));
    for (size_t i = 0; i < DELTA_SLOTS; i++) {
        char *to = slots + i * (slot + ring);
        assert_int_equal(cudaMemcpyAsync(to, (const char *)d->state + i * slot, slot,
                                         cudaMemcpyHostToDevice, NULL),
                         cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(to + slot, (const char *)d->ring + i * ring, ring,
                                         cudaMemcpyHostToDevice, NULL),
                         cudaSuccess);
    }
    CudaGdnPrefill a = {
        .g = {.conv = delta_up(d->conv, (size_t)d->cc * 16),
              .a_log = delta_up(d->a_log, hv * 4),
              .dt_bias = delta_up(d->dt_bias, hv * 4),
              .norm = delta_up(d->norm, DELTA_HEAD * 4),
              .state = (float *)slots,
              .ring = (uint16_t *)(slots + slot),
              .slot_stride = (int64_t)(slot + ring),
              .hk = DELTA_HK,
              .hv = d->hv,
              .eps = 1e-6f},
        .proj = delta_up(d->proj, rows * (size_t)d->ld * 2),
        .rows = delta_up(d->rows, sizeof d->rows),
        .seqs = delta_up(d->seqs, sizeof d->seqs),
        .chunks = delta_up(d->chunks, sizeof d->chunks),
        .snaps = delta_up(d->snaps, sizeof d->snaps),
        .keys = delta_up(NULL, DELTA_CHUNKS * DELTA_HK * (size_t)CUDA_DELTA_KEYS),
        .mix = delta_up(NULL, DELTA_CHUNKS * hv * CUDA_DELTA_MIX),
        .v = delta_up(NULL, DELTA_CHUNKS * 64 * vd * 4),
        .delta = delta_up(NULL, rows * vd * 4),
        .out = delta_up(NULL, rows * vd * 2),
        .ld = d->ld,
        .m = DELTA_ROWS,
        .n_seqs = 2,
        .n_chunks = DELTA_CHUNKS,
        .max_shared = max_shared,
    };
    CudaLaunch l = {.stream = NULL};
    assert_int_equal(cuda_gdn_prefill(&l, &a), cudaSuccess);
    DeltaOut o = {.delta = delta_down(a.delta, rows * vd * 4),
                  .out = delta_down(a.out, rows * vd * 2),
                  .state = oracle_alloc(DELTA_SLOTS, slot),
                  .ring = oracle_alloc(DELTA_SLOTS, ring)};
    char *all = delta_down(slots, DELTA_SLOTS * (slot + ring));
    for (size_t i = 0; i < DELTA_SLOTS; i++) {
        memcpy((char *)o.state + i * slot, all + i * (slot + ring), slot);
        memcpy((char *)o.ring + i * ring, all + i * (slot + ring) + slot, ring);
    }
    free(all);
    const void *gone[] = {a.g.conv, a.g.a_log, a.g.dt_bias, a.g.norm, a.proj, a.rows,
                          a.seqs,   a.chunks,  a.snaps,     a.keys,   a.mix,  a.v};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        cudaFree((void *)gone[i]);
    return o;
}

static void delta_out_free(DeltaOut *o) {
    free(o->delta);
    free(o->out);
    free(o->state);
    free(o->ring);
}

/* The last three raw rows of each sequence and of each snapshot. */
static void delta_expect_rings(const Delta *d, const DeltaOut *o) {
    for (int32_t slot = 0; slot < DELTA_SLOTS; slot++) {
        const CudaSeq *q = &d->seqs[slot == 1];
        int32_t end = slot < 2 ? q->pos0 + q->n_rows : d->snaps[slot - 2].pos;
        for (int32_t pos = end - 3; pos < end; pos++)
            for (int32_t i = 0; i < d->cc; i++) {
                double got = delta_value(
                    o->ring[((size_t)slot * 4 + (size_t)pos % 4) * (size_t)d->cc + (size_t)i]);
                if (got != delta_raw(d, q, pos, i))
                    fail_msg("ring of slot %d, position %d, channel %d", slot, pos, i);
            }
    }
}

/* Operands of two bf16 numbers give 8e-6 of the outputs' size with keys alike; the bound is three
 * times that. Gated outputs are rounded to bf16: 2^-9 at most, 0.0017 in the mean. */
static void delta_rule_agrees(int32_t hv, const int *shared, size_t n_shared) {
    Delta d;
    delta_open(&d, hv);
    size_t vd = (size_t)hv * DELTA_HEAD, n = DELTA_ROWS * vd;
    size_t n_state = DELTA_SLOTS * vd * DELTA_HEAD;
    double *delta = oracle_alloc(n, 8), *out = oracle_alloc(n, 8);
    double *state = oracle_alloc(n_state, 8);
    for (int32_t q = 0; q < 2; q++)
        for (int32_t h = 0; h < hv; h++)
            delta_head(&d, &d.seqs[q], h, delta, out, state);
    DeltaOut first = {0};
    for (size_t i = 0; i < n_shared; i++) {
        DeltaOut o = delta_run(&d, shared[i]);
        if (i) { // another split of the same work
            assert_memory_equal(o.delta, first.delta, n * 4);
            assert_memory_equal(o.state, first.state, n_state * 4);
            delta_out_free(&o);
            continue;
        }
        first = o;
        double worst = oracle_rel(delta, o.delta, n);
        double states = oracle_rel(state, o.state, n_state);
        double squares = 0, all = 0;
        for (size_t j = 0; j < n; j++) {
            double x = delta_value(o.out[j]);
            squares += (x - out[j]) * (x - out[j]);
            all += out[j] * out[j];
        }
        printf("%d value heads: outputs %.2g, states %.2g, gated %.2g\n", hv, worst, states,
               sqrt(squares / all));
        ORACLE_BELOW(worst, 2.5e-5, "outputs");
        ORACLE_BELOW(states, 2.5e-5, "states");
        ORACLE_BELOW(sqrt(squares / all), 2.5e-3, "gated outputs");
        delta_expect_rings(&d, &o);
    }
    delta_out_free(&first);
    free(delta);
    free(out);
    free(state);
    delta_close(&d);
}

/* Two value heads a key head with each amount of shared memory that a card may have; one and three
 * with the largest. */
static void delta_rule_agrees_with_the_token_loop(void **state) {
    (void)state;
    int shared[] = {0, 163 << 10, 99 << 10}, device = 0;
    assert_int_equal(
        cudaDeviceGetAttribute(shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        cudaSuccess);
    size_t n = shared[0] < shared[1] ? 1 : COUNT_OF(shared);
    delta_rule_agrees(2 * DELTA_HK, shared, n);
    delta_rule_agrees(1 * DELTA_HK, shared, 1);
    delta_rule_agrees(3 * DELTA_HK, shared, 1);
}

#endif
