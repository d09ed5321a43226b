// SPDX-License-Identifier: Apache-2.0
/* test_ref.c - what the reference backend must give bit for bit, what it does with values that are
 * not finite, and what is left when an allocation or a read fails. */
#include "oracle.h"

#include "../tolerance.h"

#include "base/file.h"
#include "base/rng.h"

typedef struct Fixture {
    Weights *w;
    const ModelConfig *c;
    OracleDevice d;
    int32_t ids[640]; // a prompt
} Fixture;

static const uint64_t ID_SEED = 71;

static int setup(void **state, const char *spec, BackendKind kind) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    ORACLE_OK(weights_open(&f->w, spec, NULL, err));
    f->c = weights_config(f->w);
    oracle_device_open(&f->d, f->w, kind, (BackendPlan){.n_threads = 1});
    for (size_t i = 0; i < COUNT_OF(f->ids); i++)
        f->ids[i] = (int32_t)(rng_unit_f64(ID_SEED, i) * f->c->vocab);
    *state = f;
    return 0;
}

static int setup_micro(void **state) { return setup(state, "synth:micro", BACKEND_REF); }
static int setup_micro64(void **state) { return setup(state, "synth:micro", BACKEND_REF64); }
static int setup_small(void **state) { return setup(state, "synth:small", BACKEND_REF); }
static int setup_file(void **state) {
    return setup(state, "tests/data/oracle/tiny-b", BACKEND_REF);
}

static int teardown(void **state) {
    Fixture *f = *state;
    oracle_device_close(&f->d);
    weights_close(f->w);
    free(f);
    return 0;
}

/* State slot and KV blocks of a sequence as one piece of bytes. */
static char *snapshot(OracleDevice *d, const OracleSeq *s, size_t *n) {
    size_t slot = (size_t)backend_slot_host_bytes(d->b);
    size_t block = (size_t)backend_block_host_bytes(d->b);
    int32_t n_blocks = div_up_i32(s->pos, KV_BLOCK);
    *n = slot + block * (size_t)n_blocks;
    char *out = oracle_alloc(*n, 1);
    ORACLE_OK(backend_slot_save(d->b, s->slot, out, err));
    for (int32_t i = 0; i < n_blocks; i++)
        ORACLE_OK(backend_block_save(d->b, s->blocks[i], out + slot + block * (size_t)i, err));
    return out;
}

static void snapshot_restore(OracleDevice *d, const OracleSeq *s, const char *from) {
    size_t slot = (size_t)backend_slot_host_bytes(d->b);
    size_t block = (size_t)backend_block_host_bytes(d->b);
    ORACLE_OK(backend_slot_restore(d->b, s->slot, from, err));
    for (int32_t i = 0; i < div_up_i32(s->pos, KV_BLOCK); i++)
        ORACLE_OK(backend_block_restore(d->b, s->blocks[i], from + slot + block * (size_t)i, err));
}

static void assert_same(const float *a, const float *b, size_t n) {
    assert_memory_equal(a, b, n * sizeof *a);
}

/* Overwrites all slots and blocks with NaN: whatever an earlier sequence left must not matter. */
static void dirty(OracleDevice *d) {
    size_t slot = (size_t)backend_slot_host_bytes(d->b);
    size_t block = (size_t)backend_block_host_bytes(d->b);
    char *junk = oracle_alloc(slot + block, 1);
    memset(junk, 0xff, slot + block);
    for (int32_t i = 0; i < d->plan.n_slots; i++)
        ORACLE_OK(backend_slot_restore(d->b, i, junk, err));
    for (int32_t i = 0; i < d->plan.n_blocks; i++)
        ORACLE_OK(backend_block_restore(d->b, i, junk, err));
    free(junk);
}

static void threads_1_to_4_are_bit_equal(void **state) {
    Fixture *f = *state;
    enum { M = 24 };
    size_t v = (size_t)f->c->vocab;
    float *want = NULL, *want_next = NULL;
    for (int n = 1; n <= 4; n++) {
        OracleDevice d;
        oracle_device_open(&d, f->w, backend_kind(f->d.b), (BackendPlan){.n_threads = n});
        OracleSeq s = oracle_seq(0);
        float *got = oracle_prefill(&d, &s, f->ids, M, 64, WANT_ALL, NULL);
        float *next = oracle_decode(&d, &s, f->ids[M]);
        if (want) {
            assert_same(got, want, M * v);
            assert_same(next, want_next, v);
        }
        free(want);
        free(want_next);
        want = got;
        want_next = next;
        oracle_device_close(&d);
    }
    free(want);
    free(want_next);
}

static void c2_chunked_prefill_is_bit_equal_to_whole(void **state) {
    Fixture *f = *state;
    size_t v = (size_t)f->c->vocab, n_want = 0;
    float *want = NULL;
    char *want_bytes = NULL;
    static const int32_t chunks[] = {704, 64, 128, 192, 320};
    const size_t m = ORACLE_IS_SLOW ? 201 : 329; // whole pieces of 64 and a short one
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        OracleSeq s = oracle_seq((int32_t)i % ORACLE_SEQS);
        float *got = oracle_prefill(&f->d, &s, f->ids, m, chunks[i], WANT_ALL, NULL);
        size_t n;
        char *bytes = snapshot(&f->d, &s, &n);
        if (want) {
            assert_same(got, want, m * v);
            assert_int_equal(n, n_want);
            // of the last block only the first rows are defined
            assert_memory_equal(bytes, want_bytes, n - (size_t)backend_block_host_bytes(f->d.b));
        }
        free(want);
        free(want_bytes);
        want = got;
        want_bytes = bytes;
        n_want = n;
    }
    free(want);
    free(want_bytes);
}

static void prefill_is_bit_equal_to_decode(void **state) { // both run token by token here
    Fixture *f = *state;
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    float *want = oracle_prefill(&f->d, &a, f->ids, 67, 704, WANT_LAST, NULL);
    float *got = NULL;
    for (int i = 0; i < 67; i++) {
        free(got);
        got = oracle_decode(&f->d, &b, f->ids[i]);
    }
    assert_same(got, want, (size_t)f->c->vocab);
    free(got);
    free(want);
}

/* A prefill of the second piece, a decode and a first prefill in one step, in any order. */
static void batch_is_bit_equal_to_single(void **state) {
    Fixture *f = *state;
    size_t v = (size_t)f->c->vocab;
    enum { N = 3 };
    static const int32_t begin[N] = {64, 9, 0}, rows[N] = {20, 1, 30};
    static const BatchPhase phase[N] = {PHASE_PREFILL, PHASE_DECODE, PHASE_PREFILL};
    float *want[N];
    char *want_bytes[N];
    size_t n_bytes[N];
    for (int i = 0; i < N; i++) {
        OracleSeq s = oracle_seq(3);
        const int32_t *ids = f->ids + 100 * i;
        oracle_prefill(&f->d, &s, ids, (size_t)begin[i], 64, WANT_NOTHING, NULL);
        want[i] = phase[i] == PHASE_DECODE ? oracle_decode(&f->d, &s, ids[begin[i]]) : NULL;
        if (!want[i]) {
            BatchSeq part = oracle_part(&s, PHASE_PREFILL, 0, rows[i], WANT_LAST);
            BatchResult r;
            oracle_step(
                &f->d,
                &(Batch){.n_seqs = 1, .seqs = &part, .n_rows = rows[i], .ids = ids + begin[i]}, &r);
            want[i] = oracle_alloc(v, sizeof(float));
            memcpy(want[i], r.logits, v * sizeof(float));
            s.pos += rows[i];
        }
        want_bytes[i] = snapshot(&f->d, &s, &n_bytes[i]);
    }
    static const int orders[][N] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    for (size_t o = 0; o < COUNT_OF(orders); o++) {
        dirty(&f->d);
        OracleSeq seqs[N];
        BatchSeq parts[N];
        BatchResult r[N];
        int32_t ids[64], row = 0;
        for (int j = 0; j < N; j++) {
            int i = orders[o][j];
            seqs[j] = oracle_seq(j);
            oracle_prefill(&f->d, &seqs[j], f->ids + 100 * i, (size_t)begin[i], 64, WANT_NOTHING,
                           NULL);
            parts[j] = oracle_part(&seqs[j], phase[i], row, rows[i], WANT_LAST);
            memcpy(ids + row, f->ids + 100 * i + begin[i], (size_t)rows[i] * sizeof *ids);
            row += rows[i];
        }
        oracle_step(&f->d, &(Batch){.n_seqs = N, .seqs = parts, .n_rows = row, .ids = ids}, r);
        for (int j = 0; j < N; j++) {
            int i = orders[o][j];
            size_t n;
            seqs[j].pos += rows[i];
            assert_same(r[j].logits, want[i], v);
            char *bytes = snapshot(&f->d, &seqs[j], &n);
            size_t whole = n - (size_t)backend_block_host_bytes(f->d.b); // less the last block
            assert_memory_equal(bytes, want_bytes[i], whole);
            free(bytes);
        }
    }
    for (int i = 0; i < N; i++) {
        free(want[i]);
        free(want_bytes[i]);
    }
}

static void restored_is_bit_equal_to_live(void **state) {
    Fixture *f = *state;
    size_t n, v = (size_t)f->c->vocab;
    OracleSeq live = oracle_seq(0), again = oracle_seq(2);
    oracle_prefill(&f->d, &live, f->ids, 75, 64, WANT_NOTHING, NULL);
    char *bytes = snapshot(&f->d, &live, &n);
    again.pos = live.pos;
    float *want = oracle_decode(&f->d, &live, 7);
    dirty(&f->d);
    snapshot_restore(&f->d, &again, bytes); // another slot, other blocks
    float *got = oracle_decode(&f->d, &again, 7);
    assert_same(got, want, v);
    free(bytes);
    free(want);
    free(got);
}

/* Snapshots inside a prefill, beside another sequence, are the states of shorter prefills. */
static void snapshots_are_bit_equal_to_shorter_prefills(void **state) {
    Fixture *f = *state;
    size_t n = (size_t)backend_slot_host_bytes(f->d.b);
    char *want = oracle_alloc(n, 1), *got = oracle_alloc(n, 1);
    static const int32_t begins[] = {0, 64};
    for (size_t i = 0; i < COUNT_OF(begins); i++) {
        dirty(&f->d);
        OracleSeq other = oracle_seq(3), s = oracle_seq(0);
        oracle_prefill(&f->d, &s, f->ids, (size_t)begins[i], 64, WANT_NOTHING, NULL);
        BatchSnap snaps[] = {{128, 2}, {192, 1}};
        BatchSeq parts[2] = {oracle_part(&other, PHASE_PREFILL, 0, 5, WANT_NOTHING),
                             oracle_part(&s, PHASE_PREFILL, 5, 200 - begins[i], WANT_NOTHING)};
        parts[1].snaps = snaps;
        parts[1].n_snaps = 2;
        BatchResult r[2];
        int32_t ids[205];
        memcpy(ids, f->ids, 5 * sizeof *ids);
        memcpy(ids + 5, f->ids + begins[i], (size_t)parts[1].n_rows * sizeof *ids);
        oracle_step(&f->d,
                    &(Batch){.n_seqs = 2, .seqs = parts, .n_rows = 5 + parts[1].n_rows, .ids = ids},
                    r);
        for (int j = 0; j < 2; j++) {
            ORACLE_OK(backend_slot_save(f->d.b, snaps[j].slot, got, err));
            OracleSeq shorter = oracle_seq(3);
            oracle_prefill(&f->d, &shorter, f->ids, (size_t)snaps[j].pos, 704, WANT_NOTHING, NULL);
            ORACLE_OK(backend_slot_save(f->d.b, 3, want, err));
            assert_memory_equal(got, want, n);
        }
    }
    free(want);
    free(got);
}

/* A fork at a multiple of 64: its own state, the finished blocks shared. */
static void copied_slot_with_shared_blocks_is_bit_equal_to_live(void **state) {
    Fixture *f = *state;
    size_t v = (size_t)f->c->vocab;
    OracleSeq a = oracle_seq(0), b = oracle_seq(1), alone = oracle_seq(3);
    oracle_prefill(&f->d, &a, f->ids, 128, 64, WANT_NOTHING, NULL);
    backend_slot_copy(f->d.b, 1, 0);
    backend_slot_copy(f->d.b, 0, 0);
    memcpy(b.blocks, a.blocks, 2 * sizeof *b.blocks);
    b.pos = 128;
    BatchSeq parts[2] = {oracle_part(&a, PHASE_DECODE, 0, 1, WANT_LAST),
                         oracle_part(&b, PHASE_PREFILL, 1, 3, WANT_LAST)};
    int32_t ids[4] = {5, 6, 7, 8};
    BatchResult r[2];
    oracle_step(&f->d, &(Batch){.n_seqs = 2, .seqs = parts, .n_rows = 4, .ids = ids}, r);
    float *got[2];
    for (int i = 0; i < 2; i++) {
        got[i] = oracle_alloc(v, sizeof(float));
        memcpy(got[i], r[i].logits, v * sizeof(float));
    }
    int32_t all[131];
    memcpy(all, f->ids, 128 * sizeof *all);
    for (int i = 0; i < 2; i++) {
        alone.pos = 0;
        memcpy(all + 128, ids + i, 3 * sizeof *all);
        float *want = oracle_prefill(&f->d, &alone, all, i ? 131 : 129, 64, WANT_LAST, NULL);
        assert_same(got[i], want, v);
        free(want);
        free(got[i]);
    }
}

static void position_0_clears_the_slot_and_old_blocks_do_not_matter(void **state) {
    Fixture *f = *state;
    OracleSeq s = oracle_seq(0);
    float *want = oracle_prefill(&f->d, &s, f->ids, 66, 64, WANT_LAST, NULL);
    dirty(&f->d);
    s = oracle_seq(1);
    float *got = oracle_prefill(&f->d, &s, f->ids, 66, 64, WANT_LAST, NULL);
    assert_same(got, want, (size_t)f->c->vocab);
    free(want);
    free(got);
}

/* Two steps in flight, the id handed on by the device. */
static void carried_ids_give_the_reference_continuation(void **state) {
    UNUSED(state);
    enum { STEPS = 12 };
    Oracle o;
    OracleDevice d;
    size_t m;
    oracle_open(&o, "tiny-b");
    oracle_device_open(&d, o.weights, BACKEND_REF, (BackendPlan){.n_threads = 2});
    int32_t *ids = oracle_ids(o.logits, &m, "prompt.5");
    int32_t *want = oracle_ids(o.greedy, NULL, "greedy.5.ids");
    float *want_logits = oracle_f32(o.greedy, NULL, "greedy.5.logits");
    OracleSeq s = oracle_seq(2);
    BatchSeq parts[2];
    BatchResult r;
    parts[0] = oracle_part(&s, PHASE_PREFILL, 0, (int32_t)m, WANT_LAST);
    parts[0].sampler = 1; // never set: greedy
    ORACLE_OK(backend_submit(
        d.b, &(Batch){.n_seqs = 1, .seqs = &parts[0], .n_rows = (int32_t)m, .ids = ids}, err));
    s.pos = (int32_t)m;
    for (int i = 0; i < STEPS; i++, s.pos++) {
        int32_t none = -1; // not looked at
        BatchSeq *p = &parts[(i + 1) % 2];
        *p = oracle_part(&s, PHASE_DECODE, 0, 1, WANT_LAST);
        p->sampler = 1;
        p->carry = 0;
        ORACLE_OK(
            backend_submit(d.b, &(Batch){.n_seqs = 1, .seqs = p, .n_rows = 1, .ids = &none}, err));
        Err third = {0};
        assert_int_equal(backend_submit(d.b,
                                        &(Batch){.n_seqs = 1, .seqs = p, .n_rows = 1, .ids = &none},
                                        &third),
                         STATUS_INVALID);
        ORACLE_OK(backend_wait(d.b, &r, err));
        assert_int_equal(r.sample.id, want[i]);
        OracleScore score = {0};
        oracle_score(&score, r.logits, want_logits + i * o.c->vocab, 1, o.c->vocab);
        assert_true(oracle_score_rel(&score) < TOL_F32_REL);
    }
    ORACLE_OK(backend_wait(d.b, &r, err));
    assert_int_equal(r.sample.id, want[STEPS]);
    free(ids);
    free(want);
    free(want_logits);
    oracle_device_close(&d);
    oracle_close(&o);
}

/* Same seed, same ids, whether alone or beside others; the mask is obeyed. */
static void sampled_ids_depend_on_seed_and_position_alone(void **state) {
    Fixture *f = *state;
    enum { STEPS = 12 };
    SampleParams params = {.temperature = 1.0f, .top_p = 0.95f, .seed = 42, .n_top = 3};
    uint32_t even[64]; // for up to 2048 ids
    memset(even, 0x55, sizeof even);
    int32_t alone[STEPS], id = f->ids[0];
    OracleSeq s = oracle_seq(0);
    ORACLE_OK(backend_sampler_set(f->d.b, 0, &params, NULL, 0, 0, err));
    for (int i = 0; i < STEPS; i++) {
        BatchSeq part = oracle_part(&s, PHASE_DECODE, 0, 1, WANT_NOTHING);
        BatchResult r;
        part.sampler = 0;
        part.allowed = even;
        oracle_step(&f->d, &(Batch){.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = &id}, &r);
        assert_null(r.logits);
        assert_int_equal(r.sample.n_top, 3);
        alone[i] = id = r.sample.id;
        assert_int_equal(id % 2, 0);
        s.pos++;
    }
    OracleSeq a = oracle_seq(3), b = oracle_seq(1);
    int32_t ids[2] = {f->ids[9], f->ids[0]};
    bool differs = false;
    ORACLE_OK(backend_sampler_set(f->d.b, 2, &params, NULL, 0, 0, err));
    params.seed = 43;
    ORACLE_OK(backend_sampler_set(f->d.b, 3, &params, NULL, 0, 0, err));
    for (int i = 0; i < STEPS; i++) {
        BatchSeq parts[2] = {oracle_part(&a, PHASE_DECODE, 0, 1, WANT_LAST),
                             oracle_part(&b, PHASE_DECODE, 1, 1, WANT_NOTHING)};
        BatchResult r[2];
        parts[0].sampler = 3;
        parts[1].sampler = 2;
        parts[1].allowed = even;
        oracle_step(&f->d, &(Batch){.n_seqs = 2, .seqs = parts, .n_rows = 2, .ids = ids}, r);
        assert_int_equal(r[1].sample.id, alone[i]);
        ids[0] = r[0].sample.id;
        ids[1] = r[1].sample.id;
        differs = differs || ids[0] != ids[1];
        a.pos++;
        b.pos++;
    }
    assert_true(differs);
}

static void logits_come_for_the_rows_that_want_them(void **state) {
    Fixture *f = *state;
    size_t v = (size_t)f->c->vocab;
    OracleSeq whole = oracle_seq(0), a = oracle_seq(1), b = oracle_seq(2), c = oracle_seq(3);
    float *want = oracle_prefill(&f->d, &whole, f->ids, 20, 64, WANT_ALL, NULL);
    BatchSeq parts[3] = {oracle_part(&a, PHASE_PREFILL, 0, 20, WANT_LAST),
                         oracle_part(&b, PHASE_PREFILL, 20, 20, WANT_NOTHING),
                         oracle_part(&c, PHASE_PREFILL, 40, 20, WANT_ALL)};
    int32_t ids[60];
    for (int i = 0; i < 3; i++)
        memcpy(ids + 20 * i, f->ids, 20 * sizeof *ids);
    BatchResult r[3];
    oracle_step(&f->d, &(Batch){.n_seqs = 3, .seqs = parts, .n_rows = 60, .ids = ids}, r);
    assert_same(r[0].logits, want + 19 * v, v);
    assert_null(r[1].logits);
    assert_same(r[2].logits, want, 20 * v);
    for (int i = 0; i < 3; i++)
        assert_int_equal(r[i].sample.id, -1);
    free(want);
}

static void a_tap_changes_nothing_and_sees_the_stream(void **state) {
    Fixture *f = *state;
    OracleSeq s = oracle_seq(0);
    OracleTrace trace = {0};
    BatchTap tap = {oracle_trace_see, &trace};
    float *want = oracle_prefill(&f->d, &s, f->ids, 7, 64, WANT_ALL, NULL);
    s = oracle_seq(1);
    float *got = oracle_prefill(&f->d, &s, f->ids, 7, 64, WANT_ALL, &tap);
    assert_same(got, want, 7 * (size_t)f->c->vocab);
    for (int l = -1; l < f->c->n_layers; l++) {
        const struct OracleValue *v = oracle_trace_find(&trace, "out", l, 0);
        assert_non_null(v);
        assert_int_equal(v->n_rows, 7);
        assert_int_equal(v->width, f->c->hidden);
        assert_null(oracle_trace_find(&trace, "out", l, 1));
    }
    assert_non_null(oracle_trace_find(&trace, "final_norm", f->c->n_layers, 0));
    oracle_trace_fini(&trace);
    free(want);
    free(got);
}

/* ---- values that are not finite ---- */

static void c4_a_bad_state_is_named_and_leaves_nothing_behind(void **state) {
    Fixture *f = *state;
    size_t v = (size_t)f->c->vocab, n = (size_t)backend_slot_host_bytes(f->d.b);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    ORACLE_OK(backend_sampler_set(f->d.b, 0, &(SampleParams){0}, NULL, 0, 0, err));
    oracle_prefill(&f->d, &a, f->ids, 10, 64, WANT_NOTHING, NULL);
    float *want = oracle_decode(&f->d, &a, 3);
    a = oracle_seq(0);
    oracle_prefill(&f->d, &a, f->ids, 10, 64, WANT_NOTHING, NULL);
    oracle_prefill(&f->d, &b, f->ids, 12, 64, WANT_NOTHING, NULL);
    char *nan_bytes = oracle_alloc(n, 1);
    memset(nan_bytes, 0xff, n);
    ORACLE_OK(backend_slot_restore(f->d.b, b.slot, nan_bytes, err));
    BatchSeq parts[2] = {oracle_part(&b, PHASE_DECODE, 0, 1, WANT_NOTHING),
                         oracle_part(&a, PHASE_DECODE, 1, 1, WANT_LAST)};
    parts[0].sampler = 0;
    int32_t ids[2] = {3, 3};
    BatchResult r[2];
    ORACLE_OK(
        backend_submit(f->d.b, &(Batch){.n_seqs = 2, .seqs = parts, .n_rows = 2, .ids = ids}, err));
    ORACLE_OK(backend_wait(f->d.b, r, err));
    assert_int_equal(r[0].bad_layer, 0);
    assert_int_equal(r[0].bad_pos, 12);
    assert_int_equal(r[0].sample.id, -1);
    assert_int_equal(r[1].bad_layer, -1);
    assert_same(r[1].logits, want, v); // the neighbour is not touched
    free(want);
    b = oracle_seq(1);
    float *again = oracle_prefill(&f->d, &b, f->ids, 12, 64, WANT_LAST, NULL);
    b = oracle_seq(3);
    want = oracle_prefill(&f->d, &b, f->ids, 12, 64, WANT_LAST, NULL);
    assert_same(again, want, v); // the slot serves the next sequence as if nothing had been
    free(again);
    free(nan_bytes);
    free(want);
}

static void a_bad_kv_block_is_named_with_layer_and_first_row(void **state) {
    Fixture *f = *state;
    size_t n = (size_t)backend_block_host_bytes(f->d.b);
    OracleSeq s = oracle_seq(0);
    oracle_prefill(&f->d, &s, f->ids, 64, 64, WANT_NOTHING, NULL);
    char *nan_bytes = oracle_alloc(n, 1);
    memset(nan_bytes, 0xff, n);
    ORACLE_OK(backend_block_restore(f->d.b, s.blocks[0], nan_bytes, err));
    BatchSeq part = oracle_part(&s, PHASE_PREFILL, 0, 5, WANT_ALL);
    BatchResult r;
    ORACLE_OK(backend_submit(
        f->d.b, &(Batch){.n_seqs = 1, .seqs = &part, .n_rows = 5, .ids = f->ids + 64}, err));
    ORACLE_OK(backend_wait(f->d.b, &r, err));
    assert_int_equal(r.bad_layer, 3); // the first attention layer
    assert_int_equal(r.bad_pos, 64);
    free(nan_bytes);
}

/* ---- memory and failures ---- */

static void needs_are_what_host_copies_take(void **state) {
    Fixture *f = *state;
    BackendNeeds n;
    BackendPlan plan = f->d.plan;
    ORACLE_OK(backend_needs(&n, backend_kind(f->d.b), f->w, &plan, err));
    assert_int_equal(n.block_bytes, backend_block_host_bytes(f->d.b));
    assert_int_equal(n.slot_bytes, backend_slot_host_bytes(f->d.b));
    assert_int_equal(n.sampler_bytes, sampler_bytes(f->c->vocab));
    assert_true(n.weight_bytes >= weights_total_bytes(f->w));
    assert_true(n.weight_bytes < weights_total_bytes(f->w) * 12 / 10); // vectors are wider here
    assert_int_equal(n.total_bytes, n.weight_bytes + n.scratch_bytes +
                                        n.block_bytes * (uint64_t)plan.n_blocks +
                                        n.slot_bytes * (uint64_t)plan.n_slots +
                                        n.sampler_bytes * (uint64_t)plan.n_samplers);
}

static void a_step_allocates_nothing(void **state) {
    Fixture *f = *state;
    OracleSeq s = oracle_seq(0);
    ORACLE_OK(backend_sampler_set(f->d.b, 0, &(SampleParams){.temperature = 1}, NULL, 0, 0, err));
    for (int i = 0; i < 3; i++) {
        BatchSeq part = oracle_part(&s, i ? PHASE_DECODE : PHASE_PREFILL, 0, 1, WANT_LAST);
        BatchResult r;
        part.sampler = 0;
        int64_t before = mem_count();
        oracle_step(&f->d, &(Batch){.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = f->ids}, &r);
        assert_int_equal(mem_count(), before);
        s.pos++;
    }
}

static const BackendPlan FEW = {.max_rows = 8,
                                .max_seqs = 2,
                                .n_blocks = 2,
                                .n_slots = 2,
                                .n_samplers = 2,
                                .max_ctx = 64,
                                .n_threads = 2};

static void each_allocation_failing_in_open_is_reported(void **state) {
    Fixture *f = *state;
    for (int64_t i = 0;; i++) {
        Backend *b = NULL;
        Err err = {0};
        mem_fail_after(i);
        Status status = backend_open(&b, backend_kind(f->d.b), f->w, &FEW, NULL, NULL, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            backend_close(b);
            assert_true(i > 10);
            return;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(err.code, STATUS_MEMORY);
        assert_true(err.text[0]);
        assert_null(b);
    }
}

static void each_read_failing_in_open_is_reported(void **state) {
    Fixture *f = *state;
    for (int64_t i = 0;; i += i < 20 ? 1 : 37) {
        Backend *b = NULL;
        Err err = {0};
        file_fail_after(i);
        Status status = backend_open(&b, backend_kind(f->d.b), f->w, &FEW, NULL, NULL, &err);
        file_fail_after(-1);
        if (status == STATUS_OK) {
            backend_close(b);
            assert_true(i > 20);
            return;
        }
        assert_int_equal(status, STATUS_IO);
        assert_true(err.text[0]);
        assert_null(b);
    }
}

static void a_tap_without_memory_fails_and_leaves_the_backend_usable(void **state) {
    Fixture *f = *state;
    OracleSeq s = oracle_seq(0);
    OracleTrace trace = {0};
    BatchTap tap = {oracle_trace_see, &trace};
    BatchSeq part = oracle_part(&s, PHASE_PREFILL, 0, 5, WANT_LAST);
    Err err = {0};
    mem_fail_after(0);
    Status status = backend_submit(
        f->d.b, &(Batch){.n_seqs = 1, .seqs = &part, .n_rows = 5, .ids = f->ids, .tap = &tap},
        &err);
    mem_fail_after(-1);
    assert_int_equal(status, STATUS_MEMORY);
    assert_int_equal(backend_wait(f->d.b, &(BatchResult){0}, NULL), STATUS_INVALID);
    float *got = oracle_prefill(&f->d, &s, f->ids, 5, 64, WANT_LAST, NULL);
    s = oracle_seq(1);
    float *want = oracle_prefill(&f->d, &s, f->ids, 5, 64, WANT_LAST, NULL);
    assert_same(got, want, (size_t)f->c->vocab);
    free(got);
    free(want);
}

typedef struct Seen {
    uint64_t done, total;
} Seen;

static void see_progress(void *ctx, const char *what, uint64_t done, uint64_t total) {
    Seen *s = ctx;
    assert_non_null(what);
    assert_true(done >= s->done && done <= total);
    *s = (Seen){done, total};
}

static void progress_ends_at_the_total(void **state) {
    Fixture *f = *state;
    Seen seen = {0};
    Backend *b = NULL;
    ORACLE_OK(backend_open(&b, backend_kind(f->d.b), f->w, &FEW, &(Progress){see_progress, &seen},
                           NULL, err));
    assert_int_equal(seen.done, weights_total_bytes(f->w));
    assert_int_equal(seen.total, seen.done);
    backend_close(b);
}

#define MICRO(test)                                                                                \
    { #test " micro", test, setup_micro, teardown, NULL }
#define MICRO64(test)                                                                              \
    { #test " micro f64", test, setup_micro64, teardown, NULL }
#define SMALL(test)                                                                                \
    { #test " small", test, setup_small, teardown, NULL }
#define FILES(test)                                                                                \
    { #test " tiny-b", test, setup_file, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        MICRO(threads_1_to_4_are_bit_equal),
        SMALL(threads_1_to_4_are_bit_equal),
        MICRO(c2_chunked_prefill_is_bit_equal_to_whole),
        MICRO64(c2_chunked_prefill_is_bit_equal_to_whole),
        MICRO(prefill_is_bit_equal_to_decode),
        MICRO(batch_is_bit_equal_to_single),
        MICRO64(batch_is_bit_equal_to_single),
        MICRO(restored_is_bit_equal_to_live),
        MICRO64(restored_is_bit_equal_to_live),
        MICRO(snapshots_are_bit_equal_to_shorter_prefills),
        MICRO64(snapshots_are_bit_equal_to_shorter_prefills),
        MICRO(copied_slot_with_shared_blocks_is_bit_equal_to_live),
        MICRO64(copied_slot_with_shared_blocks_is_bit_equal_to_live),
        MICRO(position_0_clears_the_slot_and_old_blocks_do_not_matter),
        cmocka_unit_test(carried_ids_give_the_reference_continuation),
        SMALL(sampled_ids_depend_on_seed_and_position_alone),
        SMALL(logits_come_for_the_rows_that_want_them),
        SMALL(a_tap_changes_nothing_and_sees_the_stream),
        SMALL(c4_a_bad_state_is_named_and_leaves_nothing_behind),
        MICRO(a_bad_kv_block_is_named_with_layer_and_first_row),
        MICRO64(a_bad_kv_block_is_named_with_layer_and_first_row),
        MICRO(needs_are_what_host_copies_take),
        MICRO64(needs_are_what_host_copies_take),
        FILES(needs_are_what_host_copies_take),
        SMALL(a_step_allocates_nothing),
        MICRO(each_allocation_failing_in_open_is_reported),
        FILES(each_allocation_failing_in_open_is_reported),
        FILES(each_read_failing_in_open_is_reported),
        SMALL(a_tap_without_memory_fails_and_leaves_the_backend_usable),
        FILES(progress_ends_at_the_total),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
