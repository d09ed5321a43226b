// SPDX-License-Identifier: Apache-2.0
/* cpu_features.c - see cpu_features.h.
 *
 * Owns:     nothing.  Thread: any. */
#include "backend/cpu/cpu_features.h"

#include "base/str.h"

static const char *const column_names[COLUMN_N] = {"generic", "avx2", "avx512", "amx", "neon"};

Status cpu_features_parse_mask(uint32_t *out, const char *mask, Err *err) {
    uint32_t set = 0;
    for (const char *at = mask ? mask : ""; *at;) {
        size_t len = strcspn(at, ",");
        CpuColumn column = 0;
        while (column < COLUMN_N &&
               !str_equal(str_view(at, len),
                          str_view(column_names[column], strlen(column_names[column]))))
            column++;
        if (column == COLUMN_N || column == COLUMN_GENERIC)
            return err_set(err, STATUS_INVALID,
                           "cpu mask: expected names of avx2, avx512, amx, neon, found \"%.*s\"",
                           (int)(len < 64 ? len : 64), at);
        set |= 1u << column;
        at += len;
        at += *at == ',';
    }
    *out = set;
    return STATUS_OK;
}

#if defined(__x86_64__)
/* Whether CPU and system run the avx512 column. */
static bool has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif

void cpu_features_choose(KernelTable *out, uint32_t mask, bool is_f32) {
    matmul_generic_init(&out->matmul);
    attn_generic_init(&out->attn, is_f32);
    recur_generic_init(&out->recur);
    elem_generic_init(&out->elem);
#if defined(__x86_64__)
    if (!(mask & 1u << COLUMN_AVX512) && has_avx512()) {
        recur_avx512_init(&out->recur);
        elem_avx512_init(&out->elem);
        if (!is_f32) { // 16-bit activations and a bf16 cache lie outside the f32 bounds
            matmul_avx512_init(&out->matmul);
            attn_avx512_init(&out->attn);
        }
    }
#else
    UNUSED(mask);
#endif
}
