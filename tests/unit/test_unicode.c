// SPDX-License-Identifier: Apache-2.0
/* test_unicode.c - character classes and composition data, at known characters and as a whole.
 *
 * Path:     make unit.  The tables are checked against another implementation by
 *           tests/py/test_tokenizer_oracle.py.
 * Owns:     nothing.  Thread: one. */
#include "text/unicode.h"

#include "base/status.h"
#include "base/utf8.h"
#include "unit.h"

static void test_classes(void **state) {
    UNUSED(state);
    static const struct {
        uint32_t c;
        unsigned flags;
    } ROWS[] = {
        {'a', UNICODE_LETTER},
        {'_', 0},
        {'7', UNICODE_NUMBER},
        {' ', UNICODE_SPACE},
        {'\r', UNICODE_SPACE},
        {0x1c, 0},
        {0x85, UNICODE_SPACE},
        {0xa0, UNICODE_SPACE},
        {0xb2, UNICODE_NUMBER},
        {0x2167, UNICODE_NUMBER},
        {0x180e, 0},
        {0x200b, 0},
        {0x200a, UNICODE_SPACE},
        {0x3000, UNICODE_SPACE},
        {0xfeff, 0},
        {0x4e2d, UNICODE_LETTER},
        {0xac00, UNICODE_LETTER},
        {0x1f600, 0},
        {0x301, UNICODE_MARK | UNICODE_CCC | UNICODE_QC},
        {0x94d, UNICODE_MARK | UNICODE_CCC}, // virama: class 9, never composes
        {0x93e, UNICODE_MARK},               // vowel sign: class 0
        {0x488, UNICODE_MARK},
        {0x212b, UNICODE_LETTER | UNICODE_QC}, // angstrom sign: a singleton
        {0x1161, UNICODE_LETTER | UNICODE_QC}, // Hangul vowel
        {0xe9, UNICODE_LETTER},
        {0x16d40, UNICODE_LETTER}, // new in Unicode 16
        {0x10ffff, 0},
    };
    for (size_t i = 0; i < COUNT_OF(ROWS); i++)
        if (unicode_flags(ROWS[i].c) != ROWS[i].flags)
            fail_msg("U+%04X: %x, expected %x", ROWS[i].c, unicode_flags(ROWS[i].c), ROWS[i].flags);
}

static void test_read_is_utf8(void **state) {
    UNUSED(state);
    for (uint32_t c = 0; c <= UNICODE_LAST; c++) {
        char bytes[UTF8_MAX];
        size_t n;
        if (c >= 0xd800 && c < 0xe000)
            continue;
        size_t len = (size_t)utf8_encode(c, bytes);
        if (unicode_read(bytes, &n) != c || n != len)
            fail_msg("U+%04X", c);
    }
}

/* What composes decomposes to the same pair's parts; a class exists exactly where a flag says so.
 */
static void test_data_is_consistent(void **state) {
    UNUSED(state);
    size_t n_decomposed = 0;
    for (uint32_t c = 0; c <= UNICODE_LAST; c++) {
        uint32_t parts[UNICODE_MAX_DECOMP];
        size_t n = unicode_decompose(c, parts);
        assert_in_range(n, 1, UNICODE_MAX_DECOMP);
        if ((unicode_ccc(c) != 0) != ((unicode_flags(c) & UNICODE_CCC) != 0))
            fail_msg("U+%04X: class", c);
        for (size_t i = 0; i < n; i++) {
            uint32_t again[UNICODE_MAX_DECOMP];
            if (n > 1 && unicode_decompose(parts[i], again) != 1)
                fail_msg("U+%04X: not fully decomposed", c);
        }
        n_decomposed += n > 1;
        if (n == 1 || unicode_flags(c) & UNICODE_QC)
            continue;
        uint32_t made = parts[0];
        for (size_t i = 1; i < n; i++)
            made = unicode_compose(made, parts[i]);
        if (made != c)
            fail_msg("U+%04X: composes to U+%04X", c, made);
    }
    assert_int_equal(n_decomposed, 11172 + 1025 + 18); // Hangul, pairs, singletons that go on
}

static void test_composition(void **state) {
    UNUSED(state);
    assert_int_equal(unicode_compose('e', 0x301), 0xe9);
    assert_int_equal(unicode_compose(0x1100, 0x1161), 0xac00);
    assert_int_equal(unicode_compose(0xac00, 0x11a8), 0xac01);
    assert_int_equal(unicode_compose(0xac01, 0x11a8), 0);   // has its tail already
    assert_int_equal(unicode_compose(0xac00, 0x11a7), 0);   // one before the first tail
    assert_int_equal(unicode_compose(0x915, 0x93c), 0);     // excluded
    assert_int_equal(unicode_compose(0x11935, 0x11930), 0); // composes since Unicode 13
    assert_int_equal(unicode_compose(0, 0), 0);
    assert_int_equal(unicode_ccc(0x301), 230);
    assert_int_equal(unicode_ccc(0x323), 220);
    assert_int_equal(unicode_ccc('a'), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_read_is_utf8),
        cmocka_unit_test(test_data_is_consistent),
        cmocka_unit_test(test_composition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
