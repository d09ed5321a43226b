// SPDX-License-Identifier: Apache-2.0
/* server.h - a model served over HTTP until the process is told to stop.
 *
 * Path:     src/cli/serve_verb.c -> server_run.
 * Owns:     nothing past the run.  Thread: main.
 * Not here: the JSON of the API (src/wire), the engine (src/engine). */
#ifndef LILY_SERVER_SERVER_H
#define LILY_SERVER_SERVER_H

#include "base/log.h"
#include "base/status.h"
#include "engine/engine.h"

/* Every number: 0 asks for the default, which stands behind it. */
typedef struct ServerOptions {
    const char *model; // what weights_open takes
    const char *name;  // what the API calls it; NULL: the folder's name
    EngineOptions engine;

    const char *host;               // NULL: 127.0.0.1
    int32_t port;                   // 1..65535; 0: any free one
    const char *unix_path;          // a socket in the file system instead; NULL: none
    const char *tls_cert, *tls_key; // PEM files; both or none
    const char *api_keys;           // file with one key a line; NULL: none
    const char *cors;               // origins separated by commas, or "*"; NULL: none
    bool is_open;                   // serve other machines without keys

    int32_t max_queue;       // choices that may wait beside those that run; -1: 64
    int32_t max_connections; // 0: what the descriptors allow, at most 4096
    int32_t idle_s;          // a connection that has not sent a whole request by then is closed; 60
    int32_t request_s;       // an answer that takes longer is ended with an error; 3600
    int32_t stop_s;          // how long answers may go on when told to stop; 30
    int32_t thinking_budget; // ids of reasoning at most; -1: half the context
    bool is_cache_off;       // no prefix cache
    bool is_cache_shared;    // one prefix cache for all keys
    bool is_prompt_logged;
    const char *version;
} ServerOptions;

/* Binds, loads, serves until SIGTERM or SIGINT, lets the answers in work end, and returns. Must be
 * called before other threads are started: it takes the signals.
 *
 * Returns STATUS_INVALID for options that contradict each other, STATUS_IO for an address that
 * cannot be bound, what opening the model returns. STATUS_OK after a stop that was asked for. */
NODISCARD Status server_run(const ServerOptions *options, const Log *log, Err *err);

#endif
