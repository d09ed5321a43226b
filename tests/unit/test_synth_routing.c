// SPDX-License-Identifier: Apache-2.0
/* test_synth_routing.c - random models behave like trained ones where it matters for speed and for
 * tests: tokens spread over the experts, sizes stay sane, decoding does not fall into a loop.
 *
 * Owns:     nothing.  Thread: one. */
#include "backend/backend.h"
#include "base/mem.h"
#include "base/rng.h"

#include "unit.h"

#include <math.h>

enum {
    PROMPT = 512,
    SHORT = 64,
    DECODE = 48,
    BLOCKS = (PROMPT + DECODE + KV_BLOCK - 1) / KV_BLOCK
};

typedef struct Counts {
    int64_t *used; // [n_layers, n_experts] tokens that chose the expert
    int32_t n_experts;
    double low_rms, high_rms; // of a row of the residual stream, behind any layer
} Counts;

static void see(void *ctx, const char *name, int layer, int32_t n_rows, int32_t width,
                const double *data) {
    Counts *c = ctx;
    if (strcmp(name, "topk_ids") == 0) {
        for (int64_t i = 0; i < (int64_t)n_rows * width; i++)
            c->used[(int64_t)layer * c->n_experts + (int64_t)data[i]]++;
    } else if (strcmp(name, "out") == 0) {
        for (int32_t r = 0; r < n_rows; r++) {
            double sum = 0;
            for (int32_t i = 0; i < width; i++)
                sum += data[(int64_t)r * width + i] * data[(int64_t)r * width + i];
            double rms = sqrt(sum / width);
            c->low_rms = rms < c->low_rms ? rms : c->low_rms;
            c->high_rms = rms > c->high_rms ? rms : c->high_rms;
        }
    }
}

typedef struct Run {
    Weights *w;
    const ModelConfig *c;
    Backend *b;
    int32_t blocks[BLOCKS];
    Counts counts;
} Run;

static void run_open(Run *r, const char *spec) {
    Err err = {0};
    assert_int_equal(weights_open(&r->w, spec, NULL, &err), STATUS_OK);
    r->c = weights_config(r->w);
    BackendPlan plan = {.max_rows = PROMPT,
                        .max_seqs = 1,
                        .n_blocks = BLOCKS,
                        .n_slots = 1,
                        .n_samplers = 1,
                        .max_ctx = BLOCKS * KV_BLOCK,
                        .max_logits = 1,
                        .n_threads = 2};
    if (backend_open(&r->b, BACKEND_REF, r->w, &plan, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s: %s", spec, err.text);
    for (int32_t i = 0; i < BLOCKS; i++)
        r->blocks[i] = i;
    r->counts = (Counts){.n_experts = r->c->n_experts, .low_rms = INFINITY};
    r->counts.used =
        mem_zalloc((size_t)r->c->n_layers * (size_t)r->c->n_experts, sizeof *r->counts.used);
}

static void run_close(Run *r) {
    mem_free(r->counts.used);
    backend_close(r->b);
    weights_close(r->w);
}

/* One step; the greedy next id. logit_std: deviation of the last row's logits (out, or NULL). */
static int32_t step(Run *r, const int32_t *ids, int32_t n, int32_t pos, double *logit_std) {
    Err err = {0};
    BatchTap tap = {see, &r->counts};
    BatchSeq seq = {.phase = n > 1 ? PHASE_PREFILL : PHASE_DECODE,
                    .n_rows = n,
                    .pos0 = pos,
                    .blocks = r->blocks,
                    .want = WANT_LAST,
                    .sampler = 0,
                    .carry = -1};
    Batch batch = {.n_seqs = 1, .seqs = &seq, .n_rows = n, .ids = ids, .tap = &tap};
    BatchResult result;
    if (backend_submit(r->b, &batch, &err) != STATUS_OK ||
        backend_wait(r->b, &result, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(result.bad_layer, -1);
    if (logit_std) {
        double sum = 0, squares = 0;
        for (int32_t i = 0; i < r->c->vocab; i++) {
            sum += result.logits[i];
            squares += (double)result.logits[i] * result.logits[i];
        }
        double mean = sum / r->c->vocab;
        *logit_std = sqrt(squares / r->c->vocab - mean * mean);
    }
    return result.sample.id;
}

/* n random ids, at most PROMPT. */
static int32_t prompt(Run *r, int32_t n, uint64_t seed, double *logit_std) {
    int32_t ids[PROMPT];
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_u64(seed, (uint64_t)i) % (uint64_t)r->c->vocab);
    return step(r, ids, n, 0, logit_std);
}

/* Experts used in a layer, and the fullest one's share over the mean. */
static int32_t count_layer(const Run *r, int32_t layer, double *fullest) {
    int32_t used = 0;
    int64_t most = 0, all = 0;
    for (int32_t e = 0; e < r->c->n_experts; e++) {
        int64_t n = r->counts.used[(int64_t)layer * r->c->n_experts + e];
        used += n > 0;
        most = n > most ? n : most;
        all += n;
    }
    *fullest = (double)most * r->c->n_experts / (double)all;
    return used;
}

/* 512 tokens reach at least 250 of 256 experts in every layer, the fullest less than three times
 * the mean; 48 decoded ones near the 200 of even routing. */
static void experts_are_used_evenly(void **state) {
    UNUSED(state);
    const char *specs[] = {"synth:wide,layers=2"};
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        Run r;
        run_open(&r, specs[i]);
        int32_t id = prompt(&r, PROMPT, i, NULL);
        for (int32_t layer = 0; layer < r.c->n_layers; layer++) {
            double fullest;
            int32_t used = count_layer(&r, layer, &fullest);
            print_message("%s layer %d: %d of 256, fullest %.2f\n", specs[i], layer, used, fullest);
            assert_true(used >= 250);
            assert_true(fullest < 3);
        }
        memset(r.counts.used, 0, (size_t)r.c->n_layers * 256 * sizeof *r.counts.used);
        for (int32_t n = 0; n < DECODE; n++)
            id = step(&r, &id, 1, PROMPT + n, NULL);
        for (int32_t layer = 0; layer < r.c->n_layers; layer++) {
            double fullest;
            int32_t used = count_layer(&r, layer, &fullest);
            print_message("%s layer %d: %d experts by %d steps\n", specs[i], layer, used, DECODE);
            assert_true(used >= 170 && used <= 230);
        }
        run_close(&r);
    }
}

/* Every small shape, deeper ones too: rows between 0.1 and 30, logits of deviation 1 to 5, all
 * experts used, and greedy decoding that goes on to new ids (a tied head would like to repeat the
 * id it was given). */
static void sizes_are_sane(void **state) {
    UNUSED(state);
    const char *specs[] = {"synth:mini,layers=5", "synth:micro,layers=30", "synth:small,layers=2",
                           "synth:tiny,layers=4"};
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        Run r;
        double std, fullest;
        run_open(&r, specs[i]);
        int32_t id = prompt(&r, SHORT, 77, &std), n_same = 0;
        for (int32_t n = 0; n < DECODE; n++) {
            int32_t next = step(&r, &id, 1, SHORT + n, NULL);
            n_same += next == id;
            id = next;
        }
        print_message("%s: rows %.2f..%.2f, logits %.2f, %d repeats\n", specs[i], r.counts.low_rms,
                      r.counts.high_rms, std, n_same);
        assert_true(r.counts.low_rms > 0.1 && r.counts.high_rms < 30);
        assert_true(std > 1 && std < 5);
        assert_true(n_same < DECODE / 2);
        for (int32_t layer = 0; layer < r.c->n_layers; layer++)
            assert_int_equal(count_layer(&r, layer, &fullest), r.c->n_experts);
        run_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_used_evenly),
        cmocka_unit_test(sizes_are_sane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
