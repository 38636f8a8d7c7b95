/* engine.c - the public calls around one backend: submit, cancel, step, events.
 *
 * In:  lg_request.   Out: lg_event.
 * Invariants: a sequence is in exactly one of: waiting queue, run[], ended list.  Events hang on their sequences, so there is
 * room for every event there can be, and none is lost before its time.  An ended sequence is freed when its events are gone.
 * Thread: one, the engine's.  Memory: at open; lg_submit makes the request; lg_step nothing.
 * Test: tests/unit/test_engine.c */
#include "engine/engine.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define COPY_BYTES_US 4000.0 /* of snapshots, until it is measured */
#define SPARE_DOWN    0.1    /* of what is above 1, for each sequence that ends */
#define DECODE_WORK   2.0    /* a decoded row is charged like so many of a prompt */

/* ---- events ---- */

static void event_push(lg_engine *eng, lg_seq *seq) {
    seq->event_next = NULL;
    if (eng->event_last) {
        eng->event_last->event_next = seq;
    } else {
        eng->event_first = seq;
    }
    eng->event_last = seq;
}

static lg_seq *event_pop(lg_engine *eng) {
    lg_seq *seq = eng->event_first;
    eng->event_first = seq->event_next;
    if (!eng->event_first) eng->event_last = NULL;
    return seq;
}

/* Drop what was not fetched of the last step; ends that came from outside a step stay for one more. */
static void event_expire(lg_engine *eng) {
    lg_seq *seq = eng->event_first, *next;
    eng->event_first = eng->event_last = NULL;
    for (; seq; seq = next) {
        next = seq->event_next;
        bool keep = seq->has_end && seq->keep_end;
        seq->has_token = seq->keep_end = false;
        seq->has_end = keep;
        if (keep) event_push(eng, seq);
    }
}

lg_status lg_next_event(lg_engine *eng, lg_event *event) {
    lg_seq *seq = eng->event_first;
    if (!seq) return LG_AGAIN;
    if (seq->has_token) {
        *event = seq->token;
        seq->has_token = false;
    } else {
        *event = seq->end;
        seq->has_end = false;
    }
    if (!seq->has_token && !seq->has_end) event_pop(eng);
    return LG_OK;
}

/* ---- ends ---- */

/* Free ended sequences without events. */
static void reap(lg_engine *eng) {
    for (lg_seq **at = &eng->ended; *at;) {
        lg_seq *seq = *at;
        if (seq->has_token || seq->has_end) {
            at = &seq->next;
            continue;
        }
        *at = seq->next;
        eng->limit.n_byte_free += seq->n_byte;
        lg_seq_close(&seq);
    }
}

/* End a sequence that is in no list any more: its slot, pages and token buffer are free from here on. */
static void end_seq(lg_engine *eng, lg_seq *seq, lg_finish finish, lg_status status) {
    if (seq->slot != UINT32_MAX) {
        if (finish != LG_FINISH_ERROR) lg_reuse_end(eng, seq);
        lg_state_release(&eng->home[seq->home].state, seq->slot);
        eng->home[seq->home].n_run--;
        if (eng->spare > 1.0) eng->spare -= SPARE_DOWN * (eng->spare - 1.0);
        seq->slot = UINT32_MAX;
    }
    bool queued = seq->has_token;
    lg_seq_end(seq, finish, status, lg_engine_now_us(eng));
    if (seq->store != UINT32_MAX) lg_store_give(&eng->store, seq->store);
    seq->store = UINT32_MAX;
    if (!queued) event_push(eng, seq);
    seq->next = eng->ended;
    eng->ended = seq;
    if (finish == LG_FINISH_CANCELLED) {
        eng->stats.n_cancelled++;
    } else if (finish == LG_FINISH_ERROR) {
        eng->stats.n_failed++;
    } else {
        eng->stats.n_done++;
    }
}

void lg_engine_unlink_run(lg_engine *eng, lg_seq *seq) {
    uint32_t i = 0;
    while (i < eng->n_run && eng->run[i] != seq) i++;
    LG_ASSERT(i < eng->n_run);
    eng->n_run--;
    memmove(&eng->run[i], &eng->run[i + 1], (eng->n_run - i) * sizeof(lg_seq *));
    lg_queue_let_go(&eng->queue, seq, UINT32_MAX);
}

void lg_engine_end(lg_engine *eng, lg_seq *seq, lg_finish finish, lg_status status) {
    if (seq->in_queue) {
        lg_queue_remove(&eng->queue, seq);
    } else {
        lg_engine_unlink_run(eng, seq);
    }
    lg_queue_leave(&eng->queue, seq);
    end_seq(eng, seq, finish, status);
}

/* The backend is gone: every request ends. */
static void lose_all(lg_engine *eng) {
    eng->lost = true;
    while (eng->n_run) lg_engine_end(eng, eng->run[0], LG_FINISH_ERROR, LG_E_BACKEND);
    for (uint32_t i = 0; i < eng->queue.n_client; i++)
        while (eng->queue.client[i].first)
            lg_engine_end(eng, eng->queue.client[i].first, LG_FINISH_ERROR, LG_E_BACKEND);
}

/* ---- requests ---- */

lg_status lg_submit(lg_engine *eng, const lg_request *req, uint64_t *id, lg_err *err) {
    if (eng->lost) return LG_FAIL(err, LG_E_BACKEND, "the backend is lost");
    if (eng->queue.n_wait >= LG_MAX_WAIT) return LG_AGAIN;
    lg_seq *seq;
    LG_TRY(lg_seq_open(&eng->limit, req, eng->last_id + 1, &seq, err));
    seq->submit_us = lg_engine_now_us(eng);
    lg_finish finish = lg_seq_finish(seq, &eng->limit);
    if (finish == LG_FINISH_NONE && lg_queue_enter(&eng->queue, seq, req->client) != LG_OK) {
        lg_seq_close(&seq);
        return LG_FAIL(err, LG_E_NOMEM, "request: no memory for the table of clients");
    }
    *id = ++eng->last_id;
    eng->limit.n_byte_free -= seq->n_byte;
    eng->stats.n_submitted++;
    if (finish != LG_FINISH_NONE) { /* an earlier life had come to its end */
        seq->keep_end = true;
        end_seq(eng, seq, finish, LG_OK);
    }
    return LG_OK;
}

void lg_cancel(lg_engine *eng, uint64_t id) {
    reap(eng);
    lg_seq *seq = NULL;
    for (uint32_t i = 0; i < eng->n_run && !seq; i++)
        if (eng->run[i]->id == id) seq = eng->run[i];
    if (!seq) seq = lg_queue_find(&eng->queue, id);
    if (!seq) return;
    seq->keep_end = true;
    lg_engine_end(eng, seq, LG_FINISH_CANCELLED, LG_E_CANCELLED);
}

/* ---- step ---- */

/* Give a sequence the token it sampled. */
static void take(lg_engine *eng, lg_seq *seq, const lg_sampled *got) {
    if (got->nonfinite) {
        eng->stats.n_nonfinite++;
        lg_reuse_discard(eng, seq);
        end_seq(eng, seq, LG_FINISH_ERROR, LG_E_BACKEND);
        return;
    }
    if (!seq->first_us) seq->first_us = lg_engine_now_us(eng);
    eng->store.ids[(size_t)seq->store * eng->store.n_ctx + seq->sampler.n_id] = got->id;
    bool goes_on = lg_seq_take(seq, &eng->limit, got);
    event_push(eng, seq);
    lg_finish finish = lg_seq_finish(seq, &eng->limit);
    if (finish != LG_FINISH_NONE)
        end_seq(eng, seq, finish, LG_OK);
    else if (!goes_on)
        end_seq(eng, seq, LG_FINISH_ERROR, LG_E_FORMAT);
}

/* Count a sequence's rows; those computed before it was put back are not charged again. */
static void count_rows(lg_engine *eng, lg_seq *seq, uint32_t n_tok) {
    bool decodes = seq->sampler.n_id - seq->n_done == 1 && seq->first_us;
    uint32_t end = seq->n_done + n_tok;
    uint32_t again = seq->n_most > seq->n_done ? seq->n_most - seq->n_done : 0;
    if (again > n_tok) again = n_tok;
    *(decodes ? &eng->stats.n_decode_tok : &eng->stats.n_prefill_tok) += n_tok;
    eng->stats.n_again_tok += again;
    lg_queue_charge(&eng->queue, seq, (decodes ? DECODE_WORK : 1.0) * (n_tok - again));
    if (end > seq->n_most) seq->n_most = end;
}

/* Advance every sequence of the batch that has run. */
static void harvest(lg_engine *eng) {
    const lg_sched *s = &eng->sched;
    for (uint32_t i = 0; i < s->batch.n_seq; i++) {
        lg_seq *seq = s->who[i];
        count_rows(eng, seq, s->row[i].n_tok);
        lg_reuse_harvest(eng, seq, &s->row[i], true);
        seq->n_done += s->row[i].n_tok;
        if (s->row[i].sampler) take(eng, seq, &s->sampled[i]);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        lg_seq *seq = eng->run[i];
        bool over = seq->slot == UINT32_MAX;
        lg_queue_let_go(&eng->queue, seq, over ? UINT32_MAX : seq->n_done);
        if (over) {
            lg_queue_leave(&eng->queue, seq);
        } else {
            eng->run[n++] = seq;
        }
    }
    eng->n_run = n;
}

/* What the step took, for the model of costs and for those who watch it. */
static void measure(lg_engine *eng, uint64_t us) {
    const lg_sched *s = &eng->sched;
    if (s->load.prefill > 0 && s->load.decode > 0 && s->expected_us > 0) {
        double off = (double)us - s->expected_us;
        eng->stats.n_mixed_step++;
        eng->stats.mixed_us += us;
        eng->stats.mixed_expected_us += (uint64_t)s->expected_us;
        eng->stats.mixed_error_us += (uint64_t)(off < 0 ? -off : off);
    }
    lg_cost_learn(&eng->cost, &s->load, (double)us);
}

lg_status lg_step(lg_engine *eng) {
    event_expire(eng);
    reap(eng);
    if (eng->lost) return LG_E_BACKEND;
    uint64_t start_us = lg_engine_now_us(eng);
    for (uint32_t i = 0; i < eng->n_home; i++)
        if (eng->home[i].disk) lg_disk_poll(eng->home[i].disk);
    lg_admit_grow(eng);
    lg_admit_run(eng);
    if (eng->n_run == 0) {
        bool waits = false;
        for (uint32_t i = 0; i < eng->n_home; i++)
            waits |= eng->home[i].disk && lg_disk_wait(eng->home[i].disk, eng->n_home);
        return eng->event_first || waits ? LG_OK : LG_AGAIN;
    }
    eng->sched.spent_us = lg_engine_now_us(eng) - start_us;
    lg_sched_plan(eng);
    lg_step_out out = {.sampled = eng->sched.sampled};
    lg_status st = eng->parts.ops->step(eng->be, &eng->sched.batch, &out);
    eng->stats.n_step++;
    if (st == LG_OK) {
        harvest(eng);
    } else {
        for (uint32_t i = 0; i < eng->sched.batch.n_seq; i++)
            lg_reuse_harvest(eng, eng->sched.who[i], &eng->sched.row[i], false);
        lose_all(eng);
    }
    uint64_t us = lg_engine_now_us(eng) - start_us;
    eng->stats.step_us += us;
    if (st == LG_OK) measure(eng, us - eng->sched.spent_us);
    return st == LG_OK ? LG_OK : LG_E_BACKEND;
}

uint64_t lg_engine_now_us(const lg_engine *eng) {
    return eng->parts.clock_us ? eng->parts.clock_us() : lg_clock_us();
}

/* ---- open and close ---- */

static uint32_t longest_piece(const lg_tokenizer *tok, uint32_t n_token) {
    size_t longest = 0;
    for (uint32_t id = 0; id < n_token; id++) {
        const char *s;
        size_t len;
        bool added, special;
        if (lg_tokenizer_piece(tok, id, &s, &len, &added, &special) && len > longest)
            longest = len;
    }
    return (uint32_t)longest;
}

static lg_status open_sched(lg_engine *eng) {
    lg_sched *s = &eng->sched;
    uint32_t n_seq = eng->home->state.n_slot * eng->n_home,
             max_page = eng->home->state.max_page;
    s->n_batch_tok = eng->parts.budget.opt.max_tok;
    s->n_save_max = eng->parts.budget.opt.n_snap * eng->n_home;
    s->stall_us = eng->parts.budget.stall_us;
    s->tok = lg_mem_calloc(s->n_batch_tok, sizeof *s->tok);
    s->row = lg_mem_calloc(n_seq, sizeof *s->row);
    s->page = lg_mem_calloc((size_t)n_seq * max_page, sizeof *s->page);
    s->sampled = lg_mem_calloc(n_seq, sizeof *s->sampled);
    s->who = lg_mem_calloc(n_seq, sizeof(lg_seq *));
    s->grant = lg_mem_calloc(n_seq, sizeof *s->grant);
    s->save = lg_mem_calloc(s->n_save_max, sizeof *s->save);
    eng->reuse.page = lg_mem_calloc(max_page, sizeof *eng->reuse.page);
    eng->run = lg_mem_calloc(n_seq, sizeof(lg_seq *));
    bool ok = s->tok && s->row && s->page && s->sampled && s->who && s->grant && s->save &&
              eng->reuse.page && eng->run;
    return ok ? LG_OK : LG_E_NOMEM;
}

static void fill_info(lg_engine *eng) {
    const lg_engine_parts *p = &eng->parts;
    lg_info *info = &eng->info;
    snprintf(info->model_name, sizeof info->model_name, "%s", p->name);
    info->n_vocab = p->w->cfg.n_vocab;
    info->n_token = p->budget.opt.n_sample_vocab;
    info->n_ctx = p->budget.n_ctx;
    info->n_seq = p->budget.opt.n_slot * eng->n_home;
    info->n_page = p->budget.opt.n_page * eng->n_home;
    info->page_tok = LG_PAGE_TOK;
    info->kv = LG_KV_F32;
    while (lg_kv_of(info->kv) != p->budget.opt.kv) info->kv++;
    info->n_thread = p->n_thread;
    info->memory_bytes = p->budget.memory_bytes;
    info->weight_bytes = p->w->weight_bytes;
    info->state_bytes = p->budget.state_bytes;
    info->scratch_bytes = p->budget.scratch_bytes;
    info->n_snapshot = p->budget.opt.n_snap * eng->n_home;
    info->snapshot_bytes = p->budget.snap_bytes;
    info->snapshot_tok = info->n_snapshot ? eng->reuse.spacing : 0;
    info->n_param = p->w->n_param;
    info->n_param_active = p->w->n_param_active;
}

/* Free the engine without releasing what it stands on. */
static void free_engine(lg_engine *eng) {
    for (uint32_t i = 0; i < eng->n_run; i++) lg_seq_close(&eng->run[i]);
    lg_queue_fini(&eng->queue);
    lg_guide_kit_fini(&eng->kit);
    while (eng->ended) {
        lg_seq *seq = eng->ended;
        eng->ended = seq->next;
        lg_seq_close(&seq);
    }
    const uint64_t until_us = lg_clock_us() + LG_DISK_CLOSE_US;
    for (uint32_t i = 0; eng->home && i < eng->n_home; i++)
        lg_disk_close(&eng->home[i].disk, until_us);
    if (eng->be) eng->parts.ops->close(&eng->be);
    lg_home_close(eng);
    lg_store_fini(&eng->store);
    lg_mem_free(eng->reuse.page);
    lg_mem_free(eng->sched.tok);
    lg_mem_free(eng->sched.row);
    lg_mem_free(eng->sched.page);
    lg_mem_free(eng->sched.sampled);
    lg_mem_free(eng->sched.who);
    lg_mem_free(eng->sched.grant);
    lg_mem_free(eng->sched.save);
    lg_mem_free(eng->run);
    lg_mem_free(eng);
}

lg_status lg_engine_open(const lg_engine_parts *parts, lg_engine **out, lg_err *err) {
    *out = NULL;
    const lg_backend_opt *opt = &parts->budget.opt;
    lg_engine *eng = lg_mem_alloc(sizeof *eng);
    if (!eng) return LG_FAIL(err, LG_E_NOMEM, "engine: no memory");
    eng->parts = *parts;
    eng->n_home = parts->n_owner ? parts->n_owner : 1;
    LG_ASSERT(eng->n_home <= LG_MAX_HOME && opt->n_slot <= opt->max_tok / eng->n_home);
    eng->spare = 1.0;
    lg_reuse_open(eng);
    lg_status st = lg_home_open(eng);
    if (st == LG_OK) st = lg_queue_init(&eng->queue);
    if (st == LG_OK)
        st = lg_store_init(&eng->store, 2 * opt->n_slot * eng->n_home, parts->budget.n_ctx);
    if (st == LG_OK) st = open_sched(eng);
    if (st != LG_OK) {
        LG_FAIL(err, st, "engine: no memory for the tables of %u sequences",
                opt->n_slot * eng->n_home);
        goto fail;
    }
    LG_TRY_GOTO(parts->ops->open(parts->w, opt, parts->pool, &eng->be, err), st, fail);
    const lg_config *cfg = &parts->w->cfg;
    lg_cost_init(&eng->cost, cfg->n_expert, cfg->n_expert_tok,
                 (double)parts->budget.snap_bytes / COPY_BYTES_US);
    for (uint32_t i = 0; parts->disk.dir && opt->n_snap && i < eng->n_home; i++)
        LG_TRY_GOTO(lg_disk_open(eng, i, &parts->disk, err), st, fail);
    fill_info(eng);
    eng->limit = (lg_seq_limit){.n_ctx = parts->budget.n_ctx,
                                .n_token = opt->n_sample_vocab,
                                .max_piece = longest_piece(parts->tok, opt->n_sample_vocab),
                                .tok = parts->tok,
                                .eos = parts->w->cfg.eos,
                                .n_eos = parts->w->cfg.n_eos,
                                .kit = &eng->kit,
                                .n_byte_free = parts->budget.request_bytes};
    eng->kit = (lg_guide_kit){.tok = parts->tok,
                              .n_id = opt->n_sample_vocab,
                              .eos = eng->limit.eos,
                              .n_eos = eng->limit.n_eos,
                              .limit_bytes = parts->budget.guide_bytes};
    *out = eng;
    return LG_OK;
fail:
    free_engine(eng);
    return st;
}

void lg_close(lg_engine **eng) {
    if (!eng || !*eng) return;
    void (*release)(void *) = (*eng)->parts.release;
    void *ctx = (*eng)->parts.ctx;
    free_engine(*eng);
    *eng = NULL;
    if (release) release(ctx);
}

/* ---- questions ---- */

void lg_get_info(const lg_engine *eng, lg_info *info) {
    *info = eng->info;
}

lg_text *lg_get_text(lg_engine *eng) {
    return eng->parts.text;
}

void lg_params_init(const lg_engine *eng, lg_params *params) {
    const lg_config *cfg = &eng->parts.w->cfg;
    *params = (lg_params){.temperature = cfg->do_sample ? cfg->temperature : 0.0f,
                          .top_p = cfg->top_p,
                          .min_p = cfg->min_p,
                          .top_k = cfg->top_k,
                          .repetition_penalty = cfg->repetition_penalty,
                          .n_top = -1};
}

void lg_get_stats(const lg_engine *eng, lg_stats *stats) {
    *stats = eng->stats;
    stats->n_running = eng->n_run;
    stats->n_waiting = eng->queue.n_wait;
    stats->n_prompt_tok = eng->reuse.n_prompt_tok;
    stats->n_hit_tok = eng->reuse.n_hit_tok;
    for (uint32_t i = 0; i < eng->n_home; i++) {
        const lg_home *h = &eng->home[i];
        stats->n_page_cached += h->state.pages.n_cached;
        stats->n_page_free += h->state.pages.n_free + h->state.pages.n_cached;
        stats->n_snapshot += h->prefix.n_kept;
        stats->n_evicted += h->prefix.n_evicted;
        stats->n_discarded += h->prefix.n_discarded;
        stats->n_slot_free += h->state.n_slot_free;
    }
    for (uint32_t i = 0; i < eng->n_home; i++)
        if (eng->home[i].disk) lg_disk_stats(eng->home[i].disk, stats);
}
