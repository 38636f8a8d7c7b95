/* kv.c - sizes of the pages of keys and values: see kern.h.  Thread: any.  Test: tests/unit/test_kern.c */
#include "kern/kern.h"

#include <string.h>

bool lg_kv_has(lg_dtype type) {
    return type == LG_F32 || type == LG_BF16 || type == LG_F16 || type == LG_Q8_0;
}

lg_dtype lg_kv_of(lg_kv_type kv) {
    switch (kv) {
    case LG_KV_F32: return LG_F32;
    case LG_KV_BF16: return LG_BF16;
    case LG_KV_DEFAULT:
    case LG_KV_F16: return LG_F16;
    case LG_KV_Q8_0: return LG_Q8_0;
    }
    return LG_N_DTYPE;
}

size_t lg_kv_bytes(lg_dtype type, uint32_t d) {
    LG_ASSERT(lg_kv_has(type));
    size_t n = (size_t)d * LG_PAGE_TOK;
    if (type == LG_Q8_0) return 2 * (n + lg_kv_n_scale(d) * sizeof(uint16_t));
    return 2 * n * lg_dtype_bytes(type);
}

void lg_kv_copy(lg_dtype type, uint32_t d, uint32_t n_tok, const void *from, void *to) {
    LG_ASSERT(n_tok <= LG_PAGE_TOK);
    size_t width = type == LG_Q8_0 ? 1 : lg_dtype_bytes(type), row = LG_PAGE_TOK * width;
    lg_kv_part a = lg_kv_at(type, d, from), b = lg_kv_at(type, d, to);
    memset(to, 0, lg_kv_bytes(type, d));
    for (size_t i = 0; i < d; i++) memcpy(b.key + i * row, a.key + i * row, n_tok * width);
    memcpy(b.value, a.value, n_tok * d * width);
    if (type != LG_Q8_0) return;
    for (size_t s = 0; s < lg_kv_n_scale(d); s += LG_PAGE_TOK) {
        memcpy(b.key_scale + s, a.key_scale + s, n_tok * sizeof *a.key_scale);
        memcpy(b.value_scale + s, a.value_scale + s, n_tok * sizeof *a.value_scale);
    }
}
