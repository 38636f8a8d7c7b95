/* history.c - conversations kept for previous_response_id: see history.h.
 *
 * In:  texts under ids.   Out: the same.   A list, oldest first; ids are few enough to be searched in order.
 * Thread: gateway.  Memory: max_bytes, heads of entries included.  Test: tests/unit/test_responses.c */
#include "gateway/history.h"

#include <string.h>

typedef struct entry entry;
struct entry {
    entry *next;
    uint64_t tenant, until_us;
    size_t len_bytes;
    char id[48];
    char text[];
};

struct lg_history {
    size_t max_bytes, n_bytes;
    uint64_t life_us;
    entry *first, **end;
};

static size_t size_of(const entry *e) {
    return sizeof *e + e->len_bytes + 1;
}

static void drop_first(lg_history *h) {
    entry *e = h->first;
    h->first = e->next;
    if (!h->first) h->end = &h->first;
    h->n_bytes -= size_of(e);
    lg_mem_free(e);
}

static void drop_old(lg_history *h, uint64_t now_us) {
    while (h->first && h->first->until_us <= now_us) drop_first(h);
}

lg_status lg_history_open(size_t max_bytes, uint64_t life_us, lg_history **h) {
    *h = lg_mem_alloc(sizeof **h);
    if (!*h) return LG_E_NOMEM;
    (*h)->max_bytes = max_bytes;
    (*h)->life_us = life_us;
    (*h)->end = &(*h)->first;
    return LG_OK;
}

void lg_history_close(lg_history **h) {
    if (!*h) return;
    while ((*h)->first) drop_first(*h);
    LG_FREE(*h);
}

void lg_history_put(lg_history *h, uint64_t tenant, const char *id, const char *text,
                    size_t len_bytes, uint64_t now_us) {
    size_t size = sizeof(entry) + len_bytes + 1;
    drop_old(h, now_us);
    if (size > h->max_bytes / 4 || strlen(id) >= sizeof((entry *)0)->id) return;
    while (h->n_bytes + size > h->max_bytes) drop_first(h);
    entry *e = lg_mem_alloc(size);
    if (!e) return;
    e->tenant = tenant;
    e->until_us = now_us + h->life_us;
    e->len_bytes = len_bytes;
    memcpy(e->id, id, strlen(id) + 1);
    memcpy(e->text, text, len_bytes);
    *h->end = e;
    h->end = &e->next;
    h->n_bytes += size;
}

const char *lg_history_get(lg_history *h, uint64_t tenant, const char *id, size_t *len_bytes,
                           uint64_t now_us) {
    drop_old(h, now_us);
    for (const entry *e = h->first; e; e = e->next) {
        if (e->tenant != tenant || strcmp(e->id, id) != 0) continue;
        *len_bytes = e->len_bytes;
        return e->text;
    }
    return NULL;
}
