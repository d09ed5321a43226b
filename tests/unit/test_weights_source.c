// SPDX-License-Identifier: Apache-2.0
/* test_weights_source.c - the table of slots against the published inventory.
 *
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/weights_source.h"

#include "unit.h"

static ModelConfig published(void) {
    ModelConfig c = {.hidden = 2048,
                     .n_layers = 40,
                     .vocab = 248320,
                     .n_q_heads = 16,
                     .n_kv_heads = 2,
                     .n_gdn_key_heads = 16,
                     .n_gdn_value_heads = 32,
                     .n_experts = 256,
                     .top_k = 8,
                     .expert_inner = 512,
                     .shared_inner = 512};
    for (int i = 0; i < 40; i++)
        c.is_attn[i] = i % 4 == 3;
    return c;
}

/* Names, shapes and kinds as the inventory of the format lists them. */
static void shapes_of_the_inventory(void **state) {
    UNUSED(state);
    static const struct {
        WeightSlot slot;
        const char *name;
        int32_t n_experts, n, k;
        bool is_quant;
    } ROWS[] = {
        {SLOT_EMBED, "embed_tokens", 1, 248320, 2048, true},
        {SLOT_HEAD, "lm_head", 1, 248320, 2048, true},
        {SLOT_FINAL_NORM, "norm", 1, 2048, 1, false},
        {SLOT_INPUT_NORM, "input_layernorm", 1, 2048, 1, false},
        {SLOT_POST_NORM, "post_attention_layernorm", 1, 2048, 1, false},
        {SLOT_ROUTER, "mlp.gate", 1, 256, 2048, true},
        {SLOT_SHARED_MIX, "mlp.shared_expert_gate", 1, 1, 2048, true},
        {SLOT_EXPERT_GATE, "mlp.switch_mlp.gate_proj", 256, 512, 2048, true},
        {SLOT_EXPERT_UP, "mlp.switch_mlp.up_proj", 256, 512, 2048, true},
        {SLOT_EXPERT_DOWN, "mlp.switch_mlp.down_proj", 256, 2048, 512, true},
        {SLOT_SHARED_GATE, "mlp.shared_expert.gate_proj", 1, 512, 2048, true},
        {SLOT_SHARED_UP, "mlp.shared_expert.up_proj", 1, 512, 2048, true},
        {SLOT_SHARED_DOWN, "mlp.shared_expert.down_proj", 1, 2048, 512, true},
        {SLOT_GDN_QKV, "linear_attn.in_proj_qkv", 1, 8192, 2048, true},
        {SLOT_GDN_Z, "linear_attn.in_proj_z", 1, 4096, 2048, true},
        {SLOT_GDN_B, "linear_attn.in_proj_b", 1, 32, 2048, true},
        {SLOT_GDN_A, "linear_attn.in_proj_a", 1, 32, 2048, true},
        {SLOT_GDN_OUT, "linear_attn.out_proj", 1, 2048, 4096, true},
        {SLOT_GDN_CONV, "linear_attn.conv1d", 1, 8192, 4, false},
        {SLOT_GDN_A_LOG, "linear_attn.A_log", 1, 32, 1, false},
        {SLOT_GDN_DT_BIAS, "linear_attn.dt_bias", 1, 32, 1, false},
        {SLOT_GDN_NORM, "linear_attn.norm", 1, 128, 1, false},
        {SLOT_ATTN_Q, "self_attn.q_proj", 1, 8192, 2048, true},
        {SLOT_ATTN_K, "self_attn.k_proj", 1, 512, 2048, true},
        {SLOT_ATTN_V, "self_attn.v_proj", 1, 512, 2048, true},
        {SLOT_ATTN_O, "self_attn.o_proj", 1, 2048, 4096, true},
        {SLOT_ATTN_Q_NORM, "self_attn.q_norm", 1, 256, 1, false},
        {SLOT_ATTN_K_NORM, "self_attn.k_norm", 1, 256, 1, false},
    };
    assert_int_equal(COUNT_OF(ROWS), SLOT_N);
    ModelConfig c = published();
    for (int i = 0; i < SLOT_N; i++) {
        int32_t n_experts, n, k;
        weights_slot_shape(&c, ROWS[i].slot, &n_experts, &n, &k);
        assert_int_equal(ROWS[i].slot, i);
        assert_string_equal(weights_slot_inner_name(ROWS[i].slot), ROWS[i].name);
        assert_int_equal(n_experts, ROWS[i].n_experts);
        assert_int_equal(n, ROWS[i].n);
        assert_int_equal(k, ROWS[i].k);
        assert_int_equal(weights_slot_is_quant(ROWS[i].slot), ROWS[i].is_quant);
    }
}

/* 1,757 text tensors: three for a matrix, one for a plain slot. */
static void tensors_of_the_published_model(void **state) {
    UNUSED(state);
    ModelConfig c = published();
    for (int tied = 0; tied < 2; tied++) {
        c.is_tied = tied;
        int n = 0, n_centred = 0;
        for (int layer = -2; layer <= 40; layer++)
            for (int s = 0; s <= SLOT_N; s++) {
                if (!weights_slot_exists(&c, (WeightSlot)s, layer))
                    continue;
                n += weights_slot_is_quant((WeightSlot)s) ? 3 : 1;
                n_centred += weights_slot_is_centred_norm((WeightSlot)s);
            }
        assert_int_equal(n, tied ? 1754 : 1757);
        assert_int_equal(n_centred, 1 + 2 * 40 + 2 * 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_of_the_inventory),
        cmocka_unit_test(tensors_of_the_published_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
