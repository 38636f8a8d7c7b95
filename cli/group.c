/* group.c - `lignum group`: start ranks on those hosts that answer.
 *
 * In: a hostfile, the launcher's command line.   Out: the launcher in place of this process, with a hostfile of the hosts that answer and as
 * many ranks as they have slots.  A process of its own, between the gateway and mpirun, since asking hosts takes seconds in which
 * the gateway has streams to look after.
 * A host answers when the remote shell that mpirun will use runs `true` there.  The first host is this machine.
 * Thread: one.  Memory: the table of hosts.  Test: tests/e2e/test_ranks_net.py, tests/py/cli.py */
#include "base/clock.h"
#include "cli.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_HOST   256
#define MAX_WORD   20
#define ANSWER_US  (6 * 1000000)
#define DEFAULT_SH "ssh -o BatchMode=yes -o ConnectTimeout=4"

static const char help[] =
    "Start ranks on the hosts that answer (`lignum serve --min-ranks` does this by itself).\n"
    "\n"
    "usage: lignum group --ranks N --min-ranks M --hosts FILE --dir DIR -- COMMAND...\n"
    "\n"
    "  --ranks N       ranks when every host answers\n"
    "  --min-ranks M   fewest ranks to start\n"
    "  --hosts FILE    mpirun's hostfile, with slots=K on each line; this machine first\n"
    "  --dir DIR       where the hostfile of those that answer is written\n"
    "  COMMAND         the launcher; its words @RANKS and @HOSTS are replaced\n"
    "  --help          print this\n";

typedef struct host {
    char name[256];
    int n_slot;
    pid_t pid; /* of who asks it; 0: nobody */
    bool answers;
} host;

typedef struct group {
    const char *argv0, *hosts, *dir;
    uint64_t n_rank, n_min;
    host host[MAX_HOST];
    size_t n_host;
    char path[512], number[16];
} group;

/* One line of a hostfile: "name slots=K ...", '#' begins a comment. */
static bool read_line(group *g, char *line, int number) {
    line[strcspn(line, "#\n")] = 0;
    char *save, *name = strtok_r(line, " \t\r", &save);
    if (!name) return true;
    host *h = &g->host[g->n_host];
    *h = (host){.n_slot = 0};
    for (char *w; (w = strtok_r(NULL, " \t\r", &save));)
        if (strncmp(w, "slots=", 6) == 0) h->n_slot = atoi(w + 6);
    if (strlen(name) >= sizeof h->name || name[0] == '-' || h->n_slot < 1 || h->n_slot > 256 ||
        g->n_host + 1 == MAX_HOST) {
        fprintf(stderr, "%s: %s: line %d: expected a host and slots=K, at most %d hosts\n",
                g->argv0, g->hosts, number, MAX_HOST - 1);
        return false;
    }
    snprintf(h->name, sizeof h->name, "%s", name);
    g->n_host++;
    return true;
}

static bool read_hosts(group *g) {
    char line[1024];
    FILE *f = fopen(g->hosts, "r");
    bool ok = f != NULL;
    if (!f) perror(g->hosts);
    for (int n = 1; ok && fgets(line, sizeof line, f); n++) ok = read_line(g, line, n);
    if (f) fclose(f);
    if (ok && g->n_host == 0) fprintf(stderr, "%s: %s: no host\n", g->argv0, g->hosts);
    return ok && g->n_host > 0;
}

/* In the child: the remote shell, as mpirun would call it. */
static _Noreturn void ask(const char *name) {
    const char *agent = getenv("OMPI_MCA_plm_rsh_agent");
    char text[1024], *save, *arg[MAX_WORD + 3];
    size_t n = 0;
    snprintf(text, sizeof text, "%s", agent && *agent ? agent : DEFAULT_SH);
    for (char *w = strtok_r(text, " ", &save); w && n < MAX_WORD;
         w = strtok_r(NULL, " ", &save))
        arg[n++] = w;
    arg[n++] = (char *)(size_t)name;
    arg[n++] = (char *)(size_t) "true";
    arg[n] = NULL;
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; null >= 0 && fd < 3; fd++) dup2(null, fd);
    execvp(arg[0], arg);
    _exit(127);
}

/* All at the same time; who does not answer in time does not answer. */
static void ask_hosts(group *g) {
    uint64_t until = lg_clock_us() + ANSWER_US;
    g->host[0].answers = true;
    for (size_t i = 1; i < g->n_host; i++) {
        g->host[i].pid = fork();
        if (g->host[i].pid == 0) ask(g->host[i].name);
    }
    for (size_t i = 1; i < g->n_host; i++) {
        host *h = &g->host[i];
        int status = 0;
        if (h->pid < 0) continue;
        while (waitpid(h->pid, &status, WNOHANG) == 0) {
            if (lg_clock_us() > until) kill(h->pid, SIGKILL);
            lg_clock_sleep_us(5000);
        }
        h->answers = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
}

/* Write the hosts that answer; how many ranks they can have, 0 when the file cannot be written. */
static uint64_t write_hosts(group *g) {
    uint64_t n_slot = 0;
    if ((size_t)snprintf(g->path, sizeof g->path, "%s/hosts", g->dir) >= sizeof g->path)
        return 0;
    FILE *f = fopen(g->path, "w");
    if (!f) {
        perror(g->path);
        return 0;
    }
    for (size_t i = 0; i < g->n_host; i++) {
        const host *h = &g->host[i];
        if (!h->answers) {
            fprintf(stderr, "%s: %s does not answer\n", g->argv0, h->name);
            continue;
        }
        fprintf(f, "%s slots=%d\n", h->name, h->n_slot);
        n_slot += (uint64_t)h->n_slot;
    }
    if (fclose(f) != 0) {
        perror(g->path);
        return 0;
    }
    return n_slot;
}

static int start(group *g, char **command) {
    if (!read_hosts(g)) return 1;
    ask_hosts(g);
    uint64_t n_slot = write_hosts(g), n = n_slot < g->n_rank ? n_slot : g->n_rank;
    if (n_slot == 0) return 1;
    if (n < g->n_min) {
        fprintf(stderr,
                "%s: the hosts that answer have room for %llu ranks; --min-ranks %llu\n",
                g->argv0, (unsigned long long)n, (unsigned long long)g->n_min);
        return 1;
    }
    if (n < g->n_rank)
        fprintf(stderr, "%s: %llu ranks instead of %llu\n", g->argv0, (unsigned long long)n,
                (unsigned long long)g->n_rank);
    snprintf(g->number, sizeof g->number, "%llu", (unsigned long long)n);
    for (char **w = command; *w; w++) {
        if (strcmp(*w, "@RANKS") == 0) *w = g->number;
        if (strcmp(*w, "@HOSTS") == 0) *w = g->path;
    }
    execvp(command[0], command);
    perror(command[0]);
    return 1;
}

enum { OPT_RANKS = 256, OPT_MIN, OPT_HOSTS, OPT_DIR, OPT_HELP };

int lg_group_main(int argc, char **argv) {
    static const struct option longs[] = {{"ranks", required_argument, NULL, OPT_RANKS},
                                          {"min-ranks", required_argument, NULL, OPT_MIN},
                                          {"hosts", required_argument, NULL, OPT_HOSTS},
                                          {"dir", required_argument, NULL, OPT_DIR},
                                          {"help", no_argument, NULL, OPT_HELP},
                                          {NULL, 0, NULL, 0}};
    static group g;
    int c;
    g.argv0 = argv[0];
    while ((c = getopt_long(argc, argv, "+", longs, NULL)) != -1) {
        bool ok = true;
        switch (c) {
        case OPT_RANKS:
            ok = lg_option_u64(argv[0], "--ranks", optarg, 1, 256, &g.n_rank);
            break;
        case OPT_MIN:
            ok = lg_option_u64(argv[0], "--min-ranks", optarg, 1, 256, &g.n_min);
            break;
        case OPT_HOSTS: g.hosts = optarg; break;
        case OPT_DIR: g.dir = optarg; break;
        case OPT_HELP: fputs(help, stdout); return 0;
        default: ok = false;
        }
        if (!ok) return lg_option_usage(argv[0]);
    }
    if (!g.n_rank || !g.n_min || !g.hosts || !g.dir || optind >= argc) {
        fprintf(stderr, "%s: all options and a command are needed\n", argv[0]);
        return lg_option_usage(argv[0]);
    }
    return start(&g, argv + optind);
}
