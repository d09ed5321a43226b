// SPDX-License-Identifier: Apache-2.0
/* ref64.c - the reference backend once more, with every value in f64.
 *
 * Path:     backend.c calls it through backend_ref64_table; all code is in ref.c. */
#define REF_REAL double
#define REF_NAME "ref64"
#define REF_KIND BACKEND_REF64
#define REF_TABLE backend_ref64_table
#include "ref.c"
