// SPDX-License-Identifier: Apache-2.0
/* api_answer.c - one answer in its caller's thread: options to a request, the runner's records to
 * events, the finished message into the conversation.
 *
 * Path:     lily_chat_answer -> api_runner_add ... records ... -> the caller's event function.
 * Owns:     the Answer and the message while it is made.  Thread: the caller's.
 * Not here: stepping the engine (api_runner.c). */
#include "api.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

/* A call of the message: name and arguments as they come. */
typedef struct AnswerCall {
    StrBuf name, args;
    bool is_whole;
} AnswerCall;

/* What lily_chat_answer holds. */
typedef struct Answering {
    LilyChat *chat;
    LilyEventFn on_event;
    void *context;
    bool is_raw; // a prompt of the caller's: nothing is added to the conversation
    Answer answer;
    TurnRequest request;
    StrBuf taken; // records being looked at
    StrBuf content, reasoning;
    AnswerCall *calls; // [n_calls]
    size_t n_calls;
    Status status; // first failure on this side
    Err err;
    LogitBias biases[LIMIT_LOGIT_BIAS];
    StrView stops[LIMIT_STOP_STRINGS];
} Answering;

void lily_answer_defaults(LilyAnswerOptions *out, size_t size, const LilyModel *model) {
    if (!out || !model)
        return;
    const Generation *g = &model->defaults;
    LilyAnswerOptions o = {.size = size,
                           .temperature = (float)g->temperature,
                           .top_p = (float)g->top_p,
                           .min_p = (float)g->min_p,
                           .top_k = (int32_t)g->top_k,
                           .repetition_penalty = (float)g->repetition_penalty};
    memset(out, 0, size);
    memcpy(out, &o, size < sizeof o ? size : sizeof o);
}

/* ---- options ---- */

static Status answer_lists(Answering *w, const LilyAnswerOptions *o, Err *err) {
    if (o->n_stops > LIMIT_STOP_STRINGS)
        return err_set(err, STATUS_INVALID, "stop texts: expected at most %d, found %zu",
                       LIMIT_STOP_STRINGS, o->n_stops);
    if (o->n_biases > LIMIT_LOGIT_BIAS)
        return err_set(err, STATUS_INVALID, "logit biases: expected at most %d, found %zu",
                       LIMIT_LOGIT_BIAS, o->n_biases);
    if ((o->n_stops && !o->stops) || (o->n_biases && !o->biases) ||
        (o->n_prompt_ids && !o->prompt_ids))
        return err_set(err, STATUS_INVALID, "options: expected a list, found NULL");
    if (o->n_prompt_ids > LIMIT_CONTEXT)
        return err_set(err, STATUS_INVALID, "prompt: expected at most %d ids, found %zu",
                       LIMIT_CONTEXT, o->n_prompt_ids);
    if (o->prompt.text && o->prompt_ids)
        return err_set(err, STATUS_INVALID, "options: expected one of prompt and prompt_ids");
    for (size_t i = 0; i < o->n_stops; i++) {
        if (!o->stops[i].text)
            return err_set(err, STATUS_INVALID, "stop text %zu: expected a text, found NULL", i);
        w->stops[i] = api_text(o->stops[i].text, o->stops[i].len);
    }
    for (size_t i = 0; i < o->n_biases; i++)
        w->biases[i] = (LogitBias){o->biases[i].id, o->biases[i].bias};
    return STATUS_OK;
}

/* The caller's options, the defaults where it gives none. */
static Status answer_request(Answering *w, const LilyAnswerOptions *given, Err *err) {
    LilyAnswerOptions o;
    lily_answer_defaults(&o, sizeof o, w->chat->model);
    if (given) {
        if (given->size < sizeof given->size || given->size > sizeof o)
            return err_set(err, STATUS_INVALID,
                           "options: expected a size of at most %zu, found %zu", sizeof o,
                           given->size);
        memcpy(&o, given, given->size);
    }
    TRY(answer_lists(w, &o, err));
    if ((unsigned)o.thinking > LILY_THINKING_ON)
        return err_set(err, STATUS_INVALID, "thinking: expected 0 to %d, found %d",
                       LILY_THINKING_ON, (int)o.thinking);
    static const int thinking[] = {
        [LILY_THINKING_DEFAULT] = -1, [LILY_THINKING_OFF] = 0, [LILY_THINKING_ON] = 1};
    w->is_raw = o.prompt.text || o.prompt_ids;
    w->request = (TurnRequest){
        .sample = {.temperature = o.temperature,
                   .top_k = o.top_k,
                   .top_p = o.top_p,
                   .min_p = o.min_p,
                   .repetition_penalty = o.repetition_penalty,
                   .presence_penalty = o.presence_penalty,
                   .frequency_penalty = o.frequency_penalty,
                   .seed = o.has_seed ? o.seed : (uint64_t)clock_now_ns() ^ (uint64_t)(uintptr_t)w,
                   .bias = w->biases,
                   .n_bias = (int32_t)o.n_biases},
        .max_tokens = o.max_tokens,
        // Without thinking a block that the model opens by itself is closed at once.
        .thinking_budget = o.thinking == LILY_THINKING_OFF ? 0 : -1,
        .is_past_end = o.is_past_end,
        .stops = w->stops,
        .n_stops = (int32_t)o.n_stops,
    };
    w->answer.wants_tokens = o.wants_tokens;
    if (o.prompt.text) {
        w->request.text = api_text(o.prompt.text, o.prompt.len);
    } else if (o.prompt_ids) {
        w->request.ids = o.prompt_ids;
        w->request.n_ids = (int32_t)o.n_prompt_ids;
    } else {
        if (json_array_size(w->chat->messages) == 0)
            return err_set(err, STATUS_INVALID, "the conversation has no message to be answered");
        w->request.messages = w->chat->messages;
        w->request.tools = w->chat->tools;
        w->request.chat = (ChatOptions){.add_generation_prompt = true,
                                        .enable_thinking = thinking[o.thinking],
                                        .preserve_thinking = -1,
                                        .is_lenient = true,
                                        .is_text_only = true};
    }
    return STATUS_OK;
}

/* ---- the message ---- */

static AnswerCall *answer_call(Answering *w, int32_t call) {
    size_t n = (size_t)call + 1;
    if (n > w->n_calls) {
        AnswerCall *more = mem_realloc(w->calls, n * sizeof *more);
        if (!more) {
            if (w->status == STATUS_OK)
                w->status = err_memory(&w->err, "calls", n * sizeof *more);
            return NULL;
        }
        memset(more + w->n_calls, 0, (n - w->n_calls) * sizeof *more);
        w->calls = more;
        w->n_calls = n;
    }
    return &w->calls[call];
}

/* Notes what an event adds to the message; the end of a call gets its whole arguments. */
static void answer_note(Answering *w, LilyEvent *e) {
    StrView text = str_view(e->text.text, e->text.len);
    if (e->kind == LILY_EVENT_TEXT) {
        strbuf_append_view(&w->content, text);
    } else if (e->kind == LILY_EVENT_REASONING) {
        strbuf_append_view(&w->reasoning, text);
    } else if (e->kind >= LILY_EVENT_CALL_BEGIN && e->kind <= LILY_EVENT_CALL_DROP) {
        AnswerCall *call = answer_call(w, e->call);
        if (!call)
            return;
        if (e->kind == LILY_EVENT_CALL_BEGIN)
            strbuf_append(&call->name, e->name.text, e->name.len);
        else if (e->kind == LILY_EVENT_CALL_ARGS)
            strbuf_append_view(&call->args, text);
        call->is_whole = e->kind == LILY_EVENT_CALL_END;
        if (call->is_whole && !call->args.is_failed && call->args.ptr)
            e->text = (LilyText){call->args.ptr, call->args.len};
    }
}

/* A text of the message; null when there is none. */
static json_t *answer_text(const StrBuf *b) {
    return b->len ? json_stringn(b->ptr, b->len) : json_null();
}

static bool answer_has_failed(const Answering *w) {
    bool has_failed = w->content.is_failed || w->reasoning.is_failed || w->taken.is_failed;
    for (size_t i = 0; i < w->n_calls; i++)
        has_failed = has_failed || w->calls[i].name.is_failed || w->calls[i].args.is_failed;
    return has_failed;
}

/* Appends the complete calls; the number of them. */
static size_t answer_add_calls(const Answering *w, json_t *list, bool *is_good) {
    size_t n = 0;
    for (size_t i = 0; i < w->n_calls; i++) {
        const AnswerCall *c = &w->calls[i];
        if (!c->is_whole)
            continue;
        // A parameter written twice stands twice in the text; the last one wins.
        json_t *args =
            json_loadb(c->args.ptr ? c->args.ptr : "", c->args.len, JSON_ALLOW_NUL, NULL);
        json_t *v = args ? json_pack("{s:s, s:{s:s%, s:o}}", "type", "function", "function", "name",
                                     c->name.ptr ? c->name.ptr : "", c->name.len, "arguments", args)
                         : NULL;
        *is_good = *is_good && v && json_array_append_new(list, v) == 0;
        n++;
    }
    return n;
}

/* Adds the assistant's message to the conversation. */
static Status answer_keep(Answering *w, Err *err) {
    if (answer_has_failed(w))
        return err_memory(err, "message", w->content.len);
    (void)json_take_alloc_failure();
    json_t *calls = json_array();
    bool is_good = calls != NULL;
    size_t n_calls = answer_add_calls(w, calls, &is_good);
    json_t *v = NULL;
    size_t n_before = json_array_size(w->chat->messages);
    if (is_good && (n_calls || w->content.len)) {
        v = json_pack("{s:s, s:o, s:o}", "role", "assistant", "content", answer_text(&w->content),
                      "reasoning_content", answer_text(&w->reasoning));
        is_good = v != NULL;
        if (is_good && n_calls)
            is_good = json_object_set(v, "tool_calls", calls) == 0;
        if (is_good)
            is_good = json_array_append(w->chat->messages, v) == 0;
    }
    json_decref(v);
    json_decref(calls);
    if (!json_take_alloc_failure() && is_good)
        return STATUS_OK;
    if (json_array_size(w->chat->messages) > n_before)
        json_array_remove(w->chat->messages, n_before);
    return err_memory(err, "message", w->content.len);
}

/* ---- events ---- */

static void answer_send(Answering *w, const LilyEvent *e) {
    if (w->on_event && !w->on_event(w->context, e))
        atomic_store(&w->chat->is_cancelled, true);
}

/* Sends the records that were taken. */
static void answer_send_taken(Answering *w) {
    for (size_t at = 0; at < w->taken.len;) {
        AnswerRecord head;
        memcpy(&head, w->taken.ptr + at, sizeof head);
        const char *name = w->taken.ptr + at + sizeof head;
        const char *text = name + head.name_len + 1;
        at += sizeof head + head.name_len + head.text_len + 2;
        LilyEvent e = {.kind = head.kind,
                       .text = {text, head.text_len},
                       .name = {name, head.name_len},
                       .call = head.call,
                       .token = head.token};
        answer_note(w, &e);
        answer_send(w, &e);
    }
    strbuf_clear(&w->taken);
}

/* Waits for records and takes them all; true when they are the last. */
static bool answer_take(Answering *w) {
    Runner *r = &w->chat->model->runner;
    Answer *a = &w->answer;
    CHECK(pthread_mutex_lock(&r->mutex) == 0);
    while (a->events.len == 0 && !a->is_ended)
        CHECK(pthread_cond_wait(&a->news, &r->mutex) == 0);
    StrBuf taken = w->taken;
    w->taken = a->events;
    // A failed buffer is left failed: the runner ends the answer for it.
    taken.is_failed = a->events.is_failed;
    a->events = taken;
    bool is_ended = a->is_ended;
    CHECK(pthread_mutex_unlock(&r->mutex) == 0);
    // A record that could not be appended whole is no record: all from this buffer goes unsent.
    if (w->taken.is_failed)
        strbuf_clear(&w->taken);
    return is_ended;
}

static Status answer_run(Answering *w, Err *err) {
    Answer *a = &w->answer;
    if (pthread_cond_init(&a->news, NULL) != 0)
        return err_memory(err, "lock", sizeof a->news);
    a->request = &w->request;
    a->is_cancelled = &w->chat->is_cancelled;
    api_runner_add(&w->chat->model->runner, a);
    bool is_ended;
    do {
        is_ended = answer_take(w);
        answer_send_taken(w);
    } while (!is_ended);
    pthread_cond_destroy(&a->news);
    if (!a->is_begun) {
        *err = a->err;
        return a->status;
    }
    Status status = a->status;
    if (status != STATUS_OK)
        *err = a->err;
    else if (w->status != STATUS_OK)
        status = (*err = w->err).code;
    else if (!w->is_raw)
        status = answer_keep(w, err);
    answer_send(w, &(LilyEvent){
                       .kind = LILY_EVENT_END,
                       .text = {"", 0},
                       .name = {"", 0},
                       .finish = status == STATUS_OK ? a->finish : LILY_FINISH_FAILED,
                       .figures = a->figures,
                   });
    return status;
}

static void answer_free(Answering *w) {
    for (size_t i = 0; i < w->n_calls; i++) {
        strbuf_fini(&w->calls[i].name);
        strbuf_fini(&w->calls[i].args);
    }
    mem_free(w->calls);
    strbuf_fini(&w->answer.events);
    strbuf_fini(&w->taken);
    strbuf_fini(&w->content);
    strbuf_fini(&w->reasoning);
    mem_free(w);
}

LilyStatus lily_chat_answer(LilyChat *chat, const LilyAnswerOptions *options, LilyEventFn on_event,
                            void *context, LilyError *error) {
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    atomic_store(&chat->is_cancelled, false);
    Err err = {0};
    Status status;
    Answering *w = mem_zalloc(1, sizeof *w);
    if (w) {
        w->chat = chat;
        w->on_event = on_event;
        w->context = context;
        status = answer_request(w, options, &err);
        if (status == STATUS_OK)
            status = answer_run(w, &err);
        answer_free(w);
    } else {
        status = err_memory(&err, "answer", sizeof *w);
    }
    api_chat_give(chat);
    if (status == STATUS_OK)
        return LILY_OK;
    err.code = status;
    return api_fail(error, &err);
}
