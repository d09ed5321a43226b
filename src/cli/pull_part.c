// SPDX-License-Identifier: Apache-2.0
/* pull_part.c - one file on its way here.
 *
 * Owns:     see pull_part.h.  Thread: main.
 *
 * The hash goes along with the bytes, so that no whole file is read again at its end: that would
 * stop all other transfers for half a minute. */
#define _POSIX_C_SOURCE 200809L
#include "cli/pull_part.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>
#include <sys/stat.h>

enum { PART_PIECE = 1 << 20, PART_PIECES = 16 }; // hashed at once: some hundredths of a second

/* The hash of nothing yet. */
static void part_reset(PullPart *p) {
    char head[64];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)p->file->size);
    sha256_init(&p->sha256);
    sha1_init(&p->sha1);
    sha1_update(&p->sha1, (size_t)n + 1, (const uint8_t *)head); // with its NUL
    p->n_hashed = p->n_old = 0;
}

static void part_update(PullPart *p, const void *bytes, size_t len) {
    if (p->file->sha256[0])
        sha256_update(&p->sha256, len, bytes);
    else
        sha1_update(&p->sha1, len, bytes);
    p->n_hashed += len;
}

static Status part_init(PullPart *out, const char *dir, const PullFile *file, Err *err) {
    PullPart p = {.file = file, .fd = -1};
    StrBuf part = {0};
    p.whole = file_join(dir, file->path);
    strbuf_printf(&part, "%s.part", p.whole ? p.whole : "");
    p.part = part.ptr;
    if (!p.whole || part.is_failed) {
        part_close(&p);
        return err_memory(err, file->path, strlen(dir));
    }
    part_reset(&p);
    *out = p;
    return STATUS_OK;
}

Status part_open_whole(PullPart *out, bool *is_there, const char *dir, const PullFile *file,
                       Err *err) {
    PullPart p;
    struct stat st;
    *is_there = false;
    TRY(part_init(&p, dir, file, err));
    Status status = STATUS_OK;
    // Of another size, a folder, or not there: the transfer's end replaces it, or says why not.
    if (stat(p.whole, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->size) {
        status = file_open_read(&p.fd, &p.size, p.whole, err);
        *is_there = status == STATUS_OK;
    }
    if (!*is_there) {
        part_close(&p);
        return status;
    }
    p.is_whole = true;
    p.n_old = p.size;
    *out = p;
    return STATUS_OK;
}

Status part_open(PullPart *out, const char *dir, const PullFile *file, Err *err) {
    PullPart p;
    TRY(part_init(&p, dir, file, err));
    Status status = file_open_part(&p.fd, &p.size, p.part, err);
    p.n_old = p.size;
    if (status == STATUS_OK && p.size > file->size)
        status = part_cut(&p, err);
    if (status != STATUS_OK) {
        part_close(&p);
        return status;
    }
    *out = p;
    return STATUS_OK;
}

void part_close(PullPart *p) {
    file_close(p->fd);
    mem_free(p->part);
    mem_free(p->whole);
    *p = (PullPart){.fd = -1};
}

Status part_hash(PullPart *p, Err *err) {
    uint8_t *piece = mem_alloc(PART_PIECE);
    if (!piece)
        return err_memory(err, "hash", PART_PIECE);
    Status status = STATUS_OK;
    for (int i = 0; i < PART_PIECES && p->n_hashed < p->size && status == STATUS_OK; i++) {
        uint64_t left = p->size - p->n_hashed;
        size_t len = left < PART_PIECE ? (size_t)left : PART_PIECE;
        status =
            file_read_at(p->fd, piece, len, p->n_hashed, p->is_whole ? p->whole : p->part, err);
        if (status == STATUS_OK)
            part_update(p, piece, len);
    }
    mem_free(piece);
    return status;
}

Status part_append(PullPart *p, const void *bytes, size_t len, Err *err) {
    CHECK(!p->is_whole && p->n_hashed == p->size && len <= p->file->size - p->size);
    TRY(file_write_at(p->fd, bytes, len, p->size, p->part, err));
    part_update(p, bytes, len);
    p->size += len;
    return STATUS_OK;
}

Status part_cut(PullPart *p, Err *err) {
    CHECK(!p->is_whole);
    TRY(file_cut(p->fd, 0, p->part, err));
    p->size = 0;
    part_reset(p);
    return STATUS_OK;
}

bool part_is_good(const PullPart *p) {
    if (p->size != p->file->size || p->n_hashed != p->size)
        return false;
    struct sha256_ctx sha256 = p->sha256; // asking for the digest would begin a new one
    struct sha1_ctx sha1 = p->sha1;
    uint8_t digest[SHA256_DIGEST_SIZE];
    char text[PULL_HASH_SIZE];
    bool is_sha256 = p->file->sha256[0];
    size_t n = is_sha256 ? SHA256_DIGEST_SIZE : SHA1_DIGEST_SIZE;
    if (is_sha256)
        sha256_digest(&sha256, n, digest);
    else
        sha1_digest(&sha1, n, digest);
    for (size_t i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return !strcmp(text, is_sha256 ? p->file->sha256 : p->file->git_id);
}

Status part_commit(PullPart *p, Err *err) {
    TRY(file_flush(p->fd, p->part, err));
    return file_rename(p->part, p->whole, err);
}
