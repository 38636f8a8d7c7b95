/* choose.h - how long each exchange of a layer takes on this network, and which one is shortest for a number of rows.
 *
 * T rows of all ranks, t on the rank that has most; M machines with G ranks, N = M G; record R bytes, row W bytes on the wire, H floats,
 * k of E experts a row.  p = 1 - C(E - E/N, k) / C(E, k): a row has an expert on a given rank.  A rank's messages go one after the
 * other, and the ranks of a machine share its way out (X: bytes/s of a machine, x: of a rank inside one); u = min(T, G t) rows of the
 * machine that has most:
 *     rows        R (t (G - 1)/x + u (N - G)/X)              back, strict     the same with 4 H k/N for R
 *     reduce      4 H T (G - 1)/G / x, and between machines, halving: W/G max(T/2^i, u)/X summed over the rounds i, with all G ranks of a
 *                 machine at it; straight: (M - 1) W u/X
 *                 these three inside a machine with a window: one latency, and at the rate of the window
 *     all-to-all  rows and back: p R, p W for R; when one rank has all rows only 1/(N - 1) of the way back is after everything else
 * and in each part the latency of its rounds and a cost for each message.  What is computed is the same for all and left out.
 * Thread: engine.  Test: tests/unit/test_choose.c */
#ifndef LG_DIST_CHOOSE_H
#define LG_DIST_CHOOSE_H

#include "dist/comm.h"
#include "dist/wire.h"

typedef enum {
    LG_EXCHANGE_STRICT,
    LG_EXCHANGE_REDUCE, /* sums of each rank's experts, summed over ranks (reduce.h): less traffic, other rounding */
    LG_EXCHANGE_ALLTOALL, /* a row goes once to each rank that has one of its experts: for many ranks */
    LG_EXCHANGE_AUTO /* REDUCE or ALLTOALL, whichever is expected to be shorter, step by step */
} lg_exchange_kind;

/* "strict", "reduce", "alltoall", "auto". */
const char *lg_exchange_name(lg_exchange_kind kind);
bool lg_exchange_named(const char *name, lg_exchange_kind *kind);

/* A way between two ranks. */
typedef struct lg_way {
    double latency_s; /* of one message */
    double message_s; /* of each further message that follows at once, while all ranks send */
    double
        bytes_s; /* while all ranks send to all; inside a machine: of a pair; between: of a machine, all its ranks together */
} lg_way;

typedef struct lg_links {
    lg_way in, out; /* inside a machine, between machines */
    double
        shared_bytes_s; /* at which a rank reads what others of its machine wrote to their window; 0: there is none */
} lg_links;

typedef struct lg_group_shape {
    double n_rank, n_node, n_embd, k, n_expert;
    lg_wire wire;
} lg_group_shape;

/* Rows of a step: of all ranks, and of the rank that has most. */
typedef struct lg_row_count {
    double all, most;
} lg_row_count;

/* Seconds of one layer's exchange; LG_EXCHANGE_AUTO: of the one that is chosen. */
double lg_exchange_seconds(const lg_links *l, const lg_group_shape *g, lg_exchange_kind kind,
                           lg_row_count n);

/* Of it, the rows' way there, in which a rank can do other work. */
double lg_exchange_rows_seconds(const lg_links *l, const lg_group_shape *g,
                                lg_exchange_kind kind, lg_row_count n);

/* REDUCE or ALLTOALL. */
lg_exchange_kind lg_exchange_choose(const lg_links *l, const lg_group_shape *g, lg_row_count n);

/* n rows spread evenly over the ranks. */
static inline lg_row_count lg_rows_even(const lg_group_shape *g, double n) {
    return (lg_row_count){n, n < g->n_rank ? 1 : n / g->n_rank};
}

/* ---- one sequence divided over all ranks (spread.h) ---- */

typedef enum {
    LG_DIVIDE_OFF,
    LG_DIVIDE_ON,  /* whenever every rank gets a row */
    LG_DIVIDE_AUTO /* where it is expected to save time, step by step */
} lg_divide;

#define LG_DIVIDE_CTX 16384 /* positions, unless told otherwise */

/* "off", "on", "auto". */
const char *lg_divide_name(lg_divide d);
bool lg_divide_named(const char *name, lg_divide *d);

/* What travels for it, in bytes. */
typedef struct lg_divide_shape {
    double n_gdn, n_attn; /* layers */
    double in, out;       /* of a row in a GDN layer: before and after the heads, all heads */
    double keys;          /* of a row in an attention layer: keys and values, as floats */
    double page;          /* of a position kept there */
    double state;         /* of one GDN layer */
    /* Seconds of a row, all 0 when nobody asked: products of a layer that are made while rows go to the heads (z), while keys travel (queries);
     * the recurrence of a GDN layer on one rank's threads, of all heads and of a rank's part of them. */
    double z_s, q_s, all_heads_s, own_heads_s;
} lg_divide_shape;

/* Seconds that dividing n rows adds to a step, but for what a rank's fewer rows spare: swaps, keys, states going home (1 + n_save of
 * them), and, when the ranks have not what is before them, n_before positions and the states; less what heads on more threads spare. */
double lg_divide_seconds(const lg_links *l, const lg_group_shape *g, const lg_divide_shape *d,
                         double n, double n_save, double n_before);

/* ---- few rows of one rank, multiplied by all (slice.h) ---- */

/* What travels for a row, in bytes: outputs of a mixer's input products, and what goes into its output product; gated rows of the
 * shared expert; logits. */
typedef struct lg_slice_shape {
    double n_gdn, n_attn; /* layers */
    double gdn_in, gdn_mixed, attn_in, attn_mixed;
    double shared, logits;
} lg_slice_shape;

/* Of n things that each fall to one of n_rank ranks, the expected part of the rank that has most. */
double lg_slice_fullest(double n, double n_rank);

/* Seconds of all messages of a step of n rows, n_out of which give logits; those of the exchange, which is not used then, are not
 * taken off.  In each layer, with f = lg_slice_fullest(n k, N):
 *     in    B/N from every other rank to the owner            mixed   B from the owner to all others
 *     out   4 H/N from all to all                             shared  the same with its rows, but nobody waits for them
 *     back  f of 4 H k for each row, and 4 H/N, from the fullest rank to all others */
double lg_slice_seconds(const lg_links *l, const lg_group_shape *g, const lg_slice_shape *s,
                        double n, double n_out);

/* What messages cost inside a machine and between machines (links.c): between two ranks, and of all ranks at once, some MB.  Every rank
 * gets the same figures.  A window is zero afterwards, so it must not be in use.  A way that nobody has is taken for the other.  Collective.  LG_OK, LG_E_COMM. */
lg_status lg_links_measure(lg_comm *c, lg_links *l);

#endif
