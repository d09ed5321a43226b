// SPDX-License-Identifier: Apache-2.0
/* test_chat_text.c - the bit of each byte survives copying at any offset. */
#include "base/mem.h"
#include "base/rng.h"
#include "text/chat_text.h"

#include <setjmp.h>

#include <cmocka.h>

static void test_bits_follow_their_bytes(void **state) {
    UNUSED(state);
    ChatText from = {0}, to = {0};
    // Capital letters are trusted, so the text itself says what each bit must be.
    for (uint64_t i = 0; i < 400; i++) {
        static const char capital[] = "ABCDEFGHIJKLMNOPQRST", small[] = "abcdefghijklmnopqrst";
        size_t len = rng_u64(1, i) % 20;
        if (i % 2)
            chat_text_append_fixed(&from, str_view(capital, len));
        else
            chat_text_append_data(&from, str_view(small, len));
    }
    for (uint64_t i = 0; i < 400; i++) {
        size_t off = rng_u64(2, i) % from.text.len;
        chat_text_append_range(&to, &from, off, rng_u64(3, i) % (from.text.len - off + 1) % 50);
    }
    assert_int_equal(chat_text_check(&from, NULL), STATUS_OK);
    assert_int_equal(chat_text_check(&to, NULL), STATUS_OK);
    assert_true(to.text.len > 1000);
    assert_int_equal(to.bits.len, (to.text.len + 7) / 8);
    for (size_t i = 0; i < to.text.len; i++)
        assert_int_equal(chat_text_is_trusted(&to, i), to.text.ptr[i] < 'a');
    chat_text_clear(&to);
    assert_false(to.has_trusted);
    chat_text_append_data(&to, STR("AB"));
    assert_false(chat_text_is_trusted(&to, 0));
    chat_text_fini(&from);
    chat_text_fini(&to);
}

static void test_failure_stays(void **state) {
    UNUSED(state);
    for (int64_t after = 0; after < 2; after++) {
        ChatText t = {0};
        mem_fail_after(after);
        chat_text_append_fixed(&t, STR("abc"));
        mem_fail_after(-1);
        chat_text_append_data(&t, STR("def"));
        chat_text_clear(&t);
        chat_text_append_data(&t, STR("def"));
        assert_int_equal(chat_text_check(&t, NULL), STATUS_MEMORY);
        chat_text_fini(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_follow_their_bytes),
        cmocka_unit_test(test_failure_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
