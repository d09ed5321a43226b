// SPDX-License-Identifier: Apache-2.0
/* server.c - from the options to the end: bind, load, serve, stop.
 *
 * Path:     listen -> watch, runner (loads) -> http -> signals -> drain -> the same backwards.
 * Owns:     all parts.  Thread: main. */
#define _GNU_SOURCE // sigtimedwait
#include "server/server.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "server/http.h"
#include "server/notify.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

enum {
    SERVER_CONNECTIONS = 4096,
    SERVER_SPARE_FDS = 48, // the program's own: threads' epolls, files, a device
    SERVER_POLL_MS = 100,
    SERVER_LAST_MS = 1000, // for last bytes to leave
};

typedef struct Server {
    ServerOptions options;
    const Log *log;
    Listen listen;
    Auth auth;
    Metrics metrics;
    ServerParts parts;
    Runner *runner;
    Watch *watch;
    Http *http;
    sigset_t signals, before;
    bool is_loading; // it was told to stop while the model was being read
} Server;

static Status server_settle(ServerOptions *o, Err *err) {
    if (!o->tls_cert != !o->tls_key)
        return err_set(err, STATUS_INVALID, "--tls-cert and --tls-key go together");
    if (o->unix_path && o->tls_cert)
        return err_set(err, STATUS_INVALID, "--tls-cert does not go with --unix");
    o->host = o->host ? o->host : "127.0.0.1";
    o->max_queue = o->max_queue < 0 ? 64 : o->max_queue;
    o->idle_s = o->idle_s ? o->idle_s : 60;
    o->request_s = o->request_s ? o->request_s : 3600;
    o->stop_s = o->stop_s ? o->stop_s : 30;
    return STATUS_OK;
}

/* Connections that the process may hold, behind raising its limit of descriptors. */
static int32_t server_max_connections(const ServerOptions *o) {
    struct rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
    int32_t wanted = o->max_connections ? o->max_connections : SERVER_CONNECTIONS;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = limit;
        rlim_t enough = (rlim_t)wanted + SERVER_SPARE_FDS;
        raised.rlim_cur = limit.rlim_max < enough ? limit.rlim_max : enough;
        if (raised.rlim_cur > limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &raised) == 0)
            limit = raised;
    }
    int32_t fit = limit.rlim_cur > (rlim_t)wanted + SERVER_SPARE_FDS
                      ? wanted
                      : (int32_t)limit.rlim_cur - SERVER_SPARE_FDS;
    return max_i32(fit, 8);
}

static Status server_open(Server *s, Err *err) {
    const ServerOptions *o = &s->options;
    TRY(auth_open(&s->auth, o->api_keys, err));
    TRY(o->unix_path ? listen_unix(&s->listen, o->unix_path, err)
                     : listen_tcp(&s->listen, o->host, o->port, err));
    if (!s->listen.is_local && s->auth.n_keys == 0 && !o->is_open)
        return err_set(err, STATUS_INVALID,
                       "%s can be reached from other machines: name a file of API keys with "
                       "--api-keys, or say --no-keys",
                       s->listen.text);
    s->auth.cors = o->cors;
    s->auth.host = o->host;
    s->auth.is_local = s->listen.is_local;
    int32_t n = server_max_connections(o);
    WatchOptions watch = {.idle_s = o->idle_s, .max_connections = n, .is_plain = !o->tls_cert};
    TRY(watch_open(&s->watch, &watch, err));
    TRY(runner_open(&s->runner, o, &s->metrics, s->log, err));
    s->parts = (ServerParts){.options = o,
                             .log = s->log,
                             .auth = &s->auth,
                             .runner = s->runner,
                             .watch = s->watch,
                             .metrics = &s->metrics,
                             .is_unix = o->unix_path != NULL};
    TRY(http_open(&s->http, &s->parts, &s->listen, n, err));
    log_printf(s->log, LOG_INFO, "listening on %s%s%s (up to %d connections)",
               o->unix_path  ? "unix:"
               : o->tls_cert ? "https://"
                             : "http://",
               s->listen.text, o->unix_path ? "" : "/", n);
    return STATUS_OK;
}

/* Waits up to timeout_ms for a signal that ends the program. */
static bool server_is_told(const Server *s, int timeout_ms) {
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    int number;
    do
        number = sigtimedwait(&s->signals, NULL, &timeout);
    while (number < 0 && errno == EINTR);
    return number > 0;
}

/* Until the program is told to stop, or the model cannot be opened. */
static Status server_serve(Server *s, Err *err) {
    bool was_ready = false;
    while (!server_is_told(s, SERVER_POLL_MS)) {
        RunnerState state = runner_state(s->runner);
        if (state == RUNNER_FAILED && !was_ready) {
            runner_failure(s->runner, err);
            return err->code;
        }
        if (state == RUNNER_READY && !was_ready) {
            was_ready = true;
            log_printf(s->log, LOG_INFO, "ready: %s, context %d tokens",
                       runner_model(s->runner)->name, runner_model(s->runner)->limit_tok);
            notify_send("READY=1");
        }
    }
    return STATUS_OK;
}

/* Answers in work may end; a second signal ends them at once. */
static void server_drain(Server *s) {
    int64_t end_ns = clock_now_ns() + s->options.stop_s * INT64_C(1000000000);
    notify_send("STOPPING=1");
    runner_drain(s->runner);
    log_printf(s->log, LOG_INFO, "stopping: %d answers in work", runner_n_live(s->runner));
    while (runner_n_live(s->runner) + watch_n_jobs(s->watch) > 0 && clock_now_ns() < end_ns &&
           !server_is_told(s, SERVER_POLL_MS))
        ;
    runner_end(s->runner); // no connection stays suspended behind it
    end_ns = clock_now_ns() + SERVER_LAST_MS * INT64_C(1000000);
    while (watch_n_jobs(s->watch) > 0 && clock_now_ns() < end_ns)
        (void)server_is_told(s, SERVER_POLL_MS);
}

static void server_close(Server *s) {
    if (s->runner)
        runner_end(s->runner);
    http_close(s->http);
    watch_close(s->watch);
    runner_close(s->runner);
    listen_close(&s->listen);
    auth_close(&s->auth);
    metrics_fini(&s->metrics);
    CHECK(pthread_sigmask(SIG_SETMASK, &s->before, NULL) == 0);
}

static Status server_run_in(Server *s, Err *err) {
    TRY(server_open(s, err));
    TRY(server_serve(s, err));
    s->is_loading = runner_state(s->runner) == RUNNER_LOADING;
    if (!s->is_loading)
        server_drain(s);
    return STATUS_OK;
}

Status server_run(const ServerOptions *options, const Log *log, Err *err) {
    Server *s = mem_zalloc(1, sizeof *s);
    if (!s)
        return err_memory(err, "server", sizeof *s);
    s->options = *options;
    s->log = log;
    s->listen.fd = -1;
    Status status = server_settle(&s->options, err);
    if (status != STATUS_OK) {
        mem_free(s);
        return status;
    }
    metrics_init(&s->metrics);
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, SIGINT);
    // Every thread inherits it, so that only server_is_told takes them.
    CHECK(pthread_sigmask(SIG_BLOCK, &s->signals, &s->before) == 0);
    status = server_run_in(s, err);
    if (s->is_loading) {
        // Reading weights may take minutes and cannot be ended: the threads go with the process.
        listen_close(&s->listen);
        return status;
    }
    server_close(s);
    mem_free(s);
    return status;
}
