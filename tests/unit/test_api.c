// SPDX-License-Identifier: Apache-2.0
/* test_api.c - the C library through its public header alone: conversations side by side, cancel
 * from other threads in every phase, failing allocations, bad arguments.
 *
 * Path:     make unit.
 * Owns:     one random model for most tests.  Thread: several. */
#define _DEFAULT_SOURCE // usleep
#include "base/mem.h"
#include "base/status.h"
#include "lily.h"

#include "unit.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY "synth:tiny,layers=4"
#define MINI "models/mini"

enum { MAX_TEXT = 1 << 16 };

// What liblily.so.0 has promised: programs that were compiled against it go on working.
#define ABI_AT(type, member, at)                                                                   \
    _Static_assert(sizeof(void *) != 8 || offsetof(type, member) == (at), #type "." #member)
ABI_AT(LilyError, text, 4);
ABI_AT(LilyModelOptions, n_answers, 40);
ABI_AT(LilyModelOptions, budget_bytes, 48);
ABI_AT(LilyModelOptions, progress_context, 88);
ABI_AT(LilyAnswerOptions, thinking, 8);
ABI_AT(LilyAnswerOptions, has_seed, 44);
ABI_AT(LilyAnswerOptions, stops, 56);
ABI_AT(LilyAnswerOptions, is_past_end, 88);
ABI_AT(LilyAnswerOptions, prompt, 96);
ABI_AT(LilyAnswerOptions, n_prompt_ids, 120);
ABI_AT(LilyEvent, text, 8);
ABI_AT(LilyEvent, name, 24);
ABI_AT(LilyEvent, call, 40);
ABI_AT(LilyEvent, finish, 48);
ABI_AT(LilyEvent, figures, 56);
ABI_AT(LilyFigures, first_s, 16);
ABI_AT(LilyFigures, decode_s, 24);
_Static_assert(sizeof(LilyError) == 516 && sizeof(LilyBias) == 8 && LILY_OK == 0 &&
                   LILY_CONTEXT == 5 && LILY_MEMORY == 8 && LILY_BUSY == 10 && LILY_DEVICE == 13,
               "errors");
_Static_assert(LILY_THINKING_ON == 2 && LILY_EVENT_TEXT == 1 && LILY_EVENT_CALL_END == 4 &&
                   LILY_EVENT_END == 7 && LILY_FINISH_CALLS == 2 && LILY_FINISH_FAILED == 4,
               "enumerators");

static LilyModel *model; // TINY

/* What one answer's events came to. */
typedef struct Seen {
    char text[MAX_TEXT], reasoning[MAX_TEXT], args[MAX_TEXT];
    char name[64];
    int n_events, n_ends, n_tokens, n_calls, n_drops;
    int stop_after; // the event function says no at that event; 0: never
    LilyFinish finish;
    LilyFigures figures;
    pthread_t thread;
    LilyChat *cancel; // cancelled at the first text; NULL: none
} Seen;

static void join(char *to, LilyText piece) {
    size_t n = strlen(to);
    assert_true(n + piece.len < MAX_TEXT);
    assert_int_equal(piece.text[piece.len], 0);
    memcpy(to + n, piece.text, piece.len);
    to[n + piece.len] = 0;
}

static bool see(void *context, const LilyEvent *e) {
    Seen *s = context;
    assert_int_equal(s->n_ends, 0);
    assert_true(pthread_equal(pthread_self(), s->thread));
    s->n_events++;
    switch (e->kind) {
    case LILY_EVENT_REASONING: join(s->reasoning, e->text); break;
    case LILY_EVENT_TEXT: join(s->text, e->text); break;
    case LILY_EVENT_CALL_BEGIN:
        s->n_calls++;
        s->args[0] = s->name[0] = 0;
        join(s->name, e->name);
        break;
    case LILY_EVENT_CALL_ARGS: join(s->args, e->text); break;
    case LILY_EVENT_CALL_END: assert_string_equal(s->args, e->text.text); break;
    case LILY_EVENT_CALL_DROP: s->n_drops++; break;
    case LILY_EVENT_TOKEN: s->n_tokens++; break;
    case LILY_EVENT_END:
        s->n_ends++;
        s->finish = e->finish;
        s->figures = e->figures;
        break;
    }
    if (s->cancel)
        lily_chat_cancel(s->cancel);
    return s->stop_after == 0 || s->n_events < s->stop_after;
}

static Seen *new_seen(void) {
    Seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->thread = pthread_self();
    return s;
}

static LilyModel *open_model(const char *path, int32_t n_answers) {
    LilyModel *m = NULL;
    LilyError error;
    LilyModelOptions o = {
        .size = sizeof o, .n_threads = 2, .ctx_tok = 2048, .n_answers = n_answers};
    if (lily_model_open(&m, path, &o, &error) != LILY_OK)
        fail_msg("%s", error.text);
    return m;
}

static LilyChat *open_chat(LilyModel *m, const char *text) {
    LilyChat *chat = NULL;
    assert_int_equal(lily_chat_open(&chat, m, NULL), LILY_OK);
    assert_int_equal(lily_chat_add(chat, "user", text, LILY_TERMINATED, NULL), LILY_OK);
    return chat;
}

static LilyAnswerOptions options_of(const LilyModel *m, int32_t max_tokens, uint64_t seed) {
    LilyAnswerOptions o;
    lily_answer_defaults(&o, sizeof o, m);
    o.max_tokens = max_tokens;
    o.has_seed = true;
    o.seed = seed;
    o.is_past_end = true;
    o.wants_tokens = true;
    o.thinking = LILY_THINKING_OFF;
    return o;
}

/* ---- an answer ---- */

static void test_answer_is_streamed_and_kept(void **state) {
    UNUSED(state);
    LilyChat *chat = open_chat(model, "hello");
    LilyAnswerOptions o = options_of(model, 24, 7);
    Seen *s = new_seen();
    LilyError error;
    assert_int_equal(lily_chat_answer(chat, &o, see, s, &error), LILY_OK);
    assert_int_equal(s->n_ends, 1);
    assert_int_equal(s->finish, LILY_FINISH_LENGTH);
    assert_int_equal(s->n_tokens, 24);
    assert_int_equal(s->figures.n_generated, 24);
    assert_true(s->figures.n_prompt > 5);
    assert_true(s->figures.first_s > 0 && s->figures.decode_s > 0);
    assert_true(s->text[0]);
    assert_int_equal(lily_chat_n_messages(chat), 2);

    char *json = NULL;
    size_t len = 0;
    assert_int_equal(lily_chat_json(chat, &json, &len, NULL), LILY_OK);
    assert_int_equal(strlen(json), len);
    assert_non_null(strstr(json, "\"assistant\""));
    // What was saved can be read back, and reads the same.
    LilyChat *copy = NULL;
    assert_int_equal(lily_chat_open(&copy, model, NULL), LILY_OK);
    assert_int_equal(lily_chat_add_json(copy, json, len, &error), LILY_OK);
    char *again = NULL;
    assert_int_equal(lily_chat_json(copy, &again, NULL, NULL), LILY_OK);
    assert_string_equal(json, again);
    lily_free(json);
    lily_free(again);
    lily_chat_close(copy);

    // The same beginning and seed: the same text.
    assert_int_equal(lily_chat_truncate(chat, 1, NULL), LILY_OK);
    Seen *t = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, t, NULL), LILY_OK);
    assert_string_equal(s->text, t->text);
    lily_chat_close(chat);
    free(s);
    free(t);
}

static void test_no_event_function_and_no_options(void **state) {
    UNUSED(state);
    LilyChat *chat = open_chat(model, "hello");
    LilyAnswerOptions o = options_of(model, 3, 1);
    assert_int_equal(lily_chat_answer(chat, &o, NULL, NULL, NULL), LILY_OK);
    assert_int_equal(lily_chat_n_messages(chat), 2);
    lily_chat_close(chat);
}

static void test_a_prompt_of_its_own_leaves_the_conversation_alone(void **state) {
    UNUSED(state);
    LilyChat *chat = NULL;
    assert_int_equal(lily_chat_open(&chat, model, NULL), LILY_OK);
    LilyAnswerOptions o = options_of(model, 5, 1);
    static const int32_t ids[] = {1, 2, 3};
    o.prompt_ids = ids;
    o.n_prompt_ids = 3;
    Seen *s = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->figures.n_prompt, 3);
    assert_int_equal(s->n_tokens, 5);
    o.prompt_ids = NULL;
    o.n_prompt_ids = 0;
    o.prompt = (LilyText){"abcd", 4};
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->figures.n_prompt, 4);
    assert_int_equal(lily_chat_n_messages(chat), 0);
    lily_chat_close(chat);
    free(s);
}

static void test_a_next_turn_reads_only_what_is_new(void **state) {
    UNUSED(state);
    char longer[600];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    LilyChat *chat = open_chat(model, longer);
    LilyAnswerOptions o = options_of(model, 4, 1);
    Seen *s = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    int32_t before = s->figures.n_prompt;
    assert_int_equal(lily_chat_add(chat, "user", "more", 4, NULL), LILY_OK);
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_true(s->figures.n_cached >= before - 2 * 64);
    lily_chat_close(chat);
    free(s);
}

static void test_stop_texts_and_biases(void **state) {
    UNUSED(state);
    LilyChat *chat = open_chat(model, "hello");
    LilyAnswerOptions o = options_of(model, 4, 1);
    LilyBias bias = {'A' - '!', 1e9f}; // byte tokens begin with the printable ones
    o.biases = &bias;
    o.n_biases = 1;
    Seen *s = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_string_equal(s->text, "AAAA");
    LilyText stop = {"AAA", LILY_TERMINATED};
    o.stops = &stop;
    o.n_stops = 1;
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_truncate(chat, 1, NULL), LILY_OK);
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_STOP);
    assert_string_equal(s->text, "");
    assert_int_equal(lily_chat_n_messages(chat), 1); // an empty answer is none
    lily_chat_close(chat);
    free(s);
}

/* ---- several at once ---- */

typedef struct Worker {
    pthread_t thread;
    LilyModel *model;
    int number, n_rounds;
    bool is_cancelled_early;
    atomic_bool is_done;
    LilyChat *chat;
    Seen *seen;
} Worker;

static void *work(void *ctx) {
    Worker *w = ctx;
    for (int i = 0; i < w->n_rounds; i++) {
        char text[64];
        snprintf(text, sizeof text, "conversation %d", w->number);
        w->chat = open_chat(w->model, text);
        LilyAnswerOptions o = options_of(w->model, 12 + w->number, (uint64_t)w->number);
        *w->seen = (Seen){.thread = pthread_self()};
        assert_int_equal(lily_chat_answer(w->chat, &o, see, w->seen, NULL), LILY_OK);
        assert_int_equal(w->seen->n_ends, 1);
        lily_chat_close(w->chat);
    }
    atomic_store(&w->is_done, true);
    return NULL;
}

static void test_conversations_at_once_equal_one_after_another(void **state) {
    UNUSED(state);
    enum { N = 6 };
    Worker together[N], alone[N];
    LilyModel *m = open_model(TINY, 3); // fewer places than conversations: some wait
    for (int i = 0; i < N; i++) {
        together[i] = (Worker){.model = m, .number = i, .n_rounds = 2, .seen = new_seen()};
        assert_int_equal(pthread_create(&together[i].thread, NULL, work, &together[i]), 0);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_join(together[i].thread, NULL), 0);
    for (int i = 0; i < N; i++) {
        alone[i] = (Worker){.model = m, .number = i, .n_rounds = 1, .seen = new_seen()};
        work(&alone[i]);
        assert_string_equal(alone[i].seen->text, together[i].seen->text);
        free(alone[i].seen);
        free(together[i].seen);
    }
    lily_model_close(m);
}

static void test_a_model_lives_as_long_as_its_conversations(void **state) {
    UNUSED(state);
    LilyModel *m = open_model(TINY, 1);
    LilyChat *chat = open_chat(m, "still there");
    LilyAnswerOptions o = options_of(m, 3, 1);
    lily_model_close(m);
    assert_int_equal(lily_chat_answer(chat, &o, NULL, NULL, NULL), LILY_OK);
    lily_chat_close(chat);
}

/* ---- cancel ---- */

typedef struct Canceller {
    LilyChat *chat;
    int delay_us; // -1: at once
    atomic_bool is_over;
} Canceller;

static void *cancel_until_over(void *ctx) {
    Canceller *c = ctx;
    if (c->delay_us >= 0)
        usleep((useconds_t)c->delay_us);
    while (!atomic_load(&c->is_over)) {
        lily_chat_cancel(c->chat);
        usleep(100);
    }
    return NULL;
}

static void test_cancel_from_another_thread_in_every_phase(void **state) {
    UNUSED(state);
    // From before the answer begins over its prefill into its decode; a long prompt for the middle.
    static const int delays[] = {-1, 0, 300, 1000, 3000, 10000, 30000, 80000};
    char longer[1500];
    memset(longer, 'b', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    for (size_t i = 0; i < COUNT_OF(delays); i++) {
        LilyChat *chat = open_chat(model, i % 2 ? longer : "short");
        LilyAnswerOptions o = options_of(model, 0, i);
        Seen *s = new_seen();
        Canceller c = {.chat = chat, .delay_us = delays[i]};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_until_over, &c), 0);
        assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
        atomic_store(&c.is_over, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(s->n_ends, 1);
        if (s->finish != LILY_FINISH_LENGTH) // a fast machine may be done before the last delay
            assert_int_equal(s->finish, LILY_FINISH_CANCELLED);
        // As far as it came it is in the conversation, and the next answer is not cancelled.
        assert_int_equal(lily_chat_n_messages(chat), s->text[0] ? 2 : 1);
        o.max_tokens = 2;
        assert_int_equal(lily_chat_truncate(chat, 1, NULL), LILY_OK);
        *s = (Seen){.thread = pthread_self()};
        assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
        assert_int_equal(s->finish, LILY_FINISH_LENGTH);
        lily_chat_close(chat);
        free(s);
    }
}

static void test_cancel_while_waiting_for_a_place(void **state) {
    UNUSED(state);
    LilyModel *m = open_model(TINY, 1);
    Worker w = {.model = m, .number = 600, .n_rounds = 1, .seen = new_seen()}; // holds the place
    assert_int_equal(pthread_create(&w.thread, NULL, work, &w), 0);
    usleep(20000);
    LilyChat *chat = open_chat(m, "waits");
    LilyAnswerOptions o = options_of(m, 50, 1);
    Seen *s = new_seen();
    Canceller c = {.chat = chat, .delay_us = 5000};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_until_over, &c), 0);
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    atomic_store(&c.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(s->n_ends, 1);
    assert_int_equal(pthread_join(w.thread, NULL), 0);
    assert_int_equal(w.seen->finish, LILY_FINISH_LENGTH); // the other went on
    lily_chat_close(chat);
    lily_model_close(m);
    free(s);
    free(w.seen);
}

static void test_the_event_function_can_end_the_answer(void **state) {
    UNUSED(state);
    LilyChat *chat = open_chat(model, "hello");
    LilyAnswerOptions o = options_of(model, 0, 3);
    Seen *s = new_seen();
    s->stop_after = 4;
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_CANCELLED);
    assert_true(s->figures.n_generated < 1000);
    *s = (Seen){.thread = pthread_self(), .cancel = chat}; // and cancel from inside it
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_CANCELLED);
    lily_chat_cancel(chat); // without an answer: nothing, also not to the next one
    *s = (Seen){.thread = pthread_self()};
    o.max_tokens = 2;
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_LENGTH);
    lily_chat_close(chat);
    free(s);
}

static LilyChat *volatile signalled;
static void on_signal(int number) {
    UNUSED(number);
    lily_chat_cancel(signalled);
}

static bool raise_at_text(void *context, const LilyEvent *e) {
    int *n = context;
    if (e->kind == LILY_EVENT_TEXT && (*n)++ == 0)
        kill(getpid(), SIGUSR1);
    if (e->kind == LILY_EVENT_END)
        assert_int_equal(e->finish, LILY_FINISH_CANCELLED);
    return true;
}

static void test_cancel_from_a_signal_handler(void **state) {
    UNUSED(state);
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGUSR1, &action, &before);
    LilyChat *chat = open_chat(model, "hello");
    signalled = chat;
    LilyAnswerOptions o = options_of(model, 0, 3);
    int n = 0;
    assert_int_equal(lily_chat_answer(chat, &o, raise_at_text, &n, NULL), LILY_OK);
    assert_true(n > 0);
    sigaction(SIGUSR1, &before, NULL);
    lily_chat_close(chat);
}

/* ---- one conversation, two hands ---- */

typedef struct Intruder {
    LilyChat *chat;
    int n_checked;
} Intruder;

static bool intrude(void *context, const LilyEvent *e) {
    Intruder *in = context;
    LilyError error = {0};
    char *json = NULL;
    if (e->kind == LILY_EVENT_TEXT && in->n_checked++ == 0) {
        assert_int_equal(lily_chat_add(in->chat, "user", "x", 1, &error), LILY_BUSY);
        assert_string_equal(error.text, "the conversation is being answered");
        assert_int_equal(lily_chat_add_json(in->chat, "[]", 2, NULL), LILY_BUSY);
        assert_int_equal(lily_chat_set_tools(in->chat, NULL, 0, NULL), LILY_BUSY);
        assert_int_equal(lily_chat_truncate(in->chat, 0, NULL), LILY_BUSY);
        assert_int_equal(lily_chat_json(in->chat, &json, NULL, NULL), LILY_BUSY);
        assert_int_equal(lily_chat_answer(in->chat, NULL, NULL, NULL, NULL), LILY_BUSY);
        assert_null(json);
        // Another conversation with the same model may be answered meanwhile.
        LilyChat *other = open_chat(model, "inside");
        LilyAnswerOptions o = options_of(model, 3, 1);
        assert_int_equal(lily_chat_answer(other, &o, NULL, NULL, NULL), LILY_OK);
        assert_int_equal(lily_chat_n_messages(other), 2);
        lily_chat_close(other);
    }
    return true;
}

static void test_a_conversation_that_is_answered_refuses_others(void **state) {
    UNUSED(state);
    Intruder in = {.chat = open_chat(model, "hello")};
    LilyAnswerOptions o = options_of(model, 6, 3);
    assert_int_equal(lily_chat_answer(in.chat, &o, intrude, &in, NULL), LILY_OK);
    assert_true(in.n_checked > 0);
    lily_chat_close(in.chat);
}

/* ---- bad arguments ---- */

static void test_null_is_refused_or_harmless(void **state) {
    UNUSED(state);
    LilyModel *m = NULL;
    LilyChat *chat = NULL;
    LilyError error;
    assert_int_equal(lily_model_open(NULL, TINY, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_model_open(&m, NULL, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_chat_open(NULL, model, &error), LILY_INVALID);
    assert_int_equal(lily_chat_open(&chat, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_chat_add(NULL, "user", "x", 1, &error), LILY_INVALID);
    assert_int_equal(lily_chat_add_json(NULL, "[]", 2, &error), LILY_INVALID);
    assert_int_equal(lily_chat_set_tools(NULL, "[]", 2, &error), LILY_INVALID);
    assert_int_equal(lily_chat_truncate(NULL, 0, &error), LILY_INVALID);
    assert_int_equal(lily_chat_answer(NULL, NULL, NULL, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_chat_n_messages(NULL), 0);
    assert_int_equal(lily_model_ctx_tok(NULL), 0);
    lily_chat_cancel(NULL);
    lily_chat_close(NULL);
    lily_model_close(NULL);
    lily_free(NULL);
    lily_answer_defaults(NULL, 0, model);
    char *json = NULL;
    chat = open_chat(model, "x");
    assert_int_equal(lily_chat_json(NULL, &json, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_chat_json(chat, NULL, NULL, &error), LILY_INVALID);
    assert_int_equal(lily_chat_add(chat, "user", NULL, 3, &error), LILY_INVALID);
    assert_int_equal(lily_chat_add(chat, NULL, "x", 1, &error), LILY_INVALID);
    assert_int_equal(lily_chat_add(chat, "user", NULL, 0, &error), LILY_OK);
    assert_int_equal(lily_chat_add_json(chat, NULL, 0, &error), LILY_INVALID);
    assert_int_equal(lily_chat_n_messages(chat), 2);
    lily_chat_close(chat);
    assert_null(m);
}

static void assert_model_refused(const char *path, LilyModelOptions o, LilyStatus status,
                                 const char *word) {
    LilyModel *m = NULL;
    LilyError error = {0};
    if (o.size == 0)
        o.size = sizeof o;
    assert_int_equal(lily_model_open(&m, path, &o, &error), status);
    assert_int_equal(error.status, status);
    if (!strstr(error.text, word))
        fail_msg("expected \"%s\" in: %s", word, error.text);
    assert_null(strchr(error.text, '\n'));
    assert_null(m);
}

static void test_models_that_cannot_be_opened(void **state) {
    UNUSED(state);
    assert_model_refused("no/such/folder", (LilyModelOptions){0}, LILY_NOT_FOUND, "no/such/folder");
    assert_model_refused("synth:nothing", (LilyModelOptions){0}, LILY_INVALID, "nothing");
    assert_model_refused(TINY, (LilyModelOptions){.backend = "gpu"}, LILY_INVALID, "gpu");
    assert_model_refused(TINY, (LilyModelOptions){.size = 3}, LILY_INVALID, "size");
    assert_model_refused(TINY, (LilyModelOptions){.size = 4096}, LILY_INVALID, "size");
    assert_model_refused(TINY, (LilyModelOptions){.n_threads = -1}, LILY_INVALID, "threads");
    assert_model_refused(TINY, (LilyModelOptions){.ctx_tok = -1}, LILY_INVALID, "context");
    assert_model_refused(TINY, (LilyModelOptions){.n_answers = -1}, LILY_INVALID, "sequences");
    assert_model_refused(TINY, (LilyModelOptions){.n_snapshots = -2}, LILY_INVALID, "snapshots");
    assert_model_refused(TINY, (LilyModelOptions){.budget_bytes = 1000}, LILY_MEMORY, "plan");
}

static void assert_answer_refused(LilyChat *chat, const LilyAnswerOptions *o, LilyStatus status,
                                  const char *word) {
    LilyError error = {0};
    Seen *s = new_seen();
    assert_int_equal(lily_chat_answer(chat, o, see, s, &error), status);
    if (!strstr(error.text, word))
        fail_msg("expected \"%s\" in: %s", word, error.text);
    assert_int_equal(s->n_events, 0);
    free(s);
}

static void test_answers_that_cannot_begin(void **state) {
    UNUSED(state);
    LilyChat *chat = NULL;
    assert_int_equal(lily_chat_open(&chat, model, NULL), LILY_OK);
    assert_answer_refused(chat, NULL, LILY_INVALID, "no message");
    assert_int_equal(lily_chat_add(chat, "user", "x", 1, NULL), LILY_OK);
    LilyAnswerOptions base = options_of(model, 3, 1), o = base;
    o.size = 0;
    assert_answer_refused(chat, &o, LILY_INVALID, "size");
    o = base, o.temperature = -1;
    assert_answer_refused(chat, &o, LILY_INVALID, "temperature");
    o = base, o.top_p = NAN;
    assert_answer_refused(chat, &o, LILY_INVALID, "top_p");
    o = base, o.max_tokens = -1;
    assert_answer_refused(chat, &o, LILY_INVALID, "max_tokens");
    o = base, o.thinking = (LilyThinking)9;
    assert_answer_refused(chat, &o, LILY_INVALID, "thinking");
    o = base, o.n_stops = 17;
    assert_answer_refused(chat, &o, LILY_INVALID, "stop");
    o = base, o.n_stops = 1;
    assert_answer_refused(chat, &o, LILY_INVALID, "NULL");
    LilyText none = {NULL, 0};
    o = base, o.n_stops = 1, o.stops = &none;
    assert_answer_refused(chat, &o, LILY_INVALID, "stop text 0");
    LilyBias bias = {1 << 30, 1};
    o = base, o.n_biases = 1, o.biases = &bias;
    assert_answer_refused(chat, &o, LILY_INVALID, "bias");
    o = base, o.n_biases = 5000, o.biases = &bias;
    assert_answer_refused(chat, &o, LILY_INVALID, "bias");
    int32_t id = -4;
    o = base, o.prompt_ids = &id, o.n_prompt_ids = 1;
    assert_answer_refused(chat, &o, LILY_INVALID, "-4");
    o.prompt = (LilyText){"x", 1};
    assert_answer_refused(chat, &o, LILY_INVALID, "one of");
    char *big = malloc(5000);
    assert_non_null(big);
    memset(big, 'x', 5000);
    assert_int_equal(lily_chat_add(chat, "user", big, 5000, NULL), LILY_OK);
    free(big);
    assert_answer_refused(chat, &base, LILY_CONTEXT, "2048");
    lily_chat_close(chat);
}

static void test_messages_that_are_refused(void **state) {
    UNUSED(state);
    LilyChat *chat = open_chat(model, "x");
    LilyError error;
    assert_int_equal(lily_chat_add(chat, "robot", "x", 1, &error), LILY_INVALID);
    assert_non_null(strstr(error.text, "robot"));
    assert_int_equal(lily_chat_add(chat, "user", "a\xff", 2, &error), LILY_INVALID);
    assert_non_null(strstr(error.text, "byte 1"));
    assert_int_equal(lily_chat_add_json(chat, "{", 1, &error), LILY_FORMAT);
    assert_int_equal(lily_chat_add_json(chat, "7", 1, &error), LILY_INVALID);
    static const char half[] = "[{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"b\"}]";
    assert_int_equal(lily_chat_add_json(chat, half, LILY_TERMINATED, &error), LILY_INVALID);
    assert_non_null(strstr(error.text, "message 1"));
    // What the template refuses is not taken in, where it would stop every later answer.
    static const char *const bad[][2] = {
        {"{\"role\": \"robot\", \"content\": \"a\"}", "robot"},
        {"{\"role\": \"user\", \"content\": 7}", "content"},
        {"{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": \"a\"}]}", "Images"},
        {"{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {}}]}", "name"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"\", \"content\": \"a\"}]",
         "message 1"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(lily_chat_add_json(chat, bad[i][0], LILY_TERMINATED, &error),
                         LILY_INVALID);
        assert_non_null(strstr(error.text, "message "));
        assert_non_null(strstr(error.text, bad[i][1]));
    }
    static const char good[] =
        "[{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]},"
        "{\"role\": \"assistant\", \"content\": null}, {\"role\": \"tool\", \"content\": \"\"}]";
    assert_int_equal(lily_chat_add_json(chat, good, LILY_TERMINATED, &error), LILY_OK);
    assert_int_equal(lily_chat_truncate(chat, 1, &error), LILY_OK);
    assert_int_equal(lily_chat_n_messages(chat), 1); // all or none
    assert_int_equal(lily_chat_set_tools(chat, "{}", 2, &error), LILY_INVALID);
    assert_int_equal(lily_chat_set_tools(chat, "[1]", 3, &error), LILY_INVALID);
    assert_int_equal(lily_chat_set_tools(chat, "[", 1, &error), LILY_FORMAT);
    // A text may hold zero bytes and survives.
    assert_int_equal(lily_chat_add(chat, "user", "a\0b", 3, &error), LILY_OK);
    char *json = NULL;
    assert_int_equal(lily_chat_json(chat, &json, NULL, NULL), LILY_OK);
    assert_non_null(strstr(json, "a\\u0000b"));
    LilyChat *copy = NULL;
    assert_int_equal(lily_chat_open(&copy, model, NULL), LILY_OK);
    assert_int_equal(lily_chat_add_json(copy, json, LILY_TERMINATED, NULL), LILY_OK);
    lily_free(json);
    lily_chat_close(copy);
    lily_chat_close(chat);
}

static void test_names(void **state) {
    UNUSED(state);
    assert_string_equal(lily_status_name(LILY_MEMORY), "out_of_memory");
    assert_string_equal(lily_status_name((LilyStatus)1000), "unknown");
    assert_string_equal(lily_status_name((LilyStatus)-1), "unknown");
    assert_true(strlen(lily_version()) >= 5);
    assert_int_equal(lily_model_ctx_tok(model), 2048);
}

/* ---- callbacks of a model ---- */

typedef struct Heard {
    uint64_t done, total;
    int n_reports;
} Heard;

static void hear_progress(void *context, const char *what, uint64_t done, uint64_t total) {
    Heard *h = context;
    assert_true(what && *what);
    assert_true(done >= h->done && done <= total);
    h->done = done;
    h->total = total;
    h->n_reports++;
}

static void test_progress_is_reported(void **state) {
    UNUSED(state);
    Heard heard = {0};
    LilyModelOptions o = {.size = sizeof o,
                          .n_threads = 1,
                          .ctx_tok = 64,
                          .progress = hear_progress,
                          .progress_context = &heard};
    LilyModel *m = NULL;
    assert_int_equal(lily_model_open(&m, TINY, &o, NULL), LILY_OK);
    assert_true(heard.n_reports > 0);
    assert_true(heard.done == heard.total);
    lily_model_close(m);
}

/* ---- memory ---- */

static void test_each_allocation_of_a_conversation_fails_once(void **state) {
    UNUSED(state);
    static const char message[] = "[{\"role\": \"system\", \"content\": \"be short\"}, "
                                  "{\"role\": \"user\", \"content\": \"hello\"}]";
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]";
    int n_failed = 0;
    for (int64_t after = 0; after < 100000; after++) {
        LilyError error = {0};
        LilyChat *chat = NULL;
        char *json = NULL;
        Seen *s = new_seen();
        LilyAnswerOptions o = options_of(model, 4, 1);
        mem_fail_after(after);
        LilyStatus status = lily_chat_open(&chat, model, &error);
        if (status == LILY_OK)
            status = lily_chat_add_json(chat, message, LILY_TERMINATED, &error);
        if (status == LILY_OK)
            status = lily_chat_set_tools(chat, tools, LILY_TERMINATED, &error);
        size_t n = lily_chat_n_messages(chat);
        if (status == LILY_OK)
            status = lily_chat_answer(chat, &o, see, s, &error);
        if (status != LILY_OK)
            assert_int_equal(lily_chat_n_messages(chat), n);
        if (status == LILY_OK)
            status = lily_chat_json(chat, &json, NULL, &error);
        mem_fail_after(-1);
        if (s->n_events && status != LILY_OK && !json)
            assert_int_equal(s->n_ends, 1);
        lily_free(json);
        lily_chat_close(chat);
        free(s);
        if (status == LILY_OK) {
            assert_true(n_failed > 20);
            return;
        }
        assert_int_equal(status, LILY_MEMORY);
        assert_true(error.text[0]);
        n_failed++;
    }
    fail_msg("never got through");
}

static void test_each_allocation_of_an_opening_fails_once(void **state) {
    UNUSED(state);
    LilyModelOptions o = {.size = sizeof o, .n_threads = 1, .ctx_tok = 64, .n_answers = 1};
    LilyModel *m = NULL;
    int64_t n_points = -mem_count(), n_failed = 0;
    assert_int_equal(lily_model_open(&m, "synth:tiny,layers=1", &o, NULL), LILY_OK);
    n_points += mem_count();
    lily_model_close(m);
    // Some are for what can be done without (a quota read from a file): those openings are good.
    for (int64_t after = 0; after < n_points; after++) {
        LilyError error = {0};
        m = NULL;
        mem_fail_after(after);
        LilyStatus status = lily_model_open(&m, "synth:tiny,layers=1", &o, &error);
        mem_fail_after(-1);
        lily_model_close(m);
        if (status == LILY_OK)
            continue;
        assert_int_equal(status, LILY_MEMORY);
        assert_null(m);
        n_failed++;
    }
    assert_true(n_failed > 10);
}

/* ---- a model that has learned something ---- */

static void test_the_small_model_answers_thinks_and_calls(void **state) {
    UNUSED(state);
    if (access(MINI "/config.json", R_OK) != 0)
        skip();
    LilyModel *m = open_model(MINI, 2);
    LilyChat *chat = open_chat(m, "What is 12 + 30?");
    LilyAnswerOptions o;
    lily_answer_defaults(&o, sizeof o, m);
    o.temperature = 0;
    o.max_tokens = 300;
    o.thinking = LILY_THINKING_OFF;
    Seen *s = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_STOP);
    assert_non_null(strstr(s->text, "42"));
    assert_string_equal(s->reasoning, "");

    assert_int_equal(lily_chat_truncate(chat, 1, NULL), LILY_OK);
    o.thinking = LILY_THINKING_ON;
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_non_null(strstr(s->text, "42"));
    assert_true(s->figures.n_reasoning > 3);
    // The thinking is all of what the model thinks: the same prompt as plain text gives it too.
    static const char prompt[] =
        "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    o.prompt = (LilyText){prompt, sizeof prompt - 1};
    Seen *raw = new_seen();
    assert_int_equal(lily_chat_answer(chat, &o, see, raw, NULL), LILY_OK);
    size_t n_thought = strlen(s->reasoning);
    assert_int_equal(strncmp(raw->text, s->reasoning, n_thought), 0);
    assert_int_equal(strncmp(raw->text + n_thought, "\n</think>", 9), 0);
    free(raw);
    o.prompt = (LilyText){0};
    lily_chat_close(chat);

    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
        "\"Get the current weather for a city.\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}]";
    chat = open_chat(m, "What is the weather in Paris?");
    assert_int_equal(lily_chat_set_tools(chat, tools, LILY_TERMINATED, NULL), LILY_OK);
    o.thinking = LILY_THINKING_OFF;
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_CALLS);
    assert_int_equal(s->n_calls, 1);
    assert_string_equal(s->name, "get_weather");
    assert_non_null(strstr(s->args, "Paris"));
    char *json = NULL;
    assert_int_equal(lily_chat_json(chat, &json, NULL, NULL), LILY_OK);
    assert_non_null(strstr(json, "\"tool_calls\""));
    lily_free(json);
    // The result goes back in and is spoken of.
    assert_int_equal(lily_chat_add(chat, "tool", "{\"temperature\": 17, \"condition\": \"rain\"}",
                                   LILY_TERMINATED, NULL),
                     LILY_OK);
    *s = (Seen){.thread = pthread_self()};
    assert_int_equal(lily_chat_answer(chat, &o, see, s, NULL), LILY_OK);
    assert_int_equal(s->finish, LILY_FINISH_STOP);
    assert_non_null(strstr(s->text, "17"));
    lily_chat_close(chat);
    lily_model_close(m);
    free(s);
}

static int open_all(void **state) {
    UNUSED(state);
    model = open_model(TINY, 0);
    return 0;
}

static int close_all(void **state) {
    UNUSED(state);
    lily_model_close(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_is_streamed_and_kept),
        cmocka_unit_test(test_no_event_function_and_no_options),
        cmocka_unit_test(test_a_prompt_of_its_own_leaves_the_conversation_alone),
        cmocka_unit_test(test_a_next_turn_reads_only_what_is_new),
        cmocka_unit_test(test_stop_texts_and_biases),
        cmocka_unit_test(test_conversations_at_once_equal_one_after_another),
        cmocka_unit_test(test_a_model_lives_as_long_as_its_conversations),
        cmocka_unit_test(test_cancel_from_another_thread_in_every_phase),
        cmocka_unit_test(test_cancel_while_waiting_for_a_place),
        cmocka_unit_test(test_the_event_function_can_end_the_answer),
        cmocka_unit_test(test_cancel_from_a_signal_handler),
        cmocka_unit_test(test_a_conversation_that_is_answered_refuses_others),
        cmocka_unit_test(test_null_is_refused_or_harmless),
        cmocka_unit_test(test_models_that_cannot_be_opened),
        cmocka_unit_test(test_answers_that_cannot_begin),
        cmocka_unit_test(test_messages_that_are_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_progress_is_reported),
        cmocka_unit_test(test_each_allocation_of_a_conversation_fails_once),
        cmocka_unit_test(test_each_allocation_of_an_opening_fails_once),
        cmocka_unit_test(test_the_small_model_answers_thinks_and_calls),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
