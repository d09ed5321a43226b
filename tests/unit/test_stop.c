// SPDX-License-Identifier: Apache-2.0
/* test_stop.c - stop strings: every split of the stream gives the same text, held no longer than
 * needed.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "engine/stop.h"

#include "base/mem.h"
#include "base/rng.h"
#include "unit.h"

/* Feeds text in pieces of the lengths that `cuts` gives (bit i: cut behind byte i). */
static void run(StrBuf *out, bool *is_hit, StrView text, uint32_t cuts, const StrView *stops,
                int n) {
    Stop s;
    Err err = {0};
    assert_int_equal(stop_init(&s, stops, n, &err), STATUS_OK);
    size_t start = 0;
    *is_hit = false;
    for (size_t i = 0; i < text.len && !*is_hit; i++) {
        if (i + 1 < text.len && !(cuts >> i & 1))
            continue;
        assert_int_equal(
            stop_push(&s, str_view(text.ptr + start, i + 1 - start), out, is_hit, &err), STATUS_OK);
        start = i + 1;
    }
    if (!*is_hit)
        assert_int_equal(stop_flush(&s, out, &err), STATUS_OK);
    stop_fini(&s);
}

static void test_C32_text_before_a_stop_string_is_sent_once(void **state) {
    UNUSED(state);
    const StrView stops[] = {STR("DEFGHIJ")};
    StrView text = STR("ABCDEFGHIJKLMNOP");
    for (uint32_t cuts = 0; cuts < 1u << 15; cuts++) {
        StrBuf out = {0};
        bool is_hit;
        run(&out, &is_hit, text, cuts, stops, 1);
        assert_true(is_hit);
        if (!str_equal(strbuf_view(&out), STR("ABC")))
            fail_msg("cuts %x: %s", cuts, out.ptr);
        strbuf_fini(&out);
    }
}

static void test_C32_held_only_while_it_can_match(void **state) {
    UNUSED(state);
    static const struct {
        const char *piece, *passed; // what came in, what is out in all
    } rows[] = {{"x", "x"}, {"ab", "x"}, {"aba", "xab"}, {"b", "xab"}, {"?", "xababab?"}};
    const StrView stops[] = {STR("abab!")};
    Stop s;
    Err err = {0};
    bool is_hit;
    StrBuf out = {0};
    assert_int_equal(stop_init(&s, stops, 1, &err), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(
            stop_push(&s, str_view(rows[i].piece, strlen(rows[i].piece)), &out, &is_hit, &err),
            STATUS_OK);
        assert_false(is_hit);
        assert_string_equal(out.ptr, rows[i].passed);
    }
    strbuf_fini(&out);
    stop_fini(&s);
}

/* The right answer by trying every end: offset where the match that is complete first begins. */
static size_t first_match(StrView text, const StrView *stops, int n) {
    for (size_t end = 1; end <= text.len; end++) {
        size_t first = SIZE_MAX;
        for (int i = 0; i < n; i++)
            if (str_ends(str_view(text.ptr, end), stops[i]) && end - stops[i].len < first)
                first = end - stops[i].len;
        if (first != SIZE_MAX)
            return first;
    }
    return SIZE_MAX;
}

static void test_random_texts_and_splits(void **state) {
    UNUSED(state);
    const uint64_t seed = 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    uint64_t at = 0;
    for (int round = 0; round < 20000; round++) {
        char text[20], words[3][4];
        StrView stops[3];
        size_t len = 1 + rng_u64(seed, at++) % sizeof text;
        for (size_t i = 0; i < len; i++)
            text[i] = "ab"[rng_u64(seed, at++) & 1];
        int n = (int)(rng_u64(seed, at++) % 4);
        for (int i = 0; i < n; i++) {
            size_t m = 1 + rng_u64(seed, at++) % 4;
            for (size_t j = 0; j < m; j++)
                words[i][j] = "ab"[rng_u64(seed, at++) & 1];
            stops[i] = str_view(words[i], m);
        }
        StrBuf out = {0};
        bool is_hit;
        uint32_t cuts = (uint32_t)rng_u64(seed, at++);
        run(&out, &is_hit, str_view(text, len), cuts, stops, n);
        size_t first = first_match(str_view(text, len), stops, n);
        assert_int_equal(is_hit, first != SIZE_MAX);
        size_t expected = is_hit ? first : len;
        assert_true(str_equal(strbuf_view(&out), str_view(text, expected)));
        strbuf_fini(&out);
    }
}

static void test_bad_stop_strings_and_failed_allocations(void **state) {
    UNUSED(state);
    Stop s;
    Err err = {0};
    StrView many[LIMIT_STOP_STRINGS + 1];
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = STR("x");
    assert_int_equal(stop_init(&s, many, LIMIT_STOP_STRINGS + 1, &err), STATUS_INVALID);
    const StrView empty[] = {STR("a"), STR("")};
    assert_int_equal(stop_init(&s, empty, 2, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "string 1"));
    mem_fail_after(1);
    assert_int_equal(stop_init(&s, many, 2, &err), STATUS_MEMORY);
    mem_fail_after(-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_C32_text_before_a_stop_string_is_sent_once),
        cmocka_unit_test(test_C32_held_only_while_it_can_match),
        cmocka_unit_test(test_random_texts_and_splits),
        cmocka_unit_test(test_bad_stop_strings_and_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
