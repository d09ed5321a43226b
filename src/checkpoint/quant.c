// SPDX-License-Identifier: Apache-2.0
/* quant.c - MLX affine quantisation, one row at a time, nothing clever.
 *
 * Path:     weights.c reads codes, scales and biases; backends pack them; tests compare.
 * Owns:     nothing.  Thread: any. */
#include "checkpoint/quant.h"

#include <math.h>

/* The product is exact in f32: 8 bits of scale times at most 8 bits of code. So there is one
 * rounding, that of the sum. */
void quant_dequant_row_f32(float *out, const uint32_t *q, const uint16_t *scale,
                           const uint16_t *bias, int64_t k, int bits, int group) {
    for (int64_t i = 0; i < k; i++)
        out[i] = bf16_to_f32(scale[i / group]) * (float)quant_code(q, i, bits) +
                 bf16_to_f32(bias[i / group]);
}

void quant_dequant_row_f64(double *out, const uint32_t *q, const uint16_t *scale,
                           const uint16_t *bias, int64_t k, int bits, int group) {
    for (int64_t i = 0; i < k; i++)
        out[i] = (double)bf16_to_f32(scale[i / group]) * (double)quant_code(q, i, bits) +
                 (double)bf16_to_f32(bias[i / group]);
}

/* Codes of one group at word offset 0 of q, which the caller has zeroed. */
static void quantize_group(uint32_t *q, uint16_t *scale, uint16_t *bias, const float *w, int bits,
                           int group) {
    float low = w[0], high = w[0];
    for (int i = 1; i < group; i++) {
        low = w[i] < low ? w[i] : low;
        high = w[i] > high ? w[i] : high;
    }
    const float n = (float)((1 << bits) - 1);
    float s = fmaxf((high - low) / n, 1e-7f);
    // The element of largest magnitude gets code 0 and is kept as well as possible.
    float edge = low;
    if (!(fabsf(low) > fabsf(high))) {
        edge = high;
        s = -s;
    }
    float q0 = rintf(edge / s), b = 0.0f;
    if (q0 != 0.0f) {
        s = edge / q0; // 0.0 becomes a code too
        b = edge;
    }
    int per = 32 / bits;
    for (int i = 0; i < group; i++) {
        float code = fminf(fmaxf(rintf((w[i] - b) / s), 0.0f), n);
        q[i / per] |= (uint32_t)code << (bits * (i % per));
    }
    *scale = bf16_from_f32(s);
    *bias = bf16_from_f32(b);
}

void quant_quantize_row(uint32_t *q, uint16_t *scale, uint16_t *bias, const float *w, int64_t k,
                        int bits, int group) {
    int words = group * bits / 32;
    for (int64_t g = 0; g < k / group; g++) {
        uint32_t *out = q + g * words;
        for (int i = 0; i < words; i++)
            out[i] = 0;
        quantize_group(out, &scale[g], &bias[g], w + g * group, bits, group);
    }
}
