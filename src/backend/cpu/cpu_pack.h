// SPDX-License-Identifier: Apache-2.0
/* cpu_pack.h - the model's weights in the tiles of kernels.h: where each matrix lies, and how it
 * gets there from a checkpoint.
 *
 * Path:     cpu.c asks for the size, maps memory, packs; the passes read CpuModel.
 * Owns:     nothing; the caller owns the memory.  Thread: cpu_pack_model from one, it uses a pool.
 * Not here: what the tiles mean (kernels.h), tensor names and files (weights.h). */
#ifndef LILY_BACKEND_CPU_CPU_PACK_H
#define LILY_BACKEND_CPU_CPU_PACK_H

#include "backend/cpu/kernels.h"
#include "base/log.h"
#include "base/pool.h"
#include "checkpoint/weights.h"

/* A quantised matrix in tiles, or n_experts of them one behind the other. */
typedef struct PackedMatrix {
    uint8_t *tiles;
    int32_t n_experts, n, n_strips, n_groups, bits; // n outputs in n_strips strips of 16
    size_t strip_bytes, expert_bytes;
} PackedMatrix;

/* The slots of one layer, or of the model; those that it does not have are zero and NULL.
 * Plain slots as weights_read_plain gives them, but SLOT_GDN_CONV [4 taps][CC], and SLOT_GDN_A_LOG
 * as -exp(A_log). */
typedef struct CpuLayer {
    bool is_attn;
    int32_t place; // number among the layers of its kind: where its state or its KV lies
    PackedMatrix m[SLOT_N];
    float *plain[SLOT_N];
} CpuLayer;

typedef struct CpuModel {
    int32_t n_layers;
    CpuLayer top;                  // the model's own slots; head is embed when tied
    CpuLayer layers[LIMIT_LAYERS]; // [n_layers]
} CpuModel;

/* Fills in every shape and place for weights that lie at base (64-byte aligned; NULL: only the
 * size matters). Returns STATUS_UNSUPPORTED for groups of 32, naming the tensor. */
NODISCARD Status cpu_pack_layout(CpuModel *out, size_t *size, const Weights *w, uint8_t *base,
                                 Err *err);

/* Reads every tensor once, in pieces of about a megabyte, and packs it into the places that
 * cpu_pack_layout gave, spread over the machine's memory nodes. Takes the reading's failures;
 * STATUS_MEMORY for the piece buffers. */
NODISCARD Status cpu_pack_model(const CpuModel *model, const Weights *w, Pool *pool,
                                const Progress *progress, Err *err);

/* Packs n_rows (1..16) rows as one strip; the rest of the strip becomes zero. q, scale, bias as
 * weights_read_quant gives them, group 64 or 128. */
void cpu_pack_strip(uint8_t *strip, const uint32_t *q, const uint16_t *scale, const uint16_t *bias,
                    int32_t n_rows, int32_t n_groups, int32_t bits, int32_t group);

/* out [64 n_groups] = scale * q + bias of one output row, one rounding to f32. */
void cpu_pack_row(float *out, const PackedMatrix *m, int32_t row);

#endif
