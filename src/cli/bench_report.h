// SPDX-License-Identifier: Apache-2.0
/* bench_report.h - the result of a bench, one JSON object, as text for people and programs.
 *
 * Path:     bench.c makes the object (docs/performance.md lists its keys).
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_BENCH_REPORT_H
#define LILY_CLI_BENCH_REPORT_H

#include "base/json.h"

/* Appends the table of rows, with what was left out and the stages below it. A key that is missing
 * shows as "-". Returns STATUS_MEMORY. */
NODISCARD Status bench_report_table(StrBuf *out, const json_t *all, Err *err);

/* Appends one line of names and one a row; what a row does not have is empty. */
NODISCARD Status bench_report_csv(StrBuf *out, const json_t *all, Err *err);

/* Whether two results can be compared: the same model, layers, backend and number of threads, and a
 * row of both with the same context, batch and filling. Other keys are not looked at.
 *
 * Returns STATUS_INVALID, naming what differs. */
NODISCARD Status bench_compare_check(const json_t *now, const json_t *before, Err *err);

/* Holds a result against an earlier one that bench_compare_check lets pass. A figure is the share
 * of the bound of one phase of a row that both have (context, batch, filled); it is slower when its
 * best round is below the earlier one's worst, faster the other way round. Rows that are marked
 * unstable, now or before, are not judged. Appends a line for each figure, and one that says how
 * many were not judged.
 *
 * n_slower  figures that are                                         (out)
 * Returns STATUS_INVALID, naming what differs, when the two cannot be compared. */
NODISCARD Status bench_compare(StrBuf *out, int *n_slower, const json_t *now, const json_t *before,
                               Err *err);

/* Appends an SVG picture: speed and share of the bound over the context, a line for prefill and one
 * for decode. The same object gives the same bytes. */
NODISCARD Status bench_svg(StrBuf *out, const json_t *all, Err *err);

#endif
