/* scripted_worker.c - a worker without a model: it speaks the link and plays tokens from a file.
 *
 * usage: LG_SCRIPT=FILE lignum serve --worker scripted_worker --model PATH
 * The script has one order on each line:
 *     ctx N            longest sequence                 slots N    requests that play at the same time
 *     step_us N        pause before each round          crash ID   a prompt with this id ends the process by SIGKILL
 *     version N        spoken in HELLO                  garbage N  N bytes that are no frame come after READY
 *     fail N           answers end with an error after N tokens
 *     stamp 1          the text of a token is "T|" with the time at which it was made, in microseconds (CLOCK_MONOTONIC)
 *     cached N         so many tokens of the first prompt count as kept from earlier, twice as many of the second, and so on
 *     spread 1         the tokens of a round come one by one, with equal pauses that together are step_us
 *     token ID TEXT    the answer to every request, in order; "\n" in TEXT is a line end
 *     when "TEXT"      the next answer is for prompts that hold TEXT; several must all be there
 *     say "TEXT"       an answer as text, in the tokens of the model's own tokenizer; ends what `when` began
 * TEXT of the last two is a JSON string.  The first answer that fits a prompt is played, else the tokens; a prompt that fits
 * nothing is refused.  A request that was produced in part goes on where it was.  What stands in SUBMIT is believed: the tool is for tests of
 * the gateway. */
#include "base/base.h"
#include "base/json.h"
#include "link/link.h"
#include "model/text/tokenizer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_LIVE = 1024, MAX_ANSWER = 256, MAX_WHEN = 8 };

typedef struct piece {
    uint32_t id;
    char *text;
} piece;

typedef struct answer {
    char *when[MAX_WHEN];
    uint32_t n_when;
    piece *token;
    uint32_t n_token, cap;
} answer;

typedef struct request {
    uint64_t id;
    uint32_t n_prompt, n_produced, max, n_cached;
    const answer *answer;
} request;

typedef struct worker {
    int fd;
    uint32_t n_ctx, n_slot, step_us, crash_id, version, n_garbage, fail, stamp, spread, cached;
    answer plain;              /* the `token` lines */
    answer answer[MAX_ANSWER]; /* the `say` lines; [n_answer] is being made */
    uint32_t n_answer;
    lg_tokenizer *tok;      /* NULL without `say` */
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

static void add_token(answer *a, uint32_t id, const char *text, size_t len_bytes) {
    if (a->n_token == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 64;
        a->token = lg_mem_realloc(a->token, a->cap * sizeof *a->token);
    }
    char *copy = lg_mem_alloc(len_bytes + 1);
    if (!a->token || !copy) abort();
    memcpy(copy, text, len_bytes);
    a->token[a->n_token++] = (piece){id, copy};
}

/* The tokens of a text, each with the text that the engine would send with it. */
static bool add_text(worker *w, answer *a, const char *model, const lg_json *text) {
    lg_ids ids = {0};
    lg_detok detok;
    lg_buf out = {0};
    lg_err err = {0};
    if (!w->tok && lg_tokenizer_open(model, &w->tok, &err) != LG_OK) {
        fprintf(stderr, "scripted_worker: %s\n", err.msg);
        return false;
    }
    if (lg_tokenizer_encode(w->tok, text->text, text->text_len, NULL, 0, true, &ids, &err) !=
        LG_OK)
        return false;
    lg_detok_init(&detok, w->tok, true);
    for (size_t i = 0; i < ids.n; i++) {
        lg_buf_clear(&out);
        lg_detok_put(&detok, ids.id[i], &out);
        if (i + 1 == ids.n) lg_detok_finish(&detok, &out);
        add_token(a, ids.id[i], lg_buf_str(&out), out.len_bytes);
    }
    lg_ids_fini(&ids);
    lg_buf_fini(&out);
    return true;
}

/* A line with a JSON string. */
static bool take_text(worker *w, const char *model, const char *word, const char *json) {
    lg_json_doc *doc = NULL;
    answer *a = &w->answer[w->n_answer];
    if (w->n_answer == MAX_ANSWER ||
        lg_json_parse(json, strlen(json), 1, "script", &doc, NULL) != LG_OK)
        return false;
    const lg_json *text = lg_json_root(doc);
    bool ok = text->kind == LG_JSON_STRING && text->text_len > 0;
    if (ok && strcmp(word, "say") == 0) {
        ok = add_text(w, a, model, text);
        w->n_answer++;
    } else if (ok) {
        ok = a->n_when < MAX_WHEN;
        if (ok) a->when[a->n_when++] = strdup(text->text);
    }
    lg_json_close(&doc);
    return ok;
}

static bool load(worker *w, const char *path, const char *model) {
    char *line = NULL, word[32];
    size_t cap = 0;
    bool ok = true;
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return false;
    while (ok && getline(&line, &cap, f) > 0) {
        unsigned v = 0;
        int at = 0;
        if (sscanf(line, "%31s %n", word, &at) < 1) continue;
        if (strcmp(word, "say") == 0 || strcmp(word, "when") == 0) {
            ok = take_text(w, model, word, line + at);
            continue;
        }
        if (sscanf(line, "%31s %u%n", word, &v, &at) < 2) continue;
        if (strcmp(word, "ctx") == 0) w->n_ctx = v;
        if (strcmp(word, "slots") == 0) w->n_slot = v;
        if (strcmp(word, "step_us") == 0) w->step_us = v;
        if (strcmp(word, "version") == 0) w->version = v;
        if (strcmp(word, "garbage") == 0) w->n_garbage = v;
        if (strcmp(word, "crash") == 0) w->crash_id = v;
        if (strcmp(word, "fail") == 0) w->fail = v;
        if (strcmp(word, "stamp") == 0) w->stamp = v;
        if (strcmp(word, "spread") == 0) w->spread = v;
        if (strcmp(word, "cached") == 0) w->cached = v;
        if (strcmp(word, "token") != 0) continue;
        char *text = line + at + (line[at] == ' ');
        unescape(text);
        add_token(&w->plain, v, text, strlen(text));
    }
    free(line);
    fclose(f);
    return ok && w->plain.n_token + w->n_answer > 0;
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
                  .status = why == LG_FINISH_CANCELLED ? LG_E_CANCELLED
                            : why == LG_FINISH_ERROR   ? LG_E_BACKEND
                                                       : LG_OK,
                  .n_prompt = r->n_prompt,
                  .n_produced = r->n_produced,
                  .n_cached = r->n_cached,
                  .text = ""};
    lg_link_put_event(&w->out, r->id, &e);
    memmove(&w->live[i], &w->live[i + 1], (--w->n_live - i) * sizeof w->live[0]);
}

/* The answer to a prompt, or NULL. */
static const answer *find_answer(const worker *w, const lg_request *q) {
    lg_buf prompt = {0};
    const answer *found = w->plain.n_token ? &w->plain : NULL;
    for (uint32_t i = 0; w->tok && i < q->n_id - q->n_produced; i++) {
        const char *s;
        size_t len;
        bool added, special;
        if (lg_tokenizer_piece(w->tok, q->ids[i], &s, &len, &added, &special))
            lg_buf_put(&prompt, s, len);
    }
    for (uint32_t i = w->n_answer; i-- > 0;) {
        const answer *a = &w->answer[i];
        bool fits = true;
        for (uint32_t k = 0; k < a->n_when && fits; k++)
            fits = strstr(lg_buf_str(&prompt), a->when[k]) != NULL;
        if (fits) found = a;
    }
    lg_buf_fini(&prompt);
    return found;
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
    const answer *a = find_answer(w, q);
    if (!a) {
        lg_link_put_refused(&w->out, m->id, LG_E_ARG, "the script has no answer to this");
        return;
    }
    for (uint32_t i = 0; i < q->n_id; i++) w->deadly |= w->crash_id && q->ids[i] == w->crash_id;
    w->live[w->n_live++] = (request){.id = m->id,
                                     .n_prompt = q->n_id - q->n_produced,
                                     .n_produced = q->n_produced,
                                     .max = q->max_tokens,
                                     .answer = a};
    w->live[w->n_live - 1].n_cached = w->cached * (uint32_t)++w->stats.n_submitted;
}

/* One token for each request that plays. */
static void step(worker *w) {
    if (w->step_us && !w->spread) lg_clock_sleep_us(w->step_us);
    if (w->deadly) raise(SIGKILL);
    char stamp[32];
    snprintf(stamp, sizeof stamp, "%llu|", (unsigned long long)lg_clock_us());
    uint32_t pause_us = w->spread ? w->step_us / w->n_live : 0;
    for (uint32_t i = 0, n = w->n_live < w->n_slot ? w->n_live : w->n_slot; i < n;) {
        if (pause_us) {
            send_all(w);
            lg_clock_sleep_us(pause_us);
            snprintf(stamp, sizeof stamp, "%llu|", (unsigned long long)lg_clock_us());
        }
        request *r = &w->live[i];
        const answer *a = r->answer;
        uint32_t at = r->n_produced;
        lg_event e = {.kind = LG_EVENT_TOKEN, .n_cached = r->n_cached};
        bool failed = w->fail && at >= w->fail;
        if (at < a->n_token && !failed) {
            e.token = a->token[at].id;
            e.text = w->stamp ? stamp : a->token[at].text;
            e.len_bytes = strlen(e.text);
            lg_link_put_event(&w->out, r->id, &e);
            r->n_produced++;
        }
        if (!failed && r->n_produced < a->n_token && (!r->max || r->n_produced < r->max)) {
            i++;
            continue;
        }
        finish(w, i,
               failed                       ? LG_FINISH_ERROR
               : r->n_produced < a->n_token ? LG_FINISH_LENGTH
                                            : LG_FINISH_EOS);
        w->stats.n_done++;
        n--;
    }
    w->stats.n_step++;
}

static void greet(worker *w, const char *model) {
    lg_link_hello h = {.version = w->version, .model_name = "scripted"};
    lg_link_ready r = {.info = {.model_name = "scripted",
                                .kv = LG_KV_F16,
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
    if (!load(w, getenv("LG_SCRIPT"), model)) {
        fprintf(stderr, "scripted_worker: LG_SCRIPT names no script with an answer\n");
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
