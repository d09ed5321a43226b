// SPDX-License-Identifier: Apache-2.0
/* bench_compare.c - a bench's result held against an earlier one, so that speed that was lost
 * between two builds is seen by us and not by a user.
 *
 * Owns:     nothing.  Thread: main.
 * Not here: the rule by which rounds agree (bench_stats.c). */
#include "cli/bench_report.h"

/* Member `key` of member `of` ("": of the object itself). */
static const json_t *member(const json_t *object, const char *of, const char *key) {
    return json_object_get(*of ? json_object_get(object, of) : object, key);
}

static const json_t *row_like(const json_t *all, const json_t *row) {
    const json_t *other;
    size_t i;
    json_array_foreach(json_object_get(all, "results"), i, other) {
        static const char *const keys[] = {"context", "batch", "filled"};
        bool is_like = true;
        for (size_t k = 0; k < COUNT_OF(keys); k++)
            is_like &= json_equal(json_object_get(row, keys[k]), json_object_get(other, keys[k]));
        if (is_like)
            return other;
    }
    return NULL;
}

/* Median, least and largest share of a phase in percent; false: the row has none. */
static bool row_shares(double out[3], const json_t *row, const char *phase) {
    static const char *const ends[3] = {"", "_min", "_max"};
    for (int i = 0; i < 3; i++) {
        char key[48];
        snprintf(key, sizeof key, "%s_bound_share%s", phase, ends[i]);
        const json_t *v = json_object_get(row, key);
        if (!json_is_number(v))
            return false;
        out[i] = 100 * json_number_value(v);
    }
    return true;
}

typedef struct Tally {
    int n_slower, n_unstable; // figures
} Tally;

/* One figure's line. */
static void compare_phase(StrBuf *out, Tally *tally, const json_t *now, const json_t *before,
                          const char *phase) {
    double a[3], b[3];
    if (!row_shares(a, now, phase) || !row_shares(b, before, phase))
        return;
    bool is_slower = a[2]<b[1], is_faster = a[1]> b[2];
    bool is_unstable = json_is_true(json_object_get(now, "unstable")) ||
                       json_is_true(json_object_get(before, "unstable"));
    const char *verdict = is_unstable ? "unstable"
                          : is_slower ? "slower"
                          : is_faster ? "faster"
                                      : "as before";
    strbuf_printf(out,
                  "%-7s at %6lld: %5.1f%% of the bound (%.1f .. %.1f), before %.1f%% (%.1f .. "
                  "%.1f): %s\n",
                  phase, (long long)json_integer_value(json_object_get(now, "context")), a[0], a[1],
                  a[2], b[0], b[1], b[2], verdict);
    tally->n_slower += is_slower && !is_unstable;
    tally->n_unstable += is_unstable;
}

static Status no_row(Err *err) {
    return err_set(err, STATUS_INVALID,
                   "no row has the context, batch and filling of one of the earlier result");
}

Status bench_compare_check(const json_t *now, const json_t *before, Err *err) {
    static const char *const same[][2] = {
        {"model", "spec"}, {"model", "layers"}, {"", "backend"}, {"machine", "threads"}};
    for (size_t i = 0; i < COUNT_OF(same); i++)
        if (!json_equal(member(now, same[i][0], same[i][1]),
                        member(before, same[i][0], same[i][1])))
            return err_set(err, STATUS_INVALID, "%s%s%s differs: these runs cannot be compared",
                           same[i][0], *same[i][0] ? ": " : "", same[i][1]);
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(now, "results"), i, row) {
        if (row_like(before, row))
            return STATUS_OK;
    }
    return no_row(err);
}

Status bench_compare(StrBuf *out, int *n_slower, const json_t *now, const json_t *before,
                     Err *err) {
    const json_t *row;
    size_t i, len = out->len;
    Tally tally = {0};
    TRY(bench_compare_check(now, before, err));
    json_array_foreach(json_object_get(now, "results"), i, row) {
        const json_t *other = row_like(before, row);
        if (!other)
            continue;
        compare_phase(out, &tally, row, other, "prefill");
        compare_phase(out, &tally, row, other, "decode");
    }
    if (tally.n_unstable)
        strbuf_printf(out,
                      "%d unstable figures are not judged: their rounds disagree, now or before\n",
                      tally.n_unstable);
    TRY(strbuf_check(out, err));
    if (out->len == len)
        return no_row(err);
    *n_slower = tally.n_slower;
    return STATUS_OK;
}
