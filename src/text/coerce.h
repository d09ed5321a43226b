// SPDX-License-Identifier: Apache-2.0
/* coerce.h - a parameter's text to the JSON value that the tool's schema asks for.
 *
 * Path:     parse_call.c finds a parameter's types when its key is known and the value at its end.
 * Owns:     nothing.  Thread: any.
 * Not here: where a value begins and ends (parse_call.c), validation against a schema. */
#ifndef LILY_TEXT_COERCE_H
#define LILY_TEXT_COERCE_H

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

/* Set of JSON types; 0: the schema says nothing. */
typedef enum CoerceType {
    COERCE_NULL = 1,
    COERCE_BOOLEAN = 2,
    COERCE_INTEGER = 4,
    COERCE_NUMBER = 8,
    COERCE_ARRAY = 16,
    COERCE_OBJECT = 32,
    COERCE_STRING = 64,
    COERCE_ALL = 127
} CoerceType;

/* The function object {"name", "parameters"} of a tool ({"type", "function": {...}} or flat). */
const json_t *coerce_function(const json_t *tool);

/* The types that a function's parameter `key` may have: type (a name or a list), nullable, enum,
 * const, anyOf, oneOf, allOf, local $ref; additionalProperties where the key is not declared. 0:
 * unknown function (NULL), unknown key, or no type said. */
unsigned coerce_types(const json_t *function, StrView key);

/* What the beginning of a text tells about its value. */
typedef enum CoerceGuess {
    COERCE_UNKNOWN, // more is needed, or only the end can tell
    COERCE_TEXT     // coerce_value of every continuation gives the text itself as a string
} CoerceGuess;
CoerceGuess coerce_guess(unsigned types, StrView head);

/* The value of a text. Tried in the order null, boolean, integer, number, array, object as far as
 * the types allow; JSON first, then Python's literals (True, None, ['a']); else the text as a
 * string.
 * - null in any case, and None: where null is allowed or a string is not.
 * - An integer may be written with a zero fraction or an exponent; numbers that do not fit 64 bits
 * or a double stay text.
 * - Nothing said (0): an object or a list that parses, else the text.
 * text  valid UTF-8                                                 (in)
 * Returns STATUS_MEMORY.  Owner: the caller frees *out by json_decref. */
NODISCARD Status coerce_value(json_t **out, unsigned types, StrView text, Err *err);

#endif
