// SPDX-License-Identifier: Apache-2.0
/* pull_get.c - the files of a list: several at once, gone on with after a break, checked before
 * they count.
 *
 * Path:     pull_get: what is here is checked, the disk's space too, then get_fill opens transfers,
 *           libcurl's multi handle runs them, get_settle looks at what ended.
 * Owns:     transfers own their handles and parts; a run owns the folder's lock.  Thread: main.
 * Not here: requests and their failures (pull_http.c), bytes and hashes (pull_part.c). */
#define _POSIX_C_SOURCE 200809L
#include "cli/pull_http.h"
#include "cli/pull_part.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    GET_MAX_PARALLEL = 16,
    GET_WAIT_MS = 200,
    GET_SPACE_SLACK = 16 << 20, // left free on the disk
};

typedef struct Get Get;

/* A file under way. */
typedef struct Transfer {
    Get *get;
    PullPart part; // part.file NULL: this place is free
    CURL *curl;    // NULL between two attempts
    struct curl_slist *headers;
    uint64_t most;      // bytes that there ever were: more are progress
    int64_t n_failures; // in a row without progress
    int64_t again_ns;   // when the next attempt may begin
    bool is_checked;    // the answer's head was looked at
    Status status;      // what this side has against the answer
    bool is_permanent;  // and another attempt would not help
    Err err;
} Transfer;

struct Get {
    const PullList *list;
    const PullSource *source;
    const char *dir;
    const PullProgress *progress;
    CURLM *multi;
    Transfer transfers[GET_MAX_PARALLEL];
    int n_parallel;
    bool *is_here; // [list->n] whole and right
    int32_t next;  // file to begin next
    PullNews news;
    int64_t first_ns; // when the first byte came; 0: none has
    Err *err;
};

/* ---- news ---- */

/* The shortest pause of an open transfer, in milliseconds; 0 when one is running. */
static int64_t get_wait_ms(const Get *g) {
    int64_t now = clock_now_ns(), least = INT64_MAX;
    for (int i = 0; i < g->n_parallel; i++) {
        const Transfer *t = &g->transfers[i];
        if (!t->part.file)
            continue;
        int64_t left = t->curl || t->again_ns < now ? 0 : t->again_ns - now;
        least = left < least ? left : least;
    }
    return least == INT64_MAX ? 0 : least / 1000000;
}

/* How long to sleep when nothing comes: not past the end of a pause. */
static int get_poll_ms(const Get *g) {
    int64_t now = clock_now_ns(), least = (int64_t)GET_WAIT_MS * 1000000;
    for (int i = 0; i < g->n_parallel; i++) {
        const Transfer *t = &g->transfers[i];
        if (t->part.file && !t->curl && t->again_ns - now < least)
            least = t->again_ns - now;
    }
    return least > 0 ? (int)(least / 1000000) + 1 : 0;
}

static void get_report(Get *g) {
    if (!g->progress->report)
        return;
    g->news.seconds = g->first_ns ? clock_seconds_since(g->first_ns) : 0;
    g->news.wait_s = (double)get_wait_ms(g) * 1e-3;
    g->progress->report(g->progress->ctx, &g->news);
}

/* Hashes what an earlier run left, all of it. */
static Status get_hash(Get *g, PullPart *p) {
    while (p->n_hashed < p->size) {
        TRY(http_check_stop(g->source, g->err));
        uint64_t before = p->n_hashed;
        TRY(part_hash(p, g->err));
        g->news.done += p->n_hashed - before;
        get_report(g);
    }
    return STATUS_OK;
}

/* ---- one attempt ---- */

/* Ends the attempt with an error of this side; returns false. */
static bool transfer_refuse(Transfer *t, bool is_permanent, Status status) {
    t->status = status;
    t->is_permanent = is_permanent;
    return false;
}

/* Cuts the part, to begin with its first byte; false: that failed. */
static bool transfer_cut(Transfer *t) {
    uint64_t size = t->part.size;
    Status status = part_cut(&t->part, &t->err);
    if (status != STATUS_OK)
        return transfer_refuse(t, true, status);
    t->get->news.done -= size;
    return true;
}

/* A 206 must go on where the part ends: a cache may send something else. */
static bool transfer_check_range(Transfer *t) {
    struct curl_header *h = NULL;
    unsigned long long first = 0;
    uint64_t asked = t->part.size;
    if (curl_easy_header(t->curl, "Content-Range", 0, CURLH_HEADER, -1, &h) == CURLHE_OK &&
        sscanf(h->value, "bytes %llu-", &first) == 1 && first == asked)
        return true;
    if (!transfer_cut(t)) // so that the next attempt asks for no part
        return false;
    return transfer_refuse(t, asked == 0,
                           err_set(&t->err, STATUS_FORMAT,
                                   "%s: asked for the bytes from %llu on, the server sends others",
                                   t->part.file->path, (unsigned long long)asked));
}

/* Looks at the answer's head once, before the first byte is kept; false ends the attempt. */
static bool transfer_check(Transfer *t) {
    if (t->is_checked)
        return true;
    t->is_checked = true;
    const PullFile *f = t->part.file;
    long code = 0;
    curl_off_t len = -1;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &len);
    if (code != 200 && code != 206)
        return false; // the status says it all; http_fail reads it
    if (http_is_page(t->curl))
        return transfer_refuse(t, true,
                               err_set(&t->err, STATUS_FORMAT,
                                       "%s: the server sent a web page (a log-in or consent page?)",
                                       f->path));
    if (code == 206 && !transfer_check_range(t))
        return false;
    if (code == 200 && t->part.size > 0 && !transfer_cut(t)) // the range was ignored
        return false;
    if (len >= 0 && (uint64_t)len != f->size - t->part.size)
        return transfer_refuse(t, true,
                               err_set(&t->err, STATUS_FORMAT,
                                       "%s: expected %llu bytes, the server announces %llu",
                                       f->path, (unsigned long long)f->size,
                                       (unsigned long long)t->part.size + (unsigned long long)len));
    return true;
}

static size_t transfer_write(char *bytes, size_t size, size_t n, void *ctx) {
    Transfer *t = ctx;
    Get *g = t->get;
    size_t len = size * n;
    if (!transfer_check(t))
        return CURL_WRITEFUNC_ERROR;
    if (len > t->part.file->size - t->part.size) {
        transfer_refuse(t, true,
                        err_set(&t->err, STATUS_FORMAT,
                                "%s: expected %llu bytes, the server sends more",
                                t->part.file->path, (unsigned long long)t->part.file->size));
        return CURL_WRITEFUNC_ERROR;
    }
    Status status = part_append(&t->part, bytes, len, &t->err);
    if (status != STATUS_OK) {
        transfer_refuse(t, true, status);
        return CURL_WRITEFUNC_ERROR;
    }
    if (t->part.size > t->most) {
        t->most = t->part.size;
        t->n_failures = 0;
    }
    g->first_ns = g->first_ns ? g->first_ns : clock_now_ns();
    g->news.done += len;
    g->news.fetched += len;
    return len;
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

/* "HUB/OWNER/NAME/resolve/REVISION/PATH" */
static Status transfer_url(StrBuf *out, CURL *c, const Transfer *t, Err *err) {
    const Get *g = t->get;
    char *path = curl_easy_escape(c, t->part.file->path, 0);
    strbuf_printf(out, "%s/%s/resolve/%s/%s", g->source->hub, g->list->repo, g->list->revision,
                  path ? path : "");
    bool is_good = path && !out->is_failed;
    curl_free(path);
    return is_good ? STATUS_OK : err_memory(err, t->part.file->path, 0);
}

/* Begins an attempt for the rest of the file. */
static Status transfer_begin(Transfer *t) {
    Get *g = t->get;
    StrBuf url = {0};
    // A range rather than libcurl's resume, which gives up where a server ignores it.
    char range[32];
    snprintf(range, sizeof range, "%llu-", (unsigned long long)t->part.size);
    t->curl = curl_easy_init();
    t->is_checked = t->is_permanent = false;
    t->status = STATUS_OK;
    if (!t->curl)
        return err_memory(g->err, t->part.file->path, 0);
    Status status = transfer_url(&url, t->curl, t, g->err);
    if (status == STATUS_OK)
        status = http_setup(t->curl, &t->headers, g->source, url.ptr, g->err);
    strbuf_fini(&url);
    TRY(status);
    bool is_good =
        (t->part.size == 0 || curl_easy_setopt(t->curl, CURLOPT_RANGE, range) == CURLE_OK) &&
        curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, transfer_write) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t) == CURLE_OK &&
        curl_easy_setopt(t->curl, CURLOPT_PRIVATE, t) == CURLE_OK &&
        curl_multi_add_handle(g->multi, t->curl) == CURLM_OK;
    return is_good ? STATUS_OK : err_memory(g->err, t->part.file->path, 0);
}

/* ---- the end of an attempt ---- */

static void transfer_free(Transfer *t) {
    transfer_drop_curl(t);
    part_close(&t->part);
    *t = (Transfer){.get = t->get, .part = {.fd = -1}};
}

/* All bytes are there: the right ones get their name. */
static Status transfer_commit(Transfer *t) {
    Get *g = t->get;
    PullPart *p = &t->part;
    if (part_is_good(p)) {
        TRY(part_commit(p, g->err));
        g->news.n_done++;
        transfer_free(t);
        return STATUS_OK;
    }
    bool is_mixed = p->n_old > 0; // bytes of an earlier run, perhaps of another file: once more
    if (!transfer_cut(t))
        return (*g->err = t->err).code;
    t->most = 0;
    if (is_mixed)
        return STATUS_OK; // get_fill begins it
    unlink(p->part);
    return err_set(g->err, STATUS_FORMAT,
                   "%s: the bytes that came have another hash than the hub's listing says; the "
                   "file was removed",
                   p->file->path);
}

/* A failed attempt is repeated after a pause; too many in a row without progress end the run. */
static Status transfer_settle(Transfer *t, CURLcode result) {
    Get *g = t->get;
    int64_t after_s = 0;
    long code = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    bool is_answer = code == 200 || code == 206;
    if (is_answer && result == CURLE_OK)
        (void)transfer_check(t); // nobody has looked at an answer without a body
    if (is_answer && t->is_checked && t->status == STATUS_OK &&
        t->part.size == t->part.file->size) {
        transfer_drop_curl(t);
        return transfer_commit(t);
    }
    bool again = !t->is_permanent;
    if (t->status == STATUS_OK) {
        t->status = http_fail(t->curl, result, t->part.file->path, &again, &after_s, &t->err);
        if (code == 416 && !transfer_cut(t)) // the part does not fit the file
            again = false;
    }
    transfer_drop_curl(t);
    if (!again) {
        *g->err = t->err;
        return t->status;
    }
    if (++t->n_failures > g->source->n_tries) {
        *g->err = t->err;
        err_prefix(g->err, "given up after %lld attempts", (long long)t->n_failures);
        return t->status;
    }
    t->again_ns = clock_now_ns() + http_pause_ms(g->source, t->n_failures, after_s) * 1000000;
    return STATUS_OK;
}

/* *n_ended: attempts that were over. */
static Status get_settle(Get *g, int *n_ended) {
    CURLMsg *m;
    int n;
    *n_ended = 0;
    while ((m = curl_multi_info_read(g->multi, &n))) {
        if (m->msg != CURLMSG_DONE)
            continue;
        Transfer *t = NULL;
        CURLcode result = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        ++*n_ended;
        TRY(transfer_settle(t, result));
    }
    return STATUS_OK;
}

/* ---- the run ---- */

/* Finds the files that are here whole and right. */
static Status get_look(Get *g) {
    for (int32_t i = 0; i < g->list->n; i++) {
        PullPart p;
        bool is_there;
        TRY(part_open_whole(&p, &is_there, g->dir, &g->list->files[i], g->err));
        if (!is_there)
            continue;
        Status status = get_hash(g, &p);
        g->is_here[i] = part_is_good(&p);
        if (g->is_here[i])
            g->news.n_done++;
        else
            g->news.done -= p.n_hashed;
        part_close(&p);
        TRY(status);
    }
    return STATUS_OK;
}

static Status get_check_space(const Get *g) {
    struct statvfs fs;
    uint64_t need = 0; // no overflow: pull_list bounds the sum
    for (int32_t i = 0; i < g->list->n; i++) {
        const PullFile *f = &g->list->files[i];
        StrBuf path = {0};
        struct stat st;
        if (g->is_here[i])
            continue;
        strbuf_printf(&path, "%s/%s.part", g->dir, f->path);
        if (path.is_failed) {
            strbuf_fini(&path);
            return err_memory(g->err, f->path, 0);
        }
        bool has_part = stat(path.ptr, &st) == 0 && (uint64_t)st.st_size <= f->size;
        need += f->size - (has_part ? (uint64_t)st.st_size : 0);
        strbuf_fini(&path);
    }
    if (statvfs(g->dir, &fs) != 0)
        return err_errno(g->err, errno, "examine", g->dir);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need && need + GET_SPACE_SLACK > room)
        return err_set(g->err, STATUS_IO, "%s: %.2f GB are needed, %.2f GB are free", g->dir,
                       (double)need * 1e-9, (double)room * 1e-9);
    return STATUS_OK;
}

/* Takes up a file and what an earlier run left of it. */
static Status get_open(Get *g, Transfer *t, const PullFile *file) {
    TRY(part_open(&t->part, g->dir, file, g->err));
    TRY(get_hash(g, &t->part));
    t->most = t->part.size;
    return t->part.size == file->size ? transfer_commit(t) : STATUS_OK;
}

/* Fills free places with files, and begins attempts whose pause is over. */
static Status get_fill(Get *g) {
    for (int i = 0; i < g->n_parallel; i++) {
        Transfer *t = &g->transfers[i];
        while (!t->part.file && g->next < g->list->n) {
            int32_t next = g->next++;
            if (!g->is_here[next])
                TRY(get_open(g, t, &g->list->files[next]));
        }
        if (t->part.file && !t->curl && clock_now_ns() >= t->again_ns)
            TRY(transfer_begin(t));
    }
    return STATUS_OK;
}

static Status get_check_multi(const Get *g, CURLMcode result) {
    if (result == CURLM_OUT_OF_MEMORY)
        return err_memory(g->err, "transfers", 0);
    if (result != CURLM_OK)
        return err_set(g->err, STATUS_IO, "the transfer library failed: %s",
                       curl_multi_strerror(result));
    return STATUS_OK;
}

static Status get_run(Get *g) {
    TRY(get_look(g));
    TRY(get_check_space(g));
    while (g->news.n_done < g->list->n) {
        TRY(http_check_stop(g->source, g->err));
        int n_running, n_ended;
        TRY(get_fill(g));
        TRY(get_check_multi(g, curl_multi_perform(g->multi, &n_running)));
        TRY(get_settle(g, &n_ended));
        if (n_ended == 0) // else there may be something to begin
            TRY(get_check_multi(g, curl_multi_poll(g->multi, NULL, 0, get_poll_ms(g), NULL)));
        get_report(g);
    }
    return STATUS_OK;
}

static Status get_open_run(Get *g) {
    for (int32_t i = 0; i < g->list->n; i++)
        g->news.total += g->list->files[i].size;
    g->news.n_files = g->list->n;
    g->is_here = mem_zalloc((size_t)g->list->n, sizeof *g->is_here);
    g->multi = curl_multi_init();
    return g->is_here && g->multi ? STATUS_OK : err_memory(g->err, "transfers", 0);
}

Status pull_get(const PullList *list, const PullSource *source, const char *dir, int n_parallel,
                const PullProgress *progress, Err *err) {
    Get g = {.list = list, .source = source, .dir = dir, .progress = progress, .err = err};
    g.n_parallel = n_parallel < GET_MAX_PARALLEL ? n_parallel : GET_MAX_PARALLEL;
    for (int i = 0; i < GET_MAX_PARALLEL; i++)
        g.transfers[i] = (Transfer){.get = &g, .part = {.fd = -1}};
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return err_errno(err, errno, "create", dir);
    int lock;
    TRY(file_lock_open(&lock, dir, err));
    Status status = get_open_run(&g);
    if (status == STATUS_OK)
        status = get_run(&g);
    for (int i = 0; i < GET_MAX_PARALLEL; i++)
        transfer_free(&g.transfers[i]);
    curl_multi_cleanup(g.multi);
    mem_free(g.is_here);
    file_lock_close(lock);
    return status;
}
