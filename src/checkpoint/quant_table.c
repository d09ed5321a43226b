// SPDX-License-Identifier: Apache-2.0
/* quant_table.c - defaults and overrides, looked up by module path.
 *
 * Path:     config.c fills it; folder.c asks it for each matrix.
 * Owns:     a QuantTable owns its entries.  Thread: reads from any, at once. */
#include "checkpoint/quant_table.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdlib.h>

typedef struct Override {
    StrView module; // without its scope, in the arena
    QuantSpec spec;
} Override;

struct QuantTable {
    QuantSpec defaults;
    Override *overrides; // [n] by module in ascending byte order
    size_t n;
    Arena arena;
};

StrView quant_table_strip_scope(StrView name) {
    static const StrView SCOPES[] = {{"language_model.model.", 21},
                                     {"model.language_model.", 21},
                                     {"language_model.", 15},
                                     {"model.", 6}};
    for (size_t i = 0; i < COUNT_OF(SCOPES); i++)
        if (str_starts(name, SCOPES[i]))
            return str_view(name.ptr + SCOPES[i].len, name.len - SCOPES[i].len);
    return name;
}

static int compare_overrides(const void *a, const void *b) {
    return str_compare(((const Override *)a)->module, ((const Override *)b)->module);
}

/* The members bits, group_size and mode of an object; missing ones keep what *spec holds. */
static Status read_spec(QuantSpec *spec, const json_t *object, const char *where, Err *err) {
    const json_t *mode = json_object_get(object, "mode");
    if (mode && !str_equal(json_text(mode), STR("affine"))) {
        if (!json_is_string(mode))
            return err_set(err, STATUS_FORMAT, "%s: mode: expected \"affine\", found %s", where,
                           json_type_text(mode));
        return err_set(err, STATUS_UNSUPPORTED, "%s: mode: expected \"affine\", found \"%.40s\"",
                       where, json_string_value(mode));
    }
    int64_t bits = spec->bits, group = spec->group;
    TRY(json_get_int(&bits, object, "bits", 1, 64, bits ? &bits : NULL, where, err));
    TRY(json_get_int(&group, object, "group_size", 1, 1 << 20, group ? &group : NULL, where, err));
    if (bits != 4 && bits != 8)
        return err_set(err, STATUS_UNSUPPORTED, "%s: bits: expected 4 or 8, found %d", where,
                       (int)bits);
    if (group != 32 && group != 64 && group != 128)
        return err_set(err, STATUS_UNSUPPORTED, "%s: group_size: expected 32, 64 or 128, found %d",
                       where, (int)group);
    spec->bits = (int32_t)bits;
    spec->group = (int32_t)group;
    return STATUS_OK;
}

static Status read_override(QuantSpec *spec, const json_t *v, const char *key, const char *where,
                            Err *err) {
    char place[320];
    snprintf(place, sizeof place, "%s: %.200s", where, key);
    if (json_is_false(v)) {
        *spec = (QuantSpec){0};
        return STATUS_OK;
    }
    if (json_is_true(v))
        return STATUS_OK;
    if (!json_is_object(v))
        return err_set(err, STATUS_FORMAT, "%s: expected true, false or an object, found %s", place,
                       json_type_text(v));
    const char *member;
    json_t *value;
    json_object_foreach((json_t *)v, member, value) {
        if (strcmp(member, "bits") != 0 && strcmp(member, "group_size") != 0 &&
            strcmp(member, "mode") != 0)
            return err_set(err, STATUS_UNSUPPORTED,
                           "%s: expected bits, group_size or mode, found \"%.40s\"", place, member);
    }
    return read_spec(spec, v, place, err);
}

static bool key_is_default(const char *key) {
    return strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0;
}

static Status fill_table(QuantTable *t, const json_t *block, const char *where, Err *err) {
    const json_t *method = json_object_get(block, "quant_method");
    if (method) // the form of other toolkits (fp8, awq, gptq, ...)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: quant_method: expected MLX affine quantisation, found \"%.40s\"", where,
                       json_is_string(method) ? json_string_value(method) : json_type_text(method));
    TRY(read_spec(&t->defaults, block, where, err));
    size_t n = json_object_size(block);
    t->overrides = arena_array(&t->arena, n + 1, sizeof *t->overrides);
    if (!t->overrides)
        return err_memory(err, where, n * sizeof *t->overrides);
    const char *key;
    size_t len;
    json_t *v;
    json_object_keylen_foreach((json_t *)block, key, len, v) {
        if (key_is_default(key))
            continue;
        Override *o = &t->overrides[t->n++];
        o->spec = t->defaults;
        TRY(read_override(&o->spec, v, key, where, err));
        StrView module = quant_table_strip_scope(str_view(key, len));
        char *copy = arena_strdup(&t->arena, module.ptr, module.len);
        if (!copy)
            return err_memory(err, where, module.len);
        o->module = str_view(copy, module.len);
    }
    if (t->n)
        qsort(t->overrides, t->n, sizeof *t->overrides, compare_overrides);
    for (size_t i = 1; i < t->n; i++) {
        const Override *a = &t->overrides[i - 1], *b = &t->overrides[i];
        if (str_equal(a->module, b->module) &&
            (a->spec.bits != b->spec.bits || a->spec.group != b->spec.group))
            return err_set(err, STATUS_FORMAT,
                           "%s: %.200s is given twice, with %d and with %d bits, groups of %d and "
                           "%d",
                           where, a->module.ptr, a->spec.bits, b->spec.bits, a->spec.group,
                           b->spec.group);
    }
    return STATUS_OK;
}

Status quant_table_parse(QuantTable **out, const json_t *block, const char *where, Err *err) {
    if (!json_is_object(block))
        return err_set(err, STATUS_FORMAT, "%s: expected an object, found %s", where,
                       json_type_text(block));
    QuantTable *t = mem_zalloc(1, sizeof *t);
    if (!t)
        return err_memory(err, where, sizeof *t);
    Status status = fill_table(t, block, where, err);
    if (status != STATUS_OK) {
        quant_table_close(t);
        return status;
    }
    *out = t;
    return STATUS_OK;
}

QuantSpec quant_table_find(const QuantTable *table, StrView module) {
    StrView key = quant_table_strip_scope(module);
    size_t low = 0, high = table->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = str_compare(table->overrides[mid].module, key);
        if (order == 0)
            return table->overrides[mid].spec;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return table->defaults;
}

void quant_table_close(QuantTable *table) {
    if (!table)
        return;
    arena_fini(&table->arena);
    mem_free(table);
}
