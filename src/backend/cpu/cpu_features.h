// SPDX-License-Identifier: Apache-2.0
/* cpu_features.h - which kernel columns this CPU can run, and which are chosen.
 *
 * Path:     cpu.c chooses once when it opens a device.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BACKEND_CPU_CPU_FEATURES_H
#define LILY_BACKEND_CPU_CPU_FEATURES_H

#include "backend/cpu/kernels.h"
#include "base/status.h"

/* Columns by rising preference. */
typedef enum CpuColumn {
    COLUMN_GENERIC,
    COLUMN_AVX2,
    COLUMN_AVX512,
    COLUMN_AMX,
    COLUMN_NEON,
    COLUMN_N
} CpuColumn;

/* Names separated by commas to a set of columns (bit 1 << column) that are not to be used; NULL and
 * "" give none. STATUS_INVALID for an unknown name and for generic, which is always there. */
NODISCARD Status cpu_features_parse_mask(uint32_t *out, const char *mask, Err *err);

/* Whether this process can use the tiles of AMX. */
typedef enum CpuAmx {
    AMX_ABSENT,  // not in the CPU
    AMX_REFUSED, // in the CPU; the system was asked and does not keep their state
    AMX_GRANTED
} CpuAmx;
CpuAmx cpu_features_amx(void);
/* What to add to a line about the columns: "" unless amx is refused. */
const char *cpu_features_amx_note(void);

/* Fills the table with the best column of each family that this program has, this CPU runs and
 * the mask leaves; amx builds on avx512 and goes with it. is_f32: the test mode, whose tolerances
 * only some columns keep. */
void cpu_features_choose(KernelTable *out, uint32_t mask, bool is_f32);

#endif
