// SPDX-License-Identifier: Apache-2.0
/* bench_report.c - a bench's result as a table and as CSV.
 *
 * Owns:     nothing.  Thread: main.
 * Not here: the picture (bench_svg.c). */
#include "cli/bench_report.h"

#include <math.h>
#include <string.h>

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "-";
}

static double number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static bool is_number(const json_t *object, const char *key) {
    return json_is_number(json_object_get(object, key));
}

/* ---- table ---- */

/* Speed, and share of the rate that bounds it, of one phase; dashes where it was not measured. */
static void table_phase(StrBuf *out, const json_t *row, const char *phase) {
    enum { TOK_S, LEAST, LARGEST, SHARE, BOUND, READ, MATRIX, KEYS };
    static const char *const ends[KEYS] = {"tok_s", "tok_s_min", "tok_s_max",    "bound_share",
                                           "bound", "read_gb_s", "matrix_tflops"};
    char key[KEYS][40];
    for (int i = 0; i < KEYS; i++)
        snprintf(key[i], sizeof key[i], "%s_%s", phase, ends[i]);
    if (!is_number(row, key[TOK_S])) {
        strbuf_printf(out, " %8s %8s %8s  %6s%19s", "-", "-", "-", "-", "");
        return;
    }
    strbuf_printf(out, " %8.2f %8.2f %8.2f  %5.1f%% of ", number_of(row, key[TOK_S]),
                  number_of(row, key[LEAST]), number_of(row, key[LARGEST]),
                  100 * number_of(row, key[SHARE]));
    if (strcmp(text_of(row, key[BOUND]), "flop") == 0)
        strbuf_printf(out, "%7.3f TFLOP/s", number_of(row, key[MATRIX]));
    else
        strbuf_printf(out, "%7.2f GB/s   ", number_of(row, key[READ]));
}

/* Two lines: what stands under "ids" in the first is how the row was made. */
static void table_row(StrBuf *out, const json_t *row) {
    bool is_filled = json_is_true(json_object_get(row, "filled"));
    bool is_unstable = json_is_true(json_object_get(row, "unstable"));
    strbuf_printf(out, "%8.0f  prefill", number_of(row, "context"));
    table_phase(out, row, "prefill");
    if (is_filled || is_unstable)
        strbuf_printf(out, "  %8s  %s%s%s", "", is_filled ? "filled" : "",
                      is_filled && is_unstable ? ", " : "", is_unstable ? "unstable" : "");
    strbuf_printf(out, "\n%8s  decode ", "");
    table_phase(out, row, "decode");
    strbuf_printf(out, "  %8.1f  %s\n", 1e-6 * number_of(row, "decode_bytes_step"),
                  text_of(row, "ids_digest"));
}

static void table_stages(StrBuf *out, const json_t *row) {
    const json_t *stages = json_object_get(row, "profile"), *stage;
    if (!stages)
        return;
    const char *phase = "";
    size_t i;
    if (json_array_size(stages) == 0)
        strbuf_printf(out, "\nstages at %.0f: this backend does not time them\n",
                      number_of(row, "context"));
    json_array_foreach(stages, i, stage) {
        if (strcmp(phase, text_of(stage, "phase")) != 0) {
            phase = text_of(stage, "phase");
            strbuf_printf(out, "\n%-8s at %-8.0f %9s %8s %10s %9s %9s %8s\n", phase,
                          number_of(row, "context"), "ms", "of time", "MB", "GB/s", "GFLOP/s",
                          "of bound");
        }
        double seconds = number_of(stage, "seconds"), bytes = number_of(stage, "bytes");
        double per_second = seconds > 0 ? 1e-9 / seconds : 0;
        strbuf_printf(out, "  %-17s %9.3f %7.1f%% %10.2f %9.2f %9.1f %7.1f%%\n",
                      text_of(stage, "stage"), 1e3 * seconds, 100 * number_of(stage, "time_share"),
                      bytes * 1e-6, bytes * per_second, number_of(stage, "flop") * per_second,
                      100 * number_of(stage, "bound_share"));
    }
}

Status bench_report_table(StrBuf *out, const json_t *all, Err *err) {
    const json_t *rows = json_object_get(all, "results"), *row;
    const json_t *skipped = json_object_get(all, "skipped");
    size_t i;
    strbuf_printf(out, "%s, %s backend", text_of(json_object_get(all, "model"), "spec"),
                  text_of(all, "backend"));
    if (number_of(all, "batch") > 1)
        strbuf_printf(out, "; %.0f sequences together, tokens of all", number_of(all, "batch"));
    strbuf_printf(out, "\nat best: reads %.1f GB/s, %s %.3f TFLOP/s\n", number_of(all, "read_gb_s"),
                  text_of(all, "matrix_unit"), number_of(all, "matrix_tflops"));
    strbuf_printf(out, "%8s  %-7s %8s %8s %8s  %-25s  %8s  %s\n", "context", "phase", "tok/s",
                  "min", "max", "share of the bound", "MB/step", "ids");
    bool is_filled = false, is_unstable = false;
    double peak = 0;
    json_array_foreach(rows, i, row) {
        table_row(out, row);
        is_filled |= json_is_true(json_object_get(row, "filled"));
        is_unstable |= json_is_true(json_object_get(row, "unstable"));
        peak = fmax(peak, number_of(row, "peak_bytes"));
    }
    if (peak > 0 && strcmp(text_of(all, "backend"), "cuda") != 0) // its plan is the card's memory
        strbuf_printf(out, "memory: at most %.3f GB used, %.3f GB planned\n", peak * 1e-9,
                      number_of(all, "plan_bytes") * 1e-9);
    if (is_filled)
        strbuf_printf(out,
                      "filled: decode behind at most 512 read tokens and copies of their keys and "
                      "values; no prompt of that length was read\n");
    if (is_unstable)
        strbuf_printf(out, "unstable: the rounds' shares of the bound lie more than 8%% apart\n");
    json_array_foreach(skipped, i, row) strbuf_printf(
        out, "%8.0f  left out: %s\n", number_of(row, "context"), text_of(row, "reason"));
    json_array_foreach(rows, i, row) table_stages(out, row);
    return strbuf_check(out, err);
}

/* ---- CSV ---- */

/* A value in a cell. Texts that might end a cell are quoted. */
static void csv_value(StrBuf *out, const json_t *v) {
    if (json_is_integer(v)) {
        strbuf_printf(out, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        strbuf_printf(out, "%.9g", json_real_value(v));
    } else if (json_is_boolean(v)) {
        strbuf_printf(out, "%s", json_is_true(v) ? "true" : "false");
    } else if (json_is_string(v)) {
        StrView text = json_text(v);
        strbuf_append_char(out, '"');
        for (size_t i = 0; i < text.len; i++) {
            if (text.ptr[i] == '"')
                strbuf_append_char(out, '"');
            strbuf_append_char(out, text.ptr[i]);
        }
        strbuf_append_char(out, '"');
    }
}

Status bench_report_csv(StrBuf *out, const json_t *all, Err *err) {
    static const char *const of_row[] = {"context",
                                         "batch",
                                         "filled",
                                         "unstable",
                                         "rounds",
                                         "prefill_tok_s",
                                         "prefill_tok_s_min",
                                         "prefill_tok_s_max",
                                         "prefill_bound_share",
                                         "prefill_bytes",
                                         "prefill_flop",
                                         "prefill_read_gb_s",
                                         "prefill_matrix_tflops",
                                         "decode_tok_s",
                                         "decode_tok_s_min",
                                         "decode_tok_s_max",
                                         "decode_bound_share",
                                         "decode_bytes_step",
                                         "decode_flop_step",
                                         "decode_read_gb_s",
                                         "decode_matrix_tflops",
                                         "read_gb_s",
                                         "matrix_tflops",
                                         "peak_bytes",
                                         "ids_digest"};
    static const char *const of_all[] = {"plan_bytes", "backend", "matrix_unit"};
    const json_t *row;
    size_t i;
    for (size_t k = 0; k < COUNT_OF(of_row); k++)
        strbuf_printf(out, "%s,", of_row[k]);
    for (size_t k = 0; k < COUNT_OF(of_all); k++)
        strbuf_printf(out, "%s,", of_all[k]);
    strbuf_printf(out, "model\n");
    json_array_foreach(json_object_get(all, "results"), i, row) {
        for (size_t k = 0; k < COUNT_OF(of_row); k++) {
            csv_value(out, json_object_get(row, of_row[k]));
            strbuf_append_char(out, ',');
        }
        for (size_t k = 0; k < COUNT_OF(of_all); k++) {
            csv_value(out, json_object_get(all, of_all[k]));
            strbuf_append_char(out, ',');
        }
        csv_value(out, json_object_get(json_object_get(all, "model"), "spec"));
        strbuf_append_char(out, '\n');
    }
    return strbuf_check(out, err);
}
