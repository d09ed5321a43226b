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

static bool node_cpus(NumaCpus *out, int node, const char *root) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/node/node%d/cpulist", root, node);
    return numa_read_list(out, path);
}

uint64_t numa_own_nodes(const NumaCpus *allowed, const char *root) {
    uint64_t nodes, own = 0;
    numa_nodes(&nodes, root);
    for (int node = 0; node < 64; node++) {
        NumaCpus cpus;
        if (!(nodes >> node & 1) || !node_cpus(&cpus, node, root))
            continue;
        for (int i = 0; i < NUMA_CPUS / 64; i++)
            if (cpus.bits[i] & allowed->bits[i])
                own |= (uint64_t)1 << node;
    }
    return own;
}

void numa_spread(void *p, size_t size, const char *root) {
#if defined(__linux__) && defined(SYS_mbind) && defined(SYS_get_mempolicy)
    enum { DEFAULT = 0, INTERLEAVE = 3 }; // MPOL_... of linux/mempolicy.h
    NumaCpus allowed;
    int policy = DEFAULT;
    if (!size || !numa_own_cpus(&allowed) ||
        syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) != 0 || policy != DEFAULT)
        return;
    uint64_t nodes = numa_own_nodes(&allowed, root);
    if (__builtin_popcountll(nodes) > 1)
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

/* Adds those of `from` that are first of their core, or are not. */
static int cpus_add(int *cpus, int n, const NumaCpus *from, bool is_first, const char *root) {
    for (int cpu = 0; cpu < NUMA_CPUS; cpu++)
        if (numa_has_cpu(from, cpu) && cpu_is_first(cpu, root) == is_first)
            cpus[n++] = cpu;
    return n;
}

/* All processors allowed: one of each core, then the others, both node by node (those of no node
 * last). Returns how many; n_first: of the first kind. */
static int cpus_list(int cpus[NUMA_CPUS], int *n_first, const NumaCpus *allowed, const char *root) {
    int n = 0;
    for (int pass = 0; pass < 2; pass++) {
        NumaCpus left = *allowed;
        for (int node = 0; node < 64; node++) {
            NumaCpus mine;
            if (!node_cpus(&mine, node, root))
                continue;
            for (int i = 0; i < NUMA_CPUS / 64; i++) {
                mine.bits[i] &= left.bits[i];
                left.bits[i] &= ~mine.bits[i];
            }
            n = cpus_add(cpus, n, &mine, pass == 0, root);
        }
        n = cpus_add(cpus, n, &left, pass == 0, root);
        *n_first = pass == 0 ? n : *n_first;
    }
    return n;
}

bool numa_pick_cpus(int *out, int n, const NumaCpus *allowed, const char *root) {
    int cpus[NUMA_CPUS], n_first, n_all = cpus_list(cpus, &n_first, allowed, root);
    if (n > n_all)
        return false;
    int firsts = n < n_first ? n : n_first, others = n - firsts;
    for (int i = 0; i < firsts; i++)
        out[i] = cpus[(int64_t)i * n_first / firsts];
    for (int i = 0; i < others; i++)
        out[firsts + i] = cpus[n_first + (int64_t)i * (n_all - n_first) / others];
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

Status numa_wants_pins(bool *out, const char *mode, int n, const NumaCpus *allowed,
                       const char *root, Err *err) {
    char path[PATH_BYTES];
    uint64_t nodes;
    NumaCpus online;
    int cpus[NUMA_CPUS], n_first;
    mode = mode && *mode ? mode : "auto";
    *out = strcmp(mode, "on") == 0;
    if (*out || strcmp(mode, "off") == 0)
        return STATUS_OK;
    if (strcmp(mode, "auto") != 0)
        return err_set(err, STATUS_INVALID, "LILY_PIN: expected on, off or auto, found %.64s",
                       mode);
    snprintf(path, sizeof path, "%s/cpu/online", root);
    if (numa_nodes(&nodes, root) < 2 || !numa_read_list(&online, path) ||
        memcmp(&online, allowed, sizeof online) != 0)
        return STATUS_OK;
    cpus_list(cpus, &n_first, allowed, root);
    *out = n >= n_first;
    return STATUS_OK;
}
