/* reuse_rig.c - see reuse_rig.h. */
#include "reuse_rig.h"

#include <math.h>

bench benches[N_BENCH] = {
    {.name = "tiny-qwen35moe", .path = "models/tiny-qwen35moe"},
    {.name = "tiny-moe", .path = "tests/data/models/tiny-moe", .kv = LG_KV_Q8_0}};
static lg_pool *pool, *single;
static lg_tokenizer *tok;
static lg_engine *watched; /* whose steps are noted */
static bench *watched_bench;
enum fault fault;
static int64_t alive;
static float worst; /* largest difference of two logits since this was said last */

/* ---- this processor as a target ---- */

static void drop_state(lg_backend *be, uint32_t owner, uint32_t slot) {
    LG_ASSERT(owner == 0);
    for (uint32_t l = 0; l < be->cfg->n_layer; l++)
        if (be->cfg->layer[l] == LG_LAYER_GDN)
            memset(lg_cpu_slot(be, slot, l), 0, be->lay.conv * sizeof(float));
}

static void drop_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part) {
    LG_ASSERT(owner == 0);
    memset(be->snap + snap * be->lay.slot + part * be->lay.gdn, 0,
           be->lay.conv * sizeof(float));
}

static void drop_page(lg_backend *be, uint32_t owner, uint32_t page) {
    LG_ASSERT(owner == 0);
    memset(be->page + page * be->lay.page, 0, be->lay.page / 2);
}

/* Its calls are the functions of backend.h. */
static const lg_backend_ops cpu_ops = {.plan = lg_backend_plan_bytes,
                                       .open = lg_backend_open,
                                       .close = lg_backend_close,
                                       .step = lg_backend_step,
                                       .save = lg_backend_save,
                                       .load = lg_backend_load,
                                       .copy_page = lg_backend_copy_page,
                                       .get_page = lg_backend_get_page,
                                       .put_page = lg_backend_put_page,
                                       .get_snap = lg_backend_get_snap,
                                       .put_snap = lg_backend_put_snap};

target under = {
    .ops = &cpu_ops, .drop_state = drop_state, .drop_snap = drop_snap, .drop_page = drop_page};

/* ---- a backend that notes logits and can be made to err ---- */

/* The row that token k of an answer is chosen from. */
static void note(outcome *o, uint32_t k, const float *row) {
    bench *b = watched_bench;
    uint32_t n = b->w->cfg.n_vocab;
    uint64_t h = 1;
    for (uint32_t v = 0; v < n; v++) h = (h ^ lg_num_bits_of_float(row[v])) * 0x100000001b3u;
    o->hash[k] = h;
    if (b->got_row)
        memcpy(b->got_row + ((size_t)(o - b->got) * MAX_NEW + k) * n, row, n * sizeof *row);
}

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
    lg_status st = under.ops->step(be, batch, out);
    for (uint32_t i = 0; fault == LATE && i < batch->n_seq; i++) seq[i].save = right[i];
    const float *row = out->logits;
    for (uint32_t i = 0; i < batch->n_seq; i++, row += seq[i - 1].n_out * out->ld_logits)
        if (seq[i].sampler)
            note(watched->sched.who[i]->token.user,
                 seq[i].sampler->n_id - seq[i].sampler->n_prompt, row);
    return st;
}

static void faulty_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                        uint32_t snap) {
    under.ops->load(be, owner, slot, n_tok, snap);
    if (fault == DROP_STATE) under.drop_state(be, owner, slot);
}

static void faulty_put_page(lg_backend *be, uint32_t owner, uint32_t page, const void *from) {
    under.ops->put_page(be, owner, page, from);
    if (fault == FILE_PAGES) under.drop_page(be, owner, page);
}

static void faulty_put_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                            const void *from) {
    under.ops->put_snap(be, owner, snap, part, from);
    if (fault == FILE_STATE) under.drop_snap(be, owner, snap, part);
}

/* A device gets the same sizes every time, so that programs are compiled once; the engine keeps to its own. */
static lg_status open_same(const lg_weights *w, const lg_backend_opt *opt, lg_pool *p,
                           lg_backend **be, lg_err *err) {
    lg_backend_opt same = *opt;
    same.n_slot = same.max_seq = same.max_out = 8;
    same.n_snap = 100;
    same.n_page = 400;
    same.max_tok = 256;
    if (opt->n_slot > same.n_slot || opt->max_tok > same.max_tok || opt->n_snap > same.n_snap ||
        opt->n_page > same.n_page)
        return LG_FAIL(err, LG_E_ARG, "a setting is larger than those of a device");
    return under.ops->open(w, &same, p, be, err);
}

/* The target's calls, with ours around some. */
static const lg_backend_ops *noting(void) {
    static lg_backend_ops ops;
    ops = *under.ops;
    ops.step = noting_step;
    if (under.device) ops.open = open_same;
    ops.load = faulty_load;
    ops.put_page = faulty_put_page;
    ops.put_snap = faulty_put_snap;
    return &ops;
}

/* ---- prompts ---- */

bool few(void) {
    return under.device || test_few("every sixteenth prompt, at most 16 at a time");
}

/* Of so many prompts one is taken. */
static uint32_t one_of(void) {
    return under.device ? 5 : few() ? 16 : 1;
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
        if (k % one_of()) continue;
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
    assert_int_equal(b->n_text, (200 + one_of() - 1) / one_of());
}

/* 120 texts, many of which begin as an earlier one does. */
static void make_texts(bench *b) {
    uint32_t n_text = few() ? 12 : 120;
    for (b->n_text = 0; b->n_text < n_text; b->n_text++) {
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
    lg_engine_parts parts = {.ops = noting(),
                             .w = b->w,
                             .pool = s->one_thread ? single : pool,
                             .n_thread = s->one_thread ? 1 : 2,
                             .tok = tok,
                             .name = b->name,
                             .n_owner = under.n_home};
    bool less = under.device != NULL;
    lg_options opt = {.n_ctx = less ? 512 : 1024,
                      .n_seq = less && s->n_seq > 8 ? 8 : s->n_seq,
                      .n_batch_tok = less && s->n_batch_tok == 0 ? 256 : s->n_batch_tok,
                      .kv = under.device ? LG_KV_F32 : b->kv,
                      .no_cache = s->no_cache};
    uint32_t n_token = lg_tokenizer_n_id(tok);
    if (n_token > b->w->cfg.n_vocab) n_token = b->w->cfg.n_vocab;
    b->w->cfg.n_ctx_max = 4096;
    if (lg_budget_fit_on(&b->w->cfg, &opt, 0, UINT64_C(400) << 20, false, n_token,
                         parts.n_thread, parts.ops->plan, NULL, under.device, &parts.budget,
                         &err))
        fail_msg("%s", err.msg);
    if (s->n_snap) parts.budget.opt.n_snap = s->n_snap;
    if (s->n_page) parts.budget.opt.n_page = s->n_page;
    if (less && parts.budget.opt.n_snap > 100) parts.budget.opt.n_snap = 100;
    if (less && parts.budget.opt.n_page > 400) parts.budget.opt.n_page = 400;
    parts.disk = (lg_disk_opt){.dir = s->dir, .limit_bytes = UINT64_C(2) << 30, .always = true};
    memcpy(parts.disk.model, b->name, strlen(b->name));
    if (lg_engine_open(&parts, &b->eng, &err)) fail_msg("%s", err.msg);
    watched = b->eng;
    watched_bench = b;
}

static float *row_of(const bench *b, float *rows, uint32_t i, uint32_t k) {
    return rows + ((size_t)i * MAX_NEW + k) * b->w->cfg.n_vocab;
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
        if (b->got_row)
            memcpy(row_of(b, b->got_row, i, k), row_of(b, b->cold_row, i, k),
                   b->w->cfg.n_vocab * sizeof(float));
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
    if (under.device) req.params.n_top = 1; /* so that rows come down from it */
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
        for (uint32_t i = 0; i < b->eng->n_home; i++)
            if (b->eng->home[i].disk)
                lg_disk_flush(b->eng->home[i].disk); /* nothing shall be left out */
    }
    fetch(b);
}

/* Within the slack; after a near-tie that went the other way an answer goes on in its own way. */
static bool is_near(const bench *b, uint32_t i) {
    const outcome *c = &b->cold[i], *g = &b->got[i];
    for (uint32_t k = 0; k < MAX_NEW; k++) {
        const float *x = row_of(b, b->cold_row, i, k), *y = row_of(b, b->got_row, i, k);
        for (uint32_t v = 0; v < b->w->cfg.n_vocab; v++) {
            float d = fabsf(x[v] - y[v]);
            if (!(d <= under.slack)) return false;
            if (d > worst) worst = d;
        }
        if (c->id[k] != g->id[k]) return x[c->id[k]] - x[g->id[k]] <= 2 * under.slack;
    }
    return true;
}

bool is_same(const bench *b, uint32_t i) {
    const outcome *c = &b->cold[i], *g = &b->got[i];
    if (!g->done || g->n != c->n) return false;
    if (under.device) return is_near(b, i);
    return memcmp(g->id, c->id, sizeof c->id) == 0 &&
           memcmp(g->hash, c->hash, sizeof c->hash) == 0;
}

uint32_t n_different(const bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) n += !is_same(b, i);
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
    if (under.device)
        print_message("  %s, %s: %u prompts, %u tokens reused, largest difference %.2g\n",
                      b->name, axis, b->n_text, n_cached(b), (double)worst);
    else
        print_message("  %s, %s: %u prompts, %u tokens reused, all equal\n", b->name, axis,
                      b->n_text, n_cached(b));
    worst = 0;
}

void forget(bench *b) {
    for (uint32_t i = 0; i < b->eng->n_home; i++) lg_prefix_clear(&b->eng->home[i].prefix);
}

static void assert_ledger(bench *b) {
    const lg_backend_opt *opt = &b->eng->parts.budget.opt; /* of each home */
    uint32_t n_home = b->eng->n_home;
    lg_stats st;
    lg_get_stats(b->eng, &st);
    assert_int_equal(b->eng->info.n_page, opt->n_page * n_home);
    assert_int_equal(st.n_page_free, opt->n_page * n_home);
    assert_int_equal(st.n_slot_free, opt->n_slot * n_home);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n_home; i++) {
        const lg_home *h = &b->eng->home[i];
        assert_int_equal(h->n_run, 0);
        assert_int_equal(h->state.n_slot_free, opt->n_slot);
        assert_int_equal(h->state.pages.n_free + h->state.pages.n_cached, opt->n_page);
        assert_int_equal(h->prefix.n_kept + h->prefix.n_snap_free, opt->n_snap);
        n_kept += h->prefix.n_kept;
    }
    assert_int_equal(st.n_snapshot, n_kept);
    forget(b);
    for (uint32_t i = 0; i < n_home; i++) {
        const lg_home *h = &b->eng->home[i];
        assert_int_equal(h->state.pages.n_free, opt->n_page);
        assert_int_equal(h->prefix.n_node_free, h->prefix.n_node);
        assert_int_equal(h->prefix.n_snap_free, opt->n_snap);
    }
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

static size_t row_bytes(const bench *b) {
    return (size_t)b->n_text * MAX_NEW * b->w->cfg.n_vocab * sizeof(float);
}

int open_all(void **state) {
    (void)state;
    lg_err err = {0};
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    alive = lg_mem_alive();
    if (lg_pool_open(2, &pool, &err) || lg_pool_open(1, &single, &err)) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/models/tiny-qwen35moe", root ? root : ".");
    if (lg_tokenizer_open(path, &tok, &err)) fail_msg("%s", err.msg);
    EACH(b) {
        snprintf(path, sizeof path, "%s/%s", root ? root : ".", b->path);
        if (lg_weights_open(path, pool, NULL, NULL, &b->w, &err)) fail_msg("%s", err.msg);
        if (b == benches) {
            read_chats(b);
        } else {
            make_texts(b);
        }
        if (under.device) {
            b->got_row = lg_mem_alloc(row_bytes(b));
            b->cold_row = lg_mem_alloc(row_bytes(b));
            assert_true(b->got_row && b->cold_row);
        }
        open_bench(b, &(setting){.n_seq = 1, .no_cache = true});
        run_all(b, true);
        for (uint32_t i = 0; i < b->n_text; i++) {
            assert_int_equal(b->got[i].n, MAX_NEW);
            assert_int_equal(b->got[i].n_cached, 0);
        }
        memcpy(b->cold, b->got, sizeof b->cold);
        if (b->got_row) memcpy(b->cold_row, b->got_row, row_bytes(b));
        close_bench(b);
    }
    return 0;
}

int close_all(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(benches); k++) {
        lg_weights_close(&benches[k].w);
        LG_FREE(benches[k].got_row);
        LG_FREE(benches[k].cold_row);
    }
    lg_tokenizer_close(&tok);
    lg_pool_close(&pool);
    lg_pool_close(&single);
    return lg_mem_alive() == alive ? 0 : -1;
}
