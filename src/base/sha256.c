// SPDX-License-Identifier: Apache-2.0
/* sha256.c - SHA-256 by libnettle.
 *
 * Owns:     nothing.  Thread: any. */
#include "sha256.h"

#include <nettle/sha2.h>
#include <stdint.h>

void sha256_text(const void *bytes, size_t len, char out[SHA256_TEXT_SIZE]) {
    struct sha256_ctx ctx;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&ctx);
    sha256_update(&ctx, len, bytes);
    sha256_digest(&ctx, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[64] = 0;
}
