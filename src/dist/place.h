/* place.h - which ranks hold which experts.
 *
 * An expert of a layer is held by one rank or, when it is used much, by several (replicas).  A row's pair (row, expert) is
 * computed by one of them, chosen by the row's number alone, so that all ranks know it without asking.  Which rank computes
 * it never changes a bit of the product.
 * Memory: one block, owned by lg_place.  Thread: any.  Test: tests/unit/test_place.c */
#ifndef LG_DIST_PLACE_H
#define LG_DIST_PLACE_H

#include "base/mem.h"

typedef struct lg_place {
    uint32_t n_rank, n_layer, n_expert;
    uint32_t *first;  /* [n_layer * n_expert + 1] first entry of each expert in `holder` */
    uint16_t *holder; /* ranks, ascending within an expert */
    void *block;      /* owned */
} lg_place;

/* What a placement is made from. */
typedef struct lg_place_opt {
    uint32_t n_rank, n_layer, n_expert;
    /* How often each expert is chosen, [n_layer][n_expert], any unit, finite and >= 0; NULL: all alike. */
    const float *load;
    /* Experts that a rank may hold in one layer beyond its share ceil(n_expert / n_rank). */
    uint32_t n_extra;
} lg_place_opt;

/* Balanced, each layer alone: all room is filled with copies, each of the expert whose copies carry most; then the copies
 * go, heaviest first, to the rank that carries least.  With room for n_expert alone each has one copy.  Without a load
 * profile and extra room rank r holds a run of neighbouring experts.
 * The caller owns what *p points to.  LG_E_ARG, LG_E_NOMEM. */
lg_status lg_place_balance(lg_place *p, const lg_place_opt *opt, lg_err *err);

/* Any placement: n_holder[layer * n_expert + e] ranks, listed in `holder` one expert after the other.  Checked: each expert
 * has 1 to n_rank ranks, in ascending order, below n_rank.  LG_E_ARG naming layer and expert, LG_E_NOMEM. */
lg_status lg_place_set(lg_place *p, const lg_place_opt *opt, const uint32_t *n_holder,
                       const uint16_t *holder, lg_err *err);
void lg_place_fini(lg_place *p);

/* Ranks that hold an expert. */
static inline uint32_t lg_place_n_holder(const lg_place *p, uint32_t layer, uint32_t e) {
    const uint32_t *f = p->first + (size_t)layer * p->n_expert + e;
    return f[1] - f[0];
}

/* The rank that computes the pair (row, e) of a layer; row: its number among the rows of all ranks in this step. */
static inline uint32_t lg_place_rank(const lg_place *p, uint32_t layer, uint32_t e,
                                     uint32_t row) {
    const uint32_t *f = p->first + (size_t)layer * p->n_expert + e;
    uint32_t n = f[1] - f[0];
    return p->holder[f[0] + (n == 1 ? 0 : row % n)];
}

bool lg_place_holds(const lg_place *p, uint32_t rank, uint32_t layer, uint32_t e);

/* A fingerprint: ranks compare it before the first step. */
uint64_t lg_place_hash(const lg_place *p);

/* Every holder of an expert must have the same weights.  sum: [n_rank][n_layer][n_expert] checksums that the ranks report, 0
 * for an expert that a rank does not hold.  LG_E_FORMAT naming rank, layer and expert. */
lg_status lg_place_verify(const lg_place *p, const uint64_t *sum, lg_err *err);

#endif
