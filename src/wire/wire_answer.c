// SPDX-License-Identifier: Apache-2.0
/* wire_answer.c - the events of an answer's choices to chunks of a stream, or to one body.
 *
 * Path:     wire_answer_event for each TurnEvent, wire_answer_finish behind the last choice.
 * Owns:     the texts of a whole answer.  Thread: one.
 *
 * A stream's calls are sent while they are made. A call that turns out damaged cannot be taken back
 * there: its arguments stay incomplete JSON, its text follows as content, and the finish reason is
 * not tool_calls. A whole answer has complete calls only. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "wire/wire.h"

#include <math.h>

typedef struct Choice {
    StrBuf content, reasoning, arguments;
    json_t *calls;      // whole answers: list of complete calls
    json_t *logprobs;   // list of entries not yet sent
    int32_t n_calls;    // begun, which is the index of the next
    int32_t last_call;  // index in the stream of the call at work
    size_t text_offset; // completions: bytes of text before the next token
    bool is_begun;      // the role was sent
    bool is_ended;
    TurnFinish finish;
    SeqFigures figures;
    int32_t n_reasoning;
} Choice;

struct WireAnswer {
    const WireRequest *request;
    const WireIdentity *identity;
    const Tokenizer *tokenizer;
    Choice choices[WIRE_MAX_CHOICES];
    int32_t n_choices, n_ended;
    Err failure; // of the first choice that failed
};

void wire_answer_close(WireAnswer *a) {
    if (!a)
        return;
    for (int32_t i = 0; i < a->n_choices; i++) {
        Choice *c = &a->choices[i];
        strbuf_fini(&c->content);
        strbuf_fini(&c->reasoning);
        strbuf_fini(&c->arguments);
        json_decref(c->calls);
        json_decref(c->logprobs);
    }
    mem_free(a);
}

Status wire_answer_open(WireAnswer **out, const WireRequest *request, const WireIdentity *identity,
                        const Tokenizer *tokenizer, Err *err) {
    WireAnswer *a = mem_zalloc(1, sizeof *a);
    if (!a)
        return err_memory(err, "answer", sizeof *a);
    a->request = request;
    a->identity = identity;
    a->tokenizer = tokenizer;
    a->n_choices = request->n_choices * (request->form == WIRE_CHAT ? 1 : request->n_prompts);
    bool is_good = true;
    for (int32_t i = 0; i < a->n_choices; i++) {
        a->choices[i].calls = json_array();
        a->choices[i].logprobs = json_array();
        is_good = is_good && a->choices[i].calls && a->choices[i].logprobs;
    }
    if (!is_good) {
        wire_answer_close(a);
        return err_memory(err, "answer", sizeof *a);
    }
    *out = a;
    return STATUS_OK;
}

static const char *finish_name(TurnFinish finish) {
    static const char *const names[] = {[FINISH_STOP] = "stop",
                                        [FINISH_LENGTH] = "length",
                                        [FINISH_CALLS] = "tool_calls",
                                        [FINISH_CANCELLED] = "stop",
                                        [FINISH_FAILED] = "stop"};
    return names[finish];
}

static json_t *text_json(StrView s) { return json_stringn(s.ptr ? s.ptr : "", s.len); }

/* Appends v as one compact JSON text; STATUS_MEMORY when a part of it could not be made: whoever
 * builds a value calls json_take_alloc_failure before. */
static Status json_append(StrBuf *out, json_t *v, const char *before, const char *after, Err *err) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    if (json_take_alloc_failure()) {
        mem_free(text);
        text = NULL;
    }
    if (!text)
        return err_set(err, STATUS_MEMORY, "out of memory: the answer's JSON");
    strbuf_printf(out, "%s", before);
    strbuf_append(out, text, strlen(text));
    strbuf_printf(out, "%s", after);
    mem_free(text); // jansson allocates by mem_alloc
    return strbuf_check(out, err);
}

/* ---- log-probabilities ---- */

/* Token text for a reader: invalid parts become U+FFFD; the bytes stand beside it. */
static json_t *token_text(StrView bytes) {
    StrBuf text = {0};
    for (size_t off = 0; off < bytes.len;) {
        uint32_t c;
        int n = utf8_decode(bytes.ptr + off, bytes.len - off, &c);
        if (n > 0) {
            strbuf_append(&text, bytes.ptr + off, (size_t)n);
            off += (size_t)n;
        } else {
            strbuf_append_view(&text, STR("\xef\xbf\xbd"));
            off += n < 0 ? (size_t)-n : bytes.len - off;
        }
    }
    json_t *v = text_json(strbuf_view(&text));
    strbuf_fini(&text);
    return v;
}

static json_t *token_bytes(StrView bytes) {
    json_t *list = json_array();
    for (size_t i = 0; i < bytes.len; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes.ptr[i]));
    return list;
}

/* JSON has no infinity: a forbidden token's log-probability is the least that clients expect. */
static json_t *logprob_json(float logprob) {
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

static json_t *logprob_entry(const WireAnswer *a, int32_t id, float logprob) {
    StrView bytes = tokenizer_id_bytes(a->tokenizer, id);
    return json_pack("{s:o, s:o, s:o}", "token", token_text(bytes), "logprob",
                     logprob_json(logprob), "bytes", token_bytes(bytes));
}

static void choice_logprob(const WireAnswer *a, Choice *c, const SampleResult *s) {
    json_t *entry = logprob_entry(a, s->id, s->logprob);
    json_t *top = json_array();
    for (int32_t i = 0; i < s->n_top; i++)
        json_array_append_new(top, logprob_entry(a, s->top_ids[i], s->top_logprobs[i]));
    json_object_set_new(entry, "top_logprobs", top);
    json_array_append_new(c->logprobs, entry);
}

/* The completions form of the same entries. */
static json_t *logprobs_completions(Choice *c) {
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array();
    json_t *offsets = json_array();
    size_t i, j;
    json_t *entry, *other;
    json_array_foreach(c->logprobs, i, entry) {
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_append_new(offsets, json_integer((json_int_t)c->text_offset));
        c->text_offset += json_array_size(json_object_get(entry, "bytes"));
        json_t *top = json_object();
        json_array_foreach(json_object_get(entry, "top_logprobs"), j, other)
            json_object_set(top, json_string_value(json_object_get(other, "token")),
                            json_object_get(other, "logprob"));
        json_array_append_new(tops, top);
    }
    json_array_clear(c->logprobs);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}

/* What has gathered, taken out; null when log-probabilities are not asked for. */
static json_t *choice_take_logprobs(const WireAnswer *a, Choice *c) {
    if (!a->request->want_logprobs)
        return json_null();
    if (a->request->form == WIRE_COMPLETIONS)
        return logprobs_completions(c);
    json_t *list = c->logprobs;
    c->logprobs = json_array();
    return json_pack("{s:o, s:n}", "content", list, "refusal");
}

/* ---- chunks ---- */

static json_t *answer_head(const WireAnswer *a, const char *object) {
    return json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", a->identity->id, "object", object,
                     "created", (json_int_t)a->identity->created, "model", a->identity->model,
                     "system_fingerprint", a->identity->fingerprint);
}

static json_t *answer_usage(const WireAnswer *a) {
    json_int_t prompt = 0, generated = 0, cached = 0, reasoning = 0;
    for (int32_t i = 0; i < a->n_choices; i++) {
        const Choice *c = &a->choices[i];
        if (i % a->request->n_choices == 0) { // choices of one prompt share it
            prompt += c->figures.n_prompt;
            cached += c->figures.n_cached;
        }
        generated += c->figures.n_generated;
        reasoning += c->n_reasoning;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", prompt,
                     "completion_tokens", generated, "total_tokens", prompt + generated,
                     "prompt_tokens_details", "cached_tokens", cached, "completion_tokens_details",
                     "reasoning_tokens", reasoning);
}

/* One event: a choice with its delta (or text), and the finish reason at its end. */
static Status stream_chunk(WireAnswer *a, int32_t index, json_t *delta, const char *finish,
                           StrBuf *out, Err *err) {
    Choice *c = &a->choices[index];
    bool is_chat = a->request->form == WIRE_CHAT;
    json_t *v = answer_head(a, is_chat ? "chat.completion.chunk" : "text_completion");
    json_t *choice =
        json_pack("{s:i, s:o, s:o, s:s?}", "index", index, is_chat ? "delta" : "text", delta,
                  "logprobs", choice_take_logprobs(a, c), "finish_reason", finish);
    json_object_set_new(v, "choices", choice ? json_pack("[o]", choice) : NULL);
    if (a->request->include_usage)
        json_object_set_new(v, "usage", json_null());
    return json_append(out, json_object_get(v, "choices") ? v : (json_decref(v), NULL),
                       "data: ", "\n\n", err);
}

/* The role comes first, alone, so that a client sees life before the first word. */
static Status stream_begin(WireAnswer *a, int32_t index, StrBuf *out, Err *err) {
    Choice *c = &a->choices[index];
    if (c->is_begun || a->request->form != WIRE_CHAT)
        return STATUS_OK;
    c->is_begun = true;
    return stream_chunk(a, index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL,
                        out, err);
}

/* A call's id: the same on every chunk of it, different for every call. */
static void call_id(char out[32], const WireAnswer *a, int32_t choice, int32_t call) {
    uint64_t key = 0;
    for (const char *p = a->identity->id; *p; p++)
        key = rng_mix(key ^ (unsigned char)*p);
    snprintf(out, 32, "call_%016llx",
             (unsigned long long)rng_u64(key, (uint64_t)choice << 32 | (uint32_t)call));
}

static Status stream_text(WireAnswer *a, int32_t index, const TurnEvent *e, StrBuf *out, Err *err) {
    json_t *text = text_json(e->text);
    if (a->request->form == WIRE_COMPLETIONS)
        return stream_chunk(a, index, text, NULL, out, err);
    json_t *delta = e->kind == TURN_CONTENT
                        ? json_pack("{s:o}", "content", text)
                        : json_pack("{s:O, s:o}", "reasoning_content", text, "reasoning", text);
    return stream_chunk(a, index, delta, NULL, out, err);
}

static Status stream_call(WireAnswer *a, int32_t index, const TurnEvent *e, StrBuf *out, Err *err) {
    Choice *c = &a->choices[index];
    json_t *delta;
    if (e->kind == TURN_CALL_BEGIN) {
        char id[32];
        c->last_call = c->n_calls++;
        call_id(id, a, index, c->last_call);
        delta = json_pack("{s:[{s:i, s:s, s:s, s:{s:s%, s:s}}]}", "tool_calls", "index",
                          c->last_call, "id", id, "type", "function", "function", "name",
                          e->name.ptr, e->name.len, "arguments", "");
    } else {
        delta = json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", c->last_call, "function",
                          "arguments", text_json(e->text));
    }
    return stream_chunk(a, index, delta, NULL, out, err);
}

static Status stream_event(WireAnswer *a, int32_t index, const TurnEvent *e, StrBuf *out,
                           Err *err) {
    switch (e->kind) {
    case TURN_REASONING:
    case TURN_CONTENT: return stream_text(a, index, e, out, err);
    case TURN_CALL_BEGIN:
    case TURN_CALL_ARGS: return stream_call(a, index, e, out, err);
    case TURN_END:
        if (e->finish == FINISH_FAILED || e->finish == FINISH_CANCELLED)
            return STATUS_OK; // wire_answer_fail tells it, or nobody listens
        return stream_chunk(a, index,
                            a->request->form == WIRE_CHAT ? json_object() : json_string(""),
                            finish_name(e->finish), out, err);
    case TURN_CALL_END:
    case TURN_CALL_DROP:
    case TURN_TOKEN: return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- whole answers ---- */

static void whole_event(WireAnswer *a, int32_t index, const TurnEvent *e) {
    Choice *c = &a->choices[index];
    switch (e->kind) {
    case TURN_REASONING: strbuf_append_view(&c->reasoning, e->text); break;
    case TURN_CONTENT: strbuf_append_view(&c->content, e->text); break;
    case TURN_CALL_BEGIN: strbuf_clear(&c->arguments); break;
    case TURN_CALL_ARGS: strbuf_append_view(&c->arguments, e->text); break;
    case TURN_CALL_END: {
        char id[32];
        call_id(id, a, index, c->n_calls++);
        json_array_append_new(c->calls,
                              json_pack("{s:s, s:s, s:{s:s%, s:o}}", "id", id, "type", "function",
                                        "function", "name", e->name.ptr, e->name.len, "arguments",
                                        text_json(strbuf_view(&c->arguments))));
        break;
    }
    case TURN_CALL_DROP:
    case TURN_TOKEN:
    case TURN_END: break;
    }
}

static json_t *whole_message(Choice *c) {
    bool has_calls = json_array_size(c->calls) > 0;
    json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
                          has_calls && c->content.len == 0 ? json_null()
                                                           : text_json(strbuf_view(&c->content)));
    json_object_set_new(m, "refusal", json_null());
    if (c->reasoning.len) {
        json_object_set_new(m, "reasoning_content", text_json(strbuf_view(&c->reasoning)));
        json_object_set_new(m, "reasoning", text_json(strbuf_view(&c->reasoning)));
    }
    if (has_calls)
        json_object_set(m, "tool_calls", c->calls);
    return m;
}

static json_t *whole_choice(const WireAnswer *a, int32_t index) {
    Choice *c = (Choice *)&a->choices[index];
    bool is_chat = a->request->form == WIRE_CHAT;
    return json_pack("{s:i, s:o, s:o, s:s}", "index", index, is_chat ? "message" : "text",
                     is_chat ? whole_message(c) : text_json(strbuf_view(&c->content)), "logprobs",
                     choice_take_logprobs(a, c), "finish_reason", finish_name(c->finish));
}

/* ---- doors ---- */

/* Completions: the prompt in front of its choices. */
static Status answer_echo(WireAnswer *a, int32_t index, StrBuf *out, Err *err) {
    Choice *c = &a->choices[index];
    const WirePrompt *p = &a->request->prompts[index / a->request->n_choices];
    if (!a->request->is_echo || c->is_begun)
        return STATUS_OK;
    c->is_begun = true;
    StrBuf text = {0};
    Status status = STATUS_OK;
    if (p->ids)
        status = tokenizer_decode(a->tokenizer, &text, p->ids, (size_t)p->n_ids, false, err);
    else
        strbuf_append_view(&text, p->text);
    TurnEvent e = {.kind = TURN_CONTENT, .text = strbuf_view(&text)};
    if (status == STATUS_OK && a->request->is_stream)
        status = stream_event(a, index, &e, out, err);
    else if (status == STATUS_OK)
        whole_event(a, index, &e);
    strbuf_fini(&text);
    return status;
}

Status wire_answer_event(WireAnswer *a, int32_t choice, const TurnEvent *event, StrBuf *out,
                         Err *err) {
    Choice *c = &a->choices[choice];
    (void)json_take_alloc_failure(); // of somebody else
    if (a->request->form == WIRE_COMPLETIONS)
        TRY(answer_echo(a, choice, out, err));
    else if (a->request->is_stream)
        TRY(stream_begin(a, choice, out, err));
    if (event->kind == TURN_TOKEN && a->request->want_logprobs)
        choice_logprob(a, c, event->sample);
    if (event->kind == TURN_END) {
        c->is_ended = true;
        c->finish = event->finish;
        c->figures = event->figures;
        c->n_reasoning = event->n_reasoning;
        a->n_ended++;
        if (event->finish == FINISH_FAILED && a->failure.code == STATUS_OK)
            a->failure = *event->err;
    }
    if (a->request->is_stream)
        return stream_event(a, choice, event, out, err);
    whole_event(a, choice, event);
    if (json_take_alloc_failure())
        return err_set(err, STATUS_MEMORY, "out of memory: the answer's JSON");
    TRY(strbuf_check(&c->content, err));
    TRY(strbuf_check(&c->reasoning, err));
    return strbuf_check(&c->arguments, err);
}

bool wire_answer_is_whole(const WireAnswer *a) { return a->n_ended == a->n_choices; }

const Err *wire_answer_failure(const WireAnswer *a) {
    return a->failure.code == STATUS_OK ? NULL : &a->failure;
}

Status wire_answer_finish(WireAnswer *a, StrBuf *out, Err *err) {
    bool is_chat = a->request->form == WIRE_CHAT;
    (void)json_take_alloc_failure(); // of somebody else
    if (!a->request->is_stream) {
        json_t *v = answer_head(a, is_chat ? "chat.completion" : "text_completion");
        json_t *choices = json_array();
        for (int32_t i = 0; i < a->n_choices; i++)
            json_array_append_new(choices, whole_choice(a, i));
        json_object_set_new(v, "choices", choices);
        json_object_set_new(v, "usage", answer_usage(a));
        return json_append(out, v, "", "\n", err);
    }
    if (a->request->include_usage) {
        json_t *v = answer_head(a, is_chat ? "chat.completion.chunk" : "text_completion");
        json_object_set_new(v, "choices", json_array());
        json_object_set_new(v, "usage", answer_usage(a));
        TRY(json_append(out, v, "data: ", "\n\n", err));
    }
    strbuf_append_view(out, STR("data: [DONE]\n\n"));
    return strbuf_check(out, err);
}

void wire_answer_fail(WireAnswer *a, const Err *why, StrBuf *out) {
    UNUSED(a);
    WireFault fault = {.err = *why};
    strbuf_append_view(out, STR("event: error\ndata: "));
    wire_fault_json(out, &fault);
    strbuf_append_view(out, STR("\n\ndata: [DONE]\n\n"));
}
