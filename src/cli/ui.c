// SPDX-License-Identifier: Apache-2.0
/* ui.c - standard error.
 *
 * Owns:     nothing.  Thread: main; the log may be called from any. */
#define _POSIX_C_SOURCE 200809L
#include "cli/ui.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int ui_fail(const char *verb, const Err *err) {
    fflush(stdout);
    fprintf(stderr, "lily %s: %s\n", verb, err->text);
    return 1;
}

int ui_usage(const char *verb, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "lily %s: ", verb);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    return 2;
}

static void ui_log(void *ctx, LogLevel level, const char *line) {
    UNUSED(ctx);
    if (level == LOG_WARNING || level == LOG_ERROR)
        fprintf(stderr, "%s: %s\n", level == LOG_ERROR ? "error" : "warning", line);
    else if (level == LOG_INFO)
        fprintf(stderr, "%s\n", line);
}

static void ui_progress(void *ctx, const char *what, uint64_t done, uint64_t total) {
    UNUSED(ctx);
    if (!isatty(STDERR_FILENO) || total == 0)
        return;
    enum { WIDTH = 40 };
    int full = (int)((double)done / (double)total * WIDTH);
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%-10s [%s] %5.1f%% of %.2f GB%s", what, bar,
            100.0 * (double)done / (double)total, (double)total * 1e-9,
            done >= total ? "\r\x1b[K" : "");
    fflush(stderr);
}

const Log UI_LOG = {ui_log, NULL};
const Progress UI_PROGRESS = {ui_progress, NULL};

Status ui_print_json(json_t *v, size_t flags, Err *err) {
    if (!v)
        return err_memory(err, "the JSON result", 0);
    json_dumpf(v, stdout, flags | JSON_ENCODE_ANY); // ui_finish tells a failed write
    printf("\n");
    json_decref(v);
    return STATUS_OK;
}

int ui_finish(const char *verb) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fprintf(stderr, "lily %s: cannot write standard output: %s\n", verb, strerror(errno));
    return 1;
}
