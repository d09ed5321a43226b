// SPDX-License-Identifier: Apache-2.0
/* bench_card.h - what the programs that time a card share.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_BENCH_BENCH_CARD_H
#define LILY_BENCH_BENCH_CARD_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program when a call failed; what names it. */
static inline void must(cudaError_t e, const char *what) {
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

/* Milliseconds between two events, the second of which is waited for. */
static inline double event_ms(cudaEvent_t a, cudaEvent_t b) {
    float ms = 0;
    must(cudaEventSynchronize(b), "waiting");
    must(cudaEventElapsedTime(&ms, a, b), "timing");
    return (double)ms;
}

/* The order of doubles, for qsort. */
static inline int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
