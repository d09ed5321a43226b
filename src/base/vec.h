// SPDX-License-Identifier: Apache-2.0
/* vec.h - four floats or integers as one value, for portable loops that must stay in registers.
 * Every operation is that of its lanes, so results are those of scalar code.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_VEC_H
#define LILY_BASE_VEC_H

#include <stdint.h>
#include <string.h>

/* gcc and clang have vector types on every machine; where there are no vector registers they
 * compile to scalars. */
#define VEC4(type) type __attribute__((vector_size(4 * sizeof(type))))
typedef VEC4(float) F32x4;
typedef VEC4(int32_t) I32x4;
typedef VEC4(uint32_t) U32x4;

/* Any address. */
static inline F32x4 vec_load(const float *p) {
    F32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline U32x4 vec_load_u32(const uint32_t *p) {
    U32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vec_store_u32(uint32_t *p, U32x4 v) { memcpy(p, &v, sizeof v); }
static inline void vec_store(float *p, F32x4 v) { memcpy(p, &v, sizeof v); }
static inline F32x4 vec_splat(float x) { return (F32x4){x, x, x, x}; }

/* Integers below 2^31 as floats. */
static inline F32x4 vec_from_u32(U32x4 v) { return __builtin_convertvector((I32x4)v, F32x4); }
/* The same bits. */
static inline F32x4 vec_from_bits(U32x4 v) { return (F32x4)v; }
static inline U32x4 vec_bits(F32x4 v) { return (U32x4)v; }

/* Rows and columns of four vectors change places. */
static inline void vec_transpose_u32(U32x4 m[4]) {
    U32x4 a = __builtin_shufflevector(m[0], m[1], 0, 4, 1, 5);
    U32x4 b = __builtin_shufflevector(m[0], m[1], 2, 6, 3, 7);
    U32x4 c = __builtin_shufflevector(m[2], m[3], 0, 4, 1, 5);
    U32x4 d = __builtin_shufflevector(m[2], m[3], 2, 6, 3, 7);
    m[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    m[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    m[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    m[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

static inline float vec_sum(F32x4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

#endif
