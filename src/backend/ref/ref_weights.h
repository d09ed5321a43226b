// SPDX-License-Identifier: Apache-2.0
/* ref_weights.h - a model's weights in memory as published: codes, scales, biases, plain vectors.
 *
 * Path:     ref.c opens them once and dequantises a row whenever it needs one.
 * Owns:     RefWeights owns one mapping.  Thread: open and close from one; reads from any.
 * Not here: how a code becomes a number (checkpoint/quant.h). */
#ifndef LILY_BACKEND_REF_WEIGHTS_H
#define LILY_BACKEND_REF_WEIGHTS_H

#include "base/pool.h"
#include "checkpoint/weights.h"

/* A quantised matrix, or E of them one behind the other. */
typedef struct RefMatrix {
    WeightInfo info;
    uint32_t *q;     // [E * n, k * bits / 32]; NULL: the layer has no such matrix
    uint16_t *scale; // [E * n, k / group] bf16
    uint16_t *bias;  // like scale
} RefMatrix;

/* The slots of one layer, or of the model. */
typedef struct RefLayer {
    RefMatrix matrix[SLOT_N];
    float *plain[SLOT_N]; // [n * k]; NULL: the layer has no such vector
} RefLayer;

typedef struct RefWeights {
    RefLayer model, *layers; // layers [n_layers]
    int32_t n_layers;
    char *map; // holds all of them
    size_t map_bytes;
} RefWeights; // {0} may be closed

/* Bytes of memory that the weights take. */
uint64_t ref_weights_bytes(const Weights *w);

/* Reads every slot once, with all threads of the pool. progress may be NULL. What a failure leaves
 * is to be closed too. Returns what the reads of weights.h return, and STATUS_MEMORY. */
NODISCARD Status ref_weights_open(RefWeights *out, const Weights *w, Pool *pool,
                                  const Progress *progress, Err *err);
void ref_weights_close(RefWeights *r);

#endif
