// SPDX-License-Identifier: Apache-2.0
/* fuzz_detok.c - any ids: what is streamed is valid at every step and the whole decode at the end.
 *
 * Input: the first byte's low bit is skip_special; then one id in two bytes, low byte first.
 *
 * Owns:     one tokenizer of byte tokens.  Thread: one. */
#include "base/utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_ROWS = 320 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *t; // opened once: an open costs more than a run
    if (!t)
        CHECK(tokenizer_open_bytes(&t, FUZZ_ROWS, NULL) == STATUS_OK);
    if (size == 0)
        return 0;
    bool skip_special = data[0] & 1;
    StrBuf streamed = {0}, whole = {0};
    TokenIds good = {0};
    Detok d;
    Err err = {0};
    detok_init(&d, t, skip_special);
    for (size_t i = 1; i + 1 < size; i += 2) {
        int32_t id = (int32_t)(data[i] | (data[i + 1] & 3) << 8) - 8;
        size_t len = streamed.len;
        Status status = detok_push(&d, id, &streamed, &err);
        bool is_good = id >= 0 && id < FUZZ_ROWS;
        CHECK(status == (is_good ? STATUS_OK : STATUS_INVALID));
        CHECK(is_good || streamed.len == len);
        CHECK(d.n_held <= 3);
        CHECK(utf8_is_valid(streamed.ptr, streamed.len, NULL));
        if (is_good)
            CHECK(token_ids_append(&good, id, &err) == STATUS_OK);
    }
    CHECK(detok_flush(&d, &streamed, &err) == STATUS_OK);
    CHECK(tokenizer_decode(t, &whole, good.ids, good.n, skip_special, &err) == STATUS_OK);
    CHECK(str_equal(strbuf_view(&streamed), strbuf_view(&whole)));
    token_ids_fini(&good);
    strbuf_fini(&streamed);
    strbuf_fini(&whole);
    return 0;
}
