// SPDX-License-Identifier: Apache-2.0
/* unit.h - cmocka with the headers that it needs before it, in the order that it needs them.
 *
 * Owns:     nothing.  Thread: one. */
#ifndef LILY_TESTS_UNIT_H
#define LILY_TESTS_UNIT_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#endif
