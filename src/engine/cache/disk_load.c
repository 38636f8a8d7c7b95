/* disk_load.c - texts that come back from files: see disk.h.
 *
 * In:  ids of a sequence that waits for admission.   Out: pages and a snapshot in the tree of kept texts, as if never gone.
 * One text at a time: the engine reserves pages and a snapshot number and hands a list of files to the reader thread; the
 * result enters the tree only when every sum was right, else the first file that was not is taken out with all that stands on it.
 * Thread: engine; lg_disk_load_main the reader.  Memory: reserved at open.  Test: tests/unit/test_disk.c, test_reuse.c */
#include "base/clock.h"
#include "engine/engine.h"

#include <string.h>
#include <time.h>

#define NONE          LG_DISK_NONE
#define LOAD_WAIT_US  20000
#define FAR_WAIT_US   500
#define WRITE_WAIT_US 2000 /* nobody waits for it; new requests should not either */

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* ---- the reader thread ---- */

/* Pieces of the file at hand: wanted pages and the state go to their places in memory. */
static bool place(void *ctx, bool snap, uint32_t i, void *buf) {
    lg_disk *d = ctx;
    lg_disk_load *l = &d->load;
    const lg_disk_part *p = &l->part[l->at];
    uint32_t page = p->from / LG_PAGE_TOK + i;
    pthread_mutex_lock(&d->placing);
    bool ok = !l->given_up;
    if (ok && snap) {
        d->ops->put_snap(d->be, d->owner, l->snap, i, buf);
    } else if (ok && page >= p->low && page < p->high) {
        d->ops->put_page(d->be, d->owner, l->page[page], buf);
    }
    pthread_mutex_unlock(&d->placing);
    return ok;
}

static void read_all(lg_disk *d) {
    lg_disk_load *l = &d->load;
    uint64_t start_us = lg_clock_us();
    l->status = LG_OK;
    for (l->at = 0; l->at < l->n_part; l->at++) {
        const lg_disk_part *p = &l->part[l->at];
        lg_disk_want want = {.hash = p->hash,
                             .from = p->from,
                             .to = p->to,
                             .salt = l->salt_sum,
                             .ids = l->ids,
                             .snap = l->at == 0};
        l->status = lg_disk_file_read(d->dir, &want, &d->shape, place, d, d->read_buf,
                                      &l->n_byte, l->why);
        if (l->status != LG_OK) break;
    }
    l->us = lg_clock_us() - start_us;
}

void *lg_disk_load_main(void *ctx) {
    lg_disk *d = ctx;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        if (!d->load.asked) {
            pthread_cond_wait(&d->to_read, &d->lock);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        read_all(d);
        pthread_mutex_lock(&d->lock);
        d->load.asked = false;
        d->load.done = true;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the engine ---- */

/* Entry of a file of the load, if it is still there. */
static uint32_t entry_of(const lg_disk *d, uint32_t part) {
    return lg_disk_index_find(&d->index, d->load.part[part].hash, d->load.part[part].to);
}

/* List the files that hold pages [low, ...) of the text that ends with file `at`; returns their bytes. */
static uint64_t plan(lg_disk *d, uint32_t at, uint32_t low) {
    lg_disk_load *l = &d->load;
    uint64_t n_byte = 0;
    uint32_t high = pages_of(d->index.entry[at].to);
    for (l->n_part = 0; l->n_part == 0 || high > low; at = d->index.entry[at].parent) {
        LG_ASSERT(at != NONE);
        const lg_disk_entry *e = &d->index.entry[at];
        uint32_t first = e->from / LG_PAGE_TOK;
        if (l->n_part && first >= high) continue; /* the later file has that page whole */
        uint32_t from = first > low ? first : low;
        l->part[l->n_part++] = (lg_disk_part){
            .hash = e->hash, .from = e->from, .to = e->to, .low = from, .high = high};
        n_byte += e->bytes - (l->n_part > 1 ? d->shape.snap_bytes : 0);
        high = first;
    }
    return n_byte;
}

/* Hold what memory has of the text, and room for the rest.  false: there is none. */
static bool reserve(lg_disk *d, const lg_prefix_hit *hit) {
    lg_disk_load *l = &d->load;
    uint32_t low = hit->pos / LG_PAGE_TOK, n = pages_of(l->n);
    lg_prefix_pages(d->prefix, hit, l->page);
    for (uint32_t i = 0; i < low; i++) lg_pages_hold(d->pages, l->page[i]);
    l->snap = lg_prefix_reserve(d->prefix);
    bool ok = l->snap != LG_PREFIX_NONE;
    if (ok && !lg_prefix_make_room(d->prefix, n - low, LG_PREFIX_NONE)) {
        ok = lg_disk_yield_writes(d) && lg_prefix_make_room(d->prefix, n - low, LG_PREFIX_NONE);
        if (!ok) lg_prefix_release(d->prefix, l->snap);
    }
    for (uint32_t i = low; ok && i < n; i++) l->page[i] = lg_pages_take(d->pages);
    for (uint32_t i = 0; !ok && i < low; i++) lg_pages_drop(d->pages, l->page[i]);
    return ok;
}

bool lg_disk_ask(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n,
                 const lg_prefix_hit *hit) {
    lg_disk_load *l = &d->load;
    if (l->active) return true;
    if (d->index.n_used == 0) return false;
    lg_disk_salt(&d->shape, salt, l->salt_sum);
    uint32_t at =
        lg_disk_index_deepest(&d->index, lg_disk_hash0(l->salt_sum), ids, n, true, NULL);
    if (at == NONE || d->index.entry[at].to <= hit->pos) return false;
    l->n = d->index.entry[at].to;
    uint64_t n_byte = plan(d, at, hit->pos / LG_PAGE_TOK);
    if (!lg_disk_pays(d, hit->pos, l->n, n_byte) || !reserve(d, hit)) return false;
    for (uint32_t i = 0; i < l->n_part; i++) d->index.entry[entry_of(d, i)].busy = true;
    l->salt = salt;
    l->n_byte = 0;
    memcpy(l->ids, ids, l->n * sizeof *ids);
    l->active = true;
    l->given_up = false; /* the reader sleeps */
    if (d->far) {
        lg_disk_far_load(d);
        return true;
    }
    pthread_mutex_lock(&d->lock);
    l->asked = true;
    pthread_cond_signal(&d->to_read);
    pthread_mutex_unlock(&d->lock);
    return true;
}

uint32_t lg_disk_depth(const lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n) {
    uint8_t sum[LG_DISK_SUM_BYTES];
    if (d->index.n_used == 0) return 0;
    lg_disk_salt(&d->shape, salt, sum);
    uint32_t at = lg_disk_index_deepest(&d->index, lg_disk_hash0(sum), ids, n, true, NULL);
    return at == NONE ? 0 : d->index.entry[at].to;
}

/* The fastest of the last reads tells what reading costs: slower ones waited for something else. */
static void note_cost(lg_disk *d) {
    const lg_disk_load *l = &d->load;
    d->recent[d->n_recent++ % LG_COUNT(d->recent)] = (double)l->us / (double)l->n_byte;
    d->us_byte = d->recent[0];
    for (uint32_t i = 1; i < d->n_recent && i < LG_COUNT(d->recent); i++)
        if (d->recent[i] < d->us_byte) d->us_byte = d->recent[i];
}

/* Nobody reads into these pages, or these files, any more. */
static void let_go(lg_disk *d) {
    lg_disk_load *l = &d->load;
    for (uint32_t i = 0; i < pages_of(l->n); i++) lg_pages_drop(d->pages, l->page[i]);
    for (uint32_t i = 0; i < l->n_part; i++) {
        uint32_t at = entry_of(d, i);
        if (at != NONE) d->index.entry[at].busy = false;
    }
}

static void finish(lg_disk *d) {
    lg_disk_load *l = &d->load;
    if (l->given_up) return;
    uint32_t at = entry_of(d, l->status == LG_OK ? 0 : l->at);
    if (l->status == LG_OK) {
        lg_prefix_keep(d->prefix, l->salt, l->ids, l->n, l->page, l->snap);
        if (at != NONE) lg_disk_index_touch(&d->index, at);
        d->n_read_tok += l->n;
        note_cost(d);
    } else {
        lg_prefix_release(d->prefix, l->snap);
    }
    let_go(d);
    if (l->status != LG_OK && at != NONE) lg_disk_refuse(d, at, l->why);
}

bool lg_disk_load_yield(lg_disk *d) {
    lg_disk_load *l = &d->load;
    if (!l->active || l->given_up) return false;
    if (d->far) lg_disk_far_load_give_up(d);
    pthread_mutex_lock(&d->placing);
    l->given_up = true;
    pthread_mutex_unlock(&d->placing);
    lg_prefix_release(d->prefix, l->snap);
    let_go(d);
    return true;
}

void lg_disk_load_poll(lg_disk *d) {
    if (!d->load.active) return;
    pthread_mutex_lock(&d->lock);
    bool done = d->load.done;
    d->load.done = false;
    pthread_mutex_unlock(&d->lock);
    if (!done) return;
    finish(d);
    d->load.active = false;
}

bool lg_disk_wait(lg_disk *d, uint32_t n_home) {
    struct timespec until;
    if (!d->load.active && d->first == d->end) return false;
    if (d->far) {
        lg_disk_far_poll(d, true);
        if (d->load.active ? !d->load.done : d->next != d->end) lg_clock_sleep_us(FAR_WAIT_US);
        return !d->dead;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (d->load.active ? LOAD_WAIT_US : WRITE_WAIT_US) * 1000 / (long)n_home;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&d->lock);
    int rc = 0;
    while (rc == 0 && (d->load.active ? !d->load.done : d->next != d->end))
        rc = pthread_cond_timedwait(&d->done, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
    return true;
}
