// SPDX-License-Identifier: Apache-2.0
/* stop.c - stop strings by plain search in the held text, which is never longer than the longest
 * stop string and one piece.
 *
 * Owns:     copies of the strings and the held text.  Thread: engine. */
#include "engine/stop.h"

#include "base/checked.h"

Status stop_init(Stop *s, const StrView *strings, int32_t n, Err *err) {
    *s = (Stop){0};
    if (n < 0 || n > LIMIT_STOP_STRINGS)
        return err_set(err, STATUS_INVALID, "stop: expected at most %d strings, found %d",
                       LIMIT_STOP_STRINGS, n);
    for (int32_t i = 0; i < n; i++) {
        if (strings[i].len == 0 || strings[i].len > LIMIT_STOP_BYTES) {
            stop_fini(s);
            return err_set(err, STATUS_INVALID,
                           "stop: string %d: expected 1 to %d bytes, found %zu", i,
                           LIMIT_STOP_BYTES, strings[i].len);
        }
        s->n_strings = i + 1;
        strbuf_append_view(&s->strings[i], strings[i]);
        if (s->strings[i].is_failed) {
            stop_fini(s);
            return err_memory(err, "stop string", strings[i].len);
        }
    }
    return STATUS_OK;
}

void stop_fini(Stop *s) {
    for (int32_t i = 0; i < s->n_strings; i++)
        strbuf_fini(&s->strings[i]);
    strbuf_fini(&s->held);
    s->n_strings = 0;
}

/* Length of the longest end of `text` that is the proper beginning of a stop string. */
static size_t stop_open_tail(const Stop *s, StrView text) {
    size_t longest = 0;
    for (int32_t i = 0; i < s->n_strings; i++) {
        StrView stop = strbuf_view(&s->strings[i]);
        for (size_t n = min_size(stop.len - 1, text.len); n > longest; n--)
            if (memcmp(text.ptr + text.len - n, stop.ptr, n) == 0)
                longest = n;
    }
    return longest;
}

Status stop_push(Stop *s, StrView text, StrBuf *out, bool *is_hit, Err *err) {
    *is_hit = false;
    if (s->n_strings == 0) {
        strbuf_append_view(out, text);
        return strbuf_check(out, err);
    }
    strbuf_append_view(&s->held, text);
    TRY(strbuf_check(&s->held, err));
    StrView held = strbuf_view(&s->held);
    size_t first = SIZE_MAX, first_end = SIZE_MAX;
    for (int32_t i = 0; i < s->n_strings; i++) {
        size_t at = str_find(held, strbuf_view(&s->strings[i]));
        if (at == SIZE_MAX)
            continue;
        size_t end = at + s->strings[i].len;
        if (end < first_end || (end == first_end && at < first)) {
            first = at;
            first_end = end;
        }
    }
    *is_hit = first != SIZE_MAX;
    size_t pass = *is_hit ? first : held.len - stop_open_tail(s, held);
    strbuf_append(out, held.ptr, pass);
    TRY(strbuf_check(out, err));
    size_t keep = *is_hit ? 0 : held.len - pass;
    if (keep)
        memmove(s->held.ptr, s->held.ptr + pass, keep);
    s->held.len = keep;
    return STATUS_OK;
}

Status stop_flush(Stop *s, StrBuf *out, Err *err) {
    strbuf_append_view(out, strbuf_view(&s->held));
    s->held.len = 0;
    return strbuf_check(out, err);
}
