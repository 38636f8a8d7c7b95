/* trace.h - what a rank was doing when: spans of the last steps, written as a file that trace viewers read.
 *
 * Off is a NULL pointer, and costs a comparison.  Memory: LG_TRACE_CAP spans at open; when full, the oldest go.
 * The file is of the Chrome trace format: a process for each rank, in it a track of the engine's thread and tracks of messages
 * under way (a span from posting to arrival), so that what overlaps lies above each other.  Times are of rank 0's clock.
 * Thread: engine.  Test: tests/unit/test_reduce.c, tests/e2e/test_ranks.py */
#ifndef LG_DIST_TRACE_H
#define LG_DIST_TRACE_H

#include "base/clock.h"
#include "base/diag.h"

#include <stdint.h>

#define LG_TRACE_CAP (1u << 16)
#define LG_TRACE_ROWS                                                                          \
    1 /* tracks: rows under way; sums of a chunk under way, one for each unit */
#define LG_TRACE_SUMS    2
#define LG_TRACE_HOME    6
#define LG_TRACE_N_TRACK 7

typedef enum {
    LG_SPAN_STEP,    /* arg: rows of this rank */
    LG_SPAN_ROWS,    /* track ROWS: rows under way */
    LG_SPAN_SHARED,  /* shared expert */
    LG_SPAN_SORT,    /* rows that arrived are sorted by expert; arg: pairs */
    LG_SPAN_EXPERTS, /* arg: pairs */
    LG_SPAN_COMBINE, /* arg: chunk, or rank */
    LG_SPAN_SUMS,    /* tracks SUMS: a chunk under way; arg: chunk */
    LG_SPAN_BACK,    /* rows on their way home; arg: 0 */
    LG_SPAN_WAIT,    /* nothing to do but to wait */
    /* of a divided prompt (spread.h), track ROWS but for HOME */
    LG_SPAN_HEADS,  /* rows go to the ranks of their heads; arg: own rows, here and below */
    LG_SPAN_OUTPUT, /* what the heads made of them comes back */
    LG_SPAN_KEYS,   /* keys and values of all rows */
    LG_SPAN_DEAL,   /* states before the step, from the owner */
    LG_SPAN_PAGES,  /* kept keys and values, from the owner */
    LG_SPAN_HOME    /* track HOME: states under way to the owner */
} lg_span_kind;

typedef struct lg_trace_span {
    uint64_t start_us;
    uint32_t n_us, arg;
    uint16_t layer;
    uint8_t kind, track;
} lg_trace_span;

typedef struct lg_trace {
    lg_trace_span *span; /* [LG_TRACE_CAP], the i-th at i % LG_TRACE_CAP */
    uint64_t n;
} lg_trace;

/* LG_OK, LG_E_NOMEM. */
lg_status lg_trace_open(lg_trace **t, lg_err *err);
void lg_trace_close(lg_trace **t);

static inline uint64_t lg_trace_now(const lg_trace *t) {
    return t ? lg_clock_us() : 0;
}

/* A span from start (lg_trace_now) until now. */
void lg_trace_add_(lg_trace *t, lg_span_kind kind, uint32_t track, uint32_t layer, uint32_t arg,
                   uint64_t start_us);

static inline void lg_trace_add(lg_trace *t, lg_span_kind kind, uint32_t track, uint32_t layer,
                                uint32_t arg, uint64_t start_us) {
    if (t) lg_trace_add_(t, kind, track, layer, arg, start_us);
}

/* A file of the spans of ranks: begin, each rank once, end.  LG_OK, LG_E_IO naming the file. */
typedef struct lg_trace_file {
    void *file;
    const char *path;
    uint64_t n_event;
    uint64_t zero_us;
} lg_trace_file;

/* Whether a file can be written there, so that it is known before anything is served.  LG_E_IO. */
lg_status lg_trace_file_check(const char *path, lg_err *err);

/* zero_us: time that the file calls 0. */
lg_status lg_trace_file_begin(lg_trace_file *f, const char *path, uint64_t zero_us,
                              lg_err *err);

/* n spans of a rank, whose clock is ahead of rank 0's by ahead_us. */
void lg_trace_file_rank(lg_trace_file *f, uint32_t rank, const lg_trace_span *span, uint32_t n,
                        int64_t ahead_us);
lg_status lg_trace_file_end(lg_trace_file *f, lg_err *err);

#endif
