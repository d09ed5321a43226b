// SPDX-License-Identifier: Apache-2.0
/* test_safetensors.c - reading single files: every dtype as numbers, scalars and empty tensors,
 * odd offsets, overlaps.
 *
 * Owns:     nothing.  Thread: one.
 * Not here: a checkpoint's shards with damages (test_folder.c). */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/safetensors.h"

#include "ckpt_case.h"
#include "tensor_read.h"

#include <math.h>

static Safetensors *open_file(const Case *c, const char *name) {
    char path[CASE_PATH];
    case_path(c, name, path);
    Err err = {0};
    Safetensors *f = NULL;
    if (safetensors_open(&f, path, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return f;
}

/* A file of a header text and data bytes. */
static void write_raw(const Case *c, const char *header, const void *data, size_t len) {
    StrBuf b = {0};
    uint64_t n = strlen(header);
    strbuf_append(&b, &n, sizeof n);
    strbuf_append(&b, header, (size_t)n);
    strbuf_append(&b, data, len);
    case_write(c, "x.safetensors", b.ptr, b.len);
    strbuf_fini(&b);
}

static void every_dtype_as_numbers(void **state) {
    UNUSED(state);
    static const unsigned char BYTES[] = {0xfe, 0x01,             // bool/u8/i8: 254 or -2, 1
                                          0xff, 0xff, 0x34, 0x12, // i16 -1, 0x1234; u16
                                          0x00, 0x3c, 0x01, 0x80, // f16 1.0, -2^-24
                                          0x80, 0x3f, 0x20, 0xc0, // bf16 1.0, -2.5
                                          0xff, 0xff, 0xff, 0xff, // i32 -1, u32
                                          0x00, 0x00, 0xc0, 0x7f, // f32 NaN
                                          0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xb9, 0x3f, // f64 0.1
                                          0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}; // i64 -2
    static const char HEADER[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"n\":\"x\"},"
        "\"u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
        "\"i16\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[2,6]},"
        "\"f16\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[6,10]},"
        "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[10,14]},"
        "\"i32\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[14,18]},"
        "\"f32\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18,22]},"
        "\"f64\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[22,30]},"
        "\"i64\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[30,38]},"
        "\"none\":{\"dtype\":\"F8_E4M3\",\"shape\":[3,0],\"data_offsets\":[7,7]}}";
    Case c;
    case_open(&c);
    write_raw(&c, HEADER, BYTES, sizeof BYTES);
    Safetensors *f = open_file(&c, "x.safetensors");
    assert_int_equal(f->table.n, 9);
    assert_int_equal(f->table.tensor_bytes, 38);
    float *f32;
    int64_t *i64;
    size_t n;
    Err err = {0};
    f32 = tensor_f32(f, "f16", &n);
    assert_true(n == 2 && f32[0] == 1.0f && f32[1] == -0x1p-24f);
    free(f32);
    f32 = tensor_f32(f, "bf16", &n);
    assert_true(n == 2 && f32[0] == 1.0f && f32[1] == -2.5f);
    free(f32);
    f32 = tensor_f32(f, "f32", &n);
    assert_true(n == 1 && isnan(f32[0]));
    free(f32);
    i64 = tensor_i64(f, "i32", &n);
    assert_true(n == 1 && i64[0] == -1); // a scalar
    free(i64);
    i64 = tensor_i64(f, "i64", &n);
    assert_true(i64[0] == -2);
    free(i64);
    i64 = tensor_i64(f, "u8", &n);
    assert_true(n == 2 && i64[0] == 254 && i64[1] == 1);
    free(i64);
    float none[4];
    const SafetensorsTensor *t = tensor_get(f, "f64", &n);
    assert_int_equal(safetensors_read_f32(f, t, none, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tensor f64: expected F32, F16 or BF16, found F64"));
    t = tensor_get(f, "none", &n);
    assert_int_equal(safetensors_read_f32(f, t, none, &err), STATUS_UNSUPPORTED);
    assert_null(safetensors_find(f, STR("nothing")));
    safetensors_close(f);
    safetensors_close(NULL);
    case_close(&c);
}

/* The oracle's references: names, shapes and a value of each kind. */
static void reference_files_read(void **state) {
    UNUSED(state);
    Safetensors *f = NULL;
    assert_int_equal(
        safetensors_open(&f, "tests/data/oracle/tiny-a/reference/logits.safetensors", NULL),
        STATUS_OK);
    size_t n;
    int64_t *ids = tensor_i64(f, "prompt.5", &n);
    static const int64_t EXPECTED[] = {273, 72, 393, 143, 154};
    assert_int_equal(n, 5);
    assert_memory_equal(ids, EXPECTED, sizeof EXPECTED);
    free(ids);
    const SafetensorsTensor *t = tensor_get(f, "logits.65", &n);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 65);
    assert_int_equal(t->shape[1], 512);
    float *all = tensor_f32(f, "logits.65", &n), *row;
    row = mem_alloc(512 * sizeof *row);
    for (uint64_t m = 0; m < 65; m++) { // a piece at a time
        assert_int_equal(safetensors_read_bytes(f, t, row, 512 * 4, m * 512 * 4, NULL), STATUS_OK);
        assert_memory_equal(row, all + m * 512, 512 * 4);
    }
    mem_free(row);
    free(all);
    char text[16];
    safetensors_shape_text(text, sizeof text, t->shape, t->rank);
    assert_string_equal(text, "[65, 512]");
    safetensors_shape_text(text, 6, t->shape, t->rank);
    assert_string_equal(text, "[65, ");
    safetensors_shape_text(text, sizeof text, NULL, 0);
    assert_string_equal(text, "[]");
    safetensors_close(f);
}

/* Headers that are refused, and neighbours of theirs that are not. */
static void overlaps_and_neighbours(void **state) {
    UNUSED(state);
    static const struct {
        const char *header;
        Status status;
        const char *text;
    } CASES[] = {
        {"{}", STATUS_OK, ""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         STATUS_OK, ""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         STATUS_FORMAT, "tensors a and b overlap"},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}",
         STATUS_FORMAT, "tensors b and a overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         STATUS_FORMAT, "overlap"},
        // empty ones overlap nothing, at either end of another one
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"c\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[8,8]},"
         "\"d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         STATUS_OK, ""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", STATUS_FORMAT,
         "ends at byte 9 of the data, which has 8"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[9,9]}}", STATUS_FORMAT,
         "ends at byte 9"},
        {"{\"__metadata__\":3}", STATUS_OK, ""},
        {"{\"a\":{\"dtype\":\"U64\",\"shape\":[9223372036854775807],\"data_offsets\":[0,8]}}",
         STATUS_FORMAT, "tensor a: shape [9223372036854775807] is larger than any memory"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,2,0],\"data_offsets\":[0,0]}}",
         STATUS_OK, ""}, // 2^64 - 2 fits, and nothing of it is there
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}}",
         STATUS_FORMAT, "too big integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]} ", STATUS_FORMAT,
         "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Arena arena = {0};
        SafetensorsTable table;
        Err err = {0};
        StrView header = str_view(CASES[i].header, strlen(CASES[i].header));
        Status status =
            safetensors_parse_header(&table, &arena, header, 8 + header.len + 8, "x", &err);
        if (status != CASES[i].status || !strstr(err.text, CASES[i].text))
            fail_msg("%s: %s: %s", CASES[i].header, status_name(status), err.text);
        arena_fini(&arena);
    }
}

static void each_allocation_and_read_fails_once(void **state) {
    UNUSED(state);
    const char *path = "tests/data/oracle/tiny-b/reference/dequant.safetensors";
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0;; i++) {
            Err err = {0};
            Safetensors *f = NULL;
            static float out[4096];
            const SafetensorsTensor *t = NULL;
            if (kind == 0)
                mem_fail_after(i);
            else
                file_fail_after(i);
            Status status = safetensors_open(&f, path, &err);
            if (status == STATUS_OK)
                t = safetensors_find(f, STR("language_model.model.norm.weight"));
            assert_true(!t || t->n_elems <= COUNT_OF(out));
            if (t)
                status = safetensors_read_f32(f, t, out, &err);
            mem_fail_after(-1);
            file_fail_after(-1);
            safetensors_close(f);
            if (status == STATUS_OK) {
                assert_true(i >= (kind == 0 ? 100 : 4));
                break;
            }
            assert_int_equal(status, kind == 0 ? STATUS_MEMORY : STATUS_IO);
            assert_true(strlen(err.text) > 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_as_numbers),
        cmocka_unit_test(reference_files_read),
        cmocka_unit_test(overlaps_and_neighbours),
        cmocka_unit_test(each_allocation_and_read_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
