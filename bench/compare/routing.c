// SPDX-License-Identifier: Apache-2.0
/* routing.c - counts which experts a GGUF file's tokens go to, inside llama.cpp as it runs.
 *
 *   routing FILE THREADS     prints one JSON object
 *
 * Reads the router's choices (tensors "ffn_moe_topk-LAYER") while 512 random tokens are read as a
 * prompt and 48 more are decoded one by one. compare.py builds it against the llama.cpp that it
 * measures.
 *
 * Owns:     nothing past the run.  Thread: main. */
#include <llama.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 512, DECODED = 48, MAX_LAYERS = 256, MAX_EXPERTS = 1024 };

typedef struct Counts {
    int32_t of[MAX_LAYERS][MAX_EXPERTS];
    int n_layers;
    int64_t n_chosen; // all choices seen
    bool is_bad;      // a tensor that is no list of experts
} Counts;

/* Asked first whether the tensor is wanted, then called with its values. */
static bool counts_see(struct ggml_tensor *t, bool is_question, void *ctx) {
    Counts *c = ctx;
    int layer;
    if (sscanf(t->name, "ffn_moe_topk-%d", &layer) != 1)
        return !is_question;
    if (is_question)
        return true;
    if (layer < 0 || layer >= MAX_LAYERS || t->type != GGML_TYPE_I32 || !t->data) {
        c->is_bad = true;
        return false;
    }
    c->n_layers = layer + 1 > c->n_layers ? layer + 1 : c->n_layers;
    for (int64_t row = 0; row < t->ne[1]; row++)
        for (int64_t k = 0; k < t->ne[0]; k++) {
            int32_t e;
            const char *at = (const char *)t->data + (size_t)row * t->nb[1] + (size_t)k * t->nb[0];
            memcpy(&e, at, sizeof e);
            if (e < 0 || e >= MAX_EXPERTS)
                c->is_bad = true;
            else
                c->of[layer][e]++, c->n_chosen++;
        }
    return true;
}

/* Experts used in the layer that uses fewest, on average, and the largest share of one. */
static void counts_print(const Counts *c, const char *name, const char *end) {
    int least = MAX_EXPERTS, sum = 0;
    int32_t fullest = 0;
    for (int layer = 0; layer < c->n_layers; layer++) {
        int used = 0;
        for (int e = 0; e < MAX_EXPERTS; e++) {
            used += c->of[layer][e] > 0;
            fullest = c->of[layer][e] > fullest ? c->of[layer][e] : fullest;
        }
        least = used < least ? used : least;
        sum += used;
    }
    printf("\"%s\": {\"used_least\": %d, \"used_mean\": %.1f, \"fullest\": %d, \"chosen\": %lld}%s",
           name, least, (double)sum / c->n_layers, fullest, (long long)c->n_chosen, end);
}

static int routing_fail(const char *what) {
    fprintf(stderr, "routing: %s\n", what);
    return 1;
}

static int routing_run(struct llama_context *ctx, int32_t n_vocab, Counts *counts) {
    llama_token ids[PROMPT + DECODED];
    srand(1);
    for (int i = 0; i < PROMPT + DECODED; i++)
        ids[i] = rand() % n_vocab;
    if (llama_decode(ctx, llama_batch_get_one(ids, PROMPT)) != 0 || counts->n_layers == 0)
        return routing_fail("the prompt could not be run, or no layer has a router");
    printf("{\"layers\": %d, \"prompt_tokens\": %d, \"decoded_tokens\": %d, ", counts->n_layers,
           PROMPT, DECODED);
    counts_print(counts, "prompt", ", ");
    memset(counts, 0, sizeof *counts);
    for (int i = 0; i < DECODED; i++)
        if (llama_decode(ctx, llama_batch_get_one(ids + PROMPT + i, 1)) != 0)
            return routing_fail("a token could not be decoded");
    counts_print(counts, "decoded", "}\n");
    return counts->is_bad ? routing_fail("a router's choice is no list of experts") : 0;
}

static void log_nothing(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return routing_fail("expected FILE THREADS");
    llama_log_set(log_nothing, NULL);
    llama_backend_init();
    struct llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = false; // no second copy of the weights
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    if (!model)
        return routing_fail("the file could not be loaded");
    Counts *counts = calloc(1, sizeof *counts);
    if (!counts)
        return routing_fail("no memory");
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = PROMPT + DECODED;
    cp.n_batch = cp.n_ubatch = PROMPT;
    cp.n_threads = cp.n_threads_batch = (int32_t)strtol(argv[2], NULL, 10);
    cp.cb_eval = counts_see;
    cp.cb_eval_user_data = counts;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    int status = ctx ? routing_run(ctx, llama_vocab_n_tokens(llama_model_get_vocab(model)), counts)
                     : routing_fail("no context for the model");
    llama_free(ctx);
    llama_model_free(model);
    free(counts);
    return status;
}
