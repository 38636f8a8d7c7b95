/* budget.c - how large the pools of an engine are: see engine.h.
 *
 * In:  the machine's memory, the model's shape, what the caller asked for.   Out: lg_budget.
 * Policy: docs/DECISIONS.md, "Memory".  Thread: any.  Memory: none.  Test: tests/unit/test_engine.c */
#include "backend/pjrt/be.h"
#include "engine/engine.h"
#include "base/num.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((double)(UINT64_C(1) << 30))

/* At least what lg_prefix_bytes takes for a page and for a snapshot. */
#define PAGE_TABLE_BYTES (sizeof(lg_prefix_node) + 32)
#define SNAP_TABLE_BYTES (2 * PAGE_TABLE_BYTES + 16)
#define MAX_SNAP         65536
#define LEAST_REQUEST                                                                          \
    (512 * 1024) /* the largest legal request but for its ids: stop strings, bias */
#define MOST_REQUEST   (UINT64_C(64) << 20)
#define SNAP_PAGES     8 /* pages for kept texts, beside those of running sequences, a snapshot */
#define MIN_SHARE_SNAP 256 /* most snapshots that are taken unasked, for few sequences */
#define GUIDE_ID_BYTES                                                                         \
    64 /* for guides, of each id: its place in their list, its bits in some dozens of them */
#define GUIDE_BYTES     (UINT64_C(256) << 10) /* and for their grammars, at least */
#define GUIDE_SHARE     64 /* and of what the first context leaves, one part */
#define MAX_GUIDE_SHARE (UINT64_C(256) << 20)

/* ---- what the machine has ---- */

/* First number in a small file after `key` at the start of a line ("" = of the file).  false when there is none. */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    char line[256];
    bool found = false;
    size_t len = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, len) != 0) continue;
        const char *s = line + len;
        while (*s == ' ' || *s == ':' || *s == '\t') s++;
        if (*s < '0' || *s > '9') continue;
        *out = strtoull(s, NULL, 10);
        found = true;
    }
    fclose(f);
    return found;
}

/* Lower *bytes to what one cgroup folder leaves: its limit less what it uses, file cache not counted. */
static void apply_cgroup(const char *dir, const char *limit_name, const char *usage_name,
                         const char *cache_key, uint64_t *bytes) {
    char path[1024];
    uint64_t limit, used = 0, cache = 0;
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!read_number(path, "", &limit)) return;
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    read_number(path, "", &used);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    read_number(path, cache_key, &cache);
    used = used > cache ? used - cache : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *bytes) *bytes = left;
}

/* Apply the limits of a cgroup and of all above it. */
static void apply_line(const char *root, char *line, uint64_t *bytes) {
    line[strcspn(line, "\n")] = 0;
    char *kind = strchr(line, ':');
    char *group = kind ? strchr(kind + 1, ':') : NULL;
    if (!group) return;
    *kind++ = 0;
    *group++ = 0;
    bool v2 = strcmp(line, "0") == 0 && *kind == 0;
    char kinds[256];
    snprintf(kinds, sizeof kinds, ",%s,", kind);
    if (!v2 && !strstr(kinds, ",memory,")) return;
    for (;;) {
        char dir[768];
        snprintf(dir, sizeof dir, "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/memory", group);
        if (v2) {
            apply_cgroup(dir, "memory.max", "memory.current", "inactive_file ", bytes);
        } else {
            apply_cgroup(dir, "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file ", bytes);
        }
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

uint64_t lg_budget_machine(const char *root) {
    char path[768], line[512];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t bytes = read_number(path, "MemAvailable", &kib) ? kib * 1024 : UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) apply_line(root, line, &bytes);
    if (f) fclose(f);
    return bytes == UINT64_MAX ? 0 : bytes - bytes / 10;
}

/* ---- what the pools get ---- */

/* One choice of sizes and what it costs. */
typedef struct fit {
    const lg_config *cfg;
    lg_backend_plan_fn *plan;
    const lg_dist *dist;
    struct lg_pjrt_device *device;
    int n_thread;
    uint64_t weight_bytes;
    uint32_t n_sample_vocab, n_batch_tok;
    lg_dtype kv;
    uint64_t cache_bytes; /* asked for, for snapshots */
    bool disk;            /* kept texts go to files too */
    uint64_t disk_limit;
    lg_backend_plan cost;
    uint64_t fixed_bytes;  /* weights, scratch, slots, our own tables */
    uint64_t own_bytes;    /* our own tables */
    uint64_t needed_bytes; /* fixed_bytes and one whole context */
} fit;

static uint32_t pages_of(uint32_t n_tok) {
    return (uint32_t)(((uint64_t)n_tok + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* What requests need at least: one of any legal kind, and two for each slot that are a whole context of ids. */
static uint64_t request_bytes(uint32_t n_ctx, uint32_t n_seq) {
    return LEAST_REQUEST + 2 * (uint64_t)n_seq * (n_ctx * sizeof(uint32_t) + 2048);
}

/* More for requests, from the room that is left. */
static void fit_requests(fit *f, uint64_t *room, lg_budget *b) {
    uint64_t share = *room / 32 < MOST_REQUEST ? *room / 32 : MOST_REQUEST;
    if (share <= b->request_bytes) return;
    uint64_t more = share - b->request_bytes;
    b->request_bytes += more;
    f->own_bytes += more;
    *room -= more;
}

/* More for guides, from what the first context leaves. */
static void fit_guides(fit *f, uint64_t first, uint64_t *room, lg_budget *b) {
    uint64_t more = *room > first ? (*room - first) / GUIDE_SHARE : 0;
    if (more > MAX_GUIDE_SHARE) more = MAX_GUIDE_SHARE;
    b->guide_bytes += more;
    f->own_bytes += more;
    *room -= more;
}

/* Positions of a divided prompt. */
static uint32_t n_spread(const lg_dist *d, uint32_t n_ctx) {
    if (!d || d->how.divide == LG_DIVIDE_OFF || d->comm->n_rank < 2) return 0;
    return d->how.divide_ctx < n_ctx ? d->how.divide_ctx : n_ctx;
}

/* Cost of n_seq slots with contexts of n_ctx. */
static void cost(fit *f, uint32_t n_ctx, uint32_t n_seq, lg_budget *b) {
    uint32_t per_seq = pages_of(n_ctx);
    b->n_ctx = n_ctx;
    b->opt = (lg_backend_opt){.n_slot = n_seq,
                              .n_page = n_seq * per_seq,
                              .n_ctx = n_ctx,
                              .dist = f->dist,
                              .device = f->device,
                              .n_spread = n_spread(f->dist, n_ctx),
                              .max_tok = f->n_batch_tok,
                              .max_seq = n_seq,
                              .max_out = n_seq,
                              .n_sample_vocab = f->n_sample_vocab,
                              .kv = f->kv};
    f->plan(f->cfg, &b->opt, f->n_thread, &f->cost);
    f->own_bytes = lg_state_bytes(n_seq, b->opt.n_page, n_ctx) +
                   lg_store_bytes(2 * n_seq, n_ctx) +
                   (uint64_t)n_seq * (per_seq * sizeof(uint32_t) + 1024);
    b->request_bytes = request_bytes(n_ctx, n_seq);
    f->own_bytes += b->request_bytes;
    b->guide_bytes = GUIDE_BYTES + (uint64_t)f->n_sample_vocab * GUIDE_ID_BYTES;
    f->own_bytes += b->guide_bytes;
    if (f->disk) {
        uint32_t n_home = f->dist ? f->dist->comm->n_rank : f->device ? f->device->n : 1;
        f->own_bytes += n_home * lg_disk_memory(f->disk_limit / n_home, n_ctx, &f->cost);
    }
    f->fixed_bytes = f->weight_bytes + f->cost.scratch_bytes + n_seq * f->cost.slot_bytes +
                     f->own_bytes + f->cache_bytes;
    f->needed_bytes = f->fixed_bytes + per_seq * f->cost.page_bytes;
    if (f->cache_bytes) f->needed_bytes += per_seq * PAGE_TABLE_BYTES;
}

/* Next smaller choice of what the caller left open; false when there is none. */
static bool give_way(const lg_options *opt, uint32_t *n_ctx, uint32_t *n_seq) {
    bool may_seq = opt->n_seq == 0, may_ctx = opt->n_ctx == 0;
    if (may_seq && *n_seq > 8) {
        *n_seq /= 2;
    } else if (may_ctx && *n_ctx / 2 >= 4096) {
        *n_ctx /= 2;
    } else if (may_seq && *n_seq > 1) {
        *n_seq /= 2;
    } else if (may_ctx && *n_ctx / 2 >= 256) {
        *n_ctx /= 2;
    } else {
        return false;
    }
    return true;
}

/* Longest context, in whole pages, with which n_seq sequences would fit; 0 when none does. */
static uint32_t longest_ctx(fit *f, uint32_t n_ctx, uint32_t n_seq, uint64_t bytes) {
    lg_budget b;
    uint32_t low = 0, high = n_ctx / LG_PAGE_TOK;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        cost(f, mid * LG_PAGE_TOK, n_seq, &b);
        if (f->needed_bytes <= bytes) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low * LG_PAGE_TOK;
}

static lg_status no_room(fit *f, const lg_budget *b, uint64_t bytes, lg_err *err) {
    uint64_t needed = f->needed_bytes, scratch = f->cost.scratch_bytes;
    uint32_t n_ctx = b->n_ctx, n_seq = b->opt.n_slot;
    char way[96] = "";
    uint32_t shorter = longest_ctx(f, n_ctx, n_seq, bytes);
    if (shorter) snprintf(way, sizeof way, "--ctx %" PRIu32 " or ", shorter);
    return LG_FAIL(err, LG_E_NOMEM,
                   "memory: needed %.3f GiB (weights %.3f, step scratch %.3f, %" PRIu32
                   " sequences with a context of %" PRIu32
                   " %.3f), budget %.3f GiB; %s--memory %" PRIu64 "M would fit",
                   (double)needed / GIB, (double)f->weight_bytes / GIB, (double)scratch / GIB,
                   n_seq, n_ctx, (double)(needed - f->weight_bytes - scratch) / GIB,
                   (double)bytes / GIB, way, (needed >> 20) + 1);
}

static lg_status check(const lg_config *cfg, const lg_options *opt, lg_err *err) {
    if (opt->n_ctx == 1 || opt->n_ctx > cfg->n_ctx_max)
        return LG_FAIL(err, LG_E_ARG, "n_ctx: found %u, expected 2 to %u (the model's limit)",
                       opt->n_ctx, cfg->n_ctx_max);
    if (opt->n_seq > 4096)
        return LG_FAIL(err, LG_E_ARG, "n_seq: found %u, expected at most 4096", opt->n_seq);
    if (opt->n_batch_tok > 65536)
        return LG_FAIL(err, LG_E_ARG, "n_batch_tok: found %u, expected at most 65536",
                       opt->n_batch_tok);
    if (opt->n_batch_tok && opt->n_seq > opt->n_batch_tok)
        return LG_FAIL(err, LG_E_ARG, "n_batch_tok: found %u, expected at least n_seq (%u)",
                       opt->n_batch_tok, opt->n_seq);
    if (lg_kv_of(opt->kv) == LG_N_DTYPE)
        return LG_FAIL(err, LG_E_ARG, "kv: found %d, expected one of lg_kv_type", (int)opt->kv);
    if (opt->no_cache && opt->cache_bytes)
        return LG_FAIL(err, LG_E_ARG, "cache_bytes: found %" PRIu64 " together with no_cache",
                       opt->cache_bytes);
    if (opt->cache_dir && opt->no_cache)
        return LG_FAIL(err, LG_E_ARG, "cache_dir: found '%s' together with no_cache",
                       opt->cache_dir);
    return LG_OK;
}

/* Choose the number of snapshots; *room, the bytes for snapshots and pages, becomes what stays for pages. */
static lg_status fit_cache(const fit *f, const lg_options *opt, uint64_t *room, lg_budget *b,
                           lg_err *err) {
    uint64_t one = f->cost.snap_bytes + SNAP_TABLE_BYTES;
    if (opt->no_cache || f->cost.snap_bytes == 0) return LG_OK;
    if (opt->cache_bytes) {
        uint64_t n = opt->cache_bytes / one;
        b->opt.n_snap = n < MAX_SNAP ? (uint32_t)n : MAX_SNAP;
        if (n) return LG_OK;
        return LG_FAIL(err, LG_E_ARG,
                       "cache_bytes: found %" PRIu64
                       ", expected at least one snapshot (%" PRIu64 ")",
                       opt->cache_bytes, one);
    }
    uint64_t first = pages_of(b->n_ctx) * (f->cost.page_bytes + PAGE_TABLE_BYTES);
    uint64_t n = *room > first ? (*room - first) / 4 / one : 0;
    uint64_t most = 8 * (uint64_t)b->opt.n_slot;
    if (most < MIN_SHARE_SNAP) most = MIN_SHARE_SNAP;
    if (n > most) n = most;
    if (n < 2) return LG_OK;
    b->opt.n_snap = (uint32_t)n;
    *room -= n * one;
    return LG_OK;
}

lg_status lg_budget_fit(const lg_config *cfg, const lg_options *opt, uint64_t weight_bytes,
                        uint64_t bytes, bool roomy, uint32_t n_sample_vocab, int n_thread,
                        lg_backend_plan_fn *plan, lg_budget *b, lg_err *err) {
    return lg_budget_fit_on(cfg, opt, weight_bytes, bytes, roomy, n_sample_vocab, n_thread,
                            plan, NULL, NULL, b, err);
}

lg_status lg_budget_fit_on(const lg_config *cfg, const lg_options *opt, uint64_t weight_bytes,
                           uint64_t bytes, bool roomy, uint32_t n_sample_vocab, int n_thread,
                           lg_backend_plan_fn *plan, const lg_dist *dist,
                           struct lg_pjrt_device *device, lg_budget *b, lg_err *err) {
    LG_TRY(check(cfg, opt, err));
    uint32_t n_ctx = opt->n_ctx ? opt->n_ctx : cfg->n_ctx_max;
    uint32_t n_seq = opt->n_seq ? opt->n_seq : 64;
    uint32_t n_batch_tok = opt->n_batch_tok ? opt->n_batch_tok : n_seq > 512 ? n_seq : 512;
    uint32_t n_rank = dist ? dist->comm->n_rank : 1;
    if (n_seq > n_batch_tok / n_rank) n_seq = n_batch_tok / n_rank;
    if (n_seq == 0)
        return LG_FAIL(err, LG_E_ARG,
                       "n_batch_tok: found %u, expected at least a row for each of %u ranks",
                       n_batch_tok, n_rank);
    fit f = {.cfg = cfg,
             .plan = plan,
             .dist = dist,
             .device = device,
             .n_thread = n_thread,
             .weight_bytes = weight_bytes,
             .n_sample_vocab = n_sample_vocab,
             .n_batch_tok = n_batch_tok,
             .kv = lg_kv_of(opt->kv),
             .cache_bytes = opt->cache_bytes,
             .disk = opt->cache_dir && !opt->no_cache,
             .disk_limit = opt->cache_disk_bytes};
    for (;;) {
        cost(&f, n_ctx, n_seq, b);
        if (f.needed_bytes <= bytes) break;
        if (!give_way(opt, &n_ctx, &n_seq)) return no_room(&f, b, bytes, err);
    }
    uint64_t room = bytes - f.fixed_bytes,
             first = pages_of(n_ctx) * (f.cost.page_bytes + PAGE_TABLE_BYTES);
    if (roomy) room /= 2;
    if (room > 2 * first) fit_requests(&f, &room, b);
    fit_guides(&f, first, &room, b);
    LG_TRY(fit_cache(&f, opt, &room, b, err));
    uint64_t page_bytes = f.cost.page_bytes + (b->opt.n_snap ? PAGE_TABLE_BYTES : 0);
    uint64_t n_page = page_bytes ? room / page_bytes : UINT64_MAX;
    if (n_page < pages_of(n_ctx)) n_page = pages_of(n_ctx);
    uint64_t most = b->opt.n_page + (uint64_t)b->opt.n_snap * SNAP_PAGES;
    b->opt.n_page = (uint32_t)(n_page < most ? n_page : most);
    f.own_bytes += lg_state_bytes(n_seq, b->opt.n_page, n_ctx) -
                   lg_state_bytes(n_seq, n_seq * pages_of(n_ctx), n_ctx);
    b->state_bytes = n_seq * f.cost.slot_bytes + b->opt.n_page * f.cost.page_bytes +
                     b->opt.n_snap * f.cost.snap_bytes +
                     lg_prefix_bytes(b->opt.n_page, b->opt.n_snap) + f.own_bytes;
    b->memory_bytes = bytes;
    b->scratch_bytes = f.cost.scratch_bytes;
    b->page_bytes = f.cost.page_bytes;
    b->snap_bytes = f.cost.snap_bytes;
    return LG_OK;
}
