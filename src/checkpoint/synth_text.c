// SPDX-License-Identifier: Apache-2.0
/* synth_text.c - JSON in the very layout of the published files. A JSON library would print other
 * floats and another layout, and these files are known by their digests.
 *
 * Path:     synth_write.c.
 * Owns:     nothing.  Thread: any. */
#include "checkpoint/synth_text.h"

#include "base/mem.h"
#include "checkpoint/synth_template.h"

#include <assert.h>
#include <stdlib.h>

/* Added tokens in the order of their ids, with the flag that "skip special tokens" looks at.
 * Source: tokenizer specification, section 1.1. */
static const struct AddedToken {
    const char *text;
    bool is_special;
} ADDED_TOKENS[] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};
// Places in the list.
enum { ADDED_VISION_START = 9, ADDED_VISION_END = 10, ADDED_IMAGE = 12, ADDED_VIDEO = 13 };
static_assert(COUNT_OF(ADDED_TOKENS) == SYNTH_N_ADDED, "the family has 33 added tokens");

static const char *bool_text(bool b) { return b ? "true" : "false"; }

/* The quantisation block: defaults, then the 8-bit modules of each layer. */
static void put_quantization(StrBuf *b, const ModelConfig *c, const char *key) {
    static const char *const modules[] = {"gate", "shared_expert_gate"};
    strbuf_printf(b,
                  "    \"%s\": {\n"
                  "        \"group_size\": 64,\n"
                  "        \"bits\": 4,\n"
                  "        \"mode\": \"affine\"",
                  key);
    for (int layer = 0; layer < c->n_layers; layer++)
        for (size_t m = 0; m < COUNT_OF(modules); m++)
            strbuf_printf(b,
                          ",\n"
                          "        \"language_model.model.layers.%d.mlp.%s\": {\n"
                          "            \"group_size\": 64,\n"
                          "            \"bits\": 8\n"
                          "        }",
                          layer, modules[m]);
    strbuf_printf(b, "\n    },\n");
}

static void put_text_config(StrBuf *b, const ModelConfig *c) {
    int32_t base = synth_added_base(c->vocab);
    strbuf_printf(b,
                  "    \"text_config\": {\n"
                  "        \"attention_bias\": false,\n"
                  "        \"attention_dropout\": 0.0,\n"
                  "        \"attn_output_gate\": true,\n"
                  "        \"bos_token_id\": %d,\n"
                  "        \"dtype\": \"bfloat16\",\n"
                  "        \"eos_token_id\": %d,\n"
                  "        \"full_attention_interval\": 4,\n"
                  "        \"head_dim\": %d,\n"
                  "        \"hidden_act\": \"silu\",\n"
                  "        \"hidden_size\": %d,\n"
                  "        \"initializer_range\": 0.02,\n"
                  "        \"layer_types\": [",
                  base, base, ATTN_HEAD, c->hidden);
    for (int i = 0; i < c->n_layers; i++)
        strbuf_printf(b, "%s\n            \"%s_attention\"", i ? "," : "",
                      c->is_attn[i] ? "full" : "linear");
    strbuf_printf(b,
                  "\n        ],\n"
                  "        \"linear_conv_kernel_dim\": %d,\n"
                  "        \"linear_key_head_dim\": %d,\n"
                  "        \"linear_num_key_heads\": %d,\n"
                  "        \"linear_num_value_heads\": %d,\n"
                  "        \"linear_value_head_dim\": %d,\n"
                  "        \"mamba_ssm_dtype\": \"float32\",\n"
                  "        \"max_position_embeddings\": %d,\n"
                  "        \"model_type\": \"qwen3_5_moe_text\",\n"
                  "        \"moe_intermediate_size\": %d,\n"
                  "        \"mtp_num_hidden_layers\": 1,\n"
                  "        \"mtp_use_dedicated_embeddings\": false,\n"
                  "        \"num_attention_heads\": %d,\n"
                  "        \"num_experts\": %d,\n"
                  "        \"num_experts_per_tok\": %d,\n"
                  "        \"num_hidden_layers\": %d,\n"
                  "        \"num_key_value_heads\": %d,\n",
                  CONV_TAPS, GDN_HEAD, c->n_gdn_key_heads, c->n_gdn_value_heads, GDN_HEAD,
                  c->max_positions, c->expert_inner, c->n_q_heads, c->n_experts, c->top_k,
                  c->n_layers, c->n_kv_heads);
    strbuf_printf(b,
                  "        \"output_router_logits\": false,\n"
                  "        \"pad_token_id\": null,\n"
                  "        \"partial_rotary_factor\": 0.25,\n"
                  "        \"rms_norm_eps\": 1e-06,\n"
                  "        \"rope_parameters\": {\n"
                  "            \"mrope_interleaved\": true,\n"
                  "            \"mrope_section\": [\n"
                  "                11,\n"
                  "                11,\n"
                  "                10\n"
                  "            ],\n"
                  "            \"partial_rotary_factor\": 0.25,\n"
                  "            \"rope_theta\": 10000000,\n"
                  "            \"rope_type\": \"default\"\n"
                  "        },\n"
                  "        \"router_aux_loss_coef\": 0.001,\n"
                  "        \"shared_expert_intermediate_size\": %d,\n"
                  "        \"tie_word_embeddings\": %s,\n"
                  "        \"use_cache\": true,\n"
                  "        \"vocab_size\": %d\n"
                  "    },\n",
                  c->shared_inner, bool_text(c->is_tied), c->vocab);
}

static void put_vision_config(StrBuf *b, const ModelConfig *c) {
    SynthVision v = synth_layout_vision(c);
    strbuf_printf(b,
                  "    \"vision_config\": {\n"
                  "        \"deepstack_visual_indexes\": [],\n"
                  "        \"depth\": %d,\n"
                  "        \"hidden_act\": \"gelu_pytorch_tanh\",\n"
                  "        \"hidden_size\": %d,\n"
                  "        \"in_channels\": 3,\n"
                  "        \"initializer_range\": 0.02,\n"
                  "        \"intermediate_size\": %d,\n"
                  "        \"model_type\": \"qwen3_5_moe\",\n"
                  "        \"num_heads\": %d,\n"
                  "        \"num_position_embeddings\": %d,\n"
                  "        \"out_hidden_size\": %d,\n"
                  "        \"patch_size\": %d,\n"
                  "        \"spatial_merge_size\": %d,\n"
                  "        \"temporal_patch_size\": %d\n"
                  "    },\n",
                  v.depth, v.hidden, v.inner, v.heads, v.positions, v.out, v.patch, v.merge,
                  v.frames);
}

Status synth_text_config(StrBuf *out, const ModelConfig *c, Err *err) {
    int32_t base = synth_added_base(c->vocab);
    // These are printed as the published file has them.
    CHECK(c->rope_theta == 1e7 && c->rms_eps == 1e-6 && c->n_eos == 2);
    strbuf_printf(out,
                  "{\n"
                  "    \"architectures\": [\n"
                  "        \"Qwen3_5MoeForConditionalGeneration\"\n"
                  "    ],\n"
                  "    \"eos_token_id\": [\n"
                  "        %d,\n"
                  "        %d\n"
                  "    ],\n"
                  "    \"image_token_id\": %d,\n"
                  "    \"model_type\": \"qwen3_5_moe\",\n",
                  c->eos[0], c->eos[1], base + ADDED_IMAGE);
    put_quantization(out, c, "quantization");
    put_quantization(out, c, "quantization_config");
    put_text_config(out, c);
    strbuf_printf(out,
                  "    \"tie_word_embeddings\": %s,\n"
                  "    \"transformers_version\": \"4.57.1\",\n"
                  "    \"video_token_id\": %d,\n",
                  bool_text(c->is_tied), base + ADDED_VIDEO);
    put_vision_config(out, c);
    strbuf_printf(out,
                  "    \"vision_end_token_id\": %d,\n"
                  "    \"vision_start_token_id\": %d\n"
                  "}",
                  base + ADDED_VISION_END, base + ADDED_VISION_START);
    return strbuf_check(out, err);
}

Status synth_text_generation(StrBuf *out, const ModelConfig *c, Err *err) {
    int32_t base = synth_added_base(c->vocab);
    strbuf_printf(out,
                  "{\n"
                  "    \"bos_token_id\": %d,\n"
                  "    \"do_sample\": true,\n"
                  "    \"eos_token_id\": [\n"
                  "        %d,\n"
                  "        %d\n"
                  "    ],\n"
                  "    \"pad_token_id\": %d,\n"
                  "    \"temperature\": 1.0,\n"
                  "    \"top_k\": 20,\n"
                  "    \"top_p\": 0.95\n"
                  "}\n",
                  base, c->eos[0], c->eos[1], base);
    return strbuf_check(out, err);
}

static int compare_tensors(const void *a, const void *b) {
    const SynthTensor *x = *(const SynthTensor *const *)a, *y = *(const SynthTensor *const *)b;
    return strcmp(x->entry.name, y->entry.name);
}

Status synth_text_index(StrBuf *out, const SynthLayout *layout, Err *err) {
    const SynthTensor **sorted = mem_alloc(layout->n * sizeof *sorted);
    if (!sorted)
        return err_memory(err, "the index", layout->n * sizeof *sorted);
    for (size_t i = 0; i < layout->n; i++)
        sorted[i] = &layout->tensors[i];
    qsort(sorted, layout->n, sizeof *sorted, compare_tensors);
    strbuf_printf(out,
                  "{\n"
                  "    \"metadata\": {\n"
                  "        \"total_size\": %llu\n"
                  "    },\n"
                  "    \"weight_map\": {",
                  (unsigned long long)layout->total_bytes);
    for (size_t i = 0; i < layout->n; i++) {
        char file[SYNTH_SHARD_NAME];
        synth_layout_shard_name(file, sorted[i]->shard, layout->n_shards);
        strbuf_printf(out, "%s\n        \"%s\": \"%s\"", i ? "," : "", sorted[i]->entry.name, file);
    }
    strbuf_printf(out, "\n    }\n}");
    mem_free(sorted);
    return strbuf_check(out, err);
}

/* The byte that token `id` stands for: printable ones first, then the others, each ascending. */
static int byte_of_token(int id) {
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int byte = 0; byte < 256; byte++) {
            bool is_printable =
                (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
            if (is_printable == (pass == 0) && n++ == id)
                return byte;
        }
    CHECK(!"a byte token");
    return 0;
}

/* The symbol of a byte token in the byte-level alphabet, as a JSON string: a printable byte is the
 * code point of its value, the others are U+0100, U+0101, ... in ascending order. */
static void put_byte_symbol(StrBuf *b, int id) {
    uint32_t code = id < 188 ? (uint32_t)byte_of_token(id) : 0x100u + (uint32_t)(id - 188);
    char text[4];
    size_t len = 0;
    if (code == '"' || code == '\\')
        text[len++] = '\\';
    if (code < 0x80) {
        text[len++] = (char)code;
    } else {
        text[len++] = (char)(0xc0 | code >> 6);
        text[len++] = (char)(0x80 | (code & 0x3f));
    }
    strbuf_printf(b, "      \"%.*s\": %d", (int)len, text, id);
}

/* Word number k (from 0) behind a space: a to z, aa, ab, ... They fill the ids between the byte
 * tokens and the added ones, so that what a random model says can be seen. No merge makes them. The
 * tokenizer of models without files has the same. */
static void put_word(StrBuf *b, int id) {
    char word[16];
    size_t at = sizeof word;
    for (int k = id - 256 + 1; k > 0; k = (k - 1) / 26)
        word[--at] = (char)('a' + (k - 1) % 26);
    strbuf_printf(b, ",\n      \"\xc4\xa0%.*s\": %d", (int)(sizeof word - at), word + at, id);
}

Status synth_text_tokenizer(StrBuf *out, const ModelConfig *c, Err *err) {
    int32_t base = synth_added_base(c->vocab);
    strbuf_printf(out, "{\n"
                       "  \"version\": \"1.0\",\n"
                       "  \"truncation\": null,\n"
                       "  \"padding\": null,\n"
                       "  \"added_tokens\": [\n");
    for (size_t i = 0; i < COUNT_OF(ADDED_TOKENS); i++)
        strbuf_printf(out,
                      "    {\n"
                      "      \"id\": %d,\n"
                      "      \"content\": \"%s\",\n"
                      "      \"single_word\": false,\n"
                      "      \"lstrip\": false,\n"
                      "      \"rstrip\": false,\n"
                      "      \"normalized\": false,\n"
                      "      \"special\": %s\n"
                      "    }%s\n",
                      base + (int32_t)i, ADDED_TOKENS[i].text,
                      bool_text(ADDED_TOKENS[i].is_special),
                      i + 1 < COUNT_OF(ADDED_TOKENS) ? "," : "");
#define BYTE_LEVEL                                                                                 \
    "      \"type\": \"ByteLevel\",\n"                                                             \
    "      \"add_prefix_space\": false,\n"                                                         \
    "      \"trim_offsets\": false,\n"                                                             \
    "      \"use_regex\": false\n"
    strbuf_append_view(
        out, STR("  ],\n"
                 "  \"normalizer\": {\n"
                 "    \"type\": \"NFC\"\n"
                 "  },\n"
                 "  \"pre_tokenizer\": {\n"
                 "    \"type\": \"Sequence\",\n"
                 "    \"pretokenizers\": [{\n"
                 "      \"type\": \"Split\",\n"
                 "      \"pattern\": {\n"
                 "        \"Regex\": \"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
                 "[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*"
                 "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"\n"
                 "      },\n"
                 "      \"behavior\": \"Isolated\",\n"
                 "      \"invert\": false\n"
                 "    }, {\n" BYTE_LEVEL "    }]\n"
                 "  },\n"
                 "  \"post_processor\": {\n" BYTE_LEVEL "  },\n"
                 "  \"decoder\": {\n" BYTE_LEVEL "  },\n"
                 "  \"model\": {\n"
                 "    \"type\": \"BPE\",\n"
                 "    \"dropout\": null,\n"
                 "    \"unk_token\": null,\n"
                 "    \"continuing_subword_prefix\": \"\",\n"
                 "    \"end_of_word_suffix\": \"\",\n"
                 "    \"fuse_unk\": false,\n"
                 "    \"byte_fallback\": false,\n"
                 "    \"ignore_merges\": false,\n"
                 "    \"vocab\": {\n"));
#undef BYTE_LEVEL
    for (int id = 0; id < 256; id++) {
        strbuf_append_view(out, id ? STR(",\n") : STR(""));
        put_byte_symbol(out, id);
    }
    for (int id = 256; id < base; id++)
        put_word(out, id);
    strbuf_append_view(out, STR("\n    },\n"
                                "    \"merges\": []\n"
                                "  }\n"
                                "}\n"));
    return strbuf_check(out, err);
}

Status synth_text_template(StrBuf *out, Err *err) {
    strbuf_append_view(out, STR(SYNTH_TEMPLATE));
    return strbuf_check(out, err);
}
