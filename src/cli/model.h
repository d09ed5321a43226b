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

#define MODEL_FALLBACK "synth:mini"

/* The model that `-m` names, else the small one that comes with the program: $LILY_MODEL, the
 * folder models/mini beside the program's build folder, or share/lily/mini under its prefix; where
 * none is there, MODEL_FALLBACK, a random model of that shape. Static storage: valid until the next
 * call. */
const char *model_spec(const CliArgs *args);

/* STATUS_INVALID for an unknown backend, STATUS_UNSUPPORTED for one that is not here. */
NODISCARD Status model_backend(BackendKind *out, const CliArgs *args, Err *err);

/* Options of an engine from the command line. */
NODISCARD Status model_engine_options(EngineOptions *out, const CliArgs *args, Err *err);

/* The tokenizer of a model: its folder's, or bytes for a random model. */
NODISCARD Status model_tokenizer(Tokenizer **out, const Weights *w, Err *err);

/* "1,2,3" (or "@FILE" with such a list; spaces, line feeds and brackets pass) to ids;
 * free *out with mem_free. */
NODISCARD Status model_parse_ids(int32_t **out, int32_t *n, const char *text, Err *err);

#endif
