// SPDX-License-Identifier: Apache-2.0
/* watch.h - a thread that looks after the connections: hang-ups, deadlines, signs of life.
 *
 * Path:     http.c tells it of connections and requests; it cancels jobs and puts comments into
 *           their streams.
 * Owns:     one entry a connection.  Thread: any.
 *
 * The HTTP library tells nothing of a connection that is suspended, and knows no deadline for a
 * head or body that arrives byte by byte. */
#ifndef LILY_SERVER_WATCH_H
#define LILY_SERVER_WATCH_H

#include "server/job.h"

typedef struct Watch Watch;
typedef struct WatchEntry WatchEntry;

typedef struct WatchOptions {
    int32_t idle_s;          // for a head to arrive; a body has WATCH_BODY times as long
    int32_t max_connections; // near it, idle connections are closed
    bool is_plain;           // no TLS: a late client can be told so
} WatchOptions;

enum { WATCH_BODY = 5 };

NODISCARD Status watch_open(Watch **out, const WatchOptions *options, Err *err);
void watch_close(Watch *w);

/* A connection was accepted; NULL: out of memory. It must be removed before fd is closed. */
WatchEntry *watch_add(Watch *w, int fd);
void watch_remove(Watch *w, WatchEntry *e);
/* A request's head has arrived; its body has; it was answered. */
void watch_note_head(Watch *w, WatchEntry *e);
void watch_note_body(Watch *w, WatchEntry *e);
void watch_note_end(Watch *w, WatchEntry *e);
/* The request's job: cancelled when the client hangs up or its time is over, and given signs of
 * life while it is streamed. Until watch_note_end. */
void watch_attach(Watch *w, WatchEntry *e, Job *job);

int32_t watch_n_open(Watch *w);
/* Connections whose job has not been answered wholly. */
int32_t watch_n_jobs(Watch *w);

#endif
