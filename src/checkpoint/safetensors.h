// SPDX-License-Identifier: Apache-2.0
/* safetensors.h - one safetensors file: its table of tensors, and reads of their bytes or numbers.
 *
 * Path:     folder.c opens the shards of a checkpoint; tests and verbs open single files.
 * Owns:     a Safetensors owns its descriptor and its table.  Thread: open and close from one;
 *           reads from any, at once.
 * Not here: which tensors a model needs (folder.h); writing (safetensors_write.h). */
#ifndef LILY_CHECKPOINT_SAFETENSORS_H
#define LILY_CHECKPOINT_SAFETENSORS_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

enum { SAFETENSORS_RANK = 8 }; // dimensions of a tensor; the vision tower has up to 5

/* dtype, bytes of an element */
#define SAFETENSORS_DTYPES(X)                                                                      \
    X(BOOL, 1)                                                                                     \
    X(U8, 1)                                                                                       \
    X(I8, 1)                                                                                       \
    X(F8_E4M3, 1)                                                                                  \
    X(F8_E5M2, 1)                                                                                  \
    X(I16, 2)                                                                                      \
    X(U16, 2)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(I32, 4)                                                                                      \
    X(U32, 4)                                                                                      \
    X(F32, 4)                                                                                      \
    X(F64, 8)                                                                                      \
    X(I64, 8)                                                                                      \
    X(U64, 8)

typedef enum SafetensorsDtype {
#define X(name, size) ST_##name,
    SAFETENSORS_DTYPES(X)
#undef X
        ST_N
} SafetensorsDtype;

/* "BF16"; bytes of an element. */
const char *safetensors_dtype_name(SafetensorsDtype dtype);
uint32_t safetensors_dtype_size(SafetensorsDtype dtype);

typedef struct SafetensorsTensor {
    StrView name; // has a NUL behind it; may hold zero bytes only when the file says so
    SafetensorsDtype dtype;
    int rank;                         // 0: a scalar
    uint64_t shape[SAFETENSORS_RANK]; // [rank]
    uint64_t n_elems;                 // product of shape
    uint64_t begin;                   // absolute offset of the first byte in the file, any value
    uint64_t n_bytes;                 // n_elems * element size, inside the file
} SafetensorsTensor;

/* The checked header of a file. */
typedef struct SafetensorsTable {
    SafetensorsTensor *tensors; // [n] by name in ascending byte order, in the arena
    size_t n;
    uint64_t header_bytes; // of the JSON text
    uint64_t tensor_bytes; // sum over the tensors
} SafetensorsTable;

/* Parses and checks a header: names unique, dtypes known, sizes without overflow and equal to the
 * offsets' distance, every tensor inside the file, no two overlapping.
 *
 * out        the table; its memory is of arena                      (out)
 * header     the JSON text                                          (in)
 * file_size  bytes of the whole file, at least 8 + header.len
 * path       for error texts
 * Returns STATUS_FORMAT, STATUS_UNSUPPORTED (a dtype or rank that this program does not know),
 * STATUS_MEMORY. */
NODISCARD Status safetensors_parse_header(SafetensorsTable *out, Arena *arena, StrView header,
                                          uint64_t file_size, const char *path, Err *err);

/* An opened file. */
typedef struct Safetensors {
    int fd;
    uint64_t size; // bytes
    const char *path;
    SafetensorsTable table;
    Arena arena;
} Safetensors;

/* Opens a file and reads its header; STATUS_FORMAT, STATUS_UNSUPPORTED, STATUS_NOT_FOUND,
 * STATUS_DENIED, STATUS_IO, STATUS_MEMORY. */
NODISCARD Status safetensors_open(Safetensors **out, const char *path, Err *err);
void safetensors_close(Safetensors *f);

/* NULL: there is no such tensor. */
const SafetensorsTensor *safetensors_find(const Safetensors *f, StrView name);

/* Reads bytes [off, off + len) of a tensor, which must lie inside it. */
NODISCARD Status safetensors_read_bytes(const Safetensors *f, const SafetensorsTensor *t, void *out,
                                        size_t len, uint64_t off, Err *err);
/* Tells the system that the file's pages are not needed again soon. */
void safetensors_drop_pages(const Safetensors *f);
/* All elements of an F32, F16 or BF16 tensor; out [n_elems]. Another dtype is STATUS_UNSUPPORTED.
 */
NODISCARD Status safetensors_read_f32(const Safetensors *f, const SafetensorsTensor *t, float *out,
                                      Err *err);

/* "[256, 512]" of a shape, cut to size bytes. */
void safetensors_shape_text(char *out, size_t size, const uint64_t *shape, int rank);

#endif
