// SPDX-License-Identifier: Apache-2.0
/* log.c - formats a line for a sink.
 *
 * Owns:     nothing.  Thread: any. */
#include "log.h"

void log_printf(const Log *log, LogLevel level, const char *fmt, ...) {
    if (!log || !log->write)
        return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    log->write(log->ctx, level, line);
}
