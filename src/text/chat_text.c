// SPDX-License-Identifier: Apache-2.0
/* chat_text.c - text with its origin, byte by byte.
 *
 * Owns:     a ChatText owns its bytes and bits.  Thread: one at a time. */
#include "chat_text.h"

#include "base/checked.h"

static const char chat_text_zeros[256];

/* Appends s and zero bits for it; false when that failed. */
static bool chat_text_grow(ChatText *t, StrView s) {
    strbuf_append_view(&t->text, s);
    size_t need = t->text.len / 8 + (t->text.len % 8 != 0);
    while (!t->bits.is_failed && t->bits.len < need)
        strbuf_append(&t->bits, chat_text_zeros,
                      min_size(sizeof chat_text_zeros, need - t->bits.len));
    return !t->text.is_failed && !t->bits.is_failed;
}

static void chat_text_set_bit(ChatText *t, size_t i) {
    t->bits.ptr[i >> 3] = (char)((unsigned char)t->bits.ptr[i >> 3] | 1u << (i & 7));
}

void chat_text_append_fixed(ChatText *t, StrView s) {
    size_t start = t->text.len;
    if (s.len == 0 || !chat_text_grow(t, s))
        return;
    for (size_t i = start; i < start + s.len; i++)
        chat_text_set_bit(t, i);
    t->has_trusted = true;
}

void chat_text_append_data(ChatText *t, StrView s) {
    if (s.len)
        (void)chat_text_grow(t, s);
}

void chat_text_append_range(ChatText *t, const ChatText *from, size_t off, size_t len) {
    size_t start = t->text.len;
    CHECK(off <= from->text.len && len <= from->text.len - off);
    if (len == 0 || !chat_text_grow(t, str_view(from->text.ptr + off, len)) || !from->has_trusted)
        return;
    for (size_t i = 0; i < len; i++)
        if (chat_text_is_trusted(from, off + i)) {
            chat_text_set_bit(t, start + i);
            t->has_trusted = true;
        }
}

bool chat_text_is_trusted(const ChatText *t, size_t byte) {
    CHECK(byte < t->text.len);
    return (unsigned char)t->bits.ptr[byte >> 3] >> (byte & 7) & 1;
}

Status chat_text_check(const ChatText *t, Err *err) {
    TRY(strbuf_check(&t->text, err));
    return strbuf_check(&t->bits, err);
}

void chat_text_clear(ChatText *t) {
    bool is_failed = t->text.is_failed || t->bits.is_failed;
    strbuf_clear(&t->text);
    strbuf_clear(&t->bits);
    t->text.is_failed = is_failed;
    t->has_trusted = false;
}

void chat_text_fini(ChatText *t) {
    strbuf_fini(&t->text);
    strbuf_fini(&t->bits);
    *t = (ChatText){0};
}
