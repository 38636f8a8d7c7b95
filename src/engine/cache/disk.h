/* disk.h - kept texts in files: what survives a restart (--cache-dir).
 *
 *   disk_file   one file: head, name, writing, reading        disk_index  which files there are, which go first
 *   disk_load   texts that come back                           disk        what is written; the writing thread and its queue
 *   disk_open   the folder: start and end                     disk_far     the folders of other ranks
 *
 * A file holds what a snapshot adds to its parent's file: the ids (from, to], the KV pages of these positions, and the state right
 * after them.  So a text is a chain of files, and a page is written once.  Files are found by a hash of the salt and
 * of all ids up to `to`; ids are compared when a file is read.
 * Order of bytes: head (256), ids, pages, state; sums are BLAKE2b-256, numbers little-endian.
 * A file that is not exactly as it should be (sums, sizes, another model, another format, no parent) is named in the log and removed; nothing of it
 * is used: pages and state get into the tree of kept texts only when every sum was right.
 * Cost: a file is written, and read, when reading it takes less time than computing its tokens again, by what both took so far, or
 * as long as the steps measured lately do not tell what a prompt costs (after a start that had nothing to compute, say);
 * with a full folder the least of clock + tokens / bytes goes (as in prefix.h, of 64), leaves only.
 *
 * Several devices: each has the texts that live there, in a folder of its own (the first in DIR, device k in DIR/device-k), with an
 * lg_disk and threads of its own in this process.
 * Ranks: each keeps the texts that live there, in a folder of its own (rank 0 in DIR, rank k in DIR/rank-k), whose threads are that rank's.
 * Which files there are and what to write, read and remove is decided by rank 0 (one lg_disk for each home): it sends jobs, and asks
 * what has become of them (disk_far.c).
 * Threads: all calls are the engine's; a writer and a reader thread do all file I/O after open.  They read pages and snapshots in
 * place: these are held (lg_pages_hold, lg_prefix_hold_snap) until copied, and given back at once when the engine needs them.
 * Memory: all at open, within the budget.  Folder: mode 0700, ours, one process at a time; files: 0600, links refused.
 * Test: tests/unit/test_disk.c, tests/unit/test_reuse.c, tests/e2e/test_cache.py; fuzz/fuzz_disk.c */
#ifndef LG_ENGINE_CACHE_DISK_H
#define LG_ENGINE_CACHE_DISK_H

#include "engine/cache/prefix.h"

#include <pthread.h>

#define LG_DISK_FORMAT     1
#define LG_DISK_HEAD_BYTES 256
#define LG_DISK_SUM_BYTES  32
#define LG_DISK_NAME_BYTES 40 /* of a file's name, with its NUL */
#define LG_DISK_MAX_ENTRY  65536
#define LG_DISK_NONE       UINT32_MAX

/* ---- disk_file.c ---- */

typedef struct lg_disk_head {
    char magic[8]; /* "LGKEPT\0\0" */
    uint32_t format, page_tok;
    uint8_t model[LG_DISK_SUM_BYTES]; /* weights, build, precision: what the bits depend on */
    uint8_t salt[LG_DISK_SUM_BYTES];  /* hash of the salt */
    uint64_t hash, parent;            /* of the ids up to `to`, up to `from` */
    uint32_t from, to;
    uint64_t page_bytes, snap_bytes;
    uint8_t ids_sum[LG_DISK_SUM_BYTES], kv_sum[LG_DISK_SUM_BYTES], snap_sum[LG_DISK_SUM_BYTES];
    uint32_t n_page, n_part;
    uint8_t head_sum[LG_DISK_SUM_BYTES]; /* of all before */
} lg_disk_head;

_Static_assert(sizeof(lg_disk_head) == LG_DISK_HEAD_BYTES, "the head has no gaps");

/* What the files of one engine have in common. */
typedef struct lg_disk_shape {
    uint8_t model[LG_DISK_SUM_BYTES];
    uint64_t page_bytes, snap_bytes;
    uint32_t n_part, max_tok; /* parts of a snapshot; longest text, the context */
} lg_disk_shape;

/* Hash of a salt as it is written to files, and the hash of a text without ids and with one more. */
void lg_disk_salt(const lg_disk_shape *shape, uint64_t salt, uint8_t sum[LG_DISK_SUM_BYTES]);
uint64_t lg_disk_hash0(const uint8_t salt_sum[LG_DISK_SUM_BYTES]);
uint64_t lg_disk_roll(uint64_t hash, uint32_t id);

/* Fill everything but the three sums of contents; then, when those are there, head_sum. */
void lg_disk_head_init(lg_disk_head *h, const lg_disk_shape *shape, uint32_t from, uint32_t to);
void lg_disk_head_seal(lg_disk_head *h);

/* Take a head out of the first `len` bytes of a file of file_bytes.  false: why[] says what is wrong. */
bool lg_disk_head_check(const void *bytes, size_t len, uint64_t file_bytes,
                        const lg_disk_shape *shape, lg_disk_head *h, char why[96]);

/* Bytes of a whole file; the head was checked or made here. */
uint64_t lg_disk_file_bytes(const lg_disk_head *h);

/* "HASH-TO.kept"; the way back is false for any other name. */
void lg_disk_name(char name[LG_DISK_NAME_BYTES], uint64_t hash, uint32_t to);
bool lg_disk_parse_name(const char *name, uint64_t *hash, uint32_t *to);

/* Where pages and snapshots are copied: page or part number i of the file to or from buf.  false: give up, without an error. */
typedef bool lg_disk_copy_fn(void *ctx, bool snap, uint32_t i, void *buf);

/* Write a file under a temporary name and rename it.  `buf` holds a page or a part.  LG_E_IO with why (errno text),
 * *full when the disk is; LG_E_CANCELLED when `copy` gave up.  Nothing is left behind then. */
lg_status lg_disk_file_write(int dir, lg_disk_head *h, const uint32_t *ids,
                             lg_disk_copy_fn *copy, void *ctx, void *buf, bool *full,
                             char why[96]);

/* A file to be read for a text whose position 0 is ids[0]. */
typedef struct lg_disk_want {
    uint64_t hash;
    uint32_t from, to;
    const uint8_t *salt; /* as lg_disk_salt */
    const uint32_t *ids;
    bool snap; /* its state too */
} lg_disk_want;

/* Read and check a file.  Pages go to `copy`, then parts.  LG_E_FORMAT: it is damaged or foreign; LG_E_IO: it cannot be read;
 * why[] says what; LG_E_CANCELLED when `copy` gave up.  *n_byte grows. */
lg_status lg_disk_file_read(int dir, const lg_disk_want *want, const lg_disk_shape *shape,
                            lg_disk_copy_fn *copy, void *ctx, void *buf, uint64_t *n_byte,
                            char why[96]);

/* Read and check the head alone, and the name.  Errors as above. */
lg_status lg_disk_file_head(int dir, const char *name, const lg_disk_shape *shape,
                            lg_disk_head *h, int64_t *mtime_s, char why[96]);

/* ---- disk_index.c ---- */

typedef enum { LG_DISK_FREE, LG_DISK_WRITING, LG_DISK_READY } lg_disk_state;

typedef struct lg_disk_entry {
    uint64_t hash, bytes;
    double used; /* clock when last used */
    uint32_t from, to, parent, n_child;
    uint32_t chain; /* next of the same bucket, or of the free list */
    lg_disk_state state;
    bool busy; /* it is being read */
} lg_disk_entry;

typedef struct lg_disk_index {
    lg_disk_entry *entry;
    uint32_t n_entry, free, n_used;
    uint32_t *bucket, n_bucket; /* a power of two */
    uint64_t used_bytes, limit_bytes;
    uint32_t hand; /* the next entry that is looked at for a victim */
    double clock;
} lg_disk_index;

/* Lay an index of n_entry out in an arena (which may only count). */
void lg_disk_index_carve(lg_disk_index *x, lg_arena *a, uint32_t n_entry);
void lg_disk_index_init(lg_disk_index *x, uint64_t limit_bytes);

uint32_t lg_disk_index_find(const lg_disk_index *x, uint64_t hash, uint32_t to);

/* The deepest file that is whole and ends at or before n ids; *hash (may be NULL) becomes the hash of all n. */
uint32_t lg_disk_index_deepest(const lg_disk_index *x, uint64_t hash0, const uint32_t *ids,
                               uint32_t n, bool ready, uint64_t *hash);

/* Enter a file below `parent` (LG_DISK_NONE: none).  LG_DISK_NONE when the table is full or the file is there already. */
uint32_t lg_disk_index_add(lg_disk_index *x, uint64_t hash, uint32_t from, uint32_t to,
                           uint32_t parent, uint64_t bytes);

/* Take out a file without children. */
void lg_disk_index_drop(lg_disk_index *x, uint32_t at);

/* A leaf of the subtree of `top`: the order in which a subtree is taken out. */
uint32_t lg_disk_index_leaf(const lg_disk_index *x, uint32_t top);

/* The file and those that it stands on were used. */
void lg_disk_index_touch(lg_disk_index *x, uint32_t at);

/* The leaf to go next, never one that is busy or being written; LG_DISK_NONE: there is none. */
uint32_t lg_disk_index_victim(lg_disk_index *x);

/* ---- disk.c ---- */

typedef struct lg_disk lg_disk;
struct lg_engine;
struct lg_cost;
struct lg_backend_ops;

typedef struct lg_disk_opt {
    const char *dir;      /* NULL: no files */
    uint64_t limit_bytes; /* 0 = a quarter of what is free and ours */
    uint8_t model[LG_DISK_SUM_BYTES];
    bool always; /* do not ask what it costs: for tests */
} lg_disk_opt;

/* Bytes that lg_disk_open will take (disk_open.c). */
uint64_t lg_disk_memory(uint64_t limit_bytes, uint32_t n_ctx, const lg_backend_plan *plan);

/* Open the folder of one home of an engine whose pools are there: home[i].disk.  The folder is made when it is missing.  Reads the head
 * of every file.  opt is for all homes together.  LG_E_IO naming the folder and what is wrong with it, or that another process has it;
 * LG_E_ARG where its name is too long; LG_E_COMM; LG_E_NOMEM. */
lg_status lg_disk_open(struct lg_engine *eng, uint32_t home, const lg_disk_opt *opt,
                       lg_err *err);

#define LG_DISK_CLOSE_US 1500000 /* what closing all homes' folders may take */

/* Writes what is queued until the clock (lg_clock_us) says until_us. */
void lg_disk_close(lg_disk **d, uint64_t until_us);

/* A snapshot was kept: ids[0, n), page[i] as lg_prefix_keep.  Queued if it pays, else forgotten. */
void lg_disk_offer(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n,
                   const uint32_t *page, uint32_t snap);

/* Take over what the threads have done.  Called at each step. */
void lg_disk_poll(lg_disk *d);

/* Pages are needed: give back those held for writing and for the text that is being read.  true when there were any. */
bool lg_disk_yield(lg_disk *d);

/* As lg_prefix_discard, for files. */
void lg_disk_discard(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n, uint32_t from);

/* How many of ids[0, n) are in files here. */
uint32_t lg_disk_depth(const lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n);

/* For tests: wait until all is written. */
void lg_disk_flush(lg_disk *d);

/* Add to the counters of files. */
void lg_disk_stats(const lg_disk *d, lg_stats *stats);

/* ---- disk_load.c ---- */

/* Whether to wait for a text that is being read: more of ids[0, n) than `hit` (what memory has) is in files, and is on its
 * way.  false: go on with what is in memory (the hit may be gone: look again). */
bool lg_disk_ask(lg_disk *d, uint64_t salt, const uint32_t *ids, uint32_t n,
                 const lg_prefix_hit *hit);

/* Nothing else is to be done: wait for a text that is being read, 20 ms / n_home at most, or what is being written, 2 ms / n_home at
 * most.  false: the threads have nothing to do either. */
bool lg_disk_wait(lg_disk *d, uint32_t n_home);

/* ---- shared by disk.c and disk_load.c ---- */

#define LG_DISK_MAX_JOB 256

/* Numbers in a ring: what jobs need of ids and pages lies in one piece, first in, first out. */
typedef struct lg_disk_ring {
    uint32_t *p, cap, begin, end;
    bool empty;
} lg_disk_ring;

/* Something for the writer to do, in order. */
typedef struct lg_disk_job {
    bool remove;    /* a file, else write one */
    bool given_up;  /* (copying) nothing may be read from the engine's memory any more */
    uint32_t entry; /* LG_DISK_NONE: it has left the index */
    uint32_t snap;
    uint32_t ids_at, page_at;
    lg_disk_head head;
    lg_status status;
    bool full;
    char why[96];
} lg_disk_job;

/* One file that the reader shall read: pages [low, high) of the text come from it. */
typedef struct lg_disk_part {
    uint64_t hash;
    uint32_t from, to, low, high;
} lg_disk_part;

/* The text that is being read. */
typedef struct lg_disk_load {
    bool active;      /* from ask to its end; the engine's */
    bool given_up;    /* (placing) its pages are not its any more */
    bool asked, done; /* (lock) for the reader; for the engine */
    uint64_t salt;
    uint8_t salt_sum[LG_DISK_SUM_BYTES];
    uint32_t n, snap, n_part, at; /* ids; snapshot number; files; the one at hand */
    uint32_t *ids, *page;         /* [n_ctx], [max_page] */
    lg_disk_part *part;           /* [max_page], deepest first */
    uint64_t n_byte, us;
    lg_status status;
    char why[96];
} lg_disk_load;

struct lg_disk {
    uint32_t owner; /* of the pages */
    bool
        far; /* another rank has them: job, ids, page and load are copies of what its threads work on */
    bool dead; /* that rank is lost */
    uint64_t asked_us;
    uint8_t *msg, *answer; /* LG_DISK_ANSWER bytes */
    size_t msg_cap;
    const struct lg_backend_ops *ops;
    lg_backend *be;
    lg_pages *pages;
    lg_prefix *prefix;
    lg_disk_shape shape;
    lg_disk_index index;
    char *name; /* of the folder */
    int dir, lock_fd;
    bool always, off; /* off: writing failed too often */
    uint32_t n_error; /* in a row */
    bool told_full;
    const struct lg_cost *cost; /* of computing */
    double us_byte, recent[8];  /* of reading, measured */
    uint32_t n_recent;
    uint64_t n_read_tok, n_refused, n_skipped, n_written; /* counters */
    /* the writer's queue: first <= next <= end; [first, next) are done, [next, end) wait or run */
    pthread_mutex_t lock, copying, placing; /* the first before either of the others */
    pthread_cond_t to_write, to_read, done;
    uint32_t first, next, end;
    bool stop, skip; /* skip: what is queued is not written any more */
    lg_disk_job *job;
    lg_disk_ring ids, page;
    void *write_buf, *read_buf;
    lg_disk_load load;
    pthread_t writer, reader;
    bool has_writer, has_reader;
    void *block; /* owned: tables and buffers */
};

/* Whether reading n_byte beats computing positions [from, to). */
bool lg_disk_pays(const lg_disk *d, uint32_t from, uint32_t to, uint64_t n_byte);

/* As lg_disk_yield, for what is held for writing alone; for the text that is being read alone. */
bool lg_disk_yield_writes(lg_disk *d);
bool lg_disk_load_yield(lg_disk *d);

/* A file is not as it should be, or is not wanted: take it and all that stands on it out, and say so when why is not NULL. */
void lg_disk_refuse(lg_disk *d, uint32_t entry, const char *why);

/* Bodies of the threads (ctx: lg_disk), and what poll does for the reader. */
void *lg_disk_write_main(void *ctx);
void *lg_disk_load_main(void *ctx);
void lg_disk_load_poll(lg_disk *d);

/* ---- disk_open.c, for disk_far.c too ---- */

typedef struct lg_disk_found {
    lg_disk_head head;
    int64_t mtime_s;
} lg_disk_found;

typedef struct lg_disk_list {
    lg_disk_found *p;
    size_t n, cap;
    uint32_t n_named; /* lines in the log */
} lg_disk_list;

/* A disk without folder and threads: tables, locks; where it is far, room for messages. */
lg_status lg_disk_new(uint32_t owner, bool far, const lg_disk_shape *shape, const char *name,
                      uint64_t limit_bytes, lg_disk **d, lg_err *err);

/* Open the folder, list the heads in it, start the threads.  below: it is in the folder that was named, which is made too. */
lg_status lg_disk_start(lg_disk *d, bool below, lg_disk_list *l, lg_err *err);

/* Make room for one more.  LG_E_NOMEM. */
lg_status lg_disk_list_grow(lg_disk_list *l);

/* Bytes free to us where the folder is. */
uint64_t lg_disk_free_bytes(const lg_disk *d);

/* ---- disk_far.c: rank 0's side ---- */

#define LG_DISK_ANSWER 65536

/* Bytes of the longest message about texts of n_ctx ids. */
size_t lg_disk_far_bytes(uint32_t n_ctx);

/* Open the folder there and fetch the list of its files; the name in messages becomes that of the rank. */
lg_status lg_disk_far_open(lg_disk *d, const char *dir, uint32_t n_ctx, lg_disk_list *l,
                           uint64_t *free_bytes, lg_err *err);

/* What push, give up, remove and load are for a folder here.  A rank that is lost: d->dead, and what waits is over. */
void lg_disk_far_push(lg_disk *d, const lg_disk_job *job);
void lg_disk_far_give_up(lg_disk *d, uint32_t number);
void lg_disk_far_remove(lg_disk *d, uint64_t hash, uint32_t to);
void lg_disk_far_load(lg_disk *d);
void lg_disk_far_load_give_up(lg_disk *d);

/* Ask what has been done, when there is something to ask for; not `now`: not sooner than some milliseconds after the last time. */
void lg_disk_far_poll(lg_disk *d, bool now);

/* ---- disk_far.c: the other ranks' side ---- */

typedef struct lg_disk_rank lg_disk_rank;
typedef struct lg_member_calls lg_member_calls;

/* Be ready for the calls of rank 0.  opt: sizes of this rank's pools.  LG_E_NOMEM. */
lg_status lg_disk_rank_open(const lg_backend_opt *opt, uint32_t rank, lg_disk_rank **r,
                            lg_member_calls *calls, lg_err *err);
void lg_disk_rank_close(lg_disk_rank **r);

#endif
