/* link_client.c - the gateway's end of a link: start a worker process, move bytes, stop it.
 *
 * Policy: the socket never blocks the caller; the worker ends by itself when its socket closes and is killed when it does
 * not.  Thread: gateway.  Memory: the two buffers.  Test: tests/unit/test_link.c, tests/e2e */
#include "link/link.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARG = 95 };

/* In the child, between fork and exec: only async-signal-safe calls.  A launcher gets a process group of its own, so that a
 * Ctrl-C at the terminal is the gateway's alone, and no input. */
static _Noreturn void child(int fd, char *const *argv) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, 0);
    } else {
        setpgid(0, 0);
        int input = open("/dev/null", O_RDONLY);
        if (input >= 0) dup2(input, 0);
    }
    execvp(argv[0], argv);
    _exit(127);
}

/* argv with the words after "@" replaced; texts are borrowed. */
static void fill_argv(char *const *argv, char *number, char *path, char *dir, char **arg) {
    size_t n = 0;
    for (; argv[n] && n < MAX_ARG; n++) {
        arg[n] = argv[n];
        if (strcmp(argv[n], "@FD") == 0) arg[n] = number;
        if (strcmp(argv[n], "@SOCKET") == 0) arg[n] = path;
        if (strcmp(argv[n], "@DIR") == 0) arg[n] = dir;
    }
    arg[n] = NULL;
    LG_ASSERT(!argv[n]);
}

static lg_status start(lg_link_client *c, int fd, char *const *arg, lg_err *err) {
    pid_t pid = fork();
    if (pid == 0) child(fd, arg);
    if (pid < 0) return LG_FAIL(err, LG_E_IO, "fork: %s", strerror(errno));
    lg_buf_clear(&c->out);
    lg_link_reader_fini(&c->reader);
    c->pid = (int)pid;
    return LG_OK;
}

static lg_status spawn_worker(lg_link_client *c, char *const *argv, lg_err *err) {
    int sv[2];
    char number[16], *arg[MAX_ARG + 1];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0)
        return LG_FAIL(err, LG_E_IO, "socketpair: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", sv[1]);
    fill_argv(argv, number, NULL, NULL, arg);
    lg_status st = start(c, sv[1], arg, err);
    close(sv[1]);
    if (st != LG_OK) {
        close(sv[0]);
        return st;
    }
    fcntl(sv[0], F_SETFL, O_NONBLOCK);
    c->fd = sv[0];
    return LG_OK;
}

/* ---- a launcher ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    remove(path);
    return 0;
}

/* A killed launcher leaves its files; they are all in here. */
static void remove_dir(lg_link_client *c) {
    if (c->listen_fd >= 0) close(c->listen_fd);
    c->listen_fd = -1;
    if (c->dir[0]) {
        nftw(c->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        if (c->dir_fd >= 0) close(c->dir_fd); /* and its lock */
    }
    c->dir[0] = 0;
}

/* Whether the gateway that made a folder is gone: its process is, and so is the lock that it holds until its end, which also another
 * PID namespace sees. */
static bool is_stale(const char *dir, pid_t owner) {
    struct stat info;
    if (owner <= 0 || owner == getpid() || kill(owner, 0) == 0 || errno != ESRCH) return false;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    bool stale =
        fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return stale;
}

/* Folders of gateways that were killed: lignum-PID-XXXXXX of this user. */
static void remove_stale(const char *place) {
    DIR *d = opendir(place);
    const struct dirent *e;
    char dir[320], rest[8];
    while (d && (e = readdir(d))) {
        int owner = 0;
        if (sscanf(e->d_name, "lignum-%d-%7s", &owner, rest) != 2 || strlen(rest) != 6)
            continue;
        snprintf(dir, sizeof dir, "%s/%s", place, e->d_name);
        if (is_stale(dir, owner)) nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    if (d) closedir(d);
}

/* A folder in memory where there is one: MPI keeps its shared segments there. */
static bool make_dir(lg_link_client *c) {
    static const char *const place[] = {"/dev/shm", "/tmp"};
    for (size_t i = 0; i < LG_COUNT(place); i++) {
        remove_stale(place[i]);
        snprintf(c->dir, sizeof c->dir, "%s/lignum-%d-XXXXXX", place[i], (int)getpid());
        if (!mkdtemp(c->dir)) continue; /* mode 0700 */
        c->dir_fd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (c->dir_fd >= 0) flock(c->dir_fd, LOCK_EX | LOCK_NB);
        return true;
    }
    c->dir[0] = 0;
    return false;
}

static lg_status spawn_launcher(lg_link_client *c, char *const *argv, lg_err *err) {
    char *arg[MAX_ARG + 1];
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (!make_dir(c)) return LG_FAIL(err, LG_E_IO, "/tmp/lignum-XXXXXX: %s", strerror(errno));
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/link", c->dir);
    c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listen_fd < 0 || bind(c->listen_fd, (struct sockaddr *)&addr, sizeof addr) != 0 ||
        listen(c->listen_fd, 4) != 0) {
        LG_FAIL(err, LG_E_IO, "%s: %s", addr.sun_path, strerror(errno));
        remove_dir(c);
        return LG_E_IO;
    }
    fill_argv(argv, NULL, addr.sun_path, c->dir, arg);
    lg_status st = start(c, -1, arg, err);
    if (st != LG_OK) remove_dir(c);
    return st;
}

lg_status lg_link_client_spawn(lg_link_client *c, char *const *argv, lg_err *err) {
    for (size_t i = 0; argv[i]; i++)
        if (strcmp(argv[i], "@SOCKET") == 0) return spawn_launcher(c, argv, err);
    return spawn_worker(c, argv, err);
}

lg_status lg_link_client_accept(lg_link_client *c) {
    struct ucred who;
    socklen_t len = sizeof who;
    siginfo_t info = {0};
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        int got = waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT);
        return got != 0 || info.si_pid ? LG_E_COMM : LG_AGAIN;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != geteuid()) {
        close(fd);
        return LG_AGAIN;
    }
    c->fd = fd;
    close(c->listen_fd);
    c->listen_fd = -1;
    return LG_OK;
}

int lg_link_connect(const char *path, lg_err *err) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0) return fd;
    LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

lg_status lg_link_client_read(lg_link_client *c) {
    static const size_t most = 256 * 1024;
    char block[65536];
    size_t total = 0;
    while (total < most) {
        ssize_t n = recv(c->fd, block, sizeof block, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) return total ? LG_OK : LG_E_COMM;
        LG_TRY(lg_link_feed(&c->reader, block, (size_t)n));
        total += (size_t)n;
        if ((size_t)n < sizeof block) break;
    }
    return total ? LG_OK : LG_AGAIN;
}

lg_status lg_link_client_write(lg_link_client *c) {
    size_t at = 0;
    lg_status st = LG_OK;
    while (at < c->out.len_bytes) {
        ssize_t n = send(c->fd, c->out.data + at, c->out.len_bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            st = errno == EAGAIN || errno == EWOULDBLOCK ? LG_AGAIN : LG_E_COMM;
            break;
        }
        at += (size_t)n;
    }
    lg_buf_consume(&c->out, at);
    return st;
}

void lg_link_client_stop(lg_link_client *c, uint64_t grace_us, int *wait_status) {
    int status = 0;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    if (c->pid > 0) {
        uint64_t until = lg_clock_us() + grace_us;
        pid_t got;
        while ((got = waitpid(c->pid, &status, WNOHANG)) == 0 && lg_clock_us() < until)
            lg_clock_sleep_us(2000);
        if (got == 0) {
            kill(c->pid, SIGKILL);
            while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) continue;
        }
    }
    c->pid = 0;
    remove_dir(c);
    if (wait_status) *wait_status = status;
}

void lg_link_client_fini(lg_link_client *c) {
    lg_link_client_stop(c, 0, NULL);
    lg_buf_fini(&c->out);
    lg_link_reader_fini(&c->reader);
}
