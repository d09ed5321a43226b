// SPDX-License-Identifier: Apache-2.0
/* test_prefix.c - the tree of cached prefixes: what is found, what is evicted, nothing leaks.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "engine/prefix.h"

#include "backend/backend.h"
#include "base/mem.h"
#include "base/rng.h"

#include "unit.h"

#include <string.h>

enum { FIRST_SLOT = 3, MAX_TOK = 64 * 64 };

/* A cache over its own block pool, and a way to add as a sequence does. */
typedef struct Rig {
    Blocks blocks;
    Prefix *prefix;
    int32_t found[MAX_TOK / KV_BLOCK];
} Rig;

static void rig_open(Rig *r, int32_t n_blocks, int32_t n_slots) {
    Err err = {0};
    memset(r, 0, sizeof *r);
    assert_int_equal(blocks_init(&r->blocks, n_blocks, &err), STATUS_OK);
    assert_int_equal(prefix_open(&r->prefix, &r->blocks, FIRST_SLOT, n_slots, &err), STATUS_OK);
}

static void rig_close(Rig *r) {
    prefix_close(r->prefix);
    assert_int_equal(r->blocks.n_free, r->blocks.n); // every block came back
    blocks_fini(&r->blocks);
}

/* ids of text number i: texts share their first 64 * n_common tokens with text 0. */
static void make_ids(int32_t *ids, int32_t n, int i, int32_t n_common) {
    for (int32_t j = 0; j < n; j++)
        ids[j] = (int32_t)(rng_u64(j < n_common * KV_BLOCK ? 0 : (uint64_t)i, (uint64_t)j) % 1000);
}

/* Reads n_tok tokens of ids as a sequence would and leaves a snapshot; false: no slot for it. */
static bool rig_add(Rig *r, uint64_t space, const int32_t *ids, int32_t n_tok, bool is_decode) {
    int32_t blocks[MAX_TOK / KV_BLOCK];
    PrefixHit hit;
    prefix_find(r->prefix, space, ids, n_tok + 1, false, blocks, &hit);
    int32_t have = hit.n_tok / KV_BLOCK, n = n_tok / KV_BLOCK;
    if (r->blocks.n_free < n - have)
        prefix_make_room(r->prefix, n - have);
    assert_true(blocks_take(&r->blocks, blocks + have, n - have));
    int32_t slot = prefix_take_slot(r->prefix, n_tok - hit.n_tok);
    if (slot >= 0)
        prefix_add(r->prefix, space, ids, n_tok, blocks, slot, is_decode);
    for (int32_t i = 0; i < n; i++)
        blocks_release(&r->blocks, blocks[i]);
    return slot >= 0;
}

static PrefixHit rig_find(Rig *r, uint64_t space, const int32_t *ids, int32_t n, bool exact) {
    PrefixHit hit;
    prefix_find(r->prefix, space, ids, n, exact, r->found, &hit);
    for (int32_t i = 0; i < hit.n_tok / KV_BLOCK; i++)
        blocks_release(&r->blocks, r->found[i]);
    return hit;
}

static void test_the_longest_snapshot_that_leaves_a_token_is_found(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 64, 8);
    int32_t ids[MAX_TOK];
    make_ids(ids, MAX_TOK, 1, 0);
    assert_int_equal(rig_find(&r, 0, ids, 1000, false).miss, PREFIX_UNKNOWN);
    assert_true(rig_add(&r, 0, ids, 128, false));
    assert_true(rig_add(&r, 0, ids, 320, false));
    PrefixHit hit = rig_find(&r, 0, ids, 320, false); // the last token must be read
    assert_int_equal(hit.n_tok, 128);
    assert_int_equal(hit.n_shared, 256);
    hit = rig_find(&r, 0, ids, 321, false);
    assert_int_equal(hit.n_tok, 320);
    assert_int_equal(hit.miss, PREFIX_WHOLE);
    hit = rig_find(&r, 0, ids, 1000, false);
    assert_int_equal(hit.n_tok, 320);
    assert_int_equal(hit.miss, PREFIX_DIVERGED);
    assert_int_equal(rig_find(&r, 0, ids, 64, false).miss, PREFIX_OFF);
    assert_true(prefix_has(r.prefix, 0, ids, 128, false));
    assert_false(prefix_has(r.prefix, 0, ids, 192, false));
    rig_close(&r);
}

static void test_an_edited_tail_hits_up_to_the_divergence(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 64, 8);
    int32_t a[1024], b[1024];
    make_ids(a, 1024, 1, 5);
    make_ids(b, 1024, 2, 5);
    assert_true(rig_add(&r, 0, a, 256, false));
    assert_true(rig_add(&r, 0, a, 640, false));
    PrefixHit hit = rig_find(&r, 0, b, 1024, false);
    assert_int_equal(hit.n_tok, 256);
    assert_int_equal(hit.n_shared, 320);
    assert_int_equal(hit.miss, PREFIX_DIVERGED);
    b[130] ^= 1; // an edit inside a block that leads to the snapshot
    hit = rig_find(&r, 0, b, 1024, false);
    assert_int_equal(hit.n_tok, 0);
    assert_int_equal(hit.n_shared, 128);
    rig_close(&r);
}

static void test_spaces_do_not_see_each_other(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 64, 8);
    int32_t ids[512];
    make_ids(ids, 512, 1, 0);
    assert_true(rig_add(&r, 7, ids, 256, false));
    assert_int_equal(rig_find(&r, 8, ids, 512, false).n_tok, 0);
    assert_int_equal(rig_find(&r, 7, ids, 512, false).n_tok, 256);
    rig_close(&r);
}

static void test_exact_ignores_what_decode_made_and_prefill_replaces_it(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 64, 8);
    int32_t ids[512];
    make_ids(ids, 512, 1, 0);
    assert_true(rig_add(&r, 0, ids, 256, true));
    assert_int_equal(rig_find(&r, 0, ids, 512, true).n_tok, 0);
    assert_true(rig_find(&r, 0, ids, 512, false).is_decode_made);
    int32_t blocks[4];
    assert_true(blocks_take(&r.blocks, blocks, 4));
    prefix_add(r.prefix, 0, ids, 256, blocks, prefix_take_slot(r.prefix, 256), false);
    for (int i = 0; i < 4; i++)
        blocks_release(&r.blocks, blocks[i]);
    assert_int_equal(rig_find(&r, 0, ids, 512, true).n_tok, 256);
    assert_int_equal(prefix_figures(r.prefix).n_snapshots, 1);
    rig_close(&r);
}

static void test_C50_small_side_requests_never_evict_a_long_conversation(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 512, 6);
    int32_t chat[MAX_TOK], side[256];
    make_ids(chat, MAX_TOK, 1, 0);
    for (int32_t n = 640; n <= 3200; n += 640) // five turns
        assert_true(rig_add(&r, 0, chat, n, false));
    for (int i = 0; i < 20; i++) { // titles and summaries
        make_ids(side, 256, 100 + i, 0);
        (void)rig_add(&r, 0, side, 128, false);
    }
    assert_int_equal(rig_find(&r, 0, chat, MAX_TOK, false).n_tok, 3200);
    rig_close(&r);
}

static void test_C46_old_snapshots_go_by_spacing_not_all_at_once(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 512, 8);
    int32_t ids[MAX_TOK];
    make_ids(ids, MAX_TOK, 1, 0);
    for (int32_t n = 64; n <= 3968; n += 64) // a snapshot at every block, room for eight
        (void)rig_add(&r, 0, ids, n, false);
    int32_t at = 0, widest = 0, n_found = 0;
    for (int32_t n = 64; n <= 3968; n += 64) {
        if (!prefix_has(r.prefix, 0, ids, n, false))
            continue;
        widest = n - at > widest ? n - at : widest;
        at = n;
        n_found++;
    }
    assert_true(n_found >= 7);
    assert_true(widest <= 1600); // spread over the whole prompt
    rig_close(&r);
}

static void test_room_is_made_by_evicting(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 16, 8);
    int32_t a[1024], b[1024];
    make_ids(a, 1024, 1, 0);
    make_ids(b, 1024, 2, 0);
    assert_true(rig_add(&r, 0, a, 512, false));
    assert_true(rig_add(&r, 0, b, 448, false));
    assert_int_equal(r.blocks.n_free, 1);
    assert_true(prefix_make_room(r.prefix, 10));
    assert_true(r.blocks.n_free >= 10);
    assert_true(prefix_make_room(r.prefix, 16));
    assert_int_equal(r.blocks.n_free, 16);
    rig_close(&r);
}

/* A sequence too large for the moment waits at the head of the queue and asks at every step. */
static void test_nothing_is_evicted_in_vain(void **state) {
    UNUSED(state);
    Rig r;
    rig_open(&r, 16, 8);
    int32_t ids[512], held[8];
    make_ids(ids, 512, 1, 0);
    assert_true(rig_add(&r, 0, ids, 512, false)); // 8 blocks in the cache
    assert_true(blocks_take(&r.blocks, held, 4)); // 4 with a running sequence, 4 free
    assert_false(prefix_make_room(r.prefix, 13));
    assert_true(prefix_has(r.prefix, 0, ids, 512, false));
    PrefixHit hit; // a running sequence reads from the cached blocks: evicting frees none of them
    prefix_find(r.prefix, 0, ids, 513, false, r.found, &hit);
    assert_int_equal(hit.n_tok, 512);
    assert_false(prefix_make_room(r.prefix, 5));
    assert_true(prefix_has(r.prefix, 0, ids, 512, false));
    for (int32_t i = 0; i < 8; i++)
        blocks_release(&r.blocks, r.found[i]);
    assert_true(prefix_make_room(r.prefix, 12));
    assert_false(prefix_has(r.prefix, 0, ids, 512, false));
    for (int32_t i = 0; i < 4; i++)
        blocks_release(&r.blocks, held[i]);
    rig_close(&r);
}

/* What the cache must answer, by brute force over the list of what was added and not evicted. */
static void test_random_additions_and_lookups(void **state) {
    UNUSED(state);
    const uint64_t seed = 424242;
    print_message("seed %llu\n", (unsigned long long)seed);
    Rig r;
    rig_open(&r, 48, 6);
    uint64_t at = 0;
    for (int round = 0; round < 4000; round++) {
        int32_t ids[1024];
        int text = 1 + (int)(rng_u64(seed, at++) % 5);
        make_ids(ids, 1024, text, (int32_t)(rng_u64(seed, at++) % 4));
        int32_t n = KV_BLOCK * (1 + (int32_t)(rng_u64(seed, at++) % 12));
        if (rng_u64(seed, at++) % 2) {
            (void)rig_add(&r, text % 2, ids, n, rng_u64(seed, at++) % 3 == 0);
        } else {
            PrefixHit hit = rig_find(&r, text % 2, ids, n + 1, false);
            int32_t best = 0;
            for (int32_t m = KV_BLOCK; m <= n; m += KV_BLOCK)
                if (prefix_has(r.prefix, text % 2, ids, m, false))
                    best = m;
            assert_int_equal(hit.n_tok, best);
            assert_true(hit.n_shared >= hit.n_tok);
        }
        PrefixFigures f = prefix_figures(r.prefix);
        assert_true(f.n_snapshots <= 6 && f.n_nodes <= 48);
        assert_int_equal(r.blocks.n - r.blocks.n_free, f.n_nodes);
    }
    rig_close(&r);
}

static void test_failed_allocations(void **state) {
    UNUSED(state);
    Blocks blocks;
    Err err = {0};
    assert_int_equal(blocks_init(&blocks, 8, &err), STATUS_OK);
    for (int i = 0; i < 5; i++) {
        Prefix *p = NULL;
        mem_fail_after(i);
        assert_int_equal(prefix_open(&p, &blocks, 0, 2, &err), STATUS_MEMORY);
        mem_fail_after(-1);
    }
    blocks_fini(&blocks);
    mem_fail_after(1);
    assert_int_equal(blocks_init(&blocks, 8, &err), STATUS_MEMORY);
    mem_fail_after(-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_longest_snapshot_that_leaves_a_token_is_found),
        cmocka_unit_test(test_an_edited_tail_hits_up_to_the_divergence),
        cmocka_unit_test(test_spaces_do_not_see_each_other),
        cmocka_unit_test(test_exact_ignores_what_decode_made_and_prefill_replaces_it),
        cmocka_unit_test(test_C50_small_side_requests_never_evict_a_long_conversation),
        cmocka_unit_test(test_C46_old_snapshots_go_by_spacing_not_all_at_once),
        cmocka_unit_test(test_room_is_made_by_evicting),
        cmocka_unit_test(test_nothing_is_evicted_in_vain),
        cmocka_unit_test(test_random_additions_and_lookups),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
