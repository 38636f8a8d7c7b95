/* keys.c - hashed keys, their roles and limits: see keys.h.
 *
 * In: the keys file, presented keys.   Out: entries, refusals, rate headers.
 * Invariants: an entry stays at its address over reloads while its name stays; a removed one lives until nobody
 * holds it.  No message holds a hash or a key.  Thread: gateway.  Test: tests/unit/test_keys.c, fuzz/fuzz_keys.c */
#include "gateway/keys.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_PREFIX "blake2b:"

_Static_assert(LG_KEYS_HASH_BYTES == crypto_generichash_BYTES, "BLAKE2b-256");

struct lg_keys {
    const char *path; /* borrowed; NULL when parsed from text */
    lg_key *first;
    lg_key *retired;
};

static const char *const role_name[] = {"user", "admin", "metrics"};

static const struct {
    const char *name;
    size_t at;
    uint64_t max;
} limit_field[] = {
    {"requests_per_minute", offsetof(lg_key_limits, requests_per_minute), 1000000000},
    {"tokens_per_minute", offsetof(lg_key_limits, tokens_per_minute), 1000000000000},
    {"concurrent", offsetof(lg_key_limits, concurrent), 1000000},
    {"max_context", offsetof(lg_key_limits, max_context), 1u << 22},
};

static const uint64_t *limit_of(const lg_key_limits *limits, size_t i) {
    return (const uint64_t *)(const void *)((const char *)limits + limit_field[i].at);
}

/* ---- Small things ---- */

void lg_keys_wipe(void *data, size_t len_bytes) {
    if (data) sodium_memzero(data, len_bytes);
}

bool lg_keys_is_name(const char *name, size_t len_bytes) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.@";
    if (len_bytes == 0 || len_bytes > LG_KEYS_NAME_BYTES) return false;
    for (size_t i = 0; i < len_bytes; i++)
        if (!memchr(allowed, name[i], sizeof allowed - 1)) return false;
    return true;
}

bool lg_keys_role_of(const char *text, lg_key_role *role) {
    for (size_t i = 0; i < LG_COUNT(role_name); i++) {
        if (strcmp(text, role_name[i]) != 0) continue;
        *role = (lg_key_role)i;
        return true;
    }
    return false;
}

const char *lg_keys_role_name(lg_key_role role) {
    return role_name[role];
}

void lg_keys_hash(const char *key, size_t len_bytes, uint8_t hash[LG_KEYS_HASH_BYTES]) {
    int rc =
        crypto_generichash(hash, LG_KEYS_HASH_BYTES, (const uint8_t *)key, len_bytes, NULL, 0);
    LG_ASSERT(rc == 0);
}

void lg_keys_put_hash(const uint8_t hash[LG_KEYS_HASH_BYTES], lg_buf *out) {
    char hex[2 * LG_KEYS_HASH_BYTES + 1];
    sodium_bin2hex(hex, sizeof hex, hash, LG_KEYS_HASH_BYTES);
    lg_buf_printf(out, HASH_PREFIX "%s", hex);
}

lg_status lg_keys_draw(char key[LG_KEYS_TEXT_BYTES], lg_err *err) {
    uint8_t bytes[32];
    if (sodium_init() < 0) return LG_FAIL(err, LG_E_IO, "the system gives no random numbers");
    randombytes_buf(bytes, sizeof bytes);
    memcpy(key, "lg-", 3);
    sodium_bin2base64(key + 3, LG_KEYS_TEXT_BYTES - 3, bytes, sizeof bytes,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(bytes, sizeof bytes);
    return LG_OK;
}

/* ---- One line ---- */

static lg_status read_hash(const lg_json *v, const char *what, lg_key *k, lg_err *err) {
    static const size_t prefix = sizeof HASH_PREFIX - 1;
    size_t n = 0;
    const char *end = NULL;
    if (v->kind != LG_JSON_STRING || v->text_len != prefix + 2 * LG_KEYS_HASH_BYTES ||
        strncmp(v->text, HASH_PREFIX, prefix) != 0 ||
        sodium_hex2bin(k->hash, sizeof k->hash, v->text + prefix, v->text_len - prefix, NULL,
                       &n, &end) != 0 ||
        n != sizeof k->hash)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: \"hash\": expected \"" HASH_PREFIX "\" and 64 hexadecimal digits",
                       what);
    return LG_OK;
}

static lg_status read_member(const lg_json *v, const char *what, lg_key *k, lg_err *err) {
    if (strcmp(v->key, "name") == 0) {
        if (v->kind != LG_JSON_STRING || !lg_keys_is_name(v->text, v->text_len))
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: \"name\": expected 1 to %u letters, digits or any of -_.@",
                           what, LG_KEYS_NAME_BYTES);
        memcpy(k->name, v->text, v->text_len + 1);
        return LG_OK;
    }
    if (strcmp(v->key, "role") == 0) {
        if (v->kind != LG_JSON_STRING || v->text_len != strlen(v->text) ||
            !lg_keys_role_of(v->text, &k->role))
            return LG_FAIL(err, LG_E_FORMAT, "%s: \"role\": expected user, admin or metrics",
                           what);
        return LG_OK;
    }
    if (strcmp(v->key, "hash") == 0) return read_hash(v, what, k, err);
    for (size_t i = 0; i < LG_COUNT(limit_field); i++) {
        uint64_t x;
        if (strcmp(v->key, limit_field[i].name) != 0) continue;
        if (!lg_json_u64(v, &x) || x == 0 || x > limit_field[i].max)
            return LG_FAIL(err, LG_E_FORMAT, "%s: \"%s\": expected a whole number from 1", what,
                           limit_field[i].name);
        memcpy((char *)&k->limits + limit_field[i].at, &x, sizeof x);
        return LG_OK;
    }
    if (strcmp(v->key, "priority") == 0) {
        int64_t x;
        if (!lg_json_i64(v, &x) || x < -LG_KEYS_MAX_PRIORITY || x > LG_KEYS_MAX_PRIORITY)
            return LG_FAIL(err, LG_E_FORMAT,
                           "%s: \"priority\": expected a whole number from -%d to %d", what,
                           LG_KEYS_MAX_PRIORITY, LG_KEYS_MAX_PRIORITY);
        k->priority = (int32_t)x;
        return LG_OK;
    }
    return LG_FAIL(err, LG_E_FORMAT, "%s: unknown member \"%.40s\"", what, v->key);
}

/* Each of the needed members exactly once, no other twice. */
static lg_status check_members(const lg_json *root, const char *what, lg_err *err) {
    static const char *const needed[] = {"name", "role", "hash"};
    for (size_t i = 0; i < LG_COUNT(needed); i++)
        if (!lg_json_get(root, needed[i]))
            return LG_FAIL(err, LG_E_FORMAT, "%s: \"%s\" is missing", what, needed[i]);
    for (const lg_json *a = root->child; a; a = a->next)
        if (lg_json_get(root, a->key) != a) /* the last one of that name */
            return LG_FAIL(err, LG_E_FORMAT, "%s: \"%.40s\" appears twice", what, a->key);
    return LG_OK;
}

lg_status lg_keys_read_line(const char *line, size_t len_bytes, const char *what, lg_key *k,
                            lg_err *err) {
    lg_json_doc *doc = NULL;
    size_t skip = 0;
    while (skip < len_bytes && (line[skip] == ' ' || line[skip] == '\t' || line[skip] == '\r'))
        skip++;
    if (skip == len_bytes || line[skip] == '#') return LG_AGAIN;
    LG_TRY(lg_json_parse(line, len_bytes, 2, what, &doc, err));
    const lg_json *root = lg_json_root(doc);
    lg_status st = LG_OK;
    *k = (lg_key){0};
    if (root->kind != LG_JSON_OBJECT || root->n_child > 16) {
        st = LG_FAIL(err, LG_E_FORMAT, "%s: expected a JSON object that describes one key",
                     what);
        goto done;
    }
    for (const lg_json *v = root->child; v; v = v->next)
        LG_TRY_GOTO(read_member(v, what, k, err), st, done);
    st = check_members(root, what, err);
done:
    lg_json_close(&doc);
    return st;
}

void lg_keys_put_line(const lg_key *k, lg_buf *out) {
    lg_buf_printf(out, "{\"name\": \"%s\", \"role\": \"%s\", \"hash\": \"", k->name,
                  role_name[k->role]);
    lg_keys_put_hash(k->hash, out);
    lg_buf_puts(out, "\"");
    for (size_t i = 0; i < LG_COUNT(limit_field); i++) {
        uint64_t v = *limit_of(&k->limits, i);
        if (v) lg_buf_printf(out, ", \"%s\": %llu", limit_field[i].name, (unsigned long long)v);
    }
    if (k->priority) lg_buf_printf(out, ", \"priority\": %d", (int)k->priority);
    lg_buf_puts(out, "}\n");
}

int32_t lg_keys_priority(const lg_key *k, bool has_asked, int32_t asked) {
    if (!k) return has_asked ? asked : 0;
    return has_asked && asked > k->priority ? asked : k->priority;
}

/* ---- Files ---- */

static void free_list(lg_key *k) {
    while (k) {
        lg_key *next = k->next;
        sodium_memzero(k, sizeof *k);
        lg_mem_free(k);
        k = next;
    }
}

static lg_status check_new(const lg_key *list, const lg_key *k, const char *what, lg_err *err) {
    for (; list; list = list->next) {
        if (strcmp(list->name, k->name) == 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: the name %s appears twice", what, k->name);
        if (memcmp(list->hash, k->hash, sizeof k->hash) == 0)
            return LG_FAIL(err, LG_E_FORMAT, "%s: %s and %s have the same key", what,
                           list->name, k->name);
    }
    return LG_OK;
}

static lg_status parse_list(const char *text, size_t len, const char *what, lg_key **list,
                            lg_err *err) {
    lg_key *first = NULL, **tail = &first, k;
    lg_status st = LG_OK;
    size_t n_line = 0, n_key = 0;
    for (size_t at = 0; at < len;) {
        char place[160];
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : len - at;
        snprintf(place, sizeof place, "%.120s: line %zu", what, ++n_line);
        st = lg_keys_read_line(text + at, n, place, &k, err);
        at += n + 1;
        if (st == LG_AGAIN) continue;
        if (st != LG_OK) goto fail;
        LG_TRY_GOTO(check_new(first, &k, place, err), st, fail);
        lg_key *copy = n_key++ < LG_KEYS_MAX ? lg_mem_alloc(sizeof *copy) : NULL;
        if (!copy) {
            st = LG_FAIL(err, LG_E_NOMEM, "%s: no room for more than %zu keys", place,
                         n_key - 1);
            goto fail;
        }
        *copy = k;
        *tail = copy;
        tail = &copy->next;
    }
    *list = first;
    return LG_OK;
fail:
    free_list(first);
    return st;
}

static lg_status read_file(const char *path, lg_buf *text, lg_err *err) {
    struct stat s;
    char block[4096];
    ssize_t n = 0;
    lg_status st = LG_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
        st = LG_FAIL(err, LG_E_IO, "%s: not a regular file", path);
    else if (s.st_mode & S_IWOTH)
        st = LG_FAIL(err, LG_E_ARG, "%s: anybody may write this file; chmod o-w it", path);
    while (st == LG_OK && (n = read(fd, block, sizeof block)) > 0) {
        lg_buf_put(text, block, (size_t)n);
        if (text->len_bytes > LG_KEYS_FILE_BYTES)
            st = LG_FAIL(err, LG_E_FORMAT, "%s: longer than 4 MiB", path);
    }
    if (st == LG_OK && n < 0) st = LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    if (st == LG_OK && text->failed) st = LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    close(fd);
    return st;
}

static lg_status load(const char *path, lg_key **list, lg_err *err) {
    lg_buf text = {0};
    lg_status st = read_file(path, &text, err);
    if (st == LG_OK) st = parse_list(lg_buf_str(&text), text.len_bytes, path, list, err);
    lg_keys_wipe(text.data, text.len_bytes);
    lg_buf_fini(&text);
    return st;
}

lg_status lg_keys_parse(const char *text, size_t len_bytes, const char *what, lg_keys **keys,
                        lg_err *err) {
    lg_keys *ks = lg_mem_alloc(sizeof *ks);
    if (!ks) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", what);
    lg_status st = parse_list(text, len_bytes, what, &ks->first, err);
    if (st != LG_OK)
        lg_mem_free(ks);
    else
        *keys = ks;
    return st;
}

lg_status lg_keys_open(const char *path, lg_keys **keys, lg_err *err) {
    if (sodium_init() < 0) return LG_FAIL(err, LG_E_IO, "the system gives no random numbers");
    lg_keys *ks = lg_mem_alloc(sizeof *ks);
    if (!ks) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    ks->path = path;
    lg_status st = load(path, &ks->first, err);
    if (st != LG_OK)
        lg_mem_free(ks);
    else
        *keys = ks;
    return st;
}

/* Take over an entry of the new list: the old one of that name, brought up to date, or the new one itself. */
static lg_key *merge(lg_keys *ks, lg_key *fresh) {
    lg_key **at = &ks->first;
    while (*at && strcmp((*at)->name, fresh->name) != 0) at = &(*at)->next;
    lg_key *old = *at;
    if (!old) return fresh;
    *at = old->next;
    if (memcmp(&old->limits, &fresh->limits, sizeof old->limits) != 0) old->filled_us = 0;
    old->role = fresh->role;
    old->limits = fresh->limits;
    old->priority = fresh->priority;
    memcpy(old->hash, fresh->hash, sizeof old->hash);
    fresh->next = NULL;
    free_list(fresh);
    return old;
}

lg_status lg_keys_reload(lg_keys *ks, lg_err *err) {
    lg_key *fresh = NULL, *first = NULL, **tail = &first;
    LG_TRY(load(ks->path, &fresh, err));
    while (fresh) {
        lg_key *next = fresh->next;
        *tail = merge(ks, fresh);
        tail = &(*tail)->next;
        *tail = NULL;
        fresh = next;
    }
    for (lg_key *k = ks->first, *next; k; k = next) { /* removed ones */
        next = k->next;
        k->next = NULL;
        k->retired = true;
        if (k->n_held == 0) {
            free_list(k);
        } else {
            k->next = ks->retired;
            ks->retired = k;
        }
    }
    ks->first = first;
    return LG_OK;
}

void lg_keys_close(lg_keys **keys) {
    if (!*keys) return;
    free_list((*keys)->first);
    free_list((*keys)->retired);
    LG_FREE(*keys);
}

const lg_key *lg_keys_first(const lg_keys *ks) {
    return ks->first;
}

lg_key *lg_keys_find(lg_keys *ks, const char *key, size_t len_bytes) {
    uint8_t hash[LG_KEYS_HASH_BYTES];
    lg_key *found = NULL;
    lg_keys_hash(key, len_bytes, hash);
    for (lg_key *k = ks->first; k; k = k->next) /* no early end */
        if (sodium_memcmp(k->hash, hash, sizeof hash) == 0) found = k;
    sodium_memzero(hash, sizeof hash);
    return found;
}

/* ---- Limits ---- */

static void fill(lg_key *k, uint64_t now_us) {
    double cap_req = (double)k->limits.requests_per_minute;
    double cap_tok = (double)k->limits.tokens_per_minute;
    if (k->filled_us == 0) {
        k->requests = cap_req;
        k->tokens = cap_tok;
    } else {
        double minutes = (double)(now_us - k->filled_us) / 60e6;
        k->requests = fmin(cap_req, k->requests + cap_req * minutes);
        k->tokens = fmin(cap_tok, k->tokens + cap_tok * minutes);
    }
    k->filled_us = now_us ? now_us : 1;
}

/* Seconds until a bucket holds `want`, at least 1. */
static uint32_t wait_s(double have, double want, uint64_t per_minute) {
    double s = ceil((want - have) * 60 / (double)per_minute);
    return s < 1 ? 1 : s > 86400 ? 86400 : (uint32_t)s;
}

bool lg_keys_count(lg_key *k, uint64_t now_us, lg_keys_refusal *why) {
    fill(k, now_us);
    if (!k->limits.requests_per_minute) return true;
    if (k->requests < 1) {
        *why = (lg_keys_refusal){.http = 429, .code = "rate_limit_exceeded"};
        why->retry_s = wait_s(k->requests, 1, k->limits.requests_per_minute);
        snprintf(why->msg, sizeof why->msg, "this key may send %llu requests a minute",
                 (unsigned long long)k->limits.requests_per_minute);
        return false;
    }
    k->requests -= 1;
    return true;
}

static bool check_context(const lg_key *k, uint64_t n_prompt, uint32_t *max_tokens,
                          lg_keys_refusal *why) {
    uint64_t cap = k->limits.max_context;
    if (!cap) return true;
    if (n_prompt >= cap || *max_tokens > cap - n_prompt) {
        *why = (lg_keys_refusal){.http = 400, .code = "context_length_exceeded"};
        snprintf(why->msg, sizeof why->msg,
                 "this key may use %llu tokens of context; the prompt has %llu and %u more are "
                 "asked for",
                 (unsigned long long)cap, (unsigned long long)n_prompt, *max_tokens);
        return false;
    }
    if (*max_tokens == 0) *max_tokens = (uint32_t)(cap - n_prompt);
    return true;
}

bool lg_keys_begin(lg_key *k, uint64_t n_prompt, uint32_t *max_tokens, uint64_t now_us,
                   lg_keys_refusal *why) {
    const lg_key_limits *l = &k->limits;
    if (!check_context(k, n_prompt, max_tokens, why)) return false;
    if (l->concurrent && k->n_active >= l->concurrent) {
        *why = (lg_keys_refusal){.http = 429, .code = "rate_limit_exceeded", .retry_s = 1};
        snprintf(why->msg, sizeof why->msg, "this key may have %llu requests at the same time",
                 (unsigned long long)l->concurrent);
        return false;
    }
    fill(k, now_us);
    /* A prompt larger than the bucket is let in when the bucket is full: it then waits longer afterwards. */
    double want = fmin((double)n_prompt, (double)l->tokens_per_minute);
    if (want < 1) want = 1;
    if (l->tokens_per_minute && k->tokens < want) {
        *why = (lg_keys_refusal){.http = 429, .code = "rate_limit_exceeded"};
        why->retry_s = wait_s(k->tokens, want, l->tokens_per_minute);
        snprintf(why->msg, sizeof why->msg, "this key may use %llu tokens a minute",
                 (unsigned long long)l->tokens_per_minute);
        return false;
    }
    k->tokens -= (double)n_prompt;
    k->n_active++;
    return true;
}

void lg_keys_spend(lg_key *k, uint32_t n_token) {
    k->tokens -= (double)n_token;
}

void lg_keys_end(lg_key *k) {
    LG_ASSERT(k->n_active > 0);
    k->n_active--;
}

void lg_keys_hold(lg_key *k) {
    k->n_held++;
}

void lg_keys_drop(lg_keys *ks, lg_key *k) {
    LG_ASSERT(k->n_held > 0);
    if (--k->n_held > 0 || !k->retired) return;
    lg_key **at = &ks->retired;
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    k->next = NULL;
    free_list(k);
}

static void put_bucket(const char *name, uint64_t limit, double left, lg_buf *b) {
    if (!limit) return;
    double reset = ceil(((double)limit - left) * 60 / (double)limit);
    lg_buf_printf(b,
                  "x-ratelimit-limit-%s: %llu\r\nx-ratelimit-remaining-%s: %llu\r\n"
                  "x-ratelimit-reset-%s: %.0fs\r\n",
                  name, (unsigned long long)limit, name,
                  left > 0 ? (unsigned long long)left : 0ull, name, reset);
}

void lg_keys_put_headers(lg_key *k, uint64_t now_us, lg_buf *headers) {
    fill(k, now_us);
    put_bucket("requests", k->limits.requests_per_minute, k->requests, headers);
    put_bucket("tokens", k->limits.tokens_per_minute, k->tokens, headers);
}
