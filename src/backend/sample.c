// SPDX-License-Identifier: Apache-2.0
/* sample.c - the scalar sampler: passes over all ids in ascending order and selections by counting,
 * never a sort of the vocabulary.
 *
 * Path:     CPU backends call sampler_next behind their output head.
 * Owns:     a Sampler owns its counts and its work values.  Thread: the backend's.
 * Not here: the definition of each step (sample.h), its arithmetic (sample_math.h). */
#include "backend/sample.h"

#include "backend/sample_math.h"
#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    DIGIT_BITS = 11, // three digits cover the 32 bits of a float
    DIGITS = 1 << DIGIT_BITS,
};

static const uint32_t IN_PROMPT = 1u << 31; // of a count; the other bits count generated times

struct Sampler {
    int32_t vocab;
    SampleParams params; // bias points into `bias`
    LogitBias *bias;     // [LIMIT_LOGIT_BIAS]
    uint32_t *counts;    // [V]
    float *values;       // [V] logits as changed; dropped ids -inf
    float *chances;      // [V] probabilities relative to the largest
    uint64_t *masses;    // [DIGITS] of one selection
};

/* The bits of x such that unsigned order is the order of the values. */
static uint32_t order_of(float x) {
    uint32_t u = f32_bits(x + 0.0f); // -0 becomes +0
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

uint64_t sampler_bytes(int32_t vocab) {
    return sizeof(Sampler) + (uint64_t)vocab * (sizeof(uint32_t) + 2 * sizeof(float)) +
           LIMIT_LOGIT_BIAS * sizeof(LogitBias) + DIGITS * sizeof(uint64_t);
}

void sampler_close(Sampler *s) {
    if (!s)
        return;
    mem_free(s->bias);
    mem_free(s->counts);
    mem_free(s->values);
    mem_free(s->chances);
    mem_free(s->masses);
    mem_free(s);
}

Status sampler_open(Sampler **out, int32_t vocab, Err *err) {
    CHECK(vocab >= 1);
    Sampler *s = mem_zalloc(1, sizeof *s);
    if (s) {
        s->vocab = vocab;
        s->bias = mem_zalloc(LIMIT_LOGIT_BIAS, sizeof *s->bias);
        s->counts = mem_zalloc((size_t)vocab, sizeof *s->counts);
        s->values = mem_zalloc((size_t)vocab, sizeof *s->values);
        s->chances = mem_zalloc((size_t)vocab, sizeof *s->chances);
        s->masses = mem_zalloc(DIGITS, sizeof *s->masses);
    }
    if (!s || !s->bias || !s->counts || !s->values || !s->chances || !s->masses) {
        sampler_close(s);
        return err_memory(err, "sampler", (size_t)sampler_bytes(vocab));
    }
    *out = s;
    return STATUS_OK;
}

static Status range_check(const char *name, double value, double low, double high, Err *err) {
    if (value >= low && value <= high) // a NaN is outside
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s: expected %g to %g, found %g", name, low, high, value);
}

Status sample_params_check(const SampleParams *p, int32_t vocab, Err *err) {
    TRY(range_check("temperature", (double)p->temperature, 0, 100, err));
    TRY(range_check("top_k", p->top_k, 0, INT32_MAX, err));
    TRY(range_check("top_p", (double)p->top_p, 0, 1, err));
    TRY(range_check("min_p", (double)p->min_p, 0, 1, err));
    TRY(range_check("repetition_penalty", (double)p->repetition_penalty, 0, 100, err));
    TRY(range_check("presence_penalty", (double)p->presence_penalty, -100, 100, err));
    TRY(range_check("frequency_penalty", (double)p->frequency_penalty, -100, 100, err));
    TRY(range_check("n_ids", p->n_ids, 0, vocab, err));
    TRY(range_check("top_logprobs", p->n_top, 0, LIMIT_TOP_LOGPROBS, err));
    TRY(range_check("entries of logit_bias", p->n_bias, 0, LIMIT_LOGIT_BIAS, err));
    for (int32_t i = 0; i < p->n_bias; i++) {
        TRY(range_check("id in logit_bias", p->bias[i].id, 0, vocab - 1, err));
        if (!(p->bias[i].bias <= FLT_MAX)) // NaN or +inf; -inf forbids an id
            return err_set(err, STATUS_INVALID,
                           "logit_bias of id %d: expected a number or -inf, found %g",
                           p->bias[i].id, (double)p->bias[i].bias);
    }
    return STATUS_OK;
}

Status sampler_set(Sampler *s, const SampleParams *params, const int32_t *ids, int32_t n_prompt,
                   int32_t n_generated, Err *err) {
    TRY(sample_params_check(params, s->vocab, err));
    if (n_prompt < 0 || n_generated < 0)
        return err_set(err, STATUS_INVALID, "seen ids: expected counts from 0, found %d and %d",
                       n_prompt, n_generated);
    int64_t n = (int64_t)n_prompt + n_generated;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->vocab)
            return err_set(err, STATUS_INVALID, "seen id %lld: expected 0 to %d, found %d",
                           (long long)i, s->vocab - 1, ids[i]);
    s->params = *params;
    s->params.bias = s->bias;
    if (params->n_bias)
        memmove(s->bias, params->bias, (size_t)params->n_bias * sizeof *s->bias);
    memset(s->counts, 0, (size_t)s->vocab * sizeof *s->counts);
    for (int64_t i = 0; i < n; i++) {
        if (i < n_prompt)
            s->counts[ids[i]] |= IN_PROMPT;
        else
            s->counts[ids[i]]++;
    }
    return STATUS_OK;
}

const uint32_t *sampler_counts(const Sampler *s) { return s->counts; }

/* A double as a float; beyond the floats the largest one, so that only "forbidden" is infinite. */
static float to_finite(double x) {
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

/* values = logits after penalties, bias and masks. */
static void change_logits(Sampler *s, const float *logits, const uint32_t *allowed) {
    const SampleParams *p = &s->params;
    memcpy(s->values, logits, (size_t)s->vocab * sizeof *s->values);
    double rep = p->repetition_penalty == 0 ? 1 : (double)p->repetition_penalty;
    double presence = (double)p->presence_penalty, frequency = (double)p->frequency_penalty;
    if (rep != 1 || presence != 0 || frequency != 0)
        for (int32_t i = 0; i < s->vocab; i++) {
            if (!s->counts[i])
                continue;
            uint32_t n = s->counts[i] & ~IN_PROMPT;
            double x = (double)logits[i];
            x = x > 0 ? x / rep : x * rep;
            s->values[i] = to_finite(x - (n ? presence : 0) - frequency * n);
        }
    for (int32_t i = 0; i < p->n_bias; i++) {
        float *x = &s->values[p->bias[i].id];
        *x = isinf(p->bias[i].bias) || isinf(*x) ? -INFINITY
                                                 : to_finite((double)*x + (double)p->bias[i].bias);
    }
    for (int32_t i = p->n_ids ? p->n_ids : s->vocab; i < s->vocab; i++)
        s->values[i] = -INFINITY;
    for (int32_t i = 0; allowed && i < s->vocab; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1))
            s->values[i] = -INFINITY;
}

/* Lowest id among the maxima; -1 when every id is forbidden. */
static int32_t argmax(const float *values, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (values[i] > values[best])
            best = i;
    return values[best] == -INFINITY ? -1 : best;
}

/* What id i counts in a selection: 1, or its mass. */
static uint64_t mass_of(const Sampler *s, int32_t i, bool by_mass) {
    return by_mass ? sample_mass(s->chances[i]) : 1;
}

/* Drops all but the greatest values (equal ones by ascending id) whose counts or masses reach
 * `need` > 0; none when they never do. The threshold is found digit by digit from histograms of the
 * values' order. */
static void keep_greatest(Sampler *s, uint64_t need, bool by_mass) {
    uint32_t at = 0; // the leading digits of the threshold
    int shift = 32;
    while (shift > 0) {
        int bits = shift < DIGIT_BITS ? shift : DIGIT_BITS, above = shift;
        shift -= bits;
        memset(s->masses, 0, DIGITS * sizeof *s->masses);
        for (int32_t i = 0; i < s->vocab; i++) {
            uint32_t o = order_of(s->values[i]);
            if (s->values[i] != -INFINITY && (above == 32 || o >> above == at))
                s->masses[o >> shift & ((1u << bits) - 1)] += mass_of(s, i, by_mass);
        }
        uint32_t digit = (1u << bits) - 1;
        for (; digit > 0 && s->masses[digit] < need; digit--)
            need -= s->masses[digit];
        at = at << bits | digit;
    }
    for (int32_t i = 0; i < s->vocab; i++) {
        uint32_t o = order_of(s->values[i]);
        if (o == at && need > 0) {
            uint64_t mass = mass_of(s, i, by_mass);
            need -= mass < need ? mass : need;
        } else if (o <= at) {
            s->values[i] = -INFINITY;
            s->chances[i] = 0;
        }
    }
}

/* An id by temperature, top-k, top-p and min-p from the changed logits; the greatest is at `best`.
 */
static int32_t draw(Sampler *s, int32_t best, int32_t pos) {
    const SampleParams *p = &s->params;
    if (p->top_k > 0 && p->top_k < s->vocab)
        keep_greatest(s, (uint64_t)p->top_k, false);
    float max = s->values[best], inverse = 1.0f / p->temperature;
    uint64_t all = 0, sum = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        s->chances[i] = sample_chance(s->values[i], max, inverse);
        all += sample_mass(s->chances[i]);
    }
    if (p->top_p > 0 && p->top_p < 1)
        keep_greatest(s, sample_need(p->top_p, all), true);
    all = 0;
    for (int32_t i = 0; i < s->vocab; i++)
        if (s->chances[i] >= p->min_p) // the greatest is 1
            all += sample_mass(s->chances[i]);
    uint64_t target = sample_target(rng_u64(p->seed, (uint64_t)(uint32_t)pos), all);
    int32_t id = 0;
    for (; id < s->vocab - 1; id++) { // the sum passes the target, which is below all
        if (s->chances[id] >= p->min_p)
            sum += sample_mass(s->chances[id]);
        if (sum > target)
            break;
    }
    return id;
}

/* log of the softmax denominator of the unchanged logits. */
static double log_sum_exp(const float *logits, int32_t n) {
    double max = (double)logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

/* The n_top greatest logits of ids below n_ids, as log-probabilities. */
static void list_top(const Sampler *s, SampleResult *out, const float *logits, double log_sum) {
    int32_t n_ids = s->params.n_ids ? s->params.n_ids : s->vocab;
    float top[LIMIT_TOP_LOGPROBS];
    for (int32_t i = 0; i < n_ids; i++) {
        int32_t at = out->n_top;
        if (at == s->params.n_top && (at == 0 || !(logits[i] > top[at - 1])))
            continue;
        if (at < s->params.n_top)
            out->n_top++;
        else
            at--;
        for (; at > 0 && logits[i] > top[at - 1]; at--) {
            top[at] = top[at - 1];
            out->top_ids[at] = out->top_ids[at - 1];
        }
        top[at] = logits[i];
        out->top_ids[at] = i;
    }
    for (int32_t i = 0; i < out->n_top; i++)
        out->top_logprobs[i] = (float)((double)top[i] - log_sum);
}

void sampler_next(Sampler *s, SampleResult *out, const float *logits, const uint32_t *allowed,
                  int32_t pos) {
    *out = (SampleResult){.id = -1};
    change_logits(s, logits, allowed);
    int32_t best = argmax(s->values, s->vocab);
    if (best >= 0)
        out->id = s->params.temperature == 0 ? best : draw(s, best, pos);
    if (s->params.want_logprob || s->params.n_top) {
        double log_sum = log_sum_exp(logits, s->vocab);
        out->logprob = out->id < 0 ? 0 : (float)((double)logits[out->id] - log_sum);
        list_top(s, out, logits, log_sum);
    }
    if (out->id >= 0)
        s->counts[out->id]++;
}
