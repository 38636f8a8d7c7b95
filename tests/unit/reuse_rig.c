/* reuse_rig.c - see reuse_rig.h. */
#include "reuse_rig.h"

bench benches[N_BENCH] = {
    {.name = "tiny-qwen35moe", .path = "models/tiny-qwen35moe"},
    {.name = "tiny-moe", .path = "tests/data/models/tiny-moe", .kv = LG_KV_Q8_0}};
static lg_pool *pool, *single;
static lg_tokenizer *tok;
static lg_engine *watched; /* whose steps are hashed */
enum fault fault;

/* ---- a backend that notes logits and can be made to err ---- */

static lg_status noting_step(lg_backend *be, const lg_batch *batch, lg_step_out *out) {
    static lg_batch_save late[4096];
    static const lg_batch_save *right[64];
    lg_batch_seq *seq = watched->sched.row;
    for (uint32_t i = 0, n = 0; fault == LATE && i < batch->n_seq; i++) {
        lg_batch_save *to = late + n;
        for (uint32_t k = 0; k < seq[i].n_save; k++, n++) {
            late[n] = seq[i].save[k];
            if (late[n].n_row < seq[i].n_tok) late[n].n_row++;
        }
        right[i] = seq[i].save;
        seq[i].save = to;
    }
    lg_status st = lg_backend_step(be, batch, out);
    for (uint32_t i = 0; fault == LATE && i < batch->n_seq; i++) seq[i].save = right[i];
    const float *row = out->logits;
    for (uint32_t i = 0; i < batch->n_seq; i++, row += seq[i - 1].n_out * out->ld_logits) {
        if (!seq[i].sampler) continue;
        outcome *o = watched->sched.who[i]->token.user;
        uint64_t h = 1;
        for (uint32_t v = 0; v < be->cfg->n_vocab; v++)
            h = (h ^ lg_num_bits_of_float(row[v])) * 0x100000001b3u;
        o->hash[seq[i].sampler->n_id - seq[i].sampler->n_prompt] = h;
    }
    return st;
}

static void faulty_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                        uint32_t snap) {
    lg_backend_load(be, owner, slot, n_tok, snap);
    if (fault != DROP_STATE) return;
    for (uint32_t l = 0; l < be->cfg->n_layer; l++)
        if (be->cfg->layer[l] == LG_LAYER_GDN)
            memset(lg_cpu_slot(be, slot, l), 0, be->lay.conv * sizeof(float));
}

static void faulty_put_page(lg_backend *be, uint32_t page, const void *from) {
    lg_backend_put_page(be, page, from);
    if (fault == FILE_PAGES) memset(be->page + page * be->lay.page, 0, be->lay.page / 2);
}

static void faulty_put_snap(lg_backend *be, uint32_t snap, uint32_t part, const void *from) {
    lg_backend_put_snap(be, snap, part, from);
    if (fault == FILE_STATE)
        memset(be->snap + snap * be->lay.slot + part * be->lay.gdn, 0,
               be->lay.conv * sizeof(float));
}

static const lg_backend_ops noting = {.plan = lg_backend_plan_bytes,
                                      .open = lg_backend_open,
                                      .close = lg_backend_close,
                                      .step = noting_step,
                                      .save = lg_backend_save,
                                      .load = faulty_load,
                                      .copy_page = lg_backend_copy_page,
                                      .get_page = lg_backend_get_page,
                                      .put_page = faulty_put_page,
                                      .get_snap = lg_backend_get_snap,
                                      .put_snap = faulty_put_snap};

/* ---- prompts ---- */

bool few(void) {
    return test_few("every fifth prompt");
}

static void read_chats(bench *b) {
    static char line[1 << 16];
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/data/eval.jsonl", root ? root : ".");
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: cannot be read", path);
    for (uint32_t k = 0; fgets(line, sizeof line, f); k++) {
        lg_json_doc *doc;
        if (few() && k % 5) continue;
        text *t = &b->text[b->n_text++];
        uint64_t id;
        assert_int_equal(lg_json_parse(line, strlen(line), 64, path, &doc, NULL), LG_OK);
        const lg_json *v = lg_json_get(lg_json_root(doc), "prompt_ids");
        for (v = v->child; v; v = v->next) {
            assert_true(t->n_id < MAX_PROMPT && lg_json_u64(v, &id));
            t->ids[t->n_id++] = (uint32_t)id;
        }
        lg_json_close(&doc);
    }
    fclose(f);
    assert_int_equal(b->n_text, few() ? 40 : 200);
}

/* 120 texts, many of which begin as an earlier one does. */
static void make_texts(bench *b) {
    for (b->n_text = 0; b->n_text < (few() ? 24 : 120); b->n_text++) {
        text *t = &b->text[b->n_text];
        uint64_t r = lg_num_rng(5, 0, b->n_text, 0);
        const text *from = &b->text[b->n_text ? r % b->n_text : 0];
        t->n_id = 2 + (uint32_t)(r >> 8) % 300;
        for (uint32_t i = 0; i < t->n_id; i++)
            t->ids[i] = (uint32_t)(lg_num_rng(6, b->n_text, i, 0) % b->w->cfg.n_vocab);
        uint32_t same = b->n_text ? (uint32_t)(r >> 24) % 300 : 0;
        if (same > from->n_id) same = from->n_id;
        if (same > t->n_id - 1) same = t->n_id - 1;
        memcpy(t->ids, from->ids, same * sizeof *t->ids);
    }
}

/* ---- running ---- */

void open_bench(bench *b, const setting *s) {
    lg_err err = {0};
    lg_engine_parts parts = {.ops = &noting,
                             .w = b->w,
                             .pool = s->one_thread ? single : pool,
                             .n_thread = s->one_thread ? 1 : 2,
                             .tok = tok,
                             .name = b->name};
    lg_options opt = {.n_ctx = 1024,
                      .n_seq = s->n_seq,
                      .n_batch_tok = s->n_batch_tok,
                      .kv = b->kv,
                      .no_cache = s->no_cache};
    uint32_t n_token = lg_tokenizer_n_id(tok);
    if (n_token > b->w->cfg.n_vocab) n_token = b->w->cfg.n_vocab;
    b->w->cfg.n_ctx_max = 4096;
    if (lg_budget_fit(&b->w->cfg, &opt, 0, UINT64_C(400) << 20, false, n_token, parts.n_thread,
                      noting.plan, &parts.budget, &err))
        fail_msg("%s", err.msg);
    if (s->n_snap) parts.budget.opt.n_snap = s->n_snap;
    if (s->n_page) parts.budget.opt.n_page = s->n_page;
    parts.disk = (lg_disk_opt){.dir = s->dir, .limit_bytes = UINT64_C(2) << 30, .always = true};
    memcpy(parts.disk.model, b->name, strlen(b->name));
    if (lg_engine_open(&parts, &b->eng, &err)) fail_msg("%s", err.msg);
    watched = b->eng;
}

uint64_t submit(bench *b, uint32_t i, uint32_t n_produced) {
    lg_err err = {0};
    uint64_t id;
    static uint32_t ids[MAX_PROMPT + MAX_NEW];
    const text *t = &b->text[i];
    outcome *o = &b->got[i];
    *o = (outcome){0};
    memcpy(ids, t->ids, t->n_id * sizeof *ids);
    for (uint32_t k = 0; k < n_produced; k++) {
        ids[t->n_id + k] = o->id[k] = b->cold[i].id[k];
        o->hash[k] = b->cold[i].hash[k];
    }
    o->n = n_produced;
    lg_request req = {.ids = ids,
                      .n_id = t->n_id + n_produced,
                      .n_produced = n_produced,
                      .max_tokens = MAX_NEW,
                      .user = o};
    lg_params_init(b->eng, &req.params);
    req.params.temperature = 0.0f;
    req.params.repetition_penalty = 1.0f;
    req.params.ignore_eos = true;
    if (lg_submit(b->eng, &req, &id, &err)) fail_msg("%s", err.msg);
    return id;
}

void fetch(bench *b) {
    lg_event e;
    while (lg_next_event(b->eng, &e) == LG_OK) {
        outcome *o = e.user;
        if (e.kind == LG_EVENT_DONE) {
            o->done = true;
            o->n_cached = e.n_cached;
        } else {
            o->id[o->n++] = e.token;
        }
    }
}

void run(bench *b) {
    while (lg_step(b->eng) == LG_OK) {
        fetch(b);
        if (b->eng->disk) lg_disk_flush(b->eng->disk); /* nothing shall be left out */
    }
    fetch(b);
}

/* Prompts whose ids or logits are not those of the cold run. */
uint32_t n_different(const bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) {
        const outcome *c = &b->cold[i], *g = &b->got[i];
        n += !g->done || g->n != c->n || memcmp(g->id, c->id, sizeof c->id) != 0 ||
             memcmp(g->hash, c->hash, sizeof c->hash) != 0;
    }
    return n;
}

uint32_t n_cached(const bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) n += b->got[i].n_cached;
    return n;
}

void expect_same(const bench *b, const char *axis) {
    uint32_t n = n_different(b);
    if (n) fail_msg("%s, %s: %u of %u prompts differ", b->name, axis, n, b->n_text);
    print_message("  %s, %s: %u prompts, %u tokens reused, all equal\n", b->name, axis,
                  b->n_text, n_cached(b));
}

static void assert_ledger(const bench *b) {
    lg_stats st;
    lg_get_stats(b->eng, &st);
    assert_int_equal(st.n_page_free, b->eng->info.n_page);
    assert_int_equal(st.n_slot_free, b->eng->info.n_seq);
    assert_int_equal(st.n_snapshot + b->eng->home->prefix.n_snap_free, b->eng->info.n_snapshot);
    lg_prefix_clear(&b->eng->home->prefix);
    assert_int_equal(b->eng->home->state.pages.n_free, b->eng->info.n_page);
    assert_int_equal(b->eng->home->prefix.n_node_free, b->eng->home->prefix.n_node);
    assert_int_equal(b->eng->home->prefix.n_snap_free, b->eng->info.n_snapshot);
}

void close_bench(bench *b) {
    assert_ledger(b);
    lg_close(&b->eng);
}

void run_all(bench *b, bool alone) {
    for (uint32_t i = 0; i < b->n_text; i++) {
        submit(b, i, 0);
        if (alone) run(b);
    }
    run(b);
}

uint32_t run_putting_back(bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) submit(b, i, 0);
    for (uint32_t k = 0; lg_step(b->eng) == LG_OK; k++) {
        fetch(b);
        uint64_t x = lg_num_rng(8, k, 0, 0);
        for (uint32_t i = 0; i < x % 3 && b->eng->n_run && k % 2; i++, n++)
            lg_admit_put_back(b->eng, b->eng->run[(x >> 8) % b->eng->n_run], x >> 32 & 1);
    }
    fetch(b);
    return n;
}

/* ---- all ---- */

int open_all(void **state) {
    (void)state;
    lg_err err = {0};
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    if (lg_pool_open(2, &pool, &err) || lg_pool_open(1, &single, &err)) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    if (lg_tokenizer_open(path, &tok, &err)) fail_msg("%s", err.msg);
    for (size_t k = 0; k < LG_COUNT(benches); k++) {
        bench *b = &benches[k];
        snprintf(path, sizeof path, "%s/%s", root ? root : ".", b->path);
        if (lg_weights_open(path, pool, NULL, NULL, &b->w, &err)) fail_msg("%s", err.msg);
        if (k == 0) {
            read_chats(b);
        } else {
            make_texts(b);
        }
        open_bench(b, &(setting){.n_seq = 1, .no_cache = true});
        run_all(b, true);
        for (uint32_t i = 0; i < b->n_text; i++) {
            assert_int_equal(b->got[i].n, MAX_NEW);
            assert_int_equal(b->got[i].n_cached, 0);
        }
        memcpy(b->cold, b->got, sizeof b->cold);
        close_bench(b);
    }
    return 0;
}

int close_all(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(benches); k++) lg_weights_close(&benches[k].w);
    lg_tokenizer_close(&tok);
    lg_pool_close(&pool);
    lg_pool_close(&single);
    return lg_mem_alive() == 0 ? 0 : -1;
}
