// SPDX-License-Identifier: Apache-2.0
/* http.c - the HTTP library set up: connections, heads, bodies.
 *
 * Path:     a connection -> watch; a head -> checks; a body -> gathered; then routes.c.
 * Owns:     the daemon and its TLS files.  Thread: each connection has one of the library's. */
#define _GNU_SOURCE // strncasecmp
#include "server/http.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/routes.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HTTP_THREADS = 4,
    HTTP_HEAD_BYTES = 32 << 10,  // of a connection: its head, and pieces of its body
    HTTP_BODY_BYTES = 32 << 20,  // ten times the longest context as JSON
    HTTP_SKIP_BYTES = 256 << 20, // of a refused body that are read, so that the client sees why
    HTTP_PEM_BYTES = 1 << 20,
    HTTP_SEND_BYTES = 128 << 10, // that the system keeps for a reader; by itself it takes megabytes
};

struct Http {
    const ServerParts *parts;
    struct MHD_Daemon *daemon;
    StrBuf cert, key;
    uint64_t seed;
    _Atomic uint64_t n_calls;
};

/* ---- one request ---- */

static const char *http_header(const Call *c, const char *name) {
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

/* The client's request id if it may stand in a header and a log, else one of our own. */
static void http_request_id(Call *c, Http *h) {
    const char *given = http_header(c, "X-Request-Id");
    size_t n = 0;
    while (given && given[n] > ' ' && given[n] <= '~' && given[n] != '"' && n < 100)
        n++;
    if (given && n > 0 && given[n] == 0) {
        memcpy(c->request_id, given, n + 1);
        return;
    }
    uint64_t number = atomic_fetch_add(&h->n_calls, 1);
    snprintf(c->request_id, sizeof c->request_id, "%016llx%08llx",
             (unsigned long long)rng_u64(h->seed, number), (unsigned long long)number & 0xffffffff);
}

/* Clients without keys are told apart by their address. */
static uint64_t http_peer(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    uint64_t peer = 0;
    if (a && a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;
        peer = rng_mix(v4->sin_addr.s_addr);
    } else if (a && a->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)a;
        for (size_t i = 0; i < sizeof v6->sin6_addr.s6_addr; i++)
            peer = rng_mix(peer ^ v6->sin6_addr.s6_addr[i]);
    }
    return peer;
}

/* Whether a web page may ask at all: only one that the browser cannot have been led to. */
static void http_check_page(Call *c, const char *host, const char *origin) {
    const Auth *auth = c->parts->auth;
    if (auth_is_cors(auth, origin) && strlen(origin) < sizeof c->origin)
        memcpy(c->origin, origin, strlen(origin) + 1);
    if (c->parts->is_unix)
        return;
    if (!auth_check_host(auth, host))
        reply_refuse(c, 403, "permission_error", "host_not_allowed",
                     "Host: expected localhost, a loopback address or the name given by --host, "
                     "found %.100s",
                     host ? host : "none");
    if (!auth_check_origin(auth, origin, host))
        reply_refuse(c, 403, "permission_error", "origin_not_allowed",
                     "Origin: %.200s may not ask; --cors names pages that may", origin);
}

static bool http_is_json(const char *type) {
    size_t len = type ? strcspn(type, "; \t") : 0;
    return len == 16 && strncasecmp(type, "application/json", len) == 0;
}

static void http_check(Call *c, const char *method) {
    const char *host = http_header(c, "Host"), *origin = http_header(c, "Origin");
    const Route *route = c->route;
    bool is_preflight = strcmp(method, "OPTIONS") == 0;
    http_check_page(c, host, origin);
    bool has_key = auth_check_key(c->parts->auth, http_header(c, "Authorization"), &c->space);
    c->client = c->space ? c->space : http_peer(c->connection);
    if (!has_key && !is_preflight && route_needs_key(route))
        reply_refuse(c, 401, "invalid_request_error", "invalid_api_key",
                     "Authorization: expected \"Bearer \" and one of this server's API keys");
    if (route_is_none(route))
        reply_refuse(c, 404, "invalid_request_error", "not_found",
                     "there is no %.100s; /openapi.json lists what is there", c->path);
    else if (!is_preflight && !route_takes(route, method))
        reply_refuse(c, 405, "invalid_request_error", "method_not_allowed",
                     "%s takes %s, not %.20s", c->path, route_methods(route), method);
    if (is_preflight || !route_has_body(route))
        return;
    const char *type = http_header(c, "Content-Type");
    if (!http_is_json(type))
        reply_refuse(c, 415, "invalid_request_error", "unsupported_media_type",
                     "Content-Type: expected application/json, found %.100s", type ? type : "none");
    const char *length = http_header(c, "Content-Length");
    if (length && strtoull(length, NULL, 10) > HTTP_BODY_BYTES)
        reply_refuse(c, 413, "invalid_request_error", "too_large",
                     "the body has %.20s bytes, %d are the most", length, HTTP_BODY_BYTES);
}

static Call *http_call_open(Http *h, struct MHD_Connection *connection, const char *path,
                            const char *method) {
    Call *c = mem_zalloc(1, sizeof *c);
    if (!c)
        return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    c->parts = h->parts;
    c->connection = connection;
    c->entry = info ? info->socket_context : NULL;
    c->start_ns = clock_now_ns();
    c->route = route_find(path, &c->name);
    snprintf(c->path, sizeof c->path, "%s", path);
    c->name = c->name ? c->path + (c->name - path) : NULL;
    if (strlen(path) >= sizeof c->path)
        c->route = route_find("", &c->name); // none
    for (char *p = c->path; *p; p++)         // it goes into the log
        *p = *p > ' ' && *p <= '~' && *p != '"' ? *p : '?';
    http_request_id(c, h);
    http_check(c, method);
    return c;
}

static enum MHD_Result http_preflight(Call *c) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    (void)MHD_add_response_header(response, "Allow", route_methods(c->route));
    if (c->origin[0]) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", c->origin);
        (void)MHD_add_response_header(response, "Vary", "Origin");
        (void)MHD_add_response_header(response, "Access-Control-Allow-Methods",
                                      route_methods(c->route));
        (void)MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                      "Authorization, Content-Type, X-Request-Id");
        (void)MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    enum MHD_Result result = MHD_queue_response(c->connection, 204, response);
    MHD_destroy_response(response);
    c->http_status = 204;
    return result;
}

/* A piece of the body: kept, or skipped so that the client reads the refusal and no reset. */
static enum MHD_Result http_piece(Call *c, const char *bytes, size_t size) {
    c->n_body += size;
    if (c->n_body > HTTP_BODY_BYTES)
        reply_refuse(c, 413, "invalid_request_error", "too_large",
                     "the body has more than %d bytes", HTTP_BODY_BYTES);
    if (c->refusal.http_status == 0 && route_has_body(c->route)) {
        strbuf_append(&c->body, bytes, size);
        if (!c->body.is_failed)
            return MHD_YES;
        reply_refuse(c, 503, "server_error", "out_of_memory", "out of memory: the body");
    }
    strbuf_fini(&c->body);
    return c->n_body > HTTP_SKIP_BYTES ? MHD_NO : MHD_YES;
}

static enum MHD_Result http_access(void *ctx, struct MHD_Connection *connection, const char *path,
                                   const char *method, const char *version, const char *bytes,
                                   size_t *size, void **con_cls) {
    Http *h = ctx;
    Call *c = *con_cls;
    UNUSED(version);
    if (!c) {
        c = *con_cls = http_call_open(h, connection, path, method);
        if (!c || !c->entry)
            return MHD_NO;
        watch_note_head(h->parts->watch, c->entry);
        // Who asks before it sends is told now.
        return c->refusal.http_status && http_header(c, "Expect") ? reply_refusal(c) : MHD_YES;
    }
    if (*size) {
        size_t n = *size;
        *size = 0;
        return http_piece(c, bytes, n);
    }
    if (!c->job)
        watch_note_body(h->parts->watch, c->entry);
    if (c->refusal.http_status)
        return reply_refusal(c);
    if (strcmp(method, "OPTIONS") == 0)
        return http_preflight(c);
    return route_answer(c);
}

/* The end of a request, whatever became of it. */
static void http_completed(void *ctx, struct MHD_Connection *connection, void **con_cls,
                           enum MHD_RequestTerminationCode code) {
    Http *h = ctx;
    Call *c = *con_cls;
    UNUSED(connection);
    if (!c)
        return;
    *con_cls = NULL;
    int http_status = c->http_status ? c->http_status : 499;
    if (c->job && code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        job_cancel(c->job, JOB_GONE);
    if (c->entry)
        watch_note_end(h->parts->watch, c->entry);
    metrics_count_answer(h->parts->metrics, route_number(c->route), http_status);
    if (!c->job) // a job has its own line
        log_printf(h->parts->log, LOG_INFO, "request id=%s route=%s status=%d total_ms=%.1f%s%s%s",
                   c->request_id, c->path, http_status, clock_seconds_since(c->start_ns) * 1e3,
                   c->refusal.http_status ? " error=\"" : "", c->refusal.message,
                   c->refusal.http_status ? "\"" : "");
    job_release(c->job);
    strbuf_fini(&c->body);
    mem_free(c);
}

/* ---- connections ---- */

static void http_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                            enum MHD_ConnectionNotificationCode code) {
    Http *h = ctx;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        watch_remove(h->parts->watch, *socket_context);
        *socket_context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int size = HTTP_SEND_BYTES;
    if (info)
        (void)setsockopt(info->connect_fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    *socket_context = info ? watch_add(h->parts->watch, info->connect_fd) : NULL;
}

/* The library's own words: about clients that vanish and send nonsense. */
static void http_log(void *ctx, const char *fmt, va_list args) {
    const Http *h = ctx;
    char line[512];
    vsnprintf(line, sizeof line, fmt, args);
    line[strcspn(line, "\r\n")] = 0;
    log_printf(h->parts->log, LOG_DEBUG, "http: %s", line);
}

static Status http_tls(Http *h, Err *err) {
    const ServerOptions *o = h->parts->options;
    TRY(file_read_all(&h->cert, o->tls_cert, HTTP_PEM_BYTES, err));
    TRY(file_read_all(&h->key, o->tls_key, HTTP_PEM_BYTES, err));
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(err, STATUS_UNSUPPORTED, "--tls-cert: the HTTP library has no TLS");
    return STATUS_OK;
}

static Status http_start(Http *h, const Listen *listen, int32_t max_connections, Err *err) {
    bool is_tls = h->parts->options->tls_cert != NULL;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (is_tls ? MHD_USE_TLS : 0u);
    if (is_tls)
        TRY(http_tls(h, err));
    const struct MHD_OptionItem tls[] = {
        {is_tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, h->cert.ptr},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, h->key.ptr},
        {MHD_OPTION_END, 0, NULL}};
    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_access, h, MHD_OPTION_EXTERNAL_LOGGER, http_log, h,
        MHD_OPTION_LISTEN_SOCKET, listen->fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)h->parts->options->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HTTP_HEAD_BYTES, MHD_OPTION_NOTIFY_COMPLETED, http_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, http_connection, h, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (!h->daemon)
        return is_tls ? err_set(err, STATUS_INVALID,
                                "cannot start the HTTP server; do %s and %s hold a PEM certificate "
                                "and its key?",
                                h->parts->options->tls_cert, h->parts->options->tls_key)
                      : err_set(err, STATUS_IO, "cannot start the HTTP server");
    return STATUS_OK;
}

Status http_open(Http **out, const ServerParts *parts, const Listen *listen,
                 int32_t max_connections, Err *err) {
    Http *h = mem_zalloc(1, sizeof *h);
    if (!h)
        return err_memory(err, "HTTP server", sizeof *h);
    h->parts = parts;
    h->seed = rng_u64((uint64_t)clock_now_ns(), (uint64_t)getpid());
    Status status = http_start(h, listen, max_connections, err);
    if (status != STATUS_OK) {
        http_close(h);
        return status;
    }
    *out = h;
    return STATUS_OK;
}

void http_close(Http *h) {
    if (!h)
        return;
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    strbuf_fini(&h->cert);
    strbuf_fini(&h->key);
    mem_free(h);
}
