// SPDX-License-Identifier: Apache-2.0
/* tokenizer.c - opens a tokenizer and walks a text through its steps.
 *
 * Owns:     a Tokenizer owns its tables.  Thread: a Tokenizer is read-only: any. */
#include "tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "normalize.h"
#include "token_family.h"
#include "token_load.h"

enum { TOKENIZER_ADDED = 1, TOKENIZER_SPECIAL = 2 };

struct Tokenizer {
    TokenModel model;
    uint8_t *kinds; // [n_ids] TOKENIZER_ADDED, TOKENIZER_SPECIAL
};

void tokenizer_close(Tokenizer *t) {
    if (!t)
        return;
    token_model_fini(&t->model);
    mem_free(t->kinds);
    mem_free(t);
}

/* Leaves in the index only the tokens that encode to themselves, so that a piece that is one of
 * them needs no merging. (201 of the family do not: no merge yields them.) */
static Status tokenizer_index_whole(TokenModel *m, Err *err) {
    TokenIds ids = {0};
    BpeWork work;
    bpe_work_init(&work);
    Status status = STATUS_OK;
    uint8_t *skip = mem_zalloc((size_t)m->vocab.n_ids, 1);
    if (!skip)
        return err_memory(err, "vocabulary index", (size_t)m->vocab.n_ids);
    for (int32_t id = 0; id < m->vocab.n_ids; id++) {
        ids.n = 0;
        TRY_GOTO(status, bpe_encode(&m->bpe, &work, &ids, vocab_bytes(&m->vocab, id), err));
        skip[id] = ids.n != 1 || ids.ids[0] != id;
    }
    int32_t twice;
    TRY_GOTO(status, vocab_index(&m->vocab, skip, &twice, err));
    CHECK(twice < 0);
fail:
    mem_free(skip);
    token_ids_fini(&ids);
    bpe_work_fini(&work);
    return status;
}

/* Takes the model in any case. */
static Status tokenizer_make(Tokenizer **out, TokenModel *model, Err *err) {
    Tokenizer *t = mem_zalloc(1, sizeof *t);
    if (!t) {
        token_model_fini(model);
        return err_memory(err, "tokenizer", sizeof *t);
    }
    t->model = *model;
    Status status = STATUS_OK;
    t->kinds = mem_zalloc((size_t)model->vocab.n_ids, 1);
    if (!t->kinds) {
        status = err_memory(err, "tokenizer", (size_t)model->vocab.n_ids);
        goto fail;
    }
    const Added *added = &t->model.added;
    for (int32_t i = 0; i < added->n; i++)
        t->kinds[added->items[i].id] =
            TOKENIZER_ADDED | (added->items[i].is_special ? TOKENIZER_SPECIAL : 0);
    TRY_GOTO(status, tokenizer_index_whole(&t->model, err));
    TRY_GOTO(status, bpe_learn_chars(&t->model.bpe, &t->model.vocab, err));
    *out = t;
    return STATUS_OK;
fail:
    tokenizer_close(t);
    return status;
}

Status tokenizer_open_bytes(Tokenizer **out, int32_t vocab, Err *err) {
    if (vocab < TOKEN_FAMILY_MIN || vocab > LIMIT_VOCAB)
        return err_set(err, STATUS_INVALID, "built-in tokenizer: expected %d to %d rows, found %d",
                       TOKEN_FAMILY_MIN, LIMIT_VOCAB, vocab);
    TokenModel model;
    TRY(token_family_fill(&model, vocab, err));
    return tokenizer_make(out, &model, err);
}

/* The files of a folder; a text's memory belongs to bufs. */
enum { TOKENIZER_N_FILES = 4 };
typedef struct TokenizerFolder {
    char *paths[TOKENIZER_N_FILES];
    StrBuf bufs[TOKENIZER_N_FILES];
    TokenFile files[TOKENIZER_N_FILES]; // tokenizer, vocab, merges, config
} TokenizerFolder;

/* Reads file i of the folder; a missing one is fine if it may be missing. */
static Status tokenizer_folder_read(TokenizerFolder *f, const char *dir, int i, const char *name,
                                    bool may_miss, Err *err) {
    f->paths[i] = file_join(dir, name);
    if (!f->paths[i])
        return err_memory(err, name, strlen(dir));
    f->files[i].name = f->paths[i];
    Err local = {0};
    Status status = file_read_regular(&f->bufs[i], f->paths[i], LIMIT_TOKENIZER_BYTES, &local);
    if (status == STATUS_NOT_FOUND && may_miss)
        return STATUS_OK;
    if (status != STATUS_OK)
        return err_set(err, status, "%s", local.text);
    f->files[i].text = strbuf_view(&f->bufs[i]);
    return STATUS_OK;
}

static Status tokenizer_folder_open(TokenizerFolder *f, const char *dir, Err *err) {
    TRY(tokenizer_folder_read(f, dir, 0, "tokenizer.json", true, err));
    TRY(tokenizer_folder_read(f, dir, 3, "tokenizer_config.json", true, err));
    if (f->files[0].text.ptr)
        return STATUS_OK;
    TRY(tokenizer_folder_read(f, dir, 1, "vocab.json", true, err));
    if (!f->files[1].text.ptr)
        return err_set(err, STATUS_NOT_FOUND,
                       "%s: expected tokenizer.json, or vocab.json and merges.txt, found neither",
                       dir);
    return tokenizer_folder_read(f, dir, 2, "merges.txt", false, err);
}

Status tokenizer_open_texts(Tokenizer **out, const struct TokenFiles *files, int32_t vocab,
                            const Log *log, Err *err) {
    if (vocab < 1 || vocab > LIMIT_VOCAB)
        return err_set(err, STATUS_INVALID, "tokenizer: expected 1 to %d rows, found %d",
                       LIMIT_VOCAB, vocab);
    TokenModel model;
    TRY(token_load(&model, files, vocab, log, err));
    return tokenizer_make(out, &model, err);
}

Status tokenizer_open(Tokenizer **out, const char *dir, int32_t vocab, const Log *log, Err *err) {
    TokenizerFolder folder = {0};
    Status status = tokenizer_folder_open(&folder, dir, err);
    if (status == STATUS_OK) {
        TokenFiles files = {folder.files[0], folder.files[1], folder.files[2], folder.files[3]};
        status = tokenizer_open_texts(out, &files, vocab, log, err);
    }
    for (int i = 0; i < TOKENIZER_N_FILES; i++) {
        strbuf_fini(&folder.bufs[i]);
        mem_free(folder.paths[i]);
    }
    return status;
}

int32_t tokenizer_n_ids(const Tokenizer *t) { return t->model.vocab.n_ids; }

int32_t tokenizer_n_rows(const Tokenizer *t) { return t->model.vocab.n_rows; }

int32_t tokenizer_find_added(const Tokenizer *t, StrView text) {
    const AddedToken *token = added_find_text(&t->model.added, text);
    return token ? token->id : -1;
}

StrView tokenizer_id_bytes(const Tokenizer *t, int32_t id) {
    return id < 0 ? (StrView){0} : vocab_bytes(&t->model.vocab, id);
}

static bool tokenizer_is_kind(const Tokenizer *t, int32_t id, uint8_t kind) {
    return id >= 0 && id < t->model.vocab.n_ids && (t->kinds[id] & kind);
}

bool tokenizer_is_added(const Tokenizer *t, int32_t id) {
    return tokenizer_is_kind(t, id, TOKENIZER_ADDED);
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id) {
    return tokenizer_is_kind(t, id, TOKENIZER_SPECIAL);
}

/* Working space of one call. */
typedef struct TokenizerWork {
    BpeWork bpe;
    StrBuf normal; // a stretch in form C
} TokenizerWork;

/* A stretch between added tokens. */
static Status tokenizer_stretch(const Tokenizer *t, TokenizerWork *w, TokenIds *out, StrView text,
                                Err *err) {
    const TokenModel *m = &t->model;
    if (m->is_nfc && !normalize_is_done(text)) {
        strbuf_clear(&w->normal);
        TRY(normalize_append_nfc(&w->normal, text, err));
        text = strbuf_view(&w->normal);
    }
    for (size_t at = 0; at < text.len;) {
        size_t end = pretoken_end(m->rule, text, at);
        StrView piece = str_view(text.ptr + at, end - at);
        int32_t id = vocab_find(&m->vocab, piece);
        if (id >= 0)
            TRY(token_ids_append(out, id, err));
        else
            TRY(bpe_encode(&m->bpe, &w->bpe, out, piece, err));
        at = end;
    }
    return STATUS_OK;
}

static Status tokenizer_walk(const Tokenizer *t, TokenizerWork *w, TokenIds *out, StrView text,
                             const uint8_t *trusted, bool is_plain, Err *err) {
    size_t at = 0;
    AddedHit hit;
    while (!is_plain && added_next(&t->model.added, text, trusted, at, &hit)) {
        TRY(tokenizer_stretch(t, w, out, str_view(text.ptr + at, hit.at - at), err));
        TRY(token_ids_append(out, hit.id, err));
        at = hit.at + hit.len;
    }
    return tokenizer_stretch(t, w, out, str_view(text.ptr + at, text.len - at), err);
}

static Status tokenizer_encode_any(const Tokenizer *t, TokenIds *out, StrView text,
                                   const uint8_t *trusted, bool is_plain, Err *err) {
    if (text.len > LIMIT_TEXT_BYTES)
        return err_set(err, STATUS_TOO_LARGE, "text: expected at most %d bytes, found %zu",
                       LIMIT_TEXT_BYTES, text.len);
    if (text.len == 0)
        return STATUS_OK;
    size_t bad;
    if (!utf8_is_valid(text.ptr, text.len, &bad))
        return err_set(err, STATUS_INVALID, "text: expected UTF-8, found byte 0x%02X at offset %zu",
                       (unsigned char)text.ptr[bad], bad);
    TokenizerWork work = {0};
    bpe_work_init(&work.bpe);
    size_t n = out->n;
    Status status = tokenizer_walk(t, &work, out, text, trusted, is_plain, err);
    if (status != STATUS_OK)
        out->n = n;
    bpe_work_fini(&work.bpe);
    strbuf_fini(&work.normal);
    return status;
}

Status tokenizer_encode(const Tokenizer *t, TokenIds *out, StrView text, const uint8_t *trusted,
                        Err *err) {
    return tokenizer_encode_any(t, out, text, trusted, false, err);
}

Status tokenizer_encode_plain(const Tokenizer *t, TokenIds *out, StrView text, Err *err) {
    return tokenizer_encode_any(t, out, text, NULL, true, err);
}

Status tokenizer_decode(const Tokenizer *t, StrBuf *out, const int32_t *ids, size_t n,
                        bool skip_special, Err *err) {
    Detok d;
    detok_init(&d, t, skip_special);
    size_t len = out->len;
    Status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++)
        status = detok_push(&d, ids[i], out, err);
    if (status == STATUS_OK)
        status = detok_flush(&d, out, err);
    if (status != STATUS_OK && out->len > len) {
        out->len = len;
        out->ptr[len] = 0;
    }
    return status;
}
