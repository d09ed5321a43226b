// SPDX-License-Identifier: Apache-2.0
/* synth_layout.h - which tensors a checkpoint of the published format has, in the order of its
 * modules, and which shard each lies in.
 *
 * Path:     synth_write.c goes through it shard by shard; synth_text.c prints the index from it.
 * Owns:     a SynthLayout owns its arena.  Thread: one builds it, any may read it.
 * Source:   model specification, section 2: the full shape gives the published index byte for byte.
 * Not here: values (synth.h), header and file bytes (safetensors_write.h). */
#ifndef LILY_CHECKPOINT_SYNTH_LAYOUT_H
#define LILY_CHECKPOINT_SYNTH_LAYOUT_H

#include "base/arena.h"
#include "checkpoint/safetensors_write.h"
#include "checkpoint/synth.h"

/* What a tensor holds. */
typedef enum SynthPart {
    SYNTH_CODES,  // U32
    SYNTH_SCALES, // BF16
    SYNTH_BIASES, // BF16
    SYNTH_PLAIN,  // BF16
    SYNTH_VISION, // BF16, of the vision tower that the text model skips
} SynthPart;

typedef struct SynthTensor {
    SafetensorsEntry entry; // name in the arena
    SynthPart part;
    WeightSlot slot; // of the first four parts
    int layer;       // -1: the model's own
    uint64_t key;    // of SYNTH_VISION: tells the tensors apart
    uint64_t n_rows; // pieces that can be made alone: of codes, scales and biases the rows through
                     // the experts, of the vision tower 8 bytes, of a plain slot all
    uint64_t row_bytes;
    int shard; // from 0
} SynthTensor;

/* Counts of the vision tower, as config.json gives them. */
typedef struct SynthVision {
    int depth, hidden, inner, heads, positions, out, patch, merge, frames;
} SynthVision;

typedef struct SynthLayout {
    Arena arena;
    SynthTensor *tensors; // [n] in module order
    size_t n;
    size_t *begin; // [n_shards + 1] first tensor of each shard
    size_t *order; // [n] tensors in the order of their data; shard i's are [begin[i], begin[i + 1])
    int n_shards;
    uint64_t total_bytes; // of all tensors
} SynthLayout;

/* The full shape has the published tower, the small ones a tiny one. */
SynthVision synth_layout_vision(const ModelConfig *c);

/* shard_bytes  a shard is closed before a tensor that would make it larger; >= 1
 * Returns STATUS_MEMORY. */
NODISCARD Status synth_layout_init(SynthLayout *out, const ModelConfig *c, uint64_t shard_bytes,
                                   Err *err);
void synth_layout_fini(SynthLayout *layout);

enum { SYNTH_SHARD_NAME = 48 };
/* "model-00001-of-00004.safetensors"; a single shard is "model.safetensors". */
void synth_layout_shard_name(char out[SYNTH_SHARD_NAME], int shard, int n_shards);

#endif
