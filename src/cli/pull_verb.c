// SPDX-License-Identifier: Apache-2.0
/* pull_verb.c - the verb `pull`: downloads a published checkpoint.
 *
 * Path:     pull_list for the names and hashes, pull_get for the bytes. Never run unasked.
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"
#include "cli/pull.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PULL_PARALLEL = 4, PULL_STALL_S = 30, PULL_TRIES = 8, PULL_PAUSE_MS = 500 };

static volatile sig_atomic_t pull_is_stopped; // set by the signal handler alone

static void pull_on_signal(int number) {
    UNUSED(number);
    pull_is_stopped = 1;
}

static bool pull_stopped(void) { return pull_is_stopped != 0; }

/* What the last report showed. */
typedef struct PullLine {
    int64_t drawn_ns; // 0: nothing
} PullLine;

static void pull_report(void *ctx, const PullNews *n) {
    PullLine *line = ctx;
    bool is_over = n->done >= n->total;
    if (!isatty(STDERR_FILENO) ||
        (!is_over && line->drawn_ns && clock_seconds_since(line->drawn_ns) < 0.1))
        return;
    line->drawn_ns = clock_now_ns();
    fprintf(stderr, "\r\x1b[K%5.1f%% of %.2f GB, file %d of %d",
            n->total ? 100.0 * (double)n->done / (double)n->total : 100.0, (double)n->total * 1e-9,
            n->n_done < n->n_files ? n->n_done + 1 : n->n_files, n->n_files);
    double rate = n->seconds > 0 ? (double)n->fetched / n->seconds : 0;
    if (n->wait_s >= 1)
        fprintf(stderr, ", the server is asked again in %.0f s", n->wait_s);
    else if (rate > 0)
        fprintf(stderr, ", %.1f MB/s, %lld:%02d left", rate * 1e-6,
                (long long)((double)(n->total - n->done) / rate / 60),
                (int)((uint64_t)((double)(n->total - n->done) / rate) % 60));
    else
        fputs(n->done ? ", what is here is checked" : "", stderr);
    fflush(stderr);
}

/* The hub's base URL without a slash at its end. */
static Status pull_hub(char *out, size_t size, const char *given, Err *err) {
    const char *hub = given ? given : getenv("LILY_HUB");
    hub = hub && *hub ? hub : "https://huggingface.co";
    size_t len = strlen(hub);
    while (len > 0 && hub[len - 1] == '/')
        len--;
    if ((strncmp(hub, "http://", 7) != 0 && strncmp(hub, "https://", 8) != 0) || len >= size)
        return err_set(err, STATUS_INVALID, "--hub: expected http://HOST or https://HOST, found %s",
                       hub);
    memcpy(out, hub, len);
    out[len] = 0;
    return STATUS_OK;
}

/* A line feed in it would begin a header of its own. */
static Status pull_token(const char **out, Err *err) {
    const char *token = getenv("HF_TOKEN");
    *out = token && *token ? token : NULL;
    for (const char *c = token; c && *c; c++)
        if (*c <= ' ' || *c > '~')
            return err_set(err, STATUS_INVALID,
                           "HF_TOKEN: expected visible ASCII characters alone");
    return STATUS_OK;
}

/* list: its name is known. */
static Status pull_run(PullList *list, const CliArgs *args, const PullSource *source, Err *err) {
    PullLine line = {0};
    PullProgress progress = {pull_report, &line};
    Status status = pull_list(list, source, err);
    if (status == STATUS_OK)
        status = pull_get(list, source, args->out, PULL_PARALLEL, &progress, err);
    if (line.drawn_ns)
        fputs("\r\x1b[K", stderr);
    if (status == STATUS_OK)
        fprintf(stderr, "%d files are whole in %s\n", list->n, args->out);
    return status;
}

int verb_pull(const CliArgs *args) {
    if (!args->out)
        return ui_usage("pull", "expected -o and a folder");
    Err err = {0};
    char hub[1024];
    PullSource source = {.hub = hub,
                         .stall_s = args->stall ? args->stall : PULL_STALL_S,
                         .n_tries = PULL_TRIES,
                         .pause_ms = PULL_PAUSE_MS,
                         .is_stopped = pull_stopped};
    PullList list = {0};
    const char *ca_file = getenv("SSL_CERT_FILE");
    source.ca_file = ca_file && *ca_file ? ca_file : NULL;
    if (pull_hub(hub, sizeof hub, args->hub, &err) != STATUS_OK ||
        pull_token(&source.token, &err) != STATUS_OK ||
        pull_name(&list, args->positional[0], &err) != STATUS_OK) {
        pull_list_fini(&list);
        return err.code == STATUS_MEMORY ? ui_fail("pull", &err) : ui_usage("pull", "%s", err.text);
    }
    struct sigaction action = {.sa_handler = pull_on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    Status status = pull_start(&err);
    if (status == STATUS_OK) {
        status = pull_run(&list, args, &source, &err);
        pull_stop();
    }
    pull_list_fini(&list);
    return status == STATUS_OK ? ui_finish("pull") : ui_fail("pull", &err);
}
