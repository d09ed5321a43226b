// SPDX-License-Identifier: Apache-2.0
/* test_synth_layout.c - the tensors of the full shape are those of the published checkpoint.
 *
 * Owns:     nothing.  Thread: one.
 * Source:   model specification, section 2.2. */
#include "base/mem.h"
#include "checkpoint/synth_layout.h"

#include "unit.h"

static SynthLayout make(const char *spec, uint64_t shard_bytes) {
    Synth s;
    SynthLayout l;
    Err err = {0};
    assert_int_equal(synth_parse(&s, str_view(spec, strlen(spec)), &err), STATUS_OK);
    assert_int_equal(synth_layout_init(&l, &s.config, shard_bytes, &err), STATUS_OK);
    return l;
}

static uint64_t bytes_of(const SynthTensor *t) { return safetensors_entry_bytes(&t->entry); }

static const SynthTensor *find(const SynthLayout *l, const char *name) {
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->tensors[i].entry.name, name) == 0)
            return &l->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Counts, bytes, header lengths and file sizes of all four shards. */
static void full_shape_has_the_published_shards(void **state) {
    UNUSED(state);
    static const struct {
        size_t n, header;
        uint64_t tensor_bytes, file_bytes;
    } shards[4] = {{716, 88906, 5288107104, 5288196018},
                   {498, 67237, 5368405504, 5368472749},
                   {504, 67875, 5368256256, 5368324139},
                   {372, 50269, 4377161088, 4377211365}};
    SynthLayout l = make("qwen3.6-35b-a3b", (uint64_t)5 << 30);
    assert_int_equal(l.n_shards, 4);
    assert_int_equal(l.n, 2090);
    assert_true(l.total_bytes == 20401929952);
    for (int s = 0; s < 4; s++) {
        size_t n = l.begin[s + 1] - l.begin[s];
        assert_int_equal(n, shards[s].n);
        SafetensorsEntry *entries = mem_alloc(n * sizeof *entries);
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            entries[i] = l.tensors[l.order[l.begin[s] + i]].entry;
            sum += safetensors_entry_bytes(&entries[i]);
        }
        StrBuf header = {0};
        Err err = {0};
        assert_int_equal(safetensors_write_header(&header, entries, n, &err), STATUS_OK);
        assert_true(sum == shards[s].tensor_bytes);
        assert_int_equal(header.len, 8 + shards[s].header);
        assert_true(header.len + sum == shards[s].file_bytes);
        strbuf_fini(&header);
        mem_free(entries);
    }
    synth_layout_fini(&l);
}

static void full_shape_has_the_published_tensors(void **state) {
    UNUSED(state);
    SynthLayout l = make("qwen3.6-35b-a3b", (uint64_t)5 << 30);
    size_t n_vision = 0;
    uint64_t vision = 0, text = 0;
    for (size_t i = 0; i < l.n; i++) {
        bool is_vision = strncmp(l.tensors[i].entry.name, "vision_tower.", 13) == 0;
        n_vision += is_vision;
        *(is_vision ? &vision : &text) += bytes_of(&l.tensors[i]);
        assert_true(l.tensors[i].n_rows * l.tensors[i].row_bytes == bytes_of(&l.tensors[i]));
    }
    assert_int_equal(n_vision, 333);
    assert_true(vision == 893142496);
    assert_true(text == 19508787456);
    const SynthTensor *t =
        find(&l, "language_model.model.layers.3.mlp.switch_mlp.down_proj.weight");
    assert_int_equal(t->entry.rank, 3);
    assert_int_equal(t->entry.shape[0], 256);
    assert_int_equal(t->entry.shape[1], 2048);
    assert_int_equal(t->entry.shape[2], 64);
    assert_int_equal(t->entry.dtype, ST_U32);
    t = find(&l, "language_model.model.layers.0.linear_attn.conv1d.weight");
    assert_int_equal(t->entry.rank, 3);
    assert_int_equal(t->entry.shape[0], 8192);
    assert_int_equal(t->entry.shape[1], 4);
    assert_int_equal(t->entry.shape[2], 1);
    assert_int_equal(t->entry.dtype, ST_BF16);
    t = find(&l, "language_model.model.layers.39.mlp.gate.weight");
    assert_int_equal(t->entry.shape[1], 512); // 8 bits
    // A module whose parts lie in two shards; stacks divided at module boundaries.
    const char *qkv = "language_model.model.layers.20.linear_attn.in_proj_qkv";
    char name[128];
    snprintf(name, sizeof name, "%s.weight", qkv);
    assert_int_equal(find(&l, name)->shard, 1);
    snprintf(name, sizeof name, "%s.scales", qkv);
    assert_int_equal(find(&l, name)->shard, 1);
    snprintf(name, sizeof name, "%s.biases", qkv);
    assert_int_equal(find(&l, name)->shard, 2);
    assert_string_equal(l.tensors[l.begin[1]].entry.name,
                        "language_model.model.layers.8.mlp.switch_mlp.down_proj.weight");
    assert_string_equal(l.tensors[l.begin[3]].entry.name,
                        "language_model.model.layers.31.mlp.switch_mlp.up_proj.weight");
    synth_layout_fini(&l);
}

/* Every tensor lies in one shard, at one place; no shard is over the size but one of one tensor. */
static void shards_cover_every_tensor(void **state) {
    UNUSED(state);
    const uint64_t sizes[] = {1, 100000, 777777, 3000000, UINT64_MAX};
    for (int i = 1; i < synth_n_shapes(); i++) // the small ones
        for (size_t j = 0; j < COUNT_OF(sizes); j++) {
            SynthLayout l = make(synth_shape(i)->name, sizes[j]);
            bool *seen = mem_zalloc(l.n, sizeof *seen);
            uint64_t total = 0;
            assert_int_equal(l.begin[0], 0);
            assert_int_equal(l.begin[l.n_shards], l.n);
            for (int s = 0; s < l.n_shards; s++) {
                uint64_t held = 0;
                assert_true(l.begin[s] < l.begin[s + 1]);
                for (size_t k = l.begin[s]; k < l.begin[s + 1]; k++) {
                    size_t at = l.order[k];
                    assert_true(at < l.n && !seen[at] && l.tensors[at].shard == s);
                    seen[at] = true;
                    held += bytes_of(&l.tensors[at]);
                }
                assert_true(held <= sizes[j] || l.begin[s + 1] - l.begin[s] == 1);
                total += held;
            }
            assert_true(total == l.total_bytes);
            assert_true(sizes[j] > 1 ? l.n_shards < (int)l.n : l.n_shards == (int)l.n);
            mem_free(seen);
            synth_layout_fini(&l);
        }
}

/* A tied model has no head; every other slot of the config is there. */
static void tied_shape_has_no_head(void **state) {
    UNUSED(state);
    SynthLayout l = make("mini", UINT64_MAX);
    for (size_t i = 0; i < l.n; i++)
        assert_null(strstr(l.tensors[i].entry.name, "lm_head"));
    synth_layout_fini(&l);
    l = make("tiny", UINT64_MAX);
    assert_int_equal(find(&l, "language_model.lm_head.weight")->entry.shape[0], 512);
    synth_layout_fini(&l);
}

static void layout_survives_lack_of_memory(void **state) {
    UNUSED(state);
    Synth s;
    Err err = {0};
    assert_int_equal(synth_parse(&s, STR("mini"), &err), STATUS_OK);
    for (int64_t after = 0;; after++) {
        SynthLayout l = {.n_shards = -7};
        mem_fail_after(after);
        Status status = synth_layout_init(&l, &s.config, 1 << 20, &err);
        mem_fail_after(-1);
        if (status == STATUS_OK) {
            assert_true(after > 1);
            synth_layout_fini(&l);
            return;
        }
        assert_int_equal(status, STATUS_MEMORY);
        assert_int_equal(l.n_shards, -7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_shape_has_the_published_shards),
        cmocka_unit_test(full_shape_has_the_published_tensors),
        cmocka_unit_test(shards_cover_every_tensor),
        cmocka_unit_test(tied_shape_has_no_head),
        cmocka_unit_test(layout_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
