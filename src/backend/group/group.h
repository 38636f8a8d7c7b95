/* group.h - the map of src/backend/group: one backend made of many ranks.
 *
 *   order   a step as a message: flat words, checked before use       leader  rank 0: the calls of backend.h
 *   member  the other ranks: receive an order, step, reply
 *
 * Rank 0 has the engine.  Each rank is one owner (backend.h): sequences, pages, slots and snapshots are of one rank, and
 * that rank computes their mixers, their shared experts and their head, and samples.  A step is collective: every rank gets
 * an order, also one without rows for it, and serves its experts.  While nothing runs nobody computes: members wait for the
 * next message, nearly without cost.
 *
 * A message to a member is a run of 32-bit words:
 *     head   LG_ORDER_HEAD words: magic, kind, step, words in all, words of commands, sequences, ranks, what is shared (lg_order_shares)
 *     rows   of every rank in this step
 *     commands, in order, before the step: op, a, b, c, then the op's data
 *     sequences: LG_ORDER_SEQ words, then ids of its rows, pages, snapshots to take
 *     rows of another rank that this one helps with: owner, how many give logits; their ids, which ones give logits
 * A long prompt may be divided: its rows, and the heads of its states, over all ranks (backend.h, lg_batch_spread).  The leader chooses it
 * step by step, and every member is told all of it: of its rows it takes its own.  After the step the owner has everything, so
 * nothing else knows of it.
 * Likewise, where a step has few rows and all are one rank's, every rank may add its slice of each product (lg_batch_slice).
 * A reply: magic, status, step, sequences, then LG_ORDER_SAMPLED words for each sequence.
 * Thread: engine.  Memory: at open.  Test: tests/unit/test_order.c, fuzz/fuzz_order.c, tests/unit/test_group.c */
#ifndef LG_BACKEND_GROUP_GROUP_H
#define LG_BACKEND_GROUP_GROUP_H

#include "backend/backend.h"
#include "dist/tags.h"
#include "base/mem.h"

#define LG_ORDER_MAGIC   0x314f474cu /* "LGO1" */
#define LG_ORDER_HEAD    8
#define LG_ORDER_SEQ     24
#define LG_ORDER_SAMPLED (4 + 2 * LG_MAX_TOP)
#define LG_ORDER_CMD     (1u << 16) /* words of commands in one message */

typedef enum {
    LG_ORDER_NOTE = 1, /* commands only, no step, no reply */
    LG_ORDER_STEP,
    LG_ORDER_QUIT
} lg_order_kind;

typedef enum {
    LG_ORDER_OWN,     /* nothing: each rank computes its own rows */
    LG_ORDER_DIVIDED, /* the last sequence is divided */
    LG_ORDER_SLICED   /* the rows are one rank's, and all help with them */
} lg_order_shares;

typedef enum {
    LG_CMD_SAVE = 1, /* slot, tokens, snapshot */
    LG_CMD_LOAD,     /* slot, tokens, snapshot */
    LG_CMD_COPY,     /* from page, to page, 0 */
    LG_CMD_IDS,      /* slot, position, n: ids [n], known to the leader only so far */
    LG_CMD_BIAS,     /* slot, n, 0: pairs [n], the slot's logit biases */
    LG_CMD_CALL /* bytes, 0, 0: a message of so many follows, to be answered (lg_leader_call) */
} lg_cmd;

/* What bounds a message. */
typedef struct lg_order_limit {
    uint32_t n_rank, rank; /* rank: the member that reads or is written to */
    uint32_t n_slot, n_snap, n_page, max_tok, n_ctx, n_vocab, n_spread;
    uint32_t n_slice; /* lg_slice_rows */
} lg_order_limit;

void lg_order_limit_of(const lg_config *cfg, const lg_backend_opt *opt, uint32_t rank,
                       lg_order_limit *lim);

/* Words that the longest message takes. */
size_t lg_order_max_words(const lg_order_limit *lim);
size_t lg_order_reply_words(const lg_order_limit *lim);

/* ---- writing ---- */

/* A message being made.  word has room for lg_order_max_words. */
typedef struct lg_order_out {
    uint32_t *word;
    uint32_t n_word, n_cmd_word, n_seq;
    lg_order_shares shares;
} lg_order_out;

/* Begin: room is left for head and rows of ranks; commands follow, then sequences, then end. */
void lg_order_begin(lg_order_out *o, const lg_order_limit *lim);

/* Append a command with n words of data.  false when LG_ORDER_CMD words would be passed: send a note first. */
bool lg_order_cmd(lg_order_out *o, lg_cmd op, uint32_t a, uint32_t b, uint32_t c,
                  const uint32_t *data, uint32_t n);

/* Append sequence i of a batch; with `spread` it is the last, and divided: the pages go to the owner only. */
void lg_order_seq(lg_order_out *o, const lg_batch *b, uint32_t i, const lg_batch_spread *spread,
                  const lg_order_limit *lim);

/* After the sequences: the rows of this step, all of batch b, are owner's, and this member helps, unless they are its own. */
void lg_order_slice(lg_order_out *o, const lg_batch *b, uint32_t owner,
                    const lg_order_limit *lim);
void lg_order_end(lg_order_out *o, lg_order_kind kind, uint32_t step, const uint32_t *rank_tok,
                  const lg_order_limit *lim);

/* ---- reading ---- */

/* What a member knows of a slot. */
typedef struct lg_order_slot {
    uint32_t *ids; /* [n_ctx] */
    uint32_t n_known;
    lg_bias *bias; /* [LG_ORDER_MAX_BIAS] */
    uint32_t n_bias;
} lg_order_slot;

#define LG_ORDER_MAX_BIAS 1024

/* A message read.  Arrays are the member's; the batch points into them and into the message. */
typedef struct lg_order_in {
    lg_order_kind kind;
    uint32_t step;
    const uint32_t *cmd; /* [n_cmd_word], checked */
    uint32_t n_cmd_word;
    lg_batch batch;
    /* storage */
    lg_batch_seq *seq;    /* [n_slot + 1] */
    lg_sampler *sampler;  /* [n_slot + 1] */
    uint32_t *tok, *page; /* [max_tok], [n_slot * pages of a context + pages of n_spread] */
    lg_batch_save *save;  /* [n_snap + LG_SPREAD_MAX_SAVE] */
    lg_batch_spread spread;
    lg_batch_slice slice;
    bool *seen;          /* [n_slot] */
    lg_order_slot *slot; /* [n_slot] */
} lg_order_in;

/* Check a message completely and fill p; ids and biases of commands go into p->slot, states and pages are the caller's to
 * move (op by op, with lg_order_next).  LG_E_FORMAT with *err: nothing of it may be used. */
lg_status lg_order_read(lg_order_in *p, const uint32_t *word, size_t n_bytes,
                        const lg_order_limit *lim, lg_err *err);

/* The command at *at, then the next one; false at the end. */
bool lg_order_next(const lg_order_in *p, uint32_t *at, lg_cmd *op, const uint32_t **arg);

/* ---- replies ---- */

size_t lg_order_put_reply(uint32_t *word, uint32_t step, lg_status st, const lg_batch *b,
                          const lg_sampled *sampled);

/* sampled[i] for the i-th sequence sent.  LG_OK; LG_E_FORMAT. */
lg_status lg_order_get_reply(const uint32_t *word, size_t n_bytes, uint32_t step,
                             uint32_t n_seq, lg_status *st, lg_sampled *sampled, lg_err *err);

/* ---- leader.c: the calls of backend.h for rank 0 of opt->dist ---- */

void lg_leader_plan_bytes(const lg_config *cfg, const lg_backend_opt *opt, int n_thread,
                          lg_backend_plan *plan);
lg_status lg_leader_open(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                         lg_backend **be, lg_err *err);
void lg_leader_close(lg_backend **be); /* members leave their loop */
lg_status lg_leader_step(lg_backend *be, const lg_batch *batch, lg_step_out *out);
void lg_leader_save(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap);
void lg_leader_load(lg_backend *be, uint32_t owner, uint32_t slot, uint32_t n_tok,
                    uint32_t snap);
void lg_leader_copy_page(lg_backend *be, uint32_t owner, uint32_t from, uint32_t to);

/* Of rank 0's own pools: owner is 0. */
void lg_leader_get_page(const lg_backend *be, uint32_t owner, uint32_t page, uint32_t n_tok,
                        void *to);
void lg_leader_put_page(lg_backend *be, uint32_t owner, uint32_t page, const void *from);
void lg_leader_get_snap(const lg_backend *be, uint32_t owner, uint32_t snap, uint32_t n_tok,
                        uint32_t part, void *to);
void lg_leader_put_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part,
                        const void *from);

/* A message to what a member was given as lg_member_calls, and its answer. */
lg_status lg_leader_call(lg_backend *be, uint32_t owner, bool patient, const void *msg,
                         size_t n_bytes, void *answer, size_t cap_bytes, size_t *n_answer);

/* ---- member.c ---- */

/* Who answers the leader's calls. */
typedef struct lg_member_calls lg_member_calls;
struct lg_member_calls {
    void *ctx;
    void *msg; /* where they are put: cap_bytes; a longer one is an error */
    size_t cap_bytes;
    /* Answer a message; *out is ctx's until the next call.  Returns its bytes, at least 1. */
    size_t (*answer)(void *ctx, lg_backend *be, size_t n_bytes, const void **out);
    void (*close)(void *ctx); /* the backend is about to be closed */
};

/* Serve until the leader closes.  calls: NULL when none will come.  LG_OK; LG_E_COMM when a rank is lost; LG_E_FORMAT for a message
 * that is not right; what lg_backend_open returns. */
lg_status lg_member_run(const lg_weights *w, const lg_backend_opt *opt, lg_pool *pool,
                        const lg_member_calls *calls, lg_err *err);

#endif
