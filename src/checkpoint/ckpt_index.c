// SPDX-License-Identifier: Apache-2.0
/* ckpt_index.c - the weight_map, sorted.
 *
 * Path:     folder.c reads it before any shard.
 * Owns:     nothing.  Thread: any. */
#include "checkpoint/ckpt_index.h"

#include "base/json.h"
#include "base/limits.h"

#include <stdlib.h>

static int compare_entries(const void *a, const void *b) {
    return str_compare(((const CkptIndexEntry *)a)->tensor, ((const CkptIndexEntry *)b)->tensor);
}

static int compare_files(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A name of a file in the folder itself: an index must not reach outside. */
static bool is_plain_name(StrView s) {
    return s.len > 0 && s.len < 256 && s.ptr[0] != '.' && !memchr(s.ptr, '/', s.len) &&
           !memchr(s.ptr, 0, s.len) && str_ends(s, STR(".safetensors"));
}

static int32_t find_file(const CkptIndex *index, const char *name) {
    int32_t low = 0, high = index->n_files;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        int order = strcmp(index->files[mid], name);
        if (order == 0)
            return mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

/* The distinct values of the map. */
static Status collect_files(CkptIndex *out, Arena *arena, json_t *map, const char *name, Err *err) {
    size_t n = json_object_size(map), n_files = 0;
    const char **files = arena_array(arena, n + 1, sizeof *files);
    if (!files)
        return err_memory(err, name, n * sizeof *files);
    const char *tensor;
    json_t *v;
    json_object_foreach(map, tensor, v) {
        StrView file = json_text(v);
        if (!is_plain_name(file))
            return err_set(err, STATUS_FORMAT,
                           "%s: weight_map: %.160s: expected the name of a .safetensors file in "
                           "this folder, found %s%.100s",
                           name, tensor, json_is_string(v) ? "" : json_type_text(v),
                           file.ptr ? file.ptr : "");
        // Shards come in runs; the sort below finds the rest.
        if (n_files > 0 && strcmp(files[n_files - 1], file.ptr) == 0)
            continue;
        files[n_files] = arena_strdup(arena, file.ptr, file.len);
        if (!files[n_files++])
            return err_memory(err, name, file.len);
    }
    if (n_files)
        qsort(files, n_files, sizeof *files, compare_files);
    size_t n_distinct = 0;
    for (size_t i = 0; i < n_files; i++)
        if (i == 0 || strcmp(files[i], files[n_distinct - 1]) != 0)
            files[n_distinct++] = files[i];
    if (n_distinct > LIMIT_SHARDS)
        return err_set(err, STATUS_TOO_LARGE,
                       "%s: weight_map: expected at most %d files, found %zu", name, LIMIT_SHARDS,
                       n_distinct);
    out->files = files;
    out->n_files = (int32_t)n_distinct;
    return STATUS_OK;
}

static Status collect_entries(CkptIndex *out, Arena *arena, json_t *map, const char *name,
                              Err *err) {
    out->entries = arena_array(arena, json_object_size(map) + 1, sizeof *out->entries);
    if (!out->entries)
        return err_memory(err, name, json_object_size(map) * sizeof *out->entries);
    const char *tensor;
    size_t len;
    json_t *v;
    json_object_keylen_foreach(map, tensor, len, v) {
        char *copy = arena_strdup(arena, tensor, len);
        if (!copy)
            return err_memory(err, name, len);
        out->entries[out->n++] =
            (CkptIndexEntry){str_view(copy, len), find_file(out, json_string_value(v))};
    }
    qsort(out->entries, out->n, sizeof *out->entries, compare_entries);
    return STATUS_OK;
}

static Status read_index(CkptIndex *out, Arena *arena, json_t *root, const char *name, Err *err) {
    CkptIndex index = {.total_size = -1};
    if (!json_is_object(root))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", name,
                       json_type_text(root));
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(err, STATUS_FORMAT,
                       "%s: weight_map: expected an object with tensors, found %s", name,
                       json_is_object(map) ? "an empty one" : json_type_text(map));
    const json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
    if (json_is_integer(total) && json_integer_value(total) >= 0)
        index.total_size = json_integer_value(total);
    TRY(collect_files(&index, arena, map, name, err));
    TRY(collect_entries(&index, arena, map, name, err));
    *out = index;
    return STATUS_OK;
}

Status ckpt_index_parse(CkptIndex *out, Arena *arena, StrView text, const char *name, Err *err) {
    json_t *root;
    TRY(json_read(&root, text, name, err));
    Status status = read_index(out, arena, root, name, err);
    json_decref(root);
    return status;
}

int32_t ckpt_index_find(const CkptIndex *index, StrView tensor) {
    size_t low = 0, high = index->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_compare(index->entries[mid].tensor, tensor);
        if (order == 0)
            return index->entries[mid].file;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}
