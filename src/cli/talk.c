// SPDX-License-Identifier: Apache-2.0
/* talk.c - command-line values for the C library.
 *
 * Owns:     nothing.  Thread: main. */
#include "cli/talk.h"

#include "cli/model.h"
#include "cli/ui.h"

#include <errno.h>
#include <math.h>
#include <string.h>

Status talk_fail(Err *err, const LilyError *error) {
    return err_set(err, (Status)error->status, "%s", error->text);
}

const char *talk_finish_name(LilyFinish finish) {
    switch (finish) {
    case LILY_FINISH_STOP: return "stop";
    case LILY_FINISH_LENGTH: return "length";
    case LILY_FINISH_CALLS: return "tool_calls";
    case LILY_FINISH_CANCELLED: return "cancelled";
    case LILY_FINISH_FAILED: return "failed";
    }
    return "unknown";
}

static void talk_log(void *context, LilyLogLevel level, const char *line) {
    UNUSED(context);
    UI_LOG.write(UI_LOG.ctx, (LogLevel)level, line);
}

Status talk_open(LilyModel **out, const CliArgs *args, int32_t n_snapshots, Err *err) {
    LilyError error;
    const char *spec;
    TRY(model_find(&spec, args, err));
    LilyModelOptions o = {.size = sizeof o,
                          .backend = args->backend,
                          .cpu_mask = args->mask,
                          .device = (int32_t)args->device,
                          .n_threads = (int32_t)args->threads,
                          .ctx_tok = (int32_t)args->ctx,
                          .chunk_tok = (int32_t)args->chunk,
                          .n_answers = 1,
                          .n_snapshots = n_snapshots,
                          .is_f32 = args->is_f32,
                          .log = talk_log,
                          .progress = UI_PROGRESS.report,
                          .progress_context = UI_PROGRESS.ctx};
    if (lily_model_open(out, spec, &o, &error) != LILY_OK)
        return talk_fail(err, &error);
    return STATUS_OK;
}

/* "ID:X,ID:X" */
static Status talk_parse_biases(LilyAnswerOptions *o, TalkLists *lists, const char *text,
                                Err *err) {
    for (const char *p = text; p && *p;) {
        char *end, *end_value = NULL;
        errno = 0;
        long id = strtol(p, &end, 10);
        double bias = *end == ':' ? strtod(end + 1, &end_value) : NAN;
        bool is_good = end != p && errno == 0 && id >= 0 && id < LIMIT_VOCAB && *end == ':' &&
                       end_value != end + 1 && !isnan(bias) &&
                       (*end_value == 0 || *end_value == ',');
        if (!is_good)
            return err_set(err, STATUS_INVALID, "--logit-bias: expected ID:X,... found %s", text);
        if (o->n_biases == LIMIT_LOGIT_BIAS)
            return err_set(err, STATUS_INVALID, "--logit-bias: at most %d", LIMIT_LOGIT_BIAS);
        lists->biases[o->n_biases++] = (LilyBias){(int32_t)id, (float)bias};
        p = *end_value ? end_value + 1 : end_value;
    }
    o->biases = lists->biases;
    return STATUS_OK;
}

Status talk_check(const CliArgs *args, Err *err) {
    LilyAnswerOptions o = {0};
    TalkLists lists;
    return talk_parse_biases(&o, &lists, args->logit_bias, err);
}

Status talk_options(LilyAnswerOptions *out, TalkLists *lists, const CliArgs *args,
                    const LilyModel *model, Err *err) {
    LilyAnswerOptions o;
    lily_answer_defaults(&o, sizeof o, model);
    o.thinking = args->is_no_think ? LILY_THINKING_OFF : LILY_THINKING_DEFAULT;
    o.max_tokens = (int32_t)args->max_tokens;
    o.is_past_end = args->is_past_end;
    if (!isnan(args->temp))
        o.temperature = (float)args->temp;
    if (!isnan(args->top_p))
        o.top_p = (float)args->top_p;
    if (!isnan(args->min_p))
        o.min_p = (float)args->min_p;
    if (args->top_k >= 0)
        o.top_k = (int32_t)args->top_k;
    if (!isnan(args->repetition))
        o.repetition_penalty = (float)args->repetition;
    if (!isnan(args->presence))
        o.presence_penalty = (float)args->presence;
    if (!isnan(args->frequency))
        o.frequency_penalty = (float)args->frequency;
    o.has_seed = args->seed >= 0;
    o.seed = args->seed >= 0 ? (uint64_t)args->seed : 0;
    for (int64_t i = 0; i < args->n_stops; i++)
        lists->stops[i] = (LilyText){args->stops[i], strlen(args->stops[i])};
    o.stops = lists->stops;
    o.n_stops = (size_t)args->n_stops;
    TRY(talk_parse_biases(&o, lists, args->logit_bias, err));
    *out = o;
    return STATUS_OK;
}
