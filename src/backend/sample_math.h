// SPDX-License-Identifier: Apache-2.0
/* sample_math.h - the arithmetic of a choice by chance that every device shares, so that all of
 * them choose the same id of the same logits.
 *
 * Owns:     nothing.  Thread: any; host and card.
 * Not here: which ids are left (sample.h has the definition).
 *
 * Operations are single and in this order; a compiler that fuses or reorders them must be told not
 * to (-ffp-contract=off, -fmad=false). Sums of probabilities are whole numbers: they are the same
 * in any order. */
#ifndef LILY_BACKEND_SAMPLE_MATH_H
#define LILY_BACKEND_SAMPLE_MATH_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SAMPLE_FN static __host__ __device__ inline
#else
#define SAMPLE_FN static inline
#endif

SAMPLE_FN uint32_t sample_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
SAMPLE_FN float sample_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Of a sampler's count of an id: it stands in the prompt. The other bits count generated times. */
#define SAMPLE_IN_PROMPT (1u << 31)

/* A double as a float; beyond the floats the largest one, so that only "forbidden" is infinite. */
SAMPLE_FN float sample_finite(double x) {
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

/* The logit of an id that was seen (count is not 0) behind the penalties. */
SAMPLE_FN float sample_penalised(float logit, uint32_t count, double repetition, double presence,
                                 double frequency) {
    uint32_t n = count & ~SAMPLE_IN_PROMPT;
    double x = (double)logit;
    x = x > 0 ? x / repetition : x * repetition;
    return sample_finite(x - (n ? presence : 0) - frequency * n);
}

/* A logit behind an entry of the bias list: what is forbidden once stays so. */
SAMPLE_FN float sample_biased(float x, float bias) {
    const uint32_t twice_infinity = 0xff000000u; // its bits without the sign
    if (sample_bits(x) << 1 == twice_infinity || sample_bits(bias) << 1 == twice_infinity)
        return sample_float(0xff800000u);
    return sample_finite((double)x + (double)bias);
}

/* exp(t) for t <= 0, relative error below 2^-22; 0 below -28 and for no number: nothing there has a
 * mass. Choices are made by masks, so that loops of it become vector instructions.
 * Source: Taylor's polynomial of degree 7 around the next multiple of ln 2. */
SAMPLE_FN float sample_exp(float t) {
    const float bias = 12582912.0f; // 1.5 * 2^23: adding it rounds to a whole number
    uint32_t is_in = -(uint32_t)(t >= -28.0f);
    float u = sample_float(sample_bits(t) & is_in);
    float n = (u * 1.44269504f + bias) - bias;
    float r = (u - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts, the first short
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = (p * r) * r + (r + 1.0f);
    p *= sample_float((uint32_t)((int32_t)n + 127) << 23);
    return sample_float(sample_bits(p) & is_in);
}

/* Probability of logit x relative to that of the largest, `max`; inverse is 1 / temperature. A
 * forbidden id (-inf) has 0. */
SAMPLE_FN float sample_chance(float x, float max, float inverse) {
    float t = (x - max) * inverse; // 0 times inf at the largest
    return sample_exp(sample_float(sample_bits(t) & -(uint32_t)(x != max)));
}

/* The same in units of 2^-40: whole, exact but for what lies below one unit. 2^22 of them stay
 * below 2^63. */
SAMPLE_FN uint64_t sample_mass(float chance) { return (uint64_t)(int64_t)(chance * 0x1p40f); }

/* The least mass that reaches top_p (in (0, 1)) of all. */
SAMPLE_FN uint64_t sample_need(float top_p, uint64_t all) {
    double need = (double)top_p * (double)all;
    uint64_t whole = (uint64_t)need;
    return whole + ((double)whole < need);
}

/* floor(random * all / 2^64): the id at which the running sum passes it is chosen. */
SAMPLE_FN uint64_t sample_target(uint64_t random, uint64_t all) {
    uint64_t r1 = random >> 32, r0 = random & 0xffffffffu, a1 = all >> 32, a0 = all & 0xffffffffu;
    uint64_t middle = r1 * a0 + (r0 * a0 >> 32), other = r0 * a1 + (middle & 0xffffffffu);
    return r1 * a1 + (middle >> 32) + (other >> 32);
}

#endif
