// SPDX-License-Identifier: Apache-2.0
/* turn.c - one turn: prompt to ids, ids to events.
 *
 * Path:     id -> Detok -> Parser (chat) -> Stop (content only) -> sink.
 * Owns:     the state of its turn, freed behind TURN_END.  Thread: the engine's. */
#include "engine/turn.h"

#include "base/mem.h"
#include "engine/stop.h"
#include "text/parse.h"

struct Turn {
    TurnModel model;
    Seq *seq; // NULL before engine_add and behind the end
    Detok detok;
    Parser *parser; // NULL: a raw prompt, all is content
    Stop stop;
    StrBuf piece;    // text of the id at work
    StrBuf passed;   // what the stop strings let through
    bool is_stopped; // a stop string was complete
    bool was_thinking;
    bool has_answer;  // content or a call has begun
    bool is_reopened; // a thinking block was opened behind that: to be closed at once
    bool is_single_call;
    int32_t n_reasoning;
    int32_t thinking_budget;
    TokenIds closing; // what closes a thinking block by force
    TokenIds prompt;  // until the sequence is added, which copies it
    SeqRequest request;
    Status status; // first failure inside a callback
    Err err;
    TurnSink sink;
    void *ctx;
};

static void turn_free(Turn *t) {
    if (!t)
        return;
    parser_close(t->parser);
    stop_fini(&t->stop);
    strbuf_fini(&t->piece);
    strbuf_fini(&t->passed);
    token_ids_fini(&t->closing);
    token_ids_fini(&t->prompt);
    mem_free(t);
}

static void turn_send(Turn *t, const TurnEvent *event) { t->sink(t->ctx, event); }

/* Content through the stop strings; what comes behind a match is dropped. */
static void turn_content(Turn *t, StrView text) {
    if (t->is_stopped || t->status != STATUS_OK)
        return;
    strbuf_clear(&t->passed);
    t->status = stop_push(&t->stop, text, &t->passed, &t->is_stopped, &t->err);
    if (t->status == STATUS_OK && t->passed.len)
        turn_send(t, &(TurnEvent){.kind = TURN_CONTENT, .text = strbuf_view(&t->passed)});
}

static void turn_parsed(void *ctx, const ParseEvent *e) {
    Turn *t = ctx;
    static const TurnEventKind kinds[] = {
        [PARSE_REASONING] = TURN_REASONING,   [PARSE_CONTENT] = TURN_CONTENT,
        [PARSE_CALL_BEGIN] = TURN_CALL_BEGIN, [PARSE_CALL_ARGS] = TURN_CALL_ARGS,
        [PARSE_CALL_END] = TURN_CALL_END,     [PARSE_CALL_DROP] = TURN_CALL_DROP,
    };
    t->has_answer |= e->kind == PARSE_CONTENT || e->kind == PARSE_CALL_BEGIN;
    if (e->kind == PARSE_CONTENT)
        turn_content(t, e->text);
    else if (!t->is_stopped)
        turn_send(t,
                  &(TurnEvent){
                      .kind = kinds[e->kind], .text = e->text, .name = e->name, .call = e->call});
    if (e->kind == PARSE_CALL_END && t->is_single_call)
        t->is_stopped = true; // what comes behind it is not wanted
}

/* A piece of the model's text. */
static void turn_text(Turn *t, StrView text, bool is_control) {
    if (t->status != STATUS_OK || text.len == 0)
        return;
    if (t->parser)
        t->status = parser_push(t->parser, text, is_control, turn_parsed, t, &t->err);
    else
        turn_content(t, text);
}

/* Whether an id is a thinking tag out of place, which is no text: one that closes nothing, or one
 * that would open a block behind the beginning of the answer. */
static bool turn_is_stray_tag(Turn *t, int32_t id) {
    if (!t->parser || t->was_thinking || parser_is_in_call(t->parser) ||
        !tokenizer_is_added(t->model.tokenizer, id))
        return false;
    StrView tag = tokenizer_id_bytes(t->model.tokenizer, id);
    t->is_reopened = t->has_answer && str_equal(tag, STR("<think>"));
    return t->is_reopened || str_equal(tag, STR("</think>"));
}

/* The text of one id, chosen or forced. */
static void turn_id(Turn *t, int32_t id) {
    const Tokenizer *tokenizer = t->model.tokenizer;
    t->n_reasoning += t->was_thinking;
    strbuf_clear(&t->piece);
    if (t->parser && tokenizer_is_added(tokenizer, id)) {
        // A control token stands for itself: what was held before it can no longer be completed.
        if (t->status == STATUS_OK)
            t->status = detok_flush(&t->detok, &t->piece, &t->err);
        turn_text(t, strbuf_view(&t->piece), false);
        if (!tokenizer_is_special(tokenizer, id))
            turn_text(t, tokenizer_id_bytes(tokenizer, id), true);
    } else {
        if (t->status == STATUS_OK)
            t->status = detok_push(&t->detok, id, &t->piece, &t->err);
        turn_text(t, strbuf_view(&t->piece), false);
    }
    t->was_thinking = t->parser && parser_is_thinking(t->parser);
}

/* Closes a thinking block whose budget is spent, in the same stream; one that is opened again is
 * closed at once. Without room for the closing tag the answer ends with its length. */
static void turn_close_thinking(Turn *t) {
    if (t->is_reopened) {
        t->is_reopened = false;
        (void)engine_force(t->seq, t->closing.ids, (int32_t)t->closing.n);
        return;
    }
    if (!t->was_thinking || t->thinking_budget < 0 || t->n_reasoning < t->thinking_budget ||
        !engine_force(t->seq, t->closing.ids, (int32_t)t->closing.n))
        return;
    for (size_t i = 0; i < t->closing.n; i++)
        turn_id(t, t->closing.ids[i]);
}

/* One new id. False ends the sequence: a stop string, or a failure. */
static bool turn_token(void *ctx, const SampleResult *sample) {
    Turn *t = ctx;
    turn_send(t, &(TurnEvent){.kind = TURN_TOKEN, .sample = sample});
    if (!turn_is_stray_tag(t, sample->id))
        turn_id(t, sample->id);
    turn_close_thinking(t);
    return t->status == STATUS_OK && !t->is_stopped;
}

static TurnFinish turn_finish(const Turn *t, SeqEnd end) {
    if (t->status != STATUS_OK || end == SEQ_FAILED)
        return FINISH_FAILED;
    if (end == SEQ_CANCELLED)
        return FINISH_CANCELLED;
    if (end == SEQ_LENGTH)
        return FINISH_LENGTH;
    return t->parser && parser_n_calls(t->parser) ? FINISH_CALLS : FINISH_STOP;
}

static void turn_end(void *ctx, SeqEnd end, const Err *why) {
    Turn *t = ctx;
    SeqFigures figures = t->seq ? engine_seq_figures(t->seq) : (SeqFigures){0};
    bool is_whole = end == SEQ_STOP_ID || end == SEQ_STOP_SINK || end == SEQ_LENGTH;
    if (is_whole && t->status == STATUS_OK && !t->is_stopped) {
        strbuf_clear(&t->piece);
        t->status = detok_flush(&t->detok, &t->piece, &t->err);
        turn_text(t, strbuf_view(&t->piece), false);
        if (t->parser && t->status == STATUS_OK)
            t->status = parser_finish(t->parser, end == SEQ_LENGTH, turn_parsed, t, &t->err);
        strbuf_clear(&t->passed);
        if (t->status == STATUS_OK && !t->is_stopped)
            t->status = stop_flush(&t->stop, &t->passed, &t->err);
        if (t->status == STATUS_OK && t->passed.len)
            turn_send(t, &(TurnEvent){.kind = TURN_CONTENT, .text = strbuf_view(&t->passed)});
    }
    turn_send(t, &(TurnEvent){.kind = TURN_END,
                              .finish = turn_finish(t, end),
                              .n_reasoning = t->n_reasoning,
                              .figures = figures,
                              .err = t->status != STATUS_OK ? &t->err : why});
    turn_free(t);
}

/* Opens the parser in the state that the prompt leaves. */
static Status turn_open_parser(Turn *t, const TurnRequest *r, bool is_thinking_open, Err *err) {
    ParserOptions options = {
        .tools = r->tools,
        .start = is_thinking_open         ? PARSE_START_REASONING
                 : r->chat.continue_final ? PARSE_START_CONTINUE
                                          : PARSE_START_CONTENT,
    };
    t->was_thinking = is_thinking_open;
    t->thinking_budget = r->thinking_budget;
    t->is_single_call = r->is_single_call;
    TRY(tokenizer_encode(t->model.tokenizer, &t->closing, STR("\n</think>\n\n"), NULL, err));
    return parser_open(&t->parser, &options, err);
}

/* The prompt's ids: rendered and encoded, or as they came. */
static Status turn_prompt(Turn *t, TokenIds *ids, const TurnRequest *r, Err *err) {
    if (r->messages) {
        ChatPrompt prompt = {0};
        TRY(chat_render(&prompt, t->model.family, r->messages, r->tools, &r->chat, err));
        Status status = tokenizer_encode(t->model.tokenizer, ids, strbuf_view(&prompt.text),
                                         prompt.trusted, err);
        if (status == STATUS_OK)
            status = turn_open_parser(t, r, prompt.is_thinking_open, err);
        chat_prompt_fini(&prompt);
        return status;
    }
    if (!r->ids)
        return tokenizer_encode(t->model.tokenizer, ids, r->text, NULL, err);
    TRY(token_ids_reserve(ids, (size_t)r->n_ids, err));
    for (int32_t i = 0; i < r->n_ids; i++)
        TRY(token_ids_append(ids, r->ids[i], err));
    return STATUS_OK;
}

/* Tokens in front of the opening of the answer: a next turn begins with them whatever it does with
 * the reasoning. */
static int32_t turn_stable(const Turn *t, const TokenIds *ids) {
    int32_t start = tokenizer_find_added(t->model.tokenizer, STR("<|im_start|>"));
    for (size_t i = ids->n; i-- > 0;)
        if (ids->ids[i] == start)
            return (int32_t)i;
    return 0;
}

/* What the engine is asked for; refuses a prompt that is too long before it waits in a queue. */
static Status turn_sequence(Turn *t, const TurnRequest *r, Err *err) {
    const ModelConfig *c = engine_config(t->model.engine);
    int32_t limit = engine_settled(t->model.engine)->limit_tok;
    if (t->prompt.n >= (size_t)limit)
        return err_set(err, STATUS_CONTEXT,
                       "the prompt has %zu tokens, the context holds %d and the answer needs one",
                       t->prompt.n, limit);
    t->request = (SeqRequest){.ids = t->prompt.ids,
                              .n_ids = (int32_t)t->prompt.n,
                              .max_tokens = r->max_tokens,
                              .stop_ids = c->eos,
                              .n_stop_ids = r->is_past_end ? 0 : c->n_eos,
                              .sample = r->sample,
                              .n_stable = r->messages ? turn_stable(t, &t->prompt) : 0,
                              .space = r->space,
                              .client = r->client};
    t->request.sample.n_ids = tokenizer_n_ids(t->model.tokenizer);
    return engine_check(t->model.engine, &t->request, err);
}

Status turn_prepare(Turn **out, const TurnModel *model, const TurnRequest *request, TurnSink sink,
                    void *ctx, Err *err) {
    Turn *t = mem_zalloc(1, sizeof *t);
    if (!t)
        return err_memory(err, "turn", sizeof *t);
    t->model = *model;
    t->sink = sink;
    t->ctx = ctx;
    // A chat answer without its special tokens; a raw prompt's continuation shows them.
    detok_init(&t->detok, model->tokenizer, request->messages != NULL);
    Status status = stop_init(&t->stop, request->stops, request->n_stops, err);
    if (status == STATUS_OK)
        status = turn_prompt(t, &t->prompt, request, err);
    if (status == STATUS_OK)
        status = turn_sequence(t, request, err);
    if (status != STATUS_OK) {
        turn_free(t);
        return status;
    }
    *out = t;
    return STATUS_OK;
}

Status turn_run(Turn *t, Err *err) {
    SeqSink sink = {turn_token, turn_end, t};
    TRY(engine_add(t->model.engine, &t->request, sink, &t->seq, err));
    token_ids_fini(&t->prompt);
    return STATUS_OK;
}

void turn_discard(Turn *t) { turn_free(t); }

Status turn_start(Turn **out, const TurnModel *model, const TurnRequest *request, TurnSink sink,
                  void *ctx, Err *err) {
    Turn *t = NULL;
    TRY(turn_prepare(&t, model, request, sink, ctx, err));
    Status status = turn_run(t, err);
    if (status != STATUS_OK) {
        turn_free(t);
        return status;
    }
    if (out)
        *out = t;
    return STATUS_OK;
}

void turn_cancel(Turn *turn) { engine_cancel(turn->model.engine, turn->seq); }
void turn_pause(Turn *turn, bool is_paused) {
    engine_pause(turn->model.engine, turn->seq, is_paused);
}

SeqFigures turn_figures(const Turn *turn) { return engine_seq_figures(turn->seq); }
