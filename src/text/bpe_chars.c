// SPDX-License-Identifier: Apache-2.0
/* bpe_chars.c - characters that may enter a merge as one symbol instead of as their bytes.
 *
 * Owns:     its table.  Thread: any once it is filled. */
#include "bpe_chars.h"

#include "base/mem.h"
#include "base/utf8.h"

Status bpe_chars_init(BpeChars *b, size_t max_chars, Err *err) {
    *b = (BpeChars){.n_slots = 16};
    while (b->n_slots < 2 * max_chars)
        b->n_slots *= 2;
    b->slots = mem_zalloc(b->n_slots, sizeof *b->slots);
    if (!b->slots)
        return err_memory(err, "characters", b->n_slots * sizeof *b->slots);
    return STATUS_OK;
}

void bpe_chars_fini(BpeChars *b) {
    mem_free(b->slots);
    *b = (BpeChars){0};
}

/* The slot of a character, or the free slot where it belongs. */
static inline BpeChar *bpe_chars_probe(const BpeChars *b, uint32_t c) {
    size_t at = (size_t)(c * 0x9e3779b1u >> 8) & (b->n_slots - 1); // golden ratio
    while (b->slots[at].c != c && b->slots[at].c != 0)
        at = (at + 1) & (b->n_slots - 1);
    return &b->slots[at];
}

void bpe_chars_add(BpeChars *b, uint32_t c, int32_t id, int32_t rank) {
    CHECK(c >= 0x80 && b->n < b->n_slots / 2);
    BpeChar *slot = bpe_chars_probe(b, c);
    CHECK(slot->c == 0);
    *slot = (BpeChar){c, id, rank};
    b->n++;
}

static inline bool bpe_chars_is_guarded(const BpeChars *b, char left, char right) {
    size_t bit = (size_t)(unsigned char)left * 256 + (unsigned char)right;
    return b->guards[bit / 8] >> bit % 8 & 1;
}

/* Rule 3 for a character that a merge takes whole. */
static void bpe_chars_limit(BpeChars *b, uint32_t c, int32_t rank) {
    if (c < 0x80)
        return;
    BpeChar *slot = bpe_chars_probe(b, c);
    if (slot->c == c && slot->rank >= rank)
        slot->id = -1;
}

void bpe_chars_note_merge(BpeChars *b, StrView left, StrView right, int32_t rank) {
    uint32_t last, first;
    if (((unsigned char)right.ptr[0] & 0xc0) == 0x80)
        return; // joins inside a character
    size_t k = left.len - 1;
    while (k > 0 && ((unsigned char)left.ptr[k] & 0xc0) == 0x80)
        k--;
    bool is_left_whole = utf8_decode(left.ptr + k, left.len - k, &last) == (int)(left.len - k);
    bool is_right_whole = utf8_decode(right.ptr, right.len, &first) > 0;
    if (is_left_whole && is_right_whole) {
        bpe_chars_limit(b, last, rank);
        bpe_chars_limit(b, first, rank);
    } else {
        size_t bit =
            (size_t)(unsigned char)left.ptr[left.len - 1] * 256 + (unsigned char)right.ptr[0];
        b->guards[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
}

int32_t bpe_chars_find(const BpeChars *b, StrView s, size_t at, size_t *n) {
    uint32_t c;
    int len = b->n ? utf8_decode(s.ptr + at, s.len - at, &c) : 0;
    if (len <= 0)
        return -1;
    *n = (size_t)len;
    size_t end = at + *n;
    if (at > 0 && bpe_chars_is_guarded(b, s.ptr[at - 1], s.ptr[at]))
        return -1;
    // A stray continuation byte behind it could join any part of it; rule 2 knows no such merges.
    if (end < s.len && (((unsigned char)s.ptr[end] & 0xc0) == 0x80 ||
                        bpe_chars_is_guarded(b, s.ptr[end - 1], s.ptr[end])))
        return -1;
    const BpeChar *slot = bpe_chars_probe(b, c);
    return slot->c == c ? slot->id : -1;
}
