// SPDX-License-Identifier: Apache-2.0
/* test_sample.c - the scalar sampler against its definition done the slow way, its distribution,
 * its edges. */
#include "unit.h"

#include "backend/sample.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { V = 300, WORDS = (V + 31) / 32 };

static Sampler *open_sampler(int32_t vocab) {
    Sampler *s = NULL;
    assert_int_equal(sampler_open(&s, vocab, NULL), STATUS_OK);
    return s;
}

static void set(Sampler *s, SampleParams p) {
    Err err = {0};
    if (sampler_set(s, &p, NULL, 0, 0, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

static int32_t next(Sampler *s, const float *logits, const uint32_t *allowed, int32_t pos) {
    SampleResult r;
    sampler_next(s, &r, logits, allowed, pos);
    return r.id;
}

/* ---- the definition, the slow way ---- */

typedef struct Slow {
    SampleParams p;
    int32_t seen[V], generated[V];
} Slow;

static float clamp(double x) { return (float)fmin(fmax(x, -(double)FLT_MAX), (double)FLT_MAX); }

/* Ids by descending value, equal ones ascending. */
static void sort_ids(int32_t *ids, const float *x) {
    for (int32_t i = 0; i < V; i++) {
        int32_t at = i;
        for (; at > 0 && x[ids[at - 1]] < x[i]; at--)
            ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

static int32_t slow_next(Slow *t, const float *logits, const uint32_t *allowed, int32_t pos) {
    float x[V];
    int32_t ids[V], n = 0;
    double rep = t->p.repetition_penalty == 0 ? 1 : (double)t->p.repetition_penalty;
    for (int32_t i = 0; i < V; i++) {
        double y = (double)logits[i];
        if (t->seen[i] || t->generated[i])
            y = y > 0 ? y / rep : y * rep;
        if (t->generated[i])
            y = y - (double)t->p.presence_penalty -
                (double)t->p.frequency_penalty * t->generated[i];
        x[i] = clamp(y);
    }
    for (int32_t i = 0; i < t->p.n_bias; i++) {
        float b = t->p.bias[i].bias, *y = &x[t->p.bias[i].id];
        *y = isinf(b) || isinf(*y) ? -INFINITY : clamp((double)*y + (double)b);
    }
    for (int32_t i = 0; i < V; i++)
        if ((t->p.n_ids && i >= t->p.n_ids) || (allowed && !(allowed[i / 32] >> (i % 32) & 1)))
            x[i] = -INFINITY;
    sort_ids(ids, x);
    for (; n < V && x[ids[n]] != -INFINITY; n++)
        if (t->p.top_k && n == t->p.top_k)
            break;
    if (n == 0)
        return -1;
    int32_t id = ids[0];
    if (t->p.temperature > 0) {
        float p[V] = {0}, inverse = 1.0f / t->p.temperature;
        double all = 0, sum = 0, mass[V] = {0}; // sums of whole numbers below 2^53: exact
        for (int32_t i = 0; i < n; i++) {
            float y = x[ids[i]], max = x[ids[0]];
            p[ids[i]] = y == max ? 1.0f : (float)exp((double)((y - max) * inverse));
            mass[ids[i]] = floor((double)p[ids[i]] * 0x1p40);
            all += mass[ids[i]];
        }
        double whole = all, left = 0;
        for (int32_t i = 0; i < n; i++) {
            bool is_cut = t->p.top_p > 0 && t->p.top_p < 1 && sum >= (double)t->p.top_p * whole;
            sum += mass[ids[i]];
            if (is_cut || p[ids[i]] < t->p.min_p)
                mass[ids[i]] = 0;
            left += mass[ids[i]];
        }
        sum = 0;
        double target = (double)rng_u64(t->p.seed, (uint64_t)pos) * 0x1p-64 * left;
        for (id = 0; id < V - 1; id++) {
            sum += mass[id];
            if (mass[id] > 0 && sum > target)
                break;
        }
    }
    t->generated[id]++;
    return id;
}

static uint64_t draws;
static double unit(uint64_t seed) { return rng_unit_f64(seed, draws++); }

/* One of the values with probability 1/2, else 0. */
static float maybe(uint64_t seed, double low, double high) {
    double pick = unit(seed), x = unit(seed);
    return pick < 0.5 ? 0.0f : (float)(low + (high - low) * x);
}

static void random_params_choose_as_the_definition_says(void **state) {
    UNUSED(state);
    const uint64_t seed = 20260731;
    draws = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    Sampler *s = open_sampler(V);
    int32_t n_none = 0;
    for (int round = 0; round < 400; round++) {
        Slow slow = {0};
        LogitBias bias[8];
        slow.p = (SampleParams){.temperature = maybe(seed, 0.05, 3),
                                .top_k = (int32_t)maybe(seed, 1, 40),
                                .top_p = maybe(seed, 0.01, 1),
                                .min_p = maybe(seed, 0.001, 0.6),
                                .repetition_penalty = maybe(seed, 0.5, 2),
                                .presence_penalty = maybe(seed, -2, 2),
                                .frequency_penalty = maybe(seed, -2, 2),
                                .n_ids = (int32_t)maybe(seed, 1, V),
                                .seed = (uint64_t)(unit(seed) * 1e9),
                                .bias = bias,
                                .n_bias = (int32_t)maybe(seed, 1, 8)};
        for (int i = 0; i < slow.p.n_bias; i++)
            bias[i] = (LogitBias){(int32_t)(unit(seed) * V),
                                  unit(seed) < 0.3 ? -INFINITY : (float)(unit(seed) * 20 - 10)};
        int32_t seen[30];
        for (int i = 0; i < 30; i++) {
            seen[i] = (int32_t)(unit(seed) * V);
            *(i < 20 ? &slow.seen[seen[i]] : &slow.generated[seen[i]]) += 1;
        }
        assert_int_equal(sampler_set(s, &slow.p, seen, 20, 10, NULL), STATUS_OK);
        double step = unit(seed) < 0.5 ? 0.5 : 1e-6; // half of the rounds are full of ties
        double density = unit(seed) < 0.1 ? 0.003 : 0.5;
        for (int pos = 0; pos < 12; pos++) {
            float logits[V];
            uint32_t allowed[WORDS] = {0};
            for (int i = 0; i < V; i++) {
                logits[i] = (float)(step * rint((unit(seed) * 12 - 6) / step));
                if (unit(seed) < density)
                    allowed[i / 32] |= 1u << (i % 32);
            }
            const uint32_t *mask = unit(seed) < 0.5 ? allowed : NULL;
            int32_t want = slow_next(&slow, logits, mask, pos);
            assert_int_equal(next(s, logits, mask, pos), want);
            n_none += want < 0;
        }
    }
    assert_true(n_none > 0); // the case that nothing is left was among them
    sampler_close(s);
}

static void draws_follow_the_distribution(void **state) {
    UNUSED(state);
    enum { N = 40000, M = 40 };
    const uint64_t seed = 977;
    printf("seed %llu\n", (unsigned long long)seed);
    static const SampleParams cases[] = {{.temperature = 0.7f},
                                         {.temperature = 1.3f, .top_k = 9},
                                         {.temperature = 1.0f, .top_p = 0.8f},
                                         {.temperature = 2.0f, .min_p = 0.1f}};
    float logits[M];
    for (int i = 0; i < M; i++)
        logits[i] = (float)(rng_unit_f64(seed, (uint64_t)i) * 4);
    Sampler *s = open_sampler(M);
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        SampleParams p = cases[c];
        p.seed = seed + c;
        set(s, p);
        int32_t counts[M] = {0};
        for (int32_t pos = 0; pos < N; pos++)
            counts[next(s, logits, NULL, pos)]++;
        // Kept ids and their probabilities, by repeated search for the next greatest.
        double prob[M] = {0}, all = 0, kept = 0, chi2 = 0;
        bool taken[M] = {false};
        for (int i = 0; i < M; i++)
            all += exp((double)logits[i] / (double)p.temperature);
        double max = 0;
        for (int n = 0; n < M; n++) {
            int best = -1;
            for (int i = 0; i < M; i++)
                if (!taken[i] && (best < 0 || logits[i] > logits[best]))
                    best = i;
            taken[best] = true;
            double q = exp((double)logits[best] / (double)p.temperature);
            max = n ? max : q;
            if ((p.top_k && n >= p.top_k) || (p.top_p > 0 && kept >= (double)p.top_p * all) ||
                q < (double)p.min_p * max)
                continue;
            prob[best] = q;
            kept += q;
        }
        int df = -1;
        for (int i = 0; i < M; i++) {
            double expected = N * prob[i] / kept;
            if (prob[i] == 0) {
                assert_int_equal(counts[i], 0);
                continue;
            }
            assert_true(expected > 5);
            chi2 += (counts[i] - expected) * (counts[i] - expected) / expected;
            df++;
        }
        printf("case %zu: chi2 %.1f with %d degrees of freedom\n", c, chi2, df);
        assert_true(chi2 < df + 5 * sqrt(2.0 * df)); // five standard deviations
        assert_true(chi2 > df - 4 * sqrt(2.0 * df)); // too even is not random either
    }
    sampler_close(s);
}

/* The k greatest of a vocabulary of many blocks, equal ones by ascending id, and no others. */
static void top_k_keeps_the_greatest_of_many_blocks(void **state) {
    UNUSED(state);
    enum { N = 256 * 20 + 5 };
    static const int32_t ks[] = {1, 2, 7, 20, 21, 22, 64};
    static float logits[N];
    static bool seen[N];
    Sampler *s = open_sampler(N);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        for (int i = 0; i < N; i++) // every other time few different values; some forbidden
            logits[i] = (float)(seed % 2 ? floor(rng_unit_f64(seed, (uint64_t)i) * 20)
                                         : rng_unit_f64(seed, (uint64_t)i) * 100);
        LogitBias bias[] = {{3, -INFINITY}, {N - 1, -INFINITY}, {300, 1e7f}};
        for (size_t c = 0; c < COUNT_OF(ks); c++) {
            SampleParams p = {.temperature = 100, .top_k = ks[c], .seed = seed};
            if (seed % 2)
                p.bias = bias, p.n_bias = 3;
            set(s, p);
            memset(seen, 0, sizeof seen);
            for (int32_t pos = 0; pos < 12 * ks[c]; pos++)
                seen[next(s, logits, NULL, pos)] = true;
            int32_t n_seen = 0;
            for (int i = 0; i < N; i++) {
                if (!seen[i])
                    continue;
                int32_t rank = 0; // ids that stand before it
                for (int j = 0; j < N; j++) {
                    bool is_out = seed % 2 && (j == 3 || j == N - 1);
                    float x = logits[i] + (seed % 2 && i == 300 ? 1e7f : 0);
                    float y = logits[j] + (seed % 2 && j == 300 ? 1e7f : 0);
                    rank += !is_out && (y > x || (y == x && j < i));
                }
                assert_true(rank < ks[c]);
                n_seen++;
            }
            assert_true(seed % 2 || n_seen > ks[c] / 2);
        }
    }
    sampler_close(s);
}

static void same_seed_and_position_give_the_same_id(void **state) {
    UNUSED(state);
    float logits[V] = {0};
    Sampler *a = open_sampler(V), *b = open_sampler(V);
    set(a, (SampleParams){.temperature = 1, .seed = 5});
    set(b, (SampleParams){.temperature = 1, .seed = 5});
    int n_equal = 0;
    for (int32_t pos = 0; pos < 50; pos++) {
        int32_t id = next(a, logits, NULL, pos);
        assert_int_equal(next(b, logits, NULL, pos), id);
        assert_int_equal(next(a, logits, NULL, pos), id); // whatever was drawn before
        n_equal += next(a, logits, NULL, pos + 1000) == id;
    }
    assert_true(n_equal < 10);
    sampler_close(a);
    sampler_close(b);
}

/* ---- edges ---- */

static void greedy_takes_the_lowest_id_among_maxima(void **state) {
    UNUSED(state);
    float logits[V];
    Sampler *s = open_sampler(V);
    for (int i = 0; i < V; i++)
        logits[i] = -3;
    logits[17] = logits[5] = logits[250] = 2;
    assert_int_equal(next(s, logits, NULL, 0), 5); // never set: greedy
    set(s, (SampleParams){.temperature = 0.8f, .top_k = 1});
    assert_int_equal(next(s, logits, NULL, 0), 5);
    for (int i = 0; i < V; i++)
        logits[i] = i < 100 ? -0.0f : 0.0f; // equal values
    assert_int_equal(next(s, logits, NULL, 0), 0);
    set(s, (SampleParams){0});
    assert_int_equal(next(s, logits, NULL, 0), 0);
    sampler_close(s);
}

static void masks_forbid(void **state) {
    UNUSED(state);
    float logits[V];
    uint32_t allowed[WORDS + 1] = {0};
    for (int i = 0; i < V; i++)
        logits[i] = (float)i;
    allowed[0] = 1u << 9 | 1u << 3;
    allowed[V / 32] = ~0u << (V % 32); // bits behind the last id
    allowed[WORDS] = ~0u;
    Sampler *s = open_sampler(V);
    assert_int_equal(next(s, logits, allowed, 0), 9);
    set(s, (SampleParams){.n_ids = 8});
    assert_int_equal(next(s, logits, NULL, 0), 7);
    assert_int_equal(next(s, logits, allowed, 0), 3);
    LogitBias bias[] = {{3, -INFINITY}, {3, 50}}; // once forbidden, always
    set(s, (SampleParams){.n_ids = 8, .bias = bias, .n_bias = 2, .n_top = 2, .want_logprob = true});
    SampleResult r;
    sampler_next(s, &r, logits, allowed, 0);
    assert_int_equal(r.id, -1); // nothing is left
    assert_true(r.logprob == 0);
    assert_int_equal(r.n_top, 2);
    assert_int_equal(r.top_ids[0], 7);
    set(s, (SampleParams){.temperature = 1, .top_p = 0.5f, .top_k = 4, .min_p = 0.1f});
    memset(allowed, 0, sizeof allowed);
    assert_int_equal(next(s, logits, allowed, 0), -1);
    allowed[4] = 1;
    assert_int_equal(next(s, logits, allowed, 0), 128); // the only one
    sampler_close(s);
}

static void narrow_settings_leave_the_maximum(void **state) {
    UNUSED(state);
    static const SampleParams cases[] = {{.temperature = 1, .top_k = 1},
                                         {.temperature = 100, .top_p = 1e-9f},
                                         {.temperature = 5, .min_p = 1},
                                         {.temperature = 1e-6f},
                                         {.temperature = 1e-45f, .top_k = 1000}};
    float logits[V];
    Sampler *s = open_sampler(V);
    for (int i = 0; i < V; i++)
        logits[i] = (float)(i * 37 % V) * 0.01f; // the maximum is not at an end
    int32_t best = 0;
    for (int i = 0; i < V; i++)
        best = logits[i] > logits[best] ? i : best;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        set(s, cases[c]);
        for (int32_t pos = 0; pos < 20; pos++)
            assert_int_equal(next(s, logits, NULL, pos), best);
    }
    sampler_close(s);
}

static void wide_settings_reach_every_id(void **state) {
    UNUSED(state);
    static const SampleParams cases[] = {{.temperature = 100},
                                         {.temperature = 100, .top_k = INT32_MAX},
                                         {.temperature = 100, .top_p = 1},
                                         {.temperature = 100, .top_k = V + 1, .top_p = 0.9999999f}};
    float logits[20];
    for (int i = 0; i < 20; i++)
        logits[i] = (float)(i % 5);
    Sampler *s = open_sampler(20);
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        bool seen[20] = {false};
        set(s, cases[c]);
        for (int32_t pos = 0; pos < 1000; pos++)
            seen[next(s, logits, NULL, pos)] = true;
        for (int i = 0; i < 20; i++)
            assert_true(seen[i]);
    }
    sampler_close(s);
}

static void penalties_count_what_they_should(void **state) {
    UNUSED(state);
    float logits[4] = {2.0f, -2.0f, 0.0f, 1.5f};
    const int32_t ids[] = {0, 1, 3};
    Sampler *s = open_sampler(4);
    SampleParams p = {.repetition_penalty = 2};
    assert_int_equal(sampler_set(s, &p, ids, 3, 0, NULL), STATUS_OK);
    assert_int_equal(next(s, logits, NULL, 0), 0); // 1, -4, 0, 0.75
    logits[3] = 2.5f;
    assert_int_equal(next(s, logits, NULL, 1), 3); // 1, -4, 0, 1.25
    p = (SampleParams){.presence_penalty = 1};
    assert_int_equal(sampler_set(s, &p, ids, 3, 0, NULL), STATUS_OK);
    assert_int_equal(next(s, logits, NULL, 0), 3); // prompt ids are not counted
    assert_int_equal(next(s, logits, NULL, 0), 0); // the chosen id is: 2, ..., 1.5
    assert_int_equal(next(s, logits, NULL, 0), 3); // 1, ..., 1.5
    assert_int_equal(next(s, logits, NULL, 0), 3); // once, not again
    p = (SampleParams){.frequency_penalty = 1};
    assert_int_equal(sampler_set(s, &p, ids, 1, 2, NULL), STATUS_OK); // 1 and 3 were generated
    assert_int_equal(next(s, logits, NULL, 0), 0);                    // 2, -3, 0, 1.5
    assert_int_equal(next(s, logits, NULL, 0), 3);                    // 1, -3, 0, 1.5
    assert_int_equal(next(s, logits, NULL, 0), 0);                    // 1, -3, 0, 0.5
    assert_int_equal(next(s, logits, NULL, 0), 3);                    // 0, -3, 0, 0.5
    assert_int_equal(next(s, logits, NULL, 0), 0);                    // 0, -3, 0, -0.5
    assert_int_equal(next(s, logits, NULL, 0), 2);                    // -1, -3, 0, -0.5
    sampler_close(s);
}

static void huge_numbers_stay_finite(void **state) {
    UNUSED(state);
    float logits[6] = {FLT_MAX, -FLT_MAX, FLT_MAX, 0, -FLT_MAX, 1};
    LogitBias bias[] = {{0, FLT_MAX}, {1, -FLT_MAX}, {2, -FLT_MAX}, {3, FLT_MAX}};
    const int32_t ids[] = {1, 4, 5};
    SampleParams p = {.temperature = 1e-30f,
                      .repetition_penalty = 100,
                      .presence_penalty = -100,
                      .frequency_penalty = 100,
                      .bias = bias,
                      .n_bias = 4,
                      .n_top = 6,
                      .want_logprob = true};
    Sampler *s = open_sampler(6);
    assert_int_equal(sampler_set(s, &p, ids, 1, 2, NULL), STATUS_OK);
    for (int32_t pos = 0; pos < 20; pos++) {
        SampleResult r;
        sampler_next(s, &r, logits, NULL, pos);
        assert_true(r.id == 0 || r.id == 3);
        assert_true(r.logprob <= 0);
        assert_int_equal(r.n_top, 6);
    }
    sampler_close(s);
}

static void log_probabilities_are_those_of_the_unchanged_logits(void **state) {
    UNUSED(state);
    const uint64_t seed = 4711;
    printf("seed %llu\n", (unsigned long long)seed);
    float logits[V];
    double sum = 0;
    for (int i = 0; i < V; i++) {
        logits[i] = (float)rint(rng_unit_f64(seed, (uint64_t)i) * 60) * 0.25f; // many ties
        sum += exp((double)logits[i]);
    }
    LogitBias bias[] = {{3, 100}};
    Sampler *s = open_sampler(V);
    for (int n_top = 0; n_top <= LIMIT_TOP_LOGPROBS; n_top += 5) {
        set(s, (SampleParams){.temperature = 0.1f,
                              .bias = bias,
                              .n_bias = 1,
                              .n_ids = V - 3,
                              .n_top = n_top,
                              .want_logprob = true});
        SampleResult r;
        sampler_next(s, &r, logits, NULL, 0);
        assert_int_equal(r.id, 3);
        assert_true(fabs((double)r.logprob - ((double)logits[3] - log(sum))) < 1e-6);
        assert_int_equal(r.n_top, n_top);
        for (int i = 0; i < n_top; i++) {
            assert_true(r.top_ids[i] >= 0 && r.top_ids[i] < V - 3);
            assert_true(
                fabs((double)r.top_logprobs[i] - ((double)logits[r.top_ids[i]] - log(sum))) < 1e-6);
            int32_t rank = 0; // ids that must stand before it
            for (int32_t j = 0; j < V - 3; j++)
                rank += logits[j] > logits[r.top_ids[i]] ||
                        (logits[j] == logits[r.top_ids[i]] && j < r.top_ids[i]);
            assert_int_equal(rank, i);
        }
    }
    sampler_close(s);
    float three[3] = {1, 3, 2};
    s = open_sampler(3); // fewer ids than asked for
    set(s, (SampleParams){.n_top = 20});
    SampleResult r;
    sampler_next(s, &r, three, NULL, 0);
    assert_int_equal(r.n_top, 3);
    assert_int_equal(r.top_ids[0], 1);
    assert_int_equal(r.top_ids[2], 0);
    sampler_close(s);
}

static void one_id_is_always_chosen(void **state) {
    UNUSED(state);
    float logits[1] = {-50};
    Sampler *s = open_sampler(1);
    set(s, (SampleParams){.temperature = 1, .top_k = 5, .top_p = 0.5f, .min_p = 1, .n_top = 2});
    SampleResult r;
    sampler_next(s, &r, logits, NULL, 3);
    assert_int_equal(r.id, 0);
    assert_int_equal(r.n_top, 1);
    assert_true(r.top_logprobs[0] == 0);
    sampler_close(s);
}

/* The vocabulary of the family, in the orders that are worst for a list of the greatest. */
static void a_whole_vocabulary_in_any_order(void **state) {
    UNUSED(state);
    enum { BIG = 248320 };
    float *logits = test_malloc(BIG * sizeof *logits);
    Sampler *s = open_sampler(BIG);
    set(s, (SampleParams){.temperature = 1, .top_k = 20, .top_p = 0.95f, .n_top = 20, .seed = 3});
    for (int order = 0; order < 3; order++) {
        for (int32_t i = 0; i < BIG; i++)
            logits[i] = order == 0 ? (float)i * 1e-4f : order == 1 ? (float)-i * 1e-4f : 1.0f;
        SampleResult r;
        sampler_next(s, &r, logits, NULL, 0);
        assert_true(order == 0 ? r.id >= BIG - 20 : r.id < 20);
        for (int32_t i = 0; i < 20; i++)
            assert_int_equal(r.top_ids[i], order == 0 ? BIG - 1 - i : i);
    }
    sampler_close(s);
    test_free(logits);
}

/* ---- refusals and memory ---- */

static void params_out_of_range_are_refused_by_name(void **state) {
    UNUSED(state);
    static const LogitBias low = {-1, 0}, high = {V, 0}, nan_bias = {3, NAN}, inf = {3, INFINITY};
    static const struct {
        SampleParams p;
        const char *name;
    } cases[] = {
        {{.temperature = -0.1f}, "temperature"},
        {{.temperature = 100.5f}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.temperature = INFINITY}, "temperature"},
        {{.top_k = -1}, "top_k"},
        {{.top_p = -0.1f}, "top_p"},
        {{.top_p = 1.01f}, "top_p"},
        {{.top_p = NAN}, "top_p"},
        {{.min_p = -0.1f}, "min_p"},
        {{.min_p = 1.5f}, "min_p"},
        {{.repetition_penalty = -1}, "repetition_penalty"},
        {{.repetition_penalty = 101}, "repetition_penalty"},
        {{.presence_penalty = -101}, "presence_penalty"},
        {{.presence_penalty = NAN}, "presence_penalty"},
        {{.frequency_penalty = 101}, "frequency_penalty"},
        {{.n_ids = -1}, "n_ids"},
        {{.n_ids = V + 1}, "n_ids"},
        {{.n_top = -1}, "top_logprobs"},
        {{.n_top = LIMIT_TOP_LOGPROBS + 1}, "top_logprobs"},
        {{.n_bias = -1}, "logit_bias"},
        {{.n_bias = LIMIT_LOGIT_BIAS + 1}, "logit_bias"},
        {{.n_bias = 1, .bias = &low}, "logit_bias: expected 0 to 299, found -1"},
        {{.n_bias = 1, .bias = &high}, "logit_bias: expected 0 to 299, found 300"},
        {{.n_bias = 1, .bias = &nan_bias}, "logit_bias of id 3"},
        {{.n_bias = 1, .bias = &inf}, "logit_bias of id 3"},
    };
    float logits[V] = {0};
    logits[7] = 1;
    Sampler *s = open_sampler(V);
    LogitBias bias = {7, -INFINITY};
    const int32_t ids[] = {0, V, -1};
    set(s, (SampleParams){.bias = &bias, .n_bias = 1});
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Err err = {0};
        assert_int_equal(sample_params_check(&cases[i].p, V, NULL), STATUS_INVALID);
        assert_int_equal(sampler_set(s, &cases[i].p, NULL, 0, 0, &err), STATUS_INVALID);
        if (!strstr(err.text, cases[i].name))
            fail_msg("case %zu: %s", i, err.text);
    }
    SampleParams p = {0};
    for (int n = 2; n <= 3; n++)
        assert_int_equal(sampler_set(s, &p, ids + n - 1, n - 2, 1, NULL), STATUS_INVALID);
    assert_int_equal(sampler_set(s, &p, ids, -1, 0, NULL), STATUS_INVALID);
    assert_int_equal(sampler_set(s, &p, ids, 0, -1, NULL), STATUS_INVALID);
    assert_int_equal(next(s, logits, NULL, 0), 0); // still forbids 7
    sampler_close(s);
}

static void the_bias_list_is_copied(void **state) {
    UNUSED(state);
    float logits[V] = {0};
    LogitBias bias[LIMIT_LOGIT_BIAS];
    for (int i = 0; i < LIMIT_LOGIT_BIAS; i++)
        bias[i] = (LogitBias){44, 1};
    Sampler *s = open_sampler(V);
    set(s, (SampleParams){.bias = bias, .n_bias = LIMIT_LOGIT_BIAS});
    memset(bias, 0xff, sizeof bias);
    assert_int_equal(next(s, logits, NULL, 0), 44);
    sampler_close(s);
}

static void nothing_is_allocated_behind_open(void **state) {
    UNUSED(state);
    float logits[V] = {0};
    const int32_t ids[] = {1, 2, 3};
    LogitBias bias = {1, 2};
    Sampler *s = open_sampler(V);
    SampleParams p = {.temperature = 1, .top_k = 9, .top_p = 0.5f, .bias = &bias, .n_bias = 1};
    int64_t before = mem_count();
    assert_int_equal(sampler_set(s, &p, ids, 1, 2, NULL), STATUS_OK);
    next(s, logits, NULL, 0);
    assert_int_equal(mem_count(), before);
    sampler_close(s);
}

static void each_allocation_failing_is_reported(void **state) {
    UNUSED(state);
    for (int64_t i = 0;; i++) {
        Sampler *s = NULL;
        Err err = {0};
        mem_fail_after(i);
        Status status = sampler_open(&s, V, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            assert_int_equal(i, 8);
            sampler_close(s);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_null(s);
        assert_true(err.text[0]);
    }
    sampler_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_params_choose_as_the_definition_says),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(top_k_keeps_the_greatest_of_many_blocks),
        cmocka_unit_test(same_seed_and_position_give_the_same_id),
        cmocka_unit_test(greedy_takes_the_lowest_id_among_maxima),
        cmocka_unit_test(masks_forbid),
        cmocka_unit_test(narrow_settings_leave_the_maximum),
        cmocka_unit_test(wide_settings_reach_every_id),
        cmocka_unit_test(penalties_count_what_they_should),
        cmocka_unit_test(huge_numbers_stay_finite),
        cmocka_unit_test(log_probabilities_are_those_of_the_unchanged_logits),
        cmocka_unit_test(one_id_is_always_chosen),
        cmocka_unit_test(a_whole_vocabulary_in_any_order),
        cmocka_unit_test(params_out_of_range_are_refused_by_name),
        cmocka_unit_test(the_bias_list_is_copied),
        cmocka_unit_test(nothing_is_allocated_behind_open),
        cmocka_unit_test(each_allocation_failing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
