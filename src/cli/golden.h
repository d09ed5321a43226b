// SPDX-License-Identifier: Apache-2.0
/* golden.h - recorded greedy continuations with their top log-probabilities.
 *
 * Path:     eval.c; tests read the recorded prompts.
 * Owns:     a Golden owns its arena.  Thread: any. */
#ifndef LILY_CLI_GOLDEN_H
#define LILY_CLI_GOLDEN_H

#include "base/arena.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct GoldenStep {
    int32_t chosen; // the id that was taken
    int32_t n_top;
    int32_t *top_ids;     // [n_top] descending log-probability
    double *top_logprobs; // [n_top] natural logarithm
} GoldenStep;

typedef struct Golden {
    Arena arena;
    char *text;       // the prompt's text; NULL: not recorded
    bool is_chat;     // text is a user message inside the chat template
    int32_t *prompt;  // [n_prompt]
    int32_t n_prompt; // >= 1
    GoldenStep *steps;
    int32_t n_steps; // >= 1
} Golden;

/* Reads a golden file: {"prompt_token_ids": [..], "steps": [{"chosen": id, "topk": [[id, logprob],
 * ..]}, ..], "prompt": text, "chat_template": bool}. Returns STATUS_FORMAT naming the field,
 * STATUS_IO, STATUS_NOT_FOUND, STATUS_MEMORY. */
NODISCARD Status golden_read(Golden *out, const char *path, Err *err);
/* STATUS_INVALID when an id is not below vocab. */
NODISCARD Status golden_check(const Golden *g, int32_t vocab, Err *err);
void golden_fini(Golden *g);

#endif
