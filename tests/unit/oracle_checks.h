// SPDX-License-Identifier: Apache-2.0
/* oracle_checks.h - test helper: everything that the oracle lists, checked on one opened device.
 * For backends in f32 or f64; bf16 activations need the bounds over whole prompt sets (oracle.h).
 *
 * Use:      open an Oracle and an OracleDevice (oracle.h), fill OracleBounds from tolerance.h,
 * call. Not here: loading and running (oracle.h). */
#ifndef LILY_TESTS_ORACLE_CHECKS_H
#define LILY_TESTS_ORACLE_CHECKS_H

#include "oracle.h"

#include "../tolerance.h"

typedef struct OracleBounds {
    double rel;         // relative rms of logits, traced values, states, router gaps
    double max_abs;     // of one logit
    double nll;         // of one -log softmax, nats
    double margin;      // above it the argmax must be equal
    bool has_trace;     // the backend's taps show the names of the layer trace
    bool rounds_to_f32; // round to F32, as the reference arrays are, before comparing
} OracleBounds;

#define ORACLE_BELOW(value, bound, ...)                                                            \
    do {                                                                                           \
        double oracle_value_ = (value);                                                            \
        if (!(oracle_value_ <= (bound))) { /* a NaN fails */                                       \
            char oracle_text_[96];                                                                 \
            snprintf(oracle_text_, sizeof oracle_text_, __VA_ARGS__);                              \
            fail_msg("%s: %.3g, allowed are %.3g", oracle_text_, oracle_value_, (double)(bound));  \
        }                                                                                          \
    } while (0)

ORACLE_FN double oracle_bounded_rel(const double *got, const float *want, size_t n,
                                    const OracleBounds *t) {
    double *rounded = oracle_alloc(n, sizeof *rounded);
    for (size_t i = 0; i < n; i++)
        rounded[i] = t->rounds_to_f32 ? (double)(float)got[i] : got[i];
    double rel = oracle_rel(rounded, want, n);
    free(rounded);
    return rel;
}

/* The K-th largest minus the (K+1)-th largest of x [n]. */
ORACLE_FN double oracle_gap(const double *x, int32_t n, int32_t k) {
    double at_k = 0, below = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < n; j++)
            rank += x[j] > x[i] || (x[j] == x[i] && j < i);
        at_k = rank == k - 1 ? x[i] : at_k;
        below = rank == k ? x[i] : below;
    }
    return at_k - below;
}

/* A tap that turns router logits into gaps. */
typedef struct OracleGaps {
    const ModelConfig *c;
    double *gaps; // [m, layers]
    int32_t row0; // of the step
} OracleGaps;

ORACLE_FN void oracle_gaps_see(void *ctx, const char *name, int layer, int32_t n_rows,
                               int32_t width, const double *data) {
    OracleGaps *t = ctx;
    if (strcmp(name, "router_logits") != 0)
        return;
    for (int32_t r = 0; r < n_rows; r++)
        t->gaps[(t->row0 + r) * t->c->n_layers + layer] =
            oracle_gap(data + (size_t)r * (size_t)width, width, t->c->top_k);
}

/* logits.m, router_gap.m and, for 517, nll.517 of one prompt; prints what it found. */
ORACLE_FN void oracle_check_prompt(const Oracle *o, OracleDevice *d, int prompt,
                                   const OracleBounds *t) {
    size_t m, n, n_gaps, v = (size_t)o->c->vocab;
    int32_t *ids = oracle_ids(o->logits, &m, oracle_name("prompt", prompt));
    float *want = oracle_f32(o->logits, &n, oracle_name("logits", prompt));
    float *want_gaps = oracle_f32(o->logits, &n_gaps, oracle_name("router_gap", prompt));
    OracleGaps gaps = {o->c, oracle_alloc(n_gaps, sizeof(double)), 0};
    BatchTap tap = {oracle_gaps_see, &gaps};
    OracleSeq s = oracle_seq(1);
    float *got = oracle_prefill(d, &s, ids, m, 704, WANT_ALL, t->has_trace ? &tap : NULL);
    OracleScore score = {0};
    oracle_score(&score, got + m * v - n, want, n / v, o->c->vocab); // all rows, or the last one
    printf("%s, %s, prompt of %d: relative rms %.2g, largest %.2g, KL %.2g\n", o->name,
           backend_text(d->b), prompt, oracle_score_rel(&score), score.max_abs,
           oracle_score_kl(&score));
    ORACLE_BELOW(oracle_score_rel(&score), t->rel, "logits of prompt %d", prompt);
    ORACLE_BELOW(score.max_abs, t->max_abs, "one logit of prompt %d", prompt);
    ORACLE_BELOW(score.worst_margin, t->margin, "margin at another argmax, prompt %d", prompt);
    if (t->has_trace)
        ORACLE_BELOW(oracle_bounded_rel(gaps.gaps, want_gaps, n_gaps, t), t->rel,
                     "router gaps of prompt %d", prompt);
    if (prompt == 517) {
        float *nll = oracle_f32(o->greedy, &n, "nll.517");
        assert_int_equal(n, 516);
        for (size_t i = 0; i < n; i++)
            ORACLE_BELOW(fabs(oracle_nll(got + i * v, o->c->vocab, ids[i + 1]) - (double)nll[i]),
                         t->nll, "nll at %zu", i);
        free(nll);
    }
    free(ids);
    free(want);
    free(want_gaps);
    free(gaps.gaps);
    free(got);
}

/* All prompts; built with a sanitizer, those up to 129. */
ORACLE_FN void oracle_check_prompts(const Oracle *o, OracleDevice *d, const OracleBounds *t) {
    static const int prompts[] = {1, 2, 5, 63, 64, 65, 129, 517};
    for (size_t i = 0; i < COUNT_OF(prompts); i++)
        if (prompts[i] < 517 || !ORACLE_IS_SLOW)
            oracle_check_prompt(o, d, prompts[i], t);
}

/* Prompts of 3 and 4 tokens: the first rows of the 5-token prompt. */
ORACLE_FN void oracle_check_short_prompts(const Oracle *o, OracleDevice *d, const OracleBounds *t) {
    int32_t *ids = oracle_ids(o->logits, NULL, "prompt.5");
    float *want = oracle_f32(o->logits, NULL, "logits.5");
    for (size_t m = 3; m <= 4; m++) {
        OracleSeq s = oracle_seq(0);
        float *got = oracle_prefill(d, &s, ids, m, 64, WANT_ALL, NULL);
        OracleScore score = {0};
        oracle_score(&score, got, want, m, o->c->vocab);
        ORACLE_BELOW(oracle_score_rel(&score), t->rel, "logits of the first %zu", m);
        free(got);
    }
    free(ids);
    free(want);
}

/* Values [NQ, 5, 5] from the rows that the tap gave one by one, [NQ, position + 1]. */
ORACLE_FN double *oracle_trace_probs(const OracleTrace *trace, int layer, size_t n_heads,
                                     size_t m) {
    double *out = oracle_alloc(n_heads * m * m, sizeof *out);
    for (size_t row = 0; row < m; row++) {
        const struct OracleValue *v = oracle_trace_find(trace, "attn_probs", layer, (int)row);
        assert_non_null(v);
        assert_int_equal(v->n_rows, n_heads);
        assert_int_equal(v->width, row + 1);
        for (size_t h = 0; h < n_heads; h++)
            for (size_t i = 0; i <= row; i++)
                out[(h * m + row) * m + i] = v->data[h * (row + 1) + i];
    }
    return out;
}

/* Layer and tap name of a reference tensor: "L0.qkv", "layer.3.out", "embed", "final_norm". */
ORACLE_FN void oracle_trace_key(const char *tensor, int n_layers, char name[24], int *layer) {
    *layer = n_layers;
    snprintf(name, 24, "%s", tensor);
    if (strcmp(tensor, "embed") == 0) {
        *layer = -1;
        snprintf(name, 24, "out");
    } else if (strncmp(tensor, "layer.", 6) == 0) {
        *layer = (int)strtol(tensor + 6, NULL, 10);
        snprintf(name, 24, "out");
    } else if (tensor[0] == 'L') {
        *layer = (int)strtol(tensor + 1, NULL, 10);
        snprintf(name, 24, "%s", strchr(tensor, '.') + 1);
    }
}

/* Every tensor of layers.safetensors. */
ORACLE_FN void oracle_check_trace(const Oracle *o, OracleDevice *d, const OracleBounds *t) {
    size_t m, worst_at = 0;
    double worst = 0;
    int32_t *ids = oracle_ids(o->logits, &m, "prompt.5");
    OracleTrace trace = {0};
    BatchTap tap = {oracle_trace_see, &trace};
    OracleSeq s = oracle_seq(2);
    oracle_prefill(d, &s, ids, m, 64, WANT_NOTHING, &tap);
    const SafetensorsTable *table = &o->layers->table;
    for (size_t i = 0; i < table->n; i++) {
        char name[24];
        int layer;
        size_t n;
        const char *tensor = table->tensors[i].name.ptr;
        oracle_trace_key(tensor, o->c->n_layers, name, &layer);
        const struct OracleValue *v = oracle_trace_find(&trace, name, layer, 0);
        if (!v)
            fail_msg("%s is not shown", tensor);
        bool is_ids = strcmp(name, "topk_ids") == 0, is_probs = strcmp(name, "attn_probs") == 0;
        float *want = is_ids ? NULL : oracle_f32(o->layers, &n, tensor);
        double *probs = is_probs ? oracle_trace_probs(&trace, layer, (size_t)v->n_rows, m) : NULL;
        if (is_ids) {
            int32_t *want_ids = oracle_ids(o->layers, &n, tensor);
            assert_int_equal(n, v->n_rows * v->width);
            for (size_t j = 0; j < n; j++)
                assert_int_equal(want_ids[j], v->data[j]);
            free(want_ids);
        } else {
            if (!is_probs)
                assert_int_equal(n, v->n_rows * v->width);
            double rel = oracle_bounded_rel(is_probs ? probs : v->data, want, n, t);
            ORACLE_BELOW(rel, t->rel, "%s", tensor);
            if (rel >= worst) {
                worst = rel;
                worst_at = i;
            }
        }
        free(want);
        free(probs);
    }
    printf("%s, %s: %zu traced values, worst relative rms %.2g at %s\n", o->name,
           backend_text(d->b), table->n, worst, table->tensors[worst_at].name.ptr);
    free(ids);
    oracle_trace_fini(&trace);
}

/* Recurrent state and window of every GDN layer after the prompt of 65. */
ORACLE_FN void oracle_check_states(const Oracle *o, OracleDevice *d, const OracleBounds *t) {
    size_t m, n_s = (size_t)o->c->n_gdn_value_heads * GDN_HEAD * GDN_HEAD;
    size_t n_w = (CONV_TAPS - 1) * (size_t)config_conv_dim(o->c);
    double *s = oracle_alloc(n_s, sizeof *s), *w = oracle_alloc(n_w, sizeof *w), worst = 0;
    int32_t *ids = oracle_ids(o->logits, &m, "prompt.65");
    OracleSeq seq = oracle_seq(3);
    oracle_prefill(d, &seq, ids, m, 64, WANT_NOTHING, NULL);
    for (int l = 0; l < o->c->n_layers; l++) {
        if (o->c->is_attn[l])
            continue;
        char name[32];
        size_t n;
        ORACLE_OK(backend_slot_peek(d->b, 3, l, s, w, err));
        snprintf(name, sizeof name, "layer.%d.S", l);
        float *want = oracle_f32(o->state, &n, name);
        assert_int_equal(n, n_s);
        double rel = oracle_bounded_rel(s, want, n, t);
        ORACLE_BELOW(rel, t->rel, "%s", name);
        worst = fmax(worst, rel);
        free(want);
        snprintf(name, sizeof name, "layer.%d.conv", l);
        want = oracle_f32(o->state, &n, name);
        assert_int_equal(n, n_w);
        rel = oracle_bounded_rel(w, want, n, t);
        ORACLE_BELOW(rel, t->rel, "%s", name);
        worst = fmax(worst, rel);
        free(want);
    }
    printf("%s, %s: states after 65, worst relative rms %.2g\n", o->name, backend_text(d->b),
           worst);
    free(s);
    free(w);
    free(ids);
}

/* n_steps <= 64 greedy tokens behind a prompt: the ids while the reference's margin is above the
 * bound, and the logits of each step (fed with the reference's ids). */
ORACLE_FN void oracle_check_greedy(const Oracle *o, OracleDevice *d, int prompt, size_t n_steps,
                                   const OracleBounds *t) {
    size_t m, n, v = (size_t)o->c->vocab;
    char name[32];
    int32_t *ids = oracle_ids(o->logits, &m, oracle_name("prompt", prompt));
    snprintf(name, sizeof name, "greedy.%d.ids", prompt);
    int32_t *want_ids = oracle_ids(o->greedy, &n, name);
    assert_int_equal(n, 64);
    snprintf(name, sizeof name, "greedy.%d.logits", prompt);
    float *want = oracle_f32(o->greedy, NULL, name);
    snprintf(name, sizeof name, "greedy.%d.margin", prompt);
    float *margin = oracle_f32(o->greedy, NULL, name);
    OracleSeq s = oracle_seq(0);
    OracleScore score = {0};
    float *got = oracle_prefill(d, &s, ids, m, 64, WANT_LAST, NULL);
    for (size_t i = 0; i < n_steps; i++) {
        oracle_score(&score, got, want + i * v, 1, o->c->vocab);
        if ((double)margin[i] > t->margin)
            assert_int_equal(oracle_argmax(got, o->c->vocab), want_ids[i]);
        free(got);
        got = oracle_decode(d, &s, want_ids[i]);
    }
    printf("%s, %s, %zu tokens behind %d: relative rms %.2g, largest %.2g\n", o->name,
           backend_text(d->b), n_steps, prompt, oracle_score_rel(&score), score.max_abs);
    ORACLE_BELOW(oracle_score_rel(&score), t->rel, "logits behind prompt %d", prompt);
    ORACLE_BELOW(score.max_abs, t->max_abs, "one logit behind prompt %d", prompt);
    free(got);
    free(ids);
    free(want_ids);
    free(want);
    free(margin);
}

#endif
