// SPDX-License-Identifier: Apache-2.0
/* chat.h - a conversation as JSON rendered to the prompt text that the model was trained on.
 *
 * Path:     engine/turn renders here, encodes with the tokenizer, and opens a parser (parse.h) in
 *           the state that is_thinking_open tells.
 * Owns:     a ChatPrompt owns its text and bits.  Thread: any; an object has one at a time.
 * Not here: token ids (tokenizer.h), reading the answer (parse.h), other wire forms (src/wire). */
#ifndef LILY_TEXT_CHAT_H
#define LILY_TEXT_CHAT_H

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

/* The published templates of the family. They differ in three places: preserve_thinking (3.6
 * only), scalars in call arguments (3.5 prints True, None), thinking off by default (small). */
typedef enum ChatFamily {
    CHAT_QWEN36,      // 3.6: 35B-A3B, 27B
    CHAT_QWEN35,      // 3.5: 4B and up
    CHAT_QWEN35_SMALL // 3.5: 0.8B, 2B
} ChatFamily;

/* "qwen3.6", "qwen3.5", "qwen3.5-small". */
const char *chat_family_name(ChatFamily family);

/* Which known template this text is, by the SHA-256 of its bytes without line feeds at the end.
 * False: none of them, and *out is untouched. */
bool chat_family_find(ChatFamily *out, StrView template_text);

/* The family of a checkpoint folder: chat_template.jinja, else "chat_template" in
 * tokenizer_config.json (a text, or a list of named ones of which "default" counts). A template
 * that is missing or none of the known ones gives a warning in the log and CHAT_QWEN36.
 *
 * dir     NULL: CHAT_QWEN36 without a word
 * Returns STATUS_FORMAT, STATUS_IO, STATUS_DENIED, STATUS_TOO_LARGE, STATUS_MEMORY for a file that
 * is there and cannot be read. */
NODISCARD Status chat_family_open(ChatFamily *out, const char *dir, const Log *log, Err *err);

typedef struct ChatOptions {
    bool add_generation_prompt;
    int enable_thinking;   // -1: absent (also for values that are no boolean), 0: false, 1: true
    int preserve_thinking; // the same; keeps the reasoning of all turns. CHAT_QWEN36 only
    bool add_vision_id;    // "Picture 1: " before an image
    bool continue_final;   // the last message is an assistant's and is to be gone on with
    bool is_lenient;       // see chat_render
    bool is_text_only;     // refuse images and videos by name
} ChatOptions;

/* Nothing given: what the reference does with no keyword arguments. */
#define CHAT_OPTIONS_ABSENT ((ChatOptions){.enable_thinking = -1, .preserve_thinking = -1})

typedef struct ChatPrompt {
    StrBuf text;
    uint8_t *trusted;      // bit i & 7 of trusted[i >> 3]: byte i of text came from the template;
                           // NULL only when text is empty
    bool is_thinking_open; // the prompt ends inside <think>
} ChatPrompt;              // {0} is empty

/* Renders a conversation.
 *
 * out       an empty ChatPrompt; untouched on failure               (out)
 * messages  list of {"role", "content", "reasoning_content", "tool_calls"}: content is a text, null
 *           or a list of parts; a call is {"function": {"name", "arguments"}} or {"name",
 *           "arguments"}                                            (in)
 * tools     list of tool objects, printed whole; NULL, empty or no list: no tools  (in)
 *
 * Strict (is_lenient false): the bytes that jinja2 renders from the official file, and where the
 * file raises, STATUS_INVALID with its sentence as the whole error text ("No user query found in
 * messages."). Where the reference stops with a type error (a name that is no text, arguments that
 * are no object), STATUS_INVALID with a sentence of our own. Two forms that only happen to work
 * there are refused: a content part that is no object, and a part whose "text" is a list or object.
 *
 * Lenient, for servers; everything else is as in strict mode:
 * - role "developer" is "system";
 * - system messages at the beginning become one, in their order, a blank line between;
 * - a later system message is a system block where it stands, so that the beginning of the prompt
 *   stays as it was;
 * - no user query: every assistant turn counts as behind the query and keeps its reasoning;
 * - arguments may be JSON in a string (an empty one or null: no parameters);
 * - "reasoning" is taken where "reasoning_content" is no string.
 *
 * continue_final (refused together with add_generation_prompt, and unless the last message is an
 * assistant's without tool calls): the prompt ends behind the last message's own text, with its
 * white space at the end. With reasoning_content and no content the reasoning is gone on with
 * (is_thinking_open); else the content, behind a closed think block.
 *
 * Returns STATUS_INVALID as above, STATUS_MEMORY. */
NODISCARD Status chat_render(ChatPrompt *out, ChatFamily family, const json_t *messages,
                             const json_t *tools, const ChatOptions *options, Err *err);
void chat_prompt_fini(ChatPrompt *p);

#endif
