// SPDX-License-Identifier: Apache-2.0
/* test_cpu_pack.c - packed weights hold exactly what the checkpoint says, and packing fails well.
 */
#include "cpu_kernels.h"

#include "backend/cpu/cpu_pack.h"
#include "base/mem.h"
#include "checkpoint/quant.h"

static void strips_hold_every_code_and_scale(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    static const int32_t rows[] = {1, 7, 15, 16}, groups[] = {1, 2, 3, 8};
    for (size_t a = 0; a < COUNT_OF(rows) * COUNT_OF(groups) * 4; a++) {
        int32_t n = rows[a % 4], n_groups = groups[a / 4 % 4], bits = a / 16 % 2 ? 4 : 8;
        int32_t group = a / 32 ? 128 : 64, k = n_groups * 64;
        if (k % group)
            continue;
        size_t words = (size_t)(k * bits / 32), per_row = (size_t)(k / group);
        uint32_t *q = malloc(sizeof *q * words * 16);
        uint16_t scale[16 * 8], bias[16 * 8];
        for (size_t i = 0; i < words * 16; i++)
            q[i] = (uint32_t)random_u64(&r);
        for (size_t i = 0; i < COUNT_OF(scale); i++) {
            scale[i] = bf16_from_f32(random_normal(&r));
            bias[i] = bf16_from_f32(random_normal(&r));
        }
        size_t bytes = (size_t)n_groups * tile_bytes(bits);
        uint8_t *strip = guard_alloc(bytes);
        cpu_pack_strip(strip, q, scale, bias, n, n_groups, bits, group);
        PackedMatrix m = {.tiles = strip,
                          .n = n,
                          .n_strips = 1,
                          .n_groups = n_groups,
                          .bits = bits,
                          .strip_bytes = bytes};
        float *got = malloc(sizeof *got * (size_t)k), *want = malloc(sizeof *want * (size_t)k);
        for (int32_t row = 0; row < 16; row++) {
            cpu_pack_row(got, &m, row);
            memset(want, 0, sizeof *want * (size_t)k); // rows that are not there are zero
            if (row < n)
                quant_dequant_row_f32(want, q + (size_t)row * words, scale + (size_t)row * per_row,
                                      bias + (size_t)row * per_row, k, bits, group);
            for (int32_t i = 0; i < k; i++)
                assert_true(got[i] == want[i]);
        }
        free(got);
        free(want);
        free(q);
        guard_free(strip, bytes);
    }
}

static void tile_layout_is_as_documented(void **state) {
    UNUSED(state);
    uint32_t q4[16 * 8] = {0}, q8[16 * 16] = {0};
    uint16_t scale[16] = {0}, bias[16] = {0};
    uint8_t tile4[TILE_BYTES_Q4], tile8[TILE_BYTES_Q8];
    int32_t row = 5, k = 29; // line 3; 8 * 3 + 5: high nibble of byte 1
    q4[row * 8 + k / 8] = 0xbu << 4 * (k % 8);
    q8[row * 16 + k / 4] = 0xcdu << 8 * (k % 4);
    scale[row] = 0x1234;
    bias[row] = 0x5678;
    cpu_pack_strip(tile4, q4, scale, bias, 16, 1, 4, 64);
    cpu_pack_strip(tile8, q8, scale, bias, 16, 1, 8, 64);
    for (size_t i = 0; i < 512; i++)
        assert_int_equal(tile4[i], i == 3 * 64 + 5 * 4 + 1 ? 0xb0 : 0);
    for (size_t i = 0; i < 1024; i++)
        assert_int_equal(tile8[i], i == 7 * 64 + 5 * 4 + 1 ? 0xcd : 0);
    assert_memory_equal(tile4 + 512, tile8 + 1024, 64);
    assert_int_equal(tile4[512 + 2 * 5], 0x34);
    assert_int_equal(tile4[512 + 32 + 2 * 5], 0x78);
}

/* ---- a whole model ---- */

typedef struct Seen {
    uint64_t done, total, n_calls;
    bool is_ascending;
} Seen;

static void progress_see(void *ctx, const char *what, uint64_t done, uint64_t total) {
    Seen *seen = ctx;
    assert_non_null(what);
    seen->is_ascending &= done >= seen->done && done <= total;
    seen->done = done;
    seen->total = total;
    seen->n_calls++;
}

static void matrix_check(const Weights *w, const PackedMatrix *m, WeightSlot slot, int layer) {
    WeightInfo info = weights_info(w, slot, layer);
    size_t words = (size_t)(info.k * info.bits / 32), scales = (size_t)(info.k / info.group);
    uint32_t *q = malloc(sizeof *q * words);
    uint16_t *scale = malloc(sizeof *scale * scales), *bias = malloc(sizeof *bias * scales);
    float *want = malloc(sizeof *want * (size_t)info.k),
          *got = malloc(sizeof *got * (size_t)info.k);
    Err err = {0};
    for (int64_t row = 0; row < (int64_t)info.n_experts * info.n; row += 1 + row % 3) {
        PackedMatrix expert = *m;
        expert.tiles += (size_t)(row / info.n) * m->expert_bytes;
        assert_int_equal(weights_read_quant(w, slot, layer, row, 1, q, scale, bias, &err),
                         STATUS_OK);
        quant_dequant_row_f32(want, q, scale, bias, info.k, info.bits, info.group);
        cpu_pack_row(got, &expert, (int32_t)(row % info.n));
        assert_memory_equal(got, want, sizeof *got * (size_t)info.k);
    }
    free(q);
    free(scale);
    free(bias);
    free(want);
    free(got);
}

static void model_check(const char *spec, int n_threads) {
    Weights *w;
    Pool *pool;
    Err err = {0};
    size_t size, again;
    CpuModel *model = malloc(sizeof *model);
    if (weights_open(&w, spec, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(pool_open(&pool, n_threads, &err), STATUS_OK);
    assert_int_equal(cpu_pack_layout(model, &size, w, NULL, &err), STATUS_OK);
    size = round_up_size(size, 64);
    uint8_t *base = guard_alloc(size);
    assert_int_equal(cpu_pack_layout(model, &again, w, base, &err), STATUS_OK);
    assert_int_equal(round_up_size(again, 64), size);
    Seen seen = {.is_ascending = true};
    Progress progress = {progress_see, &seen};
    assert_int_equal(cpu_pack_model(model, w, pool, &progress, &err), STATUS_OK);
    assert_true(seen.is_ascending && seen.n_calls > 1);
    assert_int_equal(seen.done, seen.total);
    assert_int_equal(seen.total, weights_total_bytes(w));
    const ModelConfig *c = weights_config(w);
    for (int layer = -1; layer < c->n_layers; layer++) {
        const CpuLayer *l = layer < 0 ? &model->top : &model->layers[layer];
        for (WeightSlot slot = 0; slot < SLOT_N; slot++)
            if (l->m[slot].tiles && !(layer < 0 && slot == SLOT_HEAD && c->is_tied))
                matrix_check(w, &l->m[slot], slot, layer);
    }
    guard_free(base, size);
    pool_close(pool);
    weights_close(w);
    free(model);
}

static void whole_models_are_packed_exactly(void **state) {
    UNUSED(state);
    model_check("tests/data/oracle/tiny-a", 1);
    model_check("tests/data/oracle/tiny-b", 3);
}

/* Each allocation fails once in turn; the error says so and nothing is left behind. */
static void packing_reports_missing_memory(void **state) {
    UNUSED(state);
    Weights *w;
    Pool *pool;
    Err err = {0};
    size_t size;
    CpuModel *model = malloc(sizeof *model);
    assert_int_equal(weights_open(&w, "tests/data/oracle/tiny-a", NULL, &err), STATUS_OK);
    assert_int_equal(pool_open(&pool, 2, &err), STATUS_OK);
    assert_int_equal(cpu_pack_layout(model, &size, w, NULL, &err), STATUS_OK);
    uint8_t *base = mem_alloc_aligned(size);
    assert_int_equal(cpu_pack_layout(model, &size, w, base, &err), STATUS_OK);
    Status status = STATUS_MEMORY;
    int64_t n = 0;
    for (; status != STATUS_OK; n++) {
        err = (Err){0};
        mem_fail_after(n);
        status = cpu_pack_model(model, w, pool, NULL, &err);
        mem_fail_after(-1);
        if (status != STATUS_OK) {
            assert_int_equal(status, STATUS_MEMORY);
            assert_true(err.text[0] != 0);
        }
        assert_true(n < 1000);
    }
    assert_true(n > 5);
    mem_free(base);
    pool_close(pool);
    weights_close(w);
    free(model);
}

static void column_masks(void **state) {
    UNUSED(state);
    Err err = {0};
    uint32_t mask = 99;
    assert_int_equal(cpu_features_parse_mask(&mask, NULL, &err), STATUS_OK);
    assert_int_equal(mask, 0);
    assert_int_equal(cpu_features_parse_mask(&mask, "", &err), STATUS_OK);
    assert_int_equal(mask, 0);
    assert_int_equal(cpu_features_parse_mask(&mask, "amx,avx512", &err), STATUS_OK);
    assert_int_equal(mask, 1u << COLUMN_AMX | 1u << COLUMN_AVX512);
    static const char *const bad[] = {"generic", "avx", "avx5120", "avx512,", "avx512, amx", ","};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        bool is_trailing = strcmp(bad[i], "avx512,") == 0; // an empty last name is none
        assert_int_equal(cpu_features_parse_mask(&mask, bad[i], &err),
                         is_trailing ? STATUS_OK : STATUS_INVALID);
        if (!is_trailing)
            assert_non_null(strstr(err.text, "cpu mask"));
    }
    KernelTable t;
    cpu_features_choose(&t, 1u << COLUMN_AMX, false); // goes alone
    assert_string_not_equal(t.matmul.column, "amx");
    assert_string_not_equal(t.attn.column, "amx");
    KernelTable best;
    cpu_features_choose(&best, 0, false);
    bool has_avx512 = strcmp(t.matmul.column, "avx512") == 0;
    bool has_amx = has_avx512 && cpu_features_amx() == AMX_GRANTED;
    assert_string_equal(best.matmul.column, has_amx ? "amx" : t.matmul.column);
    assert_string_equal(best.attn.column, has_amx ? "amx" : t.attn.column);
    cpu_features_choose(&t, 1u << COLUMN_AVX512, false); // takes amx along
    assert_string_equal(t.matmul.column, "generic");
    cpu_features_choose(&t, 0, true); // 16-bit activations and weights in bf16 are not f32
    assert_string_equal(t.matmul.column, "generic");
    assert_string_equal(t.attn.column, "generic");
    bool is_refused = cpu_features_amx() == AMX_REFUSED;
    assert_int_equal(strstr(cpu_features_amx_note(), "refused") != NULL, is_refused);
    cpu_features_choose(&t, (uint32_t)ALL_COLUMNS, false);
    assert_string_equal(t.matmul.column, "generic");
    assert_string_equal(t.attn.column, "generic");
    assert_string_equal(t.recur.column, "generic");
    assert_string_equal(t.elem.column, "generic");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strips_hold_every_code_and_scale),
        cmocka_unit_test(tile_layout_is_as_documented),
        cmocka_unit_test(whole_models_are_packed_exactly),
        cmocka_unit_test(packing_reports_missing_memory),
        cmocka_unit_test(column_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
