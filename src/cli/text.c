// SPDX-License-Identifier: Apache-2.0
/* text.c - the verbs that need a model's text side alone: tokenize, detokenize, template, parse.
 *
 * Path:     standard input or an argument -> src/text -> standard output.
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/model.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "text/chat.h"
#include "text/parse.h"
#include "text/pyjson.h"

#include <unistd.h>

/* The argument's bytes, else standard input. */
static Status text_input(StrBuf *out, const CliArgs *args, Err *err) {
    if (args->n_positional == 0)
        return file_read_fd(out, STDIN_FILENO, "standard input", LIMIT_MESSAGES_BYTES, err);
    strbuf_append(out, args->positional[0], strlen(args->positional[0]));
    return strbuf_check(out, err);
}

static Status text_tokenizer(Tokenizer **out, const CliArgs *args, Err *err) {
    Weights *w = NULL;
    TRY(model_weights(&w, args, &UI_LOG, err));
    Status status = model_tokenizer(out, w, err);
    weights_close(w);
    return status;
}

static void text_print_ids(const TokenIds *ids, bool is_json) {
    printf(is_json ? "[" : "");
    for (size_t i = 0; i < ids->n; i++)
        printf(i ? (is_json ? ", %d" : ",%d") : "%d", ids->ids[i]);
    printf(is_json ? "]\n" : "\n");
}

int verb_tokenize(const CliArgs *args) {
    Err err = {0};
    StrBuf text = {0};
    TokenIds ids = {0};
    Tokenizer *t = NULL;
    Status status = text_input(&text, args, &err);
    if (status == STATUS_OK)
        status = text_tokenizer(&t, args, &err);
    if (status == STATUS_OK)
        status = args->is_plain ? tokenizer_encode_plain(t, &ids, strbuf_view(&text), &err)
                                : tokenizer_encode(t, &ids, strbuf_view(&text), NULL, &err);
    if (status == STATUS_OK)
        text_print_ids(&ids, args->is_json);
    tokenizer_close(t);
    token_ids_fini(&ids);
    strbuf_fini(&text);
    return status == STATUS_OK ? ui_finish("tokenize") : ui_fail("tokenize", &err);
}

int verb_detokenize(const CliArgs *args) {
    Err err = {0};
    StrBuf input = {0}, text = {0};
    int32_t *ids = NULL, n = 0;
    Tokenizer *t = NULL;
    Status status = text_input(&input, args, &err);
    if (status == STATUS_OK)
        status = model_parse_ids(&ids, &n, input.ptr, &err);
    if (status == STATUS_OK)
        status = text_tokenizer(&t, args, &err);
    if (status == STATUS_OK)
        status = tokenizer_decode(t, &text, ids, (size_t)n, args->is_skip_special, &err);
    if (status == STATUS_OK && args->is_json) {
        status = ui_print_json(json_stringn(text.ptr ? text.ptr : "", text.len), 0, &err);
    } else if (status == STATUS_OK) {
        fwrite(text.ptr, 1, text.len, stdout);
    }
    tokenizer_close(t);
    mem_free(ids);
    strbuf_fini(&input);
    strbuf_fini(&text);
    return status == STATUS_OK ? ui_finish("detokenize") : ui_fail("detokenize", &err);
}

/* Family by its name; false: there is no such. */
static bool text_family_find(ChatFamily *out, const char *name) {
    static const ChatFamily all[] = {CHAT_QWEN36, CHAT_QWEN35, CHAT_QWEN35_SMALL};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (!strcmp(name, chat_family_name(all[i]))) {
            *out = all[i];
            return true;
        }
    }
    return false;
}

/* That of the model's folder. */
static Status text_family(ChatFamily *out, const CliArgs *args, Err *err) {
    const char *spec;
    TRY(model_find(&spec, args, err));
    return chat_family_open(
        out, str_starts(str_view(spec, strlen(spec)), STR("synth:")) ? NULL : spec, &UI_LOG, err);
}

/* A file with a list of tools, or an object {"tools"}. */
static Status text_tools(json_t **out, const char *path, Err *err) {
    json_t *v = NULL;
    TRY(json_read_file(&v, path, LIMIT_MESSAGES_BYTES, err));
    *out = json_is_object(v) ? json_incref(json_object_get(v, "tools")) : json_incref(v);
    json_decref(v);
    if (!json_is_array(*out))
        return err_set(err, STATUS_INVALID, "%s: expected a list of tools, found %s", path,
                       json_type_text(*out));
    return STATUS_OK;
}

/* A messages list, or an object {"messages", "tools"}. */
static Status text_messages(json_t **messages, json_t **tools, const CliArgs *args, Err *err) {
    json_t *v = NULL;
    if (args->n_positional) {
        TRY(json_read_file(&v, args->positional[0], LIMIT_MESSAGES_BYTES, err));
    } else {
        StrBuf text = {0};
        TRY(text_input(&text, args, err));
        Status status = json_read(&v, strbuf_view(&text), "standard input", err);
        strbuf_fini(&text);
        TRY(status);
    }
    if (json_is_object(v)) {
        *messages = json_incref(json_object_get(v, "messages"));
        *tools = json_incref(json_object_get(v, "tools"));
        json_decref(v);
    } else {
        *messages = v;
    }
    if (args->tools) {
        json_decref(*tools);
        *tools = NULL;
        TRY(text_tools(tools, args->tools, err));
    }
    if (!json_is_array(*messages))
        return err_set(err, STATUS_INVALID, "messages: expected a list, found %s",
                       json_type_text(*messages));
    return STATUS_OK;
}

int verb_template(const CliArgs *args) {
    if (args->is_thinking && args->is_no_think)
        return ui_usage("template", "--thinking and --no-think exclude each other");
    Err err = {0};
    json_t *messages = NULL, *tools = NULL;
    ChatPrompt prompt = {0};
    ChatFamily family = CHAT_QWEN36;
    if (args->family && !text_family_find(&family, args->family))
        return ui_usage("template",
                        "--family: expected qwen3.6, qwen3.5 or qwen3.5-small, found %s",
                        args->family);
    ChatOptions options = CHAT_OPTIONS_ABSENT;
    options.add_generation_prompt = !args->is_no_prompt;
    options.enable_thinking = args->is_no_think ? 0 : args->is_thinking ? 1 : -1;
    Status status = text_messages(&messages, &tools, args, &err);
    if (status == STATUS_OK && !args->family)
        status = text_family(&family, args, &err);
    if (status == STATUS_OK)
        status = chat_render(&prompt, family, messages, tools, &options, &err);
    if (status == STATUS_OK && args->is_json) {
        json_t *v =
            json_pack("{s:s%, s:s, s:b}", "text", prompt.text.ptr, prompt.text.len, "family",
                      chat_family_name(family), "is_thinking_open", prompt.is_thinking_open);
        status = ui_print_json(v, 0, &err);
    } else if (status == STATUS_OK) {
        fwrite(prompt.text.ptr, 1, prompt.text.len, stdout);
    }
    chat_prompt_fini(&prompt);
    json_decref(messages);
    json_decref(tools);
    return status == STATUS_OK ? ui_finish("template") : ui_fail("template", &err);
}

static void text_parse_event(void *ctx, const ParseEvent *e) {
    UNUSED(ctx);
    static const char *const names[] = {
        [PARSE_REASONING] = "reasoning",   [PARSE_CONTENT] = "content",
        [PARSE_CALL_BEGIN] = "call_begin", [PARSE_CALL_ARGS] = "call_args",
        [PARSE_CALL_END] = "call_end",     [PARSE_CALL_DROP] = "call_drop"};
    json_t *v = json_pack("{s:s}", "event", names[e->kind]);
    if (e->call >= 0) {
        json_object_set_new(v, "call", json_integer(e->call));
        json_object_set_new(v, "name", json_stringn(e->name.ptr, e->name.len));
    }
    if (e->text.len)
        json_object_set_new(v, "text", json_stringn(e->text.ptr, e->text.len));
    json_dumpf(v, stdout, 0);
    printf("\n");
    json_decref(v);
}

static Status text_parse(Parser *p, StrView text, const CliArgs *args, Err *err) {
    size_t step = args->split ? (size_t)args->split : text.len;
    ParseEventFn fn = args->is_events ? text_parse_event : NULL;
    for (size_t off = 0; off < text.len; off += step) {
        size_t n = step < text.len - off ? step : text.len - off;
        TRY(parser_push(p, str_view(text.ptr + off, n), false, fn, NULL, err));
    }
    return parser_finish(p, false, fn, NULL, err);
}

int verb_parse(const CliArgs *args) {
    Err err = {0};
    StrBuf text = {0};
    json_t *tools = NULL, *message = NULL;
    Parser *p = NULL;
    Status status = text_input(&text, args, &err);
    if (status == STATUS_OK && args->tools)
        status = text_tools(&tools, args->tools, &err);
    ParserOptions options = {.tools = tools,
                             .start =
                                 args->is_thinking ? PARSE_START_REASONING : PARSE_START_CONTENT,
                             .has_spelled_tags = true};
    if (status == STATUS_OK)
        status = parser_open(&p, &options, &err);
    if (status == STATUS_OK)
        status = text_parse(p, strbuf_view(&text), args, &err);
    if (status == STATUS_OK && !args->is_events) {
        status = parser_message(p, &message, &err);
        strbuf_clear(&text);
        if (status == STATUS_OK)
            status = pyjson_append(&text, message, &err);
        if (status == STATUS_OK)
            status = strbuf_check(&text, &err);
        if (status == STATUS_OK)
            printf("%s\n", text.ptr);
    }
    parser_close(p);
    json_decref(tools);
    json_decref(message);
    strbuf_fini(&text);
    return status == STATUS_OK ? ui_finish("parse") : ui_fail("parse", &err);
}
