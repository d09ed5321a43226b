// SPDX-License-Identifier: Apache-2.0
/* generate.c - the verb `generate`: one answer, streamed to standard output.
 *
 * Path:     command line -> a conversation of include/lily.h -> its events to the streams.
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/model.h"
#include "cli/talk.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <unistd.h>

typedef struct Generate {
    const CliArgs *args;
    LilyModel *model;
    LilyChat *chat;
    LilyAnswerOptions options;
    TalkLists lists;
    StrBuf prompt;
    int32_t *ids;
    int32_t n_ids;
    StrBuf content, reasoning; // kept for --json
    json_t *calls, *made;      // the same: calls; ids
    bool is_dim;               // reasoning was begun on a terminal
    LilyFinish finish;
    LilyFigures figures;
    Err *err;
} Generate;

static Status generate_read_prompt(Generate *g) {
    const char *text = g->args->prompt;
    if (g->args->ids)
        return model_parse_ids(&g->ids, &g->n_ids, g->args->ids, g->err);
    if (!strcmp(text, "-"))
        return file_read_fd(&g->prompt, STDIN_FILENO, "standard input", LIMIT_MESSAGES_BYTES,
                            g->err);
    strbuf_append(&g->prompt, text, strlen(text));
    return strbuf_check(&g->prompt, g->err);
}

static void generate_show_reasoning(Generate *g, LilyText text) {
    bool is_terminal = isatty(STDERR_FILENO);
    if (!g->is_dim && is_terminal)
        fputs("\x1b[2m", stderr);
    g->is_dim = is_terminal;
    fwrite(text.text, 1, text.len, stderr);
    fflush(stderr);
}

static void generate_end_reasoning(Generate *g) {
    if (g->reasoning.len && (g->is_dim || g->content.len == 0))
        fputs(g->is_dim ? "\x1b[0m\n" : "\n", stderr);
    g->is_dim = false;
}

static bool generate_event(void *context, const LilyEvent *e) {
    Generate *g = context;
    bool is_shown = !g->args->is_json;
    switch (e->kind) {
    case LILY_EVENT_TOKEN: json_array_append_new(g->made, json_integer(e->token)); break;
    case LILY_EVENT_REASONING:
        if (is_shown)
            generate_show_reasoning(g, e->text);
        strbuf_append(&g->reasoning, e->text.text, e->text.len);
        break;
    case LILY_EVENT_TEXT:
        if (is_shown) {
            if (g->content.len == 0)
                generate_end_reasoning(g);
            fwrite(e->text.text, 1, e->text.len, stdout);
            fflush(stdout);
        }
        strbuf_append(&g->content, e->text.text, e->text.len);
        break;
    case LILY_EVENT_CALL_END:
        json_array_append_new(g->calls, json_pack("{s:s%, s:s%}", "name", e->name.text, e->name.len,
                                                  "arguments", e->text.text, e->text.len));
        break;
    case LILY_EVENT_CALL_BEGIN:
    case LILY_EVENT_CALL_ARGS:
    case LILY_EVENT_CALL_DROP: break;
    case LILY_EVENT_END:
        g->finish = e->finish;
        g->figures = e->figures;
        break;
    }
    return !ferror(stdout); // nobody reads on: no need to go on
}

/* The prompt as messages of the conversation, or as it is. */
static Status generate_set_prompt(Generate *g) {
    LilyError error;
    if (g->ids) {
        g->options.prompt_ids = g->ids;
        g->options.n_prompt_ids = (size_t)g->n_ids;
    } else if (g->args->is_raw) {
        g->options.prompt = (LilyText){g->prompt.ptr ? g->prompt.ptr : "", g->prompt.len};
    } else {
        const char *system = g->args->system;
        if (system && lily_chat_add(g->chat, "system", system, LILY_TERMINATED, &error) != LILY_OK)
            return talk_fail(g->err, &error);
        if (lily_chat_add(g->chat, "user", g->prompt.ptr, g->prompt.len, &error) != LILY_OK)
            return talk_fail(g->err, &error);
    }
    return STATUS_OK;
}

static Status generate_run(Generate *g) {
    LilyError error;
    TRY(generate_read_prompt(g));
    TRY(talk_open(&g->model, g->args, -1, g->err));
    if (lily_chat_open(&g->chat, g->model, &error) != LILY_OK)
        return talk_fail(g->err, &error);
    TRY(talk_options(&g->options, &g->lists, g->args, g->model, g->err));
    TRY(generate_set_prompt(g));
    g->options.wants_tokens = g->args->is_json;
    if (lily_chat_answer(g->chat, &g->options, generate_event, g, &error) != LILY_OK)
        return talk_fail(g->err, &error);
    return STATUS_OK;
}

static Status generate_report(Generate *g) {
    const LilyFigures *f = &g->figures;
    double rate = f->decode_s > 0 ? (f->n_generated - 1) / f->decode_s : 0;
    if (!g->args->is_json) {
        generate_end_reasoning(g);
        printf("\n");
        fflush(stdout); // before the figures where both streams go to one place
        fprintf(stderr, "%d prompt tokens in %.2f s, %d new tokens at %.2f a second, finish: %s\n",
                f->n_prompt, f->first_s, f->n_generated, rate, talk_finish_name(g->finish));
        return STATUS_OK;
    }
    json_t *v = json_pack("{s:s%, s:s%, s:O, s:O, s:s, s:i, s:i, s:f, s:f}", "content",
                          g->content.ptr ? g->content.ptr : "", g->content.len, "reasoning_content",
                          g->reasoning.ptr ? g->reasoning.ptr : "", g->reasoning.len, "tool_calls",
                          g->calls, "ids", g->made, "finish_reason", talk_finish_name(g->finish),
                          "prompt_tokens", f->n_prompt, "completion_tokens", f->n_generated,
                          "first_token_s", f->first_s, "decode_tok_s", rate);
    return ui_print_json(v, 0, g->err);
}

int verb_generate(const CliArgs *args) {
    if (!args->prompt == !args->ids)
        return ui_usage("generate", "expected one of -p and --ids");
    const char *bare = args->ids ? "--ids" : args->is_raw ? "--raw" : NULL;
    if (bare && (args->system || args->is_no_think))
        return ui_usage("generate", "%s needs the template: it does not go with %s",
                        args->system ? "--system" : "--no-think", bare);
    if (args->ids && args->is_raw)
        return ui_usage("generate", "--raw is for -p: --ids are the prompt itself");
    Err err = {0};
    if (talk_check(args, &err) != STATUS_OK)
        return ui_usage("generate", "%s", err.text);
    Generate *g = mem_zalloc(1, sizeof *g); // too large for the stack
    Status status = g ? STATUS_OK : err_memory(&err, "the run", sizeof *g);
    if (!g)
        return ui_fail("generate", &err);
    g->args = args;
    g->err = &err;
    g->calls = json_array();
    g->made = json_array();
    status = generate_run(g);
    if (status == STATUS_OK)
        status = generate_report(g);
    lily_chat_close(g->chat);
    lily_model_close(g->model);
    strbuf_fini(&g->prompt);
    strbuf_fini(&g->content);
    strbuf_fini(&g->reasoning);
    json_decref(g->calls);
    json_decref(g->made);
    mem_free(g->ids);
    mem_free(g);
    return status == STATUS_OK ? ui_finish("generate") : ui_fail("generate", &err);
}
