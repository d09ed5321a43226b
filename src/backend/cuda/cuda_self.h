// SPDX-License-Identifier: Apache-2.0
/* cuda_self.h - what one opened CUDA device holds; private to src/backend/cuda.
 *
 * Path:     cuda.c opens, submits and waits; cuda_load.c fills the weights; cuda_step.c starts the
 *           kernels of a step; cuda_copy.c copies slots and blocks.
 * Owns:     a Cuda owns its streams, events, graphs, device memory and samplers.  Thread: engine.
 */
#ifndef LILY_BACKEND_CUDA_CUDA_SELF_H
#define LILY_BACKEND_CUDA_CUDA_SELF_H

#include "backend/backend_table.h"
#include "backend/cuda/cuda_kernels.h"

enum {
    CUDA_HEAD_ROWS = 32,            // prefill rows that go through the output head together
    CUDA_ITEM_PAIRS = 64,           // pairs of one item of a grouped product, at least
    CUDA_GRAPH_ROWS = 32,           // decode steps of up to so many rows are replayed as graphs
    CUDA_ALIGN = 256,               // of every array on the device
    CUDA_CARD_TEXT = ERR_TEXT_SIZE, // bytes of a line about the card
    CUDA_LOWEST_COMPUTE = 80, // compute capability 8.0: bf16 matrix units, asynchronous copies
};

/* What a card is. */
typedef struct CudaCard {
    char name[256];
    int compute;    // capability, 10 major + minor
    int n_sm;       // multiprocessors
    int max_shared; // bytes of shared memory that a block may ask for
    int driver;     // version of CUDA that the driver knows, 1000 major + 10 minor
    size_t memory;  // bytes
} CudaCard;

/* One layer's packed matrices and parameters. */
typedef struct CudaLayer {
    bool is_attn;
    int32_t place;        // number among the layers of its kind
    CudaMatrix in;        // qkv | z | b | a, or q and gate | k | v
    CudaMatrix out;       // output projection of the mixer
    CudaMatrix router;    // [E + 1, H], 8 bits; the last row is the shared expert's mix
    CudaMatrix shared_up; // [2 SI, H] interleaved by 8
    CudaMatrix shared_down;
    CudaMatrix expert_up; // [E * 2 I, H] interleaved by 8
    CudaMatrix expert_down;
    float *input_norm, *post_norm;
    float *conv, *a_log, *dt_bias, *gdn_norm; // gated delta net
    float *q_norm, *k_norm;                   // attention
} CudaLayer;

/* Memory that is counted first and handed out on the second walk. */
typedef struct CudaCarver {
    char *base; // NULL: only count
    size_t used, most;
} CudaCarver;
void *cuda_carve(CudaCarver *c, size_t n, size_t size);

/* Where the numbers of a step lie in its descriptor; the device has one, the host two. */
typedef struct CudaDesc {
    CudaStepHead *head;
    CudaRow *decode; // [max_seqs]
    int32_t *table;  // [max_seqs * blocks of a sequence]
    CudaRow *rows;   // [max_rows] prefill
    CudaSeq *seqs;   // [max_seqs]
    CudaChunk *chunks;
    CudaSnap *snaps; // [max_rows / RECUR_CHUNK + max_seqs]
    CudaTile *tiles;
    int32_t *list;           // [max_rows] prefill rows that go through the head
    uint32_t *allowed;       // [max_seqs, div_up(V, 32)] ids that may be drawn
    size_t size, prefill_at; // bytes; where `rows` begins
} CudaDesc;

/* How a sampler chooses, as far as the host needs it. */
typedef struct CudaChooser {
    int32_t limit; // ids below it may be chosen
    bool is_host;  // the host's sampler, for the sake of log-probabilities
    bool is_plain; // greedy and nothing else: the choice behind every output head
    bool has_top_k, has_top_p;
} CudaChooser;

/* Rows of a step whose ids are drawn on the card. */
typedef struct CudaDrawn {
    int32_t n[2];      // by phase
    int32_t n_allowed; // bit sets
    bool has_top_k, has_top_p;
} CudaDrawn;

/* A sequence of a submitted step, as far as the result needs it. */
typedef struct CudaDoneSeq {
    int32_t pos0, n_rows, sampler;
    int32_t first_logit, n_logits; // its rows of the host's logits; n_logits 0: none
    bool is_wanted;                // by the caller; else for the host's sampler alone
    bool is_host_sampled;
    const uint32_t *allowed;
} CudaDoneSeq;

/* What a submitted step gives, until it is waited for. */
typedef struct CudaDone {
    int32_t n_seqs;
    bool is_finished;
    CudaDoneSeq *seqs;    // [max_seqs]
    BatchResult *results; // [max_seqs], when finished
    float *logits;        // [max_logits + max_seqs, V] host
    int32_t *ids;         // [3 max_seqs] host: sampled ids (both halves), bad rows
    char *desc;           // host descriptor
    cudaEvent_t event, uploaded;
    char *place; // its descriptor on the card, and the arrays inside
    CudaDesc at;
    int half; // of the sampled ids
} CudaDone;

/* Scratch of decode steps: rows [max_seqs]. */
typedef struct CudaDecode {
    float *x, *proj, *router, *weight, *act, *shared_act, *y, *part, *part_ml, *logits;
    CudaDigits in, mix; // k = H; k = VD or NQ * 256
    int32_t *id, *count;
    uint64_t *best;
} CudaDecode;

/* Scratch of prefill steps: rows [max_rows]. What the mixers and the experts need overlaps. */
typedef struct CudaPrefill {
    float *x, *router, *weight;
    uint16_t *u, *proj, *mixed;
    CudaDigits in;
    uint16_t *keys, *attn_q; // gated delta net; attention, as attn_part
    uint32_t *mix;           // gated delta net, as v and delta
    float *v, *delta, *attn_part;
    int32_t *id, *list, *item;
    uint16_t *act, *y, *shared_act, *shared_y;
    CudaDigits head;
    float *logits; // [CUDA_HEAD_ROWS, V]
    float *tap;    // [max_rows, H]
} CudaPrefill;

/* The last list of copies that named a slot or block, and the last that restored it; 0: none. */
typedef struct CudaTouch {
    uint64_t any, restored;
} CudaTouch;

/* Lists of copies to and from host memory, by their numbers: 1, 2, ... */
typedef struct CudaCopies {
    cudaStream_t stream;
    cudaEvent_t ready;            // the steps ahead of a list
    cudaEvent_t done[COPY_LISTS]; // [number % COPY_LISTS]
    uint64_t n_begun, n_done;     // n_done: known to be finished; n_begun - n_done <= COPY_LISTS
    CudaTouch *slots;             // [n_slots]
    CudaTouch *blocks;            // [n_blocks]
} CudaCopies;

typedef struct Cuda {
    ModelConfig c;
    BackendPlan plan;
    const Log *log;
    int32_t n_attn, n_gdn;
    int32_t ld_gdn, ld_attn, ld_router; // widths of projections, padded
    int32_t seq_blocks;                 // blocks of the longest sequence
    CudaCard card;
    int max_shared;
    cudaStream_t stream;
    cudaStream_t uploads; // descriptors, while the step ahead still runs
    bool is_chained, has_graphs;
    int32_t n_sm90; // multiprocessors for the sm90a column of prefill; 0: the sm80 column
    char *weights, *kv, *slots, *scratch; // device
    size_t weight_size, block_size, slot_size, scratch_size, desc_size;
    int64_t slot_ring; // byte of the rings inside a slot
    CudaMatrix embed, head;
    float *final_norm, *rope;
    CudaLayer *layers;
    CudaDecode d;
    CudaPrefill p;
    char *desc;       // [BATCH_IN_FLIGHT, desc_size]
    CudaDesc at;      // of the step at work, on the card
    int32_t *ids;     // of the step at work, on the host: decode steps write their results there
    int32_t *sampled; // [2, max_seqs], then bad [max_seqs]
    int32_t *bad;
    char *host; // pinned
    size_t host_size;
    char *logits_map; // pages of the host's logits when they are too many to pin
    size_t logits_size;
    bool are_logits_pinned;
    CudaDone done[BATCH_IN_FLIGHT];
    CudaCopies copies;
    uint64_t n_submitted, n_waited;
    cudaGraphExec_t graph[BATCH_IN_FLIGHT][CUDA_GRAPH_ROWS + 1]; // [half, rows of the step]
    Sampler **samplers;                                          // [n_samplers] the host's
    CudaChooser *choosers;                                       // [n_samplers]
    uint64_t *seeds;                                             // [n_samplers]
    CudaDraw *draws; // [max_seqs + 1] on the card, as what follows: of decode rows, of a prompt's
    CudaSampler *card_samplers; // [n_samplers]
    uint32_t *counts;           // [n_samplers, V]
    CudaBias *biases;           // [n_samplers, LIMIT_LOGIT_BIAS]
    int32_t *slot_tok;          // [n_slots] tokens that a slot has seen: where its ring stands
    Status failed;              // a device failure that nothing can mend
    char failed_text[ERR_TEXT_SIZE];
    char text[CUDA_CARD_TEXT];
} Cuda;

/* STATUS_OK, or the error of a failed call; what names it. */
NODISCARD Status cuda_status(cudaError_t e, const char *what, Err *err);

/* A failure of the running card (or STATUS_OK): kept, and told by every later call. */
NODISCARD Status cuda_failed(Cuda *c, cudaError_t e, const char *what, Err *err);
/* STATUS_OK, or the failure that was kept. */
NODISCARD Status cuda_alive(const Cuda *c, Err *err);

/* Whether a mask names a part: "graph" (replayed steps), "chain" (kernels that start early) or
 * "sm90a" (kernels for compute capability 9.0). */
bool cuda_is_masked(const char *mask, const char *name);

/* ---- cuda_card.c ---- */

cudaError_t cuda_card_ask(CudaCard *out, int device);
/* STATUS_UNSUPPORTED, with both figures, below CUDA_LOWEST_COMPUTE. */
NODISCARD Status cuda_card_check(const CudaCard *card, Err *err);
/* Whether this binary has the sm90a column and the card is of its kind. */
bool cuda_card_has_sm90a(const CudaCard *card);
/* "NAME (compute 9.0, column sm90a, 140 GiB, driver for CUDA 13.0)" */
void cuda_card_text(const CudaCard *card, bool is_sm90a, char *text, size_t size);
/* What backend_table.h says of is_available, is_here, memory_free and meter. */
bool cuda_card_is_available(char *text, size_t size);
bool cuda_card_is_here(void);
uint64_t cuda_card_memory_free(int32_t device);
cudaError_t cuda_card_meter(BackendMeter *out, const CudaCard *card, cudaStream_t stream);

/* ---- cuda_copy.c ---- */

NODISCARD Status cuda_copies_open(Cuda *c, Err *err);
/* Waits for the lists under way. */
void cuda_copies_close(Cuda *c);
/* What a step starts next on its stream waits there for the lists that it must not overtake. */
cudaError_t cuda_copy_order(Cuda *c, const Batch *batch);
/* What backend_table.h says of them. */
NODISCARD Status cuda_copy_begin(void *self, const BackendCopy *copies, int32_t n, Err *err);
NODISCARD Status cuda_copy_poll(void *self, uint64_t ticket, bool *is_finished, Err *err);
NODISCARD Status cuda_copy_wait(void *self, uint64_t ticket, Err *err);
void *cuda_host_alloc(void *self, size_t bytes);
void cuda_host_free(void *self, void *p);
uint64_t cuda_slot_host_bytes(const void *self);
uint64_t cuda_block_host_bytes(const void *self);
void cuda_slot_copy(void *self, int32_t to, int32_t from);
NODISCARD Status cuda_slot_peek(void *self, int32_t slot, int layer, double *s, double *window,
                                Err *err);

/* ---- cuda_load.c ---- */

/* Whether this backend can run the model (widths, bits, groups) and the plan. */
NODISCARD Status cuda_load_check(const Weights *w, const BackendPlan *plan, Err *err);
/* Places every matrix and parameter in the slab; returns its size. base NULL: only counts. */
size_t cuda_load_place(Cuda *c, char *base);
/* Reads, uploads and packs everything. */
NODISCARD Status cuda_load_fill(Cuda *c, const Weights *w, const Progress *progress, Err *err);

/* ---- cuda_step.c ---- */

/* Places the scratch; returns its size. */
size_t cuda_step_place(Cuda *c, char *base);
CudaDesc cuda_step_desc(const Cuda *c, char *base);
/* A step of m decode rows up to their logits and greedy ids; layer by layer for taps. */
cudaError_t cuda_step_decode_begin(Cuda *c, int32_t m);
cudaError_t cuda_step_decode_layer(Cuda *c, int32_t m, int32_t layer);
cudaError_t cuda_step_decode_end(Cuda *c, int32_t m);
/* The whole of it. */
cudaError_t cuda_step_decode(Cuda *c, int32_t m);

/* Counts of a prefill part. */
typedef struct CudaPrefillCounts {
    int32_t m, n_seqs, n_chunks, n_snaps, n_tiles, n_list;
    int32_t most_keys; // of a sequence behind the step
} CudaPrefillCounts;
cudaError_t cuda_step_prefill_begin(Cuda *c, const CudaPrefillCounts *n);
cudaError_t cuda_step_prefill_layer(Cuda *c, const CudaPrefillCounts *n, int32_t layer);
/* Logits of list rows [first, first + m) into p.logits, and the greedy id of the last of each
 * sequence where is_last says so. */
cudaError_t cuda_step_prefill_head(Cuda *c, int32_t first, int32_t m);
cudaError_t cuda_step_prefill_choose(Cuda *c, int32_t first, int32_t i);

/* ---- cuda_sampler.c ---- */

/* Places what samplers need in the scratch. */
void cuda_sample_place(Cuda *c, CudaCarver *a);
CudaChooser cuda_sample_chooser(const Cuda *c, const SampleParams *p);
/* Sets a sampler on the card, behind the steps submitted so far. counts [V], as sampler_counts
 * gives them. */
cudaError_t cuda_sample_set(Cuda *c, int32_t sampler, const SampleParams *p,
                            const uint32_t *counts);
/* Fills what the last row of s says of its choice, adds it to the rows drawn, and copies its bit
 * set of ids into allowed [max_seqs, div_up(V, 32)]. */
void cuda_sample_row(const Cuda *c, CudaRow *row, const BatchSeq *s, CudaDrawn *drawn,
                     uint32_t *allowed);
/* Ids of m decode rows, and of row i of the prefill rows in p.logits, whose list begins at first.
 * Their logits are changed: behind everything else that wants them. */
cudaError_t cuda_sample_decode(const Cuda *c, int32_t m, const CudaDrawn *drawn);
cudaError_t cuda_sample_prefill(const Cuda *c, int32_t first, int32_t i, const CudaDrawn *drawn);

#endif
