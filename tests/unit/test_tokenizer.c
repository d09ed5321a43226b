// SPDX-License-Identifier: Apache-2.0
/* test_tokenizer.c - the family's whole tokenizer against recorded ids; opening, trust, failure.
 *
 * Path:     make unit.  Needs build/data (tools/unpack_tokenizer.py).
 * Owns:     the family's tokenizer from both forms of its files.  Thread: one, and four that read.
 */
#define _GNU_SOURCE // mkdtemp
#include "text/tokenizer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include "token_files.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FAMILY_ROWS = 248320, FAMILY_IDS = 248077 };

static Tokenizer *family; // from tokenizer.json
static Tokenizer *paired; // from vocab.json and merges.txt

static int set_up(void **state) {
    UNUSED(state);
    Err err = {0};
    if (tokenizer_open(&family, "build/data/qwen36", FAMILY_ROWS, NULL, &err) == STATUS_OK &&
        tokenizer_open(&paired, "build/data/qwen36-pair", FAMILY_ROWS, NULL, &err) == STATUS_OK)
        return 0;
    print_error("%s\n(python3 tools/unpack_tokenizer.py makes build/data)\n", err.text);
    return 1;
}

static int tear_down(void **state) {
    UNUSED(state);
    tokenizer_close(family);
    tokenizer_close(paired);
    return 0;
}

static void print_ids(const char *what, const int32_t *ids, size_t n) {
    print_error("%s:", what);
    for (size_t i = 0; i < n; i++)
        print_error(" %d", ids[i]);
    print_error("\n");
}

static void expect_ids(const char *name, const Tokenizer *t, StrView text, const uint8_t *trusted,
                       const json_t *expected) {
    TokenIds ids = {0};
    Err err = {0};
    if (tokenizer_encode(t, &ids, text, trusted, &err) != STATUS_OK)
        fail_msg("%s: %s", name, err.text);
    bool is_same = ids.n == json_array_size(expected);
    for (size_t i = 0; i < ids.n && is_same; i++)
        is_same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    if (!is_same) {
        print_ids(name, ids.ids, ids.n);
        char *dump = json_dumps(expected, JSON_COMPACT);
        fail_msg("expected %s", dump);
    }
    token_ids_fini(&ids);
}

static json_t *read_vectors(const char *path) {
    json_t *root = NULL;
    Err err = {0};
    if (json_read_file(&root, path, LIMIT_CONFIG_BYTES, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return root;
}

/* Every text of a vector file through both tokenizers. Texts that came without control tokens are
 * marked with an encoding mode. */
static void run_text_vectors(const char *path, size_t n) {
    json_t *root = read_vectors(path), *item;
    size_t i;
    const json_t *list = json_object_get(root, "text_vectors");
    assert_int_equal(json_array_size(list), n);
    json_array_foreach(list, i, item) {
        StrView text = json_text(json_object_get(item, "text"));
        uint8_t *untrusted = mem_zalloc(text.len / 8 + 1, 1);
        bool is_plain = json_object_get(item, "encoding_mode") != NULL;
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *expected = json_object_get(item, "token_ids");
        expect_ids(name, family, text, is_plain ? untrusted : NULL, expected);
        expect_ids(name, paired, text, is_plain ? untrusted : NULL, expected);
        mem_free(untrusted);
    }
    json_decref(root);
}

static void test_recorded_texts(void **state) {
    UNUSED(state);
    run_text_vectors("tests/data/qwen36/test_vectors_hebrus.json", 14);
}

static void test_generated_texts(void **state) {
    UNUSED(state);
    run_text_vectors("tests/data/qwen36/test_vectors_generated.json", 82);
}

/* Rendered conversations, as the reference encodes them: control tokens count everywhere. */
static void test_rendered_chats(void **state) {
    UNUSED(state);
    static const char *const PATHS[] = {"tests/data/qwen36/test_vectors_hebrus.json",
                                        "tests/data/qwen36/test_vectors_generated.json"};
    size_t n = 0;
    for (size_t k = 0; k < COUNT_OF(PATHS); k++) {
        json_t *root = read_vectors(PATHS[k]), *item;
        size_t i;
        json_array_foreach(json_object_get(root, "chat_vectors"), i, item) {
            const json_t *expected = json_object_get(item, "token_ids");
            const json_t *text = json_object_get(item, "rendered");
            if (!text || !expected)
                continue;
            expect_ids(json_string_value(json_object_get(item, "name")), family, json_text(text),
                       NULL, expected);
            n++;
        }
        json_decref(root);
    }
    assert_true(n >= 16);
}

static void test_prompts_of_the_goldens(void **state) {
    UNUSED(state);
    static const char *const NAMES[] = {"chat", "long", "raw"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/data/goldens/golden_35b_%s.json", NAMES[i]);
        json_t *root = read_vectors(path);
        StrView prompt = json_text(json_object_get(root, "prompt"));
        StrBuf text = {0};
        bool is_chat = json_is_true(json_object_get(root, "chat_template"));
        if (is_chat)
            strbuf_printf(&text, "<|im_start|>user\n");
        strbuf_append_view(&text, prompt);
        if (is_chat)
            strbuf_printf(&text, "<|im_end|>\n<|im_start|>assistant\n<think>\n");
        expect_ids(NAMES[i], family, strbuf_view(&text), NULL,
                   json_object_get(root, "prompt_token_ids"));
        strbuf_fini(&text);
        json_decref(root);
    }
}

static void test_decode_vectors(void **state) {
    UNUSED(state);
    json_t *root = read_vectors("tests/data/qwen36/test_vectors_generated.json"), *item;
    size_t i, k;
    const json_t *list = json_object_get(root, "decode_vectors");
    assert_int_equal(json_array_size(list), 7);
    json_array_foreach(list, i, item) {
        TokenIds ids = {0};
        StrBuf text = {0}, hex[2] = {0};
        json_t *id;
        json_array_foreach(json_object_get(item, "token_ids"), k, id) {
            int32_t x = (int32_t)json_integer_value(id);
            StrView bytes = tokenizer_id_bytes(family, x);
            assert_int_equal(token_ids_append(&ids, x, NULL), STATUS_OK);
            for (int skip = 0; skip < 2; skip++)
                for (size_t b = 0; b < bytes.len && !(skip && tokenizer_is_special(family, x)); b++)
                    strbuf_printf(&hex[skip], "%02x", (unsigned char)bytes.ptr[b]);
        }
        assert_string_equal(hex[0].ptr, json_string_value(json_object_get(item, "bytes_hex")));
        assert_string_equal(hex[1].ptr,
                            json_string_value(json_object_get(item, "bytes_hex_skip_special")));
        assert_int_equal(tokenizer_decode(family, &text, ids.ids, ids.n, false, NULL), STATUS_OK);
        const json_t *expected = json_object_get(item, "text");
        if (expected && !str_equal(strbuf_view(&text), json_text(expected)))
            fail_msg("%s", json_string_value(json_object_get(item, "name")));
        token_ids_fini(&ids);
        strbuf_fini(&text);
        strbuf_fini(&hex[0]);
        strbuf_fini(&hex[1]);
    }
    json_decref(root);
}

static void test_sizes_and_kinds(void **state) {
    UNUSED(state);
    const Tokenizer *both[] = {family, paired};
    for (size_t i = 0; i < 2; i++) {
        const Tokenizer *t = both[i];
        assert_int_equal(tokenizer_n_ids(t), FAMILY_IDS);
        assert_int_equal(tokenizer_n_rows(t), FAMILY_ROWS);
        assert_int_equal(tokenizer_find_added(t, STR("<|im_end|>")), 248046);
        assert_int_equal(tokenizer_find_added(t, STR("<think>")), 248068);
        assert_int_equal(tokenizer_find_added(t, STR("<|audio_pad|>")), 248076);
        assert_int_equal(tokenizer_find_added(t, STR("the")), -1);
        assert_true(tokenizer_is_special(t, 248046));
        assert_true(tokenizer_is_added(t, 248068));
        assert_false(tokenizer_is_special(t, 248068));
        assert_false(tokenizer_is_added(t, 248043));
        assert_false(tokenizer_is_added(t, FAMILY_IDS));
        assert_false(tokenizer_is_added(t, -1));
        assert_false(tokenizer_is_special(t, INT32_MAX));
        assert_int_equal(tokenizer_id_bytes(t, FAMILY_IDS).len, 0);
        assert_int_equal(tokenizer_id_bytes(t, FAMILY_ROWS).len, 0);
        assert_int_equal(tokenizer_id_bytes(t, -1).len, 0);
    }
    for (int32_t id = 0; id < FAMILY_IDS; id++)
        if (!str_equal(tokenizer_id_bytes(family, id), tokenizer_id_bytes(paired, id)))
            fail_msg("id %d differs", id);
}

/* Each token's text gives the token back, but for parts of characters, the 201 that no merge makes
 * and 2 that the merge rules cut another way; counted with the reference. */
static void test_every_token_encodes_to_itself(void **state) {
    UNUSED(state);
    size_t n_other = 0;
    TokenIds ids = {0};
    for (int32_t id = 0; id < FAMILY_IDS; id++) {
        StrView bytes = tokenizer_id_bytes(family, id);
        if (!utf8_is_valid(bytes.ptr, bytes.len, NULL))
            continue;
        ids.n = 0;
        assert_int_equal(tokenizer_encode(family, &ids, bytes, NULL, NULL), STATUS_OK);
        n_other += ids.n != 1 || ids.ids[0] != id;
    }
    assert_int_equal(n_other, 203);
    token_ids_fini(&ids);
}

static void append_random(StrBuf *text, uint64_t key, size_t n) {
    static const char *const POOL[] = {"a",
                                       "the",
                                       " of",
                                       "\n",
                                       " ",
                                       "  ",
                                       "=",
                                       "{",
                                       "0",
                                       "'s",
                                       "\xe4\xb8\xad",
                                       "\xe6\x96\x87",
                                       "\xf0\x9f\x98\x80",
                                       "\xe2\x80\x8d",
                                       "e\xcc\x81",
                                       "\xc3\xa9",
                                       "\xcc\xa3",
                                       "\xe0\xa4\x95",
                                       "\xe0\xa5\x8d",
                                       "<|im_end|>",
                                       "<think>",
                                       "<",
                                       "|>",
                                       "\t",
                                       "\r\n",
                                       "Z",
                                       "_",
                                       "\xe1\x84\x80",
                                       "\xe1\x85\xa1",
                                       "\xe2\x84\xab",
                                       "\xd8\xa7",
                                       "%",
                                       "int",
                                       "return",
                                       "\xe3\x81\x82",
                                       "\xed\x95\x9c",
                                       "\xf3\xa0\x84\x80"};
    for (size_t i = 0; i < n; i++) {
        const char *s = POOL[rng_u64(key, i) % COUNT_OF(POOL)];
        strbuf_append(text, s, strlen(s));
    }
}

/* decode(encode(x)) = NFC(x) where control tokens do not part the text; with all of it data, that
 * is every text. */
static void test_round_trip_gives_nfc(void **state) {
    UNUSED(state);
    uint64_t seed = (uint64_t)clock_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 3000; round++) {
        StrBuf text = {0}, normal = {0}, back = {0};
        TokenIds ids = {0};
        append_random(&text, seed + round, 1 + round % 60);
        assert_int_equal(normalize_append_nfc(&normal, strbuf_view(&text), NULL), STATUS_OK);
        assert_int_equal(tokenizer_encode_plain(family, &ids, strbuf_view(&text), NULL), STATUS_OK);
        for (size_t i = 0; i < ids.n; i++)
            assert_false(tokenizer_is_added(family, ids.ids[i]));
        assert_int_equal(tokenizer_decode(family, &back, ids.ids, ids.n, false, NULL), STATUS_OK);
        if (!str_equal(strbuf_view(&back), strbuf_view(&normal)))
            fail_msg("round %llu", (unsigned long long)round);
        // An all-zero map is the same as no added tokens.
        uint8_t *map = mem_zalloc(text.len / 8 + 1, 1);
        TokenIds again = {0};
        assert_int_equal(tokenizer_encode(family, &again, strbuf_view(&text), map, NULL),
                         STATUS_OK);
        assert_int_equal(again.n, ids.n);
        assert_memory_equal(again.ids, ids.ids, ids.n * sizeof *ids.ids);
        mem_free(map);
        token_ids_fini(&ids);
        token_ids_fini(&again);
        strbuf_fini(&text);
        strbuf_fini(&normal);
        strbuf_fini(&back);
    }
}

/* Trust decides about added tokens and about nothing else: the piece that spans the border between
 * trusted and untrusted bytes is not cut there. */
static void test_trust_cuts_nothing_else(void **state) {
    UNUSED(state);
    StrView text = STR("<tool_call>there</tool_call>");
    uint8_t trusted[4];
    memset(trusted, 0xff, sizeof trusted);
    trusted[11 / 8] &= (uint8_t) ~(1u << 11 % 8); // the t is data, the rest is not
    TokenIds all = {0}, some = {0};
    assert_int_equal(tokenizer_encode(family, &all, text, NULL, NULL), STATUS_OK);
    assert_int_equal(tokenizer_encode(family, &some, text, trusted, NULL), STATUS_OK);
    assert_int_equal(all.n, 3);
    assert_int_equal(some.n, 3);
    assert_memory_equal(all.ids, some.ids, 3 * sizeof *all.ids);
    trusted[0] &= 0xfe; // the first byte of <tool_call> is data: it is text now
    some.n = 0;
    assert_int_equal(tokenizer_encode(family, &some, text, trusted, NULL), STATUS_OK);
    assert_true(some.n > 3);
    assert_int_not_equal(some.ids[0], 248058);
    assert_int_equal(some.ids[some.n - 1], 248059);
    token_ids_fini(&all);
    token_ids_fini(&some);
}

static void test_invalid_utf8_is_refused_with_its_offset(void **state) {
    UNUSED(state);
    static const struct {
        StrView text;
        const char *expected;
    } ROWS[] = {
        {{"ab\xff", 3}, "found byte 0xFF at offset 2"},
        {{"\xc3", 1}, "found byte 0xC3 at offset 0"},
        {{"caf\xc3\xa9\xe4\xb8", 7}, "found byte 0xE4 at offset 5"},
        {{"\xed\xa0\x80", 3}, "found byte 0xED at offset 0"},
        {{"a\0\x80", 3}, "found byte 0x80 at offset 2"},
    };
    TokenIds ids = {0};
    assert_int_equal(token_ids_append(&ids, 7, NULL), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        Err err = {0};
        assert_int_equal(tokenizer_encode(family, &ids, ROWS[i].text, NULL, &err), STATUS_INVALID);
        if (!strstr(err.text, ROWS[i].expected))
            fail_msg("%s", err.text);
        assert_int_equal(ids.n, 1);
    }
    token_ids_fini(&ids);
}

static void test_empty_text_gives_nothing(void **state) {
    UNUSED(state);
    TokenIds ids = {0};
    assert_int_equal(tokenizer_encode(family, &ids, (StrView){0}, NULL, NULL), STATUS_OK);
    assert_int_equal(tokenizer_encode(family, &ids, STR(""), NULL, NULL), STATUS_OK);
    assert_int_equal(ids.n, 0);
    token_ids_fini(&ids);
}

/* A megabyte of one thing: the ids are right in number and give the text back. */
static void test_a_megabyte_of_one_thing(void **state) {
    UNUSED(state);
    static const char *const UNITS[] = {"a",
                                        " ",
                                        "=",
                                        "\n",
                                        "\xf0\x9f\x98\x80",
                                        "\xe5\x93\x88",
                                        "\xcc\x81",
                                        "ab",
                                        "<",
                                        "e\xcc\x81",
                                        "\xf0\x9f\x91\xa9\xe2\x80\x8d"};
    for (size_t k = 0; k < COUNT_OF(UNITS); k++) {
        StrBuf text = {0}, normal = {0}, back = {0};
        TokenIds ids = {0};
        while (text.len < (k < 5 ? 1u << 20 : 1u << 18))
            strbuf_append(&text, UNITS[k], strlen(UNITS[k]));
        assert_int_equal(normalize_append_nfc(&normal, strbuf_view(&text), NULL), STATUS_OK);
        assert_int_equal(tokenizer_encode(family, &ids, strbuf_view(&text), NULL, NULL), STATUS_OK);
        assert_int_equal(tokenizer_decode(family, &back, ids.ids, ids.n, false, NULL), STATUS_OK);
        assert_true(str_equal(strbuf_view(&back), strbuf_view(&normal)));
        token_ids_fini(&ids);
        strbuf_fini(&text);
        strbuf_fini(&normal);
        strbuf_fini(&back);
    }
}

/* Texts of one seed, encoded by four threads at once and before that by one. */
typedef struct Reader {
    uint64_t seed;
    uint64_t digest;
} Reader;

static void *read_all(void *arg) {
    Reader *r = arg;
    TokenIds ids = {0};
    r->digest = 0;
    for (uint64_t i = 0; i < 200; i++) {
        StrBuf text = {0};
        append_random(&text, r->seed + i, 100);
        ids.n = 0;
        if (tokenizer_encode(family, &ids, strbuf_view(&text), NULL, NULL) != STATUS_OK)
            r->digest = 1;
        for (size_t k = 0; k < ids.n; k++)
            r->digest = rng_mix(r->digest ^ (uint64_t)ids.ids[k]);
        strbuf_fini(&text);
    }
    token_ids_fini(&ids);
    return NULL;
}

static void test_threads_share_a_tokenizer(void **state) {
    UNUSED(state);
    Reader alone[4], together[4];
    pthread_t threads[4];
    for (uint64_t i = 0; i < 4; i++) {
        alone[i].seed = together[i].seed = 1000 * i;
        read_all(&alone[i]);
    }
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, &together[i]), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(alone[i].digest == together[i].digest && alone[i].digest > 1);
    }
}

static void test_built_in_tokenizer(void **state) {
    UNUSED(state);
    static const int32_t SIZES[] = {289, 512, 4096, FAMILY_ROWS};
    for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
        Tokenizer *t;
        TokenIds ids = {0};
        StrBuf back = {0};
        assert_int_equal(tokenizer_open_bytes(&t, SIZES[i], NULL), STATUS_OK);
        assert_int_equal(tokenizer_n_ids(t), SIZES[i]);
        assert_int_equal(tokenizer_find_added(t, STR("<|endoftext|>")), SIZES[i] - 33);
        assert_int_equal(tokenizer_find_added(t, STR("<|audio_pad|>")), SIZES[i] - 1);
        assert_true(tokenizer_is_special(t, SIZES[i] - 33));
        assert_false(tokenizer_is_special(t, tokenizer_find_added(t, STR("</think>"))));
        StrView text = STR("The <think> ab\xc3\xa9");
        assert_int_equal(tokenizer_encode(t, &ids, text, NULL, NULL), STATUS_OK);
        assert_int_equal(ids.n, 4 + 1 + 5);
        assert_int_equal(ids.ids[4], tokenizer_find_added(t, STR("<think>")));
        for (size_t k = 0; k < ids.n; k++)
            assert_true(k == 4 || ids.ids[k] < 256);
        assert_int_equal(tokenizer_decode(t, &back, ids.ids, ids.n, false, NULL), STATUS_OK);
        assert_true(str_equal(strbuf_view(&back), text));
        if (SIZES[i] >= 4096) {
            assert_true(str_equal(tokenizer_id_bytes(t, 256), STR(" a")));
            assert_true(str_equal(tokenizer_id_bytes(t, 256 + 26), STR(" aa")));
            assert_true(str_equal(tokenizer_id_bytes(t, 256 + 26 + 26 * 26), STR(" aaa")));
        }
        token_ids_fini(&ids);
        strbuf_fini(&back);
        tokenizer_close(t);
    }
    Tokenizer *t = NULL;
    Err err = {0};
    assert_int_equal(tokenizer_open_bytes(&t, 288, &err), STATUS_INVALID);
    assert_string_equal(err.text, "built-in tokenizer: expected 289 to 4194304 rows, found 288");
    assert_int_equal(tokenizer_open_bytes(&t, LIMIT_VOCAB + 1, &err), STATUS_INVALID);
    assert_null(t);
    tokenizer_close(NULL);
}

/* The built-in list of added tokens is the published one. */
static void test_built_in_tokens_are_the_published_ones(void **state) {
    UNUSED(state);
    json_t *root = read_vectors("tests/data/qwen36/special_tokens.json"), *item;
    const json_t *list = json_object_get(root, "added_tokens");
    Tokenizer *t;
    size_t i;
    assert_int_equal(tokenizer_open_bytes(&t, 289, NULL), STATUS_OK);
    assert_int_equal(json_array_size(list), 33);
    json_array_foreach(list, i, item) {
        int32_t id = 256 + (int32_t)i;
        StrView text = json_text(json_object_get(item, "content"));
        assert_true(str_equal(tokenizer_id_bytes(t, id), text));
        assert_int_equal(tokenizer_is_special(t, id),
                         json_is_true(json_object_get(item, "special")));
        assert_int_equal(tokenizer_find_added(family, text),
                         json_integer_value(json_object_get(item, "id")));
    }
    tokenizer_close(t);
    json_decref(root);
}

static void write_file(const char *dir, const char *name, StrView text) {
    char *path = file_join(dir, name);
    FileWriter *w;
    assert_int_equal(file_writer_open(&w, path, NULL), STATUS_OK);
    assert_int_equal(file_writer_append(w, text.ptr, text.len, NULL), STATUS_OK);
    assert_int_equal(file_writer_commit(w, NULL), STATUS_OK);
    file_writer_close(w);
    mem_free(path);
}

static void remove_file(const char *dir, const char *name) {
    char *path = file_join(dir, name);
    unlink(path);
    mem_free(path);
}

static void test_folders(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-tokenizer-XXXXXX";
    assert_non_null(mkdtemp(dir));
    Tokenizer *t = NULL;
    Err err = {0};
    StrBuf json = {0}, vocab = {0};
    token_files_json(&json);
    token_files_vocab(&vocab);
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "expected tokenizer.json, or vocab.json and merges.txt"));
    write_file(dir, "vocab.json", strbuf_view(&vocab));
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "merges.txt"));
    write_file(dir, "merges.txt", STR(TOKEN_FILES_MERGES));
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "vocab.json: no added token <|im_start|>"));
    write_file(dir, "tokenizer.json", strbuf_view(&json));
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err), STATUS_OK);
    assert_int_equal(tokenizer_n_ids(t), 265);
    TokenIds ids = {0};
    assert_int_equal(tokenizer_encode(t, &ids, STR("the xyz<think>aaaaa"), NULL, NULL), STATUS_OK);
    const int32_t expected[] = {257, 220, 'x' - '!', 'y' - '!', 'z' - '!', 264, 260, 'a' - '!'};
    assert_int_equal(ids.n, COUNT_OF(expected));
    assert_memory_equal(ids.ids, expected, sizeof expected);
    token_ids_fini(&ids);
    tokenizer_close(t);
    t = NULL;
    assert_int_equal(tokenizer_open(&t, dir, 265, NULL, &err), STATUS_OK); // just enough rows
    tokenizer_close(t);
    t = NULL;
    assert_int_equal(tokenizer_open(&t, dir, 264, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "<think>: expected an id from 0 to 263, found 264"));
    assert_int_equal(tokenizer_open(&t, dir, 0, NULL, &err), STATUS_INVALID);
    assert_int_equal(tokenizer_open(&t, dir, LIMIT_VOCAB + 1, NULL, &err), STATUS_INVALID);
    write_file(dir, "tokenizer.json", STR("")); // an empty file is not a missing one
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "tokenizer.json: not valid JSON"));
    assert_null(t);
    static const char *const NAMES[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        remove_file(dir, NAMES[i]);
    rmdir(dir);
    strbuf_fini(&json);
    strbuf_fini(&vocab);
}

/* Each read of an open fails once, and each allocation; of those inside the JSON parser, which are
 * many and alike, every 13th. */
static void expect_open_fails(const char *dir, Status expected) {
    Tokenizer *t = NULL;
    Err err = {0};
    Status status = tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, &err);
    mem_fail_after(-1);
    file_fail_after(-1);
    if (status != expected)
        fail_msg("status %d \"%s\", expected %d", status, err.text, expected);
    assert_null(t);
}

static void test_every_step_of_an_open_may_fail(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-tokenizer-XXXXXX";
    assert_non_null(mkdtemp(dir));
    StrBuf json = {0};
    token_files_json(&json);
    write_file(dir, "tokenizer.json", strbuf_view(&json));
    for (int64_t after = 0; after < 3; after++) { // open; read; the end of the file
        file_fail_after(after);
        expect_open_fails(dir, STATUS_IO);
    }
    Tokenizer *t;
    int64_t n = mem_count();
    assert_int_equal(tokenizer_open(&t, dir, TOKEN_FILES_ROWS, NULL, NULL), STATUS_OK);
    n = mem_count() - n;
    tokenizer_close(t);
    assert_true(n > 200);
    for (int64_t after = 0; after<n; after += after> 50 && after < n - 100 ? 13 : 1) {
        mem_fail_after(after);
        expect_open_fails(dir, STATUS_MEMORY);
    }
    for (int64_t after = 0;; after++) {
        t = NULL;
        mem_fail_after(after);
        Status status = tokenizer_open_bytes(&t, 400, NULL);
        mem_fail_after(-1);
        tokenizer_close(t);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(t);
    }
    remove_file(dir, "tokenizer.json");
    rmdir(dir);
    strbuf_fini(&json);
}

static void test_every_allocation_of_an_encode_may_fail(void **state) {
    UNUSED(state);
    StrBuf text = {0};
    append_random(&text, 5, 200);
    for (int i = 0; i < 500; i++)
        strbuf_append(&text, "zq", 2);
    for (int64_t after = 0;; after++) {
        TokenIds ids = {0};
        mem_fail_after(after);
        Status status = tokenizer_encode(family, &ids, strbuf_view(&text), NULL, NULL);
        mem_fail_after(-1);
        assert_true(after < 1000);
        if (status == STATUS_OK) {
            assert_true(after > 3);
            token_ids_fini(&ids);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(ids.n, 0);
        token_ids_fini(&ids);
    }
    strbuf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_texts),
        cmocka_unit_test(test_generated_texts),
        cmocka_unit_test(test_rendered_chats),
        cmocka_unit_test(test_prompts_of_the_goldens),
        cmocka_unit_test(test_decode_vectors),
        cmocka_unit_test(test_sizes_and_kinds),
        cmocka_unit_test(test_every_token_encodes_to_itself),
        cmocka_unit_test(test_round_trip_gives_nfc),
        cmocka_unit_test(test_trust_cuts_nothing_else),
        cmocka_unit_test(test_invalid_utf8_is_refused_with_its_offset),
        cmocka_unit_test(test_empty_text_gives_nothing),
        cmocka_unit_test(test_a_megabyte_of_one_thing),
        cmocka_unit_test(test_threads_share_a_tokenizer),
        cmocka_unit_test(test_built_in_tokenizer),
        cmocka_unit_test(test_built_in_tokens_are_the_published_ones),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_every_step_of_an_open_may_fail),
        cmocka_unit_test(test_every_allocation_of_an_encode_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
