// SPDX-License-Identifier: Apache-2.0
/* golden.c - reads recorded continuations.
 *
 * Owns:     a Golden owns its arena.  Thread: any. */
#include "cli/golden.h"

#include "base/json.h"
#include "base/limits.h"

static Status golden_id(int32_t *out, const json_t *v, const char *path, const char *what,
                        Err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= LIMIT_VOCAB)
        return err_set(err, STATUS_FORMAT, "%s: %s: expected a token id, found %s", path, what,
                       json_type_text(v));
    *out = (int32_t)json_integer_value(v);
    return STATUS_OK;
}

static Status golden_step(Golden *g, GoldenStep *step, const json_t *v, const char *path,
                          Err *err) {
    TRY(golden_id(&step->chosen, json_object_get(v, "chosen"), path, "steps: chosen", err));
    const json_t *top = json_object_get(v, "topk");
    if (!json_is_array(top))
        return err_set(err, STATUS_FORMAT, "%s: steps: topk: expected a list, found %s", path,
                       json_type_text(top));
    step->n_top = (int32_t)json_array_size(top);
    step->top_ids = arena_array(&g->arena, (size_t)step->n_top, sizeof *step->top_ids);
    step->top_logprobs = arena_array(&g->arena, (size_t)step->n_top, sizeof *step->top_logprobs);
    if (!step->top_ids || !step->top_logprobs)
        return err_memory(err, path, (size_t)step->n_top * 16);
    for (int32_t i = 0; i < step->n_top; i++) {
        const json_t *pair = json_array_get(top, (size_t)i);
        TRY(golden_id(&step->top_ids[i], json_array_get(pair, 0), path, "steps: topk", err));
        if (!json_is_number(json_array_get(pair, 1)))
            return err_set(err, STATUS_FORMAT, "%s: steps: topk: expected [id, logprob]", path);
        step->top_logprobs[i] = json_number_value(json_array_get(pair, 1));
    }
    return STATUS_OK;
}

static Status golden_parse(Golden *g, const json_t *v, const char *path, Err *err) {
    const json_t *ids = json_object_get(v, "prompt_token_ids");
    const json_t *steps = json_object_get(v, "steps");
    if (json_array_size(ids) < 1 || json_array_size(ids) > LIMIT_CONTEXT)
        return err_set(err, STATUS_FORMAT, "%s: prompt_token_ids: expected a list of ids, found %s",
                       path, json_is_array(ids) ? "a list of another length" : json_type_text(ids));
    if (json_array_size(steps) < 1 || json_array_size(steps) > LIMIT_CONTEXT)
        return err_set(err, STATUS_FORMAT, "%s: steps: expected a list, found %s", path,
                       json_is_array(steps) ? "a list of another length" : json_type_text(steps));
    g->n_prompt = (int32_t)json_array_size(ids);
    g->n_steps = (int32_t)json_array_size(steps);
    g->prompt = arena_array(&g->arena, (size_t)g->n_prompt, sizeof *g->prompt);
    g->steps = arena_array(&g->arena, (size_t)g->n_steps, sizeof *g->steps);
    if (!g->prompt || !g->steps)
        return err_memory(err, path, (size_t)g->n_prompt * sizeof *g->prompt);
    for (int32_t i = 0; i < g->n_prompt; i++)
        TRY(golden_id(&g->prompt[i], json_array_get(ids, (size_t)i), path, "prompt_token_ids",
                      err));
    for (int32_t i = 0; i < g->n_steps; i++)
        TRY(golden_step(g, &g->steps[i], json_array_get(steps, (size_t)i), path, err));
    StrView text = json_text(json_object_get(v, "prompt"));
    if (text.ptr && !(g->text = arena_strdup(&g->arena, text.ptr, text.len)))
        return err_memory(err, path, text.len);
    g->is_chat = json_is_true(json_object_get(v, "chat_template"));
    return STATUS_OK;
}

Status golden_read(Golden *out, const char *path, Err *err) {
    json_t *v = NULL;
    Golden g = {0};
    TRY(json_read_file(&v, path, LIMIT_MESSAGES_BYTES, err));
    Status status = golden_parse(&g, v, path, err);
    json_decref(v);
    if (status != STATUS_OK) {
        golden_fini(&g);
        return status;
    }
    *out = g;
    return STATUS_OK;
}

Status golden_check(const Golden *g, int32_t vocab, Err *err) {
    int32_t bad = -1;
    for (int32_t i = 0; i < g->n_prompt; i++)
        bad = g->prompt[i] >= vocab ? g->prompt[i] : bad;
    for (int32_t i = 0; i < g->n_steps; i++) {
        bad = g->steps[i].chosen >= vocab ? g->steps[i].chosen : bad;
        for (int32_t j = 0; j < g->steps[i].n_top; j++)
            bad = g->steps[i].top_ids[j] >= vocab ? g->steps[i].top_ids[j] : bad;
    }
    return bad < 0
               ? STATUS_OK
               : err_set(err, STATUS_INVALID,
                         "the recorded id %d is beyond this model's vocabulary of %d", bad, vocab);
}

void golden_fini(Golden *g) { arena_fini(&g->arena); }
