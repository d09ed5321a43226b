// SPDX-License-Identifier: Apache-2.0
/* prefix.h - which beginnings of prompts need not be read again: full KV blocks in a tree by their
 * token ids, and copies of the recurrent state (snapshots) at some of its nodes.
 *
 * Path:     sched.c looks a prompt up when it admits a sequence and adds snapshots as steps are
 * read. Owns:     the state slots given to it and one reference to each block of its tree. Thread:
 * engine. Not here: the blocks' and slots' memory (the backend), who may be evicted from running
 * (sched.c).
 *
 * The recurrent state cannot be cut back, so only a position with a snapshot can be gone on from.
 * The tree holds exactly the blocks that lead to a snapshot. A key is a hash; a hit compares the
 * ids. */
#ifndef LILY_ENGINE_PREFIX_H
#define LILY_ENGINE_PREFIX_H

#include "base/status.h"
#include "engine/blocks.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Prefix Prefix;

/* blocks      the pool that block numbers belong to; kept         (in)
 * first_slot  state slots [first_slot, first_slot + n_slots) are the cache's; n_slots 0: it never
 *             holds anything
 * Returns STATUS_MEMORY. */
NODISCARD Status prefix_open(Prefix **out, Blocks *blocks, int32_t first_slot, int32_t n_slots,
                             Err *err);
/* Gives every block back. */
void prefix_close(Prefix *p);

/* Why a lookup found no more than it did. */
typedef enum PrefixMiss {
    PREFIX_WHOLE,    // all that can be reused is
    PREFIX_OFF,      // there is no cache, or the prompt is shorter than a block
    PREFIX_UNKNOWN,  // nothing begins like it
    PREFIX_DIVERGED, // the ids go other ways behind n_shared
} PrefixMiss;

const char *prefix_miss_name(PrefixMiss miss);

typedef struct PrefixHit {
    int32_t n_tok;       // tokens that can be reused, a multiple of KV_BLOCK; 0: none
    int32_t slot;        // state slot to copy from; -1: none
    int32_t n_shared;    // tokens in whole blocks that the tree has in common with the prompt
    bool is_decode_made; // the state goes back to one that decode made: near what reading all of
                         // it would give, not bit for bit
    PrefixMiss miss;
} PrefixHit;

/* Looks up the longest usable beginning of ids[0, n), leaving at least one token to be read.
 *
 * space    only what was added under the same number is found (an API key's; 0: shared)
 * exact    ignore snapshots that go back to decode
 * blocks   [hit.n_tok / KV_BLOCK] the blocks, with a reference taken for the caller   (out) */
void prefix_find(Prefix *p, uint64_t space, const int32_t *ids, int32_t n, bool exact,
                 int32_t *blocks, PrefixHit *hit);

/* True when a snapshot stands exactly behind ids[0, n_tok); exact as in prefix_find. */
bool prefix_has(const Prefix *p, uint64_t space, const int32_t *ids, int32_t n_tok, bool exact);

/* A state slot for a new snapshot, evicting the least useful one if none is free; -1: none.
 * gain_tok: tokens that the new snapshot would save; one that is worth more is not evicted for it.
 */
int32_t prefix_take_slot(Prefix *p, int32_t gain_tok);
/* Gives a slot back unused. */
void prefix_give_slot(Prefix *p, int32_t slot);

/* Adds the snapshot in `slot` behind ids[0, n_tok), n_tok a multiple of KV_BLOCK; the tree takes
 * the slot, and a reference to each block that it did not have, or had as decode wrote it. Where
 * there is one already, the slot is free again.
 *
 * is_decode_made  some of the ids were read by decode, or behind a state that was  (in) */
void prefix_add(Prefix *p, uint64_t space, const int32_t *ids, int32_t n_tok, const int32_t *blocks,
                int32_t slot, bool is_decode_made);

/* Evicts until n blocks are free; false, with nothing evicted, where even all would not do. */
bool prefix_make_room(Prefix *p, int32_t n);

typedef struct PrefixFigures {
    int32_t n_nodes, n_snapshots, n_slots;
    int32_t n_free_slots; // neither snapshots nor lent
    uint64_t n_evicted;
} PrefixFigures;
PrefixFigures prefix_figures(const Prefix *p);

#endif
