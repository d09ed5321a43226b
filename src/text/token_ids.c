// SPDX-License-Identifier: Apache-2.0
/* token_ids.c - a growable list of token ids.
 *
 * Owns:     a TokenIds owns its array.  Thread: one at a time. */
#include "token_ids.h"

#include "base/checked.h"
#include "base/mem.h"

Status token_ids_reserve(TokenIds *t, size_t more, Err *err) {
    if (more <= t->cap - t->n)
        return STATUS_OK;
    size_t cap, size;
    if (!checked_add_size(max_size(t->n + more, t->cap), t->cap / 2 + 16, &cap) ||
        !checked_mul_size(cap, sizeof *t->ids, &size))
        return err_memory(err, "token ids", SIZE_MAX);
    int32_t *ids = mem_realloc(t->ids, size);
    if (!ids)
        return err_memory(err, "token ids", size);
    t->ids = ids;
    t->cap = cap;
    return STATUS_OK;
}

Status token_ids_append(TokenIds *t, int32_t id, Err *err) {
    if (t->n == t->cap)
        TRY(token_ids_reserve(t, 1, err));
    t->ids[t->n++] = id;
    return STATUS_OK;
}

void token_ids_fini(TokenIds *t) {
    mem_free(t->ids);
    *t = (TokenIds){0};
}
