// SPDX-License-Identifier: Apache-2.0
/* cuda_matmul_checks.h - test helper: prefill products of both columns against a double reference
 * and against each other, at the edges of tiles. Shared by the test on a card and the emulated one.
 *
 * Owns:     what a Product holds, until product_fini.  Thread: one. */
#ifndef LILY_TESTS_CUDA_MATMUL_CHECKS_H
#define LILY_TESTS_CUDA_MATMUL_CHECKS_H

#include "unit.h"

#include "backend/cuda/cuda_kernels.h"
#include "base/bf16.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 0x7fc1 }; // what results hold before; no product makes this NaN

static void cuda_ok(cudaError_t e) {
    if (e != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(e));
}

static void *card_put(const void *host, size_t n) {
    void *p = NULL;
    cuda_ok(cudaMalloc(&p, n));
    if (host)
        cuda_ok(cudaMemcpyAsync(p, host, n, cudaMemcpyHostToDevice, NULL));
    cuda_ok(cudaStreamSynchronize(NULL));
    return p;
}
static void card_get(void *host, const void *p, size_t n) {
    cuda_ok(cudaMemcpyAsync(host, p, n, cudaMemcpyDeviceToHost, NULL));
    cuda_ok(cudaStreamSynchronize(NULL));
}

/* Weights [n, k] of all experts (n a multiple of 16) and rows [m, k]. */
typedef struct Product {
    int32_t n, k, m;
    uint64_t seed;
    float *w;        // [n, k] as the kernels make them
    uint16_t *u;     // [m, k]
    CudaMatrix card; // packed
    uint16_t *card_u;
} Product;

static void product_init(Product *p, int32_t n, int32_t k, int32_t m, uint64_t seed) {
    *p = (Product){.n = n, .k = k, .m = m, .seed = seed};
    size_t codes = (size_t)n * (size_t)k / 8, groups = (size_t)n * (size_t)k / 64;
    uint32_t *q = malloc(codes * 4);
    uint16_t *scale = malloc(groups * 2), *bias = malloc(groups * 2);
    p->w = malloc((size_t)n * (size_t)k * sizeof *p->w);
    p->u = malloc((size_t)m * (size_t)k * 2);
    for (size_t i = 0; i < codes; i++)
        q[i] = (uint32_t)rng_u64(seed, i);
    for (size_t i = 0; i < groups; i++) {
        scale[i] = bf16_from_f32(0.002f + 0.01f * rng_unit_f32(seed + 1, i));
        bias[i] = bf16_from_f32(-0.1f * rng_unit_f32(seed + 2, i));
    }
    for (size_t i = 0; i < (size_t)n * (size_t)k; i++)
        p->w[i] = bf16_round((float)(q[i / 8] >> 4 * (i % 8) & 15) * bf16_to_f32(scale[i / 64]) +
                             bf16_to_f32(bias[i / 64]));
    for (size_t i = 0; i < (size_t)m * (size_t)k; i++)
        p->u[i] = bf16_from_f32(2 * rng_unit_f32(seed + 3, i) - 1);
    CudaLaunch l = {0};
    CudaPack pack = {.code = card_put(NULL, codes * 4),
                     .scale = card_put(NULL, groups * 4),
                     .q = card_put(q, codes * 4),
                     .raw_scale = card_put(scale, groups * 2),
                     .raw_bias = card_put(bias, groups * 2),
                     .n_rows = n,
                     .k = k,
                     .bits = 4};
    cuda_ok(cuda_pack_rows(&l, &pack));
    cuda_ok(cudaStreamSynchronize(NULL));
    p->card = (CudaMatrix){.code = pack.code, .scale = pack.scale, .n = n, .k = k, .bits = 4};
    p->card_u = card_put(p->u, (size_t)m * (size_t)k * 2);
    cudaFree((void *)(uintptr_t)pack.q);
    cudaFree((void *)(uintptr_t)pack.raw_scale);
    cudaFree((void *)(uintptr_t)pack.raw_bias);
    free(q);
    free(scale);
    free(bias);
}

static void product_fini(Product *p) {
    cudaFree((void *)(uintptr_t)p->card.code);
    cudaFree((void *)(uintptr_t)p->card.scale);
    cudaFree(p->card_u);
    free(p->w);
    free(p->u);
}

/* Sum of output o (of all experts) for row u, and the sum of the sizes of its terms. */
static double product_dot(const Product *p, int32_t o, int32_t row, double *size) {
    double sum = 0;
    *size = 0;
    for (int32_t i = 0; i < p->k; i++) {
        double term = (double)p->w[(size_t)o * (size_t)p->k + (size_t)i] *
                      (double)bf16_to_f32(p->u[(size_t)row * (size_t)p->k + (size_t)i]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* One f32 sum of up to 8192 terms and the weights' own last place, in shares of the sum of sizes;
 * a result in bf16 has its last place besides. Both columns lie at 1e-6 (f32) in the emulation. */
static const double PRODUCT_SUM = 2e-5, PRODUCT_BF16 = 0x1p-8;

/* Output o of a row: first is the expert's first output. Rows of gate and up lie eight by eight. */
static double product_want(const Product *p, CudaEpilogue kind, int32_t first, int32_t o,
                           int32_t row, double *slack) {
    double size, other;
    if (kind != CUDA_SWIGLU) {
        double v = product_dot(p, first + o, row, &size);
        *slack = size * PRODUCT_SUM + (kind == CUDA_STORE ? fabs(v) * PRODUCT_BF16 : 0);
        return v;
    }
    double gate = product_dot(p, first + o / 8 * 16 + o % 8, row, &size);
    double up = product_dot(p, first + o / 8 * 16 + o % 8 + 8, row, &other);
    double s = gate / (1 + exp(-gate)), v = s * up;
    *slack =
        (fabs(up) * 1.2 * size + fabs(s) * other) * PRODUCT_SUM + fabs(v) * PRODUCT_BF16 + 1e-6;
    return v;
}

/* Rows of a result: bytes of one row, of the columns that are written. */
typedef struct Result {
    unsigned char *y;
    size_t row, written; // bytes
    int32_t m, n;        // rows, columns
} Result;

static double result_value(const Result *r, CudaEpilogue kind, int32_t row, int32_t o) {
    const unsigned char *at = r->y + (size_t)row * r->row;
    if (kind == CUDA_ADD) {
        float v;
        memcpy(&v, at + 4 * (size_t)o, 4);
        return (double)v;
    }
    uint16_t h;
    memcpy(&h, at + 2 * (size_t)o, 2);
    return (double)bf16_to_f32(h);
}

/* Runs a product over its first m rows (or the groups of `a`); 16 columns and a row more than it
 * writes stay as they were. a holds what is not set here. */
static Result product_run(const Product *p, CudaMatmul a, int32_t n, int32_t m, int32_t n_sm90) {
    bool is_add = a.epilogue == CUDA_ADD;
    Result r = {.m = m, .n = a.epilogue == CUDA_SWIGLU ? n / 2 : n};
    size_t wide = is_add ? 4 : 2;
    r.written = (size_t)r.n * wide;
    r.row = r.written + 16 * wide;
    size_t bytes = (size_t)(m + 1) * r.row;
    r.y = malloc(bytes);
    for (size_t i = 0; i < bytes / 2; i++) { // ADD adds to 1
        uint16_t v = !is_add ? GUARD : i % 2 ? 0x3f80 : 0;
        memcpy(r.y + 2 * i, &v, 2);
    }
    CudaRow *rows = calloc((size_t)m, sizeof *rows);
    int32_t none = 0x7f7f7f7f;
    a.w = p->card;
    a.u = a.u ? a.u : p->card_u;
    a.y = card_put(r.y, bytes);
    a.m = m;
    a.ldy = r.n + 16;
    a.bad.rows = card_put(rows, (size_t)m * sizeof *rows);
    a.bad.bad = card_put(&none, sizeof none);
    CudaLaunch l = {.n_sm90 = n_sm90};
    cuda_ok(cuda_matmul(&l, &a));
    card_get(r.y, a.y, bytes);
    card_get(&none, a.bad.bad, sizeof none);
    assert_int_equal(none, 0x7f7f7f7f);
    for (int32_t row = 0; row <= m; row++) // nothing beside the result
        for (size_t i = row < m ? r.written : 0; i < r.row; i += 2) {
            uint16_t v;
            memcpy(&v, r.y + (size_t)row * r.row + i, 2);
            if (v != (!is_add ? GUARD : i % 4 ? 0x3f80 : 0))
                fail_msg("row %d, byte %zu behind the result was written", row, i);
        }
    cudaFree(a.y);
    cudaFree((void *)(uintptr_t)a.bad.rows);
    cudaFree(a.bad.bad);
    free(rows);
    return r;
}

static void result_check(const Product *p, const Result *r, CudaEpilogue kind, int32_t first,
                         int32_t u_row, int32_t row) {
    for (int32_t o = 0; o < r->n; o++) {
        double slack, want = product_want(p, kind, first, o, u_row, &slack);
        want += kind == CUDA_ADD;
        double got = result_value(r, kind, row, o);
        slack += kind == CUDA_ADD ? fabs(want) * 0x1p-23 : 0;
        if (!(fabs(got - want) <= slack))
            fail_msg("seed %llu, n %d, k %d, epilogue %d: row %d, output %d: %.9g, expected %.9g",
                     (unsigned long long)p->seed, p->n, p->k, (int)kind, row, o, got, want);
    }
}

/* Multiprocessors that the sm90a column is told of: 0 is the sm80 column; 1 makes one block go
 * through all units. */
#ifdef LILY_CUDA_EMU
enum { PRODUCT_SEED = 11, N_COLUMNS = 3 };
static const int32_t product_columns[N_COLUMNS] = {0, 1, 3};
#else
enum { PRODUCT_SEED = 12, N_COLUMNS = 4 };
static const int32_t product_columns[N_COLUMNS] = {0, 1, 5, 132};
#endif

static bool has_column(int32_t n_sm90) {
    int major = 0, minor = 0;
    cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    cuda_ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    return n_sm90 == 0 || (10 * major + minor == 90 && cuda_matmul_has_sm90());
}

static void products_ready(void) {
    int shared = 0;
    cuda_ok(cudaSetDevice(0));
    cuda_ok(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    cuda_ok(cuda_kernels_init(shared));
}

/* Each epilogue at edges of rows, outputs and inputs. */
static void products_agree_with_double(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{272, 64, 1},  {16, 2048, 16}, {272, 128, 17},
                                        {64, 512, 33}, {528, 64, 65},  {80, 192, 130}};
    products_ready();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        Product p;
        product_init(&p, shapes[i][0], shapes[i][1], shapes[i][2], PRODUCT_SEED + 10 * i);
        for (int kind = CUDA_STORE; kind <= CUDA_SWIGLU; kind++)
            for (int c = 0; c < N_COLUMNS; c++) {
                if (!has_column(product_columns[c]))
                    continue;
                CudaMatmul a = {.epilogue = (CudaEpilogue)kind};
                Result r = product_run(&p, a, p.n, p.m, product_columns[c]);
                for (int32_t row = 0; row < p.m; row++)
                    result_check(&p, &r, (CudaEpilogue)kind, 0, row, row);
                free(r.y);
            }
        product_fini(&p);
    }
}

/* The bits of a row do not depend on how many others there are, nor on how many blocks. */
static void rows_of_products_are_equal(void **state) {
    (void)state;
    static const int32_t counts[] = {1, 16, 17, 32, 33, 64, 65, 128, 129, 200};
    products_ready();
    Product p;
    product_init(&p, 80, 320, 200, PRODUCT_SEED + 100);
    for (int c = 0; c < 2; c++) {
        if (!has_column(product_columns[c]))
            continue;
        CudaMatmul a = {.epilogue = CUDA_ADD};
        Result whole = product_run(&p, a, p.n, p.m, c ? 2 : 0);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            Result r = product_run(&p, a, p.n, counts[i], product_columns[c]);
            for (int32_t row = 0; row < counts[i]; row++)
                if (memcmp(r.y + (size_t)row * r.row, whole.y + (size_t)row * r.row, r.written))
                    fail_msg("column %d, %d rows: row %d differs", c, counts[i], row);
            free(r.y);
        }
        free(whole.y);
    }
    product_fini(&p);
}

/* Pairs of a step: row p / top_k through expert id[p]; some experts have none, one has most. */
typedef struct Groups {
    int32_t n_pairs, n_experts, top_k, n_items;
    int32_t n_used;            // experts that have pairs
    int32_t *id, *list, *item; // host: id, list
    int32_t *card_list;
} Groups;

static void groups_init(Groups *g, int32_t m, int32_t n_experts, int32_t top_k, int32_t tile) {
    *g = (Groups){.n_pairs = m * top_k, .n_experts = n_experts, .top_k = top_k};
    g->n_items = g->n_pairs / tile + n_experts;
    g->id = malloc((size_t)g->n_pairs * 4);
    g->list = malloc((size_t)g->n_pairs * 4);
    for (int32_t i = 0; i < g->n_pairs; i++) {
        int32_t draw = (int32_t)(rng_u64(5, (uint64_t)i) % 64);
        g->id[i] = draw < 30   ? 1
                   : draw < 42 ? 3
                               : (int32_t)(rng_u64(6, (uint64_t)i) % (uint64_t)n_experts);
        g->id[i] += g->id[i] == 2; // it has none
    }
    for (int32_t e = 0; e < n_experts; e++)
        for (int32_t i = 0, is_used = 0; i < g->n_pairs && !is_used; i++)
            g->n_used += is_used = g->id[i] == e;
    CudaGroup a = {.id = card_put(g->id, (size_t)g->n_pairs * 4),
                   .n_pairs = g->n_pairs,
                   .n_experts = n_experts,
                   .tile = tile,
                   .list = card_put(NULL, (size_t)g->n_pairs * 4),
                   .item = card_put(NULL, (size_t)g->n_items * 12),
                   .max_items = g->n_items};
    CudaLaunch l = {0};
    cuda_ok(cuda_group(&l, &a));
    card_get(g->list, a.list, (size_t)g->n_pairs * 4);
    g->card_list = a.list;
    g->item = a.item;
    cudaFree((void *)(uintptr_t)a.id);
}

static void groups_fini(Groups *g) {
    cudaFree(g->card_list);
    cudaFree(g->item);
    free(g->id);
    free(g->list);
}

/* Grouped products as of a layer: up from rows to places of the list, down from there to pairs.
 * They agree with the reference; and a row's bits are those of its expert's matrix alone. */
static void grouped_products_agree(void **state) {
    (void)state;
    enum { E = 48, TOP_K = 3, M = 97, N = 288, K = 192 };
    products_ready();
    Product p;
    product_init(&p, E * N, K, M * TOP_K, PRODUCT_SEED + 200);
    for (int c = 0; c < N_COLUMNS; c++) {
        if (!has_column(product_columns[c]))
            continue;
        CudaLaunch l = {.n_sm90 = product_columns[c]};
        Groups g;
        groups_init(&g, M, E, TOP_K, cuda_matmul_item_pairs(&l));
        assert_true(g.n_used > 32); // more than a warp puts in order at a time
        for (int is_up = 0; is_up < 2; is_up++) {
            CudaEpilogue kind = is_up ? CUDA_SWIGLU : CUDA_STORE;
            CudaMatmul a = {.list = g.card_list,
                            .item = g.item,
                            .n_items = g.n_items,
                            .n_expert = N,
                            .src_div = is_up ? TOP_K : 0,
                            .is_sorted_y = is_up,
                            .epilogue = kind};
            Result r = product_run(&p, a, N, g.n_pairs, l.n_sm90);
            for (int32_t place = 0; place < g.n_pairs; place++) {
                int32_t pair = g.list[place], row = is_up ? place : pair;
                result_check(&p, &r, kind, g.id[pair] * N, is_up ? pair / TOP_K : place, row);
            }
            Product one = p; // expert 1 alone, over all rows
            one.card.code += (size_t)N * K / 8;
            one.card.scale += (size_t)N * K / 64;
            one.card.n = N;
            CudaMatmul plain = {.epilogue = kind};
            Result s = product_run(&one, plain, N, g.n_pairs, l.n_sm90);
            for (int32_t place = 0; place < g.n_pairs; place++) {
                int32_t pair = g.list[place], row = is_up ? place : pair;
                int32_t from = is_up ? pair / TOP_K : place;
                if (g.id[pair] == 1 &&
                    memcmp(r.y + (size_t)row * r.row, s.y + (size_t)from * s.row, s.written))
                    fail_msg("column %d: pair %d differs from its expert alone", c, pair);
            }
            free(r.y);
            free(s.y);
        }
        groups_fini(&g);
    }
    product_fini(&p);
}

/* What is no number in a row of u shows in that row alone, and is noted. */
static void bad_rows_of_products_are_noted(void **state) {
    (void)state;
    enum { M = 40, N = 32, K = 128 };
    products_ready();
    Product p;
    product_init(&p, N, K, M, PRODUCT_SEED + 300);
    p.u[17 * K + 3] = 0x7f80;
    cuda_ok(cudaMemcpyAsync(p.card_u, p.u, (size_t)M * K * 2, cudaMemcpyHostToDevice, NULL));
    CudaRow rows[M] = {0};
    float x[M * N] = {0};
    for (int i = 0; i < M; i++)
        rows[i] = (CudaRow){.seq = i / 20, .in_seq = i % 20};
    for (int c = 0; c < 2; c++) {
        if (!has_column(product_columns[c]))
            continue;
        int32_t bad[2] = {0x7f7f7f7f, 0x7f7f7f7f};
        CudaMatmul a = {.w = p.card,
                        .u = p.card_u,
                        .y = card_put(x, sizeof x),
                        .m = M,
                        .ldy = N,
                        .epilogue = CUDA_ADD,
                        .bad = {.bad = card_put(bad, sizeof bad),
                                .rows = card_put(rows, sizeof rows),
                                .layer = 2}};
        CudaLaunch l = {.n_sm90 = product_columns[c]};
        float got[M * N];
        cuda_ok(cuda_matmul(&l, &a));
        card_get(got, a.y, sizeof got);
        card_get(bad, a.bad.bad, sizeof bad);
        assert_int_equal(bad[0], 2 * CUDA_BAD_ROWS + 17);
        assert_int_equal(bad[1], 0x7f7f7f7f);
        for (int i = 0; i < M * N; i++)
            assert_int_equal(isfinite(got[i]) != 0, i / N != 17);
        cudaFree(a.y);
        cudaFree(a.bad.bad);
        cudaFree((void *)(uintptr_t)a.bad.rows);
    }
    product_fini(&p);
}

#define CUDA_MATMUL_CHECKS                                                                         \
    cmocka_unit_test(products_agree_with_double), cmocka_unit_test(rows_of_products_are_equal),    \
        cmocka_unit_test(grouped_products_agree), cmocka_unit_test(bad_rows_of_products_are_noted)

#endif
