/* slice.c - see slice.h.
 *
 * Each rank begins with another peer, so that no way in is crowded.
 * Thread: engine.  Memory: the caller's arena; nothing is allocated in a step.  Test: tests/unit/test_slice.c */
#include "dist/slice.h"
#include "dist/tags.h"

#include <string.h>

void lg_slice_carve(lg_arena *a, lg_comm *comm, lg_slice *s) {
    *s = (lg_slice){.comm = comm};
    s->req = lg_arena_take(a, 2 * (size_t)comm->n_rank, sizeof *s->req);
}

void lg_slice_begin(lg_slice *s, uint32_t owner) {
    LG_ASSERT(owner < s->comm->n_rank);
    s->owner = owner;
    s->n_req = 0;
    memset(s->req, 0, 2 * (size_t)s->comm->n_rank * sizeof *s->req);
}

lg_status lg_slice_start(lg_slice *s, bool to_all, uint32_t *words) {
    lg_comm *c = s->comm;
    uint32_t me = c->rank;
    if (c->lost) return LG_E_COMM;
    LG_ASSERT(s->n_req == 0);
    for (int pass = 0; pass < 2; pass++) /* receives first */
        for (uint32_t d = 1; d < c->n_rank; d++) {
            uint32_t r = (me + d) % c->n_rank, whose = pass ? me : r, to = pass ? r : me;
            size_t bytes = s->n[whose] * sizeof *words;
            uint32_t *p = words + s->at[whose];
            if (bytes == 0 || (!to_all && to != s->owner)) continue;
            LG_TRY(pass ? lg_comm_send(c, r, LG_TAG_COLLECT, p, bytes, &s->req[s->n_req++])
                        : lg_comm_recv(c, r, LG_TAG_COLLECT, p, bytes, &s->req[s->n_req++]));
        }
    return LG_OK;
}

lg_status lg_slice_wait(lg_slice *s) {
    uint32_t n = s->n_req;
    s->n_req = 0;
    return lg_comm_wait(s->comm, s->req, n);
}

lg_status lg_slice_copy(lg_slice *s, uint32_t *words, size_t n_word) {
    lg_comm *c = s->comm;
    size_t bytes = n_word * sizeof *words;
    if (c->lost) return LG_E_COMM;
    LG_ASSERT(s->n_req == 0);
    if (c->rank != s->owner)
        LG_TRY(lg_comm_recv(c, s->owner, LG_TAG_OWNER, words, bytes, &s->req[s->n_req++]));
    for (uint32_t d = 1; c->rank == s->owner && d < c->n_rank; d++)
        LG_TRY(lg_comm_send(c, (c->rank + d) % c->n_rank, LG_TAG_OWNER, words, bytes,
                            &s->req[s->n_req++]));
    return lg_slice_wait(s);
}

void lg_slice_progress(lg_slice *s) {
    bool done;
    if (s->n_req) lg_comm_poll(s->comm, s->req, s->n_req, &done);
}
