// SPDX-License-Identifier: Apache-2.0
/* bpe.h - byte-pair encoding: the list of merges and its application to one piece.
 *
 * Path:     token_load.c adds the merges in order; tokenizer.c encodes piece by piece.
 * Owns:     the merge table; a BpeWork owns its working space.
 * Thread:   a filled Bpe: any; a BpeWork: one at a time.
 * Not here: where a text is cut into pieces (pretoken.h). */
#ifndef LILY_TEXT_BPE_H
#define LILY_TEXT_BPE_H

#include "base/limits.h"
#include "base/status.h"
#include "base/str.h"
#include "bpe_chars.h"
#include "token_ids.h"
#include "vocab.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    BPE_FAN = 16,                   // children of a node of the minimum tree
    BPE_SMALL = 256,                // bytes of a piece that need no allocation
    BPE_MAX_LEVELS = 8,             // 16^8 positions are more than any piece has
    BPE_MAX_MERGES = (1 << 20) - 1, // a rank takes 20 bits of a slot
};
static_assert(LIMIT_VOCAB <= 1 << 22, "an id takes 22 bits of a slot");

typedef struct Bpe {
    uint64_t *slots;       // [n_slots] left id << 42 | right id << 20 | rank; all ones: free
    size_t n_slots;        // a power of two
    unsigned shift;        // 64 - log2(n_slots)
    int32_t *results;      // [n_merges] id of each rank's result
    uint32_t n_merges;     // merges added so far
    uint32_t max_merges;   // room
    int32_t *ascii_ranks;  // [128 * 128] rank of a pair of ASCII bytes; INT32_MAX: none
    int32_t byte_ids[256]; // id of each byte's token
    BpeChars chars;        // empty until bpe_learn_chars
} Bpe;

/* Working space of bpe_encode; may be used again and again. */
typedef struct BpeWork {
    int32_t *heap; // space for long pieces; NULL: none yet
    size_t heap_cap;
    int32_t small[4 * BPE_SMALL + BPE_SMALL / 8 + (BPE_MAX_LEVELS + 1) * BPE_FAN];
} BpeWork;

/* An empty list with room for max_merges (<= BPE_MAX_MERGES).
 *
 * byte_ids  [256] id of the token that is exactly this one byte     (in)
 * Returns STATUS_MEMORY. */
NODISCARD Status bpe_init(Bpe *b, uint32_t max_merges, const int32_t byte_ids[256], Err *err);
void bpe_fini(Bpe *b);

/* Adds the next merge (its rank is the number of merges before it): left and right side by side
 * become result. Ids lie in [0, LIMIT_VOCAB). Returns false when this pair was added before. */
bool bpe_add(Bpe *b, int32_t left, int32_t right, int32_t result);

/* To be called once, after the last bpe_add and before the first bpe_encode. */
void bpe_finish(Bpe *b);

/* Lets pieces begin with whole characters where that gives the same ids; optional, after
 * bpe_finish.
 *
 * v       the bytes of the ids that the merges name                 (in)
 * Returns STATUS_MEMORY; the list then works as before. */
NODISCARD Status bpe_learn_chars(Bpe *b, const Vocab *v, Err *err);

/* Rank of the merge of two ids; INT32_MAX: they do not merge. */
int32_t bpe_rank(const Bpe *b, int32_t left, int32_t right);

/* Appends the ids of a piece: one symbol a byte, then again and again the adjacent pair with the
 * smallest rank, the leftmost on a tie, becomes one symbol, until no pair merges.
 *
 * piece   any bytes, 1 to LIMIT_TEXT_BYTES                            (in)
 * Returns STATUS_MEMORY. Cost: O(n log n). */
NODISCARD Status bpe_encode(const Bpe *b, BpeWork *w, TokenIds *out, StrView piece, Err *err);

void bpe_work_init(BpeWork *w);
void bpe_work_fini(BpeWork *w);

#endif
