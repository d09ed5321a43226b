// SPDX-License-Identifier: Apache-2.0
/* chat_text.h - text with one bit per byte that tells who wrote it: the template or a message.
 *
 * Path:     chat.c writes the prompt into one; the tokenizer reads the bits so that a control token
 *           spelled out in a message stays text.
 * Owns:     a ChatText owns its bytes and bits.  Thread: one at a time. */
#ifndef LILY_TEXT_CHAT_TEXT_H
#define LILY_TEXT_CHAT_TEXT_H

#include "base/str.h"

#include <stdint.h>

/* {0} is empty. Failure is sticky as in StrBuf: see chat_text_check. */
typedef struct ChatText {
    StrBuf text;
    StrBuf bits;      // bit i & 7 of byte i >> 3: byte i of text came from the template
    bool has_trusted; // any bit is set
} ChatText;

/* Appends template text (trusted) or message text. */
void chat_text_append_fixed(ChatText *t, StrView s);
void chat_text_append_data(ChatText *t, StrView s);

/* Appends bytes [off, off + len) of `from` with their bits. */
void chat_text_append_range(ChatText *t, const ChatText *from, size_t off, size_t len);

bool chat_text_is_trusted(const ChatText *t, size_t byte);

/* STATUS_MEMORY when an append failed. */
NODISCARD Status chat_text_check(const ChatText *t, Err *err);
void chat_text_clear(ChatText *t); // keeps the memory and a failure
void chat_text_fini(ChatText *t);

#endif
