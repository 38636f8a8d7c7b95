/* serve.c - `lignum serve`: the gateway, which starts its worker.
 *
 * In: options.   Out: the address and a line to paste, on standard output.  Test: tests/e2e */
#include "cli.h"
#include "gateway/gateway.h"
#include "launch.h"
#include "rank_option.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Serve a model to OpenAI-compatible clients.\n"
    "\n"
    "usage: lignum serve --model PATH [OPTIONS]\n"
    "\n"
    "  -m, --model PATH    Hugging Face folder or GGUF file\n"
    "      --host H        address to listen on (default: 127.0.0.1, this machine only)\n"
    "      --port N        port (default: 8080; 0: any free one)\n"
    "      --name NAME     the model's id for clients (default: last part of PATH)\n"
    "      --ctx N         longest sequence in tokens (default: the model's, less if memory "
    "asks)\n"
    "      --device D      cpu (default), or pjrt:PLUGIN.so[,name=value]...: devices behind a "
    "plugin\n"
    "                      (docs/PJRT.md)\n"
    "      --kv TYPE       how keys and values are kept: f32, bf16, f16 (default) or q8_0\n"
    "      --memory SIZE   budget of the worker, such as 24G (default: what the machine has, "
    "less a margin)\n"
    "      --cache-memory SIZE\n"
    "                      of this, for snapshots of kept prefixes (default: a share)\n"
    "      --no-prefix-cache\n"
    "                      keep nothing of a request after its end\n"
    "      --cache-dir DIR keep prefixes in files too, over a restart: a folder of mode 700\n"
    "      --cache-disk SIZE\n"
    "                      most bytes of them (default: a quarter of what is free)\n"
    "      --no-replay     render every turn of the assistant from what the client sends\n"
    "      --share-cache   prefixes and files are shared by all keys (docs/SECURITY.md)\n"
    "      --parallel N    sequences that run at the same time (default: 64)\n"
    "      --max-stall MS  longest step in which a prompt may hold up answers in the making\n"
    "                      (default: 1000, or 4 steps without prompts if that is longer; 0: "
    "no\n"
    "                      limit)\n"
    "      --step N        rows of a step at most (default: 512): more read prompts faster, "
    "take\n"
    "                      memory, and a new request waits for the step under way\n"
    "      --strict        refuse options with which answers depend on more than the request\n"
    "      --threads N     threads of the worker (default: physical cores)\n"
    "      --pack-dir DIR  keep packed weights in DIR, as large as the model, so that later "
    "starts take\n"
    "                      them instead of packing\n"
    "      --drain SECONDS how long answers may go on after SIGTERM (default: 30)\n"
    "      --restart-deadline SECONDS\n"
    "                      how long answers wait for a lost worker (default: 60)\n"
    "      --worker-timeout SECONDS\n"
    "                      a worker that has work and says nothing for so long is replaced\n"
    "                      (default: 600; 0: never)\n"
    "      --ping SECONDS  a stream that is silent for so long gets a ping (default: 10)\n"
    "      --keep-client-header\n"
    "                      leave the changing first line of a known client's system prompt\n"
    "      --lenient       ignore request fields that are not known (the log names them) "
    "instead of\n"
    "                      answering 400\n"
    "\n"
    "Who may use it (docs/SECURITY.md):\n"
    "      --keys FILE     API keys, made by `lignum keys`; read again at SIGHUP\n"
    "      --tls-cert FILE, --tls-key FILE\n"
    "                      certificate chain and key, PEM; read again at SIGHUP\n"
    "      --tls-client-ca FILE\n"
    "                      only clients with a certificate of these authorities\n"
    "      --allow-host NAME\n"
    "                      a name in the Host header to accept beside this machine's own\n"
    "      --cors-origin ORIGIN\n"
    "                      web pages that may ask, such as https://example.com; * for all\n"
    "      --insecure      let others reach it without keys or without TLS\n"
    "\n"
    "Limits:\n"
    "      --max-connections N (default: 1024), --max-connections-per-address N\n"
    "                      more get 503 or 429; the second is 256 and does not count this\n"
    "                      machine's own, unless it is given\n"
    "      --max-requests N\n"
    "                      answers in the making; more get 429 (default: 1024)\n"
    "      --max-body SIZE longest request; a longer one gets 413 (default: 16 bytes for each\n"
    "                      token of context, 2M at least, 32M at most)\n"
    "      --max-bodies SIZE\n"
    "                      all requests that are not answered yet; more get 503 (default: "
    "48M)\n"
    "      --head-deadline SECONDS (10), --body-deadline SECONDS (120)\n"
    "                      how long the parts of a request may take; then 408\n"
    "      --idle-deadline SECONDS\n"
    "                      how long a connection may wait for its next request (75)\n"
    "      --core-dumps    leave core files at a crash; they hold prompts and answers\n"
    "\n"
    "Several processes for one model (docs/DISTRIBUTED.md; needs Open MPI):\n"
    "      --ranks N       share the model's experts among N ranks\n"
    "      --hosts FILE    hosts for them, as mpirun's --hostfile wants; this one first\n"
    "      --min-ranks N   with --hosts: when hosts do not answer, start on those that do,\n"
    "                      with at least N ranks (default: all must)\n"
    "      --interface IF  network of the ranks: a name or a range such as 10.0.0.0/24\n"
    "                      (needed with --hosts; without hosts nothing leaves this machine)\n"
    "      --exchange strict|reduce|alltoall|auto, --wire f32|bf16|q8, --overlap on|off,\n"
    "      --divide-prompts auto|on|off, --divide-ctx N, --divide-answers auto|on|off,\n"
    "      --trace FILE, --rank-timeout SECONDS, --spare-experts N,\n"
    "      --hold-prompts STEPS, --expert-load FILE, --expert-load-out FILE\n"
    "                      as `lignum worker --help` says\n"
    "\n"
    "      --worker FILE   program to start as the worker (default: this one)\n"
    "      --help          print this\n"
    "\n"
    "Routes: POST /v1/chat/completions, POST /v1/completions, GET /v1/models, /live, /ready, "
    "/metrics.\n"
    "SIGTERM or Ctrl-C lets running answers end; a second one stops at once.\n";

enum {
    OPT_HOST = 256,
    OPT_PORT,
    OPT_NAME,
    OPT_CTX,
    OPT_MEMORY,
    OPT_KV,
    OPT_DEVICE,
    OPT_CACHE,
    OPT_NO_CACHE,
    OPT_CACHE_DIR,
    OPT_CACHE_DISK,
    OPT_SHARE_CACHE,
    OPT_NO_REPLAY,
    OPT_PARALLEL,
    OPT_THREADS,
    OPT_PACK,
    OPT_STALL,
    OPT_STEP,
    OPT_DRAIN,
    OPT_RESTART,
    OPT_SILENT,
    OPT_WORKER,
    OPT_KEYS,
    OPT_ALLOW_HOST,
    OPT_CORS,
    OPT_INSECURE,
    OPT_PING,
    OPT_KEEP_HEADER,
    OPT_LENIENT,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CA,
    OPT_MAX_CONN,
    OPT_MAX_ADDR,
    OPT_MAX_REQ,
    OPT_MAX_BODY,
    OPT_MAX_BODIES,
    OPT_HEAD,
    OPT_BODY,
    OPT_IDLE,
    OPT_RANKS,
    OPT_HOSTS,
    OPT_MIN_RANKS,
    OPT_INTERFACE,
    OPT_STRICT,
    OPT_OF_RANKS,
    OPT_CORE,
    OPT_HELP
};

static const struct option longs[] = {
    {"model", required_argument, NULL, 'm'},
    {"host", required_argument, NULL, OPT_HOST},
    {"port", required_argument, NULL, OPT_PORT},
    {"name", required_argument, NULL, OPT_NAME},
    {"ctx", required_argument, NULL, OPT_CTX},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"kv", required_argument, NULL, OPT_KV},
    {"device", required_argument, NULL, OPT_DEVICE},
    {"cache-memory", required_argument, NULL, OPT_CACHE},
    {"no-prefix-cache", no_argument, NULL, OPT_NO_CACHE},
    {"cache-dir", required_argument, NULL, OPT_CACHE_DIR},
    {"cache-disk", required_argument, NULL, OPT_CACHE_DISK},
    {"share-cache", no_argument, NULL, OPT_SHARE_CACHE},
    {"no-replay", no_argument, NULL, OPT_NO_REPLAY},
    {"parallel", required_argument, NULL, OPT_PARALLEL},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"pack-dir", required_argument, NULL, OPT_PACK},
    {"max-stall", required_argument, NULL, OPT_STALL},
    {"step", required_argument, NULL, OPT_STEP},
    {"drain", required_argument, NULL, OPT_DRAIN},
    {"restart-deadline", required_argument, NULL, OPT_RESTART},
    {"worker-timeout", required_argument, NULL, OPT_SILENT},
    {"worker", required_argument, NULL, OPT_WORKER},
    {"keys", required_argument, NULL, OPT_KEYS},
    {"allow-host", required_argument, NULL, OPT_ALLOW_HOST},
    {"cors-origin", required_argument, NULL, OPT_CORS},
    {"ping", required_argument, NULL, OPT_PING},
    {"keep-client-header", no_argument, NULL, OPT_KEEP_HEADER},
    {"lenient", no_argument, NULL, OPT_LENIENT},
    {"insecure", no_argument, NULL, OPT_INSECURE},
    {"tls-cert", required_argument, NULL, OPT_TLS_CERT},
    {"tls-key", required_argument, NULL, OPT_TLS_KEY},
    {"tls-client-ca", required_argument, NULL, OPT_TLS_CA},
    {"max-connections", required_argument, NULL, OPT_MAX_CONN},
    {"max-connections-per-address", required_argument, NULL, OPT_MAX_ADDR},
    {"max-requests", required_argument, NULL, OPT_MAX_REQ},
    {"max-body", required_argument, NULL, OPT_MAX_BODY},
    {"max-bodies", required_argument, NULL, OPT_MAX_BODIES},
    {"head-deadline", required_argument, NULL, OPT_HEAD},
    {"body-deadline", required_argument, NULL, OPT_BODY},
    {"idle-deadline", required_argument, NULL, OPT_IDLE},
    {"ranks", required_argument, NULL, OPT_RANKS},
    {"hosts", required_argument, NULL, OPT_HOSTS},
    {"min-ranks", required_argument, NULL, OPT_MIN_RANKS},
    {"interface", required_argument, NULL, OPT_INTERFACE},
    {"strict", no_argument, NULL, OPT_STRICT},
    LG_RANK_OPTIONS(OPT_OF_RANKS),
    {"core-dumps", no_argument, NULL, OPT_CORE},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0}};

typedef struct serve_opt {
    lg_launch launch;
    lg_gateway_opt gate;
    const char *worker;
    char *arg[64]; /* the worker's; texts are argv's, static, or below */
    size_t n_arg;
    char rank_name[32][24]; /* of options at arg[2 i] */
    const char *of_ranks;   /* an option that was given and only ranks have; NULL: none */
    bool help, core_dumps, strict, other_sums;
} serve_opt;

static void add_arg(serve_opt *o, const char *name, char *value) {
    LG_ASSERT(o->n_arg + 3 < LG_COUNT(o->arg));
    o->arg[o->n_arg++] = (char *)name;
    o->arg[o->n_arg++] = value;
}

/* One that only ranks have: checked as the worker will, and passed on. */
static bool take_rank_arg(serve_opt *o, const char *argv0, const char *name, char *value) {
    bool strict;
    if (!lg_rank_option_check(argv0, name, value, &strict)) return false;
    o->other_sums |= !strict;
    char *dashed = o->rank_name[o->n_arg / 2];
    snprintf(dashed, sizeof o->rank_name[0], "--%s", name);
    o->of_ranks = dashed;
    add_arg(o, dashed, value);
    return true;
}

/* Add a text to a list of at most LG_GUARD_MAX_NAME - 1. */
static bool add_name(const char *argv0, const char *option, const char **list, uint32_t *n) {
    if (*n + 1 >= LG_GUARD_MAX_NAME) {
        fprintf(stderr, "%s: %s: at most %u times\n", argv0, option, LG_GUARD_MAX_NAME - 1);
        return false;
    }
    list[(*n)++] = optarg;
    return true;
}

/* Options about who may use the endpoint. */
static bool take_secure(lg_gateway_opt *g, const char *argv0, int c) {
    switch (c) {
    case OPT_KEYS: g->keys_path = optarg; return true;
    case OPT_TLS_CERT: g->tls_cert = optarg; return true;
    case OPT_TLS_KEY: g->tls_key = optarg; return true;
    case OPT_TLS_CA: g->tls_client_ca = optarg; return true;
    case OPT_INSECURE: g->insecure = true; return true;
    case OPT_ALLOW_HOST:
        return add_name(argv0, "--allow-host", g->allow_host, &g->n_allow_host);
    case OPT_CORS: return add_name(argv0, "--cors-origin", g->cors_origin, &g->n_cors_origin);
    default: return false;
    }
}

static bool take_count(const char *argv0, const char *option, uint64_t max, uint32_t *out) {
    uint64_t v;
    if (!lg_option_u64(argv0, option, optarg, 1, max, &v)) return false;
    *out = (uint32_t)v;
    return true;
}

static bool take_seconds(const char *argv0, const char *option, uint64_t *us) {
    if (!lg_option_u64(argv0, option, optarg, 1, 86400, us)) return false;
    *us *= 1000000;
    return true;
}

/* Options about how much of it. */
static bool take_limit(lg_gateway_opt *g, const char *argv0, int c) {
    switch (c) {
    case OPT_MAX_CONN: return take_count(argv0, "--max-connections", 1000000, &g->max_conn);
    case OPT_MAX_ADDR:
        return take_count(argv0, "--max-connections-per-address", 1000000, &g->max_conn_addr);
    case OPT_MAX_REQ: return take_count(argv0, "--max-requests", 65536, &g->max_flight);
    case OPT_MAX_BODY: return lg_option_size(argv0, "--max-body", optarg, &g->max_body);
    case OPT_MAX_BODIES: return lg_option_size(argv0, "--max-bodies", optarg, &g->max_bodies);
    case OPT_HEAD: return take_seconds(argv0, "--head-deadline", &g->head_us);
    case OPT_BODY: return take_seconds(argv0, "--body-deadline", &g->body_us);
    case OPT_IDLE: return take_seconds(argv0, "--idle-deadline", &g->idle_us);
    default: return take_secure(g, argv0, c);
    }
}

/* Options about ranks; those of the worker are checked here and passed on. */
static bool take_ranks(serve_opt *o, const char *argv0, int c) {
    uint64_t v = 0;
    switch (c) {
    case OPT_RANKS:
        o->launch.n_rank = optarg;
        return lg_option_u64(argv0, "--ranks", optarg, 1, 256, &v);
    case OPT_HOSTS: o->launch.hosts = optarg; return true;
    case OPT_MIN_RANKS:
        o->launch.min_rank = optarg;
        return lg_option_u64(argv0, "--min-ranks", optarg, 1, 256, &v);
    case OPT_INTERFACE: o->launch.interface = optarg; return true;
    default: return take_limit(&o->gate, argv0, c);
    }
}

/* One option; worker options are checked here and passed on as text. */
static bool take(serve_opt *o, const char *argv0, int c) {
    uint64_t v = 0;
    int n = 0;
    lg_kv_type kv;
    switch (c) {
    case 'm': o->gate.model_path = optarg; return true;
    case OPT_HOST: o->gate.host = optarg; return true;
    case OPT_NAME: o->gate.name = optarg; return true;
    case OPT_WORKER: o->worker = optarg; return true;
    case OPT_HELP: o->help = true; return true;
    case OPT_PORT:
        if (!lg_option_u64(argv0, "--port", optarg, 0, 65535, &v)) return false;
        o->gate.port = (uint16_t)v;
        return true;
    case OPT_CTX:
        add_arg(o, "--ctx", optarg);
        return lg_option_u64(argv0, "--ctx", optarg, 2, 1 << 22, &v);
    case OPT_MEMORY:
        add_arg(o, "--memory", optarg);
        return lg_option_size(argv0, "--memory", optarg, &v);
    case OPT_STRICT: o->strict = true; return true;
    case OPT_KV: add_arg(o, "--kv", optarg); return lg_option_kv(argv0, optarg, &kv);
    case OPT_CACHE:
        add_arg(o, "--cache-memory", optarg);
        return lg_option_size(argv0, "--cache-memory", optarg, &v);
    case OPT_DEVICE: add_arg(o, "--device", optarg); return true;
    case OPT_PACK: add_arg(o, "--pack-dir", optarg); return true;
    case OPT_NO_CACHE: o->arg[o->n_arg++] = "--no-prefix-cache"; return true;
    case OPT_CACHE_DIR: add_arg(o, "--cache-dir", optarg); return true;
    case OPT_CACHE_DISK:
        add_arg(o, "--cache-disk", optarg);
        return lg_option_size(argv0, "--cache-disk", optarg, &v);
    case OPT_NO_REPLAY: o->gate.no_replay = true; return true;
    case OPT_SHARE_CACHE: o->gate.share_cache = true; return true;
    case OPT_PARALLEL:
        add_arg(o, "--parallel", optarg);
        return lg_option_u64(argv0, "--parallel", optarg, 1, 4096, &v);
    case OPT_THREADS:
        add_arg(o, "--threads", optarg);
        return lg_option_int(argv0, "--threads", optarg, 1, 1024, &n);
    case OPT_STALL:
        add_arg(o, "--max-stall", optarg);
        return lg_option_u64(argv0, "--max-stall", optarg, 0, 3600000, &v);
    case OPT_STEP:
        add_arg(o, "--step", optarg);
        return lg_option_u64(argv0, "--step", optarg, 1, LG_OPTION_STEP_MAX, &v);
    case OPT_DRAIN:
        if (!lg_option_u64(argv0, "--drain", optarg, 0, 86400, &v)) return false;
        o->gate.drain_us = v * 1000000;
        return true;
    case OPT_PING:
        if (!lg_option_u64(argv0, "--ping", optarg, 1, 86400, &v)) return false;
        o->gate.ping_us = v * 1000000;
        return true;
    case OPT_KEEP_HEADER: o->gate.keep_header = true; return true;
    case OPT_LENIENT: o->gate.lenient = true; return true;
    case OPT_RESTART:
        if (!lg_option_u64(argv0, "--restart-deadline", optarg, 1, 86400, &v)) return false;
        o->gate.restart_us = v * 1000000;
        return true;
    case OPT_SILENT:
        if (!lg_option_u64(argv0, "--worker-timeout", optarg, 0, 86400, &v)) return false;
        o->gate.silent_us = v * 1000000;
        return true;
    case OPT_CORE: o->core_dumps = true; return true;
    default: return take_ranks(o, argv0, c);
    }
}

static void say_ready(const lg_gateway_opt *opt, const lg_info *info, const char *url) {
    lg_bar_end(opt->progress_ctx);
    printf("Lignum %s is ready: %s serves %s\n", LG_VERSION, url, opt->name);
    if (info->n_snapshot)
        printf("Prefixes are kept: %u snapshots; long prompts have one every %u tokens\n",
               info->n_snapshot, info->snapshot_tok);
    printf("\n"
           "Try it:\n"
           "  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d "
           "'{\"model\": \"%s\", "
           "\"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"What is the "
           "capital of "
           "France?\"}]}'\n"
           "\n"
           "Your own model: make run MODEL=/path/to/folder, or lignum serve --model "
           "/path/to/folder\n"
           "Ctrl-C stops it.\n",
           url, opt->name);
    fflush(stdout);
}

/* "models/tiny/" -> "tiny" */
static void last_part(const char *path, char *name, size_t cap) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    snprintf(name, cap, "%.*s", (int)(end - begin), path + begin);
}

int lg_serve_main(int argc, char **argv) {
    serve_opt o = {.worker = "/proc/self/exe"};
    char name[128];
    lg_err err = {0};
    lg_bar bar;
    int c, at = 0;
    lg_gateway_opt_init(&o.gate);
    o.arg[o.n_arg++] = NULL; /* the program, below */
    o.arg[o.n_arg++] = "worker";
    add_arg(&o, "--fd", "@FD");
    while ((c = getopt_long(argc, argv, "m:", longs, &at)) != -1) {
        bool room = o.n_arg + 6 < LG_COUNT(o.arg); /* the same option again and again */
        bool ok = c == OPT_OF_RANKS ? room && take_rank_arg(&o, argv[0], longs[at].name, optarg)
                                    : room && take(&o, argv[0], c);
        if (!ok) return lg_option_usage(argv[0]);
        if (o.help) {
            fputs(help, stdout);
            return 0;
        }
    }
    if (!o.gate.model_path || optind != argc) {
        fprintf(stderr, "%s: --model PATH is needed, and nothing but options\n", argv[0]);
        return lg_option_usage(argv[0]);
    }
    if (o.strict && o.other_sums) {
        fprintf(stderr,
                "%s: --strict goes with --exchange strict and --wire f32 only: others round "
                "otherwise\n",
                argv[0]);
        return lg_option_usage(argv[0]);
    }
    if (!o.gate.tls_cert != !o.gate.tls_key || (o.gate.tls_client_ca && !o.gate.tls_cert)) {
        fprintf(stderr,
                "%s: --tls-cert and --tls-key go together, and --tls-client-ca with them\n",
                argv[0]);
        return lg_option_usage(argv[0]);
    }
    lg_harden_process(o.core_dumps);
    o.arg[0] = (char *)o.worker;
    if (o.launch.n_rank) {
        o.arg[2] = "--connect";
        o.arg[3] = "@SOCKET";
    }
    if (o.core_dumps) o.arg[o.n_arg++] = "--core-dumps";
    add_arg(&o, "--model", (char *)o.gate.model_path);
    o.gate.worker_argv = o.arg;
    if (o.launch.n_rank) {
        if (!lg_launch_argv(&o.launch, argv[0], o.arg, o.n_arg)) return 1;
        o.gate.worker_argv = o.launch.arg;
    } else if (o.launch.hosts || o.launch.interface || o.launch.min_rank) {
        fprintf(stderr, "%s: --hosts, --interface and --min-ranks go with --ranks\n", argv[0]);
        return lg_option_usage(argv[0]);
    } else if (o.of_ranks) {
        fprintf(stderr, "%s: %s goes with --ranks\n", argv[0], o.of_ranks);
        return lg_option_usage(argv[0]);
    }
    if (!o.gate.name) {
        last_part(o.gate.model_path, name, sizeof name);
        o.gate.name = name;
    }
    printf("Loading %s\n", o.gate.model_path);
    fflush(stdout);
    lg_bar_begin(&bar);
    o.gate.progress = lg_bar_draw;
    o.gate.progress_ctx = &bar;
    if (lg_server_run(&o.gate, say_ready, &err) == LG_OK) return 0;
    lg_bar_end(&bar);
    fprintf(stderr, "%s: %s\n", argv[0], err.msg);
    return 1;
}
