/* disk_file.c - one file of kept text: its head, its name, writing and reading it: see disk.h.
 *
 * In/out: a descriptor of the folder, ids, and a callback that copies pages and parts of a snapshot.
 * Invariants: a file has its name only when all of it is written; what is read is used by nobody before its sums were right
 * (the callback fills pages that are not in the tree yet).  Little-endian machines only, as everywhere here.
 * Thread: any.  Memory: the caller's buffer.  Test: tests/unit/test_disk.c, fuzz/fuzz_disk.c */
#include "base/num.h"
#include "engine/cache/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "LGKEPT";

static uint32_t first_page(uint32_t from) {
    return from / LG_PAGE_TOK;
}

static uint32_t end_page(uint32_t to) {
    return (uint32_t)(((uint64_t)to + LG_PAGE_TOK - 1) / LG_PAGE_TOK);
}

/* ---- hashes ---- */

static void sum_of(const void *data, size_t len_bytes, uint8_t sum[LG_DISK_SUM_BYTES]) {
    crypto_generichash(sum, LG_DISK_SUM_BYTES, data, len_bytes, NULL, 0);
}

void lg_disk_salt(const lg_disk_shape *shape, uint64_t salt, uint8_t sum[LG_DISK_SUM_BYTES]) {
    crypto_generichash(sum, LG_DISK_SUM_BYTES, (const uint8_t *)&salt, sizeof salt,
                       shape->model, sizeof shape->model);
}

uint64_t lg_disk_hash0(const uint8_t salt_sum[LG_DISK_SUM_BYTES]) {
    return lg_num_load64(salt_sum);
}

uint64_t lg_disk_roll(uint64_t hash, uint32_t id) {
    hash = (hash ^ id) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

/* ---- the head ---- */

void lg_disk_head_init(lg_disk_head *h, const lg_disk_shape *shape, uint32_t from,
                       uint32_t to) {
    *h = (lg_disk_head){.format = LG_DISK_FORMAT,
                        .page_tok = LG_PAGE_TOK,
                        .from = from,
                        .to = to,
                        .page_bytes = shape->page_bytes,
                        .snap_bytes = shape->snap_bytes,
                        .n_page = end_page(to) - first_page(from),
                        .n_part = shape->n_part};
    memcpy(h->magic, magic, sizeof magic);
    memcpy(h->model, shape->model, sizeof h->model);
}

void lg_disk_head_seal(lg_disk_head *h) {
    sum_of(h, offsetof(lg_disk_head, head_sum), h->head_sum);
}

uint64_t lg_disk_file_bytes(const lg_disk_head *h) {
    return LG_DISK_HEAD_BYTES + (uint64_t)(h->to - h->from) * sizeof(uint32_t) +
           h->n_page * h->page_bytes + h->snap_bytes;
}

static bool wrong(char why[96], const char *what) {
    snprintf(why, 96, "%s", what);
    return false;
}

bool lg_disk_head_check(const void *bytes, size_t len, uint64_t file_bytes,
                        const lg_disk_shape *shape, lg_disk_head *h, char why[96]) {
    uint8_t sum[LG_DISK_SUM_BYTES];
    if (len < LG_DISK_HEAD_BYTES) return wrong(why, "shorter than its head");
    memcpy(h, bytes, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0) return wrong(why, "not a file of ours");
    if (h->format != LG_DISK_FORMAT) return wrong(why, "another format version");
    sum_of(h, offsetof(lg_disk_head, head_sum), sum);
    if (memcmp(sum, h->head_sum, sizeof sum) != 0)
        return wrong(why, "the head does not match its checksum");
    if (memcmp(h->model, shape->model, sizeof h->model) != 0)
        return wrong(why, "another model, build or precision");
    if (h->page_tok != LG_PAGE_TOK || h->page_bytes != shape->page_bytes ||
        h->snap_bytes != shape->snap_bytes || h->n_part != shape->n_part)
        return wrong(why, "pages or snapshots of another size");
    if (h->from >= h->to || h->to > shape->max_tok)
        return wrong(why, "positions outside the context");
    if (h->n_page != end_page(h->to) - first_page(h->from))
        return wrong(why, "the number of pages does not fit the positions");
    if (lg_disk_file_bytes(h) != file_bytes)
        return wrong(why, "the file is shorter or longer than its head says");
    return true;
}

void lg_disk_name(char name[LG_DISK_NAME_BYTES], uint64_t hash, uint32_t to) {
    snprintf(name, LG_DISK_NAME_BYTES, "%016llx-%08x.kept", (unsigned long long)hash, to);
}

bool lg_disk_parse_name(const char *name, uint64_t *hash, uint32_t *to) {
    static const char hex[] = "0123456789abcdef";
    uint64_t v[2] = {0, 0};
    if (strlen(name) != 30 || name[16] != '-' || strcmp(name + 25, ".kept") != 0) return false;
    for (size_t i = 0; i < 25; i++) {
        const char *digit = strchr(hex, name[i]);
        if (i == 16) continue;
        if (!digit) return false;
        v[i > 16] = v[i > 16] << 4 | (uint64_t)(digit - hex);
    }
    *hash = v[0];
    *to = (uint32_t)v[1];
    return true;
}

/* ---- writing ---- */

typedef struct writing {
    int fd;
    uint64_t at; /* bytes written */
    int error;   /* errno, or 0 */
} writing;

static bool put(writing *w, const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    while (len_bytes && !w->error) {
        ssize_t n = pwrite(w->fd, p, len_bytes, (off_t)w->at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            w->error = n < 0 ? errno : ENOSPC;
        } else {
            p += n;
            w->at += (uint64_t)n;
            len_bytes -= (size_t)n;
        }
    }
    return !w->error;
}

/* Copy n pieces of len bytes to the file; false when `copy` gave up or the file failed. */
static bool put_pieces(writing *w, bool snap, uint32_t n, size_t len, lg_disk_copy_fn *copy,
                       void *ctx, void *buf, uint8_t sum[LG_DISK_SUM_BYTES]) {
    crypto_generichash_state s;
    crypto_generichash_init(&s, NULL, 0, LG_DISK_SUM_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        if (!copy(ctx, snap, i, buf)) return false;
        crypto_generichash_update(&s, buf, len);
        if (!put(w, buf, len)) return false;
    }
    crypto_generichash_final(&s, sum, LG_DISK_SUM_BYTES);
    return true;
}

static bool put_all(writing *w, lg_disk_head *h, const uint32_t *ids, lg_disk_copy_fn *copy,
                    void *ctx, void *buf) {
    size_t ids_bytes = (size_t)(h->to - h->from) * sizeof *ids;
    w->at = LG_DISK_HEAD_BYTES;
    sum_of(ids, ids_bytes, h->ids_sum);
    if (!put(w, ids, ids_bytes)) return false;
    size_t part = h->n_part ? (size_t)(h->snap_bytes / h->n_part) : 0;
    if (!put_pieces(w, false, h->n_page, (size_t)h->page_bytes, copy, ctx, buf, h->kv_sum) ||
        !put_pieces(w, true, h->n_part, part, copy, ctx, buf, h->snap_sum))
        return false;
    lg_disk_head_seal(h);
    w->at = 0;
    return put(w, h, sizeof *h);
}

lg_status lg_disk_file_write(int dir, lg_disk_head *h, const uint32_t *ids,
                             lg_disk_copy_fn *copy, void *ctx, void *buf, bool *full,
                             char why[96]) {
    char name[LG_DISK_NAME_BYTES], tmp[LG_DISK_NAME_BYTES + 8];
    lg_disk_name(name, h->hash, h->to);
    snprintf(tmp, sizeof tmp, "%s.part", name);
    unlinkat(dir, tmp, 0);
    writing w = {
        .fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
    *full = false;
    if (w.fd < 0) w.error = errno;
    bool ok = w.fd >= 0 && put_all(&w, h, ids, copy, ctx, buf);
    if (w.fd >= 0 && close(w.fd) != 0 && !w.error) w.error = errno;
    if (ok && !w.error && renameat(dir, tmp, dir, name) != 0) w.error = errno;
    if (ok && !w.error) return LG_OK;
    unlinkat(dir, tmp, 0);
    *full = w.error == ENOSPC || w.error == EDQUOT || w.error == EFBIG;
    snprintf(why, 96, "%s", w.error ? strerror(w.error) : "given up");
    return w.error ? LG_E_IO : LG_E_CANCELLED;
}

/* ---- reading ---- */

static bool get(int fd, uint64_t at, void *data, size_t len_bytes) {
    uint8_t *p = data;
    while (len_bytes) {
        ssize_t n = pread(fd, p, len_bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            if (n == 0) errno = EIO;
            return false;
        }
        p += n;
        at += (uint64_t)n;
        len_bytes -= (size_t)n;
    }
    return true;
}

typedef struct reading {
    int fd;
    uint64_t at;
    char *why;
} reading;

static lg_status io_error(const reading *r) {
    snprintf(r->why, 96, "%s", strerror(errno));
    return LG_E_IO;
}

static lg_status damaged(const reading *r, const char *what) {
    snprintf(r->why, 96, "%s", what);
    return LG_E_FORMAT;
}

/* Read and sum n pieces; each goes to `copy` before the sum is known. */
static lg_status get_pieces(reading *r, bool snap, uint32_t n, size_t len,
                            const uint8_t sum[LG_DISK_SUM_BYTES], lg_disk_copy_fn *copy,
                            void *ctx, void *buf) {
    uint8_t got[LG_DISK_SUM_BYTES];
    crypto_generichash_state s;
    crypto_generichash_init(&s, NULL, 0, sizeof got);
    for (uint32_t i = 0; i < n; i++, r->at += len) {
        if (!get(r->fd, r->at, buf, len)) return io_error(r);
        crypto_generichash_update(&s, buf, len);
        if (!copy(ctx, snap, i, buf)) return LG_E_CANCELLED;
    }
    crypto_generichash_final(&s, got, sizeof got);
    if (memcmp(got, sum, sizeof got) == 0) return LG_OK;
    return damaged(r, snap ? "the state does not match its checksum"
                           : "keys and values do not match their checksum");
}

/* Compare the file's ids with those of the text. */
static lg_status get_ids(reading *r, const lg_disk_head *h, const uint32_t *ids) {
    uint8_t got[LG_DISK_SUM_BYTES], block[4096];
    crypto_generichash_state s;
    bool same = true;
    size_t left = (size_t)(h->to - h->from) * sizeof *ids;
    const uint8_t *want = (const uint8_t *)(ids + h->from);
    crypto_generichash_init(&s, NULL, 0, sizeof got);
    for (size_t n; left; left -= n, want += n, r->at += n) {
        n = left < sizeof block ? left : sizeof block;
        if (!get(r->fd, r->at, block, n)) return io_error(r);
        crypto_generichash_update(&s, block, n);
        same &= memcmp(block, want, n) == 0;
    }
    crypto_generichash_final(&s, got, sizeof got);
    if (memcmp(got, h->ids_sum, sizeof got) != 0)
        return damaged(r, "token ids do not match their checksum");
    return same ? LG_OK : damaged(r, "it holds another text than its name says");
}

static lg_status get_all(reading *r, const lg_disk_want *w, const lg_disk_shape *shape,
                         lg_disk_copy_fn *copy, void *ctx, void *buf) {
    lg_disk_head h;
    struct stat st;
    uint8_t head[LG_DISK_HEAD_BYTES];
    if (fstat(r->fd, &st) != 0) return io_error(r);
    if (!S_ISREG(st.st_mode)) return damaged(r, "not a regular file");
    if (st.st_size < LG_DISK_HEAD_BYTES) return damaged(r, "shorter than its head");
    if (!get(r->fd, 0, head, sizeof head)) return io_error(r);
    if (!lg_disk_head_check(head, sizeof head, (uint64_t)st.st_size, shape, &h, r->why))
        return LG_E_FORMAT;
    if (h.hash != w->hash || h.from != w->from || h.to != w->to)
        return damaged(r, "its name belongs to another file");
    if (memcmp(h.salt, w->salt, sizeof h.salt) != 0)
        return damaged(r, "it was kept for somebody else");
    r->at = LG_DISK_HEAD_BYTES;
    LG_TRY(get_ids(r, &h, w->ids));
    LG_TRY(get_pieces(r, false, h.n_page, (size_t)h.page_bytes, h.kv_sum, copy, ctx, buf));
    if (!w->snap || !h.n_part) return LG_OK;
    return get_pieces(r, true, h.n_part, (size_t)(h.snap_bytes / h.n_part), h.snap_sum, copy,
                      ctx, buf);
}

lg_status lg_disk_file_read(int dir, const lg_disk_want *want, const lg_disk_shape *shape,
                            lg_disk_copy_fn *copy, void *ctx, void *buf, uint64_t *n_byte,
                            char why[96]) {
    char name[LG_DISK_NAME_BYTES];
    lg_disk_name(name, want->hash, want->to);
    reading r = {.fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK),
                 .why = why};
    why[0] = 0;
    if (r.fd < 0) return io_error(&r);
    lg_status st = get_all(&r, want, shape, copy, ctx, buf);
    if (st == LG_OK && futimens(r.fd, NULL) != 0) /* its age counts after a restart */
        lg_diag_log(LG_LOG_DEBUG, "%s: %s", name, strerror(errno));
    close(r.fd);
    *n_byte += r.at;
    return st;
}

lg_status lg_disk_file_head(int dir, const char *name, const lg_disk_shape *shape,
                            lg_disk_head *h, int64_t *mtime_s, char why[96]) {
    uint8_t head[LG_DISK_HEAD_BYTES];
    struct stat st;
    uint64_t hash;
    uint32_t to;
    reading r = {.fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK),
                 .why = why};
    if (r.fd < 0) return io_error(&r);
    lg_status got = LG_OK;
    if (fstat(r.fd, &st) != 0) {
        got = io_error(&r);
    } else if (!S_ISREG(st.st_mode)) {
        got = damaged(&r, "not a regular file");
    } else if (st.st_size < LG_DISK_HEAD_BYTES) {
        got = damaged(&r, "shorter than its head");
    } else if (!get(r.fd, 0, head, sizeof head)) {
        got = io_error(&r);
    } else if (!lg_disk_head_check(head, sizeof head, (uint64_t)st.st_size, shape, h, why)) {
        got = LG_E_FORMAT;
    } else if (!lg_disk_parse_name(name, &hash, &to) || hash != h->hash || to != h->to) {
        got = damaged(&r, "its name belongs to another file");
    }
    if (got == LG_OK) *mtime_s = st.st_mtim.tv_sec;
    close(r.fd);
    return got;
}
