// SPDX-License-Identifier: Apache-2.0
/* test_vocab.c - bytes of ids, ids of bytes, and lists of ids.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "text/vocab.h"

#include "base/mem.h"
#include "text/token_ids.h"
#include "unit.h"

static void test_find_and_bytes(void **state) {
    UNUSED(state);
    enum { N = 5000 };
    Vocab v;
    int32_t twice;
    assert_int_equal(vocab_init(&v, N + 10, NULL), STATUS_OK);
    for (int32_t id = 0; id < N; id++) {
        char text[16];
        int n = snprintf(text, sizeof text, "t%d", id * 7);
        assert_int_equal(vocab_set(&v, id, str_view(text, (size_t)n), NULL), STATUS_OK);
    }
    assert_int_equal(vocab_set(&v, N + 5, STR("\0zero\0"), NULL), STATUS_OK);
    assert_int_equal(v.n_ids, N + 6);
    assert_int_equal(vocab_index(&v, NULL, &twice, NULL), STATUS_OK);
    assert_int_equal(twice, -1);
    for (int32_t id = 0; id < N; id++)
        assert_int_equal(vocab_find(&v, vocab_bytes(&v, id)), id);
    assert_int_equal(vocab_find(&v, STR("\0zero\0")), N + 5);
    assert_int_equal(vocab_find(&v, STR("\0zero")), -1);
    assert_int_equal(vocab_find(&v, STR("t8")), -1);
    assert_int_equal(vocab_find(&v, STR("")), -1);
    assert_int_equal(vocab_find(&v, STR("a text longer than any token")), -1);
    assert_int_equal(vocab_bytes(&v, N).len, 0);
    assert_int_equal(vocab_bytes(&v, N + 9).len, 0);
    assert_int_equal(vocab_bytes(&v, 1 << 30).len, 0);
    uint8_t *skip = mem_zalloc((size_t)v.n_ids, 1);
    skip[3] = 1;
    assert_int_equal(vocab_index(&v, skip, &twice, NULL), STATUS_OK);
    assert_int_equal(vocab_find(&v, STR("t21")), -1);
    assert_int_equal(vocab_find(&v, STR("t28")), 4);
    assert_true(str_equal(vocab_bytes(&v, 3), STR("t21")));
    mem_free(skip);
    vocab_fini(&v);
}

static void test_same_bytes_are_told(void **state) {
    UNUSED(state);
    Vocab v;
    int32_t twice;
    assert_int_equal(vocab_init(&v, 8, NULL), STATUS_OK);
    assert_int_equal(vocab_set(&v, 1, STR("x"), NULL), STATUS_OK);
    assert_int_equal(vocab_set(&v, 6, STR("x"), NULL), STATUS_OK);
    assert_int_equal(vocab_index(&v, NULL, &twice, NULL), STATUS_OK);
    assert_int_equal(twice, 6);
    assert_int_equal(vocab_find(&v, STR("x")), 1);
    vocab_fini(&v);
}

static void test_allocations_may_fail(void **state) {
    UNUSED(state);
    Vocab v;
    int32_t twice;
    mem_fail_after(0);
    assert_int_equal(vocab_init(&v, 8, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(vocab_init(&v, 8, NULL), STATUS_OK);
    mem_fail_after(0);
    assert_int_equal(vocab_set(&v, 1, STR("x"), NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(v.n_ids, 0);
    mem_fail_after(0);
    assert_int_equal(vocab_index(&v, NULL, &twice, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    vocab_fini(&v);
}

static void test_token_ids_grow(void **state) {
    UNUSED(state);
    TokenIds t = {0};
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(token_ids_append(&t, i, NULL), STATUS_OK);
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(t.ids[i], i);
    assert_int_equal(token_ids_reserve(&t, 5000, NULL), STATUS_OK);
    assert_true(t.cap >= 6000);
    assert_int_equal(token_ids_reserve(&t, SIZE_MAX / 2, NULL), STATUS_MEMORY);
    assert_int_equal(t.n, 1000);
    token_ids_fini(&t);
    mem_fail_after(0);
    assert_int_equal(token_ids_append(&t, 1, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(t.n, 0);
    token_ids_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_and_bytes),
        cmocka_unit_test(test_same_bytes_are_told),
        cmocka_unit_test(test_allocations_may_fail),
        cmocka_unit_test(test_token_ids_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
