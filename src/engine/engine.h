/* engine.h - the map of src/engine: many sequences through one backend, a step at a time.
 *
 *   open     model folder -> parts (weights, text, pool, budget) -> engine      budget  bytes -> pool sizes
 *   engine   the public calls: submit, cancel, step, events                     sched   the next batch
 *   queue    who waits, in which order, fair to all clients                     admit   who gets in, and who is put back
 *   seq      one request's life: checks, ids, text                              stop    stop strings over any cut
 *   state    pages and slots; store: token buffers                              cost    (cost.h) how long steps take
 *   guide    (guide.h) answers that must fit a grammar                          ranks   (ranks.h) one model on all ranks
 *   home     where a sequence lives: one rank of a group has one state and one prefix tree; alone there is one home
 *
 *   cache/   prefix (prefix.h): which beginnings are kept; reuse: what an engine takes from them and gives to them;
 *            disk (disk.h): kept beginnings in files
 *
 * One thread owns an engine.  Everything is allocated at open; lg_submit allocates the request; lg_step and lg_next_event
 * allocate nothing.  Tests put another backend under it with lg_engine_open.
 * Test: tests/unit/test_engine.c, tests/unit/test_eval.c */
#ifndef LG_ENGINE_ENGINE_H
#define LG_ENGINE_ENGINE_H

#include "engine/cache/disk.h"
#include "engine/cost.h"
#include "engine/guide.h"
#include "model/text/tokenizer.h"

#define LG_MAX_WAIT       4096 /* requests in the queue; one more gets LG_AGAIN */
#define LG_MAX_STOP       16
#define LG_MAX_STOP_BYTES 4096 /* of one stop string */
#define LG_MAX_BIAS       1024

/* ---- state.c ---- */

/* Pools of a fixed size.  A slot brings a page table of its own. */
typedef struct lg_state {
    uint32_t n_slot, n_ctx, max_page; /* max_page: entries of a page table */
    lg_pages pages;
    uint32_t *slot_free, n_slot_free; /* stack of free numbers */
    uint32_t *page;                   /* [n_slot][max_page] */
    uint32_t *n_page_of;              /* [n_slot] pages held */
    void *block;                      /* owned: all of the above */
} lg_state;

/* Bytes that lg_state_init will take. */
uint64_t lg_state_bytes(uint32_t n_slot, uint32_t n_page, uint32_t n_ctx);

/* LG_OK or LG_E_NOMEM. */
lg_status lg_state_init(lg_state *st, uint32_t n_slot, uint32_t n_page, uint32_t n_ctx);
void lg_state_fini(lg_state *st);

/* Reserve a slot and the pages of n_tok positions (1 <= n_tok <= n_ctx), of which the first n_shared are references to full
 * pages that are in use.  They are the caller's until lg_state_release.
 * Returns LG_OK, or LG_AGAIN when either pool is short (nothing changed). */
lg_status lg_state_reserve(lg_state *st, uint32_t n_tok, const uint32_t *shared,
                           uint32_t n_shared, uint32_t *slot);
void lg_state_release(lg_state *st, uint32_t slot);

/* Add one page to a slot.  LG_OK, or LG_AGAIN when none is free. */
lg_status lg_state_grow(lg_state *st, uint32_t slot);

/* ---- store.c ---- */

/* Token buffers: twice as many as slots, since a sequence that was put back into the queue keeps its own. */
typedef struct lg_store {
    uint32_t n, n_ctx;
    uint32_t *ids; /* [n][n_ctx] */
    uint32_t *free, n_free;
    void *block;
} lg_store;

uint64_t lg_store_bytes(uint32_t n, uint32_t n_ctx);

/* LG_OK or LG_E_NOMEM. */
lg_status lg_store_init(lg_store *s, uint32_t n, uint32_t n_ctx);
void lg_store_fini(lg_store *s);

/* Take a buffer (UINT32_MAX: none is free), or give it back. */
uint32_t lg_store_take(lg_store *s);
void lg_store_give(lg_store *s, uint32_t store);

/* ---- stop.c ---- */

/* Finds the first completed stop string in a stream of bytes; the cut of the stream does not matter. */
typedef struct lg_stop {
    uint32_t n;
    const char *s[LG_MAX_STOP];
    uint32_t len_bytes[LG_MAX_STOP];
    uint32_t *border[LG_MAX_STOP]; /* [len_bytes] longest proper border of each prefix */
    uint32_t matched[LG_MAX_STOP]; /* bytes of s that the stream ends with */
} lg_stop;

/* Fill border[] of every string; matched becomes 0. */
void lg_stop_init(lg_stop *stop);

/* Feed one byte.  true when a string is complete: *index names it (the longest, then the first). */
bool lg_stop_put(lg_stop *stop, char c, uint32_t *index);

/* Bytes at the end of the stream that may be the beginning of a stop string. */
uint32_t lg_stop_held(const lg_stop *stop);

/* ---- seq.c ---- */

typedef struct lg_seq lg_seq;

/* One request, from lg_submit until its last event was fetched or has expired. */
struct lg_seq {
    uint64_t id;
    lg_seq *prev, *next;   /* its client's queue, or (next only) the list of ended sequences */
    lg_sampler sampler;    /* its ids: the prompt copy below, then its token buffer */
    uint32_t max_produced; /* most ids to produce; 0 = until the context is full */
    uint32_t n_done;       /* ids already in the slot's state */
    uint32_t n_most;       /* the most that ever were */
    uint32_t home;         /* index in lg_engine.home, once it has a slot */
    uint32_t slot;         /* UINT32_MAX: none */
    uint32_t store;        /* its token buffer; UINT32_MAX: not admitted yet */
    uint32_t n_preempt;    /* times it was put back */
    const uint32_t *prompt_ids; /* [n_id at submit] */
    /* order */
    int32_t priority; /* lower is earlier */
    bool aged; /* waited long enough: before all priorities, and never put back for one */
    double
        prepaid; /* of the work that it may still do: taken from lg_queue.credit when it aged */
    uint32_t client; /* index in lg_queue.client */
    bool in_queue;
    /* waiting until another sequence has computed what both begin with */
    lg_seq *hold_on; /* NULL: it does not wait for one */
    uint32_t hold_pos;
    bool was_held;
    uint32_t n_holder,
        holder_pos; /* sequences that wait for this one; the least position that they wait for */
    /* reuse of kept texts */
    uint64_t salt;
    uint32_t n_known;             /* ids at admission: snapshots may be wanted among them */
    uint32_t n_cached;            /* ids whose state was found at the first admission */
    uint32_t hit_pos;             /* the same at the last one */
    uint32_t branch_pos;          /* where the text leaves what is kept; 0: nowhere */
    uint32_t snap_pos;            /* last snapshot on this text, 0: none */
    bool disk_seen;               /* file_home and file_pos are known */
    bool disk_asked;              /* what files have of it is in memory, or not worth reading */
    uint32_t file_home, file_pos; /* where files have most of it; ids; until it is asked for */
    /* text */
    lg_detok detok;
    lg_stop stop;
    lg_buf text;     /* emitted in this step, then what is held back */
    uint32_t n_emit; /* bytes of text emitted in this step */
    bool met_stop;
    uint32_t stop_index;
    lg_guide *guide; /* owned; NULL: any answer will do */
    /* events waiting to be fetched */
    lg_seq *event_next;
    bool has_token, has_end, keep_end; /* keep_end: the end event outlives the next lg_step */
    lg_event token, end;
    lg_top top[LG_MAX_TOP];
    uint64_t n_byte; /* of its two blocks */
    /* clock */
    uint64_t submit_us, admit_us, first_us; /* 0: not yet */
};

/* What a request may ask of this engine. */
typedef struct lg_seq_limit {
    uint32_t n_ctx, n_token;
    uint32_t max_piece; /* bytes of the longest piece of the tokenizer */
    const lg_tokenizer *tok;
    const uint32_t *eos;
    uint32_t n_eos;
    lg_guide_kit *kit;    /* for grammars */
    uint64_t n_byte_free; /* for requests; grammars are not counted */
} lg_seq_limit;

/* Check a request and copy it; ids produced earlier go through stop strings and detokeniser without a trace.
 * The caller owns *seq.  LG_E_ARG naming the field, LG_AGAIN when it takes more than n_byte_free, LG_E_NOMEM. */
lg_status lg_seq_open(const lg_seq_limit *lim, const lg_request *req, uint64_t id, lg_seq **seq,
                      lg_err *err);
void lg_seq_close(lg_seq **seq);

/* Positions that the sequence may come to need. */
uint32_t lg_seq_n_need(const lg_seq *seq, uint32_t n_ctx);

/* Whether the sequence is over after its last produced id. */
lg_finish lg_seq_finish(const lg_seq *seq, const lg_seq_limit *lim);

/* Append a sampled id (the token buffer has room): fills seq->token.  false: its grammar has no way on. */
bool lg_seq_take(lg_seq *seq, const lg_seq_limit *lim, const lg_sampled *got);

/* Fill seq->end; held back text goes out with it unless a stop string was met. */
void lg_seq_end(lg_seq *seq, lg_finish finish, lg_status status, uint64_t now_us);

/* ---- queue.c ---- */

/* Who asks: requests of one client wait in one line. */
typedef struct lg_client {
    uint64_t id;
    double used;     /* work done for it, on the queue's clock */
    uint32_t n_live; /* requests that wait or run; 0: the entry may be given to another */
    uint32_t n_wait;
    lg_seq *first, *last; /* by rank; those that were put back first; by age */
} lg_client;

typedef struct lg_queue {
    lg_client *client; /* [n_client] owned */
    uint32_t n_client, cap_client;
    uint32_t n_wait;
    double clock; /* `used` of the client that was served last: where newcomers begin */
    double credit,
        credit_next; /* work that is due to those of later priorities; where to look who is */
} lg_queue;

#define LG_QUEUE_SHARE 16  /* of the work done, one part is due to those of later priorities */
#define LG_QUEUE_LOOK  256 /* credit from which on somebody is looked for */
#define LG_QUEUE_DEBT                                                                          \
    8192 /* most work of one aged sequence that delays the next beyond its prompt */

/* LG_OK or LG_E_NOMEM. */
lg_status lg_queue_init(lg_queue *q);
void lg_queue_fini(lg_queue *q);

/* Enter a new request of this client.  LG_OK or LG_E_NOMEM (nothing changed). */
lg_status lg_queue_enter(lg_queue *q, lg_seq *seq, uint64_t client);

/* Put one back that was running. */
void lg_queue_return(lg_queue *q, lg_seq *seq);

/* Who is next among those that are not held; NULL: nobody.  The least rank, then the client that was served least, then age. */
lg_seq *lg_queue_next(const lg_queue *q);

/* Take one out of the line: it is admitted, or about to end. */
void lg_queue_remove(lg_queue *q, lg_seq *seq);

/* A request that entered is over. */
void lg_queue_leave(lg_queue *q, lg_seq *seq);

/* Waiting request of this id, or NULL. */
lg_seq *lg_queue_find(const lg_queue *q, uint64_t id);

/* Work was done for a sequence: its client pays. */
void lg_queue_charge(lg_queue *q, lg_seq *seq, double work);

/* Whether x goes before y, both running or both waiting. */
bool lg_queue_before(const lg_queue *q, const lg_seq *x, const lg_seq *y);

/* Its priority; less than any when it has aged. */
int64_t lg_queue_rank(const lg_seq *seq);

/* Nobody waits for ever: when the credit covers the ids that are to compute for the oldest of those that wait, or read their
 * prompt, behind an earlier priority, it ages.  So after a request is the oldest such, at most LG_QUEUE_SHARE * (LG_QUEUE_DEBT +
 * max(its ids, LG_QUEUE_LOOK)) of work is done for others before it has its turn.  true: one has aged. */
bool lg_queue_age(lg_queue *q, lg_seq *const *run, uint32_t n_run);

/* Let go those that wait for seq and are served by its first n_done ids (UINT32_MAX: all of them; seq stops running). */
void lg_queue_let_go(lg_queue *q, lg_seq *seq, uint32_t n_done);

/* ---- admit.c ---- */

/* Move waiting sequences into free slots while pages last.  One of an earlier priority may put running ones of later
 * priorities back; one that begins as a running prompt does waits for it when that costs less. */
void lg_admit_run(lg_engine *eng);

/* Give every decoding sequence the page that its next row needs, putting the last ones back if there are too few. */
void lg_admit_grow(lg_engine *eng);

/* Put a running sequence back into the queue.  keep: with a snapshot of where it is; else what it computed since its last
 * snapshot is computed again later. */
void lg_admit_put_back(lg_engine *eng, lg_seq *seq, bool keep);

/* ---- sched.c ---- */

/* The next step's batch and whose rows they are. */
typedef struct lg_sched {
    lg_batch batch;
    uint32_t *tok;       /* [n_batch_tok] */
    lg_batch_seq *row;   /* [n_seq] */
    uint32_t *page;      /* [n_seq * max_page] */
    lg_sampled *sampled; /* [n_seq] */
    lg_seq **who;        /* [n_seq] */
    uint32_t *grant;     /* [n_seq] prefill rows granted */
    lg_batch_save *save; /* [n_save_max] snapshots that the step takes */
    uint32_t n_save, n_save_max;
    uint32_t n_batch_tok;
    uint64_t
        stall_us; /* longest step with prompt rows beside decodes; 0: no limit; LG_STALL_AUTO */
    uint64_t spent_us;  /* of the step, before it is planned: snapshots brought in, files */
    lg_cost_load load;  /* of the batch */
    double expected_us; /* of the batch; 0: not known yet */
} lg_sched;

/* Fill eng->sched.batch: one row of every decoding sequence, then prefill chunks.  Priorities in order; in one priority half
 * of the rows left are for the first prompt (lg_queue_before), the other half is divided among the next ones (at least 32
 * rows each); what they do not need goes to the first.  Several homes get equal rows of a priority, as far as they need them, and each is
 * divided so: a step is as long as its longest part.  Beside decodes no more prompt rows than the step may take by
 * stall_us, but at least one. */
void lg_sched_plan(lg_engine *eng);

/* ---- reuse.c ---- */

/* Which snapshots an engine takes.  Their positions depend on the ids and these numbers alone. */
typedef struct lg_reuse {
    uint32_t gap;     /* no two snapshots of a text are closer */
    uint32_t spacing; /* at multiples of this, in long prompts */
    uint32_t mark;    /* id that begins a message */
    uint32_t *page;   /* [max_page] work */
    uint64_t n_hit_tok, n_prompt_tok;
} lg_reuse;

/* ---- home.c ---- */

#define LG_MAX_HOME  256
#define LG_MAX_SPARE 8

/* Where sequences live: pools and kept texts of one owner (backend.h).  A sequence moves only when it was put back. */
typedef struct lg_home {
    lg_state state;
    lg_prefix prefix;
    lg_disk *disk;  /* NULL: no files */
    uint32_t n_run; /* sequences admitted here and not over */
} lg_home;

/* Open one home for each owner, with the sizes of the budget each.  LG_E_NOMEM. */
lg_status lg_home_open(lg_engine *eng);
void lg_home_close(lg_engine *eng);

/* The home, of those not in tried[n_home], that would compute a waiting sequence's ids soonest: fewest ids owed there with
 * those of this sequence that are not kept there, in memory or (file_home) in files; then fewest sequences; then the one whose next sequence ends first; then
 * the lowest.  LG_MAX_HOME when all were tried. */
uint32_t lg_home_choose(const lg_engine *eng, const lg_seq *seq, const bool *tried);

/* Whether prompts of which nothing has been computed shall wait in this step.  All homes step together and the longest part counts,
 * so prompts that begin together cost the others' answers one long step, not one each.  They begin when
 *   every home that has answers has one too; or homes without answers are as many as those with one; or
 *   another prompt is being read anyway; or
 *   the first of them has waited parts.hold_steps steps, or one has aged, or all of them together are short. */
bool lg_home_holds(lg_engine *eng);

/* Choose the numbers for parts.budget. */
void lg_reuse_open(lg_engine *eng);

/* Whether files have more of a waiting sequence's ids than memory, and it is being read: wait. */
bool lg_reuse_is_coming(lg_engine *eng, lg_seq *seq);

/* Give a waiting sequence a home, a slot and pages for its ids, and bring back the longest kept beginning of them.  eng->spare
 * pages more for each sequence that runs there stay free.  false: no room yet in any home. */
bool lg_reuse_admit(lg_engine *eng, lg_seq *seq);

/* The last position <= limit, beyond what is computed, at which a running prompt will leave a snapshot; 0: none. */
uint32_t lg_reuse_next_snap(const lg_engine *eng, const lg_seq *seq, uint32_t limit);

/* Choose the snapshots that the rows of `row`, which begin at seq->n_done, shall take. */
void lg_reuse_plan(lg_engine *eng, lg_seq *seq, lg_batch_seq *row);

/* Keep the snapshots that `row` took (ok), or give their numbers back. */
void lg_reuse_harvest(lg_engine *eng, lg_seq *seq, const lg_batch_seq *row, bool ok);

/* A sequence with a slot is about to leave it: keep its text as far as it is computed.  false when nothing new was kept. */
bool lg_reuse_end(lg_engine *eng, lg_seq *seq);

/* Its logits were not finite: forget the snapshot that it came from and what continues it. */
void lg_reuse_discard(lg_engine *eng, lg_seq *seq);

/* ---- budget.c ---- */

/* Memory that this process may still take: MemAvailable and every cgroup limit above it, less a tenth.  root: "" in use,
 * a folder that holds proc/ and sys/ in tests.  0 when nothing can be read. */
uint64_t lg_budget_machine(const char *root);

/* Sizes chosen for an engine. */
typedef struct lg_budget {
    lg_backend_opt
        opt; /* n_slot, n_snap, n_page, max_tok, max_seq, max_out, n_sample_vocab, kv */
    uint32_t n_ctx;
    uint64_t stall_us;     /* for lg_sched */
    uint64_t memory_bytes; /* the whole budget */
    uint64_t state_bytes,
        scratch_bytes;      /* state: slots, snapshots, pages, our tables, requests */
    uint64_t request_bytes; /* of which for requests, until their last events are gone */
    uint64_t guide_bytes;   /* of which for all guides */
    uint64_t page_bytes, snap_bytes; /* of one */
} lg_budget;

/* Choose sizes so that weights, pools and scratch stay within `bytes`.  opt: what the caller asks for; values left at 0 give
 * way, in the order: sequences to 8, context to 4096, sequences to 1, context to 256.  `roomy`: the budget was not asked for,
 * so pools take at most half of what is left by the weights, but at least one whole context.  Guides get
 * 64 bytes for each id, 256 KiB, and a 64th of what the first context leaves, at most 256 MiB.  Snapshots get
 * opt->cache_bytes, or a quarter of what the first context leaves; none when that is not worth it.
 * LG_E_ARG for a contradiction, LG_E_NOMEM with needed, budget and what would fit. */
lg_status lg_budget_fit(const lg_config *cfg, const lg_options *opt, uint64_t weight_bytes,
                        uint64_t bytes, bool roomy, uint32_t n_sample_vocab, int n_thread,
                        lg_backend_plan_fn *plan, lg_budget *b, lg_err *err);

/* The same for each rank of a group, where a step of all ranks has n_batch_tok rows (dist NULL: alone); or for devices, whose
 * choice of types decides what a page and a state are (device NULL: none). */
lg_status lg_budget_fit_on(const lg_config *cfg, const lg_options *opt, uint64_t weight_bytes,
                           uint64_t bytes, bool roomy, uint32_t n_sample_vocab, int n_thread,
                           lg_backend_plan_fn *plan, const lg_dist *dist,
                           struct lg_pjrt_device *device, lg_budget *b, lg_err *err);

/* ---- engine.c ---- */

/* What an engine stands on; all borrowed until release(ctx), which lg_close calls last (may be NULL). */
typedef struct lg_engine_parts {
    const lg_backend_ops *ops;
    const lg_weights *w;
    lg_pool *pool; /* may be NULL when the backend needs none */
    int n_thread;
    lg_text *text;           /* for lg_get_text, may be NULL */
    const lg_tokenizer *tok; /* whose ids the model speaks */
    const char *name;        /* copied */
    uint32_t
        hold_steps;   /* steps that a prompt waits for those of other homes, at most; 0: none */
    uint32_t n_owner; /* owners of the backend, at most LG_MAX_HOME; 0 means 1 */
    lg_budget budget; /* of each owner; max_tok is of a step of all together */
    lg_disk_opt disk; /* dir is copied */
    uint64_t (*clock_us)(void); /* NULL: lg_clock_us */
    void (*release)(void *ctx);
    void *ctx;
} lg_engine_parts;

struct lg_engine {
    lg_engine_parts parts;
    lg_info info;
    lg_stats stats; /* the counters; lg_get_stats adds what is known elsewhere */
    lg_seq_limit limit;
    lg_guide_kit kit;
    lg_backend *be;
    lg_home *home; /* [n_home], one for each owner */
    uint32_t n_home;
    uint32_t n_hold; /* steps in a row for which prompts were held */
    lg_reuse reuse;
    lg_sched sched;
    lg_cost cost;
    lg_store store;
    lg_queue queue;
    lg_seq **run; /* [n_seq] admitted, in that order */
    uint32_t n_run;
    lg_seq *ended;                    /* over; freed when their events are gone */
    lg_seq *event_first, *event_last; /* sequences with events, in order */
    uint64_t last_id;
    double
        spare; /* pages left free at admission for each running sequence, 1 to LG_MAX_SPARE */
    bool lost; /* the backend failed */
};

/* Microseconds on the engine's clock. */
uint64_t lg_engine_now_us(const lg_engine *eng);

/* Take a sequence out of run[]; it keeps its slot. */
void lg_engine_unlink_run(lg_engine *eng, lg_seq *seq);

/* End a sequence of the queue or of run[]: its slot, pages and token buffer are free from here on. */
void lg_engine_end(lg_engine *eng, lg_seq *seq, lg_finish finish, lg_status status);

/* Open an engine on parts.  On failure nothing is released.  LG_E_NOMEM, LG_E_UNSUPPORTED, LG_E_FORMAT. */
lg_status lg_engine_open(const lg_engine_parts *parts, lg_engine **eng, lg_err *err);

#endif
