// SPDX-License-Identifier: Apache-2.0
/* blocks.c - a stack of free block numbers.
 *
 * Owns:     the counts and the free list.  Thread: engine.
 * Not here: which prefix a block holds. */
#include "engine/blocks.h"

#include "base/mem.h"

Status blocks_init(Blocks *b, int32_t n, Err *err) {
    *b = (Blocks){.n = n, .n_free = n};
    b->free = mem_zalloc((size_t)n, sizeof *b->free);
    b->n_refs = mem_zalloc((size_t)n, sizeof *b->n_refs);
    if (!b->free || !b->n_refs) {
        blocks_fini(b);
        return err_memory(err, "block table", (size_t)n * sizeof *b->free);
    }
    for (int32_t i = 0; i < n; i++)
        b->free[i] = n - 1 - i; // low numbers first
    return STATUS_OK;
}

void blocks_fini(Blocks *b) {
    mem_free(b->free);
    mem_free(b->n_refs);
    *b = (Blocks){0};
}

bool blocks_take(Blocks *b, int32_t *out, int32_t n) {
    if (n > b->n_free)
        return false;
    for (int32_t i = 0; i < n; i++) {
        out[i] = b->free[--b->n_free];
        b->n_refs[out[i]] = 1;
    }
    return true;
}

void blocks_share(Blocks *b, int32_t block) {
    CHECK(b->n_refs[block] > 0);
    b->n_refs[block]++;
}

void blocks_release(Blocks *b, int32_t block) {
    CHECK(block >= 0 && block < b->n && b->n_refs[block] > 0);
    if (--b->n_refs[block] == 0)
        b->free[b->n_free++] = block;
}
