// SPDX-License-Identifier: Apache-2.0
/* weights_source.h - the inner table behind weights.h: where a model's numbers come from, and which
 * slots with which shapes a model has.
 *
 * Path:     weights.c opens a folder (folder.c) or a random model (synth.c) and dispatches to it.
 * Owns:     nothing.  Thread: reads from any, at once; close from the one that opened.
 * Not here: names of files and tensors of a folder (folder.h). */
#ifndef LILY_CHECKPOINT_WEIGHTS_SOURCE_H
#define LILY_CHECKPOINT_WEIGHTS_SOURCE_H

#include "checkpoint/weights.h"

/* Filled by the opener. Arguments were checked by weights.c: the slot exists in that layer, is of
 * the kind that is asked for, and the rows lie inside it. Contracts as in weights.h. NaN and
 * infinities are looked for by weights.c, behind the read. */
typedef struct WeightsSource {
    Status (*read_quant)(void *self, WeightSlot slot, int layer, int64_t row, int64_t n_rows,
                         uint32_t *q, uint16_t *scale, uint16_t *bias, Err *err);
    Status (*read_plain)(void *self, WeightSlot slot, int layer, float *out, Err *err);
    void (*close)(void *self);
} WeightsSource;

/* Where a slot stands. */
typedef enum SlotScope {
    SCOPE_MODEL, // once; layer -1
    SCOPE_LAYER, // every layer
    SCOPE_GDN,   // gated delta net layers
    SCOPE_ATTN,  // full attention layers
} SlotScope;

SlotScope weights_slot_scope(WeightSlot slot);
/* The name inside the scope, without ".weight": "mlp.switch_mlp.gate_proj". */
const char *weights_slot_inner_name(WeightSlot slot);
/* True when the slot is a matrix that the format stores as codes, scales and biases. */
bool weights_slot_is_quant(WeightSlot slot);
/* True for the five norm families whose raw form is zero-centred (gain = 1 + stored). */
bool weights_slot_is_centred_norm(WeightSlot slot);
/* True when the model has the slot in that layer (-1: the model's own slots). */
bool weights_slot_exists(const ModelConfig *c, WeightSlot slot, int layer);
/* Logical shape by the model's counts; n_experts 1 but for the expert stacks; k is 4 for the
 * convolution and 1 for a plain vector. */
void weights_slot_shape(const ModelConfig *c, WeightSlot slot, int32_t *n_experts, int32_t *n,
                        int32_t *k);

#endif
