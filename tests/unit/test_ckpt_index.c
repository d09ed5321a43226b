// SPDX-License-Identifier: Apache-2.0
/* test_ckpt_index.c - the weight_map: order, look-ups, names that lead elsewhere.
 *
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/ckpt_index.h"

#include "base/file.h"
#include "base/limits.h"
#include "unit.h"

static int32_t find(const CkptIndex *index, const char *name) {
    return ckpt_index_find(index, str_view(name, strlen(name)));
}

static void oracle_index(void **state) {
    UNUSED(state);
    Err err = {0};
    StrBuf text = {0};
    assert_int_equal(file_read_all(&text, "tests/data/oracle/tiny-a/model.safetensors.index.json",
                                   1 << 20, &err),
                     STATUS_OK);
    Arena arena = {0};
    CkptIndex index;
    assert_int_equal(ckpt_index_parse(&index, &arena, strbuf_view(&text), "i.json", &err),
                     STATUS_OK);
    assert_int_equal(index.n, 363);
    assert_int_equal(index.n_files, 2);
    assert_int_equal(index.total_size, 5404166);
    // The module whose three tensors lie in two shards.
    int32_t w = find(&index, "language_model.model.layers.4.linear_attn.in_proj_qkv.weight"),
            s = find(&index, "language_model.model.layers.4.linear_attn.in_proj_qkv.scales"),
            b = find(&index, "language_model.model.layers.4.linear_attn.in_proj_qkv.biases");
    assert_true(w >= 0 && s >= 0 && b >= 0 && !(w == s && s == b));
    assert_int_equal(find(&index, "language_model.model.layers.4"), -1);
    assert_int_equal(find(&index, ""), -1);
    arena_fini(&arena);
    strbuf_fini(&text);
}

/* Files and tensors in any order, files that come back. */
static void any_order(void **state) {
    UNUSED(state);
    Arena arena = {0};
    CkptIndex index;
    StrView text =
        STR("{\"weight_map\":{\"z\":\"b.safetensors\",\"a\":\"c.safetensors\","
            "\"m\":\"a.safetensors\",\"b\":\"b.safetensors\",\"aa\":\"c.safetensors\"}}");
    assert_int_equal(ckpt_index_parse(&index, &arena, text, "i.json", NULL), STATUS_OK);
    assert_int_equal(index.n, 5);
    assert_int_equal(index.n_files, 3);
    assert_int_equal(index.total_size, -1);
    assert_string_equal(index.files[0], "a.safetensors");
    assert_string_equal(index.files[2], "c.safetensors");
    assert_int_equal(find(&index, "z"), 1);
    assert_int_equal(find(&index, "a"), 2);
    assert_int_equal(find(&index, "m"), 0);
    assert_int_equal(find(&index, "aa"), 2);
    assert_int_equal(find(&index, "ab"), -1);
    arena_fini(&arena);
}

static void bad_indexes_are_named(void **state) {
    UNUSED(state);
    static const char *const CASES[][2] = {
        {"[]", "found a list"},
        {"{}", "weight_map: expected an object with tensors, found nothing"},
        {"{\"weight_map\":[]}", "found a list"},
        {"{\"weight_map\":{}}", "found an empty one"},
        {"{\"weight_map\":{\"t\":3}}", "weight_map: t: expected the name"},
        {"{\"weight_map\":{\"t\":null}}", "found null"},
        {"{\"weight_map\":{\"t\":\"\"}}", "weight_map: t"},
        {"{\"weight_map\":{\"t\":\"x.bin\"}}", "found x.bin"},
        {"{\"weight_map\":{\"t\":\"/etc/x.safetensors\"}}", "found /etc/x.safetensors"},
        {"{\"weight_map\":{\"t\":\"../x.safetensors\"}}", "found ../x.safetensors"},
        {"{\"weight_map\":{\"t\":\".safetensors\"}}", "found .safetensors"},
        {"{\"weight_map\":{\"t\":\"a\\u0000b.safetensors\"}}", "weight_map: t"},
        {"{\"weight_map\":{\"t\":\"x.safetensors\",\"t\":\"y.safetensors\"}}", "duplicate"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Arena arena = {0};
        CkptIndex index;
        Err err = {0};
        StrView text = str_view(CASES[i][0], strlen(CASES[i][0]));
        assert_int_equal(ckpt_index_parse(&index, &arena, text, "i.json", &err), STATUS_FORMAT);
        if (!strstr(err.text, CASES[i][1]) || !strstr(err.text, "i.json"))
            fail_msg("expected \"%s\" in: %s", CASES[i][1], err.text);
        arena_fini(&arena);
    }
}

static void more_files_than_the_cap(void **state) {
    UNUSED(state);
    StrBuf text = {0};
    strbuf_printf(&text, "{\"weight_map\":{");
    for (int i = 0; i <= LIMIT_SHARDS; i++)
        strbuf_printf(&text, "%s\"t%d\":\"%d.safetensors\"", i ? "," : "", i, i);
    strbuf_printf(&text, "}}");
    Arena arena = {0};
    CkptIndex index;
    Err err = {0};
    assert_int_equal(ckpt_index_parse(&index, &arena, strbuf_view(&text), "i.json", &err),
                     STATUS_TOO_LARGE);
    assert_non_null(strstr(err.text, "at most 4096 files, found 4097"));
    arena_fini(&arena);
    strbuf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_index),
        cmocka_unit_test(any_order),
        cmocka_unit_test(bad_indexes_are_named),
        cmocka_unit_test(more_files_than_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
