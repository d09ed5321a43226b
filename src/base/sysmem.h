// SPDX-License-Identifier: Apache-2.0
/* sysmem.h - how much memory this process may still use.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_SYSMEM_H
#define LILY_BASE_SYSMEM_H

#include <stdint.h>

/* Bytes of memory of the machine, and of those that could be taken now without swapping; limits of
 * control groups count where they are lower, and RLIMIT_AS for what can be taken. 0: unknown. */
uint64_t sysmem_total(void);
uint64_t sysmem_available(void);
/* Resident size of this process now, its program and libraries included, and the largest so far,
 * bytes; 0: unknown. */
uint64_t sysmem_resident(void);
uint64_t sysmem_peak(void);
/* Lets sysmem_peak count anew from here, where the system can (Linux). */
void sysmem_reset_peak(void);

#endif
