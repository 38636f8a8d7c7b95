/* bucket.c - programs for sizes: find or compile, and call.
 *
 * In: lg_pjrt_bucket.  Out: lg_pjrt_program.   Thread: engine.  Memory: a program at its first use.
 * Test: tests/unit/test_pjrt_step.c */
#include "backend/pjrt/be.h"
#include "base/clock.h"

#include <string.h>

uint32_t lg_pjrt_bucket_rung(uint32_t n, uint32_t least, uint32_t most, uint32_t grow) {
    uint64_t rung = least;
    while (rung < n) rung *= grow;
    return rung < most ? (uint32_t)rung : most;
}

static bool same(const lg_pjrt_bucket *a, const lg_pjrt_bucket *b) {
    return a->n_one == b->n_one && a->n_many == b->n_many && a->n_row == b->n_row &&
           a->n_page == b->n_page && a->n_out == b->n_out && a->logits == b->logits &&
           a->trace == b->trace;
}

/* The pools and weights of a program must be those that are there. */
static lg_status check(const lg_pjrt_be *be, const lg_pjrt_sig *sig, lg_err *err) {
    bool ok = sig->n_arg == be->n_arg;
    for (uint32_t a = 0; ok && a < be->n_arg; a++)
        ok = a == be->step_arg ||
             memcmp(&sig->arg[a].dims, &be->sig->arg[a].dims, sizeof sig->arg[a].dims) == 0;
    return ok ? LG_OK : LG_FAIL(err, LG_E_INTERNAL, "program: its arguments are others");
}

/* Grow *p to n elements; what it held is gone. */
static lg_status grow(void *p, size_t *room, size_t n, size_t size, lg_err *err) {
    void **at = p;
    if (n <= *room) return LG_OK;
    LG_FREE(*at);
    *room = 0;
    *at = lg_mem_calloc(n, size);
    if (!*at)
        return LG_FAIL(err, LG_E_NOMEM, "program: no memory for its arguments and results");
    *room = n;
    return LG_OK;
}

static lg_status make_room(lg_pjrt_be *be, const lg_pjrt_bucket *b, lg_err *err) {
    size_t before = be->out_room, vocab = be->cfg->n_vocab;
    LG_TRY(grow(&be->step, &be->step_room, lg_pjrt_step_of(b).n, sizeof *be->step, err));
    LG_TRY(grow(&be->id, &before, b->n_out, sizeof *be->id, err));
    LG_TRY(grow(&be->logprob, &be->out_room, b->n_out, sizeof *be->logprob, err));
    if (!b->logits) return LG_OK;
    return grow(&be->down, &be->down_room, b->n_out * vocab, sizeof *be->down, err);
}

static lg_status compile(lg_pjrt_be *be, lg_pjrt_program *p, lg_err *err) {
    const lg_pjrt_compile how = {.n_replica = be->model.n_device, .n_partition = 1};
    lg_buf text = {0};
    uint64_t began = lg_clock_us();
    lg_pjrt_sig *sig = lg_mem_alloc(sizeof *sig);
    lg_status st = sig ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "program: no memory");
    if (st == LG_OK && be->model.unrolled) {
        p->items = lg_mem_alloc(sizeof *p->items);
        if (!p->items) st = LG_FAIL(err, LG_E_NOMEM, "program: no memory");
    }
    if (st == LG_OK && p->items)
        st = lg_step_debug_text(&be->model, &p->bucket, &text, sig, p->items, err);
    else if (st == LG_OK)
        st = lg_pjrt_step_text(&be->model, &p->bucket, &text, sig, err);
    if (st == LG_OK) st = check(be, sig, err);
    if (st == LG_OK)
        st = lg_pjrt_cache_compile(&be->dev->cache, be->dev->client, lg_buf_str(&text),
                                   text.len_bytes, &how, &p->exe, err);
    if (st == LG_OK) st = make_room(be, &p->bucket, err);
    if (st == LG_OK) p->out = sig->out;
    lg_buf_fini(&text);
    lg_mem_free(sig);
    const lg_pjrt_bucket *b = &p->bucket;
    lg_diag_log(LG_LOG_INFO,
                "program for %u x 1 and %u x %u rows, %u pages, %u rows of logits%s: %.1f s",
                b->n_one, b->n_many, b->n_row, b->n_page, b->n_out, b->logits ? " out" : "",
                (double)(lg_clock_us() - began) / 1e6);
    return st;
}

/* The program that was not used for the longest time makes room. */
static void drop_last(lg_pjrt_be *be) {
    lg_pjrt_program **at = &be->program;
    while ((*at)->next) at = &(*at)->next;
    lg_pjrt_exe_close(&(*at)->exe);
    LG_FREE(*at);
    be->n_program--;
}

lg_status lg_pjrt_bucket_program(lg_pjrt_be *be, const lg_pjrt_bucket *b,
                                 lg_pjrt_program **program, lg_err *err) {
    for (lg_pjrt_program **at = &be->program; *at; at = &(*at)->next)
        if (same(&(*at)->bucket, b)) {
            *program = *at;
            *at = (*at)->next;
            (*program)->next = be->program;
            be->program = *program;
            return LG_OK;
        }
    while (be->n_program >= be->dev->loaded) drop_last(be);
    lg_pjrt_program *p = lg_mem_alloc(sizeof *p);
    if (!p) return LG_FAIL(err, LG_E_NOMEM, "program: no memory");
    *p = (lg_pjrt_program){.bucket = *b};
    lg_status st = compile(be, p, err);
    if (st != LG_OK) {
        lg_pjrt_exe_close(&p->exe);
        lg_mem_free(p->items);
        lg_mem_free(p);
        return st;
    }
    p->next = be->program;
    be->program = *program = p;
    be->n_compiled++;
    be->n_program++;
    return LG_OK;
}

/* ---- ahead of their use ---- */

/* The i-th rung of a ladder (lg_pjrt_bucket_rung), or 0 behind the last one. */
static uint32_t rung_at(uint32_t i, uint32_t least, uint32_t most, uint32_t grow) {
    uint64_t rung = least;
    for (; i && rung < most; i--) rung *= grow;
    if (i) return 0;
    return rung < most ? (uint32_t)rung : most;
}

bool lg_pjrt_bucket_likely(const lg_backend_opt *opt, uint32_t grow, uint32_t i,
                           lg_pjrt_bucket *b) {
    uint32_t at = 0, most = lg_pjrt_bucket_pages(opt->n_ctx), n;
    for (uint32_t p = 0, page; (page = rung_at(p, LG_PJRT_LEAST_PAGES, most, grow)); p++) {
        uint32_t fewest = 1; /* rows that a program of n is for */
        for (uint32_t r = 0;
             (n = r ? rung_at(r - 1, LG_PJRT_LEAST_ROWS, opt->max_tok, grow) : 1);
             r++, fewest = n + 1) {
            if (lg_pjrt_bucket_pages(fewest) > page) continue;
            for (int logits = 1; logits >= 0; logits--, at++)
                if (at == i) {
                    *b = (lg_pjrt_bucket){.n_one = r == 0,
                                          .n_many = r != 0,
                                          .n_row = r ? n : 0,
                                          .n_page = page,
                                          .n_out = 1,
                                          .logits = logits};
                    return true;
                }
        }
        for (uint32_t s = 1; (n = rung_at(s, 1, opt->max_seq, grow)); s++)
            for (int logits = 1; logits >= 0; logits--, at++)
                if (at == i) {
                    *b = (lg_pjrt_bucket){
                        .n_one = n, .n_page = page, .n_out = n, .logits = logits};
                    return true;
                }
    }
    return false;
}

lg_status lg_pjrt_bucket_warm(lg_pjrt_be *be, lg_err *err) {
    const lg_pjrt_device *d = be->dev;
    uint64_t began = lg_clock_us(), passed = 0;
    lg_pjrt_program *p;
    lg_pjrt_bucket b;
    uint32_t n = 0, more = 0;
    if (d->warm_s == 0 || be->opt.trace) return LG_OK;
    for (; n < d->loaded && lg_pjrt_bucket_likely(&be->opt, d->grow, n, &b); n++) {
        passed = lg_clock_us() - began;
        if (passed >= d->warm_s * UINT64_C(1000000)) break;
        LG_TRY(lg_pjrt_bucket_program(be, &b, &p, err));
    }
    while (lg_pjrt_bucket_likely(&be->opt, d->grow, n + more, &b)) more++;
    passed = lg_clock_us() - began;
    lg_diag_log(LG_LOG_INFO,
                "device: %u likely programs are ready after %.1f s (warm=%u); %u and those of "
                "other sizes are compiled when they are needed",
                n, (double)passed / 1e6, d->warm_s, more);
    return LG_OK;
}

lg_status lg_pjrt_bucket_call(lg_pjrt_be *be, lg_pjrt_exe *exe, lg_err *err) {
    const lg_pjrt_call call = {.arg = be->arg,
                               .n_arg = be->n_arg,
                               .keep = be->keep,
                               .n_keep = be->n_keep,
                               .out = be->out};
    uint32_t n_out = lg_pjrt_exe_n_out(exe);
    be->n_call++;
    LG_TRY(lg_pjrt_exe_run(exe, &call, err));
    for (uint32_t d = 0; d < be->model.n_device; d++)
        for (uint32_t p = 0; p < be->n_pool; p++) {
            lg_pjrt_buf **pool = &be->arg[(size_t)d * be->n_arg + be->pool_arg[p]];
            lg_pjrt_buf_free(be->dev->client, pool);
            *pool = be->out[(size_t)d * n_out + p];
            be->out[(size_t)d * n_out + p] = NULL;
        }
    return LG_OK;
}
