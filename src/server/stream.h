// SPDX-License-Identifier: Apache-2.0
/* stream.h - bytes on their way from the engine's thread to one connection, bounded by the reader.
 *
 * Path:     job.c puts bytes in; http.c takes them out when the connection can write, or waits for
 *           the end (whole answers).
 * Owns:     its bytes.  Thread: any; its lock guards all fields.
 * Not here: what the bytes mean (src/wire). */
#ifndef LILY_SERVER_STREAM_H
#define LILY_SERVER_STREAM_H

#include "base/str.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct MHD_Connection;

enum {
    STREAM_FULL = 64 << 10,  // bytes not yet read at which the answer waits for its reader
    STREAM_EMPTY = 16 << 10, // and at which it goes on
};

typedef struct Stream {
    pthread_mutex_t lock;
    struct MHD_Connection *connection; // set while it is suspended for this stream; else NULL
    StrBuf bytes;
    size_t n_read;              // of bytes
    bool is_done;               // nothing follows
    bool is_held;               // the writer waits for the reader
    int64_t put_ns;             // when bytes were last put
    void (*drained)(void *ctx); // called without the lock when a held stream may go on
    void *ctx;
} Stream;

void stream_init(Stream *s, void (*drained)(void *ctx), void *ctx);
void stream_fini(Stream *s);

/* Appends; what the reader did not get yet is at most STREAM_FULL plus one step's news. False: out
 * of memory, and nothing more will be put. */
bool stream_put(Stream *s, StrView bytes, bool is_done);
/* Appends a line that clients ignore, when nothing was put for a while and all was read. */
void stream_put_idle(Stream *s, StrView bytes, int64_t now_ns, int64_t quiet_ns);

/* True (and held) when the reader is too far behind. */
bool stream_hold(Stream *s);
/* True (and no longer held) when a held one may go on. */
bool stream_release(Stream *s);
/* Takes up to size bytes; -1: the end; 0: nothing yet, and the connection is suspended until there
 * is. */
ssize_t stream_read(Stream *s, struct MHD_Connection *connection, char *out, size_t size);
/* Waits for the end: true when it is there, else the connection is suspended until it is. */
bool stream_wait(Stream *s, struct MHD_Connection *connection);

#endif
