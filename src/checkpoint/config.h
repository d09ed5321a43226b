// SPDX-License-Identifier: Apache-2.0
/* config.h - what config.json says about a model, checked against what this program can run.
 *
 * Path:     weights.c opens it first; every later layer takes its counts from ModelConfig.
 * Owns:     a ModelConfig is plain data.  Thread: any.
 * Not here: which tensors exist (weights.h). */
#ifndef LILY_CHECKPOINT_CONFIG_H
#define LILY_CHECKPOINT_CONFIG_H

#include "base/limits.h"
#include "base/status.h"
#include "base/str.h"
#include "checkpoint/quant_table.h"

#include <stdbool.h>
#include <stdint.h>

/* Constants of the family; a config that says otherwise is refused by name. */
enum {
    GDN_HEAD = 128,  // key and value head width of the gated delta net
    ATTN_HEAD = 256, // head width of full attention
    ROPE_DIMS = 64,  // rotated dims of an attention head
    CONV_TAPS = 4,   // causal convolution
    RECUR_CHUNK =
        64, // tokens of one chunk of the chunked delta rule; prefill cuts at its multiples
};

/* Symbols as in MODEL.md. All counts >= 1. */
typedef struct ModelConfig {
    int32_t hidden;            // H
    int32_t n_layers;          // NL
    int32_t vocab;             // V, rows of the vocabulary matrices
    int32_t n_q_heads;         // NQ, a multiple of n_kv_heads
    int32_t n_kv_heads;        // NKV
    int32_t n_gdn_key_heads;   // HK
    int32_t n_gdn_value_heads; // HV, a multiple of HK; value head v reads key head v / (HV / HK)
    int32_t n_experts;         // E
    int32_t top_k;             // K experts a token, <= E
    int32_t expert_inner;      // I
    int32_t shared_inner;      // inner width of the shared expert
    int32_t max_positions;     // upper bound of the context
    double rope_theta;
    double rms_eps;
    bool is_tied;               // logits from embed_tokens; there is no lm_head tensor
    bool is_norm_topk;          // divide routing weights by their sum; always true in the family
    bool is_attn[LIMIT_LAYERS]; // [n_layers] full attention (true) or gated delta net
    int32_t eos[LIMIT_EOS];     // [n_eos] ids that end a text
    int32_t n_eos;              // 0: none given
} ModelConfig;

/* Widths that follow from the counts. */
static inline int32_t config_gdn_key_dim(const ModelConfig *c) {
    return c->n_gdn_key_heads * GDN_HEAD; // KD
}
static inline int32_t config_gdn_value_dim(const ModelConfig *c) {
    return c->n_gdn_value_heads * GDN_HEAD; // VD
}
static inline int32_t config_conv_dim(const ModelConfig *c) {
    return 2 * config_gdn_key_dim(c) + config_gdn_value_dim(c); // CC
}
static inline int32_t config_q_dim(const ModelConfig *c) { return c->n_q_heads * ATTN_HEAD; }
static inline int32_t config_kv_dim(const ModelConfig *c) { return c->n_kv_heads * ATTN_HEAD; }
int32_t config_n_attn_layers(const ModelConfig *c);

/* Parses and checks a config.json.
 *
 * out     the model's counts                                        (out)
 * quant   the quantisation block; free with quant_table_close       (out)
 * text    the file's bytes                                          (in)
 * name    the file's name, for error texts                          (in)
 * Returns STATUS_FORMAT for malformed or contradictory content, STATUS_UNSUPPORTED for a valid
 * config that this program cannot run; both name the field, expected and found.
 * Source: model specification, section 1. */
NODISCARD Status config_parse(ModelConfig *out, QuantTable **quant, StrView text, const char *name,
                              Err *err);

/* The end ids of a generation_config.json take the place of those of config.json: the loaders of
 * the format do so. A file without them changes nothing. Returns STATUS_FORMAT, STATUS_TOO_LARGE
 * (over LIMIT_EOS ids), STATUS_MEMORY. */
NODISCARD Status config_parse_generation(ModelConfig *config, StrView text, const char *name,
                                         Err *err);

#endif
