// SPDX-License-Identifier: Apache-2.0
/* editor.c - libedit for one purpose.
 *
 * Owns:     libedit's objects, the history file's name.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "cli/editor.h"

#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { EDITOR_HISTORY = 1000 };

struct Editor {
    EditLine *el;
    History *history;
    HistEvent event;
    const char *const *words;
    size_t n_words;
    char *file; // NULL: history is not kept
    const char *prompt;
    bool is_stopped;
    bool has_escapes;
};

static Editor *editor_of(EditLine *el) {
    void *e = NULL;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

static char *editor_prompt(EditLine *el) { return (char *)editor_of(el)->prompt; }

/* Ctrl-C: ends the line, and editor_read says so. */
static unsigned char editor_stop(EditLine *el, int key) {
    UNUSED(key);
    editor_of(el)->is_stopped = true;
    return CC_EOF;
}

/* A terminal that is told so puts marks around what is pasted: its line ends are then text and not
 * the end of a message. */
static const char PASTE_ON[] = "\x1b[?2004h", PASTE_OFF[] = "\x1b[?2004l";

static void editor_escape(const Editor *e, const char *sequence) {
    if (!e->has_escapes)
        return;
    fputs(sequence, stdout);
    fflush(stdout);
}

/* Ctrl-Z: libedit puts the terminal right before the signal stops the program. */
static unsigned char editor_suspend(EditLine *el, int key) {
    UNUSED(key);
    editor_escape(editor_of(el), PASTE_OFF);
    kill(0, SIGTSTP);
    editor_escape(editor_of(el), PASTE_ON); // behind SIGCONT
    return CC_REFRESH;
}

/* Tab: the one word that begins like the line, as far as all such words agree; file names behind a
 * command. */
static unsigned char editor_complete(EditLine *el, int key) {
    Editor *e = editor_of(el);
    const LineInfo *line = el_line(el);
    size_t len = (size_t)(line->cursor - line->buffer);
    if (len == 0 || line->buffer[0] != '/')
        return CC_ERROR;
    if (memchr(line->buffer, ' ', len))
        return _el_fn_complete(el, key);
    const char *first = NULL;
    size_t common = 0, n = 0;
    for (size_t i = 0; i < e->n_words; i++) {
        const char *word = e->words[i];
        if (strlen(word) < len || memcmp(word, line->buffer, len) != 0)
            continue;
        if (n++ == 0) {
            first = word;
            common = strlen(word);
        }
        size_t same = 0;
        while (same < common && word[same] == first[same])
            same++;
        common = same;
    }
    if (n == 0)
        return CC_ERROR;
    char rest[64];
    snprintf(rest, sizeof rest, "%.*s%s", (int)(common - len), first + len, n == 1 ? " " : "");
    if (*rest == 0) { // nothing more in common: show what there is
        printf("\n");
        for (size_t i = 0; i < e->n_words; i++)
            if (strlen(e->words[i]) >= len && memcmp(e->words[i], line->buffer, len) == 0)
                printf("%s  ", e->words[i]);
        printf("\n");
        fflush(stdout);
        return CC_REDISPLAY;
    }
    return el_insertstr(el, rest) == 0 ? CC_REFRESH : CC_ERROR;
}

/* ---- paste ---- */

static const char PASTE_BEGIN[] = "\\e[200~";
static const wchar_t PASTE_END[] = L"\x1b[201~";
enum { PASTE_END_LEN = sizeof PASTE_END / sizeof *PASTE_END - 1, PASTE_MAX = 1 << 22 };

/* Reads to the end mark, also when memory runs out: the rest would be taken for keys. The text in
 * characters of the line, for mem_free; NULL: too long, or no memory. */
static wchar_t *paste_read(EditLine *el) {
    size_t n = 0, cap = 0, n_matched = 0;
    wchar_t c, *text = NULL;
    bool is_good = true;
    while (n_matched < PASTE_END_LEN && el_wgetc(el, &c) == 1) {
        n_matched = c == PASTE_END[n_matched] ? n_matched + 1 : c == PASTE_END[0];
        if (is_good && n == cap) {
            cap = cap * 2 + 256;
            wchar_t *more = cap <= PASTE_MAX ? mem_realloc(text, cap * sizeof *more) : NULL;
            is_good = more != NULL;
            text = more ? more : text;
        }
        if (is_good)
            text[n++] = c;
    }
    if (!is_good || n_matched < PASTE_END_LEN) {
        mem_free(text);
        return NULL;
    }
    text[n - PASTE_END_LEN] = 0;
    return text;
}

/* Line ends become line feeds; other control characters could not be shown. */
static void paste_clean(wchar_t *text) {
    wchar_t *to = text;
    for (const wchar_t *from = text; *from; from++) {
        if (*from == L'\r' || *from == L'\n')
            *to++ = L'\n';
        else if ((*from >= 0x20 && (*from < 0x7f || *from > 0x9f)) || *from == L'\t')
            *to++ = *from;
    }
    while (to > text && to[-1] == L'\n') // so that Enter alone sends it
        to--;
    *to = 0;
}

static unsigned char editor_paste(EditLine *el, int key) {
    UNUSED(key);
    wchar_t *text = paste_read(el);
    bool is_good = text != NULL;
    if (is_good) {
        paste_clean(text);
        is_good = *text && el_winsertstr(el, text) == 0;
    }
    mem_free(text);
    return is_good ? CC_REFRESH : CC_ERROR;
}

/* Characters of more than a byte need a locale that has them. */
static void editor_set_locale(void) {
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

Status editor_open(Editor **out, const char *const *words, size_t n_words, const char *file,
                   bool has_escapes, Err *err) {
    Editor *e = mem_zalloc(1, sizeof *e);
    if (!e)
        return err_memory(err, "line editor", sizeof *e);
    editor_set_locale();
    e->words = words;
    e->n_words = n_words;
    e->prompt = "";
    e->has_escapes = has_escapes;
    e->file = file ? mem_strdup(file, strlen(file)) : NULL;
    e->history = history_init();
    e->el = el_init("lily", stdin, stdout, stderr);
    if (!e->history || !e->el || (file && !e->file)) {
        editor_close(e);
        return err_set(err, STATUS_IO, "the terminal cannot be set up for editing");
    }
    history(e->history, &e->event, H_SETSIZE, EDITOR_HISTORY);
    history(e->history, &e->event, H_SETUNIQUE, 1);
    if (e->file)
        history(e->history, &e->event, H_LOAD, e->file);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, editor_prompt);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_SIGNAL, 1); // put the terminal right when a signal ends or stops the program
    el_set(e->el, EL_ADDFN, "lily-complete", "commands and file names", editor_complete);
    el_set(e->el, EL_ADDFN, "lily-stop", "forget the line", editor_stop);
    el_set(e->el, EL_ADDFN, "lily-suspend", "stop the program", editor_suspend);
    el_set(e->el, EL_ADDFN, "lily-paste", "insert what is pasted", editor_paste);
    el_source(e->el, NULL); // the user's own ~/.editrc
    el_set(e->el, EL_BIND, "^I", "lily-complete", NULL);
    el_set(e->el, EL_BIND, PASTE_BEGIN, "lily-paste", NULL);
    el_set(e->el, EL_BIND, "^C", "lily-stop", NULL);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(e->el, EL_BIND, "^Z", "lily-suspend", NULL);
    el_set(e->el, EL_SETTY, "-d", "-isig", NULL); // while editing, Ctrl-C and Ctrl-Z are keys
    *out = e;
    return STATUS_OK;
}

void editor_close(Editor *e) {
    if (!e)
        return;
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
    mem_free(e->file);
    mem_free(e);
}

EditorResult editor_read(Editor *e, const char *prompt, StrBuf *out) {
    int n = 0;
    e->prompt = prompt;
    e->is_stopped = false;
    el_set(e->el, EL_PREP_TERM, 1); // before the prompt is seen: a key then is a key, no signal
    errno = 0;
    editor_escape(e, PASTE_ON);
    const char *line = el_gets(e->el, &n);
    int why = errno;
    editor_escape(e, PASTE_OFF);
    errno = why;
    bool is_signalled = !line && n < 0 && errno == EINTR; // an interrupt that is no key
    if (e->is_stopped || is_signalled) {
        el_reset(e->el);
        printf(is_signalled ? "\n" : "^C\n");
        fflush(stdout);
        return EDITOR_STOPPED;
    }
    if (!line || n <= 0)
        return EDITOR_END;
    size_t len = (size_t)n;
    if (line[len - 1] == '\n')
        len--;
    strbuf_append(out, line, len);
    return EDITOR_LINE;
}

/* The history file appears whole or stays as it was. */
static void editor_save(Editor *e) {
    char part[PATH_MAX];
    int n = snprintf(part, sizeof part, "%s.%ld.part", e->file, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof part)
        return;
    mode_t before = umask(077); // what was asked is nobody else's business
    int n_saved = history(e->history, &e->event, H_SAVE, part);
    umask(before);
    if (n_saved < 0 || rename(part, e->file) != 0)
        unlink(part);
}

void editor_remember(Editor *e, const char *entry) {
    history(e->history, &e->event, H_ENTER, entry);
    if (e->file)
        editor_save(e);
}
