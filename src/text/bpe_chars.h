// SPDX-License-Identifier: Apache-2.0
/* bpe_chars.h - characters that may enter a merge as one symbol instead of as their bytes.
 *
 * Most characters of several bytes become one token before they can merge with a neighbour, so
 * beginning with that token saves two thirds of the merges in Chinese text. That gives the same ids
 * as beginning with bytes when
 *   1. the bytes of the character alone merge into one token,
 *   2. no merge joins a part of the character with what stands beside it: such merges are guarded
 * by the last byte on the left and the first byte on the right of the place where they join,
 *   3. every merge that joins the whole character with something comes later in the list than the
 *      merges inside the character; then those inside are always taken first.
 *
 * Path:     bpe.c fills it from its merges and asks when it begins a piece.
 * Owns:     its table.  Thread: any once it is filled. */
#ifndef LILY_TEXT_BPE_CHARS_H
#define LILY_TEXT_BPE_CHARS_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct BpeChar {
    uint32_t c;   // code point; 0: free
    int32_t id;   // -1: broke rule 3
    int32_t rank; // highest rank of the merges inside
} BpeChar;

typedef struct BpeChars {
    BpeChar *slots; // [n_slots] open addressing; NULL: no characters
    size_t n_slots; // a power of two
    size_t n;
    uint8_t guards[256 * 256 / 8]; // bit left * 256 + right
} BpeChars;                        // {0} is empty

/* Room for max_chars. Returns STATUS_MEMORY. */
NODISCARD Status bpe_chars_init(BpeChars *b, size_t max_chars, Err *err);
void bpe_chars_fini(BpeChars *b);

/* Adds a character (>= 0x80) that rule 1 holds for. */
void bpe_chars_add(BpeChars *b, uint32_t c, int32_t id, int32_t rank);

/* Applies rules 2 and 3 to one merge, after all characters were added. */
void bpe_chars_note_merge(BpeChars *b, StrView left, StrView right, int32_t rank);

/* The token of the character at s[at..] and its length *n in bytes; -1: begin with the byte.
 * s[at] >= 0x80. */
int32_t bpe_chars_find(const BpeChars *b, StrView s, size_t at, size_t *n);

#endif
