/* run.c - `lignum run`: one answer, or a conversation, in this process.
 *
 * Out: the answer as it is made on standard output; speed and everything else on standard error.
 * A conversation is kept as the messages that were said; of an answer only what follows </think> is kept, as the chat
 * format does.  Ctrl-C ends the answer; at the prompt the second one leaves.  Test: tests/py/run.py */
#include "cli.h"
#include "base/base.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct session {
    const char *argv0;
    lg_options opt;
    const char *prompt; /* NULL: conversation */
    bool no_think, terminal;
    uint32_t max_tokens;
    /* what was asked for; below 0 or UINT32_MAX: the model's default */
    float temperature, top_p;
    uint32_t top_k;
    bool has_seed;
    uint64_t seed;
    lg_engine *eng;
    lg_buf said;  /* messages so far, as JSON objects joined by commas */
    lg_buf typed; /* read from the keyboard and not yet a line */
} session;

static volatile sig_atomic_t n_interrupt;

static void on_interrupt(int sig) {
    (void)sig;
    n_interrupt++;
}

/* Ctrl-C counts, and interrupts the wait for the keyboard. */
static void catch_interrupt(void) {
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
}

/* ---- conversation ---- */

static void say(session *s, const char *role, const char *text, size_t len_bytes) {
    if (s->said.len_bytes) lg_buf_putc(&s->said, ',');
    lg_buf_printf(&s->said, "{\"role\":\"%s\",\"content\":", role);
    lg_json_put_string(&s->said, text, len_bytes);
    lg_buf_putc(&s->said, '}');
}

/* Keep an answer without its reasoning. */
static void keep_answer(session *s, const lg_buf *answer) {
    static const char tag[] = "</think>";
    const char *text = lg_buf_str(answer);
    if (!s->no_think) {
        const char *end = strstr(text, tag);
        text = end ? end + strlen(tag) : "";
        while (*text == '\n') text++;
    }
    say(s, "assistant", text, strlen(text));
}

static bool encode(session *s, uint32_t **ids, size_t *n_id) {
    lg_buf chat = {0};
    lg_err err = {0};
    lg_buf_printf(&chat, "{\"messages\":[%s],\"enable_thinking\":%s}", lg_buf_str(&s->said),
                  s->no_think ? "false" : "true");
    lg_status st = chat.failed || s->said.failed ? LG_E_NOMEM : LG_OK;
    if (st == LG_OK)
        st = lg_text_chat(lg_get_text(s->eng), chat.data, chat.len_bytes, ids, n_id, &err);
    lg_buf_fini(&chat);
    if (st == LG_OK) return true;
    fprintf(stderr, "%s: %s: %s\n", s->argv0, lg_status_name(st), err.msg);
    return false;
}

static double per_second(uint64_t n, uint64_t us) {
    return us ? (double)n * 1e6 / (double)us : 0.0;
}

static void report(const session *s, const lg_event *end) {
    static const char *const why[] = {"",          "",        "", ", cut at the limit",
                                      ", stopped", ", failed"};
    bool dim = isatty(STDERR_FILENO);
    (void)s;
    fprintf(stderr, "%sprompt %u tokens, %.1f tokens/s; answer %u tokens, %.1f tokens/s%s%s\n",
            dim ? "\x1b[2m" : "", end->n_prompt, per_second(end->n_prompt, end->prefill_us),
            end->n_produced,
            per_second(end->n_produced ? end->n_produced - 1 : 0, end->decode_us),
            why[end->finish], dim ? "\x1b[0m" : "");
}

/* Print and keep what the steps bring until the answer is over. */
static bool stream(session *s, uint64_t id, lg_buf *answer, lg_event *end) {
    lg_status st = LG_OK;
    int before = n_interrupt;
    bool thinks = !s->no_think, over = false;
    if (thinks && s->terminal) fputs("\x1b[2m", stdout);
    while (!over && st == LG_OK) {
        if (n_interrupt != before) lg_cancel(s->eng, id);
        st = lg_step(s->eng);
        while (lg_next_event(s->eng, end) == LG_OK) {
            lg_buf_put(answer, end->text, end->len_bytes);
            fwrite(end->text, 1, end->len_bytes, stdout);
            if (thinks && strstr(lg_buf_str(answer), "</think>")) {
                thinks = false;
                if (s->terminal) fputs("\x1b[0m", stdout);
            }
            over = end->kind == LG_EVENT_DONE;
        }
        fflush(stdout);
    }
    if (thinks && s->terminal) fputs("\x1b[0m", stdout);
    fputs("\n", stdout);
    fflush(stdout);
    return over && end->finish != LG_FINISH_ERROR;
}

/* Answer what was said last. */
static bool answer_last(session *s) {
    uint32_t *ids;
    size_t n_id;
    if (!encode(s, &ids, &n_id)) return false;
    lg_request req = {.ids = ids, .n_id = (uint32_t)n_id, .max_tokens = s->max_tokens};
    lg_params_init(s->eng, &req.params);
    if (s->temperature >= 0.0f) req.params.temperature = s->temperature;
    if (s->top_p >= 0.0f) req.params.top_p = s->top_p;
    if (s->top_k != UINT32_MAX) req.params.top_k = s->top_k;
    req.params.has_seed = s->has_seed;
    req.params.seed = s->seed;
    lg_err err = {0};
    uint64_t id = 0;
    lg_status st = n_id > UINT32_MAX ? LG_E_ARG : lg_submit(s->eng, &req, &id, &err);
    lg_free(ids);
    if (st != LG_OK) {
        fprintf(stderr, "%s: %s: %s\n", s->argv0, lg_status_name(st), err.msg);
        return false;
    }
    lg_buf answer = {0};
    lg_event end = {0};
    bool ok = stream(s, id, &answer, &end);
    if (ok) {
        report(s, &end);
        keep_answer(s, &answer);
    } else {
        fprintf(stderr, "%s: the answer failed: %s\n", s->argv0, lg_status_name(end.status));
    }
    lg_buf_fini(&answer);
    return ok;
}

/* Move the first line of what was typed, without its end, to `line`; false when no line is complete. */
static bool take_line(lg_buf *typed, lg_buf *line) {
    const char *end = typed->len_bytes ? memchr(typed->data, '\n', typed->len_bytes) : NULL;
    if (!end) return false;
    size_t len = (size_t)(end - typed->data);
    lg_buf_put(line, typed->data, len && end[-1] == '\r' ? len - 1 : len);
    lg_buf_consume(typed, len + 1);
    return true;
}

/* Append a line from the keyboard without its end; false when there is none, or after a second Ctrl-C.  Ctrl-C is held back
 * but while we wait, so that none falls between a look at the counter and the wait. */
static bool read_line(session *s, lg_buf *line) {
    sigset_t held, before;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigprocmask(SIG_BLOCK, &held, &before);
    if (s->terminal) fputs("> ", stdout);
    fflush(stdout);
    bool ok = false;
    for (int seen = 0;;) {
        if (n_interrupt > 1) break;
        if (n_interrupt > seen) {
            seen = n_interrupt;
            lg_buf_clear(&s->typed);
            fputs("\n(once more, or Ctrl-D, to leave)\n> ", stderr);
        }
        if ((ok = take_line(&s->typed, line))) break;
        struct pollfd key = {.fd = STDIN_FILENO, .events = POLLIN};
        if (ppoll(&key, 1, NULL, &before) < 0) {
            if (errno == EINTR) continue;
            break;
        }
        char piece[4096];
        ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
        if (n <= 0) {
            lg_buf_put(line, lg_buf_str(&s->typed), s->typed.len_bytes);
            lg_buf_clear(&s->typed);
            ok = line->len_bytes > 0;
            break;
        }
        lg_buf_put(&s->typed, piece, (size_t)n);
        if (s->typed.failed) break;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ok;
}

static int converse(session *s) {
    lg_buf line = {0};
    lg_info info;
    lg_get_info(s->eng, &info);
    fprintf(stderr, "%s, context %u tokens. Ctrl-C ends an answer, Ctrl-D leaves.\n",
            info.model_name, info.n_ctx);
    for (;;) {
        n_interrupt = 0;
        lg_buf_clear(&line);
        if (!read_line(s, &line) || line.failed) break;
        if (line.len_bytes == 0) continue;
        size_t before = s->said.len_bytes;
        say(s, "user", line.data, line.len_bytes);
        if (answer_last(s)) continue;
        s->said.len_bytes = before; /* it was not answered, so it was not said */
        if (s->said.data) s->said.data[before] = 0;
    }
    if (s->terminal) fputs("\n", stdout);
    lg_buf_fini(&line);
    lg_buf_fini(&s->typed);
    return 0;
}

/* ---- options ---- */

static void print_help(void) {
    fputs(
        "usage: lignum run [OPTIONS]\n"
        "\n"
        "Answers one prompt, or without --prompt holds a conversation at the keyboard.\n"
        "The answer goes to standard output, speeds to standard error.\n"
        "\n"
        "  -m, --model PATH    model folder as published (config.json, *.safetensors,\n"
        "                      tokenizer.json) or GGUF file; default: the small bundled model\n"
        "  -p, --prompt TEXT   answer TEXT and end\n"
        "      --think         let the model think first (default)\n"
        "      --no-think      answer at once\n"
        "  -n, --tokens N      most tokens of an answer; default: until the context is full\n"
        "      --temp T        temperature, 0 takes the most likely token; default: the "
        "model's\n"
        "      --top-k K       sample among the K most likely tokens, 0 is off\n"
        "      --top-p P       sample among the tokens that make up P of the probability\n"
        "      --seed N        repeat the same draws\n"
        "      --ctx N         longest conversation in tokens; default: the model's limit\n"
        "      --threads N     default: all cores\n"
        "      --pack-dir DIR  keep packed weights in DIR, as large as the model, so that "
        "later starts take\n"
        "                      them instead of packing\n"
        "      --memory SIZE   use at most this much, such as 8G; default: what is free\n"
        "      --kv TYPE       how keys and values are kept: f32, bf16, f16 (default) or q8_0\n"
        "      --device D      cpu (default), or pjrt:PLUGIN.so[,name=value]... "
        "(docs/PJRT.md)\n"
        "      --help          print this\n"
        "\n"
        "Ctrl-C ends the answer; at the prompt, twice, it ends the program.\n",
        stdout);
}

enum {
    OPT_THINK = 256,
    OPT_NO_THINK,
    OPT_TEMP,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_SEED,
    OPT_CTX,
    OPT_THREADS,
    OPT_PACK,
    OPT_MEMORY,
    OPT_KV,
    OPT_DEVICE,
    OPT_HELP
};

static const struct option long_options[] = {{"model", required_argument, NULL, 'm'},
                                             {"prompt", required_argument, NULL, 'p'},
                                             {"think", no_argument, NULL, OPT_THINK},
                                             {"no-think", no_argument, NULL, OPT_NO_THINK},
                                             {"tokens", required_argument, NULL, 'n'},
                                             {"temp", required_argument, NULL, OPT_TEMP},
                                             {"top-k", required_argument, NULL, OPT_TOP_K},
                                             {"top-p", required_argument, NULL, OPT_TOP_P},
                                             {"seed", required_argument, NULL, OPT_SEED},
                                             {"ctx", required_argument, NULL, OPT_CTX},
                                             {"threads", required_argument, NULL, OPT_THREADS},
                                             {"pack-dir", required_argument, NULL, OPT_PACK},
                                             {"memory", required_argument, NULL, OPT_MEMORY},
                                             {"kv", required_argument, NULL, OPT_KV},
                                             {"device", required_argument, NULL, OPT_DEVICE},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {NULL, 0, NULL, 0}};

/* Take one option's value; false when it is wrong (reported). */
static bool set_option(session *s, int c) {
    const char *a = s->argv0;
    uint64_t v = 0;
    bool ok = true;
    switch (c) {
    case 'm': s->opt.model_path = optarg; return true;
    case 'p': s->prompt = optarg; return true;
    case 'n':
        ok = lg_option_u64(a, "--tokens", optarg, 1, UINT32_MAX, &v);
        s->max_tokens = (uint32_t)v;
        return ok;
    case OPT_THINK: s->no_think = false; return true;
    case OPT_NO_THINK: s->no_think = true; return true;
    case OPT_TEMP: return lg_option_float(a, "--temp", optarg, 0.0f, 100.0f, &s->temperature);
    case OPT_TOP_P: return lg_option_float(a, "--top-p", optarg, 0.000001f, 1.0f, &s->top_p);
    case OPT_TOP_K:
        ok = lg_option_u64(a, "--top-k", optarg, 0, UINT32_MAX - 1, &v);
        s->top_k = (uint32_t)v;
        return ok;
    case OPT_SEED:
        s->has_seed = true;
        return lg_option_u64(a, "--seed", optarg, 0, UINT64_MAX, &s->seed);
    case OPT_CTX:
        ok = lg_option_u64(a, "--ctx", optarg, 2, UINT32_MAX, &v);
        s->opt.n_ctx = (uint32_t)v;
        return ok;
    case OPT_PACK: s->opt.pack_dir = optarg; return true;
    case OPT_THREADS: return lg_option_int(a, "--threads", optarg, 1, 1024, &s->opt.n_thread);
    case OPT_MEMORY: return lg_option_size(a, "--memory", optarg, &s->opt.memory_bytes);
    case OPT_KV: return lg_option_kv(a, optarg, &s->opt.kv);
    case OPT_DEVICE: s->opt.device = optarg; return true;
    default: return false;
    }
}

int lg_run_main(int argc, char **argv) {
    session s = {.argv0 = argv[0], .temperature = -1.0f, .top_p = -1.0f, .top_k = UINT32_MAX};
    lg_options_init(&s.opt);
    s.opt.n_seq = 1;
    for (int c; (c = getopt_long(argc, argv, "m:p:n:", long_options, NULL)) != -1;) {
        if (c == OPT_HELP) {
            print_help();
            return 0;
        }
        if (c == '?') return lg_option_usage(argv[0]);
        if (!set_option(&s, c)) return lg_option_usage(argv[0]);
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected '%s'\n", argv[0], argv[optind]);
        return lg_option_usage(argv[0]);
    }
    s.terminal = isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
    if (!lg_load_open(argv[0], &s.opt, &s.eng)) return 1;
    catch_interrupt();
    int rc;
    if (s.prompt) {
        say(&s, "user", s.prompt, strlen(s.prompt));
        rc = answer_last(&s) ? 0 : 1;
    } else {
        rc = converse(&s);
    }
    lg_buf_fini(&s.said);
    lg_close(&s.eng);
    return rc;
}
