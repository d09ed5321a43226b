// SPDX-License-Identifier: Apache-2.0
/* generation.h - how a checkpoint's makers sample from it: generation_config.json.
 *
 * Path:     the command line and the server take these where the user says nothing.
 * Owns:     plain data.  Thread: any.
 * Not here: end ids (config.h reads them from the same file). */
#ifndef LILY_CHECKPOINT_GENERATION_H
#define LILY_CHECKPOINT_GENERATION_H

#include "base/status.h"

#include <stdint.h>

typedef struct Generation {
    double temperature;        // 0: greedy (do_sample false)
    double top_p;              // 1: all
    double min_p;              // 0: none dropped
    double repetition_penalty; // 1: none
    int64_t top_k;             // 0: all
} Generation;

/* Reads dir's generation_config.json; a folder without one (or dir NULL) gives the family's values,
 * temperature 1.0, top_k 20, top_p 0.95.
 * Returns STATUS_FORMAT naming file and field, STATUS_IO, STATUS_MEMORY.
 * Source: generation_config.json of Qwen3.6-35B-A3B; field names of transformers. */
NODISCARD Status generation_read(Generation *out, const char *dir, Err *err);

#endif
