/* main.c - the program `lignum`: finds the command and calls it.
 *
 * Each command owns its options and its help: see cli.h.  Test: tests/py/cli.py */
#include "cli.h"
#include "base/diag.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

/* Ends with a row of NULLs. */
static const command table[] = {
    {"run", lg_run_main, "answer a prompt or hold a conversation"},
    {"bench", lg_bench_main, "measure the speed of prompts and answers"},
    {"inspect", lg_inspect_main, "show what a model holds and needs"},
    {"plan", lg_plan_main, "how fast a model can be on some hardware"},
    {"compile", lg_compile_main, "compile a model's steps for TPUs, and show what they need"},
    {"quantize", lg_quantize_main, "write a model folder as a GGUF file"},
    {"imatrix", lg_imatrix_main, "measure which channels of a model matter"},
    {"perplexity", lg_perplexity_main, "measure how well a model predicts a text"},
    {"verify", lg_verify_main, "measure what the kernels' rounding costs"},
    {"serve", lg_serve_main, "serve a model to OpenAI-compatible clients"},
    {"keys", lg_keys_main, "keep the API keys of serve"},
    {"worker", lg_worker_main, "run the engine for a gateway"},
    {"group", lg_group_main, "start ranks on the hosts that answer"},
    {NULL, NULL, NULL},
};

static void print_help(FILE *out) {
    fputs("Lignum runs language models of the Qwen3.5 family.\n"
          "\n"
          "usage: lignum COMMAND [OPTIONS]\n"
          "\n"
          "commands:\n",
          out);
    for (const command *c = table; c->name; c++)
        fprintf(out, "  %-10s %s\n", c->name, c->summary);
    fputs(
        "  help       explain a command: lignum help COMMAND\n"
        "\n"
        "options:\n"
        "  --help     print this\n"
        "  --version  print version, build, compiler and processor features\n"
        "\n"
        "environment:\n"
        "  LG_LOG     error, warning (default), info or debug: what goes to standard error\n"
        "  LG_CPU     ref, avx2, avxvnni, avx512, avx512vnni or amx: kernels to use instead of "
        "the best\n"
        "             ones here\n",
        out);
}

/* Call a command with argv[0] = "lignum NAME", so that its messages start with that. */
static int call(const command *c, int argc, char **argv) {
    char name[64];
    snprintf(name, sizeof name, "lignum %s", c->name);
    argv[0] = name;
    optind = 0;
    return c->run(argc, argv);
}

static const command *find(const char *name) {
    for (const command *c = table; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    fprintf(stderr, "lignum: no command '%s'; try 'lignum --help'\n", name);
    return NULL;
}

/* Take the log level from LG_LOG.  false when it names none (reported). */
static bool set_log_level(void) {
    static const char *const name[] = {"error", "warning", "info", "debug"};
    const char *wish = getenv("LG_LOG");
    if (!wish || !*wish) return true;
    for (int i = 0; i < 4; i++)
        if (strcmp(wish, name[i]) == 0) {
            lg_diag_set_level((lg_log_level)i);
            return true;
        }
    fprintf(stderr, "lignum: LG_LOG=%s: expected error, warning, info or debug\n", wish);
    return false;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("lignum %s\n", lg_version());
        return 0;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return 0;
    }
    const command *c = find(argv[help ? 2 : 1]);
    if (!c || !set_log_level()) return 2;
    if (help) return call(c, 2, (char *[]){argv[2], "--help", NULL});
    return call(c, argc - 1, argv + 1);
}
