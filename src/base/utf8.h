// SPDX-License-Identifier: Apache-2.0
/* utf8.h - decoding, encoding and checking of UTF-8 byte by byte.
 *
 * Owns:     nothing.  Thread: any.
 * Not here: normalisation and character classes (src/text/unicode.h). */
#ifndef LILY_BASE_UTF8_H
#define LILY_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_MAX = 4 };

/* Reads one code point at s.
 *
 * s, len  bytes; len may be 0                                       (in)
 * c       the code point, set only when the result is > 0           (out)
 * Returns the number of bytes used, 1..4; 0 when s[0..len) is the proper beginning of a valid
 * character (or len is 0); -n when the first n bytes (1..3) are ill-formed: n is the length of the
 * maximal subpart, which one U+FFFD replaces.
 * Source: Unicode 16, table 3-7 and section 3.9 (U+FFFD substitution of maximal subparts). */
int utf8_decode(const char *s, size_t len, uint32_t *c);

/* Writes c (a scalar value) to out and returns its length, 1..4. */
int utf8_encode(uint32_t c, char out[UTF8_MAX]);

/* True when all of s is valid UTF-8; else *bad (NULL allowed) is the offset of the first bad byte.
 */
bool utf8_is_valid(const char *s, size_t len, size_t *bad);

#endif
