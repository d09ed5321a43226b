// SPDX-License-Identifier: Apache-2.0
/* ui.h - what the verbs show on standard error: errors, warnings, progress bars.
 *
 * Owns:     nothing.  Thread: main; the log may be called from any. */
#ifndef LILY_CLI_UI_H
#define LILY_CLI_UI_H

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"

/* "lily VERB: text" on standard error; returns exit status 1. */
int ui_fail(const char *verb, const Err *err);
/* A usage error; returns 2. */
int ui_usage(const char *verb, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Warnings and errors to standard error. */
extern const Log UI_LOG;
/* A bar on standard error when it is a terminal, else silent. */
extern const Progress UI_PROGRESS;

/* Prints v (taken) and a newline to standard output; flags are jansson's. NULL is memory that ran
 * out: STATUS_MEMORY. */
NODISCARD Status ui_print_json(json_t *v, size_t flags, Err *err);

/* Flushes standard output and tells a write error (a full disk, a closed pipe): exit status 0 or 1.
 */
int ui_finish(const char *verb);

#endif
