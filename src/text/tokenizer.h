// SPDX-License-Identifier: Apache-2.0
/* tokenizer.h - text to token ids and back, exactly as the checkpoint's own tokenizer does it.
 *
 * Path:     a turn encodes its rendered prompt here and reads the answer through a Detok.
 * Owns:     a Tokenizer owns its tables.  Thread: a Tokenizer is read-only: any; the rest: one at
 *           a time.
 * Not here: the chat template (chat.h), control tags in an answer (parse.h).
 *
 *     text -> added tokens cut out (added) -> NFC (normalize) -> pieces (pretoken) -> ids (bpe) */
#ifndef LILY_TEXT_TOKENIZER_H
#define LILY_TEXT_TOKENIZER_H

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "detok.h"
#include "token_ids.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Tokenizer Tokenizer;

/* Opens the tokenizer of a checkpoint folder: tokenizer.json, or vocab.json and merges.txt where
 * there is none; tokenizer_config.json on top (added tokens, splitting expression).
 *
 * vocab   rows of the model's vocabulary matrices, 1..LIMIT_VOCAB; an id >= vocab is an error
 * log     warnings; NULL: silent
 * Returns STATUS_NOT_FOUND, STATUS_DENIED, STATUS_IO, STATUS_TOO_LARGE for files,
 * STATUS_FORMAT for malformed or contradictory ones (no <|im_start|>, <|im_end|> or <|endoftext|>
 * among them), STATUS_UNSUPPORTED for tokenizers of another kind, STATUS_MEMORY.
 * Owner:  close *out with tokenizer_close; a failed open leaves *out untouched.
 * Cost:   about half a second for the family's 248,077 tokens. */
NODISCARD Status tokenizer_open(Tokenizer **out, const char *dir, int32_t vocab, const Log *log,
                                Err *err);

/* The same from the texts of the files (token_load.h has the struct). */
struct TokenFiles;
NODISCARD Status tokenizer_open_texts(Tokenizer **out, const struct TokenFiles *files,
                                      int32_t vocab, const Log *log, Err *err);

/* A tokenizer without files, for models made in memory: 256 byte tokens first, the family's 33
 * added tokens as the last ids below vocab. Ids between them decode to a space and a lower-case
 * word, and encoding never yields them.
 *
 * Returns STATUS_INVALID unless 289 <= vocab <= LIMIT_VOCAB, STATUS_MEMORY. */
NODISCARD Status tokenizer_open_bytes(Tokenizer **out, int32_t vocab, Err *err);
void tokenizer_close(Tokenizer *t);

/* Ids that have a token lie below the first, all ids below the second. What is sampled must be
 * masked from the first on. */
int32_t tokenizer_n_ids(const Tokenizer *t);
int32_t tokenizer_n_rows(const Tokenizer *t);

/* Id of an added token such as "<|im_end|>"; -1: none. */
int32_t tokenizer_find_added(const Tokenizer *t, StrView text);

/* The bytes an id stands for, not always whole characters; {NULL, 0} when it has no token or is out
 * of range. Valid until the tokenizer is closed. */
StrView tokenizer_id_bytes(const Tokenizer *t, int32_t id);

/* Whether id is an added token; whether it is one that "skip special" drops (<think> is not). */
bool tokenizer_is_added(const Tokenizer *t, int32_t id);
bool tokenizer_is_special(const Tokenizer *t, int32_t id);

/* Appends the ids of text. Nothing is put around it.
 *
 * out      grows at its end; unchanged by a failure                 (inout)
 * text     may hold zero bytes                                      (in)
 * trusted  bit i % 8 of byte i / 8 tells that byte i of text may be part of an added token, which
 *          counts only if all its bytes may; the text is cut in no other way. NULL: all may, as in
 *          the reference                                            (in)
 * Returns STATUS_INVALID for text that is not UTF-8 (the error names the byte offset),
 * STATUS_TOO_LARGE above LIMIT_TEXT_BYTES, STATUS_MEMORY.
 * Cost:    10 to 50 ns a byte; never worse than O(n log n). */
NODISCARD Status tokenizer_encode(const Tokenizer *t, TokenIds *out, StrView text,
                                  const uint8_t *trusted, Err *err);

/* The same with no added token recognised: all of text is data. */
NODISCARD Status tokenizer_encode_plain(const Tokenizer *t, TokenIds *out, StrView text, Err *err);

/* Appends the text of n ids: their bytes side by side, each ill-formed part as one U+FFFD.
 *
 * out      grows at its end; unchanged by a failure                 (inout)
 * ids      [n] 0 to vocab - 1; one without a token adds nothing     (in)
 * Returns STATUS_INVALID for an id out of range, STATUS_MEMORY. */
NODISCARD Status tokenizer_decode(const Tokenizer *t, StrBuf *out, const int32_t *ids, size_t n,
                                  bool skip_special, Err *err);

#endif
