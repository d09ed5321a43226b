// SPDX-License-Identifier: Apache-2.0
/* test_quant.c - affine quantisation against MLX: dequantisation of the fixture, codes of the CPU
 * back end bit for bit.
 *
 * Owns:     nothing.  Thread: one. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/quant.h"

#include "unit.h"

#include <math.h>

/* [n] values of a list. */
static void list_u32(const json_t *list, uint32_t *out, size_t n) {
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
}

static void list_bits(const json_t *list, uint16_t *out, size_t n) {
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint16_t)json_integer_value(json_array_get(list, i));
}

/* Numbers that are exact in bf16. */
static void list_bf16(const json_t *list, uint16_t *out, size_t n) {
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, i));
        out[i] = bf16_from_f32((float)x);
        assert_true((double)bf16_to_f32(out[i]) == x);
    }
}

static int64_t member_int(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* Each case of the fixture: dequantised values equal to the last bit. */
static void dequant_equals_fixture(void **state) {
    UNUSED(state);
    Err err = {0};
    json_t *root;
    assert_int_equal(json_read_file(&root, "tests/data/goldens/quant_fixture.json", 1 << 20, &err),
                     STATUS_OK);
    const json_t *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 6);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c);
        int bits = (int)member_int(one, "bits"), group = (int)member_int(one, "group_size");
        int64_t n = member_int(one, "rows"), k = member_int(one, "cols");
        size_t n_words = (size_t)(n * k * bits / 32), n_groups = (size_t)(n * k / group);
        uint32_t *q = mem_zalloc(n_words, sizeof *q);
        uint16_t *scale = mem_zalloc(n_groups, sizeof *scale),
                 *bias = mem_zalloc(n_groups, sizeof *bias);
        float *f32 = mem_zalloc((size_t)k, sizeof *f32);
        double *f64 = mem_zalloc((size_t)k, sizeof *f64);
        list_u32(json_object_get(one, "codes"), q, n_words);
        list_bf16(json_object_get(one, "scales"), scale, n_groups);
        list_bf16(json_object_get(one, "biases"), bias, n_groups);
        const json_t *expected = json_object_get(one, "expected");
        assert_int_equal(json_array_size(expected), (size_t)(n * k));
        for (int64_t r = 0; r < n; r++) {
            const uint32_t *row = q + r * k * bits / 32;
            const uint16_t *s = scale + r * k / group, *b = bias + r * k / group;
            quant_dequant_row_f32(f32, row, s, b, k, bits, group);
            quant_dequant_row_f64(f64, row, s, b, k, bits, group);
            for (int64_t i = 0; i < k; i++) {
                double x = json_number_value(json_array_get(expected, (size_t)(r * k + i)));
                assert_true((double)f32[i] == x);
                assert_true((float)f64[i] == f32[i]);
            }
        }
        mem_free(q);
        mem_free(scale);
        mem_free(bias);
        mem_free(f32);
        mem_free(f64);
    }
    json_decref(root);
}

/* Codes, scales and biases of mx.quantize: 4 and 8 bits, groups of 32, 64, 128; random, constant,
 * zero, all-negative, tiny and two-valued groups. */
static void quantize_equals_mlx_cpu(void **state) {
    UNUSED(state);
    Err err = {0};
    json_t *root;
    assert_int_equal(json_read_file(&root, "tests/data/quant/mlx_cpu.json", 1 << 20, &err),
                     STATUS_OK);
    const json_t *cases = json_object_get(root, "cases");
    assert_int_equal(json_array_size(cases), 6);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *one = json_array_get(cases, c);
        int bits = (int)member_int(one, "bits"), group = (int)member_int(one, "group");
        int64_t n = member_int(one, "rows"), k = member_int(one, "k");
        size_t n_words = (size_t)(k * bits / 32), n_groups = (size_t)(k / group);
        uint16_t w_bits[256];
        float w[256];
        uint32_t q[64], q_expected[640];
        uint16_t scale[8], bias[8], scale_expected[80], bias_expected[80];
        list_u32(json_object_get(one, "q"), q_expected, n_words * (size_t)n);
        list_bits(json_object_get(one, "scales"), scale_expected, n_groups * (size_t)n);
        list_bits(json_object_get(one, "biases"), bias_expected, n_groups * (size_t)n);
        const json_t *all = json_object_get(one, "w");
        for (size_t r = 0; r < (size_t)n; r++) {
            for (size_t i = 0; i < (size_t)k; i++) {
                w_bits[i] = (uint16_t)json_integer_value(json_array_get(all, r * (size_t)k + i));
                w[i] = bf16_to_f32(w_bits[i]);
            }
            memset(q, 0xff, sizeof q);
            quant_quantize_row(q, scale, bias, w, k, bits, group);
            assert_memory_equal(q, q_expected + r * n_words, n_words * sizeof *q);
            assert_memory_equal(scale, scale_expected + r * n_groups, n_groups * sizeof *scale);
            assert_memory_equal(bias, bias_expected + r * n_groups, n_groups * sizeof *bias);
        }
    }
    json_decref(root);
}

/* The check vector of the format: a ramp, whose halves tell the CPU path (to even) from Metal. */
static void ramp_has_the_known_words(void **state) {
    UNUSED(state);
    static const uint32_t METAL[8] = {0x22111100u, 0x44333322u, 0x66555544u, 0x88777766u,
                                      0xaa999988u, 0xccbbbbaau, 0xeeddddccu, 0xffffffeeu};
    float w[64];
    for (int i = 0; i < 64; i++)
        w[i] = -16.0f + 0.5f * (float)i;
    uint32_t q[8];
    uint16_t scale, bias;
    quant_quantize_row(q, &scale, &bias, w, 64, 4, 64);
    assert_true(bf16_to_f32(scale) == 2.0f && bf16_to_f32(bias) == -16.0f);
    for (int i = 0; i < 64; i++) {
        int code = (int)quant_code(q, i, 4), metal = (int)quant_code(METAL, i, 4);
        float exact = (w[i] + 16.0f) / 2.0f;
        bool is_half = exact - floorf(exact) == 0.5f;
        if (is_half && exact < 15.0f)
            assert_true(code % 2 == 0 && abs(code - metal) <= 1);
        else
            assert_int_equal(code, metal);
    }
    for (int i = 0; i < 64; i++)
        w[i] = 3.25f;
    quant_quantize_row(q, &scale, &bias, w, 64, 4, 64);
    for (int i = 0; i < 8; i++)
        assert_int_equal(q[i], 0);
    assert_true(bf16_to_f32(scale) == bf16_round(-1e-7f) && bf16_to_f32(bias) == 3.25f);
}

/* Code k is where the format says, for each place in a word. */
static void code_places(void **state) {
    UNUSED(state);
    const uint32_t words[2] = {0x76543210u, 0xfedcba98u};
    for (int i = 0; i < 16; i++)
        assert_int_equal(quant_code(words, i, 4), i);
    const unsigned char *bytes = (const unsigned char *)words;
    for (int i = 0; i < 8; i++)
        assert_int_equal(quant_code(words, i, 8), bytes[i]);
}

/* f32 is the f64 value rounded once, for any scales, biases and codes. */
static void dequant_rounds_once(void **state) {
    UNUSED(state);
    const uint64_t seed = 7;
    print_message("seed %d\n", (int)seed);
    for (uint64_t round = 0; round < 2000; round++) {
        int bits = round % 2 ? 8 : 4, group = 32 << round % 3;
        uint32_t q[64];
        uint16_t scale[8], bias[8];
        for (uint64_t i = 0; i < 64; i++)
            q[i] = (uint32_t)rng_u64(seed + round, i);
        for (uint64_t i = 0; i < 8; i++) { // magnitudes 2^-13 to 2^2, any sign and mantissa
            uint64_t u = rng_u64(seed + round, 100 + i);
            scale[i] = (uint16_t)((u & 0x807f) | (114 + (u >> 16) % 16) << 7);
            bias[i] = (uint16_t)((u >> 24 & 0x807f) | (114 + (u >> 40) % 16) << 7);
        }
        float f32[256];
        double f64[256];
        int64_t k = 256;
        quant_dequant_row_f32(f32, q, scale, bias, k, bits, group);
        quant_dequant_row_f64(f64, q, scale, bias, k, bits, group);
        for (int64_t i = 0; i < k; i++)
            assert_true(f32[i] == (float)f64[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequant_equals_fixture),   cmocka_unit_test(quantize_equals_mlx_cpu),
        cmocka_unit_test(ramp_has_the_known_words), cmocka_unit_test(code_places),
        cmocka_unit_test(dequant_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
