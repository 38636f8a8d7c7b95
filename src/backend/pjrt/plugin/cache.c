/* cache.c - compiled programs kept in files, so that a second start compiles nothing.
 *
 * A file is named by a hash of the text, the options, the plugin's build and environment, and the kind and number of devices; it holds
 * "LGPX1\n", that hash, a hash of the program's bytes, and these bytes as the plugin gave them.  They are machine code, so a folder or file
 * that others may write to is not used.  Whatever is wrong with a file is said, and it is replaced; a plugin that cannot write or read
 * programs at all is told about once and only compiles from then on.  A file's time is that of its last use: when all of them are more
 * than the limit, the oldest go.
 * Thread: any.  Memory: one program at a time.  Test: tests/unit/test_pjrt_cache.c, tests/unit/test_pjrt_cpu.c */
#include "backend/pjrt/plugin/call.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "LGPX1\n"
#define HASH  32
#define HEAD  (sizeof MAGIC - 1 + 2 * HASH)

typedef struct entry {
    uint8_t key[HASH];
    char path[1024];
} entry;

static void hash_of(const void *data, size_t n, uint8_t *out) {
    crypto_generichash(out, HASH, data, n, NULL, 0);
}

/* Whether only its owner, which is us, may write there. */
static bool is_ours(int fd) {
    struct stat s;
    return fstat(fd, &s) == 0 && s.st_uid == geteuid() &&
           (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static bool folder_ours(const char *dir) {
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        lg_diag_log(LG_LOG_WARN, "%s: %s; programs are not kept", dir, strerror(errno));
        return false;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ours = fd >= 0 && is_ours(fd);
    if (fd >= 0) close(fd);
    if (!ours)
        lg_diag_log(LG_LOG_WARN,
                    "%s: not a folder that only its owner may write to; programs are "
                    "not kept",
                    dir);
    return ours;
}

static lg_status entry_of(const lg_pjrt_cache *k, const lg_pjrt_client *c, const char *text,
                          size_t len_bytes, const lg_pjrt_compile *how, entry *e, lg_err *err) {
    crypto_generichash_state s;
    lg_pjrt_device_info info;
    lg_buf options = {0};
    char hex[2 * HASH + 1];
    LG_TRY(lg_pjrt_compile_bytes(how, &options, err));
    lg_pjrt_client_info(c, 0, &info);
    const uint64_t n[] = {c->plugin->build, c->n, options.len_bytes, len_bytes};
    crypto_generichash_init(&s, NULL, 0, HASH);
    crypto_generichash_update(&s, (const uint8_t *)n, sizeof n);
    crypto_generichash_update(&s, (const uint8_t *)c->platform, sizeof c->platform);
    crypto_generichash_update(&s, (const uint8_t *)info.kind, sizeof info.kind);
    crypto_generichash_update(&s, (const uint8_t *)lg_buf_str(&options), options.len_bytes);
    crypto_generichash_update(&s, (const uint8_t *)text, len_bytes);
    crypto_generichash_final(&s, e->key, HASH);
    lg_buf_fini(&options);
    sodium_bin2hex(hex, sizeof hex, e->key, HASH);
    int len = snprintf(e->path, sizeof e->path, "%s/%s.pjrt", k->dir, hex);
    if (len >= (int)sizeof e->path - 8)
        return LG_FAIL(err, LG_E_ARG, "%s: the path is too long", k->dir);
    return LG_OK;
}

/* ---- read ---- */

/* The whole file; NULL with *why. */
static uint8_t *read_file(const char *path, size_t *n, const char **why) {
    struct stat s;
    uint8_t *data = NULL;
    *why = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        if (errno != ENOENT) *why = strerror(errno);
        return NULL;
    }
    if (!is_ours(fd))
        *why = "others may write to it";
    else if (fstat(fd, &s) != 0 || s.st_size <= (off_t)HEAD)
        *why = "it is too short";
    else if (!(data = lg_mem_alloc((size_t)s.st_size)))
        *why = "no memory";
    size_t done = 0;
    while (data && done < (size_t)s.st_size) {
        ssize_t got = read(fd, data + done, (size_t)s.st_size - done);
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (data && done != (size_t)s.st_size) {
        *why = "it cannot be read";
        LG_FREE(data);
    }
    close(fd);
    *n = done;
    return data;
}

static const char *check_file(const entry *e, const uint8_t *data, size_t n) {
    uint8_t sum[HASH];
    const uint8_t *key = data + sizeof MAGIC - 1;
    hash_of(data + HEAD, n - HEAD, sum);
    if (memcmp(data, MAGIC, sizeof MAGIC - 1) != 0) return "it is not a kept program";
    if (memcmp(key, e->key, HASH) != 0) return "it is of another program";
    if (memcmp(key + HASH, sum, HASH) != 0) return "it is damaged";
    return NULL;
}

/* The plugin cannot read what it is given back: this file goes.  Whether no file of this plugin's can be read is decided by three. */
static void unread(lg_pjrt_cache *k, const entry *e, lg_status st, const lg_err *err) {
    k->n_unread++;
    if (st == LG_E_UNSUPPORTED || (k->n_hit == 0 && k->n_unread >= LG_PJRT_CACHE_UNREAD)) {
        lg_diag_log(LG_LOG_WARN, "kept programs cannot be used: %s", err->msg);
        k->refused = true;
        return;
    }
    lg_diag_log(LG_LOG_WARN, "%s: %s; it is removed and made again", e->path, err->msg);
    if (unlink(e->path) != 0 && errno != ENOENT)
        lg_diag_log(LG_LOG_WARN, "%s: %s", e->path, strerror(errno));
}

/* A program from its file; false: compile it. */
static bool load(lg_pjrt_cache *k, lg_pjrt_client *c, const entry *e,
                 const lg_pjrt_compile *how, lg_pjrt_exe **exe) {
    lg_err err;
    const char *why;
    size_t n = 0;
    uint8_t *data = read_file(e->path, &n, &why);
    if (data) why = check_file(e, data, n);
    if (why) lg_diag_log(LG_LOG_WARN, "%s: %s; it is made again", e->path, why);
    lg_status st = LG_E_FORMAT;
    if (data && !why) {
        LG_ABI_ARGS(lg_abi_deserialize, a);
        a.arg.client = c->handle;
        a.arg.bytes = (const char *)data + HEAD;
        a.arg.n = n - HEAD;
        st = lg_pjrt_call_slot(c->plugin, LG_ABI_DESERIALIZE, &a, &err);
        if (st == LG_OK)
            st = lg_pjrt_exe_loaded(c, a.arg.loaded, how->n_replica * how->n_partition, exe,
                                    &err);
        if (st != LG_OK) unread(k, e, st, &err);
    }
    lg_mem_free(data);
    if (st == LG_OK)
        utimensat(AT_FDCWD, e->path, NULL,
                  0); /* its last use; only the order of removal hangs on it */
    return st == LG_OK;
}

/* ---- write ---- */

static bool write_all(int fd, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        p += put;
        n -= (size_t)put;
    }
    return true;
}

static bool write_file(const entry *e, const void *data, size_t n) {
    char temp[1032];
    uint8_t sum[HASH];
    snprintf(temp, sizeof temp, "%s.XXXXXX", e->path);
    int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) return false;
    hash_of(data, n, sum);
    bool ok = write_all(fd, MAGIC, sizeof MAGIC - 1) && write_all(fd, e->key, HASH) &&
              write_all(fd, sum, HASH) && write_all(fd, data, n) && fsync(fd) == 0;
    int failed = errno;
    ok = close(fd) == 0 && ok && rename(temp, e->path) == 0;
    if (!ok) unlink(temp);
    errno = failed;
    return ok;
}

/* ---- the limit ---- */

/* A program's name, or one that is being written. */
static bool is_program(const char *name) {
    size_t n = 0;
    while (isxdigit((unsigned char)name[n])) n++;
    if (n != 2 * HASH || strncmp(name + n, ".pjrt", 5) != 0) return false;
    return name[n + 5] == 0 || (name[n + 5] == '.' && strlen(name + n + 6) == 6);
}

/* Bytes of all programs in the folder, and the one that was not used for the longest time, but `kept`; "" when there is none. */
static uint64_t look(DIR *d, const char *kept, char *oldest, size_t cap) {
    struct timespec first = {0};
    uint64_t total = 0;
    oldest[0] = 0;
    rewinddir(d);
    for (struct dirent *f; (f = readdir(d));) {
        struct stat s;
        if (!is_program(f->d_name) ||
            fstatat(dirfd(d), f->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
            continue;
        total += (uint64_t)s.st_size;
        bool older = !oldest[0] || s.st_mtim.tv_sec < first.tv_sec ||
                     (s.st_mtim.tv_sec == first.tv_sec && s.st_mtim.tv_nsec < first.tv_nsec);
        if (!older || strcmp(f->d_name, kept) == 0) continue;
        first = s.st_mtim;
        snprintf(oldest, cap, "%s", f->d_name);
    }
    return total;
}

static void trim(const lg_pjrt_cache *k, const entry *e) {
    uint64_t limit = k->limit_bytes ? k->limit_bytes : LG_PJRT_CACHE_BYTES, total;
    char oldest[256];
    uint32_t n = 0;
    const char *kept = strrchr(e->path, '/') + 1;
    DIR *d = opendir(k->dir);
    if (!d) return;
    while ((total = look(d, kept, oldest, sizeof oldest)) > limit && oldest[0]) {
        if (unlinkat(dirfd(d), oldest, 0) != 0 && errno != ENOENT) {
            lg_diag_log(LG_LOG_WARN, "%s/%s: %s; kept programs stay above their limit", k->dir,
                        oldest, strerror(errno));
            break;
        }
        n++;
    }
    if (n)
        lg_diag_log(LG_LOG_INFO,
                    "%s: %u programs that were not used for the longest time removed: more "
                    "than %llu MiB",
                    k->dir, n, (unsigned long long)(limit >> 20));
    closedir(d);
}

static void keep(lg_pjrt_cache *k, const entry *e, const lg_pjrt_exe *exe) {
    lg_err err;
    LG_ABI_ARGS(lg_abi_serialize, a);
    a.arg.exe = exe->exe;
    if (lg_pjrt_call_slot(exe->plugin, LG_ABI_EXE_SERIALIZE, &a, &err) != LG_OK) {
        lg_diag_log(LG_LOG_WARN, "programs cannot be kept: %s", err.msg);
        k->refused = true;
        return;
    }
    if (!write_file(e, a.arg.bytes, a.arg.n)) {
        lg_diag_log(LG_LOG_WARN, "%s: %s; programs are not kept", k->dir, strerror(errno));
        k->refused = true;
    } else {
        trim(k, e);
    }
    if (a.arg.deleter) a.arg.deleter(a.arg.serialized);
}

lg_status lg_pjrt_cache_compile(lg_pjrt_cache *k, lg_pjrt_client *c, const char *text,
                                size_t len_bytes, const lg_pjrt_compile *how, lg_pjrt_exe **exe,
                                lg_err *err) {
    entry e;
    if (!k->dir || k->refused) return lg_pjrt_exe_compile(c, text, len_bytes, how, exe, err);
    LG_TRY(entry_of(k, c, text, len_bytes, how, &e, err));
    if (!folder_ours(k->dir)) {
        k->refused = true;
    } else if (load(k, c, &e, how, exe)) {
        k->n_hit++;
        return LG_OK;
    }
    LG_TRY(lg_pjrt_exe_compile(c, text, len_bytes, how, exe, err));
    k->n_miss++;
    if (!k->refused) keep(k, &e, *exe);
    return LG_OK;
}
