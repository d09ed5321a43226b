// SPDX-License-Identifier: Apache-2.0
/* folder.c - from a folder's files to slots, with every tensor accounted for.
 *
 * Path:     weights.c opens it as a WeightsSource; inspect.c reports on it.
 * Owns:     a Folder owns its open files and tables.  Thread: open and close from one; reads from
 *           any, at once.
 * Not here: checks of the numbers that are read (weights.c). */
#include "checkpoint/folder.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sysmem.h"

#include <stdlib.h>

enum {
    NAME_BYTES = 128,        // the longest name of a slot's tensor takes 68
    CACHE_BYTES = 256 << 20, // of page cache to use where memory is short
};

/* ---- small files ---- */

/* A file of the folder; is_there NULL: it must exist. Free path with mem_free. */
static Status read_member(StrBuf *text, char **path, bool *is_there, const char *dir,
                          const char *name, size_t cap, Err *err) {
    char *full = file_join(dir, name);
    if (!full)
        return err_memory(err, name, strlen(dir));
    Err own = {0};
    Status status = file_read_regular(text, full, cap, &own);
    if (is_there)
        *is_there = status == STATUS_OK;
    if (status != STATUS_OK) {
        mem_free(full);
        if (is_there && status == STATUS_NOT_FOUND)
            return STATUS_OK;
        return err_set(err, status, "%s", own.text);
    }
    *path = full;
    return STATUS_OK;
}

static Status read_configs(Folder *f, Err *err) {
    StrBuf text = {0};
    char *path = NULL;
    TRY(read_member(&text, &path, NULL, f->dir, "config.json", LIMIT_CONFIG_BYTES, err));
    Status status = config_parse(&f->config, &f->quant, strbuf_view(&text), path, err);
    strbuf_fini(&text);
    mem_free(path);
    TRY(status);
    bool is_there = false;
    text = (StrBuf){0};
    TRY(read_member(&text, &path, &is_there, f->dir, "generation_config.json", LIMIT_CONFIG_BYTES,
                    err));
    if (!is_there)
        return STATUS_OK;
    status = config_parse_generation(&f->config, strbuf_view(&text), path, err);
    strbuf_fini(&text);
    mem_free(path);
    return status;
}

/* ---- shards ---- */

static Status open_shard(Folder *f, const char *name, Err *err) {
    char *path = file_join(f->dir, name);
    if (!path)
        return err_memory(err, name, strlen(f->dir));
    Status status = safetensors_open(&f->files[f->n_files], path, err);
    mem_free(path);
    if (status == STATUS_OK)
        f->n_files++;
    return status;
}

static Status open_shards(Folder *f, Err *err) {
    StrBuf text = {0};
    char *path = NULL;
    TRY(read_member(&text, &path, &f->has_index, f->dir, "model.safetensors.index.json",
                    LIMIT_INDEX_BYTES, err));
    Status status = STATUS_OK;
    if (f->has_index)
        status = ckpt_index_parse(&f->index, &f->arena, strbuf_view(&text), path, err);
    strbuf_fini(&text);
    mem_free(path);
    TRY(status);
    int32_t n = f->has_index ? f->index.n_files : 1;
    f->files = arena_array(&f->arena, (size_t)n, sizeof(Safetensors *));
    if (!f->files)
        return err_memory(err, f->dir, (size_t)n * sizeof(Safetensors *));
    for (int32_t i = 0; i < n; i++) {
        status = open_shard(f, f->has_index ? f->index.files[i] : "model.safetensors", err);
        if (status == STATUS_NOT_FOUND && !f->has_index)
            return err_set(err, status,
                           "%s: expected model.safetensors.index.json or model.safetensors, found "
                           "neither",
                           f->dir);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- binding ---- */

/* A tensor of any shard. */
typedef struct Item {
    StrView key; // the name without its scope
    const Safetensors *file;
    const SafetensorsTensor *tensor;
    bool is_used;
} Item;

/* What binding needs; lives only while the folder is opened. */
typedef struct Binder {
    Folder *f;
    Item *items; // [n] by key in ascending byte order
    size_t n;
    const FolderRefusals *refusals;
    int32_t n_raw_convs, n_converted_convs;
} Binder;

static int compare_items(const void *a, const void *b) {
    return str_compare(((const Item *)a)->key, ((const Item *)b)->key);
}

/* Hands a tensor's fault over and goes on, or stops. */
static Status refuse(const Binder *b, Status status, Err *err) {
    if (status == STATUS_OK || !b->refusals || status == STATUS_MEMORY)
        return status;
    b->refusals->add(b->refusals->ctx, status, err->text);
    *err = (Err){0};
    return STATUS_OK;
}

static Status collect_items(Binder *b, Err *err) {
    size_t n = 0;
    for (int32_t i = 0; i < b->f->n_files; i++)
        n += b->f->files[i]->table.n;
    b->items = mem_zalloc(n, sizeof *b->items);
    if (!b->items)
        return err_memory(err, b->f->dir, n * sizeof *b->items);
    for (int32_t i = 0; i < b->f->n_files; i++) {
        const Safetensors *file = b->f->files[i];
        for (size_t j = 0; j < file->table.n; j++) {
            const SafetensorsTensor *t = &file->table.tensors[j];
            b->items[b->n++] =
                (Item){.key = quant_table_strip_scope(t->name), .file = file, .tensor = t};
        }
    }
    if (b->n)
        qsort(b->items, b->n, sizeof *b->items, compare_items);
    for (size_t i = 1; i < b->n; i++) {
        const Item *x = &b->items[i - 1], *y = &b->items[i];
        if (str_equal(x->key, y->key))
            TRY(refuse(b,
                       err_set(err, STATUS_FORMAT,
                               "tensor %.180s occurs twice, in %.140s and %.140s",
                               y->tensor->name.ptr, x->file->path, y->file->path),
                       err));
    }
    return STATUS_OK;
}

/* Index and headers must tell the same story. */
static Status check_index(Binder *b, Err *err) {
    const Folder *f = b->f;
    for (size_t i = 0; i < f->index.n; i++) {
        const CkptIndexEntry *e = &f->index.entries[i];
        if (!safetensors_find(f->files[e->file], e->tensor))
            TRY(refuse(b,
                       err_set(err, STATUS_FORMAT,
                               "%s: tensor %.200s is missing, which the index places there",
                               f->files[e->file]->path, e->tensor.ptr),
                       err));
    }
    for (int32_t i = 0; i < f->n_files; i++) {
        for (size_t j = 0; j < f->files[i]->table.n; j++) {
            StrView name = f->files[i]->table.tensors[j].name;
            int32_t place = ckpt_index_find(&f->index, name);
            if (place == i)
                continue;
            TRY(refuse(b,
                       err_set(err, STATUS_FORMAT, "%s: tensor %.200s: the index places it in %s",
                               f->files[i]->path, name.ptr,
                               place < 0 ? "no file" : f->index.files[place]),
                       err));
        }
    }
    return STATUS_OK;
}

static Item *find_item(const Binder *b, const char *key) {
    Item wanted = {.key = str_view(key, strlen(key))};
    return b->n ? bsearch(&wanted, b->items, b->n, sizeof *b->items, compare_items) : NULL;
}

static FolderPart take(Item *item) {
    item->is_used = true;
    return (FolderPart){item->file, item->tensor};
}

/* A slot's key, "layers.3.mlp.gate". */
static void slot_key(char out[NAME_BYTES], WeightSlot slot, int layer) {
    if (layer < 0)
        snprintf(out, NAME_BYTES, "%s", weights_slot_inner_name(slot));
    else
        snprintf(out, NAME_BYTES, "layers.%d.%s", layer, weights_slot_inner_name(slot));
}

static Status missing(const Folder *f, WeightSlot slot, int layer, const char *suffix, Err *err) {
    char name[NAME_BYTES];
    weights_slot_name(name, sizeof name, slot, layer);
    return err_set(err, STATUS_FORMAT, "%s: tensor %s%s is missing", f->dir, name, suffix);
}

static bool has_shape(const SafetensorsTensor *t, const uint64_t *shape, int rank) {
    bool is_same = t->rank == rank;
    for (int i = 0; i < rank && is_same; i++)
        is_same = t->shape[i] == shape[i];
    return is_same;
}

/* note: what the shape follows from. */
static Status expect_shape(const Item *item, SafetensorsDtype dtype, const uint64_t *shape,
                           int rank, const char *note, Err *err) {
    const SafetensorsTensor *t = item->tensor;
    if (t->dtype == dtype && has_shape(t, shape, rank))
        return STATUS_OK;
    char expected[96], found[128];
    safetensors_shape_text(expected, sizeof expected, shape, rank);
    safetensors_shape_text(found, sizeof found, t->shape, t->rank);
    return err_set(err, STATUS_FORMAT, "%s: tensor %s: expected %s %s (%s), found %s %s",
                   item->file->path, t->name.ptr, safetensors_dtype_name(dtype), expected, note,
                   safetensors_dtype_name(t->dtype), found);
}

/* The three tensors of a matrix. */
static Status find_triple(const Binder *b, Item *out[3], WeightSlot slot, int layer, Err *err) {
    static const char *const SUFFIXES[3] = {".weight", ".scales", ".biases"};
    char key[NAME_BYTES], full[NAME_BYTES + 16];
    slot_key(key, slot, layer);
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof full, "%s%s", key, SUFFIXES[i]);
        out[i] = find_item(b, full);
    }
    if (out[0] && !out[1] && out[0]->tensor->dtype != ST_U32)
        return err_set(
            err, STATUS_UNSUPPORTED,
            "%s: tensor %s: expected U32 codes with scales and biases, found unquantised "
            "%s",
            out[0]->file->path, out[0]->tensor->name.ptr,
            safetensors_dtype_name(out[0]->tensor->dtype));
    for (int i = 0; i < 3; i++)
        if (!out[i])
            return missing(b->f, slot, layer, SUFFIXES[i], err);
    return STATUS_OK;
}

static Status bind_matrix(Binder *b, WeightSlot slot, int layer, Err *err) {
    const Folder *f = b->f;
    Item *items[3];
    TRY(find_triple(b, items, slot, layer, err));
    char name[NAME_BYTES];
    weights_slot_name(name, sizeof name, slot, layer);
    QuantSpec spec = quant_table_find(f->quant, str_view(name, strlen(name)));
    FolderBound bound = {take(items[0]), take(items[1]), take(items[2])};
    if (spec.bits == 0)
        return err_set(
            err, STATUS_FORMAT,
            "%s/config.json: quantization: %s: expected bits and group_size as for tensor "
            "%s.scales, found false",
            f->dir, name, name);
    int32_t n_experts, n, k;
    weights_slot_shape(&f->config, slot, &n_experts, &n, &k);
    if (k % spec.group != 0)
        return err_set(
            err, STATUS_UNSUPPORTED,
            "%s/config.json: quantization: %s: expected groups that divide its %d inputs, "
            "found %d",
            f->dir, name, k, spec.group);
    bool is_stack = slot == SLOT_EXPERT_GATE || slot == SLOT_EXPERT_UP || slot == SLOT_EXPERT_DOWN;
    uint64_t shape[3] = {(uint64_t)n_experts, (uint64_t)n, (uint64_t)k * (uint64_t)spec.bits / 32};
    const uint64_t *first = is_stack ? shape : shape + 1;
    int rank = is_stack ? 3 : 2;
    char note[96];
    snprintf(note, sizeof note, "%d inputs, %d bits and groups of %d by the config", k, spec.bits,
             spec.group);
    TRY(expect_shape(items[0], ST_U32, first, rank, note, err));
    shape[2] = (uint64_t)(k / spec.group);
    TRY(expect_shape(items[1], ST_BF16, first, rank, note, err));
    TRY(expect_shape(items[2], ST_BF16, first, rank, note, err));
    f->bound[(layer + 1) * SLOT_N + (int)slot] = bound;
    return STATUS_OK;
}

/* The convolution in either form; both have the same order in memory. */
static Status check_conv(Binder *b, const Item *item, uint64_t n, Err *err) {
    const uint64_t converted[3] = {n, CONV_TAPS, 1}, raw[3] = {n, 1, CONV_TAPS};
    bool is_raw = has_shape(item->tensor, raw, 3);
    if (!is_raw)
        TRY(expect_shape(item, item->tensor->dtype, converted, 3, "channels, taps, 1", err));
    b->n_raw_convs += is_raw;
    b->n_converted_convs += !is_raw;
    if (b->n_raw_convs > 0 && b->n_converted_convs > 0)
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: expected the last dimensions of the other layers' "
                       "convolutions, found 1 and 4 exchanged",
                       item->file->path, item->tensor->name.ptr);
    return STATUS_OK;
}

static Status bind_plain(Binder *b, WeightSlot slot, int layer, Err *err) {
    const Folder *f = b->f;
    char key[NAME_BYTES], full[NAME_BYTES + 16];
    slot_key(key, slot, layer);
    const char *suffix = slot == SLOT_GDN_A_LOG || slot == SLOT_GDN_DT_BIAS ? "" : ".weight";
    snprintf(full, sizeof full, "%s%s", key, suffix);
    Item *item = find_item(b, full);
    if (!item)
        return missing(f, slot, layer, suffix, err);
    FolderBound bound = {.main = take(item)};
    const SafetensorsTensor *t = item->tensor;
    int32_t n_experts, n, k;
    weights_slot_shape(&f->config, slot, &n_experts, &n, &k);
    if (t->dtype != ST_BF16 && t->dtype != ST_F32 && t->dtype != ST_F16)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: tensor %s: expected BF16, F32 or F16, found %s", item->file->path,
                       t->name.ptr, safetensors_dtype_name(t->dtype));
    if (slot == SLOT_GDN_CONV)
        TRY(check_conv(b, item, (uint64_t)n, err));
    else
        TRY(expect_shape(item, t->dtype, (const uint64_t[]){(uint64_t)n}, 1, "by the config", err));
    f->bound[(layer + 1) * SLOT_N + (int)slot] = bound;
    return STATUS_OK;
}

/* ---- what is left over ---- */

static bool is_vision(StrView name) {
    return str_starts(name, STR("vision_tower.")) || str_starts(name, STR("model.visual."));
}

static bool is_mtp(StrView name) {
    return str_starts(name, STR("mtp.")) || str_starts(name, STR("language_model.mtp."));
}

static Status check_leftovers(Binder *b, Err *err) {
    Folder *f = b->f;
    for (size_t i = 0; i < b->n; i++) {
        const Item *item = &b->items[i];
        StrView name = item->tensor->name;
        if (item->is_used)
            continue;
        FolderSkipped *skipped = is_vision(name) ? &f->vision : is_mtp(name) ? &f->mtp : NULL;
        if (skipped) {
            skipped->n++;
            skipped->n_bytes += item->tensor->n_bytes;
            continue;
        }
        const char *why = f->config.is_tied && str_starts(item->key, STR("lm_head."))
                              ? "the config ties the output head to embed_tokens"
                              : "no part of the model that config.json describes";
        TRY(refuse(b,
                   err_set(err, STATUS_FORMAT, "%s: tensor %.200s is left over: %s",
                           item->file->path, name.ptr, why),
                   err));
    }
    return STATUS_OK;
}

static Status bind_all(Binder *b, Err *err) {
    Folder *f = b->f;
    size_t n_bound = (size_t)(f->config.n_layers + 1) * SLOT_N;
    f->bound = arena_array(&f->arena, n_bound, sizeof *f->bound);
    if (!f->bound)
        return err_memory(err, f->dir, n_bound * sizeof *f->bound);
    TRY(collect_items(b, err));
    if (f->has_index)
        TRY(check_index(b, err));
    for (int layer = -1; layer < f->config.n_layers; layer++) {
        for (int s = 0; s < SLOT_N; s++) {
            WeightSlot slot = (WeightSlot)s;
            if (!weights_slot_exists(&f->config, slot, layer))
                continue;
            TRY(refuse(b,
                       weights_slot_is_quant(slot) ? bind_matrix(b, slot, layer, err)
                                                   : bind_plain(b, slot, layer, err),
                       err));
        }
    }
    TRY(check_leftovers(b, err));
    f->is_raw = b->n_raw_convs > 0;
    if (b->n_raw_convs + b->n_converted_convs == 0) // no such layer: the names must do
        for (size_t i = 0; i < b->n && !f->is_raw; i++)
            f->is_raw = str_starts(b->items[i].tensor->name, STR("model.language_model."));
    return STATUS_OK;
}

/* ---- open and close ---- */

/* True when weights and the pages of their files do not fit into memory side by side. Reading then
 * gives the pages back itself; the system would find others to throw out first. */
static bool is_memory_short(uint64_t n_bytes) {
    uint64_t total = n_bytes > CACHE_BYTES ? sysmem_total() : 0;
    return total > 0 && n_bytes > total / 2;
}

static void tell(const Folder *f, uint64_t n_bytes, const Log *log) {
    if (f->vision.n)
        log_printf(log, LOG_INFO, "%s: skipped %zu tensors of the vision tower, %.1f MB", f->dir,
                   f->vision.n, (double)f->vision.n_bytes * 1e-6);
    if (f->mtp.n)
        log_printf(log, LOG_INFO,
                   "%s: skipped %zu mtp.* tensors (multi-token prediction is not used), %.1f MB",
                   f->dir, f->mtp.n, (double)f->mtp.n_bytes * 1e-6);
    if (f->is_raw)
        log_printf(log, LOG_INFO, "%s: norms are zero-centred (a raw checkpoint), 1 is added",
                   f->dir);
    if (f->has_index && f->index.total_size >= 0 && (uint64_t)f->index.total_size != n_bytes)
        log_printf(log, LOG_WARNING,
                   "%s/model.safetensors.index.json: metadata.total_size is %lld, the tensors take "
                   "%llu bytes",
                   f->dir, (long long)f->index.total_size, (unsigned long long)n_bytes);
}

Status folder_open(Folder **out, const char *dir, const FolderRefusals *refusals, const Log *log,
                   Err *err) {
    if (!*dir)
        return err_set(err, STATUS_INVALID,
                       "model: expected a folder or synth:SHAPE, found an empty name");
    Err own = {0};
    Folder *f = mem_zalloc(1, sizeof *f);
    if (!f)
        return err_memory(err, dir, sizeof *f);
    Binder binder = {.f = f, .refusals = refusals};
    Status status = STATUS_OK;
    f->dir = arena_strdup(&f->arena, dir, strlen(dir));
    if (!f->dir) {
        status = err_memory(&own, dir, strlen(dir));
        goto fail;
    }
    TRY_GOTO(status, read_configs(f, &own));
    TRY_GOTO(status, open_shards(f, &own));
    TRY_GOTO(status, bind_all(&binder, &own));
    mem_free(binder.items);
    uint64_t n_bytes = 0;
    for (int32_t i = 0; i < f->n_files; i++)
        n_bytes += f->files[i]->table.tensor_bytes;
    f->is_cache_dropped = is_memory_short(n_bytes);
    tell(f, n_bytes, log);
    *out = f;
    return STATUS_OK;
fail:
    mem_free(binder.items);
    folder_close(f);
    return err_set(err, status, "%s", own.text);
}

void folder_close(Folder *f) {
    if (!f)
        return;
    for (int32_t i = 0; i < f->n_files; i++)
        safetensors_close(f->files[i]);
    quant_table_close(f->quant);
    arena_fini(&f->arena);
    mem_free(f);
}

/* ---- reads ---- */

const FolderBound *folder_bound(const Folder *f, WeightSlot slot, int layer) {
    return &f->bound[(layer + 1) * SLOT_N + (int)slot];
}

uint64_t folder_stored_bytes(const FolderBound *bound) {
    const SafetensorsTensor *parts[3] = {bound->main.tensor, bound->scales.tensor,
                                         bound->biases.tensor};
    uint64_t n = 0;
    for (int i = 0; i < 3; i++)
        n += parts[i] ? parts[i]->n_bytes : 0;
    return n;
}

/* Gives the pages of all files back after each CACHE_BYTES that were read. Not behind each read:
 * the system keeps pages in pieces of up to some megabytes and drops only whole ones. */
static void drop_cache(Folder *f, uint64_t n_bytes) {
    uint64_t before = atomic_fetch_add(&f->n_bytes_read, n_bytes);
    if (before / CACHE_BYTES == (before + n_bytes) / CACHE_BYTES)
        return;
    for (int32_t i = 0; i < f->n_files; i++)
        safetensors_drop_pages(f->files[i]);
}

/* Rows [row, row + n_rows) of a tensor that has rows of equal size. */
static Status read_rows(Folder *f, const FolderPart *part, uint64_t row_bytes, uint64_t row,
                        uint64_t n_rows, void *out, Err *err) {
    uint64_t off = row * row_bytes, len = n_rows * row_bytes;
    TRY(safetensors_read_bytes(part->file, part->tensor, out, (size_t)len, off, err));
    if (f->is_cache_dropped)
        drop_cache(f, len);
    return STATUS_OK;
}

static Status source_read_quant(void *self, WeightSlot slot, int layer, int64_t row, int64_t n_rows,
                                uint32_t *q, uint16_t *scale, uint16_t *bias, Err *err) {
    Folder *f = self;
    const FolderBound *b = folder_bound(f, slot, layer);
    CHECK(b->main.tensor && b->scales.tensor && b->biases.tensor);
    int32_t n_experts, n, k;
    weights_slot_shape(&f->config, slot, &n_experts, &n, &k);
    uint64_t rows = (uint64_t)n_experts * (uint64_t)n;
    uint64_t code_bytes = b->main.tensor->n_bytes / rows,
             scale_bytes = b->scales.tensor->n_bytes / rows;
    uint64_t first = (uint64_t)row, count = (uint64_t)n_rows;
    TRY(read_rows(f, &b->main, code_bytes, first, count, q, err));
    TRY(read_rows(f, &b->scales, scale_bytes, first, count, scale, err));
    return read_rows(f, &b->biases, scale_bytes, first, count, bias, err);
}

static Status source_read_plain(void *self, WeightSlot slot, int layer, float *out, Err *err) {
    const Folder *f = self;
    const FolderBound *b = folder_bound(f, slot, layer);
    CHECK(b->main.tensor);
    TRY(safetensors_read_f32(b->main.file, b->main.tensor, out, err));
    if (f->is_raw && weights_slot_is_centred_norm(slot))
        for (uint64_t i = 0; i < b->main.tensor->n_elems; i++)
            out[i] += 1.0f;
    return STATUS_OK;
}

static void source_close(void *self) { folder_close(self); }

void folder_source(WeightsSource *out) {
    *out = (WeightsSource){
        .read_quant = source_read_quant, .read_plain = source_read_plain, .close = source_close};
}
