// SPDX-License-Identifier: Apache-2.0
/* cpu_meter.h - what the products of a kernel column do from the caches: the bound of a column that
 * its instructions hold back, not the memory and not the units (meter.h).
 *
 * Path:     `doctor`, where plain C runs.
 * Owns:     nothing past the call.  Thread: one; the work runs on the pool. */
#ifndef LILY_BACKEND_CPU_CPU_METER_H
#define LILY_BACKEND_CPU_CPU_METER_H

#include "backend/cpu/kernels.h"
#include "base/pool.h"

typedef struct CpuMeter {
    double decode_gb_s;    // packed 4-bit weights that products of one row go through, in 1e9
    double prefill_tflops; // operations of products of many rows, two a multiply-add, in 1e12
} CpuMeter;

/* Times both entries on all members of the pool at once, each with weights of its own that stay in
 * its second-level cache: the best of three times `seconds` (> 0; at least one call each).
 *
 * k        a column whose prefill reads prepared rows, not blocks
 * Returns STATUS_MEMORY when weights and rows cannot be had. */
NODISCARD Status cpu_meter_products(CpuMeter *out, const MatmulKernels *k, Pool *pool,
                                    double seconds, Err *err);

#endif
