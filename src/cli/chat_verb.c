// SPDX-License-Identifier: Apache-2.0
/* chat_verb.c - the verb `chat`: lines in, each a message or a /command.
 *
 * Path:     editor.c (a terminal) or standard input -> session.c.
 * Owns:     the editor and the text at work.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/mem.h"
#include "cli/editor.h"
#include "cli/model.h"
#include "cli/session.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <errno.h>

static const char PROMPT[] = "> ", PROMPT_MORE[] = ". ";
static const char BLOCK[] = "\"\"\"";

/* One line; the same results whether a person or a pipe gives it. */
static EditorResult chat_line(Editor *editor, const char *prompt, StrBuf *out) {
    if (editor)
        return editor_read(editor, prompt, out);
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n > 0)
        strbuf_append(out, line, (size_t)n - (line[n - 1] == '\n'));
    mem_free(line);
    return n > 0 ? EDITOR_LINE : EDITOR_END;
}

/* Whether the block ends in the text from `from` on; it is cut there. */
static bool chat_ends_block(StrBuf *text, size_t from) {
    StrView added = str_view(text->ptr + from, text->len - from);
    size_t at = str_find(added, STR("\"\"\""));
    if (at == SIZE_MAX)
        return false;
    text->len = from + at; // what stands behind the marks is no part of the text
    text->ptr[text->len] = 0;
    return true;
}

/* A message or command, which may take several lines: `\` at a line's end, or a """ block. */
static EditorResult chat_read(Editor *editor, StrBuf *text, bool *is_block) {
    strbuf_clear(text);
    *is_block = false;
    EditorResult result = chat_line(editor, PROMPT, text);
    if (result != EDITOR_LINE || text->is_failed)
        return result;
    if (str_starts(strbuf_view(text), STR("\"\"\""))) {
        *is_block = true;
        StrView rest = str_view(text->ptr + strlen(BLOCK), text->len - strlen(BLOCK));
        memmove(text->ptr, rest.ptr, rest.len + 1);
        text->len = rest.len;
        bool is_over = chat_ends_block(text, 0);
        while (!is_over) {
            if (text->len)
                strbuf_append_char(text, '\n');
            size_t from = text->len;
            result = chat_line(editor, PROMPT_MORE, text);
            if (result != EDITOR_LINE || text->is_failed)
                return result == EDITOR_END ? EDITOR_LINE : result;
            is_over = text->len > from && chat_ends_block(text, from);
        }
        if (str_ends(strbuf_view(text), STR("\n")))
            text->ptr[--text->len] = 0;
        return EDITOR_LINE;
    }
    while (str_ends(strbuf_view(text), STR("\\"))) {
        text->ptr[text->len - 1] = '\n';
        result = chat_line(editor, PROMPT_MORE, text);
        if (result != EDITOR_LINE || text->is_failed)
            return result == EDITOR_END ? EDITOR_LINE : result;
    }
    return EDITOR_LINE;
}

static bool chat_is_blank(StrView text) {
    for (size_t i = 0; i < text.len; i++)
        if (!strchr(" \t\r\n", text.ptr[i]))
            return false;
    return true;
}

/* What the history gives back must mean the same: a block may begin with a slash. */
static void chat_remember(Editor *editor, const StrBuf *text, bool is_block) {
    StrBuf line = {0};
    if (is_block && text->ptr[0] == '/')
        strbuf_append_char(&line, '/');
    strbuf_append(&line, text->ptr, text->len);
    if (!line.is_failed)
        editor_remember(editor, line.ptr);
    strbuf_fini(&line);
}

static void chat_loop(Session *s, Editor *editor) {
    StrBuf text = {0};
    bool is_block;
    while (!s->is_over && !ferror(stdout)) {
        EditorResult result = chat_read(editor, &text, &is_block);
        if (result == EDITOR_END)
            break;
        Err err = {0};
        if (strbuf_check(&text, &err) != STATUS_OK) {
            session_fail(s, &err);
            continue;
        }
        StrView view = strbuf_view(&text);
        if (result == EDITOR_STOPPED || chat_is_blank(view))
            continue;
        if (editor)
            chat_remember(editor, &text, is_block);
        if (is_block || text.ptr[0] != '/')
            session_say(s, view);
        else if (str_starts(view, STR("//")))
            session_say(s, str_view(view.ptr + 1, view.len - 1));
        else
            session_command(s, view);
    }
    if (ferror(stdin)) {
        Err err = {0};
        err.code = err_errno(&err, errno, "read", "standard input");
        session_fail(s, &err);
    }
    strbuf_fini(&text);
}

static void chat_greet(const Session *s) {
    session_note(s,
                 "lily %s, model %s, context %d tokens. /help lists the commands; Ctrl-D leaves.",
                 lily_version(), model_spec(s->args), lily_model_ctx_tok(s->model));
}

int verb_chat(const CliArgs *args) {
    Err err = {0};
    Editor *editor = NULL;
    const char *words[SESSION_MAX_WORDS];
    if (talk_check(args, &err) != STATUS_OK)
        return ui_usage("chat", "%s", err.text);
    Session *s = mem_zalloc(1, sizeof *s); // too large for the stack
    if (!s) {
        err.code = err_memory(&err, "the session", sizeof *s);
        return ui_fail("chat", &err);
    }
    Status status = session_open(s, args, &err);
    if (status == STATUS_OK && s->is_terminal) {
        char *path = session_history_path();
        status = editor_open(&editor, words, session_words(words), path, s->has_escapes, &err);
        mem_free(path);
    }
    if (status == STATUS_OK) {
        chat_greet(s);
        chat_loop(s, editor);
        if (s->is_terminal && !s->is_over)
            printf("\n"); // the prompt stands there
    }
    bool has_failed = s->has_failed && !s->is_terminal;
    editor_close(editor);
    session_close(s);
    mem_free(s);
    if (status != STATUS_OK)
        return ui_fail("chat", &err);
    int finish = ui_finish("chat");
    return has_failed ? 1 : finish;
}
