// SPDX-License-Identifier: Apache-2.0
/* fuzz_http.c - bytes over a socket into the running server: request lines, query strings, headers,
 * bodies, several requests behind each other.
 *
 * Input: what a client sends; when nothing comes back for a while it ends its sending half.
 * Must hold: no crash; an answer or the connection's end within seconds; an answer has a status
 * line, and JSON where it says so; the server is well behind it.
 * libFuzzer needs -detect_leaks=0 here: what the backend maps is not looked through for pointers.
 */
#define _GNU_SOURCE // memmem
#include "server/http.h"
#include "server/listen.h"

#include "base/json.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    FUZZ_WAIT_MS = 30000,
    FUZZ_QUIET_MS = 30,
    FUZZ_ANSWER_BYTES = 8 << 20,
    FUZZ_HEALTH_EVERY = 64
};

/* The server's parts, open until the process ends. */
static struct {
    ServerOptions options;
    Listen listen;
    Auth auth;
    Metrics metrics;
    Watch *watch;
    Runner *runner;
    Http *http;
    ServerParts parts;
    char dir[64], path[96];
} server;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void server_stop(void) {
    runner_end(server.runner);
    http_close(server.http);
    watch_close(server.watch);
    runner_close(server.runner);
    listen_close(&server.listen);
    auth_close(&server.auth);
    metrics_fini(&server.metrics);
    (void)rmdir(server.dir);
}

/* As server.c does, but that a socket file's clients are checked like those of a port. */
static void server_start(void) {
    Err err = {0};
    snprintf(server.dir, sizeof server.dir, "/tmp/lily-fuzz-XXXXXX");
    CHECK(mkdtemp(server.dir));
    snprintf(server.path, sizeof server.path, "%s/socket", server.dir);
    server.options = (ServerOptions){
        .model = "synth:micro",
        .engine = {.kind = BACKEND_CPU, .n_threads = 1, .ctx_tok = 256, .max_seqs = 2},
        .host = "127.0.0.1",
        .max_queue = 8,
        .idle_s = 60,
        .request_s = 20,
        .thinking_budget = -1,
        .version = "0"};
    WatchOptions watch = {.idle_s = 60, .max_connections = 64, .is_plain = true};
    metrics_init(&server.metrics);
    CHECK(auth_open(&server.auth, NULL, &err) == STATUS_OK);
    server.auth.host = "127.0.0.1";
    server.auth.is_local = true;
    server.auth.cors = "https://page.example";
    CHECK(listen_unix(&server.listen, server.path, &err) == STATUS_OK);
    CHECK(watch_open(&server.watch, &watch, &err) == STATUS_OK);
    CHECK(runner_open(&server.runner, &server.options, &server.metrics, NULL, &err) == STATUS_OK);
    server.parts = (ServerParts){.options = &server.options,
                                 .auth = &server.auth,
                                 .runner = server.runner,
                                 .watch = server.watch,
                                 .metrics = &server.metrics};
    CHECK(http_open(&server.http, &server.parts, &server.listen, 64, &err) == STATUS_OK);
    while (runner_state(server.runner) == RUNNER_LOADING)
        usleep(1000);
    CHECK(runner_state(server.runner) == RUNNER_READY);
    CHECK(atexit(server_stop) == 0);
}

/* Sends and reads to the end of the connection; behind a short silence the client ends its half. */
static void server_ask(StrBuf *answer, const void *data, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char piece[65536];
    size_t sent = 0;
    bool is_ended = false;
    memcpy(address.sun_path, server.path, strlen(server.path));
    CHECK(fd >= 0 && connect(fd, (const void *)&address, sizeof address) == 0);
    for (bool is_open = true; is_open;) {
        struct pollfd p = {.fd = fd, .events = (short)(POLLIN | (sent < size ? POLLOUT : 0))};
        int n_ready = poll(&p, 1, is_ended ? FUZZ_WAIT_MS : FUZZ_QUIET_MS);
        CHECK(n_ready > 0 || !is_ended); // silence
        if (p.revents & POLLOUT && sent < size) {
            ssize_t n =
                send(fd, (const char *)data + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent = n > 0 ? sent + (size_t)n : size; // it has closed
        } else if (p.revents) {
            ssize_t n = recv(fd, piece, sizeof piece, 0);
            is_open = n > 0;
            if (n > 0)
                strbuf_append(answer, piece, (size_t)n);
            CHECK(answer->len < FUZZ_ANSWER_BYTES);
        } else {
            (void)shutdown(fd, SHUT_WR);
            is_ended = true;
        }
    }
    close(fd);
}

/* A status line, and the JSON that the head promises; the answer to a HEAD has none. */
static void see_answer(StrView a, bool is_head) {
    if (a.len == 0)
        return;
    CHECK(a.len > 13 && (str_starts(a, STR("HTTP/1.1 ")) || str_starts(a, STR("HTTP/1.0 "))));
    long http_status = strtol(a.ptr + 9, NULL, 10);
    CHECK(http_status >= 100 && http_status < 600 && http_status != 500);
    size_t head = str_find(a, STR("\r\n\r\n"));
    CHECK(head != SIZE_MAX);
    StrView lines = str_view(a.ptr, head + 2);
    size_t at = str_find(lines, STR("Content-Length: "));
    if (is_head || at == SIZE_MAX ||
        str_find(lines, STR("Content-Type: application/json")) == SIZE_MAX)
        return;
    size_t length = (size_t)strtoull(a.ptr + at + 16, NULL, 10);
    if (length > a.len - head - 4) // cut off by the client's own end
        return;
    json_t *v = NULL;
    CHECK(json_read(&v, str_view(a.ptr + head + 4, length), "answer", NULL) == STATUS_OK);
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char health[] =
        "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    static unsigned n_asked;
    StrBuf answer = {0};
    if (!server.http)
        server_start();
    server_ask(&answer, data, size);
    size_t n_empty = 0; // lines before the first request, which are skipped
    while (n_empty < size && (data[n_empty] == '\r' || data[n_empty] == '\n'))
        n_empty++;
    see_answer(strbuf_view(&answer),
               str_starts(str_view((const char *)data + n_empty, size - n_empty), STR("HEAD ")));
    if (n_asked++ % FUZZ_HEALTH_EVERY == 0) {
        strbuf_clear(&answer);
        server_ask(&answer, health, sizeof health - 1);
        CHECK(str_find(strbuf_view(&answer), STR("\"status\":\"ready\"")) != SIZE_MAX);
    }
    strbuf_fini(&answer);
    return 0;
}
