// SPDX-License-Identifier: Apache-2.0
/* model.h - what several verbs open: weights, backend kind, tokenizer, ids from the command line.
 *
 * Owns:     see each function.  Thread: main. */
#ifndef LILY_CLI_MODEL_H
#define LILY_CLI_MODEL_H

#include "backend/backend.h"
#include "checkpoint/weights.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

/* The model that `-m` names, else $LILY_MODEL, else the small one that comes with the program, in
 * the first of these places that holds a config.json, seen from the program's own folder:
 * models/mini (a distribution), ../models/mini and ../../models/mini (the source tree, from its
 * build folder or one in that), ../share/lily/mini (an installation); then
 * /usr/local/share/lily/mini and models/mini in the working directory.
 *
 * out     borrowed from args, the environment, or storage that the next call overwrites  (out)
 * Returns STATUS_NOT_FOUND, which names the places, where there is none. A random model is never
 * taken unasked. */
NODISCARD Status model_find(const char **out, const CliArgs *args, Err *err);

/* The same for texts about a model that was opened; "" where there is none. */
const char *model_spec(const CliArgs *args);

/* Opens the weights of the model that model_find finds. */
NODISCARD Status model_weights(Weights **out, const CliArgs *args, const Log *log, Err *err);

/* The backend that --backend names, BACKEND_AUTO where it names none. STATUS_INVALID for an unknown
 * one, STATUS_UNSUPPORTED for one that is not here. */
NODISCARD Status model_backend(BackendKind *out, const CliArgs *args, Err *err);
/* The same, settled for a model. */
NODISCARD Status model_backend_for(BackendKind *out, const CliArgs *args, const Weights *w,
                                   Err *err);

/* Options of an engine from the command line. */
NODISCARD Status model_engine_options(EngineOptions *out, const CliArgs *args, Err *err);

/* The tokenizer of a model: its folder's, or bytes for a random model. */
NODISCARD Status model_tokenizer(Tokenizer **out, const Weights *w, Err *err);

/* "1,2,3" (or "@FILE" with such a list; spaces, line feeds and brackets pass) to ids;
 * free *out with mem_free. */
NODISCARD Status model_parse_ids(int32_t **out, int32_t *n, const char *text, Err *err);

#endif
