/* test_reuse.c - the same answer however it was come by: cold, warm, in company, in pieces, after evictions, after a cancel,
 * continued from produced ids, put back into the queue at any point, with a snapshot and without, restored from files after a
 * restart.
 *
 * Compared for each prompt: the greedy ids and a hash of every logits row they were chosen from, bit for bit.  Prompts: the
 * 200 evaluation chats of the bundled model, and 120 random texts with shared beginnings for the golden model tiny-moe.
 * Each mutation (a snapshot without its recurrent part, one taken a token late, a file without state or pages) must show.
 * How much is computed again, and what is shared with whom, is tested on the fake backend. */
#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "base/num.h"
#include "engine_rig.h"
#include "few.h"
#include "model/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_PROMPT 1024
#define MAX_NEW    10
#define MAX_TEXT   200

typedef struct text {
    uint32_t ids[MAX_PROMPT + MAX_NEW], n_id;
} text;

/* What came of one prompt in one run. */
typedef struct outcome {
    uint32_t n, id[MAX_NEW], n_cached;
    uint64_t hash[MAX_NEW];
    bool done;
} outcome;

typedef struct bench {
    const char *name, *path;
    lg_kv_type kv;
    lg_weights *w;
    text text[MAX_TEXT];
    uint32_t n_text;
    outcome cold[MAX_TEXT], got[MAX_TEXT];
    lg_engine *eng;
} bench;

static bench benches[] = {
    {.name = "tiny-qwen35moe", .path = "models/tiny-qwen35moe"},
    {.name = "tiny-moe", .path = "tests/data/models/tiny-moe", .kv = LG_KV_Q8_0}};
static lg_pool *pool;
static lg_tokenizer *tok;
static lg_engine *watched; /* whose steps are hashed */
static enum fault { NO_FAULT, DROP_STATE, LATE, FILE_STATE, FILE_PAGES } fault;

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

static bool few(void) {
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

typedef struct setting {
    uint32_t n_seq, n_batch_tok, n_snap, n_page; /* 0: as the budget gives */
    bool no_cache;
    const char *dir; /* files of kept texts */
} setting;

static void open_bench(bench *b, const setting *s) {
    lg_err err = {0};
    lg_engine_parts parts = {.ops = &noting,
                             .w = b->w,
                             .pool = pool,
                             .n_thread = lg_pool_n_thread(pool),
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

static uint64_t submit(bench *b, uint32_t i, uint32_t n_produced) {
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

static void fetch(bench *b) {
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

static void run(bench *b) {
    while (lg_step(b->eng) == LG_OK) {
        fetch(b);
        if (b->eng->disk) lg_disk_flush(b->eng->disk); /* nothing shall be left out */
    }
    fetch(b);
}

/* Prompts whose ids or logits are not those of the cold run. */
static uint32_t n_different(const bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) {
        const outcome *c = &b->cold[i], *g = &b->got[i];
        n += !g->done || g->n != c->n || memcmp(g->id, c->id, sizeof c->id) != 0 ||
             memcmp(g->hash, c->hash, sizeof c->hash) != 0;
    }
    return n;
}

static uint32_t n_cached(const bench *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_text; i++) n += b->got[i].n_cached;
    return n;
}

static void expect_same(const bench *b, const char *axis) {
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

static void close_bench(bench *b) {
    assert_ledger(b);
    lg_close(&b->eng);
}

static void run_all(bench *b, bool alone) {
    for (uint32_t i = 0; i < b->n_text; i++) {
        submit(b, i, 0);
        if (alone) run(b);
    }
    run(b);
}

/* ---- the axes ---- */

static int open_all(void **state) {
    (void)state;
    lg_err err = {0};
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    if (lg_pool_open(2, &pool, &err)) fail_msg("%s", err.msg);
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

static int close_all(void **state) {
    (void)state;
    for (size_t k = 0; k < LG_COUNT(benches); k++) lg_weights_close(&benches[k].w);
    lg_tokenizer_close(&tok);
    lg_pool_close(&pool);
    return lg_mem_alive() == 0 ? 0 : -1;
}

#define EACH(b) for (bench *b = benches; b < benches + LG_COUNT(benches); b++)

static void test_warm_and_batched(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500});
        run_all(b, false);
        expect_same(b, "first time, 16 at a time");
        run_all(b, false);
        expect_same(b, "again, 16 at a time");
        assert_true(n_cached(b) > 0);
        run_all(b, true);
        expect_same(b, "again, alone");
        for (uint32_t i = 0; i < b->n_text; i++)
            assert_true(b->got[i].n_cached + 64 >= b->text[i].n_id);
        close_bench(b);
    }
}

static void test_split(void **state) {
    (void)state;
    EACH(b) {
        for (uint32_t n_tok = 7; n_tok < 70; n_tok += 33) {
            open_bench(b, &(setting){.n_seq = 3, .n_batch_tok = n_tok});
            run_all(b, false);
            expect_same(b, n_tok == 7 ? "steps of 7 rows" : "steps of 40 rows");
            run_all(b, false);
            expect_same(b, "again");
            close_bench(b);
        }
    }
}

static void test_after_evictions(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 6, .n_snap = 7, .n_page = 24});
        for (uint32_t pass = 0; pass < 2; pass++) {
            run_all(b, false);
            expect_same(b, "7 snapshots, 24 pages");
        }
        lg_stats st;
        lg_get_stats(b->eng, &st);
        assert_true(st.n_evicted > b->n_text / 2);
        close_bench(b);
    }
}

static void test_after_cancels(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 8, .n_batch_tok = 48});
        for (uint32_t i = 0; i < b->n_text; i++) {
            uint64_t id = submit(b, i, 0);
            for (uint32_t k = 0; k < i % 9; k++)
                if (lg_step(b->eng) == LG_OK) fetch(b);
            lg_cancel(b->eng, id);
            fetch(b);
        }
        run_all(b, false);
        expect_same(b, "after a cancel");
        close_bench(b);
    }
}

/* Put a sequence back now and then: in a prompt and in an answer, with a snapshot of where it is and without. */
static uint32_t run_putting_back(bench *b) {
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

static void test_put_back(void **state) {
    (void)state;
    EACH(b) {
        for (uint32_t cache = 0; cache < 2; cache++) {
            open_bench(b, &(setting){.n_seq = 6, .n_batch_tok = 40, .no_cache = !cache});
            uint32_t n = run_putting_back(b);
            lg_stats st;
            lg_get_stats(b->eng, &st);
            print_message("  put back %u times, %u with a snapshot, %u tokens computed again\n",
                          n, (uint32_t)st.n_preempt_kept, (uint32_t)st.n_again_tok);
            assert_true(n > b->n_text / 2 && st.n_again_tok > 0);
            assert_true(cache ? st.n_preempt_kept > 0 : st.n_preempt_kept == 0);
            expect_same(b, cache ? "put back" : "put back, nothing kept");
            close_bench(b);
        }
    }
}

/* What a gateway does when its worker was lost: the ids produced so far come with the prompt. */
static void test_continued(void **state) {
    (void)state;
    EACH(b) {
        open_bench(b, &(setting){.n_seq = 8});
        for (uint32_t pass = 0; pass < 2; pass++) {
            for (uint32_t i = 0; i < b->n_text; i++) submit(b, i, 1 + (i + 4 * pass) % 9);
            run(b);
            expect_same(b, "continued");
        }
        close_bench(b);
    }
}

static void test_copies_of_one_prompt(void **state) {
    (void)state;
    bench *b = &benches[0];
    open_bench(b, &(setting){.n_seq = 64});
    static const uint32_t n_copy[] = {2, 3, 4, 8, 16, 64};
    static text keep[MAX_TEXT];
    static outcome cold[MAX_TEXT];
    memcpy(keep, b->text, sizeof keep);
    memcpy(cold, b->cold, sizeof cold);
    uint32_t n_text = b->n_text;
    for (size_t k = 0; k < LG_COUNT(n_copy); k++) {
        b->n_text = n_copy[k];
        for (uint32_t i = 0; i < b->n_text; i++) {
            b->text[i] = keep[k];
            b->cold[i] = cold[k];
        }
        run_all(b, false);
        expect_same(b, "copies of one prompt");
    }
    memcpy(b->text, keep, sizeof keep);
    memcpy(b->cold, cold, sizeof cold);
    b->n_text = n_text;
    close_bench(b);
}

/* ---- code words ---- */

#define MAX_WORD 64

static uint32_t code_of(uint32_t i) {
    return 100 + (uint32_t)((i * 577 + 311) % 900);
}

/* Chats that each know one number: all asked at once, nobody says another's. */
static void test_code_words_stay_with_their_owners(void **state) {
    (void)state;
    static const uint32_t n_word[] = {2, 3, 4, 8, 16, 64};
    bench *b = &benches[0];
    lg_err err = {0};
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    lg_text *chat;
    static text keep[MAX_TEXT];
    static outcome cold[MAX_TEXT];
    uint32_t n_text = b->n_text, n_right = 0, n_all = 0;
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", b->path);
    if (lg_text_open(path, &chat, &err)) fail_msg("%s", err.msg);
    memcpy(keep, b->text, sizeof keep);
    memcpy(cold, b->cold, sizeof cold);
    for (uint32_t i = 0; i < MAX_WORD; i++) {
        char json[512];
        uint32_t *ids;
        size_t n_id;
        snprintf(json, sizeof json,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"The code for river is %u.\\n"
                 "What is the code for river?\"}],\"enable_thinking\":false}",
                 code_of(i));
        if (lg_text_chat(chat, json, strlen(json), &ids, &n_id, &err)) fail_msg("%s", err.msg);
        assert_true(n_id < MAX_PROMPT);
        memcpy(b->text[i].ids, ids, n_id * sizeof *ids);
        b->text[i].n_id = (uint32_t)n_id;
        lg_free(ids);
    }
    open_bench(b, &(setting){.n_seq = 64});
    for (uint32_t k = 0; k < LG_COUNT(n_word); k++) {
        b->n_text = n_word[k];
        run_all(b, false);
        for (uint32_t i = 0; i < b->n_text; i++, n_all++) {
            char *said, code[8];
            size_t len;
            assert_int_equal(
                lg_text_decode(chat, b->got[i].id, b->got[i].n, false, &said, &len, &err),
                LG_OK);
            for (uint32_t j = 0; j < b->n_text; j++) {
                snprintf(code, sizeof code, "%u", code_of(j));
                bool there = strstr(said, code) != NULL;
                if (there && j != i)
                    fail_msg("%u at once: number %u said %s: %s", b->n_text, i, code, said);
                n_right += there;
            }
            lg_free(said);
        }
    }
    print_message("  %u of %u chats said their own number, none another's\n", n_right, n_all);
    assert_true(n_right > n_all * 3 / 4);
    close_bench(b);
    lg_text_close(&chat);
    memcpy(b->text, keep, sizeof keep);
    memcpy(b->cold, cold, sizeof cold);
    b->n_text = n_text;
}

/* A folder for files of kept texts, empty again. */
static const char *fresh_dir(void) {
    static char dir[64];
    char command[128];
    if (dir[0]) {
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
    snprintf(dir, sizeof dir, "/tmp/lignum-reuse-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void fill_dir(bench *b, const char *dir) {
    open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500, .dir = dir});
    run_all(b, false);
    lg_stats st;
    lg_get_stats(b->eng, &st);
    assert_true(st.n_file > b->n_text / 2);
    assert_int_equal(st.n_file_skipped, 0);
    close_bench(b);
}

static void test_restored(void **state) {
    (void)state;
    EACH(b) {
        const char *dir = fresh_dir();
        lg_stats st;
        fill_dir(b, dir);
        expect_same(b, "writing files");
        for (uint32_t pass = 0; pass < 2; pass++) {
            /* The second time there is so little room that texts come back again and again. */
            open_bench(b, &(setting){.n_seq = pass ? 4 : 16,
                                     .n_snap = pass ? 6 : 800,
                                     .n_page = pass ? 64 : 1500,
                                     .dir = dir});
            run_all(b, pass);
            expect_same(b, pass ? "restored, little memory" : "restored");
            for (uint32_t i = 0; i < b->n_text; i++)
                assert_true(b->got[i].n_cached + 64 >= b->text[i].n_id);
            lg_get_stats(b->eng, &st);
            assert_true(st.n_file_tok > 0);
            assert_int_equal(st.n_file_refused, 0);
            close_bench(b);
        }
    }
    assert_int_equal(system("rm -rf /tmp/lignum-reuse-??????"), 0);
}

/* The harness notices what it is there for. */
static void test_mutations_show(void **state) {
    (void)state;
    EACH(b) {
        for (fault = DROP_STATE; fault <= LATE; fault++) {
            open_bench(b, &(setting){.n_seq = 8, .n_snap = 800, .n_page = 1500});
            run_all(b, false);
            run_all(b, false);
            uint32_t n = n_different(b);
            const char *what = fault == LATE ? "when snapshots come late" : "without the state";
            print_message("  %s: %u of %u prompts differ %s\n", b->name, n, b->n_text, what);
            assert_true(n > b->n_text / 4);
            close_bench(b);
            open_bench(b, &(setting){.n_seq = 6, .n_batch_tok = 40});
            run_putting_back(b);
            n = n_different(b);
            print_message("  %s, put back: %u of %u prompts differ %s\n", b->name, n, b->n_text,
                          what);
            assert_true(n > 0);
            close_bench(b);
        }
        fault = NO_FAULT;
    }
}

static void test_mutated_files_show(void **state) {
    (void)state;
    bench *b = &benches[0];
    for (int f = LATE; f <= FILE_PAGES; f++) {
        const char *dir = fresh_dir();
        fault = f == LATE ? LATE : NO_FAULT;
        fill_dir(b, dir);
        fault = (enum fault)f;
        open_bench(b, &(setting){.n_seq = 16, .n_snap = 800, .n_page = 1500, .dir = dir});
        run_all(b, false);
        uint32_t n = n_different(b);
        print_message("  %s: %u of %u prompts differ with mutation %d\n", b->name, n, b->n_text,
                      f);
        assert_true(n > b->n_text / 4);
        close_bench(b);
        fault = NO_FAULT;
    }
    assert_int_equal(system("rm -rf /tmp/lignum-reuse-??????"), 0);
}

/* ---- on the fake backend: how much, and with whom ---- */

static void submit_fake(rig *r, const lg_request *req) {
    lg_err err = {0};
    uint64_t id;
    if (lg_submit(r->eng, req, &id, &err)) fail_msg("%s", err.msg);
    ((answer *)req->user)->id = id;
}

static uint32_t ask(rig *r, const uint32_t *ids, uint32_t n_id, uint64_t salt) {
    static answer a;
    lg_request req = rig_request(r, ids, n_id, 4, &a);
    req.cache_salt = salt;
    submit_fake(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.end.finish, LG_FINISH_LENGTH);
    return a.end.n_cached;
}

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

static rig *open_rig(lg_options opt) {
    rig *r = malloc(sizeof *r);
    lg_err err = {0};
    rig_init(r);
    r->m.w.cfg.n_ctx_max = 16384;
    if (rig_open(r, &opt, &err)) fail_msg("%s", err.msg);
    return r;
}

static void close_rig(rig *r) {
    rig_fini(r);
    free(r);
}

static void test_how_much_is_computed_again(void **state) {
    (void)state;
    static const uint32_t shared[] = {100, 500, 2000, 12000};
    static uint32_t ids[4][12200];
    rig *r = open_rig((lg_options){.n_ctx = 16384, .n_seq = 4});
    uint32_t mark = lg_tokenizer_added(r->tok, "<|im_start|>");
    uint32_t spacing = r->eng->info.snapshot_tok;
    print_message("  a snapshot every %u tokens\n", spacing);
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t n = shared[k / 2] - k % 3;
        bool message = k % 2;
        for (uint32_t i = 0; i < 4; i++) {
            fill(ids[i], n, 100 + k);
            fill(ids[i] + n, 150, 1000 + 10 * k + i);
            ids[i][0] = mark;
            ids[i][n] = message ? mark : 3000 + i; /* where they part */
        }
        uint32_t again[4];
        for (uint32_t i = 0; i < 4; i++) again[i] = n - ask(r, ids[i], n + 150, 0);
        print_message("  %5u shared tokens, %s: computed again %u, then %u, then %u\n", n,
                      message ? "a whole message " : "inside a message", again[1], again[2],
                      again[3]);
        assert_in_range(again[0], n - 1, n); /* the mark may be known */
        assert_true(again[1] <= (message ? 64 : spacing));
        assert_true(again[2] <= 64 && again[3] <= 64);
    }
    close_rig(r);
}

/* Whatever the length, a prompt asked again is known but for its last tokens, and so is an answer. */
static void test_every_length_asked_again(void **state) {
    (void)state;
    static uint32_t ids[300];
    static answer a;
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    for (uint32_t n = 1; n < 200; n++) {
        fill(ids, n, n);
        assert_true(ask(r, ids, n, 0) <= 1);
        uint32_t known = ask(r, ids, n, 0);
        assert_true(known < n && (n <= 16 ? known == 0 : known + 16 >= n));
        lg_request req = rig_request(r, ids, n, 40, &a);
        submit_fake(r, &req);
        rig_run(r->eng);
        memcpy(ids + n, a.token, 40 * sizeof *ids);
        fill(ids + n + 40, 10, n + 1000);
        /* The last token of an answer has not been through the model. */
        assert_int_equal(ask(r, ids, n + 50, 0), n + 39);
    }
    close_rig(r);
}

static void test_salts_do_not_meet(void **state) {
    (void)state;
    static uint32_t ids[300];
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    fill(ids, 300, 1);
    assert_int_equal(ask(r, ids, 300, 1), 0);
    assert_int_equal(ask(r, ids, 300, 2), 0);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(ask(r, ids, 300, 1), 299);
    assert_int_equal(ask(r, ids, 300, 2), 299);
    close_rig(r);
}

static void test_nothing_is_kept_when_told_so(void **state) {
    (void)state;
    static uint32_t ids[300];
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4, .no_cache = true});
    fill(ids, 300, 1);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(ask(r, ids, 300, 0), 0);
    assert_int_equal(r->eng->home->state.pages.n_free, r->eng->info.n_page);
    assert_int_equal(r->eng->info.n_snapshot, 0);
    close_rig(r);
}

static void test_bad_logits_forget_where_they_came_from(void **state) {
    (void)state;
    static uint32_t ids[300], other[300];
    static answer a;
    rig *r = open_rig((lg_options){.n_ctx = 1024, .n_seq = 4});
    fill(ids, 300, 1);
    fill(other, 300, 2);
    memcpy(other, ids, 50 * sizeof *ids);
    ask(r, ids, 100, 0);
    ask(r, other, 200, 0);
    assert_int_equal(ask(r, ids, 100, 0), 99);
    r->m.nan_after = 150;
    lg_request req = rig_request(r, ids, 150, 4, &a);
    submit_fake(r, &req);
    rig_run(r->eng);
    assert_int_equal(a.end.finish, LG_FINISH_ERROR);
    lg_stats st;
    lg_get_stats(r->eng, &st);
    assert_int_equal(st.n_nonfinite, 1);
    assert_true(st.n_discarded >= 2); /* what it came from, and its own */
    r->m.nan_after = 0;
    assert_true(ask(r, ids, 100, 0) <= 50);
    assert_int_equal(ask(r, other, 200, 0), 199); /* nobody else's */
    close_rig(r);
}

static void test_random_lives_leave_no_trace(void **state) {
    (void)state;
    static uint32_t ids[40][600];
    static answer a[40];
    rig *r = open_rig((lg_options){.n_ctx = 700, .n_seq = 5, .n_batch_tok = 64});
    uint32_t n_page = 2 * r->eng->home->state.max_page;
    close_rig(r);
    lg_options opt = {.n_ctx = 700, .n_seq = 5, .n_batch_tok = 64, .cache_bytes = 40000};
    opt.memory_bytes = UINT64_C(3) << 20;
    r = open_rig(opt);
    uint64_t before = 0;
    uint32_t mark = lg_tokenizer_added(r->tok, "<|im_start|>");
    uint32_t n_round = few() ? 12 : 60;
    for (uint32_t round = 0; round < n_round; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            uint64_t x = lg_num_rng(round, 0, i, 7);
            uint32_t n = 1 + (uint32_t)(x >> 8) % 600;
            fill(ids[i], 600, x % 5);
            for (uint32_t k = 60; k < 600; k += 100) ids[i][k] = mark;
            fill(ids[i] + n / 2, n - n / 2, x % 9);
            lg_request req = rig_request(r, ids[i], n, 1 + (uint32_t)(x >> 40) % 50, &a[i]);
            req.cache_salt = x % 2;
            submit_fake(r, &req);
        }
        before = lg_mem_count();
        for (uint32_t step = 0; lg_step(r->eng) == LG_OK; step++) {
            rig_fetch(r->eng);
            if (step % 7 == 3) lg_cancel(r->eng, a[step % 40].id);
        }
        assert_int_equal(lg_mem_count(), before); /* steps allocate nothing */
        rig_fetch(r->eng);
        for (uint32_t i = 0; i < 40; i++) assert_true(a[i].done);
    }
    lg_stats st;
    lg_get_stats(r->eng, &st);
    print_message(
        "  %u pages (%u used alone), %llu of %llu prompt tokens reused, %llu evicted\n",
        r->eng->info.n_page, n_page, (unsigned long long)st.n_hit_tok,
        (unsigned long long)st.n_prompt_tok, (unsigned long long)st.n_evicted);
    assert_true(st.n_hit_tok > 0 && st.n_evicted > n_round);
    assert_int_equal(st.n_page_free, r->eng->info.n_page);
    assert_int_equal(st.n_slot_free, 5);
    lg_prefix_clear(&r->eng->home->prefix);
    assert_int_equal(r->eng->home->state.pages.n_free, r->eng->info.n_page);
    assert_int_equal(r->eng->home->prefix.n_snap_free, r->eng->info.n_snapshot);
    close_rig(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_and_batched),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_after_evictions),
        cmocka_unit_test(test_after_cancels),
        cmocka_unit_test(test_put_back),
        cmocka_unit_test(test_continued),
        cmocka_unit_test(test_copies_of_one_prompt),
        cmocka_unit_test(test_code_words_stay_with_their_owners),
        cmocka_unit_test(test_restored),
        cmocka_unit_test(test_mutations_show),
        cmocka_unit_test(test_mutated_files_show),
        cmocka_unit_test(test_how_much_is_computed_again),
        cmocka_unit_test(test_every_length_asked_again),
        cmocka_unit_test(test_salts_do_not_meet),
        cmocka_unit_test(test_nothing_is_kept_when_told_so),
        cmocka_unit_test(test_bad_logits_forget_where_they_came_from),
        cmocka_unit_test(test_random_lives_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
