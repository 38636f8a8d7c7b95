/* aot.c - a compile in a child process (aot.h).
 *
 * The child writes status, message and answer as structs of this very program, in one go, and leaves by _exit: nothing of the
 * parent's is flushed or freed twice.  Test: tests/py/compile.py */
#include "backend/pjrt/plugin/aot.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct job {
    const lg_aot *a;
    /* a compile, or with dev the topology */
    const lg_buf *text;
    const lg_pjrt_compile *how;
    uint64_t copy_bytes;
    lg_aot_result *result;
    lg_pjrt_device_info *dev;
    uint32_t *n_dev;
} job;

static void on_cost(void *ctx, const char *name, double value) {
    lg_aot_result *r = ctx;
    if (strcmp(name, "flops") == 0) r->flops = value;
    if (strcmp(name, "bytes accessed") == 0) r->accessed_bytes = value;
}

static lg_status compile(lg_pjrt_topo *t, const job *j, lg_err *err) {
    lg_aot_result *r = j->result;
    lg_pjrt_exe *exe;
    lg_buf proto = {0};
    uint64_t start = lg_clock_us();
    r->flops = r->accessed_bytes = -1;
    LG_TRY(
        lg_pjrt_exe_compile_for(t, lg_buf_str(j->text), j->text->len_bytes, j->how, &exe, err));
    r->seconds = (double)(lg_clock_us() - start) / 1e6;
    lg_status st = lg_pjrt_exe_memory_of(exe, &r->memory, err);
    if (st == LG_OK) st = lg_pjrt_exe_cost(exe, on_cost, r, err);
    if (st == LG_OK) st = lg_pjrt_exe_optimised(exe, &proto, err);
    if (st == LG_OK)
        st = lg_report_count(proto.data, proto.len_bytes, j->copy_bytes, &r->sum, err);
    lg_buf_fini(&proto);
    return st;
}

static lg_status work(const job *j, lg_err *err) {
    lg_pjrt_options o;
    lg_pjrt_plugin *p;
    lg_pjrt_topo *t;
    LG_TRY(lg_pjrt_options_parse(j->a->options, &o, err));
    LG_TRY(lg_pjrt_plugin_open(j->a->plugin, &p, err));
    LG_TRY(lg_pjrt_topo_open(p, j->a->topology, &o, &t, err));
    if (j->text) return compile(t, j, err);
    *j->n_dev = lg_pjrt_topo_n(t);
    if (*j->n_dev > LG_PJRT_MAX_DEV)
        return LG_FAIL(err, LG_E_UNSUPPORTED, "%s: %u devices, at most %d are compiled for",
                       j->a->topology, *j->n_dev, LG_PJRT_MAX_DEV);
    for (uint32_t i = 0; i < *j->n_dev; i++) lg_pjrt_topo_info(t, i, &j->dev[i]);
    return LG_OK;
}

static bool put_all(int fd, const void *data, size_t n) {
    for (const char *p = data; n;) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

static bool get_all(int fd, void *data, size_t n) {
    for (char *p = data; n;) {
        ssize_t r = read(fd, p, n);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

/* The child.  libtpu asks a metadata server and locks a file of the machine unless told not to, and logs a lot. */
static _Noreturn void child(const job *j, int fd) {
    lg_err err = {0};
    setenv("TPU_SKIP_MDS_QUERY", "1", 1);
    setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true", 1);
    const char *log = getenv("LG_LOG");
    if (!log || strcmp(log, "debug") != 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0) dup2(null, 2);
    }
    lg_status st = work(j, &err);
    bool ok = put_all(fd, &st, sizeof st) && put_all(fd, &err, sizeof err);
    if (ok && st == LG_OK && j->text) ok = put_all(fd, j->result, sizeof *j->result);
    if (ok && st == LG_OK && !j->text)
        ok = put_all(fd, j->n_dev, sizeof *j->n_dev) &&
             put_all(fd, j->dev, *j->n_dev * sizeof *j->dev);
    _exit(ok ? 0 : 1);
}

static bool receive(const job *j, int fd, lg_status *st, lg_err *err) {
    lg_err e;
    if (!get_all(fd, st, sizeof *st) || !get_all(fd, &e, sizeof e)) return false;
    if (*st != LG_OK) {
        if (err) *err = e;
        return true;
    }
    if (j->text) return get_all(fd, j->result, sizeof *j->result);
    return get_all(fd, j->n_dev, sizeof *j->n_dev) && *j->n_dev <= LG_PJRT_MAX_DEV &&
           get_all(fd, j->dev, *j->n_dev * sizeof *j->dev);
}

static lg_status in_child(const job *j, lg_err *err) {
    int fd[2], status = 0;
    lg_status st = LG_E_BACKEND;
    if (pipe(fd) != 0) return LG_FAIL(err, LG_E_IO, "compile: pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(fd[0]);
        close(fd[1]);
        return LG_FAIL(err, LG_E_IO, "compile: fork: %s", strerror(errno));
    }
    if (pid == 0) {
        close(fd[0]);
        child(j, fd[1]);
    }
    close(fd[1]);
    bool ok = receive(j, fd[0], &st, err);
    close(fd[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (ok) return st;
    if (WIFSIGNALED(status))
        return LG_FAIL(err, LG_E_BACKEND, "%s: the compiler ended by signal %d", j->a->plugin,
                       WTERMSIG(status));
    return LG_FAIL(err, LG_E_BACKEND, "%s: the compiler ended without an answer, status %d",
                   j->a->plugin, WEXITSTATUS(status));
}

lg_status lg_aot_devices(const lg_aot *a, lg_pjrt_device_info *dev, uint32_t *n, lg_err *err) {
    return in_child(&(job){.a = a, .dev = dev, .n_dev = n}, err);
}

lg_status lg_aot_compile(const lg_aot *a, const lg_buf *text, const lg_pjrt_compile *how,
                         uint64_t copy_bytes, lg_aot_result *r, lg_err *err) {
    return in_child(
        &(job){.a = a, .text = text, .how = how, .copy_bytes = copy_bytes, .result = r}, err);
}
