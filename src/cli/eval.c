// SPDX-License-Identifier: Apache-2.0
/* eval.c - the verb `eval`: a model against recorded log-probabilities, and perplexity.
 *
 * Path:     teacher forcing: the recorded ids are fed, whatever this model would have chosen.
 * Owns:     nothing past the run.  Thread: main. */
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/golden.h"
#include "cli/model.h"
#include "cli/single.h"
#include "cli/ui.h"
#include "cli/verbs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_PIECE = 128, EVAL_WINDOW = 4096 }; // rows of a step; positions of one perplexity window

typedef struct Eval {
    const CliArgs *args;
    Weights *weights;
    Single single;
    int32_t *ids;
    int32_t n;
    Err *err;
} Eval;

/* log(sum(exp(logits))) in double. */
static double eval_log_sum(const float *logits, int32_t vocab) {
    float top = logits[0];
    for (int32_t i = 1; i < vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum);
}

/* Agreement with a golden's steps so far. */
typedef struct GoldenScore {
    int32_t n_steps, n_chosen_first; // steps; those whose recorded id is our most likely
    int32_t first_miss;              // step of the first that is not; -1: none
    double top_overlap;              // sum of the shares of recorded top ids that are in our top
    double sum_abs, max_abs;         // difference of log-probabilities over the recorded top 5
    int64_t n_compared;
} GoldenScore;

static void golden_score_step(GoldenScore *s, const GoldenStep *step, const float *logits,
                              int32_t vocab) {
    double log_sum = eval_log_sum(logits, vocab);
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    if (best == step->chosen)
        s->n_chosen_first++;
    else if (s->first_miss < 0)
        s->first_miss = s->n_steps;
    int32_t n_in = 0;
    for (int32_t i = 0; i < step->n_top; i++) {
        int32_t n_better = 0;
        for (int32_t j = 0; j < vocab; j++)
            n_better += logits[j] > logits[step->top_ids[i]];
        n_in += n_better < step->n_top;
        if (i < 5) {
            double d = fabs(logits[step->top_ids[i]] - log_sum - step->top_logprobs[i]);
            s->sum_abs += d;
            s->max_abs = d > s->max_abs ? d : s->max_abs;
            s->n_compared++;
        }
    }
    s->top_overlap += step->n_top ? (double)n_in / step->n_top : 1;
    s->n_steps++;
}

static Status eval_golden(Eval *e, Golden *g, GoldenScore *score) {
    const ModelConfig *c = weights_config(e->weights);
    TRY(golden_check(g, c->vocab, e->err));
    TRY(single_open(&e->single, e->args, e->weights, g->n_prompt + g->n_steps, EVAL_PIECE, 1,
                    e->err));
    BatchResult result;
    TRY(single_prefill(&e->single, g->prompt, g->n_prompt, WANT_LAST, false, &result, e->err));
    score->first_miss = -1;
    for (int32_t i = 0; i < g->n_steps; i++) {
        golden_score_step(score, &g->steps[i], result.logits, c->vocab);
        if (i + 1 < g->n_steps)
            TRY(single_step(&e->single, PHASE_DECODE, &g->steps[i].chosen, 1, WANT_LAST, false,
                            NULL, &result, e->err));
    }
    return STATUS_OK;
}

static int eval_report_golden(const Eval *e, const GoldenScore *s) {
    double n = s->n_steps, mean = s->n_compared ? s->sum_abs / (double)s->n_compared : 0;
    if (e->args->is_json) {
        json_t *v = json_pack("{s:i, s:f, s:i, s:f, s:f, s:f}", "steps", s->n_steps,
                              "chosen_agreement", s->n_chosen_first / n, "first_disagreement",
                              s->first_miss, "top_agreement", s->top_overlap / n,
                              "logprob_mean_abs_diff", mean, "logprob_max_abs_diff", s->max_abs);
        Err err = {0};
        if (ui_print_json(v, 0, &err) != STATUS_OK)
            return ui_fail("eval", &err);
    } else {
        printf("steps                          %d\n", s->n_steps);
        printf("recorded id most likely        %.1f%%", 100 * s->n_chosen_first / n);
        if (s->first_miss >= 0)
            printf(" (first other at step %d)", s->first_miss);
        printf("\n");
        printf("recorded top ids in our top    %.1f%%\n", 100 * s->top_overlap / n);
        printf("log-probability difference     mean %.4f, largest %.4f (recorded top 5)\n", mean,
               s->max_abs);
    }
    int status = ui_finish("eval");
    if (isnan(e->args->max_diff) || mean <= e->args->max_diff)
        return status;
    fprintf(stderr,
            "lily eval: the mean difference of log-probabilities: expected at most %g, found %g\n",
            e->args->max_diff, mean);
    return 1;
}

/* Ids of the file: a JSON list of numbers, else a text that the model's tokenizer encodes. */
static Status eval_read_ids(Eval *e, const char *path) {
    StrBuf text = {0};
    TRY(file_read_all(&text, path, LIMIT_MESSAGES_BYTES, e->err));
    Status status;
    size_t lead = strspn(text.ptr, " \t\r\n");
    if (text.ptr[lead] == '[') {
        status = model_parse_ids(&e->ids, &e->n, text.ptr, e->err);
    } else {
        Tokenizer *t = NULL;
        TokenIds ids = {0};
        status = model_tokenizer(&t, e->weights, e->err);
        if (status == STATUS_OK)
            status = tokenizer_encode_plain(t, &ids, strbuf_view(&text), e->err);
        tokenizer_close(t);
        e->ids = ids.ids;
        e->n = (int32_t)ids.n;
    }
    strbuf_fini(&text);
    TRY(status);
    if (e->n < 2)
        return err_set(e->err, STATUS_INVALID, "%s: expected at least two tokens, found %d", path,
                       e->n);
    return single_check_ids(weights_config(e->weights), e->ids, e->n, e->err);
}

/* Sum of -log p over the ids of one window behind its first. */
static Status eval_window(Eval *e, const int32_t *ids, int32_t n, double *nll) {
    int32_t vocab = weights_config(e->weights)->vocab;
    e->single.pos = 0;
    while (e->single.pos < n) {
        int32_t pos = e->single.pos, rows = min_i32(e->single.chunk, n - pos);
        BatchResult result;
        TRY(single_step(&e->single, PHASE_PREFILL, ids + pos, rows, WANT_ALL, false, NULL, &result,
                        e->err));
        for (int32_t i = 0; i < rows && pos + i + 1 < n; i++) {
            const float *logits = result.logits + (size_t)i * (size_t)vocab;
            *nll += eval_log_sum(logits, vocab) - logits[ids[pos + i + 1]];
        }
    }
    return STATUS_OK;
}

static Status eval_ppl(Eval *e, const char *path, double *nll, int64_t *n_scored) {
    TRY(eval_read_ids(e, path));
    int32_t window = e->args->ctx ? (int32_t)e->args->ctx : EVAL_WINDOW;
    window = min_i32(min_i32(window, e->n), weights_config(e->weights)->max_positions);
    TRY(single_open(&e->single, e->args, e->weights, window, EVAL_PIECE, EVAL_PIECE, e->err));
    for (int32_t at = 0; at + 1 < e->n; at += window) {
        int32_t n = min_i32(window, e->n - at);
        TRY(eval_window(e, e->ids + at, n, nll));
        *n_scored += n - 1;
    }
    return STATUS_OK;
}

static int eval_report_ppl(const Eval *e, double nll, int64_t n_scored) {
    double mean = nll / (double)n_scored;
    if (e->args->is_json)
        printf("{\"tokens\": %lld, \"mean_nll\": %.9g, \"perplexity\": %.9g}\n",
               (long long)n_scored, mean, exp(mean));
    else
        printf("%lld tokens, mean negative log-likelihood %.6f, perplexity %.4f\n",
               (long long)n_scored, mean, exp(mean));
    return ui_finish("eval");
}

int verb_eval(const CliArgs *args) {
    const char *kind = args->positional[0], *path = args->positional[1];
    bool is_golden = !strcmp(kind, "golden");
    if (!is_golden && strcmp(kind, "ppl") != 0)
        return ui_usage("eval", "expected golden or ppl, found %s", kind);
    if (!is_golden && args->ctx == 1)
        return ui_usage("eval", "--ctx: expected at least 2, found 1");
    Err err = {0};
    Eval e = {.args = args, .err = &err};
    Golden golden = {0};
    GoldenScore score = {0};
    double nll = 0;
    int64_t n_scored = 0;
    Status status = is_golden ? golden_read(&golden, path, &err) : STATUS_OK;
    if (status == STATUS_OK)
        status = model_weights(&e.weights, args, &UI_LOG, &err);
    if (status == STATUS_OK)
        status = is_golden ? eval_golden(&e, &golden, &score) : eval_ppl(&e, path, &nll, &n_scored);
    int code = status != STATUS_OK ? ui_fail("eval", &err)
               : is_golden         ? eval_report_golden(&e, &score)
                                   : eval_report_ppl(&e, nll, n_scored);
    golden_fini(&golden);
    single_close(&e.single);
    weights_close(e.weights);
    mem_free(e.ids);
    return code;
}
