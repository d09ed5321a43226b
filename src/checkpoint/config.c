// SPDX-License-Identifier: Apache-2.0
/* config.c - each field of config.json that the forward pass depends on, checked by name.
 *
 * Path:     folder.c reads the file; every later layer takes its counts from ModelConfig.
 * Owns:     nothing.  Thread: any.
 * Not here: the quantisation block (quant_table.c); which tensors exist (folder.c). */
#include "checkpoint/config.h"

#include "base/json.h"

int32_t config_n_attn_layers(const ModelConfig *c) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_layers; i++)
        n += c->is_attn[i];
    return n;
}

/* An object of the file and how error texts call it. */
typedef struct Part {
    const json_t *object;
    const char *where;
} Part;

/* ---- single fields: a missing one is an error unless it is optional, another value too ---- */

static Status want_text(Part p, const char *key, const char *expected, bool is_optional, Err *err) {
    const json_t *v = json_object_get(p.object, key);
    if (!v && is_optional)
        return STATUS_OK;
    if (!json_is_string(v))
        return err_set(err, STATUS_FORMAT, "%s: %s: expected \"%s\", found %s", p.where, key,
                       expected, json_type_text(v));
    if (!str_equal(json_text(v), str_view(expected, strlen(expected))))
        return err_set(err, STATUS_UNSUPPORTED, "%s: %s: expected \"%s\", found \"%.60s\"", p.where,
                       key, expected, json_string_value(v));
    return STATUS_OK;
}

static Status want_int(Part p, const char *key, int64_t expected, bool is_optional, Err *err) {
    int64_t found;
    TRY(json_get_int(&found, p.object, key, INT64_MIN, INT64_MAX, is_optional ? &expected : NULL,
                     p.where, err));
    if (found != expected)
        return err_set(err, STATUS_UNSUPPORTED, "%s: %s: expected %lld, found %lld", p.where, key,
                       (long long)expected, (long long)found);
    return STATUS_OK;
}

static Status want_bool(Part p, const char *key, bool expected, Err *err) {
    bool found;
    TRY(json_get_bool(&found, p.object, key, &expected, p.where, err));
    if (found != expected)
        return err_set(err, STATUS_UNSUPPORTED, "%s: %s: expected %s, found %s", p.where, key,
                       expected ? "true" : "false", found ? "true" : "false");
    return STATUS_OK;
}

/* ---- counts ---- */

static Status read_counts(ModelConfig *c, Part p, Err *err) {
    const struct {
        const char *key;
        int32_t *out;
        int32_t high; // keeps every width inside LIMIT_HIDDEN
    } COUNTS[] = {
        {"hidden_size", &c->hidden, LIMIT_HIDDEN},
        {"num_hidden_layers", &c->n_layers, LIMIT_LAYERS},
        {"vocab_size", &c->vocab, LIMIT_VOCAB},
        {"num_attention_heads", &c->n_q_heads, LIMIT_HIDDEN / ATTN_HEAD},
        {"num_key_value_heads", &c->n_kv_heads, LIMIT_HIDDEN / ATTN_HEAD},
        {"linear_num_key_heads", &c->n_gdn_key_heads, LIMIT_HIDDEN / GDN_HEAD},
        {"linear_num_value_heads", &c->n_gdn_value_heads, LIMIT_HIDDEN / GDN_HEAD},
        {"num_experts", &c->n_experts, LIMIT_EXPERTS},
        {"num_experts_per_tok", &c->top_k, LIMIT_TOP_K},
        {"moe_intermediate_size", &c->expert_inner, LIMIT_HIDDEN},
        {"shared_expert_intermediate_size", &c->shared_inner, LIMIT_HIDDEN},
        {"max_position_embeddings", &c->max_positions, LIMIT_CONTEXT},
    };
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        int64_t n;
        TRY(json_get_int(&n, p.object, COUNTS[i].key, 1, COUNTS[i].high, NULL, p.where, err));
        *COUNTS[i].out = (int32_t)n;
    }
    if (c->n_q_heads % c->n_kv_heads != 0)
        return err_set(err, STATUS_FORMAT,
                       "%s: num_attention_heads: expected a multiple of num_key_value_heads %d, "
                       "found %d",
                       p.where, c->n_kv_heads, c->n_q_heads);
    if (c->n_gdn_value_heads % c->n_gdn_key_heads != 0)
        return err_set(err, STATUS_FORMAT,
                       "%s: linear_num_value_heads: expected a multiple of linear_num_key_heads "
                       "%d, found %d",
                       p.where, c->n_gdn_key_heads, c->n_gdn_value_heads);
    if (c->top_k > c->n_experts)
        return err_set(err, STATUS_FORMAT,
                       "%s: num_experts_per_tok: expected at most num_experts %d, found %d",
                       p.where, c->n_experts, c->top_k);
    return STATUS_OK;
}

/* ---- what must be as in the family ---- */

static Status check_constants(ModelConfig *c, Part p, Err *err) {
    TRY(want_int(p, "head_dim", ATTN_HEAD, false, err));
    TRY(want_int(p, "linear_key_head_dim", GDN_HEAD, false, err));
    TRY(want_int(p, "linear_value_head_dim", GDN_HEAD, false, err));
    TRY(want_int(p, "linear_conv_kernel_dim", CONV_TAPS, false, err));
    TRY(want_int(p, "decoder_sparse_step", 1, true, err));
    TRY(want_text(p, "hidden_act", "silu", false, err));
    TRY(want_bool(p, "attn_output_gate", true, err));
    TRY(want_bool(p, "attention_bias", false, err));
    TRY(want_bool(p, "norm_topk_prob", true, err));
    c->is_norm_topk = true;
    const json_t *dense = json_object_get(p.object, "mlp_only_layers");
    if (dense && !json_is_null(dense) && !(json_is_array(dense) && json_array_size(dense) == 0))
        return err_set(err, STATUS_UNSUPPORTED, "%s: mlp_only_layers: expected [], found %s",
                       p.where, json_is_array(dense) ? "a longer list" : json_type_text(dense));
    // Describes the gate behind the delta net; that of full attention is a sigmoid everywhere.
    TRY(want_text(p, "output_gate_type", "swish", true, err));
    TRY(json_get_real(&c->rms_eps, p.object, "rms_norm_eps", NULL, p.where, err));
    if (!(c->rms_eps > 0 && c->rms_eps < 1))
        return err_set(err, STATUS_FORMAT, "%s: rms_norm_eps: expected between 0 and 1, found %g",
                       p.where, c->rms_eps);
    return STATUS_OK;
}

/* ---- rotary positions ---- */

/* A number that may stand in rope_parameters, beside it, or in both with the same value. */
static Status read_rope_number(double *out, Part inner, Part outer, const char *key, Err *err) {
    double a = 0, b = 0;
    const json_t *in = json_object_get(inner.object, key);
    bool has_outer = json_object_get(outer.object, key) != NULL;
    if (in)
        TRY(json_get_real(&a, inner.object, key, NULL, inner.where, err));
    if (has_outer || !in)
        TRY(json_get_real(&b, outer.object, key, NULL, outer.where, err));
    if (in && has_outer && a != b)
        return err_set(err, STATUS_FORMAT, "%s: %s: expected %g as in rope_parameters, found %g",
                       outer.where, key, a, b);
    *out = in ? a : b;
    return STATUS_OK;
}

static Status read_rope(ModelConfig *c, Part p, Err *err) {
    char place[512];
    snprintf(place, sizeof place, "%.480s: rope_parameters", p.where);
    Part inner = {json_object_get(p.object, "rope_parameters"), place};
    if (inner.object && !json_is_object(inner.object))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", place,
                       json_type_text(inner.object));
    const json_t *scaling = json_object_get(p.object, "rope_scaling");
    if (scaling && !json_is_null(scaling))
        return err_set(err, STATUS_UNSUPPORTED, "%s: rope_scaling: expected null, found %s",
                       p.where, json_type_text(scaling));
    if (inner.object) {
        TRY(want_text(inner, "rope_type", "default", true, err));
        TRY(want_text(inner, "type", "default", true, err));
    }
    double share;
    TRY(read_rope_number(&share, inner, p, "partial_rotary_factor", err));
    if (share * ATTN_HEAD != ROPE_DIMS)
        return err_set(err, STATUS_UNSUPPORTED, "%s: partial_rotary_factor: expected %g, found %g",
                       p.where, (double)ROPE_DIMS / ATTN_HEAD, share);
    TRY(read_rope_number(&c->rope_theta, inner, p, "rope_theta", err));
    if (!(c->rope_theta >= 1 && c->rope_theta <= 1e12))
        return err_set(err, STATUS_FORMAT, "%s: rope_theta: expected 1 to 1e12, found %g", p.where,
                       c->rope_theta);
    return STATUS_OK;
}

/* ---- kinds of layers ---- */

static Status read_layer_types(ModelConfig *c, Part p, Err *err) {
    const json_t *types = json_object_get(p.object, "layer_types");
    bool has_interval = json_object_get(p.object, "full_attention_interval") != NULL;
    int64_t interval = 0;
    if (has_interval || !types)
        TRY(json_get_int(&interval, p.object, "full_attention_interval", 1, LIMIT_LAYERS, NULL,
                         p.where, err));
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers))
        return err_set(err, STATUS_FORMAT,
                       "%s: layer_types: expected a list of %d, found %s of %zu", p.where,
                       c->n_layers, json_type_text(types), json_array_size(types));
    for (int32_t i = 0; i < c->n_layers; i++) {
        bool by_interval = has_interval || !types ? i % interval == interval - 1 : false;
        c->is_attn[i] = by_interval;
        if (!types)
            continue;
        const json_t *v = json_array_get(types, (size_t)i);
        StrView kind = json_text(v);
        c->is_attn[i] = str_equal(kind, STR("full_attention"));
        if (!c->is_attn[i] && !str_equal(kind, STR("linear_attention")))
            return err_set(err, json_is_string(v) ? STATUS_UNSUPPORTED : STATUS_FORMAT,
                           "%s: layer_types[%d]: expected \"full_attention\" or "
                           "\"linear_attention\", found %s%.40s",
                           p.where, i, json_is_string(v) ? "" : json_type_text(v),
                           kind.ptr ? kind.ptr : "");
        if (has_interval && c->is_attn[i] != by_interval)
            return err_set(err, STATUS_FORMAT,
                           "%s: layer_types[%d]: expected \"%s\" by full_attention_interval %d, "
                           "found \"%s\"",
                           p.where, i, by_interval ? "full_attention" : "linear_attention",
                           (int)interval, kind.ptr);
    }
    return STATUS_OK;
}

/* ---- end ids, tied matrices ---- */

static Status add_eos(ModelConfig *c, const json_t *v, const char *where, Err *err) {
    if (!json_is_integer(v))
        return err_set(err, STATUS_FORMAT,
                       "%s: eos_token_id: expected an integer or a list of them, found %s", where,
                       json_type_text(v));
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= c->vocab)
        return err_set(err, STATUS_FORMAT, "%s: eos_token_id: expected 0 to %d, found %lld", where,
                       c->vocab - 1, (long long)id);
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == (int32_t)id)
            return STATUS_OK;
    if (c->n_eos == LIMIT_EOS)
        return err_set(err, STATUS_TOO_LARGE,
                       "%s: eos_token_id: expected at most %d ids, found more", where, LIMIT_EOS);
    c->eos[c->n_eos++] = (int32_t)id;
    return STATUS_OK;
}

/* Replaces the ids when the object names any (an empty list names none). */
static Status read_eos(ModelConfig *c, Part p, Err *err) {
    const json_t *v = json_object_get(p.object, "eos_token_id");
    if (!v || json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0))
        return STATUS_OK;
    c->n_eos = 0;
    if (!json_is_array(v))
        return add_eos(c, v, p.where, err);
    for (size_t i = 0; i < json_array_size(v); i++)
        TRY(add_eos(c, json_array_get(v, i), p.where, err));
    return STATUS_OK;
}

/* Stands in the text config, at the top, or in both with the same value. */
static Status read_tied(ModelConfig *c, Part top, Part text, Err *err) {
    const bool untied = false; // the family's default
    bool of_top, of_text;
    TRY(json_get_bool(&of_top, top.object, "tie_word_embeddings", &untied, top.where, err));
    TRY(json_get_bool(&of_text, text.object, "tie_word_embeddings", &of_top, text.where, err));
    if (json_object_get(top.object, "tie_word_embeddings") && of_top != of_text)
        return err_set(err, STATUS_FORMAT,
                       "%s: tie_word_embeddings: expected %s as in text_config, found %s",
                       top.where, of_text ? "true" : "false", of_top ? "true" : "false");
    c->is_tied = of_text;
    return STATUS_OK;
}

/* ---- the file ---- */

/* The text config: a member of its own (wrapper form) or the top object (flat form). */
static Status find_text(Part *text, Part top, Err *err) {
    const json_t *inner = json_object_get(top.object, "text_config");
    if (!inner) {
        *text = (Part){top.object, top.where};
        StrView type = json_text(json_object_get(top.object, "model_type"));
        return str_equal(type, STR("qwen3_5_moe"))
                   ? STATUS_OK
                   : want_text(top, "model_type", "qwen3_5_moe_text", false, err);
    }
    TRY(want_text(top, "model_type", "qwen3_5_moe", false, err));
    text->object = inner;
    if (!json_is_object(inner))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", text->where,
                       json_type_text(inner));
    return want_text(*text, "model_type", "qwen3_5_moe_text", false, err);
}

static Status read_quantization(QuantTable **quant, Part top, Err *err) {
    const char *key = "quantization";
    const json_t *block = json_object_get(top.object, key);
    if (!block) {
        key = "quantization_config";
        block = json_object_get(top.object, key);
    }
    if (!block)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: quantization: expected MLX affine quantisation, found nothing (an "
                       "unquantised checkpoint?)",
                       top.where);
    char place[512];
    snprintf(place, sizeof place, "%.480s: %s", top.where, key);
    return quant_table_parse(quant, block, place, err);
}

static Status read_model(ModelConfig *c, Part top, Err *err) {
    char place[512];
    snprintf(place, sizeof place, "%.440s: text_config", top.where);
    Part text = {NULL, place};
    if (!json_is_object(top.object))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", top.where,
                       json_type_text(top.object));
    TRY(find_text(&text, top, err));
    TRY(read_counts(c, text, err));
    TRY(check_constants(c, text, err));
    TRY(read_rope(c, text, err));
    TRY(read_layer_types(c, text, err));
    TRY(read_tied(c, top, text, err));
    TRY(read_eos(c, text, err));
    return read_eos(c, top, err); // the wrapper's list wins
}

Status config_parse(ModelConfig *out, QuantTable **quant, StrView text, const char *name,
                    Err *err) {
    json_t *root;
    TRY(json_read(&root, text, name, err));
    Part top = {root, name};
    ModelConfig c = {0};
    Status status = read_model(&c, top, err);
    if (status == STATUS_OK)
        status = read_quantization(quant, top, err);
    if (status == STATUS_OK)
        *out = c;
    json_decref(root);
    return status;
}

Status config_parse_generation(ModelConfig *config, StrView text, const char *name, Err *err) {
    json_t *root;
    TRY(json_read(&root, text, name, err));
    ModelConfig c = *config;
    Status status = json_is_object(root)
                        ? read_eos(&c, (Part){root, name}, err)
                        : err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", name,
                                  json_type_text(root));
    if (status == STATUS_OK)
        *config = c;
    json_decref(root);
    return status;
}
