/* reuse.c - what the engine takes from kept texts and gives to them: see engine.h, prefix.h.
 *
 * In:  ids of sequences.   Out: sequences that begin where an earlier text ended; snapshots.
 * Policy: a snapshot before each message, at the end of a prompt, where a prompt leaves what is kept, at multiples of
 * `spacing` in long texts, and at the end of an answer; none closer than `gap` to the one before.  A hit is shorter than
 * the ids, so that there is a row to sample from.  Only what the engine has accepted is ever kept.
 * Invariant: nothing here changes a bit of an answer (docs/MODEL.md, section 1).
 * Thread: engine.  Memory: nothing after open.  Test: tests/unit/test_reuse.c, tests/unit/test_kept.c */
#include "engine/engine.h"

#define MIN_GAP     16
#define MAX_GAP     64
#define MIN_SPACING 512
#define MAX_SPACING 8192

/* Spacing with which snapshots take about as much memory as the keys and values between them, and one text of the whole
 * context at most half of the snapshots. */
static uint32_t choose_spacing(const lg_budget *b) {
    uint64_t tok = b->page_bytes ? b->snap_bytes * LG_PAGE_TOK / b->page_bytes : MAX_SPACING;
    uint64_t most = b->opt.n_snap ? (uint64_t)b->n_ctx * 2 / b->opt.n_snap : 0;
    if (tok < most) tok = most;
    if (tok < MIN_SPACING) tok = MIN_SPACING;
    if (tok > MAX_SPACING) tok = MAX_SPACING;
    return (uint32_t)((tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK * LG_PAGE_TOK);
}

void lg_reuse_open(lg_engine *eng) {
    const lg_budget *b = &eng->parts.budget;
    lg_reuse *r = &eng->reuse;
    r->spacing = choose_spacing(b);
    r->gap = r->spacing / 32;
    if (r->gap < MIN_GAP) r->gap = MIN_GAP;
    if (r->gap > MAX_GAP) r->gap = MAX_GAP;
    r->mark = lg_tokenizer_added(eng->parts.tok, "<|im_start|>");
}

/* ---- at the beginning ---- */

/* Where files have most of it. */
static void look_for_files(const lg_engine *eng, lg_seq *seq) {
    seq->disk_seen = true;
    seq->file_pos = 0;
    for (uint32_t i = 0; i < eng->n_home; i++) {
        const lg_disk *d = eng->home[i].disk;
        uint32_t n =
            d ? lg_disk_depth(d, seq->salt, seq->sampler.ids, seq->sampler.n_id - 1) : 0;
        if (n <= seq->file_pos) continue;
        seq->file_pos = n;
        seq->file_home = i;
    }
}

/* Once a home is chosen for its files it is kept to; where another one would be sooner they are not read. */
bool lg_reuse_is_coming(lg_engine *eng, lg_seq *seq) {
    const bool tried[LG_MAX_HOME] = {false};
    lg_prefix_hit hit;
    if (seq->disk_asked) return false;
    if (!seq->disk_seen) {
        look_for_files(eng, seq);
        if (seq->file_pos && lg_home_choose(eng, seq, tried) != seq->file_home)
            seq->file_pos = 0;
    }
    if (seq->file_pos) {
        const lg_home *h = &eng->home[seq->file_home];
        lg_prefix_find(&h->prefix, seq->salt, seq->sampler.ids, seq->sampler.n_id - 1, &hit);
        if (lg_disk_ask(h->disk, seq->salt, seq->sampler.ids, seq->sampler.n_id - 1, &hit))
            return true;
    }
    seq->file_pos = 0;
    seq->disk_asked = true;
    return false;
}

/* n pages, and `spare` more that could be had. */
static bool make_room(lg_home *h, uint32_t n, uint32_t spare, uint32_t keep_node) {
    const lg_pages *p = &h->state.pages;
    return (uint64_t)p->n_free + p->n_cached >= (uint64_t)n + spare &&
           lg_prefix_make_room(&h->prefix, n, keep_node);
}

/* Reserve what seq needs with the first hit->pos positions from the tree; false: no room. */
static bool reserve(lg_engine *eng, uint32_t home, lg_seq *seq, const lg_prefix_hit *hit) {
    lg_prefix *t = &eng->home[home].prefix;
    lg_state *st = &eng->home[home].state;
    uint32_t *page = eng->reuse.page, need = seq->sampler.n_id;
    uint32_t n_full = hit->pos / LG_PAGE_TOK;
    uint32_t n_page = (hit->pos + LG_PAGE_TOK - 1) / LG_PAGE_TOK;
    uint32_t n_fresh = (uint32_t)(((uint64_t)need + LG_PAGE_TOK - 1) / LG_PAGE_TOK) - n_full;
    lg_prefix_pages(t, hit, page);
    for (uint32_t i = 0; i < n_page; i++) lg_pages_hold(&st->pages, page[i]);
    uint32_t spare =
        (uint32_t)(eng->home[home].n_run * eng->spare); /* what they may need soon */
    bool ok = make_room(&eng->home[home], n_fresh, spare, hit->node);
    if (!ok && eng->home[home].disk &&
        lg_disk_yield(eng->home[home].disk)) /* written later, or never */
        ok = make_room(&eng->home[home], n_fresh, spare, hit->node);
    if (ok) ok = lg_state_reserve(st, need, page, n_full, &seq->slot) == LG_OK;
    if (ok && n_page > n_full)
        eng->parts.ops->copy_page(eng->be, home, page[n_full],
                                  st->page[(size_t)seq->slot * st->max_page + n_full]);
    for (uint32_t i = 0; i < n_page; i++) lg_pages_drop(&st->pages, page[i]);
    return ok;
}

static bool admit_at(lg_engine *eng, uint32_t home, lg_seq *seq) {
    const lg_prefix_hit nothing = {.node = LG_PREFIX_NONE};
    lg_home *h = &eng->home[home];
    lg_prefix_hit hit;
    uint32_t n_id = seq->sampler.n_id;
    if (h->state.n_slot_free == 0) return false;
    lg_prefix_find(&h->prefix, seq->salt, seq->sampler.ids, n_id - 1, &hit);
    uint32_t n_match = hit.n_match;
    bool ok = reserve(eng, home, seq, &hit);
    if (!ok && hit.pos && h->n_run == 0) {
        /* Its own shared pages are in the way, and nobody will give any back. */
        hit = nothing;
        ok = reserve(eng, home, seq, &hit);
    }
    if (!ok) return false;
    seq->home = home;
    h->n_run++;
    if (hit.pos) {
        uint64_t start_us = lg_engine_now_us(eng);
        eng->parts.ops->load(eng->be, home, seq->slot, hit.pos, h->prefix.node[hit.node].snap);
        lg_cost_learn_copy(&eng->cost, (double)(lg_engine_now_us(eng) - start_us));
        lg_prefix_touch(&h->prefix, hit.node);
    }
    seq->n_done = seq->hit_pos = seq->snap_pos = hit.pos;
    seq->branch_pos = n_match > hit.pos ? n_match : 0;
    seq->n_known = n_id;
    if (seq->n_preempt) return true;
    seq->n_cached = hit.pos;
    uint32_t n_prompt = seq->sampler.n_prompt;
    eng->reuse.n_prompt_tok += n_prompt;
    eng->reuse.n_hit_tok += hit.pos < n_prompt ? hit.pos : n_prompt;
    return true;
}

bool lg_reuse_admit(lg_engine *eng, lg_seq *seq) {
    bool tried[LG_MAX_HOME] = {false};
    uint32_t home;
    while ((home = lg_home_choose(eng, seq, tried)) < LG_MAX_HOME) {
        if (admit_at(eng, home, seq)) return true;
        tried[home] = true;
    }
    return false;
}

/* ---- on the way ---- */

static bool is_wanted(const lg_reuse *r, const lg_seq *seq, uint32_t pos) {
    if (pos - seq->snap_pos < r->gap) return false;
    if (pos % r->spacing == 0) return true; /* in answers too: see admit.c */
    return pos < seq->n_known && (seq->sampler.ids[pos] == r->mark || pos == seq->branch_pos ||
                                  pos + 1 == seq->n_known);
}

uint32_t lg_reuse_next_snap(const lg_engine *eng, const lg_seq *seq, uint32_t limit) {
    uint32_t pos = limit;
    while (pos > seq->n_done && !is_wanted(&eng->reuse, seq, pos)) pos--;
    return pos > seq->n_done ? pos : 0;
}

void lg_reuse_plan(lg_engine *eng, lg_seq *seq, lg_batch_seq *row) {
    lg_sched *s = &eng->sched;
    row->save = s->save + s->n_save;
    for (uint32_t i = 1; i <= row->n_tok && s->n_save < s->n_save_max; i++) {
        if (!is_wanted(&eng->reuse, seq, row->pos + i)) continue;
        uint32_t snap = lg_prefix_reserve(&eng->home[seq->home].prefix);
        if (snap == LG_PREFIX_NONE) return;
        s->save[s->n_save++] = (lg_batch_save){i, snap};
        row->n_save++;
        seq->snap_pos = row->pos + i;
    }
}

static bool keep(lg_engine *eng, const lg_seq *seq, uint32_t n, const uint32_t *page,
                 uint32_t snap) {
    const uint32_t *ids = seq->sampler.ids;
    if (!lg_prefix_keep(&eng->home[seq->home].prefix, seq->salt, ids, n, page, snap))
        return false;
    lg_disk *d = eng->home[seq->home].disk;
    if (d) lg_disk_offer(d, seq->salt, ids, n, page, snap);
    return true;
}

void lg_reuse_harvest(lg_engine *eng, lg_seq *seq, const lg_batch_seq *row, bool ok) {
    lg_home *h = &eng->home[seq->home];
    const uint32_t *page = h->state.page + (size_t)seq->slot * h->state.max_page;
    for (uint32_t i = 0; i < row->n_save; i++) {
        uint32_t snap = row->save[i].snap;
        if (ok) {
            keep(eng, seq, row->pos + row->save[i].n_row, page, snap);
        } else {
            lg_prefix_release(&h->prefix, snap);
        }
    }
}

/* ---- at the end ---- */

bool lg_reuse_end(lg_engine *eng, lg_seq *seq) {
    lg_home *h = &eng->home[seq->home];
    if (seq->n_done < seq->snap_pos + eng->reuse.gap) return false;
    uint32_t snap = lg_prefix_reserve(&h->prefix);
    if (snap == LG_PREFIX_NONE) return false;
    uint64_t start_us = lg_engine_now_us(eng);
    eng->parts.ops->save(eng->be, seq->home, seq->slot, seq->n_done, snap);
    lg_cost_learn_copy(&eng->cost, (double)(lg_engine_now_us(eng) - start_us));
    return keep(eng, seq, seq->n_done, h->state.page + (size_t)seq->slot * h->state.max_page,
                snap);
}

void lg_reuse_discard(lg_engine *eng, lg_seq *seq) {
    lg_prefix_discard(&eng->home[seq->home].prefix, seq->salt, seq->sampler.ids, seq->n_done,
                      seq->hit_pos);
    lg_disk *d = eng->home[seq->home].disk;
    if (d) lg_disk_discard(d, seq->salt, seq->sampler.ids, seq->n_done, seq->hit_pos);
}
