/* sched_rig.c - see sched_rig.h. */
#include "sched_rig.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

ask asks[160];

void open_or_fail(rig *r, lg_options opt) {
    lg_err err = {0};
    if (rig_open(r, &opt, &err) != LG_OK) fail_msg("%s", err.msg);
}

lg_stats stats(const rig *r) {
    lg_stats st;
    lg_get_stats(r->eng, &st);
    return st;
}

void assert_idle(const rig *r) {
    lg_stats st = stats(r);
    assert_int_equal(st.n_running, 0);
    assert_int_equal(st.n_waiting, 0);
    assert_int_equal(st.n_page_free, r->eng->info.n_page);
    assert_int_equal(st.n_slot_free, r->eng->info.n_seq);
    assert_int_equal(r->eng->store.n_free, r->eng->store.n);
    for (uint32_t i = 0; i < r->eng->queue.n_client; i++)
        assert_int_equal(r->eng->queue.client[i].n_live, 0);
}

void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

void submit(rig *r, ask *q, uint32_t n_new, uint64_t client, int32_t priority) {
    lg_err err = {0};
    lg_request req = rig_request(r, q->ids, q->n_id, n_new, &q->a);
    req.client = client;
    req.priority = priority;
    if (lg_submit(r->eng, &req, &q->a.id, &err) != LG_OK) fail_msg("%s", err.msg);
}

ask *put(rig *r, uint32_t i, uint32_t n_id, uint32_t n_new, uint64_t client, int32_t priority) {
    ask *q = &asks[i];
    q->n_id = n_id;
    fill(q->ids, n_id, i + 1);
    submit(r, q, n_new, client, priority);
    return q;
}

void step(rig *r) {
    assert_int_equal(lg_step(r->eng), LG_OK);
    rig_fetch(r->eng);
}

void expect(const rig *r, const ask *q) {
    static uint32_t ids[MAX_ID + 4200];
    memcpy(ids, q->ids, q->n_id * sizeof *ids);
    for (uint32_t i = 0; i < q->a.n_token; i++) {
        assert_int_equal(q->a.token[i], rig_hash_next(&r->m, ids, q->n_id + i));
        ids[q->n_id + i] = q->a.token[i];
    }
}

int setup(void **state) {
    rig *r = malloc(sizeof *r);
    rig_init(r);
    *state = r;
    return 0;
}

int teardown(void **state) {
    rig_fini(*state);
    free(*state);
    return 0;
}
