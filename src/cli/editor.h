// SPDX-License-Identifier: Apache-2.0
/* editor.h - lines from a terminal: editing, history kept in a file, completion of commands and
 * file names.
 *
 * Path:     chat reads its lines here when both ends are a terminal.
 * Owns:     an Editor owns libedit's state and the history.  Thread: main. */
#ifndef LILY_CLI_EDITOR_H
#define LILY_CLI_EDITOR_H

#include "base/status.h"
#include "base/str.h"

typedef struct Editor Editor;

typedef enum EditorResult {
    EDITOR_LINE,
    EDITOR_END,    // Ctrl-D on an empty line, or the terminal is gone
    EDITOR_STOPPED // Ctrl-C: forget what was typed
} EditorResult;

/* words  [n_words] what Tab completes at the beginning of a line; kept. Behind a word and a space
 *        file names are completed.                                  (in)
 * file   where history is kept between runs; copied; NULL: nowhere. A file that cannot be read or
 *        written only costs the history.
 * has_escapes  the terminal knows escape sequences: what is pasted may then have several lines
 * Returns STATUS_MEMORY, STATUS_IO when the terminal cannot be set up. */
NODISCARD Status editor_open(Editor **out, const char *const *words, size_t n_words,
                             const char *file, bool has_escapes, Err *err);
void editor_close(Editor *e);

/* Reads one line; *out gets its bytes without the line feed (appended). */
EditorResult editor_read(Editor *e, const char *prompt, StrBuf *out);

/* Adds an entry (NUL-terminated, may hold line feeds) to the history and its file. */
void editor_remember(Editor *e, const char *entry);

#endif
