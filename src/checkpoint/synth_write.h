// SPDX-License-Identifier: Apache-2.0
/* synth_write.h - a random model as a checkpoint folder in the published format: config, index,
 * shards, tokenizer, chat template.
 *
 * Path:     the verb `synth`; tests that need a folder to open.
 * Owns:     nothing after the call.  Thread: one; the work runs on the pool.
 * Not here: the numbers themselves (synth.h). */
#ifndef LILY_CHECKPOINT_SYNTH_WRITE_H
#define LILY_CHECKPOINT_SYNTH_WRITE_H

#include "base/log.h"
#include "base/pool.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What to write; {0} but for shape and dir is fine. */
typedef struct SynthWrite {
    const char *shape;    // a name of synth_write_shape_name
    const char *dir;      // folder to write into; made when missing (its parent must exist)
    int64_t n_layers;     // 0: as many as the shape has
    uint64_t seed;        // same shape, layers and seed: same bytes
    uint64_t shard_bytes; // most tensor bytes of one shard; 0: 5 GiB as published
    bool is_overwrite;    // replace a checkpoint that stands in the folder
} SynthWrite;

/* Writes the folder. The full shape gets the published names, shapes, dtypes, shards, config and
 * index. Each file appears under its name whole; when one fails, those of this call are removed
 * again (and the folder, if this call made it).
 *
 * pool      threads that make the numbers; the bytes do not depend on their number
 * progress  bytes of tensors written so far; NULL: silent
 * Returns STATUS_INVALID for a bad shape or count or when a checkpoint is there already, STATUS_IO
 * (a full disk), STATUS_DENIED, STATUS_MEMORY.
 * Cost: bounded by the disk; holds at most a few tens of MB. */
NODISCARD Status synth_write(const SynthWrite *what, Pool *pool, const Progress *progress,
                             Err *err);

/* Names of the shapes and a line about each; NULL from the end of the list on. */
const char *synth_write_shape_name(int i);
const char *synth_write_shape_about(int i);

/* Ids of a random model that have a token: all of a small vocabulary, 248,077 of the full one. What
 * tokenizer_open_bytes is asked for, so that a model without files has the ids of a written one. */
int32_t synth_write_n_ids(int32_t vocab);

#endif
