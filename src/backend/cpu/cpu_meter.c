// SPDX-License-Identifier: Apache-2.0
/* cpu_meter.c - see cpu_meter.h.
 *
 * Owns:     weights and rows for the time of a call.  Thread: one, and the members of the pool. */
#include "backend/cpu/cpu_meter.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

enum {
    METER_GROUPS = 32, // 2,048 inputs
    METER_STRIPS = 14, // 252 KB of weights
    METER_ROWS = 32,   // of a prefill: an expert's share of a prompt and more
    METER_TIMES = 3,
};

/* One member's memory; all of it lies in one piece. */
typedef struct MeterHand {
    uint8_t *w;
    float *in; // a row before it is prepared
    const void *x[METER_ROWS];
    float *y[METER_ROWS];
    double calls_per_s;
} MeterHand;

typedef struct MeterProducts {
    const MatmulKernels *k;
    Pool *pool;
    size_t w_bytes, row_bytes, y_bytes, in_bytes, hand_bytes;
    uint8_t *memory; // [n_members] of hand_bytes
    MatmulFn fn;
    int32_t m;
    double seconds;
    MeterHand hands[LIMIT_THREADS];
} MeterProducts;

/* Codes 12 and 3, scales and biases 0.0115, inputs of one: nothing that a unit could be slow at. */
static void meter_fill(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    MeterProducts *p = ctx;
    MeterHand *h = &p->hands[member];
    uint8_t *at = p->memory + (size_t)member * p->hand_bytes;
    h->w = memset(at, 0x3c, p->w_bytes);
    at += p->w_bytes;
    h->in = (float *)(void *)at;
    for (int i = 0; i < METER_GROUPS * GROUP_INPUTS; i++)
        h->in[i] = 1.0f;
    at += p->in_bytes;
    for (int i = 0; i < METER_ROWS; i++) {
        p->k->prepare(at, METER_GROUPS, 0, METER_GROUPS, h->in);
        h->x[i] = at;
        at += p->row_bytes;
        h->y[i] = (float *)(void *)at;
        at += p->y_bytes;
    }
}

static void meter_member(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    MeterProducts *p = ctx;
    MeterHand *h = &p->hands[member];
    int64_t n = 0;
    pool_barrier(p->pool, member);
    int64_t start = clock_now_ns();
    do {
        p->fn(h->y, h->w, METER_GROUPS, METER_STRIPS, h->x, p->m, NULL);
        n++;
    } while (clock_seconds_since(start) < p->seconds);
    h->calls_per_s = (double)n / clock_seconds_since(start);
}

/* Calls a second of all members with m rows, the best of METER_TIMES. */
static double meter_calls(MeterProducts *p, MatmulFn fn, int32_t m) {
    double best = 0;
    p->fn = fn;
    p->m = m;
    for (int i = 0; i < METER_TIMES; i++) {
        pool_run(p->pool, meter_member, p);
        double all = 0;
        for (int member = 0; member < pool_n_members(p->pool); member++)
            all += p->hands[member].calls_per_s;
        best = all > best ? all : best;
    }
    return best;
}

Status cpu_meter_products(CpuMeter *out, const MatmulKernels *k, Pool *pool, double seconds,
                          Err *err) {
    CHECK(!k->block_bytes);
    MeterProducts *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(err, "product meter", sizeof *p);
    p->k = k;
    p->pool = pool;
    p->seconds = seconds;
    p->w_bytes = (size_t)METER_STRIPS * METER_GROUPS * TILE_BYTES_Q4;
    p->in_bytes = METER_GROUPS * GROUP_INPUTS * sizeof(float);
    p->row_bytes = k->row_bytes(METER_GROUPS);
    p->y_bytes = METER_STRIPS * STRIP_ROWS * sizeof(float);
    p->hand_bytes = p->w_bytes + p->in_bytes + METER_ROWS * (p->row_bytes + p->y_bytes);
    size_t bytes = p->hand_bytes * (size_t)pool_n_members(pool);
    p->memory = mem_map(bytes);
    if (!p->memory) {
        mem_free(p);
        return err_memory(err, "product meter", bytes);
    }
    pool_run(pool, meter_fill, p);
    const double weights = (double)METER_STRIPS * STRIP_ROWS * METER_GROUPS * GROUP_INPUTS;
    out->decode_gb_s = meter_calls(p, k->decode_q4, 1) * (double)p->w_bytes * 1e-9;
    out->prefill_tflops =
        meter_calls(p, k->prefill_q4, METER_ROWS) * METER_ROWS * 2 * weights * 1e-12;
    mem_unmap(p->memory, bytes);
    mem_free(p);
    return STATUS_OK;
}
