// SPDX-License-Identifier: Apache-2.0
/* fuzz_config.c - any bytes as config.json and as generation_config.json: what is accepted keeps to
 * the limits that the rest of the program counts on.
 *
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_config(const ModelConfig *c) {
    CHECK(c->hidden >= 1 && c->hidden <= LIMIT_HIDDEN);
    CHECK(c->n_layers >= 1 && c->n_layers <= LIMIT_LAYERS);
    CHECK(c->vocab >= 1 && c->vocab <= LIMIT_VOCAB);
    CHECK(c->n_kv_heads >= 1 && c->n_q_heads % c->n_kv_heads == 0);
    CHECK(c->n_gdn_key_heads >= 1 && c->n_gdn_value_heads % c->n_gdn_key_heads == 0);
    CHECK(config_q_dim(c) <= LIMIT_HIDDEN && config_gdn_value_dim(c) <= LIMIT_HIDDEN);
    CHECK(c->top_k >= 1 && c->top_k <= c->n_experts && c->n_experts <= LIMIT_EXPERTS);
    CHECK(c->expert_inner >= 1 && c->shared_inner >= 1 && c->max_positions >= 1);
    CHECK(c->rms_eps > 0 && c->rope_theta >= 1);
    CHECK(config_n_attn_layers(c) <= c->n_layers);
    CHECK(c->n_eos >= 0 && c->n_eos <= LIMIT_EOS);
    for (int32_t i = 0; i < c->n_eos; i++)
        CHECK(c->eos[i] >= 0 && c->eos[i] < c->vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    StrView text = str_view((const char *)data, size);
    ModelConfig c = {.vocab = 100};
    QuantTable *quant = NULL;
    Err err = {0};
    if (config_parse_generation(&c, text, "generation_config.json", &err) != STATUS_OK)
        CHECK(c.n_eos == 0 && err.text[0] != 0);
    err = (Err){0};
    Status status = config_parse(&c, &quant, text, "config.json", &err);
    CHECK((status == STATUS_OK) == (err.text[0] == 0) && (status == STATUS_OK) == (quant != NULL));
    if (status == STATUS_OK) {
        check_config(&c);
        QuantSpec s = quant_table_find(quant, STR("language_model.model.layers.0.mlp.gate"));
        CHECK(s.bits == 0 ||
              ((s.bits == 4 || s.bits == 8) && (s.group == 32 || s.group == 64 || s.group == 128)));
    }
    quant_table_close(quant);
    return 0;
}
