/* disk_open.c - the folder of kept texts: who may use it, what is in it, start and end of the threads: see disk.h.
 *
 * In:  a folder and what this engine's files look like.   Out: an index of the files that are as they should be; the others are
 * named in the log and removed.  Contents are not read: their sums are checked when they are used.
 * Thread: engine.  Memory: one block; the list of heads while opening.  Test: tests/unit/test_disk.c, tests/e2e/test_cache.py */
#include "base/clock.h"
#include "engine/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define NONE      LG_DISK_NONE
#define LOCK_US   2000000 /* a process that has just been killed may still have it */
#define US_BYTE   0.002   /* before anything was read: 500 MB/s */
#define MIN_ENTRY 64
#define QUEUE_TOK 65536 /* ids that may wait to be written, beside two whole contexts */
#define MAX_NAMED 8     /* files without an own line in the log: those after so many */

/* ---- memory ---- */

static uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The smallest file holds a page and a state. */
static uint32_t count_entries(uint64_t limit_bytes, uint64_t file_bytes) {
    uint64_t n = limit_bytes / max_u64(file_bytes, 1);
    if (limit_bytes == 0 || n > LG_DISK_MAX_ENTRY) n = LG_DISK_MAX_ENTRY;
    return n < MIN_ENTRY ? MIN_ENTRY : (uint32_t)n;
}

static void carve(lg_disk *d, lg_arena *a, uint64_t limit_bytes, uint32_t n_ctx,
                  uint64_t page_bytes, uint64_t snap_bytes, uint32_t n_part) {
    uint32_t max_page = (n_ctx + LG_PAGE_TOK - 1) / LG_PAGE_TOK + 1;
    uint64_t part = n_part ? snap_bytes / n_part : 0;
    size_t buf = (size_t)max_u64(max_u64(page_bytes, part), 1);
    lg_disk_index_carve(&d->index, a, count_entries(limit_bytes, page_bytes + snap_bytes));
    d->job = lg_arena_take(a, LG_DISK_MAX_JOB, sizeof *d->job);
    d->ids = (lg_disk_ring){.cap = 2 * n_ctx + QUEUE_TOK, .empty = true};
    d->ids.p = lg_arena_take(a, d->ids.cap, sizeof(uint32_t));
    d->page = (lg_disk_ring){
        .cap = 2 * max_page + QUEUE_TOK / LG_PAGE_TOK + 2 * LG_DISK_MAX_JOB, .empty = true};
    d->page.p = lg_arena_take(a, d->page.cap, sizeof(uint32_t));
    d->load.ids = lg_arena_take(a, n_ctx, sizeof(uint32_t));
    d->load.page = lg_arena_take(a, max_page, sizeof(uint32_t));
    d->load.part = lg_arena_take(a, max_page + 1, sizeof *d->load.part);
    d->write_buf = lg_arena_take(a, buf, 1);
    d->read_buf = lg_arena_take(a, buf, 1);
    if (d->far) {
        d->msg_cap = lg_disk_far_bytes(n_ctx);
        d->msg = lg_arena_take(a, d->msg_cap, 1);
        d->answer = lg_arena_take(a, LG_DISK_ANSWER, 1);
    }
}

uint64_t lg_disk_memory(uint64_t limit_bytes, uint32_t n_ctx, const lg_backend_plan *plan) {
    lg_disk d = {.far = true}; /* the most it can be */
    lg_arena a;
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(&d, &a, limit_bytes, n_ctx, plan->page_bytes, plan->snap_bytes, plan->n_snap_part);
    return a.used_bytes + sizeof d;
}

static lg_status take_memory(lg_disk *d, const char *name, uint64_t limit_bytes) {
    const lg_disk_shape *s = &d->shape;
    lg_arena a;
    lg_arena_init(&a, NULL, SIZE_MAX);
    carve(d, &a, limit_bytes, s->max_tok, s->page_bytes, s->snap_bytes, s->n_part);
    size_t bytes = a.used_bytes;
    d->block = lg_mem_realloc(NULL, bytes);
    d->name = lg_mem_strdup(name);
    if (!d->block || !d->name) return LG_E_NOMEM;
    lg_arena_init(&a, d->block, bytes);
    carve(d, &a, limit_bytes, s->max_tok, s->page_bytes, s->snap_bytes, s->n_part);
    return LG_OK;
}

/* ---- the folder ---- */

static lg_status take_lock(lg_disk *d, lg_err *err) {
    uint64_t until = lg_clock_us() + LOCK_US;
    d->lock_fd = openat(d->dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock_fd < 0)
        return LG_FAIL(err, LG_E_IO, "cache folder %s/lock: %s", d->name, strerror(errno));
    while (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return LG_FAIL(err, LG_E_IO, "cache folder %s/lock: %s", d->name, strerror(errno));
        if (lg_clock_us() > until)
            return LG_FAIL(err, LG_E_IO,
                           "cache folder %s: another process uses it; each needs its own",
                           d->name);
        lg_clock_sleep_us(10000);
    }
    return LG_OK;
}

static lg_status open_folder(lg_disk *d, bool below, lg_err *err) {
    struct stat st;
    char *end = strrchr(d->name, '/');
    if (below && end && end != d->name) {
        *end = 0;
        mkdir(d->name, 0700);
        *end = '/';
    }
    if (mkdir(d->name, 0700) != 0 && errno != EEXIST)
        return LG_FAIL(err, LG_E_IO, "cache folder %s: %s", d->name, strerror(errno));
    d->dir = open(d->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->dir < 0 || fstat(d->dir, &st) != 0)
        return LG_FAIL(err, LG_E_IO, "cache folder %s: %s", d->name,
                       errno == ELOOP || errno == ENOTDIR ? "expected a folder, not a link"
                                                          : strerror(errno));
    if (st.st_uid != geteuid())
        return LG_FAIL(err, LG_E_IO,
                       "cache folder %s: it belongs to user %u, expected our own (%u)", d->name,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 077)
        return LG_FAIL(err, LG_E_IO,
                       "cache folder %s: found mode %o, expected 700: it will hold prompts",
                       d->name, (unsigned)(st.st_mode & 0777));
    return take_lock(d, err);
}

/* ---- what is in it ---- */

static void reject(lg_disk *d, lg_disk_list *l, const char *name, const char *why) {
    if (l->n_named++ < MAX_NAMED)
        lg_diag_log(LG_LOG_WARN, "%s/%s: %s; the file is removed", d->name, name, why);
    d->n_refused++;
    if (d->dir >= 0) unlinkat(d->dir, name, 0);
}

lg_status lg_disk_list_grow(lg_disk_list *l) {
    if (l->n < l->cap) return LG_OK;
    size_t cap = l->cap ? 2 * l->cap : 256;
    lg_disk_found *p = lg_mem_realloc(l->p, cap * sizeof *p);
    if (!p) return LG_E_NOMEM;
    l->p = p;
    l->cap = cap;
    return LG_OK;
}

/* One name of the folder.  What is not named as our files are is left alone. */
static lg_status look_at(lg_disk *d, lg_disk_list *l, const char *name) {
    uint64_t hash;
    uint32_t to;
    char why[96], whole[LG_DISK_NAME_BYTES];
    size_t len = strlen(name);
    if (len == 35 && strcmp(name + 30, ".part") == 0) { /* a write that was cut off */
        memcpy(whole, name, 30);
        whole[30] = 0;
        if (lg_disk_parse_name(whole, &hash, &to)) unlinkat(d->dir, name, 0);
        return LG_OK;
    }
    if (!lg_disk_parse_name(name, &hash, &to)) return LG_OK;
    LG_TRY(lg_disk_list_grow(l));
    lg_disk_found *f = &l->p[l->n];
    if (lg_disk_file_head(d->dir, name, &d->shape, &f->head, &f->mtime_s, why) == LG_OK) {
        l->n++;
    } else {
        reject(d, l, name, why);
    }
    return LG_OK;
}

/* Parents first. */
static int by_end(const void *a, const void *b) {
    const lg_disk_found *x = a, *y = b;
    if (x->head.to != y->head.to) return x->head.to < y->head.to ? -1 : 1;
    return x->head.hash < y->head.hash ? -1 : x->head.hash > y->head.hash;
}

static int by_age(const void *a, const void *b) {
    const lg_disk_found *x = a, *y = b;
    return x->mtime_s < y->mtime_s ? -1 : x->mtime_s > y->mtime_s;
}

/* The same for one whose head was right. */
static void leave_out(lg_disk *d, lg_disk_list *l, const lg_disk_head *h, const char *why) {
    char name[LG_DISK_NAME_BYTES];
    lg_disk_name(name, h->hash, h->to);
    reject(d, l, name, why);
    if (d->far) lg_disk_far_remove(d, h->hash, h->to);
}

/* Enter a file below its parent; one without a parent is good for nothing. */
static void enter(lg_disk *d, lg_disk_list *l, const lg_disk_found *f) {
    const lg_disk_head *h = &f->head;
    uint32_t parent = NONE;
    if (h->from) {
        parent = lg_disk_index_find(&d->index, h->parent, h->from);
        if (parent == NONE) {
            leave_out(d, l, h, "the file that it continues is not there");
            return;
        }
    }
    uint32_t at =
        lg_disk_index_add(&d->index, h->hash, h->from, h->to, parent, lg_disk_file_bytes(h));
    if (at == NONE) {
        leave_out(d, l, h, "there are more files than this cache has room for");
    } else {
        d->index.entry[at].state = LG_DISK_READY;
    }
}

/* Older files have been used earlier: by about as much as one file is worth. */
static void set_ages(lg_disk *d, lg_disk_list *l) {
    double worth = 0;
    qsort(l->p, l->n, sizeof *l->p, by_age);
    for (size_t i = 0; i < l->n; i++)
        worth += (double)(l->p[i].head.to - l->p[i].head.from) /
                 (double)lg_disk_file_bytes(&l->p[i].head) / (double)l->n;
    for (size_t i = 0; i < l->n; i++) {
        uint32_t at = lg_disk_index_find(&d->index, l->p[i].head.hash, l->p[i].head.to);
        if (at != NONE) d->index.entry[at].used = worth * (double)i / (double)l->n;
    }
    d->index.clock = worth;
}

/* Heads of all files that are as they should be. */
static lg_status scan(lg_disk *d, lg_disk_list *l) {
    lg_status st = LG_OK;
    int fd = openat(d->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0) close(fd);
        return LG_E_IO;
    }
    const struct dirent *e;
    while (st == LG_OK && (e = readdir(dir))) st = look_at(d, l, e->d_name);
    closedir(dir);
    return st;
}

static void enter_all(lg_disk *d, lg_disk_list *l) {
    if (l->n > 1) qsort(l->p, l->n, sizeof *l->p, by_end);
    for (size_t i = 0; i < l->n; i++) enter(d, l, &l->p[i]);
    if (l->n) set_ages(d, l);
    if (l->n_named > MAX_NAMED)
        lg_diag_log(LG_LOG_WARN, "%s: %u more files were removed, for such reasons", d->name,
                    l->n_named - MAX_NAMED);
}

uint64_t lg_disk_free_bytes(const lg_disk *d) {
    struct statvfs fs;
    return fstatvfs(d->dir, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

/* Choose the limit, and keep to it. */
static void set_limit(lg_disk *d, uint64_t limit_bytes, uint64_t free_bytes, uint32_t n_home) {
    lg_disk_index *x = &d->index;
    limit_bytes = (limit_bytes ? limit_bytes : (free_bytes + x->used_bytes) / 4) / n_home;
    x->limit_bytes = limit_bytes;
    while (x->used_bytes > limit_bytes) {
        uint32_t at = lg_disk_index_victim(x);
        LG_ASSERT(at != NONE);
        char name[LG_DISK_NAME_BYTES];
        lg_disk_name(name, x->entry[at].hash, x->entry[at].to);
        if (d->far) {
            lg_disk_far_remove(d, x->entry[at].hash, x->entry[at].to);
        } else {
            unlinkat(d->dir, name, 0);
        }
        lg_disk_index_drop(x, at);
    }
}

/* ---- start and end ---- */

/* Our threads take no signals of the program. */
static bool start(pthread_t *thread, void *(*body)(void *), lg_disk *d) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_create(thread, NULL, body, d) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static void open_locks(lg_disk *d) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->copying, NULL);
    pthread_mutex_init(&d->placing, NULL);
    pthread_cond_init(&d->to_write, NULL);
    pthread_cond_init(&d->to_read, NULL);
    pthread_cond_init(&d->done, &attr);
    pthread_condattr_destroy(&attr);
}

lg_status lg_disk_new(uint32_t owner, bool far, const lg_disk_shape *shape, const char *name,
                      uint64_t limit_bytes, lg_disk **disk, lg_err *err) {
    lg_disk *d = lg_mem_alloc(sizeof *d);
    *disk = NULL;
    if (!d) return LG_FAIL(err, LG_E_NOMEM, "cache folder: no memory");
    d->dir = d->lock_fd = -1;
    d->owner = owner;
    d->far = far;
    d->us_byte = US_BYTE;
    d->shape = *shape;
    open_locks(d);
    lg_status st = sodium_init() < 0 ? LG_E_IO : take_memory(d, name, limit_bytes);
    if (st != LG_OK) {
        LG_FAIL(err, st, "cache folder %s: no memory for its tables", name);
        lg_disk_close(&d, 0);
        return st;
    }
    lg_disk_index_init(&d->index, UINT64_MAX);
    *disk = d;
    return LG_OK;
}

lg_status lg_disk_start(lg_disk *d, bool below, lg_disk_list *l, lg_err *err) {
    LG_TRY(open_folder(d, below, err));
    lg_status st = scan(d, l);
    if (st != LG_OK) return LG_FAIL(err, st, "cache folder %s: it cannot be listed", d->name);
    d->has_writer = start(&d->writer, lg_disk_write_main, d);
    d->has_reader = start(&d->reader, lg_disk_load_main, d);
    if (d->has_writer && d->has_reader) return LG_OK;
    return LG_FAIL(err, LG_E_NOMEM, "cache folder %s: no thread for it", d->name);
}

lg_status lg_disk_open(lg_engine *eng, uint32_t home, const lg_disk_opt *opt, lg_err *err) {
    const lg_budget *b = &eng->parts.budget;
    const lg_backend_ops *ops = eng->parts.ops;
    lg_backend_plan plan;
    bool far = home && ops->call; /* its pages are not in this process */
    char path[3000];
    int len = home && !far ? snprintf(path, sizeof path, "%s/device-%u", opt->dir, home)
                           : snprintf(path, sizeof path, "%s", opt->dir);
    if (len < 0 || (size_t)len >= sizeof path)
        return LG_FAIL(err, LG_E_ARG, "cache folder: its name is too long");
    ops->plan(&eng->parts.w->cfg, &b->opt, eng->parts.n_thread, &plan);
    lg_disk_shape shape = {.page_bytes = plan.page_bytes,
                           .snap_bytes = plan.snap_bytes,
                           .n_part = plan.n_snap_part,
                           .max_tok = b->n_ctx};
    memcpy(shape.model, opt->model, sizeof opt->model);
    lg_disk_list l = {0};
    lg_disk *d;
    uint64_t free_bytes = 0;
    LG_TRY(lg_disk_new(home, far, &shape, path, opt->limit_bytes / eng->n_home, &d, err));
    d->ops = ops;
    d->be = eng->be;
    d->pages = &eng->home[home].state.pages;
    d->prefix = &eng->home[home].prefix;
    d->cost = &eng->cost;
    d->always = opt->always;
    lg_status st = far ? lg_disk_far_open(d, opt->dir, b->n_ctx, &l, &free_bytes, err)
                       : lg_disk_start(d, home > 0, &l, err);
    if (st == LG_OK) {
        if (!far) free_bytes = lg_disk_free_bytes(d);
        enter_all(d, &l);
        set_limit(d, opt->limit_bytes, free_bytes, eng->n_home);
        eng->home[home].disk = d;
    } else {
        lg_disk_close(&d, 0);
    }
    lg_mem_free(l.p);
    return st;
}

/* Wait for the writer until then; then it skips what is left. */
static void finish_writing(lg_disk *d, uint64_t until_us) {
    const struct timespec until = {.tv_sec = (time_t)(until_us / 1000000),
                                   .tv_nsec = (long)(until_us % 1000000) * 1000};
    pthread_mutex_lock(&d->lock);
    int rc = 0;
    while (d->next != d->end && rc == 0)
        rc = pthread_cond_timedwait(&d->done, &d->lock, &until);
    d->skip = true;
    pthread_mutex_lock(&d->copying);
    for (uint32_t i = d->next; i != d->end; i++) d->job[i % LG_DISK_MAX_JOB].given_up = true;
    pthread_mutex_unlock(&d->copying);
    pthread_mutex_lock(&d->placing);
    d->load.given_up = true;
    pthread_mutex_unlock(&d->placing);
    d->stop = true;
    pthread_cond_broadcast(&d->to_write);
    pthread_cond_broadcast(&d->to_read);
    pthread_mutex_unlock(&d->lock);
}

void lg_disk_close(lg_disk **disk, uint64_t until_us) {
    lg_disk *d = *disk;
    if (!d) return;
    if (d->has_writer || d->has_reader) finish_writing(d, until_us);
    if (d->has_writer) pthread_join(d->writer, NULL);
    if (d->has_reader) pthread_join(d->reader, NULL);
    if (d->lock_fd >= 0) close(d->lock_fd);
    if (d->dir >= 0) close(d->dir);
    lg_mem_free(d->block);
    lg_mem_free(d->name);
    LG_FREE(*disk);
}
