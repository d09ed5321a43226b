// SPDX-License-Identifier: Apache-2.0
/* kernels.h - what a kernel column of the cpu backend computes, entry by entry, and the layouts
 * that all columns share.
 *
 * Path:     cpu.c chooses a column for each family once (cpu_features.c), the passes call through
 *           the table; pack_matrix.h writes the layouts.
 * Owns:     nothing.  Thread: every entry may run on any thread at once; none allocates or fails.
 * Not here: which rows, heads or outputs a thread works on (cpu_decode.c, cpu_prefill.c).
 *
 * In every entry the value of a row is made in one order of operations that depends on nothing
 * but the row itself, its inputs and (attention) its own context. All pointers of outputs overlap
 * nothing unless said; f32 arrays are 4-byte aligned, weights and prepared rows 64-byte aligned. */
#ifndef LILY_BACKEND_CPU_KERNELS_H
#define LILY_BACKEND_CPU_KERNELS_H

#include "checkpoint/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STRIP_ROWS = 16,   // outputs of one strip: the 32-bit lanes of the widest register
    GROUP_INPUTS = 64, // inputs of one tile
    TILE_SCALES = 64,  // bytes of 16 bf16 scales and 16 bf16 biases behind a tile's codes
    TILE_BYTES_Q4 = STRIP_ROWS * GROUP_INPUTS / 2 + TILE_SCALES,
    TILE_BYTES_Q8 = STRIP_ROWS * GROUP_INPUTS + TILE_SCALES,
    MATMUL_ROWS = 128,                    // most rows of one matmul call
    ROW_BLOCK = 16,                       // rows of a block, see MatmulKernels
    ATTN_TOKENS = 32,                     // most tokens of one attention prefill call
    KV_KEYS = 64,                         // keys of one KV block
    KV_ELEMENTS = KV_KEYS * ATTN_HEAD,    // of K, and of V, of one block and KV head
    STATE_ELEMENTS = GDN_HEAD * GDN_HEAD, // recurrent state of one value head
};

/* Bytes of one tile: 16 outputs by 64 inputs. */
static inline size_t tile_bytes(int32_t bits) { return bits == 4 ? TILE_BYTES_Q4 : TILE_BYTES_Q8; }

/* Packed weights. A strip is 16 output rows; its tiles follow each other over k, strips over n,
 * experts over e; rows that fill up the last strip have codes, scales and biases of zero.
 * A tile of 4 bits is 8 lines of 64 bytes; in line c the 32-bit lane r (little endian) holds of
 * output row r the codes of inputs 8c..8c+3 in the low nibbles of its bytes 0..3 and those of
 * 8c+4..8c+7 in the high nibbles. A tile of 8 bits is 16 lines; byte j of lane r of line c is the
 * code of input 4c + j. Behind the codes stand 16 scales and 16 biases, bf16.
 *
 * y_i[16 s + r] = sum_g scale[g][r] * (sum_k q[k][r] x_i[k]) + bias[g][r] * (sum_k x_i[k])
 * for the strips s of w, k over the 64 inputs of group g.
 *
 * w         [n_strips][n_groups] tiles                                       (in)
 * x         [m] prepared rows                                                (in)
 * y         [m] rows of 16 * n_strips f32                                    (out)
 * m         1..MATMUL_ROWS
 * next      weights of the call that will follow, fetched meanwhile as far as it suits; only a
 *           hint: never read, NULL allowed
 * Order: groups ascending in f32; inside a group the column's own, the same for every m. Prefill
 * in blocks: weights and inputs rounded to bf16, halves of groups ascending. */
typedef void (*MatmulFn)(float *const *y, const uint8_t *w, int32_t n_groups, int32_t n_strips,
                         const void *const *x, int32_t m, const uint8_t *next);

/* Some inner values of an expert for m rows, as down reads them (blocks):
 * act_i[16 (strip + s) + r] = silu(gate_i) * up_i, gate and up as y_i[16 s + r] above. */
typedef struct MatmulInner {
    const uint8_t *gate, *up; // [n_strips][n_groups] tiles
    int32_t gate_bits, up_bits;
    int32_t n_groups, n_strips, strip;
    const void *const *x; // [m] blocks, as prefill_q4 reads them
    int32_t m;            // 1..MATMUL_ROWS
    uint8_t *act;         // out: first block
    size_t act_bytes;     // of a block
} MatmulInner;

/* Matrix products by packed weights, and the form of a row that they read.
 *
 * Decode reads prepared rows. Prefill does so too, unless the column has blocks (block_bytes is
 * not NULL): ROW_BLOCK rows side by side. Then entry 16 b of a prefill's x is the address of the
 * block of rows 16 b to 16 b + 15, the entries between do not count, and prefill's numbers may
 * differ from decode's. */
typedef struct MatmulKernels {
    const char *column;
    /* Bytes of a prepared row of n_groups groups, a multiple of 64. */
    size_t (*row_bytes)(int32_t n_groups);
    /* Fills groups [group, group + n) of a prepared row from x [n * 64]. */
    void (*prepare)(void *row, int32_t n_groups, int32_t group, int32_t n, const float *x);
    MatmulFn decode_q4, decode_q8;   // good from one row on
    MatmulFn prefill_q4, prefill_q8; // good for many rows
    size_t chunk_bytes;              // strips of a call of many rows: they stay in L2
    /* Bytes of a block of rows of n_groups groups, a multiple of 64 * ROW_BLOCK. */
    size_t (*block_bytes)(int32_t n_groups);
    /* Makes a block of m <= ROW_BLOCK prepared rows x [m] and of rows of zeros. */
    void (*block)(void *to, const void *const *x, int32_t n_groups, int32_t m);
    /* Makes groups [group, group + n) of rows [row, row + m) of a block from x, m rows of n * 64
     * f32 that lie ldx apart; its other rows stay as they are. */
    void (*block_put)(void *to, int32_t row, int32_t m, int32_t group, int32_t n, const float *x,
                      ptrdiff_t ldx);
    void (*inner)(const MatmulInner *call);
} MatmulKernels;

/* One KV block of one KV head: K then V, KV_ELEMENTS each, bf16, or f32 in the f32 test mode.
 * K: element (d, key) at (d / 2) * 128 + key * 2 + d % 2: pairs of d for each key.
 * V: element (key, d) at key * 256 + d / 32 * 32 + d % 16 * 2 + d / 16 % 2: columns c and c + 16
 * share a 32-bit lane. */
static inline size_t kv_k_index(int32_t d, int32_t key) {
    return (size_t)(d / 2 * 2 * KV_KEYS + key * 2 + d % 2);
}
static inline size_t kv_v_index(int32_t d, int32_t key) {
    return (size_t)(key * ATTN_HEAD + d / 32 * 32 + d % 16 * 2 + d / 16 % 2);
}

enum { ATTN_PART = ATTN_HEAD + 2 }; // f32 of one head's partial result: maximum, sum, o[256]

/* Attention over paged keys. Scores are q . k: q comes scaled. Softmax runs online over blocks of
 * 64 keys at absolute positions, of prompts in the amx column over 256, where it rounds weights to
 * bf16; their sum is then that of the rounded ones. */
typedef struct AttnKernels {
    const char *column;
    bool is_f32_kv; // what the KV blocks hold
    /* Bytes of scratch, 64-byte aligned, that decode and prefill of `heads` query heads a KV head
     * want. */
    size_t (*scratch_bytes)(int32_t heads);
    /* Writes k [256] and v [256] as key number `key` (0..63) of a block. */
    void (*append)(void *block, int32_t key, const float *k, const float *v);
    /* Partial attention of one row: part [heads][ATTN_PART] from q [heads][256] over the first
     * n_keys keys of blocks [div_up(n_keys, 64)]; o is not divided by the sum. next: the block
     * that the call behind this one begins with, a hint as in MatmulFn. */
    void (*decode)(float *part, const float *q, int32_t heads, const void *const *blocks,
                   int32_t n_keys, const void *next, void *scratch);
    /* out [256] = the merged o of one head, divided; part entries lie `stride` f32 apart. */
    void (*merge)(float *out, const float *part, ptrdiff_t stride, int32_t n_parts);
    /* n_tokens <= ATTN_TOKENS following rows, the first at position pos0: out
     * [n_tokens][heads][256] from q, the same shape; token i sees keys 0..pos0 + i of blocks. */
    void (*prefill)(float *out, const float *q, int32_t heads, const void *const *blocks,
                    int32_t pos0, int32_t n_tokens, void *scratch);
} AttnKernels;

/* The gated delta rule: of one head, width 128. S [128 key][128 value] f32. */
typedef struct RecurKernels {
    const char *column;
    /* c[t][d] = silu(sum_i w[i * ldw + d] * rows[t + i][d]), c [m][128], rows [m + 3] of 128: three
     * rows of history before the m rows. next: how far behind each of the m rows one stands that
     * will be read soon, a hint as in MatmulFn; 0: none. */
    void (*conv)(float *c, const float *const *rows, const float *w, ptrdiff_t ldw, int32_t m,
                 ptrdiff_t next);
    /* x[t] *= factor / sqrt(sum x[t]^2 + 1e-6) for m rows of 128. */
    void (*unit)(float *x, float factor, int32_t m);
    /* One token: S = alpha S; d = beta (v - S^T k); S += k d^T; o = S^T q. next: the state of the
     * call behind this one, a hint as in MatmulFn. */
    void (*step)(float *s, float *o, const float *q, const float *k, const float *v, float alpha,
                 float beta, const float *next);
    /* kk[i][j] = k_i . k_j, qk[i][j] = q_i . k_j for j <= i < m; rows of 64; the rest undefined.
     * q, k [m][128]; scratch [chunk_scratch_bytes], 64-byte aligned: left as it is for chunk. */
    void (*gram)(float *kk, float *qk, const float *q, const float *k, int32_t m, void *scratch);
    /* m <= 64 tokens at once: S in and out, o [m][128] from q, k, v [m][128], the log decays
     * g [m] (<= 0), beta [m], gram's products, and its scratch, which serves several calls. */
    void (*chunk)(float *s, float *o, const float *q, const float *k, const float *v,
                  const float *g, const float *beta, const float *kk, const float *qk, int32_t m,
                  void *scratch);
    size_t (*chunk_scratch_bytes)(void);
    /* y[t] = o[t] / sqrt(mean o[t]^2 + eps) * gain * silu(z[t]) for m rows of 128; z rows ldz
     * apart; y may be o. next: as in conv, from each row of z. */
    void (*gate)(float *y, const float *o, const float *gain, const float *z, ptrdiff_t ldz,
                 float eps, int32_t m, ptrdiff_t next);
} RecurKernels;

/* Row by row arithmetic. n is a multiple of 16. */
typedef struct ElemKernels {
    const char *column;
    /* x += add (NULL: nothing to add), out = x / sqrt(mean x^2 + eps) * gain. Returns whether x is
     * finite; if not, out is undefined. */
    bool (*add_norm)(float *out, float *x, const float *add, const float *gain, float eps,
                     int32_t n);
    /* out = silu(gate) * up; out may be gate or up. */
    void (*swiglu)(float *out, const float *gate, const float *up, int32_t n);
    /* out = x * sigmoid(gate); out may be x. */
    void (*sigmoid_gate)(float *out, const float *x, const float *gate, int32_t n);
    /* Head norm, then rotation of the first 64 of 256: out = rope(x / sqrt(mean x^2 + eps) * gain)
     * with cos, sin [32] each; rounded to bf16 before the rotation and after it when is_bf16;
     * then times scale (a power of two). out may be x. */
    void (*head_rope)(float *out, const float *x, const float *gain, const float *cos_sin,
                      float eps, float scale, bool is_bf16);
    /* y += w * x. */
    void (*axpy)(float *y, float w, const float *x, int32_t n);
    /* Whether all of x are finite. */
    bool (*is_finite)(const float *x, int32_t n);
} ElemKernels;

typedef struct KernelTable {
    MatmulKernels matmul;
    AttnKernels attn;
    RecurKernels recur;
    ElemKernels elem;
} KernelTable;

/* The generic column: plain C, always there. */
void matmul_generic_init(MatmulKernels *t);
void attn_generic_init(AttnKernels *t, bool is_f32_kv);
void recur_generic_init(RecurKernels *t);
void elem_generic_init(ElemKernels *t);

/* AVX-512 (F, BW, DQ, VL, VNNI, BF16), on x86-64 alone. attn: bf16 caches only. */
void matmul_avx512_init(MatmulKernels *t);
void attn_avx512_init(AttnKernels *t);
void recur_avx512_init(RecurKernels *t);
void elem_avx512_init(ElemKernels *t);

/* AMX (tile, bf16, int8), on x86-64 alone, and AVX-512 as above, whose decode it has. */
void matmul_amx_init(MatmulKernels *t);
void attn_amx_init(AttnKernels *t);
void recur_amx_init(RecurKernels *t);

#endif
