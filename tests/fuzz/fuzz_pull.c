// SPDX-License-Identifier: Apache-2.0
/* fuzz_pull.c - any bytes as a name (the first line) and as the hub's listing (the rest): what is
 * accepted can neither leave the URL nor the folder.
 *
 * Owns:     nothing.  Thread: one. */
#include "cli/pull.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_word(const char *s) {
    CHECK(*s && strlen(s) <= 4096);
    for (; *s; s++)
        CHECK((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
              strchr("-_./", *s));
}

static void check_files(const PullList *l) {
    uint64_t total = 0;
    CHECK(l->n >= 1 && l->n <= PULL_MAX_FILES);
    for (int32_t i = 0; i < l->n; i++) {
        const PullFile *f = &l->files[i];
        CHECK(f->path[0] && f->path[0] != '.' && !strchr(f->path, '/') && !strstr(f->path, ".."));
        CHECK(strlen(f->sha256) == 64 || (!f->sha256[0] && strlen(f->git_id) == 40));
        CHECK(total + f->size >= total);
        total += f->size;
        for (int32_t k = 0; k < i; k++)
            CHECK(strcmp(l->files[k].path, f->path) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    StrView all = str_view((const char *)data, size);
    size_t end = str_find(all, STR("\n"));
    char name[4096];
    if (end == SIZE_MAX || end >= sizeof name)
        return 0;
    memcpy(name, all.ptr, end);
    name[end] = 0;
    PullList list = {0};
    Err err = {0};
    Status status = pull_name(&list, name, &err);
    if (status == STATUS_OK) {
        check_word(list.repo);
        check_word(list.revision);
        CHECK(!strchr(list.revision, '/'));
        status =
            pull_list_read(&list, str_view(all.ptr + end + 1, size - end - 1), "listing", &err);
        if (status == STATUS_OK)
            check_files(&list);
    }
    CHECK((status == STATUS_OK) == (err.text[0] == 0));
    pull_list_fini(&list);
    return 0;
}
