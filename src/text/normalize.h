// SPDX-License-Identifier: Apache-2.0
/* normalize.h - text in Unicode normalisation form C.
 *
 * Path:     tokenizer.c normalises each stretch between added tokens before it splits it.
 * Owns:     nothing.  Thread: any.
 * Source:   Unicode annex 15 with the data of Unicode 9 (characters added later stay as they are).
 */
#ifndef LILY_TEXT_NORMALIZE_H
#define LILY_TEXT_NORMALIZE_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* True when text is certainly in form C already (the quick check); false: it may or may not be.
 *
 * text    valid UTF-8                                               (in) */
bool normalize_is_done(StrView text);

/* Appends NFC(text) to out.
 *
 * text    valid UTF-8, not inside out                               (in)
 * Returns STATUS_MEMORY when out or the working space cannot grow; out is then as before or longer.
 * Cost:   O(n log m), m the longest run of combining marks. */
NODISCARD Status normalize_append_nfc(StrBuf *out, StrView text, Err *err);

#endif
