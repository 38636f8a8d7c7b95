/* packed.c - see packed.h.
 *
 * Thread: the opener's, and the pool's while hashing and touching.  Memory: the map; tables of hashes on the heap meanwhile.
 * Test: tests/unit/test_packed.c */
#include "model/weights/packed.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kern/qlayout.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAGIC       "LGPACKED"
#define VERSION     1u /* of this file's format, and of what lies in the block beside panels */
#define BLOCK_AT    (2u << 20)
#define PIECE_BYTES (4u << 20)
#define WRITE_BYTES (16u << 20)
#define TOUCH_BYTES (64u << 20)
#define KEEP_FREE   (4ull << 30)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* The first bytes of a file, in the machine's byte order: the block is in it too. */
typedef struct header {
    char magic[8];
    uint32_t version, layout;
    uint64_t identity;
    uint64_t block_bytes, n_hash, file_bytes;
    uint64_t check; /* of the table, then of all above */
} header;

static uint64_t pieces_of(uint64_t block_bytes) {
    return (block_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static uint64_t check_of(const header *h, const uint64_t *hash) {
    uint64_t table = lg_hash_add(h->n_hash, hash, h->n_hash * sizeof *hash);
    return lg_hash_add(table, h, offsetof(header, check));
}

static header header_for(uint64_t identity, uint64_t block_bytes) {
    header h = {.magic = MAGIC,
                .version = VERSION,
                .layout = LG_QLAYOUT_VERSION,
                .identity = identity,
                .block_bytes = block_bytes,
                .n_hash = pieces_of(block_bytes)};
    h.file_bytes = BLOCK_AT + block_bytes + h.n_hash * sizeof(uint64_t);
    return h;
}

char *lg_packed_path(const char *dir, const char *source, uint64_t part) {
    char real[PATH_MAX];
    const char *path = realpath(source, real) ? real : source, *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    lg_buf b = {0};
    lg_buf_printf(&b, "%s/%.100s-%016llx.lgpacked", dir, name,
                  (unsigned long long)lg_hash_add(part, path, strlen(path)));
    char *s = b.failed ? NULL : lg_mem_strdup(lg_buf_str(&b));
    lg_buf_fini(&b);
    return s;
}

/* ---- reading ---- */

static lg_status fail_number(const char *path, const char *what, uint64_t found,
                             uint64_t expected, lg_err *err) {
    return LG_FAIL(err, LG_E_FORMAT, "%s: %s: found %llu, expected %llu", path, what,
                   (unsigned long long)found, (unsigned long long)expected);
}

/* The map against what it must be. */
static lg_status check_map(const char *path, const uint8_t *map, size_t len, const header *want,
                           lg_err *err) {
    header h;
    if (len < BLOCK_AT) return fail_number(path, "size in bytes", len, want->file_bytes, err);
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: found another kind of file, expected packed weights", path);
    if (h.version != VERSION) return fail_number(path, "version", h.version, VERSION, err);
    if (h.layout != LG_QLAYOUT_VERSION)
        return fail_number(path, "layout", h.layout, LG_QLAYOUT_VERSION, err);
    if (h.identity != want->identity)
        return LG_FAIL(err, LG_E_FORMAT,
                       "%s: found weights of another state of the model (identity %016llx, "
                       "expected %016llx)",
                       path, (unsigned long long)h.identity,
                       (unsigned long long)want->identity);
    if (h.block_bytes != want->block_bytes)
        return fail_number(path, "bytes of weights", h.block_bytes, want->block_bytes, err);
    if (h.file_bytes != want->file_bytes || len != want->file_bytes)
        return fail_number(path, "size in bytes", len, want->file_bytes, err);
    if (h.n_hash != want->n_hash)
        return fail_number(path, "number of hashes", h.n_hash, want->n_hash, err);
    if (h.check !=
        check_of(&h, (const uint64_t *)(const void *)(map + BLOCK_AT + h.block_bytes)))
        return LG_FAIL(err, LG_E_FORMAT, "%s: header or table is damaged", path);
    return LG_OK;
}

static lg_status map_file(const char *path, int fd, lg_packed *p, lg_err *err) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return LG_FAIL(err, LG_E_IO, "%s: not a regular file", path);
    if (info.st_size < (off_t)BLOCK_AT)
        return LG_FAIL(err, LG_E_FORMAT, "%s: found %lld bytes, expected packed weights", path,
                       (long long)info.st_size);
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    p->map = map;
    p->map_bytes = (size_t)info.st_size;
    p->fd = fd;
    return LG_OK;
}

lg_status lg_packed_open(const char *path, uint64_t identity, uint64_t block_bytes,
                         lg_packed *p, lg_err *err) {
    header want = header_for(identity, block_bytes);
    *p = (lg_packed){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return LG_AGAIN;
    if (fd < 0) return LG_FAIL(err, LG_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    p->path = lg_mem_strdup(path);
    lg_status st =
        p->path ? map_file(path, fd, p, err) : LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    if (st != LG_OK) close(fd);
    if (st == LG_OK) st = check_map(path, p->map, p->map_bytes, &want, err);
    if (st != LG_OK) {
        lg_packed_close(p);
        return st;
    }
    p->block = (const uint8_t *)p->map + BLOCK_AT;
    p->block_bytes = block_bytes;
    p->hash = (const uint64_t *)(const void *)(p->block + block_bytes);
    return LG_OK;
}

void lg_packed_close(lg_packed *p) {
    if (p->map) {
        munmap(p->map, p->map_bytes);
        close(p->fd);
    }
    lg_mem_free(p->path);
    *p = (lg_packed){0};
}

static void touch_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const lg_packed *p = ctx;
    uint8_t *at = (uint8_t *)p->map + task * TOUCH_BYTES;
    size_t left = p->map_bytes - task * TOUCH_BYTES,
           n = left < TOUCH_BYTES ? left : TOUCH_BYTES;
    if (madvise(at, n, MADV_POPULATE_READ) == 0) return;
    for (size_t i = 0; i < n; i += 4096) (void)*(volatile const uint8_t *)(at + i);
}

void lg_packed_touch(const lg_packed *p, lg_pool *pool) {
    union {
        const lg_packed *in;
        void *out;
    } ctx = {p};
    lg_pool_run(pool, (p->map_bytes + TOUCH_BYTES - 1) / TOUCH_BYTES, touch_task, ctx.out);
}

typedef struct read_ctx {
    const lg_packed *from;
    uint8_t *to;
    _Atomic int error; /* errno; EIO: the file ends too early */
} read_ctx;

static void read_task(void *ctx, size_t task, int thread) {
    (void)thread;
    read_ctx *c = ctx;
    uint64_t at = (uint64_t)task * PIECE_BYTES, end = at + PIECE_BYTES;
    if (end > c->from->block_bytes) end = c->from->block_bytes;
    while (at < end) {
        ssize_t n = pread(c->from->fd, c->to + at, end - at, (off_t)(BLOCK_AT + at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            c->error = n < 0 ? errno : EIO;
            return;
        }
        at += (uint64_t)n;
    }
}

lg_status lg_packed_read(const lg_packed *p, uint8_t *to, lg_pool *pool, lg_err *err) {
    read_ctx c = {.from = p, .to = to};
    lg_pool_run(pool, pieces_of(p->block_bytes), read_task, &c);
    if (!c.error) return LG_OK;
    return LG_FAIL(err, LG_E_IO, "%s: cannot be read: %s", p->path, strerror(c.error));
}

/* ---- hashes ---- */

typedef struct hash_ctx {
    const uint8_t *block;
    uint64_t block_bytes;
    uint64_t *hash;
} hash_ctx;

static void hash_task(void *ctx, size_t task, int thread) {
    (void)thread;
    const hash_ctx *c = ctx;
    uint64_t at = (uint64_t)task * PIECE_BYTES, left = c->block_bytes - at;
    c->hash[task] = lg_hash_add(task, c->block + at, left < PIECE_BYTES ? left : PIECE_BYTES);
}

/* The hashes of a block's pieces; the caller frees them. */
static uint64_t *hashes_of(const uint8_t *block, uint64_t block_bytes, lg_pool *pool) {
    uint64_t n = pieces_of(block_bytes);
    uint64_t *hash = lg_mem_calloc(n, sizeof *hash);
    hash_ctx c = {block, block_bytes, hash};
    if (hash) lg_pool_run(pool, n, hash_task, &c);
    return hash;
}

lg_status lg_packed_verify(const lg_packed *p, lg_pool *pool, lg_err *err) {
    uint64_t *hash = hashes_of(p->block, p->block_bytes, pool);
    if (!hash) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", p->path);
    lg_status st = LG_OK;
    for (uint64_t i = 0; i < pieces_of(p->block_bytes) && st == LG_OK; i++)
        if (hash[i] != p->hash[i])
            st = LG_FAIL(err, LG_E_FORMAT,
                         "%s: bytes from %llu on are damaged (hash %016llx, expected %016llx): "
                         "delete the file",
                         p->path, (unsigned long long)(BLOCK_AT + i * PIECE_BYTES),
                         (unsigned long long)hash[i], (unsigned long long)p->hash[i]);
    lg_mem_free(hash);
    return st;
}

/* ---- writing ---- */

static lg_status write_all(int fd, const char *path, const void *data, uint64_t len,
                           uint64_t at, lg_err *err) {
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = pwrite(fd, p, len < WRITE_BYTES ? len : WRITE_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return LG_FAIL(err, LG_E_IO, "%s: cannot be written: %s", path, strerror(errno));
        p += n;
        at += (uint64_t)n;
        len -= (uint64_t)n;
    }
    return LG_OK;
}

/* Whether the disk has room for the file and some more. */
static lg_status check_room(const char *dir, uint64_t file_bytes, lg_err *err) {
    struct statvfs s;
    if (statvfs(dir, &s) != 0) return LG_FAIL(err, LG_E_IO, "%s: %s", dir, strerror(errno));
    uint64_t all = (uint64_t)s.f_blocks * s.f_frsize, room = (uint64_t)s.f_bavail * s.f_frsize;
    uint64_t keep = all / 8 < KEEP_FREE ? all / 8 : KEEP_FREE;
    if (room >= file_bytes && room - file_bytes >= keep) return LG_OK;
    return LG_FAIL(
        err, LG_E_IO,
        "%s: %.2f GiB of packed weights would leave less than %.2f GiB of %.2f GiB free", dir,
        (double)file_bytes / 0x1p30, (double)keep / 0x1p30, (double)room / 0x1p30);
}

static lg_status fill_file(int fd, const char *path, const header *h, const uint8_t *block,
                           const uint64_t *hash, lg_err *err) {
    LG_TRY(write_all(fd, path, block, h->block_bytes, BLOCK_AT, err));
    LG_TRY(write_all(fd, path, hash, h->n_hash * sizeof *hash, BLOCK_AT + h->block_bytes, err));
    LG_TRY(write_all(fd, path, h, sizeof *h, 0, err));
    if (fsync(fd) != 0)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    return LG_OK;
}

/* The rename must last too. */
static void sync_folder(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

/* A file without a name where the system has them, so that a process that dies leaves nothing; else one of that name. */
static int open_temp(const char *dir, const char *temp, bool *named) {
    int fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    *named = fd < 0;
    return *named ? open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644) : fd;
}

static bool give_name(int fd, const char *temp) {
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, temp, AT_SYMLINK_FOLLOW) == 0;
}

static lg_status write_file(const char *dir, const char *path, const header *h,
                            const uint8_t *block, const uint64_t *hash, lg_err *err) {
    char temp[PATH_MAX];
    bool named = false;
    if ((size_t)snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >= sizeof temp)
        return LG_FAIL(err, LG_E_IO, "%.200s...: path too long", path);
    unlink(temp); /* of an earlier process with our number */
    int fd = open_temp(dir, temp, &named);
    if (fd < 0)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be written: %s", temp, strerror(errno));
    lg_status st = fill_file(fd, temp, h, block, hash, err);
    if (st == LG_OK && !named && !give_name(fd, temp))
        st = LG_FAIL(err, LG_E_IO, "%s: cannot be named: %s", temp, strerror(errno));
    if (close(fd) != 0 && st == LG_OK)
        st = LG_FAIL(err, LG_E_IO, "%s: cannot be written: %s", temp, strerror(errno));
    if (st == LG_OK && rename(temp, path) != 0)
        st = LG_FAIL(err, LG_E_IO, "%s: cannot be renamed to %s: %s", temp, path,
                     strerror(errno));
    if (st != LG_OK) {
        unlink(temp);
        return st;
    }
    sync_folder(dir);
    return LG_OK;
}

lg_status lg_packed_write(const char *path, uint64_t identity, const uint8_t *block,
                          uint64_t block_bytes, lg_pool *pool, lg_err *err) {
    header h = header_for(identity, block_bytes);
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX];
    if (!slash || (size_t)(slash - path) >= sizeof dir)
        return LG_FAIL(err, LG_E_IO, "%.200s: no folder, or path too long", path);
    snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return LG_FAIL(err, LG_E_IO, "%s: cannot be made: %s", dir, strerror(errno));
    LG_TRY(check_room(dir, h.file_bytes, err));
    uint64_t *hash = hashes_of(block, block_bytes, pool);
    if (!hash) return LG_FAIL(err, LG_E_NOMEM, "%s: no memory", path);
    h.check = check_of(&h, hash);
    lg_status st = write_file(dir, path, &h, block, hash, err);
    lg_mem_free(hash);
    return st;
}
