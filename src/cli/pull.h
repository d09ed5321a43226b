// SPDX-License-Identifier: Apache-2.0
/* pull.h - the files of a published checkpoint: what they are, and bringing them here.
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
    const char *token;        // visible ASCII; NULL: none
    const char *ca_file;      // PEM certificates to trust; NULL: those of the system
    int64_t stall_s;          // a transfer without a byte for so long is begun anew
    int64_t n_tries;          // failed attempts without a new byte that a file may have
    int64_t pause_ms;         // after the first of them; doubled with each further one
    bool (*is_stopped)(void); // asked often; true ends the run, what is here stays; NULL: never
} PullSource;

/* Short name i of a pinned checkpoint; NULL from the end of the list on. */
const char *pull_known(int i);

/* Resolves a name: a known short one, or "owner/name" with an optional "@revision".
 * STATUS_INVALID lists the known ones. */
NODISCARD Status pull_name(PullList *out, const char *name, Err *err);
/* Asks the hub for the files of out->repo and checks them against what is known of a pinned
 * revision. STATUS_IO, STATUS_DENIED, STATUS_NOT_FOUND, STATUS_FORMAT, STATUS_MEMORY. */
NODISCARD Status pull_list(PullList *out, const PullSource *source, Err *err);
/* The same from the listing's text; url is for error texts. The names of *out's files are safe
 * below a folder and all different, their sizes add up without overflow, each has one of the
 * hashes. */
NODISCARD Status pull_list_read(PullList *out, StrView text, const char *url, Err *err);
void pull_list_fini(PullList *l);

/* How far a run is; bytes and files are counted over the whole list. */
typedef struct PullNews {
    uint64_t done, total; // bytes that are here, and all
    uint64_t fetched;     // bytes that this run has brought
    double seconds;       // since the first of them; 0: there is none yet
    double wait_s;        // every open transfer pauses for so long after a failure; 0: not so
    int32_t n_done, n_files;
} PullNews;

typedef struct PullProgress {
    void (*report)(void *ctx, const PullNews *news); // NULL: nobody is told
    void *ctx;
} PullProgress;

/* Puts mem_alloc under libcurl. Once, before everything here; pull_stop behind it all. */
NODISCARD Status pull_start(Err *err);
void pull_stop(void);

/* Brings every file of the list into dir, n_parallel at a time. A file lies as NAME.part until it
 * is whole and its hash is right; a later run goes on with it. Files that are there whole are
 * hashed and kept. The folder is made when missing and locked; disk space is checked first.
 * Returns STATUS_IO (network, disk), STATUS_DENIED, STATUS_NOT_FOUND, STATUS_FORMAT (a wrong hash
 * or length), STATUS_BUSY (another run writes there), STATUS_CANCELLED, STATUS_MEMORY. */
NODISCARD Status pull_get(const PullList *list, const PullSource *source, const char *dir,
                          int n_parallel, const PullProgress *progress, Err *err);

/* One small text from the hub (a listing), at most cap bytes; retried like a file.
 * STATUS_CANCELLED when source->is_stopped. */
NODISCARD Status pull_text(StrBuf *out, const PullSource *source, const char *url, size_t cap,
                           Err *err);

#endif
