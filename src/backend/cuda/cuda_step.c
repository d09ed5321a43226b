// SPDX-License-Identifier: Apache-2.0
/* cuda_step.c - the order of a step: which kernels run on which numbers. Read
 * cuda_step_decode_layer and cuda_step_prefill_layer first.
 *
 * Path:     cuda.c fills the descriptor, then calls these, or replays the graph of a decode step.
 * Owns:     nothing.  Thread: engine.
 * Not here: what a kernel does (cuda_kernels.h). */
#ifdef LILY_HAS_CUDA

#include "backend/cuda/cuda_self.h"
#include "base/checked.h"

#define FORWARD(call)                                                                              \
    do {                                                                                           \
        cudaError_t forward_ = (call);                                                             \
        if (forward_ != cudaSuccess)                                                               \
            return forward_;                                                                       \
    } while (0)

/* ---- places ---- */

static CudaDigits place_digits(CudaCarver *a, size_t rows, int32_t k) {
    size_t groups = rows * (size_t)(k / CUDA_GROUP);
    CudaDigits d;
    d.digit = cuda_carve(a, groups * 32, sizeof(uint32_t));
    d.scale = cuda_carve(a, groups * 2, sizeof(float));
    d.factor = cuda_carve(a, rows, sizeof(float));
    return d;
}

static int32_t mixer_width(const ModelConfig *c) {
    return max_i32(config_gdn_value_dim(c), config_q_dim(c));
}

static void place_decode(Cuda *c, CudaCarver *a) {
    CudaDecode *d = &c->d;
    const ModelConfig *m = &c->c;
    size_t n = (size_t)c->plan.max_seqs, pairs = n * (size_t)m->top_k;
    size_t ld = (size_t)max_i32(c->ld_gdn, c->ld_attn);
    size_t pieces = n * (size_t)m->n_q_heads * CUDA_MAX_SPLITS;
    d->x = cuda_carve(a, n * (size_t)m->hidden, 4);
    d->proj = cuda_carve(a, n * ld, 4);
    d->in = place_digits(a, n, m->hidden);
    d->mix = place_digits(a, n, mixer_width(m));
    d->router = cuda_carve(a, n * (size_t)c->ld_router, 4);
    d->id = cuda_carve(a, pairs, 4);
    d->weight = cuda_carve(a, pairs, 4);
    d->act = cuda_carve(a, pairs * (size_t)m->expert_inner, 4);
    d->shared_act = cuda_carve(a, n * (size_t)m->shared_inner, 4);
    d->y = cuda_carve(a, (pairs + n) * (size_t)m->hidden, 4);
    d->part = cuda_carve(a, pieces * ATTN_HEAD, 4);
    d->part_ml = cuda_carve(a, pieces * 2, 4);
    d->logits = cuda_carve(a, n * (size_t)m->vocab, 4);
    d->best = cuda_carve(a, (n + CUDA_HEAD_ROWS) * CUDA_ARGMAX_BLOCKS, 8);
    d->count = cuda_carve(a, n + CUDA_HEAD_ROWS + 1, 4); // of argmax rows; the last of the router
}

static void place_prefill(Cuda *c, CudaCarver *a) {
    CudaPrefill *p = &c->p;
    const ModelConfig *m = &c->c;
    size_t n = (size_t)c->plan.max_rows, h = (size_t)m->hidden, pairs = n * (size_t)m->top_k;
    size_t vd = (size_t)config_gdn_value_dim(m), qd = (size_t)config_q_dim(m);
    size_t chunks = n / RECUR_CHUNK + (size_t)c->plan.max_seqs;
    p->x = cuda_carve(a, n * h, 4);
    p->u = cuda_carve(a, n * h, 2);
    p->in = place_digits(a, n, m->hidden);
    p->router = cuda_carve(a, n * (size_t)c->ld_router, 4);
    p->id = cuda_carve(a, pairs, 4);
    p->weight = cuda_carve(a, pairs, 4);
    p->head = place_digits(a, CUDA_HEAD_ROWS, m->hidden);
    p->logits = cuda_carve(a, CUDA_HEAD_ROWS * (size_t)m->vocab, 4);
    p->tap = cuda_carve(a, max_size(n, (size_t)c->plan.max_seqs) * h, 4);
    size_t mark = a->used; // from here on the mixers, then the experts
    p->proj = cuda_carve(a, n * (size_t)max_i32(c->ld_gdn, c->ld_attn), 2);
    p->mixed = cuda_carve(a, n * (size_t)mixer_width(m), 2);
    size_t mixer = a->used;
    p->keys = cuda_carve(a, chunks * (size_t)m->n_gdn_key_heads, CUDA_DELTA_KEYS);
    p->mix = cuda_carve(a, chunks * (size_t)m->n_gdn_value_heads, CUDA_DELTA_MIX);
    p->v = cuda_carve(a, chunks * RECUR_CHUNK * vd, 4);
    p->delta = cuda_carve(a, n * vd, 4);
    a->used = mixer;
    p->attn_q = cuda_carve(a, n * qd, 2);
    CudaAttnSize attn = {m->n_q_heads,     m->n_kv_heads,   c->plan.max_rows,
                         c->plan.max_seqs, c->plan.max_ctx, CUDA_SEGMENT_KEYS};
    p->attn_part = cuda_carve(a, cuda_attn_part_bytes(&attn), 1);
    a->used = mark;
    p->list = cuda_carve(a, pairs, 4);
    p->item = cuda_carve(a, (pairs / CUDA_ITEM_PAIRS + (size_t)m->n_experts) * 3, 4);
    p->act = cuda_carve(a, pairs * (size_t)m->expert_inner, 2);
    p->y = cuda_carve(a, pairs * h, 2);
    p->shared_act = cuda_carve(a, n * (size_t)m->shared_inner, 2);
    p->shared_y = cuda_carve(a, n * h, 2);
    a->used = a->most;
}

CudaDesc cuda_step_desc(const Cuda *c, char *base) {
    CudaCarver a = {.base = base};
    size_t seqs = (size_t)c->plan.max_seqs, rows = (size_t)c->plan.max_rows;
    CudaDesc d;
    d.head = cuda_carve(&a, 1, sizeof *d.head);
    d.decode = cuda_carve(&a, seqs, sizeof *d.decode);
    d.table = cuda_carve(&a, seqs * (size_t)c->seq_blocks, sizeof *d.table);
    d.prefill_at = a.used;
    d.rows = cuda_carve(&a, rows, sizeof *d.rows);
    d.seqs = cuda_carve(&a, seqs, sizeof *d.seqs);
    d.chunks = cuda_carve(&a, rows / RECUR_CHUNK + seqs, sizeof *d.chunks);
    d.snaps = cuda_carve(&a, rows / RECUR_CHUNK + seqs, sizeof *d.snaps);
    d.tiles = cuda_carve(&a, rows + seqs, sizeof *d.tiles);
    d.list = cuda_carve(&a, rows, sizeof *d.list);
    d.allowed = cuda_carve(&a, seqs * (size_t)div_up_i32(c->c.vocab, 32), sizeof *d.allowed);
    d.size = a.used;
    return d;
}

size_t cuda_step_place(Cuda *c, char *base) {
    CudaCarver a = {.base = base};
    c->desc_size = cuda_step_desc(c, NULL).size;
    c->desc = cuda_carve(&a, BATCH_IN_FLIGHT * c->desc_size, 1);
    c->sampled = cuda_carve(&a, 3 * (size_t)c->plan.max_seqs, 4);
    cuda_sample_place(c, &a);
    place_decode(c, &a);
    place_prefill(c, &a);
    if (base) {
        for (size_t i = 0; i < BATCH_IN_FLIGHT; i++) {
            c->done[i].place = c->desc + i * c->desc_size;
            c->done[i].at = cuda_step_desc(c, c->done[i].place);
        }
        c->bad = c->sampled + 2 * c->plan.max_seqs;
    }
    return a.most;
}

/* ---- parts that both phases share ---- */

static CudaBad bad_of(const Cuda *c, const CudaRow *rows, int32_t layer) {
    return (CudaBad){.bad = c->bad, .rows = rows, .layer = layer};
}

static CudaGdn gdn_of(const Cuda *c, const CudaLayer *l) {
    int64_t state = (int64_t)l->place * c->c.n_gdn_value_heads * GDN_HEAD * GDN_HEAD * 4;
    int64_t ring = c->slot_ring + (int64_t)l->place * CONV_TAPS * config_conv_dim(&c->c) * 2;
    return (CudaGdn){
        .conv = l->conv,
        .a_log = l->a_log,
        .dt_bias = l->dt_bias,
        .norm = l->gdn_norm,
        .state = (float *)(c->slots + state),
        .ring = (uint16_t *)(c->slots + ring),
        .slot_stride = (int64_t)c->slot_size,
        .hk = c->c.n_gdn_key_heads,
        .hv = c->c.n_gdn_value_heads,
        .eps = (float)c->c.rms_eps,
    };
}

static CudaAttn attn_of(const Cuda *c, const CudaLayer *l) {
    int64_t layer = (int64_t)l->place * 2 * KV_BLOCK * config_kv_dim(&c->c) * 2;
    return (CudaAttn){
        .q_norm = l->q_norm,
        .k_norm = l->k_norm,
        .rope = c->rope,
        .kv = (uint16_t *)(c->kv + layer),
        .block_stride = (int64_t)c->block_size,
        .table = c->at.table,
        .nq = c->c.n_q_heads,
        .nkv = c->c.n_kv_heads,
        .eps = (float)c->c.rms_eps,
    };
}

static CudaRoute route_of(const Cuda *c, float *logits, int32_t *id, float *weight, int32_t m) {
    return (CudaRoute){
        .logits = logits,
        .ld = c->ld_router,
        .n_experts = c->c.n_experts,
        .top_k = c->c.top_k,
        .is_norm = c->c.is_norm_topk,
        .id = id,
        .weight = weight,
        .m = m,
    };
}

/* ---- decode ---- */

static CudaLaunch decode_launch(const Cuda *c) {
    return (CudaLaunch){.stream = c->stream,
                        .is_chained = c->is_chained,
                        .n_sm = c->card.n_sm,
                        .max_shared = c->max_shared};
}

/* Normalised x as the source of a product: one row on the way, several by a kernel of their own. */
static cudaError_t decode_source(Cuda *c, const CudaLaunch *l, CudaSource *out, const float *gain,
                                 int32_t m) {
    *out = (CudaSource){.digits = c->d.in, .eps = (float)c->c.rms_eps, .m = m};
    if (m == 1) {
        out->x = c->d.x;
        out->gain = gain;
        return cudaSuccess;
    }
    CudaNorm norm = {.x = c->d.x,
                     .gain = gain,
                     .digits = c->d.in,
                     .eps = (float)c->c.rms_eps,
                     .m = m,
                     .k = c->c.hidden};
    return cuda_norm(l, &norm);
}

cudaError_t cuda_step_decode_begin(Cuda *c, int32_t m) {
    CudaLaunch l = decode_launch(c);
    CudaEmbed embed = {.w = c->embed,
                       .rows = c->at.decode,
                       .head = c->at.head,
                       .sampled = c->sampled,
                       .x = c->d.x,
                       .m = m,
                       .max_seqs = c->plan.max_seqs,
                       .bad = c->bad,
                       .n_bad = c->plan.max_seqs};
    return cuda_embed(&l, &embed);
}

static cudaError_t decode_mixer(Cuda *c, const CudaLaunch *l, const CudaLayer *y, int32_t m,
                                int32_t layer) {
    CudaSource src;
    FORWARD(decode_source(c, l, &src, y->input_norm, m));
    CudaMatvec in = {.w = y->in, .src = src, .y = c->d.proj};
    in.ldy = y->is_attn ? c->ld_attn : c->ld_gdn;
    FORWARD(cuda_matvec(l, &in));
    CudaDigits mix = c->d.mix;
    mix.factor = NULL;
    if (y->is_attn) {
        CudaAttnDecode a = {.t = attn_of(c, y),
                            .proj = c->d.proj,
                            .rows = c->at.decode,
                            .part = c->d.part,
                            .part_ml = c->d.part_ml,
                            .out = mix,
                            .ld = c->ld_attn,
                            .m = m};
        FORWARD(cuda_attn_decode(l, &a));
    } else {
        CudaGdnDecode a = {.g = gdn_of(c, y),
                           .proj = c->d.proj,
                           .rows = c->at.decode,
                           .out = mix,
                           .ld = c->ld_gdn,
                           .m = m};
        FORWARD(cuda_gdn_decode(l, &a));
    }
    CudaMatvec out = {.w = y->out,
                      .src = {.digits = mix, .m = m},
                      .y = c->d.x,
                      .ldy = c->c.hidden,
                      .is_add = 1,
                      .bad = bad_of(c, c->at.decode, layer)};
    return cuda_matvec(l, &out);
}

static cudaError_t decode_experts(Cuda *c, const CudaLaunch *l, const CudaLayer *y, int32_t m,
                                  int32_t layer) {
    CudaSource src;
    FORWARD(decode_source(c, l, &src, y->post_norm, m));
    CudaRouter router = {.router = y->router,
                         .shared = y->shared_up,
                         .src = src,
                         .route = route_of(c, c->d.router, c->d.id, c->d.weight, m),
                         .act = c->d.shared_act,
                         .count = c->d.count + c->plan.max_seqs + CUDA_HEAD_ROWS};
    CudaExperts up = {.w = y->expert_up,
                      .src = src,
                      .id = c->d.id,
                      .route = router.route,
                      .act = c->d.act,
                      .inner = c->c.expert_inner,
                      .top_k = c->c.top_k};
    CudaMatvec logits = {.w = y->router, .src = src, .y = c->d.router, .ldy = c->ld_router};
    if (cuda_wide_fits(l, &logits)) { // the shared expert among the others
        FORWARD(cuda_matvec(l, &logits));
        FORWARD(cuda_route(l, &router.route));
        up.shared = y->shared_up;
        up.shared_act = c->d.shared_act;
    } else {
        FORWARD(cuda_router(l, &router));
    }
    FORWARD(cuda_experts_up(l, &up));
    CudaDown down = {.w = y->expert_down,
                     .shared = y->shared_down,
                     .act = c->d.act,
                     .shared_act = c->d.shared_act,
                     .id = c->d.id,
                     .weight = c->d.weight,
                     .route = router.route,
                     .mix = c->d.router + c->c.n_experts,
                     .x = c->d.x,
                     .y = c->d.y,
                     .ld_mix = c->ld_router,
                     .m = m,
                     .h = c->c.hidden,
                     .top_k = c->c.top_k,
                     .bad = bad_of(c, c->at.decode, layer)};
    return cuda_experts_down(l, &down);
}

cudaError_t cuda_step_decode_layer(Cuda *c, int32_t m, int32_t layer) {
    CudaLaunch l = decode_launch(c);
    FORWARD(decode_mixer(c, &l, &c->layers[layer], m, layer));
    return decode_experts(c, &l, &c->layers[layer], m, layer);
}

cudaError_t cuda_step_decode_end(Cuda *c, int32_t m) {
    CudaLaunch l = decode_launch(c);
    CudaSource src;
    FORWARD(decode_source(c, &l, &src, c->final_norm, m));
    CudaMatvec head = {.w = c->head, .src = src, .y = c->d.logits, .ldy = c->c.vocab};
    FORWARD(cuda_matvec(&l, &head));
    CudaArgmax best = {.logits = c->d.logits,
                       .rows = c->at.decode,
                       .head = c->at.head,
                       .sampled = c->sampled,
                       .best = c->d.best,
                       .count = c->d.count,
                       .host = c->ids,
                       .m = m,
                       .v = c->c.vocab,
                       .max_seqs = c->plan.max_seqs,
                       .bad = bad_of(c, c->at.decode, c->c.n_layers)};
    return cuda_argmax(&l, &best);
}

cudaError_t cuda_step_decode(Cuda *c, int32_t m) {
    FORWARD(cuda_step_decode_begin(c, m));
    for (int32_t layer = 0; layer < c->c.n_layers; layer++)
        FORWARD(cuda_step_decode_layer(c, m, layer));
    return cuda_step_decode_end(c, m);
}

/* ---- prefill ---- */

static CudaLaunch prefill_launch(const Cuda *c) {
    return (CudaLaunch){.stream = c->stream,
                        .is_chained = c->is_chained,
                        .n_sm90 = c->n_sm90,
                        .n_sm = c->card.n_sm,
                        .max_shared = c->max_shared};
}

cudaError_t cuda_step_prefill_begin(Cuda *c, const CudaPrefillCounts *n) {
    CudaLaunch l = prefill_launch(c);
    CudaEmbed embed = {.w = c->embed,
                       .rows = c->at.rows,
                       .head = c->at.head,
                       .sampled = c->sampled,
                       .x = c->p.x,
                       .m = n->m,
                       .max_seqs = c->plan.max_seqs};
    return cuda_embed(&l, &embed);
}

static cudaError_t prefill_norm(Cuda *c, const CudaLaunch *l, const float *gain, int32_t m,
                                bool with_digits) {
    CudaNorm norm = {.x = c->p.x,
                     .gain = gain,
                     .u = c->p.u,
                     .eps = (float)c->c.rms_eps,
                     .m = m,
                     .k = c->c.hidden};
    if (with_digits)
        norm.digits = c->p.in;
    return cuda_norm(l, &norm);
}

static cudaError_t prefill_gdn(Cuda *c, const CudaLaunch *l, const CudaLayer *y,
                               const CudaPrefillCounts *n) {
    CudaGdnPrefill a = {.g = gdn_of(c, y),
                        .proj = c->p.proj,
                        .rows = c->at.rows,
                        .seqs = c->at.seqs,
                        .chunks = c->at.chunks,
                        .snaps = c->at.snaps,
                        .keys = c->p.keys,
                        .mix = c->p.mix,
                        .v = c->p.v,
                        .delta = c->p.delta,
                        .out = c->p.mixed,
                        .ld = c->ld_gdn,
                        .m = n->m,
                        .n_seqs = n->n_seqs,
                        .n_chunks = n->n_chunks,
                        .max_shared = c->max_shared};
    return cuda_gdn_prefill(l, &a);
}

static cudaError_t prefill_attn(Cuda *c, const CudaLaunch *l, const CudaLayer *y,
                                const CudaPrefillCounts *n) {
    CudaAttnPrefill a = {.t = attn_of(c, y),
                         .proj = c->p.proj,
                         .rows = c->at.rows,
                         .seqs = c->at.seqs,
                         .tiles = c->at.tiles,
                         .q = c->p.attn_q,
                         .out = c->p.mixed,
                         .part = c->p.attn_part,
                         .segment = CUDA_SEGMENT_KEYS,
                         .most_keys = n->most_keys,
                         .ld = c->ld_attn,
                         .m = n->m,
                         .n_tiles = n->n_tiles,
                         .max_shared = c->max_shared};
    return cuda_attn_prefill(l, &a);
}

static cudaError_t prefill_mixer(Cuda *c, const CudaLaunch *l, const CudaLayer *y,
                                 const CudaPrefillCounts *n, int32_t layer) {
    FORWARD(prefill_norm(c, l, y->input_norm, n->m, false));
    CudaMatmul in = {.w = y->in, .u = c->p.u, .y = c->p.proj, .m = n->m};
    in.ldy = y->is_attn ? c->ld_attn : c->ld_gdn;
    FORWARD(cuda_matmul(l, &in));
    FORWARD(y->is_attn ? prefill_attn(c, l, y, n) : prefill_gdn(c, l, y, n));
    CudaMatmul out = {.w = y->out,
                      .u = c->p.mixed,
                      .y = c->p.x,
                      .m = n->m,
                      .ldy = c->c.hidden,
                      .epilogue = CUDA_ADD,
                      .bad = bad_of(c, c->at.rows, layer)};
    return cuda_matmul(l, &out);
}

/* Every (row, choice) pair through its expert: pairs sorted by expert, results back at the pair. */
static cudaError_t prefill_routed(Cuda *c, const CudaLaunch *l, const CudaLayer *y, int32_t m) {
    int32_t pairs = m * c->c.top_k, tile = cuda_matmul_item_pairs(l);
    int32_t items = pairs / tile + c->c.n_experts;
    CudaGroup group = {.id = c->p.id,
                       .n_pairs = pairs,
                       .n_experts = c->c.n_experts,
                       .tile = tile,
                       .list = c->p.list,
                       .item = c->p.item,
                       .max_items = items};
    FORWARD(cuda_group(l, &group));
    CudaMatmul up = {.w = y->expert_up,
                     .u = c->p.u,
                     .y = c->p.act,
                     .list = c->p.list,
                     .item = c->p.item,
                     .m = pairs,
                     .ldy = c->c.expert_inner,
                     .n_items = items,
                     .n_expert = 2 * c->c.expert_inner,
                     .src_div = c->c.top_k,
                     .is_sorted_y = 1,
                     .epilogue = CUDA_SWIGLU};
    FORWARD(cuda_matmul(l, &up));
    CudaMatmul down = {.w = y->expert_down,
                       .u = c->p.act,
                       .y = c->p.y,
                       .list = c->p.list,
                       .item = c->p.item,
                       .m = pairs,
                       .ldy = c->c.hidden,
                       .n_items = items,
                       .n_expert = c->c.hidden,
                       .epilogue = CUDA_STORE};
    return cuda_matmul(l, &down);
}

static cudaError_t prefill_experts(Cuda *c, const CudaLaunch *l, const CudaLayer *y, int32_t m,
                                   int32_t layer) {
    FORWARD(prefill_norm(c, l, y->post_norm, m, true));
    CudaMatvec router = {
        .w = y->router, .src = {.digits = c->p.in, .m = m}, .y = c->p.router, .ldy = c->ld_router};
    FORWARD(cuda_matvec(l, &router));
    CudaRoute route = route_of(c, c->p.router, c->p.id, c->p.weight, m);
    FORWARD(cuda_route(l, &route));
    FORWARD(prefill_routed(c, l, y, m));
    CudaMatmul up = {.w = y->shared_up,
                     .u = c->p.u,
                     .y = c->p.shared_act,
                     .m = m,
                     .ldy = c->c.shared_inner,
                     .epilogue = CUDA_SWIGLU};
    FORWARD(cuda_matmul(l, &up));
    CudaMatmul down = {
        .w = y->shared_down, .u = c->p.shared_act, .y = c->p.shared_y, .m = m, .ldy = c->c.hidden};
    FORWARD(cuda_matmul(l, &down));
    CudaCombine combine = {.x = c->p.x,
                           .y = c->p.y,
                           .weight = c->p.weight,
                           .shared = c->p.shared_y,
                           .mix = c->p.router + c->c.n_experts,
                           .ld_mix = c->ld_router,
                           .m = m,
                           .h = c->c.hidden,
                           .top_k = c->c.top_k,
                           .bad = bad_of(c, c->at.rows, layer)};
    return cuda_combine(l, &combine);
}

cudaError_t cuda_step_prefill_layer(Cuda *c, const CudaPrefillCounts *n, int32_t layer) {
    CudaLaunch l = prefill_launch(c);
    FORWARD(prefill_mixer(c, &l, &c->layers[layer], n, layer));
    return prefill_experts(c, &l, &c->layers[layer], n->m, layer);
}

cudaError_t cuda_step_prefill_head(Cuda *c, int32_t first, int32_t m) {
    CudaLaunch l = prefill_launch(c);
    CudaNorm norm = {.x = c->p.x,
                     .gain = c->final_norm,
                     .list = c->at.list + first,
                     .digits = c->p.head,
                     .eps = (float)c->c.rms_eps,
                     .m = m,
                     .k = c->c.hidden};
    FORWARD(cuda_norm(&l, &norm));
    CudaMatvec head = {
        .w = c->head, .src = {.digits = c->p.head, .m = m}, .y = c->p.logits, .ldy = c->c.vocab};
    return cuda_matvec(&l, &head);
}

cudaError_t cuda_step_prefill_choose(Cuda *c, int32_t first, int32_t i) {
    CudaLaunch l = prefill_launch(c);
    CudaArgmax best = {.logits = c->p.logits + (int64_t)i * c->c.vocab,
                       .list = c->at.list + first + i,
                       .rows = c->at.rows,
                       .head = c->at.head,
                       .sampled = c->sampled,
                       .best = c->d.best + (int64_t)c->plan.max_seqs * CUDA_ARGMAX_BLOCKS,
                       .count = c->d.count + c->plan.max_seqs,
                       .m = 1,
                       .v = c->c.vocab,
                       .max_seqs = c->plan.max_seqs,
                       .bad = bad_of(c, c->at.rows, c->c.n_layers)};
    return cuda_argmax(&l, &best);
}

#endif
