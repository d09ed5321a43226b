// SPDX-License-Identifier: Apache-2.0
/* cuda_pack.cu - published codes into the layout of the products, and the table of rotations.
 *
 * Owns:     nothing.  Thread: engine, while a model is loaded. */
#include "backend/cuda/cuda_device.cuh"

/* One thread makes one word of a packed tile out of one raw row. */
__global__ void pack_kernel(CudaPack a) {
    chain_wait();
    chain_next();
    int32_t tiles = a.k / CUDA_GROUP, words = a.bits == 4 ? 8 : 16; // words of a row in a tile
    int64_t n = (int64_t)a.n_rows * tiles * words;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n)
        return;
    int32_t word = (int32_t)(at % words), tile = (int32_t)(at / words % tiles);
    int64_t raw = at / words / tiles, row = a.row0 + raw;
    int64_t dest = a.dest + row;
    if (a.interleave)
        dest = a.dest + row / 8 * 16 + row % 8 + (a.interleave - 1) * 8;
    int32_t in_tile = (int32_t)(dest % 16);
    int64_t block = dest / 16 * tiles + tile;
    const uint32_t *q = a.q + raw * (a.k / 32) * a.bits + tile * 2 * a.bits;
    uint32_t *out = a.code + block * 32 * a.bits;
    int32_t j = word % 4, which = word / 4; // lane of the quad; which of its words
    uint32_t v = 0;
    int32_t place = 0;
    for (int32_t k = 0; k < CUDA_GROUP; k++) {
        if (cuda_layout_lane(k) != j)
            continue;
        if (a.bits == 4) {
            if (cuda_layout_step(k) / 2 != which)
                continue;
            place = cuda_layout_word4(in_tile, k);
            v |= (q[k / 8] >> 4 * (k % 8) & 15u) << cuda_layout_shift4(k);
        } else {
            if (cuda_layout_step(k) / 2 * 2 + cuda_layout_half(k) != which)
                continue;
            place = cuda_layout_word8(in_tile, k);
            v |= (q[k / 4] >> 8 * (k % 4) & 255u) << cuda_layout_shift8(k);
        }
    }
    out[place] = v;
    if (word == 0)
        a.scale[block * 16 + cuda_layout_scale(in_tile)] =
            a.raw_scale[raw * tiles + tile] | (uint32_t)a.raw_bias[raw * tiles + tile] << 16;
}

extern "C" cudaError_t cuda_pack_rows(const CudaLaunch *l, const CudaPack *a) {
    int64_t n = (int64_t)a->n_rows * (a->k / CUDA_GROUP) * (a->bits == 4 ? 8 : 16);
    return start(l, pack_kernel, dim3((unsigned)((n + 255) / 256)), 256, 0, *a);
}

/* The angle is taken in double: in float it would be off by 0.02 at position 262,144. */
__global__ void rope_kernel(float *out, int32_t n, double theta) {
    chain_wait();
    chain_next();
    int32_t at = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= n * 32)
        return;
    double frequency = pow(theta, -2.0 * (at % 32) / 64.0), s, c;
    sincos((at / 32) * frequency, &s, &c);
    out[2 * (int64_t)at] = (float)c;
    out[2 * (int64_t)at + 1] = (float)s;
}

extern "C" cudaError_t cuda_rope_table(const CudaLaunch *l, float *out, int32_t n_pos,
                                       double theta) {
    return start(l, rope_kernel, dim3((unsigned)((n_pos + 7) / 8)), 256, 0, out, n_pos, theta);
}
