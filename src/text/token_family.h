// SPDX-License-Identifier: Apache-2.0
/* token_family.h - a tokenizer without files, for models that are made in memory.
 *
 * Path:     tokenizer_open_bytes.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_TEXT_TOKEN_FAMILY_H
#define LILY_TEXT_TOKEN_FAMILY_H

#include "token_model.h"

enum {
    TOKEN_FAMILY_ADDED = 33,                     // added tokens of Qwen3.5 and 3.6
    TOKEN_FAMILY_MIN = 256 + TOKEN_FAMILY_ADDED, // the fewest rows
};

/* 256 byte tokens first (in the family's order), the family's added tokens last, and between them
 * tokens that encoding never yields and whose text is a lower-case word behind a space, so that
 * what a model of random weights says can be seen.
 *
 * n_rows  TOKEN_FAMILY_MIN..LIMIT_VOCAB
 * Returns STATUS_MEMORY; *out is then untouched. */
NODISCARD Status token_family_fill(TokenModel *out, int32_t n_rows, Err *err);

#endif
