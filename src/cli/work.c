// SPDX-License-Identifier: Apache-2.0
/* work.c - bytes and operations from the shapes of the slots.
 *
 * Owns:     nothing.  Thread: any. */
#include "cli/work.h"

/* Whether a slot is a matrix that every row of a step goes through. */
static bool work_is_dense(WeightSlot slot) {
    return slot != SLOT_EMBED && slot != SLOT_HEAD && slot != SLOT_EXPERT_GATE &&
           slot != SLOT_EXPERT_UP && slot != SLOT_EXPERT_DOWN;
}

void work_init(Work *out, const Weights *w) {
    const ModelConfig *c = weights_config(w);
    *out = (Work){0};
    for (int layer = -1; layer < c->n_layers; layer++) {
        for (int s = 0; s < SLOT_N; s++) {
            WeightSlot slot = (WeightSlot)s;
            if (!weights_has(w, slot, layer))
                continue;
            WeightInfo info = weights_info(w, slot, layer);
            double flop = info.bits ? 2.0 * info.n * info.k : 0;
            double bytes = (double)info.n_bytes;
            if (work_is_dense(slot)) {
                out->dense_bytes += bytes;
                out->flop += flop;
            } else if (slot == SLOT_EMBED || slot == SLOT_HEAD) {
                out->row_bytes = slot == SLOT_EMBED ? bytes / info.n : out->row_bytes;
                out->head_bytes = bytes; // tied: the embedding is the head
                out->head_flop = flop;
            } else {
                if (layer == 0)
                    out->expert_bytes += bytes / info.n_experts;
                out->flop += flop * c->top_k;
            }
        }
    }
    int32_t n_attn = config_n_attn_layers(c), n_gdn = c->n_layers - n_attn;
    double state = (double)c->n_gdn_value_heads * GDN_HEAD * GDN_HEAD;
    out->state_bytes = n_gdn * (state * 4 + 3.0 * config_conv_dim(c) * 2) * 2;
    out->kv_bytes = n_attn * 2.0 * config_kv_dim(c) * 2;
    out->recur_flop = n_gdn * state * 7; // decay, two products of two, one update of two
    out->attn_flop = n_attn * 4.0 * config_q_dim(c);
}

WorkDone work_decode(const Work *w, int32_t ctx, int32_t n_steps, uint64_t n_expert_reads) {
    double positions = (double)n_steps * (ctx + (n_steps + 1) * 0.5); // keys read in all
    return (WorkDone){
        .bytes = n_steps * (w->dense_bytes + w->head_bytes + w->row_bytes + w->state_bytes +
                            w->kv_bytes) +
                 (double)n_expert_reads * w->expert_bytes + positions * w->kv_bytes,
        .flop = n_steps * (w->flop + w->head_flop + w->recur_flop) + positions * w->attn_flop,
    };
}

WorkDone work_prefill(const Work *w, int32_t n, int32_t n_steps, uint64_t n_expert_reads) {
    double positions = 0.5 * n * (n + 1.0);
    return (WorkDone){
        .bytes = n_steps * (w->dense_bytes + w->state_bytes) + w->head_bytes +
                 n * (w->row_bytes + w->kv_bytes) + (double)n_expert_reads * w->expert_bytes +
                 0.5 * n_steps * n * w->kv_bytes,
        .flop = n * (w->flop + w->recur_flop) + w->head_flop + positions * w->attn_flop,
    };
}
