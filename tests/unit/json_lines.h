// SPDX-License-Identifier: Apache-2.0
/* json_lines.h - the loop of a helper program: one JSON value a line in, its answer a line out.
 *
 * Owns:     nothing past the call.  Thread: one. */
#ifndef LILY_TESTS_JSON_LINES_H
#define LILY_TESTS_JSON_LINES_H

#include "base/json.h"

/* Reads standard input to its end; the value that `answer` returns is printed and dropped. Returns
 * the exit status. */
static inline int json_lines_run(json_t *(*answer)(const json_t *in)) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, stdin)) > 0) {
        Err err = {0};
        json_t *in = NULL;
        if (json_read(&in, str_view(line, (size_t)len), "line", &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        json_t *out = answer(in);
        char *text = json_dumps(out, JSON_COMPACT);
        puts(text);
        free(text);
        json_decref(out);
        json_decref(in);
    }
    free(line);
    return 0;
}

#endif
