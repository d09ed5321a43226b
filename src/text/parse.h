// SPDX-License-Identifier: Apache-2.0
/* parse.h - the model's text taken apart into reasoning, content and tool calls while it arrives.
 *
 * Path:     engine/turn pushes each decoded piece and forwards the events; the parse verb pushes
 * raw text; parser_message gives the whole message at the end. Owns:     a Parser owns its buffers.
 * Thread: one at a time. Not here: which ids are control tokens (tokenizer.h), wire forms and call
 * ids (src/wire), JSON that a schema forces (grammar.h).
 *
 * The rules. Reasoning runs to </think>; white space before it and the line feeds behind it belong
 * to the frame. Content loses its leading line feeds and its trailing white space. A call is
 *     <tool_call> <function=NAME> (<parameter=KEY> VALUE </parameter>)* </function> </tool_call>
 * with white space anywhere between; a value loses one line break at each end. White space is ASCII
 * space, tab, LF, VT, FF, CR. Every other byte of the output comes out exactly once, in the events
 * of one kind, and however the output was cut into pieces, the concatenated events are the same.
 *
 * Tolerated, when tools are offered: a call inside open reasoning (it closes the reasoning), a call
 * without <tool_call> at the beginning of a line when the name is a known one, missing
 * </parameter>,
 * </function> or </tool_call> where the end is certain. Other text inside a call ends its
 * parameters: the call stands if its required parameters are there, and the text goes to the
 * content.
 *
 * Damage degrades to text: what begins like a call and is none comes out as the text it is, as
 * content or, inside open reasoning, as reasoning. Arguments are sent while they are made, so a
 * stream's receiver may have seen the beginning of such a call: PARSE_CALL_DROP then says that the
 * call with this index never was, and its whole source text follows as text. Its arguments sent so
 * far are never a complete JSON object, so a receiver that cannot take anything back still has
 * nothing it could execute. A dropped call's index is not used again. parser_message knows only
 * complete calls. */
#ifndef LILY_TEXT_PARSE_H
#define LILY_TEXT_PARSE_H

#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

#include <stdint.h>

typedef enum ParseEventKind {
    PARSE_REASONING,  // text
    PARSE_CONTENT,    // text
    PARSE_CALL_BEGIN, // call, name
    PARSE_CALL_ARGS,  // call, name, text: a piece of the arguments' JSON text
    PARSE_CALL_END,   // call, name: the pieces make one JSON object
    PARSE_CALL_DROP   // call, name: forget the call
} ParseEventKind;

typedef struct ParseEvent {
    ParseEventKind kind;
    StrView text; // whole UTF-8 characters
    int32_t call; // counts begun calls from 0; -1 outside calls
    StrView name; // of the function; empty outside calls
} ParseEvent;

/* Called from parser_push and parser_finish; the views live until it returns. */
typedef void (*ParseEventFn)(void *ctx, const ParseEvent *e);

typedef enum ParseStart {
    PARSE_START_CONTENT,   // behind a closed think block: leading line feeds are not content
    PARSE_START_REASONING, // the prompt ends inside <think>
    PARSE_START_CONTINUE   // behind the beginning of the content: every byte counts
} ParseStart;

typedef struct ParserOptions {
    const json_t *tools; // as given to chat_render; NULL or empty: none offered, calls stay text.
                         // Kept: not changed while the parser lives
    ParseStart start;
    bool has_spelled_tags;    // raw text: <think>, </think>, <tool_call>, </tool_call> count by
                              // spelling. False: only pieces pushed with is_control count
    bool is_tool_choice_none; // tools stay known but calls stay text
} ParserOptions;

typedef struct Parser Parser;

/* Returns STATUS_MEMORY. */
NODISCARD Status parser_open(Parser **out, const ParserOptions *options, Err *err);
void parser_close(Parser *p);

/* The next piece of the output.
 *
 * text        any bytes; cut characters are joined, what is no UTF-8 becomes U+FFFD  (in)
 * is_control  the piece is exactly one added token (by its id), so that <tool_call> written as
 * ordinary text can be told from the control token. Added tokens without a meaning here are text fn
 * NULL: no events Returns STATUS_MEMORY; then the parser only gives STATUS_MEMORY from there on.
 * Cost: linear in the text, over all pieces. */
NODISCARD Status parser_push(Parser *p, StrView text, bool is_control, ParseEventFn fn, void *ctx,
                             Err *err);

/* The end of the output; nothing may be pushed behind it.
 *
 * is_length_cut  the output was cut (token limit, context, cancelled): an open call is not
 * completed from what is there, unless its </function> was seen */
NODISCARD Status parser_finish(Parser *p, bool is_length_cut, ParseEventFn fn, void *ctx, Err *err);

/* True while the text that comes next is reasoning: what a thinking budget counts. A <think> token
 * before any content opens the reasoning again, so a budget that is spent closes it at once. */
bool parser_is_thinking(const Parser *p);
/* True between the beginning and the end of a call. */
bool parser_is_in_call(const Parser *p);

/* Complete calls so far. */
size_t parser_n_calls(const Parser *p);

/* The whole message, in the form that chat_render takes back:
 *     {"role": "assistant", "content": text or null, "reasoning_content": text or null,
 *      "tool_calls": [{"type": "function", "function": {"name", "arguments": {...}}}, ...]}
 * content is null when empty; reasoning_content is null when the output had no thinking part. A
 * parameter written twice stands twice in the arguments' text (the first was sent before the second
 * came) and once here, the last one winning, as JSON readers take it.
 * *out is the caller's (json_decref). Returns STATUS_MEMORY. */
NODISCARD Status parser_message(const Parser *p, json_t **out, Err *err);

#endif
