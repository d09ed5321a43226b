// SPDX-License-Identifier: Apache-2.0
/* test_engine.c - the scheduler over a small random model: an answer does not depend on who else is
 * there, ends come where they should, everything is given back.
 *
 * Path:     make unit; the backend is `cpu` unless LILY_TEST_BACKEND names another.
 * Owns:     one model for all tests.  Thread: one, and the backend's. */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MADE = 256 };

static Weights *weights;

/* What one sequence's sink has seen. */
typedef struct Seen {
    int32_t ids[MAX_MADE];
    int32_t n, stop_after; // stop_after: the sink ends it after that many; 0: never
    SeqEnd end;
    Status status;
    int n_ends;
    Seq *seq; // for who forces
} Seen;

static bool see_token(void *ctx, const SampleResult *sample) {
    Seen *s = ctx;
    assert_int_equal(s->n_ends, 0);
    assert_true(s->n < MAX_MADE);
    s->ids[s->n++] = sample->id;
    return s->stop_after == 0 || s->n < s->stop_after;
}

static void see_end(void *ctx, SeqEnd end, const Err *err) {
    Seen *s = ctx;
    s->end = end;
    s->status = err->code;
    s->n_ends++;
}

static SeqSink sink_of(Seen *s) { return (SeqSink){see_token, see_end, s}; }

static BackendKind kind_under_test(void) {
    const char *name = getenv("LILY_TEST_BACKEND");
    return name ? backend_kind_find(name) : BACKEND_CPU;
}

static Engine *open_engine(int32_t ctx, int32_t max_seqs, int32_t chunk, int32_t depth) {
    Engine *e = NULL;
    Err err = {0};
    EngineOptions o = {.kind = kind_under_test(),
                       .n_threads = 2,
                       .ctx_tok = ctx,
                       .max_seqs = max_seqs,
                       .chunk_tok = chunk,
                       .depth = depth};
    if (engine_open(&e, weights, &o, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return e;
}

static void run_until_idle(Engine *e) {
    bool is_idle = false;
    for (int i = 0; i < 100000 && !is_idle; i++)
        engine_step(e, &is_idle);
    assert_true(is_idle);
}

enum { MAX_PROMPT = 300 };

/* Prompt number i: its own ids and length. */
static int32_t prompt_of(int i, int32_t *ids) {
    int32_t vocab = weights_config(weights)->vocab;
    static const int32_t lengths[] = {1, 5, 64, 65, 130, 3, 200, 2, 63, 129};
    int32_t n = lengths[i % (int)COUNT_OF(lengths)];
    for (int32_t j = 0; j < n; j++)
        ids[j] = (int32_t)(rng_u64(77 + (uint64_t)i, (uint64_t)j) % (uint64_t)vocab);
    return n;
}

static void add(Engine *e, int i, int32_t max_tokens, Seen *seen, Seq **out) {
    int32_t ids[MAX_PROMPT];
    SeqRequest r = {.ids = ids, .n_ids = prompt_of(i, ids), .max_tokens = max_tokens};
    if (i % 2) // every other one is sampled
        r.sample = (SampleParams){.temperature = 1.5f,
                                  .top_k = 40,
                                  .top_p = 0.95f,
                                  .repetition_penalty = 1.1f,
                                  .seed = 100 + (uint64_t)i};
    Err err = {0};
    if (engine_add(e, &r, sink_of(seen), out, &err) != STATUS_OK)
        fail_msg("%s", err.text);
}

/* The answer of prompt i alone on a fresh engine. */
static void alone(int i, int32_t max_tokens, Seen *seen) {
    Engine *e = open_engine(512, 1, 512, 1);
    *seen = (Seen){0};
    add(e, i, max_tokens, seen, NULL);
    run_until_idle(e);
    engine_close(e);
    assert_int_equal(seen->n_ends, 1);
    assert_int_equal(seen->end, SEQ_LENGTH);
    assert_int_equal(seen->n, max_tokens);
}

static void assert_same(const Seen *a, const Seen *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
}

static void test_C68_C70_batch_equals_single(void **state) {
    UNUSED(state);
    enum { N = 10 };
    static Seen single[N], together[N];
    for (int i = 0; i < N; i++)
        alone(i, 12, &single[i]);
    for (int32_t depth = 1; depth <= 2; depth++) {
        Engine *e =
            open_engine(4096, 4, 128, depth); // fewer slots than sequences, two pieces a prompt
        memset(together, 0, sizeof together);
        for (int i = 0; i < N; i++)
            add(e, i, 12, &together[i], NULL);
        run_until_idle(e);
        for (int i = 0; i < N; i++)
            assert_same(&single[i], &together[i]);
        engine_close(e);
    }
}

static void test_C2_chunk_size_never_changes_the_answer(void **state) {
    UNUSED(state);
    static Seen whole, pieces;
    alone(6, 8, &whole);
    static const int32_t chunks[] = {1, 7, 64, 128, 192, 512, 700};
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        Engine *e = open_engine(768, 1, chunks[i], 1);
        assert_int_equal(engine_settled(e)->chunk_tok % RECUR_CHUNK, 0);
        assert_true(engine_settled(e)->chunk_tok >= chunks[i]);
        pieces = (Seen){0};
        add(e, 6, 8, &pieces, NULL);
        run_until_idle(e);
        assert_same(&whole, &pieces);
        engine_close(e);
    }
}

static void test_same_seed_same_ids_other_seed_other_ids(void **state) {
    UNUSED(state);
    Engine *e = open_engine(2048, 4, 256, 1);
    static Seen seen[3];
    memset(seen, 0, sizeof seen);
    int32_t ids[MAX_PROMPT];
    for (int i = 0; i < 3; i++) {
        SeqRequest r = {.ids = ids,
                        .n_ids = prompt_of(1, ids),
                        .max_tokens = 24,
                        .sample = {.temperature = 1, .seed = i == 2 ? 6 : 5}};
        Err err = {0};
        assert_int_equal(engine_add(e, &r, sink_of(&seen[i]), NULL, &err), STATUS_OK);
    }
    run_until_idle(e);
    assert_same(&seen[0], &seen[1]);
    assert_memory_not_equal(seen[0].ids, seen[2].ids, 24 * sizeof(int32_t));
    engine_close(e);
}

static void test_C4_a_cancelled_sequence_leaves_nothing(void **state) {
    UNUSED(state);
    static Seen clean, first, second;
    alone(4, 10, &clean);
    for (int32_t depth = 1; depth <= 2; depth++) {
        for (int cancel_at = 0; cancel_at < 9; cancel_at++) { // queued, in prefill, in decode
            Engine *e = open_engine(512, 1, 64, depth);
            Seq *seq = NULL;
            first = (Seen){0};
            second = (Seen){0};
            add(e, 6, 20, &first, &seq);
            for (int i = 0; i < cancel_at; i++)
                engine_step(e, NULL);
            engine_cancel(e, seq);
            add(e, 4, 10, &second, NULL);
            run_until_idle(e);
            assert_int_equal(first.end, SEQ_CANCELLED);
            assert_int_equal(first.n_ends, 1);
            assert_same(&clean, &second);
            engine_close(e);
        }
    }
}

static void test_C58_the_context_ends_an_answer_with_length(void **state) {
    UNUSED(state);
    Engine *e = open_engine(256, 2, 64, 1);
    int32_t limit = engine_settled(e)->limit_tok;
    assert_int_equal(limit, 256);
    int32_t *ids = mem_zalloc((size_t)limit + 1, sizeof *ids);
    static Seen seen;
    Err err = {0};
    for (int32_t room = 1; room <= 65; room += 16) {
        seen = (Seen){0};
        SeqRequest r = {.ids = ids, .n_ids = limit - room, .max_tokens = 100};
        assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
        run_until_idle(e);
        assert_int_equal(seen.n, room);
        assert_int_equal(seen.end, SEQ_LENGTH);
    }
    mem_free(ids);
    engine_close(e);
}

static void test_C80_C56_a_prompt_beyond_the_context_is_refused_with_both_numbers(void **state) {
    UNUSED(state);
    Engine *e = open_engine(128, 1, 64, 1);
    int32_t ids[129] = {0};
    static Seen seen;
    Err err = {0};
    for (int32_t n = 128; n <= 129; n++) {
        SeqRequest r = {.ids = ids, .n_ids = n};
        assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_CONTEXT);
        assert_non_null(strstr(err.text, n == 128 ? "has 128 tokens" : "has 129 tokens"));
        assert_non_null(strstr(err.text, "holds 128"));
    }
    assert_int_equal(seen.n_ends, 0);
    engine_close(e);
}

static void test_stop_ids_and_sinks_end_an_answer(void **state) {
    UNUSED(state);
    static Seen plain, seen;
    alone(0, 12, &plain);
    for (int32_t depth = 1; depth <= 2; depth++) {
        Engine *e = open_engine(512, 1, 64, depth);
        int32_t ids[MAX_PROMPT], stop = plain.ids[5], first = 0;
        while (plain.ids[first] != stop)
            first++;
        Err err = {0};
        SeqRequest r = {.ids = ids,
                        .n_ids = prompt_of(0, ids),
                        .max_tokens = 12,
                        .stop_ids = &stop,
                        .n_stop_ids = 1};
        seen = (Seen){0};
        assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
        run_until_idle(e);
        assert_int_equal(seen.end, SEQ_STOP_ID);
        assert_int_equal(seen.n, first); // the end id itself is not told
        r.n_stop_ids = 0;
        seen = (Seen){.stop_after = 4};
        assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
        run_until_idle(e);
        assert_int_equal(seen.end, SEQ_STOP_SINK);
        assert_int_equal(seen.n, 4);
        engine_close(e);
    }
}

static void test_ids_above_the_tokenizer_are_never_chosen(void **state) {
    UNUSED(state);
    Engine *e = open_engine(512, 1, 64, 1);
    int32_t ids[MAX_PROMPT];
    Err err = {0};
    static Seen seen;
    seen = (Seen){0};
    SeqRequest r = {.ids = ids,
                    .n_ids = prompt_of(1, ids),
                    .max_tokens = 64,
                    .sample = {.temperature = 100, .seed = 3, .n_ids = 10}};
    assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
    run_until_idle(e);
    for (int i = 0; i < seen.n; i++)
        assert_in_range(seen.ids[i], 0, 9);
    engine_close(e);
}

static void test_every_token_forbidden_is_an_error_not_a_wrong_token(void **state) {
    UNUSED(state);
    Engine *e = open_engine(128, 1, 64, 1);
    static Seen seen;
    seen = (Seen){0};
    Err err = {0};
    int32_t id = 1;
    LogitBias bias[3] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    SeqRequest r = {
        .ids = &id, .n_ids = 1, .max_tokens = 4, .sample = {.n_ids = 3, .bias = bias, .n_bias = 3}};
    assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
    run_until_idle(e);
    assert_int_equal(seen.end, SEQ_FAILED);
    assert_int_equal(seen.status, STATUS_INVALID);
    assert_int_equal(seen.n, 0);
    engine_close(e);
}

static void test_bad_requests_are_refused_by_name(void **state) {
    UNUSED(state);
    Engine *e = open_engine(128, 1, 64, 1);
    static Seen seen;
    int32_t vocab = weights_config(weights)->vocab;
    int32_t good = 1, high = vocab, low = -1;
    const struct {
        SeqRequest r;
        const char *word;
    } rows[] = {
        {{.ids = &good, .n_ids = 0}, "prompt"},
        {{.ids = &high, .n_ids = 1}, "token 0"},
        {{.ids = &low, .n_ids = 1}, "token 0"},
        {{.ids = &good, .n_ids = 1, .max_tokens = -1}, "max_tokens"},
        {{.ids = &good, .n_ids = 1, .n_stop_ids = LIMIT_EOS + 1}, "stop"},
        {{.ids = &good, .n_ids = 1, .sample = {.temperature = -1}}, "temperature"},
        {{.ids = &good, .n_ids = 1, .sample = {.top_p = 2}}, "top_p"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Err err = {0};
        assert_int_equal(engine_add(e, &rows[i].r, sink_of(&seen), NULL, &err), STATUS_INVALID);
        if (!strstr(err.text, rows[i].word))
            fail_msg("row %zu: %s", i, err.text);
    }
    engine_close(e);
}

static void test_a_plan_that_does_not_fit_is_refused(void **state) {
    UNUSED(state);
    Err err = {0};
    EnginePlan plan;
    EngineOptions o = {.kind = kind_under_test(), .ctx_tok = 1024, .budget_bytes = 1000};
    assert_int_equal(engine_plan(&plan, weights, &o, &err), STATUS_MEMORY);
    assert_non_null(strstr(err.text, "KV for 1024 tokens"));
    o.ctx_tok = -1;
    assert_int_equal(engine_plan(&plan, weights, &o, &err), STATUS_INVALID);
    o = (EngineOptions){.kind = kind_under_test(), .max_seqs = 100000};
    assert_int_equal(engine_plan(&plan, weights, &o, &err), STATUS_INVALID);
}

static void test_the_pool_is_what_all_sequences_can_use_unless_it_is_named(void **state) {
    UNUSED(state);
    Err err = {0};
    EnginePlan plan;
    Weights *small = NULL;
    assert_int_equal(weights_open(&small, "models/mini", NULL, &err), STATUS_OK);
    int32_t longest = weights_config(small)->max_positions;
    assert_true(longest < 32768);
    for (int32_t n = 1; n <= 64; n *= 4) {
        EngineOptions o = {.kind = kind_under_test(), .max_seqs = n};
        assert_int_equal(engine_plan(&plan, small, &o, &err), STATUS_OK);
        assert_int_equal(plan.limit_tok, longest);
        assert_int_equal(plan.ctx_tok, longest * n < 32768 ? longest * n : 32768);
    }
    weights_close(small);
}

/* One short answer with allocation number `fail_at` failing (-1: none); how it went. */
static Status short_answer(int64_t fail_at) {
    static Seen seen;
    seen = (Seen){0};
    Err err = {0};
    Engine *e = NULL;
    EngineOptions o = {.kind = kind_under_test(),
                       .n_threads = 1,
                       .ctx_tok = 128,
                       .max_seqs = 1,
                       .chunk_tok = 64,
                       .budget_bytes = UINT64_MAX};
    int32_t id = 1;
    SeqRequest r = {.ids = &id, .n_ids = 1, .max_tokens = 2};
    mem_fail_after(fail_at);
    Status status = engine_open(&e, weights, &o, NULL, NULL, &err);
    if (status == STATUS_OK)
        status = engine_add(e, &r, sink_of(&seen), NULL, &err);
    if (status == STATUS_OK) {
        run_until_idle(e);
        status = seen.status;
    }
    mem_fail_after(-1);
    engine_close(e);
    return status;
}

static void test_every_allocation_failing(void **state) {
    UNUSED(state);
    int64_t before = mem_count();
    assert_int_equal(short_answer(-1), STATUS_OK);
    int64_t n = mem_count() - before;
    print_message("%d allocations fail in turn\n", (int)n);
    assert_true(n > 10);
    int n_answers = 0;
    for (int64_t i = 0; i < n; i++) {
        Status status = short_answer(i);
        assert_true(status == STATUS_MEMORY || status == STATUS_OK);
        n_answers += status == STATUS_OK;
    }
    // The cpu's loading goes on without the pool of its own, which is two allocations.
    assert_int_equal(n_answers, kind_under_test() == BACKEND_CPU ? 2 : 0);
    assert_int_equal(short_answer(-1), STATUS_OK);
}

static void test_a_decode_step_allocates_nothing(void **state) {
    UNUSED(state);
    Engine *e = open_engine(512, 2, 64, 1);
    static Seen seen[2];
    memset(seen, 0, sizeof seen);
    add(e, 0, 40, &seen[0], NULL);
    add(e, 1, 40, &seen[1], NULL);
    for (int i = 0; i < 4; i++)
        engine_step(e, NULL);
    int64_t before = mem_count();
    for (int i = 0; i < 20; i++)
        engine_step(e, NULL);
    assert_int_equal(mem_count(), before);
    run_until_idle(e);
    engine_close(e);
}

/* ---- prefix cache and preemption ---- */

static Engine *open_cached(int32_t ctx, int32_t max_seqs, int32_t cache_slots, bool exact) {
    Engine *e = NULL;
    Err err = {0};
    EngineOptions o = {.kind = kind_under_test(),
                       .n_threads = 2,
                       .ctx_tok = ctx,
                       .max_seqs = max_seqs,
                       .chunk_tok = 256,
                       .cache_slots = cache_slots,
                       .is_cache_exact = exact};
    if (engine_open(&e, weights, &o, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return e;
}

/* Runs ids to the end of a short answer; returns the tokens that were cached. */
static int32_t ask(Engine *e, const int32_t *ids, int32_t n, int32_t max_tokens, Seen *seen) {
    Err err = {0};
    uint64_t before = engine_figures(e).n_cached_tok;
    *seen = (Seen){0};
    SeqRequest r = {.ids = ids, .n_ids = n, .max_tokens = max_tokens};
    assert_int_equal(engine_add(e, &r, sink_of(seen), NULL, &err), STATUS_OK);
    run_until_idle(e);
    assert_int_equal(seen->end, SEQ_LENGTH);
    return (int32_t)(engine_figures(e).n_cached_tok - before);
}

static void test_C44_C48_a_cached_prompt_answers_bit_for_bit_as_a_cold_one(void **state) {
    UNUSED(state);
    enum { N = 900 };
    int32_t ids[N], vocab = weights_config(weights)->vocab;
    static Seen cold, warm;
    for (int32_t i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_u64(9, (uint64_t)i) % (uint64_t)vocab);
    static const int32_t lengths[] = {900, 899, 897, 896, 833, 700, 200, 130, 65};
    Engine *cached = open_cached(4096, 1, 24, true);
    (void)ask(cached, ids, 640, 4, &warm);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        Engine *plain = open_cached(4096, 1, 0, false);
        assert_int_equal(ask(plain, ids, lengths[i], 12, &cold), 0);
        engine_close(plain);
        (void)ask(cached, ids, lengths[i], 12, &warm);
        assert_same(&cold, &warm);
        int32_t n = ask(cached, ids, lengths[i], 12, &warm); // now its own snapshot is there
        assert_int_equal(n, (lengths[i] - 1) / 64 * 64);
        assert_same(&cold, &warm);
    }
    engine_close(cached);
}

static void test_C44_a_growing_conversation_reads_only_what_is_new(void **state) {
    UNUSED(state);
    enum { TURNS = 12, GROW = 150 };
    int32_t ids[TURNS * GROW + 400], n = 400, vocab = weights_config(weights)->vocab;
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = (int32_t)(rng_u64(10, i) % (uint64_t)vocab);
    Engine *e = open_cached(4096, 2, 16, true);
    static Seen seen;
    for (int turn = 0; turn < TURNS; turn++, n += GROW) {
        int32_t cached = ask(e, ids, n, 3, &seen);
        if (turn)
            assert_int_equal(cached, (n - GROW - 1) / 64 * 64);
    }
    engine_close(e);
}

static void test_states_that_decode_made_are_reused_unless_exact(void **state) {
    UNUSED(state);
    int32_t ids[400];
    static Seen first, again;
    for (int exact = 0; exact < 2; exact++) {
        Engine *e = open_cached(2048, 1, 8, exact);
        int32_t n = prompt_of(4, ids); // 130 tokens
        assert_int_equal(n, 130);
        (void)ask(e, ids, n, 100, &first);
        memcpy(ids + n, first.ids, 100 * sizeof *ids); // the answer comes back in the next prompt
        int32_t cached = ask(e, ids, n + 100, 4, &again);
        assert_int_equal(cached, exact ? 128 : 192);
        assert_int_equal(engine_figures(e).n_decode_made_hits, !exact);
        engine_close(e);
    }
}

static void test_equal_prompts_at_once_are_read_once(void **state) {
    UNUSED(state);
    enum { N = 4 };
    static Seen seen[N], single;
    alone(6, 12, &single); // greedy, 200 tokens
    memset(seen, 0, sizeof seen);
    Engine *e = open_cached(4096, N, 8, true);
    for (int i = 0; i < N; i++)
        add(e, 6, 12, &seen[i], NULL);
    run_until_idle(e);
    for (int i = 0; i < N; i++)
        assert_same(&single, &seen[i]);
    assert_int_equal(engine_figures(e).n_cached_tok, (N - 1) * 192);
    engine_close(e);
}

static void test_running_out_of_blocks_preempts_and_goes_on_exactly(void **state) {
    UNUSED(state);
    enum { N = 4 };
    static Seen seen[N], single[N];
    for (int i = 0; i < N; i++)
        alone(i, 120, &single[i]);
    for (int slots = 0; slots <= 4; slots += 4) {
        Engine *e = open_cached(256, N, slots, true); // four blocks for up to ten
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < N; i++)
            add(e, i, 120, &seen[i], NULL);
        run_until_idle(e);
        assert_true(engine_figures(e).n_preempted > 0);
        for (int i = 0; i < N; i++)
            assert_same(&single[i], &seen[i]);
        assert_int_equal(engine_figures(e).n_blocks_free + engine_figures(e).prefix.n_nodes, 4);
        engine_close(e);
    }
}

/* A sink that puts ids behind the third of its own, as a thinking budget does. */
static bool see_and_force(void *ctx, const SampleResult *sample) {
    Seen *s = ctx;
    static const int32_t forced[] = {7, 7, 9, 7};
    bool goes_on = see_token(ctx, sample);
    if (s->n == 3)
        assert_true(engine_force(s->seq, forced, (int32_t)COUNT_OF(forced)));
    return goes_on;
}

static void test_forced_ids_count_for_penalties_and_overtaken_choices_do_not(void **state) {
    UNUSED(state);
    static Seen seen[3];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 3; i++) { // 2: sent back to the queue behind the forced ids
        Engine *e = open_engine(512, 1, 64, i == 1 ? 2 : 1);
        int32_t ids[MAX_PROMPT], said[MAX_MADE];
        Err err = {0};
        SeqRequest r = {.ids = ids,
                        .n_ids = prompt_of(4, ids),
                        .max_tokens = 60,
                        // So much that no id comes twice: what was counted is forbidden.
                        .sample = {.frequency_penalty = 100, .presence_penalty = 100}};
        assert_int_equal(
            engine_add(e, &r, (SeqSink){see_and_force, see_end, &seen[i]}, &seen[i].seq, &err),
            STATUS_OK);
        if (i == 2) {
            while (seen[i].n < 10)
                engine_step(e, NULL);
            static Seen other;
            other = (Seen){0};
            engine_pause(e, seen[i].seq, true);
            add(e, 0, 3, &other, NULL);
            run_until_idle(e);
            assert_int_equal(other.n_ends, 1);
            assert_int_equal(engine_figures(e).n_preempted, 1);
            engine_pause(e, seen[i].seq, false);
        }
        run_until_idle(e);
        assert_int_equal(seen[i].n, 56);
        memcpy(said, seen[i].ids, sizeof said);
        for (int a = 0; a < seen[i].n; a++) {
            if (a >= 3)
                assert_true(said[a] != 7 && said[a] != 9);
            for (int b = 0; b < a; b++)
                assert_int_not_equal(said[a], said[b]);
        }
        assert_same(&seen[0], &seen[i]);
        engine_close(e);
    }
}

static void test_spaces_are_private(void **state) {
    UNUSED(state);
    int32_t ids[300];
    static Seen seen;
    Engine *e = open_cached(2048, 1, 8, true);
    int32_t n = prompt_of(6, ids);
    Err err = {0};
    for (uint64_t space = 1; space <= 2; space++) {
        seen = (Seen){0};
        SeqRequest r = {.ids = ids, .n_ids = n, .max_tokens = 2, .space = space};
        assert_int_equal(engine_add(e, &r, sink_of(&seen), NULL, &err), STATUS_OK);
        run_until_idle(e);
        assert_int_equal(engine_figures(e).n_cached_tok, 0);
    }
    engine_close(e);
}

/* Random arrivals, cancels and steps: nothing is lost, blocks and slots all come back. */
static void test_random_arrivals_and_cancels(void **state) {
    UNUSED(state);
    const uint64_t seed = 5150;
    print_message("seed %llu\n", (unsigned long long)seed);
    enum { N = 60 };
    static Seen seen[N];
    static Seq *seqs[N];
    memset(seen, 0, sizeof seen);
    Engine *e = open_cached(512, 3, 5, false);
    uint64_t at = 0;
    for (int i = 0; i < N;) {
        uint64_t what = rng_u64(seed, at++) % 4;
        if (what < 2) {
            int prompt = (int)(rng_u64(seed, at++) % 10);
            int32_t max_tokens = 1 + (int32_t)(rng_u64(seed, at++) % 40);
            add(e, prompt, max_tokens, &seen[i], &seqs[i]);
            i++;
        } else if (what == 2 && i > 0) {
            int j = (int)(rng_u64(seed, at++) % (uint64_t)i);
            if (seen[j].n_ends == 0)
                engine_cancel(e, seqs[j]);
        }
        for (int k = (int)(rng_u64(seed, at++) % 3); k > 0; k--)
            engine_step(e, NULL);
        EngineFigures f = engine_figures(e);
        assert_true(f.n_blocks_free >= 0 && f.n_blocks_free <= f.n_blocks && f.n_active <= 3);
    }
    run_until_idle(e);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i].n_ends, 1);
    EngineFigures f = engine_figures(e);
    assert_int_equal(f.n_active + f.n_waiting, 0);
    assert_int_equal(f.n_blocks_free + f.prefix.n_nodes, f.n_blocks);
    engine_close(e);
}

static int open_model(void **state) {
    UNUSED(state);
    Err err = {0};
    if (weights_open(&weights, "synth:tiny,layers=4", NULL, &err) == STATUS_OK)
        return 0;
    print_error("%s\n", err.text);
    return -1;
}

static int close_model(void **state) {
    UNUSED(state);
    weights_close(weights);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_C68_C70_batch_equals_single),
        cmocka_unit_test(test_C2_chunk_size_never_changes_the_answer),
        cmocka_unit_test(test_same_seed_same_ids_other_seed_other_ids),
        cmocka_unit_test(test_C4_a_cancelled_sequence_leaves_nothing),
        cmocka_unit_test(test_C58_the_context_ends_an_answer_with_length),
        cmocka_unit_test(test_C80_C56_a_prompt_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(test_stop_ids_and_sinks_end_an_answer),
        cmocka_unit_test(test_ids_above_the_tokenizer_are_never_chosen),
        cmocka_unit_test(test_every_token_forbidden_is_an_error_not_a_wrong_token),
        cmocka_unit_test(test_bad_requests_are_refused_by_name),
        cmocka_unit_test(test_a_plan_that_does_not_fit_is_refused),
        cmocka_unit_test(test_the_pool_is_what_all_sequences_can_use_unless_it_is_named),
        cmocka_unit_test(test_every_allocation_failing),
        cmocka_unit_test(test_a_decode_step_allocates_nothing),
        cmocka_unit_test(test_C44_C48_a_cached_prompt_answers_bit_for_bit_as_a_cold_one),
        cmocka_unit_test(test_C44_a_growing_conversation_reads_only_what_is_new),
        cmocka_unit_test(test_states_that_decode_made_are_reused_unless_exact),
        cmocka_unit_test(test_equal_prompts_at_once_are_read_once),
        cmocka_unit_test(test_running_out_of_blocks_preempts_and_goes_on_exactly),
        cmocka_unit_test(test_forced_ids_count_for_penalties_and_overtaken_choices_do_not),
        cmocka_unit_test(test_spaces_are_private),
        cmocka_unit_test(test_random_arrivals_and_cancels),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
