// SPDX-License-Identifier: Apache-2.0
/* cuda_gdn.cuh - what decode and prefill of the gated delta net share: places in a slot, channels,
 * the convolution of one channel, the log decay.
 *
 * Path:     cuda_recur.cu (decode) and cuda_delta.cu (prefill) include it.
 * Owns:     nothing.  Thread: engine. */
#ifndef LILY_BACKEND_CUDA_CUDA_GDN_CUH
#define LILY_BACKEND_CUDA_CUDA_GDN_CUH

#include "backend/cuda/cuda_device.cuh"

enum { HEAD = 128, STATE = HEAD * HEAD };

FN float *slot_state(const CudaGdn &g, int32_t slot, int32_t head) {
    return reinterpret_cast<float *>(reinterpret_cast<char *>(g.state) + slot * g.slot_stride) +
           (int64_t)head * STATE;
}
FN uint16_t *slot_ring(const CudaGdn &g, int32_t slot) {
    return reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(g.ring) + slot * g.slot_stride);
}
FN int32_t conv_dim(const CudaGdn &g) { return (2 * g.hk + g.hv) * HEAD; }

FN float conv_sum(float4 tap, float x0, float x1, float x2, float x3) {
    float sum = tap.x * x0;
    sum = fmaf(tap.y, x1, sum);
    sum = fmaf(tap.z, x2, sum);
    return silu(fmaf(tap.w, x3, sum));
}

FN float log_decay(const CudaGdn &g, int32_t hv, float a) {
    return -expf(g.a_log[hv]) * softplus(a + g.dt_bias[hv]);
}

#endif
