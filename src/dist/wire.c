/* wire.c - see wire.h.
 *
 * Plain loops over a row; the last word of a row is filled with zeros.  Thread: any.  Memory: none.  Test: tests/unit/test_wire.c */
#include "dist/wire.h"

#include "base/diag.h"
#include "base/num.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define TINY 1e-30f /* below this a row is zero: 127 / x would not be finite */

const char *lg_wire_name(lg_wire w) {
    static const char *const name[] = {"f32", "bf16", "q8"};
    LG_ASSERT((unsigned)w < LG_N_WIRE);
    return name[w];
}

size_t lg_wire_words(lg_wire w, uint32_t n) {
    if (w == LG_WIRE_BF16) return ((size_t)n + 1) / 2;
    if (w == LG_WIRE_Q8) return 1 + ((size_t)n + 3) / 4;
    return n;
}

static void put_bf16(const float *x, uint32_t n, uint32_t *to) {
    uint16_t *h = (uint16_t *)(void *)to;
    for (uint32_t i = 0; i < n; i++) h[i] = lg_num_to_bf16(x[i]);
    if (n % 2) h[n] = 0;
}

static void put_q8(const float *x, uint32_t n, uint32_t *to) {
    int8_t *q = (int8_t *)(void *)(to + 1);
    float most = 0, scale;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        finite &= a <= FLT_MAX;
        most = a > most ? a : most;
    }
    scale = !finite ? NAN : most < TINY ? 0.0f : most / 127.0f;
    float inv = finite && most >= TINY ? 127.0f / most : 0.0f;
    memcpy(to, &scale, sizeof scale);
    memset(to + 1 + n / 4, 0, n % 4 ? sizeof *to : 0);
    for (uint32_t i = 0; i < n; i++) {
        float v = finite ? x[i] * inv : 0.0f;
        q[i] = (int8_t)(int)(v + (v < 0 ? -0.5f : 0.5f));
    }
}

void lg_wire_put(lg_wire w, const float *x, uint32_t n_row, uint32_t n, uint32_t *to) {
    size_t words = lg_wire_words(w, n);
    for (uint32_t r = 0; r < n_row; r++, x += n, to += words) {
        if (w == LG_WIRE_F32) memcpy(to, x, n * sizeof *x);
        if (w == LG_WIRE_BF16) put_bf16(x, n, to);
        if (w == LG_WIRE_Q8) put_q8(x, n, to);
    }
}

void lg_wire_get(lg_wire w, const uint32_t *from, uint32_t n_row, uint32_t n, float *y) {
    size_t words = lg_wire_words(w, n);
    for (uint32_t r = 0; r < n_row; r++, y += n, from += words) {
        const uint16_t *h = (const uint16_t *)(const void *)from;
        const int8_t *q = (const int8_t *)(const void *)(from + 1);
        float scale;
        memcpy(&scale, from, sizeof scale);
        if (w == LG_WIRE_F32) memcpy(y, from, n * sizeof *y);
        for (uint32_t i = 0; w == LG_WIRE_BF16 && i < n; i++) y[i] = lg_num_bf16(h[i]);
        for (uint32_t i = 0; w == LG_WIRE_Q8 && i < n; i++) y[i] = scale * (float)q[i];
    }
}

void lg_wire_add(lg_wire w, const uint32_t *from, uint32_t n_row, uint32_t n, float *y) {
    size_t words = lg_wire_words(w, n);
    for (uint32_t r = 0; r < n_row; r++, y += n, from += words) {
        const float *x = (const float *)(const void *)from;
        const uint16_t *h = (const uint16_t *)(const void *)from;
        const int8_t *q = (const int8_t *)(const void *)(from + 1);
        float scale = n ? x[0] : 0;
        for (uint32_t i = 0; w == LG_WIRE_F32 && i < n; i++) y[i] += x[i];
        for (uint32_t i = 0; w == LG_WIRE_BF16 && i < n; i++) y[i] += lg_num_bf16(h[i]);
        for (uint32_t i = 0; w == LG_WIRE_Q8 && i < n; i++) y[i] += scale * (float)q[i];
    }
}
