// SPDX-License-Identifier: Apache-2.0
/* inspect.c - the report's members, one function each.
 *
 * Path:     the verb `inspect` prints it or hands it on.
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/inspect.h"

#include "base/json.h"
#include "checkpoint/folder.h"
#include "checkpoint/weights.h"

/* The model that is looked at: a folder, or an opened random model. */
typedef struct Subject {
    const ModelConfig *config;
    const Folder *folder;   // NULL: a random model
    const Weights *weights; // NULL: a folder
} Subject;

/* ---- where texts go ---- */

static void note_line(void *ctx, LogLevel level, const char *line) {
    UNUSED(level);
    json_array_append_new(ctx, json_clean_string(line));
}

static void refuse_text(void *ctx, Status code, const char *text) {
    UNUSED(code);
    json_array_append_new(ctx, json_clean_string(text));
}

/* ---- members ---- */

static json_t *report_config(const ModelConfig *c) {
    json_t *eos = json_array(), *layers = json_array();
    for (int32_t i = 0; i < c->n_eos; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    for (int32_t i = 0; i < c->n_layers; i++)
        json_array_append_new(layers, json_string(c->is_attn[i] ? "attn" : "gdn"));
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:o, s:o}",
        "hidden", c->hidden, "n_layers", c->n_layers, "vocab", c->vocab, "n_q_heads", c->n_q_heads,
        "n_kv_heads", c->n_kv_heads, "n_gdn_key_heads", c->n_gdn_key_heads, "n_gdn_value_heads",
        c->n_gdn_value_heads, "n_experts", c->n_experts, "top_k", c->top_k, "expert_inner",
        c->expert_inner, "shared_inner", c->shared_inner, "max_positions", c->max_positions,
        "rope_theta", c->rope_theta, "rms_eps", c->rms_eps, "is_tied", (int)c->is_tied, "eos", eos,
        "layers", layers);
}

/* Number of weights; active: with top_k experts of each stack. */
static uint64_t count_parameters(const ModelConfig *c, bool is_active) {
    uint64_t total = 0;
    for (int layer = -1; layer < c->n_layers; layer++)
        for (int s = 0; s < SLOT_N; s++) {
            if (!weights_slot_exists(c, (WeightSlot)s, layer))
                continue;
            int32_t n_experts, n, k;
            weights_slot_shape(c, (WeightSlot)s, &n_experts, &n, &k);
            bool is_stack = s == SLOT_EXPERT_GATE || s == SLOT_EXPERT_UP || s == SLOT_EXPERT_DOWN;
            uint64_t n_used = (uint64_t)(is_stack && is_active ? c->top_k : n_experts);
            total += n_used * (uint64_t)n * (uint64_t)k;
        }
    return total;
}

/* What the layers that have a slot say about it. */
typedef struct SlotSum {
    int n;
    int32_t bits, group; // -1: they differ
    uint64_t n_bytes;
    unsigned dtypes; // bit set of SafetensorsDtype of the main tensors
} SlotSum;

static void sum_add(SlotSum *sum, QuantSpec spec, uint64_t n_bytes, SafetensorsDtype dtype) {
    sum->bits = sum->n == 0 || sum->bits == spec.bits ? spec.bits : -1;
    sum->group = sum->n == 0 || sum->group == spec.group ? spec.group : -1;
    sum->n_bytes += n_bytes;
    sum->dtypes |= 1u << dtype;
    sum->n++;
}

static SlotSum sum_slot(const Subject *s, WeightSlot slot) {
    SlotSum sum = {0};
    bool is_quant = weights_slot_is_quant(slot);
    for (int layer = -1; layer < s->config->n_layers; layer++) {
        if (!weights_slot_exists(s->config, slot, layer))
            continue;
        if (s->weights) {
            WeightInfo info = weights_info(s->weights, slot, layer);
            sum_add(&sum, (QuantSpec){info.bits, info.group}, info.n_bytes,
                    is_quant ? ST_U32 : ST_BF16);
            continue;
        }
        const FolderBound *bound = folder_bound(s->folder, slot, layer);
        if (!bound->main.tensor)
            continue; // refused
        char name[128];
        weights_slot_name(name, sizeof name, slot, layer);
        QuantSpec spec = {0};
        if (is_quant)
            spec = quant_table_find(s->folder->quant, str_view(name, strlen(name)));
        sum_add(&sum, spec, folder_stored_bytes(bound), bound->main.tensor->dtype);
    }
    return sum;
}

static json_t *report_slot(const Subject *s, WeightSlot slot, uint64_t *n_bytes) {
    SlotSum sum = sum_slot(s, slot);
    if (sum.n == 0)
        return NULL;
    *n_bytes += sum.n_bytes;
    int32_t n_experts, n, k;
    weights_slot_shape(s->config, slot, &n_experts, &n, &k);
    json_t *dtypes = json_array();
    for (int d = 0; d < ST_N; d++)
        if (sum.dtypes >> d & 1)
            json_array_append_new(dtypes, json_string(safetensors_dtype_name((SafetensorsDtype)d)));
    return json_pack("{s:s, s:i, s:[i, i, i], s:i, s:i, s:o, s:I}", "slot",
                     weights_slot_inner_name(slot), "n", sum.n, "shape", n_experts, n, k, "bits",
                     sum.bits, "group", sum.group, "dtypes", dtypes, "bytes",
                     (json_int_t)sum.n_bytes);
}

static json_t *report_files(const Folder *f, uint64_t *n_bytes) {
    json_t *files = json_array();
    for (int32_t i = 0; f && i < f->n_files; i++) {
        const Safetensors *file = f->files[i];
        const SafetensorsTable *t = &file->table;
        *n_bytes += t->tensor_bytes;
        json_array_append_new(files,
                              json_pack("{s:s, s:I, s:I, s:I, s:I}", "name",
                                        f->has_index ? f->index.files[i] : "model.safetensors",
                                        "bytes", (json_int_t)file->size, "header_bytes",
                                        (json_int_t)t->header_bytes, "tensors", (json_int_t)t->n,
                                        "tensor_bytes", (json_int_t)t->tensor_bytes));
    }
    return files;
}

static void fill_report(json_t *report, const Subject *s) {
    const Folder *f = s->folder;
    uint64_t text_bytes = 0, file_bytes = 0;
    json_t *slots = json_array();
    for (int i = 0; i < SLOT_N; i++) {
        json_t *slot = report_slot(s, (WeightSlot)i, &text_bytes);
        if (slot)
            json_array_append_new(slots, slot);
    }
    json_t *files = report_files(f, &file_bytes);
    json_object_set_new(report, "form", json_string(!f ? "synth" : f->is_raw ? "raw" : "mlx"));
    json_object_set_new(report, "config", report_config(s->config));
    json_object_set_new(report, "parameters",
                        json_integer((json_int_t)count_parameters(s->config, false)));
    json_object_set_new(report, "active_parameters",
                        json_integer((json_int_t)count_parameters(s->config, true)));
    json_object_set_new(report, "slots", slots);
    json_object_set_new(report, "bytes",
                        json_pack("{s:I, s:I, s:I, s:I}", "text", (json_int_t)text_bytes, "vision",
                                  (json_int_t)(f ? f->vision.n_bytes : 0), "mtp",
                                  (json_int_t)(f ? f->mtp.n_bytes : 0), "total",
                                  (json_int_t)(f ? file_bytes : text_bytes)));
    json_object_set_new(report, "files", files);
}

/* ---- the two kinds of models ---- */

static Status inspect_synth(json_t *report, const char *spec, const Log *log, Err *err) {
    Weights *w;
    TRY(weights_open(&w, spec, log, err));
    fill_report(report, &(Subject){.config = weights_config(w), .weights = w});
    weights_close(w);
    return STATUS_OK;
}

static Status inspect_folder(json_t *report, json_t *refused, const char *dir, const Log *log,
                             Err *err) {
    Folder *f;
    FolderRefusals refusals = {refuse_text, refused};
    TRY(folder_open(&f, dir, &refusals, log, err));
    fill_report(report, &(Subject){.config = &f->config, .folder = f});
    folder_close(f);
    return STATUS_OK;
}

Status inspect_report(json_t **out, const char *spec, Err *err) {
    (void)json_take_alloc_failure();
    json_t *report = json_object(), *refused = json_array(), *notes = json_array();
    json_object_set_new(report, "model", json_clean_string(spec));
    Log log = {note_line, notes};
    Err own = {0};
    StrView text = str_view(spec, strlen(spec));
    Status status = str_starts(text, STR("synth:"))
                        ? inspect_synth(report, spec, &log, &own)
                        : inspect_folder(report, refused, spec, &log, &own);
    if (status != STATUS_OK && status != STATUS_MEMORY)
        refuse_text(refused, status, own.text);
    json_object_set_new(report, "notes", notes);
    json_object_set_new(report, "refused", refused);
    bool has_failed = json_take_alloc_failure();
    if (status == STATUS_MEMORY || has_failed) {
        json_decref(report);
        return err_set(err, STATUS_MEMORY, "%s", has_failed ? "out of memory" : own.text);
    }
    *out = report;
    return STATUS_OK;
}
