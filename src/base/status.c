// SPDX-License-Identifier: Apache-2.0
/* status.c - error codes to names and texts.
 *
 * Owns:     nothing.  Thread: any.
 * Not here: printing an error (src/cli). */
#define _POSIX_C_SOURCE 200809L // strerror_r that returns int
#include "status.h"

#include "utf8.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    int http;
} STATUS_TABLE[STATUS_N] = {
#define X(code, name, http) [code] = {name, http},
    STATUS_LIST(X)
#undef X
};

const char *status_name(Status code) {
    return (unsigned)code < STATUS_N ? STATUS_TABLE[code].name : "unknown";
}

int status_http(Status code) { return (unsigned)code < STATUS_N ? STATUS_TABLE[code].http : 500; }

/* One line of valid text: outside bytes (names from a file) reach a terminal through it. */
static void err_clean(char *text) {
    size_t len = strlen(text), off = 0;
    while (off < len) {
        uint32_t c;
        int n = utf8_decode(text + off, len - off, &c);
        if (n <= 0) {
            if (off + 4 > len && len >= ERR_TEXT_SIZE - 1) {
                text[off] = 0; // cut in the middle of a character
                return;
            }
            text[off++] = '?';
        } else {
            if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xa0))
                memset(text + off, '?', (size_t)n);
            off += (size_t)n;
        }
    }
}

Status err_set(Err *err, Status code, const char *fmt, ...) {
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
        err_clean(err->text);
    }
    return code;
}

void err_prefix(Err *err, const char *fmt, ...) {
    if (!err)
        return;
    char old[ERR_TEXT_SIZE];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used < sizeof err->text)
        snprintf(err->text + used, sizeof err->text - used, ": %s", old);
    err_clean(err->text);
}

Status err_memory(Err *err, const char *what, size_t size) {
    if (size == 0) // not known: a library asked for it
        return err_set(err, STATUS_MEMORY, "out of memory for %s", what);
    return err_set(err, STATUS_MEMORY, "out of memory: %zu bytes for %s", size, what);
}

Status err_errno(Err *err, int errno_value, const char *verb, const char *path) {
    Status code = STATUS_IO;
    if (errno_value == ENOENT || errno_value == ENOTDIR)
        code = STATUS_NOT_FOUND;
    else if (errno_value == EACCES || errno_value == EPERM)
        code = STATUS_DENIED;
    else if (errno_value == ENOMEM)
        code = STATUS_MEMORY;
    char text[128];
    if (strerror_r(errno_value, text, sizeof text) != 0)
        snprintf(text, sizeof text, "error %d", errno_value);
    return err_set(err, code, "cannot %s %s: %s", verb, path, text);
}

void check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: internal error: %s\n", file, line, what);
    abort();
}
