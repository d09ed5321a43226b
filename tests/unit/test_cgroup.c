// SPDX-License-Identifier: Apache-2.0
/* test_cgroup.c - limits out of folders that look like mounted control groups.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: main. */
#define _GNU_SOURCE // mkdtemp
#include "base/cgroup.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/sysmem.h"
#include "made_folder.h"

#include <stdlib.h>

static void test_a_quota_of_the_control_group_counts(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-cgroup-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cgroup_cpus(dir, "/"), 0); // nothing is there
    static const struct {
        const char *text;
        int n;
    } rows[] = {{"max 100000\n", 0},
                {"200000 100000\n", 2},
                {"250000 100000\n", 2},
                {"50000 100000\n", 1},
                {"1 100000\n", 1},
                {"99999999999 100\n", LIMIT_THREADS},
                {"", 0},
                {"x\n", 0},
                {"300000\n", 0},
                {"300000 0\n", 0},
                {"-5 100000\n", 0},
                {"nan 1\n", 0}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        put(dir, "cpu.max", rows[i].text);
        assert_int_equal(cgroup_cpus(dir, "/"), rows[i].n);
    }
    // The least of a group and those above it.
    put(dir, "cpu.max", "600000 100000\n");
    put(dir, "a/cpu.max", "300000 100000\n");
    put(dir, "a/b/cpu.max", "400000 100000\n");
    put(dir, "a/b/c/cpu.max", "max 100000\n");
    assert_int_equal(cgroup_cpus(dir, "/a/b/c"), 3);
    assert_int_equal(cgroup_cpus(dir, "/a/b/c//"), 3);
    assert_int_equal(cgroup_cpus(dir, "/d"), 6);
    assert_int_equal(cgroup_cpus(dir, "/../a"), 6); // outside of what this process sees
    assert_int_equal(cgroup_cpus(dir, ""), 6);
    // The older layout.
    put(dir, "cpu.max", "max 100000\n");
    put(dir, "cpu/g/cpu.cfs_quota_us", "400000\n");
    put(dir, "cpu/g/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cgroup_cpus(dir, "/g"), 4);
    put(dir, "cpu/g/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(cgroup_cpus(dir, "/g"), 0);
    put(dir, "cpu/g/cpu.cfs_quota_us", ""); // and one that is empty
    assert_int_equal(cgroup_cpus(dir, "/g"), 0);
    drop(dir);
}

static void assert_memory(const char *dir, const char *path, uint64_t limit, uint64_t room) {
    CgroupMemory m = cgroup_memory(dir, path);
    assert_int_equal(m.limit, limit);
    assert_int_equal(m.room, room);
}

static void test_a_memory_limit_of_every_group_above_counts(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-cgroup-XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_memory(dir, "/", UINT64_MAX, UINT64_MAX); // nothing is there
    static const char *const none[] = {"max\n", "", "x\n", "-5\n", "12x\n"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        put(dir, "memory.max", none[i]);
        assert_memory(dir, "/", UINT64_MAX, UINT64_MAX);
    }
    put(dir, "memory.max", "1000\n");
    assert_memory(dir, "/", 1000, 1000); // no more is known
    put(dir, "memory.current", "900\n");
    assert_memory(dir, "/", 1000, 100);
    // Pages that only wait to be read again do not fill a group.
    put(dir, "memory.stat",
        "anon 100\nfile 800\nzinactive_file 1\ninactive_file 700\nactive_file 100\n");
    assert_memory(dir, "/", 1000, 800);
    put(dir, "memory.stat", "inactive_file 5000\n"); // read a moment later
    assert_memory(dir, "/", 1000, 1000);
    put(dir, "memory.stat", "");
    put(dir, "memory.current", "1200\n"); // a full group has no room, whatever the machine has
    assert_memory(dir, "/", 1000, 0);
    // The least of a group and those above it, each for itself.
    put(dir, "memory.current", "100\n");
    put(dir, "a/memory.max", "800\n");
    put(dir, "a/memory.current", "90\n");
    put(dir, "a/b/memory.max", "max\n");
    put(dir, "c/memory.max", "2000\n");
    put(dir, "c/memory.current", "1950\n");
    assert_memory(dir, "/a/b", 800, 710);
    assert_memory(dir, "/c", 1000, 50);
    assert_memory(dir, "/d", 1000, 900);
    assert_memory(dir, "/../a", 1000, 900); // outside of what this process sees
    drop(dir);
}

static void test_a_memory_limit_of_the_older_layout_counts(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-cgroup-XXXXXX";
    assert_non_null(mkdtemp(dir));
    put(dir, "memory/memory.limit_in_bytes", "9223372036854771712\n"); // as good as none
    put(dir, "memory/memory.usage_in_bytes", "4096\n");
    put(dir, "memory/g/memory.limit_in_bytes", "5000\n");
    put(dir, "memory/g/memory.usage_in_bytes", "4000\n");
    put(dir, "memory/g/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    assert_memory(dir, "/g", 5000, 1500);
    assert_memory(dir, "/", 9223372036854771712u, 9223372036854771712u - 4096);
    drop(dir);
}

static void test_own_limits_hold_for_what_is_said_of_the_machine(void **state) {
    UNUSED(state);
    CgroupMemory own = cgroup_own_memory();
    assert_true(own.room <= own.limit);
    assert_true(sysmem_total() <= own.limit);
    assert_true(cgroup_own_cpus() >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_quota_of_the_control_group_counts),
        cmocka_unit_test(test_a_memory_limit_of_every_group_above_counts),
        cmocka_unit_test(test_a_memory_limit_of_the_older_layout_counts),
        cmocka_unit_test(test_own_limits_hold_for_what_is_said_of_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
