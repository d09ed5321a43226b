// SPDX-License-Identifier: Apache-2.0
/* detok.c - bytes of tokens to valid UTF-8, with at most three bytes held back.
 *
 * Owns:     nothing.  Thread: one at a time.
 * Source:   Unicode 16, section 3.9: one U+FFFD for each maximal subpart of an ill-formed text. */
#include "detok.h"

#include "base/utf8.h"
#include "tokenizer.h"

#define DETOK_REPLACEMENT STR("\xef\xbf\xbd") // U+FFFD

void detok_init(Detok *d, const Tokenizer *tokenizer, bool skip_special) {
    *d = (Detok){.tokenizer = tokenizer, .skip_special = skip_special};
}

/* Completes the held bytes byte by byte; returns how many of s were used. */
static size_t detok_complete(Detok *d, StrView s, StrBuf *out) {
    size_t at = 0;
    while (d->n_held > 0 && at < s.len) {
        uint32_t c;
        d->held[d->n_held] = s.ptr[at];
        int n = utf8_decode(d->held, (size_t)d->n_held + 1, &c);
        if (n < 0) { // the held bytes alone are the ill-formed part: s.ptr[at] begins anew
            strbuf_append_view(out, DETOK_REPLACEMENT);
            d->n_held = 0;
            break;
        }
        at++;
        d->n_held++;
        if (n > 0) {
            strbuf_append(out, d->held, d->n_held);
            d->n_held = 0;
        }
    }
    return at;
}

static void detok_feed(Detok *d, StrView s, StrBuf *out) {
    if (s.len == 0) // an id without a token; its view may be NULL
        return;
    size_t at = detok_complete(d, s, out), copied = at;
    while (at < s.len) {
        uint32_t c;
        int n = utf8_decode(s.ptr + at, s.len - at, &c);
        if (n > 0) {
            at += (size_t)n;
            continue;
        }
        strbuf_append(out, s.ptr + copied, at - copied);
        if (n == 0) {
            d->n_held = (uint8_t)(s.len - at);
            memcpy(d->held, s.ptr + at, d->n_held);
            return;
        }
        strbuf_append_view(out, DETOK_REPLACEMENT);
        at += (size_t)-n;
        copied = at;
    }
    strbuf_append(out, s.ptr + copied, at - copied);
}

/* Takes back what a failed append left, in text and state. */
static Status detok_settle(Detok *d, const Detok *before, StrBuf *out, size_t len, Err *err) {
    Status status = strbuf_check(out, err);
    if (status != STATUS_OK) {
        *d = *before;
        out->len = len;
        if (out->ptr)
            out->ptr[len] = 0;
    }
    return status;
}

Status detok_push(Detok *d, int32_t id, StrBuf *out, Err *err) {
    int32_t n_rows = tokenizer_n_rows(d->tokenizer);
    if (id < 0 || id >= n_rows)
        return err_set(err, STATUS_INVALID, "token id: expected 0 to %d, found %d", n_rows - 1, id);
    if (d->skip_special && tokenizer_is_special(d->tokenizer, id))
        return STATUS_OK;
    Detok before = *d;
    size_t len = out->len;
    detok_feed(d, tokenizer_id_bytes(d->tokenizer, id), out);
    return detok_settle(d, &before, out, len, err);
}

Status detok_flush(Detok *d, StrBuf *out, Err *err) {
    if (d->n_held == 0)
        return STATUS_OK;
    Detok before = *d;
    size_t len = out->len;
    strbuf_append_view(out, DETOK_REPLACEMENT);
    d->n_held = 0;
    return detok_settle(d, &before, out, len, err);
}
