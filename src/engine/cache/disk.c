/* disk.c - the folder of kept texts, the thread that writes to it, and its queue: see disk.h.
 *
 * In:  snapshots that the tree has kept.   Out: files.
 * A job holds its pages and its snapshot; the writer copies them piece by piece under `copying`, so the engine can take them
 * back at any time and waits for one piece at most.  Jobs are done in order, so a parent's file is there before its child's.
 * Invariants: an entry is WRITING while its job is in the queue; a job whose entry has left the index has given up.
 * Thread: engine; lg_disk_write_main the writer.  Memory: one block at open.  Test: tests/unit/test_disk.c */
#include "base/clock.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NONE      LG_DISK_NONE
#define MAX_ERROR 3 /* in a row, then no more is written */

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* ---- rings ---- */

/* n numbers in one piece: their place, or NONE. */
static uint32_t ring_take(lg_disk_ring *r, uint32_t n) {
    if (r->empty) r->begin = r->end = 0;
    bool wrapped = !r->empty && r->end <= r->begin;
    uint32_t at = r->end;
    if (wrapped && n > r->begin - r->end) return NONE;
    if (!wrapped && n > r->cap - r->end) {
        if (n > r->begin) return NONE;
        at = 0;
    }
    r->end = at + n;
    r->empty = false;
    return at;
}

/* ---- the writer thread ---- */

typedef struct copy_ctx {
    lg_disk *d;
    lg_disk_job *job;
} copy_ctx;

/* Page or part i of the job's file.  `snap` parts come from the snapshot's number. */
static bool copy(void *ctx, bool snap, uint32_t i, void *buf) {
    const copy_ctx *c = ctx;
    lg_disk *d = c->d;
    lg_disk_job *job = c->job;
    const lg_disk_head *h = &job->head;
    pthread_mutex_lock(&d->copying);
    bool ok = !job->given_up;
    if (ok && snap) {
        d->ops->get_snap(d->be, d->owner, job->snap, h->to, i, buf);
    } else if (ok) {
        uint32_t first = (h->from / LG_PAGE_TOK + i) * LG_PAGE_TOK;
        uint32_t n = h->to - first < LG_PAGE_TOK ? h->to - first : LG_PAGE_TOK;
        d->ops->get_page(d->be, d->owner, d->page.p[job->page_at + i], n, buf);
    }
    pthread_mutex_unlock(&d->copying);
    return ok;
}

static void do_job(lg_disk *d, lg_disk_job *job, bool skip) {
    copy_ctx c = {d, job};
    if (job->remove) {
        char name[LG_DISK_NAME_BYTES];
        lg_disk_name(name, job->head.hash, job->head.to);
        unlinkat(d->dir, name, 0);
        job->status = LG_OK;
    } else if (skip) {
        job->status = LG_E_CANCELLED;
    } else {
        job->status = lg_disk_file_write(d->dir, &job->head, d->ids.p + job->ids_at, copy, &c,
                                         d->write_buf, &job->full, job->why);
    }
}

void *lg_disk_write_main(void *ctx) {
    lg_disk *d = ctx;
    if (setpriority(PRIO_PROCESS, (id_t)gettid(), 10) != 0)
        lg_diag_log(LG_LOG_DEBUG, "the writer of kept texts runs at normal priority");
    pthread_mutex_lock(&d->lock);
    for (;;) {
        if (d->next == d->end) {
            if (d->stop) break;
            pthread_cond_wait(&d->to_write, &d->lock);
            continue;
        }
        lg_disk_job *job = &d->job[d->next % LG_DISK_MAX_JOB];
        bool skip = d->skip;
        pthread_mutex_unlock(&d->lock);
        do_job(d, job, skip);
        pthread_mutex_lock(&d->lock);
        d->next++;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the queue ---- */

static lg_disk_job *job_at(lg_disk *d, uint32_t i) {
    return &d->job[i % LG_DISK_MAX_JOB];
}

static void push(lg_disk *d) {
    if (d->far) lg_disk_far_push(d, job_at(d, d->end));
    pthread_mutex_lock(&d->lock);
    d->end++;
    if (d->dead) d->next = d->end;
    pthread_cond_signal(&d->to_write);
    pthread_mutex_unlock(&d->lock);
}

/* The file goes in its turn; at once, when the queue is full. */
static void remove_file(lg_disk *d, uint64_t hash, uint32_t to) {
    lg_disk_job now = {.remove = true, .entry = NONE, .head = {.hash = hash, .to = to}};
    if (d->end - d->first == LG_DISK_MAX_JOB) {
        if (d->far) {
            lg_disk_far_remove(d, hash, to);
        } else {
            do_job(d, &now, false);
        }
        return;
    }
    *job_at(d, d->end) = now;
    push(d);
}

/* Give back what a job holds. */
static void let_go(lg_disk *d, lg_disk_job *job) {
    uint32_t n_page = pages_of(job->head.to) - job->head.from / LG_PAGE_TOK;
    for (uint32_t i = 0; i < n_page; i++) lg_pages_drop(d->pages, d->page.p[job->page_at + i]);
    lg_prefix_let_snap(d->prefix, job->snap);
    job->entry = NONE;
}

/* The writer shall not read the engine's memory for this job any more; returns when it does not. */
static void give_up(lg_disk *d, uint32_t i) {
    lg_disk_job *job = job_at(d, i);
    if (d->far) lg_disk_far_give_up(d, i);
    pthread_mutex_lock(&d->copying);
    job->given_up = true;
    pthread_mutex_unlock(&d->copying);
    let_go(d, job);
}

/* Take an entry and all that stands on it out of the index, its jobs and files too. */
static void drop_tree(lg_disk *d, uint32_t top) {
    for (uint32_t at = NONE; at != top;) {
        at = lg_disk_index_leaf(&d->index, top);
        const lg_disk_entry *e = &d->index.entry[at];
        for (uint32_t i = d->first; e->state == LG_DISK_WRITING && i != d->end; i++)
            if (!job_at(d, i)->remove && job_at(d, i)->entry == at) give_up(d, i);
        if (e->state == LG_DISK_READY) remove_file(d, e->hash, e->to);
        lg_disk_index_drop(&d->index, at);
    }
}

void lg_disk_refuse(lg_disk *d, uint32_t entry, const char *why) {
    char name[LG_DISK_NAME_BYTES];
    const lg_disk_entry *e = &d->index.entry[entry];
    lg_disk_name(name, e->hash, e->to);
    if (why) {
        lg_diag_log(LG_LOG_WARN, "%s/%s: %s; the file is removed", d->name, name, why);
        d->n_refused++;
    }
    drop_tree(d, entry);
}

/* A file could not be written. */
static void write_failed(lg_disk *d, const lg_disk_job *job) {
    if (job->full && !d->told_full)
        lg_diag_log(LG_LOG_WARN,
                    "%s: the disk is full; kept texts stay within the %llu MiB that they have",
                    d->name, (unsigned long long)(d->index.used_bytes >> 20));
    if (job->full) {
        d->told_full = true;
        d->index.limit_bytes = d->index.used_bytes;
        return;
    }
    if (++d->n_error < MAX_ERROR) return;
    if (!d->off)
        lg_diag_log(LG_LOG_WARN, "%s: %s; no more kept texts are written", d->name, job->why);
    d->off = true;
}

/* What the writer has done with a job. */
static void collect(lg_disk *d, lg_disk_job *job) {
    if (job->remove) return;
    if (job->entry == NONE) { /* given up: it may have been too late */
        if (job->status == LG_OK) remove_file(d, job->head.hash, job->head.to);
        return;
    }
    uint32_t at = job->entry;
    let_go(d, job);
    if (job->status == LG_OK) {
        d->index.entry[at].state = LG_DISK_READY;
        d->n_error = 0;
        d->n_written++;
        return;
    }
    drop_tree(d, at);
    if (job->status != LG_E_CANCELLED) write_failed(d, job);
}

/* Forget the oldest job, which is done. */
static void pop(lg_disk *d) {
    lg_disk_job job = *job_at(d, d->first);
    d->first++;
    if (!job.remove) {
        bool any = false;
        for (uint32_t i = d->first; i != d->end && !any; i++) any = !job_at(d, i)->remove;
        d->ids.begin = job.ids_at + job.head.to - job.head.from;
        d->page.begin = job.page_at + job.head.n_page;
        d->ids.empty = d->page.empty = !any;
    }
}

static void collect_all(lg_disk *d) {
    if (d->first == d->end) return;
    pthread_mutex_lock(&d->lock);
    uint32_t next = d->next;
    pthread_mutex_unlock(&d->lock);
    while (d->first != next) {
        collect(d, job_at(d, d->first));
        pop(d);
    }
}

void lg_disk_poll(lg_disk *d) {
    if (d->far) lg_disk_far_poll(d, false);
    lg_disk_load_poll(d);
    collect_all(d);
}

bool lg_disk_yield_writes(lg_disk *d) {
    bool any = false;
    collect_all(d);
    for (uint32_t i = d->end; i-- != d->first;) {
        lg_disk_job *job = job_at(d, i);
        if (job->remove || job->entry == NONE) continue;
        uint32_t at = job->entry;
        if (d->index.entry[at].state != LG_DISK_WRITING) continue;
        drop_tree(d, at);
        any = true;
    }
    if (any) d->n_skipped++;
    return any;
}

bool lg_disk_yield(lg_disk *d) {
    bool writes = lg_disk_yield_writes(d);
    return lg_disk_load_yield(d) || writes;
}

void lg_disk_flush(lg_disk *d) {
    while (d->far && d->next != d->end) {
        lg_disk_far_poll(d, true);
        lg_clock_sleep_us(1000);
    }
    pthread_mutex_lock(&d->lock);
    while (d->next != d->end) pthread_cond_wait(&d->done, &d->lock);
    pthread_mutex_unlock(&d->lock);
    lg_disk_poll(d);
    if (d->first != d->end) lg_disk_flush(d); /* what was too late is being removed */
}

/* ---- what is written ---- */

bool lg_disk_pays(const lg_disk *d, uint32_t from, uint32_t to, uint64_t n_byte) {
    double us = lg_cost_tokens_us(d->cost, from, to - from);
    bool known = us > 0 && lg_cost_knows_prompts(d->cost, to - from);
    return d->always || !known || us >= (double)n_byte * d->us_byte;
}

/* Make room in table and folder for n_byte more; the leaf `keep` stays. */
static bool make_room(lg_disk *d, uint64_t n_byte, uint32_t keep) {
    lg_disk_index *x = &d->index;
    bool ok = n_byte <= x->limit_bytes;
    bool was = keep != NONE && x->entry[keep].busy;
    if (keep != NONE) x->entry[keep].busy = true;
    while (ok && (x->free == NONE || x->used_bytes > x->limit_bytes - n_byte)) {
        uint32_t at = lg_disk_index_victim(x);
        ok = at != NONE;
        if (ok) drop_tree(d, at);
    }
    if (keep != NONE) x->entry[keep].busy = was;
    return ok;
}

void lg_disk_offer(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n,
                   const uint32_t *page, uint32_t snap) {
    lg_disk_index *x = &d->index;
    lg_disk_job job = {.snap = snap};
    uint64_t hash;
    uint8_t salt_sum[LG_DISK_SUM_BYTES];
    if (d->off) return;
    lg_disk_salt(&d->shape, salt, salt_sum);
    uint32_t parent = lg_disk_index_deepest(x, lg_disk_hash0(salt_sum), ids, n, false, &hash);
    uint32_t from = parent == NONE ? 0 : x->entry[parent].to;
    if (from == n) {
        lg_disk_index_touch(x, parent);
        return;
    }
    lg_disk_head *h = &job.head;
    lg_disk_head_init(h, &d->shape, from, n);
    memcpy(h->salt, salt_sum, sizeof h->salt);
    h->hash = hash;
    h->parent = parent == NONE ? 0 : x->entry[parent].hash;
    uint64_t n_byte = lg_disk_file_bytes(h);
    if (!lg_disk_pays(d, from, n, n_byte)) return;
    /* Two places: what has to be removed to make room goes in front. */
    if (d->end - d->first + 2 > LG_DISK_MAX_JOB || !make_room(d, n_byte, parent) ||
        d->end - d->first == LG_DISK_MAX_JOB) {
        d->n_skipped++;
        return;
    }
    const lg_disk_ring was = d->ids;
    job.ids_at = ring_take(&d->ids, n - from);
    job.page_at = job.ids_at == NONE ? NONE : ring_take(&d->page, h->n_page);
    if (job.page_at == NONE) {
        d->ids = was;
        d->n_skipped++;
        return;
    }
    memcpy(d->ids.p + job.ids_at, ids + from, (n - from) * sizeof *ids);
    for (uint32_t i = 0; i < h->n_page; i++) {
        d->page.p[job.page_at + i] = page[from / LG_PAGE_TOK + i];
        lg_pages_hold(d->pages, page[from / LG_PAGE_TOK + i]);
    }
    lg_prefix_hold_snap(d->prefix, snap);
    job.entry = lg_disk_index_add(x, hash, from, n, parent, n_byte);
    LG_ASSERT(job.entry != NONE);
    *job_at(d, d->end) = job;
    push(d);
}

void lg_disk_discard(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n,
                     uint32_t from) {
    uint8_t salt_sum[LG_DISK_SUM_BYTES];
    if (d->index.n_used == 0) return;
    lg_disk_salt(&d->shape, salt, salt_sum);
    uint64_t h = lg_disk_hash0(salt_sum);
    for (uint32_t i = 0; i < n; i++) {
        h = lg_disk_roll(h, ids[i]);
        uint32_t at = lg_disk_index_find(&d->index, h, i + 1);
        if (at != NONE && i + 1 >= from) drop_tree(d, at);
    }
}

void lg_disk_stats(const lg_disk *d, lg_stats *stats) {
    stats->n_file += d->index.n_used;
    stats->file_bytes += d->index.used_bytes;
    stats->n_file_tok += d->n_read_tok;
    stats->n_file_written += d->n_written;
    stats->n_file_refused += d->n_refused;
    stats->n_file_skipped += d->n_skipped;
}
