// SPDX-License-Identifier: Apache-2.0
/* cpu_gdn.c - the gated delta net between its projections: convolution, gates, delta rule, norm.
 *
 * Path:     cpu_decode.c and cpu_prefill.c call it for each key head of each sequence.
 * Owns:     nothing.  Thread: any member; a key head's channels, state and window belong to the
 *           member that runs it.
 * Not here: arithmetic of one head (recur_*.c). */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { W = GDN_HEAD, C = RECUR_CHUNK, HISTORY = CONV_TAPS - 1 };

/* A member's scratch for one chunk of one key head. */
typedef struct Chunk {
    const float *rows[C + HISTORY + 5]; // of one head's channels, history first; whole lines
    float q[C * W], k[C * W], v[C * W], o[C * W];
    float kk[C * C], qk[C * C];
    float g[C], beta[C];
    float kernel[]; // the kernel's own
} Chunk;

static_assert(offsetof(Chunk, kernel) % 64 == 0, "kernels are promised whole lines");

size_t cpu_gdn_scratch_floats(const Cpu *b) {
    size_t bytes = sizeof(Chunk) + b->k.recur.chunk_scratch_bytes();
    return round_up_size(bytes, 64) / sizeof(float);
}

/* One head's 128 channels of the convolution. */
typedef struct Channels {
    const float *proj; // [m][ld] row 0 of this call at its first channel
    ptrdiff_t ld;
    float *window;        // [3][cc] at its first channel
    const float *weights; // [4][cc] at its first channel
    ptrdiff_t cc;
} Channels;

/* Row `row` of (window ++ projections), row 0 the first projection. */
static const float *channels_row(const Channels *ch, int32_t row) {
    return row >= 0 ? ch->proj + row * ch->ld : ch->window + (row + HISTORY) * ch->cc;
}

/* Leaves the last three rows of (window ++ m projections) in the window. */
static void channels_keep(const Channels *ch, int32_t m) {
    for (int32_t i = 0; i < HISTORY; i++) // ascending: a row is read before it is overwritten
        memcpy(ch->window + i * ch->cc, channels_row(ch, m + i - HISTORY), W * sizeof(float));
}

/* out [m][128]: convolution and SiLU of rows [t0, t0 + m); next as in RecurKernels. */
static void channels_conv(const Cpu *b, Chunk *work, float *out, const Channels *ch, int32_t t0,
                          int32_t m, ptrdiff_t next) {
    for (int32_t i = 0; i < m + HISTORY; i++)
        work->rows[i] = channels_row(ch, t0 + i - HISTORY);
    b->k.recur.conv(out, work->rows, ch->weights, ch->cc, m, next);
}

/* A head: where its parts stand in the projections. */
typedef struct Head {
    const CpuLayer *l;
    int32_t slot;
    const float *proj; // [m][ld] whole rows
    ptrdiff_t ld;
} Head;

static int32_t value_heads(const Cpu *b) { // of one key head
    return b->c.n_gdn_value_heads / b->c.n_gdn_key_heads;
}

float *cpu_gdn_state(const Cpu *b, const CpuLayer *l, int32_t slot, int32_t key_head) {
    return cpu_state(b, l, slot) + (size_t)(key_head * value_heads(b)) * STATE_ELEMENTS;
}

static Channels head_channels(const Cpu *b, const Head *h, ptrdiff_t channel) {
    return (Channels){.proj = h->proj + channel,
                      .ld = h->ld,
                      .window = cpu_window(b, h->l, h->slot) + channel,
                      .weights = h->l->plain[SLOT_GDN_CONV] + channel,
                      .cc = config_conv_dim(&b->c)};
}

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* Log decays and betas of value head hv for rows [t0, t0 + m). */
static void head_gates(const Head *h, Chunk *work, int32_t hv, int32_t t0, int32_t m) {
    StagePart parts[STAGE_PARTS];
    cpu_stage_mixer(h->l, parts); // qkv, z, a, b
    float rate = h->l->plain[SLOT_GDN_A_LOG][hv], shift = h->l->plain[SLOT_GDN_DT_BIAS][hv];
    for (int32_t t = 0; t < m; t++) { // each from lines of its own: all asked for together
        const float *row = h->proj + (t0 + t) * h->ld;
        work->g[t] = row[parts[2].column + hv];
        work->beta[t] = row[parts[3].column + hv];
    }
    for (int32_t t = 0; t < m; t++) {
        work->g[t] = rate * softplus(work->g[t] + shift);
        work->beta[t] = 1.0f / (1.0f + expf(-work->beta[t]));
    }
}

/* Value head number `i` of the job's key head for rows [t0, t0 + m), from the key head's q and k.
 */
static void head_value(const Cpu *b, const Head *h, Chunk *work, const GdnJob *job, int32_t i,
                       int32_t t0, int32_t m) {
    int32_t hv = job->key_head * value_heads(b) + i;
    const RecurKernels *r = &b->k.recur;
    Channels v = head_channels(b, h, 2 * config_gdn_key_dim(&b->c) + hv * W);
    const float *z = h->proj + t0 * h->ld + config_conv_dim(&b->c) + hv * W;
    channels_conv(b, work, work->v, &v, t0, m, z - (v.proj + t0 * v.ld));
    head_gates(h, work, hv, t0, m);
    float *state = cpu_state(b, h->l, h->slot) + (size_t)hv * STATE_ELEMENTS;
    if (job->seq->phase == PHASE_DECODE)
        r->step(state, work->o, work->q, work->k, work->v, expf(work->g[0]), work->beta[0],
                i + 1 < value_heads(b) ? state + STATE_ELEMENTS : job->next);
    else
        r->chunk(state, work->o, work->q, work->k, work->v, work->g, work->beta, work->kk, work->qk,
                 m, work->kernel);
    ptrdiff_t next = 0; // the next value head's channels, or those of q in the next chunk
    if (i + 1 < value_heads(b))
        next = v.proj + t0 * v.ld + W - z;
    else if (t0 + m + C <= job->m)
        next = h->proj + (t0 + m) * h->ld + job->key_head * W - z;
    r->gate(work->o, work->o, h->l->plain[SLOT_GDN_NORM], z, h->ld, (float)b->c.rms_eps, m, next);
    cpu_put_rows(b, &(RowsPut){.phase = job->seq->phase,
                               .rows = b->s.inner,
                               .bytes = b->inner_bytes,
                               .n_groups = h->l->m[SLOT_GDN_OUT].n_groups,
                               .row = job->row + t0,
                               .m = m,
                               .group = hv * W / GROUP_INPUTS,
                               .n = W / GROUP_INPUTS,
                               .x = work->o,
                               .ldx = W});
}

/* Leaves the windows of a key head's channels as they are behind m rows in h->slot. */
static void head_keep(const Cpu *b, const Head *h, int32_t key_head, int32_t m) {
    int32_t share = value_heads(b);
    int32_t kd = config_gdn_key_dim(&b->c);
    Channels q = head_channels(b, h, key_head * W), k = head_channels(b, h, kd + key_head * W);
    channels_keep(&q, m);
    channels_keep(&k, m);
    for (int32_t i = 0; i < share; i++) {
        Channels v = head_channels(b, h, 2 * kd + (key_head * share + i) * W);
        channels_keep(&v, m);
    }
}

/* Clears a key head's part of the state and the windows of its channels: a new sequence. Here and
 * not at the beginning of the step, so that all members do it, and its zeros are still near when
 * they are read. */
static void head_clear(const Cpu *b, const Head *h, int32_t key_head) {
    int32_t share = value_heads(b), kd = config_gdn_key_dim(&b->c);
    memset(cpu_gdn_state(b, h->l, h->slot, key_head), 0,
           (size_t)share * STATE_ELEMENTS * sizeof(float));
    float *window = cpu_window(b, h->l, h->slot);
    for (int32_t i = 0; i < HISTORY; i++, window += config_conv_dim(&b->c)) {
        memset(window + key_head * W, 0, W * sizeof *window);
        memset(window + kd + key_head * W, 0, W * sizeof *window);
        memset(window + 2 * kd + key_head * share * W, 0, (size_t)share * W * sizeof *window);
    }
}

/* Copies a key head's part of the state, as it is behind m rows, to the snapshot's slot. */
static void head_snap(const Cpu *b, const Head *h, int32_t to, int32_t key_head, int32_t m) {
    int32_t share = value_heads(b);
    size_t first = (size_t)(key_head * share) * STATE_ELEMENTS;
    memcpy(cpu_state(b, h->l, to) + first, cpu_state(b, h->l, h->slot) + first,
           (size_t)share * STATE_ELEMENTS * sizeof(float));
    Head copy = *h;
    copy.slot = to;
    head_keep(b, &copy, key_head, m); // m >= 64: reads nothing of the slot's old window
}

/* Says that a key head has left rows [row, row + m) of prompts for the last projection. */
static void rows_done(const Cpu *b, int32_t row, int32_t m) {
    for (int32_t end = row + m; row < end;) {
        int32_t block = row / PRODUCT_ROWS, next = min_i32(end, (block + 1) * PRODUCT_ROWS);
        atomic_fetch_add(&b->s.rows_done[block], next - row);
        row = next;
    }
}

void cpu_gdn_head(const Cpu *b, CpuMember *me, const GdnJob *job) {
    Chunk *work = (Chunk *)me->gdn;
    const BatchSeq *seq = job->seq;
    Head h = {job->l, seq->slot, job->proj, b->proj_width};
    int32_t n_taken = 0;
    Channels q = head_channels(b, &h, job->key_head * W);
    int32_t kd = config_gdn_key_dim(&b->c);
    Channels k = head_channels(b, &h, kd + job->key_head * W);
    const float *first_v = job->proj + 2 * kd + job->key_head * value_heads(b) * W;
    if (seq->pos0 == 0)
        head_clear(b, &h, job->key_head);
    for (int32_t t0 = 0; t0 < job->m; t0 += C) {
        int32_t n = min_i32(C, job->m - t0);
        channels_conv(b, work, work->q, &q, t0, n, k.proj - q.proj);
        channels_conv(b, work, work->k, &k, t0, n, first_v - k.proj);
        b->k.recur.unit(work->q, 0.088388347648318447f, n); // 128^-0.5
        b->k.recur.unit(work->k, 1.0f, n);
        if (seq->phase == PHASE_PREFILL)
            b->k.recur.gram(work->kk, work->qk, work->q, work->k, n, work->kernel);
        for (int32_t i = 0; i < value_heads(b); i++)
            head_value(b, &h, work, job, i, t0, n);
        if (seq->phase == PHASE_PREFILL)
            rows_done(b, job->row + t0, n);
        if (n_taken < seq->n_snaps && seq->pos0 + t0 + n == seq->snaps[n_taken].pos)
            head_snap(b, &h, seq->snaps[n_taken++].slot, job->key_head, t0 + n);
    }
    head_keep(b, &h, job->key_head, job->m);
}
