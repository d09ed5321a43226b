// SPDX-License-Identifier: Apache-2.0
/* token_ids.h - a growable list of token ids.
 *
 * Owns:     a TokenIds owns its array.  Thread: one at a time. */
#ifndef LILY_TEXT_TOKEN_IDS_H
#define LILY_TEXT_TOKEN_IDS_H

#include "base/status.h"

#include <stdint.h>

typedef struct TokenIds {
    int32_t *ids; // [n]
    size_t n;
    size_t cap;
} TokenIds; // {0} is empty

/* Room for `more` ids behind the n there are. Returns STATUS_MEMORY when there is none. */
NODISCARD Status token_ids_reserve(TokenIds *t, size_t more, Err *err);

/* Appends one id. Returns STATUS_MEMORY. */
NODISCARD Status token_ids_append(TokenIds *t, int32_t id, Err *err);

void token_ids_fini(TokenIds *t);

#endif
