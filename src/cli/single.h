// SPDX-License-Identifier: Apache-2.0
/* single.h - one sequence straight on a backend, step by step: what the measuring verbs share.
 *
 * Path:     logits, eval, synth.
 * Owns:     the Backend and its block table.  Thread: main.
 * Not here: scheduling, text (src/engine). */
#ifndef LILY_CLI_SINGLE_H
#define LILY_CLI_SINGLE_H

#include "backend/backend.h"
#include "cli/options.h"

typedef struct Single {
    Backend *backend;
    BackendNeeds needs;
    const ModelConfig *config;
    int32_t *blocks; // every block in order
    int32_t chunk;   // rows of a prefill step, a multiple of 64
    int32_t pos;     // positions done; 0 starts anew
} Single;

/* Opens the backend that args name for up to n_positions and prefill steps of `chunk` rows (rounded
 * up to 64); max_logits as in BackendPlan. STATUS_CONTEXT beyond the model's positions. */
NODISCARD Status single_open(Single *out, const CliArgs *args, const Weights *w,
                             int32_t n_positions, int32_t chunk, int32_t max_logits, Err *err);
void single_close(Single *s);

/* One step of n rows at s->pos, which moves on. want and tap as in BatchSeq and Batch; is_sampled:
 * choose the next id with sampler 0. NaN or infinity is STATUS_NUMERIC. */
NODISCARD Status single_step(Single *s, BatchPhase phase, const int32_t *ids, int32_t n_rows,
                             BatchWant want, bool is_sampled, const BatchTap *tap,
                             BatchResult *result, Err *err);

/* Prefill of n ids from position 0 in pieces; the last row is as want and is_sampled say. */
NODISCARD Status single_prefill(Single *s, const int32_t *ids, int32_t n, BatchWant want,
                                bool is_sampled, BatchResult *result, Err *err);

/* ids[i] in [0, vocab) for all, else STATUS_INVALID naming the first. */
NODISCARD Status single_check_ids(const ModelConfig *c, const int32_t *ids, int32_t n, Err *err);

#endif
