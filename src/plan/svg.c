/* svg.c - curves over a logarithmic axis as a picture: see plan.h.
 *
 * Memory: the caller's buffer.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 720, HEIGHT = 420, LEFT = 70, RIGHT = 170, TOP = 40, BOTTOM = 50, N_COLOUR = 6 };

static const char *const colours[N_COLOUR] = {"#1b6ca8", "#c2452d", "#2e8b57",
                                              "#8a5aa8", "#b8860b", "#444444"};

typedef struct frame {
    double x0, x1, y1; /* data: x from x0 to x1, y from 0 to y1 */
} frame;

static double at_x(const frame *f, double x) {
    double span = log(f->x1 / f->x0);
    return LEFT + (span > 0 ? log(x / f->x0) / span : 0.5) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const frame *f, double y) {
    return HEIGHT - BOTTOM - y / f->y1 * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, about a fifth of y. */
static double step_of(double y) {
    double unit = pow(10, floor(log10(y / 5))), n = y / 5 / unit;
    return unit * (n < 1.5 ? 1 : n < 3.5 ? 2 : n < 7.5 ? 5 : 10);
}

static void put_text(lg_buf *out, double x, double y, const char *anchor, const char *text) {
    lg_buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (const char *s = text; *s; s++) {
        if (*s == '<' || *s == '&')
            lg_buf_puts(out, *s == '<' ? "&lt;" : "&amp;");
        else
            lg_buf_putc(out, *s);
    }
    lg_buf_puts(out, "</text>\n");
}

static void put_axes(lg_buf *out, const frame *f) {
    double step = step_of(f->y1);
    char label[32];
    for (double y = 0; y <= f->y1 * 1.0001; y += step) {
        lg_buf_printf(out, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>\n", LEFT, at_y(f, y),
                      WIDTH - RIGHT);
        snprintf(label, sizeof label, "%g", y);
        put_text(out, LEFT - 8, at_y(f, y) + 4, "end", label);
    }
    for (double x = pow(2, ceil(log2(f->x0) - 1e-9)); x <= f->x1 * 1.0001; x *= 2) {
        lg_buf_printf(out, "<path d=\"M%.1f %dv-6\" stroke=\"#666\"/>\n", at_x(f, x),
                      HEIGHT - BOTTOM);
        snprintf(label, sizeof label, "%g", x);
        put_text(out, at_x(f, x), HEIGHT - BOTTOM + 18, "middle", label);
    }
}

static void put_curve(lg_buf *out, const frame *f, const lg_plan_curve *c, uint32_t i) {
    const char *colour = colours[i % N_COLOUR];
    lg_buf_puts(out, "<path d=\"");
    for (uint32_t k = 0; k < c->n; k++)
        lg_buf_printf(out, "%c%.1f %.1f", k ? 'L' : 'M', at_x(f, c->x[k]), at_y(f, c->y[k]));
    lg_buf_printf(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", colour);
    lg_buf_printf(out, "<g fill=\"%s\">", colour);
    put_text(out, WIDTH - RIGHT + 12, TOP + 20.0 * (i + 1), "start", c->name);
    lg_buf_puts(out, "</g>\n");
}

void lg_plan_svg(lg_buf *out, const char *title, const char *x_name, const char *y_name,
                 const lg_plan_curve *curve, uint32_t n_curve) {
    frame f = {INFINITY, 0, 0};
    for (uint32_t i = 0; i < n_curve; i++)
        for (uint32_t k = 0; k < curve[i].n; k++) {
            f.x0 = fmin(f.x0, curve[i].x[k]);
            f.x1 = fmax(f.x1, curve[i].x[k]);
            f.y1 = fmax(f.y1, curve[i].y[k]);
        }
    if (!(f.x0 > 0) || !(f.y1 > 0) || isinf(f.x1) || isinf(f.y1)) return;
    f.y1 = step_of(f.y1) * ceil(f.y1 / step_of(f.y1));
    lg_buf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                  WIDTH, HEIGHT);
    put_text(out, LEFT, 16, "start", title);
    put_axes(out, &f);
    put_text(out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "middle", x_name);
    put_text(out, 4, TOP - 8, "start", y_name);
    for (uint32_t i = 0; i < n_curve; i++) put_curve(out, &f, &curve[i], i);
    lg_buf_puts(out, "</svg>\n");
}
