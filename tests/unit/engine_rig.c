/* engine_rig.c - see engine_rig.h. */
#include "engine_rig.h"
#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

uint32_t rig_hash_next(const fake_model *m, const uint32_t *ids, uint32_t n_id) {
    (void)m;
    uint64_t h = 1;
    for (uint32_t i = 0; i < n_id; i++) h = lg_num_rng(h, 9, ids[i], 2);
    return (uint32_t)(h % 3000);
}

uint32_t rig_script_next(const fake_model *m, const uint32_t *ids, uint32_t n_id) {
    (void)ids;
    const rig_script *s = m->next_ctx;
    LG_ASSERT(n_id >= s->n_prompt);
    return s->ids[(n_id - s->n_prompt) % s->n_id];
}

void rig_init(rig *r) {
    *r = (rig){0};
    char path[1024];
    lg_err err = {0};
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    if (lg_tokenizer_open(path, &r->tok, &err) != LG_OK) fail_msg("%s", err.msg);
    r->m.next = rig_hash_next;
    r->m.w.cfg = (lg_config){.n_vocab = RIG_VOCAB,
                             .n_ctx_max = 4096,
                             .n_eos = 2,
                             .eos = {4065, 4063},
                             .top_p = 1.0f,
                             .repetition_penalty = 1.0f};
}

void rig_fini(rig *r) {
    lg_close(&r->eng);
    lg_tokenizer_close(&r->tok);
}

lg_status rig_open(rig *r, const lg_options *opt, lg_err *err) {
    lg_engine_parts parts = {.ops = fake_ops(),
                             .w = &r->m.w,
                             .n_thread = 1,
                             .tok = r->tok,
                             .name = "fake",
                             .n_owner = r->m.n_owner,
                             .hold_steps = r->hold_steps,
                             .disk = r->disk};
    uint64_t bytes = opt->memory_bytes ? opt->memory_bytes : UINT64_C(1) << 30;
    LG_TRY(lg_budget_fit(&r->m.w.cfg, opt, 0, bytes, false, lg_tokenizer_n_id(r->tok), 1,
                         fake_ops()->plan, &parts.budget, err));
    if (r->n_page) parts.budget.opt.n_page = r->n_page;
    if (r->m.pace.step > 0) parts.clock_us = fake_clock_us;
    parts.budget.stall_us = opt->max_stall_us;
    LG_TRY(lg_engine_open(&parts, &r->eng, err));
    r->limit = r->eng->limit;
    return LG_OK;
}

lg_request rig_request(const rig *r, const uint32_t *ids, uint32_t n_id, uint32_t max_tokens,
                       answer *a) {
    lg_request req = {.ids = ids, .n_id = n_id, .max_tokens = max_tokens, .user = a};
    lg_params_init(r->eng, &req.params);
    req.params.has_seed = true;
    if (a) {
        a->n_token = 0;
        a->len_bytes = 0;
        a->text[0] = 0;
        a->done = false;
    }
    return req;
}

static void put_event(const lg_event *e) {
    answer *a = e->user;
    if (!a) return;
    assert_int_equal(e->id, a->id);
    assert_false(a->done);
    assert_true(a->len_bytes + e->len_bytes < sizeof a->text);
    if (e->len_bytes) memcpy(a->text + a->len_bytes, e->text, e->len_bytes);
    a->len_bytes += e->len_bytes;
    a->text[a->len_bytes] = 0;
    if (e->kind == LG_EVENT_DONE) {
        a->done = true;
        a->end = *e;
        return;
    }
    a->token[a->n_token] = e->token;
    a->logprob[a->n_token] = e->logprob;
    a->emitted[a->n_token++] = (uint32_t)a->len_bytes;
}

uint32_t rig_fetch(lg_engine *eng) {
    lg_event e;
    uint32_t n = 0;
    for (; lg_next_event(eng, &e) == LG_OK; n++) put_event(&e);
    return n;
}

lg_status rig_run(lg_engine *eng) {
    lg_status st;
    while ((st = lg_step(eng)) == LG_OK) rig_fetch(eng);
    rig_fetch(eng);
    return st;
}
