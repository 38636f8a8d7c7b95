/* window.c - see window.h.
 *
 * The first rank of a machine makes the object and tells its name; every rank maps it and reserves its own part (so that a full file
 * system is an error here and no signal later); when all of them have, it is used.  Not MPI_Win_allocate_shared: a rank that
 * cannot have the memory would leave the others waiting inside MPI, where no limit of time holds.
 * Thread: engine.  Memory: the object.  Test: tests/unit/test_reduce.c */
#include "dist/window.h"
#include "dist/tags.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define PAGE 4096

typedef struct lg_window_name {
    char text[40]; /* "": there is no object */
} lg_window_name;

static lg_status send_one(lg_comm *c, uint32_t to, const void *data, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(lg_comm_send(c, to, LG_TAG_WINDOW, data, n_bytes, &q));
    return lg_comm_wait(c, &q, 1);
}

static lg_status recv_one(lg_comm *c, uint32_t from, void *data, size_t n_bytes) {
    lg_comm_req q = {0};
    LG_TRY(lg_comm_recv(c, from, LG_TAG_WINDOW, data, n_bytes, &q));
    return lg_comm_wait(c, &q, 1);
}

/* The first rank's block to the others of its machine. */
static lg_status spread(lg_comm *c, const uint32_t *rank, uint32_t n, void *data,
                        size_t bytes) {
    if (c->rank != rank[0]) return recv_one(c, rank[0], data, bytes);
    for (uint32_t i = 1; i < n; i++) LG_TRY(send_one(c, rank[i], data, bytes));
    return LG_OK;
}

/* Whether every rank of the machine says yes; all get the same answer. */
static lg_status agree(lg_comm *c, const uint32_t *rank, uint32_t n, bool *ok) {
    uint8_t mine = *ok, all = mine;
    if (c->rank != rank[0]) LG_TRY(send_one(c, rank[0], &mine, 1));
    for (uint32_t i = 1; c->rank == rank[0] && i < n; i++) {
        LG_TRY(recv_one(c, rank[i], &mine, 1));
        all &= mine;
    }
    LG_TRY(spread(c, rank, n, &all, 1));
    *ok = all != 0;
    return LG_OK;
}

static int create(lg_window_name *name, size_t bytes) {
    uint64_t v[2];
    if (getrandom(v, sizeof v, 0) != (ssize_t)sizeof v) return -1;
    snprintf(name->text, sizeof name->text, "/lignum.%08llx%08llx",
             (unsigned long long)v[0] & UINT32_MAX, (unsigned long long)v[1] & UINT32_MAX);
    int fd = shm_open(name->text, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) return fd;
    if (fd >= 0) shm_unlink(name->text);
    if (fd >= 0) close(fd);
    name->text[0] = 0;
    return -1;
}

/* Map all, reserve the own part. */
static bool map(lg_window *w, int fd, uint32_t local) {
    void *p = mmap(NULL, w->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return false;
    w->map = p;
    if (posix_fallocate(fd, (off_t)(local * w->part_bytes), (off_t)w->part_bytes)) return false;
    memset((uint8_t *)p + local * w->part_bytes, 0, w->part_bytes); /* its pages are at hand */
    return true;
}

lg_status lg_window_open(lg_comm *c, size_t part_bytes, lg_window *w) {
    uint32_t rank[LG_MAX_RANK], n = 0, local = 0;
    lg_window_name name = {""};
    *w = (lg_window){0};
    lg_comm_at(c, "shared memory", 0);
    for (uint32_t r = 0; r < c->n_rank; r++) {
        if (c->node[r] != c->node[c->rank]) continue;
        if (r == c->rank) local = n;
        rank[n++] = r;
    }
    if (n < 2 || part_bytes == 0) return LG_OK;
    w->part_bytes = (part_bytes + PAGE - 1) / PAGE * PAGE;
    w->map_bytes = n * w->part_bytes;
    int fd = local == 0 ? create(&name, w->map_bytes) : -1;
    lg_status st = spread(c, rank, n, &name, sizeof name);
    if (local > 0 && st == LG_OK && name.text[0]) fd = shm_open(name.text, O_RDWR, 0);
    bool ok = fd >= 0 && map(w, fd, local);
    if (st == LG_OK) st = agree(c, rank, n, &ok);
    if (local == 0 && name.text[0]) shm_unlink(name.text);
    if (fd >= 0) close(fd);
    if (st != LG_OK || !ok) {
        if (st == LG_OK && local == 0)
            lg_diag_log(LG_LOG_WARN,
                        "no shared memory of %zu MiB for the ranks of a machine (/dev/shm); "
                        "they exchange messages",
                        w->map_bytes >> 20);
        lg_window_close(c, w);
        return st;
    }
    for (uint32_t i = 0; i < n; i++) w->part[rank[i]] = (uint8_t *)w->map + i * w->part_bytes;
    c->window = w;
    return LG_OK;
}

void lg_window_close(lg_comm *c, lg_window *w) {
    if (w->map) munmap(w->map, w->map_bytes);
    if (c->window == w) c->window = NULL;
    *w = (lg_window){0};
}
