// SPDX-License-Identifier: Apache-2.0
/* test_detok.c - streamed text: never a broken character, the same as the whole decode at every
 * split, nothing held longer than it must be.
 *
 * Path:     make unit.
 * Owns:     one tokenizer of byte tokens.  Thread: one. */
#include "text/detok.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/token_load.h"
#include "text/tokenizer.h"
#include "unit.h"

enum { ROWS = 400 };

static Tokenizer *tok;
static int32_t id_of[256]; // byte tokens

static int set_up(void **state) {
    UNUSED(state);
    token_load_byte_order(id_of);
    return tokenizer_open_bytes(&tok, ROWS, NULL) != STATUS_OK;
}

static int tear_down(void **state) {
    UNUSED(state);
    tokenizer_close(tok);
    return 0;
}

/* What U+FFFD for each maximal subpart makes of bytes; the definition, one character at a time. */
static void plain_decode(StrBuf *out, StrView s) {
    for (size_t at = 0; at < s.len;) {
        uint32_t c;
        int n = utf8_decode(s.ptr + at, s.len - at, &c);
        if (n > 0)
            strbuf_append(out, s.ptr + at, (size_t)n);
        else
            strbuf_append(out, "\xef\xbf\xbd", 3);
        at += n > 0 ? (size_t)n : n < 0 ? (size_t)-n : s.len - at;
    }
}

static void push_bytes(Detok *d, StrView s, StrBuf *out) {
    for (size_t i = 0; i < s.len; i++) {
        assert_int_equal(detok_push(d, id_of[(unsigned char)s.ptr[i]], out, NULL), STATUS_OK);
        assert_true(utf8_is_valid(out->ptr, out->len, NULL));
        assert_in_range(d->n_held, 0, 3);
    }
}

static void test_known_streams(void **state) {
    UNUSED(state);
    static const struct {
        StrView bytes;
        const char *before_flush, *after;
    } ROWS_OF[] = {
        {{"plain", 5}, "plain", "plain"},
        {{"\xe4\xb8\xad", 3}, "\xe4\xb8\xad", "\xe4\xb8\xad"},
        {{"x\xf0\x9f\xab", 4}, "x", "x\xef\xbf\xbd"}, // three bytes wait, one U+FFFD
        {{"\xf0\x9f\xabok", 5}, "\xef\xbf\xbdok", "\xef\xbf\xbdok"},
        {{"\xe4\xe4\xb8\xad", 4}, "\xef\xbf\xbd\xe4\xb8\xad", "\xef\xbf\xbd\xe4\xb8\xad"},
        {{"\xed\xa0\x80", 3},
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, // a surrogate
        {{"\xc0\x80", 2}, "\xef\xbf\xbd\xef\xbf\xbd", "\xef\xbf\xbd\xef\xbf\xbd"},
        {{"\xf4\x90", 2}, "\xef\xbf\xbd\xef\xbf\xbd", "\xef\xbf\xbd\xef\xbf\xbd"}, // above U+10FFFF
        {{"\xff", 1}, "\xef\xbf\xbd", "\xef\xbf\xbd"}, // cannot become valid: told at once
        {{"\xc3", 1}, "", "\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < COUNT_OF(ROWS_OF); i++) {
        Detok d;
        StrBuf out = {0};
        detok_init(&d, tok, false);
        push_bytes(&d, ROWS_OF[i].bytes, &out);
        assert_string_equal(out.ptr ? out.ptr : "", ROWS_OF[i].before_flush);
        assert_int_equal(detok_flush(&d, &out, NULL), STATUS_OK);
        assert_string_equal(out.ptr, ROWS_OF[i].after);
        assert_int_equal(detok_flush(&d, &out, NULL), STATUS_OK); // a second flush adds nothing
        assert_string_equal(out.ptr, ROWS_OF[i].after);
        strbuf_fini(&out);
    }
}

static void test_random_bytes_stream_as_they_decode(void **state) {
    UNUSED(state);
    static const unsigned char POOL[] = {'a',  'z',  0,    0x7f, 0x80, 0x8f, 0x90, 0x9f,
                                         0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xe4, 0xed,
                                         0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff, 0x80, 0xbf};
    uint64_t seed = (uint64_t)clock_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 20000; round++) {
        char bytes[40];
        int32_t ids[40];
        size_t n = (size_t)(rng_u64(seed, round) % sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (char)POOL[rng_u64(seed + 1, round * 64 + i) % sizeof POOL];
            ids[i] = id_of[(unsigned char)bytes[i]];
        }
        StrBuf streamed = {0}, whole = {0}, plain = {0};
        Detok d;
        detok_init(&d, tok, round % 2);
        push_bytes(&d, str_view(bytes, n), &streamed);
        assert_int_equal(detok_flush(&d, &streamed, NULL), STATUS_OK);
        assert_int_equal(tokenizer_decode(tok, &whole, ids, n, round % 2, NULL), STATUS_OK);
        plain_decode(&plain, str_view(bytes, n));
        if (!str_equal(strbuf_view(&streamed), strbuf_view(&whole)) ||
            !str_equal(strbuf_view(&plain), strbuf_view(&whole)))
            fail_msg("round %llu", (unsigned long long)round);
        strbuf_fini(&streamed);
        strbuf_fini(&whole);
        strbuf_fini(&plain);
    }
}

static void test_special_tokens_may_be_dropped(void **state) {
    UNUSED(state);
    const int32_t ids[] = {id_of['a'], tokenizer_find_added(tok, STR("<|im_end|>")), id_of['b'],
                           tokenizer_find_added(tok, STR("<think>")),
                           tokenizer_find_added(tok, STR("</tool_call>"))};
    StrBuf out = {0};
    assert_int_equal(tokenizer_decode(tok, &out, ids, COUNT_OF(ids), false, NULL), STATUS_OK);
    assert_string_equal(out.ptr, "a<|im_end|>b<think></tool_call>");
    strbuf_clear(&out);
    assert_int_equal(tokenizer_decode(tok, &out, ids, COUNT_OF(ids), true, NULL), STATUS_OK);
    assert_string_equal(out.ptr, "ab<think></tool_call>");
    strbuf_fini(&out);
}

/* A dropped token does not part a character; a kept one does. */
static void test_a_token_inside_a_character(void **state) {
    UNUSED(state);
    int32_t end = tokenizer_find_added(tok, STR("<|im_end|>"));
    const int32_t ids[] = {id_of[0xc3], end, id_of[0xa9]};
    StrBuf out = {0};
    assert_int_equal(tokenizer_decode(tok, &out, ids, 3, true, NULL), STATUS_OK);
    assert_string_equal(out.ptr, "\xc3\xa9");
    strbuf_clear(&out);
    assert_int_equal(tokenizer_decode(tok, &out, ids, 3, false, NULL), STATUS_OK);
    assert_string_equal(out.ptr, "\xef\xbf\xbd<|im_end|>\xef\xbf\xbd");
    strbuf_fini(&out);
}

static void test_ids_out_of_range_are_refused(void **state) {
    UNUSED(state);
    static const int32_t BAD[] = {-1, INT32_MIN, ROWS, INT32_MAX};
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        Detok d;
        StrBuf out = {0};
        Err err = {0};
        const int32_t ids[] = {id_of['a'], id_of[0xc3], BAD[i]};
        strbuf_append(&out, "kept", 4);
        detok_init(&d, tok, false);
        assert_int_equal(detok_push(&d, id_of[0xc3], &out, NULL), STATUS_OK);
        assert_int_equal(detok_push(&d, BAD[i], &out, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, "token id: expected 0 to 399, found"));
        assert_int_equal(d.n_held, 1);
        assert_int_equal(tokenizer_decode(tok, &out, ids, 3, false, NULL), STATUS_INVALID);
        assert_string_equal(out.ptr, "kept");
        strbuf_fini(&out);
    }
}

static void test_allocation_may_fail(void **state) {
    UNUSED(state);
    Detok d;
    StrBuf out = {0};
    detok_init(&d, tok, false);
    assert_int_equal(detok_push(&d, id_of[0xc3], &out, NULL), STATUS_OK);
    strbuf_fini(&out);
    mem_fail_after(0);
    assert_int_equal(detok_push(&d, id_of[0xa9], &out, NULL), STATUS_MEMORY);
    mem_fail_after(-1);
    assert_int_equal(out.len, 0);
    assert_int_equal(d.n_held, 1); // the push can be made again
    strbuf_clear(&out);
    assert_int_equal(detok_push(&d, id_of[0xa9], &out, NULL), STATUS_OK);
    assert_string_equal(out.ptr, "\xc3\xa9");
    strbuf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_streams),
        cmocka_unit_test(test_random_bytes_stream_as_they_decode),
        cmocka_unit_test(test_special_tokens_may_be_dropped),
        cmocka_unit_test(test_a_token_inside_a_character),
        cmocka_unit_test(test_ids_out_of_range_are_refused),
        cmocka_unit_test(test_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
