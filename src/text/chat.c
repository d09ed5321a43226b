// SPDX-License-Identifier: Apache-2.0
/* chat.c - the family's chat template as straight code, in the order in which the file works, so
 * that the first error is the reference's first error too.
 *
 * Path:     engine/turn and the template verb call chat_render.
 * Owns:     nothing between calls.  Thread: any.
 * Source: chat_template.jinja of Qwen3.6 and Qwen3.5 as transformers renders it (jinja2 with
 *         trim_blocks and lstrip_blocks; tojson = json.dumps without ASCII escapes).
 * Not here: which template a checkpoint brings (chat_family.c). */
#include "chat.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "chat_fixed.h"
#include "chat_text.h"
#include "pyjson.h"

#define CHAT_THINK_OPEN STR("<think>")
#define CHAT_THINK_CLOSE STR("</think>")

/* A piece of ChatRender.content. */
typedef struct ChatSpan {
    size_t off, len;
} ChatSpan;

typedef struct ChatRender {
    ChatText out;
    ChatText content; // text of the message at hand, before trimming
    StrBuf scratch;   // one JSON value
    ChatFamily family;
    const ChatOptions *options;
    const json_t *messages;
    size_t n;             // messages
    size_t n_head;        // messages at the beginning that went into the system turn
    ptrdiff_t last_query; // index of the last user message that is one; -1: none
    int64_t n_images, n_videos;
    bool is_thinking_open;
    Err *err; // NULL allowed
} ChatRender;

enum { CHAT_COUNT_MEDIA = 1, CHAT_IS_SYSTEM = 2 }; // flags of chat_content

static Status chat_invalid(ChatRender *r, const char *sentence) {
    return err_set(r->err, STATUS_INVALID, "%s", sentence);
}

static void chat_fixed(ChatRender *r, StrView s) { chat_text_append_fixed(&r->out, s); }
static void chat_data(ChatRender *r, StrView s) { chat_text_append_data(&r->out, s); }
static void chat_span(ChatRender *r, ChatSpan s) {
    chat_text_append_range(&r->out, &r->content, s.off, s.len);
}

static const json_t *chat_message(const ChatRender *r, size_t i) {
    return json_array_get(r->messages, i);
}

static bool chat_is_role(const json_t *message, StrView role) {
    return str_equal(json_text(json_object_get(message, "role")), role);
}

static bool chat_is_system(const ChatRender *r, const json_t *message) {
    return chat_is_role(message, STR("system")) ||
           (r->options->is_lenient && chat_is_role(message, STR("developer")));
}

/* White space of Python's str.strip: White_Space of Unicode and U+001C..001F. */
static bool chat_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static ChatSpan chat_trim_left(const ChatText *t, ChatSpan s) {
    uint32_t c;
    while (s.len) {
        int n = utf8_decode(t->text.ptr + s.off, s.len, &c);
        if (n <= 0 || !chat_is_space(c))
            break;
        s.off += (size_t)n;
        s.len -= (size_t)n;
    }
    return s;
}

static ChatSpan chat_trim_right(const ChatText *t, ChatSpan s) {
    uint32_t c;
    while (s.len) {
        size_t n = 1;
        while (n < s.len && n < UTF8_MAX &&
               ((unsigned char)t->text.ptr[s.off + s.len - n] >> 6) == 2)
            n++;
        if (utf8_decode(t->text.ptr + s.off + s.len - n, n, &c) != (int)n || !chat_is_space(c))
            break;
        s.len -= n;
    }
    return s;
}

static ChatSpan chat_trim(const ChatText *t, ChatSpan s) {
    return chat_trim_right(t, chat_trim_left(t, s));
}

static StrView chat_span_view(const ChatText *t, ChatSpan s) {
    return s.len ? str_view(t->text.ptr + s.off, s.len) : (StrView){0};
}

/* One part of a content list. */
static Status chat_part(ChatRender *r, const json_t *part, unsigned flags) {
    StrView type = json_text(json_object_get(part, "type"));
    bool is_image = json_object_get(part, "image") || json_object_get(part, "image_url") ||
                    str_equal(type, STR("image"));
    bool is_video = !is_image && (json_object_get(part, "video") || str_equal(type, STR("video")));
    const json_t *text = json_object_get(part, "text");
    if (is_image || is_video) {
        if (flags & CHAT_IS_SYSTEM)
            return chat_invalid(r, is_image ? "System message cannot contain images."
                                            : "System message cannot contain videos.");
        if (r->options->is_text_only)
            return chat_invalid(r, is_image
                                       ? "Images are not supported: this engine reads text only."
                                       : "Videos are not supported: this engine reads text only.");
        int64_t *count = is_image ? &r->n_images : &r->n_videos;
        *count += (flags & CHAT_COUNT_MEDIA) ? 1 : 0;
        if (r->options->add_vision_id) {
            strbuf_clear(&r->scratch);
            strbuf_printf(&r->scratch, "%s %lld: ", is_image ? "Picture" : "Video",
                          (long long)*count);
            TRY(strbuf_check(&r->scratch, r->err));
            chat_text_append_fixed(&r->content, strbuf_view(&r->scratch));
        }
        chat_text_append_fixed(&r->content,
                               is_image ? STR("<|vision_start|><|image_pad|><|vision_end|>")
                                        : STR("<|vision_start|><|video_pad|><|vision_end|>"));
        return STATUS_OK;
    }
    if (!text)
        return chat_invalid(r, "Unexpected item type in content.");
    strbuf_clear(&r->scratch);
    if (!pyjson_append_str(&r->scratch, text))
        return err_set(r->err, STATUS_INVALID,
                       "text of a content part: expected a string, found %s", json_type_text(text));
    TRY(strbuf_check(&r->scratch, r->err));
    chat_text_append_data(&r->content, strbuf_view(&r->scratch));
    return STATUS_OK;
}

/* Writes the text of a content into r->content and gives all of it as a span. */
static Status chat_content(ChatRender *r, const json_t *message, unsigned flags, ChatSpan *all) {
    const json_t *content = json_object_get(message, "content");
    chat_text_clear(&r->content);
    if (json_is_string(content))
        chat_text_append_data(&r->content, json_text(content));
    else if (json_is_array(content))
        for (size_t i = 0; i < json_array_size(content); i++)
            TRY(chat_part(r, json_array_get(content, i), flags));
    else if (content && !json_is_null(content))
        return chat_invalid(r, "Unexpected content type.");
    TRY(chat_text_check(&r->content, r->err));
    *all = (ChatSpan){0, r->content.text.len};
    return STATUS_OK;
}

static Status chat_json(ChatRender *r, const json_t *v) {
    strbuf_clear(&r->scratch);
    TRY(pyjson_append(&r->scratch, v, r->err));
    TRY(strbuf_check(&r->scratch, r->err));
    chat_data(r, strbuf_view(&r->scratch));
    return STATUS_OK;
}

/* The system turn: tools, then the system messages at the beginning. */
static Status chat_head(ChatRender *r, const json_t *tools) {
    bool has_tools = json_array_size(tools) > 0;
    bool has_text = false;
    while (r->n_head < r->n && chat_is_system(r, chat_message(r, r->n_head)) &&
           (r->n_head == 0 || r->options->is_lenient))
        r->n_head++;
    if (!has_tools && r->n_head == 0)
        return STATUS_OK;
    chat_fixed(r, STR("<|im_start|>system\n"));
    if (has_tools) {
        chat_fixed(r, STR(CHAT_FIXED_TOOLS_HEAD));
        for (size_t i = 0; i < json_array_size(tools); i++) {
            chat_fixed(r, STR("\n"));
            TRY(chat_json(r, json_array_get(tools, i)));
        }
        chat_fixed(r, STR(CHAT_FIXED_TOOLS_RULES));
    }
    for (size_t i = 0; i < r->n_head; i++) {
        ChatSpan all;
        TRY(chat_content(r, chat_message(r, i), CHAT_IS_SYSTEM, &all));
        ChatSpan text = chat_trim(&r->content, all);
        if (text.len && (has_tools || has_text))
            chat_fixed(r, STR("\n\n"));
        chat_span(r, text);
        has_text |= text.len > 0;
    }
    chat_fixed(r, STR("<|im_end|>\n"));
    return STATUS_OK;
}

static Status chat_find_query(ChatRender *r) {
    r->last_query = -1;
    for (size_t i = r->n; i-- > 0;) {
        ChatSpan all;
        if (!chat_is_role(chat_message(r, i), STR("user")))
            continue;
        TRY(chat_content(r, chat_message(r, i), 0, &all));
        StrView text = chat_span_view(&r->content, chat_trim(&r->content, all));
        if (!(str_starts(text, STR("<tool_response>")) &&
              str_ends(text, STR("</tool_response>")))) {
            r->last_query = (ptrdiff_t)i;
            return STATUS_OK;
        }
    }
    return r->options->is_lenient ? STATUS_OK : chat_invalid(r, "No user query found in messages.");
}

/* The parameters of a call. *owned: what the caller frees; *object: NULL when there are none. */
static Status chat_arguments(ChatRender *r, const json_t *call, json_t **owned,
                             const json_t **object) {
    const json_t *v = json_object_get(call, "arguments");
    StrView text = json_text(v);
    json_error_t e;
    *object = v;
    if (r->options->is_lenient && json_is_string(v)) {
        size_t blank = 0;
        while (blank < text.len && strchr(" \t\r\n", text.ptr[blank]) && text.ptr[blank])
            blank++;
        // A key given twice: the last one counts, as in the reference's JSON reader.
        if (blank < text.len) {
            (void)json_take_alloc_failure();
            *owned = json_loadb(text.ptr, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
            if (json_take_alloc_failure())
                return err_memory(r->err, "arguments", text.len);
            if (!*owned)
                return err_set(r->err, STATUS_INVALID,
                               "arguments of a tool call: not valid JSON: %s", e.text);
        }
        *object = *owned;
    } else if (r->options->is_lenient && json_is_null(v))
        *object = NULL;
    if (*object && !json_is_object(*object))
        return err_set(r->err, STATUS_INVALID,
                       "arguments of a tool call: expected an object, found %s",
                       json_type_text(*object));
    return STATUS_OK;
}

static Status chat_parameters(ChatRender *r, const json_t *object) {
    json_t *o = (json_t *)object; // the iterators take no const; nothing is changed
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        const json_t *v = json_object_iter_value(it);
        chat_fixed(r, STR("<parameter="));
        chat_data(r, str_view(json_object_iter_key(it), json_object_iter_key_len(it)));
        chat_fixed(r, STR(">\n"));
        strbuf_clear(&r->scratch);
        bool is_json =
            r->family == CHAT_QWEN36 ? !json_is_string(v) : json_is_object(v) || json_is_array(v);
        if (is_json)
            TRY(pyjson_append(&r->scratch, v, r->err));
        else
            (void)pyjson_append_str(&r->scratch, v);
        TRY(strbuf_check(&r->scratch, r->err));
        chat_data(r, strbuf_view(&r->scratch));
        chat_fixed(r, STR("\n</parameter>\n"));
    }
    return STATUS_OK;
}

static Status chat_call(ChatRender *r, const json_t *call) {
    const json_t *inner = json_object_get(call, "function");
    call = inner ? inner : call;
    const json_t *name = json_object_get(call, "name");
    json_t *owned = NULL;
    const json_t *arguments = NULL;
    if (!json_is_string(name))
        return err_set(r->err, STATUS_INVALID, "name of a tool call: expected a string, found %s",
                       json_type_text(name));
    chat_fixed(r, STR("<tool_call>\n<function="));
    chat_data(r, json_text(name));
    chat_fixed(r, STR(">\n"));
    Status status = chat_arguments(r, call, &owned, &arguments);
    if (status == STATUS_OK && arguments)
        status = chat_parameters(r, arguments);
    json_decref(owned);
    chat_fixed(r, STR("</function>\n</tool_call>"));
    return status;
}

/* The reasoning of an assistant message: given by the client, or standing before </think> in the
 * content, which then keeps only what is behind the last </think>. */
static StrView chat_reasoning_given(const ChatRender *r, const json_t *message) {
    const json_t *v = json_object_get(message, "reasoning_content");
    if (r->options->is_lenient && !json_is_string(v))
        v = json_object_get(message, "reasoning");
    return json_text(v);
}

static ChatSpan chat_reasoning_split(const ChatText *t, ChatSpan *content) {
    StrView c = chat_span_view(t, *content);
    size_t first = str_find(c, CHAT_THINK_CLOSE);
    size_t last = str_find_last(c, CHAT_THINK_CLOSE);
    ChatSpan r = {content->off, 0};
    if (first == SIZE_MAX)
        return r;
    r.len = first;
    while (r.len && t->text.ptr[r.off + r.len - 1] == '\n')
        r.len--;
    size_t open = str_find_last(chat_span_view(t, r), CHAT_THINK_OPEN);
    if (open != SIZE_MAX) {
        r.off += open + CHAT_THINK_OPEN.len;
        r.len -= open + CHAT_THINK_OPEN.len;
    }
    while (r.len && t->text.ptr[r.off] == '\n') {
        r.off++;
        r.len--;
    }
    content->off += last + CHAT_THINK_CLOSE.len;
    content->len -= last + CHAT_THINK_CLOSE.len;
    while (content->len && t->text.ptr[content->off] == '\n') {
        content->off++;
        content->len--;
    }
    return chat_trim(t, r);
}

/* Trims given reasoning; only at its beginning when generation goes on behind it. */
static Status chat_reasoning_write(ChatRender *r, StrView given, bool is_end_kept) {
    ChatText t = {0};
    chat_text_append_data(&t, given);
    Status status = chat_text_check(&t, r->err);
    if (status == STATUS_OK) {
        ChatSpan all = {0, t.text.len};
        ChatSpan s = is_end_kept ? chat_trim_left(&t, all) : chat_trim(&t, all);
        chat_text_append_range(&r->out, &t, s.off, s.len);
    }
    chat_text_fini(&t);
    return status;
}

/* A text as tool_calls is what the reference stumbles over; numbers, objects and null it skips. */
static Status chat_calls(ChatRender *r, const json_t *calls, bool has_content) {
    if (json_string_length(calls) > 0)
        return chat_invalid(r, "tool_calls: expected a list, found a string");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        if (i > 0)
            chat_fixed(r, STR("\n"));
        else if (has_content)
            chat_fixed(r, STR("\n\n"));
        TRY(chat_call(r, json_array_get(calls, i)));
    }
    return STATUS_OK;
}

static Status chat_assistant(ChatRender *r, size_t i, ChatSpan all) {
    const json_t *message = chat_message(r, i);
    const json_t *calls = json_object_get(message, "tool_calls");
    bool is_continued = r->options->continue_final && i + 1 == r->n;
    bool has_block = (r->family == CHAT_QWEN36 && r->options->preserve_thinking == 1) ||
                     (ptrdiff_t)i > r->last_query;
    StrView given = chat_reasoning_given(r, message);
    ChatSpan reasoning = {0};
    ChatSpan content =
        is_continued ? chat_trim_left(&r->content, all) : chat_trim(&r->content, all);
    bool has_content = content.len > 0;
    if (!given.ptr) {
        reasoning = chat_reasoning_split(&r->content, &content);
        has_content = chat_trim(&r->content, content).len > 0;
    }
    if (is_continued && json_array_size(calls) > 0)
        return chat_invalid(r, "continue_final_message: the last message has tool calls.");
    chat_fixed(r, STR("<|im_start|>assistant\n"));
    if (has_block) {
        bool is_reasoning_continued = is_continued && given.len && !has_content;
        chat_fixed(r, STR("<think>\n"));
        if (given.ptr)
            TRY(chat_reasoning_write(r, given, is_reasoning_continued));
        else
            chat_span(r, reasoning);
        if (is_reasoning_continued) {
            r->is_thinking_open = true;
            return STATUS_OK;
        }
        chat_fixed(r, STR("\n</think>\n\n"));
    }
    chat_span(r, content);
    if (is_continued)
        return STATUS_OK;
    TRY(chat_calls(r, calls, has_content));
    chat_fixed(r, STR("<|im_end|>\n"));
    return STATUS_OK;
}

static void chat_tool(ChatRender *r, size_t i, ChatSpan content) {
    if (i > 0 && !chat_is_role(chat_message(r, i - 1), STR("tool")))
        chat_fixed(r, STR("<|im_start|>user"));
    chat_fixed(r, STR("\n<tool_response>\n"));
    chat_span(r, content);
    chat_fixed(r, STR("\n</tool_response>"));
    if (i + 1 == r->n || !chat_is_role(chat_message(r, i + 1), STR("tool")))
        chat_fixed(r, STR("<|im_end|>\n"));
}

static Status chat_turn(ChatRender *r, size_t i) {
    const json_t *message = chat_message(r, i);
    bool is_late_system = chat_is_system(r, message) && r->options->is_lenient;
    ChatSpan all;
    TRY(chat_content(r, message, is_late_system ? CHAT_IS_SYSTEM : CHAT_COUNT_MEDIA, &all));
    if (chat_is_role(message, STR("assistant")))
        return chat_assistant(r, i, all);
    ChatSpan content = chat_trim(&r->content, all);
    if (chat_is_role(message, STR("user")) || is_late_system) {
        chat_fixed(r, is_late_system ? STR("<|im_start|>system\n") : STR("<|im_start|>user\n"));
        chat_span(r, content);
        chat_fixed(r, STR("<|im_end|>\n"));
        return STATUS_OK;
    }
    if (chat_is_role(message, STR("tool"))) {
        chat_tool(r, i, content);
        return STATUS_OK;
    }
    return chat_invalid(r, chat_is_system(r, message) ? "System message must be at the beginning."
                                                      : "Unexpected message role.");
}

static Status chat_check_continue(ChatRender *r) {
    if (!r->options->continue_final)
        return STATUS_OK;
    if (r->options->add_generation_prompt)
        return chat_invalid(
            r, "continue_final_message and add_generation_prompt cannot be used together.");
    if (!chat_is_role(chat_message(r, r->n - 1), STR("assistant")))
        return chat_invalid(r, "continue_final_message: the last message is no assistant message.");
    return STATUS_OK;
}

static Status chat_all(ChatRender *r, const json_t *tools) {
    if (r->n == 0)
        return chat_invalid(r, "No messages provided.");
    TRY(chat_check_continue(r));
    TRY(chat_head(r, tools));
    TRY(chat_find_query(r));
    for (size_t i = r->n_head; i < r->n; i++)
        TRY(chat_turn(r, i));
    if (r->options->add_generation_prompt) {
        r->is_thinking_open = r->family == CHAT_QWEN35_SMALL ? r->options->enable_thinking == 1
                                                             : r->options->enable_thinking != 0;
        chat_fixed(r, STR("<|im_start|>assistant\n"));
        chat_fixed(r, r->is_thinking_open ? STR("<think>\n") : STR("<think>\n\n</think>\n\n"));
    }
    return chat_text_check(&r->out, r->err);
}

Status chat_render(ChatPrompt *out, ChatFamily family, const json_t *messages, const json_t *tools,
                   const ChatOptions *options, Err *err) {
    ChatRender r = {.family = family,
                    .options = options,
                    .messages = messages,
                    .n = json_array_size(messages),
                    .err = err};
    Status status = STATUS_OK;
    if (messages && !json_is_array(messages))
        status = err_set(err, STATUS_INVALID, "messages: expected a list, found %s",
                         json_type_text(messages));
    if (status == STATUS_OK)
        status = chat_all(&r, tools);
    chat_text_fini(&r.content);
    strbuf_fini(&r.scratch);
    if (status != STATUS_OK) {
        chat_text_fini(&r.out);
        return status;
    }
    *out = (ChatPrompt){.text = r.out.text,
                        .trusted = (uint8_t *)r.out.bits.ptr,
                        .is_thinking_open = r.is_thinking_open};
    return STATUS_OK;
}

void chat_prompt_fini(ChatPrompt *p) {
    strbuf_fini(&p->text);
    mem_free(p->trusted);
    *p = (ChatPrompt){0};
}
