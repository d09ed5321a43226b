// SPDX-License-Identifier: Apache-2.0
/* lily.h - the C library: open a model, hold conversations with it, read the answers as they are
 * made.
 *
 *     LilyModel *model;
 *     LilyChat *chat;
 *     LilyError error;
 *     if (lily_model_open(&model, "models/mini", NULL, &error)) ... error.text says why ...
 *     lily_chat_open(&chat, model, &error);
 *     lily_chat_add(chat, "user", "What is 12 + 30?", LILY_TERMINATED, &error);
 *     lily_chat_answer(chat, NULL, on_event, context, &error);
 *     lily_chat_close(chat);
 *     lily_model_close(model);
 *
 * Path:     the command line uses this door; under it are src/api, the turn and the engine.
 * Threads:  a model has one thread of its own that runs all its answers side by side, and the
 *           threads of its backend. lily_chat_answer blocks its caller and calls the event function
 *           there, in the caller's thread: it may take its time and may call this library, only not
 *           for the conversation that it belongs to (lily_chat_cancel excepted). Several answers at
 *           once: one thread each. A conversation is used by one thread at a time; a second one at
 *           the same time is refused with LILY_BUSY where it would do harm. All signals are blocked
 *           in the library's threads. After fork() only the parent may go on with it.
 * Errors:   0 is success. Otherwise the status says what kind, error->text what, where, expected
 *           and found, in one line. The LilyError may be NULL. A failed open leaves *out as it was.
 *           Nothing is printed, no signal is handled, the process is never ended but by a fault in
 *           the library itself, and there is no state beside the objects.
 * Texts:    UTF-8, given by pointer and length (which may hold zero bytes), or with LILY_TERMINATED
 *           as length up to their zero byte.
 * ABI:      objects are opaque; structs that the caller fills begin with their size, so that they
 *           can grow; functions, members and enumerators keep their names and numbers within
 *           liblily.so.0. */
#ifndef LILY_H
#define LILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LILY_API __attribute__((visibility("default")))
#else
#define LILY_API
#endif

typedef struct LilyModel LilyModel; /* a checkpoint, packed and ready, with its engine */
typedef struct LilyChat LilyChat;   /* a conversation with one model */

/* A length: the text ends before its first zero byte. */
#define LILY_TERMINATED SIZE_MAX

typedef enum LilyStatus {
    LILY_OK,
    LILY_INVALID,   /* the caller's input is wrong */
    LILY_NOT_FOUND, /* a file, a name */
    LILY_DENIED,    /* the system said no */
    LILY_TOO_LARGE,
    LILY_CONTEXT,     /* the conversation is longer than the context */
    LILY_FORMAT,      /* a file is not what it should be */
    LILY_UNSUPPORTED, /* well formed, but this program cannot */
    LILY_MEMORY,
    LILY_IO,
    LILY_BUSY,      /* the conversation is being answered */
    LILY_CANCELLED, /* never returned by the functions here: see LILY_FINISH_CANCELLED */
    LILY_NUMERIC,   /* NaN or infinity where a number must be */
    LILY_DEVICE
} LilyStatus;

typedef struct LilyError {
    LilyStatus status;
    char text[512]; /* one line, NUL-terminated */
} LilyError;

/* "out_of_memory" and the like; "unknown" for a number that is none. */
LILY_API const char *lily_status_name(LilyStatus status);

/* Version of the library, such as "0.1.0". */
LILY_API const char *lily_version(void);

/* Frees a text that the library returned; NULL is fine. */
LILY_API void lily_free(char *text);

/* ---- a model ---- */

typedef enum LilyLogLevel {
    LILY_LOG_DEBUG,
    LILY_LOG_INFO,
    LILY_LOG_WARNING,
    LILY_LOG_ERROR
} LilyLogLevel;

/* One line without a line feed. Thread: any, also while no function of the library runs. */
typedef void (*LilyLogFn)(void *context, LilyLogLevel level, const char *line);

/* How far loading is: done of total bytes of `what`; done never goes back and ends at total.
 * Thread: any, only during lily_model_open. */
typedef void (*LilyProgressFn)(void *context, const char *what, uint64_t done, uint64_t total);

typedef struct LilyModelOptions {
    size_t size;           /* sizeof(LilyModelOptions); all that follows may be 0 */
    const char *backend;   /* "ref", "ref64", "cpu", "cuda", "metal"; NULL: "auto" */
    const char *cpu_mask;  /* kernel columns not to use, separated by commas; NULL: none */
    int32_t device;        /* device number */
    int32_t n_threads;     /* CPU threads; 0: all CPUs of this process */
    int32_t ctx_tok;       /* tokens of all running answers' contexts together; 0: what fits, at
                            * most 32768 */
    int32_t chunk_tok;     /* prompt tokens read in one step, rounded up to 64; 0: 1024, on a
                            * card 4096 */
    int32_t n_answers;     /* answers at once, the others wait; 0: 8 */
    int32_t n_snapshots;   /* beginnings of prompts that are remembered, so that a next turn reads
                            * only what is new; 0: 4, -1: none */
    uint64_t budget_bytes; /* memory of everything; 0: what the machine, or the card, has free */
    bool is_f32;           /* test mode: activations are not rounded to bf16 */
    LilyLogFn log;         /* NULL: silent */
    void *log_context;
    LilyProgressFn progress; /* NULL: silent */
    void *progress_context;
} LilyModelOptions;

/* Opens a checkpoint folder (or "synth:SHAPE[,layers=N][,seed=S]", a random model for tests).
 *
 * options  NULL: all default                                        (in)
 * Returns LILY_NOT_FOUND, LILY_DENIED, LILY_IO, LILY_FORMAT, LILY_UNSUPPORTED for the files,
 * LILY_MEMORY when the plan does not fit (the text has the figures), LILY_INVALID naming the
 * option, LILY_UNSUPPORTED or LILY_DEVICE for the backend.
 * Owner:  *out is closed by lily_model_close. Thread: any. Cost: reads every weight once. */
LILY_API LilyStatus lily_model_open(LilyModel **out, const char *path,
                                    const LilyModelOptions *options, LilyError *error);

/* Lets go of a model; its conversations keep it until the last of them is closed. NULL is fine. */
LILY_API void lily_model_close(LilyModel *model);

/* Tokens that a conversation may have, its answer included. Thread: any. */
LILY_API int32_t lily_model_ctx_tok(const LilyModel *model);

/* ---- a conversation ---- */

/* Begins an empty conversation; keeps the model. Returns LILY_MEMORY, LILY_INVALID. Thread: any. */
LILY_API LilyStatus lily_chat_open(LilyChat **out, LilyModel *model, LilyError *error);

/* Not while lily_chat_answer of this conversation runs. NULL is fine. */
LILY_API void lily_chat_close(LilyChat *chat);

/* Adds a message at the end.
 *
 * role    "system", "user", "assistant" or "tool" (the result of a call)
 * text    UTF-8; copied                                             (in)
 * Returns LILY_INVALID for another role and for what is no UTF-8, LILY_TOO_LARGE, LILY_MEMORY,
 * LILY_BUSY; the conversation is then as it was. */
LILY_API LilyStatus lily_chat_add(LilyChat *chat, const char *role, const char *text, size_t len,
                                  LilyError *error);

/* Adds messages given as JSON: one object or a list of them, in the form that is common for chat
 * models: {"role", "content", "reasoning_content", "tool_calls": [{"function": {"name",
 * "arguments": object or JSON text}}]}. Content is a text, null or a list of {"type": "text"}.
 *
 * Returns LILY_FORMAT with line and column, LILY_INVALID for what the model's template refuses (the
 * text says which message), LILY_TOO_LARGE, LILY_MEMORY, LILY_BUSY; then none is added. */
LILY_API LilyStatus lily_chat_add_json(LilyChat *chat, const char *json, size_t len,
                                       LilyError *error);

/* Sets the tools that are offered: a JSON list of {"type": "function", "function": {"name",
 * "description", "parameters": JSON schema}}, or NULL for none. They count from the next answer on.
 * Returns as lily_chat_add_json; the tools are then as they were. */
LILY_API LilyStatus lily_chat_set_tools(LilyChat *chat, const char *json, size_t len,
                                        LilyError *error);

/* Messages so far. */
LILY_API size_t lily_chat_n_messages(const LilyChat *chat);

/* Keeps only the first n messages (all, when there are no more). LILY_BUSY while it is answered. */
LILY_API LilyStatus lily_chat_truncate(LilyChat *chat, size_t n, LilyError *error);

/* The messages as a JSON list, in the form that lily_chat_add_json takes.
 * *out is NUL-terminated; *len (NULL allowed) its bytes. Returns LILY_MEMORY, LILY_BUSY.
 * Owner: free *out with lily_free. */
LILY_API LilyStatus lily_chat_json(LilyChat *chat, char **out, size_t *len, LilyError *error);

/* ---- an answer ---- */

typedef enum LilyThinking {
    LILY_THINKING_DEFAULT, /* as the model's template does it */
    LILY_THINKING_OFF,
    LILY_THINKING_ON
} LilyThinking;

typedef struct LilyText {
    const char *text;
    size_t len;
} LilyText;

typedef struct LilyBias {
    int32_t id;
    float bias; /* added to the logit of the id; -INFINITY forbids it */
} LilyBias;

/* Filled by lily_answer_defaults; the caller then changes what it likes. All is borrowed until
 * lily_chat_answer returns. */
typedef struct LilyAnswerOptions {
    size_t size; /* as given to lily_answer_defaults */
    LilyThinking thinking;
    int32_t max_tokens;       /* new tokens at most; 0: until the context is full */
    float temperature;        /* 0..100; 0: the most likely token always */
    float top_p;              /* 0..1; 1: all */
    float min_p;              /* 0..1; 0: none dropped */
    int32_t top_k;            /* 0: all */
    float repetition_penalty; /* 0..100; 1: none */
    float presence_penalty;   /* -100..100 */
    float frequency_penalty;  /* -100..100 */
    bool has_seed;            /* false: another seed each time */
    uint64_t seed;            /* same seed, same text */
    const LilyText *stops;    /* [n_stops] texts that end the answer before them, at most 16 of
                               * 1 to 1024 bytes */
    size_t n_stops;
    const LilyBias *biases; /* [n_biases], at most 1024 */
    size_t n_biases;
    bool is_past_end;          /* go on past end-of-text tokens */
    bool wants_tokens;         /* LILY_EVENT_TOKEN too */
    LilyText prompt;           /* text not NULL: the whole prompt as it is, no template; the
                                * conversation is neither read nor changed */
    const int32_t *prompt_ids; /* [n_prompt_ids] the same as token ids; not together with prompt */
    size_t n_prompt_ids;
} LilyAnswerOptions;

/* Fills *out with what the model's makers recommend.
 *
 * size   sizeof(LilyAnswerOptions): no more bytes are written
 * model  not NULL. Thread: any. */
LILY_API void lily_answer_defaults(LilyAnswerOptions *out, size_t size, const LilyModel *model);

typedef enum LilyEventKind {
    LILY_EVENT_REASONING,  /* text: thinking before the answer */
    LILY_EVENT_TEXT,       /* text: the answer */
    LILY_EVENT_CALL_BEGIN, /* call, name: the model calls a tool */
    LILY_EVENT_CALL_ARGS,  /* call, text: a piece of the arguments' JSON text */
    LILY_EVENT_CALL_END,   /* call, name, text: all of the arguments, one JSON object */
    LILY_EVENT_CALL_DROP,  /* call, name: forget the call; it was damaged and follows as text */
    LILY_EVENT_TOKEN,      /* token: an id was chosen; comes before the text that it completes */
    LILY_EVENT_END         /* finish, figures: the last event of every answer that began */
} LilyEventKind;

typedef enum LilyFinish {
    LILY_FINISH_STOP,      /* the model ended its answer, or a stop text came */
    LILY_FINISH_LENGTH,    /* max_tokens, or the context is full */
    LILY_FINISH_CALLS,     /* the model waits for the results of its calls */
    LILY_FINISH_CANCELLED, /* lily_chat_cancel, or the event function */
    LILY_FINISH_FAILED     /* lily_chat_answer returns why */
} LilyFinish;

typedef struct LilyFigures {
    int32_t n_prompt;    /* tokens of the prompt */
    int32_t n_cached;    /* of these, remembered from before and not read again */
    int32_t n_generated; /* tokens made, without the end token */
    int32_t n_reasoning; /* of these, thinking */
    double first_s;      /* from the call to the first token, seconds; 0: none came */
    double decode_s;     /* from the first token to the last, seconds */
} LilyFigures;

/* Made by the library: it may grow at its end. Texts are whole characters and live until the event
 * function returns; a zero byte stands behind them. */
typedef struct LilyEvent {
    LilyEventKind kind;
    LilyText text;
    LilyText name;
    int32_t call;  /* number of the call, from 0 */
    int32_t token; /* id */
    LilyFinish finish;
    LilyFigures figures;
} LilyEvent;

/* Receives one event; false ends the answer as cancelled (what is already made still comes). */
typedef bool (*LilyEventFn)(void *context, const LilyEvent *event);

/* Lets the model answer the conversation; returns when the answer has ended. Its message is then
 * added to the conversation: content, reasoning_content and complete tool_calls, also of an answer
 * that was cut short or cancelled as far as it came. An answer that failed, or made neither content
 * nor calls, adds nothing.
 *
 * options   NULL: the defaults                                      (in)
 * on_event  NULL: only the message is wanted
 * Returns LILY_INVALID for what the template or an option refuses, LILY_CONTEXT with both numbers,
 * LILY_BUSY while another thread has this conversation answered, LILY_MEMORY, and whatever ended
 * the answer (LILY_NUMERIC, LILY_DEVICE). Cancelled is success. No event comes when the answer
 * could not begin. */
LILY_API LilyStatus lily_chat_answer(LilyChat *chat, const LilyAnswerOptions *options,
                                     LilyEventFn on_event, void *context, LilyError *error);

/* Ends the answer that is being made, before its next step; without one nothing happens.
 * Thread: any, also a signal handler: it neither blocks nor allocates. */
LILY_API void lily_chat_cancel(LilyChat *chat);

#ifdef __cplusplus
}
#endif

#endif
