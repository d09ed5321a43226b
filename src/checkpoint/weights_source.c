// SPDX-License-Identifier: Apache-2.0
/* weights_source.c - the slots of the family as one table: name, place, shape.
 *
 * Path:     folder.c binds by it, synth.c makes by it, weights.c checks arguments by it.
 * Owns:     nothing.  Thread: any. */
#include "checkpoint/weights_source.h"

/* The counts that shapes are made of. */
typedef enum Dim {
    DIM_1,
    DIM_TAPS,
    DIM_GDN_HEAD,
    DIM_ATTN_HEAD,
    DIM_VOCAB,
    DIM_HIDDEN,
    DIM_EXPERTS,
    DIM_INNER,
    DIM_SHARED,
    DIM_CONV,
    DIM_GDN_VALUE,
    DIM_GDN_HEADS,
    DIM_Q,
    DIM_Q_AND_GATE,
    DIM_KV,
} Dim;

typedef struct SlotRow {
    const char *name; // inside its scope, without ".weight"
    SlotScope scope;
    Dim n, k; // rows, inputs
    bool is_quant;
    bool is_stack;   // one matrix an expert
    bool is_centred; // a norm that raw checkpoints store as gain - 1
} SlotRow;

static const SlotRow SLOTS[SLOT_N] = {
    [SLOT_EMBED] = {"embed_tokens", SCOPE_MODEL, DIM_VOCAB, DIM_HIDDEN, .is_quant = true},
    [SLOT_HEAD] = {"lm_head", SCOPE_MODEL, DIM_VOCAB, DIM_HIDDEN, .is_quant = true},
    [SLOT_FINAL_NORM] = {"norm", SCOPE_MODEL, DIM_HIDDEN, DIM_1, .is_centred = true},
    [SLOT_INPUT_NORM] = {"input_layernorm", SCOPE_LAYER, DIM_HIDDEN, DIM_1, .is_centred = true},
    [SLOT_POST_NORM] = {"post_attention_layernorm", SCOPE_LAYER, DIM_HIDDEN, DIM_1,
                        .is_centred = true},
    [SLOT_ROUTER] = {"mlp.gate", SCOPE_LAYER, DIM_EXPERTS, DIM_HIDDEN, .is_quant = true},
    [SLOT_SHARED_MIX] = {"mlp.shared_expert_gate", SCOPE_LAYER, DIM_1, DIM_HIDDEN,
                         .is_quant = true},
    [SLOT_EXPERT_GATE] = {"mlp.switch_mlp.gate_proj", SCOPE_LAYER, DIM_INNER, DIM_HIDDEN,
                          .is_quant = true, .is_stack = true},
    [SLOT_EXPERT_UP] = {"mlp.switch_mlp.up_proj", SCOPE_LAYER, DIM_INNER, DIM_HIDDEN,
                        .is_quant = true, .is_stack = true},
    [SLOT_EXPERT_DOWN] = {"mlp.switch_mlp.down_proj", SCOPE_LAYER, DIM_HIDDEN, DIM_INNER,
                          .is_quant = true, .is_stack = true},
    [SLOT_SHARED_GATE] = {"mlp.shared_expert.gate_proj", SCOPE_LAYER, DIM_SHARED, DIM_HIDDEN,
                          .is_quant = true},
    [SLOT_SHARED_UP] = {"mlp.shared_expert.up_proj", SCOPE_LAYER, DIM_SHARED, DIM_HIDDEN,
                        .is_quant = true},
    [SLOT_SHARED_DOWN] = {"mlp.shared_expert.down_proj", SCOPE_LAYER, DIM_HIDDEN, DIM_SHARED,
                          .is_quant = true},
    [SLOT_GDN_QKV] = {"linear_attn.in_proj_qkv", SCOPE_GDN, DIM_CONV, DIM_HIDDEN, .is_quant = true},
    [SLOT_GDN_Z] = {"linear_attn.in_proj_z", SCOPE_GDN, DIM_GDN_VALUE, DIM_HIDDEN,
                    .is_quant = true},
    [SLOT_GDN_B] = {"linear_attn.in_proj_b", SCOPE_GDN, DIM_GDN_HEADS, DIM_HIDDEN,
                    .is_quant = true},
    [SLOT_GDN_A] = {"linear_attn.in_proj_a", SCOPE_GDN, DIM_GDN_HEADS, DIM_HIDDEN,
                    .is_quant = true},
    [SLOT_GDN_OUT] = {"linear_attn.out_proj", SCOPE_GDN, DIM_HIDDEN, DIM_GDN_VALUE,
                      .is_quant = true},
    [SLOT_GDN_CONV] = {"linear_attn.conv1d", SCOPE_GDN, DIM_CONV, DIM_TAPS, .is_quant = false},
    [SLOT_GDN_A_LOG] = {"linear_attn.A_log", SCOPE_GDN, DIM_GDN_HEADS, DIM_1, .is_quant = false},
    [SLOT_GDN_DT_BIAS] = {"linear_attn.dt_bias", SCOPE_GDN, DIM_GDN_HEADS, DIM_1,
                          .is_quant = false},
    [SLOT_GDN_NORM] = {"linear_attn.norm", SCOPE_GDN, DIM_GDN_HEAD, DIM_1, .is_quant = false},
    [SLOT_ATTN_Q] = {"self_attn.q_proj", SCOPE_ATTN, DIM_Q_AND_GATE, DIM_HIDDEN, .is_quant = true},
    [SLOT_ATTN_K] = {"self_attn.k_proj", SCOPE_ATTN, DIM_KV, DIM_HIDDEN, .is_quant = true},
    [SLOT_ATTN_V] = {"self_attn.v_proj", SCOPE_ATTN, DIM_KV, DIM_HIDDEN, .is_quant = true},
    [SLOT_ATTN_O] = {"self_attn.o_proj", SCOPE_ATTN, DIM_HIDDEN, DIM_Q, .is_quant = true},
    [SLOT_ATTN_Q_NORM] = {"self_attn.q_norm", SCOPE_ATTN, DIM_ATTN_HEAD, DIM_1, .is_centred = true},
    [SLOT_ATTN_K_NORM] = {"self_attn.k_norm", SCOPE_ATTN, DIM_ATTN_HEAD, DIM_1, .is_centred = true},
};

SlotScope weights_slot_scope(WeightSlot slot) { return SLOTS[slot].scope; }
const char *weights_slot_inner_name(WeightSlot slot) { return SLOTS[slot].name; }
bool weights_slot_is_quant(WeightSlot slot) { return SLOTS[slot].is_quant; }
bool weights_slot_is_centred_norm(WeightSlot slot) { return SLOTS[slot].is_centred; }

bool weights_slot_exists(const ModelConfig *c, WeightSlot slot, int layer) {
    if ((unsigned)slot >= SLOT_N || layer < -1 || layer >= c->n_layers)
        return false;
    switch (SLOTS[slot].scope) {
    case SCOPE_MODEL: return layer == -1 && (slot != SLOT_HEAD || !c->is_tied);
    case SCOPE_LAYER: return layer >= 0;
    case SCOPE_GDN: return layer >= 0 && !c->is_attn[layer];
    default: return layer >= 0 && c->is_attn[layer];
    }
}

static int32_t dim_value(const ModelConfig *c, Dim dim) {
    switch (dim) {
    case DIM_TAPS: return CONV_TAPS;
    case DIM_GDN_HEAD: return GDN_HEAD;
    case DIM_ATTN_HEAD: return ATTN_HEAD;
    case DIM_VOCAB: return c->vocab;
    case DIM_HIDDEN: return c->hidden;
    case DIM_EXPERTS: return c->n_experts;
    case DIM_INNER: return c->expert_inner;
    case DIM_SHARED: return c->shared_inner;
    case DIM_CONV: return config_conv_dim(c);
    case DIM_GDN_VALUE: return config_gdn_value_dim(c);
    case DIM_GDN_HEADS: return c->n_gdn_value_heads;
    case DIM_Q: return config_q_dim(c);
    case DIM_Q_AND_GATE: return 2 * config_q_dim(c);
    case DIM_KV: return config_kv_dim(c);
    default: return 1;
    }
}

void weights_slot_shape(const ModelConfig *c, WeightSlot slot, int32_t *n_experts, int32_t *n,
                        int32_t *k) {
    *n_experts = SLOTS[slot].is_stack ? c->n_experts : 1;
    *n = dim_value(c, SLOTS[slot].n);
    *k = dim_value(c, SLOTS[slot].k);
}
