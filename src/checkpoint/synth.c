// SPDX-License-Identifier: Apache-2.0
/* synth.c - what the numbers of a random model are: their spread, chosen so that the forward pass
 * behaves like that of a trained model, and how each one is made from its key.
 *
 * Why these spreads. Every matrix has mean zero: codes are uniform and the bias of a group is minus
 * the middle code times its scale (give or take, with either sign), so no direction of the residual
 * stream is fed by all tokens at once. That matters most for the router: a component that all
 * normalised rows share adds the same offset to an expert's logit for every token, and with a few
 * percent of the energy in it the fullest of 256 experts takes three times its share. What makes
 * such a component are the means of SiLU outputs, so the projections in front of the convolution
 * are kept small (SiLU is nearly linear there; q and k are normalised behind it, the value path by
 * the gated norm), and the branches are kept small against the embedding in the first layers.
 *
 * Owns:     a Synth is plain data.  Thread: any. */
#include "synth.h"

#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>

enum { SYNTH_GROUP = 64, SYNTH_FAMILY_BASE = 248044 };

/* Counts that all shapes share. */
#define SYNTH_COMMON                                                                               \
    .max_positions = 262144, .rope_theta = 1e7, .rms_eps = 1e-6, .is_norm_topk = true

static const SynthShape synth_shapes[] = {
    {"qwen3.6-35b-a3b",
     "the published model: 40 layers, 256 experts, 20.4 GB",
     {.hidden = 2048,
      .n_layers = 40,
      .vocab = 248320,
      .n_q_heads = 16,
      .n_kv_heads = 2,
      .n_gdn_key_heads = 16,
      .n_gdn_value_heads = 32,
      .n_experts = 256,
      .top_k = 8,
      .expert_inner = 512,
      .shared_inner = 512,
      SYNTH_COMMON}},
    {"mini",
     "8 layers, hidden 256, 16 experts, vocabulary 4096, tied head",
     {.hidden = 256,
      .n_layers = 8,
      .vocab = 4096,
      .n_q_heads = 4,
      .n_kv_heads = 1,
      .n_gdn_key_heads = 2,
      .n_gdn_value_heads = 4,
      .n_experts = 16,
      .top_k = 4,
      .expert_inner = 64,
      .shared_inner = 64,
      .is_tied = true,
      SYNTH_COMMON}},
    {"small",
     "5 layers, hidden 320, 24 experts, vocabulary 777: counts that are no round numbers",
     {.hidden = 320,
      .n_layers = 5,
      .vocab = 777,
      .n_q_heads = 6,
      .n_kv_heads = 3,
      .n_gdn_key_heads = 3,
      .n_gdn_value_heads = 9,
      .n_experts = 24,
      .top_k = 5,
      .expert_inner = 192,
      .shared_inner = 64,
      SYNTH_COMMON}},
    {"wide",
     "4 layers, hidden 256, 256 experts with 8 of them a token, vocabulary 2048",
     {.hidden = 256,
      .n_layers = 4,
      .vocab = 2048,
      .n_q_heads = 8,
      .n_kv_heads = 2,
      .n_gdn_key_heads = 4,
      .n_gdn_value_heads = 8,
      .n_experts = 256,
      .top_k = 8,
      .expert_inner = 64,
      .shared_inner = 64,
      SYNTH_COMMON}},
    {"tiny",
     "8 layers, hidden 192, 16 experts, vocabulary 512",
     {.hidden = 192,
      .n_layers = 8,
      .vocab = 512,
      .n_q_heads = 4,
      .n_kv_heads = 2,
      .n_gdn_key_heads = 2,
      .n_gdn_value_heads = 4,
      .n_experts = 16,
      .top_k = 4,
      .expert_inner = 64,
      .shared_inner = 128,
      SYNTH_COMMON}},
    {"micro",
     "4 layers, hidden 64, 4 experts, vocabulary 300, tied head: opens in no time",
     {.hidden = 64,
      .n_layers = 4,
      .vocab = 300,
      .n_q_heads = 2,
      .n_kv_heads = 1,
      .n_gdn_key_heads = 1,
      .n_gdn_value_heads = 2,
      .n_experts = 4,
      .top_k = 2,
      .expert_inner = 64,
      .shared_inner = 64,
      .is_tied = true,
      SYNTH_COMMON}},
};

int synth_n_shapes(void) { return (int)COUNT_OF(synth_shapes); }

const SynthShape *synth_shape(int i) {
    CHECK(i >= 0 && i < synth_n_shapes());
    return &synth_shapes[i];
}

int32_t synth_added_base(int32_t vocab) {
    return vocab >= SYNTH_FAMILY_BASE + SYNTH_N_ADDED ? SYNTH_FAMILY_BASE : vocab - SYNTH_N_ADDED;
}

Status synth_init(Synth *out, StrView shape, int64_t n_layers, uint64_t seed, Err *err) {
    const SynthShape *found = NULL;
    char names[128] = "";
    for (int i = 0; i < synth_n_shapes(); i++) {
        const char *name = synth_shapes[i].name;
        size_t len = strlen(names);
        snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "", name);
        if (str_equal(shape, str_view(name, strlen(name))))
            found = &synth_shapes[i];
    }
    if (!found)
        return err_set(err, STATUS_INVALID, "synth: expected a shape (%s), found \"%.*s\"", names,
                       (int)(shape.len < 64 ? shape.len : 64), shape.ptr ? shape.ptr : "");
    if (n_layers < 0 || n_layers > LIMIT_LAYERS)
        return err_set(err, STATUS_INVALID, "synth: layers: expected 1 to %d, found %lld",
                       LIMIT_LAYERS, (long long)n_layers);
    *out = (Synth){.config = found->counts, .seed = seed};
    ModelConfig *c = &out->config;
    if (n_layers)
        c->n_layers = (int32_t)n_layers;
    for (int i = 0; i < c->n_layers; i++)
        c->is_attn[i] = i % 4 == 3;
    c->n_eos = 2; // <|im_end|>, <|endoftext|>
    c->eos[0] = synth_added_base(c->vocab) + 2;
    c->eos[1] = synth_added_base(c->vocab);
    return STATUS_OK;
}

/* A decimal number of at most 20 digits; false when it is none or does not fit. */
static bool synth_parse_u64(uint64_t *out, StrView text) {
    uint64_t v = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] < '0' || text.ptr[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(text.ptr[i] - '0');
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v))
            return false;
    }
    *out = v;
    return text.len > 0;
}

Status synth_parse(Synth *out, StrView spec, Err *err) {
    StrView shape = {0};
    uint64_t layers = 0, seed = 0;
    bool has_layers = false, has_seed = false;
    for (size_t at = 0, n = 0; at <= spec.len; at += n + 1, n = 0) {
        while (at + n < spec.len && spec.ptr[at + n] != ',')
            n++;
        StrView part = str_view(spec.ptr + at, n);
        if (at == 0) {
            shape = part;
            continue;
        }
        StrView value = {0};
        uint64_t *number = NULL;
        if (str_starts(part, STR("layers=")) && !has_layers) {
            value = str_view(part.ptr + 7, part.len - 7);
            number = &layers;
            has_layers = true;
        } else if (str_starts(part, STR("seed=")) && !has_seed) {
            value = str_view(part.ptr + 5, part.len - 5);
            number = &seed;
            has_seed = true;
        }
        if (!number || !synth_parse_u64(number, value) ||
            (number == &layers && (layers < 1 || layers > LIMIT_LAYERS)))
            return err_set(err, STATUS_INVALID,
                           "synth: expected SHAPE[,layers=1..%d][,seed=NUMBER], found \"%.*s\"",
                           LIMIT_LAYERS, (int)(n < 64 ? n : 64), part.ptr);
    }
    return synth_init(out, shape, (int64_t)layers, seed, err);
}

QuantSpec synth_quant_spec(WeightSlot slot) {
    if (!weights_slot_is_quant(slot))
        return (QuantSpec){0};
    bool is_gate = slot == SLOT_ROUTER || slot == SLOT_SHARED_MIX;
    return (QuantSpec){.bits = is_gate ? 8 : 4, .group = SYNTH_GROUP};
}

/* Root mean square of a branch that is added to the residual stream. */
static double synth_branch_rms(const ModelConfig *c) { return c->is_tied ? 0.5 : 0.25; }

/* Standard deviation of the logits. */
#define SYNTH_LOGIT_STD 3.0

/* Standard deviation of the weights of a matrix with k inputs: `y` is that of the outputs, `x` the
 * root mean square of the inputs it was worked out for (1 behind a norm). */
static double synth_spread(const ModelConfig *c, WeightSlot slot, int32_t k) {
    double y = 1, x = 1, branch = synth_branch_rms(c);
    switch (slot) {
    case SLOT_EMBED: // the rows themselves; a tied head sees them as its matrix
        if (!c->is_tied)
            return 0.25;
        y = SYNTH_LOGIT_STD;
        break;
    case SLOT_HEAD: y = SYNTH_LOGIT_STD; break;
    case SLOT_ROUTER: y = 1.5; break;
    case SLOT_GDN_QKV: y = 0.6; break;
    case SLOT_GDN_Z:
    case SLOT_GDN_A: y = 0.5; break;
    case SLOT_GDN_OUT: y = branch, x = 0.28; break; // rms of silu(z) for z of deviation 0.5
    case SLOT_ATTN_O: y = branch, x = 0.3; break;   // some ten of the values averaged, half open
    case SLOT_EXPERT_DOWN:
        y = branch / 0.4, x = 0.6;
        break; // 0.4: root of the summed squared weights
    case SLOT_SHARED_DOWN: y = branch / 0.55, x = 0.6; break; // 0.55: rms of the sigmoid before it
    default: break;
    }
    return y / (x * sqrt((double)k));
}

static uint64_t synth_key(const Synth *s, WeightSlot slot, int layer) {
    return rng_u64(rng_mix(s->seed), (uint64_t)slot << 32 | (uint32_t)(layer + 1));
}

void synth_read_quant(const Synth *s, WeightSlot slot, int layer, int64_t row, int64_t n_rows,
                      uint32_t *q, uint16_t *scale, uint16_t *bias) {
    int32_t n_experts, n, k;
    weights_slot_shape(&s->config, slot, &n_experts, &n, &k);
    int bits = synth_quant_spec(slot).bits;
    int64_t n_pairs = (int64_t)k * bits / 64, n_groups = k / SYNTH_GROUP;
    uint64_t key = synth_key(s, slot, layer);
    // Uniform codes 0..n_codes-1 have the deviation sqrt((n_codes^2 - 1) / 12).
    float n_codes = (float)(1 << bits), middle = (n_codes - 1) * 0.5f;
    float step = (float)(synth_spread(&s->config, slot, k) / sqrt((n_codes * n_codes - 1) / 12.0));
    for (int64_t r = 0; r < n_rows; r++) {
        uint64_t code_key = rng_u64(key, (uint64_t)(row + r)), group_key = rng_mix(~code_key);
        if (q) {
            uint32_t *out = q + r * n_pairs * 2;
            for (int64_t i = 0; i < n_pairs; i++) {
                uint64_t z = rng_stream(code_key, (uint64_t)i);
                out[2 * i] = (uint32_t)z;
                out[2 * i + 1] = (uint32_t)(z >> 32);
            }
        }
        for (int64_t g = 0; (scale || bias) && g < n_groups; g++) {
            uint64_t z = rng_stream(group_key, (uint64_t)g);
            // Size 0.875..1.125 steps, either sign; the bias up to 1/32 of the code range off
            // middle.
            float size = step * (0.875f + 0x1p-34f * (float)(uint32_t)(z & 0xfffffffe));
            float off = n_codes * (0x1p-28f * (float)(z >> 32 & 0xffffff) - 0x1p-5f);
            if (z & 1)
                size = -size;
            uint16_t h = bf16_from_f32(size);
            if (scale)
                scale[r * n_groups + g] = h;
            if (bias)
                bias[r * n_groups + g] = bf16_from_f32(-bf16_to_f32(h) * (middle + off));
        }
    }
}

void synth_read_plain(const Synth *s, WeightSlot slot, int layer, float *out) {
    int32_t n_experts, n, k;
    weights_slot_shape(&s->config, slot, &n_experts, &n, &k);
    uint64_t key = synth_key(s, slot, layer);
    for (int64_t i = 0; i < (int64_t)n * k; i++) {
        double u = rng_unit_f64(key, (uint64_t)i), v = 0;
        switch (slot) {
        case SLOT_GDN_CONV: v = sqrt(3.0 / 4) * (2 * u - 1); break; // four taps: energy 1
        case SLOT_GDN_A_LOG: v = log(1 + 15 * u); break;            // decay rates 1..16
        case SLOT_GDN_DT_BIAS: {
            double dt = exp(log(0.001) + u * log(100)); // time steps 0.001..0.1
            v = dt + log(-expm1(-dt));                  // softplus(v) = dt
            break;
        }
        // Scores of deviation 2, so that some keys stand out.
        case SLOT_ATTN_Q_NORM:
        case SLOT_ATTN_K_NORM: v = 1.15 + 0.5 * u; break;
        default: v = 0.75 + 0.5 * u; break; // gains
        }
        out[i] = bf16_round((float)v);
    }
}

static Status synth_source_quant(void *self, WeightSlot slot, int layer, int64_t row,
                                 int64_t n_rows, uint32_t *q, uint16_t *scale, uint16_t *bias,
                                 Err *err) {
    UNUSED(err);
    synth_read_quant(self, slot, layer, row, n_rows, q, scale, bias);
    return STATUS_OK;
}

static Status synth_source_plain(void *self, WeightSlot slot, int layer, float *out, Err *err) {
    UNUSED(err);
    synth_read_plain(self, slot, layer, out);
    return STATUS_OK;
}

Status synth_open(WeightsSource *source, void **self, ModelConfig *config, StrView spec, Err *err) {
    Synth *s = mem_alloc(sizeof *s);
    if (!s)
        return err_memory(err, "a random model", sizeof *s);
    Status status = synth_parse(s, spec, err);
    if (status != STATUS_OK) {
        mem_free(s);
        return status;
    }
    *source = (WeightsSource){
        .read_quant = synth_source_quant, .read_plain = synth_source_plain, .close = mem_free};
    *self = s;
    *config = s->config;
    return STATUS_OK;
}
