// SPDX-License-Identifier: Apache-2.0
/* doctor_report.h - what `doctor` says about the figures that it has collected: speeds to expect,
 * and one sentence for each thing that holds this machine back.
 *
 * Path:     doctor.c fills one JSON object, doctor_advise adds to it, doctor_print shows it.
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_DOCTOR_REPORT_H
#define LILY_CLI_DOCTOR_REPORT_H

#include "base/json.h"

/* Adds to all.full_model the speeds to expect, null where nothing is known of the kernels or they
 * do not run, and to all "advice": a list of sentences, each behind a word and a colon.
 *
 * decode_share, prefill_share   of both bounds, that the kernels which run here reach, as
 *      docs/performance.md has them; null for plain C
 * decode_expected_tok_s, _min, _max, prefill_expected_tok_s   the shares of the bounds, for plain C
 *      what its products as timed here come to; least and most by the reads of the processor
 *
 * all  of doctor.c: threads, cpus, load, nodes, memory_bytes, read_gb_s, read_gb_s_min,
 *      read_gb_s_max, read_one_gb_s, matrix_tflops, plain_c, columns, backends, card, full_model */
void doctor_advise(json_t *all);

/* Why no model would run on the backend that auto takes; NULL when it does. It stays valid as long
 * as the report does. */
const char *doctor_stop(const json_t *all);

/* The whole for a person, on standard output. */
void doctor_print(const json_t *all);

#endif
