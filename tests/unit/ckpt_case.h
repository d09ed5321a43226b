// SPDX-License-Identifier: Apache-2.0
/* ckpt_case.h - checkpoint folders for tests: linked copies whose headers can be edited, and small
 * models of two layers in every form of the format.
 *
 * Owns:     folders under /tmp, removed by case_close.  Thread: one. */
#ifndef LILY_TESTS_CKPT_CASE_H
#define LILY_TESTS_CKPT_CASE_H

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/quant.h"
#include "checkpoint/safetensors_write.h"
#include "checkpoint/weights_source.h"
#include "unit.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define CASE_INLINE static inline __attribute__((unused))

enum { CASE_PATH = 512 };

/* A folder of the test's own. */
typedef struct Case {
    char dir[64];
} Case;

CASE_INLINE void case_open(Case *c) {
    snprintf(c->dir, sizeof c->dir, "/tmp/lily-case-XXXXXX");
    assert_non_null(mkdtemp(c->dir));
}

CASE_INLINE void case_path(const Case *c, const char *name, char out[CASE_PATH]) {
    snprintf(out, CASE_PATH, "%s/%s", c->dir, name);
}

CASE_INLINE void case_close(Case *c) {
    DIR *dir = opendir(c->dir);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[CASE_PATH];
        case_path(c, e->d_name, path);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && remove(path) != 0)
            fail_msg("cannot remove %s", path);
    }
    closedir(dir);
    assert_int_equal(rmdir(c->dir), 0);
}

/* Links every file of a tracked folder ("tests/data/oracle/tiny-a"). */
CASE_INLINE void case_link_all(const Case *c, const char *from) {
    char here[256];
    assert_non_null(getcwd(here, sizeof here));
    DIR *dir = opendir(from);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char target[CASE_PATH * 2], path[CASE_PATH];
        snprintf(target, sizeof target, "%s/%s/%s", here, from, e->d_name);
        struct stat st;
        if (stat(target, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        case_path(c, e->d_name, path);
        assert_int_equal(symlink(target, path), 0);
    }
    closedir(dir);
}

CASE_INLINE void case_write(const Case *c, const char *name, const void *bytes, size_t len) {
    char path[CASE_PATH];
    case_path(c, name, path);
    unlink(path); // a link's target stays as it is
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

CASE_INLINE StrBuf case_read(const Case *c, const char *name) {
    char path[CASE_PATH];
    Err err = {0};
    StrBuf bytes = {0};
    case_path(c, name, path);
    if (file_read_all(&bytes, path, (size_t)1 << 30, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    return bytes;
}

CASE_INLINE json_t *case_read_json(const Case *c, const char *name) {
    StrBuf text = case_read(c, name);
    json_t *v = json_loadb(text.ptr, text.len, 0, NULL);
    assert_non_null(v);
    strbuf_fini(&text);
    return v;
}

/* Takes v. */
CASE_INLINE void case_write_json(const Case *c, const char *name, json_t *v) {
    char *text = json_dumps(v, JSON_COMPACT);
    assert_non_null(text);
    case_write(c, name, text, strlen(text));
    free(text);
    json_decref(v);
}

/* A safetensors file in two halves. */
typedef struct CaseShard {
    json_t *header;
    StrBuf data;
} CaseShard;

CASE_INLINE CaseShard case_read_shard(const Case *c, const char *name) {
    StrBuf all = case_read(c, name);
    CaseShard s = {0};
    uint64_t len;
    memcpy(&len, all.ptr, sizeof len);
    s.header = json_loadb(all.ptr + 8, (size_t)len, 0, NULL);
    assert_non_null(s.header);
    strbuf_append(&s.data, all.ptr + 8 + len, all.len - 8 - (size_t)len);
    strbuf_fini(&all);
    return s;
}

/* Takes the shard. */
CASE_INLINE void case_write_shard(const Case *c, const char *name, CaseShard *s) {
    StrBuf all = {0};
    char *text = json_dumps(s->header, JSON_COMPACT);
    assert_non_null(text);
    uint64_t len = strlen(text);
    strbuf_append(&all, &len, sizeof len);
    strbuf_append(&all, text, (size_t)len);
    strbuf_append_view(&all, strbuf_view(&s->data));
    assert_false(all.is_failed);
    case_write(c, name, all.ptr, all.len);
    strbuf_fini(&all);
    strbuf_fini(&s->data);
    json_decref(s->header);
    free(text);
}

/* ---- a small model ---- */

/* Layer 0 gated delta net, layer 1 full attention. {0} is MLX's form in one file. */
typedef struct Small {
    bool is_flat;             // text fields at the top of config.json
    bool is_raw;              // raw names, convolution [CC, 1, 4], norms without their 1
    bool is_tied;             // no lm_head
    bool is_indexed;          // each tensor of a triple in another of three shards
    bool is_padded;           // a byte between the tensors: every second offset is odd
    int bits, group;          // of the modules but the router; 0: 4 and 64
    SafetensorsDtype plain;   // ST_BOOL (0): BF16
    const char *quantization; // the block's text; NULL: the defaults and 8 bits for the gates
} Small;

enum { SMALL_LAYERS = 2, SMALL_VOCAB = 37, SMALL_TENSORS = 160 };

CASE_INLINE ModelConfig small_config(const Small *s) {
    return (ModelConfig){.hidden = 128,
                         .n_layers = SMALL_LAYERS,
                         .vocab = SMALL_VOCAB,
                         .n_q_heads = 2,
                         .n_kv_heads = 1,
                         .n_gdn_key_heads = 1,
                         .n_gdn_value_heads = 2,
                         .n_experts = 3,
                         .top_k = 2,
                         .expert_inner = 128,
                         .shared_inner = 128,
                         .max_positions = 4096,
                         .rope_theta = 1e7,
                         .rms_eps = 1e-6,
                         .is_tied = s->is_tied,
                         .is_norm_topk = true,
                         .is_attn = {false, true}};
}

#define SMALL_TEXT                                                                                 \
    "\"hidden_size\":128,\"num_hidden_layers\":2,\"vocab_size\":37,\"num_attention_heads\":2,"     \
    "\"num_key_value_heads\":1,\"head_dim\":256,\"linear_num_key_heads\":1,"                       \
    "\"linear_num_value_heads\":2,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"      \
    "\"linear_conv_kernel_dim\":4,\"num_experts\":3,\"num_experts_per_tok\":2,"                    \
    "\"moe_intermediate_size\":128,\"shared_expert_intermediate_size\":128,"                       \
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"max_position_embeddings\":4096,"             \
    "\"rope_parameters\":{\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,"                 \
    "\"rope_type\":\"default\"},\"full_attention_interval\":2,"                                    \
    "\"layer_types\":[\"linear_attention\",\"full_attention\"]"

/* Text of the config; b is appended to. */
CASE_INLINE void small_config_text(const Small *s, StrBuf *b) {
    const char *tied = s->is_tied ? "true" : "false";
    if (s->is_flat)
        strbuf_printf(b, "{\"model_type\":\"qwen3_5_moe_text\",%s,\"tie_word_embeddings\":%s",
                      SMALL_TEXT, tied);
    else
        strbuf_printf(b,
                      "{\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":%s,\"text_config\":{"
                      "\"model_type\":\"qwen3_5_moe_text\",\"tie_word_embeddings\":%s,%s}",
                      tied, tied, SMALL_TEXT);
    int bits = s->bits ? s->bits : 4, group = s->group ? s->group : 64;
    if (s->quantization)
        strbuf_printf(b, ",\"quantization\":%s}", s->quantization);
    else
        strbuf_printf(b,
                      ",\"quantization\":{\"group_size\":%d,\"bits\":%d,"
                      "\"language_model.model.layers.0.mlp.gate\":{\"bits\":8},"
                      "\"model.language_model.layers.1.mlp.gate\":{\"bits\":8,\"group_size\":%d},"
                      "\"model.layers.0.mlp.shared_expert_gate\":{\"bits\":8,\"mode\":\"affine\"},"
                      "\"layers.1.mlp.shared_expert_gate\":{\"bits\":8}}}",
                      group, bits, group);
    assert_false(b->is_failed);
}

CASE_INLINE int small_bits(const Small *s, WeightSlot slot) {
    return slot == SLOT_ROUTER || slot == SLOT_SHARED_MIX ? 8 : s->bits ? s->bits : 4;
}

/* Element i of a plain slot as it is stored: exact in BF16, F16 and F32; norms near 1, or near 0
 * in the raw form. */
CASE_INLINE float small_plain(const Small *s, WeightSlot slot, int layer, uint64_t i) {
    uint64_t key = (uint64_t)slot * 1000 + (uint64_t)(layer + 1);
    float x = (float)(rng_u64(key, i) % 65) / 128.0f - 0.25f; // multiples of 2^-7, at most 1/4
    bool is_gain = weights_slot_is_centred_norm(slot) && !s->is_raw;
    return is_gain ? 1.0f + x : x;
}

CASE_INLINE uint32_t small_code_word(WeightSlot slot, int layer, uint64_t i) {
    return (uint32_t)rng_u64((uint64_t)slot * 1000 + (uint64_t)(layer + 1) + 500000, i);
}

CASE_INLINE uint16_t small_scale(WeightSlot slot, int layer, uint64_t i, bool is_bias) {
    uint64_t key = (uint64_t)slot * 1000 + (uint64_t)(layer + 1) + (is_bias ? 700000 : 600000);
    return bf16_from_f32((float)((int)(rng_u64(key, i) % 255) - 127) / 1024.0f);
}

/* One file's worth of tensors, in memory. */
typedef struct SmallFile {
    SafetensorsEntry entries[SMALL_TENSORS];
    void *data[SMALL_TENSORS];
    size_t n;
} SmallFile;

CASE_INLINE void *small_add(SmallFile *f, const char *name, SafetensorsDtype dtype, int rank,
                            const uint64_t *shape) {
    assert_true(f->n < SMALL_TENSORS);
    SafetensorsEntry *e = &f->entries[f->n];
    *e = (SafetensorsEntry){.name = mem_strdup(name, strlen(name)), .dtype = dtype, .rank = rank};
    memcpy(e->shape, shape, (size_t)rank * sizeof *shape);
    void *p = mem_zalloc((size_t)safetensors_entry_bytes(e), 1);
    assert_non_null(p);
    f->data[f->n++] = p;
    return p;
}

CASE_INLINE void small_name(const Small *s, char *out, size_t size, WeightSlot slot, int layer,
                            const char *suffix) {
    const char *inner = weights_slot_inner_name(slot);
    const char *scope = slot == SLOT_HEAD && (s->is_raw || s->is_flat) ? ""
                        : slot == SLOT_HEAD                            ? "language_model."
                        : s->is_raw                                    ? "model.language_model."
                        : s->is_flat                                   ? "model."
                                                                       : "language_model.model.";
    if (layer < 0)
        snprintf(out, size, "%s%s%s", scope, inner, suffix);
    else
        snprintf(out, size, "%slayers.%d.%s%s", scope, layer, inner, suffix);
}

CASE_INLINE void small_add_matrix(const Small *s, SmallFile *files, WeightSlot slot, int layer) {
    ModelConfig c = small_config(s);
    int32_t n_experts, n, k;
    weights_slot_shape(&c, slot, &n_experts, &n, &k);
    int bits = small_bits(s, slot), group = s->group ? s->group : 64;
    bool is_stack = slot >= SLOT_EXPERT_GATE && slot <= SLOT_EXPERT_DOWN;
    static const char *const SUFFIXES[3] = {".weight", ".scales", ".biases"};
    for (int part = 0; part < 3; part++) {
        char name[160];
        small_name(s, name, sizeof name, slot, layer, SUFFIXES[part]);
        uint64_t cols = (uint64_t)(part ? k / group : k * bits / 32);
        uint64_t shape[3] = {(uint64_t)n_experts, (uint64_t)n, cols};
        SmallFile *f = &files[s->is_indexed ? (part + (int)slot) % 3 : 0];
        void *p = small_add(f, name, part ? ST_BF16 : ST_U32, is_stack ? 3 : 2,
                            is_stack ? shape : shape + 1);
        for (uint64_t i = 0; i < shape[0] * shape[1] * cols; i++)
            if (part == 0)
                ((uint32_t *)p)[i] = small_code_word(slot, layer, i);
            else
                ((uint16_t *)p)[i] = small_scale(slot, layer, i, part == 2);
    }
}

/* Halves of the numbers of small_plain: all are normal or zero. */
CASE_INLINE uint16_t small_f16(float x) {
    uint32_t u = f32_bits(x);
    return x == 0 ? 0
                  : (uint16_t)((u >> 16 & 0x8000) | ((u >> 23 & 0xff) - 112) << 10 |
                               (u >> 13 & 0x3ff));
}

CASE_INLINE void small_add_plain(const Small *s, SmallFile *files, WeightSlot slot, int layer) {
    ModelConfig c = small_config(s);
    int32_t n_experts, n, k;
    weights_slot_shape(&c, slot, &n_experts, &n, &k);
    char name[160];
    bool is_bare = slot == SLOT_GDN_A_LOG || slot == SLOT_GDN_DT_BIAS;
    small_name(s, name, sizeof name, slot, layer, is_bare ? "" : ".weight");
    uint64_t vector[1] = {(uint64_t)n}, conv[3] = {(uint64_t)n, 4, 1}, raw[3] = {(uint64_t)n, 1, 4};
    bool is_conv = slot == SLOT_GDN_CONV;
    SafetensorsDtype dtype = s->plain ? s->plain : ST_BF16;
    SmallFile *f = &files[s->is_indexed ? (int)slot % 3 : 0];
    void *p = small_add(f, name, dtype, is_conv ? 3 : 1,
                        !is_conv    ? vector
                        : s->is_raw ? raw
                                    : conv);
    for (uint64_t i = 0; i < (uint64_t)n * (uint64_t)k; i++) {
        float x = small_plain(s, slot, layer, i);
        if (dtype == ST_F32)
            ((float *)p)[i] = x;
        else
            ((uint16_t *)p)[i] = dtype == ST_F16 ? small_f16(x) : bf16_from_f32(x);
    }
}

/* Odd offsets: a byte that belongs to no tensor in front of every tensor. */
CASE_INLINE void small_pad(const Case *c, const char *name) {
    CaseShard s = case_read_shard(c, name);
    StrBuf data = {0};
    const char *key;
    json_t *v;
    json_object_foreach(s.header, key, v) {
        json_t *off = json_object_get(v, "data_offsets");
        if (!off)
            continue;
        json_int_t begin = json_integer_value(json_array_get(off, 0)),
                   end = json_integer_value(json_array_get(off, 1));
        strbuf_append_char(&data, 0x55);
        json_object_set_new(
            v, "data_offsets",
            json_pack("[I, I]", (json_int_t)data.len, (json_int_t)data.len + end - begin));
        strbuf_append(&data, s.data.ptr + begin, (size_t)(end - begin));
    }
    strbuf_fini(&s.data);
    s.data = data;
    case_write_shard(c, name, &s);
}

CASE_INLINE void small_write(const Case *c, const Small *s) {
    StrBuf text = {0};
    small_config_text(s, &text);
    case_write(c, "config.json", text.ptr, text.len);
    strbuf_fini(&text);
    SmallFile *files = mem_zalloc(3, sizeof *files);
    ModelConfig config = small_config(s);
    for (int layer = -1; layer < SMALL_LAYERS; layer++)
        for (int i = 0; i < SLOT_N; i++) {
            WeightSlot slot = (WeightSlot)i;
            if (!weights_slot_exists(&config, slot, layer))
                continue;
            if (weights_slot_is_quant(slot))
                small_add_matrix(s, files, slot, layer);
            else
                small_add_plain(s, files, slot, layer);
        }
    json_t *map = json_object();
    for (int i = 0; i < (s->is_indexed ? 3 : 1); i++) {
        char name[32] = "model.safetensors", path[CASE_PATH];
        if (s->is_indexed) // names in descending order of what they hold first
            snprintf(name, sizeof name, "part-%c.safetensors", 'c' - i);
        case_path(c, name, path);
        Err err = {0};
        if (safetensors_write_file(path, files[i].entries, (const void *const *)files[i].data,
                                   files[i].n, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        for (size_t j = 0; j < files[i].n; j++) {
            json_object_set_new(map, files[i].entries[j].name, json_string(name));
            mem_free((char *)files[i].entries[j].name);
            mem_free(files[i].data[j]);
        }
        if (s->is_padded)
            small_pad(c, name);
    }
    if (s->is_indexed)
        case_write_json(c, "model.safetensors.index.json", json_pack("{s:o}", "weight_map", map));
    else
        json_decref(map);
    mem_free(files);
}

#endif
