// SPDX-License-Identifier: Apache-2.0
/* tensor_read.h - all of a tensor by name, for tests that read references or what was written.
 *
 * Owns:     the arrays are the caller's; free.  Thread: one. */
#ifndef LILY_TESTS_TENSOR_READ_H
#define LILY_TESTS_TENSOR_READ_H

#include "checkpoint/safetensors.h"

#include "unit.h"

#include <stdlib.h>

static inline const SafetensorsTensor *tensor_get(const Safetensors *f, const char *name,
                                                  size_t *n) {
    const SafetensorsTensor *t = safetensors_find(f, str_view(name, strlen(name)));
    if (!t)
        fail_msg("no tensor %s", name);
    *n = (size_t)t->n_elems;
    return t;
}

static inline void *tensor_alloc(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

/* F32, F16 or BF16. */
static inline float *tensor_f32(const Safetensors *f, const char *name, size_t *n) {
    const SafetensorsTensor *t = tensor_get(f, name, n);
    float *out = tensor_alloc(*n, sizeof *out);
    assert_int_equal(safetensors_read_f32(f, t, out, NULL), STATUS_OK);
    return out;
}

/* Integers of any width. */
static inline int64_t *tensor_i64(const Safetensors *f, const char *name, size_t *n) {
    const SafetensorsTensor *t = tensor_get(f, name, n);
    int64_t *out = tensor_alloc(*n, sizeof *out);
    bool is_signed = t->dtype == ST_I8 || t->dtype == ST_I16 || t->dtype == ST_I32;
    assert_true(is_signed || t->dtype == ST_U8 || t->dtype == ST_U16 || t->dtype == ST_U32 ||
                t->dtype == ST_I64);
    size_t size = *n ? (size_t)t->n_bytes / *n : 1;
    for (size_t i = 0; i < *n; i++) { // little-endian, as the file and this machine are
        uint64_t u = 0;
        assert_int_equal(safetensors_read_bytes(f, t, &u, size, i * size, NULL), STATUS_OK);
        int unused = 64 - 8 * (int)size;
        out[i] = is_signed ? (int64_t)(u << unused) >> unused : (int64_t)u;
    }
    return out;
}

#endif
