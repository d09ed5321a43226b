// SPDX-License-Identifier: Apache-2.0
/* model.c - opening what the command line names.
 *
 * Owns:     the text of the default model's path.  Thread: main. */
#define _GNU_SOURCE // readlink
#include "cli/model.h"

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/synth_write.h"
#include "cli/ui.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef LILY_SHARE
#define LILY_SHARE "/usr/local/share/lily"
#endif

/* Whether dir holds a checkpoint. */
static bool model_is_there(const char *dir) {
    char *path = file_join(dir, "config.json");
    bool is_there = path && access(path, R_OK) == 0;
    mem_free(path);
    return is_there;
}

/* Where the small model may stand, seen from the program's folder. */
static const char *const MODEL_PLACES[] = {
    "models/mini",       // a distribution's folder
    "../models/mini",    // the source tree, from its build folder
    "../../models/mini", // from a folder in that
    "../share/lily/mini" // an installation, from its bin
};

/* The folder of the running program into dir; false where the system does not tell. */
static bool model_program_dir(char dir[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    dir[n > 0 ? n : 0] = 0;
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

Status model_find(const char **out, const CliArgs *args, Err *err) {
    static char dir[PATH_MAX + 32]; // neither the program's folder nor the working one changes
    const char *named = getenv("LILY_MODEL");
    if (args->model || (named && *named)) {
        *out = args->model ? args->model : named;
        return STATUS_OK;
    }
    *out = dir;
    char program[PATH_MAX];
    bool is_known = model_program_dir(program);
    for (size_t i = 0; is_known && i < COUNT_OF(MODEL_PLACES); i++) {
        char from[PATH_MAX];
        snprintf(from, sizeof from, "%s", program);
        const char *place = MODEL_PLACES[i];
        for (char *slash; !strncmp(place, "../", 3) && (slash = strrchr(from, '/')); place += 3)
            *slash = 0;
        snprintf(dir, sizeof dir, "%s/%s", from, place);
        if (model_is_there(dir))
            return STATUS_OK;
    }
    snprintf(dir, sizeof dir, "%s/mini", LILY_SHARE);
    if (model_is_there(dir))
        return STATUS_OK;
    snprintf(dir, sizeof dir, "models/mini");
    if (model_is_there(dir))
        return STATUS_OK;
    return err_set(
        err, STATUS_NOT_FOUND,
        "no model: neither -m nor LILY_MODEL names one, and the small one is not there: "
        "looked for %s, %s, %s and %s from the program's folder, %s/mini, and models/mini "
        "in the working directory (the program is in %.200s)",
        MODEL_PLACES[0], MODEL_PLACES[1], MODEL_PLACES[2], MODEL_PLACES[3], LILY_SHARE,
        is_known ? program : "a place that the system does not tell");
}

const char *model_spec(const CliArgs *args) {
    const char *spec = NULL;
    return model_find(&spec, args, NULL) == STATUS_OK ? spec : "";
}

Status model_weights(Weights **out, const CliArgs *args, const Log *log, Err *err) {
    const char *spec;
    TRY(model_find(&spec, args, err));
    return weights_open(out, spec, log, err);
}

Status model_backend(BackendKind *out, const CliArgs *args, Err *err) {
    BackendKind kind = args->backend ? backend_kind_find(args->backend) : BACKEND_AUTO;
    if (kind == BACKEND_N)
        return err_set(err, STATUS_INVALID,
                       "--backend: expected ref, ref64, cpu, cuda, metal or auto, found %s",
                       args->backend);
    char why[256] = "";
    if (!backend_is_available(kind, why, sizeof why))
        return err_set(err, STATUS_UNSUPPORTED, "backend %s cannot be used here: %s",
                       backend_kind_name(kind), why);
    *out = kind;
    return STATUS_OK;
}

Status model_backend_for(BackendKind *out, const CliArgs *args, const Weights *w, Err *err) {
    BackendPlan plan = {.device = (int32_t)args->device,
                        .n_threads = (int32_t)args->threads,
                        .mask = args->mask,
                        .is_f32_activations = args->is_f32};
    TRY(model_backend(out, args, err));
    *out = backend_kind_for(*out, w, &plan, &UI_LOG);
    return STATUS_OK;
}

Status model_engine_options(EngineOptions *out, const CliArgs *args, Err *err) {
    EngineOptions o = {
        .n_threads = (int32_t)args->threads,
        .device = (int32_t)args->device,
        .mask = args->mask,
        .ctx_tok = (int32_t)args->ctx,
        .max_seqs = 1,
        .chunk_tok = (int32_t)args->chunk,
        .is_f32_activations = args->is_f32,
    };
    TRY(model_backend(&o.kind, args, err));
    *out = o;
    return STATUS_OK;
}

Status model_tokenizer(Tokenizer **out, const Weights *w, Err *err) {
    int32_t vocab = weights_config(w)->vocab;
    if (!weights_dir(w))
        return tokenizer_open_bytes(out, synth_write_n_ids(vocab), err);
    return tokenizer_open(out, weights_dir(w), vocab, &UI_LOG, err);
}

static Status model_ids_of_text(int32_t **out, int32_t *n, const char *text, Err *err) {
    int32_t *ids = NULL;
    size_t n_ids = 0, cap = 0;
    for (const char *p = text;;) {
        p += strspn(p, ", \t\r\n[]");
        if (*p == 0)
            break;
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX) {
            mem_free(ids);
            return err_set(err, STATUS_INVALID, "ids: expected numbers such as 1,2,3, found %.20s",
                           p);
        }
        p = end;
        if (n_ids == cap) {
            cap = cap * 2 + 64;
            int32_t *more = cap < INT32_MAX ? mem_realloc(ids, cap * sizeof *ids) : NULL;
            if (!more) {
                mem_free(ids);
                return err_memory(err, "ids", cap * sizeof *ids);
            }
            ids = more;
        }
        ids[n_ids++] = (int32_t)v;
    }
    if (n_ids == 0) {
        mem_free(ids);
        return err_set(err, STATUS_INVALID, "ids: expected at least one, found none");
    }
    *out = ids;
    *n = (int32_t)n_ids;
    return STATUS_OK;
}

Status model_parse_ids(int32_t **out, int32_t *n, const char *text, Err *err) {
    if (text[0] != '@')
        return model_ids_of_text(out, n, text, err);
    StrBuf file = {0};
    TRY(file_read_all(&file, text + 1, LIMIT_MESSAGES_BYTES, err));
    Status status = model_ids_of_text(out, n, file.ptr, err);
    strbuf_fini(&file);
    return status;
}
