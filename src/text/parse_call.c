// SPDX-License-Identifier: Apache-2.0
/* parse_call.c - one tool call, from <tool_call> to its end or to the point where it is none.
 *
 * Owns:     nothing; see parse_state.h.  Thread: one at a time.
 *
 * Where a value ends. Values are not escaped and may hold anything, these tags too. A </parameter>
 * ends the value if white space and then <parameter=, </function>, </tool_call> or the end of the
 * output follow; the first such one counts. If the call ends without one: the last </parameter>,
 * else the first <parameter= or </function> at the beginning of a line. So from the first place on
 * that may turn out to be the end, nothing is sent before one of these rules has decided. */
#include "parse_state.h"

#include "coerce.h"
#include "pyjson.h"

#define PARSE_FUNCTION STR("<function=")

static const struct {
    unsigned bit;
    StrView text;
} parse_call_tags[] = {{PARSE_CLOSE_PARAMETER, {"</parameter>", 12}},
                       {PARSE_OPEN_PARAMETER, {"<parameter=", 11}},
                       {PARSE_CLOSE_FUNCTION, {"</function>", 11}}};

enum {
    PARSE_FOLLOWERS = PARSE_OPEN_PARAMETER | PARSE_CLOSE_FUNCTION,
    PARSE_GUESS_ALWAYS = 64 // bytes of a value up to which each send asks for its kind
};

static StrView parse_call_raw(const Parser *p, size_t from, size_t to) {
    CHECK(from <= to && to <= p->raw.len);
    return from < to ? str_view(p->raw.ptr + from, to - from) : (StrView){0};
}

static StrView parse_call_trim(StrView s) {
    while (s.len && parse_is_space(s.ptr[0]))
        s = str_view(s.ptr + 1, s.len - 1);
    while (s.len && parse_is_space(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

StrView parse_call_trim_name(StrView s) {
    s = parse_call_trim(s);
    if (s.len >= 2 && (s.ptr[0] == '"' || s.ptr[0] == '\'') && s.ptr[s.len - 1] == s.ptr[0])
        s = parse_call_trim(str_view(s.ptr + 1, s.len - 2));
    return s;
}

const json_t *parse_call_find(const Parser *p, StrView name) {
    for (size_t i = 0; i < json_array_size(p->options.tools); i++) {
        const json_t *function = coerce_function(json_array_get(p->options.tools, i));
        const json_t *v = json_object_get(function, "name");
        if (json_is_string(v) && str_equal(json_text(v), name))
            return function;
    }
    return NULL;
}

static void parse_call_state(Parser *p, ParseState state) {
    p->state = state;
    p->n_match = 0;
    p->mark = p->raw.len;
}

void parse_call_open(Parser *p, ParseState origin, bool is_bare) {
    p->origin = origin;
    p->is_bare = is_bare;
    p->is_close_pending = false;
    p->has_begun = false;
    p->function = NULL;
    json_decref(p->object);
    p->object = NULL;
    parse_call_state(p, PARSE_IN_OPEN);
}

static void parse_call_arguments(Parser *p, StrView text) { parse_emit(p, PARSE_CALL_ARGS, text); }

/* Finds value.start as far as raw[.., end) tells; is_end: no more bytes belong to the value. */
static bool parse_call_find_start(Parser *p, size_t end, bool is_end) {
    ParseValue *v = &p->value;
    StrView s = parse_call_raw(p, v->off, end);
    if (v->start != SIZE_MAX)
        return true;
    if (!is_end && (s.len == 0 || (s.len == 1 && s.ptr[0] == '\r')))
        return false;
    v->start = v->off + (str_starts(s, STR("\n")) ? 1 : str_starts(s, STR("\r\n")) ? 2 : 0);
    v->sent = v->start;
    return true;
}

/* `end` without one line break in front of it. */
static size_t parse_call_strip(const Parser *p, size_t start, size_t end) {
    if (end > start && p->raw.ptr[end - 1] == '\n') {
        end--;
        if (end > start && p->raw.ptr[end - 1] == '\r')
            end--;
    }
    return end;
}

static void parse_call_send_text(Parser *p, size_t end) {
    ParseValue *v = &p->value;
    StrBuf escaped = {0};
    pyjson_append_escaped(&escaped, parse_call_raw(p, v->sent, end));
    p->is_failed |= escaped.is_failed;
    parse_call_arguments(p, strbuf_view(&escaped));
    strbuf_fini(&escaped);
    v->sent = end;
}

void parse_call_send(Parser *p, bool is_last) {
    ParseValue *v = &p->value;
    if (p->is_failed || p->state != PARSE_IN_VALUE)
        return;
    size_t end = v->hold != SIZE_MAX    ? v->hold
                 : v->close != SIZE_MAX ? v->close
                 : v->alive             ? v->tag
                                        : p->raw.len;
    if (!parse_call_find_start(p, end, false))
        return;
    end = parse_call_strip(p, v->start, end);
    if (end > v->start && p->raw.ptr[end - 1] == '\r')
        end--; // a line feed may follow
    size_t n = end - v->start;
    if (!v->is_text && (is_last || n <= PARSE_GUESS_ALWAYS || n >= 2 * v->guessed) &&
        coerce_guess(v->types, parse_call_raw(p, v->start, end)) == COERCE_TEXT) {
        v->is_text = true;
        parse_call_arguments(p, STR("\""));
    } else if (!v->is_text && n >= 2 * v->guessed)
        v->guessed = n;
    if (v->is_text && end > v->sent)
        parse_call_send_text(p, end);
}

/* It was no call: all of it is text where it stood. */
static void parse_call_damage(Parser *p) {
    parse_call_send(p, true); // what was sent must not depend on how the output was cut
    if (p->has_begun)
        parse_emit_mark(p, PARSE_CALL_DROP);
    p->state = p->origin;
    for (size_t i = 0; i < p->raw.len; i++)
        parse_text_plain(p, p->raw.ptr[i]);
    strbuf_clear(&p->raw);
}

/* The call is complete. The source text in raw is left to the caller, who may have to go on in it.
 */
static void parse_call_accept(Parser *p) {
    parse_call_arguments(p, json_object_size(p->object) ? STR("}") : STR("{}"));
    parse_emit_mark(p, PARSE_CALL_END);
    parse_keep_call(p);
    if (!p->is_content_visible)
        strbuf_clear(&p->content_space);
    if (p->origin == PARSE_IN_REASONING && !p->is_reasoning_visible)
        strbuf_clear(&p->reasoning_space);
    p->state = PARSE_IN_CONTENT;
    p->is_line_feed_skipping = false;
    p->is_content_skipping = true;
    p->is_line_start = true;
    p->is_close_pending = true;
}

void parse_call_begin(Parser *p, size_t name_off) {
    StrView name = parse_call_trim_name(parse_call_raw(p, name_off, p->raw.len - 1));
    if (name.len == 0) {
        parse_call_damage(p);
        return;
    }
    (void)json_take_alloc_failure();
    p->object = json_object();
    p->is_failed |= json_take_alloc_failure() || !p->object;
    strbuf_clear(&p->name);
    parse_append(p, &p->name, name);
    p->function = parse_call_find(p, name);
    p->has_begun = true;
    p->call = p->n_begun++;
    parse_emit_mark(p, PARSE_CALL_BEGIN);
    parse_call_state(p, PARSE_IN_BODY);
}

static void parse_call_begin_value(Parser *p, size_t key_end) {
    StrView key = parse_call_trim(parse_call_raw(p, p->mark, key_end));
    strbuf_clear(&p->key);
    parse_append(p, &p->key, key);
    parse_call_arguments(p, json_object_size(p->object) ? STR(", \"") : STR("{\""));
    StrBuf escaped = {0};
    pyjson_append_escaped(&escaped, key);
    p->is_failed |= escaped.is_failed;
    parse_call_arguments(p, strbuf_view(&escaped));
    strbuf_fini(&escaped);
    parse_call_arguments(p, STR("\": "));
    p->state = PARSE_IN_VALUE;
    p->value = (ParseValue){.off = key_end + 1,
                            .tag = SIZE_MAX,
                            .close = SIZE_MAX,
                            .refused = SIZE_MAX,
                            .line_tag = SIZE_MAX,
                            .hold = SIZE_MAX,
                            .start = SIZE_MAX,
                            .types = coerce_types(p->function, strbuf_view(&p->key))};
}

/* The value is raw[off, end). */
static void parse_call_end_value(Parser *p, size_t end) {
    ParseValue *v = &p->value;
    json_t *value = NULL;
    (void)json_take_alloc_failure();
    (void)parse_call_find_start(p, end, true);
    end = parse_call_strip(p, v->start, end);
    StrView text = parse_call_raw(p, v->start, end);
    if (v->is_text) {
        parse_call_send_text(p, end);
        parse_call_arguments(p, STR("\""));
        value = json_stringn(text.ptr ? text.ptr : "", text.len);
    } else {
        StrBuf printed = {0};
        if (coerce_value(&value, v->types, text, NULL) != STATUS_OK ||
            pyjson_append(&printed, value, NULL) != STATUS_OK)
            p->is_failed = true;
        p->is_failed |= printed.is_failed;
        parse_call_arguments(p, strbuf_view(&printed));
        strbuf_fini(&printed);
    }
    StrView key = strbuf_view(&p->key);
    p->is_failed |= json_take_alloc_failure();
    if (!value || json_object_setn_new(p->object, key.ptr ? key.ptr : "", key.len, value) != 0)
        p->is_failed = true;
    p->is_failed |= json_take_alloc_failure();
}

/* Behind a value or the name: the tag that ends at raw[i] was met. */
static void parse_call_follow(Parser *p, unsigned tag, size_t i) {
    if (tag == PARSE_CLOSE_FUNCTION) {
        parse_call_accept(p);
        return;
    }
    p->state = PARSE_IN_KEY;
    p->mark = i + 1;
}

/* Tags under way at raw[i]: those that began at `tag` and are still possible. *done: one that ends
 * here, or 0. */
static unsigned parse_call_match(const Parser *p, unsigned alive, size_t tag, size_t i,
                                 unsigned *done) {
    *done = 0;
    for (size_t k = 0; k < COUNT_OF(parse_call_tags); k++) {
        StrView text = parse_call_tags[k].text;
        if (!(alive & parse_call_tags[k].bit))
            continue;
        if (text.ptr[i - tag] != p->raw.ptr[i])
            alive &= ~parse_call_tags[k].bit;
        else if (i - tag + 1 == text.len)
            *done = parse_call_tags[k].bit;
    }
    return alive;
}

/* The </parameter> that waited is data. */
static void parse_call_refuse_close(ParseValue *v) {
    v->refused = v->close;
    if (v->hold == SIZE_MAX)
        v->hold = v->close;
    v->close = SIZE_MAX;
}

static void parse_call_value(Parser *p, size_t i) {
    ParseValue *v = &p->value;
    char c = p->raw.ptr[i];
    unsigned done = 0;
    if (c == '<') {
        bool is_line_start = i > v->off && p->raw.ptr[i - 1] == '\n';
        if (v->close != SIZE_MAX && v->alive)
            parse_call_refuse_close(v); // "</parameter><<": the first '<' led nowhere
        v->tag = i;
        v->alive = PARSE_CLOSE_PARAMETER;
        if (is_line_start || v->close != SIZE_MAX)
            v->alive |= PARSE_FOLLOWERS;
    } else if (v->alive)
        v->alive = parse_call_match(p, v->alive, v->tag, i, &done);
    else if (v->close != SIZE_MAX && !parse_is_space(c))
        parse_call_refuse_close(v);
    if (v->close != SIZE_MAX && c != '<' && !done && v->tag > v->close &&
        !(v->alive & PARSE_FOLLOWERS))
        parse_call_refuse_close(v);
    if (!done)
        return;
    v->alive = 0;
    if (done == PARSE_CLOSE_PARAMETER) {
        v->close = v->tag;
    } else if (v->close != SIZE_MAX || v->is_line_tag_end) {
        parse_call_end_value(p, v->close != SIZE_MAX ? v->close : v->tag);
        parse_call_follow(p, done, i);
    } else if (v->line_tag == SIZE_MAX) {
        v->line_tag = v->tag;
        if (v->hold == SIZE_MAX)
            v->hold = v->tag;
    }
}

static void parse_call_rest(Parser *p, size_t from) {
    p->state = PARSE_IN_REST;
    p->mark = from;
}

static void parse_call_body(Parser *p, size_t i) {
    unsigned done;
    if (p->n_match == 0) {
        if (parse_is_space(p->raw.ptr[i]))
            return;
        p->mark = i;
    }
    p->n_match++;
    // Both tags begin with '<', so a single match from mark tells all.
    unsigned alive = PARSE_FOLLOWERS;
    for (size_t k = p->mark; k <= i; k++)
        alive = parse_call_match(p, alive, p->mark, k, &done);
    if (!alive)
        parse_call_rest(p, p->mark);
    else if (done)
        parse_call_follow(p, done, i);
}

/* The byte raw[i], which is inside a call. */
static void parse_call_at(Parser *p, size_t i) {
    char c = p->raw.ptr[i];
    switch (p->state) {
    case PARSE_IN_OPEN:
        if (p->n_match == 0 && parse_is_space(c))
            break;
        if (c != PARSE_FUNCTION.ptr[p->n_match])
            parse_call_damage(p);
        else if (++p->n_match == PARSE_FUNCTION.len) {
            p->state = PARSE_IN_NAME;
            p->mark = i + 1;
        }
        break;
    case PARSE_IN_NAME:
        if (c == '>')
            parse_call_begin(p, p->mark);
        else if (c == '\n' || c == '<' || c == 0)
            parse_call_damage(p);
        break;
    case PARSE_IN_BODY: parse_call_body(p, i); break;
    case PARSE_IN_KEY:
        if (c == '>')
            parse_call_begin_value(p, i);
        else if (c == '\n' || c == 0) // JSON readers refuse a zero byte in a key
            parse_call_rest(p, p->mark - parse_call_tags[1].text.len);
        break;
    case PARSE_IN_VALUE: parse_call_value(p, i); break;
    default: break; // the rest is only kept
    }
}

void parse_call_byte(Parser *p, char c) {
    parse_append(p, &p->raw, str_view(&c, 1));
    if (!p->is_failed)
        parse_call_at(p, p->raw.len - 1);
}

/* The call ends inside a value: decides where that value ended, and goes on from there with what is
 * in raw. Leaves the state VALUE when nothing decides. */
static void parse_call_resolve(Parser *p) {
    ParseValue *v = &p->value;
    if (v->close != SIZE_MAX && v->tag <= v->close) {
        parse_call_end_value(p, v->close);
        p->state = PARSE_IN_BODY;
        p->n_match = 0;
        return;
    }
    if (v->close != SIZE_MAX) // half a tag stands behind it
        parse_call_refuse_close(v);
    if (v->refused != SIZE_MAX) {
        size_t behind = v->refused + parse_call_tags[0].text.len;
        parse_call_end_value(p, v->refused);
        parse_call_rest(p, behind);
        return;
    }
    if (v->line_tag == SIZE_MAX)
        return;
    // No </parameter> stands anywhere behind here, so the same holds for the values that follow:
    // each ends at the next tag, and one pass over the rest is enough.
    size_t i = v->line_tag;
    parse_call_end_value(p, i);
    p->state = PARSE_IN_BODY;
    p->n_match = 0;
    for (; i < p->raw.len && !p->is_failed; i++) {
        bool is_key = p->state == PARSE_IN_KEY;
        if (p->state == PARSE_IN_CONTENT)
            parse_text_plain(p, p->raw.ptr[i]);
        else
            parse_call_at(p, i);
        if (is_key && p->state == PARSE_IN_VALUE)
            p->value.is_line_tag_end = true;
    }
}

/* All required parameters are there. */
static bool parse_call_has_required(const Parser *p) {
    const json_t *required =
        json_object_get(json_object_get(p->function, "parameters"), "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        StrView key = json_text(json_array_get(required, i));
        if (key.ptr && !json_object_getn(p->object, key.ptr, key.len))
            return false;
    }
    return true;
}

/* The call ends where its parameters had ended before: with a call or as text. */
static void parse_call_end_rest(Parser *p, bool is_output_end) {
    StrView rest = parse_call_trim(parse_call_raw(p, p->mark, p->raw.len));
    bool has_end = str_ends(rest, parse_call_tags[2].text);
    if ((is_output_end && !has_end) || !parse_call_has_required(p)) {
        parse_call_damage(p);
        return;
    }
    if (has_end)
        rest = parse_call_trim(str_view(rest.ptr, rest.len - parse_call_tags[2].text.len));
    parse_call_accept(p);
    for (size_t i = 0; i < rest.len; i++)
        parse_text_plain(p, rest.ptr[i]);
}

/* The end of the call's source: a tag that ends it (is_output_end false), or the end of the output.
 */
static void parse_call_end(Parser *p, bool is_output_end) {
    if (p->state == PARSE_IN_VALUE)
        parse_call_resolve(p);
    if (p->state == PARSE_IN_KEY)
        parse_call_rest(p, p->mark - parse_call_tags[1].text.len);
    if (p->state == PARSE_IN_BODY && p->n_match)
        parse_call_rest(p, p->mark);
    if (p->is_failed || p->state == PARSE_IN_CONTENT)
        return;
    if (p->state == PARSE_IN_REST)
        parse_call_end_rest(p, is_output_end);
    else if (p->state == PARSE_IN_BODY && !is_output_end)
        parse_call_accept(p);
    else
        parse_call_damage(p);
}

void parse_call_tag(Parser *p, ParseTag tag) {
    StrView text = parse_tag_text(tag);
    bool is_end = tag == PARSE_TAG_CALL_END || tag == PARSE_TAG_CALL;
    if (p->state == PARSE_IN_OPEN || p->state == PARSE_IN_NAME) {
        parse_call_damage(p);
        parse_text_tag(p, tag);
    } else if (tag == PARSE_TAG_CALL_END || (is_end && p->state != PARSE_IN_VALUE)) {
        parse_call_end(p, false);
        parse_text_tag(p, tag);
    } else
        for (size_t i = 0; i < text.len; i++)
            parse_text_byte(p, text.ptr[i]);
}

void parse_call_finish(Parser *p, bool is_length_cut) {
    if (p->state < PARSE_IN_OPEN || p->is_failed)
        return;
    if (is_length_cut && p->state != PARSE_IN_REST)
        parse_call_damage(p); // whatever was under way is half
    else
        parse_call_end(p, true);
}
