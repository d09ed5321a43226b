// SPDX-License-Identifier: Apache-2.0
/* oracle_parse.c - parses outputs from standard input, one JSON object a line, so that
 * tests/py/test_parse.py can hold the messages beside a second reading. Not a test by itself.
 *
 * In:   {"output", "tools", "is_thinking", "is_cut", "piece": bytes a push, 0: all at once}
 * Out:  the message
 * Thread: one. */
#define _GNU_SOURCE // getline
#include "json_lines.h"
#include "text/parse.h"

static json_t *answer(const json_t *in) {
    Parser *p;
    json_t *message;
    StrView text = json_text(json_object_get(in, "output"));
    size_t piece = (size_t)json_integer_value(json_object_get(in, "piece"));
    ParserOptions options = {.tools = json_object_get(in, "tools"),
                             .start = json_is_true(json_object_get(in, "is_thinking"))
                                          ? PARSE_START_REASONING
                                          : PARSE_START_CONTENT,
                             .has_spelled_tags = true};
    CHECK(parser_open(&p, &options, NULL) == STATUS_OK);
    for (size_t off = 0; off < text.len;) {
        size_t n = piece && piece < text.len - off ? piece : text.len - off;
        CHECK(parser_push(p, str_view(text.ptr + off, n), false, NULL, NULL, NULL) == STATUS_OK);
        off += n;
    }
    bool is_cut = json_is_true(json_object_get(in, "is_cut"));
    CHECK(parser_finish(p, is_cut, NULL, NULL, NULL) == STATUS_OK);
    CHECK(parser_message(p, &message, NULL) == STATUS_OK);
    parser_close(p);
    return message;
}

int main(void) { return json_lines_run(answer); }
