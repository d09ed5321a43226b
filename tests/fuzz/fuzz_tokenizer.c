// SPDX-License-Identifier: Apache-2.0
/* fuzz_tokenizer.c - tokenizer files of any bytes: refused with a text, or a tokenizer that works.
 *
 * Input: sections divided by byte 0x1E. "J", tokenizer.json, tokenizer_config.json; or "P",
 * vocab.json, merges.txt, tokenizer_config.json. A section that is not there is a missing file.
 *
 * Owns:     nothing.  Thread: one. */
#include "base/utf8.h"
#include "text/token_load.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_ROWS = 1024, FUZZ_SECTIONS = 3 };

static void fuzz_use(const Tokenizer *t) {
    StrView text = STR("The the<think>xyz  aaaaaaa <|im_end|>\n\nit's 42 \xc3\xa9\xe4\xb8\xad");
    TokenIds ids = {0};
    StrBuf back = {0};
    Err err = {0};
    CHECK(tokenizer_encode(t, &ids, text, NULL, &err) == STATUS_OK);
    for (size_t i = 0; i < ids.n; i++)
        CHECK(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_n_ids(t));
    CHECK(tokenizer_decode(t, &back, ids.ids, ids.n, false, &err) == STATUS_OK);
    CHECK(str_equal(strbuf_view(&back), text));
    CHECK(tokenizer_find_added(t, STR("<|im_end|>")) >= 0);
    for (int32_t id = 0; id < tokenizer_n_ids(t); id++)
        CHECK(tokenizer_id_bytes(t, id).len > 0);
    token_ids_fini(&ids);
    strbuf_fini(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    TokenFile sections[FUZZ_SECTIONS] = {{.name = "one"}, {.name = "two"}, {.name = "three"}};
    StrView rest = str_view((const char *)data + 1, size - 1);
    for (int i = 0; i < FUZZ_SECTIONS && rest.ptr; i++) {
        const char *end = rest.len ? memchr(rest.ptr, 0x1e, rest.len) : NULL;
        size_t n = end ? (size_t)(end - rest.ptr) : rest.len;
        sections[i].text = str_view(rest.ptr, n);
        rest = end ? str_view(end + 1, rest.len - n - 1) : (StrView){0};
    }
    TokenFiles files = {.tokenizer = sections[0], .config = sections[1]};
    if (data[0] == 'P')
        files = (TokenFiles){.vocab = sections[0], .merges = sections[1], .config = sections[2]};
    Tokenizer *t = NULL;
    Err err = {0};
    Status status = tokenizer_open_texts(&t, &files, FUZZ_ROWS, NULL, &err);
    CHECK((status == STATUS_OK) == (t != NULL));
    CHECK(status == STATUS_OK || (err.code == status && err.text[0]));
    CHECK(utf8_is_valid(err.text, strlen(err.text), NULL));
    if (t)
        fuzz_use(t);
    tokenizer_close(t);
    return 0;
}
