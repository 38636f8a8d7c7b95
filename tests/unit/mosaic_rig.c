/* mosaic_rig.c - see mosaic_rig.h. */
#include "mosaic_rig.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t drawn;

float mosaic_draw(float r, bool narrow) {
    float x = (2.0f * lg_num_rng_unit(7, 0, drawn++, 0) - 1.0f) * r;
    return narrow ? mosaic_bf16(x) : x;
}

float *mosaic_drawn(size_t n, float r, bool narrow) {
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = mosaic_draw(r, narrow);
    return x;
}

size_t mosaic_elements(const mosaic_array *a) {
    size_t n = 1;
    for (uint32_t d = 0; d < a->rank; d++) n *= a->dim[d];
    return n;
}

void mosaic_shapes(const lg_mosaic_kernel *k, mosaic_array *a) {
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        a[i] = (mosaic_array){.rank = k->win[i].rank};
        memcpy(a[i].dim, k->win[i].array, sizeof k->win[i].array);
    }
}

static void run_text(const lg_buf *body, const mosaic_array *fetch, uint32_t n_fetch,
                     const mosaic_array *win, const lg_mosaic_kernel *k, bool overlapped) {
    assert_false(body->failed);
    const char *why =
        mosaic_eval(lg_buf_str(body), fetch, n_fetch, win, k->n_in, k->n_out, overlapped);
    if (why) fail_msg("%s: %s", k->name, why);
}

static int first_way, end_way; /* of the test that runs */
static bool has_plugin;

void mosaic_run_way(int way, const lg_buf *body, const mosaic_array *fetch, mosaic_array *win,
                    const lg_mosaic_kernel *k, twin_fn twin, const void *g) {
    float *out[LG_MOSAIC_ARGS];
    if (way != MOSAIC_TWIN) {
        run_text(body, fetch, k->n_fetch, win, k, way == MOSAIC_OVERLAPPED);
        return;
    }
    twin_rig_run(k, twin, g, fetch, win, out);
    for (uint32_t i = 0; i < k->n_out; i++) {
        memcpy(win[k->n_in + i].f, out[i], mosaic_elements(&win[k->n_in + i]) * 4);
        free(out[i]);
    }
}

void mosaic_near(const char *what, const float *got, const float *want, size_t n, float tol) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= tol * (1.0f + fabsf(want[i]))))
            fail_msg("%s[%zu]: %.9g, expected %.9g", what, i, (double)got[i], (double)want[i]);
}

int mosaic_first_way(void) {
    return first_way;
}

int mosaic_end_way(void) {
    return end_way;
}

void mosaic_text(void (*all)(void)) {
    first_way = MOSAIC_IN_ORDER;
    end_way = MOSAIC_TWIN;
    all();
}

void mosaic_twin(void (*all)(void)) {
    if (!has_plugin) {
        printf("XLA's CPU plugin is not there (make check-pjrt fetches it), or this is a "
               "sanitizer's build\n");
        skip();
    }
    first_way = MOSAIC_TWIN;
    end_way = MOSAIC_TWIN + 1;
    all();
}

int mosaic_start(void **state) {
    (void)state;
    has_plugin = twin_rig_open();
    return 0;
}

int mosaic_finish(void **state) {
    (void)state;
    twin_rig_close();
    return 0;
}
