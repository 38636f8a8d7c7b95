/* test_kern_level.c - the choice of a level and LG_CPU; what is not a number stays in its row and its channel at every level.
 * The choice is made once in a process, so each case asks a process of its own. */
#include "kern_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* What a process with LG_CPU=wish (NULL: unset) chooses, and what it writes to standard error. */
static void ask(const char *wish, char *name, size_t name_cap, char *said, size_t said_cap) {
    int out[2], err[2];
    assert_true(pipe(out) == 0 && pipe(err) == 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (wish)
            setenv("LG_CPU", wish, 1);
        else
            unsetenv("LG_CPU");
        dup2(err[1], STDERR_FILENO);
        const lg_kern *k = lg_kern_get();
        bool same = lg_kern_get() == k && lg_kern_level("ref");
        bool good = same && write(out[1], k->name, strlen(k->name)) > 0;
        _exit(good ? 0 : 1);
    }
    close(out[1]);
    close(err[1]);
    ssize_t n = read(out[0], name, name_cap - 1);
    name[n > 0 ? n : 0] = 0;
    size_t at = 0;
    while (at < said_cap - 1 && (n = read(err[0], said + at, said_cap - 1 - at)) > 0)
        at += (size_t)n;
    said[at] = 0;
    close(out[0]);
    close(err[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A name that is no level is reported once, with what is used instead. */
static void test_unknown_wish(void **state) {
    (void)state;
    static const char *const wishes[] = {"sse9", "AVX2", "ref ", "avx2,avx512"};
    char name[32], said[512], best[32], line[128];
    ask(NULL, best, sizeof best, said, sizeof said);
    for (size_t i = 0; i < LG_COUNT(wishes); i++) {
        ask(wishes[i], name, sizeof name, said, sizeof said);
        assert_string_equal(name, best);
        snprintf(line, sizeof line,
                 "lignum: warning: LG_CPU=%s is not available here, using %s\n", wishes[i],
                 best);
        assert_string_equal(said, line);
    }
}

/* Each level by its name; the parent asks for levels only after the last child has been asked. */
static void test_wishes(void **state) {
    (void)state;
    const char *wish[2 + MAX_LEVEL] = {NULL, ""}, *best = "ref";
    char name[LG_COUNT(wish)][32], said[LG_COUNT(wish)][512];
    size_t n = 2;
    for (int i = 0; lg_kern_names[i]; i++) wish[n++] = lg_kern_names[i];
    for (size_t i = 0; i < n; i++)
        ask(wish[i], name[i], sizeof name[i], said[i], sizeof said[i]);
    for (size_t i = 2; i < n; i++)
        if (lg_kern_level(wish[i])) best = wish[i];
    for (size_t i = 0; i < n; i++) {
        bool known = i < 2 || lg_kern_level(wish[i]);
        assert_string_equal(name[i], i < 2 || !known ? best : wish[i]);
        assert_int_equal(said[i][0] != 0, !known);
    }
}

/* Overwrite weight [c][k] with a NaN of the type. */
static void put_nan(lg_mat *w, void *panel, uint32_t c, uint32_t k) {
    size_t i = ((size_t)(c / LG_NR) * w->n_in + k) * LG_NR + c % LG_NR;
    switch (w->type) {
    case LG_F32: ((float *)panel)[i] = NAN; break;
    case LG_BF16: ((uint16_t *)panel)[i] = 0x7fc0; break;
    case LG_F16: ((uint16_t *)panel)[i] = 0xfe00; break;
    default: ((uint8_t *)panel)[i] = 0xff; break;
    }
}

/* Row BAD_ROW of x and channel BAD_OUT of the weights hold a NaN: exactly their results are NaN, and the rest keeps its bits. */
static void check_nan(const lg_kern *k, lg_dtype type, uint32_t n_row) {
    enum { N = 70, K = 130, BAD_OUT = 37, BAD_ROW = 1 };
    lg_mat w = random_mat(type, N, K), broken = w;
    size_t bytes = (size_t)lg_mat_n_panel(&w) * K * LG_NR * lg_dtype_bytes(type);
    void *panel = guarded(bytes);
    memcpy(panel, w.panel, bytes);
    broken.panel = panel;
    put_nan(&broken, panel, BAD_OUT, 77);
    float *x = random_floats((size_t)n_row * K, -1, 1);
    float *want = filled_floats((size_t)n_row * N, 0), *y = filled_floats((size_t)n_row * N, 0);
    k->gemm(&w, 0, lg_mat_n_panel(&w), x, K, NULL, n_row, want, N);
    if (n_row > BAD_ROW) x[BAD_ROW * K + 129] = NAN;
    k->gemm(&broken, 0, lg_mat_n_panel(&broken), x, K, NULL, n_row, y, N);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t c = 0; c < N; c++) {
            if (r == BAD_ROW || c == BAD_OUT)
                assert_true(isnan(y[r * N + c]));
            else
                assert_memory_equal(&y[r * N + c], &want[r * N + c], sizeof *y);
        }
    guarded_free();
}

static void test_nan_stays_in_its_row_and_channel(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 4, 7, 40};
    for (int i = 0; lg_kern_names[i]; i++) {
        const lg_kern *k = lg_kern_level(lg_kern_names[i]);
        for (int type = 0; k && type < LG_Q4_0; type++)
            for (size_t r = 0; r < LG_COUNT(rows); r++) check_nan(k, (lg_dtype)type, rows[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_wish),
        cmocka_unit_test(test_wishes),
        cmocka_unit_test(test_nan_stays_in_its_row_and_channel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
