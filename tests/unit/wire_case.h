// SPDX-License-Identifier: Apache-2.0
/* wire_case.h - what the tests of src/wire share: a request from its JSON, the defaults.
 *
 * Owns:     nothing of its own.  Thread: one. */
#ifndef LILY_TESTS_WIRE_CASE_H
#define LILY_TESTS_WIRE_CASE_H

#include "wire/wire.h"

#include "unit.h"

#include <string.h>

static const Generation WIRE_DEFAULTS = {
    .temperature = 0.75, .top_p = 0.5, .min_p = 0.25, .repetition_penalty = 1, .top_k = 20};

enum { WIRE_VOCAB = 300 };

static inline Status wire_try(WireRequest *r, WireForm form, const char *body, WireFault *fault) {
    *r = (WireRequest){0};
    *fault = (WireFault){0};
    return wire_request_parse(r, form, str_view(body, strlen(body)), &WIRE_DEFAULTS, WIRE_VOCAB,
                              fault);
}

static inline void wire_must(WireRequest *r, WireForm form, const char *body) {
    WireFault fault;
    if (wire_try(r, form, body, &fault) != STATUS_OK)
        fail_msg("%s: %s", body, fault.err.text);
}

/* A chat request of these fields beside a plain message. */
static inline Status wire_try_chat(WireRequest *r, const char *fields, WireFault *fault) {
    char body[4096];
    int n =
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
                 *fields ? "," : "", fields);
    assert_true(n < (int)sizeof body);
    return wire_try(r, WIRE_CHAT, body, fault);
}

#endif
