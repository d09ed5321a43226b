// SPDX-License-Identifier: Apache-2.0
/* bench_products.h - a part of bench_cuda.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_BENCH_BENCH_PRODUCTS_H
#define LILY_BENCH_BENCH_PRODUCTS_H

/* Times every prefill product of the large model and prints a table. */
void bench_products(void);

#endif
