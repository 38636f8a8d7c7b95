/* qsplit.c - a block as integers and two floats: what qgemm multiplies.  Contract: kern/dequant.h.
 *
 * Formats: ref/dequant.c, ref/dequant_k.c and ref/dequant_hf.c.  Thread: any.  Memory: none.  Test: tests/unit/test_qgemm.c */
#include "kern/dequant.h"

#include "base/num.h"

static float f16_at(const uint8_t *p) {
    return lg_num_f16(lg_num_load16(p));
}

static int low4(const uint8_t *q, int i) {
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static void split_small(lg_dtype type, const uint8_t *b, lg_qsplit *s) {
    uint32_t high = type == LG_Q5_1 ? lg_num_load32(b + 4) : lg_num_load32(b + 2);
    for (int i = 0; i < 32; i++) {
        int v = 0, fifth = (int)(high >> i & 1) << 4;
        if (type == LG_Q4_0) v = low4(b + 2, i) - 8;
        if (type == LG_Q4_1) v = low4(b + 4, i);
        if (type == LG_Q5_0) v = (low4(b + 6, i) | fifth) - 16;
        if (type == LG_Q5_1) v = low4(b + 8, i) | fifth;
        if (type == LG_Q8_0) v = (int8_t)b[2 + i];
        if (type == LG_IQ4_NL) v = lg_dequant_iq4[low4(b + 2, i)];
        if (type == LG_MXFP4) v = lg_dequant_e2m1[low4(b + 1, i)];
        s->i[i] = (int16_t)v;
    }
    if (type == LG_MXFP4) {
        uint32_t e = b[0];
        s->d = lg_num_float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    } else {
        s->d = f16_at(b);
    }
    if (type == LG_Q4_1 || type == LG_Q5_1) {
        s->m = f16_at(b + 2);
        s->j[0] = s->j[1] = -1;
    }
}

/* d (q - zero) or d q: see ref/dequant_hf.c. */
static void split_hf(lg_dtype type, const uint8_t *b, lg_qsplit *s) {
    s->d = lg_num_float_of_bits(lg_num_load32(b));
    if (type == LG_I8_128) {
        for (int k = 0; k < 128; k++) s->i[k] = (int8_t)b[4 + k];
        return;
    }
    int n = type == LG_I4_32 ? 32 : 128;
    for (int k = 0; k < n; k++) s->i[k] = (int16_t)(low4(b + 5 + k / 32 * 16, k % 32) - b[4]);
}

static void split_q2(const uint8_t *b, lg_qsplit *s) {
    s->d = f16_at(b + 80);
    s->m = f16_at(b + 82);
    for (int k = 0; k < 256; k++) {
        int q = b[16 + k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3;
        s->i[k] = (int16_t)(q * (b[k / 16] & 15));
        s->j[k / 16] = (int16_t)(b[k / 16] >> 4);
    }
}

static int scale_q3(const uint8_t *s, int run) {
    int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4;
    return (low | (s[8 + run % 4] >> (run / 4 * 2) & 3) << 4) - 32;
}

static void split_q3(const uint8_t *b, lg_qsplit *s) {
    s->d = f16_at(b + 108);
    for (int k = 0; k < 256; k++) {
        int low = b[32 + k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3;
        int high = b[k % 32] >> k / 32 & 1;
        s->i[k] = (int16_t)((low - (high ? 0 : 4)) * scale_q3(b + 96, k / 16));
    }
}

static void split_q4_q5(lg_dtype type, const uint8_t *b, lg_qsplit *s) {
    const uint8_t *sm = b + 4, *q = b + (type == LG_Q5_K ? 48 : 16);
    s->d = f16_at(b);
    s->m = f16_at(b + 2);
    for (int run = 0; run < 8; run++) {
        int scale = run < 4 ? sm[run] & 63 : (sm[run + 4] & 15) | (sm[run - 4] >> 6) << 4;
        int min = run < 4 ? sm[run + 4] & 63 : sm[run + 4] >> 4 | (sm[run] >> 6) << 4;
        s->j[2 * run] = s->j[2 * run + 1] = (int16_t)min;
        for (int i = 0; i < 32; i++) {
            int v = q[run / 2 * 32 + i] >> run % 2 * 4 & 15;
            if (type == LG_Q5_K) v |= (b[16 + i] >> run & 1) << 4;
            s->i[run * 32 + i] = (int16_t)(v * scale);
        }
    }
}

static void split_q6(const uint8_t *b, lg_qsplit *s) {
    s->d = f16_at(b + 208);
    for (int k = 0; k < 256; k++) {
        int half = k / 128, at = k % 128;
        int low = b[half * 64 + at % 64] >> at / 64 * 4 & 15;
        int high = b[128 + half * 32 + at % 32] >> at / 32 * 2 & 3;
        s->i[k] = (int16_t)(((low | high << 4) - 32) * (int8_t)b[192 + k / 16]);
    }
}

static void split_iq4_xs(const uint8_t *b, lg_qsplit *s) {
    unsigned high = lg_num_load16(b + 2);
    s->d = f16_at(b);
    for (int k = 0; k < 256; k++) {
        int run = k / 32;
        int scale = (b[4 + run / 2] >> run % 2 * 4 & 15) | (int)(high >> 2 * run & 3) << 4;
        s->i[k] = (int16_t)(lg_dequant_iq4[low4(b + 8 + run * 16, k % 32)] * (scale - 32));
    }
}

void lg_qsplit_block(lg_dtype type, const uint8_t *block, lg_qsplit *s) {
    *s = (lg_qsplit){0};
    switch (type) {
    case LG_Q2_K: split_q2(block, s); break;
    case LG_Q3_K: split_q3(block, s); break;
    case LG_Q4_K:
    case LG_Q5_K: split_q4_q5(type, block, s); break;
    case LG_Q6_K: split_q6(block, s); break;
    case LG_IQ4_XS: split_iq4_xs(block, s); break;
    case LG_I4_32:
    case LG_I4_128:
    case LG_I8_128: split_hf(type, block, s); break;
    default: split_small(type, block, s); break;
    }
}

bool lg_qsplit_has_min(lg_dtype type) {
    return type == LG_Q4_1 || type == LG_Q5_1 || type == LG_Q2_K || type == LG_Q4_K ||
           type == LG_Q5_K;
}
