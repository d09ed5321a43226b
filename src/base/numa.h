// SPDX-License-Identifier: Apache-2.0
/* numa.h - which nodes of memory a machine has, and which of its processors threads are pinned to.
 *
 * Path:     pool.c pins its members, the packer spreads weights.
 * Owns:     nothing.  Thread: any.
 *
 * On systems other than Linux there is one node, and nothing is pinned. */
#ifndef LILY_BASE_NUMA_H
#define LILY_BASE_NUMA_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMA_CPUS = 1024 }; // as many as the system's own set holds
#define NUMA_ROOT "/sys/devices/system"

/* A set of processors. */
typedef struct NumaCpus {
    uint64_t bits[NUMA_CPUS / 64];
} NumaCpus;

static inline bool numa_has_cpu(const NumaCpus *set, int cpu) {
    return set->bits[cpu / 64] >> (cpu % 64) & 1;
}

/* Numbers such as "0-3,8" of a small file into a set; false: it is not there, or holds anything
 * else or a number from NUMA_CPUS up. */
bool numa_read_list(NumaCpus *out, const char *path);

/* Nodes with both processors and memory; bit i: node i (of the first 64). Returns how many, 1 where
 * nothing is known.
 *
 * root  NUMA_ROOT, or a folder that looks like it */
int numa_nodes(uint64_t *out, const char *root);

/* Of those, the nodes that have a processor out of `allowed`; 0 where nothing is known. */
uint64_t numa_own_nodes(const NumaCpus *allowed, const char *root);

/* Lets pages of [p, p + size) that nobody has touched yet come in turn from all nodes whose
 * processors this process may use, so that every thread reads all memories at once; nothing happens
 * where that is one node, or where somebody gave this process a memory policy. A hint: its failure
 * changes nothing. p: at a page's beginning. */
void numa_spread(void *p, size_t size, const char *root);

/* n processors out of those allowed, one of each core before a second of any, spread evenly over
 * the nodes; false when fewer are allowed. */
bool numa_pick_cpus(int *out, int n, const NumaCpus *allowed, const char *root);

/* Processors that this process may use; false where the system does not tell. */
bool numa_own_cpus(NumaCpus *out);
/* Pins the calling thread; a failure changes nothing. */
void numa_pin(int cpu);

/* Whether threads are to be pinned.
 *
 * mode     "on", "off", "auto", or NULL or "" for auto: where there are several nodes, this
 *          process may use every processor and has a thread for each core, so that nobody else
 *          works beside it
 * n        threads
 * allowed  processors that this process may use
 *
 * Returns STATUS_INVALID for another mode, named as LILY_PIN. */
NODISCARD Status numa_wants_pins(bool *out, const char *mode, int n, const NumaCpus *allowed,
                                 const char *root, Err *err);

#endif
