/* test_metrics.c - the Prometheus text against the format's own rules. */
#include "base/base.h"
#include "record/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_samples_and_labels(void **state) {
    (void)state;
    lg_buf b = {0}, labels = {0};
    lg_metrics_put_label(&labels, "a", "x\\\"\n");
    lg_metrics_put_family(&b, "t_total", "counter", "Things.");
    lg_metrics_put_u64(&b, "t_total", lg_buf_str(&labels), UINT64_MAX);
    lg_metrics_put_f64(&b, "g", NULL, 0.25);
    lg_metrics_put_f64(&b, "g", NULL, INFINITY);
    lg_metrics_put_f64(&b, "g", NULL, -INFINITY);
    lg_metrics_put_f64(&b, "g", NULL, NAN);
    assert_string_equal(lg_buf_str(&b), "# HELP t_total Things.\n# TYPE t_total counter\n"
                                        "t_total{a=\"x\\\\\\\"\\n\"} 18446744073709551615\n"
                                        "g 0.25\ng +Inf\ng -Inf\ng NaN\n");
    lg_buf_fini(&b);
    lg_buf_fini(&labels);
}

/* Bounds are inclusive and buckets cumulative. */
static void test_histogram(void **state) {
    (void)state;
    static const double bound[] = {0.5, 1, 2.5};
    lg_metrics_hist h;
    lg_buf b = {0};
    lg_metrics_hist_init(&h, bound, LG_COUNT(bound));
    const double x[] = {0.25, 0.5, 0.75, 2.5, 100};
    for (size_t i = 0; i < LG_COUNT(x); i++) lg_metrics_hist_add(&h, x[i]);
    lg_metrics_put_hist(&b, "h", "Help.", &h);
    assert_string_equal(lg_buf_str(&b), "# HELP h Help.\n# TYPE h histogram\n"
                                        "h_bucket{le=\"0.5\"} 2\nh_bucket{le=\"1\"} 3\n"
                                        "h_bucket{le=\"2.5\"} 4\nh_bucket{le=\"+Inf\"} 5\n"
                                        "h_sum 104\nh_count 5\n");
    lg_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_and_labels),
        cmocka_unit_test(test_histogram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
