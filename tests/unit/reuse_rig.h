/* reuse_rig.h - the harness of test_reuse and test_pjrt_reuse: prompts, a backend that notes the logits and can be made to err, runs and
 * what came of them.  The axes are in files reuse_*.c. */
#ifndef LG_REUSE_RIG_H
#define LG_REUSE_RIG_H

#include "backend/cpu/cpu.h"
#include "base/base.h"
#include "base/num.h"
#include "engine_rig.h"
#include "few.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_PROMPT 1024
#define MAX_NEW    10
#define MAX_TEXT   200

typedef struct text {
    uint32_t ids[MAX_PROMPT + MAX_NEW], n_id;
} text;

/* What came of one prompt in one run. */
typedef struct outcome {
    uint32_t n, id[MAX_NEW], n_cached;
    uint64_t hash[MAX_NEW];
    bool done;
} outcome;

typedef struct bench {
    const char *name, *path;
    lg_kv_type kv;
    lg_weights *w;
    text text[MAX_TEXT];
    uint32_t n_text;
    outcome cold[MAX_TEXT], got[MAX_TEXT];
    float *cold_row, *got_row; /* on a device: [MAX_TEXT][MAX_NEW][n_vocab] logits, owned */
    lg_engine *eng;
} bench;

/* What is tested.  This processor's answers are the same bit by bit.  A device's sums have the order of the program that a row
 * happens to be in: logits may differ by `slack`, and the ids where the cold run's logits of both are as close as twice that. */
typedef struct target {
    const lg_backend_ops *ops;
    struct lg_pjrt_device *device; /* NULL: this processor */
    float slack;
    uint32_t n_home; /* owners of pools; 0: one */
    /* the faults: zero the recurrent state of an owner's slot, of a snapshot's part; half of a page */
    void (*drop_state)(lg_backend *be, uint32_t owner, uint32_t slot);
    void (*drop_snap)(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part);
    void (*drop_page)(lg_backend *be, uint32_t owner, uint32_t page);
} target;
extern target under; /* this processor, until another is set */

typedef struct setting {
    uint32_t n_seq, n_batch_tok, n_snap, n_page; /* 0: as the budget gives */
    bool no_cache;
    bool one_thread; /* else two */
    const char *dir; /* files of kept texts */
} setting;

enum fault { NO_FAULT, DROP_STATE, LATE, FILE_STATE, FILE_PAGES };

#define N_BENCH 2
extern bench benches[N_BENCH];
extern enum fault fault; /* what the backend does wrong */

/* A device, whose programs take long to compile, gets the smaller model alone. */
#define EACH(b) for (bench *b = first_bench(); b < benches + N_BENCH; b++)
static inline bench *first_bench(void) {
    return benches + (under.device ? 1 : 0);
}

bool few(void); /* whether to do a part only */

/* Group setup and teardown: models and prompts, and what comes of each alone, with nothing kept, in bench.cold. */
int open_all(void **state);
int close_all(void **state);

void open_bench(bench *b, const setting *s);
void close_bench(bench *b); /* and the ledger of slots, pages and snapshots of every home */

/* Nothing is kept in memory any more. */
void forget(bench *b);

/* Ask for prompt i, of whose answer n_produced ids are known. */
uint64_t submit(bench *b, uint32_t i, uint32_t n_produced);
void fetch(bench *b);
void run(bench *b);

/* Every prompt: each after the other, or all at once. */
void run_all(bench *b, bool alone);

/* The same, and put a sequence back now and then: in a prompt and in an answer, with a snapshot of where it is and without.  Returns
 * how often. */
uint32_t run_putting_back(bench *b);

/* Prompts whose ids or logits are not those of the cold run; tokens that were not computed. */
bool is_same(const bench *b, uint32_t i);
uint32_t n_different(const bench *b);
uint32_t n_cached(const bench *b);
void expect_same(const bench *b, const char *axis);

/* The axes. */
void test_warm_and_batched(void **state);
void test_split(void **state);
void test_every_boundary(void **state);
void test_one_thread(void **state);
void test_after_evictions(void **state);
void test_after_cancels(void **state);
void test_continued(void **state);
void test_mutations_show(void **state);
void test_put_back(void **state);
void test_copies_of_one_prompt(void **state);
void test_code_words_stay_with_their_owners(void **state);
void test_restored(void **state);
void test_mutated_files_show(void **state);

#endif
