// SPDX-License-Identifier: Apache-2.0
/* pull_http.h - what every request to the hub has in common: its set-up, and what its failure
 * means.
 *
 * Path:     pull_get.c (files) and pull_text (listings).
 * Owns:     see each function.  Thread: main. */
#ifndef LILY_CLI_PULL_HTTP_H
#define LILY_CLI_PULL_HTTP_H

#include "cli/pull.h"

#include <curl/curl.h>

/* Redirects, a stall limit, the token; proxies come from the environment.
 *
 * headers  NULL, or the caller's to free with curl_slist_free_all  (out)
 * Returns STATUS_MEMORY. */
NODISCARD Status http_setup(CURL *c, struct curl_slist **headers, const PullSource *source,
                            const char *url, Err *err);

/* Why an attempt failed, as an error with `what` (a file, a URL) before it.
 *
 * result  of the transfer; its status and Retry-After are read from c
 * again   whether another attempt may help                          (out)
 * after_s pause that the server asks for, at most 120; 0: none      (out) */
NODISCARD Status http_fail(CURL *c, CURLcode result, const char *what, bool *again,
                           int64_t *after_s, Err *err);

/* Whether the answer is a web page: of a log-in, a consent, a proxy. */
bool http_is_page(CURL *c);

/* Milliseconds to wait behind n failures in a row. */
int64_t http_pause_ms(const PullSource *source, int64_t n_failures, int64_t after_s);

/* STATUS_CANCELLED when the run is to end, with a text for a person. */
NODISCARD Status http_check_stop(const PullSource *source, Err *err);

#endif
