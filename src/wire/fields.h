// SPDX-License-Identifier: Apache-2.0
/* fields.h - typed members of a request's JSON object, each checked and named in its error.
 *
 * Path:     wire_request.c and wire_tokens.c.
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_WIRE_FIELDS_H
#define LILY_WIRE_FIELDS_H

#include "wire/wire.h"

/* STATUS_INVALID about field `param`. */
NODISCARD Status field_fault(WireFault *fault, const char *param, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Member `name` of object; NULL when it is missing or null. */
const json_t *field_get(const json_t *object, const char *name);

/* Each leaves *out as it is when the member is missing or null. */
NODISCARD Status field_bool(bool *out, const json_t *object, const char *name, WireFault *fault);
NODISCARD Status field_int(int64_t *out, const json_t *object, const char *name, int64_t low,
                           int64_t high, WireFault *fault);
NODISCARD Status field_real(float *out, const json_t *object, const char *name, double low,
                            double high, WireFault *fault);
NODISCARD Status field_text(StrView *out, const json_t *object, const char *name, WireFault *fault);

/* Parses a body that must be an object. */
NODISCARD Status field_body(json_t **out, StrView body, WireFault *fault);

#endif
