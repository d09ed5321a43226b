// SPDX-License-Identifier: Apache-2.0
/* http.h - the HTTP library set up: connections, heads, bodies.
 *
 * Path:     libmicrohttpd's threads -> http.c -> routes.c.
 * Owns:     the daemon.  Thread: http_open, http_close: main.
 * Not here: what routes answer (routes.c). */
#ifndef LILY_SERVER_HTTP_H
#define LILY_SERVER_HTTP_H

#include "server/listen.h"
#include "server/reply.h"

typedef struct Http Http;

/* Serves on listen->fd, which stays the caller's. parts is kept. STATUS_IO, STATUS_INVALID for a
 * certificate that cannot be used. */
NODISCARD Status http_open(Http **out, const ServerParts *parts, const Listen *listen,
                           int32_t max_connections, Err *err);
/* No job may be left: a suspended connection cannot be closed. */
void http_close(Http *h);

#endif
