// SPDX-License-Identifier: Apache-2.0
/* reply.h - one HTTP request in work, and the ways to answer it.
 *
 * Path:     http.c fills a Call, routes.c answers it.
 * Owns:     a Call owns its body and its job reference.  Thread: its connection's. */
#ifndef LILY_SERVER_REPLY_H
#define LILY_SERVER_REPLY_H

#include "server/auth.h"
#include "server/runner.h"
#include "server/watch.h"

#include <microhttpd.h>

/* What every request can reach; constant while the server runs. */
typedef struct ServerParts {
    const ServerOptions *options;
    const Log *log;
    const Auth *auth;
    Runner *runner;
    Watch *watch;
    Metrics *metrics;
    bool is_unix; // the Host header says nothing there
} ServerParts;

typedef struct Route Route;

/* Why a request is not looked at; http_status 0: it is. */
typedef struct Refusal {
    int http_status;
    const char *type, *code;
    char message[ERR_TEXT_SIZE];
} Refusal;

typedef struct Call {
    const ServerParts *parts;
    struct MHD_Connection *connection;
    WatchEntry *entry;
    const Route *route;
    const char *name; // what is behind a route that ends in "/": a model
    char path[256];   // for the log
    char request_id[128];
    char origin[256]; // of a page that may read the answer; "": none
    int64_t start_ns;
    uint64_t space, client;
    StrBuf body;
    uint64_t n_body; // bytes that came, kept or not
    Refusal refusal;
    Job *job;
    const char *unknown; // header of a job's answer; NULL: none
    int http_status;     // of the answer; 0: none yet
} Call;

/* Makes the call one that is refused; the first reason counts. */
void reply_refuse(Call *c, int http_status, const char *type, const char *code, const char *fmt,
                  ...) PRINTF_LIKE(5, 6);
/* Answers with what reply_refuse said. */
enum MHD_Result reply_refusal(Call *c);
enum MHD_Result reply_fault(Call *c, const WireFault *fault);
/* A whole body; it is copied. */
enum MHD_Result reply_bytes(Call *c, int http_status, const char *content_type, StrView body);
/* The job's stream, head at once. */
enum MHD_Result reply_stream(Call *c);

#endif
