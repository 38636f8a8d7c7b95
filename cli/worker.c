/* worker.c - `lignum worker`: the engine behind a socket that the gateway has opened.
 *
 * In/out: frames on the file descriptor --fd.  Signals of the terminal are the gateway's business: the worker ends when its
 * socket does.  Thread: one.  Test: tests/e2e */
#include "cli.h"
#include "link/link.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

static const char help[] =
    "Run the engine for a gateway (`lignum serve` starts this by itself).\n"
    "\n"
    "usage: lignum worker --model PATH --fd N [OPTIONS]\n"
    "\n"
    "  -m, --model PATH    Hugging Face folder or GGUF file\n"
    "      --fd N          connected socket to the gateway\n"
    "      --ctx N         longest sequence in tokens (default: the model's, less if memory "
    "asks)\n"
    "      --memory SIZE   budget for everything (default: what the machine has, less a "
    "margin)\n"
    "      --kv TYPE       how keys and values are kept: f32, bf16, f16 (default) or q8_0\n"
    "      --cache-memory SIZE\n"
    "                      of this, for snapshots of kept prefixes (default: a share)\n"
    "      --no-prefix-cache\n"
    "                      keep nothing of a request after its end\n"
    "      --parallel N    sequences that run at the same time (default: 64)\n"
    "      --threads N     threads (default: physical cores)\n"
    "      --max-stall MS  longest step in which a prompt may hold up answers (default: 1000; "
    "0: no\n"
    "                      limit)\n"
    "      --core-dumps    leave a core file at a crash; it holds prompts and answers\n"
    "      --help          print this\n";

enum {
    OPT_FD = 256,
    OPT_CTX,
    OPT_MEMORY,
    OPT_KV,
    OPT_CACHE,
    OPT_NO_CACHE,
    OPT_PARALLEL,
    OPT_THREADS,
    OPT_STALL,
    OPT_CORE,
    OPT_HELP
};

static const struct option longs[] = {{"model", required_argument, NULL, 'm'},
                                      {"fd", required_argument, NULL, OPT_FD},
                                      {"ctx", required_argument, NULL, OPT_CTX},
                                      {"memory", required_argument, NULL, OPT_MEMORY},
                                      {"kv", required_argument, NULL, OPT_KV},
                                      {"cache-memory", required_argument, NULL, OPT_CACHE},
                                      {"no-prefix-cache", no_argument, NULL, OPT_NO_CACHE},
                                      {"parallel", required_argument, NULL, OPT_PARALLEL},
                                      {"threads", required_argument, NULL, OPT_THREADS},
                                      {"max-stall", required_argument, NULL, OPT_STALL},
                                      {"core-dumps", no_argument, NULL, OPT_CORE},
                                      {"help", no_argument, NULL, OPT_HELP},
                                      {NULL, 0, NULL, 0}};

int lg_worker_main(int argc, char **argv) {
    lg_options opt;
    lg_err err = {0};
    uint64_t n_ctx = 0, n_seq = 0, stall_ms = 1000;
    int c, fd = -1;
    bool core_dumps = false;
    lg_options_init(&opt);
    while ((c = getopt_long(argc, argv, "m:", longs, NULL)) != -1) {
        bool ok = true;
        switch (c) {
        case 'm': opt.model_path = optarg; break;
        case OPT_FD: ok = lg_option_int(argv[0], "--fd", optarg, 0, 1 << 20, &fd); break;
        case OPT_CTX: ok = lg_option_u64(argv[0], "--ctx", optarg, 2, 1 << 22, &n_ctx); break;
        case OPT_MEMORY:
            ok = lg_option_size(argv[0], "--memory", optarg, &opt.memory_bytes);
            break;
        case OPT_KV: ok = lg_option_kv(argv[0], optarg, &opt.kv); break;
        case OPT_CACHE:
            ok = lg_option_size(argv[0], "--cache-memory", optarg, &opt.cache_bytes);
            break;
        case OPT_NO_CACHE: opt.no_cache = true; break;
        case OPT_PARALLEL:
            ok = lg_option_u64(argv[0], "--parallel", optarg, 1, 4096, &n_seq);
            break;
        case OPT_THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &opt.n_thread);
            break;
        case OPT_STALL:
            ok = lg_option_u64(argv[0], "--max-stall", optarg, 0, 3600000, &stall_ms);
            break;
        case OPT_CORE: core_dumps = true; break;
        case OPT_HELP: fputs(help, stdout); return 0;
        default: ok = false;
        }
        if (!ok) return lg_option_usage(argv[0]);
    }
    if (!opt.model_path || fd < 0 || optind != argc) {
        fprintf(stderr, "%s: --model and --fd are needed, and nothing else\n", argv[0]);
        return lg_option_usage(argv[0]);
    }
    opt.n_ctx = (uint32_t)n_ctx;
    opt.n_seq = (uint32_t)n_seq;
    opt.max_stall_us = stall_ms * 1000;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    lg_harden_process(core_dumps);
    prctl(PR_SET_NAME, "lignum-worker");
    if (lg_link_serve(fd, &opt, &err) == LG_OK) return 0;
    /* The gateway has been told in a GOODBYE frame and reports it. */
    return 1;
}
