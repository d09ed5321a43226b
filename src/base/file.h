// SPDX-License-Identifier: Apache-2.0
/* file.h - reading and writing files with every failure told.
 *
 * Path:     checkpoint and text loaders read; synth, logits, chat and pull write.
 * Owns:     a FileWriter owns its descriptor and temporary file.  Thread: one at a time;
 * file_read_at on one descriptor may run on several. */
#ifndef LILY_BASE_FILE_H
#define LILY_BASE_FILE_H

#include "status.h"
#include "str.h"

#include <stdint.h>

/* Opens a regular file for reading. size: its bytes (out). */
NODISCARD Status file_open_read(int *fd, uint64_t *size, const char *path, Err *err);
void file_close(int fd);

/* Reads exactly [off, off + len) into out; `path` is for the error text. Safe on many threads. */
NODISCARD Status file_read_at(int fd, void *out, size_t len, uint64_t off, const char *path,
                              Err *err);

/* Whole file into memory, refused above cap bytes. out->ptr has a NUL behind it; free with
 * strbuf_fini. Works on pipes too: for what a person names. */
NODISCARD Status file_read_all(StrBuf *out, const char *path, size_t cap, Err *err);
/* The same of a regular file alone: for the members of a checkpoint, where a pipe would wait. */
NODISCARD Status file_read_regular(StrBuf *out, const char *path, size_t cap, Err *err);
/* The same from an open descriptor (standard input); name is for the error text. */
NODISCARD Status file_read_fd(StrBuf *out, int fd, const char *name, size_t cap, Err *err);

/* "dir/name"; free with mem_free; NULL: out of memory. */
char *file_join(const char *dir, const char *name);

/* A file that appears under its name whole or not at all: written without a name (where the file
 * system cannot, under a temporary one), flushed to disk and named by commit; close without commit
 * drops it. Refuses to replace a folder or a device (STATUS_INVALID). */
typedef struct FileWriter FileWriter;
NODISCARD Status file_writer_open(FileWriter **out, const char *path, Err *err);
/* Appends len bytes. */
NODISCARD Status file_writer_append(FileWriter *w, const void *bytes, size_t len, Err *err);
/* Writes len bytes at off, in any order, from several threads; mixes with append only before it. */
NODISCARD Status file_writer_write_at(FileWriter *w, const void *bytes, size_t len, uint64_t off,
                                      Err *err);
NODISCARD Status file_writer_commit(FileWriter *w, Err *err);
void file_writer_close(FileWriter *w);

/* A file that grows over several runs: opened for reading and writing, made when missing.
 * size: bytes that are there (out). */
NODISCARD Status file_open_part(int *fd, uint64_t *size, const char *path, Err *err);
/* Writes exactly [off, off + len); path is for the error text here and below. */
NODISCARD Status file_write_at(int fd, const void *bytes, size_t len, uint64_t off,
                               const char *path, Err *err);
/* Cuts it to size bytes. */
NODISCARD Status file_cut(int fd, uint64_t size, const char *path, Err *err);
/* Returns when all that was written is on the disk. */
NODISCARD Status file_flush(int fd, const char *path, Err *err);
/* Gives a file another name in place of what has it. */
NODISCARD Status file_rename(const char *from, const char *to, Err *err);

/* A folder that two runs must not write into at once, held until file_lock_close or the end of the
 * process, however it ends; no file is left behind.
 *
 * lock    for file_lock_close; -1 where the file system knows no locks: then nothing is guarded
 * (out) folder  must be there Returns STATUS_BUSY when it is held already, also by this process. */
NODISCARD Status file_lock_open(int *lock, const char *folder, Err *err);
void file_lock_close(int lock);

/* Tests: the next `after` reads or writes succeed, the one behind them fails (-1: none). */
void file_fail_after(int64_t after);

#endif
