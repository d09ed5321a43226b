// SPDX-License-Identifier: Apache-2.0
/* oracle.h - test helper: an oracle checkpoint with its reference arrays, and prompts run through
 * any backend. Everything that goes wrong fails the running cmocka test with the error's text.
 *
 * Use:
 *     Oracle o;
 *     oracle_open(&o, "tiny-a");
 *     OracleDevice d;                                  // 0 rows, threads: defaults
 *     oracle_device_open(&d, o.weights, BACKEND_REF, (BackendPlan){.n_threads = 2});
 *     OracleSeq s = oracle_seq(0);                     // state slot 0 and KV blocks of its own
 *     size_t m;
 *     int32_t *ids = oracle_ids(o.logits, &m, "prompt.65");
 *     float *want = oracle_f32(o.logits, &n, "logits.65");
 *     float *got = oracle_prefill(&d, &s, ids, m, 64, WANT_ALL, NULL);   // pieces of 64 rows
 *     OracleScore score = {0};
 *     oracle_score(&score, got, want, m, o.c->vocab);  // more calls add up
 *     assert_true(oracle_score_rel(&score) < TOL_F32_REL);
 *     float *next = oracle_decode(&d, &s, id);         // [V] logits behind `id`
 *     free(...); oracle_device_close(&d); oracle_close(&o);
 *
 * Owns:     what it returns is from malloc, freed by the caller. */
#ifndef LILY_TESTS_ORACLE_H
#define LILY_TESTS_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "tensor_read.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Header-only: a test need not use all of it. */
#define ORACLE_FN __attribute__((unused)) static

/* 1 in a build whose sanitizer makes arithmetic ten times slower: tests then take fewer rows. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ORACLE_IS_SLOW 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ORACLE_IS_SLOW 1
#endif
#ifndef ORACLE_IS_SLOW
#define ORACLE_IS_SLOW 0
#endif

enum {
    ORACLE_SEQ_BLOCKS = 12, // KV blocks of a sequence: 768 tokens
    ORACLE_SEQS = 4,        // sequences (and state slots) of a device
};

#define ORACLE_OK(call)                                                                            \
    do {                                                                                           \
        Err oracle_err_ = {0};                                                                     \
        Err *err = &oracle_err_;                                                                   \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s: %s", #call, oracle_err_.text);                                           \
    } while (0)

typedef struct Oracle {
    const char *name; // "tiny-a", "tiny-b"
    Weights *weights;
    const ModelConfig *c;
    Safetensors *logits, *layers, *state, *greedy, *bf16; // the files of reference/
} Oracle;

/* Where the copies of the oracle lie, from the repository root. */
ORACLE_FN void oracle_path(char *out, size_t size, const char *name, const char *file) {
    snprintf(out, size, "tests/data/oracle/%s%s%s", name, file ? "/reference/" : "",
             file ? file : "");
}

ORACLE_FN Safetensors *oracle_file(const char *name, const char *file) {
    char path[160];
    Safetensors *f = NULL;
    oracle_path(path, sizeof path, name, file);
    ORACLE_OK(safetensors_open(&f, path, err));
    return f;
}

ORACLE_FN void oracle_open(Oracle *o, const char *name) {
    char path[160];
    *o = (Oracle){.name = name};
    oracle_path(path, sizeof path, name, NULL);
    ORACLE_OK(weights_open(&o->weights, path, NULL, err));
    o->c = weights_config(o->weights);
    o->logits = oracle_file(name, "logits.safetensors");
    o->layers = oracle_file(name, "layers.safetensors");
    o->state = oracle_file(name, "state.safetensors");
    o->greedy = oracle_file(name, "greedy.safetensors");
    o->bf16 = oracle_file(name, "mlx_bf16.safetensors");
}

ORACLE_FN void oracle_close(Oracle *o) {
    weights_close(o->weights);
    safetensors_close(o->logits);
    safetensors_close(o->layers);
    safetensors_close(o->state);
    safetensors_close(o->greedy);
    safetensors_close(o->bf16);
}

ORACLE_FN void *oracle_alloc(size_t n, size_t size) { return tensor_alloc(n, size); }

/* An array of a reference file. n: elements (out, NULL allowed). */
ORACLE_FN float *oracle_f32(const Safetensors *f, size_t *n, const char *name) {
    size_t count;
    return tensor_f32(f, name, n ? n : &count);
}

ORACLE_FN int32_t *oracle_ids(const Safetensors *f, size_t *n, const char *name) {
    size_t count;
    n = n ? n : &count;
    int64_t *wide = tensor_i64(f, name, n);
    int32_t *out = oracle_alloc(*n, sizeof *out);
    for (size_t i = 0; i < *n; i++)
        out[i] = (int32_t)wide[i];
    free(wide);
    return out;
}

/* "prompt.65" and the like; valid until the next call. */
ORACLE_FN const char *oracle_name(const char *head, int m) {
    static char text[64];
    snprintf(text, sizeof text, "%s.%d", head, m);
    return text;
}

/* ---- running a backend ---- */

typedef struct OracleDevice {
    Backend *b;
    const ModelConfig *c;
    BackendPlan plan;
} OracleDevice;

/* `plan`: what is 0 there gets a default that fits ORACLE_SEQS sequences of 768 tokens. */
ORACLE_FN void oracle_device_open(OracleDevice *d, const Weights *w, BackendKind kind,
                                  BackendPlan plan) {
    plan.max_rows = plan.max_rows ? plan.max_rows : 704;
    plan.max_seqs = plan.max_seqs ? plan.max_seqs : ORACLE_SEQS;
    plan.n_blocks = plan.n_blocks ? plan.n_blocks : ORACLE_SEQS * ORACLE_SEQ_BLOCKS;
    plan.n_slots = plan.n_slots ? plan.n_slots : ORACLE_SEQS;
    plan.n_samplers = plan.n_samplers ? plan.n_samplers : ORACLE_SEQS;
    plan.max_ctx = plan.max_ctx ? plan.max_ctx : ORACLE_SEQ_BLOCKS * KV_BLOCK;
    *d = (OracleDevice){.c = weights_config(w), .plan = plan};
    ORACLE_OK(backend_open(&d->b, kind, w, &plan, NULL, NULL, err));
}

ORACLE_FN void oracle_device_close(OracleDevice *d) { backend_close(d->b); }

/* A plan of next to nothing, for tests of opening. */
ORACLE_FN BackendPlan oracle_small_plan(int n_threads) {
    return (BackendPlan){.max_rows = 64,
                         .max_seqs = 1,
                         .n_blocks = 2,
                         .n_slots = 1,
                         .n_samplers = 1,
                         .max_ctx = 128,
                         .n_threads = n_threads};
}

typedef struct OracleSeq {
    int32_t slot;
    int32_t pos; // tokens so far
    int32_t blocks[ORACLE_SEQ_BLOCKS];
} OracleSeq;

/* A new sequence in a state slot; its blocks lie scattered and out of order. */
ORACLE_FN OracleSeq oracle_seq(int32_t slot) {
    OracleSeq s = {.slot = slot};
    for (int32_t i = 0; i < ORACLE_SEQ_BLOCKS; i++)
        s.blocks[i] = (ORACLE_SEQ_BLOCKS - 1 - i) * ORACLE_SEQS + slot % ORACLE_SEQS;
    return s;
}

/* The part of a step that appends n rows to s from row0 on; no sampler, no carry. */
ORACLE_FN BatchSeq oracle_part(const OracleSeq *s, BatchPhase phase, int32_t row0, int32_t n,
                               BatchWant want) {
    return (BatchSeq){.phase = phase,
                      .row0 = row0,
                      .n_rows = n,
                      .pos0 = s->pos,
                      .slot = s->slot,
                      .blocks = s->blocks,
                      .want = want,
                      .sampler = -1,
                      .carry = -1};
}

/* Submits and waits; every row must be finite. */
ORACLE_FN void oracle_step(OracleDevice *d, const Batch *batch, BatchResult *results) {
    ORACLE_OK(backend_submit(d->b, batch, err));
    ORACLE_OK(backend_wait(d->b, results, err));
    for (int32_t i = 0; i < batch->n_seqs; i++)
        if (results[i].bad_layer != -1)
            fail_msg("sequence %d: layer %d is not finite at position %d", i, results[i].bad_layer,
                     results[i].bad_pos);
}

/* Appends ids to s in prefill, `chunk` rows a step. Logits [m, V] with WANT_ALL, [1, V] with
 * WANT_LAST, else NULL. */
ORACLE_FN float *oracle_prefill(OracleDevice *d, OracleSeq *s, const int32_t *ids, size_t m,
                                int32_t chunk, BatchWant want, const BatchTap *tap) {
    size_t v = (size_t)d->c->vocab;
    float *out =
        want == WANT_NOTHING ? NULL : oracle_alloc((want == WANT_ALL ? m : 1) * v, sizeof *out);
    for (size_t at = 0; at < m;) {
        int32_t n = min_i32(chunk, (int32_t)(m - at));
        bool is_last = at + (size_t)n == m;
        BatchWant here = want == WANT_LAST && !is_last ? WANT_NOTHING : want;
        BatchSeq part = oracle_part(s, PHASE_PREFILL, 0, n, here);
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = n, .ids = ids + at, .tap = tap};
        BatchResult r;
        oracle_step(d, &batch, &r);
        if (here == WANT_ALL)
            memcpy(out + at * v, r.logits, (size_t)n * v * sizeof *out);
        else if (here == WANT_LAST)
            memcpy(out, r.logits, v * sizeof *out);
        s->pos += n;
        at += (size_t)n;
    }
    return out;
}

/* Appends one id in decode: logits [V] behind it. */
ORACLE_FN float *oracle_decode(OracleDevice *d, OracleSeq *s, int32_t id) {
    size_t v = (size_t)d->c->vocab;
    BatchSeq part = oracle_part(s, PHASE_DECODE, 0, 1, WANT_LAST);
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = &id};
    BatchResult r;
    float *out = oracle_alloc(v, sizeof *out);
    oracle_step(d, &batch, &r);
    memcpy(out, r.logits, v * sizeof *out);
    s->pos++;
    return out;
}

/* ---- measures ---- */

ORACLE_FN int32_t oracle_argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

ORACLE_FN double oracle_log_sum(const float *x, int32_t n) {
    double max = (double)x[oracle_argmax(x, n)], sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* -log softmax(x)[id]. */
ORACLE_FN double oracle_nll(const float *x, int32_t n, int32_t id) {
    return oracle_log_sum(x, n) - (double)x[id];
}

/* rms(got - want) / rms(want) of plain values. */
ORACLE_FN double oracle_rel(const double *got, const float *want, size_t n) {
    double diff = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = got[i] - (double)want[i];
        diff += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / size);
}

/* Sums over any number of rows of logits; {0} to begin with. */
typedef struct OracleScore {
    double diff2, sum, sum2, n; // over logits
    double kl;                  // nats, sum over rows of KL(want || got)
    double max_abs;             // largest difference of one logit
    double rows, argmax_equal;  // rows
    double worst_margin;        // largest margin of the reference where the argmax differs
} OracleScore;

ORACLE_FN void oracle_score(OracleScore *t, const float *got, const float *want, size_t m,
                            int32_t v) {
    for (size_t r = 0; r < m; r++, got += v, want += v) {
        double log_got = oracle_log_sum(got, v), log_want = oracle_log_sum(want, v), kl = 0;
        for (int32_t i = 0; i < v; i++) {
            double g = (double)got[i], w = (double)want[i];
            t->diff2 += (g - w) * (g - w);
            t->sum += w;
            t->sum2 += w * w;
            t->max_abs = fmax(t->max_abs, fabs(g - w));
            kl += exp(w - log_want) * (w - log_want - (g - log_got));
        }
        t->n += v;
        t->kl += kl;
        t->rows++;
        int32_t a = oracle_argmax(got, v), b = oracle_argmax(want, v);
        t->argmax_equal += a == b;
        t->worst_margin = fmax(t->worst_margin, (double)want[b] - (double)want[a]);
    }
}

/* Relative rms: over the standard deviation of the expected logits. */
ORACLE_FN double oracle_score_rel(const OracleScore *t) {
    double mean = t->sum / t->n;
    return sqrt(t->diff2 / t->n / (t->sum2 / t->n - mean * mean));
}
ORACLE_FN double oracle_score_kl(const OracleScore *t) { return t->kl / t->rows; }
ORACLE_FN double oracle_score_argmax(const OracleScore *t) { return t->argmax_equal / t->rows; }

/* ---- taps ---- */

/* Keeps what one tapped step shows: entries in order; attn_probs rows of a layer one by one. */
typedef struct OracleTrace {
    struct OracleValue {
        char name[24];
        int layer;
        int32_t n_rows, width;
        double *data; // [n_rows, width]
    } * values;
    size_t n, cap;
} OracleTrace;

ORACLE_FN void oracle_trace_see(void *ctx, const char *name, int layer, int32_t n_rows,
                                int32_t width, const double *data) {
    OracleTrace *t = ctx;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->values = realloc(t->values, t->cap * sizeof *t->values);
        assert_non_null(t->values);
    }
    struct OracleValue *v = &t->values[t->n++];
    *v = (struct OracleValue){.layer = layer, .n_rows = n_rows, .width = width};
    snprintf(v->name, sizeof v->name, "%s", name);
    size_t n = (size_t)n_rows * (size_t)width;
    v->data = oracle_alloc(n, sizeof *v->data);
    memcpy(v->data, data, n * sizeof *v->data);
}

/* The `nth` value of that name and layer; NULL: none. */
ORACLE_FN const struct OracleValue *oracle_trace_find(const OracleTrace *t, const char *name,
                                                      int layer, int nth) {
    for (size_t i = 0; i < t->n; i++)
        if (t->values[i].layer == layer && strcmp(t->values[i].name, name) == 0 && nth-- == 0)
            return &t->values[i];
    return NULL;
}

ORACLE_FN void oracle_trace_fini(OracleTrace *t) {
    for (size_t i = 0; i < t->n; i++)
        free(t->values[i].data);
    free(t->values);
}

#endif
