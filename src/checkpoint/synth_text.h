// SPDX-License-Identifier: Apache-2.0
/* synth_text.h - the text files of a random model's folder.
 *
 * Path:     synth_write.c writes them.
 * Owns:     nothing; each call appends to the caller's StrBuf and returns STATUS_MEMORY when that
 *           fails.  Thread: any.
 * Source:   model specification, sections 1 and 2; tokenizer specification, section 1. The full
 * shape gives the published config.json, generation_config.json and index byte for byte. */
#ifndef LILY_CHECKPOINT_SYNTH_TEXT_H
#define LILY_CHECKPOINT_SYNTH_TEXT_H

#include "checkpoint/synth_layout.h"

/* config.json; keys in the published order, indent 4, no line feed at the end. */
NODISCARD Status synth_text_config(StrBuf *out, const ModelConfig *c, Err *err);
/* generation_config.json. */
NODISCARD Status synth_text_generation(StrBuf *out, const ModelConfig *c, Err *err);
/* model.safetensors.index.json; names in ascending order. */
NODISCARD Status synth_text_index(StrBuf *out, const SynthLayout *layout, Err *err);
/* tokenizer.json: 256 byte tokens, words that encoding never yields, the 33 added tokens from
 * synth_added_base on; no merges. */
NODISCARD Status synth_text_tokenizer(StrBuf *out, const ModelConfig *c, Err *err);
/* chat_template.jinja. */
NODISCARD Status synth_text_template(StrBuf *out, Err *err);

#endif
