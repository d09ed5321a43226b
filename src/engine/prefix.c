// SPDX-License-Identifier: Apache-2.0
/* prefix.c - a tree of blocks in a hash table of (parent, ids), and the choice of what to evict.
 *
 * Owns:     its slots and one reference to each block of its tree.  Thread: engine. */
#include "engine/prefix.h"

#include "backend/backend.h"
#include "base/checked.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { NONE = -1 };

/* One full block of ids and what leads to it. Nodes are numbered; [0, n) live in one array. */
typedef struct Node {
    uint64_t hash;  // of the ids up to and with this block
    uint64_t space; // of roots; 0 below
    int32_t parent; // NONE: a root
    int32_t next;   // in the hash chain, or in the free list
    int32_t block;  // KV block, one reference held
    int32_t n_children;
    int32_t depth;       // blocks up to and with this one
    int32_t slot;        // snapshot behind this block; NONE: none
    bool is_exact;       // the block holds what reading the ids gives
    bool is_decode_made; // the snapshot goes back to a state that decode made
    uint64_t used_at;    // clock of the last use of the snapshot
    int32_t ids[KV_BLOCK];
} Node;

struct Prefix {
    Blocks *blocks;
    Node *nodes;      // [blocks->n]
    int32_t *chains;  // [n_chains] first node; NONE: empty
    int32_t n_chains; // a power of two
    int32_t free_node;
    int32_t n_nodes, n_snapshots, n_slots;
    int32_t *free_slots; // [n_slots], the first n_free_slots are valid
    int32_t n_free_slots;
    int32_t *owners; // [n_slots] node of the snapshot in slot first_slot + i; NONE: free or lent
    int32_t first_slot;
    uint64_t clock; // counts lookups and additions
    uint64_t n_evicted;
};

Status prefix_open(Prefix **out, Blocks *blocks, int32_t first_slot, int32_t n_slots, Err *err) {
    Prefix *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(err, "prefix cache", sizeof *p);
    *p = (Prefix){.blocks = blocks, .first_slot = first_slot, .n_slots = n_slots, .n_chains = 16};
    int32_t n = n_slots ? blocks->n : 0;
    while (p->n_chains < 2 * n)
        p->n_chains *= 2;
    p->nodes = mem_zalloc((size_t)n, sizeof *p->nodes);
    p->chains = mem_zalloc((size_t)p->n_chains, sizeof *p->chains);
    p->free_slots = mem_zalloc((size_t)n_slots, sizeof *p->free_slots);
    p->owners = mem_zalloc((size_t)n_slots, sizeof *p->owners);
    if (!p->nodes || !p->chains || !p->free_slots || !p->owners) {
        mem_free(p->nodes);
        mem_free(p->chains);
        mem_free(p->free_slots);
        mem_free(p->owners);
        mem_free(p);
        return err_memory(err, "prefix cache", (size_t)n * sizeof *p->nodes);
    }
    for (int32_t i = 0; i < p->n_chains; i++)
        p->chains[i] = NONE;
    for (int32_t i = 0; i < n; i++)
        p->nodes[i].next = i + 1 < n ? i + 1 : NONE;
    p->free_node = n ? 0 : NONE;
    for (int32_t i = 0; i < n_slots; i++) {
        p->free_slots[p->n_free_slots++] = first_slot + n_slots - 1 - i;
        p->owners[i] = NONE;
    }
    *out = p;
    return STATUS_OK;
}

const char *prefix_miss_name(PrefixMiss miss) {
    static const char *const names[] = {[PREFIX_WHOLE] = "whole",
                                        [PREFIX_OFF] = "off",
                                        [PREFIX_UNKNOWN] = "unknown",
                                        [PREFIX_DIVERGED] = "diverged"};
    return names[miss];
}

/* ---- the tree ---- */

static uint64_t node_hash(const Prefix *p, int32_t parent, uint64_t space, const int32_t *ids) {
    uint64_t seed = parent == NONE ? XXH64(&space, sizeof space, 1) : p->nodes[parent].hash;
    return XXH64(ids, KV_BLOCK * sizeof *ids, seed);
}

/* The child of `parent` with these ids; NONE: there is none. */
static int32_t node_find(const Prefix *p, int32_t parent, uint64_t space, const int32_t *ids) {
    if (p->n_nodes == 0)
        return NONE;
    uint64_t hash = node_hash(p, parent, space, ids);
    int32_t i = p->chains[hash & (uint64_t)(p->n_chains - 1)];
    for (; i != NONE; i = p->nodes[i].next) {
        const Node *n = &p->nodes[i];
        if (n->hash == hash && n->parent == parent && (parent != NONE || n->space == space) &&
            memcmp(n->ids, ids, sizeof n->ids) == 0)
            return i;
    }
    return NONE;
}

static int32_t node_add(Prefix *p, int32_t parent, uint64_t space, const int32_t *ids,
                        int32_t block) {
    int32_t i = p->free_node; // as many nodes as blocks, and each node holds one of its own
    CHECK(i != NONE);
    Node *n = &p->nodes[i];
    p->free_node = n->next;
    uint64_t hash = node_hash(p, parent, space, ids);
    int32_t *chain = &p->chains[hash & (uint64_t)(p->n_chains - 1)];
    *n = (Node){.hash = hash,
                .space = space,
                .parent = parent,
                .next = *chain,
                .block = block,
                .depth = parent == NONE ? 1 : p->nodes[parent].depth + 1,
                .slot = NONE};
    memcpy(n->ids, ids, sizeof n->ids);
    *chain = i;
    p->n_nodes++;
    if (parent != NONE)
        p->nodes[parent].n_children++;
    blocks_share(p->blocks, block);
    return i;
}

/* Removes node i and those above it that no longer lead to a snapshot. */
static void node_prune(Prefix *p, int32_t i) {
    while (i != NONE && p->nodes[i].n_children == 0 && p->nodes[i].slot == NONE) {
        Node *n = &p->nodes[i];
        int32_t *link = &p->chains[n->hash & (uint64_t)(p->n_chains - 1)];
        while (*link != i)
            link = &p->nodes[*link].next;
        *link = n->next;
        blocks_release(p->blocks, n->block);
        int32_t parent = n->parent;
        if (parent != NONE)
            p->nodes[parent].n_children--;
        n->next = p->free_node;
        p->free_node = i;
        p->n_nodes--;
        i = parent;
    }
}

/* ---- eviction ---- */

/* Tokens that would be read again without node i's snapshot: back to the next one above it. */
static int32_t node_gap(const Prefix *p, int32_t i) {
    int32_t up = p->nodes[i].parent;
    while (up != NONE && p->nodes[up].slot == NONE)
        up = p->nodes[up].parent;
    return (p->nodes[i].depth - (up == NONE ? 0 : p->nodes[up].depth)) * KV_BLOCK;
}

/* Tokens saved, halved for each 64 or 8 n_slots uses of the cache since its own last use: close
 * neighbours go before lone ones, small before large ones, and in the long run old before new ones.
 */
static double node_score(const Prefix *p, int32_t i) {
    double age = (double)(p->clock - p->nodes[i].used_at);
    return node_gap(p, i) * exp2(-age / max_i32(64, 8 * p->n_slots));
}

/* The snapshot with the lowest score; NONE: there is none. *score is set when there is one. */
static int32_t prefix_least(const Prefix *p, double *score) {
    int32_t least = NONE;
    for (int32_t s = 0; s < p->n_slots; s++) {
        if (p->owners[s] == NONE)
            continue;
        double own = node_score(p, p->owners[s]);
        if (least == NONE || own < *score) {
            least = p->owners[s];
            *score = own;
        }
    }
    return least;
}

static void prefix_evict(Prefix *p, int32_t node) {
    int32_t slot = p->nodes[node].slot;
    p->nodes[node].slot = NONE;
    p->owners[slot - p->first_slot] = NONE;
    p->free_slots[p->n_free_slots++] = slot;
    p->n_snapshots--;
    p->n_evicted++;
    node_prune(p, node);
}

int32_t prefix_take_slot(Prefix *p, int32_t gain_tok) {
    if (p->n_free_slots == 0) {
        double score = 0;
        int32_t least = prefix_least(p, &score);
        if (least == NONE || score > gain_tok)
            return NONE;
        prefix_evict(p, least);
    }
    return p->free_slots[--p->n_free_slots];
}

void prefix_give_slot(Prefix *p, int32_t slot) {
    CHECK(slot >= p->first_slot && slot < p->first_slot + p->n_slots);
    CHECK(p->owners[slot - p->first_slot] == NONE && p->n_free_slots < p->n_slots);
    p->free_slots[p->n_free_slots++] = slot;
}

/* Blocks that nobody but the tree holds: what evicting all of it would free. */
static int32_t prefix_n_own_blocks(const Prefix *p) {
    int32_t n = 0;
    for (int32_t c = 0; p->n_nodes > 0 && c < p->n_chains; c++)
        for (int32_t i = p->chains[c]; i != NONE; i = p->nodes[i].next)
            n += p->blocks->n_refs[p->nodes[i].block] == 1;
    return n;
}

bool prefix_make_room(Prefix *p, int32_t n) {
    // A sequence that cannot be placed yet asks at every step; it must not empty the cache in vain.
    if (p->blocks->n_free + prefix_n_own_blocks(p) < n)
        return false;
    while (p->blocks->n_free < n) {
        double score = 0;
        int32_t least = prefix_least(p, &score);
        if (least == NONE)
            return false;
        prefix_evict(p, least);
    }
    return true;
}

/* ---- lookups and additions ---- */

void prefix_find(Prefix *p, uint64_t space, const int32_t *ids, int32_t n, bool exact,
                 int32_t *blocks, PrefixHit *hit) {
    *hit = (PrefixHit){.slot = NONE, .miss = PREFIX_OFF};
    int32_t usable = (n - 1) / KV_BLOCK; // blocks that leave a token to be read
    if (p->n_slots == 0 || usable < 1)
        return;
    p->clock++;
    int32_t node = NONE, best = NONE, depth = 0;
    while (depth < usable) {
        int32_t child = node_find(p, node, space, ids + (size_t)depth * KV_BLOCK);
        if (child == NONE)
            break;
        node = child;
        depth++;
        if (p->nodes[node].slot != NONE && !(exact && p->nodes[node].is_decode_made))
            best = node;
    }
    hit->n_shared = depth * KV_BLOCK;
    hit->miss = best != NONE && p->nodes[best].depth == usable ? PREFIX_WHOLE
                : depth == 0                                   ? PREFIX_UNKNOWN
                                                               : PREFIX_DIVERGED;
    if (best == NONE)
        return;
    hit->n_tok = p->nodes[best].depth * KV_BLOCK;
    hit->slot = p->nodes[best].slot;
    hit->is_decode_made = p->nodes[best].is_decode_made;
    for (int32_t i = best; i != NONE; i = p->nodes[i].parent) {
        blocks[p->nodes[i].depth - 1] = p->nodes[i].block;
        blocks_share(p->blocks, p->nodes[i].block);
        p->nodes[i].used_at = p->clock; // what stands above it was of use too
    }
}

/* The node behind ids[0, n_tok); NONE: there is none. */
static int32_t prefix_walk(const Prefix *p, uint64_t space, const int32_t *ids, int32_t n_tok) {
    int32_t node = NONE;
    for (int32_t at = 0; at < n_tok; at += KV_BLOCK) {
        node = node_find(p, node, space, ids + at);
        if (node == NONE)
            return NONE;
    }
    return node;
}

bool prefix_has(const Prefix *p, uint64_t space, const int32_t *ids, int32_t n_tok, bool exact) {
    int32_t node = prefix_walk(p, space, ids, n_tok);
    return node != NONE && p->nodes[node].slot != NONE && !(exact && p->nodes[node].is_decode_made);
}

/* The block that reading gave in place of one that decode wrote: what goes on from an exact state
 * must find exact keys and values before it. */
static void node_set_exact(Prefix *p, int32_t i, int32_t block) {
    Node *n = &p->nodes[i];
    if (n->is_exact)
        return;
    blocks_share(p->blocks, block);
    blocks_release(p->blocks, n->block);
    n->block = block;
    n->is_exact = true;
}

void prefix_add(Prefix *p, uint64_t space, const int32_t *ids, int32_t n_tok, const int32_t *blocks,
                int32_t slot, bool is_decode_made) {
    CHECK(n_tok > 0 && n_tok % KV_BLOCK == 0);
    p->clock++;
    int32_t node = NONE;
    for (int32_t at = 0; at < n_tok; at += KV_BLOCK) {
        int32_t child = node_find(p, node, space, ids + at);
        node = child != NONE ? child : node_add(p, node, space, ids + at, blocks[at / KV_BLOCK]);
        if (!is_decode_made)
            node_set_exact(p, node, blocks[at / KV_BLOCK]);
    }
    Node *n = &p->nodes[node];
    if (n->slot != NONE && (is_decode_made || !n->is_decode_made)) {
        prefix_give_slot(p, slot); // what is there is as good
    } else {
        if (n->slot != NONE) { // a state that prefill made takes the place of decode's
            p->owners[n->slot - p->first_slot] = NONE;
            p->free_slots[p->n_free_slots++] = n->slot;
            p->n_snapshots--;
        }
        n->slot = slot;
        n->is_decode_made = is_decode_made;
        p->owners[slot - p->first_slot] = node;
        p->n_snapshots++;
    }
    n->used_at = p->clock;
}

PrefixFigures prefix_figures(const Prefix *p) {
    return (PrefixFigures){.n_nodes = p->n_nodes,
                           .n_snapshots = p->n_snapshots,
                           .n_slots = p->n_slots,
                           .n_free_slots = p->n_free_slots,
                           .n_evicted = p->n_evicted};
}

void prefix_close(Prefix *p) {
    if (!p)
        return;
    for (int32_t s = 0; s < p->n_slots; s++)
        if (p->owners[s] != NONE)
            prefix_evict(p, p->owners[s]);
    mem_free(p->nodes);
    mem_free(p->chains);
    mem_free(p->free_slots);
    mem_free(p->owners);
    mem_free(p);
}
