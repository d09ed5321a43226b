// SPDX-License-Identifier: Apache-2.0
/* weights.h - a model's tensors by slot, read piece by piece from a checkpoint folder or made on
 * the spot from a random seed. A backend asks for rows and packs them; nobody holds a second copy.
 *
 * Path:     cli opens Weights -> backend_open reads every slot once -> weights_close.
 * Owns:     open files, the name table.  Thread: open and close from one; reads from any, at once.
 * Not here: packed layouts (src/backend); which file formats exist (safetensors.h). */
#ifndef LILY_CHECKPOINT_WEIGHTS_H
#define LILY_CHECKPOINT_WEIGHTS_H

#include "base/log.h"
#include "base/pool.h"
#include "checkpoint/config.h"

#include <stdint.h>

/* Slot, name inside its scope, logical shape (rows, inputs) as in MODEL.md.
 * The scope of the first three is the model, of the others a layer. */
typedef enum WeightSlot {
    SLOT_EMBED,       // embed_tokens            (V, H) quantised
    SLOT_HEAD,        // lm_head                 (V, H) quantised; absent when tied
    SLOT_FINAL_NORM,  // norm                    [H]
    SLOT_INPUT_NORM,  // input_layernorm         [H]
    SLOT_POST_NORM,   // post_attention_layernorm [H]
    SLOT_ROUTER,      // mlp.gate                (E, H) quantised
    SLOT_SHARED_MIX,  // mlp.shared_expert_gate  (1, H) quantised
    SLOT_EXPERT_GATE, // mlp.switch_mlp.gate_proj E x (I, H) quantised
    SLOT_EXPERT_UP,   // mlp.switch_mlp.up_proj   E x (I, H) quantised
    SLOT_EXPERT_DOWN, // mlp.switch_mlp.down_proj E x (H, I) quantised
    SLOT_SHARED_GATE, // mlp.shared_expert.gate_proj (SI, H) quantised
    SLOT_SHARED_UP,   // mlp.shared_expert.up_proj   (SI, H) quantised
    SLOT_SHARED_DOWN, // mlp.shared_expert.down_proj (H, SI) quantised
    SLOT_GDN_QKV,     // linear_attn.in_proj_qkv (CC, H) quantised; rows q | k | v
    SLOT_GDN_Z,       // linear_attn.in_proj_z   (VD, H) quantised
    SLOT_GDN_B,       // linear_attn.in_proj_b   (HV, H) quantised
    SLOT_GDN_A,       // linear_attn.in_proj_a   (HV, H) quantised
    SLOT_GDN_OUT,     // linear_attn.out_proj    (H, VD) quantised
    SLOT_GDN_CONV,    // linear_attn.conv1d      [CC, 4]; tap 3 multiplies the current token
    SLOT_GDN_A_LOG,   // linear_attn.A_log       [HV]
    SLOT_GDN_DT_BIAS, // linear_attn.dt_bias     [HV]
    SLOT_GDN_NORM,    // linear_attn.norm        [128]
    SLOT_ATTN_Q, // self_attn.q_proj        (NQ * 512, H) quantised; a head is 256 query rows, 256
                 // gate rows
    SLOT_ATTN_K, // self_attn.k_proj        (NKV * 256, H) quantised
    SLOT_ATTN_V, // self_attn.v_proj        (NKV * 256, H) quantised
    SLOT_ATTN_O, // self_attn.o_proj        (H, NQ * 256) quantised
    SLOT_ATTN_Q_NORM, // self_attn.q_norm        [256]
    SLOT_ATTN_K_NORM, // self_attn.k_norm        [256]
    SLOT_N
} WeightSlot;

/* Shape and storage of a slot. */
typedef struct WeightInfo {
    int32_t n_experts; // 1 for all but the expert stacks
    int32_t n;         // output rows (of one expert); elements of a plain vector
    int32_t k;         // inputs; 4 for SLOT_GDN_CONV, 1 for a plain vector
    int32_t bits;      // 4 or 8; 0: plain values
    int32_t group;     // inputs of one scale; 0 for plain values
    uint64_t n_bytes;  // in the checkpoint, all parts together
} WeightInfo;

typedef struct Weights Weights;

/* Opens a model: "DIR" or "synth:SHAPE[,layers=N][,seed=S]". Reads config and headers, binds every
 * slot and checks shapes, dtypes and offsets; reads no tensor data.
 *
 * log  receives warnings (skipped vision tensors and the like); may be NULL.
 * Returns STATUS_FORMAT, STATUS_UNSUPPORTED, STATUS_NOT_FOUND, STATUS_IO, STATUS_MEMORY; the text
 * names file, tensor or field, expected and found. */
NODISCARD Status weights_open(Weights **out, const char *spec, const Log *log, Err *err);
void weights_close(Weights *w);

const ModelConfig *weights_config(const Weights *w);
/* The folder, or NULL for a synth model. */
const char *weights_dir(const Weights *w);
/* Bytes of all bound tensors, as stored. */
uint64_t weights_total_bytes(const Weights *w);

/* True when the model has the slot in that layer (-1: the model's own slots). */
bool weights_has(const Weights *w, WeightSlot slot, int layer);
/* layer is -1 for the model's own slots. The slot must exist in that layer (is_attn decides). */
WeightInfo weights_info(const Weights *w, WeightSlot slot, int layer);
/* The tensor's name in the checkpoint without ".weight", for messages. Static storage is not used:
 * writes at most size bytes. */
void weights_slot_name(char *out, size_t size, WeightSlot slot, int layer);

/* Reads quantised rows [row, row + n_rows) of the slot, counted through the experts (row
 * e * info.n + r is row r of expert e).
 *
 * q            [n_rows, k * bits / 32] u32                          (out)
 * scale, bias  [n_rows, k / group] bf16                             (out)
 * Returns STATUS_IO, STATUS_MEMORY, STATUS_FORMAT when a scale or bias is NaN or infinite. */
NODISCARD Status weights_read_quant(const Weights *w, WeightSlot slot, int layer, int64_t row,
                                    int64_t n_rows, uint32_t *q, uint16_t *scale, uint16_t *bias,
                                    Err *err);

/* Reads a plain slot widened to f32: out [n * k]. Norm gains come out as the factor to multiply
 * with (a raw checkpoint's +1 is already added). NaN and infinities are refused. */
NODISCARD Status weights_read_plain(const Weights *w, WeightSlot slot, int layer, float *out,
                                    Err *err);

#endif
