// SPDX-License-Identifier: Apache-2.0
/* watch.c - hang-ups, deadlines, signs of life.
 *
 * Owns:     one entry a connection.  Thread: its own; the lock guards all entries.
 *
 * Descriptors belong to the HTTP library and are closed only behind watch_remove, so under the lock
 * an entry's descriptor is the right one. Jobs are called without the lock. */
#define _GNU_SOURCE // EPOLLRDHUP
#include "server/watch.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    WATCH_TICK_MS = 250,
    WATCH_QUIET_MS = 600, // with the tick: a sign of life at least every second
    WATCH_EVENTS = 64,
    WATCH_CROWDED = 90, // percent of the connections from which on idle ones are closed
    WATCH_YOUNG_MS = 1000,
};

typedef enum WatchStage { WATCH_IDLE, WATCH_HEAD_DONE, WATCH_BODY_DONE } WatchStage;

struct WatchEntry {
    WatchEntry *prev, *next; // oldest first
    uint64_t number;         // never used twice
    int fd;
    WatchStage stage;
    int64_t since_ns; // of the stage
    bool is_gone;     // the client has hung up
    bool is_shut;     // by us
    bool was_served;  // it has had an answer
    Job *job;         // a reference; NULL: none
};

struct Watch {
    WatchOptions options;
    pthread_t thread;
    pthread_mutex_t lock;
    WatchEntry *first, *last;
    int32_t n_open;
    uint64_t n_numbers;
    Job **jobs; // [max_connections] of one tick; the thread's
    int epoll_fd, stop_fd;
};

static void watch_lock(Watch *w) { CHECK(pthread_mutex_lock(&w->lock) == 0); }
static void watch_unlock(Watch *w) { CHECK(pthread_mutex_unlock(&w->lock) == 0); }

/* ---- what http.c tells ---- */

WatchEntry *watch_add(Watch *w, int fd) {
    WatchEntry *e = mem_zalloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->fd = fd;
    e->since_ns = clock_now_ns();
    watch_lock(w);
    e->number = ++w->n_numbers;
    e->prev = w->last;
    if (w->last)
        w->last->next = e;
    else
        w->first = e;
    w->last = e;
    w->n_open++;
    watch_unlock(w);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLONESHOT,
                                .data.u64 = e->number};
    (void)epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event); // without it only writes tell
    return e;
}

void watch_remove(Watch *w, WatchEntry *e) {
    if (!e)
        return;
    watch_note_end(w, e);
    (void)epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, e->fd, NULL);
    watch_lock(w);
    if (e->prev)
        e->prev->next = e->next;
    else
        w->first = e->next;
    if (e->next)
        e->next->prev = e->prev;
    else
        w->last = e->prev;
    w->n_open--;
    watch_unlock(w);
    mem_free(e);
}

static void watch_stage(Watch *w, WatchEntry *e, WatchStage stage) {
    watch_lock(w);
    e->stage = stage;
    e->since_ns = clock_now_ns();
    e->was_served |= stage == WATCH_IDLE;
    watch_unlock(w);
}

void watch_note_head(Watch *w, WatchEntry *e) { watch_stage(w, e, WATCH_HEAD_DONE); }
void watch_note_body(Watch *w, WatchEntry *e) { watch_stage(w, e, WATCH_BODY_DONE); }

void watch_note_end(Watch *w, WatchEntry *e) {
    watch_stage(w, e, WATCH_IDLE);
    watch_lock(w);
    Job *job = e->job;
    e->job = NULL;
    watch_unlock(w);
    job_release(job);
}

void watch_attach(Watch *w, WatchEntry *e, Job *job) {
    job_keep(job);
    watch_lock(w);
    CHECK(!e->job);
    e->job = job;
    bool is_gone = e->is_gone;
    watch_unlock(w);
    if (is_gone)
        job_cancel(job, JOB_GONE);
}

int32_t watch_n_open(Watch *w) {
    watch_lock(w);
    int32_t n = w->n_open;
    watch_unlock(w);
    return n;
}

int32_t watch_n_jobs(Watch *w) {
    int32_t n = 0;
    watch_lock(w);
    for (const WatchEntry *e = w->first; e; e = e->next)
        n += e->job != NULL;
    watch_unlock(w);
    return n;
}

/* ---- the thread ---- */

static void watch_gone(Watch *w, uint64_t number) {
    watch_lock(w);
    WatchEntry *e = w->first;
    while (e && e->number != number)
        e = e->next;
    Job *job = e ? e->job : NULL;
    if (e)
        e->is_gone = true;
    if (job)
        job_keep(job);
    watch_unlock(w);
    if (job)
        job_cancel(job, JOB_GONE);
    job_release(job);
}

/* Ends a connection that has no answer in work; the library sees its end and closes it. */
static void watch_shut(const Watch *w, WatchEntry *e) {
    static const char late[] = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n"
                               "Content-Length: 0\r\n\r\n";
    if (w->options.is_plain && !e->was_served)
        (void)send(e->fd, late, sizeof late - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(e->fd, SHUT_RDWR);
    e->is_shut = true;
}

static bool watch_is_late(const Watch *w, const WatchEntry *e, int64_t now_ns) {
    int64_t idle_ns = w->options.idle_s * INT64_C(1000000000), age_ns = now_ns - e->since_ns;
    if (e->stage == WATCH_HEAD_DONE)
        return age_ns > idle_ns * WATCH_BODY;
    // Near the limit whoever says nothing makes room for others.
    bool is_crowded =
        (int64_t)w->n_open * 100 >= (int64_t)w->options.max_connections * WATCH_CROWDED;
    return e->stage == WATCH_IDLE &&
           (age_ns > idle_ns || (is_crowded && age_ns > WATCH_YOUNG_MS * INT64_C(1000000)));
}

static void watch_job(Job *job, int64_t now_ns) {
    if (now_ns > job->deadline_ns)
        job_cancel(job, JOB_LATE);
    if (!job->is_streamed)
        return;
    int32_t n_prompt = atomic_load_explicit(&job->progress.n_prompt, memory_order_relaxed);
    int32_t n_read = atomic_load_explicit(&job->progress.n_read, memory_order_relaxed);
    int32_t n_made = atomic_load_explicit(&job->progress.n_generated, memory_order_relaxed);
    char text[96];
    int n = n_made     ? snprintf(text, sizeof text, ": working, %d tokens\n\n", n_made)
            : n_prompt ? snprintf(text, sizeof text, ": reading, %d of %d prompt tokens\n\n",
                                  n_read, n_prompt)
                       : snprintf(text, sizeof text, ": waiting\n\n");
    stream_put_idle(&job->stream, str_view(text, (size_t)n), now_ns,
                    WATCH_QUIET_MS * INT64_C(1000000));
}

static void watch_tick(Watch *w) {
    int32_t n = 0;
    int64_t now_ns = clock_now_ns();
    watch_lock(w);
    for (WatchEntry *e = w->first; e; e = e->next) {
        if (e->job && n < w->options.max_connections) {
            job_keep(e->job);
            w->jobs[n++] = e->job;
        } else if (!e->is_shut && watch_is_late(w, e, now_ns)) {
            watch_shut(w, e);
        }
    }
    watch_unlock(w);
    for (int32_t i = 0; i < n; i++) {
        watch_job(w->jobs[i], now_ns);
        job_release(w->jobs[i]);
    }
}

static void *watch_main(void *ctx) {
    Watch *w = ctx;
    int64_t next_ns = 0;
    for (;;) {
        struct epoll_event events[WATCH_EVENTS];
        int n = epoll_wait(w->epoll_fd, events, WATCH_EVENTS, WATCH_TICK_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0)
                return NULL;
            watch_gone(w, events[i].data.u64);
        }
        if (clock_now_ns() < next_ns)
            continue;
        watch_tick(w);
        next_ns = clock_now_ns() + WATCH_TICK_MS * INT64_C(1000000);
    }
}

static void watch_free(Watch *w) {
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    CHECK(pthread_mutex_destroy(&w->lock) == 0);
    mem_free(w->jobs);
    mem_free(w);
}

Status watch_open(Watch **out, const WatchOptions *options, Err *err) {
    Watch *w = mem_zalloc(1, sizeof *w);
    if (!w)
        return err_memory(err, "watch", sizeof *w);
    w->options = *options;
    CHECK(pthread_mutex_init(&w->lock, NULL) == 0);
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    w->jobs = mem_zalloc((size_t)options->max_connections, sizeof(Job *));
    struct epoll_event event = {.events = EPOLLIN}; // number 0
    int code = w->jobs ? 0 : ENOMEM;
    if (w->epoll_fd < 0 || w->stop_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->stop_fd, &event) != 0)
        code = errno;
    if (code == 0)
        code = pthread_create(&w->thread, NULL, watch_main, w);
    if (code) {
        watch_free(w);
        return err_set(err, STATUS_IO, "cannot watch connections: %s", strerror(code));
    }
    *out = w;
    return STATUS_OK;
}

void watch_close(Watch *w) {
    if (!w)
        return;
    uint64_t one = 1;
    CHECK(write(w->stop_fd, &one, sizeof one) == (ssize_t)sizeof one);
    CHECK(pthread_join(w->thread, NULL) == 0);
    watch_free(w);
}
