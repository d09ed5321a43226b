// SPDX-License-Identifier: Apache-2.0
/* pyjson.h - JSON text exactly as Python prints it, the form the model was trained on.
 *
 * Path:     chat.c prints tool schemas and arguments; parse_call.c prints call arguments.
 * Owns:     nothing.  Thread: any.
 * Not here: reading JSON (base/json.h), reading Python literals (pyliteral.h). */
#ifndef LILY_TEXT_PYJSON_H
#define LILY_TEXT_PYJSON_H

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

enum { PYJSON_DEPTH = 4096 }; // jansson reads 2048 levels; one more level is 200 bytes of stack

/* Appends v as json.dumps(v, ensure_ascii=False) prints it: ", " and ": " between, keys in their
 * order, characters outside ASCII as they are, the shortest number text that reads back the same.
 *
 * jansson holds no integer over 64 bits, no NaN and no infinity, so Python's forms of those cannot
 * occur: the reader of the JSON has refused them before.
 * Returns STATUS_INVALID beyond PYJSON_DEPTH levels. Out of memory shows in strbuf_check(out). */
NODISCARD Status pyjson_append(StrBuf *out, const json_t *v, Err *err);

/* Appends a scalar as Python's str() does: True, False, None, numbers as above, a string as it is.
 * Lists and objects: false, and nothing is appended. */
bool pyjson_append_str(StrBuf *out, const json_t *v);

/* Appends s with JSON escapes and without the quotes around it. Each byte is escaped by itself, so
 * a text in pieces gives the pieces of the whole. */
void pyjson_append_escaped(StrBuf *out, StrView s);

/* Appends repr(x), x finite: 1.0, 0.1, 1e+16, 5e-324, -0.0. */
void pyjson_append_real(StrBuf *out, double x);

#endif
