// SPDX-License-Identifier: Apache-2.0
/* math_generic.h - exponential and its kin without branches or calls, so that loops over them can
 * be vectorised and give the same bits from every compiler.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_GENERIC_MATH_GENERIC_H
#define LILY_BACKEND_CPU_GENERIC_MATH_GENERIC_H

#include "base/bf16.h"

/* e^x within 2 ulp for |x| <= 87; 0 below -87, e^87 above 87 (so 1 + e^x is finite); NaN stays NaN.
 * x = n ln 2 + r with |r| <= 0.35; e^r by its Taylor polynomial of degree 7 (next term 5e-9). */
static inline float math_exp(float x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    float c = x > 87.0f ? 87.0f : x;
    c = c < -87.0f ? -87.0f : c;
    float n = c * 1.44269504088896341f + magic;
    uint32_t power = f32_bits(n) << 23; // the low bits of n hold the integer
    n -= magic;
    float r = c - n * 0.693359375f; // ln 2 in two pieces; n times the first is exact
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    float y = f32_from_bits(f32_bits(p) + power);
    y = x < -87.0f ? 0.0f : y;
    return x == x ? y : x; // the low bits of a NaN must not turn it into a number
}

static inline float math_sigmoid(float x) { return 1.0f / (1.0f + math_exp(-x)); }
static inline float math_silu(float x) { return x / (1.0f + math_exp(-x)); }

#endif
