// SPDX-License-Identifier: Apache-2.0
/* pretoken.c - the splitting expression as a scanner: alternatives in order, no backtracking.
 *
 * Owns:     nothing.  Thread: any. */
#include "pretoken.h"

#include "unicode.h"

enum {
    PRETOKEN_BREAK = 0x100, // CR or LF
    PRETOKEN_END = 0x200,   // no character: the end of the text
};

/* A character's properties and length; n is 0 and flags PRETOKEN_END at the end of the text. */
typedef struct PretokenChar {
    unsigned flags;
    size_t n; // bytes
} PretokenChar;

static inline PretokenChar pretoken_look(StrView text, size_t at) {
    if (at >= text.len)
        return (PretokenChar){PRETOKEN_END, 0};
    unsigned char b = (unsigned char)text.ptr[at];
    if (b < 0x80) {
        unsigned flags = unicode_flag_pages[unicode_flag_index[0] * UNICODE_PAGE + b];
        return (PretokenChar){b == '\r' || b == '\n' ? flags | PRETOKEN_BREAK : flags, 1};
    }
    size_t n;
    uint32_t c = unicode_read(text.ptr + at, &n);
    return (PretokenChar){unicode_flags(c), n};
}

StrView pretoken_expression(PretokenRule rule) {
    if (rule == PRETOKEN_QWEN2)
        return STR("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    return STR("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
               " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
}

/* Length of a contraction that starts at `at`, where an apostrophe stands; 0: none. */
static size_t pretoken_contraction(StrView text, size_t at) {
    size_t left = text.len - at;
    if (left < 2)
        return 0;
    // Case is folded for ASCII letters; the one other character that folds to one of them is
    // U+017F, the long s.
    char a = (char)(text.ptr[at + 1] | 0x20);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (left < 3)
        return 0;
    char b = (char)(text.ptr[at + 2] | 0x20);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    if (text.ptr[at + 1] == '\xc5' && text.ptr[at + 2] == '\xbf')
        return 3;
    return 0;
}

/* First offset from `at` whose character has none of the flags. */
static size_t pretoken_run(StrView text, size_t at, unsigned flags) {
    for (;;) {
        PretokenChar c = pretoken_look(text, at);
        if (!(c.flags & flags))
            return at;
        at += c.n;
    }
}

/* A run of characters that have none of the flags, then line breaks. */
static size_t pretoken_symbols(StrView text, size_t at, unsigned flags) {
    for (;;) {
        PretokenChar c = pretoken_look(text, at);
        if (c.flags & (flags | PRETOKEN_END))
            break;
        at += c.n;
    }
    return pretoken_run(text, at, PRETOKEN_BREAK);
}

/* White space starts at `at`: through the last line break of the run if it has one; else all of it
 * at the end of the text; else all but its last character, which the next piece may want. */
static size_t pretoken_space(StrView text, size_t at) {
    size_t end = at, last = at, after_break = at;
    for (;;) {
        PretokenChar c = pretoken_look(text, end);
        if (!(c.flags & UNICODE_SPACE))
            break;
        last = end;
        end += c.n;
        if (c.flags & PRETOKEN_BREAK)
            after_break = end;
    }
    if (after_break > at)
        return after_break;
    if (end == text.len || last == at)
        return end;
    return last;
}

size_t pretoken_end(PretokenRule rule, StrView text, size_t at) {
    const unsigned word = rule == PRETOKEN_QWEN2 ? UNICODE_LETTER : UNICODE_LETTER | UNICODE_MARK;
    const unsigned no_symbol = word | UNICODE_NUMBER | UNICODE_SPACE;
    PretokenChar c = pretoken_look(text, at);
    if (c.flags & word)
        return pretoken_run(text, at + c.n, word);
    if (text.ptr[at] == '\'') {
        size_t n = pretoken_contraction(text, at);
        if (n)
            return at + n;
    }
    if (c.flags & UNICODE_NUMBER)
        return at + c.n;
    PretokenChar next = pretoken_look(text, at + c.n);
    if (next.flags & word && !(c.flags & PRETOKEN_BREAK))
        return pretoken_run(text, at + c.n + next.n, word);
    if (!(c.flags & no_symbol))
        return pretoken_symbols(text, at + c.n, no_symbol);
    if (text.ptr[at] == ' ' && !(next.flags & (no_symbol | PRETOKEN_END)))
        return pretoken_symbols(text, at + 1 + next.n, no_symbol);
    return pretoken_space(text, at);
}
