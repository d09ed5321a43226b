// SPDX-License-Identifier: Apache-2.0
/* synth.h - random models: every number a pure function of (seed, slot, layer, row, position), so
 * that any thread can make any rows in any order and nothing is stored.
 *
 * Path:     weights.c opens "synth:SHAPE[,layers=N][,seed=S]" here; synth_write.c puts the very
 * same numbers into files. Owns:     a Synth is a small object without files.  Thread: reads from
 * any, at once. Not here: names of tensors and files (synth_write.c). */
#ifndef LILY_CHECKPOINT_SYNTH_H
#define LILY_CHECKPOINT_SYNTH_H

#include "base/str.h"
#include "checkpoint/weights_source.h"

enum { SYNTH_N_ADDED = 33 }; // added tokens of the family

/* A random model; plain data. */
typedef struct Synth {
    ModelConfig config;
    uint64_t seed;
} Synth;

/* A shape that can be asked for. */
typedef struct SynthShape {
    const char *name;
    const char *about;  // one line for help texts
    ModelConfig counts; // is_attn and eos are filled in by synth_init
} SynthShape;

/* Number of shapes; shape i, 0 <= i < n. The first is the published model. */
int synth_n_shapes(void);
const SynthShape *synth_shape(int i);

/* Prepares a model.
 *
 * shape     a name of the list above
 * n_layers  1..LIMIT_LAYERS; 0: as many as the shape has. Every fourth layer is full attention.
 * Returns STATUS_INVALID for an unknown name or a bad count; the text lists the names. */
NODISCARD Status synth_init(Synth *out, StrView shape, int64_t n_layers, uint64_t seed, Err *err);

/* The same from what stands behind "synth:", e.g. "mini,layers=4,seed=7". */
NODISCARD Status synth_parse(Synth *out, StrView spec, Err *err);

/* Bits and group of a slot as the published checkpoint has them; bits 0: plain, stored as BF16. */
QuantSpec synth_quant_spec(WeightSlot slot);

/* Id of the first of the 33 added tokens (<|endoftext|>; the end of a turn is two above): that of
 * the family, or the highest that lets all of them fit into a small vocabulary. */
int32_t synth_added_base(int32_t vocab);

/* Rows and plain values; contracts as weights_read_quant and weights_read_plain. Never fail.
 * Parts whose pointer is NULL are left out. Cost: 2 bytes a nanosecond and thread. */
void synth_read_quant(const Synth *s, WeightSlot slot, int layer, int64_t row, int64_t n_rows,
                      uint32_t *q, uint16_t *scale, uint16_t *bias);
void synth_read_plain(const Synth *s, WeightSlot slot, int layer, float *out);

/* A model behind the WeightsSource table: fills *source, *self (closed by source->close) and
 * *config from what stands behind "synth:". */
NODISCARD Status synth_open(WeightsSource *source, void **self, ModelConfig *config, StrView spec,
                            Err *err);

#endif
