// SPDX-License-Identifier: Apache-2.0
/* pull.h - the files of a published checkpoint: what they are, and bringing one here.
 *
 * Path:     pull_verb.c asks pull_list for the files and pull_get for their bytes.
 * Owns:     see each object.  Thread: main. */
#ifndef LILY_CLI_PULL_H
#define LILY_CLI_PULL_H

#include "base/arena.h"
#include "base/sha256.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    PULL_MAX_FILES = 4096,
    PULL_HASH_SIZE = SHA256_TEXT_SIZE, // hexadecimal with a NUL
};

/* One file of the published folder. */
typedef struct PullFile {
    const char *path;            // below the folder, checked to stay inside it
    uint64_t size;               // bytes
    char sha256[PULL_HASH_SIZE]; // "" where the hub has only a git id
    char git_id[PULL_HASH_SIZE]; // SHA-1 of "blob SIZE\0" and the bytes; "" where sha256 is known
} PullFile;

typedef struct PullList {
    Arena arena;
    char *repo;      // "owner/name"
    char *revision;  // a commit, tag or branch
    PullFile *files; // [n]
    int32_t n;
} PullList;

/* Where to get them from. */
typedef struct PullSource {
    const char *hub;          // "https://host", without a slash at its end
    const char *token;        // NULL: none
    int64_t stall_s;          // a transfer without a byte for so long is begun anew
    int64_t n_tries;          // failed attempts in a row before a file is given up
    bool (*is_stopped)(void); // asked often; true ends the run, what is here stays; NULL: never
} PullSource;

/* Resolves a name: a known short one, or "owner/name" with an optional "@revision".
 * STATUS_INVALID lists the known ones. */
NODISCARD Status pull_name(PullList *out, const char *name, Err *err);
/* Asks the hub for the files of out->repo and checks them against what is known of a pinned
 * revision. STATUS_IO, STATUS_DENIED, STATUS_NOT_FOUND, STATUS_FORMAT, STATUS_MEMORY. */
NODISCARD Status pull_list(PullList *out, const PullSource *source, Err *err);
void pull_list_fini(PullList *l);

/* A transfer's news: bytes here so far, counted over all files. */
typedef struct PullProgress {
    void (*report)(void *ctx, uint64_t done, uint64_t total, int32_t n_done, int32_t n_files,
                   double seconds, uint64_t fetched);
    void *ctx;
} PullProgress;

/* Brings every file of the list into dir, n_parallel at a time. A file lies as NAME.part until it
 * is whole and its hash is right; a later run goes on with it. Files that are there whole are
 * hashed and kept. Disk space is checked first. Returns STATUS_IO (network, disk), STATUS_DENIED,
 * STATUS_NOT_FOUND, STATUS_FORMAT (a wrong hash or length), STATUS_CANCELLED, STATUS_MEMORY. */
NODISCARD Status pull_get(const PullList *list, const PullSource *source, const char *dir,
                          int n_parallel, const PullProgress *progress, Err *err);

/* One small text from the hub (a listing), at most cap bytes; retried like a file.
 * STATUS_CANCELLED when source->is_stopped. */
NODISCARD Status pull_text(StrBuf *out, const PullSource *source, const char *url, size_t cap,
                           Err *err);

#endif
