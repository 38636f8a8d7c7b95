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
        lg_seq_close(&seq);
    }
}

/* End a sequence that is in no list any more: its slot and pages are free from here on. */
static void end_seq(lg_engine *eng, lg_seq *seq, lg_finish finish, lg_status status) {
    if (seq->slot != UINT32_MAX) {
        if (finish != LG_FINISH_ERROR) lg_reuse_end(eng, seq);
        lg_state_release(&eng->home[seq->home].state, seq->slot);
        eng->home[seq->home].n_run--;
        seq->slot = UINT32_MAX;
    }
    bool queued = seq->has_token;
    lg_seq_end(seq, finish, status, lg_clock_us());
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

static void unlink_waiting(lg_engine *eng, lg_seq *seq) {
    if (seq->prev) {
        seq->prev->next = seq->next;
    } else {
        eng->wait_first = seq->next;
    }
    if (seq->next) {
        seq->next->prev = seq->prev;
    } else {
        eng->wait_last = seq->prev;
    }
    eng->n_wait--;
}

/* The backend is gone: every request ends. */
static void lose_all(lg_engine *eng) {
    eng->lost = true;
    for (uint32_t i = 0; i < eng->n_run; i++)
        end_seq(eng, eng->run[i], LG_FINISH_ERROR, LG_E_BACKEND);
    eng->n_run = 0;
    while (eng->wait_first) {
        lg_seq *seq = eng->wait_first;
        unlink_waiting(eng, seq);
        end_seq(eng, seq, LG_FINISH_ERROR, LG_E_BACKEND);
    }
}

/* ---- requests ---- */

lg_status lg_submit(lg_engine *eng, const lg_request *req, uint64_t *id, lg_err *err) {
    if (eng->lost) return LG_FAIL(err, LG_E_BACKEND, "the backend is lost");
    if (eng->n_wait >= LG_MAX_WAIT) return LG_AGAIN;
    lg_seq *seq;
    LG_TRY(lg_seq_open(&eng->limit, req, eng->last_id + 1, &seq, err));
    *id = ++eng->last_id;
    eng->stats.n_submitted++;
    seq->submit_us = lg_clock_us();
    lg_finish finish = lg_seq_finish(seq, &eng->limit);
    if (finish != LG_FINISH_NONE) { /* an earlier life had come to its end */
        seq->keep_end = true;
        end_seq(eng, seq, finish, LG_OK);
        return LG_OK;
    }
    seq->prev = eng->wait_last;
    if (eng->wait_last) {
        eng->wait_last->next = seq;
    } else {
        eng->wait_first = seq;
    }
    eng->wait_last = seq;
    eng->n_wait++;
    return LG_OK;
}

void lg_cancel(lg_engine *eng, uint64_t id) {
    reap(eng);
    lg_seq *seq = NULL;
    for (uint32_t i = 0; i < eng->n_run; i++) {
        if (eng->run[i]->id != id) continue;
        seq = eng->run[i];
        eng->n_run--;
        memmove(&eng->run[i], &eng->run[i + 1], (eng->n_run - i) * sizeof(lg_seq *));
        break;
    }
    if (!seq) {
        seq = eng->wait_first;
        while (seq && seq->id != id) seq = seq->next;
        if (!seq) return;
        unlink_waiting(eng, seq);
    }
    seq->keep_end = true;
    end_seq(eng, seq, LG_FINISH_CANCELLED, LG_E_CANCELLED);
}

/* ---- step ---- */

/* Give a sequence the token it sampled; true when it is over. */
static bool take(lg_engine *eng, lg_seq *seq, const lg_sampled *got) {
    if (got->nonfinite) {
        eng->stats.n_nonfinite++;
        lg_reuse_discard(eng, seq);
        end_seq(eng, seq, LG_FINISH_ERROR, LG_E_BACKEND);
        return true;
    }
    if (!seq->first_us) seq->first_us = lg_clock_us();
    const lg_state *st = &eng->home[seq->home].state;
    st->ids[(size_t)seq->slot * st->n_ctx + seq->sampler.n_id] = got->id;
    lg_seq_take(seq, &eng->limit, got);
    event_push(eng, seq);
    lg_finish finish = lg_seq_finish(seq, &eng->limit);
    if (finish == LG_FINISH_NONE) return false;
    end_seq(eng, seq, finish, LG_OK);
    return true;
}

/* Advance every sequence of the batch that has run. */
static void harvest(lg_engine *eng) {
    const lg_sched *s = &eng->sched;
    bool any_over = false;
    for (uint32_t i = 0; i < s->batch.n_seq; i++) {
        lg_seq *seq = s->who[i];
        uint32_t n_tok = s->row[i].n_tok;
        if (seq->sampler.n_id - seq->n_done == 1 && seq->first_us) {
            eng->stats.n_decode_tok += n_tok;
        } else {
            eng->stats.n_prefill_tok += n_tok;
        }
        lg_reuse_harvest(eng, seq, &s->row[i], true);
        seq->n_done += n_tok;
        if (s->row[i].sampler && take(eng, seq, &s->sampled[i])) any_over = true;
    }
    if (!any_over) return;
    uint32_t n = 0;
    for (uint32_t i = 0; i < eng->n_run; i++)
        if (eng->run[i]->slot != UINT32_MAX) eng->run[n++] = eng->run[i];
    eng->n_run = n;
}

lg_status lg_step(lg_engine *eng) {
    event_expire(eng);
    reap(eng);
    if (eng->lost) return LG_E_BACKEND;
    uint64_t start_us = lg_clock_us();
    lg_sched_admit(eng);
    if (eng->n_run == 0) return eng->event_first ? LG_OK : LG_AGAIN;
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
    eng->stats.step_us += lg_clock_us() - start_us;
    return st == LG_OK ? LG_OK : LG_E_BACKEND;
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
    info->n_thread = p->n_thread;
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
    while (eng->wait_first) {
        lg_seq *seq = eng->wait_first;
        eng->wait_first = seq->next;
        lg_seq_close(&seq);
    }
    while (eng->ended) {
        lg_seq *seq = eng->ended;
        eng->ended = seq->next;
        lg_seq_close(&seq);
    }
    if (eng->be) eng->parts.ops->close(&eng->be);
    lg_home_close(eng);
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
    lg_reuse_open(eng);
    lg_status st = lg_home_open(eng);
    if (st == LG_OK) st = open_sched(eng);
    if (st != LG_OK) {
        LG_FAIL(err, st, "engine: no memory for the tables of %u sequences",
                opt->n_slot * eng->n_home);
        goto fail;
    }
    LG_TRY_GOTO(parts->ops->open(parts->w, opt, parts->pool, &eng->be, err), st, fail);
    fill_info(eng);
    eng->limit = (lg_seq_limit){.n_ctx = parts->budget.n_ctx,
                                .n_token = opt->n_sample_vocab,
                                .max_piece = longest_piece(parts->tok, opt->n_sample_vocab),
                                .tok = parts->tok,
                                .eos = parts->w->cfg.eos,
                                .n_eos = parts->w->cfg.n_eos};
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
    stats->n_waiting = eng->n_wait;
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
}
