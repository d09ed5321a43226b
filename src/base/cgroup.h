// SPDX-License-Identifier: Apache-2.0
/* cgroup.h - what the control groups that this process is in let it have.
 *
 * Owns:     nothing, allocates nothing.  Thread: any.
 * Source:   Linux's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
 *
 * A group's limit holds for all groups below it, so the least of a group and those above it counts.
 * In the functions with a root it is where the groups are mounted, /sys/fs/cgroup; path is the
 * process's group below it, as /proc/self/cgroup says. A group outside of what this process sees
 * counts as the root, which is what a container's own group looks like from inside. */
#ifndef LILY_BASE_CGROUP_H
#define LILY_BASE_CGROUP_H

#include <stdint.h>

/* Whole CPUs, at least 1, that are allowed in the long run; 0: no limit is known. A thread more
 * would be stopped in the middle of its share while all others wait at the barrier. */
int cgroup_cpus(const char *root, const char *path);
int cgroup_own_cpus(void);

/* Bytes; UINT64_MAX: no limit is known. */
typedef struct CgroupMemory {
    uint64_t limit;
    uint64_t room; // what can still be taken; pages of files that nobody has mapped count as free
} CgroupMemory;

CgroupMemory cgroup_memory(const char *root, const char *path);
CgroupMemory cgroup_own_memory(void);

#endif
