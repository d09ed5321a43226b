// SPDX-License-Identifier: Apache-2.0
/* runner.h - the thread that owns the engine, and the bounded queue in front of it.
 *
 * Path:     http.c -> job_open -> runner_reserve, runner_submit -> engine.
 * Owns:     weights, tokenizer, engine, the jobs in work.  Thread: any, but for what jobs call.
 * Not here: one job's work (job.c). */
#ifndef LILY_SERVER_RUNNER_H
#define LILY_SERVER_RUNNER_H

#include "server/job.h"
#include "server/metrics.h"
#include "server/server.h"

typedef enum RunnerState {
    RUNNER_LOADING,
    RUNNER_READY,
    RUNNER_DRAINING, // no new requests
    RUNNER_FAILED,   // the model could not be opened, or its device is lost
} RunnerState;

const char *runner_state_name(RunnerState state);

/* What requests need of the model; there from RUNNER_READY on, and constant. */
typedef struct RunnerModel {
    TurnModel turn;
    Generation defaults;
    int32_t vocab;     // ids that have a token
    int32_t limit_tok; // longest sequence
    int32_t thinking_budget;
    const char *name; // what the API calls it
    int64_t created;  // seconds since 1970
    char fingerprint[32];
} RunnerModel;

typedef struct Runner Runner;

/* Starts the thread, which opens the model. options, log and metrics are kept. */
NODISCARD Status runner_open(Runner **out, const ServerOptions *options, Metrics *metrics,
                             const Log *log, Err *err);
RunnerState runner_state(const Runner *r);
/* The reason of RUNNER_FAILED; share: 0 to 1 of the weights are read. */
void runner_failure(Runner *r, Err *out);
double runner_loaded_share(const Runner *r);
const RunnerModel *runner_model(const Runner *r);
const ServerOptions *runner_options(const Runner *r);
const Log *runner_log(const Runner *r);
Metrics *runner_metrics(const Runner *r);

/* Takes n places in the queue. STATUS_BUSY when it is full or the server is not ready. */
NODISCARD Status runner_reserve(Runner *r, int32_t n, Err *err);
void runner_unreserve(Runner *r, int32_t n);
/* Hands a job over; the runner has a reference of its own until the job is over. */
void runner_submit(Runner *r, Job *job);
/* Something about a job has changed: a cancel, or a reader that has caught up. */
void runner_wake(Runner *r);

/* Choices that run or wait. */
int32_t runner_n_live(Runner *r);
/* Figures as of the last step. */
typedef struct RunnerFigures {
    EngineFigures engine;
    EnginePlan plan;
    uint64_t program_bytes; // resident before the model was opened: the program and its libraries
} RunnerFigures;
void runner_figures(Runner *r, RunnerFigures *out);
/* The device's line. "" while loading. */
const char *runner_device(const Runner *r);

/* No new jobs from now on. */
void runner_drain(Runner *r);
/* Ends every job that is left and the thread; jobs that are submitted later end at once. */
void runner_end(Runner *r);
/* runner_end, and frees all. */
void runner_close(Runner *r);

/* The engine's thread: the device has failed, or works again. */
void runner_note_device(Runner *r, const Err *failure);

#endif
