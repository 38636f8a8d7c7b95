/* test_link_peer.c - who may speak to the gateway in the place of rank 0: a process of this user, and no other.
 *
 * The folder of the socket lets no other user in; when it does, because somebody opened it, the kernel's word on whose process it is counts.
 * Needs root, to be another user. */
#include "link/link.h"

#include "base/clock.h"

#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define NOBODY 65534

enum {
    HELD,
    ENDED,
    ERRNO
}; /* what became of a connection: still open after a while, closed by the gateway, or ERRNO + errno */

static void speak(const char *path, uid_t uid) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 1};
    char c;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (uid && (setgroups(0, NULL) != 0 || setgid(uid) != 0 || setuid(uid) != 0)) _exit(255);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) _exit(ERRNO + errno);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    _exit(recv(fd, &c, 1, 0) == 0 ? ENDED : HELD);
}

/* A process of `uid` connects, while the gateway accepts: what became of it, and of the gateway's accept. */
static int connect_as(lg_link_client *c, const char *path, uid_t uid, lg_status *accepted) {
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) speak(path, uid);
    *accepted = LG_AGAIN;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (*accepted == LG_AGAIN) *accepted = lg_link_client_accept(c);
        lg_clock_sleep_us(2000);
    }
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_another_user_is_refused(void **state) {
    (void)state;
    char sh[] = "/bin/sh", flag[] = "-c", sleep_[] = "exec sleep 60", at[] = "@SOCKET",
         path[300];
    char *argv[] = {sh, flag, sleep_, at, NULL}; /* a launcher that never connects */
    lg_link_client c;
    lg_status got;
    lg_err err;
    if (geteuid() != 0) {
        print_message("SKIP: to be another user one must be root\n");
        skip();
    }
    c = (lg_link_client){.fd = -1, .listen_fd = -1};
    if (lg_link_client_spawn(&c, argv, &err) != LG_OK) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/link", c.dir);
    assert_int_equal(connect_as(&c, path, NOBODY, &got), ERRNO + EACCES); /* by the folder */
    assert_int_equal(got, LG_AGAIN);
    assert_int_equal(chmod(c.dir, 0755), 0);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(connect_as(&c, path, NOBODY, &got), ENDED); /* by its number */
    assert_int_equal(got, LG_AGAIN);
    assert_true(c.listen_fd >= 0);
    assert_int_equal(connect_as(&c, path, 0, &got), HELD);
    assert_int_equal(got, LG_OK);
    assert_int_equal(c.listen_fd, -1);
    lg_link_client_stop(&c, 0, NULL);
    lg_link_client_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_another_user_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
