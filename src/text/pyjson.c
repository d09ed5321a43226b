// SPDX-License-Identifier: Apache-2.0
/* pyjson.c - Python's JSON text.
 *
 * Owns:     nothing.  Thread: any.
 * Source: Python 3 library, json.encoder (escapes, separators) and float.__repr__ (format code
 *         'r': the shortest digits that read back the same, exponent form below 1e-4 and from
 *         1e16 on, at least two exponent digits). */
#include "pyjson.h"

#include <ctype.h>
#include <math.h>

enum { REAL_DIGITS_MAX = 17 }; // enough to tell any two doubles apart

/* The decimal digits of x > 0 and the exponent of the first one: x = d.ddd * 10^exponent. */
typedef struct RealDigits {
    char digit[REAL_DIGITS_MAX];
    int n;
    int exponent;
} RealDigits;

/* Reads the output of "%.*e". The decimal point is skipped whatever the locale calls it. */
static RealDigits real_digits_read(const char *text) {
    RealDigits d = {0};
    const char *s = text;
    for (; *s && *s != 'e'; s++)
        if (isdigit((unsigned char)*s) && d.n < REAL_DIGITS_MAX)
            d.digit[d.n++] = *s;
    d.exponent = *s ? (int)strtol(s + 1, NULL, 10) : 0;
    return d;
}

/* The value of the digits, as strtod reads them. No decimal point is written, so no locale counts.
 */
static double real_digits_value(const RealDigits *d) {
    char text[REAL_DIGITS_MAX + 16];
    snprintf(text, sizeof text, "%.*se%d", d->n, d->digit, d->exponent - (d->n - 1));
    return strtod(text, NULL);
}

/* Adds one to the last digit. */
static void real_digits_increment(RealDigits *d) {
    int i = d->n - 1;
    while (i >= 0 && d->digit[i] == '9')
        d->digit[i--] = '0';
    if (i >= 0) {
        d->digit[i]++;
        return;
    }
    d->digit[0] = '1'; // 9.99 became 10.0
    d->exponent++;
}

/* The shortest digits that read back as x > 0. The nearest decimal of a length is tried, and the
 * one above it: at a power of two the gap above x is twice the gap below, so the nearest one
 * (below) may read back as another double while the one above does not. */
static RealDigits real_digits_shortest(double x) {
    char text[REAL_DIGITS_MAX + 16];
    for (int n = 1; n < REAL_DIGITS_MAX; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, x);
        RealDigits d = real_digits_read(text);
        double y = real_digits_value(&d);
        if (y < x) {
            real_digits_increment(&d);
            y = real_digits_value(&d);
        }
        if (y == x)
            return d;
    }
    snprintf(text, sizeof text, "%.*e", REAL_DIGITS_MAX - 1, x);
    return real_digits_read(text);
}

void pyjson_append_real(StrBuf *out, double x) {
    if (signbit(x))
        strbuf_append_char(out, '-');
    x = fabs(x);
    if (x == 0) {
        strbuf_append(out, "0.0", 3);
        return;
    }
    RealDigits d = real_digits_shortest(x);
    while (d.n > 1 && d.digit[d.n - 1] == '0')
        d.n--;
    int point = d.exponent + 1; // digits before the point
    if (d.exponent < -4 || d.exponent >= 16) {
        strbuf_append(out, d.digit, 1);
        if (d.n > 1) {
            strbuf_append_char(out, '.');
            strbuf_append(out, d.digit + 1, (size_t)d.n - 1);
        }
        strbuf_printf(out, "e%c%02d", d.exponent < 0 ? '-' : '+', abs(d.exponent));
        return;
    }
    if (point <= 0)
        strbuf_append(out, "0", 1);
    for (int i = 0; i < point; i++)
        strbuf_append_char(out, i < d.n ? d.digit[i] : '0');
    strbuf_append_char(out, '.');
    for (int i = point; i < 0; i++)
        strbuf_append_char(out, '0');
    if (point < d.n)
        strbuf_append(out, d.digit + (point > 0 ? point : 0),
                      (size_t)(d.n - (point > 0 ? point : 0)));
    else
        strbuf_append_char(out, '0');
}

void pyjson_append_escaped(StrBuf *out, StrView s) {
    size_t start = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        strbuf_append(out, s.ptr + start, i - start);
        start = i + 1;
        switch (c) {
        case '"': strbuf_append(out, "\\\"", 2); break;
        case '\\': strbuf_append(out, "\\\\", 2); break;
        case '\n': strbuf_append(out, "\\n", 2); break;
        case '\r': strbuf_append(out, "\\r", 2); break;
        case '\t': strbuf_append(out, "\\t", 2); break;
        case '\f': strbuf_append(out, "\\f", 2); break;
        case '\b': strbuf_append(out, "\\b", 2); break;
        default: strbuf_printf(out, "\\u%04x", c);
        }
    }
    if (start < s.len)
        strbuf_append(out, s.ptr + start, s.len - start);
}

static void pyjson_append_quoted(StrBuf *out, StrView s) {
    strbuf_append_char(out, '"');
    pyjson_append_escaped(out, s);
    strbuf_append_char(out, '"');
}

static Status pyjson_append_level(StrBuf *out, const json_t *v, int depth, Err *err) {
    if (depth > PYJSON_DEPTH)
        return err_set(err, STATUS_INVALID, "JSON nested deeper than %d levels", PYJSON_DEPTH);
    switch (json_typeof(v)) {
    case JSON_OBJECT: {
        json_t *object = (json_t *)v; // the iterators take no const; nothing is changed
        strbuf_append_char(out, '{');
        void *first = json_object_iter(object);
        for (void *it = first; it; it = json_object_iter_next(object, it)) {
            strbuf_append(out, ", ", it == first ? 0 : 2);
            StrView key = str_view(json_object_iter_key(it), json_object_iter_key_len(it));
            pyjson_append_quoted(out, key);
            strbuf_append(out, ": ", 2);
            TRY(pyjson_append_level(out, json_object_iter_value(it), depth + 1, err));
        }
        strbuf_append_char(out, '}');
        return STATUS_OK;
    }
    case JSON_ARRAY:
        strbuf_append_char(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            strbuf_append(out, ", ", i ? 2 : 0);
            TRY(pyjson_append_level(out, json_array_get(v, i), depth + 1, err));
        }
        strbuf_append_char(out, ']');
        return STATUS_OK;
    case JSON_STRING: pyjson_append_quoted(out, json_text(v)); return STATUS_OK;
    case JSON_INTEGER:
        strbuf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return STATUS_OK;
    case JSON_REAL: pyjson_append_real(out, json_real_value(v)); return STATUS_OK;
    case JSON_TRUE: strbuf_append(out, "true", 4); return STATUS_OK;
    case JSON_FALSE: strbuf_append(out, "false", 5); return STATUS_OK;
    default: strbuf_append(out, "null", 4); return STATUS_OK;
    }
}

Status pyjson_append(StrBuf *out, const json_t *v, Err *err) {
    return pyjson_append_level(out, v, 1, err);
}

bool pyjson_append_str(StrBuf *out, const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
    case JSON_ARRAY: return false;
    case JSON_STRING: strbuf_append_view(out, json_text(v)); return true;
    case JSON_TRUE: strbuf_append(out, "True", 4); return true;
    case JSON_FALSE: strbuf_append(out, "False", 5); return true;
    case JSON_NULL: strbuf_append(out, "None", 4); return true;
    default: {
        Err err = {0};
        Status status = pyjson_append(out, v, &err); // a number: cannot fail
        return status == STATUS_OK;
    }
    }
}
