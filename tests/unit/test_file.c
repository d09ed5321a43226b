// SPDX-License-Identifier: Apache-2.0
/* test_file.c - files whole or not at all, and every failure told.
 *
 * Path:     make unit.
 * Owns:     a temporary folder.  Thread: one. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"
#include "base/mem.h"
#include "unit.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
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
    assert_int_equal(n, 5); // open, three writes, flush
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

static void test_full_disk(void **state) {
    UNUSED(state);
    Err err = {0};
    if (access("/dev/full", W_OK) != 0)
        skip();
    // The temporary name is made beside the target, so the target's own folder must be writable;
    // a link puts the bytes on the full device.
    char *path = file_join(folder, "c");
    char part[128];
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    assert_int_equal(symlink("/dev/full", part), 0);
    assert_int_equal(write_file(path, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "No space left"));
    assert_int_equal(n_entries(), 0);
    mem_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_then_read),
        cmocka_unit_test(test_each_failing_call_leaves_nothing),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
