// SPDX-License-Identifier: Apache-2.0
/* arena.c - a list of blocks, each at least as large as what is asked for.
 *
 * Owns:     its blocks.  Thread: one at a time. */
#include "arena.h"

#include "checked.h"
#include "mem.h"

#include <string.h>

enum { ARENA_BLOCK_BYTES = 64 * 1024, ARENA_ALIGN = 16 };

struct ArenaBlock {
    ArenaBlock *next;
    size_t size;
    _Alignas(ARENA_ALIGN) unsigned char bytes[];
};

void *arena_alloc(Arena *a, size_t size) {
    if (size > SIZE_MAX / 2)
        return NULL;
    size = round_up_size(size ? size : 1, ARENA_ALIGN);
    if (!a->head || a->head->size - a->used < size) {
        size_t room = max_size(size, ARENA_BLOCK_BYTES);
        ArenaBlock *block = mem_alloc(sizeof *block + room);
        if (!block)
            return NULL;
        block->next = a->head;
        block->size = room;
        a->head = block;
        a->used = 0;
    }
    void *p = a->head->bytes + a->used;
    a->used += size;
    return memset(p, 0, size);
}

void *arena_array(Arena *a, size_t n, size_t size) {
    size_t total;
    return checked_mul_size(n, size, &total) ? arena_alloc(a, total) : NULL;
}

char *arena_strdup(Arena *a, const char *s, size_t len) {
    char *copy = len < SIZE_MAX / 2 ? arena_alloc(a, len + 1) : NULL;
    if (copy && len)
        memcpy(copy, s, len);
    return copy;
}

void arena_fini(Arena *a) {
    while (a->head) {
        ArenaBlock *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}
