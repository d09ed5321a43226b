// SPDX-License-Identifier: Apache-2.0
/* session_command.c - the /commands of `lily chat`: one table, from which the help and the
 * completion come too.
 *
 * Owns:     nothing.  Thread: main. */
#include "cli/session.h"

#include <errno.h>

typedef struct Command {
    const char *name;  // with its slash
    const char *value; // what stands behind it in the help; "": nothing
    const char *help;
    bool is_path; // the value names a file: quotes and backslashes as a shell reads them
    /* arg is NUL-terminated, without white space around it. */
    Status (*run)(Session *s, const char *arg, Err *err);
} Command;

/* ---- values ---- */

/* A file's name, in place: "a b", 'a b' and a\\ b, as completion writes it, are all one name. */
static Status command_unquote(char *arg, Err *err) {
    char quote = *arg == '"' || *arg == '\'' ? *arg : 0;
    const char *from = arg + (quote != 0);
    char *to = arg;
    while (*from && (!quote || *from != quote)) {
        if (*from == '\\' && from[1] && quote != '\'')
            from++;
        *to++ = *from++;
    }
    bool is_good = !quote || (*from == quote && from[1] == 0);
    *to = 0;
    return is_good ? STATUS_OK
                   : err_set(err, STATUS_INVALID, "expected one file name, closed by its quote");
}

static Status command_needs(const char *arg, const char *what, Err *err) {
    return *arg ? STATUS_OK : err_set(err, STATUS_INVALID, "expected %s, found nothing", what);
}

static Status command_switch(bool *out, const char *arg, Err *err) {
    if (!strcmp(arg, "on") || !strcmp(arg, "off")) {
        *out = !strcmp(arg, "on");
        return STATUS_OK;
    }
    return err_set(err, STATUS_INVALID, "expected on or off, found %s", *arg ? arg : "nothing");
}

static Status command_number(double *out, const char *arg, double low, double high, Err *err) {
    char *end;
    double v = strtod(arg, &end);
    if (end == arg || *end || !(v >= low && v <= high))
        return err_set(err, STATUS_INVALID, "expected a number from %g to %.17g, found %s", low,
                       high, *arg ? arg : "nothing");
    *out = v;
    return STATUS_OK;
}

static Status command_count(int64_t *out, const char *arg, int64_t high, Err *err) {
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (end == arg || *end || errno || v < 0 || v > high)
        return err_set(err, STATUS_INVALID, "expected a whole number from 0 to %lld, found %s",
                       (long long)high, *arg ? arg : "nothing");
    *out = v;
    return STATUS_OK;
}

/* ---- the conversation ---- */

static Status command_new(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    LilyError error;
    strbuf_clear(&s->attached);
    if (lily_chat_truncate(s->chat, 0, &error) != LILY_OK ||
        (s->system.len &&
         lily_chat_add(s->chat, "system", s->system.ptr, s->system.len, &error) != LILY_OK))
        return talk_fail(err, &error);
    session_note(s, "a new conversation");
    return STATUS_OK;
}

/* Puts the system message in the first place, or takes it away. */
static Status command_set_system(json_t *messages, const char *text, Err *err) {
    StrView role = json_text(json_object_get(json_array_get(messages, 0), "role"));
    bool is_good = true;
    if (str_equal(role, STR("system")))
        json_array_remove(messages, 0);
    if (*text) {
        json_t *v = json_pack("{s:s, s:s}", "role", "system", "content", text);
        if (!v)
            return err_set(err, STATUS_INVALID, "the text is not valid UTF-8");
        is_good = json_array_insert_new(messages, 0, v) == 0;
    }
    return is_good ? STATUS_OK : err_memory(err, "message", strlen(text));
}

static Status command_system(Session *s, const char *arg, Err *err) {
    json_t *messages = NULL;
    StrBuf system = {0};
    strbuf_append(&system, arg, strlen(arg));
    Status status = strbuf_check(&system, err);
    if (status == STATUS_OK)
        status = session_messages(s, &messages, err);
    if (status == STATUS_OK)
        status = command_set_system(messages, arg, err);
    if (status == STATUS_OK)
        status = session_replace(s, messages, err);
    json_decref(messages);
    if (status != STATUS_OK) {
        strbuf_fini(&system);
        return status;
    }
    strbuf_fini(&s->system);
    s->system = system;
    session_note(s, *arg ? "system message set" : "no system message");
    return STATUS_OK;
}

/* Index of the last message of this role; the number of messages when there is none. */
static Status command_find_last(Session *s, size_t *out, size_t *n, const char *role, Err *err) {
    json_t *messages = NULL;
    TRY(session_messages(s, &messages, err));
    *n = *out = json_array_size(messages);
    for (size_t i = 0; i < *n; i++) {
        StrView found = json_text(json_object_get(json_array_get(messages, i), "role"));
        if (str_equal(found, str_view(role, strlen(role))))
            *out = i;
    }
    json_decref(messages);
    return STATUS_OK;
}

static Status command_undo(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    size_t last, n;
    LilyError error;
    TRY(command_find_last(s, &last, &n, "user", err));
    if (last == n)
        return err_set(err, STATUS_INVALID, "there is nothing to undo");
    if (lily_chat_truncate(s->chat, last, &error) != LILY_OK)
        return talk_fail(err, &error);
    session_note(s, "your last message and what came behind it are gone");
    return STATUS_OK;
}

static Status command_retry(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    size_t user, tool, n;
    LilyError error;
    TRY(command_find_last(s, &user, &n, "user", err));
    TRY(command_find_last(s, &tool, &n, "tool", err));
    if (user == n)
        return err_set(err, STATUS_INVALID, "there is nothing to answer again");
    size_t last = tool < n && tool > user ? tool : user;
    if (lily_chat_truncate(s->chat, last + 1, &error) != LILY_OK)
        return talk_fail(err, &error);
    session_answer(s);
    return STATUS_OK;
}

/* How many calls of the last answer have no result yet. */
static Status command_open_calls(Session *s, size_t *out, Err *err) {
    size_t last, n;
    json_t *messages = NULL;
    TRY(command_find_last(s, &last, &n, "assistant", err));
    TRY(session_messages(s, &messages, err));
    const json_t *answer = json_array_get(messages, last);
    size_t calls = json_array_size(json_object_get(answer, "tool_calls"));
    size_t results = last < n ? n - last - 1 : 0;
    *out = calls > results ? calls - results : 0;
    json_decref(messages);
    return STATUS_OK;
}

/* The model goes on when every one of its calls has a result. */
static Status command_result(Session *s, const char *arg, Err *err) {
    LilyError error;
    size_t open = 0;
    if (lily_chat_add(s->chat, "tool", arg, LILY_TERMINATED, &error) != LILY_OK)
        return talk_fail(err, &error);
    TRY(command_open_calls(s, &open, err));
    if (open)
        session_note(s, "%zu more of its calls wait for a result", open);
    else
        session_answer(s);
    return STATUS_OK;
}

static Status command_show(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    json_t *messages = NULL;
    TRY(session_messages(s, &messages, err));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        StrView role = json_text(json_object_get(m, "role"));
        StrView content = json_text(json_object_get(m, "content"));
        printf("%.*s: ", (int)role.len, role.ptr);
        show_text(s, content.ptr, content.len);
        printf("\n");
    }
    json_decref(messages);
    return STATUS_OK;
}

/* ---- settings ---- */

static Status command_think(Session *s, const char *arg, Err *err) {
    bool is_on;
    if (!strcmp(arg, "default")) {
        s->options.thinking = LILY_THINKING_DEFAULT;
        return STATUS_OK;
    }
    TRY(command_switch(&is_on, arg, err));
    s->options.thinking = is_on ? LILY_THINKING_ON : LILY_THINKING_OFF;
    session_note(s, "thinking is %s", arg);
    return STATUS_OK;
}

static Status command_fold(Session *s, const char *arg, Err *err) {
    TRY(command_switch(&s->is_folded, arg, err));
    session_note(s, s->is_folded ? "thinking is shown as one line" : "thinking is shown whole");
    return STATUS_OK;
}

static Status command_temp(Session *s, const char *arg, Err *err) {
    double v;
    TRY(command_number(&v, arg, 0, 100, err));
    s->options.temperature = (float)v;
    session_note(s, "temperature %g", v);
    return STATUS_OK;
}

static Status command_top_p(Session *s, const char *arg, Err *err) {
    double v;
    TRY(command_number(&v, arg, 0, 1, err));
    s->options.top_p = (float)v;
    session_note(s, "top-p %g", v);
    return STATUS_OK;
}

static Status command_top_k(Session *s, const char *arg, Err *err) {
    int64_t v;
    TRY(command_count(&v, arg, LIMIT_VOCAB, err));
    s->options.top_k = (int32_t)v;
    session_note(s, "top-k %d", s->options.top_k);
    return STATUS_OK;
}

static Status command_max(Session *s, const char *arg, Err *err) {
    int64_t v;
    TRY(command_count(&v, arg, LIMIT_CONTEXT, err));
    s->options.max_tokens = (int32_t)v;
    session_note(s, v ? "at most %d new tokens" : "answers end by themselves (%d)",
                 s->options.max_tokens);
    return STATUS_OK;
}

static Status command_seed(Session *s, const char *arg, Err *err) {
    int64_t v = 0;
    s->options.has_seed = strcmp(arg, "off") != 0;
    if (s->options.has_seed)
        TRY(command_count(&v, arg, INT64_MAX, err));
    s->options.seed = (uint64_t)v;
    return STATUS_OK;
}

/* ---- files ---- */

static Status command_save(Session *s, const char *arg, Err *err) {
    TRY(command_needs(arg, "a file", err));
    TRY(session_save(s, arg, err));
    session_note(s, "saved to %s", arg);
    return STATUS_OK;
}

static Status command_load(Session *s, const char *arg, Err *err) {
    TRY(command_needs(arg, "a file", err));
    TRY(session_load(s, arg, err));
    session_note(s, "%zu messages of %s (/show prints them)", lily_chat_n_messages(s->chat), arg);
    return STATUS_OK;
}

static Status command_file(Session *s, const char *arg, Err *err) {
    TRY(command_needs(arg, "a file", err));
    return session_attach(s, arg, err);
}

static Status command_tools(Session *s, const char *arg, Err *err) {
    LilyError error;
    if (*arg)
        return session_read_tools(s, arg, err);
    strbuf_clear(&s->tools);
    if (lily_chat_set_tools(s->chat, NULL, 0, &error) != LILY_OK)
        return talk_fail(err, &error);
    session_note(s, "no tools");
    return STATUS_OK;
}

/* ---- what there is ---- */

static Status command_thoughts(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    if (s->show.reasoning.len == 0)
        return err_set(err, STATUS_INVALID, "the last answer came without thinking");
    show_text(s, s->show.reasoning.ptr, s->show.reasoning.len);
    printf("\n");
    return STATUS_OK;
}

static Status command_stats(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    UNUSED(err);
    static const char *const thinking[] = {[LILY_THINKING_DEFAULT] =
                                               "as the model's template has it",
                                           [LILY_THINKING_OFF] = "off",
                                           [LILY_THINKING_ON] = "on"};
    const LilyFigures *f = &s->show.figures;
    const LilyAnswerOptions *o = &s->options;
    printf("messages      %zu\n", lily_chat_n_messages(s->chat));
    printf("context       %d of %d tokens\n", f->n_prompt + f->n_generated,
           lily_model_ctx_tok(s->model));
    printf("last answer   %d tokens, %d of them thinking; finish: %s\n", f->n_generated,
           f->n_reasoning, talk_finish_name(s->show.finish));
    printf("speed         first token after %.2f s (%d of %d prompt tokens remembered), then %.1f "
           "a second\n",
           f->first_s, f->n_cached, f->n_prompt,
           f->decode_s > 0 ? (f->n_generated - 1) / f->decode_s : 0.0);
    printf("sampling      temperature %g, top-k %d, top-p %g, min-p %g\n", (double)o->temperature,
           o->top_k, (double)o->top_p, (double)o->min_p);
    printf("thinking      %s\n", thinking[o->thinking]);
    return STATUS_OK;
}

static Status command_quit(Session *s, const char *arg, Err *err) {
    UNUSED(arg);
    UNUSED(err);
    s->is_over = true;
    return STATUS_OK;
}

static Status command_help(Session *s, const char *arg, Err *err);

static const Command COMMANDS[] = {
    {"/help", "", "this list", false, command_help},
    {"/quit", "", "leave (Ctrl-D does too)", false, command_quit},
    {"/new", "", "forget the conversation, keep the settings", false, command_new},
    {"/undo", "", "take back your last message and its answer", false, command_undo},
    {"/retry", "", "answer your last message again", false, command_retry},
    {"/show", "", "print the conversation", false, command_show},
    {"/thoughts", "", "print the last answer's thinking", false, command_thoughts},
    {"/stats", "", "tokens, speed, context, settings", false, command_stats},
    {"/system", "TEXT", "set the system message; without TEXT, none", false, command_system},
    {"/think", "on|off|default", "whether the model thinks before it answers", false,
     command_think},
    {"/fold", "on|off", "thinking as one line, or whole", false, command_fold},
    {"/temp", "X", "temperature; 0 takes the most likely token", false, command_temp},
    {"/top-p", "P", "keep the smallest set of probability P", false, command_top_p},
    {"/top-k", "K", "keep the K most likely tokens; 0: all", false, command_top_k},
    {"/max", "N", "new tokens at most; 0: until the answer ends", false, command_max},
    {"/seed", "S|off", "same seed, same text", false, command_seed},
    {"/file", "PATH", "put a text file before your next message", true, command_file},
    {"/save", "FILE", "write the conversation as JSON", true, command_save},
    {"/load", "FILE", "go on with a saved conversation", true, command_load},
    {"/tools", "[FILE]", "offer the tools of a JSON list; without FILE, none", true, command_tools},
    {"/result", "TEXT", "the result of the model's call", false, command_result},
};

size_t session_words(const char *out[SESSION_MAX_WORDS]) {
    _Static_assert(COUNT_OF(COMMANDS) <= SESSION_MAX_WORDS, "every command can be completed");
    for (size_t i = 0; i < COUNT_OF(COMMANDS); i++)
        out[i] = COMMANDS[i].name;
    return COUNT_OF(COMMANDS);
}

bool session_describe(size_t i, const char **name, const char **value, const char **help) {
    if (i >= COUNT_OF(COMMANDS))
        return false;
    *name = COMMANDS[i].name;
    *value = COMMANDS[i].value;
    *help = COMMANDS[i].help;
    return true;
}

static Status command_help(Session *s, const char *arg, Err *err) {
    UNUSED(s);
    UNUSED(arg);
    UNUSED(err);
    for (size_t i = 0; i < COUNT_OF(COMMANDS); i++)
        printf("  %-10s %-15s %s\n", COMMANDS[i].name, COMMANDS[i].value, COMMANDS[i].help);
    printf("\nA line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of "
           "several lines, and what is pasted is one text.\n// at the beginning sends a text that "
           "begins with /. Ctrl-C stops the "
           "answer.\n");
    return STATUS_OK;
}

/* The command of this name, or the only one that begins so. */
static const Command *command_find(StrView name, Err *err) {
    const Command *only = NULL;
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(COMMANDS); i++) {
        StrView full = str_view(COMMANDS[i].name, strlen(COMMANDS[i].name));
        if (str_equal(full, name))
            return &COMMANDS[i];
        if (str_starts(full, name)) {
            only = &COMMANDS[i];
            n++;
        }
    }
    if (n == 1)
        return only;
    err->code = err_set(err, STATUS_INVALID, "%s command %.*s; /help lists them",
                        n ? "ambiguous" : "unknown", (int)name.len, name.ptr);
    return NULL;
}

void session_command(Session *s, StrView line) {
    Err err = {0};
    StrBuf arg = {0};
    size_t n = 0;
    while (n < line.len && line.ptr[n] != ' ' && line.ptr[n] != '\t' && line.ptr[n] != '\n')
        n++;
    const Command *c = command_find(str_view(line.ptr, n), &err);
    Status status = c ? STATUS_OK : err.code;
    while (n < line.len && strchr(" \t\n", line.ptr[n]))
        n++;
    while (line.len > n && strchr(" \t\r\n", line.ptr[line.len - 1]))
        line.len--;
    strbuf_append(&arg, line.ptr + n, line.len - n);
    if (status == STATUS_OK)
        status = strbuf_check(&arg, &err);
    if (status == STATUS_OK) {
        if (c->is_path)
            status = command_unquote(arg.ptr, &err);
        if (status == STATUS_OK)
            status = c->run(s, arg.ptr, &err);
        if (status != STATUS_OK)
            err_prefix(&err, "%s", c->name);
    }
    strbuf_fini(&arg);
    if (status != STATUS_OK) {
        err.code = status;
        session_fail(s, &err);
    }
    fflush(stdout);
}
