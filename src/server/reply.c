// SPDX-License-Identifier: Apache-2.0
/* reply.c - the ways to answer a request.
 *
 * Owns:     nothing past a call.  Thread: the connection's. */
#include "server/reply.h"

#include "server/routes.h"

#include <stdarg.h>

enum {
    REPLY_BLOCK = 16 << 10, // bytes that the library asks a stream for at once
    REPLY_RETRY_S = 2,
    REPLY_HEADER = 1024, // bytes of the unknown fields' header
};

void reply_refuse(Call *c, int http_status, const char *type, const char *code, const char *fmt,
                  ...) {
    Refusal *r = &c->refusal;
    if (r->http_status)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
    r->http_status = http_status;
    r->type = type;
    r->code = code;
}

/* Field names come from the client: only what a header may hold goes into one. */
static void reply_add_unknown(struct MHD_Response *response, const char *names) {
    char text[REPLY_HEADER];
    size_t n = 0;
    for (const char *p = names; *p && n < sizeof text - 1; p++)
        text[n++] = *p >= ' ' && *p <= '~' ? *p : '?';
    text[n] = 0;
    (void)MHD_add_response_header(response, "X-Lily-Unknown-Fields", text);
}

static void reply_add_headers(const Call *c, struct MHD_Response *response, int http_status) {
    char text[64];
    (void)MHD_add_response_header(response, "X-Request-Id", c->request_id);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (c->unknown)
        reply_add_unknown(response, c->unknown);
    if (c->origin[0]) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", c->origin);
        (void)MHD_add_response_header(response, "Vary", "Origin");
        (void)MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                      "X-Request-Id, X-Lily-Unknown-Fields, Retry-After");
    }
    if (http_status == 429 || http_status == 503) {
        snprintf(text, sizeof text, "%d", REPLY_RETRY_S);
        (void)MHD_add_response_header(response, "Retry-After", text);
    }
    if (http_status == 401)
        (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (http_status == 405)
        (void)MHD_add_response_header(response, "Allow", route_methods(c->route));
}

/* Queues and forgets a response; out of memory closes the connection. */
static enum MHD_Result reply_queue(Call *c, int http_status, struct MHD_Response *response) {
    if (!response)
        return MHD_NO;
    reply_add_headers(c, response, http_status);
    enum MHD_Result result = MHD_queue_response(c->connection, (unsigned)http_status, response);
    MHD_destroy_response(response);
    if (result == MHD_YES)
        c->http_status = http_status;
    return result;
}

enum MHD_Result reply_bytes(Call *c, int http_status, const char *content_type, StrView body) {
    struct MHD_Response *response = MHD_create_response_from_buffer(
        body.len, (void *)(body.len ? body.ptr : ""), MHD_RESPMEM_MUST_COPY);
    if (response && content_type)
        (void)MHD_add_response_header(response, "Content-Type", content_type);
    if (response)
        (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    if (response && content_type && strncmp(content_type, "text/html", 9) == 0)
        (void)MHD_add_response_header(response, "Content-Security-Policy",
                                      "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                      "'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
                                      "form-action 'none'; frame-ancestors 'none'");
    return reply_queue(c, http_status, response);
}

enum MHD_Result reply_refusal(Call *c) {
    StrBuf body = {0};
    wire_error_json(&body, c->refusal.type, c->refusal.code, NULL, c->refusal.message);
    enum MHD_Result result =
        reply_bytes(c, c->refusal.http_status, "application/json", strbuf_view(&body));
    strbuf_fini(&body);
    return result;
}

enum MHD_Result reply_fault(Call *c, const WireFault *fault) {
    StrBuf body = {0};
    wire_fault_json(&body, fault);
    enum MHD_Result result =
        reply_bytes(c, status_http(fault->err.code), "application/json", strbuf_view(&body));
    strbuf_fini(&body);
    return result;
}

static ssize_t reply_read(void *ctx, uint64_t pos, char *out, size_t size) {
    Call *c = ctx;
    UNUSED(pos);
    return stream_read(&c->job->stream, c->connection, out, size);
}

enum MHD_Result reply_stream(Call *c) {
    // A first line, so that the head is pushed out together with it and not held for a body.
    (void)stream_put(&c->job->stream, STR(": accepted\n\n"), false);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, REPLY_BLOCK, reply_read, c, NULL);
    if (response) {
        (void)MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache, no-store");
        (void)MHD_add_response_header(response, "X-Accel-Buffering", "no"); // nginx must not gather
    }
    return reply_queue(c, 200, response);
}
