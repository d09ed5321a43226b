// SPDX-License-Identifier: Apache-2.0
/* wire_request.c - chat and completions bodies to a WireRequest.
 *
 * Path:     wire_request_parse: one function a group of fields, then the names that nobody knows.
 * Owns:     what the request's arena and body hold.  Thread: one. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "wire/fields.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUDGET_MINIMAL = 256, // ids of reasoning for reasoning_effort; high has no limit
    BUDGET_LOW = 1024,
    BUDGET_MEDIUM = 8192,
};

/* Every field that is honoured, or has no effect here and is harmless to accept. */
static const char *const COMMON_FIELDS[] = {"model",
                                            "stream",
                                            "stream_options",
                                            "max_tokens",
                                            "temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "repetition_penalty",
                                            "logit_bias",
                                            "seed",
                                            "stop",
                                            "n",
                                            "logprobs",
                                            "user",
                                            "metadata",
                                            "store",
                                            "service_tier",
                                            "ignore_eos",
                                            "prompt_cache_key",
                                            "safety_identifier"};
static const char *const CHAT_FIELDS[] = {
    "messages",        "max_completion_tokens", "top_logprobs",         "tools",
    "tool_choice",     "parallel_tool_calls",   "response_format",      "reasoning_effort",
    "thinking_budget", "reasoning_budget",      "chat_template_kwargs", "modalities"};
static const char *const COMPLETION_FIELDS[] = {"prompt", "suffix", "echo", "best_of"};

static bool name_is_in(const char *name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static Status request_unknown(WireRequest *r, WireFault *fault) {
    StrBuf names = {0};
    const char *name;
    json_t *v;
    json_object_foreach(r->body, name, v) {
        bool is_known = name_is_in(name, COMMON_FIELDS, COUNT_OF(COMMON_FIELDS)) ||
                        (r->form == WIRE_CHAT
                             ? name_is_in(name, CHAT_FIELDS, COUNT_OF(CHAT_FIELDS))
                             : name_is_in(name, COMPLETION_FIELDS, COUNT_OF(COMPLETION_FIELDS)));
        if (!is_known)
            strbuf_printf(&names, "%s%s", names.len ? ", " : "", name);
    }
    const json_t *kwargs = field_get(r->body, "chat_template_kwargs");
    json_object_foreach((json_t *)kwargs, name, v) {
        if (strcmp(name, "enable_thinking") && strcmp(name, "preserve_thinking"))
            strbuf_printf(&names, "%schat_template_kwargs.%s", names.len ? ", " : "", name);
    }
    Status status = strbuf_check(&names, &fault->err);
    if (status == STATUS_OK && names.len) {
        r->unknown = arena_strdup(&r->arena, names.ptr, names.len);
        if (!r->unknown)
            status = err_memory(&fault->err, "field names", names.len);
    }
    strbuf_fini(&names);
    return status;
}

/* ---- sampling ---- */

static Status request_bias(WireRequest *r, int32_t vocab, WireFault *fault) {
    const json_t *v = field_get(r->body, "logit_bias");
    if (!v)
        return STATUS_OK;
    if (!json_is_object(v))
        return field_fault(fault, "logit_bias", "expected an object, found %s", json_type_text(v));
    size_t n = json_object_size(v);
    if (n > LIMIT_LOGIT_BIAS)
        return field_fault(fault, "logit_bias", "expected at most %d entries, found %zu",
                           LIMIT_LOGIT_BIAS, n);
    LogitBias *bias = arena_array(&r->arena, n, sizeof *bias);
    if (!bias)
        return err_memory(&fault->err, "logit_bias", n * sizeof *bias);
    const char *key;
    json_t *value;
    int32_t at = 0;
    json_object_foreach((json_t *)v, key, value) {
        char *end;
        errno = 0;
        long id = strtol(key, &end, 10);
        if (end == key || *end || errno || id < 0 || id >= vocab)
            return field_fault(fault, "logit_bias", "expected token ids from 0 to %d, found \"%s\"",
                               vocab - 1, key);
        double b = json_number_value(value);
        if (!json_is_number(value) || !(b >= -100 && b <= 100))
            return field_fault(fault, "logit_bias", "token %ld: expected -100 to 100", id);
        bias[at++] = (LogitBias){(int32_t)id, (float)b};
    }
    r->turn.sample.bias = bias;
    r->turn.sample.n_bias = at;
    return STATUS_OK;
}

static Status request_sampling(WireRequest *r, const Generation *defaults, int32_t vocab,
                               WireFault *fault) {
    SampleParams *s = &r->turn.sample;
    *s = (SampleParams){.temperature = (float)defaults->temperature,
                        .top_p = (float)defaults->top_p,
                        .min_p = (float)defaults->min_p,
                        .top_k = (int32_t)defaults->top_k,
                        .repetition_penalty = (float)defaults->repetition_penalty};
    int64_t top_k = s->top_k, seed = (int64_t)(rng_mix((uint64_t)clock_now_ns()) >> 1);
    TRY(field_real(&s->temperature, r->body, "temperature", 0, 2, fault));
    TRY(field_real(&s->top_p, r->body, "top_p", 0, 1, fault));
    TRY(field_real(&s->min_p, r->body, "min_p", 0, 1, fault));
    TRY(field_int(&top_k, r->body, "top_k", -1, LIMIT_VOCAB, fault));
    TRY(field_real(&s->presence_penalty, r->body, "presence_penalty", -2, 2, fault));
    TRY(field_real(&s->frequency_penalty, r->body, "frequency_penalty", -2, 2, fault));
    TRY(field_real(&s->repetition_penalty, r->body, "repetition_penalty", 0.01, 10, fault));
    TRY(field_int(&seed, r->body, "seed", INT64_MIN / 2, INT64_MAX / 2, fault));
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->seed = (uint64_t)seed;
    return request_bias(r, vocab, fault);
}

static Status request_stops(WireRequest *r, WireFault *fault) {
    const json_t *v = field_get(r->body, "stop");
    if (!v)
        return STATUS_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > LIMIT_STOP_STRINGS)
        return field_fault(fault, "stop", "expected at most %d strings, found %zu",
                           LIMIT_STOP_STRINGS, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one))
            return field_fault(fault, "stop", "expected a string or a list of strings, found %s",
                               json_type_text(one));
        r->stops[i] = json_text(one);
        if (r->stops[i].len == 0 || r->stops[i].len > LIMIT_STOP_BYTES)
            return field_fault(fault, "stop", "expected strings of 1 to %d bytes, found %zu",
                               LIMIT_STOP_BYTES, r->stops[i].len);
    }
    r->turn.stops = r->stops;
    r->turn.n_stops = (int32_t)n;
    return STATUS_OK;
}

static Status request_common(WireRequest *r, const Generation *defaults, int32_t vocab,
                             WireFault *fault) {
    int64_t n = 1, max_tokens = 0;
    TRY(field_text(&r->model, r->body, "model", fault));
    TRY(field_bool(&r->is_stream, r->body, "stream", fault));
    TRY(field_int(&n, r->body, "n", 1, WIRE_MAX_CHOICES, fault));
    TRY(field_int(&max_tokens, r->body, "max_tokens", 1, LIMIT_CONTEXT, fault));
    if (r->form == WIRE_CHAT)
        TRY(field_int(&max_tokens, r->body, "max_completion_tokens", 1, LIMIT_CONTEXT, fault));
    TRY(field_bool(&r->turn.is_past_end, r->body, "ignore_eos", fault));
    TRY(field_text(&r->user, r->body, "user", fault));
    TRY(field_text(&r->cache_key, r->body, "prompt_cache_key", fault));
    const json_t *options = field_get(r->body, "stream_options");
    if (options && !json_is_object(options))
        return field_fault(fault, "stream_options", "expected an object, found %s",
                           json_type_text(options));
    if (options && !r->is_stream)
        return field_fault(fault, "stream_options", "only with stream: true");
    TRY(field_bool(&r->include_usage, options, "include_usage", fault));
    r->n_choices = (int32_t)n;
    r->turn.max_tokens = (int32_t)max_tokens;
    TRY(request_sampling(r, defaults, vocab, fault));
    return request_stops(r, fault);
}

/* ---- chat ---- */

static Status request_thinking(WireRequest *r, WireFault *fault) {
    ChatOptions *chat = &r->turn.chat;
    int64_t budget = -1;
    const json_t *kwargs = field_get(r->body, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return field_fault(fault, "chat_template_kwargs", "expected an object, found %s",
                           json_type_text(kwargs));
    bool flag = false;
    if (field_get(kwargs, "enable_thinking")) {
        TRY(field_bool(&flag, kwargs, "enable_thinking", fault));
        chat->enable_thinking = flag;
    }
    if (field_get(kwargs, "preserve_thinking")) {
        TRY(field_bool(&flag, kwargs, "preserve_thinking", fault));
        chat->preserve_thinking = flag;
    }
    StrView effort = {0};
    TRY(field_text(&effort, r->body, "reasoning_effort", fault));
    if (str_equal(effort, STR("none")))
        chat->enable_thinking = 0;
    else if (str_equal(effort, STR("minimal")))
        budget = BUDGET_MINIMAL;
    else if (str_equal(effort, STR("low")))
        budget = BUDGET_LOW;
    else if (str_equal(effort, STR("medium")))
        budget = BUDGET_MEDIUM;
    else if (effort.ptr && !str_equal(effort, STR("high")) && !str_equal(effort, STR("xhigh")))
        return field_fault(fault, "reasoning_effort",
                           "expected none, minimal, low, medium or high, found %.*s",
                           (int)min_size(effort.len, 40), effort.ptr);
    TRY(field_int(&budget, r->body, "thinking_budget", -1, LIMIT_CONTEXT, fault));
    TRY(field_int(&budget, r->body, "reasoning_budget", -1, LIMIT_CONTEXT, fault));
    if (chat->enable_thinking == 0)
        budget = 0; // a block that the model opens by itself is closed at once
    r->turn.thinking_budget = (int32_t)budget;
    return STATUS_OK;
}

static Status request_tools(WireRequest *r, WireFault *fault) {
    const json_t *tools = field_get(r->body, "tools"), *tool;
    const json_t *choice = field_get(r->body, "tool_choice");
    if (tools && !json_is_array(tools))
        return field_fault(fault, "tools", "expected a list, found %s", json_type_text(tools));
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        if (!json_is_string(json_object_get(function, "name")))
            return field_fault(fault, "tools",
                               "entry %zu: expected {\"type\": \"function\", \"function\": "
                               "{\"name\": ...}}",
                               i);
    }
    bool is_parallel = true;
    TRY(field_bool(&is_parallel, r->body, "parallel_tool_calls", fault));
    r->turn.is_single_call = !is_parallel;
    StrView word = json_text(choice);
    if (choice && !str_equal(word, STR("auto")) && !str_equal(word, STR("none")))
        return field_fault(
            fault, "tool_choice",
            "this server honours \"auto\" and \"none\" only; a call cannot be forced");
    r->turn.tools = json_array_size(tools) && !str_equal(word, STR("none")) ? tools : NULL;
    return STATUS_OK;
}

static Status request_logprobs(WireRequest *r, WireFault *fault) {
    int64_t n = 0;
    TRY(field_bool(&r->want_logprobs, r->body, "logprobs", fault));
    TRY(field_int(&n, r->body, "top_logprobs", 0, LIMIT_TOP_LOGPROBS, fault));
    if (n && !r->want_logprobs)
        return field_fault(fault, "top_logprobs", "only with logprobs: true");
    r->n_top_logprobs = (int32_t)n;
    return STATUS_OK;
}

static Status request_modes(WireRequest *r, WireFault *fault) {
    const json_t *format = field_get(r->body, "response_format");
    if (format && !str_equal(json_text(json_object_get(format, "type")), STR("text")))
        return field_fault(fault, "response_format",
                           "this server honours {\"type\": \"text\"} only");
    const json_t *modes = field_get(r->body, "modalities"), *mode;
    size_t i;
    json_array_foreach(modes, i, mode) {
        if (!str_equal(json_text(mode), STR("text")))
            return field_fault(fault, "modalities", "this server answers in text only");
    }
    return STATUS_OK;
}

static Status request_chat(WireRequest *r, WireFault *fault) {
    r->turn.chat = (ChatOptions){.add_generation_prompt = true,
                                 .enable_thinking = -1,
                                 .preserve_thinking = -1,
                                 .is_lenient = true,
                                 .is_text_only = true};
    r->turn.messages = field_get(r->body, "messages");
    if (!json_is_array(r->turn.messages))
        return field_fault(fault, "messages", "expected a list, found %s",
                           json_type_text(r->turn.messages));
    TRY(request_thinking(r, fault));
    TRY(request_tools(r, fault));
    TRY(request_logprobs(r, fault));
    return request_modes(r, fault);
}

/* ---- completions ---- */

static Status request_prompt_ids(WireRequest *r, const json_t *list, int32_t vocab,
                                 WireFault *fault) {
    size_t n = json_array_size(list);
    if (n > LIMIT_CONTEXT)
        return field_fault(fault, "prompt", "expected at most %d ids, found %zu", LIMIT_CONTEXT, n);
    WirePrompt *p = &r->prompts[r->n_prompts++];
    p->n_ids = (int32_t)n;
    p->ids = arena_array(&r->arena, n, sizeof *p->ids);
    if (!p->ids)
        return err_memory(&fault->err, "prompt", n * sizeof *p->ids);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return field_fault(fault, "prompt", "entry %zu: expected a token id from 0 to %d", i,
                               vocab - 1);
        p->ids[i] = (int32_t)json_integer_value(v);
    }
    return STATUS_OK;
}

static Status request_prompts(WireRequest *r, int32_t vocab, WireFault *fault) {
    const json_t *v = field_get(r->body, "prompt"), *one;
    if (json_is_string(v)) {
        r->prompts[r->n_prompts++].text = json_text(v);
        return STATUS_OK;
    }
    if (!json_is_array(v) || json_array_size(v) == 0)
        return field_fault(fault, "prompt",
                           "expected a string, a list of strings, or ids, found %s",
                           json_is_array(v) ? "an empty list" : json_type_text(v));
    if (json_is_integer(json_array_get(v, 0)))
        return request_prompt_ids(r, v, vocab, fault);
    if (json_array_size(v) > WIRE_MAX_PROMPTS)
        return field_fault(fault, "prompt", "expected at most %d prompts, found %zu",
                           WIRE_MAX_PROMPTS, json_array_size(v));
    size_t i;
    json_array_foreach(v, i, one) {
        if (json_is_string(one))
            r->prompts[r->n_prompts++].text = json_text(one);
        else if (json_is_array(one))
            TRY(request_prompt_ids(r, one, vocab, fault));
        else
            return field_fault(fault, "prompt", "entry %zu: expected a string or ids, found %s", i,
                               json_type_text(one));
    }
    return STATUS_OK;
}

static Status request_completions(WireRequest *r, int32_t vocab, WireFault *fault) {
    int64_t n_top = -1, best_of = r->n_choices;
    TRY(request_prompts(r, vocab, fault));
    TRY(field_text(&r->suffix, r->body, "suffix", fault));
    TRY(field_bool(&r->is_echo, r->body, "echo", fault));
    TRY(field_int(&n_top, r->body, "logprobs", 0, LIMIT_TOP_LOGPROBS, fault));
    TRY(field_int(&best_of, r->body, "best_of", 1, WIRE_MAX_CHOICES, fault));
    if (best_of != r->n_choices)
        return field_fault(fault, "best_of", "expected the value of n, %d, found %lld",
                           r->n_choices, (long long)best_of);
    if (r->n_prompts * r->n_choices > WIRE_MAX_CHOICES)
        return field_fault(fault, "n", "expected at most %d choices over all prompts, found %d",
                           WIRE_MAX_CHOICES, r->n_prompts * r->n_choices);
    if (r->suffix.ptr && r->is_echo)
        return field_fault(fault, "echo", "does not go with suffix");
    if (r->is_echo && n_top >= 0)
        return field_fault(fault, "echo",
                           "log-probabilities of the prompt are not given: echo does "
                           "not go with logprobs");
    r->want_logprobs = n_top >= 0;
    r->n_top_logprobs = n_top > 0 ? (int32_t)n_top : 0;
    r->turn.thinking_budget = -1;
    if (!field_get(r->body, "max_tokens"))
        r->turn.max_tokens = 16; // this form's own default
    return STATUS_OK;
}

Status wire_request_parse(WireRequest *out, WireForm form, StrView body, const Generation *defaults,
                          int32_t vocab, WireFault *fault) {
    out->form = form;
    TRY(field_body(&out->body, body, fault));
    TRY(request_common(out, defaults, vocab, fault));
    TRY(form == WIRE_CHAT ? request_chat(out, fault) : request_completions(out, vocab, fault));
    out->turn.sample.want_logprob = out->want_logprobs;
    out->turn.sample.n_top = out->n_top_logprobs;
    return request_unknown(out, fault);
}

void wire_request_fini(WireRequest *r) {
    json_decref(r->body);
    arena_fini(&r->arena);
    *r = (WireRequest){0};
}

Status wire_request_prompt(TokenIds *out, const WireRequest *r, int32_t i,
                           const Tokenizer *tokenizer, WireFault *fault) {
    const WirePrompt *p = &r->prompts[i];
    Err *err = &fault->err;
    snprintf(fault->param, sizeof fault->param, "prompt");
    if (p->ids) {
        TRY(token_ids_reserve(out, (size_t)p->n_ids, err));
        for (int32_t j = 0; j < p->n_ids; j++)
            TRY(token_ids_append(out, p->ids[j], err));
        return STATUS_OK;
    }
    if (!r->suffix.ptr)
        return tokenizer_encode(tokenizer, out, p->text, NULL, err);
    static const char *const names[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};
    const StrView texts[] = {p->text, r->suffix, {0}};
    for (size_t j = 0; j < COUNT_OF(names); j++) {
        int32_t id = tokenizer_find_added(tokenizer, str_view(names[j], strlen(names[j])));
        if (id < 0)
            return field_fault(fault, "suffix", "this model's vocabulary has no %s", names[j]);
        TRY(token_ids_append(out, id, err));
        TRY(tokenizer_encode_plain(tokenizer, out, texts[j], err));
    }
    return STATUS_OK;
}

/* ---- errors ---- */

void wire_error_json(StrBuf *out, const char *type, const char *code, const char *param,
                     const char *message) {
    json_t *v = json_pack("{s:{s:s, s:s, s:s?, s:s}}", "error", "message", message, "type", type,
                          "param", param && *param ? param : NULL, "code", code);
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    strbuf_append_view(out,
                       text ? str_view(text, strlen(text))
                            : STR("{\"error\":{\"message\":\"out of memory\",\"type\":"
                                  "\"server_error\",\"param\":null,\"code\":\"out_of_memory\"}}"));
    mem_free(text);
    json_decref(v);
}

void wire_fault_json(StrBuf *out, const WireFault *fault) {
    static const char *const types[STATUS_N] = {
        [STATUS_INVALID] = "invalid_request_error",    [STATUS_NOT_FOUND] = "invalid_request_error",
        [STATUS_DENIED] = "permission_error",          [STATUS_TOO_LARGE] = "invalid_request_error",
        [STATUS_CONTEXT] = "invalid_request_error",    [STATUS_BUSY] = "rate_limit_error",
        [STATUS_UNSUPPORTED] = "invalid_request_error"};
    Status code = fault->err.code;
    wire_error_json(out, types[code] ? types[code] : "server_error", status_name(code),
                    fault->param, fault->err.text);
}
