// SPDX-License-Identifier: Apache-2.0
/* unicode.h - the character properties that splitting and normalising need, from generated tables.
 *
 * Path:     pretoken.c asks for classes, normalize.c for decomposition and composition.
 * Owns:     constant data.  Thread: any.
 * Source:   categories of Unicode 16, normalisation data of Unicode 9: the versions of the
 *           reference tokenizer, so that ids agree (tools/gen_unicode.py). */
#ifndef LILY_TEXT_UNICODE_H
#define LILY_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    UNICODE_LETTER = 1, // general category L
    UNICODE_MARK = 2,   // M
    UNICODE_NUMBER = 4, // N
    UNICODE_SPACE = 8,  // White_Space property
    UNICODE_CCC = 16,   // canonical combining class is not 0
    UNICODE_QC = 32,    // NFC_Quick_Check is No or Maybe
    UNICODE_PAGE = 128, // code points of one table page
    UNICODE_MAX_DECOMP = 4,
    UNICODE_LAST = 0x10ffff,
};

extern const uint8_t unicode_flag_index[(UNICODE_LAST + 1) / UNICODE_PAGE];
extern const uint8_t unicode_flag_pages[];

/* The flags above of a code point <= UNICODE_LAST. */
static inline unsigned unicode_flags(uint32_t c) {
    return unicode_flag_pages[(size_t)unicode_flag_index[c / UNICODE_PAGE] * UNICODE_PAGE +
                              c % UNICODE_PAGE];
}

/* The code point at s and its length n in bytes; s must hold a whole valid character. */
static inline uint32_t unicode_read(const char *s, size_t *n) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *n = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *n = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *n = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *n = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* Canonical combining class, 0..254. */
unsigned unicode_ccc(uint32_t c);

/* Full canonical decomposition of c into out, not yet put in canonical order; returns its length,
 * 1 (c itself) to UNICODE_MAX_DECOMP. */
size_t unicode_decompose(uint32_t c, uint32_t out[UNICODE_MAX_DECOMP]);

/* The primary composite of the pair a, b; 0 when there is none. */
uint32_t unicode_compose(uint32_t a, uint32_t b);

#endif
