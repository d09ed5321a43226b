// SPDX-License-Identifier: Apache-2.0
/* test_inspect.c - the report of good, damaged and random models.
 *
 * Owns:     nothing.  Thread: one. */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/inspect.h"

#include "checkpoint/weights.h"
#include "ckpt_case.h"

static json_t *report_of(const char *spec) {
    Err err = {0};
    json_t *r = NULL;
    if (inspect_report(&r, spec, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return r;
}

static int64_t number_at(const json_t *r, const char *object, const char *key) {
    const json_t *v = json_object_get(object ? json_object_get(r, object) : r, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static size_t n_refused(const json_t *r) {
    const json_t *list = json_object_get(r, "refused");
    assert_true(json_is_array(list));
    return json_array_size(list);
}

static const json_t *slot_of(const json_t *r, const char *name) {
    const json_t *list = json_object_get(r, "slots");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *slot = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(slot, "slot")), name) == 0)
            return slot;
    }
    fail_msg("no slot %s", name);
    return NULL;
}

static void oracle_report(void **state) {
    UNUSED(state);
    json_t *r = report_of("tests/data/oracle/tiny-a");
    assert_int_equal(n_refused(r), 0);
    assert_string_equal(json_string_value(json_object_get(r, "form")), "mlx");
    assert_int_equal(number_at(r, "config", "hidden"), 192);
    assert_int_equal(json_array_size(json_object_get(json_object_get(r, "config"), "layers")), 8);
    const json_t *router = slot_of(r, "mlp.gate");
    assert_int_equal(number_at(router, NULL, "n"), 8);
    assert_int_equal(number_at(router, NULL, "bits"), 8);
    assert_int_equal(number_at(router, NULL, "bytes"), 8 * 16 * (192 + 3 * 4));
    const json_t *conv = slot_of(r, "linear_attn.conv1d");
    assert_int_equal(number_at(conv, NULL, "n"), 6);
    assert_string_equal(json_string_value(json_array_get(json_object_get(conv, "dtypes"), 0)),
                        "BF16");
    // metadata.total_size of the index
    assert_int_equal(number_at(r, "bytes", "total"), 5404166);
    assert_int_equal(number_at(r, "bytes", "text") + number_at(r, "bytes", "vision"), 5404166);
    assert_int_equal(number_at(r, "bytes", "mtp"), 0);
    const json_t *files = json_object_get(r, "files");
    assert_int_equal(json_array_size(files), 2);
    assert_int_equal(number_at(json_array_get(files, 0), NULL, "bytes"), 2827436);
    assert_int_equal(number_at(json_array_get(files, 0), NULL, "header_bytes"), 22800);
    assert_int_equal(json_array_size(json_object_get(r, "notes")), 1);
    json_decref(r);
}

/* The published model: its bytes are known from its index (vision left out). */
static void published_shape_has_its_bytes(void **state) {
    UNUSED(state);
    json_t *r = report_of("synth:qwen3.6-35b-a3b");
    assert_int_equal(n_refused(r), 0);
    assert_string_equal(json_string_value(json_object_get(r, "form")), "synth");
    assert_int_equal(number_at(r, "bytes", "text"), 19508787456);
    int64_t all = number_at(r, NULL, "parameters"),
            active = number_at(r, NULL, "active_parameters");
    assert_true(all > 34e9 && all < 35.5e9);
    assert_true(active > 3e9 && active < 4e9);
    json_decref(r);
    Weights *w = NULL;
    assert_int_equal(weights_open(&w, "synth:qwen3.6-35b-a3b", NULL, NULL), STATUS_OK);
    assert_true(weights_total_bytes(w) == 19508787456);
    weights_close(w);
}

static void all_that_is_refused(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){.is_raw = true});
    CaseShard s = case_read_shard(&c, "model.safetensors");
    json_object_del(s.header, "model.language_model.layers.1.self_attn.k_norm.weight");
    json_object_del(s.header, "model.language_model.norm.weight");
    json_object_set(s.header, "model.language_model.odd",
                    json_object_get(s.header, "model.language_model.layers.0.linear_attn.A_log"));
    json_object_del(s.header, "model.language_model.layers.0.linear_attn.A_log");
    case_write_shard(&c, "model.safetensors", &s);
    json_t *r = report_of(c.dir);
    assert_int_equal(n_refused(r), 4);
    assert_string_equal(json_string_value(json_object_get(r, "form")), "raw");
    json_decref(r);
    // A fault of the config hides the rest.
    case_write(&c, "config.json", "{}", 2);
    r = report_of(c.dir);
    assert_int_equal(n_refused(r), 1);
    assert_null(json_object_get(r, "config"));
    assert_non_null(json_object_get(r, "notes"));
    json_decref(r);
    case_close(&c);
    r = report_of("synth:no-such-shape");
    assert_int_equal(n_refused(r), 1);
    json_decref(r);
    r = report_of("/tmp/lily-no-\xff-such");
    assert_string_equal(json_string_value(json_object_get(r, "model")), "/tmp/lily-no-?-such");
    assert_int_equal(n_refused(r), 1);
    json_decref(r);
}

static void each_allocation_fails_once(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){.is_tied = true});
    json_decref(report_of(c.dir));
    int64_t before = mem_count();
    json_t *r = report_of(c.dir);
    int64_t n = mem_count() - before;
    char *expected = json_dumps(r, JSON_SORT_KEYS);
    json_decref(r);
    assert_true(n > 100);
    for (int64_t i = 0; i < n; i++) {
        Err err = {0};
        r = NULL;
        mem_fail_after(i);
        Status status = inspect_report(&r, c.dir, &err);
        mem_fail_after(-1);
        if (status != STATUS_MEMORY || r)
            fail_msg("allocation %d of %d: %s", (int)i, (int)n, err.text);
    }
    r = report_of(c.dir);
    char *again = json_dumps(r, JSON_SORT_KEYS);
    assert_string_equal(expected, again);
    free(expected);
    free(again);
    json_decref(r);
    case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_report),
        cmocka_unit_test(published_shape_has_its_bytes),
        cmocka_unit_test(all_that_is_refused),
        cmocka_unit_test(each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
