/* seq.c - one request: its checks, its ids and the text they make: see engine.h.
 *
 * In:  lg_request, sampled ids.   Out: lg_event fields of the sequence.
 * Invariants: text given out is a function of the ids alone, so a request that is submitted again with ids it produced
 * before goes on exactly where it was.  Text that may be the beginning of a stop string, or half a character, is held.
 * Thread: engine.  Memory: two blocks at lg_seq_open; nothing later.  Test: tests/unit/test_engine.c */
#include "engine/engine.h"
#include "base/utf8.h"

#include <string.h>
#include <sys/random.h>

/* Bytes that one id can add to the text: every byte of a piece may become U+FFFD, as may bytes held before it. */
static size_t text_per_id(const lg_seq_limit *lim) {
    return 3 * ((size_t)lim->max_piece + 4);
}

/* ---- checks ---- */

static lg_status check_range(const char *name, float v, float low, float high, bool low_open,
                             lg_err *err) {
    if (v >= low && v <= high && !(low_open && v == low)) return LG_OK;
    return LG_FAIL(err, LG_E_ARG, "%s: found %g, expected %c%g, %g]", name, (double)v,
                   low_open ? '(' : '[', (double)low, (double)high);
}

static lg_status check_params(const lg_params *p, lg_err *err) {
    LG_TRY(check_range("temperature", p->temperature, 0.0f, 100.0f, false, err));
    LG_TRY(check_range("top_p", p->top_p, 0.0f, 1.0f, true, err));
    LG_TRY(check_range("min_p", p->min_p, 0.0f, 1.0f, false, err));
    LG_TRY(check_range("presence_penalty", p->presence_penalty, -2.0f, 2.0f, false, err));
    LG_TRY(check_range("frequency_penalty", p->frequency_penalty, -2.0f, 2.0f, false, err));
    LG_TRY(check_range("repetition_penalty", p->repetition_penalty, 0.0f, 10.0f, true, err));
    if (p->n_top < -1 || p->n_top > LG_MAX_TOP)
        return LG_FAIL(err, LG_E_ARG, "n_top: found %d, expected -1 to %d", p->n_top,
                       LG_MAX_TOP);
    return LG_OK;
}

static lg_status check_ids(const lg_seq_limit *lim, const lg_request *req, lg_err *err) {
    if (!req->ids || req->n_id == 0)
        return LG_FAIL(err, LG_E_ARG, "n_id: the prompt is empty, expected at least 1 id");
    if (req->n_produced >= req->n_id)
        return LG_FAIL(err, LG_E_ARG, "n_produced: found %u, expected less than n_id (%u)",
                       req->n_produced, req->n_id);
    uint32_t most = req->n_produced ? lim->n_ctx : lim->n_ctx - 1;
    if (req->n_id > most)
        return LG_FAIL(err, LG_E_ARG, "n_id: found %u ids, expected at most %u (context %u)",
                       req->n_id, most, lim->n_ctx);
    for (uint32_t i = 0; i < req->n_id; i++)
        if (req->ids[i] >= lim->n_token)
            return LG_FAIL(err, LG_E_ARG, "ids[%u]: found %u, expected less than %u", i,
                           req->ids[i], lim->n_token);
    return LG_OK;
}

static lg_status check_lists(const lg_seq_limit *lim, const lg_request *req, lg_err *err) {
    if (req->n_stop > LG_MAX_STOP || (req->n_stop && !req->stop))
        return LG_FAIL(err, LG_E_ARG, "n_stop: found %u, expected at most %d strings",
                       req->n_stop, LG_MAX_STOP);
    for (uint32_t i = 0; i < req->n_stop; i++) {
        size_t len = req->stop[i] ? strlen(req->stop[i]) : 0;
        if (len == 0 || len > LG_MAX_STOP_BYTES || !lg_utf8_valid(req->stop[i], len))
            return LG_FAIL(err, LG_E_ARG,
                           "stop[%u]: found %zu bytes, expected 1 to %d bytes of UTF-8", i, len,
                           LG_MAX_STOP_BYTES);
    }
    if (req->n_bias > LG_MAX_BIAS || (req->n_bias && !req->bias))
        return LG_FAIL(err, LG_E_ARG, "n_bias: found %u, expected at most %d entries",
                       req->n_bias, LG_MAX_BIAS);
    for (uint32_t i = 0; i < req->n_bias; i++) {
        if (req->bias[i].id >= lim->n_token)
            return LG_FAIL(err, LG_E_ARG, "bias[%u].id: found %u, expected less than %u", i,
                           req->bias[i].id, lim->n_token);
        LG_TRY(check_range("bias", req->bias[i].bias, -100.0f, 100.0f, false, err));
    }
    return LG_OK;
}

static lg_status open_guide(const lg_seq_limit *lim, const lg_request *req, lg_seq *seq,
                            lg_err *err) {
    if (!req->grammar) return LG_OK;
    if (req->params.ignore_eos)
        return LG_FAIL(err, LG_E_ARG, "ignore_eos: an answer with a grammar has an end");
    LG_TRY(lg_guide_open(lim->kit, req->grammar, req->grammar_think,
                         req->ids + req->n_id - req->n_produced, req->n_produced, &seq->guide,
                         err));
    seq->sampler.mask = lg_guide_mask(seq->guide);
    return LG_OK;
}

/* ---- text ---- */

/* Forget what was emitted in the last step. */
static void text_begin(lg_seq *seq) {
    lg_buf_consume(&seq->text, seq->n_emit);
    seq->n_emit = 0;
}

static bool is_eos(const lg_seq *seq, const lg_seq_limit *lim, uint32_t id) {
    if (seq->sampler.params.ignore_eos) return false;
    for (uint32_t i = 0; i < lim->n_eos; i++)
        if (lim->eos[i] == id) return true;
    return false;
}

/* Add the text of id; what is certain now is text[0, n_emit). */
static void text_put(lg_seq *seq, const lg_seq_limit *lim, uint32_t id) {
    text_begin(seq);
    size_t at = seq->text.len_bytes;
    if (!is_eos(seq, lim, id)) lg_detok_put(&seq->detok, id, &seq->text);
    LG_ASSERT(!seq->text.failed);
    for (; at < seq->text.len_bytes; at++) {
        if (!lg_stop_put(&seq->stop, seq->text.data[at], &seq->stop_index)) continue;
        seq->met_stop = true;
        seq->n_emit = (uint32_t)(at + 1 - seq->stop.len_bytes[seq->stop_index]);
        seq->text.len_bytes = seq->n_emit;
        seq->text.data[seq->n_emit] = 0;
        return;
    }
    seq->n_emit = (uint32_t)seq->text.len_bytes - lg_stop_held(&seq->stop);
}

/* ---- life ---- */

static int by_id(const lg_bias *a, const lg_bias *b) {
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Copy the bias list in order of ids (insertion: the list is short and often sorted). */
static void copy_bias(lg_bias *to, const lg_bias *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && by_id(&from[i], &to[at - 1]) < 0; at--) to[at] = to[at - 1];
        to[at] = from[i];
    }
}

/* Carve a request's memory; with a counting arena nothing is copied. */
static lg_seq *carve(const lg_request *req, lg_arena *a) {
    lg_seq *seq = lg_arena_take(a, 1, sizeof *seq);
    uint32_t *ids = lg_arena_take(a, req->n_id, sizeof *ids);
    lg_bias *bias = lg_arena_take(a, req->n_bias, sizeof *bias);
    if (seq) {
        *seq = (lg_seq){.prompt_ids = ids, .slot = UINT32_MAX, .store = UINT32_MAX};
        memcpy(ids, req->ids, req->n_id * sizeof *ids);
        copy_bias(bias, req->bias, req->n_bias);
        seq->sampler.bias = bias;
        seq->stop.n = req->n_stop;
    }
    for (uint32_t i = 0; i < req->n_stop; i++) {
        size_t len = strlen(req->stop[i]);
        char *s = lg_arena_take(a, len + 1, 1);
        uint32_t *border = lg_arena_take(a, len, sizeof *border);
        if (!seq) continue;
        memcpy(s, req->stop[i], len + 1);
        seq->stop.s[i] = s;
        seq->stop.len_bytes[i] = (uint32_t)len;
        seq->stop.border[i] = border;
    }
    return seq;
}

static lg_status fresh_seed(lg_params *p, lg_err *err) {
    if (p->has_seed) return LG_OK;
    if (getrandom(&p->seed, sizeof p->seed, 0) != (ssize_t)sizeof p->seed)
        return LG_FAIL(err, LG_E_IO, "seed: the system gave no random number");
    p->has_seed = true;
    return LG_OK;
}

lg_status lg_seq_open(const lg_seq_limit *lim, const lg_request *req, uint64_t id, lg_seq **out,
                      lg_err *err) {
    *out = NULL;
    LG_TRY(check_ids(lim, req, err));
    LG_TRY(check_params(&req->params, err));
    LG_TRY(check_lists(lim, req, err));
    lg_arena a;
    lg_arena_init(&a, NULL, 0);
    carve(req, &a);
    size_t bytes = a.used_bytes;
    /* What is held (a stop string at most), what one id adds, and what the end adds. */
    size_t text_bytes = (req->n_stop ? LG_MAX_STOP_BYTES : 0) + 2 * text_per_id(lim) + 1;
    if (bytes + text_bytes > lim->n_byte_free) return LG_AGAIN;
    void *block = lg_mem_alloc(bytes);
    if (!block) return LG_FAIL(err, LG_E_NOMEM, "request: no memory for %zu bytes", bytes);
    lg_arena_init(&a, block, bytes);
    lg_seq *seq = carve(req, &a);
    LG_ASSERT((void *)seq == block);
    seq->n_byte = bytes + text_bytes;
    seq->text.cap_bytes = text_bytes;
    seq->text.data = lg_mem_alloc(text_bytes);
    seq->id = id;
    seq->sampler.params = req->params;
    lg_status st = fresh_seed(&seq->sampler.params, err);
    if (st == LG_OK) st = open_guide(lim, req, seq, err);
    if (st == LG_OK && !seq->text.data)
        st = LG_FAIL(err, LG_E_NOMEM, "request: no memory for %zu bytes", seq->text.cap_bytes);
    if (st != LG_OK) {
        lg_seq_close(&seq);
        return st;
    }
    seq->sampler.n_bias = req->n_bias;
    seq->sampler.ids = seq->prompt_ids;
    seq->sampler.n_id = req->n_id;
    seq->sampler.n_prompt = req->n_id - req->n_produced;
    seq->max_produced = req->max_tokens;
    seq->salt = req->cache_salt;
    seq->priority = req->priority;
    seq->n_known = req->n_id;
    seq->token.kind = LG_EVENT_TOKEN;
    seq->end.kind = LG_EVENT_DONE;
    seq->token.id = seq->end.id = id;
    seq->token.user = seq->end.user = req->user;
    lg_stop_init(&seq->stop);
    lg_detok_init(&seq->detok, lim->tok, false);
    for (uint32_t i = seq->sampler.n_prompt; i < req->n_id && !seq->met_stop; i++)
        text_put(seq, lim, req->ids[i]);
    text_begin(seq);
    *out = seq;
    return LG_OK;
}

void lg_seq_close(lg_seq **seq) {
    if (!*seq) return;
    lg_buf_fini(&(*seq)->text);
    lg_guide_close(&(*seq)->guide);
    LG_FREE(*seq);
}

uint32_t lg_seq_n_need(const lg_seq *seq, uint32_t n_ctx) {
    uint64_t need = (uint64_t)seq->sampler.n_prompt + seq->max_produced;
    return seq->max_produced == 0 || need > n_ctx ? n_ctx : (uint32_t)need;
}

lg_finish lg_seq_finish(const lg_seq *seq, const lg_seq_limit *lim) {
    const lg_sampler *s = &seq->sampler;
    uint32_t n_produced = s->n_id - s->n_prompt;
    if (n_produced == 0) return LG_FINISH_NONE;
    if (is_eos(seq, lim, s->ids[s->n_id - 1])) return LG_FINISH_EOS;
    if (seq->met_stop) return LG_FINISH_STOP;
    if (seq->max_produced && n_produced >= seq->max_produced) return LG_FINISH_LENGTH;
    return s->n_id >= lim->n_ctx ? LG_FINISH_LENGTH : LG_FINISH_NONE;
}

/* Ids produced earlier may have been kept too; they are not of the prompt. */
static uint32_t n_cached(const lg_seq *seq) {
    uint32_t n_prompt = seq->sampler.n_prompt;
    return seq->n_cached < n_prompt ? seq->n_cached : n_prompt;
}

bool lg_seq_take(lg_seq *seq, const lg_seq_limit *lim, const lg_sampled *got) {
    seq->sampler.n_id++;
    text_put(seq, lim, got->id);
    memcpy(seq->top, got->top, got->n_top * sizeof *got->top);
    seq->token.token = got->id;
    seq->token.logprob = got->logprob;
    seq->token.n_top = got->n_top;
    seq->token.top = seq->top;
    seq->token.text = lg_buf_str(&seq->text);
    seq->token.len_bytes = seq->n_emit;
    seq->token.n_cached = n_cached(seq);
    seq->has_token = true;
    if (!seq->guide) return true;
    lg_guide_take(seq->guide, got->id);
    seq->sampler.mask = lg_guide_mask(seq->guide);
    return seq->sampler.mask != NULL;
}

void lg_seq_end(lg_seq *seq, lg_finish finish, lg_status status, uint64_t now_us) {
    if (!seq->met_stop) lg_detok_finish(&seq->detok, &seq->text);
    LG_ASSERT(!seq->text.failed);
    lg_event *e = &seq->end;
    e->text = lg_buf_str(&seq->text) + seq->n_emit;
    e->len_bytes = seq->text.len_bytes - seq->n_emit;
    e->finish = finish;
    e->status = status;
    e->stop_index = seq->met_stop ? seq->stop_index : 0;
    e->n_prompt = seq->sampler.n_prompt;
    e->n_produced = seq->sampler.n_id - seq->sampler.n_prompt;
    e->n_cached = n_cached(seq);
    uint64_t admit_us = seq->admit_us ? seq->admit_us : now_us;
    uint64_t first_us = seq->first_us ? seq->first_us : now_us;
    e->queue_us = admit_us - seq->submit_us;
    e->prefill_us = first_us - admit_us;
    e->decode_us = now_us - first_us;
    seq->has_end = true;
}
