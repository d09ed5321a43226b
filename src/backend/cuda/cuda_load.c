// SPDX-License-Identifier: Apache-2.0
/* cuda_load.c - weights from the checkpoint to the card: rows are read into pinned memory by
 * several threads, copied, and packed by a kernel into their place.
 *
 * Path:     cuda.c calls check before anything, place twice (to count, to hand out), fill once.
 * Owns:     staging memory while it fills.  Thread: engine and a pool.
 * Not here: the packed layout (cuda_layout.h, cuda_pack.cu). */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/checked.h"
#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum {
    PARTS = 4,       // slots that make one packed matrix
    LIST = 8,        // packed matrices of a layer
    PIECE = 8 << 20, // bytes of codes that one job reads
};

/* A slot's rows inside a packed matrix. */
typedef struct Part {
    WeightSlot slot;
    int64_t dest;       // packed row of its first row
    int32_t interleave; // as in CudaPack
} Part;

typedef struct Built {
    CudaMatrix *to;
    int32_t n, k, bits;
    int n_parts;
    Part part[PARTS];
} Built;

typedef struct Plain {
    float **to;
    WeightSlot slot;
    int32_t n;
} Plain;

static Built built(CudaMatrix *to, int64_t n, int32_t k, int32_t bits, WeightSlot slot) {
    return (Built){to, (int32_t)n, k, bits, 1, {{slot, 0, 0}}};
}

static Built built_pair(CudaMatrix *to, int64_t n, int32_t k, WeightSlot gate, WeightSlot up) {
    return (Built){to, (int32_t)n, k, 4, 2, {{gate, 0, 1}, {up, 0, 2}}};
}

/* The packed matrices of a layer; -1: of the model. */
static int list_matrices(const ModelConfig *c, int layer, CudaLayer *l, CudaMatrix *embed,
                         CudaMatrix *head, Built out[LIST]) {
    int n = 0;
    int32_t h = c->hidden, vd = config_gdn_value_dim(c), cc = config_conv_dim(c);
    int32_t hv = c->n_gdn_value_heads, qd = config_q_dim(c), kv = config_kv_dim(c);
    if (layer < 0) {
        out[n++] = built(embed, c->vocab, h, 4, SLOT_EMBED);
        if (!c->is_tied)
            out[n++] = built(head, c->vocab, h, 4, SLOT_HEAD);
        return n;
    }
    if (c->is_attn[layer]) {
        out[n++] = (Built){
            &l->in, 2 * qd + 2 * kv,
            h,      4,
            3,      {{SLOT_ATTN_Q, 0, 0}, {SLOT_ATTN_K, 2 * qd, 0}, {SLOT_ATTN_V, 2 * qd + kv, 0}}};
        out[n++] = built(&l->out, h, qd, 4, SLOT_ATTN_O);
    } else {
        out[n++] = (Built){&l->in,
                           cc + vd + 2 * hv,
                           h,
                           4,
                           4,
                           {{SLOT_GDN_QKV, 0, 0},
                            {SLOT_GDN_Z, cc, 0},
                            {SLOT_GDN_B, cc + vd, 0},
                            {SLOT_GDN_A, cc + vd + hv, 0}}};
        out[n++] = built(&l->out, h, vd, 4, SLOT_GDN_OUT);
    }
    out[n++] = (Built){&l->router, c->n_experts + 1,
                       h,          8,
                       2,          {{SLOT_ROUTER, 0, 0}, {SLOT_SHARED_MIX, c->n_experts, 0}}};
    out[n++] = built_pair(&l->shared_up, 2 * (int64_t)c->shared_inner, h, SLOT_SHARED_GATE,
                          SLOT_SHARED_UP);
    out[n++] = built(&l->shared_down, h, c->shared_inner, 4, SLOT_SHARED_DOWN);
    out[n++] = built_pair(&l->expert_up, 2 * (int64_t)c->n_experts * c->expert_inner, h,
                          SLOT_EXPERT_GATE, SLOT_EXPERT_UP);
    out[n++] =
        built(&l->expert_down, (int64_t)c->n_experts * h, c->expert_inner, 4, SLOT_EXPERT_DOWN);
    return n;
}

static int list_plain(const ModelConfig *c, int layer, CudaLayer *l, float **final_norm,
                      Plain out[LIST]) {
    int n = 0;
    if (layer < 0) {
        out[n++] = (Plain){final_norm, SLOT_FINAL_NORM, c->hidden};
        return n;
    }
    out[n++] = (Plain){&l->input_norm, SLOT_INPUT_NORM, c->hidden};
    out[n++] = (Plain){&l->post_norm, SLOT_POST_NORM, c->hidden};
    if (c->is_attn[layer]) {
        out[n++] = (Plain){&l->q_norm, SLOT_ATTN_Q_NORM, ATTN_HEAD};
        out[n++] = (Plain){&l->k_norm, SLOT_ATTN_K_NORM, ATTN_HEAD};
        return n;
    }
    out[n++] = (Plain){&l->conv, SLOT_GDN_CONV, CONV_TAPS * config_conv_dim(c)};
    out[n++] = (Plain){&l->a_log, SLOT_GDN_A_LOG, c->n_gdn_value_heads};
    out[n++] = (Plain){&l->dt_bias, SLOT_GDN_DT_BIAS, c->n_gdn_value_heads};
    out[n++] = (Plain){&l->gdn_norm, SLOT_GDN_NORM, GDN_HEAD};
    return n;
}

/* ---- what can be run ---- */

static Status check_part(const Weights *w, const Built *b, const Part *p, int layer, Err *err) {
    WeightInfo info = weights_info(w, p->slot, layer);
    if (info.bits == b->bits && info.group == CUDA_GROUP)
        return STATUS_OK;
    char name[160];
    weights_slot_name(name, sizeof name, p->slot, layer);
    return err_set(err, STATUS_UNSUPPORTED,
                   "cuda: %s: expected %d bits in groups of %d, found %d bits in groups of %d",
                   name, b->bits, CUDA_GROUP, info.bits, info.group);
}

static Status check_count(const char *what, int64_t found, bool is_good, const char *expected,
                          Err *err) {
    if (is_good)
        return STATUS_OK;
    return err_set(err, STATUS_UNSUPPORTED, "cuda: %s: expected %s, found %lld", what, expected,
                   (long long)found);
}

/* Every name of the mask is one that there is. */
static Status check_mask(const char *mask, Err *err) {
    while (mask && *mask) {
        int n = (int)strcspn(mask, ",");
        bool is_known = n == 5 && (memcmp(mask, "graph", 5) == 0 || memcmp(mask, "chain", 5) == 0 ||
                                   memcmp(mask, "sm90a", 5) == 0);
        if (n && !is_known)
            return err_set(err, STATUS_INVALID,
                           "cuda: mask: expected graph, chain or sm90a, found %.*s", n, mask);
        mask += n + (mask[n] == ',');
    }
    return STATUS_OK;
}

/* What a plan asks for beyond this backend. */
static Status check_plan(const ModelConfig *c, const BackendPlan *plan, Err *err) {
    if (plan->is_f32_activations)
        return err_set(err, STATUS_UNSUPPORTED,
                       "cuda: activations in f32 are a test mode of the cpu backend");
    TRY(check_mask(plan->mask, err));
    int64_t pairs = (int64_t)plan->max_seqs * c->top_k;
    if (plan->max_rows <= CUDA_MAX_ROWS && pairs <= CUDA_MAX_ROWS)
        return STATUS_OK;
    return err_set(err, STATUS_TOO_LARGE,
                   "cuda: a step: expected at most %d rows and %d sequences, found %d and %d",
                   CUDA_MAX_ROWS, CUDA_MAX_ROWS / c->top_k, plan->max_rows, plan->max_seqs);
}

Status cuda_load_check(const Weights *w, const BackendPlan *plan, Err *err) {
    const ModelConfig *c = weights_config(w);
    TRY(check_plan(c, plan, err));
    int32_t widest = max_i32(c->hidden, max_i32(config_q_dim(c), config_gdn_value_dim(c)));
    bool is_hidden_good = c->hidden % CUDA_GROUP == 0 && c->hidden <= CUDA_MAX_HIDDEN;
    TRY(check_count("hidden", c->hidden, is_hidden_good, "a multiple of 64 up to 4096", err));
    TRY(check_count("expert inner width", c->expert_inner, c->expert_inner % CUDA_GROUP == 0,
                    "a multiple of 64", err));
    TRY(check_count("shared expert inner width", c->shared_inner, c->shared_inner % CUDA_GROUP == 0,
                    "a multiple of 64", err));
    TRY(check_count("widest input", widest, widest <= CUDA_MAX_K, "at most 8192", err));
    TRY(check_count("experts a token", c->top_k, c->top_k <= CUDA_MAX_TOP_K, "at most 15", err));
    int32_t share = c->n_q_heads / c->n_kv_heads;
    TRY(check_count("query heads of a key-value head", share, share <= 64, "at most 64", err));
    for (int layer = -1; layer < c->n_layers; layer++) {
        Built list[LIST];
        CudaLayer l;
        CudaMatrix embed, head;
        int n = list_matrices(c, layer, &l, &embed, &head, list);
        for (int i = 0; i < n; i++)
            for (int p = 0; p < list[i].n_parts; p++)
                TRY(check_part(w, &list[i], &list[i].part[p], layer, err));
    }
    return STATUS_OK;
}

/* ---- places ---- */

void *cuda_carve(CudaCarver *c, size_t n, size_t size) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up_size(n * size, CUDA_ALIGN);
    c->most = max_size(c->most, c->used);
    return p;
}

static void place_layer(Cuda *c, CudaCarver *carver, int layer) {
    CudaLayer *l = layer < 0 ? NULL : &c->layers[layer];
    Built list[LIST];
    Plain plain[LIST];
    int n = list_matrices(&c->c, layer, l, &c->embed, &c->head, list);
    for (int i = 0; i < n; i++) {
        size_t rows = round_up_size((size_t)list[i].n, 16), k = (size_t)list[i].k;
        CudaMatrix *m = list[i].to;
        *m = (CudaMatrix){.n = list[i].n, .k = list[i].k, .bits = list[i].bits};
        m->code = cuda_carve(carver, rows * k / 8, (size_t)list[i].bits);
        m->scale = cuda_carve(carver, rows * (k / CUDA_GROUP), 4);
    }
    n = list_plain(&c->c, layer, l, &c->final_norm, plain);
    for (int i = 0; i < n; i++)
        *plain[i].to = cuda_carve(carver, (size_t)plain[i].n, sizeof(float));
}

size_t cuda_load_place(Cuda *c, char *base) {
    CudaCarver carver = {.base = base};
    for (int layer = -1; layer < c->c.n_layers; layer++)
        place_layer(c, &carver, layer);
    if (c->c.is_tied)
        c->head = c->embed;
    c->rope = cuda_carve(&carver, (size_t)c->plan.max_ctx * ROPE_DIMS, sizeof(float));
    return carver.used;
}

/* ---- filling ---- */

/* Rows of one slot that a job reads. */
typedef struct Job {
    Built built;
    Part part;
    int layer;
    int64_t row, n_rows;
} Job;

/* One member's staging memory, used again once its copy has been packed. */
typedef struct Stage {
    char *host, *device;
    cudaEvent_t event;
} Stage;

typedef struct Fill {
    Cuda *c;
    const Weights *w;
    const Progress *progress;
    Job *jobs;
    Stage *stages; // [members]
    size_t stage_size, scale_at, bias_at;
    pthread_mutex_t lock; // of what follows
    uint64_t n_done, n_total;
    Status status;
    Err err;
} Fill;

static size_t row_bytes(const Built *b) { return (size_t)b->k / 8 * (size_t)b->bits; }

static int64_t piece_rows(const Built *b) {
    int64_t n = PIECE / (int64_t)row_bytes(b) / 8 * 8;
    return n < 8 ? 8 : n;
}

static cudaError_t job_upload(Fill *f, const Job *j, Stage *s, size_t bytes) {
    CudaLaunch l = {.stream = f->c->stream};
    cudaError_t e =
        cudaMemcpyAsync(s->device, s->host, bytes, cudaMemcpyHostToDevice, f->c->stream);
    if (e != cudaSuccess)
        return e;
    CudaPack pack = {
        .code = (uint32_t *)(uintptr_t)j->built.to->code,
        .scale = (uint32_t *)(uintptr_t)j->built.to->scale,
        .q = (const uint32_t *)s->device,
        .raw_scale = (const uint16_t *)(s->device + f->scale_at),
        .raw_bias = (const uint16_t *)(s->device + f->bias_at),
        .dest = j->part.dest,
        .row0 = j->row,
        .interleave = j->part.interleave,
        .n_rows = (int32_t)j->n_rows,
        .k = j->built.k,
        .bits = j->built.bits,
    };
    e = cuda_pack_rows(&l, &pack);
    return e == cudaSuccess ? cudaEventRecord(s->event, f->c->stream) : e;
}

static Status job_do(Fill *f, const Job *j, Stage *s, Err *err) {
    TRY(cuda_status(cudaSetDevice(f->c->plan.device), "choosing the device", err));
    TRY(cuda_status(cudaEventSynchronize(s->event), "uploading weights", err));
    TRY(weights_read_quant(f->w, j->part.slot, j->layer, j->row, j->n_rows, (uint32_t *)s->host,
                           (uint16_t *)(s->host + f->scale_at), (uint16_t *)(s->host + f->bias_at),
                           err));
    size_t bytes = f->bias_at + (size_t)j->n_rows * (size_t)(j->built.k / CUDA_GROUP) * 2;
    return cuda_status(job_upload(f, j, s, bytes), "packing weights", err);
}

static void job_run(void *ctx, int64_t job, int member) {
    Fill *f = ctx;
    const Job *j = &f->jobs[job];
    Err err = {0};
    pthread_mutex_lock(&f->lock);
    bool is_over = f->status != STATUS_OK;
    pthread_mutex_unlock(&f->lock);
    Status status = is_over ? STATUS_OK : job_do(f, j, &f->stages[member], &err);
    pthread_mutex_lock(&f->lock);
    if (status != STATUS_OK && f->status == STATUS_OK) {
        f->status = status;
        f->err = err;
    }
    f->n_done += (uint64_t)j->n_rows * row_bytes(&j->built);
    if (f->progress && f->progress->report && !is_over)
        f->progress->report(f->progress->ctx, "weights to the card", f->n_done, f->n_total);
    pthread_mutex_unlock(&f->lock);
}

/* Counts the jobs, or writes them when f->jobs is there. */
static int64_t list_jobs(Fill *f) {
    int64_t n = 0;
    for (int layer = -1; layer < f->c->c.n_layers; layer++) {
        CudaLayer *l = layer < 0 ? NULL : &f->c->layers[layer];
        Built list[LIST];
        int n_list = list_matrices(&f->c->c, layer, l, &f->c->embed, &f->c->head, list);
        for (int i = 0; i < n_list; i++)
            for (int p = 0; p < list[i].n_parts; p++) {
                WeightInfo info = weights_info(f->w, list[i].part[p].slot, layer);
                int64_t rows = (int64_t)info.n_experts * info.n, piece = piece_rows(&list[i]);
                for (int64_t row = 0; row < rows; row += piece, n++) {
                    int64_t left = rows - row < piece ? rows - row : piece;
                    if (f->jobs)
                        f->jobs[n] = (Job){list[i], list[i].part[p], layer, row, left};
                    else
                        f->n_total += (uint64_t)left * row_bytes(&list[i]);
                    size_t codes = round_up_size((size_t)left * row_bytes(&list[i]), CUDA_ALIGN);
                    size_t scales = round_up_size(
                        (size_t)left * (size_t)(list[i].k / CUDA_GROUP) * 2, CUDA_ALIGN);
                    f->scale_at = max_size(f->scale_at, codes);
                    f->bias_at = max_size(f->bias_at, f->scale_at + scales);
                    f->stage_size = max_size(f->stage_size, f->bias_at + scales);
                }
            }
    }
    return n;
}

static Status fill_plain(Cuda *c, const Weights *w, int layer, Err *err) {
    Plain plain[LIST];
    CudaLayer *l = layer < 0 ? NULL : &c->layers[layer];
    int n = list_plain(&c->c, layer, l, &c->final_norm, plain);
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)plain[i].n * sizeof(float);
        float *values = mem_alloc(bytes);
        if (!values)
            return err_memory(err, "parameters", bytes);
        Status status = weights_read_plain(w, plain[i].slot, layer, values, err);
        if (status == STATUS_OK)
            status = cuda_status(
                cudaMemcpyAsync(*plain[i].to, values, bytes, cudaMemcpyHostToDevice, c->stream),
                "uploading parameters", err);
        if (status == STATUS_OK)
            status = cuda_status(cudaStreamSynchronize(c->stream), "uploading parameters", err);
        mem_free(values);
        TRY(status);
    }
    return STATUS_OK;
}

static Status stages_open(Fill *f, int n, Err *err) {
    for (int i = 0; i < n; i++) {
        Stage *s = &f->stages[i];
        TRY(cuda_status(cudaEventCreateWithFlags(&s->event, cudaEventDisableTiming),
                        "making an event", err));
        TRY(cuda_status(cudaHostAlloc((void **)&s->host, f->stage_size, cudaHostAllocDefault),
                        "staging memory", err));
        TRY(cuda_status(cudaMalloc((void **)&s->device, f->stage_size), "staging memory", err));
    }
    return STATUS_OK;
}

static void stages_close(Fill *f, int n) {
    for (int i = 0; f->stages && i < n; i++) {
        if (f->stages[i].event)
            cudaEventDestroy(f->stages[i].event);
        if (f->stages[i].host)
            cudaFreeHost(f->stages[i].host);
        if (f->stages[i].device)
            cudaFree(f->stages[i].device);
    }
    mem_free(f->stages);
}

static Status fill_quant(Cuda *c, const Weights *w, const Progress *progress, Err *err) {
    Fill f = {.c = c, .w = w, .progress = progress, .status = STATUS_OK};
    Pool *pool = NULL;
    Status status = STATUS_OK;
    int members = 0;
    int64_t n = list_jobs(&f);
    pthread_mutex_init(&f.lock, NULL);
    TRY_GOTO(status, pool_open(&pool, c->plan.n_threads, err));
    members = pool_n_members(pool);
    f.jobs = mem_zalloc((size_t)n, sizeof *f.jobs);
    f.stages = mem_zalloc((size_t)members, sizeof *f.stages);
    if (!f.jobs || !f.stages)
        TRY_GOTO(status, err_memory(err, "loading", (size_t)n * sizeof *f.jobs));
    list_jobs(&f);
    TRY_GOTO(status, stages_open(&f, members, err));
    TRY_GOTO(status, cuda_status(cudaMemsetAsync(c->weights, 0, c->weight_size, c->stream),
                                 "clearing weights", err));
    pool_jobs(pool, n, job_run, &f);
    status = f.status;
    if (status != STATUS_OK && err)
        *err = f.err;
    if (status == STATUS_OK)
        status = cuda_status(cudaStreamSynchronize(c->stream), "packing weights", err);
fail:
    cudaStreamSynchronize(c->stream);
    stages_close(&f, members);
    mem_free(f.jobs);
    pool_close(pool);
    pthread_mutex_destroy(&f.lock);
    return status;
}

Status cuda_load_fill(Cuda *c, const Weights *w, const Progress *progress, Err *err) {
    TRY(fill_quant(c, w, progress, err));
    for (int layer = -1; layer < c->c.n_layers; layer++)
        TRY(fill_plain(c, w, layer, err));
    CudaLaunch l = {.stream = c->stream};
    return cuda_status(cuda_rope_table(&l, c->rope, c->plan.max_ctx, c->c.rope_theta), "rotations",
                       err);
}

#endif
