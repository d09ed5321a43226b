// SPDX-License-Identifier: Apache-2.0
/* test_numa.c - nodes, cores and pins of machines that a folder describes; threads that are pinned.
 *
 * Path:     make unit.
 * Owns:     nothing.  Thread: main, and a pool's. */
#define _GNU_SOURCE // mkdtemp, sched_getaffinity
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/pool.h"
#include "made_folder.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The set of a text such as "0-3,8". */
static NumaCpus set_of(const char *dir, const char *text) {
    NumaCpus set;
    char path[256];
    put(dir, "set", text);
    snprintf(path, sizeof path, "%s/set", dir);
    assert_true(numa_read_list(&set, path));
    return set;
}

static void test_lists(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/set", dir);
    static const struct {
        const char *text;
        bool is_good;
        uint64_t low; // the first 64
    } rows[] = {{"0\n", true, 1},
                {"0-3,8\n", true, 0x10f},
                {"1-1", true, 2},
                {"2,0", true, 5},
                {"1000-1023\n", true, 0},
                {"\n", true, 0},
                {"1024", false, 0},
                {"3-2", false, 0},
                {"-1", false, 0},
                {"1--2", false, 0},
                {"1-", false, 0},
                {"x", false, 0},
                {"1 2", false, 0},
                {"0-3:1", false, 0},
                {"99999999999999999999", false, 0},
                {"0-99999999999999999999", false, 0}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        NumaCpus set;
        put(dir, "set", rows[i].text);
        assert_int_equal(numa_read_list(&set, path), rows[i].is_good);
        if (rows[i].is_good)
            assert_int_equal(set.bits[0], rows[i].low);
    }
    NumaCpus set = set_of(dir, "1000-1023\n");
    assert_true(numa_has_cpu(&set, 1000) && numa_has_cpu(&set, 1023) && !numa_has_cpu(&set, 999));
    put(dir, "set", "");
    assert_false(numa_read_list(&set, path));
    drop(dir);
    assert_false(numa_read_list(&set, path));
}

static void test_nodes_need_processors_and_memory(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX";
    uint64_t nodes = 0;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(numa_nodes(&nodes, dir), 1); // nothing is known
    assert_int_equal(nodes, 1);
    put(dir, "node/has_cpu", "0-1\n");
    assert_int_equal(numa_nodes(&nodes, dir), 1);
    put(dir, "node/has_memory", "0-3\n"); // two of them bring memory alone
    assert_int_equal(numa_nodes(&nodes, dir), 2);
    assert_int_equal(nodes, 3);
    put(dir, "node/has_memory", "1\n");
    assert_int_equal(numa_nodes(&nodes, dir), 1);
    assert_int_equal(nodes, 2);
    put(dir, "node/has_memory", "2-3\n");
    assert_int_equal(numa_nodes(&nodes, dir), 1);
    assert_int_equal(nodes, 1);
    put(dir, "node/has_memory", "x\n");
    assert_int_equal(numa_nodes(&nodes, dir), 1);
    drop(dir);
}

/* A machine of 2 nodes, 4 cores, 8 processors: i and i + 4 are one core. */
static void put_machine(const char *dir) {
    put(dir, "node/has_cpu", "0-1\n");
    put(dir, "node/has_memory", "0-1\n");
    put(dir, "cpu/online", "0-7\n");
    put(dir, "node/node0/cpulist", "0-1,4-5\n");
    put(dir, "node/node1/cpulist", "2-3,6-7\n");
    for (int i = 0; i < 8; i++) {
        char name[64], text[16];
        snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", i % 4, i % 4 + 4);
        put(dir, name, text);
    }
}

static void test_processors_are_picked_core_by_core(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX";
    int cpus[8];
    assert_non_null(mkdtemp(dir));
    put_machine(dir);
    NumaCpus all = set_of(dir, "0-7"), some = set_of(dir, "1,3,5-7");
    assert_true(numa_pick_cpus(cpus, 2, &all, dir)); // one of each node
    assert_int_equal(cpus[0], 0);
    assert_int_equal(cpus[1], 2);
    assert_true(numa_pick_cpus(cpus, 4, &all, dir));
    for (int i = 0; i < 4; i++)
        assert_int_equal(cpus[i], i);
    for (int n = 1; n <= 8; n++) { // all different
        uint32_t seen = 0;
        assert_true(numa_pick_cpus(cpus, n, &all, dir));
        for (int i = 0; i < n; i++)
            seen |= 1u << cpus[i];
        assert_int_equal(__builtin_popcount(seen), n);
    }
    assert_false(numa_pick_cpus(cpus, 9, &all, dir));
    assert_true(numa_pick_cpus(cpus, 2, &some, dir)); // 5, 6 and 7 are second of theirs
    assert_int_equal(cpus[0], 1);
    assert_int_equal(cpus[1], 3);
    assert_true(numa_pick_cpus(cpus, 5, &some, dir));
    assert_false(numa_pick_cpus(cpus, 6, &some, dir));
    drop(dir);
    assert_true(numa_pick_cpus(cpus, 8, &all, dir)); // a machine that tells nothing of its cores
    for (int i = 0; i < 8; i++)
        assert_int_equal(cpus[i], i);
}

/* Two nodes with processors in turn, as some firmware numbers them: 0, 2, 4, 6 and 1, 3, 5, 7; i
 * and i + 4 are one core. */
static void test_processors_of_all_nodes_are_picked_however_they_are_numbered(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX";
    int cpus[8];
    assert_non_null(mkdtemp(dir));
    put_machine(dir);
    put(dir, "node/node0/cpulist", "0,2,4,6\n");
    put(dir, "node/node1/cpulist", "1,3,5,7\n");
    NumaCpus all = set_of(dir, "0-7"), even = set_of(dir, "0,2,4,6"), one = set_of(dir, "3");
    assert_true(numa_pick_cpus(cpus, 2, &all, dir));
    assert_int_equal(cpus[0] % 2 + cpus[1] % 2, 1);
    for (int n = 5; n < 8; n++) { // every core before a second of any
        uint32_t cores = 0;
        assert_true(numa_pick_cpus(cpus, n, &all, dir));
        for (int i = 0; i < n; i++)
            cores |= 1u << cpus[i] % 4;
        assert_int_equal(cores, 15);
    }
    assert_int_equal(numa_own_nodes(&all, dir), 3);
    assert_int_equal(numa_own_nodes(&even, dir), 1);
    assert_int_equal(numa_own_nodes(&one, dir), 2);
    drop(dir);
    assert_int_equal(numa_own_nodes(&all, dir), 0);
}

static bool wants(const char *mode, const NumaCpus *allowed, const char *root) {
    bool is_wanted = false;
    assert_int_equal(numa_wants_pins(&is_wanted, mode, 4, allowed, root, NULL), STATUS_OK);
    return is_wanted;
}

static void test_pins_are_wanted_on_several_nodes_that_are_all_ours(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX";
    Err err = {0};
    bool is_wanted = true;
    assert_non_null(mkdtemp(dir));
    NumaCpus all = set_of(dir, "0-7"), some = set_of(dir, "0-6");
    assert_false(wants(NULL, &all, dir));
    put_machine(dir);
    assert_true(wants(NULL, &all, dir));
    assert_true(wants("auto", &all, dir));
    assert_true(wants("", &all, dir));
    assert_false(wants("off", &all, dir));
    assert_false(wants(NULL, &some, dir)); // somebody has the rest
    assert_true(wants("on", &some, dir));
    assert_int_equal(numa_wants_pins(&is_wanted, "auto", 3, &all, dir, &err), STATUS_OK);
    assert_false(is_wanted); // there is room for others
    put(dir, "node/has_memory", "0\n");
    assert_false(wants("auto", &all, dir));
    for (size_t i = 0; i < 4; i++) {
        const char *bad = ((const char *const[]){"onn", "yes", "ON", "1"})[i];
        err = (Err){0};
        assert_int_equal(numa_wants_pins(&is_wanted, bad, 4, &all, dir, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, "LILY_PIN"));
    }
    drop(dir);
}

static void test_spread_memory_holds_what_is_written(void **state) {
    UNUSED(state);
    char dir[] = "/tmp/lily-numa-XXXXXX";
    assert_non_null(mkdtemp(dir));
    put_machine(dir);
    const char *const roots[] = {dir, NUMA_ROOT, "/nowhere"};
    for (size_t i = 0; i < COUNT_OF(roots); i++) {
        size_t size = (4 << 20) + 100;
        uint8_t *p = mem_map(size);
        assert_non_null(p);
        numa_spread(p, size, roots[i]);
        memset(p, 7, size);
        assert_int_equal(p[size - 1], 7);
        numa_spread(p + 64, 0, roots[i]);
        mem_unmap(p, size);
    }
    drop(dir);
}

static void note_cpus(void *ctx, int member, int n_members) {
    UNUSED(n_members);
    (void)numa_own_cpus((NumaCpus *)ctx + member);
}

static int count(const NumaCpus *set) {
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(set->bits); i++)
        n += __builtin_popcountll(set->bits[i]);
    return n;
}

static void test_members_are_pinned_and_the_caller_is_not(void **state) {
    UNUSED(state);
    NumaCpus mine, seen[LIMIT_THREADS];
    if (!numa_own_cpus(&mine) || count(&mine) < 2)
        skip();
    int n = min_i32(count(&mine), 4);
    const char *const modes[] = {"on", "off", "on"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        Pool *pool = NULL;
        int members = i == 2 ? count(&mine) + 1 : n; // more than there are: nobody is pinned
        if (members > LIMIT_THREADS)
            continue;
        assert_int_equal(setenv("LILY_PIN", modes[i], 1), 0);
        assert_int_equal(pool_open(&pool, members, NULL), STATUS_OK);
        pool_run(pool, note_cpus, seen);
        for (int m = 1; m < members; m++)
            assert_int_equal(count(&seen[m]), i == 0 ? 1 : count(&mine));
        if (i == 0 && n > 2)
            assert_memory_not_equal(&seen[1], &seen[2], sizeof seen[1]);
        assert_memory_equal(&seen[0], &mine, sizeof mine);
        pool_close(pool);
    }
    Pool *pool = NULL;
    Err err = {0};
    assert_int_equal(setenv("LILY_PIN", "maybe", 1), 0);
    assert_int_equal(pool_open(&pool, 2, &err), STATUS_INVALID);
    assert_null(pool);
    assert_int_equal(unsetenv("LILY_PIN"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_nodes_need_processors_and_memory),
        cmocka_unit_test(test_processors_are_picked_core_by_core),
        cmocka_unit_test(test_processors_of_all_nodes_are_picked_however_they_are_numbered),
        cmocka_unit_test(test_pins_are_wanted_on_several_nodes_that_are_all_ours),
        cmocka_unit_test(test_spread_memory_holds_what_is_written),
        cmocka_unit_test(test_members_are_pinned_and_the_caller_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
