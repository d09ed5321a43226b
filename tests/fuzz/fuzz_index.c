// SPDX-License-Identifier: Apache-2.0
/* fuzz_index.c - any bytes as model.safetensors.index.json: what is accepted names plain files in
 * order, and every tensor is found.
 *
 * Owns:     nothing.  Thread: one. */
#include "base/limits.h"
#include "checkpoint/ckpt_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Arena arena = {0};
    CkptIndex index = {0};
    Err err = {0};
    Status status =
        ckpt_index_parse(&index, &arena, str_view((const char *)data, size), "index.json", &err);
    CHECK((status == STATUS_OK) == (err.text[0] == 0));
    if (status == STATUS_OK) {
        CHECK(index.n > 0 && index.n_files > 0 && index.n_files <= LIMIT_SHARDS);
        for (int32_t i = 0; i < index.n_files; i++) {
            CHECK(!strchr(index.files[i], '/') && index.files[i][0] != '.');
            CHECK(i == 0 || strcmp(index.files[i - 1], index.files[i]) < 0);
        }
        for (size_t i = 0; i < index.n; i++) {
            const CkptIndexEntry *e = &index.entries[i];
            CHECK(e->file >= 0 && e->file < index.n_files);
            CHECK(ckpt_index_find(&index, e->tensor) == e->file);
        }
    }
    arena_fini(&arena);
    return 0;
}
