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

const char *model_spec(const CliArgs *args) {
    static char dir[PATH_MAX + 32]; // the program's own folder does not change
    if (args->model)
        return args->model;
    const char *named = getenv("LILY_MODEL");
    if (named && *named)
        return named;
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        for (int up = 0; up < 2; up++) { // build/lily -> the tree's root
            char *slash = strrchr(exe, '/');
            if (slash)
                *slash = 0;
        }
        snprintf(dir, sizeof dir, "%s/models/mini", exe);
        if (model_is_there(dir))
            return dir;
        snprintf(dir, sizeof dir, "%s/share/lily/mini", exe);
        if (model_is_there(dir))
            return dir;
    }
    snprintf(dir, sizeof dir, "%s/mini", LILY_SHARE);
    return model_is_there(dir) ? dir : MODEL_FALLBACK;
}

Status model_backend(BackendKind *out, const CliArgs *args, Err *err) {
    BackendKind kind = args->backend ? backend_kind_find(args->backend) : BACKEND_AUTO;
    if (kind == BACKEND_N)
        return err_set(err, STATUS_INVALID,
                       "--backend: expected ref, ref64, cpu, cuda, metal or auto, found %s",
                       args->backend);
    kind = backend_kind_resolve(kind);
    char why[256] = "";
    if (!backend_is_available(kind, why, sizeof why))
        return err_set(err, STATUS_UNSUPPORTED, "backend %s cannot be used here: %s",
                       backend_kind_name(kind), why);
    *out = kind;
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
