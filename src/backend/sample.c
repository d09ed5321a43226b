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
#include "base/checked.h"
#include "base/mem.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    DIGIT_BITS = 11, // three digits cover the 32 bits of a float
    DIGITS = 1 << DIGIT_BITS,
    BLOCK = 256, // ids whose greatest value is known
    LANES = 16,  // of loops that become vector instructions
};

struct Sampler {
    int32_t vocab;
    SampleParams params; // bias points into `bias`
    LogitBias *bias;     // [LIMIT_LOGIT_BIAS]
    uint32_t *counts;    // [V]
    float *values;       // [V] logits as changed, forbidden ids -inf; then of ids that are left
    int32_t *ids;        // [V] that are left, ascending
    float *chances;      // [V] their probabilities relative to the largest
    float *tops;         // [div_up(V, BLOCK)] greatest values of blocks, twice
    uint64_t *masses;    // [DIGITS] of one selection
};

/* The bits of x such that unsigned order is the order of the values. */
static uint32_t order_of(float x) {
    uint32_t u = f32_bits(x + 0.0f); // -0 becomes +0
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

uint64_t sampler_bytes(int32_t vocab) {
    return sizeof(Sampler) + (uint64_t)vocab * (2 * sizeof(uint32_t) + 2 * sizeof(float)) +
           2 * (uint64_t)div_up_i32(vocab, BLOCK) * sizeof(float) +
           LIMIT_LOGIT_BIAS * sizeof(LogitBias) + DIGITS * sizeof(uint64_t);
}

void sampler_close(Sampler *s) {
    if (!s)
        return;
    mem_free(s->bias);
    mem_free(s->counts);
    mem_free(s->values);
    mem_free(s->ids);
    mem_free(s->chances);
    mem_free(s->tops);
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
        s->ids = mem_zalloc((size_t)vocab, sizeof *s->ids);
        s->chances = mem_zalloc((size_t)vocab, sizeof *s->chances);
        s->tops = mem_zalloc(2 * (size_t)div_up_i32(vocab, BLOCK), sizeof *s->tops);
        s->masses = mem_zalloc(DIGITS, sizeof *s->masses);
    }
    if (!s || !s->bias || !s->counts || !s->values || !s->ids || !s->chances || !s->tops ||
        !s->masses) {
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
            s->counts[ids[i]] |= SAMPLE_IN_PROMPT;
        else
            s->counts[ids[i]]++;
    }
    return STATUS_OK;
}

const uint32_t *sampler_counts(const Sampler *s) { return s->counts; }

double sample_repetition(const SampleParams *params) {
    return params->repetition_penalty == 0 ? 1 : (double)params->repetition_penalty;
}

bool sample_has_penalty(const SampleParams *params) {
    return sample_repetition(params) != 1 || params->presence_penalty != 0 ||
           params->frequency_penalty != 0;
}

/* values = logits after penalties, bias and masks. */
static void change_logits(Sampler *s, const float *logits, const uint32_t *allowed) {
    const SampleParams *p = &s->params;
    memcpy(s->values, logits, (size_t)s->vocab * sizeof *s->values);
    double rep = sample_repetition(p);
    bool has_penalty = sample_has_penalty(p);
    for (int32_t i = 0; has_penalty && i < s->vocab; i++)
        if (s->counts[i])
            s->values[i] =
                sample_penalised(logits[i], s->counts[i], rep, (double)p->presence_penalty,
                                 (double)p->frequency_penalty);
    for (int32_t i = 0; i < p->n_bias; i++) {
        float *x = &s->values[p->bias[i].id];
        *x = sample_biased(*x, p->bias[i].bias);
    }
    for (int32_t i = p->n_ids ? p->n_ids : s->vocab; i < s->vocab; i++)
        s->values[i] = -INFINITY;
    for (int32_t i = 0; allowed && i < s->vocab; i++)
        if (!(allowed[i / 32] >> (i % 32) & 1))
            s->values[i] = -INFINITY;
}

/* The greatest value of n >= 1. */
static float greatest(const float *x, int32_t n) {
    float top[LANES], best = x[0];
    int32_t i = 0;
    for (int k = 0; k < LANES; k++)
        top[k] = best;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            top[k] = x[i + k] > top[k] ? x[i + k] : top[k];
    for (int k = 0; k < LANES; k++)
        best = top[k] > best ? top[k] : best;
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

/* Fills the greatest values of all blocks; the lowest id among the maxima, or -1 when every id is
 * forbidden. */
static int32_t find_best(Sampler *s) {
    int32_t n_blocks = div_up_i32(s->vocab, BLOCK), best = 0;
    for (int32_t b = 0; b < n_blocks; b++) {
        s->tops[b] = greatest(s->values + b * BLOCK, min_i32(BLOCK, s->vocab - b * BLOCK));
        best = s->tops[b] > s->tops[best] ? b : best;
    }
    if (s->tops[best] == -INFINITY)
        return -1;
    int32_t id = best * BLOCK;
    while (id < s->vocab - 1 && s->values[id] != s->tops[best])
        id++;
    return id;
}

/* A value that at least `count` ids reach: the count-th greatest of the blocks' greatest. -FLT_MAX,
 * which all reach that are not forbidden, where there are fewer blocks. */
static float least_of(Sampler *s, int32_t count) {
    int32_t n = div_up_i32(s->vocab, BLOCK), low = 0, high = n - 1, at = n - count;
    float *x = s->tops + n;
    if (at < 0)
        return -FLT_MAX;
    memcpy(x, s->tops, (size_t)n * sizeof *x);
    while (low < high) { // quickselect, ascending
        float pivot = x[low + (high - low) / 2];
        int32_t i = low, j = high;
        while (i <= j) {
            for (; x[i] < pivot;)
                i++;
            for (; x[j] > pivot;)
                j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (at > j && at < i)
            break;
        low = at >= i ? i : low;
        high = at <= j ? j : high;
    }
    return x[at] > -FLT_MAX ? x[at] : -FLT_MAX;
}

/* Lists the ids of values from `least` on, and moves these values to their places in the list. */
static int32_t list_ids(Sampler *s, float least) {
    int32_t n = 0;
    for (int32_t first = 0; first < s->vocab; first += BLOCK) {
        if (s->tops[first / BLOCK] < least)
            continue;
        int32_t end = min_i32(first + BLOCK, s->vocab);
        for (int32_t i = first; i < end; i++) { // n <= i: what is overwritten was read
            float x = s->values[i];
            s->values[n] = x;
            s->ids[n] = i;
            n += x >= least;
        }
    }
    return n;
}

/* What place i of the list counts in a selection: 1, or its mass. */
static uint64_t mass_of(const Sampler *s, int32_t i, bool by_mass) {
    return by_mass ? sample_mass(s->chances[i]) : 1;
}

/* Keeps of n listed ids those of the greatest values (equal ones by ascending id) whose counts or
 * masses reach `need` > 0, all when they never do; how many. The threshold is found digit by digit
 * from histograms of the values' order. */
static int32_t keep_greatest(Sampler *s, int32_t n, uint64_t need, bool by_mass) {
    uint32_t at = 0; // the leading digits of the threshold
    int shift = 32;
    while (shift > 0) {
        int bits = shift < DIGIT_BITS ? shift : DIGIT_BITS, above = shift;
        shift -= bits;
        memset(s->masses, 0, DIGITS * sizeof *s->masses);
        for (int32_t i = 0; i < n; i++) {
            uint32_t o = order_of(s->values[i]);
            if (above == 32 || o >> above == at)
                s->masses[o >> shift & ((1u << bits) - 1)] += mass_of(s, i, by_mass);
        }
        uint32_t digit = (1u << bits) - 1;
        for (; digit > 0 && s->masses[digit] < need; digit--)
            need -= s->masses[digit];
        at = at << bits | digit;
    }
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t o = order_of(s->values[i]);
        bool stays = o > at;
        if (o == at && need > 0) {
            uint64_t mass = mass_of(s, i, by_mass);
            need -= mass < need ? mass : need;
            stays = true;
        }
        s->values[left] = s->values[i];
        s->ids[left] = s->ids[i];
        s->chances[left] = s->chances[i];
        left += stays;
    }
    return left;
}

/* Probabilities of n values. */
static void make_chances(float *restrict to, const float *restrict x, int32_t n, float max,
                         float inverse) {
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            to[i + k] = sample_chance(x[i + k], max, inverse);
    for (; i < n; i++)
        to[i] = sample_chance(x[i], max, inverse);
}

/* Sum of the masses of n listed ids whose probability is not below min_p. */
static uint64_t sum_masses(const float *chances, int32_t n, float min_p) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += chances[i] >= min_p ? sample_mass(chances[i]) : 0;
    return sum;
}

/* An id by temperature, top-k, top-p and min-p from the changed logits; the greatest is `max`. */
static int32_t draw(Sampler *s, float max, int32_t pos) {
    const SampleParams *p = &s->params;
    bool has_top_k = p->top_k > 0 && p->top_k < s->vocab;
    int32_t n = list_ids(s, has_top_k ? least_of(s, p->top_k) : -FLT_MAX);
    if (has_top_k)
        n = keep_greatest(s, n, (uint64_t)p->top_k, false);
    make_chances(s->chances, s->values, n, max, 1.0f / p->temperature);
    if (p->top_p > 0 && p->top_p < 1)
        n = keep_greatest(s, n, sample_need(p->top_p, sum_masses(s->chances, n, 0)), true);
    uint64_t all = sum_masses(s->chances, n, p->min_p), sum = 0; // the greatest has 1
    uint64_t target = sample_target(rng_u64(p->seed, (uint64_t)(uint32_t)pos), all);
    for (int32_t i = 0; i < n; i++) {
        if (s->chances[i] >= p->min_p)
            sum += sample_mass(s->chances[i]);
        if (sum > target)
            return s->ids[i];
    }
    CHECK(!"the sum passes the target, which is below it");
    return -1;
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
    out->id = find_best(s);
    if (out->id >= 0 && s->params.temperature != 0)
        out->id = draw(s, s->values[out->id], pos);
    if (s->params.want_logprob || s->params.n_top) {
        double log_sum = log_sum_exp(logits, s->vocab);
        out->logprob = out->id < 0 ? 0 : (float)((double)logits[out->id] - log_sum);
        list_top(s, out, logits, log_sum);
    }
    if (out->id >= 0)
        s->counts[out->id]++;
}
