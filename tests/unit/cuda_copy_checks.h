// SPDX-License-Identifier: Apache-2.0
/* cuda_copy_checks.h - test helper: slots and blocks that are saved and restored beside the steps.
 * Random programs of steps and copies must give what they give when every call is waited for.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_CUDA_COPY_CHECKS_H
#define LILY_TESTS_CUDA_COPY_CHECKS_H

#include "cuda_checks.h"

enum {                  // few places, so that calls get into each other's way
    COPY_POOL = 5,      // KV blocks that a program uses
    COPY_SLOTS = 3,     // its state slots
    COPY_HOST = 4,      // host buffers of each kind; the last is not from the backend
    COPY_CALLS = 40,    // calls of a program
    COPY_MAX_ITEMS = 4, // copies of a list
    COPY_LEFT = 2 * COPY_HOST + COPY_SLOTS + COPY_POOL,
};

/* A model that steps in no time. */
static int setup_micro(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    ORACLE_OK(weights_open(&f->o.weights, "synth:micro,seed=3", NULL, err));
    f->o.c = weights_config(f->o.weights);
    f->v = (size_t)f->o.c->vocab;
    for (size_t i = 0; i < COUNT_OF(f->ids); i++)
        f->ids[i] = (int32_t)(rng_u64(7, i) % f->v);
    *state = f;
    return 0;
}

/* A program that runs, and what it has given. */
typedef struct CopyRun {
    const Fixture *f;
    OracleDevice d;
    bool is_waited; // every call for itself
    uint64_t seed, n_drawn;
    char *slots[COPY_HOST], *blocks[COPY_HOST]; // host memory
    uint64_t n_lists;
    int n_steps, n_flying;
    int step_call[BATCH_IN_FLIGHT]; // of those under way, the oldest first
    int32_t step_seqs[BATCH_IN_FLIGHT];
    BatchSeq parts[BATCH_IN_FLIGHT][2];
    int32_t tables[BATCH_IN_FLIGHT][2][3], ids[BATCH_IN_FLIGHT][2];
    uint64_t given[COPY_CALLS]; // hash of what a call gave
} CopyRun;

static uint64_t copy_hash(uint64_t h, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
    return h;
}

static int32_t copy_draw(CopyRun *t, int32_t n) {
    return (int32_t)(rng_u64(t->seed, t->n_drawn++) % (uint64_t)n);
}

/* 0..n - 1 in a random order. */
static void copy_shuffle(CopyRun *t, int32_t *out, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t at = copy_draw(t, i + 1);
        out[i] = out[at];
        out[at] = i;
    }
}

static void copy_step_wait(CopyRun *t) {
    BatchResult r[2];
    ORACLE_OK(backend_wait(t->d.b, r, err));
    int call = t->step_call[0];
    for (int32_t i = 0; i < t->step_seqs[0]; i++)
        t->given[call] = copy_hash(t->given[call], r[i].logits, t->f->v * sizeof(float));
    t->step_call[0] = t->step_call[1];
    t->step_seqs[0] = t->step_seqs[1];
    t->n_flying--;
}

/* Decodes in random slots, over random blocks. */
static void copy_step(CopyRun *t, int call) {
    if (t->n_flying == BATCH_IN_FLIGHT)
        copy_step_wait(t);
    int at = t->n_steps++ % BATCH_IN_FLIGHT;
    int32_t slots[COPY_POOL], blocks[COPY_POOL], n = 1 + copy_draw(t, 2);
    copy_shuffle(t, slots, COPY_SLOTS);
    copy_shuffle(t, blocks, COPY_POOL);
    for (int32_t i = 0; i < n; i++) { // blocks 0 and 1 are written, 2 and 3 may be read
        int32_t *table = t->tables[at][i], pos = copy_draw(t, 3 * KV_BLOCK);
        for (int32_t j = 0; j < pos / KV_BLOCK; j++)
            table[j] = blocks[2 + copy_draw(t, 2)];
        table[pos / KV_BLOCK] = blocks[i];
        t->ids[at][i] = copy_draw(t, 200);
        t->parts[at][i] = (BatchSeq){.phase = PHASE_DECODE,
                                     .row0 = i,
                                     .n_rows = 1,
                                     .pos0 = pos,
                                     .slot = slots[i],
                                     .blocks = table,
                                     .want = WANT_LAST,
                                     .sampler = -1,
                                     .carry = -1};
    }
    Batch batch = {.n_seqs = n, .seqs = t->parts[at], .n_rows = n, .ids = t->ids[at]};
    ORACLE_OK(backend_submit(t->d.b, &batch, err));
    t->step_call[t->n_flying] = call;
    t->step_seqs[t->n_flying++] = n;
    if (t->is_waited)
        copy_step_wait(t);
}

static void copy_list(CopyRun *t) {
    BackendCopy copies[COPY_MAX_ITEMS];
    int32_t n = 1 + copy_draw(t, COPY_MAX_ITEMS);
    for (int32_t i = 0; i < n; i++) {
        // Of slots alone, of blocks alone, of both: who waits for one need not wait for the other.
        bool is_slot = t->seed / 3 % 3 == 2 ? copy_draw(t, 2) : (int)(t->seed / 3 % 3);
        bool is_save = copy_draw(t, 2);
        int32_t host = copy_draw(t, COPY_HOST);
        char *p = is_slot ? t->slots[host] : t->blocks[host];
        copies[i] = (BackendCopy){.is_slot = is_slot,
                                  .index = copy_draw(t, is_slot ? COPY_SLOTS : COPY_POOL)};
        if (is_save)
            copies[i].to = p;
        else
            copies[i].from = p;
    }
    uint64_t ticket = 0;
    ORACLE_OK(backend_copy_begin(t->d.b, copies, n, &ticket, err));
    assert_int_equal(ticket, ++t->n_lists);
    memset(copies, 0xee, sizeof copies);
    if (t->is_waited)
        ORACLE_OK(backend_copy_wait(t->d.b, ticket, err));
}

/* Asks for a list, or waits for one: all before it are then finished too. */
static void copy_ask(CopyRun *t) {
    if (!t->n_lists)
        return;
    uint64_t ticket = 1 + (uint64_t)copy_draw(t, (int32_t)t->n_lists);
    bool is_wait = copy_draw(t, 4) == 0, is_finished = false;
    if (is_wait)
        ORACLE_OK(backend_copy_wait(t->d.b, ticket, err));
    ORACLE_OK(backend_copy_poll(t->d.b, ticket, &is_finished, err));
    assert_true(is_finished || !is_wait);
    if (!is_finished)
        return;
    ORACLE_OK(backend_copy_poll(t->d.b, 1 + (ticket - 1) / 2, &is_finished, err));
    assert_true(is_finished);
}

static void copy_peek(CopyRun *t, int call) {
    size_t n = (size_t)t->d.c->n_gdn_value_heads * GDN_HEAD * GDN_HEAD;
    size_t m = (CONV_TAPS - 1) * (size_t)config_conv_dim(t->d.c);
    double *s = oracle_alloc(n, sizeof *s), *window = oracle_alloc(m, sizeof *window);
    ORACLE_OK(backend_slot_peek(t->d.b, copy_draw(t, COPY_SLOTS), 0, s, window, err));
    t->given[call] = copy_hash(copy_hash(1, s, n * sizeof *s), window, m * sizeof *window);
    free(s);
    free(window);
}

static void copy_call(CopyRun *t, int call) {
    int32_t what = copy_draw(t, 10);
    if (what < 4)
        copy_list(t);
    else if (what < 6)
        copy_step(t, call);
    else if (what < 8)
        backend_slot_copy(t->d.b, copy_draw(t, COPY_SLOTS), copy_draw(t, COPY_SLOTS));
    else if (what < 9)
        copy_ask(t);
    else if (copy_draw(t, 2))
        copy_peek(t, call);
    else if (t->n_flying)
        copy_step_wait(t);
}

/* Host memory with small numbers that nothing else holds, as f32 and as bf16. */
static char *copy_host(CopyRun *t, int i, size_t n) {
    char *p = i < COPY_HOST - 1 ? backend_host_alloc(t->d.b, n) : malloc(n);
    assert_non_null(p);
    for (size_t at = 0; at < n; at++)
        p[at] = (char)(at % 2 ? 0x3c : rng_u64(t->seed + 99, t->n_drawn++) & 0x7f);
    return p;
}

/* Numbers into every slot and block. */
static void copy_fill(CopyRun *t) {
    char *slot = copy_host(t, 0, backend_slot_host_bytes(t->d.b));
    char *block = copy_host(t, 0, backend_block_host_bytes(t->d.b));
    for (int32_t i = 0; i < COPY_SLOTS; i++) {
        slot[0] = (char)i;
        ORACLE_OK(backend_slot_restore(t->d.b, i, slot, err));
    }
    for (int32_t i = 0; i < COPY_POOL; i++) {
        for (int32_t k = 0; k < 2 * ATTN_HEAD; k += 2)
            block[k] = (char)(i + k);
        ORACLE_OK(backend_block_restore(t->d.b, i, block, err));
    }
    backend_host_free(t->d.b, slot);
    backend_host_free(t->d.b, block);
}

/* The slots, blocks and host memory that a program leaves: [2 COPY_HOST + COPY_SLOTS + COPY_POOL]
 * hashes. */
static void copy_left(CopyRun *t, uint64_t *out) {
    size_t slot = backend_slot_host_bytes(t->d.b), block = backend_block_host_bytes(t->d.b);
    for (uint64_t i = 1; i <= t->n_lists; i++)
        ORACLE_OK(backend_copy_wait(t->d.b, i, err));
    for (int i = 0; i < COPY_HOST; i++) {
        *out++ = copy_hash(2, t->slots[i], slot);
        *out++ = copy_hash(2, t->blocks[i], block);
    }
    for (int32_t i = 0; i < COPY_SLOTS; i++) {
        ORACLE_OK(backend_slot_save(t->d.b, i, t->slots[0], err));
        *out++ = copy_hash(3, t->slots[0], slot);
    }
    for (int32_t i = 0; i < COPY_POOL; i++) {
        ORACLE_OK(backend_block_save(t->d.b, i, t->blocks[0], err));
        *out++ = copy_hash(3, t->blocks[0], block);
    }
}

static void copy_run(CopyRun *t, const Fixture *f, uint64_t seed, bool is_waited, uint64_t *left) {
    *t = (CopyRun){.f = f, .seed = seed, .is_waited = is_waited};
    device(&t->d, f, NULL);
    for (int i = 0; i < COPY_HOST; i++) {
        t->slots[i] = copy_host(t, i, backend_slot_host_bytes(t->d.b));
        t->blocks[i] = copy_host(t, i, backend_block_host_bytes(t->d.b));
    }
    copy_fill(t);
    t->n_lists = COPY_SLOTS + COPY_POOL;
    for (int call = 0; call < COPY_CALLS; call++)
        copy_call(t, call);
    while (t->n_flying)
        copy_step_wait(t);
    copy_left(t, left);
    for (int i = 0; i < COPY_HOST; i++) {
        if (i < COPY_HOST - 1) {
            backend_host_free(t->d.b, t->slots[i]);
            backend_host_free(t->d.b, t->blocks[i]);
        } else {
            free(t->slots[i]);
            free(t->blocks[i]);
        }
    }
    oracle_device_close(&t->d);
}

/* One program, its calls beside each other and one by one; `begin` and `end` stand around the
 * first. */
static void copy_program(const Fixture *f, uint64_t seed, void (*begin)(uint64_t seed),
                         void (*end)(void)) {
    static CopyRun beside, waited;
    uint64_t left[COPY_LEFT], want[COPY_LEFT];
    if (begin)
        begin(seed);
    copy_run(&beside, f, seed, false, left);
    if (end)
        end();
    copy_run(&waited, f, seed, true, want);
    for (int i = 0; i < COPY_CALLS; i++)
        if (beside.given[i] != waited.given[i])
            fail_msg("seed %llu: call %d gave something else", (unsigned long long)seed, i);
    for (int i = 0; i < COPY_LEFT; i++)
        if (left[i] != want[i])
            fail_msg("seed %llu: number %d of what is left is something else",
                     (unsigned long long)seed, i);
}

/* Starts a decode of s and of its neighbour; both go on by one. Two may be under way. */
static void decode_pair(OracleDevice *d, OracleSeq *s, OracleSeq *beside, const int32_t *ids) {
    static BatchSeq parts[BATCH_IN_FLIGHT][2]; // borrowed until the wait
    static int32_t step;
    BatchSeq *part = parts[step++ % BATCH_IN_FLIGHT];
    part[0] = oracle_part(s, PHASE_DECODE, 0, 1, WANT_LAST);
    part[1] = oracle_part(beside, PHASE_DECODE, 1, 1, WANT_LAST);
    Batch batch = {.n_seqs = 2, .seqs = part, .n_rows = 2, .ids = ids};
    ORACLE_OK(backend_submit(d->b, &batch, err));
    s->pos++;
    beside->pos++;
}

/* Decodes both for n steps, two under way; logits of s into rows [n, V]. is_one_begun: a step is
 * under way already, whose logits nobody wants. */
static void decode_pairs(OracleDevice *d, OracleSeq *s, OracleSeq *beside, const int32_t *ids,
                         int32_t n, bool is_one_begun, float *rows) {
    size_t v = (size_t)d->c->vocab;
    for (int32_t i = -1; i < n; i++) {
        BatchResult r[2];
        if (i + 1 < n)
            decode_pair(d, s, beside, ids + i + 1);
        if (i < 0 && !is_one_begun)
            continue;
        ORACLE_OK(backend_wait(d->b, r, err));
        if (i >= 0)
            memcpy(rows + (size_t)i * v, r[0].logits, v * sizeof *rows);
    }
}

/* As a scheduler that gives a place up does it: a sequence is saved behind a step that is under
 * way, and goes on at once; it comes back into other places, and what it gives from there, beside
 * the same neighbour, is what it gave. */
static void a_sequence_is_saved_and_restored_beside_decodes(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    OracleSeq live = oracle_seq(0), beside = oracle_seq(1), back = oracle_seq(2);
    int32_t m = CUDA_IS_EMU ? 70 : 200, more = CUDA_IS_EMU ? 3 : 32, n = div_up_i32(m, KV_BLOCK);
    free(oracle_prefill(&d, &live, f->ids, (size_t)m, 704, WANT_LAST, NULL));
    free(oracle_prefill(&d, &beside, f->ids + 64, 5, 704, WANT_LAST, NULL));
    size_t slot = backend_slot_host_bytes(d.b), block = backend_block_host_bytes(d.b);
    char *host = backend_host_alloc(d.b, slot + (size_t)n * block);
    float *want = oracle_alloc((size_t)more * f->v, sizeof *want);
    float *got = oracle_alloc((size_t)more * f->v, sizeof *got);
    assert_non_null(host);
    BackendCopy save[8], restore[8];
    for (int32_t i = 0; i <= n; i++) {
        char *p = i ? host + slot + (size_t)(i - 1) * block : host;
        save[i] = (BackendCopy){.is_slot = i == 0, .to = p};
        save[i].index = i ? live.blocks[i - 1] : live.slot;
        restore[i] = (BackendCopy){.is_slot = i == 0, .from = p};
        restore[i].index = i ? back.blocks[i - 1] : back.slot;
    }
    uint64_t saved, restored;
    decode_pair(&d, &live, &beside, f->ids + m);
    ORACLE_OK(backend_copy_begin(d.b, save, n + 1, &saved, err));
    back.pos = live.pos;
    decode_pairs(&d, &live, &beside, f->ids + m + 1, more, true, want);
    ORACLE_OK(backend_copy_begin(d.b, restore, n + 1, &restored, err));
    decode_pairs(&d, &back, &beside, f->ids + m + 1, more, false, got);
    expect_same(f, got, want, (size_t)more, "restored", 0);
    for (uint64_t ticket = saved; ticket <= restored; ticket++) { // steps behind were waited for
        bool is_finished = false;
        ORACLE_OK(backend_copy_poll(d.b, ticket, &is_finished, err));
        assert_true(is_finished);
    }
    free(want);
    free(got);
    backend_host_free(d.b, host);
    oracle_device_close(&d);
}

/* More lists than may be under way, each with a slot of other bytes: the newest wins, every ticket
 * is finished in its turn, and no call allocates. */
static void lists_beyond_the_most_wait_for_the_oldest(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    enum { N = 3 * COPY_LISTS + 5 };
    size_t bytes = backend_block_host_bytes(d.b);
    char *host = backend_host_alloc(d.b, (N + 1) * bytes);
    assert_non_null(host);
    for (size_t i = 0; i <= N; i++)
        memset(host + i * bytes, (int)i, bytes);
    int64_t before = mem_count();
    uint64_t ticket = 0;
    bool is_finished = true;
    for (size_t i = 0; i < N; i++) {
        BackendCopy copy = {.index = 1, .from = host + i * bytes};
        ORACLE_OK(backend_copy_begin(d.b, &copy, 1, &ticket, err));
        assert_int_equal(ticket, i + 1);
        if (i >= COPY_LISTS) {
            ORACLE_OK(backend_copy_poll(d.b, ticket - COPY_LISTS, &is_finished, err));
            assert_true(is_finished);
        }
    }
    ORACLE_OK(backend_block_save(d.b, 1, host + N * bytes, err));
    assert_memory_equal(host + N * bytes, host + (N - 1) * bytes, bytes);
    for (uint64_t i = 1; i <= ticket; i++) { // the save behind them was waited for
        ORACLE_OK(backend_copy_poll(d.b, i, &is_finished, err));
        assert_true(is_finished);
    }
    assert_int_equal(mem_count(), before);
    backend_host_free(d.b, host);
    backend_host_free(d.b, NULL);
    oracle_device_close(&d);
}

#define MICRO(test)                                                                                \
    { #test " micro", test, setup_micro, teardown, NULL }

#endif
