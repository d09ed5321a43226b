// SPDX-License-Identifier: Apache-2.0
/* test_config.c - the config of the oracle, both forms, and every field that must be as it is.
 *
 * Owns:     nothing.  Thread: one.
 * Not here: the quantisation block (test_quant_table.c). */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/config.h"

#include "ckpt_case.h"

#define ORACLE_A "tests/data/oracle/tiny-a/config.json"

static json_t *read_config(const char *path) {
    json_t *v = NULL;
    assert_int_equal(json_read_file(&v, path, 1 << 20, NULL), STATUS_OK);
    return v;
}

/* Takes root. */
static Status parse(ModelConfig *out, json_t *root, Err *err) {
    char *text = json_dumps(root, JSON_COMPACT);
    QuantTable *quant = NULL;
    Status status = config_parse(out, &quant, str_view(text, strlen(text)), "config.json", err);
    assert_true((status == STATUS_OK) == (quant != NULL));
    quant_table_close(quant);
    free(text);
    json_decref(root);
    return status;
}

static void check_oracle_a(const ModelConfig *c) {
    assert_int_equal(c->hidden, 192);
    assert_int_equal(c->n_layers, 8);
    assert_int_equal(c->vocab, 512);
    assert_int_equal(c->n_q_heads, 4);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->n_gdn_key_heads, 2);
    assert_int_equal(c->n_gdn_value_heads, 4);
    assert_int_equal(c->n_experts, 16);
    assert_int_equal(c->top_k, 4);
    assert_int_equal(c->expert_inner, 64);
    assert_int_equal(c->shared_inner, 128);
    assert_int_equal(c->max_positions, 262144);
    assert_true(c->rope_theta == 1e7 && c->rms_eps == 1e-6);
    assert_true(c->is_norm_topk);
    for (int i = 0; i < 8; i++)
        assert_int_equal(c->is_attn[i], i % 4 == 3);
    assert_int_equal(config_n_attn_layers(c), 2);
    assert_int_equal(config_conv_dim(c), 1024);
    assert_int_equal(config_q_dim(c), 1024);
}

static void oracle_configs(void **state) {
    UNUSED(state);
    ModelConfig c;
    Err err = {0};
    assert_int_equal(parse(&c, read_config(ORACLE_A), &err), STATUS_OK);
    check_oracle_a(&c);
    assert_false(c.is_tied);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 510);
    assert_int_equal(c.eos[1], 508);
    assert_int_equal(parse(&c, read_config("tests/data/oracle/tiny-b/config.json"), &err),
                     STATUS_OK);
    assert_true(c.is_tied);
    assert_int_equal(c.vocab, 1000);
}

/* The text fields at the top, with either model_type; the quantisation under its other name. */
static void flat_form(void **state) {
    UNUSED(state);
    static const char *const TYPES[] = {"qwen3_5_moe_text", "qwen3_5_moe"};
    for (size_t i = 0; i < COUNT_OF(TYPES); i++) {
        json_t *root = read_config(ORACLE_A);
        json_t *flat = json_deep_copy(json_object_get(root, "text_config"));
        json_object_set_new(flat, "model_type", json_string(TYPES[i]));
        json_object_set(flat, "quantization_config", json_object_get(root, "quantization"));
        json_decref(root);
        ModelConfig c;
        Err err = {0};
        if (parse(&c, flat, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        check_oracle_a(&c);
        assert_int_equal(c.n_eos, 1); // the scalar of the text fields
        assert_int_equal(c.eos[0], 508);
    }
}

/* Fields that may be absent, and what they then mean. */
static void absent_fields(void **state) {
    UNUSED(state);
    static const char *const OPTIONAL[] = {
        "attn_output_gate",        "attention_bias", "tie_word_embeddings",
        "full_attention_interval", "dtype",          "eos_token_id",
        "partial_rotary_factor"};
    for (size_t i = 0; i < COUNT_OF(OPTIONAL); i++) {
        json_t *root = read_config(ORACLE_A);
        assert_int_equal(json_object_del(json_object_get(root, "text_config"), OPTIONAL[i]), 0);
        ModelConfig c;
        Err err = {0};
        if (parse(&c, root, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        check_oracle_a(&c);
    }
    json_t *root = read_config(ORACLE_A), *text = json_object_get(root, "text_config");
    json_object_del(text, "layer_types"); // the interval alone
    json_object_del(text, "tie_word_embeddings");
    json_object_del(root, "tie_word_embeddings");
    ModelConfig c;
    assert_int_equal(parse(&c, root, NULL), STATUS_OK);
    check_oracle_a(&c);
    assert_false(c.is_tied);
}

/* Sets text_config.KEY (or, with a dot in front, KEY of the top) to a JSON text; NULL: removes. */
typedef struct Change {
    const char *key, *value;
    Status status;
    const char *texts[2];
} Change;

static const Change CHANGES[] = {
    {"hidden_size", NULL, STATUS_FORMAT, {"text_config: hidden_size", "found nothing"}},
    {"hidden_size", "0", STATUS_FORMAT, {"hidden_size", "found 0"}},
    {"hidden_size", "-192", STATUS_FORMAT, {"hidden_size", "found -192"}},
    {"hidden_size", "4294967488", STATUS_FORMAT, {"hidden_size", "found 4294967488"}},
    {"hidden_size", "192.0", STATUS_FORMAT, {"hidden_size", "found a real number"}},
    {"hidden_size", "\"192\"", STATUS_FORMAT, {"hidden_size", "found a string"}},
    {"num_hidden_layers", "257", STATUS_FORMAT, {"num_hidden_layers", "found 257"}},
    {"num_hidden_layers", "7", STATUS_FORMAT, {"layer_types", "expected a list of 7"}},
    {"vocab_size", "0", STATUS_FORMAT, {"vocab_size", "found 0"}},
    {"num_attention_heads", "3", STATUS_FORMAT, {"num_attention_heads", "found 3"}},
    {"num_attention_heads", "258", STATUS_FORMAT, {"num_attention_heads", "found 258"}},
    {"num_key_value_heads", "0", STATUS_FORMAT, {"num_key_value_heads", "found 0"}},
    {"linear_num_value_heads", "5", STATUS_FORMAT, {"linear_num_value_heads", "found 5"}},
    {"linear_num_key_heads", "1024", STATUS_FORMAT, {"linear_num_key_heads", "found 1024"}},
    {"num_experts", "3", STATUS_FORMAT, {"num_experts_per_tok", "expected at most num_experts 3"}},
    {"num_experts", "2000", STATUS_FORMAT, {"num_experts", "found 2000"}},
    {"num_experts_per_tok", "33", STATUS_FORMAT, {"num_experts_per_tok", "found 33"}},
    {"moe_intermediate_size", "true", STATUS_FORMAT, {"moe_intermediate_size", "found true"}},
    {"shared_expert_intermediate_size", "0", STATUS_FORMAT, {"shared_expert", "found 0"}},
    {"max_position_embeddings", "99999999", STATUS_FORMAT, {"max_position", "found 99999999"}},
    {"head_dim", "128", STATUS_UNSUPPORTED, {"head_dim: expected 256", "found 128"}},
    {"head_dim", NULL, STATUS_FORMAT, {"head_dim", "found nothing"}},
    {"linear_key_head_dim", "64", STATUS_UNSUPPORTED, {"linear_key_head_dim", "found 64"}},
    {"linear_value_head_dim", "256", STATUS_UNSUPPORTED, {"linear_value_head_dim", "found 256"}},
    {"linear_conv_kernel_dim", "3", STATUS_UNSUPPORTED, {"linear_conv_kernel_dim", "found 3"}},
    {"hidden_act", "\"gelu\"", STATUS_UNSUPPORTED, {"hidden_act", "found \"gelu\""}},
    {"hidden_act", "1", STATUS_FORMAT, {"hidden_act", "found an integer"}},
    {"attn_output_gate", "false", STATUS_UNSUPPORTED, {"attn_output_gate", "found false"}},
    {"attention_bias", "true", STATUS_UNSUPPORTED, {"attention_bias", "found true"}},
    {"attention_bias", "0", STATUS_FORMAT, {"attention_bias", "found an integer"}},
    {"norm_topk_prob", "false", STATUS_UNSUPPORTED, {"norm_topk_prob", "found false"}},
    {"decoder_sparse_step", "2", STATUS_UNSUPPORTED, {"decoder_sparse_step", "found 2"}},
    {"mlp_only_layers", "[1]", STATUS_UNSUPPORTED, {"mlp_only_layers", "longer list"}},
    {"mlp_only_layers", "[]", STATUS_OK, {NULL}},
    {"mlp_only_layers", "null", STATUS_OK, {NULL}},
    {"output_gate_type", "\"swish\"", STATUS_OK, {NULL}},
    {"output_gate_type", "\"tanh\"", STATUS_UNSUPPORTED, {"output_gate_type", "\"tanh\""}},
    {"rms_norm_eps", "0", STATUS_FORMAT, {"rms_norm_eps", "found 0"}},
    {"rms_norm_eps", "-1e-6", STATUS_FORMAT, {"rms_norm_eps", "found -1e-06"}},
    {"rms_norm_eps", NULL, STATUS_FORMAT, {"rms_norm_eps", "found nothing"}},
    {"rope_parameters", NULL, STATUS_FORMAT, {"rope_theta", "found nothing"}},
    {"rope_parameters", "[]", STATUS_FORMAT, {"rope_parameters", "found a list"}},
    {"rope_parameters",
     "{\"rope_theta\":1e7,\"rope_type\":\"yarn\"}",
     STATUS_UNSUPPORTED,
     {"rope_parameters: rope_type", "found \"yarn\""}},
    {"rope_parameters",
     "{\"rope_theta\":1e7,\"type\":\"linear\"}",
     STATUS_UNSUPPORTED,
     {"rope_parameters: type", "found \"linear\""}},
    {"rope_parameters", "{\"rope_theta\":0}", STATUS_FORMAT, {"rope_theta", "found 0"}},
    {"rope_parameters", "{\"rope_theta\":\"x\"}", STATUS_FORMAT, {"rope_theta", "a string"}},
    {"rope_parameters",
     "{\"rope_theta\":1e7,\"partial_rotary_factor\":0.5}",
     STATUS_FORMAT,
     {"partial_rotary_factor", "expected 0.5 as in rope_parameters, found 0.25"}},
    {"partial_rotary_factor", "1.0", STATUS_FORMAT, {"partial_rotary_factor", "found 1"}},
    {"rope_theta", "1e7", STATUS_OK, {NULL}},
    {"rope_theta", "10000", STATUS_FORMAT, {"rope_theta", "found 10000"}},
    {"rope_scaling", "null", STATUS_OK, {NULL}},
    {"rope_scaling", "{\"type\":\"yarn\"}", STATUS_UNSUPPORTED, {"rope_scaling", "an object"}},
    {"layer_types", "\"x\"", STATUS_FORMAT, {"layer_types", "found a string"}},
    {"layer_types", "[1,2,3,4,5,6,7,8]", STATUS_FORMAT, {"layer_types[0]", "an integer"}},
    {"full_attention_interval",
     "2",
     STATUS_FORMAT,
     {"layer_types[1]", "expected \"full_attention\" by full_attention_interval 2"}},
    {"full_attention_interval", "0", STATUS_FORMAT, {"full_attention_interval", "found 0"}},
    {"model_type", "\"qwen3_next\"", STATUS_UNSUPPORTED, {"text_config: model_type", "qwen3_next"}},
    {"tie_word_embeddings", "true", STATUS_FORMAT, {"tie_word_embeddings", "found false"}},
    {"tie_word_embeddings", "1", STATUS_FORMAT, {"tie_word_embeddings", "found an integer"}},
    {"eos_token_id", "512", STATUS_FORMAT, {"eos_token_id", "found 512"}},
    {".eos_token_id", "-1", STATUS_FORMAT, {"config.json: eos_token_id", "found -1"}},
    {".eos_token_id", "\"x\"", STATUS_FORMAT, {"eos_token_id", "found a string"}},
    {".eos_token_id", "[1,[2]]", STATUS_FORMAT, {"eos_token_id", "found a list"}},
    {".eos_token_id",
     "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
     STATUS_TOO_LARGE,
     {"eos_token_id", "at most 16"}},
    {".eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,1]", STATUS_OK, {NULL}},
    {".eos_token_id", "null", STATUS_OK, {NULL}},
    {".eos_token_id", "3", STATUS_OK, {NULL}},
    {".model_type", "\"qwen3_5\"", STATUS_UNSUPPORTED, {"config.json: model_type", "\"qwen3_5\""}},
    {".model_type", NULL, STATUS_FORMAT, {"config.json: model_type", "found nothing"}},
    {".text_config", "[]", STATUS_FORMAT, {"text_config", "found a list"}},
    {".text_config", NULL, STATUS_FORMAT, {"hidden_size", "found nothing"}},
    {".quantization", "4", STATUS_FORMAT, {"config.json: quantization", "found an integer"}},
    {".quantization", NULL, STATUS_OK, {NULL}}, // quantization_config is there
    {".vision_config", NULL, STATUS_OK, {NULL}},
};

static void each_field_is_checked(void **state) {
    UNUSED(state);
    int n_bad = 0;
    for (size_t i = 0; i < COUNT_OF(CHANGES); i++) {
        const Change *ch = &CHANGES[i];
        json_t *root = read_config(ORACLE_A);
        bool is_top = ch->key[0] == '.';
        json_t *object = is_top ? root : json_object_get(root, "text_config");
        const char *key = ch->key + is_top;
        if (ch->value)
            json_object_set_new(object, key, json_loads(ch->value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(object, key);
        ModelConfig c;
        Err err = {0};
        Status status = parse(&c, root, &err);
        bool is_good = status == ch->status;
        for (int j = 0; j < 2 && ch->texts[j]; j++)
            is_good = is_good && strstr(err.text, ch->texts[j]) && strstr(err.text, "config.json");
        if (!is_good) {
            print_error("%s = %s: %s: %s\n", ch->key, ch->value ? ch->value : "nothing",
                        status_name(status), err.text);
            n_bad++;
        }
    }
    assert_int_equal(n_bad, 0);
}

static void not_quantised_is_told(void **state) {
    UNUSED(state);
    json_t *root = read_config(ORACLE_A);
    json_object_del(root, "quantization");
    json_object_del(root, "quantization_config");
    ModelConfig c;
    Err err = {0};
    assert_int_equal(parse(&c, root, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "config.json: quantization"));
}

static void not_an_object(void **state) {
    UNUSED(state);
    static const char *const TEXTS[] = {"[]", "3", "\"x\"", "null", "", "{\"text_config\":{}"};
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        ModelConfig c;
        QuantTable *quant = NULL;
        Err err = {0};
        assert_int_equal(
            config_parse(&c, &quant, str_view(TEXTS[i], strlen(TEXTS[i])), "config.json", &err),
            STATUS_FORMAT);
        assert_non_null(strstr(err.text, "config.json"));
        assert_null(quant);
    }
}

static void generation_keeps_the_rest(void **state) {
    UNUSED(state);
    ModelConfig c;
    assert_int_equal(parse(&c, read_config(ORACLE_A), NULL), STATUS_OK);
    Err err = {0};
    assert_int_equal(config_parse_generation(&c, STR("{\"eos_token_id\":[1,600]}"), "g.json", &err),
                     STATUS_FORMAT);
    assert_non_null(strstr(err.text, "g.json: eos_token_id"));
    assert_int_equal(c.n_eos, 2); // untouched by a failure
    assert_int_equal(c.eos[0], 510);
    assert_int_equal(config_parse_generation(&c, STR("[]"), "g.json", &err), STATUS_FORMAT);
    assert_int_equal(config_parse_generation(&c, STR("{\"eos_token_id\":0}"), "g.json", &err),
                     STATUS_OK);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 0);
    check_oracle_a(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_configs),
        cmocka_unit_test(flat_form),
        cmocka_unit_test(absent_fields),
        cmocka_unit_test(each_field_is_checked),
        cmocka_unit_test(not_quantised_is_told),
        cmocka_unit_test(not_an_object),
        cmocka_unit_test(generation_keeps_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
