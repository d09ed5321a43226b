// SPDX-License-Identifier: Apache-2.0
/* session_show.c - an answer on the screen: text as it comes, thinking as one line, calls, speed.
 *
 * Owns:     the text of the last reasoning.  Thread: main.
 *
 * When piped, only the answer's text goes to standard output, as it is, with a line feed behind. */
#include "cli/session.h"

#include "base/clock.h"

static const char DIM[] = "\x1b[2m", NORMAL[] = "\x1b[0m", CLEAR_LINE[] = "\r\x1b[K";
enum { SHOW_EVERY_NS = 100000000 }; // the line about thinking is drawn ten times a second

/* "1 token", "2 tokens" */
typedef struct ShowCount {
    char text[32];
} ShowCount;

static ShowCount show_count(int32_t n) {
    ShowCount c;
    snprintf(c.text, sizeof c.text, "%d token%s", n, n == 1 ? "" : "s");
    return c;
}

void show_begin(Session *s) {
    Show *w = &s->show;
    strbuf_clear(&w->reasoning);
    *w = (Show){.reasoning = w->reasoning, .begin_ns = clock_now_ns(), .is_at_line_start = true};
}

void show_fini(Show *show) { strbuf_fini(&show->reasoning); }

void show_text(const Session *s, const char *text, size_t len) {
    if (!s->is_terminal) {
        fwrite(text, 1, len, stdout);
        return;
    }
    // The model's text must not steer the terminal: C0 controls, DEL and C1 (in UTF-8, C2 80..9F).
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < len ? (unsigned char)text[i + 1] : 0;
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            printf("^%c", (c ^ 0x40) & 0x7f);
        } else if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
            printf("\\x%02x", next);
            i++;
        } else {
            putchar(c);
        }
    }
}

/* ---- thinking ---- */

static void show_reasoning(Session *s, LilyText text) {
    Show *w = &s->show;
    strbuf_append(&w->reasoning, text.text, text.len);
    w->n_thought = w->n_tokens;
    if (!s->is_terminal)
        return;
    if (!s->is_folded) {
        fputs(!w->is_thinking_shown && s->has_escapes ? DIM : "", stdout);
        show_text(s, text.text, text.len);
    } else if (!s->has_escapes) {
        fputs(!w->is_thinking_shown ? "[thinking]\n" : "", stdout);
    } else if (clock_now_ns() - w->drawn_ns > SHOW_EVERY_NS) {
        w->drawn_ns = clock_now_ns();
        printf("%s%sthinking, %s, %.1f s%s", CLEAR_LINE, DIM, show_count(w->n_thought).text,
               clock_seconds_since(w->begin_ns), NORMAL);
    }
    w->is_thinking_shown = true;
    fflush(stdout);
}

/* The thinking is over: its line stays as a summary. */
static void show_end_reasoning(Session *s) {
    Show *w = &s->show;
    if (!w->is_thinking_shown)
        return;
    w->is_thinking_shown = false;
    if (s->is_folded && s->has_escapes)
        printf("%s%sthought for %.1f s, %s (/thoughts shows them)%s\n", CLEAR_LINE, DIM,
               clock_seconds_since(w->begin_ns), show_count(w->n_thought).text, NORMAL);
    else if (!s->is_folded)
        printf("%s\n", s->has_escapes ? NORMAL : "");
}

/* ---- the end ---- */

static void show_end(Session *s, const LilyEvent *e) {
    Show *w = &s->show;
    w->finish = e->finish;
    w->figures = e->figures;
    show_end_reasoning(s);
    bool is_nothing = !w->is_any_shown && !s->is_terminal && e->finish != LILY_FINISH_FAILED;
    if (!w->is_at_line_start || is_nothing) // each piped message has at least one line
        putchar('\n');
    const LilyFigures *f = &e->figures;
    const char *how = e->finish == LILY_FINISH_CANCELLED ? ", stopped"
                      : e->finish == LILY_FINISH_LENGTH  ? ", cut at the token limit"
                                                         : "";
    if (e->finish == LILY_FINISH_CALLS)
        session_note(s, "/result TEXT gives the result of the call");
    if (e->finish != LILY_FINISH_FAILED && f->n_generated > 1 && f->decode_s > 0)
        session_note(s, "%d tokens, %.1f a second%s", f->n_generated,
                     (f->n_generated - 1) / f->decode_s, how);
    else if (e->finish != LILY_FINISH_FAILED)
        session_note(s, "%s%s", show_count(f->n_generated).text, how);
    fflush(stdout);
}

/* A whole call on a line of its own. */
static void show_call(Session *s, const LilyEvent *e) {
    Show *w = &s->show;
    fputs(w->is_at_line_start ? "" : "\n", stdout);
    fputs("call ", stdout);
    show_text(s, e->name.text, e->name.len);
    putchar(' ');
    show_text(s, e->text.text, e->text.len);
    putchar('\n');
    w->is_at_line_start = w->is_any_shown = true;
}

bool show_event(void *context, const LilyEvent *e) {
    Session *s = context;
    Show *w = &s->show;
    switch (e->kind) {
    case LILY_EVENT_REASONING: show_reasoning(s, e->text); break;
    case LILY_EVENT_TEXT:
        show_end_reasoning(s);
        show_text(s, e->text.text, e->text.len);
        w->is_any_shown = true;
        w->is_at_line_start = e->text.len && e->text.text[e->text.len - 1] == '\n';
        fflush(stdout);
        break;
    case LILY_EVENT_CALL_BEGIN: show_end_reasoning(s); break;
    case LILY_EVENT_CALL_END: show_call(s, e); break;
    case LILY_EVENT_CALL_ARGS:
    case LILY_EVENT_CALL_DROP: break;
    case LILY_EVENT_TOKEN: w->n_tokens++; break;
    case LILY_EVENT_END: show_end(s, e); break;
    }
    return !ferror(stdout);
}
