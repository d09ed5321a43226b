// SPDX-License-Identifier: Apache-2.0
/* bench_text.c - encodes a file of documents: for speed, or for its ids.
 *
 *     bench_text speed TOKENIZER_DIR VOCAB DOCS ROUNDS    a line of JSON on stdout
 *     bench_text ids TOKENIZER_DIR VOCAB DOCS OUT         the ids of each document to OUT
 *
 * DOCS holds documents, each as a little-endian 32-bit length and its bytes; OUT gets for each
 * document a 32-bit count and 32-bit ids. A document that is refused gets the count -1.
 *
 * Path:     bench_text.py and tests/py/test_tokenizer_oracle.py run it beside the `tokenizers`
 *           package.
 * Owns:     what it reads.  Thread: one. */
#define _GNU_SOURCE // clock_gettime
#include "base/file.h"
#include "text/tokenizer.h"

#include <time.h>

enum { BENCH_DOCS_MAX = 1 << 30 };

/* Processor time of this thread: other work on the machine does not count. */
static double bench_now_s(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Cuts the next document off docs; false at the end. */
static bool bench_next(StrView *docs, StrView *doc) {
    const unsigned char *p = (const unsigned char *)docs->ptr;
    if (docs->len < 4)
        return false;
    size_t n = p[0] | (size_t)p[1] << 8 | (size_t)p[2] << 16 | (size_t)p[3] << 24;
    if (n > docs->len - 4)
        return false;
    *doc = str_view(docs->ptr + 4, n);
    *docs = str_view(docs->ptr + 4 + n, docs->len - 4 - n);
    return true;
}

static Status bench_speed(const Tokenizer *t, StrView docs, int rounds, double load_s, Err *err) {
    double best = 0;
    size_t n_bytes = 0, n_ids = 0;
    TokenIds ids = {0};
    Status status = STATUS_OK;
    for (int i = 0; i < rounds && status == STATUS_OK; i++) {
        StrView rest = docs, doc;
        n_bytes = n_ids = 0;
        double start = bench_now_s();
        while (status == STATUS_OK && bench_next(&rest, &doc)) {
            ids.n = 0;
            status = tokenizer_encode(t, &ids, doc, NULL, err);
            n_ids += ids.n;
            n_bytes += doc.len;
        }
        double s = bench_now_s() - start;
        if (i == 0 || s < best)
            best = s;
    }
    token_ids_fini(&ids);
    if (status == STATUS_OK)
        printf("{\"bytes\": %zu, \"ids\": %zu, \"seconds\": %.6f, \"load_s\": %.3f}\n", n_bytes,
               n_ids, best, load_s);
    return status;
}

static Status bench_ids(const Tokenizer *t, StrView docs, const char *path, Err *err) {
    FileWriter *w;
    TokenIds ids = {0};
    StrView doc;
    TRY(file_writer_open(&w, path, err));
    Status status = STATUS_OK;
    while (status == STATUS_OK && bench_next(&docs, &doc)) {
        ids.n = 0;
        bool is_good = tokenizer_encode(t, &ids, doc, NULL, NULL) == STATUS_OK;
        int32_t n = is_good ? (int32_t)ids.n : -1;
        status = file_writer_append(w, &n, sizeof n, err);
        if (status == STATUS_OK && ids.n)
            status = file_writer_append(w, ids.ids, ids.n * sizeof *ids.ids, err);
    }
    if (status == STATUS_OK)
        status = file_writer_commit(w, err);
    file_writer_close(w);
    token_ids_fini(&ids);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: bench_text speed|ids TOKENIZER_DIR VOCAB DOCS ROUNDS|OUT\n");
        return 2;
    }
    Err err = {0};
    Tokenizer *t = NULL;
    StrBuf docs = {0};
    double start = bench_now_s();
    Status status = tokenizer_open(&t, argv[2], (int32_t)strtol(argv[3], NULL, 10), NULL, &err);
    double load_s = bench_now_s() - start;
    if (status == STATUS_OK)
        status = file_read_all(&docs, argv[4], BENCH_DOCS_MAX, &err);
    if (status == STATUS_OK && strcmp(argv[1], "speed") == 0)
        status = bench_speed(t, strbuf_view(&docs), (int)strtol(argv[5], NULL, 10), load_s, &err);
    else if (status == STATUS_OK)
        status = bench_ids(t, strbuf_view(&docs), argv[5], &err);
    if (status != STATUS_OK)
        fprintf(stderr, "%s\n", err.text);
    strbuf_fini(&docs);
    tokenizer_close(t);
    return status != STATUS_OK;
}
