/* link_relay.c - cables between network namespaces in user space: rate, delay, jitter, loss, cut.
 *
 * usage: link_relay [--rate MB/s] [--delay US] [--jitter US] [--loss PER_CENT] [--queue US] [--mtu BYTES] [--network A.B.C]
 *                   NAMESPACE...
 * For machines whose kernel has no netem.  Each namespace (of `ip netns`) gets a TUN device eth0 with the address A.B.C.i, i = 1, 2 ...,
 * and this process is the cables and the switch between them:
 *     out   a packet leaves its machine at `rate`, one after the other
 *     way   delay, and a drawn part of jitter (packets to one machine stay in order); loss drops some, the same ones in every run
 *     in    it comes in at the other machine at `rate`, one after the other; more than --queue (100 ms) there: dropped, as a switch does
 * A rate of 0 is none.  Says "ready" when all is up.  Commands on standard input, one a line: "cut I" (nothing comes out of or into machine I
 * any more), "mend I", "count" (answers "count PACKETS BYTES DROPPED LOST"); it ends with the input, and the devices with it.
 * Packets are read only while less than AHEAD_US of their cable is taken: the rest waits in the device, whose queue is long.
 * Exit status 77 where there is no /dev/net/tun, or it may not be used. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_MACHINE 32
#define MAX_MTU     65000
#define RING        4096 /* packets on their way to a machine */
#define AHEAD_US    2000

typedef struct packet {
    double due; /* when it is wholly there */
    uint32_t len;
    uint8_t *data; /* [mtu] */
} packet;

typedef struct machine {
    int fd;
    bool is_cut;
    double out_free, in_free; /* when the cable has room, each way */
    packet ring[RING];
    uint32_t first, n;
} machine;

static struct {
    double rate, delay, jitter, loss, queue; /* bytes/us, us, us, 0 .. 1, us */
    uint32_t mtu;
    const char *network;
    machine *at;
    uint32_t n;
    uint64_t drawn, n_packet, n_byte, n_dropped, n_lost;
} R = {.queue = 100000, .mtu = 9000, .network = "10.231.7"};

static void die(const char *what) {
    fprintf(stderr, "link_relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The next of a fixed row of numbers in [0, 1). */
static double draw(void) {
    uint64_t z = ++R.drawn * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- devices ---- */

/* A TUN device eth0 in a namespace: the descriptor stays ours when we leave it. */
static int open_device(const char *space, uint32_t number, int home) {
    char path[256], address[32];
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    struct sockaddr_in in = {.sin_family = AF_INET};
    snprintf(path, sizeof path, "/run/netns/%s", space);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) die(path);
    close(ns);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "eth0");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r) != 0) {
        fprintf(stderr, "link_relay: /dev/net/tun: %s\n", strerror(errno));
        exit(77);
    }
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0) die("socket");
    r.ifr_mtu = (int)R.mtu;
    if (ioctl(s, SIOCSIFMTU, &r) != 0) die("mtu");
    r.ifr_qlen = RING; /* what is not there is dropped */
    if (ioctl(s, SIOCSIFTXQLEN, &r) != 0) die("length of the queue");
    snprintf(address, sizeof address, "%s.%u", R.network, number);
    if (inet_pton(AF_INET, address, &in.sin_addr) != 1) die(address);
    memcpy(&r.ifr_addr, &in, sizeof in);
    if (ioctl(s, SIOCSIFADDR, &r) != 0) die(address);
    inet_pton(AF_INET, "255.255.255.0", &in.sin_addr);
    memcpy(&r.ifr_netmask, &in, sizeof in);
    if (ioctl(s, SIOCSIFNETMASK, &r) != 0) die("netmask");
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, &r) != 0) die("up");
    close(s);
    if (setns(home, CLONE_NEWNET) != 0) die("setns");
    return fd;
}

static void open_all(char **space, uint32_t n) {
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    R.at = calloc(n, sizeof *R.at);
    if (home < 0 || !R.at) die("start");
    R.n = n;
    for (uint32_t i = 0; i < n; i++) {
        machine *m = &R.at[i];
        m->fd = open_device(space[i], i + 1, home);
        for (uint32_t k = 0; k < RING; k++)
            if (!(m->ring[k].data = malloc(R.mtu))) die("memory");
    }
    close(home);
}

/* ---- packets ---- */

/* Where it goes, by the last number of its address; UINT32_MAX: nowhere. */
static uint32_t target(const uint8_t *p, size_t len) {
    if (len < 20 || p[0] >> 4 != 4 || p[19] == 0 || p[19] > R.n) return UINT32_MAX;
    return p[19] - 1u;
}

/* When a packet that is read now is there, both cables taken for as long as it needs; negative: it is dropped. */
static double book(machine *from, machine *to, uint32_t len, double now) {
    double took = R.rate > 0 ? len / R.rate : 0;
    double start = from->out_free > now ? from->out_free : now;
    from->out_free = start + took;
    if (R.loss > 0 && draw() < R.loss) {
        R.n_lost++;
        return -1;
    }
    double first = start + R.delay + (R.jitter > 0 ? R.jitter * draw() : 0);
    if (to->in_free - first > R.queue || to->n == RING) {
        R.n_dropped++;
        return -1;
    }
    to->in_free = (to->in_free > first ? to->in_free : first) + took;
    return to->in_free;
}

/* Take what a machine sends, as far as its cable allows. */
static void take(machine *m, double now) {
    static uint8_t spare[MAX_MTU];
    for (int i = 0; i < 64 && m->out_free < now + AHEAD_US; i++) {
        ssize_t len = read(m->fd, spare, R.mtu);
        if (len <= 0) return;
        uint32_t to = target(spare, (size_t)len);
        if (to == UINT32_MAX || m->is_cut || R.at[to].is_cut) continue;
        machine *t = &R.at[to];
        double due = book(m, t, (uint32_t)len, now);
        if (due < 0) continue;
        packet *p = &t->ring[(t->first + t->n++) % RING];
        p->due = due;
        p->len = (uint32_t)len;
        memcpy(p->data, spare, (size_t)len);
    }
}

/* Hand over what is there by now. */
static void deliver(machine *m, double now) {
    while (m->n && m->ring[m->first].due <= now) {
        const packet *p = &m->ring[m->first];
        m->first = (m->first + 1) % RING;
        m->n--;
        if (m->is_cut || write(m->fd, p->data, p->len) != (ssize_t)p->len) {
            R.n_dropped++;
            continue;
        }
        R.n_packet++;
        R.n_byte += p->len;
    }
}

/* A command of one line. */
static void obey(const char *line) {
    unsigned i = 0;
    bool cut = sscanf(line, "cut %u", &i) == 1;
    if ((cut || sscanf(line, "mend %u", &i) == 1) && i >= 1 && i <= R.n) {
        R.at[i - 1].is_cut = cut;
        printf("%s %u\n", cut ? "cut" : "mend", i);
    } else if (strncmp(line, "count", 5) == 0) {
        printf("count %llu %llu %llu %llu\n", (unsigned long long)R.n_packet,
               (unsigned long long)R.n_byte, (unsigned long long)R.n_dropped,
               (unsigned long long)R.n_lost);
    } else {
        printf("what is \"%.40s\"?\n", line);
    }
    fflush(stdout);
}

/* false: the input has ended. */
static bool listen_in(void) {
    static char text[256];
    static size_t n;
    ssize_t got = read(0, text + n, sizeof text - 1 - n);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    n += (size_t)got;
    text[n] = 0;
    for (char *end; (end = strchr(text, '\n'));) {
        *end++ = 0;
        obey(text);
        n -= (size_t)(end - text);
        memmove(text, end, n + 1);
    }
    if (n == sizeof text - 1) n = 0; /* no line is that long */
    return true;
}

/* Until the next packet is due or a cable has room again, at most a second. */
static double next_event(double now) {
    double next = now + 1e6;
    for (uint32_t i = 0; i < R.n; i++) {
        const machine *m = &R.at[i];
        if (m->n && m->ring[m->first].due < next) next = m->ring[m->first].due;
        if (m->out_free >= now + AHEAD_US && m->out_free - AHEAD_US < next)
            next = m->out_free - AHEAD_US + 1;
    }
    return next > now ? next - now : 0;
}

static void run(void) {
    struct pollfd p[MAX_MACHINE + 1] = {{.fd = 0, .events = POLLIN}};
    for (;;) {
        double now = now_us(), wait = next_event(now);
        struct timespec t = {(time_t)(wait * 1e-6), (long)(wait * 1e3) % 1000000000};
        for (uint32_t i = 0; i < R.n; i++) {
            bool room = R.at[i].out_free < now + AHEAD_US;
            p[i + 1] = (struct pollfd){.fd = room ? R.at[i].fd : -1, .events = POLLIN};
        }
        if (ppoll(p, R.n + 1, &t, NULL) < 0 && errno != EINTR) die("poll");
        now = now_us();
        for (uint32_t i = 0; i < R.n; i++) deliver(&R.at[i], now);
        for (uint32_t i = 0; i < R.n; i++)
            if (p[i + 1].revents) take(&R.at[i], now);
        if (p[0].revents && !listen_in()) return;
    }
}

int main(int argc, char **argv) {
    static const struct option longs[] = {{"rate", 1, NULL, 'r'},    {"delay", 1, NULL, 'd'},
                                          {"jitter", 1, NULL, 'j'},  {"loss", 1, NULL, 'l'},
                                          {"queue", 1, NULL, 'q'},   {"mtu", 1, NULL, 'm'},
                                          {"network", 1, NULL, 'n'}, {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        double v = optarg ? atof(optarg) : -1;
        if (c == '?' || (c != 'n' && v < 0)) return 2;
        if (c == 'r') R.rate = v; /* MB/s are bytes in a microsecond */
        if (c == 'd') R.delay = v;
        if (c == 'j') R.jitter = v;
        if (c == 'l') R.loss = v / 100;
        if (c == 'q') R.queue = v;
        if (c == 'm') R.mtu = (uint32_t)v;
        if (c == 'n') R.network = optarg;
    }
    int n = argc - optind;
    if (n < 1 || n > MAX_MACHINE || R.mtu < 576 || R.mtu > MAX_MTU) return 2;
    open_all(argv + optind, (uint32_t)n);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    struct sched_param first = {
        .sched_priority =
            1}; /* or the delay would be that of a busy processor; without it, it is */
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
        fprintf(stderr, "link_relay: no real-time priority\n");
    printf("ready\n");
    fflush(stdout);
    run();
    return 0;
}
