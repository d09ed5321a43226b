// SPDX-License-Identifier: Apache-2.0
/* sample.h - from logits to an id: the scalar sampler, used by the CPU backends and the judge of
 * device samplers.
 *
 * Path:     a backend keeps one Sampler a sequence; the engine fills its SampleParams.
 * Owns:     a Sampler owns its id counts.  Thread: the backend's. */
#ifndef LILY_BACKEND_SAMPLE_H
#define LILY_BACKEND_SAMPLE_H

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct LogitBias {
    int32_t id;
    float bias; // added to the logit; -inf forbids
} LogitBias;

/* How to choose. The definition, step by step; x are the logits:
 * 1. repetition penalty r for ids of the prompt and generated ones: x / r where x > 0, else x * r;
 * 2. for ids generated n > 0 times: x - presence - frequency * n;
 * 3. x + bias, entry by entry; -inf forbids the id. Steps 1 and 2 together, and each entry, are
 *    computed in double and rounded to float, beyond the floats to the largest finite one;
 * 4. ids at and above n_ids and ids not in `allowed` are forbidden. Nothing left: id -1, nothing is
 *    counted;
 * 5. temperature 0: the lowest id among the maxima. Otherwise
 * 6. top_k: the k largest logits, equal ones by ascending id; more than V: all;
 * 7. p = exp((x - max) / temperature) as sample_chance gives it, and its mass: p in whole units of
 * 2^-40. All sums are of masses, so they are exact and have no order;
 * 8. top_p: of what top_k left, the largest logits (equal ones by ascending id) until the sum of
 * their masses reaches top_p times the sum of all;
 * 9. min_p: ids with p < min_p fall (the largest p is 1);
 * 10. the first id, ascending, at which the running sum of what is left passes
 * floor(rng_u64(seed, pos) / 2^64 * the whole sum). {0} is greedy with nothing masked. */
typedef struct SampleParams {
    float temperature; // 0..100; 0: greedy; else logits are divided by it
    int32_t top_k;     // >= 0: keep the k largest; 0: all
    float top_p;       // 0..1: keep the smallest set whose probability reaches it; 0 or 1: all
    float min_p;       // 0..1: drop ids below min_p times the largest probability; 0: none
    float repetition_penalty; // 0..100; 0 or 1: none; divides positive, multiplies negative logits
                              // of seen ids
    float presence_penalty;   // -100..100, subtracted once from ids that were generated
    float frequency_penalty;  // -100..100, subtracted once for each time an id was generated
    uint64_t seed;            // with the position of the id, the whole source of randomness
    int32_t n_ids; // ids at and above it are never chosen (rows that pad the vocabulary); 0: none
                   // masked
    const LogitBias *bias; // [n_bias], 0..LIMIT_LOGIT_BIAS entries; copied
    int32_t n_bias;
    int32_t n_top; // top log-probabilities to report, 0..LIMIT_TOP_LOGPROBS
    bool want_logprob;
} SampleParams;

typedef struct SampleResult {
    int32_t id;    // -1: none (no sampler, logits not finite, or every id is forbidden)
    float logprob; // natural log-softmax of the unchanged logits (all V) at id; 0 unless wanted
    int32_t n_top;
    int32_t top_ids[LIMIT_TOP_LOGPROBS]; // below n_ids, masked or not; descending
                                         // log-probability, ties to the lower id
    float top_logprobs[LIMIT_TOP_LOGPROBS];
} SampleResult;

typedef struct Sampler Sampler;

/* STATUS_INVALID names the first value out of range; what sampler_set refuses too. */
NODISCARD Status sample_params_check(const SampleParams *params, int32_t vocab, Err *err);

/* The repetition penalty, 1 where there is none; whether there is any of the three. */
double sample_repetition(const SampleParams *params);
bool sample_has_penalty(const SampleParams *params);

/* vocab: V >= 1. A new sampler chooses greedily. */
NODISCARD Status sampler_open(Sampler **out, int32_t vocab, Err *err);
void sampler_close(Sampler *s);
uint64_t sampler_bytes(int32_t vocab);

/* Sets params and the ids seen so far: ids[0..n_prompt) count for the repetition penalty, the
 * n_generated behind them for all three. STATUS_INVALID names a value out of range; the sampler is
 * then unchanged. Allocates nothing. */
NODISCARD Status sampler_set(Sampler *s, const SampleParams *params, const int32_t *ids,
                             int32_t n_prompt, int32_t n_generated, Err *err);

/* What it counts of each id [V]: times generated, bit 31: in the prompt. Valid until the next call.
 */
const uint32_t *sampler_counts(const Sampler *s);

/* Chooses the id of position `pos` (the position that the id will take) and counts it.
 * logits [V] finite; allowed [div_up(V, 32)] bits or NULL. Allocates nothing. O(V). */
void sampler_next(Sampler *s, SampleResult *out, const float *logits, const uint32_t *allowed,
                  int32_t pos);

#endif
