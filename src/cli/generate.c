// SPDX-License-Identifier: Apache-2.0
/* generate.c - the verb `generate`: one answer, streamed to standard output.
 *
 * Path:     command line -> TurnRequest (turn.h) -> engine_step until TURN_END.
 * Owns:     nothing past the run.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/generation.h"
#include "cli/model.h"
#include "cli/ui.h"
#include "cli/verbs.h"
#include "engine/turn.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct Generate {
    const CliArgs *args;
    Weights *weights;
    Tokenizer *tokenizer;
    Engine *engine;
    StrBuf prompt;
    int32_t *ids;
    int32_t n_ids;
    LogitBias bias[LIMIT_LOGIT_BIAS];
    int32_t n_bias;
    StrBuf content, reasoning; // kept for --json
    json_t *calls;             // the same
    StrBuf arguments;          // of the call at work
    bool is_dim;               // reasoning was begun on a terminal
    bool is_ended;
    TurnFinish finish;
    SeqFigures figures;
    TokenIds made;
    Err *err;
    Status status;
} Generate;

/* "ID:X,ID:X" */
static Status generate_parse_bias(Generate *g) {
    for (const char *p = g->args->logit_bias; p && *p;) {
        char *end, *end_value;
        errno = 0;
        long id = strtol(p, &end, 10);
        double bias = *end == ':' ? strtod(end + 1, &end_value) : NAN;
        bool is_good = end != p && errno == 0 && id >= 0 && *end == ':' && end_value != end + 1 &&
                       !isnan(bias) && (*end_value == 0 || *end_value == ',') &&
                       id < weights_config(g->weights)->vocab;
        if (!is_good)
            return err_set(g->err, STATUS_INVALID, "--logit-bias: expected ID:X,... found %s",
                           g->args->logit_bias);
        if (g->n_bias == LIMIT_LOGIT_BIAS)
            return err_set(g->err, STATUS_INVALID, "--logit-bias: at most %d", LIMIT_LOGIT_BIAS);
        g->bias[g->n_bias++] = (LogitBias){(int32_t)id, (float)bias};
        p = *end_value ? end_value + 1 : end_value;
    }
    return STATUS_OK;
}

/* The command line's values, else the checkpoint's. */
static Status generate_sampling(SampleParams *out, Generate *g) {
    const CliArgs *a = g->args;
    Generation defaults;
    TRY(generation_read(&defaults, weights_dir(g->weights), g->err));
    TRY(generate_parse_bias(g));
    *out = (SampleParams){
        .temperature = (float)(isnan(a->temp) ? defaults.temperature : a->temp),
        .top_p = (float)(isnan(a->top_p) ? defaults.top_p : a->top_p),
        .min_p = (float)(isnan(a->min_p) ? defaults.min_p : a->min_p),
        .top_k = (int32_t)(a->top_k < 0 ? defaults.top_k : a->top_k),
        .repetition_penalty =
            (float)(isnan(a->repetition) ? defaults.repetition_penalty : a->repetition),
        .presence_penalty = (float)(isnan(a->presence) ? 0 : a->presence),
        .frequency_penalty = (float)(isnan(a->frequency) ? 0 : a->frequency),
        .seed = a->seed < 0 ? (uint64_t)clock_now_ns() : (uint64_t)a->seed,
        .bias = g->bias,
        .n_bias = g->n_bias,
    };
    return STATUS_OK;
}

static Status generate_read_prompt(Generate *g) {
    const char *text = g->args->prompt;
    if (g->args->ids)
        return model_parse_ids(&g->ids, &g->n_ids, g->args->ids, g->err);
    if (!strcmp(text, "-"))
        return file_read_fd(&g->prompt, STDIN_FILENO, "standard input", LIMIT_MESSAGES_BYTES,
                            g->err);
    strbuf_append(&g->prompt, text, strlen(text));
    return strbuf_check(&g->prompt, g->err);
}

static Status generate_messages(json_t **out, const Generate *g) {
    json_t *list = json_array();
    const char *system = g->args->system;
    int bad = list ? 0 : -1;
    if (system)
        bad |= json_array_append_new(list,
                                     json_pack("{s:s, s:s}", "role", "system", "content", system));
    bad |= json_array_append_new(
        list, json_pack("{s:s, s:s%}", "role", "user", "content", g->prompt.ptr, g->prompt.len));
    if (bad) {
        json_decref(list);
        return err_set(g->err, STATUS_INVALID, "the prompt is not valid UTF-8");
    }
    *out = list;
    return STATUS_OK;
}

static void generate_show_reasoning(Generate *g, StrView text) {
    bool is_terminal = isatty(STDERR_FILENO);
    if (!g->is_dim && is_terminal)
        fputs("\x1b[2m", stderr);
    g->is_dim = is_terminal;
    fwrite(text.ptr, 1, text.len, stderr);
    fflush(stderr);
}

static void generate_end_reasoning(Generate *g) {
    if (g->reasoning.len && (g->is_dim || g->content.len == 0))
        fputs(g->is_dim ? "\x1b[0m\n" : "\n", stderr);
    g->is_dim = false;
}

static void generate_event(void *ctx, const TurnEvent *e) {
    Generate *g = ctx;
    bool is_shown = !g->args->is_json;
    switch (e->kind) {
    case TURN_TOKEN:
        if (g->status == STATUS_OK)
            g->status = token_ids_append(&g->made, e->sample->id, g->err);
        break;
    case TURN_REASONING:
        if (is_shown)
            generate_show_reasoning(g, e->text);
        strbuf_append_view(&g->reasoning, e->text);
        break;
    case TURN_CONTENT:
        if (is_shown) {
            if (g->content.len == 0)
                generate_end_reasoning(g);
            fwrite(e->text.ptr, 1, e->text.len, stdout);
            fflush(stdout);
        }
        strbuf_append_view(&g->content, e->text);
        break;
    case TURN_CALL_BEGIN: strbuf_clear(&g->arguments); break;
    case TURN_CALL_ARGS: strbuf_append_view(&g->arguments, e->text); break;
    case TURN_CALL_END:
        json_array_append_new(g->calls, json_pack("{s:s%, s:s%}", "name", e->name.ptr, e->name.len,
                                                  "arguments", g->arguments.ptr, g->arguments.len));
        break;
    case TURN_CALL_DROP: break;
    case TURN_END:
        g->is_ended = true;
        g->finish = e->finish;
        g->figures = e->figures;
        if (e->finish == FINISH_FAILED && g->status == STATUS_OK) {
            g->status = e->err->code;
            *g->err = *e->err;
        }
        break;
    }
}

static Status generate_run(Generate *g) {
    Err *err = g->err;
    EngineOptions options;
    SampleParams sample;
    TRY(model_engine_options(&options, g->args, err));
    TRY(weights_open(&g->weights, model_spec(g->args), &UI_LOG, err));
    TRY(model_tokenizer(&g->tokenizer, g->weights, err));
    TRY(generate_read_prompt(g));
    TRY(generate_sampling(&sample, g));
    TurnModel model = {.tokenizer = g->tokenizer};
    TRY(chat_family_open(&model.family, weights_dir(g->weights), &UI_LOG, err));
    TRY(engine_open(&g->engine, g->weights, &options, &UI_PROGRESS, &UI_LOG, err));
    model.engine = g->engine;
    StrView stops[LIMIT_STOP_STRINGS];
    for (int64_t i = 0; i < g->args->n_stops; i++)
        stops[i] = str_view(g->args->stops[i], strlen(g->args->stops[i]));
    TurnRequest request = {.text = strbuf_view(&g->prompt),
                           .ids = g->ids,
                           .n_ids = g->n_ids,
                           .chat = {.add_generation_prompt = true,
                                    .enable_thinking = g->args->is_no_think ? 0 : -1,
                                    .preserve_thinking = -1,
                                    .is_text_only = true},
                           .sample = sample,
                           .max_tokens = (int32_t)g->args->max_tokens,
                           .thinking_budget = -1,
                           .is_past_end = g->args->is_past_end,
                           .stops = stops,
                           .n_stops = (int32_t)g->args->n_stops};
    json_t *messages = NULL;
    if (!g->args->is_raw && !g->ids) {
        TRY(generate_messages(&messages, g));
        request.messages = messages;
    }
    Status status = turn_start(NULL, &model, &request, generate_event, g, err);
    while (status == STATUS_OK && !g->is_ended)
        engine_step(g->engine, NULL);
    json_decref(messages);
    TRY(status);
    return g->status;
}

static const char *const FINISH_NAMES[] = {[FINISH_STOP] = "stop",
                                           [FINISH_LENGTH] = "length",
                                           [FINISH_CALLS] = "tool_calls",
                                           [FINISH_CANCELLED] = "cancelled",
                                           [FINISH_FAILED] = "failed"};

static void generate_report(Generate *g) {
    const SeqFigures *f = &g->figures;
    double first_s = (double)(f->first_token_ns - f->added_ns) * 1e-9;
    double rest_s = (double)(f->last_token_ns - f->first_token_ns) * 1e-9;
    double rate = rest_s > 0 ? (f->n_generated - 1) / rest_s : 0;
    if (!g->args->is_json) {
        generate_end_reasoning(g);
        printf("\n");
        fprintf(stderr, "%d prompt tokens in %.2f s, %d new tokens at %.2f a second, finish: %s\n",
                f->n_prompt, first_s, f->n_generated, rate, FINISH_NAMES[g->finish]);
        return;
    }
    json_t *ids = json_array();
    for (size_t i = 0; i < g->made.n; i++)
        json_array_append_new(ids, json_integer(g->made.ids[i]));
    json_t *v = json_pack("{s:s%, s:s%, s:O, s:o, s:s, s:i, s:i, s:f, s:f}", "content",
                          g->content.ptr ? g->content.ptr : "", g->content.len, "reasoning_content",
                          g->reasoning.ptr ? g->reasoning.ptr : "", g->reasoning.len, "tool_calls",
                          g->calls, "ids", ids, "finish_reason", FINISH_NAMES[g->finish],
                          "prompt_tokens", f->n_prompt, "completion_tokens", f->n_generated,
                          "first_token_s", first_s, "decode_tok_s", rate);
    json_dumpf(v, stdout, 0);
    printf("\n");
    json_decref(v);
}

int verb_generate(const CliArgs *args) {
    if (!args->prompt == !args->ids)
        return ui_usage("generate", "expected one of -p and --ids");
    if (args->prompt && args->ids == NULL && args->is_raw && args->system)
        return ui_usage("generate", "--system needs the template: it does not go with --raw");
    Err err = {0};
    Generate *g = mem_zalloc(1, sizeof *g); // too large for the stack
    if (!g)
        return ui_usage("generate", "out of memory");
    g->args = args;
    g->err = &err;
    g->calls = json_array();
    Status status = generate_run(g);
    if (status == STATUS_OK)
        generate_report(g);
    engine_close(g->engine);
    tokenizer_close(g->tokenizer);
    weights_close(g->weights);
    strbuf_fini(&g->prompt);
    strbuf_fini(&g->content);
    strbuf_fini(&g->reasoning);
    strbuf_fini(&g->arguments);
    token_ids_fini(&g->made);
    json_decref(g->calls);
    mem_free(g->ids);
    mem_free(g);
    return status == STATUS_OK ? ui_finish("generate") : ui_fail("generate", &err);
}
