// SPDX-License-Identifier: Apache-2.0
/* job.h - one chat or completions request from its body to its last byte.
 *
 * Path:     http.c opens it (parse, render, encode), runner.c runs it on the engine's thread, its
 *           bytes go through its stream.
 * Owns:     request, turns, answer, stream.  Thread: job_open, job_cancel, job_release: any; what
 *           is marked so: the engine's.
 * Not here: the queue (runner.c), connections (http.c). */
#ifndef LILY_SERVER_JOB_H
#define LILY_SERVER_JOB_H

#include "server/stream.h"
#include "wire/wire.h"

#include <stdatomic.h>

typedef struct Job Job;
struct Runner;

enum { JOB_ID_SIZE = 136 };

/* Why a job ends before its answer does. */
typedef enum JobCancel {
    JOB_GOES_ON,
    JOB_GONE,    // the client has hung up
    JOB_LATE,    // its time is over
    JOB_STOPPED, // the server stops
    JOB_MEMORY,
} JobCancel;

typedef struct JobChoice {
    Job *job;
    int32_t index;
    Turn *turn; // NULL: ended
    TurnFinish finish;
} JobChoice;

/* How far a job is, for those who wait: written by the engine's thread. */
typedef struct JobProgress {
    _Atomic int32_t n_prompt; // tokens of the prompts being read; 0: still in the queue
    _Atomic int32_t n_read, n_generated;
} JobProgress;

/* What a job came to; complete when the stream is done. */
typedef struct JobSum {
    int32_t n_prompt, n_cached, n_shared, n_generated, n_reasoning;
    int32_t n_preempted; // times that its sequences were sent back to the queue
    PrefixMiss miss;
    int64_t added_ns, admitted_ns, first_ns, last_ns; // of the first choice
} JobSum;

struct Job {
    _Atomic int32_t n_refs;
    struct Runner *runner;
    Job *next; // in the runner's queue or list
    WireRequest request;
    WireIdentity identity;
    char id[JOB_ID_SIZE];         // of the answer: "chatcmpl-..."
    char request_id[JOB_ID_SIZE]; // X-Request-Id
    WireAnswer *answer;
    JobChoice choices[WIRE_MAX_CHOICES];
    int32_t n_choices, n_ended;
    Stream stream;
    StrBuf news; // of the step at work                                   (engine's thread)
    bool is_held;
    bool is_streamed; // the answer is a stream of events
    int64_t start_ns, deadline_ns;
    _Atomic int cancel;      // JobCancel
    _Atomic int http_status; // of a whole answer, set before its bytes
    JobProgress progress;
    JobSum sum;
};

/* Who asks. */
typedef struct JobClient {
    uint64_t space, client; // as in TurnRequest
    const char *request_id;
    int64_t start_ns;
} JobClient;

/* Parses a body, renders, encodes and counts, and takes its places in the runner's queue.
 *
 * Returns what wire_request_parse and turn_prepare return, STATUS_BUSY when the queue is full. */
NODISCARD Status job_open(Job **out, struct Runner *runner, WireForm form, StrView body,
                          const JobClient *client, WireFault *fault);
void job_keep(Job *job);
/* Gives one reference back; the last one frees. */
void job_release(Job *job);

/* Asks for an early end; the first reason counts. */
void job_cancel(Job *job, JobCancel why);
JobCancel job_cancelled(const Job *job);

/* The engine's thread. */

/* Starts the turns; what fails ends the job. */
void job_start(Job *job);
/* Ends its turns when that was asked for. */
void job_obey(Job *job);
/* Behind a step: hands the news on, holds the turns back or lets them go on. True when the job is
 * over: its places in the queue are free and its last bytes in the stream. */
bool job_flush(Job *job);

#endif
