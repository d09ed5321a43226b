// SPDX-License-Identifier: Apache-2.0
/* added.h - tokens that are cut out of the text before it is split: "<|im_start|>", "<think>".
 *
 * Path:     token_load.c adds them; tokenizer.c looks for the next one in a text.
 * Owns:     the list; the bytes of a token belong to the vocabulary.
 * Thread:   any once it is sorted. */
#ifndef LILY_TEXT_ADDED_H
#define LILY_TEXT_ADDED_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct AddedToken {
    StrView text; // not empty
    int32_t id;
    bool is_special; // dropped by "skip special"
} AddedToken;

typedef struct Added {
    AddedToken *items; // [n]
    int32_t n, cap;
    int32_t first[257]; // items of first byte b, longest first: [first[b], first[b + 1])
    int n_first_bytes;  // different first bytes
    char first_byte;    // the one that all have, when n_first_bytes is 1
} Added;                // {0} is empty

/* A place where an added token stands. */
typedef struct AddedHit {
    size_t at, len; // bytes
    int32_t id;
} AddedHit;

/* Appends a token; text is kept (it must outlive the list). Returns STATUS_MEMORY. */
NODISCARD Status added_append(Added *a, AddedToken token, Err *err);
void added_fini(Added *a);

/* To be called after the last append and before added_next. */
void added_sort(Added *a);

/* The item with this text; NULL: none. */
AddedToken *added_find_text(const Added *a, StrView text);

/* The leftmost added token at or behind `from`, the longest one at its place.
 *
 * trusted  bit i (byte i / 8, bit i % 8 from the low end) tells that byte i of text may be part of
 *          an added token; NULL: all may                            (in)
 * Returns false when there is none. */
bool added_next(const Added *a, StrView text, const uint8_t *trusted, size_t from, AddedHit *hit);

#endif
