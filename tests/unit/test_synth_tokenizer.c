// SPDX-License-Identifier: Apache-2.0
/* test_synth_tokenizer.c - the tokenizer of a written random model is that of a model in memory:
 * every id, every flag, every encoding.
 *
 * Owns:     a folder under $TMPDIR or /tmp for the time of a test.  Thread: one. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/pool.h"
#include "checkpoint/synth_text.h"
#include "checkpoint/synth_write.h"
#include "checkpoint/weights.h"
#include "text/tokenizer.h"

#include "unit.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

static void remove_folder(const char *dir) {
    DIR *d = opendir(dir);
    if (!d)
        return;
    const struct dirent *entry;
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(d), entry->d_name, 0);
    closedir(d);
    rmdir(dir);
}

static void compare_texts(const Tokenizer *a, const Tokenizer *b) {
    const char *texts[] = {
        "",
        "Hello, world! It's 2 o'clock.\n\n\n  x\ty",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "na\xc3\xafve cafe\xcc\x81 \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x98\x80 \xc2\xa0\xc2\xad",
        " a b aa zz the quick brown fox",
        "<|audio_pad|><tts_text_bos_single><|endoftext|><tool_call>",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        TokenIds x = {0}, y = {0};
        StrBuf text = {0};
        Err err = {0};
        StrView in = str_view(texts[i], strlen(texts[i]));
        assert_int_equal(tokenizer_encode(a, &x, in, NULL, &err), STATUS_OK);
        assert_int_equal(tokenizer_encode(b, &y, in, NULL, &err), STATUS_OK);
        assert_int_equal(x.n, y.n);
        if (x.n)
            assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
        assert_int_equal(tokenizer_decode(a, &text, x.ids, x.n, false, &err), STATUS_OK);
        if (i != 3) // that one is normalised
            assert_true(str_equal(strbuf_view(&text), in));
        strbuf_fini(&text);
        token_ids_fini(&x);
        token_ids_fini(&y);
    }
}

static void make_folder(char *dir, size_t size) {
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, size, "%s/lily-synth-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

/* The folder's tokenizer against the one without files. */
static void compare_tokenizers(const char *dir, int32_t vocab, int32_t end_of_turn) {
    Tokenizer *a, *b;
    Err err = {0};
    int32_t n = synth_write_n_ids(vocab);
    if (tokenizer_open(&a, dir, vocab, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_open_bytes(&b, n, &err), STATUS_OK);
    assert_int_equal(tokenizer_n_ids(a), n);
    assert_int_equal(tokenizer_n_ids(b), n);
    for (int32_t id = 0; id < n; id++) {
        StrView x = tokenizer_id_bytes(a, id), y = tokenizer_id_bytes(b, id);
        assert_true(x.len > 0 && str_equal(x, y));
        assert_true(tokenizer_is_added(a, id) == tokenizer_is_added(b, id));
        assert_true(tokenizer_is_special(a, id) == tokenizer_is_special(b, id));
    }
    assert_int_equal(tokenizer_find_added(a, STR("<|im_end|>")), end_of_turn);
    assert_int_equal(tokenizer_find_added(a, STR("<|endoftext|>")), end_of_turn - 2);
    compare_texts(a, b);
    tokenizer_close(a);
    tokenizer_close(b);
}

/* A whole folder; the end ids of its config are those of the tokenizer. */
static void compare(const char *shape, int32_t end_of_turn) {
    char dir[256];
    Pool *pool;
    Weights *w;
    Err err = {0};
    make_folder(dir, sizeof dir);
    assert_int_equal(pool_open(&pool, 2, &err), STATUS_OK);
    if (synth_write(&(SynthWrite){.shape = shape, .dir = dir}, pool, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    pool_close(pool);
    assert_int_equal(weights_open(&w, dir, NULL, &err), STATUS_OK);
    assert_int_equal(weights_config(w)->eos[0], end_of_turn);
    assert_int_equal(weights_config(w)->eos[1], end_of_turn - 2);
    compare_tokenizers(dir, weights_config(w)->vocab, end_of_turn);
    weights_close(w);
    remove_folder(dir);
}

static void written_tokenizer_is_the_one_in_memory(void **state) {
    UNUSED(state);
    compare("mini", 4065);
    compare("small", 746);
    compare("micro", 269);
}

/* The full shape has the ids of the family. Its folder is 20 GB, so only one file is written. */
static void full_shape_has_the_ids_of_the_family(void **state) {
    UNUSED(state);
    char dir[256], path[300];
    Synth s;
    StrBuf text = {0};
    FileWriter *file;
    Err err = {0};
    make_folder(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(synth_parse(&s, STR("qwen3.6-35b-a3b"), &err), STATUS_OK);
    assert_int_equal(synth_text_tokenizer(&text, &s.config, &err), STATUS_OK);
    assert_int_equal(file_writer_open(&file, path, &err), STATUS_OK);
    assert_int_equal(file_writer_append(file, text.ptr, text.len, &err), STATUS_OK);
    assert_int_equal(file_writer_commit(file, &err), STATUS_OK);
    file_writer_close(file);
    strbuf_fini(&text);
    compare_tokenizers(dir, 248320, 248046);
    remove_folder(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_tokenizer_is_the_one_in_memory),
        cmocka_unit_test(full_shape_has_the_ids_of_the_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
