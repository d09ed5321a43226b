// SPDX-License-Identifier: Apache-2.0
/* safetensors.c - header checks, and reads that never assume an alignment in the file.
 *
 * Path:     folder.c opens the shards of a checkpoint; tests and verbs open single files.
 * Owns:     a Safetensors owns its descriptor and its table.  Thread: open and close from one;
 *           reads from any, at once.
 * Not here: which tensors a model needs (folder.c); writing (safetensors_write.c). */
#define _POSIX_C_SOURCE 200809L // posix_fadvise
#include "checkpoint/safetensors.h"

#include "base/bf16.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>

// Numbers of the format are little-endian and are read as they lie.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian machines only");

enum {
    PREFIX_BYTES = 8, // the header's length
    PIECE_BYTES = 32768,
};

static const struct {
    const char *name;
    uint32_t size;
} DTYPES[ST_N] = {
#define X(name, size) [ST_##name] = {#name, size},
    SAFETENSORS_DTYPES(X)
#undef X
};

const char *safetensors_dtype_name(SafetensorsDtype dtype) { return DTYPES[dtype].name; }
uint32_t safetensors_dtype_size(SafetensorsDtype dtype) { return DTYPES[dtype].size; }

void safetensors_shape_text(char *out, size_t size, const uint64_t *shape, int rank) {
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

/* ---- the header ---- */

static Status header_dtype(SafetensorsTensor *t, const json_t *v, const char *path, Err *err) {
    StrView text = json_text(v);
    for (int i = 0; i < ST_N; i++)
        if (str_equal(text, str_view(DTYPES[i].name, strlen(DTYPES[i].name)))) {
            t->dtype = (SafetensorsDtype)i;
            return STATUS_OK;
        }
    if (!json_is_string(v))
        return err_set(err, STATUS_FORMAT, "%s: tensor %s: dtype: expected a string, found %s",
                       path, t->name.ptr, json_type_text(v));
    return err_set(err, STATUS_UNSUPPORTED,
                   "%s: tensor %s: dtype: expected BF16, U32, F32 or another known one, found "
                   "\"%.32s\"",
                   path, t->name.ptr, text.ptr);
}

static Status header_shape(SafetensorsTensor *t, const json_t *v, const char *path, Err *err) {
    if (!json_is_array(v))
        return err_set(err, STATUS_FORMAT, "%s: tensor %s: shape: expected a list, found %s", path,
                       t->name.ptr, json_type_text(v));
    size_t rank = json_array_size(v);
    if (rank > SAFETENSORS_RANK)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: tensor %s: shape: expected at most %d dimensions, found %zu", path,
                       t->name.ptr, SAFETENSORS_RANK, rank);
    t->rank = (int)rank;
    t->n_elems = 1;
    bool fits = true;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(v, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return err_set(err, STATUS_FORMAT,
                           "%s: tensor %s: shape[%zu]: expected an integer from 0 up, found %s",
                           path, t->name.ptr, i,
                           json_is_integer(dim) ? "a negative one" : json_type_text(dim));
        t->shape[i] = (uint64_t)json_integer_value(dim);
        fits = fits && checked_mul_u64(t->n_elems, t->shape[i], &t->n_elems);
    }
    if (!fits || !checked_mul_u64(t->n_elems, DTYPES[t->dtype].size, &t->n_bytes)) {
        char shape[128];
        safetensors_shape_text(shape, sizeof shape, t->shape, t->rank);
        return err_set(err, STATUS_FORMAT, "%s: tensor %s: shape %s is larger than any memory",
                       path, t->name.ptr, shape);
    }
    return STATUS_OK;
}

/* data_size: bytes of the file's data section, which starts at data_start. */
static Status header_offsets(SafetensorsTensor *t, const json_t *v, uint64_t data_start,
                             uint64_t data_size, const char *path, Err *err) {
    const json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: data_offsets: expected two integers, found %s", path,
                       t->name.ptr, json_is_array(v) ? "another list" : json_type_text(v));
    long long begin = json_integer_value(b), end = json_integer_value(e);
    if (begin < 0 || end < begin)
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: data_offsets: expected 0 <= begin <= end, found [%lld, "
                       "%lld]",
                       path, t->name.ptr, begin, end);
    if ((uint64_t)end > data_size)
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: ends at byte %lld of the data, which has %llu (a file cut "
                       "short?)",
                       path, t->name.ptr, end, (unsigned long long)data_size);
    if ((uint64_t)(end - begin) != t->n_bytes) {
        char shape[128];
        safetensors_shape_text(shape, sizeof shape, t->shape, t->rank);
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: %s %s takes %llu bytes, data_offsets span %lld", path,
                       t->name.ptr, DTYPES[t->dtype].name, shape, (unsigned long long)t->n_bytes,
                       end - begin);
    }
    t->begin = data_start + (uint64_t)begin;
    return STATUS_OK;
}

static Status header_tensor(SafetensorsTensor *t, const json_t *v, uint64_t data_start,
                            uint64_t data_size, const char *path, Err *err) {
    if (!json_is_object(v))
        return err_set(err, STATUS_FORMAT, "%s: tensor %s: expected an object, found %s", path,
                       t->name.ptr, json_type_text(v));
    TRY(header_dtype(t, json_object_get(v, "dtype"), path, err));
    TRY(header_shape(t, json_object_get(v, "shape"), path, err));
    TRY(header_offsets(t, json_object_get(v, "data_offsets"), data_start, data_size, path, err));
    if (json_object_size(v) != 3)
        return err_set(err, STATUS_FORMAT,
                       "%s: tensor %s: expected dtype, shape and data_offsets, found %zu members",
                       path, t->name.ptr, json_object_size(v));
    return STATUS_OK;
}

/* By first byte. */
static int compare_places(const void *a, const void *b) {
    const SafetensorsTensor *x = *(const SafetensorsTensor *const *)a,
                            *y = *(const SafetensorsTensor *const *)b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static Status header_check_overlap(const SafetensorsTable *table, const char *path, Err *err) {
    if (table->n == 0)
        return STATUS_OK;
    const SafetensorsTensor **order = mem_zalloc(table->n, sizeof(const SafetensorsTensor *));
    if (!order)
        return err_memory(err, path, table->n * sizeof(const SafetensorsTensor *));
    size_t n = 0; // of those that are not empty: the others take no place
    for (size_t i = 0; i < table->n; i++)
        if (table->tensors[i].n_bytes)
            order[n++] = &table->tensors[i];
    qsort(order, n, sizeof *order, compare_places);
    Status status = STATUS_OK;
    for (size_t i = 1; i < n && status == STATUS_OK; i++) {
        const SafetensorsTensor *a = order[i - 1], *b = order[i];
        if (b->begin < a->begin + a->n_bytes)
            status = err_set(err, STATUS_FORMAT, "%s: tensors %.180s and %.180s overlap", path,
                             a->name.ptr, b->name.ptr);
    }
    mem_free(order);
    return status;
}

static int compare_names(const void *a, const void *b) {
    return str_compare(((const SafetensorsTensor *)a)->name, ((const SafetensorsTensor *)b)->name);
}

static Status header_fill(SafetensorsTable *out, Arena *arena, json_t *root, uint64_t header_bytes,
                          uint64_t file_size, const char *path, Err *err) {
    if (!json_is_object(root))
        return err_set(err, STATUS_FORMAT, "%s: header: expected an object, found %s", path,
                       json_type_text(root));
    SafetensorsTable table = {.header_bytes = header_bytes};
    size_t n_members = json_object_size(root);
    table.tensors = arena_array(arena, n_members ? n_members : 1, sizeof *table.tensors);
    if (!table.tensors)
        return err_memory(err, path, n_members * sizeof *table.tensors);
    uint64_t data_start = PREFIX_BYTES + header_bytes;
    const char *key;
    size_t key_len;
    json_t *v;
    json_object_keylen_foreach(root, key, key_len, v) {
        if (str_equal(str_view(key, key_len), STR("__metadata__")))
            continue; // free text of the writer; nothing here depends on it
        SafetensorsTensor *t = &table.tensors[table.n++];
        char *name = arena_strdup(arena, key, key_len);
        if (!name)
            return err_memory(err, path, key_len);
        t->name = str_view(name, key_len);
        TRY(header_tensor(t, v, data_start, file_size - data_start, path, err));
        table.tensor_bytes += t->n_bytes; // no overflow: none overlaps, or the next check refuses
    }
    TRY(header_check_overlap(&table, path, err));
    qsort(table.tensors, table.n, sizeof *table.tensors, compare_names);
    *out = table;
    return STATUS_OK;
}

Status safetensors_parse_header(SafetensorsTable *out, Arena *arena, StrView header,
                                uint64_t file_size, const char *path, Err *err) {
    CHECK(file_size >= PREFIX_BYTES && header.len <= file_size - PREFIX_BYTES);
    json_t *root;
    TRY(json_read(&root, header, path, err));
    Status status = header_fill(out, arena, root, header.len, file_size, path, err);
    json_decref(root);
    return status;
}

/* ---- the file ---- */

static Status file_read_header(Safetensors *f, Err *err) {
    if (f->size < PREFIX_BYTES)
        return err_set(err, STATUS_FORMAT,
                       "%s: expected a safetensors file, found %llu bytes in all", f->path,
                       (unsigned long long)f->size);
    uint64_t len;
    TRY(file_read_at(f->fd, &len, sizeof len, 0, f->path, err));
    if (len > f->size - PREFIX_BYTES)
        return err_set(err, STATUS_FORMAT,
                       "%s: header length: expected at most the %llu bytes of the file, found %llu",
                       f->path, (unsigned long long)(f->size - PREFIX_BYTES),
                       (unsigned long long)len);
    if (len > LIMIT_SAFETENSORS_HEADER)
        return err_set(err, STATUS_TOO_LARGE, "%s: header length: expected at most %d, found %llu",
                       f->path, LIMIT_SAFETENSORS_HEADER, (unsigned long long)len);
    char *text = mem_alloc((size_t)len);
    if (!text)
        return err_memory(err, f->path, (size_t)len);
    Status status = file_read_at(f->fd, text, (size_t)len, PREFIX_BYTES, f->path, err);
    if (status == STATUS_OK)
        status = safetensors_parse_header(&f->table, &f->arena, str_view(text, (size_t)len),
                                          f->size, f->path, err);
    mem_free(text);
    return status;
}

Status safetensors_open(Safetensors **out, const char *path, Err *err) {
    Safetensors *f = mem_zalloc(1, sizeof *f);
    if (!f)
        return err_memory(err, path, sizeof *f);
    f->fd = -1;
    Status status = STATUS_OK;
    f->path = arena_strdup(&f->arena, path, strlen(path));
    if (!f->path) {
        status = err_memory(err, path, strlen(path));
        goto fail;
    }
    TRY_GOTO(status, file_open_read(&f->fd, &f->size, path, err));
    TRY_GOTO(status, file_read_header(f, err));
    *out = f;
    return STATUS_OK;
fail:
    safetensors_close(f);
    return status;
}

void safetensors_close(Safetensors *f) {
    if (!f)
        return;
    file_close(f->fd);
    arena_fini(&f->arena);
    mem_free(f);
}

const SafetensorsTensor *safetensors_find(const Safetensors *f, StrView name) {
    size_t low = 0, high = f->table.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_compare(f->table.tensors[mid].name, name);
        if (order == 0)
            return &f->table.tensors[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* ---- reads ---- */

Status safetensors_read_bytes(const Safetensors *f, const SafetensorsTensor *t, void *out,
                              size_t len, uint64_t off, Err *err) {
    CHECK(off <= t->n_bytes && len <= t->n_bytes - off);
    Status status = file_read_at(f->fd, out, len, t->begin + off, f->path, err);
    if (status != STATUS_OK)
        err_prefix(err, "tensor %.200s", t->name.ptr);
    return status;
}

void safetensors_drop_pages(const Safetensors *f) {
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED); // a hint: its failure changes nothing
}

static float element_f32(const char *p, SafetensorsDtype d) {
    float x;
    uint16_t h;
    if (d == ST_F32) {
        memcpy(&x, p, sizeof x);
        return x;
    }
    memcpy(&h, p, sizeof h);
    return d == ST_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

Status safetensors_read_f32(const Safetensors *f, const SafetensorsTensor *t, float *out,
                            Err *err) {
    if (t->dtype != ST_F32 && t->dtype != ST_F16 && t->dtype != ST_BF16)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: tensor %.200s: expected F32, F16 or BF16, found %s", f->path,
                       t->name.ptr, DTYPES[t->dtype].name);
    char piece[PIECE_BYTES];
    size_t size = DTYPES[t->dtype].size;
    uint64_t i = 0;
    while (i < t->n_elems) {
        uint64_t left = t->n_elems - i;
        size_t n = left < PIECE_BYTES / size ? (size_t)left : PIECE_BYTES / size;
        TRY(safetensors_read_bytes(f, t, piece, n * size, i * size, err));
        for (size_t j = 0; j < n; j++, i++)
            out[i] = element_f32(piece + j * size, t->dtype);
    }
    return STATUS_OK;
}
