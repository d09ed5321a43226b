// SPDX-License-Identifier: Apache-2.0
/* backend.h - one step of the model on one device: tokens in, logits or sampled ids out.
 *
 * Path:     engine plans memory with backend_needs, opens a device, then submits Batches and waits
 *           for their results; each backend owns its whole forward pass behind this table.
 * Owns:     a Backend owns its packed weights, KV blocks, state slots, samplers and scratch.
 * Thread:   all calls on one Backend from one thread (the engine's). */
#ifndef LILY_BACKEND_BACKEND_H
#define LILY_BACKEND_BACKEND_H

#include "backend/sample.h"
#include "base/log.h"
#include "checkpoint/weights.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    KV_BLOCK = RECUR_CHUNK, // tokens of one KV block; so a snapshot at a multiple of 64 ends one
    BATCH_IN_FLIGHT = 2,    // steps that may be submitted and not yet waited for
    COPY_LISTS = 32,        // lists of copies that may be under way
};

typedef enum BackendKind {
    BACKEND_REF,
    BACKEND_REF64,
    BACKEND_CPU,
    BACKEND_CUDA,
    BACKEND_METAL,
    BACKEND_AUTO,
    BACKEND_N
} BackendKind;

/* How large a device is opened. */
typedef struct BackendPlan {
    int32_t max_rows;        // rows of a step (prefill chunk plus decodes), >= 1
    int32_t max_seqs;        // sequences of a step
    int32_t n_blocks;        // KV blocks of KV_BLOCK tokens, each for all attention layers
    int32_t n_slots;         // recurrent state slots
    int32_t n_samplers;      // samplers
    int32_t max_ctx;         // longest sequence in tokens (sizes of tables)
    int32_t max_logits;      // rows of a step that may want logits (not only an id); 0: max_rows
    int32_t n_threads;       // CPU threads; 0: as many as CPUs
    int32_t device;          // device number of its kind
    const char *mask;        // names of kernel columns not to use, separated by commas; NULL: none
    bool is_f32_activations; // test mode: no rounding of activations to bf16
} BackendPlan;

/* Bytes that a plan takes on the device. */
typedef struct BackendNeeds {
    uint64_t weight_bytes;  // packed weights
    uint64_t block_bytes;   // one KV block
    uint64_t slot_bytes;    // one state slot
    uint64_t sampler_bytes; // one sampler
    uint64_t scratch_bytes; // everything else, for max_rows and max_seqs
    uint64_t total_bytes;   // of the whole plan
} BackendNeeds;

/* The kernel is chosen by phase and by the row's own context, never by what else is in the step. */
typedef enum BatchPhase { PHASE_PREFILL, PHASE_DECODE } BatchPhase;

/* Which logits of a sequence's rows are wanted. */
typedef enum BatchWant { WANT_NOTHING, WANT_LAST, WANT_ALL } BatchWant;

/* A copy of the state in the middle of a prefill: of what it is behind position pos - 1. */
typedef struct BatchSnap {
    int32_t pos;  // a multiple of RECUR_CHUNK
    int32_t slot; // state slot that receives it
} BatchSnap;

/* One sequence's part of a step. */
typedef struct BatchSeq {
    BatchPhase phase;        // decode: n_rows is 1; prefill: pos0 is a multiple of RECUR_CHUNK
    int32_t row0;            // its first row of the step; rows of sequences follow each other
    int32_t n_rows;          // >= 1; of a prefill a multiple of RECUR_CHUNK but for its last piece
    int32_t pos0;            // position of the first row; 0 clears the state slot first
    int32_t slot;            // state slot, read and updated in place
    const int32_t *blocks;   // [div_up(pos0 + n_rows, KV_BLOCK)] block numbers; borrowed until wait
    BatchWant want;          // logits for the caller; WANT_ALL in prefill only
    int32_t sampler;         // sample the last row's next id with this sampler; -1: do not
    const uint32_t *allowed; // [div_up(V, 32)] bit set of ids that may be sampled; NULL: all
    int32_t carry; // decode: >= 0 takes the id that this sequence index of the step submitted
                   // before sampled, in device memory (an id -1 counts as id 0, the result then
                   // means nothing); -1: ids[row0] is the id. Ignored in prefill
    const BatchSnap
        *snaps;      // [n_snaps] prefill: pos ascending, pos0 < pos < pos0 + n_rows; borrowed
    int32_t n_snaps; // until wait
} BatchSeq;

/* Called after the forward pass has made a named value; for tests and `lily logits --taps`. The
 * values of one step's rows, widened: data [n_rows, width]. A tap makes the step synchronous.
 * Every backend calls it with name "out" (the residual stream after `layer`, -1: the embedding) and
 * "final_norm" (layer n_layers); "topk_ids" comes for rows of prompts. ref also, in each layer,
 * with the names of the oracle's layer trace ("qkv", "topk_ids", ...). "attn_probs" alone comes
 * once a row: data [NQ, position + 1], head by key. Values that a layer makes per row: heads follow
 * each other in `width`. */
typedef struct BatchTap {
    void (*see)(void *ctx, const char *name, int layer, int32_t n_rows, int32_t width,
                const double *data);
    void *ctx;
} BatchTap;

typedef struct Batch {
    int32_t n_seqs;       // 1..max_seqs
    const BatchSeq *seqs; // [n_seqs]; borrowed until wait
    int32_t n_rows;       // sum of their n_rows, <= max_rows
    const int32_t *ids;   // [n_rows] token ids in [0, V); borrowed until wait
    const BatchTap *tap;  // NULL: none
    int32_t layer0;       // rows of prompts go through layers [layer0, layer_end) alone (see
    int32_t layer_end;    // backend_splits_layers); 0 and 0: through all
} Batch;

/* What a step gave for one sequence. */
typedef struct BatchResult {
    const float
        *logits; // [n wanted rows, V] in row order; NULL: none wanted; valid until next submit
    SampleResult sample; // id -1 when there was no sampler or no id may be chosen
    int32_t bad_layer; // first layer whose residual stream is not finite; n_layers: the final norm
                       // or logits; -1: all finite. Then sample.id is -1.
    int32_t bad_pos;   // position of the first such row
} BatchResult;

typedef struct Backend Backend;

/* Names ("ref", "cpu", ...) and back; backend_kind_find returns BACKEND_N for an unknown name. */
const char *backend_kind_name(BackendKind kind);
BackendKind backend_kind_find(const char *name);
/* Whether this binary has it. */
bool backend_is_built(BackendKind kind);
/* BACKEND_AUTO to the fastest kind that is available, whatever the model; others unchanged. */
BackendKind backend_kind_resolve(BackendKind kind);
/* Whether this binary has it and this machine can run it; the reason, or what the device is, in
 * text (may be NULL). */
bool backend_is_available(BackendKind kind, char *text, size_t size);
/* BACKEND_AUTO to the fastest kind that this machine has, that can run the model and has the memory
 * for its weights; others unchanged.
 *
 * plan  device, n_threads, mask and is_f32_activations count
 * log   is warned of a device that is here and passed over, with the reason; NULL: silent. A
 * machine without one is told nothing. */
BackendKind backend_kind_for(BackendKind kind, const Weights *w, const BackendPlan *plan,
                             const Log *log);
/* Bytes of memory that a device of this kind has free: the host's, or the card's own. 0: unknown.
 */
uint64_t backend_memory_free(BackendKind kind, int32_t device);
/* Rows of a prompt in one step that suit a device of this kind: more make it hardly faster. */
int32_t backend_chunk_rows(BackendKind kind);

/* Sizes for a plan, before anything is allocated. */
NODISCARD Status backend_needs(BackendNeeds *out, BackendKind kind, const Weights *w,
                               const BackendPlan *plan, Err *err);

/* Opens the device and packs every weight, reading each tensor once. `progress` may be NULL.
 * Keeps nothing of w. */
NODISCARD Status backend_open(Backend **out, BackendKind kind, const Weights *w,
                              const BackendPlan *plan, const Progress *progress, const Log *log,
                              Err *err);
/* Waits for the steps and copies under way. */
void backend_close(Backend *b);
BackendKind backend_kind(const Backend *b);
const ModelConfig *backend_config(const Backend *b);
/* One line about the device and the chosen kernels. */
const char *backend_text(const Backend *b);

/* Whether rows of prompts may go through the layers in several steps, so that a step beside decodes
 * can be short. The first such step has layer0 0; the next one that has rows of prompts at all has
 * the layer_end before as its layer0, and of the parts of prompts before it those that go on, in
 * the same order and unchanged in rows, ids, slot, blocks and snapshots. A part that is left out is
 * forgotten, and all are where layer0 is 0 again. Until the last layer the slots, snapshots and
 * written blocks of these parts are undefined, there are no logits, samples or verdicts of them,
 * and no tap. The numbers are those of one step, bit for bit. */
bool backend_splits_layers(const Backend *b);

/* Starts a step; at most BATCH_IN_FLIGHT may be unfinished. A failure leaves the backend usable and
 * the slots and blocks of this batch undefined, or untouched with STATUS_INVALID, which names what
 * is malformed. No slot (snapshots counted) or sampler may stand twice in a batch, and no block
 * that the step writes may stand anywhere else in it (blocks that are only read may be shared). All
 * calls on a backend take effect in their order: what is called behind a submit sees what that step
 * made. */
NODISCARD Status backend_submit(Backend *b, const Batch *batch, Err *err);
/* Waits for the oldest unfinished step: results [n_seqs] of that batch. STATUS_INVALID when there
 * is none. */
NODISCARD Status backend_wait(Backend *b, BatchResult *results, Err *err);

/* What the steps so far have read, for bounds: counted by the device, 0 where it does not count. */
typedef struct BackendCounters {
    uint64_t n_expert_reads; // distinct (layer, expert) pairs of a step, summed over the steps
    uint64_t prompt_ns;      // that rows of prompts spent in layers, where layers can be split
} BackendCounters;
void backend_counters(const Backend *b, BackendCounters *out);

/* Parts of a step whose time a device may take apart. What a device does in the same breath counts
 * where its loop ends: norms and the choice of experts with the stage that they feed. */
typedef enum BackendStageId {
    STAGE_EMBED,        // rows and tables of the step, embedding
    STAGE_GDN_IN,       // first projections of a gated delta net layer
    STAGE_GDN,          // convolution, delta rule, gated norm
    STAGE_GDN_OUT,      // last projection
    STAGE_ATTN_IN,      // the same three of an attention layer
    STAGE_ATTN,         //
    STAGE_ATTN_OUT,     //
    STAGE_ROUTER,       // router, shared gate; in decode the shared expert's gate and up too
    STAGE_EXPERTS_UP,   // gate and up of the chosen experts; in prefill the shared expert's too
    STAGE_EXPERTS_DOWN, // down of the chosen and the shared expert, weighted sum
    STAGE_HEAD,         // final norm, output head
    STAGE_SAMPLE,       // verdicts, choice of ids
    STAGE_N
} BackendStageId;

typedef struct BackendStage {
    BatchPhase phase;
    BackendStageId id;
    double seconds; // since the profile was switched on
    uint64_t n_runs;
} BackendStage;

const char *backend_stage_name(BackendStageId id);
/* Switches the timing of stages off, or on from zero. */
void backend_profile_set(Backend *b, bool is_on);
/* The stages that ran while the profile was on, prefill before decode, in the order of the ids;
 * returns how many (at most max are written). 0 where a device does not time them. */
int backend_profile(const Backend *b, BackendStage *out, int max);

/* What the device can do, measured now. */
typedef struct BackendMeter {
    double read_gb_s;     // bytes read from its memory, 1e9 a second
    double matrix_tflops; // two operations for a multiply-add, 1e12 a second
    const char *unit;     // which one; static text
} BackendMeter;

/* Measures the device's memory and its fastest unit for the products of the kernels.
 * bytes    to read, of each CPU thread, and
 * seconds  to multiply, each unit (a card does what suits it)
 * Cost:    memory for what is read; it stays, with the bytes of the first call, until the backend
 * is closed. No step may be unfinished (STATUS_INVALID). */
NODISCARD Status backend_meter(Backend *b, BackendMeter *out, size_t bytes, double seconds,
                               Err *err);

/* Samplers: params and the ids that penalties count (prompt first). Every id sampled with it is
 * counted by the device itself. A sampler that was never set chooses greedily.
 * Returns what sampler_set of sample.h returns, which leaves it unchanged; a failure of the device
 * leaves it undefined until it is set again. */
NODISCARD Status backend_sampler_set(Backend *b, int32_t sampler, const SampleParams *params,
                                     const int32_t *ids, int32_t n_prompt, int32_t n_generated,
                                     Err *err);

/* State slots: recurrent state and convolution windows of all layers. */
void backend_slot_copy(Backend *b, int32_t to, int32_t from);

/* ---- state slots and KV blocks to and from host memory ---- */

/* One that is saved (`to` is given) or restored (`from` is). The bytes are of a format of this
 * backend, for this model: backend_slot_host_bytes or backend_block_host_bytes of them. */
typedef struct BackendCopy {
    bool is_slot;     // state slot `index`; else KV block `index`
    int32_t index;    //
    void *to;         // save: host memory that receives it; NULL: a restore
    const void *from; // restore: what a save has made; NULL: a save
} BackendCopy;

/* Begins a list of copies, which travels beside the steps. All calls take effect in their order
 * here too, and the device itself keeps to it; the caller need not wait:
 * - A save gets what the steps, slot copies and lists before it have made.
 * - What is submitted behind the list and writes a slot or block that the list saves, or uses one
 *   that it restores, starts when the whole list is finished. Everything else runs on beside it;
 *   blocks that are being saved may be read.
 * So a slot or block may go to another sequence as soon as its save has begun, and a restored one
 * may be used at once. A step that must wait holds up the steps behind it.
 *
 * copies  [n] n >= 1, taking effect in their order; the array itself is not kept (in)
 *         Host memory is borrowed until the list is finished. What a restore reads is there, or an
 *         unfinished save that has begun before will write it.
 * ticket  number of the list for what follows: 1, 2, ...; lists are finished in this order (out)
 * Returns STATUS_INVALID, naming what is malformed, with nothing done. After any other failure
 *         nothing of the list is under way and what it should have written is undefined.
 * Cost:   waits for the oldest list where COPY_LISTS are unfinished. A card copies beside the steps
 *         to and from memory of backend_host_alloc alone: with any other the call may wait for the
 *         steps ahead and the copy. ref and cpu have copied when it returns. */
NODISCARD Status backend_copy_begin(Backend *b, const BackendCopy *copies, int32_t n,
                                    uint64_t *ticket, Err *err);
/* Whether a list is finished, and waiting for it; as often as one likes, or never. STATUS_INVALID
 * for a number that no list has; STATUS_DEVICE when the device was lost before the list was known
 * to be finished: its host memory is let go, and what it saved there is undefined. */
NODISCARD Status backend_copy_poll(Backend *b, uint64_t ticket, bool *is_finished, Err *err);
NODISCARD Status backend_copy_wait(Backend *b, uint64_t ticket, Err *err);

/* Host memory that copies can travel to and from beside the steps; NULL when there is none. For a
 * card its pages are pinned, which takes long and takes them from everybody else: to be had once,
 * in large pieces. Freed (NULL is fine) before the backend is closed, with no copy of it
 * unfinished. */
void *backend_host_alloc(Backend *b, size_t bytes);
void backend_host_free(Backend *b, void *p);

uint64_t backend_slot_host_bytes(const Backend *b);
uint64_t backend_block_host_bytes(const Backend *b);

/* A list of one, begun and waited for; host: as `to` and `from` above. */
NODISCARD Status backend_slot_save(Backend *b, int32_t slot, void *host, Err *err);
NODISCARD Status backend_slot_restore(Backend *b, int32_t slot, const void *host, Err *err);
NODISCARD Status backend_block_save(Backend *b, int32_t block, void *host, Err *err);
NODISCARD Status backend_block_restore(Backend *b, int32_t block, const void *host, Err *err);

/* Tests and `logits --taps`: recurrent state S [HV, 128 key, 128 value] and window [3, CC] (oldest
 * first) of one GDN layer, widened. */
NODISCARD Status backend_slot_peek(Backend *b, int32_t slot, int layer, double *s, double *window,
                                   Err *err);

#endif
