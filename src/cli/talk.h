// SPDX-License-Identifier: Apache-2.0
/* talk.h - the command line's way to the C library: a model and an answer's options from CliArgs.
 *
 * Path:     generate and chat -> include/lily.h.
 * Owns:     see each function.  Thread: main. */
#ifndef LILY_CLI_TALK_H
#define LILY_CLI_TALK_H

#include "cli/options.h"
#include "lily.h"

/* Texts and numbers that LilyAnswerOptions borrows. */
typedef struct TalkLists {
    LilyText stops[LIMIT_STOP_STRINGS];
    LilyBias biases[LIMIT_LOGIT_BIAS];
} TalkLists;

/* Opens the model that args name; warnings and a progress bar go to standard error.
 *
 * n_snapshots  as in LilyModelOptions
 * Returns what lily_model_open does. */
NODISCARD Status talk_open(LilyModel **out, const CliArgs *args, int32_t n_snapshots, Err *err);

/* What talk_options would refuse, before a model is opened: STATUS_INVALID for a --logit-bias that
 * is none. */
NODISCARD Status talk_check(const CliArgs *args, Err *err);

/* The model's defaults with what args give. lists is kept by *out.
 * Returns STATUS_INVALID for a --logit-bias that is none. */
NODISCARD Status talk_options(LilyAnswerOptions *out, TalkLists *lists, const CliArgs *args,
                              const LilyModel *model, Err *err);

/* A failure of the library as one of the program. */
NODISCARD Status talk_fail(Err *err, const LilyError *error);

/* "stop", "length", "tool_calls", "cancelled", "failed". */
const char *talk_finish_name(LilyFinish finish);

#endif
