// SPDX-License-Identifier: Apache-2.0
/* detok.h - ids to text while they are being made: what is appended is always whole characters.
 *
 * Path:     a turn pushes each sampled id and sends what came out; tokenizer_decode uses it too.
 * Owns:     nothing; a Detok is plain data.  Thread: one at a time.
 * Not here: stop strings, tags (the output parser). */
#ifndef LILY_TEXT_DETOK_H
#define LILY_TEXT_DETOK_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Tokenizer Tokenizer;

typedef struct Detok {
    const Tokenizer *tokenizer;
    bool skip_special;
    uint8_t n_held; // 0..3
    char held[4];   // [n_held] beginning of a character whose rest may still come
} Detok;

/* tokenizer     is kept: it must outlive the Detok
 * skip_special  drop the text of special tokens such as <|im_end|> */
void detok_init(Detok *d, const Tokenizer *tokenizer, bool skip_special);

/* Appends to out the text that id completes. Bytes that can no longer become a character turn into
 * U+FFFD at once, one for each maximal subpart; up to 3 bytes that still can wait for the next id.
 * The text of all pushes and the flush together is that of tokenizer_decode.
 *
 * id      0 to the vocabulary's rows - 1; one without a token adds nothing
 * out     grows at its end; nothing is appended by a failed push
 * Returns STATUS_INVALID for an id out of range, STATUS_MEMORY. */
NODISCARD Status detok_push(Detok *d, int32_t id, StrBuf *out, Err *err);

/* The end of the text: bytes that still wait become one U+FFFD. */
NODISCARD Status detok_flush(Detok *d, StrBuf *out, Err *err);

#endif
