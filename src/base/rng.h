// SPDX-License-Identifier: Apache-2.0
/* rng.h - random numbers as a pure function of a key and a counter, so that any thread can make
 * any one of them and a result never depends on who asked first.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_RNG_H
#define LILY_BASE_RNG_H

#include <stdint.h>

/* 64 well-mixed bits of (key, counter).
 * Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied to both words. */
static inline uint64_t rng_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static inline uint64_t rng_u64(uint64_t key, uint64_t counter) {
    return rng_mix(rng_mix(key) ^ rng_mix(counter * 0xd1342543de82ef95u + 1));
}
/* Number i of the stream that starts at key: half the work of rng_u64, for bulk. Keys must be mixed
 * themselves (by rng_u64), or streams overlap.
 * Source: SplitMix64 as published. */
static inline uint64_t rng_stream(uint64_t key, uint64_t i) {
    return rng_mix(key + i * 0x9e3779b97f4a7c15u);
}

/* Uniform in [0, 1): 53 bits, 24 bits. */
static inline double rng_unit_f64(uint64_t key, uint64_t counter) {
    return (double)(rng_u64(key, counter) >> 11) * 0x1p-53;
}
static inline float rng_unit_f32(uint64_t key, uint64_t counter) {
    return (float)(rng_u64(key, counter) >> 40) * 0x1p-24f;
}

#endif
