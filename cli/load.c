/* load.c - open a model for a command: where the bundled one lies, and a progress bar when loading takes long.
 *
 * Used by: run.c, bench.c.  Test: tests/py/run.py */
#include "cli.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)

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

/* ---- progress ---- */

typedef struct bar {
    uint64_t start_us, shown_us; /* shown_us: 0 = nothing on the screen */
} bar;

/* Draw "loading [####....]  42 %  1.2 of 2.9 GiB  812 MiB/s  2 s left", ten times a second at most, after a second. */
static bool draw(void *ctx, uint64_t done, uint64_t total) {
    bar *b = ctx;
    uint64_t now = lg_clock_us();
    if (now - b->start_us < 1000000 || now - b->shown_us < 100000) return false;
    if (total == 0 || done > total) return false;
    b->shown_us = now;
    double rate = (double)done / (double)(now - b->start_us) * 1e6; /* bytes a second */
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    int filled = (int)(30.0 * (double)done / (double)total);
    fprintf(stderr,
            "\rloading [%.*s%.*s] %3d %%  %.0f of %.0f MiB  %.0f MiB/s  %.0f s left \x1b[K",
            filled, "##############################", 30 - filled,
            "..............................", (int)(100.0 * (double)done / (double)total),
            (double)done / MIB, (double)total / MIB, rate / MIB, left);
    return false;
}

bool lg_load_open(const char *argv0, lg_options *opt, lg_engine **eng) {
    char path[2048];
    lg_err err = {0};
    if (!opt->model_path) opt->model_path = lg_load_default(path, sizeof path);
    if (!opt->model_path) {
        fprintf(stderr, "%s: no model given (--model PATH), and the bundled one is not here\n",
                argv0);
        return false;
    }
    bar b = {.start_us = lg_clock_us()};
    if (isatty(STDERR_FILENO)) {
        opt->progress = draw;
        opt->progress_ctx = &b;
    }
    lg_status st = lg_open(opt, eng, &err);
    if (b.shown_us) fputs("\r\x1b[K", stderr);
    if (st == LG_OK) return true;
    fprintf(stderr, "%s: %s: %s\n", argv0, lg_status_name(st), err.msg);
    return false;
}
