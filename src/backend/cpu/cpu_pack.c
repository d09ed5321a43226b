// SPDX-License-Identifier: Apache-2.0
/* cpu_pack.c - from rows of a checkpoint to tiles, piece by piece on all threads.
 *
 * Owns:     piece buffers while it packs.  Thread: see header.
 * Not here: the meaning of a tile (kernels.h). */
#include "backend/cpu/cpu_pack.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/vec.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 }; // codes read at once: long enough to stream, small beside L2

/* ---- one strip ---- */

/* In each word of 8 codes: nibbles 0..3 into the low halves of four bytes, 4..7 into the high. */
static U32x4 spread_q4(U32x4 words) {
    U32x4 low = words & 0xffffu, high = words >> 16;
    low = (low | low << 8) & 0x00ff00ffu;
    low = (low | low << 4) & 0x0f0f0f0fu;
    high = (high | high << 8) & 0x00ff00ffu;
    high = (high | high << 4) & 0x0f0f0f0fu;
    return low | high << 4;
}

/* Lanes r..r + 3 of all lines of a tile from four rows of words. */
static void pack_lanes(uint32_t *lines, const uint32_t *const rows[4], int32_t n_lines,
                       int32_t bits) {
    for (int32_t c = 0; c < n_lines; c += 4, lines += 4 * STRIP_ROWS) {
        U32x4 m[4];
        for (int i = 0; i < 4; i++) {
            U32x4 words = vec_load_u32(rows[i] + c);
            m[i] = bits == 4 ? spread_q4(words) : words;
        }
        vec_transpose_u32(m);
        for (int i = 0; i < 4; i++)
            vec_store_u32(lines + i * STRIP_ROWS, m[i]);
    }
}

void cpu_pack_strip(uint8_t *strip, const uint32_t *q, const uint16_t *scale, const uint16_t *bias,
                    int32_t n_rows, int32_t n_groups, int32_t bits, int32_t group) {
    static const uint32_t no_codes[GROUP_INPUTS / 4] = {0};
    int32_t n_lines = bits == 4 ? GROUP_INPUTS / 8 : GROUP_INPUTS / 4;
    size_t bytes = tile_bytes(bits), row_words = (size_t)n_groups * (size_t)n_lines;
    size_t per = (size_t)group / GROUP_INPUTS, row_scales = (size_t)n_groups / per;
    for (size_t g = 0; g < (size_t)n_groups; g++, strip += bytes) {
        for (int32_t r = 0; r < STRIP_ROWS; r += 4) {
            const uint32_t *rows[4];
            for (int32_t i = 0; i < 4; i++)
                rows[i] = r + i < n_rows ? q + (size_t)(r + i) * row_words + g * (size_t)n_lines
                                         : no_codes;
            pack_lanes((uint32_t *)strip + r, rows, n_lines, bits);
        }
        uint16_t *scales = (uint16_t *)(strip + bytes - TILE_SCALES);
        for (int32_t r = 0; r < STRIP_ROWS; r++) {
            size_t at = (size_t)r * row_scales + g / per;
            scales[r] = r < n_rows ? scale[at] : 0;
            scales[STRIP_ROWS + r] = r < n_rows ? bias[at] : 0;
        }
    }
}

void cpu_pack_row(float *out, const PackedMatrix *m, int32_t row) {
    const uint8_t *tile = m->tiles + (size_t)(row / STRIP_ROWS) * m->strip_bytes;
    size_t bytes = tile_bytes(m->bits), r = (size_t)(row % STRIP_ROWS);
    for (int32_t g = 0; g < m->n_groups; g++, tile += bytes, out += GROUP_INPUTS) {
        const uint8_t *lane = tile + 4 * r;
        const uint16_t *scales = (const uint16_t *)(tile + bytes - TILE_SCALES);
        float scale = bf16_to_f32(scales[r]), bias = bf16_to_f32(scales[STRIP_ROWS + r]);
        for (int k = 0; k < GROUP_INPUTS; k++) {
            uint32_t code = m->bits == 4 ? lane[k / 8 * 64 + k % 4] >> (k % 8 / 4 * 4) & 15u
                                         : lane[k / 4 * 64 + k % 4];
            out[k] = (float)((double)scale * code + (double)bias); // exact before the one rounding
        }
    }
}

/* ---- layout ---- */

/* Hands out places behind base, 64-byte aligned. */
typedef struct Cursor {
    uint8_t *base;
    size_t used;
} Cursor;

static void *cursor_take(Cursor *c, size_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += round_up_size(size, 64);
    return at;
}

static bool slot_is_in_layer(WeightSlot slot, bool is_attn) {
    if (slot < SLOT_INPUT_NORM)
        return false;
    if (slot < SLOT_GDN_QKV)
        return true;
    return is_attn == (slot >= SLOT_ATTN_Q);
}

static Status slot_layout(CpuLayer *l, Cursor *c, const Weights *w, WeightSlot slot, int layer,
                          Err *err) {
    WeightInfo info = weights_info(w, slot, layer);
    if (info.bits == 0) {
        l->plain[slot] = cursor_take(c, sizeof(float) * (size_t)info.n * (size_t)info.k);
        return STATUS_OK;
    }
    if (info.group != GROUP_INPUTS && info.group != 2 * GROUP_INPUTS) {
        char name[128];
        weights_slot_name(name, sizeof name, slot, layer);
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: backend cpu runs groups of 64 and 128, found %d", name, info.group);
    }
    PackedMatrix *m = &l->m[slot];
    *m = (PackedMatrix){.n_experts = info.n_experts,
                        .n = info.n,
                        .n_strips = div_up_i32(info.n, STRIP_ROWS),
                        .n_groups = info.k / GROUP_INPUTS,
                        .bits = info.bits};
    m->strip_bytes = (size_t)m->n_groups * tile_bytes(info.bits);
    m->expert_bytes = m->strip_bytes * (size_t)m->n_strips;
    m->tiles = cursor_take(c, m->expert_bytes * (size_t)info.n_experts);
    return STATUS_OK;
}

Status cpu_pack_layout(CpuModel *out, size_t *size, const Weights *w, uint8_t *base, Err *err) {
    const ModelConfig *config = weights_config(w);
    Cursor c = {base, 0};
    memset(out, 0, sizeof *out);
    out->n_layers = config->n_layers;
    TRY(slot_layout(&out->top, &c, w, SLOT_EMBED, -1, err));
    TRY(slot_layout(&out->top, &c, w, SLOT_FINAL_NORM, -1, err));
    if (config->is_tied)
        out->top.m[SLOT_HEAD] = out->top.m[SLOT_EMBED];
    else
        TRY(slot_layout(&out->top, &c, w, SLOT_HEAD, -1, err));
    int32_t n_of_kind[2] = {0, 0};
    for (int32_t layer = 0; layer < config->n_layers; layer++) {
        CpuLayer *l = &out->layers[layer];
        l->is_attn = config->is_attn[layer];
        l->place = n_of_kind[l->is_attn]++;
        for (WeightSlot slot = 0; slot < SLOT_N; slot++)
            if (slot_is_in_layer(slot, l->is_attn))
                TRY(slot_layout(l, &c, w, slot, layer, err));
    }
    *size = c.used;
    return STATUS_OK;
}

/* ---- packing ---- */

/* A tensor in the order in which it is read. */
typedef struct Source {
    WeightSlot slot;
    int32_t layer;
    const CpuLayer *place;
    WeightInfo info;
    int32_t piece_rows;  // of one job; all rows of experts that fit whole, or a part of one
    int64_t first_job;   // jobs of the tensors before
    int64_t n_pieces;    // of one expert (or of all, when they are one run of strips)
    int64_t rows_of_run; // rows that are packed as one run of strips: n, or n_experts * n
} Source;

typedef struct PieceBuffer {
    uint32_t *q;
    uint16_t *scale, *bias;
} PieceBuffer;

typedef struct PackRun {
    const Weights *w;
    const Progress *progress;
    Source *sources;
    int32_t n_sources;
    int64_t n_jobs;
    size_t q_bytes, scale_bytes; // of one piece at most
    PieceBuffer *buffers;        // [members]
    uint64_t total_bytes;
    atomic_bool has_failed;
    pthread_mutex_t lock; // guards done_bytes, err, status, and calls of progress
    uint64_t done_bytes;
    Status status;
    Err err;
} PackRun;

static void run_add_source(PackRun *run, const CpuLayer *place, WeightSlot slot, int32_t layer) {
    WeightInfo info = weights_info(run->w, slot, layer);
    Source *s = &run->sources[run->n_sources++];
    *s = (Source){.slot = slot, .layer = layer, .place = place, .info = info, .n_pieces = 1};
    s->first_job = run->n_jobs;
    s->rows_of_run = info.n;
    int64_t n_runs = 1;
    if (info.bits) {
        if (info.n % STRIP_ROWS == 0)
            s->rows_of_run *= info.n_experts;
        else
            n_runs = info.n_experts;
        size_t row_bytes = (size_t)info.k * (size_t)info.bits / 8;
        size_t rows = max_size(PIECE_BYTES / row_bytes / STRIP_ROWS, 1) * STRIP_ROWS;
        s->piece_rows = (int32_t)min_size(rows, (size_t)s->rows_of_run);
        s->n_pieces = (s->rows_of_run + s->piece_rows - 1) / s->piece_rows;
        size_t n_scales = (size_t)s->piece_rows * (size_t)(info.k / info.group);
        run->q_bytes = max_size(run->q_bytes, (size_t)s->piece_rows * row_bytes);
        run->scale_bytes = max_size(run->scale_bytes, n_scales * sizeof(uint16_t));
    }
    run->n_jobs += n_runs * s->n_pieces;
}

static Status pack_plain(const PackRun *run, const Source *s, Err *err) {
    float *to = s->place->plain[s->slot];
    TRY(weights_read_plain(run->w, s->slot, s->layer, to, err));
    int32_t n = s->info.n;
    if (s->slot == SLOT_GDN_A_LOG)
        for (int32_t i = 0; i < n; i++)
            to[i] = -expf(to[i]);
    if (s->slot == SLOT_GDN_CONV) {
        float *copy = mem_alloc(sizeof(float) * (size_t)n * CONV_TAPS);
        if (!copy)
            return err_memory(err, "convolution weights", sizeof(float) * (size_t)n * CONV_TAPS);
        memcpy(copy, to, sizeof(float) * (size_t)n * CONV_TAPS);
        for (int32_t c = 0; c < n; c++)
            for (int32_t tap = 0; tap < CONV_TAPS; tap++)
                to[(size_t)tap * (size_t)n + (size_t)c] = copy[(size_t)c * CONV_TAPS + (size_t)tap];
        mem_free(copy);
    }
    return STATUS_OK;
}

/* Piece number `piece` of a quantised tensor; *bytes is its size in the checkpoint. */
static Status pack_piece(const PackRun *run, const Source *s, int64_t piece,
                         const PieceBuffer *buffer, uint64_t *bytes, Err *err) {
    const WeightInfo *info = &s->info;
    const PackedMatrix *m = &s->place->m[s->slot];
    int64_t expert = piece / s->n_pieces, at = piece % s->n_pieces * s->piece_rows;
    int64_t n = s->rows_of_run - at < s->piece_rows ? s->rows_of_run - at : s->piece_rows;
    TRY(weights_read_quant(run->w, s->slot, s->layer, expert * info->n + at, n, buffer->q,
                           buffer->scale, buffer->bias, err));
    uint8_t *to =
        m->tiles + (size_t)expert * m->expert_bytes + (size_t)(at / STRIP_ROWS) * m->strip_bytes;
    size_t words = (size_t)info->k * (size_t)info->bits / 32;
    size_t scales = (size_t)(info->k / info->group);
    for (int64_t row = 0; row < n; row += STRIP_ROWS, to += m->strip_bytes) {
        int32_t rows = (int32_t)(n - row < STRIP_ROWS ? n - row : STRIP_ROWS);
        cpu_pack_strip(to, buffer->q + (size_t)row * words, buffer->scale + (size_t)row * scales,
                       buffer->bias + (size_t)row * scales, rows, m->n_groups, m->bits,
                       info->group);
    }
    *bytes = (uint64_t)n * (words * sizeof(uint32_t) + 2 * scales * sizeof(uint16_t));
    return STATUS_OK;
}

static const Source *run_find_source(const PackRun *run, int64_t job) {
    int32_t low = 0, high = run->n_sources;
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (run->sources[mid].first_job <= job)
            low = mid;
        else
            high = mid;
    }
    return &run->sources[low];
}

static void pack_job(void *ctx, int64_t job, int member) {
    PackRun *run = ctx;
    if (atomic_load_explicit(&run->has_failed, memory_order_relaxed))
        return;
    const Source *s = run_find_source(run, job);
    uint64_t bytes = s->info.n_bytes;
    Err err = {0};
    Status status =
        s->info.bits ? pack_piece(run, s, job - s->first_job, &run->buffers[member], &bytes, &err)
                     : pack_plain(run, s, &err);
    pthread_mutex_lock(&run->lock);
    if (status != STATUS_OK) {
        if (!atomic_exchange(&run->has_failed, true)) {
            run->status = status;
            run->err = err;
        }
    } else {
        run->done_bytes += bytes;
        if (run->progress && run->progress->report)
            run->progress->report(run->progress->ctx, "weights", run->done_bytes, run->total_bytes);
    }
    pthread_mutex_unlock(&run->lock);
}

static void run_list_sources(PackRun *run, const CpuModel *model) {
    const ModelConfig *config = weights_config(run->w);
    run_add_source(run, &model->top, SLOT_EMBED, -1);
    if (!config->is_tied)
        run_add_source(run, &model->top, SLOT_HEAD, -1);
    run_add_source(run, &model->top, SLOT_FINAL_NORM, -1);
    for (int32_t layer = 0; layer < config->n_layers; layer++)
        for (WeightSlot slot = 0; slot < SLOT_N; slot++)
            if (slot_is_in_layer(slot, config->is_attn[layer]))
                run_add_source(run, &model->layers[layer], slot, layer);
    for (int32_t i = 0; i < run->n_sources; i++)
        run->total_bytes += run->sources[i].info.n_bytes;
}

/* The end of the weights' memory, which begins with the embedding. */
static const uint8_t *run_end(const PackRun *run) {
    const uint8_t *end = NULL;
    for (int32_t i = 0; i < run->n_sources; i++) {
        const Source *s = &run->sources[i];
        const PackedMatrix *m = &s->place->m[s->slot];
        const uint8_t *own = s->info.bits
                                 ? m->tiles + m->expert_bytes * (size_t)m->n_experts
                                 : (const uint8_t *)(s->place->plain[s->slot] +
                                                     (size_t)s->info.n * (size_t)s->info.k);
        end = own > end ? own : end;
    }
    return end;
}

Status cpu_pack_model(const CpuModel *model, const Weights *w, Pool *pool, const Progress *progress,
                      Err *err) {
    PackRun run = {.w = w, .progress = progress, .lock = PTHREAD_MUTEX_INITIALIZER};
    size_t n_sources = (size_t)(model->n_layers + 1) * SLOT_N;
    int n_members = pool_n_members(pool);
    Status status;
    run.sources = mem_zalloc(n_sources, sizeof *run.sources);
    run.buffers = mem_zalloc((size_t)n_members, sizeof *run.buffers);
    if (!run.sources || !run.buffers) {
        status = err_memory(err, "packing", n_sources * sizeof *run.sources);
        goto done;
    }
    run_list_sources(&run, model);
    uint8_t *base = model->top.m[SLOT_EMBED].tiles;
    numa_spread(base, (size_t)(run_end(&run) - base), NUMA_ROOT);
    for (int i = 0; i < n_members; i++) {
        run.buffers[i].q = mem_alloc_aligned(run.q_bytes);
        run.buffers[i].scale = mem_alloc_aligned(run.scale_bytes);
        run.buffers[i].bias = mem_alloc_aligned(run.scale_bytes);
        if (!run.buffers[i].q || !run.buffers[i].scale || !run.buffers[i].bias) {
            status = err_memory(err, "packing", run.q_bytes + 2 * run.scale_bytes);
            goto done;
        }
    }
    pool_jobs(pool, run.n_jobs, pack_job, &run);
    status = run.status;
    if (status != STATUS_OK && err)
        *err = run.err;
done:
    for (int i = 0; run.buffers && i < n_members; i++) {
        mem_free(run.buffers[i].q);
        mem_free(run.buffers[i].scale);
        mem_free(run.buffers[i].bias);
    }
    mem_free(run.buffers);
    mem_free(run.sources);
    return status;
}
