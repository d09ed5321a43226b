// SPDX-License-Identifier: Apache-2.0
/* ref_weights.c - reading every slot of a checkpoint into one mapping.
 *
 * Path:     ref.c opens it with the pool that also runs the model.
 * Owns:     the mapping.  Thread: see ref_weights.h. */
#include "backend/ref/ref_weights.h"

#include "base/checked.h"
#include "base/mem.h"

#include <pthread.h>

enum { LOAD_PIECE = 4 << 20 }; // bytes of codes that one job reads

/* Memory that is counted first and handed out on the second walk. */
typedef struct Carver {
    char *base; // NULL: only count
    size_t used;
} Carver;

static void *carve(Carver *c, size_t n, size_t size) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up_size(n * size, MEM_ALIGN);
    return p;
}

static bool slot_exists(const ModelConfig *c, int slot, int layer) {
    if (layer < 0)
        return slot == SLOT_EMBED || slot == SLOT_FINAL_NORM || (slot == SLOT_HEAD && !c->is_tied);
    if (slot >= SLOT_ATTN_Q)
        return c->is_attn[layer];
    if (slot >= SLOT_GDN_QKV)
        return !c->is_attn[layer];
    return slot >= SLOT_INPUT_NORM;
}

/* Room for the slots of a layer. */
static void carve_layer(RefLayer *out, Carver *c, const Weights *w, int layer) {
    for (int slot = 0; slot < SLOT_N; slot++) {
        if (!slot_exists(weights_config(w), slot, layer))
            continue;
        WeightInfo i = weights_info(w, (WeightSlot)slot, layer);
        size_t n = (size_t)i.n_experts * (size_t)i.n, k = (size_t)i.k;
        if (i.bits == 0) {
            out->plain[slot] = carve(c, n * k, sizeof(float));
            continue;
        }
        RefMatrix *m = &out->matrix[slot];
        m->info = i;
        m->q = carve(c, n * (k * (size_t)i.bits / 32), sizeof *m->q);
        m->scale = carve(c, n * (k / (size_t)i.group), sizeof *m->scale);
        m->bias = carve(c, n * (k / (size_t)i.group), sizeof *m->bias);
    }
}

/* One slot that is read in pieces by all threads. */
typedef struct Load {
    const Weights *w;
    WeightSlot slot;
    int layer;
    const RefMatrix *m;
    int64_t piece_rows;
    pthread_mutex_t lock; // of what follows
    int64_t failed_job;   // the lowest; -1: none
    Err err;
} Load;

static void load_job(void *ctx, int64_t job, int member) {
    UNUSED(member);
    Load *t = ctx;
    const WeightInfo *i = &t->m->info;
    int64_t all = (int64_t)i->n_experts * i->n, row = job * t->piece_rows;
    int64_t n = all - row < t->piece_rows ? all - row : t->piece_rows;
    int64_t words = i->k / (32 / i->bits), groups = i->k / i->group;
    Err err = {0};
    if (weights_read_quant(t->w, t->slot, t->layer, row, n, t->m->q + row * words,
                           t->m->scale + row * groups, t->m->bias + row * groups,
                           &err) == STATUS_OK)
        return;
    pthread_mutex_lock(&t->lock);
    if (t->failed_job < 0 || job < t->failed_job) {
        t->failed_job = job;
        t->err = err;
    }
    pthread_mutex_unlock(&t->lock);
}

static Status load_matrix(Pool *pool, const Weights *w, WeightSlot slot, int layer,
                          const RefMatrix *m, Err *err) {
    Load t = {.w = w, .slot = slot, .layer = layer, .m = m, .failed_job = -1};
    int64_t all = (int64_t)m->info.n_experts * m->info.n;
    int64_t row_bytes = (int64_t)m->info.k * m->info.bits / 8;
    t.piece_rows = row_bytes < LOAD_PIECE ? LOAD_PIECE / row_bytes : 1;
    if (pthread_mutex_init(&t.lock, NULL) != 0)
        return err_set(err, STATUS_MEMORY, "cannot make a lock");
    pool_jobs(pool, (all + t.piece_rows - 1) / t.piece_rows, load_job, &t);
    pthread_mutex_destroy(&t.lock);
    return t.failed_job < 0 ? STATUS_OK : err_set(err, t.err.code, "%s", t.err.text);
}

/* Layer l, or the model's own for -1. */
static RefLayer *layer_at(RefWeights *r, int l) { return l < 0 ? &r->model : &r->layers[l]; }

uint64_t ref_weights_bytes(const Weights *w) {
    Carver count = {0};
    RefLayer unused;
    for (int l = -1; l < weights_config(w)->n_layers; l++)
        carve_layer(&unused, &count, w, l);
    return count.used;
}

void ref_weights_close(RefWeights *r) {
    mem_unmap(r->map, r->map_bytes);
    mem_free(r->layers);
}

Status ref_weights_open(RefWeights *out, const Weights *w, Pool *pool, const Progress *progress,
                        Err *err) {
    uint64_t done = 0, total = weights_total_bytes(w);
    *out = (RefWeights){.n_layers = weights_config(w)->n_layers,
                        .map_bytes = (size_t)ref_weights_bytes(w)};
    out->layers = mem_zalloc((size_t)out->n_layers, sizeof *out->layers);
    if (!out->layers)
        return err_memory(err, "layers", (size_t)out->n_layers * sizeof *out->layers);
    out->map = mem_map(out->map_bytes);
    if (!out->map)
        return err_memory(err, "weights", out->map_bytes);
    Carver carver = {out->map, 0};
    for (int l = -1; l < out->n_layers; l++)
        carve_layer(layer_at(out, l), &carver, w, l);
    for (int l = -1; l < out->n_layers; l++)
        for (int slot = 0; slot < SLOT_N; slot++) {
            const RefMatrix *m = &layer_at(out, l)->matrix[slot];
            float *plain = layer_at(out, l)->plain[slot];
            if (!m->q && !plain)
                continue;
            if (m->q)
                TRY(load_matrix(pool, w, (WeightSlot)slot, l, m, err));
            else
                TRY(weights_read_plain(w, (WeightSlot)slot, l, plain, err));
            done += weights_info(w, (WeightSlot)slot, l).n_bytes;
            if (progress && progress->report)
                progress->report(progress->ctx, "weights", done, total);
        }
    return STATUS_OK;
}
