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

static void emulated(Tiles *t, Shape s) {
    Config config = config_of(s);
    amx_emu_loadconfig(&config);
    amx_emu_loadd(0, t->c, 64);
    amx_emu_loadd(1, t->a, 64);
    amx_emu_stream_loadd(2, t->b, 64);
    amx_emu_dpbf16ps(0, 1, 2);
    amx_emu_stored(0, t->c, 64);
    amx_emu_release();
}

static void tiles_fill(Tiles *t, Random *r) {
    for (int i = 0; i < 16; i++)
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

static double value_of(const uint8_t *p, int i) {
    uint16_t half;
    memcpy(&half, p + 2 * i, sizeof half);
    return (double)bf16_to_f32(half);
}

static void products_are_the_plain_sums(void **state) {
    UNUSED(state);
    Random r = random_open(__func__);
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Shape s = shapes[i];
        Tiles t, was;
        tiles_fill(&t, &r);
        was = t;
        emulated(&t, s);
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                double sum = 0, size = 0;
                float got, before;
                memcpy(&got, &t.c[m][4 * n], sizeof got);
                memcpy(&before, &was.c[m][4 * n], sizeof before);
                for (int k = 0; k < 2 * s.k && m < s.m && n < s.n; k++) {
                    double v = value_of(was.a[m], k) * value_of(&was.b[k / 2][4 * n], k % 2);
                    sum += v;
                    size += fabs(v);
                }
                if (m < s.m && n < s.n)
                    ASSERT_NEAR(got, (double)before + sum, 1e-6 * (size + 1), "%d, %d", m, n);
                else // memory beyond the tile keeps what it has
                    assert_true(got == before);
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
    emulated(&t, (Shape){1, 1, 1});
    memcpy(&got, t.c[0], 4);
    assert_true(got == 0.0f);
}

#if defined(__x86_64__)
__attribute__((target("amx-tile,amx-bf16"))) static void real(Tiles *t, Shape s) {
    Config config = config_of(s);
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
    _tile_loadd(0, t->c, 64);
    _tile_loadd(1, t->a, 64);
    _tile_stream_loadd(2, t->b, 64);
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
            for (size_t i = 0; i < COUNT_OF(shapes); i++) {
                Tiles t, u;
                tiles_fill(&t, &r);
                u = t;
                emulated(&t, shapes[i]);
                real(&u, shapes[i]);
                for (int m = 0; m < 16; m++)
                    for (int n = 0; n < 16; n++) {
                        uint32_t a, b;
                        memcpy(&a, &t.c[m][4 * n], 4);
                        memcpy(&b, &u.c[m][4 * n], 4);
                        if (a != b)
                            fail_msg("shape %zu: %d, %d: emulated %08x, CPU %08x", i, m, n, a, b);
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
