/* lignum.h - the public library: run a Qwen3.5-family model inside your own process.
 *
 * Order of reading: status, text (tokens <-> characters), engine (open, submit, step, events).
 *
 *     lg_options opt;
 *     lg_options_init(&opt);
 *     opt.model_path = "models/tiny-qwen35moe";
 *     lg_engine *eng;
 *     lg_err err;
 *     if (lg_open(&opt, &eng, &err) != LG_OK) ...
 *     lg_submit(eng, &request, &id, &err);
 *     while (lg_step(eng) == LG_OK)
 *         while (lg_next_event(eng, &event) == LG_OK) ...
 *     lg_close(&eng);
 *
 * One engine belongs to one thread: call everything that takes it from there.  Nothing here calls exit, and nothing is
 * allocated between lg_open and lg_close except what one request needs at lg_submit.  See examples/embed.c. */
#ifndef LIGNUM_H
#define LIGNUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LG_VERSION "0.1.0"

/* Marks what the shared library exports. */
#define LG_API __attribute__((visibility("default")))

/* ---- Status ---- */

typedef int lg_status;
enum {
    LG_OK = 0,
    LG_AGAIN = 1,          /* no room or nothing to do now; try later */
    LG_E_ARG = -1,         /* a value outside its documented range */
    LG_E_NOMEM = -2,       /* the system or the memory budget has no room */
    LG_E_IO = -3,          /* a file or socket could not be read or written */
    LG_E_FORMAT = -4,      /* a file or message breaks its format */
    LG_E_UNSUPPORTED = -5, /* understood, but not something this build does */
    LG_E_BACKEND = -6,     /* the compute device failed, or logits were not finite */
    LG_E_COMM = -7,        /* another process was lost */
    LG_E_CANCELLED = -8,   /* the caller cancelled it */
    LG_E_INTERNAL = -9     /* a bug of ours that was contained */
};

/* What went wrong.  msg names the file, tensor or field, what was found and what was expected. */
typedef struct lg_err {
    lg_status code;
    int rank; /* rank that failed; 0 in one process */
    int line; /* place in our source, for reports */
    char file[64];
    char msg[512];
} lg_err;

/* A short English name, never NULL. */
LG_API const char *lg_status_name(lg_status status);

/* "0.1.0 (build 1a2b3c4, gcc 12.2.0, avx2 fma f16c)": version, build id, compiler, processor features used. */
LG_API const char *lg_version(void);

/* ---- Text: tokenizer and chat format, no weights ---- */

typedef struct lg_text lg_text;

/* Load tokenizer and chat format of a model folder or GGUF file.  The caller owns *text.  Safe to use from one thread at a time.
 * Returns LG_OK, or LG_E_IO, LG_E_FORMAT, LG_E_UNSUPPORTED, LG_E_NOMEM with *err filled. */
LG_API lg_status lg_text_open(const char *model_path, lg_text **text, lg_err *err);
LG_API void lg_text_close(lg_text **text);

/* Token ids of plain text (no control token is matched in it).  *ids is the caller's: free it with lg_free. */
LG_API lg_status lg_text_encode(lg_text *text, const char *s, size_t len_bytes, uint32_t **ids,
                                size_t *n_id, lg_err *err);

/* Token ids of a chat prompt.  chat_json: an object with "messages" and, as the client sent them, "tools",
 * "enable_thinking", "add_generation_prompt" (default true), "add_vision_id".  Text inside messages can never become a
 * control token.  LG_E_ARG with the format's own message for a conversation it refuses. */
LG_API lg_status lg_text_chat(lg_text *text, const char *chat_json, size_t len_bytes,
                              uint32_t **ids, size_t *n_id, lg_err *err);

/* UTF-8 text of ids (special tokens included when `special`).  *s is NUL-terminated and the caller's: lg_free. */
LG_API lg_status lg_text_decode(lg_text *text, const uint32_t *ids, size_t n_id, bool special,
                                char **s, size_t *len_bytes, lg_err *err);

/* Free what these functions gave. */
LG_API void lg_free(void *p);

/* ---- Engine ---- */

typedef struct lg_engine lg_engine;

/* Told now and then while a model loads: bytes done of total.  Return true to stop (lg_open returns LG_E_CANCELLED). */
typedef bool lg_progress_fn(void *ctx, uint64_t done_bytes, uint64_t total_bytes);

/* How the keys and values of earlier tokens are kept.  Each is rounded once, to the nearest; Q8_0 is bytes with a scale
 * (F16) for 32 of them.  Bytes an element: 4, 2, 2, 1.06. */
typedef enum {
    LG_KV_DEFAULT, /* F16 */
    LG_KV_F32,     /* exact */
    LG_KV_BF16,
    LG_KV_F16,
    LG_KV_Q8_0
} lg_kv_type;

#define LG_STALL_AUTO UINT64_MAX

typedef struct lg_options {
    const char *model_path; /* Hugging Face folder, or a GGUF file (of a split one: any part) */
    uint64_t
        memory_bytes; /* budget for everything; 0 = what the machine or cgroup has, less a margin */
    uint32_t
        n_ctx; /* longest sequence in tokens; 0 = the model's max_position_embeddings, less if memory asks */
    uint32_t n_seq;       /* sequences that run at the same time; 0 = 64, less if memory asks */
    uint32_t n_batch_tok; /* most tokens in one step; 0 = 512 */
    int n_thread;         /* 0 = physical cores of the allowed set */
    const char *
        device; /* NULL or "cpu": this processor; "pjrt:PLUGIN[,name=value]...": devices behind a plugin (docs/PJRT.md) */
    lg_kv_type kv; /* how keys and values are kept */
    struct lg_ranks
        *ranks;    /* of the program's own workers: the ranks that share the model; else NULL */
    bool no_cache; /* keep nothing of a request after its end */
    uint64_t
        cache_bytes; /* of memory_bytes, for snapshots of kept texts; 0 = a share of what is left */
    uint64_t
        max_stall_us; /* longest step in which a prompt may hold up answers in the making; 0 = no limit;
                       * LG_STALL_AUTO = a second, or 4 times a step without prompts if that is longer */
    const char *cache_dir;     /* folder that keeps texts over a restart; NULL: none */
    uint64_t cache_disk_bytes; /* most bytes in it; 0 = a quarter of what is free there */
    const char
        *pack_dir; /* folder where packed weights are kept for quick starts; NULL: nowhere */
    lg_progress_fn *progress; /* may be NULL */
    void *progress_ctx;
} lg_options;

/* Defaults: all zero. */
LG_API void lg_options_init(lg_options *opt);

/* Load the model and size all pools.  The caller owns *eng.  Returns LG_OK, or any error with *err filled. */
LG_API lg_status lg_open(const lg_options *opt, lg_engine **eng, lg_err *err);

/* Stop all requests and free everything; sets *eng to NULL (which is allowed). */
LG_API void lg_close(lg_engine **eng);

/* What was opened. */
typedef struct lg_info {
    char model_name[128]; /* last part of the path */
    uint32_t n_vocab;     /* rows of the head */
    uint32_t n_token;     /* ids of the tokenizer; ids from here up are never sampled */
    uint32_t n_ctx;       /* longest sequence in tokens */
    uint32_t n_seq;       /* sequences that can run at the same time */
    uint32_t n_page;      /* KV pages in the pool */
    uint32_t page_tok;    /* positions in one page */
    lg_kv_type kv;        /* how keys and values are kept; never LG_KV_DEFAULT */
    int n_thread;
    uint64_t memory_bytes;   /* the budget: what follows stays within it */
    uint64_t weight_bytes;   /* resident weights */
    uint64_t state_bytes;    /* KV pages + slots */
    uint64_t scratch_bytes;  /* step scratch */
    uint32_t n_snapshot;     /* most snapshots of kept texts; 0: nothing is kept */
    uint32_t snapshot_tok;   /* a long text has one at least every so many tokens */
    uint64_t snapshot_bytes; /* one */
    uint64_t n_param, n_param_active;
} lg_info;

LG_API void lg_get_info(const lg_engine *eng, lg_info *info);

/* The engine's tokenizer and chat format; borrowed. */
LG_API lg_text *lg_get_text(lg_engine *eng);

#define LG_MAX_TOP 20 /* most alternatives reported for a token */

/* How to choose tokens.  lg_params_init gives the model's own defaults (generation_config.json). */
typedef struct lg_params {
    float temperature;        /* 0 = greedy; else (0, 100] */
    float top_p;              /* (0, 1]; 1 = off */
    float min_p;              /* [0, 1]; 0 = off */
    uint32_t top_k;           /* 0 = off */
    float presence_penalty;   /* [-2, 2], subtracted once from logits of produced ids */
    float frequency_penalty;  /* [-2, 2], subtracted per occurrence among produced ids */
    float repetition_penalty; /* (0, 10]; 1 = off; over prompt and produced ids */
    bool has_seed;            /* false: the engine draws a fresh one */
    uint64_t seed;
    uint32_t choice; /* index among n answers to one prompt: they share a seed */
    bool ignore_eos; /* go on past end tokens */
    int n_top; /* -1: no log-probabilities; 0: of the chosen token; n <= LG_MAX_TOP: alternatives too */
} lg_params;

LG_API void lg_params_init(const lg_engine *eng, lg_params *params);

typedef struct lg_bias {
    uint32_t id;
    float bias; /* [-100, 100], added to the logit before anything else */
} lg_bias;

/* One request.  Everything pointed to is copied by lg_submit. */
typedef struct lg_request {
    const uint32_t *ids; /* prompt, then ids already produced in an earlier life */
    uint32_t n_id;       /* prompt + produced, >= 1 */
    uint32_t
        n_produced; /* the last n_produced of ids were produced: penalties and limits count them */
    uint32_t
        max_tokens; /* most ids to produce, n_produced included; 0 = until the context is full */
    lg_params params;
    const char *const *stop; /* stop strings, UTF-8, 1 to 4096 bytes each */
    uint32_t n_stop;         /* <= 16 */
    const lg_bias *bias;
    uint32_t n_bias; /* <= 1024 */
    uint64_t
        cache_salt; /* texts are reused among requests of one salt only; 0: the shared default */
    int32_t
        priority; /* lower is earlier: before all waiting ones of higher numbers, whose slots it may take; a sixteenth of
                   * the work is theirs nevertheless, oldest first */
    uint64_t
        client; /* who asks: those who wait in one priority are served alike, however much each asks for */
    const char *
        grammar; /* what the answer must be, or NULL: {"schema": JSON schema}, or {"tools": [...], "many": true} */
    bool grammar_think; /* free reasoning up to </think> comes before it */
    void *user;         /* comes back in every event */
} lg_request;

/* Queue a request; *id names it in events and lg_cancel.
 * Returns LG_OK; LG_AGAIN when the queue (4096) is full; LG_E_ARG with the field's name and range in *err (also when n_id is
 * larger than n_ctx - 1, or than n_ctx with n_produced); LG_E_NOMEM; LG_E_BACKEND when the device is lost.  A request whose
 * produced ids had already come to an end gets its LG_EVENT_DONE at once. */
LG_API lg_status lg_submit(lg_engine *eng, const lg_request *req, uint64_t *id, lg_err *err);

/* End a request at once; its LG_EVENT_DONE follows with LG_FINISH_CANCELLED.  Unknown ids are ignored. */
LG_API void lg_cancel(lg_engine *eng, uint64_t id);

/* Run one step: at most n_batch_tok tokens through the model.  Returns LG_OK when something was done (events may wait),
 * LG_AGAIN when there is nothing to do, LG_E_BACKEND when the device is lost for good (every request has its event).
 * Events of a step not fetched before the next lg_step are lost; those of lg_submit and lg_cancel outlive one lg_step. */
LG_API lg_status lg_step(lg_engine *eng);

typedef enum { LG_EVENT_TOKEN, LG_EVENT_DONE } lg_event_kind;

typedef enum {
    LG_FINISH_NONE,
    LG_FINISH_EOS,    /* the model ended its turn */
    LG_FINISH_STOP,   /* a stop string was met; it is not part of the text */
    LG_FINISH_LENGTH, /* max_tokens, or the context is full */
    LG_FINISH_CANCELLED,
    LG_FINISH_ERROR /* see status */
} lg_finish;

typedef struct lg_top {
    uint32_t id;
    float logprob; /* natural log, of the distribution before temperature and filters */
} lg_top;

/* Pointers are borrowed until the next lg_step, lg_cancel or lg_close. */
typedef struct lg_event {
    lg_event_kind kind;
    uint64_t id; /* request */
    void *user;  /* lg_request.user */
    /* LG_EVENT_TOKEN */
    uint32_t token; /* id produced (an end token too) */
    float logprob;  /* when params.n_top >= 0 */
    uint32_t n_top;
    const lg_top *top; /* best first */
    /* both: text that is now certain.  A character or a possible stop string split over tokens waits for its end. */
    const char *text; /* not NUL-terminated; special tokens are left out */
    size_t len_bytes;
    uint32_t n_cached; /* prompt tokens whose state was kept from an earlier request */
    /* LG_EVENT_DONE */
    lg_finish finish;
    lg_status status;    /* LG_OK unless finish is ERROR or CANCELLED */
    uint32_t stop_index; /* LG_FINISH_STOP: which stop string */
    uint32_t n_prompt;   /* prompt tokens, without those produced earlier */
    uint32_t n_produced; /* ids produced, earlier ones included */
    uint64_t queue_us, prefill_us,
        decode_us; /* waiting; prompt until its first token; the rest */
} lg_event;

/* Fetch the next event of the last step (or of lg_submit and lg_cancel).  LG_OK with *event filled, or LG_AGAIN when there is none. */
LG_API lg_status lg_next_event(lg_engine *eng, lg_event *event);

/* Counters since lg_open. */
typedef struct lg_stats {
    uint64_t n_step, n_prefill_tok, n_decode_tok;
    uint64_t n_submitted, n_done, n_cancelled, n_failed;
    uint64_t n_nonfinite; /* requests ended because logits were not finite */
    uint32_t n_running, n_waiting;
    uint32_t n_page_free, n_slot_free; /* pages of kept texts count as free */
    uint32_t n_page_cached;            /* pages that kept texts alone use */
    uint32_t n_snapshot;               /* snapshots kept now */
    uint64_t n_prompt_tok, n_hit_tok;  /* prompt tokens admitted; of these reused */
    uint64_t n_evicted, n_discarded;   /* snapshots: for room; because logits were not finite */
    uint64_t step_us;                  /* time inside lg_step */
    /* requests put back for want of memory: with a snapshot of where they were, without; tokens computed again */
    uint64_t n_preempt_kept, n_preempt_dropped, n_again_tok;
    uint64_t n_held; /* requests that waited for a running prompt that begins alike */
    uint64_t n_aged; /* requests of later priorities that had waited long enough to go first */
    uint64_t
        n_cut_step; /* steps with fewer prompt tokens than there was room for, by max_stall_us */
    uint64_t
        n_mixed_step; /* steps with answers and prompts: their time, as expected, and the sum of errors */
    uint64_t mixed_us, mixed_expected_us, mixed_error_us;
    uint64_t n_file, file_bytes; /* files of kept texts */
    uint64_t n_file_tok;         /* tokens whose state came back from files */
    uint64_t n_file_written, n_file_refused, n_file_skipped; /* damaged or foreign; no room */
} lg_stats;

LG_API void lg_get_stats(const lg_engine *eng, lg_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
