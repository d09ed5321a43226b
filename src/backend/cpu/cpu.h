// SPDX-License-Identifier: Apache-2.0
/* cpu.h - what the files of the cpu backend share: the opened device, its memory, one step's rows.
 *
 * Path:     cpu.c opens; cpu_step.c takes a batch apart; cpu_decode.c and cpu_prefill.c run its
 *           rows through the layers with cpu_mul.c, cpu_gdn.c, cpu_attn.c, cpu_moe.c.
 * Owns:     nothing.  Thread: the engine's and, inside a pass, the members of its pool. */
#ifndef LILY_BACKEND_CPU_CPU_H
#define LILY_BACKEND_CPU_CPU_H

#include "backend/backend_table.h"
#include "backend/cpu/cpu_pack.h"
#include "base/checked.h"
#include "base/clock.h"

#include <stdatomic.h>

enum {
    ATTN_MAX_PARTS = 32,        // most parts that one decoded row's context is cut into
    ATTN_PART_BLOCKS = 2,       // KV blocks of a part while there are no more than that many parts
    EXPERT_UNIT = 64,           // inner values of an expert: one group of down
    DECODE_UNITS = 4,           // most of those in one job of a decode: products like many strips
    PROMPT_UNITS = 8,           // the same of prompts, whose rows are gathered for each job
    DOWN_COLUMNS = 1024,        // most outputs of down that one job of a prompt makes
    PRODUCT_ROWS = MATMUL_ROWS, // of one job of products of a prompt: few enough to stay in L2
};

/* One member's own scratch. */
typedef struct CpuMember {
    float *x;            // decode: [max_decode][H] residual stream; every member has the same
    uint8_t *in;         // decode: [max_decode] prepared rows of H
    float *norm;         // [ROW_BLOCK][H] normed rows before they are prepared
    int32_t *topk;       // decode: [max_decode][K]
    float *topk_weight;  // decode: [max_decode][K]
    int32_t *order;      // decode: see ExpertLists
    float *gate, *up;    // [MATMUL_ROWS][PROMPT_UNITS * EXPERT_UNIT]
    float **y;           // [MATMUL_ROWS]
    const void **px;     // [MATMUL_ROWS]
    float *gdn;          // cpu_gdn_scratch_floats
    float *attn_q;       // [ATTN_TOKENS][heads][256]
    float *attn_o;       // the same
    void *attn;          // kernel scratch
    const void **blocks; // [div_up(max_ctx, KV_BLOCK)]
    uint8_t *blocks_in;  // prefill: blocks of MATMUL_ROWS rows of H, where the column has blocks
    float *tail;         // [MATMUL_ROWS][16] last strip of the head
} CpuMember;

/* Which rows chose which expert. Slot i of row r is number r * K + i. */
typedef struct ExpertLists {
    int32_t n_active;
    int32_t *active; // [E] experts that some row chose, ascending
    int32_t *first;  // [E + 1] of expert e: order[first[e]..first[e + 1])
    int32_t *order;  // [rows * K] slots by expert, ascending inside one
    int32_t *place;  // [rows * K] where a slot stands in order
} ExpertLists;

/* A row of a pass. */
typedef struct PassRow {
    int32_t seq; // index in the batch
    int32_t pos;
    int32_t id;
    int32_t bad_layer; // -1: finite so far
} PassRow;

/* The sequences of one phase. Rows are numbered from 0 inside the pass. Prompts in the middle of
 * the layers lie here, and in CpuShared.x, until the next step that has rows of prompts. */
typedef struct Pass {
    BatchPhase phase;
    int32_t n_seqs, n_rows;
    int32_t *seqs;    // [n_seqs] index in the batch
    int32_t *row0;    // [n_seqs]
    int32_t *slots;   // [n_seqs] state slots
    PassRow *rows;    // [n_rows]
    float *cos_sin;   // [n_rows][ROPE_DIMS]
    int32_t n_wanted; // rows whose logits are made
    int32_t *wanted;  // [n_wanted] row
    float **logits;   // [n_wanted] where they go, [V] each
} Pass;

/* What a submitted step gave, until it is waited for. */
typedef struct CpuDone {
    int32_t n_seqs;
    BatchResult *results; // [max_seqs]
    float *logits;        // [max_logits][V]
} CpuDone;

/* Buffers that all members share, of one step. Widths are rounded up to whole strips. */
typedef struct CpuShared {
    float *x;             // prefill: [max_rows][H] residual stream
    uint8_t *in;          // prefill: [max_rows] prepared rows of H
    uint8_t *blocks;      // prefill: [max_rows] in blocks, where the column has them: rows of H, or
                          // of the mixer's last projection
    float *proj;          // [max_rows][proj_width] first projections of a mixer
    uint8_t *inner;       // [max_rows] prepared rows: what the mixer's last projection reads; where
                          // the column has blocks, decode's alone: [max_decode]
    float *branch;        // [max_rows][H] what is to be added to x
    float *router;        // [max_rows][router_width] expert logits, then the shared gate's strip
    int32_t *topk;        // prefill: [max_rows][K]
    float *topk_weight;   // prefill: [max_rows][K]
    int32_t *order;       // prefill: see ExpertLists
    uint8_t *act;         // [max_rows * K] prepared rows of I, in the lists' order; where the
                          // column has blocks, prefill's from cpu_moe_act_row on
    uint8_t *shared_act;  // [max_rows] prepared rows of SI, or in blocks
    float *expert_out;    // [max_rows * K][H], in the lists' order
    float *shared_out;    // [max_rows][H]
    float *parts;         // decode: [max_decode][KV heads][n_parts_max][heads][ATTN_PART]
    float *sample_logits; // [max_seqs][V]

    /* prefill: [div_up(max_rows, PRODUCT_ROWS)] of these rows, how many the delta net has left for
     * its last projection, summed over the key heads. */
    _Atomic int32_t *rows_done;
} CpuShared;

/* Wall time of stages, taken behind the barrier that ends each, or the last delta net head of a
 * prompt, beside which the products behind it have begun. */
typedef struct CpuProfile {
    bool is_on;
    int64_t mark_ns;        // end of the stage before
    int64_t ns[2][STAGE_N]; // by BatchPhase
    uint64_t n_runs[2][STAGE_N];
} CpuProfile;

typedef struct Cpu {
    ModelConfig c;
    BackendPlan plan; // mask cleared
    KernelTable k;
    CpuModel model;
    Pool *pool;
    Sampler **samplers; // [n_samplers]
    char text[160];

    uint8_t *weight_map, *kv_map, *slot_map, *scratch_map;
    size_t weight_size, kv_size, slot_size, scratch_size;

    /* Sizes that follow from config, plan and kernels. */
    int32_t n_attn, n_gdn, max_decode, n_parts_max;
    int32_t proj_width, router_width;
    size_t in_bytes, inner_bytes, act_bytes, shared_act_bytes; // of a prepared row
    size_t kv_head_bytes, kv_layer_bytes, block_bytes;         // K and V of one head, layer, block
    size_t window_bytes, slot_layer_bytes, slot_bytes;         // of one layer, layer, slot
    double rope_freq[ROPE_DIMS / 2];

    CpuMember *members; // [n_members]
    CpuShared s;
    Pass pass[2]; // by BatchPhase
    const Batch *batch;

    CpuDone done[BATCH_IN_FLIGHT];  // step i in entry i % BATCH_IN_FLIGHT
    uint64_t n_submitted, n_waited; // steps
    int32_t *last_ids;              // [max_seqs] sampled by the step submitted last
    uint64_t n_expert_reads;        // distinct (layer, expert) of a step, over all steps
    uint64_t prompt_ns;             // rows of prompts in layers, over all steps
    CpuProfile profile;
} Cpu;

/* Ends a stage: what passed since the last one ended was its own. One member at a time. */
static inline void cpu_stage_end(Cpu *b, BatchPhase phase, BackendStageId stage) {
    if (!b->profile.is_on)
        return;
    int64_t now = clock_now_ns();
    b->profile.ns[phase][stage] += now - b->profile.mark_ns;
    b->profile.n_runs[phase][stage]++;
    b->profile.mark_ns = now;
}

/* Units [first, end) of a list. */
typedef struct Span {
    int32_t first, end;
} Span;

/* ---- cpu_mul.c: products with packed matrices ---- */

/* Rows by address: row i lies at base + index[i] * stride (index NULL: i * stride). */
typedef struct RowsIn {
    const uint8_t *base;
    size_t stride;
    const int32_t *index;
} RowsIn;
typedef struct RowsOut {
    float *base;
    size_t stride; // f32
    const int32_t *index;
} RowsOut;

/* m rows by some strips of one expert's matrix. */
typedef struct Product {
    BatchPhase phase; // chooses the kernel: rows of prompts may go decode's exact way
    const PackedMatrix *w;
    int32_t expert;
    Span strips;
    RowsOut y; // base: where column 0 of strip strips.first goes
    RowsIn x;  // prefill in a column with blocks: base is a block, stride cpu_row_step, no index
    int32_t m;
    const uint8_t *next; // weights that this member will want afterwards (MatmulFn); NULL: unknown
} Product;
void cpu_mul(const Cpu *b, CpuMember *me, const Product *p);

/* Bytes from a row to the next in what prefill's products read: row_bytes of a prepared row, or
 * the row's part of a block of n_groups groups. */
size_t cpu_row_step(const Cpu *b, int32_t n_groups, size_t row_bytes);
/* Puts m prepared rows into blocks, where the column has them. */
void cpu_make_blocks(const Cpu *b, uint8_t *to, RowsIn x, int32_t n_groups, int32_t m);

/* Some groups of rows of a pass for the products that will read them. */
typedef struct RowsPut {
    BatchPhase phase;
    uint8_t *rows; // prepared rows of the pass, `bytes` each: not touched where a prompt's products
    size_t bytes;  // read blocks, which go to s.blocks
    int32_t n_groups;
    int32_t row, m;   // rows [row, row + m) of the pass
    int32_t group, n; // their groups [group, group + n)
    const float *x;   // [m] of n * 64 f32, ldx apart
    size_t ldx;
} RowsPut;
void cpu_put_rows(const Cpu *b, const RowsPut *put);

/* How many strips stay in L2 while blocks of rows pass over them. */
int32_t cpu_chunk_strips(const Cpu *b, const PackedMatrix *w);
/* Where a strip of an expert lies. */
static inline const uint8_t *cpu_strip(const PackedMatrix *w, int32_t expert, int32_t strip) {
    return w->tiles + (size_t)expert * w->expert_bytes + (size_t)strip * w->strip_bytes;
}

/* The share of member of n in n_units units of unit_bytes that lie at `at` in a list of total
 * bytes, cut evenly by bytes; the shares of all members are a partition. */
Span cpu_share(uint64_t at, int32_t n_units, uint64_t unit_bytes, uint64_t total, int member,
               int n_members);
/* The same of n equal jobs. */
Span cpu_share_even(int32_t n_jobs, int member, int n_members);

/* A matrix of a stage and the column of the output where its first strip goes. */
typedef struct StagePart {
    const PackedMatrix *w;
    int32_t column;
} StagePart;
enum { STAGE_PARTS = 4 };

/* The first projections of a layer's mixer; returns their number. */
int32_t cpu_stage_mixer(const CpuLayer *l, StagePart parts[STAGE_PARTS]);
/* Router and shared gate. */
int32_t cpu_stage_router(const CpuLayer *l, StagePart parts[STAGE_PARTS]);

/* ---- cpu_gdn.c: gated delta net between its projections ---- */

size_t cpu_gdn_scratch_floats(const Cpu *b);

/* One key head and its value heads for m following rows of one sequence. */
typedef struct GdnJob {
    const BatchSeq *seq; // decode: token by token (m is 1); prefill: in chunks of 64, snapshots
                         // taken between them
    const CpuLayer *l;
    int32_t key_head, m;
    int32_t row;       // first row's number in its pass: there its outputs go
    const float *proj; // [m][proj_width] first row's projections
    const float *next; // decode: the state that this member reads afterwards; NULL: unknown
} GdnJob;
/* Convolution, delta rule, gated norm; updates the slot, cleared at position 0. Rows of prompts are
 * counted in s.rows_done. */
void cpu_gdn_head(const Cpu *b, CpuMember *me, const GdnJob *job);
/* States of a key head's value heads. */
float *cpu_gdn_state(const Cpu *b, const CpuLayer *l, int32_t slot, int32_t key_head);

/* ---- cpu_attn.c: attention between its projections ---- */

/* Parts of the context of a row at position pos: blocks of each (in the last fewer). */
int32_t cpu_attn_part_blocks(int32_t pos);
/* Some parts of one row and KV head into s.parts; the last part of the context also appends the
 * row's key and value. */
void cpu_attn_decode(const Cpu *b, CpuMember *me, const CpuLayer *l, int32_t row, int32_t kv_head,
                     Span parts);
/* Merges the parts of one row and query head, gates, prepares. */
void cpu_attn_finish(const Cpu *b, CpuMember *me, int32_t row, int32_t head);
/* Prefill: appends a row's keys and values. */
void cpu_attn_append(const Cpu *b, const CpuLayer *l, int32_t row);
/* Prefill: rows [row, row + n) of one sequence, n <= ATTN_TOKENS, one KV head: rotation of their
 * queries, attention, gate, preparation. */
void cpu_attn_prefill(const Cpu *b, CpuMember *me, const CpuLayer *l, int32_t row, int32_t n,
                      int32_t kv_head);

/* ---- cpu_moe.c: routing, expert lists, expert products ---- */

size_t cpu_moe_list_ints(const ModelConfig *c, int32_t rows);
/* Top K of a row's router logits (ties to the lowest id) and their softmax. */
void cpu_moe_choose(const Cpu *b, const float *logits, int32_t *ids, float *weights);
/* Sorts the slots of n_rows rows by expert into memory of cpu_moe_list_ints. */
ExpertLists cpu_moe_sort(const Cpu *b, const int32_t *topk, int32_t n_rows, int32_t *memory);
/* Inner values [64 unit, + 64 n_units) of an expert: gate, up, SwiGLU, preparation. */
typedef struct InnerJob {
    BatchPhase phase;
    const CpuLayer *l;
    int32_t expert, unit;
    int32_t n_units;     // 1..PROMPT_UNITS
    const uint8_t *in;   // prepared rows
    int32_t act_row;     // prefill: cpu_moe_act_row
    const uint8_t *next; // as in Product
} InnerJob;
/* The weights that a job reads first. */
const uint8_t *cpu_moe_inner_first(const CpuLayer *l, int32_t expert, int32_t unit);
/* Row of act where the slots of expert number i of the active ones begin in prefill. Blocks are of
 * one expert each, so between two experts may lie some that nobody uses. */
int32_t cpu_moe_act_row(const Cpu *b, const ExpertLists *lists, int32_t i);
/* Rows of act that n_rows rows need in prefill. */
size_t cpu_moe_act_rows(const Cpu *b, int32_t n_rows);
/* For slots that chose the expert, at some places of its list, into act. */
void cpu_moe_inner(const Cpu *b, CpuMember *me, const InnerJob *job, const ExpertLists *lists,
                   Span places);
/* Of the shared expert (job->expert does not count) for rows [row, row + m), into shared_act. */
void cpu_moe_inner_shared(const Cpu *b, CpuMember *me, const InnerJob *job, int32_t row, int32_t m);
/* What the shared expert's output counts for a row. */
float cpu_moe_shared_weight(const Cpu *b, int32_t row);
/* to[0..n) of row `row` = sum of its experts' outputs in selection order, the shared one last;
 * out rows of ld f32 in the lists' order, shared likewise by row. */
void cpu_moe_combine(const Cpu *b, float *to, const ExpertLists *lists, const float *out,
                     const float *shared, size_t ld, const float *weights, int32_t row, int32_t n);

/* ---- passes ---- */

/* Angles of a row of a pass. */
void cpu_row_rope(const Cpu *b, const Pass *pass, int32_t row);
/* Runs layers [first, end) over the rows of the pass; the members' x and s.x hold the residual
 * stream before and after. The embedding is layer -1. */
void cpu_decode_layers(Cpu *b, int32_t first, int32_t end);
void cpu_prefill_layers(Cpu *b, int32_t first, int32_t end);
/* cpu_step.c: the whole step; fills `done`. STATUS_MEMORY only with a tap, before anything else. */
NODISCARD Status cpu_step_run(Cpu *b, const Batch *batch, CpuDone *done, Err *err);

/* Residual stream of a row of a pass. */
static inline float *cpu_row_x(const Cpu *b, const Pass *pass, int32_t row) {
    float *x = pass->phase == PHASE_DECODE ? b->members[0].x : b->s.x;
    return x + (size_t)row * (size_t)b->c.hidden;
}

/* Notes that a row's residual stream is not finite. */
static inline void cpu_row_bad(PassRow *row, int32_t layer) {
    if (row->bad_layer < 0)
        row->bad_layer = layer;
}

/* K and V of one block, attention layer and KV head. */
static inline void *cpu_kv(const Cpu *b, const CpuLayer *l, int32_t block, int32_t kv_head) {
    return b->kv_map + (size_t)block * b->block_bytes + (size_t)l->place * b->kv_layer_bytes +
           (size_t)kv_head * b->kv_head_bytes;
}

/* Recurrent state of a GDN layer in a slot, [HV][128][128]; behind it the window [3][CC], oldest
 * row first. The window is f32: bf16 would save 2% of a slot, and moved the oracle's logits 6 to
 * 18 times as far as everything else that is rounded. */
static inline float *cpu_state(const Cpu *b, const CpuLayer *l, int32_t slot) {
    return (float *)(b->slot_map + (size_t)slot * b->slot_bytes +
                     (size_t)l->place * b->slot_layer_bytes);
}
static inline float *cpu_window(const Cpu *b, const CpuLayer *l, int32_t slot) {
    return cpu_state(b, l, slot) + (size_t)b->c.n_gdn_value_heads * STATE_ELEMENTS;
}

#endif
