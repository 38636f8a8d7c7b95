/* tokenizer.c - text to ids: see tokenizer.h.
 *
 * encode: repair -> runs of control text -> cut at added tokens -> NFC (nfc.c) -> words (pretok.c) -> merges (bpe.c).
 * No cache of words: C headers take 0.13 s a megabyte without one, far less than the model needs for them.
 * Loading is tokload.c (or gguf_tokenizer.c), ids to text detok.c.  Memory: scratch of the tokenizer, given back when a text was large. */
#include "model/text/tokload.h"

#include "base/utf8.h"
#include "model/file/gguf_tokenizer.h"

#include <stdio.h>
#include <string.h>

#define MAX_FILE  ((size_t)256 << 20)
#define MAX_DEPTH 16
#define KEEP      ((size_t)1 << 20) /* bytes of a scratch text that stay allocated */

/* ---- Loading ---- */

static lg_status from_doc(lg_json_doc *doc, const char *what, lg_tokenizer **out, lg_err *err) {
    lg_tokenizer *tok = lg_mem_alloc(sizeof *tok);
    lg_status st = tok ? lg_tokload_build(tok, lg_json_root(doc), what, err)
                       : LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", what);
    lg_json_close(&doc);
    if (st != LG_OK) lg_tokenizer_close(&tok);
    *out = tok;
    return st;
}

lg_status lg_tokenizer_parse(const char *json, size_t len_bytes, const char *what,
                             lg_tokenizer **tok, lg_err *err) {
    lg_json_doc *doc;
    *tok = NULL;
    LG_TRY(lg_json_parse(json, len_bytes, MAX_DEPTH, what, &doc, err));
    return from_doc(doc, what, tok, err);
}

static lg_status open_gguf(const char *path, lg_tokenizer **out, lg_err *err) {
    lg_gguf *g = NULL;
    LG_TRY(lg_gguf_open(path, &g, err));
    lg_tokenizer *tok = lg_mem_alloc(sizeof *tok);
    lg_status st = tok ? lg_gguf_tokenizer_build(tok, g, err)
                       : LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", path);
    lg_gguf_close(&g);
    if (st != LG_OK) lg_tokenizer_close(&tok);
    *out = tok;
    return st;
}

lg_status lg_tokenizer_open(const char *path, lg_tokenizer **tok, lg_err *err) {
    lg_buf file = {0};
    lg_json_doc *doc;
    *tok = NULL;
    if (lg_gguf_is(path)) return open_gguf(path, tok, err);
    lg_buf_printf(&file, "%s/tokenizer.json", path);
    lg_status st = file.failed ? LG_FAIL(err, LG_E_NOMEM, "%s: out of memory", path)
                               : lg_json_load(file.data, MAX_FILE, MAX_DEPTH, &doc, err);
    if (st == LG_OK) st = from_doc(doc, file.data, tok, err);
    lg_buf_fini(&file);
    return st;
}

void lg_tokenizer_close(lg_tokenizer **out) {
    lg_tokenizer *tok = *out;
    if (!tok) return;
    lg_bpe_fini(&tok->bpe);
    lg_pretok_close(&tok->pretok);
    lg_nfc_fini(&tok->norm);
    lg_buf_fini(&tok->text);
    lg_buf_fini(&tok->repaired);
    lg_mem_free(tok->added);
    lg_mem_free(tok->run);
    LG_FREE(*out);
}

/* ---- Questions ---- */

uint32_t lg_tokenizer_n_id(const lg_tokenizer *tok) {
    return tok->bpe.n_id;
}

/* The longest added token that text starts with, or LG_BPE_NONE. */
static uint32_t match_added(const lg_tokenizer *tok, const char *text, size_t len_bytes) {
    uint8_t b = (uint8_t)text[0];
    for (uint32_t i = tok->first[b]; i < tok->first[b + 1]; i++) {
        const lg_bpe_piece *p = &tok->bpe.piece[tok->added[i]];
        if (p->len <= len_bytes && memcmp(tok->bpe.bytes + p->off, text, p->len) == 0)
            return tok->added[i];
    }
    return LG_BPE_NONE;
}

uint32_t lg_tokenizer_added(const lg_tokenizer *tok, const char *content) {
    size_t len = strlen(content);
    if (len == 0) return UINT32_MAX;
    uint32_t id = match_added(tok, content, len);
    return id != LG_BPE_NONE && tok->bpe.piece[id].len == len ? id : UINT32_MAX;
}

bool lg_tokenizer_piece(const lg_tokenizer *tok, uint32_t id, const char **s, size_t *len_bytes,
                        bool *added, bool *special) {
    if (id >= tok->bpe.n_id || tok->bpe.piece[id].len == 0) return false;
    const lg_bpe_piece *p = &tok->bpe.piece[id];
    *s = tok->bpe.bytes + p->off;
    *len_bytes = p->len;
    *added = p->flag & LG_BPE_ADDED;
    *special = p->flag & LG_BPE_SPECIAL;
    return true;
}

void lg_ids_fini(lg_ids *ids) {
    lg_mem_free(ids->id);
    *ids = (lg_ids){0};
}

lg_status lg_ids_push(lg_ids *ids, uint32_t id) {
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 64;
        uint32_t *p = lg_mem_realloc(ids->id, cap * sizeof *p);
        if (!p) return LG_E_NOMEM;
        ids->id = p;
        ids->cap = cap;
    }
    ids->id[ids->n++] = id;
    return LG_OK;
}

/* ---- Encoding ---- */

static lg_status no_memory(lg_err *err) {
    return LG_FAIL(err, LG_E_NOMEM, "text: out of memory while it is tokenised");
}

/* Text without added tokens. */
static lg_status encode_plain(lg_tokenizer *tok, const char *text, size_t len_bytes,
                              lg_ids *ids, lg_err *err) {
    if (tok->nfc && !lg_nfc_trivial(text, len_bytes)) {
        lg_buf_clear(&tok->text);
        if (lg_nfc_put(&tok->norm, text, len_bytes, &tok->text) != LG_OK) return no_memory(err);
        text = lg_buf_str(&tok->text);
        len_bytes = tok->text.len_bytes;
    }
    for (size_t begin = 0, end; begin < len_bytes; begin = end) {
        LG_TRY(lg_pretok_next(tok->pretok, text, len_bytes, begin, &end, err));
        if (end - begin >= UINT32_MAX)
            return LG_FAIL(err, LG_E_FORMAT, "text: byte %zu: a word of 4 GiB or more", begin);
        if (lg_bpe_word(&tok->bpe, text + begin, end - begin, ids) != LG_OK)
            return no_memory(err);
    }
    return LG_OK;
}

/* The next added token in text[at..end): its place in *at, its id in *id; false when there is none. */
static bool next_added(const lg_tokenizer *tok, const char *text, size_t *at, size_t end,
                       uint32_t *id) {
    for (; *at < end; ++*at) {
        *id = match_added(tok, text + *at, end - *at);
        if (*id != LG_BPE_NONE) return true;
    }
    return false;
}

static lg_status encode_runs(lg_tokenizer *tok, const char *text, size_t len_bytes, lg_ids *ids,
                             lg_err *err) {
    size_t done = 0; /* text up to here has its ids */
    for (size_t r = 0; r < tok->n_run; r++) {
        uint32_t id;
        for (size_t at = tok->run[r].begin; next_added(tok, text, &at, tok->run[r].end, &id);) {
            LG_TRY(encode_plain(tok, text + done, at - done, ids, err));
            if (lg_ids_push(ids, id) != LG_OK) return no_memory(err);
            at += tok->bpe.piece[id].len;
            done = at;
        }
    }
    return encode_plain(tok, text + done, len_bytes - done, ids, err);
}

static lg_status add_run(lg_tokenizer *tok, size_t begin, size_t end) {
    if (begin == end) return LG_OK;
    if (tok->n_run && tok->run[tok->n_run - 1].end == begin) {
        tok->run[tok->n_run - 1].end = end;
        return LG_OK;
    }
    if (tok->n_run == tok->cap_run) {
        size_t cap = tok->cap_run ? 2 * tok->cap_run : 16;
        struct lg_tokrun *p = lg_mem_realloc(tok->run, cap * sizeof *p);
        if (!p) return LG_E_NOMEM;
        tok->run = p;
        tok->cap_run = cap;
    }
    tok->run[tok->n_run++] = (struct lg_tokrun){.begin = begin, .end = end};
    return LG_OK;
}

/* Collect the control spans, neighbours joined. */
static lg_status collect_runs(lg_tokenizer *tok, size_t len_bytes, const lg_span *spans,
                              size_t n_span, bool control) {
    tok->n_run = 0;
    if (n_span == 0) return control ? add_run(tok, 0, len_bytes) : LG_OK;
    size_t end = 0;
    for (size_t i = 0; i < n_span; i++) {
        LG_ASSERT(spans[i].begin == end && spans[i].end >= end);
        end = spans[i].end;
        if (spans[i].control) LG_TRY(add_run(tok, spans[i].begin, end));
    }
    LG_ASSERT(end == len_bytes);
    return LG_OK;
}

/* Copy text with ill-formed parts replaced, and move the runs along.  A character that a run's border cuts in two is
 * outside the run. */
static lg_status repair(lg_tokenizer *tok, const char *text, size_t len_bytes) {
    lg_buf *out = &tok->repaired;
    lg_buf_clear(out);
    size_t r = 0;
    bool inside = false; /* run r has begun */
    for (size_t i = 0; i <= len_bytes;) {
        uint32_t cp;
        size_t n = i < len_bytes ? lg_utf8_next(text + i, len_bytes - i, &cp) : 1;
        while (r < tok->n_run) {
            struct lg_tokrun *run = &tok->run[r];
            if (!inside && run->begin <= i) {
                run->begin = out->len_bytes;
                inside = true;
            }
            if (!inside || run->end >= i + n) break;
            run->end = out->len_bytes;
            inside = false;
            r++;
        }
        if (i < len_bytes) lg_utf8_put(out, cp);
        i += n;
    }
    return out->failed ? LG_E_NOMEM : LG_OK;
}

lg_status lg_tokenizer_encode(lg_tokenizer *tok, const char *text, size_t len_bytes,
                              const lg_span *spans, size_t n_span, bool control, lg_ids *ids,
                              lg_err *err) {
    size_t n_before = ids->n;
    lg_status st = collect_runs(tok, len_bytes, spans, n_span, control);
    bool valid = lg_utf8_valid(text, len_bytes);
    if (st == LG_OK && !valid) st = repair(tok, text, len_bytes);
    if (st != LG_OK)
        st = no_memory(err);
    else if (valid)
        st = encode_runs(tok, text, len_bytes, ids, err);
    else
        st = encode_runs(tok, tok->repaired.data, tok->repaired.len_bytes, ids, err);
    if (st != LG_OK) ids->n = n_before;
    lg_bpe_trim(&tok->bpe);
    if (tok->text.cap_bytes > KEEP) lg_buf_fini(&tok->text);
    if (tok->repaired.cap_bytes > KEEP) lg_buf_fini(&tok->repaired);
    if (tok->norm.cap > KEEP / sizeof *tok->norm.cp) lg_nfc_fini(&tok->norm);
    return st;
}
