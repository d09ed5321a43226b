// SPDX-License-Identifier: Apache-2.0
/* test_cpu_attn.c - attention kernels of every column against f64 over paged keys. */
#include "cpu_kernels.h"

enum { D = ATTN_HEAD, BLOCKS = 6 };

/* Keys and values of one KV head in blocks that end at guard pages. */
typedef struct Cache {
    bool is_f32;
    size_t block_bytes;
    void *blocks[BLOCKS];
    float *k, *v; // [BLOCKS * 64][D] as the cache holds them
    int32_t n;
} Cache;

static float on_grid(const Cache *c, float x) { return c->is_f32 ? x : bf16_round(x); }

static void cache_open(Cache *c, const AttnKernels *t, Random *r, int32_t n, float size) {
    *c = (Cache){.is_f32 = t->is_f32_kv, .n = n};
    c->block_bytes = 2 * KV_ELEMENTS * (c->is_f32 ? 4u : 2u);
    c->k = malloc(sizeof *c->k * BLOCKS * KV_KEYS * D);
    c->v = malloc(sizeof *c->v * BLOCKS * KV_KEYS * D);
    for (int i = 0; i < BLOCKS; i++)
        c->blocks[i] = guard_alloc(c->block_bytes); // NaN wherever nothing is appended
    for (int32_t key = 0; key < n; key++) {
        float *k = c->k + key * D, *v = c->v + key * D;
        random_fill(r, k, D, size);
        random_fill(r, v, D, 1.0f);
        t->append(c->blocks[key / KV_KEYS], key % KV_KEYS, k, v);
        for (int d = 0; d < D; d++) {
            k[d] = on_grid(c, k[d]);
            v[d] = on_grid(c, v[d]);
        }
    }
}

static void cache_close(Cache *c) {
    for (int i = 0; i < BLOCKS; i++)
        guard_free(c->blocks[i], c->block_bytes);
    free(c->k);
    free(c->v);
}

/* Queries on the grid that the passes hand over. */
static void queries(const Cache *c, Random *r, float *q, size_t n) {
    random_fill(r, q, n, 1.0f);
    for (size_t i = 0; i < n; i++)
        q[i] = on_grid(c, q[i]) / 16.0f;
}

/* out [D] of keys [first, end) in f64; spread [D] (may be NULL): what weights that are each off by
 * 1 of themselves, independently, would move it by (rms). */
static void judge(const Cache *c, const float *q, int32_t first, int32_t end, double *out,
                  double *spread) {
    double top = -INFINITY, sum = 0, scores[BLOCKS * KV_KEYS];
    for (int32_t key = first; key < end; key++) {
        scores[key] = 0;
        for (int d = 0; d < D; d++)
            scores[key] += (double)q[d] * (double)c->k[key * D + d];
        top = fmax(top, scores[key]);
    }
    memset(out, 0, D * sizeof *out);
    for (int32_t key = first; key < end; key++) {
        double p = exp(scores[key] - top);
        sum += p;
        for (int d = 0; d < D; d++)
            out[d] += p * (double)c->v[key * D + d];
    }
    for (int d = 0; d < D; d++)
        out[d] /= sum;
    for (int d = 0; d < D && spread; d++) {
        double squares = 0;
        for (int32_t key = first; key < end; key++) {
            double off = exp(scores[key] - top) * ((double)c->v[key * D + d] - out[d]);
            squares += off * off;
        }
        spread[d] = sqrt(squares) / sum;
    }
}

/* The f32 rounding of scores (256 products; keys of size 1 give scores of size 1) moves weights. */
static double bound(float size) { return 4e-5 * fmax(1.0, (double)size / 5); }

/* How far weights may be off that are rounded to bf16, by 2^-8 at most: five times the rms of
 * evenly spread errors. */
static double weight_error(bool is_bf16) { return is_bf16 ? 5 * ldexp(1, -8) / sqrt(3) : 0; }

/* In parts of `per` keys. */
static void decode_case(const AttnKernels *t, Random *r, int32_t heads, int32_t n, int32_t per,
                        float size) {
    Cache c;
    cache_open(&c, t, r, n, size);
    size_t scratch_bytes = t->scratch_bytes(heads);
    assert_int_equal(scratch_bytes % 64, 0);
    size_t nq = (size_t)(heads * D), np = (size_t)(heads * ATTN_PART);
    float *q = guard_f32(nq), *part = guard_f32(np * 3), *out = guard_f32(D);
    void *scratch = guard_alloc(scratch_bytes);
    queries(&c, r, q, nq);
    int32_t n_parts = div_up_i32(n, per);
    for (int32_t i = 0; i < n_parts; i++)
        t->decode(part + (size_t)i * np, q, heads,
                  (const void *const *)c.blocks + i * per / KV_KEYS, min_i32(per, n - i * per),
                  i + 1 < n_parts ? c.blocks[(i + 1) * per / KV_KEYS] : NULL, scratch);
    for (int32_t h = 0; h < heads; h++) {
        double want[D];
        judge(&c, q + h * D, 0, n, want, NULL);
        t->merge(out, part + h * ATTN_PART, (ptrdiff_t)np, n_parts);
        for (int d = 0; d < D; d++)
            ASSERT_NEAR(out[d], want[d], bound(size), "%s decode, %d heads, %d keys: head %d, %d",
                        t->column, heads, n, h, d);
    }
    guard_free_f32(q, nq);
    guard_free_f32(part, np * 3);
    guard_free_f32(out, D);
    guard_free(scratch, scratch_bytes);
    cache_close(&c);
}

static void prefill_case(const AttnKernels *t, Random *r, int32_t heads, int32_t pos0,
                         int32_t n_tokens, float size) {
    Cache c;
    cache_open(&c, t, r, pos0 + n_tokens, size);
    size_t scratch_bytes = t->scratch_bytes(heads), n = (size_t)(n_tokens * heads * D);
    float *q = guard_f32(n), *out = guard_f32(n);
    void *scratch = guard_alloc(scratch_bytes);
    double error = weight_error(strcmp(t->column, "amx") == 0);
    queries(&c, r, q, n);
    t->prefill(out, q, heads, (const void *const *)c.blocks, pos0, n_tokens, scratch);
    for (int32_t i = 0; i < n_tokens; i++)
        for (int32_t h = 0; h < heads; h++) {
            double want[D], spread[D];
            const float *got = out + (i * heads + h) * D;
            judge(&c, q + (i * heads + h) * D, 0, pos0 + i + 1, want, spread);
            for (int d = 0; d < D; d++)
                ASSERT_NEAR(got[d], want[d], bound(size) + error * spread[d],
                            "%s prefill, %d heads, pos %d: row %d, %d", t->column, heads, pos0, i,
                            d);
        }
    /* A row alone, behind keys that come later, is the same to the bit. */
    int32_t i = n_tokens / 2;
    float *one = guard_f32((size_t)(heads * D));
    t->prefill(one, q + i * heads * D, heads, (const void *const *)c.blocks, pos0 + i, 1, scratch);
    assert_memory_equal(one, out + i * heads * D, sizeof(float) * (size_t)(heads * D));
    guard_free_f32(one, (size_t)(heads * D));
    guard_free_f32(q, n);
    guard_free_f32(out, n);
    guard_free(scratch, scratch_bytes);
    cache_close(&c);
}

static void sweep(void (*run)(const AttnKernels *, Random *, int32_t, int32_t, int32_t, float),
                  Random *r, int32_t heads, int32_t a, int32_t b, float size) {
    for (int is_f32 = 0; is_f32 < 2; is_f32++) {
        KernelTables t = kernel_tables(is_f32);
        for (size_t i = 0; i < t.n; i++) {
            assert_int_equal(t.tables[i].attn.is_f32_kv, is_f32);
            run(&t.tables[i].attn, r, heads, a, b, size);
        }
    }
}

/* Parts of over 256 keys, the last one shorter or not. */
static void decode_of_long_parts(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t heads[] = {1, 2, 3, 4, 7, 8, 9, 16}, n[] = {256, 257, 258, 319, 320, 384};
    for (size_t h = 0; h < COUNT_OF(heads); h++)
        for (size_t i = 0; i < COUNT_OF(n); i++) {
            sweep(decode_case, &r, heads[h], n[i], 6 * KV_KEYS, 1.0f);
            sweep(decode_case, &r, heads[h], n[i], 5 * KV_KEYS, 4.0f);
        }
    sweep(decode_case, &r, 8, 300, 6 * KV_KEYS, 100.0f);
}

static void decode_around_the_block_edges(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t heads[] = {1, 2, 3, 4, 7, 8, 9, 16}, n[] = {1, 63, 64, 65, 128, 129, 300};
    for (size_t h = 0; h < COUNT_OF(heads); h++)
        for (size_t i = 0; i < COUNT_OF(n); i++)
            sweep(decode_case, &r, heads[h], n[i], 2 * KV_KEYS, 1.0f);
}

static void prefill_around_the_block_edges(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t heads[] = {1, 2, 3, 8, 9}, pos[] = {0, 48, 60, 63, 64, 65, 200};
    static const int32_t n[] = {1, 5, 16};
    for (size_t h = 0; h < COUNT_OF(heads); h++)
        for (size_t p = 0; p < COUNT_OF(pos); p++)
            sweep(prefill_case, &r, heads[h], pos[p], n[(h + p) % 3], 1.0f);
}

/* 256 keys, which the amx column takes at a time. */
static void prefill_around_256_keys(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t pos[] = {228, 240, 255, 256, 257, 340}, n[] = {1, 16, ATTN_TOKENS};
    for (size_t p = 0; p < COUNT_OF(pos); p++)
        for (int32_t heads = 1; heads <= 3; heads++)
            sweep(prefill_case, &r, heads, pos[p], n[((size_t)heads + p) % 3], 1.0f);
    sweep(prefill_case, &r, 8, 240, ATTN_TOKENS, 1.0f);
}

/* A maximum that stays is no reason to change what has been summed up, however large it is: keys
 * are all the same, values of the first half 1, of the second -1. */
static void equal_scores_weigh_the_same_however_many(void **state) {
    UNUSED(state);
    enum { N_BLOCKS = 64, N_KEYS = N_BLOCKS * KV_KEYS };
    static const float sizes[] = {5.0f, 5000.0f, 5e9f}; // scores of 5,120 to 5e12
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    for (size_t i = 0; i < tables.n * COUNT_OF(sizes); i++) {
        const AttnKernels *t = &tables.tables[i / COUNT_OF(sizes)].attn;
        Cache c;
        cache_open(&c, t, &r, 2 * KV_KEYS, 1.0f);
        float k[D], v[D], q[D], out[D];
        const void *blocks[N_BLOCKS];
        for (int32_t key = 0; key < 2 * KV_KEYS; key++) {
            for (int d = 0; d < D; d++) {
                k[d] = sizes[i % COUNT_OF(sizes)];
                v[d] = key < KV_KEYS ? 1.0f : -1.0f;
                q[d] = 4.0f;
            }
            t->append(c.blocks[key / KV_KEYS], key % KV_KEYS, k, v);
        }
        for (int b = 0; b < N_BLOCKS; b++)
            blocks[b] = c.blocks[b >= N_BLOCKS / 2];
        void *scratch = guard_alloc(t->scratch_bytes(1));
        t->prefill(out, q, 1, blocks, N_KEYS - 1, 1, scratch);
        for (int d = 0; d < D; d++)
            assert_true(out[d] == 0.0f);
        guard_free(scratch, t->scratch_bytes(1));
        cache_close(&c);
    }
}

/* One key takes all the weight: scores of some hundreds, exponents far below those of f32. */
static void extreme_scores(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    sweep(decode_case, &r, 8, 200, 2 * KV_KEYS, 100.0f);
    sweep(prefill_case, &r, 8, 190, 16, 100.0f);
    sweep(prefill_case, &r, 8, 330, 16, 100.0f);
    sweep(decode_case, &r, 8, 200, 2 * KV_KEYS, 1e-30f);
}

/* A key that is no number reaches the rows that see it and no other. */
static void nan_keys_spoil_only_who_sees_them(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    for (size_t i = 0; i < tables.n; i++) {
        const AttnKernels *t = &tables.tables[i].attn;
        for (int32_t pos = 64; pos <= 320; pos += 128) {
            Cache c;
            cache_open(&c, t, &r, pos + 16, 1.0f);
            float bad[D], q[16 * 2 * D], out[16 * 2 * D];
            for (int d = 0; d < D; d++)
                bad[d] = NAN;
            t->append(c.blocks[pos / KV_KEYS], 8, bad, bad);
            queries(&c, &r, q, COUNT_OF(q));
            void *scratch = guard_alloc(t->scratch_bytes(2));
            t->prefill(out, q, 2, (const void *const *)c.blocks, pos, 16, scratch);
            for (int row = 0; row < 16; row++)
                assert_int_equal(isfinite(out[row * 2 * D]), row < 8);
            guard_free(scratch, t->scratch_bytes(2));
            cache_close(&c);
        }
    }
}

/* A value of row 5 of 16 that begin at `pos` is no number: rows ahead of it keep every bit. */
static void infinite_value_case(const AttnKernels *t, Random *r, int32_t pos) {
    Cache c;
    enum { HEADS = 3, N = 16 * HEADS * D };
    cache_open(&c, t, r, pos + 16, 1.0f);
    float bad[D], *q = guard_f32(N), *out = guard_f32(N), *clean = guard_f32(N);
    queries(&c, r, q, N);
    void *scratch = guard_alloc(t->scratch_bytes(HEADS));
    t->prefill(clean, q, HEADS, (const void *const *)c.blocks, pos, 16, scratch);
    memcpy(bad, c.v + (pos + 5) * D, sizeof bad);
    bad[random_u64(r) % D] = INFINITY;
    t->append(c.blocks[pos / KV_KEYS], 5, c.k + (pos + 5) * D, bad);
    t->prefill(out, q, HEADS, (const void *const *)c.blocks, pos, 16, scratch);
    assert_memory_equal(out, clean, 5 * HEADS * D * sizeof *out);
    for (int row = 5 * HEADS; row < 16 * HEADS; row++) {
        bool is_finite = true;
        for (int d = 0; d < D; d++)
            is_finite &= isfinite(out[row * D + d]) != 0;
        assert_false(is_finite);
    }
    guard_free(scratch, t->scratch_bytes(HEADS));
    guard_free_f32(q, N);
    guard_free_f32(out, N);
    guard_free_f32(clean, N);
    cache_close(&c);
}

static void infinite_values_change_no_row_before_them(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    KernelTables tables = kernel_tables(false);
    for (size_t i = 0; i < tables.n; i++)
        for (int32_t pos = 0; pos <= 320; pos += 64)
            infinite_value_case(&tables.tables[i].attn, &r, pos);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(infinite_values_change_no_row_before_them),
        cmocka_unit_test(decode_around_the_block_edges),
        cmocka_unit_test(decode_of_long_parts),
        cmocka_unit_test(prefill_around_the_block_edges),
        cmocka_unit_test(prefill_around_256_keys),
        cmocka_unit_test(equal_scores_weigh_the_same_however_many),
        cmocka_unit_test(extreme_scores),
        cmocka_unit_test(nan_keys_spoil_only_who_sees_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
