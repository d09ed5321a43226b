// SPDX-License-Identifier: Apache-2.0
/* meter.h - what this machine's memory and arithmetic units can do, measured now: the bounds that
 * speeds are stated against.
 *
 * Path:     `bench` measures just before and after each round, `doctor` once.
 * Owns:     the memory that is read.  Thread: one; the work runs on the pool.
 * Not here: GPUs (their backends measure their own). */
#ifndef LILY_BACKEND_METER_H
#define LILY_BACKEND_METER_H

#include "base/pool.h"

#include <stdbool.h>

/* Memory to be read: `bytes_per_thread` (at least 16 MiB, rounded up to 2 MiB) of huge pages for
 * each member of the pool, filled. Whoever measures again and again keeps it: in a virtual machine
 * pages that are given back go to the host, and fetching them anew slows what runs next. The pool
 * must outlive it.
 *
 * Returns STATUS_MEMORY when the pages cannot be had. */
typedef struct Meter Meter;
NODISCARD Status meter_open(Meter **out, Pool *pool, size_t bytes_per_thread, Err *err);
void meter_close(Meter *m);

/* Bytes per second in units of 1e9 that all members read together from memory: the best of one
 * stream a thread, one with prefetches, four and eight. Cost: four passes over the memory. */
double meter_read_gb_s(Meter *m);

/* A unit for products, as a loop over registers. */
typedef struct MeterUnit {
    const char *name;
    double (*run)(int64_t n); // n rounds; the multiply-adds done, exact up to 2^24 of one lane
    double n_multiply_adds;   // of a round
    bool (*is_here)(void);    // NULL: always
    bool (*is_outdone)(void); // a wider one of its kind is here; NULL: there is none
} MeterUnit;

/* Unit i of those that this CPU has; NULL: there are no more. */
const MeterUnit *meter_unit(int i);

/* Operations per second in units of 1e12, two for a multiply-add, that all members do for
 * `seconds`. */
double meter_unit_tflops(Pool *pool, const MeterUnit *unit, double seconds);

/* The fastest unit that this CPU has for the products of any kernel, `seconds` each: f32, bf16, and
 * pairs of 16-bit integers, whose multiply-adds count as what they replace, one of f32 each. unit
 * names it. */
double meter_matrix_tflops(Pool *pool, double seconds, const char **unit);

#endif
