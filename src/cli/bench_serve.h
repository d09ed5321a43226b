// SPDX-License-Identifier: Apache-2.0
/* bench_serve.h - `bench --serve URL`: a server measured over HTTP.
 *
 * Path:     bench.c hands over when one of its options is given.
 * Owns:     nothing past the run.  Thread: main. */
#ifndef LILY_CLI_BENCH_SERVE_H
#define LILY_CLI_BENCH_SERVE_H

#include "cli/options.h"

/* Whether args ask for a server to be measured: one of --serve, --concurrency, --api-key. */
bool bench_serve_is_asked(const CliArgs *args);
/* Runs and prints it; the exit status. */
int bench_serve(const CliArgs *args);

#endif
