// SPDX-License-Identifier: Apache-2.0
/* test_synth_write.c - a written model is the model in memory; a failed write leaves nothing.
 *
 * Owns:     folders under $TMPDIR or /tmp, removed at the end of each test.  Thread: one. */
#define _GNU_SOURCE
#include "base/bf16.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synth.h"
#include "checkpoint/synth_write.h"

#include "unit.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PATH = 512 };

/* A new folder for one test; `model` inside it does not exist yet. */
typedef struct Place {
    char root[PATH / 2], model[PATH];
} Place;

static Place place_make(void) {
    Place p;
    const char *tmp = getenv("TMPDIR");
    snprintf(p.root, sizeof p.root, "%s/lily-synth-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(p.root));
    snprintf(p.model, sizeof p.model, "%s/model", p.root);
    return p;
}

static void remove_files(const char *dir) {
    DIR *d = opendir(dir);
    if (!d)
        return;
    const struct dirent *entry;
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            unlinkat(dirfd(d), entry->d_name, 0);
    closedir(d);
    rmdir(dir);
}

static void place_remove(const Place *p) {
    remove_files(p->model);
    remove_files(p->root);
}

static void join(char out[PATH], const char *dir, const char *name) {
    assert_true(snprintf(out, PATH, "%s/%s", dir, name) < PATH);
}

static bool has_file(const char *dir, const char *name) {
    char path[PATH];
    join(path, dir, name);
    return access(path, F_OK) == 0;
}

/* Entries of a folder; -1: there is none. */
static int count_files(const char *dir) {
    DIR *d = opendir(dir);
    if (!d)
        return -1;
    int n = -2; // . and ..
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void put_file(const char *dir, const char *name, const char *text) {
    char path[PATH];
    join(path, dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static Pool *pool_make(int n_threads) {
    Pool *pool;
    Err err = {0};
    assert_int_equal(pool_open(&pool, n_threads, &err), STATUS_OK);
    return pool;
}

static void write_model(const SynthWrite *what, int n_threads) {
    Pool *pool = pool_make(n_threads);
    Err err = {0};
    if (synth_write(what, pool, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    pool_close(pool);
}

/* ---- the same model ---- */

static void compare_slot(const Weights *a, const Weights *b, WeightSlot slot, int layer) {
    WeightInfo info = weights_info(a, slot, layer), other = weights_info(b, slot, layer);
    assert_int_equal(info.n_experts, other.n_experts);
    assert_int_equal(info.n, other.n);
    assert_int_equal(info.k, other.k);
    assert_int_equal(info.bits, other.bits);
    assert_int_equal(info.group, other.group);
    assert_true(info.n_bytes == other.n_bytes);
    Err err = {0};
    if (!info.bits) {
        size_t size = (size_t)info.n * (size_t)info.k * sizeof(float);
        float *x = mem_alloc(size), *y = mem_alloc(size);
        assert_int_equal(weights_read_plain(a, slot, layer, x, &err), STATUS_OK);
        assert_int_equal(weights_read_plain(b, slot, layer, y, &err), STATUS_OK);
        assert_memory_equal(x, y, size);
        mem_free(x);
        mem_free(y);
        return;
    }
    int64_t n_rows = (int64_t)info.n_experts * info.n;
    size_t words = (size_t)(n_rows * info.k * info.bits / 32);
    size_t groups = (size_t)(n_rows * info.k / info.group);
    uint32_t *q[2];
    uint16_t *scale[2], *bias[2];
    for (int i = 0; i < 2; i++) {
        q[i] = mem_alloc(words * 4);
        scale[i] = mem_alloc(groups * 2);
        bias[i] = mem_alloc(groups * 2);
        Status status =
            weights_read_quant(i ? b : a, slot, layer, 0, n_rows, q[i], scale[i], bias[i], &err);
        if (status != STATUS_OK)
            fail_msg("%s", err.text);
    }
    assert_memory_equal(q[0], q[1], words * 4);
    assert_memory_equal(scale[0], scale[1], groups * 2);
    assert_memory_equal(bias[0], bias[1], groups * 2);
    for (int i = 0; i < 2; i++) {
        mem_free(q[i]);
        mem_free(scale[i]);
        mem_free(bias[i]);
    }
}

static void compare_models(const char *dir, const char *spec) {
    Weights *a, *b;
    Err err = {0};
    if (weights_open(&a, dir, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(weights_open(&b, spec, NULL, &err), STATUS_OK);
    const ModelConfig *c = weights_config(a), *d = weights_config(b);
    assert_int_equal(c->n_layers, d->n_layers);
    assert_int_equal(c->vocab, d->vocab);
    assert_int_equal(c->n_eos, d->n_eos);
    assert_memory_equal(c->eos, d->eos, (size_t)c->n_eos * sizeof *c->eos);
    assert_true(weights_total_bytes(a) == weights_total_bytes(b));
    for (int layer = -1; layer < c->n_layers; layer++)
        for (int slot = 0; slot < SLOT_N; slot++) {
            bool exists = weights_slot_exists(c, (WeightSlot)slot, layer);
            assert_true(exists == weights_slot_exists(d, (WeightSlot)slot, layer));
            if (exists)
                compare_slot(a, b, (WeightSlot)slot, layer);
        }
    weights_close(a);
    weights_close(b);
}

/* Every small shape, in one file and in many. */
static void written_model_is_the_one_in_memory(void **state) {
    UNUSED(state);
    static const struct {
        SynthWrite what;
        const char *spec;
    } models[] = {
        {{.shape = "micro"}, "synth:micro"},
        {{.shape = "tiny", .seed = 4, .shard_bytes = 700000}, "synth:tiny,seed=4"},
        {{.shape = "small", .n_layers = 2, .shard_bytes = 50000}, "synth:small,layers=2"},
        {{.shape = "mini", .n_layers = 9, .seed = UINT64_MAX},
         "synth:mini,layers=9,seed=18446744073709551615"},
        {{.shape = "wide", .n_layers = 1}, "synth:wide,layers=1"},
    };
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Place p = place_make();
        SynthWrite what = models[i].what;
        what.dir = p.model;
        write_model(&what, 2);
        compare_models(p.model, models[i].spec);
        place_remove(&p);
    }
}

/* Digests of all files of a folder, by their names. */
static void digest_folder(const char *dir, char *out, size_t size) {
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, alphasort);
    assert_true(n > 2);
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') {
            char path[PATH], sha[SHA256_TEXT_SIZE];
            StrBuf bytes = {0};
            Err err = {0};
            join(path, dir, entries[i]->d_name);
            assert_int_equal(file_read_all(&bytes, path, 1 << 28, &err), STATUS_OK);
            sha256_text(bytes.ptr, bytes.len, sha);
            strbuf_fini(&bytes);
            len += (size_t)snprintf(out + len, size - len, "%s %s\n", entries[i]->d_name, sha);
            assert_true(len < size);
        }
        free(entries[i]);
    }
    free(entries);
}

static void bytes_do_not_depend_on_threads(void **state) {
    UNUSED(state);
    const int threads[] = {1, 2, 3, 40}; // the last one makes the pieces smaller
    char first[4096], again[4096];
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        Place p = place_make();
        write_model(&(SynthWrite){.shape = "small", .dir = p.model, .shard_bytes = 4000000},
                    threads[i]);
        digest_folder(p.model, i ? again : first, sizeof first);
        if (i)
            assert_string_equal(first, again);
        place_remove(&p);
    }
}

static void seed_changes_the_weights_alone(void **state) {
    UNUSED(state);
    char a[4096], b[4096];
    for (int i = 0; i < 2; i++) {
        Place p = place_make();
        write_model(&(SynthWrite){.shape = "micro", .dir = p.model, .seed = (uint64_t)i}, 1);
        digest_folder(p.model, i ? b : a, sizeof a);
        place_remove(&p);
    }
    assert_string_not_equal(a, b);
    char *line_a = a, *line_b = b;
    for (int n = 0; *line_a; n++) {
        size_t len = strcspn(line_a, "\n") + 1;
        bool is_equal = strncmp(line_a, line_b, len) == 0;
        assert_true(is_equal == (strncmp(line_a, "model.safetensors ", 18) != 0));
        line_a += len;
        line_b += len;
    }
}

/* The tower that a text model skips is there, with numbers that are finite. */
static void vision_tower_is_written(void **state) {
    UNUSED(state);
    Place p = place_make();
    write_model(&(SynthWrite){.shape = "micro", .dir = p.model}, 2);
    char path[PATH];
    join(path, p.model, "model.safetensors");
    Safetensors *f;
    Err err = {0};
    assert_int_equal(safetensors_open(&f, path, &err), STATUS_OK);
    size_t n_vision = 0;
    for (size_t i = 0; i < f->table.n; i++) {
        const SafetensorsTensor *t = &f->table.tensors[i];
        if (!str_starts(t->name, STR("vision_tower.")))
            continue;
        n_vision++;
        float *x = mem_alloc((size_t)t->n_elems * sizeof *x), sum = 0;
        assert_int_equal(safetensors_read_f32(f, t, x, &err), STATUS_OK);
        for (size_t k = 0; k < t->n_elems; k++) {
            float size = x[k] < 0 ? -x[k] : x[k];
            assert_true(size >= 0x1p-7f && size < 0x1p-5f);
            sum += x[k];
        }
        assert_true(sum * sum < 0x1p-10f * 25 * (float)t->n_elems);
        mem_free(x);
    }
    assert_int_equal(n_vision, 12 + 9);
    safetensors_close(f);
    place_remove(&p);
}

/* ---- folders that are there ---- */

static void existing_checkpoint_is_kept(void **state) {
    UNUSED(state);
    const char *names[] = {"config.json", "tokenizer.json", "model-00002-of-00003.safetensors",
                           "model.safetensors.index.json", "merges.txt"};
    Pool *pool = pool_make(1);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Place p = place_make();
        mkdir(p.model, 0755);
        put_file(p.model, names[i], "precious");
        put_file(p.model, "notes.txt", "mine");
        SynthWrite what = {.shape = "micro", .dir = p.model};
        Err err = {0};
        assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, names[i]));
        assert_int_equal(count_files(p.model), 2);
        // Asked to, it replaces the checkpoint and leaves the rest alone.
        what.is_overwrite = true;
        assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_OK);
        assert_true(has_file(p.model, "notes.txt"));
        assert_false(has_file(p.model, "model-00002-of-00003.safetensors"));
        assert_false(has_file(p.model, "merges.txt"));
        compare_models(p.model, "synth:micro");
        place_remove(&p);
    }
    pool_close(pool);
}

static void wrong_requests_are_refused(void **state) {
    UNUSED(state);
    Place p = place_make();
    Pool *pool = pool_make(1);
    char path[PATH];
    put_file(p.root, "file", "x");
    Err err = {0};
    SynthWrite what = {.shape = "no-such", .dir = p.model};
    assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "qwen3.6-35b-a3b"));
    what = (SynthWrite){.shape = "micro", .dir = p.model, .n_layers = 257};
    assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_INVALID);
    what.n_layers = -1;
    assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_INVALID);
    assert_int_equal(count_files(p.model), -1); // not even the folder
    join(path, p.root, "file");
    what = (SynthWrite){.shape = "micro", .dir = path};
    assert_true(synth_write(&what, pool, NULL, &err) != STATUS_OK);
    join(path, p.root, "missing/model");
    assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "missing/model"));
    assert_int_equal(count_files(p.root), 1);
    pool_close(pool);
    place_remove(&p);
}

/* A folder that may not be written to. Root may write anywhere, so it stands back for this. */
static void folder_without_permission_is_refused(void **state) {
    UNUSED(state);
    Place p = place_make();
    Pool *pool = pool_make(1);
    Err err = {0};
    assert_int_equal(chmod(p.root, 0755), 0);
    assert_int_equal(mkdir(p.model, 0555), 0);
    bool is_root = geteuid() == 0;
    if (is_root)
        assert_int_equal(seteuid(65534), 0); // nobody
    SynthWrite what = {.shape = "micro", .dir = p.model};
    Status status = synth_write(&what, pool, NULL, &err);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, STATUS_DENIED);
    assert_non_null(strstr(err.text, p.model));
    assert_int_equal(count_files(p.model), 0);
    pool_close(pool);
    place_remove(&p);
}

/* ---- failures ---- */

/* Each write, flush and creation fails once: an error that names the file, and no file is left. */
static void failed_write_leaves_nothing(void **state) {
    UNUSED(state);
    for (int is_made = 0; is_made < 2; is_made++) { // the folder: by the call, before it
        Pool *pool = pool_make(2);
        Place p = place_make();
        int n_failures = 0;
        for (int64_t after = 0;; after += is_made ? 7 : 1) {
            if (is_made)
                mkdir(p.model, 0755);
            SynthWrite what = {
                .shape = "micro", .n_layers = 1, .dir = p.model, .shard_bytes = 90000};
            Err err = {0};
            file_fail_after(after);
            Status status = synth_write(&what, pool, NULL, &err);
            file_fail_after(-1);
            if (status == STATUS_OK)
                break;
            n_failures++;
            assert_int_equal(status, STATUS_IO);
            assert_non_null(strstr(err.text, p.model));
            assert_int_equal(count_files(p.model), is_made ? 0 : -1);
        }
        assert_true(n_failures > (is_made ? 8 : 60));
        compare_models(p.model, "synth:micro,layers=1"); // what at last went through
        place_remove(&p);
        pool_close(pool);
    }
}

/* The system itself refuses: files may not grow past a size. */
static void real_write_failure_leaves_nothing(void **state) {
    UNUSED(state);
    Place p = place_make();
    Pool *pool = pool_make(2);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = before;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    SynthWrite what = {.shape = "tiny", .dir = p.model};
    Err err = {0};
    Status status = synth_write(&what, pool, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, STATUS_IO);
    assert_non_null(strstr(err.text, "model.safetensors"));
    assert_int_equal(count_files(p.model), -1);
    pool_close(pool);
    place_remove(&p);
}

/* More than the disk has room for is refused before the first byte. */
static void full_disk_is_seen_at_once(void **state) {
    UNUSED(state);
    Place p = place_make();
    struct statvfs fs;
    assert_int_equal(statvfs(p.root, &fs), 0);
    if ((uint64_t)fs.f_bavail * fs.f_frsize > (uint64_t)120 << 30) {
        place_remove(&p);
        print_message("skipped: over 120 GiB are free here\n");
        skip();
    }
    Pool *pool = pool_make(1);
    SynthWrite what = {.shape = "qwen3.6-35b-a3b", .n_layers = 256, .dir = p.model};
    Err err = {0};
    assert_int_equal(synth_write(&what, pool, NULL, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "free bytes"));
    assert_int_equal(count_files(p.model), -1);
    pool_close(pool);
    place_remove(&p);
}

static void write_survives_lack_of_memory(void **state) {
    UNUSED(state);
    Place p = place_make();
    Pool *pool = pool_make(1);
    for (int64_t after = 0;; after++) {
        SynthWrite what = {.shape = "micro", .n_layers = 1, .dir = p.model, .shard_bytes = 200000};
        Err err = {0};
        mem_fail_after(after);
        Status status = synth_write(&what, pool, NULL, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            assert_true(after > 20);
            break;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(count_files(p.model), -1);
    }
    place_remove(&p);
    pool_close(pool);
}

typedef struct Seen {
    uint64_t last, total;
    int n;
} Seen;

static void see(void *ctx, const char *what, uint64_t done, uint64_t total) {
    Seen *s = ctx;
    assert_string_equal(what, "writing");
    assert_true(done >= s->last && done <= total);
    assert_true(s->n == 0 || total == s->total);
    s->last = done;
    s->total = total;
    s->n++;
}

static void progress_ends_at_the_total(void **state) {
    UNUSED(state);
    Place p = place_make();
    Pool *pool = pool_make(2);
    Seen seen = {0};
    Err err = {0};
    assert_int_equal(synth_write(&(SynthWrite){.shape = "tiny", .dir = p.model}, pool,
                                 &(Progress){see, &seen}, &err),
                     STATUS_OK);
    assert_true(seen.n > 10);
    assert_true(seen.last == seen.total && seen.total > 5000000);
    pool_close(pool);
    place_remove(&p);
}

static void shapes_are_listed(void **state) {
    UNUSED(state);
    assert_string_equal(synth_write_shape_name(0), "qwen3.6-35b-a3b");
    int n = 0;
    while (synth_write_shape_name(n)) {
        assert_true(strlen(synth_write_shape_about(n)) > 10);
        n++;
    }
    assert_int_equal(n, synth_n_shapes());
    assert_null(synth_write_shape_about(n));
    assert_null(synth_write_shape_name(-1));
    assert_int_equal(synth_write_n_ids(248320), 248077);
    assert_int_equal(synth_write_n_ids(777), 777);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_model_is_the_one_in_memory),
        cmocka_unit_test(bytes_do_not_depend_on_threads),
        cmocka_unit_test(seed_changes_the_weights_alone),
        cmocka_unit_test(vision_tower_is_written),
        cmocka_unit_test(existing_checkpoint_is_kept),
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(folder_without_permission_is_refused),
        cmocka_unit_test(failed_write_leaves_nothing),
        cmocka_unit_test(real_write_failure_leaves_nothing),
        cmocka_unit_test(full_disk_is_seen_at_once),
        cmocka_unit_test(write_survives_lack_of_memory),
        cmocka_unit_test(progress_ends_at_the_total),
        cmocka_unit_test(shapes_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
