// SPDX-License-Identifier: Apache-2.0
/* cuda_matvec_checks.h - test helper: decode products of wide matrices, one row normalised on the
 * way, against the same row normalised before. Shared by the test on a card and the emulated one.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_CUDA_MATVEC_CHECKS_H
#define LILY_TESTS_CUDA_MATVEC_CHECKS_H

#include "cuda_matmul_checks.h"

/* [n] numbers of one row through a product of n outputs and k inputs of `bits` bits. */
static float *fused_run(int32_t n, int32_t k, int32_t bits, bool is_fused) {
    const uint64_t seed = 9100;
    size_t rows = (size_t)(n + 15) / 16 * 16, groups = (size_t)k / 64;
    size_t words = rows * (size_t)k * (size_t)bits / 32;
    uint32_t *code = malloc(words * 4), *scale = malloc(rows * groups * 4);
    float *x = malloc((size_t)k * 4), *gain = malloc((size_t)k * 4), *y = malloc((size_t)n * 4);
    for (size_t i = 0; i < words; i++)
        code[i] = (uint32_t)rng_u64(seed, i);
    for (size_t i = 0; i < rows * groups; i++)
        scale[i] = bf16_from_f32(0.01f + 0.01f * rng_unit_f32(seed + 1, i)) |
                   (uint32_t)bf16_from_f32(-0.1f * rng_unit_f32(seed + 2, i)) << 16;
    for (size_t i = 0; i < (size_t)k; i++) {
        x[i] = 4 * rng_unit_f32(seed + 3, i) - 2;
        gain[i] = 1 + rng_unit_f32(seed + 4, i);
    }
    CudaLaunch l = {0};
    CudaDigits d = {.digit = card_put(NULL, groups * 128),
                    .scale = card_put(NULL, groups * 8),
                    .factor = card_put(NULL, 4)};
    CudaNorm norm = {.x = card_put(x, (size_t)k * 4),
                     .gain = card_put(gain, (size_t)k * 4),
                     .digits = d,
                     .eps = 1e-6f,
                     .m = 1,
                     .k = k};
    CudaMatvec a = {.w = {.code = card_put(code, words * 4),
                          .scale = card_put(scale, rows * groups * 4),
                          .n = n,
                          .k = k,
                          .bits = bits},
                    .src = {.digits = d, .eps = norm.eps, .m = 1},
                    .y = card_put(NULL, (size_t)n * 4),
                    .ldy = n};
    if (is_fused) {
        a.src.x = norm.x;
        a.src.gain = norm.gain;
    } else {
        cuda_ok(cuda_norm(&l, &norm));
    }
    cuda_ok(cuda_matvec(&l, &a));
    card_get(y, a.y, (size_t)n * 4);
    const void *gone[] = {d.digit, d.scale, d.factor, norm.x, norm.gain, a.w.code, a.w.scale, a.y};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        cudaFree((void *)(uintptr_t)gone[i]);
    void *mine[] = {code, scale, x, gain};
    for (size_t i = 0; i < COUNT_OF(mine); i++)
        free(mine[i]);
    return y;
}

/* Around the width from which a block takes several row blocks, with last blocks that are not full,
 * and rows of one to eight warps. */
static void wide_matrices_norm_on_the_way(void **state) {
    (void)state;
    const int32_t sizes[][3] = {{4208, 64, 4},  {4224, 128, 4},  {4232, 576, 4},
                                {4250, 192, 8}, {4264, 2048, 4}, {4224, 2112, 4}};
    products_ready();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        int32_t n = sizes[i][0], k = sizes[i][1], bits = sizes[i][2];
        float *before = fused_run(n, k, bits, false), *fused = fused_run(n, k, bits, true);
        assert_memory_equal(fused, before, (size_t)n * 4);
        for (int32_t o = 0; o < n; o++)
            assert_true(isfinite(fused[o]) && fused[o] != 0);
        free(before);
        free(fused);
    }
}

#endif
