/* frame.c - messages of the link to bytes and back, without I/O.
 *
 * In/out: lg_buf and lg_link_msg (link.h has the layout).  Invariants: every frame is a multiple of 8 bytes, so arrays of
 * u32 and pairs are aligned and decoded in place; a decoder that meets anything unexpected refuses the frame.
 * Thread: any.  Memory: the caller's buffers.  Test: tests/unit/test_link.c, fuzz/fuzz_link.c */
#include "link/link.h"

#include "base/num.h"

#include <string.h>

enum { HEAD_BYTES = 8 };

_Static_assert(sizeof(lg_top) == 8 && sizeof(lg_bias) == 8, "pairs are used in place");

/* ---- Writing ---- */

static void put_u32(lg_buf *b, uint32_t v) {
    lg_buf_put(b, &v, sizeof v);
}

static void put_u64(lg_buf *b, uint64_t v) {
    lg_buf_put(b, &v, sizeof v);
}

static void put_f32(lg_buf *b, float v) {
    lg_buf_put(b, &v, sizeof v);
}

/* u32 length, bytes, a NUL, zeros up to a multiple of 4. */
static void put_text(lg_buf *b, const char *s, size_t len_bytes) {
    static const char zero[4] = {0};
    put_u32(b, (uint32_t)len_bytes);
    lg_buf_put(b, s, len_bytes);
    lg_buf_put(b, zero, 4 - len_bytes % 4);
}

static size_t begin(lg_buf *b, lg_link_kind kind) {
    size_t at = b->len_bytes;
    put_u32(b, 0);
    put_u32(b, (uint32_t)kind);
    return at;
}

static void end(lg_buf *b, size_t at) {
    static const char zero[8] = {0};
    lg_buf_put(b, zero, (8 - (b->len_bytes - at) % 8) % 8);
    if (b->failed) return;
    size_t len = b->len_bytes - at;
    LG_ASSERT(len <= LG_LINK_MAX_BYTES);
    uint32_t len32 = (uint32_t)len;
    memcpy(b->data + at, &len32, sizeof len32);
}

static void put_params(lg_buf *b, const lg_params *p) {
    put_f32(b, p->temperature);
    put_f32(b, p->top_p);
    put_f32(b, p->min_p);
    put_u32(b, p->top_k);
    put_f32(b, p->presence_penalty);
    put_f32(b, p->frequency_penalty);
    put_f32(b, p->repetition_penalty);
    put_u32(b, (p->has_seed ? 1u : 0u) | (p->ignore_eos ? 2u : 0u));
    put_u64(b, p->seed);
    put_u32(b, p->choice);
    put_u32(b, (uint32_t)p->n_top);
}

void lg_link_put_hello(lg_buf *out, const lg_link_hello *h) {
    size_t at = begin(out, LG_LINK_HELLO);
    put_u64(out, h->version);
    put_u64(out, h->weights_hash);
    put_u64(out, h->tokenizer_hash);
    put_text(out, h->model_name, strnlen(h->model_name, sizeof h->model_name - 1));
    end(out, at);
}

void lg_link_put_progress(lg_buf *out, uint64_t done_bytes, uint64_t total_bytes) {
    size_t at = begin(out, LG_LINK_PROGRESS);
    put_u64(out, done_bytes);
    put_u64(out, total_bytes);
    end(out, at);
}

void lg_link_put_ready(lg_buf *out, const lg_link_ready *r) {
    const lg_info *i = &r->info;
    size_t at = begin(out, LG_LINK_READY);
    const uint32_t u32[] = {
        i->n_vocab,    i->n_token,      i->n_ctx,        i->n_seq,
        i->n_page,     i->page_tok,     (uint32_t)i->kv, (uint32_t)i->n_thread,
        i->n_snapshot, i->snapshot_tok, r->n_eos};
    const uint64_t u64[] = {i->memory_bytes,  i->weight_bytes,   i->state_bytes,
                            i->scratch_bytes, i->snapshot_bytes, i->n_param,
                            i->n_param_active};
    lg_buf_put(out, u32, sizeof u32);
    lg_buf_put(out, u64, sizeof u64);
    put_params(out, &r->params);
    lg_buf_put(out, r->eos, r->n_eos * sizeof r->eos[0]);
    put_text(out, i->model_name, strnlen(i->model_name, sizeof i->model_name - 1));
    end(out, at);
}

lg_status lg_link_put_submit(lg_buf *out, uint64_t id, const lg_request *req) {
    uint64_t need = 1024u + (uint64_t)req->n_id * 4 + (uint64_t)req->n_bias * 8;
    if (req->n_stop > LG_LINK_MAX_STOP || req->n_bias > LG_LINK_MAX_BIAS) return LG_E_ARG;
    if (req->n_id == 0 || req->n_produced > req->n_id) return LG_E_ARG;
    for (uint32_t i = 0; i < req->n_stop; i++) need += strlen(req->stop[i]) + 8;
    if (req->grammar) need += strlen(req->grammar) + 8;
    if (need > LG_LINK_MAX_BYTES) return LG_E_ARG;
    size_t at = begin(out, LG_LINK_SUBMIT);
    put_u64(out, id);
    put_params(out, &req->params);
    put_u32(out, req->n_id);
    put_u32(out, req->n_produced);
    put_u32(out, req->max_tokens);
    put_u32(out, req->n_bias);
    put_u64(out, req->cache_salt);
    put_u64(out, req->client);
    put_u64(out, (uint64_t)(int64_t)req->priority);
    if (req->n_bias) lg_buf_put(out, req->bias, req->n_bias * sizeof req->bias[0]);
    lg_buf_put(out, req->ids, req->n_id * sizeof req->ids[0]);
    put_u32(out, req->n_stop);
    for (uint32_t i = 0; i < req->n_stop; i++)
        put_text(out, req->stop[i], strlen(req->stop[i]));
    put_u32(out, req->grammar ? 1u + req->grammar_think : 0u);
    if (req->grammar) put_text(out, req->grammar, strlen(req->grammar));
    end(out, at);
    return LG_OK;
}

void lg_link_put_cancel(lg_buf *out, uint64_t id) {
    size_t at = begin(out, LG_LINK_CANCEL);
    put_u64(out, id);
    end(out, at);
}

void lg_link_put_event(lg_buf *out, uint64_t id, const lg_event *e) {
    size_t at = begin(out, e->kind == LG_EVENT_TOKEN ? LG_LINK_TOKEN : LG_LINK_DONE);
    put_u64(out, id);
    if (e->kind == LG_EVENT_TOKEN) {
        put_u32(out, e->token);
        put_f32(out, e->logprob);
        put_u32(out, e->n_top);
        put_u32(out, e->n_cached);
        if (e->n_top) lg_buf_put(out, e->top, e->n_top * sizeof e->top[0]);
    } else {
        put_u32(out, (uint32_t)e->finish);
        put_u32(out, (uint32_t)e->status);
        put_u32(out, e->stop_index);
        put_u32(out, e->n_prompt);
        put_u64(out, e->n_produced);
        put_u64(out, e->n_cached);
        put_u64(out, e->queue_us);
        put_u64(out, e->prefill_us);
        put_u64(out, e->decode_us);
    }
    put_text(out, e->text, e->len_bytes);
    end(out, at);
}

void lg_link_put_stats(lg_buf *out, const lg_stats *s) {
    const uint64_t v[] = {s->n_step,         s->n_prefill_tok,  s->n_decode_tok,
                          s->n_submitted,    s->n_done,         s->n_cancelled,
                          s->n_failed,       s->n_nonfinite,    s->n_running,
                          s->n_waiting,      s->n_page_free,    s->n_slot_free,
                          s->step_us,        s->n_page_cached,  s->n_snapshot,
                          s->n_prompt_tok,   s->n_hit_tok,      s->n_evicted,
                          s->n_discarded,    s->n_preempt_kept, s->n_preempt_dropped,
                          s->n_again_tok,    s->n_held,         s->n_cut_step,
                          s->n_mixed_step,   s->mixed_us,       s->mixed_expected_us,
                          s->mixed_error_us, s->n_file,         s->file_bytes,
                          s->n_file_tok,     s->n_file_written, s->n_file_refused,
                          s->n_file_skipped, s->n_aged};
    size_t at = begin(out, LG_LINK_STATS);
    lg_buf_put(out, v, sizeof v);
    end(out, at);
}

static void put_why(lg_buf *out, lg_link_kind kind, uint64_t id, lg_status status,
                    const char *text) {
    size_t at = begin(out, kind);
    put_u64(out, id);
    put_u32(out, (uint32_t)status);
    put_text(out, text, strlen(text));
    end(out, at);
}

void lg_link_put_refused(lg_buf *out, uint64_t id, lg_status status, const char *text) {
    put_why(out, LG_LINK_REFUSED, id, status, text);
}

void lg_link_put_goodbye(lg_buf *out, lg_status status, const char *text) {
    put_why(out, LG_LINK_GOODBYE, 0, status, text);
}

/* ---- Reading ---- */

/* A cursor over one payload; `bad` sticks, and reads after it give zeros. */
typedef struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad;
} cursor;

/* n elements of size bytes in place, or NULL. */
static const void *get_array(cursor *c, uint64_t n, size_t size) {
    if (c->bad || n > c->left / size) {
        c->bad = true;
        return NULL;
    }
    const void *p = c->p;
    c->p += n * size;
    c->left -= (size_t)n * size;
    return p;
}

static uint32_t get_u32(cursor *c) {
    const void *p = get_array(c, 1, 4);
    return p ? lg_num_load32(p) : 0;
}

static uint64_t get_u64(cursor *c) {
    const void *p = get_array(c, 1, 8);
    return p ? lg_num_load64(p) : 0;
}

static float get_f32(cursor *c) {
    return lg_num_float_of_bits(get_u32(c));
}

/* A 64-bit field whose value must fit 32 bits. */
static uint32_t get_u32_of_64(cursor *c) {
    uint64_t v = get_u64(c);
    if (v > UINT32_MAX) c->bad = true;
    return (uint32_t)v;
}

/* The same of a signed one. */
static int32_t get_i32_of_64(cursor *c) {
    int64_t v = (int64_t)get_u64(c);
    if (v < INT32_MIN || v > INT32_MAX) c->bad = true;
    return (int32_t)v;
}

/* *len_bytes may be NULL: then the text may not hold a NUL. */
static const char *get_text(cursor *c, size_t *len_bytes) {
    uint32_t len = get_u32(c), pad = 4 - len % 4;
    const char *s = get_array(c, (uint64_t)len + pad, 1);
    if (!s) return "";
    for (uint32_t i = 0; i < pad; i++)
        if (s[len + i]) c->bad = true;
    if (len_bytes)
        *len_bytes = len;
    else if (memchr(s, 0, len))
        c->bad = true;
    return s;
}

static void get_name(cursor *c, char *dst, size_t cap) {
    const char *s = get_text(c, NULL);
    size_t len = c->bad ? 0 : strlen(s);
    if (len >= cap) {
        c->bad = true;
        len = 0;
    }
    memcpy(dst, s, len);
    dst[len] = 0;
}

static void get_params(cursor *c, lg_params *p) {
    p->temperature = get_f32(c);
    p->top_p = get_f32(c);
    p->min_p = get_f32(c);
    p->top_k = get_u32(c);
    p->presence_penalty = get_f32(c);
    p->frequency_penalty = get_f32(c);
    p->repetition_penalty = get_f32(c);
    uint32_t flags = get_u32(c);
    if (flags > 3) c->bad = true;
    p->has_seed = flags & 1u;
    p->ignore_eos = flags & 2u;
    p->seed = get_u64(c);
    p->choice = get_u32(c);
    p->n_top = (int)get_u32(c);
    if (p->n_top < -1 || p->n_top > LG_MAX_TOP) c->bad = true;
}

static void get_ready(cursor *c, lg_link_ready *r) {
    lg_info *i = &r->info;
    i->n_vocab = get_u32(c);
    i->n_token = get_u32(c);
    i->n_ctx = get_u32(c);
    i->n_seq = get_u32(c);
    i->n_page = get_u32(c);
    i->page_tok = get_u32(c);
    uint32_t kv = get_u32(c);
    if (kv < LG_KV_F32 || kv > LG_KV_Q8_0) c->bad = true;
    i->kv = (lg_kv_type)kv;
    uint32_t n_thread = get_u32(c);
    if (n_thread > INT32_MAX) c->bad = true;
    i->n_thread = (int)n_thread;
    i->n_snapshot = get_u32(c);
    i->snapshot_tok = get_u32(c);
    r->n_eos = get_u32(c);
    if (r->n_eos > LG_LINK_MAX_EOS) {
        c->bad = true;
        r->n_eos = 0;
    }
    i->memory_bytes = get_u64(c);
    i->weight_bytes = get_u64(c);
    i->state_bytes = get_u64(c);
    i->scratch_bytes = get_u64(c);
    i->snapshot_bytes = get_u64(c);
    i->n_param = get_u64(c);
    i->n_param_active = get_u64(c);
    get_params(c, &r->params);
    for (uint32_t k = 0; k < r->n_eos; k++) r->eos[k] = get_u32(c);
    get_name(c, i->model_name, sizeof i->model_name);
}

static void get_submit(cursor *c, lg_link_msg *m) {
    lg_request *req = &m->u.submit.req;
    get_params(c, &req->params);
    req->n_id = get_u32(c);
    req->n_produced = get_u32(c);
    req->max_tokens = get_u32(c);
    req->n_bias = get_u32(c);
    req->cache_salt = get_u64(c);
    req->client = get_u64(c);
    req->priority = get_i32_of_64(c);
    if (req->n_id == 0 || req->n_produced > req->n_id || req->n_bias > LG_LINK_MAX_BIAS)
        c->bad = true;
    req->bias = get_array(c, req->n_bias, sizeof req->bias[0]);
    req->ids = get_array(c, req->n_id, sizeof req->ids[0]);
    req->n_stop = get_u32(c);
    if (req->n_stop > LG_LINK_MAX_STOP) {
        c->bad = true;
        req->n_stop = 0;
    }
    for (uint32_t i = 0; i < req->n_stop; i++) m->u.submit.stop[i] = get_text(c, NULL);
    req->stop = m->u.submit.stop;
    uint32_t grammar = get_u32(c);
    if (grammar > 2) c->bad = true;
    req->grammar_think = grammar == 2;
    req->grammar = grammar ? get_text(c, NULL) : NULL;
}

static void get_event(cursor *c, lg_event *e, bool token) {
    e->kind = token ? LG_EVENT_TOKEN : LG_EVENT_DONE;
    if (token) {
        e->token = get_u32(c);
        e->logprob = get_f32(c);
        e->n_top = get_u32(c);
        e->n_cached = get_u32(c);
        if (e->n_top > LG_MAX_TOP) c->bad = true;
        e->top = get_array(c, e->n_top, sizeof e->top[0]);
    } else {
        uint32_t finish = get_u32(c);
        if (finish > LG_FINISH_ERROR) c->bad = true;
        e->finish = (lg_finish)finish;
        e->status = (lg_status)get_u32(c);
        e->stop_index = get_u32(c);
        e->n_prompt = get_u32(c);
        e->n_produced = get_u32_of_64(c);
        e->n_cached = get_u32_of_64(c);
        e->queue_us = get_u64(c);
        e->prefill_us = get_u64(c);
        e->decode_us = get_u64(c);
    }
    e->text = get_text(c, &e->len_bytes);
}

static void get_stats(cursor *c, lg_stats *s) {
    uint64_t *const first[] = {&s->n_step,      &s->n_prefill_tok, &s->n_decode_tok,
                               &s->n_submitted, &s->n_done,        &s->n_cancelled,
                               &s->n_failed,    &s->n_nonfinite};
    for (size_t i = 0; i < LG_COUNT(first); i++) *first[i] = get_u64(c);
    s->n_running = get_u32_of_64(c);
    s->n_waiting = get_u32_of_64(c);
    s->n_page_free = get_u32_of_64(c);
    s->n_slot_free = get_u32_of_64(c);
    s->step_us = get_u64(c);
    s->n_page_cached = get_u32_of_64(c);
    s->n_snapshot = get_u32_of_64(c);
    s->n_prompt_tok = get_u64(c);
    s->n_hit_tok = get_u64(c);
    s->n_evicted = get_u64(c);
    s->n_discarded = get_u64(c);
    uint64_t *const last[] = {&s->n_preempt_kept, &s->n_preempt_dropped, &s->n_again_tok,
                              &s->n_held,         &s->n_cut_step,        &s->n_mixed_step,
                              &s->mixed_us,       &s->mixed_expected_us, &s->mixed_error_us,
                              &s->n_file,         &s->file_bytes,        &s->n_file_tok,
                              &s->n_file_written, &s->n_file_refused,    &s->n_file_skipped,
                              &s->n_aged};
    for (size_t i = 0; i < LG_COUNT(last); i++) *last[i] = get_u64(c);
}

static void get_payload(cursor *c, lg_link_msg *m) {
    switch (m->kind) {
    case LG_LINK_HELLO:
        m->u.hello.version = get_u32_of_64(c);
        m->u.hello.weights_hash = get_u64(c);
        m->u.hello.tokenizer_hash = get_u64(c);
        get_name(c, m->u.hello.model_name, sizeof m->u.hello.model_name);
        return;
    case LG_LINK_PROGRESS:
        m->u.progress.done_bytes = get_u64(c);
        m->u.progress.total_bytes = get_u64(c);
        return;
    case LG_LINK_READY: get_ready(c, &m->u.ready); return;
    case LG_LINK_STATS: get_stats(c, &m->u.stats); return;
    default: break;
    }
    m->id = get_u64(c);
    switch (m->kind) {
    case LG_LINK_SUBMIT: get_submit(c, m); return;
    case LG_LINK_CANCEL: return;
    case LG_LINK_TOKEN: get_event(c, &m->u.event, true); return;
    case LG_LINK_DONE: get_event(c, &m->u.event, false); return;
    case LG_LINK_REFUSED:
    case LG_LINK_GOODBYE:
        m->u.why.status = (lg_status)get_u32(c);
        m->u.why.text = get_text(c, NULL);
        return;
    default: c->bad = true;
    }
}

void lg_link_reader_fini(lg_link_reader *r) {
    lg_buf_fini(&r->in);
    r->at = 0;
}

lg_status lg_link_feed(lg_link_reader *r, const void *data, size_t len_bytes) {
    /* Consumed frames leave only here, so that messages stay valid while they are looked at. */
    lg_buf_consume(&r->in, r->at);
    r->at = 0;
    lg_buf_put(&r->in, data, len_bytes);
    return r->in.failed ? LG_E_NOMEM : LG_OK;
}

lg_status lg_link_next(lg_link_reader *r, lg_link_msg *msg, lg_err *err) {
    size_t have = r->in.len_bytes - r->at;
    if (have < HEAD_BYTES) return LG_AGAIN;
    const uint8_t *p = (const uint8_t *)r->in.data + r->at;
    uint32_t len = lg_num_load32(p), kind = lg_num_load32(p + 4);
    if (len < HEAD_BYTES || len > LG_LINK_MAX_BYTES || len % 8)
        return LG_FAIL(err, LG_E_FORMAT,
                       "link: frame of %u bytes; expected %d to %u, a multiple of 8", len,
                       HEAD_BYTES, LG_LINK_MAX_BYTES);
    if (kind < LG_LINK_HELLO || kind > LG_LINK_GOODBYE)
        return LG_FAIL(err, LG_E_FORMAT, "link: frame kind %u; expected %d to %d", kind,
                       LG_LINK_HELLO, LG_LINK_GOODBYE);
    if (have < len) return LG_AGAIN;
    memset(msg, 0, sizeof *msg);
    msg->kind = (lg_link_kind)kind;
    cursor c = {.p = p + HEAD_BYTES, .left = len - HEAD_BYTES};
    get_payload(&c, msg);
    for (size_t i = 0; !c.bad && i < c.left; i++)
        if (c.left >= 8 || c.p[i]) c.bad = true;
    if (c.bad)
        return LG_FAIL(err, LG_E_FORMAT,
                       "link: payload of a frame of kind %u, %u bytes, is malformed", kind,
                       len);
    r->at += len;
    return LG_OK;
}
