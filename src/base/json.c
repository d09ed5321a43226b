// SPDX-License-Identifier: Apache-2.0
/* json.c - jansson with this program's errors.
 *
 * Owns:     nothing.  Thread: one at a time.
 * Not here: JSON in the form the chat template prints (src/text). */
#include "json.h"

#include "file.h"
#include "mem.h"

#include <pthread.h>

// Set by an allocation of jansson that failed on this thread. Its parser goes on after some of
// them, with a byte missing in a name or a value, so their own report cannot be relied on.
static _Thread_local bool json_alloc_failed;

bool json_take_alloc_failure(void) {
    bool has_failed = json_alloc_failed;
    json_alloc_failed = false;
    return has_failed;
}

static void *json_alloc(size_t size) {
    void *p = mem_alloc(size);
    if (p)
        return p;
    json_alloc_failed = true;
    // A byte lost inside an escape sequence makes the parser of jansson 2.14 abort (load.c:442), so
    // try once more and let it come to its end; json_read throws the value away.
    return malloc(size);
}

/* A program around this library that gave jansson other functions keeps them. */
static void json_install_alloc(void) {
    json_malloc_t alloc;
    json_free_t release;
    json_get_alloc_funcs(&alloc, &release);
    if (alloc == malloc && release == free)
        json_set_alloc_funcs(json_alloc, mem_free);
}

Status json_read(json_t **out, StrView text, const char *name, Err *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, json_install_alloc);
    json_error_t e;
    bool has_failed_before = json_take_alloc_failure(); // of somebody who will ask for it
    json_t *v = json_loadb(text.len ? text.ptr : "", text.len,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    bool has_failed = json_take_alloc_failure();
    json_alloc_failed = has_failed_before;
    if (has_failed || (!v && json_error_code(&e) == json_error_out_of_memory)) {
        json_decref(v);
        return err_set(err, STATUS_MEMORY, "%s: out of memory", name);
    }
    if (!v)
        return err_set(err, STATUS_FORMAT, "%s: not valid JSON: line %d, column %d: %s", name,
                       e.line, e.column, e.text);
    *out = v;
    return STATUS_OK;
}

Status json_read_file(json_t **out, const char *path, size_t cap, Err *err) {
    StrBuf text = {0};
    TRY(file_read_all(&text, path, cap, err));
    Status status = json_read(out, strbuf_view(&text), path, err);
    strbuf_fini(&text);
    return status;
}

static int json_print_piece(const char *bytes, size_t len, void *ctx) {
    StrBuf *out = ctx;
    strbuf_append(out, bytes, len);
    return out->is_failed ? -1 : 0;
}

Status json_print(StrBuf *out, const json_t *v, size_t flags, Err *err) {
    bool has_failed_before = json_take_alloc_failure();
    int failure = json_dump_callback(v, json_print_piece, out, flags | JSON_ENCODE_ANY);
    bool has_failed = json_take_alloc_failure();
    json_alloc_failed = has_failed_before;
    return failure || has_failed || out->is_failed ? err_memory(err, "JSON text", out->len)
                                                   : STATUS_OK;
}

json_t *json_clean_string(const char *text) {
    json_t *v = json_string(text);
    if (v)
        return v;
    Err clean = {0};
    Status ignored = err_set(&clean, STATUS_OK, "%s", text);
    UNUSED(ignored);
    return json_string(clean.text);
}

StrView json_text(const json_t *v) {
    return json_is_string(v) ? str_view(json_string_value(v), json_string_length(v)) : (StrView){0};
}

const char *json_type_text(const json_t *v) {
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

static Status json_type_error(const json_t *v, const char *key, const char *expected,
                              const char *where, Err *err) {
    return err_set(err, STATUS_FORMAT, "%s: %s: expected %s, found %s", where, key, expected,
                   json_type_text(v));
}

Status json_get_int(int64_t *out, const json_t *object, const char *key, int64_t low, int64_t high,
                    const int64_t *fallback, const char *where, Err *err) {
    const json_t *v = json_object_get(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return STATUS_OK;
    }
    if (!json_is_integer(v))
        return json_type_error(v, key, "an integer", where, err);
    json_int_t n = json_integer_value(v);
    if (n < low || n > high)
        return err_set(err, STATUS_FORMAT, "%s: %s: expected %lld to %lld, found %lld", where, key,
                       (long long)low, (long long)high, (long long)n);
    *out = n;
    return STATUS_OK;
}

Status json_get_real(double *out, const json_t *object, const char *key, const double *fallback,
                     const char *where, Err *err) {
    const json_t *v = json_object_get(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return STATUS_OK;
    }
    if (!json_is_number(v))
        return json_type_error(v, key, "a number", where, err);
    *out = json_number_value(v);
    return STATUS_OK;
}

Status json_get_bool(bool *out, const json_t *object, const char *key, const bool *fallback,
                     const char *where, Err *err) {
    const json_t *v = json_object_get(object, key);
    if (!v && fallback) {
        *out = *fallback;
        return STATUS_OK;
    }
    if (!json_is_boolean(v))
        return json_type_error(v, key, "true or false", where, err);
    *out = json_is_true(v);
    return STATUS_OK;
}
