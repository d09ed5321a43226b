// SPDX-License-Identifier: Apache-2.0
/* token_load.c - reads tokenizer.json, or vocab.json with merges.txt, and tokenizer_config.json.
 *
 * Everything that would change an id and is not what this family uses is refused by name.
 *
 * Owns:     the parsed files during a load.  Thread: any.
 * Source:   the file formats of the `tokenizers` and `transformers` packages. */
#include "token_load.h"

#include "base/checked.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

// Without these a conversation has neither a beginning nor an end.
static const StrView TOKEN_LOAD_NEEDED[] = {
    {"<|im_start|>", 12}, {"<|im_end|>", 10}, {"<|endoftext|>", 13}};

/* A load in progress. */
typedef struct TokenLoad {
    TokenModel *m;
    const TokenFiles *files;
    const Log *log;
    StrBuf left, right; // bytes of a spelling
    Err *err;
} TokenLoad;

void token_model_fini(TokenModel *m) {
    vocab_fini(&m->vocab);
    bpe_fini(&m->bpe);
    added_fini(&m->added);
    *m = (TokenModel){0};
}

static bool token_load_is_printable(uint32_t c) {
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The byte that a character of the byte alphabet stands for; -1: it is none. */
static int token_load_byte(uint32_t c) {
    if (token_load_is_printable(c))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)c - 0x100; // 0x00..0x20
    if (c >= 0x121 && c <= 0x142)
        return (int)c - 0x121 + 0x7f; // 0x7f..0xa0
    return c == 0x143 ? 0xad : -1;
}

bool token_load_spelling(StrBuf *out, StrView spelling) {
    for (size_t at = 0; at < spelling.len;) {
        uint32_t c;
        int n = utf8_decode(spelling.ptr + at, spelling.len - at, &c);
        int byte = n > 0 ? token_load_byte(c) : -1;
        if (byte < 0)
            return false;
        strbuf_append_char(out, (char)byte);
        at += (size_t)n;
    }
    return true;
}

void token_load_byte_order(int32_t ids[256]) {
    int32_t id = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t b = 0; b < 256; b++)
            if (token_load_is_printable(b) == (pass == 0))
                ids[b] = id++;
}

/* A member that must be absent, null, false, 0 or "" - or else changes ids. */
static Status token_load_off(TokenLoad *l, const json_t *object, const char *key,
                             const char *where) {
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v) || json_is_false(v) ||
        (json_is_string(v) && json_string_length(v) == 0) ||
        (json_is_number(v) && json_number_value(v) == 0))
        return STATUS_OK;
    return err_set(l->err, STATUS_UNSUPPORTED, "%s: %s: expected none, found %s", where, key,
                   json_type_text(v));
}

/* A member that must be the given string. */
static Status token_load_text_is(TokenLoad *l, const json_t *object, const char *key,
                                 const char *expected, const char *where) {
    StrView text = json_text(json_object_get(object, key));
    if (str_equal(text, str_view(expected, strlen(expected))))
        return STATUS_OK;
    return err_set(l->err, STATUS_UNSUPPORTED, "%s: %s: expected \"%s\", found \"%.*s\"", where,
                   key, expected, (int)min_size(text.len, 100), text.ptr ? text.ptr : "");
}

/* All members of the object "spelling": id. */
static Status token_load_vocab(TokenLoad *l, json_t *vocab, const char *where) {
    if (!json_is_object(vocab))
        return err_set(l->err, STATUS_FORMAT, "%s: expected an object, found %s", where,
                       json_type_text(vocab));
    Vocab *v = &l->m->vocab;
    const char *key;
    size_t len;
    json_t *value;
    json_object_keylen_foreach(vocab, key, len, value) {
        int shown = (int)min_size(len, 100);
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= v->n_rows)
            return err_set(l->err, STATUS_FORMAT,
                           "%s: \"%.*s\": expected an id from 0 to %d, found %s (%lld)", where,
                           shown, key, v->n_rows - 1, json_type_text(value), (long long)id);
        strbuf_clear(&l->left);
        if (!token_load_spelling(&l->left, str_view(key, len)))
            return err_set(l->err, STATUS_FORMAT,
                           "%s: \"%.*s\" (id %lld): not in the byte alphabet", where, shown, key,
                           (long long)id);
        TRY(strbuf_check(&l->left, l->err));
        if (len == 0)
            return err_set(l->err, STATUS_FORMAT, "%s: id %lld: empty token", where, (long long)id);
        if (vocab_bytes(v, (int32_t)id).len)
            return err_set(l->err, STATUS_FORMAT, "%s: \"%.*s\": id %lld is given twice", where,
                           shown, key, (long long)id);
        TRY(vocab_set(v, (int32_t)id, strbuf_view(&l->left), l->err));
    }
    l->m->n_base = v->n_ids;
    int32_t twice;
    TRY(vocab_index(v, NULL, &twice, l->err));
    CHECK(twice < 0); // spellings differ, so bytes do
    return STATUS_OK;
}

/* Adds one merge; number counts from 1. */
static Status token_load_merge(TokenLoad *l, StrView left, StrView right, const char *where,
                               size_t number) {
    strbuf_clear(&l->left);
    strbuf_clear(&l->right);
    bool is_good = token_load_spelling(&l->left, left) && token_load_spelling(&l->right, right);
    TRY(strbuf_check(&l->left, l->err));
    TRY(strbuf_check(&l->right, l->err));
    if (!is_good || left.len == 0 || right.len == 0)
        return err_set(l->err, STATUS_FORMAT,
                       "%s: merge %zu: expected two tokens in the byte alphabet, found \"%.*s\" "
                       "\"%.*s\"",
                       where, number, (int)min_size(left.len, 100), left.ptr ? left.ptr : "",
                       (int)min_size(right.len, 100), right.ptr ? right.ptr : "");
    const Vocab *v = &l->m->vocab;
    int32_t a = vocab_find(v, strbuf_view(&l->left)), b = vocab_find(v, strbuf_view(&l->right));
    strbuf_append_view(&l->left, strbuf_view(&l->right));
    TRY(strbuf_check(&l->left, l->err));
    int32_t c = vocab_find(v, strbuf_view(&l->left));
    if (a < 0 || b < 0 || c < 0)
        return err_set(
            l->err, STATUS_FORMAT,
            "%s: merge %zu: %s of \"%.*s\" \"%.*s\" is not in the vocabulary", where, number,
            a < 0   ? "the left part"
            : b < 0 ? "the right part"
                    : "the result",
            (int)min_size(left.len, 100), left.ptr, (int)min_size(right.len, 100), right.ptr);
    if (!bpe_add(&l->m->bpe, a, b, c))
        return err_set(l->err, STATUS_FORMAT, "%s: merge %zu: \"%.*s\" \"%.*s\" is given twice",
                       where, number, (int)min_size(left.len, 100), left.ptr,
                       (int)min_size(right.len, 100), right.ptr);
    return STATUS_OK;
}

/* Room for n merges; every byte must have a token. */
static Status token_load_bpe(TokenLoad *l, size_t n, const char *where) {
    if (n > BPE_MAX_MERGES)
        return err_set(l->err, STATUS_TOO_LARGE, "%s: expected at most %d merges, found %zu", where,
                       BPE_MAX_MERGES, n);
    int32_t byte_ids[256];
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        byte_ids[b] = vocab_find(&l->m->vocab, str_view(&byte, 1));
        if (byte_ids[b] < 0)
            return err_set(l->err, STATUS_FORMAT, "%s: no token for byte 0x%02X", where,
                           (unsigned)b);
    }
    return bpe_init(&l->m->bpe, (uint32_t)n, byte_ids, l->err);
}

/* Splits "left right" at its only space. */
static bool token_load_split(StrView line, StrView *left, StrView *right) {
    size_t space = str_find(line, STR(" "));
    if (space == SIZE_MAX || str_find_last(line, STR(" ")) != space)
        return false;
    *left = str_view(line.ptr, space);
    *right = str_view(line.ptr + space + 1, line.len - space - 1);
    return true;
}

/* The list of merges in tokenizer.json: "left right" or ["left", "right"] each. */
static Status token_load_merge_list(TokenLoad *l, const json_t *merges, const char *where) {
    if (!json_is_array(merges))
        return err_set(l->err, STATUS_FORMAT, "%s: merges: expected a list, found %s", where,
                       json_type_text(merges));
    TRY(token_load_bpe(l, json_array_size(merges), where));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *item = json_array_get(merges, i);
        StrView left = {0}, right = {0};
        bool is_good;
        if (json_is_array(item)) {
            left = json_text(json_array_get(item, 0));
            right = json_text(json_array_get(item, 1));
            is_good = json_array_size(item) == 2 && left.ptr && right.ptr;
        } else {
            is_good = json_is_string(item) && token_load_split(json_text(item), &left, &right);
        }
        if (!is_good)
            return err_set(l->err, STATUS_FORMAT, "%s: merge %zu: expected two tokens, found %s",
                           where, i + 1, json_type_text(item));
        TRY(token_load_merge(l, left, right, where, i + 1));
    }
    return STATUS_OK;
}

/* Cuts the next line off text; false at its end. */
static bool token_load_line(StrView *text, StrView *line) {
    if (text->len == 0)
        return false;
    size_t end = str_find(*text, STR("\n")), skip = 1;
    if (end == SIZE_MAX) {
        end = text->len;
        skip = 0;
    }
    *line = str_view(text->ptr, end);
    *text = str_view(text->ptr + end + skip, text->len - end - skip);
    if (line->len && line->ptr[line->len - 1] == '\r')
        line->len--;
    return true;
}

/* merges.txt: a merge a line, in order; lines that begin with "#version" are none. */
static Status token_load_merge_lines(TokenLoad *l) {
    const char *where = l->files->merges.name;
    StrView text = l->files->merges.text, line;
    size_t n = 0, number = 0;
    while (token_load_line(&text, &line))
        n++;
    TRY(token_load_bpe(l, n, l->files->vocab.name));
    text = l->files->merges.text;
    while (token_load_line(&text, &line)) {
        StrView left, right;
        number++;
        if (str_starts(line, STR("#version")))
            continue;
        if (!token_load_split(line, &left, &right))
            return err_set(l->err, STATUS_FORMAT,
                           "%s: line %zu: expected two tokens with one space between, found "
                           "\"%.*s\"",
                           where, number, (int)min_size(line.len, 100), line.ptr);
        TRY(token_load_merge(l, left, right, where, number));
    }
    return STATUS_OK;
}

/* One added token with its flags, on top of what is known of it. */
static Status token_load_added(TokenLoad *l, const json_t *item, int64_t id, const char *where) {
    static const char *const FLAGS[] = {"lstrip", "rstrip", "single_word", "normalized"};
    Vocab *v = &l->m->vocab;
    StrView text = json_text(json_object_get(item, "content"));
    if (text.len == 0)
        return err_set(l->err, STATUS_FORMAT, "%s: id %lld: content: expected a text, found %s",
                       where, (long long)id, json_type_text(json_object_get(item, "content")));
    int shown = (int)min_size(text.len, 100);
    if (id < 0 || id >= v->n_rows)
        return err_set(l->err, STATUS_FORMAT, "%s: %.*s: expected an id from 0 to %d, found %lld",
                       where, shown, text.ptr, v->n_rows - 1, (long long)id);
    const bool no = false;
    bool flag;
    for (size_t i = 0; i < COUNT_OF(FLAGS); i++) {
        TRY(json_get_bool(&flag, item, FLAGS[i], &no, where, l->err));
        if (flag)
            return err_set(l->err, STATUS_UNSUPPORTED, "%s: %.*s: %s: expected false, found true",
                           where, shown, text.ptr, FLAGS[i]);
    }
    TRY(json_get_bool(&flag, item, "special", &no, where, l->err));
    AddedToken *known = added_find_text(&l->m->added, text);
    if (known) {
        if (known->id != id)
            return err_set(l->err, STATUS_FORMAT, "%s: %.*s: expected id %d as before, found %lld",
                           where, shown, text.ptr, known->id, (long long)id);
        known->is_special = flag;
        return STATUS_OK;
    }
    StrView there = vocab_bytes(v, (int32_t)id);
    if (there.len && !str_equal(there, text))
        return err_set(l->err, STATUS_FORMAT, "%s: %.*s: id %lld is the token \"%.*s\"", where,
                       shown, text.ptr, (long long)id, (int)min_size(there.len, 100), there.ptr);
    int32_t base = vocab_find(v, text);
    if (base >= 0 && base != id)
        return err_set(l->err, STATUS_FORMAT,
                       "%s: %.*s: expected id %d of the vocabulary, found %lld", where, shown,
                       text.ptr, base, (long long)id);
    if (l->m->added.n == LIMIT_ADDED_TOKENS)
        return err_set(l->err, STATUS_TOO_LARGE, "%s: expected at most %d added tokens", where,
                       LIMIT_ADDED_TOKENS);
    if (!there.len)
        TRY(vocab_set(v, (int32_t)id, text, l->err));
    return added_append(&l->m->added, (AddedToken){text, (int32_t)id, flag}, l->err);
}

static Status token_load_added_list(TokenLoad *l, const json_t *list) {
    const char *where = l->files->tokenizer.name;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(l->err, STATUS_FORMAT, "%s: added_tokens: expected a list, found %s", where,
                       json_type_text(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id;
        const json_t *item = json_array_get(list, i);
        TRY(json_get_int(&id, item, "id", 0, INT32_MAX, NULL, where, l->err));
        TRY(token_load_added(l, item, id, where));
    }
    return STATUS_OK;
}

/* The splitter's expression; is_known false: the files name none. */
static Status token_load_rule(TokenLoad *l, StrView expression, const char *where,
                              PretokenRule *rule) {
    for (PretokenRule r = PRETOKEN_QWEN35; r <= PRETOKEN_QWEN2; r++) {
        if (str_equal(expression, pretoken_expression(r))) {
            *rule = r;
            return STATUS_OK;
        }
    }
    return err_set(l->err, STATUS_UNSUPPORTED,
                   "%s: expected the splitting expression of Qwen2 or Qwen3.5, found \"%.*s\"",
                   where, (int)min_size(expression.len, 200), expression.ptr ? expression.ptr : "");
}

/* normalizer: null, NFC, or a Sequence of NFC. */
static Status token_load_normalizer(TokenLoad *l, const json_t *v) {
    const char *where = l->files->tokenizer.name;
    l->m->is_nfc = false;
    if (!v || json_is_null(v))
        return STATUS_OK;
    const json_t *list = json_object_get(v, "normalizers");
    if (str_equal(json_text(json_object_get(v, "type")), STR("Sequence")) && json_is_array(list)) {
        if (json_array_size(list) == 0)
            return STATUS_OK;
        v = json_array_get(list, 0);
        if (json_array_size(list) > 1)
            return err_set(l->err, STATUS_UNSUPPORTED,
                           "%s: normalizer: expected NFC alone, found a sequence of %zu", where,
                           json_array_size(list));
    }
    l->m->is_nfc = true;
    return token_load_text_is(l, v, "type", "NFC", where);
}

/* pre_tokenizer: the splitting expression, then the byte alphabet without any addition. */
static Status token_load_pre_tokenizer(TokenLoad *l, const json_t *v) {
    const char *where = l->files->tokenizer.name;
    const json_t *list = json_object_get(v, "pretokenizers");
    TRY(token_load_text_is(l, v, "type", "Sequence", where));
    if (json_array_size(list) != 2)
        return err_set(l->err, STATUS_UNSUPPORTED,
                       "%s: pre_tokenizer: expected Split and ByteLevel, found %zu steps", where,
                       json_array_size(list));
    const json_t *split = json_array_get(list, 0), *bytes = json_array_get(list, 1);
    TRY(token_load_text_is(l, split, "type", "Split", where));
    TRY(token_load_text_is(l, split, "behavior", "Isolated", where));
    TRY(token_load_off(l, split, "invert", where));
    TRY(token_load_rule(l, json_text(json_object_get(json_object_get(split, "pattern"), "Regex")),
                        where, &l->m->rule));
    TRY(token_load_text_is(l, bytes, "type", "ByteLevel", where));
    static const char *const FLAGS[] = {"add_prefix_space", "use_regex"};
    for (size_t i = 0; i < COUNT_OF(FLAGS); i++) {
        bool flag;
        const bool yes = true; // both are on unless the file says otherwise
        TRY(json_get_bool(&flag, bytes, FLAGS[i], &yes, where, l->err));
        if (flag)
            return err_set(l->err, STATUS_UNSUPPORTED,
                           "%s: pre_tokenizer: %s: expected false, found true", where, FLAGS[i]);
    }
    return STATUS_OK;
}

static Status token_load_tokenizer(TokenLoad *l, const json_t *root) {
    const char *where = l->files->tokenizer.name;
    if (!json_is_object(root))
        return err_set(l->err, STATUS_FORMAT, "%s: expected an object, found %s", where,
                       json_type_text(root));
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return err_set(l->err, STATUS_FORMAT, "%s: model: expected an object, found %s", where,
                       json_type_text(model));
    if (json_object_get(model, "type"))
        TRY(token_load_text_is(l, model, "type", "BPE", where));
    // unk_token may be anything: every byte has a token, so nothing is unknown.
    static const char *const OFF[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < COUNT_OF(OFF); i++)
        TRY(token_load_off(l, model, OFF[i], where));
    TRY(token_load_off(l, root, "truncation", where));
    TRY(token_load_off(l, root, "padding", where));
    TRY(token_load_normalizer(l, json_object_get(root, "normalizer")));
    TRY(token_load_pre_tokenizer(l, json_object_get(root, "pre_tokenizer")));
    const json_t *post = json_object_get(root, "post_processor");
    if (post && !json_is_null(post))
        TRY(token_load_text_is(l, post, "type", "ByteLevel", where));
    TRY(token_load_text_is(l, json_object_get(root, "decoder"), "type", "ByteLevel", where));
    TRY(token_load_vocab(l, json_object_get(model, "vocab"), where));
    TRY(token_load_merge_list(l, json_object_get(model, "merges"), where));
    return token_load_added_list(l, json_object_get(root, "added_tokens"));
}

/* A decimal id such as "248044"; -1: something else. */
static int64_t token_load_number(StrView text) {
    int64_t n = 0;
    if (text.len == 0 || text.len > 9)
        return -1;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return -1;
        n = n * 10 + (text.ptr[i] - '0');
    }
    return n;
}

/* tokenizer_config.json, on top of the rest. */
static Status token_load_config(TokenLoad *l, json_t *root) {
    const char *where = l->files->config.name;
    if (!json_is_object(root))
        return err_set(l->err, STATUS_FORMAT, "%s: expected an object, found %s", where,
                       json_type_text(root));
    static const char *const OFF[] = {"add_prefix_space", "add_bos_token", "add_eos_token",
                                      "clean_up_tokenization_spaces", "split_special_tokens"};
    for (size_t i = 0; i < COUNT_OF(OFF); i++)
        TRY(token_load_off(l, root, OFF[i], where));
    const json_t *expression = json_object_get(root, "pretokenize_regex");
    if (expression && !json_is_null(expression)) {
        PretokenRule rule;
        TRY(token_load_rule(l, json_text(expression), where, &rule));
        if (!l->files->tokenizer.text.ptr)
            l->m->rule = rule;
        else if (rule != l->m->rule)
            log_printf(l->log, LOG_WARNING, "%s: pretokenize_regex differs from %s, which is taken",
                       where, l->files->tokenizer.name);
    }
    json_t *added = json_object_get(root, "added_tokens_decoder");
    if (added && !json_is_null(added) && !json_is_object(added))
        return err_set(l->err, STATUS_FORMAT,
                       "%s: added_tokens_decoder: expected an object, found %s", where,
                       json_type_text(added));
    const char *key;
    size_t len;
    json_t *item;
    json_object_keylen_foreach(added, key, len, item) {
        int64_t id = token_load_number(str_view(key, len));
        if (id < 0)
            return err_set(l->err, STATUS_FORMAT,
                           "%s: added_tokens_decoder: expected an id, found \"%.*s\"", where,
                           (int)min_size(len, 100), key);
        TRY(token_load_added(l, item, id, where));
    }
    return STATUS_OK;
}

Status token_load_finish(TokenModel *m, const char *name, Err *err) {
    for (size_t i = 0; i < COUNT_OF(TOKEN_LOAD_NEEDED); i++)
        if (!added_find_text(&m->added, TOKEN_LOAD_NEEDED[i]))
            return err_set(err, STATUS_FORMAT, "%s: no added token %s", name,
                           TOKEN_LOAD_NEEDED[i].ptr);
    for (int32_t id = 0; id < m->vocab.n_ids; id++)
        if (!vocab_bytes(&m->vocab, id).len)
            return err_set(err, STATUS_FORMAT, "%s: id %d has no token, but id %d has", name, id,
                           m->vocab.n_ids - 1);
    for (int32_t i = 0; i < m->added.n; i++)
        m->added.items[i].text = vocab_bytes(&m->vocab, m->added.items[i].id);
    added_sort(&m->added);
    bpe_finish(&m->bpe);
    return STATUS_OK;
}

/* The files without tokenizer.json. */
static Status token_load_pair(TokenLoad *l, json_t *vocab) {
    l->m->is_nfc = true;
    l->m->rule = PRETOKEN_QWEN35;
    TRY(token_load_vocab(l, vocab, l->files->vocab.name));
    return token_load_merge_lines(l);
}

Status token_load(TokenModel *out, const TokenFiles *files, int32_t n_rows, const Log *log,
                  Err *err) {
    TokenModel m = {0};
    TokenLoad l = {.m = &m, .files = files, .log = log, .err = err};
    const TokenFile *base = files->tokenizer.text.ptr ? &files->tokenizer : &files->vocab;
    json_t *root = NULL, *config = NULL;
    Status status = STATUS_OK;
    CHECK(n_rows >= 1 && n_rows <= LIMIT_VOCAB);
    TRY_GOTO(status, vocab_init(&m.vocab, n_rows, err));
    TRY_GOTO(status, json_read(&root, base->text, base->name, err));
    if (base == &files->tokenizer)
        TRY_GOTO(status, token_load_tokenizer(&l, root));
    else
        TRY_GOTO(status, token_load_pair(&l, root));
    if (files->config.text.ptr) {
        TRY_GOTO(status, json_read(&config, files->config.text, files->config.name, err));
        TRY_GOTO(status, token_load_config(&l, config));
    }
    TRY_GOTO(status, token_load_finish(&m, base->name, err));
    *out = m;
fail:
    if (status != STATUS_OK)
        token_model_fini(&m);
    json_decref(root);
    json_decref(config);
    strbuf_fini(&l.left);
    strbuf_fini(&l.right);
    return status;
}
