// SPDX-License-Identifier: Apache-2.0
/* bench_run.h - some sequences straight on a backend, read one behind the other and decoded
 * together: what `bench` times.
 *
 * Path:     bench.c.
 * Owns:     a BenchRun owns the Backend, block table, prompts and results.  Thread: main.
 * Not here: clocks, meters, rounds (bench.c). */
#ifndef LILY_CLI_BENCH_RUN_H
#define LILY_CLI_BENCH_RUN_H

#include "backend/backend.h"
#include "cli/options.h"

enum { BENCH_MAX_BATCH = 64 };

/* What is opened. */
typedef struct BenchRunPlan {
    BackendKind kind;
    int32_t n_seqs;      // 1..BENCH_MAX_BATCH
    int32_t n_positions; // of each, prompt and decoded tokens
    int32_t chunk;       // rows of a prefill step, a multiple of RECUR_CHUNK
    uint64_t seed;       // sequence i has prompt number seed + i
} BenchRunPlan;

typedef struct BenchRun {
    BenchRunPlan plan;
    Backend *backend;
    BackendNeeds needs;
    const ModelConfig *config;
    int32_t seq_blocks;   // KV blocks of a sequence
    int32_t *blocks;      // [n_seqs * seq_blocks] every block in order
    int32_t *ids;         // [n_seqs, n_positions] prompts
    int32_t *next;        // [n_seqs] id that each sequence chose last
    BatchSeq *parts;      // [BATCH_IN_FLIGHT, n_seqs]
    BatchResult *results; // [n_seqs]
} BenchRun;

/* Bytes that bench_run_open would take. */
NODISCARD Status bench_run_needs(BackendNeeds *out, const BenchRunPlan *plan, const CliArgs *args,
                                 const Weights *w, Err *err);
NODISCARD Status bench_run_open(BenchRun *out, const BenchRunPlan *plan, const CliArgs *args,
                                const Weights *w, Err *err);
void bench_run_close(BenchRun *r);

/* Reads n tokens of every prompt, one sequence behind the other, and chooses each one's next id.
 * NaN or infinity is STATUS_NUMERIC. */
NODISCARD Status bench_run_prefill(BenchRun *r, int32_t n, Err *err);

/* Whether a context of n can be filled in: bench_run_fill reads at least a block and fills one. */
bool bench_run_can_fill(int32_t n);

/* Stands in for bench_run_prefill where that would take too long: the first tokens of each prompt
 * (512, or half of n where that is less) are really read; every block of keys and values behind
 * them is a copy of one of theirs, chosen at random; the recurrent state is theirs. So what decode
 * reads has the size, the format and the distribution of the real thing, lies in memory of its own,
 * and no number in it is made up; only its meaning is gone. */
NODISCARD Status bench_run_fill(BenchRun *r, int32_t n, Err *err);

/* n_steps steps of all sequences from position pos on, each taking what the one before chose, the
 * first one what the last call chose. Two steps are under way at a time where the device allows it.
 *
 * made  [n_seqs] rows of n_steps ids that were fed, ld apart         (out) */
NODISCARD Status bench_run_decode(BenchRun *r, int32_t pos, int32_t n_steps, int32_t *made,
                                  int32_t ld, Err *err);

/* Runs every shape of step that prefill and decode at context n will run, once: the whole piece,
 * the last one, decode at n. Leaves blocks and states undefined but finite. */
NODISCARD Status bench_run_warm(BenchRun *r, int32_t n, bool is_filled, Err *err);

#endif
