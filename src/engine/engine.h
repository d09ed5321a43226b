// SPDX-License-Identifier: Apache-2.0
/* engine.h - many sequences of token ids over one backend: admission, prefill in pieces beside
 * running decodes, sampling, ends.
 *
 * Path:     turn.c (and verbs that speak ids) add sequences; the owner calls engine_step in a loop.
 * Owns:     the Backend, KV blocks, state slots and samplers of its sequences.
 * Thread:   all calls from one thread.
 * Not here: text (turn.h), JSON (src/wire). */
#ifndef LILY_ENGINE_ENGINE_H
#define LILY_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "engine/prefix.h"

typedef struct Engine Engine;
typedef struct Seq Seq;

/* {0} asks for the defaults. */
typedef struct EngineOptions {
    BackendKind kind;  // BACKEND_AUTO: settled by machine and model (backend_kind_for)
    int32_t n_threads; // 0: all CPUs of this process
    int32_t device;
    const char *mask;    // kernel columns not to use
    int32_t ctx_tok;     // tokens of the whole KV pool; 0: what the sequences can use and memory
                         // holds, at most 32768
    int32_t max_seqs;    // sequences at once; 0: 8
    int32_t chunk_tok;   // rows of prefill in one step, rounded up to 64; 0: what suits the device
                         // (backend_chunk_rows), less where its memory is short
    int32_t mixed_tok;   // the same while others decode; 0: 256, on a card 512
    int32_t mixed_ms;    // how long those may wait for it in one step, by how long rows and layers
                         // took so far, whatever mixed_tok says; 0: where layers can be split, 1.5
                         // to 2 times what the decodes take, else only mixed_tok counts
    int32_t cache_slots; // snapshots that the prefix cache may hold; 0: no cache
    bool is_cache_exact; // never go on from a state that decode made
    int32_t depth;       // steps submitted before the first is read, 1 or 2; 0: 1
    uint64_t budget_bytes; // memory of everything; 0: what the machine, or the card, has free
    bool is_f32_activations;
} EngineOptions;

/* Sizes that were settled. */
typedef struct EnginePlan {
    BackendNeeds needs;
    int32_t ctx_tok;   // tokens of the KV pool, a multiple of KV_BLOCK
    int32_t limit_tok; // longest sequence: the pool or the model's positions, whichever is less
    int32_t chunk_tok;
    int32_t mixed_tok;
    int32_t mixed_ms;
    int32_t max_seqs;
    int32_t cache_slots;
    uint64_t budget_bytes;
} EnginePlan;

/* Plans without opening anything: what `inspect` prints. Returns STATUS_MEMORY with both figures
 * when the plan does not fit the budget. */
NODISCARD Status engine_plan(EnginePlan *out, const Weights *w, const EngineOptions *options,
                             Err *err);

/* Plans, opens the backend and packs the weights. Keeps nothing of w. */
NODISCARD Status engine_open(Engine **out, const Weights *w, const EngineOptions *options,
                             const Progress *progress, const Log *log, Err *err);
/* Ends every sequence as cancelled (their sinks are called) and frees all. */
void engine_close(Engine *e);
const EnginePlan *engine_settled(const Engine *e);
Backend *engine_backend(Engine *e);
const ModelConfig *engine_config(const Engine *e);

typedef enum SeqEnd {
    SEQ_RUNNING,
    SEQ_STOP_ID,   // an id of stop_ids was chosen; it is not reported as a token
    SEQ_STOP_SINK, // the sink asked for it (a stop string)
    SEQ_LENGTH,    // max_tokens or the context is used up
    SEQ_CANCELLED,
    SEQ_FAILED, // the Err says why
} SeqEnd;

/* Where a sequence's news goes; called inside engine_step, engine_cancel and engine_close.
 *
 * token  one new id; return false to end the sequence (SEQ_STOP_SINK). May be NULL. Neither may
 *        call the engine, but for engine_force and engine_room in token.
 * end    last call for this sequence, which is freed right after; must not be NULL. */
typedef struct SeqSink {
    bool (*token)(void *ctx, const SampleResult *sample);
    void (*end)(void *ctx, SeqEnd end, const Err *err);
    void *ctx;
} SeqSink;

typedef struct SeqRequest {
    const int32_t *ids;      // [n_ids] prompt, each in [0, V); copied
    int32_t n_ids;           // >= 1
    int32_t max_tokens;      // new ids at most; 0: until the context is full
    const int32_t *stop_ids; // [n_stop_ids] ids that end the answer; copied
    int32_t n_stop_ids;      // 0..LIMIT_EOS; 0 goes on past end ids
    SampleParams sample;
    int32_t n_stable; // prompt tokens that a next turn will begin with too; 0: unknown
    uint64_t space;   // only prefixes cached under the same number are reused
    uint64_t client;  // clients are admitted in turn
} SeqRequest;

/* Queues a sequence. *out (NULL allowed) is valid until its sink's end is called.
 * Returns STATUS_CONTEXT with both numbers when the prompt leaves no room for one new id,
 * STATUS_INVALID naming the field, STATUS_MEMORY. */
NODISCARD Status engine_add(Engine *e, const SeqRequest *request, SeqSink sink, Seq **out,
                            Err *err);
/* Whether engine_add would take the request: the same refusals but for STATUS_MEMORY. Any thread.
 */
NODISCARD Status engine_check(const Engine *e, const SeqRequest *request, Err *err);
/* Holds a sequence back, so that it is in no further step until it is let go on, but for those that
 * finish a piece of its prompt and may choose one id; one that runs gives its place to others who
 * wait. Its state and blocks are kept while nobody needs the room, else its ids are read again
 * later. Not from inside a sink. */
void engine_pause(Engine *e, Seq *seq, bool is_paused);
/* Ends a sequence as soon as no step in flight holds it: at once, or inside the next engine_step.
 */
void engine_cancel(Engine *e, Seq *seq);
/* Puts ids behind the answer so far, in place of what would be chosen next; they are read by the
 * model but not told to the sink. Only from inside the sequence's own token sink, with room for
 * them before max_tokens (see engine_room); else nothing happens and false comes back. */
bool engine_force(Seq *seq, const int32_t *ids, int32_t n);
/* New ids that the sequence may still get. */
int32_t engine_room(const Seq *seq);
/* Runs at most one step of the model and delivers its news; *is_idle (NULL allowed): nothing is
 * left to do but what is paused. A step that fails ends the sequences in it; the engine goes on. */
void engine_step(Engine *e, bool *is_idle);

/* Figures of a sequence for statistics. */
typedef struct SeqFigures {
    int32_t n_prompt, n_generated;
    int32_t n_cached;    // prompt tokens that were not read again
    int32_t n_read;      // prompt tokens read or cached so far, submitted steps counted
    int32_t n_shared;    // prompt tokens that the cache had blocks for
    PrefixMiss miss;     // why not all of them
    bool is_decode_made; // it began at a state that decode made: near the exact answer
    int32_t n_preempted; // times it was sent back to the queue
    int64_t added_ns, admitted_ns, first_token_ns, last_token_ns; // clock_now_ns; 0: not yet
} SeqFigures;
SeqFigures engine_seq_figures(const Seq *seq);

/* Figures of the engine, for metrics; counters only grow. */
typedef struct EngineFigures {
    int32_t n_active, n_waiting;
    int32_t n_blocks_free, n_blocks;
    PrefixFigures prefix;
    uint64_t n_steps, n_preempted;
    uint64_t n_prompt_tok, n_cached_tok, n_generated_tok;
    uint64_t n_decode_made_hits;          // hits on states that go back to decode
    uint64_t n_miss[PREFIX_DIVERGED + 1]; // admissions by PrefixMiss
} EngineFigures;
EngineFigures engine_figures(const Engine *e);

#endif
