// SPDX-License-Identifier: Apache-2.0
/* test_token_load.c - tokenizer files: the good forms, and every kind of damage refused by name.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: one. */
#include "text/token_load.h"

#include "base/mem.h"
#include "token_files.h"

/* A load from texts that are NUL-terminated; NULL: no such file. */
static Status load(TokenModel *m, const char *tokenizer, const char *vocab, const char *merges,
                   const char *config, const Log *log, Err *err) {
    TokenFiles files = {
        {str_view(tokenizer, tokenizer ? strlen(tokenizer) : 0), "d/tokenizer.json"},
        {str_view(vocab, vocab ? strlen(vocab) : 0), "d/vocab.json"},
        {str_view(merges, merges ? strlen(merges) : 0), "d/merges.txt"},
        {str_view(config, config ? strlen(config) : 0), "d/tokenizer_config.json"}};
    return token_load(m, &files, TOKEN_FILES_ROWS, log, err);
}

static void expect_good(TokenModel *m, Status status, const Err *err) {
    if (status != STATUS_OK)
        fail_msg("%s", err->text);
    assert_int_equal(m->vocab.n_ids, 265);
    assert_int_equal(m->added.n, 4);
    assert_int_equal(m->bpe.n_merges, 4);
    assert_int_equal(m->bpe.results[1], 257);
    assert_true(m->is_nfc);
    assert_int_equal(added_find_text(&m->added, STR("<|im_end|>"))->id, 263);
    assert_true(added_find_text(&m->added, STR("<|im_end|>"))->is_special);
    assert_false(added_find_text(&m->added, STR("<think>"))->is_special);
    assert_true(str_equal(vocab_bytes(&m->vocab, 198), STR("\n")));
    assert_true(str_equal(vocab_bytes(&m->vocab, 220), STR(" ")));
    assert_true(str_equal(vocab_bytes(&m->vocab, 257), STR("the")));
    token_model_fini(m);
}

static const char CONFIG[] =
    "{\"add_prefix_space\": false, \"added_tokens_decoder\": {"
    "\"261\": {\"content\": \"<|endoftext|>\", \"special\": true},"
    "\"262\": {\"content\": \"<|im_start|>\", \"special\": true, \"normalized\": false},"
    "\"263\": {\"content\": \"<|im_end|>\", \"special\": true},"
    "\"264\": {\"content\": \"<think>\", \"special\": false}}}";

static void test_both_forms_give_the_same(void **state) {
    UNUSED(state);
    StrBuf json = {0}, vocab = {0};
    TokenModel m;
    Err err = {0};
    token_files_json(&json);
    token_files_vocab(&vocab);
    Status status = load(&m, json.ptr, NULL, NULL, NULL, NULL, &err);
    expect_good(&m, status, &err);
    status = load(&m, json.ptr, NULL, NULL, CONFIG, NULL, &err);
    expect_good(&m, status, &err);
    status = load(&m, NULL, vocab.ptr, TOKEN_FILES_MERGES, CONFIG, NULL, &err);
    expect_good(&m, status, &err);
    status =
        load(&m, NULL, vocab.ptr, "#version: 0.2\nt h\r\nth e\r\na a\r\naa aa", CONFIG, NULL, &err);
    expect_good(&m, status, &err);
    strbuf_fini(&json);
    strbuf_fini(&vocab);
}

static void test_harmless_variants(void **state) {
    UNUSED(state);
    static const char *const ROWS[][2] = {
        {"\"type\": \"BPE\", ", ""},
        {"\"normalizer\": {\"type\": \"NFC\"}",
         "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}"},
        {"\"post_processor\": {\"type\": \"ByteLevel\"}", "\"post_processor\": null"},
        {"\"dropout\": null", "\"dropout\": 0.0"},
        {"\"unk_token\": null", "\"unk_token\": \"<|endoftext|>\""}, // nothing is unknown
        {"\"xyz\": 258", "\"xyz\": 258, \"<think>\": 264"},          // also a vocabulary entry
    };
    StrBuf json = {0};
    token_files_json(&json);
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        StrBuf changed = {0};
        TokenModel m;
        Err err = {0};
        token_files_replace(&changed, strbuf_view(&json), ROWS[i][0], ROWS[i][1]);
        Status status = load(&m, changed.ptr, NULL, NULL, NULL, NULL, &err);
        expect_good(&m, status, &err);
        strbuf_fini(&changed);
    }
    strbuf_fini(&json);
}

static void test_normalizer_may_be_off(void **state) {
    UNUSED(state);
    static const char *const OFF[] = {"null", "{\"type\": \"Sequence\", \"normalizers\": []}"};
    StrBuf json = {0};
    token_files_json(&json);
    for (size_t i = 0; i < COUNT_OF(OFF); i++) {
        StrBuf changed = {0};
        TokenModel m;
        token_files_replace(&changed, strbuf_view(&json), "{\"type\": \"NFC\"}", OFF[i]);
        assert_int_equal(load(&m, changed.ptr, NULL, NULL, NULL, NULL, NULL), STATUS_OK);
        assert_false(m.is_nfc);
        token_model_fini(&m);
        strbuf_fini(&changed);
    }
    strbuf_fini(&json);
}

typedef struct Damage {
    const char *from, *to; // in the good file
    Status status;
    const char *text; // part of the error
} Damage;

static const Damage DAMAGES[] = {
    {"<|im_end|>", "<|im_ende|>", STATUS_FORMAT, "d/tokenizer.json: no added token <|im_end|>"},
    {"<|im_start|>", "<im_start>", STATUS_FORMAT, "no added token <|im_start|>"},
    {"<|endoftext|>", "<eot>", STATUS_FORMAT, "no added token <|endoftext|>"},
    {"\"a\": 64", "\"a\": 272", STATUS_FORMAT,
     "\"a\": expected an id from 0 to 271, found an integer (272)"},
    {"\"a\": 64", "\"a\": -1", STATUS_FORMAT, "\"a\": expected an id from 0 to 271"},
    {"\"a\": 64", "\"a\": 1e3", STATUS_FORMAT,
     "\"a\": expected an id from 0 to 271, found a real number"},
    {"\"a\": 64", "\"a\": 99999999999999999999", STATUS_FORMAT, "not valid JSON"},
    {"\"a\": 64", "\"a\": \"64\"", STATUS_FORMAT, "found a string"},
    {"\"a\": 64", "\"a\": 65", STATUS_FORMAT, "id 65 is given twice"},
    {"\"a\": 64", "\"b\": 64", STATUS_FORMAT, "duplicate"},
    {"\"a\": 64", "\"aaa\": 64", STATUS_FORMAT, "no token for byte 0x61"},
    {"\"a\": 64", "\"a\": 64, \"\": 270", STATUS_FORMAT, "id 270: empty token"},
    {"\"xyz\": 258", "\"x z\": 258", STATUS_FORMAT, "\"x z\" (id 258): not in the byte alphabet"},
    {"\"xyz\": 258", "\"x\xe2\x82\xac\": 258", STATUS_FORMAT, "not in the byte alphabet"},
    {"\"xyz\": 258", "\"xyz\": 270", STATUS_FORMAT, "id 258 has no token, but id 270 has"},
    {"\"id\": 264", "\"id\": 266", STATUS_FORMAT, "id 264 has no token, but id 266 has"},
    {"\"id\": 264", "\"id\": 272", STATUS_FORMAT,
     "<think>: expected an id from 0 to 271, found 272"},
    {"\"id\": 264", "\"id\": 263", STATUS_FORMAT, "<think>: id 263 is the token \"<|im_end|>\""},
    {"\"id\": 264", "\"id\": 258", STATUS_FORMAT, "<think>: id 258 is the token \"xyz\""},
    {"\"id\": 264", "\"id\": -5", STATUS_FORMAT, "id: expected 0 to"},
    {"\"id\": 264", "\"id\": \"264\"", STATUS_FORMAT, "id: expected an integer, found a string"},
    {"\"id\": 264", "\"di\": 264", STATUS_FORMAT, "id: expected an integer, found nothing"},
    {"\"<think>\"", "\"<|im_end|>\"", STATUS_FORMAT,
     "<|im_end|>: expected id 263 as before, found 264"},
    {"\"<think>\"", "\"xyz\"", STATUS_FORMAT, "xyz: expected id 258 of the vocabulary, found 264"},
    {"\"<think>\"", "\"\"", STATUS_FORMAT, "content: expected a text"},
    {"\"<think>\"", "7", STATUS_FORMAT, "content: expected a text, found an integer"},
    {"\"lstrip\": false", "\"lstrip\": true", STATUS_UNSUPPORTED,
     "<think>: lstrip: expected false"},
    {"\"lstrip\": false", "\"normalized\": true", STATUS_UNSUPPORTED,
     "<think>: normalized: expected false"},
    {"\"lstrip\": false", "\"rstrip\": 1", STATUS_FORMAT, "rstrip: expected true or false"},
    {"\"added_tokens\": [", "\"added_tokens\": 5, \"x\": [", STATUS_FORMAT,
     "added_tokens: expected a list"},
    {"\"added_tokens\": [", "\"added_tokens\": [7,", STATUS_FORMAT,
     "id: expected an integer, found nothing"},
    {"\"t h\"", "\"th\"", STATUS_FORMAT, "merge 1: expected two tokens"},
    {"\"t h\"", "\"t  h\"", STATUS_FORMAT, "merge 1: expected two tokens"},
    {"\"t h\"", "\"t h \"", STATUS_FORMAT, "merge 1: expected two tokens"},
    {"\"t h\"", "\" h\"", STATUS_FORMAT, "merge 1: expected two tokens"},
    {"\"t h\"", "\"t q\"", STATUS_FORMAT,
     "merge 1: the result of \"t\" \"q\" is not in the vocabulary"},
    {"\"t h\"", "\"tt h\"", STATUS_FORMAT, "merge 1: the left part"},
    {"\"t h\"", "\"t hh\"", STATUS_FORMAT, "merge 1: the right part"},
    {"\"t h\"", "\"t\\u0000 h\"", STATUS_FORMAT,
     "merge 1: expected two tokens in the byte alphabet"},
    {"\"t h\"", "\"t h\", \"t h\"", STATUS_FORMAT, "merge 2: \"t\" \"h\" is given twice"},
    {"\"t h\"", "17", STATUS_FORMAT, "merge 1: expected two tokens, found an integer"},
    {"[\"th\", \"e\"]", "[\"th\", \"e\", \"e\"]", STATUS_FORMAT,
     "merge 2: expected two tokens, found a list"},
    {"[\"th\", \"e\"]", "[\"th\", 5]", STATUS_FORMAT, "merge 2: expected two tokens, found a list"},
    {"[\"th\", \"e\"]", "[]", STATUS_FORMAT, "merge 2: expected two tokens, found a list"},
    {"\"merges\": [", "\"merges\": {}, \"x\": [", STATUS_FORMAT,
     "merges: expected a list, found an object"},
    {"\"vocab\": ", "\"vocab\": 5, \"x\": ", STATUS_FORMAT, "expected an object, found an integer"},
    {"\"vocab\": ", "\"w\": ", STATUS_FORMAT, "expected an object, found nothing"},
    {"\"model\": ", "\"model\": [], \"x\": ", STATUS_FORMAT,
     "model: expected an object, found a list"},
    {"\"BPE\"", "\"Unigram\"", STATUS_UNSUPPORTED, "type: expected \"BPE\", found \"Unigram\""},
    {"\"ignore_merges\": false", "\"ignore_merges\": true", STATUS_UNSUPPORTED, "ignore_merges"},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", STATUS_UNSUPPORTED, "byte_fallback"},
    {"\"dropout\": null", "\"dropout\": 0.1", STATUS_UNSUPPORTED, "dropout"},
    {"\"continuing_subword_prefix\": \"\"", "\"continuing_subword_prefix\": \"##\"",
     STATUS_UNSUPPORTED, "continuing_subword_prefix"},
    {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}", STATUS_UNSUPPORTED,
     "truncation"},
    {"\"padding\": null", "\"padding\": {}", STATUS_UNSUPPORTED, "padding"},
    {"\"NFC\"", "\"NFKC\"", STATUS_UNSUPPORTED, "type: expected \"NFC\", found \"NFKC\""},
    {"{\"type\": \"NFC\"}",
     "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Lowercase\"}]}",
     STATUS_UNSUPPORTED, "normalizer: expected NFC alone, found a sequence of 2"},
    {"\\\\p{M}", "", STATUS_UNSUPPORTED, "expected the splitting expression"},
    {"\"Isolated\"", "\"Removed\"", STATUS_UNSUPPORTED, "behavior"},
    {"\"invert\": false", "\"invert\": true", STATUS_UNSUPPORTED, "invert"},
    {"\"add_prefix_space\": false", "\"add_prefix_space\": true", STATUS_UNSUPPORTED,
     "add_prefix_space"},
    {", \"use_regex\": false", "", STATUS_UNSUPPORTED, "use_regex: expected false, found true"},
    {"\"Sequence\"", "\"ByteLevel\"", STATUS_UNSUPPORTED, "type: expected \"Sequence\""},
    {"\"pretokenizers\": [", "\"pretokenizers\": [{},", STATUS_UNSUPPORTED,
     "expected Split and ByteLevel, found 3 steps"},
    {"\"post_processor\": {\"type\": \"ByteLevel\"}",
     "\"post_processor\": {\"type\": \"TemplateProcessing\"}", STATUS_UNSUPPORTED,
     "found \"TemplateProcessing\""},
    {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": {\"type\": \"WordPiece\"}",
     STATUS_UNSUPPORTED, "found \"WordPiece\""},
    {"{\"version\"", "\"version\"", STATUS_FORMAT, "d/tokenizer.json: not valid JSON"},
};

static void test_damaged_tokenizer_json_is_refused_by_name(void **state) {
    UNUSED(state);
    StrBuf json = {0};
    token_files_json(&json);
    for (size_t i = 0; i < COUNT_OF(DAMAGES); i++) {
        const Damage *d = &DAMAGES[i];
        StrBuf changed = {0};
        TokenModel m = {.n_base = -7};
        Err err = {0};
        token_files_replace(&changed, strbuf_view(&json), d->from, d->to);
        Status status = load(&m, changed.ptr, NULL, NULL, NULL, NULL, &err);
        if (status != d->status || !strstr(err.text, d->text) ||
            strncmp(err.text, "d/tokenizer.json: ", 18) != 0)
            fail_msg("%s -> %s: status %d, \"%s\", expected %d, \"%s\"", d->from, d->to, status,
                     err.text, d->status, d->text);
        assert_int_equal(m.n_base, -7); // untouched
        strbuf_fini(&changed);
    }
    strbuf_fini(&json);
}

static void test_other_roots_are_refused(void **state) {
    UNUSED(state);
    static const char *const ROOTS[] = {"",    "[]", "null", "7", "\"x\"", "{}", "{\"model\": {}}",
                                        "\xff"};
    for (size_t i = 0; i < COUNT_OF(ROOTS); i++) {
        TokenModel m;
        Err err = {0};
        assert_int_not_equal(load(&m, ROOTS[i], NULL, NULL, NULL, NULL, &err), STATUS_OK);
        assert_non_null(strstr(err.text, "d/tokenizer.json"));
    }
}

static void test_deep_json_is_refused(void **state) {
    UNUSED(state);
    enum { DEPTH = 200000 };
    char *deep = mem_alloc(DEPTH + 1);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = 0;
    TokenModel m;
    Err err = {0};
    assert_int_equal(load(&m, deep, NULL, NULL, NULL, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "d/tokenizer.json: not valid JSON"));
    StrBuf json = {0};
    token_files_json(&json);
    assert_int_equal(load(&m, json.ptr, NULL, NULL, deep, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "d/tokenizer_config.json: not valid JSON"));
    strbuf_fini(&json);
    mem_free(deep);
}

static void test_damaged_merges_are_refused_by_line(void **state) {
    UNUSED(state);
    static const char *const ROWS[][2] = {
        {"t h\nthe\n", "d/merges.txt: line 2: expected two tokens"},
        {"t h\n\nth e\n", "d/merges.txt: line 2: expected two tokens"},
        {"t h\nth e e\n", "d/merges.txt: line 2: expected two tokens"},
        {"t h\nq z\n", "d/merges.txt: merge 2: the result of \"q\" \"z\""},
        {"t \xff\n", "d/merges.txt: merge 1: expected two tokens in the byte alphabet"},
        {"t h\nt h\n", "d/merges.txt: merge 2: \"t\" \"h\" is given twice"},
    };
    StrBuf vocab = {0};
    token_files_vocab(&vocab);
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        TokenModel m;
        Err err = {0};
        assert_int_equal(load(&m, NULL, vocab.ptr, ROWS[i][0], CONFIG, NULL, &err), STATUS_FORMAT);
        if (!strstr(err.text, ROWS[i][1]))
            fail_msg("\"%s\", expected \"%s\"", err.text, ROWS[i][1]);
    }
    TokenModel m;
    Err err = {0};
    assert_int_equal(load(&m, NULL, vocab.ptr, TOKEN_FILES_MERGES, NULL, NULL, &err),
                     STATUS_FORMAT);
    assert_string_equal(err.text, "d/vocab.json: no added token <|im_start|>");
    strbuf_fini(&vocab);
}

static void note_line(void *ctx, LogLevel level, const char *line) {
    assert_int_equal(level, LOG_WARNING);
    strbuf_printf(ctx, "%s\n", line);
}

static void test_config_on_top(void **state) {
    UNUSED(state);
    static const struct {
        const char *config;
        Status status;
        const char *text;
    } ROWS[] = {
        {"[]", STATUS_FORMAT, "expected an object, found a list"},
        {"{\"add_bos_token\": true}", STATUS_UNSUPPORTED, "add_bos_token"},
        {"{\"clean_up_tokenization_spaces\": true}", STATUS_UNSUPPORTED, "clean_up"},
        {"{\"split_special_tokens\": true}", STATUS_UNSUPPORTED, "split_special_tokens"},
        {"{\"pretokenize_regex\": \"\\\\w+\"}", STATUS_UNSUPPORTED, "found \"\\w+\""},
        {"{\"added_tokens_decoder\": []}", STATUS_FORMAT,
         "added_tokens_decoder: expected an object"},
        {"{\"added_tokens_decoder\": {\"x\": {}}}", STATUS_FORMAT, "expected an id, found \"x\""},
        {"{\"added_tokens_decoder\": {\"\": {}}}", STATUS_FORMAT, "expected an id, found \"\""},
        {"{\"added_tokens_decoder\": {\"-1\": {}}}", STATUS_FORMAT, "expected an id, found \"-1\""},
        {"{\"added_tokens_decoder\": {\"9999999999\": {}}}", STATUS_FORMAT, "expected an id"},
        {"{\"added_tokens_decoder\": {\"265\": 5}}", STATUS_FORMAT,
         "id 265: content: expected a text"},
        {"{\"added_tokens_decoder\": {\"264\": {\"content\": \"<x>\"}}}", STATUS_FORMAT,
         "<x>: id 264 is the token \"<think>\""},
        {"{\"added_tokens_decoder\": {\"265\": {\"content\": \"<think>\"}}}", STATUS_FORMAT,
         "<think>: expected id 264 as before, found 265"},
    };
    StrBuf json = {0};
    token_files_json(&json);
    TokenModel m;
    Err err = {0};
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        Status status = load(&m, json.ptr, NULL, NULL, ROWS[i].config, NULL, &err);
        if (status != ROWS[i].status || !strstr(err.text, ROWS[i].text) ||
            strncmp(err.text, "d/tokenizer_config.json: ", 25) != 0)
            fail_msg("%s: %d \"%s\"", ROWS[i].config, status, err.text);
    }
    // A new token, and a flag that the config has the last word on.
    const char *more =
        "{\"added_tokens_decoder\": {\"265\": {\"content\": \"<tts_pad>\", \"special\":"
        " true}, \"264\": {\"content\": \"<think>\", \"special\": true}}}";
    assert_int_equal(load(&m, json.ptr, NULL, NULL, more, NULL, &err), STATUS_OK);
    assert_int_equal(m.vocab.n_ids, 266);
    assert_int_equal(added_find_text(&m.added, STR("<tts_pad>"))->id, 265);
    assert_true(added_find_text(&m.added, STR("<tts_pad>"))->is_special);
    assert_true(added_find_text(&m.added, STR("<think>"))->is_special);
    token_model_fini(&m);
    strbuf_fini(&json);
}

static void test_expression_in_the_config(void **state) {
    UNUSED(state);
    StrBuf config = {0}, json = {0}, vocab = {0}, lines = {0};
    Log log = {note_line, &lines};
    TokenModel m;
    strbuf_printf(&config, "{\"pretokenize_regex\": \"");
    token_files_expression(&config, PRETOKEN_QWEN2);
    strbuf_printf(&config, "\",%s", CONFIG + 1);
    token_files_json(&json);
    token_files_vocab(&vocab);
    assert_int_equal(load(&m, NULL, vocab.ptr, "", config.ptr, &log, NULL), STATUS_OK);
    assert_int_equal(m.rule, PRETOKEN_QWEN2); // nothing else names one
    assert_int_equal(lines.len, 0);
    token_model_fini(&m);
    assert_int_equal(load(&m, json.ptr, NULL, NULL, config.ptr, &log, NULL), STATUS_OK);
    assert_int_equal(m.rule, PRETOKEN_QWEN35); // tokenizer.json rules, and a warning says so
    assert_non_null(strstr(lines.ptr, "d/tokenizer_config.json: pretokenize_regex differs"));
    token_model_fini(&m);
    strbuf_fini(&config);
    strbuf_fini(&json);
    strbuf_fini(&vocab);
    strbuf_fini(&lines);
}

static void test_spelling(void **state) {
    UNUSED(state);
    StrBuf out = {0};
    // G with breve: space; A with macron: 0x00; U+0143: 0xAD; U+0142: 0xA0; e acute: 0xE9.
    assert_true(token_load_spelling(&out, STR("\xc4\xa0x\xc4\x80\xc5\x83\xc5\x82\xc3\xa9")));
    assert_true(str_equal(strbuf_view(&out), STR(" x\0\xad\xa0\xe9")));
    assert_false(token_load_spelling(&out, STR(" ")));
    assert_false(token_load_spelling(&out, STR("\xc5\x84"))); // U+0144
    assert_false(token_load_spelling(&out, STR("\xc2\xad"))); // U+00AD
    assert_false(token_load_spelling(&out, STR("\xc4")));
    strbuf_fini(&out);
    int32_t ids[256];
    bool is_seen[256] = {false};
    token_load_byte_order(ids);
    assert_int_equal(ids['!'], 0);
    assert_int_equal(ids['\n'], 198);
    assert_int_equal(ids[' '], 220);
    assert_int_equal(ids[0xad], 255);
    for (int b = 0; b < 256; b++) {
        assert_in_range(ids[b], 0, 255);
        assert_false(is_seen[ids[b]]);
        is_seen[ids[b]] = true;
    }
}

static void test_every_allocation_may_fail(void **state) {
    UNUSED(state);
    StrBuf json = {0};
    TokenModel m;
    Err err = {0};
    token_files_json(&json);
    for (int64_t after = 0;; after++) {
        assert_true(after < 100000);
        mem_fail_after(after);
        Status status = load(&m, json.ptr, NULL, NULL, CONFIG, NULL, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            assert_true(after > 8);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
    }
    token_model_fini(&m);
    strbuf_fini(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_forms_give_the_same),
        cmocka_unit_test(test_harmless_variants),
        cmocka_unit_test(test_normalizer_may_be_off),
        cmocka_unit_test(test_damaged_tokenizer_json_is_refused_by_name),
        cmocka_unit_test(test_other_roots_are_refused),
        cmocka_unit_test(test_deep_json_is_refused),
        cmocka_unit_test(test_damaged_merges_are_refused_by_line),
        cmocka_unit_test(test_config_on_top),
        cmocka_unit_test(test_expression_in_the_config),
        cmocka_unit_test(test_spelling),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
