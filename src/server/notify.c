// SPDX-License-Identifier: Apache-2.0
/* notify.c - tells the service manager how far the server is.
 *
 * Owns:     nothing.  Thread: any. */
#define _GNU_SOURCE // SOCK_CLOEXEC
#include "server/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_send(const char *text) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    if ((len < 2) || (*path != '/' && *path != '@') || len >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, len);
    if (*path == '@') // a name without a file
        address.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const void *)&address,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
}
