/* expose.c - what GET /metrics says: the gateway's own counters and the worker's last report.
 *
 * In: lg_gateway_stats, lg_super, lg_stats.   Out: Prometheus text.  Names carry the unit; counters never fall.
 * Thread: gateway.  Test: tests/e2e/test_http.py */
#include "gateway/gateway.h"
#include "gateway/wire/replay.h"

#include <stdio.h>

static const char *const route_name[] = {
    "chat",     "completions", "models",       "live",      "ready",
    "metrics",  "messages",    "count_tokens", "responses", "openapi",
    "tokenize", "detokenize",  "embeddings",   "other"};
/* 499: the client left before its answer was complete. */
static const int status_code[] = {200, 400, 401, 403, 404, 405, 408,
                                  413, 429, 431, 499, 500, 501, 503};

_Static_assert(LG_COUNT(route_name) <= LG_MAX_ROUTE, "rows");
_Static_assert(LG_COUNT(status_code) < LG_MAX_STATUS, "columns, and one for other codes");

void lg_expose_count(lg_gateway *g, uint32_t route, int status) {
    size_t i = 0;
    while (i < LG_COUNT(status_code) && status_code[i] != status) i++;
    g->stats.n_request[route][i]++;
}

static void put_requests(const lg_gateway *g, lg_buf *b) {
    static const char name[] = "lignum_http_requests_total";
    lg_metrics_put_family(b, name, "counter", "Answered requests by route and HTTP status.");
    for (size_t r = 0; r < LG_COUNT(route_name); r++) {
        for (size_t i = 0; i <= LG_COUNT(status_code); i++) {
            char labels[64], code[8] = "other";
            if (g->stats.n_request[r][i] == 0) continue;
            if (i < LG_COUNT(status_code)) snprintf(code, sizeof code, "%d", status_code[i]);
            snprintf(labels, sizeof labels, "route=\"%s\",status=\"%s\"", route_name[r], code);
            lg_metrics_put_u64(b, name, labels, g->stats.n_request[r][i]);
        }
    }
}

/* One sample of a family. */
typedef struct labelled {
    const char *label;
    double v;
} labelled;

static void put_labelled(lg_buf *b, const char *name, const char *type, const char *help,
                         const labelled *v, size_t n) {
    lg_metrics_put_family(b, name, type, help);
    for (size_t i = 0; i < n; i++) lg_metrics_put_f64(b, name, v[i].label, v[i].v);
}

void lg_expose_metrics(const lg_gateway *g, lg_buf *b) {
    const lg_gateway_stats *s = &g->stats;
    const lg_stats *w = lg_supervise_stats(g->sup);
    const lg_info *info = lg_supervise_info(g->sup);
    uint32_t n_sent, n_held;
    lg_supervise_count(g->sup, &n_sent, &n_held);
    uint64_t up = lg_supervise_get_state(g->sup) == LG_SUPER_READY;
    uint64_t n_kept = 0, kept_bytes = 0, n_used = 0;
    if (g->model.replay) lg_replay_count(g->model.replay, &n_kept, &kept_bytes, &n_used);
    uint32_t running = w->n_running < n_sent ? w->n_running : n_sent;
    const struct {
        const char *name, *type, *help;
        uint64_t v;
    } row[] = {
        {"lignum_prompt_tokens_total", "counter", "Prompt tokens of accepted requests.",
         s->n_prompt_tok},
        {"lignum_generated_tokens_total", "counter", "Tokens produced for clients.",
         s->n_generated_tok},
        {"lignum_requests_running", "gauge",
         "Answers that the worker computes (its last report).", running},
        {"lignum_requests_waiting", "gauge",
         "Answers that wait for the worker or a slot in it.", n_held + (n_sent - running)},
        {"lignum_requests_cancelled_total", "counter", "Requests whose client left.",
         s->n_cancelled},
        {"lignum_worker_up", "gauge", "1 while the worker takes requests.", up},
        {"lignum_worker_restarts_total", "counter", "Times the worker was started again.",
         lg_supervise_n_restart(g->sup)},
        {"lignum_worker_slots", "gauge", "Sequence slots.", info->n_seq},
        {"lignum_worker_pages", "gauge", "KV pages.", info->n_page},
        {"lignum_worker_slots_free", "gauge", "Free sequence slots (worker's last report).",
         w->n_slot_free},
        {"lignum_worker_pages_free", "gauge", "Free KV pages (worker's last report).",
         w->n_page_free},
        {"lignum_worker_pages_cached", "gauge",
         "Of the free KV pages, those that hold kept prefixes (worker's last report).",
         w->n_page_cached},
        {"lignum_prefix_snapshots", "gauge", "Kept snapshots (worker's last report).",
         w->n_snapshot},
        {"lignum_prefix_prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
         w->n_prompt_tok},
        {"lignum_prefix_hit_tokens_total", "counter",
         "Of these, tokens reused from kept prefixes.", w->n_hit_tok},
        {"lignum_prefix_evictions_total", "counter", "Snapshots that made room.", w->n_evicted},
        {"lignum_prefix_discarded_total", "counter",
         "Snapshots thrown away after non-finite logits.", w->n_discarded},
        {"lignum_nonfinite_total", "counter", "Answers ended by non-finite logits.",
         w->n_nonfinite},
        {"lignum_steps_total", "counter", "Steps of the model.", w->n_step},
        {"lignum_steps_cut_total", "counter",
         "Steps with fewer prompt tokens than there was room for, to hold up answers no longer "
         "than "
         "--max-stall.",
         w->n_cut_step},
        {"lignum_mixed_steps_total", "counter", "Steps with answers and prompts.",
         w->n_mixed_step},
        {"lignum_requests_held_total", "counter",
         "Requests that waited for a running prompt that begins alike.", w->n_held},
        {"lignum_requests_aged_total", "counter",
         "Requests of a later priority that had waited long enough to go first.", w->n_aged},
        {"lignum_recomputed_tokens_total", "counter",
         "Tokens computed again for requests that were put back.", w->n_again_tok},
        {"lignum_cache_files", "gauge", "Files of kept prefixes (--cache-dir).", w->n_file},
        {"lignum_cache_file_bytes", "gauge", "Their bytes.", w->file_bytes},
        {"lignum_cache_files_written_total", "counter", "Files written.", w->n_file_written},
        {"lignum_cache_file_tokens_total", "counter",
         "Tokens whose state came back from files.", w->n_file_tok},
        {"lignum_cache_files_refused_total", "counter",
         "Damaged or foreign files that were removed.", w->n_file_refused},
        {"lignum_cache_files_skipped_total", "counter",
         "Prefixes that could not be written: full folder or busy disk.", w->n_file_skipped},
        {"lignum_replay_answers", "gauge", "Answers kept in their own ids.", n_kept},
        {"lignum_replay_bytes", "gauge", "Their bytes.", kept_bytes},
        {"lignum_replay_turns_total", "counter", "Turns of prompts that were put in such ids.",
         n_used},
        {"lignum_connections", "gauge", "Open client connections.", s->n_conn},
        {"lignum_connections_total", "counter", "Accepted client connections.",
         s->n_conn_total},
        {"lignum_connections_refused_total", "counter",
         "Connections that were too many, in all or of one address.", s->n_turned_away},
        {"lignum_slow_clients_total", "counter", "Connections closed: the client did not read.",
         s->n_slow},
        {"lignum_timeouts_total", "counter", "Requests that did not arrive in time.",
         s->n_timeout},
    };
    put_requests(g, b);
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        lg_metrics_put_family(b, row[i].name, row[i].type, row[i].help);
        lg_metrics_put_u64(b, row[i].name, NULL, row[i].v);
    }
    put_labelled(
        b, "lignum_preemptions_total", "counter",
        "Requests put back into the queue for want of memory, by what was kept of them.",
        (const labelled[]){{"kept=\"snapshot\"", (double)w->n_preempt_kept},
                           {"kept=\"nothing\"", (double)w->n_preempt_dropped}},
        2);
    put_labelled(
        b, "lignum_mixed_step_seconds_total", "counter",
        "Time of steps with answers and prompts: measured, as expected before, and the sum "
        "of the differences.",
        (const labelled[]){{"what=\"measured\"", (double)w->mixed_us * 1e-6},
                           {"what=\"expected\"", (double)w->mixed_expected_us * 1e-6},
                           {"what=\"error\"", (double)w->mixed_error_us * 1e-6}},
        3);
    put_labelled(b, "lignum_worker_memory_bytes", "gauge",
                 "Memory that the worker planned: the budget, and what it took of it.",
                 (const labelled[]){{"what=\"budget\"", (double)info->memory_bytes},
                                    {"what=\"weights\"", (double)info->weight_bytes},
                                    {"what=\"state\"", (double)info->state_bytes},
                                    {"what=\"scratch\"", (double)info->scratch_bytes}},
                 4);
    lg_metrics_put_hist(b, "lignum_time_to_first_token_seconds",
                        "From the complete request to its first token.", &s->ttft);
    lg_metrics_put_hist(b, "lignum_inter_token_seconds", "Between two tokens of one answer.",
                        &s->itl);
}
