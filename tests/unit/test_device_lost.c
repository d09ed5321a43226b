// SPDX-License-Identifier: Apache-2.0
/* test_device_lost.c - a server whose device fails in the middle of answers: every answer in work
 * ends with an error that says so, /health tells the truth from then on, and the program still
 * stops in order.
 *
 * Path:     make unit.
 * Owns:     a server on a free port of 127.0.0.1, over a device of hashes.  Thread: main asks. */
#define _GNU_SOURCE // sockets, pthread_sigmask
#include "fake_backend.h"
#include "server/server.h"

#include "unit.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_SIZE = 32 << 20 }; // what sockets hold, and more

static atomic_int port;
static atomic_bool is_ready;
static pthread_t thread;
static Status ended;
static char last_log[256];

static void see_log(void *ctx, LogLevel level, const char *line) {
    UNUSED(ctx);
    UNUSED(level);
    const char *at = strstr(line, "listening on http://127.0.0.1:");
    if (at)
        atomic_store(&port, (int)strtol(at + strlen("listening on http://127.0.0.1:"), NULL, 10));
    if (strstr(line, "ready: "))
        atomic_store(&is_ready, true);
}

static void *serve(void *ctx) {
    UNUSED(ctx);
    static const ServerOptions options = {.model = "synth:micro",
                                          .engine = {.kind = BACKEND_CPU,
                                                     .n_threads = 1,
                                                     .max_seqs = 4,
                                                     .cache_slots = 4,
                                                     .ctx_tok = 262144},
                                          .max_queue = 16,
                                          .thinking_budget = -1,
                                          .version = "test"};
    static const Log log = {see_log, NULL};
    Err err = {0};
    ended = server_run(&options, &log, &err);
    snprintf(last_log, sizeof last_log, "%.200s", err.text);
    return NULL;
}

static void nap(void) {
    const struct timespec ms = {.tv_nsec = 1000000};
    nanosleep(&ms, NULL);
}

static int ask(const char *method, const char *path, const char *body) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atomic_load(&port)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 60};
    char text[1024];
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int n = snprintf(text, sizeof text,
                     "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     method, path, atomic_load(&port), strlen(body), body);
    assert_int_equal(write(fd, text, (size_t)n), n);
    return fd;
}

/* Reads until the other side closes, or until `until` has come; appends to `text`. */
static void hear(int fd, char *text, const char *until) {
    size_t len = strlen(text);
    while (!until || !strstr(text, until)) {
        assert_true(len + 1 < ANSWER_SIZE);
        ssize_t n = read(fd, text + len, ANSWER_SIZE - 1 - len);
        assert_true(n >= 0);
        if (n == 0)
            break;
        len += (size_t)n;
        text[len] = 0;
    }
}

static void whole(char *text, const char *method, const char *path, const char *body) {
    int fd = ask(method, path, body);
    text[0] = 0;
    hear(fd, text, NULL);
    close(fd);
}

static void expect_in(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("no %s in:\n%.2000s", part, text);
}

#define CHAT "/v1/chat/completions"
#define HI                                                                                         \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"ignore_eos\":true,\"temperature\":"  \
    "0,"

static void test_answers_in_work_end_with_an_error_and_health_tells(void **state) {
    UNUSED(state);
    char *text = test_malloc(ANSWER_SIZE), *other = test_malloc(ANSWER_SIZE);
    whole(text, "GET", "/health", "");
    expect_in(text, " 200 ");
    expect_in(text, "\"ready\"");
    whole(text, "POST", CHAT, HI "\"max_tokens\":3}");
    expect_in(text, " 200 ");

    int plain = ask("POST", CHAT, HI "\"max_tokens\":100000}");
    do
        whole(text, "GET", "/health", "");
    while (!strstr(text, "\"active\":1"));
    int stream = ask("POST", CHAT, HI "\"max_tokens\":100000,\"stream\":true}");
    text[0] = other[0] = 0;
    hear(stream, text, "\"content\":\""); // both are in work
    atomic_store(&fake.is_lost, true);
    hear(stream, text, NULL);
    hear(plain, other, NULL);
    close(stream);
    close(plain);
    expect_in(text, " 200 ");
    expect_in(text, "event: error\ndata: {\"error\":");
    expect_in(text, "device_error");
    expect_in(text, "the step was not taken");
    expect_in(text, "data: [DONE]");
    assert_null(strstr(text, "\"finish_reason\":\"stop\""));
    expect_in(other, " 500 ");
    expect_in(other, "device_error");

    for (int i = 0; i < 2; i++) { // and it stays so
        whole(text, "GET", "/health", "");
        expect_in(text, " 503 ");
        expect_in(text, "\"failed\"");
        whole(text, "POST", CHAT, HI "\"max_tokens\":3}");
        expect_in(text, " 503 ");
        expect_in(text, "the model's device has failed");
    }
    whole(text, "GET", "/metrics", "");
    expect_in(text, "lily_ready 0");
    test_free(other);
    test_free(text);
}

static void test_it_stops_in_order(void **state) {
    UNUSED(state);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (ended != STATUS_OK)
        fail_msg("%s", last_log);
}

static int open_all(void **state) {
    UNUSED(state);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM); // the server's thread alone takes it
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) || pthread_create(&thread, NULL, serve, NULL))
        return -1;
    for (int i = 0; i < 60000 && !(atomic_load(&is_ready) && atomic_load(&port)); i++)
        nap();
    return atomic_load(&is_ready) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_in_work_end_with_an_error_and_health_tells),
        cmocka_unit_test(test_it_stops_in_order),
    };
    return cmocka_run_group_tests(tests, open_all, NULL);
}
