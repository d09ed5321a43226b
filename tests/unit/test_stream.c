// SPDX-License-Identifier: Apache-2.0
/* test_stream.c - bytes come out once, in order, and a writer that is too far ahead is held.
 *
 * Path:     make unit. What suspends a connection is tested with a server (tests/py).
 * Owns:     nothing past a test.  Thread: one. */
#include "base/mem.h"
#include "base/rng.h"
#include "server/stream.h"

#include "unit.h"

#include <string.h>

static void count_drained(void *ctx) { ++*(int *)ctx; }

static void test_bytes_come_out_once_in_order(void **state) {
    UNUSED(state);
    Stream s;
    int n_drained = 0;
    stream_init(&s, count_drained, &n_drained);
    uint64_t n_in = 0, n_out = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        char piece[400], out[500];
        size_t n = 1 + rng_u64(5, i) % sizeof piece, want = 1 + rng_u64(6, i) % sizeof out;
        for (size_t j = 0; j < n; j++)
            piece[j] = (char)((n_in + j) * 31 % 251);
        assert_true(stream_put(&s, str_view(piece, n), false));
        n_in += n;
        // Always a little behind: an empty stream would suspend a connection.
        if (n_in - n_out <= 1000)
            continue;
        ssize_t got = stream_read(&s, NULL, out, want);
        assert_true(got > 0);
        for (ssize_t j = 0; j < got; j++)
            assert_int_equal((unsigned char)out[j], (n_out + (uint64_t)j) * 31 % 251);
        n_out += (uint64_t)got;
    }
    assert_true(s.bytes.cap < 4u * STREAM_FULL + 2 * (n_in - n_out)); // what was read is not kept
    stream_put(&s, STR(""), true);
    stream_put(&s, STR("dropped"), false);
    char rest[4096];
    for (ssize_t got; (got = stream_read(&s, NULL, rest, sizeof rest)) > 0;)
        n_out += (uint64_t)got;
    assert_true(n_in == n_out);
    assert_true(stream_read(&s, NULL, rest, 1) == -1); // the end, again and again
    assert_true(stream_wait(&s, NULL));
    stream_fini(&s);
}

static void test_a_writer_is_held_and_let_go(void **state) {
    UNUSED(state);
    Stream s;
    static char block[STREAM_FULL];
    int n_drained = 0;
    stream_init(&s, count_drained, &n_drained);
    stream_put(&s, str_view(block, sizeof block), false);
    assert_false(stream_hold(&s));
    stream_put(&s, STR("x"), false);
    assert_true(stream_hold(&s));
    assert_false(stream_release(&s));
    while (s.bytes.len - s.n_read > STREAM_EMPTY + 1000) {
        assert_true(stream_read(&s, NULL, block, 1000) == 1000);
        assert_int_equal(n_drained, 0);
        assert_true(stream_hold(&s));
    }
    assert_true(stream_read(&s, NULL, block, 2000) == 2000);
    assert_int_equal(n_drained, 1); // told once
    assert_true(stream_release(&s));
    assert_false(stream_release(&s) || stream_hold(&s));
    stream_fini(&s);
}

static void test_a_sign_of_life_only_when_it_is_quiet(void **state) {
    UNUSED(state);
    Stream s;
    char out[16];
    stream_init(&s, count_drained, NULL);
    int64_t now = s.put_ns;
    stream_put_idle(&s, STR(":"), now + 5, 10);
    assert_int_equal(s.bytes.len, 0);
    stream_put_idle(&s, STR(":"), now + 10, 10);
    assert_int_equal(s.bytes.len, 1);
    stream_put_idle(&s, STR(":"), now + 50, 10); // the first was not read yet
    assert_int_equal(s.bytes.len, 1);
    assert_true(stream_read(&s, NULL, out, sizeof out) == 1);
    stream_put(&s, STR(""), true);
    stream_put_idle(&s, STR(":"), now + 1000, 10);
    assert_int_equal(s.bytes.len, 0);
    stream_fini(&s);
}

static void test_out_of_memory_ends_the_stream_as_an_error(void **state) {
    UNUSED(state);
    Stream s;
    char out[16];
    stream_init(&s, count_drained, NULL);
    mem_fail_after(0);
    bool is_good = stream_put(&s, STR("abc"), false);
    mem_fail_after(-1);
    assert_false(is_good);
    assert_true(s.is_done);
    assert_true(stream_read(&s, NULL, out, sizeof out) == -2);
    stream_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_out_once_in_order),
        cmocka_unit_test(test_a_writer_is_held_and_let_go),
        cmocka_unit_test(test_a_sign_of_life_only_when_it_is_quiet),
        cmocka_unit_test(test_out_of_memory_ends_the_stream_as_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
