// SPDX-License-Identifier: Apache-2.0
/* parse_state.h - what the three files of the output parser share.
 *
 * Path:     parse.c turns pieces into bytes and tags; parse_text.c moves them through reasoning and
 *           content; parse_call.c takes them from the beginning of a call to its end.
 * Owns:     see parse.h.  Thread: one at a time.
 *
 * The machine eats one byte at a time and looks at nothing else, so how the output was cut cannot
 * matter: only the sizes of the events depend on it. */
#ifndef LILY_TEXT_PARSE_STATE_H
#define LILY_TEXT_PARSE_STATE_H

#include "parse.h"

typedef enum ParseTag {
    PARSE_TAG_THINK,     // <think>
    PARSE_TAG_THINK_END, // </think>
    PARSE_TAG_CALL,      // <tool_call>
    PARSE_TAG_CALL_END,  // </tool_call>
    PARSE_TAG_N          // none of them
} ParseTag;

typedef enum ParseState {
    PARSE_IN_REASONING,
    PARSE_IN_CONTENT,
    PARSE_IN_BARE, // content, a line that begins like <function=KNOWN>
    // The rest is a call: everything since its beginning stands in raw.
    PARSE_IN_OPEN,  // behind <tool_call>, before the end of "<function="
    PARSE_IN_NAME,  // of the function
    PARSE_IN_BODY,  // between parameters
    PARSE_IN_KEY,   // of a parameter
    PARSE_IN_VALUE, // behind "<parameter=KEY>"
    PARSE_IN_REST   // behind what ended the parameters without being </function>
} ParseState;

/* Tags that end a value; bits of ParseValue.alive. All begin with '<' and hold no other '<', so the
 * latest '<' is the only place where one can be under way. */
enum { PARSE_CLOSE_PARAMETER = 1, PARSE_OPEN_PARAMETER = 2, PARSE_CLOSE_FUNCTION = 4 };

/* The value of the parameter at hand. Offsets are in raw; SIZE_MAX: none. */
typedef struct ParseValue {
    size_t off;           // first byte behind "<parameter=KEY>"
    size_t tag;           // the '<' of the tag under way
    unsigned alive;       // which tags it may still become; 0: none is under way
    size_t close;         // a </parameter> that waits for what follows it
    size_t refused;       // the last </parameter> that turned out to be data
    size_t line_tag;      // first <parameter= or </function> at the beginning of a line
    size_t hold;          // nothing from here on is sent before the end is known
    size_t start;         // off without the line break; SIZE_MAX until it is known
    size_t sent;          // [start, sent) went out
    bool is_text;         // the value is certainly a string: it goes out as it comes
    bool is_line_tag_end; // no </parameter> comes any more: a line_tag is the end
    size_t guessed;       // bytes of the value when its kind was last guessed
    unsigned types;       // of coerce.h
} ParseValue;

typedef struct ParseCall {
    char *name;
    size_t name_len;
    json_t *object; // arguments
} ParseCall;

struct Parser {
    ParserOptions options;
    bool has_calls;      // tools were offered and calls are wanted
    size_t max_name_len; // of the tools' names
    bool is_finished;
    bool is_failed; // out of memory

    // pieces to bytes and tags (parse.c)
    char cut[4]; // beginning of a character
    int n_cut;
    char spelled[16]; // beginning of a spelled tag
    size_t n_spelled;

    // events (parse.c)
    ParseEventFn fn; // during a push
    void *ctx;
    StrBuf out; // text of the event under way
    ParseEventKind out_kind;
    StrBuf reasoning, content; // all of it so far
    bool has_reasoning_part;
    ParseCall *calls; // complete ones
    size_t n_calls, cap_calls;

    // reasoning and content (parse_text.c)
    ParseState state;
    StrBuf reasoning_space, content_space; // white space that waits for something visible
    bool is_reasoning_visible, is_content_visible;
    bool is_think_swallowed;    // the one repeated <think> is gone
    bool is_reasoning_skipping; // white space behind that <think> goes too
    bool is_content_skipping;   // white space behind a call goes
    bool is_line_feed_skipping; // line feeds at the beginning of the content go
    bool is_line_start;         // the next byte of content begins a line
    bool is_close_pending;      // a </tool_call> of the last call is still to come

    // the call at hand (parse_call.c)
    ParseState origin; // PARSE_IN_REASONING or PARSE_IN_CONTENT
    bool is_bare;      // without <tool_call>
    bool has_begun;    // PARSE_CALL_BEGIN is out
    int32_t call;      // its index
    int32_t n_begun;
    StrBuf raw;     // source text of the call
    size_t mark;    // where in raw the tag, key or rest under way begins
    size_t n_match; // bytes of that tag so far
    StrBuf name, key;
    const json_t *function; // NULL: unknown
    json_t *object;         // arguments so far
    ParseValue value;
};

// parse.c

/* Appends text to the event under way. */
void parse_emit(Parser *p, ParseEventKind kind, StrView text);
/* Sends what is under way, then an event without text. */
void parse_emit_mark(Parser *p, ParseEventKind kind);
/* Appends to any buffer of the parser; failure is kept in is_failed. */
void parse_append(Parser *p, StrBuf *b, StrView text);
StrView parse_tag_text(ParseTag tag);
bool parse_is_space(char c);
/* Keeps the finished call. */
void parse_keep_call(Parser *p);

// parse_text.c

/* One byte, one tag of the output; the machine's two doors. */
void parse_text_byte(Parser *p, char c);
void parse_text_tag(Parser *p, ParseTag tag);
/* A byte that is text of the reasoning or the content (by p->state) whatever it looks like. */
void parse_text_plain(Parser *p, char c);
void parse_text_finish(Parser *p);

// parse_call.c

/* Begins a call; its first bytes are in raw already. */
void parse_call_open(Parser *p, ParseState origin, bool is_bare);
/* The name is in raw[name_off, the last '>'). */
void parse_call_begin(Parser *p, size_t name_off);
/* The function object of a known tool; NULL: unknown. */
const json_t *parse_call_find(const Parser *p, StrView name);
/* The name between "<function=" and '>' without white space and quotes around it. */
StrView parse_call_trim_name(StrView s);
void parse_call_byte(Parser *p, char c);
/* Any tag inside a call. */
void parse_call_tag(Parser *p, ParseTag tag);
/* Sends what is certain of the value under way, if one is. is_last: nothing more comes of it. */
void parse_call_send(Parser *p, bool is_last);
void parse_call_finish(Parser *p, bool is_length_cut);

#endif
