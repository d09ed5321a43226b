// SPDX-License-Identifier: Apache-2.0
/* test_cpu_equal.c - what must be equal to the bit on the cpu backend: batch and single, threads,
 * chunk sizes, copied and restored state; what a step may not do; how it says what went wrong. */
#include "oracle_checks.h"

#include <unistd.h>

#include "backend/cpu/cpu_features.h"
#include "base/rng.h"

/* Sanitizers make the portable kernels slow; small sizes still cross every chunk edge. */
enum { N_IDS = 300, LONG = ORACLE_IS_SLOW ? 200 : 700 };

typedef struct Fixture {
    Oracle o;
    size_t v; // vocabulary
    int32_t ids[4 * N_IDS];
} Fixture;

static int setup(void **state, const char *name) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    oracle_open(&f->o, name);
    f->v = (size_t)f->o.c->vocab;
    for (size_t i = 0; i < COUNT_OF(f->ids); i++)
        f->ids[i] = (int32_t)(rng_u64(7, i) % (f->v - 8));
    *state = f;
    return 0;
}
static int setup_a(void **state) { return setup(state, "tiny-a"); }
static int setup_b(void **state) { return setup(state, "tiny-b"); }
static int teardown(void **state) {
    Fixture *f = *state;
    oracle_close(&f->o);
    free(f);
    return 0;
}

static const char *const masks[] = {NULL, "avx2,avx512,amx,neon", "amx"};
/* How many of them, from the first on, give different kernels on this machine. */
static size_t n_masks(void) {
    KernelTable best, generic;
    cpu_features_choose(&best, 0, false);
    cpu_features_choose(&generic, ~1u, false);
    if (strcmp(best.matmul.column, generic.matmul.column) == 0)
        return 1;
    return strcmp(best.matmul.column, "amx") == 0 ? 3 : 2;
}

static void device(OracleDevice *d, const Fixture *f, int threads, const char *mask) {
    oracle_device_open(d, f->o.weights, BACKEND_CPU,
                       (BackendPlan){.n_threads = threads, .mask = mask});
}

/* Logits behind a prompt and behind n_more decoded ids, [1 + n_more, V]. */
static float *answer(OracleDevice *d, OracleSeq *s, const int32_t *ids, size_t m, size_t n_more,
                     int32_t chunk) {
    size_t v = (size_t)d->c->vocab;
    float *out = oracle_alloc((1 + n_more) * v, sizeof *out);
    float *row = oracle_prefill(d, s, ids, m, chunk, WANT_LAST, NULL);
    for (size_t i = 0;; i++) {
        memcpy(out + i * v, row, v * sizeof *out);
        free(row);
        if (i == n_more)
            return out;
        row = oracle_decode(d, s, ids[m + i]);
    }
}

static void expect_same(const Fixture *f, const float *a, const float *b, size_t rows,
                        const char *what, int n) {
    for (size_t i = 0; i < rows; i++)
        if (memcmp(a + i * f->v, b + i * f->v, f->v * sizeof *a))
            fail_msg("%s %d: row %zu differs", what, n, i);
}

static void threads_1_to_16_are_equal(void **state) {
    Fixture *f = *state;
    for (size_t k = 0; k < n_masks(); k++) {
        static const int threads[] = {1, 2, 3, 4, 7, 16};
        float *first = NULL;
        for (int i = 0; i < (ORACLE_IS_SLOW ? 2 : (int)COUNT_OF(threads)); i++) {
            OracleDevice d;
            device(&d, f, threads[i], masks[k]);
            OracleSeq s = oracle_seq(1);
            float *got = answer(&d, &s, f->ids, ORACLE_IS_SLOW ? 70 : 150, 4, 704);
            if (first)
                expect_same(f, got, first, 5, "threads", threads[i]);
            first = first ? first : memcpy(oracle_alloc(5 * f->v, 4), got, 5 * f->v * 4);
            free(got);
            oracle_device_close(&d);
        }
        free(first);
    }
}

static void C2_chunk_sizes_are_equal(void **state) {
    Fixture *f = *state;
    static const int32_t chunks[] = {64, 128, 192, 256, 320, 512, 704};
    for (size_t k = 0; k < n_masks(); k++) {
        OracleDevice d;
        device(&d, f, 2, masks[k]);
        OracleSeq s = oracle_seq(0);
        float *whole = answer(&d, &s, f->ids, LONG, 2, 704);
        for (size_t i = 0; i + 1 < COUNT_OF(chunks); i++) {
            if ((i % 3 && k > 0) || (ORACLE_IS_SLOW && chunks[i] > LONG))
                continue;
            OracleSeq t = oracle_seq((int32_t)(i % 4));
            float *got = answer(&d, &t, f->ids, LONG, 2, chunks[i]);
            expect_same(f, got, whole, 3, "chunk", chunks[i]);
            free(got);
        }
        free(whole);
        oracle_device_close(&d);
    }
}

/* All rows of a prompt cut in pieces are those of the whole. */
static void every_row_of_a_chunked_prompt_is_equal(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    float *whole = oracle_prefill(&d, &a, f->ids, 200, 704, WANT_ALL, NULL);
    float *cut = oracle_prefill(&d, &b, f->ids, 200, 64, WANT_ALL, NULL);
    expect_same(f, cut, whole, 200, "chunk", 64);
    free(whole);
    free(cut);
    oracle_device_close(&d);
}

/* Four sequences in one step of mixed phases, against each alone. */
static void C68_batch_and_single_are_equal(void **state) {
    Fixture *f = *state;
    static const size_t lengths[] = {3, 64, 129, 200};
    for (size_t k = 0; k < n_masks(); k++) {
        OracleDevice d;
        device(&d, f, 2, masks[k]);
        float *alone[4];
        for (int32_t i = 0; i < 4; i++) {
            OracleSeq s = oracle_seq(i);
            alone[i] = answer(&d, &s, f->ids + i * N_IDS, lengths[i], 3, 704);
        }
        OracleSeq seqs[4];
        BatchSeq parts[4];
        BatchResult r[4];
        int32_t ids[512], n_rows = 0;
        for (int32_t i = 0; i < 4; i++) { // all prompts in one step
            seqs[i] = oracle_seq(i);
            parts[i] = oracle_part(&seqs[i], PHASE_PREFILL, n_rows, (int32_t)lengths[i], WANT_LAST);
            memcpy(ids + n_rows, f->ids + i * N_IDS, lengths[i] * sizeof *ids);
            n_rows += (int32_t)lengths[i];
        }
        Batch batch = {.n_seqs = 4, .seqs = parts, .n_rows = n_rows, .ids = ids};
        oracle_step(&d, &batch, r);
        for (int32_t i = 0; i < 4; i++)
            expect_same(f, r[i].logits, alone[i], 1, "prompt of sequence", i);
        for (int32_t i = 0; i < 4; i++)
            seqs[i].pos = (int32_t)lengths[i];
        for (size_t step = 0; step < 3; step++) { // decode; sequence 2 is read anew each time
            n_rows = 0;
            for (int32_t i = 0; i < 4; i++) {
                bool is_new = i == 2;
                int32_t n = is_new ? 70 : 1;
                if (is_new)
                    seqs[i].pos = 0;
                parts[i] = oracle_part(&seqs[i], is_new ? PHASE_PREFILL : PHASE_DECODE, n_rows, n,
                                       WANT_LAST);
                memcpy(ids + n_rows, f->ids + i * N_IDS + (is_new ? 0 : lengths[i] + step),
                       (size_t)n * sizeof *ids);
                n_rows += n;
            }
            batch.n_rows = n_rows;
            oracle_step(&d, &batch, r);
            for (int32_t i = 0; i < 4; i++) {
                if (i != 2)
                    expect_same(f, r[i].logits, alone[i] + (step + 1) * f->v, 1,
                                "decode of sequence", i);
                seqs[i].pos++;
            }
        }
        for (int i = 0; i < 4; i++)
            free(alone[i]);
        oracle_device_close(&d);
    }
}

/* Leaves numbers that are none in a slot. */
static void slot_poison(OracleDevice *d, int32_t slot) {
    size_t bytes = backend_slot_host_bytes(d->b);
    void *nan = malloc(bytes);
    memset(nan, 0xff, bytes);
    ORACLE_OK(backend_slot_restore(d->b, slot, nan, err));
    free(nan);
}

/* One run of split_layers: three sequences; a decodes while b (from 64 on, with a snapshot at 128)
 * and c are read. */
typedef struct Split {
    OracleDevice d;
    OracleSeq a, b, c;
    BatchSnap snap;
    int32_t ids[256];
    int32_t step; // layers a step
    int32_t n_decoded;
    float *logits; // what a, b and c gave, [V] each
} Split;

enum { SPLIT_B = 130, SPLIT_C = 70 };

/* One step over layers [layer0, end) for prompts; c may have been left out. */
static void split_step(Fixture *f, Split *s, int32_t layer0, int32_t end, bool has_prompts,
                       bool has_c) {
    BatchSeq parts[3];
    BatchResult r[3];
    bool is_last = end == 0 || end == f->o.c->n_layers;
    BatchWant want = is_last ? WANT_LAST : WANT_NOTHING;
    Batch batch = {.seqs = parts, .ids = s->ids, .layer0 = layer0, .layer_end = end};
    parts[batch.n_seqs++] = oracle_part(&s->a, PHASE_DECODE, 0, 1, WANT_LAST);
    s->ids[batch.n_rows++] = f->ids[200 + s->n_decoded++];
    if (has_prompts && has_c) { // before b: what follows moves when it is left out
        parts[batch.n_seqs++] = oracle_part(&s->c, PHASE_PREFILL, batch.n_rows, SPLIT_C, want);
        memcpy(s->ids + batch.n_rows, f->ids + N_IDS, SPLIT_C * sizeof *s->ids);
        batch.n_rows += SPLIT_C;
    }
    if (has_prompts) {
        parts[batch.n_seqs] = oracle_part(&s->b, PHASE_PREFILL, batch.n_rows, SPLIT_B, want);
        parts[batch.n_seqs].snaps = &s->snap;
        parts[batch.n_seqs++].n_snaps = 1;
        memcpy(s->ids + batch.n_rows, f->ids + 64, SPLIT_B * sizeof *s->ids);
        batch.n_rows += SPLIT_B;
    }
    oracle_step(&s->d, &batch, r);
    s->a.pos++;
    memcpy(s->logits, r[0].logits, f->v * sizeof *s->logits);
    for (int32_t i = 1; i < batch.n_seqs; i++) {
        assert_true(is_last == (r[i].logits != NULL));
        if (is_last)
            memcpy(s->logits + (i == batch.n_seqs - 1 ? 1 : 2) * f->v, r[i].logits,
                   f->v * sizeof *s->logits);
    }
}

/* Reads b and c in pieces of `step` layers, c up to layer `drop` alone, with a step without
 * prompts before the layer `gap`; then what follows b, its snapshot and, if it was read, c. */
static float *split_run(Fixture *f, const char *mask, int32_t step, int32_t drop, int32_t gap) {
    Split s = {.snap = {128, 3}};
    int32_t n_layers = f->o.c->n_layers;
    device(&s.d, f, 2, mask);
    s.a = oracle_seq(0);
    s.b = oracle_seq(1);
    s.c = oracle_seq(2);
    s.logits = oracle_alloc(9 * f->v, sizeof *s.logits);
    memset(s.logits, 0, 9 * f->v * sizeof *s.logits);
    free(oracle_prefill(&s.d, &s.a, f->ids + 100, 100, 704, WANT_LAST, NULL));
    free(oracle_prefill(&s.d, &s.b, f->ids, 64, 704, WANT_LAST, NULL));
    slot_poison(&s.d, s.c.slot);
    for (int32_t at = 0; at < n_layers; at += step) {
        if (at <= gap && gap < at + step && at > 0)
            split_step(f, &s, 0, 0, false, false);
        split_step(f, &s, at, min_i32(at + step, n_layers), true, at < drop);
    }
    s.b.pos += SPLIT_B;
    s.c.pos += SPLIT_C;
    while (s.n_decoded < n_layers + 1) // a has come as far in every run
        split_step(f, &s, 0, 0, false, false);
    OracleSeq mid = s.b;
    mid.pos = s.snap.pos;
    mid.slot = s.snap.slot;
    float *b;
    for (size_t i = 0; i < 2; i++) {
        b = oracle_decode(&s.d, &s.b, f->ids[i]);
        memcpy(s.logits + (3 + i) * f->v, b, f->v * sizeof *b);
        free(b);
    }
    b = oracle_decode(&s.d, &mid, f->ids[17]);
    memcpy(s.logits + 5 * f->v, b, f->v * sizeof *b);
    free(b);
    if (drop >= n_layers) {
        b = oracle_decode(&s.d, &s.c, f->ids[18]);
        memcpy(s.logits + 6 * f->v, b, f->v * sizeof *b);
        free(b);
    }
    oracle_device_close(&s.d);
    return s.logits;
}

/* Prompts that go through the layers in several steps beside a decode, one of which may be given
 * up on the way. */
static void prompts_split_by_layers_are_equal(void **state) {
    Fixture *f = *state;
    int32_t n = f->o.c->n_layers;
    for (size_t k = 0; k < n_masks(); k++) {
        float *whole = split_run(f, masks[k], n, n, n);
        for (int32_t step = 1; step < n; step += ORACLE_IS_SLOW ? 2 : 1)
            for (int32_t drop = 1; drop <= n; drop += drop < n - 1 ? n - 2 : 1) {
                float *got = split_run(f, masks[k], step, drop, (step + drop) % n);
                for (int i = 0; i < 7; i++)
                    if (drop >= n || (i != 2 && i != 6))
                        expect_same(f, got + (size_t)i * f->v, whole + (size_t)i * f->v, 1,
                                    "layers a step", step);
                free(got);
            }
        free(whole);
    }
}

/* A slot and the blocks saved after a prompt, restored elsewhere, go on as the live ones. */
static void restored_and_copied_states_are_equal(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq live = oracle_seq(0), back = oracle_seq(1), copy = oracle_seq(2);
    free(oracle_prefill(&d, &live, f->ids, 128, 704, WANT_LAST, NULL));
    size_t slot_bytes = backend_slot_host_bytes(d.b), block_bytes = backend_block_host_bytes(d.b);
    void *slot = malloc(slot_bytes), *block = malloc(block_bytes);
    ORACLE_OK(backend_slot_save(d.b, live.slot, slot, err));
    ORACLE_OK(backend_slot_restore(d.b, back.slot, slot, err));
    backend_slot_copy(d.b, copy.slot, live.slot);
    for (int i = 0; i < 2; i++) {
        ORACLE_OK(backend_block_save(d.b, live.blocks[i], block, err));
        ORACLE_OK(backend_block_restore(d.b, back.blocks[i], block, err));
        copy.blocks[i] = live.blocks[i]; // full blocks are only read: shared
    }
    back.pos = copy.pos = live.pos;
    OracleSeq *others[] = {&back, &copy};
    float *want = answer(&d, &live, f->ids + 128, 70, 3, 704);
    for (int i = 0; i < 2; i++) {
        float *got = answer(&d, others[i], f->ids + 128, 70, 3, 704);
        expect_same(f, got, want, 4, "restored", i);
        free(got);
    }
    free(want);
    free(slot);
    free(block);
    oracle_device_close(&d);
}

/* States taken inside a prefill are those of prefills that end there. */
static void snapshots_are_equal(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq live = oracle_seq(0);
    BatchSnap snaps[] = {{64, 2}, {192, 3}};
    BatchSeq part = oracle_part(&live, PHASE_PREFILL, 0, 260, WANT_LAST);
    part.snaps = snaps;
    part.n_snaps = 2;
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 260, .ids = f->ids};
    BatchResult r;
    oracle_step(&d, &batch, &r);
    float *want = oracle_alloc(f->v, sizeof *want);
    memcpy(want, r.logits, f->v * sizeof *want);
    for (int i = 0; i < 2; i++) { // on from a snapshot, on the same blocks
        OracleSeq s = live;
        s.slot = snaps[i].slot;
        s.pos = snaps[i].pos;
        float *got = answer(&d, &s, f->ids + s.pos, (size_t)(260 - s.pos), 0, 704);
        expect_same(f, got, want, 1, "snapshot", i);
        free(got);
    }
    free(want);
    oracle_device_close(&d);
}

/* A slot that held another sequence, even a broken one, starts clean at position 0. */
static void C4_a_poisoned_slot_starts_clean(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(0);
    float *want = answer(&d, &a, f->ids, 70, 2, 704);
    size_t block_bytes = backend_block_host_bytes(d.b);
    void *block = malloc(block_bytes);
    memset(block, 0xff, block_bytes);
    slot_poison(&d, 0);
    for (int32_t i = 0; i < ORACLE_SEQS * ORACLE_SEQ_BLOCKS; i++)
        ORACLE_OK(backend_block_restore(d.b, i, block, err));
    float *got = answer(&d, &b, f->ids, 70, 2, 704);
    expect_same(f, got, want, 3, "slot", 0);
    free(got);
    free(want);
    a = oracle_seq(1), b = oracle_seq(0); // decodes from the first token on, too
    want = oracle_decode(&d, &a, 5);
    slot_poison(&d, b.slot);
    got = oracle_decode(&d, &b, 5);
    expect_same(f, got, want, 1, "slot", 1);
    free(got);
    free(want);
    free(block);
    oracle_device_close(&d);
}

/* A state that is no number ends the step with layer and position, for that sequence alone. */
static void a_broken_state_is_named(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq good = oracle_seq(0), bad = oracle_seq(1);
    free(oracle_prefill(&d, &good, f->ids, 64, 704, WANT_LAST, NULL));
    free(oracle_prefill(&d, &bad, f->ids, 64, 704, WANT_LAST, NULL));
    size_t bytes = backend_slot_host_bytes(d.b);
    char *host = malloc(bytes);
    ORACLE_OK(backend_slot_save(d.b, 1, host, err));
    int n_gdn = f->o.c->n_layers - config_n_attn_layers(f->o.c); // poison the second GDN layer
    memset(host + bytes / (size_t)n_gdn, 0xff, 4096);
    for (int phase = 0; phase < 2; phase++) {
        ORACLE_OK(backend_slot_restore(d.b, 1, host, err));
        int32_t n = phase == PHASE_PREFILL ? 5 : 1;
        BatchSeq parts[] = {oracle_part(&good, PHASE_DECODE, 0, 1, WANT_LAST),
                            oracle_part(&bad, (BatchPhase)phase, 1, n, WANT_LAST)};
        parts[0].sampler = 0;
        parts[1].sampler = 1;
        Batch batch = {.n_seqs = 2, .seqs = parts, .n_rows = 1 + n, .ids = f->ids + 64};
        BatchResult r[2];
        ORACLE_OK(backend_submit(d.b, &batch, err));
        ORACLE_OK(backend_wait(d.b, r, err));
        good.pos++;
        assert_int_equal(r[0].bad_layer, -1);
        assert_true(r[0].sample.id >= 0);
        assert_int_equal(r[1].bad_layer, 1);
        assert_int_equal(r[1].bad_pos, 64);
        assert_int_equal(r[1].sample.id, -1);
    }
    // Also where the layers behind it come in another step.
    ORACLE_OK(backend_slot_restore(d.b, 1, host, err));
    for (int32_t layer = 0; layer < f->o.c->n_layers; layer++) {
        BatchSeq part = oracle_part(&bad, PHASE_PREFILL, 0, 5, WANT_NOTHING);
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 5, .ids = f->ids + 64};
        batch.layer0 = layer;
        batch.layer_end = layer + 1;
        BatchResult r;
        ORACLE_OK(backend_submit(d.b, &batch, err));
        ORACLE_OK(backend_wait(d.b, &r, err));
        assert_int_equal(r.bad_layer, layer + 1 < f->o.c->n_layers ? -1 : 1);
    }
    free(host);
    oracle_device_close(&d);
}

/* Sampled ids go on by carry; greedy equals the argmax of the logits. */
static void carried_ids_are_those_fed_by_hand(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    float *row = oracle_prefill(&d, &a, f->ids, 65, 704, WANT_LAST, NULL);
    int32_t want[8];
    for (int i = 0; i < 8; i++) {
        want[i] = oracle_argmax(row, d.c->vocab);
        free(row);
        row = oracle_decode(&d, &a, want[i]);
    }
    free(row);
    BatchResult r;
    for (int i = -1; i < 7; i++) { // two steps in flight
        BatchSeq part = i < 0 ? oracle_part(&b, PHASE_PREFILL, 0, 65, WANT_NOTHING)
                              : oracle_part(&b, PHASE_DECODE, 0, 1, WANT_NOTHING);
        part.sampler = 2;
        part.carry = i < 0 ? -1 : 0;
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = part.n_rows, .ids = f->ids};
        ORACLE_OK(backend_submit(d.b, &batch, err));
        b.pos += part.n_rows;
        if (i >= 0) {
            ORACLE_OK(backend_wait(d.b, &r, err));
            assert_int_equal(r.sample.id, want[i]);
            assert_null(r.logits);
        }
    }
    ORACLE_OK(backend_wait(d.b, &r, err));
    assert_int_equal(r.sample.id, want[7]);
    oracle_device_close(&d);
}

static void a_step_allocates_nothing(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq s = oracle_seq(0);
    int64_t before = mem_count();
    for (int i = 0; i < 3; i++) {
        BatchSeq part = i == 0 ? oracle_part(&s, PHASE_PREFILL, 0, 64, WANT_LAST)
                               : oracle_part(&s, PHASE_DECODE, 0, 1, WANT_LAST);
        part.sampler = 0;
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = part.n_rows, .ids = f->ids};
        BatchResult r;
        oracle_step(&d, &batch, &r);
        s.pos += part.n_rows;
    }
    assert_int_equal(mem_count(), before);
    oracle_device_close(&d);
}

/* Resident bytes of this process, from the system. */
static uint64_t resident_bytes(void) {
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    int n = fscanf(file, "%llu %llu", &size, &resident);
    fclose(file);
    return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* With every block, slot and row used, memory stays inside what was planned. */
static void memory_stays_inside_the_plan(void **state) {
    Fixture *f = *state;
    uint64_t before = resident_bytes();
    if (ORACLE_IS_SLOW || before == 0)
        skip(); // sanitizers keep memory of their own
    BackendPlan plan = {.max_rows = 704,
                        .max_seqs = 4,
                        .n_blocks = ORACLE_SEQS * ORACLE_SEQ_BLOCKS,
                        .n_slots = 4,
                        .n_samplers = 4,
                        .max_ctx = 768,
                        .n_threads = 2};
    BackendNeeds needs;
    ORACLE_OK(backend_needs(&needs, BACKEND_CPU, f->o.weights, &plan, err));
    OracleDevice d;
    oracle_device_open(&d, f->o.weights, BACKEND_CPU, plan);
    for (int32_t i = 0; i < 4; i++) {
        OracleSeq s = oracle_seq(i);
        free(oracle_prefill(&d, &s, f->ids, 704, 704, WANT_ALL, NULL));
        for (int j = 0; j < 3; j++)
            free(oracle_decode(&d, &s, f->ids[j]));
    }
    uint64_t used = resident_bytes() - before;
    printf("%s: planned %.1f MB, used %.1f MB\n", f->o.name, (double)needs.total_bytes / 1e6,
           (double)used / 1e6);
    oracle_device_close(&d);
    // Beside the plan: stacks, the test's own arrays, the last huge page of each of four maps.
    assert_true(used < needs.total_bytes + (24u << 20));
}

/* Every allocation of needs and open fails once; the failure is reported and nothing leaks. */
static void open_reports_missing_memory(void **state) {
    Fixture *f = *state;
    BackendPlan plan = oracle_small_plan(2);
    Status status = STATUS_MEMORY;
    int64_t n = 0;
    for (; status != STATUS_OK; n++) {
        Backend *b = NULL;
        Err err = {0};
        mem_fail_after(n);
        status = backend_open(&b, BACKEND_CPU, f->o.weights, &plan, NULL, NULL, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            backend_close(b);
        } else {
            assert_null(b);
            assert_int_equal(status, STATUS_MEMORY);
            assert_true(err.text[0] != 0);
        }
        assert_true(n < 1000);
    }
    assert_true(n > 10);
}

/* Prefill and decode of the same tokens differ by rounding alone. */
static void prefill_and_decode_agree(void **state) {
    Fixture *f = *state;
    OracleScore score = {0};
    OracleDevice d;
    device(&d, f, 2, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    size_t m = ORACLE_IS_SLOW ? 70 : 140;
    float *want = oracle_prefill(&d, &a, f->ids, m, 704, WANT_ALL, NULL);
    free(oracle_prefill(&d, &b, f->ids, 64, 704, WANT_LAST, NULL));
    for (size_t i = 64; i < m; i++) {
        float *got = oracle_decode(&d, &b, f->ids[i]);
        oracle_score(&score, got, want + i * f->v, 1, d.c->vocab);
        free(got);
    }
    printf("%s, %s: decode against prefill, relative rms %.2g, KL %.2g\n", f->o.name,
           backend_text(d.b), oracle_score_rel(&score), oracle_score_kl(&score));
    bool is_amx = strstr(backend_text(d.b), "matmul amx");
    ORACLE_BELOW(oracle_score_rel(&score), is_amx ? TOL_AMX_PHASES_REL : TOL_CPU_PHASES_REL,
                 "decode against prefill");
    free(want);
    oracle_device_close(&d);
}

/* A context of 68 blocks, cut into parts of 3, from two blocks that stand in it again and again. */
enum { LONG_BLOCKS = 68, LONG_POS = (LONG_BLOCKS - 1) * KV_BLOCK, LONG_ROWS = 3 };

/* One step of one sequence on `blocks`, with `beside` (NULL: alone) as a second one of the step;
 * copies its logits. */
static void long_step(OracleDevice *d, BatchPhase phase, int32_t slot, const int32_t *blocks,
                      int32_t pos, const int32_t *ids, OracleSeq *beside, float *out) {
    int32_t n = phase == PHASE_PREFILL ? LONG_ROWS : 1, in[LONG_ROWS + 1];
    memcpy(in, ids, sizeof *in * (size_t)n);
    in[n] = 5;
    OracleSeq s = {.slot = slot, .pos = pos};
    BatchSeq parts[2] = {oracle_part(&s, phase, 0, n, n > 1 ? WANT_ALL : WANT_LAST)};
    parts[0].blocks = blocks;
    if (beside)
        parts[1] = oracle_part(beside, PHASE_DECODE, n, 1, WANT_NOTHING);
    Batch batch = {
        .n_seqs = 1 + (beside != NULL), .seqs = parts, .n_rows = n + (beside != NULL), .ids = in};
    BatchResult r[2];
    ORACLE_OK(backend_submit(d->b, &batch, err));
    ORACLE_OK(backend_wait(d->b, r, err));
    memcpy(out, r[0].logits, sizeof *out * (size_t)n * (size_t)d->c->vocab);
}

/* Decode over a context that is cut into many parts agrees with prefill, which cuts nothing, and is
 * equal for any number of threads and beside a row of few parts. */
static void contexts_of_many_parts_are_equal(void **state) {
    Fixture *f = *state;
    static const int threads[] = {1, 2, 3, 7, 16};
    float *first = oracle_alloc(LONG_ROWS * f->v, sizeof *first);
    float *got = oracle_alloc(LONG_ROWS * f->v, sizeof *got);
    for (size_t k = 0; k < n_masks(); k++)
        for (int i = 0; i < (ORACLE_IS_SLOW ? 2 : (int)COUNT_OF(threads)); i++) {
            OracleDevice d;
            oracle_device_open(&d, f->o.weights, BACKEND_CPU,
                               (BackendPlan){.n_threads = threads[i],
                                             .mask = masks[k],
                                             .max_ctx = LONG_BLOCKS * KV_BLOCK});
            OracleSeq s = oracle_seq(0), beside = oracle_seq(1);
            free(oracle_prefill(&d, &s, f->ids, 128, 128, WANT_LAST, NULL));
            free(oracle_prefill(&d, &beside, f->ids, 64, 64, WANT_LAST, NULL));
            int32_t blocks[LONG_BLOCKS];
            for (int32_t j = 0; j < LONG_BLOCKS; j++)
                blocks[j] = s.blocks[j % 3 == 1];
            blocks[LONG_BLOCKS - 1] = s.blocks[2]; // written, by both in turn
            backend_slot_copy(d.b, 2, s.slot);
            for (int32_t row = 0; row < LONG_ROWS; row++)
                long_step(&d, PHASE_DECODE, s.slot, blocks, LONG_POS + row, f->ids + 200 + row,
                          i % 2 ? &beside : NULL, got + (size_t)row * f->v);
            if (i > 0) {
                expect_same(f, got, first, LONG_ROWS, "many parts, threads", threads[i]);
            } else {
                OracleScore score = {0};
                long_step(&d, PHASE_PREFILL, 2, blocks, LONG_POS, f->ids + 200, NULL, first);
                oracle_score(&score, got, first, LONG_ROWS, d.c->vocab);
                printf("%s, %s: decode over many parts against prefill, relative rms %.2g\n",
                       f->o.name, backend_text(d.b), oracle_score_rel(&score));
                // These few rows: 8e-5 and 2e-4; with one part lost 8e-4 and 2e-3.
                bool is_amx = strstr(backend_text(d.b), "matmul amx");
                ORACLE_BELOW(oracle_score_rel(&score),
                             is_amx ? TOL_AMX_PHASES_REL : TOL_CPU_PHASES_REL / 10, "many parts");
                memcpy(first, got, sizeof *got * LONG_ROWS * f->v);
            }
            oracle_device_close(&d);
        }
    free(first);
    free(got);
}

static void wrong_masks_and_too_many_rows_are_refused(void **state) {
    Fixture *f = *state;
    BackendNeeds needs;
    BackendPlan plan = {.max_rows = 64, .max_seqs = 1, .n_blocks = 1, .n_slots = 1, .max_ctx = 64};
    Err err = {0};
    plan.mask = "avx1024";
    assert_int_equal(backend_needs(&needs, BACKEND_CPU, f->o.weights, &plan, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "avx1024"));
    plan.mask = NULL;
    plan.max_rows = 1 << 22;
    assert_int_equal(backend_needs(&needs, BACKEND_CPU, f->o.weights, &plan, &err),
                     STATUS_TOO_LARGE);
    assert_non_null(strstr(err.text, "4194304"));
}

#define BOTH(test)                                                                                 \
    {#test " tiny-a", test, setup_a, teardown, NULL}, {                                            \
#test " tiny-b", test, setup_b, teardown, NULL                                             \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(threads_1_to_16_are_equal),
        BOTH(C2_chunk_sizes_are_equal),
        BOTH(every_row_of_a_chunked_prompt_is_equal),
        BOTH(C68_batch_and_single_are_equal),
        BOTH(prompts_split_by_layers_are_equal),
        BOTH(restored_and_copied_states_are_equal),
        BOTH(snapshots_are_equal),
        BOTH(C4_a_poisoned_slot_starts_clean),
        BOTH(a_broken_state_is_named),
        BOTH(carried_ids_are_those_fed_by_hand),
        BOTH(a_step_allocates_nothing),
        BOTH(prefill_and_decode_agree),
        BOTH(contexts_of_many_parts_are_equal),
        BOTH(memory_stays_inside_the_plan),
        {"open_reports_missing_memory", open_reports_missing_memory, setup_a, teardown, NULL},
        {"wrong_masks_and_too_many_rows_are_refused", wrong_masks_and_too_many_rows_are_refused,
         setup_a, teardown, NULL},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
