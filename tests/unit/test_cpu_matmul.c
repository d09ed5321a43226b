// SPDX-License-Identifier: Apache-2.0
/* test_cpu_matmul.c - packed products of every column against f64, at and around the tile edges. */
#include "cpu_kernels.h"

#include "backend/cpu/cpu_pack.h"
#include "checkpoint/quant.h"

/* A random matrix as a checkpoint has it, packed. */
typedef struct Case {
    int32_t n, k, bits, n_groups, n_strips;
    uint32_t *q;
    uint16_t *scale, *bias;
    uint8_t *tiles;
    size_t tile_bytes;
    double *w; // [n][k]
} Case;

static void case_open(Case *c, Random *r, int32_t n, int32_t n_groups, int32_t bits,
                      float scale_size) {
    int32_t k = n_groups * GROUP_INPUTS, words = k * bits / 32;
    *c = (Case){.n = n, .k = k, .bits = bits, .n_groups = n_groups};
    c->n_strips = div_up_i32(n, STRIP_ROWS);
    c->q = malloc(sizeof *c->q * (size_t)(n * words));
    c->scale = malloc(sizeof *c->scale * (size_t)(n * n_groups));
    c->bias = malloc(sizeof *c->bias * (size_t)(n * n_groups));
    c->w = malloc(sizeof *c->w * (size_t)(n * k));
    c->tile_bytes = (size_t)c->n_strips * (size_t)n_groups * tile_bytes(bits);
    c->tiles = guard_alloc(c->tile_bytes);
    for (int32_t i = 0; i < n * words; i++)
        c->q[i] = (uint32_t)random_u64(r);
    for (int32_t i = 0; i < n * n_groups; i++) {
        c->scale[i] = bf16_from_f32(random_normal(r) * scale_size);
        c->bias[i] = bf16_from_f32(random_normal(r) * 8.0f * scale_size);
    }
    for (int32_t row = 0; row < n; row++)
        quant_dequant_row_f64(c->w + row * k, c->q + row * words, c->scale + row * n_groups,
                              c->bias + row * n_groups, k, bits, 64);
    for (int32_t s = 0; s < c->n_strips; s++)
        cpu_pack_strip(c->tiles + (size_t)(s * n_groups) * tile_bytes(bits),
                       c->q + s * STRIP_ROWS * words, c->scale + s * STRIP_ROWS * n_groups,
                       c->bias + s * STRIP_ROWS * n_groups, min_i32(16, n - s * STRIP_ROWS),
                       n_groups, bits, 64);
}

static void case_close(Case *c) {
    guard_free(c->tiles, c->tile_bytes);
    free(c->q);
    free(c->scale);
    free(c->bias);
    free(c->w);
}

/* What a column may be off: f32 sums of the affine form, and the digits that hold activations
 * (16 bits of a group's largest value; values of groups below 1e-30 may vanish). */
static double case_bound(const Case *c, const char *column, const float *x, int32_t row) {
    double bound = 1e-30;
    for (int32_t g = 0; g < c->n_groups; g++) {
        double top = 0, sum_w = 0, sum_wx = 0, scale, bias;
        scale = fabs((double)bf16_to_f32(c->scale[row * c->n_groups + g]));
        bias = fabs((double)bf16_to_f32(c->bias[row * c->n_groups + g]));
        for (int32_t k = g * 64; k < g * 64 + 64; k++) {
            top = fmax(top, fabs((double)x[k]));
            sum_w += fabs(c->w[row * c->k + k]);
            sum_wx += (scale * (c->bits == 4 ? 15 : 255) + bias) * fabs((double)x[k]);
        }
        bound += 2e-6 * sum_wx; // 64 roundings at the size of a spike, at worst half as large
        if (strcmp(column, "generic") != 0)
            bound += sum_w * top / 65278.0 + 2e-7 * 64 * top * (scale * 255 + bias);
    }
    return bound;
}

static MatmulFn entry(const MatmulKernels *t, int bits, int phase) {
    return phase ? (bits == 4 ? t->prefill_q4 : t->prefill_q8)
                 : (bits == 4 ? t->decode_q4 : t->decode_q8);
}

/* m rows x [m][k] through one entry, all buffers guarded. */
static void run(const MatmulKernels *t, const Case *c, MatmulFn fn, const float *x, int32_t m,
                const uint8_t *next, float *out) {
    size_t bytes = t->row_bytes(c->n_groups), width = (size_t)c->n_strips * STRIP_ROWS;
    assert_int_equal(bytes % 64, 0);
    const void *rows[MATMUL_ROWS];
    float *y[MATMUL_ROWS];
    for (int32_t i = 0; i < m; i++) {
        void *row = guard_alloc(bytes);
        int32_t half = c->n_groups / 2; // prepared in two pieces, the later first
        t->prepare(row, c->n_groups, half, c->n_groups - half, x + i * c->k + half * 64);
        if (half)
            t->prepare(row, c->n_groups, 0, half, x + i * c->k);
        rows[i] = row;
        y[i] = guard_f32(width);
    }
    fn(y, c->tiles, c->n_groups, c->n_strips, rows, m, next);
    for (int32_t i = 0; i < m; i++) {
        memcpy(out + (size_t)i * width, y[i], width * sizeof(float));
        guard_free_f32(y[i], width);
        guard_free((void *)rows[i], bytes);
    }
}

static void check(const Case *c, const MatmulKernels *t, int phase, const float *x, int32_t m) {
    size_t width = (size_t)c->n_strips * STRIP_ROWS;
    float *all = malloc(sizeof *all * width * (size_t)m), *one = malloc(sizeof *one * width);
    MatmulFn fn = entry(t, c->bits, phase);
    run(t, c, fn, x, m, NULL, all);
    for (int32_t i = 0; i < m; i++) {
        const float *row = x + i * c->k, *y = all + (size_t)i * width;
        for (int32_t n = 0; n < c->n; n++) {
            double want = 0;
            for (int32_t k = 0; k < c->k; k++)
                want += c->w[n * c->k + k] * (double)row[k];
            ASSERT_NEAR(y[n], want, case_bound(c, t->column, row, n),
                        "%s q%d phase %d, n %d, groups %d, m %d: row %d output %d", t->column,
                        c->bits, phase, c->n, c->n_groups, m, i, n);
        }
        for (size_t n = (size_t)c->n; n < width; n++)
            assert_true(y[n] == 0.0f); // rows that fill up the strip
        run(t, c, fn, row, 1, c->tiles, one);
        assert_memory_equal(one, y, width * sizeof *one); // no neighbour changes a bit
    }
    free(all);
    free(one);
}

static void sweep(Random *r, float size, float scale_size,
                  void (*shape)(Random *, float *, int32_t)) {
    static const int32_t ns[] = {1, 15, 16, 17, 47, 64, 80, 96}, groups[] = {1, 2, 3, 5};
    KernelTables t = kernel_tables(false);
    for (size_t a = 0; a < COUNT_OF(ns); a++)
        for (size_t g = 0; g < COUNT_OF(groups); g++)
            for (int32_t bits = 4; bits <= 8; bits += 4) {
                Case c;
                int32_t m = 1 + (int32_t)(random_u64(r) % 9);
                case_open(&c, r, ns[a], groups[g], bits, scale_size);
                float *x = malloc(sizeof *x * (size_t)(m * c.k));
                random_fill(r, x, (size_t)(m * c.k), size);
                if (shape)
                    for (int32_t i = 0; i < m; i++)
                        shape(r, x + i * c.k, c.k);
                for (size_t i = 0; i < t.n; i++)
                    for (int phase = 0; phase < 2; phase++)
                        check(&c, &t.tables[i].matmul, phase, x, m);
                free(x);
                case_close(&c);
            }
}

static void every_shape_around_the_tile_edges(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    sweep(&r, 1.0f, 0.05f, NULL);
}

/* Pairs that cancel but for a small rest. */
static void shape_cancel(Random *r, float *x, int32_t k) {
    for (int32_t i = 0; i + 1 < k; i += 2) {
        x[i] *= 1000.0f;
        x[i + 1] = -x[i] + random_normal(r);
    }
}

static void cancelling_inputs(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    sweep(&r, 1.0f, 0.05f, shape_cancel);
}

/* One large value in a group of small ones, one group of zeros. */
static void shape_spike(Random *r, float *x, int32_t k) {
    for (int32_t g = 0; g < k / 64; g++) {
        if (random_u64(r) % 3 == 0)
            memset(x + g * 64, 0, 64 * sizeof *x);
        else
            x[g * 64 + (int32_t)(random_u64(r) % 64)] = random_normal(r) * 1e4f;
    }
}

static void spikes_and_zeros(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    sweep(&r, 1.0f, 0.05f, shape_spike);
}

static void subnormal_and_huge_values(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    sweep(&r, 1e-39f, 1.0f, NULL);
    sweep(&r, 1.0f, 1e-38f, NULL);
    sweep(&r, 1e15f, 1e15f, NULL);
}

static void many_rows(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 127, 128};
    KernelTables t = kernel_tables(false);
    for (int32_t bits = 4; bits <= 8; bits += 4) {
        Case c;
        case_open(&c, &r, 33, 3, bits, 0.05f);
        float *x = malloc(sizeof *x * (size_t)(MATMUL_ROWS * c.k));
        random_fill(&r, x, (size_t)(MATMUL_ROWS * c.k), 1.0f);
        for (size_t a = 0; a < COUNT_OF(ms); a++)
            for (size_t i = 0; i < t.n; i++)
                for (int phase = 0; phase < 2; phase++)
                    check(&c, &t.tables[i].matmul, phase, x, ms[a]);
        free(x);
        case_close(&c);
    }
}

/* A value that is no number must come out as one that is none. */
static void nan_and_infinity_are_not_hidden(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    KernelTables t = kernel_tables(false);
    for (int32_t bits = 4; bits <= 8; bits += 4)
        for (size_t a = 0; a < COUNT_OF(bad); a++)
            for (size_t i = 0; i < t.n; i++)
                for (int phase = 0; phase < 2; phase++) {
                    Case c;
                    float x[192], y[32];
                    case_open(&c, &r, 17, 3, bits, 0.05f);
                    random_fill(&r, x, 192, 1.0f);
                    x[random_u64(&r) % 192] = bad[a];
                    const MatmulKernels *k = &t.tables[i].matmul;
                    run(k, &c, entry(k, bits, phase), x, 1, NULL, y);
                    for (int n = 0; n < 17; n++)
                        assert_false(isfinite(y[n]));
                    case_close(&c);
                }
}

/* ---- the amx column gives what avx512 gives, to the bit ---- */

/* The columns amx and avx512; false: this machine has not both. */
static bool exact_columns(KernelTables *t) {
    *t = kernel_tables(false);
    return t->n == 3 && strcmp(t->tables[0].matmul.column, "amx") == 0;
}

static void expect_equal_columns(const KernelTables *t, const Case *c, const float *x, int32_t m,
                                 const char *what) {
    size_t width = (size_t)c->n_strips * STRIP_ROWS, n = width * (size_t)m;
    float *amx = malloc(sizeof *amx * n), *want = malloc(sizeof *want * n);
    const MatmulKernels *k = &t->tables[0].matmul, *judge = &t->tables[1].matmul;
    run(judge, c, entry(judge, c->bits, 1), x, m, NULL, want);
    run(k, c, entry(k, c->bits, 1), x, m, m % 2 ? c->tiles : NULL, amx);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&amx[i], &want[i], sizeof *amx) != 0)
            fail_msg("%s, q%d, n %d, groups %d, m %d: row %zu output %zu: %.9g, avx512 has %.9g",
                     what, c->bits, c->n, c->n_groups, m, i / width, i % width, (double)amx[i],
                     (double)want[i]);
    run(k, c, entry(k, c->bits, 0), x, m, NULL, amx);
    assert_memory_equal(amx, want, n * sizeof *want);
    free(amx);
    free(want);
}

static void amx_equals_avx512_for_every_number_of_rows(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    if (!exact_columns(&t))
        skip();
    for (int32_t bits = 4; bits <= 8; bits += 4) {
        Case c;
        case_open(&c, &r, 40, 3, bits, 0.05f);
        float *x = malloc(sizeof *x * (size_t)(MATMUL_ROWS * c.k));
        random_fill(&r, x, (size_t)(MATMUL_ROWS * c.k), 1.0f);
        for (int32_t m = 1; m <= MATMUL_ROWS; m++)
            expect_equal_columns(&t, &c, x, m, "rows");
        free(x);
        case_close(&c);
    }
}

/* Blocks of groups and of strips: one less, exact, one more, several. */
static void amx_equals_avx512_at_the_edges_of_blocks(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    if (!exact_columns(&t))
        skip();
    static const int32_t groups[] = {1, 2, 7, 8, 9, 16, 17, 33}, ns[] = {16, 112, 128, 129, 272};
    static const int32_t ms[] = {2, 5, 16, 19, 33};
    for (size_t a = 0; a < COUNT_OF(groups); a++)
        for (size_t b = 0; b < COUNT_OF(ns); b++) {
            Case c;
            int32_t m = ms[(a + b) % COUNT_OF(ms)];
            case_open(&c, &r, ns[b], groups[a], (a + b) % 2 ? 8 : 4, 0.05f);
            float *x = malloc(sizeof *x * (size_t)(m * c.k));
            random_fill(&r, x, (size_t)(m * c.k), 1.0f);
            expect_equal_columns(&t, &c, x, m, "blocks");
            free(x);
            case_close(&c);
        }
}

/* Rows of one kind each, in one call: no neighbour may change a bit. */
static void shape_extreme(Random *r, float *x, int32_t k, int32_t kind) {
    for (int32_t i = 0; i < k; i++)
        switch (kind) {
        case 0: x[i] = 0; break;
        case 1: x[i] = i % 3 ? 32767 : -32767; break; // whole range of the integers
        case 2: x[i] = i % 2 ? 1e-38f : -1e-38f; break;
        case 3: x[i] = 1e-45f * (float)(i % 7); break;
        case 4: x[i] = 3e38f * (random_unit(r) - 0.5f); break;
        case 5: x[i] = 32767; break; // largest sums
        case 6: x[i] = -32767; break;
        case 7: x[i] = i % 64 ? 0.5f : 255.0f; break; // low bytes of every size
        case 8: x[i] = i == k / 2 ? NAN : 1; break;
        case 9: x[i] = i == 3 ? INFINITY : i == k - 1 ? -INFINITY : -1; break;
        case 10: x[i] = (float)(i % 512 - 256); break;
        default: x[i] = random_normal(r); break;
        }
}

static void amx_equals_avx512_for_extreme_rows(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    enum { KINDS = 12, M = 2 * KINDS };
    KernelTables t;
    if (!exact_columns(&t))
        skip();
    for (int32_t bits = 4; bits <= 8; bits += 4)
        for (int full = 0; full < 2; full++) {
            Case c;
            case_open(&c, &r, 48, 9, bits, 0.05f);
            if (full) { // the largest code everywhere: sums at their bound
                size_t codes = tile_bytes(bits) - TILE_SCALES;
                for (int32_t i = 0; i < c.n_strips * c.n_groups; i++)
                    memset(c.tiles + (size_t)i * tile_bytes(bits), 255, codes);
            }
            float *x = malloc(sizeof *x * (size_t)(M * c.k));
            for (int32_t i = 0; i < M; i++)
                shape_extreme(&r, x + i * c.k, c.k, i % KINDS);
            expect_equal_columns(&t, &c, x, M, full ? "extreme rows, full codes" : "extreme rows");
            expect_equal_columns(&t, &c, x + 5 * c.k, 3, "few extreme rows");
            free(x);
            case_close(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(amx_equals_avx512_for_every_number_of_rows),
        cmocka_unit_test(amx_equals_avx512_at_the_edges_of_blocks),
        cmocka_unit_test(amx_equals_avx512_for_extreme_rows),
        cmocka_unit_test(every_shape_around_the_tile_edges),
        cmocka_unit_test(cancelling_inputs),
        cmocka_unit_test(spikes_and_zeros),
        cmocka_unit_test(subnormal_and_huge_values),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(nan_and_infinity_are_not_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
