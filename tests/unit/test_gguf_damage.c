/* test_gguf_damage.c - damaged, hostile and contradictory GGUF files: each one a clear error that names file and field, none a
 * crash, nothing leaked. */
#include "fixture.h"
#include "gguf_rig.h"

#include "model/text/tokenizer.h"
#include "model/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define R3  "tests/data/gguf/tiny-dense-r3-F16.gguf"   /* dense, MTP, 5 blocks */
#define MOE "tests/data/gguf/tiny-moe-256-Q4_K_M.gguf" /* 2 blocks */

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"
#define BIG    "1152921504606846976" /* 2^60 */

/* Rows leave out what they do not need. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

typedef enum {
    BYTES,   /* of the written file: at a, hexadecimal b */
    CUT,     /* the written file has a bytes (negative: by) */
    GROW,    /* a more zero bytes */
    TEXT,    /* the file is the text a */
    VERSION, /* is a */
    N_KEY,   /* counts that the header claims */
    N_TENSOR,
    DROP,     /* no key a */
    U32,      /* key a is the u32 b */
    F32,      /* key a is the f32 b */
    STR,      /* key a is the string b */
    HEX,      /* key a is hexadecimal b: type and value */
    TWICE,    /* key a comes once more */
    STR_AT,   /* string b of the array a is c */
    I32_AT,   /* number b of the array a is c */
    T_DROP,   /* no tensor a */
    T_RENAME, /* tensor a is called b */
    T_ADD,    /* a copy of tensor a is called b */
    T_TYPE,   /* tensor a has type b */
    T_DIMS,   /* tensor a has b dimensions */
    T_DIM0,   /* the innermost dimension of tensor a is b, then c */
    T_DIM1,
    T_OFFSET, /* the offset of tensor a is b */
    T_POISON, /* the last element of tensor a is a NaN */
    T_FLIP    /* and this changes its sign */
} op;

typedef struct damage {
    const char *model;
    struct {
        op op;
        const char *a, *b, *c;
    } edit[2]; /* the second one may be absent */
    lg_status want;
    const char *say[2]; /* parts of the message */
} damage;

/* clang-format off */
static const damage table[] = {
/* ---- the file ---- */
{R3, {{TEXT, ""}}, LG_E_FORMAT, {"empty"}},
{R3, {{TEXT, "GGUF"}}, LG_E_FORMAT, {"starts with GGUF"}},
{R3, {{TEXT, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"}}, LG_E_FORMAT, {"starts with GGUF"}},
{R3, {{BYTES, "0", "47474d4c"}}, LG_E_FORMAT, {"starts with GGUF"}},
{R3, {{VERSION, "1"}}, LG_E_UNSUPPORTED, {"version", "found 1, expected 2 or 3"}},
{R3, {{VERSION, "4"}}, LG_E_UNSUPPORTED, {"version", "found 4"}},
{R3, {{VERSION, "50331648"}}, LG_E_UNSUPPORTED, {"version", "big-endian"}},
{R3, {{CUT, "24"}}, LG_E_FORMAT, {"number of keys"}},
{R3, {{CUT, "1000"}}, LG_E_FORMAT},
{R3, {{CUT, "20000"}}, LG_E_FORMAT},
{R3, {{CUT, "-33"}}, LG_E_FORMAT, {"offset", "the file holds"}},
{R3, {{CUT, "-400000"}}, LG_E_FORMAT, {"offset", "the file holds"}},
{R3, {{GROW, "32"}}, LG_E_FORMAT, {"bytes of data, expected"}},
/* ---- claims: 2^60 of anything ---- */
{R3, {{N_TENSOR, BIG}}, LG_E_FORMAT, {"number of tensors", BIG}},
{R3, {{N_KEY, BIG}}, LG_E_FORMAT, {"number of keys", BIG}},
{R3, {{N_TENSOR, "18446744073709551615"}}, LG_E_FORMAT, {"number of tensors"}},
{R3, {{N_TENSOR, "72"}}, LG_E_FORMAT},
{R3, {{N_TENSOR, "70"}}, LG_E_FORMAT},
{R3, {{N_KEY, "300"}}, LG_E_FORMAT},
{R3, {{HEX, TOKENS, "09000000" "08000000" "0000000000000010"}}, LG_E_FORMAT, {TOKENS, BIG}},
{R3, {{HEX, TYPES, "09000000" "05000000" "0000000000000010"}}, LG_E_FORMAT, {TYPES, BIG}},
{R3, {{HEX, TYPES, "09000000" "05000000" "0000000000000040"}}, LG_E_FORMAT, {TYPES}},
{R3, {{HEX, "general.name", "08000000" "0000000000000010"}}, LG_E_FORMAT, {"general.name", BIG}},
{R3, {{HEX, "general.name", "08000000" "ffffffffffffffff"}}, LG_E_FORMAT, {"general.name"}},
{R3, {{BYTES, "24", "0000000000000010"}}, LG_E_FORMAT, {"a key", BIG}},
/* ---- keys ---- */
{R3, {{BYTES, "24", "0000000000000000"}}, LG_E_FORMAT, {"a key is empty"}},
{R3, {{BYTES, "32", "1b"}}, LG_E_FORMAT, {"not printable"}},
{R3, {{TWICE, "qwen35.block_count"}}, LG_E_FORMAT, {"qwen35.block_count", "given twice"}},
{R3, {{TWICE, TOKENS}}, LG_E_FORMAT, {TOKENS, "given twice"}},
{R3, {{HEX, "general.name", "0d000000" "00000000"}}, LG_E_UNSUPPORTED, {"general.name", "type 13"}},
{R3, {{HEX, "general.name", "ffffffff" "00000000"}}, LG_E_UNSUPPORTED, {"general.name", "type 4294967295"}},
{R3, {{HEX, "general.name", "09000000" "09000000" "0100000000000000" "04000000" "0000000000000000"}}, LG_E_UNSUPPORTED, {"general.name", "array of arrays"}},
{R3, {{HEX, "tokenizer.ggml.add_bos_token", "07000000" "02"}}, LG_E_FORMAT, {"add_bos_token", "bool of 2"}},
{R3, {{U32, "general.alignment", "0"}}, LG_E_FORMAT, {"general.alignment", "found 0"}},
{R3, {{U32, "general.alignment", "33"}}, LG_E_FORMAT, {"general.alignment", "power of two"}},
{R3, {{U32, "general.alignment", "2147483648"}}, LG_E_FORMAT, {"general.alignment", "power of two"}},
{R3, {{STR, "general.alignment", "32"}}, LG_E_FORMAT, {"general.alignment", "\"32\""}},
{R3, {{U32, "general.alignment", "4096"}}, LG_E_FORMAT},
/* ---- the tensor table ---- */
{R3, {{T_RENAME, "output.weight", ""}}, LG_E_FORMAT, {"tensor name is empty"}},
{R3, {{T_RENAME, "output.weight", "a\nb"}}, LG_E_FORMAT, {"not printable"}},
{R3, {{T_DIMS, "output.weight", "0"}}, LG_E_FORMAT, {"output.weight", "0 dimensions"}},
{R3, {{T_DIMS, "output.weight", "5"}}, LG_E_FORMAT, {"output.weight", "5 dimensions"}},
{R3, {{T_DIMS, "output.weight", "4294967295"}}, LG_E_FORMAT, {"output.weight", "dimensions"}},
{R3, {{T_DIM0, "output.weight", "0"}}, LG_E_FORMAT, {"output.weight", "found a zero"}},
{R3, {{T_DIM1, "output.weight", "0"}}, LG_E_FORMAT, {"output.weight", "found a zero"}},
{R3, {{T_DIM0, "output.weight", "9223372036854775808"}}, LG_E_FORMAT, {"output.weight", "overflows"}},
{R3, {{T_DIM0, "output.weight", "4294967296"}, {T_DIM1, "output.weight", "4294967296"}}, LG_E_FORMAT, {"output.weight", "overflows"}},
{R3, {{T_DIM0, "output.weight", BIG}}, LG_E_FORMAT, {"output.weight", "overflows"}},
{R3, {{T_DIM0, "output.weight", "1099511627776"}}, LG_E_FORMAT, {"output.weight", "the file holds"}},
{R3, {{T_TYPE, "output.weight", "4"}}, LG_E_UNSUPPORTED, {"output.weight", "type 4"}},
{R3, {{T_TYPE, "output.weight", "4294967295"}}, LG_E_UNSUPPORTED, {"output.weight", "type 4294967295"}},
{R3, {{T_TYPE, "output.weight", "12"}}, LG_E_FORMAT, {"output.weight", "multiple of 256"}},
{R3, {{T_TYPE, "output.weight", "0"}}, LG_E_FORMAT, {"offset"}},
{R3, {{T_TYPE, "output.weight", "25"}}, LG_E_UNSUPPORTED, {"output.weight", "found I16"}},
{R3, {{T_TYPE, "output_norm.weight", "26"}}, LG_E_UNSUPPORTED, {"output_norm.weight", "found I32"}},
{MOE, {{T_TYPE, "output.weight", "22"}}, LG_E_FORMAT, {"gap"}},
{R3, {{T_OFFSET, "output.weight", "1"}}, LG_E_FORMAT, {"output.weight", "multiple of 32"}},
{R3, {{T_OFFSET, "output.weight", "0"}}, LG_E_FORMAT, {"offset"}},
{R3, {{T_OFFSET, "output.weight", "18446744073709551584"}}, LG_E_FORMAT, {"output.weight", "the file holds"}},
{R3, {{T_OFFSET, "output.weight", "9223372036854775808"}}, LG_E_FORMAT, {"output.weight", "the file holds"}},
{R3, {{T_ADD, "output.weight", "output.weight"}}, LG_E_FORMAT, {"output.weight", "given twice"}},
/* ---- tensors of this model ---- */
{R3, {{T_DROP, "blk.0.ssm_a"}}, LG_E_FORMAT, {"blk.0.ssm_a", "missing, expected shape [6]"}},
{R3, {{T_DROP, "blk.3.attn_v.weight"}}, LG_E_FORMAT, {"blk.3.attn_v.weight", "missing"}},
{R3, {{T_DROP, "token_embd.weight"}}, LG_E_FORMAT, {"token_embd.weight", "missing"}},
{R3, {{T_RENAME, "blk.0.ssm_dt.bias", "blk.0.ssm_dt"}}, LG_E_FORMAT, {"blk.0.ssm_dt.bias", "missing"}},
{R3, {{T_ADD, "output_norm.weight", "v.patch_embd.weight"}}, LG_E_FORMAT, {"v.patch_embd.weight", "does not have"}},
{R3, {{T_ADD, "output_norm.weight", "blk.5.attn_norm.weight"}}, LG_E_FORMAT, {"blk.5.attn_norm.weight", "does not have"}},
{R3, {{T_ADD, "blk.3.attn_q.weight", "blk.0.attn_q.weight"}}, LG_E_FORMAT, {"blk.0.attn_q.weight", "does not have"}},
{R3, {{T_POISON, "blk.1.ssm_dt.bias"}}, LG_E_FORMAT, {"blk.1.ssm_dt.bias", "not finite"}},
{R3, {{T_FLIP, "blk.1.ssm_a"}}, LG_E_FORMAT, {"blk.1.ssm_a", "positive"}},
{R3, {{T_DIM0, "blk.0.ssm_conv1d.weight", "8", }, {T_DIM1, "blk.0.ssm_conv1d.weight", "160"}}, LG_E_FORMAT, {"blk.0.ssm_conv1d.weight", "found shape [160, 8], expected [320, 4]"}},
{MOE, {{T_DROP, "blk.0.ffn_up_exps.weight"}}, LG_E_FORMAT, {"blk.0.ffn_up_exps.weight", "missing"}},
{MOE, {{T_DROP, "blk.1.ffn_gate_inp_shexp.weight"}}, LG_E_FORMAT, {"blk.1.ffn_gate_inp_shexp.weight", "missing"}},
/* ---- metadata: what it is ---- */
{R3, {{DROP, "general.architecture"}}, LG_E_UNSUPPORTED, {"general.architecture", "found nothing"}},
{R3, {{STR, "general.architecture", "qwen3next"}}, LG_E_UNSUPPORTED, {"general.architecture", "qwen3next"}},
{R3, {{STR, "general.architecture", "qwen35moe"}}, LG_E_FORMAT, {"qwen35moe.", "found nothing"}},
{R3, {{U32, "general.architecture", "7"}}, LG_E_UNSUPPORTED, {"general.architecture", "7 (u32)"}},
{R3, {{STR, "general.type", "adapter"}}, LG_E_UNSUPPORTED, {"general.type", "adapter"}},
{R3, {{U32, "general.quantization_version", "1"}}, LG_E_UNSUPPORTED, {"general.quantization_version"}},
/* ---- metadata: sizes ---- */
{R3, {{DROP, "qwen35.embedding_length"}}, LG_E_FORMAT, {"qwen35.embedding_length", "found nothing"}},
{R3, {{STR, "qwen35.embedding_length", "64"}}, LG_E_FORMAT, {"qwen35.embedding_length", "\"64\""}},
{R3, {{F32, "qwen35.embedding_length", "64"}}, LG_E_FORMAT, {"qwen35.embedding_length", "(f32)"}},
{R3, {{U32, "qwen35.embedding_length", "0"}}, LG_E_FORMAT, {"qwen35.embedding_length", "found 0"}},
{R3, {{U32, "qwen35.embedding_length", "65"}}, LG_E_FORMAT, {"token_embd.weight", "expected [512, 65]"}},
{R3, {{HEX, "qwen35.embedding_length", "05000000" "c0ffffff"}}, LG_E_FORMAT, {"qwen35.embedding_length", "-64"}},
{R3, {{U32, "qwen35.block_count", "0"}}, LG_E_FORMAT, {"qwen35.block_count"}},
{R3, {{U32, "qwen35.block_count", "257"}}, LG_E_FORMAT, {"qwen35.block_count", "1 to 256"}},
{R3, {{U32, "qwen35.block_count", "4294967295"}}, LG_E_FORMAT, {"qwen35.block_count"}},
{R3, {{U32, "qwen35.block_count", "6"}}, LG_E_FORMAT, {"recurrent_layers", "6 bool"}},
{R3, {{U32, "qwen35.block_count", "1"}}, LG_E_FORMAT, {"nextn_predict_layers", "fewer"}},
{R3, {{U32, "qwen35.nextn_predict_layers", "0"}}, LG_E_FORMAT, {"entry 4"}},
{R3, {{U32, "qwen35.attention.head_count", "3"}}, LG_E_FORMAT, {"blk.3.attn_q.weight"}},
{R3, {{HEX, "qwen35.attention.head_count_kv", "09000000" "04000000" "0500000000000000" "0000000000000000000000000100000001000000"}}, LG_E_FORMAT, {"head_count_kv", "array of 5 u32"}},
{MOE, {{U32, "qwen35moe.attention.head_count_kv", "3"}}, LG_E_FORMAT, {"head_count", "multiple"}},
{R3, {{U32, "qwen35.attention.value_length", "32"}}, LG_E_FORMAT, {"value_length", "64 to 64"}},
{R3, {{U32, "qwen35.ssm.conv_kernel", "3"}}, LG_E_FORMAT, {"ssm.conv_kernel"}},
{R3, {{U32, "qwen35.ssm.group_count", "4"}}, LG_E_FORMAT, {"ssm.time_step_rank", "multiple"}},
{R3, {{U32, "qwen35.ssm.inner_size", "193"}}, LG_E_FORMAT, {"ssm.inner_size", "193"}},
{R3, {{U32, "qwen35.ssm.state_size", "64"}}, LG_E_FORMAT, {"blk.0.attn_qkv.weight"}},
{MOE, {{U32, "qwen35moe.expert_used_count", "5"}}, LG_E_FORMAT, {"expert_used_count", "at most expert_count 4"}},
{MOE, {{U32, "qwen35moe.expert_count", "8"}}, LG_E_FORMAT, {"ffn_gate_inp.weight"}},
{MOE, {{DROP, "qwen35moe.expert_count"}}, LG_E_FORMAT, {"qwen35moe.expert_count", "found nothing"}},
{R3, {{F32, "qwen35.attention.layer_norm_rms_epsilon", "nan"}}, LG_E_FORMAT, {"layer_norm_rms_epsilon"}},
{R3, {{F32, "qwen35.attention.layer_norm_rms_epsilon", "1"}}, LG_E_FORMAT, {"layer_norm_rms_epsilon"}},
/* ---- metadata: layers and rope ---- */
{R3, {{U32, "qwen35.full_attention_interval", "3"}}, LG_E_FORMAT, {"recurrent_layers", "entry 2"}},
{R3, {{HEX, "qwen35.attention.recurrent_layers", "09000000" "07000000" "0500000000000000" "0101010001"}}, LG_E_FORMAT, {"entry 4"}},
{R3, {{HEX, "qwen35.attention.recurrent_layers", "09000000" "04000000" "0100000000000000" "01010100"}}, LG_E_FORMAT, {"recurrent_layers", "array of 1 u32"}},
{R3, {{DROP, "qwen35.attention.recurrent_layers"}, {DROP, "qwen35.full_attention_interval"}}, LG_E_FORMAT, {"full_attention_interval"}},
{R3, {{F32, "qwen35.rope.freq_base", "0"}}, LG_E_FORMAT, {"rope.freq_base"}},
{R3, {{F32, "qwen35.rope.freq_base", "inf"}}, LG_E_FORMAT, {"rope.freq_base"}},
{R3, {{U32, "qwen35.rope.dimension_count", "17"}}, LG_E_FORMAT, {"rope.dimension_count", "even"}},
{R3, {{U32, "qwen35.rope.dimension_count", "66"}}, LG_E_FORMAT, {"rope.dimension_count", "2 to 64"}},
{R3, {{U32, "qwen35.rope.dimension_count", "32"}}, LG_E_FORMAT, {"rope.dimension_sections", "a sum of 8"}},
{R3, {{HEX, "qwen35.rope.dimension_sections", "09000000" "05000000" "0300000000000000" "030000000300000002000000"}}, LG_E_UNSUPPORTED, {"rope.dimension_sections", "array of 3"}},
{R3, {{HEX, "qwen35.rope.dimension_sections", "09000000" "08000000" "0000000000000000"}}, LG_E_UNSUPPORTED, {"rope.dimension_sections"}},
{R3, {{HEX, "qwen35.rope.dimension_sections", "09000000" "05000000" "0400000000000000" "09000000030000000200000" "0faffffff"}}, LG_E_FORMAT, {"rope.dimension_sections"}},
{R3, {{STR, "qwen35.rope.scaling.type", "yarn"}}, LG_E_UNSUPPORTED, {"rope.scaling.type", "yarn"}},
{R3, {{F32, "qwen35.rope.scaling.factor", "4"}}, LG_E_UNSUPPORTED, {"rope.scaling.factor"}},
{R3, {{U32, "qwen35.attention.sliding_window", "4096"}}, LG_E_UNSUPPORTED, {"attention.sliding_window"}},
{R3, {{F32, "qwen35.final_logit_softcapping", "30"}}, LG_E_UNSUPPORTED, {"final_logit_softcapping", "not understood"}},
/* ---- metadata: generation ---- */
{R3, {{F32, "general.sampling.temp", "-1"}}, LG_E_FORMAT, {"general.sampling.temp"}},
{R3, {{STR, "general.sampling.top_p", "0.9"}}, LG_E_FORMAT, {"general.sampling.top_p"}},
{R3, {{F32, "general.sampling.top_p", "0"}}, LG_E_FORMAT, {"general.sampling.top_p"}},
{R3, {{U32, "tokenizer.ggml.eos_token_id", "512"}}, LG_E_FORMAT, {"eos_token_id", "512"}},
{R3, {{HEX, "tokenizer.ggml.eos_token_id", "05000000" "ffffffff"}}, LG_E_FORMAT, {"eos_token_id", "-1"}},
/* ---- the tokenizer ---- */
{R3, {{DROP, TOKENS}}, LG_E_FORMAT, {TOKENS, "found nothing"}},
{R3, {{HEX, TOKENS, "09000000" "05000000" "0200000000000000" "0000000001000000"}}, LG_E_FORMAT, {TOKENS, "array of 2 i32"}},
{R3, {{HEX, TOKENS, "09000000" "08000000" "0000000000000000"}}, LG_E_FORMAT, {TOKENS, "array of 0 string"}},
{R3, {{HEX, TOKENS, "09000000" "08000000" "0100000000000000" "0100000000000000" "61"}}, LG_E_FORMAT, {TOKENS, "found 1, expected 512"}},
{R3, {{STR, TOKENS, "abc"}}, LG_E_FORMAT, {TOKENS, "\"abc\""}},
{R3, {{U32, "qwen35.vocab_size", "513"}}, LG_E_FORMAT, {"vocab_size", "513"}},
{R3, {{DROP, TYPES}}, LG_E_FORMAT, {TYPES, "found nothing"}},
{R3, {{HEX, TYPES, "09000000" "05000000" "0100000000000000" "01000000"}}, LG_E_FORMAT, {TYPES, "as many as"}},
{R3, {{HEX, TYPES, "09000000" "06000000" "0100000000000000" "01000000"}}, LG_E_FORMAT, {TYPES, "array of 1 f32"}},
{R3, {{HEX, TYPES, "09000000" "08000000" "0000000000000000"}}, LG_E_FORMAT, {TYPES, "as many as"}},
{R3, {{I32_AT, TYPES, "5", "6"}}, LG_E_UNSUPPORTED, {TYPES "[5]", "found 6"}},
{R3, {{I32_AT, TYPES, "5", "-1"}}, LG_E_UNSUPPORTED, {TYPES "[5]", "found -1"}},
{R3, {{I32_AT, TYPES, "5", "2147483647"}}, LG_E_UNSUPPORTED, {TYPES "[5]"}},
{R3, {{I32_AT, TYPES, "5", "5"}}, LG_E_FORMAT, {TOKENS, "has no id"}},
{R3, {{STR_AT, TOKENS, "5", ""}}, LG_E_FORMAT, {TOKENS, "alphabet"}},
{R3, {{STR_AT, TOKENS, "400", "<0x-1>"}}, LG_E_FORMAT, {MERGES}},
{R3, {{STR_AT, TOKENS, "400", "a b"}}, LG_E_FORMAT, {TOKENS, "alphabet"}},
{R3, {{STR_AT, TOKENS, "400", "\xff\xfe"}}, LG_E_FORMAT, {TOKENS, "alphabet"}},
{R3, {{STR_AT, TOKENS, "400", "a"}}, LG_E_FORMAT, {TOKENS, "is there twice"}},
{R3, {{STR_AT, TOKENS, "480", ""}}, LG_E_FORMAT, {TOKENS "[480]", "empty"}},
{R3, {{STR_AT, TOKENS, "480", "\xff"}}, LG_E_FORMAT, {TOKENS "[480]", "not UTF-8"}},
{R3, {{STR_AT, TOKENS, "480", "<|im_end|>"}}, LG_E_FORMAT, {"<|im_end|>", "twice"}},
{R3, {{STR_AT, MERGES, "3", "ab"}}, LG_E_FORMAT, {MERGES "[3]", "two pieces"}},
{R3, {{STR_AT, MERGES, "3", " a"}}, LG_E_FORMAT, {MERGES "[3]", "left"}},
{R3, {{STR_AT, MERGES, "3", "a  b"}}, LG_E_FORMAT, {MERGES "[3]", "right"}},
{R3, {{STR_AT, MERGES, "3", "q q"}}, LG_E_FORMAT, {MERGES "[3]", "result"}},
{R3, {{HEX, MERGES, "09000000" "00000000" "0100000000000000" "01"}}, LG_E_FORMAT, {MERGES, "array of 1 u8"}},
{R3, {{DROP, MERGES}}, LG_E_FORMAT, {MERGES, "found nothing"}},
{R3, {{STR, "tokenizer.ggml.model", "llama"}}, LG_E_UNSUPPORTED, {"tokenizer.ggml.model", "llama"}},
{R3, {{DROP, "tokenizer.ggml.model"}}, LG_E_UNSUPPORTED, {"tokenizer.ggml.model"}},
{R3, {{STR, "tokenizer.ggml.pre", "default"}}, LG_E_UNSUPPORTED, {"tokenizer.ggml.pre", "default"}},
{R3, {{DROP, "tokenizer.ggml.pre"}}, LG_E_UNSUPPORTED, {"tokenizer.ggml.pre", "found nothing"}},
{R3, {{HEX, "tokenizer.ggml.add_bos_token", "07000000" "01"}}, LG_E_UNSUPPORTED, {"add_bos_token", "true"}},
{R3, {{HEX, "tokenizer.ggml.precompiled_charsmap", "09000000" "00000000" "0100000000000000" "01"}}, LG_E_UNSUPPORTED, {"precompiled_charsmap", "not understood"}},
/* ---- parts ---- */
{R3, {{U32, "split.count", "2"}}, LG_E_FORMAT, {"split.count", "found 2, expected 1"}},
{R3, {{U32, "split.no", "1"}}, LG_E_FORMAT, {"split.no", "found 1, expected 0"}},
{R3, {{STR, "split.count", "1"}}, LG_E_FORMAT, {"split.count", "an integer"}},
{R3, {{U32, "split.tensors.count", "72"}}, LG_E_FORMAT, {"split.tensors.count", "found 72, but the parts hold 71"}},
};
/* clang-format on */

static uint64_t number(const char *s) {
    return strtoull(s, NULL, 10);
}

/* Bytes of hexadecimal text. */
static size_t unhex(const char *s, uint8_t *out) {
    size_t n = strlen(s) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned x;
        assert_int_equal(sscanf(s + 2 * i, "%2x", &x), 1);
        out[i] = (uint8_t)x;
    }
    return n;
}

static void edit_tensor(gguf_rig *r, op what, const char *a, const char *b) {
    gguf_rig_tensor *t = gguf_rig_get_tensor(r, a);
    char *last = t->data.data + t->data.len_bytes - 4;
    switch (what) {
    case T_DROP: gguf_rig_drop_tensor(r, a); break;
    case T_RENAME: snprintf(t->name, sizeof t->name, "%s", b); break;
    case T_ADD:
        assert_true(r->n_tensor < GGUF_RIG_MAX_TENSOR);
        gguf_rig_tensor *copy = &r->tensor[r->n_tensor++];
        *copy = *t;
        copy->data = (lg_buf){0};
        lg_buf_put(&copy->data, t->data.data, t->data.len_bytes);
        snprintf(copy->name, sizeof copy->name, "%s", b);
        break;
    case T_TYPE: t->type = (uint32_t)number(b); break;
    case T_DIMS: t->n_dim = (uint32_t)number(b); break;
    case T_DIM0: t->dim[0] = number(b); break;
    case T_DIM1: t->dim[1] = number(b); break;
    case T_OFFSET:
        t->placed = true;
        t->offset = number(b);
        break;
    case T_POISON: memset(last, 0xff, 4); break;
    case T_FLIP: last[3] = (char)(last[3] ^ 0x80); break;
    default: fail();
    }
}

static void edit(gguf_rig *r, op what, const char *a, const char *b, const char *c) {
    uint8_t raw[64];
    float f;
    size_t n;
    switch (what) {
    case VERSION: r->version = (uint32_t)number(a); break;
    case N_KEY: r->say_keys = number(a); break;
    case N_TENSOR: r->say_tensors = number(a); break;
    case DROP: gguf_rig_drop_key(r, a); break;
    case U32: gguf_rig_set_u32(r, a, (uint32_t)number(b)); break;
    case F32:
        f = strtof(b, NULL);
        gguf_rig_set_raw(r, a, 6, &f, sizeof f);
        break;
    case STR: gguf_rig_set_str(r, a, b); break;
    case HEX:
        n = unhex(b, raw);
        gguf_rig_set_raw(r, a,
                         (uint32_t)raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 |
                             (uint32_t)raw[3] << 24,
                         raw + 4, n - 4);
        break;
    case TWICE:
        assert_true(r->n_key < GGUF_RIG_MAX_KEY);
        gguf_rig_key *k = &r->key[r->n_key++];
        *k = *gguf_rig_get_key(r, a);
        k->value = (lg_buf){0};
        lg_buf_put(&k->value, gguf_rig_get_key(r, a)->value.data,
                   gguf_rig_get_key(r, a)->value.len_bytes);
        break;
    case STR_AT: gguf_rig_set_string_at(r, a, number(b), c); break;
    case I32_AT: gguf_rig_set_i32_at(r, a, number(b), (int32_t)strtol(c, NULL, 10)); break;
    case BYTES:
    case CUT:
    case GROW:
    case TEXT: break;
    default: edit_tensor(r, what, a, b);
    }
}

/* Edits of the written file. */
static void edit_bytes(lg_buf *file, op what, const char *a, const char *b) {
    uint8_t raw[64];
    long n = strtol(a, NULL, 10);
    switch (what) {
    case BYTES: memcpy(file->data + n, raw, unhex(b, raw)); break;
    case CUT: file->len_bytes = n < 0 ? file->len_bytes - (size_t)-n : (size_t)n; break;
    case GROW:
        while (n-- > 0) lg_buf_putc(file, 0);
        break;
    case TEXT:
        lg_buf_clear(file);
        lg_buf_puts(file, a);
        break;
    default: break;
    }
}

static lg_status load(const char *path, lg_err *err) {
    lg_weights *w = NULL;
    lg_tokenizer *tok = NULL;
    lg_status st = lg_weights_open(path, NULL, NULL, NULL, &w, err);
    if (st == LG_OK) st = lg_tokenizer_open(path, &tok, err);
    lg_weights_close(&w);
    lg_tokenizer_close(&tok);
    return st;
}

static void test_damaged_files(void **state) {
    static gguf_rig r;
    char source[1024], path[300];
    lg_fixture f;
    (void)state;
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    snprintf(path, sizeof path, "%s/damaged.gguf", f.path);
    for (size_t i = 0; i < LG_COUNT(table); i++) {
        const damage *d = &table[i];
        lg_buf file = {0};
        gguf_rig_load(&r, lg_fixture_source(d->model, source, sizeof source));
        for (int e = 0; e < 2 && d->edit[e].a; e++)
            edit(&r, d->edit[e].op, d->edit[e].a, d->edit[e].b, d->edit[e].c);
        gguf_rig_write(&r, &file);
        for (int e = 0; e < 2 && d->edit[e].a; e++)
            edit_bytes(&file, d->edit[e].op, d->edit[e].a, d->edit[e].b);
        lg_fixture_write(&f, "damaged.gguf", lg_buf_str(&file), file.len_bytes);
        lg_buf_fini(&file);
        gguf_rig_fini(&r);
        lg_err err = {0};
        int64_t alive = lg_mem_alive();
        uint64_t bytes = lg_mem_bytes();
        lg_mem_reset_peak();
        lg_status st = load(path, &err);
        if (lg_mem_peak() - bytes >= 16000000) /* whatever a file claims */
            fail_msg("row %zu (%s): %llu bytes allocated, expected less than 16 MB", i,
                     d->edit[0].a, (unsigned long long)(lg_mem_peak() - bytes));
        if (st != d->want || err.code != st || !strstr(err.msg, "damaged.gguf"))
            fail_msg("row %zu (%s): status %d, expected %d: %s", i, d->edit[0].a, st, d->want,
                     err.msg);
        for (int s = 0; s < 2 && d->say[s]; s++)
            if (!strstr(err.msg, d->say[s]))
                fail_msg("row %zu (%s): \"%s\" is not in: %s", i, d->edit[0].a, d->say[s],
                         err.msg);
        assert_int_equal(lg_mem_alive(), alive);
    }
    lg_fixture_fini(&f);
    printf("  %zu damaged files, each an error of its own\n", LG_COUNT(table));
}

/* The unchanged rig is a good file: otherwise the table above would prove nothing. */
static void test_the_rig_writes_good_files(void **state) {
    static gguf_rig r;
    static const char *const model[] = {R3, MOE};
    char source[1024], path[300];
    lg_fixture f;
    (void)state;
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    snprintf(path, sizeof path, "%s/good.gguf", f.path);
    for (size_t i = 0; i < LG_COUNT(model); i++) {
        lg_err err = {0};
        lg_buf file = {0};
        gguf_rig_load(&r, lg_fixture_source(model[i], source, sizeof source));
        gguf_rig_write(&r, &file);
        lg_fixture_write(&f, "good.gguf", file.data, file.len_bytes);
        if (load(path, &err) != LG_OK) fail_msg("%s", err.msg);
        lg_buf_fini(&file);
        gguf_rig_fini(&r);
    }
    lg_fixture_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_rig_writes_good_files),
                                       cmocka_unit_test(test_damaged_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
