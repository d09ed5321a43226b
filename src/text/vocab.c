// SPDX-License-Identifier: Apache-2.0
/* vocab.c - tokens as one block of bytes with an open-addressing index.
 *
 * Owns:     the bytes of all tokens and the index over them.  Thread: any once it is filled. */
#define XXH_INLINE_ALL // a call for each short piece would cost more than the hash
#include "vocab.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"

#include <xxhash.h>

Status vocab_init(Vocab *v, int32_t n_rows, Err *err) {
    *v = (Vocab){.n_rows = n_rows};
    v->entries = mem_zalloc((size_t)n_rows, sizeof *v->entries);
    if (!v->entries)
        return err_memory(err, "vocabulary", (size_t)n_rows * sizeof *v->entries);
    return STATUS_OK;
}

void vocab_fini(Vocab *v) {
    strbuf_fini(&v->bytes);
    mem_free(v->entries);
    mem_free(v->slots);
    *v = (Vocab){0};
}

Status vocab_set(Vocab *v, int32_t id, StrView bytes, Err *err) {
    CHECK(id >= 0 && id < v->n_rows && v->entries[id].len == 0 && bytes.len > 0);
    if (bytes.len > UINT32_MAX - v->bytes.len)
        return err_set(err, STATUS_TOO_LARGE, "vocabulary: expected at most 4 GiB of tokens");
    VocabEntry entry = {(uint32_t)v->bytes.len, (uint32_t)bytes.len};
    strbuf_append_view(&v->bytes, bytes);
    TRY(strbuf_check(&v->bytes, err));
    v->entries[id] = entry;
    v->n_ids = max_i32(v->n_ids, id + 1);
    return STATUS_OK;
}

/* First slot that holds these bytes or is free. */
static size_t vocab_probe(const Vocab *v, StrView bytes, uint64_t hash) {
    size_t at = (size_t)hash & (v->n_slots - 1);
    while (v->slots[at].id >= 0) {
        VocabSlot slot = v->slots[at];
        if (slot.tag == (uint32_t)(hash >> 32)) {
            VocabEntry entry = v->entries[slot.id];
            if (entry.len == bytes.len &&
                memcmp(v->bytes.ptr + entry.off, bytes.ptr, entry.len) == 0)
                break;
        }
        at = (at + 1) & (v->n_slots - 1);
    }
    return at;
}

Status vocab_index(Vocab *v, const uint8_t *skip, int32_t *twice, Err *err) {
    *twice = -1;
    v->n_slots = 16;
    while (v->n_slots < 2 * (size_t)v->n_ids)
        v->n_slots *= 2;
    mem_free(v->slots);
    v->slots = mem_alloc(v->n_slots * sizeof *v->slots);
    if (!v->slots)
        return err_memory(err, "vocabulary index", v->n_slots * sizeof *v->slots);
    for (size_t i = 0; i < v->n_slots; i++)
        v->slots[i] = (VocabSlot){0, -1};
    v->max_len = 0;
    for (int32_t id = 0; id < v->n_ids; id++) {
        StrView bytes = vocab_bytes(v, id);
        if (bytes.len == 0 || (skip && skip[id]))
            continue;
        uint64_t hash = XXH3_64bits(bytes.ptr, bytes.len);
        size_t at = vocab_probe(v, bytes, hash);
        if (v->slots[at].id >= 0 && *twice < 0)
            *twice = id;
        else if (v->slots[at].id < 0)
            v->slots[at] = (VocabSlot){(uint32_t)(hash >> 32), id};
        if (bytes.len > v->max_len)
            v->max_len = (uint32_t)bytes.len;
    }
    return STATUS_OK;
}

int32_t vocab_find(const Vocab *v, StrView bytes) {
    if (bytes.len > v->max_len)
        return -1;
    return v->slots[vocab_probe(v, bytes, XXH3_64bits(bytes.ptr, bytes.len))].id;
}
