// SPDX-License-Identifier: Apache-2.0
/* test_safetensors_write.c - MLX's own headers reproduced byte for byte, files read back, faults.
 *
 * Owns:     nothing.  Thread: one. */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/safetensors_write.h"

#include "ckpt_case.h"
#include "tensor_read.h"

static int compare_begins(const void *a, const void *b) {
    const SafetensorsTensor *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The shards of the oracle were written by MLX: from their entries in the order of their data the
 * same header comes out. */
static void headers_of_mlx(void **state) {
    UNUSED(state);
    static const char *const PATHS[] = {
        "tests/data/oracle/tiny-a/model-00001-of-00002.safetensors",
        "tests/data/oracle/tiny-a/model-00002-of-00002.safetensors",
        "tests/data/oracle/tiny-b/model-00001-of-00002.safetensors",
        "tests/data/oracle/tiny-b/model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < COUNT_OF(PATHS); i++) {
        Safetensors *f = NULL;
        assert_int_equal(safetensors_open(&f, PATHS[i], NULL), STATUS_OK);
        size_t n = f->table.n;
        SafetensorsTensor *sorted = mem_alloc(n * sizeof *sorted);
        memcpy(sorted, f->table.tensors, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_begins);
        SafetensorsEntry *entries = mem_zalloc(n, sizeof *entries);
        for (size_t j = 0; j < n; j++) {
            entries[j] = (SafetensorsEntry){
                .name = sorted[j].name.ptr, .dtype = sorted[j].dtype, .rank = sorted[j].rank};
            memcpy(entries[j].shape, sorted[j].shape, sizeof entries[j].shape);
        }
        StrBuf head = {0}, file = {0};
        Err err = {0};
        assert_int_equal(safetensors_write_header(&head, entries, n, &err), STATUS_OK);
        assert_int_equal(file_read_all(&file, PATHS[i], 64 << 20, &err), STATUS_OK);
        assert_int_equal(head.len, 8 + f->table.header_bytes);
        assert_memory_equal(head.ptr, file.ptr, head.len);
        strbuf_fini(&head);
        strbuf_fini(&file);
        mem_free(sorted);
        mem_free(entries);
        safetensors_close(f);
    }
}

static const SafetensorsEntry ENTRIES[] = {
    {"logits", ST_F32, 2, {2, 3}},
    {"a \"quoted\\ name\x01", ST_U8, 1, {5}},
    {"empty", ST_BF16, 1, {0}},
    {"scalar", ST_I64, 0, {0}},
};
static const float LOGITS[6] = {0, 1, -2, 3.5f, 1e-30f, -1e30f};
static const unsigned char BYTES[5] = {1, 2, 3, 4, 255};
static const int64_t SCALAR = -7;

static void check_file(const char *path) {
    Safetensors *f = NULL;
    assert_int_equal(safetensors_open(&f, path, NULL), STATUS_OK);
    assert_int_equal(f->table.n, 4);
    size_t n;
    float *logits = tensor_f32(f, "logits", &n);
    assert_memory_equal(logits, LOGITS, sizeof LOGITS);
    free(logits);
    int64_t *ints = tensor_i64(f, ENTRIES[1].name, &n);
    assert_true(n == 5 && ints[4] == 255);
    free(ints);
    ints = tensor_i64(f, "scalar", &n);
    assert_true(n == 1 && ints[0] == -7);
    free(ints);
    safetensors_close(f);
}

static void read_back(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    char path[CASE_PATH];
    case_path(&c, "x.safetensors", path);
    const void *data[] = {LOGITS, BYTES, "", &SCALAR};
    Err err = {0};
    assert_int_equal(safetensors_write_file(path, ENTRIES, data, 4, &err), STATUS_OK);
    check_file(path);
    // The same in pieces and in another order.
    case_path(&c, "y.safetensors", path);
    SafetensorsWriter *w = NULL;
    assert_int_equal(safetensors_write_open(&w, path, ENTRIES, 4, &err), STATUS_OK);
    assert_int_equal(safetensors_write_at(w, 3, &SCALAR, 8, 0, &err), STATUS_OK);
    assert_int_equal(safetensors_write_at(w, 0, LOGITS + 3, 12, 12, &err), STATUS_OK);
    assert_int_equal(safetensors_write_at(w, 1, BYTES + 1, 4, 1, &err), STATUS_OK);
    assert_int_equal(safetensors_write_at(w, 0, LOGITS, 12, 0, &err), STATUS_OK);
    assert_int_equal(safetensors_write_at(w, 1, BYTES, 1, 0, &err), STATUS_OK);
    assert_int_not_equal(access(path, F_OK), 0); // not under its name before the commit
    assert_int_equal(safetensors_write_commit(w, &err), STATUS_OK);
    safetensors_write_close(w);
    check_file(path);
    case_close(&c);
}

static void names_and_sizes_are_checked(void **state) {
    UNUSED(state);
    StrBuf b = {0};
    Err err = {0};
    const SafetensorsEntry twice[] = {
        {"t", ST_U8, 1, {1}}, {"u", ST_U8, 1, {1}}, {"t", ST_U8, 1, {2}}};
    assert_int_equal(safetensors_write_header(&b, twice, 3, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "tensor t occurs twice"));
    const SafetensorsEntry huge[] = {{"t", ST_F32, 2, {1ull << 42, 1ull << 22}}};
    assert_int_equal(safetensors_write_header(&b, huge, 1, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "tensor t"));
    assert_true(safetensors_entry_bytes(huge) == UINT64_MAX);
    const SafetensorsEntry sum[] = {{"t", ST_U8, 1, {1ull << 62}}, {"u", ST_U8, 1, {1ull << 62}}};
    assert_int_equal(safetensors_write_header(&b, sum, 2, &err), STATUS_INVALID);
    assert_int_equal(b.len, 0);
    assert_int_equal(safetensors_write_header(&b, NULL, 0, &err), STATUS_OK);
    assert_int_equal(b.len, 8 + strlen("{\"__metadata__\":{\"format\":\"mlx\"}}"));
    strbuf_fini(&b);
}

/* Whatever fails, nothing is left behind. */
static void faults_leave_nothing(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    char path[CASE_PATH];
    case_path(&c, "x.safetensors", path);
    const void *data[] = {LOGITS, BYTES, "", &SCALAR};
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0;; i++) {
            Err err = {0};
            if (kind == 0)
                mem_fail_after(i);
            else
                file_fail_after(i);
            Status status = safetensors_write_file(path, ENTRIES, data, 4, &err);
            mem_fail_after(-1);
            file_fail_after(-1);
            if (status == STATUS_OK) {
                assert_true(i > 3);
                check_file(path);
                assert_int_equal(unlink(path), 0);
                break;
            }
            assert_int_equal(status, kind == 0 ? STATUS_MEMORY : STATUS_IO);
            int n_files = 0;
            DIR *dir = opendir(c.dir);
            for (struct dirent *e; (e = readdir(dir));)
                n_files += e->d_name[0] != '.';
            closedir(dir);
            assert_int_equal(n_files, 0);
        }
    }
    case_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_mlx),
        cmocka_unit_test(read_back),
        cmocka_unit_test(names_and_sizes_are_checked),
        cmocka_unit_test(faults_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
