// SPDX-License-Identifier: Apache-2.0
/* fuzz_wire_request.c - bodies of every route into the wire layer.
 *
 * Input: one byte that chooses the route, then the body.
 * Must hold: no crash; a refusal has a text and its JSON form is JSON; what is accepted can be
 * rendered and encoded, or is refused then; its answer is JSON, streamed and whole. */
#include "wire/wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void see_fault(const WireFault *fault) {
    StrBuf out = {0};
    json_t *v = NULL;
    wire_fault_json(&out, fault);
    CHECK(fault->err.text[0] && fault->err.code);
    CHECK(json_read(&v, strbuf_view(&out), "error", NULL) == STATUS_OK);
    CHECK(json_is_string(json_object_get(json_object_get(v, "error"), "code")));
    json_decref(v);
    strbuf_fini(&out);
}

/* Each event of a stream holds one JSON value. */
static void see_events(StrView text) {
    while (text.len) {
        size_t end = str_find(text, STR("\n\n"));
        CHECK(end != SIZE_MAX);
        StrView one = str_view(text.ptr, end);
        CHECK(str_starts(one, STR("data: ")));
        one = str_view(one.ptr + 6, one.len - 6);
        json_t *v = NULL;
        CHECK(str_equal(one, STR("[DONE]")) || json_read(&v, one, "event", NULL) == STATUS_OK);
        json_decref(v);
        text = str_view(text.ptr + end + 2, text.len - end - 2);
    }
}

/* A short answer to whatever was asked for. */
static void see_answer(const WireRequest *r, const Tokenizer *tokenizer) {
    static const Err none;
    static const WireIdentity identity = {.id = "id", .model = "m", .fingerprint = "f"};
    static const SampleResult sample = {.id = 65, .n_top = 1, .top_ids = {66}};
    WireAnswer *a = NULL;
    StrBuf out = {0};
    int32_t n = r->n_choices * (r->form == WIRE_CHAT ? 1 : r->n_prompts);
    CHECK(wire_answer_open(&a, r, &identity, tokenizer, NULL) == STATUS_OK);
    for (int32_t i = 0; i < n; i++) {
        const TurnEvent events[] = {{.kind = TURN_TOKEN, .sample = &sample},
                                    {.kind = TURN_CONTENT, .text = STR("x")},
                                    {.kind = TURN_END, .finish = FINISH_STOP, .err = &none}};
        for (size_t j = 0; j < COUNT_OF(events); j++)
            CHECK(wire_answer_event(a, i, &events[j], &out, NULL) == STATUS_OK);
    }
    CHECK(wire_answer_is_whole(a) && wire_answer_finish(a, &out, NULL) == STATUS_OK);
    if (r->is_stream) {
        see_events(strbuf_view(&out));
    } else {
        json_t *v = NULL;
        CHECK(json_read(&v, strbuf_view(&out), "answer", NULL) == STATUS_OK);
        CHECK(json_array_size(json_object_get(v, "choices")) == (size_t)n);
        json_decref(v);
    }
    wire_answer_close(a);
    strbuf_fini(&out);
}

static void see_request(WireForm form, StrView body, const Tokenizer *tokenizer) {
    static const Generation defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    WireRequest r = {0};
    WireFault fault = {0};
    TokenIds ids = {0};
    Status status = wire_request_parse(&r, form, body, &defaults, 300, &fault);
    if (status == STATUS_OK && form == WIRE_CHAT) {
        ChatPrompt prompt = {0};
        status = chat_render(&prompt, CHAT_QWEN36, r.turn.messages, r.turn.tools, &r.turn.chat,
                             &fault.err);
        chat_prompt_fini(&prompt);
    }
    for (int32_t i = 0; i < r.n_prompts && status == STATUS_OK; i++)
        status = wire_request_prompt(&ids, &r, i, tokenizer, &fault);
    if (status == STATUS_OK)
        see_answer(&r, tokenizer);
    else
        see_fault(&fault);
    token_ids_fini(&ids);
    wire_request_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *tokenizer;
    if (!tokenizer)
        CHECK(tokenizer_open_bytes(&tokenizer, 300, NULL) == STATUS_OK);
    if (size == 0)
        return 0;
    StrView body = str_view((const char *)data + 1, size - 1);
    StrBuf out = {0};
    WireFault fault = {0};
    Status status = STATUS_OK;
    switch (data[0] % 4) {
    case 0: see_request(WIRE_CHAT, body, tokenizer); break;
    case 1: see_request(WIRE_COMPLETIONS, body, tokenizer); break;
    case 2: status = wire_tokenize(&out, body, tokenizer, CHAT_QWEN36, 64, &fault); break;
    default: status = wire_detokenize(&out, body, tokenizer, &fault); break;
    }
    if (status != STATUS_OK)
        see_fault(&fault);
    strbuf_fini(&out);
    return 0;
}
