/* launch.h - the command line that starts a worker of several ranks. */
#ifndef LG_CLI_LAUNCH_H
#define LG_CLI_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#define LG_LAUNCH_MAX_ARG 92

typedef struct lg_launch {
    const char *n_rank; /* text of a number; NULL: one process, no launcher */
    const char *hosts;  /* hostfile; NULL: this machine */
    const char *
        min_rank; /* text of a number: start on the hosts that answer, at least so many (group.c); NULL: on all */
    const char *interface;
    char *arg[LG_LAUNCH_MAX_ARG];
    size_t n_arg;
    char exe[4096];
} lg_launch;

/* Fill l->arg with mpirun's own arguments and then worker[0 .. n_worker), NULL-terminated.  worker[0] "/proc/self/exe" becomes
 * the program's path, since the launcher is another program.  false when it cannot be done, reported with argv0. */
bool lg_launch_argv(lg_launch *l, const char *argv0, char *const *worker, size_t n_worker);

#endif
