// SPDX-License-Identifier: Apache-2.0
/* auth.h - who may ask: API keys, and which web pages.
 *
 * Path:     http.c asks before a body is read.
 * Owns:     an Auth owns its keys' digests.  Thread: read-only once open: any. */
#ifndef LILY_SERVER_AUTH_H
#define LILY_SERVER_AUTH_H

#include "base/sha256.h"
#include "base/str.h"

#include <stdint.h>

typedef struct Auth {
    char (*digests)[SHA256_TEXT_SIZE]; // [n_keys]
    size_t n_keys;                     // 0: nobody needs a key
    const char *cors;                  // origins separated by commas, or "*"; NULL: none
    const char *host;                  // the name that the server was told to listen on
    bool is_local;                     // Host and Origin are checked
} Auth;

/* Reads the keys: one a line, empty lines and those that begin with # are skipped. A file without
 * any is STATUS_FORMAT. path NULL: none. */
NODISCARD Status auth_open(Auth *out, const char *path, Err *err);
void auth_close(Auth *a);

/* The key of an "Authorization: Bearer KEY" header (NULL: none was sent). True when it is a known
 * one, or none is needed; *space is then the same number for the same key, 0 without keys.
 * Cost: the same time for every key, right or wrong. */
bool auth_check_key(const Auth *a, const char *authorization, uint64_t *space);

/* Whether a Host header names this machine: a loopback name or address, or what --host said. */
bool auth_check_host(const Auth *a, const char *host);
/* Whether a web page of this origin may ask: the server's own (by the Host header), or one that was
 * named. origin NULL: no browser asks. */
bool auth_check_origin(const Auth *a, const char *origin, const char *host);
/* Whether the origin was named by --cors, so that its page may read the answers. */
bool auth_is_cors(const Auth *a, const char *origin);

#endif
