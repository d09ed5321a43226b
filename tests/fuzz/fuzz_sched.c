// SPDX-License-Identifier: Apache-2.0
/* fuzz_sched.c - the scheduler driven by arrivals, steps, cancels, pauses, forced ids and failures.
 *
 * Input: three bytes of sizes, then operations (sched_run.h).
 * Must hold behind each step: blocks, slots and references add up, nobody is lost or stands twice,
 * the sequence that came first is never sent back, a cancel is obeyed at once; every id told is the
 * one of an undisturbed answer; in the end all have ended once and everything is given back. */
#include "../unit/sched_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Weights *weights;
    Err err = {0};
    if (!weights)
        CHECK(weights_open(&weights, "synth:micro", NULL, &err) == STATUS_OK);
    if (size <= 4096)
        (void)run_bytes(weights, data, size);
    return 0;
}
