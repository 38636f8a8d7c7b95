/* notify.c - readiness for systemd, without its library: see notify.h.
 *
 * One datagram a message to the socket that NOTIFY_SOCKET names; '@' stands for the abstract namespace.
 * Thread: gateway.  Test: tests/e2e/test_secure.py */
#include "gateway/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void lg_notify_init(char path[108]) {
    const char *p = getenv("NOTIFY_SOCKET");
    path[0] = 0;
    if (p && (*p == '/' || *p == '@') && strlen(p) < 108) snprintf(path, 108, "%s", p);
    unsetenv("NOTIFY_SOCKET");
}

void lg_notify_send(const char *path, const char *state) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (!len) return;
    memcpy(a.sun_path, path, len);
    if (a.sun_path[0] == '@') a.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT,
                  (const struct sockaddr *)&a,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
}
