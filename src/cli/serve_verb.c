// SPDX-License-Identifier: Apache-2.0
/* serve_verb.c - the verb `serve`: the command line to a server's options.
 *
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L // gmtime_r
#include "base/mem.h"
#include "cli/model.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "server/server.h"

#include <string.h>
#include <time.h>

/* A line of the log with its time; progress goes to a bar elsewhere. */
static void serve_log(void *ctx, LogLevel level, const char *line) {
    UNUSED(ctx);
    if (level == LOG_DEBUG)
        return;
    struct timespec now;
    struct tm utc;
    char text[32] = "";
    timespec_get(&now, TIME_UTC);
    if (gmtime_r(&now.tv_sec, &utc))
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    fprintf(stderr, "%s.%03dZ %s%s\n", text, (int)(now.tv_nsec / 1000000),
            level == LOG_ERROR     ? "error: "
            : level == LOG_WARNING ? "warning: "
                                   : "",
            line);
}

int verb_serve(const CliArgs *args) {
    Err err = {0};
    mem_share_heap();
    if (!args->tls_cert != !args->tls_key)
        return ui_usage("serve", "--tls-cert and --tls-key go together");
    if (args->unix_path && args->tls_cert)
        return ui_usage("serve", "--tls-cert does not go with --unix");
    ServerOptions o = {
        .name = args->name,
        .host = args->host,
        .port = (int32_t)args->port,
        .unix_path = args->unix_path,
        .tls_cert = args->tls_cert,
        .tls_key = args->tls_key,
        .api_keys = args->api_keys,
        .cors = args->cors,
        .is_open = args->is_no_keys,
        .max_queue = (int32_t)args->max_queue,
        .max_connections = (int32_t)args->max_connections,
        .idle_s = (int32_t)args->idle_timeout,
        .request_s = (int32_t)args->request_timeout,
        .stop_s = (int32_t)args->stop_timeout,
        .thinking_budget = (int32_t)args->thinking_budget,
        .is_cache_off = args->is_no_cache,
        .is_cache_shared = args->is_cache_shared,
        .is_prompt_logged = args->is_log_prompts,
        .version = LILY_VERSION,
    };
    if (model_find(&o.model, args, &err) != STATUS_OK ||
        model_engine_options(&o.engine, args, &err) != STATUS_OK)
        return ui_fail("serve", &err);
    o.engine.max_seqs = (int32_t)args->max_seqs;
    o.engine.mixed_tok = (int32_t)args->mixed;
    o.engine.mixed_ms = (int32_t)args->mixed_ms;
    o.engine.cache_slots = (int32_t)args->cache_slots;
    o.engine.is_cache_exact = args->is_cache_exact;
    static const Log log = {serve_log, NULL};
    return server_run(&o, &log, &err) == STATUS_OK ? 0 : ui_fail("serve", &err);
}
