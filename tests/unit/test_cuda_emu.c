// SPDX-License-Identifier: Apache-2.0
/* test_cuda_emu.c - the CUDA backend, kernels and all, run on the CPU: what cuda_checks.h lists. */
#ifdef LILY_CUDA_EMU

#include "cuda_attn_checks.h"
#include "cuda_checks.h"
#include "cuda_copy_checks.h"
#include "cuda_delta_checks.h"
#include "cuda_experts_checks.h"
#include "cuda_matvec_checks.h"
#include "cuda_sample_checks.h"
#include "engine/engine.h"

void emu_set_order(int order);
void emu_set_queue(uint32_t seed);
extern int emu_is_lost, emu_lose_after, emu_fail_after, emu_n_devices, emu_driver, emu_compute,
    emu_shared;
extern size_t emu_memory;

/* Warps and lanes in descending order give the same bits: no kernel relies on which comes first. */
static void order_of_threads_changes_nothing(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    OracleSeq a = oracle_seq(0), b = oracle_seq(1);
    float *want = answer(&d, &a, f->ids, 66, 1, 704);
    emu_set_order(1);
    float *got = answer(&d, &b, f->ids, 66, 1, 704);
    emu_set_order(0);
    expect_same(f, got, want, 2, "order", 1);
    free(got);
    free(want);
    oracle_device_close(&d);
}

static void products_agree_in_the_other_order(void **state) {
    emu_set_order(1);
    products_agree_with_double(state);
    grouped_products_agree(state);
    experts_of_rows_are_equal(state);
    emu_set_order(0);
}

/* Blocks of every card from compute 8.0 on hold the kernels: with 99 and 163 KB too they make the
 * same bits. */
static void small_multiprocessors_are_served(void **state) {
    Fixture *f = *state;
    const int shared[] = {227 << 10, 163 << 10, 99 << 10};
    float *want = NULL;
    for (int i = 0; i < 3; i++) {
        OracleDevice d;
        emu_shared = shared[i];
        device(&d, f, "sm90a");
        OracleSeq seq = oracle_seq(0);
        float *got = answer(&d, &seq, f->ids, 66, 1, 704);
        if (want) {
            expect_same(f, got, want, 2, "shared memory", shared[i]);
            free(got);
        } else {
            want = got;
        }
        oracle_device_close(&d);
    }
    emu_shared = shared[0];
    free(want);
}

/* Every allocation on the card fails once: a plain error, and nothing is left behind. */
static void missing_device_memory_is_told(void **state) {
    Fixture *f = *state;
    BackendPlan plan = oracle_small_plan(1);
    int n = 0, n_failed = 0;
    for (bool is_used = true; is_used; n++) {
        Backend *b = NULL;
        Err err = {0};
        emu_fail_after = n;
        Status status = backend_open(&b, BACKEND_CUDA, f->o.weights, &plan, NULL, NULL, &err);
        is_used = emu_fail_after < 0;
        emu_fail_after = -1;
        n_failed += status != STATUS_OK;
        if (status == STATUS_OK)
            backend_close(b);
        else
            assert_int_equal(status, STATUS_MEMORY);
    }
    assert_int_equal(n, 9);        // weights, blocks, slots, scratch, host, logits, 2 for staging
    assert_int_equal(n_failed, 7); // logits that cannot be pinned lie in ordinary pages
}

/* A card that is lost while a step runs: that step fails, every later call tells the same, and
 * nothing hangs or is left behind. */
static void a_lost_card_is_told_from_then_on(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    int32_t blocks[] = {0};
    BatchSeq part = {.phase = PHASE_PREFILL, .n_rows = 3, .blocks = blocks, .sampler = -1};
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 3, .ids = f->ids};
    BatchResult result;
    void *host = oracle_alloc(backend_slot_host_bytes(d.b), 1);
    Err err = {0};
    assert_int_equal(backend_submit(d.b, &batch, &err), STATUS_OK);
    emu_is_lost = 1;
    assert_int_equal(backend_wait(d.b, &result, &err), STATUS_DEVICE);
    assert_string_equal(err.text, "cuda: waiting for a step: an emulated failure (emulated)");
    emu_is_lost = 0; // it would not come back, and nobody may think so
    BackendMeter meter;
    for (int i = 0; i < 4; i++) {
        err = (Err){0};
        Status status = i == 0   ? backend_submit(d.b, &batch, &err)
                        : i == 1 ? backend_slot_save(d.b, 0, host, &err)
                        : i == 2 ? backend_slot_restore(d.b, 0, host, &err)
                                 : backend_meter(d.b, &meter, 0, 0, &err);
        assert_int_equal(status, STATUS_DEVICE);
        assert_string_equal(err.text, "cuda: waiting for a step: an emulated failure (emulated)");
    }
    backend_slot_copy(d.b, 0, 0);
    emu_is_lost = 1;
    oracle_device_close(&d);
    emu_is_lost = 0;
    free(host);
    device(&d, f, NULL); // another one works
    OracleSeq s = oracle_seq(0);
    free(answer(&d, &s, f->ids, 3, 1, 64));
    oracle_device_close(&d);
}

/* ---- streams that do their work in any order that their events allow ---- */

static void queue_begin(uint64_t seed) { emu_set_queue((uint32_t)seed); }
static void queue_end(void) { emu_set_queue(0); }

/* LILY_TEST_SEED: one program, as a failure has named it. */
static void programs_beside_steps_are_those_waited_for(void **state) {
    const char *one = getenv("LILY_TEST_SEED");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : 18;
    printf("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + n - 1));
    for (uint64_t seed = first; seed < first + n; seed++)
        copy_program(*state, seed, queue_begin, queue_end);
}

/* What writes a slot or block does not come into what a save of it still reads: a decode its slot
 * and its block, a slot copy, a snapshot that a prompt takes. */
static void writers_wait_for_saves(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    emu_set_queue(6); // the streams' shares are drawn when they are made: the copies' is the least
    device(&d, f, NULL);
    emu_set_queue(0);
    size_t n = max_size(backend_slot_host_bytes(d.b), backend_block_host_bytes(d.b));
    char *host = backend_host_alloc(d.b, n), *want = calloc(1, n);
    assert_true(host && want);
    memset(host, 0, n);
    for (uint32_t i = 0; i < 4 * 9; i++) {
        uint32_t kind = i % 4, seed = 1 + i / 4;
        OracleSeq s = oracle_seq(kind == 0 ? 2 : 0);
        BatchSnap snap = {64, 2};
        BatchSeq part = oracle_part(&s, kind == 3 ? PHASE_PREFILL : PHASE_DECODE, 0,
                                    kind == 3 ? 65 : 1, WANT_NOTHING);
        part.snaps = &snap;
        part.n_snaps = kind == 3;
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = part.n_rows, .ids = f->ids + i};
        BackendCopy save = {.is_slot = kind != 1, .index = kind == 1 ? s.blocks[0] : 2, .to = want};
        BatchResult r;
        uint64_t ticket;
        ORACLE_OK(backend_copy_begin(d.b, &save, 1, &ticket, err));
        ORACLE_OK(backend_copy_wait(d.b, ticket, err));
        save.to = host;
        emu_set_queue(seed);
        ORACLE_OK(backend_copy_begin(d.b, &save, 1, &ticket, err));
        if (kind == 2)
            backend_slot_copy(d.b, 2, (int32_t)seed % 2);
        ORACLE_OK(backend_submit(d.b, &batch, err));
        ORACLE_OK(backend_wait(d.b, &r, err));
        ORACLE_OK(backend_copy_wait(d.b, ticket, err));
        emu_set_queue(0);
        if (memcmp(host, want,
                   save.is_slot ? backend_slot_host_bytes(d.b) : backend_block_host_bytes(d.b)))
            fail_msg("seed %u: writer %u came into the save", seed, kind);
    }
    free(want);
    backend_host_free(d.b, host);
    oracle_device_close(&d);
}

/* A slot that is being restored is copied when all of it is there. */
static void slot_copies_wait_for_restores(void **state) {
    OracleDevice d;
    emu_set_queue(6); // as above
    device(&d, *state, NULL);
    size_t n = backend_slot_host_bytes(d.b);
    char *host = backend_host_alloc(d.b, n), *got = malloc(n);
    assert_true(host && got);
    for (uint32_t seed = 1; seed <= 6; seed++) {
        BackendCopy restore = {.is_slot = true, .index = 2, .from = host};
        uint64_t ticket;
        memset(host, (int)seed, n);
        emu_set_queue(seed);
        ORACLE_OK(backend_copy_begin(d.b, &restore, 1, &ticket, err));
        backend_slot_copy(d.b, 1, 2);
        ORACLE_OK(backend_slot_save(d.b, 1, got, err));
        emu_set_queue(0);
        if (got[0] != (char)seed || memcmp(got, got + 1, n / 2))
            fail_msg("seed %u: a slot was copied before it was restored", seed);
    }
    free(got);
    backend_host_free(d.b, host);
    oracle_device_close(&d);
}

/* What the steps themselves rely on: descriptors, ids that are carried on, snapshots, results. */
static void steps_agree_in_any_order_of_streams(void **state) {
    for (uint32_t seed = 3; seed <= 4; seed++) { // when waited for alone, and at times before
        printf("seed %u\n", seed);
        emu_set_queue(seed);
        carried_ids_are_those_fed_by_hand(state);
        drawn_ids_go_on_by_carry(state);
        snapshots_are_equal(state);
        C68_batch_and_single_are_equal(state);
        a_sequence_is_saved_and_restored_beside_decodes(state);
        lists_beyond_the_most_wait_for_the_oldest(state);
        emu_set_queue(0);
    }
}

/* Copies that are under way, and the step ahead of them, are finished when the device is closed. */
static void closing_waits_for_copies(void **state) {
    Fixture *f = *state;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        OracleDevice d;
        device(&d, f, NULL);
        OracleSeq a = oracle_seq(0);
        free(oracle_prefill(&d, &a, f->ids, 3, 64, WANT_LAST, NULL));
        size_t n = backend_slot_host_bytes(d.b);
        void *host; // not the backend's, which is to be given back before
        char *want = malloc(n);
        assert_int_equal(cudaHostAlloc(&host, n, cudaHostAllocDefault), cudaSuccess);
        ORACLE_OK(backend_slot_save(d.b, 0, want, err));
        emu_set_queue(seed);
        BatchSeq part = oracle_part(&a, PHASE_DECODE, 0, 1, WANT_NOTHING);
        Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = f->ids};
        BackendCopy list[] = {{.is_slot = true, .index = 0, .to = host},
                              {.is_slot = true, .index = 1, .from = host}};
        uint64_t ticket;
        ORACLE_OK(backend_copy_begin(d.b, list, 2, &ticket, err));
        ORACLE_OK(backend_submit(d.b, &batch, err));
        oracle_device_close(&d);
        assert_memory_equal(host, want, n);
        emu_set_queue(0);
        cudaFreeHost(host);
        free(want);
    }
}

/* Pinned memory that cannot be had is told, and a card that is lost gives none. */
static void host_memory_may_be_missing(void **state) {
    Fixture *f = *state;
    OracleDevice d;
    device(&d, f, NULL);
    emu_fail_after = 0;
    assert_null(backend_host_alloc(d.b, 64));
    emu_fail_after = -1;
    void *p = backend_host_alloc(d.b, 64);
    assert_non_null(p);
    emu_is_lost = 1;
    BackendCopy copy = {.index = 0, .from = p};
    copy.from = backend_host_alloc(d.b, backend_block_host_bytes(d.b));
    assert_non_null(copy.from); // nobody has been told yet
    uint64_t ticket;
    Err told_err = {0};
    ORACLE_OK(backend_copy_begin(d.b, &copy, 1, &ticket, err));
    assert_int_equal(backend_copy_wait(d.b, ticket, &told_err), STATUS_DEVICE);
    assert_string_equal(told_err.text, "cuda: copying: an emulated failure (emulated)");
    assert_null(backend_host_alloc(d.b, 64));
    backend_host_free(d.b, (void *)(uintptr_t)copy.from);
    backend_host_free(d.b, p);
    oracle_device_close(&d);
    emu_is_lost = 0;
}

/* What a call said of a card that may have been lost by then: once, and from then on. */
static void lost_note(Status status, bool *is_lost, int call, int n) {
    if (status != STATUS_OK && status != STATUS_DEVICE)
        fail_msg("lost at %d: call %d returned %s", n, call, status_name(status));
    if (status == STATUS_OK && *is_lost)
        fail_msg("lost at %d: call %d was told nothing", n, call);
    *is_lost = status != STATUS_OK;
}

/* Steps and lists on a card that is lost at the n-th call of the runtime; whether it was. */
static bool lost_run(const Fixture *f, int n, uint32_t seed) {
    OracleDevice d;
    device(&d, f, NULL);
    OracleSeq a = oracle_seq(0);
    size_t slot = backend_slot_host_bytes(d.b);
    char *host = backend_host_alloc(d.b, slot + backend_block_host_bytes(d.b));
    assert_non_null(host);
    BackendCopy save[] = {{.is_slot = true, .index = 0, .to = host},
                          {.index = a.blocks[0], .to = host + slot}};
    BackendCopy back[] = {{.is_slot = true, .index = 1, .from = host},
                          {.index = 5, .from = host + slot}};
    BatchSeq part = oracle_part(&a, PHASE_DECODE, 0, 1, WANT_LAST);
    Batch batch = {.n_seqs = 1, .seqs = &part, .n_rows = 1, .ids = f->ids};
    BatchResult r;
    uint64_t first = 0, second = 0;
    bool is_lost = false, is_finished = false;
    emu_set_queue(seed);
    emu_lose_after = n;
    lost_note(backend_copy_begin(d.b, save, 2, &first, NULL), &is_lost, 0, n);
    Status submitted = backend_submit(d.b, &batch, NULL);
    lost_note(submitted, &is_lost, 1, n);
    backend_slot_copy(d.b, 2, 0);
    if (first) {
        Status status = backend_copy_poll(d.b, first, &is_finished, NULL);
        if (!is_lost)
            lost_note(status, &is_lost, 2, n);
    }
    Status status = backend_copy_begin(d.b, back, 2, &second, NULL);
    lost_note(status, &is_lost, 3, n);
    if (second)
        lost_note(backend_copy_wait(d.b, second, NULL), &is_lost, 4, n);
    if (second && !is_lost) // known to be finished: it stays so
        is_finished = true;
    if (submitted == STATUS_OK)
        lost_note(backend_wait(d.b, &r, NULL), &is_lost, 5, n);
    emu_lose_after = -1; // it would not come back, and nobody may think so
    emu_is_lost = 0;
    lost_note(backend_copy_begin(d.b, save, 2, &second, NULL), &is_lost, 6, n);
    if (is_finished)
        ORACLE_OK(backend_copy_wait(d.b, first, err));
    emu_is_lost = is_lost;
    backend_host_free(d.b, host);
    oracle_device_close(&d);
    emu_set_queue(0);
    emu_is_lost = 0;
    return is_lost;
}

static void a_card_lost_at_any_call_is_told_by_copies_too(void **state) {
    for (uint32_t seed = 0; seed <= 2; seed++) {
        int n = 0;
        while (lost_run(*state, n, seed))
            n++;
        assert_true(n > 30); // kernels too
    }
}

/* What the log was told last. */
static char told[600];
static void hear(void *ctx, LogLevel level, const char *line) {
    UNUSED(ctx);
    snprintf(told, sizeof told, "%d %s", (int)level, line);
}

/* On a machine of this kind: what is said of the card, what `auto` comes to for a model, and what
 * the log is told of what it passes over. */
static void expect_auto(const Fixture *f, const BackendPlan *plan, const char *text, bool is_taken,
                        const char *warning) {
    static const Log log = {hear, NULL};
    char found[400] = "";
    bool is_good = backend_is_available(BACKEND_CUDA, found, sizeof found);
    assert_string_equal(found, text);
    assert_int_equal(backend_kind_resolve(BACKEND_AUTO), is_good ? BACKEND_CUDA : BACKEND_CPU);
    told[0] = 0;
    assert_int_equal(backend_kind_for(BACKEND_AUTO, f->o.weights, plan, &log),
                     is_taken ? BACKEND_CUDA : BACKEND_CPU);
    assert_string_equal(told, warning);
    assert_int_equal(backend_kind_for(BACKEND_AUTO, f->o.weights, plan, NULL),
                     is_taken ? BACKEND_CUDA : BACKEND_CPU);
    assert_int_equal(backend_kind_for(BACKEND_REF, f->o.weights, plan, NULL), BACKEND_REF);
    assert_int_equal(backend_is_available(BACKEND_CUDA, NULL, 0), is_good);
    assert_int_equal(backend_is_available(BACKEND_CUDA, found, 4), is_good);
    assert_true(strlen(found) < 4);
    emu_n_devices = 1;
    emu_driver = 12040;
    emu_compute = 90;
    emu_memory = (size_t)4 << 30;
}

static void auto_takes_the_card_and_tells_what_it_passes_over(void **state) {
    Fixture *f = *state;
    BackendPlan plan = {.n_threads = 1};
    const char *card = "emulated (compute 9.0, column sm90a, 4 GiB, driver for CUDA 12.4)";
    expect_auto(f, &plan, card, true, "");
    emu_driver = 13010;
    emu_compute = 89;
    expect_auto(f, &plan, "emulated (compute 8.9, column sm80, 4 GiB, driver for CUDA 13.1)", true,
                "");
    emu_n_devices = 0;
    expect_auto(f, &plan, "no NVIDIA card", false, "");
    emu_n_devices = emu_driver = 0;
    expect_auto(f, &plan, "no NVIDIA driver", false, "");
    emu_driver = 11080;
    expect_auto(f, &plan, "the NVIDIA driver is too old: expected CUDA 12.4, found 11.8", false,
                "2 cuda is passed over: the NVIDIA driver is too old: expected CUDA 12.4, found "
                "11.8");
    emu_compute = 75;
    expect_auto(f, &plan, "cuda: emulated: expected compute capability 8.0 or higher, found 7.5",
                false,
                "2 cuda is passed over: cuda: emulated: expected compute capability 8.0 or higher, "
                "found 7.5");
    emu_memory = 258 << 20; // two of them for a model
    char found[400];
    told[0] = 0;
    assert_int_equal(backend_kind_for(BACKEND_AUTO, f->o.weights, &plan, &(Log){hear, NULL}),
                     BACKEND_CPU);
    snprintf(found, sizeof found, "%s", told);
    assert_non_null(strstr(found, "2 cuda is passed over: the model takes 0.0"));
    assert_non_null(strstr(found, "of its memory, 0.00 are free"));
    emu_memory = (size_t)4 << 30;
}

/* The card's own memory is what a plan has to fit into: the rows of a step give way first. */
static void plans_fit_the_card(void **state) {
    Fixture *f = *state;
    EngineOptions o = {.kind = BACKEND_CUDA};
    EnginePlan plan, less;
    Err err = {0};
    assert_int_equal(backend_chunk_rows(BACKEND_CUDA), 4096);
    assert_int_equal(engine_plan(&plan, f->o.weights, &o, &err), STATUS_OK);
    const size_t spare = 256 << 20; // beside a plan
    assert_int_equal(plan.budget_bytes, emu_memory - spare);
    assert_int_equal(plan.chunk_tok, 4096);
    assert_int_equal(plan.mixed_tok, 512);
    emu_memory = plan.needs.total_bytes + spare - 1;
    assert_int_equal(engine_plan(&less, f->o.weights, &o, &err), STATUS_OK);
    assert_int_equal(less.chunk_tok, 2048);
    assert_int_equal(less.ctx_tok, plan.ctx_tok);
    assert_true(less.needs.total_bytes + spare <= emu_memory);
    o.chunk_tok = 4096;
    assert_int_equal(engine_plan(&less, f->o.weights, &o, &err), STATUS_OK);
    assert_int_equal(less.chunk_tok, 4096);
    assert_true(less.ctx_tok < plan.ctx_tok);
    o.ctx_tok = plan.ctx_tok;
    assert_int_equal(engine_plan(&less, f->o.weights, &o, &err), STATUS_MEMORY);
    o = (EngineOptions){.kind = BACKEND_CUDA};
    emu_memory = 1 << 20;
    assert_int_equal(engine_plan(&less, f->o.weights, &o, &err), STATUS_MEMORY);
    emu_memory = (size_t)4 << 30;
}

/* An argument chooses tests by name, * for any part. */
int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    // Each check on one of the two models, in turn: both would take minutes here.
    const struct CMUnitTest tests[] = {
        CUDA_ATTN_CHECKS,
        cmocka_unit_test(delta_rule_agrees_with_the_token_loop),
        CUDA_MATMUL_CHECKS,
        CUDA_EXPERTS_CHECKS,
        cmocka_unit_test(wide_matrices_norm_on_the_way),
        cmocka_unit_test(draws_are_those_of_the_host),
        cmocka_unit_test(products_agree_in_the_other_order),
        BOTH(taps_show_the_residual_stream),
        ON(b, small_multiprocessors_are_served),
        ON(b, prompts_agree_with_f64),
        ON(a, greedy_steps_choose_the_reference_ids),
        ON(b, states_after_65_agree),
        ON(b, C2_chunk_sizes_are_equal),
        ON(a, every_row_of_a_chunked_prompt_is_equal),
        ON(b, C68_batch_and_single_are_equal),
        BOTH(C70_wide_decodes_are_equal), // an odd and an even number of groups
        ON(a, restored_and_copied_states_are_equal),
        ON(b, snapshots_are_equal),
        ON(a, C4_a_poisoned_slot_starts_clean),
        ON(b, a_broken_state_is_named),
        ON(a, carried_ids_are_those_fed_by_hand),
        ON(b, drawn_ids_go_on_by_carry),
        ON(b, masked_ids_are_not_chosen),
        ON(a, a_step_allocates_nothing),
        ON(a, a_sequence_is_saved_and_restored_beside_decodes),
        ON(b, lists_beyond_the_most_wait_for_the_oldest),
        MICRO(programs_beside_steps_are_those_waited_for),
        MICRO(steps_agree_in_any_order_of_streams),
        MICRO(writers_wait_for_saves),
        MICRO(slot_copies_wait_for_restores),
        MICRO(closing_waits_for_copies),
        MICRO(host_memory_may_be_missing),
        MICRO(a_card_lost_at_any_call_is_told_by_copies_too),
        ON(b, order_of_threads_changes_nothing),
        ON(a, wrong_plans_are_refused),
        ON(a, open_reports_missing_memory),
        ON(a, missing_device_memory_is_told),
        ON(a, a_lost_card_is_told_from_then_on),
        ON(b, auto_takes_the_card_and_tells_what_it_passes_over),
        ON(a, plans_fit_the_card),
    };
    int n_failed = cmocka_run_group_tests_name("sm90a", tests, NULL, NULL);
    const struct CMUnitTest sm80[] = {
        ON(b, prompts_agree_with_f64),
        ON(a, every_row_of_a_chunked_prompt_is_equal),
        ON(b, a_broken_state_is_named),
    };
    column_mask = "sm90a";
    return n_failed + cmocka_run_group_tests_name("sm80", sm80, NULL, NULL);
}

#else

#include <stdio.h>

int main(void) {
    printf("skipped: test_cuda_emu: built without cuda.mk\n");
    return 0;
}

#endif
