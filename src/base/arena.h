// SPDX-License-Identifier: Apache-2.0
/* arena.h - memory that is given out piece by piece and freed all at once.
 *
 * Path:     a request, a load or a test owns one; modules take an Arena * argument.
 * Owns:     its blocks.  Thread: one at a time. */
#ifndef LILY_BASE_ARENA_H
#define LILY_BASE_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *head; // newest block; NULL: empty
    size_t used;      // bytes used of the newest block
} Arena;              // {0} is an empty arena

/* `size` zeroed bytes, aligned to 16; NULL when out of memory. */
void *arena_alloc(Arena *a, size_t size);
/* n objects of `size` zeroed bytes; NULL on overflow too. */
void *arena_array(Arena *a, size_t n, size_t size);
/* A copy of len bytes with a NUL behind them. */
char *arena_strdup(Arena *a, const char *s, size_t len);
/* Frees everything; the arena is empty again. */
void arena_fini(Arena *a);

#endif
