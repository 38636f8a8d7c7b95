/* kern_data.h - inputs for the kernel tests: random floats in buffers that end at a guard page, random packed matrices. */
#ifndef LG_TESTS_KERN_DATA_H
#define LG_TESTS_KERN_DATA_H

#include "base/base.h"
#include "kern/kern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define N_GUARDED 256

static struct {
    void *at;
    size_t len_bytes;
} guarded_map[N_GUARDED];
static int n_guarded;

/* Memory whose last byte is followed by a page that traps.  Freed by guarded_free. */
static inline void *guarded(size_t n_bytes) {
    const size_t page = 4096;
    size_t body = (n_bytes + page - 1) / page * page, len = body + page;
    LG_ASSERT(n_guarded < N_GUARDED);
    uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LG_ASSERT(at != MAP_FAILED);
    LG_ASSERT(mprotect(at + body, page, PROT_NONE) == 0);
    guarded_map[n_guarded].at = at;
    guarded_map[n_guarded++].len_bytes = len;
    return at + body - n_bytes;
}

static inline void guarded_free(void) {
    while (n_guarded > 0) {
        n_guarded--;
        munmap(guarded_map[n_guarded].at, guarded_map[n_guarded].len_bytes);
    }
}

#define MAX_LEVEL 8

/* The levels that run here, lowest first, with or without ref; the others are said to be skipped.  Returns their number. */
static inline size_t find_levels(bool with_ref, const lg_kern *level[MAX_LEVEL]) {
    size_t n = 0;
    for (int i = with_ref ? 0 : 1; lg_kern_names[i]; i++) {
        const lg_kern *k = lg_kern_level(lg_kern_names[i]);
        if (!k)
            printf("  skipped: level %s (not in this build or processor)\n", lg_kern_names[i]);
        if (k) {
            LG_ASSERT(n < MAX_LEVEL);
            level[n++] = k;
        }
    }
    return n;
}

static uint64_t random_draw;

/* Uniform in [lo, hi). */
static inline float random_in(float lo, float hi) {
    return lo + (hi - lo) * lg_num_rng_unit(7, 0, random_draw++, 0);
}

static inline float *random_floats(size_t n, float lo, float hi) {
    float *x = guarded(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_in(lo, hi);
    return x;
}

static inline float *same_floats(const float *x, size_t n) {
    float *y = guarded(n * sizeof *y);
    if (n) memcpy(y, x, n * sizeof *y);
    return y;
}

static inline float *filled_floats(size_t n, float value) {
    float *y = guarded(n * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = value;
    return y;
}

/* Element i of packed memory of `type`, without the scale of LG_E4M3. */
static inline float packed_at(lg_dtype type, const void *panel, size_t i) {
    switch (type) {
    case LG_F32: return ((const float *)panel)[i];
    case LG_BF16: return lg_num_bf16(((const uint16_t *)panel)[i]);
    case LG_F16: return lg_num_f16(((const uint16_t *)panel)[i]);
    default: return lg_num_e4m3(((const uint8_t *)panel)[i]);
    }
}

/* Weight [c][k] of a packed matrix, in double. */
static inline double weight_at(const lg_mat *w, uint32_t c, uint32_t k) {
    size_t i = ((size_t)(c / LG_NR) * w->n_in + k) * LG_NR + c % LG_NR;
    double v = (double)packed_at(w->type, w->panel, i);
    if (w->type != LG_E4M3) return v;
    if (w->scale_row) {
        size_t group = (size_t)(c / LG_NR) * w->n_group + k / (w->n_in / w->n_group);
        return v * (double)w->scale[group * LG_NR + c % LG_NR];
    }
    return v * (double)w->scale[(size_t)(c / 128) * ((w->n_in + 127) / 128) + k / 128];
}

/* A random matrix with weights of about [-1, 1) (f16 with subnormals among them, E4M3 with every code but NaN); channels
 * past n_out are zero. */
static inline lg_mat random_mat(lg_dtype type, uint32_t n_out, uint32_t n_in) {
    lg_mat w = {.type = type, .n_out = n_out, .n_in = n_in};
    size_t n = (size_t)lg_mat_n_panel(&w) * n_in * LG_NR, bytes = lg_dtype_bytes(type);
    uint8_t *p = guarded(n * bytes);
    for (size_t i = 0; i < n; i++) {
        size_t c = i / (n_in * (size_t)LG_NR) * LG_NR + i % LG_NR;
        float v = c < n_out ? random_in(-1, 1) : 0.0f;
        uint64_t r = lg_num_rng(9, 0, i, 1);
        uint16_t h = lg_num_to_bf16(v);
        if (type == LG_F16) h = (uint16_t)((r & 0x8000u) | (r >> 16) % 0x3c00u);
        uint8_t e = (uint8_t)((r & 0x80u) | (r >> 8) % 0x7fu);
        if (c >= n_out) h = 0, e = 0;
        if (type == LG_F32) memcpy(p + 4 * i, &v, 4);
        if (type == LG_BF16 || type == LG_F16) memcpy(p + 2 * i, &h, 2);
        if (type == LG_E4M3) p[i] = e;
    }
    w.panel = p;
    w.scale_row = type == LG_E4M3 && n_out % 2; /* all kinds of scales get their turn */
    if (w.scale_row) w.n_group = (uint16_t)(n_in && n_in % 128 == 0 ? n_in / 128 : 1);
    size_t n_scale = w.scale_row ? (size_t)lg_mat_n_panel(&w) * LG_NR * w.n_group
                                 : (size_t)((n_out + 127) / 128) * ((n_in + 127) / 128);
    if (type == LG_E4M3) w.scale = random_floats(n_scale, 1e-3f, 4e-3f);
    return w;
}

#endif
