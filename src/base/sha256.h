// SPDX-License-Identifier: Apache-2.0
/* sha256.h - SHA-256 as lower-case hexadecimal text (libnettle does the work).
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_SHA256_H
#define LILY_BASE_SHA256_H

#include <stddef.h>

enum { SHA256_TEXT_SIZE = 65 };

void sha256_text(const void *bytes, size_t len, char out[SHA256_TEXT_SIZE]);

#endif
