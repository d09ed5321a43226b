// SPDX-License-Identifier: Apache-2.0
/* inspect_verb.c - the verb `inspect`: what a checkpoint is and what running it would take.
 *
 * Path:     checkpoint/inspect.h reports on the files, engine_plan on the memory.
 * Owns:     nothing past the run.  Thread: main. */
#include "checkpoint/inspect.h"

#include "base/mem.h"
#include "cli/model.h"
#include "cli/ui.h"
#include "cli/verbs.h"

/* The memory plan as an object; what it may be refused for is in err, and in the object. */
static json_t *inspect_plan(const CliArgs *args, Err *err) {
    Weights *w = NULL;
    EngineOptions options;
    EnginePlan plan;
    json_t *v = NULL;
    Status status = model_engine_options(&options, args, err);
    options.budget_bytes = UINT64_MAX; // the plan is shown whether it fits or not
    if (status == STATUS_OK)
        status = model_weights(&w, args, NULL, err);
    if (status == STATUS_OK)
        status = model_backend_for(&options.kind, args, w, err);
    if (status == STATUS_OK)
        status = engine_plan(&plan, w, &options, err);
    weights_close(w);
    if (status != STATUS_OK)
        return json_pack("{s:s}", "refused", err->text);
    v = json_pack(
        "{s:s, s:i, s:I, s:I, s:I, s:I, s:I}", "backend", backend_kind_name(options.kind),
        "context", plan.ctx_tok, "weight_bytes", (json_int_t)plan.needs.weight_bytes, "kv_bytes",
        (json_int_t)plan.needs.block_bytes * (plan.ctx_tok / KV_BLOCK), "state_bytes",
        (json_int_t)plan.needs.slot_bytes * (plan.max_seqs + plan.cache_slots), "scratch_bytes",
        (json_int_t)plan.needs.scratch_bytes, "total_bytes", (json_int_t)plan.needs.total_bytes);
    uint64_t available = backend_memory_free(options.kind, options.device);
    json_object_set_new(v, "available_bytes", json_integer((json_int_t)available));
    json_object_set_new(v, "fits", json_boolean(plan.needs.total_bytes <= available));
    return v;
}

static void inspect_print_list(const json_t *list, const char *title) {
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) printf("%s %s\n", title, json_string_value(v));
}

static void inspect_print_value(const char *key, const json_t *v) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    printf("  %-26s %s\n", key, text ? text : "");
    mem_free(text);
}

static void inspect_print_slots(const json_t *slots) {
    size_t i;
    const json_t *s;
    printf("tensors:\n");
    json_array_foreach(slots, i, s) {
        char *shape = json_dumps(json_object_get(s, "shape"), JSON_ENCODE_ANY);
        long long bits = json_integer_value(json_object_get(s, "bits"));
        printf("  %-32s %3lld x %-18s %s%-5.0lld %8.1f MB\n",
               json_string_value(json_object_get(s, "slot")),
               (long long)json_integer_value(json_object_get(s, "n")), shape ? shape : "",
               bits ? "bits " : "plain", bits,
               (double)json_integer_value(json_object_get(s, "bytes")) * 1e-6);
        mem_free(shape);
    }
}

static void inspect_print(const json_t *report) {
    printf("%s (%s)\n", json_string_value(json_object_get(report, "model")),
           json_is_string(json_object_get(report, "form"))
               ? json_string_value(json_object_get(report, "form"))
               : "not readable");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)json_object_get(report, "config"), key, v)
        inspect_print_value(key, v);
    inspect_print_value("parameters", json_object_get(report, "parameters"));
    inspect_print_value("active_parameters", json_object_get(report, "active_parameters"));
    inspect_print_slots(json_object_get(report, "slots"));
    size_t i;
    json_array_foreach(json_object_get(report, "files"), i, v)
        printf("file %s: %.3f GB, %lld tensors\n", json_string_value(json_object_get(v, "name")),
               (double)json_integer_value(json_object_get(v, "bytes")) * 1e-9,
               (long long)json_integer_value(json_object_get(v, "tensors")));
    printf("memory plan:\n");
    json_object_foreach((json_t *)json_object_get(report, "plan"), key, v)
        inspect_print_value(key, v);
    inspect_print_list(json_object_get(report, "notes"), "note:");
    inspect_print_list(json_object_get(report, "refused"), "refused:");
}

int verb_inspect(const CliArgs *args) {
    Err err = {0};
    json_t *report = NULL;
    const char *spec;
    if (model_find(&spec, args, &err) != STATUS_OK ||
        inspect_report(&report, spec, &err) != STATUS_OK)
        return ui_fail("inspect", &err);
    const json_t *refused = json_object_get(report, "refused");
    bool is_refused = json_array_size(refused) > 0;
    if (!is_refused)
        json_object_set_new(report, "plan", inspect_plan(args, &err));
    else if (!args->is_json)
        err.code =
            err_set(&err, STATUS_FORMAT, "%s", json_string_value(json_array_get(refused, 0)));
    if (!args->is_json && !is_refused)
        inspect_print(report);
    if (!args->is_json)
        json_decref(report);
    else if (ui_print_json(report, JSON_INDENT(2), &err) != STATUS_OK)
        return ui_fail("inspect", &err);
    if (err.code != STATUS_OK)
        return ui_fail("inspect", &err);
    int status = ui_finish("inspect");
    return is_refused ? 1 : status;
}
