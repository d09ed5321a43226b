// SPDX-License-Identifier: Apache-2.0
/* meter.h - what this machine's memory and arithmetic units can do, measured now: the bounds that
 * speeds are stated against.
 *
 * Path:     `bench` measures just before and after each round, `doctor` once.
 * Owns:     nothing past a call.  Thread: one; the work runs on the pool.
 * Not here: GPUs (their backends measure their own). */
#ifndef LILY_BACKEND_METER_H
#define LILY_BACKEND_METER_H

#include "base/pool.h"

/* Bytes per second in units of 1e9 that all members read together from memory: the best of 1, 4
 * and 8 streams a thread, each over at least `bytes_per_thread` of huge pages.
 *
 * Returns STATUS_MEMORY when the pages cannot be had. Cost: three passes over the memory and one to
 * fill it. */
NODISCARD Status meter_read_gb_s(double *out, Pool *pool, size_t bytes_per_thread, Err *err);

/* Multiply-adds per second, two operations each, in units of 1e12, that all members do in
 * registers for `seconds`, on the fastest unit for bf16 or f32 that this CPU has; unit names it. */
double meter_matrix_tflops(Pool *pool, double seconds, const char **unit);

#endif
