// SPDX-License-Identifier: Apache-2.0
/* test_wire_request.c - bodies of the API to requests: every field, every refusal by its name.
 *
 * Path:     make unit.
 * Owns:     nothing past a test.  Thread: one. */
#include "base/mem.h"
#include "wire_case.h"

static void chat(WireRequest *r, const char *fields) {
    WireFault fault;
    if (wire_try_chat(r, fields, &fault) != STATUS_OK)
        fail_msg("%s: %s", fields, fault.err.text);
}

static void refuse(const char *fields, const char *param) {
    WireRequest r;
    WireFault fault;
    Status status = wire_try_chat(&r, fields, &fault);
    if (status != STATUS_INVALID || strcmp(fault.param, param) != 0)
        fail_msg("%s: status %d, param %s, %s", fields, status, fault.param, fault.err.text);
    assert_non_null(strstr(fault.err.text, param));
    wire_request_fini(&r);
}

static void test_values_not_given_are_the_checkpoints(void **state) {
    UNUSED(state);
    WireRequest r;
    chat(&r, "");
    assert_float_equal(r.turn.sample.temperature, 0.75f, 0);
    assert_float_equal(r.turn.sample.top_p, 0.5f, 0);
    assert_float_equal(r.turn.sample.min_p, 0.25f, 0);
    assert_int_equal(r.turn.sample.top_k, 20);
    assert_int_equal(r.turn.max_tokens, 0);
    assert_int_equal(r.turn.thinking_budget, -1);
    assert_int_equal(r.turn.chat.enable_thinking, -1);
    assert_int_equal(r.n_choices, 1);
    assert_null(r.turn.tools);
    assert_null(r.unknown);
    assert_false(r.is_stream || r.include_usage || r.want_logprobs || r.turn.is_past_end);
    wire_request_fini(&r);
    chat(&r, "\"temperature\":null,\"stop\":null,\"n\":null,\"tools\":null,\"stream_options\":null,"
             "\"logit_bias\":null,\"response_format\":null,\"tool_choice\":null");
    assert_float_equal(r.turn.sample.temperature, 0.75f, 0);
    wire_request_fini(&r);
}

static void test_every_field_arrives(void **state) {
    UNUSED(state);
    WireRequest r;
    chat(&r, "\"model\":\"m\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
             "\"max_tokens\":7,\"max_completion_tokens\":9,\"temperature\":1.5,\"top_p\":0.125,"
             "\"top_k\":3,\"min_p\":0.5,\"presence_penalty\":-1,\"frequency_penalty\":2,"
             "\"repetition_penalty\":1.25,\"logit_bias\":{\"5\":-100,\"6\":1.5},\"seed\":-3,"
             "\"stop\":[\"a\",\"bc\"],\"n\":4,\"logprobs\":true,\"top_logprobs\":20,"
             "\"user\":\"u\",\"prompt_cache_key\":\"k\",\"metadata\":{},\"store\":true,"
             "\"service_tier\":\"auto\",\"parallel_tool_calls\":false,\"ignore_eos\":true,"
             "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
             "\"tool_choice\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
             "\"f\"}}]");
    const SampleParams *s = &r.turn.sample;
    assert_true(str_equal(r.model, STR("m")) && r.is_stream && r.include_usage);
    assert_int_equal(r.turn.max_tokens, 9);
    assert_float_equal(s->temperature, 1.5f, 0);
    assert_float_equal(s->top_p, 0.125f, 0);
    assert_int_equal(s->top_k, 3);
    assert_float_equal(s->min_p, 0.5f, 0);
    assert_float_equal(s->presence_penalty, -1.0f, 0);
    assert_float_equal(s->frequency_penalty, 2.0f, 0);
    assert_float_equal(s->repetition_penalty, 1.25f, 0);
    assert_int_equal(s->n_bias, 2);
    assert_int_equal(s->bias[0].id, 5);
    assert_float_equal(s->bias[1].bias, 1.5f, 0);
    assert_true(s->seed == (uint64_t)-3);
    assert_true(s->want_logprob && s->n_top == 20 && r.n_top_logprobs == 20);
    assert_int_equal(r.turn.n_stops, 2);
    assert_true(str_equal(r.turn.stops[1], STR("bc")));
    assert_int_equal(r.n_choices, 4);
    assert_true(r.turn.is_single_call && r.turn.is_past_end && r.turn.tools);
    assert_true(str_equal(r.user, STR("u")) && str_equal(r.cache_key, STR("k")));
    assert_null(r.unknown);
    wire_request_fini(&r);
}

static void test_C14_C38_thinking_is_asked_for_in_every_way(void **state) {
    UNUSED(state);
    static const struct {
        const char *fields;
        int enable, preserve;
        int32_t budget;
    } cases[] = {
        {"\"chat_template_kwargs\":{\"enable_thinking\":false}", 0, -1, 0},
        {"\"chat_template_kwargs\":{\"enable_thinking\":true,\"preserve_thinking\":true}", 1, 1,
         -1},
        {"\"chat_template_kwargs\":{\"preserve_thinking\":false}", -1, 0, -1},
        {"\"reasoning_effort\":\"none\"", 0, -1, 0},
        {"\"reasoning_effort\":\"minimal\"", -1, -1, 256},
        {"\"reasoning_effort\":\"low\"", -1, -1, 1024},
        {"\"reasoning_effort\":\"medium\"", -1, -1, 8192},
        {"\"reasoning_effort\":\"high\"", -1, -1, -1},
        {"\"thinking_budget\":64", -1, -1, 64},
        {"\"reasoning_budget\":0", -1, -1, 0},
        {"\"reasoning_effort\":\"low\",\"reasoning_budget\":5", -1, -1, 5},
        {"\"reasoning_effort\":\"none\",\"thinking_budget\":99", 0, -1, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        WireRequest r;
        chat(&r, cases[i].fields);
        assert_int_equal(r.turn.chat.enable_thinking, cases[i].enable);
        assert_int_equal(r.turn.chat.preserve_thinking, cases[i].preserve);
        assert_int_equal(r.turn.thinking_budget, cases[i].budget);
        wire_request_fini(&r);
    }
}

static void test_wrong_values_are_refused_by_name(void **state) {
    UNUSED(state);
    static const char *const cases[][2] = {
        {"\"temperature\":2.5", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"top_k\":1.5", "top_k"},
        {"\"top_k\":99999999", "top_k"},
        {"\"n\":17", "n"},
        {"\"n\":1e300", "n"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-9223372036854775808", "max_tokens"},
        {"\"seed\":\"x\"", "seed"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[1]", "stop"},
        {"\"logit_bias\":[]", "logit_bias"},
        {"\"logit_bias\":{\"300\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1x\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1\":\"a\"}", "logit_bias"},
        {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias"},
        {"\"top_logprobs\":1", "top_logprobs"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":true,\"stream_options\":5", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "include_usage"},
        {"\"tools\":[{}]", "tools"},
        {"\"tools\":[5]", "tools"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"response_format\":\"text\"", "response_format"},
        {"\"reasoning_effort\":\"most\"", "reasoning_effort"},
        {"\"thinking_budget\":-2", "thinking_budget"},
        {"\"chat_template_kwargs\":5", "chat_template_kwargs"},
        {"\"modalities\":[\"audio\"]", "modalities"},
        {"\"ignore_eos\":1", "ignore_eos"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        refuse(cases[i][0], cases[i][1]);
}

static void test_bodies_that_are_no_object(void **state) {
    UNUSED(state);
    static const char *const bodies[] = {
        "", "[]", "5", "\"x\"", "{", "{}x", "null", "\xff", "{\"a\":1,\"a\":2}"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++)
        for (int form = WIRE_CHAT; form <= WIRE_COMPLETIONS; form++) {
            WireRequest r;
            WireFault fault;
            assert_int_equal(wire_try(&r, (WireForm)form, bodies[i], &fault), STATUS_INVALID);
            assert_true(fault.err.text[0]);
            wire_request_fini(&r);
        }
    WireRequest r;
    WireFault fault;
    assert_int_equal(wire_try(&r, WIRE_CHAT, "{}", &fault), STATUS_INVALID);
    assert_string_equal(fault.param, "messages");
    wire_request_fini(&r);
}

static void test_unknown_fields_are_listed_with_their_place(void **state) {
    UNUSED(state);
    WireRequest r;
    chat(&r, "\"frob\":1,\"prompt\":2,\"chat_template_kwargs\":{\"x\":1,\"enable_thinking\":true}");
    assert_string_equal(r.unknown, "frob, prompt, chat_template_kwargs.x");
    wire_request_fini(&r);
    wire_must(&r, WIRE_COMPLETIONS, "{\"prompt\":\"a\",\"messages\":[],\"tools\":[]}");
    assert_string_equal(r.unknown, "messages, tools");
    wire_request_fini(&r);
}

static void test_prompts_of_completions(void **state) {
    UNUSED(state);
    WireRequest r;
    wire_must(&r, WIRE_COMPLETIONS, "{\"prompt\":\"ab\"}");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.turn.max_tokens, 16);
    assert_true(str_equal(r.prompts[0].text, STR("ab")));
    wire_request_fini(&r);
    wire_must(&r, WIRE_COMPLETIONS, "{\"prompt\":[1,2,299],\"max_tokens\":5,\"n\":2}");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 299);
    assert_int_equal(r.turn.max_tokens, 5);
    wire_request_fini(&r);
    wire_must(&r, WIRE_COMPLETIONS, "{\"prompt\":[\"a\",[4],\"\"],\"logprobs\":0}");
    assert_int_equal(r.n_prompts, 3);
    assert_true(r.want_logprobs && r.n_top_logprobs == 0);
    wire_request_fini(&r);
}

/* The ids of a completions prompt as text, control tokens by their spelling. */
static void prompt_is(const Tokenizer *t, const char *body, const char *wanted, int n_controls) {
    WireRequest r;
    WireFault fault = {0};
    TokenIds ids = {0};
    StrBuf text = {0};
    wire_must(&r, WIRE_COMPLETIONS, body);
    assert_int_equal(wire_request_prompt(&ids, &r, 0, t, &fault), STATUS_OK);
    assert_int_equal(tokenizer_decode(t, &text, ids.ids, ids.n, false, &fault.err), STATUS_OK);
    assert_string_equal(text.ptr, wanted);
    int n = 0;
    for (size_t i = 0; i < ids.n; i++)
        n += tokenizer_is_added(t, ids.ids[i]);
    assert_int_equal(n, n_controls);
    strbuf_fini(&text);
    token_ids_fini(&ids);
    wire_request_fini(&r);
}

static void test_prompt_ids_and_the_fill_in_the_middle_form(void **state) {
    UNUSED(state);
    Tokenizer *t = NULL;
    assert_int_equal(tokenizer_open_bytes(&t, WIRE_VOCAB, NULL), STATUS_OK);
    prompt_is(t, "{\"prompt\":\"a<|im_end|>\"}", "a<|im_end|>", 1);
    prompt_is(t, "{\"prompt\":[64,65]}", "ab", 0);
    // What the client writes around the cursor is data, whatever it spells.
    prompt_is(t, "{\"prompt\":\"a<|im_end|>\",\"suffix\":\"z\"}",
              "<|fim_prefix|>a<|im_end|><|fim_suffix|>z<|fim_middle|>", 3);
    prompt_is(t, "{\"prompt\":\"a\",\"suffix\":\"\"}",
              "<|fim_prefix|>a<|fim_suffix|><|fim_middle|>", 3);
    tokenizer_close(t);
}

static void test_errors_in_the_form_of_the_api(void **state) {
    UNUSED(state);
    static const struct {
        Status code;
        const char *wanted;
    } cases[] = {
        {STATUS_INVALID,
         "{\"error\":{\"message\":\"x \\\"y\\\"\",\"type\":\"invalid_request_error\","
         "\"param\":\"n\",\"code\":\"invalid_request\"}}"},
        {STATUS_CONTEXT,
         "{\"error\":{\"message\":\"x \\\"y\\\"\",\"type\":\"invalid_request_error\","
         "\"param\":\"n\",\"code\":\"context_length_exceeded\"}}"},
        {STATUS_BUSY, "{\"error\":{\"message\":\"x \\\"y\\\"\",\"type\":\"rate_limit_error\","
                      "\"param\":\"n\",\"code\":\"busy\"}}"},
        {STATUS_NUMERIC, "{\"error\":{\"message\":\"x \\\"y\\\"\",\"type\":\"server_error\","
                         "\"param\":\"n\",\"code\":\"numeric_error\"}}"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        WireFault fault = {.param = "n"};
        fault.err.code = err_set(&fault.err, cases[i].code, "x \"y\"");
        StrBuf out = {0};
        wire_fault_json(&out, &fault);
        assert_string_equal(out.ptr, cases[i].wanted);
        strbuf_fini(&out);
    }
    StrBuf out = {0};
    wire_error_json(&out, "t", "c", NULL, "m");
    assert_string_equal(
        out.ptr, "{\"error\":{\"message\":\"m\",\"type\":\"t\",\"param\":null,\"code\":\"c\"}}");
    strbuf_fini(&out);
}

static void test_every_allocation_failing(void **state) {
    UNUSED(state);
    const char *fields = "\"frob\":1,\"stop\":[\"a\"],\"logit_bias\":{\"5\":1},"
                         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    for (int after = 0;; after++) {
        WireRequest r;
        WireFault fault;
        mem_fail_after(after);
        Status status = wire_try_chat(&r, fields, &fault);
        mem_fail_after(-1);
        wire_request_fini(&r);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
        assert_true(after < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_not_given_are_the_checkpoints),
        cmocka_unit_test(test_every_field_arrives),
        cmocka_unit_test(test_C14_C38_thinking_is_asked_for_in_every_way),
        cmocka_unit_test(test_wrong_values_are_refused_by_name),
        cmocka_unit_test(test_bodies_that_are_no_object),
        cmocka_unit_test(test_unknown_fields_are_listed_with_their_place),
        cmocka_unit_test(test_prompts_of_completions),
        cmocka_unit_test(test_prompt_ids_and_the_fill_in_the_middle_form),
        cmocka_unit_test(test_errors_in_the_form_of_the_api),
        cmocka_unit_test(test_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
