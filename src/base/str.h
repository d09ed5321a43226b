// SPDX-License-Identifier: Apache-2.0
/* str.h - byte strings: a borrowed view and a growable buffer. Text may hold zero bytes.
 *
 * Owns:     a StrBuf owns its bytes.  Thread: one at a time. */
#ifndef LILY_BASE_STR_H
#define LILY_BASE_STR_H

#include "status.h"

#include <stdbool.h>
#include <string.h>

/* Borrowed bytes, not NUL-terminated. */
typedef struct StrView {
    const char *ptr; // may be NULL when len is 0
    size_t len;
} StrView;

#define STR(literal) ((StrView){(literal), sizeof(literal) - 1})

static inline StrView str_view(const char *ptr, size_t len) { return (StrView){ptr, len}; }
static inline bool str_equal(StrView a, StrView b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
/* By bytes, the shorter of two equal beginnings first: below, at or above 0. */
static inline int str_compare(StrView a, StrView b) {
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len ? memcmp(a.ptr, b.ptr, len) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}
static inline bool str_starts(StrView s, StrView head) {
    return s.len >= head.len && (head.len == 0 || memcmp(s.ptr, head.ptr, head.len) == 0);
}
static inline bool str_ends(StrView s, StrView tail) {
    return s.len >= tail.len &&
           (tail.len == 0 || memcmp(s.ptr + s.len - tail.len, tail.ptr, tail.len) == 0);
}
/* Offset of the first / last place where `part` (not empty) stands in s; SIZE_MAX: nowhere. */
size_t str_find(StrView s, StrView part);
size_t str_find_last(StrView s, StrView part);

/* Growable bytes; {0} is empty. A failed append sets is_failed and every later append does
 * nothing, so a run of appends is checked once at its end with strbuf_check. */
typedef struct StrBuf {
    char *ptr; // NUL behind len bytes; NULL while nothing was ever appended
    size_t len;
    size_t cap;
    bool is_failed;
} StrBuf;

void strbuf_append(StrBuf *b, const void *bytes, size_t len);
void strbuf_append_view(StrBuf *b, StrView s);
void strbuf_append_char(StrBuf *b, char c);
void strbuf_printf(StrBuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* STATUS_MEMORY when an append failed. */
NODISCARD Status strbuf_check(const StrBuf *b, Err *err);
StrView strbuf_view(const StrBuf *b);
void strbuf_clear(StrBuf *b); // keeps the memory
void strbuf_fini(StrBuf *b);

#endif
