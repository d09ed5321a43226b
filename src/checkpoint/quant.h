// SPDX-License-Identifier: Apache-2.0
/* quant.h - MLX affine quantisation: the scalar truth that every packed kernel is judged by.
 *
 * Path:     weights.c reads codes, scales and biases; backends pack them; tests compare.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_CHECKPOINT_QUANT_H
#define LILY_CHECKPOINT_QUANT_H

#include "base/bf16.h"
#include "base/status.h"

#include <stdint.h>

/* Code k of a row of packed codes: little-endian words, lowest element in the lowest bits.
 * row  [k_inputs * bits / 32] u32; bits 4 or 8. */
static inline uint32_t quant_code(const uint32_t *row, int64_t k, int bits) {
    int per = 32 / bits;
    return row[k / per] >> (bits * (int)(k % per)) & ((1u << bits) - 1u);
}

/* out[k] = scale[k / group] * q[k] + bias[k / group], one rounding to f32.
 *
 * out          [k] f32                                              (out)
 * q            [k * bits / 32] u32                                  (in)
 * scale, bias  [k / group] bf16                                     (in)
 * group        32, 64 or 128, divides k; bits 4 or 8. */
void quant_dequant_row_f32(float *out, const uint32_t *q, const uint16_t *scale,
                           const uint16_t *bias, int64_t k, int bits, int group);
/* The same in f64, exact. */
void quant_dequant_row_f64(double *out, const uint32_t *q, const uint16_t *scale,
                           const uint16_t *bias, int64_t k, int bits, int group);

/* Codes, scales and biases of one row of weights, as mx.quantize of MLX on the CPU makes them (true
 * maximum, halves to even). `k` and `group` as above.
 * Source: model specification, section 3.2. */
void quant_quantize_row(uint32_t *q, uint16_t *scale, uint16_t *bias, const float *w, int64_t k,
                        int bits, int group);

#endif
