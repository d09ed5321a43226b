// SPDX-License-Identifier: Apache-2.0
/* bench_serve.c - `bench --serve URL`: time to the first token and gaps between tokens against the
 * number of streams, with prompts of given lengths.
 *
 * Path:     bench_serve -> one cell for each prompt length and concurrency -> libcurl's multi
 *           handle -> load_event for each server-sent event.
 * Owns:     streams own their handles and buffers.  Thread: main.
 * Not here: starting a server (bench/bench_serve.py).
 *
 * Each stream asks its next question as soon as its answer is whole, so that prompts arrive while
 * others are answered. Prompts are ids that no request before had, so that no cache helps. A moment
 * counts when its bytes arrive; bytes of several tokens that arrive together are gaps of zero. */
#include "cli/bench_serve.h"
#include "cli/bench_stats.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/ui.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOAD_MAX_LIST = 32,
    LOAD_MAX_STREAMS = 1024,
    LOAD_STEPS = 64,
    LOAD_ROUNDS = 3,
    LOAD_WARM_TOKENS = 4,
    LOAD_WAIT_MS = 1000,
    LOAD_CONNECT_S = 30,
    LOAD_STALL_S = 600,          // a server that sends no sign of life may read a long prompt
    LOAD_REPLY_BYTES = 64 << 10, // kept of an answer that is no stream
    LOAD_EVENT_BYTES = 16 << 20, // of one event
    LOAD_ID_LOW = 33,            // printable ASCII: one token each in every vocabulary at hand
    LOAD_N_IDS = 90,
};

typedef struct Load Load;

/* One client: its question under way. */
typedef struct LoadStream {
    Load *load;
    CURL *curl;
    StrBuf body;    // of the question
    StrBuf rest;    // of a line that is not whole yet
    StrBuf reply;   // an answer that is no stream
    int32_t n_left; // questions behind this one
    int64_t start_ns, first_ns, last_ns;
    int64_t n_texts;  // events with text
    int64_t n_tokens; // what the server says; -1: nothing
    bool is_done;     // "[DONE]" came
    bool is_over;     // no questions are left
} LoadStream;

/* What one prompt length and concurrency came to; times in ms. */
typedef struct LoadCell {
    int32_t prompt, n_streams;
    double *firsts, *rates; // [n_answers]
    double *gaps;           // [cap_gaps]
    size_t n_answers, n_gaps, cap_gaps;
    int64_t n_tokens;
    double seconds;
} LoadCell;

struct Load {
    const CliArgs *args;
    char *url; // up to "/v1", without a slash at its end
    struct curl_slist *headers;
    CURLM *multi;
    char *model; // as the server names it
    int32_t prompts[LOAD_MAX_LIST], streams[LOAD_MAX_LIST];
    int n_prompts, n_streams;
    int32_t n_steps, n_rounds;
    uint64_t seed, n_asked;
    int32_t n_new;   // tokens of an answer at the moment
    LoadStream *all; // [LOAD_MAX_STREAMS]
    LoadCell *cell;
    json_t *results;
    Err *err;
};

bool bench_serve_is_asked(const CliArgs *args) {
    return args->serve_url || args->concurrency || args->api_key;
}

/* ---- what comes back ---- */

/* The text of an event's first choice, of either form. */
static StrView load_text(const json_t *event) {
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *text = json_object_get(choice, "text");
    return json_text(text ? text : json_object_get(json_object_get(choice, "delta"), "content"));
}

static void load_note_text(LoadStream *s, int64_t now_ns) {
    LoadCell *cell = s->load->cell;
    if (s->n_texts++ == 0)
        s->first_ns = now_ns;
    else if (cell->n_gaps < cell->cap_gaps)
        cell->gaps[cell->n_gaps++] = (double)(now_ns - s->last_ns) * 1e-6;
    s->last_ns = now_ns;
}

static Status load_refuse(const LoadStream *s, const json_t *v, long code) {
    StrView text = json_text(json_object_get(json_object_get(v, "error"), "message"));
    if (text.len == 0)
        text = strbuf_view(&s->reply);
    return err_set(s->load->err, STATUS_IO, "%s: status %ld: %.*s", s->load->args->serve_url, code,
                   (int)min_size(text.len, 400), text.len ? text.ptr : "");
}

/* One line of the stream. */
static Status load_line(LoadStream *s, StrView line, int64_t now_ns) {
    if (line.len && line.ptr[line.len - 1] == '\r')
        line.len--;
    if (!str_starts(line, STR("data:")))
        return STATUS_OK;
    line = str_view(line.ptr + 5, line.len - 5);
    while (line.len && line.ptr[0] == ' ')
        line = str_view(line.ptr + 1, line.len - 1);
    if (str_equal(line, STR("[DONE]"))) {
        s->is_done = true;
        return STATUS_OK;
    }
    json_t *v = NULL;
    TRY(json_read(&v, line, "an event of the stream", s->load->err));
    Status status = STATUS_OK;
    if (json_object_get(v, "error"))
        status = load_refuse(s, v, 200);
    if (status == STATUS_OK && load_text(v).len)
        load_note_text(s, now_ns);
    const json_t *n = json_object_get(json_object_get(v, "usage"), "completion_tokens");
    if (json_is_integer(n))
        s->n_tokens = json_integer_value(n);
    json_decref(v);
    return status;
}

static Status load_bytes(LoadStream *s, StrView bytes) {
    int64_t now_ns = clock_now_ns();
    long code = 0;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
        strbuf_append(&s->reply, bytes.ptr, min_size(bytes.len, LOAD_REPLY_BYTES - s->reply.len));
        return strbuf_check(&s->reply, s->load->err);
    }
    while (bytes.len) {
        const char *end = memchr(bytes.ptr, '\n', bytes.len);
        size_t n = end ? (size_t)(end - bytes.ptr) : bytes.len;
        if (n > LOAD_EVENT_BYTES - s->rest.len)
            return err_set(s->load->err, STATUS_FORMAT, "a line of the stream: more than %d bytes",
                           LOAD_EVENT_BYTES);
        strbuf_append(&s->rest, bytes.ptr, n);
        TRY(strbuf_check(&s->rest, s->load->err));
        if (!end)
            return STATUS_OK;
        Status status = load_line(s, strbuf_view(&s->rest), now_ns);
        strbuf_clear(&s->rest);
        TRY(status);
        bytes = str_view(end + 1, bytes.len - n - 1);
    }
    return STATUS_OK;
}

static size_t load_write(char *bytes, size_t size, size_t n, void *ctx) {
    return load_bytes(ctx, str_view(bytes, size * n)) == STATUS_OK ? size * n
                                                                   : CURL_WRITEFUNC_ERROR;
}

/* ---- what is asked ---- */

/* Options that every request has. The server is measured, no proxy before it. */
static bool load_setup(CURL *c, Load *l, const char *url) {
    return curl_easy_setopt(c, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_PROXY, "") == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_HTTPHEADER, l->headers) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)LOAD_CONNECT_S) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)LOAD_STALL_S) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(c, CURLOPT_USERAGENT, "lily-bench") == CURLE_OK;
}

/* The next question of a stream: a prompt of its own. */
static Status load_body(LoadStream *s) {
    Load *l = s->load;
    uint64_t key = rng_u64(l->seed, l->n_asked++);
    json_t *model = json_string(l->model);
    char *name = model ? json_dumps(model, JSON_ENCODE_ANY) : NULL;
    json_decref(model);
    strbuf_clear(&s->body);
    if (!name)
        return err_memory(l->err, "question", 0);
    strbuf_printf(&s->body,
                  "{\"model\":%s,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                  "\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":%d,\"prompt\":",
                  name, l->n_new);
    mem_free(name); // jansson allocates by mem_alloc
    for (int32_t i = 0; i < l->cell->prompt; i++)
        strbuf_printf(&s->body, "%c%d", i ? ',' : '[',
                      LOAD_ID_LOW + (int)(rng_u64(key, (uint64_t)i) % LOAD_N_IDS));
    strbuf_append_view(&s->body, STR("]}"));
    return strbuf_check(&s->body, l->err);
}

/* Sends a stream's next question. */
static Status load_ask(LoadStream *s) {
    Load *l = s->load;
    TRY(load_body(s));
    strbuf_clear(&s->rest);
    strbuf_clear(&s->reply);
    s->first_ns = s->last_ns = s->n_texts = 0;
    s->n_tokens = -1;
    s->is_done = false;
    if (curl_easy_setopt(s->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body.len) !=
            CURLE_OK ||
        curl_easy_setopt(s->curl, CURLOPT_POSTFIELDS, s->body.ptr) != CURLE_OK)
        return err_memory(l->err, "question", s->body.len);
    s->start_ns = clock_now_ns();
    return curl_multi_add_handle(l->multi, s->curl) == CURLM_OK
               ? STATUS_OK
               : err_memory(l->err, "question", s->body.len);
}

/* ---- one cell ---- */

/* A question is answered: its figures, and the next one. */
static Status load_settle(LoadStream *s, CURLcode code) {
    Load *l = s->load;
    LoadCell *cell = l->cell;
    long http = 0;
    int64_t now_ns = clock_now_ns();
    curl_multi_remove_handle(l->multi, s->curl);
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &http);
    if (l->err->code)
        return l->err->code; // a callback has failed
    if (code != CURLE_OK)
        return err_set(l->err, STATUS_IO, "%s: %s", l->args->serve_url, curl_easy_strerror(code));
    if (http != 200) {
        json_t *v = NULL;
        (void)!json_read(&v, strbuf_view(&s->reply), "the answer", NULL);
        Status status = load_refuse(s, v, http);
        json_decref(v);
        return status;
    }
    if (!s->is_done)
        return err_set(l->err, STATUS_IO, "%s: an answer broke off behind %lld pieces of text",
                       l->args->serve_url, (long long)s->n_texts);
    int64_t n = s->n_tokens < 0 ? s->n_texts : s->n_tokens;
    int64_t first_ns = s->n_texts ? s->first_ns : now_ns;
    cell->firsts[cell->n_answers] = (double)(first_ns - s->start_ns) * 1e-6;
    double seconds = (double)(s->last_ns - s->first_ns) * 1e-9;
    cell->rates[cell->n_answers++] = seconds > 0 ? (double)(n - 1) / seconds : 0;
    cell->n_tokens += n;
    s->is_over = s->n_left == 0;
    if (s->is_over)
        return STATUS_OK;
    s->n_left--;
    return load_ask(s);
}

/* Reads what is there and settles what is over. */
static Status load_turn(Load *l) {
    int n_running = 0, n_messages = 0;
    if (curl_multi_perform(l->multi, &n_running) != CURLM_OK)
        return l->err->code ? l->err->code : err_memory(l->err, "requests", 0);
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &n_messages)) != NULL;) {
        LoadStream *s = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        TRY(load_settle(s, code));
    }
    return STATUS_OK;
}

static void load_stream_close(LoadStream *s) {
    if (s->curl) {
        curl_multi_remove_handle(s->load->multi, s->curl);
        curl_easy_cleanup(s->curl);
    }
    strbuf_fini(&s->body);
    strbuf_fini(&s->rest);
    strbuf_fini(&s->reply);
    *s = (LoadStream){0};
}

static Status load_stream_open(LoadStream *s, Load *l, int32_t n_questions) {
    StrBuf url = {0};
    strbuf_printf(&url, "%s/v1/completions", l->url);
    *s = (LoadStream){.load = l, .n_left = n_questions - 1, .curl = curl_easy_init()};
    bool is_good = s->curl && !url.is_failed && load_setup(s->curl, l, url.ptr) &&
                   curl_easy_setopt(s->curl, CURLOPT_POST, 1L) == CURLE_OK &&
                   curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, load_write) == CURLE_OK &&
                   curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, s) == CURLE_OK &&
                   curl_easy_setopt(s->curl, CURLOPT_PRIVATE, s) == CURLE_OK;
    strbuf_fini(&url);
    return is_good ? load_ask(s) : err_memory(l->err, "stream", sizeof *s);
}

/* n_streams streams of n_rounds questions each, until all are answered. */
static Status load_run(Load *l, LoadCell *cell, int32_t n_rounds, int32_t n_new) {
    Status status = STATUS_OK;
    int64_t start_ns = clock_now_ns();
    bool is_over = false;
    l->cell = cell;
    l->n_new = n_new;
    for (int32_t i = 0; i < cell->n_streams && status == STATUS_OK; i++)
        status = load_stream_open(&l->all[i], l, n_rounds);
    while (status == STATUS_OK && !is_over) {
        status = load_turn(l);
        is_over = true;
        for (int32_t i = 0; i < cell->n_streams; i++)
            is_over = is_over && l->all[i].is_over;
        if (status == STATUS_OK && !is_over)
            (void)curl_multi_poll(l->multi, NULL, 0, LOAD_WAIT_MS, NULL);
    }
    cell->seconds = clock_seconds_since(start_ns);
    for (int32_t i = 0; i < cell->n_streams; i++)
        if (l->all[i].load)
            load_stream_close(&l->all[i]);
    return status;
}

static void load_cell_fini(LoadCell *cell) {
    mem_free(cell->firsts);
    mem_free(cell->rates);
    mem_free(cell->gaps);
}

static Status load_cell_init(LoadCell *cell, int32_t prompt, int32_t n_streams, int32_t n_rounds,
                             int32_t n_new, Err *err) {
    size_t n = (size_t)n_streams * (size_t)n_rounds;
    *cell = (LoadCell){.prompt = prompt, .n_streams = n_streams};
    if (!checked_mul_size(n, (size_t)n_new, &cell->cap_gaps))
        return err_memory(err, "gaps", SIZE_MAX);
    cell->firsts = mem_zalloc(n, sizeof *cell->firsts);
    cell->rates = mem_zalloc(n, sizeof *cell->rates);
    cell->gaps = mem_zalloc(cell->cap_gaps, sizeof *cell->gaps);
    if (cell->firsts && cell->rates && cell->gaps)
        return STATUS_OK;
    load_cell_fini(cell);
    return err_memory(err, "gaps", cell->cap_gaps * sizeof *cell->gaps);
}

/* ---- figures ---- */

static int load_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median, 99th percentile (the nearest rank) and extremes; null where there are no values. */
static json_t *load_spread(double *values, size_t n) {
    if (n == 0)
        return json_null();
    qsort(values, n, sizeof *values, load_compare);
    size_t rank = (n * 99 + 99) / 100;
    return json_pack("{s:f, s:f, s:f, s:f}", "median", bench_sorted_median(values, n), "p99",
                     values[rank - 1], "min", values[0], "max", values[n - 1]);
}

static json_t *load_cell_json(LoadCell *cell) {
    return json_pack("{s:i, s:i, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:I}", "prompt_tokens",
                     cell->prompt, "concurrency", cell->n_streams, "answers",
                     (json_int_t)cell->n_answers, "tokens", (json_int_t)cell->n_tokens, "seconds",
                     cell->seconds, "tok_s", (double)cell->n_tokens / cell->seconds,
                     "first_token_ms", load_spread(cell->firsts, cell->n_answers), "gap_ms",
                     load_spread(cell->gaps, cell->n_gaps), "stream_tok_s",
                     load_spread(cell->rates, cell->n_answers), "gaps", (json_int_t)cell->n_gaps);
}

/* A member of a member, 0 where it is null. */
static double load_figure(const json_t *row, const char *name, const char *which) {
    return json_number_value(json_object_get(json_object_get(row, name), which));
}

static void load_print_row(const json_t *row) {
    printf("%7lld %8lld  %12.1f %9.1f  %9.2f %9.2f %9.2f  %8.2f %9.2f\n",
           (long long)json_integer_value(json_object_get(row, "prompt_tokens")),
           (long long)json_integer_value(json_object_get(row, "concurrency")),
           load_figure(row, "first_token_ms", "median"), load_figure(row, "first_token_ms", "p99"),
           load_figure(row, "gap_ms", "median"), load_figure(row, "gap_ms", "p99"),
           load_figure(row, "gap_ms", "max"), load_figure(row, "stream_tok_s", "median"),
           json_number_value(json_object_get(row, "tok_s")));
    fflush(stdout);
}

/* ---- the run ---- */

/* STATUS_INVALID is wrong usage here. */
static Status load_settle_options(Load *l) {
    const CliArgs *a = l->args;
    if (!a->serve_url)
        return err_set(l->err, STATUS_INVALID, "--concurrency and --api-key go with --serve URL");
    if (a->model || a->backend || a->mask || a->device || a->threads || a->ctx || a->chunk ||
        a->is_f32 || a->batch || a->fill_above >= 0 || a->meter_mb || a->is_profile || a->csv_out ||
        a->svg_out)
        return err_set(l->err, STATUS_INVALID,
                       "--serve goes with --contexts, --concurrency, --steps, --rounds, --seed, "
                       "--api-key and --json alone: what concerns the model is for the server "
                       "itself");
    if (strncmp(a->serve_url, "http://", 7) != 0 && strncmp(a->serve_url, "https://", 8) != 0)
        return err_set(l->err, STATUS_INVALID,
                       "--serve: expected a URL such as http://127.0.0.1:8080, found %s",
                       a->serve_url);
    TRY(cli_parse_list(l->prompts, &l->n_prompts, LOAD_MAX_LIST, "--contexts",
                       a->contexts ? a->contexts : "256", LIMIT_CONTEXT, l->err));
    TRY(cli_parse_list(l->streams, &l->n_streams, LOAD_MAX_LIST, "--concurrency",
                       a->concurrency ? a->concurrency : "1,2,4,8", LOAD_MAX_STREAMS, l->err));
    l->n_steps = a->steps ? (int32_t)a->steps : LOAD_STEPS;
    l->n_rounds = a->rounds ? (int32_t)a->rounds : LOAD_ROUNDS;
    return STATUS_OK;
}

static Status load_open(Load *l) {
    StrView url = str_view(l->args->serve_url, strlen(l->args->serve_url));
    while (str_ends(url, STR("/")))
        url.len--;
    if (str_ends(url, STR("/v1")))
        url.len -= 3;
    const char *key = l->args->api_key ? l->args->api_key : getenv("LILY_API_KEY");
    StrBuf line = {0};
    strbuf_printf(&line, "Authorization: Bearer %s", key ? key : "");
    l->url = mem_zalloc(url.len + 1, 1);
    l->all = mem_zalloc(LOAD_MAX_STREAMS, sizeof *l->all);
    l->headers = curl_slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *more =
        key && !line.is_failed && l->headers ? curl_slist_append(l->headers, line.ptr) : l->headers;
    strbuf_fini(&line);
    l->multi = curl_multi_init();
    l->results = json_array();
    if (!l->url || !l->all || !more || !l->multi || !l->results)
        return err_memory(l->err, "requests", LOAD_MAX_STREAMS * sizeof *l->all);
    memcpy(l->url, url.ptr, url.len);
    // Another run must not find its prompts in the cache.
    l->seed = l->args->seed >= 0 ? (uint64_t)l->args->seed : (uint64_t)clock_now_ns();
    return STATUS_OK;
}

static size_t load_write_reply(char *bytes, size_t size, size_t n, void *ctx) {
    StrBuf *reply = ctx;
    if (size * n > LOAD_EVENT_BYTES - reply->len)
        return CURL_WRITEFUNC_ERROR;
    strbuf_append(reply, bytes, size * n);
    return reply->is_failed ? CURL_WRITEFUNC_ERROR : size * n;
}

/* The first model that the server names. */
static Status load_find_model(Load *l) {
    StrBuf url = {0}, reply = {0};
    strbuf_printf(&url, "%s/v1/models", l->url);
    CURL *c = curl_easy_init();
    long http = 0;
    json_t *v = NULL;
    Status status = STATUS_OK;
    if (!c || url.is_failed || !load_setup(c, l, url.ptr) ||
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, load_write_reply) != CURLE_OK ||
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &reply) != CURLE_OK)
        status = err_memory(l->err, "request", 0);
    CURLcode code = status == STATUS_OK ? curl_easy_perform(c) : CURLE_OK;
    if (code != CURLE_OK)
        status = err_set(l->err, STATUS_IO, "%s: %s", l->args->serve_url, curl_easy_strerror(code));
    if (status == STATUS_OK)
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &http);
    if (status == STATUS_OK && http != 200) {
        LoadStream s = {.load = l, .reply = reply};
        (void)!json_read(&v, strbuf_view(&reply), "the list of models", NULL);
        status = load_refuse(&s, v, http);
    } else if (status == STATUS_OK) {
        status = json_read(&v, strbuf_view(&reply), "the list of models", l->err);
    }
    const json_t *first = json_array_get(json_object_get(v, "data"), 0);
    StrView name = json_text(json_object_get(first, "id"));
    if (status == STATUS_OK && name.len == 0)
        status = err_set(l->err, STATUS_FORMAT, "%s/v1/models names no model", l->url);
    if (status == STATUS_OK) {
        l->model = mem_zalloc(name.len + 1, 1);
        status = l->model ? STATUS_OK : err_memory(l->err, "name", name.len);
        if (l->model)
            memcpy(l->model, name.ptr, name.len);
    }
    json_decref(v);
    curl_easy_cleanup(c);
    strbuf_fini(&url);
    strbuf_fini(&reply);
    return status;
}

static Status load_cells(Load *l, bool is_quiet) {
    LoadCell cell;
    TRY(load_cell_init(&cell, l->prompts[0], 1, 1, LOAD_WARM_TOKENS, l->err));
    Status status = load_run(l, &cell, 1, LOAD_WARM_TOKENS);
    load_cell_fini(&cell);
    TRY(status);
    if (!is_quiet)
        printf("%s, %s: %d tokens an answer, %d answers a stream\n%7s %8s  %12s %9s  %9s %9s %9s  "
               "%8s %9s\n",
               l->args->serve_url, l->model, l->n_steps, l->n_rounds, "prompt", "streams",
               "first ms", "p99", "gap ms", "p99", "max", "tok/s", "together");
    for (int i = 0; i < l->n_prompts; i++)
        for (int j = 0; j < l->n_streams; j++) {
            TRY(load_cell_init(&cell, l->prompts[i], l->streams[j], l->n_rounds, l->n_steps,
                               l->err));
            status = load_run(l, &cell, l->n_rounds, l->n_steps);
            json_t *row = status == STATUS_OK ? load_cell_json(&cell) : NULL;
            load_cell_fini(&cell);
            TRY(status);
            if (!row || json_array_append_new(l->results, row) != 0)
                return err_memory(l->err, "results", 0);
            if (!is_quiet)
                load_print_row(row);
        }
    return STATUS_OK;
}

/* The whole as one object, to a file or to standard output. */
static Status load_report(Load *l, FileWriter *out) {
    json_t *all = json_pack("{s:o, s:s, s:{s:s, s:s}, s:i, s:i, s:O}", "url",
                            json_clean_string(l->args->serve_url), "model", l->model, "versions",
                            "lily", LILY_VERSION, "commit", LILY_COMMIT, "steps", l->n_steps,
                            "rounds", l->n_rounds, "results", l->results);
    if (!all)
        return err_memory(l->err, "results", 0);
    if (!out)
        return ui_print_json(all, JSON_INDENT(2), l->err);
    StrBuf text = {0};
    Status status = json_print(&text, all, JSON_INDENT(2), l->err);
    json_decref(all);
    strbuf_append_char(&text, '\n');
    if (status == STATUS_OK)
        status = strbuf_check(&text, l->err);
    if (status == STATUS_OK)
        status = file_writer_append(out, text.ptr, text.len, l->err);
    strbuf_fini(&text);
    return status == STATUS_OK ? file_writer_commit(out, l->err) : status;
}

static void load_close(Load *l) {
    mem_free(l->url);
    mem_free(l->model);
    mem_free(l->all);
    curl_multi_cleanup(l->multi);
    curl_slist_free_all(l->headers);
    json_decref(l->results);
    curl_global_cleanup();
}

int bench_serve(const CliArgs *args) {
    Err err = {0};
    Load l = {.args = args, .err = &err};
    if (load_settle_options(&l) != STATUS_OK)
        return ui_usage("bench", "%s", err.text);
    bool is_stdout = args->json_out && strcmp(args->json_out, "-") == 0;
    FileWriter *out = NULL;
    Status status = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK
                        ? STATUS_OK
                        : err_memory(&err, "libcurl", 0);
    if (status == STATUS_OK && args->json_out && !is_stdout)
        status = file_writer_open(&out, args->json_out, &err);
    if (status == STATUS_OK)
        status = load_open(&l);
    if (status == STATUS_OK)
        status = load_find_model(&l);
    if (status == STATUS_OK)
        status = load_cells(&l, is_stdout);
    if (status == STATUS_OK && args->json_out)
        status = load_report(&l, out);
    file_writer_close(out);
    load_close(&l);
    return status == STATUS_OK ? ui_finish("bench") : ui_fail("bench", &err);
}
