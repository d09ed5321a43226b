// SPDX-License-Identifier: Apache-2.0
/* clock.h - monotonic time.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_CLOCK_H
#define LILY_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some fixed moment; never goes back. */
int64_t clock_now_ns(void);
static inline double clock_seconds_since(int64_t start_ns) {
    return (double)(clock_now_ns() - start_ns) * 1e-9;
}

#endif
