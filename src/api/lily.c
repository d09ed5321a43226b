// SPDX-License-Identifier: Apache-2.0
/* lily.c - the C library: errors, texts, opening and closing a model.
 *
 * Path:     lily_model_open -> weights, tokenizer, template -> api_runner_open (engine).
 * Owns:     a LilyModel until its last reference goes.  Thread: any.
 * Not here: conversations (api_chat.c), answers (api_answer.c). */
#include "api.h"

#include "base/mem.h"
#include "checkpoint/synth_write.h"

#include <assert.h>
#include <string.h>

#ifndef LILY_VERSION
#define LILY_VERSION "0"
#endif

static_assert((int)LILY_OK == (int)STATUS_OK && (int)LILY_INVALID == (int)STATUS_INVALID &&
                  (int)LILY_NOT_FOUND == (int)STATUS_NOT_FOUND &&
                  (int)LILY_DENIED == (int)STATUS_DENIED &&
                  (int)LILY_TOO_LARGE == (int)STATUS_TOO_LARGE &&
                  (int)LILY_CONTEXT == (int)STATUS_CONTEXT &&
                  (int)LILY_FORMAT == (int)STATUS_FORMAT &&
                  (int)LILY_UNSUPPORTED == (int)STATUS_UNSUPPORTED &&
                  (int)LILY_MEMORY == (int)STATUS_MEMORY && (int)LILY_IO == (int)STATUS_IO &&
                  (int)LILY_BUSY == (int)STATUS_BUSY &&
                  (int)LILY_CANCELLED == (int)STATUS_CANCELLED &&
                  (int)LILY_NUMERIC == (int)STATUS_NUMERIC &&
                  (int)LILY_DEVICE == (int)STATUS_DEVICE && (int)LILY_DEVICE + 1 == (int)STATUS_N,
              "the public status numbers are the internal ones");
static_assert((int)LILY_LOG_DEBUG == (int)LOG_DEBUG && (int)LILY_LOG_INFO == (int)LOG_INFO &&
                  (int)LILY_LOG_WARNING == (int)LOG_WARNING &&
                  (int)LILY_LOG_ERROR == (int)LOG_ERROR,
              "the public log levels are the internal ones");
static_assert(sizeof((LilyError *)0)->text == ERR_TEXT_SIZE, "error texts have one size");

enum { API_SNAPSHOTS = 4 }; // 61 MB each at the full shape; one long conversation uses two

const char *lily_status_name(LilyStatus status) {
    return (unsigned)status < STATUS_N ? status_name((Status)status) : "unknown";
}

const char *lily_version(void) { return LILY_VERSION; }

void lily_free(char *text) { mem_free(text); }

LilyStatus api_fail(LilyError *error, const Err *err) {
    if (error) {
        error->status = (LilyStatus)err->code;
        memcpy(error->text, err->text, sizeof error->text);
    }
    return (LilyStatus)err->code;
}

LilyStatus api_refuse(LilyError *error, Status code, const char *fmt, ...) {
    char text[ERR_TEXT_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    Err err;
    err.code = err_set(&err, code, "%s", text);
    return api_fail(error, &err);
}

StrView api_text(const char *text, size_t len) {
    return str_view(text, len == LILY_TERMINATED ? strlen(text) : len);
}

/* ---- a model ---- */

static void model_log(void *ctx, LogLevel level, const char *line) {
    const LilyModel *m = ctx;
    m->log(m->log_context, (LilyLogLevel)level, line);
}

static void model_progress(void *ctx, const char *what, uint64_t done, uint64_t total) {
    const LilyModel *m = ctx;
    m->progress(m->progress_context, what, done, total);
}

/* The engine's options from the caller's. */
static Status model_options(LilyModel *m, const LilyModelOptions *given, Err *err) {
    LilyModelOptions o = {.size = sizeof o};
    if (given) {
        if (given->size < sizeof given->size || given->size > sizeof o)
            return err_set(err, STATUS_INVALID,
                           "options: expected a size of at most %zu, found %zu", sizeof o,
                           given->size);
        memcpy(&o, given, given->size);
    }
    BackendKind kind = o.backend ? backend_kind_find(o.backend) : BACKEND_AUTO;
    if (kind == BACKEND_N)
        return err_set(err, STATUS_INVALID,
                       "backend: expected ref, ref64, cpu, cuda, metal or auto, found %s",
                       o.backend);
    char why[256] = "";
    if (!backend_is_available(kind, why, sizeof why))
        return err_set(err, STATUS_UNSUPPORTED, "backend %s cannot be used here: %s",
                       backend_kind_name(kind), why);
    if (o.n_threads < 0 || o.n_threads > LIMIT_THREADS)
        return err_set(err, STATUS_INVALID, "threads: expected 0 to %d, found %d", LIMIT_THREADS,
                       o.n_threads);
    if (o.n_snapshots < -1)
        return err_set(err, STATUS_INVALID, "snapshots: expected -1 or more, found %d",
                       o.n_snapshots);
    m->log = o.log;
    m->log_context = o.log_context;
    m->progress = o.progress;
    m->progress_context = o.progress_context;
    m->runner.log = (Log){o.log ? model_log : NULL, m};
    m->runner.progress = (Progress){o.progress ? model_progress : NULL, m};
    m->runner.options = (EngineOptions){
        .kind = kind,
        .n_threads = o.n_threads,
        .device = o.device,
        .mask = o.cpu_mask,
        .ctx_tok = o.ctx_tok,
        .chunk_tok = o.chunk_tok,
        .max_seqs = o.n_answers,
        .cache_slots = o.n_snapshots == 0    ? API_SNAPSHOTS
                       : o.n_snapshots == -1 ? 0
                                             : o.n_snapshots,
        .budget_bytes = o.budget_bytes,
        .is_f32_activations = o.is_f32,
    };
    return STATUS_OK;
}

static Status model_open_parts(LilyModel *m, const char *path, Err *err) {
    Runner *r = &m->runner;
    TRY(weights_open(&m->weights, path, &r->log, err));
    const char *dir = weights_dir(m->weights);
    int32_t vocab = weights_config(m->weights)->vocab;
    if (dir)
        TRY(tokenizer_open(&m->tokenizer, dir, vocab, &r->log, err));
    else
        TRY(tokenizer_open_bytes(&m->tokenizer, synth_write_n_ids(vocab), err));
    TRY(generation_read(&m->defaults, dir, err));
    r->turn.tokenizer = m->tokenizer;
    TRY(chat_family_open(&r->turn.family, dir, &r->log, err));
    r->weights = m->weights;
    return api_runner_open(r, err);
}

static void model_free(LilyModel *m) {
    tokenizer_close(m->tokenizer);
    weights_close(m->weights);
    mem_free(m);
}

LilyStatus lily_model_open(LilyModel **out, const char *path, const LilyModelOptions *options,
                           LilyError *error) {
    if (!out || !path)
        return api_refuse(error, STATUS_INVALID, "lily_model_open: expected a %s, found NULL",
                          out ? "path" : "place for the model");
    Err err = {0};
    LilyModel *m = mem_zalloc(1, sizeof *m);
    if (!m) {
        err.code = err_memory(&err, "model", sizeof *m);
        return api_fail(error, &err);
    }
    atomic_init(&m->n_refs, 1);
    Status status = model_options(m, options, &err);
    if (status == STATUS_OK)
        status = model_open_parts(m, path, &err);
    if (status != STATUS_OK) {
        model_free(m);
        err.code = status;
        return api_fail(error, &err);
    }
    *out = m;
    return LILY_OK;
}

void api_model_release(LilyModel *m) {
    if (atomic_fetch_sub(&m->n_refs, 1) != 1)
        return;
    api_runner_close(&m->runner);
    model_free(m);
}

void lily_model_close(LilyModel *model) {
    if (model)
        api_model_release(model);
}

int32_t lily_model_ctx_tok(const LilyModel *model) { return model ? model->runner.limit_tok : 0; }
