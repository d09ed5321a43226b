// SPDX-License-Identifier: Apache-2.0
/* stream.c - bytes on their way from the engine's thread to one connection.
 *
 * Owns:     its bytes.  Thread: any; the lock guards all fields.
 *
 * A connection that is suspended stays alive until it is resumed, so its pointer is good for
 * exactly as long as it stands in the stream. */
#include "server/stream.h"

#include "base/checked.h"
#include "base/clock.h"

#include <microhttpd.h>

static void stream_lock(Stream *s) { CHECK(pthread_mutex_lock(&s->lock) == 0); }
static void stream_unlock(Stream *s) { CHECK(pthread_mutex_unlock(&s->lock) == 0); }

void stream_init(Stream *s, void (*drained)(void *ctx), void *ctx) {
    *s = (Stream){.put_ns = clock_now_ns(), .drained = drained, .ctx = ctx};
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
}

void stream_fini(Stream *s) {
    CHECK(!s->connection);
    CHECK(pthread_mutex_destroy(&s->lock) == 0);
    strbuf_fini(&s->bytes);
}

static size_t stream_n_unread(const Stream *s) { return s->bytes.len - s->n_read; }

static void stream_wake(Stream *s) {
    struct MHD_Connection *c = s->connection;
    s->connection = NULL;
    if (c)
        MHD_resume_connection(c);
}

bool stream_put(Stream *s, StrView bytes, bool is_done) {
    stream_lock(s);
    if (!s->is_done) {
        if (s->n_read > STREAM_FULL) { // a reader that is always a little behind
            memmove(s->bytes.ptr, s->bytes.ptr + s->n_read, stream_n_unread(s));
            s->bytes.len -= s->n_read;
            s->n_read = 0;
        }
        strbuf_append_view(&s->bytes, bytes);
        s->is_done = is_done || s->bytes.is_failed;
        s->put_ns = clock_now_ns();
        stream_wake(s);
    }
    bool is_good = !s->bytes.is_failed;
    stream_unlock(s);
    return is_good;
}

void stream_put_idle(Stream *s, StrView bytes, int64_t now_ns, int64_t quiet_ns) {
    stream_lock(s);
    if (!s->is_done && stream_n_unread(s) == 0 && now_ns - s->put_ns >= quiet_ns) {
        strbuf_append_view(&s->bytes, bytes);
        s->put_ns = now_ns;
        stream_wake(s);
    }
    stream_unlock(s);
}

bool stream_hold(Stream *s) {
    stream_lock(s);
    if (!s->is_done && stream_n_unread(s) > STREAM_FULL)
        s->is_held = true;
    bool is_held = s->is_held;
    stream_unlock(s);
    return is_held;
}

bool stream_release(Stream *s) {
    stream_lock(s);
    bool may_go_on = s->is_held && stream_n_unread(s) <= STREAM_EMPTY;
    if (may_go_on)
        s->is_held = false;
    stream_unlock(s);
    return may_go_on;
}

ssize_t stream_read(Stream *s, struct MHD_Connection *connection, char *out, size_t size) {
    stream_lock(s);
    size_t n = min_size(stream_n_unread(s), size);
    bool was_full = s->is_held && stream_n_unread(s) > STREAM_EMPTY;
    ssize_t result = (ssize_t)n;
    if (n) {
        memcpy(out, s->bytes.ptr + s->n_read, n);
        s->n_read += n;
        if (s->n_read == s->bytes.len) {
            strbuf_clear(&s->bytes);
            s->n_read = 0;
        }
    } else if (s->is_done) {
        result = s->bytes.is_failed ? MHD_CONTENT_READER_END_WITH_ERROR
                                    : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        // Suspended before the lock goes, so that a writer cannot miss it; 0 alone would spin.
        s->connection = connection;
        MHD_suspend_connection(connection);
    }
    bool is_drained = was_full && stream_n_unread(s) <= STREAM_EMPTY;
    stream_unlock(s);
    if (is_drained)
        s->drained(s->ctx);
    return result;
}

bool stream_wait(Stream *s, struct MHD_Connection *connection) {
    stream_lock(s);
    bool is_done = s->is_done;
    if (!is_done) {
        s->connection = connection;
        MHD_suspend_connection(connection);
    }
    stream_unlock(s);
    return is_done;
}
