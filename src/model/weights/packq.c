/* packq.c - matrices that a folder keeps as integers or four-bit floats with scales, into panels.
 *
 * In:  a job with its lg_qsrc.   Out: groups of 16 blocks (kern/qlayout.h), or bare codes and the tables of LG_I*_ANY.
 * A piece of 16 channels is first read as one code a byte, whatever the file's order, then written as the type wants it.
 * No value is changed: scales keep their bits or become a float that equals them.
 * Thread: any; a panel belongs to one call.  Memory: stack.  Test: tests/unit/test_quant.c */
#include "model/weights/weights_map.h"

#include "base/num.h"
#include "kern/qlayout.h"

#include <string.h>

#define PIECE 128 /* input channels at a time, the longest block */

/* The place in a word of AWQ of each of its eight channels. */
static const uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* ---- reading ---- */

static uint32_t word_at(const uint8_t *words, size_t i) {
    return lg_num_load32(words + 4 * i);
}

static uint8_t field_of(uint32_t word, uint32_t place, uint32_t bits) {
    return (uint8_t)(word >> place * bits & ((1u << bits) - 1));
}

/* Rows of words, an input channel's place in its word being the same for all output channels. */
static void read_gptq(const lg_weights_job *j, uint32_t c0, uint32_t n_ch, uint32_t k0,
                      uint32_t n_k, uint8_t (*to)[LG_NR]) {
    uint32_t bits = j->q.bits, per = 32u / bits;
    for (uint32_t i = 0; i < n_k; i++) {
        const uint8_t *words = j->q.code + 4 * ((size_t)((k0 + i) / per) * j->n_out + c0);
        for (uint32_t c = 0; c < n_ch; c++)
            to[i][c] = field_of(word_at(words, c), (k0 + i) % per, bits);
    }
}

/* c0 is a multiple of 16, so a word begins there. */
static void read_awq(const lg_weights_job *j, uint32_t c0, uint32_t n_ch, uint32_t k0,
                     uint32_t n_k, uint8_t (*to)[LG_NR]) {
    for (uint32_t i = 0; i < n_k; i++) {
        const uint8_t *words = j->q.code + 4 * ((size_t)(k0 + i) * (j->n_out / 8) + c0 / 8);
        for (uint32_t c = 0; c < n_ch; c++)
            to[i][c] = field_of(word_at(words, c / 8), awq_place[c % 8], 4);
    }
}

static void read_rows(const lg_weights_job *j, uint32_t c0, uint32_t n_ch, uint32_t k0,
                      uint32_t n_k, uint8_t (*to)[LG_NR]) {
    const lg_qsrc *q = &j->q;
    for (uint32_t c = 0; c < n_ch; c++) {
        const uint8_t *row = q->code + (size_t)(c0 + c) * j->n_in * q->bits / 8;
        for (uint32_t i = 0; i < n_k; i++) {
            size_t k = k0 + i;
            to[i][c] = q->bits == 4 ? row[k / 2] >> k % 2 * 4 & 15 : row[k] ^ q->flip;
        }
    }
}

/* Codes of channels [c0, c0 + n_ch) and input channels [k0, k0 + n_k); the other channels become 0. */
static void read_codes(const lg_weights_job *j, uint32_t c0, uint32_t n_ch, uint32_t k0,
                       uint32_t n_k, uint8_t (*to)[LG_NR]) {
    if (n_ch < LG_NR) memset(to, 0, (size_t)n_k * LG_NR);
    if (j->q.order == LG_CODES_GPTQ)
        read_gptq(j, c0, n_ch, k0, n_k, to);
    else if (j->q.order == LG_CODES_AWQ)
        read_awq(j, c0, n_ch, k0, n_k, to);
    else
        read_rows(j, c0, n_ch, k0, n_k, to);
}

static size_t scale_index(const lg_qsrc *q, uint32_t n_out, uint32_t c, uint32_t g) {
    if (q->n_scale == 1) return 0;
    return q->scale_by_out ? (size_t)c * q->n_group + g : (size_t)g * n_out + c;
}

float lg_packq_scale(const lg_qsrc *q, uint32_t n_out, uint32_t c, uint32_t g) {
    size_t i = scale_index(q, n_out, c, g);
    switch (q->scale_type) {
    case LG_F32: return lg_num_float_of_bits(lg_num_load32(q->scale + 4 * i));
    case LG_BF16: return lg_num_bf16(lg_num_load16(q->scale + 2 * i));
    case LG_F16: return lg_num_f16(lg_num_load16(q->scale + 2 * i));
    case LG_E4M3: return lg_num_e4m3(q->scale[i]);
    default: break;
    }
    uint32_t e = q->scale[i];
    return e == 255 ? lg_num_float_of_bits(0x7fc00000u)
           : e      ? lg_num_float_of_bits(e << 23)
                    : 0x1p-127f;
}

uint8_t lg_packq_zero(const lg_qsrc *q, uint32_t n_out, uint32_t c, uint32_t g) {
    uint32_t per = 32u / q->bits, place = c % per, word;
    switch (q->zeros) {
    case LG_ZERO_GPTQ: word = word_at(q->zero, (size_t)g * (n_out / per) + c / per); break;
    case LG_ZERO_AWQ:
        word = word_at(q->zero, (size_t)g * (n_out / 8) + c / 8);
        place = awq_place[c % 8];
        break;
    case LG_ZERO_OUT: word = word_at(q->zero, (size_t)(c / per) * q->n_group + g); break;
    case LG_ZERO_BYTES: return q->zero[(size_t)c * q->n_group + g] ^ 128u;
    default: return q->zero_const;
    }
    if (q->zero_less_one) word += q->bits == 4 ? 0x11111111u : 0x01010101u;
    return field_of(word, place, q->bits);
}

/* ---- writing ---- */

/* 32 codes of one channel as 16 bytes, 16 as eight: the first half low. */
static void put_halves(const uint8_t *code, uint32_t n, uint8_t *to) {
    for (uint32_t i = 0; i < n / 2; i++) to[i] = (uint8_t)(code[i] | code[i + n / 2] << 4);
}

/* One block of channel c, whose codes are given. */
static void put_block(const lg_weights_job *j, uint32_t c, uint32_t g, const uint8_t *code,
                      uint8_t *b) {
    const lg_qsrc *q = &j->q;
    float d = lg_packq_scale(q, j->n_out, c, g);
    size_t at = scale_index(q, j->n_out, c, g);
    switch (j->type) {
    case LG_Q4_0:
        memcpy(b, q->scale + 2 * at, 2);
        put_halves(code, 32, b + 2);
        break;
    case LG_MXFP4:
        b[0] = q->scale[at];
        put_halves(code, 32, b + 1);
        break;
    case LG_NVFP4:
        b[0] = q->scale[at];
        put_halves(code, 16, b + 1);
        break;
    case LG_I8_128:
        memcpy(b, &d, 4);
        for (int i = 0; i < 128; i++) b[4 + i] = code[i] ^ 128u;
        break;
    default: /* LG_I4_32, LG_I4_128 */
        memcpy(b, &d, 4);
        b[4] = lg_packq_zero(q, j->n_out, c, g);
        for (uint32_t i = 0; i < lg_dtype_block(j->type) / 32; i++)
            put_halves(code + 32 * i, 32, b + 5 + 16 * i);
        break;
    }
}

static void pack_blocks(const lg_weights_job *j, uint32_t panel, uint32_t n_ch, uint8_t *to) {
    uint32_t n = lg_dtype_block(j->type), c0 = panel * LG_NR;
    size_t bytes = lg_dtype_block_bytes(j->type);
    for (uint32_t k = 0; k < j->n_in; k += n, to += LG_NR * bytes) {
        uint8_t code[PIECE][LG_NR], row[PIECE], block[LG_NR][LG_MAX_BLOCK_BYTES];
        read_codes(j, c0, n_ch, k, n, code);
        for (uint32_t c = 0; c < n_ch; c++) {
            for (uint32_t i = 0; i < n; i++) row[i] = code[i][c];
            put_block(j, c0 + c, k / j->q.group, row, block[c]);
        }
        lg_qlayout_pack(j->type, block[0], sizeof block[0], n_ch, to);
    }
}

/* Bare codes and the panel's part of the tables. */
static void pack_any(const lg_weights_job *j, uint32_t panel, uint32_t n_ch, uint8_t *to) {
    const lg_qsrc *q = &j->q;
    uint32_t c0 = panel * LG_NR;
    size_t table = (size_t)panel * q->n_group * LG_NR;
    for (uint32_t k = 0; k < j->n_in; k += PIECE) {
        uint8_t code[PIECE][LG_NR];
        uint32_t n = j->n_in - k < PIECE ? j->n_in - k : PIECE;
        read_codes(j, c0, n_ch, k, n, code);
        for (uint32_t i = 0; i < n; i++, to += q->bits * 2)
            for (uint32_t c = 0; c < q->bits * 2u; c++)
                to[c] = q->bits == 8 ? code[i][c] : (uint8_t)(code[i][c] | code[i][c + 8] << 4);
    }
    for (uint32_t g = 0; g < q->n_group; g++, table += LG_NR)
        for (uint32_t c = 0; c < LG_NR; c++) {
            bool in = c < n_ch;
            j->scale[table + c] = in ? lg_packq_scale(q, j->n_out, c0 + c, g) : 0.0f;
            j->zero[table + c] = in ? lg_packq_zero(q, j->n_out, c0 + c, g) : 0;
        }
}

void lg_packq_panels(const lg_weights_job *j, uint32_t panel0, uint32_t n_panel) {
    for (uint32_t p = panel0; p < panel0 + n_panel; p++) {
        uint32_t left = j->n_out - p * LG_NR, n_ch = left < LG_NR ? left : LG_NR;
        uint8_t *to = (uint8_t *)j->dst + p * lg_dtype_panel_bytes(j->type, j->n_in);
        if (j->scale)
            pack_any(j, p, n_ch, to);
        else
            pack_blocks(j, p, n_ch, to);
    }
}
