/* bench_gateway.c - how long a token is on its way from the worker to a client, through link and gateway.
 *
 * usage: bench_gateway PORT STREAMS        bench_gateway floor STREAMS
 * Opens that many streams at once on a server whose scripted worker stamps its tokens (`stamp 1`), and compares each stamp with the
 * time at which the token was read.  Prints one JSON object with microseconds.  "floor": the server is a loop of this program that
 * stamps a token and sends it to every stream, the same bytes with nothing in between: what sockets and this client take by themselves.
 * The client stays on the last processor, as if it were on another machine: a server, and the loop, should have the others.
 * tests/e2e/test_load.py runs it. */
#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_STREAM 4096
#define MAX_TOKEN  (1u << 20)
#define ROOM       65536
#define AWAKE_US   500

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
    uint64_t heard = 0;
    while (left > 0) {
        /* Awake while a burst lasts: waking this client would be counted against whoever sends. */
        int n = epoll_wait(ep, ev, 64, 0);
        if (n == 0 && lg_clock_us() - heard < AWAKE_US) continue;
        if (n == 0) n = epoll_wait(ep, ev, 64, 30000);
        if (n <= 0) return false;
        heard = lg_clock_us();
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

/* Only on the last of the processors that this process may use, or on all but that one; where there is one, nothing. */
static void stay(bool on_last) {
    cpu_set_t all, some;
    size_t last = 0;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) last = i;
    some = all;
    CPU_CLR(last, &some);
    if (on_last) {
        CPU_ZERO(&some);
        CPU_SET(last, &some);
    }
    (void)sched_setaffinity(0, sizeof some, &some);
}

/* The plain server: what bench_gateway asks for, in the bytes of `lignum serve`.  Ends the process. */
static _Noreturn void serve_floor(int listener, int n) {
    enum { N_TOKEN = 200, STEP_US = 5000 };
    static int fd[MAX_STREAM];
    char event[512], chunk[600], in[1024];
    int one = 1;
    stay(false);
    for (int i = 0; i < n; i++) {
        fd[i] = accept(listener, NULL, NULL);
        if (fd[i] < 0 || recv(fd[i], in, sizeof in, 0) <= 0) _exit(1);
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    for (int t = 0; t < N_TOKEN; t++) {
        lg_clock_sleep_us(STEP_US);
        int len = snprintf(
            event, sizeof event,
            "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":"
            "\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny-qwen35moe\","
            "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%llu|\"},\"logprobs\":null,"
            "\"finish_reason\":null}]}\n\n",
            (unsigned long long)lg_clock_us());
        len = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n", (unsigned)len, event);
        for (int i = 0; i < n; i++) (void)!send(fd[i], chunk, (size_t)len, MSG_NOSIGNAL);
    }
    _exit(0);
}

/* Start it; its port, or 0. */
static int start_floor(int n, pid_t *pid) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        listen(listener, MAX_STREAM) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) != 0)
        return 0;
    *pid = fork();
    if (*pid == 0) serve_floor(listener, n);
    close(listener);
    return *pid > 0 ? ntohs(a.sin_port) : 0;
}

int main(int argc, char **argv) {
    bool floor = argc == 3 && strcmp(argv[1], "floor") == 0;
    int n = argc == 3 ? atoi(argv[2]) : 0, port = argc == 3 && !floor ? atoi(argv[1]) : 0;
    pid_t pid = 0;
    if (floor && n >= 1 && n <= MAX_STREAM) port = start_floor(n, &pid);
    if (n < 1 || n > MAX_STREAM || port < 1 || port > 65535) {
        fputs("usage: bench_gateway PORT|floor STREAMS\n", stderr);
        return 2;
    }
    stream *s = lg_mem_calloc((size_t)n, sizeof *s);
    LG_ASSERT(s);
    for (int i = 0; i < n; i++)
        if (!start(&s[i], (uint16_t)port)) {
            perror("bench_gateway");
            return 1;
        }
    stay(true);
    bool ok = run(s, n) && n_delay > 0;
    qsort(delay, n_delay, sizeof *delay, by_value);
    if (ok)
        printf("{\"streams\":%d,\"tokens\":%zu,\"p50_us\":%.0f,\"p90_us\":%.0f,\"p99_us\":%.0f,"
               "\"max_us\":%.0f}\n",
               n, n_delay, delay[n_delay / 2], delay[n_delay * 9 / 10],
               delay[n_delay * 99 / 100], delay[n_delay - 1]);
    if (pid) kill(pid, SIGKILL);
    lg_mem_free(s);
    return ok ? 0 : 1;
}
