// SPDX-License-Identifier: Apache-2.0
/* unicode.c - look-ups in the generated tables; Hangul syllables by arithmetic.
 *
 * Owns:     constant data.  Thread: any.
 * Source:   Unicode Standard, section 3.12 (Hangul) and annex 15 (normalisation forms). */
#include "unicode.h"

#include "unicode_tables.h"

enum {
    HANGUL_L = 0x1100, // first leading consonant, vowel, and one before the first trailing one
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11a7,
    HANGUL_S = 0xac00, // first syllable
    HANGUL_N_L = 19,
    HANGUL_N_V = 21,
    HANGUL_N_T = 28,
    HANGUL_N_S = HANGUL_N_L * HANGUL_N_V * HANGUL_N_T,
};

unsigned unicode_ccc(uint32_t c) {
    return unicode_ccc_pages[(size_t)unicode_ccc_index[c / UNICODE_PAGE] * UNICODE_PAGE +
                             c % UNICODE_PAGE];
}

/* True when c lies in [first, first + n). */
static int unicode_within(uint32_t c, uint32_t first, uint32_t n) {
    return c >= first && c - first < n;
}

size_t unicode_decompose(uint32_t c, uint32_t out[UNICODE_MAX_DECOMP]) {
    if (unicode_within(c, HANGUL_S, HANGUL_N_S)) {
        uint32_t s = c - HANGUL_S, t = s % HANGUL_N_T;
        out[0] = HANGUL_L + s / (HANGUL_N_V * HANGUL_N_T);
        out[1] = HANGUL_V + s / HANGUL_N_T % HANGUL_N_V;
        out[2] = HANGUL_T + t;
        return t ? 3 : 2;
    }
    size_t n_keys = sizeof unicode_decomp_keys / sizeof unicode_decomp_keys[0];
    size_t low = 0, high = n_keys;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (unicode_decomp_keys[mid] < c)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == n_keys || unicode_decomp_keys[low] != c) {
        out[0] = c;
        return 1;
    }
    size_t n = (size_t)(unicode_decomp_offsets[low + 1] - unicode_decomp_offsets[low]);
    for (size_t i = 0; i < n; i++)
        out[i] = unicode_decomp_pool[unicode_decomp_offsets[low] + i];
    return n;
}

uint32_t unicode_compose(uint32_t a, uint32_t b) {
    if (unicode_within(a, HANGUL_L, HANGUL_N_L) && unicode_within(b, HANGUL_V, HANGUL_N_V))
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_N_V + (b - HANGUL_V)) * HANGUL_N_T;
    if (unicode_within(a, HANGUL_S, HANGUL_N_S) && (a - HANGUL_S) % HANGUL_N_T == 0 &&
        unicode_within(b, HANGUL_T + 1, HANGUL_N_T - 1))
        return a + (b - HANGUL_T);
    uint64_t key = (uint64_t)a << 32 | b;
    size_t n_keys = sizeof unicode_compose_keys / sizeof unicode_compose_keys[0];
    size_t low = 0, high = n_keys;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (unicode_compose_keys[mid] < key)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n_keys && unicode_compose_keys[low] == key ? unicode_compose_values[low] : 0;
}
