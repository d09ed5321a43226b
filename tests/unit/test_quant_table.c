// SPDX-License-Identifier: Apache-2.0
/* test_quant_table.c - every form of an override, and every block that is refused.
 *
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/quant_table.h"

#include "base/json.h"
#include "unit.h"

static Status parse(QuantTable **out, const char *text, Err *err) {
    json_t *block = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(block);
    Status status = quant_table_parse(out, block, "config.json: quantization", err);
    json_decref(block);
    return status;
}

static void expect_spec(const QuantTable *t, const char *module, int bits, int group) {
    QuantSpec s = quant_table_find(t, str_view(module, strlen(module)));
    if (s.bits != bits || s.group != group)
        fail_msg("%s: %d bits, groups of %d", module, s.bits, s.group);
}

static void overrides_in_every_form(void **state) {
    UNUSED(state);
    QuantTable *t = NULL;
    Err err = {0};
    const char *text = "{\"group_size\":64,\"bits\":4,\"mode\":\"affine\","
                       "\"language_model.model.layers.0.mlp.gate\":{\"group_size\":64,\"bits\":8},"
                       "\"model.language_model.layers.1.mlp.gate\":{\"bits\":8},"
                       "\"model.layers.2.mlp.gate\":{\"group_size\":32},"
                       "\"layers.3.mlp.gate\":{\"mode\":\"affine\",\"bits\":8,\"group_size\":128},"
                       "\"language_model.layers.4.mlp.gate\":{},"
                       "\"language_model.model.layers.5.mlp.gate\":true,"
                       "\"language_model.model.layers.6.mlp.gate\":false,"
                       "\"language_model.lm_head\":{\"bits\":8},"
                       "\"vision_tower.blocks.0\":false}";
    if (parse(&t, text, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    static const struct {
        int bits, group;
    } EXPECTED[] = {{8, 64}, {8, 64}, {4, 32}, {8, 128}, {4, 64}, {4, 64}, {0, 0}, {4, 64}};
    for (int layer = 0; layer < 8; layer++) {
        static const char *const SCOPES[] = {"language_model.model.", "model.language_model.",
                                             "model.", ""};
        for (size_t s = 0; s < COUNT_OF(SCOPES); s++) {
            char name[96];
            snprintf(name, sizeof name, "%slayers.%d.mlp.gate", SCOPES[s], layer);
            expect_spec(t, name, EXPECTED[layer].bits, EXPECTED[layer].group);
        }
    }
    expect_spec(t, "language_model.lm_head", 8, 64);
    expect_spec(t, "lm_head", 8, 64);
    expect_spec(t, "language_model.model.embed_tokens", 4, 64);
    expect_spec(t, "language_model.model.layers.0.mlp.gate_proj", 4, 64);
    expect_spec(t, "", 4, 64);
    quant_table_close(t);
    quant_table_close(NULL);
}

static void scopes_are_taken_off_once(void **state) {
    UNUSED(state);
    static const char *const CASES[][2] = {
        {"language_model.model.norm", "norm"},
        {"model.language_model.norm", "norm"},
        {"language_model.lm_head", "lm_head"},
        {"model.norm", "norm"},
        {"lm_head", "lm_head"},
        {"model.", ""},
        {"model.model.norm", "model.norm"},
        {"mtp.norm", "mtp.norm"},
        {"language_model", "language_model"},
        {"vision_tower.x", "vision_tower.x"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        StrView out = quant_table_strip_scope(str_view(CASES[i][0], strlen(CASES[i][0])));
        assert_true(str_equal(out, str_view(CASES[i][1], strlen(CASES[i][1]))));
    }
}

static void bad_blocks_are_named(void **state) {
    UNUSED(state);
    static const struct {
        const char *text;
        Status status;
        const char *texts[2];
    } CASES[] = {
        {"[]", STATUS_FORMAT, {"config.json: quantization", "found a list"}},
        {"{}", STATUS_FORMAT, {"bits", "found nothing"}},
        {"{\"bits\":4}", STATUS_FORMAT, {"group_size", "found nothing"}},
        {"{\"bits\":\"4\",\"group_size\":64}", STATUS_FORMAT, {"bits", "found a string"}},
        {"{\"bits\":3,\"group_size\":64}", STATUS_UNSUPPORTED, {"expected 4 or 8", "found 3"}},
        {"{\"bits\":4,\"group_size\":16}", STATUS_UNSUPPORTED, {"group_size", "found 16"}},
        {"{\"bits\":4,\"group_size\":-1}", STATUS_FORMAT, {"group_size", "found -1"}},
        {"{\"bits\":4,\"group_size\":64,\"mode\":\"mxfp4\"}",
         STATUS_UNSUPPORTED,
         {"mode: expected \"affine\"", "found \"mxfp4\""}},
        {"{\"bits\":4,\"group_size\":64,\"mode\":1}", STATUS_FORMAT, {"mode", "an integer"}},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\"}",
         STATUS_UNSUPPORTED,
         {"quant_method", "found \"fp8\""}},
        {"{\"bits\":4,\"group_size\":64,\"a.b\":3}",
         STATUS_FORMAT,
         {"a.b: expected true", "an integer"}},
        {"{\"bits\":4,\"group_size\":64,\"a.b\":{\"bits\":6}}",
         STATUS_UNSUPPORTED,
         {"quantization: a.b: bits", "found 6"}},
        {"{\"bits\":4,\"group_size\":64,\"a.b\":{\"mode\":\"nvfp4\"}}",
         STATUS_UNSUPPORTED,
         {"a.b: mode", "nvfp4"}},
        {"{\"bits\":4,\"group_size\":64,\"a.b\":{\"axis\":1}}",
         STATUS_UNSUPPORTED,
         {"a.b", "\"axis\""}},
        {"{\"bits\":4,\"group_size\":64,\"model.a\":{\"bits\":8},\"a\":true}",
         STATUS_FORMAT,
         {"quantization: a is given twice", "groups of 64"}},
        {"{\"bits\":4,\"group_size\":64,\"model.a\":{\"bits\":8},\"a\":{\"bits\":8}}",
         STATUS_OK,
         {NULL}},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        QuantTable *t = NULL;
        Err err = {0};
        Status status = parse(&t, CASES[i].text, &err);
        bool is_good = status == CASES[i].status && (status == STATUS_OK) == (t != NULL);
        for (int j = 0; j < 2 && CASES[i].texts[j]; j++)
            is_good = is_good && strstr(err.text, CASES[i].texts[j]);
        if (!is_good)
            fail_msg("%s: %s: %s", CASES[i].text, status_name(status), err.text);
        quant_table_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overrides_in_every_form),
        cmocka_unit_test(scopes_are_taken_off_once),
        cmocka_unit_test(bad_blocks_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
