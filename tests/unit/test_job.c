// SPDX-License-Identifier: Apache-2.0
/* test_job.c - requests through the engine's thread without a network: the same bytes every time,
 * and every allocation failing in turn, before a job is accepted and while it is in work.
 *
 * Path:     make unit.
 * Owns:     one runner with a small random model.  Thread: main, beside the runner's. */
#define _POSIX_C_SOURCE 200809L // nanosleep
#include "base/mem.h"
#include "server/runner.h"

#include "unit.h"

#include <string.h>
#include <time.h>

static const ServerOptions OPTIONS = {
    .model = "synth:micro",
    .engine = {.kind = BACKEND_CPU, .n_threads = 1, .max_seqs = 2, .ctx_tok = 512},
    .max_queue = 2,
    .request_s = 600,
    .thinking_budget = -1};
static Metrics metrics;
static Runner *runner;

#define BODY                                                                                       \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0,\"max_tokens\":6,"   \
    "\"n\":2,"                                                                                     \
    "\"stop\":[\"zzzz\"],\"ignore_eos\":true,\"logprobs\":true,\"frob\":1"

static void nap(void) {
    const struct timespec ms = {.tv_nsec = 1000000};
    nanosleep(&ms, NULL);
}

static Status open_job(const char *body, Job **job, WireFault *fault) {
    JobClient client = {.request_id = "id"};
    *fault = (WireFault){0};
    *job = NULL;
    return job_open(job, runner, WIRE_CHAT, str_view(body, strlen(body)), &client, fault);
}

/* Hands a job over and waits for its last byte. */
static void finish(Job *job, StrBuf *out) {
    runner_submit(runner, job);
    for (;;) {
        CHECK(pthread_mutex_lock(&job->stream.lock) == 0);
        bool is_done = job->stream.is_done;
        CHECK(pthread_mutex_unlock(&job->stream.lock) == 0);
        if (is_done)
            break;
        nap();
    }
    strbuf_append_view(out, strbuf_view(&job->stream.bytes));
    job_release(job);
    assert_int_equal(runner_n_live(runner), 0); // who has the answer finds a free place
}

static void answer(const char *body, StrBuf *out) {
    Job *job;
    WireFault fault;
    *out = (StrBuf){0};
    if (open_job(body, &job, &fault) != STATUS_OK)
        fail_msg("%s", fault.err.text);
    finish(job, out);
    for (char *p = out->ptr; (p = strstr(p, "\"created\":")) != NULL; p += 10)
        memcpy(p + 10, "0000000000", 10); // the clock goes on
}

static void test_the_queue_is_bounded(void **state) {
    UNUSED(state);
    Job *jobs[3];
    WireFault fault;
    assert_int_equal(open_job(BODY "}", &jobs[0], &fault), STATUS_OK); // two choices
    assert_int_equal(open_job(BODY "}", &jobs[1], &fault), STATUS_OK);
    assert_int_equal(open_job(BODY "}", &jobs[2], &fault), STATUS_BUSY);
    assert_int_equal(runner_n_live(runner), 4);
    StrBuf out = {0};
    job_cancel(jobs[0], JOB_GONE); // before it is handed over
    runner_submit(runner, jobs[0]);
    finish(jobs[1], &out);
    job_release(jobs[0]);
    strbuf_fini(&out);
}

static void test_every_allocation_failing_before_a_job_is_accepted(void **state) {
    UNUSED(state);
    for (int after = 0;; after++) {
        Job *job;
        WireFault fault;
        StrBuf out = {0};
        mem_fail_after(after);
        Status status = open_job(BODY ",\"stream\":true}", &job, &fault);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            finish(job, &out);
            strbuf_fini(&out);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(runner_n_live(runner), 0);
        assert_true(after < 2000);
    }
}

static void test_C4_every_allocation_failing_in_work_leaves_nothing_behind(void **state) {
    UNUSED(state);
    static const char *const bodies[] = {BODY "}", BODY ",\"stream\":true}"};
    for (size_t i = 0; i < COUNT_OF(bodies); i++) {
        StrBuf wanted, out;
        answer(bodies[i], &wanted);
        assert_null(strstr(wanted.ptr, "\"error\""));
        int n_failed = 0, n_good = 0;
        for (int after = 0; n_good < 3 && after < 600; after += 1 + after / 40) {
            Job *job;
            WireFault fault;
            StrBuf got = {0};
            assert_int_equal(open_job(bodies[i], &job, &fault), STATUS_OK);
            mem_fail_after(after);
            finish(job, &got);
            mem_fail_after(-1);
            bool is_good = got.len > 0 && !strstr(got.ptr, "out_of_memory");
            n_good = is_good ? n_good + 1 : 0;
            n_failed += !is_good;
            strbuf_fini(&got);
        }
        assert_true(n_failed > 5);
        answer(bodies[i], &out);
        assert_string_equal(out.ptr, wanted.ptr);
        strbuf_fini(&out);
        strbuf_fini(&wanted);
    }
}

static int open_all(void **state) {
    UNUSED(state);
    metrics_init(&metrics);
    if (runner_open(&runner, &OPTIONS, &metrics, NULL, NULL) != STATUS_OK)
        return -1;
    while (runner_state(runner) == RUNNER_LOADING)
        nap();
    return runner_state(runner) == RUNNER_READY ? 0 : -1;
}
static int close_all(void **state) {
    UNUSED(state);
    runner_close(runner);
    metrics_fini(&metrics);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_queue_is_bounded),
        cmocka_unit_test(test_every_allocation_failing_before_a_job_is_accepted),
        cmocka_unit_test(test_C4_every_allocation_failing_in_work_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
