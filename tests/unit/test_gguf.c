/* test_gguf.c - GGUF files that are right: the ways one model can be written, its tokenizer, its parts; every cut and flip of
 * the header; what a small file may cost; allocations that fail.  Damaged files: test_gguf_damage.c, logits:
 * test_gguf_logits.c. */
#include "fixture.h"
#include "gguf_rig.h"

#include "link/link.h"
#include "model/file/gguf_config.h"
#include "model/text/tokload.h"
#include "model/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define R3      "tests/data/gguf/tiny-dense-r3-F16.gguf"
#define MOE     "tests/data/gguf/tiny-moe-256-Q4_K_M.gguf"
#define FOLDER  "tests/data/models/tiny-moe" /* the same vocabulary */
#define TEXTS   "tests/data/tokenizer/tiny-tokenizer.jsonl"
#define N_TEXT  400
#define N_SPLIT 3

static const char *source(const char *name, char buf[1024]) {
    return lg_fixture_source(name, buf, 1024);
}

static lg_weights *open_weights(const char *path) {
    lg_weights *w = NULL;
    lg_err err = {0};
    if (lg_weights_open(path, NULL, NULL, NULL, &w, &err) != LG_OK) fail_msg("%s", err.msg);
    return w;
}

/* ---- the same weights ---- */

static void same_mat(const lg_mat *a, const lg_mat *b) {
    assert_true(a->type == b->type && a->n_out == b->n_out && a->n_in == b->n_in);
    if (a->panel)
        assert_memory_equal(a->panel, b->panel, lg_pack_bytes(a->type, a->n_out, a->n_in));
}

static void same_vec(const float *a, const float *b, size_t n) {
    assert_true(!a == !b);
    if (a) assert_memory_equal(a, b, n * sizeof *a);
}

static void same_mlp(const lg_mlp_w *a, const lg_mlp_w *b) {
    same_mat(&a->gate, &b->gate);
    same_mat(&a->up, &b->up);
    same_mat(&a->down, &b->down);
}

static void same_layer(const lg_config *c, const lg_layer_w *a, const lg_layer_w *b) {
    const lg_mat *ma[] = {&a->q, &a->k, &a->v, &a->o, &a->qkv, &a->z, &a->b, &a->a, &a->out};
    const lg_mat *mb[] = {&b->q, &b->k, &b->v, &b->o, &b->qkv, &b->z, &b->b, &b->a, &b->out};
    assert_int_equal(a->kind, b->kind);
    for (size_t i = 0; i < LG_COUNT(ma); i++) same_mat(ma[i], mb[i]);
    same_vec(a->in_norm, b->in_norm, c->n_embd);
    same_vec(a->post_norm, b->post_norm, c->n_embd);
    same_vec(a->q_norm, b->q_norm, c->d_head);
    same_vec(a->k_norm, b->k_norm, c->d_head);
    same_vec(a->conv, b->conv, (size_t)LG_CONV_K * lg_config_conv_dim(c));
    same_vec(a->neg_exp_a, b->neg_exp_a, c->n_v_head);
    same_vec(a->dt_bias, b->dt_bias, c->n_v_head);
    same_vec(a->gdn_norm, b->gdn_norm, c->d_v);
    same_mlp(&a->mlp, &b->mlp);
    same_mlp(&a->shared, &b->shared);
    same_mat(&a->router, &b->router);
    same_vec(a->shared_gate, b->shared_gate, c->n_embd);
    for (uint32_t x = 0; x < c->n_expert; x++) same_mlp(&a->expert[x], &b->expert[x]);
}

/* All but the end tokens and sampling, which some variants leave out. */
static void same_weights(const lg_weights *a, const lg_weights *b) {
    const lg_config *c = &a->cfg;
    assert_int_equal(c->n_layer, b->cfg.n_layer);
    assert_memory_equal(c->layer, b->cfg.layer, sizeof c->layer);
    same_mat(&a->head, &b->head);
    same_vec(a->final_norm, b->final_norm, c->n_embd);
    for (uint32_t i = 0; i < c->n_layer; i++) same_layer(c, &a->layer[i], &b->layer[i]);
    float *x = lg_mem_calloc(2 * (size_t)c->n_embd, sizeof *x), *y = x + c->n_embd;
    for (uint32_t id = 0; id < c->n_vocab; id += 37) {
        lg_weights_embed(a, id, x);
        lg_weights_embed(b, id, y);
        same_vec(x, y, c->n_embd);
    }
    lg_mem_free(x);
}

/* ---- one model, written in other ways ---- */

static void old_version(gguf_rig *r) {
    r->version = 2;
}

static void other_alignment(gguf_rig *r) {
    r->align = 256;
    gguf_rig_set_u32(r, "general.alignment", 256);
}

static void reversed(gguf_rig *r) {
    for (size_t i = 0, j = r->n_tensor - 1; i < j; i++, j--) {
        gguf_rig_tensor t = r->tensor[i];
        r->tensor[i] = r->tensor[j];
        r->tensor[j] = t;
    }
}

static void without_list(gguf_rig *r) {
    gguf_rig_drop_key(r, "qwen35.attention.recurrent_layers");
}

static void without_interval(gguf_rig *r) {
    gguf_rig_drop_key(r, "qwen35.full_attention_interval");
}

/* Keys of the makers, and those that change nothing. */
static void more_keys(gguf_rig *r) {
    static const float one = 1;
    static const uint8_t no = 0;
    gguf_rig_set_str(r, "quantize.imatrix.file", "x");
    gguf_rig_set_str(r, "someone.quantized_by", "x");
    gguf_rig_set_str(r, "tokenizer.chat_template.tool_use", "x");
    gguf_rig_set_u32(r, "tokenizer.ggml.bos_token_id", 479);
    gguf_rig_set_u32(r, "qwen35.vocab_size", 512);
    gguf_rig_set_str(r, "qwen35.rope.scaling.type", "none");
    gguf_rig_set_raw(r, "qwen35.rope.scaling.factor", 6, &one, sizeof one);
    gguf_rig_set_raw(r, "tokenizer.ggml.add_space_prefix", 7, &no, 1);
    gguf_rig_drop_key(r, "tokenizer.ggml.add_bos_token");
    gguf_rig_drop_key(r, "qwen35.rope.dimension_sections");
}

/* Sizes as 64-bit numbers, as some writers have them. */
static void wide_numbers(gguf_rig *r) {
    uint64_t wide = 64;
    double eps = 1e-6;
    gguf_rig_set_raw(r, "qwen35.embedding_length", 10, &wide, sizeof wide);
    gguf_rig_set_raw(r, "qwen35.attention.layer_norm_rms_epsilon", 12, &eps, sizeof eps);
}

/* No draft layer, and no key that counts it. */
static void without_draft(gguf_rig *r) {
    for (size_t i = r->n_tensor; i-- > 0;)
        if (strncmp(r->tensor[i].name, "blk.4.", 6) == 0)
            gguf_rig_drop_tensor(r, r->tensor[i].name);
    gguf_rig_set_u32(r, "qwen35.block_count", 4);
    gguf_rig_drop_key(r, "qwen35.nextn_predict_layers");
    without_list(r);
}

/* Query, key and value rows of the attention layer in one tensor. */
static void fused_attention(gguf_rig *r) {
    gguf_rig_tensor *q = gguf_rig_get_tensor(r, "blk.3.attn_q.weight");
    const char *const more[2] = {"blk.3.attn_k.weight", "blk.3.attn_v.weight"};
    for (int i = 0; i < 2; i++) {
        gguf_rig_tensor *t = gguf_rig_get_tensor(r, more[i]);
        lg_buf_put(&q->data, t->data.data, t->data.len_bytes);
        q->dim[1] += t->dim[1];
    }
    snprintf(q->name, sizeof q->name, "blk.3.attn_qkv.weight");
    for (int i = 0; i < 2; i++) gguf_rig_drop_tensor(r, more[i]);
}

/* The shared expert's gate as one row, as the converter writes it. */
static void gate_with_a_row(gguf_rig *r) {
    for (uint32_t i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp_shexp.weight", i);
        gguf_rig_tensor *t = gguf_rig_get_tensor(r, name);
        assert_int_equal(t->n_dim, 1);
        t->n_dim = 2;
        t->dim[1] = 1;
    }
}

/* Gate and up rows of every expert in one tensor. */
static void fused_experts(gguf_rig *r) {
    for (uint32_t i = 0; i < 2; i++) {
        char name[64], up_name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.weight", i);
        snprintf(up_name, sizeof up_name, "blk.%u.ffn_up_exps.weight", i);
        gguf_rig_tensor *gate = gguf_rig_get_tensor(r, name),
                        *up = gguf_rig_get_tensor(r, up_name);
        assert_int_equal(gate->type, up->type);
        size_t n = (size_t)gate->dim[2], one = gate->data.len_bytes / n;
        lg_buf both = {0};
        for (size_t x = 0; x < n; x++) {
            lg_buf_put(&both, gate->data.data + x * one, one);
            lg_buf_put(&both, up->data.data + x * one, one);
        }
        lg_buf_fini(&gate->data);
        gate->data = both;
        gate->dim[1] *= 2;
        snprintf(gate->name, sizeof gate->name, "blk.%u.ffn_gate_up_exps.weight", i);
        gguf_rig_drop_tensor(r, up_name);
    }
}

static void test_ways_to_write_a_model(void **state) {
    static const struct {
        const char *name, *model;
        void (*change)(gguf_rig *);
    } way[] = {
        {"version 2", R3, old_version},           {"alignment", R3, other_alignment},
        {"order of tensors", R3, reversed},       {"no recurrent_layers", R3, without_list},
        {"no interval", R3, without_interval},    {"more keys", R3, more_keys},
        {"wide numbers", R3, wide_numbers},       {"no draft layer", R3, without_draft},
        {"fused attention", R3, fused_attention}, {"gate as a row", MOE, gate_with_a_row},
        {"fused experts", MOE, fused_experts}};
    static gguf_rig r;
    char from[1024], path[300];
    lg_fixture f;
    (void)state;
    lg_fixture_init(&f, FOLDER);
    snprintf(path, sizeof path, "%s/variant.gguf", f.path);
    for (size_t i = 0; i < LG_COUNT(way); i++) {
        lg_buf file = {0};
        lg_tokenizer *tok = NULL;
        lg_err err = {0};
        gguf_rig_load(&r, source(way[i].model, from));
        way[i].change(&r);
        gguf_rig_write(&r, &file);
        lg_fixture_write(&f, "variant.gguf", file.data, file.len_bytes);
        lg_weights *a = open_weights(from), *b = open_weights(path);
        same_weights(a, b);
        if (lg_tokenizer_open(path, &tok, &err) != LG_OK)
            fail_msg("%s: %s", way[i].name, err.msg);
        assert_int_equal(lg_tokenizer_n_id(tok), 512);
        lg_tokenizer_close(&tok);
        lg_weights_close(&a);
        lg_weights_close(&b);
        lg_buf_fini(&file);
        gguf_rig_fini(&r);
    }
    lg_fixture_fini(&f);
}

/* ---- metadata ---- */

static void check_config(const char *path, uint32_t n_eos, bool do_sample) {
    lg_config c;
    lg_err err = {0};
    if (lg_config_load(&c, path, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_string_equal(c.model_type, "qwen35");
    assert_true(c.gguf && c.v_head_tiled && !c.nested && !c.tied && !c.quant);
    assert_int_equal(c.n_layer, 4);
    assert_int_equal(c.n_mtp_layer, 1);
    assert_int_equal(c.n_vocab, 512);
    assert_int_equal(c.n_embd, 64);
    assert_int_equal(c.n_ctx_max, 4096);
    assert_true(c.n_head == 2 && c.n_kv_head == 1 && c.d_head == 64 && c.n_rot == 16);
    assert_true(c.n_k_head == 2 && c.n_v_head == 6 && c.d_k == 32 && c.d_v == 32);
    assert_true(c.n_ff == 96 && c.n_expert == 0);
    assert_true(c.rope_theta == 1e7 && c.eps == 1e-6f);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(c.layer[i], i == 3 ? LG_LAYER_ATTN : LG_LAYER_GDN);
    assert_int_equal(c.n_eos, n_eos);
    assert_int_equal(c.eos[0], n_eos == 2 ? 481 : 479); /* <|im_end|>, <|endoftext|> */
    if (n_eos == 2) assert_int_equal(c.eos[1], 479);
    assert_true(c.do_sample == do_sample && c.repetition_penalty == 1 && c.min_p == 0);
    assert_true(c.temperature == (do_sample ? 0.6f : 1.0f));
    assert_true(c.top_p == (do_sample ? 0.95f : 1.0f));
    assert_int_equal(c.top_k, do_sample ? 20 : 0);
}

static void test_metadata(void **state) {
    static gguf_rig r;
    char from[1024], path[300];
    lg_fixture f;
    lg_buf file = {0};
    (void)state;
    check_config(source(R3, from), 2, true);
    lg_fixture_init(&f, FOLDER);
    snprintf(path, sizeof path, "%s/bare.gguf", f.path);
    gguf_rig_load(&r, from);
    gguf_rig_drop_key(&r, "general.sampling.top_k");
    gguf_rig_drop_key(&r, "general.sampling.top_p");
    gguf_rig_drop_key(&r, "general.sampling.temp");
    gguf_rig_drop_key(&r, "tokenizer.ggml.eos_token_id");
    gguf_rig_write(&r, &file);
    lg_fixture_write(&f, "bare.gguf", file.data, file.len_bytes);
    check_config(path, 1, false);
    gguf_rig_fini(&r);
    lg_buf_fini(&file);
    lg_fixture_fini(&f);
}

/* ---- the tokenizer ---- */

static void same_ids(lg_tokenizer *a, lg_tokenizer *b, const char *text, size_t len) {
    lg_ids x = {0}, y = {0};
    for (int control = 0; control < 2; control++) {
        x.n = y.n = 0;
        assert_int_equal(lg_tokenizer_encode(a, text, len, NULL, 0, control, &x, NULL), LG_OK);
        assert_int_equal(lg_tokenizer_encode(b, text, len, NULL, 0, control, &y, NULL), LG_OK);
        assert_int_equal(x.n, y.n);
        if (x.n) assert_memory_equal(x.id, y.id, x.n * sizeof *x.id);
    }
    lg_ids_fini(&x);
    lg_ids_fini(&y);
}

static void test_tokenizer_is_that_of_the_folder(void **state) {
    char path[1024], folder[1024], texts[1024];
    lg_tokenizer *a, *b;
    lg_err err = {0};
    (void)state;
    assert_int_equal(lg_tokenizer_open(source(R3, path), &a, &err), LG_OK);
    assert_int_equal(lg_tokenizer_open(source(FOLDER, folder), &b, &err), LG_OK);
    assert_true(a->nfc && b->nfc);
    assert_int_equal(lg_tokenizer_n_id(a), lg_tokenizer_n_id(b));
    for (uint32_t id = 0; id < lg_tokenizer_n_id(a); id++) {
        const char *s, *t;
        size_t n, m;
        bool added, special, added2, special2;
        assert_true(lg_tokenizer_piece(a, id, &s, &n, &added, &special));
        assert_true(lg_tokenizer_piece(b, id, &t, &m, &added2, &special2));
        assert_true(n == m && memcmp(s, t, n) == 0);
        assert_true(added == added2 && special == special2);
    }
    FILE *file = fopen(source(TEXTS, texts), "r");
    assert_non_null(file);
    char *line = NULL;
    size_t cap = 0, n_text = 0;
    for (ssize_t len; (len = getline(&line, &cap, file)) > 0; n_text++) {
        lg_json_doc *doc = NULL;
        assert_int_equal(lg_json_parse(line, (size_t)len, 8, "line", &doc, &err), LG_OK);
        const lg_json *text = lg_json_get(lg_json_root(doc), "text");
        assert_non_null(text);
        same_ids(a, b, text->text, text->text_len);
        lg_json_close(&doc);
    }
    free(line);
    fclose(file);
    assert_int_equal(n_text, N_TEXT);
    same_ids(a, b, "<think>e\xcc\x81<|im_end|></tool_call><|fim_pad|> x", 46);
    lg_tokenizer_close(&a);
    lg_tokenizer_close(&b);
}

/* ---- parts ---- */

/* Part `no` of N_SPLIT of the rig's file; the first one has metadata only. */
static void write_part(const gguf_rig *whole, uint32_t no, const lg_fixture *f,
                       uint32_t all_tensors) {
    static gguf_rig part;
    char name[64];
    lg_buf file = {0};
    part = (gguf_rig){.version = 3, .align = 32};
    for (size_t i = 0; no == 0 && i < whole->n_key; i++) part.key[part.n_key++] = whole->key[i];
    size_t n_shared = part.n_key;
    size_t half = whole->n_tensor / 2, lo = no == 2 ? half : 0;
    size_t hi = no == 0 ? 0 : no == 1 ? half : whole->n_tensor;
    for (size_t i = lo; i < hi; i++) part.tensor[part.n_tensor++] = whole->tensor[i];
    uint16_t small[2] = {(uint16_t)no, N_SPLIT};
    gguf_rig_set_raw(&part, "split.no", 2, &small[0], 2);
    gguf_rig_set_raw(&part, "split.count", 2, &small[1], 2);
    gguf_rig_set_raw(&part, "split.tensors.count", 5, &all_tensors, 4);
    gguf_rig_write(&part, &file);
    snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", no + 1, (unsigned)N_SPLIT);
    lg_fixture_write(f, name, file.data, file.len_bytes);
    lg_buf_fini(&file);
    for (size_t i = n_shared; i < part.n_key; i++) lg_buf_fini(&part.key[i].value);
}

static void refused(const char *path, lg_status want, const char *say) {
    lg_gguf *g = NULL;
    lg_err err = {0};
    assert_int_equal(lg_gguf_open(path, &g, &err), want);
    assert_null(g);
    if (!strstr(err.msg, say)) fail_msg("\"%s\" is not in: %s", say, err.msg);
}

static void test_split_files(void **state) {
    static gguf_rig r;
    char from[1024], path[N_SPLIT][300], other[320];
    lg_fixture f;
    uint64_t hash[2] = {0, 0};
    (void)state;
    lg_fixture_init(&f, FOLDER);
    gguf_rig_load(&r, source(R3, from));
    uint32_t n = (uint32_t)r.n_tensor;
    lg_weights *a = open_weights(from);
    for (uint32_t i = 0; i < N_SPLIT; i++) {
        snprintf(path[i], sizeof path[i], "%s/m-%05u-of-%05u.gguf", f.path, i + 1,
                 (unsigned)N_SPLIT);
        write_part(&r, i, &f, n);
    }
    for (uint32_t i = 0; i < N_SPLIT; i++) { /* any part stands for all */
        lg_weights *b = open_weights(path[i]);
        same_weights(a, b);
        assert_int_equal(lg_tensors_count(lg_weights_tensors(b)), n);
        lg_weights_close(&b);
        assert_int_equal(lg_link_weights_hash(path[i], &hash[i > 0], NULL), LG_OK);
        if (i > 0) assert_true(hash[0] == hash[1]);
    }
    lg_weights_close(&a);

    write_part(&r, 2, &f, n + 1);
    refused(path[0], LG_E_FORMAT, "split.tensors.count: found 72, expected 71");
    for (uint32_t i = 0; i < N_SPLIT; i++) write_part(&r, i, &f, n + 1);
    refused(path[0], LG_E_FORMAT, "split.tensors.count: found 72, but the parts hold 71");
    for (uint32_t i = 0; i < N_SPLIT; i++) write_part(&r, i, &f, n);
    assert_int_equal(rename(path[2], path[1]), 0);
    refused(path[0], LG_E_FORMAT, "split.no: found 2, expected 1");
    write_part(&r, 1, &f, n);
    refused(path[0], LG_E_IO, "m-00003-of-00003.gguf");
    refused(path[2], LG_E_IO, "m-00003-of-00003.gguf");
    snprintf(other, sizeof other, "%s/renamed.gguf", f.path);
    assert_int_equal(link(path[0], other), 0);
    refused(other, LG_E_FORMAT, "split.count: found 3, expected 1 as the file's name says");
    snprintf(other, sizeof other, "%s/m-00001-of-00002.gguf", f.path);
    assert_int_equal(link(path[0], other), 0);
    refused(other, LG_E_FORMAT, "split.count: found 3, expected 2");
    gguf_rig_fini(&r);
    lg_fixture_fini(&f);
}

/* ---- the bytes ---- */

/* A copy that ends where its heap block ends, so that a sanitizer sees any read beyond it. */
static lg_status parse(const void *data, size_t len) {
    size_t whole = (len + LG_MEM_ALIGN - 1) / LG_MEM_ALIGN * LG_MEM_ALIGN;
    uint8_t *block = lg_mem_alloc(whole), *copy = block + whole - len;
    lg_gguf *g = NULL;
    lg_config c;
    lg_err err = {0};
    memcpy(copy, data, len);
    lg_status st = lg_gguf_parse(copy, len, "file", &g, &err);
    if (st == LG_OK) st = lg_gguf_config_read(&c, g, &err);
    assert_true(st == LG_OK || (err.code == st && strncmp(err.msg, "file", 4) == 0));
    lg_gguf_close(&g);
    lg_mem_free(block);
    return st;
}

static void test_every_cut_and_many_flips(void **state) {
    static gguf_rig r;
    char from[1024];
    lg_buf file = {0};
    (void)state;
    gguf_rig_load(&r, source(R3, from));
    for (size_t i = 0; i < r.n_tensor; i++) { /* only shapes matter here: keep the file small */
        gguf_rig_tensor *t = &r.tensor[i];
        if (strcmp(t->name, "token_embd.weight") == 0) continue;
        t->n_dim = 1;
        t->dim[0] = 1;
        t->data.len_bytes = t->type == 0 ? 4 : 2;
    }
    gguf_rig_write(&r, &file);
    assert_int_equal(parse(file.data, file.len_bytes), LG_OK);
    size_t n_bad = 0, n_flip = 0;
    for (size_t n = 1; n < file.len_bytes; n += n < 2000 ? 1 : 61)
        assert_true(n + 32 > file.len_bytes || parse(file.data, n) != LG_OK);
    for (size_t i = 0; i < 40000 && i < file.len_bytes; i += i < 2500 ? 1 : 17) {
        file.data[i] = (char)(file.data[i] ^ (1 << i % 8));
        n_bad += parse(file.data, file.len_bytes) != LG_OK;
        n_flip++;
        file.data[i] = (char)(file.data[i] ^ (1 << i % 8));
    }
    printf("  %zu of %zu single flips are noticed\n", n_bad, n_flip);
    lg_buf_fini(&file);
    gguf_rig_fini(&r);
}

/* A file of a kilobyte that claims 2^60 of something is refused before anything is allocated for it. */
static void test_claims_cost_nothing(void **state) {
    static const char *const value[] = {
        "\x09\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\x10", /* strings */
        "\x09\0\0\0\x00\0\0\0\0\0\0\0\0\0\0\x10", /* bytes */
        "\x09\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\x10", /* numbers, whose size overflows */
        "\x08\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0"};  /* one string */
    uint8_t file[1024] = "GGUF\x03";
    (void)state;
    for (size_t i = 0; i < 2 + LG_COUNT(value); i++) {
        memset(file + 8, 0, sizeof file - 8);
        uint64_t n_tensor = i == 0 ? (uint64_t)1 << 60 : 0;
        uint64_t n_key = i == 1 ? (uint64_t)1 << 60 : 1;
        memcpy(file + 8, &n_tensor, 8);
        memcpy(file + 16, &n_key, 8);
        file[24] = 1;
        file[32] = 'k';
        if (i >= 2) memcpy(file + 33, value[i - 2], 16);
        lg_gguf *g = NULL;
        lg_err err = {0};
        uint64_t before = lg_mem_count(), bytes = lg_mem_bytes();
        lg_mem_reset_peak();
        assert_int_equal(lg_gguf_parse(file, sizeof file, "file", &g, &err), LG_E_FORMAT);
        assert_true(lg_mem_count() - before <= 3); /* the empty lg_gguf itself */
        assert_true(lg_mem_peak() - bytes < 16000000);
        if (!strstr(err.msg, "1152921504606846976")) fail_msg("%s", err.msg);
    }
}

/* ---- memory ---- */

static void test_every_allocation_may_fail(void **state) {
    char path[1024];
    lg_err err;
    int64_t alive = lg_mem_alive();
    lg_status st = LG_E_NOMEM;
    uint64_t n;
    (void)state;
    source(R3, path);
    for (n = 1; st != LG_OK; n++) {
        lg_weights *w = NULL;
        lg_mem_fail_at(n);
        st = lg_weights_open(path, NULL, NULL, NULL, &w, &err);
        lg_mem_fail_at(0);
        lg_weights_close(&w);
        if (st != LG_OK && st != LG_E_NOMEM) fail_msg("allocation %d: %s", (int)n, err.msg);
        assert_int_equal(lg_mem_alive(), alive);
    }
    assert_true(n > 10);
    st = LG_E_NOMEM;
    for (n = 1; st != LG_OK; n++) {
        lg_tokenizer *tok = NULL;
        lg_mem_fail_at(n);
        st = lg_tokenizer_open(path, &tok, &err);
        lg_mem_fail_at(0);
        lg_tokenizer_close(&tok);
        if (st != LG_OK && st != LG_E_NOMEM) fail_msg("allocation %d: %s", (int)n, err.msg);
        assert_int_equal(lg_mem_alive(), alive);
    }
    assert_true(n > 10);
}

/* ---- paths and identity ---- */

static void test_paths(void **state) {
    char a[1024], b[1024];
    uint64_t h[2];
    lg_err err = {0};
    lg_config c;
    (void)state;
    assert_true(lg_gguf_is(source(R3, a)) && lg_gguf_is("none.gguf") &&
                lg_gguf_is("none.GGUF"));
    assert_false(lg_gguf_is(source(FOLDER, b)) || lg_gguf_is("none"));
    assert_int_equal(lg_config_load(&c, "/none/x.gguf", &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "/none/x.gguf"));
    assert_int_equal(lg_config_load(&c, "/dev/null", &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "not a regular file"));
    source(MOE, b);
    assert_int_equal(lg_link_weights_hash(a, &h[0], &err), LG_OK);
    assert_int_equal(lg_link_weights_hash(b, &h[1], &err), LG_OK);
    assert_true(h[0] != h[1]);
    assert_int_equal(lg_link_tokenizer_hash(a, &h[0], &err), LG_OK);
    assert_int_equal(lg_link_tokenizer_hash(b, &h[1], &err), LG_OK);
    assert_true(h[0] == h[1]); /* one vocabulary */
}

/* From a path to an answer, by the public calls. */
static void test_engine_on_a_file(void **state) {
    char path[1024];
    lg_options opt;
    lg_engine *eng = NULL;
    lg_info info;
    lg_err err = {0};
    (void)state;
    lg_options_init(&opt);
    opt.model_path = source(MOE, path);
    opt.n_thread = 1;
    opt.n_ctx = 256;
    opt.memory_bytes = (uint64_t)64 << 20;
    if (lg_open(&opt, &eng, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_get_info(eng, &info);
    assert_string_equal(info.model_name, "tiny-moe-256-Q4_K_M.gguf");
    lg_close(&eng);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ways_to_write_a_model),
                                       cmocka_unit_test(test_metadata),
                                       cmocka_unit_test(test_tokenizer_is_that_of_the_folder),
                                       cmocka_unit_test(test_split_files),
                                       cmocka_unit_test(test_every_cut_and_many_flips),
                                       cmocka_unit_test(test_claims_cost_nothing),
                                       cmocka_unit_test(test_every_allocation_may_fail),
                                       cmocka_unit_test(test_paths),
                                       cmocka_unit_test(test_engine_on_a_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
