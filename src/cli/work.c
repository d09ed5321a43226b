// SPDX-License-Identifier: Apache-2.0
/* work.c - bytes and operations from the shapes of the slots.
 *
 * Owns:     nothing.  Thread: any. */
#include "cli/work.h"

#include "base/checked.h"

#include <math.h>

/* The stage that reads a slot. */
static BackendStageId work_slot_stage(WeightSlot slot, BatchPhase phase, bool is_attn) {
    switch (slot) {
    case SLOT_EMBED: return STAGE_EMBED;
    case SLOT_HEAD:
    case SLOT_FINAL_NORM: return STAGE_HEAD;
    case SLOT_INPUT_NORM: return is_attn ? STAGE_ATTN_IN : STAGE_GDN_IN;
    case SLOT_POST_NORM:
    case SLOT_ROUTER:
    case SLOT_SHARED_MIX: return STAGE_ROUTER;
    case SLOT_SHARED_GATE:
    case SLOT_SHARED_UP: return phase == PHASE_DECODE ? STAGE_ROUTER : STAGE_EXPERTS_UP;
    case SLOT_EXPERT_GATE:
    case SLOT_EXPERT_UP: return STAGE_EXPERTS_UP;
    case SLOT_EXPERT_DOWN:
    case SLOT_SHARED_DOWN: return STAGE_EXPERTS_DOWN;
    case SLOT_GDN_QKV:
    case SLOT_GDN_Z:
    case SLOT_GDN_B:
    case SLOT_GDN_A: return STAGE_GDN_IN;
    case SLOT_GDN_CONV:
    case SLOT_GDN_A_LOG:
    case SLOT_GDN_DT_BIAS:
    case SLOT_GDN_NORM: return STAGE_GDN;
    case SLOT_GDN_OUT: return STAGE_GDN_OUT;
    case SLOT_ATTN_Q:
    case SLOT_ATTN_K:
    case SLOT_ATTN_V: return STAGE_ATTN_IN;
    case SLOT_ATTN_Q_NORM:
    case SLOT_ATTN_K_NORM: return STAGE_ATTN;
    case SLOT_ATTN_O: return STAGE_ATTN_OUT;
    case SLOT_N: break;
    }
    return STAGE_SAMPLE;
}

static void work_add_slot(Work *out, const Weights *w, WeightSlot slot, int layer) {
    const ModelConfig *c = weights_config(w);
    WeightInfo info = weights_info(w, slot, layer);
    double flop = info.bits ? 2.0 * info.n * info.k : 0, bytes = (double)info.n_bytes;
    bool is_expert = slot == SLOT_EXPERT_GATE || slot == SLOT_EXPERT_UP || slot == SLOT_EXPERT_DOWN;
    for (int p = 0; p < 2; p++) {
        BatchPhase phase = (BatchPhase)p;
        WorkStage *s =
            &out->stages[p][work_slot_stage(slot, phase, layer >= 0 && c->is_attn[layer])];
        if (slot == SLOT_EMBED) {
            s->row_bytes += bytes / info.n;
        } else if (slot == SLOT_HEAD) {
            s->step_bytes += bytes;
            s->head_flop += flop;
        } else if (is_expert) { // layers may differ: their mean
            s->expert_bytes += bytes / info.n_experts / c->n_layers;
            s->row_flop += flop * c->top_k;
        } else {
            s->step_bytes += bytes;
            s->row_flop += flop;
        }
    }
    if (slot == SLOT_EMBED && !weights_has(w, SLOT_HEAD, -1)) { // tied: it is the head too
        for (int p = 0; p < 2; p++) {
            out->stages[p][STAGE_HEAD].step_bytes += bytes;
            out->stages[p][STAGE_HEAD].head_flop += flop;
        }
    }
}

void work_init(Work *out, const Weights *w) {
    const ModelConfig *c = weights_config(w);
    *out = (Work){.n_layers = c->n_layers, .n_experts = c->n_experts, .top_k = c->top_k};
    for (int layer = -1; layer < c->n_layers; layer++)
        for (int s = 0; s < SLOT_N; s++)
            if (weights_has(w, (WeightSlot)s, layer))
                work_add_slot(out, w, (WeightSlot)s, layer);
    int32_t n_attn = config_n_attn_layers(c), n_gdn = c->n_layers - n_attn;
    double state = (double)c->n_gdn_value_heads * GDN_HEAD * GDN_HEAD;
    double kv = n_attn * 2.0 * config_kv_dim(c) * 2;
    for (int p = 0; p < 2; p++) {
        WorkStage *gdn = &out->stages[p][STAGE_GDN], *attn = &out->stages[p][STAGE_ATTN];
        gdn->state_bytes = n_gdn * (state * 4 + 3.0 * config_conv_dim(c) * 2) * 2;
        gdn->row_flop = n_gdn * state * 7; // decay, two products of two, one update of two
        attn->row_bytes = kv;
        attn->key_bytes = kv;
        attn->key_flop = n_attn * 4.0 * config_q_dim(c);
    }
}

WorkLoad work_load_decode(int32_t ctx, int32_t n_steps, int32_t n_seqs, double n_expert_reads) {
    double rows = (double)n_steps * n_seqs;
    double keys = rows * (ctx + (n_steps - 1) * 0.5);
    return (WorkLoad){.phase = PHASE_DECODE,
                      .n_steps = n_steps,
                      .n_rows = rows,
                      .n_states = rows,
                      .n_head_rows = rows,
                      .n_heads = n_steps,
                      .n_keys_read = keys,
                      .n_keys_seen = keys + rows, // and its own
                      .n_expert_reads = n_expert_reads};
}

WorkLoad work_load_prefill(int32_t n, int32_t chunk, int32_t n_seqs, double n_expert_reads) {
    double pieces = div_up_i32(n, chunk);
    return (WorkLoad){.phase = PHASE_PREFILL,
                      .n_steps = pieces * n_seqs,
                      .n_rows = (double)n * n_seqs,
                      .n_states = pieces * n_seqs,
                      .n_head_rows = n_seqs,
                      .n_heads = n_seqs,
                      // A piece reads what the pieces before it wrote.
                      .n_keys_read = n_seqs * 0.5 * pieces * (pieces - 1) * chunk,
                      .n_keys_seen = n_seqs * 0.5 * n * (n + 1.0),
                      .n_expert_reads = n_expert_reads};
}

double work_expected_experts(const Work *w, double n_steps, double rows_per_step) {
    if (w->n_experts == 0)
        return 0;
    double missed = pow(1.0 - (double)w->top_k / w->n_experts, rows_per_step);
    return n_steps * w->n_layers * w->n_experts * (1.0 - missed);
}

WorkDone work_stage(const Work *w, const WorkLoad *load, BackendStageId stage) {
    const WorkStage *s = &w->stages[load->phase][stage];
    double n_steps = stage == STAGE_HEAD ? load->n_heads : load->n_steps;
    return (WorkDone){
        .bytes = n_steps * s->step_bytes + load->n_expert_reads * s->expert_bytes +
                 load->n_rows * s->row_bytes + load->n_states * s->state_bytes +
                 load->n_keys_read * s->key_bytes,
        .flop = load->n_rows * s->row_flop + load->n_head_rows * s->head_flop +
                load->n_keys_seen * s->key_flop,
    };
}

WorkDone work_total(const Work *w, const WorkLoad *load) {
    WorkDone all = {0};
    for (int s = 0; s < STAGE_N; s++) {
        WorkDone one = work_stage(w, load, (BackendStageId)s);
        all.bytes += one.bytes;
        all.flop += one.flop;
    }
    return all;
}

double work_bound_seconds(WorkDone done, double read_gb_s, double matrix_tflops, bool *is_flop) {
    double bytes_s = done.bytes > 0 ? done.bytes / (read_gb_s * 1e9) : 0;
    double flop_s = done.flop > 0 ? done.flop / (matrix_tflops * 1e12) : 0;
    if (is_flop)
        *is_flop = flop_s > bytes_s;
    return flop_s > bytes_s ? flop_s : bytes_s;
}
