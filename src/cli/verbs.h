// SPDX-License-Identifier: Apache-2.0
/* verbs.h - the verbs, one file each; each returns the exit status.
 *
 * Path:     main.c's table.
 * Owns:     nothing.  Thread: main. */
#ifndef LILY_CLI_VERBS_H
#define LILY_CLI_VERBS_H

#include "cli/options.h"

int verb_generate(const CliArgs *args);
int verb_chat(const CliArgs *args);
int verb_serve(const CliArgs *args);
int verb_bench(const CliArgs *args);
int verb_eval(const CliArgs *args);
int verb_logits(const CliArgs *args);
int verb_tokenize(const CliArgs *args);
int verb_detokenize(const CliArgs *args);
int verb_template(const CliArgs *args);
int verb_parse(const CliArgs *args);
int verb_inspect(const CliArgs *args);
int verb_synth(const CliArgs *args);
int verb_pull(const CliArgs *args);
int verb_doctor(const CliArgs *args);
int verb_docs(const CliArgs *args);

#endif
