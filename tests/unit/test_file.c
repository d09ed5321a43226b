// SPDX-License-Identifier: Apache-2.0
/* test_file.c - files whole or not at all, and every failure told.
 *
 * Path:     make unit.
 * Owns:     a temporary folder.  Thread: one. */
#define _GNU_SOURCE // O_TMPFILE
#include "base/file.h"
#include "base/mem.h"
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state) {
    UNUSED(state);
    snprintf(folder, sizeof folder, "/tmp/lily-test-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int n_entries(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int drop_folder(void **state) {
    UNUSED(state);
    return rmdir(folder);
}

static Status write_file(const char *path, Err *err) {
    FileWriter *w = NULL;
    TRY(file_writer_open(&w, path, err));
    Status status = file_writer_append(w, "hello ", 6, err);
    if (status == STATUS_OK)
        status = file_writer_append(w, "world", 5, err);
    if (status == STATUS_OK)
        status = file_writer_write_at(w, "J", 1, 0, err);
    if (status == STATUS_OK)
        status = file_writer_commit(w, err);
    file_writer_close(w);
    return status;
}

static void test_write_then_read(void **state) {
    UNUSED(state);
    Err err = {0};
    char *path = file_join(folder, "a");
    assert_int_equal(write_file(path, &err), STATUS_OK);
    StrBuf text = {0};
    assert_int_equal(file_read_all(&text, path, 100, &err), STATUS_OK);
    assert_string_equal(text.ptr, "Jello world");
    strbuf_fini(&text);
    assert_int_equal(file_read_all(&text, path, 10, &err), STATUS_TOO_LARGE);
    int fd = -1;
    uint64_t size = 0;
    char part[8] = "";
    assert_int_equal(file_open_read(&fd, &size, path, &err), STATUS_OK);
    assert_int_equal(size, 11);
    assert_int_equal(file_read_at(fd, part, 5, 6, path, &err), STATUS_OK);
    assert_string_equal(part, "world");
    assert_int_equal(file_read_at(fd, part, 6, 6, path, &err), STATUS_FORMAT);
    file_close(fd);
    assert_int_equal(file_open_read(&fd, &size, folder, &err), STATUS_FORMAT);
    assert_int_equal(file_open_read(&fd, &size, "/nowhere/x", &err), STATUS_NOT_FOUND);
    unlink(path);
    mem_free(path);
}

static void test_each_failing_call_leaves_nothing(void **state) {
    UNUSED(state);
    Err err = {0};
    char *path = file_join(folder, "b");
    int n = 0;
    for (;; n++) {
        file_fail_after(n);
        Status status = write_file(path, &err);
        file_fail_after(-1);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_IO);
        assert_int_equal(n_entries(), 0);
    }
    assert_int_equal(n, 6); // open, three writes, flush, rename
    for (int i = 0;; i++) {
        unlink(path);
        mem_fail_after(i);
        Status status = write_file(path, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK)
            break;
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(n_entries(), 0);
    }
    unlink(path);
    mem_free(path);
}

/* The disk is full for a process at its file size limit. */
static void test_full_disk(void **state) {
    UNUSED(state);
    Err err = {0};
    char *path = file_join(folder, "c");
    struct rlimit before, small = {.rlim_cur = 3};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    Status status = write_file(path, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, STATUS_IO);
    assert_non_null(strstr(err.text, "File too large"));
    assert_int_equal(n_entries(), 0);
    mem_free(path);
}

static void test_devices_and_folders_are_not_replaced(void **state) {
    UNUSED(state);
    Err err = {0};
    char *path = file_join(folder, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0); // what /dev/null is for root, without being root
    assert_int_equal(write_file(path, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "found a special file"));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    unlink(path);
    assert_int_equal(write_file(folder, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "found a folder"));
    assert_int_equal(write_file("", &err), STATUS_INVALID);
    mem_free(path);
}

/* A killed writer leaves nothing where the file system has files without a name. */
static void test_kill_leaves_nothing(void **state) {
    UNUSED(state);
    int probe = -1;
#ifdef O_TMPFILE
    probe = open(folder, O_WRONLY | O_TMPFILE, 0600);
#endif
    if (probe < 0)
        skip();
    close(probe);
    Err err = {0};
    char *path = file_join(folder, "d");
    pid_t child = fork();
    if (child == 0) {
        FileWriter *w = NULL;
        if (file_writer_open(&w, path, &err) == STATUS_OK &&
            file_writer_append(w, "half", 4, &err) == STATUS_OK)
            raise(SIGKILL);
        _exit(1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(n_entries(), 0);
    mem_free(path);
}

/* What lay there is replaced, also under a stale temporary name that links elsewhere. */
static void test_replaces_and_follows_no_link(void **state) {
    UNUSED(state);
    Err err = {0};
    char *path = file_join(folder, "e"), *other = file_join(folder, "other");
    char part[160];
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    assert_int_equal(write_file(path, &err), STATUS_OK);
    assert_int_equal(symlink(other, part), 0);
    assert_int_equal(write_file(path, &err), STATUS_OK);
    assert_int_not_equal(access(other, F_OK), 0);
    StrBuf text = {0};
    assert_int_equal(file_read_regular(&text, path, 100, &err), STATUS_OK);
    assert_string_equal(text.ptr, "Jello world");
    assert_int_equal(n_entries(), 1);
    strbuf_fini(&text);
    unlink(path);
    mem_free(path);
    mem_free(other);
}

static void test_regular_files_alone(void **state) {
    UNUSED(state);
    Err err = {0};
    StrBuf text = {0};
    char *path = file_join(folder, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_read_regular(&text, path, 100, &err), STATUS_FORMAT); // does not wait
    assert_non_null(strstr(err.text, "expected a regular file"));
    unlink(path);
    mem_free(path);
}

static void test_a_folder_is_locked_once(void **state) {
    UNUSED(state);
    Err err = {0};
    int lock = -2, second = -2;
    assert_int_equal(file_lock_open(&lock, folder, &err), STATUS_OK);
    assert_true(lock >= 0);
    assert_int_equal(file_lock_open(&second, folder, &err), STATUS_BUSY);
    assert_non_null(strstr(err.text, folder));
    assert_int_equal(second, -2);
    assert_int_equal(n_entries(), 0);
    file_lock_close(lock);
    assert_int_equal(file_lock_open(&second, folder, &err), STATUS_OK);
    file_lock_close(second);
    file_lock_close(-1);
    char *missing = file_join(folder, "missing");
    assert_int_equal(file_lock_open(&second, missing, &err), STATUS_NOT_FOUND);
    mem_free(missing);
    file_fail_after(0);
    assert_int_equal(file_lock_open(&second, folder, &err), STATUS_IO);
    file_fail_after(-1);
}

static void test_a_killed_process_gives_its_lock_back(void **state) {
    UNUSED(state);
    Err err = {0};
    int lock, ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (file_lock_open(&lock, folder, NULL) == STATUS_OK && write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(file_lock_open(&lock, folder, &err), STATUS_BUSY);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(file_lock_open(&lock, folder, &err), STATUS_OK);
    file_lock_close(lock);
    close(ready[0]);
}

/* Two runs: the second goes on where the first ended. */
static Status grow_file(const char *part, const char *whole, uint64_t expected, Err *err) {
    int fd;
    uint64_t size;
    TRY(file_open_part(&fd, &size, part, err));
    Status status = STATUS_OK;
    if (expected == 0)
        status = file_cut(fd, 0, part, err);
    else
        assert_int_equal(size, expected);
    if (status == STATUS_OK)
        status = file_write_at(fd, "abc", 3, expected, part, err);
    if (status == STATUS_OK)
        status = file_flush(fd, part, err);
    if (status == STATUS_OK && expected)
        status = file_rename(part, whole, err);
    file_close(fd);
    return status;
}

static void test_a_file_grows_over_several_runs(void **state) {
    UNUSED(state);
    Err err = {0};
    char *part = file_join(folder, "f.part"), *whole = file_join(folder, "f");
    assert_int_equal(grow_file(part, whole, 0, &err), STATUS_OK);
    assert_int_equal(grow_file(part, whole, 3, &err), STATUS_OK);
    StrBuf text = {0};
    assert_int_equal(file_read_regular(&text, whole, 100, &err), STATUS_OK);
    assert_string_equal(text.ptr, "abcabc");
    assert_int_equal(n_entries(), 1);
    strbuf_fini(&text);
    for (int n = 0; n < 4; n++) { // open, cut, write, flush
        file_fail_after(n);
        assert_int_equal(grow_file(part, whole, 0, &err), STATUS_IO);
        file_fail_after(-1);
    }
    assert_int_equal(grow_file(part, whole, 0, &err), STATUS_OK);
    file_fail_after(3);
    assert_int_equal(grow_file(part, whole, 3, &err), STATUS_IO); // the rename
    file_fail_after(-1);
    assert_int_equal(n_entries(), 2);
    unlink(part);
    unlink(whole);
    int fd;
    uint64_t size;
    assert_int_equal(mkfifo(part, 0600), 0);
    assert_int_equal(file_open_part(&fd, &size, part, &err), STATUS_FORMAT);
    unlink(part);
    mem_free(part);
    mem_free(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_then_read),
        cmocka_unit_test(test_each_failing_call_leaves_nothing),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_devices_and_folders_are_not_replaced),
        cmocka_unit_test(test_kill_leaves_nothing),
        cmocka_unit_test(test_replaces_and_follows_no_link),
        cmocka_unit_test(test_regular_files_alone),
        cmocka_unit_test(test_a_file_grows_over_several_runs),
        cmocka_unit_test(test_a_folder_is_locked_once),
        cmocka_unit_test(test_a_killed_process_gives_its_lock_back),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
