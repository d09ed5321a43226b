// SPDX-License-Identifier: Apache-2.0
/* pull_part.h - one file on its way here: bytes appended and hashed as they come, named when whole.
 *
 * Path:     pull_get.c; the bytes come from pull_http.c.
 * Owns:     a PullPart owns its descriptor and paths; the file outlives it.  Thread: main. */
#ifndef LILY_CLI_PULL_PART_H
#define LILY_CLI_PULL_PART_H

#include "cli/pull.h"

#include <nettle/sha1.h>
#include <nettle/sha2.h>

typedef struct PullPart {
    const PullFile *file;
    char *part, *whole; // paths: NAME.part and NAME
    int fd;             // of one of them
    bool is_whole;      // of NAME, which is only looked at
    uint64_t size;      // bytes that are there
    uint64_t n_hashed;  // of these, gone through the hash
    uint64_t n_old;     // of these, from an earlier run
    struct sha256_ctx sha256;
    struct sha1_ctx sha1;
} PullPart;

/* Opens NAME for checking. *is_there false: there is none of the right size; nothing is open then.
 * Returns STATUS_IO, STATUS_DENIED, STATUS_MEMORY. */
NODISCARD Status part_open_whole(PullPart *out, bool *is_there, const char *dir,
                                 const PullFile *file, Err *err);
/* Opens NAME.part, which is made when missing and emptied when too large. Returns the same. */
NODISCARD Status part_open(PullPart *out, const char *dir, const PullFile *file, Err *err);
void part_close(PullPart *p);

/* Hashes some megabytes of what an earlier run left; done when n_hashed is size. */
NODISCARD Status part_hash(PullPart *p, Err *err);
/* Adds bytes at the end; all before them must be hashed and they must fit into file->size. */
NODISCARD Status part_append(PullPart *p, const void *bytes, size_t len, Err *err);
/* Begins anew with an empty file. */
NODISCARD Status part_cut(PullPart *p, Err *err);
/* Whether all bytes are there, hashed and right. */
bool part_is_good(const PullPart *p);
/* Flushes a good part and gives it its name. */
NODISCARD Status part_commit(PullPart *p, Err *err);

#endif
