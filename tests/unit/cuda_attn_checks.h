// SPDX-License-Identifier: Apache-2.0
/* cuda_attn_checks.h - test helper: attention alone, prefill in both columns and decode, against
 * double. For a card and for the kernels run on the CPU.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_CUDA_ATTN_CHECKS_H
#define LILY_TESTS_CUDA_ATTN_CHECKS_H

#include "cuda_delta_checks.h"

#include "backend/cuda/cuda_layout.h"

enum {
    ATTN_NQ = 8,
    ATTN_NKV = 2,
    ATTN_DIM = 256,
    ATTN_POS = 8256,    // positions of the table of angles
    ATTN_SEGMENT = 128, // keys of a segment
    ATTN_SEQS = 7,      // of the prefill
    ATTN_DECODES = 8,   // their first rows, and one far behind
    ATTN_ROWS = 83 + 37 + 40 + 3 + 2 + 2 + 20 + 1,
    ATTN_BLOCKS = 32,
    ATTN_TABLE = 200,
};

/* Sequences from the start, behind prefixes that end beside, at and between edges of segments, and
 * a single row so far behind that the pieces of decode have two tiles. */
typedef struct Attn {
    int32_t ld;
    uint16_t *proj, *kv; // kv [blocks, 2, NKV, 64, 256]
    float *q_norm, *k_norm, *rope;
    CudaRow rows[ATTN_ROWS];
    CudaSeq seqs[ATTN_DECODES];
    int32_t table[ATTN_TABLE];
} Attn;

static void attn_open(Attn *d) {
    *d = (Attn){.ld = 2 * (ATTN_NQ + ATTN_NKV) * ATTN_DIM};
    size_t n = (size_t)ATTN_ROWS * (size_t)d->ld;
    d->proj = oracle_alloc(n, sizeof *d->proj);
    for (size_t i = 0; i < n; i++)
        d->proj[i] = delta_bf16(2.0f * delta_random(21, i));
    n = (size_t)ATTN_BLOCKS * 2 * ATTN_NKV * 64 * ATTN_DIM;
    d->kv = oracle_alloc(n, sizeof *d->kv);
    for (size_t i = 0; i < n; i++)
        d->kv[i] = delta_bf16(delta_random(22, i));
    // Large enough that some keys stand out and running maxima change.
    d->q_norm = delta_floats(ATTN_DIM, 23, 1.0f, 1.5f);
    d->k_norm = delta_floats(ATTN_DIM, 24, 0.5f, 1.0f);
    d->rope = oracle_alloc(ATTN_POS * 64, sizeof *d->rope);
    for (int32_t i = 0; i < ATTN_POS * 32; i++) {
        double angle = (double)(i / 32) * pow(1e7, -(double)(i % 32) / 32);
        d->rope[2 * i] = (float)cos(angle);
        d->rope[2 * i + 1] = (float)sin(angle);
    }
    static const int32_t n_rows[] = {83, 37, 40, 3, 2, 2, 20, 1};
    static const int32_t pos0[] = {0, 192, 100, 127, 128, 129, 500, 8200};
    int32_t row = 0, block = 0, table = 0;
    for (int32_t q = 0; q < ATTN_DECODES; q++) {
        int32_t n_blocks = (pos0[q] + n_rows[q] + 63) / 64;
        d->seqs[q] =
            (CudaSeq){.row0 = row, .n_rows = n_rows[q], .pos0 = pos0[q], .slot = q, .table = table};
        for (int32_t i = 0; i < n_rows[q]; i++)
            d->rows[row++] =
                (CudaRow){.pos = pos0[q] + i, .slot = q, .table = table, .seq = q, .in_seq = i};
        for (int32_t i = 0; i < n_blocks; i++, table++) {
            if (q < ATTN_SEQS || i < 3 || i == n_blocks - 1) // 7 and 32 have no common factor
                d->table[table] = 7 * block++ % ATTN_BLOCKS;
            else // three blocks again and again
                d->table[table] = d->table[table - 3];
        }
    }
    assert_true(block <= ATTN_BLOCKS && table <= ATTN_TABLE && row == ATTN_ROWS);
}

static void attn_close(Attn *d) {
    free(d->proj);
    free(d->kv);
    free(d->q_norm);
    free(d->k_norm);
    free(d->rope);
}

/* ---- in double ---- */

static uint16_t *attn_kv(const Attn *d, uint16_t *kv, const CudaSeq *q, int32_t pos, int32_t which,
                         int32_t head) {
    size_t block = (size_t)d->table[q->table + pos / 64];
    return kv + (((block * 2 + (size_t)which) * ATTN_NKV + (size_t)head) * 64 + (size_t)pos % 64) *
                    ATTN_DIM;
}

/* Norm and rotation of a head, rounded as the cache and the queries are. */
static void attn_head(const Attn *d, const uint16_t *from, const float *gain, int32_t pos,
                      double scale, uint16_t *to) {
    double v[ATTN_DIM], squares = 0;
    for (int32_t i = 0; i < ATTN_DIM; i++) {
        v[i] = delta_value(from[i]);
        squares += v[i] * v[i];
    }
    for (int32_t i = 0; i < ATTN_DIM; i++)
        v[i] *= (double)gain[i] / sqrt(squares / ATTN_DIM + 1e-6);
    for (int32_t i = 0; i < 32; i++) {
        double c = (double)d->rope[(pos * 32 + i) * 2], s = (double)d->rope[(pos * 32 + i) * 2 + 1];
        double low = v[i], high = v[i + 32];
        v[i] = low * c - high * s;
        v[i + 32] = low * s + high * c;
    }
    for (int32_t i = 0; i < ATTN_DIM; i++)
        to[i] = delta_bf16((float)(scale * v[i]));
}

static void attn_row(const Attn *d, uint16_t *kv, const CudaSeq *q, int32_t t, int32_t head,
                     double *out) {
    int32_t pos = q->pos0 + t, kv_head = head / (ATTN_NQ / ATTN_NKV);
    const uint16_t *proj = d->proj + (size_t)(q->row0 + t) * (size_t)d->ld;
    uint16_t query[ATTN_DIM];
    attn_head(d, proj + head * 2 * ATTN_DIM, d->q_norm, pos, 1.0 / 16, query);
    double score[ATTN_POS], top = -1e300, sum = 0;
    for (int32_t k = 0; k <= pos; k++) {
        const uint16_t *key = attn_kv(d, kv, q, k, 0, kv_head);
        score[k] = 0;
        for (int32_t i = 0; i < ATTN_DIM; i++)
            score[k] += delta_value(query[i]) * delta_value(key[i]);
        top = fmax(top, score[k]);
    }
    for (int32_t i = 0; i < ATTN_DIM; i++)
        out[i] = 0;
    for (int32_t k = 0; k <= pos; k++) {
        double p = exp(score[k] - top);
        const uint16_t *value = attn_kv(d, kv, q, k, 1, kv_head);
        sum += p;
        for (int32_t i = 0; i < ATTN_DIM; i++)
            out[i] += p * delta_value(value[i]);
    }
    for (int32_t i = 0; i < ATTN_DIM; i++) {
        double gate = delta_value(proj[(head * 2 + 1) * ATTN_DIM + i]);
        out[i] = out[i] / sum / (1 + exp(-gate));
    }
}

/* Keys and values of the step into a copy of the cache, then every row. */
static double *attn_expected(const Attn *d) {
    size_t n_kv = (size_t)ATTN_BLOCKS * 2 * ATTN_NKV * 64 * ATTN_DIM;
    uint16_t *kv = memcpy(oracle_alloc(n_kv, 2), d->kv, n_kv * 2);
    for (int32_t row = 0; row < ATTN_ROWS; row++)
        for (int32_t h = 0; h < ATTN_NKV; h++) {
            const CudaSeq *q = &d->seqs[d->rows[row].seq];
            const uint16_t *from =
                d->proj + (size_t)row * (size_t)d->ld + (2 * ATTN_NQ + h) * ATTN_DIM;
            int32_t pos = d->rows[row].pos;
            attn_head(d, from, d->k_norm, pos, 1, attn_kv(d, kv, q, pos, 0, h));
            memcpy(attn_kv(d, kv, q, pos, 1, h), from + ATTN_NKV * ATTN_DIM, ATTN_DIM * 2);
        }
    double *out = oracle_alloc((size_t)ATTN_ROWS * ATTN_NQ * ATTN_DIM, sizeof *out);
    for (int32_t row = 0; row < ATTN_ROWS; row++)
        for (int32_t h = 0; h < ATTN_NQ; h++)
            attn_row(d, kv, &d->seqs[d->rows[row].seq], d->rows[row].in_seq, h,
                     out + (size_t)(row * ATTN_NQ + h) * ATTN_DIM);
    free(kv);
    return out;
}

/* ---- prefill ---- */

/* The rows of the prefill, of all sequences but the last. */
#define ATTN_WIDTH ((size_t)ATTN_NQ * ATTN_DIM)
#define ATTN_NUMBERS ((ATTN_ROWS - 1) * ATTN_WIDTH)

/* How a prefill is run; no result depends on the last two. */
typedef struct AttnRun {
    int column;      // 0: sm90a; sm80 with 8 (1) and with 4 warps (2)
    int32_t segment; // keys
    int32_t n_sm;    // 0: every block walks its segments; many: each has a block of its own
    bool is_chunked; // the first half of each sequence's rows, then the rest
} AttnRun;

/* Bytes of shared memory that a block may have: those of this card, or of one that has fewer. */
static int attn_init(bool is_small) {
    int shared = 0;
    assert_int_equal(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                     cudaSuccess);
    shared = is_small ? 99 << 10 : shared;
    assert_int_equal(cuda_kernels_init(shared), cudaSuccess);
    return shared;
}

static CudaAttn attn_up(const Attn *d) {
    size_t block = (size_t)2 * ATTN_NKV * 64 * ATTN_DIM * 2;
    return (CudaAttn){.q_norm = delta_up(d->q_norm, ATTN_DIM * 4),
                      .k_norm = delta_up(d->k_norm, ATTN_DIM * 4),
                      .rope = delta_up(d->rope, (size_t)ATTN_POS * 64 * 4),
                      .kv = delta_up(d->kv, ATTN_BLOCKS * block),
                      .block_stride = (int64_t)block,
                      .table = delta_up(d->table, sizeof d->table),
                      .nq = ATTN_NQ,
                      .nkv = ATTN_NKV,
                      .eps = 1e-6f};
}

static void attn_down(const CudaAttn *t) {
    const void *gone[] = {t->q_norm, t->k_norm, t->rope, t->kv, t->table};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        cudaFree((void *)gone[i]);
}

/* Runs the first half of each sequence's rows, the other half or both. */
static void attn_start(const Attn *d, const CudaLaunch *l, CudaAttnPrefill a, bool is_first,
                       bool is_last) {
    CudaSeq seqs[ATTN_SEQS];
    CudaTile tiles[ATTN_ROWS];
    int32_t tokens = cuda_attn_tile_tokens(ATTN_NQ, ATTN_NKV, a.max_shared);
    a.n_tiles = a.most_keys = 0;
    for (int32_t q = 0; q < ATTN_SEQS; q++) {
        int32_t n = d->seqs[q].n_rows, from = is_first ? 0 : n / 2, to = is_last ? n : n / 2;
        seqs[q] = d->seqs[q];
        seqs[q].row0 += from;
        seqs[q].pos0 += from;
        seqs[q].n_rows = to - from;
        a.most_keys = max_i32(a.most_keys, seqs[q].pos0 + to - from);
        for (int32_t i = 0; i < to - from; i += tokens)
            tiles[a.n_tiles++] = (CudaTile){q, i};
    }
    a.seqs = delta_up(seqs, sizeof seqs);
    a.tiles = delta_up(tiles, sizeof tiles);
    assert_int_equal(cuda_attn_prefill(l, &a), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
    cudaFree((void *)a.seqs);
    cudaFree((void *)a.tiles);
}

/* Outputs [rows, NQ * 256] bf16. */
static uint16_t *attn_run(const Attn *d, AttnRun run) {
    int shared = attn_init(run.column == 2);
    CudaAttnSize size = {ATTN_NQ, ATTN_NKV, ATTN_ROWS, ATTN_SEQS, ATTN_POS, run.segment};
    CudaAttnPrefill a = {.t = attn_up(d),
                         .proj = delta_up(d->proj, ATTN_ROWS * (size_t)d->ld * 2),
                         .rows = delta_up(d->rows, sizeof d->rows),
                         .q = delta_up(NULL, ATTN_ROWS * ATTN_WIDTH * 2),
                         .out = delta_up(NULL, ATTN_ROWS * ATTN_WIDTH * 2),
                         .part = delta_up(NULL, cuda_attn_part_bytes(&size)),
                         .segment = run.segment,
                         .ld = d->ld,
                         .m = ATTN_ROWS - 1,
                         .max_shared = shared};
    CudaLaunch l = {.n_sm90 = run.column == 0, .n_sm = run.n_sm, .max_shared = shared};
    attn_start(d, &l, a, true, !run.is_chunked);
    if (run.is_chunked)
        attn_start(d, &l, a, false, true);
    uint16_t *out = delta_down(a.out, ATTN_ROWS * ATTN_WIDTH * 2);
    attn_down(&a.t);
    const void *gone[] = {a.proj, a.rows, a.q, a.part};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        cudaFree((void *)gone[i]);
    return out;
}

static bool attn_has_column(int column) {
    int major = 0;
    assert_int_equal(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
                     cudaSuccess);
    return column > 0 || (major == 9 && cuda_matmul_has_sm90());
}

/* Probabilities are rounded to bf16 before the values, outputs behind: 0.0017 in the mean each, and
 * keys and queries whose last bit falls the other way in f32. */
static void attention_tiles_agree_with_double(void **state) {
    (void)state;
    Attn d;
    attn_open(&d);
    double *want = attn_expected(&d);
    for (int column = 0; column < 3; column++) {
        if (!attn_has_column(column))
            continue;
        uint16_t *got = attn_run(&d, (AttnRun){.column = column, .segment = ATTN_SEGMENT});
        double squares = 0, all = 0, worst = 0;
        for (size_t i = 0; i < ATTN_NUMBERS; i++) {
            double x = delta_value(got[i]) - want[i];
            squares += x * x;
            all += want[i] * want[i];
            worst = fmax(worst, fabs(x)); // values are between -2 and 2
        }
        printf("attention, column %d: relative rms %.2g, worst %.2g\n", column, sqrt(squares / all),
               worst);
        ORACLE_BELOW(sqrt(squares / all), 4e-3, "outputs of column %d", column);
        ORACLE_BELOW(worst, 0.02, "an output of column %d", column);
        free(got);
    }
    free(want);
    attn_close(&d);
}

/* One block that walks the segments of its tile, a block for each, and those a few tiles at a time
 * (so many small segments); a prompt whole and in two pieces, cut before and behind edges. */
static void attention_segments_are_equal_however_they_are_run(void **state) {
    (void)state;
    Attn d;
    attn_open(&d);
    for (int column = 0; column < 3; column++) {
        int32_t segment = column == 2 ? 64 : ATTN_SEGMENT;
        if (!attn_has_column(column))
            continue;
        uint16_t *want = attn_run(&d, (AttnRun){.column = column, .segment = segment});
        for (int other = 1; other < 4; other++) {
            AttnRun run = {column, segment, other % 2 ? 1000 : 0, other / 2};
            uint16_t *got = attn_run(&d, run);
            for (size_t i = 0; i < ATTN_NUMBERS; i++)
                if (got[i] != want[i])
                    fail_msg("column %d, %d multiprocessors, chunked %d: row %zu differs", column,
                             run.n_sm, run.is_chunked, i / ATTN_WIDTH);
            free(got);
        }
        free(want);
    }
    attn_close(&d);
}

/* Nothing for contexts of one segment; of the 35B shape a place of 33 lines of 256 threads for both
 * heads of each of 256 tiles and 32 that are not full, however long the context is. */
static void scratch_of_segments_is_bounded(void **state) {
    (void)state;
    CudaAttnSize size = {16, 2, 4096, 32, 2048, 2048};
    assert_int_equal(cuda_attn_part_bytes(&size), 0);
    size.max_ctx = 2049;
    assert_int_equal(cuda_attn_part_bytes(&size), 2 * (256 + 32) * 33 * 256 * 16);
    size.max_ctx = 262144;
    assert_int_equal(cuda_attn_part_bytes(&size), 2 * (256 + 32) * 33 * 256 * 16);
    size.max_rows = size.max_seqs = 1; // segments side by side are then the most
    assert_int_equal(cuda_attn_part_bytes(&size), CUDA_ATTN_PLACES * 33 * 256 * 16);
    size.max_ctx = 1 << 20;
    assert_int_equal(cuda_attn_part_bytes(&size), 2 * (512 + 1) * 33 * 256 * 16);
}

/* ---- decode ---- */

/* Outputs [n, NQ * 256] of the first rows of sequences first .. */
static float *attn_decode(const Attn *d, int32_t first, int32_t n, int32_t n_sm) {
    CudaRow rows[ATTN_DECODES];
    size_t ld = (size_t)d->ld, groups = (size_t)n * ATTN_NQ * ATTN_DIM / CUDA_GROUP;
    float *proj = oracle_alloc((size_t)n * ld, sizeof *proj);
    for (int32_t i = 0; i < n; i++) {
        size_t row = (size_t)d->seqs[first + i].row0;
        rows[i] = d->rows[row];
        for (size_t k = 0; k < ld; k++)
            proj[(size_t)i * ld + k] = (float)delta_value(d->proj[row * ld + k]);
    }
    size_t pieces = (size_t)n * ATTN_NQ * CUDA_MAX_SPLITS;
    CudaAttnDecode a = {
        .t = attn_up(d),
        .proj = delta_up(proj, (size_t)n * ld * 4),
        .rows = delta_up(rows, sizeof rows),
        .part = delta_up(NULL, pieces * ATTN_DIM * 4),
        .part_ml = delta_up(NULL, pieces * 2 * 4),
        .out = {.digit = delta_up(NULL, groups * 128), .scale = delta_up(NULL, groups * 8)},
        .ld = d->ld,
        .m = n};
    CudaLaunch l = {.n_sm = n_sm, .max_shared = attn_init(false)};
    assert_int_equal(cuda_attn_decode(&l, &a), cudaSuccess);
    int8_t *digit = delta_down(a.out.digit, groups * 128);
    float *scale = delta_down(a.out.scale, groups * 8);
    float *out = oracle_alloc(groups * CUDA_GROUP, sizeof *out);
    for (size_t i = 0; i < groups * CUDA_GROUP; i++) {
        size_t group = i / CUDA_GROUP;
        size_t at = group * 128 + (size_t)cuda_layout_digit((int32_t)(i % CUDA_GROUP));
        out[i] = scale[group * 2] * (float)(128 * digit[at] + digit[at + 64]);
    }
    attn_down(&a.t);
    const void *gone[] = {a.proj, a.rows, a.part, a.part_ml};
    for (size_t i = 0; i < COUNT_OF(gone); i++)
        cudaFree((void *)gone[i]);
    free(digit);
    free(scale);
    free(proj);
    return out;
}

/* Contexts of 1, of 101 to 501 and of 8,201 keys. Outputs are rounded by 2^-15 of the largest of
 * 64; queries and keys have bf16 bits that fall the other way in f32. */
static void decode_attention_agrees_with_double(void **state) {
    (void)state;
    Attn d;
    attn_open(&d);
    double *want = attn_expected(&d), worst = 0, squares = 0, all = 0;
    float *got = attn_decode(&d, 0, ATTN_DECODES, 4);
    for (size_t i = 0; i < ATTN_DECODES * ATTN_WIDTH; i++) {
        size_t row = (size_t)d.seqs[i / ATTN_WIDTH].row0;
        double y = want[row * ATTN_WIDTH + i % ATTN_WIDTH], x = (double)got[i] - y;
        squares += x * x;
        all += y * y;
        worst = fmax(worst, fabs(x));
    }
    printf("decode attention: relative rms %.2g, worst %.2g\n", sqrt(squares / all), worst);
    ORACLE_BELOW(sqrt(squares / all), 1e-3, "outputs");
    ORACLE_BELOW(worst, 0.01, "an output");
    // However many blocks share the pieces, and alone.
    for (int32_t n_sm = 0; n_sm < 3; n_sm++) {
        float *other = attn_decode(&d, 0, ATTN_DECODES, n_sm);
        for (size_t i = 0; i < ATTN_DECODES * ATTN_WIDTH; i++)
            if (memcmp(&other[i], &got[i], 4))
                fail_msg("%d multiprocessors: row %zu differs", n_sm, i / ATTN_WIDTH);
        free(other);
    }
    for (int32_t q = 0; q < ATTN_DECODES; q++) {
        float *alone = attn_decode(&d, q, 1, 2);
        if (memcmp(alone, got + (size_t)q * ATTN_WIDTH, ATTN_WIDTH * sizeof *got))
            fail_msg("row %d alone differs", q);
        free(alone);
    }
    free(want);
    free(got);
    attn_close(&d);
}

#define CUDA_ATTN_CHECKS                                                                           \
    cmocka_unit_test(attention_tiles_agree_with_double),                                           \
        cmocka_unit_test(attention_segments_are_equal_however_they_are_run),                       \
        cmocka_unit_test(scratch_of_segments_is_bounded),                                          \
        cmocka_unit_test(decode_attention_agrees_with_double)

#endif
