// SPDX-License-Identifier: Apache-2.0
/* numa.c - nodes and cores as /sys lists them; memory policy and affinity by system calls.
 *
 * Owns:     nothing.  Thread: any. */
#define _GNU_SOURCE // sched_setaffinity, syscall
#include "numa.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { LIST_BYTES = 4096, PATH_BYTES = 512 };

static void set_add(NumaCpus *set, int cpu) { set->bits[cpu / 64] |= (uint64_t)1 << (cpu % 64); }

static bool list_parse(NumaCpus *out, const char *text) {
    *out = (NumaCpus){{0}};
    while (*text && *text != '\n') {
        char *end;
        errno = 0;
        long low = strtol(text, &end, 10), high = low;
        if (end == text || *text < '0')
            return false;
        if (*end == '-') {
            text = end + 1;
            high = strtol(text, &end, 10);
            if (end == text || *text < '0')
                return false;
        }
        if (errno || low > high || high >= NUMA_CPUS || (*end && *end != ',' && *end != '\n'))
            return false;
        for (long i = low; i <= high; i++)
            set_add(out, (int)i);
        text = end + (*end == ',');
    }
    return true;
}

bool numa_read_list(NumaCpus *out, const char *path) {
    char text[LIST_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    return list_parse(out, text);
}

int numa_nodes(uint64_t *out, const char *root) {
    char path[PATH_BYTES];
    NumaCpus cpu, memory;
    *out = 1;
    snprintf(path, sizeof path, "%s/node/has_cpu", root);
    if (!numa_read_list(&cpu, path))
        return 1;
    snprintf(path, sizeof path, "%s/node/has_memory", root);
    if (!numa_read_list(&memory, path) || !(cpu.bits[0] & memory.bits[0]))
        return 1;
    *out = cpu.bits[0] & memory.bits[0];
    return __builtin_popcountll(*out);
}

void numa_spread(void *p, size_t size, const char *root) {
#if defined(__linux__) && defined(SYS_mbind)
    enum { INTERLEAVE = 3 }; // MPOL_INTERLEAVE of linux/mempolicy.h
    uint64_t nodes;
    if (numa_nodes(&nodes, root) > 1 && size)
        (void)syscall(SYS_mbind, p, size, INTERLEAVE, &nodes, 8 * sizeof nodes + 1, 0);
#else
    UNUSED(p);
    UNUSED(size);
    UNUSED(root);
#endif
}

/* Whether a processor is the first of its core, also where that is not known. */
static bool cpu_is_first(int cpu, const char *root) {
    char path[PATH_BYTES];
    NumaCpus siblings;
    snprintf(path, sizeof path, "%s/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    if (!numa_read_list(&siblings, path))
        return true;
    for (int i = 0; i < cpu; i++)
        if (numa_has_cpu(&siblings, i))
            return false;
    return true;
}

bool numa_pick_cpus(int *out, int n, const NumaCpus *allowed, const char *root) {
    int cpus[NUMA_CPUS], n_first = 0, n_all = 0;
    for (int pass = 0; pass < 2; pass++) { // first of their cores, then the others
        for (int cpu = 0; cpu < NUMA_CPUS; cpu++)
            if (numa_has_cpu(allowed, cpu) && cpu_is_first(cpu, root) == (pass == 0))
                cpus[n_all++] = cpu;
        n_first = pass == 0 ? n_all : n_first;
    }
    if (n > n_all)
        return false;
    int from = n <= n_first ? n_first : n_all;
    for (int i = 0; i < n; i++)
        out[i] = cpus[(int64_t)i * from / n];
    return true;
}

bool numa_own_cpus(NumaCpus *out) {
#ifdef __linux__
    cpu_set_t set;
    *out = (NumaCpus){{0}};
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return false;
    for (int cpu = 0; cpu < NUMA_CPUS && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            set_add(out, cpu);
    return true;
#else
    UNUSED(out);
    return false;
#endif
}

void numa_pin(int cpu) {
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
#else
    UNUSED(cpu);
#endif
}

Status numa_wants_pins(bool *out, const char *mode, const NumaCpus *allowed, const char *root,
                       Err *err) {
    char path[PATH_BYTES];
    uint64_t nodes;
    NumaCpus online;
    mode = mode && *mode ? mode : "auto";
    *out = strcmp(mode, "on") == 0;
    if (*out || strcmp(mode, "off") == 0)
        return STATUS_OK;
    if (strcmp(mode, "auto") != 0)
        return err_set(err, STATUS_INVALID, "LILY_PIN: expected on, off or auto, found %.64s",
                       mode);
    snprintf(path, sizeof path, "%s/cpu/online", root);
    *out = numa_nodes(&nodes, root) > 1 && numa_read_list(&online, path) &&
           memcmp(&online, allowed, sizeof online) == 0;
    return STATUS_OK;
}
