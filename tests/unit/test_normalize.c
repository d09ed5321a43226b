// SPDX-License-Identifier: Apache-2.0
/* test_normalize.c - NFC at known texts, beside a plain implementation, and at great length.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "text/normalize.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include "unit.h"

static void expect_nfc(StrView text, StrView expected) {
    StrBuf out = {0};
    assert_int_equal(normalize_append_nfc(&out, text, NULL), STATUS_OK);
    if (!str_equal(strbuf_view(&out), expected))
        fail_msg("\"%.*s\" -> \"%.*s\", expected \"%.*s\"", (int)text.len, text.ptr, (int)out.len,
                 out.ptr, (int)expected.len, expected.ptr);
    if (normalize_is_done(text))
        assert_true(str_equal(text, expected));
    strbuf_fini(&out);
}

static void test_known_texts(void **state) {
    UNUSED(state);
    static const struct {
        StrView text, expected;
    } ROWS[] = {
        {{"", 0}, {"", 0}},
        {{"plain", 5}, {"plain", 5}},
        {{"e\xcc\x81", 3}, {"\xc3\xa9", 2}}, // e + acute
        {{"xe\xcc\x81y", 5}, {"x\xc3\xa9y", 4}},
        {{"\xcc\x81", 2}, {"\xcc\x81", 2}},                   // nothing in front of it
        {{"\xe2\x84\xab", 3}, {"\xc3\x85", 2}},               // angstrom sign
        {{"\xe2\x84\xa6", 3}, {"\xce\xa9", 2}},               // ohm sign
        {{"q\xcc\x87\xcc\xa3", 5}, {"q\xcc\xa3\xcc\x87", 5}}, // put in order
        {{"s\xcc\x87\xcc\xa3", 5}, {"\xe1\xb9\xa9", 3}},      // both combine
        {{"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", 9}, {"\xea\xb0\x81", 3}}, // Hangul
        {{"\xea\xb0\x80\xe1\x86\xa8", 6}, {"\xea\xb0\x81", 3}},
        {{"\xe0\xa5\x98", 3}, {"\xe0\xa4\x95\xe0\xa4\xbc", 6}}, // excluded from composing
        {{"\xef\xac\xac", 3}, {"\xd7\xa9\xd6\xbc\xd7\x81", 6}}, // three parts
        {{"\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", 8},
         {"\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", 8}}, // newer than 9
        {{"a\0e\xcc\x81", 5}, {"a\0\xc3\xa9", 4}},
        {{"\xe0\xa7\x87\xe0\xa6\xbe", 6}, {"\xe0\xa7\x8b", 3}}, // two of class 0 combine
    };
    for (size_t i = 0; i < COUNT_OF(ROWS); i++)
        expect_nfc(ROWS[i].text, ROWS[i].expected);
}

/* NFC word by word of the standard: decompose all, exchange neighbours until in order, compose. */
static size_t plain_nfc(uint32_t *c, size_t n, const uint32_t *text, size_t n_text) {
    for (size_t i = 0; i < n_text; i++)
        n += unicode_decompose(text[i], c + n);
    for (bool is_moved = true; is_moved;) {
        is_moved = false;
        for (size_t i = 0; i + 1 < n; i++) {
            if (unicode_ccc(c[i + 1]) && unicode_ccc(c[i]) > unicode_ccc(c[i + 1])) {
                uint32_t swap = c[i];
                c[i] = c[i + 1];
                c[i + 1] = swap;
                is_moved = true;
            }
        }
    }
    for (size_t i = 1; i < n; i++) {
        size_t starter = i;
        bool is_blocked = false;
        while (starter-- > 0 && unicode_ccc(c[starter]) != 0)
            is_blocked = is_blocked || unicode_ccc(c[starter]) >= unicode_ccc(c[i]);
        bool has_starter = starter != SIZE_MAX;
        is_blocked = is_blocked || (starter + 1 < i && unicode_ccc(c[i]) == 0);
        uint32_t made = has_starter && !is_blocked ? unicode_compose(c[starter], c[i]) : 0;
        if (made) {
            c[starter] = made;
            memmove(c + i, c + i + 1, (n - i - 1) * sizeof *c);
            n--;
            i--;
        }
    }
    return n;
}

static uint32_t random_char(uint64_t key, uint64_t counter) {
    static const struct {
        uint32_t low, n;
    } RANGES[] = {{'a', 26},      {0x300, 0x70}, {0x300, 0x30},  {0x1100, 0x100}, {0xac00, 200},
                  {0x900, 0x100}, {0xc0, 0x190}, {0x1e00, 256},  {0x5b0, 0x20},   {0xfb1d, 0x33},
                  {0x1d15e, 7},   {0x2126, 6},   {0xf900, 0x40}, {0x591, 0x20},   {0x0, 0xd800}};
    uint64_t r = rng_u64(key, counter);
    size_t i = (size_t)(r >> 32) % COUNT_OF(RANGES);
    return RANGES[i].low + (uint32_t)r % RANGES[i].n;
}

static void test_random_text_beside_a_plain_implementation(void **state) {
    UNUSED(state);
    uint64_t seed = (uint64_t)clock_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 20000; round++) {
        uint32_t text[24], plain[24 * UNICODE_MAX_DECOMP];
        size_t n = 1 + (size_t)(rng_u64(seed, round) % COUNT_OF(text));
        StrBuf bytes = {0}, expected = {0}, twice = {0};
        char c[UTF8_MAX];
        for (size_t i = 0; i < n; i++) {
            text[i] = random_char(seed + 1, round * 64 + i);
            strbuf_append(&bytes, c, (size_t)utf8_encode(text[i], c));
        }
        size_t n_plain = plain_nfc(plain, 0, text, n);
        for (size_t i = 0; i < n_plain; i++)
            strbuf_append(&expected, c, (size_t)utf8_encode(plain[i], c));
        expect_nfc(strbuf_view(&bytes), strbuf_view(&expected));
        expect_nfc(strbuf_view(&expected), strbuf_view(&expected)); // and once more changes nothing
        strbuf_fini(&bytes);
        strbuf_fini(&expected);
        strbuf_fini(&twice);
    }
}

/* A million marks behind one letter, in descending order of class: sorted, without a long wait. */
static void test_a_million_marks(void **state) {
    UNUSED(state);
    enum { N = 1000000 };
    StrBuf text = {0}, out = {0};
    strbuf_append_char(&text, 'q');
    for (int i = 0; i < N; i++) // class 230, then class 220
        strbuf_append(&text, i < N / 2 ? "\xcc\x87" : "\xcc\xa3", 2);
    assert_int_equal(normalize_append_nfc(&out, strbuf_view(&text), NULL), STATUS_OK);
    assert_int_equal(out.len, 1 + 2 * N);
    for (int i = 0; i < N; i++)
        if (memcmp(out.ptr + 1 + 2 * i, i < N / 2 ? "\xcc\xa3" : "\xcc\x87", 2) != 0)
            fail_msg("mark %d", i);
    strbuf_fini(&text);
    strbuf_fini(&out);
}

static void test_every_allocation_may_fail(void **state) {
    UNUSED(state);
    StrBuf text = {0};
    for (int i = 0; i < 500; i++)
        strbuf_append(&text, "e\xcc\x81\xcc\x87", i % 100 == 0 ? 3 : 5);
    for (int i = 0; i < 500; i++)
        strbuf_append(&text, "\xcc\x87", 2);
    for (int64_t after = 0;; after++) {
        StrBuf out = {0};
        Err err = {0};
        mem_fail_after(after);
        Status status = normalize_append_nfc(&out, strbuf_view(&text), &err);
        mem_fail_after(-1);
        strbuf_fini(&out);
        assert_true(after < 100);
        if (status == STATUS_OK) {
            assert_true(after > 2);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
    }
    strbuf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_texts),
        cmocka_unit_test(test_random_text_beside_a_plain_implementation),
        cmocka_unit_test(test_a_million_marks),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
