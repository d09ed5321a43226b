// SPDX-License-Identifier: Apache-2.0
/* cuda_copy.c - state slots and KV blocks: lists of copies to and from host memory that travel
 * beside the steps, copies among slots, a look into a slot.
 *
 * Path:     cuda.c puts these functions into its table, and asks cuda_copy_order before a step.
 * Order:    lists run on a stream of their own, one after the other, each behind the steps that
 *           were submitted before it (`ready`). The stream of the steps waits for a list (its
 *           `done`) where a step or a copy among slots would overwrite what the list still reads,
 *           or use what it has not yet brought.
 * Owns:     see CudaCopies.  Thread: engine. */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/bf16.h"
#include "base/checked.h"
#include "base/mem.h"

#include <string.h>

/* ---- open and close ---- */

static cudaError_t event_make(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDisableTiming);
}

Status cuda_copies_open(Cuda *c, Err *err) {
    CudaCopies *s = &c->copies;
    size_t slots = (size_t)c->plan.n_slots, blocks = (size_t)c->plan.n_blocks;
    c->slot_tok = mem_zalloc(slots, sizeof *c->slot_tok);
    s->slots = mem_zalloc(slots, sizeof *s->slots);
    s->blocks = mem_zalloc(blocks, sizeof *s->blocks);
    if (!c->slot_tok || !s->slots || !s->blocks)
        return err_memory(err, "slots and blocks", (slots + blocks) * sizeof *s->slots);
    TRY(cuda_status(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "making a stream",
                    err));
    TRY(cuda_status(event_make(&s->ready), "making an event", err));
    for (int i = 0; i < COPY_LISTS; i++)
        TRY(cuda_status(event_make(&s->done[i]), "making an event", err));
    return STATUS_OK;
}

void cuda_copies_close(Cuda *c) {
    CudaCopies *s = &c->copies;
    if (s->stream)
        cudaStreamSynchronize(s->stream);
    if (s->ready)
        cudaEventDestroy(s->ready);
    for (int i = 0; i < COPY_LISTS; i++)
        if (s->done[i])
            cudaEventDestroy(s->done[i]);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    mem_free(s->slots);
    mem_free(s->blocks);
    mem_free(c->slot_tok);
}

/* ---- order ---- */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static cudaEvent_t list_done(const CudaCopies *s, uint64_t list) {
    return s->done[list % COPY_LISTS];
}

/* Counts the lists that have been finished since. */
static cudaError_t lists_count(CudaCopies *s) {
    while (s->n_done < s->n_begun) {
        cudaError_t e = cudaEventQuery(list_done(s, s->n_done + 1));
        if (e == cudaErrorNotReady) {
            (void)cudaGetLastError(); // it is none, and a later call must not be told
            return cudaSuccess;
        }
        if (e != cudaSuccess)
            return e;
        s->n_done++;
    }
    return cudaSuccess;
}

/* What the stream of the steps is given next starts behind a list; 0: behind none. */
static cudaError_t list_order(Cuda *c, uint64_t list) {
    CudaCopies *s = &c->copies;
    return list > s->n_done ? cudaStreamWaitEvent(c->stream, list_done(s, list), 0) : cudaSuccess;
}

/* The last list that a sequence of a step must not come before. */
static uint64_t seq_list(const CudaCopies *s, const BatchSeq *seq) {
    uint64_t list = s->slots[seq->slot].any;
    for (int32_t i = 0; i < seq->n_snaps; i++)
        list = later(list, s->slots[seq->snaps[i].slot].any);
    int32_t n = div_up_i32(seq->pos0 + seq->n_rows, KV_BLOCK), first_written = seq->pos0 / KV_BLOCK;
    for (int32_t i = 0; i < n; i++) {
        const CudaTouch *block = &s->blocks[seq->blocks[i]];
        list = later(list, i < first_written ? block->restored : block->any);
    }
    return list;
}

cudaError_t cuda_copy_order(Cuda *c, const Batch *batch) {
    CudaCopies *s = &c->copies;
    cudaError_t e = lists_count(s);
    if (e != cudaSuccess || s->n_done == s->n_begun)
        return e;
    uint64_t list = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++)
        list = later(list, seq_list(s, &batch->seqs[i]));
    return list_order(c, list);
}

/* ---- lists ---- */

/* A saved slot: its bytes, then the tokens that it has seen, in a last piece of CUDA_ALIGN. */
uint64_t cuda_slot_host_bytes(const void *self) {
    return ((const Cuda *)self)->slot_size + CUDA_ALIGN;
}

uint64_t cuda_block_host_bytes(const void *self) { return ((const Cuda *)self)->block_size; }

static char *slot_at(const Cuda *c, int32_t slot) { return c->slots + (size_t)slot * c->slot_size; }

static cudaError_t copy_start(Cuda *c, const BackendCopy *copy) {
    char *at =
        copy->is_slot ? slot_at(c, copy->index) : c->kv + (size_t)copy->index * c->block_size;
    size_t bytes = copy->is_slot ? c->slot_size : c->block_size;
    if (copy->is_slot && copy->to) {
        char *last = (char *)copy->to + bytes;
        memset(last, 0, CUDA_ALIGN);
        memcpy(last, &c->slot_tok[copy->index], sizeof *c->slot_tok);
    } else if (copy->is_slot) {
        memcpy(&c->slot_tok[copy->index], (const char *)copy->from + bytes, sizeof *c->slot_tok);
    }
    return copy->to
               ? cudaMemcpyAsync(copy->to, at, bytes, cudaMemcpyDeviceToHost, c->copies.stream)
               : cudaMemcpyAsync(at, copy->from, bytes, cudaMemcpyHostToDevice, c->copies.stream);
}

static cudaError_t list_start(Cuda *c, const BackendCopy *copies, int32_t n) {
    CudaCopies *s = &c->copies;
    cudaError_t e = cudaEventRecord(s->ready, c->stream);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(s->stream, s->ready, 0);
    for (int32_t i = 0; e == cudaSuccess && i < n; i++)
        e = copy_start(c, &copies[i]);
    return e == cudaSuccess ? cudaEventRecord(list_done(s, s->n_begun + 1), s->stream) : e;
}

Status cuda_copy_begin(void *self, const BackendCopy *copies, int32_t n, Err *err) {
    Cuda *c = self;
    CudaCopies *s = &c->copies;
    TRY(cuda_alive(c, err));
    if (s->n_begun - s->n_done == COPY_LISTS) // its event is needed again
        TRY(cuda_copy_wait(c, s->n_done + 1, err));
    cudaError_t e = list_start(c, copies, n);
    if (e != cudaSuccess) {
        (void)cudaStreamSynchronize(s->stream); // the caller gets its memory back
        return cuda_failed(c, e, "starting copies", err);
    }
    s->n_begun++;
    for (int32_t i = 0; i < n; i++) {
        CudaTouch *touch = &(copies[i].is_slot ? s->slots : s->blocks)[copies[i].index];
        touch->any = s->n_begun;
        if (copies[i].from)
            touch->restored = s->n_begun;
    }
    return STATUS_OK;
}

Status cuda_copy_poll(void *self, uint64_t ticket, bool *is_finished, Err *err) {
    Cuda *c = self;
    if (ticket > c->copies.n_done) {
        TRY(cuda_alive(c, err));
        TRY(cuda_failed(c, lists_count(&c->copies), "copying", err));
    }
    *is_finished = ticket <= c->copies.n_done;
    return STATUS_OK;
}

Status cuda_copy_wait(void *self, uint64_t ticket, Err *err) {
    Cuda *c = self;
    CudaCopies *s = &c->copies;
    if (ticket <= s->n_done)
        return STATUS_OK;
    TRY(cuda_alive(c, err));
    TRY(cuda_failed(c, cudaEventSynchronize(list_done(s, ticket)), "copying", err));
    s->n_done = ticket;
    return STATUS_OK;
}

void *cuda_host_alloc(void *self, size_t bytes) {
    Cuda *c = self;
    void *p = NULL;
    if (cuda_alive(c, NULL) != STATUS_OK ||
        cudaHostAlloc(&p, bytes, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return p;
}

void cuda_host_free(void *self, void *p) {
    UNUSED(self);
    (void)cudaFreeHost(p);
    (void)cudaGetLastError();
}

/* ---- among slots, and a look ---- */

void cuda_slot_copy(void *self, int32_t to, int32_t from) {
    Cuda *c = self;
    const CudaTouch *touch = c->copies.slots;
    c->slot_tok[to] = c->slot_tok[from];
    if (to == from || c->failed != STATUS_OK)
        return;
    cudaError_t e = list_order(c, later(touch[to].any, touch[from].restored));
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(slot_at(c, to), slot_at(c, from), c->slot_size,
                            cudaMemcpyDeviceToDevice, c->stream);
    if (e != cudaSuccess && cuda_failed(c, e, "copying a state slot", NULL) == STATUS_OK)
        CHECK(!"a failure has a status");
}

/* The ring holds the row of position p at p % 4; the window is the last three, zeros before 0. */
static void window_of(double *out, const uint16_t *ring, int32_t n_tok, int32_t cc) {
    for (int32_t i = 0; i < CONV_TAPS - 1; i++) {
        int32_t pos = n_tok - (CONV_TAPS - 1) + i;
        for (int32_t ch = 0; ch < cc; ch++)
            out[i * cc + ch] = pos < 0 ? 0 : (double)bf16_to_f32(ring[pos % CONV_TAPS * cc + ch]);
    }
}

Status cuda_slot_peek(void *self, int32_t slot, int layer, double *s, double *window, Err *err) {
    Cuda *c = self;
    int32_t cc = config_conv_dim(&c->c);
    size_t place = (size_t)c->layers[layer].place;
    size_t n = (size_t)c->c.n_gdn_value_heads * GDN_HEAD * GDN_HEAD;
    size_t ring = CONV_TAPS * (size_t)cc;
    TRY(cuda_alive(c, err));
    char *host = mem_alloc(n * 4 + ring * 2);
    if (!host)
        return err_memory(err, "state", n * 4);
    const char *at = slot_at(c, slot);
    cudaError_t e = list_order(c, c->copies.slots[slot].restored);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(host, at + place * n * 4, n * 4, cudaMemcpyDeviceToHost, c->stream);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(host + n * 4, at + c->slot_ring + place * ring * 2, ring * 2,
                            cudaMemcpyDeviceToHost, c->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->stream);
    if (e == cudaSuccess) {
        for (size_t i = 0; i < n; i++)
            s[i] = (double)((const float *)host)[i];
        window_of(window, (const uint16_t *)(host + n * 4), c->slot_tok[slot], cc);
    }
    mem_free(host);
    return cuda_failed(c, e, "reading a state slot", err);
}

#endif
