// SPDX-License-Identifier: Apache-2.0
/* synth_layout.c - the module order of the published checkpoint, written down once.
 *
 * Path:     synth_write.c.
 * Owns:     a SynthLayout owns its arena.  Thread: one.
 * Source:   model specification, section 2. */
#include "checkpoint/synth_layout.h"

#include "base/rng.h"

// More than a layer, a block of the vision tower and the rest have.
enum { SYNTH_LAYER_TENSORS = 48, SYNTH_BLOCK_TENSORS = 12, SYNTH_OTHER_TENSORS = 16 };

typedef struct Builder {
    SynthLayout *layout;
    const ModelConfig *config;
    size_t cap;
    bool is_failed; // out of memory
} Builder;

static bool synth_is_published(const ModelConfig *c) {
    const ModelConfig *full = &synth_shape(0)->counts;
    return c->hidden == full->hidden && c->vocab == full->vocab;
}

SynthVision synth_layout_vision(const ModelConfig *c) {
    if (synth_is_published(c))
        return (SynthVision){27, 1152, 4304, 16, 2304, c->hidden, 16, 2, 2};
    return (SynthVision){1, 16, 32, 2, 9, c->hidden, 4, 2, 2};
}

/* The next tensor, with its name scope + name + tail; NULL when out of memory. */
static SynthTensor *add_tensor(Builder *b, SynthPart part, const char *scope, const char *name,
                               const char *tail) {
    SynthLayout *l = b->layout;
    char text[128];
    int len = snprintf(text, sizeof text, "%s%s%s", scope, name, tail);
    CHECK(len > 0 && (size_t)len < sizeof text && l->n < b->cap);
    char *copy = arena_strdup(&l->arena, text, (size_t)len);
    if (!copy) {
        b->is_failed = true;
        return NULL;
    }
    SynthTensor *t = &l->tensors[l->n++];
    *t = (SynthTensor){.part = part, .n_rows = 1};
    t->entry.name = copy;
    t->entry.dtype = part == SYNTH_CODES ? ST_U32 : ST_BF16;
    return t;
}

static void add_vision(Builder *b, const char *scope, const char *name, const uint64_t *shape,
                       int rank) {
    SynthTensor *t = add_tensor(b, SYNTH_VISION, scope, name, "");
    if (!t)
        return;
    t->entry.rank = rank;
    for (int i = 0; i < rank; i++)
        t->entry.shape[i] = shape[i];
    t->key = b->layout->n;
    t->row_bytes = 8;
    t->n_rows = safetensors_entry_bytes(&t->entry) / 8;
    CHECK(t->n_rows * 8 == safetensors_entry_bytes(&t->entry));
}

/* A linear layer or a norm of the tower: weight and bias. */
static void add_vision_pair(Builder *b, const char *scope, const char *name, int n, int k) {
    char both[96];
    snprintf(both, sizeof both, "%s%s", scope, name);
    const uint64_t shape[2] = {(uint64_t)n, (uint64_t)k};
    add_vision(b, both, ".weight", shape, k ? 2 : 1);
    add_vision(b, both, ".bias", shape, 1);
}

static void add_vision_tower(Builder *b) {
    SynthVision v = synth_layout_vision(b->config);
    const uint64_t patch[5] = {(uint64_t)v.hidden, (uint64_t)v.frames, (uint64_t)v.patch,
                               (uint64_t)v.patch, 3};
    const uint64_t places[2] = {(uint64_t)v.positions, (uint64_t)v.hidden};
    add_vision(b, "vision_tower.", "patch_embed.proj.weight", patch, 5);
    add_vision(b, "vision_tower.", "patch_embed.proj.bias", patch, 1);
    add_vision(b, "vision_tower.", "pos_embed.weight", places, 2);
    for (int i = 0; i < v.depth; i++) {
        char block[48];
        snprintf(block, sizeof block, "vision_tower.blocks.%d.", i);
        add_vision_pair(b, block, "norm1", v.hidden, 0);
        add_vision_pair(b, block, "norm2", v.hidden, 0);
        add_vision_pair(b, block, "attn.qkv", 3 * v.hidden, v.hidden);
        add_vision_pair(b, block, "attn.proj", v.hidden, v.hidden);
        add_vision_pair(b, block, "mlp.linear_fc1", v.inner, v.hidden);
        add_vision_pair(b, block, "mlp.linear_fc2", v.hidden, v.inner);
    }
    int merged = v.hidden * v.merge * v.merge;
    add_vision_pair(b, "vision_tower.merger.", "norm", v.hidden, 0);
    add_vision_pair(b, "vision_tower.merger.", "linear_fc1", merged, merged);
    add_vision_pair(b, "vision_tower.merger.", "linear_fc2", v.out, merged);
}

static void add_slot_part(Builder *b, WeightSlot slot, int layer, SynthPart part,
                          const char *scope) {
    static const char *const tails[] = {".weight", ".scales", ".biases", ".weight"};
    int32_t n_experts, n, k;
    weights_slot_shape(b->config, slot, &n_experts, &n, &k);
    QuantSpec spec = synth_quant_spec(slot);
    bool is_bare = slot == SLOT_GDN_A_LOG || slot == SLOT_GDN_DT_BIAS;
    SynthTensor *t =
        add_tensor(b, part, scope, weights_slot_inner_name(slot), is_bare ? "" : tails[part]);
    if (!t)
        return;
    t->slot = slot;
    t->layer = layer;
    SafetensorsEntry *e = &t->entry;
    if (n_experts > 1)
        e->shape[e->rank++] = (uint64_t)n_experts;
    e->shape[e->rank++] = (uint64_t)n;
    if (part != SYNTH_PLAIN)
        e->shape[e->rank++] = (uint64_t)(part == SYNTH_CODES ? k * spec.bits / 32 : k / spec.group);
    if (slot == SLOT_GDN_CONV) {
        e->shape[e->rank++] = (uint64_t)k;
        e->shape[e->rank++] = 1;
    }
    if (part != SYNTH_PLAIN)
        t->n_rows = (uint64_t)n_experts * (uint64_t)n;
    t->row_bytes = safetensors_entry_bytes(e) / t->n_rows;
}

static void add_slot(Builder *b, WeightSlot slot, int layer) {
    if (!weights_slot_exists(b->config, slot, layer))
        return;
    char scope[64] = "language_model.model.";
    if (layer >= 0)
        snprintf(scope, sizeof scope, "language_model.model.layers.%d.", layer);
    else if (slot == SLOT_HEAD)
        snprintf(scope, sizeof scope, "language_model.");
    if (!weights_slot_is_quant(slot)) {
        add_slot_part(b, slot, layer, SYNTH_PLAIN, scope);
        return;
    }
    add_slot_part(b, slot, layer, SYNTH_CODES, scope);
    add_slot_part(b, slot, layer, SYNTH_SCALES, scope);
    add_slot_part(b, slot, layer, SYNTH_BIASES, scope);
}

static void add_text_model(Builder *b) {
    // The order in which the modules of a layer are made, which decides where shards are cut. Slots
    // that a layer does not have are left out.
    static const WeightSlot order[] = {
        SLOT_GDN_CONV,    SLOT_GDN_QKV,     SLOT_GDN_Z,       SLOT_GDN_B,       SLOT_GDN_A,
        SLOT_GDN_DT_BIAS, SLOT_GDN_A_LOG,   SLOT_GDN_NORM,    SLOT_GDN_OUT,     SLOT_ATTN_Q,
        SLOT_ATTN_K,      SLOT_ATTN_V,      SLOT_ATTN_O,      SLOT_ATTN_Q_NORM, SLOT_ATTN_K_NORM,
        SLOT_INPUT_NORM,  SLOT_POST_NORM,   SLOT_ROUTER,      SLOT_EXPERT_GATE, SLOT_EXPERT_UP,
        SLOT_EXPERT_DOWN, SLOT_SHARED_GATE, SLOT_SHARED_DOWN, SLOT_SHARED_UP,   SLOT_SHARED_MIX};
    add_slot(b, SLOT_EMBED, -1);
    for (int layer = 0; layer < b->config->n_layers; layer++)
        for (size_t i = 0; i < COUNT_OF(order); i++)
            add_slot(b, order[i], layer);
    add_slot(b, SLOT_FINAL_NORM, -1);
    add_slot(b, SLOT_HEAD, -1);
}

/* Cuts the list into shards by size; begin has room for n + 1 entries. */
static void cut_shards(SynthLayout *l, uint64_t shard_bytes) {
    uint64_t held = 0;
    l->n_shards = 1;
    for (size_t i = 0; i < l->n; i++) {
        uint64_t n_bytes = l->tensors[i].n_rows * l->tensors[i].row_bytes;
        if (i > 0 && held + n_bytes > shard_bytes) {
            l->begin[l->n_shards++] = i;
            held = 0;
        }
        held += n_bytes;
        l->total_bytes += n_bytes;
        l->tensors[i].shard = l->n_shards - 1;
    }
    l->begin[l->n_shards] = l->n;
}

/* The published files hold their tensors in the order of a hash table: readers must not count on
 * any. Here a shuffle stands for it, and the header's length depends on it a little, since offsets
 * have more or fewer digits. These keys give the published lengths. */
static void shuffle_shards(SynthLayout *l) {
    static const uint64_t keys[4] = {278, 67, 7, 4642};
    for (int s = 0; s < l->n_shards; s++) {
        uint64_t key = l->n_shards == (int)COUNT_OF(keys) ? keys[s] : 0;
        size_t first = l->begin[s], n = l->begin[s + 1] - first;
        for (size_t i = 0; i < n; i++) {
            size_t j = (size_t)(rng_u64(key, i) % (i + 1));
            l->order[first + i] = l->order[first + j];
            l->order[first + j] = first + i;
        }
    }
}

Status synth_layout_init(SynthLayout *out, const ModelConfig *c, uint64_t shard_bytes, Err *err) {
    SynthLayout layout = {0};
    Builder b = {&layout, c, 0, false};
    b.cap = (size_t)c->n_layers * SYNTH_LAYER_TENSORS +
            (size_t)synth_layout_vision(c).depth * SYNTH_BLOCK_TENSORS + SYNTH_OTHER_TENSORS;
    layout.tensors = arena_array(&layout.arena, b.cap, sizeof *layout.tensors);
    layout.begin = arena_array(&layout.arena, b.cap + 1, sizeof *layout.begin);
    layout.order = arena_array(&layout.arena, b.cap, sizeof *layout.order);
    b.is_failed = !layout.tensors || !layout.begin || !layout.order;
    if (!b.is_failed)
        add_vision_tower(&b);
    if (!b.is_failed)
        add_text_model(&b);
    if (b.is_failed) {
        arena_fini(&layout.arena);
        return err_memory(err, "the list of tensors", b.cap * sizeof *layout.tensors);
    }
    cut_shards(&layout, shard_bytes);
    shuffle_shards(&layout);
    *out = layout;
    return STATUS_OK;
}

void synth_layout_fini(SynthLayout *layout) {
    arena_fini(&layout->arena);
    *layout = (SynthLayout){0};
}

void synth_layout_shard_name(char out[SYNTH_SHARD_NAME], int shard, int n_shards) {
    if (n_shards == 1)
        snprintf(out, SYNTH_SHARD_NAME, "model.safetensors");
    else
        snprintf(out, SYNTH_SHARD_NAME, "model-%05d-of-%05d.safetensors", shard + 1, n_shards);
}
