// SPDX-License-Identifier: Apache-2.0
/* work.h - how many bytes and operations steps of a model need at least: the other half of a bound.
 *
 * Path:     bench.c divides these by what backend_meter measured.
 * Owns:     nothing.  Thread: any.
 *
 * Bytes are those of the published format: what a step must read however it is written. Twice the
 * same within a step counts once. Decode and prefill put the shared expert's gate and up into
 * different stages (see BackendStageId); their sums over the stages are alike. */
#ifndef LILY_CLI_WORK_H
#define LILY_CLI_WORK_H

#include "backend/backend.h"

/* What one stage of all layers costs. */
typedef struct WorkStage {
    double step_bytes;   // once a step
    double expert_bytes; // of each distinct expert of a layer
    double row_bytes;    // of each row: embedding, key and value written
    double state_bytes;  // of each sequence and step: state and window, read and written
    double key_bytes;    // of each position of the context that is read
    double row_flop;     // of each row
    double head_flop;    // of each row that goes through the output head
    double key_flop;     // of each row, for each position of its context
} WorkStage;

/* Constants of a model. */
typedef struct Work {
    WorkStage stages[2][STAGE_N]; // by BatchPhase
    int32_t n_layers, n_experts, top_k;
} Work;

void work_init(Work *out, const Weights *w);

/* Some steps of one phase, summed. */
typedef struct WorkLoad {
    BatchPhase phase;
    double n_steps;
    double n_rows;         // of all steps and sequences
    double n_states;       // sequences, summed over the steps
    double n_head_rows;    // rows that go through the head
    double n_heads;        // steps in which any does
    double n_keys_read;    // positions of context read from memory
    double n_keys_seen;    // positions of context, summed over the rows
    double n_expert_reads; // distinct (layer, expert) pairs, summed over the steps
} WorkLoad;

/* n_steps decode steps of n_seqs sequences, each with ctx positions behind it at first. */
WorkLoad work_load_decode(int32_t ctx, int32_t n_steps, int32_t n_seqs, double n_expert_reads);
/* Prompts of n rows read by n_seqs sequences one behind the other in pieces of `chunk` rows from an
 * empty context, head for the last row. */
WorkLoad work_load_prefill(int32_t n, int32_t chunk, int32_t n_seqs, double n_expert_reads);

/* How many distinct experts the steps of a load read where routing is even and nobody counted: E (1
 * - (1 - K / E)^rows) a layer and step; exact for one row a step. */
double work_expected_experts(const Work *w, double n_steps, double rows_per_step);

typedef struct WorkDone {
    double bytes, flop;
} WorkDone;

/* A stage's part of a load, and the whole of it. */
WorkDone work_stage(const Work *w, const WorkLoad *load, BackendStageId stage);
WorkDone work_total(const Work *w, const WorkLoad *load);

/* Seconds that the work takes at least: max(bytes / read, flop / tflops); 0 for no work. is_flop
 * (may be NULL): whether the operations decide. */
double work_bound_seconds(WorkDone done, double read_gb_s, double matrix_tflops, bool *is_flop);

#endif
