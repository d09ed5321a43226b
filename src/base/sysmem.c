// SPDX-License-Identifier: Apache-2.0
/* sysmem.c - memory figures from /proc and the control group, or the system's own calls.
 *
 * Owns:     nothing.  Thread: any. */
#define _GNU_SOURCE
#include "base/sysmem.h"

#include "base/cgroup.h"
#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* The number behind `key` in a text such as /proc/meminfo, times 1024; 0 when it is not there. */
static uint64_t sysmem_field(const char *path, StrView key) {
    StrBuf text = {0};
    uint64_t value = 0;
    if (file_read_all(&text, path, 1 << 20, NULL) == STATUS_OK) {
        size_t off = str_find(strbuf_view(&text), key);
        if (off != SIZE_MAX)
            value = strtoull(text.ptr + off + key.len, NULL, 10) * 1024;
    }
    strbuf_fini(&text);
    return value;
}

/* What RLIMIT_AS (ulimit -v) leaves; UINT64_MAX: all. */
static uint64_t sysmem_address_room(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    uint64_t used = sysmem_field("/proc/self/status", STR("VmSize:"));
    return limit.rlim_cur > used ? (uint64_t)limit.rlim_cur - used : 0;
}

uint64_t sysmem_total(void) {
    uint64_t total = sysmem_field("/proc/meminfo", STR("MemTotal:"));
    if (total == 0) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    }
    uint64_t limit = cgroup_own_memory().limit;
    return limit < total ? limit : total;
}

uint64_t sysmem_available(void) {
    uint64_t available = sysmem_field("/proc/meminfo", STR("MemAvailable:"));
    if (available == 0)
        available = sysmem_total();
    uint64_t room = cgroup_own_memory().room, addresses = sysmem_address_room();
    room = addresses < room ? addresses : room;
    if (room < available)
        available = room ? room : 1; // full is known, unlike 0
    return available;
}

void sysmem_reset_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "5", 1) != 1) {
        // Then the peak is that of the whole run, which is what a system without the file gives.
    }
    file_close(fd);
}

uint64_t sysmem_resident(void) {
    StrBuf text = {0};
    uint64_t pages = 0;
    long page = sysconf(_SC_PAGESIZE);
    if (file_read_all(&text, "/proc/self/statm", 4096, NULL) == STATUS_OK && text.len) {
        char *rest;
        (void)strtoull(text.ptr, &rest, 10); // the whole address space
        pages = strtoull(rest, NULL, 10);
    }
    strbuf_fini(&text);
    return page > 0 ? pages * (uint64_t)page : 0;
}

uint64_t sysmem_peak(void) {
    // getrusage would count what the process was before exec: its parent's size.
    uint64_t peak = sysmem_field("/proc/self/status", STR("VmHWM:"));
    struct rusage usage;
    if (peak)
        return peak;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}
