// SPDX-License-Identifier: Apache-2.0
/* test_amx_emu.c - the emulated tile instructions against plain sums, and where the CPU has AMX
 * against its own, to the bit. */
#include "cpu_kernels.h"

#include "../emu/amx_emu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct Config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} Config;

typedef enum Product { SUD, UUD, BF16, PRODUCTS } Product;

/* c [m][n] += a [m][k] b [k][n], elements of 4 bytes, rows of 64 bytes in memory. */
typedef struct Shape {
    int m, n, k;
} Shape;

static Config config_of(Shape s) {
    Config c = {.palette = 1};
    c.rows[0] = c.rows[1] = (uint8_t)s.m;
    c.rows[2] = (uint8_t)s.k;
    c.row_bytes[0] = c.row_bytes[2] = (uint16_t)(4 * s.n);
    c.row_bytes[1] = (uint16_t)(4 * s.k);
    return c;
}

typedef struct Tiles {
    _Alignas(64) uint8_t c[16][64], a[16][64], b[16][64];
} Tiles;

static void emulated(Tiles *t, Shape s, Product product) {
    Config config = config_of(s);
    amx_emu_loadconfig(&config);
    amx_emu_loadd(0, t->c, 64);
    amx_emu_loadd(1, t->a, 64);
    amx_emu_loadd(2, t->b, 64);
    if (product == SUD)
        amx_emu_dpbsud(0, 1, 2);
    else if (product == UUD)
        amx_emu_dpbuud(0, 1, 2);
    else
        amx_emu_dpbf16ps(0, 1, 2);
    amx_emu_stored(0, t->c, 64);
    amx_emu_release();
}

static void tiles_fill(Tiles *t, Random *r, Product product) {
    uint8_t *bytes = (uint8_t *)t;
    for (size_t i = 0; i < sizeof *t; i++)
        bytes[i] = (uint8_t)random_u64(r);
    for (int i = 0; product == BF16 && i < 16; i++)
        for (int j = 0; j < 32; j++) {
            uint16_t a = bf16_from_f32(random_normal(r)), b = bf16_from_f32(random_normal(r));
            memcpy(&t->a[i][2 * j], &a, sizeof a);
            memcpy(&t->b[i][2 * j], &b, sizeof b);
            float c = random_normal(r);
            memcpy(&t->c[i][2 * j / 4 * 4], &c, sizeof c);
        }
}

static const Shape shapes[] = {{16, 16, 16}, {1, 1, 1}, {16, 1, 3}, {3, 16, 16},
                               {4, 16, 16},  {7, 5, 9}, {15, 2, 1}, {2, 15, 16}};

static double value_of(const uint8_t *p, int i, Product product, bool is_left) {
    uint16_t half;
    memcpy(&half, p + 2 * i, sizeof half);
    if (product == BF16)
        return (double)bf16_to_f32(half);
    return product == SUD && is_left ? (int8_t)p[i] : p[i];
}

static void products_are_the_plain_sums(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    for (Product product = 0; product < PRODUCTS; product++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++) {
            Shape s = shapes[i];
            Tiles t, was;
            int per = product == BF16 ? 2 : 4; // factors of one element
            tiles_fill(&t, &r, product);
            was = t;
            emulated(&t, s, product);
            for (int m = 0; m < 16; m++)
                for (int n = 0; n < 16; n++) {
                    double sum = 0, size = 0;
                    float got, before;
                    int32_t got_int, before_int;
                    memcpy(&got, &t.c[m][4 * n], sizeof got);
                    memcpy(&before, &was.c[m][4 * n], sizeof before);
                    memcpy(&got_int, &got, sizeof got);
                    memcpy(&before_int, &before, sizeof before);
                    for (int k = 0; k < s.k * per && m < s.m && n < s.n; k++) {
                        double v = value_of(was.a[m], k, product, true) *
                                   value_of(&was.b[k / per][4 * n], k % per, product, false);
                        sum += v;
                        size += fabs(v);
                    }
                    if (product == BF16 && m < s.m && n < s.n)
                        ASSERT_NEAR(got, (double)before + sum, 1e-6 * (size + 1), "%d, %d", m, n);
                    else // modulo 2^32; memory beyond the tile keeps what it has
                        assert_int_equal((uint32_t)got_int,
                                         (uint32_t)((int64_t)before_int + (int64_t)sum));
                }
        }
}

static void subnormal_numbers_count_as_zero(void **state) {
    UNUSED(state);
    Tiles t = {0};
    uint16_t one = bf16_from_f32(1), tiny = 1; // the least subnormal bf16
    float c = 1e-39f, got;
    memcpy(t.a[0], &one, 2);
    memcpy(t.b[0], &tiny, 2);
    memcpy(t.c[0], &c, 4);
    emulated(&t, (Shape){1, 1, 1}, BF16);
    memcpy(&got, t.c[0], 4);
    assert_true(got == 0.0f);
}

#if defined(__x86_64__)
__attribute__((target("amx-tile,amx-int8,amx-bf16"))) static void real(Tiles *t, Shape s,
                                                                       Product product) {
    Config config = config_of(s);
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
    _tile_loadd(0, t->c, 64);
    _tile_loadd(1, t->a, 64);
    _tile_loadd(2, t->b, 64);
    if (product == SUD)
        _tile_dpbsud(0, 1, 2);
    else if (product == UUD)
        _tile_dpbuud(0, 1, 2);
    else
        _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, t->c, 64);
    _tile_release();
}
#endif

static void the_cpu_gives_the_same_bits(void **state) {
    UNUSED(state);
#if defined(__x86_64__)
    if (cpu_features_amx() == AMX_GRANTED) {
        Random r = random_open(__func__);
        for (int round = 0; round < 200; round++)
            for (Product product = 0; product < PRODUCTS; product++)
                for (size_t i = 0; i < COUNT_OF(shapes); i++) {
                    Tiles t, u;
                    tiles_fill(&t, &r, product);
                    u = t;
                    emulated(&t, shapes[i], product);
                    real(&u, shapes[i], product);
                    for (int m = 0; m < 16; m++)
                        for (int n = 0; n < 16; n++) {
                            uint32_t a, b;
                            memcpy(&a, &t.c[m][4 * n], 4);
                            memcpy(&b, &u.c[m][4 * n], 4);
                            if (a != b)
                                fail_msg("product %d, shape %zu: %d, %d: emulated %08x, CPU %08x",
                                         product, i, m, n, a, b);
                        }
                }
        return;
    }
#endif
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_plain_sums),
        cmocka_unit_test(subnormal_numbers_count_as_zero),
        cmocka_unit_test(the_cpu_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
