// SPDX-License-Identifier: Apache-2.0
/* test_cuda_layout.c - places of codes and digits of the CUDA backend: each place once, and the
 * registers that a lane takes out of them are the operands that the matrix instructions want. */
#include "backend/cuda/cuda_layout.h"
#include "unit.h"

#include <string.h>

enum { GROUP = 64, ROWS = 16 };

static void every_digit_has_a_place_of_its_own(void **state) {
    (void)state;
    int seen[GROUP] = {0};
    for (int32_t k = 0; k < GROUP; k++) {
        int32_t at = cuda_layout_digit(k);
        assert_in_range(at, 0, GROUP - 1);
        assert_int_equal(seen[at]++, 0);
    }
}

static void every_code_has_bits_of_its_own(void **state) {
    (void)state;
    static uint32_t four[128], eight[256];
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t k = 0; k < GROUP; k++) {
            int32_t w = cuda_layout_word4(row, k), v = cuda_layout_word8(row, k);
            assert_in_range(w, 0, 127);
            assert_in_range(v, 0, 255);
            uint32_t bits4 = 15u << cuda_layout_shift4(k), bits8 = 255u << cuda_layout_shift8(k);
            assert_int_equal(four[w] & bits4, 0);
            assert_int_equal(eight[v] & bits8, 0);
            four[w] |= bits4;
            eight[v] |= bits8;
        }
    for (int i = 0; i < 256; i++) {
        assert_int_equal(eight[i], 0xffffffffu);
        assert_int_equal(four[i % 128], 0xffffffffu);
    }
}

static void every_row_has_a_scale_of_its_own(void **state) {
    (void)state;
    int seen[ROWS] = {0};
    for (int32_t row = 0; row < ROWS; row++)
        assert_int_equal(seen[cuda_layout_scale(row)]++, 0);
}

/* The bytes that a lane's masks take out of its words stand at the very places where its bytes of
 * digits have the same input: then the sums of products are those of the rows. 4 bits: word, and
 * low or high nibbles; 8 bits: the word. */
static void codes_and_digits_of_a_lane_belong_together(void **state) {
    (void)state;
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t k = 0; k < GROUP; k++) {
            int32_t digit = cuda_layout_digit(k);
            int32_t lane_j = digit / 16, reg = digit % 16 / 4, byte = digit % 4;
            int32_t w = cuda_layout_word4(row, k);
            assert_int_equal(w / 4, row % 8 * 4 + lane_j); // lane
            assert_int_equal(w % 4, row / 8 * 2 + reg / 2);
            assert_int_equal(cuda_layout_shift4(k), 8 * byte + 4 * (reg % 2));
            int32_t v = cuda_layout_word8(row, k);
            assert_int_equal(v, (row % 8 * 4 + lane_j) * 8 + row / 8 * 4 + reg);
            assert_int_equal(cuda_layout_shift8(k), 8 * byte);
        }
}

/* bf16: pair i of a word is the codes at bits 4 i and 16 + 4 i; of step t (16 inputs) the A operand
 * of m16n8k16 wants inputs 2 j, 2 j + 1 in its first half, 2 j + 8, 2 j + 9 in the second. */
static void pairs_of_codes_are_neighbours(void **state) {
    (void)state;
    for (int32_t t = 0; t < 4; t++)
        for (int32_t half = 0; half < 2; half++)
            for (int32_t j = 0; j < 4; j++) {
                int32_t k = 16 * t + 8 * half + 2 * j, shift = 8 * (t % 2) + 4 * half;
                assert_int_equal(cuda_layout_word4(3, k), cuda_layout_word4(3, k + 1));
                assert_int_equal(cuda_layout_shift4(k), shift);
                assert_int_equal(cuda_layout_shift4(k + 1), shift + 16);
                assert_int_equal(cuda_layout_word4(3, k) % 2, t / 2);
            }
}

/* Pieces of a context: multiples of the unit, at most so many, none empty. */
static void contexts_are_cut_by_their_own_length(void **state) {
    (void)state;
    static const int32_t lengths[] = {1, 127, 128, 129, 4096, 8191, 8192, 8193, 131072, 262144};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int32_t piece = cuda_layout_split(lengths[i], 128, 64);
        int32_t n = (lengths[i] + piece - 1) / piece;
        assert_int_equal(piece % 128, 0);
        assert_in_range(n, 1, 64);
        assert_true((n - 1) * piece < lengths[i]);
    }
    assert_int_equal(cuda_layout_split(8192, 128, 64), 128);
    assert_int_equal(cuda_layout_split(8193, 128, 64), 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_digit_has_a_place_of_its_own),
        cmocka_unit_test(every_code_has_bits_of_its_own),
        cmocka_unit_test(every_row_has_a_scale_of_its_own),
        cmocka_unit_test(codes_and_digits_of_a_lane_belong_together),
        cmocka_unit_test(pairs_of_codes_are_neighbours),
        cmocka_unit_test(contexts_are_cut_by_their_own_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
