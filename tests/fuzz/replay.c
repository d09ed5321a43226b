// SPDX-License-Identifier: Apache-2.0
/* replay.c - runs a fuzz target over the files of its corpus folder, without libFuzzer.
 *
 * Path:     make fuzz-replay links one of these with each fuzz_*.c.
 * Owns:     nothing.  Thread: one. */
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        fprintf(stderr, "cannot open %s\n", argv[1]);
        return 1;
    }
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        Err err = {0};
        StrBuf bytes = {0};
        char *path = file_join(argv[1], e->d_name);
        if (!path || file_read_all(&bytes, path, 64 << 20, &err) != STATUS_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)bytes.ptr, bytes.len);
        strbuf_fini(&bytes);
        mem_free(path);
        n++;
    }
    closedir(dir);
    printf("%s: %d inputs\n", argv[1], n);
    return n == 0;
}
