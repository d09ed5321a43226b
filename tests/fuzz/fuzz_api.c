// SPDX-License-Identifier: Apache-2.0
/* fuzz_api.c - messages and tools of a stranger through the C library: taken or refused, and what
 * is taken reads back the same.
 *
 * Path:     the input's first line is the tools, the rest the messages.
 * Owns:     nothing past a run.  Thread: fuzzer's. */
#include "base/status.h"
#include "lily.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The conversation of chat once more from its own JSON text must be that text. */
static void check_round_trip(LilyModel *model, LilyChat *chat) {
    char *text = NULL, *again = NULL;
    LilyChat *copy = NULL;
    CHECK(lily_chat_json(chat, &text, NULL, NULL) == LILY_OK);
    CHECK(lily_chat_open(&copy, model, NULL) == LILY_OK);
    CHECK(lily_chat_add_json(copy, text, LILY_TERMINATED, NULL) == LILY_OK);
    CHECK(lily_chat_json(copy, &again, NULL, NULL) == LILY_OK);
    CHECK(strcmp(text, again) == 0);
    lily_free(text);
    lily_free(again);
    lily_chat_close(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LilyModel *model = NULL;
    LilyModelOptions o = {.size = sizeof o, .n_threads = 1, .ctx_tok = 512, .n_answers = 1};
    CHECK(lily_model_open(&model, "synth:tiny,layers=1", &o, NULL) == LILY_OK);
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    size_t n_tools = line ? (size_t)(line - data) : 0;
    const char *messages = (const char *)data + (line ? n_tools + 1 : 0);
    LilyChat *chat = NULL;
    CHECK(lily_chat_open(&chat, model, NULL) == LILY_OK);
    if (n_tools)
        (void)lily_chat_set_tools(chat, (const char *)data, n_tools, NULL);
    size_t len = size - (line ? n_tools + 1 : 0);
    if (lily_chat_add_json(chat, len ? messages : "", len, NULL) == LILY_OK) {
        check_round_trip(model, chat);
        size_t n = lily_chat_n_messages(chat);
        LilyAnswerOptions answer;
        lily_answer_defaults(&answer, sizeof answer, model);
        answer.max_tokens = 1;
        LilyError error = {0};
        LilyStatus status = lily_chat_answer(chat, &answer, NULL, NULL, &error);
        if (status != LILY_OK)
            CHECK(error.text[0] && !strchr(error.text, '\n') && lily_chat_n_messages(chat) == n);
    }
    lily_chat_close(chat);
    lily_model_close(model);
    return 0;
}
