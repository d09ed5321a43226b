// SPDX-License-Identifier: Apache-2.0
/* api.h - the objects of the C library as its own files see them.
 *
 * Path:     lily.c (models), api_chat.c (conversations), api_answer.c (one answer, in its caller's
 *           thread) -> api_runner.c (the engine's thread).
 * Owns:     see each struct.  Thread: see each member.
 * Not here: the public door, include/lily.h; its functions are called lily_*, whatever their file.
 */
#ifndef LILY_API_API_H
#define LILY_API_API_H

#include "checkpoint/generation.h"
#include "checkpoint/weights.h"
#include "engine/turn.h"
#include "lily.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct Answer Answer;

/* The engine's thread and what others may see of it. */
typedef struct Runner {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;    // there is something in `incoming`, or is_closing, or is_open
    Answer *incoming;       // under mutex: answers not yet begun, newest first
    bool is_closing;        // under mutex
    bool is_open;           // under mutex: the opening has ended, well or not
    Status open_status;     // under mutex
    Err open_err;           // under mutex
    Engine *engine;         // engine thread, and read by others while they know it is open
    Answer *running;        // engine thread: begun and not ended
    int32_t limit_tok;      // written before is_open
    const Weights *weights; // borrowed
    EngineOptions options;
    Progress progress;
    Log log;
    TurnModel turn; // engine is filled in by the thread
} Runner;

struct LilyModel {
    atomic_int n_refs; // the caller's and one of each conversation
    Weights *weights;
    Tokenizer *tokenizer;
    Generation defaults;
    Runner runner;
    LilyLogFn log;
    void *log_context;
    LilyProgressFn progress;
    void *progress_context;
};

struct LilyChat {
    LilyModel *model;         // one reference
    atomic_bool is_busy;      // a function is at work on it
    atomic_bool is_cancelled; // of the answer being made; reset at its beginning
    json_t *messages;
    json_t *tools; // NULL: none
};

/* A record of Answer.events: this head, the name, a zero byte, the text, a zero byte. */
typedef struct AnswerRecord {
    size_t name_len, text_len;
    LilyEventKind kind;
    int32_t call, token;
} AnswerRecord;

/* One answer on its way; lives in its caller's frame until is_ended. */
struct Answer {
    Answer *next;
    Runner *runner;
    const TurnRequest *request;      // borrowed
    const atomic_bool *is_cancelled; // of its conversation
    bool wants_tokens;
    Turn *turn;          // engine thread
    bool is_stop_told;   // engine thread: turn_cancel was called
    pthread_cond_t news; // with the runner's mutex
    StrBuf events;       // under mutex: records that the caller has not taken yet
    bool is_begun;       // engine thread until is_ended: turn_start was good
    bool is_ended;       // under mutex
    Status status;       // under mutex: why it failed
    Err err;             // under mutex
    LilyFinish finish;   // under mutex
    LilyFigures figures; // under mutex
};

/* Starts the thread and opens the engine on it. r->weights, options, progress, log and turn are
 * filled in. On failure nothing is left to close. */
NODISCARD Status api_runner_open(Runner *r, Err *err);
/* No answer is on its way. */
void api_runner_close(Runner *r);
/* Hands an answer over; its news are signalled on a->news. */
void api_runner_add(Runner *r, Answer *a);

/* One reference less; the last one closes the model. */
void api_model_release(LilyModel *model);

/* Copies err into the caller's error and returns its code. */
LilyStatus api_fail(LilyError *error, const Err *err);
/* The same for a text of our own. */
LilyStatus api_refuse(LilyError *error, Status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A borrowed text from pointer and length. */
StrView api_text(const char *text, size_t len);

/* Marks the conversation as being worked on; LILY_BUSY when it is. */
LilyStatus api_chat_take(LilyChat *chat, LilyError *error);
void api_chat_give(LilyChat *chat);

#endif
