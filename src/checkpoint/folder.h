// SPDX-License-Identifier: Apache-2.0
/* folder.h - a checkpoint folder: its config, its shards, and each slot bound to its tensors.
 *
 * Path:     weights.c opens it as a WeightsSource; inspect.c reports on it.
 * Owns:     a Folder owns its open files and tables.  Thread: open and close from one; reads from
 *           any, at once.
 * Not here: checks of the numbers that are read (weights.c). */
#ifndef LILY_CHECKPOINT_FOLDER_H
#define LILY_CHECKPOINT_FOLDER_H

#include "checkpoint/ckpt_index.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights_source.h"

#include <stdatomic.h>

/* Takes what is wrong with single tensors, so that a report can list all of it. */
typedef struct FolderRefusals {
    void (*add)(void *ctx, Status code, const char *text);
    void *ctx;
} FolderRefusals;

/* One tensor of a slot. */
typedef struct FolderPart {
    const Safetensors *file;
    const SafetensorsTensor *tensor; // NULL: not bound
} FolderPart;

/* The tensors of a slot; a plain one has only `main`. */
typedef struct FolderBound {
    FolderPart main, scales, biases;
} FolderBound;

/* Tensors that the text model does not use. */
typedef struct FolderSkipped {
    size_t n;
    uint64_t n_bytes;
} FolderSkipped;

typedef struct Folder {
    ModelConfig config;
    QuantTable *quant;
    const char *dir;
    Safetensors **files; // [n_files]
    int32_t n_files;
    bool has_index;        // model.safetensors.index.json, else the one file model.safetensors
    CkptIndex index;       // when has_index
    bool is_raw;           // zero-centred norms: their gain is 1 + what is stored
    bool is_cache_dropped; // memory is short: pages of the files are given back on the way
    _Atomic uint64_t n_bytes_read; // when is_cache_dropped
    FolderBound *bound;            // [(n_layers + 1) * SLOT_N], see folder_bound
    FolderSkipped vision, mtp;
    Arena arena;
} Folder;

/* Opens a folder: reads config.json, generation_config.json (if it is there), the index and all
 * headers; binds every slot; refuses what is missing, misshapen, doubled or left over.
 *
 * refusals  NULL: the first fault of a tensor fails the call; else those are handed over and the
 *           call goes on. Faults of the config, the index and the headers always fail it.
 * log       NULL: silent */
NODISCARD Status folder_open(Folder **out, const char *dir, const FolderRefusals *refusals,
                             const Log *log, Err *err);
void folder_close(Folder *f);

/* Fills the table whose self is f; its close closes f. */
void folder_source(WeightsSource *out);

/* The tensors of a slot; layer -1 for the model's own. */
const FolderBound *folder_bound(const Folder *f, WeightSlot slot, int layer);
/* Bytes of all parts of a slot, as stored. */
uint64_t folder_stored_bytes(const FolderBound *bound);

#endif
