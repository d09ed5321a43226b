// SPDX-License-Identifier: Apache-2.0
/* doctor_report.h - what `doctor` says about the figures that it has collected: speeds to expect,
 * and one sentence for each thing that holds this machine back.
 *
 * Path:     doctor.c fills one JSON object, doctor_advise adds to it, doctor_print shows it.
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_DOCTOR_REPORT_H
#define LILY_CLI_DOCTOR_REPORT_H

#include "base/json.h"

/* Adds to all.full_model the shares of both bounds that the kernels reach that run here, as
 * docs/performance.md has them, and what they come to (decode_share, decode_expected_tok_s,
 * prefill_share, prefill_expected_tok_s; null where none was measured), and to all "advice": a list
 * of sentences, each behind a word and a colon.
 *
 * all  of doctor.c: threads, cpus, load, nodes, memory_bytes, read_gb_s, read_one_gb_s,
 *      matrix_tflops, columns, card, full_model */
void doctor_advise(json_t *all);

/* The whole for a person, on standard output. */
void doctor_print(const json_t *all);

#endif
