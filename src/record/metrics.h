/* metrics.h - the Prometheus text format (version 0.0.4): writing it, and histograms.
 *
 * Thread: the owner's.  Test: tests/unit/test_metrics.c */
#ifndef LG_RECORD_METRICS_H
#define LG_RECORD_METRICS_H

#include "base/buf.h"

#define LG_METRICS_MAX_BOUND 24

/* A histogram over fixed bounds.  Caller's storage. */
typedef struct lg_metrics_hist {
    const double *bound;                      /* ascending, borrowed (static) */
    uint32_t n_bound;                         /* <= LG_METRICS_MAX_BOUND */
    uint64_t count[LG_METRICS_MAX_BOUND + 1]; /* per bucket; the last one is +Inf */
    uint64_t total;
    double sum;
} lg_metrics_hist;

void lg_metrics_hist_init(lg_metrics_hist *h, const double *bound, uint32_t n_bound);
void lg_metrics_hist_add(lg_metrics_hist *h, double x);

/* "# HELP name help\n# TYPE name type\n"; type is "counter", "gauge" or "histogram". */
void lg_metrics_put_family(lg_buf *b, const char *name, const char *type, const char *help);

/* One sample line.  labels: `a="x",b="y"` already escaped, or NULL. */
void lg_metrics_put_u64(lg_buf *b, const char *name, const char *labels, uint64_t v);
void lg_metrics_put_f64(lg_buf *b, const char *name, const char *labels, double v);

/* Buckets, sum and count of a histogram, family lines included. */
void lg_metrics_put_hist(lg_buf *b, const char *name, const char *help,
                         const lg_metrics_hist *h);

/* Append name="value" with the value escaped as the format wants (\\, \", \n). */
void lg_metrics_put_label(lg_buf *b, const char *name, const char *value);

#endif
