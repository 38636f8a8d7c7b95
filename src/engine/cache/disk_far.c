/* disk_far.c - kept texts of other ranks, in folders of their own: see disk.h.
 *
 * Rank 0 has each folder's index and queue as if it were its own; jobs and texts to read go to the rank as messages, and are put
 * into the same places of the same queue there, where that rank's threads do them.  A message is answered between two steps, so what
 * was given up is not read or written by the next step.
 * Messages are plain structs: all ranks run the same program (ranks.c).  Each is checked against the rank's pools before use.
 * Thread: engine, of both.  Memory: buffers of the longest message at open.  Test: tests/unit/test_group.c, tests/e2e/test_ranks.py */
#include "backend/group/group.h"
#include "base/clock.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POLL_US 2000

typedef enum {
    MSG_OPEN = 1,
    MSG_LIST, /* from file number `number` on */
    MSG_JOB,
    MSG_GIVE_UP,
    MSG_REMOVE,
    MSG_LOAD,
    MSG_LOAD_GIVE_UP,
    MSG_POLL /* jobs from `number` on */
} msg_kind;

/* Then ids, pages, parts; or the name of the folder. */
typedef struct message {
    uint32_t kind, number;
    uint32_t n_id, n_page, n_part, len;
    uint32_t ids_at, page_at, snap;
    bool remove;
    lg_disk_head head;
    uint8_t salt_sum[LG_DISK_SUM_BYTES];
    lg_disk_shape shape;
} message;

/* Then n outcomes or files. */
typedef struct answer {
    lg_status status;
    uint32_t n;
    uint32_t load_at; /* MSG_POLL */
    lg_status load_status;
    bool load_done;
    uint64_t load_bytes, load_us;
    uint64_t free_bytes, n_refused; /* MSG_OPEN */
    char text[400];
} answer;

typedef struct outcome {
    lg_status status;
    bool full;
    char why[96];
} outcome;

#define MAX_FILES ((LG_DISK_ANSWER - sizeof(answer)) / sizeof(lg_disk_found))

_Static_assert(sizeof(answer) + LG_DISK_MAX_JOB * sizeof(outcome) <= LG_DISK_ANSWER,
               "what has become of all jobs fits");

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

size_t lg_disk_far_bytes(uint32_t n_ctx) {
    uint32_t n_page = pages_of(n_ctx) + 1;
    size_t text = (size_t)n_ctx * sizeof(uint32_t) + n_page * sizeof(uint32_t) +
                  (n_page + 1) * sizeof(lg_disk_part);
    return sizeof(message) + (text > 4096 ? text : 4096);
}

/* ---- rank 0 ---- */

/* What is under way is over. */
static void lose(lg_disk *d, const char *why) {
    if (!d->dead) lg_diag_log(LG_LOG_WARN, "%s: %s; its kept texts are lost", d->name, why);
    d->dead = d->off = true;
    for (uint32_t i = d->next; i != d->end; i++)
        d->job[i % LG_DISK_MAX_JOB].status = LG_E_CANCELLED;
    d->next = d->end;
    d->load.done = d->load.active;
    d->load.status = LG_E_CANCELLED;
    d->load.at = 0;
}

/* Send what is in d->msg; the answer is in d->answer.  false: the rank is lost. */
static bool call(lg_disk *d, bool patient, size_t n_bytes, answer *a) {
    size_t n = 0;
    if (d->dead) return false;
    lg_status st =
        d->ops->call(d->be, d->owner, patient, d->msg, n_bytes, d->answer, LG_DISK_ANSWER, &n);
    if (st == LG_OK && n >= sizeof *a) {
        memcpy(a, d->answer, sizeof *a);
        a->text[sizeof a->text - 1] = 0;
        return true;
    }
    lose(d, st == LG_OK ? "an answer that is too short" : "the rank does not answer");
    return false;
}

/* The same for what has no answer but yes. */
static void tell(lg_disk *d, size_t n_bytes) {
    answer a;
    if (call(d, false, n_bytes, &a) && a.status != LG_OK) lose(d, a.text);
}

static size_t put(lg_disk *d, size_t at, const void *data, size_t n_bytes) {
    LG_ASSERT(n_bytes <= d->msg_cap - at);
    if (n_bytes) memcpy(d->msg + at, data, n_bytes);
    return at + n_bytes;
}

/* n files of an answer. */
static lg_status take_files(lg_disk *d, const answer *a, lg_disk_list *l) {
    for (uint32_t i = 0; i < a->n; i++) {
        LG_TRY(lg_disk_list_grow(l));
        memcpy(&l->p[l->n++], d->answer + sizeof *a + i * sizeof *l->p, sizeof *l->p);
    }
    return LG_OK;
}

lg_status lg_disk_far_open(lg_disk *d, const char *dir, uint32_t n_ctx, lg_disk_list *l,
                           uint64_t *free_bytes, lg_err *err) {
    char path[3000];
    answer a;
    int len = snprintf(path, sizeof path, "%s/rank-%u", dir, d->owner);
    if (len < 0 || (size_t)len >= sizeof path)
        return LG_FAIL(err, LG_E_ARG, "cache folder: its name is too long");
    LG_ASSERT(d->shape.max_tok == n_ctx);
    message m = {.kind = MSG_OPEN, .len = (uint32_t)len + 1, .shape = d->shape};
    if (!call(d, true, put(d, put(d, 0, &m, sizeof m), path, m.len), &a))
        return LG_FAIL(err, LG_E_COMM, "cache folder %s: rank %u does not answer", path,
                       d->owner);
    if (a.status != LG_OK) return LG_FAIL(err, a.status, "rank %u: %.380s", d->owner, a.text);
    *free_bytes = a.free_bytes;
    d->n_refused = a.n_refused;
    lg_mem_free(d->name);
    d->name = lg_mem_strdup(path);
    if (!d->name) return LG_FAIL(err, LG_E_NOMEM, "cache folder: no memory");
    do {
        m = (message){.kind = MSG_LIST, .number = (uint32_t)l->n};
        if (!call(d, false, put(d, 0, &m, sizeof m), &a) || a.status != LG_OK ||
            a.n > MAX_FILES)
            return LG_FAIL(err, LG_E_COMM, "cache folder %s: rank %u does not list it", path,
                           d->owner);
        if (take_files(d, &a, l) != LG_OK)
            return LG_FAIL(err, LG_E_NOMEM, "cache folder %s: no memory for its list", path);
    } while (a.n == MAX_FILES);
    return LG_OK;
}

void lg_disk_far_push(lg_disk *d, const lg_disk_job *job) {
    const lg_disk_head *h = &job->head;
    message m = {.kind = MSG_JOB,
                 .number = d->end,
                 .ids_at = job->ids_at,
                 .page_at = job->page_at,
                 .snap = job->snap,
                 .remove = job->remove,
                 .head = *h};
    if (!job->remove) {
        m.n_id = h->to - h->from;
        m.n_page = h->n_page;
    }
    size_t n = put(d, 0, &m, sizeof m);
    n = put(d, n, d->ids.p + m.ids_at, m.n_id * sizeof(uint32_t));
    tell(d, put(d, n, d->page.p + m.page_at, m.n_page * sizeof(uint32_t)));
}

void lg_disk_far_give_up(lg_disk *d, uint32_t number) {
    message m = {.kind = MSG_GIVE_UP, .number = number};
    tell(d, put(d, 0, &m, sizeof m));
}

void lg_disk_far_remove(lg_disk *d, uint64_t hash, uint32_t to) {
    message m = {.kind = MSG_REMOVE, .head = {.hash = hash, .to = to}};
    tell(d, put(d, 0, &m, sizeof m));
}

void lg_disk_far_load(lg_disk *d) {
    const lg_disk_load *l = &d->load;
    message m = {.kind = MSG_LOAD,
                 .snap = l->snap,
                 .n_id = l->n,
                 .n_page = pages_of(l->n),
                 .n_part = l->n_part};
    memcpy(m.salt_sum, l->salt_sum, sizeof m.salt_sum);
    size_t n = put(d, 0, &m, sizeof m);
    n = put(d, n, l->ids, m.n_id * sizeof *l->ids);
    n = put(d, n, l->page, m.n_page * sizeof *l->page);
    tell(d, put(d, n, l->part, m.n_part * sizeof *l->part));
    if (d->dead) lose(d, "");
}

void lg_disk_far_load_give_up(lg_disk *d) {
    message m = {.kind = MSG_LOAD_GIVE_UP};
    tell(d, put(d, 0, &m, sizeof m));
}

void lg_disk_far_poll(lg_disk *d, bool now) {
    lg_disk_load *l = &d->load;
    answer a;
    uint64_t t = lg_clock_us();
    if (d->dead || (d->next == d->end && !(l->active && !l->done))) return;
    if (!now && t - d->asked_us < POLL_US) return;
    d->asked_us = t;
    message m = {.kind = MSG_POLL, .number = d->next};
    if (!call(d, false, put(d, 0, &m, sizeof m), &a)) return;
    if (a.status != LG_OK || a.n > d->end - d->next || a.load_at >= l->n_part + 1) {
        lose(d, a.status != LG_OK ? a.text : "an answer that does not fit what was asked");
        return;
    }
    for (uint32_t i = 0; i < a.n; i++) {
        outcome o;
        lg_disk_job *job = &d->job[d->next++ % LG_DISK_MAX_JOB];
        memcpy(&o, d->answer + sizeof a + i * sizeof o, sizeof o);
        job->status = o.status;
        job->full = o.full;
        snprintf(job->why, sizeof job->why, "%.95s", o.why);
    }
    if (!a.load_done) return;
    l->done = true;
    l->status = a.load_status;
    l->at = a.load_at < l->n_part ? a.load_at : 0;
    l->n_byte = a.load_bytes ? a.load_bytes : 1;
    l->us = a.load_us;
    snprintf(l->why, sizeof l->why, "%.95s", a.text);
}

/* ---- the other ranks ---- */

struct lg_disk_rank {
    lg_backend_opt opt;
    lg_backend_ops ops; /* of this rank's own pools */
    lg_disk *d;         /* from MSG_OPEN on */
    lg_disk_list found;
    message *m;   /* the message, and what follows it */
    uint8_t *out; /* LG_DISK_ANSWER */
};

static lg_status refuse(answer *a, const char *why) {
    snprintf(a->text, sizeof a->text, "%s", why);
    return a->status = LG_E_FORMAT;
}

static lg_status on_open(lg_disk_rank *r, lg_backend *be, size_t n_bytes, answer *a) {
    const message *m = r->m;
    const char *dir = (const char *)(m + 1);
    lg_err err = {0};
    if (r->d || m->len == 0 || m->len != n_bytes - sizeof *m || dir[m->len - 1] ||
        m->shape.max_tok != r->opt.n_ctx || m->shape.n_part == 0 || m->shape.page_bytes == 0)
        return refuse(a, "not a folder to open");
    /* The index is rank 0's: here it is as small as can be. */
    lg_status st = lg_disk_new(0, false, &m->shape, dir, 1, &r->d, &err);
    if (st == LG_OK) {
        r->d->ops = &r->ops;
        r->d->be = be;
        st = lg_disk_start(r->d, true, &r->found, &err);
    }
    if (st == LG_OK) {
        a->free_bytes = lg_disk_free_bytes(r->d);
        a->n_refused = r->d->n_refused;
    }
    snprintf(a->text, sizeof a->text, "%.390s", err.msg);
    return a->status = st;
}

static void on_list(lg_disk_rank *r, answer *a, size_t *n_out) {
    size_t from = r->m->number, n = from < r->found.n ? r->found.n - from : 0;
    a->n = (uint32_t)(n < MAX_FILES ? n : MAX_FILES);
    *n_out += a->n * sizeof *r->found.p;
    if (a->n) memcpy(r->out + sizeof *a, r->found.p + from, a->n * sizeof *r->found.p);
    if (a->n == MAX_FILES) return;
    lg_mem_free(r->found.p);
    r->found = (lg_disk_list){0};
}

static bool are_pages(const lg_disk_rank *r, const uint32_t *page, uint32_t n) {
    bool ok = true;
    for (uint32_t i = 0; i < n; i++) ok = ok && page[i] < r->opt.n_page;
    return ok;
}

static lg_status on_job(lg_disk_rank *r, answer *a) {
    const message *m = r->m;
    lg_disk *d = r->d;
    const lg_disk_head *h = &m->head;
    const uint32_t *ids = (const uint32_t *)(m + 1), *page = ids + m->n_id;
    pthread_mutex_lock(&d->lock);
    bool full = d->end - d->next >= LG_DISK_MAX_JOB;
    pthread_mutex_unlock(&d->lock);
    if (m->number != d->end || full) return refuse(a, "a job that is not the next one");
    lg_disk_job *job = &d->job[d->end % LG_DISK_MAX_JOB];
    if (!m->remove) {
        if (h->from >= h->to || h->to > r->opt.n_ctx || m->n_id != h->to - h->from ||
            m->n_page != pages_of(h->to) - h->from / LG_PAGE_TOK || h->n_page != m->n_page ||
            m->ids_at > d->ids.cap || m->n_id > d->ids.cap - m->ids_at ||
            m->page_at > d->page.cap || m->n_page > d->page.cap - m->page_at ||
            m->snap >= r->opt.n_snap || !are_pages(r, page, m->n_page) ||
            h->page_bytes != d->shape.page_bytes || h->snap_bytes != d->shape.snap_bytes ||
            h->n_part != d->shape.n_part)
            return refuse(a, "a job outside the pools");
        memcpy(d->ids.p + m->ids_at, ids, m->n_id * sizeof *ids);
        memcpy(d->page.p + m->page_at, page, m->n_page * sizeof *page);
    }
    *job = (lg_disk_job){.remove = m->remove,
                         .entry = LG_DISK_NONE,
                         .snap = m->snap,
                         .ids_at = m->ids_at,
                         .page_at = m->page_at,
                         .head = *h};
    pthread_mutex_lock(&d->lock);
    d->end++;
    pthread_cond_signal(&d->to_write);
    pthread_mutex_unlock(&d->lock);
    return LG_OK;
}

static lg_status on_load(lg_disk_rank *r, answer *a) {
    const message *m = r->m;
    lg_disk_load *l = &r->d->load;
    const uint32_t *ids = (const uint32_t *)(m + 1), *page = ids + m->n_id;
    pthread_mutex_lock(&r->d->lock);
    bool busy = l->asked;
    pthread_mutex_unlock(&r->d->lock);
    if (busy || m->n_id == 0 || m->n_id > r->opt.n_ctx || m->n_page != pages_of(m->n_id) ||
        m->n_part == 0 || m->n_part > m->n_page || m->snap >= r->opt.n_snap ||
        !are_pages(r, page, m->n_page))
        return refuse(a, "a text to read that does not fit the pools");
    memcpy(l->part, page + m->n_page, m->n_part * sizeof *l->part);
    for (uint32_t i = 0; i < m->n_part; i++)
        if (l->part[i].to > m->n_id || l->part[i].from >= l->part[i].to ||
            l->part[i].high > m->n_page || l->part[i].low > l->part[i].high)
            return refuse(a, "a part of a text that does not fit it");
    memcpy(l->ids, ids, m->n_id * sizeof *ids);
    memcpy(l->page, page, m->n_page * sizeof *page);
    memcpy(l->salt_sum, m->salt_sum, sizeof l->salt_sum);
    l->n = m->n_id;
    l->n_part = m->n_part;
    l->snap = m->snap;
    l->n_byte = 0;
    l->given_up = false; /* the reader sleeps */
    pthread_mutex_lock(&r->d->lock);
    l->asked = true;
    l->done = false;
    pthread_cond_signal(&r->d->to_read);
    pthread_mutex_unlock(&r->d->lock);
    return LG_OK;
}

static lg_status on_give_up(lg_disk_rank *r, answer *a) {
    lg_disk *d = r->d;
    if (r->m->kind == MSG_LOAD_GIVE_UP) {
        pthread_mutex_lock(&d->placing);
        d->load.given_up = true;
        pthread_mutex_unlock(&d->placing);
        return LG_OK;
    }
    if (d->end - r->m->number - 1 >= LG_DISK_MAX_JOB) return refuse(a, "no such job");
    pthread_mutex_lock(&d->copying);
    d->job[r->m->number % LG_DISK_MAX_JOB].given_up = true;
    pthread_mutex_unlock(&d->copying);
    return LG_OK;
}

static lg_status on_poll(lg_disk_rank *r, answer *a, size_t *n_out) {
    lg_disk *d = r->d;
    lg_disk_load *l = &d->load;
    uint32_t first = r->m->number;
    pthread_mutex_lock(&d->lock);
    a->n = d->next - first;
    a->load_done = l->done;
    l->done = false;
    pthread_mutex_unlock(&d->lock);
    if (a->n > LG_DISK_MAX_JOB) return refuse(a, "no such jobs");
    for (uint32_t i = 0; i < a->n; i++) {
        const lg_disk_job *job = &d->job[(first + i) % LG_DISK_MAX_JOB];
        outcome o = {.status = job->status, .full = job->full};
        snprintf(o.why, sizeof o.why, "%.95s", job->why);
        memcpy(r->out + sizeof *a + i * sizeof o, &o, sizeof o);
    }
    *n_out += a->n * sizeof(outcome);
    if (!a->load_done) return LG_OK;
    a->load_status = l->status;
    a->load_at = l->at;
    a->load_bytes = l->n_byte;
    a->load_us = l->us;
    snprintf(a->text, sizeof a->text, "%.95s", l->status == LG_OK ? "" : l->why);
    return LG_OK;
}

static void on_remove(const lg_disk_rank *r) {
    char name[LG_DISK_NAME_BYTES];
    lg_disk_name(name, r->m->head.hash, r->m->head.to);
    unlinkat(r->d->dir, name, 0);
}

/* Whether so many bytes are a message. */
static bool is_whole(const message *m, size_t n_bytes) {
    if (n_bytes < sizeof *m) return false;
    size_t n = sizeof *m + m->len + ((size_t)m->n_id + m->n_page) * sizeof(uint32_t) +
               m->n_part * sizeof(lg_disk_part);
    return n == n_bytes;
}

static size_t answer_call(void *ctx, lg_backend *be, size_t n_bytes, const void **out) {
    lg_disk_rank *r = ctx;
    answer a = {0};
    size_t n = sizeof a;
    *out = r->out;
    if (!is_whole(r->m, n_bytes) || (!r->d && r->m->kind != MSG_OPEN)) {
        refuse(&a, "not a message about kept texts");
    } else {
        switch ((msg_kind)r->m->kind) {
        case MSG_OPEN: on_open(r, be, n_bytes, &a); break;
        case MSG_LIST: on_list(r, &a, &n); break;
        case MSG_JOB: on_job(r, &a); break;
        case MSG_GIVE_UP:
        case MSG_LOAD_GIVE_UP: on_give_up(r, &a); break;
        case MSG_REMOVE: on_remove(r); break;
        case MSG_LOAD: on_load(r, &a); break;
        case MSG_POLL: on_poll(r, &a, &n); break;
        default: refuse(&a, "an unknown message about kept texts");
        }
    }
    memcpy(r->out, &a, sizeof a);
    return a.status == LG_OK ? n : sizeof a;
}

static void close_disk(void *ctx) {
    lg_disk_rank *r = ctx;
    lg_disk_close(&r->d, lg_clock_us() + LG_DISK_CLOSE_US);
}

lg_status lg_disk_rank_open(const lg_backend_opt *opt, uint32_t rank, lg_disk_rank **out,
                            lg_member_calls *calls, lg_err *err) {
    lg_disk_rank *r = *out = lg_mem_alloc(sizeof *r);
    size_t cap = lg_disk_far_bytes(opt->n_ctx);
    if (r) {
        r->opt = *opt;
        r->ops = *lg_backend_cpu();
        r->m = lg_mem_alloc(cap);
        r->out = lg_mem_alloc(LG_DISK_ANSWER);
    }
    if (!r || !r->m || !r->out) {
        lg_disk_rank_close(out);
        return LG_FAIL(err, LG_E_NOMEM, "rank %u: no memory for kept texts", rank);
    }
    *calls = (lg_member_calls){
        .ctx = r, .msg = r->m, .cap_bytes = cap, .answer = answer_call, .close = close_disk};
    return LG_OK;
}

void lg_disk_rank_close(lg_disk_rank **rank) {
    lg_disk_rank *r = *rank;
    if (!r) return;
    lg_disk_close(&r->d, lg_clock_us() + LG_DISK_CLOSE_US);
    lg_mem_free(r->found.p);
    lg_mem_free(r->m);
    lg_mem_free(r->out);
    LG_FREE(*rank);
}
