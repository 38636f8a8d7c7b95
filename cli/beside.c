/* beside.c - busy processes beside a measurement: see cli.h.
 *
 * They are made before the engine has threads, stopped while they are not wanted, and killed with their parent. */
#include "cli.h"
#include "base/base.h"
#include "base/cpus.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void be_busy(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    for (volatile uint64_t n = 0;;) n++;
}

bool lg_beside_start(lg_beside *b, uint32_t n) {
    LG_ASSERT(n <= LG_BESIDE_MAX);
    pid_t self = getpid();
    for (b->n = 0; b->n < n; b->n++) {
        pid_t pid = fork();
        if (pid == 0) be_busy(self);
        if (pid < 0) return false;
        b->pid[b->n] = (int)pid;
        kill(pid, SIGSTOP);
    }
    return true;
}

void lg_beside_run(const lg_beside *b, bool run) {
    for (uint32_t i = 0; i < b->n; i++) kill(b->pid[i], run ? SIGCONT : SIGSTOP);
}

void lg_beside_end(lg_beside *b) {
    for (uint32_t i = 0; i < b->n; i++) {
        kill(b->pid[i], SIGKILL);
        waitpid(b->pid[i], NULL, 0);
    }
    b->n = 0;
}

double lg_beside_share(uint32_t n_thread, uint32_t n_busy) {
    int cpu[1024];
    double n_cpu = lg_cpus_list(cpu, 1024, NULL), all = (double)n_thread + n_busy;
    return all <= n_cpu ? 1 : n_thread >= n_cpu ? n_thread / all : n_cpu / all;
}
