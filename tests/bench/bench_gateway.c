/* bench_gateway.c - how long a token is on its way from the worker to a client, through link and gateway.
 *
 * usage: bench_gateway PORT STREAMS
 * Opens that many streams at once on a server whose scripted worker stamps its tokens (`stamp 1`), and compares each stamp with the
 * time at which the token was read.  Prints one JSON object with microseconds.  tests/e2e/test_load.py runs it. */
#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_STREAM 4096
#define MAX_TOKEN  (1u << 20)
#define ROOM       65536

typedef struct stream {
    int fd;
    size_t n; /* bytes kept of an event that is not complete */
    char text[ROOM];
} stream;

static double delay[MAX_TOKEN];
static size_t n_delay;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool start(stream *s, uint16_t port) {
    static const char body[] =
        "{\"model\":\"tiny-qwen35moe\",\"stream\":true,\"messages\":[{\"role\":\"user\","
        "\"content\":\"hi\"}],\"chat_template_kwargs\":{\"enable_thinking\":false}}";
    char head[256];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&a, sizeof a) != 0) return false;
    int n = snprintf(
        head, sizeof head,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
        sizeof body - 1);
    return send(s->fd, head, (size_t)n, 0) == n &&
           send(s->fd, body, sizeof body - 1, 0) == (ssize_t)sizeof body - 1;
}

/* Every complete stamp in what has come. */
static void scan(stream *s, uint64_t now_us) {
    static const char key[] = "\"content\":\"";
    const char *at = s->text, *last = s->text;
    s->text[s->n] = 0;
    while ((at = strstr(at, key))) {
        const char *from = at + sizeof key - 1;
        char *end;
        unsigned long long t = strtoull(from, &end, 10);
        at = from;
        if (*end == 0) break; /* the rest comes later */
        last = end;
        if (*end == '|' && n_delay < MAX_TOKEN) delay[n_delay++] = (double)now_us - (double)t;
    }
    s->n -= (size_t)(last - s->text);
    memmove(s->text, last, s->n);
    if (s->n > ROOM / 2) s->n = 0; /* headers of a failure: nothing to find */
}

static bool run(stream *s, int n_stream) {
    int ep = epoll_create1(0), left = n_stream;
    struct epoll_event ev[64];
    for (int i = 0; i < n_stream; i++) {
        ev[0] = (struct epoll_event){.events = EPOLLIN, .data.ptr = &s[i]};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, s[i].fd, ev) != 0) return false;
    }
    while (left > 0) {
        int n = epoll_wait(ep, ev, 64, 30000);
        if (n <= 0) return false;
        for (int i = 0; i < n; i++) {
            stream *one = ev[i].data.ptr;
            ssize_t got = recv(one->fd, one->text + one->n, ROOM / 2 - 1, 0);
            uint64_t now = lg_clock_us();
            if (got <= 0) {
                close(one->fd);
                left--;
                continue;
            }
            one->n += (size_t)got;
            scan(one, now);
        }
    }
    close(ep);
    return true;
}

int main(int argc, char **argv) {
    int n = argc == 3 ? atoi(argv[2]) : 0, port = argc == 3 ? atoi(argv[1]) : 0;
    if (n < 1 || n > MAX_STREAM || port < 1 || port > 65535) {
        fputs("usage: bench_gateway PORT STREAMS\n", stderr);
        return 2;
    }
    stream *s = lg_mem_calloc((size_t)n, sizeof *s);
    LG_ASSERT(s);
    for (int i = 0; i < n; i++)
        if (!start(&s[i], (uint16_t)port)) {
            perror("bench_gateway");
            return 1;
        }
    bool ok = run(s, n) && n_delay > 0;
    qsort(delay, n_delay, sizeof *delay, by_value);
    if (ok)
        printf("{\"streams\":%d,\"tokens\":%zu,\"p50_us\":%.0f,\"p90_us\":%.0f,\"p99_us\":%.0f,"
               "\"max_us\":%.0f}\n",
               n, n_delay, delay[n_delay / 2], delay[n_delay * 9 / 10],
               delay[n_delay * 99 / 100], delay[n_delay - 1]);
    lg_mem_free(s);
    return ok ? 0 : 1;
}
