/* togguf_meta.c - the keys of a GGUF file from the files of a folder: see togguf.h.
 *
 * The tokenizer's pattern and normaliser have no keys: the name "qwen35" stands for them, so a folder with another pattern
 * or normaliser is refused.  The chat template is written where the folder has one.
 * Thread: the caller's.  Memory: the parsed tokenizer.json and one entry a token, for the call.
 * Test: tests/unit/test_togguf.c, tests/py/quantize.py */
#include "model/file/togguf.h"

#include "base/json.h"
#include "base/mem.h"
#include "model/file/gguf_tokenizer.h"
#include "model/text/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_JSON (256u << 20)

/* Values of token_type. */
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

typedef struct meta {
    lg_gguf_write *w;
    const char *folder;
    const lg_config *c;
    const char *arch;
    lg_err *err;
} meta;

static const char *in_folder(const meta *m, const char *name, char *buf, size_t size_bytes) {
    snprintf(buf, size_bytes, "%s/%s", m->folder, name);
    return buf;
}

static bool exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

static void text(const meta *m, const char *key, const char *s) {
    lg_gguf_write_text(m->w, key, s, strlen(s));
}

/* A key of the architecture. */
static void number(const meta *m, const char *name, uint32_t v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    lg_gguf_write_u32(m->w, key, v);
}

static void real(const meta *m, const char *name, float v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    lg_gguf_write_f32(m->w, key, v);
}

/* ---- general ---- */

/* The number of general.file_type: the recipe, as far as it has one. */
static uint32_t file_type(lg_dtype type) {
    switch (type) {
    case LG_F32: return 0;
    case LG_F16: return 1;
    case LG_Q4_0: return 2;
    case LG_Q4_1: return 3;
    case LG_Q8_0: return 7;
    case LG_Q5_0: return 8;
    case LG_Q5_1: return 9;
    case LG_Q4_K: return 15;
    case LG_Q5_K: return 17;
    case LG_Q6_K: return 18;
    case LG_IQ4_NL: return 25;
    case LG_IQ4_XS: return 30;
    case LG_MXFP4: return 38;
    default: return 32; /* BF16 */
    }
}

static void put_general(const meta *m, const lg_togguf_opt *opt) {
    char name[128];
    size_t len = strlen(m->folder);
    while (len > 1 && m->folder[len - 1] == '/') len--;
    size_t at = len;
    while (at > 0 && m->folder[at - 1] != '/') at--;
    snprintf(name, sizeof name, "%.*s", (int)(len - at < 127 ? len - at : 127), m->folder + at);
    text(m, "general.architecture", m->arch);
    text(m, "general.type", "model");
    text(m, "general.name", name);
    lg_gguf_write_u32(m->w, "general.file_type", file_type(opt->type));
    lg_gguf_write_u32(m->w, "general.quantization_version", 2);
    if (!m->c->do_sample) return;
    lg_gguf_write_i32(m->w, "general.sampling.top_k", (int32_t)m->c->top_k);
    lg_gguf_write_f32(m->w, "general.sampling.top_p", m->c->top_p);
    lg_gguf_write_f32(m->w, "general.sampling.temp", m->c->temperature);
}

/* ---- the architecture ---- */

/* Attention in every so many layers, or 0 when the plan is not like that. */
static uint32_t interval(const lg_config *c) {
    uint32_t n = 1;
    while (n <= c->n_layer && c->layer[n - 1] != LG_LAYER_ATTN) n++;
    for (uint32_t i = 0; i < c->n_layer; i++)
        if ((c->layer[i] == LG_LAYER_ATTN) != ((i + 1) % n == 0)) return 0;
    return n <= c->n_layer ? n : 0;
}

static void put_layers(const meta *m, bool mtp) {
    char key[96];
    uint8_t recurrent[LG_MAX_LAYER + 1] = {0};
    uint32_t n = m->c->n_layer + mtp, every = interval(m->c);
    number(m, "block_count", n);
    if (mtp) number(m, "nextn_predict_layers", 1);
    if (every) number(m, "full_attention_interval", every);
    for (uint32_t i = 0; i < m->c->n_layer; i++) recurrent[i] = m->c->layer[i] == LG_LAYER_GDN;
    snprintf(key, sizeof key, "%s.attention.recurrent_layers", m->arch);
    lg_gguf_write_array(m->w, key, LG_GGUF_BOOL, n, recurrent, n);
}

/* mrope_section of config.json with a 0 appended. */
static lg_status put_rope(const meta *m) {
    char path[4096], key[96];
    lg_json_doc *doc;
    int32_t section[4] = {0};
    LG_TRY(lg_json_load(in_folder(m, "config.json", path, sizeof path), MAX_JSON, 64, &doc,
                        m->err));
    const lg_json *c = lg_json_root(doc), *inner = lg_json_get(c, "text_config");
    if (inner) c = inner;
    const lg_json *rope = lg_json_get(c, "rope_parameters");
    if (!rope) rope = lg_json_get(c, "rope_scaling");
    const lg_json *list = lg_json_get(rope, "mrope_section");
    bool found = list && list->kind == LG_JSON_ARRAY && list->n_child == 3;
    for (size_t i = 0; found && i < 3; i++) {
        uint64_t v = 0;
        found = lg_json_u64(lg_json_at(list, i), &v) && v < 1u << 16;
        section[i] = (int32_t)v;
    }
    lg_json_close(&doc);
    real(m, "rope.freq_base", (float)m->c->rope_theta);
    number(m, "rope.dimension_count", m->c->n_rot);
    /* Positions of text are the same in all sections, so that any division of the pairs means the same. */
    if (!found) section[0] = (int32_t)(m->c->n_rot / 2), section[1] = section[2] = 0;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", m->arch);
    lg_gguf_write_array(m->w, key, LG_GGUF_I32, 4, section, sizeof section);
    return LG_OK;
}

static lg_status put_architecture(const meta *m, bool mtp) {
    const lg_config *c = m->c;
    put_layers(m, mtp);
    number(m, "context_length", c->n_ctx_max);
    number(m, "embedding_length", c->n_embd);
    number(m, "attention.head_count", c->n_head);
    number(m, "attention.head_count_kv", c->n_kv_head);
    number(m, "attention.key_length", c->d_head);
    number(m, "attention.value_length", c->d_head);
    real(m, "attention.layer_norm_rms_epsilon", c->eps);
    LG_TRY(put_rope(m));
    number(m, "ssm.conv_kernel", LG_CONV_K);
    number(m, "ssm.state_size", c->d_k);
    number(m, "ssm.group_count", c->n_k_head);
    number(m, "ssm.time_step_rank", c->n_v_head);
    number(m, "ssm.inner_size", c->n_v_head * c->d_v);
    if (c->n_expert == 0) {
        number(m, "feed_forward_length", c->n_ff);
        return LG_OK;
    }
    number(m, "expert_count", c->n_expert);
    number(m, "expert_used_count", c->n_expert_tok);
    number(m, "expert_feed_forward_length", c->n_ff_expert);
    number(m, "expert_shared_feed_forward_length", c->n_ff_shared);
    return LG_OK;
}

/* ---- tokenizer ---- */

/* One id. */
typedef struct token {
    const char *s; /* of the parsed file; NULL: not used */
    size_t len_bytes;
    int32_t type;
} token;

/* The parts that GGUF does not store are those that its name for them means. */
static lg_status check_stages(const meta *m, const lg_json *root) {
    const lg_json *split =
        lg_json_at(lg_json_get(lg_json_get(root, "pre_tokenizer"), "pretokenizers"), 0);
    const lg_json *regex = lg_json_get(lg_json_get(split, "pattern"), "Regex");
    if (!lg_json_is(regex, lg_gguf_tokenizer_pattern()))
        return LG_FAIL(
            m->err, LG_E_UNSUPPORTED,
            "%s/tokenizer.json: found another split pattern than Qwen3.5's, which is "
            "the one that GGUF has a name for",
            m->folder);
    if (!lg_json_is(lg_json_get(lg_json_get(root, "normalizer"), "type"), "NFC"))
        return LG_FAIL(m->err, LG_E_UNSUPPORTED,
                       "%s/tokenizer.json: normalizer: expected NFC, which GGUF implies",
                       m->folder);
    return LG_OK;
}

static lg_status set_token(const meta *m, token *tokens, uint64_t id, const char *s, size_t len,
                           int32_t type) {
    if (id >= m->c->n_vocab)
        return LG_FAIL(m->err, LG_E_FORMAT,
                       "%s/tokenizer.json: id %llu: expected fewer than the %u rows of the "
                       "embedding",
                       m->folder, (unsigned long long)id, m->c->n_vocab);
    tokens[id] = (token){s, len, type};
    return LG_OK;
}

static lg_status collect(const meta *m, const lg_json *root, token *tokens) {
    const lg_json *vocab = lg_json_get(lg_json_get(root, "model"), "vocab");
    const lg_json *added = lg_json_get(root, "added_tokens");
    uint64_t id = 0;
    for (const lg_json *v = vocab ? vocab->child : NULL; v; v = v->next)
        if (lg_json_u64(v, &id)) LG_TRY(set_token(m, tokens, id, v->key, v->key_len, NORMAL));
    for (const lg_json *v = added ? added->child : NULL; v; v = v->next) {
        const lg_json *s = lg_json_get(v, "content");
        bool special = false;
        if (!s || !lg_json_u64(lg_json_get(v, "id"), &id)) continue;
        (void)lg_json_bool(lg_json_get(v, "special"), &special);
        size_t n = s->text_len;
        bool bars =
            n > 4 && memcmp(s->text, "<|", 2) == 0 && memcmp(s->text + n - 2, "|>", 2) == 0;
        LG_TRY(set_token(m, tokens, id, s->text, n, special || bars ? CONTROL : USER_DEFINED));
    }
    return LG_OK;
}

static void put_tokens(const meta *m, const token *tokens, lg_buf *texts, lg_buf *types) {
    uint32_t n = m->c->n_vocab;
    for (uint32_t id = 0; id < n; id++) {
        char pad[24];
        int32_t type = tokens[id].s ? tokens[id].type : UNUSED;
        snprintf(pad, sizeof pad, "[PAD%u]", id);
        if (tokens[id].s)
            lg_gguf_write_put_text(texts, tokens[id].s, tokens[id].len_bytes);
        else
            lg_gguf_write_put_text(texts, pad, strlen(pad));
        lg_buf_put(types, &type, sizeof type);
    }
    lg_gguf_write_array(m->w, "tokenizer.ggml.tokens", LG_GGUF_STR, n, texts->data,
                        texts->len_bytes);
    lg_gguf_write_array(m->w, "tokenizer.ggml.token_type", LG_GGUF_I32, n, types->data,
                        types->len_bytes);
}

/* Merges are written "left right" in the file, or as pairs. */
static void put_merges(const meta *m, const lg_json *root, lg_buf *texts) {
    const lg_json *merges = lg_json_get(lg_json_get(root, "model"), "merges");
    lg_buf one = {0};
    for (const lg_json *v = merges ? merges->child : NULL; v; v = v->next) {
        lg_buf_clear(&one);
        if (v->kind == LG_JSON_STRING) {
            lg_buf_put(&one, v->text, v->text_len);
        } else {
            const lg_json *right = lg_json_at(v, 1);
            lg_buf_put(&one, v->child->text, v->child->text_len);
            lg_buf_putc(&one, ' ');
            lg_buf_put(&one, right->text, right->text_len);
        }
        texts->failed = texts->failed || one.failed;
        lg_gguf_write_put_text(texts, lg_buf_str(&one), one.len_bytes);
    }
    lg_gguf_write_array(m->w, "tokenizer.ggml.merges", LG_GGUF_STR,
                        merges ? merges->n_child : 0, texts->data, texts->len_bytes);
    lg_buf_fini(&one);
}

static void put_ids(const meta *m, const lg_tokenizer *tok) {
    uint32_t end = lg_tokenizer_added(tok, "<|im_end|>");
    uint32_t pad = lg_tokenizer_added(tok, "<|endoftext|>");
    bool known = false;
    for (uint32_t i = 0; i < m->c->n_eos; i++) known = known || m->c->eos[i] == end;
    if (!known && m->c->n_eos) end = m->c->eos[0];
    if (end != UINT32_MAX) lg_gguf_write_u32(m->w, "tokenizer.ggml.eos_token_id", end);
    if (pad != UINT32_MAX) lg_gguf_write_u32(m->w, "tokenizer.ggml.padding_token_id", pad);
    lg_gguf_write_bool(m->w, "tokenizer.ggml.add_bos_token", false);
    lg_gguf_write_bool(m->w, "tokenizer.ggml.add_eos_token", false);
}

static lg_status put_lists(const meta *m, const lg_json *root) {
    lg_buf texts = {0}, types = {0}, merges = {0};
    token *tokens = lg_mem_calloc(m->c->n_vocab, sizeof *tokens);
    lg_status st = tokens ? LG_OK : LG_E_NOMEM;
    if (st == LG_OK) st = collect(m, root, tokens);
    if (st == LG_OK) {
        put_tokens(m, tokens, &texts, &types);
        put_merges(m, root, &merges);
        if (texts.failed || types.failed || merges.failed) st = LG_E_NOMEM;
    }
    if (st == LG_E_NOMEM) LG_FAIL(m->err, st, "%s: no memory for its tokenizer", m->folder);
    lg_mem_free(tokens);
    lg_buf_fini(&texts);
    lg_buf_fini(&types);
    lg_buf_fini(&merges);
    return st;
}

static lg_status put_tokenizer(const meta *m) {
    char path[4096];
    lg_json_doc *doc = NULL;
    lg_tokenizer *tok = NULL;
    lg_status st;
    LG_TRY(lg_tokenizer_open(m->folder, &tok, m->err)); /* checks every member */
    LG_TRY_GOTO(lg_json_load(in_folder(m, "tokenizer.json", path, sizeof path), MAX_JSON, 64,
                             &doc, m->err),
                st, done);
    LG_TRY_GOTO(check_stages(m, lg_json_root(doc)), st, done);
    text(m, "tokenizer.ggml.model", "gpt2");
    text(m, "tokenizer.ggml.pre", "qwen35");
    LG_TRY_GOTO(put_lists(m, lg_json_root(doc)), st, done);
    put_ids(m, tok);
done:
    lg_json_close(&doc);
    lg_tokenizer_close(&tok);
    return st;
}

/* ---- chat template ---- */

/* The whole file into *b.  LG_OK, LG_E_IO. */
static lg_status read_text(const meta *m, const char *path, lg_buf *b) {
    char part[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) return LG_FAIL(m->err, LG_E_IO, "%s: cannot be read", path);
    while ((n = fread(part, 1, sizeof part, f)) > 0 && b->len_bytes < MAX_JSON)
        lg_buf_put(b, part, n);
    bool bad = ferror(f) || b->failed;
    fclose(f);
    return bad ? LG_FAIL(m->err, LG_E_IO, "%s: cannot be read", path) : LG_OK;
}

static lg_status put_template(const meta *m) {
    static const char key[] = "tokenizer.chat_template";
    char path[4096];
    if (exists(in_folder(m, "chat_template.jinja", path, sizeof path))) {
        lg_buf b = {0};
        lg_status st = read_text(m, path, &b);
        if (st == LG_OK) lg_gguf_write_text(m->w, key, lg_buf_str(&b), b.len_bytes);
        lg_buf_fini(&b);
        return st;
    }
    if (!exists(in_folder(m, "tokenizer_config.json", path, sizeof path))) return LG_OK;
    lg_json_doc *doc;
    LG_TRY(lg_json_load(path, MAX_JSON, 64, &doc, m->err));
    const lg_json *t = lg_json_get(lg_json_root(doc), "chat_template");
    if (t && t->kind == LG_JSON_STRING) lg_gguf_write_text(m->w, key, t->text, t->text_len);
    lg_json_close(&doc);
    return LG_OK;
}

lg_status lg_togguf_meta_write(lg_gguf_write *w, const char *folder, const lg_config *cfg,
                               const lg_togguf_opt *opt, bool mtp, lg_err *err) {
    meta m = {w, folder, cfg, cfg->n_expert ? "qwen35moe" : "qwen35", err};
    put_general(&m, opt);
    LG_TRY(put_architecture(&m, mtp));
    LG_TRY(put_tokenizer(&m));
    return put_template(&m);
}
