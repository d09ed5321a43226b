// SPDX-License-Identifier: Apache-2.0
/* str.c - byte strings.
 *
 * Owns:     a StrBuf owns its bytes.  Thread: one at a time. */
#define _GNU_SOURCE // memmem
#include "str.h"

#include "checked.h"
#include "mem.h"

size_t str_find(StrView s, StrView part) {
    if (part.len == 0 || s.len < part.len)
        return SIZE_MAX;
    const char *hit = memmem(s.ptr, s.len, part.ptr, part.len);
    return hit ? (size_t)(hit - s.ptr) : SIZE_MAX;
}

size_t str_find_last(StrView s, StrView part) {
    if (part.len == 0 || s.len < part.len)
        return SIZE_MAX;
    for (size_t off = s.len - part.len + 1; off-- > 0;)
        if (memcmp(s.ptr + off, part.ptr, part.len) == 0)
            return off;
    return SIZE_MAX;
}

/* Room for `more` bytes and a NUL. */
static bool strbuf_reserve(StrBuf *b, size_t more) {
    size_t need;
    if (b->is_failed)
        return false;
    if (!checked_add_size(b->len, more, &need) || need >= SIZE_MAX / 2) {
        b->is_failed = true;
        return false;
    }
    if (need + 1 <= b->cap)
        return true;
    size_t cap = max_size(need + 1, b->cap * 2 + 32);
    char *ptr = mem_realloc(b->ptr, cap);
    if (!ptr) {
        b->is_failed = true;
        return false;
    }
    b->ptr = ptr;
    b->cap = cap;
    return true;
}

void strbuf_append(StrBuf *b, const void *bytes, size_t len) {
    if (!strbuf_reserve(b, len))
        return;
    if (len)
        memcpy(b->ptr + b->len, bytes, len);
    b->len += len;
    b->ptr[b->len] = 0;
}

void strbuf_append_view(StrBuf *b, StrView s) { strbuf_append(b, s.ptr, s.len); }

void strbuf_append_char(StrBuf *b, char c) { strbuf_append(b, &c, 1); }

void strbuf_printf(StrBuf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0)
        b->is_failed = true;
    else if (strbuf_reserve(b, (size_t)n)) {
        vsnprintf(b->ptr + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

Status strbuf_check(const StrBuf *b, Err *err) {
    return b->is_failed ? err_memory(err, "text", b->len) : STATUS_OK;
}

StrView strbuf_view(const StrBuf *b) { return (StrView){b->ptr, b->len}; }

void strbuf_clear(StrBuf *b) {
    b->len = 0;
    b->is_failed = false;
    if (b->ptr)
        b->ptr[0] = 0;
}

void strbuf_fini(StrBuf *b) {
    mem_free(b->ptr);
    *b = (StrBuf){0};
}
