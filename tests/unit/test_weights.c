// SPDX-License-Identifier: Apache-2.0
/* test_weights.c - the numbers of the oracle checkpoints against their references, every form of a
 * checkpoint, and every fault of memory, of reading and of the numbers.
 *
 * Owns:     nothing.  Thread: one, but for the test that reads from several.
 * Not here: damaged headers, names and configs (test_folder.c). */
#define _XOPEN_SOURCE 700 // ckpt_case.h
#include "checkpoint/weights.h"

#include "ckpt_case.h"
#include "tensor_read.h"

#include <math.h>
#include <pthread.h>

static Weights *open_or_fail(const char *spec, const Log *log) {
    Err err = {0};
    Weights *w = NULL;
    if (weights_open(&w, spec, log, &err) != STATUS_OK)
        fail_msg("%s: %s", spec, err.text);
    return w;
}

/* All rows of a slot, read in pieces of at most `step` rows; free with buffer_fini. */
typedef struct Buffer {
    WeightInfo info;
    int64_t rows;
    uint32_t *q;
    uint16_t *scale, *bias;
    float *plain;
} Buffer;

static Buffer read_slot(const Weights *w, WeightSlot slot, int layer, int64_t step) {
    Err err = {0};
    Buffer b = {.info = weights_info(w, slot, layer)};
    b.rows = (int64_t)b.info.n_experts * b.info.n;
    if (b.info.bits == 0) {
        b.plain = mem_alloc((size_t)(b.rows * b.info.k) * sizeof(float));
        if (weights_read_plain(w, slot, layer, b.plain, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        return b;
    }
    int64_t words = b.info.k * b.info.bits / 32, groups = b.info.k / b.info.group;
    b.q = mem_alloc((size_t)(b.rows * words) * sizeof *b.q);
    b.scale = mem_alloc((size_t)(b.rows * groups) * sizeof *b.scale);
    b.bias = mem_alloc((size_t)(b.rows * groups) * sizeof *b.bias);
    for (int64_t r = 0; r < b.rows; r += step) {
        int64_t n = b.rows - r < step ? b.rows - r : step;
        if (weights_read_quant(w, slot, layer, r, n, b.q + r * words, b.scale + r * groups,
                               b.bias + r * groups, &err) != STATUS_OK)
            fail_msg("%s", err.text);
    }
    return b;
}

static void buffer_fini(Buffer *b) {
    mem_free(b->q);
    mem_free(b->scale);
    mem_free(b->bias);
    mem_free(b->plain);
}

/* Row r of a slot in f64; out [k]. */
static void buffer_row(const Buffer *b, int64_t r, double *out) {
    int64_t k = b->info.k;
    if (b->plain) {
        for (int64_t i = 0; i < k; i++)
            out[i] = b->plain[r * k + i];
        return;
    }
    quant_dequant_row_f64(out, b->q + r * k * b->info.bits / 32, b->scale + r * k / b->info.group,
                          b->bias + r * k / b->info.group, k, b->info.bits, b->info.group);
}

/* The name under which the references know a slot. */
static void reference_name(char *out, size_t size, WeightSlot slot, int layer) {
    char name[128];
    weights_slot_name(name, sizeof name, slot, layer);
    bool is_bare = slot == SLOT_GDN_A_LOG || slot == SLOT_GDN_DT_BIAS;
    snprintf(out, size, "%s%s", name, is_bare ? "" : ".weight");
}

typedef void (*SlotFn)(const Weights *w, WeightSlot slot, int layer, void *ctx);

static int for_each_slot(const Weights *w, SlotFn fn, void *ctx) {
    int n = 0;
    const ModelConfig *c = weights_config(w);
    for (int layer = -1; layer < c->n_layers; layer++)
        for (int s = 0; s < SLOT_N; s++)
            if (weights_slot_exists(c, (WeightSlot)s, layer)) {
                fn(w, (WeightSlot)s, layer, ctx);
                n++;
            }
    return n;
}

/* ---- the oracle checkpoints ---- */

static double number_of(const json_t *tensor, const char *key) {
    return json_number_value(json_object_get(tensor, key));
}

static void check_sums(const Weights *w, WeightSlot slot, int layer, void *ctx) {
    char name[160];
    reference_name(name, sizeof name, slot, layer);
    const json_t *expected = json_object_get(ctx, name);
    if (!expected)
        fail_msg("no reference for %s", name);
    Buffer b = read_slot(w, slot, layer, 7);
    double *row = mem_alloc((size_t)b.info.k * sizeof *row);
    double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
    for (int64_t r = 0; r < b.rows; r++) {
        buffer_row(&b, r, row);
        for (int64_t i = 0; i < b.info.k; i++) {
            sum += row[i];
            squares += row[i] * row[i];
            low = fmin(low, row[i]);
            high = fmax(high, row[i]);
        }
    }
    mem_free(row);
    buffer_fini(&b);
    if (fabs(sum - number_of(expected, "sum")) > 1e-9 * (1 + sqrt(squares)) ||
        fabs(squares - number_of(expected, "sum_of_squares")) > 1e-11 * squares ||
        low != number_of(expected, "min") || high != number_of(expected, "max"))
        fail_msg("%s: sum %.17g, squares %.17g, min %.17g, max %.17g", name, sum, squares, low,
                 high);
}

/* Every tensor of both checkpoints, so every shard. */
static void sums_equal_reference(void **state) {
    UNUSED(state);
    static const struct {
        const char *dir;
        size_t n;
    } CASES[] = {{"tests/data/oracle/tiny-a", 149}, {"tests/data/oracle/tiny-b", 0}};
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/reference/reference.json", CASES[i].dir);
        json_t *root = NULL;
        assert_int_equal(json_read_file(&root, path, 1 << 20, NULL), STATUS_OK);
        json_t *tensors = json_object_get(root, "tensors");
        Weights *w = open_or_fail(CASES[i].dir, NULL);
        int n = for_each_slot(w, check_sums, tensors);
        assert_int_equal(n, json_object_size(tensors));
        if (CASES[i].n)
            assert_int_equal(n, CASES[i].n);
        weights_close(w);
        json_decref(root);
    }
}

/* The reference file and how many of its tensors were compared. */
typedef struct Rows {
    const Safetensors *f;
    size_t n_compared;
} Rows;

/* The reference holds F32 of the exact values: equal to the last bit. */
static void check_rows(const Weights *w, WeightSlot slot, int layer, void *ctx) {
    Rows *rows = ctx;
    const Safetensors *f = rows->f;
    char name[160], part[192];
    reference_name(name, sizeof name, slot, layer);
    Buffer b = read_slot(w, slot, layer, 1 << 20);
    double *row = mem_alloc((size_t)b.info.k * sizeof *row);
    static const char *const PARTS[] = {".first_rows", ".last_rows", ""};
    for (size_t p = 0; p < COUNT_OF(PARTS); p++) {
        snprintf(part, sizeof part, "%s%s", name, PARTS[p]);
        if (!safetensors_find(f, str_view(part, strlen(part))))
            continue;
        size_t n;
        float *expected = tensor_f32(f, part, &n);
        int64_t n_rows = (int64_t)n / b.info.k, first = p == 1 ? b.rows - n_rows : 0;
        for (int64_t r = 0; r < n_rows; r++) {
            buffer_row(&b, first + r, row);
            for (int64_t i = 0; i < b.info.k; i++)
                assert_true((float)row[i] == expected[r * b.info.k + i]);
        }
        rows->n_compared++;
        free(expected);
    }
    mem_free(row);
    buffer_fini(&b);
}

static void rows_equal_reference(void **state) {
    UNUSED(state);
    static const char *const DIRS[] = {"tests/data/oracle/tiny-a", "tests/data/oracle/tiny-b"};
    for (size_t i = 0; i < COUNT_OF(DIRS); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/reference/dequant.safetensors", DIRS[i]);
        Safetensors *f = NULL;
        assert_int_equal(safetensors_open(&f, path, NULL), STATUS_OK);
        Weights *w = open_or_fail(DIRS[i], NULL);
        Rows rows = {f, 0};
        for_each_slot(w, check_rows, &rows);
        assert_int_equal(rows.n_compared, f->table.n);
        weights_close(w);
        safetensors_close(f);
    }
}

static void infos_of_the_oracle(void **state) {
    UNUSED(state);
    Weights *w = open_or_fail("tests/data/oracle/tiny-a", NULL);
    const ModelConfig *c = weights_config(w);
    assert_int_equal(c->n_layers, 8);
    assert_int_equal(config_n_attn_layers(c), 2);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 510);
    assert_int_equal(c->eos[1], 508);
    assert_string_equal(weights_dir(w), "tests/data/oracle/tiny-a");
    WeightInfo info = weights_info(w, SLOT_EXPERT_DOWN, 5);
    assert_int_equal(info.n_experts, 16);
    assert_int_equal(info.n, 192);
    assert_int_equal(info.k, 64);
    assert_int_equal(info.bits, 4);
    assert_int_equal(info.group, 64);
    assert_int_equal(info.n_bytes, 16 * 192 * (64 / 2 + 4));
    info = weights_info(w, SLOT_ROUTER, 7);
    assert_int_equal(info.bits, 8);
    assert_int_equal(info.n_bytes, 16 * (192 + 3 * 4));
    info = weights_info(w, SLOT_GDN_CONV, 0);
    assert_int_equal(info.n, 1024);
    assert_int_equal(info.k, 4);
    assert_int_equal(info.bits, 0);
    assert_int_equal(info.n_bytes, 1024 * 4 * 2);
    char name[128];
    weights_slot_name(name, sizeof name, SLOT_HEAD, -1);
    assert_string_equal(name, "language_model.lm_head");
    weights_slot_name(name, sizeof name, SLOT_ATTN_Q, 3);
    assert_string_equal(name, "language_model.model.layers.3.self_attn.q_proj");
    weights_slot_name(name, 10, SLOT_ATTN_Q, 3);
    assert_string_equal(name, "language_");
    weights_close(w);
    w = open_or_fail("tests/data/oracle/tiny-b", NULL);
    assert_true(weights_config(w)->is_tied);
    info = weights_info(w, SLOT_GDN_A_LOG, 0);
    assert_int_equal(info.n_bytes, 8 * 4); // stored as F32
    weights_close(w);
}

/* ---- every form of a checkpoint ---- */

/* What small_write put there, with the 1 of raw norms added. */
static void check_small(const Weights *w, WeightSlot slot, int layer, void *ctx) {
    const Small *s = ctx;
    Buffer b = read_slot(w, slot, layer, 5);
    if (b.plain) {
        float one = s->is_raw && weights_slot_is_centred_norm(slot) ? 1.0f : 0.0f;
        for (int64_t i = 0; i < b.rows * b.info.k; i++)
            assert_true(b.plain[i] == small_plain(s, slot, layer, (uint64_t)i) + one);
    } else {
        assert_int_equal(b.info.bits, small_bits(s, slot));
        int64_t words = b.rows * b.info.k * b.info.bits / 32, n = b.rows * b.info.k / b.info.group;
        for (int64_t i = 0; i < words; i++)
            assert_int_equal(b.q[i], small_code_word(slot, layer, (uint64_t)i));
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(b.scale[i], small_scale(slot, layer, (uint64_t)i, false));
            assert_int_equal(b.bias[i], small_scale(slot, layer, (uint64_t)i, true));
        }
    }
    buffer_fini(&b);
}

static void every_form_reads_back(void **state) {
    UNUSED(state);
    static const Small FORMS[] = {
        {0},
        {.is_flat = true, .is_tied = true},
        {.is_raw = true},
        {.is_raw = true, .is_tied = true, .is_indexed = true, .plain = ST_F32},
        {.is_indexed = true, .is_padded = true},
        {.is_padded = true, .bits = 8, .plain = ST_F16},
        {.group = 32},
        {.group = 128, .bits = 8, .is_flat = true},
        {.group = 32, .bits = 8, .is_indexed = true},
        {.group = 128, .plain = ST_F32},
    };
    for (size_t i = 0; i < COUNT_OF(FORMS); i++) {
        Case c;
        case_open(&c);
        small_write(&c, &FORMS[i]);
        Weights *w = open_or_fail(c.dir, NULL);
        assert_int_equal(for_each_slot(w, check_small, (void *)&FORMS[i]),
                         FORMS[i].is_tied ? 2 + 10 + 9 + 6 + 10 : 3 + 10 + 9 + 6 + 10);
        weights_close(w);
        case_close(&c);
    }
}

/* A random model opens by its spec and reads the same rows in any pieces. */
static void synth_models_open(void **state) {
    UNUSED(state);
    Err err = {0};
    Weights *w = open_or_fail("synth:mini,layers=4,seed=3", NULL);
    assert_null(weights_dir(w));
    assert_int_equal(weights_config(w)->n_layers, 4);
    Buffer a = read_slot(w, SLOT_EXPERT_UP, 1, 1000000), b = read_slot(w, SLOT_EXPERT_UP, 1, 3);
    assert_memory_equal(a.q, b.q, (size_t)(a.rows * a.info.k * a.info.bits / 8));
    assert_memory_equal(a.scale, b.scale, (size_t)(a.rows * a.info.k / a.info.group * 2));
    assert_int_equal(a.info.n_bytes,
                     a.rows * a.info.k * a.info.bits / 8 + a.rows * a.info.k / a.info.group * 4);
    buffer_fini(&a);
    buffer_fini(&b);
    weights_close(w);
    w = NULL;
    assert_int_equal(weights_open(&w, "synth:no-such-shape", NULL, &err), STATUS_INVALID);
    assert_null(w);
    assert_non_null(strstr(err.text, "no-such-shape"));
}

/* ---- numbers that are none ---- */

/* Puts one 16-bit value at element i of a tensor of tiny-a. */
static void poison(const Case *c, const char *shard, const char *tensor, size_t i, uint16_t bits) {
    CaseShard s = case_read_shard(c, shard);
    const json_t *t = json_object_get(s.header, tensor);
    assert_non_null(t);
    json_int_t begin = json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
    memcpy(s.data.ptr + begin + i * 2, &bits, 2);
    case_write_shard(c, shard, &s);
}

static void nan_and_infinity_are_named(void **state) {
    UNUSED(state);
    static const struct {
        const char *tensor;
        WeightSlot slot;
        uint16_t bits;
        size_t i; // element
        const char *texts[3];
    } CASES[] = {
        {"mlp.switch_mlp.up_proj.scales",
         SLOT_EXPERT_UP,
         0x7fc0,
         3 * 64 * 3 + 5 * 3 + 2,
         {"language_model.model.layers.0.mlp.switch_mlp.up_proj.scales", "found NaN",
          "row 197, group 2"}},
        {"mlp.switch_mlp.up_proj.biases",
         SLOT_EXPERT_UP,
         0xff80,
         0,
         {"up_proj.biases", "found infinity", "row 0, group 0"}},
        {"linear_attn.in_proj_a.scales",
         SLOT_GDN_A,
         0x7f81,
         11,
         {"in_proj_a.scales", "found NaN", "row 3, group 2"}},
        {"input_layernorm.weight",
         SLOT_INPUT_NORM,
         0x7f80,
         191,
         {"input_layernorm.weight", "found infinity", "element 191"}},
        {"linear_attn.A_log",
         SLOT_GDN_A_LOG,
         0xffff,
         2,
         {"layers.0.linear_attn.A_log:", "found NaN", "element 2"}},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Case c;
        case_open(&c);
        case_link_all(&c, "tests/data/oracle/tiny-a");
        char name[160];
        snprintf(name, sizeof name, "language_model.model.layers.0.%s", CASES[i].tensor);
        poison(&c, "model-00001-of-00002.safetensors", name, CASES[i].i, CASES[i].bits);
        Weights *w = open_or_fail(c.dir, NULL);
        WeightInfo info = weights_info(w, CASES[i].slot, 0);
        int64_t rows = (int64_t)info.n_experts * info.n;
        Err err = {0};
        Status status;
        if (info.bits) {
            uint32_t *q = mem_alloc((size_t)(rows * info.k * info.bits / 8));
            uint16_t *scale = mem_alloc((size_t)(rows * info.k / info.group * 2)),
                     *bias = mem_alloc((size_t)(rows * info.k / info.group * 2));
            status = weights_read_quant(w, CASES[i].slot, 0, 0, rows, q, scale, bias, &err);
            mem_free(q);
            mem_free(scale);
            mem_free(bias);
        } else {
            float *out = mem_alloc((size_t)(rows * info.k) * sizeof *out);
            status = weights_read_plain(w, CASES[i].slot, 0, out, &err);
            mem_free(out);
        }
        assert_int_equal(status, STATUS_FORMAT);
        for (int j = 0; j < 3; j++)
            if (!strstr(err.text, CASES[i].texts[j]))
                fail_msg("expected \"%s\" in: %s", CASES[i].texts[j], err.text);
        weights_close(w);
        case_close(&c);
    }
}

/* ---- what is said ---- */

typedef struct Lines {
    int n, n_warnings;
    char all[4096];
} Lines;

static void keep_line(void *ctx, LogLevel level, const char *line) {
    Lines *l = ctx;
    size_t used = strlen(l->all);
    snprintf(l->all + used, sizeof l->all - used, "%s\n", line);
    l->n++;
    l->n_warnings += level >= LOG_WARNING;
}

/* The vision tower is named once; nothing of the oracle is odd. */
static void skipped_tensors_are_told(void **state) {
    UNUSED(state);
    Lines lines = {0};
    Log log = {keep_line, &lines};
    Weights *w = open_or_fail("tests/data/oracle/tiny-a", &log);
    for (int layer = 0; layer < 8; layer++) {
        Buffer b = read_slot(w, SLOT_INPUT_NORM, layer, 1);
        buffer_fini(&b);
    }
    weights_close(w);
    assert_int_equal(lines.n, 1);
    assert_int_equal(lines.n_warnings, 0);
    assert_non_null(strstr(lines.all, "vision tower"));
}

/* Raw values as gains, or 1 added twice: one warning, however many layers are read. What training
 * can bring about is no reason for one. */
static void odd_gains_are_told_once(void **state) {
    UNUSED(state);
    static const struct {
        float even, odd;
        int n_warnings;
        const char *text;
    } CASES[] = {
        {-0.08f, 0.1f, 1, "mean gain 0.01, many of them negative"},
        {1.9f, 2.1f, 1, "mean gain 2, none of them below 1"},
        {1.25f, 1.25f, 0, ""},
        {0.04f, 0.06f, 0, ""}, // a first layer may be so
        {-0.1f, 1.7f, 0, ""},
        {0.9f, 3.1f, 0, ""}, // and a last one so
        {1.6f, 1.6f, 0, ""},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        Case c;
        case_open(&c);
        small_write(&c, &(Small){.plain = ST_F32});
        CaseShard s = case_read_shard(&c, "model.safetensors");
        for (int layer = 0; layer < 2; layer++) {
            char name[160];
            snprintf(name, sizeof name, "language_model.model.layers.%d.input_layernorm.weight",
                     layer);
            const json_t *off = json_object_get(json_object_get(s.header, name), "data_offsets");
            size_t begin = (size_t)json_integer_value(json_array_get(off, 0));
            for (size_t j = 0; j < 128; j++)
                memcpy(s.data.ptr + begin + j * 4, j % 2 ? &CASES[i].odd : &CASES[i].even, 4);
        }
        case_write_shard(&c, "model.safetensors", &s);
        Lines lines = {0};
        Log log = {keep_line, &lines};
        Weights *w = open_or_fail(c.dir, &log);
        for (int layer = 0; layer < 2; layer++) {
            Buffer b = read_slot(w, SLOT_INPUT_NORM, layer, 1);
            buffer_fini(&b);
        }
        assert_int_equal(lines.n_warnings, CASES[i].n_warnings);
        assert_non_null(strstr(lines.all, CASES[i].text));
        weights_close(w);
        case_close(&c);
    }
}

/* ---- faults ---- */

/* Opens a folder and reads one slot of each kind. */
static Status open_and_read(const char *dir, Err *err) {
    Weights *w;
    TRY(weights_open(&w, dir, NULL, err));
    static uint32_t q[128];
    static uint16_t scale[16], bias[16];
    static float plain[128];
    Status status = weights_read_quant(w, SLOT_ROUTER, 0, 1, 2, q, scale, bias, err);
    if (status == STATUS_OK)
        status = weights_read_plain(w, SLOT_INPUT_NORM, 0, plain, err);
    weights_close(w);
    return status;
}

/* Each allocation fails once in turn, those of the JSON library too: an error, no leak. */
static void each_allocation_fails_once(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){.is_indexed = true});
    case_write(&c, "generation_config.json", "{\"eos_token_id\":[3]}", 20);
    int64_t before = mem_count();
    assert_int_equal(open_and_read(c.dir, NULL), STATUS_OK);
    int64_t n = mem_count() - before;
    assert_true(n > 100);
    for (int64_t i = 0; i < n; i++) {
        Err err = {0};
        mem_fail_after(i);
        Status status = open_and_read(c.dir, &err);
        mem_fail_after(-1);
        if (status != STATUS_MEMORY || err.code != STATUS_MEMORY)
            fail_msg("allocation %d of %d: %s: %s", (int)i, (int)n, status_name(status), err.text);
        assert_true(strlen(err.text) > 0);
    }
    case_close(&c);
}

static void each_read_fails_once(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){.is_indexed = true});
    case_write(&c, "generation_config.json", "{\"eos_token_id\":[3]}", 20);
    int n_failed = 0;
    for (int i = 0;; i++) {
        Err err = {0};
        file_fail_after(i);
        Status status = open_and_read(c.dir, &err);
        file_fail_after(-1);
        if (status == STATUS_OK)
            break;
        n_failed++;
        assert_int_equal(status, STATUS_IO);
        assert_non_null(strstr(err.text, c.dir));
    }
    // Three small files (open, read, end), three shards (open, length, header), four tensors.
    assert_int_equal(n_failed, 3 * 3 + 3 * 3 + 4);
    case_close(&c);
}

/* A shard that shrinks after it was opened: the read says so. */
static void file_cut_behind_our_back(void **state) {
    UNUSED(state);
    Case c;
    case_open(&c);
    small_write(&c, &(Small){0});
    Weights *w = open_or_fail(c.dir, NULL);
    char path[CASE_PATH];
    case_path(&c, "model.safetensors", path);
    assert_int_equal(truncate(path, 20000), 0);
    static uint32_t q[16 * SMALL_VOCAB];
    static uint16_t scale[2 * SMALL_VOCAB], bias[2 * SMALL_VOCAB];
    int n_bad = 0;
    for (int s = SLOT_GDN_QKV; s <= SLOT_GDN_OUT; s++) {
        Err err = {0};
        if (weights_read_quant(w, (WeightSlot)s, 0, 0, 2, q, scale, bias, &err) == STATUS_OK)
            continue;
        n_bad++;
        assert_int_equal(err.code, STATUS_FORMAT);
        assert_non_null(strstr(err.text, "model.safetensors: ends at byte"));
        assert_non_null(strstr(err.text, "linear_attn."));
    }
    assert_true(n_bad > 0);
    weights_close(w);
    case_close(&c);
}

/* ---- threads ---- */

typedef struct Reader {
    const Weights *w;
    int layer;
    double sum;
} Reader;

static void add_slot(const Weights *w, WeightSlot slot, int layer, void *ctx) {
    Reader *r = ctx;
    if (layer != r->layer)
        return;
    Buffer b = read_slot(w, slot, layer, 11);
    double row[4096];
    for (int64_t i = 0; i < b.rows; i++) {
        buffer_row(&b, i, row);
        r->sum += row[i % b.info.k];
    }
    buffer_fini(&b);
}

static void *run_reader(void *arg) {
    Reader *r = arg;
    for_each_slot(r->w, add_slot, r);
    return NULL;
}

/* Four threads at once read what one reads alone. */
static void reads_from_many_threads(void **state) {
    UNUSED(state);
    Weights *w = open_or_fail("tests/data/oracle/tiny-b", NULL);
    Reader alone[4], together[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        alone[i] = together[i] = (Reader){w, i, 0};
        run_reader(&alone[i]);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_reader, &together[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(alone[i].sum == together[i].sum && alone[i].sum != 0);
    }
    weights_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_equal_reference),       cmocka_unit_test(rows_equal_reference),
        cmocka_unit_test(infos_of_the_oracle),        cmocka_unit_test(every_form_reads_back),
        cmocka_unit_test(synth_models_open),          cmocka_unit_test(nan_and_infinity_are_named),
        cmocka_unit_test(skipped_tensors_are_told),   cmocka_unit_test(odd_gains_are_told_once),
        cmocka_unit_test(each_allocation_fails_once), cmocka_unit_test(each_read_fails_once),
        cmocka_unit_test(file_cut_behind_our_back),   cmocka_unit_test(reads_from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
