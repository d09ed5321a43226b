// SPDX-License-Identifier: Apache-2.0
/* test_added.c - added tokens: leftmost, longest, and only where all their bytes are trusted.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "text/added.h"

#include "base/mem.h"
#include "unit.h"

static void fill(Added *a, const char *const *texts, size_t n) {
    *a = (Added){0};
    for (size_t i = 0; i < n; i++)
        assert_int_equal(added_append(a,
                                      (AddedToken){str_view(texts[i], strlen(texts[i])),
                                                   100 + (int32_t)i, i % 2 == 1},
                                      NULL),
                         STATUS_OK);
    added_sort(a);
}

static void expect_hit(const Added *a, const char *text, const uint8_t *trusted, size_t from,
                       size_t at, int32_t id) {
    AddedHit hit = {0, 0, -1};
    bool is_hit = added_next(a, str_view(text, strlen(text)), trusted, from, &hit);
    assert_int_equal(is_hit, id >= 0);
    if (is_hit) {
        assert_int_equal(hit.at, at);
        assert_int_equal(hit.id, id);
    }
}

static void test_leftmost_longest(void **state) {
    UNUSED(state);
    static const char *const TEXTS[] = {"<a>", "<ab", "<a>b>", "[x]", "<"};
    Added a;
    fill(&a, TEXTS, COUNT_OF(TEXTS));
    expect_hit(&a, "..<a>", NULL, 0, 2, 100);
    expect_hit(&a, "<a>b>", NULL, 0, 0, 102); // the longest at its place
    expect_hit(&a, "<a>b", NULL, 0, 0, 100);
    expect_hit(&a, "<b>[x]", NULL, 0, 0, 104);
    expect_hit(&a, "<b>[x]", NULL, 1, 3, 103);
    expect_hit(&a, "[x", NULL, 0, 0, -1); // cut off by the end
    expect_hit(&a, "", NULL, 0, 0, -1);
    assert_int_equal(added_find_text(&a, STR("<ab"))->id, 101);
    assert_true(added_find_text(&a, STR("<ab"))->is_special);
    assert_null(added_find_text(&a, STR("<a")));
    added_fini(&a);
}

static void test_none_at_all(void **state) {
    UNUSED(state);
    Added a;
    fill(&a, NULL, 0);
    expect_hit(&a, "<a>", NULL, 0, 0, -1);
    added_fini(&a);
}

static void test_all_bytes_must_be_trusted(void **state) {
    UNUSED(state);
    static const char *const TEXTS[] = {"<t>", "<t>x"};
    Added a;
    fill(&a, TEXTS, COUNT_OF(TEXTS));
    const char *text = "a<t><t>x<t>";
    for (unsigned mask = 0; mask < 1u << 11; mask++) {
        uint8_t trusted[2] = {(uint8_t)mask, (uint8_t)(mask >> 8)};
        if ((mask >> 1 & 7) == 7)
            expect_hit(&a, text, trusted, 0, 1, 100);
        else if ((mask >> 4 & 15) == 15)
            expect_hit(&a, text, trusted, 0, 4, 101);
        else if ((mask >> 4 & 7) == 7) // the longer one has a byte too many
            expect_hit(&a, text, trusted, 0, 4, 100);
        else if ((mask >> 8 & 7) == 7)
            expect_hit(&a, text, trusted, 0, 8, 100);
        else
            expect_hit(&a, text, trusted, 0, 0, -1);
    }
    added_fini(&a);
}

static void test_allocation_may_fail(void **state) {
    UNUSED(state);
    Added a = {0};
    mem_fail_after(0);
    assert_int_equal(added_append(&a, (AddedToken){STR("x"), 1, false}, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(a.n, 0);
    added_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leftmost_longest),
        cmocka_unit_test(test_none_at_all),
        cmocka_unit_test(test_all_bytes_must_be_trusted),
        cmocka_unit_test(test_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
