// SPDX-License-Identifier: Apache-2.0
/* turn.h - one turn of a conversation: messages (or a text, or ids) in, typed text events out.
 *
 * Path:     turn_start renders (chat.h), encodes (tokenizer.h) and adds a sequence (engine.h); each
 *           new id then runs through the detokenizer, the output parser and the stop strings into
 *           the sink, inside engine_step.
 * Owns:     the parser and text state of its turn, until its TURN_END event.  Thread: the engine's.
 * Not here: JSON of an API (src/wire). */
#ifndef LILY_ENGINE_TURN_H
#define LILY_ENGINE_TURN_H

#include "engine/engine.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct Turn Turn;

/* What turns of one model share; borrowed, outlives them. */
typedef struct TurnModel {
    Engine *engine;
    const Tokenizer *tokenizer;
    ChatFamily family;
} TurnModel;

typedef enum TurnEventKind {
    TURN_REASONING,  // text
    TURN_CONTENT,    // text
    TURN_CALL_BEGIN, // name, call
    TURN_CALL_ARGS,  // text: a piece of the arguments' JSON, call
    TURN_CALL_END,   // name, call: the pieces make one JSON object
    TURN_CALL_DROP,  // name, call: forget the call; its text follows as content or reasoning
    TURN_TOKEN,      // sample: one id was chosen; comes before the text that it completes
    TURN_END,        // last event: finish, figures, err; the turn is freed behind it
} TurnEventKind;

typedef enum TurnFinish {
    FINISH_STOP,   // an end id, or a stop string
    FINISH_LENGTH, // max_tokens or the context
    FINISH_CALLS,  // stopped by itself and at least one call is complete
    FINISH_CANCELLED,
    FINISH_FAILED, // err
} TurnFinish;

typedef struct TurnEvent {
    TurnEventKind kind;
    StrView text; // borrowed until the sink returns
    StrView name;
    int32_t call;               // index of the call, from 0
    const SampleResult *sample; // TURN_TOKEN
    TurnFinish finish;
    int32_t n_reasoning; // TURN_END: ids of the reasoning
    SeqFigures figures;  // TURN_END
    const Err *err;      // TURN_END
} TurnEvent;

typedef void (*TurnSink)(void *ctx, const TurnEvent *event);

/* Exactly one of messages, text and ids is given. */
typedef struct TurnRequest {
    const json_t *messages; // conversation, rendered by the model's template
    const json_t *tools;    // with messages; NULL: none offered
    ChatOptions chat;       // with messages
    StrView text;           // a prompt as it is; added tokens count by their spelling
    const int32_t *ids;     // [n_ids] a prompt as it is
    int32_t n_ids;
    SampleParams sample;     // n_ids is filled in from the tokenizer
    int32_t max_tokens;      // 0: until the context is full
    bool is_past_end;        // go on past end ids
    bool is_single_call;     // the answer ends behind its first complete call
    int32_t thinking_budget; // ids of reasoning before the block is closed; -1: no limit
    uint64_t space, client;  // as in SeqRequest
    const StrView *stops;    // [n_stops] stop strings, for content
    int32_t n_stops;
} TurnRequest;

/* Starts a turn; its events come inside engine_step. Nothing of request is kept.
 *
 * out  valid until TURN_END; NULL allowed
 * Returns STATUS_INVALID (what the template or a value refuses), STATUS_CONTEXT, STATUS_MEMORY. */
NODISCARD Status turn_start(Turn **out, const TurnModel *model, const TurnRequest *request,
                            TurnSink sink, void *ctx, Err *err);
/* The two halves of turn_start, for an owner whose engine has a thread of its own. turn_prepare
 * renders, encodes and counts, on any thread (the engine must stay open); turn_run adds the
 * sequence on the engine's thread, turn_discard frees a turn that was not run.
 *
 * request->tools is kept until TURN_END, and so is request->sample.bias until turn_run.
 * turn_prepare  Returns what turn_start returns.
 * turn_run      STATUS_MEMORY; the turn is then as it was. */
NODISCARD Status turn_prepare(Turn **out, const TurnModel *model, const TurnRequest *request,
                              TurnSink sink, void *ctx, Err *err);
NODISCARD Status turn_run(Turn *turn, Err *err);
void turn_discard(Turn *turn);

/* Ends a running turn early; TURN_END comes at once or in the next engine_step. */
void turn_cancel(Turn *turn);
/* Holds a running turn back while its reader is slow, or lets it go on; see engine_pause. */
void turn_pause(Turn *turn, bool is_paused);
/* Of a running turn, so far. */
SeqFigures turn_figures(const Turn *turn);

#endif
