// SPDX-License-Identifier: Apache-2.0
/* test_backend.c - the dispatcher: names, plans and batches that must be refused, by name. */
#include "oracle.h"

#include "backend/cpu/cpu_features.h"

typedef struct Fixture {
    Oracle o;
    OracleDevice d;
} Fixture;

static int setup(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    oracle_open(&f->o, "tiny-b");
    oracle_device_open(&f->d, f->o.weights, BACKEND_REF,
                       (BackendPlan){.n_threads = 1, .max_rows = 96, .max_logits = 80});
    *state = f;
    return 0;
}

static int teardown(void **state) {
    Fixture *f = *state;
    oracle_device_close(&f->d);
    oracle_close(&f->o);
    free(f);
    return 0;
}

static void names_go_both_ways(void **state) {
    UNUSED(state);
    for (int k = 0; k < BACKEND_N; k++)
        assert_int_equal(backend_kind_find(backend_kind_name((BackendKind)k)), k);
    assert_int_equal(backend_kind_find("refe"), BACKEND_N);
    assert_int_equal(backend_kind_find(""), BACKEND_N);
    assert_string_equal(backend_kind_name(BACKEND_N), "unknown");
}

static void absent_backends_say_so(void **state) {
    Fixture *f = *state;
    char text[64] = "x";
    assert_true(backend_is_available(BACKEND_REF, text, sizeof text));
    assert_true(backend_is_available(BACKEND_REF64, NULL, 0));
    assert_true(backend_is_available(BACKEND_AUTO, NULL, 0));
    assert_false(backend_is_available(BACKEND_METAL, text, sizeof text));
    assert_string_equal(text, "not built in");
    assert_false(backend_is_available(BACKEND_METAL, text, 4));
    assert_string_equal(text, "not");
    Backend *b = NULL;
    Err err = {0};
    assert_int_equal(backend_open(&b, BACKEND_METAL, f->o.weights, &f->d.plan, NULL, NULL, &err),
                     STATUS_UNSUPPORTED);
    assert_string_equal(err.text, "backend metal: not built in");
    assert_null(b);
    backend_close(NULL);
}

/* What a device needs to be planned for, and what `auto` comes to where there is no card. */
static void facts_of_a_kind(void **state) {
    Fixture *f = *state;
    char text[256] = "";
    BackendKind kind = backend_kind_resolve(BACKEND_AUTO);
    bool has_card = backend_is_available(BACKEND_CUDA, text, sizeof text);
    assert_int_equal(kind, has_card ? BACKEND_CUDA : BACKEND_CPU);
    int32_t of_cpu = cpu_features_amx() == AMX_GRANTED ? 2048 : 1024;
    assert_int_equal(backend_chunk_rows(BACKEND_CPU), of_cpu);
    assert_true(has_card || backend_chunk_rows(BACKEND_AUTO) == of_cpu);
    assert_int_equal(backend_chunk_rows(BACKEND_REF), 1024);
    assert_true(backend_memory_free(BACKEND_CPU, 0) > 0);
    kind = backend_kind_for(BACKEND_AUTO, f->o.weights, &f->d.plan, NULL);
    assert_true(kind == BACKEND_CPU || (kind == BACKEND_CUDA && has_card));
    assert_int_equal(backend_kind_for(BACKEND_METAL, f->o.weights, &f->d.plan, NULL),
                     BACKEND_METAL);
}

static void facts_of_an_opened_backend(void **state) {
    Fixture *f = *state;
    assert_int_equal(backend_kind(f->d.b), BACKEND_REF);
    assert_memory_equal(backend_config(f->d.b), f->o.c, sizeof *f->o.c);
    assert_string_equal(backend_text(f->d.b), "ref: plain C, f32, 1 threads");
}

static void bad_plans_are_refused_by_field(void **state) {
    Fixture *f = *state;
    static const struct {
        size_t at;
        int32_t value;
        const char *name;
    } cases[] = {
        {offsetof(BackendPlan, max_rows), 0, "max_rows"},
        {offsetof(BackendPlan, max_rows), LIMIT_CONTEXT + 1, "max_rows"},
        {offsetof(BackendPlan, max_seqs), -1, "max_seqs"},
        {offsetof(BackendPlan, n_blocks), 0, "n_blocks"},
        {offsetof(BackendPlan, n_slots), 0, "n_slots"},
        {offsetof(BackendPlan, n_samplers), -1, "n_samplers"},
        {offsetof(BackendPlan, max_ctx), 0, "max_ctx"},
        {offsetof(BackendPlan, max_ctx), LIMIT_CONTEXT + 1, "max_ctx"},
        {offsetof(BackendPlan, max_logits), 97, "max_logits"},
        {offsetof(BackendPlan, n_threads), LIMIT_THREADS + 1, "n_threads"},
        {offsetof(BackendPlan, n_threads), -1, "n_threads"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        BackendPlan plan = f->d.plan;
        memcpy((char *)&plan + cases[i].at, &cases[i].value, sizeof(int32_t));
        Backend *b = NULL;
        BackendNeeds needs;
        Err err = {0};
        assert_int_equal(backend_needs(&needs, BACKEND_REF, f->o.weights, &plan, &err),
                         STATUS_INVALID);
        if (!strstr(err.text, cases[i].name))
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(backend_open(&b, BACKEND_REF, f->o.weights, &plan, NULL, NULL, NULL),
                         STATUS_INVALID);
        assert_null(b);
    }
}

static void a_plan_beyond_the_address_space_is_refused(void **state) {
    Fixture *f = *state;
    BackendPlan plan = f->d.plan;
    plan.n_slots = 1 << 27; // of 1.6 MB: more than 2^47 bytes
    Backend *b = NULL;
    Err err = {0};
    assert_int_equal(backend_open(&b, BACKEND_REF, f->o.weights, &plan, NULL, NULL, &err),
                     STATUS_MEMORY);
    assert_null(b);
}

/* ---- batches ---- */

typedef struct Bad {
    BatchSeq seqs[2];
    int32_t blocks[2][ORACLE_SEQ_BLOCKS];
    int32_t ids[96];
    BatchSnap snap; // of the prefill
    Batch batch;
} Bad;

/* A good batch of a prefill of 70 rows and a decode at position 130. */
static Bad good_batch(void) {
    Bad t = {0};
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    b.pos = 130;
    t.seqs[0] = oracle_part(&a, PHASE_PREFILL, 0, 70, WANT_ALL);
    t.seqs[1] = oracle_part(&b, PHASE_DECODE, 70, 1, WANT_LAST);
    t.seqs[0].sampler = 0;
    t.seqs[1].sampler = 1;
    memcpy(t.blocks[0], a.blocks, sizeof a.blocks);
    memcpy(t.blocks[1], b.blocks, sizeof b.blocks);
    t.snap = (BatchSnap){.pos = 64, .slot = 3};
    t.seqs[0].n_snaps = 1;
    t.batch = (Batch){.n_seqs = 2, .n_rows = 71};
    return t;
}

static Status submit(Backend *b, Bad *t, Err *bad) {
    t->seqs[0].blocks = t->blocks[0];
    t->seqs[1].blocks = t->blocks[1];
    t->seqs[0].snaps = &t->snap;
    t->batch.seqs = t->seqs;
    t->batch.ids = t->ids;
    Status status = backend_submit(b, &t->batch, bad);
    if (status == STATUS_OK)
        ORACLE_OK(backend_wait(b, (BatchResult[2]){0}, err));
    return status;
}

/* `change` spoils a good batch `t`; the error must hold `words`. */
#define REFUSED(change, words)                                                                     \
    do {                                                                                           \
        t = good_batch();                                                                          \
        Err bad_err = {0};                                                                         \
        change;                                                                                    \
        assert_int_equal(submit(b, &t, &bad_err), STATUS_INVALID);                                 \
        if (!strstr(bad_err.text, words))                                                          \
            fail_msg("%s: %s", #change, bad_err.text);                                             \
    } while (0)

static void malformed_batches_are_refused_by_name(void **state) {
    Fixture *f = *state;
    Backend *b = f->d.b;
    const int32_t v = f->o.c->vocab;
    Bad t;
    REFUSED(t.batch.n_seqs = 0, "sequences: expected 1 to 4, found 0");
    REFUSED(t.batch.n_seqs = 5, "sequences: expected 1 to 4, found 5");
    REFUSED(t.batch.n_rows = 0, "rows: expected 1 to 96, found 0");
    REFUSED(t.batch.n_rows = 97, "rows: expected 1 to 96, found 97");
    REFUSED(t.batch.n_rows = 72, "rows: expected 71, those of its sequences, found 72");
    REFUSED(t.batch.n_rows = 70, "sequence 1: n_rows: expected 1 to 0, found 1");
    REFUSED(t.seqs[0].phase = (BatchPhase)7, "phase");
    REFUSED(t.seqs[0].row0 = 1, "sequence 0: row0: expected 0, found 1");
    REFUSED(t.seqs[1].row0 = 69, "sequence 1: row0: expected 70, found 69");
    REFUSED(t.seqs[0].n_rows = 0, "sequence 0: n_rows: expected 1 to 71, found 0");
    REFUSED(t.seqs[0].n_rows = 72, "sequence 0: n_rows: expected 1 to 71, found 72");
    REFUSED(t.seqs[0].phase = PHASE_DECODE, "expected one row in decode, found 70");
    REFUSED(t.seqs[1].pos0 = -1, "sequence 1: positions");
    REFUSED(t.seqs[1].pos0 = 768, "expected inside 0 to 767, found 768 and 1 rows");
    REFUSED(t.seqs[0].pos0 = 704, "expected inside 0 to 767, found 704 and 70 rows");
    REFUSED(t.seqs[0].pos0 = INT32_MAX, "sequence 0: positions");
    REFUSED(t.seqs[0].pos0 = 32, "multiple of 64, found 32");
    REFUSED(t.seqs[0].want = (BatchWant)9, "found 9");
    REFUSED(t.seqs[1].want = WANT_ALL, "sequence 1: expected no logits");
    REFUSED(t.seqs[0].slot = -1, "sequence 0: expected a state slot of the plan, found -1");
    REFUSED(t.seqs[0].slot = 4, "state slot of the plan, found 4");
    REFUSED(t.seqs[1].slot = 0, "sequence 1: expected a state slot of its own, found 0");
    REFUSED(t.snap = ((BatchSnap){0, 2}), "snapshots at ascending multiples of 64");
    REFUSED(t.snap = ((BatchSnap){32, 2}), "inside the step, found 32");
    REFUSED(t.snap = ((BatchSnap){128, 2}), "inside the step, found 128");
    REFUSED(t.snap = ((BatchSnap){64, 4}), "state slot of its own for a snapshot, found 4");
    REFUSED(t.snap = ((BatchSnap){64, -1}), "state slot of its own for a snapshot, found -1");
    REFUSED(t.snap = ((BatchSnap){64, 0}), "state slot of its own for a snapshot, found 0");
    REFUSED(t.snap = ((BatchSnap){64, 1}), "sequence 1: expected a state slot of its own, found 1");
    REFUSED(t.seqs[1].n_snaps = 1, "sequence 1: expected snapshots in prefill only, found 1");
    REFUSED(t.seqs[0].n_snaps = -1, "snapshots in prefill only, found -1");
    REFUSED(t.seqs[0].sampler = -2, "sampler of the plan or -1, found -2");
    REFUSED(t.seqs[0].sampler = 4, "sampler of the plan or -1, found 4");
    REFUSED(t.seqs[1].sampler = 0, "sampler of its own, found 0");
    REFUSED(t.blocks[0][1] = -1, "KV block of the plan, found -1");
    REFUSED(t.blocks[1][0] = 48, "KV block of the plan, found 48");
    REFUSED(t.blocks[0][1] = t.blocks[0][0], "block of its own to write");
    REFUSED(t.blocks[1][2] = t.blocks[0][1], "sequence 1: expected a KV block of its own to write");
    REFUSED(t.blocks[1][0] = t.blocks[0][0], "sequence 1: expected KV blocks to read that nobody");
    REFUSED(t.blocks[1][0] = t.blocks[1][2], "sequence 1: expected KV blocks to read that nobody");
    REFUSED(t.ids[3] = -1, "row 3: id: expected 0 to 999, found -1");
    REFUSED(t.ids[70] = v, "row 70: id: expected 0 to 999, found 1000");
    REFUSED(t.seqs[1].carry = 0, "carry"); // there was no step
    REFUSED(t.seqs[1].carry = -2, "carry");
    t = good_batch();
    t.seqs[0].n_rows = 81;
    t.seqs[1].row0 = 81;
    t.batch.n_rows = 82;
    Err err = {0};
    assert_int_equal(submit(b, &t, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "rows with logits: expected at most 80, found 82"));
}

/* A good batch whose prefill goes through layers [first, end). */
static Bad half_batch(const Fixture *f, int32_t first, int32_t end) {
    Bad t = good_batch();
    t.batch.layer0 = first;
    t.batch.layer_end = end;
    if (end && end < f->o.c->n_layers) {
        t.seqs[0].want = WANT_NOTHING;
        t.seqs[0].sampler = -1;
    }
    return t;
}

static void layers_are_split_where_the_device_can_and_in_order(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    Bad t;
    Backend *b = f->d.b;
    const int32_t n = f->o.c->n_layers;
    assert_false(backend_splits_layers(b));
    REFUSED(t.batch.layer_end = 1, "layers: expected all, found 0 to 1");
    t = good_batch();
    t.batch.layer_end = n;
    ORACLE_OK(submit(b, &t, err));
    oracle_device_open(&d, f->o.weights, BACKEND_CPU, (BackendPlan){.n_threads = 1});
    b = d.b;
    assert_true(backend_splits_layers(b));
    REFUSED(t = half_batch(f, 0, n + 1), "layers: expected to begin at 0 or 0 and end at");
    REFUSED(t = half_batch(f, -1, n), "layers: expected");
    REFUSED(t = half_batch(f, 0, -1), "layers: expected");
    REFUSED(t = half_batch(f, 1, 2), "layers: expected to begin at 0 or 0");
    REFUSED((t = half_batch(f, 0, 1), t.seqs[0].want = WANT_LAST),
            "no logits in the middle of the layers");
    REFUSED((t = half_batch(f, 0, 1), t.seqs[0].sampler = 2),
            "no logits in the middle of the layers");
    BatchTap tap = {0};
    REFUSED((t = half_batch(f, 0, 1), t.batch.tap = &tap), "layers: expected all, found 0 to 1");
    t = half_batch(f, 0, 1);
    ORACLE_OK(submit(b, &t, err));
    REFUSED(t = half_batch(f, 2, n), "layers: expected to begin at 0 or 1");
    REFUSED(t = half_batch(f, 1, 1), "layers: expected");
    REFUSED((t = half_batch(f, 1, n), t.seqs[0].slot = 2),
            "sequence 0: expected rows that the step before");
    REFUSED(
        (t = half_batch(f, 1, n), t.seqs[0].n_rows = 71, t.seqs[1].row0 = 71, t.batch.n_rows = 72),
        "sequence 0: expected rows that the step before");
    t = half_batch(f, 0, 0);
    t.seqs[1].row0 = 0; // a decode alone leaves them where they are
    t.batch = (Batch){.n_seqs = 1, .n_rows = 1};
    t.seqs[0] = t.seqs[1];
    memcpy(t.blocks[0], t.blocks[1], sizeof t.blocks[0]);
    ORACLE_OK(submit(b, &t, err));
    t = half_batch(f, 1, 2);
    ORACLE_OK(submit(b, &t, err));
    t = half_batch(f, 0, 0); // prompts that begin end what was under way
    ORACLE_OK(submit(b, &t, err));
    REFUSED(t = half_batch(f, 2, n), "layers: expected to begin at 0 or 0");
    BackendCounters counters;
    backend_counters(b, &counters);
    assert_true(counters.prompt_ns > 0);
    oracle_device_close(&d);
}

static void good_batches_pass(void **state) {
    Fixture *f = *state;
    Bad t = good_batch();
    ORACLE_OK(submit(f->d.b, &t, err));
    t.seqs[1].carry = 1; // sampled by the step before
    t.ids[70] = -5;      // not looked at
    ORACLE_OK(submit(f->d.b, &t, err));
    t.seqs[0].carry = 77;            // ignored in prefill
    t.blocks[1][1] = t.blocks[1][0]; // what is only read may stand twice
    ORACLE_OK(submit(f->d.b, &t, err));
}

static void carry_needs_a_sampled_sequence_of_the_step_before(void **state) {
    Fixture *f = *state;
    Backend *b = f->d.b;
    Bad t = good_batch();
    t.seqs[1].sampler = -1;
    ORACLE_OK(submit(b, &t, err));
    REFUSED(t.seqs[1].carry = 1, "carry: expected -1 or a sequence of the step before");
    t = good_batch();
    ORACLE_OK(submit(b, &t, err));
    REFUSED(t.seqs[1].carry = 2, "carry");
    t = good_batch();
    t.seqs[1].carry = 0;
    ORACLE_OK(submit(b, &t, err)); // the refused batches were no step
}

static void wait_without_a_step_is_refused(void **state) {
    Fixture *f = *state;
    BatchResult r;
    Err err = {0};
    assert_int_equal(backend_wait(f->d.b, &r, &err), STATUS_INVALID);
    assert_string_equal(err.text, "no step is unfinished");
}

static void numbers_out_of_range_are_refused(void **state) {
    Fixture *f = *state;
    Backend *b = f->d.b;
    char host[1];
    double s[1], w[1];
    SampleParams p = {0};
    static const int32_t slots[] = {-1, ORACLE_SEQS}, blocks[] = {-1, 48};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(backend_slot_save(b, slots[i], host, NULL), STATUS_INVALID);
        assert_int_equal(backend_slot_restore(b, slots[i], host, NULL), STATUS_INVALID);
        assert_int_equal(backend_block_save(b, blocks[i], host, NULL), STATUS_INVALID);
        assert_int_equal(backend_block_restore(b, blocks[i], host, NULL), STATUS_INVALID);
        assert_int_equal(backend_sampler_set(b, slots[i], &p, NULL, 0, 0, NULL), STATUS_INVALID);
        assert_int_equal(backend_slot_peek(b, slots[i], 0, s, w, NULL), STATUS_INVALID);
        assert_int_equal(backend_slot_peek(b, 0, slots[i], s, w, NULL), STATUS_INVALID);
    }
    Err err = {0};
    assert_int_equal(backend_slot_peek(b, 0, 3, s, w, &err), STATUS_INVALID);
    assert_string_equal(err.text, "layer 3 has no recurrent state");
    p.temperature = -1;
    assert_int_equal(backend_sampler_set(b, 0, &p, NULL, 0, 0, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "temperature"));
}

#define LIST_REFUSED(words, ...)                                                                   \
    do {                                                                                           \
        const BackendCopy bad_[] = {{.index = 1, .to = host}, __VA_ARGS__};                        \
        Err bad_err_ = {0};                                                                        \
        uint64_t bad_ticket_ = 77;                                                                 \
        assert_int_equal(                                                                          \
            backend_copy_begin(b, bad_, (int32_t)COUNT_OF(bad_), &bad_ticket_, &bad_err_),         \
            STATUS_INVALID);                                                                       \
        assert_string_equal(bad_err_.text, words);                                                 \
        assert_int_equal(bad_ticket_, 77);                                                         \
    } while (0)

/* Of a list that is not good nothing is done, and it has no number. */
static void malformed_lists_of_copies_are_refused_by_name(void **state) {
    Fixture *f = *state;
    Backend *b = f->d.b;
    size_t n = (size_t)backend_block_host_bytes(b);
    char *host = calloc(1, n);
    uint64_t ticket = 77;
    bool is_finished = false;
    Err bad = {0};
    assert_non_null(host);
    memset(host, 7, n);
    LIST_REFUSED("copy 1: KV block: expected 0 to 47, found 48", {.index = 48, .to = host});
    LIST_REFUSED("copy 1: KV block: expected 0 to 47, found -1", {.index = -1, .from = host});
    LIST_REFUSED("copy 1: state slot: expected 0 to 3, found 4",
                 {.is_slot = true, .index = 4, .to = host});
    LIST_REFUSED("copy 2: state slot: expected 0 to 3, found -1", {.index = 2, .to = host},
                 {.is_slot = true, .index = -1, .to = host});
    LIST_REFUSED("copy 1: state slot 2: expected host memory to save to or to restore from, found "
                 "none",
                 {.is_slot = true, .index = 2});
    LIST_REFUSED("copy 1: KV block 3: expected host memory to save to or to restore from, found "
                 "both",
                 {.index = 3, .to = host, .from = host});
    for (int32_t i = -1; i < 1; i++) {
        assert_int_equal(backend_copy_begin(b, NULL, i, &ticket, &bad), STATUS_INVALID);
        assert_string_equal(bad.text, i ? "copies: expected at least 1, found -1"
                                        : "copies: expected at least 1, found 0");
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(host[i], 7);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(backend_copy_wait(b, i, &bad), STATUS_INVALID);
        assert_int_equal(backend_copy_poll(b, i, &is_finished, &bad), STATUS_INVALID);
        assert_string_equal(bad.text, i ? "copies: ticket: expected 1 to 0, found 1"
                                        : "copies: ticket: expected 1 to 0, found 0");
    }
    assert_false(is_finished);
    const BackendCopy good = {.index = 1, .to = host};
    ORACLE_OK(backend_copy_begin(b, &good, 1, &ticket, err));
    assert_int_equal(ticket, 1);
    assert_int_equal(backend_copy_wait(b, 2, &bad), STATUS_INVALID);
    assert_string_equal(bad.text, "copies: ticket: expected 1 to 1, found 2");
    free(host);
}

/* Copies of a list take effect in its order: a slot and a block are exchanged by way of memory that
 * the same list writes. ref and cpu are finished when the call returns. */
static void lists_of_copies_are_made_in_their_order(void **state) {
    Fixture *f = *state;
    static const BackendKind kinds[] = {BACKEND_REF, BACKEND_REF64, BACKEND_CPU};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        OracleDevice d;
        oracle_device_open(&d, f->o.weights, kinds[k], (BackendPlan){.n_threads = 1});
        Backend *b = d.b;
        size_t slot = backend_slot_host_bytes(b), block = backend_block_host_bytes(b);
        char *host = backend_host_alloc(b, 3 * (slot + block));
        char *two = host + slot + block, *got = host + 2 * (slot + block);
        assert_non_null(host);
        memset(two, 1, slot + block);
        const BackendCopy list[] = {
            {.is_slot = true, .index = 2, .from = two},  // slot 2 and block 7 are of ones
            {.index = 7, .from = two},                   //
            {.is_slot = true, .index = 2, .to = host},   // to 0 and 3
            {.index = 7, .to = host + slot},             //
            {.is_slot = true, .index = 0, .from = host}, //
            {.index = 3, .from = host + slot},           //
            {.is_slot = true, .index = 1, .to = got},    // never written: zeros
            {.is_slot = true, .index = 2, .from = got},  //
        };
        uint64_t ticket = 0;
        bool is_finished = false;
        int64_t before = mem_count();
        ORACLE_OK(backend_copy_begin(b, list, (int32_t)COUNT_OF(list), &ticket, err));
        ORACLE_OK(backend_copy_poll(b, ticket, &is_finished, err));
        assert_true(is_finished);
        ORACLE_OK(backend_copy_wait(b, ticket, err));
        assert_int_equal(mem_count(), before);
        memset(host, 9, slot + block);
        ORACLE_OK(backend_slot_save(b, 0, host, err));
        ORACLE_OK(backend_block_save(b, 3, host + slot, err));
        assert_memory_equal(host, two, slot + block);
        ORACLE_OK(backend_slot_save(b, 2, host, err));
        for (size_t i = 0; i < slot; i++)
            assert_int_equal(host[i], 0);
        backend_host_free(b, host);
        backend_host_free(b, NULL);
        mem_fail_after(0);
        assert_null(backend_host_alloc(b, 1));
        mem_fail_after(-1);
        oracle_device_close(&d);
    }
}

static void a_backend_that_times_no_stages_says_none(void **state) {
    Fixture *f = *state;
    BackendStage stages[4];
    backend_profile_set(f->d.b, true);
    OracleSeq s = oracle_seq(0);
    oracle_prefill(&f->d, &s, (const int32_t[]){1, 2, 3}, 3, 64, WANT_NOTHING, NULL);
    assert_int_equal(backend_profile(f->d.b, stages, 4), 0);
    assert_string_equal(backend_stage_name(STAGE_GDN_IN), "gdn in");
    assert_string_equal(backend_stage_name(STAGE_SAMPLE), "sampling");
    assert_string_equal(backend_stage_name(STAGE_N), "unknown");
}

/* Runs 3 rows of prompt and two decoded rows; returns the stages that were timed. */
static int stages_of_a_run(OracleDevice *d, BackendStage *out, int max) {
    OracleSeq s = oracle_seq(0);
    oracle_prefill(d, &s, (const int32_t[]){1, 2, 3}, 3, 64, WANT_NOTHING, NULL);
    free(oracle_decode(d, &s, 4));
    free(oracle_decode(d, &s, 5));
    return backend_profile(d->b, out, max);
}

static void cpu_times_every_stage_of_both_phases_while_it_is_told_to(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    BackendStage stages[2 * STAGE_N];
    oracle_device_open(&d, f->o.weights, BACKEND_CPU, (BackendPlan){.n_threads = 2});
    assert_int_equal(stages_of_a_run(&d, stages, 2 * STAGE_N), 0);
    backend_profile_set(d.b, true);
    // the head of the prompt is not wanted; all the rest ran
    int n = stages_of_a_run(&d, stages, 2 * STAGE_N);
    assert_int_equal(n, 2 * STAGE_N - 1);
    int n_gdn = f->o.c->n_layers - config_n_attn_layers(f->o.c);
    for (int i = 0; i < n; i++) {
        int n_steps = stages[i].phase == PHASE_DECODE ? 2 : 1;
        bool is_gdn = stages[i].id >= STAGE_GDN_IN && stages[i].id <= STAGE_GDN_OUT;
        bool is_attn = stages[i].id >= STAGE_ATTN_IN && stages[i].id <= STAGE_ATTN_OUT;
        bool is_once = stages[i].id == STAGE_EMBED || stages[i].id == STAGE_HEAD ||
                       stages[i].id == STAGE_SAMPLE;
        int n_layers = is_once   ? 1
                       : is_gdn  ? n_gdn
                       : is_attn ? f->o.c->n_layers - n_gdn
                                 : f->o.c->n_layers;
        if (stages[i].n_runs != (uint64_t)(n_steps * n_layers))
            fail_msg("%s: expected %d runs, found %d", backend_stage_name(stages[i].id),
                     n_steps * n_layers, (int)stages[i].n_runs);
        assert_true(stages[i].seconds >= 0 && stages[i].seconds < 60);
        if (i > 0)
            assert_true(stages[i].phase > stages[i - 1].phase || stages[i].id > stages[i - 1].id);
    }
    stages[3].n_runs = 77;
    assert_int_equal(backend_profile(d.b, stages, 3), n); // no more are written than there is room
    assert_int_equal(stages[3].n_runs, 77);
    backend_profile_set(d.b, true); // anew
    assert_int_equal(backend_profile(d.b, stages, 1), 0);
    backend_profile_set(d.b, false);
    assert_int_equal(stages_of_a_run(&d, stages, 1), 0);
    oracle_device_close(&d);
}

static void a_profile_changes_no_bit(void **state) {
    Fixture *f = *state;
    float *logits[2];
    size_t n = (size_t)f->o.c->vocab;
    for (int i = 0; i < 2; i++) {
        OracleDevice d;
        oracle_device_open(&d, f->o.weights, BACKEND_CPU, (BackendPlan){.n_threads = 2});
        backend_profile_set(d.b, i == 1);
        OracleSeq s = oracle_seq(0);
        oracle_prefill(&d, &s, (const int32_t[]){1, 2, 3}, 3, 64, WANT_NOTHING, NULL);
        logits[i] = oracle_decode(&d, &s, 4);
        oracle_device_close(&d);
    }
    assert_memory_equal(logits[0], logits[1], n * sizeof(float));
    free(logits[0]);
    free(logits[1]);
}

static void the_meter_waits_for_no_step(void **state) {
    Fixture *f = *state;
    BackendMeter m = {0};
    BatchResult r;
    Err refused = {0};
    ORACLE_OK(backend_meter(f->d.b, &m, 16 << 20, 0.001, err));
    assert_true(m.read_gb_s > 0 && m.matrix_tflops > 0 && m.unit[0]);
    OracleSeq s = oracle_seq(0);
    BatchSeq part = oracle_part(&s, PHASE_PREFILL, 0, 1, WANT_NOTHING);
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = (const int32_t[]){1}};
    ORACLE_OK(backend_submit(f->d.b, &batch, err));
    assert_int_equal(backend_meter(f->d.b, &m, 16 << 20, 0.001, &refused), STATUS_INVALID);
    assert_string_equal(refused.text, "meter: 1 steps are unfinished");
    ORACLE_OK(backend_wait(f->d.b, &r, err));
}

/* What a failed measurement leaves behind is good for the next one, and its memory is kept. */
static void the_meter_may_fail_and_keeps_its_memory(void **state) {
    Fixture *f = *state;
    BackendMeter m = {0};
    int left = 0;
    for (Status status = STATUS_MEMORY; status != STATUS_OK; left++) {
        Err refused = {0};
        mem_fail_after(left);
        status = backend_meter(f->d.b, &m, 16 << 20, 0.001, &refused);
        mem_fail_after(-1);
        assert_true(status == STATUS_OK || status == STATUS_MEMORY);
        assert_int_equal(status == STATUS_OK, m.read_gb_s > 0);
    }
    assert_true(left > 3); // the pool, the meter, each member's memory
    mem_fail_after(0);
    Status again = backend_meter(f->d.b, &m, 16 << 20, 0.001, NULL);
    mem_fail_after(-1);
    assert_int_equal(again, STATUS_OK);
}

#define WITH(test)                                                                                 \
    { #test, test, setup, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways),
        WITH(facts_of_a_kind),
        WITH(absent_backends_say_so),
        WITH(facts_of_an_opened_backend),
        WITH(bad_plans_are_refused_by_field),
        WITH(a_plan_beyond_the_address_space_is_refused),
        WITH(malformed_batches_are_refused_by_name),
        WITH(layers_are_split_where_the_device_can_and_in_order),
        WITH(good_batches_pass),
        WITH(carry_needs_a_sampled_sequence_of_the_step_before),
        WITH(wait_without_a_step_is_refused),
        WITH(numbers_out_of_range_are_refused),
        WITH(malformed_lists_of_copies_are_refused_by_name),
        WITH(lists_of_copies_are_made_in_their_order),
        WITH(a_backend_that_times_no_stages_says_none),
        WITH(cpu_times_every_stage_of_both_phases_while_it_is_told_to),
        WITH(a_profile_changes_no_bit),
        WITH(the_meter_waits_for_no_step),
        WITH(the_meter_may_fail_and_keeps_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
