// SPDX-License-Identifier: Apache-2.0
/* pyliteral.h - reads what Python's repr prints for plain data: None, True, numbers, 'text', lists,
 * tuples and dicts with text keys. Models trained on the 3.5 template write such values at times.
 *
 * Path:     coerce.c asks when a value is no JSON.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_TEXT_PYLITERAL_H
#define LILY_TEXT_PYLITERAL_H

#include "base/json.h"
#include "base/str.h"

enum { PYLITERAL_DEPTH = 256 }; // nesting; deeper text is not read

/* Reads text, white space around it allowed. JSON's words (true, null) count too, so mixed forms
 * are read. A key given twice: the last one counts.
 *
 * out  the value, the caller's; NULL when the text is no such literal  (out)
 * Returns STATUS_MEMORY. */
NODISCARD Status pyliteral_read(json_t **out, StrView text, Err *err);

#endif
