// SPDX-License-Identifier: Apache-2.0
/* test_bpe.c - merging beside the plain quadratic loop, over random merge lists and all lengths at
 * which the tree of minima gets another level.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "text/bpe.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "unit.h"

enum { N_MERGES = 300 };

/* Byte b has id b; the results follow. */
static void byte_ids(int32_t ids[256]) {
    for (int b = 0; b < 256; b++)
        ids[b] = b;
}

typedef struct Pair {
    int32_t left, right, result;
} Pair;

static void make(Bpe *b, const Pair *pairs, uint32_t n) {
    int32_t ids[256];
    byte_ids(ids);
    assert_int_equal(bpe_init(b, n, ids, NULL), STATUS_OK);
    for (uint32_t i = 0; i < n; i++)
        assert_true(bpe_add(b, pairs[i].left, pairs[i].right, pairs[i].result));
    bpe_finish(b);
}

static void expect_ids(const Pair *pairs, uint32_t n, const char *piece, const int32_t *expected,
                       size_t n_expected) {
    Bpe b;
    BpeWork w;
    TokenIds out = {0};
    make(&b, pairs, n);
    bpe_work_init(&w);
    assert_int_equal(bpe_encode(&b, &w, &out, str_view(piece, strlen(piece)), NULL), STATUS_OK);
    assert_int_equal(out.n, n_expected);
    assert_memory_equal(out.ids, expected, n_expected * sizeof *expected);
    bpe_work_fini(&w);
    bpe_fini(&b);
    token_ids_fini(&out);
}

static void test_smallest_rank_first_then_leftmost(void **state) {
    UNUSED(state);
    const Pair rows[] = {{'b', 'c', 300}, {'a', 'b', 301}, {'a', 'a', 302}, {301, 'c', 303}};
    expect_ids(rows, 4, "abc", (const int32_t[]){'a', 300}, 2); // bc comes first in the list
    expect_ids(rows, 4, "abab", (const int32_t[]){301, 301}, 2);
    expect_ids(rows, 4, "aaa", (const int32_t[]){302, 'a'}, 2);
    expect_ids(rows, 4, "aab", (const int32_t[]){'a', 301}, 2);
    expect_ids(rows, 4, "x", (const int32_t[]){'x'}, 1);
    expect_ids(rows, 4, "xyz", (const int32_t[]){'x', 'y', 'z'}, 3);
    expect_ids(rows, 0, "ab", (const int32_t[]){'a', 'b'}, 2);
}

/* A merge may produce a symbol whose pair has a smaller rank than the merge itself. */
static void test_ranks_may_go_back(void **state) {
    UNUSED(state);
    const Pair rows[] = {{300, 'c', 301}, {'a', 'b', 300}};
    expect_ids(rows, 2, "abcabc", (const int32_t[]){301, 301}, 2);
    const Pair same[] = {{'a', 'b', 300}, {'b', 'c', 301}, {300, 'c', 302}, {'a', 301, 302}};
    expect_ids(same, 4, "abcbc", (const int32_t[]){302, 301}, 2); // two ways to one result
}

static void test_a_pair_counts_once(void **state) {
    UNUSED(state);
    Bpe b;
    int32_t ids[256];
    byte_ids(ids);
    assert_int_equal(bpe_init(&b, 3, ids, NULL), STATUS_OK);
    assert_true(bpe_add(&b, 'a', 'b', 256));
    assert_false(bpe_add(&b, 'a', 'b', 257));
    assert_true(bpe_add(&b, 'b', 'a', 257));
    assert_true(bpe_add(&b, LIMIT_VOCAB - 1, LIMIT_VOCAB - 1, 258));
    bpe_finish(&b);
    assert_int_equal(bpe_rank(&b, 'a', 'b'), 0);
    assert_int_equal(bpe_rank(&b, 'b', 'a'), 1);
    assert_int_equal(bpe_rank(&b, LIMIT_VOCAB - 1, LIMIT_VOCAB - 1), 2);
    assert_int_equal(bpe_rank(&b, 'a', 'a'), INT32_MAX);
    bpe_fini(&b);
}

/* Merges of random symbols over a few letters, so that long pieces merge again and again. */
static uint32_t random_pairs(Pair *pairs, uint64_t key, int n_letters) {
    uint32_t n = 0;
    for (uint64_t i = 0; n < N_MERGES && i < 4 * N_MERGES; i++) {
        uint64_t r = rng_u64(key, i);
        uint32_t n_symbols = (uint32_t)n_letters + n;
        uint32_t l = (uint32_t)r % n_symbols, x = (uint32_t)(r >> 32) % n_symbols;
        int32_t left = l < (uint32_t)n_letters ? 'a' + (int32_t)l : 256 + (int32_t)l - n_letters;
        int32_t right = x < (uint32_t)n_letters ? 'a' + (int32_t)x : 256 + (int32_t)x - n_letters;
        bool is_new = true;
        for (uint32_t k = 0; k < n; k++)
            is_new = is_new && !(pairs[k].left == left && pairs[k].right == right);
        if (is_new) {
            pairs[n] = (Pair){left, right, 256 + (int32_t)n};
            n++;
        }
    }
    return n;
}

/* The definition: look at all pairs, merge the best, start again. */
static size_t plain_encode(int32_t *ids, size_t n, const Pair *pairs, uint32_t n_pairs) {
    for (;;) {
        size_t best = SIZE_MAX;
        uint32_t best_rank = n_pairs;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t k = 0; k < best_rank; k++)
                if (pairs[k].left == ids[i] && pairs[k].right == ids[i + 1]) {
                    best = i;
                    best_rank = k;
                }
        if (best == SIZE_MAX)
            return n;
        ids[best] = pairs[best_rank].result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void test_random_merges_beside_the_plain_loop(void **state) {
    UNUSED(state);
    static const size_t LENGTHS[] = {1,  2,  3,  15,  16,  17,  31,  32,  33,
                                     47, 64, 80, 100, 255, 256, 257, 272, 300};
    static Pair pairs[N_MERGES];
    uint64_t seed = (uint64_t)clock_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 30; round++) {
        int n_letters = 1 + (int)(round % 5);
        uint32_t n_pairs = random_pairs(pairs, seed + round, n_letters);
        Bpe b;
        BpeWork w;
        TokenIds out = {0};
        make(&b, pairs, n_pairs);
        bpe_work_init(&w);
        for (size_t k = 0; k < COUNT_OF(LENGTHS); k++) {
            char piece[300];
            int32_t plain[300];
            size_t n = LENGTHS[k];
            for (size_t i = 0; i < n; i++)
                plain[i] = piece[i] =
                    (char)('a' + rng_u64(seed + round + 1, k * 1000 + i) % (uint64_t)n_letters);
            out.n = 0;
            assert_int_equal(bpe_encode(&b, &w, &out, str_view(piece, n), NULL), STATUS_OK);
            size_t n_plain = plain_encode(plain, n, pairs, n_pairs);
            if (out.n != n_plain || memcmp(out.ids, plain, n_plain * sizeof *plain) != 0)
                fail_msg("round %llu, length %zu: %zu ids, expected %zu", (unsigned long long)round,
                         n, out.n, n_plain);
        }
        bpe_work_fini(&w);
        bpe_fini(&b);
        token_ids_fini(&out);
    }
}

/* Letters of one to four bytes, some sharing their beginnings, and a lone byte of each kind. */
static const char *const LETTERS[] = {"a",
                                      " ",
                                      "\xc3\xa9",
                                      "\xc3\xaa",
                                      "\xe4\xb8\xad",
                                      "\xe4\xb8\xae",
                                      "\xe4\xb9\xad",
                                      "\xf0\x9f\x98\x80",
                                      "\xf0\x9f\x98\x81",
                                      "\xc3",
                                      "\xb8"};

static size_t random_letters(char *text, uint64_t key, size_t n, size_t n_kinds) {
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        const char *s = LETTERS[rng_u64(key, i) % n_kinds];
        memcpy(text + len, s, strlen(s));
        len += strlen(s);
    }
    return len;
}

static size_t plain_text(int32_t *ids, const char *text, size_t n, const Pair *pairs,
                         uint32_t n_pairs) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    return plain_encode(ids, n, pairs, n_pairs);
}

/* A list that merges neighbours as they stand in random texts; each goes to a random place of the
 * list, so that merges inside a character may come before or behind those that need it whole. */
static uint32_t text_pairs(Pair *pairs, uint64_t key, uint32_t n_wanted) {
    uint32_t n = 0;
    for (uint64_t i = 0; n < n_wanted && i < 10 * n_wanted; i++) {
        char text[64];
        int32_t ids[64];
        size_t len = random_letters(text, key + 7 * i, 10, i % 4 ? 9 : COUNT_OF(LETTERS));
        size_t n_ids = plain_text(ids, text, len, pairs, n);
        if (n_ids < 2)
            continue;
        size_t at = (size_t)rng_u64(key + 1, i) % (n_ids - 1);
        uint32_t place = rng_u64(key + 2, i) % 3 ? n : (uint32_t)(rng_u64(key + 3, i) % (n + 1));
        memmove(pairs + place + 1, pairs + place, (n - place) * sizeof *pairs);
        pairs[place] = (Pair){ids[at], ids[at + 1], 256 + (int32_t)n};
        n++;
    }
    return n;
}

/* The vocabulary that the pairs stand for. */
static void make_vocab(Vocab *v, const Pair *pairs, uint32_t n) {
    assert_int_equal(vocab_init(v, 256 + N_MERGES, NULL), STATUS_OK);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        assert_int_equal(vocab_set(v, b, str_view(&byte, 1), NULL), STATUS_OK);
    }
    for (uint32_t made = 0; made < n;) {
        uint32_t before = made;
        for (uint32_t i = 0; i < n; i++) {
            StrView left = vocab_bytes(v, pairs[i].left), right = vocab_bytes(v, pairs[i].right);
            if (vocab_bytes(v, pairs[i].result).len || !left.len || !right.len)
                continue;
            StrBuf both = {0};
            strbuf_append_view(&both, left);
            strbuf_append_view(&both, right);
            assert_int_equal(vocab_set(v, pairs[i].result, strbuf_view(&both), NULL), STATUS_OK);
            strbuf_fini(&both);
            made++;
        }
        assert_true(made > before);
    }
}

/* Beginning with whole characters gives what beginning with bytes gives, whatever the merges. */
static void test_whole_characters_change_nothing(void **state) {
    UNUSED(state);
    static Pair pairs[N_MERGES];
    uint64_t seed = (uint64_t)clock_now_ns();
    size_t n_used = 0, n_late = 0, n_guards = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 400; round++) {
        uint32_t n_pairs = text_pairs(pairs, seed + 1000 * round, 5 + (uint32_t)(round % 40));
        Bpe b;
        Vocab v;
        BpeWork w;
        TokenIds out = {0};
        make(&b, pairs, n_pairs);
        make_vocab(&v, pairs, n_pairs);
        assert_int_equal(bpe_learn_chars(&b, &v, NULL), STATUS_OK);
        for (size_t i = 0; i < b.chars.n_slots; i++) {
            n_used += b.chars.slots[i].c && b.chars.slots[i].id >= 0;
            n_late += b.chars.slots[i].c && b.chars.slots[i].id < 0;
        }
        for (size_t i = 0; i < sizeof b.chars.guards; i++)
            n_guards += b.chars.guards[i] != 0;
        bpe_work_init(&w);
        for (uint64_t k = 0; k < 40; k++) {
            char text[4 * 30];
            int32_t plain[4 * 30];
            size_t n =
                random_letters(text, seed + 1000 * round + k, 30, k % 4 ? 9 : COUNT_OF(LETTERS));
            size_t n_plain = plain_text(plain, text, n, pairs, n_pairs);
            out.n = 0;
            assert_int_equal(bpe_encode(&b, &w, &out, str_view(text, n), NULL), STATUS_OK);
            if (out.n != n_plain || memcmp(out.ids, plain, n_plain * sizeof *plain) != 0)
                fail_msg("round %llu, text %llu: %zu ids, expected %zu", (unsigned long long)round,
                         (unsigned long long)k, out.n, n_plain);
        }
        bpe_work_fini(&w);
        bpe_fini(&b);
        vocab_fini(&v);
        token_ids_fini(&out);
    }
    assert_true(n_used > 100 && n_late > 20 && n_guards > 100); // each rule was needed
}

/* Powers of two of one letter: lengths that need every level of the tree up to a million. */
static void test_a_million_of_one_letter(void **state) {
    UNUSED(state);
    Pair pairs[12] = {{'a', 'a', 256}};
    for (int32_t i = 1; i < 12; i++)
        pairs[i] = (Pair){255 + i, 255 + i, 256 + i};
    Bpe b;
    BpeWork w;
    make(&b, pairs, 12);
    bpe_work_init(&w);
    for (size_t n = 4095; n <= 1 << 20; n = n * 2 + 1) {
        char *piece = mem_alloc(n);
        TokenIds out = {0};
        memset(piece, 'a', n);
        assert_int_equal(bpe_encode(&b, &w, &out, str_view(piece, n), NULL), STATUS_OK);
        size_t whole = n >> 12; // runs of 4096, then one token for each lower bit
        assert_int_equal(out.n, whole + 12);
        for (size_t i = 0; i < whole; i++)
            assert_int_equal(out.ids[i], 267);
        for (size_t i = 0; i < 12; i++)
            assert_int_equal(out.ids[whole + i], i < 11 ? 266 - (int32_t)i : 'a');
        mem_free(piece);
        token_ids_fini(&out);
    }
    bpe_work_fini(&w);
    bpe_fini(&b);
}

static void test_every_allocation_may_fail(void **state) {
    UNUSED(state);
    int32_t ids[256];
    byte_ids(ids);
    for (int64_t after = 0; after < 3; after++) {
        Bpe b;
        mem_fail_after(after);
        assert_int_equal(bpe_init(&b, 10, ids, NULL), STATUS_MEMORY);
        mem_fail_after(-1);
    }
    Bpe b;
    make(&b, NULL, 0);
    char piece[1000];
    memset(piece, 'x', sizeof piece);
    for (int64_t after = 0; after < 2; after++) {
        BpeWork w;
        TokenIds out = {0};
        bpe_work_init(&w);
        mem_fail_after(after);
        assert_int_equal(bpe_encode(&b, &w, &out, str_view(piece, sizeof piece), NULL),
                         STATUS_MEMORY);
        mem_fail_after(-1);
        assert_int_equal(bpe_encode(&b, &w, &out, str_view(piece, 5), NULL), STATUS_OK);
        bpe_work_fini(&w);
        token_ids_fini(&out);
    }
    bpe_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest_rank_first_then_leftmost),
        cmocka_unit_test(test_ranks_may_go_back),
        cmocka_unit_test(test_a_pair_counts_once),
        cmocka_unit_test(test_random_merges_beside_the_plain_loop),
        cmocka_unit_test(test_whole_characters_change_nothing),
        cmocka_unit_test(test_a_million_of_one_letter),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
