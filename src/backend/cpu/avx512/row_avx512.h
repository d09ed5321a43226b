// SPDX-License-Identifier: Apache-2.0
/* row_avx512.h - the form in which a row of inputs comes to the products of the columns avx512 and
 * amx, and how exact sums become outputs.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_AVX512_ROW_AVX512_H
#define LILY_BACKEND_CPU_AVX512_ROW_AVX512_H

#include "backend/cpu/kernels.h"

#include <immintrin.h>

/* A group of a prepared row: v in the order in which unpacked codes come: of each 8 inputs the
 * pairs (0, 2) (1, 3) (4, 6) (5, 7). */
typedef struct GroupCodes {
    int16_t v[GROUP_INPUTS];
} GroupCodes;

/* Behind all groups' codes: for each group unit and V. */
typedef struct GroupScale {
    float unit, sum;
} GroupScale;

static inline const GroupScale *row_scales(const void *row, int32_t n_groups) {
    return (const GroupScale *)((const GroupCodes *)row + n_groups);
}

/* y + unit * (scale * I + bias * V) of 16 outputs. */
static inline __m512 tile_add(__m512 y, __m512i sum, __m512 scale, __m512 bias,
                              const GroupScale *g) {
    __m512 t = _mm512_mul_ps(bias, _mm512_set1_ps(g->sum));
    t = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), t);
    return _mm512_fmadd_ps(_mm512_set1_ps(g->unit), t, y);
}

#endif
