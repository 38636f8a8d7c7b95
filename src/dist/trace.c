/* trace.c - see trace.h.
 *
 * Thread: engine.  Memory: the ring; the file is written piece by piece.  Test: tests/unit/test_reduce.c, test_spread.c, tests/e2e/test_ranks.py */
#include "dist/trace.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

lg_status lg_trace_open(lg_trace **t, lg_err *err) {
    *t = lg_mem_calloc(1, sizeof **t);
    if (*t) (*t)->span = lg_mem_calloc(LG_TRACE_CAP, sizeof *(*t)->span);
    if (*t && (*t)->span) return LG_OK;
    lg_trace_close(t);
    return LG_FAIL(err, LG_E_NOMEM, "trace: no memory");
}

void lg_trace_close(lg_trace **t) {
    if (!*t) return;
    lg_mem_free((*t)->span);
    LG_FREE(*t);
}

void lg_trace_add_(lg_trace *t, lg_span_kind kind, uint32_t track, uint32_t layer, uint32_t arg,
                   uint64_t start_us) {
    t->span[t->n++ % LG_TRACE_CAP] =
        (lg_trace_span){.start_us = start_us,
                        .n_us = (uint32_t)(lg_clock_us() - start_us),
                        .arg = arg,
                        .layer = (uint16_t)layer,
                        .kind = (uint8_t)kind,
                        .track = (uint8_t)track};
}

/* ---- the file ---- */

static const char *name_of(uint8_t kind) {
    static const char *const name[] = {"step",         "rows",        "shared expert", "sort",
                                       "experts",      "combine",     "sums",          "back",
                                       "wait",         "heads there", "heads back",    "keys",
                                       "states there", "pages",       "states home"};
    return kind < LG_COUNT(name) ? name[kind] : "?";
}

lg_status lg_trace_file_check(const char *path, lg_err *err) {
    FILE *f = fopen(path, "a");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    return LG_OK;
}

lg_status lg_trace_file_begin(lg_trace_file *f, const char *path, uint64_t zero_us,
                              lg_err *err) {
    *f = (lg_trace_file){.path = path, .zero_us = zero_us};
    f->file = fopen(path, "w");
    if (!f->file) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", f->file);
    return LG_OK;
}

static void separate(lg_trace_file *f) {
    fputs(f->n_event++ ? ",\n" : "\n", f->file);
}

static void say_name(lg_trace_file *f, const char *what, uint32_t rank, uint32_t track,
                     const char *name) {
    separate(f);
    fprintf(f->file,
            "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %u, \"tid\": %u, \"args\": {\"name\": "
            "\"%s\"}}",
            what, rank, track, name);
}

void lg_trace_file_rank(lg_trace_file *f, uint32_t rank, const lg_trace_span *span, uint32_t n,
                        int64_t ahead_us) {
    static const char *const track[LG_TRACE_N_TRACK] = {"engine",
                                                        "rows under way",
                                                        "sums under way",
                                                        "sums under way (2)",
                                                        "sums under way (3)",
                                                        "sums under way (4)",
                                                        "states under way"};
    char name[32];
    snprintf(name, sizeof name, "rank %u", rank);
    say_name(f, "process_name", rank, 0, name);
    for (uint32_t i = 0; i < LG_TRACE_N_TRACK; i++)
        say_name(f, "thread_name", rank, i, track[i]);
    for (uint32_t i = 0; i < n; i++) {
        const lg_trace_span *s = &span[i];
        separate(f);
        fprintf(f->file,
                "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %u, \"tid\": %u, \"ts\": %lld, "
                "\"dur\": %u, \"args\": {\"layer\": %u, \"n\": %u}}",
                name_of(s->kind), rank, s->track,
                (long long)((int64_t)(s->start_us - f->zero_us) - ahead_us), s->n_us, s->layer,
                s->arg);
    }
}

lg_status lg_trace_file_end(lg_trace_file *f, lg_err *err) {
    fputs("\n]}\n", f->file);
    bool bad = ferror(f->file) != 0;
    bad |= fclose(f->file) != 0;
    f->file = NULL;
    if (!bad) return LG_OK;
    return LG_FAIL(err, LG_E_IO, "%s: cannot be written", f->path);
}
