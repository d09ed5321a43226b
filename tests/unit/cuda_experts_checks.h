// SPDX-License-Identifier: Apache-2.0
/* cuda_experts_checks.h - test helper: the experts of a decode step of several rows against those
 * of each row alone, to the bit. Shared by the test on a card and the emulated one. Behind
 * cuda_matmul_checks.h.
 *
 * Owns:     what a Chosen holds, until chosen_fini.  Thread: one. */
#ifndef LILY_TESTS_CUDA_EXPERTS_CHECKS_H
#define LILY_TESTS_CUDA_EXPERTS_CHECKS_H

#include "cuda_matmul_checks.h"

enum { EXPERTS_SEED = 41, EXPERTS_LD = 3 }; // floats of a row of logits behind the experts'

/* Widths of a layer, and how its rows choose. */
typedef struct ChosenShape {
    int32_t h, inner, shared, n_experts, top_k;
    int32_t alike; // so many rows (of all) choose the same experts; the others at random
} ChosenShape;

/* A layer and a step of m rows on the card. */
typedef struct Chosen {
    ChosenShape s;
    int32_t m;
    Product up, down, shared_up, shared_down;
    CudaDigits in;
    float *logits; // [m, n_experts + EXPERTS_LD]
    int32_t *id;
    float *weight, *act, *shared_act, *y, *x;
    int32_t *bad, *count;
    CudaRow *rows;
} Chosen;

static float *card_floats(size_t n, uint64_t seed, float from, float to) {
    float *host = malloc(n * sizeof *host);
    for (size_t i = 0; i < n; i++)
        host[i] = from + (to - from) * rng_unit_f32(seed, i);
    float *p = card_put(host, n * sizeof *host);
    free(host);
    return p;
}

/* Logits whose largest of a row are what the row is to choose. */
static float *chosen_logits(const ChosenShape *s, int32_t m) {
    size_t ld = (size_t)(s->n_experts + EXPERTS_LD);
    float *host = malloc((size_t)m * ld * sizeof *host);
    for (size_t i = 0; i < (size_t)m * ld; i++) {
        bool is_alike = (int32_t)(i / ld * 7 % (size_t)m) < s->alike;
        host[i] = 2 * rng_unit_f32(EXPERTS_SEED + 1, is_alike ? i % ld : i) +
                  0.01f * rng_unit_f32(EXPERTS_SEED + 2, i);
    }
    float *p = card_put(host, (size_t)m * ld * sizeof *host);
    free(host);
    return p;
}

static void chosen_init(Chosen *c, ChosenShape s, int32_t m) {
    size_t pairs = (size_t)m * (size_t)s.top_k, rows = (size_t)m, h = (size_t)s.h;
    *c = (Chosen){.s = s, .m = m};
    product_init(&c->up, s.n_experts * 2 * s.inner, s.h, 1, EXPERTS_SEED + 10);
    product_init(&c->down, s.n_experts * s.h, s.inner, 1, EXPERTS_SEED + 20);
    product_init(&c->shared_up, 2 * s.shared, s.h, 1, EXPERTS_SEED + 30);
    product_init(&c->shared_down, s.h, s.shared, 1, EXPERTS_SEED + 40);
    c->in.digit = card_put(NULL, rows * h * 2);
    c->in.scale = card_put(NULL, rows * h / 8);
    c->in.factor = card_put(NULL, rows * 4);
    c->logits = chosen_logits(&s, m);
    c->id = card_put(NULL, pairs * 4);
    c->weight = card_put(NULL, pairs * 4);
    c->act = card_put(NULL, pairs * (size_t)s.inner * 4);
    c->shared_act = card_put(NULL, rows * (size_t)s.shared * 4);
    c->y = card_put(NULL, (pairs + rows) * h * 4);
    c->x = card_put(NULL, rows * h * 4);
    c->rows = card_put(NULL, rows * sizeof *c->rows);
    c->bad = card_put(NULL, 4);
    c->count = card_put(NULL, 4);
    cuda_ok(cudaMemsetAsync(c->rows, 0, rows * sizeof *c->rows, NULL));
    cuda_ok(cudaMemsetAsync(c->count, 0, 4, NULL));
    float *x = card_floats(rows * h, EXPERTS_SEED + 50, -2, 2);
    float *gain = card_floats(h, EXPERTS_SEED + 51, 0.5f, 1.5f);
    CudaNorm norm = {.x = x, .gain = gain, .digits = c->in, .eps = 1e-6f, .m = m, .k = s.h};
    CudaLaunch l = {0};
    cuda_ok(cuda_norm(&l, &norm));
    cuda_ok(cudaStreamSynchronize(NULL));
    cudaFree(x);
    cudaFree(gain);
}

static void chosen_fini(Chosen *c) {
    void *all[] = {c->in.digit,   c->in.scale, c->in.factor, c->logits, c->id,  c->weight, c->act,
                   c->shared_act, c->y,        c->x,         c->count,  c->bad, c->rows};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cudaFree(all[i]);
    product_fini(&c->up);
    product_fini(&c->down);
    product_fini(&c->shared_up);
    product_fini(&c->shared_down);
}

/* Rows [row, row + n) of the step: the shared expert's gate and up, the experts', and x. */
static void chosen_run(Chosen *c, int32_t row, int32_t n, int max_shared) {
    const ChosenShape *s = &c->s;
    CudaLaunch l = {.is_chained = true, .max_shared = max_shared};
    int64_t ld = s->n_experts + EXPERTS_LD, groups = (int64_t)row * (s->h / CUDA_GROUP);
    CudaSource src = {
        .digits = {c->in.digit + groups * 32, c->in.scale + groups * 2, c->in.factor + row},
        .eps = 1e-6f,
        .m = n};
    CudaRoute route = {.logits = c->logits + row * ld,
                       .ld = (int32_t)ld,
                       .n_experts = s->n_experts,
                       .top_k = s->top_k,
                       .is_norm = 1,
                       .id = c->id + row * s->top_k,
                       .weight = c->weight + row * s->top_k,
                       .m = n};
    CudaExperts up = {.w = c->up.card,
                      .src = src,
                      .id = route.id,
                      .route = route,
                      .act = c->act + (int64_t)row * s->top_k * s->inner,
                      .inner = s->inner,
                      .top_k = s->top_k,
                      .shared = c->shared_up.card,
                      .shared_act = c->shared_act + (int64_t)row * s->shared};
    CudaDown down = {.w = c->down.card,
                     .shared = c->shared_down.card,
                     .act = up.act,
                     .shared_act = up.shared_act,
                     .id = route.id,
                     .weight = route.weight,
                     .route = route,
                     .mix = route.logits + s->n_experts,
                     .x = c->x + (int64_t)row * s->h,
                     .y = c->y,
                     .ld_mix = (int32_t)ld,
                     .m = n,
                     .h = s->h,
                     .top_k = s->top_k,
                     .bad = {.bad = c->bad, .rows = c->rows}};
    cuda_ok(cuda_route(&l, &route));
    if (n <= 8) { // as a step does: the shared expert by the router's kernel, else by the experts'
        up.shared = (CudaMatrix){0};
        CudaRouter router = {.router = {.k = s->h, .bits = 8},
                             .shared = c->shared_up.card,
                             .src = src,
                             .route = route,
                             .act = up.shared_act,
                             .count = c->count};
        cuda_ok(cuda_router(&l, &router));
    }
    cuda_ok(cuda_experts_up(&l, &up));
    cuda_ok(cuda_experts_down(&l, &down));
}

typedef struct ChosenOut {
    float *act, *shared_act, *x;
} ChosenOut;

/* Clears what is written, runs the step whole or row by row, and fetches it. */
static ChosenOut chosen_out(Chosen *c, bool is_whole, int max_shared) {
    size_t act = (size_t)c->m * (size_t)c->s.top_k * (size_t)c->s.inner * 4;
    size_t shared = (size_t)c->m * (size_t)c->s.shared * 4, x = (size_t)c->m * (size_t)c->s.h * 4;
    int32_t none = 0x7f7f7f7f, bad = 0;
    cuda_ok(cudaMemsetAsync(c->act, 0xff, act, NULL));
    cuda_ok(cudaMemsetAsync(c->shared_act, 0xff, shared, NULL));
    cuda_ok(cudaMemsetAsync(c->x, 0, x, NULL));
    cuda_ok(cudaMemsetAsync(c->bad, 0x7f, 4, NULL));
    if (is_whole)
        chosen_run(c, 0, c->m, max_shared);
    for (int32_t row = 0; row < c->m && !is_whole; row++)
        chosen_run(c, row, 1, max_shared);
    ChosenOut o = {malloc(act), malloc(shared), malloc(x)};
    card_get(o.act, c->act, act);
    card_get(o.shared_act, c->shared_act, shared);
    card_get(o.x, c->x, x);
    card_get(&bad, c->bad, 4);
    assert_int_equal(bad, none);
    return o;
}

static void chosen_same(const Chosen *c, const char *what, const float *a, const float *b,
                        int32_t width, int32_t rows) {
    for (int32_t row = 0; row < rows; row++)
        for (int32_t i = 0; i < width; i++)
            if (memcmp(a + (size_t)row * (size_t)width + i, b + (size_t)row * (size_t)width + i, 4))
                fail_msg("seed %d, %d rows, h %d, inner %d: %s row %d, %d: %.9g, alone %.9g",
                         EXPERTS_SEED, c->m, c->s.h, c->s.inner, what, row, i,
                         (double)a[(size_t)row * (size_t)width + i],
                         (double)b[(size_t)row * (size_t)width + i]);
}

/* Counts of tokens of an expert up to one above what is read together, all pairs on the same
 * experts, experts without pairs; parts of slices, more slices than one. */
static void experts_of_rows_are_equal(void **state) {
    (void)state;
    static const struct {
        ChosenShape s;
        int32_t m;
    } cases[] = {
        {{192, 64, 128, 12, 3, 0}, 2},  {{192, 64, 128, 12, 3, 5}, 5},
        {{64, 64, 64, 5, 1, 13}, 13},   {{192, 64, 128, 12, 3, 9}, 9},
        {{640, 576, 64, 8, 2, 6}, 12},  {{576, 128, 640, 40, 4, 8}, 33},
        {{64, 192, 64, 300, 8, 4}, 17}, {{128, 64, 64, 16, 2, 0}, 65},
        {{64, 64, 64, 6, 2, 133}, 133},
    };
    int most = 0;
    products_ready();
    cuda_ok(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Chosen c;
        chosen_init(&c, cases[i].s, cases[i].m);
        ChosenOut alone = chosen_out(&c, false, most);
        for (int few = 0; few < 2; few++) { // warps, on a card with little shared memory
            ChosenOut o = chosen_out(&c, true, few ? 0 : most);
            chosen_same(&c, "act", o.act, alone.act, c.s.inner, c.m * c.s.top_k);
            chosen_same(&c, "shared act", o.shared_act, alone.shared_act, c.s.shared, c.m);
            chosen_same(&c, "x", o.x, alone.x, c.s.h, c.m);
            free(o.act);
            free(o.shared_act);
            free(o.x);
        }
        free(alone.act);
        free(alone.shared_act);
        free(alone.x);
        chosen_fini(&c);
    }
}

#define CUDA_EXPERTS_CHECKS cmocka_unit_test(experts_of_rows_are_equal)

#endif
