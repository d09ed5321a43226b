// SPDX-License-Identifier: Apache-2.0
/* cgroup.c - limits of control groups, of both layouts of their files.
 *
 * Owns:     nothing.  Thread: any. */
#define _GNU_SOURCE // memmem
#include "base/cgroup.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/status.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 4096 };

#define CGROUP_ROOT "/sys/fs/cgroup"

/* A group: below root the first len bytes of path. */
typedef struct Group {
    const char *root, *path;
    int len;
} Group;

typedef void (*GroupFn)(void *ctx, const Group *group);

/* The beginning of a group's file, without an allocation; false: it is not there. controller: the
 * folder of the older layout, "" in the newer. */
static bool group_file(char text[TEXT_BYTES], const Group *g, const char *controller,
                       const char *file) {
    char name[2 * TEXT_BYTES];
    snprintf(name, sizeof name, "%s%s%.*s/%s", g->root, controller, g->len, g->path, file);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_BYTES - 1);
    if (fd >= 0)
        close(fd);
    text[n < 0 ? 0 : n] = 0;
    return n > 0;
}

/* The group at path and those above it, the innermost first. */
static void groups_visit(const char *root, const char *path, GroupFn fn, void *ctx) {
    Group g = {root, path, (int)strnlen(path, TEXT_BYTES)};
    if (path[0] != '/' || strstr(path, "/.."))
        g.len = 0; // outside of what this process sees
    for (;;) {
        while (g.len > 0 && path[g.len - 1] == '/')
            g.len--;
        fn(ctx, &g);
        if (g.len == 0)
            return;
        while (g.len > 0 && path[g.len - 1] != '/')
            g.len--;
    }
}

/* The groups of this process: lines "0::/path", in the older layout "4:cpu,cpuacct:/path". */
static void groups_visit_own(const char *controller, GroupFn fn, void *ctx) {
    char text[TEXT_BYTES];
    const Group proc = {"/proc/self", "", 0};
    if (!group_file(text, &proc, "", "cgroup"))
        return;
    for (char *line = text, *end; line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end)
            *end = 0;
        char *what = strchr(line, ':'), *path = what ? strchr(what + 1, ':') : NULL;
        if (path && (path == what + 1 ||
                     memmem(what, (size_t)(path - what), controller, strlen(controller))))
            groups_visit(CGROUP_ROOT, path + 1, fn, ctx);
    }
}

/* ---- CPUs ---- */

/* Two numbers out of one text or two; false: they are no limit. */
static bool quota_parse(const char *text, const char *period_text, double *cpus) {
    char *end;
    double quota = strtod(text, &end);
    double period = strtod(period_text ? period_text : end, NULL);
    *cpus = quota / period;
    return end != text && quota > 0 && period > 0;
}

static bool quota_of(const Group *g, double *cpus) {
    char text[TEXT_BYTES], period[TEXT_BYTES];
    if (group_file(text, g, "", "cpu.max") && quota_parse(text, NULL, cpus)) // "max 100000": none
        return true;
    return group_file(text, g, "/cpu", "cpu.cfs_quota_us") &&
           group_file(period, g, "/cpu", "cpu.cfs_period_us") && quota_parse(text, period, cpus);
}

static void take_cpus(void *ctx, const Group *g) {
    int *least = ctx;
    double cpus;
    if (!quota_of(g, &cpus))
        return;
    int n = cpus < 1 ? 1 : cpus > LIMIT_THREADS ? LIMIT_THREADS : (int)cpus;
    *least = *least ? min_i32(*least, n) : n;
}

int cgroup_cpus(const char *root, const char *path) {
    int least = 0;
    groups_visit(root, path, take_cpus, &least);
    return least;
}

int cgroup_own_cpus(void) {
    int least = 0;
    groups_visit_own("cpu", take_cpus, &least);
    return least;
}

/* ---- memory ---- */

/* false: no whole number ("max": no limit). */
static bool bytes_parse(const char *text, uint64_t *bytes) {
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    *bytes = strtoull(text, &end, 10);
    return *end == 0 || *end == '\n';
}

/* The number behind a key that begins a line; 0: it is not there. */
static uint64_t stat_of(const char *text, const char *key) {
    size_t len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return strtoull(line + len, NULL, 10);
    }
    return 0;
}

/* The files of one layout. */
typedef struct MemoryFiles {
    const char *controller, *limit, *used, *cache;
} MemoryFiles;

static void take_memory(void *ctx, const Group *g) {
    static const MemoryFiles layouts[] = {
        {"", "memory.max", "memory.current", "inactive_file"},
        {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};
    CgroupMemory *least = ctx;
    char text[TEXT_BYTES];
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        const MemoryFiles *f = &layouts[i];
        uint64_t limit, used = 0, cache = 0;
        if (!group_file(text, g, f->controller, f->limit) || !bytes_parse(text, &limit))
            continue;
        if (group_file(text, g, f->controller, f->used))
            (void)bytes_parse(text, &used);
        if (group_file(text, g, f->controller, "memory.stat"))
            cache = stat_of(text, f->cache);
        used -= cache < used ? cache : used;
        uint64_t room = limit > used ? limit - used : 0;
        least->limit = limit < least->limit ? limit : least->limit;
        least->room = room < least->room ? room : least->room;
    }
}

CgroupMemory cgroup_memory(const char *root, const char *path) {
    CgroupMemory least = {UINT64_MAX, UINT64_MAX};
    groups_visit(root, path, take_memory, &least);
    return least;
}

CgroupMemory cgroup_own_memory(void) {
    CgroupMemory least = {UINT64_MAX, UINT64_MAX};
    groups_visit_own("memory", take_memory, &least);
    return least;
}
