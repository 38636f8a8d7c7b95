/* link_client.c - the gateway's end of a link: start a worker process, move bytes, stop it.
 *
 * Policy: the socket never blocks the caller; the worker ends by itself when its socket closes and is killed when it does
 * not.  Thread: gateway.  Memory: the two buffers.  Test: tests/unit/test_link.c, tests/e2e */
#include "link/link.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARG = 63 };

/* In the child, between fork and exec: only async-signal-safe calls. */
static _Noreturn void child(int fd, char *const *argv) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    fcntl(fd, F_SETFD, 0);
    execv(argv[0], argv);
    _exit(127);
}

lg_status lg_link_client_spawn(lg_link_client *c, char *const *argv, lg_err *err) {
    int sv[2];
    char number[16];
    char *arg[MAX_ARG + 1];
    size_t n = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) != 0)
        return LG_FAIL(err, LG_E_IO, "socketpair: %s", strerror(errno));
    snprintf(number, sizeof number, "%d", sv[1]);
    for (; argv[n] && n < MAX_ARG; n++) arg[n] = strcmp(argv[n], "@FD") ? argv[n] : number;
    arg[n] = NULL;
    LG_ASSERT(!argv[n]);
    pid_t pid = fork();
    if (pid == 0) child(sv[1], arg);
    int why = errno;
    close(sv[1]);
    if (pid < 0) {
        close(sv[0]);
        return LG_FAIL(err, LG_E_IO, "fork: %s", strerror(why));
    }
    fcntl(sv[0], F_SETFL, O_NONBLOCK);
    lg_buf_clear(&c->out);
    lg_link_reader_fini(&c->reader);
    c->fd = sv[0];
    c->pid = (int)pid;
    return LG_OK;
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
    if (wait_status) *wait_status = status;
}

void lg_link_client_fini(lg_link_client *c) {
    lg_link_client_stop(c, 0, NULL);
    lg_buf_fini(&c->out);
    lg_link_reader_fini(&c->reader);
}
