// SPDX-License-Identifier: Apache-2.0
/* generation.c - generation_config.json to numbers.
 *
 * Owns:     nothing.  Thread: any. */
#include "checkpoint/generation.h"

#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

#include <math.h>

static Status generation_parse(Generation *out, const json_t *v, const char *name, Err *err) {
    if (!json_is_object(v))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", name,
                       json_type_text(v));
    Generation g = *out;
    bool is_sampled = true;
    TRY(json_get_bool(&is_sampled, v, "do_sample", &is_sampled, name, err));
    TRY(json_get_real(&g.temperature, v, "temperature", &g.temperature, name, err));
    TRY(json_get_real(&g.top_p, v, "top_p", &g.top_p, name, err));
    TRY(json_get_real(&g.min_p, v, "min_p", &g.min_p, name, err));
    TRY(json_get_real(&g.repetition_penalty, v, "repetition_penalty", &g.repetition_penalty, name,
                      err));
    TRY(json_get_int(&g.top_k, v, "top_k", 0, LIMIT_VOCAB, &g.top_k, name, err));
    if (!(g.temperature >= 0 && g.temperature <= 100))
        return err_set(err, STATUS_FORMAT, "%s: temperature: expected 0 to 100, found %g", name,
                       g.temperature);
    if (!(g.top_p >= 0 && g.top_p <= 1))
        return err_set(err, STATUS_FORMAT, "%s: top_p: expected 0 to 1, found %g", name, g.top_p);
    if (!(g.min_p >= 0 && g.min_p <= 1))
        return err_set(err, STATUS_FORMAT, "%s: min_p: expected 0 to 1, found %g", name, g.min_p);
    if (!(g.repetition_penalty > 0 && g.repetition_penalty <= 100))
        return err_set(err, STATUS_FORMAT,
                       "%s: repetition_penalty: expected more than 0, at most 100, found %g", name,
                       g.repetition_penalty);
    if (!is_sampled)
        g.temperature = 0;
    *out = g;
    return STATUS_OK;
}

Status generation_read(Generation *out, const char *dir, Err *err) {
    *out = (Generation){.temperature = 1.0, .top_p = 0.95, .repetition_penalty = 1.0, .top_k = 20};
    if (!dir)
        return STATUS_OK;
    char *path = file_join(dir, "generation_config.json");
    if (!path)
        return err_memory(err, "path", 0);
    json_t *v = NULL;
    StrBuf text = {0};
    Status status = file_read_regular(&text, path, LIMIT_CONFIG_BYTES, err);
    if (status == STATUS_OK)
        status = json_read(&v, strbuf_view(&text), path, err);
    strbuf_fini(&text);
    if (status == STATUS_OK)
        status = generation_parse(out, v, path, err);
    else if (status == STATUS_NOT_FOUND)
        status = STATUS_OK;
    json_decref(v);
    mem_free(path);
    return status;
}
