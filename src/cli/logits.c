// SPDX-License-Identifier: Apache-2.0
/* logits.c - the verb `logits`: a prompt's logits, and the residual stream, into a file.
 *
 * Path:     one sequence straight on the backend, in pieces of at most PIECE rows, so that the
 * memory does not grow with the prompt. Owns:     nothing past the run.  Thread: main. */
#include "base/checked.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/safetensors_write.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <string.h>

enum { PIECE = 128 }; // rows of a step: 127 MB of logits at the full vocabulary

typedef struct LogitsRun {
    const CliArgs *args;
    Weights *weights;
    Single single;
    SafetensorsWriter *out;
    int32_t *ids;
    int32_t n;         // ids
    int32_t row0;      // first row of the step that runs
    Status tap_status; // of writing inside a tap
    Err *err;
} LogitsRun;

/* Entry i + 1 of the file is layer i. */
static void logits_see(void *ctx, const char *name, int layer, int32_t n_rows, int32_t width,
                       const double *data) {
    LogitsRun *run = ctx;
    if (strcmp(name, "out") != 0 || layer < 0 || run->tap_status != STATUS_OK)
        return;
    size_t n = (size_t)n_rows * (size_t)width;
    float *rows = mem_alloc(n * sizeof *rows);
    if (!rows) {
        run->tap_status = err_memory(run->err, "layer values", n * sizeof *rows);
        return;
    }
    for (size_t i = 0; i < n; i++)
        rows[i] = (float)data[i];
    run->tap_status =
        safetensors_write_at(run->out, (size_t)layer + 1, rows, n * sizeof *rows,
                             (uint64_t)run->row0 * (uint64_t)width * sizeof *rows, run->err);
    mem_free(rows);
}

static Status logits_open_file(LogitsRun *run) {
    const ModelConfig *c = weights_config(run->weights);
    size_t n_entries = 1 + (run->args->is_taps ? (size_t)c->n_layers : 0);
    char names[LIMIT_LAYERS][32];
    SafetensorsEntry entries[LIMIT_LAYERS + 1] = {
        {.name = "logits",
         .dtype = ST_F32,
         .rank = 2,
         .shape = {run->args->is_last ? 1 : (uint64_t)run->n, (uint64_t)c->vocab}}};
    for (size_t i = 1; i < n_entries; i++) {
        snprintf(names[i - 1], sizeof names[0], "layer.%zu", i - 1);
        entries[i] = (SafetensorsEntry){.name = names[i - 1],
                                        .dtype = ST_F32,
                                        .rank = 2,
                                        .shape = {(uint64_t)run->n, (uint64_t)c->hidden}};
    }
    return safetensors_write_open(&run->out, run->args->out, entries, n_entries, run->err);
}

/* One piece of the prompt: rows [row0, row0 + n_rows). */
static Status logits_piece(LogitsRun *run, int32_t n_rows) {
    bool is_end = run->row0 + n_rows == run->n;
    BatchTap tap = {logits_see, run};
    BatchWant want = !run->args->is_last ? WANT_ALL : is_end ? WANT_LAST : WANT_NOTHING;
    BatchResult result;
    TRY(single_step(&run->single, PHASE_PREFILL, run->ids + run->row0, n_rows, want, false,
                    run->args->is_taps ? &tap : NULL, &result, run->err));
    TRY(run->tap_status);
    if (want == WANT_NOTHING)
        return STATUS_OK;
    uint64_t row_bytes = (uint64_t)run->single.config->vocab * sizeof(float);
    uint64_t n_wanted = want == WANT_ALL ? (uint64_t)n_rows : 1;
    uint64_t first = want == WANT_ALL ? (uint64_t)run->row0 : 0;
    return safetensors_write_at(run->out, 0, result.logits, n_wanted * row_bytes, first * row_bytes,
                                run->err);
}

static Status logits_run(LogitsRun *run) {
    TRY(model_parse_ids(&run->ids, &run->n, run->args->ids, run->err));
    TRY(model_weights(&run->weights, run->args, &UI_LOG, run->err));
    TRY(single_check_ids(weights_config(run->weights), run->ids, run->n, run->err));
    TRY(single_open(&run->single, run->args, run->weights, run->n, PIECE, PIECE, run->err));
    TRY(logits_open_file(run));
    for (; run->row0 < run->n; run->row0 += PIECE)
        TRY(logits_piece(run, min_i32(PIECE, run->n - run->row0)));
    return safetensors_write_commit(run->out, run->err);
}

int verb_logits(const CliArgs *args) {
    if (!args->ids || !args->out)
        return ui_usage("logits", "expected --ids and -o");
    Err err = {0};
    LogitsRun run = {.args = args, .err = &err};
    Status status = logits_run(&run);
    safetensors_write_close(run.out);
    int32_t vocab = run.weights ? weights_config(run.weights)->vocab : 0;
    single_close(&run.single);
    weights_close(run.weights);
    mem_free(run.ids);
    if (status != STATUS_OK)
        return ui_fail("logits", &err);
    if (args->is_json) {
        json_t *v = json_pack("{s:o, s:i, s:i}", "file", json_clean_string(args->out), "n",
                              args->is_last ? 1 : run.n, "vocab", vocab);
        if (ui_print_json(v, 0, &err) != STATUS_OK)
            return ui_fail("logits", &err);
    }
    return ui_finish("logits");
}
