// SPDX-License-Identifier: Apache-2.0
/* weights.c - one door to a model's numbers, whatever they come from; nothing that is not finite
 * leaves it.
 *
 * Path:     cli opens Weights -> backend_open reads every slot once -> weights_close.
 * Owns:     the source (a folder or a random model).  Thread: open and close from one; reads from
 *           any, at once.
 * Not here: files (folder.c); random numbers (synth.c). */
#include "checkpoint/weights.h"

#include "base/bf16.h"
#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/synth.h"
#include "checkpoint/weights_source.h"

#include <math.h>
#include <stdatomic.h>

struct Weights {
    ModelConfig config;
    WeightsSource source;
    void *self;           // of the source
    const Folder *folder; // self when it is a folder, else NULL
    WeightInfo *infos;    // [(n_layers + 1) * SLOT_N]
    uint64_t total_bytes;
    Log log;
    atomic_flag has_warned; // about norm gains: once is enough
};

void weights_slot_name(char *out, size_t size, WeightSlot slot, int layer) {
    const char *name = weights_slot_inner_name(slot);
    if (layer >= 0)
        snprintf(out, size, "language_model.model.layers.%d.%s", layer, name);
    else
        snprintf(out, size, "language_model.%s%s", slot == SLOT_HEAD ? "" : "model.", name);
}

static QuantSpec slot_spec(const Weights *w, WeightSlot slot, int layer) {
    if (!weights_slot_is_quant(slot))
        return (QuantSpec){0};
    if (!w->folder)
        return synth_quant_spec(slot);
    char name[128];
    weights_slot_name(name, sizeof name, slot, layer);
    return quant_table_find(w->folder->quant, str_view(name, strlen(name)));
}

static WeightInfo make_info(const Weights *w, WeightSlot slot, int layer) {
    WeightInfo info = {0};
    weights_slot_shape(&w->config, slot, &info.n_experts, &info.n, &info.k);
    QuantSpec spec = slot_spec(w, slot, layer);
    info.bits = spec.bits;
    info.group = spec.group;
    uint64_t n_elems = (uint64_t)info.n_experts * (uint64_t)info.n * (uint64_t)info.k;
    if (w->folder)
        info.n_bytes = folder_stored_bytes(folder_bound(w->folder, slot, layer));
    else if (info.bits)
        info.n_bytes = n_elems * (uint64_t)info.bits / 8 + n_elems / (uint64_t)info.group * 4;
    else
        info.n_bytes = n_elems * 2;
    return info;
}

static Status fill_infos(Weights *w, Err *err) {
    size_t n = (size_t)(w->config.n_layers + 1) * SLOT_N;
    w->infos = mem_zalloc(n, sizeof *w->infos);
    if (!w->infos)
        return err_memory(err, "the table of slots", n * sizeof *w->infos);
    for (int layer = -1; layer < w->config.n_layers; layer++)
        for (int s = 0; s < SLOT_N; s++) {
            if (!weights_slot_exists(&w->config, (WeightSlot)s, layer))
                continue;
            WeightInfo *info = &w->infos[(layer + 1) * SLOT_N + s];
            *info = make_info(w, (WeightSlot)s, layer);
            w->total_bytes += info->n_bytes;
        }
    return STATUS_OK;
}

static Status open_source(Weights *w, const char *spec, const Log *log, Err *err) {
    StrView text = str_view(spec, strlen(spec)), head = STR("synth:");
    if (str_starts(text, head))
        return synth_open(&w->source, &w->self, &w->config,
                          str_view(text.ptr + head.len, text.len - head.len), err);
    Folder *f = NULL;
    TRY(folder_open(&f, spec, NULL, log, err));
    w->folder = f;
    w->self = f;
    w->config = f->config;
    folder_source(&w->source);
    return STATUS_OK;
}

Status weights_open(Weights **out, const char *spec, const Log *log, Err *err) {
    Weights *w = mem_zalloc(1, sizeof *w);
    if (!w)
        return err_memory(err, spec, sizeof *w);
    atomic_flag_clear(&w->has_warned);
    if (log)
        w->log = *log;
    Status status = STATUS_OK;
    TRY_GOTO(status, open_source(w, spec, log, err));
    TRY_GOTO(status, fill_infos(w, err));
    *out = w;
    return STATUS_OK;
fail:
    weights_close(w);
    return status;
}

void weights_close(Weights *w) {
    if (!w)
        return;
    if (w->source.close)
        w->source.close(w->self);
    mem_free(w->infos);
    mem_free(w);
}

const ModelConfig *weights_config(const Weights *w) { return &w->config; }
const char *weights_dir(const Weights *w) { return w->folder ? w->folder->dir : NULL; }
uint64_t weights_total_bytes(const Weights *w) { return w->total_bytes; }

bool weights_has(const Weights *w, WeightSlot slot, int layer) {
    return weights_slot_exists(&w->config, slot, layer);
}

WeightInfo weights_info(const Weights *w, WeightSlot slot, int layer) {
    CHECK(weights_slot_exists(&w->config, slot, layer));
    return w->infos[(layer + 1) * SLOT_N + (int)slot];
}

/* ---- reads ---- */

/* First element that is NaN or infinite; n: none. One pass that compilers vectorise: all scales of
 * the full model are 1.2 GB. */
static int64_t find_bad_bf16(const uint16_t *x, int64_t n) {
    uint16_t worst = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7fff;
        worst = magnitude > worst ? magnitude : worst;
    }
    int64_t i = 0;
    if (worst < 0x7f80)
        return n;
    while ((x[i] & 0x7fff) < 0x7f80)
        i++;
    return i;
}

/* Puts the file that a slot's tensor lies in before an error about its numbers. */
static Status blame_file(const Weights *w, const FolderPart *part, Status status, Err *err) {
    if (status != STATUS_OK && w->folder)
        err_prefix(err, "%.200s", part->file->path);
    return status;
}

/* part: "scales" or "biases". */
static Status check_groups(WeightSlot slot, int layer, const char *part, const uint16_t *x,
                           int64_t row, int64_t n_rows, int64_t n_groups, Err *err) {
    int64_t bad = find_bad_bf16(x, n_rows * n_groups);
    if (bad == n_rows * n_groups)
        return STATUS_OK;
    char name[128];
    weights_slot_name(name, sizeof name, slot, layer);
    return err_set(err, STATUS_FORMAT,
                   "tensor %s.%s: expected finite numbers, found %s in row %lld, group %lld", name,
                   part, isnan(bf16_to_f32(x[bad])) ? "NaN" : "infinity",
                   (long long)(row + bad / n_groups), (long long)(bad % n_groups));
}

Status weights_read_quant(const Weights *w, WeightSlot slot, int layer, int64_t row, int64_t n_rows,
                          uint32_t *q, uint16_t *scale, uint16_t *bias, Err *err) {
    WeightInfo info = weights_info(w, slot, layer);
    int64_t rows = (int64_t)info.n_experts * info.n;
    CHECK(info.bits != 0 && row >= 0 && row <= rows && n_rows >= 0 && n_rows <= rows - row);
    TRY(w->source.read_quant(w->self, slot, layer, row, n_rows, q, scale, bias, err));
    int64_t n_groups = info.k / info.group;
    const FolderBound *b = w->folder ? folder_bound(w->folder, slot, layer) : NULL;
    TRY(blame_file(w, b ? &b->scales : NULL,
                   check_groups(slot, layer, "scales", scale, row, n_rows, n_groups, err), err));
    return blame_file(w, b ? &b->biases : NULL,
                      check_groups(slot, layer, "biases", bias, row, n_rows, n_groups, err), err);
}

/* Gains that look as if the 1 of the zero-centred norms was left out or added twice. The mean alone
 * cannot tell: a trained layer may well have small or large gains. But raw values lie on both sides
 * of 0, where a gain is hardly ever, and with the 1 added twice no gain is left below 1. Real
 * models may still be unusual, so this is said and not refused. */
static void judge_gain(const Weights *w, const char *name, const float *gain, int64_t n) {
    double sum = 0, least = INFINITY;
    int64_t n_negative = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += gain[i];
        least = gain[i] < least ? gain[i] : least;
        n_negative += gain[i] < 0;
    }
    double mean = sum / (double)n;
    bool is_raw = mean < 0.5 && n_negative >= n / 8;
    bool is_twice = mean > 1.75 && least >= 1;
    if (!is_raw && !is_twice)
        return;
    // The flag is the only thing that a read changes, and it is atomic.
    if (!atomic_flag_test_and_set(&((Weights *)w)->has_warned))
        log_printf(&w->log, LOG_WARNING,
                   "tensor %s.weight: mean gain %.3g, %s: the 1 of zero-centred norms seems %s",
                   name, mean, is_raw ? "many of them negative" : "none of them below 1",
                   is_raw ? "to be missing" : "added twice");
}

Status weights_read_plain(const Weights *w, WeightSlot slot, int layer, float *out, Err *err) {
    WeightInfo info = weights_info(w, slot, layer);
    CHECK(info.bits == 0);
    TRY(w->source.read_plain(w->self, slot, layer, out, err));
    char name[128];
    weights_slot_name(name, sizeof name, slot, layer);
    int64_t n = (int64_t)info.n * info.k;
    const FolderBound *b = w->folder ? folder_bound(w->folder, slot, layer) : NULL;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return blame_file(
                w, b ? &b->main : NULL,
                err_set(err, STATUS_FORMAT,
                        "tensor %s%s: expected finite numbers, found %s at element %lld", name,
                        slot == SLOT_GDN_A_LOG || slot == SLOT_GDN_DT_BIAS ? "" : ".weight",
                        isnan(out[i]) ? "NaN" : "infinity", (long long)i),
                err);
    if (slot == SLOT_INPUT_NORM)
        judge_gain(w, name, out, n);
    return STATUS_OK;
}
