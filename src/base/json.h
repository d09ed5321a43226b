// SPDX-License-Identifier: Apache-2.0
/* json.h - what the program needs beside jansson: reading with a clear error, and typed lookups.
 *
 * Owns:     nothing; json_t values are jansson's, freed by json_decref.  Thread: one at a time.
 * Not here: JSON in the form the chat template prints (src/text). */
#ifndef LILY_BASE_JSON_H
#define LILY_BASE_JSON_H

#include "status.h"
#include "str.h"

#include <jansson.h>
#include <stdint.h>

/* Parses text (any value; duplicate keys refused; nesting capped by jansson at 2048; U+0000 in
 * strings allowed). name is for the error text: "config.json: line 3: ...". */
NODISCARD Status json_read(json_t **out, StrView text, const char *name, Err *err);

/* True when an allocation of jansson failed on this thread since the last call (json_read's own do
 * not count). Values that are built by many calls are checked once at their end with it; call it
 * once before, too. Known only after a first json_read, which puts mem_alloc under jansson. */
bool json_take_alloc_failure(void);

/* Reads and parses a file of at most cap bytes. */
NODISCARD Status json_read_file(json_t **out, const char *path, size_t cap, Err *err);

/* Appends v as JSON text; flags are jansson's (JSON_COMPACT, JSON_INDENT(n)). Returns
 * STATUS_MEMORY.
 */
NODISCARD Status json_print(StrBuf *out, const json_t *v, size_t flags, Err *err);

/* A string value of text that may hold bytes that are no UTF-8 (a path): they, and control
 * characters, become '?'; cut like an Err's text then. NULL: out of memory. */
json_t *json_clean_string(const char *text);

/* The bytes of a string value; {NULL, 0} when v is not a string (or NULL). */
StrView json_text(const json_t *v);

/* Member `key` as an integer in [low, high]. A missing key is an error unless fallback points to
 * the value to take. where is for the error text ("config.json: text_config"). */
NODISCARD Status json_get_int(int64_t *out, const json_t *object, const char *key, int64_t low,
                              int64_t high, const int64_t *fallback, const char *where, Err *err);
/* Member `key` as a number; integers count. */
NODISCARD Status json_get_real(double *out, const json_t *object, const char *key,
                               const double *fallback, const char *where, Err *err);
NODISCARD Status json_get_bool(bool *out, const json_t *object, const char *key,
                               const bool *fallback, const char *where, Err *err);

/* "an object", "a string", ... of a value; "nothing" for NULL. */
const char *json_type_text(const json_t *v);

#endif
