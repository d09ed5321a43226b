// SPDX-License-Identifier: Apache-2.0
/* backend_table.h - what one device's folder gives to the dispatcher; private to src/backend.
 *
 * Path:     backend.c checks every argument against plan and config, then calls the table of the
 *           opened kind. A table's functions may rely on what is said here and check nothing again.
 * Owns:     nothing.  Thread: all calls on one `self` from one thread.
 * Not here: the public contract (backend.h): formulas of the results, lifetimes, failures. */
#ifndef LILY_BACKEND_BACKEND_TABLE_H
#define LILY_BACKEND_BACKEND_TABLE_H

#include "backend/backend.h"

/* One backend. is_available, is_here, memory_free, and counters and what follows it, may be NULL;
 * so may what is said of below.
 *
 * The dispatcher guarantees:
 * - plan: max_rows, max_seqs, n_blocks, n_slots, max_ctx >= 1, n_samplers >= 0, max_logits in
 *   1..max_rows (a 0 is replaced by max_rows), n_threads in 0..LIMIT_THREADS; before open, the sum
 *   of what needs said times the plan's counts fits into 2^62 bytes.
 * - needs: fills all but total_bytes, which the dispatcher adds up.
 * - submit: fewer than BATCH_IN_FLIGHT steps are unfinished; the batch keeps every rule that
 *   backend.h states (ids in [0, V), rows and positions consistent and below max_ctx, blocks, slots
 *   and samplers in range and no slot or sampler twice, wanted rows <= max_logits, carry of a
 *   decode names a sequence of the step submitted last that had a sampler, and that submit
 *   succeeded; carry of a prefill is to be ignored; snapshots ascend strictly inside their
 *   prefill, each in a slot that stands nowhere else in the batch; layers are all, or what
 *   backend_splits_layers states where the table says so).
 * - wait: a step is unfinished.
 * - sampler_set, slot_copy, slot_peek: numbers in range, layer is a GDN layer. A step may be
 *   unfinished: calls take effect in their order, so these see what the steps before them made.
 * - copy_begin: n >= 1, numbers in range, one of `to` and `from` is NULL. Lists count from 1 where
 *   copy_begin returned STATUS_OK; a ticket is the number of such a list.
 * open may keep nothing of w, plan (nor plan->mask) or progress; it may keep log. */
typedef struct BackendTable {
    BackendKind kind;
    int32_t chunk_rows; // what backend_chunk_rows says; 0: as on a CPU
    bool splits_layers; // what backend_splits_layers says
    /* Whether this machine can run it; writes the reason (or a short description) into text
     * [size], NUL-terminated. NULL: it always can. */
    bool (*is_available)(char *text, size_t size);
    /* Whether the machine has such a device at all, usable or not. NULL: it has. */
    bool (*is_here)(void);
    /* Bytes of memory that the device has free, 0 when it does not say. NULL: the host's memory. */
    uint64_t (*memory_free)(int32_t device);
    Status (*needs)(BackendNeeds *out, const Weights *w, const BackendPlan *plan, Err *err);
    Status (*open)(void **self, const Weights *w, const BackendPlan *plan, const Progress *progress,
                   const Log *log, Err *err);
    void (*close)(void *self); // NULL allowed
    const char *(*text)(const void *self);
    Status (*submit)(void *self, const Batch *batch, Err *err);
    Status (*wait)(void *self, BatchResult *results, Err *err);
    Status (*sampler_set)(void *self, int32_t sampler, const SampleParams *params,
                          const int32_t *ids, int32_t n_prompt, int32_t n_generated, Err *err);
    void (*slot_copy)(void *self, int32_t to, int32_t from);
    Status (*copy_begin)(void *self, const BackendCopy *copies, int32_t n, Err *err);
    /* Both NULL: copy_begin has copied when it returns. */
    Status (*copy_poll)(void *self, uint64_t ticket, bool *is_finished, Err *err);
    Status (*copy_wait)(void *self, uint64_t ticket, Err *err);
    /* Both NULL: any host memory will do. p is not NULL. */
    void *(*host_alloc)(void *self, size_t bytes);
    void (*host_free)(void *self, void *p);
    uint64_t (*slot_host_bytes)(const void *self);
    uint64_t (*block_host_bytes)(const void *self);
    Status (*slot_peek)(void *self, int32_t slot, int layer, double *s, double *window, Err *err);
    void (*counters)(const void *self, BackendCounters *out); // NULL: it does not count
    void (*profile_set)(void *self, bool is_on);              // both or neither
    int (*profile)(const void *self, BackendStage *out, int max);
    Status (*meter)(void *self, BackendMeter *out, Err *err); // NULL: it runs on the host's CPUs
} BackendTable;

/* Defined by ref/ref.c, ref/ref64.c and cpu/cpu.c. */
extern const BackendTable backend_ref_table;
extern const BackendTable backend_ref64_table;
extern const BackendTable backend_cpu_table;
#ifdef LILY_HAS_CUDA
extern const BackendTable backend_cuda_table; // cuda/cuda.c
#endif

#endif
