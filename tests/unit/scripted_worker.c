/* scripted_worker.c - a worker without a model: it speaks the link and plays tokens from a file.
 *
 * usage: LG_SCRIPT=FILE lignum serve --worker scripted_worker --model PATH
 * The script has one order on each line:
 *     ctx N            longest sequence                 slots N    requests that play at the same time
 *     step_us N        pause before each round          crash ID   a prompt with this id ends the process by SIGKILL
 *     version N        spoken in HELLO                  garbage N  N bytes that are no frame come after READY
 *     token ID TEXT    the answer to every request, in order; "\n" in TEXT is a line end
 * A request that was produced in part goes on where it was.  What stands in SUBMIT is believed: the tool is for tests of
 * the gateway. */
#include "base/base.h"
#include "link/link.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_TOKEN = 4096, MAX_LIVE = 1024 };

typedef struct request {
    uint64_t id;
    uint32_t n_prompt, n_produced, max;
} request;

typedef struct worker {
    int fd;
    uint32_t n_ctx, n_slot, step_us, crash_id, version, n_garbage, n_token;
    uint32_t token[MAX_TOKEN];
    char text[MAX_TOKEN][32];
    request live[MAX_LIVE]; /* oldest first; the first n_slot play */
    uint32_t n_live;
    bool deadly;
    lg_stats stats;
    lg_buf out;
    lg_link_reader in;
} worker;

static void unescape(char *s) {
    char *w = s;
    for (; *s && *s != '\n'; s++) {
        bool line_end = s[0] == '\\' && s[1] == 'n';
        *w++ = line_end ? '\n' : *s;
        s += line_end;
    }
    *w = 0;
}

static bool load(worker *w, const char *path) {
    char line[256], word[32];
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        unsigned v = 0;
        int at = 0;
        if (sscanf(line, "%31s %u%n", word, &v, &at) < 2) continue;
        if (strcmp(word, "ctx") == 0) w->n_ctx = v;
        if (strcmp(word, "slots") == 0) w->n_slot = v;
        if (strcmp(word, "step_us") == 0) w->step_us = v;
        if (strcmp(word, "version") == 0) w->version = v;
        if (strcmp(word, "garbage") == 0) w->n_garbage = v;
        if (strcmp(word, "crash") == 0) w->crash_id = v;
        if (strcmp(word, "token") != 0 || w->n_token == MAX_TOKEN) continue;
        w->token[w->n_token] = v;
        unescape(line + at + (line[at] == ' '));
        snprintf(w->text[w->n_token++], sizeof w->text[0], "%.31s",
                 line + at + (line[at] == ' '));
    }
    fclose(f);
    return w->n_token > 0;
}

static void send_all(worker *w) {
    size_t at = 0;
    while (at < w->out.len_bytes) {
        ssize_t n = send(w->fd, w->out.data + at, w->out.len_bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(0);
        at += (size_t)n;
    }
    lg_buf_clear(&w->out);
}

static void finish(worker *w, uint32_t i, lg_finish why) {
    const request *r = &w->live[i];
    lg_event e = {.kind = LG_EVENT_DONE,
                  .finish = why,
                  .status = why == LG_FINISH_CANCELLED ? LG_E_CANCELLED : LG_OK,
                  .n_prompt = r->n_prompt,
                  .n_produced = r->n_produced,
                  .text = ""};
    lg_link_put_event(&w->out, r->id, &e);
    memmove(&w->live[i], &w->live[i + 1], (--w->n_live - i) * sizeof w->live[0]);
}

static void take(worker *w, const lg_link_msg *m) {
    if (m->kind == LG_LINK_GOODBYE) _exit(0);
    if (m->kind == LG_LINK_CANCEL)
        for (uint32_t i = 0; i < w->n_live; i++)
            if (w->live[i].id == m->id) {
                finish(w, i, LG_FINISH_CANCELLED);
                w->stats.n_cancelled++;
                return;
            }
    if (m->kind != LG_LINK_SUBMIT) return;
    const lg_request *q = &m->u.submit.req;
    if (w->n_live == MAX_LIVE) {
        lg_link_put_refused(&w->out, m->id, LG_AGAIN, "the queue is full");
        return;
    }
    for (uint32_t i = 0; i < q->n_id; i++) w->deadly |= w->crash_id && q->ids[i] == w->crash_id;
    w->live[w->n_live++] = (request){.id = m->id,
                                     .n_prompt = q->n_id - q->n_produced,
                                     .n_produced = q->n_produced,
                                     .max = q->max_tokens};
    w->stats.n_submitted++;
}

/* One token for each request that plays. */
static void step(worker *w) {
    if (w->step_us) lg_clock_sleep_us(w->step_us);
    if (w->deadly) raise(SIGKILL);
    for (uint32_t i = 0, n = w->n_live < w->n_slot ? w->n_live : w->n_slot; i < n;) {
        request *r = &w->live[i];
        uint32_t at = r->n_produced;
        lg_event e = {.kind = LG_EVENT_TOKEN};
        if (at < w->n_token) {
            e.token = w->token[at];
            e.text = w->text[at];
            e.len_bytes = strlen(e.text);
            lg_link_put_event(&w->out, r->id, &e);
            r->n_produced++;
        }
        if (r->n_produced < w->n_token && (!r->max || r->n_produced < r->max)) {
            i++;
            continue;
        }
        finish(w, i, r->n_produced < w->n_token ? LG_FINISH_LENGTH : LG_FINISH_EOS);
        w->stats.n_done++;
        n--;
    }
    w->stats.n_step++;
}

static void greet(worker *w, const char *model) {
    lg_link_hello h = {.version = w->version, .model_name = "scripted"};
    lg_link_ready r = {.info = {.model_name = "scripted",
                                .n_vocab = 1u << 20,
                                .n_token = 1u << 20,
                                .n_ctx = w->n_ctx,
                                .n_seq = w->n_slot},
                       .params = {.top_p = 1, .repetition_penalty = 1, .n_top = -1}};
    if (lg_link_weights_hash(model, &h.weights_hash, NULL) != LG_OK ||
        lg_link_tokenizer_hash(model, &h.tokenizer_hash, NULL) != LG_OK) {
        lg_link_put_goodbye(&w->out, LG_E_IO, "scripted worker: no such model");
        send_all(w);
        _exit(1);
    }
    lg_link_put_hello(&w->out, &h);
    lg_link_put_ready(&w->out, &r);
    for (uint32_t i = 0; i < w->n_garbage; i++) lg_buf_putc(&w->out, (char)(i * 37 + 11));
    send_all(w);
}

int main(int argc, char **argv) {
    worker *w = lg_mem_alloc(sizeof *w);
    const char *model = ".";
    if (!w) return 1;
    w->n_ctx = 2048;
    w->n_slot = 4;
    w->version = LG_LINK_VERSION;
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--fd") == 0) w->fd = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--model") == 0) model = argv[i + 1];
    }
    if (!load(w, getenv("LG_SCRIPT"))) {
        fprintf(stderr, "scripted_worker: LG_SCRIPT names no script with tokens\n");
        return 1;
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    greet(w, model);
    for (;;) {
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        char block[4096];
        lg_link_msg m;
        lg_err err;
        for (int wait = w->n_live ? 0 : -1; poll(&p, 1, wait) > 0; wait = 0) {
            ssize_t n = recv(w->fd, block, sizeof block, 0);
            if (n <= 0 || lg_link_feed(&w->in, block, (size_t)n) != LG_OK) return 0;
            while (lg_link_next(&w->in, &m, &err) == LG_OK) take(w, &m);
        }
        if (w->n_live) step(w);
        w->stats.n_running = w->n_live < w->n_slot ? w->n_live : w->n_slot;
        w->stats.n_waiting = w->n_live - w->stats.n_running;
        w->stats.n_slot_free = w->n_slot - w->stats.n_running;
        lg_link_put_stats(&w->out, &w->stats);
        send_all(w);
    }
}
