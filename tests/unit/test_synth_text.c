// SPDX-License-Identifier: Apache-2.0
/* test_synth_text.c - the text files of the full shape are the published ones byte for byte; those
 * of every shape say what the model is.
 *
 * Owns:     nothing.  Thread: one.
 * Source:   digests and lengths: model specification, sections 1.1 and 2.2. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "checkpoint/synth_text.h"

#include "unit.h"

static Synth make(const char *spec) {
    Synth s;
    Err err = {0};
    assert_int_equal(synth_parse(&s, str_view(spec, strlen(spec)), &err), STATUS_OK);
    return s;
}

static void assert_digest(StrBuf *text, size_t len, const char *digest) {
    char sha[SHA256_TEXT_SIZE];
    sha256_text(text->ptr, text->len, sha);
    assert_int_equal(text->len, len);
    assert_string_equal(sha, digest);
    strbuf_fini(text);
}

static void full_shape_has_the_published_texts(void **state) {
    UNUSED(state);
    Synth s = make("qwen3.6-35b-a3b,seed=3"); // the seed shows in the weights only
    SynthLayout l;
    Err err = {0};
    StrBuf text = {0};
    assert_int_equal(synth_text_config(&text, &s.config, &err), STATUS_OK);
    assert_digest(&text, 23591, "a822a9e48b0aafbe3144ec37d4fb067e178ed96615ce6e4420b3149893cc5767");
    assert_int_equal(synth_layout_init(&l, &s.config, (uint64_t)5 << 30, &err), STATUS_OK);
    assert_int_equal(synth_text_index(&text, &l, &err), STATUS_OK);
    synth_layout_fini(&l);
    assert_digest(&text, 215755,
                  "0b28df60e33753a14e816d3b31577ae2c93884c58430a4a6de6ae9ea483842ea");
    assert_int_equal(synth_text_generation(&text, &s.config, &err), STATUS_OK);
    assert_digest(&text, 202, "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e");
    assert_int_equal(synth_text_template(&text, &err), STATUS_OK);
    assert_digest(&text, 7764, "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259");
}

/* What config.c makes of the text is the model that was asked for, field by field. */
static void config_reads_back(void **state) {
    UNUSED(state);
    const char *specs[] = {"qwen3.6-35b-a3b",
                           "qwen3.6-35b-a3b,layers=3",
                           "mini",
                           "wide",
                           "small,layers=1",
                           "small",
                           "tiny",
                           "micro,layers=256"};
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        Synth s = make(specs[i]);
        const ModelConfig *a = &s.config;
        StrBuf text = {0};
        Err err = {0};
        assert_int_equal(synth_text_config(&text, a, &err), STATUS_OK);
        ModelConfig b;
        QuantTable *quant = NULL;
        if (config_parse(&b, &quant, strbuf_view(&text), "config.json", &err) != STATUS_OK)
            fail_msg("%s: %s", specs[i], err.text);
#define SAME(field) assert_true(a->field == b.field)
        SAME(hidden), SAME(n_layers), SAME(vocab), SAME(n_q_heads), SAME(n_kv_heads);
        SAME(n_gdn_key_heads), SAME(n_gdn_value_heads), SAME(n_experts), SAME(top_k);
        SAME(expert_inner), SAME(shared_inner), SAME(max_positions), SAME(rope_theta);
        SAME(rms_eps), SAME(is_tied), SAME(is_norm_topk), SAME(n_eos), SAME(eos[0]), SAME(eos[1]);
#undef SAME
        assert_memory_equal(a->is_attn, b.is_attn, (size_t)a->n_layers);
        for (int layer = -1; layer < a->n_layers; layer++)
            for (int slot = 0; slot < SLOT_N; slot++) {
                if (!weights_slot_exists(a, (WeightSlot)slot, layer) ||
                    !weights_slot_is_quant((WeightSlot)slot))
                    continue;
                char name[128];
                weights_slot_name(name, sizeof name, (WeightSlot)slot, layer);
                QuantSpec found = quant_table_find(quant, str_view(name, strlen(name)));
                QuantSpec expected = synth_quant_spec((WeightSlot)slot);
                assert_int_equal(found.bits, expected.bits);
                assert_int_equal(found.group, expected.group);
            }
        quant_table_close(quant);
        strbuf_fini(&text);
    }
}

/* Ids 0..base-1 once each in the vocabulary, then the 33 added tokens; no merges. */
static void tokenizer_has_every_id_once(void **state) {
    UNUSED(state);
    const char *specs[] = {"micro", "small", "mini", "qwen3.6-35b-a3b"};
    const int64_t bases[] = {300 - 33, 777 - 33, 4096 - 33, 248044};
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        Synth s = make(specs[i]);
        StrBuf text = {0};
        Err err = {0};
        assert_int_equal(synth_text_tokenizer(&text, &s.config, &err), STATUS_OK);
        json_t *root;
        if (json_read(&root, strbuf_view(&text), "tokenizer.json", &err) != STATUS_OK)
            fail_msg("%s", err.text); // a symbol or word that occurs twice among them
        json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
        assert_int_equal(json_object_size(vocab), bases[i]);
        bool *seen = mem_zalloc((size_t)bases[i], sizeof *seen);
        const char *key;
        json_t *id;
        json_object_foreach(vocab, key, id) {
            int64_t v = json_integer_value(id);
            assert_true(v >= 0 && v < bases[i] && !seen[v]);
            seen[v] = true;
        }
        mem_free(seen);
        assert_int_equal(json_integer_value(json_object_get(vocab, "!")), 0);
        assert_int_equal(json_integer_value(json_object_get(vocab, "\xc4\x8a")), 198); // line feed
        assert_int_equal(json_integer_value(json_object_get(vocab, "\xc4\xa0")), 220); // space
        assert_int_equal(json_integer_value(json_object_get(vocab, "\xc5\x83")), 255); // 0xad
        assert_int_equal(json_array_size(json_object_get(json_object_get(root, "model"), "merges")),
                         0);
        json_t *added = json_object_get(root, "added_tokens");
        assert_int_equal(json_array_size(added), 33);
        json_t *special;
        assert_int_equal(
            json_read_file(&special, "tests/data/qwen36/special_tokens.json", 1 << 20, &err),
            STATUS_OK);
        const json_t *published = json_object_get(special, "added_tokens");
        for (size_t t = 0; t < 33; t++) {
            const json_t *a = json_array_get(added, t), *b = json_array_get(published, t);
            assert_int_equal(json_integer_value(json_object_get(a, "id")), bases[i] + (int64_t)t);
            static const char *const fields[] = {"content", "special", "normalized",
                                                 "lstrip",  "rstrip",  "single_word"};
            for (size_t f = 0; f < COUNT_OF(fields); f++)
                assert_true(
                    json_equal(json_object_get(a, fields[f]), json_object_get(b, fields[f])));
        }
        const json_t *split = json_array_get(
            json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
        assert_true(json_equal(json_object_get(json_object_get(split, "pattern"), "Regex"),
                               json_object_get(special, "pretokenize_regex")));
        json_decref(special);
        json_decref(root);
        strbuf_fini(&text);
    }
}

static void template_is_the_published_file(void **state) {
    UNUSED(state);
    StrBuf file = {0}, text = {0};
    Err err = {0};
    assert_int_equal(file_read_all(&file, "tests/data/qwen36/chat_template.jinja", 1 << 20, &err),
                     STATUS_OK);
    assert_int_equal(synth_text_template(&text, &err), STATUS_OK);
    assert_int_equal(text.len, file.len);
    assert_memory_equal(text.ptr, file.ptr, file.len);
    strbuf_fini(&file);
    strbuf_fini(&text);
}

/* Each text, each allocation failing once: a failure is told. */
static void texts_survive_lack_of_memory(void **state) {
    UNUSED(state);
    Synth s = make("micro");
    SynthLayout l;
    Err err = {0};
    assert_int_equal(synth_layout_init(&l, &s.config, 1 << 16, &err), STATUS_OK);
    for (int which = 0; which < 5; which++)
        for (int64_t after = 0;; after++) {
            StrBuf text = {0};
            mem_fail_after(after);
            Status status = which == 0   ? synth_text_config(&text, &s.config, &err)
                            : which == 1 ? synth_text_generation(&text, &s.config, &err)
                            : which == 2 ? synth_text_tokenizer(&text, &s.config, &err)
                            : which == 3 ? synth_text_index(&text, &l, &err)
                                         : synth_text_template(&text, &err);
            mem_fail_after(-1);
            strbuf_fini(&text);
            if (status == STATUS_OK) {
                assert_true(after > 0);
                break;
            }
            assert_int_equal(status, STATUS_MEMORY);
        }
    synth_layout_fini(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_shape_has_the_published_texts),
        cmocka_unit_test(config_reads_back),
        cmocka_unit_test(tokenizer_has_every_id_once),
        cmocka_unit_test(template_is_the_published_file),
        cmocka_unit_test(texts_survive_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
