// SPDX-License-Identifier: Apache-2.0
/* test_base.c - status, checked arithmetic, strings, arenas, bfloat16, SHA-256, random numbers.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "base/arena.h"
#include "base/bf16.h"
#include "base/checked.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/str.h"
#include "base/sysmem.h"
#include "base/utf8.h"
#include "unit.h"

#include <errno.h>
#include <math.h>

static void test_err_text_is_one_clean_line(void **state) {
    UNUSED(state);
    Err err = {0};
    assert_int_equal(err_set(&err, STATUS_FORMAT, "a\nb\x1b[31m\xff%s", "\xc3\xa9"), STATUS_FORMAT);
    assert_string_equal(err.text, "a?b?[31m?\xc3\xa9");
    assert_int_equal(err_set(NULL, STATUS_IO, "x"), STATUS_IO);
}

static void test_err_text_is_cut_at_a_character(void **state) {
    UNUSED(state);
    for (int pad = 0; pad < 4; pad++) {
        char text[700] = "";
        size_t len = (size_t)pad;
        memset(text, 'a', len);
        while (len < 690) {
            memcpy(text + len, "\xe4\xb8\xad", 3);
            len += 3;
        }
        text[len] = 0;
        Err err = {0};
        assert_int_equal(err_set(&err, STATUS_IO, "%s", text), STATUS_IO);
        assert_true(strlen(err.text) < ERR_TEXT_SIZE);
        assert_true(strlen(err.text) >= ERR_TEXT_SIZE - 4);
        assert_true(utf8_is_valid(err.text, strlen(err.text), NULL));
        assert_null(strchr(err.text, '?'));
    }
}

static void test_err_prefix_and_errno(void **state) {
    UNUSED(state);
    Err err = {0};
    assert_int_equal(err_errno(&err, ENOENT, "open", "/x"), STATUS_NOT_FOUND);
    err_prefix(&err, "loading %d", 3);
    assert_string_equal(err.text, "loading 3: cannot open /x: No such file or directory");
    assert_int_equal(err_errno(&err, ENOSPC, "write", "/x"), STATUS_IO);
    assert_int_equal(err_errno(&err, EACCES, "open", "/x"), STATUS_DENIED);
}

static void test_every_status_has_a_name_and_http_code(void **state) {
    UNUSED(state);
    for (int s = 0; s < STATUS_N; s++) {
        assert_true(strlen(status_name((Status)s)) > 1);
        assert_true(status_http((Status)s) >= 200 && status_http((Status)s) < 600);
    }
    assert_string_equal(status_name(STATUS_N), "unknown");
}

static void test_checked_arithmetic(void **state) {
    UNUSED(state);
    uint64_t u;
    assert_false(checked_mul_u64(1ull << 42, 1ull << 22, &u));
    assert_true(checked_mul_u64(1ull << 42, (1ull << 22) - 1, &u));
    assert_false(checked_add_u64(UINT64_MAX, 1, &u));
    size_t s;
    assert_false(checked_add_size(SIZE_MAX, 1, &s));
    assert_int_equal(round_up_size(65, 64), 128);
    assert_int_equal(div_up_i32(65, 64), 2);
}

static void test_utf8_table(void **state) {
    UNUSED(state);
    static const struct {
        const char *s;
        size_t len;
        int n;
        uint32_t c;
    } rows[] = {
        {"", 0, 0, 0},
        {"a", 1, 1, 'a'},
        {"\0", 1, 1, 0},
        {"\xc3\xa9", 2, 2, 0xe9},
        {"\xc3", 1, 0, 0},
        {"\xc0\x80", 2, -1, 0},
        {"\xc1\xbf", 2, -1, 0},
        {"\xe0\x80\x80", 3, -1, 0},
        {"\xe0\xa0\x80", 3, 3, 0x800},
        {"\xed\xa0\x80", 3, -1, 0},
        {"\xed\x9f\xbf", 3, 3, 0xd7ff},
        {"\xf0\x8f\xbf\xbf", 4, -1, 0},
        {"\xf0\x90\x80\x80", 4, 4, 0x10000},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff},
        {"\xf4\x90\x80\x80", 4, -1, 0},
        {"\xf5", 1, -1, 0},
        {"\x80", 1, -1, 0},
        {"\xe4\xb8", 2, 0, 0},
        {"\xe4\xb8"
         "a",
         3, -2, 0},
        {"\xf0\x9f\x98", 3, 0, 0},
        {"\xf0\x9f\x98"
         "a",
         4, -3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t c = 0;
        assert_int_equal(utf8_decode(rows[i].s, rows[i].len, &c), rows[i].n);
        assert_int_equal(c, rows[i].c);
    }
}

static void test_utf8_round_trip_of_every_scalar(void **state) {
    UNUSED(state);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        char out[UTF8_MAX];
        uint32_t back = 1;
        int n = utf8_encode(c, out);
        if (utf8_decode(out, (size_t)n, &back) != n || back != c)
            fail_msg("U+%04X", c);
    }
}

static void test_strings(void **state) {
    UNUSED(state);
    assert_int_equal(str_find(STR("banana"), STR("ana")), 1);
    assert_int_equal(str_find_last(STR("banana"), STR("ana")), 3);
    assert_int_equal(str_find(STR("banana"), STR("x")), SIZE_MAX);
    assert_int_equal(str_find(STR("a"), STR("ab")), SIZE_MAX);
    assert_true(str_starts(STR("abc"), STR("ab")));
    assert_true(str_ends(STR("abc"), STR("bc")));
    assert_true(str_equal(STR(""), (StrView){NULL, 0}));
    StrBuf b = {0};
    strbuf_append(&b, "a\0b", 3);
    strbuf_printf(&b, "%d%s", 12, "xyz");
    assert_int_equal(b.len, 8);
    assert_memory_equal(b.ptr, "a\0b12xyz", 9);
    strbuf_fini(&b);
}

static void test_strbuf_keeps_a_failure(void **state) {
    UNUSED(state);
    StrBuf b = {0};
    strbuf_append_char(&b, 'a');
    mem_fail_after(0);
    char big[4096] = {0};
    strbuf_append(&b, big, sizeof big);
    strbuf_append_char(&b, 'b');
    mem_fail_after(-1);
    Err err = {0};
    assert_int_equal(strbuf_check(&b, &err), STATUS_MEMORY);
    assert_int_equal(b.len, 1);
    strbuf_fini(&b);
}

static void test_arena(void **state) {
    UNUSED(state);
    Arena a = {0};
    char *last = NULL;
    for (size_t i = 0; i < 300; i++) {
        char *p = arena_alloc(&a, i * 37);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_ptr_not_equal(p, last);
        for (size_t j = 0; j < i * 37; j++)
            assert_int_equal(p[j], 0);
        memset(p, 0xff, i * 37);
        last = p;
    }
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    assert_string_equal(arena_strdup(&a, "abc", 2), "ab");
    arena_fini(&a);
}

static void test_bf16_rounds_to_nearest_even(void **state) {
    UNUSED(state);
    assert_int_equal(bf16_from_f32(1.0f), 0x3f80);
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808000)), 0x3f80); // half way, even below
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f818000)), 0x3f82); // half way, even above
    assert_int_equal(bf16_from_f32(f32_from_bits(0x3f808001)), 0x3f81);
    assert_int_equal(bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(bf16_from_f32(f32_from_bits(0x7f7fffff)), 0x7f80);
    assert_true(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7f800001)))));
    for (uint32_t h = 0; h < 0x10000; h++)
        if (!isnan(bf16_to_f32((uint16_t)h)))
            assert_int_equal(bf16_from_f32(bf16_to_f32((uint16_t)h)), h);
}

static void test_f16_values(void **state) {
    UNUSED(state);
    assert_true(f16_to_f32(0x3c00) == 1.0f);
    assert_true(f16_to_f32(0xc000) == -2.0f);
    assert_true(f16_to_f32(0x0001) == 0x1p-24f);
    assert_true(f16_to_f32(0x7bff) == 65504.0f);
    assert_true(isinf(f16_to_f32(0xfc00)));
    assert_true(isnan(f16_to_f32(0x7e00)));
}

static void test_sha256_vectors(void **state) {
    UNUSED(state);
    char text[SHA256_TEXT_SIZE];
    sha256_text("abc", 3, text); // FIPS 180-2, appendix B.1
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_text("", 0, text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void test_rng_is_uniform_and_keyed(void **state) {
    UNUSED(state);
    enum { N = 100000, BINS = 64 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++)
        bins[(int)(rng_unit_f64(7, i) * BINS)]++;
    double chi = 0, mean = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (bins[i] - mean) * (bins[i] - mean) / mean;
    assert_true(chi < 120); // 63 degrees of freedom: mean 63, deviation 11
    assert_true(rng_u64(1, 5) != rng_u64(2, 5));
    assert_true(rng_u64(1, 5) != rng_u64(1, 6));
    assert_true(rng_u64(1, 5) == rng_u64(1, 5));
}

static void test_json_errors_name_the_place(void **state) {
    UNUSED(state);
    Err err = {0};
    json_t *v = NULL;
    assert_int_equal(json_read(&v, STR("{\"a\":1,\"a\":2}"), "x.json", &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "x.json"));
    StrBuf deep = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_append_char(&deep, '[');
    assert_int_equal(json_read(&v, strbuf_view(&deep), "deep", &err), STATUS_FORMAT);
    strbuf_fini(&deep);
    assert_int_equal(
        json_read(&v, STR("{\"n\":3,\"r\":2.5,\"s\":\"a\\u0000b\",\"big\":99}"), "y", &err),
        STATUS_OK);
    int64_t n = 0, fallback = 4;
    double r = 0;
    assert_int_equal(json_get_int(&n, v, "n", 0, 10, NULL, "y", &err), STATUS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(json_get_int(&n, v, "none", 0, 10, &fallback, "y", &err), STATUS_OK);
    assert_int_equal(n, 4);
    assert_int_equal(json_get_int(&n, v, "big", 0, 10, NULL, "y", &err), STATUS_FORMAT);
    assert_string_equal(err.text, "y: big: expected 0 to 10, found 99");
    assert_int_equal(json_get_int(&n, v, "r", 0, 10, NULL, "y", &err), STATUS_FORMAT);
    assert_string_equal(err.text, "y: r: expected an integer, found a real number");
    assert_int_equal(json_get_real(&r, v, "n", NULL, "y", &err), STATUS_OK);
    assert_int_equal(json_text(json_object_get(v, "s")).len, 3);
    json_decref(v);
}

static void log_keep(void *ctx, LogLevel level, const char *line) {
    UNUSED(level);
    snprintf(ctx, 32, "%s", line);
}

static void test_log_and_sysmem(void **state) {
    UNUSED(state);
    char line[32] = "";
    Log log = {log_keep, line};
    log_printf(&log, LOG_INFO, "n=%d", 5);
    assert_string_equal(line, "n=5");
    log_printf(NULL, LOG_INFO, "nobody hears");
    assert_true(sysmem_total() > 64 << 20);
    assert_true(sysmem_available() <= sysmem_total());
    assert_true(sysmem_peak() > 1 << 20);
#ifdef __linux__
    uint64_t before = sysmem_resident();
    char *pages = mem_zalloc(32 << 20, 1);
    assert_non_null(pages);
    memset(pages, 1, 32 << 20);
    assert_true(sysmem_resident() >= before + (30 << 20));
    assert_true(sysmem_peak() >= before + (30 << 20));
    mem_free(pages);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_text_is_one_clean_line),
        cmocka_unit_test(test_err_text_is_cut_at_a_character),
        cmocka_unit_test(test_err_prefix_and_errno),
        cmocka_unit_test(test_every_status_has_a_name_and_http_code),
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_utf8_table),
        cmocka_unit_test(test_utf8_round_trip_of_every_scalar),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_strbuf_keeps_a_failure),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_f16_values),
        cmocka_unit_test(test_sha256_vectors),
        cmocka_unit_test(test_rng_is_uniform_and_keyed),
        cmocka_unit_test(test_json_errors_name_the_place),
        cmocka_unit_test(test_log_and_sysmem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
