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

/* How to choose. {0} with temperature 0 is greedy (lowest id among maxima). */
typedef struct SampleParams {
    float temperature;        // 0: greedy; else logits are divided by it
    int32_t top_k;            // keep the k largest; 0: all
    float top_p;              // keep the smallest set whose probability reaches it; 0 or 1: all
    float min_p;              // drop ids below min_p times the largest probability; 0: none
    float repetition_penalty; // 0 or 1: none; divides positive, multiplies negative logits of seen
                              // ids
    float presence_penalty;   // subtracted once from ids that were generated
    float frequency_penalty;  // subtracted once for each time an id was generated
    uint64_t seed;            // with the position of the id, the whole source of randomness
    int32_t n_ids; // ids at and above it are never chosen (rows that pad the vocabulary); 0: none
                   // masked
    const LogitBias *bias; // [n_bias]; copied
    int32_t n_bias;
    int32_t n_top; // top log-probabilities to report, 0..LIMIT_TOP_LOGPROBS
    bool want_logprob;
} SampleParams;

typedef struct SampleResult {
    int32_t id;    // -1: none (no sampler, or logits not finite)
    float logprob; // natural log-softmax of the unchanged logits at id
    int32_t n_top;
    int32_t top_ids[LIMIT_TOP_LOGPROBS]; // descending log-probability, ties to the lower id
    float top_logprobs[LIMIT_TOP_LOGPROBS];
} SampleResult;

typedef struct Sampler Sampler;

/* vocab: V. */
NODISCARD Status sampler_open(Sampler **out, int32_t vocab, Err *err);
void sampler_close(Sampler *s);
uint64_t sampler_bytes(int32_t vocab);

/* Sets params and the ids seen so far: ids[0..n_prompt) count for the repetition penalty, the
 * n_generated behind them for all three. STATUS_INVALID names a value out of range. */
NODISCARD Status sampler_set(Sampler *s, const SampleParams *params, const int32_t *ids,
                             int32_t n_prompt, int32_t n_generated, Err *err);

/* Chooses the id of position `pos` (the position that the id will take) and counts it.
 * logits [V] finite; allowed [div_up(V, 32)] bits or NULL. Allocates nothing. */
void sampler_next(Sampler *s, SampleResult *out, const float *logits, const uint32_t *allowed,
                  int32_t pos);

#endif
