// SPDX-License-Identifier: Apache-2.0
/* test_synth.c - random models: specs, rows in any pieces, spreads of the numbers.
 *
 * Owns:     nothing.  Thread: one. */
#include "base/bf16.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "checkpoint/quant.h"
#include "checkpoint/synth.h"

#include "unit.h"

#include <math.h>

static StrView view(const char *s) { return str_view(s, strlen(s)); }

static Synth make(const char *spec) {
    Synth s;
    Err err = {0};
    if (synth_parse(&s, view(spec), &err) != STATUS_OK)
        fail_msg("%s: %s", spec, err.text);
    return s;
}

/* One slot, all of it. */
typedef struct Read {
    int64_t n_rows;
    size_t row_words, row_groups;
    uint32_t *q;
    uint16_t *scale, *bias;
} Read;

static Read read_all(const Synth *s, WeightSlot slot, int layer) {
    int32_t n_experts, n, k;
    weights_slot_shape(&s->config, slot, &n_experts, &n, &k);
    QuantSpec spec = synth_quant_spec(slot);
    Read r = {.n_rows = (int64_t)n_experts * n,
              .row_words = (size_t)(k * spec.bits / 32),
              .row_groups = (size_t)(k / spec.group)};
    r.q = mem_alloc((size_t)r.n_rows * r.row_words * sizeof *r.q);
    r.scale = mem_alloc((size_t)r.n_rows * r.row_groups * sizeof *r.scale);
    r.bias = mem_alloc((size_t)r.n_rows * r.row_groups * sizeof *r.bias);
    synth_read_quant(s, slot, layer, 0, r.n_rows, r.q, r.scale, r.bias);
    return r;
}

static void read_free(Read *r) {
    mem_free(r->q);
    mem_free(r->scale);
    mem_free(r->bias);
}

/* ---- specs ---- */

static void spec_is_parsed(void **state) {
    UNUSED(state);
    Synth s = make("mini");
    assert_int_equal(s.config.n_layers, 8);
    assert_int_equal(s.seed, 0);
    s = make("mini,layers=3,seed=18446744073709551615");
    assert_int_equal(s.config.n_layers, 3);
    assert_true(s.seed == UINT64_MAX);
    s = make("qwen3.6-35b-a3b,seed=7,layers=256");
    assert_int_equal(s.config.n_layers, 256);
    assert_true(s.seed == 7);
    for (int i = 0; i < 256; i++)
        assert_true(s.config.is_attn[i] == (i % 4 == 3));
}

static void wrong_spec_is_refused(void **state) {
    UNUSED(state);
    const char *specs[] = {"",
                           "nope",
                           "mini,",
                           ",mini",
                           "Mini",
                           "mini,layers=0",
                           "mini,layers=257",
                           "mini,layers=4294967300",
                           "mini,layers=",
                           "mini,layers=2x",
                           "mini,layers=1,layers=2",
                           "mini,seed=",
                           "mini,seed=-1",
                           "mini,seed=18446744073709551616",
                           "mini,seed=1,seed=1",
                           "mini,seeds=1",
                           "mini;seed=1",
                           "mini,layers=1,"};
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        Synth s = {.seed = 77};
        Err err = {0};
        if (synth_parse(&s, view(specs[i]), &err) != STATUS_INVALID)
            fail_msg("\"%s\" was accepted", specs[i]);
        assert_true(strlen(err.text) > 0);
        assert_true(s.seed == 77 && s.config.hidden == 0);
    }
    Err err = {0};
    Synth s;
    assert_int_equal(synth_parse(&s, view("nope"), &err), STATUS_INVALID);
    for (int i = 0; i < synth_n_shapes(); i++) // the text lists what there is
        assert_non_null(strstr(err.text, synth_shape(i)->name));
}

/* The counts of the published model; small shapes hold the rules that config.c checks. */
static void shapes_are_runnable(void **state) {
    UNUSED(state);
    Synth full = make("qwen3.6-35b-a3b");
    const ModelConfig *c = &full.config;
    assert_int_equal(c->hidden, 2048);
    assert_int_equal(c->n_layers, 40);
    assert_int_equal(c->vocab, 248320);
    assert_int_equal(config_conv_dim(c), 8192);
    assert_int_equal(config_q_dim(c), 4096);
    assert_int_equal(config_kv_dim(c), 512);
    assert_int_equal(c->n_experts, 256);
    assert_int_equal(c->top_k, 8);
    assert_false(c->is_tied);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 248046);
    assert_int_equal(c->eos[1], 248044);
    for (int i = 0; i < synth_n_shapes(); i++) {
        Synth s = make(synth_shape(i)->name);
        c = &s.config;
        assert_true(c->vocab >= 256 + SYNTH_N_ADDED);
        assert_int_equal(c->hidden % 64, 0);
        assert_int_equal(c->expert_inner % 64, 0);
        assert_int_equal(c->shared_inner % 64, 0);
        assert_int_equal(c->n_gdn_value_heads % c->n_gdn_key_heads, 0);
        assert_int_equal(c->n_q_heads % c->n_kv_heads, 0);
        assert_true(c->top_k <= c->n_experts);
        assert_true(c->n_layers >= 4 && c->is_attn[3]);
        assert_true(synth_added_base(c->vocab) + SYNTH_N_ADDED <= c->vocab);
    }
}

/* ---- rows ---- */

/* Any cut of the rows, any subset of the parts: the same numbers. */
static void rows_do_not_depend_on_the_cut(void **state) {
    UNUSED(state);
    const uint64_t seed = 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    Synth s = make("small,seed=5");
    uint64_t turn = 0;
    for (int layer = -1; layer < 5; layer++)
        for (int slot = 0; slot < SLOT_N; slot++) {
            if (!weights_slot_exists(&s.config, (WeightSlot)slot, layer) ||
                !weights_slot_is_quant((WeightSlot)slot))
                continue;
            Read all = read_all(&s, (WeightSlot)slot, layer);
            for (int64_t row = 0; row < all.n_rows;) {
                int64_t n = 1 + (int64_t)(rng_u64(seed, turn++) % 97);
                n = n < all.n_rows - row ? n : all.n_rows - row;
                size_t nq = (size_t)n * all.row_words, ng = (size_t)n * all.row_groups;
                uint32_t *q = mem_alloc(nq * sizeof *q);
                uint16_t *scale = mem_alloc(ng * sizeof *scale);
                uint16_t *bias = mem_alloc(ng * sizeof *bias);
                synth_read_quant(&s, (WeightSlot)slot, layer, row, n, q, NULL, NULL);
                synth_read_quant(&s, (WeightSlot)slot, layer, row, n, NULL, scale, NULL);
                synth_read_quant(&s, (WeightSlot)slot, layer, row, n, NULL, NULL, bias);
                assert_memory_equal(q, all.q + (size_t)row * all.row_words, nq * sizeof *q);
                assert_memory_equal(scale, all.scale + (size_t)row * all.row_groups,
                                    ng * sizeof *scale);
                assert_memory_equal(bias, all.bias + (size_t)row * all.row_groups,
                                    ng * sizeof *bias);
                mem_free(q);
                mem_free(scale);
                mem_free(bias);
                row += n;
            }
            read_free(&all);
        }
}

/* Rows, layers, slots and seeds differ from each other, all of them. */
static void keys_are_all_told_apart(void **state) {
    UNUSED(state);
    enum { N_SEEDS = 3, N_LAYERS = 4, N_ROWS = 3, N_SLOTS = 4, WORDS = 8 };
    const WeightSlot slots[N_SLOTS] = {SLOT_ROUTER, SLOT_EXPERT_GATE, SLOT_EXPERT_UP,
                                       SLOT_SHARED_GATE};
    const char *seeds[N_SEEDS] = {"micro", "micro,seed=1", "micro,seed=9223372036854775808"};
    uint32_t rows[N_SEEDS * N_LAYERS * N_ROWS * N_SLOTS][WORDS * 2];
    size_t n = 0;
    for (int seed = 0; seed < N_SEEDS; seed++) {
        Synth s = make(seeds[seed]);
        for (int layer = 0; layer < N_LAYERS; layer++)
            for (int slot = 0; slot < N_SLOTS; slot++)
                for (int row = 0; row < N_ROWS; row++)
                    synth_read_quant(&s, slots[slot], layer, row, 1, rows[n++], NULL, NULL);
    }
    assert_int_equal(n, COUNT_OF(rows));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(rows[i], rows[j], WORDS * sizeof(uint32_t));
}

/* Files that were written once must come out again: the numbers of a seed never change. */
static void numbers_are_pinned(void **state) {
    UNUSED(state);
    static const struct {
        const char *spec;
        WeightSlot slot;
        int layer;
        const char *sha;
    } pins[] = {
        {"qwen3.6-35b-a3b", SLOT_ROUTER, 39,
         "00dfb241418e1412b2774f686ad9f09be7e7ef26e0033991510644e0cbf1da08"},
        {"mini,seed=3", SLOT_EXPERT_DOWN, 5,
         "253bac41ccbbd2cfd02d42a86ee1a1af9cf2eca78ea7545c8155dbdb4582726b"},
    };
    for (size_t i = 0; i < COUNT_OF(pins); i++) {
        Synth s = make(pins[i].spec);
        Read r = read_all(&s, pins[i].slot, pins[i].layer);
        size_t nq = (size_t)r.n_rows * r.row_words * 4, ng = (size_t)r.n_rows * r.row_groups * 2;
        char *bytes = mem_alloc(nq + 2 * ng), sha[SHA256_TEXT_SIZE];
        memcpy(bytes, r.q, nq);
        memcpy(bytes + nq, r.scale, ng);
        memcpy(bytes + nq + ng, r.bias, ng);
        sha256_text(bytes, nq + 2 * ng, sha);
        assert_string_equal(sha, pins[i].sha);
        mem_free(bytes);
        read_free(&r);
    }
}

/* ---- spreads ---- */

/* Every matrix: mean zero, codes uniform, scales of both signs, nothing that is not finite; the
 * deviation of its outputs for inputs of size 1 in a range that a forward pass stands. */
static void matrices_are_centred(void **state) {
    UNUSED(state);
    Synth s = make("mini,seed=11");
    for (int slot = 0; slot < SLOT_N; slot++) {
        int layer = weights_slot_scope((WeightSlot)slot) == SCOPE_MODEL  ? -1
                    : weights_slot_scope((WeightSlot)slot) == SCOPE_ATTN ? 3
                                                                         : 0;
        if (!weights_slot_is_quant((WeightSlot)slot) || slot == SLOT_HEAD) // mini is tied
            continue;
        Read r = read_all(&s, (WeightSlot)slot, layer);
        QuantSpec spec = synth_quant_spec((WeightSlot)slot);
        int64_t k = (int64_t)r.row_groups * spec.group;
        double sum = 0, squares = 0, n = (double)(r.n_rows * k);
        double n_negative = 0, counts[256] = {0};
        float w[4096];
        assert_true(k <= (int64_t)COUNT_OF(w));
        for (int64_t row = 0; row < r.n_rows; row++) {
            const uint32_t *q = r.q + (size_t)row * r.row_words;
            const uint16_t *scale = r.scale + (size_t)row * r.row_groups;
            quant_dequant_row_f32(w, q, scale, r.bias + (size_t)row * r.row_groups, k, spec.bits,
                                  spec.group);
            for (int64_t i = 0; i < k; i++) {
                assert_true(isfinite(w[i]));
                sum += w[i];
                squares += (double)w[i] * w[i];
                counts[quant_code(q, i, spec.bits)]++;
            }
            for (size_t g = 0; g < r.row_groups; g++)
                n_negative += bf16_to_f32(scale[g]) < 0;
        }
        double std = sqrt(squares / n), n_groups = (double)r.n_rows * (double)r.row_groups;
        // A group's own offset adds to the noise of the mean: at most a third of a deviation.
        assert_true(fabs(sum / n) < 5 * std / sqrt(n) + 5 * 0.1 * std / sqrt(n_groups));
        assert_true(fabs(n_negative / n_groups - 0.5) < 5 * 0.5 / sqrt(n_groups));
        double codes = 1 << spec.bits, chi = 0;
        for (int i = 0; i < (int)codes; i++)
            chi += (counts[i] - n / codes) * (counts[i] - n / codes) / (n / codes);
        assert_true(chi < codes - 1 + 6 * sqrt(2 * (codes - 1)));
        double out = std * sqrt((double)k);
        assert_true(out > 0.2 && out < 4);
        if (slot == SLOT_ROUTER)
            assert_true(fabs(out - 1.5) < 0.1);
        if (slot == SLOT_EMBED) // tied: logits
            assert_true(fabs(out - 3) < 0.1);
        read_free(&r);
    }
}

/* Decays as trained models start with; gains near 1; all exact in bf16, as files hold them. */
static void plain_values_are_sane(void **state) {
    UNUSED(state);
    Synth s = make("qwen3.6-35b-a3b,layers=4,seed=2");
    float *v = mem_alloc(8192 * 4 * sizeof *v);
    double low_decay = 1, high_decay = 0;
    for (int layer = -1; layer < 4; layer++)
        for (int slot = 0; slot < SLOT_N; slot++) {
            if (weights_slot_is_quant((WeightSlot)slot) ||
                !weights_slot_exists(&s.config, (WeightSlot)slot, layer))
                continue;
            int32_t n_experts, n, k;
            weights_slot_shape(&s.config, (WeightSlot)slot, &n_experts, &n, &k);
            assert_true((int64_t)n * k <= 8192 * 4);
            synth_read_plain(&s, (WeightSlot)slot, layer, v);
            double sum = 0, low = v[0], high = v[0];
            for (int i = 0; i < n * k; i++) {
                assert_true(v[i] == bf16_round(v[i]));
                sum += v[i];
                low = v[i] < low ? v[i] : low;
                high = v[i] > high ? v[i] : high;
            }
            assert_true(high > low);
            if (slot == SLOT_GDN_A_LOG) {
                assert_true(low >= 0 && high <= 2.78);
            } else if (slot == SLOT_GDN_DT_BIAS) {
                assert_true(log1p(exp(low)) > 0.00099 && log1p(exp(high)) < 0.101);
                float a[32];
                synth_read_plain(&s, SLOT_GDN_A_LOG, layer, a);
                for (int h = 0; h < 32; h++) {
                    double decay = exp(-exp(a[h]) * log1p(exp(v[h])));
                    low_decay = decay < low_decay ? decay : low_decay;
                    high_decay = decay > high_decay ? decay : high_decay;
                }
            } else if (slot == SLOT_GDN_CONV) {
                assert_true(low >= -0.87 && high <= 0.87 && fabs(sum / (n * k)) < 0.02);
            } else if (slot == SLOT_ATTN_Q_NORM || slot == SLOT_ATTN_K_NORM) {
                assert_true(low >= 1.14 && high <= 1.66);
            } else {
                assert_true(low >= 0.74 && high <= 1.26 && fabs(sum / n - 1) < 0.06);
            }
        }
    assert_true(low_decay < 0.5 && high_decay > 0.99);
    mem_free(v);
}

/* ---- behind weights.h ---- */

static void weights_serve_the_same_numbers(void **state) {
    UNUSED(state);
    Synth s = make("tiny,layers=4,seed=9");
    Weights *w;
    Err err = {0};
    assert_int_equal(weights_open(&w, "synth:tiny,layers=4,seed=9", NULL, &err), STATUS_OK);
    assert_int_equal(weights_config(w)->hidden, 192);
    assert_int_equal(weights_config(w)->n_layers, 4);
    assert_int_equal(weights_config(w)->eos[0], 512 - 33 + 2);
    assert_null(weights_dir(w));
    Read all = read_all(&s, SLOT_EXPERT_UP, 2), got = read_all(&s, SLOT_EXPERT_UP, 1);
    assert_int_equal(
        weights_read_quant(w, SLOT_EXPERT_UP, 2, 0, all.n_rows, got.q, got.scale, got.bias, &err),
        STATUS_OK);
    assert_memory_equal(all.q, got.q, (size_t)all.n_rows * all.row_words * 4);
    assert_memory_equal(all.scale, got.scale, (size_t)all.n_rows * all.row_groups * 2);
    assert_memory_equal(all.bias, got.bias, (size_t)all.n_rows * all.row_groups * 2);
    read_free(&all);
    read_free(&got);
    float norm[192], expected[192];
    assert_int_equal(weights_read_plain(w, SLOT_POST_NORM, 3, norm, &err), STATUS_OK);
    synth_read_plain(&s, SLOT_POST_NORM, 3, expected);
    assert_memory_equal(norm, expected, sizeof norm);
    weights_close(w);
}

static void open_survives_lack_of_memory(void **state) {
    UNUSED(state);
    for (int64_t after = 0;; after++) {
        Weights *w = NULL;
        Err err = {0};
        mem_fail_after(after);
        Status status = weights_open(&w, "synth:mini", NULL, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            weights_close(w);
            assert_true(after > 1);
            return;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spec_is_parsed),
        cmocka_unit_test(wrong_spec_is_refused),
        cmocka_unit_test(shapes_are_runnable),
        cmocka_unit_test(rows_do_not_depend_on_the_cut),
        cmocka_unit_test(keys_are_all_told_apart),
        cmocka_unit_test(numbers_are_pinned),
        cmocka_unit_test(matrices_are_centred),
        cmocka_unit_test(plain_values_are_sane),
        cmocka_unit_test(weights_serve_the_same_numbers),
        cmocka_unit_test(open_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
