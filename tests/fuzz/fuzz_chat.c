// SPDX-License-Identifier: Apache-2.0
/* fuzz_chat.c - conversations from outside into the chat template.
 *
 * Input: one byte of options, then JSON: a list of messages, or an object with "messages" and
 * "tools". Must hold: no crash; a prompt is valid UTF-8 that begins and ends as the template
 * writes; bytes outside ASCII are never trusted; what strict mode renders, lenient mode renders
 * too. */
#include "base/utf8.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_prompt(const ChatPrompt *p) {
    CHECK(p->text.len > 0 && p->trusted);
    CHECK(utf8_is_valid(p->text.ptr, p->text.len, NULL));
    for (size_t i = 0; i < p->text.len; i++)
        CHECK(!((unsigned char)p->text.ptr[i] >= 0x80 && (p->trusted[i >> 3] >> (i & 7) & 1)));
    if (p->is_thinking_open)
        CHECK(str_find(strbuf_view(&p->text), STR("<think>\n")) != SIZE_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    unsigned bits = data[0];
    json_t *in = NULL;
    Err err = {0};
    if (json_read(&in, str_view((const char *)data + 1, size - 1), "input", &err) != STATUS_OK)
        return 0;
    const json_t *messages = json_is_object(in) ? json_object_get(in, "messages") : in;
    ChatOptions options = {.add_generation_prompt = bits & 1,
                           .enable_thinking = (int)(bits >> 1 & 3) % 3 - 1,
                           .preserve_thinking = bits & 8 ? 1 : -1,
                           .add_vision_id = bits & 16,
                           .continue_final = bits & 32,
                           .is_text_only = bits & 64};
    for (ChatFamily f = CHAT_QWEN36; f <= CHAT_QWEN35_SMALL; f++) {
        ChatPrompt strict = {0}, lenient = {0};
        options.is_lenient = false;
        Status status =
            chat_render(&strict, f, messages, json_object_get(in, "tools"), &options, &err);
        CHECK(status == STATUS_OK || (status == STATUS_INVALID && err.text[0]));
        options.is_lenient = true;
        Status second =
            chat_render(&lenient, f, messages, json_object_get(in, "tools"), &options, &err);
        CHECK(second == STATUS_OK || second == STATUS_INVALID);
        if (status == STATUS_OK) {
            check_prompt(&strict);
            CHECK(second == STATUS_OK);
        }
        if (second == STATUS_OK)
            check_prompt(&lenient);
        chat_prompt_fini(&strict);
        chat_prompt_fini(&lenient);
    }
    json_decref(in);
    return 0;
}
