/* launch.c - `lignum serve --ranks`: how mpirun is called.
 *
 * On one machine nothing listens on a network: messages go through shared memory, mpirun's own sockets stay on the loopback
 * interface, and its files are in the gateway's private folder (@DIR, see link.h).  Over several hosts both kinds of sockets stay on
 * the interface that was named.  Test: tests/e2e/test_ranks.py */
#include "launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void add(lg_launch *l, const char *const *text, size_t n) {
    for (size_t i = 0; i < n && l->n_arg + 1 < LG_LAUNCH_MAX_ARG; i++)
        l->arg[l->n_arg++] = (char *)(size_t)text[i];
}

#define ADD(l, ...)                                                                            \
    add(l, (const char *const[]){__VA_ARGS__},                                                 \
        sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* Whether a program is in PATH. */
static bool in_path(const char *name) {
    const char *path = getenv("PATH");
    char full[4096];
    while (path && *path) {
        size_t n = strcspn(path, ":");
        int len = snprintf(full, sizeof full, "%.*s/%s", (int)n, path, name);
        if (len > 0 && (size_t)len < sizeof full && access(full, X_OK) == 0) return true;
        path += n + (path[n] == ':');
    }
    return false;
}

bool lg_launch_argv(lg_launch *l, const char *argv0, char *const *worker, size_t n_worker) {
    if (!in_path("mpirun")) {
        fprintf(stderr, "%s: --ranks: mpirun is not in PATH (Debian: openmpi-bin)\n", argv0);
        return false;
    }
    if (l->hosts && !l->interface) {
        fprintf(stderr, "%s: --hosts needs --interface: the network on which ranks listen\n",
                argv0);
        return false;
    }
    ssize_t n = readlink("/proc/self/exe", l->exe, sizeof l->exe - 1);
    l->exe[n > 0 ? n : 0] = 0;
    if (l->min_rank && !l->hosts) {
        fprintf(stderr,
                "%s: --min-ranks needs --hosts: on one machine ranks come and go together\n",
                argv0);
        return false;
    }
    if (l->min_rank)
        ADD(l, l->exe, "group", "--ranks", l->n_rank, "--min-ranks", l->min_rank, "--hosts",
            l->hosts, "--dir", "@DIR", "--");
    ADD(l, "mpirun", "-n", l->min_rank ? "@RANKS" : l->n_rank, "--bind-to", "none",
        "--oversubscribe");
    ADD(l, "--mca", "btl_vader_single_copy_mechanism", "none");
    ADD(l, "--mca", "oob_tcp_disable_ipv6_family", "1");
    if (geteuid() == 0) ADD(l, "--allow-run-as-root");
    if (l->hosts) {
        ADD(l, "--hostfile", l->min_rank ? "@HOSTS" : l->hosts, "--mca", "btl",
            "self,vader,tcp");
        ADD(l, "--mca", "btl_tcp_if_include", l->interface);
        ADD(l, "--mca", "oob_tcp_if_include", l->interface);
    } else {
        ADD(l, "--mca", "btl", "self,vader", "--mca", "plm", "isolated");
        ADD(l, "--mca", "oob_tcp_if_include", "lo", "--mca", "orte_tmpdir_base", "@DIR");
        ADD(l, "--mca", "btl_vader_backing_directory", "@DIR");
    }
    bool self = strcmp(worker[0], "/proc/self/exe") == 0;
    ADD(l, self ? l->exe : worker[0]);
    add(l, (const char *const *)(void *)(worker + 1), n_worker - 1);
    l->arg[l->n_arg] = NULL;
    return true;
}
