/* synth_gguf.c - a GGUF file with random weights at the shapes of the family's real models, for measurements beside other
 * engines: its text means nothing.
 *
 * usage: synth_gguf OUT [--shape 35b|122b|397b] [--layers N] [--vocab N] [--type Q4_K]
 *
 * Matrices are runs of blocks from a pool that was quantised once from normal numbers, so every type that `lignum quantize`
 * writes can be made, and a file of many gigabytes as fast as the disk takes it.  Embedding and head: Q6_K where the
 * matrices have fewer bits, else as these. */
#include "base/base.h"
#include "kern/quantize.h"
#include "model/file/gguf_write.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define D_HEAD     256
#define N_KEY_HEAD 16
#define D_STATE    128
#define N_POOL     (1u << 20) /* numbers that are quantised */
#define DEVIATION  0.02
#define ARCH       "qwen35moe."

typedef struct shape {
    const char *name;
    uint32_t hidden, n_head, n_kv, n_expert, n_used, wide, n_v_head, n_layer;
} shape;

static const shape shapes[] = {{"35b", 2048, 16, 2, 256, 8, 512, 32, 40},
                               {"122b", 3072, 32, 2, 256, 8, 1024, 64, 48},
                               {"397b", 4096, 32, 2, 512, 10, 1024, 64, 60}};

/* What a tensor holds. */
typedef enum { RANDOM, ONES, DECAY } fill;

typedef struct tensor {
    char name[48];
    uint64_t n; /* elements */
    lg_dtype type;
    fill fill;
} tensor;

typedef struct synth {
    const shape *s;
    uint32_t n_layer, n_vocab;
    lg_dtype type, head_type;
    lg_gguf_write *w;
    tensor *tensor;
    size_t n_tensor, n_room;
    float *number; /* [N_POOL] */
    uint8_t *pool[LG_N_DTYPE];
    uint64_t draw;
} synth;

static double unit(synth *y) {
    return ((double)(lg_num_rng(1, 0, y->draw++, 0) >> 11) + 0.5) * 0x1p-53;
}

/* ---- the list of tensors ---- */

static void add(synth *y, int layer, const char *name, uint64_t d0, uint64_t d1, uint64_t d2,
                lg_dtype type, fill f) {
    const uint64_t dim[3] = {d0, d1, d2};
    LG_ASSERT(y->n_tensor < y->n_room);
    tensor *t = &y->tensor[y->n_tensor++];
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    t->n = d0 * d1 * d2;
    t->type = type;
    t->fill = f;
    lg_gguf_write_tensor(y->w, t->name, type, d2 > 1 ? 3 : d1 > 1 ? 2 : 1, dim);
}

static void add_attention(synth *y, int i) {
    const shape *s = y->s;
    const lg_dtype q = y->type;
    add(y, i, "attn_q.weight", s->hidden, D_HEAD * s->n_head * 2, 1, q, RANDOM);
    add(y, i, "attn_k.weight", s->hidden, D_HEAD * s->n_kv, 1, q, RANDOM);
    add(y, i, "attn_v.weight", s->hidden, D_HEAD * s->n_kv, 1, q, RANDOM);
    add(y, i, "attn_output.weight", D_HEAD * s->n_head, s->hidden, 1, q, RANDOM);
    add(y, i, "attn_q_norm.weight", D_HEAD, 1, 1, LG_F32, ONES);
    add(y, i, "attn_k_norm.weight", D_HEAD, 1, 1, LG_F32, ONES);
}

static void add_gdn(synth *y, int i) {
    const shape *s = y->s;
    const uint32_t n_value = s->n_v_head * D_STATE, n_qkv = 2 * N_KEY_HEAD * D_STATE + n_value;
    add(y, i, "attn_qkv.weight", s->hidden, n_qkv, 1, y->type, RANDOM);
    add(y, i, "attn_gate.weight", s->hidden, n_value, 1, y->type, RANDOM);
    add(y, i, "ssm_conv1d.weight", LG_CONV_K, n_qkv, 1, LG_F32, RANDOM);
    add(y, i, "ssm_dt.bias", s->n_v_head, 1, 1, LG_F32, ONES);
    add(y, i, "ssm_a", s->n_v_head, 1, 1, LG_F32, DECAY);
    add(y, i, "ssm_beta.weight", s->hidden, s->n_v_head, 1, LG_F32, RANDOM);
    add(y, i, "ssm_alpha.weight", s->hidden, s->n_v_head, 1, LG_F32, RANDOM);
    add(y, i, "ssm_norm.weight", D_STATE, 1, 1, LG_F32, ONES);
    add(y, i, "ssm_out.weight", n_value, s->hidden, 1, y->type, RANDOM);
}

static void add_experts(synth *y, int i) {
    const shape *s = y->s;
    const lg_dtype q = y->type;
    add(y, i, "ffn_gate_inp.weight", s->hidden, s->n_expert, 1, LG_F32, RANDOM);
    add(y, i, "ffn_gate_exps.weight", s->hidden, s->wide, s->n_expert, q, RANDOM);
    add(y, i, "ffn_up_exps.weight", s->hidden, s->wide, s->n_expert, q, RANDOM);
    add(y, i, "ffn_down_exps.weight", s->wide, s->hidden, s->n_expert, q, RANDOM);
    add(y, i, "ffn_gate_inp_shexp.weight", s->hidden, 1, 1, LG_F32, RANDOM);
    add(y, i, "ffn_gate_shexp.weight", s->hidden, s->wide, 1, q, RANDOM);
    add(y, i, "ffn_up_shexp.weight", s->hidden, s->wide, 1, q, RANDOM);
    add(y, i, "ffn_down_shexp.weight", s->wide, s->hidden, 1, q, RANDOM);
}

static void add_all(synth *y) {
    const uint32_t hidden = y->s->hidden;
    add(y, -1, "token_embd.weight", hidden, y->n_vocab, 1, y->head_type, RANDOM);
    add(y, -1, "output_norm.weight", hidden, 1, 1, LG_F32, ONES);
    add(y, -1, "output.weight", hidden, y->n_vocab, 1, y->head_type, RANDOM);
    for (int i = 0; i < (int)y->n_layer; i++) {
        add(y, i, "attn_norm.weight", hidden, 1, 1, LG_F32, ONES);
        add(y, i, "post_attention_norm.weight", hidden, 1, 1, LG_F32, ONES);
        if ((i + 1) % 4 == 0)
            add_attention(y, i);
        else
            add_gdn(y, i);
        add_experts(y, i);
    }
}

/* ---- keys ---- */

static void text(synth *y, const char *key, const char *s) {
    lg_gguf_write_text(y->w, key, s, strlen(s));
}

static void put_architecture(synth *y) {
    const shape *s = y->s;
    const struct {
        const char *key;
        uint32_t v;
    } number[] = {{ARCH "block_count", y->n_layer},
                  {ARCH "context_length", 262144},
                  {ARCH "embedding_length", s->hidden},
                  {ARCH "feed_forward_length", s->wide},
                  {ARCH "attention.head_count", s->n_head},
                  {ARCH "attention.head_count_kv", s->n_kv},
                  {ARCH "attention.key_length", D_HEAD},
                  {ARCH "attention.value_length", D_HEAD},
                  {ARCH "rope.dimension_count", 64},
                  {ARCH "expert_count", s->n_expert},
                  {ARCH "expert_used_count", s->n_used},
                  {ARCH "expert_feed_forward_length", s->wide},
                  {ARCH "expert_shared_feed_forward_length", s->wide},
                  {ARCH "ssm.conv_kernel", LG_CONV_K},
                  {ARCH "ssm.inner_size", s->n_v_head * D_STATE},
                  {ARCH "ssm.state_size", D_STATE},
                  {ARCH "ssm.time_step_rank", s->n_v_head},
                  {ARCH "ssm.group_count", N_KEY_HEAD},
                  {ARCH "full_attention_interval", 4}};
    const int32_t section[4] = {11, 11, 10, 0};
    char name[64];
    snprintf(name, sizeof name, "synthetic %s, %u layers", s->name, y->n_layer);
    text(y, "general.architecture", "qwen35moe");
    text(y, "general.name", name);
    for (size_t i = 0; i < LG_COUNT(number); i++)
        lg_gguf_write_u32(y->w, number[i].key, number[i].v);
    lg_gguf_write_f32(y->w, ARCH "attention.layer_norm_rms_epsilon", 1e-6f);
    lg_gguf_write_f32(y->w, ARCH "rope.freq_base", 1e7f);
    lg_gguf_write_array(y->w, ARCH "rope.dimension_sections", LG_GGUF_I32, 4, section,
                        sizeof section);
}

#define CONTROL 3 /* of token_type */

/* The 256 bytes as byte-level tokens, one pair of them, names for the rest, and at the end the two marks of messages. */
static void put_tokenizer(synth *y) {
    lg_buf token = {0}, merge = {0}, letter = {0};
    uint32_t n_other = 0;
    char s[32];
    for (int b = 0; b < 256; b++) {
        bool shown = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        uint32_t code = shown ? (uint32_t)b : 256 + n_other++;
        lg_buf_clear(&letter);
        lg_utf8_put(&letter, code);
        lg_gguf_write_put_text(&token, letter.data, letter.len_bytes);
    }
    lg_gguf_write_put_text(&token, "ab", 2);
    for (uint32_t i = 257; i < y->n_vocab - 3; i++)
        lg_gguf_write_put_text(&token, s, (size_t)snprintf(s, sizeof s, "<t%u>", i));
    lg_gguf_write_put_text(&token, "<|im_start|>", 12);
    lg_gguf_write_put_text(&token, "<|endoftext|>", 13);
    lg_gguf_write_put_text(&token, "<|im_end|>", 10);
    lg_gguf_write_put_text(&merge, "a b", 3);
    int32_t *kind = lg_mem_alloc(y->n_vocab * sizeof *kind);
    LG_ASSERT(kind && !token.failed && !merge.failed);
    for (uint32_t i = 0; i < y->n_vocab; i++) kind[i] = i + 3 < y->n_vocab ? 1 : CONTROL;
    text(y, "tokenizer.ggml.model", "gpt2");
    text(y, "tokenizer.ggml.pre", "qwen35");
    lg_gguf_write_array(y->w, "tokenizer.ggml.tokens", LG_GGUF_STR, y->n_vocab, token.data,
                        token.len_bytes);
    lg_gguf_write_array(y->w, "tokenizer.ggml.token_type", LG_GGUF_I32, y->n_vocab, kind,
                        y->n_vocab * sizeof *kind);
    lg_gguf_write_array(y->w, "tokenizer.ggml.merges", LG_GGUF_STR, 1, merge.data,
                        merge.len_bytes);
    lg_gguf_write_u32(y->w, "tokenizer.ggml.eos_token_id", y->n_vocab - 1);
    lg_gguf_write_u32(y->w, "tokenizer.ggml.bos_token_id", y->n_vocab - 2);
    lg_mem_free(kind);
    lg_buf_fini(&letter);
    lg_buf_fini(&token);
    lg_buf_fini(&merge);
}

/* ---- data ---- */

static size_t row_bytes(lg_dtype type, uint64_t n) {
    if (!lg_dtype_is_block(type)) return n * lg_dtype_bytes(type);
    return n / lg_dtype_block(type) * lg_dtype_block_bytes(type);
}

/* The pool of a type, made when it is first asked for. */
static const uint8_t *pool(synth *y, lg_dtype type) {
    if (type == LG_F32) return (const uint8_t *)y->number;
    if (y->pool[type]) return y->pool[type];
    y->pool[type] = lg_mem_alloc(row_bytes(type, N_POOL));
    LG_ASSERT(y->pool[type]);
    lg_quantize_row(type, y->number, N_POOL, NULL, y->pool[type]);
    return y->pool[type];
}

/* Runs of 64 KiB elements that begin at random blocks of the pool's first half. */
static lg_status write_random(synth *y, const tensor *t, lg_err *err) {
    const uint8_t *from = pool(y, t->type);
    const uint64_t run = 1u << 16;
    for (uint64_t at = 0; at < t->n; at += run) {
        uint64_t n = t->n - at < run ? t->n - at : run;
        uint64_t first = (uint64_t)(unit(y) * (N_POOL / 2)) / LG_MAX_BLOCK * LG_MAX_BLOCK;
        LG_TRY(lg_gguf_write_data(y->w, from + row_bytes(t->type, first), row_bytes(t->type, n),
                                  err));
    }
    return LG_OK;
}

static lg_status write_tensor(synth *y, const tensor *t, lg_err *err) {
    if (t->fill == RANDOM) return write_random(y, t, err);
    for (uint64_t i = 0; i < t->n; i++) {
        float v = 1.0f; /* ssm_a: -0.05 to -8, evenly in the logarithm */
        if (t->fill == DECAY) v = -(float)exp(log(0.05) + unit(y) * log(8 / 0.05));
        LG_TRY(lg_gguf_write_data(y->w, &v, sizeof v, err));
    }
    return LG_OK;
}

static lg_status write_all(synth *y, const char *path, lg_err *err) {
    LG_TRY(lg_gguf_write_open(path, &y->w, err));
    put_architecture(y);
    put_tokenizer(y);
    add_all(y);
    LG_TRY(lg_gguf_write_start(y->w, err));
    for (size_t i = 0; i < y->n_tensor; i++) LG_TRY(write_tensor(y, &y->tensor[i], err));
    printf("%s: %.2f GB, %u layers of %s, %s\n", path, (double)lg_gguf_write_bytes(y->w) * 1e-9,
           y->n_layer, y->s->name, lg_dtype_name(y->type));
    return lg_gguf_write_finish(&y->w, err);
}

/* ---- options ---- */

static void make_numbers(synth *y) {
    y->number = lg_mem_alloc(N_POOL * sizeof *y->number);
    LG_ASSERT(y->number);
    for (size_t i = 0; i < N_POOL; i++)
        y->number[i] = (float)(DEVIATION * sqrt(-2 * log(unit(y))) * cos(2 * M_PI * unit(y)));
}

static int usage(void) {
    fputs("usage: synth_gguf OUT [--shape 35b|122b|397b] [--layers N] [--vocab N] [--type "
          "Q4_K]\n",
          stderr);
    return 2;
}

static bool set_option(synth *y, int c) {
    if (c == 'l' || c == 'v') {
        char *end;
        unsigned long v = strtoul(optarg, &end, 10);
        *(c == 'l' ? &y->n_layer : &y->n_vocab) = (uint32_t)v;
        return !*end && v <= 1u << 20 && v >= (c == 'l' ? 1 : 512);
    }
    if (c == 's') {
        for (size_t i = 0; i < LG_COUNT(shapes); i++)
            if (strcmp(shapes[i].name, optarg) == 0) return y->s = &shapes[i], true;
        return false;
    }
    for (lg_dtype t = 0; c == 't' && t < LG_N_DTYPE; t++)
        if (strcmp(lg_dtype_name(t), optarg) == 0 && lg_quantize_has(t))
            return y->type = t, true;
    return false;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"shape", required_argument, NULL, 's'},
                                            {"layers", required_argument, NULL, 'l'},
                                            {"vocab", required_argument, NULL, 'v'},
                                            {"type", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    synth y = {.s = shapes, .n_vocab = 32768, .type = LG_Q4_K};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (!set_option(&y, c)) return usage();
    if (optind + 1 != argc) return usage();
    if (!y.n_layer) y.n_layer = y.s->n_layer;
    size_t bits = row_bytes(y.type, LG_MAX_BLOCK) * 8 / LG_MAX_BLOCK;
    y.head_type = bits < 6 ? LG_Q6_K : y.type;
    y.n_room = 3 + 24 * (size_t)y.n_layer;
    y.tensor = lg_mem_calloc(y.n_room, sizeof *y.tensor);
    LG_ASSERT(y.tensor);
    make_numbers(&y);
    lg_err err = {0};
    lg_status st = write_all(&y, argv[optind], &err);
    if (st != LG_OK) fprintf(stderr, "synth_gguf: %s\n", err.msg);
    lg_gguf_write_close(&y.w);
    lg_mem_free(y.tensor);
    lg_mem_free(y.number);
    for (int t = 0; t < LG_N_DTYPE; t++) lg_mem_free(y.pool[t]);
    return st == LG_OK ? 0 : 1;
}
