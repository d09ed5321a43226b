// SPDX-License-Identifier: Apache-2.0
/* seq.h - a sequence and the engine as its parts see them; private to src/engine.
 *
 * Path:     engine.c (doors, delivery), sched.c (admission, what goes into a step).
 * Owns:     see each struct.  Thread: engine. */
#ifndef LILY_ENGINE_SEQ_H
#define LILY_ENGINE_SEQ_H

#include "engine/blocks.h"
#include "engine/engine.h"
#include "engine/prefix.h"

typedef enum SeqState { STATE_WAITING, STATE_ACTIVE, STATE_ENDED } SeqState;

enum { SNAPS_A_PART = 4 }; // snapshots that one sequence takes in one step at most

struct Seq {
    Seq *next; // in the waiting list
    SeqState state;
    uint64_t number; // in the order of addition
    int32_t slot;    // index in Engine.active, state slot and sampler; -1: none
    int32_t n_prompt;
    int32_t n_known;  // ids on the host: prompt and delivered answer
    int32_t n_done;   // positions that were submitted
    int32_t n_flight; // steps in flight that hold this sequence
    int32_t max_new;  // new ids at most, >= 1
    int32_t *ids;     // [n_prompt + max_new]
    int32_t *blocks;  // [div_up(n_prompt + max_new, KV_BLOCK)]
    int32_t n_blocks; // held so far
    int32_t stop_ids[LIMIT_EOS];
    int32_t n_stop_ids;
    int32_t n_stable;   // prompt tokens that a later turn has too; a snapshot is taken near it
    uint64_t space;     // of the prefix cache
    uint64_t client;    // who is served in turn
    int64_t last_step;  // the last step that holds it
    int32_t last_index; // its index there
    int32_t tail_slot;  // snapshot that decode made at tail_pos; -1: none
    int32_t tail_pos;
    int32_t park_slot; // snapshot slot with its state while it waits with its blocks; -1: none
    int32_t n_ignore;  // choices of steps in flight that forced ids have overtaken
    int32_t n_hit;     // tokens that the cache gave when it was admitted last
    bool is_cancelled;
    bool is_leaving;       // in no further step: it goes back to the queue when it is in none
    bool is_sampler_stale; // forced ids are not counted in its sampler yet
    bool is_paused;        // its reader is slow: in no step, and its place goes to who waits
    bool is_half;          // it stands in Engine.piece

    SampleParams sample; // bias is owned
    SeqSink sink;
    SeqFigures figures;
};

/* A snapshot that a step in flight makes. */
typedef struct PendingSnap {
    Seq *seq;
    int32_t pos, slot;
} PendingSnap;

/* A submitted step and whose rows it holds. */
typedef struct Flight {
    Batch batch;
    BatchSeq *parts;      // [max_seqs]
    Seq **seqs;           // [max_seqs]
    int32_t *ids;         // [max_rows]
    BatchSnap *snaps;     // [max_seqs, SNAPS_A_PART] inside pieces
    PendingSnap *pending; // [n_pending] of max_seqs * (SNAPS_A_PART + 1)
    int32_t n_pending;
    int32_t n_prefill; // rows of prompts
    int32_t n_decode;  // sequences that decode: the first of the batch
    int64_t begun_ns;
    uint64_t prompt_ns; // of it, for rows of prompts; 0: the device does not say
} Flight;

/* A sequence's part of the piece. */
typedef struct PiecePart {
    Seq *seq;
    int32_t n_rows; // behind seq->n_done
    int32_t n_snaps;
    BatchSnap snaps[SNAPS_A_PART]; // taken on the way; their slots are lent to it
} PiecePart;

/* Rows of prompts that have gone through layers [0, layer) in steps beside decodes, and go on in
 * the next one. They count as read behind the last layer alone: until then state and blocks of
 * these sequences are of no use to anybody. */
typedef struct Piece {
    PiecePart *parts; // [max_seqs] in the order of the batch
    int32_t n;        // 0: there is none
    int32_t layer;
} Piece;

/* How long steps take; seconds, means that forget; 0: not seen yet. */
typedef struct Pace {
    double decode_s;  // a step but for its rows of prompts
    double row_s;     // a row of a prompt, through all layers
    int64_t ended_ns; // of the step read last
} Pace;

struct Engine {
    EnginePlan plan;
    EngineOptions options; // mask NULL
    Backend *backend;
    Blocks blocks;
    Prefix *prefix;
    Seq **active; // [max_seqs] by slot; NULL: free
    Seq *first_waiting, *last_waiting;
    int32_t n_waiting;
    int32_t depth;
    int64_t step; // number of the next step to submit
    int32_t n_flight;
    Flight flights[BATCH_IN_FLIGHT]; // step s stands in flights[s % BATCH_IN_FLIGHT]
    BatchResult *results;            // [max_seqs]
    int32_t turn;                    // which active sequence is offered prefill rows first
    uint64_t n_added;                // sequences so far
    Pace pace;
    Piece piece;
    int32_t n_parked; // waiting sequences that keep state and blocks
    EngineFigures figures;
};

/* engine.c: gives back what the sequence holds and tells its sink; the sequence is gone after it.
 */
void engine_end(Engine *e, Seq *seq, SeqEnd end, const Err *why);
/* The same for one that a step in flight may still hold: its sink hears of it now, its blocks are
 * free when that step has been read. */
void engine_end_soon(Engine *e, Seq *seq, SeqEnd end, const Err *why);
/* Takes a sequence out of the waiting list; gives back an active one's slot and blocks. */
void engine_unlink(Engine *e, Seq *seq);
void engine_vacate(Engine *e, Seq *seq);
/* Gives back what a waiting sequence has kept; it is then read again from the beginning. */
void sched_unpark(Engine *e, Seq *seq);
/* Takes a sequence out of the piece; its state and blocks are then worth nothing. */
void sched_leave_piece(Engine *e, Seq *seq);

/* sched.c: moves waiting sequences into free slots. */
void sched_admit(Engine *e);
/* Fills the next flight; false: nothing to run. */
bool sched_build(Engine *e, Flight *f);
/* Behind a submit: copies of states that end exactly where the step ends. */
void sched_submitted(Engine *e, Flight *f);
/* Behind a wait: how long the step took. */
void sched_note_pace(Engine *e, const Flight *f);
/* Behind a wait: adds the step's snapshots to the cache, or gives their slots back. */
void sched_settle(Engine *e, Flight *f, bool is_good);

#endif
