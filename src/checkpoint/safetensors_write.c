// SPDX-License-Identifier: Apache-2.0
/* safetensors_write.c - header text known up front, then bytes at their places.
 *
 * Path:     synth writes checkpoints, the logits verb its results, tests their files.
 * Owns:     a SafetensorsWriter owns its FileWriter: the file appears whole or not at all.
 *           Thread: open, commit and close from one; write_at from any, at once. */
#include "checkpoint/safetensors_write.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

uint64_t safetensors_entry_bytes(const SafetensorsEntry *entry) {
    uint64_t n = safetensors_dtype_size(entry->dtype);
    for (int i = 0; i < entry->rank; i++)
        if (!checked_mul_u64(n, entry->shape[i], &n))
            return UINT64_MAX;
    return n;
}

/* An entry and where its data lies in the data section. */
typedef struct Place {
    const SafetensorsEntry *entry;
    uint64_t begin, end;
} Place;

static int compare_places(const void *a, const void *b) {
    return strcmp(((const Place *)a)->entry->name, ((const Place *)b)->entry->name);
}

/* A JSON string; everything but the two delimiters and control characters stands for itself. */
static void append_json_string(StrBuf *b, const char *s) {
    strbuf_append_char(b, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            strbuf_append_char(b, '\\');
        if ((unsigned char)*s < 0x20)
            strbuf_printf(b, "\\u%04x", (unsigned)*s);
        else
            strbuf_append_char(b, *s);
    }
    strbuf_append_char(b, '"');
}

static void append_tensor(StrBuf *b, const Place *p) {
    append_json_string(b, p->entry->name);
    strbuf_printf(b, ":{\"data_offsets\":[%llu,%llu],\"dtype\":\"%s\",\"shape\":[",
                  (unsigned long long)p->begin, (unsigned long long)p->end,
                  safetensors_dtype_name(p->entry->dtype));
    for (int i = 0; i < p->entry->rank; i++)
        strbuf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)p->entry->shape[i]);
    strbuf_append(b, "]}", 2);
}

/* places [n]: filled in the order of the entries. */
static Status place_entries(Place *places, const SafetensorsEntry *entries, size_t n, Err *err) {
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        CHECK(entries[i].rank >= 0 && entries[i].rank <= SAFETENSORS_RANK);
        uint64_t n_bytes = safetensors_entry_bytes(&entries[i]);
        places[i] = (Place){.entry = &entries[i], .begin = end};
        if (n_bytes == UINT64_MAX || !checked_add_u64(end, n_bytes, &end) || end > INT64_MAX)
            return err_set(err, STATUS_INVALID, "tensor %.200s is too large to be written",
                           entries[i].name);
        places[i].end = end;
    }
    return STATUS_OK;
}

Status safetensors_write_header(StrBuf *out, const SafetensorsEntry *entries, size_t n, Err *err) {
    Place *places = mem_zalloc(n, sizeof *places);
    if (!places)
        return err_memory(err, "tensor names", n * sizeof *places);
    StrBuf text = {0};
    Status status = STATUS_OK;
    TRY_GOTO(status, place_entries(places, entries, n, err));
    if (n)
        qsort(places, n, sizeof *places, compare_places);
    strbuf_printf(&text, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(places[i - 1].entry->name, places[i].entry->name) == 0) {
            status =
                err_set(err, STATUS_INVALID, "tensor %.200s occurs twice", places[i].entry->name);
            goto fail;
        }
        strbuf_append_char(&text, ',');
        append_tensor(&text, &places[i]);
    }
    strbuf_append_char(&text, '}');
    TRY_GOTO(status, strbuf_check(&text, err));
    uint64_t len = text.len;
    strbuf_append(out, &len, sizeof len);
    strbuf_append_view(out, strbuf_view(&text));
    status = strbuf_check(out, err);
fail:
    strbuf_fini(&text);
    mem_free(places);
    return status;
}

struct SafetensorsWriter {
    FileWriter *file;
    uint64_t *begin;         // [n_entries + 1] absolute offsets; the last one is the file's size
    size_t n_entries;        // tensors
    _Atomic uint64_t n_left; // bytes of data not written yet
};

Status safetensors_write_open(SafetensorsWriter **out, const char *path,
                              const SafetensorsEntry *entries, size_t n, Err *err) {
    SafetensorsWriter *w = mem_zalloc(1, sizeof *w);
    if (!w)
        return err_memory(err, path, sizeof *w);
    Status status = STATUS_OK;
    StrBuf head = {0};
    TRY_GOTO(status, safetensors_write_header(&head, entries, n, err));
    w->n_entries = n;
    w->begin = mem_zalloc(n + 1, sizeof *w->begin);
    if (!w->begin) {
        status = err_memory(err, path, (n + 1) * sizeof *w->begin);
        goto fail;
    }
    w->begin[0] = head.len;
    for (size_t i = 0; i < n; i++)
        w->begin[i + 1] = w->begin[i] + safetensors_entry_bytes(&entries[i]);
    atomic_init(&w->n_left, w->begin[n] - head.len);
    TRY_GOTO(status, file_writer_open(&w->file, path, err));
    TRY_GOTO(status, file_writer_append(w->file, head.ptr, head.len, err));
    strbuf_fini(&head);
    *out = w;
    return STATUS_OK;
fail:
    strbuf_fini(&head);
    safetensors_write_close(w);
    return status;
}

Status safetensors_write_at(SafetensorsWriter *w, size_t i, const void *bytes, size_t len,
                            uint64_t off, Err *err) {
    CHECK(i < w->n_entries);
    uint64_t n_bytes = w->begin[i + 1] - w->begin[i];
    CHECK(off <= n_bytes && len <= n_bytes - off);
    TRY(file_writer_write_at(w->file, bytes, len, w->begin[i] + off, err));
    atomic_fetch_sub(&w->n_left, len);
    return STATUS_OK;
}

Status safetensors_write_commit(SafetensorsWriter *w, Err *err) {
    CHECK(atomic_load(&w->n_left) == 0);
    return file_writer_commit(w->file, err);
}

void safetensors_write_close(SafetensorsWriter *w) {
    if (!w)
        return;
    file_writer_close(w->file);
    mem_free(w->begin);
    mem_free(w);
}

Status safetensors_write_file(const char *path, const SafetensorsEntry *entries,
                              const void *const *data, size_t n, Err *err) {
    SafetensorsWriter *w;
    TRY(safetensors_write_open(&w, path, entries, n, err));
    Status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++)
        status = safetensors_write_at(w, i, data[i], (size_t)safetensors_entry_bytes(&entries[i]),
                                      0, err);
    if (status == STATUS_OK)
        status = safetensors_write_commit(w, err);
    safetensors_write_close(w);
    return status;
}
