// SPDX-License-Identifier: Apache-2.0
/* token_load.h - from the text of a checkpoint's tokenizer files to a TokenModel, all checked.
 *
 * Path:     tokenizer.c reads the files and calls it; the fuzz target calls it with any bytes.
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_TEXT_TOKEN_LOAD_H
#define LILY_TEXT_TOKEN_LOAD_H

#include "base/log.h"
#include "token_model.h"

/* A file's content; text.ptr NULL: there is no such file. */
typedef struct TokenFile {
    StrView text;
    const char *name; // for error texts
} TokenFile;

/* Either `tokenizer` or both `vocab` and `merges`; `config` is optional beside tokenizer.json. */
typedef struct TokenFiles {
    TokenFile tokenizer; // tokenizer.json
    TokenFile vocab;     // vocab.json
    TokenFile merges;    // merges.txt
    TokenFile config;    // tokenizer_config.json
} TokenFiles;

/* Fills *out; on failure it stays untouched.
 *
 * n_rows  ids lie below it, 1..LIMIT_VOCAB                          (in)
 * log     gets a warning about what is contradictory but harmless; NULL: silent
 * Returns STATUS_FORMAT for malformed or contradictory files, STATUS_UNSUPPORTED for a valid
 * tokenizer of another kind, STATUS_MEMORY; the text names file and field. */
NODISCARD Status token_load(TokenModel *out, const TokenFiles *files, int32_t n_rows,
                            const Log *log, Err *err);

/* Appends the bytes that a token's published spelling stands for: every byte is written as one
 * character of the byte alphabet (printable Latin-1 as itself, the others from U+0100 up).
 * Returns false when spelling holds anything else. */
bool token_load_spelling(StrBuf *out, StrView spelling);

/* The id of each byte in the family's order: printable bytes first, then the others. */
void token_load_byte_order(int32_t ids[256]);

/* The last step of every way to fill a model: the ids have no hole, the control tokens that a chat
 * needs are there, the added tokens are sorted. name is for error texts. */
NODISCARD Status token_load_finish(TokenModel *m, const char *name, Err *err);

#endif
