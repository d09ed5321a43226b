// SPDX-License-Identifier: Apache-2.0
/* clock.c - monotonic time.
 *
 * Owns:     nothing.  Thread: any. */
#define _POSIX_C_SOURCE 200809L
#include "clock.h"

#include <time.h>

int64_t clock_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
