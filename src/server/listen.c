// SPDX-License-Identifier: Apache-2.0
/* listen.c - the socket that clients connect to.
 *
 * Owns:     the descriptor, and the path of a unix socket.  Thread: main. */
#define _GNU_SOURCE // SOCK_CLOEXEC
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 1024 };

static bool listen_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* Address and port as they came out. */
static void listen_name(Listen *l) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    char host[INET6_ADDRSTRLEN + 1] = "?", port[8] = "0";
    if (getsockname(l->fd, (void *)&address, &len) == 0)
        (void)getnameinfo((void *)&address, len, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    l->is_local = listen_is_loopback((void *)&address);
    snprintf(l->text, sizeof l->text, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

/* One address; -1 with errno. */
static int listen_one(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

Status listen_tcp(Listen *out, const char *host, int32_t port, Err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(host, service, &hints, &found);
    if (code)
        return err_set(err, STATUS_INVALID, "--host %s: %s", host, gai_strerror(code));
    Listen l = {.fd = -1};
    for (const struct addrinfo *a = found; a && l.fd < 0; a = a->ai_next)
        l.fd = listen_one(a);
    int why = errno;
    freeaddrinfo(found);
    if (l.fd < 0)
        return err_set(err, STATUS_IO, "cannot listen on %s port %d: %s%s", host, port,
                       strerror(why),
                       why == EADDRINUSE ? "; another program has it, choose one with --port" : "");
    listen_name(&l);
    *out = l;
    return STATUS_OK;
}

/* Whether a program answers at this socket file. */
static bool listen_is_alive(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_alive = fd >= 0 && connect(fd, (const void *)address, sizeof *address) == 0;
    if (fd >= 0)
        close(fd);
    return is_alive;
}

Status listen_unix(Listen *out, const char *path, Err *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat there;
    if (strlen(path) >= sizeof address.sun_path)
        return err_set(err, STATUS_INVALID, "--unix: expected at most %zu bytes, found %zu",
                       sizeof address.sun_path - 1, strlen(path));
    memcpy(address.sun_path, path, strlen(path));
    if (lstat(path, &there) == 0) {
        if (!S_ISSOCK(there.st_mode))
            return err_set(err, STATUS_IO, "--unix %s: there is something else", path);
        if (listen_is_alive(&address))
            return err_set(err, STATUS_IO, "--unix %s: another program listens there", path);
        (void)unlink(path);
    }
    Listen l = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                .is_local = true,
                .unix_path = path};
    mode_t mask = umask(0117); // owner and group
    bool is_good = l.fd >= 0 && bind(l.fd, (void *)&address, sizeof address) == 0 &&
                   listen(l.fd, LISTEN_BACKLOG) == 0;
    int why = errno;
    umask(mask);
    if (!is_good) {
        if (l.fd >= 0)
            close(l.fd);
        return err_errno(err, why, "listen on", path);
    }
    snprintf(l.text, sizeof l.text, "%s", path);
    *out = l;
    return STATUS_OK;
}

void listen_close(Listen *l) {
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    if (l->unix_path)
        (void)unlink(l->unix_path);
    l->unix_path = NULL;
}
