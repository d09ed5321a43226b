// SPDX-License-Identifier: Apache-2.0
/* pool.c - threads that wait for a generation number, and a barrier among them.
 *
 * Owns:     its threads.  Thread: pool_run from one thread at a time.
 * Not here: queues between long-lived threads. */
#define _GNU_SOURCE // sched_getaffinity
#include "pool.h"

#include "cgroup.h"
#include "checked.h"
#include "limits.h"
#include "mem.h"
#include "numa.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    POOL_LOOK = 40,    // pauses, 1 us: then a member looks who shares its processor
    POOL_SPINS = 1000, // 24 us where a pause takes 75 cycles (measured), twice that at most
    POOL_YIELDS = 100, // instead, where one does
};

/* A number that members wait to see change: first spinning, then asleep. */
typedef struct Gate {
    _Alignas(MEM_ALIGN) _Atomic uint32_t turn;
    _Atomic uint32_t n_asleep;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Gate;

typedef struct Member {
    Pool *pool;
    int index;
    int cpu; // that it is pinned to; -1: none
    pthread_t thread;
} Member;

struct Pool {
    Gate start, finish, middle;
    _Alignas(MEM_ALIGN) _Atomic int32_t n_running; // members still in this run
    _Alignas(MEM_ALIGN) _Atomic int32_t n_arrived; // at the barrier
    _Alignas(MEM_ALIGN) _Atomic int64_t next_job;
    PoolFn fn; // written by the caller of pool_run before start.turn moves
    void *ctx;
    bool is_closing;
    int n_members;
    Member *members; // [n_members], entry 0 is the caller
    // The processor that each member was on when it last waited for long; -1: not known.
    _Alignas(MEM_ALIGN) _Atomic int32_t seen_on[LIMIT_THREADS];
};

static inline void pool_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool gate_init(Gate *g) {
    atomic_init(&g->turn, 0);
    atomic_init(&g->n_asleep, 0);
    if (pthread_mutex_init(&g->lock, NULL) != 0)
        return false;
    if (pthread_cond_init(&g->changed, NULL) == 0)
        return true;
    pthread_mutex_destroy(&g->lock);
    return false;
}

static void gate_fini(Gate *g) {
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

static void gate_open(Gate *g) {
    atomic_fetch_add(&g->turn, 1);
    if (atomic_load(&g->n_asleep)) {
        pthread_mutex_lock(&g->lock);
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
    }
}

/* Whether the gate opened within n pauses, or n times of letting others have the processor. */
static bool gate_spin(Gate *g, uint32_t seen, int n, bool yields) {
    for (int i = 0; i < n; i++) {
        if (atomic_load_explicit(&g->turn, memory_order_acquire) != seen)
            return true;
        if (yields)
            sched_yield();
        else
            pool_pause();
    }
    return false;
}

/* Whether another member was last seen on this one's processor, where it cannot run while this one
 * spins. Sleeping would not do: two members that take turns asleep look to the system as if one
 * processor were enough for them. */
static bool pool_shares_cpu(Pool *pool, int member) {
#ifdef __linux__
    int32_t cpu = sched_getcpu();
    atomic_store_explicit(&pool->seen_on[member], cpu, memory_order_relaxed);
    for (int i = 0; i < pool->n_members && cpu >= 0; i++)
        if (i != member && atomic_load_explicit(&pool->seen_on[i], memory_order_relaxed) == cpu)
            return true;
#endif
    return false;
}

static void gate_wait(Pool *pool, int member, Gate *g, uint32_t seen) {
    if (gate_spin(g, seen, POOL_LOOK, false))
        return;
    bool shares = pool_shares_cpu(pool, member);
    if (gate_spin(g, seen, shares ? POOL_YIELDS : POOL_SPINS - POOL_LOOK, shares))
        return;
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->n_asleep, 1);
    while (atomic_load(&g->turn) == seen)
        pthread_cond_wait(&g->changed, &g->lock);
    atomic_fetch_sub(&g->n_asleep, 1);
    pthread_mutex_unlock(&g->lock);
}

static void *pool_member_main(void *arg) {
    Member *m = arg;
    Pool *pool = m->pool;
    if (m->cpu >= 0)
        numa_pin(m->cpu);
    for (uint32_t seen = 0;; seen++) {
        gate_wait(pool, m->index, &pool->start, seen);
        if (pool->is_closing)
            return NULL;
        pool->fn(pool->ctx, m->index, pool->n_members);
        if (atomic_fetch_sub(&pool->n_running, 1) == 1)
            gate_open(&pool->finish);
    }
}

static int pool_count_cpus(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return max_i32(1, CPU_COUNT(&set));
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n;
}

int pool_n_cpus(void) {
    int n = min_i32(pool_count_cpus(), LIMIT_THREADS), quota = cgroup_own_cpus();
    return quota ? min_i32(n, quota) : n;
}

/* Ends the first n_started members. */
static void pool_stop(Pool *pool, int n_started) {
    pool->is_closing = true;
    gate_open(&pool->start);
    for (int i = 1; i < n_started; i++)
        pthread_join(pool->members[i].thread, NULL);
    gate_fini(&pool->start);
    gate_fini(&pool->finish);
    gate_fini(&pool->middle);
    mem_free(pool->members);
    mem_free(pool);
}

/* Gives every member but the caller, whose thread is not ours, a processor of its own where threads
 * are to be pinned and there is one for each. */
static Status pool_pin(Pool *pool, Err *err) {
    NumaCpus allowed;
    bool is_wanted;
    int cpus[LIMIT_THREADS];
    for (int i = 0; i < pool->n_members; i++)
        pool->members[i].cpu = -1;
    if (!numa_own_cpus(&allowed))
        return STATUS_OK;
    TRY(numa_wants_pins(&is_wanted, getenv("LILY_PIN"), pool->n_members, &allowed, NUMA_ROOT, err));
    int quota = is_wanted ? cgroup_own_cpus() : 0;
    if (!is_wanted || (quota && quota < pool->n_members) ||
        !numa_pick_cpus(cpus, pool->n_members, &allowed, NUMA_ROOT))
        return STATUS_OK;
    for (int i = 1; i < pool->n_members; i++)
        pool->members[i].cpu = cpus[i];
    return STATUS_OK;
}

Status pool_open(Pool **out, int n_threads, Err *err) {
    if (n_threads < 0 || n_threads > LIMIT_THREADS)
        return err_set(err, STATUS_INVALID, "threads: expected 0 to %d, found %d", LIMIT_THREADS,
                       n_threads);
    int n = n_threads ? n_threads : pool_n_cpus();
    Pool *pool = mem_alloc_aligned(sizeof *pool);
    if (!pool)
        return err_memory(err, "thread pool", sizeof *pool);
    *pool = (Pool){.n_members = n};
    pool->members = mem_zalloc((size_t)n, sizeof *pool->members);
    if (!pool->members) {
        mem_free(pool);
        return err_memory(err, "thread pool", (size_t)n * sizeof *pool->members);
    }
    Status status = pool_pin(pool, err);
    if (status != STATUS_OK) {
        mem_free(pool->members);
        mem_free(pool);
        return status;
    }
    if (!gate_init(&pool->start) || !gate_init(&pool->finish) || !gate_init(&pool->middle))
        CHECK(!"mutex"); // default attributes need no resources on the systems that we run on
    for (int i = 0; i < n; i++)
        atomic_init(&pool->seen_on[i], -1);
    for (int i = 1; i < n; i++) {
        pool->members[i].pool = pool;
        pool->members[i].index = i;
        if (pthread_create(&pool->members[i].thread, NULL, pool_member_main, &pool->members[i])) {
            pool_stop(pool, i);
            return err_set(err, STATUS_MEMORY, "cannot start thread %d of %d", i + 1, n);
        }
    }
    *out = pool;
    return STATUS_OK;
}

void pool_close(Pool *pool) {
    if (pool)
        pool_stop(pool, pool->n_members);
}

int pool_n_members(const Pool *pool) { return pool->n_members; }

void pool_run(Pool *pool, PoolFn fn, void *ctx) {
    if (pool->n_members == 1) {
        fn(ctx, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store(&pool->n_running, pool->n_members);
    uint32_t seen = atomic_load(&pool->finish.turn);
    gate_open(&pool->start);
    fn(ctx, 0, pool->n_members);
    if (atomic_fetch_sub(&pool->n_running, 1) == 1)
        gate_open(&pool->finish);
    else
        gate_wait(pool, 0, &pool->finish, seen);
}

void pool_barrier(Pool *pool, int member) {
    if (pool->n_members == 1)
        return;
    uint32_t seen = atomic_load(&pool->middle.turn);
    if (atomic_fetch_add(&pool->n_arrived, 1) == pool->n_members - 1) {
        atomic_store(&pool->n_arrived, 0);
        gate_open(&pool->middle);
    } else {
        gate_wait(pool, member, &pool->middle, seen);
    }
}

typedef struct JobRun {
    Pool *pool;
    PoolJobFn fn;
    void *ctx;
    int64_t n_jobs;
} JobRun;

static void pool_job_member(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    JobRun *run = ctx;
    for (;;) {
        int64_t job = atomic_fetch_add(&run->pool->next_job, 1);
        if (job >= run->n_jobs)
            return;
        run->fn(run->ctx, job, member);
    }
}

void pool_jobs(Pool *pool, int64_t n_jobs, PoolJobFn fn, void *ctx) {
    atomic_store(&pool->next_job, 0);
    JobRun run = {pool, fn, ctx, n_jobs};
    pool_run(pool, pool_job_member, &run);
}
