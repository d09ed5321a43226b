// SPDX-License-Identifier: Apache-2.0
/* options.h - the command line: one table of options and one of verbs; parsing, help and the
 * nearest right name all come from them.
 *
 * Path:     main.c parses with it and calls the verb.
 * Owns:     nothing; CliArgs points into argv.  Thread: main. */
#ifndef LILY_CLI_OPTIONS_H
#define LILY_CLI_OPTIONS_H

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { CLI_MAX_POSITIONAL = 4 };

/* Every option's value. Numbers not given are NAN or -1 where 0 would mean something. */
typedef struct CliArgs {
    // model and device
    const char *model, *backend, *mask;
    int64_t device, threads, ctx, chunk;
    bool is_json, is_f32;
    // generation
    const char *prompt, *system, *ids, *logit_bias;
    const char *stops[LIMIT_STOP_STRINGS];
    int64_t n_stops;
    bool is_raw, is_no_think, is_past_end;
    int64_t max_tokens, seed, top_k;
    double temp, top_p, min_p, repetition, presence, frequency, max_diff;
    // chat
    const char *load;
    // logits
    const char *out;
    bool is_last, is_taps;
    // text
    bool is_plain, is_skip_special;
    const char *tools, *family;
    bool is_thinking, is_events, is_no_prompt;
    int64_t split;
    // synth
    const char *shape, *hub;
    int64_t layers, stall;
    bool is_force;
    // bench
    bool is_profile;
    const char *contexts, *json_out, *csv_out, *svg_out, *compare, *serve_url, *concurrency,
        *api_key;
    int64_t steps, rounds, batch, fill_above, meter_mb;
    // serve
    const char *host, *unix_path, *api_keys, *cors, *tls_cert, *tls_key, *name;
    int64_t port, max_queue, max_seqs, max_connections, cache_slots, thinking_budget;
    int64_t idle_timeout, request_timeout, stop_timeout, mixed, mixed_ms;
    bool is_cache_exact, is_cache_shared, is_no_cache, is_no_keys, is_log_prompts;
    // positional
    const char *positional[CLI_MAX_POSITIONAL];
    int n_positional;
    bool is_help;
} CliArgs;

typedef struct CliVerb {
    const char *name;
    const char *usage;   // what stands behind the name on the command line
    const char *summary; // one line; NULL: not in the help, for the build alone
    const char *detail;  // more lines for the verb's own help; may be NULL
    int min_positional, max_positional;
    int (*run)(const CliArgs *args); // exit status
} CliVerb;

/* An option as manual page and completions describe it. */
typedef struct CliOption {
    const char *name;  // without dashes
    char letter;       // 0: none
    const char *value; // its name; NULL: a flag
    const char *help;
} CliOption;

/* [n] in the order of the help. */
extern const CliVerb CLI_VERBS[];
extern const int CLI_N_VERBS;

/* Finds a verb by name; NULL: none. */
const CliVerb *cli_verb_find(const char *name);
/* The verb or option (with its dashes) whose name is nearest to `name`; "" when none is near. */
const char *cli_nearest_verb(const char *name);

/* Parses argv[0..argc) behind the verb. On failure prints one line to stderr and returns false. */
bool cli_parse(CliArgs *out, const CliVerb *verb, int argc, char **argv);
/* Whole numbers from 1 to high separated by commas, at most max of them, behind the *n that are
 * there. Returns STATUS_INVALID with the option's name. */
NODISCARD Status cli_parse_list(int32_t *out, int *n, int max, const char *option, const char *text,
                                int32_t high, Err *err);
/* Rows of the option table, and one of them; false: it is not for this verb. */
size_t cli_n_options(void);
bool cli_option_get(CliOption *out, const CliVerb *verb, size_t i);

/* Help of the program, of one verb. */
void cli_print_help(FILE *to);
void cli_print_verb_help(FILE *to, const CliVerb *verb);

#endif
