/* replay.c - ids of finished answers, and prompts put together with them: see replay.h.
 *
 * In:  rendered prompts; answers as ids and text.   Out: ids of prompts.
 * How: text is cut at "<|im_start|>" of each turn, where the tokenizer begins anew anyway; so everything is encoded once.  An answer
 * is compared by hashes of its reasoning and of its content and calls, calls as JSON with sorted keys.
 * Thread: any; the list and the table under lock.  Memory: entries up to max_bytes; scratch within a call.  Test: tests/unit/test_replay.c */
#include "gateway/wire/replay.h"

#include "gateway/wire/outparse.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define SIG_BYTES  16
#define N_BUCKET   4096
#define ARGS_DEPTH 64

typedef struct signature {
    uint8_t think[SIG_BYTES], rest[SIG_BYTES]; /* reasoning; content and calls */
} signature;

typedef struct entry entry;
struct entry {
    entry *chain;         /* of the same bucket */
    entry *newer, *older; /* by last use */
    uint8_t key[LG_REPLAY_KEY_BYTES];
    signature sig;
    size_t n;
    uint32_t id[];
};

struct lg_replay {
    size_t max_bytes, n_bytes;
    uint64_t n_kept, n_used;
    uint8_t secret[32]; /* so that nobody can aim at a bucket or a key */
    entry *newest, *oldest;
    entry *bucket[N_BUCKET];
    pthread_mutex_t lock; /* of all but max_bytes and secret */
};

static size_t size_of(const entry *e) {
    return sizeof *e + e->n * sizeof *e->id;
}

/* ---- the list and the table ---- */

static entry **bucket_of(lg_replay *r, const uint8_t *key) {
    uint32_t h;
    memcpy(&h, key, sizeof h);
    return &r->bucket[h % N_BUCKET];
}

static void unlink_use(lg_replay *r, entry *e) {
    *(e->newer ? &e->newer->older : &r->newest) = e->older;
    *(e->older ? &e->older->newer : &r->oldest) = e->newer;
}

static void link_newest(lg_replay *r, entry *e) {
    e->newer = NULL;
    e->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = e;
    r->newest = e;
}

static void drop(lg_replay *r, entry *e) {
    entry **at = bucket_of(r, e->key);
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    unlink_use(r, e);
    r->n_bytes -= size_of(e);
    r->n_kept--;
    lg_mem_free(e);
}

static void use(lg_replay *r, entry *e) {
    unlink_use(r, e);
    link_newest(r, e);
}

lg_status lg_replay_open(size_t max_bytes, lg_replay **r) {
    if (sodium_init() < 0) return LG_E_IO;
    *r = lg_mem_alloc(sizeof **r);
    if (!*r) return LG_E_NOMEM;
    (*r)->max_bytes = max_bytes;
    pthread_mutex_init(&(*r)->lock, NULL);
    randombytes_buf((*r)->secret, sizeof(*r)->secret);
    return LG_OK;
}

void lg_replay_close(lg_replay **r) {
    if (!*r) return;
    while ((*r)->oldest) drop(*r, (*r)->oldest);
    pthread_mutex_destroy(&(*r)->lock);
    LG_FREE(*r);
}

void lg_replay_count(lg_replay *r, uint64_t *n_kept, uint64_t *n_bytes, uint64_t *n_used) {
    pthread_mutex_lock(&r->lock);
    *n_kept = r->n_kept;
    *n_bytes = r->n_bytes;
    *n_used = r->n_used;
    pthread_mutex_unlock(&r->lock);
}

/* ---- what an answer says ---- */

/* Text without white space at its ends: clients and the format take it off or not. */
static void trim(const char **s, size_t *len) {
    while (*len && strchr(" \t\r\n", **s)) {
        ++*s;
        --*len;
    }
    while (*len && strchr(" \t\r\n", (*s)[*len - 1])) --*len;
}

static void hash_text(const char *s, size_t len, uint8_t out[SIG_BYTES]) {
    trim(&s, &len);
    crypto_generichash(out, SIG_BYTES, (const uint8_t *)s, len, NULL, 0);
}

static int by_key(const void *a, const void *b) {
    const lg_json *x = *(const lg_json *const *)a, *y = *(const lg_json *const *)b;
    size_t n = x->key_len < y->key_len ? x->key_len : y->key_len;
    int c = memcmp(x->key, y->key, n);
    return c ? c : x->key_len < y->key_len ? -1 : x->key_len > y->key_len;
}

static void put_sorted(lg_buf *b, const lg_json *v);

static void put_members(lg_buf *b, const lg_json *v) {
    const lg_json **m = lg_mem_calloc(v->n_child, sizeof *m);
    size_t n = 0;
    if (!m) {
        b->failed = true;
        return;
    }
    for (const lg_json *c = v->child; c; c = c->next) m[n++] = c;
    qsort(m, n, sizeof *m, by_key);
    lg_buf_putc(b, '{');
    for (size_t i = 0; i < n; i++) {
        lg_json_put_string(b, m[i]->key, m[i]->key_len);
        lg_buf_putc(b, ':');
        put_sorted(b, m[i]);
        lg_buf_putc(b, ',');
    }
    lg_buf_putc(b, '}');
    lg_mem_free(m);
}

/* A value with the members of its objects in order; numbers as Python prints them.  Depth: the parser's limit. */
static void put_sorted(lg_buf *b, const lg_json *v) {
    if (v->kind == LG_JSON_OBJECT) {
        put_members(b, v);
    } else if (v->kind == LG_JSON_ARRAY) {
        lg_buf_putc(b, '[');
        for (const lg_json *c = v->child; c; c = c->next) {
            put_sorted(b, c);
            lg_buf_putc(b, ',');
        }
        lg_buf_putc(b, ']');
    } else {
        lg_json_put(b, v, LG_JSON_PYTHON);
    }
}

/* Append a call: its name, and its arguments (a value, or text[len] that is JSON).  false: no object. */
static bool put_call(lg_buf *b, const char *name, size_t name_len, const lg_json *args,
                     const char *text, size_t len) {
    lg_json_doc *doc = NULL;
    lg_json_put_string(b, name, name_len);
    trim(&text, &len);
    if (!args && len) {
        if (lg_json_parse(text, len, ARGS_DEPTH, "arguments", &doc, NULL) != LG_OK)
            return false;
        args = lg_json_root(doc);
    }
    bool ok = !args || args->kind == LG_JSON_OBJECT;
    if (ok && args && args->child) put_members(b, args);
    lg_buf_putc(b, ';');
    lg_json_close(&doc);
    return ok;
}

static void seal(signature *sig, const lg_buf *calls, const char *content, size_t len) {
    crypto_generichash_state s;
    trim(&content, &len);
    uint64_t n = len; /* so that content and calls cannot be mixed up */
    crypto_generichash_init(&s, NULL, 0, SIG_BYTES);
    crypto_generichash_update(&s, (const uint8_t *)&n, sizeof n);
    crypto_generichash_update(&s, (const uint8_t *)content, len);
    crypto_generichash_update(&s, (const uint8_t *)lg_buf_str(calls), calls->len_bytes);
    crypto_generichash_final(&s, sig->rest, SIG_BYTES);
}

/* ---- of a message ---- */

static bool put_message_call(lg_buf *b, const lg_json *call) {
    const lg_json *f = lg_json_get(call, "function");
    if (f) call = f;
    const lg_json *name = lg_json_get(call, "name"), *args = lg_json_get(call, "arguments");
    if (!name || name->kind != LG_JSON_STRING) return false;
    if (args && args->kind == LG_JSON_NULL) args = NULL;
    if (args && args->kind == LG_JSON_STRING)
        return put_call(b, name->text, name->text_len, NULL, args->text, args->text_len);
    return put_call(b, name->text, name->text_len, args, "", 0);
}

/* What the client says that the turn was. */
static bool sign_turn(const lg_chat *chat, const lg_chat_turn *t, signature *sig) {
    const char *text = chat->text.data;
    lg_buf calls = {0};
    bool ok = true;
    const lg_json *list = lg_json_get(t->msg, "tool_calls");
    if (list && list->kind == LG_JSON_ARRAY)
        for (const lg_json *c = list->child; c && ok; c = c->next)
            ok = put_message_call(&calls, c);
    hash_text(text + t->think_begin, t->think_end - t->think_begin, sig->think);
    seal(sig, &calls, text + t->content_begin, t->content_end - t->content_begin);
    ok = ok && !calls.failed;
    lg_buf_fini(&calls);
    return ok;
}

/* ---- of an answer ---- */

typedef struct answer {
    lg_buf think, content, calls, name, args;
    uint32_t n_call;
    bool bad;
} answer;

static void end_call(answer *a) {
    if (a->n_call && !put_call(&a->calls, lg_buf_str(&a->name), a->name.len_bytes, NULL,
                               lg_buf_str(&a->args), a->args.len_bytes))
        a->bad = true;
    lg_buf_clear(&a->name);
    lg_buf_clear(&a->args);
}

static void on_part(void *ctx, const lg_part *part) {
    answer *a = ctx;
    lg_buf *to = &a->content;
    if (part->kind == LG_PART_REASONING) to = &a->think;
    if (part->kind == LG_PART_CALL_ARGS) to = &a->args;
    if (part->kind == LG_PART_CALL_BEGIN) {
        end_call(a);
        a->n_call++;
        to = &a->name;
    }
    lg_buf_put(to, part->text, part->len_bytes);
}

static bool sign_answer(const lg_json *tools, bool in_reasoning, bool one_call,
                        const lg_buf *text, signature *sig) {
    answer a = {0};
    lg_outparse *op = NULL;
    bool ok = lg_outparse_open(tools, in_reasoning, &op) == LG_OK &&
              lg_outparse_put(op, lg_buf_str(text), text->len_bytes, on_part, &a) == LG_OK &&
              lg_outparse_end(op, false, on_part, &a) == LG_OK;
    end_call(&a);
    lg_outparse_close(&op);
    if (ok) {
        hash_text(lg_buf_str(&a.think), a.think.len_bytes, sig->think);
        seal(sig, &a.calls, lg_buf_str(&a.content), a.content.len_bytes);
    }
    /* An answer of which the client gets a part only is another turn when it comes back. */
    ok = ok && !a.bad && !(one_call && a.n_call > 1) && (a.n_call || a.content.len_bytes);
    ok = ok && !a.think.failed && !a.content.failed && !a.calls.failed && !a.name.failed &&
         !a.args.failed;
    lg_buf_fini(&a.think);
    lg_buf_fini(&a.content);
    lg_buf_fini(&a.calls);
    lg_buf_fini(&a.name);
    lg_buf_fini(&a.args);
    return ok;
}

/* Put it first, in the place of an earlier one of the same words. */
static void keep(lg_replay *r, const uint8_t *key, const signature *sig, const uint32_t *made,
                 size_t n_made) {
    size_t size = sizeof(entry) + n_made * sizeof *made;
    entry **b = bucket_of(r, key);
    for (entry *e = *b, *next; e; e = next) { /* a later answer of the same words replaces it */
        next = e->chain;
        if (memcmp(e->key, key, sizeof e->key) == 0 && memcmp(&e->sig, sig, sizeof *sig) == 0)
            drop(r, e);
    }
    while (r->n_bytes + size > r->max_bytes) drop(r, r->oldest);
    entry *e = lg_mem_alloc(size);
    if (!e) return;
    memcpy(e->key, key, sizeof e->key);
    e->sig = *sig;
    e->n = n_made;
    memcpy(e->id, made, n_made * sizeof *made);
    e->chain = *b;
    *b = e;
    link_newest(r, e);
    r->n_bytes += size;
    r->n_kept++;
}

void lg_replay_put(lg_replay *r, const uint8_t key[LG_REPLAY_KEY_BYTES], const lg_json *tools,
                   bool in_reasoning, bool one_call, const lg_buf *text, const uint32_t *made,
                   size_t n_made) {
    signature sig;
    size_t size = sizeof(entry) + n_made * sizeof *made;
    if (n_made == 0 || size > r->max_bytes / 4 || text->failed) return;
    if (!sign_answer(tools, in_reasoning, one_call, text, &sig)) return;
    pthread_mutex_lock(&r->lock);
    keep(r, key, &sig, made, n_made);
    pthread_mutex_unlock(&r->lock);
}

/* ---- prompts ---- */

typedef struct prompt {
    lg_replay *r;
    const lg_chat *chat;
    lg_tokenizer *tok;
    lg_ids *ids;
    size_t i_span; /* first span that may reach beyond what is encoded */
    crypto_generichash_state hash;
    lg_err *err;
} prompt;

/* Append the ids of text[begin, end) and hash them. */
static lg_status encode(prompt *p, size_t begin, size_t end) {
    const lg_chat *c = p->chat;
    size_t before = p->ids->n, n = 0;
    while (p->i_span < c->n_span && c->span[p->i_span].end <= begin) p->i_span++;
    for (size_t i = p->i_span; i < c->n_span && c->span[i].begin < end; i++) n++;
    if (n == 0) return LG_OK;
    lg_span *span = lg_mem_calloc(n, sizeof *span);
    if (!span) return LG_FAIL(p->err, LG_E_NOMEM, "chat: out of memory");
    for (size_t i = 0; i < n; i++) {
        const lg_span *s = &c->span[p->i_span + i];
        span[i].begin = (s->begin > begin ? s->begin : begin) - begin;
        span[i].end = (s->end < end ? s->end : end) - begin;
        span[i].control = s->control;
    }
    lg_status st = lg_tokenizer_encode(p->tok, c->text.data + begin, end - begin, span, n, true,
                                       p->ids, p->err);
    lg_mem_free(span);
    if (st != LG_OK) return st;
    crypto_generichash_update(&p->hash, (const uint8_t *)(p->ids->id + before),
                              (p->ids->n - before) * sizeof *p->ids->id);
    return LG_OK;
}

static void get_key(const prompt *p, uint8_t key[LG_REPLAY_KEY_BYTES]) {
    crypto_generichash_state s = p->hash;
    crypto_generichash_final(&s, key, LG_REPLAY_KEY_BYTES);
}

/* The kept answer of a turn; its reasoning may be missing. */
static entry *find(prompt *p, const uint8_t *key, const signature *sig, bool no_reasoning) {
    entry *e = *bucket_of(p->r, key);
    for (; e; e = e->chain) {
        if (memcmp(e->key, key, sizeof e->key) != 0 ||
            memcmp(e->sig.rest, sig->rest, SIG_BYTES) != 0)
            continue;
        if (no_reasoning || memcmp(e->sig.think, sig->think, SIG_BYTES) == 0) break;
    }
    return e;
}

static lg_status push_all(prompt *p, const uint32_t *id, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (lg_ids_push(p->ids, id[i]) != LG_OK)
            return LG_FAIL(p->err, LG_E_NOMEM, "chat: out of memory");
    crypto_generichash_update(&p->hash, (const uint8_t *)id, n * sizeof *id);
    return LG_OK;
}

/* Put the kept answer in the place of a turn, if there is one behind either way to ask for it.  *done: it is put. */
static lg_status replace(prompt *p, const lg_chat_turn *t, bool *done) {
    static const char *const heads[] = {"<|im_start|>assistant\n<think>\n",
                                        "<|im_start|>assistant\n<think>\n\n</think>\n\n"};
    signature sig;
    bool no_reasoning = t->think_begin == t->think_end;
    *done = false;
    if (!sign_turn(p->chat, t, &sig)) return LG_OK;
    for (size_t i = 0; i < (no_reasoning ? 2u : 1u) && !*done; i++) {
        const crypto_generichash_state was = p->hash;
        uint8_t key[LG_REPLAY_KEY_BYTES];
        lg_ids head = {0};
        size_t n_was = p->ids->n;
        lg_status st = lg_tokenizer_encode(p->tok, heads[i], strlen(heads[i]), NULL, 0, true,
                                           &head, p->err);
        if (st == LG_OK) st = push_all(p, head.id, head.n);
        lg_ids_fini(&head);
        if (st != LG_OK) return st;
        get_key(p, key);
        pthread_mutex_lock(&p->r->lock);
        entry *e = find(p, key, &sig, no_reasoning);
        if (e) {
            st = push_all(p, e->id, e->n);
            use(p->r, e);
            p->r->n_used++;
            *done = true;
        }
        pthread_mutex_unlock(&p->r->lock);
        if (st != LG_OK) return st;
        if (!*done) {
            p->ids->n = n_was;
            p->hash = was;
        }
    }
    return LG_OK;
}

static lg_status encode_all(prompt *p) {
    const lg_chat *c = p->chat;
    size_t at = 0;
    for (size_t i = 0; i < c->n_turn; i++) {
        bool done;
        LG_TRY(encode(p, at, c->turn[i].begin));
        LG_TRY(replace(p, &c->turn[i], &done));
        at = done ? c->turn[i].end : c->turn[i].begin;
    }
    return encode(p, at, c->text.len_bytes);
}

lg_status lg_replay_encode(lg_replay *r, uint64_t tenant, const lg_chat *chat,
                           lg_tokenizer *tok, lg_ids *ids, uint8_t key[LG_REPLAY_KEY_BYTES],
                           lg_err *err) {
    prompt p = {.r = r, .chat = chat, .tok = tok, .ids = ids, .err = err};
    size_t n_was = ids->n;
    crypto_generichash_init(&p.hash, r->secret, sizeof r->secret, LG_REPLAY_KEY_BYTES);
    crypto_generichash_update(&p.hash, (const uint8_t *)&tenant, sizeof tenant);
    lg_status st = encode_all(&p);
    if (st == LG_OK) {
        get_key(&p, key);
    } else {
        ids->n = n_was;
    }
    return st;
}
