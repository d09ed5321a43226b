// SPDX-License-Identifier: Apache-2.0
/* session.h - one run of `lily chat`: the conversation, its settings and what is on the screen.
 *
 * Path:     chat_verb.c (lines in) -> session_command.c (/commands) or session_answer ->
 *           session_show.c (events out); session_file.c saves and loads.
 * Owns:     a Session owns the model and the conversation.  Thread: main; Ctrl-C only asks the
 *           library to cancel.
 * Not here: editing (editor.h), options from the command line (talk.h). */
#ifndef LILY_CLI_SESSION_H
#define LILY_CLI_SESSION_H

#include "base/json.h"
#include "cli/talk.h"

/* What the last answer showed. */
typedef struct Show {
    StrBuf reasoning; // of the last answer, whole
    int64_t begin_ns, drawn_ns;
    int32_t n_tokens;       // so far
    int32_t n_thought;      // when the last piece of reasoning came
    bool is_thinking_shown; // the line about thinking stands there
    bool is_any_shown;      // text or a call
    bool is_at_line_start;
    LilyFinish finish;
    LilyFigures figures;
} Show;

typedef struct Session {
    const CliArgs *args;
    LilyModel *model;
    LilyChat *chat;
    LilyAnswerOptions options;
    TalkLists lists;
    bool is_terminal; // prompts and notes; both ends are a terminal
    bool has_escapes; // the terminal knows escape sequences
    bool is_folded;   // reasoning is one line, not its text
    bool is_over;     // /quit
    bool has_failed;  // some line did: the exit status of a piped run
    StrBuf system;    // text of the system message; empty: none
    StrBuf tools;     // JSON; empty: none
    StrBuf attached;  // files that go with the next message
    Show show;
} Session;

/* ---- session.c ---- */

NODISCARD Status session_open(Session *s, const CliArgs *args, Err *err);
void session_close(Session *s);

/* Has the conversation answered as it stands; what went wrong is told. */
void session_answer(Session *s);
/* Adds a message of the user (with what is attached) and has it answered. */
void session_say(Session *s, StrView text);
/* A new conversation with these messages and the session's tools; the old one stays on failure. */
NODISCARD Status session_replace(Session *s, const json_t *messages, Err *err);
/* The messages so far; the caller's (json_decref). */
NODISCARD Status session_messages(Session *s, json_t **out, Err *err);
/* A note for a person: nothing when piped. */
void session_note(const Session *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A failure of a line: told on standard error, remembered for the exit status. */
void session_fail(Session *s, const Err *err);

/* ---- session_show.c ---- */

void show_begin(Session *s);
/* A LilyEventFn; context is the Session. */
bool show_event(void *context, const LilyEvent *e);
void show_fini(Show *show);
/* Text on the screen: control characters become visible there; as it is when piped. */
void show_text(const Session *s, const char *text, size_t len);

/* ---- session_command.c ---- */

enum { SESSION_MAX_WORDS = 32 };
/* The names of the commands, "/help" and so on, for completion; returns how many. */
size_t session_words(const char *out[SESSION_MAX_WORDS]);
/* Command i of the table for manuals; false: there are no more. */
bool session_describe(size_t i, const char **name, const char **value, const char **help);
/* A line that begins with a slash. */
void session_command(Session *s, StrView line);

/* ---- session_file.c ---- */

/* Writes the conversation to a file, whole or not at all. */
NODISCARD Status session_save(Session *s, const char *path, Err *err);
/* Reads one back in place of the present one, which stays on failure. */
NODISCARD Status session_load(Session *s, const char *path, Err *err);
/* Reads a text file to go with the next message. */
NODISCARD Status session_attach(Session *s, const char *path, Err *err);
/* Sets the tools from a file. */
NODISCARD Status session_read_tools(Session *s, const char *path, Err *err);
/* The history's file under the user's state folder, which is made; NULL: none. mem_free it. */
char *session_history_path(void);

#endif
