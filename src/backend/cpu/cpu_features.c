// SPDX-License-Identifier: Apache-2.0
/* cpu_features.c - see cpu_features.h.
 *
 * Owns:     nothing.  Thread: any. */
#define _GNU_SOURCE // syscall
#include "backend/cpu/cpu_features.h"

#include "base/str.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

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

/* Whether the CPU has tiles of bf16 and of 8 bits. (gcc 12 knows no names for them.) */
static bool has_tiles(void) {
#if defined(LILY_AMX_EMU) // tiles in plain C, everything else AVX-512
    return has_avx512();
#else
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all;
#endif
}

/* Asks the system for the state that tiles are kept in; all threads started later have it too. */
static bool tiles_are_granted(void) {
#if defined(LILY_AMX_EMU)
    return true;
#elif defined(__linux__)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; // asm/prctl.h, number of the state in XCR0
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

CpuAmx cpu_features_amx(void) {
#if defined(__x86_64__)
    if (has_tiles())
        return tiles_are_granted() ? AMX_GRANTED : AMX_REFUSED;
#endif
    return AMX_ABSENT;
}

const char *cpu_features_amx_note(void) {
    return cpu_features_amx() == AMX_REFUSED ? ", amx asked for and refused by the kernel" : "";
}

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
            if (!(mask & 1u << COLUMN_AMX) && cpu_features_amx() == AMX_GRANTED) {
                matmul_amx_init(&out->matmul);
                attn_amx_init(&out->attn);
                recur_amx_init(&out->recur);
            }
        }
    }
#else
    UNUSED(mask);
#endif
}
