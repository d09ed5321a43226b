// SPDX-License-Identifier: Apache-2.0
/* test_wire_tokens.c - the small routes: models, tokenize, detokenize.
 *
 * Path:     make unit.
 * Owns:     one tokenizer for all tests.  Thread: one. */
#include "base/mem.h"
#include "wire_case.h"

static Tokenizer *tokenizer;

static Status tokenize(const char *body, StrBuf *out, WireFault *fault) {
    *out = (StrBuf){0};
    *fault = (WireFault){0};
    return wire_tokenize(out, str_view(body, strlen(body)), tokenizer, CHAT_QWEN36, 64, fault);
}

static Status detokenize(const char *body, StrBuf *out, WireFault *fault) {
    *out = (StrBuf){0};
    *fault = (WireFault){0};
    return wire_detokenize(out, str_view(body, strlen(body)), tokenizer, fault);
}

static void test_models(void **state) {
    UNUSED(state);
    StrBuf out = {0};
    const char *names[] = {"a \"b\""};
    assert_int_equal(wire_models_json(&out, names, 1, 5, 64, true, NULL), STATUS_OK);
    assert_string_equal(
        out.ptr,
        "{\"object\":\"list\",\"data\":[{\"id\":\"a \\\"b\\\"\",\"object\":\"model\","
        "\"created\":5,\"owned_by\":\"lily\",\"context_length\":64,\"max_model_len\":64}]}\n");
    strbuf_clear(&out);
    assert_int_equal(wire_models_json(&out, names, 1, 5, 64, false, NULL), STATUS_OK);
    assert_true(str_starts(strbuf_view(&out), STR("{\"id\":\"a \\\"b\\\"\",\"object\":\"model\"")));
    strbuf_fini(&out);
}

static void test_tokenize_and_back(void **state) {
    UNUSED(state);
    StrBuf out;
    WireFault fault;
    assert_int_equal(tokenize("{\"content\":\"ab\"}", &out, &fault), STATUS_OK);
    assert_string_equal(out.ptr, "{\"tokens\":[64,65],\"count\":2,\"max_model_len\":64}\n");
    strbuf_fini(&out);
    assert_int_equal(tokenize("{\"prompt\":\"\"}", &out, &fault), STATUS_OK);
    assert_string_equal(out.ptr, "{\"tokens\":[],\"count\":0,\"max_model_len\":64}\n");
    strbuf_fini(&out);
    assert_int_equal(tokenize("{\"content\":\"<|im_end|>\",\"parse_special\":false}", &out, &fault),
                     STATUS_OK);
    assert_non_null(strstr(out.ptr, "\"count\":10,"));
    strbuf_fini(&out);
    assert_int_equal(tokenize("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                              "\"add_generation_prompt\":false}",
                              &out, &fault),
                     STATUS_OK);
    assert_non_null(strstr(out.ptr, "\"count\":9,")); // <|im_start|> user \n a <|im_end|> \n
    strbuf_fini(&out);
    assert_int_equal(detokenize("{\"tokens\":[64,65,0]}", &out, &fault), STATUS_OK);
    assert_string_equal(out.ptr, "{\"content\":\"ab!\",\"prompt\":\"ab!\"}\n");
    strbuf_fini(&out);
    assert_int_equal(detokenize("{\"tokens\":[]}", &out, &fault), STATUS_OK);
    assert_string_equal(out.ptr, "{\"content\":\"\",\"prompt\":\"\"}\n");
    strbuf_fini(&out);
}

static void test_wrong_bodies_are_refused_by_name(void **state) {
    UNUSED(state);
    static const struct {
        const char *body, *param;
    } cases[] = {{"{}", "content"},
                 {"{\"content\":5}", "content"},
                 {"{\"prompt\":[]}", "prompt"},
                 {"{\"content\":\"a\",\"parse_special\":1}", "parse_special"},
                 {"{\"messages\":[],\"add_generation_prompt\":1}", "add_generation_prompt"},
                 {"{\"messages\":5}", ""},
                 {"[]", ""},
                 {"nonsense", ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        StrBuf out;
        WireFault fault;
        assert_int_equal(tokenize(cases[i].body, &out, &fault), STATUS_INVALID);
        assert_string_equal(fault.param, cases[i].param);
        strbuf_fini(&out);
    }
    static const char *const bad[] = {"{}",
                                      "{\"tokens\":5}",
                                      "{\"tokens\":[-1]}",
                                      "{\"tokens\":[300]}",
                                      "{\"tokens\":[1.5]}",
                                      "{\"tokens\":[99999999999]}",
                                      "{\"tokens\":[\"a\"]}"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        StrBuf out;
        WireFault fault;
        assert_int_equal(detokenize(bad[i], &out, &fault), STATUS_INVALID);
        assert_string_equal(fault.param, "tokens");
        strbuf_fini(&out);
    }
}

static void test_every_allocation_failing(void **state) {
    UNUSED(state);
    for (int way = 0; way < 2; way++)
        for (int after = 0;; after++) {
            StrBuf out;
            WireFault fault;
            mem_fail_after(after);
            Status status = way ? detokenize("{\"tokens\":[64,65]}", &out, &fault)
                                : tokenize("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
                                           &out, &fault);
            mem_fail_after(-1);
            strbuf_fini(&out);
            if (status == STATUS_OK)
                break;
            assert_int_equal(status, STATUS_MEMORY);
            assert_true(after < 1000);
        }
}

static int open_all(void **state) {
    UNUSED(state);
    return tokenizer_open_bytes(&tokenizer, WIRE_VOCAB, NULL) == STATUS_OK ? 0 : -1;
}
static int close_all(void **state) {
    UNUSED(state);
    tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_tokenize_and_back),
        cmocka_unit_test(test_wrong_bodies_are_refused_by_name),
        cmocka_unit_test(test_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
