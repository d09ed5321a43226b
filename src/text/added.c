// SPDX-License-Identifier: Apache-2.0
/* added.c - the list of added tokens and the search for the next one.
 *
 * Owns:     the list.  Thread: any once it is sorted. */
#include "added.h"

#include "base/mem.h"

Status added_append(Added *a, AddedToken token, Err *err) {
    CHECK(token.text.len > 0);
    if (a->n == a->cap) {
        int32_t cap = a->cap * 2 + 64;
        AddedToken *items = mem_realloc(a->items, (size_t)cap * sizeof *items);
        if (!items)
            return err_memory(err, "added tokens", (size_t)cap * sizeof *items);
        a->items = items;
        a->cap = cap;
    }
    a->items[a->n++] = token;
    return STATUS_OK;
}

void added_fini(Added *a) {
    mem_free(a->items);
    *a = (Added){0};
}

static int added_compare(const void *x, const void *y) {
    const AddedToken *a = x, *b = y;
    int first = (unsigned char)a->text.ptr[0] - (unsigned char)b->text.ptr[0];
    if (first != 0)
        return first;
    if (a->text.len != b->text.len)
        return a->text.len > b->text.len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

void added_sort(Added *a) {
    if (a->n)
        qsort(a->items, (size_t)a->n, sizeof *a->items, added_compare);
    int32_t i = 0;
    a->n_first_bytes = 0;
    for (int b = 0; b < 256; b++) {
        a->first[b] = i;
        while (i < a->n && (unsigned char)a->items[i].text.ptr[0] == b)
            i++;
        if (i > a->first[b]) {
            a->n_first_bytes++;
            a->first_byte = (char)b;
        }
    }
    a->first[256] = i;
}

AddedToken *added_find_text(const Added *a, StrView text) {
    for (int32_t i = 0; i < a->n; i++)
        if (str_equal(a->items[i].text, text))
            return &a->items[i];
    return NULL;
}

static bool added_is_trusted(const uint8_t *trusted, size_t at, size_t len) {
    for (size_t i = at; trusted && i < at + len; i++)
        if (!(trusted[i / 8] >> i % 8 & 1))
            return false;
    return true;
}

bool added_next(const Added *a, StrView text, const uint8_t *trusted, size_t from, AddedHit *hit) {
    if (a->n == 0)
        return false;
    for (size_t at = from; at < text.len; at++) {
        if (a->n_first_bytes == 1) {
            const char *p = memchr(text.ptr + at, a->first_byte, text.len - at);
            if (!p)
                return false;
            at = (size_t)(p - text.ptr);
        }
        unsigned b = (unsigned char)text.ptr[at];
        for (int32_t i = a->first[b]; i < a->first[b + 1]; i++) {
            StrView token = a->items[i].text;
            if (str_starts(str_view(text.ptr + at, text.len - at), token) &&
                added_is_trusted(trusted, at, token.len)) {
                *hit = (AddedHit){at, token.len, a->items[i].id};
                return true;
            }
        }
    }
    return false;
}
