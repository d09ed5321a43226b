// SPDX-License-Identifier: Apache-2.0
/* bf16.h - bfloat16 and half precision as bit patterns.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_BF16_H
#define LILY_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float bf16_to_f32(uint16_t h) { return f32_from_bits((uint32_t)h << 16); }

/* Round to nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t bf16_from_f32(float x) {
    uint32_t u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float bf16_round(float x) { return bf16_to_f32(bf16_from_f32(x)); }

/* IEEE half to float, subnormals included. */
static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 0x1f, m = h & 0x3ffu;
    if (e == 31)
        return f32_from_bits(sign | 0x7f800000u | m << 13);
    if (e)
        return f32_from_bits(sign | (e + 112) << 23 | m << 13);
    float x = (float)m * 0x1p-24f; // exact
    return sign ? -x : x;
}

#endif
