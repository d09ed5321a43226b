// SPDX-License-Identifier: Apache-2.0
/* checked.h - arithmetic on outside numbers that tells when it overflows.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_CHECKED_H
#define LILY_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a + b, a * b; false when the true result does not fit (then *out is not to be used). */
static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool checked_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool checked_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/* a rounded up to a multiple of unit (> 0); the caller knows that it fits. */
static inline size_t round_up_size(size_t a, size_t unit) { return (a + unit - 1) / unit * unit; }
static inline int32_t div_up_i32(int32_t a, int32_t b) { return (a + b - 1) / b; }
static inline int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

#endif
