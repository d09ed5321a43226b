// SPDX-License-Identifier: Apache-2.0
/* file.c - POSIX files: short reads and writes completed, interruptions retried.
 *
 * Owns:     a FileWriter owns its descriptor and temporary file.  Thread: one at a time. */
#define _GNU_SOURCE
#include "file.h"

#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// A single system call moves at most this much: Linux stops below 2 GiB anyway.
#define FILE_IO_MAX ((size_t)1 << 30)

static _Atomic int64_t file_left_before_fail = -1; // test switch

void file_fail_after(int64_t after) { atomic_store(&file_left_before_fail, after); }

static bool file_must_fail(void) {
    if (atomic_load_explicit(&file_left_before_fail, memory_order_relaxed) < 0)
        return false;
    return atomic_fetch_sub(&file_left_before_fail, 1) == 0;
}

Status file_open_read(int *fd, uint64_t *size, const char *path, Err *err) {
    // Without O_NONBLOCK a pipe that nobody writes to would hold us here; files do not care.
    int f = file_must_fail() ? (errno = EIO, -1) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return err_errno(err, errno, "open", path);
    struct stat st;
    if (fstat(f, &st) != 0) {
        Status status = err_errno(err, errno, "examine", path);
        close(f);
        return status;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return err_set(err, STATUS_FORMAT, "%s: expected a regular file, found a %s", path,
                       S_ISDIR(st.st_mode) ? "folder" : "special file");
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return STATUS_OK;
}

void file_close(int fd) {
    if (fd >= 0)
        close(fd);
}

Status file_read_at(int fd, void *out, size_t len, uint64_t off, const char *path, Err *err) {
    char *p = out;
    while (len > 0) {
        ssize_t n = file_must_fail()
                        ? (errno = EIO, -1)
                        : pread(fd, p, len < FILE_IO_MAX ? len : FILE_IO_MAX, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, errno, "read", path);
        if (n == 0)
            return err_set(err, STATUS_FORMAT, "%s: ends at byte %llu, expected %zu more", path,
                           (unsigned long long)off, len);
        p += n;
        len -= (size_t)n;
        off += (uint64_t)n;
    }
    return STATUS_OK;
}

Status file_read_fd(StrBuf *out, int fd, const char *name, size_t cap, Err *err) {
    StrBuf text = {0};
    Status status = STATUS_OK;
    char piece[65536];
    for (;;) {
        ssize_t n = file_must_fail() ? (errno = EIO, -1) : read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = err_errno(err, errno, "read", name);
            goto fail;
        }
        if (n == 0)
            break;
        if ((size_t)n > cap - text.len) {
            status = err_set(err, STATUS_TOO_LARGE, "%s: larger than %zu bytes", name, cap);
            goto fail;
        }
        strbuf_append(&text, piece, (size_t)n);
    }
    strbuf_append(&text, "", 0); // so that an empty file has a NUL too
    TRY_GOTO(status, strbuf_check(&text, err));
    *out = text;
    return STATUS_OK;
fail:
    strbuf_fini(&text);
    return status;
}

Status file_read_regular(StrBuf *out, const char *path, size_t cap, Err *err) {
    int fd;
    uint64_t size;
    TRY(file_open_read(&fd, &size, path, err));
    Status status = file_read_fd(out, fd, path, cap, err);
    close(fd);
    return status;
}

Status file_read_all(StrBuf *out, const char *path, size_t cap, Err *err) {
    int fd = file_must_fail() ? (errno = EIO, -1) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, errno, "open", path);
    Status status = file_read_fd(out, fd, path, cap, err);
    close(fd);
    return status;
}

/* off UINT64_MAX: append. */
static Status file_put(int fd, const char *p, size_t len, uint64_t off, const char *path,
                       Err *err) {
    while (len > 0) {
        size_t piece = len < FILE_IO_MAX ? len : FILE_IO_MAX;
        ssize_t n = file_must_fail()    ? (errno = EIO, -1)
                    : off == UINT64_MAX ? write(fd, p, piece)
                                        : pwrite(fd, p, piece, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, errno, "write", path);
        p += n;
        len -= (size_t)n;
        if (off != UINT64_MAX)
            off += (uint64_t)n;
    }
    return STATUS_OK;
}

Status file_open_part(int *fd, uint64_t *size, const char *path, Err *err) {
    int f = file_must_fail() ? (errno = EIO, -1)
                             : open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (f < 0)
        return err_errno(err, errno, "create", path);
    struct stat st;
    Status status = STATUS_OK;
    if (fstat(f, &st) != 0)
        status = err_errno(err, errno, "examine", path);
    else if (!S_ISREG(st.st_mode))
        status =
            err_set(err, STATUS_FORMAT, "%s: expected a regular file, found a special file", path);
    if (status != STATUS_OK) {
        close(f);
        return status;
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return STATUS_OK;
}

Status file_write_at(int fd, const void *bytes, size_t len, uint64_t off, const char *path,
                     Err *err) {
    return file_put(fd, bytes, len, off, path, err);
}

Status file_cut(int fd, uint64_t size, const char *path, Err *err) {
    if (file_must_fail() ? (errno = EIO, true) : ftruncate(fd, (off_t)size) != 0)
        return err_errno(err, errno, "cut", path);
    return STATUS_OK;
}

Status file_flush(int fd, const char *path, Err *err) {
    if (file_must_fail() ? (errno = EIO, true) : fsync(fd) != 0)
        return err_errno(err, errno, "flush", path);
    return STATUS_OK;
}

Status file_rename(const char *from, const char *to, Err *err) {
    if (file_must_fail() ? (errno = EIO, true) : rename(from, to) != 0)
        return err_errno(err, errno, "rename into place", to);
    return STATUS_OK;
}

char *file_join(const char *dir, const char *name) {
    StrBuf path = {0};
    strbuf_printf(&path, "%s/%s", dir, name);
    if (path.is_failed)
        strbuf_fini(&path);
    return path.ptr;
}

struct FileWriter {
    char *path, *temporary;
    int fd;
    bool is_unnamed; // the file has no name before commit: not even SIGKILL leaves it behind
    bool is_committed;
};

/* A device or a folder must not be replaced by the file; what cannot be examined, open tells. */
static Status file_check_target(const char *path, Err *err) {
    struct stat st;
    if (!*path)
        return err_set(err, STATUS_INVALID, "expected the name of a file, found an empty one");
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s: expected a regular file or none, found a %s", path,
                   S_ISDIR(st.st_mode) ? "folder" : "special file");
}

/* A file without a name in the folder of path; -1: the file system has none. */
static int file_open_unnamed(const char *path) {
#ifdef O_TMPFILE
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_strdup(path, (size_t)(slash - path) + 1) : mem_strdup(".", 1);
    int fd = -1;
    if (folder && access("/proc/self/fd", X_OK) == 0) // commit needs it
        fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644);
    mem_free(folder);
    return fd;
#else
    UNUSED(path);
    return -1;
#endif
}

static int file_open_temporary(FileWriter *w) {
    if (file_must_fail()) {
        errno = EIO;
        return -1;
    }
    int fd = file_open_unnamed(w->path);
    w->is_unnamed = fd >= 0;
    if (fd >= 0)
        return fd;
    unlink(w->temporary); // of a process that had our number and was killed
    return open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
}

/* Gives an unnamed file its temporary name: a link cannot replace what is there, a rename can. */
static int file_give_name(FileWriter *w) {
    char fd[64];
    snprintf(fd, sizeof fd, "/proc/self/fd/%d", w->fd);
    unlink(w->temporary);
    return linkat(AT_FDCWD, fd, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW);
}

Status file_writer_open(FileWriter **out, const char *path, Err *err) {
    TRY(file_check_target(path, err));
    FileWriter *w = mem_zalloc(1, sizeof *w);
    if (!w)
        return err_memory(err, path, sizeof *w);
    w->fd = -1;
    Status status = STATUS_OK;
    StrBuf temporary = {0};
    strbuf_printf(&temporary, "%s.%ld.part", path, (long)getpid());
    w->temporary = temporary.ptr;
    w->path = mem_strdup(path, strlen(path));
    if (temporary.is_failed || !w->path) {
        status = err_memory(err, path, strlen(path));
        goto fail;
    }
    w->fd = file_open_temporary(w);
    if (w->fd < 0) {
        status = err_errno(err, errno, "create", w->path);
        goto fail;
    }
    *out = w;
    return STATUS_OK;
fail:
    file_writer_close(w);
    return status;
}

Status file_writer_append(FileWriter *w, const void *bytes, size_t len, Err *err) {
    return file_put(w->fd, bytes, len, UINT64_MAX, w->path, err);
}

Status file_writer_write_at(FileWriter *w, const void *bytes, size_t len, uint64_t off, Err *err) {
    return file_put(w->fd, bytes, len, off, w->path, err);
}

Status file_writer_commit(FileWriter *w, Err *err) {
    TRY(file_flush(w->fd, w->path, err));
    if (w->is_unnamed && file_give_name(w) != 0)
        return err_errno(err, errno, "name", w->path);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0)
        return err_errno(err, errno, "close", w->path);
    TRY(file_rename(w->temporary, w->path, err));
    w->is_committed = true;
    return STATUS_OK;
}

void file_writer_close(FileWriter *w) {
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->temporary && !w->is_committed)
        unlink(w->temporary);
    mem_free(w->temporary);
    mem_free(w->path);
    mem_free(w);
}

/* ---- locks ---- */

Status file_lock_open(int *lock, const char *folder, Err *err) {
    // The folder itself is locked: a lock file would have to be removed, which is a race of its
    // own.
    int fd =
        file_must_fail() ? (errno = EIO, -1) : open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, errno, "open", folder);
    int result;
    do
        result = flock(fd, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return err_set(err, STATUS_BUSY, "%s: another run is writing into this folder", folder);
    }
    if (result != 0) { // some network file systems
        close(fd);
        fd = -1;
    }
    *lock = fd;
    return STATUS_OK;
}

void file_lock_close(int lock) { file_close(lock); }
