// SPDX-License-Identifier: Apache-2.0
/* options.c - the option table, the parser over it, and the help made from it.
 *
 * Path:     main.c.
 * Owns:     nothing.  Thread: main.
 * Not here: what a verb does (one file each). */
#define _POSIX_C_SOURCE 200809L // strnlen
#include "cli/options.h"

#include "backend/backend.h"
#include "base/checked.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef enum OptionType {
    OPTION_FLAG,
    OPTION_INT,
    OPTION_REAL,
    OPTION_TEXT,
    OPTION_STOPS
} OptionType;

typedef struct Option {
    const char *name; // without dashes
    char letter;      // 0: none
    OptionType type;
    size_t offset;     // in CliArgs
    double low, high;  // of numbers
    const char *value; // its name in the help; NULL for flags
    const char *verbs; // names with a space before and behind each; "*": all with a model
    const char *help;
} Option;

#define AT(field) offsetof(CliArgs, field)
#define WITH_MODEL " generate chat serve bench eval logits tokenize detokenize template inspect "
#define WITH_ENGINE " generate chat serve bench eval logits inspect "
#define SAMPLES " generate chat "

static const Option OPTIONS[] = {
    {"model", 'm', OPTION_TEXT, AT(model), 0, 0, "DIR", WITH_MODEL,
     "checkpoint folder, or synth:SHAPE[,layers=N][,seed=S]"},
    {"backend", 0, OPTION_TEXT, AT(backend), 0, 0, "NAME", WITH_ENGINE,
     "ref, ref64, cpu, cuda, metal or auto (default auto)"},
    {"device", 0, OPTION_INT, AT(device), 0, 1024, "N", WITH_ENGINE, "device number (default 0)"},
    {"threads", 0, OPTION_INT, AT(threads), 1, LIMIT_THREADS, "N", WITH_ENGINE " synth ",
     "CPU threads (default: all CPUs)"},
    {"ctx", 0, OPTION_INT, AT(ctx), 1, LIMIT_CONTEXT, "N", WITH_ENGINE,
     "tokens of the whole KV pool (default: what can be used and fits, at most 32768)"},
    {"chunk", 0, OPTION_INT, AT(chunk), 1, LIMIT_CONTEXT, "N", WITH_ENGINE,
     "prefill rows of one step, rounded up to 64 (default 1024, with AMX 2048, on a card 4096)"},
    {"cpu-mask", 0, OPTION_TEXT, AT(mask), 0, 0, "NAMES", WITH_ENGINE " doctor ",
     "kernel columns not to use, separated by commas: avx2, avx512, amx, neon; on a card sm90a"},
    {"max-diff", 0, OPTION_REAL, AT(max_diff), 0, 1e9, "X", " eval ",
     "golden: exit status 1 when the mean difference of log-probabilities is above X"},
    {"f32", 0, OPTION_FLAG, AT(is_f32), 0, 0, NULL, WITH_ENGINE,
     "test mode: activations are not rounded to bf16"},
    {"json", 0, OPTION_FLAG, AT(is_json), 0, 0, NULL,
     " generate eval logits tokenize detokenize template inspect synth doctor ",
     "machine-readable output on stdout"},

    {"prompt", 'p', OPTION_TEXT, AT(prompt), 0, 0, "TEXT", " generate ",
     "the user's message (\"-\": read standard input)"},
    {"system", 0, OPTION_TEXT, AT(system), 0, 0, "TEXT", SAMPLES, "system message"},
    {"raw", 0, OPTION_FLAG, AT(is_raw), 0, 0, NULL, " generate ",
     "TEXT is the prompt itself: no template"},
    {"ids", 0, OPTION_TEXT, AT(ids), 0, 0, "1,2,3", " generate logits ",
     "token ids of the prompt; @FILE reads them from a file"},
    {"no-think", 0, OPTION_FLAG, AT(is_no_think), 0, 0, NULL, SAMPLES,
     "answer without a thinking block"},
    {"max-tokens", 'n', OPTION_INT, AT(max_tokens), 1, LIMIT_CONTEXT, "N", SAMPLES,
     "new tokens at most (default: until the context is full)"},
    {"temp", 0, OPTION_REAL, AT(temp), 0, 100, "X", SAMPLES,
     "temperature; 0 takes the most likely token (default: the model's)"},
    {"top-k", 0, OPTION_INT, AT(top_k), 0, LIMIT_VOCAB, "K", SAMPLES,
     "keep the K most likely tokens; 0: all (default: the model's)"},
    {"top-p", 0, OPTION_REAL, AT(top_p), 0, 1, "P", SAMPLES,
     "keep the smallest set of probability P (default: the model's)"},
    {"min-p", 0, OPTION_REAL, AT(min_p), 0, 1, "P", SAMPLES,
     "drop tokens below P times the most likely (default 0)"},
    {"repetition-penalty", 0, OPTION_REAL, AT(repetition), 0.01, 100, "X", SAMPLES,
     "divides the logits of tokens seen before (default 1)"},
    {"presence-penalty", 0, OPTION_REAL, AT(presence), -100, 100, "X", SAMPLES,
     "subtracted from tokens generated before (default 0)"},
    {"frequency-penalty", 0, OPTION_REAL, AT(frequency), -100, 100, "X", SAMPLES,
     "subtracted for each time a token was generated (default 0)"},
    {"logit-bias", 0, OPTION_TEXT, AT(logit_bias), 0, 0, "ID:X,...", SAMPLES,
     "added to the logits of these ids"},
    {"seed", 0, OPTION_INT, AT(seed), 0, 9007199254740992.0, "S", SAMPLES " synth bench ",
     "random seed: same seed, same text (default: from the clock; synth, bench: 0)"},
    {"stop", 0, OPTION_STOPS, 0, 0, 0, "TEXT", SAMPLES,
     "end the answer before this text; may be given several times"},
    {"ignore-eos", 0, OPTION_FLAG, AT(is_past_end), 0, 0, NULL, SAMPLES,
     "go on past end-of-text tokens"},

    {"load", 0, OPTION_TEXT, AT(load), 0, 0, "FILE", " chat ",
     "go on with a conversation that /save wrote"},

    {"out", 'o', OPTION_TEXT, AT(out), 0, 0, "PATH", " logits synth ",
     "where the result goes: a file (logits) or a folder (synth)"},
    {"last", 0, OPTION_FLAG, AT(is_last), 0, 0, NULL, " logits ", "only the last position"},
    {"taps", 0, OPTION_FLAG, AT(is_taps), 0, 0, NULL, " logits ",
     "also the residual stream after each layer, as layer.N [n, hidden]"},

    {"plain", 0, OPTION_FLAG, AT(is_plain), 0, 0, NULL, " tokenize ",
     "special tokens' spellings are ordinary text"},
    {"skip-special", 0, OPTION_FLAG, AT(is_skip_special), 0, 0, NULL, " detokenize ",
     "leave special tokens out"},
    {"tools", 0, OPTION_TEXT, AT(tools), 0, 0, "FILE", " chat template parse ",
     "tools as a JSON list"},
    {"family", 0, OPTION_TEXT, AT(family), 0, 0, "NAME", " template ",
     "qwen3.6, qwen3.5 or qwen3.5-small, whatever the checkpoint has"},
    {"no-generation-prompt", 0, OPTION_FLAG, AT(is_no_prompt), 0, 0, NULL, " template ",
     "leave the opening of the answer out"},
    {"no-think", 0, OPTION_FLAG, AT(is_no_think), 0, 0, NULL, " template ",
     "thinking switched off (default: the template's own default)"},
    {"thinking", 0, OPTION_FLAG, AT(is_thinking), 0, 0, NULL, " template parse ",
     "template: thinking switched on; parse: the prompt opened a thinking block"},
    {"split", 0, OPTION_INT, AT(split), 1, 1 << 30, "N", " parse ", "feed N bytes at a time"},
    {"events", 0, OPTION_FLAG, AT(is_events), 0, 0, NULL, " parse ",
     "print the streamed events, one JSON object a line"},

    {"shape", 0, OPTION_TEXT, AT(shape), 0, 0, "NAME", " synth ", "which model shape"},
    {"out", 'o', OPTION_TEXT, AT(out), 0, 0, "DIR", " pull ",
     "folder for the files; made when missing"},
    {"hub", 0, OPTION_TEXT, AT(hub), 0, 0, "URL", " pull ",
     "where to get them (default $LILY_HUB, else https://huggingface.co)"},
    {"stall", 0, OPTION_INT, AT(stall), 1, 3600, "SECONDS", " pull ",
     "begin a transfer anew after so long without a byte (default 30)"},

    {"layers", 0, OPTION_INT, AT(layers), 1, LIMIT_LAYERS, "N", " synth ",
     "layers (default: the shape's own)"},
    {"force", 0, OPTION_FLAG, AT(is_force), 0, 0, NULL, " synth ",
     "write over a checkpoint that is there"},

    {"contexts", 0, OPTION_TEXT, AT(contexts), 0, 0, "256,4096", " bench ",
     "context lengths, separated by commas; all: 256 to 131072 as far as they fit (default 256)"},
    {"steps", 0, OPTION_INT, AT(steps), 1, 1 << 20, "N", " bench ",
     "decode steps of each measurement (default 64)"},
    {"rounds", 0, OPTION_INT, AT(rounds), 1, 1000, "N", " bench ",
     "repetitions (default 3); rows whose rounds disagree get up to 5 more"},
    {"batch", 0, OPTION_INT, AT(batch), 1, 64, "B", " bench ",
     "decode B different sequences together (default 1)"},
    {"fill-above", 0, OPTION_INT, AT(fill_above), 0, LIMIT_CONTEXT, "N", " bench ",
     "longer contexts are filled with copies, not read (default 8192)"},
    {"meter-mb", 0, OPTION_INT, AT(meter_mb), 16, 1 << 20, "MIB", " bench ",
     "memory a thread that the bandwidth meter reads (default 1024, less where memory is short); "
     "below 64 the meters are short, for a quick look"},
    {"profile", 0, OPTION_FLAG, AT(is_profile), 0, 0, NULL, " bench ",
     "also bytes, time and share of the bound of each stage"},
    {"json", 0, OPTION_TEXT, AT(json_out), 0, 0, "FILE", " bench ",
     "write the result as one JSON object (\"-\": standard output)"},
    {"compare", 0, OPTION_TEXT, AT(compare), 0, 0, "FILE", " bench ",
     "hold the result against an earlier one (--json); fails when anything is slower"},
    {"csv", 0, OPTION_TEXT, AT(csv_out), 0, 0, "FILE", " bench ", "write the rows as CSV"},
    {"svg", 0, OPTION_TEXT, AT(svg_out), 0, 0, "FILE", " bench ", "write a picture of the rows"},
    {"serve", 0, OPTION_TEXT, AT(serve_url), 0, 0, "URL", " bench ",
     "measure a running server: --contexts are prompt lengths, --steps the tokens of an answer, "
     "--rounds the answers of each stream"},
    {"concurrency", 0, OPTION_TEXT, AT(concurrency), 0, 0, "1,4,16", " bench ",
     "streams at once, with --serve (default 1,2,4,8)"},
    {"api-key", 0, OPTION_TEXT, AT(api_key), 0, 0, "KEY", " bench ",
     "sent to that server (default: $LILY_API_KEY)"},

    {"host", 0, OPTION_TEXT, AT(host), 0, 0, "NAME", " serve ",
     "address to listen on (default 127.0.0.1: this machine alone)"},
    {"port", 0, OPTION_INT, AT(port), 0, 65535, "N", " serve ",
     "port to listen on; 0: any free one (default 8080)"},
    {"unix", 0, OPTION_TEXT, AT(unix_path), 0, 0, "PATH", " serve ",
     "listen on a unix socket instead"},
    {"name", 0, OPTION_TEXT, AT(name), 0, 0, "TEXT", " serve ",
     "the model's name in the API (default: its folder's)"},
    {"api-keys", 0, OPTION_TEXT, AT(api_keys), 0, 0, "FILE", " serve ",
     "API keys, one a line; needed to serve other machines"},
    {"no-keys", 0, OPTION_FLAG, AT(is_no_keys), 0, 0, NULL, " serve ",
     "serve other machines without keys"},
    {"cors", 0, OPTION_TEXT, AT(cors), 0, 0, "ORIGINS", " serve ",
     "web pages that may ask, separated by commas; *: all (default: none)"},
    {"tls-cert", 0, OPTION_TEXT, AT(tls_cert), 0, 0, "FILE", " serve ",
     "serve HTTPS with this PEM certificate"},
    {"tls-key", 0, OPTION_TEXT, AT(tls_key), 0, 0, "FILE", " serve ", "its PEM key"},
    {"max-seqs", 0, OPTION_INT, AT(max_seqs), 1, 1024, "N", " serve ",
     "answers made at once (default 8)"},
    {"max-queue", 0, OPTION_INT, AT(max_queue), 0, 1 << 20, "N", " serve ",
     "answers that may wait beside them (default 64)"},
    {"max-connections", 0, OPTION_INT, AT(max_connections), 1, 1 << 20, "N", " serve ",
     "connections at once (default: 4096, or what the descriptors allow)"},
    {"mixed", 0, OPTION_INT, AT(mixed), 1, LIMIT_CONTEXT, "N", " serve ",
     "prompt tokens read at once beside answers (default 256, on a card 512)"},
    {"mixed-ms", 0, OPTION_INT, AT(mixed_ms), 1, 60000, "MS", " serve ",
     "how long answers wait for that in one step (default: on a CPU up to twice what their own "
     "step takes, else as --mixed says)"},
    {"cache-slots", 0, OPTION_INT, AT(cache_slots), 1, 65536, "N", " serve ",
     "snapshots in the prefix cache (default: by memory, 4 to 64)"},
    {"cache-exact", 0, OPTION_FLAG, AT(is_cache_exact), 0, 0, NULL, " serve ",
     "reuse only states that reading a prompt made"},
    {"cache-shared", 0, OPTION_FLAG, AT(is_cache_shared), 0, 0, NULL, " serve ",
     "one prefix cache for all API keys"},
    {"no-cache", 0, OPTION_FLAG, AT(is_no_cache), 0, 0, NULL, " serve ", "no prefix cache"},
    {"thinking-budget", 0, OPTION_INT, AT(thinking_budget), 0, LIMIT_CONTEXT, "N", " serve ",
     "tokens of reasoning at most (default: half the context)"},
    {"request-timeout", 0, OPTION_INT, AT(request_timeout), 1, 1 << 20, "SECONDS", " serve ",
     "an answer that takes longer is ended with an error (default 3600)"},
    {"idle-timeout", 0, OPTION_INT, AT(idle_timeout), 1, 1 << 20, "SECONDS", " serve ",
     "close connections that send no request, or read nothing, for so long (default 60)"},
    {"stop-timeout", 0, OPTION_INT, AT(stop_timeout), 1, 1 << 20, "SECONDS", " serve ",
     "how long answers may go on when told to stop (default 30)"},
    {"log-prompts", 0, OPTION_FLAG, AT(is_log_prompts), 0, 0, NULL, " serve ",
     "write requests' bodies to the log"},
};

static bool option_is_for(const Option *o, const CliVerb *verb) {
    char word[64];
    snprintf(word, sizeof word, " %s ", verb->name);
    return strstr(o->verbs, word) != NULL;
}

/* Edit distance of two short names (insert, delete, replace), capped by their lengths; 1 when one
 * begins with the other. */
static int name_distance(const char *a, const char *b) {
    enum { MAX = 31 };
    int na = (int)strnlen(a, MAX), nb = (int)strnlen(b, MAX);
    int row[MAX + 1], n_short = min_i32(na, nb);
    if (n_short >= 3 && na != nb && memcmp(a, b, (size_t)n_short) == 0)
        return 1;
    for (int j = 0; j <= nb; j++)
        row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int above = row[j];
            int best = min_i32(above, row[j - 1]) + 1;
            row[j] = min_i32(best, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const CliVerb *cli_verb_find(const char *name) {
    for (int i = 0; i < CLI_N_VERBS; i++)
        if (strcmp(CLI_VERBS[i].name, name) == 0)
            return &CLI_VERBS[i];
    return NULL;
}

/* The distance from which on a name is not meant: half of a short one would be a guess. */
static int name_too_far(const char *name) { return min_i32(4, ((int)strnlen(name, 8) + 3) / 2); }

const char *cli_nearest_verb(const char *name) {
    const char *best = "";
    int least = name_too_far(name);
    for (int i = 0; i < CLI_N_VERBS; i++) {
        int d = name_distance(name, CLI_VERBS[i].name);
        if (d < least && CLI_VERBS[i].summary) {
            least = d;
            best = CLI_VERBS[i].name;
        }
    }
    return best;
}

static const Option *option_find(const CliVerb *verb, const char *name, size_t len) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        const Option *o = &OPTIONS[i];
        if (option_is_for(o, verb) && strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

static const Option *option_find_letter(const CliVerb *verb, char letter) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++)
        if (OPTIONS[i].letter == letter && option_is_for(&OPTIONS[i], verb))
            return &OPTIONS[i];
    return NULL;
}

static void option_refuse(const CliVerb *verb, const char *word) {
    const char *name = word + strspn(word, "-");
    const Option *best = NULL;
    int least = name_too_far(name);
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        if (!option_is_for(&OPTIONS[i], verb))
            continue;
        int d = name_distance(name, OPTIONS[i].name);
        if (d < least) {
            least = d;
            best = &OPTIONS[i];
        }
    }
    if (best)
        fprintf(stderr, "lily %s: unknown option %s; did you mean --%s?\n", verb->name, word,
                best->name);
    else
        fprintf(stderr, "lily %s: unknown option %s; `lily %s --help` lists them\n", verb->name,
                word, verb->name);
}

/* Ids as model_parse_ids reads them. */
static bool option_is_ids(const char *text) {
    bool is_any = false;
    for (;;) {
        text += strspn(text, ", ");
        if (!*text)
            return is_any;
        size_t len = strspn(text, "0123456789");
        errno = 0;
        if (len == 0 || strtoll(text, NULL, 10) > INT32_MAX || errno)
            return false;
        text += len;
        is_any = true;
    }
}

/* Names that some backend knows; whether it is the one that runs is for that to say. */
static bool option_is_mask(const char *text) {
    static const char *const names[] = {"avx2", "avx512", "amx", "neon", "graph", "chain", "sm90a"};
    while (*text) {
        size_t len = strcspn(text, ","), i = 0;
        while (i < COUNT_OF(names) && (strlen(names[i]) != len || memcmp(names[i], text, len) != 0))
            i++;
        if (i == COUNT_OF(names))
            return false;
        text += len + (text[len] == ',');
    }
    return true;
}

/* Whether a text can be the option's value at all; what a file holds is for the verb to say. */
static bool option_is_text_good(const Option *o, const char *value) {
    if (o->offset == AT(prompt) || o->offset == AT(system))
        return true;
    if (o->offset == AT(backend))
        return backend_kind_find(value) != BACKEND_N;
    if (o->offset == AT(ids) && value[0] != '@')
        return option_is_ids(value);
    if (o->offset == AT(mask))
        return *value && option_is_mask(value);
    if (o->offset == AT(logit_bias))
        return strchr(value, ':') && value[strspn(value, "0123456789:,.+-eEinfINF")] == 0;
    return value[0] != 0;
}

/* Stores one option's value; false after a message. */
static bool option_store(CliArgs *out, const CliVerb *verb, const Option *o, const char *value) {
    char *field = (char *)out + o->offset;
    char *end = NULL;
    errno = 0;
    if ((o->type == OPTION_TEXT || o->type == OPTION_STOPS) && !option_is_text_good(o, value)) {
        bool is_list = o->offset == AT(backend) || o->offset == AT(mask); // the help names them
        fprintf(stderr, "lily %s: --%s: expected %s, found %s\n", verb->name, o->name,
                is_list ? o->help : o->value, *value ? value : "an empty text");
        return false;
    }
    if (o->type == OPTION_TEXT) {
        *(const char **)(void *)field = value;
    } else if (o->type == OPTION_STOPS) {
        if (out->n_stops == LIMIT_STOP_STRINGS) {
            fprintf(stderr, "lily %s: --stop: at most %d times\n", verb->name, LIMIT_STOP_STRINGS);
            return false;
        }
        out->stops[out->n_stops++] = value;
    } else if (o->type == OPTION_INT) {
        long long v = strtoll(value, &end, 10);
        if (end == value || *end || errno || (double)v < o->low || (double)v > o->high) {
            fprintf(stderr, "lily %s: --%s: expected a whole number from %.0f to %.0f, found %s\n",
                    verb->name, o->name, o->low, o->high, value);
            return false;
        }
        *(int64_t *)(void *)field = v;
    } else {
        double v = strtod(value, &end);
        if (end == value || *end || !(v >= o->low && v <= o->high)) {
            fprintf(stderr, "lily %s: --%s: expected a number from %g to %g, found %s\n",
                    verb->name, o->name, o->low, o->high, value);
            return false;
        }
        *(double *)(void *)field = v;
    }
    return true;
}

/* One word that begins with a dash; *i moves over its value. */
static bool cli_parse_option(CliArgs *out, const CliVerb *verb, int argc, char **argv, int *i) {
    const char *word = argv[*i];
    const Option *o = NULL;
    const char *value = NULL;
    if (word[1] == '-') {
        size_t len = strcspn(word + 2, "=");
        o = option_find(verb, word + 2, len);
        if (o && word[2 + len] == '=')
            value = word + 3 + len;
    } else if (word[2] == 0) {
        o = option_find_letter(verb, word[1]);
    }
    if (!o) {
        option_refuse(verb, word);
        return false;
    }
    if (o->type == OPTION_FLAG) {
        if (value) {
            fprintf(stderr, "lily %s: --%s takes no value\n", verb->name, o->name);
            return false;
        }
        *(bool *)(void *)((char *)out + o->offset) = true;
        return true;
    }
    if (!value && *i + 1 < argc)
        value = argv[++*i];
    if (!value) {
        fprintf(stderr, "lily %s: --%s: expected %s\n", verb->name, o->name, o->value);
        return false;
    }
    return option_store(out, verb, o, value);
}

bool cli_parse(CliArgs *out, const CliVerb *verb, int argc, char **argv) {
    *out = (CliArgs){.port = 8080,
                     .max_queue = -1,
                     .thinking_budget = -1,
                     .seed = -1,
                     .fill_above = -1,
                     .top_k = -1,
                     .temp = NAN,
                     .top_p = NAN,
                     .min_p = NAN,
                     .repetition = NAN,
                     .presence = NAN,
                     .frequency = NAN,
                     .max_diff = NAN};
    bool is_only_positional = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!is_only_positional && strcmp(word, "--") == 0) {
            is_only_positional = true;
        } else if (!is_only_positional && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            out->is_help = true;
            return true;
        } else if (!is_only_positional && word[0] == '-' && word[1]) {
            if (!cli_parse_option(out, verb, argc, argv, &i))
                return false;
        } else if (out->n_positional < verb->max_positional) {
            out->positional[out->n_positional++] = word;
        } else {
            fprintf(stderr, "lily %s: one word too many: %s\n", verb->name, word);
            return false;
        }
    }
    if (out->n_positional < verb->min_positional) {
        fprintf(stderr, "usage: lily %s %s\n", verb->name, verb->usage);
        return false;
    }
    return true;
}

Status cli_parse_list(int32_t *out, int *n, int max, const char *option, const char *text,
                      int32_t high, Err *err) {
    for (const char *p = text; *p || *n == 0;) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 1 || v > high || (*end && (*end != ',' || !end[1])))
            return err_set(err, STATUS_INVALID,
                           "%s: expected numbers from 1 to %d separated by commas, found %s",
                           option, high, text);
        if (*n == max)
            return err_set(err, STATUS_INVALID, "%s: at most %d", option, max);
        out[(*n)++] = (int32_t)v;
        p = *end ? end + 1 : end;
    }
    return STATUS_OK;
}

size_t cli_n_options(void) { return COUNT_OF(OPTIONS); }

bool cli_option_get(CliOption *out, const CliVerb *verb, size_t i) {
    const Option *o = &OPTIONS[i];
    *out = (CliOption){o->name, o->letter, o->value, o->help};
    return option_is_for(o, verb);
}

void cli_print_help(FILE *to) {
    fprintf(to, "lily runs Qwen3.5/3.6 mixture-of-experts models on this machine.\n\n"
                "usage: lily VERB [options]\n\n");
    for (int i = 0; i < CLI_N_VERBS; i++)
        if (CLI_VERBS[i].summary)
            fprintf(to, "  %-11s %s\n", CLI_VERBS[i].name, CLI_VERBS[i].summary);
    fprintf(to, "\n`lily VERB --help` lists a verb's options; `lily --version` says what this "
                "program is.\nResults go to standard output, everything else to standard error.\n"
                "Exit status: 0 good, 1 the run failed, 2 wrong usage.\n");
}

void cli_print_verb_help(FILE *to, const CliVerb *verb) {
    fprintf(to, "usage: lily %s %s\n", verb->name, verb->usage);
    if (verb->summary)
        fprintf(to, "\n%s.\n", verb->summary);
    if (verb->detail)
        fprintf(to, "\n%s\n", verb->detail);
    fprintf(to, "\noptions:\n");
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        const Option *o = &OPTIONS[i];
        if (!option_is_for(o, verb))
            continue;
        char left[64];
        int n = o->letter ? snprintf(left, sizeof left, "-%c, ", o->letter)
                          : snprintf(left, sizeof left, "    ");
        snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s", o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        fprintf(to, "  %-30s %s\n", left, o->help);
    }
    fprintf(to, "  %-30s %s\n", "-h, --help", "this text");
}
