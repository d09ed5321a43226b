// SPDX-License-Identifier: Apache-2.0
/* pool.h - a fixed set of threads that run one piece of work together and own nothing.
 *
 * Path:     the cpu and ref backends, the packer and synth cut their work into jobs.
 * Owns:     its threads.  Thread: pool_run from one thread at a time (it works too, as member 0).
 * Not here: queues between long-lived threads. */
#ifndef LILY_BASE_POOL_H
#define LILY_BASE_POOL_H

#include "status.h"

#include <stdint.h>

typedef struct Pool Pool;

/* One member's share. member in [0, n_members). Must not call pool_run. */
typedef void (*PoolFn)(void *ctx, int member, int n_members);

/* A job: index in [0, n_jobs), handed out in ascending order to whichever member is free. */
typedef void (*PoolJobFn)(void *ctx, int64_t job, int member);

/* n_threads  1..LIMIT_THREADS members in all, the caller included; 0: as many as CPUs this process
 *            may run on.
 * Threads are pinned as numa_wants_pins says of the environment's LILY_PIN, when there is a CPU for
 * each; the caller's never is. Returns STATUS_INVALID, STATUS_MEMORY. */
NODISCARD Status pool_open(Pool **out, int n_threads, Err *err);
void pool_close(Pool *pool);
int pool_n_members(const Pool *pool);
/* CPUs this process may run on, at most LIMIT_THREADS: the members of a pool opened with 0. A quota
 * of its control group counts where it is less. */
int pool_n_cpus(void);
/* Every member runs fn once; returns when all have. Members spin briefly, or yield where they share
 * a processor, then sleep, so that a busy neighbour process does not cost a whole time slice. */
void pool_run(Pool *pool, PoolFn fn, void *ctx);

/* Runs jobs 0..n_jobs-1, each once; returns when all are done. */
void pool_jobs(Pool *pool, int64_t n_jobs, PoolJobFn fn, void *ctx);

/* Inside a PoolFn, by the member of that number: waits until every member has come here. */
void pool_barrier(Pool *pool, int member);

#endif
