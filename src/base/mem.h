// SPDX-License-Identifier: Apache-2.0
/* mem.h - every allocation of the program, so that tests can make each one fail in turn.
 *
 * Path:     small objects by mem_alloc; weights, KV blocks and scratch by mem_map.
 * Owns:     nothing.  Thread: any.
 * Not here: request memory (arena.h). */
#ifndef LILY_BASE_MEM_H
#define LILY_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

enum { MEM_ALIGN = 64 }; // a cache line and an AVX-512 register

/* Like malloc, calloc(n, size) with overflow check, realloc and free; NULL when there is none.
 * A size of 0 gives a pointer that may be freed. */
void *mem_alloc(size_t size);
void *mem_zalloc(size_t n, size_t size);
void *mem_realloc(void *p, size_t size);
void mem_free(void *p);

/* `size` bytes at a 64-byte boundary, not initialised; freed by mem_free. */
void *mem_alloc_aligned(size_t size);

/* All threads take from one heap. For programs with many threads that hold little each, before the
 * first of them: with a heap for every few, as the C library would have it, what is free in one is
 * of no use to another. */
void mem_share_heap(void);

/* A copy of len bytes with a NUL behind them. */
char *mem_strdup(const char *s, size_t len);

/* Zeroed pages straight from the system, huge pages asked for; touched pages count, not asked-for
 * ones. NULL when there are none. mem_unmap takes the same size; mem_unmap(NULL, n) is fine. */
void *mem_map(size_t size);
void mem_unmap(void *p, size_t size);

/* Tests: let the next `after` allocations succeed and the one behind them fail once (-1: none
 * fails), and count all. */
void mem_fail_after(int64_t after);
int64_t mem_count(void);

#endif
