// SPDX-License-Identifier: Apache-2.0
/* cuda_kernels.h - the kernels of the CUDA backend as C functions that start them.
 *
 * Path:     cuda_load.c packs with cuda_pack_rows, cuda_step.c starts everything else in order.
 * Owns:     nothing; every pointer is device memory unless it says host.  Thread: engine.
 * Not here: the order of a step (cuda_step.c), memory (cuda.c).
 *
 * Packed matrices. 16 rows by 64 inputs are a tile; tiles of 16 rows follow each other along the
 * inputs. Lane l of a warp owns rows l/4 and l/4 + 8 of the tile and the inputs
 * 16 t + 2 j + 8 half + e with j = l % 4, t in 0..3, half and e in 0..1: what one lane needs as the
 * A operand of the matrix instructions (m16n8k16 bf16 and, in another order of summation inside a
 * group, m16n8k32 int8). cuda_layout.h has the places of codes and digits.
 *
 * Digits. Rows of a decode step are held as whole numbers of 15 bits, one scale a group of 64:
 * x = scale * (128 hi + lo), |x| <= 16256 scale. Products with the codes are then exact whole
 * numbers, and what is rounded is the activation alone, by 2^-15 of the largest of its group.
 *
 * Order of summation of a decode product: inside a group exact; groups of 8 behind each other in
 * f32; these partial sums in ascending order. The number of rows changes nothing for a row. Of a
 * prefill product: inputs in steps of 16 in one f32 sum, ascending, whatever the tile shape; the
 * sums of the two columns (sm80, sm90a) differ in rounding. */
#ifndef LILY_BACKEND_CUDA_CUDA_KERNELS_H
#define LILY_BACKEND_CUDA_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CUDA_GROUP = 64,          // inputs of one scale
    CUDA_WARP_TILES = 8,      // tiles along the inputs that one warp of a decode product takes
    CUDA_MAX_K = 8192,        // 16 warps of 8 tiles of 64 inputs
    CUDA_MAX_HIDDEN = 4096,   // 8 such warps: the router's 8-bit tiles fit into shared memory
    CUDA_MAX_TOP_K = 15,      // 16 warps with the shared expert's
    CUDA_MAX_ROWS = 65535,    // of a step: a launch has no more blocks in its second direction
    CUDA_WIDE_ROWS = 128,     // rows of an item of a grouped product, sm90a column: at most
    CUDA_MAX_SPLITS = 128,    // pieces of a context in decode attention
    CUDA_SPLIT_KEYS = 64,     // a piece is a multiple of it
    CUDA_SEGMENT_KEYS = 2048, // of a context in prefill attention: cut at multiples of it
    CUDA_ATTN_PLACES = 264,   // segments that are worked on side by side, at least
    CUDA_BAD_ROWS = 1 << 22,  // a bad row is noted as layer * this + row of the sequence
    CUDA_NO_BAD = 0x7f7f7f7f, // what memset leaves; above every noted row
};

/* A quantised matrix [n, k], rows padded with zeros to a multiple of 16. */
typedef struct CudaMatrix {
    const uint32_t *code;  // [n16, k / 64, 32 lanes, bits] u32
    const uint32_t *scale; // [n16, k / 64, 8, 2] bf16 scale in the low half, bias in the high half
    int32_t n, k;
    int32_t bits; // 4 or 8
    int32_t zero; // padding
} CudaMatrix;

/* A row of a step. */
typedef struct CudaRow {
    int32_t id;      // token
    int32_t carry;   // >= 0: the id is what this sequence of the step before sampled
    int32_t pos;     // position
    int32_t slot;    // state slot
    int32_t table;   // first entry of its sequence in the block table
    int32_t seq;     // sequence of the batch
    int32_t in_seq;  // row of its sequence
    int32_t limit;   // ids at and above it are not chosen by the device's argmax
    int32_t sampler; // that draws the next id; -1: none, or the greatest is chosen
    int32_t allowed; // row of the bit sets of ids that may be drawn; -1: all
    uint64_t random; // of the next id
} CudaRow;

/* A prefill sequence, and a piece of RECUR_CHUNK of its rows (the last may be shorter). */
typedef struct CudaSeq {
    int32_t row0, n_rows, pos0, slot, table, chunk0, n_chunks;
    int32_t snap0, n_snaps; // copies of the state on the way, positions ascending
} CudaSeq;
typedef struct CudaSnap {
    int32_t pos, slot;
} CudaSnap;
typedef struct CudaChunk {
    int32_t row0, n_rows;
} CudaChunk;
/* A tile of prefill attention: tokens [tok0, tok0 + n) of a sequence. */
typedef struct CudaTile {
    int32_t seq, tok0;
} CudaTile;

/* Step-wide numbers that kernels read, so that a captured graph stays valid. */
typedef struct CudaStepHead {
    int32_t sampled_in, sampled_out; // which half of the sampled ids is read and written
    int32_t zero[2];
} CudaStepHead;

/* Quantised activations of rows. */
typedef struct CudaDigits {
    uint32_t *digit; // [rows, k / 64, 32] u32: 64 high digits, 64 low digits, in lane order
    float *scale;    // [rows, k / 64, 2] scale; scale times the sum of the whole numbers
    float *factor;   // [rows] what a product is multiplied by; NULL: 1
} CudaDigits;

/* Where bad rows are noted: bad[seq] = min(layer * CUDA_BAD_ROWS + row of the sequence). */
typedef struct CudaBad {
    int32_t *bad;
    const CudaRow *rows;
    int32_t layer;
} CudaBad;

/* How kernels are started. */
typedef struct CudaLaunch {
    cudaStream_t stream;
    bool is_chained;    // a kernel may start before the one ahead of it has ended, and waits inside
    int32_t n_sm90;     // multiprocessors for the sm90a column; 0: the sm80 column
    int32_t n_sm;       // multiprocessors of the card; no result depends on it
    int32_t max_shared; // bytes of shared memory that a block may use
} CudaLaunch;

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the shared memory limits of the kernels; once after the device was chosen.
 * max_shared  bytes that one block of this device may use */
cudaError_t cuda_kernels_init(int max_shared);

/* ---- cuda_pack.cu ---- */

/* Puts n_rows rows of published codes into a packed matrix.
 *
 * code, scale  the whole packed matrix                               (out)
 * dest         packed row of raw row 0
 * interleave   0: rows follow each other; else raw row r of the matrix goes to packed row
 *              r / 8 * 16 + r % 8 + (interleave - 1) * 8, r counted from row0 (a multiple of 8)
 * q            [n_rows, k * bits / 32]; raw_scale, raw_bias [n_rows, k / 64] bf16 */
typedef struct CudaPack {
    uint32_t *code, *scale;
    const uint32_t *q;
    const uint16_t *raw_scale, *raw_bias;
    int64_t dest, row0;
    int32_t interleave, n_rows, k, bits;
} CudaPack;
cudaError_t cuda_pack_rows(const CudaLaunch *l, const CudaPack *a);

/* cos and sin of position * theta^(-2j/64): out [n_pos, 32, 2]. */
cudaError_t cuda_rope_table(const CudaLaunch *l, float *out, int32_t n_pos, double theta);

/* ---- cuda_elem.cu ---- */

/* x[row] = embedding of the row's id; clears bad when it is not NULL. */
typedef struct CudaEmbed {
    CudaMatrix w;
    const CudaRow *rows;
    const CudaStepHead *head;
    const int32_t *sampled; // [2, max_seqs]
    float *x;               // [m, k]
    int32_t m, max_seqs;
    int32_t *bad; // [n_bad]
    int32_t n_bad;
} CudaEmbed;
cudaError_t cuda_embed(const CudaLaunch *l, const CudaEmbed *a);

/* RMS norm of rows, as digits (with the factor 1 / rms left to the product) and as bf16.
 * list NULL: rows 0..m; else x row list[i] is output row i. digits.digit or u may be NULL. */
typedef struct CudaNorm {
    const float *x, *gain;
    const int32_t *list;
    CudaDigits digits;
    uint16_t *u; // [m, k]
    float eps;
    int32_t m, k;
} CudaNorm;
cudaError_t cuda_norm(const CudaLaunch *l, const CudaNorm *a);

/* Plain f32 norm for taps: out [m, k]. */
cudaError_t cuda_norm_f32(const CudaLaunch *l, float *out, const float *x, const float *gain,
                          float eps, int32_t m, int32_t k);

/* Prefill routing: top ids and weights of each row (a decode step does this behind its router). */
typedef struct CudaRoute {
    const float *logits; // [m, ld]
    int32_t ld, n_experts, top_k, is_norm;
    int32_t *id;   // [m, top_k]
    float *weight; // [m, top_k]
    int32_t m;
} CudaRoute;
cudaError_t cuda_route(const CudaLaunch *l, const CudaRoute *a);

/* Groups m * top_k (row, choice) pairs by expert, in ascending order of pairs, and cuts each
 * expert's list into items of `tile` pairs. */
typedef struct CudaGroup {
    const int32_t *id; // [n_pairs]
    int32_t n_pairs, n_experts, tile;
    int32_t *list;     // [n_pairs] pair numbers, expert by expert
    int32_t *item;     // [max_items, 3] expert, first place in list, number of pairs; 0 pairs: none
    int32_t max_items; // n_pairs / tile + n_experts is enough
} CudaGroup;
cudaError_t cuda_group(const CudaLaunch *l, const CudaGroup *a);

/* x += sum of weight * y in order of choice + sigmoid(mix) * shared. */
typedef struct CudaCombine {
    float *x;               // [m, h]
    const uint16_t *y;      // [m, top_k, h] bf16
    const float *weight;    // [m, top_k]
    const uint16_t *shared; // [m, h] bf16
    const float *mix;       // logit of row i at mix[i * ld_mix]
    int32_t ld_mix, m, h, top_k;
    CudaBad bad;
} CudaCombine;
cudaError_t cuda_combine(const CudaLaunch *l, const CudaCombine *a);

/* Greedy choice of each row (lowest id among the largest) below its limit; logits that are not
 * finite are noted in bad with layer bad.layer. */
typedef struct CudaArgmax {
    const float *logits; // [m, v]
    const int32_t *list; // row i of the logits belongs to rows[list[i]]; NULL: rows[i]
    const CudaRow *rows;
    const CudaStepHead *head;
    int32_t *sampled; // [2, max_seqs]
    uint64_t *best;   // [m, CUDA_ARGMAX_BLOCKS] scratch
    int32_t *count;   // [m] zero before, zero behind
    int32_t *host;    // pinned host memory [3, max_seqs] that gets ids and bad rows too; or NULL
    int32_t m, v, max_seqs;
    CudaBad bad;
} CudaArgmax;
enum { CUDA_ARGMAX_BLOCKS = 128 };
cudaError_t cuda_argmax(const CudaLaunch *l, const CudaArgmax *a);

/* ---- cuda_sample.cu: choice by penalties, bias, masks and chance (backend/sample.h) ---- */

enum {
    CUDA_SAMPLE_SLICES = 128, // of a row of logits, a block each
    CUDA_SAMPLE_BINS = 2048,  // values of one digit of a threshold
};

/* What a sampler is set to: SampleParams as the kernels want them. */
typedef struct CudaSampler {
    double repetition, presence, frequency;
    float inverse; // 1 / temperature
    float top_p, min_p;
    int32_t top_k, limit, n_bias;
    int32_t is_greedy, has_penalty, has_top_p;
    int32_t zero; // padding
} CudaSampler;

typedef struct CudaBias {
    int32_t id;
    float bias;
} CudaBias;

/* A row's choice between its kernels. arrived and bins are zero before the first and behind each.
 */
typedef struct CudaDraw {
    uint64_t bins[CUDA_SAMPLE_BINS]; // counts or masses of one digit
    uint64_t part[CUDA_SAMPLE_SLICES], equal[CUDA_SAMPLE_SLICES];
    uint64_t need;   // count or mass that the threshold still has to give
    uint64_t n_ties; // values equal to the threshold that stay (on the way there: all of a digit)
    uint64_t excess; // and those that do not
    uint32_t at;     // leading digits of the threshold
    uint32_t cut;    // threshold; 0: none
    float max;
    int32_t arrived, is_done;
    int32_t zero; // padding
} CudaDraw;

typedef struct CudaSample {
    float *logits;       // [m, v] changed in place
    const int32_t *list; // as in CudaArgmax, and so are rows, head, sampled and host
    const CudaRow *rows; // those without a sampler are left alone
    const CudaStepHead *head;
    int32_t *sampled, *host;
    const CudaSampler *samplers;
    uint32_t *counts; // [samplers, v] times that an id was generated, bit 31: in the prompt; kept
                      // where a sampler has penalties
    const CudaBias *biases;  // [samplers, LIMIT_LOGIT_BIAS] by id, those of one id in order
    const uint32_t *allowed; // [rows of bit sets, div_up(v, 32)]
    CudaDraw *draws;         // [m]
    const int32_t *bad;      // by sequence, noted by what ran before: such a row has no id
    int32_t m, v, max_seqs;
} CudaSample;
/* The three kernels in their order, narrow six times at most: by count (top-k), then by mass
 * (top-p), each for digit 0, 1 and 2. What no row wants may be left out. */
cudaError_t cuda_sample_change(const CudaLaunch *l, const CudaSample *a);
cudaError_t cuda_sample_narrow(const CudaLaunch *l, const CudaSample *a, bool by_mass, int digit);
cudaError_t cuda_sample_pick(const CudaLaunch *l, const CudaSample *a);

/* ---- cuda_matvec.cu: decode products, weights as the wide operand ---- */

/* Activations of a decode product: digits, or (m = 1 only) x and gain, normalised on the way. */
typedef struct CudaSource {
    CudaDigits digits;
    const float *x, *gain; // x not NULL: fused norm
    float eps;
    int32_t m;
} CudaSource;

/* y [m, ldy] = product, or x += product with bad rows noted when is_add. */
typedef struct CudaMatvec {
    CudaMatrix w;
    CudaSource src;
    float *y;
    int32_t ldy, is_add;
    CudaBad bad;
} CudaMatvec;
cudaError_t cuda_matvec(const CudaLaunch *l, const CudaMatvec *a);
/* The same by cuda_wide.cu, where it fits: many rows, on a card with enough shared memory. */
bool cuda_wide_fits(const CudaLaunch *l, const CudaMatvec *a);
cudaError_t cuda_wide(const CudaLaunch *l, const CudaMatvec *a);

/* Router logits and the shared expert's gate and up. Of several rows also the routing, by the last
 * block; of a single row the digits, into src.digits: the kernels behind choose its experts. */
typedef struct CudaRouter {
    CudaMatrix router; // [E + 1, H]: row E is the shared expert's mix
    CudaMatrix shared; // [2 SI, H] gate and up interleaved by 8
    CudaSource src;
    CudaRoute route; // logits [m, ld] are written here
    float *act;      // [m, SI]
    int32_t *count;  // zero before, zero behind
} CudaRouter;
cudaError_t cuda_router(const CudaLaunch *l, const CudaRouter *a);

/* act [m * top_k, I] = silu(gate u) * up u of each chosen expert; of more than 8 rows also of
 * the shared one, where it is given. */
typedef struct CudaExperts {
    CudaMatrix w; // [E * 2 I, H] interleaved by 8
    CudaSource src;
    const int32_t *id; // [m, top_k] of several rows
    CudaRoute route;   // of a single row, whose digits are in src.digits
    float *act;
    int32_t inner, top_k;
    CudaMatrix shared; // [2 SI, H] interleaved by 8; n = 0: without it
    float *shared_act; // [m, SI]
} CudaExperts;
cudaError_t cuda_experts_up(const CudaLaunch *l, const CudaExperts *a);
/* The same by cuda_experts.cu: many rows. */
cudaError_t cuda_experts_up_rows(const CudaLaunch *l, const CudaExperts *a);

/* x += sum of weight * down act in order of choice + sigmoid(mix) * shared down. */
typedef struct CudaDown {
    CudaMatrix w;      // [E * H, I]
    CudaMatrix shared; // [H, SI]
    const float *act, *shared_act;
    const int32_t *id; // of several rows
    const float *weight;
    CudaRoute route;  // of a single row
    const float *mix; // [m] at stride ld_mix
    float *x;         // [m, H]
    float *y;         // [m * (top_k + 1), H] scratch: the pairs', then the shared expert's
    int32_t ld_mix, m, h, top_k;
    CudaBad bad;
} CudaDown;
cudaError_t cuda_experts_down(const CudaLaunch *l, const CudaDown *a);
/* y alone, by cuda_experts.cu: many rows. */
cudaError_t cuda_experts_down_rows(const CudaLaunch *l, const CudaDown *a);

/* ---- cuda_matmul.cu: prefill products ---- */

typedef enum CudaEpilogue {
    CUDA_STORE,  // y bf16 [rows, ldy]
    CUDA_ADD,    // x f32 [rows, ldy] += product
    CUDA_SWIGLU, // y bf16 [rows, ldy] = silu(gate) * up; ldy is the inner width
} CudaEpilogue;
/* y = u W^T, or for grouped experts: item i multiplies the pairs of its list with its expert. */
typedef struct CudaMatmul {
    CudaMatrix w;      // of all experts when grouped
    const uint16_t *u; // [rows, k] bf16
    void *y;
    const int32_t *list, *item; // NULL: one matrix, rows 0..m
    int32_t m;                  // rows; pairs when grouped
    int32_t ldy, n_items;
    int32_t n_expert;    // rows of W of one expert, packed
    int32_t src_div;     // pair p reads row p / src_div; 0: reads its place in the list
    int32_t is_sorted_y; // result goes to its place in the list; else to row `pair`
    CudaEpilogue epilogue;
    CudaBad bad;
} CudaMatmul;
cudaError_t cuda_matmul(const CudaLaunch *l, const CudaMatmul *a);
/* Pairs of an item of a grouped product, for CudaGroup.tile, in the column of this launch. */
int32_t cuda_matmul_item_pairs(const CudaLaunch *l);
/* Whether the build has the sm90a column (for cards of compute capability 9.0). */
bool cuda_matmul_has_sm90(void);

/* ---- cuda_recur.cu: gated delta net, decode ---- */

/* One layer's parameters and state. */
typedef struct CudaGdn {
    const float *conv, *a_log, *dt_bias, *norm; // [CC, 4], [HV], [HV], [128]
    float *state;                               // of slot 0, this layer: S [HV, 128 key, 128 value]
    uint16_t *ring;      // of slot 0, this layer: raw rows [4, CC] bf16; row of position p at p % 4
    int64_t slot_stride; // bytes between slots
    int32_t hk, hv;
    float eps;
} CudaGdn;

/* Decode: convolution, gates, recurrence, gated norm, digits. proj [m, ld] f32: qkv | z | b | a. */
typedef struct CudaGdnDecode {
    CudaGdn g;
    const float *proj;
    const CudaRow *rows;
    CudaDigits out; // k = VD
    int32_t ld, m;
} CudaGdnDecode;
cudaError_t cuda_gdn_decode(const CudaLaunch *l, const CudaGdnDecode *a);

/* ---- cuda_delta.cu: gated delta net, prefill ---- */

enum { CUDA_DELTA_KEYS = 65536, CUDA_DELTA_MIX = 21504 }; // bytes

/* All of it, from projections to gated rows. */
typedef struct CudaGdnPrefill {
    CudaGdn g;
    const uint16_t *proj; // [m, ld] bf16
    const CudaRow *rows;
    const CudaSeq *seqs;
    const CudaChunk *chunks;
    const CudaSnap *snaps;
    uint16_t *keys; // [n_chunks, HK, CUDA_DELTA_KEYS bytes] k and q after convolution, unit length
    uint32_t *mix;  // [n_chunks, HV, CUDA_DELTA_MIX bytes] triangular matrices, factors of rows
    float *v;       // [n_chunks, HV, 64, 128] after convolution
    float *delta;   // [m, VD] output of the recurrence
    uint16_t *out;  // [m, VD] bf16, gated
    int32_t ld, m, n_seqs, n_chunks, max_shared;
} CudaGdnPrefill;
cudaError_t cuda_gdn_prefill(const CudaLaunch *l, const CudaGdnPrefill *a);

/* ---- cuda_attn.cu: full attention ---- */

typedef struct CudaAttn {
    const float *q_norm, *k_norm; // [256]
    const float *rope;            // [max_ctx, 32, 2]
    uint16_t *kv;                 // block 0, this layer: [2, NKV, 64, 256] bf16
    int64_t block_stride;         // bytes between blocks
    const int32_t *table;         // block tables of the step
    int32_t nq, nkv;
    float eps;
} CudaAttn;

/* Decode. proj [m, ld] f32: q and gate by head | k | v. */
typedef struct CudaAttnDecode {
    CudaAttn t;
    const float *proj;
    const CudaRow *rows;
    float *part;    // [m, NQ, CUDA_MAX_SPLITS, 256]
    float *part_ml; // [m, NQ, CUDA_MAX_SPLITS, 2] largest score (log 2), sum
    CudaDigits out; // k = NQ * 256
    int32_t ld, m;
} CudaAttnDecode;
cudaError_t cuda_attn_decode(const CudaLaunch *l, const CudaAttnDecode *a);

/* Prefill. proj [m, ld] bf16. */
typedef struct CudaAttnPrefill {
    CudaAttn t;
    const uint16_t *proj;
    const CudaRow *rows;
    const CudaSeq *seqs;
    const CudaTile *tiles;
    uint16_t *q;       // [m, NQ * 256] bf16 after norm and rotation, times 1/16
    uint16_t *out;     // [m, NQ * 256] bf16, gated
    float *part;       // cuda_attn_part_bytes: totals of tiles, or numbers of segments
    int32_t segment;   // keys, a multiple of 64: results depend on it
    int32_t most_keys; // of a sequence
    int32_t ld, m, n_tiles, max_shared;
} CudaAttnPrefill;
cudaError_t cuda_attn_prefill(const CudaLaunch *l, const CudaAttnPrefill *a);
/* Bytes of scratch that prefill attention may need, on any card. */
typedef struct CudaAttnSize {
    int32_t nq, nkv, max_rows, max_seqs, max_ctx, segment;
} CudaAttnSize;
uint64_t cuda_attn_part_bytes(const CudaAttnSize *s);
/* Tokens of one tile of prefill attention. */
int32_t cuda_attn_tile_tokens(int32_t nq, int32_t nkv, int max_shared);

#ifdef LILY_CUDA_TRACE
/* Builds with CUDA_TRACE=1: kernels note their times at `place` [1 + 2 CUDA_TRACE_MAX] u64 of
 * device memory (cuda_device.cuh); NULL: they do not. */
enum { CUDA_TRACE_MAX = 1 << 16 };
cudaError_t cuda_trace_bind(void *place);
#endif

/* ---- cuda_meter.cu: what the card can do, for bounds ---- */
/* Reads n bytes once; the sum of it goes to out (so that nothing is left out). */
cudaError_t cuda_meter_read(const CudaLaunch *l, const void *p, uint64_t n, uint32_t *out);
/* bf16 matrix instructions from registers: n_rounds of 64 m16n8k16 a warp. */
cudaError_t cuda_meter_matrix(const CudaLaunch *l, int32_t n_blocks, int32_t n_rounds, float *out);
/* The same of warp groups, two a block, on a card of compute capability 9.0: n_rounds of four
 * m64n256k16 a group, A from registers. */
cudaError_t cuda_meter_wgmma(const CudaLaunch *l, int32_t n_blocks, int32_t n_rounds, float *out);

#ifdef __cplusplus
}
#endif

#endif
