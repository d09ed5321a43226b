// SPDX-License-Identifier: Apache-2.0
/* test_oracle_ref64.c - the reference backend in f64 against everything that the oracle lists. */
#define REF_KIND BACKEND_REF64
#define REF_IS_F64 true
#include "test_oracle_ref.c"
