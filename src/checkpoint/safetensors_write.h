// SPDX-License-Identifier: Apache-2.0
/* safetensors_write.h - writes one safetensors file in MLX's form: compact header with its keys in
 * ascending order, no padding, data in the order of the entries.
 *
 * Path:     synth writes checkpoints, the logits verb its results, tests their files.
 * Owns:     a SafetensorsWriter owns its FileWriter: the file appears whole or not at all.
 *           Thread: open, commit and close from one; write_at from any, at once. */
#ifndef LILY_CHECKPOINT_SAFETENSORS_WRITE_H
#define LILY_CHECKPOINT_SAFETENSORS_WRITE_H

#include "checkpoint/safetensors.h"

typedef struct SafetensorsEntry {
    const char *name; // NUL-terminated UTF-8
    SafetensorsDtype dtype;
    int rank;
    uint64_t shape[SAFETENSORS_RANK];
} SafetensorsEntry;

/* Bytes of an entry's data; UINT64_MAX when they overflow. */
uint64_t safetensors_entry_bytes(const SafetensorsEntry *entry);

/* The first bytes of a file: 8 of length, then the JSON text; the data section begins behind them.
 *
 * out      appended to                                              (inout)
 * entries  [n] in the order of their data; names must differ
 * Returns STATUS_INVALID for equal names or an overflow, STATUS_MEMORY. */
NODISCARD Status safetensors_write_header(StrBuf *out, const SafetensorsEntry *entries, size_t n,
                                          Err *err);

typedef struct SafetensorsWriter SafetensorsWriter;
/* Creates the file and writes its header. entries are copied. */
NODISCARD Status safetensors_write_open(SafetensorsWriter **out, const char *path,
                                        const SafetensorsEntry *entries, size_t n, Err *err);
/* Writes len bytes at byte off of entry i's data; each byte once, in any order. */
NODISCARD Status safetensors_write_at(SafetensorsWriter *w, size_t i, const void *bytes, size_t len,
                                      uint64_t off, Err *err);
/* Flushes and puts the file in its place; all bytes must have been written. */
NODISCARD Status safetensors_write_commit(SafetensorsWriter *w, Err *err);
/* Without a commit the file is removed. */
void safetensors_write_close(SafetensorsWriter *w);

/* One call: a whole file from arrays in memory; data[i] holds entry i's bytes. */
NODISCARD Status safetensors_write_file(const char *path, const SafetensorsEntry *entries,
                                        const void *const *data, size_t n, Err *err);

#endif
