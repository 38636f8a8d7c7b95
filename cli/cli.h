/* cli.h - the map of cli/: one entry point for each command of the program `lignum`.
 *
 * A command is called with its own arguments; argv[0] is "lignum NAME".  It reads options with getopt_long (optind is
 * set to start over), and
 *   - prints its help to standard output and returns 0 for --help (`lignum help NAME` calls it so);
 *   - returns lg_option_usage(argv[0]) after a wrong option, which getopt_long has already reported;
 *   - returns 0 when it did its work and 1 when it could not, with the reason on standard error.
 * To add one: write cli/NAME.c, list it in cli/meson.build, declare it here and add its line to the table in main.c. */
#ifndef LG_CLI_H
#define LG_CLI_H

#include "lignum.h"

/* ---- Commands ---- */

/* Endpoints and answers. */
int lg_serve_main(int argc, char **argv);  /* serve.c: the gateway */
int lg_worker_main(int argc, char **argv); /* worker.c: the engine for a gateway */
int lg_group_main(int argc, char **argv);  /* group.c: ranks on the hosts that answer */
int lg_run_main(int argc, char **argv);    /* run.c: a conversation in this process */
int lg_keys_main(int argc, char **argv);   /* keys.c: the keys file of serve */

/* Speed. */
int lg_bench_main(int argc, char **argv);   /* bench.c: of prompts and answers */
int lg_plan_main(int argc, char **argv);    /* plan.c: what some hardware allows */
int lg_compile_main(int argc, char **argv); /* compile.c: programs for other devices */

/* Models as files, and how good they are. */
int lg_inspect_main(int argc, char **argv);    /* inspect.c: what a folder holds */
int lg_quantize_main(int argc, char **argv);   /* quantize.c: a folder to a GGUF file */
int lg_imatrix_main(int argc, char **argv);    /* imatrix.c: which channels a text drives */
int lg_verify_main(int argc, char **argv);     /* verify.c: what rounding costs */
int lg_perplexity_main(int argc, char **argv); /* perplexity.c: how well a text is predicted */

/* ---- Start of a service (harden.c) ---- */

/* No new privileges; and, unless core_dumps, no core file and no other process that looks into this one. */
void lg_harden_process(bool core_dumps);

/* ---- Models (load.c) ---- */

/* Path of the bundled model into path[size_bytes], or NULL when it is not found. */
const char *lg_load_default(char *path, size_t size_bytes);

/* lg_open with a bar (bar.c); opt->model_path NULL means the bundled model.
 * The caller owns *eng.  false when it failed (reported). */
bool lg_load_open(const char *argv0, lg_options *opt, lg_engine **eng);

/* ---- Busy processes beside a measurement (beside.c) ---- */

#define LG_BESIDE_MAX 64

typedef struct lg_beside {
    int pid[LG_BESIDE_MAX];
    uint32_t n;
} lg_beside;

/* Make n processes that are stopped; before this process has threads.  false: not all could be made. */
bool lg_beside_start(lg_beside *b, uint32_t n);

/* Let them compute, or stop them. */
void lg_beside_run(const lg_beside *b, bool run);
void lg_beside_end(lg_beside *b);

/* Part of its speed alone that a program of n_thread threads has when the allowed processors are shared out evenly. */
double lg_beside_share(uint32_t n_thread, uint32_t n_busy);

/* ---- How far loading is (bar.c) ---- */

typedef struct lg_bar {
    bool terminal;
    uint64_t start_us, shown_us; /* shown_us 0: nothing shown yet */
} lg_bar;

void lg_bar_begin(lg_bar *b);

/* An lg_progress_fn with an lg_bar as ctx: after a second, a bar on standard error, drawn again at most ten times a second;
 * a line every ten seconds where that is no terminal.  Always false. */
bool lg_bar_draw(void *ctx, uint64_t done_bytes, uint64_t total_bytes);

/* Wipe the bar. */
void lg_bar_end(const lg_bar *b);

/* "loading [###...]  33 %  1000 of 3000 MiB  500 MiB/s  4 s left" into text[cap], NUL-terminated; done <= total. */
void lg_bar_text(char *text, size_t cap, uint64_t done, uint64_t total, uint64_t elapsed_us);

/* ---- Values of options (option.c) ---- */

/* "lignum run: try 'lignum run --help'" on standard error.  Returns 2, the exit status for wrong usage. */
int lg_option_usage(const char *argv0);

/* Read a whole number in [min, max] into *out.  On failure names option (such as "--port"), range and text on standard
 * error, and returns false. */
bool lg_option_u64(const char *argv0, const char *option, const char *text, uint64_t min,
                   uint64_t max, uint64_t *out);

#define LG_OPTION_STEP_MAX 65536 /* most rows of a step: lg_options.n_batch_tok */

/* As lg_option_u64 for an int. */
bool lg_option_int(const char *argv0, const char *option, const char *text, int min, int max,
                   int *out);

/* Read a finite number in [min, max]. */
bool lg_option_float(const char *argv0, const char *option, const char *text, float min,
                     float max, float *out);

/* Read a size with an optional suffix K, M, G or T (powers of 1024; "iB" or "B" may follow): "8G", "1.5GiB", "4096".
 * At least 1 byte. */
bool lg_option_size(const char *argv0, const char *option, const char *text, uint64_t *out);

/* How keys and values are kept: "f32", "bf16", "f16" or "q8_0". */
bool lg_option_kv(const char *argv0, const char *text, lg_kv_type *out);

/* That name. */
const char *lg_option_kv_name(lg_kv_type kv);

#endif
