// SPDX-License-Identifier: Apache-2.0
/* stop.h - stop strings in a stream of text: nothing behind a match is let through, and text is
 * held back only while it can still begin one.
 *
 * Path:     turn.c feeds decoded text and passes on what comes out.
 * Owns:     copies of the strings and the held text.  Thread: engine. */
#ifndef LILY_ENGINE_STOP_H
#define LILY_ENGINE_STOP_H

#include "base/limits.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Stop {
    StrBuf strings[LIMIT_STOP_STRINGS];
    int32_t n_strings;
    StrBuf held; // text not yet let through
} Stop;

/* strings [n], each 1..LIMIT_STOP_BYTES bytes; copied. n may be 0: everything passes at once. */
NODISCARD Status stop_init(Stop *s, const StrView *strings, int32_t n, Err *err);
void stop_fini(Stop *s);

/* Takes text in and appends to out what may be let through. *is_hit: a stop string was complete;
 * out then ends right before it and the rest is dropped. The match that is complete first wins, so
 * the result does not depend on how the text is cut into pieces. */
NODISCARD Status stop_push(Stop *s, StrView text, StrBuf *out, bool *is_hit, Err *err);
/* The stream has ended: lets the held text through. */
NODISCARD Status stop_flush(Stop *s, StrBuf *out, Err *err);

#endif
