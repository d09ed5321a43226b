// SPDX-License-Identifier: Apache-2.0
/* synth_verb.c - the verb `synth`: writes a random checkpoint, then runs it once to show that its
 * experts are used as evenly as a trained model's.
 *
 * Path:     synth_write.h writes; single.h runs PROBE random ids with a tap on the router.
 * Owns:     nothing past the run.  Thread: main. */
#include "checkpoint/synth_write.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sysmem.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <string.h>

enum { PROBE = 512 }; // ids of the routing check

/* How often each expert was chosen. */
typedef struct Routing {
    int64_t *counts; // [n_layers, n_experts]
    int32_t n_layers, n_experts;
    bool is_measured;
    int32_t least_used; // experts used in the layer that uses fewest
    double fullest;     // largest share of an expert over the mean of its layer
} Routing;

static void routing_see(void *ctx, const char *name, int layer, int32_t n_rows, int32_t width,
                        const double *data) {
    Routing *r = ctx;
    if (strcmp(name, "topk_ids") != 0)
        return;
    for (int64_t i = 0; i < (int64_t)n_rows * width; i++)
        r->counts[(int64_t)layer * r->n_experts + (int64_t)data[i]]++;
}

static void routing_sum_up(Routing *r, int32_t top_k) {
    r->least_used = r->n_experts;
    double mean = (double)PROBE * top_k / r->n_experts;
    for (int32_t layer = 0; layer < r->n_layers; layer++) {
        int32_t used = 0;
        for (int32_t e = 0; e < r->n_experts; e++) {
            int64_t n = r->counts[(int64_t)layer * r->n_experts + e];
            used += n > 0;
            r->fullest = (double)n / mean > r->fullest ? (double)n / mean : r->fullest;
        }
        r->least_used = used < r->least_used ? used : r->least_used;
    }
    r->is_measured = true;
}

static Status routing_run(Routing *r, const CliArgs *args, Weights *w, Err *err) {
    const ModelConfig *c = weights_config(w);
    Single single;
    Status status = single_open(&single, args, w, PROBE, PROBE, 1, err);
    if (status == STATUS_MEMORY) {
        fprintf(stderr, "routing not measured: %s\n", err->text);
        return STATUS_OK;
    }
    TRY(status);
    int32_t ids[PROBE];
    for (int32_t i = 0; i < PROBE; i++)
        ids[i] = (int32_t)(rng_u64(2, (uint64_t)i) % (uint64_t)c->vocab);
    BatchTap tap = {routing_see, r};
    BatchResult result;
    status =
        single_step(&single, PHASE_PREFILL, ids, PROBE, WANT_NOTHING, false, &tap, &result, err);
    single_close(&single);
    if (status == STATUS_OK)
        routing_sum_up(r, c->top_k);
    return status;
}

/* Opens the folder just written and runs it, where memory allows. */
static Status routing_measure(Routing *r, const CliArgs *args, Err *err) {
    Weights *w = NULL;
    TRY(weights_open(&w, args->out, &UI_LOG, err));
    const ModelConfig *c = weights_config(w);
    r->n_layers = c->n_layers;
    r->n_experts = c->n_experts;
    r->counts = mem_zalloc((size_t)c->n_layers * (size_t)c->n_experts, sizeof *r->counts);
    Status status = STATUS_OK;
    uint64_t need = weights_total_bytes(w) + ((uint64_t)1 << 30);
    if (!r->counts)
        status = err_memory(err, "expert counts", (size_t)c->n_layers * sizeof *r->counts);
    else if (need > sysmem_available())
        fprintf(stderr, "routing not measured: it needs %.1f GB of memory, there are %.1f\n",
                (double)need * 1e-9, (double)sysmem_available() * 1e-9);
    else
        status = routing_run(r, args, w, err);
    weights_close(w);
    return status;
}

static Status synth_report(const CliArgs *args, const Routing *r, Err *err) {
    if (args->is_json) {
        json_t *v = json_pack("{s:o, s:s, s:i, s:i}", "folder", json_clean_string(args->out),
                              "shape", args->shape, "layers", r->n_layers, "experts", r->n_experts);
        if (r->is_measured) {
            json_object_set_new(v, "experts_used_least", json_integer(r->least_used));
            json_object_set_new(v, "fullest_over_mean", json_real(r->fullest));
        }
        return ui_print_json(v, 0, err);
    }
    printf("%s: shape %s, %d layers\n", args->out, args->shape, r->n_layers);
    if (r->is_measured)
        printf("routing of %d tokens: at least %d of %d experts used in every layer, fullest "
               "expert %.2f times the mean\n",
               PROBE, r->least_used, r->n_experts, r->fullest);
    return STATUS_OK;
}

static bool synth_is_shape(const char *name) {
    const char *have;
    for (int i = 0; name && (have = synth_write_shape_name(i)) != NULL; i++)
        if (!strcmp(name, have))
            return true;
    return false;
}

int verb_synth(const CliArgs *args) {
    if (args->shape && !synth_is_shape(args->shape)) {
        fprintf(stderr, "lily synth: --shape: expected one of");
        for (int i = 0; synth_write_shape_name(i); i++)
            fprintf(stderr, "%s %s", i ? "," : "", synth_write_shape_name(i));
        fprintf(stderr, "; found %s\n", args->shape);
        return 2;
    }
    if (!args->shape || !args->out) {
        fprintf(stderr, "lily synth: expected --shape and -o; shapes:\n");
        for (int i = 0; synth_write_shape_name(i); i++)
            fprintf(stderr, "  %-18s %s\n", synth_write_shape_name(i), synth_write_shape_about(i));
        return 2;
    }
    Err err = {0};
    Routing routing = {0};
    Pool *pool = NULL;
    SynthWrite what = {.shape = args->shape,
                       .dir = args->out,
                       .n_layers = args->layers,
                       .seed = args->seed < 0 ? 0 : (uint64_t)args->seed,
                       .is_overwrite = args->is_force};
    Status status = pool_open(&pool, (int)args->threads, &err);
    if (status == STATUS_OK)
        status = synth_write(&what, pool, &UI_PROGRESS, &err);
    pool_close(pool);
    if (status == STATUS_OK)
        status = routing_measure(&routing, args, &err);
    if (status == STATUS_OK)
        status = synth_report(args, &routing, &err);
    mem_free(routing.counts);
    return status == STATUS_OK ? ui_finish("synth") : ui_fail("synth", &err);
}
