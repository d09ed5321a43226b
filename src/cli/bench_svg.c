// SPDX-License-Identifier: Apache-2.0
/* bench_svg.c - a bench's result as a picture: two panels above each other over the context in a
 * logarithmic scale, speed (logarithmic too) and share of the bound.
 *
 * Owns:     nothing.  Thread: main. */
#include "cli/bench_report.h"

#include <math.h>

enum {
    WIDTH = 760,
    HEIGHT = 640,
    LEFT = 80, // of the panels
    RIGHT = 730,
    LABEL_PX = 46, // least distance of two labels below
};

/* A panel's place and the scale of its values. */
typedef struct Panel {
    double top, bottom; // px
    double low, high;   // values there
    bool is_log;
} Panel;

typedef struct Curve {
    const char *name, *color;
    const char *value, *low, *high; // keys; low and high NULL: no bars
    double scale;
} Curve;

static void svg_text(StrBuf *out, const char *text) {
    for (const char *p = text; *p; p++) {
        switch (*p) {
        case '&': strbuf_printf(out, "&amp;"); break;
        case '<': strbuf_printf(out, "&lt;"); break;
        case '>': strbuf_printf(out, "&gt;"); break;
        default: strbuf_append_char(out, *p);
        }
    }
}

static double panel_y(const Panel *p, double value) {
    double low = p->low, high = p->high;
    if (p->is_log) {
        low = log10(low);
        high = log10(high);
        value = log10(value);
    }
    return p->bottom - (value - low) / (high - low) * (p->bottom - p->top);
}

/* A row's context, at least 1 for the logarithm. */
static double context_of(const json_t *row) {
    return fmax(json_number_value(json_object_get(row, "context")), 1);
}

/* A context's place between the shortest and the longest; one alone stands in the middle. */
static double context_x(double context, const double range[2]) {
    if (range[1] <= range[0])
        return 0.5 * (LEFT + RIGHT);
    double share = log(context / range[0]) / log(range[1] / range[0]);
    return LEFT + 30 + share * (RIGHT - LEFT - 60);
}

static void svg_grid(StrBuf *out, const Panel *p, double value, const char *unit) {
    double y = panel_y(p, value);
    strbuf_printf(out,
                  "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"grid\"/>\n"
                  "<text x=\"%d\" y=\"%.1f\" class=\"y\">%g%s</text>\n",
                  LEFT, y, RIGHT, y, LEFT - 8, y + 4, value, unit);
}

/* Frame, grid and labels. */
static void svg_panel(StrBuf *out, const Panel *p, const char *title, const char *unit) {
    strbuf_printf(out, "<text x=\"%d\" y=\"%.1f\" class=\"panel\">%s</text>\n", LEFT, p->top - 10,
                  title);
    if (p->is_log) {
        static const double steps[] = {1, 2, 5};
        for (double decade = p->low; decade <= p->high * 1.001; decade *= 10)
            for (size_t i = 0; i < COUNT_OF(steps); i++)
                if (decade * steps[i] <= p->high * 1.001)
                    svg_grid(out, p, decade * steps[i], unit);
    } else {
        for (double v = p->low; v <= p->high * 1.001; v += 20)
            svg_grid(out, p, v, unit);
    }
    strbuf_printf(out, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" class=\"frame\"/>\n",
                  LEFT, p->top, RIGHT - LEFT, p->bottom - p->top);
}

/* The value of a row, scaled, or 0: it has none. */
static double curve_value(const json_t *row, const char *key, double scale) {
    double v = json_number_value(json_object_get(row, key)) * scale;
    return isfinite(v) && v > 0 ? v : 0;
}

static void svg_curve(StrBuf *out, const Panel *p, const Curve *c, const json_t *rows,
                      const double range[2]) {
    const json_t *row;
    size_t i;
    bool is_first = true;
    json_array_foreach(rows, i, row) {
        double v = curve_value(row, c->value, c->scale);
        if (v <= 0)
            continue;
        strbuf_printf(out, "%s%.1f,%.1f", is_first ? "<polyline class=\"curve\" points=\"" : " ",
                      context_x(context_of(row), range), panel_y(p, v));
        is_first = false;
    }
    if (is_first)
        return;
    strbuf_printf(out, "\" stroke=\"%s\"/>\n", c->color);
    json_array_foreach(rows, i, row) {
        double v = curve_value(row, c->value, c->scale);
        double x = context_x(context_of(row), range);
        if (v <= 0)
            continue;
        double low = curve_value(row, c->low, c->scale), high = curve_value(row, c->high, c->scale);
        if (low > 0 && high > 0)
            strbuf_printf(out,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"%s\"/>\n",
                          x, panel_y(p, low), x, panel_y(p, high), c->color);
        bool is_filled = json_is_true(json_object_get(row, "filled"));
        strbuf_printf(out,
                      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" stroke=\"%s\" fill=\"%s\">"
                      "<title>%s at %.0f: %.4g</title></circle>\n",
                      x, panel_y(p, v), c->color, is_filled ? "#fff" : c->color, c->name,
                      context_of(row), v);
    }
}

/* Contexts below the lower panel, where there is room. */
static void svg_contexts(StrBuf *out, const Panel *p, const json_t *rows, const double range[2]) {
    const json_t *row;
    size_t i;
    double last = -LABEL_PX;
    json_array_foreach(rows, i, row) {
        double context = context_of(row);
        double x = context_x(context, range);
        if (fabs(x - last) < LABEL_PX)
            continue;
        last = x;
        strbuf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"x\">%.0f</text>\n", x,
                      p->bottom + 18, context);
    }
    strbuf_printf(out, "<text x=\"%d\" y=\"%.1f\" class=\"x\">context, tokens</text>\n",
                  (LEFT + RIGHT) / 2, p->bottom + 38);
}

/* Whole decades around all values of the curves, or 1 to 10. */
static void log_range(Panel *p, const json_t *rows, const Curve *curves, size_t n) {
    const json_t *row;
    size_t i;
    double low = INFINITY, high = 0;
    for (size_t c = 0; c < n; c++) {
        const char *keys[3] = {curves[c].value, curves[c].low, curves[c].high};
        for (int k = 0; k < 3; k++)
            json_array_foreach(rows, i, row) {
                double v = curve_value(row, keys[k], curves[c].scale);
                low = v > 0 && v < low ? v : low;
                high = v > high ? v : high;
            }
    }
    p->low = high > 0 ? pow(10, floor(log10(low))) : 1;
    p->high = high > 0 ? pow(10, ceil(log10(high))) : 10;
    if (p->high <= p->low)
        p->high = p->low * 10;
}

static void svg_head(StrBuf *out, const json_t *all) {
    const char *spec = json_string_value(json_object_get(json_object_get(all, "model"), "spec"));
    const char *backend = json_string_value(json_object_get(all, "backend"));
    strbuf_printf(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\">\n"
        "<style>text{font:13px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}"
        ".panel{font-weight:bold}.y{text-anchor:end}.x{text-anchor:middle}"
        ".grid{stroke:#ddd}.frame{fill:none;stroke:#888}.curve{fill:none;stroke-width:2}</style>\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
        "<text x=\"%d\" y=\"24\" class=\"title\">",
        WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
    svg_text(out, spec ? spec : "");
    strbuf_printf(out, "</text>\n<text x=\"%d\" y=\"44\">", LEFT);
    svg_text(out, backend ? backend : "");
    strbuf_printf(out,
                  ", batch %.0f, reads %.1f GB/s, %.3f TFLOP/s; a ring: filled context</text>\n",
                  json_number_value(json_object_get(all, "batch")),
                  json_number_value(json_object_get(all, "read_gb_s")),
                  json_number_value(json_object_get(all, "matrix_tflops")));
}

Status bench_svg(StrBuf *out, const json_t *all, Err *err) {
    static const Curve speed[] = {
        {"prefill", "#1f5fa8", "prefill_tok_s", "prefill_tok_s_min", "prefill_tok_s_max", 1},
        {"decode", "#c8600a", "decode_tok_s", "decode_tok_s_min", "decode_tok_s_max", 1}};
    static const Curve share[] = {{"prefill", "#1f5fa8", "prefill_bound_share",
                                   "prefill_bound_share_min", "prefill_bound_share_max", 100},
                                  {"decode", "#c8600a", "decode_bound_share",
                                   "decode_bound_share_min", "decode_bound_share_max", 100}};
    const json_t *rows = json_object_get(all, "results"), *row;
    Panel top = {.top = 90, .bottom = 310, .is_log = true};
    Panel low = {.top = 360, .bottom = 580, .low = 0, .high = 100};
    double range[2] = {INFINITY, 0};
    size_t i;
    json_array_foreach(rows, i, row) {
        double context = context_of(row);
        range[0] = context < range[0] ? context : range[0];
        range[1] = context > range[1] ? context : range[1];
    }
    log_range(&top, rows, speed, COUNT_OF(speed));
    svg_head(out, all);
    svg_panel(out, &top, "tokens a second", "");
    svg_panel(out, &low, "share of the bound", "%");
    for (size_t c = 0; c < COUNT_OF(speed); c++) {
        svg_curve(out, &top, &speed[c], rows, range);
        svg_curve(out, &low, &share[c], rows, range);
        strbuf_printf(out, "<text x=\"%d\" y=\"80\" class=\"y\" style=\"fill:%s\">%s</text>\n",
                      RIGHT - 70 * (1 - (int)c), speed[c].color, speed[c].name);
    }
    svg_contexts(out, &low, rows, range);
    strbuf_printf(out, "</svg>\n");
    return strbuf_check(out, err);
}
