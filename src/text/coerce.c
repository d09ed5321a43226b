// SPDX-License-Identifier: Apache-2.0
/* coerce.c - from a parameter's text to a JSON value by the declared schema.
 *
 * Owns:     nothing.  Thread: any. */
#include "coerce.h"

#include "pyliteral.h"

#include <ctype.h>
#include <math.h>
#include <strings.h>

enum {
    COERCE_DEPTH = 32, // of $ref and combined schemas; schemas of tools have two or three
    COERCE_STEPS =
        1000,        // schemas looked at for one key: anyOf with $ref to itself doubles each level
    COERCE_WORD = 8, // bytes of the longest word (null, false) and one more
    COERCE_POINTER_PART = 256 // bytes of one step of a $ref
};

typedef struct CoerceWalk {
    const json_t *root; // what "#" stands for
    int n_steps;
} CoerceWalk;

static unsigned coerce_walk(CoerceWalk *w, const json_t *schema, int depth);

const json_t *coerce_function(const json_t *tool) {
    const json_t *inner = json_object_get(tool, "function");
    return inner ? inner : tool;
}

static unsigned coerce_type_named(StrView name) {
    static const struct {
        StrView name;
        unsigned types;
    } rows[] = {{{"null", 4}, COERCE_NULL},
                {{"boolean", 7}, COERCE_BOOLEAN},
                {{"integer", 7}, COERCE_INTEGER},
                {{"number", 6}, COERCE_NUMBER | COERCE_INTEGER}, // each integer is a number
                {{"array", 5}, COERCE_ARRAY},
                {{"object", 6}, COERCE_OBJECT},
                {{"string", 6}, COERCE_STRING}};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (str_equal(name, rows[i].name))
            return rows[i].types;
    return 0;
}

static unsigned coerce_type_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return COERCE_OBJECT;
    case JSON_ARRAY: return COERCE_ARRAY;
    case JSON_STRING: return COERCE_STRING;
    case JSON_INTEGER: return COERCE_INTEGER;
    case JSON_REAL: return COERCE_NUMBER | COERCE_INTEGER;
    case JSON_TRUE:
    case JSON_FALSE: return COERCE_BOOLEAN;
    default: return COERCE_NULL;
    }
}

/* Both say something: what both allow. A contradiction counts as the second. */
static unsigned coerce_both(unsigned a, unsigned b) {
    return a && b && (a & b) ? a & b : b ? b : a;
}

/* One step of a JSON pointer from v: a member or an element. */
static const json_t *coerce_pointer_step(const json_t *v, StrView part) {
    char name[COERCE_POINTER_PART];
    size_t n = 0;
    for (size_t i = 0; i < part.len; i++) {
        char c = part.ptr[i];
        if (c == '~' && i + 1 < part.len && (part.ptr[i + 1] == '0' || part.ptr[i + 1] == '1'))
            c = part.ptr[++i] == '0' ? '~' : '/';
        if (n + 1 == sizeof name)
            return NULL;
        name[n++] = c;
    }
    name[n] = 0;
    if (json_is_array(v))
        return n && n < 9 && isdigit((unsigned char)name[0])
                   ? json_array_get(v, (size_t)strtoul(name, NULL, 10))
                   : NULL;
    return json_object_getn(v, name, n);
}

/* "#/a/b" in the root; NULL: elsewhere or nothing there. */
static const json_t *coerce_pointer(const json_t *root, StrView ref) {
    if (ref.len == 0 || ref.ptr[0] != '#')
        return NULL;
    const json_t *v = root;
    size_t off = 1;
    while (v && off < ref.len) {
        if (ref.ptr[off] != '/')
            return NULL;
        size_t end = ++off;
        while (end < ref.len && ref.ptr[end] != '/')
            end++;
        v = coerce_pointer_step(v, str_view(ref.ptr + off, end - off));
        off = end;
    }
    return v;
}

static unsigned coerce_union(CoerceWalk *w, const json_t *list, int depth) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= coerce_walk(w, json_array_get(list, i), depth);
    return types;
}

static unsigned coerce_walk(CoerceWalk *w, const json_t *schema, int depth) {
    if (!json_is_object(schema) || depth > COERCE_DEPTH || ++w->n_steps > COERCE_STEPS)
        return 0;
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    const json_t *value = json_object_get(schema, "const");
    const json_t *all = json_object_get(schema, "allOf");
    unsigned types = coerce_type_named(json_text(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= coerce_type_named(json_text(json_array_get(type, i)));
    unsigned listed = value ? coerce_type_of(value) : 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        listed |= coerce_type_of(json_array_get(values, i));
    types = coerce_both(types, listed);
    StrView ref = json_text(json_object_get(schema, "$ref"));
    if (ref.ptr)
        types = coerce_both(types, coerce_walk(w, coerce_pointer(w->root, ref), depth + 1));
    types = coerce_both(types, coerce_union(w, json_object_get(schema, "anyOf"), depth + 1));
    types = coerce_both(types, coerce_union(w, json_object_get(schema, "oneOf"), depth + 1));
    for (size_t i = 0; i < json_array_size(all); i++)
        types = coerce_both(types, coerce_walk(w, json_array_get(all, i), depth + 1));
    if (types && json_is_true(json_object_get(schema, "nullable")))
        types |= COERCE_NULL;
    return types;
}

unsigned coerce_types(const json_t *function, StrView key) {
    CoerceWalk w = {.root = json_object_get(function, "parameters")};
    const json_t *properties = json_object_get(w.root, "properties");
    const json_t *schema = json_object_getn(properties, key.ptr ? key.ptr : "", key.len);
    if (!schema)
        schema = json_object_get(w.root, "additionalProperties");
    return coerce_walk(&w, schema, 1);
}

static bool coerce_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static StrView coerce_trim(StrView s) {
    while (s.len && coerce_is_space(s.ptr[0]))
        s = str_view(s.ptr + 1, s.len - 1);
    while (s.len && coerce_is_space(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

static bool coerce_is_word(StrView s, StrView word) {
    return s.len == word.len && strncasecmp(s.ptr, word.ptr, word.len) == 0;
}

/* s, trimmed, is the beginning of the word or all of it. */
static bool coerce_may_be_word(StrView s, StrView word) {
    return s.len <= word.len && strncasecmp(s.ptr, word.ptr, s.len) == 0;
}

CoerceGuess coerce_guess(unsigned types, StrView head) {
    if (types == COERCE_STRING)
        return COERCE_TEXT;
    if (types == 0)
        types = COERCE_STRING | COERCE_OBJECT | COERCE_ARRAY;
    StrView s = coerce_trim(head);
    if (!(types & COERCE_STRING) || s.len == 0)
        return COERCE_UNKNOWN;
    char c = s.ptr[0];
    if ((types & COERCE_OBJECT && c == '{') || (types & COERCE_ARRAY && c == '[') ||
        (types & (COERCE_INTEGER | COERCE_NUMBER) && (c == '-' || isdigit((unsigned char)c))))
        return COERCE_UNKNOWN;
    if (s.len < COERCE_WORD) {
        if (types & COERCE_NULL &&
            (coerce_may_be_word(s, STR("null")) || coerce_may_be_word(s, STR("none"))))
            return COERCE_UNKNOWN;
        if (types & COERCE_BOOLEAN &&
            (coerce_may_be_word(s, STR("true")) || coerce_may_be_word(s, STR("false"))))
            return COERCE_UNKNOWN;
    }
    return COERCE_TEXT;
}

/* True when a parsed value is one that the types allow; a real number with no fraction becomes the
 * integer that is asked for. */
static bool coerce_fit(json_t **v, unsigned types) {
    double x = json_is_real(*v) ? json_real_value(*v) : 0.5;
    if (!(types & COERCE_NUMBER) && types & COERCE_INTEGER && x == floor(x) && fabs(x) < 0x1p63) {
        json_t *n = json_integer((json_int_t)x);
        json_decref(*v);
        *v = n;
        return n != NULL;
    }
    switch (json_typeof(*v)) {
    case JSON_OBJECT: return types & COERCE_OBJECT;
    case JSON_ARRAY: return types & COERCE_ARRAY;
    case JSON_INTEGER: return types & (COERCE_INTEGER | COERCE_NUMBER);
    case JSON_REAL: return types & COERCE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return types & COERCE_BOOLEAN;
    default: return false;
    }
}

/* A value that stands for something else than its text; NULL: none. */
static Status coerce_parse(json_t **out, unsigned types, StrView text, Err *err) {
    bool is_null_allowed = types & COERCE_NULL || (types && !(types & COERCE_STRING));
    StrView s = coerce_trim(text);
    *out = NULL;
    if (is_null_allowed && (coerce_is_word(s, STR("null")) || coerce_is_word(s, STR("none")))) {
        *out = json_null();
        return STATUS_OK;
    }
    if (types & COERCE_BOOLEAN &&
        (coerce_is_word(s, STR("true")) || coerce_is_word(s, STR("false")))) {
        *out = json_boolean(s.len == 4);
        return STATUS_OK;
    }
    if (types == 0)
        types = COERCE_OBJECT | COERCE_ARRAY | COERCE_STRING;
    if ((types & ~(unsigned)(COERCE_STRING | COERCE_NULL | COERCE_BOOLEAN)) == 0 || s.len == 0)
        return STATUS_OK;
    json_t *v = json_loadb(s.ptr, s.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v && !(types & COERCE_STRING)) // where text is allowed, "('a',)" is more likely text
        TRY(pyliteral_read(&v, s, err));
    if (v && !coerce_fit(&v, types)) {
        json_decref(v);
        v = NULL;
    }
    *out = v;
    return STATUS_OK;
}

Status coerce_value(json_t **out, unsigned types, StrView text, Err *err) {
    json_t *v;
    (void)json_take_alloc_failure();
    TRY(coerce_parse(&v, types, text, err));
    if (!v)
        v = json_stringn(text.ptr ? text.ptr : "", text.len);
    if (json_take_alloc_failure() || !v) {
        json_decref(v);
        return err_memory(err, "argument", text.len);
    }
    *out = v;
    return STATUS_OK;
}
