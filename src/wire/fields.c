// SPDX-License-Identifier: Apache-2.0
/* fields.c - typed members of a request's JSON object.
 *
 * Owns:     nothing.  Thread: one. */
#include "wire/fields.h"

#include <math.h>

Status field_fault(WireFault *fault, const char *param, const char *fmt, ...) {
    char text[ERR_TEXT_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(fault->param, sizeof fault->param, "%s", param);
    return err_set(&fault->err, STATUS_INVALID, "%s: %s", param, text);
}

const json_t *field_get(const json_t *object, const char *name) {
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

Status field_bool(bool *out, const json_t *object, const char *name, WireFault *fault) {
    const json_t *v = field_get(object, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_boolean(v))
        return field_fault(fault, name, "expected true or false, found %s", json_type_text(v));
    *out = json_is_true(v);
    return STATUS_OK;
}

Status field_int(int64_t *out, const json_t *object, const char *name, int64_t low, int64_t high,
                 WireFault *fault) {
    const json_t *v = field_get(object, name);
    if (!v)
        return STATUS_OK;
    double real = json_is_real(v) ? json_real_value(v) : 0.5;
    if (!json_is_integer(v) && real != floor(real)) // 3.0 is the integer 3
        return field_fault(fault, name, "expected an integer, found %s", json_type_text(v));
    double value = json_number_value(v);
    if (!(value >= (double)low && value <= (double)high))
        return field_fault(fault, name, "expected %lld to %lld, found %.17g", (long long)low,
                           (long long)high, value);
    *out = json_is_integer(v) ? json_integer_value(v) : (int64_t)value;
    return STATUS_OK;
}

Status field_real(float *out, const json_t *object, const char *name, double low, double high,
                  WireFault *fault) {
    const json_t *v = field_get(object, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_number(v))
        return field_fault(fault, name, "expected a number, found %s", json_type_text(v));
    double value = json_number_value(v);
    if (!(value >= low && value <= high))
        return field_fault(fault, name, "expected %g to %g, found %g", low, high, value);
    *out = (float)value;
    return STATUS_OK;
}

Status field_text(StrView *out, const json_t *object, const char *name, WireFault *fault) {
    const json_t *v = field_get(object, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_string(v))
        return field_fault(fault, name, "expected a string, found %s", json_type_text(v));
    *out = json_text(v);
    return STATUS_OK;
}

Status field_body(json_t **out, StrView body, WireFault *fault) {
    json_t *v = NULL;
    if (json_read(&v, body, "the request's body", &fault->err) != STATUS_OK) {
        if (fault->err.code == STATUS_FORMAT)
            fault->err.code = STATUS_INVALID; // the client's, not a file's
        return fault->err.code;
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return err_set(&fault->err, STATUS_INVALID, "the request's body: expected a JSON object");
    }
    *out = v;
    return STATUS_OK;
}
