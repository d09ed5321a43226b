// SPDX-License-Identifier: Apache-2.0
/* bench.h - what the files of the verb `bench` share: the figures of its rows.
 *
 * Path:     bench.c fills them round by round, bench_json.c makes one JSON object of them.
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_BENCH_H
#define LILY_CLI_BENCH_H

#include "base/json.h"
#include "cli/bench_run.h"
#include "cli/bench_stats.h"
#include "cli/work.h"

enum { BENCH_MAX_CONTEXTS = 32 };

/* One phase's figures over the rounds of a row. */
typedef struct BenchPhase {
    BenchSeries tok_s, share;
    BenchSeries read_gb_s, matrix_tflops; // that each round's share was taken against
    WorkLoad load;                        // of the last round
    bool is_flop;                         // the operations are its bound, not the bytes
    double seconds, stage_seconds[STAGE_N], stage_bound_seconds[STAGE_N]; // of all rounds
} BenchPhase;

/* A context's row. */
typedef struct BenchRow {
    int32_t context;
    bool is_filled, is_unstable;
    int n_rounds;
    BenchPhase phase[2];                  // by BatchPhase; prefill has no rounds when filled
    bool are_experts_counted;             // by the device; else worked out for even routing
    uint64_t digest;                      // of the ids that the last round fed
    uint64_t seq_digest[BENCH_MAX_BATCH]; // of each sequence's
    uint64_t peak_bytes;                  // of the process, the meters' own memory left out
} BenchRow;

/* A context that was asked for and not measured. */
typedef struct BenchSkip {
    int32_t context;
    char reason[160];
} BenchSkip;

typedef struct Bench {
    const CliArgs *args;
    Weights *weights;
    const ModelConfig *config;
    BenchRun run;
    Work work;
    int32_t n_steps, n_rounds, fill_above;
    int32_t contexts[BENCH_MAX_CONTEXTS]; // what is asked for and fits
    int n_contexts;
    BenchRow *rows; // [n_contexts]
    BenchSkip skipped[BENCH_MAX_CONTEXTS];
    int n_skipped;
    int32_t *made;       // [batch, n_steps] ids of the decode at work
    size_t meter_bytes;  // a thread
    BackendMeter before; // measured last
    int n_threads;
    BackendMeter best; // of the run
    json_t *earlier;   // --compare: a result to hold this one against; NULL: none
    int n_slower;      // figures that are, compared with it
    Err *err;
} Bench;

/* Whether a context of n tokens is filled in instead of read. */
bool bench_is_filled(const Bench *b, int32_t n);

/* The whole result; docs/performance.md lists the keys. NULL: out of memory. */
json_t *bench_json(const Bench *b);
/* What of it is known before anything is loaded, as far as bench_compare_check asks for it. NULL:
 * out of memory. */
json_t *bench_json_asked(const Bench *b, const BenchRunPlan *plan);

#endif
