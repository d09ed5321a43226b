// SPDX-License-Identifier: Apache-2.0
/* pretoken.h - cuts text into the pieces that byte-pair encoding works on, one at a time.
 *
 * Path:     tokenizer.c walks each normalised stretch with it.
 * Owns:     nothing.  Thread: any.
 * Source:   the `Split` expression of the published tokenizer.json files, written out by hand:
 *             (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+ | \p{N} |
 *             ?[^\s\p{L}\p{M}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
 *           where the fourth alternative begins with an optional space. */
#ifndef LILY_TEXT_PRETOKEN_H
#define LILY_TEXT_PRETOKEN_H

#include "base/str.h"

typedef enum PretokenRule {
    PRETOKEN_QWEN35, // marks belong to words: Qwen3.5 and 3.6
    PRETOKEN_QWEN2,  // without \p{M}: Qwen2 to Qwen3
} PretokenRule;

/* The published spelling of a rule's expression, as it stands in tokenizer.json. */
StrView pretoken_expression(PretokenRule rule);

/* End (exclusive) of the piece that starts at `at`.
 *
 * text    valid UTF-8, a whole stretch: what follows decides where white space is cut    (in)
 * at      start of a character, < text.len
 * Returns an offset > at. Walking a text costs O(n) in all. */
size_t pretoken_end(PretokenRule rule, StrView text, size_t at);

#endif
