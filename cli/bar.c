/* bar.c - how far loading is: a bar on a terminal, a line now and then elsewhere.
 *
 * In:  bytes done and to do, as often as they come.   Out: standard error.  Nothing in the first second.
 * Used by: load.c (this process loads), serve.c (the worker does and tells).
 * Test: tests/unit/test_bar.c, tests/py/run.py, tests/e2e/test_worker.py */
#include "cli.h"
#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#define MIB 1048576.0

enum { WIDTH = 30, WAIT_US = 1000000, TERMINAL_US = 100000, LINES_US = 10000000 };

void lg_bar_text(char *text, size_t cap, uint64_t done, uint64_t total, uint64_t elapsed_us) {
    static const char full[] = "##############################";
    static const char empty[] = "..............................";
    double part = total ? (double)done / (double)total : 1;
    double rate = elapsed_us ? (double)done / (double)elapsed_us * 1e6 : 0; /* bytes a second */
    int filled = (int)(WIDTH * part);
    int n = snprintf(text, cap, "loading [%.*s%.*s] %3d %%  %.0f of %.0f MiB  %.0f MiB/s",
                     filled, full, WIDTH - filled, empty, (int)(100 * part), (double)done / MIB,
                     (double)total / MIB, rate / MIB);
    if (rate > 0 && n > 0 && (size_t)n < cap)
        snprintf(text + n, cap - (size_t)n, "  %.0f s left", (double)(total - done) / rate);
}

void lg_bar_begin(lg_bar *b) {
    *b = (lg_bar){.terminal = isatty(STDERR_FILENO) == 1, .start_us = lg_clock_us()};
}

bool lg_bar_draw(void *ctx, uint64_t done_bytes, uint64_t total_bytes) {
    lg_bar *b = ctx;
    char text[160];
    uint64_t now = lg_clock_us(), pause_us = b->terminal ? TERMINAL_US : LINES_US;
    if (now - b->start_us < WAIT_US || now - b->shown_us < pause_us) return false;
    if (total_bytes == 0 || done_bytes > total_bytes) return false;
    b->shown_us = now;
    lg_bar_text(text, sizeof text, done_bytes, total_bytes, now - b->start_us);
    fprintf(stderr, b->terminal ? "\r%s\x1b[K" : "%s\n", text);
    return false;
}

void lg_bar_end(const lg_bar *b) {
    if (b->terminal && b->shown_us) fputs("\r\x1b[K", stderr);
}
