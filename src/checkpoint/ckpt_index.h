// SPDX-License-Identifier: Apache-2.0
/* ckpt_index.h - model.safetensors.index.json: which shard holds which tensor.
 *
 * Path:     folder.c reads it before any shard.
 * Owns:     a CkptIndex is memory of the arena that it was given.  Thread: any. */
#ifndef LILY_CHECKPOINT_CKPT_INDEX_H
#define LILY_CHECKPOINT_CKPT_INDEX_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

typedef struct CkptIndexEntry {
    StrView tensor; // NUL behind it
    int32_t file;   // index into files
} CkptIndexEntry;

typedef struct CkptIndex {
    const char **files; // [n_files] plain names without a folder, ascending
    int32_t n_files;
    CkptIndexEntry *entries; // [n] by tensor in ascending byte order
    size_t n;
    int64_t total_size; // metadata.total_size; -1: not given
} CkptIndex;

/* Parses and checks the file's text.
 *
 * name  for error texts
 * Returns STATUS_FORMAT (no weight_map, a name that leads out of the folder), STATUS_TOO_LARGE,
 * STATUS_MEMORY. */
NODISCARD Status ckpt_index_parse(CkptIndex *out, Arena *arena, StrView text, const char *name,
                                  Err *err);

/* File of a tensor; -1: the index does not have it. */
int32_t ckpt_index_find(const CkptIndex *index, StrView tensor);

#endif
