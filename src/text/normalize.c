// SPDX-License-Identifier: Apache-2.0
/* normalize.c - decompose, put marks in order, compose; only where the quick check asks for it.
 *
 * Text is cut in front of every character that has class 0 and passes the quick check: such a
 * character never combines with what stands before it, so the parts are normalised one by one, and
 * most parts (all that hold a single such character) are copied.
 *
 * Owns:     working space during a call.  Thread: any. */
#include "normalize.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "unicode.h"

/* A decomposed character with its class; order breaks ties, so that any sort is stable. */
typedef struct NormalizeChar {
    uint32_t c;
    uint32_t ccc; // canonical combining class
} NormalizeChar;

typedef struct NormalizeWork {
    NormalizeChar *items; // [cap]; small while it fits
    NormalizeChar *spare; // [cap] second half for merging; allocated together with items
    size_t n, cap;
    NormalizeChar small[2 * 64];
} NormalizeWork;

bool normalize_is_done(StrView text) {
    unsigned last = 0; // class of the character before
    for (size_t at = 0; at < text.len;) {
        if ((unsigned char)text.ptr[at] < 0x80) {
            last = 0;
            at++;
            continue;
        }
        size_t n;
        uint32_t c = unicode_read(text.ptr + at, &n);
        unsigned flags = unicode_flags(c);
        if (flags & UNICODE_QC)
            return false;
        unsigned ccc = flags & UNICODE_CCC ? unicode_ccc(c) : 0;
        if (ccc && last > ccc)
            return false;
        last = ccc;
        at += n;
    }
    return true;
}

static void normalize_work_init(NormalizeWork *w) {
    w->n = 0;
    w->cap = COUNT_OF(w->small) / 2;
    w->items = w->small;
    w->spare = w->small + w->cap;
}

static void normalize_work_fini(NormalizeWork *w) {
    if (w->items != w->small)
        mem_free(w->items);
}

static Status normalize_work_push(NormalizeWork *w, uint32_t c, Err *err) {
    if (w->n == w->cap) {
        size_t cap = w->cap * 2, size = 2 * cap * sizeof *w->items;
        NormalizeChar *items = mem_alloc(size);
        if (!items)
            return err_memory(err, "normalisation", size);
        memcpy(items, w->items, w->n * sizeof *items);
        normalize_work_fini(w);
        w->items = items;
        w->spare = items + cap;
        w->cap = cap;
    }
    w->items[w->n++] = (NormalizeChar){c, unicode_ccc(c)};
    return STATUS_OK;
}

/* Stable merge sort of items[0..n) by class; bottom up, so a run of a million marks is fine. */
static void normalize_sort(NormalizeChar *items, NormalizeChar *spare, size_t n) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low + width < n; low += 2 * width) {
            size_t mid = low + width, high = n - mid < width ? n : mid + width;
            if (items[mid - 1].ccc <= items[mid].ccc)
                continue;
            size_t a = low, b = mid, k = 0;
            while (a < mid && b < high)
                spare[k++] = items[a].ccc <= items[b].ccc ? items[a++] : items[b++];
            while (a < mid)
                spare[k++] = items[a++];
            memcpy(items + low, spare, k * sizeof *items);
        }
    }
}

/* Canonical order: each run of characters with a class other than 0 sorted by class. */
static void normalize_order(NormalizeWork *w) {
    for (size_t at = 0; at < w->n;) {
        size_t end = at;
        while (end < w->n && w->items[end].ccc != 0)
            end++;
        normalize_sort(w->items + at, w->spare, end - at);
        at = end + 1;
    }
}

/* Canonical composition in place. A character combines with the last starter unless something
 * between them has a class of 0 or one that is not smaller. */
static void normalize_compose(NormalizeWork *w) {
    size_t kept = 0, starter = SIZE_MAX; // SIZE_MAX: none yet
    for (size_t i = 0; i < w->n; i++) {
        NormalizeChar x = w->items[i];
        if (starter != SIZE_MAX) {
            bool is_next = kept == starter + 1;
            uint32_t last = is_next ? 0 : w->items[kept - 1].ccc;
            if (is_next || (last != 0 && last < x.ccc)) {
                uint32_t c = unicode_compose(w->items[starter].c, x.c);
                if (c) {
                    w->items[starter].c = c;
                    continue;
                }
            }
        }
        if (x.ccc == 0)
            starter = kept;
        w->items[kept++] = x;
    }
    w->n = kept;
}

/* Normalises one part: a character and what may combine with it. */
static Status normalize_part(NormalizeWork *w, StrBuf *out, StrView part, Err *err) {
    w->n = 0;
    for (size_t at = 0, n; at < part.len; at += n) {
        uint32_t parts[UNICODE_MAX_DECOMP];
        size_t n_parts = unicode_decompose(unicode_read(part.ptr + at, &n), parts);
        for (size_t i = 0; i < n_parts; i++)
            TRY(normalize_work_push(w, parts[i], err));
    }
    normalize_order(w);
    normalize_compose(w);
    for (size_t i = 0; i < w->n; i++) {
        char bytes[UTF8_MAX];
        strbuf_append(out, bytes, (size_t)utf8_encode(w->items[i].c, bytes));
    }
    return STATUS_OK;
}

Status normalize_append_nfc(StrBuf *out, StrView text, Err *err) {
    NormalizeWork work;
    normalize_work_init(&work);
    Status status = STATUS_OK;
    size_t copied = 0;        // bytes of text that are in out
    size_t part = 0;          // start of the current part
    bool is_part_due = false; // it holds something to normalise
    for (size_t at = 0; at <= text.len;) {
        size_t n = 1;
        unsigned flags = 0; // the end of the text is a boundary
        if (at < text.len) {
            uint32_t c = unicode_read(text.ptr + at, &n);
            flags = c < 0x80 ? 0 : unicode_flags(c);
        }
        if (flags & (UNICODE_CCC | UNICODE_QC)) {
            is_part_due = true;
        } else {
            if (is_part_due) {
                strbuf_append(out, text.ptr + copied, part - copied);
                TRY_GOTO(status,
                         normalize_part(&work, out, str_view(text.ptr + part, at - part), err));
                copied = at;
                is_part_due = false;
            }
            part = at;
        }
        at += n;
    }
    strbuf_append(out, text.ptr + copied, text.len - copied);
    status = strbuf_check(out, err);
fail:
    normalize_work_fini(&work);
    return status;
}
