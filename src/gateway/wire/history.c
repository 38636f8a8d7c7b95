/* history.c - conversations kept for previous_response_id: see history.h.
 *
 * In:  texts under ids.   Out: the same.   A list, oldest first; ids are few enough to be searched in order.
 * Thread: any, one at a time by a lock.  Memory: max_bytes, heads of entries included.  Test: tests/unit/test_responses.c */
#include "gateway/wire/history.h"

#include <pthread.h>
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
    pthread_mutex_t lock;
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
    pthread_mutex_init(&(*h)->lock, NULL);
    return LG_OK;
}

void lg_history_close(lg_history **h) {
    if (!*h) return;
    while ((*h)->first) drop_first(*h);
    pthread_mutex_destroy(&(*h)->lock);
    LG_FREE(*h);
}

static void put(lg_history *h, uint64_t tenant, const char *id, const char *text,
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

void lg_history_put(lg_history *h, uint64_t tenant, const char *id, const char *text,
                    size_t len_bytes, uint64_t now_us) {
    pthread_mutex_lock(&h->lock);
    put(h, tenant, id, text, len_bytes, now_us);
    pthread_mutex_unlock(&h->lock);
}

bool lg_history_get(lg_history *h, uint64_t tenant, const char *id, lg_buf *out,
                    uint64_t now_us) {
    pthread_mutex_lock(&h->lock);
    drop_old(h, now_us);
    const entry *e = h->first;
    while (e && (e->tenant != tenant || strcmp(e->id, id) != 0)) e = e->next;
    if (e) lg_buf_put(out, e->text, e->len_bytes);
    pthread_mutex_unlock(&h->lock);
    return e != NULL;
}
