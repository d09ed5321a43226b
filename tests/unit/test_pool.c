// SPDX-License-Identifier: Apache-2.0
/* test_pool.c - threads that run together: every member once, every job once, barriers hold.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: several. */
#define _GNU_SOURCE // sched_setaffinity
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/pool.h"
#include "unit.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_JOBS = 1000, N_ROUNDS = 200 };

typedef struct Counts {
    Pool *pool;
    _Atomic int members[LIMIT_THREADS];
    _Atomic int jobs[N_JOBS];
    int plain[8]; // written by one member each, read by all behind a barrier
    _Atomic int n_bad;
} Counts;

static void count_member(void *ctx, int member, int n_members) {
    Counts *c = ctx;
    atomic_fetch_add(&c->members[member], 1);
    for (int round = 0; round < N_ROUNDS; round++) {
        c->plain[member] = round * 10 + member;
        pool_barrier(c->pool, member);
        for (int m = 0; m < n_members; m++)
            if (c->plain[m] != round * 10 + m)
                atomic_fetch_add(&c->n_bad, 1);
        pool_barrier(c->pool, member);
    }
}

static void count_job(void *ctx, int64_t job, int member) {
    Counts *c = ctx;
    atomic_fetch_add(&c->jobs[job], 1);
    atomic_fetch_add(&c->members[member], 1);
}

static void every_member_and_job_runs_once(void) {
    for (int n = 1; n <= 8; n++) {
        static Counts c;
        c = (Counts){0};
        Err err = {0};
        assert_int_equal(pool_open(&c.pool, n, &err), STATUS_OK);
        assert_int_equal(pool_n_members(c.pool), n);
        pool_run(c.pool, count_member, &c);
        for (int m = 0; m < n; m++)
            assert_int_equal(c.members[m], 1);
        assert_int_equal(c.n_bad, 0);
        pool_jobs(c.pool, N_JOBS, count_job, &c);
        for (int j = 0; j < N_JOBS; j++)
            assert_int_equal(c.jobs[j], 1);
        pool_jobs(c.pool, 0, count_job, &c);
        pool_close(c.pool);
    }
}

static void test_every_member_and_job_runs_once(void **state) {
    UNUSED(state);
    every_member_and_job_runs_once();
}

#ifdef __linux__
/* Members that find each other on their processor let each other have it. */
static void test_all_members_on_one_processor(void **state) {
    UNUSED(state);
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    every_member_and_job_runs_once();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}
#endif

static void test_many_short_runs(void **state) {
    UNUSED(state);
    static Counts c;
    c = (Counts){0};
    Err err = {0};
    assert_int_equal(pool_open(&c.pool, 3, &err), STATUS_OK);
    for (int i = 0; i < 2000; i++)
        pool_jobs(c.pool, 3, count_job, &c);
    assert_int_equal(c.jobs[0], 2000);
    assert_int_equal(c.jobs[2], 2000);
    pool_close(c.pool);
}

static void test_bad_counts_and_failed_allocations(void **state) {
    UNUSED(state);
    Err err = {0};
    Pool *pool = NULL;
    assert_int_equal(pool_open(&pool, LIMIT_THREADS + 1, &err), STATUS_INVALID);
    assert_int_equal(pool_open(&pool, -1, &err), STATUS_INVALID);
    for (int i = 0; i < 2; i++) {
        mem_fail_after(i);
        assert_int_equal(pool_open(&pool, 2, &err), STATUS_MEMORY);
        mem_fail_after(-1);
    }
    assert_int_equal(pool_open(&pool, 0, &err), STATUS_OK);
    assert_true(pool_n_members(pool) >= 1);
    assert_true(pool_n_cpus() >= 1);
    pool_close(pool);
    pool_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_and_job_runs_once),
#ifdef __linux__
        cmocka_unit_test(test_all_members_on_one_processor),
#endif
        cmocka_unit_test(test_many_short_runs),
        cmocka_unit_test(test_bad_counts_and_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
