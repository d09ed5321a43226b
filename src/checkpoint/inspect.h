// SPDX-License-Identifier: Apache-2.0
/* inspect.h - what a checkpoint is, as a JSON report, without reading its tensors' data.
 *
 * Path:     the verb `inspect` prints it or hands it on.
 * Owns:     nothing.  Thread: one.
 * Not here: whether the machine has the memory (src/engine/plan.h). */
#ifndef LILY_CHECKPOINT_INSPECT_H
#define LILY_CHECKPOINT_INSPECT_H

#include "base/status.h"

#include <jansson.h>

/* Reports on a folder, or on a random model ("synth:..."). Members:
 *
 * model       the spec
 * form        "mlx", "raw" or "synth"
 * config      the counts by the names of MODEL.md, layers as "gdn gdn gdn attn ...", eos, is_tied
 * parameters  number of weights; active_parameters: those that one token uses
 * slots       list, one for each kind: slot, n (how many layers have it), shape, bits, group
 *             (0 and 0: plain), dtypes, bytes. bits and group are -1 where layers differ
 * bytes       text (all bound tensors), vision, mtp (skipped), total (of the files' tensors)
 * files       list: name, bytes, header_bytes, tensors, tensor_bytes; empty for a random model
 * notes       list of texts: what loading would say
 * refused     list of texts: what loading would refuse; empty: it loads
 *
 * A fault that hides the rest (config, index, a header) leaves only model and refused.
 * out     json_decref                                               (out)
 * Returns STATUS_OK also for a bad checkpoint; STATUS_MEMORY. */
NODISCARD Status inspect_report(json_t **out, const char *spec, Err *err);

#endif
