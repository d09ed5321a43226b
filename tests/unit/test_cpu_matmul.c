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

/* Whether a phase multiplies bf16 with bf16 (and reads blocks). */
static bool is_bf16(const MatmulKernels *t, int phase) { return phase && t->block_bytes; }

static double bf16_of(double x) { return (double)bf16_to_f32(bf16_from_f32((float)x)); }

/* Output n of a row from operands that are rounded to bf16, and what f32 sums may be off. */
static double bf16_product(const Case *c, const float *x, int32_t n, double *bound) {
    double sum = 0, size = 0;
    for (int32_t k = 0; k < c->k; k++) {
        double term = bf16_of(c->w[n * c->k + k]) * bf16_of((double)x[k]);
        sum += term;
        size += fabs(term);
    }
    *bound = size * 6e-8 * (c->k + 8) + 1e-30; // subnormal numbers count as zero
    return sum;
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

/* Prepared rows of x [m][k], guarded, in two pieces, the later first. */
static void rows_open(const MatmulKernels *t, const Case *c, const float *x, int32_t m,
                      const void **rows) {
    size_t bytes = t->row_bytes(c->n_groups);
    assert_int_equal(bytes % 64, 0);
    for (int32_t i = 0; i < m; i++) {
        void *row = guard_alloc(bytes);
        int32_t half = c->n_groups / 2;
        t->prepare(row, c->n_groups, half, c->n_groups - half, x + i * c->k + half * 64);
        if (half)
            t->prepare(row, c->n_groups, 0, half, x + i * c->k);
        rows[i] = row;
    }
}

static void rows_close(const MatmulKernels *t, const Case *c, int32_t m, const void **rows) {
    for (int32_t i = 0; i < m; i++)
        guard_free((void *)rows[i], t->row_bytes(c->n_groups));
}

/* The rows in blocks, all in one guarded buffer; of x only the entries of blocks are set. */
static uint8_t *blocks_open(const MatmulKernels *t, const Case *c, const void *const *rows,
                            int32_t m, const void **x) {
    size_t bytes = t->block_bytes(c->n_groups);
    assert_int_equal(bytes % (64 * ROW_BLOCK), 0);
    uint8_t *all = guard_alloc(bytes * (size_t)div_up_i32(m, ROW_BLOCK));
    for (int32_t i = 0; i < m; i += ROW_BLOCK) {
        x[i] = all + (size_t)(i / ROW_BLOCK) * bytes;
        t->block((void *)x[i], rows + i, c->n_groups, min_i32(ROW_BLOCK, m - i));
    }
    return all;
}

static void blocks_close(const MatmulKernels *t, const Case *c, int32_t m, uint8_t *all) {
    guard_free(all, t->block_bytes(c->n_groups) * (size_t)div_up_i32(m, ROW_BLOCK));
}

/* m rows x [m][k] through one phase's entry, all buffers guarded. */
static void run(const MatmulKernels *t, const Case *c, int phase, const float *x, int32_t m,
                const uint8_t *next, float *out) {
    size_t width = (size_t)c->n_strips * STRIP_ROWS;
    const void *rows[MATMUL_ROWS], *in[MATMUL_ROWS] = {NULL};
    float *y[MATMUL_ROWS];
    uint8_t *blocks = NULL;
    rows_open(t, c, x, m, rows);
    if (is_bf16(t, phase))
        blocks = blocks_open(t, c, rows, m, in);
    for (int32_t i = 0; i < m; i++)
        y[i] = guard_f32(width);
    entry(t, c->bits, phase)(y, c->tiles, c->n_groups, c->n_strips, blocks ? in : rows, m, next);
    for (int32_t i = 0; i < m; i++) {
        memcpy(out + (size_t)i * width, y[i], width * sizeof(float));
        guard_free_f32(y[i], width);
    }
    if (blocks)
        blocks_close(t, c, m, blocks);
    rows_close(t, c, m, rows);
}

static void check(const Case *c, const MatmulKernels *t, int phase, const float *x, int32_t m) {
    size_t width = (size_t)c->n_strips * STRIP_ROWS;
    float *all = malloc(sizeof *all * width * (size_t)m), *one = malloc(sizeof *one * width);
    run(t, c, phase, x, m, NULL, all);
    for (int32_t i = 0; i < m; i++) {
        const float *row = x + i * c->k, *y = all + (size_t)i * width;
        for (int32_t n = 0; n < c->n; n++) {
            double want = 0, bound = 0;
            for (int32_t k = 0; k < c->k; k++)
                want += c->w[n * c->k + k] * (double)row[k];
            if (is_bf16(t, phase))
                want = bf16_product(c, row, n, &bound);
            else
                bound = case_bound(c, t->column, row, n);
            ASSERT_NEAR(y[n], want, bound,
                        "%s q%d phase %d, n %d, groups %d, m %d: row %d output %d", t->column,
                        c->bits, phase, c->n, c->n_groups, m, i, n);
        }
        for (size_t n = (size_t)c->n; n < width; n++)
            assert_true(y[n] == 0.0f); // rows that fill up the strip
        run(t, c, phase, row, 1, c->tiles, one);
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

/* Runs around the length from which on a column reads one row's weights in another order. */
static void long_runs_of_strips(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const struct {
        int32_t bits, n_groups, n;
    } runs[] = {{4, 32, 14 * 16}, {4, 32, 15 * 16}, {4, 8, 1000}, {8, 16, 15 * 16}, {8, 16, 300}};
    KernelTables t = kernel_tables(false);
    for (size_t a = 0; a < COUNT_OF(runs); a++) {
        Case c;
        case_open(&c, &r, runs[a].n, runs[a].n_groups, runs[a].bits, 0.05f);
        float *x = malloc(sizeof *x * (size_t)(3 * c.k));
        random_fill(&r, x, (size_t)(3 * c.k), 1.0f);
        for (size_t i = 0; i < t.n; i++) {
            check(&c, &t.tables[i].matmul, 0, x, 1);
            check(&c, &t.tables[i].matmul, 0, x, 3);
        }
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
                    run(k, &c, phase, x, 1, NULL, y);
                    for (int n = 0; n < 17; n++)
                        assert_false(isfinite(y[n]));
                    case_close(&c);
                }
}

/* ---- bf16 products of prompts ---- */

/* The column that has them; NULL: this machine has none. */
static const KernelTable *bf16_column(KernelTables *t) {
    *t = kernel_tables(false);
    return t->tables[0].matmul.block_bytes ? &t->tables[0] : NULL;
}

/* A row of one kind. */
static void shape_extreme(Random *r, float *x, int32_t k, int32_t kind) {
    for (int32_t i = 0; i < k; i++)
        switch (kind) {
        case 0: x[i] = 0; break;
        case 1: x[i] = i % 2 ? 1e-38f : -1e-38f; break;
        case 2: x[i] = 1e-45f * (float)(i % 7); break;
        case 3: x[i] = 3e38f * (random_unit(r) - 0.5f); break;
        case 4: x[i] = i == k / 2 ? NAN : 1; break;
        case 5: x[i] = i == 3 || i == 4 ? INFINITY : i == k - 1 ? -INFINITY : -1; break;
        default: x[i] = random_normal(r); break;
        }
}

/* Decode of that column is avx512's, to the bit. */
static void amx_decodes_as_avx512(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    if (!bf16_column(&t))
        skip();
    for (int32_t bits = 4; bits <= 8; bits += 4)
        for (int32_t m = 1; m <= 9; m++) {
            Case c;
            float a[9 * 48], b[9 * 48];
            case_open(&c, &r, 48, 3, bits, 0.05f);
            float *x = malloc(sizeof *x * (size_t)(m * c.k));
            random_fill(&r, x, (size_t)(m * c.k), 1.0f);
            run(&t.tables[0].matmul, &c, 0, x, m, NULL, a);
            run(&t.tables[1].matmul, &c, 0, x, m, NULL, b);
            assert_memory_equal(a, b, sizeof *a * 48 * (size_t)m);
            free(x);
            case_close(&c);
        }
}

/* So are many rows and more strips than it takes at a time, and rows that are no numbers. */
static void amx_decodes_many_rows_as_avx512(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    if (!bf16_column(&t))
        skip();
    static const int32_t ms[] = {15, 16, 17, 31, 32, 47, 64, 100, 128};
    for (size_t at = 0; at < COUNT_OF(ms); at++) {
        Case c;
        int32_t m = ms[at];
        case_open(&c, &r, at % 3 ? 30 : 530, 2 + (int32_t)at % 4, 8, 0.05f);
        size_t n = (size_t)(m * c.n_strips * STRIP_ROWS);
        float *x = malloc(sizeof *x * (size_t)(m * c.k));
        float *a = malloc(sizeof *a * n), *b = malloc(sizeof *b * n);
        random_fill(&r, x, (size_t)(m * c.k), 1.0f);
        for (int32_t i = 0; i < m; i += 1 + (int32_t)(random_u64(&r) % 7))
            shape_extreme(&r, x + i * c.k, c.k, i % 7);
        run(&t.tables[0].matmul, &c, 0, x, m, NULL, a);
        run(&t.tables[1].matmul, &c, 0, x, m, NULL, b);
        for (size_t i = 0; i < n; i++)
            assert_true(memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])));
        free(x);
        free(a);
        free(b);
        case_close(&c);
    }
}

/* Pieces of a block, rows by groups in any order, are what prepared rows become. */
static void pieces_of_blocks_make_blocks(void **state) {
    UNUSED(state);
    enum { GROUPS = 5, K = GROUPS * GROUP_INPUTS };
    Random r = random_open(__func__);
    KernelTables t;
    const KernelTable *column = bf16_column(&t);
    if (!column)
        skip();
    const MatmulKernels *k = &column->matmul;
    Case c = {.k = K, .n_groups = GROUPS};
    static float x[ROW_BLOCK * K];
    for (int32_t m = 1; m <= ROW_BLOCK; m++) {
        const void *rows[ROW_BLOCK], *in[ROW_BLOCK];
        for (int32_t i = 0; i < m; i++)
            shape_extreme(&r, x + i * K, K, (int32_t)(random_u64(&r) % 12));
        rows_open(k, &c, x, m, rows);
        uint8_t *want = blocks_open(k, &c, rows, m, in);
        uint8_t *got = guard_alloc(k->block_bytes(GROUPS));
        memset(got, 0, k->block_bytes(GROUPS));
        for (int32_t group = GROUPS, n; group > 0; group -= n) {
            n = 1 + (int32_t)(random_u64(&r) % (uint64_t)group);
            for (int32_t row = 0, some; row < m; row += some) {
                some = 1 + (int32_t)(random_u64(&r) % (uint64_t)(m - row));
                k->block_put(got, row, some, group - n, n, x + row * K + (group - n) * GROUP_INPUTS,
                             K);
            }
        }
        assert_memory_equal(got, want, k->block_bytes(GROUPS));
        guard_free(got, k->block_bytes(GROUPS));
        blocks_close(k, &c, m, want);
        rows_close(k, &c, m, rows);
    }
}

/* Every number of rows, and so of blocks; groups around the ranges of inputs. */
static void bf16_products_of_every_number_of_rows(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    const KernelTable *k = bf16_column(&t);
    if (!k)
        skip();
    static const int32_t groups[] = {1, 2, 3, 4, 5, 8, 12};
    for (int32_t m = 1; m <= MATMUL_ROWS; m += m < 20 ? 1 : 7) {
        Case c;
        case_open(&c, &r, 16 + m % 33, groups[(size_t)m % COUNT_OF(groups)], m % 2 ? 4 : 8, 0.05f);
        float *x = malloc(sizeof *x * (size_t)(m * c.k));
        random_fill(&r, x, (size_t)(m * c.k), 1.0f);
        check(&c, &k->matmul, 1, x, m);
        free(x);
        case_close(&c);
    }
}

/* No neighbour may change a bit. */
static void bf16_rows_know_nothing_of_extreme_neighbours(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    enum { KINDS = 7, M = 5 * KINDS };
    KernelTables t;
    const KernelTable *k = bf16_column(&t);
    if (!k)
        skip();
    for (int32_t bits = 4; bits <= 8; bits += 4) {
        Case c;
        float all[M * 48], one[48];
        case_open(&c, &r, 48, 9, bits, 0.05f);
        float *x = malloc(sizeof *x * (size_t)(M * c.k));
        for (int32_t i = 0; i < M; i++)
            shape_extreme(&r, x + i * c.k, c.k, i % KINDS);
        run(&k->matmul, &c, 1, x, M, NULL, all);
        for (int32_t i = 0; i < M; i++) {
            run(&k->matmul, &c, 1, x + i * c.k, 1, NULL, one);
            for (int n = 0; n < 48; n++) {
                assert_true(isfinite(one[n]) == (i % KINDS < 4 || i % KINDS == 6) ||
                            i % KINDS == 3); // sums may overflow
                assert_true(memcmp(&one[n], &all[i * 48 + n], sizeof *one) == 0 ||
                            (isnan(one[n]) && isnan(all[i * 48 + n])));
            }
        }
        free(x);
        case_close(&c);
    }
}

/* inner gives what products, SwiGLU, preparation and block give one by one. */
static void check_expert(Random *r, const KernelTable *k, int32_t m, int32_t n_groups,
                         int32_t gate_bits, int32_t up_bits, int32_t strip, int32_t n_strips) {
    enum { INNER = 192, GROUPS = INNER / GROUP_INPUTS };
    const MatmulKernels *t = &k->matmul;
    Case gate, up, inner = {.k = INNER, .n_groups = GROUPS};
    case_open(&gate, r, INNER, n_groups, gate_bits, 0.05f);
    case_open(&up, r, INNER, n_groups, up_bits, 0.05f);
    float *x = malloc(sizeof *x * (size_t)(m * gate.k));
    float *g = malloc(sizeof *g * (size_t)(m * INNER)),
          *u = malloc(sizeof *u * (size_t)(m * INNER));
    random_fill(r, x, (size_t)(m * gate.k), 1.0f);
    const void *rows[MATMUL_ROWS], *in[MATMUL_ROWS], *act_rows[MATMUL_ROWS], *want_in[MATMUL_ROWS];
    rows_open(t, &gate, x, m, rows);
    uint8_t *blocks = blocks_open(t, &gate, rows, m, in);
    run(t, &gate, 1, x, m, NULL, g);
    run(t, &up, 1, x, m, NULL, u);
    k->elem.swiglu(g, g, u, m * INNER);
    rows_open(t, &inner, g, m, act_rows);
    uint8_t *want = blocks_open(t, &inner, act_rows, m, want_in);
    size_t size = t->block_bytes(GROUPS) * (size_t)div_up_i32(m, ROW_BLOCK);
    uint8_t *act = guard_alloc(size);
    memcpy(act, want, size);
    size_t gate_strip = tile_bytes(gate_bits) * (size_t)n_groups;
    size_t up_strip = tile_bytes(up_bits) * (size_t)n_groups;
    for (int pass = 0; pass < 2; pass++) { // all strips, then some anew
        int32_t first = pass ? strip : 0, n = pass ? n_strips : INNER / STRIP_ROWS;
        if (!pass)
            memset(act, 0xff, size);
        t->inner(&(MatmulInner){gate.tiles + (size_t)first * gate_strip,
                                up.tiles + (size_t)first * up_strip, gate_bits, up_bits, n_groups,
                                n, first, in, m, act, t->block_bytes(GROUPS)});
        assert_memory_equal(act, want, size);
    }
    guard_free(act, size);
    blocks_close(t, &inner, m, want);
    rows_close(t, &inner, m, act_rows);
    blocks_close(t, &gate, m, blocks);
    rows_close(t, &gate, m, rows);
    free(x);
    free(g);
    free(u);
    case_close(&gate);
    case_close(&up);
}

static void expert_calls_give_what_their_parts_give(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables t;
    const KernelTable *k = bf16_column(&t);
    if (!k)
        skip();
    static const int32_t ms[] = {1, 2, 3, 4, 5, 15, 16, 17, 33, 63, 64, 65, 80, 127, 128};
    static const int32_t groups[] = {3, 8, 4, 9};
    for (size_t i = 0; i < 2 * COUNT_OF(ms); i++)
        check_expert(&r, k, ms[i % COUNT_OF(ms)], groups[i % COUNT_OF(groups)], i % 3 ? 4 : 8,
                     i % 5 ? 4 : 8, (int32_t)i % 8, 1 + (int32_t)i % 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(amx_decodes_as_avx512),
        cmocka_unit_test(amx_decodes_many_rows_as_avx512),
        cmocka_unit_test(pieces_of_blocks_make_blocks),
        cmocka_unit_test(bf16_products_of_every_number_of_rows),
        cmocka_unit_test(bf16_rows_know_nothing_of_extreme_neighbours),
        cmocka_unit_test(expert_calls_give_what_their_parts_give),
        cmocka_unit_test(every_shape_around_the_tile_edges),
        cmocka_unit_test(cancelling_inputs),
        cmocka_unit_test(spikes_and_zeros),
        cmocka_unit_test(subnormal_and_huge_values),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(long_runs_of_strips),
        cmocka_unit_test(nan_and_infinity_are_not_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
