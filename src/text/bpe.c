// SPDX-License-Identifier: Apache-2.0
/* bpe.c - merges in a flat table; the next merge found by a tree of minima.
 *
 * The symbols of a piece stay at their first positions, linked to their neighbours. Position p of
 * the tree's lowest level holds the rank of the pair that begins at p; each level above holds the
 * minimum of 16 numbers below. The smallest rank, leftmost first, is found from the top down, and a
 * merge changes three positions. So a piece of any length costs O(n log n), and a word of up to 16
 * bytes is one row of numbers.
 *
 * Owns:     the merge table; a BpeWork owns its working space. */
#include "bpe.h"

#include "base/checked.h"
#include "base/mem.h"
#include "base/utf8.h"

#define BPE_NONE INT32_MAX
#define BPE_FREE UINT64_MAX

/* One piece in the works. */
typedef struct BpePiece {
    int32_t n;                      // positions
    int32_t *ids, *next, *prev;     // [n]; next n: last, prev -1: first
    int32_t *level[BPE_MAX_LEVELS]; // [size] ranks, then minima of 16; INT32_MAX: none
    size_t size[BPE_MAX_LEVELS];    // multiples of BPE_FAN
    int n_levels;                   // the last level is one row of BPE_FAN
} BpePiece;

Status bpe_init(Bpe *b, uint32_t max_merges, const int32_t byte_ids[256], Err *err) {
    CHECK(max_merges <= BPE_MAX_MERGES);
    *b = (Bpe){.max_merges = max_merges, .n_slots = 16, .shift = 60};
    while (b->n_slots < 2 * (size_t)max_merges) {
        b->n_slots *= 2;
        b->shift--;
    }
    memcpy(b->byte_ids, byte_ids, sizeof b->byte_ids);
    b->slots = mem_alloc(b->n_slots * sizeof *b->slots);
    b->results = mem_alloc(max_merges * sizeof *b->results);
    b->ascii_ranks = mem_alloc(128 * 128 * sizeof *b->ascii_ranks);
    if (!b->slots || !b->results || !b->ascii_ranks) {
        bpe_fini(b);
        return err_memory(err, "merges", (size_t)max_merges * 2 * sizeof *b->slots);
    }
    memset(b->slots, 0xff, b->n_slots * sizeof *b->slots);
    return STATUS_OK;
}

void bpe_fini(Bpe *b) {
    mem_free(b->slots);
    mem_free(b->results);
    mem_free(b->ascii_ranks);
    bpe_chars_fini(&b->chars);
    *b = (Bpe){0};
}

/* The slot of a pair, or the free slot where it belongs. */
static inline size_t bpe_probe(const Bpe *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)left << 22 | (uint64_t)right;
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> b->shift); // golden ratio: spreads high bits
    while (b->slots[at] >> 20 != key && b->slots[at] != BPE_FREE)
        at = (at + 1) & (b->n_slots - 1);
    return at;
}

bool bpe_add(Bpe *b, int32_t left, int32_t right, int32_t result) {
    CHECK(b->n_merges < b->max_merges);
    CHECK(left >= 0 && left < LIMIT_VOCAB && right >= 0 && right < LIMIT_VOCAB);
    size_t at = bpe_probe(b, left, right);
    if (b->slots[at] != BPE_FREE)
        return false;
    b->slots[at] = (uint64_t)left << 42 | (uint64_t)right << 20 | b->n_merges;
    b->results[b->n_merges++] = result;
    return true;
}

int32_t bpe_rank(const Bpe *b, int32_t left, int32_t right) {
    uint64_t slot = b->slots[bpe_probe(b, left, right)];
    return slot == BPE_FREE ? BPE_NONE : (int32_t)(slot & BPE_MAX_MERGES);
}

void bpe_finish(Bpe *b) {
    for (size_t left = 0; left < 128; left++)
        for (size_t right = 0; right < 128; right++)
            b->ascii_ranks[left * 128 + right] = bpe_rank(b, b->byte_ids[left], b->byte_ids[right]);
}

void bpe_work_init(BpeWork *w) {
    w->heap = NULL;
    w->heap_cap = 0;
}

void bpe_work_fini(BpeWork *w) { mem_free(w->heap); }

/* Merges the bytes of one character by the definition. Returns its token, or -1 when they become
 * more than one; *rank: the highest rank on the way. */
static int32_t bpe_char_token(const Bpe *b, StrView s, int32_t *rank) {
    int32_t ids[UTF8_MAX];
    size_t n = s.len;
    *rank = -1;
    for (size_t i = 0; i < n; i++)
        ids[i] = b->byte_ids[(unsigned char)s.ptr[i]];
    while (n > 1) {
        size_t best = 0;
        int32_t best_rank = BPE_NONE;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t r = bpe_rank(b, ids[i], ids[i + 1]);
            if (r < best_rank) {
                best = i;
                best_rank = r;
            }
        }
        if (best_rank == BPE_NONE)
            return -1;
        ids[best] = b->results[best_rank];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
        *rank = max_i32(*rank, best_rank);
    }
    return ids[0];
}

/* The code point when bytes are exactly one character of several bytes; else 0. */
static uint32_t bpe_char_of(StrView bytes) {
    uint32_t c;
    if (bytes.len < 2 || bytes.len > UTF8_MAX ||
        utf8_decode(bytes.ptr, bytes.len, &c) != (int)bytes.len)
        return 0;
    return c;
}

Status bpe_learn_chars(Bpe *b, const Vocab *v, Err *err) {
    BpeChars chars;
    size_t n = 0;
    for (int32_t id = 0; id < v->n_ids; id++)
        n += bpe_char_of(vocab_bytes(v, id)) != 0;
    TRY(bpe_chars_init(&chars, n, err));
    for (int32_t id = 0; id < v->n_ids; id++) {
        int32_t rank;
        uint32_t c = bpe_char_of(vocab_bytes(v, id));
        if (c && bpe_char_token(b, vocab_bytes(v, id), &rank) == id)
            bpe_chars_add(&chars, c, id, rank);
    }
    for (size_t i = 0; i < b->n_slots; i++) {
        uint64_t slot = b->slots[i];
        if (slot == BPE_FREE)
            continue;
        StrView left = vocab_bytes(v, (int32_t)(slot >> 42));
        StrView right = vocab_bytes(v, (int32_t)(slot >> 20 & (LIMIT_VOCAB - 1)));
        CHECK(left.len && right.len);
        bpe_chars_note_merge(&chars, left, right, (int32_t)(slot & BPE_MAX_MERGES));
    }
    bpe_chars_fini(&b->chars);
    b->chars = chars;
    return STATUS_OK;
}

/* Working space for pieces of n positions. */
static Status bpe_work_reserve(BpeWork *w, size_t n, int32_t **block, Err *err) {
    size_t total = 4 * n + n / 8 + (BPE_MAX_LEVELS + 1) * BPE_FAN; // ids, links, levels
    *block = w->small;
    if (total <= COUNT_OF(w->small))
        return STATUS_OK;
    if (total > w->heap_cap) {
        bpe_work_fini(w);
        bpe_work_init(w);
        w->heap = mem_alloc(total * sizeof *w->heap);
        if (!w->heap)
            return err_memory(err, "encoding", total * sizeof *w->heap);
        w->heap_cap = total;
    }
    *block = w->heap;
    return STATUS_OK;
}

static inline int32_t bpe_min(const int32_t v[BPE_FAN]) {
    int32_t min = v[0];
    for (int i = 1; i < BPE_FAN; i++)
        min = v[i] < min ? v[i] : min;
    return min;
}

/* Carries a change at position `at` of the lowest level up. */
static void bpe_tree_update(BpePiece *p, size_t at) {
    for (int i = 1; i < p->n_levels; i++) {
        at /= BPE_FAN;
        int32_t min = bpe_min(p->level[i - 1] + at * BPE_FAN);
        if (p->level[i][at] == min)
            return;
        p->level[i][at] = min;
    }
}

/* The leftmost position with the smallest rank, which is *rank; BPE_NONE: nothing merges. */
static size_t bpe_tree_first(const BpePiece *p, int32_t *rank) {
    size_t at = 0;
    *rank = bpe_min(p->level[p->n_levels - 1]);
    if (*rank == BPE_NONE)
        return 0;
    for (int i = p->n_levels - 1; i >= 0; i--) {
        at *= BPE_FAN;
        while (p->level[i][at] != *rank)
            at++;
    }
    return at;
}

/* First symbols: a byte each, or a whole character; returns their number. ranks[i] is the rank of
 * symbols i and i + 1. */
static size_t bpe_piece_symbols(const Bpe *b, StrView s, int32_t *ids, int32_t *ranks) {
    size_t n = 0;
    unsigned last = 0x80; // the ASCII byte that is the symbol before; 0x80: another symbol
    for (size_t at = 0, len; at < s.len; at += len) {
        unsigned byte = (unsigned char)s.ptr[at];
        int32_t id = byte < 0x80 ? -1 : bpe_chars_find(&b->chars, s, at, &len);
        if (id < 0) {
            id = b->byte_ids[byte];
            len = 1;
        }
        ids[n] = id;
        if (n > 0)
            ranks[n - 1] = last < 0x80 && byte < 0x80 ? b->ascii_ranks[last * 128 + byte]
                                                      : bpe_rank(b, ids[n - 1], id);
        last = byte;
        n++;
    }
    return n;
}

/* The first symbols of a piece, linked, and the tree over the ranks of their pairs. block has room
 * for piece.len positions (bpe_work_reserve). */
static void bpe_piece_init(const Bpe *b, BpePiece *p, StrView piece, int32_t *block) {
    p->ids = block;
    p->level[0] = block + piece.len;
    size_t n = bpe_piece_symbols(b, piece, p->ids, p->level[0]);
    p->n = (int32_t)n;
    p->size[0] = round_up_size(n, BPE_FAN);
    for (size_t i = n - 1; i < p->size[0]; i++)
        p->level[0][i] = BPE_NONE;
    p->n_levels = 1;
    while (p->size[p->n_levels - 1] > BPE_FAN) {
        int k = p->n_levels++;
        size_t m = p->size[k - 1] / BPE_FAN;
        CHECK(k < BPE_MAX_LEVELS);
        p->size[k] = round_up_size(m, BPE_FAN);
        p->level[k] = p->level[k - 1] + p->size[k - 1];
        for (size_t i = 0; i < m; i++)
            p->level[k][i] = bpe_min(p->level[k - 1] + i * BPE_FAN);
        for (size_t i = m; i < p->size[k]; i++)
            p->level[k][i] = BPE_NONE;
    }
    p->next = p->level[p->n_levels - 1] + p->size[p->n_levels - 1];
    p->prev = p->next + n;
    for (size_t i = 0; i < n; i++) {
        p->next[i] = (int32_t)i + 1;
        p->prev[i] = (int32_t)i - 1;
    }
}

/* Merges the pair that begins at position `at` into the symbol id. */
static void bpe_piece_merge(const Bpe *b, BpePiece *p, size_t at, int32_t id) {
    int32_t *ranks = p->level[0];
    size_t gone = (size_t)p->next[at];
    int32_t right = p->next[gone], left = p->prev[at];
    p->ids[at] = id;
    p->next[at] = right;
    ranks[gone] = BPE_NONE;
    ranks[at] = BPE_NONE;
    if (right < p->n) {
        p->prev[right] = (int32_t)at;
        ranks[at] = bpe_rank(b, id, p->ids[right]);
    }
    if (left >= 0)
        ranks[left] = bpe_rank(b, p->ids[left], id);
    // Positions in one row of 16 share the way up.
    bpe_tree_update(p, at);
    if (gone / BPE_FAN != at / BPE_FAN)
        bpe_tree_update(p, gone);
    if (left >= 0 && (size_t)left / BPE_FAN != at / BPE_FAN)
        bpe_tree_update(p, (size_t)left);
}

Status bpe_encode(const Bpe *b, BpeWork *w, TokenIds *out, StrView piece, Err *err) {
    CHECK(piece.len >= 1 && piece.len <= LIMIT_TEXT_BYTES);
    int32_t *block = NULL;
    TRY(bpe_work_reserve(w, piece.len, &block, err));
    BpePiece p;
    bpe_piece_init(b, &p, piece, block);
    for (;;) {
        int32_t rank;
        size_t at = bpe_tree_first(&p, &rank);
        if (rank == BPE_NONE)
            break;
        bpe_piece_merge(b, &p, at, b->results[rank]);
    }
    for (int32_t i = 0; i < p.n; i = p.next[i])
        TRY(token_ids_append(out, p.ids[i], err));
    return STATUS_OK;
}
