// SPDX-License-Identifier: Apache-2.0
/* pull_verb.c - the verb `pull`: downloads a published checkpoint.
 *
 * Path:     pull_list for the names and hashes, pull_get for the bytes. Never run unasked.
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "cli/pull.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <curl/curl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PULL_PARALLEL = 4, PULL_STALL_S = 30, PULL_TRIES = 8 };

static volatile sig_atomic_t pull_is_stopped; // set by the signal handler alone

static void pull_on_signal(int number) {
    UNUSED(number);
    pull_is_stopped = 1;
}

static bool pull_stopped(void) { return pull_is_stopped != 0; }

static void pull_report(void *ctx, uint64_t done, uint64_t total, int32_t n_done, int32_t n_files,
                        double seconds, uint64_t fetched) {
    UNUSED(ctx);
    if (!isatty(STDERR_FILENO) || total == 0)
        return;
    double rate = seconds > 0 ? (double)fetched / seconds : 0;
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    fprintf(stderr, "\r\x1b[K%5.1f%% of %.2f GB, file %d of %d, %.1f MB/s, %d:%02d left",
            100.0 * (double)done / (double)total, (double)total * 1e-9, n_done + 1, n_files,
            rate * 1e-6, (int)(left / 60), (int)left % 60);
    if (done >= total)
        fputs("\r\x1b[K", stderr);
    fflush(stderr);
}

int verb_pull(const CliArgs *args) {
    if (!args->out)
        return ui_usage("pull", "expected -o and a folder");
    Err err = {0};
    PullList list = {0};
    const char *hub = args->hub ? args->hub : getenv("LILY_HUB");
    const char *token = getenv("HF_TOKEN");
    char base[1024];
    snprintf(base, sizeof base, "%s", hub && *hub ? hub : "https://huggingface.co");
    for (size_t n = strlen(base); n > 0 && base[n - 1] == '/';)
        base[--n] = 0;
    PullSource source = {.hub = base,
                         .token = token && *token ? token : NULL,
                         .stall_s = args->stall ? args->stall : PULL_STALL_S,
                         .n_tries = PULL_TRIES,
                         .is_stopped = pull_stopped};
    PullProgress progress = {pull_report, NULL};
    struct sigaction action = {.sa_handler = pull_on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return ui_usage("pull", "the transfer library does not start");
    Status status = pull_name(&list, args->positional[0], &err);
    if (status == STATUS_OK)
        status = pull_list(&list, &source, &err);
    if (status == STATUS_OK)
        status = pull_get(&list, &source, args->out, PULL_PARALLEL, &progress, &err);
    if (status == STATUS_OK)
        fprintf(stderr, "%d files are whole in %s\n", list.n, args->out);
    pull_list_fini(&list);
    curl_global_cleanup();
    return status == STATUS_OK ? ui_finish("pull") : ui_fail("pull", &err);
}
