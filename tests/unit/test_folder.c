// SPDX-License-Identifier: Apache-2.0
/* test_folder.c - an oracle checkpoint damaged in one place at a time: each fault is refused by a
 * text that names the file and the thing.
 *
 * Owns:     nothing.  Thread: one.
 * Not here: the numbers and the good forms (test_weights.c). */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/folder.h"

#include "ckpt_case.h"

#define ORACLE "tests/data/oracle/tiny-a"
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define LAYER_0 "language_model.model.layers.0."
#define GATE LAYER_0 "mlp.gate.weight" // U32 [16, 48] in shard 1

/* ---- edits ---- */

static json_t *entry(const CaseShard *s, const char *tensor) {
    json_t *t = json_object_get(s->header, tensor);
    if (!t)
        fail_msg("no %s", tensor);
    return t;
}

static void set_member(const Case *c, const char *tensor, const char *key, json_t *value) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_set_new(entry(&s, tensor), key, value);
    case_write_shard(c, SHARD_1, &s);
}

/* Adds to the offsets of a tensor. */
static void shift(const Case *c, const char *tensor, json_int_t begin, json_int_t end) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_t *off = json_object_get(entry(&s, tensor), "data_offsets");
    begin += json_integer_value(json_array_get(off, 0));
    end += json_integer_value(json_array_get(off, 1));
    json_object_set_new(entry(&s, tensor), "data_offsets", json_pack("[I, I]", begin, end));
    case_write_shard(c, SHARD_1, &s);
}

/* Gives a tensor of shard 1 another name, in the index too. */
static void rename_tensor(const Case *c, const char *from, const char *to) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_set(s.header, to, entry(&s, from));
    json_object_del(s.header, from);
    case_write_shard(c, SHARD_1, &s);
    json_t *index = case_read_json(c, INDEX);
    json_t *map = json_object_get(index, "weight_map");
    json_object_del(map, from);
    json_object_set_new(map, to, json_string(SHARD_1));
    case_write_json(c, INDEX, index);
}

/* Adds an F32 tensor of four elements to a shard; in_index NULL: to the header only. */
static void add_tensor(const Case *c, const char *shard, const char *name, const char *in_index) {
    CaseShard s = case_read_shard(c, shard);
    json_int_t begin = (json_int_t)s.data.len;
    strbuf_append(&s.data, "0123456789abcdef", 16);
    json_object_set_new(s.header, name,
                        json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", 4,
                                  "data_offsets", begin, begin + 16));
    case_write_shard(c, shard, &s);
    if (!in_index)
        return;
    json_t *index = case_read_json(c, INDEX);
    json_object_set_new(json_object_get(index, "weight_map"), name, json_string(in_index));
    case_write_json(c, INDEX, index);
}

static void set_index(const Case *c, const char *tensor, json_t *value) {
    json_t *index = case_read_json(c, INDEX);
    json_t *map = json_object_get(index, "weight_map");
    if (value)
        json_object_set_new(map, tensor, value);
    else
        json_object_del(map, tensor);
    case_write_json(c, INDEX, index);
}

static void set_config(const Case *c, const char *block, const char *key, json_t *value) {
    json_t *config = case_read_json(c, "config.json");
    json_object_set_new(block ? json_object_get(config, block) : config, key, value);
    case_write_json(c, "config.json", config);
}

/* The first bytes of a shard replaced. */
static void set_header_length(const Case *c, uint64_t len) {
    StrBuf b = case_read(c, SHARD_1);
    memcpy(b.ptr, &len, sizeof len);
    case_write(c, SHARD_1, b.ptr, b.len);
    strbuf_fini(&b);
}

static void keep_bytes(const Case *c, const char *name, size_t len) {
    StrBuf b = case_read(c, name);
    assert_true(len <= b.len);
    case_write(c, name, b.ptr, len);
    strbuf_fini(&b);
}

static void remove_file(const Case *c, const char *name) {
    char path[CASE_PATH];
    case_path(c, name, path);
    assert_int_equal(unlink(path), 0);
}

/* A file whose only content is a header of this text. */
static void header_only(const Case *c, const char *name, const char *text) {
    StrBuf b = {0};
    uint64_t len = strlen(text);
    strbuf_append(&b, &len, sizeof len);
    strbuf_append(&b, text, (size_t)len);
    case_write(c, name, b.ptr, b.len);
    strbuf_fini(&b);
}

/* ---- damages: containers ---- */

static void shard_cut_by_one(const Case *c) {
    StrBuf b = case_read(c, SHARD_2);
    keep_bytes(c, SHARD_2, b.len - 1);
    strbuf_fini(&b);
}
static void shard_cut_in_header(const Case *c) { keep_bytes(c, SHARD_1, 1000); }
static void shard_cut_in_length(const Case *c) { keep_bytes(c, SHARD_1, 7); }
static void shard_empty(const Case *c) { case_write(c, SHARD_2, "", 0); }
static void shard_missing(const Case *c) { remove_file(c, SHARD_2); }
static void shard_is_folder(const Case *c) {
    char path[CASE_PATH];
    remove_file(c, SHARD_1);
    case_path(c, SHARD_1, path);
    assert_int_equal(mkdir(path, 0755), 0);
}
static void shard_is_pipe(const Case *c) {
    char path[CASE_PATH];
    remove_file(c, SHARD_1);
    case_path(c, SHARD_1, path);
    assert_int_equal(mkfifo(path, 0644), 0);
}
static void length_2_63(const Case *c) { set_header_length(c, (uint64_t)1 << 63); }
static void length_2_64(const Case *c) { set_header_length(c, UINT64_MAX); }
static void length_too_short(const Case *c) { set_header_length(c, 100); }
static void length_behind_end(const Case *c) {
    StrBuf b = case_read(c, SHARD_1);
    set_header_length(c, b.len - 7);
    strbuf_fini(&b);
}
static void header_over_the_cap(const Case *c) {
    StrBuf b = case_read(c, SHARD_1);
    uint64_t len = LIMIT_SAFETENSORS_HEADER + 1;
    memcpy(b.ptr, &len, sizeof len);
    case_write(c, SHARD_1, b.ptr, b.len);
    strbuf_fini(&b);
    char path[CASE_PATH];
    case_path(c, SHARD_1, path);
    assert_int_equal(truncate(path, (off_t)len + 8), 0);
}
static void header_is_list(const Case *c) { header_only(c, SHARD_1, "[]"); }
static void header_of_37_bytes(const Case *c) {
    header_only(c, SHARD_1, "{\"\":{\"dtype\":\"F32\",\"shape\":[0");
}
static void header_with_empty_name(const Case *c) {
    header_only(c, SHARD_1, "{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
}
static void header_twice_a_name(const Case *c) {
    header_only(c, SHARD_1,
                "{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                "\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
}
static void header_nested(const Case *c) {
    StrBuf b = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_append_char(&b, '[');
    strbuf_append_char(&b, 0);
    header_only(c, SHARD_1, b.ptr);
    strbuf_fini(&b);
}

/* ---- damages: entries of a header ---- */

static void entry_is_number(const Case *c) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_set_new(s.header, GATE, json_integer(3));
    case_write_shard(c, SHARD_1, &s);
}
static void dtype_unknown(const Case *c) { set_member(c, GATE, "dtype", json_string("Q4")); }
static void dtype_number(const Case *c) { set_member(c, GATE, "dtype", json_integer(4)); }
static void dtype_wider(const Case *c) { set_member(c, GATE, "dtype", json_string("U64")); }
static void dtype_other(const Case *c) { set_member(c, GATE, "dtype", json_string("I32")); }
static void dtype_of_scales(const Case *c) {
    set_member(c, LAYER_0 "mlp.gate.scales", "dtype", json_string("F16"));
}
static void shape_of_biases(const Case *c) {
    set_member(c, LAYER_0 "mlp.gate.biases", "shape", json_pack("[i, i]", 3, 16));
}
static void dtype_of_norm(const Case *c) {
    set_member(c, LAYER_0 "input_layernorm.weight", "dtype", json_string("I16"));
}
static void shape_is_text(const Case *c) { set_member(c, GATE, "shape", json_string("16x48")); }
static void shape_negative(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[i, i]", -16, -48));
}
static void shape_real(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[f, i]", 16.0, 48));
}
static void shape_other(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[i, i]", 48, 16));
}
static void shape_flat(const Case *c) { set_member(c, GATE, "shape", json_pack("[i]", 16 * 48)); }
static void shape_larger(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[i, i]", 16, 49));
}
static void shape_wraps(const Case *c) { // (2^42 + 1) * 2^22 * 4 wraps to 2^24
    set_member(c, GATE, "shape", json_pack("[I, i]", ((json_int_t)1 << 42) + 1, 1 << 22));
}
static void shape_wraps_to_zero(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[I, I]", (json_int_t)1 << 31, (json_int_t)1 << 31));
}
static void shape_of_nine(const Case *c) {
    set_member(c, GATE, "shape", json_pack("[i,i,i,i,i,i,i,i,i]", 16, 48, 1, 1, 1, 1, 1, 1, 1));
}
static void shape_missing(const Case *c) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_del(entry(&s, GATE), "shape");
    case_write_shard(c, SHARD_1, &s);
}
static void entry_with_more(const Case *c) { set_member(c, GATE, "stride", json_integer(1)); }
static void offsets_behind_end(const Case *c) { shift(c, GATE, 1 << 30, 1 << 30); }
static void offsets_of_2_62(const Case *c) {
    shift(c, GATE, (json_int_t)1 << 62, (json_int_t)1 << 62);
}
static void offsets_negative(const Case *c) { shift(c, GATE, -(1 << 30), -(1 << 30)); }
static void offsets_reversed(const Case *c) { shift(c, GATE, 16 * 48 * 4, -16 * 48 * 4); }
static void offsets_short(const Case *c) { shift(c, GATE, 0, -4); }
static void offsets_overlap(const Case *c) { shift(c, GATE, 2, 2); }
static void offsets_three(const Case *c) {
    set_member(c, GATE, "data_offsets", json_pack("[i, i, i]", 0, 1, 2));
}
static void offsets_text(const Case *c) {
    set_member(c, GATE, "data_offsets", json_pack("[s, s]", "0", "1"));
}

/* ---- damages: sets of tensors ---- */

static void tensor_missing(const Case *c) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_del(s.header, LAYER_0 "mlp.gate.biases");
    case_write_shard(c, SHARD_1, &s);
}
static void tensor_missing_everywhere(const Case *c) {
    tensor_missing(c);
    set_index(c, LAYER_0 "mlp.gate.biases", NULL);
}
static void tensor_not_in_index(const Case *c) { set_index(c, GATE, NULL); }
static void tensor_in_other_file(const Case *c) { set_index(c, GATE, json_string(SHARD_2)); }
static void tensor_extra(const Case *c) { add_tensor(c, SHARD_2, LAYER_0 "mlp.extra", SHARD_2); }
static void tensor_extra_unlisted(const Case *c) { add_tensor(c, SHARD_2, "extra", NULL); }
static void tensor_of_layer_8(const Case *c) {
    add_tensor(c, SHARD_2, "language_model.model.layers.8.input_layernorm.weight", SHARD_2);
}
static void tensor_twice(const Case *c) { add_tensor(c, SHARD_2, GATE, NULL); }
static void tensor_twice_spelled(const Case *c) {
    add_tensor(c, SHARD_2, "model.language_model.layers.0.mlp.gate.weight", SHARD_2);
}
static void norm_misspelled(const Case *c) {
    rename_tensor(c, LAYER_0 "input_layernorm.weight", LAYER_0 "input_layer_norm.weight");
}
static void bare_a_log_suffix(const Case *c) {
    rename_tensor(c, LAYER_0 "linear_attn.A_log", LAYER_0 "linear_attn.A_log.weight");
}
static void not_quantised(const Case *c) {
    CaseShard s = case_read_shard(c, SHARD_1);
    json_object_set_new(entry(&s, GATE), "dtype", json_string("F32"));
    json_object_del(s.header, LAYER_0 "mlp.gate.scales");
    case_write_shard(c, SHARD_1, &s);
    set_index(c, LAYER_0 "mlp.gate.scales", NULL);
}
static void conv_mixed(const Case *c) {
    set_member(c, LAYER_0 "linear_attn.conv1d.weight", "shape", json_pack("[i, i, i]", 1024, 1, 4));
}
static void conv_flat(const Case *c) {
    set_member(c, LAYER_0 "linear_attn.conv1d.weight", "shape", json_pack("[i, i]", 1024, 4));
}

/* ---- damages: small files ---- */

static void config_missing(const Case *c) { remove_file(c, "config.json"); }
static void config_cut(const Case *c) { keep_bytes(c, "config.json", 3000); }
static void config_empty(const Case *c) { case_write(c, "config.json", "", 0); }
static void config_nested(const Case *c) {
    StrBuf b = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_append(&b, "{\"a\":", 5);
    case_write(c, "config.json", b.ptr, b.len);
    strbuf_fini(&b);
}
static void config_other_hidden(const Case *c) {
    set_config(c, "text_config", "hidden_size", json_integer(256));
}
static void config_more_experts(const Case *c) {
    set_config(c, "text_config", "num_experts", json_integer(17));
}
static void config_tied(const Case *c) {
    set_config(c, "text_config", "tie_word_embeddings", json_true());
    set_config(c, NULL, "tie_word_embeddings", json_true());
}
static void config_gate_of_4_bits(const Case *c) {
    set_config(c, "quantization", LAYER_0 "mlp.gate", json_true());
}
static void config_gate_plain(const Case *c) {
    set_config(c, "quantization", LAYER_0 "mlp.gate", json_false());
}
static void config_group_128(const Case *c) {
    set_config(c, "quantization", LAYER_0 "linear_attn.in_proj_a",
               json_pack("{s:i}", "group_size", 128));
}
static void config_group_32(const Case *c) {
    set_config(c, "quantization", "group_size", json_integer(32));
}
static void generation_bad(const Case *c) {
    case_write(c, "generation_config.json", "{\"eos_token_id\": [512]}", 23);
}
static void index_missing(const Case *c) { remove_file(c, INDEX); }
static void index_cut(const Case *c) { keep_bytes(c, INDEX, 5000); }
static void index_nested(const Case *c) {
    StrBuf b = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_append_char(&b, '[');
    case_write(c, INDEX, b.ptr, b.len);
    strbuf_fini(&b);
}
static void index_without_map(const Case *c) { case_write(c, INDEX, "{}", 2); }
static void index_escapes(const Case *c) { set_index(c, GATE, json_string("../" SHARD_1)); }
static void index_names_no_file(const Case *c) {
    set_index(c, GATE, json_string("other.safetensors"));
}
static void index_names_number(const Case *c) { set_index(c, GATE, json_integer(1)); }
static void index_is_folder(const Case *c) {
    char path[CASE_PATH];
    remove_file(c, INDEX);
    case_path(c, INDEX, path);
    assert_int_equal(mkdir(path, 0755), 0);
}

typedef struct Damage {
    const char *name;
    void (*apply)(const Case *c);
    Status status;
    const char *texts[3]; // each stands in the error text
} Damage;

#define D(fn, status, ...)                                                                         \
    {                                                                                              \
#fn, fn, status, { __VA_ARGS__ }                                                           \
    }

static const Damage DAMAGES[] = {
    D(shard_cut_by_one, STATUS_FORMAT, SHARD_2, "tensor ",
      "ends at byte 2599538 of the data, which has 2599537"),
    D(shard_cut_in_header, STATUS_FORMAT, SHARD_1, "header length", "found 22800"),
    D(shard_cut_in_length, STATUS_FORMAT, SHARD_1, "expected a safetensors file", "found 7 bytes"),
    D(shard_empty, STATUS_FORMAT, SHARD_2, "expected a safetensors file", "found 0 bytes"),
    D(shard_missing, STATUS_NOT_FOUND, SHARD_2, "No such file"),
    D(shard_is_folder, STATUS_FORMAT, SHARD_1, "expected a regular file", "found a folder"),
    D(shard_is_pipe, STATUS_FORMAT, SHARD_1, "expected a regular file", "found a special file"),
    D(length_2_63, STATUS_FORMAT, SHARD_1, "header length", "found 9223372036854775808"),
    D(length_2_64, STATUS_FORMAT, SHARD_1, "header length", "found 18446744073709551615"),
    D(length_too_short, STATUS_FORMAT, SHARD_1, "not valid JSON", "line 1"),
    D(length_behind_end, STATUS_FORMAT, SHARD_1, "header length", "expected at most"),
    D(header_over_the_cap, STATUS_TOO_LARGE, SHARD_1, "header length", "found 16777217"),
    D(header_is_list, STATUS_FORMAT, SHARD_1, "header: expected an object", "found a list"),
    D(header_of_37_bytes, STATUS_FORMAT, SHARD_1, "not valid JSON"),
    D(header_with_empty_name, STATUS_FORMAT, SHARD_1, "tensor "),
    D(header_twice_a_name, STATUS_FORMAT, SHARD_1, "duplicate object key"),
    D(header_nested, STATUS_FORMAT, SHARD_1, "not valid JSON", "depth"),
    D(entry_is_number, STATUS_FORMAT, SHARD_1, GATE, "found an integer"),
    D(dtype_unknown, STATUS_UNSUPPORTED, SHARD_1, GATE, "found \"Q4\""),
    D(dtype_number, STATUS_FORMAT, SHARD_1, GATE, "found an integer"),
    D(dtype_wider, STATUS_FORMAT, SHARD_1, GATE,
      "U64 [16, 48] takes 6144 bytes, data_offsets span 3072"),
    D(dtype_other, STATUS_FORMAT, SHARD_1, GATE, "found I32 [16, 48]"),
    D(dtype_of_scales, STATUS_FORMAT, SHARD_1, LAYER_0 "mlp.gate.scales", "expected BF16 [16, 3]"),
    D(shape_of_biases, STATUS_FORMAT, SHARD_1, LAYER_0 "mlp.gate.biases", "expected BF16 [16, 3]"),
    D(dtype_of_norm, STATUS_UNSUPPORTED, SHARD_1, "input_layernorm.weight", "found I16"),
    D(shape_is_text, STATUS_FORMAT, SHARD_1, GATE, "expected a list, found a string"),
    D(shape_negative, STATUS_FORMAT, SHARD_1, GATE, "found a negative one"),
    D(shape_real, STATUS_FORMAT, SHARD_1, GATE, "found a real number"),
    D(shape_other, STATUS_FORMAT, SHARD_1, GATE,
      "expected U32 [16, 48] (192 inputs, 8 bits and groups of 64 by the config), found U32 [48, "
      "16]"),
    D(shape_flat, STATUS_FORMAT, SHARD_1, GATE, "found U32 [768]"),
    D(shape_larger, STATUS_FORMAT, SHARD_1, GATE, "[16, 49] takes 3136 bytes"),
    D(shape_wraps, STATUS_FORMAT, SHARD_1, GATE,
      "[4398046511105, 4194304] is larger than any memory"),
    D(shape_wraps_to_zero, STATUS_FORMAT, SHARD_1, GATE, "is larger than any memory"),
    D(shape_of_nine, STATUS_UNSUPPORTED, SHARD_1, GATE, "at most 8 dimensions, found 9"),
    D(shape_missing, STATUS_FORMAT, SHARD_1, GATE, "shape: expected a list, found nothing"),
    D(entry_with_more, STATUS_FORMAT, SHARD_1, GATE, "found 4 members"),
    D(offsets_behind_end, STATUS_FORMAT, SHARD_1, GATE, "of the data, which has 2804628"),
    D(offsets_of_2_62, STATUS_FORMAT, SHARD_1, GATE, "of the data, which has 2804628"),
    D(offsets_negative, STATUS_FORMAT, SHARD_1, GATE, "expected 0 <= begin <= end"),
    D(offsets_reversed, STATUS_FORMAT, SHARD_1, GATE, "expected 0 <= begin <= end"),
    D(offsets_short, STATUS_FORMAT, SHARD_1, GATE, "takes 3072 bytes, data_offsets span 3068"),
    D(offsets_overlap, STATUS_FORMAT, SHARD_1, GATE, "overlap"),
    D(offsets_three, STATUS_FORMAT, SHARD_1, GATE, "expected two integers"),
    D(offsets_text, STATUS_FORMAT, SHARD_1, GATE, "expected two integers"),
    D(tensor_missing, STATUS_FORMAT, SHARD_1, LAYER_0 "mlp.gate.biases", "is missing"),
    D(tensor_missing_everywhere, STATUS_FORMAT, LAYER_0 "mlp.gate.biases", "is missing"),
    D(tensor_not_in_index, STATUS_FORMAT, SHARD_1, GATE, "the index places it in no file"),
    D(tensor_in_other_file, STATUS_FORMAT, SHARD_2, GATE,
      "is missing, which the index places there"),
    D(tensor_extra, STATUS_FORMAT, SHARD_2, LAYER_0 "mlp.extra", "is left over"),
    D(tensor_extra_unlisted, STATUS_FORMAT, SHARD_2, "tensor extra", "no file"),
    D(tensor_of_layer_8, STATUS_FORMAT, SHARD_2, "layers.8.input_layernorm.weight", "is left over"),
    D(tensor_twice, STATUS_FORMAT, GATE " occurs twice", SHARD_1, SHARD_2),
    D(tensor_twice_spelled, STATUS_FORMAT, "layers.0.mlp.gate.weight occurs twice", SHARD_1,
      SHARD_2),
    D(norm_misspelled, STATUS_FORMAT, LAYER_0 "input_layernorm.weight is missing"),
    D(bare_a_log_suffix, STATUS_FORMAT, LAYER_0 "linear_attn.A_log is missing"),
    D(not_quantised, STATUS_UNSUPPORTED, SHARD_1, GATE, "found unquantised F32"),
    D(conv_mixed, STATUS_FORMAT, "layers.1.linear_attn.conv1d.weight", "convolution"),
    D(conv_flat, STATUS_FORMAT, SHARD_1, "linear_attn.conv1d.weight", "expected BF16 [1024, 4, 1]"),
    D(config_missing, STATUS_NOT_FOUND, "config.json", "No such file"),
    D(config_cut, STATUS_FORMAT, "config.json: not valid JSON: line "),
    D(config_empty, STATUS_FORMAT, "config.json: not valid JSON: line 1"),
    D(config_nested, STATUS_FORMAT, "config.json: not valid JSON", "depth"),
    D(config_other_hidden, STATUS_FORMAT, "embed_tokens.weight", "expected U32 [512, 32]",
      "found U32 [512, 24]"),
    D(config_more_experts, STATUS_FORMAT, "mlp.gate.weight", "expected U32 [17, 48]",
      "found U32 [16, 48]"),
    D(config_tied, STATUS_FORMAT, "language_model.lm_head.", "is left over",
      "ties the output head"),
    D(config_gate_of_4_bits, STATUS_FORMAT, GATE, "expected U32 [16, 24] (192 inputs, 4 bits",
      "found U32 [16, 48]"),
    D(config_gate_plain, STATUS_FORMAT, "config.json: quantization: " LAYER_0 "mlp.gate",
      "found false"),
    D(config_group_128, STATUS_UNSUPPORTED, LAYER_0 "linear_attn.in_proj_a", "192 inputs",
      "found 128"),
    D(config_group_32, STATUS_FORMAT, "embed_tokens.scales", "expected BF16 [512, 6]",
      "found BF16 [512, 3]"),
    D(generation_bad, STATUS_FORMAT, "generation_config.json: eos_token_id", "expected 0 to 511",
      "found 512"),
    D(index_missing, STATUS_NOT_FOUND, "expected " INDEX " or model.safetensors, found neither"),
    D(index_cut, STATUS_FORMAT, INDEX ": not valid JSON"),
    D(index_nested, STATUS_FORMAT, INDEX ": not valid JSON", "depth"),
    D(index_without_map, STATUS_FORMAT, INDEX, "weight_map", "found nothing"),
    D(index_escapes, STATUS_FORMAT, INDEX, GATE, "found ../" SHARD_1),
    D(index_names_no_file, STATUS_NOT_FOUND, "other.safetensors", "No such file"),
    D(index_names_number, STATUS_FORMAT, INDEX, GATE, "found an integer"),
    D(index_is_folder, STATUS_FORMAT, INDEX, "found a folder"),
};

static void each_damage_is_named(void **state) {
    UNUSED(state);
    int n_bad = 0;
    for (size_t i = 0; i < COUNT_OF(DAMAGES); i++) {
        const Damage *d = &DAMAGES[i];
        Case c;
        case_open(&c);
        case_link_all(&c, ORACLE);
        d->apply(&c);
        Err err = {0};
        Folder *f = NULL;
        Status status = folder_open(&f, c.dir, NULL, NULL, &err);
        bool is_good = status == d->status && err.code == status && !f;
        for (int j = 0; j < 3 && d->texts[j]; j++)
            is_good = is_good && strstr(err.text, d->texts[j]);
        if (!is_good) {
            print_error("%s: %s: %s\n", d->name, status_name(status), err.text);
            n_bad++;
        }
        folder_close(f);
        case_close(&c);
    }
    assert_int_equal(n_bad, 0);
}

/* The undamaged copy opens, so each damage above is its own cause. */
static void undamaged_copy_opens(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    case_link_all(&c, ORACLE);
    CaseShard s = case_read_shard(&c, SHARD_1); // written anew: another header length
    case_write_shard(&c, SHARD_1, &s);
    Err err = {0};
    Folder *f = NULL;
    if (folder_open(&f, c.dir, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(f->n_files, 2);
    assert_true(f->has_index);
    assert_false(f->is_raw);
    assert_false(f->is_cache_dropped);
    assert_true(f->vision.n > 0);
    assert_int_equal(f->mtp.n, 0);
    folder_close(f);
    case_close(&c);
}

/* C64: a file of 37 bytes that is nothing but a broken header. */
static void c64_header_of_37_bytes(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    header_of_37_bytes(&c);
    StrBuf b = case_read(&c, SHARD_1);
    assert_int_equal(b.len, 37);
    strbuf_fini(&b);
    char path[CASE_PATH];
    case_path(&c, SHARD_1, path);
    Safetensors *f = NULL;
    Err err = {0};
    assert_int_equal(safetensors_open(&f, path, &err), STATUS_FORMAT);
    assert_null(f);
    assert_non_null(strstr(err.text, SHARD_1));
    case_close(&c);
}

/* C66: a dimension of 2^42 + 1 whose product wraps to the tensor's true size. */
static void c66_dimension_that_wraps(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    // (2^42 + 1) * 2^22 * 4 = 2^66 + 2^24, which is 2^24 in 64 bits
    header_only(&c, "x.safetensors",
                "{\"t\":{\"dtype\":\"F32\",\"shape\":[4398046511105,4194304],"
                "\"data_offsets\":[0,16777216]}}");
    char path[CASE_PATH];
    case_path(&c, "x.safetensors", path);
    StrBuf b = case_read(&c, "x.safetensors");
    assert_int_equal(truncate(path, (off_t)b.len + (1 << 24)), 0);
    strbuf_fini(&b);
    Safetensors *f = NULL;
    Err err = {0};
    assert_int_equal(safetensors_open(&f, path, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "tensor t: shape [4398046511105, 4194304]"));
    case_close(&c);
}

/* Skipped by name, and only by these names. */
static void mtp_and_vision_are_skipped(void **state) {
    UNUSED(state);
    static const char *const NAMES[] = {"mtp.fc.weight", "language_model.mtp.norm.weight",
                                        "model.visual.blocks.0.x", "vision_tower.y"};
    Case c;
    case_open(&c);
    small_write(&c, &(Small){0});
    CaseShard s = case_read_shard(&c, "model.safetensors");
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        json_object_set_new(
            s.header, NAMES[i],
            json_pack("{s:s, s:[i], s:[i, i]}", "dtype", "U8", "shape", 0, "data_offsets", 0, 0));
    case_write_shard(&c, "model.safetensors", &s);
    Err err = {0};
    Folder *f = NULL;
    if (folder_open(&f, c.dir, NULL, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(f->mtp.n, 2);
    assert_int_equal(f->vision.n, 2);
    folder_close(f);
    s = case_read_shard(&c, "model.safetensors");
    json_object_set(s.header, "language_model.model.mtp_x", json_object_get(s.header, NAMES[0]));
    case_write_shard(&c, "model.safetensors", &s);
    f = NULL;
    assert_int_equal(folder_open(&f, c.dir, NULL, NULL, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "language_model.model.mtp_x is left over"));
    case_close(&c);
}

/* generation_config.json's end ids take the place of the config's; none there: nothing changes. */
static void end_ids_of_generation_config(void **state) {
    UNUSED(state);
    static const struct {
        const char *text;
        int32_t n, first;
    } CASES[] = {{NULL, 2, 510},
                 {"{}", 2, 510},
                 {"{\"eos_token_id\":7}", 1, 7},
                 {"{\"eos_token_id\":[9,8,9]}", 2, 9},
                 {"{\"eos_token_id\":[]}", 2, 510}};
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Case c;
        case_open(&c);
        case_link_all(&c, ORACLE);
        remove_file(&c, "generation_config.json");
        if (CASES[i].text)
            case_write(&c, "generation_config.json", CASES[i].text, strlen(CASES[i].text));
        Folder *f = NULL;
        assert_int_equal(folder_open(&f, c.dir, NULL, NULL, NULL), STATUS_OK);
        assert_int_equal(f->config.n_eos, CASES[i].n);
        assert_int_equal(f->config.eos[0], CASES[i].first);
        folder_close(f);
        case_close(&c);
    }
}

static void no_such_folder(void **state) {
    UNUSED(state);
    Err err = {0};
    Folder *f = NULL;
    assert_int_equal(folder_open(&f, "/tmp/lily-no-such-folder", NULL, NULL, &err),
                     STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/tmp/lily-no-such-folder/config.json"));
    assert_int_equal(folder_open(&f, "Makefile", NULL, NULL, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "Makefile/config.json: Not a directory"));
}

/* Root reads everything: then another user tries. */
static void folder_without_permission(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){0});
    assert_int_equal(chmod(c.dir, 0), 0);
    bool is_root = geteuid() == 0;
    if (is_root)
        assert_int_equal(seteuid(65534), 0);
    Err err = {0};
    Folder *f = NULL;
    Status status = folder_open(&f, c.dir, NULL, NULL, &err);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(c.dir, 0755), 0);
    assert_int_equal(status, STATUS_DENIED);
    assert_non_null(strstr(err.text, "config.json: Permission denied"));
    case_close(&c);
}

/* ---- a report of all faults ---- */

typedef struct Found {
    int n;
    char all[2048];
} Found;

static void add_found(void *ctx, Status code, const char *text) {
    Found *found = ctx;
    size_t used = strlen(found->all);
    assert_int_not_equal(code, STATUS_OK);
    snprintf(found->all + used, sizeof found->all - used, "%s\n", text);
    found->n++;
}

static void all_faults_are_collected(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    case_link_all(&c, ORACLE);
    tensor_missing_everywhere(&c);
    tensor_extra(&c);
    conv_flat(&c);
    Found found = {0};
    FolderRefusals refusals = {add_found, &found};
    Err err = {0};
    Folder *f = NULL;
    if (folder_open(&f, c.dir, &refusals, NULL, &err) != STATUS_OK)
        fail_msg("%s", err.text);
    // The two other tensors of the gate have no slot without their biases.
    assert_int_equal(found.n, 5);
    assert_non_null(strstr(found.all, "mlp.gate.biases is missing"));
    assert_non_null(strstr(found.all, "mlp.extra is left over"));
    assert_non_null(strstr(found.all, "linear_attn.conv1d.weight: expected"));
    assert_null(folder_bound(f, SLOT_ROUTER, 0)->main.tensor);
    assert_non_null(folder_bound(f, SLOT_ROUTER, 1)->main.tensor);
    folder_close(f);
    case_close(&c);
}

/* Where memory is short pages are dropped on the way, again and again: the same rows come back. */
static void rows_stay_when_pages_are_dropped(void **state) {
    UNUSED(state);
    Folder *f = NULL;
    assert_int_equal(folder_open(&f, ORACLE, NULL, NULL, NULL), STATUS_OK);
    WeightsSource source;
    folder_source(&source);
    enum { ROWS = 16 * 64, WORDS = ROWS * 24, GROUPS = ROWS * 3 };
    uint32_t *q = mem_alloc(2 * WORDS * sizeof *q);
    uint16_t *scale = mem_alloc(2 * GROUPS * sizeof *scale),
             *bias = mem_alloc(2 * GROUPS * sizeof *bias);
    const uint64_t n_bytes = WORDS * 4 + GROUPS * 4;
    int n = (int)(600000000 / n_bytes); // twice 256 MB and a rest
    for (int i = 0; i < n; i++) {
        int half = i > 0;
        f->is_cache_dropped = half;
        assert_int_equal(source.read_quant(f, SLOT_EXPERT_GATE, 7, 0, ROWS, q + half * WORDS,
                                           scale + half * GROUPS, bias + half * GROUPS, NULL),
                         STATUS_OK);
        if (i % 100 == 1 || i == n - 1) {
            assert_memory_equal(q, q + WORDS, WORDS * sizeof *q);
            assert_memory_equal(scale, scale + GROUPS, GROUPS * sizeof *scale);
            assert_memory_equal(bias, bias + GROUPS, GROUPS * sizeof *bias);
        }
    }
    assert_true(atomic_load(&f->n_bytes_read) == (uint64_t)(n - 1) * n_bytes);
    mem_free(q);
    mem_free(scale);
    mem_free(bias);
    source.close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undamaged_copy_opens),
        cmocka_unit_test(each_damage_is_named),
        cmocka_unit_test(c64_header_of_37_bytes),
        cmocka_unit_test(c66_dimension_that_wraps),
        cmocka_unit_test(mtp_and_vision_are_skipped),
        cmocka_unit_test(end_ids_of_generation_config),
        cmocka_unit_test(no_such_folder),
        cmocka_unit_test(folder_without_permission),
        cmocka_unit_test(all_faults_are_collected),
        cmocka_unit_test(rows_stay_when_pages_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
