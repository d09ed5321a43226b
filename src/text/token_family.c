// SPDX-License-Identifier: Apache-2.0
/* token_family.c - a tokenizer without files, for models that are made in memory.
 *
 * Owns:     nothing.  Thread: any.
 * Source:   added tokens and their flags: tokenizer_config.json of Qwen3.6. */
#include "token_family.h"

#include "token_load.h"

/* In the order of their ids; a leading '*' marks those that are special. */
static const char TOKEN_FAMILY_LIST[] =
    "*<|endoftext|>\n*<|im_start|>\n*<|im_end|>\n*<|object_ref_start|>\n*<|object_ref_end|>\n"
    "*<|box_start|>\n*<|box_end|>\n*<|quad_start|>\n*<|quad_end|>\n*<|vision_start|>\n"
    "*<|vision_end|>\n*<|vision_pad|>\n*<|image_pad|>\n*<|video_pad|>\n<tool_call>\n</tool_call>\n"
    "<|fim_prefix|>\n<|fim_middle|>\n<|fim_suffix|>\n<|fim_pad|>\n<|repo_name|>\n<|file_sep|>\n"
    "<tool_response>\n</tool_response>\n<think>\n</think>\n*<|audio_start|>\n*<|audio_end|>\n"
    "*<tts_pad>\n*<tts_text_bos>\n*<tts_text_eod>\n*<tts_text_bos_single>\n*<|audio_pad|>\n";

/* Word number k (from 0): " a" to " z", " aa", " ab", ... */
static StrView token_family_word(char buffer[16], int32_t k) {
    size_t at = 16;
    for (k++; k > 0; k = (k - 1) / 26)
        buffer[--at] = (char)('a' + (k - 1) % 26);
    buffer[--at] = ' ';
    return str_view(buffer + at, 16 - at);
}

static Status token_family_added(TokenModel *m, int32_t first_id, Err *err) {
    StrView rest = str_view(TOKEN_FAMILY_LIST, sizeof TOKEN_FAMILY_LIST - 1);
    for (int32_t id = first_id; rest.len; id++) {
        size_t end = str_find(rest, STR("\n"));
        bool is_special = rest.ptr[0] == '*';
        StrView text = str_view(rest.ptr + is_special, end - is_special);
        TRY(vocab_set(&m->vocab, id, text, err));
        TRY(added_append(&m->added, (AddedToken){text, id, is_special}, err));
        rest = str_view(rest.ptr + end + 1, rest.len - end - 1);
    }
    return STATUS_OK;
}

static Status token_family_build(TokenModel *m, int32_t n_rows, Err *err) {
    int32_t byte_ids[256], twice;
    int32_t n_base = n_rows - TOKEN_FAMILY_ADDED;
    token_load_byte_order(byte_ids);
    TRY(vocab_init(&m->vocab, n_rows, err));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        TRY(vocab_set(&m->vocab, byte_ids[b], str_view(&byte, 1), err));
    }
    for (int32_t id = 256; id < n_base; id++) {
        char buffer[16];
        TRY(vocab_set(&m->vocab, id, token_family_word(buffer, id - 256), err));
    }
    TRY(vocab_index(&m->vocab, NULL, &twice, err));
    TRY(bpe_init(&m->bpe, 0, byte_ids, err));
    TRY(token_family_added(m, n_base, err));
    m->n_base = n_base;
    m->is_nfc = true;
    m->rule = PRETOKEN_QWEN35;
    return token_load_finish(m, "built-in tokenizer", err);
}

Status token_family_fill(TokenModel *out, int32_t n_rows, Err *err) {
    CHECK(n_rows >= TOKEN_FAMILY_MIN && n_rows <= LIMIT_VOCAB);
    TokenModel m = {0};
    Status status = token_family_build(&m, n_rows, err);
    if (status == STATUS_OK)
        *out = m;
    else
        token_model_fini(&m);
    return status;
}
