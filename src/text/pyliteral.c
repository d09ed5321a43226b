// SPDX-License-Identifier: Apache-2.0
/* pyliteral.c - Python literals by recursive descent.
 *
 * Owns:     nothing.  Thread: any.
 * Source: Python language reference, 2.4 (literals): strings without prefix or with none of the
 * raw, byte and format forms; escapes \\ \' \" \n \r \t \b \f \v \a \0 \xhh \uhhhh \Uhhhhhhhh. */
#include "pyliteral.h"

#include "base/utf8.h"

#include <math.h>

typedef struct PyReader {
    const char *s;
    size_t len, off;
    StrBuf text; // the string at hand
} PyReader;

static json_t *pyliteral_value(PyReader *r, int depth);

static int pyliteral_peek(PyReader *r) {
    while (r->off < r->len && r->s[r->off] && strchr(" \t\r\n", r->s[r->off]))
        r->off++;
    return r->off < r->len ? (unsigned char)r->s[r->off] : -1;
}

static bool pyliteral_take(PyReader *r, char c) {
    if (pyliteral_peek(r) != (unsigned char)c)
        return false;
    r->off++;
    return true;
}

/* n hexadecimal digits as a code point, appended; false: bad digits or no scalar value. */
static bool pyliteral_hex(PyReader *r, size_t n) {
    uint32_t c = 0;
    char out[UTF8_MAX];
    if (r->len - r->off < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char d = r->s[r->off++];
        uint32_t v = d >= '0' && d <= '9'   ? (uint32_t)(d - '0')
                     : d >= 'a' && d <= 'f' ? (uint32_t)(d - 'a' + 10)
                     : d >= 'A' && d <= 'F' ? (uint32_t)(d - 'A' + 10)
                                            : 16;
        if (v == 16)
            return false;
        c = c << 4 | v;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return false;
    strbuf_append(&r->text, out, (size_t)utf8_encode(c, out));
    return true;
}

static bool pyliteral_escape(PyReader *r) {
    static const char from[] = "\\'\"nrtbfva0";
    static const char to[] = "\\'\"\n\r\t\b\f\v\a\0";
    if (r->off == r->len)
        return false;
    char c = r->s[r->off++];
    if (c == 'x')
        return pyliteral_hex(r, 2);
    if (c == 'u')
        return pyliteral_hex(r, 4);
    if (c == 'U')
        return pyliteral_hex(r, 8);
    const char *hit = c ? strchr(from, c) : NULL;
    if (!hit)
        return false;
    strbuf_append_char(&r->text, to[hit - from]);
    return true;
}

/* A quoted string into r->text; the opening quote is next. */
static bool pyliteral_text(PyReader *r) {
    char quote = r->s[r->off++];
    if (r->text.is_failed)
        return false;
    strbuf_clear(&r->text);
    while (r->off < r->len) {
        char c = r->s[r->off++];
        if (c == quote)
            return !r->text.is_failed;
        if (c == '\n' || (c == '\\' && !pyliteral_escape(r)))
            return false;
        if (c != '\\')
            strbuf_append_char(&r->text, c);
    }
    return false;
}

static json_t *pyliteral_string(PyReader *r) {
    return pyliteral_text(r) ? json_stringn(r->text.ptr ? r->text.ptr : "", r->text.len) : NULL;
}

/* Only numbers that JSON knows too: the JSON reader does the work. */
static json_t *pyliteral_number(PyReader *r) {
    size_t start = r->off;
    while (r->off < r->len && r->s[r->off] && strchr("0123456789+-.eE", r->s[r->off]))
        r->off++;
    return json_loadb(r->s + start, r->off - start, JSON_DECODE_ANY, NULL);
}

static json_t *pyliteral_word(PyReader *r) {
    static const struct {
        StrView word;
        int value;
    } words[] = {{{"True", 4}, 1},  {{"true", 4}, 1}, {{"False", 5}, 0},
                 {{"false", 5}, 0}, {{"None", 4}, 2}, {{"null", 4}, 2}};
    size_t start = r->off;
    while (r->off < r->len && ((r->s[r->off] | 0x20) >= 'a' && (r->s[r->off] | 0x20) <= 'z'))
        r->off++;
    StrView word = str_view(r->s + start, r->off - start);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (str_equal(word, words[i].word))
            return words[i].value == 2 ? json_null() : json_boolean(words[i].value);
    return NULL;
}

/* Behind '[' or '('. A tuple of one needs its comma, or "(1)" would become a list. */
static json_t *pyliteral_list(PyReader *r, char close, int depth) {
    json_t *list = json_array();
    bool has_comma = close == ']';
    while (list && !pyliteral_take(r, close)) {
        json_t *v = pyliteral_value(r, depth + 1);
        if (!v || json_array_append_new(list, v) != 0)
            goto fail;
        if (pyliteral_take(r, ','))
            has_comma = true;
        else if (pyliteral_peek(r) != close || (!has_comma && json_array_size(list) == 1))
            goto fail;
    }
    return list;
fail:
    json_decref(list);
    return NULL;
}

static json_t *pyliteral_dict(PyReader *r, int depth) {
    json_t *dict = json_object();
    while (dict && !pyliteral_take(r, '}')) {
        int c = pyliteral_peek(r);
        json_t *key = c == '\'' || c == '"' ? pyliteral_string(r) : NULL;
        json_t *v = key && pyliteral_take(r, ':') ? pyliteral_value(r, depth + 1) : NULL;
        bool is_set = v && json_object_setn_new(dict, json_string_value(key),
                                                json_string_length(key), v) == 0;
        json_decref(key);
        if (!is_set || (!pyliteral_take(r, ',') && pyliteral_peek(r) != '}')) {
            json_decref(dict);
            return NULL;
        }
    }
    return dict;
}

static json_t *pyliteral_value(PyReader *r, int depth) {
    int c = pyliteral_peek(r);
    if (depth > PYLITERAL_DEPTH || c < 0)
        return NULL;
    switch (c) {
    case '[': r->off++; return pyliteral_list(r, ']', depth);
    case '(': r->off++; return pyliteral_list(r, ')', depth);
    case '{': r->off++; return pyliteral_dict(r, depth);
    case '\'':
    case '"': return pyliteral_string(r);
    default: return strchr("0123456789+-.", c) ? pyliteral_number(r) : pyliteral_word(r);
    }
}

Status pyliteral_read(json_t **out, StrView text, Err *err) {
    PyReader r = {.s = text.ptr, .len = text.len};
    json_t *v = pyliteral_value(&r, 1);
    if (v && pyliteral_peek(&r) >= 0) {
        json_decref(v);
        v = NULL;
    }
    Status status = strbuf_check(&r.text, err);
    strbuf_fini(&r.text);
    if (status == STATUS_OK)
        *out = v;
    else
        json_decref(v);
    return status;
}
