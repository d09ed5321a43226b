// SPDX-License-Identifier: Apache-2.0
/* log.h - where messages that are no result go: a sink that the program's owner hands down.
 *
 * Path:     src/cli prints to stderr, the server to its log, the library to the caller's function.
 * Owns:     nothing.  Thread: a sink may be called from any thread. */
#ifndef LILY_BASE_LOG_H
#define LILY_BASE_LOG_H

#include "status.h"

#include <stdint.h>

typedef enum LogLevel { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR } LogLevel;

/* A sink. write is called with one line without its line feed; write NULL: silent. */
typedef struct Log {
    void (*write)(void *ctx, LogLevel level, const char *line);
    void *ctx;
} Log;

/* log NULL: silent. Lines over 1023 bytes are cut. */
void log_printf(const Log *log, LogLevel level, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Progress of a long piece of work; report may be NULL.
 * done, total  same unit (bytes); done never goes back and ends at total. */
typedef struct Progress {
    void (*report)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *ctx;
} Progress;

#endif
