// SPDX-License-Identifier: Apache-2.0
/* quant_table.h - bits and group of each module, from the "quantization" block of config.json.
 *
 * Path:     config.c fills it; folder.c asks it for each matrix.
 * Owns:     a QuantTable owns its entries.  Thread: reads from any, at once. */
#ifndef LILY_CHECKPOINT_QUANT_TABLE_H
#define LILY_CHECKPOINT_QUANT_TABLE_H

#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

struct json_t; // jansson

typedef struct QuantSpec {
    int32_t bits;  // 4 or 8; 0: not quantised
    int32_t group; // 32, 64 or 128 inputs
} QuantSpec;
typedef struct QuantTable QuantTable; // overrides by module path

/* The name without its outermost scope: one of "language_model.model.", "model.language_model.",
 * "language_model.", "model." is taken off, so that the spellings of all conversions are one. */
StrView quant_table_strip_scope(StrView name);

/* Reads the block.
 *
 * out    free with quant_table_close                                (out)
 * block  the JSON object
 * where  for error texts: "config.json: quantization"
 * Returns STATUS_FORMAT, STATUS_UNSUPPORTED (another method, mode, width or group), STATUS_MEMORY.
 * Source: model specification, section 1.3. */
NODISCARD Status quant_table_parse(QuantTable **out, const struct json_t *block, const char *where,
                                   Err *err);

/* Bits and group for a module path such as "language_model.model.layers.0.mlp.gate"; overrides may
 * be keyed with the prefixes "model.language_model.", "language_model." or none. */
QuantSpec quant_table_find(const QuantTable *table, StrView module);
void quant_table_close(QuantTable *table);

#endif
