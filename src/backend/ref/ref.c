// SPDX-License-Identifier: Apache-2.0
/* ref.c - the forward pass as its formulas say it: the judge of all other backends and the place to
 * learn the model. No blocking, no fusion, no intrinsics; nothing is rounded to bf16 on the way.
 *
 * Path:     backend.c calls it through backend_ref_table. Read ref_submit first, then upwards:
 *           layers, gated delta net, attention, experts, head.
 * Owns:     the weights as published (rows are dequantised on the fly), KV blocks, state slots,
 *           samplers, scratch.
 * Thread:   the engine's; a Pool shares out rows, heads or outputs, each made by one thread in one
 *           order, so results depend neither on threads nor on what else is in the step.
 * Not here: checks of arguments (backend.c); ref64.c includes this file for f64. */
#ifndef REF_REAL
#define REF_REAL float
#define REF_NAME "ref"
#define REF_KIND BACKEND_REF
#define REF_TABLE backend_ref_table
#endif

#include "backend/backend_table.h"
#include "backend/ref/ref_weights.h"
#include "base/bf16.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/pool.h"

#include <tgmath.h> // exp, sqrt, ... in the type of their argument: give them a Real

typedef REF_REAL Real;

enum {
    JOB_OUTPUTS = 16,            // outputs of a matrix product that one job makes
    HEAD_ROWS = 16,              // rows that go through the output head together
    STATE = GDN_HEAD * GDN_HEAD, // S of one value head, key by value
};

/* What a submitted step gave, until it is waited for. */
typedef struct Done {
    int32_t n_seqs;
    BatchResult *results; // [max_seqs]
    float *logits;        // [max_logits, V]
} Done;

/* Memory that is counted first and handed out on the second walk. */
typedef struct Carver {
    char *base; // NULL: only count
    size_t used;
} Carver;

typedef struct Ref {
    ModelConfig c;
    BackendPlan plan;
    int32_t n_attn, n_gdn; // layers of each kind
    double rope_freq[ROPE_DIMS / 2];
    Pool *pool;
    RefWeights weights;
    int32_t place[LIMIT_LAYERS]; // number among the layers of its kind: where its state or KV lies
    Sampler **samplers;          // [n_samplers]
    char *kv_map, *slot_map, *scratch_map;
    size_t kv_size, slot_size, scratch_size; // bytes of each map
    char text[96];
    Done done[BATCH_IN_FLIGHT];     // step i in entry i % BATCH_IN_FLIGHT
    uint64_t n_submitted, n_waited; // steps

    /* The step at work. */
    const Batch *batch;
    int32_t m;             // rows
    const RefLayer *layer; // and its number
    int32_t layer_no;
    double *tap;      // [max(m * widest, NQ * max_ctx)]; NULL without a tap
    int32_t *row_seq; // [m] sequence of a row
    int32_t *row_pos; // [m] position of a row

    /* Scratch, [m, width]. */
    Real *x;                   // H, residual stream
    Real *u;                   // H, after a norm
    Real *branch;              // H, what is added to x
    Real *qkv, *conv;          // CC; raw, after convolution and SiLU (q | k | v)
    Real *z, *a, *b;           // VD, HV, HV
    Real *gdn_q, *gdn_k;       // KD, unit length, q scaled
    Real *g, *beta;            // HV
    Real *delta, *gated;       // VD
    Real *q_and_gate;          // NQ * 512
    Real *q, *gate;            // NQ * 256
    Real *k, *v;               // NKV * 256
    Real *probs;               // [NQ, max_ctx] of one row
    Real *heads, *heads_gated; // NQ * 256
    Real *router;              // E
    int32_t *expert_id;        // K, in selection order
    Real *expert_weight;       // K
    Real *expert_y;            // [m, K, H]
    int32_t *pair;   // [m * K] the (row, selection) pairs of one expert, row * K + selection
    Real *expert_in; // H, gathered rows of one expert
    Real *inner_gate, *inner_up, *expert_out; // max(I, SI), max(I, SI), H
    Real *expert_sum, *shared, *shared_mix;   // H, H, 1
    int32_t *head_row;                        // [m] rows that go through the head
    Real *head_in, *head_out;                 // [HEAD_ROWS, H], [HEAD_ROWS, V]
    float *sample_logits;                     // [V] where logits are only sampled from
    Real *weight_row;                         // [threads, widest_k] one dequantised row a thread
    int32_t widest_k;                         // inputs of the widest matrix
    int32_t widest_value;                     // width of the widest value that a tap sees
} Ref;

static void *carve(Carver *c, size_t n, size_t size) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up_size(n * size, MEM_ALIGN);
    return p;
}

static Real *carve_real(Carver *c, size_t m, int32_t width) {
    return carve(c, m * (size_t)width, sizeof(Real));
}

/* ---- arithmetic ---- */

/* sum a[i] b[i], k a multiple of 8. Eight running sums, added as a tree: rounding grows with k / 8,
 * and the sums do not wait for each other. */
static Real dot(const Real *a, const Real *b, int32_t k) {
    Real s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (const Real *end = a + k; a < end; a += 8, b += 8) {
        s0 += a[0] * b[0];
        s1 += a[1] * b[1];
        s2 += a[2] * b[2];
        s3 += a[3] * b[3];
        s4 += a[4] * b[4];
        s5 += a[5] * b[5];
        s6 += a[6] * b[6];
        s7 += a[7] * b[7];
    }
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
}

static Real sigmoid(Real x) { return 1 / (1 + exp(-x)); }
static Real silu(Real x) { return x / (1 + exp(-x)); }
static Real softplus(Real x) { return x > 20 ? x : log1p(exp(x)); }

/* out = x / sqrt(mean(x^2) + eps) * gain; may work in place. */
static void rms_norm(Real *out, const Real *x, const float *gain, int32_t d, double eps) {
    Real scale = 1 / sqrt(dot(x, x, d) / (Real)d + (Real)eps);
    for (int32_t i = 0; i < d; i++)
        out[i] = x[i] * scale * gain[i];
}

typedef struct Matmul {
    const Ref *r;
    Real *y;            // [m, n]
    const Real *x;      // [m, k]
    const RefMatrix *w; // rows first_row .. first_row + n
    int64_t first_row;
    int32_t m;
} Matmul;

/* Row of a matrix as numbers: scale * code + bias, one rounding (the product is exact in f32). The
 * same values as quant_dequant_row_*, without a division for every code. */
static void matrix_row(Real *out, const RefMatrix *w, int64_t row) {
    const WeightInfo *i = &w->info;
    int64_t n_groups = i->k / i->group, words = i->group * i->bits / 32;
    for (int64_t g = row * n_groups; g < (row + 1) * n_groups; g++) {
        Real scale = bf16_to_f32(w->scale[g]), bias = bf16_to_f32(w->bias[g]);
        for (const uint32_t *q = w->q + g * words; q < w->q + (g + 1) * words; q++)
            for (int at = 0; at < 32; at += i->bits)
                *out++ = scale * (Real)(int32_t)(*q >> at & ((1u << i->bits) - 1)) + bias;
    }
}

static void matmul_job(void *ctx, int64_t job, int member) {
    const Matmul *t = ctx;
    int32_t n = t->w->info.n, k = t->w->info.k;
    Real *w_row = t->r->weight_row + (int64_t)member * t->r->widest_k;
    for (int64_t o = job * JOB_OUTPUTS; o < n && o < (job + 1) * JOB_OUTPUTS; o++) {
        matrix_row(w_row, t->w, t->first_row + o);
        for (int64_t i = 0; i < t->m; i++)
            t->y[i * n + o] = dot(t->x + i * k, w_row, k);
    }
}

/* y = x W^T with matrix `expert` of w (0 where there is one); m rows. */
static void matmul(Ref *r, Real *y, const Real *x, int32_t m, const RefMatrix *w, int32_t expert) {
    Matmul t = {r, y, x, w, (int64_t)expert * w->info.n, m};
    pool_jobs(r->pool, div_up_i32(w->info.n, JOB_OUTPUTS), matmul_job, &t);
}

/* The same with a matrix of the layer at work and all rows of the step. */
static void project(Ref *r, Real *y, const Real *x, WeightSlot slot) {
    matmul(r, y, x, r->m, &r->layer->matrix[slot], 0);
}

/* ---- what a tap sees ---- */

/* data [m, width], rows `stride` apart. */
static void tap_rows(Ref *r, const char *name, int32_t m, int32_t width, const Real *data,
                     int64_t stride) {
    if (!r->tap)
        return;
    for (int64_t i = 0; i < m; i++)
        for (int32_t j = 0; j < width; j++)
            r->tap[i * width + j] = (double)data[i * stride + j];
    r->batch->tap->see(r->batch->tap->ctx, name, r->layer_no, m, width, r->tap);
}

static void tap(Ref *r, const char *name, int32_t width, const Real *data) {
    tap_rows(r, name, r->m, width, data, width);
}

/* ---- gated delta net ---- */

/* State of a layer in a slot: S [HV, key, value], then the window [3, CC]. */
static Real *slot_state(const Ref *r, int32_t slot, int32_t place) {
    int64_t one_layer =
        (int64_t)r->c.n_gdn_value_heads * STATE + 3 * (int64_t)config_conv_dim(&r->c);
    return (Real *)r->slot_map + ((int64_t)slot * r->n_gdn + place) * one_layer;
}

static Real *slot_window(const Ref *r, int32_t slot, int32_t place) {
    return slot_state(r, slot, place) + (int64_t)r->c.n_gdn_value_heads * STATE;
}

static size_t slot_bytes(const Ref *r) {
    int64_t one_layer =
        (int64_t)r->c.n_gdn_value_heads * STATE + 3 * (int64_t)config_conv_dim(&r->c);
    return (size_t)(one_layer * r->n_gdn) * sizeof(Real);
}

/* conv[t] = silu(sum_i w[i] * qkv[t - 3 + i]); rows before the step's first come from the window.
 */
static void gdn_conv_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    const BatchSeq *s = &r->batch->seqs[r->row_seq[row]];
    int32_t cc = config_conv_dim(&r->c);
    const float *w = r->layer->plain[SLOT_GDN_CONV];
    const Real *window = slot_window(r, s->slot, r->place[r->layer_no]);
    const Real *in[CONV_TAPS];
    for (int64_t i = 0; i < CONV_TAPS; i++) {
        int64_t from = row - (CONV_TAPS - 1) + i;
        in[i] =
            from >= s->row0 ? r->qkv + from * cc : window + (from - s->row0 + CONV_TAPS - 1) * cc;
    }
    for (int32_t ch = 0; ch < cc; ch++) {
        Real sum = 0;
        for (int i = 0; i < CONV_TAPS; i++)
            sum += w[ch * CONV_TAPS + i] * in[i][ch];
        r->conv[row * cc + ch] = silu(sum);
    }
}

/* The windows of snapshots: the three raw rows before each. */
static void gdn_snap_windows(Ref *r, const BatchSeq *s) {
    int64_t cc = config_conv_dim(&r->c);
    for (int32_t i = 0; i < s->n_snaps; i++)
        memcpy(slot_window(r, s->snaps[i].slot, r->place[r->layer_no]),
               r->qkv + (s->row0 + s->snaps[i].pos - s->pos0 - (CONV_TAPS - 1)) * cc,
               (size_t)cc * (CONV_TAPS - 1) * sizeof(Real));
}

/* The new window: the last three raw rows of the old window followed by the step's rows. */
static void gdn_move_window(Ref *r, const BatchSeq *s) {
    int64_t cc = config_conv_dim(&r->c);
    gdn_snap_windows(r, s);
    Real *window = slot_window(r, s->slot, r->place[r->layer_no]);
    for (int64_t i = 0; i < CONV_TAPS - 1; i++) { // a row moves down or stays: ascending is safe
        int64_t from = s->n_rows + i - (CONV_TAPS - 1); // row of the step; < 0: of the old window
        const Real *row =
            from >= 0 ? r->qkv + (s->row0 + from) * cc : window + (from + CONV_TAPS - 1) * cc;
        memcpy(window + i * cc, row, (size_t)cc * sizeof(Real));
    }
}

/* Unit q (times 128^-0.5) and k of each key head; log decay and step size of each value head. */
static void gdn_prepare_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    int32_t kd = config_gdn_key_dim(&r->c), cc = config_conv_dim(&r->c);
    const Real eps = (Real)1e-6; // on the sum of squares; not the config's eps
    const Real *q = r->conv + row * cc, *k = q + kd;
    for (int32_t h = 0; h < kd; h += GDN_HEAD) {
        Real q_scale = 1 / sqrt(dot(q + h, q + h, GDN_HEAD) + eps) / sqrt((Real)GDN_HEAD);
        Real k_scale = 1 / sqrt(dot(k + h, k + h, GDN_HEAD) + eps);
        for (int32_t d = h; d < h + GDN_HEAD; d++) {
            r->gdn_q[row * kd + d] = q[d] * q_scale;
            r->gdn_k[row * kd + d] = k[d] * k_scale;
        }
    }
    int32_t hv = r->c.n_gdn_value_heads;
    const float *a_log = r->layer->plain[SLOT_GDN_A_LOG];
    const float *dt_bias = r->layer->plain[SLOT_GDN_DT_BIAS];
    for (int32_t h = 0; h < hv; h++) {
        r->g[row * hv + h] = -exp((Real)a_log[h]) * softplus(r->a[row * hv + h] + dt_bias[h]);
        r->beta[row * hv + h] = sigmoid(r->b[row * hv + h]);
    }
}

/* One token of one value head. State s [key, value]: decay, predict v from k, correct, read. */
static void gdn_token(Real *s, Real *out, const Real *q, const Real *k, const Real *v, Real g,
                      Real beta) {
    Real alpha = exp(g), d[GDN_HEAD] = {0};
    for (int i = 0; i < STATE; i++)
        s[i] *= alpha;
    for (int i = 0; i < GDN_HEAD; i++)
        for (int j = 0; j < GDN_HEAD; j++)
            d[j] += k[i] * s[i * GDN_HEAD + j];
    for (int j = 0; j < GDN_HEAD; j++) {
        d[j] = beta * (v[j] - d[j]);
        out[j] = 0;
    }
    for (int i = 0; i < GDN_HEAD; i++)
        for (int j = 0; j < GDN_HEAD; j++) {
            s[i * GDN_HEAD + j] += k[i] * d[j];
            out[j] += q[i] * s[i * GDN_HEAD + j];
        }
}

/* All rows of one sequence through the recurrence of one value head, token by token. */
static void gdn_recur_head(void *ctx, int64_t job, int member) {
    UNUSED(member);
    Ref *r = ctx;
    int64_t n_heads = r->c.n_gdn_value_heads, head = job % n_heads;
    int64_t key_head = head / (n_heads / r->c.n_gdn_key_heads);
    int64_t kd = config_gdn_key_dim(&r->c), vd = config_gdn_value_dim(&r->c);
    const BatchSeq *s = &r->batch->seqs[job / n_heads];
    Real *state = slot_state(r, s->slot, r->place[r->layer_no]) + head * STATE;
    int32_t n_taken = 0; // snapshots
    for (int64_t row = s->row0; row < s->row0 + s->n_rows; row++) {
        if (n_taken < s->n_snaps && s->pos0 + row - s->row0 == s->snaps[n_taken].pos)
            memcpy(slot_state(r, s->snaps[n_taken++].slot, r->place[r->layer_no]) + head * STATE,
                   state, STATE * sizeof(Real));
        int64_t key = row * kd + key_head * GDN_HEAD, value = row * vd + head * GDN_HEAD;
        const Real *v = r->conv + row * (2 * kd + vd) + 2 * kd + head * GDN_HEAD;
        gdn_token(state, r->delta + value, r->gdn_q + key, r->gdn_k + key, v,
                  r->g[row * n_heads + head], r->beta[row * n_heads + head]);
    }
}

/* gated = rms_norm(delta) * silu(z), head by head. */
static void gdn_gate_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    int32_t vd = config_gdn_value_dim(&r->c);
    Real *out = r->gated + row * vd;
    for (int32_t h = 0; h < vd; h += GDN_HEAD)
        rms_norm(out + h, r->delta + row * vd + h, r->layer->plain[SLOT_GDN_NORM], GDN_HEAD,
                 r->c.rms_eps);
    for (int32_t j = 0; j < vd; j++)
        out[j] *= silu(r->z[row * vd + j]);
}

/* branch = out_proj(gated delta rule(u)). */
static void gdn_layer(Ref *r) {
    int32_t kd = config_gdn_key_dim(&r->c), vd = config_gdn_value_dim(&r->c);
    int32_t cc = config_conv_dim(&r->c), hv = r->c.n_gdn_value_heads;
    project(r, r->qkv, r->u, SLOT_GDN_QKV);
    project(r, r->z, r->u, SLOT_GDN_Z);
    project(r, r->b, r->u, SLOT_GDN_B);
    project(r, r->a, r->u, SLOT_GDN_A);
    tap(r, "qkv", cc, r->qkv);
    tap(r, "z", vd, r->z);
    tap(r, "b", hv, r->b);
    tap(r, "a", hv, r->a);
    pool_jobs(r->pool, r->m, gdn_conv_row, r);
    for (int32_t s = 0; s < r->batch->n_seqs; s++)
        gdn_move_window(r, &r->batch->seqs[s]);
    tap(r, "conv", cc, r->conv);
    pool_jobs(r->pool, r->m, gdn_prepare_row, r);
    tap(r, "q", kd, r->gdn_q);
    tap(r, "k", kd, r->gdn_k);
    tap_rows(r, "v", r->m, vd, r->conv + 2 * (int64_t)kd, cc);
    tap(r, "g", hv, r->g);
    tap(r, "beta", hv, r->beta);
    pool_jobs(r->pool, (int64_t)r->batch->n_seqs * hv, gdn_recur_head, r);
    tap(r, "delta_out", vd, r->delta);
    pool_jobs(r->pool, r->m, gdn_gate_row, r);
    tap(r, "gated_norm", vd, r->gated);
    project(r, r->branch, r->gated, SLOT_GDN_OUT);
}

/* ---- full attention ---- */

/* Key (which 0) or value (which 1) row of a position of a sequence: [NKV * 256]. */
static Real *kv_row(const Ref *r, const BatchSeq *s, int which, int64_t pos) {
    int64_t block = s->blocks[pos / KV_BLOCK];
    int64_t row =
        ((block * r->n_attn + r->place[r->layer_no]) * 2 + which) * KV_BLOCK + pos % KV_BLOCK;
    return (Real *)r->kv_map + row * config_kv_dim(&r->c);
}

static size_t block_bytes(const Ref *r) {
    return (size_t)r->n_attn * 2 * KV_BLOCK * (size_t)config_kv_dim(&r->c) * sizeof(Real);
}

/* A head of q_proj is 256 query values, then 256 of its output gate. */
static void attn_split_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    for (int64_t h = row * r->c.n_q_heads; h < (row + 1) * r->c.n_q_heads; h++) {
        const Real *from = r->q_and_gate + h * 2 * ATTN_HEAD;
        memcpy(r->q + h * ATTN_HEAD, from, ATTN_HEAD * sizeof(Real));
        memcpy(r->gate + h * ATTN_HEAD, from + ATTN_HEAD, ATTN_HEAD * sizeof(Real));
    }
}

static void attn_norm_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    Real *q = r->q + row * config_q_dim(&r->c), *k = r->k + row * config_kv_dim(&r->c);
    for (int32_t h = 0; h < config_q_dim(&r->c); h += ATTN_HEAD)
        rms_norm(q + h, q + h, r->layer->plain[SLOT_ATTN_Q_NORM], ATTN_HEAD, r->c.rms_eps);
    for (int32_t h = 0; h < config_kv_dim(&r->c); h += ATTN_HEAD)
        rms_norm(k + h, k + h, r->layer->plain[SLOT_ATTN_K_NORM], ATTN_HEAD, r->c.rms_eps);
}

/* Rotates dims j and j + 32 of each of n_heads heads; dims from 64 on stay. The angle is taken in
 * double: in float it would be off by 0.02 at position 262,144. */
static void attn_rotate(const Ref *r, Real *x, int32_t n_heads, int32_t pos) {
    for (int j = 0; j < ROPE_DIMS / 2; j++) {
        double angle = pos * r->rope_freq[j];
        Real c = (Real)cos(angle), s = (Real)sin(angle);
        for (int32_t h = 0; h < n_heads; h++) {
            Real *low = x + (int64_t)h * ATTN_HEAD + j, *high = low + ROPE_DIMS / 2;
            Real x0 = *low, x1 = *high;
            *low = x0 * c - x1 * s;
            *high = x0 * s + x1 * c;
        }
    }
}

/* Rotates q and k of a row and appends k and v to the cache. */
static void attn_rotate_row(void *ctx, int64_t row, int member) {
    UNUSED(member);
    Ref *r = ctx;
    int32_t kv = config_kv_dim(&r->c), pos = r->row_pos[row];
    const BatchSeq *s = &r->batch->seqs[r->row_seq[row]];
    attn_rotate(r, r->q + row * config_q_dim(&r->c), r->c.n_q_heads, pos);
    attn_rotate(r, r->k + row * kv, r->c.n_kv_heads, pos);
    memcpy(kv_row(r, s, 0, pos), r->k + row * kv, (size_t)kv * sizeof(Real));
    memcpy(kv_row(r, s, 1, pos), r->v + row * kv, (size_t)kv * sizeof(Real));
}

typedef struct AttnRow {
    Ref *r;
    int64_t row;
} AttnRow;

/* heads = softmax(q . k / 16) v over the keys up to the row's own position, for one head. */
static void attn_head(void *ctx, int64_t h, int member) {
    UNUSED(member);
    const AttnRow *t = ctx;
    Ref *r = t->r;
    const BatchSeq *s = &r->batch->seqs[r->row_seq[t->row]];
    int64_t n_keys = r->row_pos[t->row] + 1, at = t->row * config_q_dim(&r->c) + h * ATTN_HEAD;
    int64_t kv_at = h / (r->c.n_q_heads / r->c.n_kv_heads) * ATTN_HEAD;
    const Real *q = r->q + at;
    Real *p = r->probs + h * r->plan.max_ctx, *out = r->heads + at;
    Real best = 0, sum = 0;
    for (int64_t i = 0; i < n_keys; i++) {
        p[i] = dot(q, kv_row(r, s, 0, i) + kv_at, ATTN_HEAD) / 16; // sqrt(256)
        best = i && best >= p[i] ? best : p[i];
    }
    for (int64_t i = 0; i < n_keys; i++) {
        p[i] = exp(p[i] - best);
        sum += p[i];
    }
    for (int d = 0; d < ATTN_HEAD; d++)
        out[d] = 0;
    for (int64_t i = 0; i < n_keys; i++) {
        const Real *v = kv_row(r, s, 1, i) + kv_at;
        p[i] /= sum;
        for (int d = 0; d < ATTN_HEAD; d++)
            out[d] += p[i] * v[d];
    }
}

/* branch = o_proj(attention(u) * sigmoid(gate)). */
static void attn_layer(Ref *r) {
    int32_t qd = config_q_dim(&r->c), kv = config_kv_dim(&r->c);
    project(r, r->q_and_gate, r->u, SLOT_ATTN_Q);
    project(r, r->k, r->u, SLOT_ATTN_K);
    project(r, r->v, r->u, SLOT_ATTN_V);
    pool_jobs(r->pool, r->m, attn_split_row, r);
    tap(r, "q_raw", qd, r->q);
    tap(r, "gate_raw", qd, r->gate);
    tap(r, "k_raw", kv, r->k);
    tap(r, "v", kv, r->v);
    pool_jobs(r->pool, r->m, attn_norm_row, r);
    tap(r, "q_norm", qd, r->q);
    tap(r, "k_norm", kv, r->k);
    pool_jobs(r->pool, r->m, attn_rotate_row, r);
    tap(r, "q_rope", qd, r->q);
    tap(r, "k_rope", kv, r->k);
    for (int64_t row = 0; row < r->m; row++) {
        pool_jobs(r->pool, r->c.n_q_heads, attn_head, &(AttnRow){r, row});
        tap_rows(r, "attn_probs", r->c.n_q_heads, r->row_pos[row] + 1, r->probs, r->plan.max_ctx);
    }
    tap(r, "attn_out", qd, r->heads);
    for (int64_t i = 0; i < (int64_t)r->m * qd; i++)
        r->heads_gated[i] = r->heads[i] * sigmoid(r->gate[i]);
    tap(r, "attn_gated", qd, r->heads_gated);
    project(r, r->branch, r->heads_gated, SLOT_ATTN_O);
}

/* ---- mixture of experts ---- */

/* The K largest of the row's router logits (ties to the lower id), and softmax over those K. */
static void moe_route_row(Ref *r, int64_t row) {
    const Real *logits = r->router + row * r->c.n_experts;
    int32_t *ids = r->expert_id + row * r->c.top_k;
    Real *weights = r->expert_weight + row * r->c.top_k, sum = 0;
    bool taken[LIMIT_EXPERTS] = {false};
    for (int32_t i = 0; i < r->c.top_k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < r->c.n_experts; e++)
            if (!taken[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        taken[best] = true;
        ids[i] = best;
        weights[i] = exp(logits[best] - logits[ids[0]]);
        sum += weights[i];
    }
    if (!r->c.is_norm_topk) { // softmax over all experts
        sum = 0;
        for (int32_t e = 0; e < r->c.n_experts; e++)
            sum += exp(logits[e] - logits[ids[0]]);
    }
    for (int32_t i = 0; i < r->c.top_k; i++)
        weights[i] /= sum;
}

/* y = down(silu(gate x) * up x); m rows. */
static void moe_expert(Ref *r, Real *y, const Real *x, int32_t m, WeightSlot gate, WeightSlot up,
                       WeightSlot down, int32_t expert) {
    const RefMatrix *w = r->layer->matrix;
    matmul(r, r->inner_gate, x, m, &w[gate], expert);
    matmul(r, r->inner_up, x, m, &w[up], expert);
    for (int64_t i = 0; i < (int64_t)m * w[gate].info.n; i++)
        r->inner_gate[i] = silu(r->inner_gate[i]) * r->inner_up[i];
    matmul(r, y, r->inner_gate, m, &w[down], expert);
}

/* Gathers the rows that chose expert e, runs it, and puts each output at its row and selection. */
static void moe_run_expert(Ref *r, int32_t e) {
    int64_t h = r->c.hidden, n_pairs = (int64_t)r->m * r->c.top_k;
    int32_t n = 0;
    for (int32_t p = 0; p < n_pairs; p++)
        if (r->expert_id[p] == e) {
            memcpy(r->expert_in + n * h, r->u + p / r->c.top_k * h, (size_t)h * sizeof(Real));
            r->pair[n++] = p;
        }
    if (n == 0)
        return;
    moe_expert(r, r->expert_out, r->expert_in, n, SLOT_EXPERT_GATE, SLOT_EXPERT_UP,
               SLOT_EXPERT_DOWN, e);
    for (int32_t i = 0; i < n; i++)
        memcpy(r->expert_y + r->pair[i] * h, r->expert_out + i * h, (size_t)h * sizeof(Real));
}

/* branch = sum of weight * expert in selection order + sigmoid(mix) * shared expert. */
static void moe_combine_row(Ref *r, int64_t row) {
    int64_t h = r->c.hidden;
    Real *sum = r->expert_sum + row * h;
    for (int64_t j = 0; j < h; j++)
        sum[j] = 0;
    for (int64_t p = row * r->c.top_k; p < (row + 1) * r->c.top_k; p++)
        for (int64_t j = 0; j < h; j++)
            sum[j] += r->expert_weight[p] * r->expert_y[p * h + j];
    Real mix = sigmoid(r->shared_mix[row]);
    for (int64_t j = 0; j < h; j++)
        r->branch[row * h + j] = sum[j] + mix * r->shared[row * h + j];
}

static void moe_layer(Ref *r) {
    int32_t h = r->c.hidden, k = r->c.top_k;
    project(r, r->router, r->u, SLOT_ROUTER);
    project(r, r->shared_mix, r->u, SLOT_SHARED_MIX);
    for (int64_t row = 0; row < r->m; row++)
        moe_route_row(r, row);
    tap(r, "router_logits", r->c.n_experts, r->router);
    if (r->tap) {
        for (int64_t i = 0; i < (int64_t)r->m * k; i++)
            r->tap[i] = r->expert_id[i];
        r->batch->tap->see(r->batch->tap->ctx, "topk_ids", r->layer_no, r->m, k, r->tap);
    }
    tap(r, "topk_weights", k, r->expert_weight);
    for (int32_t e = 0; e < r->c.n_experts; e++)
        moe_run_expert(r, e);
    moe_expert(r, r->shared, r->u, r->m, SLOT_SHARED_GATE, SLOT_SHARED_UP, SLOT_SHARED_DOWN, 0);
    for (int64_t row = 0; row < r->m; row++)
        moe_combine_row(r, row);
    tap(r, "experts_sum", h, r->expert_sum);
    tap(r, "shared_out", h, r->shared);
    tap(r, "shared_gate_logit", 1, r->shared_mix);
    tap(r, "moe_out", h, r->branch);
}

/* ---- the step ---- */

static void norm_rows(Ref *r, const float *gain) {
    int64_t h = r->c.hidden;
    for (int64_t row = 0; row < r->m; row++)
        rms_norm(r->u + row * h, r->x + row * h, gain, r->c.hidden, r->c.rms_eps);
}

static void add_branch(Ref *r) {
    for (int64_t i = 0; i < (int64_t)r->m * r->c.hidden; i++)
        r->x[i] += r->branch[i];
}

static bool is_finite_row(const Real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Notes for each sequence the first layer, and in it the first row, whose values are not finite. */
static void find_bad_rows(Ref *r, Done *done, const Real *x) {
    for (int64_t row = 0; row < r->m; row++) {
        BatchResult *result = &done->results[r->row_seq[row]];
        if (result->bad_layer < 0 && !is_finite_row(x + row * r->c.hidden, r->c.hidden)) {
            result->bad_layer = r->layer_no;
            result->bad_pos = r->row_pos[row];
        }
    }
}

/* Fills the tables of rows, clears the slots of sequences that begin, and embeds the ids. */
static void begin_step(Ref *r, Done *done) {
    const Batch *batch = r->batch;
    const Done *before = &r->done[(r->n_submitted + BATCH_IN_FLIGHT - 1) % BATCH_IN_FLIGHT];
    done->n_seqs = batch->n_seqs;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        const BatchSeq *s = &batch->seqs[i];
        done->results[i] = (BatchResult){.sample = {.id = -1}, .bad_layer = -1};
        if (s->pos0 == 0)
            memset(slot_state(r, s->slot, 0), 0, slot_bytes(r));
        for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
            r->row_seq[row] = i;
            r->row_pos[row] = s->pos0 + row - s->row0;
            int32_t id = s->phase == PHASE_DECODE && s->carry >= 0
                             ? max_i32(before->results[s->carry].sample.id, 0)
                             : batch->ids[row];
            matrix_row(r->x + (int64_t)row * r->c.hidden, &r->weights.model.matrix[SLOT_EMBED], id);
        }
    }
}

/* Hands one row's logits to the caller, the sampler, or both. */
static void finish_head_row(Ref *r, Done *done, int32_t row, const Real *logits, float **next) {
    const BatchSeq *s = &r->batch->seqs[r->row_seq[row]];
    BatchResult *result = &done->results[r->row_seq[row]];
    bool is_last = row == s->row0 + s->n_rows - 1, is_finite = true;
    float *out = r->sample_logits;
    if (s->want == WANT_ALL || (s->want == WANT_LAST && is_last)) {
        out = *next;
        *next += r->c.vocab;
        if (!result->logits)
            result->logits = out;
    }
    for (int32_t i = 0; i < r->c.vocab; i++) {
        out[i] = (float)logits[i];
        is_finite = is_finite && isfinite(out[i]);
    }
    if (!is_finite && result->bad_layer < 0) {
        result->bad_layer = r->c.n_layers;
        result->bad_pos = r->row_pos[row];
    }
    if (is_last && s->sampler >= 0 && result->bad_layer < 0)
        sampler_next(r->samplers[s->sampler], &result->sample, out, s->allowed,
                     r->row_pos[row] + 1);
}

/* Logits of the rows that are wanted or sampled from, a few rows at a time. */
static void head(Ref *r, Done *done) {
    const RefMatrix *w = &r->weights.model.matrix[r->c.is_tied ? SLOT_EMBED : SLOT_HEAD];
    int32_t n = 0;
    for (int32_t i = 0; i < r->batch->n_seqs; i++) {
        const BatchSeq *s = &r->batch->seqs[i];
        int32_t end = s->row0 + s->n_rows, first = end;
        if (s->want == WANT_ALL)
            first = s->row0;
        else if (s->want == WANT_LAST || s->sampler >= 0)
            first = end - 1;
        for (int32_t row = first; row < end; row++)
            r->head_row[n++] = row;
    }
    float *next = done->logits;
    for (int32_t at = 0; at < n; at += HEAD_ROWS) {
        int32_t m = min_i32(HEAD_ROWS, n - at);
        for (int64_t i = 0; i < m; i++)
            memcpy(r->head_in + i * r->c.hidden, r->u + (int64_t)r->head_row[at + i] * r->c.hidden,
                   (size_t)r->c.hidden * sizeof(Real));
        matmul(r, r->head_out, r->head_in, m, w, 0);
        for (int64_t i = 0; i < m; i++)
            finish_head_row(r, done, r->head_row[at + i], r->head_out + i * r->c.vocab, &next);
    }
}

/* The whole forward pass; it is done when this returns. */
static Status ref_submit(void *self, const Batch *batch, Err *err) {
    Ref *r = self;
    r->batch = batch;
    r->m = batch->n_rows;
    r->tap = NULL;
    if (batch->tap) {
        int64_t probs = (int64_t)r->c.n_q_heads * r->plan.max_ctx;
        size_t n = max_size((size_t)r->m * (size_t)r->widest_value, (size_t)probs);
        r->tap = mem_zalloc(n, sizeof *r->tap);
        if (!r->tap)
            return err_memory(err, "values to tap", n * sizeof *r->tap);
    }
    Done *done = &r->done[r->n_submitted % BATCH_IN_FLIGHT];
    begin_step(r, done);
    r->layer_no = -1;
    tap(r, "out", r->c.hidden, r->x);
    for (int32_t l = 0; l < r->c.n_layers; l++) {
        r->layer = &r->weights.layers[l];
        r->layer_no = l;
        norm_rows(r, r->layer->plain[SLOT_INPUT_NORM]);
        tap(r, "input_norm", r->c.hidden, r->u);
        if (r->c.is_attn[l])
            attn_layer(r);
        else
            gdn_layer(r);
        tap(r, "mixer_out", r->c.hidden, r->branch);
        add_branch(r);
        norm_rows(r, r->layer->plain[SLOT_POST_NORM]);
        tap(r, "post_norm", r->c.hidden, r->u);
        moe_layer(r);
        add_branch(r);
        tap(r, "out", r->c.hidden, r->x);
        find_bad_rows(r, done, r->x);
    }
    r->layer_no = r->c.n_layers;
    norm_rows(r, r->weights.model.plain[SLOT_FINAL_NORM]);
    tap(r, "final_norm", r->c.hidden, r->u);
    find_bad_rows(r, done, r->u);
    head(r, done);
    mem_free(r->tap);
    r->n_submitted++;
    return STATUS_OK;
}

static Status ref_wait(void *self, BatchResult *results, Err *err) {
    UNUSED(err);
    Ref *r = self;
    const Done *done = &r->done[r->n_waited++ % BATCH_IN_FLIGHT];
    memcpy(results, done->results, (size_t)done->n_seqs * sizeof *results);
    return STATUS_OK;
}

/* ---- samplers, slots, blocks ---- */

static Status ref_sampler_set(void *self, int32_t sampler, const SampleParams *params,
                              const int32_t *ids, int32_t n_prompt, int32_t n_generated, Err *err) {
    Ref *r = self;
    return sampler_set(r->samplers[sampler], params, ids, n_prompt, n_generated, err);
}

static void ref_slot_copy(void *self, int32_t to, int32_t from) {
    Ref *r = self;
    if (to != from)
        memcpy(slot_state(r, to, 0), slot_state(r, from, 0), slot_bytes(r));
}

static Status ref_copy_begin(void *self, const BackendCopy *copies, int32_t n, Err *err) {
    UNUSED(err);
    Ref *r = self;
    for (const BackendCopy *copy = copies; copy < copies + n; copy++) {
        void *at = copy->is_slot ? (void *)slot_state(r, copy->index, 0)
                                 : r->kv_map + (size_t)copy->index * block_bytes(r);
        size_t bytes = copy->is_slot ? slot_bytes(r) : block_bytes(r);
        memcpy(copy->to ? copy->to : at, copy->to ? at : copy->from, bytes);
    }
    return STATUS_OK;
}

static uint64_t ref_slot_host_bytes(const void *self) { return slot_bytes(self); }

static uint64_t ref_block_host_bytes(const void *self) { return block_bytes(self); }

static Status ref_slot_peek(void *self, int32_t slot, int layer, double *s, double *window,
                            Err *err) {
    UNUSED(err);
    Ref *r = self;
    const Real *state = slot_state(r, slot, r->place[layer]);
    const Real *rows = slot_window(r, slot, r->place[layer]);
    for (int64_t i = 0; i < (int64_t)r->c.n_gdn_value_heads * STATE; i++)
        s[i] = (double)state[i];
    for (int64_t i = 0; i < 3 * (int64_t)config_conv_dim(&r->c); i++)
        window[i] = (double)rows[i];
    return STATUS_OK;
}

/* ---- opening ---- */

static int32_t max_of(const int32_t *a, size_t n) {
    int32_t best = a[0];
    for (size_t i = 1; i < n; i++)
        best = max_i32(best, a[i]);
    return best;
}

/* Everything that follows from counts and plan alone. */
static void ref_init(Ref *r, const ModelConfig *c, const BackendPlan *plan) {
    *r = (Ref){.c = *c, .plan = *plan};
    r->plan.mask = NULL;
    int32_t n_kind[2] = {0, 0};
    for (int32_t l = 0; l < c->n_layers; l++)
        r->place[l] = n_kind[c->is_attn[l]]++;
    r->n_gdn = n_kind[false];
    r->n_attn = n_kind[true];
    for (int j = 0; j < ROPE_DIMS / 2; j++)
        r->rope_freq[j] = pow(c->rope_theta, -2.0 * j / ROPE_DIMS);
    int32_t k[] = {c->hidden, config_gdn_value_dim(c), config_q_dim(c), c->expert_inner,
                   c->shared_inner};
    int32_t values[] = {c->hidden, config_conv_dim(c), config_q_dim(c), c->n_experts};
    r->widest_k = max_of(k, COUNT_OF(k));
    r->widest_value = max_of(values, COUNT_OF(values));
}

static void carve_scratch(Ref *r, Carver *s) {
    const ModelConfig *c = &r->c;
    size_t m = (size_t)r->plan.max_rows, mk = m * (size_t)c->top_k;
    size_t n_threads = (size_t)(r->plan.n_threads ? r->plan.n_threads : LIMIT_THREADS);
    int32_t kd = config_gdn_key_dim(c), vd = config_gdn_value_dim(c), cc = config_conv_dim(c);
    int32_t qd = config_q_dim(c), kv = config_kv_dim(c), hv = c->n_gdn_value_heads;
    int32_t inner = max_i32(c->expert_inner, c->shared_inner);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++) {
        r->done[i].results = carve(s, (size_t)r->plan.max_seqs, sizeof(BatchResult));
        r->done[i].logits = carve(s, (size_t)r->plan.max_logits * (size_t)c->vocab, sizeof(float));
    }
    r->row_seq = carve(s, m, sizeof(int32_t));
    r->row_pos = carve(s, m, sizeof(int32_t));
    Real **hidden[] = {&r->x,          &r->u,          &r->branch, &r->expert_in,
                       &r->expert_out, &r->expert_sum, &r->shared};
    for (size_t i = 0; i < COUNT_OF(hidden); i++)
        *hidden[i] = carve_real(s, m, c->hidden);
    r->qkv = carve_real(s, m, cc);
    r->conv = carve_real(s, m, cc);
    r->z = carve_real(s, m, vd);
    r->a = carve_real(s, m, hv);
    r->b = carve_real(s, m, hv);
    r->gdn_q = carve_real(s, m, kd);
    r->gdn_k = carve_real(s, m, kd);
    r->g = carve_real(s, m, hv);
    r->beta = carve_real(s, m, hv);
    r->delta = carve_real(s, m, vd);
    r->gated = carve_real(s, m, vd);
    r->q_and_gate = carve_real(s, m, 2 * qd);
    r->q = carve_real(s, m, qd);
    r->gate = carve_real(s, m, qd);
    r->k = carve_real(s, m, kv);
    r->v = carve_real(s, m, kv);
    r->probs = carve_real(s, (size_t)c->n_q_heads, r->plan.max_ctx);
    r->heads = carve_real(s, m, qd);
    r->heads_gated = carve_real(s, m, qd);
    r->router = carve_real(s, m, c->n_experts);
    r->expert_id = carve(s, mk, sizeof(int32_t));
    r->expert_weight = carve_real(s, mk, 1);
    r->expert_y = carve_real(s, mk, c->hidden);
    r->pair = carve(s, mk, sizeof(int32_t));
    r->inner_gate = carve_real(s, m, inner);
    r->inner_up = carve_real(s, m, inner);
    r->shared_mix = carve_real(s, m, 1);
    r->head_row = carve(s, m, sizeof(int32_t));
    r->head_in = carve_real(s, HEAD_ROWS, c->hidden);
    r->head_out = carve_real(s, HEAD_ROWS, c->vocab);
    r->sample_logits = carve(s, (size_t)c->vocab, sizeof(float));
    r->weight_row = carve_real(s, n_threads, r->widest_k);
}

static Status ref_needs(BackendNeeds *out, const Weights *w, const BackendPlan *plan, Err *err) {
    UNUSED(err);
    Ref r;
    Carver scratch = {0};
    ref_init(&r, weights_config(w), plan);
    carve_scratch(&r, &scratch);
    *out = (BackendNeeds){.weight_bytes = ref_weights_bytes(w),
                          .block_bytes = block_bytes(&r),
                          .slot_bytes = slot_bytes(&r),
                          .sampler_bytes = sampler_bytes(r.c.vocab),
                          .scratch_bytes = scratch.used};
    return STATUS_OK;
}

static void ref_close(void *self) {
    Ref *r = self;
    if (!r)
        return;
    pool_close(r->pool);
    for (int32_t i = 0; r->samplers && i < r->plan.n_samplers; i++)
        sampler_close(r->samplers[i]);
    mem_free(r->samplers);
    ref_weights_close(&r->weights);
    mem_unmap(r->kv_map, r->kv_size);
    mem_unmap(r->slot_map, r->slot_size);
    mem_unmap(r->scratch_map, r->scratch_size);
    mem_free(r);
}

static Status map_bytes(char **out, size_t *size, size_t n, const char *what, Err *err) {
    *size = max_size(n, 1);
    *out = mem_map(*size);
    return *out ? STATUS_OK : err_memory(err, what, *size);
}

/* All memory but the weights', by the sizes that ref_needs says. */
static Status allocate(Ref *r, Err *err) {
    Carver count = {0};
    carve_scratch(r, &count);
    TRY(map_bytes(&r->scratch_map, &r->scratch_size, count.used, "scratch", err));
    carve_scratch(r, &(Carver){r->scratch_map, 0});
    TRY(map_bytes(&r->kv_map, &r->kv_size, (size_t)r->plan.n_blocks * block_bytes(r), "KV blocks",
                  err));
    TRY(map_bytes(&r->slot_map, &r->slot_size, (size_t)r->plan.n_slots * slot_bytes(r),
                  "state slots", err));
    r->samplers = mem_zalloc((size_t)r->plan.n_samplers, sizeof(Sampler *));
    if (!r->samplers)
        return err_memory(err, "samplers", (size_t)r->plan.n_samplers * sizeof(Sampler *));
    for (int32_t i = 0; i < r->plan.n_samplers; i++)
        TRY(sampler_open(&r->samplers[i], r->c.vocab, err));
    return STATUS_OK;
}

static Status ref_open(void **out, const Weights *w, const BackendPlan *plan,
                       const Progress *progress, const Log *log, Err *err) {
    UNUSED(log);
    Ref *r = mem_alloc(sizeof *r);
    if (!r)
        return err_memory(err, "backend", sizeof *r);
    ref_init(r, weights_config(w), plan);
    Status status = STATUS_OK;
    TRY_GOTO(status, pool_open(&r->pool, plan->n_threads, err));
    TRY_GOTO(status, allocate(r, err));
    TRY_GOTO(status, ref_weights_open(&r->weights, w, r->pool, progress, err));
    snprintf(r->text, sizeof r->text, REF_NAME ": plain C, f%d, %d threads", (int)sizeof(Real) * 8,
             pool_n_members(r->pool));
    *out = r;
    return STATUS_OK;
fail:
    ref_close(r);
    return status;
}

static const char *ref_text(const void *self) { return ((const Ref *)self)->text; }

const BackendTable REF_TABLE = {
    .kind = REF_KIND,
    .needs = ref_needs,
    .open = ref_open,
    .close = ref_close,
    .text = ref_text,
    .submit = ref_submit,
    .wait = ref_wait,
    .sampler_set = ref_sampler_set,
    .slot_copy = ref_slot_copy,
    .copy_begin = ref_copy_begin,
    .slot_host_bytes = ref_slot_host_bytes,
    .block_host_bytes = ref_block_host_bytes,
    .slot_peek = ref_slot_peek,
};
