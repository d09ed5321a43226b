// SPDX-License-Identifier: Apache-2.0
/* token_files.h - a small tokenizer in the published form, as text, for tests that damage it.
 *
 * 256 byte tokens, four merge results (256 "th", 257 "the", 259 "aa", 260 "aaaa"), one entry that
 * no merge yields (258 "xyz"), and the three control tokens and <think> behind them (261..264).
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_TOKEN_FILES_H
#define LILY_TESTS_TOKEN_FILES_H

#include "base/str.h"
#include "base/utf8.h"
#include "text/pretoken.h"
#include "unit.h"

enum { TOKEN_FILES_ROWS = 272 };

/* The byte alphabet's character of each byte, as a JSON object's members `"c": id`. */
static inline void token_files_bytes(StrBuf *out) {
    int id = 0, high = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t b = 0; b < 256; b++) {
            bool is_plain = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b < 0xad) || b > 0xad;
            if (is_plain != (pass == 0))
                continue;
            char c[UTF8_MAX];
            int n = utf8_encode(is_plain ? b : 0x100 + (uint32_t)high++, c);
            bool is_escaped = b == '"' || b == '\\';
            strbuf_printf(out, "\"%s%.*s\": %d,\n", is_escaped ? "\\" : "", n, c, id++);
        }
    }
}

static inline void token_files_vocab(StrBuf *out) {
    strbuf_printf(out, "{");
    token_files_bytes(out);
    strbuf_printf(out, "\"th\": 256, \"the\": 257, \"xyz\": 258, \"aa\": 259, \"aaaa\": 260}");
}

#define TOKEN_FILES_MERGES "t h\nth e\na a\naa aa\n"

static inline void token_files_expression(StrBuf *out, PretokenRule rule) {
    StrView s = pretoken_expression(rule);
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '\\')
            strbuf_append_char(out, '\\');
        strbuf_append_char(out, s.ptr[i]);
    }
}

/* A whole tokenizer.json. */
static inline void token_files_json(StrBuf *out) {
    strbuf_printf(
        out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
             "\"added_tokens\": [\n"
             "{\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true},\n"
             "{\"id\": 262, \"content\": \"<|im_start|>\", \"special\": true},\n"
             "{\"id\": 263, \"content\": \"<|im_end|>\", \"special\": true},\n"
             "{\"id\": 264, \"content\": \"<think>\", \"special\": false, \"lstrip\": false}],\n"
             "\"normalizer\": {\"type\": \"NFC\"},\n"
             "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
             "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"");
    token_files_expression(out, PRETOKEN_QWEN35);
    strbuf_printf(
        out, "\"}, \"behavior\": \"Isolated\", \"invert\": false},\n"
             "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},\n"
             "\"post_processor\": {\"type\": \"ByteLevel\"},\n"
             "\"decoder\": {\"type\": \"ByteLevel\"},\n"
             "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,\n"
             "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\",\n"
             "\"byte_fallback\": false, \"ignore_merges\": false,\n"
             "\"merges\": [\"t h\", [\"th\", \"e\"], \"a a\", \"aa aa\"],\n\"vocab\": ");
    token_files_vocab(out);
    strbuf_printf(out, "}}");
    assert_false(out->is_failed);
}

/* Appends text with the first `from` replaced by `to`; the test fails when there is no `from`. */
static inline void token_files_replace(StrBuf *out, StrView text, const char *from,
                                       const char *to) {
    StrView part = str_view(from, strlen(from));
    size_t at = str_find(text, part);
    if (at == SIZE_MAX)
        fail_msg("no \"%s\" to replace", from);
    strbuf_append(out, text.ptr, at);
    strbuf_append(out, to, strlen(to));
    strbuf_append(out, text.ptr + at + part.len, text.len - at - part.len);
    assert_false(out->is_failed);
}

#endif
