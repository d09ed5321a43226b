// SPDX-License-Identifier: Apache-2.0
/* listen.h - the socket that clients connect to.
 *
 * Path:     server.c opens it before the weights are read and hands it to the HTTP library.
 * Owns:     the descriptor, and the path of a unix socket.  Thread: main. */
#ifndef LILY_SERVER_LISTEN_H
#define LILY_SERVER_LISTEN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Listen {
    int fd;
    bool is_local;         // only this machine can reach it: loopback or a unix socket
    char text[256];        // "127.0.0.1:8080", "[::1]:8080" or the path
    const char *unix_path; // to be removed at the end; borrowed; NULL: none
} Listen;

/* Binds and listens. port 0: any free one (text tells which). STATUS_IO names address and reason.
 */
NODISCARD Status listen_tcp(Listen *out, const char *host, int32_t port, Err *err);
/* A socket file that nobody listens on any more is replaced; anything else there is refused. */
NODISCARD Status listen_unix(Listen *out, const char *path, Err *err);
void listen_close(Listen *l);

#endif
