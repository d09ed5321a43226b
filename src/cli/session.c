// SPDX-License-Identifier: Apache-2.0
/* session.c - the conversation of `lily chat`: open, say, answer, replace.
 *
 * Owns:     see session.h.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "cli/session.h"

#include "cli/ui.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

/* The conversation that Ctrl-C stops: a signal handler has no other way to know it. */
static _Atomic(LilyChat *) session_answering;

static void session_interrupt(int number) {
    UNUSED(number);
    lily_chat_cancel(atomic_load(&session_answering));
}

void session_note(const Session *s, const char *fmt, ...) {
    if (!s->is_terminal)
        return;
    va_list args;
    va_start(args, fmt);
    fputs(s->has_escapes ? "\x1b[2m" : "", stdout);
    vprintf(fmt, args);
    fputs(s->has_escapes ? "\x1b[0m\n" : "\n", stdout);
    va_end(args);
    fflush(stdout);
}

void session_fail(Session *s, const Err *err) {
    s->has_failed = true;
    ui_fail("chat", err);
}

/* ---- open ---- */

static Status session_begin(Session *s, Err *err) {
    LilyError error;
    if (lily_chat_open(&s->chat, s->model, &error) != LILY_OK)
        return talk_fail(err, &error);
    if (s->args->system) {
        strbuf_append(&s->system, s->args->system, strlen(s->args->system));
        TRY(strbuf_check(&s->system, err));
        if (lily_chat_add(s->chat, "system", s->args->system, LILY_TERMINATED, &error) != LILY_OK)
            return talk_fail(err, &error);
    }
    if (s->args->tools)
        TRY(session_read_tools(s, s->args->tools, err));
    return s->args->load ? session_load(s, s->args->load, err) : STATUS_OK;
}

Status session_open(Session *s, const CliArgs *args, Err *err) {
    const char *term = getenv("TERM");
    s->args = args;
    s->is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    s->has_escapes = s->is_terminal && term && *term && strcmp(term, "dumb") != 0;
    s->is_folded = true;
    TRY(talk_open(&s->model, args, 0, err));
    TRY(talk_options(&s->options, &s->lists, args, s->model, err));
    s->options.wants_tokens = true; // for the count while it thinks
    TRY(session_begin(s, err));
    // Restarted calls: an interrupted write to the terminal would count as a broken one.
    if (s->is_terminal) { // never the program's end here, also not between two answers
        struct sigaction action = {.sa_handler = session_interrupt, .sa_flags = SA_RESTART};
        sigaction(SIGINT, &action, NULL);
    }
    return STATUS_OK;
}

void session_close(Session *s) {
    lily_chat_close(s->chat);
    lily_model_close(s->model);
    strbuf_fini(&s->system);
    strbuf_fini(&s->tools);
    strbuf_fini(&s->attached);
    show_fini(&s->show);
}

/* ---- messages ---- */

Status session_messages(Session *s, json_t **out, Err *err) {
    LilyError error;
    char *text = NULL;
    size_t len;
    if (lily_chat_json(s->chat, &text, &len, &error) != LILY_OK)
        return talk_fail(err, &error);
    Status status = json_read(out, str_view(text, len), "conversation", err);
    lily_free(text);
    return status;
}

Status session_replace(Session *s, const json_t *messages, Err *err) {
    LilyError error;
    LilyChat *chat = NULL;
    StrBuf text = {0};
    Status printed = json_print(&text, messages, JSON_COMPACT, err);
    if (printed != STATUS_OK) {
        strbuf_fini(&text);
        return printed;
    }
    LilyStatus status = lily_chat_open(&chat, s->model, &error);
    if (status == LILY_OK)
        status = lily_chat_add_json(chat, text.ptr, text.len, &error);
    if (status == LILY_OK && s->tools.len)
        status = lily_chat_set_tools(chat, s->tools.ptr, s->tools.len, &error);
    strbuf_fini(&text);
    if (status != LILY_OK) {
        lily_chat_close(chat);
        return talk_fail(err, &error);
    }
    lily_chat_close(s->chat);
    s->chat = chat;
    return STATUS_OK;
}

/* ---- an answer ---- */

void session_answer(Session *s) {
    LilyError error;
    struct sigaction action = {.sa_handler = session_interrupt, .sa_flags = SA_RESTART}, before;
    atomic_store(&session_answering, s->chat);
    sigaction(SIGINT, &action, &before);
    show_begin(s);
    LilyStatus status = lily_chat_answer(s->chat, &s->options, show_event, s, &error);
    sigaction(SIGINT, &before, NULL);
    atomic_store(&session_answering, NULL);
    if (status != LILY_OK) {
        Err err = {0};
        err.code = talk_fail(&err, &error);
        session_fail(s, &err);
    }
}

void session_say(Session *s, StrView text) {
    LilyError error;
    size_t n = lily_chat_n_messages(s->chat);
    strbuf_append_view(&s->attached, text);
    bool is_short = s->attached.is_failed;
    LilyStatus status =
        is_short ? LILY_MEMORY
                 : lily_chat_add(s->chat, "user", s->attached.ptr, s->attached.len, &error);
    strbuf_clear(&s->attached);
    if (status != LILY_OK) {
        Err err = {0};
        err.code = is_short ? err_memory(&err, "message", text.len) : talk_fail(&err, &error);
        session_fail(s, &err);
        return;
    }
    bool had_failed = s->has_failed;
    s->has_failed = false;
    session_answer(s);
    if (s->has_failed) // a message that cannot be answered would stand in the way of all later ones
        (void)lily_chat_truncate(s->chat, n, NULL);
    s->has_failed = s->has_failed || had_failed;
}
