// SPDX-License-Identifier: Apache-2.0
/* wire.h - the JSON of the API: a body to one request type, and one event stream to a body or to
 * server-sent events.
 *
 * Path:     server -> wire_request_parse -> turns of the engine -> wire_answer_event -> server.
 * Owns:     see each object.  Thread: an object has one at a time.
 * Not here: sockets and routes (src/server), tensors, the chat template (src/text). */
#ifndef LILY_WIRE_WIRE_H
#define LILY_WIRE_WIRE_H

#include "base/arena.h"
#include "base/json.h"
#include "checkpoint/generation.h"
#include "engine/turn.h"

enum {
    WIRE_MAX_CHOICES = 16, // n; each is a sequence of the engine
    WIRE_MAX_PROMPTS = 16, // of one completions request
    WIRE_PARAM_SIZE = 96,
};

/* Which route a body belongs to. */
typedef enum WireForm { WIRE_CHAT, WIRE_COMPLETIONS } WireForm;

/* A refused request: the error and the field that it is about ("" none). */
typedef struct WireFault {
    Err err;
    char param[WIRE_PARAM_SIZE];
} WireFault;

/* Appends {"error": {"message", "type", "param", "code"}}; param NULL or "": null. */
void wire_error_json(StrBuf *out, const char *type, const char *code, const char *param,
                     const char *message);
/* The same for a fault: type and code follow from its status. */
void wire_fault_json(StrBuf *out, const WireFault *fault);

/* A prompt of the completions form: a text, or ids. */
typedef struct WirePrompt {
    StrView text;
    int32_t *ids; // [n_ids]; NULL: text
    int32_t n_ids;
} WirePrompt;

typedef struct WireRequest {
    WireForm form;
    Arena arena;  // of everything below
    json_t *body; // messages, tools and texts point into it
    StrView model;
    bool is_stream;
    bool include_usage;
    int32_t n_choices;                    // 1..WIRE_MAX_CHOICES, for each prompt
    WirePrompt prompts[WIRE_MAX_PROMPTS]; // completions
    int32_t n_prompts;
    StrView suffix; // completions; ptr NULL: none
    bool is_echo;   // completions
    bool want_logprobs;
    int32_t n_top_logprobs; // 0..LIMIT_TOP_LOGPROBS

    StrView stops[LIMIT_STOP_STRINGS];
    const char *unknown;     // names of unknown fields, separated by commas; NULL: none
    StrView cache_key, user; // ptr NULL: none
    TurnRequest turn; // all that the engine needs, but for the prompt of the completions form
} WireRequest;

/* Parses and checks a body. Values not given are the checkpoint's (defaults).
 *
 * out      {0}; wire_request_fini also behind a failure              (out)
 * Returns STATUS_INVALID with the field in fault->param, STATUS_TOO_LARGE, STATUS_MEMORY.
 * A known field that this server does not honour is refused, an unknown one is listed in
 * out->unknown. */
NODISCARD Status wire_request_parse(WireRequest *out, WireForm form, StrView body,
                                    const Generation *defaults, int32_t vocab, WireFault *fault);
void wire_request_fini(WireRequest *r);

/* Appends the ids of prompt i of a completions request: the text with control tokens by their
 * spelling, or prompt and suffix as plain text around the vocabulary's fill-in-the-middle tokens.
 */
NODISCARD Status wire_request_prompt(TokenIds *out, const WireRequest *r, int32_t i,
                                     const Tokenizer *tokenizer, WireFault *fault);

/* Who answers. */
typedef struct WireIdentity {
    const char *id;          // "chatcmpl-..." or "cmpl-..."
    const char *model;       // the name that was asked for, or the served one
    int64_t created;         // seconds since 1970
    const char *fingerprint; // system_fingerprint
} WireIdentity;

/* An answer in the making: events of its choices in, bytes out. */
typedef struct WireAnswer WireAnswer;

/* request, identity and tokenizer are kept: they outlive the answer. */
NODISCARD Status wire_answer_open(WireAnswer **out, const WireRequest *request,
                                  const WireIdentity *identity, const Tokenizer *tokenizer,
                                  Err *err);
void wire_answer_close(WireAnswer *a);

/* One event of choice `choice` (prompt * n_choices + i). Streamed: appends whole server-sent events
 * to out; else out stays as it is. STATUS_MEMORY. */
NODISCARD Status wire_answer_event(WireAnswer *a, int32_t choice, const TurnEvent *event,
                                   StrBuf *out, Err *err);
/* True when every choice has had its TURN_END. */
bool wire_answer_is_whole(const WireAnswer *a);
/* Behind the last choice: the usage event if asked for and "[DONE]", or the whole body. */
NODISCARD Status wire_answer_finish(WireAnswer *a, StrBuf *out, Err *err);
/* A failure inside a begun stream: an error event, then "[DONE]". */
void wire_answer_fail(WireAnswer *a, const Err *why, StrBuf *out);
/* The first failure that a choice ended with; NULL: none. */
const Err *wire_answer_failure(const WireAnswer *a);

/* {"object": "list", "data": [..]} of /v1/models, or one model's object. context: tokens. */
NODISCARD Status wire_models_json(StrBuf *out, const char *const *names, int n, int64_t created,
                                  int32_t context, bool is_list, Err *err);

/* /tokenize: {"content" or "prompt" or "messages", ...} to ids, /detokenize: {"tokens"} to text;
 * the answer's body in out. */
NODISCARD Status wire_tokenize(StrBuf *out, StrView body, const Tokenizer *tokenizer,
                               ChatFamily family, int32_t context, WireFault *fault);
NODISCARD Status wire_detokenize(StrBuf *out, StrView body, const Tokenizer *tokenizer,
                                 WireFault *fault);

#endif
