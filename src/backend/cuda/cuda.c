// SPDX-License-Identifier: Apache-2.0
/* cuda.c - the CUDA device behind backend_table.h: opening, steps in flight, samplers.
 *
 * Path:     backend.c calls it through backend_cuda_table. A submit writes a descriptor, copies it
 *           to the card and starts kernels; a wait reads ids and flags (and logits, where the
 *           host's sampler or the caller wants them).
 * Owns:     see cuda_self.h.  Thread: engine.
 * Sampling: ids are chosen on the card and can go to the next step without the host. A sampler that
 *           reports log-probabilities runs on the host, and a step that carries such an id waits.
 * Not here: the kernels and their order (cuda_step.c), what the card is and can do (cuda_card.c),
 *           slots and blocks (cuda_copy.c).
 */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/checked.h"
#include "base/mem.h"

#include <string.h>

enum {
    PINNED_LOGITS = 1 << 28, // the host's logits are pinned up to this size
};

const BackendTable backend_cuda_table;

/* ---- errors ---- */

Status cuda_status(cudaError_t e, const char *what, Err *err) {
    if (e == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return err_set(err, STATUS_MEMORY, "cuda: out of memory: %s", what);
    return err_set(err, STATUS_DEVICE, "cuda: %s: %s (%s)", what, cudaGetErrorString(e),
                   cudaGetErrorName(e));
}

Status cuda_failed(Cuda *c, cudaError_t e, const char *what, Err *err) {
    Err local = {0};
    Status status = cuda_status(e, what, &local);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (status == STATUS_DEVICE) {
        c->failed = status;
        snprintf(c->failed_text, sizeof c->failed_text, "%s", local.text);
    }
    return err_set(err, status, "%s", local.text);
}

Status cuda_alive(const Cuda *c, Err *err) {
    if (c->failed == STATUS_OK)
        return STATUS_OK;
    return err_set(err, c->failed, "%s", c->failed_text);
}

/* ---- the device ---- */

bool cuda_is_masked(const char *mask, const char *name) {
    size_t n = strlen(name);
    for (const char *at = mask; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : "")
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0))
            return true;
    return false;
}

static Status device_choose(Cuda *c, Err *err) {
    int n = 0;
    TRY(cuda_status(cudaGetDeviceCount(&n), "counting cards", err));
    if (c->plan.device < 0 || c->plan.device >= n)
        return err_set(err, STATUS_INVALID, "cuda: device: expected 0 to %d, found %d", n - 1,
                       c->plan.device);
    TRY(cuda_status(cudaSetDevice(c->plan.device), "choosing the card", err));
    TRY(cuda_status(cuda_card_ask(&c->card, c->plan.device), "asking the card", err));
    TRY(cuda_card_check(&c->card, err));
    c->max_shared = c->card.max_shared;
    TRY(cuda_status(cuda_kernels_init(c->max_shared), "preparing kernels", err));
    TRY(cuda_status(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "making a stream",
                    err));
    TRY(cuda_status(cudaStreamCreateWithFlags(&c->uploads, cudaStreamNonBlocking),
                    "making a stream", err));
    // The sm90a column on the cards that it is made for, unless it is masked (n_sm90 is 0).
    c->n_sm90 = c->n_sm90 && cuda_card_has_sm90a(&c->card) ? c->card.n_sm : 0;
    // Code for compute 8.0 does not wait for the kernel ahead, so it must not start early.
    c->is_chained = c->is_chained && cuda_card_has_sm90a(&c->card);
    cuda_card_text(&c->card, c->n_sm90 > 0, c->text, sizeof c->text);
    return STATUS_OK;
}

/* ---- sizes ---- */

static void sizes_set(Cuda *c) {
    const ModelConfig *m = &c->c;
    c->n_attn = config_n_attn_layers(m);
    c->n_gdn = m->n_layers - c->n_attn;
    c->ld_attn = 2 * config_q_dim(m) + 2 * config_kv_dim(m);
    c->ld_gdn = (int32_t)round_up_size(
        (size_t)(config_conv_dim(m) + config_gdn_value_dim(m) + 2 * m->n_gdn_value_heads), 16);
    c->ld_router = (int32_t)round_up_size((size_t)m->n_experts + 1, 16);
    c->seq_blocks = div_up_i32(c->plan.max_ctx, KV_BLOCK);
    size_t state = (size_t)m->n_gdn_value_heads * GDN_HEAD * GDN_HEAD * 4;
    size_t ring = CONV_TAPS * (size_t)config_conv_dim(m) * 2;
    c->slot_ring = (int64_t)(state * (size_t)c->n_gdn);
    c->slot_size =
        max_size(round_up_size((state + ring) * (size_t)c->n_gdn, CUDA_ALIGN), CUDA_ALIGN);
    c->block_size =
        max_size((size_t)c->n_attn * 2 * KV_BLOCK * (size_t)config_kv_dim(m) * 2, CUDA_ALIGN);
}

static size_t logits_bytes(const Cuda *c) {
    return ((size_t)c->plan.max_logits + (size_t)c->plan.max_seqs) * (size_t)c->c.vocab * 4;
}

/* Fills counts and sizes for a plan. layers is borrowed. */
static void cuda_size(Cuda *c, const Weights *w, const BackendPlan *plan, CudaLayer *layers) {
    *c = (Cuda){.c = *weights_config(w), .plan = *plan, .layers = layers};
    c->plan.mask = NULL;
    int32_t place[2] = {0, 0};
    for (int i = 0; i < c->c.n_layers; i++) {
        layers[i].is_attn = c->c.is_attn[i];
        layers[i].place = place[c->c.is_attn[i]]++;
    }
    sizes_set(c);
    c->weight_size = cuda_load_place(c, NULL);
    c->scratch_size = cuda_step_place(c, NULL);
}

static Status cuda_needs(BackendNeeds *out, const Weights *w, const BackendPlan *plan, Err *err) {
    TRY(cuda_load_check(w, plan, err));
    size_t bytes = (size_t)weights_config(w)->n_layers * sizeof(CudaLayer);
    CudaLayer *layers = mem_zalloc(1, bytes);
    Cuda *c = mem_zalloc(1, sizeof *c);
    Status status = STATUS_OK;
    if (layers && c) {
        cuda_size(c, w, plan, layers);
        *out = (BackendNeeds){.weight_bytes = c->weight_size,
                              .block_bytes = c->block_size,
                              .slot_bytes = c->slot_size,
                              .sampler_bytes = 0, // in the scratch: what draws ids on the card
                              .scratch_bytes = c->scratch_size};
    } else {
        status = err_memory(err, "cuda plan", bytes + sizeof *c);
    }
    mem_free(layers);
    mem_free(c);
    return status;
}

/* ---- open and close ---- */

static void cuda_close(void *self) {
    Cuda *c = self;
    if (!c)
        return;
    cuda_copies_close(c);
    if (c->uploads)
        cudaStreamSynchronize(c->uploads);
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    for (int i = 0; i < BATCH_IN_FLIGHT; i++) {
        for (int m = 0; m <= CUDA_GRAPH_ROWS; m++)
            if (c->graph[i][m])
                cudaGraphExecDestroy(c->graph[i][m]);
        if (c->done[i].event)
            cudaEventDestroy(c->done[i].event);
        if (c->done[i].uploaded)
            cudaEventDestroy(c->done[i].uploaded);
        mem_free(c->done[i].seqs);
        mem_free(c->done[i].results);
    }
    cudaFree(c->weights);
    cudaFree(c->kv);
    cudaFree(c->slots);
    cudaFree(c->scratch);
    if (c->host)
        cudaFreeHost(c->host);
    if (c->are_logits_pinned)
        cudaFreeHost(c->logits_map);
    else
        mem_unmap(c->logits_map, c->logits_size);
    if (c->uploads)
        cudaStreamDestroy(c->uploads);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    for (int32_t i = 0; c->samplers && i < c->plan.n_samplers; i++)
        sampler_close(c->samplers[i]);
    mem_free(c->samplers);
    mem_free(c->choosers);
    mem_free(c->seeds);
    mem_free(c->layers);
    (void)cudaGetLastError();
    mem_free(c);
}

static Status device_alloc(char **out, size_t n, size_t size, const char *what, Err *err) {
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, n * size);
    if (e == cudaErrorMemoryAllocation) {
        size_t left = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&left, &total);
        return err_set(err, STATUS_MEMORY,
                       "cuda: %s: expected %.2f GiB of free memory on the card, found %.2f", what,
                       (double)n * (double)size / (1 << 30), (double)left / (1 << 30));
    }
    TRY(cuda_status(e, what, err));
    *out = p;
    return STATUS_OK;
}

static Status device_clear(Cuda *c, void *p, size_t n, Err *err) {
    return cuda_status(cudaMemsetAsync(p, 0, n, c->stream), "clearing memory", err);
}

static Status memory_open(Cuda *c, Err *err) {
    size_t blocks = (size_t)c->plan.n_blocks, slots = (size_t)c->plan.n_slots;
    TRY(device_alloc(&c->weights, c->weight_size, 1, "weights", err));
    TRY(device_alloc(&c->kv, blocks, c->block_size, "key-value blocks", err));
    TRY(device_alloc(&c->slots, slots, c->slot_size, "state slots", err));
    TRY(device_alloc(&c->scratch, c->scratch_size, 1, "scratch", err));
    cuda_load_place(c, c->weights);
    cuda_step_place(c, c->scratch);
    TRY(device_clear(c, c->kv, blocks * c->block_size, err));
    TRY(device_clear(c, c->slots, slots * c->slot_size, err));
    TRY(device_clear(c, c->sampled, 3 * (size_t)c->plan.max_seqs * 4, err));
    TRY(device_clear(c, c->draws, ((size_t)c->plan.max_seqs + 1) * sizeof *c->draws, err));
    return device_clear(c, c->d.count, ((size_t)c->plan.max_seqs + CUDA_HEAD_ROWS + 1) * 4, err);
}

static Status done_open(Cuda *c, Err *err) {
    size_t seqs = (size_t)c->plan.max_seqs, ids = round_up_size(3 * seqs * 4, CUDA_ALIGN);
    c->host_size = BATCH_IN_FLIGHT * (c->desc_size + ids);
    c->logits_size = BATCH_IN_FLIGHT * logits_bytes(c);
    TRY(cuda_status(cudaHostAlloc((void **)&c->host, c->host_size, cudaHostAllocDefault),
                    "pinned memory", err));
    c->are_logits_pinned = c->logits_size <= PINNED_LOGITS;
    if (c->are_logits_pinned) {
        void *p = NULL;
        c->are_logits_pinned =
            cudaHostAlloc(&p, c->logits_size, cudaHostAllocDefault) == cudaSuccess;
        c->logits_map = p;
        (void)cudaGetLastError();
    }
    if (!c->are_logits_pinned && !(c->logits_map = mem_map(c->logits_size)))
        return err_memory(err, "logits", c->logits_size);
    for (size_t i = 0; i < BATCH_IN_FLIGHT; i++) {
        CudaDone *d = &c->done[i];
        d->desc = c->host + i * (c->desc_size + ids);
        d->ids = (int32_t *)(d->desc + c->desc_size);
        d->logits = (float *)(c->logits_map + i * logits_bytes(c));
        d->half = (int)i;
        d->seqs = mem_zalloc(seqs, sizeof *d->seqs);
        d->results = mem_zalloc(seqs, sizeof *d->results);
        if (!d->seqs || !d->results)
            return err_memory(err, "results", seqs * (sizeof *d->seqs + sizeof *d->results));
        TRY(cuda_status(cudaEventCreateWithFlags(&d->event, cudaEventDisableTiming),
                        "making an event", err));
        TRY(cuda_status(cudaEventCreateWithFlags(&d->uploaded, cudaEventDisableTiming),
                        "making an event", err));
    }
    return STATUS_OK;
}

/* What the host and the card know of a sampler whose params the host's has taken. */
static Status sampler_fill(Cuda *c, int32_t sampler, const SampleParams *p, Err *err) {
    c->choosers[sampler] = cuda_sample_chooser(c, p);
    c->seeds[sampler] = p->seed;
    cudaError_t e = cuda_sample_set(c, sampler, p, sampler_counts(c->samplers[sampler]));
    return cuda_failed(c, e, "setting a sampler", err);
}

static Status samplers_open(Cuda *c, Err *err) {
    size_t n = (size_t)c->plan.n_samplers;
    c->samplers = mem_zalloc(n, sizeof *c->samplers);
    c->choosers = mem_zalloc(n, sizeof *c->choosers);
    c->seeds = mem_zalloc(n, sizeof *c->seeds);
    if (!c->samplers || !c->choosers || !c->seeds)
        return err_memory(err, "samplers", n * sizeof *c->samplers);
    for (size_t i = 0; i < n; i++) {
        TRY(sampler_open(&c->samplers[i], c->c.vocab, err));
        TRY(sampler_fill(c, (int32_t)i, &(SampleParams){0}, err));
    }
    return STATUS_OK;
}

/* What the kernels of a step are told: where its descriptor and its results are. */
static void step_at(Cuda *c, const CudaDone *d) {
    c->at = d->at;
    c->ids = d->ids;
}

/* A graph of the decode step of m rows, in one half of the steps in flight. What the driver refuses
 * is done without: false. */
static bool graph_make(Cuda *c, int half, int32_t m) {
    step_at(c, &c->done[half]);
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return false;
    cudaError_t e = cuda_step_decode(c, m);
    cudaError_t end = cudaStreamEndCapture(c->stream, &graph);
    bool is_good = e == cudaSuccess && end == cudaSuccess &&
                   cudaGraphInstantiate(&c->graph[half][m], graph, 0) == cudaSuccess;
    if (graph)
        cudaGraphDestroy(graph);
    return is_good;
}

/* Whether steps can be captured at all. */
static bool graph_probe(Cuda *c) {
    cudaGraph_t graph = NULL;
    bool is_good =
        cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess &&
        cudaStreamEndCapture(c->stream, &graph) == cudaSuccess;
    if (graph)
        cudaGraphDestroy(graph);
    return is_good;
}

/* A step of m rows of nothing, so that every kernel is loaded before the first capture (loading
 * inside one may be refused). Leaves a slot and a block dirty that no sequence has yet. */
static Status graph_warm(Cuda *c, int32_t m, Err *err) {
    TRY(device_clear(c, c->desc, c->desc_size, err));
    step_at(c, &c->done[0]);
    TRY(cuda_status(cuda_step_decode(c, m), "a first step", err));
    return cuda_status(cudaStreamSynchronize(c->stream), "a first step", err);
}

static Status graphs_open(Cuda *c, const Log *log, Err *err) {
    static const int32_t kinds[] = {1, 2, 5, 9}; // rows that take other kernels
    int32_t most = min_i32(c->plan.max_seqs, CUDA_GRAPH_ROWS);
    c->has_graphs = c->has_graphs && graph_probe(c);
    for (size_t i = 0; c->has_graphs && i < COUNT_OF(kinds); i++)
        if (kinds[i] <= most)
            TRY(graph_warm(c, kinds[i], err));
    for (int32_t i = 0; c->has_graphs && i < BATCH_IN_FLIGHT * most; i++)
        c->has_graphs = graph_make(c, i % BATCH_IN_FLIGHT, 1 + i / BATCH_IN_FLIGHT);
    if (!c->has_graphs)
        log_printf(log, LOG_DEBUG, "cuda: decode steps run without graphs");
    (void)cudaGetLastError();
    TRY(device_clear(c, c->slots, (size_t)c->plan.n_slots * c->slot_size, err));
    TRY(device_clear(c, c->sampled, 3 * (size_t)c->plan.max_seqs * 4, err));
    return cuda_status(cudaStreamSynchronize(c->stream), "opening", err);
}

static Status cuda_open(void **self, const Weights *w, const BackendPlan *plan,
                        const Progress *progress, const Log *log, Err *err) {
    TRY(cuda_load_check(w, plan, err));
    int32_t n_layers = weights_config(w)->n_layers;
    CudaLayer *layers = mem_zalloc((size_t)n_layers, sizeof *layers);
    Cuda *c = mem_zalloc(1, sizeof *c);
    if (!layers || !c) {
        mem_free(layers);
        mem_free(c);
        return err_memory(err, "cuda backend", sizeof *c);
    }
    cuda_size(c, w, plan, layers);
    c->log = log;
    c->is_chained = !cuda_is_masked(plan->mask, "chain");
    c->has_graphs = !cuda_is_masked(plan->mask, "graph");
    c->n_sm90 = !cuda_is_masked(plan->mask, "sm90a"); // how many: device_choose
    Status status = STATUS_OK;
    TRY_GOTO(status, device_choose(c, err));
    TRY_GOTO(status, memory_open(c, err));
    TRY_GOTO(status, done_open(c, err));
    TRY_GOTO(status, cuda_copies_open(c, err));
    TRY_GOTO(status, samplers_open(c, err));
    TRY_GOTO(status, cuda_load_fill(c, w, progress, err));
    TRY_GOTO(status, cuda_status(cudaStreamSynchronize(c->stream), "opening", err));
    TRY_GOTO(status, graphs_open(c, log, err));
    *self = c;
    return STATUS_OK;
fail:
    cuda_close(c);
    return status;
}

static const char *cuda_text(const void *self) { return ((const Cuda *)self)->text; }

/* ---- finishing a step ---- */

static CudaDone *done_of(Cuda *c, uint64_t step) { return &c->done[step % BATCH_IN_FLIGHT]; }

static void finish_seq(Cuda *c, CudaDone *d, int32_t i) {
    const CudaDoneSeq *s = &d->seqs[i];
    BatchResult *r = &d->results[i];
    *r = (BatchResult){.sample = {.id = -1}, .bad_layer = -1};
    int32_t bad = d->ids[2 * c->plan.max_seqs + i];
    if (bad < CUDA_NO_BAD) {
        r->bad_layer = bad / CUDA_BAD_ROWS;
        r->bad_pos = s->pos0 + bad % CUDA_BAD_ROWS;
    }
    const float *logits = d->logits + (size_t)s->first_logit * (size_t)c->c.vocab;
    if (s->is_wanted)
        r->logits = logits;
    if (r->bad_layer >= 0 || s->sampler < 0)
        return;
    if (s->is_host_sampled) {
        const float *last = logits + (size_t)(s->n_logits - 1) * (size_t)c->c.vocab;
        sampler_next(c->samplers[s->sampler], &r->sample, last, s->allowed, s->pos0 + s->n_rows);
    } else {
        r->sample.id = d->ids[d->half * c->plan.max_seqs + i];
    }
}

static Status done_finish(Cuda *c, CudaDone *d, Err *err) {
    if (d->is_finished)
        return STATUS_OK;
    TRY(cuda_alive(c, err));
    TRY(cuda_failed(c, cudaEventSynchronize(d->event), "waiting for a step", err));
    for (int32_t i = 0; i < d->n_seqs; i++)
        finish_seq(c, d, i);
    d->is_finished = true;
    return STATUS_OK;
}

static Status cuda_wait(void *self, BatchResult *results, Err *err) {
    Cuda *c = self;
    CudaDone *d = done_of(c, c->n_waited);
    Status status = done_finish(c, d, err);
    c->n_waited++;
    if (status == STATUS_OK)
        memcpy(results, d->results, (size_t)d->n_seqs * sizeof *results);
    return status;
}

/* Every step in flight, in order: before anything that its host samplers must not see. */
static Status all_finish(Cuda *c, Err *err) {
    for (uint64_t s = c->n_waited; s < c->n_submitted; s++)
        TRY(done_finish(c, done_of(c, s), err));
    return STATUS_OK;
}

/* ---- starting a step ---- */

/* A batch cut into its decode rows and its prefill part. */
typedef struct Cut {
    const Batch *batch;
    CudaDesc desc; // host
    int32_t m;     // decode rows
    int32_t n_table;
    CudaPrefillCounts n;
    int32_t n_logits; // host rows taken so far
    CudaDrawn drawn;
} Cut;

/* Notes what the result of sequence i needs. */
static void cut_result(Cuda *c, Cut *t, CudaDone *d, int32_t i) {
    const BatchSeq *s = &t->batch->seqs[i];
    CudaDoneSeq *to = &d->seqs[i];
    *to = (CudaDoneSeq){.pos0 = s->pos0,
                        .n_rows = s->n_rows,
                        .sampler = s->sampler,
                        .first_logit = t->n_logits,
                        .is_wanted = s->want != WANT_NOTHING,
                        .allowed = s->allowed};
    to->is_host_sampled = s->sampler >= 0 && c->choosers[s->sampler].is_host;
    if (to->is_wanted || to->is_host_sampled)
        to->n_logits = s->want == WANT_ALL ? s->n_rows : 1;
    t->n_logits += to->n_logits;
}

static void cut_table(Cut *t, const BatchSeq *s) {
    int32_t n = div_up_i32(s->pos0 + s->n_rows, KV_BLOCK);
    memcpy(t->desc.table + t->n_table, s->blocks, (size_t)n * sizeof *s->blocks);
    t->n_table += n;
}

static CudaRow cut_row(const Cuda *c, const Cut *t, int32_t i, int32_t row) {
    const BatchSeq *s = &t->batch->seqs[i];
    return (CudaRow){.id = t->batch->ids[s->row0 + row],
                     .carry = -1,
                     .pos = s->pos0 + row,
                     .slot = s->slot,
                     .table = t->n_table,
                     .seq = i,
                     .in_seq = row,
                     .limit = c->c.vocab,
                     .sampler = -1,
                     .allowed = -1};
}

/* A decode row. An id that the host chose is known by now; one that the card chose stays there. */
static void cut_decode(Cuda *c, Cut *t, int32_t i) {
    const BatchSeq *s = &t->batch->seqs[i];
    CudaRow row = cut_row(c, t, i, 0);
    if (s->carry >= 0) {
        const CudaDone *before = done_of(c, c->n_submitted - 1);
        if (before->is_finished)
            row.id = max_i32(before->results[s->carry].sample.id, 0);
        else
            row.carry = s->carry;
    }
    cuda_sample_row(c, &row, s, &t->drawn, t->desc.allowed);
    t->desc.decode[t->m++] = row;
    cut_table(t, s);
}

static void cut_prefill(Cuda *c, Cut *t, int32_t i) {
    const BatchSeq *s = &t->batch->seqs[i];
    CudaPrefillCounts *n = &t->n;
    CudaSeq *seq = &t->desc.seqs[n->n_seqs];
    *seq = (CudaSeq){.row0 = n->m,
                     .n_rows = s->n_rows,
                     .pos0 = s->pos0,
                     .slot = s->slot,
                     .table = t->n_table,
                     .chunk0 = n->n_chunks,
                     .n_chunks = div_up_i32(s->n_rows, RECUR_CHUNK),
                     .snap0 = n->n_snaps,
                     .n_snaps = s->n_snaps};
    for (int32_t k = 0; k < s->n_snaps; k++) {
        t->desc.snaps[n->n_snaps++] = (CudaSnap){s->snaps[k].pos, s->snaps[k].slot};
        c->slot_tok[s->snaps[k].slot] = s->snaps[k].pos;
    }
    for (int32_t row = 0; row < s->n_rows; row += RECUR_CHUNK)
        t->desc.chunks[n->n_chunks++] =
            (CudaChunk){n->m + row, min_i32(RECUR_CHUNK, s->n_rows - row)};
    int32_t tokens = cuda_attn_tile_tokens(c->c.n_q_heads, c->c.n_kv_heads, c->max_shared);
    for (int32_t tok = 0; tok < s->n_rows; tok += tokens)
        t->desc.tiles[n->n_tiles++] = (CudaTile){n->n_seqs, tok};
    for (int32_t row = 0; row < s->n_rows; row++) {
        bool is_last = row == s->n_rows - 1;
        if (s->want == WANT_ALL || (is_last && (s->want == WANT_LAST || s->sampler >= 0)))
            t->desc.list[n->n_list++] = n->m + row;
        t->desc.rows[n->m + row] = cut_row(c, t, i, row);
        if (is_last)
            cuda_sample_row(c, &t->desc.rows[n->m + row], s, &t->drawn, t->desc.allowed);
    }
    n->m += s->n_rows;
    n->most_keys = max_i32(n->most_keys, s->pos0 + s->n_rows);
    n->n_seqs++;
    cut_table(t, s);
}

/* The descriptor to its place on the card, while the step ahead still runs (the last step that used
 * this place was waited for); the step itself waits for it there. */
static cudaError_t desc_upload(Cuda *c, const Cut *t, const CudaDone *d) {
    size_t table = (size_t)((const char *)t->desc.table - d->desc);
    size_t head = table + (size_t)t->n_table * sizeof(int32_t);
    cudaError_t e = cudaMemcpyAsync(d->place, d->desc, head, cudaMemcpyHostToDevice, c->uploads);
    if (e == cudaSuccess && t->n.m) {
        size_t at = t->desc.prefill_at;
        size_t end = (size_t)((const char *)t->desc.list - d->desc) + (size_t)t->n.n_list * 4;
        e = cudaMemcpyAsync(d->place + at, d->desc + at, end - at, cudaMemcpyHostToDevice,
                            c->uploads);
    }
    size_t allowed = (size_t)t->drawn.n_allowed * (size_t)div_up_i32(c->c.vocab, 32) * 4;
    if (e == cudaSuccess && allowed) {
        size_t at = (size_t)((const char *)t->desc.allowed - d->desc);
        e = cudaMemcpyAsync(d->place + at, d->desc + at, allowed, cudaMemcpyHostToDevice,
                            c->uploads);
    }
    if (e == cudaSuccess)
        e = cudaEventRecord(d->uploaded, c->uploads);
    return e == cudaSuccess ? cudaStreamWaitEvent(c->stream, d->uploaded, 0) : e;
}

/* Rows of the card's logits to the host's. */
static cudaError_t logits_fetch(Cuda *c, CudaDone *d, int32_t to, const float *from, int32_t n) {
    size_t row = (size_t)c->c.vocab;
    return cudaMemcpyAsync(d->logits + (size_t)to * row, from, (size_t)n * row * 4,
                           cudaMemcpyDeviceToHost, c->stream);
}

/* Logits of the prefill rows that want them, a few at a time, and chosen ids. */
static cudaError_t prefill_heads(Cuda *c, const Cut *t, CudaDone *d) {
    int32_t used = 0; // rows of the sequence at work that were fetched
    int32_t last_seq = -1;
    for (int32_t first = 0; first < t->n.n_list; first += CUDA_HEAD_ROWS) {
        int32_t m = min_i32(CUDA_HEAD_ROWS, t->n.n_list - first);
        cudaError_t e = cuda_step_prefill_head(c, first, m);
        for (int32_t i = 0; e == cudaSuccess && i < m; i++) {
            int32_t seq = t->desc.rows[t->desc.list[first + i]].seq;
            used = seq == last_seq ? used + 1 : 0;
            last_seq = seq;
            e = cuda_step_prefill_choose(c, first, i);
            if (e == cudaSuccess && d->seqs[seq].n_logits)
                e = logits_fetch(c, d, d->seqs[seq].first_logit + used,
                                 c->p.logits + (size_t)i * (size_t)c->c.vocab, 1);
            if (e == cudaSuccess && t->desc.rows[t->desc.list[first + i]].sampler >= 0)
                e = cuda_sample_prefill(c, first, i, &t->drawn);
        }
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}

/* Logits of the decode rows that want them, and ids that are drawn. */
static cudaError_t decode_heads(Cuda *c, const Cut *t, CudaDone *d) {
    for (int32_t i = 0; i < t->m; i++) {
        const CudaDoneSeq *s = &d->seqs[t->desc.decode[i].seq];
        cudaError_t e = cudaSuccess;
        if (s->n_logits)
            e = logits_fetch(c, d, s->first_logit, c->d.logits + (size_t)i * (size_t)c->c.vocab, 1);
        if (e != cudaSuccess)
            return e;
    }
    return t->drawn.n[PHASE_DECODE] ? cuda_sample_decode(c, t->m, &t->drawn) : cudaSuccess;
}

static cudaError_t step_start(Cuda *c, const Cut *t, CudaDone *d) {
    cudaError_t e = desc_upload(c, t, d);
    size_t seqs = (size_t)c->plan.max_seqs * 4;
    if (e == cudaSuccess && t->m == 0)
        e = cudaMemsetAsync(c->bad, 0x7f, seqs, c->stream);
    if (e == cudaSuccess && t->m)
        e = c->has_graphs && t->m <= CUDA_GRAPH_ROWS
                ? cudaGraphLaunch(c->graph[d->half][t->m], c->stream)
                : cuda_step_decode(c, t->m);
    if (e == cudaSuccess)
        e = decode_heads(c, t, d);
    if (e == cudaSuccess && t->n.m) {
        e = cuda_step_prefill_begin(c, &t->n);
        for (int32_t layer = 0; e == cudaSuccess && layer < c->c.n_layers; layer++)
            e = cuda_step_prefill_layer(c, &t->n, layer);
        if (e == cudaSuccess)
            e = prefill_heads(c, t, d);
    }
    if (e == cudaSuccess && t->n.m) // a decode step writes its results to the host itself
        e = cudaMemcpyAsync(d->ids, c->sampled, 3 * seqs, cudaMemcpyDeviceToHost, c->stream);
    return e == cudaSuccess ? cudaEventRecord(d->event, c->stream) : e;
}

/* ---- taps ---- */

/* Rows of both phases into the batch's order: to [n_rows, H]. */
static cudaError_t tap_fetch(Cuda *c, const Cut *t, const float *decode, const float *prefill,
                             float *host) {
    size_t h = (size_t)c->c.hidden;
    cudaError_t e = cudaSuccess;
    int32_t at[2] = {0, 0};
    for (int32_t i = 0; e == cudaSuccess && i < t->batch->n_seqs; i++) {
        const BatchSeq *s = &t->batch->seqs[i];
        bool is_prefill = s->phase == PHASE_PREFILL;
        const float *from = (is_prefill ? prefill : decode) + (size_t)at[is_prefill] * h;
        e = cudaMemcpyAsync(host + (size_t)s->row0 * h, from, (size_t)s->n_rows * h * 4,
                            cudaMemcpyDeviceToHost, c->stream);
        at[is_prefill] += s->n_rows;
    }
    return e == cudaSuccess ? cudaStreamSynchronize(c->stream) : e;
}

static cudaError_t tap_see(Cuda *c, const Cut *t, const char *name, int32_t layer,
                           const float *decode, const float *prefill, double *wide) {
    size_t n = (size_t)t->batch->n_rows * (size_t)c->c.hidden;
    float *host = (float *)(wide + n); // behind the doubles
    cudaError_t e = tap_fetch(c, t, decode, prefill, host);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)host[i];
    const BatchTap *tap = t->batch->tap;
    if (e == cudaSuccess)
        tap->see(tap->ctx, name, layer, t->batch->n_rows, c->c.hidden, wide);
    return e;
}

/* The experts that the prompts' rows chose. */
static cudaError_t tap_choices(Cuda *c, const Cut *t, int32_t layer, double *wide) {
    size_t n = (size_t)t->n.m * (size_t)c->c.top_k;
    int32_t *host = (int32_t *)(wide + n);
    cudaError_t e = cudaMemcpyAsync(host, c->p.id, n * 4, cudaMemcpyDeviceToHost, c->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->stream);
    for (size_t i = 0; e == cudaSuccess && i < n; i++)
        wide[i] = (double)host[i];
    const BatchTap *tap = t->batch->tap;
    if (e == cudaSuccess)
        tap->see(tap->ctx, "topk_ids", layer, t->n.m, c->c.top_k, wide);
    return e;
}

/* The step layer by layer. */
static cudaError_t tapped_layers(Cuda *c, const Cut *t, double *wide) {
    cudaError_t e = cudaMemsetAsync(c->bad, 0x7f, (size_t)c->plan.max_seqs * 4, c->stream);
    if (e == cudaSuccess && t->m)
        e = cuda_step_decode_begin(c, t->m);
    if (e == cudaSuccess && t->n.m)
        e = cuda_step_prefill_begin(c, &t->n);
    if (e == cudaSuccess)
        e = tap_see(c, t, "out", -1, c->d.x, c->p.x, wide);
    for (int32_t layer = 0; e == cudaSuccess && layer < c->c.n_layers; layer++) {
        if (t->m)
            e = cuda_step_decode_layer(c, t->m, layer);
        if (e == cudaSuccess && t->n.m)
            e = cuda_step_prefill_layer(c, &t->n, layer);
        if (e == cudaSuccess && t->n.m)
            e = tap_choices(c, t, layer, wide);
        if (e == cudaSuccess)
            e = tap_see(c, t, "out", layer, c->d.x, c->p.x, wide);
    }
    return e;
}

static cudaError_t tapped_norm(Cuda *c, const Cut *t, double *wide) {
    CudaLaunch l = {.stream = c->stream};
    float eps = (float)c->c.rms_eps, *out = c->p.tap;
    cudaError_t e = cudaSuccess;
    if (t->m) // in the place of the projections, which are done with
        e = cuda_norm_f32(&l, c->d.proj, c->d.x, c->final_norm, eps, t->m, c->c.hidden);
    if (e == cudaSuccess && t->n.m)
        e = cuda_norm_f32(&l, out, c->p.x, c->final_norm, eps, t->n.m, c->c.hidden);
    if (e == cudaSuccess)
        e = tap_see(c, t, "final_norm", c->c.n_layers, c->d.proj, out, wide);
    return e;
}

static Status tapped_start(Cuda *c, const Cut *t, CudaDone *d, Err *err) {
    size_t n = (size_t)t->batch->n_rows * (size_t)max_i32(c->c.hidden, c->c.top_k);
    double *wide = mem_alloc(n * (sizeof(double) + sizeof(float)));
    if (!wide)
        return err_memory(err, "tap", n * sizeof(double));
    cudaError_t e = desc_upload(c, t, d);
    if (e == cudaSuccess)
        e = tapped_layers(c, t, wide);
    if (e == cudaSuccess)
        e = tapped_norm(c, t, wide);
    if (e == cudaSuccess && t->m)
        e = cuda_step_decode_end(c, t->m);
    if (e == cudaSuccess)
        e = decode_heads(c, t, d);
    if (e == cudaSuccess)
        e = prefill_heads(c, t, d);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(d->ids, c->sampled, 3 * (size_t)c->plan.max_seqs * 4,
                            cudaMemcpyDeviceToHost, c->stream);
    if (e == cudaSuccess)
        e = cudaEventRecord(d->event, c->stream);
    mem_free(wide);
    return cuda_failed(c, e, "starting a step", err);
}

/* Whether a decode of the batch takes an id that the host's sampler chooses. */
static bool needs_host_id(Cuda *c, const Batch *batch) {
    if (c->n_waited == c->n_submitted)
        return false;
    const CudaDone *before = done_of(c, c->n_submitted - 1);
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        const BatchSeq *s = &batch->seqs[i];
        if (s->phase == PHASE_DECODE && s->carry >= 0 && before->seqs[s->carry].is_host_sampled)
            return true;
    }
    return false;
}

static Status cuda_submit(void *self, const Batch *batch, Err *err) {
    Cuda *c = self;
    TRY(cuda_alive(c, err));
    if (needs_host_id(c, batch))
        TRY(all_finish(c, err));
    CudaDone *d = done_of(c, c->n_submitted);
    Cut t = {.batch = batch, .desc = cuda_step_desc(c, d->desc)};
    *t.desc.head = (CudaStepHead){.sampled_in = 1 - d->half, .sampled_out = d->half};
    d->n_seqs = batch->n_seqs;
    d->is_finished = false;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        const BatchSeq *s = &batch->seqs[i];
        cut_result(c, &t, d, i);
        if (s->phase == PHASE_DECODE)
            cut_decode(c, &t, i);
        else
            cut_prefill(c, &t, i);
        c->slot_tok[s->slot] = s->pos0 + s->n_rows;
    }
    step_at(c, d);
    TRY(cuda_failed(c, cuda_copy_order(c, batch), "copying", err));
    if (batch->tap)
        TRY(tapped_start(c, &t, d, err));
    else
        TRY(cuda_failed(c, step_start(c, &t, d), "starting a step", err));
    c->n_submitted++;
    return STATUS_OK;
}

/* ---- samplers ---- */

/* Whether a step in flight still has to choose with the host's sampler of that number. */
static bool is_host_busy(const Cuda *c, int32_t sampler) {
    for (uint64_t step = c->n_waited; step < c->n_submitted; step++) {
        const CudaDone *d = &c->done[step % BATCH_IN_FLIGHT];
        for (int32_t i = 0; !d->is_finished && i < d->n_seqs; i++)
            if (d->seqs[i].sampler == sampler && d->seqs[i].is_host_sampled)
                return true;
    }
    return false;
}

static Status cuda_sampler_set(void *self, int32_t sampler, const SampleParams *params,
                               const int32_t *ids, int32_t n_prompt, int32_t n_generated,
                               Err *err) {
    Cuda *c = self;
    if (is_host_busy(c, sampler))
        TRY(all_finish(c, err));
    TRY(sampler_set(c->samplers[sampler], params, ids, n_prompt, n_generated, err));
    TRY(cuda_alive(c, err));
    return sampler_fill(c, sampler, params, err);
}

/* ---- */

static Status cuda_meter(void *self, BackendMeter *out, Err *err) {
    Cuda *c = self;
    TRY(cuda_alive(c, err));
    return cuda_failed(c, cuda_card_meter(out, &c->card, c->stream), "measuring the card", err);
}

const BackendTable backend_cuda_table = {
    .kind = BACKEND_CUDA,
    .chunk_rows = 4096,
    .is_available = cuda_card_is_available,
    .is_here = cuda_card_is_here,
    .memory_free = cuda_card_memory_free,
    .needs = cuda_needs,
    .open = cuda_open,
    .close = cuda_close,
    .text = cuda_text,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .sampler_set = cuda_sampler_set,
    .slot_copy = cuda_slot_copy,
    .copy_begin = cuda_copy_begin,
    .copy_poll = cuda_copy_poll,
    .copy_wait = cuda_copy_wait,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .slot_host_bytes = cuda_slot_host_bytes,
    .block_host_bytes = cuda_block_host_bytes,
    .slot_peek = cuda_slot_peek,
    .meter = cuda_meter,
};

#endif
