// SPDX-License-Identifier: Apache-2.0
/* pull_get.c - transfers: several at once, gone on with after a break, checked before they count.
 *
 * Path:     pull_get -> get_begin (one Transfer a file) -> libcurl's multi handle -> get_settle.
 * Owns:     transfers own their handles and descriptors.  Thread: main. */
#define _GNU_SOURCE
#include "cli/pull.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    GET_MAX_PARALLEL = 16,
    GET_WAIT_MS = 200,
    GET_BACKOFF_MS = 500, // doubled with each failure in a row
    GET_BACKOFF_MAX_MS = 30000,
    GET_CONNECT_S = 30,
    GET_MAX_REDIRECTS = 10,
    GET_SPACE_SLACK = 16 << 20, // left free on the disk
};

typedef struct Get Get;

static bool get_is_stopped(const PullSource *source) {
    return source->is_stopped && source->is_stopped();
}

static Status get_stop(Err *err) {
    return err_set(err, STATUS_CANCELLED, "stopped; run it again to go on");
}

/* A file under way. */
typedef struct Transfer {
    Get *get;
    const PullFile *file; // NULL: this place is free
    CURL *curl;           // NULL between two attempts
    struct curl_slist *headers;
    char *part, *whole; // paths
    int fd;
    uint64_t have;    // bytes in the part file
    int n_failures;   // in a row without progress
    int64_t again_ns; // when the next attempt may begin
    int64_t retry_after_s;
    bool is_checked; // the answer's status was looked at
    Err err;         // why the last attempt failed; a permanent one ends the run
    bool is_permanent;
} Transfer;

struct Get {
    const PullList *list;
    const PullSource *source;
    const char *dir;
    const PullProgress *progress;
    CURLM *multi;
    Transfer transfers[GET_MAX_PARALLEL];
    int n_parallel;
    int32_t next; // file to begin next
    int32_t n_done;
    uint64_t done, total, fetched; // bytes here, in all, brought by this run
    int64_t start_ns;
    Err *err;
};

/* ---- hashes ---- */

static void hash_text(char *out, const uint8_t *digest, size_t n) {
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* Compares the file at path with what is known of it. *is_good false: other bytes. */
static Status get_verify(const PullFile *f, const char *path, bool *is_good, Err *err) {
    int fd;
    uint64_t size;
    *is_good = false;
    TRY(file_open_read(&fd, &size, path, err));
    Status status = STATUS_OK;
    struct sha256_ctx sha256;
    struct sha1_ctx sha1;
    char head[64];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)f->size);
    sha256_init(&sha256);
    sha1_init(&sha1);
    sha1_update(&sha1, (size_t)n + 1, (const uint8_t *)head); // with its NUL
    enum { PIECE = 1 << 20 };
    uint8_t *piece = mem_alloc(PIECE);
    if (!piece)
        status = err_memory(err, "hash", PIECE);
    for (uint64_t off = 0; off < size && status == STATUS_OK && size == f->size; off += PIECE) {
        size_t len = (size_t)(size - off < PIECE ? size - off : PIECE);
        status = file_read_at(fd, piece, len, off, path, err);
        if (status == STATUS_OK && f->sha256[0])
            sha256_update(&sha256, len, piece);
        else if (status == STATUS_OK)
            sha1_update(&sha1, len, piece);
    }
    uint8_t digest[SHA256_DIGEST_SIZE];
    char text[PULL_HASH_SIZE];
    if (f->sha256[0])
        sha256_digest(&sha256, SHA256_DIGEST_SIZE, digest);
    else
        sha1_digest(&sha1, SHA1_DIGEST_SIZE, digest);
    hash_text(text, digest, f->sha256[0] ? SHA256_DIGEST_SIZE : SHA1_DIGEST_SIZE);
    *is_good = size == f->size && !strcmp(text, f->sha256[0] ? f->sha256 : f->git_id);
    mem_free(piece);
    file_close(fd);
    return status;
}

/* ---- one attempt ---- */

static Status transfer_stop(Transfer *t, Status code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* An attempt has failed for good: the run ends with this. */
static Status transfer_stop(Transfer *t, Status code, const char *fmt, ...) {
    char text[ERR_TEXT_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    t->is_permanent = true;
    return err_set(&t->err, code, "%s: %s", t->file ? t->file->path : "the hub's listing", text);
}

/* Looks at the status once, before the first byte is kept; false ends the attempt. */
static bool transfer_check(Transfer *t) {
    if (t->is_checked)
        return true;
    t->is_checked = true;
    long code = 0;
    char *type = NULL;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_TYPE, &type);
    if (code == 200 && t->have > 0) { // the range was ignored: from the beginning again
        t->get->done -= t->have;
        t->have = 0;
        if (ftruncate(t->fd, 0) != 0)
            return transfer_stop(t, STATUS_IO, "cannot cut the part file"), false;
    } else if (code != 200 && code != 206) {
        return false; // the status says it all; get_settle reads it
    }
    size_t n = strlen(t->file->path);
    bool is_html = type && strncmp(type, "text/html", 9) == 0;
    if (is_html && !(n > 5 && !strcmp(t->file->path + n - 5, ".html")))
        return transfer_stop(t, STATUS_FORMAT,
                             "the server sent a web page (a log-in or consent page?)"),
               false;
    return true;
}

static size_t transfer_write(char *bytes, size_t size, size_t n, void *ctx) {
    Transfer *t = ctx;
    size_t len = size * n;
    if (!transfer_check(t))
        return CURL_WRITEFUNC_ERROR;
    if (len > t->file->size - t->have) {
        transfer_stop(t, STATUS_FORMAT, "expected %llu bytes, the server sends more",
                      (unsigned long long)t->file->size);
        return CURL_WRITEFUNC_ERROR;
    }
    for (size_t done = 0; done < len;) {
        ssize_t put = pwrite(t->fd, bytes + done, len - done, (off_t)(t->have + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0) {
            t->is_permanent = true;
            (void)!err_errno(&t->err, errno, "write", t->part);
            return CURL_WRITEFUNC_ERROR;
        }
        done += (size_t)put;
    }
    t->have += len;
    t->get->done += len;
    t->get->fetched += len;
    t->n_failures = 0;
    return len;
}

/* What every request has: redirects, a stall limit, proxies from the environment, the token. */
static bool curl_setup(CURL *c, struct curl_slist **headers, const PullSource *source,
                       const char *url) {
    bool is_good = true;
    if (source->token) {
        StrBuf line = {0};
        strbuf_printf(&line, "Authorization: Bearer %s", source->token);
        *headers = line.is_failed ? NULL : curl_slist_append(NULL, line.ptr);
        strbuf_fini(&line);
        is_good = *headers != NULL && curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers) == CURLE_OK;
    }
    // libcurl keeps a header of ours from other hosts that it is redirected to.
    return is_good && curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)GET_MAX_REDIRECTS) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR,
                            strncmp(url, "https:", 6) ? "http,https" : "https") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)GET_CONNECT_S) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)source->stall_s) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_USERAGENT, "lily") == CURLE_OK;
}

/* Begins an attempt for the rest of the file. */
static Status transfer_begin(Transfer *t) {
    Get *g = t->get;
    StrBuf url = {0};
    strbuf_printf(&url, "%s/%s/resolve/%s/", g->source->hub, g->list->repo, g->list->revision);
    CURL *c = curl_easy_init();
    char *path = c ? curl_easy_escape(c, t->file->path, 0) : NULL;
    if (path)
        strbuf_printf(&url, "%s", path);
    curl_free(path);
    // A range rather than libcurl's resume, which gives up where a server ignores it.
    char range[32];
    snprintf(range, sizeof range, "%llu-", (unsigned long long)t->have);
    t->curl = c;
    t->is_checked = false;
    t->retry_after_s = 0;
    bool is_good = c && path && !url.is_failed && curl_setup(c, &t->headers, g->source, url.ptr) &&
                   (t->have == 0 || curl_easy_setopt(c, CURLOPT_RANGE, range) == CURLE_OK) &&
                   curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, transfer_write) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_WRITEDATA, t) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_PRIVATE, t) == CURLE_OK &&
                   curl_multi_add_handle(g->multi, c) == CURLM_OK;
    strbuf_fini(&url);
    return is_good ? STATUS_OK : err_memory(g->err, "a transfer", 0);
}

static void transfer_drop_curl(Transfer *t) {
    if (t->curl) {
        curl_multi_remove_handle(t->get->multi, t->curl);
        curl_easy_cleanup(t->curl);
    }
    curl_slist_free_all(t->headers);
    t->curl = NULL;
    t->headers = NULL;
}

static void transfer_free(Transfer *t) {
    transfer_drop_curl(t);
    file_close(t->fd);
    mem_free(t->part);
    mem_free(t->whole);
    *t = (Transfer){.get = t->get, .fd = -1};
}

/* ---- files ---- */

/* The transfer's file is whole: hash, flush, rename. */
static Status transfer_commit(Transfer *t) {
    Get *g = t->get;
    bool is_good = false;
    if (fsync(t->fd) != 0)
        return err_errno(g->err, errno, "flush", t->part);
    TRY(get_verify(t->file, t->part, &is_good, g->err));
    if (!is_good) {
        unlink(t->part); // going on with wrong bytes would never end well
        return err_set(g->err, STATUS_FORMAT,
                       "%s: the bytes that came have another hash than the "
                       "hub's listing says; the file was removed",
                       t->file->path);
    }
    if (rename(t->part, t->whole) != 0)
        return err_errno(g->err, errno, "rename into place", t->whole);
    g->n_done++;
    transfer_free(t);
    return STATUS_OK;
}

/* Takes up a file: nothing to do when it is there, else the part that an earlier run left. */
static Status transfer_open(Transfer *t, const PullFile *file) {
    Get *g = t->get;
    StrBuf whole = {0};
    strbuf_printf(&whole, "%s/%s", g->dir, file->path);
    t->whole = whole.ptr;
    StrBuf part = {0};
    strbuf_printf(&part, "%s/%s.part", g->dir, file->path);
    t->part = part.ptr;
    t->file = file;
    if (whole.is_failed || part.is_failed)
        return err_memory(g->err, file->path, 0);
    struct stat st;
    if (stat(t->whole, &st) == 0 && (uint64_t)st.st_size == file->size) {
        bool is_good;
        TRY(get_verify(file, t->whole, &is_good, g->err));
        if (is_good) {
            g->done += file->size;
            g->n_done++;
            transfer_free(t);
            return STATUS_OK;
        }
    }
    t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0)
        return err_errno(g->err, errno, "create", t->part);
    if (fstat(t->fd, &st) == 0 && (uint64_t)st.st_size <= file->size)
        t->have = (uint64_t)st.st_size;
    else if (ftruncate(t->fd, 0) != 0)
        return err_errno(g->err, errno, "cut", t->part);
    g->done += t->have;
    return t->have == file->size ? transfer_commit(t) : transfer_begin(t);
}

/* ---- the end of an attempt ---- */

static void transfer_status_error(Transfer *t, long code) {
    if (code == 401 || code == 403)
        transfer_stop(t, STATUS_DENIED,
                      "the server refuses with status %ld; a token may be needed (HF_TOKEN)", code);
    else if (code == 404 || code == 410)
        transfer_stop(t, STATUS_NOT_FOUND, "the server does not have it (status %ld)", code);
    else if (code >= 400 && code < 500 && code != 408 && code != 416 && code != 429)
        transfer_stop(t, STATUS_IO, "the server refuses with status %ld", code);
    else
        t->err.code = err_set(&t->err, STATUS_IO, "the server answers with status %ld", code);
}

/* A failed attempt is repeated after a pause; too many in a row without a byte end the run. */
static Status transfer_retry(Transfer *t) {
    Get *g = t->get;
    if (t->is_permanent) {
        *g->err = t->err;
        return t->err.code;
    }
    if (++t->n_failures > g->source->n_tries)
        return err_set(g->err, STATUS_IO, "%s: given up after %d attempts: %s", t->file->path,
                       t->n_failures, t->err.text);
    int64_t wait_ms = GET_BACKOFF_MS;
    for (int i = 1; i < t->n_failures && wait_ms < GET_BACKOFF_MAX_MS; i++)
        wait_ms *= 2;
    if (t->retry_after_s * 1000 > wait_ms)
        wait_ms = t->retry_after_s * 1000;
    t->again_ns = clock_now_ns() + wait_ms * 1000000;
    return STATUS_OK;
}

static Status transfer_settle(Transfer *t, CURLcode result) {
    long code = 0;
    curl_off_t after = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(t->curl, CURLINFO_RETRY_AFTER, &after);
    t->retry_after_s = after < 120 ? (int64_t)after : 120;
    transfer_drop_curl(t);
    if (t->have == t->file->size && (code == 200 || code == 206))
        return transfer_commit(t);
    if (code == 416 && ftruncate(t->fd, 0) == 0) { // the part does not fit the file: anew
        t->get->done -= t->have;
        t->have = 0;
    }
    if (!t->is_permanent && code >= 300)
        transfer_status_error(t, code);
    else if (!t->is_permanent)
        t->err.code =
            err_set(&t->err, STATUS_IO, "%s",
                    result == CURLE_OK ? "the connection ended early" : curl_easy_strerror(result));
    return transfer_retry(t);
}

static Status get_settle(Get *g) {
    CURLMsg *m;
    int n;
    while ((m = curl_multi_info_read(g->multi, &n))) {
        if (m->msg != CURLMSG_DONE)
            continue;
        Transfer *t = NULL;
        CURLcode result = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        TRY(transfer_settle(t, result));
    }
    return STATUS_OK;
}

/* ---- the run ---- */

static Status get_check_space(const Get *g) {
    struct statvfs fs;
    uint64_t need = 0;
    for (int32_t i = 0; i < g->list->n; i++) {
        const PullFile *f = &g->list->files[i];
        uint64_t have = 0;
        for (int k = 0; k < 2; k++) {
            StrBuf path = {0};
            struct stat st;
            strbuf_printf(&path, "%s/%s%s", g->dir, f->path, k ? ".part" : "");
            if (!path.is_failed && stat(path.ptr, &st) == 0 && (uint64_t)st.st_size <= f->size &&
                (uint64_t)st.st_size > have)
                have = (uint64_t)st.st_size;
            strbuf_fini(&path);
        }
        need += f->size - have;
    }
    if (statvfs(g->dir, &fs) != 0)
        return err_errno(g->err, errno, "examine", g->dir);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need && need + GET_SPACE_SLACK > room)
        return err_set(g->err, STATUS_IO, "%s: %.2f GB are needed, %.2f GB are free", g->dir,
                       (double)need * 1e-9, (double)room * 1e-9);
    return STATUS_OK;
}

/* Fills free places with files, and begins attempts whose pause is over. */
static Status get_fill(Get *g) {
    for (int i = 0; i < g->n_parallel; i++) {
        Transfer *t = &g->transfers[i];
        while (!t->file && g->next < g->list->n)
            TRY(transfer_open(t, &g->list->files[g->next++]));
        if (t->file && !t->curl && clock_now_ns() >= t->again_ns)
            TRY(transfer_begin(t));
    }
    return STATUS_OK;
}

static Status get_run(Get *g) {
    TRY(get_check_space(g));
    while (g->n_done < g->list->n) {
        if (get_is_stopped(g->source))
            return get_stop(g->err);
        int n_running;
        TRY(get_fill(g));
        if (curl_multi_perform(g->multi, &n_running) != CURLM_OK ||
            curl_multi_poll(g->multi, NULL, 0, GET_WAIT_MS, NULL) != CURLM_OK)
            return err_set(g->err, STATUS_IO, "the transfer library failed");
        TRY(get_settle(g));
        if (g->progress->report)
            g->progress->report(g->progress->ctx, g->done, g->total, g->n_done, g->list->n,
                                clock_seconds_since(g->start_ns), g->fetched);
    }
    return STATUS_OK;
}

Status pull_get(const PullList *list, const PullSource *source, const char *dir, int n_parallel,
                const PullProgress *progress, Err *err) {
    Get g = {.list = list,
             .source = source,
             .dir = dir,
             .progress = progress,
             .n_parallel = n_parallel < GET_MAX_PARALLEL ? n_parallel : GET_MAX_PARALLEL,
             .start_ns = clock_now_ns(),
             .err = err};
    for (int i = 0; i < GET_MAX_PARALLEL; i++)
        g.transfers[i] = (Transfer){.get = &g, .fd = -1};
    for (int32_t i = 0; i < list->n; i++)
        g.total += list->files[i].size;
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return err_errno(err, errno, "create", dir);
    g.multi = curl_multi_init();
    if (!g.multi)
        return err_memory(err, "transfers", 0);
    Status status = get_run(&g);
    for (int i = 0; i < GET_MAX_PARALLEL; i++)
        transfer_free(&g.transfers[i]);
    curl_multi_cleanup(g.multi);
    return status;
}

/* ---- small texts ---- */

typedef struct TextSink {
    StrBuf *out;
    size_t cap;
    bool is_over;
} TextSink;

static size_t text_write(char *bytes, size_t size, size_t n, void *ctx) {
    TextSink *s = ctx;
    if (size * n > s->cap - s->out->len) {
        s->is_over = true;
        return CURL_WRITEFUNC_ERROR;
    }
    strbuf_append(s->out, bytes, size * n);
    return s->out->is_failed ? CURL_WRITEFUNC_ERROR : size * n;
}

/* Called by libcurl about once a second, and on every byte. */
static int text_progress(void *ctx, curl_off_t total, curl_off_t done, curl_off_t up_total,
                         curl_off_t up_done) {
    UNUSED(total);
    UNUSED(done);
    UNUSED(up_total);
    UNUSED(up_done);
    return get_is_stopped(ctx); // not 0: the transfer ends
}

/* One attempt; *again: another may help. */
static Status text_attempt(StrBuf *out, const PullSource *source, const char *url, size_t cap,
                           bool *again, Err *err) {
    *again = false;
    struct curl_slist *headers = NULL;
    TextSink sink = {out, cap, false};
    CURL *c = curl_easy_init();
    bool is_good = c && curl_setup(c, &headers, source, url) &&
                   curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, text_write) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, text_progress) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_XFERINFODATA, source) == CURLE_OK &&
                   curl_easy_setopt(c, CURLOPT_WRITEDATA, &sink) == CURLE_OK;
    if (!is_good) {
        curl_easy_cleanup(c);
        curl_slist_free_all(headers);
        return err_memory(err, "a transfer", 0);
    }
    strbuf_clear(out);
    CURLcode result = curl_easy_perform(c);
    long code = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    if (result == CURLE_ABORTED_BY_CALLBACK)
        return get_stop(err);
    if (sink.is_over)
        return err_set(err, STATUS_TOO_LARGE, "%s: larger than %zu bytes", url, cap);
    if (result == CURLE_OK && code == 200)
        return strbuf_check(out, err);
    if (code == 401 || code == 403)
        return err_set(err, STATUS_DENIED,
                       "%s: refused with status %ld; a token may be needed (HF_TOKEN)", url, code);
    if (code == 404)
        return err_set(err, STATUS_NOT_FOUND, "%s: not there (status 404)", url);
    *again = code == 0 || code == 429 || code >= 500 || (code == 200 && result != CURLE_OK);
    if (code == 0)
        return err_set(err, STATUS_IO, "%s: %s", url, curl_easy_strerror(result));
    return err_set(err, STATUS_IO, "%s: %s (status %ld)", url,
                   result == CURLE_OK ? "no usable answer" : curl_easy_strerror(result), code);
}

Status pull_text(StrBuf *out, const PullSource *source, const char *url, size_t cap, Err *err) {
    Status status = STATUS_OK;
    for (int64_t i = 0; i <= source->n_tries; i++) {
        bool again;
        if (get_is_stopped(source))
            return get_stop(err);
        status = text_attempt(out, source, url, cap, &again, err);
        if (status == STATUS_OK || !again)
            return status;
        usleep((useconds_t)(GET_BACKOFF_MS * 1000));
    }
    return status;
}
