// SPDX-License-Identifier: Apache-2.0
/* elem_generic.c - norms, gates and rotations of single rows in plain C.
 *
 * Path:     the passes call it through ElemKernels.
 * Owns:     nothing.  Thread: any. */
#include "backend/cpu/generic/math_generic.h"
#include "backend/cpu/kernels.h"
#include "base/vec.h"

#include <math.h>

static bool elem_generic_is_finite(const float *x, int32_t n) {
    uint32_t bad = 0;
    for (int32_t i = 0; i < n; i++)
        bad |= (f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return !bad;
}

static float square_sum(const float *x, int32_t n) {
    F32x4 acc[4] = {0};
    for (int32_t d = 0; d < n; d += 16)
        for (int i = 0; i < 4; i++) {
            F32x4 v = vec_load(x + d + 4 * i);
            acc[i] += v * v;
        }
    return vec_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

static bool elem_generic_add_norm(float *out, float *x, const float *add, const float *gain,
                                  float eps, int32_t n) {
    if (add)
        for (int32_t i = 0; i < n; i++)
            x[i] += add[i];
    float sum = square_sum(x, n), r;
    if (isfinite(sum)) {
        r = 1.0f / sqrtf(sum / (float)n + eps);
    } else { // large but finite values square beyond f32
        if (!elem_generic_is_finite(x, n))
            return false;
        double wide = 0;
        for (int32_t i = 0; i < n; i++)
            wide += (double)x[i] * (double)x[i];
        r = (float)(1.0 / sqrt(wide / n + (double)eps));
    }
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * r * gain[i];
    return true;
}

static void elem_generic_swiglu(float *out, const float *gate, const float *up, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        out[i] = math_silu(gate[i]) * up[i];
}

static void elem_generic_sigmoid_gate(float *out, const float *x, const float *gate, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * math_sigmoid(gate[i]);
}

static void elem_generic_head_rope(float *out, const float *x, const float *gain,
                                   const float *cos_sin, float eps, float scale, bool is_bf16) {
    enum { HALF = ROPE_DIMS / 2 };
    float r = 1.0f / sqrtf(square_sum(x, ATTN_HEAD) / ATTN_HEAD + eps);
    for (int d = 0; d < ATTN_HEAD; d++) {
        float v = x[d] * r * gain[d];
        out[d] = is_bf16 ? bf16_round(v) : v;
    }
    for (int d = 0; d < HALF; d++) {
        float a = out[d], b = out[d + HALF], c = cos_sin[d], s = cos_sin[HALF + d];
        float low = a * c - b * s, high = a * s + b * c;
        out[d] = is_bf16 ? bf16_round(low) : low;
        out[d + HALF] = is_bf16 ? bf16_round(high) : high;
    }
    for (int d = 0; d < ATTN_HEAD; d++)
        out[d] *= scale;
}

static void elem_generic_axpy(float *y, float w, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] += w * x[i];
}

void elem_generic_init(ElemKernels *t) {
    *t = (ElemKernels){.column = "generic",
                       .add_norm = elem_generic_add_norm,
                       .swiglu = elem_generic_swiglu,
                       .sigmoid_gate = elem_generic_sigmoid_gate,
                       .head_rope = elem_generic_head_rope,
                       .axpy = elem_generic_axpy,
                       .is_finite = elem_generic_is_finite};
}
