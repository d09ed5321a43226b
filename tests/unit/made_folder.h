// SPDX-License-Identifier: Apache-2.0
/* made_folder.h - test helper: a temporary folder with small files in it, such as the system's own.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_MADE_FOLDER_H
#define LILY_TESTS_MADE_FOLDER_H

#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static void put(const char *dir, const char *name, const char *text) {
    char path[256], command[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(command, sizeof command, "mkdir -p $(dirname %s)", path);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void drop(const char *dir) {
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

#endif
