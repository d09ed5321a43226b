// SPDX-License-Identifier: Apache-2.0
/* pull_http.c - requests to the hub: set-up, failures, and small texts.
 *
 * Owns:     nothing past a call.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "cli/pull_http.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    HTTP_CONNECT_S = 30,
    HTTP_MAX_REDIRECTS = 10,
    HTTP_PAUSE_MAX_MS = 30000,
    HTTP_AFTER_MAX_S = 120, // a longer wait is better begun by a person
    HTTP_TEXT_TRIES = 3,    // further attempts at a small text: a person sits before it
    HTTP_LOOK_MS = 200,     // how often a pause asks whether the run is stopped
};

/* ---- libcurl's memory ---- */

static char *http_strdup(const char *s) { return mem_strdup(s, strlen(s)); }

Status pull_start(Err *err) {
    if (curl_global_init_mem(CURL_GLOBAL_DEFAULT, mem_alloc, mem_free, mem_realloc, http_strdup,
                             mem_zalloc) != CURLE_OK)
        return err_memory(err, "the transfer library", 0);
    return STATUS_OK;
}

void pull_stop(void) { curl_global_cleanup(); }

/* ---- every request ---- */

Status http_check_stop(const PullSource *source, Err *err) {
    if (source->is_stopped && source->is_stopped())
        return err_set(err, STATUS_CANCELLED, "stopped; run it again to go on");
    return STATUS_OK;
}

static bool http_set_token(CURL *c, struct curl_slist **headers, const char *token) {
    StrBuf line = {0};
    strbuf_printf(&line, "Authorization: Bearer %s", token);
    *headers = line.is_failed ? NULL : curl_slist_append(NULL, line.ptr);
    strbuf_fini(&line);
    return *headers && curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers) == CURLE_OK;
}

Status http_setup(CURL *c, struct curl_slist **headers, const PullSource *source, const char *url,
                  Err *err) {
    // From https no redirect leads to http. libcurl keeps a header of ours from other hosts and
    // ports that it is redirected to, and from proxies that only connect.
    const char *onward = strncasecmp(url, "https:", 6) ? "http,https" : "https";
    bool is_good =
        (!source->token || http_set_token(c, headers, source->token)) &&
        (!source->ca_file || curl_easy_setopt(c, CURLOPT_CAINFO, source->ca_file) == CURLE_OK) &&
        curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)HTTP_MAX_REDIRECTS) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, onward) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)HTTP_CONNECT_S) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)source->stall_s) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(c, CURLOPT_USERAGENT, "lily") == CURLE_OK;
    return is_good ? STATUS_OK : err_memory(err, "a request", strlen(url));
}

bool http_is_page(CURL *c) {
    char *type = NULL;
    curl_easy_getinfo(c, CURLINFO_CONTENT_TYPE, &type);
    return type && strncasecmp(type, "text/html", 9) == 0;
}

/* Failures of the transfer that another attempt would meet again. */
static bool http_is_hopeless(CURLcode result) {
    switch (result) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: return true;
    default: return false;
    }
}

Status http_fail(CURL *c, CURLcode result, const char *what, bool *again, int64_t *after_s,
                 Err *err) {
    long code = 0;
    curl_off_t after = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(c, CURLINFO_RETRY_AFTER, &after);
    *after_s = after < 0 ? 0 : after > HTTP_AFTER_MAX_S ? HTTP_AFTER_MAX_S : (int64_t)after;
    *again = false;
    if (result == CURLE_OUT_OF_MEMORY)
        return err_memory(err, what, 0);
    if (code == 401 || code == 403)
        return err_set(err, STATUS_DENIED,
                       "%s: the server refuses with status %ld; a token may be needed (HF_TOKEN)",
                       what, code);
    if (code == 404 || code == 410)
        return err_set(err, STATUS_NOT_FOUND, "%s: the server does not have it (status %ld)", what,
                       code);
    if (http_is_hopeless(result))
        return err_set(err, STATUS_IO, "%s: %s", what, curl_easy_strerror(result));
    if (code >= 300 && code < 400)
        return err_set(err, STATUS_IO, "%s: redirected to nowhere (status %ld)", what, code);
    if (code >= 400 && code < 500 && code != 408 && code != 416 && code != 429)
        return err_set(err, STATUS_IO, "%s: the server refuses with status %ld", what, code);
    *again = true;
    if (code >= 400)
        return err_set(err, STATUS_IO, "%s: the server answers with status %ld", what, code);
    return err_set(err, STATUS_IO, "%s: %s", what,
                   result == CURLE_OK ? "the answer ended early" : curl_easy_strerror(result));
}

int64_t http_pause_ms(const PullSource *source, int64_t n_failures, int64_t after_s) {
    int64_t ms = source->pause_ms;
    for (int64_t i = 1; i < n_failures && ms < HTTP_PAUSE_MAX_MS; i++)
        ms *= 2;
    ms = ms < HTTP_PAUSE_MAX_MS ? ms : HTTP_PAUSE_MAX_MS;
    return ms > after_s * 1000 ? ms : after_s * 1000;
}

/* ---- small texts ---- */

typedef struct TextSink {
    StrBuf *out;
    size_t cap;
    bool is_over;
} TextSink;

static size_t text_write(char *bytes, size_t size, size_t n, void *ctx) {
    TextSink *s = ctx;
    if (size * n > s->cap - s->out->len) {
        s->is_over = true;
        return CURL_WRITEFUNC_ERROR;
    }
    strbuf_append(s->out, bytes, size * n);
    return s->out->is_failed ? CURL_WRITEFUNC_ERROR : size * n;
}

/* Called by libcurl about once a second, and on every byte. */
static int text_progress(void *ctx, curl_off_t total, curl_off_t done, curl_off_t up_total,
                         curl_off_t up_done) {
    UNUSED(total);
    UNUSED(done);
    UNUSED(up_total);
    UNUSED(up_done);
    return http_check_stop(ctx, NULL) != STATUS_OK; // not 0: the transfer ends
}

/* What the ended attempt came to. */
static Status text_settle(CURL *c, CURLcode result, const TextSink *sink, const PullSource *source,
                          const char *url, bool *again, int64_t *after_s, Err *err) {
    long code = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    if (result == CURLE_ABORTED_BY_CALLBACK)
        TRY(http_check_stop(source, err));
    if (sink->is_over)
        return err_set(err, STATUS_TOO_LARGE, "%s: larger than %zu bytes", url, sink->cap);
    TRY(strbuf_check(sink->out, err));
    if (result == CURLE_OK && code == 200 && http_is_page(c))
        return err_set(err, STATUS_FORMAT,
                       "%s: the server sent a web page (a log-in or consent page?)", url);
    if (result == CURLE_OK && code == 200)
        return STATUS_OK;
    return http_fail(c, result, url, again, after_s, err);
}

/* One attempt; *again: another may help. */
static Status text_attempt(StrBuf *out, const PullSource *source, const char *url, size_t cap,
                           bool *again, int64_t *after_s, Err *err) {
    struct curl_slist *headers = NULL;
    TextSink sink = {out, cap, false};
    CURL *c = curl_easy_init();
    strbuf_clear(out);
    *again = false;
    Status status = c ? http_setup(c, &headers, source, url, err) : err_memory(err, "a request", 0);
    if (status == STATUS_OK &&
        !(curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, text_write) == CURLE_OK &&
          curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
          curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, text_progress) == CURLE_OK &&
          curl_easy_setopt(c, CURLOPT_XFERINFODATA, source) == CURLE_OK &&
          curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink) == CURLE_OK))
        status = err_memory(err, "a request", 0);
    if (status == STATUS_OK) {
        CURLcode result = curl_easy_perform(c);
        status = text_settle(c, result, &sink, source, url, again, after_s, err);
    }
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    return status;
}

/* Waits, unless the run is stopped. */
static Status text_pause(const PullSource *source, int64_t ms, Err *err) {
    int64_t end = clock_now_ns() + ms * 1000000;
    while (clock_now_ns() < end) {
        TRY(http_check_stop(source, err));
        int64_t left = end - clock_now_ns();
        int64_t look = (int64_t)HTTP_LOOK_MS * 1000000;
        if (left > 0)
            nanosleep(&(struct timespec){0, (long)(left < look ? left : look)}, NULL);
    }
    return http_check_stop(source, err);
}

Status pull_text(StrBuf *out, const PullSource *source, const char *url, size_t cap, Err *err) {
    int64_t n_tries = source->n_tries < HTTP_TEXT_TRIES ? source->n_tries : HTTP_TEXT_TRIES;
    for (int64_t n_failures = 1;; n_failures++) {
        bool again;
        int64_t after_s = 0;
        TRY(http_check_stop(source, err));
        Status status = text_attempt(out, source, url, cap, &again, &after_s, err);
        if (status == STATUS_OK || !again || n_failures > n_tries)
            return status;
        TRY(text_pause(source, http_pause_ms(source, n_failures, after_s), err));
    }
}
