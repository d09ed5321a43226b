// SPDX-License-Identifier: Apache-2.0
/* bench_products.c - times each prefill product of the large model alone, in both columns:
 * bench_cuda --matmul. Weights and rows are random; a matrix is taken from another place each time,
 * so that the second-level cache does not hold it.
 *
 * Owns:     its device memory.  Thread: one. */
#include "bench_products.h"
#include "backend/cuda/cuda_kernels.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "bench_card.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 9, WARM = 2, EXPERTS = 256, TOP_K = 8, MAX_M = 8192 };

/* qwen3.6-35b-a3b. experts: outputs of one expert, and each row goes through TOP_K of them. */
typedef struct Shape {
    const char *name;
    int32_t n, k;
    CudaEpilogue epilogue;
    bool is_grouped, is_uneven;
} Shape;
static const Shape shapes[] = {
    {"delta net in", 12352, 2048, CUDA_STORE, false, false},
    {"attention in", 9216, 2048, CUDA_STORE, false, false},
    {"out", 2048, 4096, CUDA_ADD, false, false},
    {"shared up", 1024, 2048, CUDA_SWIGLU, false, false},
    {"shared down", 2048, 512, CUDA_STORE, false, false},
    {"experts up", 1024, 2048, CUDA_SWIGLU, true, false},
    {"experts down", 2048, 512, CUDA_STORE, true, false},
    {"experts up, uneven", 1024, 2048, CUDA_SWIGLU, true, true},
    {"experts down, uneven", 2048, 512, CUDA_STORE, true, true},
};

typedef struct Products {
    uint32_t *code, *scale; // of all experts' larger matrix
    size_t n_codes;         // words
    uint16_t *u;            // [MAX_M * TOP_K, 4096]
    void *y;
    int32_t *id, *list, *item;
    CudaRow *rows;
    int32_t *bad;
    cudaEvent_t a, b;
    int32_t n_sm;
    double peak; // TFLOP/s
} Products;

static void *device_get(size_t n) {
    void *p = NULL;
    must(cudaMalloc(&p, n), "device memory");
    must(cudaMemset(p, 0, n), "device memory");
    return p;
}

/* n words on the device, each f(i). */
static uint32_t *device_fill(size_t n, uint32_t (*f)(size_t i)) {
    uint32_t *host = mem_alloc(n * 4), *p = device_get(n * 4);
    if (!host)
        exit(1);
    for (size_t i = 0; i < n; i++)
        host[i] = f(i);
    must(cudaMemcpy(p, host, n * 4, cudaMemcpyHostToDevice), "copying");
    mem_free(host);
    return p;
}

static uint32_t word_random(size_t i) { return (uint32_t)rng_stream(1, i); }
/* Scale 2^-7 to 2^-6, bias -2^-4. */
static uint32_t word_scale(size_t i) {
    return 0x3c00u | (uint32_t)(rng_stream(2, i) & 0x7f) | 0xbd800000u;
}
/* Two bf16 of size 1/4 to 4, either sign. */
static uint32_t word_rows(size_t i) {
    uint32_t r = (uint32_t)rng_stream(3, i);
    return (r & 0x81ff81ffu) + 0x3e803e80u;
}
/* Experts of pairs: each one as often as the others; at random. */
static uint32_t word_even(size_t i) { return (uint32_t)(i * 37 + i / EXPERTS * 11) % EXPERTS; }
static uint32_t word_uneven(size_t i) { return (uint32_t)(rng_stream(4, i) % EXPERTS); }

/* The highest of several runs. */
static double meter_wgmma(const Products *p) {
    enum { ROUNDS = 4096 };
    CudaLaunch l = {0};
    double best = 0;
    for (int i = 0; i < 5; i++) {
        must(cudaEventRecord(p->a, NULL), "timing");
        must(cuda_meter_wgmma(&l, p->n_sm, ROUNDS, p->y), "meter");
        must(cudaEventRecord(p->b, NULL), "timing");
        double flop = (double)p->n_sm * 2 * ROUNDS * 4 * 2 * 64 * 256 * 16;
        double found = flop / event_ms(p->a, p->b) * 1e-9;
        best = found > best ? found : best;
    }
    return best;
}

static CudaMatmul product_of(const Products *p, const Shape *s, int32_t m, int32_t item_pairs) {
    bool is_up = s->epilogue == CUDA_SWIGLU;
    CudaMatmul a = {.w = {.code = p->code, .scale = p->scale, .n = s->n, .k = s->k, .bits = 4},
                    .u = p->u,
                    .y = p->y,
                    .m = m,
                    .ldy = is_up ? s->n / 2 : s->n,
                    .epilogue = s->epilogue,
                    .bad = {.bad = p->bad, .rows = p->rows}};
    if (s->is_grouped) {
        a.w.n = s->n * EXPERTS;
        a.m = m * TOP_K;
        a.list = p->list;
        a.item = p->item;
        a.n_expert = s->n;
        a.n_items = a.m / item_pairs + EXPERTS;
        a.src_div = is_up ? TOP_K : 0;
        a.is_sorted_y = is_up;
    }
    return a;
}

/* Milliseconds, median. */
static double product_time(const Products *p, const Shape *s, int32_t m, const CudaLaunch *l) {
    double v[REPEATS];
    int32_t tile = cuda_matmul_item_pairs(l);
    CudaMatmul a = product_of(p, s, m, tile);
    if (s->is_grouped) {
        CudaGroup g = {.id = p->id,
                       .n_pairs = a.m,
                       .n_experts = EXPERTS,
                       .tile = tile,
                       .list = p->list,
                       .item = p->item,
                       .max_items = a.n_items};
        must(cuda_group(l, &g), "grouping");
    }
    if (s->epilogue == CUDA_ADD) // finite numbers to add to
        must(cudaMemset(p->y, 0, (size_t)m * (size_t)s->n * 4), "clearing");
    size_t words = (size_t)((a.w.n + 15) / 16 * 16) * (size_t)a.w.k / 8;
    size_t places = p->n_codes / words;
    for (int i = -WARM; i < REPEATS; i++) {
        size_t at = (size_t)(i + WARM) % places * words;
        a.w.code = p->code + at;
        a.w.scale = p->scale + at / 8;
        must(cudaEventRecord(p->a, NULL), "timing");
        must(cuda_matmul(l, &a), s->name);
        must(cudaEventRecord(p->b, NULL), "timing");
        double ms = event_ms(p->a, p->b);
        if (i >= 0)
            v[i] = ms;
    }
    qsort(v, REPEATS, sizeof *v, by_size);
    return v[REPEATS / 2];
}

static void products_print(const Products *p, const Shape *s, int32_t m) {
    double flop = 2.0 * s->n * s->k * m * (s->is_grouped ? TOP_K : 1);
    printf("%-22s %6d", s->name, m);
    for (int column = 0; column < 2; column++) {
        CudaLaunch l = {.n_sm90 = column ? p->n_sm : 0};
        double ms = product_time(p, s, m, &l);
        printf(" %9.1f us %6.1f TFLOP/s %5.1f%%", ms * 1e3, flop / ms * 1e-9,
               100 * flop / ms * 1e-9 / p->peak);
    }
    printf("\n");
    fflush(stdout);
}

static void products_open(Products *p) {
    int max_shared = 0;
    *p = (Products){.n_codes = (size_t)EXPERTS * 1024 * 2048 / 8};
    must(cudaDeviceGetAttribute(&p->n_sm, cudaDevAttrMultiProcessorCount, 0), "asking the card");
    must(cudaDeviceGetAttribute(&max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
         "asking the card");
    must(cuda_kernels_init(max_shared), "preparing kernels");
    must(cudaEventCreate(&p->a), "making an event");
    must(cudaEventCreate(&p->b), "making an event");
    p->code = device_fill(p->n_codes, word_random);
    p->scale = device_fill(p->n_codes / 8, word_scale);
    p->u = (uint16_t *)device_fill((size_t)MAX_M * TOP_K * 512 / 2, word_rows); // k 512, or fewer
    p->y = device_get((size_t)MAX_M * TOP_K * 2048 * 2);                        // rows of more
    p->list = device_get((size_t)MAX_M * TOP_K * 4);
    p->item = device_get(((size_t)MAX_M * TOP_K / 64 + EXPERTS) * 12);
    p->rows = device_get(MAX_M * sizeof *p->rows);
    p->bad = device_get(4);
}

static void products_close(Products *p) {
    void *all[] = {p->code, p->scale, p->u, p->y, p->list, p->item, p->rows, p->bad};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        cudaFree(all[i]);
    cudaEventDestroy(p->a);
    cudaEventDestroy(p->b);
}

void bench_products(void) {
    static const int32_t rows[] = {32, 256, 512, 2048, 4096, 8192};
    Products p;
    products_open(&p);
    p.peak = meter_wgmma(&p);
    printf("wgmma m64n256k16, A in registers: %.1f TFLOP/s\n", p.peak);
    printf("%-22s %6s %-37s sm90a\n", "product", "rows", " sm80");
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const Shape *s = &shapes[i];
        if (s->is_grouped) {
            p.id = (int32_t *)device_fill((size_t)MAX_M * TOP_K,
                                          s->is_uneven ? word_uneven : word_even);
        }
        for (size_t j = 0; j < COUNT_OF(rows); j++)
            products_print(&p, s, rows[j]);
        cudaFree(p.id);
        p.id = NULL;
    }
    products_close(&p);
}
