// SPDX-License-Identifier: Apache-2.0
/* utf8.c - UTF-8 by the table of well-formed byte sequences.
 *
 * Owns:     nothing.  Thread: any.
 * Not here: normalisation and character classes (src/text/unicode.h). */
#include "utf8.h"

int utf8_decode(const char *s, size_t len, uint32_t *c) {
    if (len == 0)
        return 0;
    const unsigned char *p = (const unsigned char *)s;
    unsigned b0 = p[0];
    if (b0 < 0x80) {
        *c = b0;
        return 1;
    }
    if (b0 < 0xc2 || b0 > 0xf4)
        return -1;
    int n = b0 < 0xe0 ? 2 : b0 < 0xf0 ? 3 : 4;
    unsigned low = b0 == 0xe0 ? 0xa0 : b0 == 0xf0 ? 0x90 : 0x80;
    unsigned high = b0 == 0xed ? 0x9f : b0 == 0xf4 ? 0x8f : 0xbf;
    uint32_t v = b0 & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((size_t)i == len)
            return 0;
        if (p[i] < low || p[i] > high)
            return -i;
        v = v << 6 | (p[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *c = v;
    return n;
}

int utf8_encode(uint32_t c, char out[UTF8_MAX]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

bool utf8_is_valid(const char *s, size_t len, size_t *bad) {
    size_t off = 0;
    while (off < len) {
        uint32_t c;
        int n = utf8_decode(s + off, len - off, &c);
        if (n <= 0) {
            if (bad)
                *bad = off;
            return false;
        }
        off += (size_t)n;
    }
    return true;
}
