// SPDX-License-Identifier: Apache-2.0
/* fuzz_safetensors.c - any bytes as the header of a file with 64 KiB of data: what is accepted
 * must lie inside it, in order, apart, and be found by name.
 *
 * Owns:     nothing.  Thread: one. */
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena arena = {0};
    SafetensorsTable table = {0};
    Err err = {0};
    uint64_t file_size = 8 + size + 65536;
    Status status = safetensors_parse_header(&table, &arena, str_view((const char *)data, size),
                                             file_size, "fuzz.safetensors", &err);
    CHECK((status == STATUS_OK) == (err.text[0] == 0));
    if (status == STATUS_OK) {
        Safetensors file = {.fd = -1, .size = file_size, .path = "fuzz", .table = table};
        uint64_t total = 0;
        for (size_t i = 0; i < table.n; i++) {
            const SafetensorsTensor *t = &table.tensors[i];
            uint64_t n_bytes = safetensors_dtype_size(t->dtype);
            for (int d = 0; d < t->rank; d++)
                n_bytes *= t->shape[d];
            CHECK(t->n_bytes == n_bytes && t->begin >= 8 + size && t->begin <= file_size &&
                  t->n_bytes <= file_size - t->begin);
            CHECK(i == 0 || str_compare(table.tensors[i - 1].name, t->name) < 0);
            CHECK(safetensors_find(&file, t->name) == t);
            total += n_bytes;
        }
        CHECK(total == table.tensor_bytes && total <= 65536);
    }
    arena_fini(&arena);
    return 0;
}
