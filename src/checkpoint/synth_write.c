// SPDX-License-Identifier: Apache-2.0
/* synth_write.c - makes the shards piece by piece on all threads, then the small files; config.json
 * comes last, so that a folder with one is complete.
 *
 * Path:     the verb `synth`.
 * Owns:     a Writing for the time of the call.  Thread: one; members of the pool make pieces. */
#define _GNU_SOURCE
#include "checkpoint/synth_write.h"

#include "base/bf16.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/synth_text.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold numbers as memory does");

enum {
    SYNTH_PIECE_MAX = 4 << 20,   // bytes that a member makes at a time
    SYNTH_PIECE_MIN = 256 << 10, // holds any plain slot with its f32 form
    SYNTH_PIECES_ALL = 32 << 20, // bytes for all members together
    SYNTH_SMALL_FILES = 64 << 10,
};
#define SYNTH_SHARD_BYTES ((uint64_t)5 << 30) // of the published checkpoint

const char *synth_write_shape_name(int i) {
    return i >= 0 && i < synth_n_shapes() ? synth_shape(i)->name : NULL;
}
const char *synth_write_shape_about(int i) {
    return i >= 0 && i < synth_n_shapes() ? synth_shape(i)->about : NULL;
}

int32_t synth_write_n_ids(int32_t vocab) { return synth_added_base(vocab) + SYNTH_N_ADDED; }

typedef struct Writing {
    Synth synth;
    SynthLayout layout;
    const char *dir;
    Pool *pool;
    Progress progress;
    int lock;         // of dir; -1: none
    bool is_dir_made; // by this call
    int n_shards_done, n_texts_done;
    char *pieces; // [n_members][piece_bytes]
    size_t piece_bytes;
    // The shard being written; members read these.
    SafetensorsWriter *file;
    const size_t *order; // [n_tensors] of this shard, in the order of their data
    size_t n_tensors;
    int64_t *first_job;      // [n_tensors + 1]
    _Atomic uint64_t n_done; // bytes of tensors
    atomic_flag is_claimed;  // whoever sets it writes failure
    _Atomic bool has_failed;
    Err failure;
} Writing;

/* ---- the folder ---- */

/* Files that make a checkpoint folder. */
static bool is_checkpoint_file(StrView name) {
    static const char *const names[] = {
        "config.json",        "generation_config.json", "model.safetensors.index.json",
        "tokenizer.json",     "tokenizer_config.json",  "vocab.json",
        "merges.txt",         "added_tokens.json",      "special_tokens_map.json",
        "chat_template.jinja"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (str_equal(name, str_view(names[i], strlen(names[i]))))
            return true;
    return str_starts(name, STR("model")) && str_ends(name, STR(".safetensors"));
}

/* Goes through the folder's checkpoint files: with is_removed they are deleted, else the first one
 * is refused. freed: bytes that they take on the disk (out). */
static Status clear_folder(const char *dir, bool is_removed, bool is_replaced, uint64_t *freed,
                           Err *err) {
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(err, errno, "open", dir);
    Status status = STATUS_OK;
    const struct dirent *entry;
    while (status == STATUS_OK && (entry = readdir(d)) != NULL) {
        struct stat st;
        if (!is_checkpoint_file(str_view(entry->d_name, strlen(entry->d_name))))
            continue;
        if (!is_replaced)
            status = err_set(err, STATUS_INVALID,
                             "%s: expected a folder without a checkpoint, found %s in it", dir,
                             entry->d_name);
        else if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            *freed += (uint64_t)st.st_blocks * 512;
        if (status == STATUS_OK && is_removed && unlinkat(dirfd(d), entry->d_name, 0) != 0)
            status = err_errno(err, errno, "remove a file of", dir);
    }
    closedir(d);
    return status;
}

static Status prepare_folder(Writing *w, bool is_replaced, Err *err) {
    if (mkdir(w->dir, 0755) == 0)
        w->is_dir_made = true;
    else if (errno != EEXIST)
        return err_errno(err, errno, "make", w->dir);
    TRY(file_lock_open(&w->lock, w->dir, err));
    uint64_t freed = 0;
    TRY(clear_folder(w->dir, false, is_replaced, &freed, err));
    struct statvfs fs;
    if (statvfs(w->dir, &fs) != 0)
        return err_errno(err, errno, "examine", w->dir);
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize + freed;
    // Headers and index, tokenizer, the rest: all rounded up.
    uint64_t needed = w->layout.total_bytes + w->layout.n * 512 +
                      (uint64_t)w->synth.config.vocab * 32 + SYNTH_SMALL_FILES;
    if (free_bytes < needed)
        return err_set(err, STATUS_IO, "%s: expected %llu free bytes on the disk, found %llu",
                       w->dir, (unsigned long long)needed, (unsigned long long)free_bytes);
    return is_replaced ? clear_folder(w->dir, true, true, &freed, err) : STATUS_OK;
}

/* ---- shards ---- */

static void make_vision(const Writing *w, const SynthTensor *t, uint64_t row, uint64_t n,
                        char *out) {
    uint64_t key = rng_u64(rng_mix(~w->synth.seed), t->key);
    for (uint64_t i = 0; i < n; i++) {
        // Four values of either sign and size 2^-7..2^-5.
        uint64_t z = rng_stream(key, row + i);
        z = (z & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u;
        memcpy(out + i * sizeof z, &z, sizeof z);
    }
}

/* out: a member's piece, aligned to 64. */
static void make_rows(const Writing *w, const SynthTensor *t, uint64_t row, uint64_t n, char *out) {
    const Synth *s = &w->synth;
    int64_t r = (int64_t)row, m = (int64_t)n;
    switch (t->part) {
    case SYNTH_CODES: synth_read_quant(s, t->slot, t->layer, r, m, (void *)out, NULL, NULL); break;
    case SYNTH_SCALES: synth_read_quant(s, t->slot, t->layer, r, m, NULL, (void *)out, NULL); break;
    case SYNTH_BIASES: synth_read_quant(s, t->slot, t->layer, r, m, NULL, NULL, (void *)out); break;
    case SYNTH_VISION: make_vision(w, t, row, n, out); break;
    case SYNTH_PLAIN: {
        size_t n_elems = (size_t)t->row_bytes / 2;
        float *wide = (void *)(out + w->piece_bytes / 2);
        CHECK(n_elems * 2 <= w->piece_bytes / 2 && n_elems * 4 <= w->piece_bytes / 2);
        synth_read_plain(s, t->slot, t->layer, wide);
        for (size_t i = 0; i < n_elems; i++)
            ((uint16_t *)(void *)out)[i] = bf16_from_f32(wide[i]);
    }
    }
}

/* Tensor of a job: the last one whose first job is not above it. */
static size_t find_tensor(const Writing *w, int64_t job) {
    size_t low = 0, high = w->n_tensors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (w->first_job[middle] <= job)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static uint64_t rows_per_job(const Writing *w, const SynthTensor *t) {
    return w->piece_bytes > t->row_bytes ? w->piece_bytes / t->row_bytes : 1;
}

static void write_piece(void *ctx, int64_t job, int member) {
    Writing *w = ctx;
    if (atomic_load(&w->has_failed))
        return;
    size_t i = find_tensor(w, job);
    const SynthTensor *t = &w->layout.tensors[w->order[i]];
    uint64_t step = rows_per_job(w, t), row = (uint64_t)(job - w->first_job[i]) * step;
    uint64_t n = t->n_rows - row < step ? t->n_rows - row : step, len = n * t->row_bytes;
    char *piece = w->pieces + (size_t)member * w->piece_bytes;
    make_rows(w, t, row, n, piece);
    Err err = {0};
    if (safetensors_write_at(w->file, i, piece, (size_t)len, row * t->row_bytes, &err) !=
        STATUS_OK) {
        if (!atomic_flag_test_and_set(&w->is_claimed))
            w->failure = err;
        atomic_store(&w->has_failed, true);
        return;
    }
    uint64_t done = atomic_fetch_add(&w->n_done, len) + len;
    if (member == 0 && w->progress.report) // one thread: what it sees never goes back
        w->progress.report(w->progress.ctx, "writing", done, w->layout.total_bytes);
}

static Status write_shard(Writing *w, int shard, Err *err) {
    const SynthLayout *l = &w->layout;
    w->order = l->order + l->begin[shard];
    w->n_tensors = l->begin[shard + 1] - l->begin[shard];
    char name[SYNTH_SHARD_NAME];
    synth_layout_shard_name(name, shard, l->n_shards);
    char *path = file_join(w->dir, name);
    SafetensorsEntry *entries = mem_alloc(w->n_tensors * sizeof *entries);
    w->first_job = mem_alloc((w->n_tensors + 1) * sizeof *w->first_job);
    Status status = STATUS_OK;
    if (!path || !entries || !w->first_job) {
        status = err_memory(err, name, w->n_tensors * sizeof *entries);
        goto fail;
    }
    int64_t n_jobs = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const SynthTensor *t = &l->tensors[w->order[i]];
        uint64_t step = rows_per_job(w, t);
        entries[i] = t->entry;
        w->first_job[i] = n_jobs;
        n_jobs += (int64_t)((t->n_rows + step - 1) / step);
    }
    w->first_job[w->n_tensors] = n_jobs;
    TRY_GOTO(status, safetensors_write_open(&w->file, path, entries, w->n_tensors, err));
    pool_jobs(w->pool, n_jobs, write_piece, w);
    if (atomic_load(&w->has_failed)) {
        status = w->failure.code;
        if (err)
            *err = w->failure;
        goto fail;
    }
    TRY_GOTO(status, safetensors_write_commit(w->file, err));
    w->n_shards_done++;
fail:
    safetensors_write_close(w->file);
    w->file = NULL;
    mem_free(w->first_job);
    w->first_job = NULL;
    mem_free(entries);
    mem_free(path);
    return status;
}

/* ---- small files ---- */

// In the order in which they are written.
static const char *const TEXT_NAMES[] = {"tokenizer.json", "chat_template.jinja",
                                         "generation_config.json", "model.safetensors.index.json",
                                         "config.json"};

static Status make_text(StrBuf *out, const Writing *w, int i, Err *err) {
    const ModelConfig *c = &w->synth.config;
    switch (i) {
    case 0: return synth_text_tokenizer(out, c, err);
    case 1: return synth_text_template(out, err);
    case 2: return synth_text_generation(out, c, err);
    case 3: return synth_text_index(out, &w->layout, err);
    default: return synth_text_config(out, c, err);
    }
}

static Status write_text(Writing *w, int i, Err *err) {
    StrBuf text = {0};
    FileWriter *file = NULL;
    char *path = file_join(w->dir, TEXT_NAMES[i]);
    Status status = path ? STATUS_OK : err_memory(err, TEXT_NAMES[i], strlen(w->dir));
    if (status == STATUS_OK)
        status = make_text(&text, w, i, err);
    if (status == STATUS_OK)
        status = file_writer_open(&file, path, err);
    if (status == STATUS_OK)
        status = file_writer_append(file, text.ptr, text.len, err);
    if (status == STATUS_OK)
        status = file_writer_commit(file, err);
    if (status == STATUS_OK)
        w->n_texts_done++;
    file_writer_close(file);
    strbuf_fini(&text);
    mem_free(path);
    return status;
}

/* ---- the whole ---- */

static Status write_all(Writing *w, Err *err) {
    int n_members = pool_n_members(w->pool);
    w->piece_bytes = (size_t)SYNTH_PIECES_ALL / (size_t)n_members / MEM_ALIGN * MEM_ALIGN;
    if (w->piece_bytes > SYNTH_PIECE_MAX)
        w->piece_bytes = SYNTH_PIECE_MAX;
    if (w->piece_bytes < SYNTH_PIECE_MIN)
        w->piece_bytes = SYNTH_PIECE_MIN;
    w->pieces = mem_alloc_aligned((size_t)n_members * w->piece_bytes);
    if (!w->pieces)
        return err_memory(err, "pieces of tensors", (size_t)n_members * w->piece_bytes);
    for (int i = 0; i < w->layout.n_shards; i++)
        TRY(write_shard(w, i, err));
    if (w->progress.report)
        w->progress.report(w->progress.ctx, "writing", w->layout.total_bytes,
                           w->layout.total_bytes);
    for (int i = 0; i < (int)COUNT_OF(TEXT_NAMES); i++)
        TRY(write_text(w, i, err));
    return STATUS_OK;
}

/* Removes dir/name; an allocation must not stand in the way, so the path is put together here. */
static void remove_file(const Writing *w, const char *name) {
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s", w->dir, name);
    if (len > 0 && (size_t)len < sizeof path)
        unlink(path);
}

/* Takes back what this call has put in place. */
static void undo(const Writing *w) {
    for (int i = 0; i < w->n_texts_done; i++)
        remove_file(w, TEXT_NAMES[i]);
    for (int i = 0; i < w->n_shards_done; i++) {
        char name[SYNTH_SHARD_NAME];
        synth_layout_shard_name(name, i, w->layout.n_shards);
        remove_file(w, name);
    }
    if (w->is_dir_made)
        rmdir(w->dir);
}

Status synth_write(const SynthWrite *what, Pool *pool, const Progress *progress, Err *err) {
    Writing w = {.dir = what->dir, .pool = pool, .lock = -1, .is_claimed = ATOMIC_FLAG_INIT};
    if (progress)
        w.progress = *progress;
    TRY(synth_init(&w.synth, str_view(what->shape, strlen(what->shape)), what->n_layers, what->seed,
                   err));
    TRY(synth_layout_init(&w.layout, &w.synth.config,
                          what->shard_bytes ? what->shard_bytes : SYNTH_SHARD_BYTES, err));
    Status status = prepare_folder(&w, what->is_overwrite, err);
    if (status == STATUS_OK)
        status = write_all(&w, err);
    if (status != STATUS_OK)
        undo(&w);
    file_lock_close(w.lock);
    mem_free(w.pieces);
    synth_layout_fini(&w.layout);
    return status;
}
