// SPDX-License-Identifier: Apache-2.0
/* blocks.h - which KV blocks are free, with reference counts for those that sequences share.
 *
 * Path:     engine.c takes blocks when a sequence starts and gives them back when it ends.
 * Owns:     the counts and the free list; the blocks' memory is the backend's.  Thread: engine.
 * Not here: which prefix a block holds. */
#ifndef LILY_ENGINE_BLOCKS_H
#define LILY_ENGINE_BLOCKS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Blocks {
    int32_t n; // blocks in all
    int32_t n_free;
    int32_t *free;   // [n] stack of free numbers; the first n_free are valid
    int32_t *n_refs; // [n] users of each block; 0: free
} Blocks;

NODISCARD Status blocks_init(Blocks *b, int32_t n, Err *err);
void blocks_fini(Blocks *b);
/* Takes n blocks with one reference each; false (nothing taken) when fewer are free. */
bool blocks_take(Blocks *b, int32_t *out, int32_t n);
/* Adds a user to a block in use. */
void blocks_share(Blocks *b, int32_t block);
/* Removes a user; the last one frees the block. */
void blocks_release(Blocks *b, int32_t block);

#endif
