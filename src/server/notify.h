// SPDX-License-Identifier: Apache-2.0
/* notify.h - tells the service manager how far the server is.
 *
 * Path:     server.c.
 * Owns:     nothing.  Thread: any.
 * Source:   sd_notify(3): datagrams to the unix socket that $NOTIFY_SOCKET names. */
#ifndef LILY_SERVER_NOTIFY_H
#define LILY_SERVER_NOTIFY_H

/* Sends text such as "READY=1"; does nothing where nobody asked for it. */
void notify_send(const char *text);

#endif
