// SPDX-License-Identifier: Apache-2.0
/* main.c - from the command line to a verb.
 *
 * Path:     main -> cli_parse (options.c) -> the verb's own file.
 * Owns:     the table of verbs.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "backend/backend.h"
#include "base/numa.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

const CliVerb CLI_VERBS[] = {
    {"generate", "-p TEXT [options]", "one answer to standard output, streamed",
     "Reasoning and statistics go to standard error. `-p -` reads the message from standard input.",
     0, 0, verb_generate},
    {"chat", "[options]", "conversation on the terminal",
     "Lines are messages; /help lists the commands. From a pipe each line is a message, and only "
     "the\n"
     "answers are printed.",
     0, 0, verb_chat},
    {"serve", "[options]", "the model over HTTP, for every client that speaks to OpenAI",
     "Serves /v1/chat/completions, /v1/completions, /v1/models and a page at / until SIGTERM.\n"
     "docs/api.md describes the API, docs/clients.md how clients are set up.",
     0, 0, verb_serve},
    {"bench", "[options]", "prefill and decode speed over contexts, beside the bound", NULL, 0, 0,
     verb_bench},
    {"eval", "golden FILE | ppl FILE [options]", "teacher-forced check of a model",
     "golden: agreement with recorded top log-probabilities and chosen ids.\n"
     "ppl:    perplexity over a text file, or over ids when the file is a JSON list.",
     2, 2, verb_eval},
    {"logits", "--ids 1,2,3 -o OUT.safetensors [options]", "logits of a prompt as F32 [n, vocab]",
     NULL, 0, 0, verb_logits},
    {"tokenize", "[TEXT] [options]", "ids of a text (standard input without one)", NULL, 0, 1,
     verb_tokenize},
    {"detokenize", "[IDS] [options]", "text of ids such as 1,2,3 (standard input without them)",
     NULL, 0, 1, verb_detokenize},
    {"template", "[FILE] [options]", "a messages JSON rendered to the prompt's text", NULL, 0, 1,
     verb_template},
    {"parse", "[options]", "raw model text on standard input to the message it stands for", NULL, 0,
     0, verb_parse},
    {"inspect", "[options]", "checks a checkpoint and prints its shape, sizes and memory plan",
     NULL, 0, 0, verb_inspect},
    {"synth", "--shape NAME -o DIR [options]", "a random checkpoint in the published format", NULL,
     0, 0, verb_synth},
    {"pull", "NAME -o DIR [options]", "downloads a published checkpoint, whole and checked",
     "NAME is qwen3.6-35b-a3b, or OWNER/NAME[@REVISION] of the hub. What is there already is kept, "
     "what was\n"
     "broken off is gone on with. HF_TOKEN is sent as a token; http_proxy, https_proxy and "
     "SSL_CERT_FILE are\nhonoured.",
     1, 1, verb_pull},
    {"doctor", "[options]", "what this machine has and what would stop a run",
     "Kernel columns with the reason where one is missing, reads and products as measured now, the "
     "bounds that\nthey set to Qwen3.6-35B-A3B, the speeds to expect, whether it fits into memory, "
     "and what holds it back.\nExit status 1 when the backend that auto takes does not run.",
     0, 0, verb_doctor},
    {"docs", "man | bash | zsh | fish", NULL,
     "Manual page and completions, made from the option table.", 1, 1, verb_docs},
};
const int CLI_N_VERBS = (int)COUNT_OF(CLI_VERBS);

static int main_version(void) {
    printf("lily %s (commit %s)\nbackends:", LILY_VERSION, LILY_COMMIT);
    for (int k = 0; k < BACKEND_N; k++) {
        char why[128];
        if (k != BACKEND_AUTO && backend_is_built((BackendKind)k))
            printf(" %s%s", backend_kind_name((BackendKind)k),
                   backend_is_available((BackendKind)k, why, sizeof why) ? "" : " (not here)");
    }
    printf("\n");
    return ui_finish("--version");
}

/* A closed standard stream would let the next file that is opened take its number: model bytes read
 * as messages, messages written into a socket. */
static void main_open_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_WRONLY : O_RDONLY) != fd)
            abort(); // the lowest free number is the one that was closed
}

int main(int argc, char **argv) {
    main_open_streams();
    signal(SIGXFSZ, SIG_IGN); // a file-size limit is a write error with a text
    signal(SIGPIPE, SIG_IGN); // a closed pipe is a write error like any other
    if (argc < 2) {
        cli_print_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (!strcmp(name, "help") && argc == 2)) {
        cli_print_help(stdout);
        return ui_finish("--help");
    }
    if (!strcmp(name, "--version"))
        return main_version();
    bool is_help = !strcmp(name, "help");
    const CliVerb *verb = cli_verb_find(is_help ? argv[2] : name);
    if (!verb) {
        const char *near = cli_nearest_verb(is_help ? argv[2] : name);
        fprintf(stderr, "lily: unknown verb %s%s%s%s\n", is_help ? argv[2] : name,
                *near ? "; did you mean " : "; `lily --help` lists them", near, *near ? "?" : "");
        return 2;
    }
    CliArgs args;
    if (!is_help && !cli_parse(&args, verb, argc - 2, argv + 2))
        return 2;
    if (is_help || args.is_help) {
        cli_print_verb_help(stdout, verb);
        return ui_finish(verb->name);
    }
    Err err = {0};
    bool is_pinned;
    NumaCpus none = {{0}};
    if (numa_wants_pins(&is_pinned, getenv("LILY_PIN"), 1, &none, NUMA_ROOT, &err) != STATUS_OK)
        return ui_usage(verb->name, "%s", err.text);
    return verb->run(&args);
}
