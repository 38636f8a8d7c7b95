/* ranks.c - opening one model on all ranks: see ranks.h.
 *
 * Invariant: every rank goes through the same stages in the same order; a rank that fails says so in the stage's report and
 * waits for the verdict like the others, so nobody is left waiting.
 * Reports and verdicts are plain structs: the first stage makes sure that all ranks run the same program.
 * Thread: engine.  Memory: work memory of each stage; the placement and the weights until the group ends.
 * Test: tests/unit/test_ranks.c, tests/e2e/test_ranks.py */
#include "engine/ranks.h"
#include "dist/tags.h"

#include "backend/group/group.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/hash.h"
#include "engine/expert_load.h"

#include <stdio.h>
#include <string.h>

/* ---- reports and verdicts ---- */

typedef struct verdict {
    lg_status status;
    char text[400];
} verdict;

/* What a rank says of itself; each stage fills its part. */
typedef struct report {
    lg_status status;
    char text[400];
    char version[128];
    uint64_t shape_hash;
    uint32_t kv;
    uint64_t weight_bytes, memory_bytes;
    bool memory_asked;
    uint64_t place_hash, rest_sum;
    uint32_t packed; /* lg_packed_state */
} report;

static lg_status fail_report(report *me, lg_status st, const lg_err *err) {
    me->status = st;
    snprintf(me->text, sizeof me->text, "%.390s", err->msg);
    return st;
}

static lg_status send_one(lg_comm *c, uint32_t to, int tag, const void *data, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(lg_comm_send(c, to, tag, data, n_bytes, &q));
    return lg_comm_wait(c, &q, 1);
}

static lg_status recv_one(lg_comm *c, uint32_t from, int tag, void *data, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(lg_comm_recv(c, from, tag, data, n_bytes, &q));
    LG_TRY(lg_comm_wait_idle(c, &q));
    if (q.n_bytes == n_bytes) return LG_OK;
    return lg_comm_lose(c, "rank %u sent %zu bytes in %s; expected %zu", from, q.n_bytes,
                        c->what, n_bytes);
}

static lg_status lost(const lg_ranks *r, lg_err *err) {
    return LG_FAIL(err, LG_E_COMM, "rank %u: %s", r->comm.rank, r->comm.why);
}

/* Rank 0 gets all reports, in order. */
static lg_status gather(lg_ranks *r, const char *what, const report *me, report *all) {
    lg_comm_at(&r->comm, what, 0);
    if (r->comm.rank) return send_one(&r->comm, 0, LG_TAG_REPORT, me, sizeof *me);
    all[0] = *me;
    for (uint32_t k = 1; k < r->comm.n_rank; k++)
        LG_TRY(recv_one(&r->comm, k, LG_TAG_REPORT, &all[k], sizeof *all));
    return LG_OK;
}

/* Rank 0's block to all. */
static lg_status spread(lg_ranks *r, void *data, size_t n_bytes) {
    if (r->comm.rank) return recv_one(&r->comm, 0, LG_TAG_DATA, data, n_bytes);
    for (uint32_t k = 1; k < r->comm.n_rank; k++)
        LG_TRY(send_one(&r->comm, k, LG_TAG_DATA, data, n_bytes));
    return LG_OK;
}

/* Rank 0's verdict on a stage, for all. */
static lg_status judge(lg_ranks *r, lg_status st, lg_err *err) {
    verdict v = {.status = st};
    if (st != LG_OK) snprintf(v.text, sizeof v.text, "%.390s", err->msg);
    if (spread(r, &v, sizeof v) != LG_OK) return lost(r, err);
    if (v.status == LG_OK || r->comm.rank == 0) return v.status;
    v.text[sizeof v.text - 1] = 0;
    return LG_FAIL(err, v.status, "%s", v.text);
}

/* The first rank that reports a failure. */
static lg_status first_failure(const lg_ranks *r, const report *all, lg_err *err) {
    for (uint32_t k = 0; k < r->comm.n_rank; k++)
        if (all[k].status != LG_OK) {
            lg_status st = LG_FAIL(err, all[k].status, "%s%.390s", "", all[k].text);
            err->rank = (int)k;
            return st;
        }
    return LG_OK;
}

/* ---- stages ---- */

/* Names, types and shapes of every tensor: the model, without its numbers. */
static uint64_t hash_shapes(const lg_weights *w) {
    lg_tensors *set = lg_weights_tensors(w);
    uint64_t h = LG_HASH_START;
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        h = lg_hash_add(h, v->name, strlen(v->name));
        h = lg_hash_add(h, v->type_name, strlen(v->type_name));
        h = lg_hash_add(h, v->shape, v->n_dim * sizeof *v->shape);
    }
    return h;
}

static lg_status compare_shapes(const lg_ranks *r, const report *all, lg_err *err) {
    for (uint32_t k = 1; k < r->comm.n_rank; k++) {
        if (strncmp(all[k].version, all[0].version, sizeof all[k].version) != 0)
            return LG_FAIL(err, LG_E_UNSUPPORTED, "rank %u runs Lignum %.60s, rank 0 %.60s", k,
                           all[k].version, all[0].version);
        if (all[k].status == LG_OK && all[k].shape_hash != all[0].shape_hash)
            return LG_FAIL(err, LG_E_FORMAT, "rank %u: its model is not that of rank 0", k);
        if (all[k].kv != all[0].kv)
            return LG_FAIL(err, LG_E_ARG, "rank %u: --kv is not that of rank 0", k);
    }
    return first_failure(r, all, err);
}

static bool holds(const void *ctx, uint32_t layer, uint32_t e) {
    const lg_ranks *r = ctx;
    return lg_place_holds(&r->place, r->comm.rank, layer, e);
}

static lg_status check_how(const lg_ranks_opt *o, lg_err *err) {
    if (o->how.kind == LG_EXCHANGE_STRICT && o->how.wire != LG_WIRE_F32)
        return LG_FAIL(err, LG_E_ARG,
                       "--wire %s: the strict exchange sends floats; choose another --exchange",
                       lg_wire_name(o->how.wire));
    return LG_OK;
}

/* Any rank of this machine. */
static bool machine_holds(const void *ctx, uint32_t layer, uint32_t e) {
    const lg_ranks *r = ctx;
    for (uint32_t k = 0; k < r->comm.n_rank; k++)
        if (r->comm.node[k] == r->comm.node[r->comm.rank] &&
            lg_place_holds(&r->place, k, layer, e))
            return true;
    return false;
}

/* With files of packed weights the ranks of a machine map one, which has what each of them needs: what all have is there once. */
static bool shares_file(const lg_ranks *r, const lg_options *opt) {
    return opt->pack_dir && r->n_local > 1;
}

/* Rank 0 reads the load profile, all make the same placement of it. */
static lg_status place(lg_ranks *r, const lg_config *c, lg_err *err) {
    size_t n = (size_t)c->n_layer * c->n_expert;
    struct {
        lg_exchange_how how;
        uint32_t n_extra;
        bool has_load;
    } said = {r->opt.how, r->opt.n_extra, r->opt.load_path != NULL};
    float *load = lg_mem_calloc(n, sizeof *load);
    lg_status st = load ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "placement: no memory");
    if (st == LG_OK && c->n_expert == 0)
        st = LG_FAIL(
            err, LG_E_UNSUPPORTED,
            "the model has no experts, which are what ranks divide; serve it by one rank");
    if (st == LG_OK) st = check_how(&r->opt, err);
    if (st == LG_OK && r->comm.rank == 0 && said.has_load)
        st = lg_expert_load_read(r->opt.load_path, c->n_layer, c->n_expert, load, err);
    if ((st = judge(r, st, err)) == LG_OK) {
        bool ok = spread(r, &said, sizeof said) == LG_OK &&
                  (!said.has_load || spread(r, load, n * sizeof *load) == LG_OK);
        lg_place_opt o = {.n_rank = r->comm.n_rank,
                          .n_layer = c->n_layer,
                          .n_expert = c->n_expert,
                          .load = said.has_load ? load : NULL,
                          .n_extra = said.n_extra};
        r->dist.how = said.how;
        st = ok ? lg_place_balance(&r->place, &o, err) : lost(r, err);
    }
    lg_mem_free(load);
    if (st != LG_OK || !r->opt.load_out_path) return st;
    r->dist.n_chosen = lg_mem_calloc(n, sizeof *r->dist.n_chosen);
    return r->dist.n_chosen ? LG_OK : LG_FAIL(err, LG_E_NOMEM, "expert load: no memory");
}

/* Sizes for all ranks: the tightest machine and the biggest part decide. */
static lg_status fit(lg_ranks *r, const lg_options *opt, const lg_config *cfg,
                     const report *all, uint32_t n_token, int n_thread, lg_budget *b,
                     lg_err *err) {
    lg_options o = *opt;
    uint64_t weight = 0, memory = UINT64_MAX;
    for (uint32_t k = 0; k < r->comm.n_rank; k++) {
        if (all[k].weight_bytes > weight) weight = all[k].weight_bytes;
        if (all[k].memory_bytes < memory) memory = all[k].memory_bytes;
    }
    /* What is asked for is for the group. */
    if (o.n_seq) o.n_seq = (o.n_seq + r->comm.n_rank - 1) / r->comm.n_rank;
    LG_TRY(lg_budget_fit_on(cfg, &o, weight, memory, opt->memory_bytes == 0, n_token, n_thread,
                            lg_leader_plan_bytes, &r->dist, NULL, b, err));
    b->stall_us = opt->max_stall_us;
    return LG_OK;
}

/* The checksums of all ranks at rank 0, compared with the placement. */
static lg_status verify(lg_ranks *r, const lg_weights *w, lg_pool *pool, lg_err *err) {
    size_t n = (size_t)w->cfg.n_layer * w->cfg.n_expert;
    report me = {.place_hash = lg_place_hash(&r->place),
                 .rest_sum = lg_weights_sum_rest(w, pool)};
    report *all = lg_mem_calloc(r->comm.n_rank, sizeof *all);
    uint64_t *sum = lg_mem_calloc(n * (r->comm.rank ? 1 : r->comm.n_rank), sizeof *sum);
    lg_status st = LG_OK;
    lg_tensors_release(lg_weights_tensors(w));
    if (!all || !sum) {
        st = LG_FAIL(err, LG_E_NOMEM, "checksums: no memory");
        fail_report(&me, st, err);
    } else {
        lg_weights_part mine = {holds, r};
        lg_weights_sum_experts(w, &mine, pool, sum);
    }
    if (!all) goto done; /* too little for anything: the group ends */
    if (gather(r, "checksums", &me, all) != LG_OK) {
        st = lost(r, err);
        goto done;
    }
    if (r->comm.rank == 0) st = first_failure(r, all, err);
    st = judge(r, st, err);
    if (st == LG_OK && r->comm.rank) {
        if (send_one(&r->comm, 0, LG_TAG_DATA, sum, n * sizeof *sum) != LG_OK)
            st = lost(r, err);
    }
    for (uint32_t k = 1; st == LG_OK && r->comm.rank == 0 && k < r->comm.n_rank; k++) {
        if (recv_one(&r->comm, k, LG_TAG_DATA, sum + k * n, n * sizeof *sum) != LG_OK)
            st = lost(r, err);
        else if (all[k].place_hash != all[0].place_hash)
            st = LG_FAIL(err, LG_E_INTERNAL, "rank %u: its placement is not that of rank 0", k);
        else if (all[k].rest_sum != all[0].rest_sum)
            st = LG_FAIL(
                err, LG_E_FORMAT,
                "rank %u: its weights (those that every rank has) differ from rank 0's", k);
    }
    if (st == LG_OK && r->comm.rank == 0) st = lg_place_verify(&r->place, sum, err);
    if (!r->comm.lost) st = judge(r, st, err);
done:
    lg_mem_free(all);
    lg_mem_free(sum);
    return st;
}

/* Check the files, place the experts, agree on sizes. */
static lg_status prepare(lg_ranks *r, const lg_options *opt, int n_thread, uint32_t n_token,
                         report *all, lg_budget *b, lg_err *err) {
    report me = {0};
    lg_weights *w = NULL, *part = NULL;
    bool shared = shares_file(r, opt);
    lg_weights_part mine = {shared ? machine_holds : holds, r};
    snprintf(me.version, sizeof me.version, "%.120s", lg_version());
    me.kv = opt->kv == LG_KV_DEFAULT ? LG_KV_F16 : opt->kv;
    lg_status st = lg_weights_check(opt->model_path, &w, err);
    if (st == LG_OK)
        me.shape_hash = hash_shapes(w);
    else
        fail_report(&me, st, err);
    if (gather(r, "hello", &me, all) != LG_OK) {
        st = lost(r, err);
        goto done;
    }
    if (r->comm.rank == 0) st = compare_shapes(r, all, err);
    LG_TRY_GOTO(judge(r, st, err), st, done);
    LG_TRY_GOTO(place(r, &w->cfg, err), st, done);
    st = lg_weights_check_part(opt->model_path, &mine, &part, err);
    if (st == LG_OK)
        me.weight_bytes = part->weight_bytes / (shared ? r->n_local : 1);
    else
        fail_report(&me, st, err);
    me.memory_bytes =
        (opt->memory_bytes ? opt->memory_bytes : lg_budget_machine("")) / r->n_local;
    if (gather(r, "memory", &me, all) != LG_OK) {
        st = lost(r, err);
        goto done;
    }
    if (r->comm.rank == 0 && (st = first_failure(r, all, err)) == LG_OK)
        st = fit(r, opt, &w->cfg, all, n_token, n_thread, b, err);
    LG_TRY_GOTO(judge(r, st, err), st, done);
    if (spread(r, b, sizeof *b) != LG_OK) st = lost(r, err);
    b->opt.dist = &r->dist;
done:
    lg_weights_close(&w);
    lg_weights_close(&part);
    return st;
}

/* The first rank of a rank's machine. */
static uint32_t first_of(const lg_ranks *r, uint32_t rank) {
    uint32_t k = 0;
    while (r->comm.node[k] != r->comm.node[rank]) k++;
    return k;
}

/* The end of a stage in which some ranks loaded weights: me->packed of all is known to all afterwards. */
static lg_status meet(lg_ranks *r, lg_status st, const report *me, report *all,
                      uint32_t packed[LG_MAX_RANK], lg_err *err) {
    report said = *me;
    if (st != LG_OK) fail_report(&said, st, err);
    if (gather(r, "weights", &said, all) != LG_OK) return lost(r, err);
    LG_TRY(judge(r, r->comm.rank ? LG_OK : first_failure(r, all, err), err));
    for (uint32_t k = 0; r->comm.rank == 0 && k < r->comm.n_rank; k++)
        packed[k] = all[k].packed;
    if (spread(r, packed, LG_MAX_RANK * sizeof *packed) != LG_OK) return lost(r, err);
    return LG_OK;
}

/* One rank of each machine packs for all of it, or maps what is there; then the others map it.  Where no file could be written
 * each rank has its own copy of its part. */
static lg_status open_weights(lg_ranks *r, const lg_options *opt, lg_pool *pool, report *all,
                              lg_weights **w, lg_err *err) {
    uint32_t packed[LG_MAX_RANK] = {0}, first = first_of(r, r->comm.rank);
    bool shared = shares_file(r, opt), leads = first == r->comm.rank;
    lg_weights_part own = {holds, r}, machine = {machine_holds, r};
    report me = {0};
    lg_status st = LG_OK;
    if (!shared || leads)
        st = lg_weights_open_packed(opt->model_path, shared ? &machine : &own, opt->pack_dir,
                                    pool, opt->progress, opt->progress_ctx, w, err);
    if (st == LG_OK && *w) me.packed = (*w)->packed;
    LG_TRY(meet(r, st, &me, all, packed, err));
    bool file = packed[first] != LG_PACKED_NO;
    if (shared && leads && !file) lg_weights_close(w);
    if (shared && !*w)
        st = lg_weights_open_packed(opt->model_path, file ? &machine : &own,
                                    file ? opt->pack_dir : NULL, pool, opt->progress,
                                    opt->progress_ctx, w, err);
    return meet(r, st, &me, all, packed, err);
}

/* How fast messages are, and what each exchange would cost; rank 0 says it. */
static lg_status measure_links(lg_ranks *r, const lg_config *cfg, lg_err *err) {
    static const uint32_t n_row[] = {1, 8, 64, 512, 4096};
    lg_links *l = &r->dist.how.links;
    lg_group_shape g = {r->comm.n_rank,    r->comm.n_node, cfg->n_embd,
                        cfg->n_expert_tok, cfg->n_expert,  r->dist.how.wire};
    char text[400] = "";
    size_t len = 0;
    if (lg_links_measure(&r->comm, l) != LG_OK) return lost(r, err);
    if (r->comm.rank || r->comm.n_rank == 1) return LG_OK;
    lg_diag_log(
        LG_LOG_INFO,
        "exchange %s, rows in %s: %u ranks on %u machines; a message inside one %.0f us, "
        "%.2f GB/s, between them %.0f us, %.2f GB/s; shared memory is read at %.2f GB/s",
        lg_exchange_name(r->dist.how.kind), lg_wire_name(g.wire), r->comm.n_rank,
        r->comm.n_node, l->in.latency_s * 1e6, l->in.bytes_s * 1e-9, l->out.latency_s * 1e6,
        l->out.bytes_s * 1e-9, l->shared_bytes_s * 1e-9);
    for (size_t i = 0; i < LG_COUNT(n_row); i++)
        len += (size_t)snprintf(
            text + len, sizeof text - len, "%s%u: %.0f %.0f %.0f", i ? "; " : "", n_row[i],
            lg_exchange_seconds(l, &g, LG_EXCHANGE_STRICT, lg_rows_even(&g, n_row[i])) * 1e6,
            lg_exchange_seconds(l, &g, LG_EXCHANGE_REDUCE, lg_rows_even(&g, n_row[i])) * 1e6,
            lg_exchange_seconds(l, &g, LG_EXCHANGE_ALLTOALL, lg_rows_even(&g, n_row[i])) * 1e6);
    lg_diag_log(LG_LOG_INFO,
                "expected microseconds a layer, rows of all ranks: strict reduce alltoall: %s",
                text);
    return LG_OK;
}

static lg_status open_window(lg_ranks *r, const lg_config *cfg, const lg_budget *b,
                             lg_err *err) {
    size_t bytes = lg_exchange_window_bytes(&r->comm, &r->dist.how, b->opt.max_tok, cfg->n_embd,
                                            cfg->n_expert_tok);
    return lg_window_open(&r->comm, bytes, &r->window) == LG_OK ? LG_OK : lost(r, err);
}

lg_status lg_ranks_load(lg_ranks *r, const lg_options *opt, lg_pool *pool, uint32_t n_token,
                        lg_weights **w, lg_budget *b, lg_err *err) {
    report *all = lg_mem_calloc(r->comm.n_rank, sizeof *all);
    if (!all) return LG_FAIL(err, LG_E_NOMEM, "ranks: no memory");
    *w = NULL;
    lg_status st = prepare(r, opt, lg_pool_n_thread(pool), n_token, all, b, err);
    if (st == LG_OK) st = open_weights(r, opt, pool, all, w, err);
    if (st == LG_OK) st = verify(r, *w, pool, err);
    if (st == LG_OK) st = open_window(r, &(*w)->cfg, b, err);
    if (st == LG_OK) st = measure_links(r, &(*w)->cfg, err);
    lg_mem_free(all);
    /* From here on a rank that does not answer ends the group. */
    r->comm.timeout_us = r->opt.timeout_us ? r->opt.timeout_us : LG_RANKS_TIMEOUT_US;
    if (st == LG_OK) return st;
    lg_weights_close(w);
    return st;
}

/* ---- joining, serving, leaving ---- */

lg_status lg_ranks_join_comm(const lg_comm *comm, const lg_ranks_opt *opt, lg_ranks **ranks,
                             lg_err *err) {
    lg_ranks *r = *ranks = lg_mem_alloc(sizeof *r);
    if (!r) return LG_FAIL(err, LG_E_NOMEM, "ranks: no memory");
    r->comm = *comm;
    r->opt = *opt;
    r->dist = (lg_dist){.comm = &r->comm, .place = &r->place, .how = opt->how};
    for (uint32_t k = 0; k < comm->n_rank; k++)
        r->n_local += comm->node[k] == comm->node[comm->rank];
    if (!opt->trace_path) return LG_OK;
    if (comm->rank == 0) LG_TRY(lg_trace_file_check(opt->trace_path, err));
    return lg_trace_open(&r->comm.trace, err);
}

lg_status lg_ranks_join(const lg_ranks_opt *opt, lg_ranks **ranks, lg_err *err) {
    lg_comm c;
    *ranks = NULL;
    LG_TRY(lg_comm_mpi(&c, err));
    LG_TRY(lg_ranks_join_comm(&c, opt, ranks, err));
    uint32_t at = 0;
    for (uint32_t k = 0; k < c.rank; k++) at += c.node[k] == c.node[c.rank];
    lg_cpus_share((int)at, (int)(*ranks)->n_local);
    return LG_OK;
}

int lg_ranks_n_thread(const lg_ranks *r) {
    int n = lg_pool_default_n_thread(), quota = lg_cpus_quota() / (int)r->n_local;
    if (n > quota) n = quota;
    return n < 1 ? 1 : n;
}

/* Each rank has counted its own rows: rank 0 adds them up. */
static lg_status gather_load(lg_ranks *r) {
    size_t n = (size_t)r->place.n_layer * r->place.n_expert;
    uint64_t *mine = r->dist.n_chosen;
    if (r->comm.rank) return send_one(&r->comm, 0, LG_TAG_LOAD, mine, n * sizeof *mine);
    uint64_t *got = lg_mem_calloc(n, sizeof *got);
    if (!got) return lg_comm_lose(&r->comm, "expert load: no memory");
    lg_status st = LG_OK;
    for (uint32_t k = 1; st == LG_OK && k < r->comm.n_rank; k++) {
        st = recv_one(&r->comm, k, LG_TAG_LOAD, got, n * sizeof *got);
        for (size_t i = 0; st == LG_OK && i < n; i++) mine[i] += got[i];
    }
    lg_mem_free(got);
    return st;
}

/* What was counted, for the next placement.  Collective. */
static void write_load(lg_ranks *r) {
    lg_err err;
    if (!r->dist.n_chosen || r->comm.lost) return;
    lg_comm_at(&r->comm, "expert load", 0);
    if (gather_load(r) != LG_OK || r->comm.rank) return;
    if (lg_expert_load_write(r->opt.load_out_path, r->place.n_layer, r->place.n_expert,
                             r->dist.n_chosen, &err) != LG_OK)
        lg_diag_log(LG_LOG_ERROR, "%s", err.msg);
}

/* ---- the trace ---- */

#define N_CLOCK 8

/* How far rank k's clock is ahead of rank 0's: rank 0 asks some times, and the quickest answer counts. */
static lg_status compare_clocks(lg_ranks *r, uint32_t k, int64_t *ahead_us) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < N_CLOCK; i++) {
        uint64_t here = lg_clock_us(), there = 0;
        if (r->comm.rank) {
            LG_TRY(recv_one(&r->comm, 0, LG_TAG_TRACE, &there, sizeof there));
            here = lg_clock_us();
            LG_TRY(send_one(&r->comm, 0, LG_TAG_TRACE, &here, sizeof here));
            continue;
        }
        LG_TRY(send_one(&r->comm, k, LG_TAG_TRACE, &there, sizeof there));
        LG_TRY(recv_one(&r->comm, k, LG_TAG_TRACE, &there, sizeof there));
        uint64_t took = lg_clock_us() - here;
        if (took >= best) continue;
        best = took;
        *ahead_us = (int64_t)(there - here - took / 2);
    }
    return LG_OK;
}

/* Spans of a rank in order of time: rank 0 gets them of the others. */
static lg_status send_spans(lg_ranks *r) {
    const lg_trace *t = r->comm.trace;
    uint64_t n = t->n < LG_TRACE_CAP ? t->n : LG_TRACE_CAP;
    LG_TRY(send_one(&r->comm, 0, LG_TAG_TRACE, &n, sizeof n));
    LG_TRY(send_one(&r->comm, 0, LG_TAG_TRACE, t->span, n * sizeof *t->span));
    return compare_clocks(r, 0, NULL);
}

static lg_status write_spans(lg_ranks *r, lg_err *err) {
    const lg_trace *t = r->comm.trace;
    uint64_t n = t->n < LG_TRACE_CAP ? t->n : LG_TRACE_CAP;
    lg_trace_span *got = lg_mem_calloc(LG_TRACE_CAP, sizeof *got);
    lg_trace_file f;
    if (!got) return LG_FAIL(err, LG_E_NOMEM, "trace: no memory");
    lg_status st =
        lg_trace_file_begin(&f, r->opt.trace_path,
                            n ? t->span[t->n > n ? t->n % LG_TRACE_CAP : 0].start_us : 0, err);
    if (st == LG_OK) lg_trace_file_rank(&f, 0, t->span, (uint32_t)n, 0);
    for (uint32_t k = 1; st == LG_OK && k < r->comm.n_rank; k++) {
        int64_t ahead_us = 0;
        st = recv_one(&r->comm, k, LG_TAG_TRACE, &n, sizeof n);
        if (st == LG_OK && n > LG_TRACE_CAP) st = lg_comm_lose(&r->comm, "trace: %u", k);
        if (st == LG_OK) st = recv_one(&r->comm, k, LG_TAG_TRACE, got, n * sizeof *got);
        if (st == LG_OK) st = compare_clocks(r, k, &ahead_us);
        if (st == LG_OK) lg_trace_file_rank(&f, k, got, (uint32_t)n, ahead_us);
    }
    if (f.file) {
        lg_status end = lg_trace_file_end(&f, err);
        st = st == LG_OK ? end : st;
    }
    lg_mem_free(got);
    return st;
}

static void write_trace(lg_ranks *r) {
    lg_err err = {0};
    if (!r->comm.trace || r->comm.lost || !r->dist.place->block) return;
    lg_comm_at(&r->comm, "trace", 0);
    lg_status st = r->comm.rank ? send_spans(r) : write_spans(r, &err);
    if (st == LG_OK && r->comm.rank == 0)
        lg_diag_log(LG_LOG_INFO, "%s: written; open it in a trace viewer", r->opt.trace_path);
    else if (st != LG_OK)
        lg_diag_log(LG_LOG_ERROR, "trace: %s", err.msg[0] ? err.msg : r->comm.why);
}

void lg_ranks_leave(lg_ranks **ranks, bool abort) {
    lg_ranks *r = *ranks;
    if (!r) return;
    if (abort) r->comm.lost = true;
    write_load(r);
    write_trace(r);
    lg_window_close(&r->comm, &r->window);
    lg_comm_close(&r->comm);
    lg_trace_close(&r->comm.trace);
    lg_place_fini(&r->place);
    lg_mem_free(r->dist.n_chosen);
    LG_FREE(*ranks);
}

lg_status lg_ranks_serve(lg_ranks *r, const lg_options *opt, lg_err *err) {
    lg_pool *pool = NULL;
    lg_weights *w = NULL;
    lg_budget b = {0};
    lg_status st;
    LG_TRY(lg_pool_open(opt->n_thread ? opt->n_thread : lg_ranks_n_thread(r), &pool, err));
    st = lg_ranks_load(r, opt, pool, 0, &w, &b, err);
    lg_member_calls calls;
    lg_disk_rank *files = NULL;
    if (st == LG_OK && opt->cache_dir && b.opt.n_snap)
        st = lg_disk_rank_open(&b.opt, r->comm.rank, &files, &calls, err);
    if (st == LG_OK) st = lg_member_run(w, &b.opt, pool, files ? &calls : NULL, err);
    lg_disk_rank_close(&files);
    lg_weights_close(&w);
    lg_pool_close(&pool);
    return st;
}

const lg_backend_ops *lg_ranks_ops(void) {
    static const lg_backend_ops ops = {.plan = lg_leader_plan_bytes,
                                       .open = lg_leader_open,
                                       .close = lg_leader_close,
                                       .step = lg_leader_step,
                                       .save = lg_leader_save,
                                       .load = lg_leader_load,
                                       .copy_page = lg_leader_copy_page,
                                       .get_page = lg_leader_get_page,
                                       .put_page = lg_leader_put_page,
                                       .get_snap = lg_leader_get_snap,
                                       .put_snap = lg_leader_put_snap,
                                       .call = lg_leader_call};
    return &ops;
}
