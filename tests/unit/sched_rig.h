/* sched_rig.h - requests with prompts of their own on the fake backend, and their answers, for tests of who is served when. */
#ifndef LG_SCHED_RIG_H
#define LG_SCHED_RIG_H

#include "engine_rig.h"

#define MAX_ID 4000

typedef struct ask {
    uint32_t ids[MAX_ID], n_id;
    answer a;
} ask;

extern ask asks[160];

void open_or_fail(rig *r, lg_options opt);
lg_stats stats(const rig *r);

/* Everything reserved has come back. */
void assert_idle(const rig *r);

void fill(uint32_t *ids, uint32_t n, uint64_t seed);
void submit(rig *r, ask *q, uint32_t n_new, uint64_t client, int32_t priority);

/* A prompt of its own for asks[i], submitted. */
ask *put(rig *r, uint32_t i, uint32_t n_id, uint32_t n_new, uint64_t client, int32_t priority);

/* One step that has something to do, and its events. */
void step(rig *r);

/* The answer by definition, as far as it goes. */
void expect(const rig *r, const ask *q);

int setup(void **state);
int teardown(void **state);

#endif
