// SPDX-License-Identifier: Apache-2.0
/* parse_text.c - reasoning and content: white space that waits, tags, calls without their tag.
 *
 * Owns:     nothing; see parse_state.h.  Thread: one at a time. */
#include "parse_state.h"

#define PARSE_FUNCTION STR("<function=")

/* Lets waiting white space go out before something visible. */
static void parse_text_release(Parser *p, StrBuf *space, ParseEventKind kind) {
    if (space->len)
        parse_emit(p, kind, strbuf_view(space));
    p->is_failed |= space->is_failed;
    strbuf_clear(space);
}

static void parse_text_reasoning(Parser *p, char c) {
    if (parse_is_space(c)) {
        if (!p->is_reasoning_skipping)
            parse_append(p, &p->reasoning_space, str_view(&c, 1));
        return;
    }
    p->is_reasoning_skipping = false;
    p->is_reasoning_visible = true;
    parse_text_release(p, &p->reasoning_space, PARSE_REASONING);
    parse_emit(p, PARSE_REASONING, str_view(&c, 1));
}

static void parse_text_content(Parser *p, char c) {
    bool is_break = c == '\n' || c == '\r';
    p->is_line_start = c == '\n';
    if (parse_is_space(c)) {
        p->is_line_feed_skipping &= is_break;
        if (!p->is_content_skipping && !p->is_line_feed_skipping)
            parse_append(p, &p->content_space, str_view(&c, 1));
        return;
    }
    p->is_content_skipping = false;
    p->is_line_feed_skipping = false;
    p->is_content_visible = true;
    p->is_close_pending &= !p->is_bare;
    parse_text_release(p, &p->content_space, PARSE_CONTENT);
    parse_emit(p, PARSE_CONTENT, str_view(&c, 1));
}

void parse_text_plain(Parser *p, char c) {
    if (p->state == PARSE_IN_REASONING)
        parse_text_reasoning(p, c);
    else
        parse_text_content(p, c);
}

static void parse_text_plain_all(Parser *p, StrView s) {
    for (size_t i = 0; i < s.len; i++)
        parse_text_plain(p, s.ptr[i]);
}

/* A line that began like a call is text after all. */
static void parse_text_bare_end(Parser *p) {
    p->state = PARSE_IN_CONTENT;
    parse_text_plain_all(p, strbuf_view(&p->raw));
    strbuf_clear(&p->raw);
}

/* A byte of a line that begins with "<function=NAME>", NAME one of the tools', or with a part of
 * it. */
static void parse_text_bare(Parser *p, char c) {
    size_t n = p->raw.len;
    bool is_name = n >= PARSE_FUNCTION.len;
    // White space and quotes may stand around the name.
    bool is_good = is_name ? c != '\n' && c != '<' && n - PARSE_FUNCTION.len < p->max_name_len + 8
                           : c == PARSE_FUNCTION.ptr[n];
    if (!is_good) {
        parse_text_bare_end(p);
        parse_text_byte(p, c);
        return;
    }
    parse_append(p, &p->raw, str_view(&c, 1));
    if (p->is_failed || !is_name || c != '>')
        return;
    StrView name =
        parse_call_trim_name(str_view(p->raw.ptr + PARSE_FUNCTION.len, n - PARSE_FUNCTION.len));
    if (!parse_call_find(p, name)) {
        parse_text_bare_end(p);
        return;
    }
    parse_call_open(p, PARSE_IN_CONTENT, true);
    parse_call_begin(p, PARSE_FUNCTION.len);
}

void parse_text_byte(Parser *p, char c) {
    if (p->is_failed)
        return;
    switch (p->state) {
    case PARSE_IN_REASONING: parse_text_reasoning(p, c); break;
    case PARSE_IN_CONTENT:
        // Behind a <tool_call> that is text, the call is only being talked about.
        if (c == '<' && p->is_line_start && p->has_calls &&
            !str_ends(strbuf_view(&p->content), parse_tag_text(PARSE_TAG_CALL))) {
            strbuf_clear(&p->raw);
            parse_append(p, &p->raw, str_view(&c, 1));
            p->state = PARSE_IN_BARE;
        } else
            parse_text_content(p, c);
        break;
    case PARSE_IN_BARE: parse_text_bare(p, c); break;
    default: parse_call_byte(p, c);
    }
}

static void parse_text_open_call(Parser *p) {
    ParseState origin = p->state;
    strbuf_clear(&p->raw);
    parse_append(p, &p->raw, parse_tag_text(PARSE_TAG_CALL));
    parse_call_open(p, origin, false);
}

static void parse_text_reasoning_tag(Parser *p, ParseTag tag) {
    if (tag == PARSE_TAG_THINK && !p->is_think_swallowed && !p->is_reasoning_visible) {
        p->is_think_swallowed = true;
        p->is_reasoning_skipping = true;
        strbuf_clear(&p->reasoning_space);
    } else if (tag == PARSE_TAG_THINK_END) {
        // White space stays waiting: it goes out only if the reasoning is opened again.
        if (!p->is_reasoning_visible)
            strbuf_clear(&p->reasoning_space);
        p->is_reasoning_skipping = false;
        p->state = PARSE_IN_CONTENT;
        p->is_line_feed_skipping = !p->is_content_visible;
        p->is_line_start = true;
    } else if (tag == PARSE_TAG_CALL && p->has_calls)
        parse_text_open_call(p);
    else
        parse_text_plain_all(p, parse_tag_text(tag));
}

static void parse_text_content_tag(Parser *p, ParseTag tag) {
    bool is_free = !p->is_content_visible; // a think tag here is no part of an answer
    if (tag == PARSE_TAG_CALL && p->has_calls)
        parse_text_open_call(p);
    else if (tag == PARSE_TAG_CALL_END && p->is_close_pending) {
        p->is_close_pending = false;
        p->is_content_skipping = true;
        p->is_line_start = true;
    } else if (is_free && (tag == PARSE_TAG_THINK || tag == PARSE_TAG_THINK_END)) {
        strbuf_clear(&p->content_space);
        p->is_line_feed_skipping = true;
        if (tag == PARSE_TAG_THINK) {
            p->state = PARSE_IN_REASONING;
            p->has_reasoning_part = true;
            p->is_think_swallowed = true;
            p->is_reasoning_skipping = true;
        }
    } else
        parse_text_plain_all(p, parse_tag_text(tag));
}

void parse_text_tag(Parser *p, ParseTag tag) {
    if (p->is_failed)
        return;
    if (p->state == PARSE_IN_BARE)
        parse_text_bare_end(p);
    if (p->state == PARSE_IN_REASONING)
        parse_text_reasoning_tag(p, tag);
    else if (p->state == PARSE_IN_CONTENT)
        parse_text_content_tag(p, tag);
    else
        parse_call_tag(p, tag);
}

void parse_text_finish(Parser *p) {
    if (p->state == PARSE_IN_BARE)
        parse_text_bare_end(p);
    if (p->state == PARSE_IN_REASONING && p->is_reasoning_visible && !p->is_reasoning_skipping)
        parse_text_release(p, &p->reasoning_space, PARSE_REASONING);
}
