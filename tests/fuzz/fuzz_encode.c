// SPDX-License-Identifier: Apache-2.0
/* fuzz_encode.c - any text through splitting and normalising, and any merge list beside the plain
 * loop over all pairs.
 *
 * Input: the first byte n is the number of merges; then n pairs of bytes, each a merge of two of
 * the symbols so far (bytes 'a' to 'd', then results); then the text.
 *
 * Owns:     one tokenizer of byte tokens.  Thread: one. */
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_ROWS = 289, FUZZ_LETTERS = 4, FUZZ_PIECE = 400 };

/* decode(encode(x)) = NFC(x), and what is no UTF-8 is refused at the right place. */
static void fuzz_text(const Tokenizer *t, StrView text) {
    TokenIds ids = {0}, plain = {0};
    StrBuf back = {0}, normal = {0};
    size_t bad;
    Err err = {0};
    Status status = tokenizer_encode_plain(t, &plain, text, &err);
    CHECK(tokenizer_encode(t, &ids, text, NULL, &err) == status);
    if (utf8_is_valid(text.ptr, text.len, &bad)) {
        CHECK(status == STATUS_OK);
        CHECK(normalize_append_nfc(&normal, text, &err) == STATUS_OK);
        CHECK(tokenizer_decode(t, &back, plain.ids, plain.n, false, &err) == STATUS_OK);
        CHECK(str_equal(strbuf_view(&back), strbuf_view(&normal)));
        CHECK(!normalize_is_done(text) || str_equal(text, strbuf_view(&normal)));
        CHECK(ids.n <= plain.n);
    } else {
        CHECK(status == STATUS_INVALID && plain.n == 0 && ids.n == 0);
    }
    token_ids_fini(&ids);
    token_ids_fini(&plain);
    strbuf_fini(&back);
    strbuf_fini(&normal);
}

static size_t fuzz_plain_merge(const Bpe *b, int32_t *ids, size_t n) {
    for (;;) {
        size_t best = SIZE_MAX;
        int32_t best_rank = INT32_MAX;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t rank = bpe_rank(b, ids[i], ids[i + 1]);
            if (rank < best_rank) {
                best = i;
                best_rank = rank;
            }
        }
        if (best == SIZE_MAX)
            return n;
        ids[best] = b->results[best_rank];
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void fuzz_merges(const uint8_t *pairs, size_t n_pairs, StrView text) {
    int32_t byte_ids[256], plain[FUZZ_PIECE];
    char piece[FUZZ_PIECE];
    size_t n = text.len < FUZZ_PIECE ? text.len : FUZZ_PIECE;
    Bpe b;
    BpeWork w;
    TokenIds ids = {0};
    if (n == 0 || n_pairs == 0)
        return;
    for (int32_t i = 0; i < 256; i++)
        byte_ids[i] = i;
    CHECK(bpe_init(&b, (uint32_t)n_pairs, byte_ids, NULL) == STATUS_OK);
    for (size_t i = 0; i < n_pairs; i++) {
        int32_t n_symbols = FUZZ_LETTERS + (int32_t)b.n_merges;
        int32_t left = pairs[2 * i] % n_symbols, right = pairs[2 * i + 1] % n_symbols;
        left = left < FUZZ_LETTERS ? 'a' + left : 252 + left;
        right = right < FUZZ_LETTERS ? 'a' + right : 252 + right;
        (void)bpe_add(&b, left, right, 256 + (int32_t)b.n_merges);
    }
    bpe_finish(&b);
    for (size_t i = 0; i < n; i++)
        plain[i] = piece[i] = (char)('a' + (unsigned char)text.ptr[i] % FUZZ_LETTERS);
    bpe_work_init(&w);
    CHECK(bpe_encode(&b, &w, &ids, str_view(piece, n), NULL) == STATUS_OK);
    size_t n_plain = fuzz_plain_merge(&b, plain, n);
    CHECK(ids.n == n_plain && memcmp(ids.ids, plain, n_plain * sizeof *plain) == 0);
    bpe_work_fini(&w);
    bpe_fini(&b);
    token_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *t; // opened once: an open costs more than a run
    if (!t)
        CHECK(tokenizer_open_bytes(&t, FUZZ_ROWS, NULL) == STATUS_OK);
    if (size == 0)
        return 0;
    size_t n_pairs = data[0];
    if (2 * n_pairs > size - 1)
        n_pairs = (size - 1) / 2;
    StrView text = str_view((const char *)data + 1 + 2 * n_pairs, size - 1 - 2 * n_pairs);
    fuzz_text(t, text);
    fuzz_merges(data + 1, n_pairs, text);
    return 0;
}
