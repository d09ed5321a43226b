// SPDX-License-Identifier: Apache-2.0
/* token_model.h - what a tokenizer's files say, in the form that encoding works with.
 *
 * Path:     token_load.c fills it from files; tokenizer.c keeps it inside a Tokenizer.
 * Owns:     its parts.  Thread: any once it is filled. */
#ifndef LILY_TEXT_TOKEN_MODEL_H
#define LILY_TEXT_TOKEN_MODEL_H

#include "added.h"
#include "bpe.h"
#include "pretoken.h"
#include "vocab.h"

typedef struct TokenModel {
    Vocab vocab;       // all tokens, added ones among them
    Bpe bpe;           // merges
    Added added;       // sorted
    PretokenRule rule; // how text is cut into pieces
    bool is_nfc;       // text is normalised first
    int32_t n_base;    // ids below it came from the vocabulary file
} TokenModel;          // {0} is empty

void token_model_fini(TokenModel *m);

#endif
