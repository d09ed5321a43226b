// SPDX-License-Identifier: Apache-2.0
/* pull_list.c - which files a published checkpoint has, with sizes and hashes.
 *
 * Path:     pull_verb.c; the hub's listing is "{hub}/api/models/{repo}/tree/{revision}".
 * Owns:     a PullList owns its arena.  Thread: main. */
#include "base/checked.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/pull.h"

#include <string.h>

/* Hashes of a pinned revision: what the hub says must agree with them. */
typedef struct KnownHash {
    const char *path, *sha256;
} KnownHash;

typedef struct Known {
    const char *name, *repo, *revision;
    KnownHash hashes[8];
} Known;

static const Known KNOWN[] = {
    {"qwen3.6-35b-a3b",
     "mlx-community/Qwen3.6-35B-A3B-4bit",
     "38740b847e4cb78f352aba30aa41c76e08e6eb46",
     {{"model-00001-of-00004.safetensors",
       "09f3e6ecb0b7af6e6a38bc8169a134c821b0924c2679b2bb8f4426ad38d032b8"},
      {"model-00002-of-00004.safetensors",
       "31dcdb1c49eebdb1505bd14e3cb33f9cf900bd2546b638f2464694ae763a033f"},
      {"model-00003-of-00004.safetensors",
       "3e66de06a1f03dade16a612a368cfce4a4c9caa4efd7d28185454384082cec03"},
      {"model-00004-of-00004.safetensors",
       "a5d0cf03519c26f8b506df6b0ba60526e5c08c8cea22d0c21ce92950e58a5422"},
      {"config.json", "a822a9e48b0aafbe3144ec37d4fb067e178ed96615ce6e4420b3149893cc5767"},
      {"model.safetensors.index.json",
       "0b28df60e33753a14e816d3b31577ae2c93884c58430a4a6de6ae9ea483842ea"}}},
};

enum { PULL_LISTING_BYTES = 16 << 20 };

static const Known *known_find(const char *repo, const char *revision) {
    for (size_t i = 0; i < COUNT_OF(KNOWN); i++)
        if (!strcmp(KNOWN[i].repo, repo) && !strcmp(KNOWN[i].revision, revision))
            return &KNOWN[i];
    return NULL;
}

const char *pull_known(int i) {
    return i >= 0 && (size_t)i < COUNT_OF(KNOWN) ? KNOWN[i].name : NULL;
}

/* Letters, digits and "-_." with exactly one slash: nothing that could leave the URL. */
static bool repo_is_good(StrView repo) {
    int n_slashes = 0;
    for (size_t i = 0; i < repo.len; i++) {
        char c = repo.ptr[i];
        bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
        n_slashes += c == '/';
        if (!is_word && c != '/')
            return false;
    }
    return n_slashes == 1 && str_find(repo, STR("..")) == SIZE_MAX && repo.len > 2 &&
           repo.ptr[0] != '/' && repo.ptr[repo.len - 1] != '/';
}

Status pull_name(PullList *out, const char *name, Err *err) {
    const char *repo = name, *revision = "main";
    size_t len = strcspn(name, "@");
    for (size_t i = 0; i < COUNT_OF(KNOWN); i++) {
        if (!strcmp(name, KNOWN[i].name)) {
            repo = KNOWN[i].repo;
            revision = KNOWN[i].revision;
            len = strlen(repo);
        }
    }
    if (repo == name && name[len] == '@')
        revision = name + len + 1;
    bool is_plain =
        *revision && strspn(revision, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789-_.") == strlen(revision);
    if (!repo_is_good(str_view(repo, len)) || !is_plain)
        return err_set(err, STATUS_INVALID,
                       "expected a name such as %s or owner/name[@revision], found %s",
                       KNOWN[0].name, name);
    out->repo = arena_strdup(&out->arena, repo, len);
    out->revision = arena_strdup(&out->arena, revision, strlen(revision));
    return out->repo && out->revision ? STATUS_OK : err_memory(err, "name", len);
}

/* A path below the folder: no absolute ones, no "..", no control characters. */
static bool path_is_good(StrView path) {
    if (path.len == 0 || path.len > 512 || path.ptr[0] == '/' || path.ptr[0] == '.')
        return false;
    for (size_t i = 0; i < path.len; i++)
        if ((unsigned char)path.ptr[i] < 0x20 || path.ptr[i] == '\\')
            return false;
    return str_find(path, STR("..")) == SIZE_MAX;
}

/* What a checkpoint needs: weights, JSON, templates, merges; no pictures, no other formats. */
static bool path_is_wanted(StrView path) {
    static const char *const ends[] = {".safetensors", ".json",     ".jinja",
                                       ".txt",         "README.md", "LICENSE"};
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        if (str_ends(path, str_view(ends[i], strlen(ends[i]))))
            return str_find(path, STR("/")) == SIZE_MAX; // of the folder itself
    return false;
}

static bool hash_copy(char out[PULL_HASH_SIZE], StrView hash, size_t len) {
    if (hash.len != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!memchr("0123456789abcdef", hash.ptr[i], 16))
            return false;
    memcpy(out, hash.ptr, len);
    out[len] = 0;
    return true;
}

static Status list_entry(PullList *l, const json_t *v, Err *err) {
    StrView path = json_text(json_object_get(v, "path"));
    if (!str_equal(json_text(json_object_get(v, "type")), STR("file")) || !path_is_wanted(path))
        return STATUS_OK;
    if (!path_is_good(path))
        return err_set(err, STATUS_FORMAT, "the hub's listing: a path that leaves the folder: %.*s",
                       (int)min_size(path.len, 80), path.ptr);
    const json_t *lfs = json_object_get(v, "lfs");
    int64_t size;
    TRY(json_get_int(&size, v, "size", 0, INT64_MAX / PULL_MAX_FILES, NULL, "the hub's listing",
                     err));
    PullFile *f = &l->files[l->n];
    *f = (PullFile){.size = (uint64_t)size};
    bool has_hash = lfs ? hash_copy(f->sha256, json_text(json_object_get(lfs, "oid")), 64)
                        : hash_copy(f->git_id, json_text(json_object_get(v, "oid")), 40);
    if (!has_hash)
        return err_set(err, STATUS_FORMAT, "the hub's listing: %.*s: expected a hash",
                       (int)path.len, path.ptr);
    f->path = arena_strdup(&l->arena, path.ptr, path.len);
    if (!f->path)
        return err_memory(err, "listing", path.len);
    for (int32_t i = 0; i < l->n; i++) // two transfers would write into one file
        if (!strcmp(l->files[i].path, f->path))
            return err_set(err, STATUS_FORMAT, "the hub's listing: %s stands there twice", f->path);
    l->n++;
    return STATUS_OK;
}

/* A pinned revision's hashes against the hub's; where the hub has a git id only, ours counts too.
 */
static Status list_check_known(PullList *l, Err *err) {
    const Known *known = known_find(l->repo, l->revision);
    for (size_t k = 0; known && k < COUNT_OF(known->hashes) && known->hashes[k].path; k++) {
        PullFile *f = NULL;
        for (int32_t i = 0; i < l->n; i++)
            if (!strcmp(l->files[i].path, known->hashes[k].path))
                f = &l->files[i];
        if (!f)
            return err_set(err, STATUS_FORMAT, "the hub's listing has no %s",
                           known->hashes[k].path);
        if (f->sha256[0] && strcmp(f->sha256, known->hashes[k].sha256) != 0)
            return err_set(err, STATUS_FORMAT, "%s: expected SHA-256 %s, the hub says %s", f->path,
                           known->hashes[k].sha256, f->sha256);
        memcpy(f->sha256, known->hashes[k].sha256, PULL_HASH_SIZE);
    }
    return STATUS_OK;
}

Status pull_list_read(PullList *out, StrView text, const char *url, Err *err) {
    json_t *v = NULL;
    TRY(json_read(&v, text, url, err));
    Status status = STATUS_OK;
    size_t n = json_array_size(v);
    if (n == 0 || n > PULL_MAX_FILES)
        status = err_set(err, STATUS_FORMAT, "%s: expected a list of 1 to %d files, found %s", url,
                         PULL_MAX_FILES, json_is_array(v) ? "another number" : json_type_text(v));
    else if (!(out->files = arena_array(&out->arena, n, sizeof *out->files)))
        status = err_memory(err, "listing", n * sizeof *out->files);
    for (size_t i = 0; i < n && status == STATUS_OK; i++)
        status = list_entry(out, json_array_get(v, i), err);
    if (status == STATUS_OK && out->n == 0)
        status = err_set(err, STATUS_NOT_FOUND, "%s has no checkpoint files", out->repo);
    json_decref(v);
    return status == STATUS_OK ? list_check_known(out, err) : status;
}

Status pull_list(PullList *out, const PullSource *source, Err *err) {
    StrBuf url = {0}, text = {0};
    strbuf_printf(&url, "%s/api/models/%s/tree/%s", source->hub, out->repo, out->revision);
    Status status = strbuf_check(&url, err);
    if (status == STATUS_OK)
        status = pull_text(&text, source, url.ptr, PULL_LISTING_BYTES, err);
    if (status == STATUS_OK)
        status = pull_list_read(out, strbuf_view(&text), url.ptr, err);
    strbuf_fini(&text);
    strbuf_fini(&url);
    return status;
}

void pull_list_fini(PullList *l) {
    arena_fini(&l->arena);
    *l = (PullList){0};
}
