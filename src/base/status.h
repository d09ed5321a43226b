// SPDX-License-Identifier: Apache-2.0
/* status.h - one list of failure codes, the error text, and the macros that forward or stop.
 *
 * Path:     every module includes it; src/cli prints the text, the server maps codes to HTTP.
 * Owns:     nothing.  Thread: any (an Err belongs to one thread at a time).
 * Not here: logging (log.h). */
#ifndef LILY_BASE_STATUS_H
#define LILY_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define UNUSED(x) ((void)(x))
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* code, name, HTTP status */
#define STATUS_LIST(X)                                                                             \
    X(STATUS_OK, "ok", 200)                                                                        \
    X(STATUS_INVALID, "invalid_request", 400)  /* the caller's input is wrong */                   \
    X(STATUS_NOT_FOUND, "not_found", 404)      /* a file, a name */                                \
    X(STATUS_DENIED, "permission_denied", 403) /* the system said no */                            \
    X(STATUS_TOO_LARGE, "too_large", 413)      /* a cap of limits.h */                             \
    X(STATUS_CONTEXT, "context_length_exceeded", 400)                                              \
    X(STATUS_FORMAT, "bad_format", 500)       /* a file is not what it should be */                \
    X(STATUS_UNSUPPORTED, "unsupported", 501) /* well formed, but this program cannot */           \
    X(STATUS_MEMORY, "out_of_memory", 503)                                                         \
    X(STATUS_IO, "io_error", 500) /* read, write, disk full */                                     \
    X(STATUS_BUSY, "busy", 429)   /* a queue is full */                                            \
    X(STATUS_CANCELLED, "cancelled", 499)                                                          \
    X(STATUS_NUMERIC, "numeric_error", 500) /* NaN or Inf where a number must be */                \
    X(STATUS_DEVICE, "device_error", 500)

typedef enum Status {
#define X(code, name, http) code,
    STATUS_LIST(X)
#undef X
        STATUS_N
} Status;

enum { ERR_TEXT_SIZE = 512 };

/* An error: its code and one line of text: what, where, expected, found. Starts as {0}. */
typedef struct Err {
    Status code;
    char text[ERR_TEXT_SIZE]; // NUL-terminated; cut at a UTF-8 boundary when too long
} Err;

/* Name ("out_of_memory") and HTTP status of a code. */
const char *status_name(Status code);
int status_http(Status code);

/* Writes code and text into err (NULL allowed) and returns code, so `return err_set(...)` works.
 * The text replaces what was there; control characters and invalid UTF-8 in it become '?'. */
NODISCARD Status err_set(Err *err, Status code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Puts "prefix: " before the text that err (NULL allowed) holds; its code stays. */
void err_prefix(Err *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Out of memory for `size` bytes of `what`; 0: how many is not known. */
NODISCARD Status err_memory(Err *err, const char *what, size_t size);

/* An errno value for a path: chooses the code, gives strerror's words. */
NODISCARD Status err_errno(Err *err, int errno_value, const char *verb, const char *path);

/* Forwards a failure when nothing is held. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        Status try_status_ = (call);                                                               \
        if (try_status_ != STATUS_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* The same where something is held: sets `status` and jumps to `fail`. */
#define TRY_GOTO(status, call)                                                                     \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) != STATUS_OK)                                                                 \
            goto fail;                                                                             \
    } while (0)

/* The program is wrong: prints the place and aborts. CHECK is always on; ASSERT goes with NDEBUG.
 */
_Noreturn void check_failed(const char *file, int line, const char *what);
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            check_failed(__FILE__, __LINE__, #cond);                                               \
    } while (0)
#ifdef NDEBUG
#define ASSERT(cond) ((void)0)
#else
#define ASSERT(cond) CHECK(cond)
#endif

#endif
