/* worker.c - `lignum worker`: the engine behind a socket that the gateway has opened.
 *
 * In/out: frames on the file descriptor --fd; or, as one of the ranks that mpirun has started (--connect), rank 0's on the
 * socket there, while the other ranks talk to rank 0 alone.  Signals of the terminal are the gateway's business: the worker ends when its
 * socket does.  Thread: one.  Test: tests/e2e */
#include "cli.h"
#include "engine/ranks.h"
#include "link/link.h"
#include "rank_option.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

static const char help[] =
    "Run the engine for a gateway (`lignum serve` starts this by itself).\n"
    "\n"
    "usage: lignum worker --model PATH --fd N [OPTIONS]\n"
    "       mpirun -n N lignum worker --model PATH --connect SOCKET [OPTIONS]\n"
    "\n"
    "  -m, --model PATH    Hugging Face folder or GGUF file\n"
    "      --fd N          connected socket to the gateway\n"
    "      --connect SOCKET\n"
    "                      be one of several ranks (docs/DISTRIBUTED.md); rank 0 connects "
    "there\n"
    "      --ctx N         longest sequence in tokens (default: the model's, less if memory "
    "asks)\n"
    "      --memory SIZE   budget for everything (default: what the machine has, less a "
    "margin)\n"
    "      --device D      cpu (default), or pjrt:PLUGIN.so[,name=value]...: devices behind a "
    "plugin\n"
    "                      (docs/PJRT.md)\n"
    "      --kv TYPE       how keys and values are kept: f32, bf16, f16 (default) or q8_0\n"
    "      --cache-memory SIZE\n"
    "                      of this, for snapshots of kept prefixes (default: a share)\n"
    "      --no-prefix-cache\n"
    "                      keep nothing of a request after its end\n"
    "      --cache-dir DIR keep prefixes in files too, over a restart\n"
    "      --cache-disk SIZE\n"
    "                      most bytes of them (default: a quarter of what is free)\n"
    "      --parallel N    sequences that run at the same time (default: 64)\n"
    "      --threads N     threads (default: physical cores)\n"
    "      --pack-dir DIR  keep packed weights in DIR, as large as the model, so that later "
    "starts take\n"
    "                      them instead of packing\n"
    "      --max-stall MS  longest step in which a prompt may hold up answers (default: 1000, "
    "or 4\n"
    "                      steps without prompts if that is longer; 0: no limit)\n"
    "      --step N        rows of a step at most (default: 512)\n"
    "\n"
    "Ranks:\n"
    "      --rank-timeout SECONDS\n"
    "                      a rank that does not answer in a step for so long is lost\n"
    "                      (default: 8)\n"
    "      --exchange strict|reduce|alltoall|auto\n"
    "                      strict (default): the bits of one process; the others have less "
    "traffic and\n"
    "                      round in another order; auto takes what the measured network "
    "makes\n"
    "                      shorter, step by step\n"
    "      --wire f32|bf16|q8\n"
    "                      rows on their way, not with strict (default: f32)\n"
    "      --overlap on|off\n"
    "                      off: wait for every message at once, to see what it costs\n"
    "      --divide-prompts auto|on|off\n"
    "                      a long prompt of one sequence is computed by all ranks; auto: where "
    "that\n"
    "                      is expected to be shorter, step by step (default: off)\n"
    "      --divide-ctx N  and so are positions before N only; each rank keeps room for them\n"
    "                      (default: 16384)\n"
    "      --divide-answers auto|on|off\n"
    "                      while one rank alone has rows, at most 8, all ranks multiply for "
    "it; "
    "auto:\n"
    "                      where that is expected to be shorter, step by step (default: off)\n"
    "      --trace FILE    write there at the end what every rank did when (Chrome's trace "
    "format)\n"
    "      --hold-prompts STEPS\n"
    "                      a prompt waits so many steps, at most, for prompts of other ranks\n"
    "                      to begin with, while all of them answer (default: 8)\n"
    "      --spare-experts N\n"
    "                      experts that a rank may hold in a layer beyond its share, for\n"
    "                      replicas of those that are used most (default: 0)\n"
    "      --expert-load FILE, --expert-load-out FILE\n"
    "                      how often each expert is used: read for placing them; written\n"
    "                      at the end\n"
    "\n"
    "      --core-dumps    leave a core file at a crash; it holds prompts and answers\n"
    "      --help          print this\n";

enum {
    OPT_FD = 256,
    OPT_CONNECT,
    OPT_OF_RANKS,
    OPT_CTX,
    OPT_MEMORY,
    OPT_KV,
    OPT_DEVICE,
    OPT_CACHE,
    OPT_NO_CACHE,
    OPT_CACHE_DIR,
    OPT_CACHE_DISK,
    OPT_PARALLEL,
    OPT_THREADS,
    OPT_PACK,
    OPT_STALL,
    OPT_STEP,
    OPT_CORE,
    OPT_HELP
};

static const struct option longs[] = {{"model", required_argument, NULL, 'm'},
                                      {"fd", required_argument, NULL, OPT_FD},
                                      {"connect", required_argument, NULL, OPT_CONNECT},
                                      LG_RANK_OPTIONS(OPT_OF_RANKS),
                                      {"ctx", required_argument, NULL, OPT_CTX},
                                      {"memory", required_argument, NULL, OPT_MEMORY},
                                      {"kv", required_argument, NULL, OPT_KV},
                                      {"device", required_argument, NULL, OPT_DEVICE},
                                      {"cache-memory", required_argument, NULL, OPT_CACHE},
                                      {"no-prefix-cache", no_argument, NULL, OPT_NO_CACHE},
                                      {"cache-dir", required_argument, NULL, OPT_CACHE_DIR},
                                      {"cache-disk", required_argument, NULL, OPT_CACHE_DISK},
                                      {"parallel", required_argument, NULL, OPT_PARALLEL},
                                      {"threads", required_argument, NULL, OPT_THREADS},
                                      {"pack-dir", required_argument, NULL, OPT_PACK},
                                      {"max-stall", required_argument, NULL, OPT_STALL},
                                      {"step", required_argument, NULL, OPT_STEP},
                                      {"core-dumps", no_argument, NULL, OPT_CORE},
                                      {"help", no_argument, NULL, OPT_HELP},
                                      {NULL, 0, NULL, 0}};

/* One of several ranks.  A rank that fails ends them all; a launcher that dies takes its ranks with it. */
static int run_rank(const char *argv0, lg_options *opt, const lg_ranks_opt *ropt,
                    const char *path) {
    lg_err err = {0};
    lg_status st;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (lg_ranks_join(ropt, &opt->ranks, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
        return 1;
    }
    if (opt->ranks->comm.rank > 0) {
        st = lg_ranks_serve(opt->ranks, opt, &err);
        if (st != LG_OK)
            fprintf(stderr, "%s: rank %u: %s\n", argv0, opt->ranks->comm.rank, err.msg);
    } else {
        int fd = lg_link_connect(path, &err);
        st = fd >= 0 ? lg_link_serve(fd, opt, &err) : err.code;
        if (fd < 0) fprintf(stderr, "%s: %s\n", argv0, err.msg);
    }
    lg_ranks_leave(&opt->ranks, st != LG_OK);
    return st == LG_OK ? 0 : 1;
}

int lg_worker_main(int argc, char **argv) {
    lg_options opt;
    lg_ranks_opt ranks = {.how = {.divide_ctx = LG_DIVIDE_CTX},
                          .hold_steps = LG_RANKS_HOLD_STEPS};
    const char *path = NULL;
    lg_err err = {0};
    uint64_t n_ctx = 0, n_seq = 0, n_step = 0, stall_ms = 0;
    int c, at = 0, fd = -1;
    bool core_dumps = false;
    lg_options_init(&opt);
    opt.max_stall_us = LG_STALL_AUTO;
    while ((c = getopt_long(argc, argv, "m:", longs, &at)) != -1) {
        bool ok = true;
        switch (c) {
        case 'm': opt.model_path = optarg; break;
        case OPT_FD: ok = lg_option_int(argv[0], "--fd", optarg, 0, 1 << 20, &fd); break;
        case OPT_CTX: ok = lg_option_u64(argv[0], "--ctx", optarg, 2, 1 << 22, &n_ctx); break;
        case OPT_MEMORY:
            ok = lg_option_size(argv[0], "--memory", optarg, &opt.memory_bytes);
            break;
        case OPT_KV: ok = lg_option_kv(argv[0], optarg, &opt.kv); break;
        case OPT_DEVICE: opt.device = optarg; break;
        case OPT_CACHE:
            ok = lg_option_size(argv[0], "--cache-memory", optarg, &opt.cache_bytes);
            break;
        case OPT_NO_CACHE: opt.no_cache = true; break;
        case OPT_CACHE_DIR: opt.cache_dir = optarg; break;
        case OPT_CACHE_DISK:
            ok = lg_option_size(argv[0], "--cache-disk", optarg, &opt.cache_disk_bytes);
            break;
        case OPT_PACK: opt.pack_dir = optarg; break;
        case OPT_PARALLEL:
            ok = lg_option_u64(argv[0], "--parallel", optarg, 1, 4096, &n_seq);
            break;
        case OPT_THREADS:
            ok = lg_option_int(argv[0], "--threads", optarg, 1, 1024, &opt.n_thread);
            break;
        case OPT_STALL:
            ok = lg_option_u64(argv[0], "--max-stall", optarg, 0, 3600000, &stall_ms);
            opt.max_stall_us = stall_ms * 1000;
            break;
        case OPT_STEP:
            ok = lg_option_u64(argv[0], "--step", optarg, 1, LG_OPTION_STEP_MAX, &n_step);
            break;
        case OPT_CONNECT: path = optarg; break;
        case OPT_CORE: core_dumps = true; break;
        case OPT_HELP: fputs(help, stdout); return 0;
        case OPT_OF_RANKS: ok = lg_rank_option(argv[0], longs[at].name, optarg, &ranks); break;
        default: ok = false;
        }
        if (!ok) return lg_option_usage(argv[0]);
    }
    if (!opt.model_path || (fd < 0) == !path || optind != argc) {
        fprintf(stderr,
                "%s: --model and either --fd or --connect are needed, and only options\n",
                argv[0]);
        return lg_option_usage(argv[0]);
    }
    opt.n_ctx = (uint32_t)n_ctx;
    opt.n_seq = (uint32_t)n_seq;
    opt.n_batch_tok = (uint32_t)n_step;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    lg_harden_process(core_dumps);
    prctl(PR_SET_NAME, "lignum-worker");
    if (path) return run_rank(argv[0], &opt, &ranks, path);
    if (lg_link_serve(fd, &opt, &err) == LG_OK) return 0;
    /* The gateway has been told in a GOODBYE frame and reports it. */
    return 1;
}
