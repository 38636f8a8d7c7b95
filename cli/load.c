/* load.c - open a model for a command: where the bundled one lies, and how far loading is.
 *
 * Used by: run.c, bench.c.  Test: tests/py/run.py */
#include "cli.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *lg_load_default(char *path, size_t size_bytes) {
    /* Beside the build (build/cli/lignum), as installed (bin/lignum), and where we stand. */
    static const char *const place[] = {"/../../models/tiny-qwen35moe",
                                        "/../share/lignum/models/tiny-qwen35moe"};
    char exe[1024];
    struct stat st;
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[len > 0 ? len : 0] = 0;
    char *slash = strrchr(exe, '/');
    if (slash) *slash = 0;
    for (size_t i = 0; slash && i < sizeof place / sizeof *place; i++) {
        int n = snprintf(path, size_bytes, "%s%s", exe, place[i]);
        if (n > 0 && (size_t)n < size_bytes && stat(path, &st) == 0) return path;
    }
    snprintf(path, size_bytes, "models/tiny-qwen35moe");
    return stat(path, &st) == 0 ? path : NULL;
}

#ifdef LG_TEST_HOOKS
/* Test build: loading takes LG_HOOK_SLOW_LOAD milliseconds longer before each report. */
static bool slow_progress(void *ctx, uint64_t done, uint64_t total) {
    const char *ms = getenv("LG_HOOK_SLOW_LOAD");
    if (ms) lg_clock_sleep_us(strtoull(ms, NULL, 10) * 1000);
    return lg_bar_draw(ctx, done, total);
}
#else
#define slow_progress lg_bar_draw
#endif

bool lg_load_open(const char *argv0, lg_options *opt, lg_engine **eng) {
    char path[2048];
    lg_err err = {0};
    if (!opt->model_path) opt->model_path = lg_load_default(path, sizeof path);
    if (!opt->model_path) {
        fprintf(stderr, "%s: no model given (--model PATH), and the bundled one is not here\n",
                argv0);
        return false;
    }
    lg_bar b;
    lg_bar_begin(&b);
    opt->progress = slow_progress;
    opt->progress_ctx = &b;
    lg_status st = lg_open(opt, eng, &err);
    opt->progress = NULL; /* b ends here */
    lg_bar_end(&b);
    if (st == LG_OK) return true;
    fprintf(stderr, "%s: %s: %s\n", argv0, lg_status_name(st), err.msg);
    return false;
}
