// SPDX-License-Identifier: Apache-2.0
/* cuda_sampler.c - samplers on the card: their numbers, and the kernels of a choice in their order.
 *
 * Path:     cuda.c sets samplers, cuts rows, and calls cuda_sample_decode and cuda_sample_prefill
 *           behind the output head and the greedy choice.
 * Owns:     nothing; a Cuda owns its samplers.  Thread: engine.
 * Not here: the kernels (cuda_sample.cu); samplers that report log-probabilities, which run on the
 *           host. */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/checked.h"
#include "base/rng.h"

#include <string.h>

void cuda_sample_place(Cuda *c, CudaCarver *a) {
    size_t n = (size_t)c->plan.n_samplers;
    c->draws = cuda_carve(a, (size_t)c->plan.max_seqs + 1, sizeof *c->draws);
    c->card_samplers = cuda_carve(a, n, sizeof *c->card_samplers);
    c->counts = cuda_carve(a, n * (size_t)c->c.vocab, sizeof *c->counts);
    c->biases = cuda_carve(a, n * LIMIT_LOGIT_BIAS, sizeof *c->biases);
}

/* ---- setting ---- */

CudaChooser cuda_sample_chooser(const Cuda *c, const SampleParams *p) {
    bool is_drawn = p->temperature > 0;
    return (CudaChooser){
        .limit = p->n_ids > 0 ? min_i32(p->n_ids, c->c.vocab) : c->c.vocab,
        .is_host = p->n_top > 0 || p->want_logprob,
        .is_plain = !is_drawn && !sample_has_penalty(p) && p->n_bias == 0,
        .has_top_k = is_drawn && p->top_k > 0 && p->top_k < c->c.vocab,
        .has_top_p = is_drawn && p->top_p > 0 && p->top_p < 1,
    };
}

/* Entries by ascending id; those of one id keep their order. */
static void biases_sort(CudaBias *to, const LogitBias *bias, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && to[at - 1].id > bias[i].id; at--)
            to[at] = to[at - 1];
        to[at] = (CudaBias){bias[i].id, bias[i].bias};
    }
}

/* To the card, behind the steps that were submitted; from may change when it returns (it is not
 * pinned, so the driver has taken it). */
static cudaError_t put(const Cuda *c, void *to, const void *from, size_t n) {
    return n ? cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, c->stream) : cudaSuccess;
}

cudaError_t cuda_sample_set(Cuda *c, int32_t sampler, const SampleParams *p,
                            const uint32_t *counts) {
    CudaBias biases[LIMIT_LOGIT_BIAS];
    CudaChooser chooser = cuda_sample_chooser(c, p);
    CudaSampler s = {.repetition = sample_repetition(p),
                     .presence = (double)p->presence_penalty,
                     .frequency = (double)p->frequency_penalty,
                     .inverse = 1.0f / p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .top_k = chooser.has_top_k ? p->top_k : 0,
                     .limit = chooser.limit,
                     .n_bias = p->n_bias,
                     .is_greedy = p->temperature == 0,
                     .has_penalty = sample_has_penalty(p),
                     .has_top_p = chooser.has_top_p};
    biases_sort(biases, p->bias, p->n_bias);
    size_t v = (size_t)c->c.vocab, at = (size_t)sampler;
    cudaError_t e = put(c, c->card_samplers + at, &s, sizeof s);
    if (e == cudaSuccess)
        e = put(c, c->biases + at * LIMIT_LOGIT_BIAS, biases, (size_t)s.n_bias * sizeof *biases);
    if (e == cudaSuccess && s.has_penalty)
        e = put(c, c->counts + at * v, counts, v * sizeof *counts);
    return e;
}

/* ---- choosing ---- */

void cuda_sample_row(const Cuda *c, CudaRow *row, const BatchSeq *s, CudaDrawn *drawn,
                     uint32_t *allowed) {
    row->sampler = row->allowed = -1;
    if (s->sampler < 0)
        return;
    const CudaChooser *chooser = &c->choosers[s->sampler];
    row->limit = chooser->limit;
    if (chooser->is_host || (chooser->is_plain && !s->allowed))
        return;
    row->sampler = s->sampler;
    row->random = rng_u64(c->seeds[s->sampler], (uint64_t)(uint32_t)(s->pos0 + s->n_rows));
    drawn->n[s->phase]++;
    drawn->has_top_k |= chooser->has_top_k;
    drawn->has_top_p |= chooser->has_top_p;
    if (s->allowed) {
        size_t words = (size_t)div_up_i32(c->c.vocab, 32);
        row->allowed = drawn->n_allowed++;
        memcpy(allowed + (size_t)row->allowed * words, s->allowed, words * sizeof *allowed);
    }
}

static cudaError_t sample_rows(const Cuda *c, const CudaSample *a, const CudaDrawn *drawn) {
    CudaLaunch l = {.stream = c->stream, .is_chained = c->is_chained, .n_sm = c->card.n_sm};
    cudaError_t e = cuda_sample_change(&l, a);
    for (int digit = 0; e == cudaSuccess && drawn->has_top_k && digit < 3; digit++)
        e = cuda_sample_narrow(&l, a, false, digit);
    for (int digit = 0; e == cudaSuccess && drawn->has_top_p && digit < 3; digit++)
        e = cuda_sample_narrow(&l, a, true, digit);
    return e == cudaSuccess ? cuda_sample_pick(&l, a) : e;
}

static CudaSample sample_of(const Cuda *c) {
    return (CudaSample){.head = c->at.head,
                        .sampled = c->sampled,
                        .samplers = c->card_samplers,
                        .counts = c->counts,
                        .biases = c->biases,
                        .allowed = c->at.allowed,
                        .bad = c->bad,
                        .v = c->c.vocab,
                        .max_seqs = c->plan.max_seqs};
}

cudaError_t cuda_sample_decode(const Cuda *c, int32_t m, const CudaDrawn *drawn) {
    CudaSample a = sample_of(c);
    a.logits = c->d.logits;
    a.rows = c->at.decode;
    a.host = c->ids;
    a.draws = c->draws;
    a.m = m;
    return sample_rows(c, &a, drawn);
}

cudaError_t cuda_sample_prefill(const Cuda *c, int32_t first, int32_t i, const CudaDrawn *drawn) {
    CudaSample a = sample_of(c);
    a.logits = c->p.logits + (int64_t)i * c->c.vocab;
    a.rows = c->at.rows;
    a.list = c->at.list + first + i;
    a.draws = c->draws + c->plan.max_seqs;
    a.m = 1;
    return sample_rows(c, &a, drawn);
}

#endif
