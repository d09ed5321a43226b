// SPDX-License-Identifier: Apache-2.0
/* work.h - how many bytes and operations steps of a model need at least: the other half of a bound.
 *
 * Path:     bench.c divides these by what meter.h measured.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_CLI_WORK_H
#define LILY_CLI_WORK_H

#include "checkpoint/weights.h"

/* Constants of a model. */
typedef struct Work {
    double dense_bytes;  // weights that every step reads: all but experts, head and embedding
    double head_bytes;   // the output head
    double expert_bytes; // one routed expert of one layer
    double row_bytes;    // one embedding row
    double state_bytes;  // recurrent state and windows of a sequence, read and written once
    double kv_bytes;     // keys and values of one position, all layers
    double flop;         // a row's matrix work without the head
    double head_flop;
    double recur_flop; // the delta rule of a row, token by token
    double attn_flop;  // a row's attention, for each position of its context
} Work;

void work_init(Work *out, const Weights *w);

/* Totals of some steps. */
typedef struct WorkDone {
    double bytes, flop;
} WorkDone;

/* n_steps decode steps of one sequence from context ctx on; n_expert_reads: distinct (layer,
 * expert) pairs, summed over the steps. */
WorkDone work_decode(const Work *w, int32_t ctx, int32_t n_steps, uint64_t n_expert_reads);
/* A prefill of n rows in n_steps pieces from an empty context, head for the last row. */
WorkDone work_prefill(const Work *w, int32_t n, int32_t n_steps, uint64_t n_expert_reads);

#endif
