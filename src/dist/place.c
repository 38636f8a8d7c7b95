/* place.c - making and checking placements: see place.h.
 *
 * Thread: any.  Memory: one block for each placement; work memory while one is made.  Test: tests/unit/test_place.c */
#include "dist/place.h"

#include "base/hash.h"
#include "dist/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void lg_place_fini(lg_place *p) {
    lg_mem_free(p->block);
    *p = (lg_place){0};
}

static lg_status check(const lg_place_opt *o, lg_err *err) {
    if (o->n_rank == 0 || o->n_rank > LG_MAX_RANK || o->n_layer == 0 || o->n_expert == 0)
        return LG_FAIL(
            err, LG_E_ARG,
            "placement: found %u ranks, %u layers, %u experts, expected 1 to %u ranks "
            "and experts to share",
            o->n_rank, o->n_layer, o->n_expert, LG_MAX_RANK);
    size_t n = (size_t)o->n_layer * o->n_expert;
    for (size_t i = 0; o->load && i < n; i++)
        if (!isfinite(o->load[i]) || o->load[i] < 0)
            return LG_FAIL(err, LG_E_ARG, "placement: layer %zu, expert %zu: load is %g",
                           i / o->n_expert, i % o->n_expert, (double)o->load[i]);
    return LG_OK;
}

static lg_status take(lg_place *p, const lg_place_opt *o, size_t n_holder, lg_err *err) {
    size_t n = (size_t)o->n_layer * o->n_expert;
    *p = (lg_place){.n_rank = o->n_rank, .n_layer = o->n_layer, .n_expert = o->n_expert};
    for (int pass = 0; pass < 2; pass++) {
        lg_arena a;
        lg_arena_init(&a, p->block, SIZE_MAX);
        p->first = lg_arena_take(&a, n + 1, sizeof *p->first);
        p->holder = lg_arena_take(&a, n_holder, sizeof *p->holder);
        if (pass == 0) p->block = lg_mem_alloc(a.used_bytes);
        if (!p->block) return LG_FAIL(err, LG_E_NOMEM, "placement: no memory");
    }
    return LG_OK;
}

lg_status lg_place_set(lg_place *p, const lg_place_opt *o, const uint32_t *n_holder,
                       const uint16_t *holder, lg_err *err) {
    LG_TRY(check(o, err));
    size_t n = (size_t)o->n_layer * o->n_expert, total = 0;
    for (size_t i = 0; i < n; i++) {
        bool ok = n_holder[i] >= 1 && n_holder[i] <= o->n_rank;
        for (uint32_t j = 0; ok && j < n_holder[i]; j++)
            ok = holder[total + j] < o->n_rank &&
                 (j == 0 || holder[total + j - 1] < holder[total + j]);
        if (!ok)
            return LG_FAIL(
                err, LG_E_ARG,
                "placement: layer %zu, expert %zu: expected 1 to %u ranks in ascending "
                "order",
                i / o->n_expert, i % o->n_expert, o->n_rank);
        total += n_holder[i];
    }
    LG_TRY(take(p, o, total, err));
    for (size_t i = 0; i < n; i++) p->first[i + 1] = p->first[i] + n_holder[i];
    memcpy(p->holder, holder, total * sizeof *holder);
    return LG_OK;
}

/* ---- balancing one layer ---- */

typedef struct weighed {
    float load;
    uint32_t e;
} weighed;

static int heaviest_first(const void *a, const void *b) {
    const weighed *x = a, *y = b;
    if (x->load != y->load) return x->load > y->load ? -1 : 1;
    return x->e < y->e ? -1 : 1;
}

typedef struct bench {
    const lg_place_opt *o;
    uint32_t cap;     /* experts a rank may hold in a layer */
    uint8_t *holds;   /* [n_expert][n_rank] */
    uint32_t *n_copy; /* [n_expert] */
    uint32_t *n_held; /* [n_rank] */
    double *carried;  /* [n_rank] */
    weighed *copy;    /* [n_rank * cap] each with its share of the expert's load */
} bench;

/* Number of copies of each expert: all room is used, each copy going where the others carry most. */
static void count_copies(bench *b, const float *load) {
    const lg_place_opt *o = b->o;
    uint32_t n = o->n_expert, room = o->n_rank * b->cap;
    for (uint32_t e = 0; e < o->n_expert; e++) b->n_copy[e] = 1;
    for (; n < room; n++) {
        float most = 0;
        uint32_t hot = UINT32_MAX;
        for (uint32_t e = 0; e < o->n_expert; e++) {
            float each = (load ? load[e] : 1.0f) / (float)b->n_copy[e];
            if (each <= most || b->n_copy[e] == o->n_rank) continue;
            most = each;
            hot = e;
        }
        if (hot == UINT32_MAX) break;
        b->n_copy[hot]++;
    }
}

/* The rank with room that carries least and does not hold e; n_rank when there is none. */
static uint32_t lightest(const bench *b, uint32_t e) {
    uint32_t n = b->o->n_rank, best = n;
    for (uint32_t r = 0; r < n; r++) {
        if (b->n_held[r] >= b->cap || b->holds[(size_t)e * n + r]) continue;
        if (best == n || b->carried[r] < b->carried[best]) best = r;
    }
    return best;
}

static void place_layer(bench *b, const float *load) {
    const lg_place_opt *o = b->o;
    uint32_t n_copy = 0;
    memset(b->holds, 0, (size_t)o->n_expert * o->n_rank);
    memset(b->n_held, 0, o->n_rank * sizeof *b->n_held);
    memset(b->carried, 0, o->n_rank * sizeof *b->carried);
    if (!load && o->n_extra == 0) {
        for (uint32_t e = 0; e < o->n_expert; e++)
            b->holds[(size_t)e * o->n_rank + (uint64_t)e * o->n_rank / o->n_expert] = 1;
        return;
    }
    count_copies(b, load);
    for (uint32_t e = 0; e < o->n_expert; e++)
        for (uint32_t i = 0; i < b->n_copy[e]; i++)
            b->copy[n_copy++] = (weighed){(load ? load[e] : 1.0f) / (float)b->n_copy[e], e};
    qsort(b->copy, n_copy, sizeof *b->copy, heaviest_first);
    for (uint32_t i = 0; i < n_copy; i++) {
        uint32_t e = b->copy[i].e, r = lightest(b, e);
        if (r == o->n_rank)
            continue; /* those with room have it: one copy less, never the first one */
        b->holds[(size_t)e * o->n_rank + r] = 1;
        b->n_held[r]++;
        b->carried[r] += (double)b->copy[i].load;
    }
}

static bool open_bench(bench *b, const lg_place_opt *o) {
    uint32_t share = (o->n_expert + o->n_rank - 1) / o->n_rank;
    b->o = o;
    b->cap = o->n_extra < o->n_expert - share ? share + o->n_extra : o->n_expert;
    if (o->n_extra == 0) b->cap = share;
    b->holds = lg_mem_calloc((size_t)o->n_expert * o->n_rank, 1);
    b->n_copy = lg_mem_calloc(o->n_expert, sizeof *b->n_copy);
    b->n_held = lg_mem_calloc(o->n_rank, sizeof *b->n_held);
    b->carried = lg_mem_calloc(o->n_rank, sizeof *b->carried);
    b->copy = lg_mem_calloc((size_t)o->n_rank * b->cap, sizeof *b->copy);
    return b->holds && b->n_copy && b->n_held && b->carried && b->copy;
}

lg_status lg_place_balance(lg_place *p, const lg_place_opt *o, lg_err *err) {
    *p = (lg_place){0};
    LG_TRY(check(o, err));
    bench b = {0};
    size_t n = (size_t)o->n_layer * o->n_expert, total = 0;
    bool ok = open_bench(&b, o);
    size_t most = ok ? (size_t)o->n_layer * o->n_rank * b.cap : 0;
    uint32_t *n_holder = lg_mem_calloc(n, sizeof *n_holder);
    uint16_t *holder = lg_mem_calloc(most, sizeof *holder);
    lg_status st = LG_E_NOMEM;
    if (!ok || !n_holder || !holder) {
        LG_FAIL(err, st, "placement: no memory");
        goto done;
    }
    for (uint32_t l = 0; l < o->n_layer; l++) {
        place_layer(&b, o->load ? o->load + (size_t)l * o->n_expert : NULL);
        for (uint32_t e = 0; e < o->n_expert; e++)
            for (uint32_t r = 0; r < o->n_rank; r++) {
                if (!b.holds[(size_t)e * o->n_rank + r]) continue;
                n_holder[(size_t)l * o->n_expert + e]++;
                holder[total++] = (uint16_t)r;
            }
    }
    LG_ASSERT(total <= most);
    st = lg_place_set(p, o, n_holder, holder, err);
done:
    lg_mem_free(b.holds);
    lg_mem_free(b.n_copy);
    lg_mem_free(b.n_held);
    lg_mem_free(b.carried);
    lg_mem_free(b.copy);
    lg_mem_free(n_holder);
    lg_mem_free(holder);
    return st;
}

/* ---- questions ---- */

bool lg_place_holds(const lg_place *p, uint32_t rank, uint32_t layer, uint32_t e) {
    const uint32_t *f = p->first + (size_t)layer * p->n_expert + e;
    for (uint32_t i = f[0]; i < f[1]; i++)
        if (p->holder[i] == rank) return true;
    return false;
}

uint64_t lg_place_hash(const lg_place *p) {
    size_t n = (size_t)p->n_layer * p->n_expert;
    uint32_t shape[3] = {p->n_rank, p->n_layer, p->n_expert};
    uint64_t h = lg_hash_add(LG_HASH_START, shape, sizeof shape);
    h = lg_hash_add(h, p->first, (n + 1) * sizeof *p->first);
    return lg_hash_add(h, p->holder, p->first[n] * sizeof *p->holder);
}

lg_status lg_place_verify(const lg_place *p, const uint64_t *sum, lg_err *err) {
    size_t n = (size_t)p->n_layer * p->n_expert;
    for (uint32_t l = 0; l < p->n_layer; l++)
        for (uint32_t e = 0; e < p->n_expert; e++) {
            size_t at = (size_t)l * p->n_expert + e;
            uint32_t lead = p->holder[p->first[at]];
            for (uint32_t r = 0; r < p->n_rank; r++) {
                uint64_t got = sum[r * n + at];
                bool holds = lg_place_holds(p, r, l, e);
                if (!holds && got != 0)
                    return LG_FAIL(
                        err, LG_E_FORMAT,
                        "rank %u: layer %u, expert %u is loaded, but not placed there", r, l,
                        e);
                if (holds && got == 0)
                    return LG_FAIL(
                        err, LG_E_FORMAT,
                        "rank %u: layer %u, expert %u is placed there, but not loaded", r, l,
                        e);
                if (holds && got != sum[lead * n + at])
                    return LG_FAIL(err, LG_E_FORMAT,
                                   "rank %u: layer %u, expert %u: weights differ from those of "
                                   "rank %u",
                                   r, l, e, lead);
            }
        }
    return LG_OK;
}
