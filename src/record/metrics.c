/* metrics.c - Prometheus text exposition: see metrics.h.
 *
 * Format: prometheus.io/docs/instrumenting/exposition_formats, text version 0.0.4.  Thread: the owner's.
 * Memory: the caller's buffer.  Test: tests/unit/test_metrics.c */
#include "record/metrics.h"

#include "base/diag.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void lg_metrics_hist_init(lg_metrics_hist *h, const double *bound, uint32_t n_bound) {
    LG_ASSERT(n_bound <= LG_METRICS_MAX_BOUND);
    *h = (lg_metrics_hist){.bound = bound, .n_bound = n_bound};
}

void lg_metrics_hist_add(lg_metrics_hist *h, double x) {
    uint32_t i = 0;
    while (i < h->n_bound && x > h->bound[i]) i++;
    h->count[i]++;
    h->total++;
    h->sum += x;
}

void lg_metrics_put_family(lg_buf *b, const char *name, const char *type, const char *help) {
    lg_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_name(lg_buf *b, const char *name, const char *labels) {
    lg_buf_puts(b, name);
    if (labels) lg_buf_printf(b, "{%s}", labels);
}

void lg_metrics_put_u64(lg_buf *b, const char *name, const char *labels, uint64_t v) {
    put_name(b, name, labels);
    lg_buf_printf(b, " %" PRIu64 "\n", v);
}

void lg_metrics_put_f64(lg_buf *b, const char *name, const char *labels, double v) {
    put_name(b, name, labels);
    if (isnan(v))
        lg_buf_puts(b, " NaN\n");
    else if (isinf(v))
        lg_buf_puts(b, v > 0 ? " +Inf\n" : " -Inf\n");
    else
        lg_buf_printf(b, " %.9g\n", v);
}

void lg_metrics_put_hist(lg_buf *b, const char *name, const char *help,
                         const lg_metrics_hist *h) {
    uint64_t below = 0;
    lg_metrics_put_family(b, name, "histogram", help);
    for (uint32_t i = 0; i < h->n_bound; i++) {
        below += h->count[i];
        lg_buf_printf(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->bound[i], below);
    }
    lg_buf_printf(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, h->total);
    lg_buf_printf(b, "%s_sum %.9g\n%s_count %" PRIu64 "\n", name, h->sum, name, h->total);
}

void lg_metrics_put_label(lg_buf *b, const char *name, const char *value) {
    lg_buf_printf(b, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            lg_buf_puts(b, "\\n");
        else if (*value == '"' || *value == '\\')
            lg_buf_printf(b, "\\%c", *value);
        else
            lg_buf_putc(b, *value);
    }
    lg_buf_putc(b, '"');
}
