/* keys.h - who may use the endpoint, and how much: a file of hashed keys.
 *
 * One key a line, each a JSON object; empty lines and lines that begin with # are left alone:
 *   {"name": "alice", "role": "user", "hash": "blake2b:<64 hex digits>", "requests_per_minute": 60,
 *    "tokens_per_minute": 100000, "concurrent": 4, "max_context": 8192, "priority": 5}
 * name, role (user, admin, metrics) and hash are needed; a limit that is missing is none, a missing
 * priority is 0.  The file never holds a key:
 * keys are 32 random bytes, so their plain BLAKE2b-256 cannot be searched.  Every presented key is hashed and compared
 * with every entry in constant time.  Limits per minute are buckets that start full and fill continuously.
 * Thread: gateway.  Memory: one block for each key.  Test: tests/unit/test_keys.c, fuzz/fuzz_keys.c */
#ifndef LG_GATEWAY_KEYS_H
#define LG_GATEWAY_KEYS_H

#include "base/buf.h"
#include "base/diag.h"

#define LG_KEYS_HASH_BYTES   32u
#define LG_KEYS_NAME_BYTES   64u /* longest name */
#define LG_KEYS_MIN_BYTES    24u /* shortest key that may be hashed for a file */
#define LG_KEYS_TEXT_BYTES   64u /* room for a drawn key with its NUL */
#define LG_KEYS_MAX_PRIORITY 1000
#define LG_KEYS_MAX          4096u      /* keys of a file */
#define LG_KEYS_FILE_BYTES   (4u << 20) /* largest file */

typedef enum { LG_ROLE_USER, LG_ROLE_ADMIN, LG_ROLE_METRICS } lg_key_role;

/* What a key may use; 0 = no limit. */
typedef struct lg_key_limits {
    uint64_t requests_per_minute, tokens_per_minute; /* tokens: prompt and produced */
    uint64_t concurrent;                             /* requests at the same time */
    uint64_t max_context;                            /* tokens of one sequence */
} lg_key_limits;

typedef struct lg_key {
    struct lg_key *next;
    char name[LG_KEYS_NAME_BYTES + 1];
    lg_key_role role;
    uint8_t hash[LG_KEYS_HASH_BYTES];
    lg_key_limits limits;
    int32_t
        priority; /* of requests that name none, and the earliest (lowest) that they may name */
    /* use */
    double requests,
        tokens; /* left in the buckets; tokens may fall below 0 while answers are made */
    uint64_t filled_us; /* when the buckets were last filled; 0: never used */
    uint32_t n_active;  /* between lg_keys_begin and lg_keys_end */
    uint32_t n_held;    /* connections that point here */
    bool retired;       /* no longer in the file; freed at its last lg_keys_drop */
} lg_key;

typedef struct lg_keys lg_keys;

/* Why a key is refused: an HTTP status, a code for clients, seconds until it may work. */
typedef struct lg_keys_refusal {
    int http;
    const char *code;
    uint32_t retry_s; /* 0: waiting does not help */
    char msg[160];
} lg_keys_refusal;

/* Read the keys of a file.  path is borrowed.  LG_E_IO; LG_E_FORMAT "FILE: line N: ..."; LG_E_ARG when anybody may write
 * the file; LG_E_NOMEM.  The caller owns *keys. */
lg_status lg_keys_open(const char *path, lg_keys **keys, lg_err *err);

/* The same from text, for tests. */
lg_status lg_keys_parse(const char *text, size_t len_bytes, const char *what, lg_keys **keys,
                        lg_err *err);

/* Read the file again.  Keys of the same name keep what they have used; requests of removed keys go on.  After an error
 * everything is as before. */
lg_status lg_keys_reload(lg_keys *keys, lg_err *err);

/* Wipes and frees; no key is active any more. */
void lg_keys_close(lg_keys **keys);

/* First entry in file order; follow next. */
const lg_key *lg_keys_first(const lg_keys *keys);

/* The entry of a presented key, or NULL.  The time depends on the length of the key and the number of entries only. */
lg_key *lg_keys_find(lg_keys *keys, const char *key, size_t len_bytes);

/* Count one request at time now_us.  False with *why (429) when there were too many in this minute. */
bool lg_keys_count(lg_key *k, uint64_t now_us, lg_keys_refusal *why);

/* A request of n_prompt tokens begins; it may produce *max_tokens (0: what the context holds), which is cut to what the
 * key's context leaves when it is 0.  False with *why: 429 too many at the same time or too many tokens in this minute, 400
 * longer than the key's context.  After true: lg_keys_spend for each produced token, then one lg_keys_end. */
bool lg_keys_begin(lg_key *k, uint64_t n_prompt, uint32_t *max_tokens, uint64_t now_us,
                   lg_keys_refusal *why);
void lg_keys_spend(lg_key *k, uint32_t n_token);
void lg_keys_end(lg_key *k);

/* Priority of a request of this key (NULL: of anybody) that asked for `asked`, if it did. */
int32_t lg_keys_priority(const lg_key *k, bool has_asked, int32_t asked);

/* Keep an entry at its place over reloads, between these two. */
void lg_keys_hold(lg_key *k);
void lg_keys_drop(lg_keys *keys, lg_key *k);

/* Append the lines x-ratelimit-{limit,remaining,reset}-{requests,tokens} of the limits that the key has. */
void lg_keys_put_headers(lg_key *k, uint64_t now_us, lg_buf *headers);

/* ---- For `lignum keys` ---- */

/* One line of a file.  LG_OK; LG_AGAIN for an empty line or a comment; LG_E_FORMAT; LG_E_NOMEM. */
lg_status lg_keys_read_line(const char *line, size_t len_bytes, const char *what, lg_key *k,
                            lg_err *err);

/* Append the entry as one line. */
void lg_keys_put_line(const lg_key *k, lg_buf *out);

/* A name: 1 to LG_KEYS_NAME_BYTES letters, digits and any of "-_.@". */
bool lg_keys_is_name(const char *name, size_t len_bytes);

bool lg_keys_role_of(const char *text, lg_key_role *role);
const char *lg_keys_role_name(lg_key_role role);

/* Hash of a key's text. */
void lg_keys_hash(const char *key, size_t len_bytes, uint8_t hash[LG_KEYS_HASH_BYTES]);

/* Append "blake2b:<hex>". */
void lg_keys_put_hash(const uint8_t hash[LG_KEYS_HASH_BYTES], lg_buf *out);

/* Draw a new key, NUL-terminated: "lg-" and 43 characters.  LG_E_IO when the system has no randomness. */
lg_status lg_keys_draw(char key[LG_KEYS_TEXT_BYTES], lg_err *err);

/* Overwrite a secret so that the compiler cannot leave it out. */
void lg_keys_wipe(void *data, size_t len_bytes);

#endif
