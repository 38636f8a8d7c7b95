/* mosaic_rig.h - a Mosaic kernel run by the interpreter of its text, and its twin by XLA's CPU plugin, on the same arrays. */
#ifndef LG_TESTS_MOSAIC_RIG_H
#define LG_TESTS_MOSAIC_RIG_H

#include "backend/pjrt/mosaic/mosaic_kern.h"
#include "mosaic_eval.h"
#include "twin_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Even in [-r, r]; a bfloat16 where `narrow`.  Each call draws another number, the same in each run; n of them (malloc). */
float mosaic_draw(float r, bool narrow);
float *mosaic_drawn(size_t n, float r, bool narrow);

size_t mosaic_elements(const mosaic_array *a);

/* Arrays for all windows of a kernel, floats still NULL. */
void mosaic_shapes(const lg_mosaic_kernel *k, mosaic_array *a);

/* Ways to run a kernel: its text with copies in order, its text with copies overlapped, its twin.  A test runs [first, end). */
enum { MOSAIC_IN_ORDER, MOSAIC_OVERLAPPED, MOSAIC_TWIN };
int mosaic_first_way(void);
int mosaic_end_way(void);

/* Asserts that it runs; a twin's results go where the kernel's would. */
void mosaic_run_way(int way, const lg_buf *body, const mosaic_array *fetch, mosaic_array *win,
                    const lg_mosaic_kernel *k, twin_fn twin, const void *g);

/* Asserts that n floats are within tol of what is wanted. */
void mosaic_near(const char *what, const float *got, const float *want, size_t n, float tol);

/* Run cases by the kernel's text; by its twin, skipped where there is no plugin. */
void mosaic_text(void (*all)(void));
void mosaic_twin(void (*all)(void));

/* Of a group of tests. */
int mosaic_start(void **state);
int mosaic_finish(void **state);

#endif
