// SPDX-License-Identifier: Apache-2.0
/* vocab.h - which bytes a token id stands for, and which id stands for some bytes.
 *
 * Path:     token_load.c fills it; bpe.c and tokenizer.c ask.
 * Owns:     the bytes of all tokens and the index over them.  Thread: any once it is filled.
 * Not here: which ids are added tokens (added.h). */
#ifndef LILY_TEXT_VOCAB_H
#define LILY_TEXT_VOCAB_H

#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

typedef struct VocabEntry {
    uint32_t off; // into bytes
    uint32_t len; // 0: the id has no token
} VocabEntry;

typedef struct VocabSlot {
    uint32_t tag; // upper half of the hash
    int32_t id;   // -1: free
} VocabSlot;

typedef struct Vocab {
    StrBuf bytes;
    VocabEntry *entries; // [n_rows]
    int32_t n_rows;      // ids lie below it
    int32_t n_ids;       // highest id with a token, plus 1
    VocabSlot *slots;    // [n_slots] open addressing; NULL until vocab_index
    size_t n_slots;      // a power of two
    uint32_t max_len;    // longest indexed token in bytes
} Vocab;

/* An empty vocabulary with room for ids below n_rows (1..LIMIT_VOCAB). Returns STATUS_MEMORY. */
NODISCARD Status vocab_init(Vocab *v, int32_t n_rows, Err *err);
void vocab_fini(Vocab *v);

/* Gives id (0 <= id < n_rows, without a token so far) its bytes, at least one.
 * Returns STATUS_MEMORY, STATUS_TOO_LARGE when all tokens together pass 4 GiB. */
NODISCARD Status vocab_set(Vocab *v, int32_t id, StrView bytes, Err *err);

/* Makes vocab_find answer for the tokens set so far, and for them alone.
 *
 * skip    [n_ids] tokens to leave out where it is not 0; NULL: none        (in)
 * twice   the second of two ids that have the same bytes; -1: there are no such ids    (out)
 * Returns STATUS_MEMORY. */
NODISCARD Status vocab_index(Vocab *v, const uint8_t *skip, int32_t *twice, Err *err);

/* The id of a token with exactly these bytes; -1: none. Needs vocab_index. */
int32_t vocab_find(const Vocab *v, StrView bytes);

/* Bytes of an id; {NULL, 0} when it has no token. id >= 0. */
static inline StrView vocab_bytes(const Vocab *v, int32_t id) {
    if (id >= v->n_rows || v->entries[id].len == 0)
        return (StrView){0};
    return str_view(v->bytes.ptr + v->entries[id].off, v->entries[id].len);
}

#endif
